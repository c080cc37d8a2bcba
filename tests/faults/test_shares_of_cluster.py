"""Real brokers of a cluster under members of a share group: killed, stopped and paused, one after another (ADR 0027).

The topic's leaders, the share coordinators and the group coordinators are spread over the brokers, so a fault hits all three parts.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.cluster import NODES, PARTITIONS, WAIT_S, Brokers, Writing, all_in_sync, brokers_running, seen, until

pytestmark = pytest.mark.faults

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

Place = tuple[int, int]
"""Partition and offset."""


class Book:
    """What members were given, and what became of it. Threads write to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done: dict[Place, float] = {}
        """When the accept of a record was known to be stored."""
        self.maybe: set[Place] = set()
        """Records whose accept was not answered, or refused."""
        self.delivered: dict[Place, int] = {}
        self._held: dict[Place, tuple[str, int]] = {}
        """Who has a record, and how many faults there were when it was given."""
        self.faults = 0
        self.wrong: list[str] = []

    def given(self, name: str, places: list[Place], asked_s: float, faults: int) -> None:
        """A member was given records by a request of ``asked_s``, when there had been so many faults."""
        with self._lock:
            for place in places:
                self.delivered[place] = self.delivered.get(place, 0) + 1
                done_s = self.done.get(place)
                if done_s is not None and done_s < asked_s:
                    self.wrong.append(f"{place} was accepted and is delivered to {name}")
                holder = self._held.get(place)
                if holder is not None and holder[0] != name and holder[1] == self.faults == faults:
                    self.wrong.append(f"{place} is delivered to {name} while {holder[0]} has it")
                self._held[place] = (name, faults)

    def answered(self, places: list[Place], error: object) -> None:
        """What came of the accepts of records."""
        now_s = time.monotonic()
        with self._lock:
            for place in places:
                if error is None:
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

    def __init__(self, bootstrap: str, name: str, book: Book, rng: random.Random) -> None:
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
                "log_level": 0,
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
        asked_s, faults = time.monotonic(), self._book.faults
        messages = [one for one in self._consumer.poll(0.5) if one.error() is None]
        places = [place_of(message) for message in messages]
        self._book.given(self._name, places, asked_s, faults)
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
        try:
            results = {place.partition: error for place, error in self._consumer.commit_sync(20.0).items()}
        except KafkaException as error:
            results = dict.fromkeys(accepted, error)
        for partition, found in accepted.items():
            self._book.answered(found, results.get(partition, "not answered"))

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def place_of(message: Message) -> Place:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def wait_for_more(book: Book, writing: Writing) -> None:
    """Until records are written and accepted again, everywhere."""
    writing.wait_for_more()
    before = {partition: sum(place[0] == partition for place in list(book.done)) for partition in range(PARTITIONS)}
    until(
        lambda: all(
            sum(place[0] == partition for place in list(book.done)) > count + 20 for partition, count in before.items()
        ),
        "records of every partition are accepted",
    )


@pytest.mark.parametrize(
    ("faults", "seed"),
    [(2, 1), pytest.param(20, 2, marks=pytest.mark.slow), pytest.param(20, 3, marks=pytest.mark.slow)],
)
def test_every_record_is_accepted_and_none_is_delivered_afterwards(tmp_path: Path, faults: int, seed: int) -> None:
    rng = random.Random(seed)
    with brokers_running(tmp_path, settings=SETTINGS) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        until(lambda: len(seen(admin).brokers) == len(NODES), "three brokers are in the cluster")
        resource = ConfigResource(ResourceType.GROUP, GROUP)
        resource.add_incremental_config(
            ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        )
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
        admin.create_topics([NewTopic("t", PARTITIONS, 3, config={"min.insync.replicas": "2"})])["t"].result(WAIT_S)
        until(lambda: all_in_sync(admin), "all replicas are in sync")
        writing_is_over = False
        book, writing = Book(), Writing(brokers.bootstrap)
        members = [Member(brokers.bootstrap, name, book, random.Random(f"{seed}{name}")) for name in ("a", "b", "c")]
        try:
            wait_for_more(book, writing)
            for fault in [rng.choice((kill, stop, pause)) for _ in range(faults)]:
                book.faults += 1
                fault(brokers, rng.choice(NODES), lambda: wait_for_more(book, writing))
                until(lambda: all_in_sync(admin), "all replicas are in sync again")
                book.faults += 1
                assert not book.wrong, book.wrong[:10]
            writing.finish()
            writing_is_over = True
            written = {
                (partition, offset)
                for partition in range(PARTITIONS)
                for offset in writing.acknowledged[partition].values()
            }
            until(lambda: written <= set(book.done) | set(book.maybe), "every record is accepted")
        finally:
            for member in members:
                member.finish()
            if not writing_is_over:
                writing.finish()
        assert not book.wrong, book.wrong[:10]
        assert written <= set(book.delivered)
        assert len(book.maybe - set(book.done)) < len(book.done) / 10, "most accepts are answered"


def kill(brokers: Brokers, node_id: int, then: Callable[[], None]) -> None:
    brokers.end(node_id, signal.SIGKILL)
    then()
    brokers.start(node_id)


def stop(brokers: Brokers, node_id: int, then: Callable[[], None]) -> None:
    brokers.end(node_id, signal.SIGTERM)
    then()
    brokers.start(node_id)


def pause(brokers: Brokers, node_id: int, then: Callable[[], None]) -> None:
    brokers.pause(node_id)
    then()
    brokers.go_on(node_id)
