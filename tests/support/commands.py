"""A command of ``firn`` that a test runs beside the loop of its broker, and what the command printed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from app.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Firn = Callable[..., Awaitable[Done]]


def runner(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, bootstrap: str | None = None) -> Firn:
    """Runs a command and returns what it printed. ``bootstrap``: the broker that the command asks unless it names another."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # main sets its own
    if bootstrap is not None:
        monkeypatch.setenv("FIRN_BOOTSTRAP", bootstrap)

    async def run(*arguments: str) -> Done:
        capfd.readouterr()
        code = await asyncio.to_thread(main, arguments)
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return run
