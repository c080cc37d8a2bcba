"""Faults planted into pulses (ADR 0023: L6, C10): each rule taken back, and rights that a pulse must not give."""

from __future__ import annotations

from typing import Any, Final

import pytest

from app.core.errors import ErrorCode
from app.metadata.controller.broker_sessions import BrokerSessions
from app.metadata.controller.candidacy import Candidacy
from app.metadata.membership.member import ClusterMember
from app.metadata.peers import pulses
from app.metadata.peers.control import PulseRequest
from tests.cluster_simulation.planted_isolation import Planted
from tests.cluster_simulation.sim_pulses import SimPulses
from tests.cluster_simulation.slow import ANSWERS, FENCED, IN_SPITE_OF_PULSES, KEPT


def no_pulse_counts_for_sessions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BrokerSessions, "pulsed", lambda *_args, **_more: ErrorCode.NONE)


def no_pulse_counts_for_candidates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Candidacy, "pulsed", lambda *_args, **_more: None)


def a_pulse_is_a_heartbeat(patch: pytest.MonkeyPatch) -> None:
    """Whatever the loop does."""

    def heard(one: BrokerSessions, broker_id: int, broker_epoch: int, now_s: float, **_more: float) -> ErrorCode:
        return one.heard(broker_id, broker_epoch, now_s, applied=one.applied(broker_id))

    patch.setattr(BrokerSessions, "pulsed", heard)


def a_pulse_is_an_answer_of_the_controller(patch: pytest.MonkeyPatch) -> None:
    def heard(one: Candidacy, broker_id: int, _epoch: int, now_s: float, **_more: float) -> None:
        one.heard(broker_id, now_s)

    patch.setattr(Candidacy, "pulsed", heard)


def a_pulse_is_a_sign_for_isolation(patch: pytest.MonkeyPatch) -> None:
    pulsed = ClusterMember.pulsed

    def counted(member: ClusterMember, pulse: PulseRequest) -> ErrorCode:
        if member._isolation is not None:
            member._answered(pulse.broker_id)
            if pulse.controller_epoch >= 0:
                member._isolation.controller_heard(member._now_s())
        return pulsed(member, pulse)

    patch.setattr(ClusterMember, "pulsed", counted)


def a_pulse_that_was_taken_is_a_tick_of_the_gate(patch: pytest.MonkeyPatch) -> None:
    """A broker believes that it has its place, because its thread is heard."""
    started = SimPulses.__init__

    def start(one: SimPulses, machine: Any, owner: Any, board: Any) -> None:
        started(one, machine, owner, board)
        board.gate = lambda: machine.node.context.gate

    send = pulses.PulseSender._send

    async def sent(one: pulses.PulseSender, to: Any) -> None:
        await send(one, to)
        board: Any = one._board
        if one._peers[to.broker_id].takes:
            board.gate().tick()

    class Board(pulses.TurnBoard):
        """Has room for the gate."""

    patch.setattr("app.metadata.membership.member.TurnBoard", Board)
    patch.setattr(SimPulses, "__init__", start)
    patch.setattr(pulses.PulseSender, "_send", sent)


def no_loop_is_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pulses, "is_late", lambda _turn, _now_s: False)


PLANTED: Final[dict[str, Planted]] = {
    "L6 no pulse counts": Planted(no_pulse_counts_for_sessions, KEPT, "slow broker"),
    "C10 no pulse counts": Planted(no_pulse_counts_for_candidates, KEPT, "slow controller"),
    "L6 no loop is late": Planted(no_loop_is_late, KEPT, "slow broker"),
    "L6 a pulse is a heartbeat": Planted(a_pulse_is_a_heartbeat, FENCED, "loop hangs", seeds=4),
    "C10 a pulse is an answer of the controller": Planted(
        a_pulse_is_an_answer_of_the_controller, FENCED, "loop hangs", seeds=6
    ),
    "a pulse is a sign for isolation": Planted(
        a_pulse_is_a_sign_for_isolation, IN_SPITE_OF_PULSES, "pulses alone heard"
    ),
    "a pulse opens the gate of acknowledgements": Planted(
        a_pulse_that_was_taken_is_a_tick_of_the_gate, ANSWERS, "slow and cut off"
    ),
}
"""By name. Each is run with seeds from 0 on."""
