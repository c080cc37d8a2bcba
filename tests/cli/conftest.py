from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The broker's own loop, with the transports that it runs on."""
    return {"uvloop": uvloop.new_event_loop}
