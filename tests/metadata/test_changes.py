"""Changes of the cluster: what is refused with which of Kafka's codes, and what the others write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from app.configs import BrokerConfig
from app.configs.validation import TierMustBeEmpty
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, ProducerId, TimestampMs, TopicId, TopicIdPartition
from app.metadata.changes import topic_changes as changes
from app.metadata.changes.topic_changes import ConfigChange, LeaderEpochs, LeadersHaveChanged, PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, TopicImage
from app.metadata.image.records import (
    ALL_BROKERS,
    LEVEL_FEATURE,
    BrokerRecord,
    MemberRecord,
    broker_change,
    feature_change,
    partition_change,
)
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.metadata.support import uuid_of

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
TOPIC, BROKER, _, GROUP = ConfigResourceType
ids = iter(range(1000, 10**6))


def around(*live: int, config: BrokerConfig | None = None) -> PlanInputs:
    return PlanInputs(config or BrokerConfig(), [BrokerId(each) for each in live or (1,)], TimestampMs(5), 0)


def new_draft(*brokers: int) -> ImageDraft:
    draft = ImageDraft(ClusterImage())
    record = BrokerRecord(1, uuid_of(1), uuid_of(2), 0, (), None, TimestampMs(0))
    draft.apply([broker_change(each, record) for each in brokers or (1,)])
    return draft


def create(draft: ImageDraft, name: str, partitions: int = -1, factor: int = -1, **more: Any) -> TopicImage:
    where = more.pop("around", around())
    plan = changes.create_topic(
        draft,
        where,
        topic_id=TopicId(uuid_of(next(ids))),
        name=name,
        partitions=partitions,
        replication_factor=factor,
        configs=more.get("configs", {}),
        assignments=more.get("assignments"),
    )
    draft.apply(plan.records)
    assert draft.topic(name) == plan.answer
    return plan.answer


def alter(
    draft: ImageDraft,
    kind: int,
    name: str,
    *operations: ConfigChange,
    config: BrokerConfig | None = None,
    nothing_tiered: LeaderEpochs | None = None,
) -> Planned[Mapping[str, str]]:
    plan = changes.alter_configs(
        draft,
        around(config=config),
        resource_type=kind,
        resource_name=name,
        changes=operations,
        nothing_tiered=nothing_tiered,
    )
    draft.apply(plan.records)
    return plan


def code_of(refused: pytest.ExceptionInfo[RequestRejected]) -> ErrorCode:
    assert str(refused.value)
    return refused.value.code


def test_a_topic_gets_the_defaults() -> None:
    topic = create(new_draft(), "t", around=around(config=BrokerConfig(num_partitions=3)))
    assert [(each.leader, each.replicas, each.isr, each.leader_epoch) for each in topic.partitions] == [
        (1, (1,), (1,), 0)
    ] * 3


def test_the_brokers_default_factor_is_lowered_to_the_brokers_there_are_and_a_factor_that_is_asked_for_is_not() -> None:
    config = BrokerConfig(default_replication_factor=3)
    assert create(new_draft(), "t", factor=-1, around=around(config=config)).partitions[0].replicas == (1,)
    three = create(new_draft(1, 2, 3), "t", factor=-1, around=around(1, 2, 3, config=config))
    assert len(three.partitions[0].replicas) == 3
    with pytest.raises(RequestRejected) as refused:
        create(new_draft(), "t", 1, 3, around=around(config=config))
    assert code_of(refused) is ErrorCode.INVALID_REPLICATION_FACTOR


def test_leaders_are_spread_over_the_living() -> None:
    topic = create(new_draft(1, 2, 3), "t", 6, 2, around=around(1, 2, 3))
    assert [each.leader for each in topic.partitions] == [1, 2, 3, 1, 2, 3]
    assert all(len(set(each.replicas)) == 2 for each in topic.partitions)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (".", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("ä", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a\n", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("there", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("with_dot", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_bad_names_are_refused(name: str, code: ErrorCode) -> None:
    draft = new_draft()
    create(draft, "there")
    create(draft, "with.dot")
    with pytest.raises(RequestRejected) as refused:
        create(draft, name)
    assert code_of(refused) is code


def test_the_longest_name_is_allowed() -> None:
    create(new_draft(), "x" * 249)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 10_001}, ErrorCode.INVALID_PARTITIONS),
        ({"factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"factor": -2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"partitions": 1, "assignments": {0: [1]}}, ErrorCode.INVALID_REQUEST),
        ({"factor": 1, "assignments": {0: [1]}}, ErrorCode.INVALID_REQUEST),
        ({"assignments": {1: [1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: []}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [1, 1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [9]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [1], 1: [1, 2]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"configs": {"no.such": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_bad_topics_are_refused(arguments: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(RequestRejected) as refused:
        create(new_draft(1, 2), "t", **arguments)
    assert code_of(refused) is code


def test_replicas_may_be_assigned_by_hand() -> None:
    topic = create(new_draft(1, 2), "t", assignments={0: [2, 1], 1: [1, 2]})
    assert [each.replicas for each in topic.partitions] == [(2, 1), (1, 2)]
    assert [each.leader for each in topic.partitions] == [2, 1]


def test_deleting_frees_the_name_and_keeps_the_id() -> None:
    draft = new_draft()
    topic = create(draft, "t", 2)
    plan = changes.delete_topic(draft, name="t", topic_id=None)
    draft.apply(plan.records)
    assert plan.answer == topic
    assert draft.topic("t") is None
    assert draft.deleting[topic.topic_id].partition_count == 2
    create(draft, "t")
    draft.apply(changes.finish_topic_deletion(draft, topic.topic_id).records)
    assert not draft.deleting
    assert changes.finish_topic_deletion(draft, topic.topic_id).records == []


def test_deleting_what_is_not_there_is_refused() -> None:
    with pytest.raises(RequestRejected) as refused:
        changes.delete_topic(new_draft(), name="t", topic_id=None)
    assert code_of(refused) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(RequestRejected) as refused:
        changes.delete_topic(new_draft(), name=None, topic_id=uuid_of(1))
    assert code_of(refused) is ErrorCode.UNKNOWN_TOPIC_ID


def grow(
    draft: ImageDraft, count: int, assignments: Sequence[Sequence[int]] | None = None, name: str = "t"
) -> TopicImage:
    plan = changes.create_partitions(draft, around(), name=name, count=count, assignments=assignments)
    draft.apply(plan.records)
    assert draft.topic(name) == plan.answer
    return plan.answer


def test_partitions_are_added_behind_those_that_are_there() -> None:
    draft = new_draft()
    before = create(draft, "t", 2)
    after = grow(draft, 4)
    assert after.partitions[:2] == before.partitions
    assert [each.partition_index for each in after.partitions] == [0, 1, 2, 3]
    assert grow(draft, 5, [[1]]).partitions[4].replicas == (1,)


@pytest.mark.parametrize(
    ("count", "assignments", "name", "code"),
    [
        (2, None, "t", ErrorCode.INVALID_PARTITIONS),
        (1, None, "t", ErrorCode.INVALID_PARTITIONS),
        (10_001, None, "t", ErrorCode.INVALID_PARTITIONS),
        (4, [[1]], "t", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[1, 2]], "t", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[7]], "t", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, None, "other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_bad_growth_is_refused(count: int, assignments: Any, name: str, code: ErrorCode) -> None:
    draft = new_draft(1, 2)
    create(draft, "t", 2)
    with pytest.raises(RequestRejected) as refused:
        grow(draft, count, assignments, name)
    assert code_of(refused) is code


def test_configs_are_set_deleted_appended_and_subtracted() -> None:
    draft = new_draft()
    create(draft, "t", configs={"remote.storage.enable": "false"})
    plan = alter(
        draft, TOPIC, "t", ConfigChange("retention.ms", SET, "1000"), ConfigChange("cleanup.policy", APPEND, "compact")
    )
    assert plan.answer["cleanup.policy"] == "delete,compact", "the default is what is appended to"
    assert draft.topic("t").configs["retention.ms"] == "1000"  # type: ignore[union-attr]
    plan = alter(
        draft, TOPIC, "t", ConfigChange("retention.ms", DELETE), ConfigChange("cleanup.policy", SUBTRACT, "delete")
    )
    assert plan.answer == {"cleanup.policy": "compact", "remote.storage.enable": "false"}
    assert alter(draft, TOPIC, "t", ConfigChange("retention.ms", DELETE)).records == [], (
        "nothing changes, nothing is written"
    )


def test_what_leaders_have_said_counts_only_under_their_leader_epochs() -> None:
    draft = new_draft()
    create(draft, "t", 2)
    epochs = {one.partition_index: one.leader_epoch for one in draft.topic("t").partitions}  # type: ignore[union-attr]
    change = ConfigChange("cleanup.policy", SET, "compact")
    with pytest.raises(TierMustBeEmpty):
        alter(draft, TOPIC, "t", change)
    other = {**epochs, PartitionIndex(1): LeaderEpoch(epochs[PartitionIndex(1)] + 1)}
    for said in ({}, {PartitionIndex(0): epochs[PartitionIndex(0)]}, other):
        with pytest.raises(LeadersHaveChanged):
            alter(draft, TOPIC, "t", change, nothing_tiered=said)
    assert alter(draft, TOPIC, "t", change, nothing_tiered=epochs).answer["cleanup.policy"] == "compact"


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "1"), (BROKER, "")])
def test_a_config_that_nobody_knows_can_be_taken_away(kind: int, name: str) -> None:
    """As in Apache Kafka 4.3.1, where setting one on a topic is refused."""
    draft = new_draft()
    create(draft, "t")
    assert alter(draft, kind, name, ConfigChange("no.such", DELETE)).records == []


def test_a_group_has_configs_whether_or_not_it_is_there() -> None:
    draft = new_draft()
    alter(draft, GROUP, "g", ConfigChange("share.auto.offset.reset", SET, "by_duration:P1DT2H3M4.5S"))
    alter(draft, GROUP, "other", ConfigChange("consumer.session.timeout.ms", SET, "50000"))
    assert draft.group_configs == {
        "g": {"share.auto.offset.reset": "by_duration:P1DT2H3M4.5S"},
        "other": {"consumer.session.timeout.ms": "50000"},
    }
    alter(draft, GROUP, "g", ConfigChange("share.auto.offset.reset", DELETE))
    assert set(draft.group_configs) == {"other"}


@pytest.mark.parametrize("scope", ["", "1"])
def test_settings_of_brokers_make_no_compacted_topics_of_tiered_ones(scope: str) -> None:
    draft = new_draft()
    create(draft, "tiered")
    create(draft, "own", configs={"cleanup.policy": "delete"})
    with pytest.raises(
        RequestRejected, match="1 topics take it from the brokers and are tiered, tiered among them"
    ) as no:
        alter(draft, BROKER, scope, ConfigChange("log.cleanup.policy", SET, "compact"))
    assert code_of(no) is ErrorCode.INVALID_CONFIG
    alter(draft, TOPIC, "tiered", ConfigChange("cleanup.policy", SET, "delete"))
    alter(draft, BROKER, scope, ConfigChange("log.cleanup.policy", SET, "compact"))
    alter(draft, BROKER, scope, ConfigChange("log.cleanup.policy", DELETE, None))


def test_configs_of_brokers_apply_to_one_or_all() -> None:
    draft = new_draft(1, 2)
    alter(draft, BROKER, "", ConfigChange("log.retention.ms", SET, "5000000"))
    alter(draft, BROKER, "2", ConfigChange("log.retention.ms", SET, "6000000"))
    assert draft.broker_configs == {ALL_BROKERS: {"log.retention.ms": "5000000"}, 2: {"log.retention.ms": "6000000"}}
    alter(draft, BROKER, "", ConfigChange("log.retention.ms", DELETE))
    assert ALL_BROKERS not in draft.broker_configs
    plan = alter(
        draft,
        BROKER,
        "",
        ConfigChange("log.cleanup.policy", APPEND, "compact"),
        ConfigChange("log.retention.ms", DELETE),
    )
    assert plan.answer == {"log.cleanup.policy": "delete,compact"}


@pytest.mark.parametrize(
    ("kind", "name", "operations", "code"),
    [
        (TOPIC, "other", [ConfigChange("retention.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", [ConfigChange("retention.ms", SET, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "t", [ConfigChange("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [ConfigChange("no.such", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [ConfigChange("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [ConfigChange("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [ConfigChange("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [ConfigChange("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST),
        (
            TOPIC,
            "t",
            [ConfigChange("retention.ms", SET, "1"), ConfigChange("retention.ms", DELETE)],
            ErrorCode.INVALID_REQUEST,
        ),
        (BROKER, "x", [ConfigChange("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BROKER, "9", [ConfigChange("log.retention.ms", SET, "1")], ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "1", [ConfigChange("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        (BROKER, "1", [ConfigChange("node.id", SET, "1")], ErrorCode.INVALID_REQUEST),
        (8, "1", [ConfigChange("x", SET, "1")], ErrorCode.INVALID_REQUEST),
        (GROUP, "", [ConfigChange("share.auto.offset.reset", SET, "latest")], ErrorCode.INVALID_REQUEST),
        (GROUP, "g", [ConfigChange("retention.ms", SET, "1")], ErrorCode.INVALID_CONFIG),
        (GROUP, "g", [ConfigChange("share.auto.offset.reset", SET, "by_duration:P")], ErrorCode.INVALID_CONFIG),
        (GROUP, "g", [ConfigChange("share.auto.offset.reset", SET, "none")], ErrorCode.INVALID_CONFIG),
        (GROUP, "g", [ConfigChange("share.isolation.level", SET, "serializable")], ErrorCode.INVALID_CONFIG),
        (GROUP, "g", [ConfigChange("consumer.session.timeout.ms", SET, "0")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_bad_configs_are_refused(kind: int, name: str, operations: list[ConfigChange], code: ErrorCode) -> None:
    draft = new_draft()
    create(draft, "t")
    with pytest.raises(RequestRejected) as refused:
        alter(draft, kind, name, *operations)
    assert code_of(refused) is code


def test_replacing_configs_forgets_the_others() -> None:
    draft = new_draft()
    create(draft, "t", configs={"retention.ms": "1000"})
    plan = changes.replace_configs(
        draft, around(), resource_type=TOPIC, resource_name="t", configs={"max.message.bytes": "5000"}
    )
    draft.apply(plan.records)
    assert draft.topic("t").configs == {"max.message.bytes": "5000"}  # type: ignore[union-attr]
    with pytest.raises(RequestRejected) as refused:
        changes.replace_configs(draft, around(), resource_type=TOPIC, resource_name="t", configs={"retention.ms": None})
    assert code_of(refused) is ErrorCode.INVALID_REQUEST


def test_leader_epochs_rise_above_every_epoch_known() -> None:
    draft = new_draft()
    topic = create(draft, "t", 3)
    partitions = [TopicIdPartition(topic.topic_id, PartitionIndex(index)) for index in range(4)]
    plan = changes.bump_leader_epochs(draft, [*partitions, partitions[0]], {partitions[1]: 41})
    draft.apply(plan.records)
    assert plan.answer == {partitions[0]: 1, partitions[1]: 42, partitions[2]: 1}
    after = draft.topic("t")
    assert after is not None
    assert [(each.leader_epoch, each.partition_epoch) for each in after.partitions] == [(1, 1), (42, 1), (1, 1)]


def test_blocks_of_producer_ids_follow_each_other_until_none_is_left() -> None:
    draft = new_draft()
    blocks = []
    for _ in range(3):
        plan = changes.allocate_producer_ids(draft, BrokerId(1))
        draft.apply(plan.records)
        blocks.append(plan.answer)
    assert blocks == [range(1000), range(1000, 2000), range(2000, 3000)]
    draft.producer_id_next = ProducerId(2**63 - 500)
    with pytest.raises(RequestRejected):
        changes.allocate_producer_ids(draft, BrokerId(1))


# --- several brokers ------------------------------------------------------------------------------------------------


def several(*brokers: int, fenced: Sequence[int] = ()) -> ImageDraft:
    """A draft of level 1 with these brokers, some of them fenced."""
    draft = ImageDraft(ClusterImage())
    records = [
        broker_change(
            each, MemberRecord(1, uuid_of(each), uuid_of(each), each, (), None, TimestampMs(0), fenced=each in fenced)
        )
        for each in brokers
    ]
    draft.apply([feature_change(LEVEL_FEATURE, 1), *records])
    return draft


def test_a_broker_that_was_fenced_in_the_same_entry_gets_a_partition_only_where_live_ones_are_too_few() -> None:
    topic = create(several(1, 2, 3, fenced=[2]), "t", 4, 2, around=around(1, 2, 3))
    assert {broker for each in topic.partitions for broker in each.replicas} == {1, 3}
    topic = create(several(1, 2, 3, fenced=[2]), "t", 4, 3, around=around(1, 2, 3))
    assert [each.replicas[2] for each in topic.partitions] == [2, 2, 2, 2]
    assert [set(each.isr) for each in topic.partitions] == [{1, 3}] * 4
    with pytest.raises(RequestRejected) as refused:
        create(several(1, 2, 3, fenced=[2]), "t", 4, 4, around=around(1, 2, 3))
    assert code_of(refused) is ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_fenced_broker_may_be_assigned_by_hand_and_is_not_in_sync() -> None:
    draft = several(1, 2, 3, fenced=[1])
    topic = create(draft, "t", assignments={0: [1, 2, 3], 1: [2, 3, 1]})
    assert [(each.leader, each.replicas, each.isr) for each in topic.partitions] == [
        (2, (1, 2, 3), (2, 3)),
        (2, (2, 3, 1), (2, 3)),
    ]
    more = changes.create_partitions(draft, around(2, 3), name="t", count=3, assignments=[[1, 3, 2]]).answer
    assert (more.partitions[2].leader, more.partitions[2].isr) == (3, (3, 2))
    with pytest.raises(RequestRejected) as refused:
        create(draft, "nobody", assignments={0: [1]})
    assert code_of(refused) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_partitions_are_added_with_the_factor_that_a_reassignment_leaves() -> None:
    draft = several(1, 2, 3)
    topic = create(draft, "t", assignments={0: [1, 2]})
    moving = topic.partitions[0]._replace(
        replicas=(BrokerId(3), BrokerId(1), BrokerId(2)), adding=(BrokerId(3),), removing=(BrokerId(1), BrokerId(2))
    )
    draft.apply([partition_change(topic.topic_id, 0, moving.record())])
    more = changes.create_partitions(draft, around(1, 2, 3), name="t", count=2, assignments=None).answer
    assert len(more.partitions[1].replicas) == 1


def being_moved(draft: ImageDraft, name: str, leaving: int, coming: int) -> None:
    """Topic ``name``, whose replica moves from one broker to another."""
    topic = create(draft, name, assignments={0: [leaving]})
    moving = topic.partitions[0]._replace(
        replicas=(BrokerId(coming), BrokerId(leaving)), adding=(BrokerId(coming),), removing=(BrokerId(leaving),)
    )
    draft.apply([partition_change(topic.topic_id, 0, moving.record())])


def test_a_broker_that_is_drained_gets_new_partitions_only_where_the_others_are_too_few() -> None:
    draft = several(1, 2, 3)
    being_moved(draft, "moving", leaving=3, coming=1)
    topic = create(draft, "t", 6, 2, around=around(1, 2, 3))
    assert {broker for each in topic.partitions for broker in each.replicas} == {1, 2}
    more = changes.create_partitions(draft, around(1, 2, 3), name="t", count=9, assignments=None).answer
    assert {broker for each in more.partitions for broker in each.replicas} == {1, 2}
    everywhere = create(draft, "all", 3, 3, around=around(1, 2, 3))
    assert {broker for each in everywhere.partitions for broker in each.replicas} == {1, 2, 3}
    by_hand = create(draft, "there", assignments={0: [3]})
    assert by_hand.partitions[0].replicas == (3,)


def test_a_broker_that_replicas_leave_and_come_to_is_not_drained() -> None:
    draft = several(1, 2, 3)
    being_moved(draft, "there", leaving=3, coming=1)
    being_moved(draft, "back", leaving=2, coming=3)
    topic = create(draft, "t", 6, 1, around=around(1, 2, 3))
    assert {broker for each in topic.partitions for broker in each.replicas} == {1, 3}


def with_eligible(draft: ImageDraft, name: str, **configs: str) -> TopicImage:
    """A topic whose second broker is eligible, and not in sync."""
    overrides = {key.replace("_", "."): value for key, value in configs.items()}
    topic = create(draft, name, assignments={0: [1, 2]}, configs=overrides)
    image = topic.partitions[0]._replace(isr=(BrokerId(1),), eligible=(BrokerId(2),))
    draft.apply([partition_change(topic.topic_id, 0, image.record())])
    return topic


def eligible(draft: ImageDraft, topic: TopicImage) -> tuple[BrokerId, ...]:
    now = draft.topic_by_id(topic.topic_id)
    assert now is not None
    return now.partitions[0].eligible


def test_r9_a_change_of_min_insync_replicas_of_a_topic_clears_its_eligible_replicas() -> None:
    draft = several(1, 2)
    topic, other = with_eligible(draft, "t"), with_eligible(draft, "other")
    alter(draft, TOPIC, "t", ConfigChange("retention.ms", SET, "5"))
    assert eligible(draft, topic) == (2,)
    alter(draft, TOPIC, "t", ConfigChange("min.insync.replicas", SET, "2"))
    assert (eligible(draft, topic), eligible(draft, other)) == ((), (2,))
    again = with_eligible(draft, "again", min_insync_replicas="2")
    plan = changes.replace_configs(draft, around(), resource_type=TOPIC, resource_name="again", configs={})
    draft.apply(plan.records)
    assert eligible(draft, again) == ()


def test_r9_a_change_of_the_default_clears_the_topics_that_take_it() -> None:
    draft = several(1, 2)
    taking, own = with_eligible(draft, "taking"), with_eligible(draft, "own", min_insync_replicas="2")
    alter(draft, BROKER, "1", ConfigChange("min.insync.replicas", SET, "2"))
    assert eligible(draft, taking) == (2,)
    alter(draft, BROKER, "", ConfigChange("min.insync.replicas", SET, "2"))
    assert (eligible(draft, taking), eligible(draft, own)) == ((), (2,))
