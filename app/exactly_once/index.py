"""An index from the 64-bit hash of a key to the offset of its result (ADR 0043, EO9). Pure.

10 million keys take 26 bytes each at most. So the rows lie in arrays of two numbers, and never in objects. A bucket holds about
twenty rows, and is searched by the array itself. Buckets grow one by one, so no call moves more than one of them.

The rows of a load come in **runs**: two arrays in the order of hashes, 16 bytes a row (EO16). Each run is searched by halves. It is
never changed, and freed when its newest row has expired. Tests: ``tests/exactly_once/test_index.py``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from sys import getsizeof
from typing import Final, NamedTuple

from app.core.turns import Steps

BUCKETS: Final = 1 << 16
"""Of one partition: with 1.25 million keys a bucket has 19 rows."""
LOOKED_AT_ONCE: Final = 256
"""Buckets of one step: about 0.2 ms."""


class _Run(NamedTuple):
    hashes: array[int]
    """In their order."""
    offsets: array[int]
    end: int
    """One past the greatest offset."""


class KeyIndex:
    """Rows of hash and offset, in the order of offsets within each bucket."""

    __slots__ = ("_buckets", "_count", "_rows", "_runs", "start")

    def __init__(self, buckets: int = BUCKETS) -> None:
        """``buckets``: how many there are, a power of two."""
        assert buckets & (buckets - 1) == 0, buckets
        self._count = buckets
        self._buckets: list[array[int] | None] = []
        """Empty until the first row."""
        self._runs: list[_Run] = []
        self._rows = 0
        self.start = 0
        """Rows of lower offsets do not count."""

    def add(self, hash64: int, offset: int) -> None:
        """Add a row."""
        if not self._buckets:
            self._buckets = [None] * self._count
        number = hash64 & (self._count - 1)
        bucket = self._buckets[number]
        if bucket is None:
            bucket = self._buckets[number] = array("Q")
        else:
            self._cut(bucket)
        if bucket and offset < bucket[-1]:
            self._insert(bucket, hash64, offset)  # its transaction was open for longer
        else:
            bucket.append(hash64)
            bucket.append(offset)
        self._rows += 1

    def add_run(self, hashes: array[int], offsets: array[int]) -> None:
        """Add rows in the order of their hashes. The index owns both arrays from now on."""
        self._runs.append(_Run(hashes, offsets, max(offsets) + 1))
        self._rows += len(hashes)

    @staticmethod
    def _insert(bucket: array[int], hash64: int, offset: int) -> None:
        at = len(bucket)
        while at and bucket[at - 1] > offset:
            at -= 2
        bucket.insert(at, offset)
        bucket.insert(at, hash64)

    def find(self, hash64: int) -> tuple[int, ...]:
        """The offsets of all rows with the hash. Two keys that share a hash have a row each."""
        found: list[int] = []
        for run in self._runs:
            hashes = run.hashes
            first = bisect_left(hashes, hash64)
            if first < len(hashes) and hashes[first] == hash64:
                found += self._same(run, first)
        bucket = self._buckets[hash64 & (self._count - 1)] if self._buckets else None
        if bucket is not None and hash64 in bucket:
            found += (bucket[at + 1] for at in range(0, len(bucket), 2) if bucket[at] == hash64)
        return tuple(offset for offset in found if offset >= self.start)

    @staticmethod
    def _same(run: _Run, first: int) -> array[int]:
        """The offsets of a run's rows with the same hash as the row at ``first``, which is the first of them."""
        last = first
        while last < len(run.hashes) and run.hashes[last] == run.hashes[first]:
            last += 1
        return run.offsets[first:last]

    def drop_below(self, offset: int) -> Steps[None]:
        """Forget the rows of lower offsets, with a yield after every few buckets. They do not count from now on. A run goes as a
        whole, so its older rows stay in memory until its newest one has expired."""
        self.start = max(self.start, offset)
        kept = [run for run in self._runs if run.end > self.start]
        self._rows -= sum(len(run.hashes) for run in self._runs) - sum(len(run.hashes) for run in kept)
        self._runs = kept
        for number in range(len(self._buckets)):
            bucket = self._buckets[number]
            if bucket is not None:
                self._cut(bucket)
                if not bucket:
                    self._buckets[number] = None
            if number % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                yield

    def _cut(self, bucket: array[int]) -> None:
        end = 0
        while end < len(bucket) and bucket[end + 1] < self.start:
            end += 2
        if end:
            del bucket[:end]
            self._rows -= end // 2

    def __len__(self) -> int:
        """Rows that are kept, those below ``start`` included until they are dropped."""
        return self._rows

    @property
    def memory_bytes(self) -> int:
        """Bytes that the rows take. Counted in one go: for tests and figures."""
        in_runs = sum(getsizeof(run.hashes) + getsizeof(run.offsets) for run in self._runs)
        return in_runs + getsizeof(self._buckets) + sum(getsizeof(each) for each in self._buckets if each is not None)
