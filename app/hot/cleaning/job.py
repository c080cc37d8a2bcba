"""One round of compaction over one log, as data: the broker's job for the worker, and the worker's result.

Tests: ``tests/hot/test_cleaner.py``.
"""

from __future__ import annotations

import msgspec


class SegmentFile(msgspec.Struct, array_like=True, frozen=True):
    """A segment that the job reads."""

    base_offset: int
    end_offset: int
    size_bytes: int


class CleaningJob(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Index the keys of ``[dirty_start, dirty_end)``. Then rewrite the segments from the oldest on, group by group."""

    directory: str
    """The directory of the partition."""
    segments: list[SegmentFile]
    """The segments that contain ``[dirty_start, dirty_end)``, oldest first."""
    dirty_start: int
    dirty_end: int
    now_ms: int
    delete_retention_ms: int
    index_interval_bytes: int
    map_bytes_max: int
    """This worker's share of ``log.cleaner.dedupe.buffer.size``."""
    map_load_factor: float
    """``log.cleaner.io.buffer.load.factor``."""
    buffer_bytes_max: int
    """This worker's share of ``log.cleaner.io.buffer.size``: half for reads, half for writes."""
    bytes_per_second_max: float
    """This worker's share of ``log.cleaner.io.max.bytes.per.second``: read and written together."""
    hash_key: bytes
    """16 random bytes."""
    aborted: list[tuple[int, int, int, int]]
    """Every aborted transaction that overlaps the bytes to read; fields as in ``AbortedTransaction``."""
    producer_ends: list[int]
    """Last data offset of every known producer, rising."""
    producer_epochs: dict[int, int]
    """Epoch of every producer that has only a marker and no known data batch."""


class Indexed(msgspec.Struct, array_like=True, frozen=True):
    """The state of the map."""

    offset_end: int
    """The map has the keys of all records below this offset. At most ``dirty_end``; less if the map became full."""
    keys: int
    bytes_read: int
