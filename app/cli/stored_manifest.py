"""Changing the manifest of a partition that no broker leads, in the store alone: ``firn tier adopt`` and ``accept-loss``.

Tests: ``tests/broker/test_offline.py``.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from app.core.errors import ConfigError

if TYPE_CHECKING:
    from app.metadata.manifest.manifest import SegmentManifest
    from app.objectstore.api import ObjectStore
    from app.tiering.repair.unnamed import UnnamedSegment

T = TypeVar("T")


async def changing(
    url: str, topic: str, partition: int, change: Callable[[ObjectStore, SegmentManifest], Awaitable[T]]
) -> tuple[T, list[UnnamedSegment]]:
    """Do ``change`` to a partition's manifest. Returns its result, and the segments above the tiered end that are unnamed still.

    The manifest is sealed by the first change, so a broker that leads the partition would lose the right to write it.
    Raises: ConfigError (no such store, cluster, topic or partition), CorruptionError, ConflictError, FencedError,
    StorageUnavailable.
    """
    from app.core.units import BrokerId, PartitionIndex
    from app.machine.runtime import SystemClock, ThreadPool
    from app.metadata.manifest.manifest import SegmentManifest
    from app.metadata.view.follower import MetadataFollower
    from app.objectstore.opening import open_store
    from app.tiering.repair.unnamed import find_unnamed

    pool = ThreadPool()
    try:
        store = await open_store(url, pool=pool, rng=random.Random())
        try:
            clock = SystemClock()
            image = await MetadataFollower(store, clock).cluster()
            found = image.topic(topic)
            if found is None or partition >= len(found.partitions):
                raise ConfigError(f"There is no partition {topic}-{partition} in {url}.")
            manifest = SegmentManifest(
                store,
                found.topic_id,
                PartitionIndex(partition),
                writer_id=f"operator-{uuid.uuid4()}",
                broker_id=BrokerId(-1),
                leader_epoch=found.partitions[partition].leader_epoch,
                rng=random.Random(),
                clock=clock,
            )
            await manifest.load()
            result = await change(store, manifest)
            return result, await find_unnamed(store, manifest)
        finally:
            await store.close()
    finally:
        pool.close()
