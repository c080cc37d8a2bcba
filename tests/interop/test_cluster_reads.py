"""Kafka's tools and librdkafka on three broker processes: replicas that lag, throttled moves, reads from the nearest replica."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from app.configs.broker import RACK_AWARE_SELECTOR
from tests.interop.java_programs import JavaProgram, Tools
from tests.support.cluster import NODES, WAIT_S, Brokers, brokers_running
from tests.support.waiting import block_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
PLACE = re.compile(r"Topic: (\S+)\s+Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S+)\s+Isr: (\S*)")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    settings = {"broker_rack": "rack-{node}", "replica_selector_class": RACK_AWARE_SELECTOR}
    with brokers_running(tmp_path, settings=settings) as running:
        yield running


@pytest.fixture
def tools(jvm: JavaProgram, brokers: Brokers) -> Tools:
    return Tools(jvm, brokers)  # type: ignore[arg-type] # it has a bootstrap, too


def places(tools: Tools, *flags: str) -> dict[str, list[int]]:
    """The partitions that a description lists, by topic. Nothing while no broker can answer."""
    done = tools.run(TOPICS, "--bootstrap-server", tools.firn.bootstrap, "--describe", *flags)
    found: dict[str, list[int]] = {}
    if done.code == 0:
        for topic, partition, *_ in PLACE.findall(done.out):
            found.setdefault(topic, []).append(int(partition))
    return found


def create(tools: Tools, topic: str, *arguments: object) -> None:
    def made() -> bool:
        done = tools.run(
            TOPICS,
            "--bootstrap-server",
            tools.firn.bootstrap,
            "--create",
            "--if-not-exists",
            "--topic",
            topic,
            *arguments,
        )
        return done.code == 0 and topic in tools(TOPICS, "--list").split()

    block_until(made, f"{topic} is there")


def fill(brokers: Brokers, topic: str, count: int, size_bytes: int = 10) -> None:
    refused: list[Any] = []
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True, "batch.size": 600_000})
    for number in range(count):
        value = b"%d" % number
        producer.produce(
            topic,
            value.ljust(size_bytes),
            partition=0,
            on_delivery=lambda error, _: refused.append(error) if error else 0,
        )
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert refused == []


def test_kafka_topics_lists_what_lacks_replicas(tools: Tools, brokers: Brokers) -> None:
    create(tools, "t", "--partitions", 3, "--replication-factor", 3, "--config", "min.insync.replicas=2")
    create(tools, "alone", "--replica-assignment", "3")
    flags = {
        "--under-replicated-partitions": ({"t": [0, 1, 2]}, {"t": [0, 1, 2]}),
        "--at-min-isr-partitions": ({"t": [0, 1, 2]}, {}),
        "--under-min-isr-partitions": ({}, {"t": [0, 1, 2]}),
        "--unavailable-partitions": ({"alone": [0]}, {"alone": [0]}),
    }
    block_until(lambda: places(tools, "--topic", "t", "--under-replicated-partitions") == {}, "all are in sync")
    for flag in ("--under-min-isr-partitions", "--unavailable-partitions"):
        assert places(tools, flag) == {}
    for stage, node_id in enumerate((3, 2)):
        brokers.end(node_id, signal.SIGKILL)
        block_until(lambda: places(tools, "--unavailable-partitions") == {"alone": [0]}, "a broker is missed")
        for flag, stages in flags.items():
            if flag == "--at-min-isr-partitions" or flag == "--under-min-isr-partitions":
                wanted = stages[stage]
                found = lambda flag=flag: places(tools, "--topic", "t", flag)  # noqa: E731 (it is asked again and again)
            else:
                wanted = stages[stage]
                found = lambda flag=flag, wanted=wanted: {  # noqa: E731
                    name: where for name, where in places(tools, flag).items() if name in wanted
                }
            block_until(
                lambda found=found, wanted=wanted: found() == wanted, f"{flag} lists {wanted} without broker {node_id}"
            )
    described = tools(TOPICS, "--describe", "--topic", "t")
    assert len(re.findall(r"Leader: 1\s+Replicas: \S+\s+Isr: 1\s+Elr: 2", described)) == 3, described


def test_a_move_is_throttled_and_the_throttle_is_taken_away(tools: Tools, brokers: Brokers, tmp_path: Path) -> None:
    create(tools, "t", "--replica-assignment", "1:2")
    fill(brokers, "t", 12, 500_000)
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 3], "log_dirs": ["any", "any"]}],
            }
        )
    )
    asked = ("--reassignment-json-file", plan)
    assert "Successfully started" in tools(REASSIGN, *asked, "--execute", "--throttle", 1)
    topic = tools(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", "t")
    assert re.search(r"leader.replication.throttled.replicas=0:1,0:2", topic), topic
    assert re.search(r"follower.replication.throttled.replicas=0:3", topic), topic
    for node_id in NODES:
        broker = tools(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", node_id)
        for side in ("leader", "follower"):
            assert f"{side}.replication.throttled.rate=1 " in broker
    assert "is still in progress" in tools(REASSIGN, *asked, "--verify", "--preserve-throttles")
    tools(REASSIGN, *asked, "--execute", "--additional", "--throttle", 1 << 40)
    block_until(lambda: "is completed" in tools(REASSIGN, *asked, "--verify"), "the move is complete")
    assert re.search(r"Leader: [13]\s+Replicas: 1,3\s+Isr: [13],[13]", tools(TOPICS, "--describe", "--topic", "t"))
    topic = tools(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", "t")
    assert "throttled" not in topic
    for node_id in NODES:
        broker = tools(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", node_id)
        assert "throttled" not in broker


class Reading:
    """A librdkafka consumer in a rack, which keeps what it reads and from which broker."""

    def __init__(self, brokers: Brokers, rack: str) -> None:
        self.values: list[int] = []
        self.broker = -1
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers.bootstrap,
                "group.id": "readers",
                "client.rack": rack,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "statistics.interval.ms": 200,
                "topic.metadata.refresh.interval.ms": 2_000,
                "reconnect.backoff.max.ms": 500,
                "stats_cb": self._note,
            }
        )
        self._consumer.assign([TopicPartition("t", 0, 0)])

    def _note(self, text: str) -> None:
        topic = json.loads(text)["topics"].get("t")
        if topic is not None:
            self.broker = topic["partitions"]["0"]["broker"]

    def poll_until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end, (what, self.broker, len(self.values))
            message = self._consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                self.values.append(int(message.value()))

    def close(self) -> None:
        self._consumer.close()


def test_librdkafka_reads_from_the_replica_in_its_rack_and_goes_on_when_that_is_gone(
    tools: Tools, brokers: Brokers
) -> None:
    create(tools, "t", "--replica-assignment", "1:2:3", "--config", "min.insync.replicas=2")
    block_until(lambda: places(tools, "--topic", "t", "--under-replicated-partitions") == {}, "all are in sync")
    fill(brokers, "t", 1_000)
    reading = Reading(brokers, "rack-2")
    try:
        reading.poll_until(lambda: len(reading.values) == 1_000 and reading.broker == 2, "it reads from broker 2")
        fill(brokers, "t", 500)
        reading.poll_until(lambda: len(reading.values) == 1_500, "it is given what comes")
        assert reading.broker == 2
        brokers.end(2, signal.SIGKILL)
        fill(brokers, "t", 500)
        reading.poll_until(lambda: len(reading.values) == 2_000 and reading.broker != 2, "it reads from another")
        assert reading.values == [*range(1_000), *range(500), *range(500)]
    finally:
        reading.close()
