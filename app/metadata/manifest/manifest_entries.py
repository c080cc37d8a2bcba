"""The newest entries of the segment manifests that this broker leads, at hand for their followers (ADR 0024, T8).

Entries of all partitions are kept in one order, the one in which they became durable, and as they are in the bucket. Each has a
*place* in that order. A follower names the place that it has come to, so that one parked request waits for all of its partitions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from app.core.seams import shared_wait_s
from app.core.units import TopicIdPartition
from app.core.wake import Wake

ENTRIES_MAX: Final = 16_384
BYTES_MAX: Final = 16 * 1024 * 1024
"""Limits of the entries kept. A follower that is further behind asks for each partition, and reads the bucket where it must."""
ENTRY_OVERHEAD_BYTES: Final = 200
"""About the memory of an entry beside its bytes."""


class HandedEntry(NamedTuple):
    """An entry of one manifest."""

    place: int
    key: TopicIdPartition
    sequence: int
    """Its number in the manifest."""
    body: bytes


class ManifestEntries:
    """Belongs to one event loop."""

    def __init__(self, term: str, *, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        """``term`` is new for every start of a broker: places of another term mean nothing."""
        self.term = term
        self._entries_max, self._bytes_max = entries_max, bytes_max
        self._all: deque[HandedEntry] = deque()
        self._of: dict[TopicIdPartition, deque[HandedEntry]] = {}
        self._bytes = 0
        self._end = 0
        self._moved = Wake()

    @property
    def end(self) -> int:
        """The place of the next entry."""
        return self._end

    def add(self, key: TopicIdPartition, sequence: int, body: bytes) -> None:
        """An entry has become durable."""
        entry = HandedEntry(self._end, key, sequence, body)
        self._end += 1
        self._all.append(entry)
        self._of.setdefault(key, deque()).append(entry)
        self._bytes += len(body) + ENTRY_OVERHEAD_BYTES
        while len(self._all) > self._entries_max or (self._bytes > self._bytes_max and len(self._all) > 1):
            oldest = self._all.popleft()
            self._bytes -= len(oldest.body) + ENTRY_OVERHEAD_BYTES
            of_key = self._of[oldest.key]
            of_key.popleft()
            if not of_key:
                del self._of[oldest.key]
        self._moved.wake()

    def after(
        self, place: int, wanted: Callable[[TopicIdPartition], bool], bytes_max: int
    ) -> tuple[list[HandedEntry], int] | None:
        """The wanted entries from ``place`` on, about ``bytes_max`` of them and at least one, and the place after them.

        None if some of them are not at hand any more, or ``place`` is none of this term.
        """
        oldest = self._all[0].place if self._all else self._end
        if not oldest <= place <= self._end:
            return None
        found: list[HandedEntry] = []
        for index in range(place - oldest, len(self._all)):
            entry = self._all[index]
            if not wanted(entry.key):
                continue
            bytes_max -= len(entry.body)
            if found and bytes_max < 0:
                return found, entry.place
            found.append(entry)
        return found, self._end

    def of(self, key: TopicIdPartition, sequence: int, end: int) -> list[bytes] | None:
        """The entries of one manifest with the numbers in [sequence, end); None if some of them are not at hand."""
        found = [one.body for one in self._of.get(key, ()) if sequence <= one.sequence < end]
        numbers = [one.sequence for one in self._of.get(key, ()) if sequence <= one.sequence < end]
        return found if numbers == list(range(sequence, end)) else None

    async def wait(self, wait_s: float) -> None:
        """Wait for the next entry, but no longer than ``wait_s``."""
        try:
            async with asyncio.timeout(shared_wait_s(asyncio.get_running_loop().time(), wait_s)):
                await self._moved.wait()
        except TimeoutError:
            return
