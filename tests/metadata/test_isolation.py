"""When a broker is isolated: the rules IS1 to IS8 of ADR 0040, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from app.metadata.membership.isolation import ASK_INTERVAL_S, GRACE_S, LATE_S, Isolation, IsolationState

A, B, C, D, E = 1, 2, 3, 4, 5
THREE = {A: "a", B: "b", C: "c"}
FIVE = {A: "a", B: "b", C: "c", D: "d", E: "e"}
SILENT_S = 6.0
"""Two session time-outs."""


def broker(hosts: Mapping[int, str] = THREE, *, session_timeout_s: float = 3.0, applied: int = 10) -> Isolation:
    """Broker A, which had a sign of life at time 0."""
    one = Isolation(A, 0.0, session_timeout_s=session_timeout_s)
    one.follow(hosts)
    one.applied(applied)
    return one


def run(
    one: Isolation, until_s: float, from_s: float = 0.0
) -> tuple[IsolationState, list[tuple[float, tuple[int, ...]]]]:
    """Decide whenever it is due. Returns: the last result, and who was asked when."""
    asked: list[tuple[float, tuple[int, ...]]] = []
    now_s = from_s
    while True:
        standing = one.decide(now_s)
        if standing.ask:
            asked.append((now_s, standing.ask))
        if standing.until_s > until_s:
            return one.decide(until_s), asked
        now_s = standing.until_s


def isolated_at(one: Isolation, from_s: float = 0.0, within_s: float = 60.0) -> float | None:
    """Decide whenever it is due, with nothing heard. Returns: when it became isolated."""
    now_s = from_s
    while now_s <= from_s + within_s:
        standing = one.decide(now_s)
        if standing.isolated:
            return now_s
        now_s = standing.until_s
    return None


# --- IS1: the three signs -------------------------------------------------------------------------------------------


def test_is1_a_broker_without_a_sign_is_isolated_after_two_session_timeouts() -> None:
    assert isolated_at(broker()) == SILENT_S


@pytest.mark.parametrize(("session_timeout_s", "silent_s"), [(0.3, 6.0), (3.0, 6.0), (9.0, 18.0)])
def test_is1_the_time_is_two_session_timeouts_and_six_seconds_at_least(
    session_timeout_s: float, silent_s: float
) -> None:
    assert isolated_at(broker(session_timeout_s=session_timeout_s)) == silent_s


def test_is1_a_controller_that_answers_is_a_sign() -> None:
    one = broker()
    one.controller_heard(4.0)
    assert isolated_at(one) == 4.0 + SILENT_S


def test_is1_the_end_of_the_log_is_a_sign() -> None:
    one = broker()
    one.log_read(4.0, 10)
    assert isolated_at(one) == 4.0 + SILENT_S


def test_is1_most_of_the_hosts_are_a_sign() -> None:
    one = broker(FIVE)
    one.answered(B, 4.0, 10)
    one.answered(C, 5.0, 10)
    assert isolated_at(one) == 4.0 + SILENT_S  # with A itself, three of five had answered since then


def test_is1_a_minority_of_the_hosts_is_no_sign() -> None:
    one = broker(FIVE)
    one.answered(B, 4.0, 10)
    assert isolated_at(one) == SILENT_S


def test_is1_two_hosts_that_hear_each_other_are_not_isolated() -> None:
    one = broker({A: "a", B: "b"})
    now_s = 0.0
    while now_s < 60.0:
        standing = one.decide(now_s)
        assert not standing.isolated
        for broker_id in standing.ask:
            one.answered(broker_id, now_s, 10)
        now_s = standing.until_s


def test_is1_a_broker_that_hears_nobody_of_two_hosts_is_isolated() -> None:
    assert isolated_at(broker({A: "a", B: "b"})) == SILENT_S


# --- IS2: hosts count once ------------------------------------------------------------------------------------------


def test_is2_brokers_of_one_host_count_once() -> None:
    one = broker({A: "a", 11: "a", 12: "a", 13: "a", B: "b", C: "c"})
    for broker_id in (11, 12, 13):
        one.answered(broker_id, 4.0, 10)
    assert isolated_at(one) == SILENT_S  # one of three hosts, though four of six brokers


def test_is2_any_broker_of_a_host_answers_for_it() -> None:
    one = broker({A: "a", B: "b", 12: "b", C: "c"})
    one.answered(12, 4.0, 10)
    assert isolated_at(one) == 4.0 + SILENT_S


@pytest.mark.parametrize("hosts", [{A: "a"}, {A: "a", B: "a", C: "a"}])
def test_is2_a_broker_whose_host_is_the_only_one_is_never_isolated(hosts: dict[int, str]) -> None:
    one = broker(hosts)
    last, asked = run(one, 600.0)
    assert not last.isolated
    assert not asked


def test_is2_brokers_that_were_fenced_do_not_count() -> None:
    one = broker(FIVE)
    one.follow({A: "a", B: "b"})
    one.answered(C, 5.0, 10)
    assert isolated_at(one) == SILENT_S
    one = broker(FIVE)
    one.follow({A: "a"})
    assert isolated_at(one) is None


# --- IS3: whom it asks ----------------------------------------------------------------------------------------------


def test_is3_nobody_is_asked_while_the_controller_or_the_log_is_heard() -> None:
    one = broker()
    for second in range(60):
        (one.controller_heard if second % 2 else lambda at_s: one.log_read(at_s, 10))(float(second))
        assert not run(one, second + 0.9, float(second))[1]


def test_is3_the_others_are_asked_once_a_second_from_one_session_timeout_on() -> None:
    _, asked = run(broker(), SILENT_S)
    assert asked == [(at_s, (B, C)) for at_s in (3.0, 4.0, 5.0, 6.0)]


def test_is3_it_goes_on_to_ask_while_it_is_isolated() -> None:
    one = broker()
    assert isolated_at(one) == SILENT_S
    _, asked = run(one, 20.0, 6.5)
    assert {round(later - earlier, 3) for (earlier, _), (later, _) in pairwise(asked)} == {ASK_INTERVAL_S}
    assert len(asked) > 10


# --- IS5: pauses ----------------------------------------------------------------------------------------------------


def test_is5_after_a_pause_it_asks_before_it_judges() -> None:
    one = broker()
    assert one.decide(2.5).until_s == 3.0
    standing = one.decide(60.0)
    assert standing == IsolationState(isolated=False, ask=(B, C), until_s=60.0 + ASK_INTERVAL_S)
    assert isolated_at(one, standing.until_s) == 60.0 + GRACE_S


def test_is5_an_answer_that_waited_during_the_pause_counts() -> None:
    one = broker()
    one.decide(2.5)
    one.decide(60.0)
    one.answered(B, 60.2, 10)
    assert isolated_at(one, 61.0) == 60.2 + SILENT_S


def test_is5_a_decision_that_is_hardly_late_is_none_of_a_pause() -> None:
    one = broker()
    run(one, 5.9)
    assert one.decide(SILENT_S + LATE_S / 2).isolated


# --- IS6: the end ---------------------------------------------------------------------------------------------------


def isolated(hosts: Mapping[int, str] = THREE, *, applied: int = 10) -> Isolation:
    one = broker(hosts, applied=applied)
    assert isolated_at(one) == SILENT_S
    return one


def test_is6_a_read_log_ends_it_when_the_image_has_it() -> None:
    one = isolated()
    one.log_read(7.0, 14)
    assert one.decide(7.0).isolated
    one.applied(14)
    assert not one.decide(7.1).isolated


def test_is6_a_controller_that_names_no_number_does_not_end_it() -> None:
    one = isolated()
    one.controller_heard(7.0)
    assert one.decide(7.0).isolated
    one.controller_heard(7.1, 12)
    assert one.decide(7.1).isolated
    one.applied(12)
    assert not one.decide(7.2).isolated


def test_is6_the_highest_number_counts_whoever_names_it() -> None:
    one = isolated(FIVE)
    one.answered(B, 7.0, 11)
    one.answered(C, 7.0, 15)
    one.applied(11)
    assert one.decide(7.0).isolated
    one.applied(15)
    assert not one.decide(7.1).isolated


def test_is6_a_minority_does_not_end_it() -> None:
    one = isolated(FIVE)
    one.answered(B, 7.0, 10)
    assert one.decide(7.0).isolated


def test_is6_an_answer_without_a_number_does_not_end_it() -> None:
    one = isolated()
    one.answered(B, 7.0)
    assert one.decide(7.0).isolated


def test_is6_signs_from_before_it_began_do_not_end_it() -> None:
    one = broker()
    one.answered(B, 0.0, 10)
    assert isolated_at(one) == SILENT_S
    assert one.decide(6.5).isolated


def test_is6_a_sign_that_is_too_old_does_not_end_it() -> None:
    one = isolated()
    one.controller_heard(7.0, 12)
    run(one, 7.0 + SILENT_S, 7.0)
    one.applied(12)
    assert one.decide(7.0 + SILENT_S).isolated


def test_is6_it_may_begin_again() -> None:
    one = isolated()
    one.log_read(7.0, 10)
    assert not one.decide(7.0).isolated
    assert isolated_at(one, 7.0) == 7.0 + SILENT_S


def test_is9_brokers_that_answer_are_on_the_same_side_of_a_cut() -> None:
    one = Isolation(1, 0.0)
    one.follow({1: "a", 2: "b", 3: "c", 4: "d"})
    one.answered(2, SILENT_S)
    one.answered(3, SILENT_S / 4)
    assert one.elsewhere(SILENT_S) == (3, 4)
    for broker_id in (3, 4):
        one.answered(broker_id, SILENT_S)
    assert one.elsewhere(SILENT_S) == (2, 3, 4), "there has to be some other broker"
