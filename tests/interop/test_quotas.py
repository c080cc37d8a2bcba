"""Quotas on three brokers: set by Kafka's tool, and kept by librdkafka's producers and consumers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from app.metadata.image.cluster import LEVEL_FEATURE, SECURITY_LEVEL
from tests.interop.java_programs import JavaProgram, Tools
from tests.support.cluster import NODES, WAIT_S, Brokers, brokers_running, seen
from tests.support.waiting import block_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FEATURES = "org.apache.kafka.tools.FeatureCommand"
CONFIGS = "kafka.admin.ConfigCommand"
RATE = 400_000
"""Bytes a second on each broker."""
SECONDS = 30.0
VALUE = b"x" * 16_000


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with brokers_running(tmp_path_factory.mktemp("brokers")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(brokers: Brokers) -> AdminClient:
    client = AdminClient({"bootstrap.servers": brokers.bootstrap})
    block_until(lambda: len(seen(client).brokers) == len(NODES), "three brokers are in the cluster")
    return client


@pytest.fixture
def tools(jvm: JavaProgram, brokers: Brokers, admin: AdminClient) -> Tools:
    tools = Tools(jvm, brokers)  # type: ignore[arg-type] # it has a bootstrap, too
    described = tools(FEATURES, "describe")
    if not re.search(rf"{LEVEL_FEATURE}\b.*FinalizedVersionLevel: {SECURITY_LEVEL}", described):
        tools(FEATURES, "upgrade", "--feature", f"{LEVEL_FEATURE}={SECURITY_LEVEL}")
    return tools


def test_kafka_configs_sets_describes_and_removes_quotas_of_every_entity(tools: Tools, admin: AdminClient) -> None:
    for entity, limit in (
        (("--entity-type", "users", "--entity-name", "alice"), "producer_byte_rate=1000"),
        (("--entity-type", "users", "--entity-default"), "request_percentage=50.5"),
        (("--entity-type", "clients", "--entity-name", "app"), "consumer_byte_rate=2000"),
        (("--entity-type", "clients", "--entity-default"), "controller_mutation_rate=1.5"),
        (
            ("--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-name", "app"),
            "consumer_byte_rate=3000",
        ),
        (("--entity-type", "ips", "--entity-name", "10.0.0.1"), "connection_creation_rate=5"),
        (("--entity-type", "ips", "--entity-default"), "connection_creation_rate=50"),
    ):
        assert "Completed updating" in tools(CONFIGS, "--alter", *entity, "--add-config", limit)
        key, _, value = limit.partition("=")
        assert f"{key}={float(value)}" in tools(CONFIGS, "--describe", *entity)
        tools(CONFIGS, "--alter", *entity, "--delete-config", key)
        assert key not in tools(CONFIGS, "--describe", *entity)


def test_kafka_configs_alters_limits_of_connections_while_brokers_run(tools: Tools, admin: AdminClient) -> None:
    del admin
    for entity, limit in (
        (("--entity-type", "brokers", "--entity-default"), "max.connections.per.ip=1000"),
        (("--entity-type", "brokers", "--entity-name", str(NODES[0])), "max.connection.creation.rate=500"),
        (("--entity-type", "brokers", "--entity-default"), "listener.name.plaintext.max.connections=900"),
        (
            ("--entity-type", "brokers", "--entity-name", str(NODES[0])),
            "listener.name.plaintext.max.connection.creation.rate=400",
        ),
    ):
        assert "Completed updating" in tools(CONFIGS, "--alter", *entity, "--add-config", limit)
        assert limit in tools(CONFIGS, "--describe", *entity)
        key, _, _ = limit.partition("=")
        tools(CONFIGS, "--alter", *entity, "--delete-config", key)
        assert limit not in tools(CONFIGS, "--describe", *entity)


@pytest.mark.parametrize("leaders", [1, 3])
def test_rates_hold_within_5_percent_over_30_seconds_on_each_broker(
    tools: Tools, admin: AdminClient, brokers: Brokers, leaders: int
) -> None:
    topic = f"limited-{leaders}"
    placed = NewTopic(topic, leaders, replica_assignment=[[NODES[index]] for index in range(leaders)])
    admin.create_topics([placed])[topic].result(WAIT_S)
    entity = ("--entity-type", "clients", "--entity-name", topic)
    limits = f"producer_byte_rate={RATE},consumer_byte_rate={RATE}"
    tools(CONFIGS, "--alter", *entity, "--add-config", limits)
    written = produced(brokers, topic, leaders)
    read = consumed(brokers, topic, leaders)
    for rate in (written, read):
        assert RATE * leaders * 0.95 < rate < RATE * leaders * 1.05, (written, read)


def produced(brokers: Brokers, topic: str, leaders: int) -> float:
    """Bytes a second that were acknowledged over 30 s, after the burst of a first second."""
    acknowledged = 0

    def done(error: object, message: object) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += len(VALUE)

    producer = Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "client.id": topic,
            "linger.ms": 0,
            "batch.size": 20_000,
            "queue.buffering.max.messages": 50 * leaders,
            "message.timeout.ms": 120_000,
        }
    )
    began = counted_from = time.monotonic()
    before = number = 0
    while (now := time.monotonic()) < began + SECONDS + 3:
        if counted_from == began and now >= began + 3:
            counted_from, before = now, acknowledged
        try:
            producer.produce(topic, VALUE, partition=number % leaders, on_delivery=done)
            number += 1
        except BufferError:
            producer.poll(0.01)
        producer.poll(0)
    rate = (acknowledged - before) / (time.monotonic() - counted_from)
    producer.flush(WAIT_S)
    return rate


def consumed(brokers: Brokers, topic: str, leaders: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "client.id": topic,
            "group.id": topic,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "fetch.message.max.bytes": 50_000,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(leaders)])
    began = counted_from = time.monotonic()
    read = before = 0
    while (now := time.monotonic()) < began + SECONDS + 3:
        if counted_from == began and now >= began + 3:
            counted_from, before = now, read
        message = consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            read += len(message.value())
            if message.offset() % 500 == 499:  # what was written is soon read: begin again
                consumer.seek(TopicPartition(topic, message.partition(), 0))
    rate = (read - before) / (time.monotonic() - counted_from)
    consumer.close()
    return rate
