"""Faults planted into coordinators and into the raise of the level, one rule of ADR 0023, 0025, 0026 or 0027 taken back at a time.

Some are those that are planted into one broker too; here they are to be found when a coordinator moves.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import pytest

from app.coordinator import shell
from app.coordinator.partition import CoordinatedLog
from app.coordinator.topics import INTERNAL
from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.groups.share.core.share_state import ShareStateShard
from app.groups.share.core.share_state_wire import Read, StateAnswer
from app.groups.share.share_leader import ShareLeader
from app.groups.share.share_states import NOT_YET
from app.metadata.changes import broker_changes, features
from app.metadata.image.records import BrokerRecord, MemberRecord
from app.metadata.membership import membership
from app.metadata.view import registration
from app.replication.partition import Partition
from app.transactions import ending, state
from app.transactions.elsewhere import OtherBrokers
from app.transactions.ending import MarkerAnswer as MarkerAnswered
from app.transactions.link import AddAnswer
from tests.cluster_simulation.planted import SHORT, Planted
from tests.simulation.planted import (
    assigns_what_another_has_not_given_up,
    commits_what_is_to_be_aborted_in_a_second_partition,
    does_not_write_down_what_was_acknowledged,
    forgets_who_has_what_with_every_restart,
    lets_members_of_older_generations_commit,
    shares_what_somebody_has,
)


def gives_a_marker_up_on_a_refusal(patch: pytest.MonkeyPatch) -> None:
    def given_up(answered: Any) -> Generator[Any, None, None]:
        yield from answered._answer.__await__()

    patch.setattr(MarkerAnswered, "__await__", given_up)


def fences_the_next_end_while_markers_are_written(patch: pytest.MonkeyPatch) -> None:
    end = state.end

    def hasty(current: Any, identity: Any, **asked: Any) -> Any:
        prepared = current is not None and current.state in state.PREPARED
        if prepared and asked["client_version"] >= state.VERSION_2 and current.epoch == identity.epoch:
            raise RequestRejected(ErrorCode.PRODUCER_FENCED, "not the epoch of the end that is under way")
        return end(current, identity, **asked)

    patch.setattr(state, "end", hasty)


def commits_by_its_own_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatedLog, "stored", lambda log, end: log._partition.wait_stored(end, in_sync=False))


def does_not_ask_the_coordinator(patch: pytest.MonkeyPatch) -> None:
    async def add(_others: OtherBrokers, _asked: Any) -> AddAnswer:
        return AddAnswer({}, -1)

    patch.setattr(OtherBrokers, "add", add)


def answers_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatedLog, "stored", lambda _log, _end: None)


class _TrustedLog(CoordinatedLog):
    """What it had when it was loaded counts as committed."""

    __slots__ = ("_loaded_end",)

    def __init__(self, partition: Partition) -> None:
        super().__init__(partition)
        self._loaded_end = self.end_offset

    def stored(self, offset_end: Any) -> Any:
        return None if offset_end <= self._loaded_end else super().stored(offset_end)


def answers_what_it_has_loaded(patch: pytest.MonkeyPatch) -> None:
    def to_read(coordinator: Any, seat: Any) -> Partition | None:
        partition = coordinator._partitions.get(coordinator.topic.name, seat.partition)
        return partition if partition is not None and partition.leads else None

    patch.setattr(shell.Coordinator, "_to_read", to_read)
    patch.setattr(shell, "CoordinatedLog", _TrustedLog)


def waits_over_the_end_of_a_leadership(patch: pytest.MonkeyPatch) -> None:
    leave = Partition.leave_leadership

    def left(partition: Partition) -> None:
        if partition.topic not in INTERNAL:
            leave(partition)

    async def when_stored(_coordinator: Any, _seat: Any, waiting: Any, result: Any) -> Any:
        await waiting
        return result

    patch.setattr(Partition, "leave_leadership", left)
    patch.setattr(shell.Coordinator, "_when_stored", when_stored)


def sends_markers_of_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    perform = shell.Coordinator.perform

    def at_once(coordinator: Any, partition: Any, event: Any) -> Any:
        if event is not ending._nothing:
            return perform(coordinator, partition, event)
        coordinator._seat(partition)
        return None

    patch.setattr(shell.Coordinator, "perform", at_once)


def leaders_of_older_epochs_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareStateShard, "_check_leader", lambda *_: None)


def takes_for_stored_what_may_not_be(patch: pytest.MonkeyPatch) -> None:
    follow, is_answered = ShareLeader.follow, ShareLeader._is_answered

    def follow_only(leader: Any, *args: Any) -> None:
        leader._coordinates = frozenset()
        follow(leader, *args)

    async def when_stored_here(_leader: Any, shared: Any, waiting: Any) -> None:
        try:
            await waiting
        except FirnError:
            if shared.is_over:
                raise

    def answered(leader: Any, outgoing: Any, version: int, runs: Any, answer: StateAnswer) -> bool:
        if answer.error in NOT_YET or answer.is_lost:
            answer = StateAnswer()
        return is_answered(leader, outgoing, version, runs, answer)

    patch.setattr(ShareLeader, "follow", follow_only)
    patch.setattr(ShareLeader, "_when_stored_here", when_stored_here)
    patch.setattr(ShareLeader, "_is_answered", answered)


def reads_a_state_several_times(patch: pytest.MonkeyPatch) -> None:
    async def opened(leader: Any, wanted: Any) -> dict[Any, RequestRejected]:
        mine = [(key, epoch) for key, epoch in wanted if leader.find(key, epoch) is None]
        failed: dict[Any, RequestRejected] = {}
        answers = await leader._states.ask_once([Read(key, epoch) for key, epoch in mine])
        for (key, epoch), answer in zip(mine, answers, strict=True):
            if answer.state is None:
                failed[key] = RequestRejected(answer.error, answer.sentence or "")
            else:
                leader.core.open(key, answer.state, epoch)
        return failed

    patch.setattr(ShareLeader, "open", opened)


def raises_over_older_programs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(features, "_too_old", lambda *_: None)


def goes_on_at_a_level_that_it_does_not_understand(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "LEVEL_MAX", 1 << 15)
    patch.setattr(broker_changes, "_check_level", lambda *_: None)


def writes_the_next_level_before_it_is_raised(patch: pytest.MonkeyPatch) -> None:
    def newer(*fields: Any) -> BrokerRecord:
        return MemberRecord(*fields, boot_id="boot", level_max=1)

    patch.setattr(registration, "BrokerRecord", newer)


_TRANSACTIONS: Final = SHORT | {"actors": ("transactions",)}
_GROUPS: Final = SHORT | {"actors": ("groups",)}
_ASSIGNED: Final = SHORT | {"actors": ("assigned",)}
_SHARING: Final = SHORT | {"actors": ("sharing",)}
_LONG: Final = {"seconds": 10.0, "pause_s": 0.5}
_APART: Final = {"seconds": 15.0, "pause_s": 4.0}
"""One of these faults is over when the next one comes."""

PLANTED: Final[dict[str, Planted]] = {
    "X3 a marker given up on a refusal": Planted(
        gives_a_marker_up_on_a_refusal,
        "INV-9",
        10,
        ("leaders move under markers",),
        _TRANSACTIONS | {"seconds": 20.0, "pause_s": 4.0},
    ),
    "a transaction committed in one of its partitions": Planted(
        commits_what_is_to_be_aborted_in_a_second_partition,
        "INV-9",
        20,
        ("kill leader",),
        _TRANSACTIONS | {"partitions": 3},
    ),
    "the next end fenced while markers are written": Planted(
        fences_the_next_end_while_markers_are_written,
        "INV-9",
        5,
        ("slow markers",),
        _TRANSACTIONS | {"seconds": 6.0, "pause_s": 1.0, "partitions": 2},
    ),
    "XV1 the coordinator is not asked": Planted(
        does_not_ask_the_coordinator, "INV-9", 10, ("kill leader",), _TRANSACTIONS
    ),
    "G4 a commit answered before it is committed": Planted(
        answers_before_it_is_committed, "INV-8", 20, ("kill leader", "slow network"), _GROUPS | _LONG
    ),
    "G7 a replaced coordinator commits": Planted(
        commits_by_its_own_disk, "INV-8", 20, ("isolate", "partition", "pause leader"), _GROUPS | _LONG
    ),
    "members of older generations not fenced": Planted(
        lets_members_of_older_generations_commit, "INV-8", 20, ("kill leader",), _GROUPS
    ),
    "a partition assigned before it is given up": Planted(
        assigns_what_another_has_not_given_up, "INV-11", 10, ("kill leader",), _ASSIGNED
    ),
    "assignments forgotten by the next coordinator": Planted(
        forgets_who_has_what_with_every_restart, "INV-11", 30, ("kill leader", "restart"), _ASSIGNED | _LONG
    ),
    "G2 what was loaded counts as committed": Planted(
        answers_what_it_has_loaded, "INV-8", 30, ("coordinators fall",), _GROUPS | _APART | {"brokers": 5}
    ),
    "G3 waits over the end of a leadership": Planted(
        waits_over_the_end_of_a_leadership, "INV-8", 10, ("coordinator apart",), _GROUPS | _APART
    ),
    "X1 markers of a decision that is not committed": Planted(
        sends_markers_of_what_is_not_committed,
        "INV-9",
        10,
        ("coordinator alone",),
        _TRANSACTIONS | _APART | {"brokers": 5, "factor": 2, "partitions": 3},
    ),
    "H1 leaders of older epochs write": Planted(
        leaders_of_older_epochs_write, "INV-12", 10, ("leader sleeps",), _SHARING | _APART | {"partitions": 2}
    ),
    "H6 what may not be stored counts as stored": Planted(
        takes_for_stored_what_may_not_be,
        "INV-12",
        10,
        ("coordinator forgets",),
        _SHARING | _APART | {"brokers": 5, "factor": 2},
    ),
    "H8 a state is read several times": Planted(
        reads_a_state_several_times, "INV-12", 10, ("workers come together",), _SHARING | _LONG
    ),
    "a record shared twice": Planted(shares_what_somebody_has, "INV-12", 20, ("kill leader",), _SHARING),
    "acknowledged records not written down": Planted(
        does_not_write_down_what_was_acknowledged, "INV-12", 20, ("kill leader",), _SHARING | _LONG
    ),
    "a level that a registered program does not understand": Planted(
        raises_over_older_programs, "INV-14", 5, ("kill",), SHORT | {"actors": ("upgrade",)}
    ),
    "a program goes on at a level that it does not understand": Planted(
        goes_on_at_a_level_that_it_does_not_understand, "INV-14", 5, ("kill",), SHORT | {"actors": ("upgrade",)}
    ),
    "records of the next level before the raise": Planted(
        writes_the_next_level_before_it_is_raised, "INV-14", 3, ("kill",), SHORT | {"from_0": True}
    ),
}
"""By name. Each is run with seeds from 0 on."""
