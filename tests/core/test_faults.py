"""Lines about faults: when one begins, every so often, when it is over; and never many."""

from __future__ import annotations

import pytest

from app.core.errors import (
    CorruptionError,
    DirectoryOffline,
    ErrorCode,
    FirnError,
    RequestRejected,
    StorageFull,
    StorageUnavailable,
)
from app.core.faults import QUIET_S, REPEAT_FIRST_S, REPEAT_MAX_S, SUBJECTS_MAX, Faults, Limited, met_bug


class Bench:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now_s = 1000.0
        self.faults = Faults(self.lines.append, lambda: self.now_s)

    def wait(self, seconds: float) -> None:
        """Time passes, and the fault log is looked at every second."""
        for _ in range(int(seconds)):
            self.now_s += 1
            self.faults.look()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_fault_is_one_line_when_it_begins_and_one_when_it_is_over_with_how_long_and_how_often(bench):
    for _ in range(50):
        bench.faults.met("reading", "t-0", "reading t-0 fails: the disk is away")
        bench.wait(1)
    assert bench.lines == ["reading t-0 fails: the disk is away"]
    bench.wait(QUIET_S)
    assert bench.lines[1:] == ["over after 49 s: reading t-0 failed 50 times"]
    assert bench.faults.active == 0


def test_a_fault_that_goes_on_is_told_every_so_often_and_ever_less(bench):
    for second in range(3600):
        for _ in range(100):
            bench.faults.met("reading", "t-0", f"it is bad since {second} s")
        bench.wait(1)
    assert bench.lines[1] == f"it is bad since 60 s (6001 times in {REPEAT_FIRST_S:.0f} s; it goes on)"
    assert len(bench.lines) == 1 + 4 + (3600 - 900) // int(REPEAT_MAX_S)


def test_what_fails_every_other_time_is_one_fault(bench):
    for _ in range(25):
        bench.faults.met("the object store", "get", "503")
        bench.wait(1)
        bench.faults.over("the object store", "get")
        bench.wait(1)
    assert bench.lines == ["503"]


def test_a_fault_that_lasts_is_told_on_without_being_met_until_it_is_over(bench):
    bench.faults.met("the log directory", "/data", "it is offline", lasting=True)
    bench.wait(REPEAT_FIRST_S)
    assert bench.lines == ["it is offline", f"it is offline (once in {REPEAT_FIRST_S:.0f} s; it goes on)"]
    bench.wait(60)
    bench.faults.over("the log directory", "/data")
    bench.wait(QUIET_S)
    assert bench.lines[2:] == ["over after 120 s: the log directory /data failed once"]


def test_a_burst_is_told_line_by_line_and_then_counted(bench):
    for number in range(262_000):
        bench.faults.met("frames", "10.0.0.1", f"frame {number}", burst=5)
        if number % 5000 == 0:
            bench.wait(1)
    assert bench.lines[:5] == [f"frame {number}" for number in range(5)]
    bench.wait(QUIET_S)
    assert len(bench.lines) == 6
    assert bench.lines[5].endswith("frames 10.0.0.1 failed 262000 times")


def test_of_many_subjects_a_few_are_told_one_by_one_and_the_others_together(bench):
    for _ in range(3):
        for number in range(10_000):
            bench.faults.met("frames", f"10.0.{number}", f"frame of {number}", burst=5)
    assert len(bench.lines) == 3 * SUBJECTS_MAX + 1
    assert bench.faults.active == SUBJECTS_MAX + 1
    bench.faults.met("reading", "t-0", "another kind")
    assert bench.lines[-1] == "another kind"
    bench.wait(QUIET_S)
    assert bench.faults.active == 0
    bench.lines.clear()
    bench.faults.met("frames", "10.0.9999", "told again")
    assert bench.lines == ["told again"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageUnavailable("away"), True),
        (StorageFull("full"), True),
        (CorruptionError("damaged"), True),
        (DirectoryOffline("the log directory is offline"), False),
        (RequestRejected(ErrorCode.OFFSET_OUT_OF_RANGE, "no such offset"), False),
    ],
)
def test_refusals_are_no_faults(bench, error: FirnError, told: bool):
    bench.faults.met_error("reading", "t-0", error)
    assert bench.lines == ([f"reading t-0 fails: {error}"] if told else [])


def test_lines_that_clients_cause_are_limited_and_what_is_left_out_is_counted(bench):
    say = Limited(bench.lines.append, lambda: bench.now_s, lines_max=3, period_s=60)
    for number in range(100):
        say(f"line {number}")
    assert bench.lines == ["line 0", "line 1", "line 2"]
    bench.wait(60)
    say("another")
    say("one more")
    assert bench.lines[3:] == ["another (97 lines like this were left out before it)", "one more"]


def test_a_bug_is_told_once_however_often_it_is_met_and_two_bugs_are_two(bench):
    def first(text):
        raise AssertionError(text)

    def second():
        return {}["key"]

    def meet(work):
        try:
            work()
        except (AssertionError, KeyError) as error:
            return met_bug(bench.faults, "a request failed", error)

    assert [meet(lambda: first("one")), meet(lambda: first("two")), meet(second), meet(second)] == [True, False] * 2
    assert bench.lines == [
        "internal error, please report it: a request failed: AssertionError('one')",
        "internal error, please report it: a request failed: KeyError('key')",
    ]
