"""Several real brokers in one loop, on one directory as object store: one cluster (ADR 0023)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from app.machine.runtime import ThreadPool
from app.metadata.liveness import Identity
from app.objectstore.directory import DirectoryStore
from app.units import BrokerId, DurationMs
from tests.support.broker import RunningBroker, running_broker
from tests.support.several import unfenced, until

RNG = random.Random(20)


@asynccontextmanager
async def member(path: Path, node_id: int, *, new_level: int = 1, **settings: Any) -> AsyncIterator[RunningBroker]:
    """A broker of the cluster whose bucket is ``path/store``."""
    pool = ThreadPool(2)
    store = DirectoryStore(path / "store", pool)
    await store.open()
    try:
        async with running_broker(
            path / f"broker-{node_id}",
            store=store,
            rng=random.Random(RNG.random()),
            new_level=new_level,
            node_id=node_id,
            **settings,
        ) as broker:
            yield broker
    finally:
        pool.close()


async def test_three_brokers_are_one_cluster(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2, 3)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        assert {broker.node.cluster.image.cluster_id for broker in brokers} == {
            brokers[0].node.cluster.image.cluster_id
        }
        assert {broker.node.cluster.image.controller.broker_id for broker in brokers} == {1}


class SilentRedis:
    """Signs of life that never answer."""

    async def beat(self, identity: Identity) -> None:
        await asyncio.Event().wait()

    async def age_ms(self, broker_id: BrokerId, directory_id: UUID) -> DurationMs | None:
        await asyncio.Event().wait()
        return None

    async def leave(self, identity: Identity) -> None:
        await asyncio.Event().wait()


async def test_several_brokers_need_no_redis(tmp_path: Path) -> None:
    async with member(tmp_path, 1, liveness=SilentRedis()) as one:
        await until(lambda: unfenced(one) == [1])
        async with member(tmp_path, 2, liveness=SilentRedis()) as two:
            await until(lambda: unfenced(two) == [1, 2])
    signs = {path.parent.name for path in (tmp_path / "store" / "cluster" / "heartbeat").glob("*/*")}
    assert signs == set(), "who stopped in order has taken its sign of life back"
