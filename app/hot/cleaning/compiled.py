"""The compiled engine: ``kernels`` with their arrays, and the work that they leave to Python: compressed batches.

Importing this module loads numba and LLVM, which take more memory than the rest of a broker. Only the cleaner process imports it.

Tests: ``tests/hot/test_cleaning_engines.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from app.core.errors import CorruptionError, LimitExceeded, clause
from app.hot.cleaning import kernels
from app.hot.cleaning.engine import EMPTIED_KEPT, TRANSACTION_GONE, Scanned, SegmentSum, Stop
from app.hot.indexes import SegmentIndex
from app.records.batch import LOG_APPEND_TIME, BatchHeader, parse_header
from app.records.builder import build_batch, emptied_batch, rebuilt_batch
from app.records.compression import compress
from app.records.record import raw_records

BATCHES_MAX: Final = 16_384
"""Batches processed in one call."""

_NO_OFFSETS: Final = np.zeros(0, np.int64)
_Array = np.ndarray[Any, Any]


class CompiledEngine:
    """See ``Engine``."""

    def __init__(self) -> None:
        self._tables = kernels.crc_tables()
        self._slots = np.zeros(0, np.uint64)
        self._keys = np.zeros(2, np.uint64)
        self._state = np.zeros(kernels.STATE_WORDS, np.int64)
        self._ahead = np.zeros(kernels.AHEAD * kernels.AHEAD_WORDS, np.int64)
        self._verdict = np.zeros(kernels.VERDICT_WORDS, np.int64)
        self._kept = np.zeros(1 << 16, np.bool_)
        self._positions = np.zeros(BATCHES_MAX, np.int64)
        self._marked = np.zeros(BATCHES_MAX, np.int64)
        self._window: _Array = np.zeros(0, np.uint8)
        self._count = 0
        self._sums = np.zeros(kernels.INDEX_WORDS, np.int64)
        self._entries = (
            np.zeros(BATCHES_MAX, np.int32),
            np.zeros(BATCHES_MAX, np.int32),
            np.zeros(BATCHES_MAX, np.int64),
            np.zeros(BATCHES_MAX, np.int32),
        )
        self._index = SegmentIndex()
        self._out: _Array = np.empty(0, np.uint8)
        self._filled = 0

    @property
    def keys(self) -> int:
        return int(self._state[kernels.KEYS])

    @property
    def latest_offset(self) -> int:
        return int(self._state[kernels.LATEST])

    @property
    def records_seen(self) -> int:
        return int(self._state[kernels.RECORDS_SEEN])

    @property
    def records_kept(self) -> int:
        return int(self._state[kernels.RECORDS_KEPT])

    def new_map(self, keys_max: int, first_offset: int, hash_key: bytes, load_factor: float, output_bytes: int) -> None:
        self._slots = self._out = np.zeros(0, np.uint64)  # given back before the next ones are taken
        slots = int(keys_max / load_factor) + 1 + kernels.SPILL_SLOTS
        self._slots = np.full(slots * kernels.SLOT_WORDS, kernels.FREE, np.uint64)
        self._out = np.empty(output_bytes, np.uint8)
        self._keys = np.frombuffer(hash_key, np.uint64).copy()
        self._state[:] = (0, keys_max, -1, 0, 0, first_offset)

    # --- windows ----------------------------------------------------------------------------------------------------

    def scan(self, window: bytearray, length: int, start_offset: int, end_offset: int) -> Scanned:
        self._window = np.frombuffer(window, np.uint8)
        count, size_bytes, listed, next_offset, stop = kernels.scan(
            self._window, length, start_offset, end_offset, self._tables, self._positions, self._marked
        )
        if stop == Stop.DAMAGED:
            raise CorruptionError(f"No sound record batch follows after {size_bytes} bytes.")
        self._count = count
        return Scanned(count, size_bytes, self._marked[:listed].tolist(), next_offset)

    def position(self, number: int) -> int:
        return int(self._positions[number])

    def index(self, skipped: bytearray, start_offset: int) -> bool:
        number = 0
        while True:
            number, stop = kernels.index_window(
                self._window, self._positions, number, self._count, np.frombuffer(skipped, np.uint8), start_offset,
                self._slots, self._keys, self._state, self._ahead,
            )  # fmt: skip
            if stop == Stop.COMPRESSED:
                header, raw = self._decompress(number)
                stop = kernels.index_records(
                    raw, 0, len(raw), header.base_offset, header.record_count, header.last_offset_delta, start_offset,
                    self._slots, self._keys, self._state, self._ahead,
                )  # fmt: skip
                if stop == Stop.DONE:
                    self._state[kernels.LATEST] = max(self.latest_offset, header.end_offset - 1)
                    number += 1
                    continue
            if stop == Stop.DAMAGED:
                raise self._damaged(number)
            return bool(stop == Stop.DONE)

    # --- segments ---------------------------------------------------------------------------------------------------

    def begin_segment(self, base_offset: int, index_interval_bytes: int) -> None:
        self._sums[:] = 0
        self._sums[kernels.BASE] = base_offset
        self._sums[kernels.INTERVAL] = index_interval_bytes
        self._sums[kernels.NEWEST] = self._sums[kernels.NEWEST_OFFSET] = self._sums[kernels.NEWEST_NOTED] = -1
        self._index = SegmentIndex()

    def filter(
        self,
        actions: bytearray,
        producer_ends: Sequence[int],
        now_ms: int,
        new_horizon_ms: int,
        write: Callable[[memoryview], None],
    ) -> None:
        flags = np.frombuffer(actions, np.uint8)
        ends = np.array(producer_ends, np.int64) if len(producer_ends) else _NO_OFFSETS
        number = 0
        while True:
            number, self._filled, stop = kernels.filter_window(
                self._window, self._positions, number, self._count, flags, ends, now_ms, new_horizon_ms, self._slots,
                self._keys, self._state, self._ahead, self._kept, self._verdict, self._tables, self._out, self._filled,
                self._sums, *self._entries,
            )  # fmt: skip
            self._drain_index()
            if stop == Stop.DAMAGED:
                raise self._damaged(number)
            if stop == Stop.COMPRESSED:
                batch = self._filter_compressed(number, actions[number], producer_ends, now_ms, new_horizon_ms)
                if batch is not None:
                    self._put(batch, write)
                number += 1
                continue
            self._flush(write)
            if stop == Stop.DONE:
                return
            header = self._header(number)
            self._make_room(header.size_bytes + header.record_count * kernels.RECORD_GROWTH_BYTES, header.record_count)

    def end_segment(self) -> SegmentSum:
        return SegmentSum(
            self._index,
            int(self._sums[kernels.NEWEST]),
            int(self._sums[kernels.NEWEST_OFFSET]),
            int(self._sums[kernels.SINCE_ENTRY]),
        )

    def _filter_compressed(
        self, number: int, action: int, producer_ends: Sequence[int], now_ms: int, new_horizon_ms: int
    ) -> memoryview | bytes | None:
        """The remaining part of a compressed batch; None if nothing remains."""
        header, raw = self._decompress(number)
        self._make_room(0, header.record_count)
        append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else -1
        stop = kernels.judge_records(
            raw, 0, len(raw), header.base_offset, header.record_count, header.last_offset_delta, header.base_timestamp,
            append_time, int(header.has_delete_horizon and header.base_timestamp <= now_ms), int(header.is_control), self._slots,
            self._keys, self._state, self._ahead, self._kept, self._verdict,
        )  # fmt: skip
        if stop == Stop.DAMAGED:
            raise self._damaged(number)
        kept, first_timestamp, greatest_timestamp, tombstones = self._verdict.tolist()
        if not kept:
            at_end = header.producer_id >= 0 and header.end_offset - 1 in producer_ends
            return emptied_batch(header) if action & EMPTIED_KEPT or at_end else None
        sets_horizon = (tombstones or action & TRANSACTION_GONE) and not header.has_delete_horizon
        if kept == header.record_count and not sets_horizon:
            at = self.position(number)
            return self._window.data[at : at + header.size_bytes]
        base_timestamp = first_timestamp
        if sets_horizon or header.has_delete_horizon:
            base_timestamp = new_horizon_ms if sets_horizon else header.base_timestamp
        body = np.empty(len(raw) + header.record_count * kernels.RECORD_GROWTH_BYTES, np.uint8)
        end = kernels.copy_records(
            raw, 0, len(raw), header.record_count, header.base_timestamp, append_time, base_timestamp, self._kept, body, 0
        )  # fmt: skip
        return rebuilt_batch(
            header,
            compress(header.codec, body.data[:end]),
            record_count=kept,
            base_timestamp=base_timestamp,
            max_timestamp=greatest_timestamp,
            delete_horizon=bool(sets_horizon) or header.has_delete_horizon,
        )

    def _decompress(self, number: int) -> tuple[BatchHeader, _Array]:
        at = self.position(number)
        header = self._header(number)
        try:
            raw = raw_records(self._window.data[at : at + header.size_bytes], header)
        except LimitExceeded as error:
            raise CorruptionError(
                f"The batch at offset {header.base_offset} is not sound inside: {clause(error)}."
            ) from None
        return header, np.frombuffer(bytearray(raw), np.uint8)  # numba has other code for arrays that are read only

    def _header(self, number: int) -> BatchHeader:
        return parse_header(self._window.data, self.position(number))

    def _damaged(self, number: int) -> CorruptionError:
        return CorruptionError(f"The batch at offset {self._header(number).base_offset} is not sound inside.")

    # --- the output -------------------------------------------------------------------------------------------------

    def _flush(self, write: Callable[[memoryview], None]) -> None:
        if self._filled:
            write(self._out.data[: self._filled])
            self._filled = 0

    def _make_room(self, size_bytes: int, records: int) -> None:
        if size_bytes > len(self._out):
            assert self._filled == 0
            self._out = np.empty(size_bytes, np.uint8)
        if records > len(self._kept):
            self._kept = np.zeros(records, np.bool_)

    def _put(self, batch: memoryview | bytes, write: Callable[[memoryview], None]) -> None:
        if self._filled + len(batch) > len(self._out):
            self._flush(write)
            self._make_room(len(batch), 0)
        self._out[self._filled : self._filled + len(batch)] = np.frombuffer(batch, np.uint8)
        kernels.note_batch(self._out, self._filled, self._sums, *self._entries)
        self._filled += len(batch)
        self._drain_index()

    def _drain_index(self) -> None:
        entries, times = int(self._sums[kernels.ENTRIES]), int(self._sums[kernels.TIMES])
        if entries:
            index = self._index
            offsets, places, newest, newest_offsets = self._entries
            index.offsets.frombytes(offsets[:entries].tobytes())
            index.positions.frombytes(places[:entries].tobytes())
            index.times.frombytes(newest[:times].tobytes())
            index.time_offsets.frombytes(newest_offsets[:times].tobytes())
            self._sums[kernels.ENTRIES] = self._sums[kernels.TIMES] = 0


def warm_up(engine: CompiledEngine) -> None:
    """Compile the kernels that every job needs, or load them from numba's cache.

    They contain the kernels that compressed batches need, which are loaded by themselves with the first compressed batch."""
    records = [(0, b"key", b"value", ()), (0, b"key", None, ())]
    engine.new_map(8, 0, bytes(16), 0.9, 4096)
    window = bytearray(build_batch(records))
    engine.scan(window, len(window), 0, 2)
    engine.index(bytearray(1), 0)
    engine.begin_segment(0, 0)
    engine.filter(bytearray(1), (), 0, 0, lambda piece: None)
    engine.end_segment()


def compiled_anew() -> bool:
    """Whether numba compiled a kernel since the start, instead of loading it from its cache."""
    return any(kernel.stats.cache_misses for kernel in (kernels.scan, kernels.index_window, kernels.filter_window))
