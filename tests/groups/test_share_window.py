"""A share-partition's window, held against a model that keeps every offset by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.core.errors import ErrorCode, RequestRejected
from app.groups.share.core.share_window import Acknowledgement, AcknowledgeType, Acquired, RecordState, Run, Window

LIMIT = 3
WINDOW_MAX = 20
AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED


def acquire(
    window: Window, first: int, end: int, member: str = "m", *, count: int = 100
) -> tuple[Window, list[Acquired]]:
    return window.acquire([(first, end)], member, 1000, count_max=count, window_max=WINDOW_MAX)


def said(first: int, end: int, *types: int) -> list[Acknowledgement]:
    return [Acknowledgement(first, end, types)]


def test_what_is_acknowledged_at_the_front_leaves_the_window() -> None:
    window, acquired = acquire(Window(5), 5, 10)
    assert acquired == [Acquired(5, 10, 1)]
    window = window.acknowledge("m", said(7, 9, AcknowledgeType.ACCEPT), 0, deliveries_max=LIMIT)
    assert (window.start, window.end, window.done_count) == (5, 10, 2)
    window = window.acknowledge("m", said(5, 7, 1), 0, deliveries_max=LIMIT)
    assert (window.start, window.runs) == (9, (Run(9, 10, ACQUIRED, 1, "m", 1000),))


def test_what_somebody_has_is_given_to_nobody_else() -> None:
    window, _ = acquire(Window(0), 0, 4)
    assert window.next_offset == 4
    window, acquired = acquire(window, 0, 6, "other")
    assert acquired == [Acquired(4, 6, 1)]


def test_no_more_records_are_given_than_were_asked_for_and_the_window_allows() -> None:
    window, acquired = acquire(Window(0), 0, 10, count=3)
    assert acquired == [Acquired(0, 3, 1)]
    assert window.next_offset == 3
    window, acquired = acquire(window, 3, 50)
    assert (acquired, window.end) == ([Acquired(3, WINDOW_MAX, 1)], WINDOW_MAX)


def test_a_record_that_was_delivered_too_often_is_archived() -> None:
    window = Window(0)
    for delivery in range(1, LIMIT + 1):
        window, acquired = acquire(window, 0, 1)
        assert acquired == [Acquired(0, 1, delivery)]
        window = window.acknowledge("m", said(0, 1, AcknowledgeType.RELEASE), 0, deliveries_max=LIMIT)
    assert (window.start, window.runs) == (1, ())


def test_time_brings_back_what_was_acquired_and_renewing_puts_that_off() -> None:
    window, _ = acquire(Window(0), 0, 2)
    assert window.next_due_ms == 1000
    window = window.acknowledge("m", said(0, 1, AcknowledgeType.RENEW), 5000, deliveries_max=LIMIT)
    window = window.expire(1000, deliveries_max=LIMIT)
    assert window.runs == (Run(0, 1, ACQUIRED, 1, "m", 5000), Run(1, 2, AVAILABLE, 1))


def test_deliveries_to_a_member_that_leaves_count() -> None:
    window = Window(0)
    for delivery in range(1, LIMIT + 1):
        window, acquired = acquire(window, 0, 2)
        assert acquired == [Acquired(0, 2, delivery)]
        assert window.release("other", deliveries_max=LIMIT) == window
        window = window.release("m", deliveries_max=LIMIT)
    assert window == Window(2)


def test_each_offset_may_have_a_type_of_its_own() -> None:
    window, _ = acquire(Window(0), 0, 4)
    window = window.acknowledge("m", said(0, 4, 1, 2, 0, 3), 0, deliveries_max=LIMIT)
    assert window.start == 1
    assert window.runs == (Run(1, 2, AVAILABLE, 1), Run(2, 4, ARCHIVED, 1))


@pytest.mark.parametrize(
    ("acknowledgement", "code"),
    [
        (Acknowledgement(0, 0, [1]), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(0, 3, [1, 1]), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(0, 2, []), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(0, 2, [5]), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(0, 2, [-1]), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(0, 9, [1]), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(3, 5, [1]), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_makes_no_sense_counts_for_nothing(acknowledgement: Acknowledgement, code: ErrorCode) -> None:
    window, _ = acquire(Window(0), 0, 4)
    with pytest.raises(RequestRejected) as refused:
        window.acknowledge("m", [Acknowledgement(0, 1, [1]), acknowledgement], 0, deliveries_max=LIMIT)
    assert refused.value.code is code
    with pytest.raises(RequestRejected) as refused:
        window.acknowledge("other", said(0, 1, 1), 0, deliveries_max=LIMIT)
    assert refused.value.code is ErrorCode.INVALID_RECORD_STATE


def test_a_late_word_on_what_left_the_window_is_taken() -> None:
    window, _ = acquire(Window(0), 0, 4)
    window = window.begin_at(2)
    assert window.acknowledge("m", said(-1, 2, 1), 0, deliveries_max=LIMIT) == window
    assert window.acknowledge("m", said(0, 4, 1), 0, deliveries_max=LIMIT) == Window(4)


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, which is the same on every machine."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_window_of_single_records_costs_as_much_for_each_as_a_short_one() -> None:
    """A producer that sends records one by one, and a member that says of each something else than of its neighbours."""

    def costs(count: int) -> list[int]:
        batches = [(offset, offset + 1) for offset in range(count)]
        window, _ = Window(0).acquire(batches, "m", 1000, count_max=count, window_max=count)
        kinds = [AcknowledgeType.RELEASE, AcknowledgeType.ACCEPT] * (count // 2)
        one_each = [Acknowledgement(offset, offset + 1, [kind]) for offset, kind in enumerate(kinds)]
        after = window.acknowledge("m", one_each, 0, deliveries_max=LIMIT)
        return [
            calls_of(lambda: Window(0).acquire(batches, "m", 1000, count_max=count, window_max=count)),
            calls_of(lambda: after.acquire(batches, "m", 1000, count_max=count, window_max=count)),
            calls_of(lambda: window.acknowledge("m", one_each, 0, deliveries_max=LIMIT)),
            calls_of(lambda: window.acknowledge("m", said(0, count, *kinds), 0, deliveries_max=LIMIT)),
            calls_of(lambda: after.archive(batches, window_max=count)),
        ]

    for short, long in zip(costs(100), costs(400), strict=True):
        assert long < 8 * short  # four times as many records


@dataclass
class Offset:
    state: RecordState = AVAILABLE
    count: int = 0
    member: str = ""
    until_ms: int = 0


MEMBERS = st.sampled_from(["a", "b"])
OFFSETS = st.integers(0, 30)
RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), min_size=1, max_size=4)


class WindowMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window = Window(0)
        self.model: dict[int, Offset] = {}
        self.start = 0
        self.now_ms = 0

    def trim(self) -> None:
        while self.start in self.model and self.model[self.start].state in (ACKNOWLEDGED, ARCHIVED):
            del self.model[self.start]
            self.start += 1

    def grow(self, end: int) -> None:
        for offset in range(max(self.start, max(self.model, default=self.start - 1) + 1), end):
            self.model[offset] = Offset()

    @rule(member=MEMBERS, asked=RANGES, count=st.integers(1, 20), whole=st.booleans())
    def acquire(self, member: str, asked: list[tuple[int, int]], count: int, whole: bool) -> None:
        batches = self.ranges(asked)
        until_ms = self.now_ms + 50
        self.window, acquired = self.window.acquire(
            batches, member, until_ms, count_max=count, window_max=WINDOW_MAX, whole_batches=whole
        )
        given: list[tuple[int, int]] = []
        for first, end in batches:
            self.grow(min(end, self.start + WINDOW_MAX))
            if len(given) >= count:
                break
            for offset in range(first, end):
                record = self.model.get(offset)
                if record is not None and record.state is AVAILABLE and (whole or len(given) < count):
                    record.state, record.member, record.until_ms = ACQUIRED, member, until_ms
                    record.count += 1
                    given.append((offset, record.count))
        assert [(o, run.delivery_count) for run in acquired for o in range(run.first, run.end)] == given

    def ranges(self, asked: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Offset ranges in order, from the first offset that is available on: gaps and lengths."""
        found = []
        at = self.window.next_offset
        for gap, length in asked:
            found.append((at + gap, at + gap + length))
            at += gap + length
        return found

    @rule(member=MEMBERS, first=OFFSETS, kinds=st.lists(st.sampled_from(AcknowledgeType), min_size=1, max_size=8))
    def acknowledge(self, member: str, first: int, kinds: list[AcknowledgeType]) -> None:
        """One type for each offset, in one acknowledgement or in one for each."""
        first += max(0, self.start - 10)
        end = first + len(kinds)
        wanted = range(max(first, self.start), end)
        allowed = all(
            offset in self.model and self.model[offset].state is ACQUIRED and self.model[offset].member == member
            for offset in wanted
        )
        one_each = [Acknowledgement(offset, offset + 1, [kind]) for offset, kind in enumerate(kinds, first)]
        together = [Acknowledgement(first, end, kinds)]
        if not allowed:
            with pytest.raises(RequestRejected) as refused:
                self.window.acknowledge(member, together, self.now_ms + 50, deliveries_max=LIMIT)
            known_end = max(self.start, max(self.model, default=-1) + 1)
            code = ErrorCode.INVALID_REQUEST if end > known_end else ErrorCode.INVALID_RECORD_STATE
            assert refused.value.code is code
            return
        window = self.window.acknowledge(member, one_each[::-1], self.now_ms + 50, deliveries_max=LIMIT)
        self.window = self.window.acknowledge(member, together, self.now_ms + 50, deliveries_max=LIMIT)
        assert window == self.window
        for offset in wanted:
            self.settle(self.model[offset], kinds[offset - first])
        self.trim()

    def settle(self, record: Offset, kind: AcknowledgeType) -> None:
        match kind:
            case AcknowledgeType.ACCEPT:
                record.state = ACKNOWLEDGED
            case AcknowledgeType.RELEASE:
                record.state = ARCHIVED if record.count >= LIMIT else AVAILABLE
            case AcknowledgeType.RENEW:
                record.until_ms = self.now_ms + 50
            case _:
                record.state = ARCHIVED

    @rule(passed_ms=st.integers(1, 40))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.window = self.window.expire(self.now_ms, deliveries_max=LIMIT)
        for record in self.model.values():
            if record.state is ACQUIRED and record.until_ms <= self.now_ms:
                self.settle(record, AcknowledgeType.RELEASE)
        self.trim()

    @rule(member=MEMBERS)
    def member_leaves(self, member: str) -> None:
        self.window = self.window.release(member, deliveries_max=LIMIT)
        for record in self.model.values():
            if record.state is ACQUIRED and record.member == member:
                self.settle(record, AcknowledgeType.RELEASE)
        self.trim()

    @rule(asked=RANGES)
    def nobody_shall_get(self, asked: list[tuple[int, int]]) -> None:
        ranges = self.ranges(asked)
        self.window = self.window.archive(ranges, window_max=WINDOW_MAX)
        for first, end in ranges:
            if first >= self.start + WINDOW_MAX:
                break
            self.grow(end)
            for offset in range(first, end):
                record = self.model.get(offset)
                if record is not None and record.state is AVAILABLE:
                    record.state = ARCHIVED
            self.trim()

    @rule(ahead=st.integers(0, 6))
    def the_log_begins_later(self, ahead: int) -> None:
        start = self.start + ahead
        self.window = self.window.begin_at(start)
        self.model = {offset: record for offset, record in self.model.items() if offset >= start}
        self.start = start
        self.trim()

    @invariant()
    def the_window_says_what_the_model_says(self) -> None:
        assert self.window.start == self.start
        found = {
            offset: (run.state, run.delivery_count, run.member_id if run.state is ACQUIRED else "")
            for run in self.window.runs
            for offset in range(run.first, run.end)
        }
        expected = {
            offset: (record.state, record.count, record.member if record.state is ACQUIRED else "")
            for offset, record in self.model.items()
        }
        assert found == expected

    @invariant()
    def runs_are_in_order_without_gaps(self) -> None:
        at = self.window.start
        for run in self.window.runs:
            assert run.first == at < run.end
            at = run.end


WindowMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_windows_behave_like_a_plain_model = WindowMachine.TestCase
