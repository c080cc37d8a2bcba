"""The state of a partition's segment manifest, and the rules for its changes. Pure.

Every segment has one record, keyed by its id, with its whole state (KIP-405's states):

    (none) ──► COPY_STARTED ──► COPY_FINISHED ──► DELETE_STARTED ──► gone (KIP-405's DELETE_FINISHED: a tombstone)
                     └──────────────────────────────► ▲

The partition has one more record: its log start offset and the highest offset that was ever tiered.

Segments in COPY_FINISHED are readable. Invariants after every entry (INV-4):

- Readable segments do not overlap. A gap between two of them is below the log start.
- Readable offsets stay readable until the log start passes them (a replacement covers the replaced segments).
- The log start and the tiered end never go back. A new segment never begins below and ends above the tiered end: a tiered offset is
  never tiered again with another segment end.

The same predicates are checked before a conditional write, where a violation is a ConflictError of the caller, and after a
read, where a violation is a CorruptionError.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeAlias, assert_never
from uuid import UUID

import msgspec

from app.core.errors import ConflictError, CorruptionError, clause
from app.core.units import (
    BrokerId,
    LeaderEpoch,
    LogSequence,
    Offset,
    PartitionIndex,
    SegmentId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from app.metadata.log import layout
from app.metadata.log.log_format import (
    Entry,
    KeyValue,
    ValueDecoder,
    Versioned,
    decode_key,
    encode_key,
    encode_value,
)

KIND_SEGMENT: Final = 64
KIND_PARTITION: Final = 65


class SegmentState(IntEnum):
    """KIP-405's states and numbers. DELETE_FINISHED is never stored: the record's tombstone represents it."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


LEGAL: Final[Mapping[SegmentState | None, frozenset[SegmentState]]] = {
    None: frozenset({SegmentState.COPY_STARTED}),
    SegmentState.COPY_STARTED: frozenset(
        {SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}
    ),
    SegmentState.COPY_FINISHED: frozenset({SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}),
    SegmentState.DELETE_STARTED: frozenset({SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED}),
}
"""State of a segment → allowed next states. A repeated record is legal, so that an undecided write can be repeated."""


class SegmentEntry(Versioned, array_like=True, frozen=True, gc=False):
    """All facts that a reader needs to plan with a segment, without its footer. Also the stored value of its record.

    Time ranges and counts are known from COPY_STARTED on. Facts about the object are known only from COPY_FINISHED on.
    """

    version: int
    segment_id: UUID
    state: SegmentState
    base_offset: Offset
    end_offset: Offset
    leader_epochs: tuple[tuple[LeaderEpoch, Offset], ...] = ()
    """(epoch, its start offset) of every leader epoch with offsets in the segment, in order; the first may start earlier."""
    min_timestamp: TimestampMs = TimestampMs(-1)
    max_timestamp: TimestampMs = TimestampMs(-1)
    max_timestamp_offset: Offset = Offset(-1)
    """Offset of the first record with ``max_timestamp``; -1 if not known."""
    record_count: int = 0
    raw_bytes: int = 0
    """Bytes of the record batches."""
    size_bytes: int = 0
    """Bytes of the object."""
    footer_position: int = 0
    footer_bytes: int = 0
    chunk_count: int = 0
    aborted_transaction_count: int = 0
    """Number of aborted transactions that overlap [base_offset, end_offset). If there are any, a read_committed reader needs
    the footer."""
    broker_id: BrokerId = BrokerId(-1)
    """The broker that copied the segment."""
    changed_ms: TimestampMs = TimestampMs(-1)
    """Time of the change to this state, by the writer's clock."""
    stored_key: str = ""
    """Empty, or the key of ``layout.segment_key``. Any other key is damage: the object there is neither read nor deleted."""
    arrived_ms: TimestampMs = TimestampMs(-1)
    """Arrival time of the newest record, by the broker's clock; -1 in entries of earlier versions. A replacement keeps its
    inputs' time."""

    @property
    def newest_arrival_ms(self) -> TimestampMs:
        """Latest possible arrival of the newest record. An entry without an arrival time was changed after the arrival."""
        return self.arrived_ms if self.arrived_ms >= 0 else self.changed_ms

    @classmethod
    def started(
        cls, segment_id: SegmentId, base_offset: Offset, end_offset: Offset, *, broker_id: BrokerId
    ) -> SegmentEntry:
        """An entry for a segment whose copy is about to start."""
        return cls(1, segment_id, SegmentState.COPY_STARTED, base_offset, end_offset, broker_id=broker_id)

    def replace(self, **changes: object) -> SegmentEntry:
        """A copy of the entry with some fields changed."""
        return msgspec.structs.replace(self, **changes)

    def object_key(self, topic_id: TopicId, partition: PartitionIndex) -> str:
        """The recorded key of the segment object. Check ``has_own_key`` before the object is deleted."""
        return self.stored_key or layout.segment_key(topic_id, partition, self.base_offset, SegmentId(self.segment_id))

    def has_own_key(self, topic_id: TopicId, partition: PartitionIndex) -> bool:
        """Whether the recorded key is the layout's key for this segment of this partition."""
        return not self.stored_key or self.stored_key == layout.segment_key(
            topic_id, partition, self.base_offset, SegmentId(self.segment_id)
        )


class ManifestPartitionRecord(Versioned, array_like=True, frozen=True):
    """The manifest's record of the partition as a whole."""

    log_start_offset: int
    tiered_end: int
    """At least the end of every segment that was readable at the write, so that it survives the deletion of segments."""


class Tombstone(msgspec.Struct, frozen=True):
    """The record of a segment is removed, because its object is deleted."""

    segment_id: UUID


Change: TypeAlias = SegmentEntry | ManifestPartitionRecord | Tombstone

_segments = ValueDecoder(SegmentEntry, 1, "segment")
_partitions = ValueDecoder(ManifestPartitionRecord, 1, "partition")
_PARTITION_KEY: Final = encode_key(KIND_PARTITION)


def segment_record_key(segment_id: UUID) -> bytes:
    """Key of a segment's record."""
    return encode_key(KIND_SEGMENT, segment_id)


_SEGMENT_KEY_PREFIX: Final = segment_record_key(UUID(int=0))[:-16]


def encode_change(change: Change) -> KeyValue:
    """Encode ``change`` as a record."""
    match change:
        case SegmentEntry():
            return segment_record_key(change.segment_id), encode_value(change)
        case ManifestPartitionRecord():
            return _PARTITION_KEY, encode_value(change)
        case Tombstone():
            return segment_record_key(change.segment_id), None


def decode_change(key: bytes, value: bytes | None) -> Change | None:
    """Inverse of ``encode_change``; None for an unknown kind of record. Raises: CorruptionError."""
    if key.startswith(_SEGMENT_KEY_PREFIX):
        segment_id = key[len(_SEGMENT_KEY_PREFIX) :]
        if len(segment_id) != 16:
            raise CorruptionError(f"The record key {key!r} is not a segment's.")
        if value is None:
            return Tombstone(UUID(bytes=segment_id))
        entry = _segments.decode(value)
        if entry.segment_id.bytes != segment_id:
            raise CorruptionError(f"The record of segment {UUID(bytes=segment_id)} says that it is {entry.segment_id}.")
        return entry
    if key == _PARTITION_KEY:
        if value is None:
            raise CorruptionError("The partition's record is gone.")
        return _partitions.decode(value)
    decode_key(key)
    return None


class ManifestState:
    """Segments by state and offset. Only ``apply`` and ``load`` change it. Lookups are O(log n).

    After ``apply`` has raised, the state is broken and must not be used.
    """

    __slots__ = (
        "_bases",
        "_by_id",
        "_finished",
        "_highest_timestamps",
        "_pending",
        "is_blank",
        "log_start_offset",
        "partition",
        "raw_bytes",
        "record_count",
        "size_bytes",
        "tiered_end",
    )

    def __init__(self, partition: TopicIdPartition | None = None) -> None:
        """``partition``: the manifest's partition. If None, keys in records are not compared with the layout."""
        self.partition = partition
        self.log_start_offset = Offset(0)
        """Readers get no offset below it."""
        self.tiered_end = Offset(0)
        """One past the highest offset that was ever in a readable segment; 0 if nothing was ever tiered."""
        self.is_blank = True
        """Whether the manifest never had a record, except seals. A copy is recorded before its first byte is uploaded, and at
        least one record always stays. So a blank manifest beside segment objects means that the manifest was lost."""
        self.record_count = 0
        """Number of all readable segments. The sums of bytes are also over these."""
        self.raw_bytes = 0
        self.size_bytes = 0
        self._by_id: dict[UUID, SegmentEntry] = {}
        self._pending: dict[UUID, SegmentEntry] = {}
        self._finished: list[SegmentEntry] = []
        self._bases: list[Offset] = []
        self._highest_timestamps: list[TimestampMs] | None = None

    def copy(self) -> ManifestState:
        """A copy on which changes can be tried. It shares the entries."""
        other = ManifestState(self.partition)
        other.log_start_offset = self.log_start_offset
        other.tiered_end = self.tiered_end
        other.is_blank = self.is_blank
        other.record_count, other.raw_bytes, other.size_bytes = self.record_count, self.raw_bytes, self.size_bytes
        other._by_id = self._by_id.copy()
        other._pending = self._pending.copy()
        other._finished = self._finished.copy()
        other._bases = self._bases.copy()
        return other

    # --- looking up -------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> Sequence[SegmentEntry]:
        """Readable segments by offset. This is not a copy: use it before the next await, and do not change it."""
        return self._finished

    @property
    def entries(self) -> list[SegmentEntry]:
        """All segments, by base offset."""
        return sorted(self._by_id.values(), key=lambda entry: (entry.base_offset, entry.state, entry.segment_id))

    def get(self, segment_id: UUID) -> SegmentEntry | None:
        """The segment with that id, in any state."""
        return self._by_id.get(segment_id)

    def pending_copies(self) -> list[SegmentEntry]:
        """Segments in COPY_STARTED: our own copies under way, or unfinished copies of another writer."""
        return [entry for entry in self._pending.values() if entry.state is SegmentState.COPY_STARTED]

    def pending_deletes(self) -> list[SegmentEntry]:
        """Segments in DELETE_STARTED. Their objects may still exist."""
        return [entry for entry in self._pending.values() if entry.state is SegmentState.DELETE_STARTED]

    def with_foreign_keys(self) -> list[SegmentEntry]:
        """Segments whose record has another object's key. None of them is readable, because a readable one is corruption at
        once."""
        if self.partition is None:
            return []
        return [entry for entry in self._pending.values() if not entry.has_own_key(*self.partition)]

    def find(self, offset: int) -> SegmentEntry | None:
        """The readable segment that covers ``offset``, if any. The log start is ignored."""
        index = bisect_right(self._bases, offset) - 1
        if index < 0:
            return None
        entry = self._finished[index]
        return entry if offset < entry.end_offset else None

    def index_at(self, offset: int) -> int:
        """Index in ``finished`` of the first readable segment that ends after ``offset``."""
        index = max(bisect_right(self._bases, offset) - 1, 0)
        if index < len(self._finished) and self._finished[index].end_offset <= offset:
            index += 1
        return index

    def find_timestamp(self, timestamp_ms: int) -> SegmentEntry | None:
        """The first readable segment that may have a record at or after the log start with at least ``timestamp_ms``.

        Within the segment the log start may have passed that record. Then continue in a later segment, with ``index_at``.
        """
        start = self.index_at(self.log_start_offset)
        if self._highest_timestamps is None:
            highest: list[TimestampMs] = []
            so_far = TimestampMs(-1)
            for entry in self._finished:
                so_far = max(so_far, entry.max_timestamp)
                highest.append(so_far)
            self._highest_timestamps = highest
        # Segments before the log start may hold the running maximum: then the search goes on one by one after them.
        index = max(bisect_left(self._highest_timestamps, timestamp_ms), start)
        while index < len(self._finished) and self._finished[index].max_timestamp < timestamp_ms:
            index += 1
        return self._finished[index] if index < len(self._finished) else None

    def last_before(self, offset: int) -> SegmentEntry | None:
        """The last readable segment that begins below ``offset``."""
        index = bisect_left(self._bases, offset)
        return self._finished[index - 1] if index else None

    def leader_epochs(self) -> list[tuple[LeaderEpoch, Offset]]:
        """(epoch, start offset) of every leader epoch of the readable segments, in order. O(n)."""
        lineage: list[tuple[LeaderEpoch, Offset]] = []
        for entry in self._finished:
            for epoch, start in entry.leader_epochs:
                if not lineage or epoch > lineage[-1][0]:
                    lineage.append((epoch, start))
        return lineage

    # --- planning ---------------------------------------------------------------------------------------------------

    def check(self, changes: Sequence[Change]) -> None:
        """Check whether ``changes``, in one entry, are legal now. O(n) copies of pointers.

        Raises: ConflictError, which names the violated rule.
        """
        reason = self.copy()._take(changes)
        if reason is not None:
            raise ConflictError(f"The manifest cannot take the change: {reason}.")

    # --- taking -----------------------------------------------------------------------------------------------------

    def load(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """LogState: add a part of a snapshot."""
        by_id, pending = self._by_id, self._pending
        for key, value in records:
            change = decode_change(key, value)
            if change is not None:
                self.is_blank = False
            if isinstance(change, SegmentEntry):
                by_id[change.segment_id] = change
                if change.state is not SegmentState.COPY_FINISHED:
                    pending[change.segment_id] = change
            elif isinstance(change, ManifestPartitionRecord):
                self.log_start_offset = Offset(change.log_start_offset)
                self.tiered_end = Offset(change.tiered_end)

    def loaded(self, sequence: LogSequence) -> None:
        """LogState: the snapshot is complete. Raises: CorruptionError."""
        del sequence
        self._finished = sorted(
            (entry for entry in self._by_id.values() if entry.state is SegmentState.COPY_FINISHED),
            key=lambda entry: entry.base_offset,
        )
        self._bases = [entry.base_offset for entry in self._finished]
        for entry in self._finished:
            self._count(entry, 1)
        if self._finished:
            self.tiered_end = max(self.tiered_end, self._finished[-1].end_offset)
        for index, entry in enumerate(self._finished):
            reason = _range_reason(entry) or self._key_reason(entry) or self._neighbour_reason(index)
            if reason is not None:
                raise CorruptionError(f"The manifest's snapshot is not sound: {clause(reason)}.")

    def apply(self, entry: Entry) -> None:
        """LogState: apply one entry. Raises: CorruptionError."""
        changes = [change for key, value in entry.records if (change := decode_change(key, value)) is not None]
        reason = self._take(changes)
        if reason is not None:
            raise CorruptionError(f"Entry {entry.sequence} of the manifest is not legal: {clause(reason)}.")
        if changes:
            self.is_blank = False

    def _take(self, changes: Iterable[Change]) -> str | None:
        """Make the changes. Returns: the violated rule, if any; then the state is broken."""
        tiered_end_before = self.tiered_end
        added: list[SegmentEntry] = []
        removed: list[SegmentEntry] = []
        reason: str | None
        for change in changes:
            match change:
                case SegmentEntry():
                    reason = self._take_segment(change, added, removed)
                case Tombstone():
                    reason = self._take_tombstone(change)
                case ManifestPartitionRecord():
                    reason = self._take_partition(change)
                case _:
                    assert_never(change)
            if reason is not None:
                return reason
        for entry in added:
            reason = self._added_reason(entry, tiered_end_before)
            if reason is not None:
                return reason
        for entry in removed:
            reason = self._removed_reason(entry)
            if reason is not None:
                return reason
        return None

    def _take_segment(self, new: SegmentEntry, added: list[SegmentEntry], removed: list[SegmentEntry]) -> str | None:
        old = self._by_id.get(new.segment_id)
        before = old.state if old is not None else None
        if new.state not in LEGAL[before] or new.state is SegmentState.DELETE_FINISHED:
            return _illegal(new.segment_id, before, new.state)
        if old is not None and (old.base_offset, old.end_offset) != (new.base_offset, new.end_offset):
            return (
                f"segment {new.segment_id} covers [{old.base_offset}, {old.end_offset}),"
                f" not [{new.base_offset}, {new.end_offset})"
            )
        reason = _range_reason(new) or self._key_reason(new)
        if reason is not None:
            return reason
        self._by_id[new.segment_id] = new
        was_readable = before is SegmentState.COPY_FINISHED
        if new.state is SegmentState.COPY_FINISHED:
            self._pending.pop(new.segment_id, None)
            if was_readable:
                assert old is not None
                self._remove(old)
            else:
                added.append(new)
            return self._insert(new)
        self._pending[new.segment_id] = new
        if was_readable:
            assert old is not None
            self._remove(old)
            removed.append(old)
        return None

    def _take_tombstone(self, tombstone: Tombstone) -> str | None:
        old = self._by_id.get(tombstone.segment_id)
        if old is None or SegmentState.DELETE_FINISHED not in LEGAL[old.state]:
            return _illegal(tombstone.segment_id, old.state if old is not None else None, SegmentState.DELETE_FINISHED)
        del self._by_id[tombstone.segment_id]
        del self._pending[tombstone.segment_id]
        return None

    def _take_partition(self, new: ManifestPartitionRecord) -> str | None:
        if new.log_start_offset < self.log_start_offset:
            return f"the log start would go back from {self.log_start_offset} to {new.log_start_offset}"
        if new.tiered_end < self.tiered_end:
            return f"the tiered end would go back from {self.tiered_end} to {new.tiered_end}"
        self.log_start_offset = Offset(new.log_start_offset)
        self.tiered_end = Offset(new.tiered_end)
        return None

    def _insert(self, entry: SegmentEntry) -> str | None:
        index = bisect_left(self._bases, entry.base_offset)
        if index < len(self._bases) and self._bases[index] == entry.base_offset:
            return (
                f"segments {self._finished[index].segment_id} and {entry.segment_id} both start at {entry.base_offset}"
            )
        if index == len(self._bases) and self._highest_timestamps is not None:
            so_far = self._highest_timestamps[-1] if self._highest_timestamps else TimestampMs(-1)
            self._highest_timestamps.append(max(so_far, entry.max_timestamp))
        else:
            self._highest_timestamps = None
        self._finished.insert(index, entry)
        self._bases.insert(index, entry.base_offset)
        self._count(entry, 1)
        self.tiered_end = max(self.tiered_end, entry.end_offset)
        return None

    def _remove(self, entry: SegmentEntry) -> None:
        index = bisect_left(self._bases, entry.base_offset)
        assert self._finished[index].segment_id == entry.segment_id, entry
        del self._finished[index]
        del self._bases[index]
        self._highest_timestamps = None
        self._count(entry, -1)

    def _count(self, entry: SegmentEntry, sign: int) -> None:
        self.record_count += sign * entry.record_count
        self.raw_bytes += sign * entry.raw_bytes
        self.size_bytes += sign * entry.size_bytes

    def _key_reason(self, entry: SegmentEntry) -> str | None:
        """Whether a readable segment's record has a foreign key.

        The record of an unreadable segment may have a foreign key, because an older version stored a caller's text. Such a
        record stays visible, and the object under the foreign key is not touched.
        """
        if (
            self.partition is None
            or entry.state is not SegmentState.COPY_FINISHED
            or entry.has_own_key(*self.partition)
        ):
            return None
        return f"segment {entry.segment_id} is recorded under the key {entry.stored_key!r}, which is not its own"

    def _neighbour_reason(self, index: int) -> str | None:
        """The fault between segment ``index`` and the previous segment; None if there is none."""
        if not 0 < index < len(self._finished):
            return None
        before, after = self._finished[index - 1], self._finished[index]
        if before.end_offset > after.base_offset:
            return (
                f"segments {before.segment_id} [{before.base_offset}, {before.end_offset}) and {after.segment_id}"
                f" [{after.base_offset}, {after.end_offset}) overlap"
            )
        if before.end_offset < after.base_offset and after.base_offset > self.log_start_offset:
            return (
                f"no segment would cover [{before.end_offset}, {after.base_offset}), and the log starts at"
                f" {self.log_start_offset}"
            )
        return None

    def _added_reason(self, entry: SegmentEntry, tiered_end_before: Offset) -> str | None:
        now = self._by_id.get(entry.segment_id)
        if now is None or now.state is not SegmentState.COPY_FINISHED:
            return None
        index = bisect_left(self._bases, entry.base_offset)
        reason = self._neighbour_reason(index) or self._neighbour_reason(index + 1)
        if reason is not None:
            return reason
        if entry.base_offset < tiered_end_before < entry.end_offset:
            return f"segment {entry.segment_id} straddles the tiered end {tiered_end_before}"
        if 0 < tiered_end_before < entry.base_offset and not self._covered(tiered_end_before, entry.base_offset):
            return f"segment {entry.segment_id} starts at {entry.base_offset}, past the tiered end {tiered_end_before}"
        return None

    def _removed_reason(self, entry: SegmentEntry) -> str | None:
        if self._covered(entry.base_offset, entry.end_offset):
            return None
        return (
            f"segment {entry.segment_id} [{entry.base_offset}, {entry.end_offset}) is still readable: the log starts at"
            f" {self.log_start_offset}"
        )

    def _covered(self, start: int, end: int) -> bool:
        """Whether all offsets of [start, end) from the log start on are readable. Gaps between segments are below the log start."""
        start = max(start, self.log_start_offset)
        return end <= start or (self.find(start) is not None and self.find(end - 1) is not None)


def _illegal(segment_id: UUID, before: SegmentState | None, after: SegmentState) -> str:
    return f"segment {segment_id} cannot go from {before.name if before is not None else 'nothing'} to {after.name}"


def _range_reason(entry: SegmentEntry) -> str | None:
    if not 0 <= entry.base_offset < entry.end_offset:
        return f"segment {entry.segment_id} covers the impossible range [{entry.base_offset}, {entry.end_offset})"
    if entry.state is SegmentState.COPY_FINISHED and not (
        0 < entry.footer_position < entry.size_bytes and entry.footer_bytes > 0 and entry.chunk_count > 0
    ):
        return f"segment {entry.segment_id} is finished but does not say where its footer is"
    return None
