"""Quotas on three brokers: set by Kafka's tool, and kept by librdkafka's producers and consumers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL
from tests.interop.java_programs import JavaProgram, Tools
from tests.interop.throttled import consumed, produced
from tests.support.cluster import NODES, WAIT_S, Brokers, brokers_running, seen
from tests.support.waiting import block_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FEATURES = "org.apache.kafka.tools.FeatureCommand"
CONFIGS = "kafka.admin.ConfigCommand"
RATE = 400_000
"""Bytes a second on each broker."""


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
