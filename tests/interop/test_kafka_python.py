"""kafka-python: its producer, its consumer by assignment, its administration."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.serving import COLD_CONFIGS, Served, create_topic, wait_until_cold
from tests.support.waiting import block_until

kafka = pytest.importorskip("kafka", reason="kafka-python is not here")

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition  # noqa: E402
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic  # noqa: E402
from kafka.errors import TopicAlreadyExistsError  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("kafka_python_leftovers")]

TIMEOUT_S = 60
MIDDAY = 1_700_000_000_000


def send(firn: Served, topic: str, values: list[bytes], **settings: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=firn.bootstrap, **settings)
    try:
        waiting = [
            producer.send(topic, value, key=b"k%d" % n, timestamp_ms=MIDDAY + n, headers=[("n", b"%d" % n)])
            for n, value in enumerate(values)
        ]
        producer.flush(TIMEOUT_S)
        for future in waiting:
            future.get(TIMEOUT_S)
    finally:
        producer.close(TIMEOUT_S)


@pytest.fixture
def consumer(quiet: Served) -> Iterator[KafkaConsumer]:
    made = KafkaConsumer(
        bootstrap_servers=quiet.bootstrap, auto_offset_reset="none", consumer_timeout_ms=TIMEOUT_S * 1000
    )
    try:
        yield made
    finally:
        made.close()


def read(consumer: KafkaConsumer, topic: str, offset: int, count: int) -> list[Any]:
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, offset)
    found = []
    for record in consumer:
        found.append(record)
        if len(found) == count:
            break
    assert len(found) == count
    return found


@pytest.mark.ci
@pytest.mark.parametrize("codec", [None, "gzip", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_records_come_back_as_they_went(
    quiet: Served, consumer: KafkaConsumer, codec: str | None, idempotent: bool
) -> None:
    topic = f"kp-{codec}-{idempotent}"
    create_topic(quiet.port, topic)
    values = [b"value %d " % n * 10 for n in range(200)]
    send(quiet, topic, values, compression_type=codec, enable_idempotence=idempotent, linger_ms=5)
    found = read(consumer, topic, 0, 200)
    assert [(record.offset, record.key, record.value) for record in found] == [
        (n, b"k%d" % n, value) for n, value in enumerate(values)
    ]
    assert [record.timestamp for record in found] == [MIDDAY + n for n in range(200)]
    assert list(found[7].headers) == [("n", b"7")]


@pytest.mark.ci
def test_no_acks_are_stored_too(quiet: Served, consumer: KafkaConsumer) -> None:
    create_topic(quiet.port, "kp-acks-0")
    send(quiet, "kp-acks-0", [b"a", b"b"], acks=0, enable_idempotence=False)
    assert [record.value for record in read(consumer, "kp-acks-0", 0, 2)] == [b"a", b"b"]


@pytest.mark.ci
def test_history_is_read_and_found_by_time_in_the_store(quiet: Served, consumer: KafkaConsumer) -> None:
    create_topic(quiet.port, "kp-cold", configs=COLD_CONFIGS)
    chance = random.Random(3)
    values = [chance.randbytes(20_000) for _ in range(200)]
    send(quiet, "kp-cold", values)
    local_start = wait_until_cold(quiet, "kp-cold")
    assert [record.value for record in read(consumer, "kp-cold", 0, 200)] == values
    partition = TopicPartition("kp-cold", 0)
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 200}
    for n in {0, local_start - 1, local_start, 199}:
        found = consumer.offsets_for_times({partition: MIDDAY + n})
        assert (found[partition].offset, found[partition].timestamp) == (n, MIDDAY + n)


@pytest.mark.ci
def test_topics_and_configs_are_administered(quiet: Served) -> None:
    admin = KafkaAdminClient(bootstrap_servers=quiet.bootstrap)
    try:
        admin.create_topics([NewTopic("kp-life", 2, 1, topic_configs={"retention.ms": "9000"})])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([NewTopic("kp-life", 2, 1)])
        assert "kp-life" in admin.list_topics()
        admin.create_partitions({"kp-life": NewPartitions(4)})
        (described,) = admin.describe_topics(["kp-life"])
        assert len(described["partitions"]) == 4
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "kp-life", {"retention.ms": "8000"})])
        assert "8000" in str(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "kp-life")]))
        assert len(admin.describe_cluster()["brokers"]) == 1
        send(quiet, "kp-life", [b"a"] * 40)
        admin.delete_records({TopicPartition("kp-life", 0): 1})
        admin.delete_topics(["kp-life"])
        assert "kp-life" not in admin.list_topics()
    finally:
        admin.close()


def members(firn: Served, group_id: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=firn.bootstrap)
    try:
        return len(admin.describe_groups([group_id])[group_id]["members"])
    finally:
        admin.close()


@pytest.mark.ci
def test_a_group_that_subscribes_waits_without_wearing_the_broker_out(quiet: Served) -> None:
    create_topic(quiet.port, "kp-group")
    consumer = KafkaConsumer("kp-group", bootstrap_servers=quiet.bootstrap, group_id="g")
    try:
        before = quiet.cpu_s()
        assert consumer.poll(2000) == {}
        assert quiet.cpu_s() - before < 1

        def joined() -> bool:
            return consumer.poll(100) == {} and members(quiet, "g") == 1

        block_until(joined, "the consumer is in its group")
    finally:
        consumer.close()
    assert members(quiet, "g") == 0, "who closes leaves the group at once"
