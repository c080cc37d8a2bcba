"""Which partitions want a look, and when: against a plain reference that keeps every wish."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.replication.looks import STALE_MAX, Looks

ALL = 1_000


def test_nobody_is_looked_at_without_a_reason() -> None:
    looks: Looks[str] = Looks()
    assert looks.take(10**9, ALL) == []
    assert looks.next_ms() is None
    assert not looks.wanted


def test_a_wish_is_taken_once_and_before_its_time() -> None:
    looks: Looks[str] = Looks()
    looks.want_at("a", 100)
    looks.want("a")
    looks.want("a")
    assert looks.wanted
    assert looks.take(0, ALL) == ["a"]
    assert looks.take(100, ALL) == [], "the look that has come was for this reason too"


def test_a_time_comes_at_its_millisecond() -> None:
    looks: Looks[str] = Looks()
    looks.want_at("a", 100)
    assert looks.next_ms() == 100
    assert looks.take(99, ALL) == []
    assert looks.take(100, ALL) == ["a"]


def test_the_sooner_time_stays() -> None:
    looks: Looks[str] = Looks()
    looks.want_at("a", 100)
    looks.want_at("a", 500)
    assert looks.take(100, ALL) == ["a"]
    looks.want_at("a", 500)
    looks.want_at("a", 200)
    assert looks.take(200, ALL) == ["a"]
    assert looks.take(500, ALL) == []


def test_what_is_too_much_for_one_round_stays_wanted() -> None:
    looks: Looks[int] = Looks()
    for one in range(5):
        looks.want_at(one, 10)
    taken = looks.take(10, 2)
    assert looks.wanted
    taken += looks.take(10, 2) + looks.take(10, 2)
    assert sorted(taken) == [0, 1, 2, 3, 4]


def test_what_is_forgotten_is_not_looked_at() -> None:
    looks: Looks[str] = Looks()
    looks.want("a")
    looks.want_at("b", 10)
    looks.forget("a")
    looks.forget("b")
    assert looks.take(10, ALL) == []
    looks.want_at("b", 20)
    assert looks.take(20, ALL) == ["b"]


def test_void_times_do_not_pile_up() -> None:
    looks: Looks[int] = Looks()
    for round_number in range(10_000):
        looks.want_at(1, 10**9 - round_number)
    assert len(looks._times) <= STALE_MAX + 2


class Model(RuleBasedStateMachine):
    """A dictionary of the soonest time for each, where now is a time that is over."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: Looks[int] = Looks()
        self.soonest: dict[int, int] = {}
        self.now_ms = 0

    @rule(one=st.integers(0, 5))
    def want(self, one: int) -> None:
        self.looks.want(one)
        self.soonest[one] = -1

    @rule(one=st.integers(0, 5), in_ms=st.integers(0, 20))
    def want_at(self, one: int, in_ms: int) -> None:
        self.looks.want_at(one, self.now_ms + in_ms)
        self.soonest[one] = min(self.soonest.get(one, 10**9), self.now_ms + in_ms)

    @rule(one=st.integers(0, 5))
    def forget(self, one: int) -> None:
        self.looks.forget(one)
        self.soonest.pop(one, None)

    @rule(passed_ms=st.integers(0, 10), at_most=st.integers(1, 4))
    def take(self, passed_ms: int, at_most: int) -> None:
        self.now_ms += passed_ms
        due = {one for one, time_ms in self.soonest.items() if time_ms <= self.now_ms}
        taken = self.looks.take(self.now_ms, at_most)
        assert len(taken) == min(len(due), at_most)
        assert len(set(taken)) == len(taken)
        assert set(taken) <= due
        for one in taken:
            del self.soonest[one]
        for one in due - set(taken):
            self.soonest[one] = -1

    @invariant()
    def whoever_waits_is_woken_in_time(self) -> None:
        if not self.soonest:
            return
        next_ms = self.looks.next_ms()
        if min(self.soonest.values()) < 0:
            assert self.looks.wanted
        else:
            assert next_ms is not None
            assert next_ms <= min(self.soonest.values())


TestModel = Model.TestCase
