"""One round of compaction over one log, as data: what the broker tells whoever does the work, and what comes back."""

from __future__ import annotations

import msgspec


class SegmentFile(msgspec.Struct, array_like=True, frozen=True):
    """A segment that is to be read."""

    base_offset: int
    end_offset: int
    size_bytes: int


class CleaningJob(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Index the keys of ``[dirty_start, dirty_end)``; then, group by group, write the segments from the oldest on anew."""

    directory: str
    """Of the partition."""
    segments: list[SegmentFile]
    """Those that hold ``[dirty_start, dirty_end)``, oldest first."""
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
    """This worker's share of ``log.cleaner.io.buffer.size``: half for what is read, half for what is written."""
    bytes_per_second_max: float
    """This worker's share of ``log.cleaner.io.max.bytes.per.second``: read and written together."""
    hash_key: bytes
    """16 random bytes."""
    aborted: list[tuple[int, int, int, int]]
    """Every aborted transaction that overlaps what will be read; fields as in ``AbortedTransaction``."""
    producer_ends: list[int]
    """Last data offset of every producer that is known, rising."""
    producer_epochs: dict[int, int]
    """Epoch of every producer of which no data batch is known, only a marker."""


class Indexed(msgspec.Struct, array_like=True, frozen=True):
    """What the map knows."""

    offset_end: int
    """Keys of every record below are in it. At most ``dirty_end``; less if the map had no room for more."""
    keys: int
    bytes_read: int
