"""A group of the consumer protocol (KIP-848), told as conversations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, RequestRejected
from app.groups.consumer.consumer_records import CurrentOfMember, MemberState
from app.metadata.changes.group_configs import config_of_group
from tests.groups.bench import image_of, topic_id
from tests.groups.consumers import CONFIG, Consumer, Coordinator, loaded, settle

ORDERS = topic_id("orders")


def all_of(count: int) -> dict[object, frozenset[int]]:
    return {ORDERS: frozenset(range(count))}


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(image_of({"orders": 4, "orders-eu": 2, "other": 3}))


def test_the_first_member_gets_everything_with_its_first_answer(coordinator: Coordinator) -> None:
    alice = Consumer("alice", {"orders"})
    answer = alice.beat(coordinator)
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("alice", 1, 5000)
    assert alice.owned == all_of(4)
    assert coordinator.group.state == "Stable"


def test_an_answer_names_the_assignment_only_when_it_is_new_or_everything_was_said(coordinator: Coordinator) -> None:
    alice = Consumer("alice", {"orders"})
    assert alice.beat(coordinator).assignment is not None
    assert alice.beat(coordinator).assignment is None
    alice.changed = True
    assert alice.beat(coordinator).assignment is not None


def test_members_that_join_within_the_assignment_interval_are_dealt_with_together() -> None:
    coordinator = Coordinator(image_of({"orders": 8}), BrokerConfig(group_consumer_assignment_interval_ms=1000))
    group = coordinator.group
    first, *others = consumers = [Consumer(f"m{number}", {"orders"}) for number in range(4)]
    assert first.beat(coordinator).member_epoch == 1  # nobody to wait for
    assert first.count == 8
    for consumer in others:
        coordinator.pass_time(333)
        assert consumer.beat(coordinator).member_epoch == 1
        assert consumer.owned == {}
    assert (group.epoch, group.target_epoch, group.state) == (4, 1, "Assigning")
    assert first.beat(coordinator).assignment is None
    assert first.count == 8

    coordinator.pass_time(1)
    first.beat(coordinator)
    assert (group.epoch, group.target_epoch, first.count) == (4, 4, 2)
    settle(coordinator, consumers)
    assert [consumer.count for consumer in consumers] == [2, 2, 2, 2]


def test_a_coordinator_that_starts_again_assigns_at_once() -> None:
    coordinator = Coordinator(image_of({"orders": 4}), BrokerConfig(group_consumer_assignment_interval_ms=1000))
    alice, bob = Consumer("alice", {"orders"}), Consumer("bob", {"orders"})
    alice.beat(coordinator)
    bob.beat(coordinator)
    assert coordinator.group.target_epoch == 1
    coordinator.restart()
    alice.beat(coordinator)
    assert coordinator.group.target_epoch == 2


def test_a_partition_moves_only_after_its_owner_has_said_that_it_gave_it_up(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", {"orders"}), Consumer("bob", {"orders"})
    alice.beat(coordinator)
    answer = bob.beat(coordinator)
    assert answer.member_epoch == 2
    assert bob.owned == {}
    assert coordinator.group.members["bob"].current.state is MemberState.UNRELEASED_PARTITIONS
    assert coordinator.group.state == "Reconciling"

    answer = coordinator.heartbeat(alice.request())  # alice hears what is taken from her …
    assert answer.member_epoch == 1
    assert coordinator.group.members["alice"].current.state is MemberState.UNREVOKED_PARTITIONS
    assert bob.beat(coordinator).assignment is None
    coordinator.heartbeat(alice.request())  # … and goes on reading it
    assert bob.beat(coordinator).assignment is None
    alice.hear(answer)
    assert alice.beat(coordinator).member_epoch == 2  # … and now she has stopped
    bob.beat(coordinator)
    assert alice.count == bob.count == 2
    assert coordinator.group.state == "Stable"


def test_a_member_that_does_not_give_up_in_time_is_taken_out(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", {"orders"}, rebalance_timeout_ms=20_000), Consumer("bob", {"orders"})
    alice.beat(coordinator)
    bob.beat(coordinator)
    coordinator.heartbeat(alice.request())
    assert coordinator.pass_time(19_999) == []
    coordinator.heartbeat(alice.request())
    bob.beat(coordinator)
    assert coordinator.pass_time(1) == ["alice"]
    with pytest.raises(RequestRejected) as refused:
        alice.beat(coordinator)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    bob.beat(coordinator)
    assert bob.owned == all_of(4)


def test_a_member_that_is_not_heard_of_is_taken_out_after_its_session(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", {"orders"}), Consumer("bob", {"orders"})
    settle(coordinator, [alice, bob])
    assert coordinator.pass_time(44_999) == []
    bob.beat(coordinator)
    assert coordinator.pass_time(1) == ["alice"]
    bob.beat(coordinator)
    assert bob.owned == all_of(4)


def test_leaving_gives_everything_to_the_others(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", {"orders"}), Consumer("bob", {"orders"})
    settle(coordinator, [alice, bob])
    alice.epoch = -1
    answer = coordinator.heartbeat(alice.request())
    assert (answer.member_id, answer.member_epoch, answer.assignment) == ("alice", -1, None)
    assert coordinator.group.state == "Assigning"
    bob.beat(coordinator)
    assert bob.owned == all_of(4)
    bob.epoch = -1
    coordinator.heartbeat(bob.request())
    assert coordinator.group.state == "Empty"


def test_a_lost_answer_is_given_again_to_who_comes_with_the_epoch_before(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", {"orders"}), Consumer("bob", {"orders"})
    alice.beat(coordinator)
    bob.beat(coordinator)
    alice.beat(coordinator)
    coordinator.heartbeat(alice.request())  # the answer with epoch 2 is lost
    assert alice.epoch == 1
    alice.beat(coordinator)
    assert alice.epoch == 2


@pytest.mark.parametrize(("epoch", "word"), [(3, "greater"), (1, "smaller")])
def test_a_member_with_another_epoch_is_fenced(coordinator: Coordinator, epoch: int, word: str) -> None:
    alice, bob, carol = (Consumer(name, {"orders"}) for name in ("alice", "bob", "carol"))
    settle(coordinator, [alice, bob])
    carol.beat(coordinator)
    settle(coordinator, [alice, bob, carol])
    assert alice.epoch == 3
    alice.epoch = epoch if word == "smaller" else 4
    before = len(coordinator.turn.log)
    with pytest.raises(RequestRejected, match=word) as refused:
        coordinator.heartbeat(alice.request())
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    assert len(coordinator.turn.log) == before


def test_a_member_that_joins_again_is_told_what_it_has(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", {"orders"}), Consumer("bob", {"orders"})
    settle(coordinator, [alice, bob])
    had = alice.owned
    alice.fenced()
    alice.beat(coordinator)
    assert (alice.epoch, alice.owned) == (2, had)


def test_another_subscription_takes_and_gives_with_one_answer(coordinator: Coordinator) -> None:
    alice = Consumer("alice", {"orders"})
    alice.beat(coordinator)
    alice.topics, alice.changed = {"other"}, True
    assert alice.beat(coordinator).member_epoch == 1  # first gives up orders
    assert alice.owned == {}
    alice.beat(coordinator)
    assert alice.owned == {topic_id("other"): frozenset(range(3))}
    assert coordinator.group.state == "Stable"


def test_new_partitions_and_topics_are_dealt_out_by_the_next_heartbeat(coordinator: Coordinator) -> None:
    alice = Consumer("alice", {"orders", "later"})
    alice.beat(coordinator)
    assert alice.owned == all_of(4)
    coordinator.image = image_of({"orders": 6, "later": 1})
    alice.beat(coordinator)
    assert alice.owned == {**all_of(6), topic_id("later"): frozenset({0})}
    coordinator.image = image_of({"orders": 6})
    settle(coordinator, [alice])
    assert alice.owned == all_of(6)
    log = len(coordinator.turn.log)
    coordinator.image = image_of({"orders": 6, "unrelated": 3})
    alice.beat(coordinator)
    assert len(coordinator.turn.log) == log, "topics that nobody reads change nothing"


def test_a_change_of_topics_while_the_broker_was_away_is_noticed(coordinator: Coordinator) -> None:
    alice = Consumer("alice", {"orders"})
    alice.beat(coordinator)
    coordinator.restart()
    alice.beat(coordinator)
    assert alice.epoch == 1
    coordinator.image = image_of({"orders": 5})
    coordinator.restart()
    alice.beat(coordinator)
    assert (alice.epoch, alice.owned) == (2, all_of(5))


# --- static members -------------------------------------------------------------------------------------------------


def test_a_static_member_that_leaves_for_a_while_finds_its_partitions_again(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", {"orders"}, instance_id="i1"), Consumer("bob", {"orders"}, instance_id="i2")
    settle(coordinator, [alice, bob])
    had, epoch = alice.owned, coordinator.group.epoch
    alice.epoch = -2
    assert coordinator.heartbeat(alice.request()).member_epoch == -2
    bob.beat(coordinator)
    assert bob.count == 2, "nobody gets them meanwhile"
    successor = Consumer("alice-2", {"orders"}, instance_id="i1")
    successor.beat(coordinator)
    assert (successor.owned, coordinator.group.epoch) == (had, epoch), "without a rebalance"
    assert set(coordinator.group.members) == {"alice-2", "bob"}
    with pytest.raises(RequestRejected) as refused:
        coordinator.heartbeat(replace(alice.request(), member_epoch=2))
    assert refused.value.code is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_leaves_while_something_is_taken_from_it_is_remembered_with_what_it_keeps(
    coordinator: Coordinator,
) -> None:
    alice, bob = Consumer("alice", {"orders"}, instance_id="i1"), Consumer("bob", {"orders"}, instance_id="i2")
    alice.beat(coordinator)
    bob.beat(coordinator)
    coordinator.heartbeat(alice.request())  # She is told to give some up, and does not hear it.
    assert coordinator.group.members["alice"].current.pending_revocation
    alice.epoch = -2
    coordinator.heartbeat(alice.request())
    known = dict(coordinator.group.members)
    coordinator.restart()
    assert coordinator.group.members == known


def test_a_static_member_that_does_not_come_back_loses_its_partitions(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", {"orders"}, instance_id="i1"), Consumer("bob", {"orders"}, instance_id="i2")
    settle(coordinator, [alice, bob])
    alice.epoch = -2
    coordinator.heartbeat(alice.request())
    coordinator.pass_time(44_000)
    bob.beat(coordinator)
    assert coordinator.pass_time(1_000) == ["alice"]
    bob.beat(coordinator)
    assert bob.owned == all_of(4)


def test_two_members_cannot_be_one_instance(coordinator: Coordinator) -> None:
    Consumer("alice", {"orders"}, instance_id="i1").beat(coordinator)
    with pytest.raises(RequestRejected) as refused:
        Consumer("mallory", {"orders"}, instance_id="i1").beat(coordinator)
    assert refused.value.code is ErrorCode.UNRELEASED_INSTANCE_ID
    with pytest.raises(RequestRejected) as refused:
        coordinator.heartbeat(replace(Consumer("bob", {"orders"}, instance_id="i9").request(), member_epoch=1))
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_joins_again_though_the_first_answer_was_lost(coordinator: Coordinator) -> None:
    alice = Consumer("alice", {"orders"}, instance_id="i1")
    coordinator.heartbeat(alice.request())
    alice.beat(coordinator)
    assert alice.owned == all_of(4)


def test_an_instance_id_that_its_member_has_given_up_for_another_is_free(coordinator: Coordinator) -> None:
    alice = Consumer("alice", {"orders"}, instance_id="i1")
    alice.beat(coordinator)
    alice.fenced()
    alice.instance_id = "i2"
    alice.beat(coordinator)
    assert coordinator.group.member_of_instance("i1") is None
    bob = Consumer("bob", {"orders"}, instance_id="i1")
    settle(coordinator, [alice, bob])
    assert (alice.count, bob.count) == (2, 2)
    coordinator.restart()
    assert [coordinator.group.static_member(*each).member_id for each in (("i2", "alice"), ("i1", "bob"))] == [
        "alice",
        "bob",
    ]


# --- regular expressions --------------------------------------------------------------------------------------------


def test_a_regular_expression_subscribes_to_what_it_matches_wholly(coordinator: Coordinator) -> None:
    alice = Consumer("alice", regex="orders.*")
    alice.beat(coordinator)
    assert alice.owned == {ORDERS: frozenset(range(4)), topic_id("orders-eu"): frozenset({0, 1})}
    bob = Consumer("bob", regex="rders")
    bob.beat(coordinator)
    assert coordinator.group.regexes["rders"].topics == frozenset()


def test_a_topic_that_comes_to_match_is_dealt_out_and_one_that_goes_is_forgotten(coordinator: Coordinator) -> None:
    alice = Consumer("alice", regex="orders.*")
    alice.beat(coordinator)
    coordinator.image = image_of({"orders": 4, "orders-us": 1, "other": 3}, sequence=2)
    list(coordinator.group.topics_changed({"orders-us"}, {"orders-eu"}, coordinator.image, coordinator.turn.now_ms))
    settle(coordinator, [alice])
    assert alice.owned == {ORDERS: frozenset(range(4)), topic_id("orders-us"): frozenset({0})}
    assert loaded(coordinator.turn.log).regexes == coordinator.group.regexes


def test_an_expression_that_nobody_uses_any_more_is_forgotten(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", regex="orders.*"), Consumer("bob", regex="other")
    settle(coordinator, [alice, bob])
    alice.regex, alice.changed = "oth.*", True
    settle(coordinator, [alice, bob])
    assert set(coordinator.group.regexes) == {"oth.*", "other"}
    bob.epoch = -1
    coordinator.heartbeat(bob.request())
    assert set(coordinator.group.regexes) == {"oth.*"}
    alice.regex, alice.topics, alice.changed = "", {"orders"}, True
    settle(coordinator, [alice])
    assert coordinator.group.regexes == {}
    assert alice.owned == all_of(4)


def test_expressions_are_matched_anew_after_the_refresh_interval_and_after_loading(coordinator: Coordinator) -> None:
    alice = Consumer("alice", regex="orders.*")
    alice.beat(coordinator)
    assert coordinator.group.unresolved_regex(alice.request(), coordinator.turn.now_ms) is None
    assert coordinator.group.unresolved_regex(alice.request(), coordinator.turn.now_ms + 600_000) == "orders.*"
    coordinator.restart()
    assert coordinator.group.unresolved_regex(alice.request(), coordinator.turn.now_ms) == "orders.*"
    coordinator.image = image_of({"orders-new": 1})
    settle(coordinator, [alice])
    assert alice.owned == {topic_id("orders-new"): frozenset({0})}


@pytest.mark.parametrize("regex", ["(", "a**", "(?=x)", "x{1001}", "(((a{30}){30}){30}){30}", "x" * 5000, "\\"])
def test_a_malformed_or_exploding_expression_is_refused_and_changes_nothing(
    coordinator: Coordinator, regex: str
) -> None:
    with pytest.raises(RequestRejected) as refused:
        Consumer("alice", regex=regex).beat(coordinator)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert coordinator.turn.log == []


def test_an_expression_on_which_backtracking_engines_hang_is_answered(coordinator: Coordinator) -> None:
    coordinator.image = image_of({"a" * 200: 1})
    alice = Consumer("alice", regex="(a+)+b")
    alice.beat(coordinator)
    assert alice.owned == {}


def test_internal_topics_match_no_expression() -> None:
    coordinator = Coordinator(image_of({"__consumer_offsets": 3, "orders": 1}))
    alice = Consumer("alice", regex=".*")
    alice.beat(coordinator)
    assert alice.owned == all_of(1)


# --- assignors ------------------------------------------------------------------------------------------------------


def test_the_assignor_that_most_members_ask_for_is_used(coordinator: Coordinator) -> None:
    coordinator.image = image_of({"a": 2, "b": 2})
    alice = Consumer("alice", {"a", "b"}, assignor="range")
    bob = Consumer("bob", {"a", "b"}, assignor="range")
    carol = Consumer("carol", {"a", "b"}, assignor="uniform")
    settle(coordinator, [alice, bob, carol])
    assert coordinator.group.assignor_with() == "range"
    assert carol.owned == {}
    alice.assignor, alice.changed = "uniform", True
    settle(coordinator, [alice, bob, carol])
    assert coordinator.group.assignor_with() == "uniform"


def test_a_group_that_does_not_say_uses_the_first_assignor_of_the_brokers_list() -> None:
    for assignors in (("range", "uniform"), ("uniform", "range")):
        config = BrokerConfig(group_consumer_assignment_interval_ms=0, group_consumer_assignors=assignors)
        coordinator = Coordinator(image_of({"a": 1}), config)
        settle(coordinator, [Consumer("alice", {"a"})])
        assert coordinator.group.assignor_with() == assignors[0]


def test_members_in_the_racks_of_replicas_are_preferred() -> None:
    coordinator = Coordinator(image_of({"orders": 4}, racks={1: "x", 2: "y"}, replicas=(1, 2)))
    alice, bob = Consumer("alice", {"orders"}, rack_id="y"), Consumer("bob", {"orders"}, rack_id="x")
    coordinator.image = image_of({}, racks={1: "x", 2: "y"})
    settle(coordinator, [alice, bob])
    coordinator.image = image_of({"orders": 4}, racks={1: "x", 2: "y"}, replicas=(1, 2))
    settle(coordinator, [alice, bob])
    assert alice.owned == {ORDERS: frozenset({1, 3})}
    assert bob.owned == {ORDERS: frozenset({0, 2})}


# --- requests that make no sense ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "x" * 1000, "member_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None, "subscribed_topic_regex": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "clever"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"member_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_request_that_makes_no_sense_has_kafkas_code_and_changes_nothing(
    coordinator: Coordinator, changes: dict[str, object], code: ErrorCode
) -> None:
    Consumer("alice", {"orders"}).beat(coordinator)
    before = len(coordinator.turn.log)
    with pytest.raises(RequestRejected) as refused:
        coordinator.heartbeat(replace(Consumer("bob", {"orders"}).request(), **changes))  # type: ignore[arg-type]
    assert refused.value.code is code
    assert len(coordinator.turn.log) == before


def test_one_member_too_many_is_refused() -> None:
    coordinator = Coordinator(image_of({"orders": 4}), replace(CONFIG, group_consumer_max_size=1))
    alice = Consumer("alice", {"orders"})
    alice.beat(coordinator)
    with pytest.raises(RequestRejected) as refused:
        Consumer("bob", {"orders"}).beat(coordinator)
    assert refused.value.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    alice.beat(coordinator)


def test_an_append_that_fails_leaves_everything_as_it_was(coordinator: Coordinator) -> None:
    alice, bob = Consumer("alice", {"orders"}), Consumer("bob", {"orders"})
    alice.beat(coordinator)
    coordinator.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(RequestRejected):
        bob.beat(coordinator)
    assert set(coordinator.group.members) == {"alice"}
    assert coordinator.group.epoch == 1
    coordinator.image = image_of({"orders": 6})
    with pytest.raises(RequestRejected):
        alice.beat(coordinator)
    coordinator.turn.refuse_with = None
    alice.beat(coordinator)
    assert alice.owned == all_of(6), "new partitions are not forgotten because nobody could write of them"


# --- offsets --------------------------------------------------------------------------------------------------------


def commit_code(coordinator: Coordinator, member_id: str, epoch: int, **other: object) -> ErrorCode:
    options = {"instance_id": None, "transactional": False, "api_version": 9, **other}
    try:
        coordinator.group.check_offset_commit(member_id, member_epoch=epoch, **options)  # type: ignore[arg-type]
    except RequestRejected as error:
        return error.code
    return ErrorCode.NONE


def test_only_a_member_at_its_epoch_commits_while_there_are_members(coordinator: Coordinator) -> None:
    assert commit_code(coordinator, "", -1) is ErrorCode.NONE
    Consumer("alice", {"orders"}).beat(coordinator)
    assert commit_code(coordinator, "alice", 1) is ErrorCode.NONE
    assert commit_code(coordinator, "alice", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit_code(coordinator, "alice", 1, api_version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert commit_code(coordinator, "bob", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_code(coordinator, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_code(coordinator, "", -1, transactional=True) is ErrorCode.NONE


def test_a_member_commits_with_an_older_epoch_what_it_has_had_since_then(coordinator: Coordinator) -> None:
    """KIP-1251: it may not have heard of its new epoch yet."""
    alice, bob = Consumer("alice", {"orders"}), Consumer("bob", {"orders"})
    alice.beat(coordinator)
    had = alice.owned
    settle(coordinator, [alice, bob])
    ((orders, kept),) = alice.owned.items()
    lost = had[orders] - kept
    assert (alice.epoch, bob.epoch, bob.owned) == (2, 2, {orders: lost})

    def code(
        member_id: str, epoch: int, partitions: frozenset[int], topic: UUID | None = orders, **other: Any
    ) -> ErrorCode:
        return commit_code(
            coordinator, member_id, epoch, partitions=lambda: [(topic, each) for each in partitions], **other
        )

    for _ in range(2):
        assert code("alice", 1, kept) is ErrorCode.NONE
        assert code("alice", 1, had[orders]) is ErrorCode.STALE_MEMBER_EPOCH
        assert code("alice", 1, frozenset()) is ErrorCode.STALE_MEMBER_EPOCH
        assert code("alice", 1, kept, None) is ErrorCode.STALE_MEMBER_EPOCH
        assert code("alice", 0, kept) is ErrorCode.STALE_MEMBER_EPOCH
        assert code("alice", 3, kept) is ErrorCode.STALE_MEMBER_EPOCH
        assert code("alice", 2, lost) is ErrorCode.NONE, "a current epoch is asked nothing"
        assert code("bob", 1, lost) is ErrorCode.STALE_MEMBER_EPOCH
        assert code("bob", 2, lost) is ErrorCode.NONE
        coordinator.restart()


def test_a_member_commits_what_was_taken_from_it_until_it_gives_it_up(coordinator: Coordinator) -> None:
    alice = Consumer("alice", {"orders"})
    alice.beat(coordinator)
    current = coordinator.group.members["alice"].current
    for pending, code in (({ORDERS: frozenset({3})}, ErrorCode.NONE), ({}, ErrorCode.STALE_MEMBER_EPOCH)):
        now = replace(current, member_epoch=5, assigned={ORDERS: frozenset({0})}, pending_revocation=pending)
        coordinator.group.replay(CurrentOfMember("alice", now))
        assert commit_code(coordinator, "alice", 1, partitions=lambda: [(ORDERS, 0), (ORDERS, 3)]) is code


def test_epochs_that_a_version_before_did_not_write_are_the_members(coordinator: Coordinator) -> None:
    alice = Consumer("alice", {"orders"})
    alice.beat(coordinator)
    coordinator.image = image_of({"orders": 8})
    alice.beat(coordinator)
    current = replace(coordinator.group.members["alice"].current, epochs={})
    coordinator.group.replay(CurrentOfMember("alice", current))
    (orders,) = alice.owned
    assert commit_code(coordinator, "alice", 1, partitions=lambda: [(orders, 0)]) is ErrorCode.STALE_MEMBER_EPOCH
    settle(coordinator, [alice, Consumer("bob", {"orders"})])
    kept = [(orders, each) for each in alice.owned[orders]]
    assert commit_code(coordinator, "alice", 1, partitions=lambda: kept) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit_code(coordinator, "alice", 2, partitions=lambda: kept) is ErrorCode.NONE


def test_offsets_are_read_by_anybody_or_by_a_member_at_its_epoch(coordinator: Coordinator) -> None:
    Consumer("alice", {"orders"}).beat(coordinator)
    coordinator.group.check_offset_fetch(None, -1)
    coordinator.group.check_offset_fetch("alice", 1)
    for member_id, epoch, code in (
        ("alice", 0, ErrorCode.STALE_MEMBER_EPOCH),
        ("bob", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(RequestRejected) as refused:
            coordinator.group.check_offset_fetch(member_id, epoch)
        assert refused.value.code is code


# --- the log --------------------------------------------------------------------------------------------------------


def test_tombstones_leave_nothing_behind(coordinator: Coordinator) -> None:
    settle(coordinator, [Consumer("alice", {"orders"}), Consumer("bob", regex="oth.*", instance_id="i1")])
    coordinator.group.write(coordinator.turn, coordinator.group.tombstones())
    newest: dict[bytes, bytes | None] = {}
    for batch in coordinator.turn.log:
        newest.update(batch)
    assert set(newest.values()) == {None}
    group = loaded(coordinator.turn.log)
    assert (group.members, group.targets, group.regexes, group.epoch) == ({}, {}, {}, 0)


def test_time_outs_of_a_group_are_moved_to_the_bounds_of_now() -> None:
    overrides = {"consumer.session.timeout.ms": "50000", "consumer.assignment.interval.ms": "9"}
    bounds = replace(
        BrokerConfig(),
        group_consumer_min_session_timeout_ms=55_000,
        group_consumer_session_timeout_ms=55_000,
        group_consumer_max_assignment_interval_ms=5,
    )
    found = config_of_group(bounds, overrides)
    assert (found.group_consumer_session_timeout_ms, found.group_consumer_assignment_interval_ms) == (55_000, 5)


def test_a_group_may_have_time_outs_of_its_own() -> None:
    overrides = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "7000"}
    coordinator = Coordinator(image_of({"orders": 1}), config_of_group(CONFIG, overrides))
    alice = Consumer("alice", {"orders"})
    assert alice.beat(coordinator).heartbeat_interval_ms == 7000
    assert coordinator.pass_time(49_999) == []
    assert coordinator.pass_time(1) == ["alice"]
    assert config_of_group(CONFIG, None) is CONFIG
