"""Consumer groups of both protocols, which read what is written and commit, while brokers of their cluster die."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.cluster import PARTITIONS, WAIT_S, Writing
from tests.support.waiting import block_until

PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"group.protocol": "classic", "session.timeout.ms": 30_000, "heartbeat.interval.ms": 500},
    "cooperative": {
        "group.protocol": "classic",
        # A member of librdkafka (2.16) that hears no coordinator for so long forgets its member id. Then Kafka and Firn fence the
        # commits of a static member, which ends it for good.
        "session.timeout.ms": 300_000,
        "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": "cooperative-sticky",
        "group.instance.id": "static",
    },
    "consumer": {"group.protocol": "consumer"},
}


STUCK_S: Final = 2 * WAIT_S
"""A member that has not ended after so long never will."""


class Group:
    """What the members of one group have read and committed, and what they found wrong."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.read: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.committed = [0] * PARTITIONS
        """The highest offset whose commit was acknowledged."""
        self.tried = [0] * PARTITIONS
        """The highest offset that a member wanted to commit."""
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def is_tried(self, partition: int, offset: int) -> None:
        with self.lock:
            self.tried[partition] = max(self.tried[partition], offset)

    def was_committed(self, partition: int, offset: int) -> None:
        with self.lock:
            self.committed[partition] = max(self.committed[partition], offset)

    def check(self, found: TopicPartition, least: int) -> None:
        """A committed offset that a coordinator told: nothing that was acknowledged before is lost."""
        if max(found.offset, 0) < least:  # it is below 0 as long as there is none
            self.wrong.append(f"{self.name}: partition {found.partition} went back from {least} to {found.offset}")


class Member:
    """A consumer in a thread: it reads, commits each batch and waits for the acknowledgement, and asks for what is committed."""

    def __init__(self, bootstrap: str, group: Group, number: int, client: Mapping[str, Any]) -> None:
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
                "socket.timeout.ms": 3_000,
                "reconnect.backoff.max.ms": 200,
                **settings,
                **client,
            }
        )
        self._stop = threading.Event()
        self._call = ("has not begun", time.monotonic())
        self._failed = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        group = self._group
        try:
            self._consumer.subscribe(["t"])
            rounds = 0
            while not self._stop.is_set():
                self._begins("reads")
                ends: dict[int, int] = {}
                for message in self._consumer.consume(500, 0.2):
                    error = message.error()
                    if error is not None:
                        self._failed = error.str() if error.fatal() else self._failed
                        continue
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
        for partition, end in ends.items():
            self._group.is_tried(partition, end)
        self._begins(f"commits {ends}")
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
        self._begins("asks for committed offsets")
        try:
            found = self._consumer.committed([TopicPartition("t", index) for index in range(PARTITIONS)], timeout=5)
        except KafkaException:
            return
        for one in found:
            if one.error is None:
                group.check(one, least[one.partition])

    def _begins(self, call: str) -> None:
        self._call = (call, time.monotonic())

    def doing(self) -> str:
        """The call of the client library that the thread is in, and since when; or why it can do no more."""
        call, since_s = self._call
        if self._failed:
            return f"{self._group.name}-{self._number} failed for good: {self._failed}"
        return f"{self._group.name}-{self._number} {call} since {time.monotonic() - since_s:.1f} s"

    def stop(self) -> None:
        self._stop.set()

    def finish(self) -> bool:
        """Returns: whether it has ended. librdkafka (2.16) may lose its coordinator for good, and never return from a commit."""
        self._thread.join(STUCK_S)
        return not self._thread.is_alive()


class Groups:
    """A group of two members for each protocol."""

    name = "consumer groups"
    between_brokers = False

    def __init__(
        self, bootstrap: str, writing: Writing, *, client: Mapping[str, Any] | None = None, may_hang: bool = False
    ) -> None:
        """``client``: settings with which members get in. ``may_hang``: whether one member of each group may never end."""
        self._may_hang = may_hang
        self.groups = [Group(name) for name in PROTOCOLS]
        self._bootstrap = bootstrap
        self._writing = writing
        self._members = [Member(bootstrap, group, number, client or {}) for group in self.groups for number in (1, 2)]

    def doings(self) -> list[str]:
        """For each member: the call of its client library that it is in."""
        return [member.doing() for member in self._members]

    def described(self, name: str) -> str:
        """The state of a group and the partitions of its members, as its coordinator tells, or why it does not."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        try:
            told = admin.describe_consumer_groups([name], request_timeout=5)[name].result(10)
        except KafkaException as error:
            return f"{name}: {error}"
        members = {
            f"{one.client_id} ({one.group_instance_id})": sorted(at.partition for at in one.assignment.topic_partitions)
            for one in told.members
        }
        return f"{name}: {told.state.name} at broker {told.coordinator.id}, members {members}"

    def more(self) -> Callable[[], bool]:
        """Whether every group has committed more of every partition since this call."""
        before = [list(group.committed) for group in self.groups]
        return lambda: all(
            now > old
            for group, olds in zip(self.groups, before, strict=True)
            for now, old in zip(group.committed, olds, strict=True)
        )

    def finish(self) -> None:
        """After the end of the producer: wait until everything was read. A second call does nothing."""
        try:
            block_until(lambda: not self._missing(), "groups read everything")
        except AssertionError as error:
            raise AssertionError(f"{error}, but {self._missing()}") from None
        finally:
            self.stop()

    def stop(self) -> None:
        for member in self._members:
            member.stop()
        ended = [member.finish() for member in self._members]
        both = list(zip(ended[::2], ended[1::2], strict=True))
        assert all(one or other if self._may_hang else one and other for one, other in both), f"members end: {both}"
        if not all(ended):
            print(f"{ended.count(False)} members are stuck in their clients", flush=True)

    def _missing(self) -> list[str]:
        return [
            f"{group.name} lacks {len(missing)} of partition {partition}, first {min(missing)}"
            for group in self.groups
            for partition, offsets in enumerate(self._writing.acknowledged)
            if (missing := set(offsets.values()) - {-1} - group.read[partition])
        ]

    def check(self) -> None:
        """After ``finish``: no committed offset went back."""
        assert [wrong for group in self.groups for wrong in group.wrong] == []

    def check_exact(self, client: Mapping[str, Any] | None = None) -> None:
        """After ``finish``: what is committed was acknowledged, or is a later offset whose commit was not answered. ``client``:
        settings with which a consumer gets in."""
        for group in self.groups:
            settings = {"bootstrap.servers": self._bootstrap, "group.id": group.name, **(client or {})}
            consumer = Consumer({**settings, "enable.auto.commit": False})
            try:
                asked = [TopicPartition("t", index) for index in range(PARTITIONS)]
                found = {one.partition: max(one.offset, 0) for one in consumer.committed(asked, timeout=WAIT_S)}
            finally:
                consumer.close()
            known = zip(group.committed, group.tried, strict=True)
            wrong = {
                index: (found[index], acknowledged, tried)
                for index, (acknowledged, tried) in enumerate(known)
                if not acknowledged <= found[index] <= tried
            }
            assert not wrong, f"{group.name}: (found, acknowledged, tried) by partition: {wrong}"


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

    block_until(is_known, f"the coordinator of {group} is known: {refused}")
    return found[-1]
