"""Sessions of brokers: the rules C5, M5, M7, M13, L1 and L2 of ADR 0023, one by one."""

from __future__ import annotations

from uuid import UUID

import pytest

from app.core.errors import ErrorCode
from app.core.units import BrokerId, TimestampMs
from app.metadata.controller.broker_sessions import BrokerSessions
from app.metadata.image.image import BrokerImage

A, B, C, D, E = 1, 2, 3, 4, 5
OTHERS = (91, 92, 93)
"""Brokers that beat at every tick, so that the tests' brokers are few (L4)."""
EPOCH = 20
"""Broker epoch of the tests' brokers, and the number of the entry that registered or fenced them."""


def broker(broker_id: int, *, epoch: int = EPOCH, fenced: bool = False, changed_at: int = EPOCH) -> BrokerImage:
    return BrokerImage(
        BrokerId(broker_id),
        UUID(int=broker_id),
        UUID(int=100 + broker_id),
        epoch,
        (),
        None,
        TimestampMs(0),
        fenced=fenced,
        changed_at=changed_at,
    )


def image(*brokers: BrokerImage, others: bool = True) -> dict[int, BrokerImage]:
    """The brokers, beside the others."""
    return {each.broker_id: each for each in (*brokers, *(broker(one) for one in OTHERS if others))}


def sessions_of(*brokers: BrokerImage, now_s: float = 0.0, others: bool = True) -> BrokerSessions:
    sessions = BrokerSessions(3.0, now_s)
    sessions.follow(image(*brokers, others=others), now_s)
    return sessions


def beat(sessions: BrokerSessions, now_s: float) -> None:
    for one in OTHERS:
        sessions.heard(one, EPOCH, now_s, applied=EPOCH)


def run(sessions: BrokerSessions, start_s: float, end_s: float) -> None:
    """Let the controller's loop tick, up to ``end_s``."""
    for tick in range(int(start_s * 10) + 1, int(end_s * 10)):
        sessions.tick(tick / 10)
        beat(sessions, tick / 10)
    sessions.tick(end_s)
    beat(sessions, end_s)


# --- E5: who is stable ----------------------------------------------------------------------------------------------


def test_a_broker_is_steady_from_its_last_unfencing_on() -> None:
    sessions = sessions_of(broker(A), broker(B, fenced=True), now_s=5.0, others=False)
    assert sessions.steady_since() == {A: 5.0}
    sessions.follow(image(broker(A), broker(B), others=False), 7.0)
    assert sessions.steady_since() == {A: 5.0, B: 7.0}
    sessions.follow(image(broker(A, fenced=True), broker(B), others=False), 8.0)
    assert sessions.steady_since() == {B: 7.0}
    sessions.follow(image(broker(A), broker(B, epoch=EPOCH + 1), others=False), 9.0)
    assert sessions.steady_since() == {A: 9.0, B: 9.0}, "A was fenced between, and B has registered anew"


# --- C5, L1: silence ------------------------------------------------------------------------------------------------


def test_c5_a_new_controller_fences_nobody_for_one_session_timeout() -> None:
    sessions = sessions_of(broker(A), broker(B), now_s=100.0)
    run(sessions, 100.0, 102.9)
    assert sessions.expired(102.9) == []
    assert sessions.expired(103.0) == [A, B]


def test_l1_a_session_timeout_without_a_heartbeat_fences() -> None:
    sessions = sessions_of(broker(A), broker(B))
    run(sessions, 0.0, 2.0)
    assert sessions.heard(A, EPOCH, 2.0, applied=20) is ErrorCode.NONE
    run(sessions, 2.0, 4.9)
    assert sessions.expired(4.9) == [B]
    assert sessions.expired(5.0) == [A, B], "B is named until the image has it fenced"
    sessions.follow(image(broker(A), broker(B, fenced=True, changed_at=30)), 5.0)
    assert sessions.expired(5.0) == [A]


def test_l1_a_heartbeat_of_a_broker_that_is_not_fenced_yet_saves_it() -> None:
    sessions = sessions_of(broker(A))
    run(sessions, 0.0, 3.1)
    assert sessions.expired(3.1) == [A]
    sessions.heard(A, EPOCH, 3.2, applied=20)
    assert sessions.expired(3.2) == []


def test_l1_a_pause_of_the_controller_is_taken_off() -> None:
    sessions = sessions_of(broker(A))
    sessions.heard(A, EPOCH, 0.0, applied=20)
    run(sessions, 0.0, 1.0)
    sessions.tick(6.0)  # paused for 5 s, of which 0.5 s is the tick interval
    assert sessions.next_deadline_s() == pytest.approx(7.5)
    run(sessions, 6.0, 7.4)
    assert sessions.expired(7.4) == []
    assert sessions.expired(7.6) == [A]


def test_l5_a_starved_controller_waits_for_nine_seconds() -> None:
    sessions = sessions_of(broker(A))
    sessions.heard(A, EPOCH, 0.0, applied=20)
    sessions.starved = True
    run(sessions, 0.0, 8.9)
    assert sessions.expired(8.9) == []
    assert sessions.expired(9.0) == [A]
    sessions.heard(A, EPOCH, 9.1, applied=20)
    sessions.starved = False
    run(sessions, 9.1, 12.0)
    assert sessions.expired(12.2) == [A]


def test_l5_a_starved_controller_fences_a_broker_whose_address_refuses() -> None:
    sessions = sessions_of(broker(A))
    sessions.heard(A, EPOCH, 0.0, applied=20)
    sessions.starved = True
    for at_s in (0.1, 0.2, 0.3):
        sessions.refused(A, EPOCH, at_s)
    assert sessions.expired(0.3) == [A]


def test_l1_whichever_call_comes_first_after_a_pause_finds_it() -> None:
    sessions = sessions_of(broker(A), broker(B))
    sessions.heard(B, EPOCH, 10.0, applied=20)
    assert sessions.expired(10.0) == []
    sessions = sessions_of(broker(A), broker(B))
    assert sessions.expired(10.0) == []


def test_l1_a_pause_gives_no_session_more_than_it_has_at_a_heartbeat() -> None:
    sessions = sessions_of(broker(A), others=False)
    run(sessions, 0.0, 1.0)
    sessions.heard(A, EPOCH, 1.0, applied=20)
    sessions.heard(A, EPOCH, 10.0, applied=20)
    sessions.tick(20.0)
    assert sessions.next_deadline_s() == pytest.approx(22.5)


def test_l1_ticks_that_are_a_little_late_take_nothing_off() -> None:
    sessions = sessions_of(broker(A))
    for now_s in (1.0, 2.0, 3.0):
        sessions.tick(now_s)
        beat(sessions, now_s)
    assert sessions.expired(3.0) == [A]


def test_the_next_deadline_is_of_the_unfenced_broker_that_is_silent_longest() -> None:
    sessions = sessions_of(broker(A), broker(B), broker(C, fenced=True), others=False)
    sessions.heard(A, EPOCH, 0.5, applied=20)
    assert sessions.next_deadline_s() == 3.0
    sessions.heard(B, EPOCH, 0.75, applied=20)
    assert sessions.next_deadline_s() == 3.5
    assert sessions_of(broker(C, fenced=True), others=False).next_deadline_s() is None


# --- L2: refusals ---------------------------------------------------------------------------------------------------


def test_l2_three_refusals_within_half_a_second_fence_at_once() -> None:
    sessions = sessions_of(broker(A), broker(B))
    for now_s in (1.0, 1.25):
        sessions.refused(A, EPOCH, now_s)
        assert sessions.expired(now_s) == []
    sessions.refused(A, EPOCH, 1.5)
    assert sessions.expired(1.5) == [A]
    assert sessions.next_deadline_s() == 1.5


def test_l2_three_refusals_in_a_longer_time_do_not() -> None:
    sessions = sessions_of(broker(A))
    for now_s in (1.0, 1.3, 1.6):
        sessions.refused(A, EPOCH, now_s)
    assert sessions.expired(1.6) == []
    sessions.refused(A, EPOCH, 1.7)
    assert sessions.expired(1.7) == [A], "the last three count"


def test_l2_a_heartbeat_in_between_clears_them() -> None:
    sessions = sessions_of(broker(A))
    sessions.refused(A, EPOCH, 1.0)
    sessions.refused(A, EPOCH, 1.1)
    sessions.heard(A, EPOCH, 1.15, applied=20)
    sessions.refused(A, EPOCH, 1.2)
    assert sessions.expired(1.2) == []
    sessions.refused(A, EPOCH, 1.25)
    sessions.refused(A, EPOCH, 1.3)
    assert sessions.expired(1.3) == [A]
    sessions.heard(A, EPOCH, 1.4, applied=20)
    assert sessions.expired(1.4) == []


def test_l2_refusals_that_were_seen_for_another_broker_epoch_do_not_count() -> None:
    sessions = sessions_of(broker(A))
    for now_s in (1.0, 1.1, 1.2):
        sessions.refused(A, EPOCH - 1, now_s)
        sessions.refused(C, EPOCH, now_s)
    assert sessions.expired(1.2) == []


# --- M5: broker epochs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_m5_a_heartbeat_of_another_broker_epoch_is_refused_and_counts_for_nothing(epoch: int) -> None:
    sessions = sessions_of(broker(A), broker(B, fenced=True))
    run(sessions, 0.0, 2.9)
    for broker_id in (A, B):
        code = sessions.heard(broker_id, epoch, 2.9, applied=99, wants_stop=True)
        assert code is ErrorCode.STALE_BROKER_EPOCH
    assert sessions.expired(3.0) == [A]
    assert sessions.to_unfence() == []
    assert sessions.stopping == frozenset()


def test_m5_a_broker_that_is_not_registered_is_told_so() -> None:
    sessions = sessions_of(broker(A), broker(B))
    assert sessions.heard(C, EPOCH, 0.0, applied=99) is ErrorCode.BROKER_ID_NOT_REGISTERED
    sessions.follow(image(broker(A)), 1.0)
    assert sessions.heard(B, EPOCH, 1.0, applied=99) is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert sessions.applied(B) == -1


def test_m5_a_new_broker_epoch_begins_a_session_of_its_own() -> None:
    sessions = sessions_of(broker(A))
    run(sessions, 0.0, 2.0)
    sessions.heard(A, EPOCH, 2.0, applied=50, wants_stop=True)
    sessions.follow(image(broker(A, epoch=40, fenced=True, changed_at=40)), 2.5)
    assert sessions.to_unfence() == []
    assert sessions.stopping == frozenset()
    assert sessions.applied(A) == -1
    assert sessions.heard(A, EPOCH, 2.6, applied=50) is ErrorCode.STALE_BROKER_EPOCH
    assert sessions.heard(A, 40, 2.7, applied=40) is ErrorCode.NONE
    assert sessions.to_unfence() == [A]


# --- M7: unfencing --------------------------------------------------------------------------------------------------


def test_m7_a_broker_is_unfenced_when_it_has_applied_the_entry_of_its_registration() -> None:
    sessions = sessions_of(broker(A, fenced=True))
    assert sessions.to_unfence() == []
    sessions.heard(A, EPOCH, 0.1, applied=19)
    assert sessions.to_unfence() == []
    sessions.heard(A, EPOCH, 0.2, applied=20)
    assert sessions.to_unfence() == [A]
    assert sessions.applied(A) == 20
    sessions.heard(A, EPOCH, 0.3, applied=18)
    assert sessions.to_unfence() == [A], "a heartbeat that was overtaken takes nothing back"
    sessions.follow(image(broker(A, changed_at=20)), 0.4)
    assert sessions.to_unfence() == []


def test_m7_and_of_its_last_fence() -> None:
    sessions = sessions_of(broker(A))
    sessions.heard(A, EPOCH, 0.1, applied=29)
    sessions.follow(image(broker(A, fenced=True, changed_at=30)), 0.2)
    assert sessions.to_unfence() == []
    sessions.heard(A, EPOCH, 0.3, applied=30)
    assert sessions.to_unfence() == [A]


def test_m7_a_fenced_broker_that_fell_silent_or_refuses_is_not_unfenced() -> None:
    sessions = sessions_of(broker(A, fenced=True), broker(B, fenced=True))
    sessions.heard(A, EPOCH, 0.0, applied=20)
    sessions.heard(B, EPOCH, 0.0, applied=20)
    for now_s in (0.1, 0.2, 0.3):
        sessions.refused(B, EPOCH, now_s)
    assert sessions.to_unfence() == [A]
    run(sessions, 0.3, 3.0)
    assert sessions.to_unfence() == []


def test_m7_a_broker_that_was_heard_only_by_the_predecessor_is_not_unfenced() -> None:
    sessions = sessions_of(broker(A, fenced=True, changed_at=-1))
    assert sessions.to_unfence() == []


# --- M13: stopping --------------------------------------------------------------------------------------------------


def test_m13_a_broker_that_wants_to_stop_is_told_and_not_unfenced() -> None:
    sessions = sessions_of(broker(A, fenced=True), broker(B))
    sessions.heard(A, EPOCH, 0.1, applied=20, wants_stop=True)
    sessions.heard(B, EPOCH, 0.1, applied=20)
    assert sessions.stopping == {A}
    assert sessions.to_unfence() == []
    sessions.heard(A, EPOCH, 0.2, applied=20)
    assert sessions.stopping == {A}, "an older heartbeat does not take the wish back"
    sessions.follow(image(broker(B)), 0.3)
    assert sessions.stopping == frozenset()


def test_a_broker_that_wants_to_be_fenced_is_fenced_and_stays_it_as_long_as_it_wants() -> None:
    sessions = sessions_of(broker(A))
    sessions.heard(A, EPOCH, 0.1, applied=20, wants_fence=True)
    assert sessions.expired(0.1) == [A]
    sessions.follow(image(broker(A, fenced=True, changed_at=30)), 0.2)
    sessions.heard(A, EPOCH, 0.3, applied=30, wants_fence=True)
    assert sessions.to_unfence() == []
    sessions.heard(A, EPOCH, 0.4, applied=30)
    assert sessions.to_unfence() == [A]


# --- L4: most are silent ------------------------------------------------------------------------------------------------


def alone(*silent: int) -> BrokerSessions:
    """Broker A is the controller, and hears itself alone."""
    sessions = BrokerSessions(3.0, 0.0)
    sessions.follow({one: broker(one) for one in (A, *silent)}, 0.0)
    for tick in range(1, 31):
        sessions.heard(A, EPOCH, tick / 10, applied=EPOCH)
    return sessions


def hear_alone(sessions: BrokerSessions, end_s: float) -> list[int]:
    for tick in range(31, int(end_s * 10) + 1):
        sessions.heard(A, EPOCH, tick / 10, applied=EPOCH)
    return sessions.expired(end_s)


def test_l4_most_brokers_are_fenced_for_silence_only_after_two_timeouts() -> None:
    sessions = alone(B, C)
    assert sessions.expired(3.0) == []
    assert hear_alone(sessions, 5.9) == []
    assert hear_alone(sessions, 6.0) == [B, C]


def test_l4_last_heartbeats_need_not_have_come_at_the_same_time() -> None:
    sessions = BrokerSessions(3.0, 0.0)
    sessions.follow({one: broker(one) for one in (A, B, C)}, 0.0)
    for tick in range(1, 31):
        sessions.heard(A, EPOCH, tick / 10, applied=EPOCH)
        if tick <= 4:
            sessions.heard(C, EPOCH, tick / 10, applied=EPOCH)
    assert sessions.expired(3.0) == [], "C is silent for 2.6 s"
    assert hear_alone(sessions, 5.9) == []
    assert hear_alone(sessions, 6.0) == [B]


def test_l4_a_broker_that_beats_again_holds_nobody_back() -> None:
    sessions = alone(B, C)
    assert sessions.expired(3.0) == []
    sessions.heard(C, EPOCH, 3.1, applied=EPOCH)
    assert sessions.expired(3.1) == [B]


def test_l4_a_short_timeout_leaves_time_for_an_election() -> None:
    sessions = BrokerSessions(1.0, 0.0)
    sessions.follow({one: broker(one) for one in (A, B, C)}, 0.0)
    for tick in range(1, 31):
        sessions.heard(A, EPOCH, tick / 10, applied=EPOCH)
    assert hear_alone(sessions, 5.9) == []
    assert hear_alone(sessions, 6.0) == [B, C]


def test_l4_half_of_the_brokers_are_not_held_back() -> None:
    assert alone(B).expired(3.0) == [B]


def test_l4_what_refuses_or_wishes_to_be_fenced_is_not_held_back() -> None:
    sessions = alone(B, C, D, E)
    for _ in range(3):
        sessions.refused(B, EPOCH, 3.0)
    sessions.heard(C, EPOCH, 3.0, applied=EPOCH, wants_fence=True)
    assert sorted(sessions.expired(3.0)) == [B, C, D, E], "of five, D and E alone are silent"
