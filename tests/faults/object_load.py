"""Clients of topics with ``firn.durability=object`` while brokers lose their disks: what they were told has to stay true.

A producer writes numbers and keeps what was acknowledged; a reader follows from the beginning and keeps what it saw. At the end
each record that was acknowledged or seen is where it was, once and in order, and leader epochs have never gone back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from app.metadata.image.records import OBJECT_LEVEL
from tests.support.cluster import PARTITIONS, WAIT_S, Writing, ends_of, seen
from tests.support.waiting import block_until

TOPIC = "t"
OTHERS = ("on-disk", "in-memory")
SETTINGS = {
    "new_level": OBJECT_LEVEL,
    "take_over": True,  # the broker that had the node id and the lost disk is gone: whoever starts a new one says so
    "broker_heartbeat_interval_ms": 250,
    "broker_session_timeout_ms": 1_500,
    "wal_bytes": 64 * 1024,
    "wal_buffer_bytes": 2 * 1024 * 1024,
    "remote_log_manager_task_interval_ms": 200,
}
OBJECT = {
    "firn.durability": "object",
    "firn.wal.linger.ms": "20",
    "remote.storage.enable": "true",
    "retention.ms": "-1",
}
TIERED = OBJECT | {"segment.ms": "700", "local.retention.ms": "0"}
"""Segments roll and leave the disk all the time, so that objects are deleted and ranges dropped."""
PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._PARTITION_EOF,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # of a broker that begins with nothing and has not read the cluster log to its end
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)


class Seen(NamedTuple):
    """A record as it was read."""

    number: int
    epoch: int


class Following:
    """A thread that reads all partitions from the beginning on, and never goes back."""

    name = "a reader"
    between_brokers = False

    def __init__(self, bootstrap: str, topic: str = TOPIC) -> None:
        self.found: list[list[Seen]] = [[] for _ in range(PARTITIONS)]
        """By offset, per partition."""
        self.wrong: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "following",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # where an offset is out of range, or the log is cut, it is told
                "socket.timeout.ms": 3_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1_000, 0.2):
                error = message.error()
                if error is not None:
                    if error.code() not in PASSING:
                        self.wrong.append(f"{message.topic()}-{message.partition()}: {error}")
                    continue
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert value is not None
                found, epoch = self.found[partition], message.leader_epoch()
                if offset != len(found):
                    self.wrong.append(f"partition {partition}: offset {offset} was read after {len(found) - 1}")
                    self._stop.set()
                    break
                found.append(Seen(int(value), -1 if epoch is None else epoch))
        self._consumer.close()

    def more(self) -> Callable[[], bool]:
        before = [len(found) for found in self.found]
        return lambda: all(len(found) > old for found, old in zip(list(self.found), before, strict=True))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


class Careless:
    """A producer of topics with other durabilities, which may lose what they have with a disk: its records are not kept."""

    name = "a producer of other topics"
    between_brokers = False

    def __init__(self, bootstrap: str) -> None:
        self.counts = dict.fromkeys(OTHERS, 0)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 2,
                "message.timeout.ms": 10_000,
                "socket.timeout.ms": 2_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stop.is_set():
            for topic in OTHERS:
                self._produce(topic)
            self._producer.poll(0.01)
        self._producer.purge()
        self._producer.flush(WAIT_S)

    def _produce(self, topic: str) -> None:
        def done(error: Any, _: Any) -> None:
            if error is None:
                self.counts[topic] += 1

        try:
            self._producer.produce(topic, b"x" * 100, partition=0, on_delivery=done)
        except BufferError:
            self._producer.poll(0.05)

    def more(self) -> Callable[[], bool]:
        before = dict(self.counts)
        return lambda: all(self.counts[topic] > before[topic] for topic in OTHERS)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def create(
    admin: AdminClient, brokers: int, configs: Mapping[str, str], *names: str, partitions: int = PARTITIONS
) -> None:
    """Once all brokers are there. A factor is asked for as clients do."""
    block_until(lambda: len(seen(admin).brokers) == brokers, "the brokers are in the cluster")
    topics = [NewTopic(name, partitions, brokers, config=dict(configs)) for name in names]
    for one in admin.create_topics(topics).values():
        one.result(WAIT_S)
    wait_until_led(admin, *names)


def create_all(admin: AdminClient, brokers: int, configs: Mapping[str, str] = OBJECT) -> None:
    """The topic whose records are to be kept, and one of each other durability."""
    create(admin, brokers, configs, TOPIC)
    for name, durability in zip(OTHERS, ("disk", "memory"), strict=True):
        create(admin, brokers, {"firn.durability": durability}, name, partitions=1)


def unled(admin: AdminClient, names: Sequence[str]) -> list[str]:
    """Partitions without a leader."""
    topics = seen(admin).topics
    return [
        f"{name}-{index}" if name in topics else name
        for name in names
        for index, one in (topics[name].partitions.items() if name in topics else [(0, None)])
        if one is None or one.leader < 0
    ]


def wait_until_led(admin: AdminClient, *names: str) -> None:
    block_until(lambda: not unled(admin, names), f"{names} have leaders")


def read_all(bootstrap: str, topic: str, partition: int) -> list[Seen]:
    """Everything, as a new consumer reads it from the beginning: no offset is left out, or there twice."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "all", "enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    found: list[Seen] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        low, high = ends_of(consumer, topic, partition)
        assert low == 0

        def read_on() -> bool:
            for message in consumer.consume(5_000, 0.5):
                error = message.error()
                if error is not None:
                    if error.code() in PASSING:
                        continue
                    raise KafkaException(error)
                value, epoch = message.value(), message.leader_epoch()
                assert value is not None
                assert message.offset() == len(found)
                found.append(Seen(int(value), -1 if epoch is None else epoch))
            return len(found) >= high

        block_until(read_on, f"{topic}-{partition} is read to {high}")
    finally:
        consumer.close()
    return found


def check(bootstrap: str, writing: Writing, following: Following | None = None) -> int:
    """After ``writing.finish()``: all that was acknowledged or seen is there once, in order, where it was.

    Returns: how many records there are."""
    assert writing.refused == []
    records = 0
    for partition, acknowledged in enumerate(writing.acknowledged):
        found = read_all(bootstrap, writing.topic, partition)
        records += len(found)
        numbers = [one.number for one in found]
        assert numbers == sorted(set(numbers)), f"partition {partition}: once, in order"
        epochs = [one.epoch for one in found]
        assert epochs == sorted(epochs), f"partition {partition}: epochs rise"
        at = {number: offset for offset, number in enumerate(numbers)}
        lost = [number for number in acknowledged if number not in at]
        assert not lost, f"partition {partition}: {len(lost)} of {len(acknowledged)} are lost, the first is {min(lost)}"
        moved = [(number, offset, at[number]) for number, offset in acknowledged.items() if 0 <= offset != at[number]]
        assert not moved, f"partition {partition}: (number, acknowledged at, found at) {moved[:3]}"
        if following is not None:
            saw = following.found[partition]
            assert saw == found[: len(saw)], f"partition {partition}: what was read once is there"
    assert following is None or following.wrong == []
    return records
