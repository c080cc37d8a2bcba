"""Faults planted into the brokers' own code, one rule of ADR 0023 or 0024 taken back at a time.

``tests/replication_model/planted.py`` takes back the others: those whose schedules are too rare for whole brokers, and those of
the tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from app.broker import followers as following
from app.hot.log import PartitionLog
from app.metadata import broker_changes, changes, desk, elections, leader_changes, reassignments, replica_changes
from app.metadata.broker_sessions import BrokerSessions
from app.metadata.elections import Elected
from app.replication.in_sync import InSync
from app.replication.partition import Partition, PartitionTable

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, and within how many seeds the checker meant for it finds it."""

    plant: Plant
    found_by: str
    seeds: int
    faults: tuple[str, ...]
    shape: Mapping[str, Any] = field(default_factory=dict)


def sessions_do_not_begin_anew(patch: pytest.MonkeyPatch) -> None:
    class Hasty(BrokerSessions):
        def follow(self, brokers: Any, now_s: float) -> None:
            super().follow(brokers, now_s - self._session_timeout_s if not self._sessions else now_s)

    patch.setattr(desk, "BrokerSessions", Hasty)


def unclean_stops_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker_changes, "_names_last_run", lambda _asked, _epoch: True)


def unfenced_before_it_has_applied(patch: pytest.MonkeyPatch) -> None:
    def to_unfence(sessions: BrokerSessions) -> list[int]:
        return [one for one, session in sessions._sessions.items() if session.fenced and session.has_beaten]

    patch.setattr(BrokerSessions, "to_unfence", to_unfence)
    patch.setattr(BrokerSessions, "applied", lambda _sessions, _broker_id: 1 << 40)


def commits_its_own_end(patch: pytest.MonkeyPatch) -> None:
    def advance(counted: InSync) -> None:
        counted._high_watermark = max(counted._high_watermark, counted._stored_end)

    patch.setattr(InSync, "_advance", advance)


def a_set_of_any_size_commits(patch: pytest.MonkeyPatch) -> None:
    def advance(counted: InSync) -> None:
        end = min([counted._stored_end, *(follower.stored_end for follower in counted._maximal)])
        counted._high_watermark = max(counted._high_watermark, end)

    patch.setattr(InSync, "_advance", advance)
    patch.setattr(Partition, "check_in_sync", lambda _partition: None)


def any_position_may_enter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSync, "_may_count", lambda _counted, follower: follower.stored_end >= 0)


def nobody_enters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSync, "_may_count", lambda _counted, _follower: False)


def fetched_counts_as_stored(patch: pytest.MonkeyPatch) -> None:
    position = following._Followed.position

    def all_of_it(followed: Any) -> Any:
        asked = position(followed)
        return asked._replace(stored_end=asked.fetch_offset)

    patch.setattr(following._Followed, "position", all_of_it)
    patch.setattr(PartitionLog, "wait_stored", lambda _log, _end: None)  # S2: a follower waits for its syncs otherwise


def one_epoch_for_two_leaders(patch: pytest.MonkeyPatch) -> None:
    def stamped(before: Any, after: Any) -> Any:
        after = after._replace(leader_epoch=before.leader_epoch, partition_epoch=before.partition_epoch)
        return before if after == before else after._replace(partition_epoch=before.partition_epoch + 1)

    for module in (elections, reassignments, replica_changes):
        patch.setattr(module, "stamped", stamped)


def anybody_may_be_elected(patch: pytest.MonkeyPatch) -> None:
    def elect(partition: Any, active: Any, *, prefer_other_than: Any = None, **_named: Any) -> Elected:
        if partition.leader != prefer_other_than and partition.leader >= 0 and active(partition.leader):
            return Elected(partition, False)
        for broker in reversed(partition.replicas):
            if broker != prefer_other_than and active(broker):
                changed = partition._replace(leader=broker, isr=(broker,), eligible=(), last_known_eligible=())
                return Elected(elections.stamped(partition, changed), False)
        return Elected(elections.stamped(partition, partition._replace(leader=elections.NOBODY)), False)

    for module in (elections, leader_changes, replica_changes):
        patch.setattr(module, "elect", elect)


def producer_ids_are_given_twice(patch: pytest.MonkeyPatch) -> None:
    allocate = changes.allocate_producer_ids
    first: list[Any] = []

    def again(draft: Any, broker_id: Any) -> Any:
        first[:] = first or [allocate(draft, broker_id)]
        return first[0]

    patch.setattr(changes, "allocate_producer_ids", again)


def nothing_is_given_up(patch: pytest.MonkeyPatch) -> None:
    step = following.step
    patch.setattr(following, "step", lambda *args, **more: step(*args, **more | {"unclean_epoch": -1}))


def a_log_begins_committed(patch: pytest.MonkeyPatch) -> None:
    follow = PartitionTable.follow
    patch.setattr(
        PartitionTable, "follow", lambda table, partition, _: follow(table, partition, partition.log.log_end_offset)
    )


def the_end_is_told_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "end_is_known", property(lambda _: True))


SHORT: Final = {"seconds": 5.0, "pause_s": 1.0, "brokers": 3, "factor": 3}

PLANTED: Final[dict[str, Planted]] = {
    "C5 sessions do not begin anew": Planted(
        sessions_do_not_begin_anew, "calm", 10, ("kill controller",), {"seconds": 12.0, "pause_s": 9.0}
    ),
    "M3 unclean stops are kept": Planted(
        unclean_stops_are_kept,
        "INV-1",
        20,
        ("power", "kill leader"),
        SHORT | {"seconds": 10.0, "disk": False, "factor": 2, "min_in_sync": 2},
    ),
    "M7 unfenced before it has applied": Planted(
        unfenced_before_it_has_applied,
        "member",
        5,
        ("cut one way", "cut both ways", "isolate"),
        {"seconds": 15.0, "pause_s": 1.0, "brokers": 3},
    ),
    "R1 the leader's end is the high watermark": Planted(commits_its_own_end, "INV-1", 5, ("kill leader",), SHORT),
    "R2 a set of any size commits": Planted(
        a_set_of_any_size_commits, "INV-1", 5, ("kill", "power"), SHORT | {"min_in_sync": 2}
    ),
    "R7 any position may enter": Planted(any_position_may_enter, "INV-1", 30, ("kill", "slow network"), SHORT),
    "R7 nobody enters": Planted(nobody_enters, "alive", 3, ("restart",), SHORT),
    "S1 what is fetched counts as stored": Planted(
        fetched_counts_as_stored, "INV-1", 5, ("slow disk", "power"), SHORT | {"disk": True}
    ),
    "E1 anybody may be elected": Planted(
        anybody_may_be_elected,
        "INV-1",
        20,
        ("kill leader", "kill leader", "slow network"),
        SHORT | {"seconds": 10.0, "pause_s": 0.5},
    ),
    "E2 one epoch for two leaders": Planted(one_epoch_for_two_leaders, "INV-13", 5, ("restart", "kill leader"), SHORT),
    "A3 nothing is given up": Planted(
        nothing_is_given_up,
        "alive",
        5,
        ("power of all", "power within", "slow network"),
        SHORT | {"seconds": 15.0} | {"disk": False, "min_in_sync": 2},
    ),
    "A4 a log begins committed": Planted(
        a_log_begins_committed, "INV-1", 10, ("kill leader", "slow network"), SHORT | {"seconds": 10.0, "pause_s": 0.5}
    ),
    "A5 the end is told too early": Planted(
        the_end_is_told_too_early,
        "INV-3",
        10,
        ("kill leader", "slow network"),
        SHORT | {"seconds": 10.0, "pause_s": 0.5},
    ),
    "producer ids are given twice": Planted(
        producer_ids_are_given_twice, "INV-13", 5, ("clock",), SHORT | {"producers": 3}
    ),
}
"""By name. Each is run with seeds from 0 on."""
