"""Raw chunks to Arrow: which batches count, unfolding what producers compressed, and the columns.

The work on records is done by ``kernels.py``; here it is a few calls for each portion of a chunk, which becomes a record batch.
Batches that are not compressed are decoded where they lie. A portion ends where ``PORTION_BYTES`` are reached. So Spark and
this module hold a bounded part of a chunk at a time, in memory that is used again, however large the decompressed chunk is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from app.core.errors import CorruptionError, LimitExceeded, clause
from app.core.limits import DECOMPRESSED_BATCH_BYTES_MAX, MIB
from app.core.units import Offset
from app.records.batch import CODEC_MASK, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, check_stored_batch
from app.records.compression import decompress
from app.records.record import RECORD_BYTES_MIN, iter_records
from app.tiering.store.segment_format import AbortedTransaction
from pyspark_firn import batch_table
from pyspark_firn.columns import HEADER_STRUCT, HEADERS, arrow_schema
from pyspark_firn.machine_code import Kernels, load_kernels

PORTION_BYTES: Final = 4 * MIB
"""Records, unfolded, after which a record batch is handed out: a chunk that is not compressed is one. Each is a turn of two
processes, and smaller ones cost more than the nearer caches save (docs/adr/0012)."""


class RecordDecoder:
    """Decodes chunks of one partition into record batches of the wanted columns."""

    def __init__(self, columns: Sequence[str], topic: str, partition: int) -> None:
        self.schema = arrow_schema(columns)
        self._columns = tuple(columns)
        self._topic = topic
        self._partition = partition
        self._with_key = "key" in columns
        self._with_value = "value" in columns
        self._with_headers = HEADERS in columns
        self._constants: dict[str, pa.Array] = {}
        self._kernels = load_kernels()

    def decode(
        self,
        raw: bytes | memoryview,
        name: str,
        *,
        batch_count: int,
        first_offset: int,
        end_offset: int,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> Iterator[pa.RecordBatch]:
        """The records of a run of whole batches with offsets in [first_offset, end_offset), in order.

        Control batches are left out, and so are batches of the transactions in ``aborted``. The CRC over ``raw`` (a chunk's, or
        each batch's) was checked by the caller. Raises: CorruptionError naming ``name`` and the batch.
        """
        data = np.frombuffer(raw, np.uint8)
        data.flags.writeable = False
        table = np.empty((batch_count, batch_table.BATCH_FIELDS), np.int64)
        found, passed_over, compressed = self._kernels.scan_batches(data, table, first_offset, end_offset)
        if found != batch_count:
            raise CorruptionError(f"{name}: its record batches are not those that its chunk table tells of.")
        if passed_over or aborted:
            table = _chosen(table, first_offset, end_offset, aborted)
        portions = _unfolded(data, table, name) if compressed else _portions(data, table)
        for records, part in portions:
            yield self._columns_of(records, part, first_offset, end_offset, data, name)

    def _columns_of(
        self,
        records: np.ndarray[Any, Any],
        table: np.ndarray[Any, Any],
        first_offset: int,
        end_offset: int,
        data: np.ndarray[Any, Any],
        name: str,
    ) -> pa.RecordBatch:
        """The record batch of a portion."""
        body_bytes, room = _sizes(table)
        offsets = np.empty(room, np.int64)
        timestamps = np.empty(room, np.int64)
        key_room, value_room = (room if self._with_key else 0), (room if self._with_value else 0)
        key_ends, value_ends = np.empty(key_room + 1, np.int32), np.empty(value_room + 1, np.int32)
        key_bytes = np.empty(body_bytes if self._with_key else 0, np.uint8)
        value_bytes = np.empty(body_bytes if self._with_value else 0, np.uint8)
        key_valid, value_valid = np.empty(key_room, np.uint8), np.empty(value_room, np.uint8)
        header_room = room if self._with_headers else 0
        header_starts, header_counts = np.empty(header_room, np.int64), np.empty(header_room, np.int32)
        batch_counts = np.empty(len(table), np.int64)
        count, null_keys, null_values, header_count, bad = self._kernels.read_records(
            records, table, first_offset, end_offset, self._with_key, self._with_value, self._with_headers, offsets,
            timestamps, key_ends, key_bytes, key_valid, value_ends, value_bytes, value_valid, header_starts,
            header_counts, batch_counts,
        )  # fmt: skip
        if bad >= 0:
            raise _unsound(data, table[bad], name)
        made: list[pa.Array] = []
        for column in self._columns:
            match column:
                case "key":
                    made.append(_binary(pa.binary(), count, key_ends, key_bytes, key_valid, null_keys))
                case "value":
                    made.append(_binary(pa.binary(), count, value_ends, value_bytes, value_valid, null_values))
                case "offset":
                    made.append(pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(offsets)]))
                case "timestamp":
                    kind = pa.timestamp("us", "UTC")
                    made.append(pa.Array.from_buffers(kind, count, [None, pa.py_buffer(timestamps)]))
                case "timestampType":
                    types = (table[:, batch_table.BATCH_ATTRIBUTES] & LOG_APPEND_TIME) != 0
                    made.append(self._by_batch(column, types, batch_counts, count, np.int32))
                case "leader_epoch":
                    made.append(
                        self._by_batch(column, table[:, batch_table.BATCH_EPOCH], batch_counts, count, np.int32)
                    )
                case "producer_id":
                    ids = table[:, batch_table.BATCH_PRODUCER_ID]
                    made.append(self._by_batch(column, ids, batch_counts, count, np.int64))
                case "partition":
                    made.append(self._constant(column, self._partition, count, np.int32))
                case "topic":
                    made.append(self._topic_column(count))
                case _:
                    assert column == HEADERS, column
                    made.append(
                        _headers(
                            self._kernels, records, header_starts[:count], header_counts[:count], header_count, name
                        )
                    )
        return pa.RecordBatch.from_arrays(made, schema=self.schema)

    def _by_batch(
        self, column: str, values: np.ndarray[Any, Any], counts: np.ndarray[Any, Any], count: int, kind: type
    ) -> pa.Array:
        """A column whose value comes from the batch of each record; nearly always all batches have the same."""
        first = int(values[0])
        if np.all(values == first):
            return self._constant(f"{column} {first}", first, count, kind)
        return _plain(np.repeat(values.astype(kind), counts))

    def _constant(self, name: str, value: int, count: int, kind: type) -> pa.Array:
        known = self._constants.get(name)
        if known is None or len(known) < count:
            known = self._constants[name] = _plain(np.full(max(count, 1), value, kind))
        return known.slice(0, count)

    def _topic_column(self, count: int) -> pa.Array:
        known = self._constants.get("topic")
        if known is None or len(known) < count:
            text = self._topic.encode()
            ends = np.arange(max(count, 1) + 1, dtype=np.int32) * len(text)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(text * max(count, 1))]
            known = self._constants["topic"] = pa.Array.from_buffers(pa.string(), max(count, 1), buffers)
        return known.slice(0, count)


def _portions(
    data: np.ndarray[Any, Any], table: np.ndarray[Any, Any]
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """(bytes that have the records, rows of the table) of batches that are not compressed: they stay where they are."""
    if len(data) <= PORTION_BYTES:
        if len(table):
            yield data, table
        return
    while len(table):
        fitting = int(np.searchsorted(np.cumsum(table[:, batch_table.BATCH_BYTES]), PORTION_BYTES)) + 1
        yield data, table[:fitting]
        table = table[fitting:]


def _unfolded(
    data: np.ndarray[Any, Any], table: np.ndarray[Any, Any], name: str
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """As ``_portions``, of batches that producers compressed. Raises: CorruptionError."""
    start = 0
    while start < len(table):
        pieces: list[bytes] = []
        unfolded = 0
        for row in table[start:]:
            piece = _decompressed(data, row, name)
            pieces.append(piece)
            row[batch_table.BATCH_BODY_START] = unfolded
            unfolded += len(piece)
            row[batch_table.BATCH_BODY_END] = unfolded
            if unfolded >= PORTION_BYTES:
                break
        joined = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
        end = start + len(pieces)
        yield joined, table[start:end]
        start = end


def _decompressed(data: np.ndarray[Any, Any], row: np.ndarray[Any, Any], name: str) -> bytes:
    """The records of a batch. Raises: CorruptionError."""
    body = data.data[int(row[batch_table.BATCH_BODY_START]) : int(row[batch_table.BATCH_BODY_END])]
    try:
        return decompress(int(row[batch_table.BATCH_ATTRIBUTES]) & CODEC_MASK, body, DECOMPRESSED_BATCH_BYTES_MAX)
    except (CorruptionError, LimitExceeded) as error:
        offset = int(row[batch_table.BATCH_BASE_OFFSET])
        raise CorruptionError(f"{name}: the batch at offset {offset} is not sound inside: {clause(error)}.") from None


def _sizes(table: np.ndarray[Any, Any]) -> tuple[int, int]:
    """(bytes of the records of these batches, how many they are at most)."""
    sums = table.sum(axis=0)
    body_bytes = int(sums[batch_table.BATCH_BODY_END] - sums[batch_table.BATCH_BODY_START])
    # A batch cannot hold more records than bytes for them. The count that it claims allocates nothing.
    return body_bytes, min(int(sums[batch_table.BATCH_RECORDS]), body_bytes // RECORD_BYTES_MIN + 1)


def _chosen(
    table: np.ndarray[Any, Any], first_offset: int, end_offset: int, aborted: Sequence[AbortedTransaction]
) -> np.ndarray[Any, Any]:
    """The batches that a reader of [first_offset, end_offset) is given: data of transactions that did not abort."""
    bases = table[:, batch_table.BATCH_BASE_OFFSET]
    attributes = table[:, batch_table.BATCH_ATTRIBUTES]
    wanted = (
        (bases < end_offset)
        & (bases + table[:, batch_table.BATCH_LAST_DELTA] >= first_offset)
        & ((attributes & CONTROL) == 0)
        & (table[:, batch_table.BATCH_RECORDS] > 0)
    )
    if aborted:
        producers = table[:, batch_table.BATCH_PRODUCER_ID]
        transactional = (attributes & TRANSACTIONAL) != 0
        for transaction in aborted:
            wanted &= ~(
                transactional
                & (producers == transaction.producer_id)
                & (bases >= transaction.first_offset)
                & (bases <= transaction.last_offset)
            )
    return table if wanted.all() else table[wanted]


def _plain(values: np.ndarray[Any, Any]) -> pa.Array:
    """Numbers without nulls. ``pa.array`` would have every task import pandas first, to see whether they are a pandas series."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _binary(
    kind: pa.DataType,
    count: int,
    ends: np.ndarray[Any, Any],
    data: np.ndarray[Any, Any],
    valid: np.ndarray[Any, Any],
    nulls: int,
) -> pa.Array:
    bitmap = pa.py_buffer(np.packbits(valid[:count], bitorder="little")) if nulls else None
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(ends), pa.py_buffer(data)], nulls)


def _headers(
    kernels: Kernels,
    records: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    counts: np.ndarray[Any, Any],
    header_count: int,
    name: str,
) -> pa.Array:
    """The headers of records; null, as in Spark's Kafka source, for a record without any. Raises: CorruptionError."""
    count = len(starts)
    starts, counts = np.ascontiguousarray(starts), np.ascontiguousarray(counts)
    name_size, content_size = kernels.header_sizes(records, starts, counts)
    list_ends = np.empty(count + 1, np.int32)
    name_ends, content_ends = np.empty(header_count + 1, np.int32), np.empty(header_count + 1, np.int32)
    names, contents = np.empty(name_size, np.uint8), np.empty(content_size, np.uint8)
    content_valid = np.empty(header_count, np.uint8)
    nulls = kernels.read_headers(
        records, starts, counts, list_ends, name_ends, names, content_ends, contents, content_valid
    )
    keys = pa.Array.from_buffers(pa.string(), header_count, [None, pa.py_buffer(name_ends), pa.py_buffer(names)])
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptionError(f"{name}: a header's key is not UTF-8.") from error
    values = _binary(pa.binary(), header_count, content_ends, contents, content_valid, nulls)
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_STRUCT))
    empty = counts == 0
    null_count = int(empty.sum())
    bitmap = pa.py_buffer(np.packbits(~empty, bitorder="little")) if null_count else None
    kind = pa.list_(pa.field("element", HEADER_STRUCT))
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(list_ends)], null_count, children=[structs])


def _unsound(data: np.ndarray[Any, Any], row: np.ndarray[Any, Any], name: str) -> CorruptionError:
    """The plain decoder's error for a batch that the kernel refused."""
    position = int(row[batch_table.BATCH_POSITION])
    view = data.data[position : position + int(row[batch_table.BATCH_BYTES])]
    try:
        check_stored_batch(view)
        for _ in iter_records(view):
            pass
    except CorruptionError as error:
        return CorruptionError(f"{name}: {clause(error)}.")
    raise AssertionError(
        f"{name}: the batch at offset {Offset(int(row[batch_table.BATCH_BASE_OFFSET]))} is sound, yet refused"
    )
