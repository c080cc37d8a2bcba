"""The segment manifest of one partition: a numbered log under ``topics/<topic-id>/<partition>``.

The partition's leader writes it and nobody else. Rules are in ``manifest_state.py``; here is the asynchronous shell: one
change at a time, checked against what is known, put as one entry, and applied once it is durable. A new leader seals just
before its first change, so that taking over many partitions costs nothing until there is something to say.

A broker that takes a partition over *with other local data* (another directory) must call ``seal`` before it accepts a
produce: until then the old leader could still finish a copy above the tiered end that the new one starts from. A broker that
comes back with its own directory need not: what its dead process may still finish is in that directory, too.
"""

from __future__ import annotations

import logging
import random
from asyncio import Lock
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from app.errors import ConflictError, StorageUnavailable
from app.faults import Faults
from app.metadata import layout
from app.metadata.manifest_state import (
    Change,
    ManifestState,
    PartitionRecord,
    SegmentEntry,
    SegmentState,
    Tombstone,
    encode_change,
)
from app.metadata.numbered_log import LogTimings, NumberedLog
from app.objectstore.api import ObjectStore
from app.seams import Clock
from app.units import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    LogSequence,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
)

__all__ = ["ManifestState", "SegmentEntry", "SegmentManifest", "SegmentState"]

CONFLICTS_MAX = 16
"""Times a change is planned again because another writer came first."""

CHANGES_PER_ENTRY_MAX = 10_000
"""Deletions in one entry; more are split. 10,000 records of about 200 bytes stay far below ``LOG_ENTRY_BYTES_MAX``."""

_logger = logging.getLogger(__name__)


class SegmentManifest:
    """The manifest of one partition, followed by anybody and written by its leader. Belongs to one event loop.

    Every changing method: the change is durable and visible when it returns. Raises, with nothing changed: ConflictError
    (the change is not legal in the state there is now; says why), FencedError (another leader has taken over, for good).
    Raises StorageUnavailable if the store does not answer: the change may be made or may yet be; repeating it is safe.
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
        """``writer_id`` must be new for every start of a broker process. ``faults`` is told of snapshots that cannot be written."""
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
        """Read the manifest: from the cached copy and what followed it, or all of it.

        ``listed``: what ``list_manifests`` has found of it. Returns whether the cached copy was good for use. Costs one LIST
        unless that is given, and a GET for the snapshot and each later entry. Raises: StorageUnavailable, CorruptionError.
        """
        return await self._log.load(cached, listed)

    async def restore(self, cached: bytes | None, version: int) -> bool:
        """Take the manifest from the cached copy alone, if that is of ``version``; None is that of an empty manifest."""
        return await self._log.restore(cached, version)

    async def refresh(self) -> bool:
        """Read what others have written since. Returns whether there was anything. Raises: as ``load``."""
        return await self._log.poll()

    async def has_objects(self) -> bool:
        """Whether objects of segments are in the store, named here or not. One LIST. Raises: StorageUnavailable."""
        return await self._log.is_anything_under(layout.data_prefix(self.topic_id, self.partition))

    def to_cache(self) -> bytes:
        """What is known, for a file in the data directory; it carries its own checksums."""
        return self._log.to_cache()

    @property
    def state(self) -> ManifestState:
        """All that the manifest says, as of now. Do not keep it: a reload replaces it."""
        return self._log.state

    @property
    def version(self) -> int:
        """Number of the next entry: rises with every change, so that a cached copy can be told to be old."""
        return self._log.next_sequence

    @property
    def end_is_known(self) -> bool:
        """Whether no change that we have tried may still be made."""
        return self._log.end_is_known

    @property
    def entries(self) -> list[SegmentEntry]:
        """All segments in whatever state, by base offset."""
        return self._log.state.entries

    @property
    def finished(self) -> Sequence[SegmentEntry]:
        """Readable segments by offset; use it before the next await."""
        return self._log.state.finished

    @property
    def tiered_end(self) -> Offset:
        """One past the highest offset that was ever tiered; 0 if none was."""
        return self._log.state.tiered_end

    @property
    def log_start_offset(self) -> Offset:
        """As made durable by ``set_log_start``; 0 before that."""
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
        """``writer_id`` of whoever sealed last; empty if nobody ever has."""
        return self._log.writer.writer_id

    async def seal(self, leader_epoch: LeaderEpoch = NO_LEADER_EPOCH) -> None:
        """Become the writer now rather than with the first change. A PUT and a LIST; nothing if we are already.

        With an epoch above that of whoever may still write, that writer can never seal again. When this returns, ``state`` is
        all that was and ever will be written before us.
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
            raise StorageUnavailable(f"{self._log.prefix} is sealed by others again and again")

    async def copy_started(self, *entries: SegmentEntry) -> None:
        """Announce copies before the first byte of theirs is uploaded."""
        await self.change(lambda state: [self.entered(entry, SegmentState.COPY_STARTED) for entry in entries])

    async def copy_finished(self, entry: SegmentEntry, *, start_next: SegmentEntry | None = None) -> None:
        """Make an uploaded segment readable and, in the same entry, announce the copy of the next."""

        def plan(state: ManifestState) -> list[Change]:
            changes: list[Change] = [self.entered(entry, SegmentState.COPY_FINISHED)]
            if start_next is not None:
                changes.append(self.entered(start_next, SegmentState.COPY_STARTED))
            return changes

        await self.change(plan)

    async def delete_started(self, segment_ids: Sequence[UUID], *, log_start_offset: int | None = None) -> None:
        """Take segments from readers; with ``log_start_offset`` the log start goes up in the same entry, first.

        A readable segment may go only when the log start has passed its end; one whose copy did not finish may at any time.
        Ids that the manifest does not know are passed over. One entry, so at most ``CHANGES_PER_ENTRY_MAX`` ids: who has more
        has to act on the new log start before all of them are written.
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
            return [PartitionRecord(1, log_start, state.tiered_end), *deletions]

        await self.change(plan)

    async def delete_finished(self, segment_ids: Iterable[UUID]) -> None:
        """Forget segments whose objects are deleted. Ids that the manifest does not know are passed over."""
        ids = list(segment_ids)
        for start in range(0, len(ids), CHANGES_PER_ENTRY_MAX):
            page = ids[start : start + CHANGES_PER_ENTRY_MAX]
            await self.change(
                lambda state, page=page: [
                    Tombstone(segment_id) for segment_id in page if state.get(segment_id) is not None
                ]  # type: ignore[misc]
            )

    async def set_log_start(self, offset: int) -> None:
        """Raise the log start offset to ``offset``; nothing if it is there or higher."""
        await self.change(
            lambda state: [PartitionRecord(1, offset, state.tiered_end)] if offset > state.log_start_offset else []
        )

    async def change(self, plan: Callable[[ManifestState], Sequence[Change]]) -> None:
        """Make the changes that ``plan`` asks for in the state as it is; planned again if another writer came first.

        ``plan`` must not wait and must not change the state. No changes are no request.
        """
        async with self._turn:
            # Before and not after: once a change is durable nobody who acts on it has to wait for a snapshot.
            await self._maintain()
            for _ in range(CONFLICTS_MAX):
                # First of all: to somebody who was overtaken everything else would be a riddle.
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
                        # Nothing may come between what was planned on and the seal.
                        sequence = LogSequence(await self._log.seal(sequence) + 1)
                    await self._log.append(sequence, records)
                except ConflictError:
                    await self._log.poll()
                    continue
                return
            raise StorageUnavailable(f"{self._log.prefix} is written by others again and again")

    async def _maintain(self) -> None:
        """Snapshot and compact when due. It saves work later, so trouble here is only told."""
        if not self._log.snapshot_due:
            return
        try:
            await self._log.snapshot()
        except StorageUnavailable as error:
            self._faults.met("snapshots of", self._log.prefix, f"no snapshot of {self._log.prefix} for now: {error}")

    def entered(self, entry: SegmentEntry, state: SegmentState) -> SegmentEntry:
        """``entry`` as it is when it enters ``state`` now, by the writer's clock."""
        return entry.replace(state=state, changed_ms=self._clock.now_ms())
