"""Pulses of brokers whose loops are late: L6 and C10 of ADR 0023, by simulated slow brokers and one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from app.core.errors import BrokerUnavailable, ErrorCode
from app.metadata.controller.broker_sessions import BrokerSessions
from app.metadata.controller.candidacy import AskOthers, Candidacy, Wait
from app.metadata.image.image import BrokerImage
from app.metadata.peers.control import PulseRequest, PulseResponse
from app.metadata.peers.pulses import AGAIN_S_MAX, KEEP_S, LOOK_S, PulseSender, Turn, TurnBoard
from tests.metadata.slow_brokers import CONTROLLER, EPOCH, SlowBrokers, images_of, met
from tests.support.virtual_loop import VirtualLoop, run_virtual

B, C, D = 2, 3, 4


# --- simulated slow brokers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [2.9, 4.0, 8.0])
def test_l6_a_broker_that_alone_is_starved_is_kept(seconds: float) -> None:
    world = met(lambda world: world.stand(B, seconds))
    assert (world.fenced, world.seals) == ({}, [])


def test_l6_a_loop_that_has_not_turned_for_nine_seconds_fences() -> None:
    world = met(lambda world: world.stand(B, 10.0))
    assert list(world.fenced) == [B]
    assert 18.0 <= world.fenced[B] <= 19.1
    assert world.unfenced[B] >= 20.0, "by its own heartbeat"


@pytest.mark.parametrize("seconds", [4.0, 8.0, 10.0])
def test_l6_a_process_that_stands_still_is_fenced_after_three_seconds(seconds: float) -> None:
    world = met(lambda world: world.stop(B, seconds))
    assert list(world.fenced) == [B]
    assert 12.5 <= world.fenced[B] <= 13.1


def test_l6_two_of_four_that_are_starved_are_kept_and_one_that_dies_beside_them_is_fenced() -> None:
    """Most of the brokers send no heartbeats then, but they are not silent (L4)."""

    def happens(world: SlowBrokers) -> None:
        world.stand(B, 8.0)
        world.stand(D, 8.0)
        world.stop(C, 100.0)

    world = met(happens)
    assert list(world.fenced) == [C]
    assert world.fenced[C] <= 13.1


def test_l6_a_broker_whose_loop_turns_and_whose_heartbeats_fail_is_fenced_after_three_seconds() -> None:
    def happens(world: SlowBrokers) -> None:
        world.brokers[B].beats = False

    world = met(happens)
    assert list(world.fenced) == [B]
    assert world.fenced[B] <= 13.1


@pytest.mark.parametrize("seconds", [2.5, 4.0, 8.0])
def test_c10_a_controller_that_alone_is_starved_stays(seconds: float) -> None:
    world = met(lambda world: world.stand(CONTROLLER, seconds))
    assert (world.fenced, world.seals) == ({}, [])


def test_c10_a_controller_whose_loop_has_not_turned_for_nine_seconds_is_deposed() -> None:
    world = met(lambda world: world.stand(CONTROLLER, 20.0))
    assert world.seals
    assert 18.0 <= world.seals[0][1] <= 20.0


def test_c10_a_controller_whose_process_stands_still_is_deposed_after_two_seconds() -> None:
    world = met(lambda world: world.stop(CONTROLLER, 20.0))
    assert world.seals
    assert 11.5 <= world.seals[0][1] <= 13.0


def test_c10_a_controller_that_sends_and_hears_nothing_is_deposed_after_two_seconds() -> None:
    def happens(world: SlowBrokers) -> None:
        world.refuses_requests = True

    world = met(happens)
    assert world.seals
    assert 11.5 <= world.seals[0][1] <= 13.0


def test_c10_a_controller_that_is_cut_off_from_the_bucket_and_starved_is_deposed_after_eleven_seconds() -> None:
    def happens(world: SlowBrokers) -> None:
        world.bucket = False
        loop = asyncio.get_running_loop()
        for start_s in (0.0, 3.0, 6.0, 9.0, 12.0, 15.0):
            loop.call_later(start_s, world.stand, CONTROLLER, 2.5)

    world = met(happens)
    assert world.seals
    assert 18.0 <= world.seals[0][1] <= 22.0


# --- sessions, one by one ---------------------------------------------------------------------------------------------


def sessions_of(*, fenced: bool = False) -> BrokerSessions:
    brokers = images_of(4)
    brokers[B] = replace(brokers[B], fenced=fenced, changed_at=EPOCH + 10 if fenced else EPOCH)
    sessions = BrokerSessions(3.0, 0.0)
    sessions.follow(brokers, 0.0)
    return sessions


def run(sessions: BrokerSessions, start_s: float, end_s: float) -> None:
    """All but B send heartbeats."""
    for tick in range(int(start_s * 10) + 1, int(end_s * 10) + 1):
        for one in (1, 3, 4):
            sessions.heard(one, EPOCH, tick / 10, applied=EPOCH)


def test_l6_a_pulse_counts_for_a_session_timeout_nine_seconds_after_a_turn_and_twelve_after_a_heartbeat() -> None:
    sessions = sessions_of()
    sessions.heard(B, EPOCH, 0.5, applied=EPOCH)
    run(sessions, 0.5, 2.0)
    assert sessions.pulsed(B, EPOCH, 2.0, turned_ago_s=1.0) is ErrorCode.NONE
    run(sessions, 2.0, 4.9)
    assert sessions.expired(4.9) == []
    assert sessions.expired(5.0) == [B]
    sessions.pulsed(B, EPOCH, 5.0, turned_ago_s=8.5)
    run(sessions, 5.0, 5.4)
    assert sessions.expired(5.4) == []
    assert sessions.expired(5.5) == [B], "nine seconds after the loop turned"
    sessions.pulsed(B, EPOCH, 5.5, turned_ago_s=0.0)
    run(sessions, 5.5, 8.4)
    assert sessions.expired(8.4) == []
    sessions.pulsed(B, EPOCH, 8.4, turned_ago_s=0.0)
    run(sessions, 8.4, 11.3)
    sessions.pulsed(B, EPOCH, 11.3, turned_ago_s=0.0)
    run(sessions, 11.3, 12.4)
    assert sessions.expired(12.4) == []
    assert sessions.expired(12.5) == [B], "twelve seconds after its heartbeat, whatever its loop does"


def test_l6_a_pulse_of_another_broker_epoch_counts_for_nothing() -> None:
    sessions = sessions_of()
    run(sessions, 0.0, 2.9)
    assert sessions.pulsed(B, EPOCH - 1, 2.9, turned_ago_s=1.0) is ErrorCode.STALE_BROKER_EPOCH
    assert sessions.pulsed(99, EPOCH, 2.9, turned_ago_s=1.0) is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert sessions.expired(3.0) == [B]


def test_l6_a_pulse_unfences_nobody() -> None:
    sessions = sessions_of(fenced=True)
    sessions.heard(B, EPOCH, 0.0, applied=EPOCH + 10)
    assert sessions.to_unfence() == [B]
    run(sessions, 0.0, 3.0)
    assert sessions.to_unfence() == []
    sessions.pulsed(B, EPOCH, 3.0, turned_ago_s=1.0)
    run(sessions, 3.0, 3.1)
    assert sessions.to_unfence() == []


def test_l6_a_pulse_ends_no_refusal() -> None:
    sessions = sessions_of()
    sessions.heard(B, EPOCH, 0.0, applied=EPOCH)
    for at_s in (0.1, 0.2, 0.3):
        sessions.refused(B, EPOCH, at_s)
    sessions.pulsed(B, EPOCH, 0.3, turned_ago_s=0.3)
    assert sessions.expired(0.3) == [B]


def test_l6_a_pause_of_the_controller_is_taken_off_a_pulse_too() -> None:
    sessions = sessions_of()
    sessions.heard(B, EPOCH, 1.0, applied=EPOCH)
    run(sessions, 1.0, 3.0)
    sessions.pulsed(B, EPOCH, 3.0, turned_ago_s=2.0)
    sessions.tick(8.0)  # paused for 5 s, of which 0.5 s is the tick interval
    run(sessions, 8.0, 10.4)
    assert sessions.expired(10.4) == []
    assert sessions.expired(10.5) == [B]


# --- candidates, one by one -------------------------------------------------------------------------------------------


def candidate() -> Candidacy:
    one = Candidacy(B, 0.0, controller_id=1, controller_epoch=7)
    one.follow((1, 2, 3))
    one.heard(1, 0.0)
    return one


@pytest.mark.parametrize(
    ("now_s", "turned_ago_s", "confirmed_ago_s", "until_s"),
    [
        (1.0, 1.0, 1.0, 3.0),  # as long as an answer would
        (10.0, 1.0, 1.0, 11.0),  # two seconds more after it was heard
        (4.0, 8.5, 4.0, 4.5),  # nine seconds after it turned
        (4.0, 1.0, 10.5, 4.5),  # two seconds more after it confirmed the log
    ],
)
def test_c10_a_pulse_counts_until(now_s: float, turned_ago_s: float, confirmed_ago_s: float, until_s: float) -> None:
    one = candidate()
    one.pulsed(1, 7, now_s, turned_ago_s=turned_ago_s, confirmed_ago_s=confirmed_ago_s)
    assert one.decide(now_s) == Wait(until_s)
    assert one.has_heard(until_s - 0.1), "and says so to others"
    assert not one.has_heard(until_s)


def test_c10_a_pulse_ends_a_round() -> None:
    one = candidate()
    first = one.decide(2.0)
    one.pulsed(1, 7, 2.1, turned_ago_s=2.0, confirmed_ago_s=2.0)
    assert one.decide(2.1) == Wait(4.1)
    second = one.decide(4.1)
    assert isinstance(first, AskOthers)
    assert isinstance(second, AskOthers)
    assert second.round_number > first.round_number


@pytest.mark.parametrize(("broker_id", "epoch"), [(3, 7), (1, 6), (1, 8)])
def test_c10_a_pulse_of_any_other_than_the_controller_of_the_newest_seal_counts_for_nothing(
    broker_id: int, epoch: int
) -> None:
    one = candidate()
    one.pulsed(broker_id, epoch, 1.0, turned_ago_s=1.0, confirmed_ago_s=1.0)
    assert one.decide(1.0) == Wait(2.0)


def test_c10_a_controller_that_was_never_heard_has_no_pulses() -> None:
    one = Candidacy(B, 0.0, controller_id=1, controller_epoch=7)
    one.follow((1, 2, 3))
    one.pulsed(1, 7, 1.0, turned_ago_s=1.0, confirmed_ago_s=1.0)
    assert one.decide(1.0) == Wait(2.0)


def test_c10_pulses_of_a_controller_count_no_more_after_the_seal_of_the_next_one() -> None:
    one = candidate()
    one.seal_seen(8, 3, 1.0)
    one.pulsed(1, 7, 2.9, turned_ago_s=1.0, confirmed_ago_s=1.0)
    assert one.decide(2.9) == Wait(3.25)


@pytest.mark.parametrize("pulse_first", [True, False])
def test_c10_an_address_that_refuses_has_no_pulses(pulse_first: bool) -> None:
    one = candidate()
    if pulse_first:
        one.pulsed(1, 7, 1.0, turned_ago_s=1.0, confirmed_ago_s=1.0)
    for at_s in (1.1, 1.2, 1.3):
        one.controller_refused(at_s)
    assert isinstance(one.decide(1.3), AskOthers)
    if not pulse_first:
        one.pulsed(1, 7, 1.4, turned_ago_s=1.0, confirmed_ago_s=1.0)
        assert one.decide(1.4) == Wait(2.3), "the round goes on"


# --- what is sent -----------------------------------------------------------------------------------------------------


class Link:
    """Notes pulses; answers as it is told."""

    def __init__(self, answer: Callable[[int], PulseResponse]) -> None:
        self.sent: list[tuple[float, int, PulseRequest]] = []
        self.tries: list[tuple[float, int]] = []
        self.answer = answer
        self.closed = False

    async def pulse(self, to: BrokerImage, asked: Callable[[], PulseRequest]) -> PulseResponse:
        self.tries.append((asyncio.get_running_loop().time(), to.broker_id))
        answer = self.answer(to.broker_id)
        self.sent.append((asyncio.get_running_loop().time(), to.broker_id, asked()))
        return answer

    async def close(self) -> None:
        self.closed = True


def sent(link: Link, turn: Callable[[float], Turn | None], seconds: float) -> Link:
    """What is sent within so many seconds. ``turn``: what the loop has written at a time."""

    async def main(loop: VirtualLoop) -> Link:
        board = TurnBoard()
        sender = asyncio.create_task(PulseSender(board, link, now_s=loop.time).run())
        while loop.time() < seconds:
            board.turn = turn(loop.time())
            await asyncio.sleep(0.5)
        sender.cancel()
        await asyncio.wait([sender])
        return link

    return run_virtual(main)


def turn_of(now_s: float, *, controller: int | None = 1, starved: bool = False) -> Turn:
    images = images_of(4)
    return Turn(
        now_s,
        "cluster",
        B,
        EPOCH,
        starved,
        None if controller is None else images[controller],
        tuple(image for one, image in images.items() if one != B),
        7 if controller is None else -1,
        1.0 if controller is None else -1.0,
    )


def test_a_loop_in_time_sends_one_pulse_to_the_controller_now_and_then() -> None:
    link = sent(Link(lambda to: PulseResponse()), turn_of, 4 * KEEP_S)
    assert {(to, pulse.late) for _, to, pulse in link.sent} == {(1, False)}
    assert len(link.sent) == 4
    assert link.closed


def test_a_late_loop_sends_two_pulses_a_second_that_say_how_late_it_is() -> None:
    written = turn_of(0.0)
    link = sent(Link(lambda to: PulseResponse()), lambda now_s: written, 4.0)
    assert [to for _, to, _ in link.sent] == [1] * 8
    assert [(round(at_s, 2), pulse.late, pulse.turned_ms) for at_s, _, pulse in link.sent[:3]] == [
        (0.0, False, 0),
        (0.75, True, 750),
        (1.25, True, 1250),
    ]


def test_a_starved_loop_is_late_although_it_has_just_turned() -> None:
    link = sent(Link(lambda to: PulseResponse()), lambda now_s: turn_of(now_s, starved=True), 2.0)
    assert [pulse.late for _, _, pulse in link.sent] == [True] * 5


def test_a_controller_sends_to_all_and_says_when_it_confirmed_the_log() -> None:
    written = turn_of(0.0, controller=None)
    link = sent(Link(lambda to: PulseResponse(int(ErrorCode.NOT_CONTROLLER))), lambda now_s: written, 1.0)
    assert {to for _, to, _ in link.sent} == {1, 3, 4}
    late = [pulse for _, _, pulse in link.sent if pulse.late]
    assert [(one.controller_epoch, one.turned_ms, one.confirmed_ms) for one in late] == [(7, 750, 1750)] * 3


@pytest.mark.parametrize("refuses", [True, False])
def test_a_late_loop_whose_controller_takes_no_pulse_sends_to_all(refuses: bool) -> None:
    def answer(to: int) -> PulseResponse:
        if to == 1 and refuses:
            raise BrokerUnavailable("away")
        return PulseResponse(int(ErrorCode.NOT_CONTROLLER) if to == 1 else 0)

    written = turn_of(0.0)
    link = sent(Link(answer), lambda now_s: written, 3.0)
    assert {to for _, to, pulse in link.sent if pulse.late} >= {3, 4}


def test_a_loop_in_time_whose_controller_takes_no_pulse_asks_no_other() -> None:
    link = sent(Link(lambda to: PulseResponse(int(ErrorCode.NOT_CONTROLLER))), turn_of, 12.0)
    assert {to for _, to in link.tries} == {1}


def test_one_that_cannot_be_reached_is_tried_more_and_more_seldom() -> None:
    def away(to: int) -> PulseResponse:
        raise BrokerUnavailable("away")

    written = turn_of(0.0, controller=None)
    link = sent(Link(away), lambda now_s: written, 30.0)
    tries = [at_s for at_s, to in link.tries if to == 3]
    assert len(tries) <= 4 + 30 / AGAIN_S_MAX
    apart = [round(later - before, 2) for before, later in pairwise(tries)]
    assert apart[-1] == pytest.approx(AGAIN_S_MAX, abs=LOOK_S)


def test_one_pulse_at_a_time_waits_for_the_answer_of_a_broker() -> None:
    class Slow(Link):
        async def pulse(self, to: BrokerImage, asked: Callable[[], PulseRequest]) -> PulseResponse:
            answer = await super().pulse(to, asked)
            await asyncio.sleep(1.8)
            return answer

    written = turn_of(0.0)
    link = sent(Slow(lambda to: PulseResponse()), lambda now_s: written, 8.0)
    assert [round(at_s, 2) for at_s, _, _ in link.sent] == [0.0, 2.25, 4.25, 6.25]


def test_nothing_is_sent_before_the_loop_has_written_a_turn() -> None:
    link = sent(Link(lambda to: PulseResponse()), lambda now_s: None, 12.0)
    assert link.tries == []
