"""The engine in plain Python: the oracle for the compiled engine, and the engine if there is no cleaner process.

It stores the keys themselves instead of their hashes, decodes each record, and builds new batches from the records.

Tests: ``tests/hot/test_cleaning_engines.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.core.errors import CorruptionError
from app.hot.cleaning.engine import EMPTIED_KEPT, RECORDS_DROPPED, TRANSACTION_GONE, Scanned, SegmentSum
from app.hot.indexes import SegmentIndex
from app.records.batch import HEADER_BYTES, BatchHeader, check_stored_batch, parse_header
from app.records.builder import emptied_batch, encode_records, rebuilt_batch
from app.records.compression import compress
from app.records.record import Record, iter_records


class PlainEngine:
    """See ``Engine``."""

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}
        self._keys_max = 0
        self._latest_offset = -1
        self._batches: list[tuple[int, BatchHeader]] = []
        self._window = bytearray()
        self._base_offset = 0
        self._interval_bytes = 0
        self._written_bytes = 0
        self._since_entry_bytes = 0
        self._max_timestamp = self._max_timestamp_offset = -1
        self._index = SegmentIndex()
        self.records_seen = 0
        self.records_kept = 0

    @property
    def keys(self) -> int:
        return len(self._newest)

    @property
    def latest_offset(self) -> int:
        return self._latest_offset

    def new_map(self, keys_max: int, first_offset: int, hash_key: bytes, load_factor: float, output_bytes: int) -> None:
        self._newest = {}
        self._keys_max = keys_max
        self._latest_offset = -1
        self.records_seen = self.records_kept = 0

    def scan(self, window: bytearray, length: int, start_offset: int, end_offset: int) -> Scanned:
        self._window = window
        self._batches = []
        position = 0
        while position + HEADER_BYTES <= length:
            size = parse_header(window, position).size_bytes
            if size > length - position:
                break
            header = check_stored_batch(memoryview(window)[:length], position)
            if not start_offset <= header.base_offset < header.end_offset <= end_offset:
                raise CorruptionError(f"Offset {header.base_offset} at position {position} is out of order.")
            start_offset = header.end_offset
            self._batches.append((position, header))
            position += size
        marked = [
            number for number, (_, header) in enumerate(self._batches) if header.is_transactional or header.is_control
        ]
        return Scanned(len(self._batches), position, marked, start_offset)

    def position(self, number: int) -> int:
        return self._batches[number][0]

    def index(self, skipped: bytearray, start_offset: int) -> bool:
        for number, (_, header) in enumerate(self._batches):
            if header.end_offset <= start_offset:
                continue
            if not skipped[number]:
                for record in self._records(number):
                    if record.key is None or record.offset < start_offset:
                        continue
                    if record.key not in self._newest and len(self._newest) >= self._keys_max:
                        return False
                    self._newest[record.key] = self._latest_offset = record.offset
            self._latest_offset = max(self._latest_offset, header.end_offset - 1)
        return True

    def begin_segment(self, base_offset: int, index_interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._written_bytes = self._since_entry_bytes = 0
        self._max_timestamp = self._max_timestamp_offset = -1
        self._index = SegmentIndex()

    def filter(
        self,
        actions: bytearray,
        producer_ends: Sequence[int],
        now_ms: int,
        new_horizon_ms: int,
        write: Callable[[memoryview], None],
    ) -> None:
        for number, (_, header) in enumerate(self._batches):
            batch = self._filtered(number, header, actions[number], producer_ends, now_ms, new_horizon_ms)
            if batch is not None:
                self._note(parse_header(batch))
                write(memoryview(batch))

    def _filtered(
        self,
        number: int,
        header: BatchHeader,
        action: int,
        producer_ends: Sequence[int],
        now_ms: int,
        new_horizon_ms: int,
    ) -> bytes | None:
        self.records_seen += header.record_count
        tombstones_go = header.has_delete_horizon and header.base_timestamp <= now_ms
        kept = [
            record
            for record in (() if action & RECORDS_DROPPED else self._records(number))
            if header.is_control or self._stays(record, tombstones_go)
        ]
        self.records_kept += len(kept)
        if not kept:
            at_end = header.producer_id >= 0 and header.end_offset - 1 in producer_ends
            return emptied_batch(header) if action & EMPTIED_KEPT or at_end else None
        sets_horizon = not header.has_delete_horizon and bool(
            action & TRANSACTION_GONE or any(record.value is None for record in kept)
        )
        if len(kept) == header.record_count and not sets_horizon:
            position = self.position(number)
            return bytes(self._window[position : position + header.size_bytes])
        if sets_horizon:
            base_timestamp = new_horizon_ms
        else:
            base_timestamp = header.base_timestamp if header.has_delete_horizon else kept[0].timestamp
        body = encode_records(kept, header.base_offset, base_timestamp)
        return rebuilt_batch(
            header,
            compress(header.codec, body),
            record_count=len(kept),
            base_timestamp=base_timestamp,
            max_timestamp=max(record.timestamp for record in kept),
            delete_horizon=sets_horizon or header.has_delete_horizon,
        )

    def _stays(self, record: Record, tombstones_go: bool) -> bool:
        if record.offset > self._latest_offset:
            return True
        if record.key is None or record.offset < self._newest.get(record.key, -1):
            return False
        return record.value is not None or not tombstones_go

    def _records(self, number: int) -> list[Record]:
        position, header = self._batches[number]
        return list(iter_records(memoryview(self._window)[position : position + header.size_bytes]))

    def _note(self, header: BatchHeader) -> None:
        last_offset = header.end_offset - 1
        if header.record_count and header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = last_offset
        if self._since_entry_bytes > self._interval_bytes:
            self._index.offsets.append(last_offset - self._base_offset)
            self._index.positions.append(self._written_bytes)
            self._index.add_time(self._max_timestamp, self._max_timestamp_offset - self._base_offset)
            self._since_entry_bytes = 0
        self._since_entry_bytes += header.size_bytes
        self._written_bytes += header.size_bytes

    def end_segment(self) -> SegmentSum:
        return SegmentSum(self._index, self._max_timestamp, self._max_timestamp_offset, self._since_entry_bytes)
