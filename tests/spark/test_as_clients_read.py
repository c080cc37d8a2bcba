"""What Spark reads is what a Kafka client consumes, record for record: a broker, librdkafka, and every kind of topic."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from pyspark_firn.options import parse_read_options
from pyspark_firn.session import StoreSession
from pyspark_firn.snapshot import TopicPartitionState, take_snapshot
from tests.faults.served import Served, serving
from tests.interop.serving import create_topic
from tests.spark.reference import Row
from tests.spark.sessions import SparkSession, collected
from tests.support.waiting import block_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

NOON_MS = 1_700_000_000_000
TIMEOUT_S = 30
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "leader_epoch")
TIERED = {"segment.bytes": "1048576", "firn.tier.chunk.bytes": "65536", "firn.tier.max.lag.ms": "3600000"}
TOPICS = {
    "plain": {**TIERED, "firn.tier.compression": "zstd"},
    "cold": {**TIERED, "local.retention.bytes": "0"},
    "stamped": {**TIERED, "message.timestamp.type": "LogAppendTime"},
    "ledger": TIERED,
    "table": {
        "segment.bytes": "1048576",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
    },
}
PARTITIONS = 2
STARTS = 3
"""Of the broker, which is killed between them, so that leader epochs rise."""
TRANSACTIONS = 10
"""Of each transactional producer after each start."""


# --- writing --------------------------------------------------------------------------------------------------------


def producer(broker: Served, **settings: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "log_level": 2, **named})


def send(made: Producer, topic: str, rng: random.Random, count: int, keys: int = 50) -> None:
    """Records of every shape: with and without key, value and headers, long and empty."""
    for number in range(count):
        key = (
            rng.choice([None, b"", b"key-%d" % rng.randrange(keys)])
            if topic != "table"
            else b"%d" % rng.randrange(keys)
        )
        value = rng.choice([None, b"", b"text " * rng.randrange(200), rng.randbytes(rng.randrange(8000))])
        headers = rng.choice([None, [], [("h", b"1")], [("twice", b"1"), ("twice", None), ("leer", b"")]])
        made.produce(
            topic,
            value,
            key,
            partition=rng.randrange(PARTITIONS),
            headers=headers,
            timestamp=NOON_MS + rng.randrange(10_000_000),
            on_delivery=delivered,
        )
        if number % 100 == 99:
            made.poll(0)


def delivered(error: KafkaError | None, message: Message) -> None:
    assert error is None, error


def flush(made: Producer) -> None:
    assert made.flush(TIMEOUT_S) == 0


def write(broker: Served, rng: random.Random) -> None:
    for codec in CODECS:
        made = producer(
            broker, compression_type=codec, enable_idempotence=codec in ("lz4", "none"), batch_num_messages=40
        )
        for topic in ("plain", "cold", "stamped", "table"):
            send(made, topic, rng, 400)
        flush(made)
    writers = [producer(broker, compression_type=codec, transactional_id=codec) for codec in ("none", "zstd", "lz4")]
    for made in writers:
        made.init_transactions(TIMEOUT_S)
    beside = producer(broker)
    for _ in range(TRANSACTIONS):
        # They overlap, and each ends in its own way.
        for made in writers:
            made.begin_transaction()
            send(made, "ledger", rng, 60)
            send(made, "table", rng, 20)
            send(beside, "ledger", rng, 10)
            flush(made)
        for made in rng.sample(writers, len(writers)):
            if rng.random() < 0.4:
                made.abort_transaction(TIMEOUT_S)
            else:
                made.commit_transaction(TIMEOUT_S)
    flush(beside)


# --- reading --------------------------------------------------------------------------------------------------------


def consumed(broker: Served, isolation: str) -> list[Row]:
    """Every record of every topic, by the client."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": isolation,
        }
    )
    try:
        wanted = [TopicPartition(topic, index, 0) for topic in TOPICS for index in range(PARTITIONS)]
        consumer.assign(wanted)
        rows: list[Row] = []
        ended: set[tuple[str, int]] = set()
        deadline = time.monotonic() + TIMEOUT_S
        while len(ended) < len(wanted):
            messages = consumer.consume(1000, 0.5)
            if messages:
                deadline = time.monotonic() + TIMEOUT_S
            assert time.monotonic() < deadline, f"no message and no end within {TIMEOUT_S} s"
            for message in messages:
                error = message.error()
                if error is None:
                    rows.append(row_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add((message.topic(), message.partition()))
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return ordered(rows)


def row_of(message: Message) -> Row:
    kind, timestamp = message.timestamp()
    headers = [{"key": name, "value": value} for name, value in message.headers() or ()]
    return {
        "key": message.key(),
        "value": message.value(),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp,
        "timestampType": 1 if kind == TIMESTAMP_LOG_APPEND_TIME else 0,
        "headers": headers or None,
        "leader_epoch": message.leader_epoch(),
    }


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def by_spark(spark: SparkSession, store: str, isolation: str, **options: str) -> list[Row]:
    frame = (
        spark.read.format("firn")
        .option("store", store)
        .option("subscribe", ",".join(TOPICS))
        .option("columns", ",".join(COLUMNS))
        .option("isolation", isolation)
        .option("splitBytes", "1m")
        .options(**options)
        .load()
    )
    return ordered(collected(frame))


def tiered(store: str) -> list[TopicPartitionState]:
    """What the manifests say of every partition."""
    options = parse_read_options({"store": store, "subscribe": ",".join(TOPICS)}, streaming=False)
    with StoreSession(store) as opened:
        return opened.run(take_snapshot(opened, options)).partitions


def is_tiered(one: TopicPartitionState) -> bool:
    return one.topic == "table" or len(one.state.finished) >= 2


def test_spark_reads_what_a_client_consumes(spark: SparkSession, tmp_path: Path) -> None:
    settings = {
        "remote.log.manager.task.interval.ms": 100,
        "log.cleaner.backoff.ms": 100,
        "log.retention.ms": -1,
        "num.partitions": PARTITIONS,
    }
    rng = random.Random(6)
    with serving(tmp_path, settings=settings) as broker:
        for topic, configs in TOPICS.items():
            create_topic(broker.port, topic, PARTITIONS, configs)
        for start in range(STARTS):
            if start:
                broker.kill()
                broker.start()
            write(broker, rng)
        block_until(lambda: all(is_tiered(one) for one in tiered(broker.store)), "every topic is tiered", 60)
        read: dict[str, list[Row]] = {}
        for isolation in ("read_committed", "read_uncommitted"):
            # Compaction goes on beside: what is compared stood still while it was read.
            for _ in range(10):
                before = consumed(broker, isolation)
                found = by_spark(spark, broker.store, isolation, tail=broker.bootstrap)
                if before == consumed(broker, isolation):
                    break
            else:
                raise AssertionError("the topics do not come to rest")
            assert found == before
            read[isolation] = before
        stored = {(one.topic, int(one.partition.partition)): one for one in tiered(broker.store)}
        broker.stop()
        # The bucket alone: what was tiered, and not a record more.
        for isolation, rows in read.items():
            assert by_spark(spark, broker.store, isolation) == [
                row for row in rows if row["offset"] < stored[row["topic"], row["partition"]].state.tiered_end
            ]
        broker.check_no_bug()

    # That the topics were what they were meant to be.
    everything = read["read_uncommitted"]
    assert len(everything) > 10_000
    in_ledger = {isolation: sum(row["topic"] == "ledger" for row in rows) for isolation, rows in read.items()}
    assert 1000 < in_ledger["read_committed"] < in_ledger["read_uncommitted"]
    # Compaction may leave nothing of an early epoch.
    epochs = {topic: {row["leader_epoch"] for row in everything if row["topic"] == topic} for topic in TOPICS}
    assert all(len(found) >= STARTS for topic, found in epochs.items() if topic != "table"), epochs
    assert any(entry.chunk_count > 4 for one in stored.values() for entry in one.state.finished)
    assert any(entry.aborted_transaction_count for one in stored.values() for entry in one.state.finished)
    written_to_table = STARTS * (len(CODECS) * 400 + 3 * TRANSACTIONS * 20)
    assert 0 < sum(row["topic"] == "table" for row in everything) < written_to_table * 0.7
