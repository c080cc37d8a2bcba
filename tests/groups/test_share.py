"""Share groups (KIP-932): their members, and their progress in the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import add
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.configs import BrokerConfig
from app.coordinator.records import GROUP_RECORDS
from app.core.errors import ErrorCode, RequestRejected
from app.groups.consumer.assignors import MemberSpec, TopicSpec
from app.groups.consumer.consumer import ClientInfo
from app.groups.share.core import share_records, share_sessions
from app.groups.share.core.share import (
    ASSIGNED_AT_ONCE_MAX,
    ShareGroup,
    ShareTimer,
    assign_shared,
    check_share_heartbeat,
)
from app.groups.share.core.share_records import SharedTopic
from app.groups.share.core.share_sessions import FINAL, ShareSessions
from app.groups.share.core.share_state import RESET_EPOCHS, ShareKey, ShareSettings
from app.groups.share.core.share_window import Acknowledgement, Acquired, Window
from app.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.groups.bench import FakeTurn, image_of, topic_id
from tests.groups.shards import ShardBench, ShardTurn
from tests.groups.share_bench import ShareBench

CONFIG = BrokerConfig(group_share_max_size=3, group_share_assignment_interval_ms=0)


class Bench:
    def __init__(self, config: BrokerConfig = CONFIG) -> None:
        self.turn = FakeTurn()
        self.image = image_of({"t": 4})
        self.group = ShareGroup("g", config)

    def beat(self, member_id: str, epoch: int, topics: list[str] | None = None) -> ShareGroupHeartbeatResponse:
        return self.send(ShareGroupHeartbeatRequest("g", member_id, epoch, None, topics))

    def send(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        check_share_heartbeat(request)
        return self.group.heartbeat(self.turn, request, ClientInfo("c", "/h"), self.image)

    def loaded(self) -> ShareGroup:
        group = ShareGroup("g", CONFIG)
        for batch in self.turn.log:
            for key, value in batch:
                group.replay(share_records.from_bytes(GROUP_RECORDS.decode_key(key), value))
        return group


def partitions(answer: ShareGroupHeartbeatResponse) -> set[int] | None:
    if answer.assignment is None:
        return None
    return {each for topic in answer.assignment.topic_partitions for each in topic.partitions}


def test_members_share_partitions_and_get_others_with_their_next_heartbeat() -> None:
    bench = Bench()
    answer = bench.beat("a", 0, ["t"])
    assert (answer.member_epoch, partitions(answer)) == (1, {0, 1, 2, 3})
    assert partitions(bench.beat("a", 1)) is None
    assert partitions(bench.beat("b", 0, ["t"])) == {2, 3}
    answer = bench.beat("a", 1)
    assert (answer.member_epoch, partitions(answer)) == (2, {0, 1})
    bench.image = image_of({"t": 6})
    assert partitions(bench.beat("a", 2)) == {0, 1, 4}
    assert remembered(bench.loaded()) == remembered(bench.group)


def test_who_comes_to_a_small_group_is_assigned_partitions_at_once() -> None:
    bench = Bench(replace(CONFIG, group_share_assignment_interval_ms=1000))
    assert partitions(bench.beat("a", 0, ["t"])) == {0, 1, 2, 3}  # nobody to wait for
    answer = bench.beat("b", 0, ["t"])
    assert (answer.member_epoch, partitions(answer)) == (2, {2, 3})
    assert partitions(bench.beat("a", 1)) == {0, 1}
    assert partitions(bench.beat("c", 0, ["t"])) == {3}
    bench.beat("b", -1)
    assert bench.beat("a", 2).member_epoch == 3  # what others leave waits for the interval
    bench.turn.now_ms += 1000
    assert bench.beat("a", 3).member_epoch == 4
    assert partitions(bench.beat("c", 3)) == {2, 3}


def test_members_that_join_a_large_group_within_the_assignment_interval_are_dealt_with_together() -> None:
    bench = Bench(replace(CONFIG, group_share_assignment_interval_ms=1000, group_share_max_size=20))
    early = [f"early{number}" for number in range(ASSIGNED_AT_ONCE_MAX)]
    for member_id in early:
        assert partitions(bench.beat(member_id, 0, ["t"]))
    for member_id in ("b", "c"):
        bench.turn.now_ms += 499
        answer = bench.beat(member_id, 0, ["t"])
        assert (answer.member_epoch, partitions(answer)) == (ASSIGNED_AT_ONCE_MAX, set())
    assert bench.beat("early0", 1).member_epoch == ASSIGNED_AT_ONCE_MAX
    bench.turn.now_ms += 2
    answer = bench.beat("early0", ASSIGNED_AT_ONCE_MAX)
    assert bench.group.epoch == answer.member_epoch == ASSIGNED_AT_ONCE_MAX + 2
    for member_id in ("b", "c"):
        assert partitions(bench.beat(member_id, ASSIGNED_AT_ONCE_MAX))
    bench.beat("c", -1)
    assert bench.beat("b", answer.member_epoch).member_epoch == answer.member_epoch  # within the interval again
    assert remembered(bench.loaded()) == remembered(bench.group)
    bench.group = bench.loaded()  # a coordinator that has just begun does not know when it was
    assert bench.beat("b", answer.member_epoch).member_epoch == answer.member_epoch + 1


def remembered(group: ShareGroup) -> Any:
    return group.members, group.targets, group.epoch, group.target_epoch


def test_who_leaves_or_is_silent_is_out_and_the_others_get_all() -> None:
    bench = Bench()
    bench.beat("a", 0, ["t"])
    bench.beat("b", 0, ["t"])
    assert partitions(bench.beat("a", 1)) == {0, 1}
    assert bench.beat("b", -1).member_epoch == -1
    assert partitions(bench.beat("a", 2)) == {0, 1, 2, 3}
    assert ShareTimer("share session", "g", "a") in bench.turn.timers
    assert ShareTimer("share session", "g", "b") not in bench.turn.timers
    bench.beat("a", -1)
    assert bench.group.state == "Empty"
    bench.turn.append(bench.group.tombstones())
    assert remembered(bench.loaded()) == ({}, {}, 0, 0)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "x" * 37}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "x" * 36}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"rack_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 0, "subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 7}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "x", "member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "x", "member_epoch": 0, "subscribed_topic_names": ["t"]}, ErrorCode.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_a_heartbeat_that_makes_no_sense_changes_nothing(changes: dict[str, Any], code: ErrorCode) -> None:
    bench = Bench()
    for member_id in ("a", "b", "c"):
        bench.beat(member_id, 0, ["t"])
    before = len(bench.turn.log)
    request = replace(ShareGroupHeartbeatRequest("g", "a", 1), **changes)
    with pytest.raises(RequestRejected) as refused:
        bench.send(request)
    assert refused.value.code is code
    assert len(bench.turn.log) == before


def test_more_members_than_partitions_share_them_evenly() -> None:
    topic = UUID(int=1)
    members = {f"m{number}": MemberSpec(frozenset({topic}), {}) for number in range(7)}
    assigned = assign_shared(members, {topic: TopicSpec(3)})
    readers = [sum(partition in parts[topic] for parts in assigned.values()) for partition in range(3)]
    assert sorted(readers) == [2, 2, 3]
    assert {len(parts[topic]) for parts in assigned.values()} == {1}
    assert assign_shared({}, {}) == {}


@given(
    st.dictionaries(st.sampled_from([f"m{number}" for number in range(9)]), st.sets(st.sampled_from("ab"), min_size=1)),
    st.dictionaries(st.sampled_from([f"m{number}" for number in range(9)]), st.sets(st.sampled_from("ab"), min_size=1)),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_shared_assignments_are_even_and_nobody_gives_up_more_than_that_takes(
    before: dict[str, set[str]], after: dict[str, set[str]], counts: tuple[int, int], growth: tuple[int, int]
) -> None:
    topics = {name: UUID(int=number) for number, name in enumerate("ab", 1)}
    sizes = [counts, tuple(map(add, counts, growth))]
    owned: dict[str, Any] = {}
    for members, size in zip((before, after), sizes, strict=True):
        specs = {
            name: MemberSpec(frozenset(topics[topic] for topic in names), owned.get(name, {}))
            for name, names in members.items()
        }
        read = {topics[name] for names in members.values() for name in names}
        known = {topics[name]: TopicSpec(count) for name, count in zip("ab", size, strict=True) if topics[name] in read}
        assigned = assign_shared(specs, known)
        check_shared(specs, known, assigned)
        assert assign_shared({n: replace(s, owned=assigned[n]) for n, s in specs.items()}, known) == assigned
        owned = assigned


def check_shared(specs: dict[str, MemberSpec], topics: dict[UUID, TopicSpec], assigned: dict[str, Any]) -> None:
    for topic, spec in topics.items():
        readers = [name for name, member in specs.items() if topic in member.topic_ids]
        shares = [len(assigned[name].get(topic, ())) for name in readers]
        loads = Counter(partition for name in readers for partition in assigned[name][topic])
        assert set(loads) == set(range(spec.partition_count))
        assert max(shares) - min(shares) <= 1
        assert max(loads.values()) - min(loads.values()) <= 1
        if spec.partition_count >= len(readers):
            assert set(loads.values()) == {1}
        for name in readers:
            kept, had = assigned[name][topic], specs[name].owned.get(topic, frozenset())
            others = {p for other in readers if other != name for p in specs[other].owned.get(topic, ())}
            if len(had) <= len(kept) and spec.partition_count >= len(readers) and not had & others:
                assert had <= kept, "it gave up what nobody else had, without having too much"
    assert all(topic in specs[name].topic_ids for name, parts in assigned.items() for topic in parts)


def test_an_empty_share_group_is_not_taken_for_left_over() -> None:
    bench = ShardBench()
    bench.image = image_of({"t": 1})
    for epoch, topics in ((0, ["t"]), (-1, None)):
        request = ShareGroupHeartbeatRequest("g", "a", epoch, None, topics)
        bench.do(lambda shard, turn, r=request: shard.share_heartbeat(turn, r, ClientInfo("c", "/h")))  # type: ignore[misc]
    bench.advance(2 * bench.config.offsets_retention_check_interval_ms)
    assert bench.shard.share_group("g").state == "Empty"
    bench.restart()
    assert bench.shard.share_group("g").state == "Empty"
    assert bench.code(lambda shard, turn: shard.delete_group(turn, "g")) is ErrorCode.NONE
    assert "g" not in bench.shard.groups


def test_what_was_subscribed_to_is_remembered_until_it_is_forgotten_or_deleted() -> None:
    bench = Bench()
    bench.image = image_of({"t": 2, "u": 1})
    bench.beat("a", 0, ["t", "u", "nowhere"])
    bench.beat("a", -1)
    everything = {topic_id("t"): SharedTopic("t", frozenset({0, 1})), topic_id("u"): SharedTopic("u", frozenset({0}))}
    assert (bench.group.topics, bench.loaded().topics) == (everything, everything)
    bench.group.forget(bench.turn, topic_id("t"))
    bench.group.remember(bench.turn, {topic_id("t"): SharedTopic("t", frozenset({1}))})
    set_by_hand = everything | {topic_id("t"): SharedTopic("t", frozenset({1}))}
    assert (bench.group.topics, bench.loaded().topics) == (set_by_hand, set_by_hand)
    bench.group.remember(bench.turn, {topic_id("t"): SharedTopic("t", frozenset({0}))})
    assert bench.group.topics == everything
    bench.image = image_of({"t": 2})
    bench.beat("b", 0, ["t"])
    del everything[topic_id("u")]
    assert (bench.group.topics, bench.loaded().topics) == (everything, everything)
    bench.group.forget(bench.turn, topic_id("t"))
    assert bench.group.topics == everything, "somebody subscribes to it"
    bench.beat("b", -1)
    bench.group.forget(bench.turn, topic_id("t"))
    assert (bench.group.topics, bench.loaded().topics) == ({}, {})


def test_a_member_that_is_silent_is_taken_out_of_its_share_group() -> None:
    bench = ShardBench()
    bench.image = image_of({"t": 1})
    request = ShareGroupHeartbeatRequest("g", "a", 0, None, ["t"])
    bench.do(lambda shard, turn: shard.share_heartbeat(turn, request, ClientInfo("c", "/h")))
    bench.advance(44_999)
    assert not bench.shard.share_group("g").is_empty
    bench.advance(1)
    assert bench.shard.share_group("g").is_empty
    consumer = ConsumerGroupHeartbeatRequest("g", "b", 0, rebalance_timeout_ms=1, subscribed_topic_names=["t"])
    code = bench.code(lambda shard, turn: shard.consumer_heartbeat(turn, consumer, ClientInfo("c", "/h")))
    assert code is ErrorCode.GROUP_ID_NOT_FOUND, "a group of another type does not take its place"
    assert bench.code(lambda shard, turn: shard.classic_group_to_join(turn, "g", "")) is (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


# --- progress -------------------------------------------------------------------------------------------------------

KEY = ShareKey("g", topic_id("t"), 0)
SETTINGS = ShareSettings(lock_ms=1000, deliveries_max=2, window_max=100)


def make_shard() -> ShareBench:
    return ShareBench(lambda _: SETTINGS)


def reloaded(turn: ShardTurn) -> ShareBench:
    shard = make_shard()
    for batch in turn.batches:
        shard.load(batch)
    shard.loaded(turn)
    return shard


def test_progress_is_in_the_log_before_it_counts_and_is_found_there_again() -> None:
    turn, shard = ShardTurn(), make_shard()
    shard.begin(turn, KEY, 10)
    assert shard.acquire(turn, KEY, "m", [(10, 20)], [], 0, 100) == [Acquired(10, 20, 1)]
    shard.acknowledge(turn, KEY, "m", [Acknowledgement(10, 12, [1]), Acknowledgement(14, 15, [3])])
    turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    before = shard.partitions[KEY].window
    with pytest.raises(RequestRejected):
        shard.acknowledge(turn, KEY, "m", [Acknowledgement(12, 14, [1])])
    assert shard.partitions[KEY].window == before
    turn.refuse_with = None
    again = reloaded(turn)
    assert again.partitions[KEY].window.start == 12
    assert again.acquire(turn, KEY, "other", [(12, 20)], [], 0, 100) == [Acquired(12, 14, 2), Acquired(15, 20, 2)]


def test_a_step_of_the_clock_ends_nobodys_time() -> None:
    class Stepped(ShardTurn):
        steady_ms = 5_000  # type: ignore[assignment]

    turn, shard = Stepped(), make_shard()
    shard.begin(turn, KEY, 0)
    assert shard.acquire(turn, KEY, "m", [(0, 2)], [], 0, 1) == [Acquired(0, 1, 1)]
    turn.now_ms += 600_000
    assert shard.acquire(turn, KEY, "m", [(0, 2)], [], 0, 1) == [Acquired(1, 2, 1)]
    shard.due(turn, KEY)
    assert shard.partitions[KEY].window.acquired_count == 2
    shard.acknowledge(turn, KEY, "m", [Acknowledgement(0, 2, [1])])


def test_what_is_held_too_long_goes_to_others_and_in_the_end_to_nobody() -> None:
    turn, shard = ShardTurn(), make_shard()
    shard.begin(turn, KEY, 0)
    for delivery in (1, 2):
        assert shard.acquire(turn, KEY, "m", [(0, 2)], [], 0, 100) == [Acquired(0, 2, delivery)]
        turn.now_ms += 999
        assert turn.timers.pop_due(turn.now_ms) is None
        turn.now_ms += 1
        assert turn.timers.pop_due(turn.now_ms) == KEY
        shard.due(turn, KEY)
    assert shard.partitions[KEY].window.start == 2
    assert reloaded(turn).partitions[KEY].window.start == 2


def test_what_is_for_nobody_is_done_with() -> None:
    turn, shard = ShardTurn(), make_shard()
    shard.begin(turn, KEY, 0)
    assert shard.acquire(turn, KEY, "m", [(1, 3)], [(0, 1), (3, 4)], 0, 100) == [Acquired(1, 3, 1)]
    assert shard.partitions[KEY].window.start == 1
    shard.acknowledge(turn, KEY, "m", [Acknowledgement(1, 3, [1])])
    assert shard.partitions[KEY].window.start == 4
    assert shard.acquire(turn, KEY, "m", [(6, 8)], [], 6, 100) == [Acquired(6, 8, 1)]
    assert shard.partitions[KEY].window.start == 6, "records below the start of the log are gone"


def kinds(turn: ShardTurn) -> str:
    """S for each snapshot in the log, and u for each update."""
    return "".join("Su"[key[1]] for batch in turn.batches for key, _ in batch.records)


def test_progress_is_written_as_what_has_changed_since_the_snapshot() -> None:
    turn, shard = ShardTurn(), make_shard()
    shard.begin(turn, KEY, 0)
    sizes = []
    for first in range(0, 80, 20):
        shard.acquire(turn, KEY, "m", [(first, first + 20)], [], 0, 100)
        shard.acknowledge(turn, KEY, "m", [Acknowledgement(first + 3, first + 5, [1])])
        sizes.append(len(turn.batches[-1].records[0][1] or b""))
    assert kinds(turn) == "Suuu" + "S"
    assert sizes[3] < sizes[0] + 9 * 19
    again = reloaded(turn)
    assert again.partitions[KEY].window.done_count == 8
    assert again.partitions[KEY].snapshot_epoch == 2


def test_a_snapshot_is_due_after_so_many_updates() -> None:
    settings = SETTINGS._replace(updates_max=3)
    turn, shard = ShardTurn(), ShareBench(lambda _: settings)
    shard.begin(turn, KEY, 0)
    for first in range(8):
        shard.acquire(turn, KEY, "m", [(first, first + 1)], [], 0, 1)
        shard.acknowledge(turn, KEY, "m", [Acknowledgement(first, first + 1, [1])])
    assert kinds(turn) == "SuuuSuuuS"
    settings = SETTINGS._replace(updates_max=0)
    shard.begin(turn, KEY, 50)
    shard.acquire(turn, KEY, "m", [(50, 51)], [], 0, 1)
    shard.acknowledge(turn, KEY, "m", [Acknowledgement(50, 51, [1])])
    assert kinds(turn).endswith("SSS")


def test_what_a_member_says_is_found_again_beside_an_update_of_an_older_snapshot() -> None:
    """As compaction leaves it: the newest record of each kind."""
    turn, shard = ShardTurn(), make_shard()
    shard.begin(turn, KEY, 0)
    shard.acquire(turn, KEY, "m", [(0, 5)], [], 0, 5)
    shard.acknowledge(turn, KEY, "m", [Acknowledgement(0, 1, [1])])
    shard.begin(turn, KEY, 2)
    assert kinds(turn) == "SuS"
    update, begun_anew = turn.batches[1:]
    for left in ([update, begun_anew], [begun_anew, update]):
        again = make_shard()
        for batch in left:
            again.load(batch)
        assert again.partitions[KEY].window == Window(2)


def test_forgotten_progress_leaves_nothing_behind() -> None:
    turn, shard = ShardTurn(), make_shard()
    shard.begin(turn, KEY, 0)
    shard.forget(turn, [KEY])
    assert shard.partitions == reloaded(turn).partitions == {}
    assert shard.acquire(turn, KEY, "m", [(0, 1)], [], 0, 1) == []
    with pytest.raises(RequestRejected) as refused:
        shard.acknowledge(turn, KEY, "m", [Acknowledgement(0, 1, [1])])
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_group_that_begins_anew_is_in_another_epoch_of_its_state() -> None:
    turn, shard = ShardTurn(), make_shard()
    shard.begin(turn, KEY, 0)
    shard.begin(turn, KEY, 7)
    assert (shard.partitions[KEY].window.start, shard.partitions[KEY].state_epoch) == (7, RESET_EPOCHS)
    assert reloaded(turn).partitions[KEY].state_epoch == RESET_EPOCHS


# --- sessions -------------------------------------------------------------------------------------------------------


def code_of(call: Any) -> ErrorCode:
    with pytest.raises(RequestRejected) as refused:
        call()
    return refused.value.code


def test_sessions_count_their_requests_and_are_limited() -> None:
    config = BrokerConfig(group_share_max_share_sessions=2, group_share_session_timeout_ms=1000)
    sessions = ShareSessions(lambda: config)
    assert code_of(lambda: sessions.next("g", "a", 1, 0)) is ErrorCode.SHARE_SESSION_NOT_FOUND
    first = sessions.begin("g", "a", 0)
    assert sessions.next("g", "a", 1, 10) is first
    assert code_of(lambda: sessions.next("g", "a", 1, 0)) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.next("g", "a", 2, 20) is first
    sessions.begin("g", "b", 900)
    assert code_of(lambda: sessions.begin("g", "c", 1000)) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert not first.is_over
    sessions.begin("g", "c", 1021)
    assert first.is_over
    assert first.gives_back
    assert code_of(lambda: sessions.next("g", "a", 3, 0)) is ErrorCode.SHARE_SESSION_NOT_FOUND, "it was idle"
    last = sessions.next("g", "c", FINAL, 0)
    assert not last.is_over, "its last request may still speak of what it has"
    sessions.drop("g", "c", last)
    assert last.gives_back
    assert code_of(lambda: sessions.next("g", "c", FINAL, 0)) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_all_sessions_together_read_no_more_than_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "PLACES_MAX", 3)
    sessions = ShareSessions(BrokerConfig)
    places = [(topic_id("t"), index) for index in range(4)]
    first, second = sessions.begin("g", "a", 0), sessions.begin("g", "b", 0)
    sessions.change(first, [places[0], places[0], places[1]], [])
    sessions.change(first, places[:2], [])
    sessions.change(second, places[2:3], [])
    assert code_of(lambda: sessions.change(second, places, [])) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert list(second.places) == places[2:3]
    sessions.change(first, [], [places[0], places[3]])
    sessions.change(second, places[3:], [])
    sessions.drop("g", "a", first)
    sessions.drop("g", "a", first)
    sessions.change(first, places, [])
    sessions.change(second, places[:1], [])
    again = sessions.begin("g", "b", 0)
    sessions.change(again, places[:3], [])
    assert code_of(lambda: sessions.change(again, places[3:], [])) is ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_every_partition_has_its_turn() -> None:
    session = ShareSessions(BrokerConfig).begin("g", "a", 0)
    places = [(UUID(int=1), index) for index in range(3)]
    session.places = dict.fromkeys(places)
    assert [session.in_turn()[0] for _ in range(4)] == [*places, places[0]]
