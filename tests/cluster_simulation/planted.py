"""Faults planted into the brokers' own code, one rule of ADR 0023 or 0024 taken back at a time.

``tests/replication_model/planted.py`` takes back the others, whose schedules are too rare for whole brokers.
``tests/broker/test_forced_schedules.py`` forces some of those schedules on whole brokers, with plants of this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest

from app.broker.partitions import tier_views
from app.broker.partitions.opening import Opening
from app.broker.partitions.partitions import Partitions
from app.broker.peers.control_link import KafkaControlLink
from app.broker.replication import followers as following
from app.core.errors import BrokerUnavailable
from app.core.turns import Stepwise
from app.handlers.fetch import followers
from app.handlers.fetch import following as follower_fetches
from app.handlers.fetch.consumers import ConsumerAttempt
from app.handlers.state.fetch_sessions import FetchSession
from app.handlers.state.parked_followers import ParkedFollowers
from app.hot.log import PartitionLog
from app.hot.log_offsets import LogOffsets
from app.metadata.changes import broker_changes, leader_changes, reassignments
from app.metadata.changes import topic_changes as changes
from app.metadata.changes.topic_changes import Planned
from app.metadata.controller import desk
from app.metadata.controller.broker_sessions import BrokerSessions
from app.metadata.image.records import broker_change
from app.metadata.log.numbered_log import NumberedLog
from app.metadata.peers.control import NotSent
from app.metadata.replicas import elections, replica_changes
from app.metadata.replicas.elections import Elected
from app.replication.in_sync import InSync
from app.replication.partition import Partition, PartitionTable
from app.tiering.upload import local_retention

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, and within how many seeds the checker meant for it finds it, from ``first`` on."""

    plant: Plant
    found_by: str
    seeds: int
    faults: tuple[str, ...]
    shape: Mapping[str, Any] = field(default_factory=dict)
    first: int = 0


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


def a_hole_of_a_compacted_log_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogOffsets, "lacks_from", property(lambda log: log.lost[0].start if log.lost else None))


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


def leads_on_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    def register(draft: Any, around: Any, asked: Any) -> Any:
        planned = yield from broker_changes.register_broker.steps(draft, around, asked)
        return Planned([one for one in planned.records if one[0] == _broker_key(asked)], planned.answer)

    async def same_epochs(_opening: Opening, _manifests: Any, _logs: Any) -> None:
        """A start raises the epochs of what it leads, which is nothing otherwise."""

    patch.setattr(desk, "register_broker", Stepwise(register))
    patch.setattr(Opening, "bump", same_epochs)


def a_start_registers_twice(patch: pytest.MonkeyPatch) -> None:
    def register(draft: Any, around: Any, asked: Any) -> Any:
        broker = draft.brokers.get(asked.broker_id)
        if broker is None or broker.incarnation != asked.incarnation:
            return (yield from broker_changes.register_broker.steps(draft, around, asked))
        again = asked._replace(incarnation=UUID(int=int(around.sequence)), replaces=broker.broker_epoch)
        planned = yield from broker_changes.register_broker.steps(draft, around, again)
        registered = replace(
            broker,
            broker_epoch=planned.answer.broker_epoch,
            fenced=True,
            changed_at=planned.answer.sequence,
        )
        changed = broker_change(int(asked.broker_id), registered.record())
        return Planned([*planned.records, changed], planned.answer)

    patch.setattr(desk, "register_broker", Stepwise(register))


def a_late_registration_replaces(patch: pytest.MonkeyPatch) -> None:
    def register(draft: Any, around: Any, asked: Any) -> Any:
        broker = draft.brokers.get(asked.broker_id)
        replaces = -1 if broker is None else broker.broker_epoch
        return (yield from broker_changes.register_broker.steps(draft, around, asked._replace(replaces=replaces)))

    patch.setattr(desk, "register_broker", Stepwise(register))


def _broker_key(asked: Any) -> Any:
    return broker_change(int(asked.broker_id), None)[0]


def heartbeats_of_any_broker_epoch_count(patch: pytest.MonkeyPatch) -> None:
    heard = BrokerSessions.heard

    def whoever(sessions: BrokerSessions, broker_id: int, broker_epoch: int, now_s: float, **more: Any) -> Any:
        session = sessions._sessions.get(broker_id)
        if session is not None and session.broker_epoch != broker_epoch:
            # By its own broker epoch it has applied all that it needs.
            broker_epoch, more = session.broker_epoch, more | {"applied": session.changed_at}
        return heard(sessions, broker_id, broker_epoch, now_s, **more)

    patch.setattr(BrokerSessions, "heard", whoever)


def members_enter_by_their_node_ids(patch: pytest.MonkeyPatch) -> None:
    altered = broker_changes.altered

    def whoever(
        partition: Any, leader: int, epoch: int, version: int, members: Any, brokers: Any, *rest: Any, **more: Any
    ) -> Any:
        named = [one._replace(broker_epoch=brokers[one.broker_id].broker_epoch) for one in members]
        return altered(partition, leader, epoch, version, named, brokers, *rest, **more)

    patch.setattr(broker_changes, "altered", whoever)


def fetches_count_by_node_id(patch: pytest.MonkeyPatch) -> None:
    def find(image: Any, node_id: int, replica_id: int, replica_epoch: int) -> Any:
        broker = image.brokers.get(replica_id)
        if broker is None or replica_id == node_id:
            return None
        return followers.Follower(replica_id, broker.broker_epoch)

    patch.setattr(follower_fetches, "find_follower", find)


def requests_are_passed_on_again(patch: pytest.MonkeyPatch) -> None:
    pass_on = KafkaControlLink.pass_on

    async def again(link: Any, *asked: Any) -> Any:
        for _ in range(5):
            try:
                return await pass_on(link, *asked)
            except NotSent:
                raise
            except BrokerUnavailable:
                continue
        raise NotSent("there was no answer")

    patch.setattr(KafkaControlLink, "pass_on", again)


def an_unclean_leader_does_not_ask_the_tier(patch: pytest.MonkeyPatch) -> None:
    bring = Partitions.bring_one

    def lazily(partitions: Any, topic: Any, image: Any, config: Any, *, may_make: bool) -> Any:
        partition = partitions.table.get(topic.name, image.partition_index)
        if partition is not None and image.recovering and image.leader == partitions._broker_id:
            partition.in_sync = (partitions._broker_id,)
            partition.log.start_is_assumed = False
            image = image._replace(recovering=False)
        return bring(partitions, topic, image, config, may_make=may_make)

    patch.setattr(Partitions, "bring_one", lazily)
    # T10 would find it when the manifest is read.
    patch.setattr(Opening, "check_in_sync_log", lambda _opening, _log, _manifest: None)


def followers_drop_what_the_tier_lacks(patch: pytest.MonkeyPatch) -> None:
    drop = tier_views.drop_local
    patch.setattr(local_retention, "is_covered", lambda _manifest, _base, _end: True)

    def dropped(log: Any, manifest: Any, *, now_ms: Any) -> Any:
        return drop(log, SimpleNamespace(tiered_end=log.log_end_offset), now_ms=now_ms)  # type: ignore[arg-type]

    patch.setattr(tier_views, "drop_local", dropped)


def entries_are_handed_on_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    put = NumberedLog._put

    async def told_first(log: Any, key: str, body: bytes) -> Any:
        if log.on_written is not None:
            log.on_written(log.next_sequence, bytes(body))
            await asyncio.sleep(0.3)
        return await put(log, key, body)

    patch.setattr(NumberedLog, "_put", told_first)


def followers_show_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    read = ConsumerAttempt.read

    def to_the_end(attempt: Any, partition: Any, cached: Any, limit: int) -> Any:
        log = partition.log
        kept = log._high_watermark
        if not partition.leads:
            log._high_watermark = log.log_end_offset
        try:
            return read(attempt, partition, cached, limit)
        finally:
            log._high_watermark = kept

    patch.setattr(ConsumerAttempt, "read", to_the_end)


def narrow(patch: pytest.MonkeyPatch) -> None:
    """No fault: moves get 1 kB/s beside records of others (V9), so that the few bytes of a simulation have to wait."""
    patch.setattr(followers, "MOVES_BYTES_PER_MS", 1)
    patch.setattr(followers, "MOVES_SAVED_MAX", 0)


def moves_that_wait_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    narrow(patch)
    patch.setattr(FetchSession, "take_moving", lambda _session, _count: {})


def followers_fetches_wait_as_long_as_they_may(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedFollowers, "wait_ms", lambda _parked, wait_ms, **_named: wait_ms)
    patch.setattr(ParkedFollowers, "_hurry", lambda *_: None)


def new_leaders_expect_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedFollowers, "began_to_lead", lambda _: None)


MOVES: Final = {"seconds": 15.0, "pause_s": 0.7, "brokers": 4, "factor": 2}

SHORT: Final = {"seconds": 5.0, "pause_s": 1.0, "brokers": 3, "factor": 3}

CALM: Final = SHORT | {"prompt": True, "seconds": 20.0, "producers": 1, "partitions": 3, "lag_ms": 30_000}

LATE: Final = SHORT | {"seconds": 20.0, "pause_s": 3.0}

HOLES: Final = SHORT | {"seconds": 15.0, "disk": False, "min_in_sync": 2, "tiered": False, "holes": True}
HOLES_FAULTS: Final = ("slow disk", "slow disk", "power", "power", "power within")
"""A slow disk lets several segments wait for their sync, and a loss of power takes one between others."""

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
        a_set_of_any_size_commits, "INV-1", 12, ("kill", "power"), SHORT | {"min_in_sync": 2}
    ),
    "R7 any position may enter": Planted(
        any_position_may_enter, "INV-1", 20, ("kill", "slow network"), SHORT, first=20
    ),
    "R7 nobody enters": Planted(nobody_enters, "alive", 3, ("restart",), SHORT),
    "S1 what is fetched counts as stored": Planted(
        fetched_counts_as_stored, "INV-1", 5, ("slow disk", "power"), SHORT | {"disk": True}
    ),
    "V9 moves that wait are forgotten": Planted(moves_that_wait_are_forgotten, "alive", 5, ("reassign",), MOVES),
    "V10 fetches of followers wait as long as they may": Planted(
        followers_fetches_wait_as_long_as_they_may, "prompt", 10, ("leaders move",), CALM
    ),
    "V10 new leaders expect nobody": Planted(new_leaders_expect_nobody, "prompt", 10, ("leaders move",), CALM),
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
        10,
        ("power of all", "power within", "slow network"),
        SHORT | {"seconds": 15.0} | {"disk": False, "min_in_sync": 2},
        first=1,
    ),
    "A4 a log begins committed": Planted(
        a_log_begins_committed, "INV-1", 10, ("kill leader", "slow network"), SHORT | {"seconds": 10.0, "pause_s": 0.5}
    ),
    "A5 the end is told too early": Planted(
        the_end_is_told_too_early,
        "INV-3",
        20,
        ("kill leader", "slow network"),
        SHORT | {"seconds": 10.0, "pause_s": 0.5},
        first=100,
    ),
    "A6 a hole of a compacted log is kept": Planted(
        a_hole_of_a_compacted_log_is_kept, "INV-1", 4, HOLES_FAULTS, HOLES, first=10
    ),
    "M2 leadership kept over a restart": Planted(
        leads_on_after_a_restart, "INV-13", 5, ("power",), SHORT | {"seconds": 10.0, "disk": True}
    ),
    "M8 a start registers twice": Planted(
        a_start_registers_twice,
        "member",
        60,
        ("answers lost", "kill"),
        SHORT | {"seconds": 15.0, "pause_s": 0.5},
    ),
    "M9 a late registration replaces": Planted(a_late_registration_replaces, "member", 10, ("late requests",), LATE),
    "F1 requests are passed on again": Planted(
        requests_are_passed_on_again,
        "once",
        12,
        ("create and delete", "create and delete", "answers lost"),
        SHORT | {"seconds": 15.0, "pause_s": 0.4},
        first=12,
    ),
    "T2 lazy after an unclean election": Planted(
        an_unclean_leader_does_not_ask_the_tier,
        "INV-4",
        10,
        ("power of all", "power of all", "disk lost"),
        SHORT | {"seconds": 25.0, "pause_s": 5.0, "disk": False, "tiered": True, "unclean": True},
    ),
    "T3 followers drop what the tier lacks": Planted(
        followers_drop_what_the_tier_lacks,
        "INV-4",
        5,
        ("kill leader", "bucket away"),
        SHORT | {"seconds": 15.0, "tiered": True},
    ),
    "T8 entries are handed on before they are durable": Planted(
        entries_are_handed_on_before_they_are_durable,
        "INV-2",
        60,
        ("bucket away", "bucket cut", "kill leader"),
        SHORT | {"seconds": 15.0, "tiered": True, "lag_ms": 1000},
    ),
    "V1 followers show what is not committed": Planted(
        followers_show_what_is_not_committed,
        "INV-3",
        20,
        ("kill leader", "cut one way"),
        SHORT | {"seconds": 10.0, "anywhere": True},
    ),
    "producer ids are given twice": Planted(
        producer_ids_are_given_twice, "INV-13", 5, ("clock",), SHORT | {"producers": 3}
    ),
}
"""By name. Each is run with seeds from 0 on."""
