"""The soak's share group: members that come and go; most records are accepted, some are released and come again."""

from __future__ import annotations

import random
import time

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from loadtests.measuring import admin_of, make_topic
from loadtests.soak_books import Book, ShareBook
from loadtests.soak_clients import Member, Producing, Workload
from loadtests.system import System

GROUP = "soak-share"
MEMBERS = 2
LIFE_S = (5.0, 15.0)
RELEASE_SHARE = 0.03
COMMIT_TIMEOUT_S = 10.0
RECORDS_PER_S = 200


class ShareMember(Member):
    """Joins, gets records, accepts or releases each, and leaves, over and over."""

    def __init__(self, bootstrap: str, book: ShareBook, seed: int) -> None:
        super().__init__(f"share member {seed}")
        self.book = book
        self.unconfirmed = 0
        self._address, self._rng = bootstrap, random.Random(seed)

    def live(self) -> None:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self._address,
                "group.id": self.book.group,
                "share.acknowledgement.mode": "explicit",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        try:
            consumer.subscribe([self.book.book.topic])
            until = time.monotonic() + self._rng.uniform(*LIFE_S)
            while time.monotonic() < until and not self._ending.is_set():
                try:
                    self._take(consumer, [one for one in consumer.poll(0.5) if one.error() is None])
                except KafkaException:
                    self.unconfirmed += 1  # the broker is away for a moment; what it had lent out comes again
                    self._ending.wait(0.2)
        finally:
            try:
                consumer.close()
            except KafkaException:
                self.unconfirmed += 1

    def _take(self, consumer: ShareConsumer, messages: list[Message]) -> None:
        accepted: dict[int, list[int]] = {}
        for message in messages:
            sequence = self.book.delivered(message)
            if self._rng.random() < RELEASE_SHARE:
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
                self.book.released += 1
            else:
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                accepted.setdefault(message.partition() or 0, []).append(sequence)
        if not messages:
            return
        for place, error in consumer.commit_sync(COMMIT_TIMEOUT_S).items():
            if error is None:
                for sequence in accepted.get(place.partition, ()):
                    self.book.accepted.add(sequence)
            else:
                self.unconfirmed += 1


class Shares(Workload):
    """One topic and a share group that is to finish every record of it."""

    name = "share group"

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__()
        self.book = ShareBook(GROUP, Book("shared", 2))
        self._producer = Producing(bootstrap, self.book.book, RECORDS_PER_S)
        self._members = [ShareMember(bootstrap, self.book, seed * 100 + place) for place in range(MEMBERS)]
        self.watched = self._members

    def prepare(self, system: System) -> None:
        book = self.book.book
        make_topic(system, book.topic, book.partitions, retention_ms="-1", local_retention_ms="-2")
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[entry])
        admin = admin_of(system)
        admin.incremental_alter_configs([resource])[resource].result(10)

    def start(self) -> None:
        for worker in (self._producer, *self._members):
            worker.start()

    def stop_writing(self) -> None:
        self._producer.stop()
        self.wrong += self.book.book.errors[:3]

    def settle(self) -> None:
        self.wait_until(
            lambda: self.book.accepted.count >= self.book.book.acknowledged,
            lambda: (
                f"share group {GROUP} has accepted {self.book.accepted.count} of {self.book.book.acknowledged} records and "
                "stays there"
            ),
        )

    def finish(self) -> None:
        for member in self._members:
            member.stop()
        self.gather()
        self.wrong += self.book.unaccepted()

    def counts(self) -> dict[str, int]:
        return {
            "acknowledged": self.book.book.acknowledged,
            "accepted": self.book.accepted.count,
            "deliveries": self.book.deliveries,
            "released": self.book.released,
            "lives of members": sum(member.lives for member in self._members),
            "polls and commits without an answer": sum(member.unconfirmed for member in self._members),
        }
