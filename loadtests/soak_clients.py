"""Producers and consumers of the soak, and the book that they keep: every acknowledged record with its offset.

A record says who made it and when in its maker's order; what else is in it follows from that, so that each byte can be checked
by whoever reads it. Clients are librdkafka's: idempotent producers that retry as long as the soak lasts.
"""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from struct import Struct

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

IDENTITY = Struct(">Q")
FILLER = random.Random(20).randbytes(1 << 16)
RECORD_BYTES = 1_000
MESSAGE_TIMEOUT_MS = 120_000
NOT_ACKNOWLEDGED = -1
TICK_S = 0.05
END_TIMEOUT_S = 60.0


class Wrong(Exception):
    """What was read is not what was written; the message says where."""


def value_of(sequence: int) -> bytes:
    """The record of this number."""
    start = sequence * 7 % (len(FILLER) - RECORD_BYTES)
    return IDENTITY.pack(sequence) + FILLER[start : start + RECORD_BYTES - IDENTITY.size]


class Book:
    """What one producer sent to one topic: record ``n`` went to partition ``n % partitions``, and where it was acknowledged."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic, self.partitions = topic, partitions
        self.offsets = array("q")
        """By record number; ``NOT_ACKNOWLEDGED`` until it is."""
        self.acknowledged = 0
        self.errors: list[str] = []

    def check(self, message: Message, after: int) -> int:
        """The number of a record that was read; it must come after number ``after`` of its partition. Raises: Wrong."""
        value, offset, partition = message.value(), message.offset(), message.partition()
        where = f"{self.topic}-{partition} at {offset}"
        if value is None or len(value) != RECORD_BYTES:
            raise Wrong(f"{where}: not a record of ours")
        sequence: int = IDENTITY.unpack_from(value)[0]
        if value != value_of(sequence) or sequence >= len(self.offsets) or sequence % self.partitions != partition:
            raise Wrong(f"{where}: bytes that nobody sent")
        if sequence <= after:
            raise Wrong(f"{where}: record {sequence} after record {after}: twice, or out of order")
        promised = self.offsets[sequence]
        if promised not in (NOT_ACKNOWLEDGED, offset):
            raise Wrong(f"{where}: record {sequence}, which was acknowledged at {promised}")
        return sequence


class Worker(threading.Thread):
    """A thread that works until it is stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._ending = threading.Event()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._ending.set()
        self.join()


class Producing(Worker):
    """Sends records at a steady rate, and writes down their offsets; when it is stopped it waits for what it sent."""

    def __init__(self, bootstrap: str, book: Book, records_per_s: int) -> None:
        super().__init__(f"producer of {book.topic}")
        self.book, self._rate = book, records_per_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": MESSAGE_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 500,
                "queue.buffering.max.messages": 1_000_000,
                "linger.ms": 10,
                "log_level": 0,
                "error_cb": self._trouble,
            }
        )

    def run(self) -> None:
        started = time.monotonic()
        book, producer = self.book, self._producer
        while not self._ending.wait(TICK_S):
            due = int((time.monotonic() - started) * self._rate)
            for sequence in range(len(book.offsets), due):
                book.offsets.append(NOT_ACKNOWLEDGED)
                producer.produce(
                    book.topic,
                    value_of(sequence),
                    partition=sequence % book.partitions,
                    on_delivery=partial(self._delivered, sequence),
                )
            producer.poll(0)
        if left := producer.flush(MESSAGE_TIMEOUT_MS / 1000):
            book.errors.append(f"{left} records of {book.topic} have no answer at the end")

    def _delivered(self, sequence: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.book.errors.append(f"{self.book.topic}: record {sequence} was not acknowledged: {error}")
            return
        offset = message.offset()
        assert offset is not None
        self.book.offsets[sequence] = offset
        self.book.acknowledged += 1

    def _trouble(self, error: KafkaError) -> None:
        if error.fatal():
            self.book.errors.append(f"{self.book.topic}: the producer gave up: {error}")


class Tailing(Worker):
    """Reads a topic from its start and stays at the end; every record is held against the book as it comes."""

    def __init__(self, bootstrap: str, book: Book) -> None:
        super().__init__(f"tail of {book.topic}")
        self.book = book
        self.read = 0
        self.wrong: str | None = None
        self._address = bootstrap

    @property
    def lag(self) -> int:
        """Records acknowledged and not yet read."""
        return max(0, self.book.acknowledged - self.read)

    def run(self) -> None:
        last = [-1] * self.book.partitions
        with reader(self._address) as consumer:
            consumer.assign([TopicPartition(self.book.topic, p, OFFSET_BEGINNING) for p in range(self.book.partitions)])
            try:
                while not self._ending.is_set():
                    for message in consumer.consume(1000, 0.2):
                        if message.error() is None:
                            partition = message.partition()
                            assert partition is not None
                            last[partition] = self.book.check(message, last[partition])
                            self.read += 1
            except Wrong as wrong:
                self.wrong = str(wrong)


class Replaying(Worker):
    """Reads one partition after another from the log start to what was the end then, over and over, with pauses."""

    def __init__(self, bootstrap: str, book: Book, pause_s: float) -> None:
        super().__init__(f"replay of {book.topic}")
        self.book, self._pause_s = book, pause_s
        self.replays = self.read = 0
        self.wrong: str | None = None
        self._address = bootstrap

    def run(self) -> None:
        partition = 0
        while not self._ending.wait(self._pause_s):
            try:
                self.read += len(read_partition(self._address, self.book, partition, self._ending)[1])
                self.replays += 1
            except Wrong as wrong:
                self.wrong = str(wrong)
                return
            except KafkaException:
                continue  # the broker is away for a moment; the next turn reads it all again
            partition = (partition + 1) % self.book.partitions


@contextmanager
def reader(bootstrap: str) -> Iterator[Consumer]:
    """A consumer without a group that outlives restarts of the broker."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "soak",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 500,
            "fetch.wait.max.ms": 200,
            "log_level": 0,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def read_partition(
    bootstrap: str, book: Book, partition: int, stop: threading.Event | None = None
) -> tuple[int, dict[int, int]]:
    """The log start, and number to offset of every record from there to the end, each held against the book.

    Raises: Wrong; KafkaException if the broker does not answer.
    """
    found: dict[int, int] = {}
    with reader(bootstrap) as consumer:
        place = TopicPartition(book.topic, partition)
        start, end = consumer.get_watermark_offsets(place, timeout=10)
        consumer.assign([TopicPartition(book.topic, partition, start)])
        position, last = start, -1
        deadline = time.monotonic() + END_TIMEOUT_S
        while position < end and not (stop is not None and stop.is_set()):
            for message in consumer.consume(2000, 0.5):
                if message.error() is not None:
                    continue
                offset = message.offset()
                assert offset is not None
                if offset != position and not (position == start and offset > start):
                    # The log start may have moved on between the question and the first Fetch, but nothing is left out later.
                    raise Wrong(f"{book.topic}-{partition}: {offset} came where {position} was due")
                last = book.check(message, last)
                found[last] = offset
                position = offset + 1
                deadline = time.monotonic() + END_TIMEOUT_S
            if time.monotonic() > deadline:
                raise Wrong(f"{book.topic}-{partition}: nothing comes at {position}, the end is {end}")
    return start, found
