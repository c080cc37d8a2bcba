"""The window of a share-partition: its unfinished records, and so the progress of a share group (KIP-932). Pure.

    start                                  end
      │ acked │ acquired │ available │ … │  │ not looked at yet
      └────────── the window ─────────────┘

All records before ``start`` are finished. In the window, runs of neighbouring offsets share a state. A member **acquires** a
record for a limited time. Then the record is acknowledged, released, rejected, or its lock expires. A record that was delivered
too often is archived, so that a poisonous record does not stop a group. Finished records at the front leave the window.

Windows are values. An operation returns a new window, which replaces the old one after it is written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, RequestRejected

NOBODY: Final = ""


class RecordState(IntEnum):
    """Numbers as in Kafka's records."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


DONE: Final = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class AcknowledgeType(IntEnum):
    """A member's acknowledgement of a record."""

    GAP = 0
    """A gap: there is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The member needs more time (KIP-1222)."""


class Run(NamedTuple):
    """Offsets ``[first, end)`` with one state."""

    first: int
    end: int
    state: RecordState = RecordState.AVAILABLE
    delivery_count: int = 0
    member_id: str = NOBODY
    """The member that has acquired them."""
    until_ms: int = 0
    """The time at which the lock expires."""


class Acquired(NamedTuple):
    """Offsets ``[first, end)`` that a member has just acquired."""

    first: int
    end: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """A member's acknowledgement of ``[first, end)``: one type for all offsets, or one for each."""

    first: int
    end: int
    types: Sequence[int]


@dataclass(frozen=True, slots=True)
class Window:
    """A share-partition's progress."""

    start: int
    runs: tuple[Run, ...] = ()
    """Runs in order, without gaps, from ``start`` on."""

    @property
    def end(self) -> int:
        return self.runs[-1].end if self.runs else self.start

    @property
    def next_offset(self) -> int:
        """The first available offset."""
        return next((run.first for run in self.runs if run.state is RecordState.AVAILABLE), self.end)

    @property
    def done_count(self) -> int:
        """Number of finished records in the window."""
        return sum(run.end - run.first for run in self.runs if run.state in DONE)

    @property
    def next_due_ms(self) -> int | None:
        """The time at which the first lock expires."""
        return min((run.until_ms for run in self.runs if run.state is RecordState.ACQUIRED), default=None)

    def acquire(
        self,
        batches: Iterable[tuple[int, int]],
        member_id: str,
        until_ms: int,
        *,
        count_max: int,
        window_max: int,
        whole_batches: bool = False,
    ) -> tuple[Window, list[Acquired]]:
        """Give a member the available records of ``batches``, offset ranges in order, up to its limit of records.

        With ``whole_batches`` the last batch is not cut at the limit (KIP-1206: batch-optimized).

        The window grows over the batches, up to ``window_max`` offsets.
        """
        before, after = deque(self.runs), list[Run]()
        acquired: list[Acquired] = []
        end, left = self.end, count_max
        for first, batch_end in batches:
            limit = min(batch_end, self.start + window_max)
            if limit > end:
                before.append(Run(end, limit))
                end = limit
            if left <= 0:
                break
            for run in _acquire(before, after, first, batch_end, left, member_id, until_ms, whole=whole_batches):
                left -= run.end - run.first
                last = acquired[-1] if acquired else None
                if last is not None and last.end == run.first and last.delivery_count == run.delivery_count:
                    acquired[-1] = last._replace(end=run.end)
                else:
                    acquired.append(Acquired(run.first, run.end, run.delivery_count))
        return self._with([*after, *before]), acquired

    def archive(self, ranges: Iterable[tuple[int, int]], *, window_max: int) -> Window:
        """Finish the available records in these offset ranges, in order, because no member must get them: control records, or
        records of aborted transactions. Ranges that begin more than ``window_max`` after the start are handled later."""
        runs = list(self.runs)
        start, end, done = self.start, self.end, 0
        for first, range_end in ranges:
            while done < len(runs) and runs[done].state in DONE:
                start = runs[done].end
                done += 1
            if first >= start + window_max:
                break
            if range_end > end:
                runs.append(Run(end, range_end))
                end = range_end
            _change(runs, first, range_end, _archived)
        return self._with(runs)

    def acknowledge(
        self, member_id: str, said: Iterable[Acknowledgement], until_ms: int, *, deliveries_max: int
    ) -> Window:
        """Apply a member's acknowledgements of its records. Acknowledgements of records that have left the window are ignored.

        Raises: RequestRejected INVALID_RECORD_STATE for records that the member does not have, INVALID_REQUEST for malformed
        acknowledgements or offsets beyond the window; then no part of the request counts.
        """
        runs = list(self.runs)
        for each in said:
            _check(each)
            if each.end > self.end:
                raise RequestRejected(
                    ErrorCode.INVALID_REQUEST, "Offsets are acknowledged that were given to nobody yet."
                )
            for first, end, kind in pieces(each):
                first = max(first, self.start)
                if first >= end:
                    continue
                if not _has(runs, first, end, member_id):
                    raise RequestRejected(
                        ErrorCode.INVALID_RECORD_STATE,
                        "The record state is invalid. The acknowledgement could not be completed.",
                    )
                _change(runs, first, end, lambda run, k=kind: _acknowledged(run, k, until_ms, deliveries_max))  # type: ignore[misc]
        return self._with(runs)

    def expire(self, now_ms: int, *, deliveries_max: int) -> Window:
        """Release records whose lock has expired."""
        return self._with(
            _given_back(run, deliveries_max) if run.state is RecordState.ACQUIRED and run.until_ms <= now_ms else run
            for run in self.runs
        )

    def release(self, member_id: str, *, deliveries_max: int) -> Window:
        """A member is gone: release its records. These deliveries count; otherwise a record that crashes its readers would be
        delivered for ever."""
        return self._with(
            _given_back(run, deliveries_max)
            if run.state is RecordState.ACQUIRED and run.member_id == member_id
            else run
            for run in self.runs
        )

    @property
    def acquired_count(self) -> int:
        """Number of acquired offsets."""
        return sum(run.end - run.first for run in self.runs if run.state is RecordState.ACQUIRED)

    def begin_at(self, start: int) -> Window:
        """Move the window's start to ``start``, because earlier records no longer exist."""
        if start <= self.start:
            return self
        runs = [run._replace(first=max(run.first, start)) for run in self.runs if run.end > start]
        return Window(start)._with(runs)

    def with_runs(self, start: int, runs: Sequence[Run]) -> Window:
        """A window that begins at ``start``, in which these runs, in order, replace the runs at their offsets."""
        kept: list[Run] = []
        for run in self.begin_at(start).runs:
            first = run.first
            for other in runs[bisect_right(runs, first, key=_end) : bisect_left(runs, run.end, key=_first)]:
                if first < other.first:
                    kept.append(run._replace(first=first, end=other.first))
                first = other.end
            if first < run.end:
                kept.append(run._replace(first=first))
        return Window(max(start, self.start))._with(sorted([*kept, *runs], key=_first))

    def _with(self, runs: Iterable[Run]) -> Window:
        """A window with other runs. Finished runs at the front leave it, and equal neighbours are merged."""
        start = self.start
        merged: list[Run] = []
        for run in runs:
            if not merged and run.state in DONE:
                start = run.end
            elif merged and merged[-1][2:] == run[2:]:
                merged[-1] = merged[-1]._replace(end=run.end)
            else:
                merged.append(run)
        return Window(start, tuple(merged))


def _acquire(
    before: deque[Run],
    after: list[Run],
    first: int,
    end: int,
    left: int,
    member_id: str,
    until_ms: int,
    *,
    whole: bool,
) -> Iterator[Run]:
    """Give the available records of a batch to a member, run by run. Runs that no later batch can reach move from ``before`` to
    ``after``."""
    left = max(left, end - first) if whole else left
    while before and before[0].end <= first:
        after.append(before.popleft())
    while before and before[0].first < end and left > 0:
        run = before.popleft()
        start, stop = max(run.first, first), min(run.end, end)
        if run.state is not RecordState.AVAILABLE:
            if run.end > end:
                before.appendleft(run)
                return
            after.append(run)
            continue
        stop = min(stop, start + left)
        left -= stop - start
        if run.first < start:
            after.append(run._replace(end=start))
        given = Run(start, stop, RecordState.ACQUIRED, run.delivery_count + 1, member_id, until_ms)
        after.append(given)
        if stop < run.end:
            before.appendleft(run._replace(first=stop))
        yield given


def _span(runs: Sequence[Run], first: int, end: int) -> tuple[int, int]:
    """Indexes of the runs that overlap ``[first, end)``."""
    return max(bisect_right(runs, first, key=_first) - 1, 0), bisect_left(runs, end, key=_first)


def _first(run: Run) -> int:
    return run.first


def _end(run: Run) -> int:
    return run.end


def _change(runs: list[Run], first: int, end: int, change: Callable[[Run], Run]) -> None:
    """Change the runs in ``[first, end)``, in place."""
    here, behind = _span(runs, first, end)
    after: list[Run] = []
    for run in runs[here:behind]:
        start, stop = max(run.first, first), min(run.end, end)
        if start >= stop:
            after.append(run)
            continue
        if run.first < start:
            after.append(run._replace(end=start))
        after.append(change(run._replace(first=start, end=stop)))
        if stop < run.end:
            after.append(run._replace(first=stop))
    runs[here:behind] = after


def _has(runs: Sequence[Run], first: int, end: int, member_id: str) -> bool:
    here, behind = _span(runs, first, end)
    return all(
        run.state is RecordState.ACQUIRED and run.member_id == member_id for run in runs[here:behind] if run.end > first
    )


def _archived(run: Run) -> Run:
    return run._replace(state=RecordState.ARCHIVED) if run.state is RecordState.AVAILABLE else run


def _given_back(run: Run, deliveries_max: int) -> Run:
    state = RecordState.ARCHIVED if run.delivery_count >= deliveries_max else RecordState.AVAILABLE
    return Run(run.first, run.end, state, run.delivery_count)


def _acknowledged(run: Run, kind: AcknowledgeType, until_ms: int, deliveries_max: int) -> Run:
    match kind:
        case AcknowledgeType.ACCEPT:
            return Run(run.first, run.end, RecordState.ACKNOWLEDGED, run.delivery_count)
        case AcknowledgeType.RELEASE:
            return _given_back(run, deliveries_max)
        case AcknowledgeType.RENEW:
            return run._replace(until_ms=until_ms)
        case AcknowledgeType.GAP | AcknowledgeType.REJECT:
            return Run(run.first, run.end, RecordState.ARCHIVED, run.delivery_count)


def _check(said: Acknowledgement) -> None:
    """Raises: RequestRejected INVALID_REQUEST."""
    count = said.end - said.first
    if count <= 0 or len(said.types) not in (1, count):
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST, "An acknowledgement needs an offset range and one type, or one for each."
        )
    if any(not AcknowledgeType.GAP <= kind <= AcknowledgeType.RENEW for kind in said.types):
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "There is no such acknowledgement type.")


def pieces(said: Acknowledgement) -> list[tuple[int, int, AcknowledgeType]]:
    """Acknowledgements by type, with neighbours merged."""
    if len(said.types) == 1:
        return [(said.first, said.end, AcknowledgeType(said.types[0]))]
    found: list[tuple[int, int, AcknowledgeType]] = []
    for offset, kind in enumerate(said.types, said.first):
        if found and found[-1][2] == kind:
            found[-1] = (found[-1][0], offset + 1, found[-1][2])
        else:
            found.append((offset, offset + 1, AcknowledgeType(kind)))
    return found
