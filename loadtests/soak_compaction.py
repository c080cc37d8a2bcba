"""The soak's compacted topic: keys that are written and deleted again and again, and readings of all of it meanwhile."""

from __future__ import annotations

import random
import time
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from loadtests.measuring import make_topic
from loadtests.soak_books import IDENTITY, KeyBook, Wrong
from loadtests.soak_clients import MESSAGE_TIMEOUT_MS, TICK_S, Worker, Workload, read_to_end
from loadtests.system import System

KEYS = 300
RECORDS_PER_S = 400
TOMBSTONE_SHARE = 0.05
READ_PAUSE_S = 4.0
KEPT_AT_MOST = 0.75
"""Of the records that were written, at the end: of more the cleaner has not taken away what it should have."""


class KeyProducer(Worker):
    """Writes keys at random at a steady rate; some records are tombstones."""

    def __init__(self, bootstrap: str, book: KeyBook, seed: int) -> None:
        super().__init__("producer of keys")
        self.book, self._rng = book, random.Random(seed)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": MESSAGE_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 10,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        started, book, producer = time.monotonic(), self.book, self._producer
        while not self._ending.wait(TICK_S):
            while len(book.drawn) < (time.monotonic() - started) * RECORDS_PER_S:
                key = self._rng.randrange(book.keys)
                number = book.draw(key, tombstone=self._rng.random() < TOMBSTONE_SHARE)
                producer.produce(
                    book.topic,
                    book.value(number),
                    IDENTITY.pack(key),
                    partition=key % book.partitions,
                    on_delivery=partial(self._delivered, number),
                )
            producer.poll(0)
        if left := producer.flush(MESSAGE_TIMEOUT_MS / 1000):
            book.errors.append(f"{left} records of {book.topic} have no answer at the end")

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is not None or offset is None:
            self.book.errors.append(f"{self.book.topic}: record {number} was not acknowledged: {error}")
        else:
            self.book.acknowledge(number, offset)


class KeyReader(Worker):
    """Reads the whole topic over and over: each reading has every key's last value, as it was before the reading began, or a
    later one."""

    def __init__(self, bootstrap: str, book: KeyBook) -> None:
        super().__init__("reader of keys")
        self.book = book
        self.readings = self.left = self.left_of = 0
        """``left``: records in the last reading, of so many that were acknowledged before it."""
        self._address = bootstrap

    def run(self) -> None:
        while not self._ending.wait(READ_PAUSE_S) and not self.wrong:
            try:
                self.read_all(whole=False)
            except Wrong as wrong:
                self.wrong = str(wrong)
            except KafkaException:
                continue  # the broker is away for a moment

    def read_all(self, *, whole: bool) -> None:
        """One reading; a ``whole`` one is not ended early. Raises: Wrong."""
        before, acknowledged = dict(self.book.latest), self.book.acknowledged
        read: dict[int, int | None] = {}
        count = 0
        stop = None if whole else self._ending
        for message in read_to_end(self._address, self.book.topic, self.book.partitions, stop):
            key = message.key()
            assert key is None or isinstance(key, bytes)
            found, number = self.book.check(message, key)
            read[found] = number
            count += 1
        if whole or not self._ending.is_set():
            self.readings += 1
            self.left, self.left_of = count, acknowledged
            if faults := self.book.check_all(before, read):
                raise Wrong("; ".join(faults))


class Compaction(Workload):
    """A compacted topic with a writer and a reader."""

    name = "compaction"

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__()
        self.book = KeyBook("compacted", 2, KEYS)
        self._producer = KeyProducer(bootstrap, self.book, seed)
        self._reader = KeyReader(bootstrap, self.book)
        self.watched = (self._reader,)

    def prepare(self, system: System) -> None:
        make_topic(
            system,
            self.book.topic,
            self.book.partitions,
            cleanup_policy="compact",
            remote_storage_enable="false",
            segment_bytes=str(1 << 20),
            min_cleanable_dirty_ratio="0.2",
            delete_retention_ms="2000",
        )

    def start(self) -> None:
        self._producer.start()
        self._reader.start()

    def stop_writing(self) -> None:
        self._producer.stop()
        self.wrong += self.book.errors[:3]

    def settle(self) -> None:
        """Wait until the cleaner has been here: its process compiles its code when it first comes, which a busy machine lets it do
        slowly."""
        book = self.book

        def compacted() -> bool:
            return 0 < self._reader.left_of * KEPT_AT_MOST >= self._reader.left

        self.wait_until(
            compacted,
            lambda: (
                f"{book.topic}: {self._reader.left} of {book.acknowledged} records are there still: nothing is compacted"
            ),
        )

    def finish(self) -> None:
        self._reader.stop()
        try:
            self._reader.read_all(whole=True)
        except Wrong as wrong:
            self.wrong.append(str(wrong))
        self.gather()

    def counts(self) -> dict[str, int]:
        tombstones = sum(tombstone for _, tombstone in self.book.drawn)
        return {
            "acknowledged": self.book.acknowledged,
            "of them tombstones": tombstones,
            "left at the end": self._reader.left,
            "readings of all keys": self._reader.readings,
        }
