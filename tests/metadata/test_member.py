"""One broker of several joins: what it asks before it takes a place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from app.configs import BrokerConfig
from app.errors import BrokerUnavailable
from app.metadata import layout
from app.metadata.cluster import (
    LEVEL_MAX,
    Endpoint,
)
from app.metadata.liveness import ObjectLiveness
from app.metadata.membership import Membership
from app.metadata.registration import StartRefused
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from tests.metadata.support import on_virtual_time, uuid_of
from tests.support.virtual_loop import VirtualClock, VirtualLoop


class CutLink:
    """No other broker is reached."""

    async def refuses(self, endpoint: Endpoint) -> bool:
        return False

    async def close(self) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def unreachable(*_: object) -> None:
            raise BrokerUnavailable(f"nobody hears {name}")

        return unreachable


def make(store: MemoryStore, loop: VirtualLoop, node_id: int, directory: int, **more: Any) -> Membership:
    clock, rng = VirtualClock(loop), random.Random(f"{node_id} {directory}")
    return Membership(
        store,
        config=BrokerConfig(node_id=node_id, wal_store_url=more.pop("wal_store_url", "")),
        directory_id=uuid_of(directory),
        endpoints=[Endpoint("PLAINTEXT", f"h{directory}", 9092, "PLAINTEXT")],
        liveness=ObjectLiveness(store, rng=rng, clock=clock),
        rng=rng,
        clock=clock,
        link=more.pop("link", CutLink()),
        new_level=LEVEL_MAX,
        **more,
    )


async def waiting_for_its_wal_store(store: MemoryStore, broker: Membership) -> asyncio.Task[None]:
    """Its start, which waits for the WAL store that is there again now."""
    away = Fault(FaultKind.UNAVAILABLE, key_prefix=layout.WAL_STORE_KEY)
    store.faults = [away]
    starting = asyncio.create_task(broker.start())
    while not away.struck:
        await asyncio.sleep(0.001)
    store.faults = []
    return starting


def test_a_start_that_waited_for_its_wal_store_does_not_depose_the_controller_that_came_meanwhile() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        first, second = (make(store, loop, one, 10 + one, wal_store_url="file:///fast") for one in (1, 2))
        starting = await waiting_for_its_wal_store(store, second)
        await first.start()
        await starting
        assert not second.controller.active
        await first.view.log.poll()
        assert first.view.log.writer.writer_id == first.view.writer_id
        assert list(first.view.log.state.image.brokers) == [1], "the second one asks its controller"

    on_virtual_time(main)


def test_a_start_that_waited_for_its_wal_store_asks_again_who_has_its_place() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        first, second = (make(store, loop, 1, directory, wal_store_url="file:///fast") for directory in (11, 12))
        starting = await waiting_for_its_wal_store(store, second)
        await first.start()
        with pytest.raises(StartRefused, match="Node id 1 is in use by a broker with another data directory"):
            await starting
        await first.view.look()

    on_virtual_time(main)
