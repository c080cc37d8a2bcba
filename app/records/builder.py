"""Batches made from records, and batches made into other batches.

Tests: ``tests/records/test_record.py``, ``tests/client/test_transactional_batches.py``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Final

from crc32c import crc32c

from app.core.errors import CorruptionError, ErrorCode, LimitExceeded, ProtocolError
from app.core.limits import DECOMPRESSED_BATCH_BYTES_MAX, RECORD_HEADERS_MAX
from app.core.units import NO_LEADER_EPOCH, NO_PRODUCER_ID, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from app.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HAS_DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    MAGIC_V2,
    TRANSACTIONAL,
    BatchHeader,
    parse_header,
)
from app.records.compression import Codec, compress
from app.records.record import Headers, Record, raw_records
from app.records.varint import encode_varint

NewRecordLike = tuple[int, bytes | None, bytes | None, Headers]
"""(timestamp, key, value, headers): a ``NewRecord`` or a plain tuple."""

FIRST_OFFSET: Final = Offset(0)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
RECORDS_AT_ONCE: Final = 100
"""Records of one step: about 0.3 ms."""

_NULL: Final = encode_varint(-1)


def build_batch(
    records: Sequence[NewRecordLike],
    *,
    base_offset: Offset = FIRST_OFFSET,
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    codec: Codec | int = Codec.NONE,
    level: int | None = None,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: TimestampMs | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
) -> bytes:
    """One v2 batch of ``records``.

    Without ``offset_deltas`` the records have deltas 0, 1, 2…; with them (compaction keeps gaps) they must rise, and
    ``last_offset_delta`` may be greater than the last. Without any record, ``last_offset_delta`` is the end of the covered
    offsets. With ``log_append_time`` the batch has this time, and readers do not see the timestamps of its records.
    ``level`` is the codec's; None is its default.
    """
    count = len(records)
    deltas = range(count) if offset_deltas is None else offset_deltas
    if last_offset_delta is None:
        if not count:
            raise ValueError("a batch without records must say what offsets it covers")
        last_offset_delta = deltas[-1]
    base_timestamp = records[0][0] if count else -1
    max_timestamp = base_timestamp
    pieces: list[bytes] = []
    for (timestamp, key, value, headers), offset_delta in zip(records, deltas, strict=True):
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        _encode_record(pieces, timestamp - base_timestamp, offset_delta, key, value, headers)
    attributes = int(codec) | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time
    body = b"".join(pieces)
    if codec:
        body = compress(codec, body, level)
    return _assemble(
        body,
        base_offset,
        leader_epoch,
        (
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        ),
    )


def build_batch_in_steps(
    records: Sequence[NewRecordLike],
    *,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    base_sequence: int = -1,
    transactional: bool = False,
) -> Generator[None, None, bytes]:
    """``build_batch`` with the same arguments, for many records: yields after every few."""
    base_timestamp = max_timestamp = records[0][0]
    pieces: list[bytes] = []
    for offset_delta, (timestamp, key, value, headers) in enumerate(records):
        max_timestamp = max(max_timestamp, timestamp)
        _encode_record(pieces, timestamp - base_timestamp, offset_delta, key, value, headers)
        if not offset_delta % RECORDS_AT_ONCE:
            yield
    fields = (
        TRANSACTIONAL if transactional else 0,
        len(records) - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return _assemble(b"".join(pieces), FIRST_OFFSET, NO_LEADER_EPOCH, fields)


def _encode_record(
    pieces: list[bytes],
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> None:
    fields = [b"\x00", encode_varint(timestamp_delta), encode_varint(offset_delta)]
    if key is None:
        fields.append(_NULL)
    else:
        fields.append(encode_varint(len(key)))
        fields.append(key)
    if value is None:
        fields.append(_NULL)
    else:
        fields.append(encode_varint(len(value)))
        fields.append(value)
    if headers:
        _encode_headers(fields, headers)
    else:
        fields.append(b"\x00")
    record = b"".join(fields)
    pieces.append(encode_varint(len(record)))
    pieces.append(record)


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp: int) -> bytes:
    """The records section of a batch that begins at ``base_offset``, uncompressed."""
    pieces: list[bytes] = []
    for offset, timestamp, key, value, headers in records:
        _encode_record(pieces, timestamp - base_timestamp, offset - base_offset, key, value, headers)
    return b"".join(pieces)


def rebuilt_batch(
    header: BatchHeader,
    body: bytes,
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    delete_horizon: bool,
) -> bytes:
    """The batch of ``header`` with other records: ``body``, under the header's codec. Its offsets and producer fields stay.

    ``delete_horizon``: the base timestamp is one (KIP-534).
    """
    attributes = header.attributes & ~HAS_DELETE_HORIZON | (HAS_DELETE_HORIZON if delete_horizon else 0)
    return _assemble(
        body,
        header.base_offset,
        header.leader_epoch,
        (
            attributes,
            header.last_offset_delta,
            base_timestamp,
            max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            record_count,
        ),
    )


def emptied_batch(header: BatchHeader) -> bytes:
    """The batch of ``header`` without its records: it keeps the offsets that it covered and the producer's sequences."""
    bare = header._replace(attributes=header.attributes & ~CODEC_MASK)
    return rebuilt_batch(
        bare, b"", record_count=0, base_timestamp=-1, max_timestamp=header.max_timestamp, delete_horizon=False
    )


def recompress(
    batch: memoryview | bytes | bytearray,
    codec: Codec | int,
    level: int | None = None,
    *,
    max_bytes: int = DECOMPRESSED_BATCH_BYTES_MAX,
) -> bytes:
    """The one checked batch that ``batch`` starts with, its records under another codec, all else as it was.

    Records are not decoded. Meant for a topic's ``compression.type``, hence its errors are a producer's:

    Raises: ProtocolError INVALID_RECORD if the old compression is damaged, MESSAGE_TOO_LARGE if it unfolds to more than
    ``max_bytes``.
    """
    header = parse_header(batch)
    if header.codec == codec and level is None:
        return bytes(memoryview(batch)[: header.size_bytes])
    try:
        raw = raw_records(batch, header, max_bytes)
    except CorruptionError as error:
        raise ProtocolError(str(error), ErrorCode.INVALID_RECORD) from None
    except LimitExceeded as error:
        raise ProtocolError(str(error), ErrorCode.MESSAGE_TOO_LARGE) from None
    body = compress(codec, raw, level)
    fields = header[5:]
    return _assemble(
        body, header.base_offset, header.leader_epoch, ((header.attributes & ~CODEC_MASK) | int(codec), *fields[1:])
    )


def _assemble(body: bytes, base_offset: int, leader_epoch: int, fields: tuple[int, ...]) -> bytes:
    batch_length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body)
    batch = bytearray(HEADER_BYTES)
    HEADER.pack_into(batch, 0, base_offset, batch_length, leader_epoch, MAGIC_V2, 0, *fields)
    # The CRC runs on over the body, so that the body is copied only once, into the result.
    crc = crc32c(body, crc32c(memoryview(batch)[CRC_START:]))
    HEADER.pack_into(batch, 0, base_offset, batch_length, leader_epoch, MAGIC_V2, crc, *fields)
    return bytes(batch) + body


def _encode_headers(fields: list[bytes], headers: Headers) -> None:
    if len(headers) > RECORD_HEADERS_MAX:
        raise LimitExceeded(f"A record has {len(headers)} headers where {RECORD_HEADERS_MAX} are allowed.")
    fields.append(encode_varint(len(headers)))
    for key, value in headers:
        name = key.encode()
        fields.append(encode_varint(len(name)))
        fields.append(name)
        if value is None:
            fields.append(_NULL)
        else:
            fields.append(encode_varint(len(value)))
            fields.append(value)
