"""Three broker processes; consumer groups of both protocols read and commit while their coordinators are killed (ADR 0025)."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster import NODES, PARTITIONS, WAIT_S, brokers_running, seen, until

pytestmark = pytest.mark.faults

OFFSETS = "__consumer_offsets"
PACE_S = 0.05
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"group.protocol": "classic", "session.timeout.ms": 30_000, "heartbeat.interval.ms": 500},
    "cooperative": {
        "group.protocol": "classic",
        "session.timeout.ms": 30_000,
        "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": "cooperative-sticky",
        "group.instance.id": "static",
    },
    "consumer": {"group.protocol": "consumer"},
}


class Trickle:
    """A thread that produces a record to every partition now and then, and keeps the offsets that were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.refused: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "socket.timeout.ms": 5_000,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                self._producer.produce("t", b"%d" % number, partition=partition, on_delivery=self._done)
            number += 1
            self._producer.poll(PACE_S)
        self._producer.flush(WAIT_S)

    def _done(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[message.partition()].add(message.offset())
        else:
            self.refused.append(str(error))

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(2 * WAIT_S)
        assert not self._thread.is_alive()


class Group:
    """What the members of one group have read and committed, and what they found wrong."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.read: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.committed = [0] * PARTITIONS
        """The highest offset whose commit was acknowledged."""
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def was_committed(self, partition: int, offset: int) -> None:
        with self.lock:
            self.committed[partition] = max(self.committed[partition], offset)

    def check(self, found: TopicPartition, least: int) -> None:
        """A committed offset that a coordinator told: nothing that was acknowledged before is lost."""
        if max(found.offset, 0) < least:  # it is below 0 as long as there is none
            self.wrong.append(f"{self.name}: partition {found.partition} went back from {least} to {found.offset}")


class Member:
    """A consumer in a thread: it reads, commits each batch and waits for the acknowledgement, and asks for what is committed."""

    def __init__(self, bootstrap: str, group: Group, number: int) -> None:
        self._group = group
        self._number = number
        settings = dict(PROTOCOLS[group.name])
        if "group.instance.id" in settings:
            settings["group.instance.id"] += str(number)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group.name,
                "client.id": f"{group.name}-{number}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "socket.timeout.ms": 5_000,
                "reconnect.backoff.max.ms": 200,
                **settings,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        group = self._group
        try:
            self._consumer.subscribe(["t"])
            rounds = 0
            while not self._stop.is_set():
                messages = [one for one in self._consumer.consume(500, 0.2) if one.error() is None]
                ends: dict[int, int] = {}
                for message in messages:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    group.read[partition].add(offset)
                    ends[partition] = max(ends.get(partition, 0), offset + 1)
                if ends:
                    self._commit(ends)
                rounds += 1
                if rounds % 5 == 0:
                    self._ask()
        finally:
            self._consumer.close()

    def _commit(self, ends: dict[int, int]) -> None:
        try:
            done = self._consumer.commit(
                offsets=[TopicPartition("t", partition, end) for partition, end in ends.items()], asynchronous=False
            )
        except KafkaException:
            return  # not acknowledged: the partition may be another's by now, or the coordinator is gone
        for one in done or ():
            if one.error is None:
                self._group.was_committed(one.partition, one.offset)

    def _ask(self) -> None:
        group = self._group
        with group.lock:
            least = list(group.committed)
        try:
            found = self._consumer.committed([TopicPartition("t", index) for index in range(PARTITIONS)], timeout=5)
        except KafkaException:
            return
        for one in found:
            if one.error is None:
                group.check(one, least[one.partition])

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(2 * WAIT_S)
        assert not self._thread.is_alive()


def lacking(admin: AdminClient) -> list[str]:
    """What is not in sync on three brokers."""
    found = seen(admin)
    left = [] if len(found.brokers) == 3 else [f"there are {len(found.brokers)} brokers"]
    for name in ("t", OFFSETS):
        if name not in found.topics:
            left.append(f"there is no topic {name}")
            continue
        left += [
            f"{name}-{index} has {one.isrs}"
            for index, one in found.topics[name].partitions.items()
            if len(one.isrs) < 3
        ]
    return left


def wait_until_whole(admin: AdminClient, after: str) -> None:
    try:
        until(lambda: not lacking(admin), f"all are in sync after {after}")
    except AssertionError as error:
        raise AssertionError(f"{error}, but {lacking(admin)}") from None


def coordinator_of(bootstrap: str, group: str) -> int:
    """Asked with a client of its own: an older one remembers an older coordinator."""
    found: list[int] = []
    refused: list[str] = []

    def is_known() -> bool:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        try:
            node = admin.describe_consumer_groups([group], request_timeout=5)[group].result(10).coordinator
        except KafkaException as error:
            refused.append(str(error))
            return False
        found.append(node.id)
        return True

    until(is_known, f"the coordinator of {group} is known: {refused}")
    return found[-1]


@pytest.mark.parametrize(
    ("faults", "seed"), [(4, 1), *(pytest.param(30, seed, marks=pytest.mark.slow) for seed in (2, 3))]
)
def test_committed_offsets_never_go_back_and_every_record_is_read(tmp_path: Path, faults: int, seed: int) -> None:
    rng = random.Random(seed)
    with brokers_running(tmp_path) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        until(lambda: len(seen(admin).brokers) == 3, "three brokers are in the cluster")
        topic = NewTopic("t", PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["t"].result(WAIT_S)
        groups = [Group(name) for name in PROTOCOLS]
        writing = Trickle(brokers.bootstrap)
        members = [Member(brokers.bootstrap, group, number) for group in groups for number in (1, 2)]

        def more_is_committed() -> None:
            before = [list(group.committed) for group in groups]
            until(
                lambda: all(
                    now > old
                    for group, olds in zip(groups, before, strict=True)
                    for now, old in zip(group.committed, olds, strict=True)
                ),
                f"every group commits more than {before}",
            )

        try:
            more_is_committed()
            wait_until_whole(admin, "the start")
            for fault in range(faults):
                group = groups[fault % len(groups)]
                # Mostly the coordinator, sometimes somebody else, which may be the controller.
                node_id = rng.choice(NODES) if fault % 4 == 3 else coordinator_of(brokers.bootstrap, group.name)
                how = ("kill", "pause", "stop")[fault // len(groups) % 3]
                if how == "pause":
                    brokers.processes[node_id].send_signal(signal.SIGSTOP)
                    more_is_committed()
                    brokers.processes[node_id].send_signal(signal.SIGCONT)
                else:
                    brokers.end(node_id, signal.SIGKILL if how == "kill" else signal.SIGTERM)
                    more_is_committed()
                    brokers.start(node_id)
                wait_until_whole(admin, f"the {how} of broker {node_id}")
                more_is_committed()
        finally:
            writing.finish()
            until(
                lambda: all(
                    len(group.read[part]) >= len(writing.acknowledged[part])
                    for group in groups
                    for part in range(PARTITIONS)
                ),
                "everything is read",
            )
            for member in members:
                member.finish()
        assert writing.refused == []
        for group in groups:
            assert group.wrong == []
            for partition in range(PARTITIONS):
                assert writing.acknowledged[partition] <= group.read[partition], f"{group.name} misses records"
