"""What compaction asks of its inner loops. There are two of them: ``compiled``, and the readable ``plain``.

An engine holds the map from keys to their newest offsets and works on a window: a run of whole batches in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from app.hot.indexes import SegmentIndex

RECORDS_DROPPED: Final = 1
"""No record of the batch stays: it was aborted, or its marker has outlived its transaction."""
EMPTIED_KEPT: Final = 2
"""The header stays even if no record does."""
TRANSACTION_GONE: Final = 4
"""A marker whose transaction left no batch: it gets a delete horizon, after which it goes too."""


SLOT_BYTES: Final = 16
"""Of the map: 96 bits of a key's hash, and an offset."""


class Stop(IntEnum):
    """Why an inner loop came back."""

    DONE = 0
    FULL = 1
    """The map has no room for another key."""
    COMPRESSED = 2
    """The next batch must be decompressed first."""
    NO_ROOM = 3
    """The output has no room for the next batch."""
    DAMAGED = 4
    """The next batch is not sound."""


class Scanned(NamedTuple):
    """The batches of a window."""

    batches: int
    size_bytes: int
    """What they take of the window; the rest is the beginning of another batch."""
    marked: Sequence[int]
    """Numbers of those that belong to transactions or are control batches."""
    next_offset: int
    """Where the last of them ends."""


class SegmentSum(NamedTuple):
    """What the indexes of a segment that was written came to; fields as in ``Segment``."""

    entries: SegmentIndex
    max_timestamp: int
    max_timestamp_offset: int
    bytes_since_index_entry: int


class Engine(Protocol):
    """The inner loops. What looks at records raises CorruptionError where these are not sound."""

    @property
    def keys(self) -> int:
        """Keys in the map."""
        ...

    @property
    def latest_offset(self) -> int:
        """The map knows the newest record of every key up to this offset; -1 before anything is indexed."""
        ...

    @property
    def records_seen(self) -> int:
        """Records that ``filter`` has decided on since ``new_map``, and how many of them stayed:"""
        ...

    @property
    def records_kept(self) -> int: ...

    def new_map(self, keys_max: int, first_offset: int, hash_key: bytes, load_factor: float, output_bytes: int) -> None:
        """Begin with an empty map for up to ``keys_max`` keys, which may take ``load_factor`` of its slots. Offsets that
        ``index`` is to note begin at ``first_offset``.

        ``hash_key`` is 16 random bytes. As much as ``output_bytes`` is written at once; more only for a batch that is larger.
        """
        ...

    def scan(self, window: bytearray, length: int, start_offset: int, end_offset: int) -> Scanned:
        """Find the whole batches in ``window[:length]`` and check every one. ``index`` and ``filter`` then work on them.

        Their offsets must rise within ``[start_offset, end_offset)``: a checksum does not cover where a batch begins.

        Raises: CorruptionError.
        """
        ...

    def position(self, number: int) -> int:
        """Where the scanned batch of that number begins."""
        ...

    def index(self, skipped: bytearray, start_offset: int) -> bool:
        """Note the keys of the scanned batches, but not of the ``skipped`` (a byte for each) and of records below
        ``start_offset``. False if the map was full before the end: ``latest_offset`` says how far it got."""
        ...

    def begin_segment(self, base_offset: int, index_interval_bytes: int) -> None:
        """What ``filter`` writes from now on makes up a new segment."""
        ...

    def filter(
        self,
        actions: bytearray,
        producer_ends: Sequence[int],
        now_ms: int,
        new_horizon_ms: int,
        write: Callable[[memoryview], None],
    ) -> None:
        """Give what stays of the scanned batches to ``write``, in pieces of whole batches that are valid during the call.

        ``actions`` has the flags above for each; ``producer_ends`` are the last offsets, rising, of batches whose headers are
        kept for their producers. ``new_horizon_ms`` is the delete horizon of tombstones met for the first time (KIP-534).
        """
        ...

    def end_segment(self) -> SegmentSum:
        """The indexes of what was written since ``begin_segment``."""
        ...
