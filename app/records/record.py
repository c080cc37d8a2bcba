"""Records inside a batch: decoded only where meaning needs it, never on the way through.

length        varint   bytes after this field
attributes    int8     unused
timestamp     varlong  delta to the batch's base timestamp
offset        varint   delta to the batch's base offset
key           varint length (-1 = null) and bytes
value         varint length (-1 = null) and bytes
headers       varint count; each: varint length and UTF-8 key, varint length (-1 = null) and bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from app.core.errors import CorruptionError, LimitExceeded, clause
from app.core.limits import DECOMPRESSED_BATCH_BYTES_MAX, RECORD_HEADERS_MAX
from app.core.units import Offset, TimestampMs
from app.records.batch import HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, parse_header
from app.records.compression import decompress
from app.records.varint import decode_varint, decode_varlong

RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, two null lengths and a header count of a byte each."""

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record with its place in the partition."""

    offset: Offset
    timestamp: TimestampMs
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class NewRecord(NamedTuple):
    """One record without an offset yet, as input of ``build_batch``. A plain tuple of four will do as well."""

    timestamp: TimestampMs
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def raw_records(
    batch: memoryview | bytes | bytearray, header: BatchHeader, max_bytes: int = DECOMPRESSED_BATCH_BYTES_MAX
) -> bytes:
    """The records section of the batch that ``batch`` starts with, decompressed.

    Raises: CorruptionError; LimitExceeded if it unfolds to more than ``max_bytes``.
    """
    body = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    codec = header.codec
    return decompress(codec, body, max_bytes) if codec else bytes(body)


def iter_records(
    batch: memoryview | bytes | bytearray, *, max_bytes: int = DECOMPRESSED_BATCH_BYTES_MAX
) -> Iterator[Record]:
    """The records of the one whole batch that ``batch`` starts with, in order of offset.

    The header must have been checked (``check_batches`` or ``check_stored_batch``). Of a LogAppendTime batch each record
    bears the batch's max timestamp. Control records come out like others: see ``BatchHeader.is_control``.

    Raises: CorruptionError where the interior is not sound: damaged compression, more than ``max_bytes`` of raw bytes, a
    record that leaves its bounds, offsets that do not rise or pass the batch's last, bytes left over.
    """
    header = parse_header(batch)
    try:
        data = raw_records(batch, header, max_bytes)
    except LimitExceeded as error:
        raise _bad(header, str(error)) from None
    yield from iter_decompressed(data, header)


def iter_decompressed(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """As ``iter_records``, for a batch whose ``raw_records`` are ``data``. Raises: CorruptionError."""
    try:
        yield from _iter_raw(data, header)
    except IndexError:
        raise _bad(header, "a record ends early") from None
    except UnicodeDecodeError:
        raise _bad(header, "a header's key is not UTF-8") from None
    except ValueError as error:
        raise _bad(header, str(error)) from None


def _bad(header: BatchHeader, what: str) -> CorruptionError:
    return CorruptionError(f"The batch at offset {header.base_offset} is not sound inside: {clause(what)}.")


def _iter_raw(data: bytes, header: BatchHeader) -> Iterator[Record]:
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    make_record = Record._make
    for offset_delta, timestamp_delta, key_at, key_end, value_at, value_end, end in walk_records(
        data, 0, len(data), header.record_count, header.last_offset_delta
    ):
        yield make_record(
            (
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if append_time is None else append_time,
                data[key_at:key_end] if key_end >= 0 else None,
                data[value_at:value_end] if value_end >= 0 else None,
                # No headers are one byte.
                () if end - max(value_at, value_end) == 1 else _read_headers(data, max(value_at, value_end)),
            )
        )


def walk_records(
    data: bytes, position: int, data_end: int, count: int, last_offset_delta: int
) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """Where each of ``count`` records of a records section is, which is ``data`` from ``position`` to ``data_end``, decompressed.

    Yields: offset delta, timestamp delta, start and end of the key, start and end of the value, end of the record. The end of a
    null key or value is -1. Headers follow the value. Raises: ValueError or IndexError if a record is corrupt, or if bytes
    follow the last one. A header's key is not decoded.
    """
    # The one decoder of records in Python. Numbers are read in line where they fit in one or two bytes, which is nearly always.
    if count < 0 or count * RECORD_BYTES_MIN > data_end - position:
        raise ValueError(f"{count} records do not fit in {data_end - position} bytes")
    previous_delta = -1
    for _ in range(count):
        byte = data[position]
        if byte < 0x80:
            size = (byte >> 1) ^ -(byte & 1)
            position += 1
        elif (second := data[position + 1]) < 0x80:
            size = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1)
            position += 2
        else:
            size, position = decode_varint(data, position)
        end = position + size
        if size < RECORD_BYTES_MIN - 1 or end > data_end:
            raise ValueError(f"a record claims {size} bytes where {data_end - position} are left")
        position += 1  # attributes
        byte = data[position]
        if byte < 0x80:
            timestamp_delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            timestamp_delta, position = decode_varlong(data, position)
        byte = data[position]
        if byte < 0x80:
            offset_delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        elif (second := data[position + 1]) < 0x80:
            offset_delta = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1)
            position += 2
        else:
            offset_delta, position = decode_varint(data, position)
        if not previous_delta < offset_delta <= last_offset_delta:
            raise ValueError(
                f"offset delta {offset_delta} after {previous_delta} in a batch whose last is {last_offset_delta}"
            )
        previous_delta = offset_delta
        byte = data[position]
        if byte < 0x80:
            size = (byte >> 1) ^ -(byte & 1)
            position += 1
        elif (second := data[position + 1]) < 0x80:
            size = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1)
            position += 2
        else:
            size, position = decode_varint(data, position)
        key_at, key_end = position, -1
        if size >= 0:
            key_end = position = position + size
        if size < -1 or position > end:
            raise ValueError(f"a key of {size} bytes leaves its record")
        byte = data[position]
        if byte < 0x80:
            size = (byte >> 1) ^ -(byte & 1)
            position += 1
        elif (second := data[position + 1]) < 0x80:
            size = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1)
            position += 2
        else:
            size, position = decode_varint(data, position)
        value_at, value_end = position, -1
        if size >= 0:
            value_end = position = position + size
        if size < -1 or position > end:
            raise ValueError(f"a value of {size} bytes leaves its record")
        if data[position] == 0 and position < end:
            position += 1
        else:
            position = _skip_headers(data, position, end)
        if position != end:
            raise ValueError("a record is longer or shorter than its fields")
        yield offset_delta, timestamp_delta, key_at, key_end, value_at, value_end, end
    if position != data_end:
        raise ValueError(f"{data_end - position} bytes follow the last record")


def _skip_headers(data: bytes, position: int, end: int) -> int:
    count, position = decode_varint(data, position)
    if count < 0 or count * 2 > end - position:
        raise ValueError(f"{count} headers in {end - position} bytes")
    for _ in range(count):
        size, position = decode_varint(data, position)
        if size < 0:
            raise ValueError("a header without a key")
        size, position = decode_varint(data, position + size)
        if size < -1:
            raise ValueError(f"a header's value of {size} bytes")
        position += max(size, 0)
        if position > end:
            raise ValueError("a header leaves its record")
    return position


def _read_headers(data: bytes, position: int) -> Headers:
    """Headers that ``_skip_headers`` has found sound. Raises: ValueError if they are more than Firn reads."""
    count, position = decode_varint(data, position)
    if count > RECORD_HEADERS_MAX:
        raise ValueError(f"{count} headers, more than {RECORD_HEADERS_MAX}")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, position = decode_varint(data, position)
        key_end = position + size
        size, value_at = decode_varint(data, key_end)
        headers.append((str(data[position:key_end], "utf-8"), data[value_at : value_at + size] if size >= 0 else None))
        position = value_at + max(size, 0)
    return tuple(headers)
