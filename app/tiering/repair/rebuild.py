"""Reconciles a partition's local log with its manifest: after a restart, after a loss, or on an empty disk.

Below the tiered end the store is authoritative. A local log that ends below the tiered end, or whose leader epochs contradict the
store, is emptied and continues at the tiered end. It gets the leader epochs and the producer state from the last segment's footer.
With an empty data directory this happens to every partition, and so it rebuilds a broker.

Tests: ``tests/tiering/test_lower_log_start.py``, ``tests/broker/test_tier_replication.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from app.core.errors import CorruptionError, StorageUnavailable
from app.core.units import LeaderEpoch, Offset, PartitionIndex, ProducerId, TopicId
from app.hot.checkpoints import EpochStart
from app.hot.epochs import between
from app.metadata.log import layout
from app.metadata.manifest.manifest import SegmentManifest
from app.objectstore.api import ObjectMissing
from app.tiering.store.segment_format import SegmentFooter, decode_footer
from app.tiering.store.store_work import StoreWork
from app.tiering.upload.local_retention import is_covered

RESTORES_AT_ONCE: Final = 32


class RestorableLog(Protocol):
    """The part of ``app.hot.log.PartitionLog`` that this module needs."""

    start_is_assumed: bool

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def local_log_start_offset(self) -> Offset: ...
    @property
    def log_end_offset(self) -> Offset: ...

    def leader_epochs(self) -> Sequence[EpochStart]: ...
    def epoch_of(self, offset: Offset) -> LeaderEpoch: ...
    def restore_log_start(self, offset: int) -> None: ...
    def restore_leader_epochs(self, entries: Iterable[EpochStart]) -> None: ...
    def truncate_fully_and_start_at(
        self,
        offset: int,
        leader_epochs: Iterable[EpochStart] = ...,
        producer_snapshot: bytes | None = ...,
        *,
        log_start_offset: int | None = ...,
    ) -> None: ...


class LostMarker(NamedTuple):
    """A transaction that was decided before its records were tiered, but whose marker is no longer in the log."""

    producer_id: ProducerId
    aborted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """Where a partition's log continues, from the bucket alone."""

    topic_id: TopicId
    partition: PartitionIndex
    log_start_offset: Offset
    tiered_end: Offset
    leader_epochs: tuple[EpochStart, ...]
    producer_snapshot: bytes | None
    """Producer state at the tiered end, in Kafka's ``.snapshot`` format; None if no segment is left."""
    remote_segments: int
    remote_raw_bytes: int

    @property
    def next_offset(self) -> Offset:
        """Offset of the next record: the tiered end, unless records above it were deleted before they were tiered."""
        return max(self.tiered_end, self.log_start_offset)


async def _last_footer(manifest: SegmentManifest, work: StoreWork) -> SegmentFooter | None:
    """The footer of the last readable segment, if there is one. One GET. Raises: StorageUnavailable, CorruptionError."""
    if not manifest.state.finished:
        return None
    last = manifest.state.finished[-1]
    key = manifest.object_key(last)
    try:
        found = await work.read_footer(key, (last.footer_position, last.size_bytes))
    except ObjectMissing as error:
        raise CorruptionError(f"{key} is missing, although the manifest names it.") from error
    return decode_footer(found.tail, found.object_bytes, key)


async def lost_markers(
    open_transactions: Mapping[int, int], manifest: SegmentManifest, work: StoreWork
) -> list[LostMarker]:
    """The open transactions of a log (first offset by producer id) that cannot really be open. They began below the tiered end,
    so they were decided when their records were tiered. The log has since lost its end, with their markers.

    Without a marker such a transaction would stay open for ever. Costs a GET if there are any.
    Raises: StorageUnavailable, CorruptionError.
    """
    decided = {
        producer_id: first_offset
        for producer_id, first_offset in open_transactions.items()
        if first_offset < manifest.tiered_end
    }
    if not decided:
        return []
    footer = await _last_footer(manifest, work)
    # Without a footer nothing of them can be read any more, and how they ended does not matter.
    aborted = {(one.producer_id, one.first_offset) for one in footer.aborted} if footer is not None else set()
    return [
        LostMarker(ProducerId(producer_id), footer is None or (producer_id, first_offset) in aborted)
        for producer_id, first_offset in decided.items()
    ]


async def check_manifest_is_there(manifest: SegmentManifest) -> None:
    """Compare an empty manifest with the bucket, for a partition whose local log does not begin at its first record.

    If segment objects exist, the manifest was lost, and to continue would give their offsets to other records. Like the
    sweeper, this lists objects first and reads the manifest afterwards. Costs a LIST if the manifest is empty.
    Raises: CorruptionError (the manifest was lost; says how to repair it), StorageUnavailable.
    """
    if not manifest.state.is_blank or not await manifest.has_objects():
        return
    await manifest.refresh()
    if manifest.state.is_blank:
        data_prefix = layout.data_prefix(manifest.topic_id, manifest.partition)
        raise CorruptionError(
            f"The segments under {data_prefix} have no manifest, because it was lost; restore the objects under"
            f" {layout.manifest_prefix(manifest.topic_id, manifest.partition)}/ (from older versions, or from a copy of the"
            " bucket), or delete the segments to give up their records."
        )


def lost_beginning(manifest: SegmentManifest) -> tuple[Offset, Offset] | None:
    """The offsets between the log start and the first segment, if there are any. They are lost.

    Reads and expiry must not skip them, or no reader would notice the loss.
    """
    start = manifest.log_start_offset
    first = manifest.finished[0].base_offset if manifest.finished else manifest.tiered_end
    return (start, first) if start < first else None


async def plan_restore(manifest: SegmentManifest, work: StoreWork) -> RestorePlan:
    """The restore plan of a loaded manifest and its last footer. One GET.

    Raises: StorageUnavailable, CorruptionError (the footer is bad, or its object is missing).
    """
    state = manifest.state
    lineage: tuple[EpochStart, ...] = ()
    snapshot: bytes | None = None
    footer = await _last_footer(manifest, work)
    if footer is not None:
        lineage = tuple(EpochStart(one.epoch, one.start_offset) for one in footer.leader_epochs)
        # A footer that does not reach the tiered end cannot happen while its segment is the last one.
        snapshot = footer.producer_snapshot or None
    return RestorePlan(
        topic_id=manifest.topic_id,
        partition=manifest.partition,
        log_start_offset=manifest.log_start_offset,
        tiered_end=state.tiered_end,
        leader_epochs=lineage,
        producer_snapshot=snapshot,
        remote_segments=len(state.finished),
        remote_raw_bytes=state.raw_bytes,
    )


def apply_plan(log: RestorableLog, plan: RestorePlan) -> None:
    """Delete all local records and continue at the plan's next offset. Raises: as ``truncate_fully_and_start_at``."""
    log.truncate_fully_and_start_at(
        plan.next_offset, plan.leader_epochs, plan.producer_snapshot, log_start_offset=plan.log_start_offset
    )


def disagreement(log: RestorableLog, manifest: SegmentManifest) -> str | None:
    """Why the local log cannot continue, in words; None if it can."""
    tiered_end = manifest.tiered_end
    if log.log_end_offset < tiered_end:
        return f"the local log ends at {log.log_end_offset}, below the tiered end {tiered_end}"
    if log.log_end_offset < manifest.log_start_offset:
        # The next records would be taken for records that were deleted long ago.
        return f"the local log ends at {log.log_end_offset}, below the log start {manifest.log_start_offset}"
    # Below the log start neither the lineage nor the records have to be known here any more.
    if manifest.finished and max(log.local_log_start_offset, manifest.log_start_offset) < tiered_end:
        lineage = manifest.finished[-1].leader_epochs
        here = log.epoch_of(Offset(tiered_end - 1))
        if lineage and here != lineage[-1][0]:
            return f"offset {tiered_end - 1} is of leader epoch {here} here and of {lineage[-1][0]} in the tier"
    return None


async def agree(log: RestorableLog, manifest: SegmentManifest, work: StoreWork) -> RestorePlan | None:
    """Reconcile a local log with its loaded manifest, before it is led and before any append.

    Returns: the plan if the log was emptied and now continues at the tiered end; then the leader epoch must rise above every known
    epoch. None if the log continues unchanged. Costs no request unless the log is emptied.
    Raises: StorageUnavailable, CorruptionError; then the log is as it was.
    """
    if disagreement(log, manifest) is not None:
        plan = await plan_restore(manifest, work)
        apply_plan(log, plan)
        return plan
    take_beginning(log, manifest)
    return None


def take_beginning(log: RestorableLog, manifest: SegmentManifest) -> None:
    """Let a log that agrees with its manifest begin where the manifest says, with its epochs. Raises: StorageUnavailable."""
    log.start_is_assumed = False
    if manifest.tiered_end == 0:
        if manifest.log_start_offset > log.log_start_offset:
            log.restore_log_start(manifest.log_start_offset)
        return
    local_start = log.local_log_start_offset
    wanted = manifest.log_start_offset
    if wanted < local_start:
        # There are no batches here to hold the checkpoint against.
        lineage = [EpochStart(epoch, start) for epoch, start in manifest.state.leader_epochs()]
        if lineage and between(log.leader_epochs(), wanted, local_start) != between(lineage, wanted, local_start):
            log.restore_leader_epochs(lineage)
    if wanted != log.log_start_offset and wanted <= log.log_end_offset:
        log.restore_log_start(wanted)


def lower_log_start(log: RestorableLog, manifest: SegmentManifest) -> None:
    """Let the log of a follower begin in the tier again, if it was opened without knowing so: its first local offset was taken for
    its start, and readable segments lead up to it. Raises: StorageUnavailable."""
    start = manifest.log_start_offset
    if log.start_is_assumed and start < log.log_start_offset and is_covered(manifest, start, log.log_start_offset):
        log.restore_log_start(start)


async def rebuild(
    partitions: Sequence[tuple[RestorableLog, SegmentManifest]],
    work: StoreWork,
    report: Callable[[RestorePlan], None],
) -> list[RestorePlan]:
    """Reconcile many partitions, some at a time. ``report`` gets each log that continues at its tiered end.

    Raises: the first StorageUnavailable or CorruptionError. Reconciled logs stay reconciled, and the call may be repeated.
    """
    plans: list[RestorePlan] = []
    turns = asyncio.Semaphore(RESTORES_AT_ONCE)

    async def one(log: RestorableLog, manifest: SegmentManifest) -> None:
        async with turns:
            plan = await agree(log, manifest, work)
        if plan is not None:
            plans.append(plan)
            report(plan)

    try:
        async with asyncio.TaskGroup() as group:
            for log, manifest in partitions:
                group.create_task(one(log, manifest))
    except* (StorageUnavailable, CorruptionError) as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return plans
