"""Record batches to columns: the loops that touch every record, compiled by numba.

Nothing here knows of Arrow, Spark or objects in a bucket: arrays of bytes in, arrays of numbers and bytes out. All checks are
those of ``app.records.record``; a kernel that finds a fault returns only the batch, and its caller gets the error from the
plain decoder.

Tasks call them through ``machine_code.py``, which keeps numba out of their processes. Where it cannot, numba runs them there, and
keeps its own copy of their code on disk.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.core.limits import RECORD_HEADERS_MAX
from app.records.batch import CODEC_MASK, CONTROL, HEADER_BYTES, LENGTH_PREFIX_BYTES, LOG_APPEND_TIME, MAGIC_V2
from app.records.record import RECORD_BYTES_MIN
from pyspark_firn.batch_table import (
    BATCH_ATTRIBUTES,
    BATCH_BASE_OFFSET,
    BATCH_BASE_TIMESTAMP,
    BATCH_BODY_END,
    BATCH_BODY_START,
    BATCH_BYTES,
    BATCH_EPOCH,
    BATCH_LAST_DELTA,
    BATCH_MAX_TIMESTAMP,
    BATCH_POSITION,
    BATCH_PRODUCER_ID,
    BATCH_RECORDS,
    UNSOUND,
)


def _find_cache_directory() -> None:
    """Executors often run from a read-only image and without a home, where numba would refuse to start."""
    here = Path(__file__).parent
    if "NUMBA_CACHE_DIR" in os.environ or os.access(here, os.W_OK):
        return
    home = Path(os.path.expanduser("~"))
    if not os.access(home, os.W_OK):
        os.environ["NUMBA_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"firn-kernels-{os.getuid()}")


_find_cache_directory()

from numba import njit, types  # noqa: E402 - after its cache has a place
from numba.core import cgutils as _cgutils  # noqa: E402
from numba.extending import intrinsic  # noqa: E402

cgutils: Any = _cgutils

_HEADER_BYTES: Final = int(HEADER_BYTES)
_PREFIX_BYTES: Final = int(LENGTH_PREFIX_BYTES)
_RECORD_BYTES_MIN: Final = int(RECORD_BYTES_MIN)
_HEADERS_MAX: Final = int(RECORD_HEADERS_MAX)
_MAGIC: Final = int(MAGIC_V2)
_CODEC_MASK: Final = int(CODEC_MASK)
_CONTROL: Final = int(CONTROL)
_APPEND_TIME: Final = int(LOG_APPEND_TIME)
_LOW_63: Final = 0x7FFFFFFFFFFFFFFF


def _memcpy(context: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any) -> Any:
    """``target[target_at:target_at + length] = source[source_at:source_at + length]`` by memcpy, nothing checked.

    An ordinary loop is compiled into one step per byte, because indexes might be negative: six times as slow.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, target_at, source, source_at, length = arguments
        to = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=target).data
        origin = cgutils.create_struct_proxy(signature.args[2])(context, builder, value=source).data
        cgutils.raw_memcpy(builder, builder.gep(to, [target_at]), builder.gep(origin, [source_at]), length, 1)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), generate


_copy: Any = intrinsic(_memcpy)


@njit(cache=True, inline="always")
def _int32_at(data: Any, at: int) -> Any:
    return np.int64(
        np.int32(
            (np.int64(data[at]) << 24)
            | (np.int64(data[at + 1]) << 16)
            | (np.int64(data[at + 2]) << 8)
            | np.int64(data[at + 3])
        )
    )


@njit(cache=True, inline="always")
def _int64_at(data: Any, at: int) -> Any:
    value = np.int64(0)
    for index in range(8):
        value = (value << 8) | np.int64(data[at + index])
    return value


@njit(cache=True, nogil=True)
def scan_batches(data: Any, table: Any, first_offset: int, end_offset: int) -> Any:
    """Fill ``table`` ([n, BATCH_FIELDS] int64) with the batches of ``data``.

    Answers (batches, how many of them have no record for a reader of [first_offset, end_offset), how many are compressed). The
    first is ``UNSOUND`` if they do not fill ``data`` exactly, are more than the table has rows, or have an impossible header.
    """
    position = 0
    size = len(data)
    count = 0
    passed_over = 0
    compressed = 0
    while position < size:
        if count == len(table) or position + _HEADER_BYTES > size:
            return UNSOUND, passed_over, compressed
        batch_bytes = _int32_at(data, position + 8) + _PREFIX_BYTES
        records = _int32_at(data, position + 57)
        last_delta = _int32_at(data, position + 23)
        base_offset = _int64_at(data, position)
        attributes = (np.int64(data[position + 21]) << 8) | np.int64(data[position + 22])
        if (
            data[position + 16] != _MAGIC
            or batch_bytes < _HEADER_BYTES
            or position + batch_bytes > size
            or base_offset < 0
            or records < 0
            or records > last_delta + 1
        ):
            return UNSOUND, passed_over, compressed
        row = table[count]
        row[BATCH_POSITION] = position
        row[BATCH_BYTES] = batch_bytes
        row[BATCH_BASE_OFFSET] = base_offset
        row[BATCH_LAST_DELTA] = last_delta
        row[BATCH_ATTRIBUTES] = attributes
        row[BATCH_BASE_TIMESTAMP] = _int64_at(data, position + 27)
        row[BATCH_MAX_TIMESTAMP] = _int64_at(data, position + 35)
        row[BATCH_PRODUCER_ID] = _int64_at(data, position + 43)
        row[BATCH_RECORDS] = records
        row[BATCH_EPOCH] = _int32_at(data, position + 12)
        row[BATCH_BODY_START] = position + _HEADER_BYTES
        row[BATCH_BODY_END] = position + batch_bytes
        if (
            base_offset >= end_offset
            or base_offset + last_delta < first_offset
            or (attributes & _CONTROL) != 0
            or records == 0
        ):
            passed_over += 1
        if (attributes & _CODEC_MASK) != 0:
            compressed += 1
        position += batch_bytes
        count += 1
    return count, passed_over, compressed


@njit(cache=True, inline="always")
def _varlong(data: Any, position: Any, end: Any, bytes_max: int) -> Any:
    """(value, position after it); position ``UNSOUND`` where the bytes end or are longer than ``bytes_max``."""
    value = np.int64(0)
    shift = np.int64(0)
    for _ in range(bytes_max):
        if position >= end:
            return np.int64(0), np.int64(UNSOUND)
        byte = np.int64(data[position])
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & _LOW_63) ^ -(value & 1), position
        shift += 7
    return np.int64(0), np.int64(UNSOUND)


@njit(cache=True, inline="always")
def _varint(data: Any, position: Any, end: Any) -> Any:
    if position < end and data[position] < 0x80:
        byte = np.int64(data[position])
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, position = _varlong(data, position, end, 5)
    if value < -(1 << 31) or value >= (1 << 31):
        return np.int64(0), np.int64(UNSOUND)
    return value, position


@njit(cache=True, nogil=True)
def read_records(
    data: Any,
    table: Any,
    first_offset: int,
    end_offset: int,
    with_key: bool,
    with_value: bool,
    with_headers: bool,
    offsets: Any,
    timestamps: Any,
    key_ends: Any,
    key_bytes: Any,
    key_valid: Any,
    value_ends: Any,
    value_bytes: Any,
    value_valid: Any,
    header_starts: Any,
    header_counts: Any,
    batch_counts: Any,
) -> Any:
    """Decode the records of some batches into columns; only those with offsets in [first_offset, end_offset) are kept.

    ``data`` has the unfolded records of each batch where its row of ``table`` says. Timestamps come out in microseconds, those of
    LogAppendTime batches as the batch says. ``key_ends`` and ``value_ends`` have one entry more than there are records (Arrow's
    offsets); ``*_valid`` is 1 where there is a key or a value. ``header_starts`` is where a record's header count was read to,
    ``header_counts`` how many follow. ``batch_counts[i]`` is how many records of batch i were kept.

    Answers (records kept, keys that are null, values that are null, their headers if wanted, index of a batch that is not sound or
    -1).
    """
    kept = 0
    null_keys = 0
    null_values = 0
    headers = 0
    key_end = 0
    value_end = 0
    key_ends[0] = 0
    value_ends[0] = 0
    for index in range(len(table)):
        row = table[index]
        position = row[BATCH_BODY_START]
        data_end = row[BATCH_BODY_END]
        base_offset = row[BATCH_BASE_OFFSET]
        last_delta = row[BATCH_LAST_DELTA]
        base_timestamp = row[BATCH_BASE_TIMESTAMP]
        append_time = (row[BATCH_ATTRIBUTES] & _APPEND_TIME) != 0
        max_timestamp = row[BATCH_MAX_TIMESTAMP]
        kept_before = kept
        previous_delta = np.int64(-1)
        if row[BATCH_RECORDS] * _RECORD_BYTES_MIN > data_end - position:
            return kept, null_keys, null_values, headers, index
        for _ in range(row[BATCH_RECORDS]):
            length, position = _varint(data, position, data_end)
            if position < 0 or length < _RECORD_BYTES_MIN - 1 or length > data_end - position:
                return kept, null_keys, null_values, headers, index
            end = position + length
            position += 1
            timestamp_delta, position = _varlong(data, position, end, 10)
            if position < 0:
                return kept, null_keys, null_values, headers, index
            offset_delta, position = _varint(data, position, end)
            if position < 0 or offset_delta <= previous_delta or offset_delta > last_delta:
                return kept, null_keys, null_values, headers, index
            previous_delta = offset_delta
            key_length, position = _varint(data, position, end)
            if position < 0 or key_length < -1 or key_length > end - position:
                return kept, null_keys, null_values, headers, index
            key_position = position
            if key_length > 0:
                position += key_length
            value_length, position = _varint(data, position, end)
            if position < 0 or value_length < -1 or value_length > end - position:
                return kept, null_keys, null_values, headers, index
            value_position = position
            if value_length > 0:
                position += value_length
            header_count, position = _varint(data, position, end)
            if position < 0 or header_count < 0 or header_count > _HEADERS_MAX or header_count * 2 > end - position:
                return kept, null_keys, null_values, headers, index
            header_position = position
            for _ in range(header_count):
                name_length, position = _varint(data, position, end)
                if position < 0 or name_length < 0 or name_length > end - position:
                    return kept, null_keys, null_values, headers, index
                position += name_length
                content_length, position = _varint(data, position, end)
                if position < 0 or content_length < -1 or content_length > end - position:
                    return kept, null_keys, null_values, headers, index
                if content_length > 0:
                    position += content_length
            if position != end:
                return kept, null_keys, null_values, headers, index
            offset = base_offset + offset_delta
            if offset < first_offset or offset >= end_offset:
                continue
            offsets[kept] = offset
            timestamps[kept] = (max_timestamp if append_time else base_timestamp + timestamp_delta) * 1000
            if with_key:
                if key_length < 0:
                    key_valid[kept] = 0
                    null_keys += 1
                else:
                    key_valid[kept] = 1
                    _copy(key_bytes, key_end, data, key_position, key_length)
                    key_end += key_length
                key_ends[kept + 1] = key_end
            if with_value:
                if value_length < 0:
                    value_valid[kept] = 0
                    null_values += 1
                else:
                    value_valid[kept] = 1
                    _copy(value_bytes, value_end, data, value_position, value_length)
                    value_end += value_length
                value_ends[kept + 1] = value_end
            if with_headers:
                header_starts[kept] = header_position
                header_counts[kept] = header_count
                headers += header_count
            kept += 1
        if position != data_end:
            return kept, null_keys, null_values, headers, index
        batch_counts[index] = kept - kept_before
    return kept, null_keys, null_values, headers, UNSOUND


@njit(cache=True, nogil=True)
def header_sizes(data: Any, header_starts: Any, header_counts: Any) -> Any:
    """(bytes of all header names, bytes of all header contents) of records that ``read_records`` has checked."""
    name_bytes = 0
    content_bytes = 0
    size = len(data)
    for record in range(len(header_starts)):
        position = header_starts[record]
        for _ in range(header_counts[record]):
            length, position = _varint(data, position, size)
            name_bytes += length
            position += length
            length, position = _varint(data, position, size)
            if length > 0:
                content_bytes += length
                position += length
    return name_bytes, content_bytes


@njit(cache=True, nogil=True)
def read_headers(
    data: Any,
    header_starts: Any,
    header_counts: Any,
    list_ends: Any,
    name_ends: Any,
    name_bytes: Any,
    content_ends: Any,
    content_bytes: Any,
    content_valid: Any,
) -> int:
    """Headers of records that ``read_records`` has checked, as the columns of a list of structs; answers how many contents are
    null."""
    header = 0
    name_end = 0
    content_end = 0
    nulls = 0
    size = len(data)
    list_ends[0] = 0
    name_ends[0] = 0
    content_ends[0] = 0
    for record in range(len(header_starts)):
        position = header_starts[record]
        for _ in range(header_counts[record]):
            length, position = _varint(data, position, size)
            _copy(name_bytes, name_end, data, position, length)
            name_end += length
            position += length
            name_ends[header + 1] = name_end
            length, position = _varint(data, position, size)
            if length < 0:
                content_valid[header] = 0
                nulls += 1
            else:
                content_valid[header] = 1
                _copy(content_bytes, content_end, data, position, length)
                content_end += length
                position += length
            content_ends[header + 1] = content_end
            header += 1
        list_ends[record + 1] = header
    return nulls
