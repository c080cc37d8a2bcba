"""Probes of a store that does not respond, as the proxy sends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.objectstore import health, proxy
from app.objectstore.health import PROBE_END_S
from app.objectstore.proxy import StoreProxy


class Hanging:
    """A store process that answers nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.probed = asyncio.Event()

    async def call(self, method: str, payload: bytes, timeout_s: float, **_: object) -> bytes:
        self.asked.append((method, timeout_s))
        if len(self.asked) == 2:
            self.probed.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_probe_ends_long_before_a_request_so_that_the_next_one_can_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "PROBE_S", 0.0)
    monkeypatch.setattr(proxy, "PROBE_S", 0.0)
    store: Any = Hanging()
    asking = asyncio.create_task(StoreProxy(store, part_bytes_min=1).head("k"))
    async with asyncio.timeout(30):
        await store.probed.wait()
    (_, of_request), (_, of_probe) = store.asked
    assert of_probe == PROBE_END_S < of_request
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
