"""Members of a share group, which acknowledge what is written, while brokers of their cluster die."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.cluster import PARTITIONS, WAIT_S, Writing
from tests.support.waiting import block_until

GROUP: Final = "workers"
RELEASE_SHARE: Final = 0.05
SETTINGS = {
    "replica_lag_time_max_ms": 2_000,
    "leader_imbalance_check_interval_seconds": 2,
    "offsets_topic_num_partitions": 3,
    "offsets_topic_replication_factor": 3,
    "share_coordinator_state_topic_num_partitions": 3,
    "share_coordinator_state_topic_replication_factor": 3,
    "group_share_min_record_lock_duration_ms": 1_000,
    "group_share_record_lock_duration_ms": 5_000,
    "group_share_delivery_count_limit": 10,
}
"""Of a broker: locks that end while a test looks on."""

METADATA_MS: Final = 5_000
"""The members' refresh of metadata. librdkafka 2.16 forgets to give a partition back to its broker if the leader moves away and
back before the first move is done (``rd_kafka_toppar_broker_update`` compares ``rktp_broker`` alone). Its share consumer asks no
broker for that partition until the next refresh: five minutes by default."""

LONG_COMMIT_S: Final = 10.0
"""A longer commit is printed. Its member takes no records meanwhile, so the client may be why a group does not get on."""

Place = tuple[int, int]
"""Partition and offset."""


class Book:
    """What members were given, and what became of it. Threads write to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done: dict[Place, float] = {}
        """When the accept of a record was known to be stored."""
        self.accepted = [0] * PARTITIONS
        """How many of each partition."""
        self.maybe: set[Place] = set()
        """Records whose accept was not answered, or refused."""
        self.delivered: dict[Place, int] = {}
        self._held: dict[Place, tuple[str, int]] = {}
        """Who has a record, and the phase in which it was given."""
        self.phase: Callable[[], int] = lambda: 0
        """An even number while no broker is hurt, another one each time."""
        self.wrong: list[str] = []

    def given(self, name: str, places: list[Place], asked_s: float, phase: int) -> None:
        """A member was given records by a request of ``asked_s``, which was sent in ``phase``."""
        calm = phase % 2 == 0 and phase == self.phase()
        with self._lock:
            for place in places:
                self.delivered[place] = self.delivered.get(place, 0) + 1
                done_s = self.done.get(place)
                if done_s is not None and done_s < asked_s:
                    self.wrong.append(f"{place} was accepted and is delivered to {name}")
                holder = self._held.get(place)
                if holder is not None and holder[0] != name and calm and holder[1] == phase:
                    self.wrong.append(f"{place} is delivered to {name} while {holder[0]} has it")
                self._held[place] = (name, phase)

    def answered(self, places: list[Place], error: object) -> None:
        """What came of the accepts of records."""
        now_s = time.monotonic()
        with self._lock:
            for place in places:
                if error is None:
                    self.accepted[place[0]] += place not in self.done
                    self.done.setdefault(place, now_s)
                else:
                    self.maybe.add(place)

    def says(self, places: list[Place]) -> None:
        """A member is about to say something of what it has."""
        with self._lock:
            for place in places:
                self._held.pop(place, None)


class Member:
    """A thread with a share consumer."""

    def __init__(self, bootstrap: str, name: str, book: Book, rng: random.Random, client: Mapping[str, Any]) -> None:
        self._name, self._book, self._rng = name, book, rng
        self._stop = threading.Event()
        self.refusals = 0
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "share.acknowledgement.mode": "explicit",
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 5_000,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "log_level": 0,
                **client,
            }
        )
        self._consumer.subscribe(["t"])
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def _live(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._take()
                except KafkaException:
                    self.refusals += 1  # what it had comes again
                    self._stop.wait(0.1)
        finally:
            try:
                self._consumer.close()
            except KafkaException:
                self.refusals += 1

    def _take(self) -> None:
        asked_s, phase = time.monotonic(), self._book.phase()
        messages = [one for one in self._consumer.poll(0.5) if one.error() is None]
        places = [place_of(message) for message in messages]
        self._book.given(self._name, places, asked_s, phase)
        accepted: dict[int, list[Place]] = {}
        self._book.says(places)
        for message, place in zip(messages, places, strict=True):
            if self._rng.random() < RELEASE_SHARE:
                self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
            else:
                self._consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                accepted.setdefault(place[0], []).append(place)
        if not messages:
            return
        began_s = time.monotonic()
        try:
            results = {place.partition: error for place, error in self._consumer.commit_sync(20.0).items()}
        except KafkaException as error:
            results = dict.fromkeys(accepted, error)
        took_s = time.monotonic() - began_s
        if took_s > LONG_COMMIT_S:
            print(f"{time.time():.2f} member {self._name} waited {took_s:.1f} s for its commit: {results}", flush=True)
        for partition, found in accepted.items():
            self._book.answered(found, results.get(partition, "not answered"))

    def stop(self) -> None:
        self._stop.set()

    def finish(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def place_of(message: Message) -> Place:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


class Shares:
    """A share group of three members, which begins at the start of the topic."""

    name = "the share group"
    between_brokers = True  # its leaders write to its coordinators

    def __init__(
        self,
        bootstrap: str,
        writing: Writing,
        seed: int,
        *,
        client: Mapping[str, Any] | None = None,
        admin: Mapping[str, Any] | None = None,
    ) -> None:
        """``client``: settings with which members get in. ``admin``: those of who may change the group's settings."""
        administers = AdminClient({"bootstrap.servers": bootstrap, **(admin or {})})
        resource = ConfigResource(ResourceType.GROUP, GROUP)
        resource.add_incremental_config(
            ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        )
        administers.incremental_alter_configs([resource])[resource].result(WAIT_S)
        self.book = Book()
        self._writing = writing
        self._members = [
            Member(bootstrap, name, self.book, random.Random(f"{seed}{name}"), client or {}) for name in ("a", "b", "c")
        ]

    def more(self) -> Callable[[], bool]:
        """Whether records of every partition were accepted since this call."""
        before, least = list(self.book.accepted), self._writing.least
        return lambda: all(now > old + least for now, old in zip(self.book.accepted, before, strict=True))

    def finish(self) -> None:
        """After the end of the producer: wait until every record was accepted. A second call does nothing."""
        book, written = self.book, self._written()
        try:
            block_until(lambda: written <= set(book.done) | set(book.maybe), "every record is accepted")
        finally:
            self.stop()

    def stop(self) -> None:
        for member in self._members:
            member.stop()
        for member in self._members:
            member.finish()

    def _written(self) -> set[Place]:
        return {
            (partition, offset)
            for partition, offsets in enumerate(self._writing.acknowledged)
            for offset in offsets.values()
            if offset >= 0
        }

    def check(self) -> None:
        """After ``finish``."""
        book = self.book
        assert not book.wrong, book.wrong[:10]
        assert self._written() <= set(book.delivered)
        assert len(book.maybe - set(book.done)) < len(book.done) / 10, "most accepts are answered"
