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

from app.errors import CorruptionError, LimitExceeded
from app.limits import DECOMPRESSED_BATCH_BYTES_MAX, RECORD_HEADERS_MAX
from app.records.batch import HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, parse_header
from app.records.compression import decompress
from app.records.varint import decode_varint, decode_varlong
from app.units import Offset, TimestampMs

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
    """One record that has no place yet: what ``build_batch`` takes. A plain tuple of four will do as well."""

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
    return CorruptionError(f"the batch at offset {header.base_offset} is not sound inside: {what}")


def _iter_raw(data: bytes, header: BatchHeader) -> Iterator[Record]:
    # Numbers are read in line where they fit in one byte, which is nearly always; this loop is a reader's whole cost.
    count = header.record_count
    data_end = len(data)
    if count < 0 or count * RECORD_BYTES_MIN > data_end:
        raise ValueError(f"{count} records do not fit in {data_end} bytes")
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    last_offset_delta = header.last_offset_delta
    previous_delta = -1
    position = 0
    make_record = Record._make
    for _ in range(count):
        byte = data[position]
        if byte < 0x80:
            length = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            length, position = decode_varint(data, position)
        end = position + length
        if length < RECORD_BYTES_MIN - 1 or end > data_end:
            raise ValueError(f"a record claims {length} bytes where {data_end - position} are left")
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
        else:
            offset_delta, position = decode_varint(data, position)
        if not previous_delta < offset_delta <= last_offset_delta:
            raise ValueError(
                f"offset delta {offset_delta} after {previous_delta} in a batch whose last is {last_offset_delta}"
            )
        previous_delta = offset_delta
        byte = data[position]
        if byte < 0x80 and not byte & 1:
            field_end = position + 1 + (byte >> 1)
            if field_end > end:
                raise ValueError("a key leaves its record")
            key: bytes | None = data[position + 1 : field_end]
            position = field_end
        else:
            key, position = _read_bytes(data, position, end)
        value, position = _read_bytes(data, position, end)
        if data[position] == 0 and position + 1 == end:
            headers: Headers = ()
            position = end
        else:
            headers, position = _read_headers(data, position, end)
        if position != end:
            raise ValueError("a record is longer than its fields")
        yield make_record(
            (
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if append_time is None else append_time,
                key,
                value,
                headers,
            )
        )
    if position != data_end:
        raise ValueError(f"{data_end - position} bytes follow the last record")


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    byte = data[position]
    if byte < 0x80:
        length = (byte >> 1) ^ -(byte & 1)
        position += 1
    else:
        length, position = decode_varint(data, position)
    if length < 0:
        if length != -1:
            raise ValueError(f"a length of {length}")
        return None, position
    field_end = position + length
    if field_end > end:
        raise ValueError(f"a field of {length} bytes leaves its record")
    return data[position:field_end], field_end


def _read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    count, position = decode_varint(data, position)
    if not 0 <= count <= RECORD_HEADERS_MAX or count * 2 > end - position:
        raise ValueError(f"{count} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise ValueError("a header without a key")
        value, position = _read_bytes(data, position, end)
        headers.append((str(key, "utf-8"), value))
    return tuple(headers), position
