"""The objects of a write-ahead log: sections of record batches, then a footer that says all about them (ADR 0037).

    ┌───────────┬───────────┬─ … ─┬─────────────┬────────┬─────────┐
    │ section 0 │ section 1 │     │ section n-1 │ footer │ trailer │
    └───────────┴───────────┴─ … ─┴─────────────┴────────┴─────────┘
    0                                           F        size - 16

A section is a run of whole batches of one partition, exactly the bytes of its log. A partition has at most one section in an
object. The footer has the fields of every batch that a take-over needs, and now and then the state of a partition's producers, so
no section has to be read to find the end of a partition. A **seal** is an object without sections: it ends the log.

Numbers are little-endian, in columns at multiples of eight bytes, as in ``.seg`` objects. Every byte is covered: sections follow
one another from 0 to the footer, each has a CRC-32C, and the footer's CRC covers the footer and its length.

This module is pure. ``docs/formats.md`` is the byte-level reference.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from struct import Struct, pack, unpack_from
from typing import Final, NamedTuple, NoReturn

from crc32c import crc32c

from app.core.errors import CorruptionError, clause
from app.core.limits import KIB, WAL_FOOTER_BYTES_MAX, WAL_OBJECT_BYTES_MAX
from app.core.units import (
    Buffer,
    FilePosition,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from app.hot.checkpoints import EpochStart
from app.hot.producers import parse_snapshot
from app.metadata.image.wal_ranges import WalId
from app.records.batch import HEADER_BYTES, BatchHeader, check_stored_batch

FORMAT_VERSION: Final = 1
WINDOW: Final = 8
"""W: number n + W is not begun before number n is durable (J4). A reader must know it, so it belongs to the format."""
FOOTER_MAGIC: Final = b"FIRNWALF"
TRAILER_MAGIC: Final = b"FIRNWALT"
TAIL_BYTES: Final = 64 * KIB
"""Bytes of the first request for a footer. Longer footers need a second one."""
STATE_NUMBERS_MAX: Final = 256
"""How far before a section the object with its producers' state may be (J37)."""
NONCE_BYTES: Final = 16

_HEAD: Final = Struct("<8sHHIHHiqq16sqIIIIqiI")
"""Magic, version, flags, head bytes, kind, window, broker id, broker epoch, number, nonce, data bytes, section count, batch count,
state count, reserved, created ms, sealer, reserved."""
HEAD_BYTES: Final = _HEAD.size
_TRAILER: Final = Struct("<II8s")
TRAILER_BYTES: Final = _TRAILER.size
_STATE_HEAD: Final = Struct("<qIIII")
"""Offset, epoch count, snapshot bytes, older batch count, reserved."""

assert HEAD_BYTES == 96
assert TRAILER_BYTES == 16
assert _STATE_HEAD.size == 24

NO_SEALER: Final = -1
NO_COORDINATOR: Final = -1


class ObjectKind(IntEnum):
    """The kinds of objects."""

    RECORDS = 0
    SEAL = 1


class MarkerKind(IntEnum):
    """The transaction markers. The numbers of the control types are Kafka's."""

    NONE = -1
    ABORT = 0
    COMMIT = 1


class BatchFields(NamedTuple):
    """The fields of one batch in a footer."""

    base_offset: Offset
    size_bytes: int
    leader_epoch: LeaderEpoch
    attributes: int
    last_offset_delta: int
    max_timestamp: TimestampMs
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int
    marker: int
    """A ``MarkerKind``."""
    coordinator_epoch: int
    """Of a marker; -1 otherwise."""

    @property
    def end_offset(self) -> Offset:
        """One past the offset of the last record."""
        return Offset(self.base_offset + self.last_offset_delta + 1)


class OlderBatch(NamedTuple):
    """A batch of a producer before its last one. Kafka's snapshots have only the last one; a producer may repeat any of five."""

    producer_id: ProducerId
    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: TimestampMs


class PartitionState(NamedTuple):
    """The state of a log besides its records, as of one offset."""

    offset: Offset
    leader_epochs: tuple[EpochStart, ...]
    """The whole lineage below ``offset``, oldest first. The last epoch may begin at ``offset``."""
    snapshot: bytes
    """Producer state, in the format of Kafka's ``.snapshot`` files."""
    older: tuple[OlderBatch, ...]
    """By producer, oldest first."""


@dataclass(frozen=True, slots=True)
class Section:
    """The batches of one partition in one object."""

    partition: TopicIdPartition
    position: FilePosition
    size_bytes: int
    crc: int
    batches: tuple[BatchFields, ...]
    """At least one; each begins where the one before it ends."""
    state_number: int
    """The object whose section of this partition has the state to begin with, which is as of the base or earlier (J37)."""
    state: PartitionState | None
    """As of the base if ``state_number`` is this object's. Else, if there is one, as of a later batch: for later sections."""

    @property
    def base_offset(self) -> Offset:
        return self.batches[0].base_offset

    @property
    def end_offset(self) -> Offset:
        return self.batches[-1].end_offset

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Of the leadership that wrote it: all batches have the same (J20)."""
        return self.batches[0].leader_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class WalFooter:
    """All facts about an object except its records."""

    wal: WalId
    number: int
    nonce: bytes
    """16 random bytes, made once for each object: they distinguish an own earlier try from another object."""
    kind: ObjectKind
    created_ms: TimestampMs
    """By the writer's clock; for people, never for decisions."""
    sealer: int = NO_SEALER
    """Node id of the broker that sealed; -1 in an object with records."""
    sections: tuple[Section, ...] = ()
    _by_partition: dict[TopicIdPartition, Section] = field(init=False, repr=False, compare=False, default_factory=dict)

    @property
    def is_seal(self) -> bool:
        return self.kind is ObjectKind.SEAL

    def section_of(self, partition: TopicIdPartition) -> Section | None:
        """The section of that partition, in constant time: a take-over asks for thousands of partitions."""
        if not self._by_partition:
            self._by_partition.update((section.partition, section) for section in self.sections)
        return self._by_partition.get(partition)


class SectionDraft(NamedTuple):
    """A section that is to be written."""

    partition: TopicIdPartition
    parts: Sequence[Buffer]
    """The batches, one after the other."""
    batches: Sequence[BatchFields]
    state_number: int
    state: PartitionState | bytes | None
    """Also as ``encode_state`` gives it."""


# --- writing --------------------------------------------------------------------------------------------------------


def batch_fields(
    header: BatchHeader, marker: int = MarkerKind.NONE, coordinator_epoch: int = NO_COORDINATOR
) -> BatchFields:
    """The footer's fields of a batch with this header. ``marker``: of a control batch that ends a transaction."""
    return BatchFields(
        header.base_offset,
        header.size_bytes,
        header.leader_epoch,
        header.attributes,
        header.last_offset_delta,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
        marker,
        coordinator_epoch,
    )


def encode_object(
    wal: WalId, number: int, nonce: bytes, created_ms: TimestampMs, drafts: Sequence[SectionDraft]
) -> tuple[bytes, WalFooter]:
    """The bytes of an object with records, and the footer as a reader decodes it. ``drafts`` has at least one section."""
    data = write_object(wal, number, nonce, created_ms, drafts)
    sections: list[Section] = []
    position = 0
    for draft in drafts:
        crc = size = 0
        for part in draft.parts:
            crc = crc32c(part, crc)
            size += len(part)
        state = decode_state(draft.state, "a draft") if isinstance(draft.state, bytes) else draft.state
        sections.append(
            Section(draft.partition, FilePosition(position), size, crc, tuple(draft.batches), draft.state_number, state)
        )
        position += size
    return data, WalFooter(
        wal=wal, number=number, nonce=nonce, kind=ObjectKind.RECORDS, created_ms=created_ms, sections=tuple(sections)
    )


def write_object(
    wal: WalId, number: int, nonce: bytes, created_ms: TimestampMs, drafts: Sequence[SectionDraft]
) -> bytes:
    """The bytes of an object with records: on the path of every produced batch. ``drafts`` has at least one section.

    The records are copied once. The work is linear in them, and in the numbers of batches and sections.
    """
    assert drafts
    parts: list[Buffer] = []
    states: list[bytes] = []
    sections: list[tuple[int, int, int, int, int, int, int]] = []
    batches: list[BatchFields] = []
    position = 0
    for draft in drafts:
        crc = size = 0
        for part in draft.parts:
            crc = crc32c(part, crc)
            size += len(part)
        state = draft.state if draft.state is None or isinstance(draft.state, bytes) else encode_state(draft.state)
        assert state is not None or draft.state_number != number, draft.state_number
        count = len(draft.batches)
        own_bytes = 0 if state is None else len(state)
        sections.append((draft.partition.partition, position, size, crc, count, draft.state_number, own_bytes))
        if state is not None:
            states.append(state)
        parts += draft.parts
        batches += draft.batches
        position += size
    assert sum(fields.size_bytes for fields in batches) == position, (wal, number)
    head = _head(
        wal, number, nonce, created_ms, ObjectKind.RECORDS, NO_SEALER, position, len(drafts), len(batches), len(states)
    )
    footer = [head, *(draft.partition.topic_id.bytes for draft in drafts)]
    _add_columns(footer, _SECTION_COLUMNS, sections)
    _add_columns(footer, _BATCH_COLUMNS, batches)
    footer += states
    parts.append(_closed(footer))
    data = b"".join(parts)
    assert len(data) <= WAL_OBJECT_BYTES_MAX, len(data)
    return data


def encode_seal(wal: WalId, number: int, nonce: bytes, created_ms: TimestampMs, sealer: int) -> bytes:
    """The bytes of a seal."""
    assert sealer >= 0, sealer
    return _closed([_head(wal, number, nonce, created_ms, ObjectKind.SEAL, sealer, 0, 0, 0, 0)])


def encode_state(state: PartitionState) -> bytes:
    """A state as a footer has it, padded to a multiple of eight bytes."""
    epochs, older = state.leader_epochs, state.older
    parts = [_STATE_HEAD.pack(state.offset, len(epochs), len(state.snapshot), len(older), 0)]
    _add_columns(parts, _EPOCH_COLUMNS, epochs)
    _add_columns(parts, _OLDER_COLUMNS, older)
    parts += (state.snapshot, bytes(-len(state.snapshot) % 8))
    return b"".join(parts)


def _head(
    wal: WalId,
    number: int,
    nonce: bytes,
    created_ms: TimestampMs,
    kind: ObjectKind,
    sealer: int,
    data_bytes: int,
    section_count: int,
    batch_count: int,
    state_count: int,
) -> bytes:
    assert len(nonce) == NONCE_BYTES, nonce
    return _HEAD.pack(
        FOOTER_MAGIC, FORMAT_VERSION, 0, HEAD_BYTES, kind, WINDOW, *wal, number, nonce, data_bytes, section_count,
        batch_count, state_count, 0, created_ms, sealer, 0,
    )  # fmt: skip


def _add_columns(parts: list[bytes], columns: Sequence[tuple[str, int]], rows: Sequence[tuple[int, ...]]) -> None:
    if rows:
        for (kind, _), values in zip(columns, zip(*rows, strict=True), strict=True):
            packed = pack(f"<{len(values)}{kind}", *values)
            parts.append(packed)
            if len(packed) % 8:
                parts.append(bytes(-len(packed) % 8))


def _closed(parts: list[bytes]) -> bytes:
    """The footer of these parts, and its trailer."""
    body = b"".join(parts)
    assert len(body) <= WAL_FOOTER_BYTES_MAX, len(body)
    return body + _TRAILER.pack(len(body), _footer_crc(body), TRAILER_MAGIC)


_SECTION_COLUMNS: Final = (("i", 4), ("q", 8), ("i", 4), ("I", 4), ("i", 4), ("q", 8), ("I", 4))
"""Type and width: partition, position, bytes, CRC, batch count, state number, state bytes."""
_BATCH_COLUMNS: Final = (
    ("q", 8), ("i", 4), ("i", 4), ("h", 2), ("i", 4), ("q", 8), ("q", 8), ("h", 2), ("i", 4), ("i", 4), ("b", 1), ("i", 4),
)  # fmt: skip
"""Of each field of ``BatchFields``."""
_EPOCH_COLUMNS: Final = (("i", 4), ("q", 8))
_OLDER_COLUMNS: Final = (("q", 8), ("i", 4), ("i", 4), ("q", 8), ("q", 8), ("q", 8))
"""Of each field of ``OlderBatch``."""

assert len(_BATCH_COLUMNS) == len(BatchFields._fields)
assert len(_OLDER_COLUMNS) == len(OlderBatch._fields)

BATCH_FOOTER_BYTES: Final = sum(width for _, width in _BATCH_COLUMNS)
SECTION_FOOTER_BYTES: Final = 16 + sum(width for _, width in _SECTION_COLUMNS)
"""Bytes that a batch and a section add to a footer, without its state."""


def _footer_crc(body: bytes | memoryview) -> int:
    return crc32c(len(body).to_bytes(4, "little"), crc32c(body))


# --- reading --------------------------------------------------------------------------------------------------------


def footer_tail_bytes(tail: bytes | memoryview, object_bytes: int, name: str) -> int:
    """Size of footer and trailer at the end of the object, as the trailer in ``tail`` says.

    If it is more than ``len(tail)``, the caller must read that many bytes. Raises: CorruptionError.
    """
    if len(tail) < TRAILER_BYTES or not TRAILER_BYTES + HEAD_BYTES <= object_bytes <= WAL_OBJECT_BYTES_MAX:
        raise CorruptionError(f"{name}: an object of a write-ahead log cannot have {object_bytes} bytes.")
    body_bytes, _, magic = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)
    if magic != TRAILER_MAGIC:
        raise CorruptionError(f"{name}: no trailer of a write-ahead log at position {object_bytes - TRAILER_BYTES}.")
    if body_bytes > WAL_FOOTER_BYTES_MAX or not HEAD_BYTES <= body_bytes <= object_bytes - TRAILER_BYTES:
        raise CorruptionError(
            f"{name}: trailer at position {object_bytes - TRAILER_BYTES} claims {body_bytes} footer bytes."
        )
    return int(body_bytes) + TRAILER_BYTES


def decode_footer(tail: bytes | memoryview, object_bytes: int, name: str, wal: WalId, number: int) -> WalFooter:
    """Read and check the footer of object ``number`` of a log from its last bytes.

    Args:
        tail: the object's last bytes, at least ``footer_tail_bytes``.
        object_bytes: size of the whole object.
        name: the object's key, for errors.

    Raises: CorruptionError that names the object, the fault and its position; also if it is another object than asked for.
    """
    wanted = footer_tail_bytes(tail, object_bytes, name)
    if wanted > len(tail):
        raise CorruptionError(f"{name}: footer of {wanted} bytes, only {len(tail)} were read.")
    start = object_bytes - wanted
    view = memoryview(tail)[len(tail) - wanted :]
    body = view[: wanted - TRAILER_BYTES]
    _, crc, _ = _TRAILER.unpack_from(view, len(body))
    if _footer_crc(body) != crc:
        raise CorruptionError(f"{name}: wrong CRC of the footer at position {start}.")
    footer = _FooterReader(body, start, name).footer()
    if (footer.wal, footer.number) != (wal, number):
        raise CorruptionError(f"{name}: it says inside that it is object {footer.number} of log {footer.wal}.")
    return footer


def decode_whole(data: bytes | memoryview, name: str, wal: WalId, number: int) -> WalFooter:
    """The footer of a whole object, every section checked. Raises: CorruptionError."""
    footer = decode_footer(data, len(data), name, wal, number)
    view = memoryview(data)
    for section in footer.sections:
        check_section(view[section.position : section.position + section.size_bytes], section, name)
    return footer


def check_section(data: memoryview, section: Section, name: str) -> None:
    """Check the bytes of a section: its CRC, every batch, and that they are those that the footer names.

    Raises: CorruptionError that names the object and the position.
    """
    if len(data) != section.size_bytes or crc32c(data) != section.crc:
        raise CorruptionError(f"{name}: wrong CRC or length of the section at position {section.position}.")
    position = 0
    for fields in section.batches:
        where = section.position + position
        try:
            header = check_stored_batch(data, position)
        except CorruptionError as error:
            raise CorruptionError(f"{name}: section at position {section.position}: {clause(error)}.") from None
        if batch_fields(header, fields.marker, fields.coordinator_epoch) != fields:
            raise CorruptionError(f"{name}: the batch at position {where} is not the one that the footer names.")
        position += fields.size_bytes


class _Columns:
    """Reads columns at multiples of eight bytes. Each is checked against the remaining bytes, before memory is taken for it."""

    def __init__(self, body: memoryview, where: str) -> None:
        self._body, self._where = body, where
        self._position = 0

    def _fail(self, what: str) -> NoReturn:
        raise CorruptionError(f"{self._where}: {clause(what)}.")

    def _bytes(self, length: int, what: str) -> memoryview:
        end = self._position + length
        padded_end = end + (-length % 8)
        if padded_end > len(self._body):
            self._fail(f"it ends within {what}")
        if any(self._body[end:padded_end]):
            self._fail(f"padding at its byte {end} is not zero")
        found = self._body[self._position : end]
        self._position = padded_end
        return found

    def _column(self, kind: str, width_bytes: int, count: int) -> tuple[int, ...]:
        values: tuple[int, ...] = unpack_from(f"<{count}{kind}", self._bytes(width_bytes * count, "a column"))
        return values


class _StateReader(_Columns):
    def state(self) -> PartitionState:
        head = self._bytes(_STATE_HEAD.size, "its head")
        offset, epoch_count, snapshot_bytes, older_count, reserved = _STATE_HEAD.unpack(head)
        if reserved:
            self._fail("unknown flags")
        epochs = [self._column(kind, width, epoch_count) for kind, width in _EPOCH_COLUMNS]
        older = [self._column(kind, width, older_count) for kind, width in _OLDER_COLUMNS]
        snapshot = bytes(self._bytes(snapshot_bytes, "the snapshot"))
        if self._position != len(self._body):
            self._fail(f"{len(self._body) - self._position} bytes too many")
        lineage = tuple(EpochStart(LeaderEpoch(epoch), Offset(at)) for epoch, at in zip(*epochs, strict=True))
        for entry in lineage:
            if entry.epoch < 0 or not 0 <= entry.start_offset <= offset:
                self._fail(f"epoch {entry.epoch} at {entry.start_offset}")
        for before, after in pairwise(lineage):
            if before.epoch >= after.epoch or before.start_offset >= after.start_offset:
                self._fail(f"epoch {after.epoch} after {before.epoch}")
        try:
            parse_snapshot(snapshot)
        except CorruptionError as error:
            self._fail(str(error))
        return PartitionState(offset, lineage, snapshot, tuple(map(OlderBatch._make, zip(*older, strict=True))))


def decode_state(data: bytes | memoryview, where: str) -> PartitionState:
    """Decode the bytes of ``encode_state``. Raises: CorruptionError."""
    return _StateReader(memoryview(data), f"{where}: its state").state()


class _FooterReader(_Columns):
    """Reads a footer body."""

    def __init__(self, body: memoryview, start: int, name: str) -> None:
        super().__init__(body, f"{name}: footer at position {start}")
        self._start = start

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            self._fail(what)

    def footer(self) -> WalFooter:
        require = self._require
        (
            magic, version, flags, head_bytes, kind, window, broker_id, broker_epoch, number, nonce, data_bytes,
            section_count, batch_count, state_count, reserved, created_ms, sealer, reserved_2,
        ) = _HEAD.unpack_from(self._body)  # fmt: skip
        require(magic == FOOTER_MAGIC, "wrong magic")
        require(
            version <= FORMAT_VERSION,
            f"format version {version} is from the future: this software knows up to {FORMAT_VERSION}; upgrade it",
        )
        require(version == FORMAT_VERSION, f"format version {version}")
        require(
            flags == 0 and reserved == 0 and reserved_2 == 0,
            f"unknown flags {flags:#x}, {reserved:#x}, {reserved_2:#x}",
        )
        require(head_bytes == HEAD_BYTES, f"head of {head_bytes} bytes")
        require(kind in (ObjectKind.RECORDS, ObjectKind.SEAL), f"unknown kind {kind}")
        require(window == WINDOW, f"window of {window} where version {version} has {WINDOW}")
        require(
            broker_id >= 0 and broker_epoch >= 0 and number >= 0, f"log {broker_id}/{broker_epoch}, number {number}"
        )
        require(data_bytes == self._start, f"sections of {data_bytes} bytes before a footer at {self._start}")
        if kind == ObjectKind.SEAL:
            require(section_count == batch_count == state_count == data_bytes == 0, "it is a seal and has records")
            require(sealer >= 0, f"sealed by broker {sealer}")
        else:
            require(1 <= section_count <= batch_count, f"{section_count} sections of {batch_count} batches")
            require(state_count <= section_count, f"{state_count} states of {section_count} sections")
            require(sealer == NO_SEALER, "it has records and a sealer")
        self._position = HEAD_BYTES
        sections = self._sections(number, data_bytes, section_count, batch_count, state_count)
        require(self._position == len(self._body), f"{len(self._body) - self._position} bytes too many")
        return WalFooter(
            wal=WalId(broker_id, broker_epoch),
            number=number,
            nonce=bytes(nonce),
            kind=ObjectKind(kind),
            created_ms=created_ms,
            sealer=sealer,
            sections=sections,
        )

    def _sections(
        self, number: int, data_bytes: int, section_count: int, batch_count: int, state_count: int
    ) -> tuple[Section, ...]:
        topic_ids = self._bytes(16 * section_count, "the topic ids")
        of_sections = [self._column(kind, width, section_count) for kind, width in _SECTION_COLUMNS]
        fields = [self._column(kind, width, batch_count) for kind, width in _BATCH_COLUMNS]
        _, _, _, _, counts, _, state_sizes = of_sections
        if sum(counts) != batch_count or min(counts, default=1) <= 0:
            self._fail(f"sections of {counts} batches, {batch_count} claimed")
        if sum(size > 0 for size in state_sizes) != state_count:
            self._fail(f"{state_count} states claimed, and not that many are there")
        batches = list(map(BatchFields._make, zip(*fields, strict=True)))
        topics: dict[bytes, TopicId] = {}
        sections: list[Section] = []
        keys: set[TopicIdPartition] = set()
        at = first = 0
        for index, (partition, position, size, crc, count, state_number, state_bytes) in enumerate(
            zip(*of_sections, strict=True)
        ):
            if position != at:
                self._fail(f"section {index} at {position}, expected at {at}")
            if partition < 0:
                self._fail(f"section {index} of partition {partition}")
            if not max(0, number - STATE_NUMBERS_MAX) <= state_number <= number:
                self._fail(f"section {index} has its state in object {state_number}")
            own = tuple(batches[first : first + count])
            self._check_batches(own, size, index)
            state = None
            if state_bytes:
                state = decode_state(self._bytes(state_bytes, "a state"), f"{self._where}: section {index}")
            self._check_state(state, own, state_number == number, index)
            topic_bytes = bytes(topic_ids[16 * index : 16 * index + 16])
            topic_id = topics.get(topic_bytes)
            if topic_id is None:
                topic_id = topics[topic_bytes] = TopicId(uuid.UUID(bytes=topic_bytes))
            key = TopicIdPartition(topic_id, PartitionIndex(partition))
            keys.add(key)
            sections.append(Section(key, FilePosition(position), size, crc, own, state_number, state))
            at += size
            first += count
        if at != data_bytes:
            self._fail(f"sections of {at} bytes, {data_bytes} claimed")
        if len(keys) != section_count:
            self._fail("a partition has two sections")
        return tuple(sections)

    def _check_batches(self, batches: tuple[BatchFields, ...], size_bytes: int, index: int) -> None:
        # A take-over reads hundreds of thousands of batches: sentences are made for bad ones alone.
        expected = batches[0].base_offset
        leader_epoch = batches[0].leader_epoch
        size = 0
        for fields in batches:
            base, bytes_, epoch, _, delta, _, _, _, _, count, marker, _ = fields
            if base < 0 or delta < 0:
                self._fail(f"section {index} has a batch at {base}")
            if base != expected:
                self._fail(f"section {index} goes on at {base} after {expected}")
            if bytes_ < HEADER_BYTES:
                self._fail(f"section {index} has a batch of {bytes_} bytes")
            if epoch < 0:
                self._fail(f"section {index} has leader epoch {epoch}")
            if epoch != leader_epoch:
                self._fail(f"section {index} has two leader epochs")
            if not 0 <= count <= delta + 1:
                self._fail(f"section {index} has {count} records")
            if not MarkerKind.NONE <= marker <= MarkerKind.COMMIT:
                self._fail(f"section {index} has the unknown marker {marker}")
            expected = Offset(base + delta + 1)
            size += bytes_
        if size != size_bytes:
            self._fail(f"section {index} of {size_bytes} bytes")

    def _check_state(
        self, state: PartitionState | None, batches: tuple[BatchFields, ...], names_itself: bool, index: int
    ) -> None:
        if state is None:
            if names_itself:
                self._fail(f"section {index} names its own state, and has none")
        elif names_itself != (state.offset == batches[0].base_offset) or not any(
            state.offset == fields.base_offset for fields in batches
        ):
            self._fail(f"the state of section {index} is as of offset {state.offset}")
