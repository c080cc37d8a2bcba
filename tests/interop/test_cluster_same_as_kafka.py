"""The same requests to three brokers of Firn and to three of Apache Kafka: what administrators and clients ask of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.wire.apikeys import ApiKey
from loadtests.cluster_peer import NODES, Cluster, firn_cluster, kafka_cluster
from tests.interop.peers import Peer, batch, fetch, list_offsets, make, produce, request
from tests.interop.serving import kafka_libs_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow]

NOBODY = 9
"""No broker of either cluster."""
PREFERRED, UNCLEAN = 0, 1


class Side:
    """One of the clusters."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = cluster.name

    def peer(self, node_id: int | None = None) -> Peer:
        """A broker that runs; without ``node_id`` any."""
        brokers = self.cluster.brokers
        found = node_id if node_id is not None else next(one for one in NODES if brokers[one].runs)
        return Peer(self.name, brokers[found].port)

    def ask(self, key: ApiKey, version: int, message: Any, node_id: int | None = None) -> Any:
        return self.peer(node_id).ask(key, version, message)

    def partition(self, topic: str, index: int = 0) -> Any:
        """What DescribeTopicPartitions says of a partition."""
        key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
        topics = [make(key, "TopicRequest", name=topic)]
        (found,) = self.ask(key, 0, request(key, topics=topics, response_partition_limit=100)).topics
        return next(one for one in found.partitions if one.partition_index == index)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Side]]:
    kafka_libs_or_skip()
    path = tmp_path_factory.mktemp("clusters")
    with kafka_cluster(path / "kafka") as kafka, firn_cluster(path / "firn") as firn:
        both = [Side(kafka), Side(firn)]
        for side in both:
            for one in NODES:  # each of them has heard of all
                side.cluster.wait(lambda side=side, one=one: knows_all(side, one), "all brokers are there")  # type: ignore[misc]
            for topic, replicas in (("all", [1, 2, 3]), ("two", [1, 2]), ("last", [3, 1, 2])):
                assert create(side, topic, [replicas], **{"min.insync.replicas": "2"}) == [0]
            assert create(side, "strict", [[1, 2, 3]], **{"min.insync.replicas": "3"}) == [0]
            for topic in ("all", "two", "last", "strict"):
                side.cluster.wait(
                    lambda side=side, topic=topic: (
                        set(side.partition(topic).isr_nodes)  # type: ignore[misc]
                        == set(side.partition(topic).replica_nodes)
                    ),
                    f"{topic} is in sync",
                )
        yield both


def knows_all(side: Side, node_id: int) -> bool:
    key = ApiKey.DESCRIBE_CLUSTER
    answer = side.ask(key, 2, request(key, endpoint_type=1, include_fenced_brokers=False), node_id)
    return {one.broker_id for one in answer.brokers} == set(NODES)


def create(side: Side, name: str, assignments: list[list[int]] | None = None, factor: int = -1, **configs: str) -> Any:
    key = ApiKey.CREATE_TOPICS
    topic = make(key, "CreatableTopic", name=name, num_partitions=-1 if assignments else 1, replication_factor=factor)
    for index, brokers in enumerate(assignments or ()):
        topic.assignments.append(make(key, "CreatableReplicaAssignment", partition_index=index, broker_ids=brokers))
    for config, value in configs.items():
        topic.configs.append(make(key, "CreatableTopicConfig", name=config, value=value))
    answer = side.ask(key, 7, request(key, topics=[topic], timeout_ms=10_000))
    return [one.error_code for one in answer.topics]


def reassign(side: Side, *asked: tuple[str, int, list[int] | None], **more: Any) -> Any:
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    topics = [
        make(
            key,
            "ReassignableTopic",
            name=topic,
            partitions=[make(key, "ReassignablePartition", partition_index=index, replicas=replicas)],
        )
        for topic, index, replicas in asked
    ]
    answer = side.ask(key, 1, request(key, topics=topics, timeout_ms=10_000, **more))
    return answer.error_code, [one.error_code for topic in answer.responses for one in topic.partitions]


def elect(side: Side, kind: int, topic: str, index: int = 0) -> Any:
    key = ApiKey.ELECT_LEADERS
    topics = [make(key, "TopicPartitions", topic=topic, partitions=[index])]
    answer = side.ask(key, 2, request(key, election_type=kind, topic_partitions=topics, timeout_ms=10_000))
    return answer.error_code, [
        one.error_code for result in answer.replica_election_results for one in result.partition_result
    ]


def under_way(side: Side) -> Any:
    key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    answer = side.ask(key, 0, request(key, topics=None, timeout_ms=10_000))
    return answer.error_code, [
        (topic.name, one.partition_index, list(one.adding_replicas), list(one.removing_replicas))
        for topic in answer.topics
        for one in topic.partitions
    ]


def produced(side: Side, topic: str, node_id: int, acks: int = -1) -> Any:
    answer = side.ask(ApiKey.PRODUCE, 9, produce((topic, 0, batch()), acks=acks), node_id)
    return [one.error_code for found in answer.responses for one in found.partition_responses]


def fetched(side: Side, topic: str, node_id: int, **asked: Any) -> Any:
    message = fetch((topic, {"partition": 0, "fetch_offset": 0, "current_leader_epoch": -1, **asked}))
    answer = side.ask(ApiKey.FETCH, 12, message, node_id)
    return [one.error_code for found in answer.responses for one in found.partitions]


def listed(side: Side, topic: str, node_id: int, **more: Any) -> Any:
    answer = side.ask(ApiKey.LIST_OFFSETS, 7, list_offsets(topic, 0, -1, **more), node_id)
    return [one.error_code for found in answer.topics for one in found.partitions]


def epoch_end(side: Side, topic: str, node_id: int, current: int = -1) -> Any:
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    asked = make(key, "OffsetForLeaderPartition", partition=0, current_leader_epoch=current, leader_epoch=0)
    topics = [make(key, "OffsetForLeaderTopic", topic=topic, partitions=[asked])]
    answer = side.ask(key, 4, request(key, replica_id=-1, topics=topics), node_id)
    return [one.error_code for found in answer.topics for one in found.partitions]


def grown(side: Side, topic: str, count: int, *assignments: list[int]) -> Any:
    key = ApiKey.CREATE_PARTITIONS
    given = [make(key, "CreatePartitionsAssignment", broker_ids=brokers) for brokers in assignments]
    asked = make(key, "CreatePartitionsTopic", name=topic, count=count, assignments=given or None)
    answer = side.ask(key, 3, request(key, topics=[asked], timeout_ms=10_000, validate_only=True))
    return [one.error_code for one in answer.results]


def feature(side: Side, name: str, level: int) -> Any:
    key = ApiKey.UPDATE_FEATURES
    update = make(key, "FeatureUpdateKey", feature=name, max_version_level=level, upgrade_type=1)
    answer = side.ask(key, 1, request(key, feature_updates=[update], timeout_ms=10_000))
    return answer.error_code != 0 or any(one.error_code for one in answer.results)


def unregister(side: Side, node_id: int) -> Any:
    key = ApiKey.UNREGISTER_BROKER
    return side.ask(key, 0, request(key, broker_id=node_id)).error_code


def brokers(side: Side, *, fenced: bool) -> Any:
    key = ApiKey.DESCRIBE_CLUSTER
    answer = side.ask(key, 2, request(key, endpoint_type=1, include_fenced_brokers=fenced))
    return sorted((one.broker_id, one.is_fenced) for one in answer.brokers)


@dataclasses.dataclass(frozen=True)
class Question:
    """Something that both clusters are asked. The answers must be equal."""

    name: str
    ask: Callable[[Side], Any]


ALIVE = (
    Question("a factor above the number of brokers", lambda side: create(side, "x", factor=4)),
    Question("an unknown broker in an assignment", lambda side: create(side, "x", [[1, NOBODY]])),
    Question("a broker twice in an assignment", lambda side: create(side, "x", [[1, 1]])),
    Question("assignments of different lengths", lambda side: create(side, "x", [[1, 2], [3]])),
    Question("an empty assignment", lambda side: create(side, "x", [[]])),
    Question("a partition with fewer replicas", lambda side: grown(side, "all", 2, [1, 2])),
    Question("a partition on an unknown broker", lambda side: grown(side, "all", 2, [1, 2, NOBODY])),
    Question("a partition on given brokers", lambda side: grown(side, "all", 2, [3, 2, 1])),
    Question("no reassignment", under_way),
    Question("reassign to an unknown broker", lambda side: reassign(side, ("two", 0, [1, NOBODY]))),
    Question("reassign to a broker twice", lambda side: reassign(side, ("two", 0, [1, 1]))),
    Question("reassign to nobody", lambda side: reassign(side, ("two", 0, []))),
    Question("reassign to a negative broker", lambda side: reassign(side, ("two", 0, [-1]))),
    Question("reassign an unknown topic", lambda side: reassign(side, ("x", 0, [1]))),
    Question("reassign an unknown partition", lambda side: reassign(side, ("two", 7, [1]))),
    Question("cancel what is not under way", lambda side: reassign(side, ("two", 0, None))),
    Question(
        "another factor where that is not allowed",
        lambda side: reassign(side, ("two", 0, [1, 2, 3]), allow_replication_factor_change=False),
    ),
    Question("elect the preferred leader that leads", lambda side: elect(side, PREFERRED, "all")),
    Question("elect uncleanly where a leader is", lambda side: elect(side, UNCLEAN, "all")),
    Question("elect in an unknown topic", lambda side: elect(side, PREFERRED, "x")),
    Question("elect in an unknown partition", lambda side: elect(side, PREFERRED, "all", 7)),
    Question("produce to the leader", lambda side: produced(side, "all", 1)),
    Question("produce to a follower", lambda side: produced(side, "all", 2)),
    Question("produce with acks=1 to a follower", lambda side: produced(side, "all", 2, acks=1)),
    Question("produce to a broker without a replica", lambda side: produced(side, "two", 3)),
    Question("fetch from a broker without a replica", lambda side: fetched(side, "two", 3)),
    Question("fetch in a newer leader epoch", lambda side: fetched(side, "all", 1, current_leader_epoch=99)),
    Question("list offsets of a follower", lambda side: listed(side, "all", 2)),
    Question("list offsets in a newer leader epoch", lambda side: listed(side, "all", 1, leader_epoch=99)),
    Question("ends of epochs of a follower", lambda side: epoch_end(side, "all", 2)),
    Question("ends of epochs in a newer leader epoch", lambda side: epoch_end(side, "all", 1, 99)),
    Question("a feature that there is not", lambda side: feature(side, "no.such.feature", 1)),
    Question("unregister an unknown broker", lambda side: unregister(side, NOBODY)),
    Question("the brokers", lambda side: brokers(side, fenced=False)),
    Question("the brokers with fenced ones", lambda side: brokers(side, fenced=True)),
)


def elr(side: Side, topic: str) -> Any:
    found = side.partition(topic)
    return {
        "leader": found.leader_id,
        "in sync": sorted(found.isr_nodes),
        "eligible": sorted(found.eligible_leader_replicas or ()),
        "last known": sorted(found.last_known_elr or ()),
        "offline": sorted(found.offline_replicas),
    }


WITHOUT_THREE = (
    Question("the brokers", lambda side: brokers(side, fenced=False)),
    Question("the brokers with fenced ones", lambda side: brokers(side, fenced=True)),
    Question("a factor above the number of living brokers", lambda side: create(side, "three", factor=3)),
    Question("its replicas", lambda side: sorted(side.partition("three").replica_nodes)),
    Question("its set", lambda side: sorted(side.partition("three").isr_nodes)),
    Question("a factor above the number of brokers", lambda side: create(side, "x", factor=4)),
    Question("a topic on a fenced broker", lambda side: create(side, "on-three", [[3, 1]])),
    Question("where it leads", lambda side: side.partition("on-three").leader_id),
    Question("a topic on a fenced broker alone", lambda side: create(side, "on-three-alone", [[3]])),
    Question("elect a preferred leader that is away", lambda side: elect(side, PREFERRED, "last")),
    Question("a set below min ISR", lambda side: elr(side, "strict")),
    Question("produce to a set below min ISR", lambda side: produced(side, "strict", 1)),
    Question("produce with acks=1 to a set below min ISR", lambda side: produced(side, "strict", 1, acks=1)),
    Question("a set at min ISR", lambda side: elr(side, "all")),
    Question("produce to a set at min ISR", lambda side: produced(side, "all", 1)),
    Question("the leader after the preferred one has gone", lambda side: elr(side, "last")),
)


@pytest.mark.parametrize("number", range(len(ALIVE)), ids=[one.name for one in ALIVE])
def test_a_cluster_answers_as_kafkas(sides: list[Side], number: int) -> None:
    kafka, firn = (ALIVE[number].ask(side) for side in sides)
    assert firn == kafka


def test_a_cluster_without_one_broker_answers_as_kafkas_and_so_does_one_that_has_it_back(sides: list[Side]) -> None:
    for side in sides:
        side.cluster.brokers[3].kill()
    for side in sides:
        side.cluster.wait(lambda side=side: (3, True) in brokers(side, fenced=True), "3 is fenced")  # type: ignore[misc]
        side.cluster.wait(lambda side=side: 3 not in side.partition("all").isr_nodes, "3 is out of sync")  # type: ignore[misc]
    different = {}
    for question in WITHOUT_THREE:
        kafka, firn = (question.ask(side) for side in sides)
        if firn != kafka:
            different[question.name] = f"Kafka {kafka}, Firn {firn}"
    assert different == {}
    # Kafka begins this, and waits for the broker for ever; Firn refuses it, and says why.
    assert [reassign(side, ("two", 0, [1, 3])) for side in sides] == [(0, [0]), (0, [39])]
    for side in sides:
        side.cluster.brokers[3].start()
        side.cluster.wait(lambda side=side: 3 in side.partition("strict").isr_nodes, "3 is in sync")  # type: ignore[misc]
    kafka, firn = (elr(side, "strict") for side in sides)
    assert firn == kafka
    assert [elect(side, PREFERRED, "last") for side in sides] in ([(0, [0])] * 2, [(0, [84])] * 2)
