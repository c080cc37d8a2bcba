"""Producers and readers of the soak, and what all of its workloads share.

A record says who made it and when in its maker's order; what else is in it follows from that, so that each byte can be checked
by whoever reads it. Clients are librdkafka's: idempotent producers that retry as long as the soak lasts.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from loadtests.measuring import make_topic
from loadtests.soak_books import NOT_ACKNOWLEDGED, Book, Wrong, value_of
from loadtests.system import System

MESSAGE_TIMEOUT_MS = 120_000
TICK_S = 0.05
END_TIMEOUT_S = 60.0
QUIET_TIMEOUT_S = 90.0
"""Within which readers have everything that was written, once nothing is written any more."""


class Worker(threading.Thread):
    """A thread that works until it is stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._ending = threading.Event()
        self.wrong: str | None = None
        """What this client found wrong; it has ended then."""

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._ending.set()
        self.join()


class Member(Worker, ABC):
    """Lives one life in a group after another, until it is stopped or finds something wrong."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lives = 0

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self.live()
                self.lives += 1
        except Wrong as wrong:
            self.wrong = str(wrong)

    @abstractmethod
    def live(self) -> None:
        """Join, read for a while, and leave. Raises: Wrong."""


def make_rolling_topic(system: System, topic: str, partitions: int, **config: str) -> None:
    """A topic whose segments roll often and leave the disk soon, and whose records never expire."""
    rolls = {"segment_bytes": str(1 << 20), "local_retention_ms": "2000", "retention_ms": "-1"}
    make_topic(system, topic, partitions, **rolls | config)


class Workload(ABC):
    """One kind of use that the soak makes of a broker: its clients, and what is found wrong.

    ``prepare`` makes its topics, ``start`` starts its clients; ``stop_writing`` returns when everything that was sent is
    answered, ``settle`` when its readers have all of that, ``finish`` reads the topics once more and stops the rest.
    """

    name: str

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.watched: Sequence[Worker] = ()
        """Clients whose own ``wrong`` counts."""

    @abstractmethod
    def prepare(self, system: System) -> None: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop_writing(self) -> None: ...

    @abstractmethod
    def settle(self) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...

    def wrong_so_far(self) -> bool:
        """Whether a reader found something wrong already."""
        self.gather()
        return bool(self.wrong)

    def gather(self) -> None:
        """Add to ``wrong`` what the clients found so far."""
        found = [worker.wrong for worker in self.watched if worker.wrong]
        self.wrong = list(dict.fromkeys([*self.wrong, *found]))

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """What the workload did, for one line."""

    def line(self) -> str:
        """The workload in one line."""
        word = "WRONG" if self.wrong else "OK"
        return f"{word:<6}{self.name:<18} " + ", ".join(f"{count:,} {what}" for what, count in self.counts().items())

    def wait_until(self, done: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        """Wait until the readers are ``done``; if they do not come to it, ``otherwise`` says what is wrong."""
        deadline = time.monotonic() + QUIET_TIMEOUT_S
        while not self.wrong_so_far() and not done():
            if time.monotonic() > deadline:
                self.wrong.append(otherwise())
                return
            time.sleep(0.2)


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
def reader(bootstrap: str, **settings: object) -> Iterator[Consumer]:
    """A consumer without a group that outlives restarts of the broker; ``settings`` have ``_`` for ``.``."""
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
        | {name.replace("_", "."): value for name, value in settings.items()}
    )
    try:
        yield consumer
    finally:
        consumer.close()


def read_to_end(
    bootstrap: str, topic: str, partitions: int, stop: threading.Event | None = None, **settings: object
) -> Iterator[Message]:
    """Every record of a topic from the log starts to where each partition ended when the reader came there.

    Raises: Wrong if the ends are not reached. Ends early if ``stop`` is set.
    """
    left = set(range(partitions))
    with reader(bootstrap, enable_partition_eof=True, **settings) as consumer:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        deadline = time.monotonic() + END_TIMEOUT_S
        while left and not (stop is not None and stop.is_set()):
            for message in consumer.consume(2000, 0.5):
                error = message.error()
                if error is None:
                    deadline = time.monotonic() + END_TIMEOUT_S
                    if message.partition() in left:
                        yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
            if time.monotonic() > deadline:
                raise Wrong(f"{topic}: the ends of partitions {sorted(left)} are not reached")


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
