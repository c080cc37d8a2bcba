"""Deletes the objects of ended write-ahead logs that no partition needs (ADR 0037, J12, J36). Runs on the controller.

Tests: ``tests/broker/test_wal_store.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from app.core.seams import Clock
from app.core.units import BrokerId
from app.metadata.image.image import ClusterImage
from app.metadata.image.wal_ranges import WalId
from app.metadata.log import layout
from app.objectstore.api import ObjectStore
from app.objectstore.keys import LIST_LIMIT_MAX
from app.wal.taker import seal
from app.wal.trimming import LogRegistration, deletable, has_ended


async def sweep_ended(
    store: ObjectStore, image: Callable[[], ClusterImage], *, sealer: int, clock: Clock, rng: Random
) -> int:
    """Look at all write-ahead logs, and delete the unneeded objects of those that have ended.

    Each is sealed first, if it is not sealed yet. The next sweep finds objects that land behind the seal later. Costs a LIST for
    1,000 objects, and the requests of sealing for each ended log with more than its seal.

    Returns: how many objects were deleted. Raises: StorageUnavailable, CorruptionError; some objects may be deleted.
    """
    deleted = 0
    for wal, numbers in (await _numbers(store)).items():
        if len(numbers) < 2 or not has_ended(wal, _said(image(), wal)):
            continue  # one object is its seal: nothing else ends a log, and nothing is left of it
        end = await seal(store, wal, sealer=sealer, clock=clock, rng=rng)
        now = image()
        ranges = [
            each
            for topic in now.topics_by_name.values()
            for partition in topic.partitions
            for each in partition.wal_ranges
            if each.wal == wal
        ]
        gone = deletable(wal, numbers, end, ranges, _said(now, wal))
        for first in range(0, len(gone), LIST_LIMIT_MAX):
            some = gone[first : first + LIST_LIMIT_MAX]
            await store.delete_many([layout.wal_key(*wal, number) for number in some])
            deleted += len(some)
    return deleted


def _said(image: ClusterImage, wal: WalId) -> LogRegistration:
    broker = image.brokers.get(BrokerId(wal.broker_id))
    if broker is None:
        return LogRegistration(image.sequence, None)
    return LogRegistration(image.sequence, broker.broker_epoch, broker.wal_end)


async def _numbers(store: ObjectStore) -> dict[WalId, list[int]]:
    found: dict[WalId, list[int]] = {}
    after = ""
    while True:
        page = await store.list_objects(layout.WAL_PREFIX, start_after=after, limit=LIST_LIMIT_MAX)
        for info in page:
            key = layout.parse_wal_key(info.key)
            if key is not None:
                found.setdefault(WalId(key.broker_id, key.broker_epoch), []).append(key.number)
        if len(page) < LIST_LIMIT_MAX:
            return found
        after = page[-1].key
