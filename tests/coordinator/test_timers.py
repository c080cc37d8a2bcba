"""Deadlines: each key is due once, at its last deadline, whatever was set before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.coordinator.timers import Timers

actions = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(actions)
def test_as_a_plain_dictionary_of_deadlines(script: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    plain: dict[int, int] = {}
    now = 0
    for action, key, number in script:
        if action == "set":
            timers.set(key, now + number)
            plain[key] = now + number
        elif action == "cancel":
            timers.cancel(key)
            plain.pop(key, None)
        else:
            now += number
            due = []
            while (found := timers.pop_due(now)) is not None:
                due.append(found)
            expected = [each for each, deadline in plain.items() if deadline <= now]
            assert sorted(due) == sorted(expected)
            for each in expected:
                del plain[each]
        assert len(timers) == len(plain)
        assert all(each in timers for each in plain)
        next_ms = timers.next_ms()
        if plain:
            assert next_ms is not None
            assert next_ms <= min(plain.values())


def test_deadlines_that_move_do_not_pile_up() -> None:
    timers: Timers[str] = Timers()
    for now in range(10_000):
        timers.set("member", now + 10)
        assert timers.pop_due(now) is None
    assert len(timers._heap) <= 2
    assert timers.pop_due(10_008) is None
    assert timers.pop_due(10_009) == "member"
