"""Several brokers of one cluster inside the test's own loop, each with an id from the cluster, on one directory as object store."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from app.configs.broker import NODE_ID_AUTO
from app.machine.runtime import SystemClock, ThreadPool
from app.metadata.image.image import ClusterImage
from app.metadata.view.follower import MetadataFollower
from app.objectstore.directory import DirectoryStore
from tests.support.broker import RunningBroker, running_broker
from tests.support.waiting import until

_RNG = random.Random(29)


@asynccontextmanager
async def broker_on(path: Path, name: str, *, node_id: int = NODE_ID_AUTO, **more: Any) -> AsyncIterator[RunningBroker]:
    """A broker with its data in ``path/<name>``, and ``path/store`` as its bucket. ``more``: as for ``running_broker``."""
    pool = ThreadPool(2)
    store = DirectoryStore(path / "store", pool)
    await store.open()
    try:
        rng = random.Random(_RNG.random())
        async with running_broker(path / name, store=store, rng=rng, node_id=node_id, **more) as broker:
            yield broker
    finally:
        pool.close()


def member(path: Path, node_id: int, *, new_level: int = 1, **more: Any) -> AbstractAsyncContextManager[RunningBroker]:
    """A broker with a chosen id, and its data in ``path/broker-<id>``; otherwise as ``broker_on``."""
    return broker_on(path, f"broker-{node_id}", node_id=node_id, new_level=new_level, **more)


@asynccontextmanager
async def cluster_on(path: Path, count: int = 3, **more: Any) -> AsyncIterator[list[RunningBroker]]:
    """Brokers 1 to ``count``, all unfenced."""
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(broker_on(path, f"b{one}", **more)) for one in range(1, count + 1)]
        for broker in brokers:
            await until(partial(_sees, broker, count))
        yield brokers


def _sees(broker: RunningBroker, count: int) -> bool:
    return len(unfenced(broker)) == count


async def image_of(path: Path) -> ClusterImage:
    """The cluster by its bucket, ``path/store``, as who has no key reads it."""
    pool = ThreadPool(1)
    store = DirectoryStore(path / "store", pool)
    await store.open()
    try:
        return await MetadataFollower(store, SystemClock()).cluster()
    finally:
        pool.close()


def unfenced(broker: RunningBroker) -> list[int]:
    """The brokers that are alive, by what ``broker`` knows."""
    return sorted(key for key, one in broker.node.cluster.image.brokers.items() if not one.fenced)
