"""Faults planted into the rules of isolation (ADR 0040): each sign of life taken away, and each simpler rule in their place.

IS5 is in ``tests/metadata/test_isolation.py``: here a process that goes on always reads what waits before its timers come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from app.handlers.apis import metadata
from app.handlers.base import partitions
from app.handlers.base.context import Context
from app.handlers.base.request import Request
from app.metadata.controller.desk import Desk
from app.metadata.image.image import ClusterImage
from app.metadata.membership.isolation import Isolation, IsolationState
from app.metadata.membership.member import ClusterMember
from app.metadata.peers.control import Heartbeat, HeartbeatAnswer
from app.wire.apis.metadata import MetadataResponseBroker
from tests.cluster_simulation.isolation import GETS_ON, HOSTS, NOT_ISOLATED, OLD_IMAGE, ONE_LIST

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, the scenario in which the checker meant for it finds it, and within how many seeds."""

    plant: Plant
    found_by: str
    scenario: str
    seeds: int = 2


_follow = Isolation.follow


def hosts(patch: pytest.MonkeyPatch) -> None:
    """No fault: brokers have the hosts of the scenario, though their names differ."""
    patch.setattr(Isolation, "follow", lambda one, known: _follow(one, {broker: HOSTS[broker] for broker in known}))


def nothing_isolates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Isolation, "decide", lambda _one, now_s: IsolationState(False, (), now_s + 1.0))


def the_controller_is_no_sign(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Isolation, "controller_heard", lambda _one, _now_s, _number=-1: None)


def the_log_is_no_sign(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Isolation, "log_read", lambda _one, _at_s, _number: None)


def the_hosts_are_no_sign(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Isolation, "answered", lambda _one, _broker, _now_s, _number=-1: None)


def a_confirmed_controller_alone_counts(patch: pytest.MonkeyPatch) -> None:
    the_log_is_no_sign(patch)
    the_hosts_are_no_sign(patch)


def an_unconfirmed_controller_counts(patch: pytest.MonkeyPatch) -> None:
    answered = ClusterMember._answered

    def counted(member: ClusterMember, broker_id: int, next_sequence: int = -1) -> None:
        answered(member, broker_id, next_sequence)
        heard = member._isolation
        if heard is not None and (member._controller.active or broker_id == member._image.controller.broker_id):
            heard.controller_heard(member._now_s())

    patch.setattr(ClusterMember, "_answered", counted)


def any_broker_that_answers_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Isolation, "_most_s", lambda _one, now_s, answers: max(answers.values(), default=-1e9))


def brokers_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Isolation, "follow", lambda one, known: _follow(one, {broker: str(broker) for broker in known}))


def the_first_sign_ends_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Isolation, "_may_end", lambda one, now_s: one.last_sign_s(now_s) > one._isolated_since_s)


def heartbeats_name_numbers(patch: pytest.MonkeyPatch) -> None:
    heard = Desk.heard

    async def told(desk: Desk, beat: Heartbeat) -> HeartbeatAnswer:
        told: Any = desk.on_beat
        if told is not None:
            told(beat.broker_id, beat.applied + 1)
        return await heard(desk, beat)

    patch.setattr(Desk, "heard", told)


def it_names_no_leader(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partitions, "others_that_may_lead", lambda _context, _partition: [])


def it_tells_old_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(metadata, "shown_leader_epoch", lambda _context, partition: partition.leader_epoch)


def it_does_not_list_itself(patch: pytest.MonkeyPatch) -> None:
    shown = metadata._brokers_shown

    def without(context: Context, request: Request, image: ClusterImage) -> list[MetadataResponseBroker]:
        known = shown(context, request, image)
        return [one for one in known if not context.partitions.isolated or one.node_id != context.node_id]

    patch.setattr(metadata, "_brokers_shown", without)


PLANTED: Final[dict[str, Planted]] = {
    "no isolation": Planted(nothing_isolates, GETS_ON, "cut off"),
    "IS1 the controller is no sign": Planted(the_controller_is_no_sign, NOT_ISOLATED, "controller alone heard"),
    "IS1 the log is no sign": Planted(the_log_is_no_sign, NOT_ISOLATED, "network alone cut"),
    "IS1 the hosts are no sign": Planted(the_hosts_are_no_sign, NOT_ISOLATED, "bucket alone away"),
    "IS1 a confirmed controller alone counts": Planted(
        a_confirmed_controller_alone_counts, NOT_ISOLATED, "bucket alone away"
    ),
    "IS1 an unconfirmed controller counts": Planted(an_unconfirmed_controller_counts, GETS_ON, "pair cut off"),
    "IS1 any broker that answers counts": Planted(any_broker_that_answers_counts, GETS_ON, "pair cut off"),
    "IS2 brokers count, not hosts": Planted(brokers_count, GETS_ON, "machine cut off"),
    "IS6 the first sign ends it": Planted(the_first_sign_ends_it, OLD_IMAGE, "healed in part"),
    "IS6 heartbeats name numbers": Planted(heartbeats_name_numbers, OLD_IMAGE, "healed in part", seeds=4),
    "IS9 an isolated broker names no leader": Planted(
        it_names_no_leader, GETS_ON, "controller of two cut off", seeds=4
    ),
    "IS10 an isolated broker tells the epochs of its old image": Planted(
        it_tells_old_epochs, GETS_ON, "cut off as it is elected"
    ),
    "IS9 an isolated broker does not list itself": Planted(
        it_does_not_list_itself, ONE_LIST, "controller of two cut off", seeds=4
    ),
}
"""By name. Each is run with seeds from 0 on."""
