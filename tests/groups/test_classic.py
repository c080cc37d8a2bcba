"""The classic group protocol as conversations with a group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.coordinator.records import GROUP_RECORDS
from app.coordinator.schemas.classic_group import GroupMetadataKey, GroupMetadataValue
from app.core.errors import ErrorCode, RequestRejected
from app.groups.classic import classic
from app.groups.classic.classic import ClassicState
from app.groups.classic.classic_member import SUBSCRIBED_TOPICS_MAX, subscribed_topics, topics_of_all
from tests.groups.shards import (
    CONFIG,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    ShardBench,
    answered,
    subscription,
)


def code_of(call: object) -> ErrorCode:
    assert isinstance(call, pytest.ExceptionInfo)
    return call.value.code


# --- the first rebalance ----------------------------------------------------------------------------------------------


def test_an_empty_group_waits_for_more_members_and_prolongs_the_wait_while_they_come() -> None:
    bench = ShardBench()
    first = bench.join()
    bench.advance(2999)
    second = bench.join()
    bench.advance(1)
    assert first.answer is None
    bench.advance(2999)
    assert first.answer is None
    bench.advance(1)
    answers = [answered(first), answered(second)]
    assert {answer.generation_id for answer in answers} == {1}
    leader = answers[0].leader
    assert [len(answer.members) for answer in answers] == [2 if answer.member_id == leader else 0 for answer in answers]
    assert bench.group.state is ClassicState.COMPLETING_REBALANCE


def test_the_wait_for_more_members_ends_with_the_rebalance_timeout() -> None:
    bench = ShardBench()
    first = bench.join(rebalance_ms=7000)
    for _ in range(2):
        bench.advance(2900)
        bench.join(rebalance_ms=7000)
    bench.advance(1199)
    assert first.answer is None
    bench.advance(1)
    assert answered(first).generation_id == 1


def test_nobody_is_told_of_an_assignment_that_is_not_written() -> None:
    bench = ShardBench()
    leader, follower = sorted(bench.join_all(2), key=lambda answer: answer.member_id != answer.leader)
    waiting = bench.sync(follower.member_id, 1)
    assert waiting.answer is None
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    told = bench.sync(leader.member_id, 1, [(follower.member_id, b"half")])
    assert answered(waiting).error_code == answered(told).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answered(waiting).assignment == b""
    assert bench.group.state is ClassicState.PREPARING_REBALANCE


def test_an_assignment_is_written_as_kafka_writes_it_and_read_again() -> None:
    bench = ShardBench()
    joined = bench.stable(2)
    key, value = bench.turn.log[-1][0]
    assert value is not None
    assert GROUP_RECORDS.decode_key(key) == GroupMetadataKey(GROUP)
    found: GroupMetadataValue = GROUP_RECORDS.decode_value(GroupMetadataKey(GROUP), value)
    assert (found.generation, found.protocol_type, found.protocol, found.leader) == (
        1,
        "consumer",
        "range",
        joined[0].leader,
    )
    assert {(row.member_id, row.assignment) for row in found.members} == {
        (answer.member_id, answer.member_id.encode()) for answer in joined
    }
    bench.restart()
    assert bench.group.state is ClassicState.STABLE
    assert bench.group.subscribed_topics == {"t"}
    assert all(bench.heartbeat(answer.member_id, 1) is ErrorCode.NONE for answer in joined)


# --- joining ----------------------------------------------------------------------------------------------------------


def test_a_new_member_is_given_its_id_first_and_is_forgotten_if_it_does_not_join_with_it() -> None:
    bench = ShardBench()
    answer = answered(bench.join(requires_member_id=True))
    assert (answer.error_code, answer.member_id[:7]) == (ErrorCode.MEMBER_ID_REQUIRED, "client-")
    bench.advance(SESSION_MS)
    again = answered(bench.join(answer.member_id))
    assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    answer = answered(bench.join(requires_member_id=True))
    waiting = bench.join(answer.member_id)
    bench.advance(3000)
    assert answered(waiting).member_id == answer.member_id


def test_a_member_id_that_was_given_out_holds_the_rebalance_back_until_its_session_is_over() -> None:
    bench = ShardBench()
    leader, _ = bench.stable(2)
    bench.join(requires_member_id=True)
    for answer in bench.group.members.copy():
        bench.join(answer)
    assert bench.group.state is ClassicState.PREPARING_REBALANCE
    bench.advance(SESSION_MS)
    assert bench.group.generation == leader.generation_id + 1


def test_a_joining_member_makes_all_join_again_and_those_who_do_not_are_out() -> None:
    bench = ShardBench()
    leader, follower = bench.stable(2)
    third = bench.join()
    assert bench.heartbeat(follower.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = bench.join(leader.member_id)
    for _ in range(REBALANCE_MS // 5000):
        assert third.answer is None
        bench.heartbeat(follower.member_id, 1)
        bench.advance(5000)
    assert answered(third).generation_id == answered(rejoined).generation_id == 2
    assert answered(rejoined).leader == leader.member_id
    assert set(bench.group.members) == {leader.member_id, answered(third).member_id}
    assert bench.heartbeat(follower.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_asks_again_with_nothing_new_disturbs_nobody_but_the_leader_does() -> None:
    bench = ShardBench()
    leader, follower = bench.stable(2)
    assert answered(bench.join(follower.member_id)).generation_id == 1
    assert bench.group.state is ClassicState.STABLE
    assert bench.join(leader.member_id).answer is None
    assert bench.group.state is ClassicState.PREPARING_REBALANCE


def test_a_new_subscription_makes_a_rebalance() -> None:
    bench = ShardBench()
    _, follower = bench.stable(2)
    assert bench.join(follower.member_id, protocols=(("range", subscription("t", "u")),)).answer is None
    assert bench.group.state is ClassicState.PREPARING_REBALANCE


def test_whoever_asks_twice_is_answered_twice() -> None:
    bench = ShardBench()
    leader, _ = bench.stable(2)
    first = bench.join(leader.member_id)
    second = bench.join(leader.member_id)
    assert answered(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second.answer is None


def test_the_protocol_is_one_that_all_support_and_most_like_best() -> None:
    bench = ShardBench()
    both = (("a", b"1"), ("b", b"2"))
    turned = (("b", b"3"), ("a", b"4"))
    replies = [bench.join(protocols=both), bench.join(protocols=turned), bench.join(protocols=turned)]
    assert answered(bench.join(protocols=(("c", b""),))).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (
        answered(bench.join(protocols=both, protocol_type="connect")).error_code
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    bench.advance(30_000)
    answers = [answered(reply) for reply in replies]
    assert {answer.protocol_name for answer in answers} == {"b"}
    (leader,) = [answer for answer in answers if answer.members]
    assert sorted(member.metadata for member in leader.members) == [b"2", b"3", b"3"]


def test_a_protocol_that_a_member_names_twice_is_supported_as_one_that_it_names_once() -> None:
    bench = ShardBench()
    twice = (("range", subscription("t")), ("range", subscription("u")))
    joins = [bench.join(protocols=twice), bench.join(), bench.join(protocols=twice)]
    bench.advance(3 * CONFIG.group_initial_rebalance_delay_ms)
    joined = [answered(reply) for reply in joins]
    assert {answer.protocol_name for answer in joined} == {"range"}
    assert [len(answer.members) for answer in joined] == [3, 0, 0]
    # They join anew, one with another list; one is silent, one leaves: the protocol is still one that all support.
    again = bench.join(joined[1].member_id, protocols=(*twice, ("sticky", b"")))
    bench.leave((joined[0].member_id, None))
    bench.advance(REBALANCE_MS)
    assert (answered(again).error_code, answered(again).protocol_name) == (ErrorCode.NONE, "range")


def test_a_first_member_without_protocols_is_refused() -> None:
    bench = ShardBench()
    assert answered(bench.join(protocols=())).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert answered(bench.join(protocol_type="")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_very_long_client_or_instance_id_makes_a_member_id_that_can_be_written_down() -> None:
    longest = "\u00e9" * (32_766 // 2)
    for bench, instance_id in ((ShardBench(), None), (ShardBench(), longest)):
        first = bench.join(instance_id=instance_id, client_id=longest)
        bench.advance(CONFIG.group_initial_rebalance_delay_ms)
        member_id = answered(first).member_id
        assert len(member_id.encode()) <= 32_767
        assert member_id.startswith("\u00e9" * 16_000)
        synced = bench.sync(member_id, 1, [(member_id, b"x")], instance_id=instance_id)
        assert answered(synced).assignment == b"x"
        bench.restart()
        assert list(bench.group.members) == [member_id]


def test_a_full_group_takes_nobody_more() -> None:
    bench = ShardBench(replace(CONFIG, group_max_size=2))
    bench.stable(2)
    assert answered(bench.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.group.state is ClassicState.STABLE


def test_a_group_has_so_few_members_that_its_rebalance_ends_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert classic.members_max(CONFIG) == classic.GROUP_MEMBERS_MAX >= 3_000
    assert CONFIG.group_max_size > classic.GROUP_MEMBERS_MAX
    monkeypatch.setattr(classic, "GROUP_MEMBERS_MAX", 2)
    bench = ShardBench()
    bench.stable(2)
    assert answered(bench.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.group.state is ClassicState.STABLE


def test_a_group_that_is_loaded_with_too_many_members_joins_anew() -> None:
    bench = ShardBench()
    bench.stable(3)
    bench.config = replace(CONFIG, group_max_size=2)
    bench.restart()
    assert bench.group.state is ClassicState.PREPARING_REBALANCE


def test_member_ids_are_not_given_out_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "GROUP_PENDING_MEMBERS_MAX", 3)
    bench = ShardBench()
    for _ in range(3):
        assert answered(bench.join(requires_member_id=True)).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answered(bench.join(requires_member_id=True)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    bench.advance(SESSION_MS)
    assert answered(bench.join(requires_member_id=True)).error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_joining_with_an_id_that_nobody_was_given_is_refused() -> None:
    bench = ShardBench()
    with pytest.raises(RequestRejected) as refused:
        bench.join("made-up")
    assert code_of(refused) is ErrorCode.UNKNOWN_MEMBER_ID
    bench.stable()
    assert answered(bench.join("made-up")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- syncing and heartbeats -------------------------------------------------------------------------------------------


def test_sync_is_refused_with_each_way_to_be_wrong() -> None:
    bench = ShardBench()
    leader, _ = bench.stable(2)
    for arguments, code in (
        (("nobody", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        ((leader.member_id, 0), ErrorCode.ILLEGAL_GENERATION),
        ((leader.member_id, 2), ErrorCode.ILLEGAL_GENERATION),
    ):
        with pytest.raises(RequestRejected) as refused:
            bench.sync(*arguments)
        assert code_of(refused) is code
    with pytest.raises(RequestRejected) as refused:
        bench.sync(leader.member_id, 1, protocol_name="other")
    assert code_of(refused) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    bench.join(leader.member_id)
    with pytest.raises(RequestRejected) as refused:
        bench.sync(leader.member_id, 1)
    assert code_of(refused) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_syncs_late_is_told_at_once() -> None:
    bench = ShardBench()
    leader, follower = sorted(bench.join_all(2), key=lambda answer: answer.member_id != answer.leader)
    assert answered(bench.sync(leader.member_id, 1, [(follower.member_id, b"mine")])).assignment == b""
    assert answered(bench.sync(follower.member_id, 1)).assignment == b"mine"


def test_members_that_do_not_sync_in_time_are_out() -> None:
    bench = ShardBench()
    leader, follower = sorted(bench.join_all(2), key=lambda answer: answer.member_id != answer.leader)
    bench.sync(leader.member_id, 1)
    for _ in range(REBALANCE_MS // 5000):
        assert bench.heartbeat(follower.member_id, 1) is ErrorCode.NONE
        assert bench.heartbeat(leader.member_id, 1) is ErrorCode.NONE
        bench.advance(5000)
    assert follower.member_id not in bench.group.members
    assert bench.heartbeat(leader.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_falls_silent_before_it_assigns_costs_only_its_session() -> None:
    bench = ShardBench()
    leader, follower = sorted(bench.join_all(2), key=lambda answer: answer.member_id != answer.leader)
    waiting = bench.sync(follower.member_id, 1)
    bench.advance(SESSION_MS)
    assert answered(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.member_id not in bench.group.members
    again = answered(bench.join(follower.member_id))
    assert (again.generation_id, again.leader) == (2, follower.member_id)


def test_a_silent_member_is_out_after_its_session_and_a_heartbeat_begins_it_anew() -> None:
    bench = ShardBench()
    leader, follower = bench.stable(2)
    bench.advance(SESSION_MS - 1)
    assert bench.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    bench.advance(1)
    assert set(bench.group.members) == {leader.member_id}
    assert bench.heartbeat(follower.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(leader.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_is_as_good_as_a_heartbeat() -> None:
    bench = ShardBench()
    (only,) = bench.stable(1)
    for _ in range(5):
        bench.advance(SESSION_MS - 1)
        assert bench.commit("t", 0, 5, member_id=only.member_id, generation=1) is ErrorCode.NONE
    assert bench.group.state is ClassicState.STABLE


def test_when_the_last_member_is_out_the_group_is_empty_in_the_log_too() -> None:
    bench = ShardBench()
    bench.stable(2)
    bench.advance(SESSION_MS + REBALANCE_MS)
    assert (bench.group.state, bench.group.generation) == (ClassicState.EMPTY, 2)
    bench.restart()
    assert (bench.group.state, bench.group.generation, bench.group.protocol_type) == (ClassicState.EMPTY, 2, "consumer")


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_many_leave_at_once_each_with_its_own_code_and_one_rebalance() -> None:
    bench = ShardBench()
    first, second, third = bench.stable(3)
    codes = bench.leave(
        (second.member_id, None), ("nobody", None), ("", "no-instance"), (third.member_id, "not-static")
    )
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert set(bench.group.members) == {first.member_id, third.member_id}
    assert bench.group.state is ClassicState.PREPARING_REBALANCE
    assert bench.leave((first.member_id, None), (third.member_id, None)) == [ErrorCode.NONE] * 2
    assert bench.group.state is ClassicState.EMPTY


def test_a_member_that_waits_to_join_and_leaves_is_answered() -> None:
    bench = ShardBench()
    leader, _ = bench.stable(2)
    waiting = bench.join(leader.member_id)
    bench.leave((leader.member_id, None))
    assert answered(waiting).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- static members ---------------------------------------------------------------------------------------------------


def with_static_members(bench: ShardBench) -> tuple[str, str]:
    """A stable group of two static members, the leader's instance first; their ids."""
    replies = {name: bench.join(instance_id=name) for name in ("i0", "i1")}
    bench.advance(10_000)
    ids = {name: answered(reply).member_id for name, reply in replies.items()}
    assert answered(replies["i0"]).leader == ids["i0"]
    for name in ("i1", "i0"):
        bench.sync(ids[name], 1, [(ids["i0"], b"zero"), (ids["i1"], b"one")], instance_id=name)
    return ids["i0"], ids["i1"]


def test_a_static_member_that_comes_back_keeps_its_assignment_and_fences_its_older_self() -> None:
    bench = ShardBench()
    _, old = with_static_members(bench)
    appended = len(bench.turn.log)
    answer = answered(bench.join(instance_id="i1"))
    assert (answer.error_code, answer.generation_id, answer.skip_assignment) == (ErrorCode.NONE, 1, False)
    assert answer.member_id not in ("", old)
    assert answer.member_id.startswith("i1-")
    assert len(bench.turn.log) == appended + 1
    assert answered(bench.sync(answer.member_id, 1, instance_id="i1")).assignment == b"one"
    assert bench.heartbeat(old, 1, "i1") is ErrorCode.FENCED_INSTANCE_ID
    assert bench.heartbeat(old, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.commit("t", 0, 7, member_id=old, generation=1, instance_id="i1") is ErrorCode.FENCED_INSTANCE_ID
    bench.restart()
    assert bench.heartbeat(answer.member_id, 1, "i1") is ErrorCode.NONE
    assert bench.heartbeat(old, 1, "i1") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_leader_that_comes_back_is_told_to_leave_the_assignment_alone() -> None:
    bench = ShardBench()
    old, _ = with_static_members(bench)
    answer = answered(bench.join(instance_id="i0"))
    assert (answer.skip_assignment, answer.leader, len(answer.members)) == (True, answer.member_id, 2)
    bench = ShardBench()
    old, _ = with_static_members(bench)
    answer = answered(bench.join(instance_id="i0", can_skip_assignment=False))
    assert (answer.skip_assignment, answer.leader, answer.members) == (False, old, [])
    assert bench.group.leader == answer.member_id


def test_a_static_member_that_comes_back_is_not_believed_before_it_is_written() -> None:
    bench = ShardBench()
    _, old = with_static_members(bench)
    bench.turn.refuse_with = ErrorCode.NOT_COORDINATOR
    assert answered(bench.join(instance_id="i1")).error_code == ErrorCode.NOT_COORDINATOR
    assert bench.heartbeat(old, 1, "i1") is ErrorCode.NONE


def test_a_static_member_that_comes_back_with_another_subscription_makes_no_rebalance_of_the_same_protocol() -> None:
    # As in Apache Kafka: only a change of the selected protocol does.
    bench = ShardBench()
    with_static_members(bench)
    answer = answered(bench.join(instance_id="i1", protocols=(("range", subscription("u")),)))
    assert answer.error_code == ErrorCode.NONE
    assert bench.group.state is ClassicState.STABLE


def test_static_members_keep_their_place_while_they_are_away() -> None:
    bench = ShardBench()
    first, second = with_static_members(bench)
    third = bench.join()
    bench.join(first, instance_id="i0")
    for _ in range(REBALANCE_MS // 5000):
        bench.heartbeat(second, 1, "i1")
        bench.advance(5000)
    assert answered(third).generation_id == 2
    assert second in bench.group.members


def test_static_members_that_are_all_away_are_not_looked_for_all_the_time() -> None:
    bench = ShardBench()
    members = [bench.join(instance_id=instance_id, rebalance_ms=1) for instance_id in ("i0", "i1")]
    bench.advance(CONFIG.group_initial_rebalance_delay_ms)
    for instance_id, member in zip(("i0", "i1"), members, strict=True):
        bench.sync(answered(member).member_id, 1, instance_id=instance_id)
    before = set(bench.group.members)
    bench.join(rebalance_ms=1)
    (third,) = set(bench.group.members) - before
    bench.leave((third, None))
    bench.advance(1)
    assert (bench.group.state, set(bench.group.members)) == (ClassicState.PREPARING_REBALANCE, before)
    next_ms = bench.turn.timers.next_ms()
    assert next_ms is not None
    assert next_ms >= bench.turn.now_ms + classic.AWAY_WAIT_MS_MIN


def test_a_static_member_leaves_by_its_instance() -> None:
    bench = ShardBench()
    first, _ = with_static_members(bench)
    assert bench.leave(("", "i1")) == [ErrorCode.NONE]
    assert set(bench.group.members) == {first}


# --- subscriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"\0\0\0\0\0\1",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\0\5ab",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff",
    ],
)
def test_a_subscription_that_is_not_sound_says_nothing(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None
    bench = ShardBench()
    bench.join(protocols=(("range", metadata),))
    bench.advance(5000)
    assert bench.group.subscribed_topics is None
    assert bench.group.subscribes_to("anything")


def test_a_subscription_names_its_topics() -> None:
    assert subscribed_topics(subscription("a", "grüße")) == ["a", "grüße"]


def test_the_topics_of_all_members_are_those_of_each() -> None:
    many = [
        subscription("a", "b"),
        subscription(),
        subscription("b", "a"),
        subscription("a", "b", "c"),
        subscription("a"),
    ]
    assert topics_of_all(many) == {"a", "b", "c"}
    assert topics_of_all([*many, b"\0"]) is None
    assert topics_of_all([]) == frozenset()


def test_a_list_that_many_members_send_counts_once() -> None:
    topics = [f"t{index}" for index in range(100)]
    members = SUBSCRIBED_TOPICS_MAX // len(topics) + 1
    same = subscription(*topics)
    other_end = same + b"partitions that it owns"
    assert topics_of_all([same, other_end] * members) == frozenset(topics)
    assert topics_of_all(subscription(*topics[:-1], f"mine{index}") for index in range(members)) is None


def test_the_protocols_of_all_members_of_a_group_are_bounded() -> None:
    bench = ShardBench()
    protocols = tuple((f"{index:03x}", b"") for index in range(1_000))
    with pytest.raises(RequestRejected) as refused:
        [bench.join(protocols=protocols) for _ in range(80)]
    assert code_of(refused) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert 20 <= len(bench.group.members) <= 41


def test_a_group_whose_members_name_too_many_topics_subscribes_to_any() -> None:
    bench = ShardBench()
    half = SUBSCRIBED_TOPICS_MAX // 2 + 1
    for member in "ab":
        bench.join(protocols=(("range", subscription(*(f"{member}{index}" for index in range(half)))),))
    bench.advance(5000)
    assert len(bench.group.members) == 2
    assert bench.group.subscribed_topics is None
    assert bench.group.subscribes_to("anything")
