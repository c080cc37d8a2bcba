"""A partition goes on from ended write-ahead logs (ADR 0037, J24 to J30): the local log gets the records of the bucket.

The manifest was sealed and the local log agrees with it already. Behind this the log ends where the partition ends, and has every
record from the tiered end on, so it is read and tiered like any other.

Tests: ``tests/broker/test_object_durability.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from app.broker.write_ahead.write_ahead import SealedLogs
from app.core.errors import CorruptionError, StorageUnavailable
from app.core.units import Offset, TimestampMs, TopicIdPartition
from app.hot.log import PartitionLog
from app.metadata.image.image import PartitionImage
from app.metadata.image.wal_ranges import WalId, WalRange
from app.metadata.manifest.manifest import SegmentManifest
from app.objectstore.api import ObjectMissing
from app.tiering.repair.rebuild import RestorePlan, apply_plan, plan_restore
from app.tiering.repair.refilling import is_whole, wait_quiet
from app.tiering.store.store_work import StoreWork
from app.wal.format import WalFooter
from app.wal.takeover import NeedsManifest, TakeOver, Tiered, begins_at_zero, continue_from, local_end


async def continue_log(
    log: PartitionLog,
    manifest: SegmentManifest,
    partition: PartitionImage,
    sealed: SealedLogs,
    work: StoreWork,
    *,
    since_s: float,
    now_ms: Callable[[], TimestampMs],
    refilled: Callable[[], Awaitable[RestorePlan]],
) -> RestorePlan | None:
    """Bring a log to the end that the ended ranges of its partition's record give it, before it is led.

    ``since_s``: loop time at which all ranges but the open one had ended. ``refilled`` empties a log that has to be whole, and
    gives it everything below the tiered end. Returns: the plan if the log was emptied first.
    Raises: StorageUnavailable (try again), CorruptionError (the store has lost something that counts; the partition goes offline).
    """
    ranges = [each for each in partition.wal_ranges if not each.is_open]
    plan = None
    if log.config.stays_local:
        await wait_quiet(log)
        _cut_at_hole(log)
        if not is_whole(log, manifest):
            plan = await refilled()
    if not ranges:
        await wait_quiet(log)
        _cut(log, max(manifest.tiered_end, manifest.log_start_offset))
        return plan
    with sealed.take_overs.measured():
        objects = await _footers(ranges, sealed, since_s)
        return await _continued(log, manifest, ranges, objects, sealed, work, plan, now_ms=now_ms, refilled=refilled)


async def _continued(
    log: PartitionLog,
    manifest: SegmentManifest,
    ranges: Sequence[WalRange],
    objects: Mapping[WalId, Mapping[int, WalFooter]],
    sealed: SealedLogs,
    work: StoreWork,
    plan: RestorePlan | None,
    *,
    now_ms: Callable[[], TimestampMs],
    refilled: Callable[[], Awaitable[RestorePlan]],
) -> RestorePlan | None:
    """The part of ``continue_log`` behind the look at the footers. ``plan``: of a log that was emptied already."""
    key = TopicIdPartition(log.topic_id, log.partition)
    tiered = Tiered(manifest.tiered_end, manifest.log_start_offset)
    taken = continue_from(key, ranges, objects, tiered)
    assert not isinstance(taken, NeedsManifest), taken
    begin = _first_needed(taken, tiered.floor)
    kept = local_end(log.local_log_start_offset, log.log_end_offset, log.leader_epochs(), taken)
    if plan is None and (kept is None or not log.local_log_start_offset <= tiered.floor <= kept):
        if log.config.stays_local:
            plan = await refilled()
        else:
            plan = await plan_restore(manifest, work)
            await wait_quiet(log)
            apply_plan(log, plan)
    await wait_quiet(log)
    if begin < log.log_end_offset <= tiered.floor:
        # It was emptied at a log start that is amid a batch, and the whole batch comes.
        plan = plan or await plan_restore(manifest, work)
        apply_plan(log, replace(plan, tiered_end=Offset(0), log_start_offset=begin))
    _cut(log, taken.end_offset)
    await _append_pieces(log, taken, sealed, now_ms)
    if log.log_start_offset < manifest.log_start_offset:
        log.restore_log_start(manifest.log_start_offset)
    if log.log_end_offset != taken.end_offset:
        raise CorruptionError(
            f"{log.topic_partition} ends at {log.log_end_offset} after it was restored, and its write-ahead log at "
            f"{taken.end_offset}."
        )
    if taken.producers is not None:
        log.restore_producers(taken.producers)
    return plan


async def has_first_record(
    partition: PartitionImage, key: TopicIdPartition, sealed: SealedLogs, since_s: float
) -> bool:
    """Whether the partition's ended ranges have every record that it ever had, so that no loss of its manifest matters.

    Raises: StorageUnavailable (try again), CorruptionError.
    """
    ranges = [each for each in partition.wal_ranges if not each.is_open]
    return bool(ranges) and begins_at_zero(key, ranges, await _footers(ranges, sealed, since_s))


async def _footers(
    ranges: Sequence[WalRange], sealed: SealedLogs, since_s: float
) -> Mapping[WalId, Mapping[int, WalFooter]]:
    first: dict[WalId, int] = {}
    for each in ranges:
        first[each.wal] = min(each.first, first.get(each.wal, each.first))
    found = await asyncio.gather(*(sealed.footers(wal, number, since_s) for wal, number in first.items()))
    return dict(zip(first, found, strict=True))


def _first_needed(taken: TakeOver, floor: Offset) -> Offset:
    """Where the first batch begins that has records at or above ``floor``; records may be deleted up to an offset amid a batch."""
    found = (each for piece in taken.pieces for each in piece.section.batches if each.end_offset > floor)
    first = next(found, None)
    return floor if first is None else Offset(min(floor, first.base_offset))


def _cut_at_hole(log: PartitionLog) -> None:
    """Cut a compacted log at a hole that compaction may not have made: after a loss of power, the bucket may have the records."""
    if log.unsure_from is not None:
        _cut(log, log.unsure_from)
        log.unsure_from = None


def _cut(log: PartitionLog, end: int) -> None:
    if log.log_end_offset > end:
        log.truncate_to(end, given_up=True)


async def _append_pieces(
    log: PartitionLog, taken: TakeOver, sealed: SealedLogs, now_ms: Callable[[], TimestampMs]
) -> None:
    pieces = [each for each in taken.pieces if each.section.end_offset > log.log_end_offset]
    async with sealed.reading(pieces) as read:
        for piece in pieces:
            section = piece.section
            try:
                data = await read(piece)
            except ObjectMissing as error:
                # Tiered and trimmed since the manifest was read; or lost: the next try finds out (J31).
                raise StorageUnavailable(f"{str(error).removesuffix('.')}: it was there a moment ago.") from error
            position = sum(each.size_bytes for each in section.batches if each.end_offset <= log.log_end_offset)
            log.append_as_follower(data[position:], now_ms=now_ms())
            sealed.take_overs.bytes.value += len(data) - position
            await asyncio.sleep(0)
