"""Real clients push their metrics, and Apache Kafka answers the same to subscriptions and pushes (KIP-714)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from app.core.turns import whole
from app.records.compression import Codec, compress
from app.wire.apikeys import ApiKey
from app.wire.private import MetricsRequest, pack, unpack_metrics_steps
from loadtests.kafka_peer import kafka_running
from tests.interop.java_programs import SOURCES, JavaProgram, Tools
from tests.interop.peers import Peer, make, request
from tests.interop.serving import Raw, Served, create_topic, firn_serving, kafka_libs_or_skip
from tests.support.client_metrics import Pushed, metrics_data
from tests.support.waiting import block_until

pytestmark = pytest.mark.interop

CLIENT_METRICS = 16
CLIENT_METRICS_TOOL = "org.apache.kafka.tools.ClientMetricsCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
SET, DELETE, APPEND, SUBTRACT = range(4)
NOBODY = UUID(int=0)
PUSHED = metrics_data([Pushed("org.apache.kafka.producer.record.send.rate", 2.5)])
LONG_MS = "3600000"

Change = tuple[str, int, str | None]


def altered(raw: Raw, name: str, *changes: Change) -> int:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    configs = [
        make(key, "AlterableConfig", name=config, config_operation=operation, value=value)
        for config, operation, value in changes
    ]
    resource = make(key, "AlterConfigsResource", resource_type=CLIENT_METRICS, resource_name=name, configs=configs)
    return int(raw.ask(key, 1, request(key, resources=[resource])).responses[0].error_code)


def pushed(port: int) -> list[tuple[str, dict[str, str]]]:
    """Names and labels of the metrics of clients that a broker shows."""
    with Raw(port) as raw:
        told = whole(unpack_metrics_steps(raw.ask(ApiKey.FIRN_METRICS, 0, pack(MetricsRequest()))))
    return [(one.name, dict(one.labels)) for one in told.samples if one.name.startswith("kafka_client_")]


@pytest.fixture
def tools(jvm: JavaProgram, quiet: Served) -> Tools:
    return Tools(jvm, quiet)


@pytest.mark.ci
def test_librdkafka_pushes_what_it_is_asked_for(quiet: Served) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not here")
    create_topic(quiet.port, "by-librdkafka")
    with Raw(quiet.port) as raw:
        changes = [("metrics", SET, "org.apache.kafka.producer."), ("interval.ms", SET, "100")]
        assert altered(raw, "librdkafka", *changes, ("match", SET, "client_id=metered")) == 0
    producer = confluent_kafka.Producer({"bootstrap.servers": quiet.bootstrap, "client.id": "metered"})

    def connections() -> list[tuple[str, dict[str, str]]]:
        producer.produce("by-librdkafka", b"value")
        producer.flush(10)
        return [one for one in pushed(quiet.port) if one[1]["client_id"] == "metered"]

    block_until(connections, "librdkafka pushes")
    found = connections()
    assert "kafka_client_producer_connection_creation_rate" in {name for name, _ in found}
    assert all(name.startswith("kafka_client_producer_") for name, _ in found)
    assert {labels["client_software_name"] for _, labels in found} == {"confluent-kafka-python"}
    with Raw(quiet.port) as raw:
        assert altered(raw, "librdkafka", *((name, DELETE, None) for name in ("metrics", "interval.ms", "match"))) == 0


@pytest.mark.ci
def test_the_java_client_pushes_what_kafkas_tool_asks_for(tools: Tools, quiet: Served) -> None:
    create_topic(quiet.port, "by-java")
    made = tools(
        CLIENT_METRICS_TOOL,
        *("--alter", "--name", "java", "--interval", 100, "--match", "client_software_name=apache-kafka-java"),
        *("--metrics", "org.apache.kafka.producer.record.,org.apache.kafka.producer.connection."),
    )
    assert "Altered client metrics config for java." in made
    assert tools(CLIENT_METRICS_TOOL, "--list").split() == ["java"]
    described = tools(CLIENT_METRICS_TOOL, "--describe", "--name", "java")
    assert "interval.ms=100" in described
    assert "match=client_software_name=apache-kafka-java" in described
    sent = tools.run(
        PERFORMANCE,
        *("--topic", "by-java", "--num-records", 300, "--record-size", 100, "--throughput", 200),
        *("--bootstrap-server", quiet.bootstrap, "--command-property", "client.id=java-metered"),
    )
    assert sent.code == 0, sent
    found = [one for one in pushed(quiet.port) if one[1]["client_id"] == "java-metered"]
    names = {name for name, _ in found}
    assert {"kafka_client_producer_record_send_total", "kafka_client_producer_connection_creation_rate"} <= names
    assert all(
        name.startswith(("kafka_client_producer_record_", "kafka_client_producer_connection_")) for name in names
    )
    assert {labels["client_software_name"] for _, labels in found} == {"apache-kafka-java"}
    tools(CLIENT_METRICS_TOOL, "--delete", "--name", "java")
    assert tools(CLIENT_METRICS_TOOL, "--list").split() == []


# --- the same as Kafka ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Peer]]:
    libs = kafka_libs_or_skip()
    if shutil.which("javac") is None:
        pytest.skip("no Java compiler here")
    path = tmp_path_factory.mktemp("peers")
    classes = path / "classes"
    subprocess.run(["javac", "-cp", f"{libs}/*", "-d", classes, SOURCES / "Telemetry.java"], check=True)
    settings = {"metric.reporters": "Telemetry"}
    with (
        kafka_running(path / "kafka", settings=settings, classes=classes) as kafka,
        firn_serving(path) as firn,
    ):
        yield [Peer("Kafka", kafka.port), Peer("Firn", firn.port)]


def described(raw: Raw, name: str) -> Any:
    key = ApiKey.DESCRIBE_CONFIGS
    resource = make(
        key, "DescribeConfigsResource", resource_type=CLIENT_METRICS, resource_name=name, configuration_keys=None
    )
    [result] = raw.ask(key, 4, request(key, resources=[resource], include_synonyms=True)).results
    configs = [
        (
            one.name, one.value, one.read_only, one.config_source, one.is_sensitive, one.config_type,
            [(said.name, said.value, said.source) for said in one.synonyms],
        )
        for one in result.configs
    ]  # fmt: skip
    return result.error_code, sorted(configs)


def listed(raw: Raw, version: int) -> list[str]:
    key = ApiKey.LIST_CONFIG_RESOURCES
    asked = request(key, resource_types=[CLIENT_METRICS]) if version else request(key)
    return sorted(one.resource_name for one in raw.ask(key, version, asked).config_resources)


SETTINGS: list[tuple[str, list[Change]]] = [
    ("s", [("metrics", SET, "a.,b."), ("interval.ms", SET, LONG_MS)]),
    ("s", [("metrics", APPEND, "c.")]),
    ("s", [("metrics", SUBTRACT, "a.")]),
    ("s", [("match", SET, "client_id=x,client_software_name=apache-.*")]),
    ("s", [("match", SET, "client_id")]),
    ("s", [("match", SET, "client_id=a=b")]),
    ("s", [("match", SET, "client_id=")]),
    ("s", [("match", SET, "client_name=a")]),
    ("s", [("match", SET, "client_id=[")]),
    ("s", [("match", SET, " client_id = x , client_source_port = 1.* ")]),
    ("s", [("interval.ms", SET, "99")]),
    ("s", [("interval.ms", SET, "3600001")]),
    ("s", [("interval.ms", SET, "soon")]),
    ("s", [("interval.ms", SET, " 200 ")]),
    ("s", [("interval.ms", APPEND, "1")]),
    ("s", [("other", SET, "1")]),
    ("s", [("other", DELETE, None)]),
    ("s", [("metrics", SET, None)]),
    ("s", [("metrics", SET, "")]),
    ("", [("metrics", SET, "a.")]),
    ("s", [("match", DELETE, None), ("interval.ms", DELETE, None)]),
    ("none", [("metrics", DELETE, None)]),
    ("s", [("metrics", DELETE, None)]),
]


@pytest.mark.slow
def test_settings_of_subscriptions_are_answered_as_by_kafka(peers: list[Peer]) -> None:
    told = []
    for peer in peers:
        with Raw(peer.port) as raw:
            steps: list[Any] = []
            for name, changes in SETTINGS:
                code = altered(raw, name, *changes)
                steps.append((changes, code))
                if not code:
                    wait_for(peer, raw, name, changes)
                steps.append((changes, described(raw, name), listed(raw, 0), listed(raw, 1)))
            steps.append(described(raw, ""))
            told.append(steps)
    kafka, firn = told
    assert [pair for pair in zip(kafka, firn, strict=True) if pair[0] != pair[1]] == []


def wait_for(peer: Peer, raw: Raw, name: str, changes: list[Change]) -> None:
    """Kafka's broker learns of a change after it was answered: a second change says that it has come."""
    if peer.name == "Kafka":
        marker = f"marker-{len(changes)}-{abs(hash((name, *changes)))}"
        assert altered(raw, marker, ("metrics", SET, "x")) == 0
        block_until(lambda: marker in listed(raw, 0), "Kafka's broker has learnt of the change")
        assert altered(raw, marker, ("metrics", DELETE, None)) == 0
        block_until(lambda: marker not in listed(raw, 0), "Kafka's broker has learnt of the change")


def conversation(peer: Peer) -> list[Any]:
    """Subscriptions and pushes of one client after the other, and what is told of them."""
    told: list[Any] = []
    key, pushing = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY
    with Raw(peer.port) as raw:

        def get(label: str, instance_id: UUID = NOBODY) -> Any:
            answer = raw.ask(key, 0, request(key, client_instance_id=instance_id))
            fields = (
                answer.error_code, answer.push_interval_ms, answer.telemetry_max_bytes,
                sorted(answer.requested_metrics), answer.accepted_compression_types,
            )  # fmt: skip
            told.append((label, fields))
            return answer

        def push(label: str, known: Any, metrics: bytes = PUSHED, codec: int = 0, **more: Any) -> None:
            fields = {
                "client_instance_id": known.client_instance_id, "subscription_id": known.subscription_id,
                "terminating": False, "compression_type": codec, "metrics": metrics, **more,
            }  # fmt: skip
            told.append((label, raw.ask(pushing, 0, request(pushing, **fields)).error_code))

        first = get("without a subscription")
        push("nothing is asked for", first)
        push("too soon", first)
        push("the last one", first, terminating=True)
        push("after the last one", first)
        get("after the last one", first.client_instance_id)
        assert altered(raw, "s", ("metrics", SET, "org.apache.kafka.producer."), ("interval.ms", SET, LONG_MS)) == 0
        block_until(lambda: "s" in listed(raw, 0), f"{peer.name} knows the subscription")
        known = get("a new client")
        assert known.client_instance_id not in (NOBODY, first.client_instance_id)
        get("too soon", known.client_instance_id)
        push("another subscription", known, subscription_id=known.subscription_id ^ 1)
        again = get("again", known.client_instance_id)
        told.append(("the same subscription", again.subscription_id == known.subscription_id))
        for codec in Codec:
            one = get(f"for codec {codec}")
            push(f"codec {codec}", one, compress(codec, PUSHED), codec)
        one = get("for no codec")
        push("no codec", one, codec=9)
        get("after no codec", one.client_instance_id)
        one = get("for a long push")
        push("a long push", one, bytes((1 << 20) + 1))
        get("after a long push", one.client_instance_id)
        one = get("for an empty push")
        push("an empty push", one, b"")
        push("of nobody", one, client_instance_id=NOBODY)
        push("of a reserved id", one, client_instance_id=UUID(int=1))
        push("of an unknown client", one, client_instance_id=UUID(int=1 << 70))
        named = get("with an id of its own", UUID(int=0xABCDEF << 64 | 5))
        told.append(("keeps its id", named.client_instance_id == UUID(int=0xABCDEF << 64 | 5)))
        changed = get("before a change")
        assert altered(raw, "t", ("metrics", SET, "*"), ("interval.ms", SET, "60000")) == 0
        block_until(lambda: "t" in listed(raw, 0), f"{peer.name} knows the other subscription")
        push("after a change", changed)
        get("all metrics", changed.client_instance_id)
    return told


@pytest.mark.slow
def test_subscriptions_and_pushes_are_answered_as_by_kafka(peers: list[Peer]) -> None:
    kafka, firn = (conversation(peer) for peer in peers)
    assert firn == kafka
