"""Groups that change their protocol while they have members (KIP-848, online upgrade and downgrade)."""

from __future__ import annotations

from dataclasses import replace
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode, ProtocolError, RequestRejected
from app.groups.classic.classic import ClassicGroup
from app.groups.classic.embedded import decode_assignment, decode_subscription, encode_assignment, subscription_version
from app.groups.consumer.consumer import ConsumerGroup
from tests.groups.migrating import ID, PARTITIONS, TOPIC, NewConsumer, OldConsumer, kind, make_bench, said, settle
from tests.groups.shards import GROUP, answered


@pytest.mark.parametrize("restarts", [False, True])
def test_a_group_is_rolled_to_the_consumer_protocol_and_back(restarts: bool) -> None:
    bench = make_bench()
    old = [OldConsumer(bench), OldConsumer(bench)]
    settle(bench, old, [])
    assert kind(bench) is ClassicGroup
    new: list[NewConsumer] = []
    for step in range(2):
        joining = NewConsumer(bench, f"new-{step}")
        new.append(joining)
        joining.go_on()
        assert kind(bench) is ConsumerGroup
        if restarts:
            bench.restart()
        settle(bench, old, new)
        leaving = old.pop()
        assert bench.leave((leaving.member_id, None)) == [ErrorCode.NONE]
        settle(bench, old, new)
    assert old == []
    for step in range(2):
        old.append(OldConsumer(bench))
        settle(bench, old, new)
        assert kind(bench) is ConsumerGroup
        leaving_new = new.pop()
        leaving_new.send(member_epoch=-1, topic_partitions=[])
        if restarts:
            bench.restart()
        assert kind(bench) is (ConsumerGroup if step == 0 else ClassicGroup)
        settle(bench, old, new)


def test_whoever_waits_to_join_is_told_to_join_the_group_that_took_the_place() -> None:
    bench = make_bench()
    first, second = OldConsumer(bench), OldConsumer(bench)
    settle(bench, [first], [])
    second.send_join()  # waits for the first to join again
    new = NewConsumer(bench, "new")
    new.go_on()
    assert second.joining is not None
    assert answered(second.joining).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    settle(bench, [first, second], [new])


def test_the_members_that_were_there_keep_what_they_have_until_it_is_taken() -> None:
    bench = make_bench()
    old = OldConsumer(bench)
    settle(bench, [old], [])
    new = NewConsumer(bench, "new")
    new.go_on()
    assert old.owned == frozenset(range(PARTITIONS))
    assert new.partitions == frozenset()
    group = bench.shard.groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    assert group.members[old.member_id].current.assigned == {ID: frozenset(range(PARTITIONS))}


def test_the_last_member_of_the_consumer_protocol_that_falls_silent_downgrades_the_group() -> None:
    bench = make_bench()
    old, new = OldConsumer(bench), NewConsumer(bench, "new")
    settle(bench, [old], [])
    settle(bench, [old], [new])
    for _ in range(10):
        old.live()
        bench.advance(5000)
    assert kind(bench) is ClassicGroup
    settle(bench, [old], [])
    assert old.owned == frozenset(range(PARTITIONS))


@pytest.mark.parametrize(("policy", "up", "down"), [("disabled", 0, 0), ("upgrade", 1, 0), ("downgrade", 0, 1)])
def test_the_policy_says_which_way_a_group_may_change(policy: str, up: int, down: int) -> None:
    bench = make_bench()
    old, new = OldConsumer(bench), NewConsumer(bench, "new")
    settle(bench, [old], [])
    bench.config = replace(bench.config, group_consumer_migration_policy=policy)
    if not up:
        before = len(bench.turn.batches)
        with pytest.raises(RequestRejected) as refused:
            new.send()
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert (kind(bench), len(bench.turn.batches)) == (ClassicGroup, before)
        bench.config = replace(bench.config, group_consumer_migration_policy="bidirectional")
    settle(bench, [old], [new])
    bench.config = replace(bench.config, group_consumer_migration_policy=policy)
    new.send(member_epoch=-1, topic_partitions=[])
    assert kind(bench) is (ClassicGroup if down else ConsumerGroup)
    settle(bench, [old], [])


def test_a_group_that_does_not_assign_topic_partitions_is_not_upgraded() -> None:
    bench = make_bench()
    bench.join(protocol_type="connect", protocols=(("sessioned", b"?"),))
    with pytest.raises(RequestRejected) as refused:
        NewConsumer(bench, "new").send()
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    "metadata", [b"", b"\x00", pack(">hi", 0, 5), pack(">hih", 0, 1, -5), pack(">hi", -1, 0) + b"x"]
)
def test_subscriptions_that_cannot_be_read_stop_an_upgrade_and_change_nothing(metadata: bytes) -> None:
    bench = make_bench()
    bench.join(protocols=(("range", metadata),))
    before = len(bench.turn.batches)
    with pytest.raises(RequestRejected) as refused:
        NewConsumer(bench, "new").send()
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert len(bench.turn.batches) == before
    bench = make_bench()
    NewConsumer(bench, "new").send()
    before = len(bench.turn.batches)
    with pytest.raises(ProtocolError) as broken:
        bench.join("old", protocols=(("range", metadata),))
    assert broken.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(bench.turn.batches) == before


@pytest.mark.parametrize("falls_silent", [False, True])
@pytest.mark.parametrize("metadata", [b"", b"\x00", b"\xff\xff", pack(">hi", 3, 5)])
def test_a_protocol_that_was_not_selected_and_cannot_be_read_stops_no_downgrade(
    metadata: bytes, falls_silent: bool
) -> None:
    bench = make_bench()
    joined = bench.join(protocols=(("odd", metadata), ("range", said())))
    bench.join(protocols=(("range", said()),))
    bench.advance(9000)
    answer = answered(joined)
    assert answer.protocol_name == "range"
    part = encode_assignment(1, [(TOPIC, (0, 1))])
    bench.sync(answer.member_id, answer.generation_id, [(answer.member_id, part)])
    new = NewConsumer(bench, "new")
    new.send()
    assert kind(bench) is ConsumerGroup
    if falls_silent:
        for _ in range(10):
            bench.heartbeat(answer.member_id, answer.generation_id)
            bench.advance(5000)
    else:
        new.send(member_epoch=-1, topic_partitions=[])
    assert kind(bench) is ClassicGroup
    assert answer.member_id in bench.group.members


@pytest.mark.parametrize(
    ("metadata", "version"), [(b"", 0), (b"\x00", 0), (b"\xff\xff", 0), (said(version=1), 1), (pack(">h", 99), 3)]
)
def test_the_version_of_a_subscription_is_read_whatever_follows(metadata: bytes, version: int) -> None:
    assert subscription_version(metadata) == version


def test_members_of_the_classic_protocol_have_kafkas_codes_in_a_consumer_group() -> None:
    bench = make_bench()
    old, new = OldConsumer(bench), NewConsumer(bench, "new")
    settle(bench, [old], [])
    settle(bench, [old], [new])
    assert bench.heartbeat("nobody", old.generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat("new", new.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(old.member_id, old.generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert bench.leave(("new", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert bench.commit("t", 0, 5, member_id=old.member_id, generation=old.generation) is ErrorCode.NONE
    assert bench.commit("t", 0, 5, member_id=old.member_id, generation=0) is ErrorCode.ILLEGAL_GENERATION
    for protocol_type, protocols in (
        ("connect", (("cooperative-sticky", said()),)),
        ("consumer", (("other", said()),)),
    ):
        with pytest.raises(RequestRejected) as refused:
            bench.join(protocol_type=protocol_type, protocols=protocols)
        assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    first = answered(bench.join(protocols=(("cooperative-sticky", said()),), requires_member_id=True))
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id


def test_a_member_that_does_not_join_again_or_does_not_sync_in_time_is_out() -> None:
    for omitted in ("join", "sync"):
        bench = make_bench()
        old, other, new = OldConsumer(bench), OldConsumer(bench), NewConsumer(bench, "new")
        settle(bench, [old, other], [])
        settle(bench, [old, other], [new])
        late = NewConsumer(bench, "late")
        late.go_on()
        if omitted == "join":
            assert bench.heartbeat(old.member_id, old.generation) is ErrorCode.REBALANCE_IN_PROGRESS
        else:
            old.send_join()
        for _ in range(13):
            for consumer in (new, late):
                consumer.go_on()
            other.live()
            bench.heartbeat(old.member_id, answered(old.joining).generation_id if old.joining else old.generation)
            bench.advance(5000)
        group = bench.shard.groups[GROUP]
        assert isinstance(group, ConsumerGroup)
        assert old.member_id not in group.members, omitted
        settle(bench, [other], [new, late])


def test_members_of_the_classic_protocol_are_told_to_join_when_there_is_an_assignment_to_come_for() -> None:
    bench = make_bench(group_consumer_assignment_interval_ms=1000)
    old, new, late = OldConsumer(bench), NewConsumer(bench, "new"), NewConsumer(bench, "late")
    settle(bench, [old], [])
    settle(bench, [old], [new])
    bench.advance(2000)
    new.topics = {TOPIC, "another"}
    new.changed = True
    new.go_on()  # computes an assignment, now
    assert bench.heartbeat(old.member_id, old.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    settle(bench, [old], [new])
    bench.advance(2000)
    new.topics, new.changed = {TOPIC}, True
    new.go_on()
    while old.generation < new.epoch or old.joining or old.syncing:
        old.live()
    late.go_on()
    assert bench.heartbeat(old.member_id, old.generation) is ErrorCode.NONE
    bench.advance(1000)
    assert bench.heartbeat(old.member_id, old.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    settle(bench, [old], [new, late])


def test_a_static_member_changes_its_protocol_and_keeps_its_place() -> None:
    bench = make_bench()
    old, other = OldConsumer(bench, instance_id="i1"), OldConsumer(bench, instance_id="i2")
    settle(bench, [old, other], [])
    had = old.owned
    new = NewConsumer(bench, "new", instance_id="i1")
    settle(bench, [other], [new])
    assert new.partitions == had
    again = OldConsumer(bench, instance_id="i1")
    settle(bench, [other, again], [])
    assert kind(bench) is ClassicGroup, "the last member of the consumer protocol was replaced"


def test_an_upgrade_that_cannot_be_written_changes_nothing() -> None:
    bench = make_bench()
    old, new = OldConsumer(bench), NewConsumer(bench, "new")
    settle(bench, [old], [])
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(RequestRejected):
        new.send()
    assert kind(bench) is ClassicGroup
    bench.turn.refuse_with = None
    settle(bench, [old], [new])
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(RequestRejected):
        new.send(member_epoch=-1, topic_partitions=[])
    assert kind(bench) is ConsumerGroup
    bench.turn.refuse_with = None
    settle(bench, [old], [new])


# --- the embedded protocol ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3, 7])
def test_subscriptions_of_every_version_are_read(version: int) -> None:
    found = decode_subscription(said(frozenset({2, 5}), version=version))
    assert (found.version, found.topics, found.rack_id) == (min(version, 3), ("t",), None)
    assert list(found.owned) == ([("t", (2, 5))] if version else [])


@given(st.binary(max_size=60))
def test_bytes_that_are_no_subscription_or_assignment_raise_protocol_errors_only(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except ProtocolError:
            continue


@given(st.dictionaries(st.text(max_size=8), st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=4))
def test_assignments_are_read_as_they_were_written(topics: dict[str, tuple[int, ...]]) -> None:
    assert dict(decode_assignment(encode_assignment(1, list(topics.items())))) == topics
