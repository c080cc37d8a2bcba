"""Clients of the rehearsed cluster: they write records, and read all records again to compare.

The clients use librdkafka, so that Firn's own client code does not test Firn.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from infra.rehearsal.machine import Failed

BOOTSTRAP: Final = "127.0.0.1:9092"
ORDERS: Final = "orders"
"""A tiered topic: the records of its active segments are on the broker's disk only."""
PAYMENTS: Final = "payments"
"""A tiered topic that transactions write."""
DAY_MS: Final = 86_400_000
CUSTOMERS: Final = "customers"
"""A compacted topic: in the bucket only with object durability."""
GROUP: Final = "billing"
TRANSACTIONAL_ID: Final = "payments-writer"
RECORD_BYTES: Final = 1_000
READ_S_MAX: Final = 120.0
STREAM_S_MAX: Final = 120.0
"""How long a record of a client that writes all the time may take: as long as Kafka's own clients try."""
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class State:
    """All that clients can see of the cluster."""

    records: Mapping[str, tuple[int, int, str]]
    """By partition: number of records, log end, digest of offsets, keys, values and times."""
    offsets: Mapping[str, int]
    """Committed by the group, by partition."""
    transactional_ids: Mapping[str, str]
    """Digest of the newest record of each in ``__transaction_state``."""
    customers: Mapping[str, str]
    """The newest value of each key of the compacted topic."""

    def differences(self, later: State) -> list[str]:
        """The entries that are missing or different in ``later``."""
        found = []
        for name in ("records", "offsets", "transactional_ids", "customers"):
            mine: Mapping[str, Any] = getattr(self, name)
            theirs: Mapping[str, Any] = getattr(later, name)
            wrong = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
            if wrong:
                one = wrong[0]
                found.append(f"{name}: {len(wrong)} differ, {one} was {mine.get(one)} and is {theirs.get(one)}")
        return found

    @property
    def summary(self) -> str:
        count = sum(number for number, _, _ in self.records.values())
        return (
            f"{count:,} records, {len(self.offsets)} committed offsets, {len(self.transactional_ids)} transactional id, "
            f"{len(self.customers):,} compacted keys"
        )


@dataclass
class Load:
    """Writes more records at each call. It remembers none of them: ``state`` reads them from the cluster."""

    rounds: int = 0
    bootstrap: str = BOOTSTRAP
    login: Mapping[str, Any] = field(default_factory=dict)
    """Settings of clients that must show who they are."""
    replicas: int = 1

    @property
    def _quiet(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **self.login}

    def create_topics(self) -> None:
        tiered = {"segment.bytes": "1048576"}
        admin = AdminClient(self._quiet)
        topics = [
            NewTopic(ORDERS, 3, self.replicas, config=tiered),
            NewTopic(PAYMENTS, 2, self.replicas, config=tiered),
            # Cleaned later than the rehearsal ends: every record is compared, and without a disk those that a lost machine had
            # cleaned away are back until the next cleaning.
            NewTopic(
                CUSTOMERS,
                1,
                self.replicas,
                config={"cleanup.policy": "compact", "min.compaction.lag.ms": str(DAY_MS)},
            ),
        ]
        for future in admin.create_topics(topics).values():
            future.result(30)

    def create_wide_topic(self, name: str, partitions: int) -> None:
        admin = AdminClient(self._quiet)  # its requests end with it
        for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(120)
        producer = self.producer()
        for partition in range(partitions):
            producer.produce(name, f"first of {partition}".encode(), partition=partition)
        _flush(producer)

    def write(self, orders: int = 6_000) -> None:
        """Records of every kind: some segments of them roll and are tiered, the last of each partition is not."""
        self.rounds += 1
        body = b"." * (RECORD_BYTES - 40)
        producer = self.producer()
        for number in range(orders):
            text = f"{self.rounds}/{number} ".encode()
            producer.produce(ORDERS, text + body, key=str(number).encode(), partition=number % 3)
            if number % 500 == 0:
                producer.poll(0)
        for number in range(200):
            producer.produce(CUSTOMERS, f"round {self.rounds}".encode(), key=f"customer {number % 50}".encode())
        _flush(producer)
        writer = self.producer(**{"transactional.id": TRANSACTIONAL_ID})
        writer.init_transactions(30)
        for ending in (writer.commit_transaction, writer.abort_transaction, writer.commit_transaction):
            writer.begin_transaction()
            for number in range(50):
                writer.produce(PAYMENTS, f"{self.rounds}/{number}".encode(), partition=number % 2)
            writer.flush(30)
            ending(30)
        consumer = self._consumer(GROUP)
        places = [TopicPartition(ORDERS, partition, 100 * self.rounds + partition) for partition in range(3)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def first_acknowledged(self, timeout_s: float, look: Callable[[], None]) -> float:
        """Produce until one record is acknowledged. Returns when, in seconds since 1970.

        ``look`` is called every second; it raises if there is no hope. Raises: Failed.
        """
        acknowledged: list[float] = []

        def told(error: object, message: object) -> None:
            del message
            if error is None:
                acknowledged.append(time.time())

        producer = Producer(
            {
                **self._quiet,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "message.timeout.ms": int(timeout_s * 1000),
                "linger.ms": 0,
            }
        )
        producer.produce("first", b"are you there", on_delivery=told)
        end_s = time.monotonic() + timeout_s
        next_look_s = time.monotonic() + 1
        while not acknowledged and time.monotonic() < end_s:
            producer.poll(0.05)
            if time.monotonic() >= next_look_s:
                look()
                next_look_s = time.monotonic() + 1
        if not acknowledged:
            raise Failed(f"No record was acknowledged within {timeout_s:.0f} s.")
        return acknowledged[0]

    def state(self) -> State:
        records = {}
        customers: dict[str, str] = {}
        for topic, partitions in ((ORDERS, 3), (PAYMENTS, 2), (CUSTOMERS, 1)):
            for partition in range(partitions):
                digest, count, end = hashlib.sha256(), 0, 0
                for message in self._read(topic, partition):
                    count, end = count + 1, message.offset() + 1
                    digest.update(
                        repr((message.offset(), message.key(), message.value(), message.timestamp())).encode()
                    )
                    if topic == CUSTOMERS:
                        customers[message.key().decode()] = message.value().decode()
                records[f"{topic}-{partition}"] = (count, end, digest.hexdigest()[:12])
        return State(records, self._committed(), self._transactional_ids(), customers)

    def leaders(self) -> dict[int, int]:
        """How many partitions each broker leads, those of internal topics too."""
        found: dict[int, int] = {}
        for topic in AdminClient(self._quiet).list_topics(timeout=30).topics.values():
            for partition in topic.partitions.values():
                found[partition.leader] = found.get(partition.leader, 0) + 1
        return found

    def ends(self, topic: str, partitions: int) -> list[int]:
        consumer = self._consumer("ends")
        try:
            return [
                consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=30)[1] for one in range(partitions)
            ]
        finally:
            consumer.close()

    def _committed(self) -> dict[str, int]:
        consumer = self._consumer(GROUP)
        try:
            asked = [TopicPartition(ORDERS, one) for one in range(3)]
            places = _patiently(lambda: consumer.committed(asked, timeout=60))
            return {f"{one.topic}-{one.partition}": one.offset for one in places if one.offset >= 0}
        finally:
            consumer.close()

    def _transactional_ids(self) -> dict[str, str]:
        """A digest of the coordinator's newest record for each transactional id."""
        topic = "__transaction_state"
        there = AdminClient(self._quiet).list_topics(timeout=30).topics
        found: dict[str, str] = {}
        for partition in there[topic].partitions if topic in there else ():
            for message in self._read(topic, partition):
                key = message.key()[4:].decode()
                if message.value() is None:
                    found.pop(key, None)
                else:
                    found[key] = hashlib.sha256(message.value()).hexdigest()[:12]
        return found

    def _read(self, topic: str, partition: int) -> list[Any]:
        """Every record that is committed, from the log's start to its end."""
        consumer = self._consumer("reader")
        found = []
        try:
            place = TopicPartition(topic, partition)
            low, high = _patiently(lambda: consumer.get_watermark_offsets(place, timeout=60))
            if low >= high:
                return []
            consumer.assign([TopicPartition(topic, partition, low)])
            end_s = time.monotonic() + READ_S_MAX
            while time.monotonic() < end_s:
                for message in consumer.consume(1_000, timeout=0.5):
                    error = message.error()
                    if error is None:
                        found.append(message)
                    elif error.code() == -191:  # the end of the partition
                        return found
                    else:
                        raise KafkaException(error)
            raise Failed(f"{topic}-{partition} cannot be read to its end within {READ_S_MAX:.0f} s.")
        finally:
            consumer.close()

    def producer(self, **more: object) -> Producer:
        return Producer({**self._quiet, "acks": "all", "enable.idempotence": True, "linger.ms": 5, **more})

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                **self._quiet,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )


class Stream:
    """A client that writes all the time, and what has become of its records."""

    def __init__(self, load: Load, topic: str, partitions: int) -> None:
        self.acknowledged = 0
        self.failures: list[str] = []
        self.longest_s = 0.0
        """Longest time from a record's production to its acknowledgement."""
        self._producer = load.producer(**{"message.timeout.ms": int(STREAM_S_MAX * 1000)})
        self._topic = topic
        self._partitions = partitions
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._ended.wait(0.02):
            made_s = time.monotonic()

            def told(error: object, _: object, made_s: float = made_s) -> None:
                if error is not None:
                    self.failures.append(str(error))
                    return
                self.acknowledged += 1
                self.longest_s = max(self.longest_s, time.monotonic() - made_s)

            place = number % self._partitions
            self._producer.produce(self._topic, f"{number}".encode(), partition=place, on_delivery=told)
            self._producer.poll(0)
            number += 1
        self._producer.flush(STREAM_S_MAX)

    def wait_for(self, count: int) -> None:
        """Until so many more records are acknowledged. Raises: Failed."""
        end_s, wanted = time.monotonic() + STREAM_S_MAX, self.acknowledged + count
        while self.acknowledged < wanted:
            if time.monotonic() > end_s or self.failures:
                raise Failed(f"The client stopped writing: {self.failures[:3]}.")
            time.sleep(0.05)

    def close(self) -> str:
        """End it. Returns what became of its records. Raises: Failed if one was not acknowledged."""
        self._ended.set()
        self._thread.join(2 * STREAM_S_MAX)
        if self.failures or len(self._producer):
            raise Failed(f"{len(self.failures)} records failed, {len(self._producer)} are open: {self.failures[:3]}.")
        return f"{self.acknowledged:,} records, none failed, the slowest took {self.longest_s:.1f} s"


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """The answer to a question that librdkafka asks once. Leaders may have changed just now. Raises: KafkaException."""
    end_s = time.monotonic() + READ_S_MAX
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)


def _flush(producer: Producer) -> None:
    left = producer.flush(60)
    if left:
        raise Failed(f"{left} records were not acknowledged within 60 s.")
