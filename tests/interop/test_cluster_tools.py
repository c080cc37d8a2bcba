"""Kafka's tools of administration on three broker processes: elections, reassignments, the quorum, features, the cluster."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.java_programs import JavaProgram, Tools
from tests.support.cluster import NODES, WAIT_S, Brokers, brokers_running, seen
from tests.support.waiting import block_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    settings = {"auto_leader_rebalance_enable": False, "replica_lag_time_max_ms": 2_000}
    with brokers_running(tmp_path_factory.mktemp("brokers"), settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def admin(brokers: Brokers) -> AdminClient:
    client = AdminClient({"bootstrap.servers": brokers.bootstrap})
    block_until(lambda: len(seen(client).brokers) == len(NODES), "three brokers are in the cluster")
    return client


@pytest.fixture
def tools(jvm: JavaProgram, brokers: Brokers) -> Tools:
    return Tools(jvm, brokers)  # type: ignore[arg-type] # it has a bootstrap, too


def make(admin: AdminClient, topic: str, *replicas: list[int]) -> None:
    wanted = NewTopic(
        topic, num_partitions=len(replicas), replica_assignment=[*replicas], config={"min.insync.replicas": "1"}
    )
    admin.create_topics([wanted])[topic].result(WAIT_S)
    block_until(lambda: in_sync(admin, topic) == [sorted(one) for one in replicas], f"{topic} is in sync")


def partitions(admin: AdminClient, topic: str) -> list[tuple[int, list[int], list[int]]]:
    """Leader, replicas and members in sync of each partition."""
    found = seen(admin).topics.get(topic)
    if found is None:
        return []
    return [(one.leader, one.replicas, sorted(one.isrs)) for _, one in sorted(found.partitions.items())]


def in_sync(admin: AdminClient, topic: str) -> list[list[int]]:
    return [members for _, _, members in partitions(admin, topic)]


def test_kafka_leader_election_lets_the_preferred_leader_lead_again(
    tools: Tools, brokers: Brokers, admin: AdminClient
) -> None:
    make(admin, "elected", [3, 1, 2])
    asked = ("--topic", "elected", "--partition", 0)
    assert "already" in tools(ELECT, "--election-type", "preferred", *asked).lower()
    brokers.end(3, signal.SIGTERM)
    block_until(lambda: [leader for leader, _, _ in partitions(admin, "elected")] == [1], "another leads")
    brokers.start(3)
    block_until(lambda: in_sync(admin, "elected") == [[1, 2, 3]], "3 is in sync again")
    assert "Successfully completed leader election (PREFERRED)" in tools(ELECT, "--election-type", "preferred", *asked)
    block_until(lambda: [leader for leader, _, _ in partitions(admin, "elected")] == [3], "3 leads again")


def test_kafka_reassign_partitions_moves_verifies_and_cancels(tools: Tools, admin: AdminClient, tmp_path: Path) -> None:
    make(admin, "moved", [1, 2])
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [3, 1]}]}))
    file = ("--reassignment-json-file", plan)
    assert "Successfully started partition reassignment" in tools(REASSIGN, *file, "--execute")
    block_until(lambda: "is completed" in tools(REASSIGN, *file, "--verify"), "the move is complete")
    assert [replicas for _, replicas, _ in partitions(admin, "moved")] == [[3, 1]]
    assert "No partition reassignments found" in tools(REASSIGN, "--list")
    assert "None of the specified partition reassignments are active" in tools(REASSIGN, *file, "--cancel")


def test_kafka_metadata_quorum_tells_of_the_controller(tools: Tools, admin: AdminClient) -> None:
    status = tools(QUORUM, "describe", "--status")
    assert re.search(r"LeaderId:\s+[123]\b", status)
    assert re.search(r"ClusterId:\s+\S+", status)
    assert "LeaderId" not in tools(QUORUM, "describe", "--replication")
    assert re.search(r"^[123]\s", tools(QUORUM, "describe", "--replication"), re.MULTILINE)


def test_kafka_features_tells_the_level(tools: Tools, admin: AdminClient) -> None:
    described = tools(FEATURES, "describe")
    assert re.search(r"Feature: firn\.version\s+SupportedMinVersion: \d+\s+SupportedMaxVersion: \d+", described)
    refused = tools.run(FEATURES, "--bootstrap-server", tools.firn.bootstrap, "upgrade", "--feature", "firn.version=99")
    assert refused.code == 1
    assert "99" in refused.out + refused.error


def test_kafka_cluster_tells_the_id_and_unregisters(tools: Tools, brokers: Brokers, admin: AdminClient) -> None:
    def cluster(command: str, *arguments: object) -> tuple[int, str]:
        done = tools.run(CLUSTER, command, "--bootstrap-server", tools.firn.bootstrap, *arguments)
        return done.code, done.out + done.error

    code, said = cluster("cluster-id")
    assert code == 0
    assert str(seen(admin).cluster_id) in said
    code, said = cluster("list-endpoints")
    assert code == 0
    assert all(str(port) in said for port in brokers.ports.values())
    brokers.end(2, signal.SIGTERM)
    block_until(lambda: 2 not in seen(admin).brokers, "2 has left")
    code, said = cluster("unregister", "--id", 2)
    assert (code, "2 is no longer registered" in said) == (0, True)
    code, said = cluster("unregister", "--id", 2)
    assert "not registered" in said or code == 1
    brokers.start(2)
    block_until(lambda: 2 in seen(admin).brokers, "2 registers again")
