"""The soak's consumer groups: members of both protocols that come, go and stall, and a look at what their group has committed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from loadtests.measuring import make_topic
from loadtests.soak_books import Book, GroupBook, Wrong
from loadtests.soak_clients import Member, Producing, Worker, Workload, reader
from loadtests.system import System

PROTOCOLS = ("classic", "consumer")
MEMBERS = 3
LIFE_S = (4.0, 15.0)
STALL_SHARE = 0.2
"""Of lives that end with a member that does not poll, until its group goes on without it."""
MAX_POLL_INTERVAL_MS = 6_000
STALL_S = 8.0
COMMIT_PAUSE_S = 0.5
LOOK_PAUSE_S = 0.5
RECORDS_PER_S = 300


class GroupMember(Member):
    """Joins the group, reads, commits what it read and leaves, over and over."""

    def __init__(self, bootstrap: str, book: GroupBook, protocol: str, seed: int) -> None:
        super().__init__(f"member {seed} of {book.group}")
        self.book = book
        self.stalls = 0
        self._address, self._protocol, self._rng = bootstrap, protocol, random.Random(seed)
        self._positions: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def live(self) -> None:
        settings = {
            "bootstrap.servers": self._address,
            "group.id": self.book.group,
            "group.protocol": self._protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 500,
            "fetch.wait.max.ms": 200,
            "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
            "log_level": 0,
        }
        if self._protocol == "classic":
            settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
        consumer = Consumer(settings)
        try:
            consumer.subscribe(
                [self.book.book.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            self._read(consumer, time.monotonic() + self._rng.uniform(*LIFE_S))
            if self._rng.random() < STALL_SHARE and not self._ending.is_set():
                self.stalls += 1
                self._ending.wait(STALL_S)
                self._read(consumer, time.monotonic() + COMMIT_PAUSE_S)
            self._commit(consumer)
        finally:
            consumer.close()
            self._lost(consumer, [])

    def _read(self, consumer: Consumer, until: float) -> None:
        commit_at = time.monotonic() + COMMIT_PAUSE_S
        while (now := time.monotonic()) < until and not self._ending.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error() is not None:
                    continue
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                sequence = self.book.book.check(message, self._last.get(partition, -1))
                self.book.read(sequence, offset)
                self._last[partition], self._positions[partition] = sequence, offset + 1
            if now >= commit_at:
                self._commit(consumer)
                commit_at = now + COMMIT_PAUSE_S

    def _commit(self, consumer: Consumer) -> None:
        """What was read so far. A commit that is refused, for a rebalance or a broker that is away, is for a later one to make
        good, or for the member that reads these records again."""
        topic = self.book.book.topic
        offsets = [TopicPartition(topic, partition, offset) for partition, offset in self._positions.items()]
        if offsets:
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException:
                self.book.refused += 1

    def _assigned(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        for place in partitions:
            self._forget(place.partition)

    def _revoked(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        self._commit(consumer)
        for place in partitions:
            self._forget(place.partition)

    def _lost(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        self._positions.clear()
        self._last.clear()

    def _forget(self, partition: int) -> None:
        self._positions.pop(partition, None)
        self._last.pop(partition, None)


class Look(Worker):
    """Asks again and again what the group has committed."""

    def __init__(self, bootstrap: str, book: GroupBook) -> None:
        super().__init__(f"look at {book.group}")
        self.book = book
        self.looks = 0
        self._address = bootstrap

    def run(self) -> None:
        topic, count = self.book.book.topic, self.book.book.partitions
        with reader(self._address, group_id=self.book.group) as consumer:
            while not self._ending.wait(LOOK_PAUSE_S):
                try:
                    found = consumer.committed(
                        [TopicPartition(topic, partition) for partition in range(count)], timeout=5
                    )
                except KafkaException:
                    continue  # the broker is away for a moment
                try:
                    for place in found:
                        if place.error is None and place.offset >= 0:
                            self.book.committed(place.partition, place.offset)
                except Wrong as wrong:
                    self.wrong = str(wrong)
                    return
                self.looks += 1


class Groups(Workload):
    """One topic, and a group of each protocol that reads all of it."""

    name = "consumer groups"

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__()
        self.book = Book("grouped", 4)
        self.books = [GroupBook(f"soak-{protocol}", self.book) for protocol in PROTOCOLS]
        self._producer = Producing(bootstrap, self.book, RECORDS_PER_S)
        self._members = [
            GroupMember(bootstrap, book, protocol, seed * 100 + place)
            for book, protocol in zip(self.books, PROTOCOLS, strict=True)
            for place in range(MEMBERS)
        ]
        self._looks = [Look(bootstrap, book) for book in self.books]
        self.watched = (*self._members, *self._looks)

    def prepare(self, system: System) -> None:
        make_topic(
            system,
            self.book.topic,
            self.book.partitions,
            segment_bytes=str(2 << 20),
            local_retention_ms="2000",
            retention_ms="-1",
        )

    def start(self) -> None:
        for worker in (self._producer, *self._members, *self._looks):
            worker.start()

    def stop_writing(self) -> None:
        self._producer.stop()
        self.wrong += self.book.errors[:3]

    def settle(self) -> None:
        self.wait_until(
            lambda: not any(book.behind for book in self.books),
            lambda: ", ".join(
                f"group {book.group} is {book.behind} records behind and stays there" for book in self.books
            ),
        )

    def finish(self) -> None:
        for worker in (*self._members, *self._looks):
            worker.stop()
        self.gather()
        for book in self.books:
            self.wrong += book.unread()

    def counts(self) -> dict[str, int]:
        found = {"acknowledged": self.book.acknowledged}
        for book, protocol in zip(self.books, PROTOCOLS, strict=True):
            found[f"read by the group of the {protocol} protocol"] = book.seen.count
            found["of them again" if protocol == PROTOCOLS[0] else "of these again"] = book.reads - book.seen.count
        return found | {
            "lives of members": sum(member.lives for member in self._members),
            "stalls": sum(member.stalls for member in self._members),
            "commits refused": sum(book.refused for book in self.books),
            "looks at committed offsets": sum(look.looks for look in self._looks),
        }
