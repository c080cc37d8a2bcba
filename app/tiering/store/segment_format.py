"""The segment object, ``.seg``: chunks of whole record batches, then a footer that describes them.

    ┌─────────┬─────────┬─ … ─┬─────────┬────────┬─────────┐
    │ chunk 0 │ chunk 1 │     │ chunk n │ footer │ trailer │
    └─────────┴─────────┴─ … ─┴─────────┴────────┴─────────┘
    0         positions of the chunk table       size - 16 - footer bytes

A chunk is a run of whole batches with assigned offsets and epochs, stored verbatim or as one zstd frame. The footer's chunk
table is at the same time the offset index, the time index, the unit of caching and the Spark split. It has little-endian
columns at multiples of eight bytes, so a vectorising reader can map it instead of parsing it. The 16-byte trailer (footer
bytes, CRC-32C, magic) is at the object's end. One ranged GET of the tail reads footer and trailer.

Every byte is covered: chunk positions are contiguous from 0 to the footer, each chunk's stored bytes have a CRC-32C, and the
footer's CRC covers the footer and its length. A flipped, missing or added byte anywhere is a ``CorruptionError``.

This module is pure: it plans, encodes and checks bytes. ``docs/formats.md`` is the byte-level reference.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from struct import Struct, unpack_from
from typing import Final, NamedTuple

from crc32c import crc32c

from app.configs import TierCompression
from app.core.errors import CorruptionError, clause
from app.core.limits import CHUNK_BYTES_MAX, KIB, SEGMENT_FOOTER_BYTES_MAX
from app.core.units import (
    FilePosition,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    SegmentId,
    TimestampMs,
    TopicId,
)
from app.records.batch import CRC_START, HEADER, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC_V2, BatchHeader

FORMAT_VERSION: Final = 1
FOOTER_MAGIC: Final = b"FIRNSEGF"
TRAILER_MAGIC: Final = b"FIRNSEGT"
TAIL_BYTES: Final = 64 * KIB
"""Bytes of the first request for an unknown object. Almost every footer is shorter."""

_HEAD: Final = Struct("<8sHHI16s16siIqqqqqqqqIIIIq")
"""Magic, version, flags, head bytes, topic id, segment id, partition, chunk count, base offset, end offset, min timestamp,
max timestamp, record count, batch count, raw bytes, stored bytes, epoch count, aborted count, producer snapshot bytes,
reserved, created ms."""
_TRAILER: Final = Struct("<II8s")
TRAILER_BYTES: Final = _TRAILER.size
HEAD_BYTES: Final = _HEAD.size

assert TRAILER_BYTES == 16
assert HEAD_BYTES == 144

_RECORDS_PER_BATCH_MAX: Final = 2**31 - 1


class ChunkCodec(IntEnum):
    """How a chunk's bytes are stored. The numbers are those of Kafka's codecs."""

    VERBATIM = 0
    ZSTD = 4


class ChunkEntry(NamedTuple):
    """One row of the chunk table."""

    position: FilePosition
    """Position of the first stored byte in the object."""
    stored_bytes: int
    raw_bytes: int
    """Size of the batches, decompressed."""
    base_offset: Offset
    """Base offset of the first batch. The chunk covers the offsets up to the next chunk, or to the segment's end."""
    record_count: int
    batch_count: int
    min_timestamp: TimestampMs
    """Least base timestamp of the batches. A base timestamp is that of a batch's first record. It is not the least timestamp if
    records are not in time order."""
    max_timestamp: TimestampMs
    crc: int
    """CRC-32C of the stored bytes."""
    codec: ChunkCodec


class EpochStart(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: LeaderEpoch
    start_offset: Offset


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted (Kafka's ``AbortedTxn``)."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    """Offset of the abort marker. It may be past the segment's end."""
    last_stable_offset: Offset
    """The last stable offset when the marker was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """All facts about a segment except its records."""

    topic_id: TopicId
    segment_id: SegmentId
    partition: PartitionIndex
    base_offset: Offset
    end_offset: Offset
    min_timestamp: TimestampMs
    """Least ``min_timestamp`` of the chunks; see there."""
    max_timestamp: TimestampMs
    record_count: int
    batch_count: int
    raw_bytes: int
    stored_bytes: int
    """Stored bytes of all chunks, and so the footer's position."""
    created_ms: TimestampMs
    leader_epochs: tuple[EpochStart, ...]
    """Every epoch of the log that began below ``end_offset``, oldest first."""
    aborted: tuple[AbortedTransaction, ...]
    """Every aborted transaction with a record or its marker in [base, end), by first offset."""
    producer_snapshot: bytes
    """Producer state at ``end_offset``, in the format of Kafka's ``.snapshot`` files."""
    chunks: tuple[ChunkEntry, ...]

    def chunk_index_of(self, offset: Offset) -> int:
        """Index of the chunk that covers ``offset``, which must be in [base, end). The first one also covers the offsets before it
        that compaction has left out."""
        assert self.base_offset <= offset < self.end_offset, (self.base_offset, offset, self.end_offset)
        return max(bisect_right(self.chunks, offset, key=_base_offset_of) - 1, 0)

    def chunk_end_offset(self, index: int) -> Offset:
        """One past the last offset that chunk ``index`` covers."""
        following = index + 1
        return self.chunks[following].base_offset if following < len(self.chunks) else self.end_offset


def _base_offset_of(chunk: ChunkEntry) -> Offset:
    return chunk.base_offset


# --- writing --------------------------------------------------------------------------------------------------------


class RawChunk(NamedTuple):
    """A run of verified batches that becomes a chunk."""

    raw_bytes: int
    base_offset: Offset
    end_offset: Offset
    record_count: int
    batch_count: int
    min_timestamp: TimestampMs
    max_timestamp: TimestampMs
    compressed_bytes: int
    """Bytes of the batches whose records are already compressed."""


def scan_chunk(
    view: memoryview, *, chunk_bytes: int, expected_offset: Offset, end_offset: Offset, name: str, position: int
) -> RawChunk | None:
    """Check the batches at the start of ``view``, and select the batches of one chunk.

    A chunk takes batches while they fit into ``chunk_bytes``, and at least one. Every selected batch is checked: length, magic,
    CRC-32C, and offsets that rise without overlap from ``expected_offset`` on and stay below ``end_offset``.

    ``view`` has bytes of the file ``name`` from ``position`` on. Returns: None if ``view`` does not contain one whole batch;
    then the caller must read more. A chunk may end before ``view`` because the next batch is incomplete.

    Raises: CorruptionError naming the file and the position of the bad batch.
    """
    unpack = HEADER.unpack_from
    length = len(view)
    at = 0
    count = records = compressed = 0
    base = offset = expected_offset
    oldest, newest = 1 << 63, -1
    while at + HEADER_BYTES <= length:
        header = BatchHeader._make(unpack(view, at))
        size = header.batch_length + LENGTH_PREFIX_BYTES
        if header.magic != MAGIC_V2 or not HEADER_BYTES <= size <= CHUNK_BYTES_MAX:
            raise CorruptionError(f"{name}: no record batch at position {position + at}.")
        if count and at + size > chunk_bytes:
            break
        if at + size > length:
            break
        if crc32c(view[at + CRC_START : at + size]) != header.crc:
            raise CorruptionError(f"{name}: wrong CRC of the batch at position {position + at}.")
        batch_end = header.base_offset + header.last_offset_delta + 1
        if header.base_offset < offset or batch_end <= header.base_offset or batch_end > end_offset:
            raise CorruptionError(
                f"{name}: batch at position {position + at} has offsets [{header.base_offset}, {batch_end}), "
                f"expected within [{offset}, {end_offset})."
            )
        if header.record_count < 0:
            raise CorruptionError(f"{name}: batch at position {position + at} counts {header.record_count} records.")
        if not count:
            base = header.base_offset
        offset = Offset(batch_end)
        records += header.record_count
        count += 1
        oldest = min(oldest, header.base_timestamp)
        newest = max(newest, header.max_timestamp)
        if header.attributes & 0x07:
            compressed += size
        at += size
        if at >= chunk_bytes:
            break
    if not count:
        return None
    return RawChunk(at, base, offset, records, count, TimestampMs(oldest), TimestampMs(newest), compressed)


def store_compressed(chunk: RawChunk, compression: TierCompression) -> bool:
    """Whether to try zstd for a chunk. ``auto`` does not try it if most of the chunk is already compressed."""
    match compression:
        case TierCompression.NONE:
            return False
        case TierCompression.ZSTD:
            return True
        case TierCompression.AUTO:
            return chunk.compressed_bytes * 2 < chunk.raw_bytes


def encode_footer(footer: SegmentFooter) -> bytes:
    """The footer and its trailer, ready to follow the last chunk."""
    chunks = footer.chunks
    count = len(chunks)
    parts = [
        _HEAD.pack(
            FOOTER_MAGIC,
            FORMAT_VERSION,
            0,
            HEAD_BYTES,
            footer.topic_id.bytes,
            footer.segment_id.bytes,
            footer.partition,
            count,
            footer.base_offset,
            footer.end_offset,
            footer.min_timestamp,
            footer.max_timestamp,
            footer.record_count,
            footer.batch_count,
            footer.raw_bytes,
            footer.stored_bytes,
            len(footer.leader_epochs),
            len(footer.aborted),
            len(footer.producer_snapshot),
            0,
            footer.created_ms,
        )
    ]
    columns: tuple[tuple[str, Sequence[int]], ...] = (
        ("q", [chunk.base_offset for chunk in chunks]),
        ("q", [chunk.position for chunk in chunks]),
        ("q", [chunk.min_timestamp for chunk in chunks]),
        ("q", [chunk.max_timestamp for chunk in chunks]),
        ("i", [chunk.stored_bytes for chunk in chunks]),
        ("i", [chunk.raw_bytes for chunk in chunks]),
        ("i", [chunk.record_count for chunk in chunks]),
        ("i", [chunk.batch_count for chunk in chunks]),
        ("I", [chunk.crc for chunk in chunks]),
        ("B", [chunk.codec for chunk in chunks]),
        ("i", [entry.epoch for entry in footer.leader_epochs]),
        ("q", [entry.start_offset for entry in footer.leader_epochs]),
        ("q", [entry.producer_id for entry in footer.aborted]),
        ("q", [entry.first_offset for entry in footer.aborted]),
        ("q", [entry.last_offset for entry in footer.aborted]),
        ("q", [entry.last_stable_offset for entry in footer.aborted]),
    )
    for kind, values in columns:
        packed = Struct(f"<{len(values)}{kind}").pack(*values)
        parts += (packed, bytes(-len(packed) % 8))
    parts += (footer.producer_snapshot, bytes(-len(footer.producer_snapshot) % 8))
    body = b"".join(parts)
    assert len(body) <= SEGMENT_FOOTER_BYTES_MAX, len(body)
    return body + _TRAILER.pack(len(body), _footer_crc(body), TRAILER_MAGIC)


def _footer_crc(body: bytes | memoryview) -> int:
    return crc32c(len(body).to_bytes(4, "little"), crc32c(body))


# --- reading --------------------------------------------------------------------------------------------------------


def footer_tail_bytes(tail: bytes | memoryview, object_bytes: int, name: str) -> int:
    """Size of footer and trailer at the end of the object, as the trailer in ``tail`` says.

    If it is more than ``len(tail)``, the caller must read that many bytes. Raises: CorruptionError.
    """
    if len(tail) < TRAILER_BYTES:
        raise CorruptionError(f"{name}: {object_bytes} bytes are too few for a segment object.")
    body_bytes, _, magic = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)
    if magic != TRAILER_MAGIC:
        raise CorruptionError(f"{name}: no segment trailer at position {object_bytes - TRAILER_BYTES}.")
    if body_bytes > SEGMENT_FOOTER_BYTES_MAX or not HEAD_BYTES <= body_bytes <= object_bytes - TRAILER_BYTES:
        raise CorruptionError(
            f"{name}: trailer at position {object_bytes - TRAILER_BYTES} claims {body_bytes} footer bytes."
        )
    return int(body_bytes) + TRAILER_BYTES


class FutureFormat(CorruptionError):
    """A footer of a newer format version."""


class _Columns:
    """Reads padded columns of a footer body. Each column is checked against the remaining bytes."""

    def __init__(self, body: memoryview, position: int, name: str) -> None:
        self.body, self.position, self.name = body, position, name

    def take(self, kind: str, width_bytes: int, count: int) -> tuple[int, ...]:
        values: tuple[int, ...] = unpack_from(f"<{count}{kind}", self.take_bytes(width_bytes * count))
        return values

    def take_bytes(self, length: int) -> memoryview:
        end = self.position + length
        padded_end = end + (-length % 8)
        if padded_end > len(self.body):
            raise CorruptionError(f"{self.name}: footer ends within a column that starts at its byte {self.position}.")
        if any(self.body[end:padded_end]):
            raise CorruptionError(f"{self.name}: padding at byte {end} of the footer is not zero.")
        found = self.body[self.position : end]
        self.position = padded_end
        return found


def decode_footer(tail: bytes | memoryview, object_bytes: int, name: str) -> SegmentFooter:
    """Read and check the footer of object ``name`` from its last bytes.

    Args:
        tail: the object's last bytes, at least ``footer_tail_bytes``.
        object_bytes: size of the whole object.

    Raises: CorruptionError that names the object, the fault and its position.
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
    return _decode_body(body, start, name)


def _decode_body(body: memoryview, start: int, name: str) -> SegmentFooter:
    (
        magic, version, flags, head_bytes, topic_id, segment_id, partition, chunk_count, base_offset, end_offset,
        min_timestamp, max_timestamp, record_count, batch_count, raw_bytes, stored_bytes, epoch_count, aborted_count,
        snapshot_bytes, reserved, created_ms,
    ) = _HEAD.unpack_from(body)  # fmt: skip

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise CorruptionError(f"{name}: footer at position {start}: {clause(what)}.")

    require(magic == FOOTER_MAGIC, "wrong magic")
    if version > FORMAT_VERSION:
        raise FutureFormat(
            f"{name}: footer at position {start}: format version {version} is from the future: this software knows up to"
            f" {FORMAT_VERSION}; upgrade it."
        )
    require(version == FORMAT_VERSION, f"format version {version}")
    require(flags == 0 and reserved == 0, f"unknown flags {flags:#x}, {reserved:#x}")
    require(head_bytes == HEAD_BYTES, f"head of {head_bytes} bytes")
    require(partition >= 0, f"partition {partition}")
    require(0 <= base_offset < end_offset, f"offsets [{base_offset}, {end_offset})")
    require(stored_bytes == start, f"chunks of {stored_bytes} bytes before a footer at {start}")
    require(1 <= chunk_count <= batch_count, f"{chunk_count} chunks of {batch_count} batches")

    columns = _Columns(body, HEAD_BYTES, name)
    base_offsets = columns.take("q", 8, chunk_count)
    positions = columns.take("q", 8, chunk_count)
    min_timestamps = columns.take("q", 8, chunk_count)
    max_timestamps = columns.take("q", 8, chunk_count)
    stored_sizes = columns.take("i", 4, chunk_count)
    raw_sizes = columns.take("i", 4, chunk_count)
    record_counts = columns.take("i", 4, chunk_count)
    batch_counts = columns.take("i", 4, chunk_count)
    crcs = columns.take("I", 4, chunk_count)
    codecs = columns.take("B", 1, chunk_count)
    epochs = columns.take("i", 4, epoch_count)
    epoch_starts = columns.take("q", 8, epoch_count)
    producer_ids = columns.take("q", 8, aborted_count)
    first_offsets = columns.take("q", 8, aborted_count)
    last_offsets = columns.take("q", 8, aborted_count)
    last_stable_offsets = columns.take("q", 8, aborted_count)
    snapshot = bytes(columns.take_bytes(snapshot_bytes))
    require(columns.position == len(body), f"{len(body) - columns.position} bytes too many")

    chunks: list[ChunkEntry] = []
    position = 0
    previous = base_offset - 1
    for row in zip(
        positions, stored_sizes, raw_sizes, base_offsets, record_counts, batch_counts, min_timestamps, max_timestamps,
        crcs, codecs, strict=True,
    ):  # fmt: skip
        at, stored, raw, base, records, batches, _, _, _, codec = row
        where = f"chunk {len(chunks)}"
        require(at == position, f"{where} at {at}, expected at {position}")
        require(0 < stored <= CHUNK_BYTES_MAX, f"{where} of {stored} stored bytes")
        require(0 < raw <= CHUNK_BYTES_MAX, f"{where} of {raw} raw bytes")
        require(previous < base < end_offset, f"{where} starts at offset {base}")
        require(records >= 0, f"{where} of {records} records")
        require(0 < batches * HEADER_BYTES <= raw, f"{where} of {batches} batches in {raw} bytes")
        require(codec in (ChunkCodec.VERBATIM, ChunkCodec.ZSTD), f"{where} has the unknown codec {codec}")
        require(codec != ChunkCodec.VERBATIM or raw == stored, f"{where} is verbatim, yet {stored} bytes became {raw}")
        chunks.append(ChunkEntry._make((*row[:-1], ChunkCodec(codec))))
        position += stored
        previous = base
    require(position == stored_bytes, f"chunks of {position} bytes, {stored_bytes} claimed")
    require(sum(raw_sizes) == raw_bytes, f"{sum(raw_sizes)} raw bytes, {raw_bytes} claimed")
    require(sum(record_counts) == record_count, f"{sum(record_counts)} records, {record_count} claimed")
    require(sum(batch_counts) == batch_count, f"{sum(batch_counts)} batches, {batch_count} claimed")
    require(min(min_timestamps) == min_timestamp, f"least timestamp {min(min_timestamps)}, {min_timestamp} claimed")
    require(max(max_timestamps) == max_timestamp, f"greatest timestamp {max(max_timestamps)}, {max_timestamp} claimed")
    lineage = tuple(EpochStart(LeaderEpoch(epoch), Offset(at)) for epoch, at in zip(epochs, epoch_starts, strict=True))
    for before, after in pairwise(lineage):
        require(before.epoch < after.epoch, f"leader epoch {after.epoch} follows {before.epoch}")
        require(before.start_offset < after.start_offset, f"leader epoch {after.epoch} starts at {after.start_offset}")
    for entry in lineage:
        require(entry.epoch >= 0, f"leader epoch {entry.epoch}")
        require(0 <= entry.start_offset < end_offset, f"leader epoch {entry.epoch} starts at {entry.start_offset}")
    aborted = tuple(
        AbortedTransaction(ProducerId(producer), Offset(first), Offset(last), Offset(stable))
        for producer, first, last, stable in zip(
            producer_ids, first_offsets, last_offsets, last_stable_offsets, strict=True
        )
    )
    for transaction in aborted:
        require(
            0 <= transaction.first_offset <= transaction.last_offset
            and transaction.first_offset < end_offset
            and transaction.last_offset >= base_offset
            and transaction.producer_id >= 0,
            f"aborted transaction {tuple(transaction)} outside the segment",
        )
    return SegmentFooter(
        topic_id=TopicId(uuid.UUID(bytes=topic_id)),
        segment_id=SegmentId(uuid.UUID(bytes=segment_id)),
        partition=PartitionIndex(partition),
        base_offset=Offset(base_offset),
        end_offset=Offset(end_offset),
        min_timestamp=TimestampMs(min_timestamp),
        max_timestamp=TimestampMs(max_timestamp),
        record_count=record_count,
        batch_count=batch_count,
        raw_bytes=raw_bytes,
        stored_bytes=stored_bytes,
        created_ms=TimestampMs(created_ms),
        leader_epochs=lineage,
        aborted=aborted,
        producer_snapshot=snapshot,
        chunks=tuple(chunks),
    )


def check_stored_chunk(stored: bytes | memoryview, chunk: ChunkEntry, name: str) -> None:
    """Compare the stored bytes of a chunk with its entry. Raises: CorruptionError that names object and position."""
    if len(stored) != chunk.stored_bytes:
        raise CorruptionError(
            f"{name}: {len(stored)} bytes of the {chunk.stored_bytes} of the chunk at {chunk.position}."
        )
    if crc32c(stored) != chunk.crc:
        raise CorruptionError(f"{name}: wrong CRC of the chunk at position {chunk.position}.")


def check_raw_chunk(raw: memoryview, chunk: ChunkEntry, end_offset: Offset, name: str) -> None:
    """Compare the batches of a decompressed chunk with its entry: each batch's CRC, offsets, and every count.

    ``verify`` does this in addition to the CRC of the stored bytes, to find a segment that was written wrongly.
    Raises: CorruptionError.
    """
    where = f"{name}: chunk at position {chunk.position}"
    found = scan_chunk(
        raw, chunk_bytes=len(raw), expected_offset=chunk.base_offset, end_offset=end_offset, name=where, position=0
    )
    if found is None or found.raw_bytes != len(raw) or len(raw) != chunk.raw_bytes:
        raise CorruptionError(f"{where}: {chunk.raw_bytes} raw bytes claimed, batches end elsewhere.")
    seen = (found.base_offset, found.record_count, found.batch_count, found.min_timestamp, found.max_timestamp)
    claimed = (chunk.base_offset, chunk.record_count, chunk.batch_count, chunk.min_timestamp, chunk.max_timestamp)
    if seen != claimed:
        raise CorruptionError(f"{where}: batches say {seen}, the footer says {claimed}.")
