"""The segment manifest of one partition: a numbered log under ``topics/<topic-id>/<partition>``.

Only the partition's leader writes it. ``manifest_state.py`` has the rules. This module is the asynchronous shell: one change at a
time is checked against the present state, written as one entry, and applied when it is durable. A new leader seals just before its
first change, so a take-over of many partitions costs no request until there is a change.

A broker that takes a partition over *with other local data* (another directory) must call ``seal`` before it accepts a produce.
Until then the old leader could finish a copy above the tiered end from which the new leader starts. A broker that restarts on
its own directory need not: that directory also has the segments that its dead process may still finish.
"""

from __future__ import annotations

import logging
import random
from asyncio import Lock
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from app.core.errors import ConflictError, StorageUnavailable
from app.core.faults import Faults
from app.core.seams import Clock
from app.core.units import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    LogSequence,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
)
from app.metadata.log import layout
from app.metadata.log.numbered_log import LogTimings, NumberedLog
from app.metadata.manifest.manifest_state import (
    Change,
    ManifestPartitionRecord,
    ManifestState,
    SegmentEntry,
    SegmentState,
    Tombstone,
    encode_change,
)
from app.objectstore.api import ObjectStore

__all__ = ["ManifestState", "SegmentEntry", "SegmentManifest", "SegmentState"]

CONFLICTS_MAX = 16
"""Maximum retries of a change because another writer was faster."""

CHANGES_PER_ENTRY_MAX = 10_000
"""Maximum deletions in one entry. 10,000 records of about 200 bytes are far below ``LOG_ENTRY_BYTES_MAX``."""

_logger = logging.getLogger(__name__)


class SegmentManifest:
    """The manifest of one partition. Any broker can follow it; only the partition's leader writes it. Belongs to one event loop.

    When a changing method returns, the change is durable and visible. With nothing changed, it raises ConflictError (the change
    is not legal in the present state; the error says why) or FencedError (another leader has taken over for good). It raises
    StorageUnavailable if the store does not respond. Then the change may have been made, or may still be made; a repetition is
    safe.
    """

    def __init__(
        self,
        store: ObjectStore,
        topic_id: TopicId,
        partition: PartitionIndex,
        *,
        writer_id: str,
        broker_id: BrokerId,
        leader_epoch: LeaderEpoch,
        rng: random.Random,
        clock: Clock,
        timings: LogTimings | None = None,
        faults: Faults | None = None,
    ) -> None:
        """``writer_id`` must be new for every start of a broker process. ``faults`` gets errors of snapshot writes."""
        self._faults = faults if faults is not None else Faults(_logger.warning)
        self.topic_id = topic_id
        self.partition = partition
        self.broker_id = broker_id
        self._clock = clock
        self._turn = Lock()
        self._log: NumberedLog[ManifestState] = NumberedLog(
            store,
            layout.manifest_prefix(topic_id, partition),
            writer_id=writer_id,
            rng=rng,
            clock=clock,
            new_state=lambda: ManifestState(TopicIdPartition(topic_id, partition)),
            epoch=max(leader_epoch, 0),
            timings=timings,
        )

    # --- reading ----------------------------------------------------------------------------------------------------

    async def load(self, cached: bytes | None = None, listed: Sequence[str] | None = None) -> bool:
        """Read the manifest: from the cached copy and the later entries, or completely.

        ``listed``: its keys from ``list_manifests``. Returns: whether the cached copy was used. Costs one LIST unless ``listed`` is
        given, and a GET for the snapshot and for each later entry. Raises: StorageUnavailable, CorruptionError.
        """
        return await self._log.load(cached, listed)

    async def restore(self, cached: bytes | None, version: int) -> bool:
        """Load the manifest from the cached copy alone, if the copy has ``version``. None is the copy of an empty manifest."""
        return await self._log.restore(cached, version)

    async def refresh(self) -> bool:
        """Read new entries of other writers. Returns: whether there were any. Raises: as ``load``."""
        return await self._log.poll()

    async def adopt(self, cached: bytes) -> bool:
        """Take over the state of a cached copy, however old it is. No request. Returns: whether the copy is sound."""
        return await self._log.adopt(cached)

    async def take(self, sequence: int, body: bytes) -> bool:
        """Apply entry ``sequence`` from its bytes, which the leader has handed on; they are checked as if read from the store (T8).

        Returns: whether it was applied. If not, ``refresh`` finds out why. Raises: CorruptionError.
        """
        return await self._log.take(sequence, body)

    def on_written(self, listener: Callable[[LogSequence, bytes], None]) -> None:
        """``listener`` gets number and bytes of every entry that this broker writes, once it is durable and applied."""
        self._log.on_written = listener

    async def has_objects(self) -> bool:
        """Whether the store has segment objects of the partition, named by the manifest or not. One LIST. Raises:
        StorageUnavailable."""
        return await self._log.is_anything_under(layout.data_prefix(self.topic_id, self.partition))

    def to_cache(self) -> bytes:
        """The present state as bytes for a file in the data directory, with their own checksums."""
        return self._log.to_cache()

    @property
    def state(self) -> ManifestState:
        """The present state of the manifest. Do not keep it, because a reload replaces it."""
        return self._log.state

    @property
    def version(self) -> int:
        """Number of the next entry. It rises with every change, and so reveals an old cached copy."""
        return self._log.next_sequence

    @property
    def end_is_known(self) -> bool:
        """Whether no undecided change of ours is left."""
        return self._log.end_is_known

    @property
    def entries(self) -> list[SegmentEntry]:
        """All segments in all states, by base offset."""
        return self._log.state.entries

    @property
    def finished(self) -> Sequence[SegmentEntry]:
        """Readable segments by offset. Use the list before the next await."""
        return self._log.state.finished

    @property
    def tiered_end(self) -> Offset:
        """One past the highest offset that was ever tiered; 0 if none was."""
        return self._log.state.tiered_end

    @property
    def log_start_offset(self) -> Offset:
        """The log start that ``set_log_start`` made durable; 0 before that."""
        return self._log.state.log_start_offset

    def find(self, offset: int) -> SegmentEntry | None:
        """The readable segment that covers ``offset``; None also below the log start. O(log n)."""
        state = self._log.state
        return state.find(offset) if offset >= state.log_start_offset else None

    def find_timestamp(self, timestamp_ms: int) -> SegmentEntry | None:
        """The first readable segment that may hold a record of ``timestamp_ms`` or later. O(log n)."""
        return self._log.state.find_timestamp(timestamp_ms)

    def object_key(self, entry: SegmentEntry) -> str:
        """Key of a segment's object."""
        return entry.object_key(self.topic_id, self.partition)

    # --- writing ----------------------------------------------------------------------------------------------------

    @property
    def sealed_by(self) -> str:
        """``writer_id`` of the last seal; empty if there is no seal."""
        return self._log.writer.writer_id

    async def seal(self, leader_epoch: LeaderEpoch = NO_LEADER_EPOCH) -> None:
        """Become the writer now, and not only with the first change. Costs a PUT and a LIST, or nothing if we are the writer.

        If our epoch is above the previous writer's, that writer can never seal again. When this returns, ``state`` has all entries
        that were or ever will be written before ours.
        """
        async with self._turn:
            self._log.epoch = max(self._log.epoch, leader_epoch)
            for _ in range(CONFLICTS_MAX):
                if self._log.is_writer:
                    return
                try:
                    await self._log.seal(self._log.next_sequence)
                except ConflictError:
                    await self._log.poll()
            raise StorageUnavailable(f"{self._log.prefix} is sealed by others again and again.")

    def raise_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """This broker leads on in a higher leader epoch. The next change seals anew, also if another leader sealed in between."""
        if leader_epoch > self._log.epoch:
            self._log.epoch = leader_epoch
            self._log.step_down()

    async def copy_started(self, *entries: SegmentEntry) -> None:
        """Announce copies before their first byte is uploaded."""
        await self.change(lambda state: [self.entered(entry, SegmentState.COPY_STARTED) for entry in entries])

    async def copy_finished(self, entry: SegmentEntry, *, start_next: SegmentEntry | None = None) -> None:
        """Make an uploaded segment readable and, in the same entry, announce the next copy."""

        def plan(state: ManifestState) -> list[Change]:
            changes: list[Change] = [self.entered(entry, SegmentState.COPY_FINISHED)]
            if start_next is not None:
                changes.append(self.entered(start_next, SegmentState.COPY_STARTED))
            return changes

        await self.change(plan)

    async def delete_started(self, segment_ids: Sequence[UUID], *, log_start_offset: int | None = None) -> None:
        """Make segments unreadable. With ``log_start_offset``, first raise the log start in the same entry.

        A readable segment may be deleted only when the log start has passed its end. An unfinished copy may be deleted at any time.
        Unknown ids are ignored. The call writes one entry, so it takes at most ``CHANGES_PER_ENTRY_MAX`` ids. For more ids, the
        caller must apply the new log start before all entries are written.
        """
        if len(segment_ids) > CHANGES_PER_ENTRY_MAX:
            raise ValueError(f"{len(segment_ids)} deletions are more than an entry holds")

        def plan(state: ManifestState) -> list[Change]:
            deletions = [
                self.entered(entry, SegmentState.DELETE_STARTED)
                for segment_id in segment_ids
                if (entry := state.get(segment_id)) is not None and entry.state is not SegmentState.DELETE_STARTED
            ]
            log_start = max(log_start_offset or 0, state.log_start_offset)
            if not deletions and log_start == state.log_start_offset:
                return []
            # The tiered end is written down with it: it must outlive the segments that it was seen from.
            return [ManifestPartitionRecord(1, log_start, state.tiered_end), *deletions]

        await self.change(plan)

    async def delete_finished(self, segment_ids: Iterable[UUID]) -> None:
        """Forget segments whose objects are deleted. Unknown ids are ignored."""
        ids = list(segment_ids)
        for start in range(0, len(ids), CHANGES_PER_ENTRY_MAX):
            page = ids[start : start + CHANGES_PER_ENTRY_MAX]
            await self.change(
                lambda state, page=page: [
                    Tombstone(segment_id) for segment_id in page if state.get(segment_id) is not None
                ]  # type: ignore[misc]
            )

    async def set_log_start(self, offset: int) -> None:
        """Raise the log start offset to ``offset``. Does nothing if it is already there or higher."""
        await self.change(
            lambda state: (
                [ManifestPartitionRecord(1, offset, state.tiered_end)] if offset > state.log_start_offset else []
            )
        )

    async def change(self, plan: Callable[[ManifestState], Sequence[Change]]) -> None:
        """Make the changes that ``plan`` derives from the present state. If another writer was faster, ``plan`` is called again.

        ``plan`` must not wait and must not change the state. No changes are no request.
        """
        async with self._turn:
            # Before and not after: as soon as a change is durable, callers continue, and do not wait for a snapshot.
            await self._maintain()
            for _ in range(CONFLICTS_MAX):
                # Check this first: for a replaced writer, all other errors would be misleading.
                self._log.check_not_overtaken()
                state = self._log.state
                changes = plan(state)
                if not changes:
                    return
                state.check(changes)
                records = [encode_change(change) for change in changes]
                sequence = self._log.next_sequence
                try:
                    if not self._log.is_writer:
                        # No entry may come between the state of the plan and the seal.
                        sequence = LogSequence(await self._log.seal(sequence) + 1)
                    await self._log.append(sequence, records)
                except ConflictError:
                    await self._log.poll()
                    continue
                return
            raise StorageUnavailable(f"{self._log.prefix} is written by others again and again.")

    async def _maintain(self) -> None:
        """Write a snapshot and compact when due. This only saves later work, so errors are only logged."""
        if not self._log.snapshot_due:
            return
        try:
            await self._log.snapshot()
        except StorageUnavailable as error:
            self._faults.met("snapshots of", self._log.prefix, f"no snapshot of {self._log.prefix} for now: {error}")

    def entered(self, entry: SegmentEntry, state: SegmentState) -> SegmentEntry:
        """``entry`` with the new ``state``, changed now by the writer's clock."""
        return entry.replace(state=state, changed_ms=self._clock.now_ms())
