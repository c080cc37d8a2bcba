"""Elections, reassignments, features, the quorum and unregistering over a real controller, in every version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId, TimestampMs
from app.metadata.changes.features import OF_PROTOCOL
from app.metadata.changes.topic_changes import Planned
from app.metadata.controller.controller import NAMED_PER_CHANGE_MAX
from app.metadata.image.image import PartitionImage
from app.metadata.image.records import LEVEL_FEATURE, LEVEL_MAX, Endpoint, MemberRecord, broker_change, partition_change
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.describe_cluster import DescribeClusterRequest
from app.wire.apis.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from app.wire.apis.elect_leaders import ElectLeadersRequest, TopicPartitions
from app.wire.apis.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from app.wire.apis.metadata import MetadataRequest
from app.wire.apis.unregister_broker import UnregisterBrokerRequest
from app.wire.apis.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.handlers.admin_bench import NODE_ID, AdminBench, admin_bench, versions

OTHER = BrokerId(8)
ENDPOINT = Endpoint("PLAINTEXT", "other.example", 9092, "PLAINTEXT")
REFUSED = RequestRejected(ErrorCode.NOT_CONTROLLER, "not here")


async def update(
    bench: AdminBench, name: str = LEVEL_FEATURE, level: int = 1, version: int = 2, **more: Any
) -> tuple[int, str | None]:
    """Code and sentence."""
    kind, validate_only = more.get("upgrade_type", 1), more.get("validate_only", False)
    message = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(name, level, upgrade_type=kind)], validate_only=validate_only
    )
    answer = await bench.ask(ApiKey.UPDATE_FEATURES, version, message)
    if version < 2:
        assert [(one.feature, one.error_code) for one in answer.results] == [(name, answer.error_code)]
    return answer.error_code, answer.error_message


async def add_broker(bench: AdminBench, *, fenced: bool = False) -> None:
    """Make it a cluster of several with broker 8 beside broker 7."""
    await update(bench)
    record = MemberRecord(1, uuid.UUID(int=8), uuid.UUID(int=9), 50, (ENDPOINT,), None, TimestampMs(0), fenced=fenced)
    await bench.controller.submit(lambda _draft, _around: Planned([broker_change(OTHER, record)], None))


async def change(bench: AdminBench, **fields: Any) -> None:
    """Change fields of the first partition of topic ``t``."""
    topic = bench.cluster.image.topic("t")
    assert topic is not None
    record = topic.partitions[0]._replace(**fields).record()
    await bench.controller.submit(lambda _draft, _around: Planned([partition_change(topic.topic_id, 0, record)], None))


def partition(bench: AdminBench, index: int = 0) -> PartitionImage:
    topic = bench.cluster.image.topic("t")
    assert topic is not None
    return topic.partitions[index]


# --- UpdateFeatures, ApiVersions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.UPDATE_FEATURES))
async def test_the_level_rises_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        assert await update(bench, version=version) == (ErrorCode.NONE, None)
        image = bench.cluster.image
        assert (image.level, image.brokers[NODE_ID].level_max, image.brokers[NODE_ID].fenced) == (1, LEVEL_MAX, False)
        code, why = await update(bench, version=version, level=0)
        assert (code, bench.cluster.image.level) == (ErrorCode.INVALID_UPDATE_VERSION, 1)
        assert why is not None
        assert LEVEL_FEATURE in why


async def test_a_level_may_be_tried_without_a_change() -> None:
    async with admin_bench() as bench:
        assert (await update(bench, validate_only=True))[0] == ErrorCode.NONE
        assert (await update(bench, level=9, validate_only=True))[0] == ErrorCode.INVALID_UPDATE_VERSION
        assert bench.cluster.image.level == 0


async def test_the_direction_of_a_change_is_believed() -> None:
    async with admin_bench() as bench:
        assert (await update(bench, upgrade_type=2))[0] == ErrorCode.INVALID_UPDATE_VERSION
        allowed = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(LEVEL_FEATURE, 1, allow_downgrade=True)])
        answer = await bench.ask(ApiKey.UPDATE_FEATURES, 0, allowed)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert bench.cluster.image.level == 0


async def test_api_versions_names_firn_version_from_level_1_on() -> None:
    async with admin_bench() as bench:
        for level, names in ((0, {*OF_PROTOCOL}), (1, {*OF_PROTOCOL, LEVEL_FEATURE})):
            answer = await bench.ask(ApiKey.API_VERSIONS, 4, ApiVersionsRequest("test", "1"))
            assert {one.name for one in answer.supported_features} == names
            finalised = {one.name: one.max_version_level for one in answer.finalized_features}
            assert finalised == {**OF_PROTOCOL, **({LEVEL_FEATURE: 1} if level else {})}
            assert answer.finalized_features_epoch == level
            await update(bench)


# --- ElectLeaders ---------------------------------------------------------------------------------------------------


async def elect(
    bench: AdminBench, *named: tuple[str, int], version: int = 2, kind: int = 0
) -> list[tuple[str, int, int, bool]]:
    """Topic, partition, code, and whether there is a sentence."""
    asked = [TopicPartitions(name, [index]) for name, index in named] or None
    answer = await bench.ask(ApiKey.ELECT_LEADERS, version, ElectLeadersRequest(kind, asked))
    assert answer.error_code == ErrorCode.NONE
    return [
        (topic.topic, one.partition_id, one.error_code, one.error_message is not None)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    ]


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
async def test_a_preferred_leader_leads_again_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 2)
        await add_broker(bench)
        both = (BrokerId(NODE_ID), OTHER)
        await change(bench, replicas=both, isr=both, leader=OTHER)
        assert await elect(bench, ("t", 1), ("t", 0), ("t", 5), ("u", 0), version=version) == [
            ("t", 1, ErrorCode.ELECTION_NOT_NEEDED, True),
            ("t", 0, ErrorCode.NONE, False),
            ("t", 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
            ("u", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        ]
        assert partition(bench).leader == NODE_ID
        assert await elect(bench, version=version) == []


async def test_an_unclean_election_is_asked_for_and_told() -> None:
    async with admin_bench() as bench:
        told: list[Any] = []
        bench.controller.on_unclean(told.extend)
        await bench.controller.create_topic("t", 1)
        await add_broker(bench, fenced=True)
        await change(bench, replicas=(OTHER, BrokerId(NODE_ID)), isr=(), eligible=(OTHER,), leader=BrokerId(-1))
        assert await elect(bench, kind=0) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, True)]
        assert await elect(bench, ("t", 0), kind=1) == [("t", 0, ErrorCode.NONE, False)]
        assert (partition(bench).leader, partition(bench).recovering) == (NODE_ID, True)
        assert [key.partition for key in told] == [0]
        unknown = await bench.ask(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(7, None))
        assert unknown.error_code == ErrorCode.INVALID_REQUEST


async def test_more_partitions_than_one_change_holds_are_all_answered() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        named = [("t", index) for index in range(NAMED_PER_CHANGE_MAX + 2)]
        codes = [one[2] for one in await elect(bench, *named)]
        assert codes[0] == ErrorCode.ELECTION_NOT_NEEDED
        assert codes[1:] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (len(named) - 1)


# --- reassignments --------------------------------------------------------------------------------------------------


async def reassign(
    bench: AdminBench, targets: list[int] | None, *, version: int = 1, factor_may_change: bool = True
) -> tuple[int, str | None]:
    message = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=factor_may_change,
        topics=[ReassignableTopic("t", [ReassignablePartition(0, targets), ReassignablePartition(9, targets)])],
    )
    answer = await bench.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, message)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    [topic] = answer.responses
    first, unknown = topic.partitions
    assert (topic.name, first.partition_index) == ("t", 0)
    assert (unknown.partition_index, unknown.error_code) == (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return first.error_code, first.error_message


async def ongoing(bench: AdminBench, topics: list[ListPartitionReassignmentsTopics] | None) -> list[Any]:
    message = ListPartitionReassignmentsRequest(topics=topics)
    answer = await bench.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, message)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    return [
        (topic.name, one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    ]


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
async def test_a_partition_is_moved_listed_and_left_where_it_was_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 2)
        await add_broker(bench)
        assert await reassign(bench, [OTHER], version=version) == (ErrorCode.NONE, None)
        under_way = [("t", 0, [OTHER, NODE_ID], [OTHER], [NODE_ID])]
        assert await ongoing(bench, None) == under_way
        assert await ongoing(bench, [ListPartitionReassignmentsTopics("t", [1, 0])]) == under_way
        assert await ongoing(bench, [ListPartitionReassignmentsTopics("t", [1])]) == []
        assert await reassign(bench, None, version=version) == (ErrorCode.NONE, None)
        assert (await reassign(bench, None, version=version))[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert await ongoing(bench, None) == []
        assert partition(bench).replicas == (NODE_ID,)


async def test_a_request_may_forbid_another_factor() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        await add_broker(bench)
        code, why = await reassign(bench, [NODE_ID, OTHER], factor_may_change=False)
        assert (code, bool(why)) == (ErrorCode.INVALID_REPLICATION_FACTOR, True)


async def test_one_broker_keeps_all_partitions() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        assert await reassign(bench, [NODE_ID]) == (ErrorCode.NONE, None)
        assert (await reassign(bench, [OTHER]))[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT


# --- the quorum, and unregistering ----------------------------------------------------------------------------------


def quorum_of(*topics: tuple[str, tuple[int, ...]]) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        [
            DescribeQuorumRequestTopicData(name, [DescribeQuorumRequestPartitionData(index) for index in indexes])
            for name, indexes in topics
        ]
    )


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_QUORUM))
async def test_the_controller_is_the_only_voter_and_others_observe_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        await add_broker(bench)
        answer = await bench.ask(ApiKey.DESCRIBE_QUORUM, version, quorum_of(("__cluster_metadata", (0,))))
        assert answer.error_code == ErrorCode.NONE
        [described] = answer.topics[0].partitions
        image = bench.cluster.image
        end = image.sequence + 1
        assert (described.error_code, described.leader_id) == (ErrorCode.NONE, NODE_ID)
        assert (described.leader_epoch, described.high_watermark) == (image.controller.epoch, end)
        assert [(one.replica_id, one.log_end_offset) for one in described.current_voters] == [(NODE_ID, end)]
        assert [(one.replica_id, one.log_end_offset) for one in described.observers] == [(OTHER, -1)]
        if version >= 1:
            assert described.current_voters[0].last_caught_up_timestamp == bench.context.clock.now_ms()
        if version >= 2:
            assert described.observers[0].replica_directory_id == uuid.UUID(int=8)
            [node] = answer.nodes
            assert [(one.name, one.host, one.port) for one in node.listeners] == [("PLAINTEXT", "broker.example", 9092)]


class KnowsApplied:
    """A desk that has heard broker 8."""

    def applied(self, broker_id: int) -> int:
        return 3 if broker_id == OTHER else -1


async def test_an_observer_that_beats_is_told_with_what_it_has_applied() -> None:
    async with admin_bench() as bench:
        await add_broker(bench)
        bench.context.desk = KnowsApplied()  # type: ignore[assignment]
        answer = await bench.ask(ApiKey.DESCRIBE_QUORUM, 2, quorum_of(("__cluster_metadata", (0,))))
        assert answer.topics[0].partitions[0].observers[0].log_end_offset == 4


async def test_only_the_partition_of_metadata_has_a_quorum() -> None:
    async with admin_bench() as bench:
        for asked in (
            quorum_of(("__cluster_metadata", (1,))),
            quorum_of(("t", (0,))),
            quorum_of(("__cluster_metadata", (0, 0))),
        ):
            answer = await bench.ask(ApiKey.DESCRIBE_QUORUM, 2, asked)
            codes = {one.error_code for topic in answer.topics for one in topic.partitions}
            assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_a_broker_is_unregistered() -> None:
    async with admin_bench() as bench:
        alone = await bench.ask(ApiKey.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(NODE_ID))
        assert alone.error_code == ErrorCode.INVALID_REQUEST
        await add_broker(bench)
        answer = await bench.ask(ApiKey.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(OTHER))
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        assert set(bench.cluster.image.brokers) == {NODE_ID}
        answer = await bench.ask(ApiKey.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(OTHER))
        assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (ApiKey.ELECT_LEADERS, ElectLeadersRequest(0, [TopicPartitions("t", [4])])),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest()),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest()),
        (ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey("f", 1)])),
        (ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest()),
        (ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest(1)),
    ],
)
async def test_a_refusal_of_the_whole_request_is_told_in_every_version(key: ApiKey, message: Any) -> None:
    async with admin_bench() as bench:
        for version in versions(key):
            answer = bench.refuse(key, version, message, REFUSED)
            if key is ApiKey.ELECT_LEADERS:
                [named] = answer.replica_election_results
                assert [(one.partition_id, one.error_code) for one in named.partition_result] == [(4, REFUSED.code)]
                if version == 0:
                    continue
            assert answer.error_code == REFUSED.code


# --- fenced brokers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fenced", [True, False])
async def test_a_fenced_broker_is_no_broker_to_clients_unless_they_ask_for_it(fenced: bool) -> None:
    async with admin_bench() as bench:
        await add_broker(bench, fenced=fenced)
        await bench.controller.create_topic("t", 1)
        await change(bench, replicas=(NODE_ID, OTHER))
        shown = {NODE_ID} if fenced else {NODE_ID, OTHER}
        answer = await bench.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        assert {one.node_id for one in answer.brokers} == shown
        assert answer.topics[0].partitions[0].offline_replicas == ([OTHER] if fenced else [])
        answer = await bench.ask(ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest())
        assert {one.broker_id for one in answer.brokers} == shown
        answer = await bench.ask(ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest(include_fenced_brokers=True))
        assert {one.broker_id: one.is_fenced for one in answer.brokers} == {NODE_ID: False, OTHER: fenced}
