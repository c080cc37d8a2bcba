"""A compacted topic as real clients meet it: they write, the broker compacts beside them, they read the newest of every key."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from app.demo import sizes_of
from tests.interop.serving import Served, create_topic, firn_serving, kafka_libs_or_skip
from tests.support.waiting import block_until

pytestmark = pytest.mark.interop

CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
KEYS = 300


@pytest.fixture(scope="module")
def firn(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with firn_serving(tmp_path_factory.mktemp("firn"), *how, log_cleaner_backoff_ms=100) as served:
        yield served
    assert not served.troubles


def size_of(firn: Served, topic: str) -> int:
    return sum(sizes_of((firn.data_dir / f"{topic}-0").glob("*.log")))


def read_all(firn: Served, topic: str, isolation: str) -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": firn.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while True:
            message = consumer.poll(60)
            assert message is not None, "no message and no end within 60 s"
            error = message.error()
            if error is not None:
                if error.name() == "_PARTITION_EOF":
                    return found
                raise KafkaException(error)
            found.append((message.key(), message.value()))
    finally:
        consumer.close()


@pytest.mark.ci
def test_clients_read_the_newest_record_of_every_key_of_a_compacted_topic(firn: Served) -> None:
    create_topic(firn.port, "table", configs=CONFIGS)
    producer = Producer(
        {"bootstrap.servers": firn.bootstrap, "transactional.id": "writer", "compression.type": "lz4", "linger.ms": 5}
    )
    producer.init_transactions(60)
    rng = random.Random(1)
    table: dict[bytes, bytes] = {}
    written = 0
    for number in range(30):
        producer.begin_transaction()
        changes: dict[bytes, bytes | None] = {}
        for _ in range(200):
            key = b"key-%d" % rng.randrange(KEYS)
            value = None if rng.random() < 0.1 else b"%d-" % number + rng.randbytes(500).hex().encode()
            producer.produce("table", value, key)
            changes[key] = value
            written += 1
        if number % 4 == 3:
            producer.abort_transaction(60)
            continue
        producer.commit_transaction(60)
        table.update({key: value for key, value in changes.items() if value is not None})
        for key in [key for key, value in changes.items() if value is None]:
            table.pop(key, None)
    before = 30 * 200 * 1000
    block_until(lambda: size_of(firn, "table") < before / 4, "the topic is compacted", 90)

    committed = read_all(firn, "table", "read_committed")
    assert {key: value for key, value in dict(committed).items() if value is not None} == table
    assert len(committed) < written / 3
    everything = read_all(firn, "table", "read_uncommitted")
    assert len(everything) < written / 3
    assert newest_by_java(firn, "table", len(committed)) == table


def newest_by_java(firn: Served, topic: str, count: int) -> dict[bytes, bytes]:
    """The table that Kafka's console consumer makes of ``count`` messages."""
    libs = kafka_libs_or_skip()
    assert shutil.which("java") is not None
    run = subprocess.run(
        [
            *("java", "-XX:TieredStopAtLevel=1", "-cp", f"{libs}/*", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
            *("--bootstrap-server", firn.bootstrap, "--topic", topic, "--partition", "0", "--offset", "earliest"),
            *("--timeout-ms", "60000", "--max-messages", str(count), "--isolation-level", "read_committed"),
            *("--formatter-property", "null.literal=NULL"),
            *("--formatter-property", "print.key=true", "--formatter-property", "key.separator=|"),
        ],
        capture_output=True,
        timeout=180,
        check=False,
        cwd=Path(libs),
    )
    table: dict[bytes, bytes] = {}
    for line in run.stdout.splitlines():
        key, _, value = line.partition(b"|")
        if value == b"NULL":
            table.pop(key, None)
        else:
            table[key] = value
    assert table, run.stderr.decode()
    return table


def test_a_producer_is_told_that_a_compacted_topic_needs_keys(firn: Served) -> None:
    create_topic(firn.port, "keys", configs=CONFIGS)
    told = []
    producer = Producer({"bootstrap.servers": firn.bootstrap})
    producer.produce("keys", b"value", on_delivery=lambda error, _: told.append(error))
    producer.flush(60)
    assert [error.name() for error in told] == ["INVALID_RECORD"]
