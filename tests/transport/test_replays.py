"""How replays share the loop with everything else: the pace, and the order of turns."""

from __future__ import annotations

import asyncio

import pytest

from app.transport.replays import REST_S_MAX, SHARE_MIN, WATCH_S, ReplayPace, ReplayTurns
from tests.support.virtual_loop import VirtualLoop, run_virtual

ANSWER_S = 0.001


def replay_alone_with(others_share: float) -> float:
    """The part of the loop that one replay without end gets in the long run while others take ``others_share`` of it."""
    pace = ReplayPace()
    now_s = taken_s = 0.0
    while now_s < 60.0:
        wait_s = pace.wait_s(now_s)
        now_s += wait_s + ANSWER_S
        pace.others_s += (wait_s + ANSWER_S) * others_share
        pace.took(now_s, ANSWER_S)
        taken_s += ANSWER_S
    return taken_s / now_s


def test_nothing_is_held_back_while_nobody_else_is_there() -> None:
    assert replay_alone_with(0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(("others", "share"), [(0.1, 0.8), (0.25, 0.5), (0.4, 0.2), (0.45, 0.1), (0.9, SHARE_MIN)])
def test_the_busier_others_are_the_less_a_replay_takes_but_never_nothing(others: float, share: float) -> None:
    assert replay_alone_with(others) == pytest.approx(share, rel=0.1)


def test_a_long_answer_is_followed_by_a_rest_of_bounded_length() -> None:
    pace = ReplayPace()
    pace.took(0.0, ANSWER_S)
    pace.others_s += 10.0
    pace.took(10.0, 5.0)

    assert pace.wait_s(10.0) == REST_S_MAX
    assert pace.wait_s(10.0 + REST_S_MAX) == 0.0


def test_a_replay_gets_the_whole_loop_again_soon_after_others_have_stopped() -> None:
    pace = ReplayPace()
    pace.took(0.0, ANSWER_S)
    pace.others_s += 0.9
    pace.took(1.0, ANSWER_S)
    pace.took(2.0, ANSWER_S)

    assert pace.wait_s(2.0) < ANSWER_S


def busy_turns() -> ReplayTurns:
    """On a loop on which a replay just has to rest for the longest time."""
    turns = ReplayTurns()
    now_s = turns.elapsed_s()
    turns.pace.took(now_s - 10.0, 0.0)
    turns.pace.others_s += 10.0
    turns.pace.took(now_s, 1.0)
    return turns


def test_turns_are_taken_in_order_of_arrival_and_newcomers_wait_behind() -> None:
    async def scenario(_: VirtualLoop) -> None:
        turns, called = busy_turns(), list[str]()
        assert not turns.may_go_on("first")
        turns.wait("first", lambda: called.append("first"))
        turns.wait("second", lambda: called.append("second"))
        while not called:
            await asyncio.sleep(0.0001)

        assert called == ["first"]
        assert not turns.may_go_on("newcomer")
        assert not turns.may_go_on("second")
        assert turns.may_go_on("first")
        assert not turns.may_go_on("first")
        while len(called) < 2:
            await asyncio.sleep(0.0001)
        assert turns.may_go_on("second")
        assert turns.may_go_on("newcomer")

    run_virtual(scenario)


def test_one_whose_requests_are_answered_without_keeps_its_place_and_holds_nobody_up() -> None:
    async def scenario(_: VirtualLoop) -> None:
        turns, called = busy_turns(), list[str]()
        turns.wait("mixed", lambda: called.append("mixed"))()
        turns.wait("replay", lambda: called.append("replay"))
        turns.wait("mixed", lambda: called.append("mixed"))()
        while not called:
            await asyncio.sleep(0.0001)

        turns.pace.took(turns.elapsed_s(), 1.0)
        assert called == ["replay"]
        assert not turns.may_go_on("newcomer")
        assert turns.may_go_on("mixed")
        assert turns.may_go_on("replay")

    run_virtual(scenario)


def test_who_has_left_is_not_called() -> None:
    async def scenario(_: VirtualLoop) -> None:
        turns, called = busy_turns(), list[str]()
        turns.wait("gone", lambda: called.append("gone"))
        turns.wait("stays", lambda: called.append("stays"))
        turns.forget("gone")
        turns.forget("gone")
        while not called:
            await asyncio.sleep(0.0001)

        assert called == ["stays"]

    run_virtual(scenario)


def test_the_time_that_others_take_is_noted_from_a_replay_until_a_while_after_the_last() -> None:
    now_s = 100.0
    turns = ReplayTurns(lambda: now_s)
    assert not turns.watched
    assert turns.may_go_on("replay")
    assert turns.watched
    now_s += WATCH_S - 1
    turns.account(now_s - 0.5, is_replay=False)
    turns.account(now_s - 0.1, is_replay=True)  # an answer that is still being sent
    now_s += WATCH_S
    turns.account(now_s - 0.25, is_replay=False)
    assert turns.watched
    assert turns.pace.others_s == pytest.approx(0.75)
    now_s += 1.0
    turns.account(now_s, is_replay=False)
    assert not turns.watched
