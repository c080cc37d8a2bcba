"""Share groups (KIP-932) by the Java client's share consumer and Kafka's own tool, with transactions of librdkafka."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

import pytest

from app.wire.apikeys import ApiKey
from tests.interop.java_programs import JavaProgram, Tools, running
from tests.interop.peers import request
from tests.interop.serving import Raw, Served, create_topic, firn_serving
from tests.interop.workers import DEADLINE_S, Worker, configure

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not here")

from confluent_kafka import Producer  # noqa: E402

pytestmark = pytest.mark.interop

SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
ROUNDS_SETTLED = 5
"""Polls of 100 ms by each of two: some heartbeats, by which members hear of what the coordinator has given them."""


@pytest.fixture(scope="module")
def firn(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {
        "group_share_min_heartbeat_interval_ms": 200,
        "group_share_heartbeat_interval_ms": 200,
        "group_share_record_lock_duration_ms": 15_000,
    }
    with firn_serving(tmp_path_factory.mktemp("firn"), *how, **settings) as served:
        yield served
    assert not served.troubles


@pytest.fixture(scope="module")
def java() -> Iterator[JavaProgram]:
    with running("ShareConsumers.java") as program:
        yield program


def settle(firn: Served, group: str, *workers: Worker) -> None:
    """Have all workers join and know what they have.

    A partition that a worker is relieved of between a poll and its commit makes the client refuse the commit, as with Kafka.
    """
    key = ApiKey.SHARE_GROUP_DESCRIBE
    deadline = time.monotonic() + DEADLINE_S
    rounds = 0
    with Raw(firn.port) as raw:
        while rounds < ROUNDS_SETTLED:
            assert time.monotonic() < deadline
            for worker in workers:
                worker("poll", 100)
            (found,) = raw.ask(key, 1, request(key, group_ids=[group])).groups
            settled = len(found.members) == len(workers) and all(
                member.member_epoch == found.group_epoch and member.assignment.topic_partitions
                for member in found.members
            )
            rounds = rounds + 1 if settled else 0


def produce(firn: Served, topic: str, values: Sequence[str], partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": firn.bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % partitions)
    assert producer.flush(DEADLINE_S) == 0


@pytest.mark.ci
def test_java_workers_share_every_record_once(firn: Served, java: JavaProgram) -> None:
    create_topic(firn.port, "jobs", 2)
    configure(firn, "workers", share_auto_offset_reset="earliest")
    values = [f"v{number}" for number in range(60)]
    one, other = Worker(java, firn, "workers", "jobs"), Worker(java, firn, "workers", "jobs")
    settle(firn, "workers", one, other)
    produce(firn, "jobs", values, 2)
    taken: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(taken) < len(values):
        assert time.monotonic() < deadline, len(taken)
        for worker in (one, other):
            polled = worker("poll", 100)
            if polled:
                worker("acknowledge", "accept")
                worker("commit")
            taken += polled
    assert sorted(taken) == sorted(f"{value}:1" for value in values)
    one("close")
    other("close")


@pytest.mark.ci
def test_records_that_are_given_back_come_again_until_they_are_rejected(firn: Served, java: JavaProgram) -> None:
    create_topic(firn.port, "retried", 1)
    configure(firn, "retriers", share_auto_offset_reset="earliest")
    produce(firn, "retried", ["a"])
    worker = Worker(java, firn, "retriers", "retried")
    assert worker.take(1, "release") == ["a:1"]
    assert worker.take(1, "release") == ["a:2"]
    assert worker.take(1, "reject") == ["a:3"]
    produce(firn, "retried", ["b"])
    assert worker.take(1) == ["b:1"]
    worker("close")


@pytest.mark.ci
def test_aborted_records_are_withheld_where_the_group_says_so(firn: Served, java: JavaProgram) -> None:
    create_topic(firn.port, "decided", 1)
    configure(firn, "careful", share_auto_offset_reset="earliest", share_isolation_level="read_committed")
    producer = Producer({"bootstrap.servers": firn.bootstrap, "transactional.id": "shared"})
    producer.init_transactions(DEADLINE_S)
    for end in ("abort", "commit", "abort", "commit"):
        producer.begin_transaction()
        producer.produce("decided", f"{end}-ed".encode())
        producer.flush(DEADLINE_S)
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)(DEADLINE_S)
    worker = Worker(java, firn, "careful", "decided")
    assert worker.take(2) == ["commit-ed:1", "commit-ed:1"]
    produce(firn, "decided", ["plain"])
    assert worker.take(1) == ["plain:1"]
    worker("close")


@pytest.mark.ci
def test_kafkas_own_tool_describes_and_resets_share_groups(firn: Served, java: JavaProgram, jvm: JavaProgram) -> None:
    create_topic(firn.port, "tool", 1)
    configure(firn, "described", share_auto_offset_reset="earliest")
    produce(firn, "tool", ["a", "b", "c"])
    worker = Worker(java, firn, "described", "tool")
    assert worker.take(3) == ["a:1", "b:1", "c:1"]
    tools = Tools(jvm, firn)
    assert "described" in tools(SHARE_GROUPS, "--list")
    assert re.search(r"described\s+Stable", tools(SHARE_GROUPS, "--list", "--state", "stable"))
    assert "tool" in tools(SHARE_GROUPS, "--describe", "--group", "described", "--members")
    state = tools(SHARE_GROUPS, "--describe", "--group", "described", "--state")
    assert re.search(r"described\s+127\S+\s+\(1\)\s+Stable\s+1", state), state
    refused = tools.run(SHARE_GROUPS, "--bootstrap-server", firn.bootstrap, "--delete", "--group", "described")
    assert "GroupNotEmptyException" in refused.out + refused.error
    worker("close")
    reset = ("--reset-offsets", "--group", "described", "--topic", "tool", "--to-earliest", "--execute")
    tools(SHARE_GROUPS, *reset)
    described = tools(SHARE_GROUPS, "--describe", "--group", "described", "--offsets")
    assert next(line.split()[:4] for line in described.splitlines() if line.startswith("described")) == [
        "described",
        "tool",
        "0",
        "0",
    ]
    again = Worker(java, firn, "described", "tool")
    assert again.take(3) == ["a:1", "b:1", "c:1"]
    again("close")
    tools(SHARE_GROUPS, "--delete-offsets", "--group", "described", "--topic", "tool")
    assert "tool" not in tools(SHARE_GROUPS, "--describe", "--group", "described", "--offsets")
    tools(SHARE_GROUPS, "--delete", "--group", "described")
    assert "described" not in tools(SHARE_GROUPS, "--list")
