"""The objects of a write-ahead log: sections of record batches, then a footer that says all about them (ADR 0037).

    ┌───────────┬───────────┬─ … ─┬─────────────┬────────┬─────────┐
    │ section 0 │ section 1 │     │ section n-1 │ footer │ trailer │
    └───────────┴───────────┴─ … ─┴─────────────┴────────┴─────────┘
    0                                           F        size - 16

A section is a run of whole batches of one partition, exactly the bytes of its log. A partition has at most one section in an
object. The footer has the fields of every batch that a take-over needs, and now and then the state of a partition's producers, so
nobody has to read a section to know where a partition ends. A **seal** is an object without sections: it ends the log.

Numbers are little-endian, in columns at multiples of eight bytes, as in ``.seg`` objects. Every byte is covered: sections follow
one another from 0 to the footer, each has a CRC-32C, and the footer's CRC covers the footer and its length.

This module is pure. ``docs/formats.md`` is the byte-level reference.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from struct import Struct, unpack_from
from typing import Final, NamedTuple

from crc32c import crc32c

from app.errors import CorruptionError
from app.hot.checkpoints import EpochStart
from app.hot.producers import parse_snapshot
from app.limits import KIB, WAL_FOOTER_BYTES_MAX, WAL_OBJECT_BYTES_MAX
from app.metadata.wal_ranges import WalId
from app.records.batch import HEADER_BYTES, BatchHeader, check_stored_batch
from app.units import (
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


class Kind(IntEnum):
    """What an object is."""

    RECORDS = 0
    SEAL = 1


class Marker(IntEnum):
    """What a batch ends. The numbers of the control types are Kafka's."""

    NONE = -1
    ABORT = 0
    COMMIT = 1


class BatchFields(NamedTuple):
    """What a footer says of one batch."""

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
    """A ``Marker``."""
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
    """What a log knows besides its records, as of one offset."""

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
    """The object whose section of this partition has the state to begin with; this one or an earlier one of the same log."""
    state: PartitionState | None
    """If ``state_number`` is this object's: as of an offset from the base to the last batch's."""

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
    kind: Kind
    created_ms: TimestampMs
    """By the writer's clock; for people, never for decisions."""
    sealer: int = NO_SEALER
    """Node id of the broker that sealed; -1 in an object with records."""
    sections: tuple[Section, ...] = ()

    @property
    def is_seal(self) -> bool:
        return self.kind is Kind.SEAL


class SectionDraft(NamedTuple):
    """A section that is to be written."""

    partition: TopicIdPartition
    parts: Sequence[Buffer]
    """The batches, one after the other."""
    batches: Sequence[BatchFields]
    state_number: int
    state: PartitionState | None


# --- writing --------------------------------------------------------------------------------------------------------


def batch_fields(
    header: BatchHeader, marker: int = Marker.NONE, coordinator_epoch: int = NO_COORDINATOR
) -> BatchFields:
    """What a footer says of a batch with this header. ``marker``: of a control batch that ends a transaction."""
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
    """The bytes of an object with records, and what a reader finds in its footer. ``drafts`` has at least one section."""
    assert drafts
    sections: list[Section] = []
    parts: list[Buffer] = []
    position = 0
    for draft in drafts:
        crc = size = 0
        for part in draft.parts:
            crc = crc32c(part, crc)
            size += len(part)
        assert size == sum(fields.size_bytes for fields in draft.batches), draft.partition
        assert (draft.state is not None) == (draft.state_number == number), draft.state_number
        sections.append(
            Section(
                draft.partition,
                FilePosition(position),
                size,
                crc,
                tuple(draft.batches),
                draft.state_number,
                draft.state,
            )
        )
        parts += draft.parts
        position += size
    footer = WalFooter(
        wal=wal, number=number, nonce=nonce, kind=Kind.RECORDS, created_ms=created_ms, sections=tuple(sections)
    )
    parts.append(_encode_footer(footer, position))
    return b"".join(parts), footer


def encode_seal(wal: WalId, number: int, nonce: bytes, created_ms: TimestampMs, sealer: int) -> bytes:
    """The bytes of a seal."""
    assert sealer >= 0, sealer
    footer = WalFooter(wal=wal, number=number, nonce=nonce, kind=Kind.SEAL, created_ms=created_ms, sealer=sealer)
    return _encode_footer(footer, 0)


def _encode_footer(footer: WalFooter, data_bytes: int) -> bytes:
    assert len(footer.nonce) == NONCE_BYTES, footer.nonce
    sections = footer.sections
    batches = [fields for section in sections for fields in section.batches]
    states = [_encode_state(section.state) for section in sections if section.state is not None]
    parts = [
        _HEAD.pack(
            FOOTER_MAGIC,
            FORMAT_VERSION,
            0,
            HEAD_BYTES,
            footer.kind,
            WINDOW,
            footer.wal.broker_id,
            footer.wal.broker_epoch,
            footer.number,
            footer.nonce,
            data_bytes,
            len(sections),
            len(batches),
            len(states),
            0,
            footer.created_ms,
            footer.sealer,
            0,
        ),
        *(section.partition.topic_id.bytes for section in sections),
    ]
    of_batch = list(zip(*batches, strict=True)) or [()] * len(_BATCH_COLUMNS)
    columns: list[tuple[str, Sequence[int]]] = [
        ("i", [section.partition.partition for section in sections]),
        ("q", [section.position for section in sections]),
        ("i", [section.size_bytes for section in sections]),
        ("I", [section.crc for section in sections]),
        ("i", [len(section.batches) for section in sections]),
        ("q", [section.state_number for section in sections]),
        *((kind, values) for (kind, _), values in zip(_BATCH_COLUMNS, of_batch, strict=True)),
        ("I", [len(state) for state in states]),
    ]
    for kind, values in columns:
        packed = Struct(f"<{len(values)}{kind}").pack(*values)
        parts += (packed, bytes(-len(packed) % 8))
    parts += states
    body = b"".join(parts)
    assert len(body) <= WAL_FOOTER_BYTES_MAX, len(body)
    return body + _TRAILER.pack(len(body), _footer_crc(body), TRAILER_MAGIC)


_BATCH_COLUMNS: Final = (
    ("q", 8), ("i", 4), ("i", 4), ("h", 2), ("i", 4), ("q", 8), ("q", 8), ("h", 2), ("i", 4), ("i", 4), ("b", 1), ("i", 4),
)  # fmt: skip
"""Type and width of each field of ``BatchFields``."""

assert len(_BATCH_COLUMNS) == len(BatchFields._fields)


def _encode_state(state: PartitionState) -> bytes:
    epochs, older = state.leader_epochs, state.older
    parts = [_STATE_HEAD.pack(state.offset, len(epochs), len(state.snapshot), len(older), 0)]
    columns: tuple[tuple[str, Sequence[int]], ...] = (
        ("i", [entry.epoch for entry in epochs]),
        ("q", [entry.start_offset for entry in epochs]),
        ("q", [batch.producer_id for batch in older]),
        ("i", [batch.base_sequence for batch in older]),
        ("i", [batch.last_sequence for batch in older]),
        ("q", [batch.base_offset for batch in older]),
        ("q", [batch.last_offset for batch in older]),
        ("q", [batch.timestamp for batch in older]),
    )
    for kind, values in columns:
        packed = Struct(f"<{len(values)}{kind}").pack(*values)
        parts += (packed, bytes(-len(packed) % 8))
    parts += (state.snapshot, bytes(-len(state.snapshot) % 8))
    return b"".join(parts)


def _footer_crc(body: bytes | memoryview) -> int:
    return crc32c(len(body).to_bytes(4, "little"), crc32c(body))


# --- reading --------------------------------------------------------------------------------------------------------


def footer_tail_bytes(tail: bytes | memoryview, object_bytes: int, name: str) -> int:
    """Size of footer and trailer at the end of the object, as the trailer in ``tail`` says.

    If it is more than ``len(tail)``, the caller must read that many bytes. Raises: CorruptionError.
    """
    if len(tail) < TRAILER_BYTES or not TRAILER_BYTES + HEAD_BYTES <= object_bytes <= WAL_OBJECT_BYTES_MAX:
        raise CorruptionError(f"{name}: an object of a write-ahead log cannot have {object_bytes} bytes")
    body_bytes, _, magic = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)
    if magic != TRAILER_MAGIC:
        raise CorruptionError(f"{name}: no trailer of a write-ahead log at position {object_bytes - TRAILER_BYTES}")
    if body_bytes > WAL_FOOTER_BYTES_MAX or not HEAD_BYTES <= body_bytes <= object_bytes - TRAILER_BYTES:
        raise CorruptionError(
            f"{name}: trailer at position {object_bytes - TRAILER_BYTES} claims {body_bytes} footer bytes"
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
        raise CorruptionError(f"{name}: footer of {wanted} bytes, only {len(tail)} were read")
    start = object_bytes - wanted
    view = memoryview(tail)[len(tail) - wanted :]
    body = view[: wanted - TRAILER_BYTES]
    _, crc, _ = _TRAILER.unpack_from(view, len(body))
    if _footer_crc(body) != crc:
        raise CorruptionError(f"{name}: wrong CRC of the footer at position {start}")
    footer = _FooterReader(body, start, name).footer()
    if (footer.wal, footer.number) != (wal, number):
        raise CorruptionError(f"{name}: it says inside that it is object {footer.number} of log {footer.wal}")
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
        raise CorruptionError(f"{name}: wrong CRC or length of the section at position {section.position}")
    position = 0
    for fields in section.batches:
        where = section.position + position
        try:
            header = check_stored_batch(data, position)
        except CorruptionError as error:
            raise CorruptionError(f"{name}: section at position {section.position}: {error}") from None
        if batch_fields(header, fields.marker, fields.coordinator_epoch) != fields:
            raise CorruptionError(f"{name}: the batch at position {where} is not the one that the footer names")
        position += fields.size_bytes


class _FooterReader:
    """Reads a footer body. Each column is checked against the remaining bytes, before anything is allocated for it."""

    def __init__(self, body: memoryview, start: int, name: str) -> None:
        self._body, self._start, self._name = body, start, name
        self._position = 0

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise CorruptionError(f"{self._name}: footer at position {self._start}: {what}")

    def _bytes(self, length: int, what: str) -> memoryview:
        end = self._position + length
        padded_end = end + (-length % 8)
        self._require(padded_end <= len(self._body), f"it ends within {what}")
        self._require(not any(self._body[end:padded_end]), f"padding at its byte {end} is not zero")
        found = self._body[self._position : end]
        self._position = padded_end
        return found

    def _column(self, kind: str, width_bytes: int, count: int) -> tuple[int, ...]:
        values: tuple[int, ...] = unpack_from(f"<{count}{kind}", self._bytes(width_bytes * count, "a column"))
        return values

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
        require(kind in (Kind.RECORDS, Kind.SEAL), f"unknown kind {kind}")
        require(window == WINDOW, f"window of {window} where version {version} has {WINDOW}")
        require(
            broker_id >= 0 and broker_epoch >= 0 and number >= 0, f"log {broker_id}/{broker_epoch}, number {number}"
        )
        require(data_bytes == self._start, f"sections of {data_bytes} bytes before a footer at {self._start}")
        if kind == Kind.SEAL:
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
            kind=Kind(kind),
            created_ms=created_ms,
            sealer=sealer,
            sections=sections,
        )

    def _sections(
        self, number: int, data_bytes: int, section_count: int, batch_count: int, state_count: int
    ) -> tuple[Section, ...]:
        require = self._require
        topic_ids = self._bytes(16 * section_count, "the topic ids")
        indexes = self._column("i", 4, section_count)
        positions = self._column("q", 8, section_count)
        sizes = self._column("i", 4, section_count)
        crcs = self._column("I", 4, section_count)
        counts = self._column("i", 4, section_count)
        state_numbers = self._column("q", 8, section_count)
        fields = [self._column(kind, width, batch_count) for kind, width in _BATCH_COLUMNS]
        state_sizes = self._column("I", 4, state_count)
        require(
            sum(counts) == batch_count and min(counts, default=1) > 0,
            f"sections of {counts} batches, {batch_count} claimed",
        )
        require(sum(each == number for each in state_numbers) == state_count, f"{state_count} states")
        batches = list(map(BatchFields._make, zip(*fields, strict=True)))
        sections: list[Section] = []
        at = first = states = 0
        for index, (partition, position, size, crc, count, state_number) in enumerate(
            zip(indexes, positions, sizes, crcs, counts, state_numbers, strict=True)
        ):
            where = f"section {index}"
            require(position == at, f"{where} at {position}, expected at {at}")
            require(partition >= 0, f"{where} of partition {partition}")
            require(
                max(0, number - STATE_NUMBERS_MAX) <= state_number <= number,
                f"{where} has its state in object {state_number}",
            )
            own = batches[first : first + count]
            self._check_batches(own, size, where)
            state = None
            if state_number == number:
                state = self._state(state_sizes[states], own, where)
                states += 1
            topic_id = TopicId(uuid.UUID(bytes=bytes(topic_ids[16 * index : 16 * index + 16])))
            key = TopicIdPartition(topic_id, PartitionIndex(partition))
            sections.append(Section(key, FilePosition(position), size, crc, tuple(own), state_number, state))
            at += size
            first += count
        require(at == data_bytes, f"sections of {at} bytes, {data_bytes} claimed")
        require(len({section.partition for section in sections}) == section_count, "a partition has two sections")
        return tuple(sections)

    def _check_batches(self, batches: Sequence[BatchFields], size_bytes: int, where: str) -> None:
        require = self._require
        for fields in batches:
            require(
                fields.base_offset >= 0 and fields.last_offset_delta >= 0,
                f"{where} has a batch at {fields.base_offset}",
            )
            require(fields.size_bytes >= HEADER_BYTES, f"{where} has a batch of {fields.size_bytes} bytes")
            require(fields.leader_epoch >= 0, f"{where} has leader epoch {fields.leader_epoch}")
            require(
                0 <= fields.record_count <= fields.last_offset_delta + 1, f"{where} has {fields.record_count} records"
            )
            require(Marker.NONE <= fields.marker <= Marker.COMMIT, f"{where} has the unknown marker {fields.marker}")
        for before, after in pairwise(batches):
            require(
                after.base_offset == before.end_offset,
                f"{where} goes on at {after.base_offset} after {before.end_offset}",
            )
            require(after.leader_epoch == before.leader_epoch, f"{where} has two leader epochs")
        require(sum(fields.size_bytes for fields in batches) == size_bytes, f"{where} of {size_bytes} bytes")

    def _state(self, size_bytes: int, batches: Sequence[BatchFields], where: str) -> PartitionState:
        require = self._require
        begin = self._position
        require(begin + size_bytes <= len(self._body), f"it ends within the state of {where}")
        head = self._bytes(_STATE_HEAD.size, f"the state of {where}")
        offset, epoch_count, snapshot_bytes, older_count, reserved = _STATE_HEAD.unpack(head)
        require(reserved == 0, f"the state of {where} has unknown flags")
        epochs = self._column("i", 4, epoch_count)
        starts = self._column("q", 8, epoch_count)
        older = [
            self._column(kind, width, older_count)
            for kind, width in (("q", 8), ("i", 4), ("i", 4), ("q", 8), ("q", 8), ("q", 8))
        ]
        snapshot = bytes(self._bytes(snapshot_bytes, f"the snapshot of {where}"))
        require(self._position - begin == size_bytes, f"the state of {where} has not its {size_bytes} bytes")
        require(
            any(offset == fields.base_offset for fields in batches), f"the state of {where} is as of offset {offset}"
        )
        lineage = tuple(EpochStart(LeaderEpoch(epoch), Offset(at)) for epoch, at in zip(epochs, starts, strict=True))
        for entry in lineage:
            require(
                entry.epoch >= 0 and 0 <= entry.start_offset <= offset,
                f"the state of {where} has epoch {entry.epoch} at {entry.start_offset}",
            )
        for before, after in pairwise(lineage):
            require(
                before.epoch < after.epoch and before.start_offset < after.start_offset,
                f"the state of {where} has epoch {after.epoch} after {before.epoch}",
            )
        try:
            parse_snapshot(snapshot)
        except CorruptionError as error:
            require(False, f"the state of {where}: {error}")
        return PartitionState(offset, lineage, snapshot, tuple(map(OlderBatch._make, zip(*older, strict=True))))
