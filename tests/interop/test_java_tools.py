"""Kafka's own command-line tools, and with them the Java client: topics, configs, offsets, records, files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.wire.apikeys import ApiKey
from tests.interop.java_programs import JavaProgram, Tools
from tests.interop.peers import request
from tests.interop.serving import (
    COLD_CONFIGS,
    EARLIEST_LOCAL,
    FACTOR,
    Raw,
    Served,
    create_topic,
    offset_of,
    wait_until_cold,
)
from tests.interop.tools import CONFIGS, CONSUMER, DUMP, GROUPS, TOPICS

pytestmark = pytest.mark.interop

OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"


@pytest.fixture
def tools(jvm: JavaProgram, quiet: Served) -> Tools:
    return Tools(jvm, quiet)


def consumed(tools: Tools, topic: str, offset: int | str, count: int, *more: object, partition: int = 0) -> str:
    return tools(
        CONSUMER,
        *("--topic", topic, "--partition", partition, "--offset", offset),
        *("--max-messages", count, "--timeout-ms", 60000, *more),
    )


@pytest.mark.ci
def test_settings_that_kafka_takes_are_taken_kept_and_described(tools: Tools) -> None:
    broker = ("--entity-type", "brokers", "--entity-name", 1)
    name = "sasl.kerberos.min.time.before.relogin"
    assert "Completed updating config" in tools(CONFIGS, *broker, "--alter", "--add-config", f"{name}=61000")
    assert f"{name}=61000" in tools(CONFIGS, *broker, "--describe")
    tools(CONFIGS, *broker, "--alter", "--delete-config", name)
    assert name not in tools(CONFIGS, *broker, "--describe")
    tools(TOPICS, "--create", "--topic", "compacts")
    topic = ("--entity-type", "topics", "--entity-name", "compacts")
    assert "Completed updating config" in tools(CONFIGS, *topic, "--alter", "--add-config", "cleanup.policy=compact")
    assert "cleanup.policy=compact" in tools(CONFIGS, *topic, "--describe")


def test_topics_are_made_described_grown_listed_and_deleted(tools: Tools) -> None:
    made = tools(TOPICS, "--create", "--topic", "life", "--partitions", 3, "--config", "retention.ms=90000")
    assert "Created topic life." in made
    again = tools.run(TOPICS, "--bootstrap-server", tools.firn.bootstrap, "--create", "--topic", "life")
    assert again.code == 1
    assert "Topic 'life' already exists." in again.out
    assert tools(TOPICS, "--create", "--if-not-exists", "--topic", "life") == ""
    described = tools(TOPICS, "--describe", "--topic", "life")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=90000", described)
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 3
    tools(TOPICS, "--alter", "--topic", "life", "--partitions", 5)
    assert "PartitionCount: 5" in tools(TOPICS, "--describe", "--topic", "life")
    fewer = tools.run(
        TOPICS, "--bootstrap-server", tools.firn.bootstrap, "--alter", "--topic", "life", "--partitions", 2
    )
    assert fewer.code == 1
    assert "life" in tools(TOPICS, "--list").split()
    assert tools(TOPICS, "--describe", "--under-replicated-partitions") == ""
    assert tools(TOPICS, "--describe", "--unavailable-partitions") == ""
    tools(TOPICS, "--delete", "--topic", "life")
    assert "life" not in tools(TOPICS, "--list").split()


def test_a_topic_that_cannot_be_made_is_refused_with_a_sentence(tools: Tools, how: Sequence[str]) -> None:
    def refusal(*arguments: object) -> str:
        done = tools.run(TOPICS, "--bootstrap-server", tools.firn.bootstrap, "--create", *arguments)
        assert done.code == 1
        return done.out + done.error

    assert "soon" in refusal("--topic", "no", "--config", "retention.ms=soon")
    if not how:
        assert "eplication factor" in refusal("--topic", "no", "--replication-factor", FACTOR)
    assert "topic name is not valid" in refusal("--topic", "a b")


def test_a_topic_in_the_object_store_has_one_replica_and_lacks_none_whatever_was_asked_for(
    tools: Tools, how: Sequence[str]
) -> None:
    if not how:
        pytest.skip("of topics with object durability")
    tools(TOPICS, "--create", "--topic", "wanted", "--partitions", 2, "--replication-factor", FACTOR)
    described = tools(TOPICS, "--describe", "--topic", "wanted")
    assert re.search(r"PartitionCount: 2\s+ReplicationFactor: 1\s+Configs: .*firn.durability=object", described)
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 2
    tools(GROUPS, "--list")
    with Raw(tools.firn.port) as raw:  # so that all three internal topics are there
        for kind in (0, 1, 2):
            key = "g:AAAAAAAAAAAAAAAAAAAAAQ:0" if kind == 2 else "x"
            raw.ask(ApiKey.FIND_COORDINATOR, 6, request(ApiKey.FIND_COORDINATOR, key_type=kind, coordinator_keys=[key]))
    assert {"__consumer_offsets", "__transaction_state"} <= set(tools(TOPICS, "--list").split())
    assert tools(TOPICS, "--describe", "--under-min-isr-partitions") == ""
    assert tools(TOPICS, "--describe", "--under-replicated-partitions") == ""
    assert tools(TOPICS, "--describe", "--unavailable-partitions") == ""
    for name in ("wanted", "__consumer_offsets", "__transaction_state"):
        shown = tools(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", name)
        assert "firn.durability=object" in shown, shown
        assert "min.insync.replicas" not in shown, shown


def test_configs_of_topics_and_brokers_are_described_and_altered(tools: Tools) -> None:
    create_topic(tools.firn.port, "configured")
    entity = ("--entity-type", "topics", "--entity-name", "configured")
    tools(CONFIGS, "--alter", *entity, "--add-config", "max.message.bytes=5000,cleanup.policy=[delete]")
    described = tools(CONFIGS, "--describe", *entity)
    assert re.search(
        r"max.message.bytes=5000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:max.message.bytes=5000", described
    )
    everything = tools(CONFIGS, "--describe", "--all", *entity)
    assert (
        "segment.bytes=1073741824 sensitive=false synonyms={DEFAULT_CONFIG:log.segment.bytes=1073741824}" in everything
    )
    tools(CONFIGS, "--alter", *entity, "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in tools(CONFIGS, "--describe", *entity)
    assert "node.id=1" in tools(CONFIGS, "--describe", "--all", "--entity-type", "brokers", "--entity-name", 1)
    tools(
        CONFIGS, "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.segment.bytes=2000000"
    )
    assert "segment.bytes=2000000" in tools(CONFIGS, "--describe", "--all", *entity)
    tools(CONFIGS, "--alter", "--entity-type", "brokers", "--entity-default", "--delete-config", "log.segment.bytes")
    unknown = ("--alter", *entity, "--add-config", "no.such=1")
    assert tools.run(CONFIGS, "--bootstrap-server", tools.firn.bootstrap, *unknown).code == 1


@pytest.mark.ci
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_go_in_and_come_out(tools: Tools, codec: str) -> None:
    topic = f"console-{codec}"
    create_topic(tools.firn.port, topic)
    given = "".join(f"a:1,b:2\tk{n}\tvalue {n}\n" for n in range(100))
    tools(
        PRODUCER,
        *("--topic", topic, "--compression-codec", codec, "--reader-property", "parse.key=true"),
        *("--reader-property", "parse.headers=true"),
        given=given,
    )
    show = [("--formatter-property", f"print.{what}=true") for what in ("key", "headers", "offset", "timestamp")]
    lines = consumed(tools, topic, "earliest", 100, *(word for pair in show for word in pair)).splitlines()
    assert len(lines) == 100
    assert re.fullmatch(r"CreateTime:\d+\tOffset:7\ta:1,b:2\tk7\tvalue 7", lines[7])
    assert consumed(tools, topic, 98, 2) == "value 98\nvalue 99\n"


def test_a_producer_that_waits_for_nobody_is_heard(tools: Tools) -> None:
    create_topic(tools.firn.port, "unacknowledged")
    tools(PRODUCER, "--topic", "unacknowledged", "--request-required-acks", 0, given="a\nb\n")
    assert consumed(tools, "unacknowledged", 0, 2) == "a\nb\n"


@pytest.fixture(scope="module")
def cold(jvm: JavaProgram, firn: Served) -> int:
    """A topic of 6000 records most of which have left the local disk; its first local offset."""
    create_topic(firn.port, "cold", configs=COLD_CONFIGS)
    tools = Tools(jvm, firn)
    done = tools.run(
        PERFORMANCE,
        *("--topic", "cold", "--num-records", 6000, "--record-size", 1000, "--throughput", -1),
        *("--producer-props", f"bootstrap.servers={firn.bootstrap}", "acks=all", "batch.size=65536"),
    )
    assert done.code == 0, done
    assert "6000 records sent" in done.out
    return wait_until_cold(firn, "cold")


@pytest.mark.ci
def test_history_is_read_from_the_store(tools: Tools, cold: int) -> None:
    assert cold > 0
    lines = consumed(tools, "cold", 0, 6000).splitlines()
    assert len(lines) == 6000
    assert {len(line) for line in lines} == {1000}


def test_offsets_of_places_and_times_are_told(tools: Tools, cold: int) -> None:
    def told(time: object) -> int:
        out = tools(OFFSETS, "--topic", "cold", "--time", time)
        assert out.startswith("cold:0:"), out
        return int(out.strip().rpartition(":")[2])

    assert [told(time) for time in (-1, "latest")] == [6000] * 2
    assert [told(time) for time in (-2, "earliest")] == [0] * 2
    assert [told(time) for time in (-4, "earliest-local")] == [offset_of(tools.firn.port, "cold", EARLIEST_LOCAL)] * 2
    assert [told(time) for time in (-5, "latest-tiered")] == [cold - 1] * 2
    assert 0 <= told(-3) < 6000
    assert told(0) == 0
    assert tools(OFFSETS, "--topic", "cold", "--time", 1 << 60) == ""


def test_records_are_deleted_up_to_an_offset(tools: Tools, tmp_path: Path) -> None:
    create_topic(tools.firn.port, "shortened")
    tools(PRODUCER, "--topic", "shortened", given="".join(f"{n}\n" for n in range(20)))
    wanted = tmp_path / "offsets.json"
    partition = {"topic": "shortened", "partition": 0, "offset": 8}
    wanted.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    assert "low_watermark: 8" in tools(DELETE_RECORDS, "--offset-json-file", wanted)
    assert consumed(tools, "shortened", "earliest", 1) == "8\n"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{**partition, "offset": 21}]}))
    assert "OffsetOutOfRange" in tools(DELETE_RECORDS, "--offset-json-file", wanted)


def test_the_log_directory_is_described(tools: Tools) -> None:
    create_topic(tools.firn.port, "sized", 2)
    tools(PRODUCER, "--topic", "sized", given="hello\n")
    out = tools(LOG_DIRS, "--describe", "--topic-list", "sized")
    (broker,) = json.loads(out.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    assert (broker["broker"], directory["error"]) == (1, None)
    sizes = {partition["partition"]: partition["size"] for partition in directory["partitions"]}
    assert set(sizes) == {"sized-0", "sized-1"}
    assert sum(sizes.values()) > 60


def test_the_versions_of_every_api_are_told(tools: Tools) -> None:
    out = tools(VERSIONS)
    assert f"127.0.0.1:{tools.firn.port} (id: 1 rack: null" in out
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: 13\]", out)
    assert re.search(r"Fetch\(1\): 4 to 18 \[usable: 18\]", out)


def test_the_cluster_is_described(tools: Tools) -> None:
    done = tools.run(CLUSTER, "cluster-id", "--bootstrap-server", tools.firn.bootstrap)
    assert re.search(r"Cluster ID: [\w-]{22}\n", done.out)
    done = tools.run(CLUSTER, "list-endpoints", "--bootstrap-server", tools.firn.bootstrap)
    assert str(tools.firn.port) in done.out


def test_kafkas_dump_reads_our_files(tools: Tools, how: Sequence[str]) -> None:
    local = {} if how else {"remote.storage.enable": "false"}
    create_topic(tools.firn.port, "dumped", configs={"segment.bytes": "1048576", **local})
    done = tools.run(
        PERFORMANCE,
        *("--topic", "dumped", "--num-records", 3000, "--record-size", 1000, "--throughput", -1),
        *("--producer-props", f"bootstrap.servers={tools.firn.bootstrap}", "enable.idempotence=true", "acks=all"),
    )
    assert done.code == 0, done
    directory = tools.firn.data_dir / "dumped-0"
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 1
    count = 0
    for log in logs:
        out = tools.run(DUMP, "--files", log, "--deep-iteration")
        assert out.code == 0, out
        assert f"Log starting offset: {int(log.stem)}" in out.out
        assert "isvalid: false" not in out.out
        count += out.out.count("| offset:")
    assert count == 3000
    for file in sorted([*directory.glob("*.index"), *directory.glob("*.timeindex")]):
        out = tools.run(DUMP, "--files", file)
        assert out.code == 0, out
        assert not re.search(r"[Mm]ismatch|[Nn]ot found|out of order|invalid", out.out + out.error), out
        assert re.search(r"offset: \d+", out.out) or int(file.stem) == int(logs[-1].stem), out
    snapshots = sorted(directory.glob("*.snapshot"))
    assert snapshots
    out = tools.run(DUMP, "--files", snapshots[-1])
    assert out.code == 0, out
    assert re.search(r"producerId: \d+ producerEpoch: 0", out.out), out
