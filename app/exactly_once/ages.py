"""The ages of results, without trust in any clock (ADR 0043, EO10). Pure.

A result's age is the sum of the gaps between the appends after it. A gap counts as two minutes at most, and as zero if the clock
went back. While there are results, the coordinator appends a tick each minute. So a clock that jumps ahead by a day adds two
minutes, and the next leader's clock counts from its own first append on. A result may be kept for longer, and never for less.

Results are counted in slices of a minute: a slice expires as a whole, and takes the counts of its principals along. Tests:
``tests/exactly_once/test_ages.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from app.core.errors import CorruptionError
from app.exactly_once.bounds import Amount, Usage

if TYPE_CHECKING:
    from app.exactly_once.columns import Columns

GAP_MAX_MS: Final = 120_000
TICK_MS: Final = 60_000
SLICE_MS: Final = 60_000


@dataclass(slots=True)
class _Slice:
    first_offset: int
    begun_ms: int
    newest_ms: int
    """Ages are counted from its newest result, so none expires too early."""
    amounts: dict[str, Amount] = field(default_factory=dict)


class Ages:
    """The slices of one partition."""

    __slots__ = ("_elapsed_ms", "_last_ms", "_slices", "_usage")

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._elapsed_ms = 0
        """The sum of the gaps since the first append that was read."""
        self._last_ms: int | None = None
        self._slices: deque[_Slice] = deque()

    def pass_time(self, appended_ms: int) -> None:
        """Note the time of an append, as its leader's clock showed it."""
        if self._last_ms is not None:
            self._elapsed_ms += min(max(0, appended_ms - self._last_ms), GAP_MAX_MS)
        self._last_ms = appended_ms

    def add(self, offset: int, principal: str, size_bytes: int) -> None:
        """Count a result that was appended now, also while its transaction is open."""
        last = self._slice_at(offset, self._elapsed_ms)
        last.newest_ms = self._elapsed_ms
        self._count(last, principal, Amount(1, size_bytes))

    def add_columns(self, columns: Columns, overhead_bytes: int) -> None:
        """As ``pass_time`` and ``add`` for each result in ``columns``, with so many bytes more for each."""
        if not len(columns.offsets):
            return
        last_ms = int(columns.appended_ms[0]) if self._last_ms is None else self._last_ms
        elapsed = columns.elapsed_ms(last_ms, GAP_MAX_MS) + self._elapsed_ms
        start, count = 0, len(elapsed)
        while start < count:
            slice = self._slice_at(int(columns.offsets[start]), int(elapsed[start]))
            end = int(elapsed.searchsorted(slice.begun_ms + SLICE_MS))
            slice.newest_ms = int(elapsed[end - 1])
            for principal, keys, size_bytes in columns.amounts(start, end, overhead_bytes):
                self._count(slice, principal, Amount(keys, size_bytes))
            start = end
        self._elapsed_ms = int(elapsed[-1])
        self._last_ms = int(columns.appended_ms[-1])

    def _slice_at(self, offset: int, elapsed_ms: int) -> _Slice:
        last = self._slices[-1] if self._slices else None
        if last is None or elapsed_ms - last.begun_ms >= SLICE_MS:
            last = _Slice(offset, elapsed_ms, elapsed_ms)
            self._slices.append(last)
        return last

    def _count(self, slice: _Slice, principal: str, amount: Amount) -> None:
        slice.amounts.setdefault(principal, Amount()).add(amount)
        self._usage.change(principal, amount)

    def remove(self, offset: int, principal: str, size_bytes: int) -> None:
        """Take back a result whose transaction was aborted. Raises: CorruptionError if no such result was counted."""
        at = bisect_right(self._slices, offset, key=lambda one: one.first_offset) - 1
        if at < 0:
            return  # it has expired
        amounts = self._slices[at].amounts
        amount = Amount(1, size_bytes)
        counted = amounts.get(principal)
        if counted is None:
            raise CorruptionError(f"A result at offset {offset} is not where the log has it.")
        counted.add(amount, -1)
        if counted.nothing:
            del amounts[principal]
        self._usage.change(principal, amount, -1)

    def is_kept(self, offset: int, retention_ms: int) -> bool:
        """Whether a result is younger than ``retention_ms``, as far as its slice tells."""
        at = bisect_right(self._slices, offset, key=lambda one: one.first_offset) - 1
        return at >= 0 and self._elapsed_ms - self._slices[at].newest_ms < retention_ms

    def expire(self, retention_ms: int, log_end: int, first_open: int | None) -> int:
        """Forget slices that are older than ``retention_ms``. Returns: the offset below which no result is needed any more.

        A slice with an open result, or behind one, stays: ``first_open`` is the lowest offset of those.
        """
        while self._slices and self._elapsed_ms - self._slices[0].newest_ms >= retention_ms:
            end = self._slices[1].first_offset if len(self._slices) > 1 else log_end
            if first_open is not None and first_open < end:
                break
            self._forget(self._slices.popleft())
        return self._slices[0].first_offset if self._slices else (log_end if first_open is None else first_open)

    def forget_all(self) -> None:
        """Take all counts back: this broker leads the partition no more."""
        while self._slices:
            self._forget(self._slices.popleft())

    def _forget(self, slice: _Slice) -> None:
        for principal, amount in slice.amounts.items():
            self._usage.change(principal, amount, -1)

    @property
    def is_empty(self) -> bool:
        """Whether there is no result."""
        return not self._slices
