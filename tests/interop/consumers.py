"""Consumers of groups, and records for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from app.wire.apikeys import ApiKey
from tests.interop.java_programs import JavaProgram
from tests.interop.peers import request
from tests.interop.serving import Raw, Served

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not here")

from confluent_kafka import Producer

DEADLINE_S = 60.0


class Reader:
    """A consumer of a group, of any client: it polls, and tells what it has."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def poll(self) -> None: ...

    def assignment(self) -> set[tuple[str, int]]: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


class Java(Reader):
    count = 0

    def __init__(self, java: JavaProgram, firn: Served, group: str, *settings: str) -> None:
        super().__init__()
        Java.count += 1
        self._java = java
        self._name = f"c{Java.count}"
        self("open", f"bootstrap.servers={firn.bootstrap}", f"group.id={group}", *settings)

    def __call__(self, *words: object) -> list[str]:
        answer = self._java.ask(self._name, *words)
        status, *found = answer.strip().split(" ")
        assert status == "ok", answer
        return found

    def poll(self) -> None:
        self.values += self("poll", 50)

    def assignment(self) -> set[tuple[str, int]]:
        places = (place.rpartition("-") for place in self("assignment"))
        return {(topic, int(partition)) for topic, _, partition in places}

    def commit(self) -> None:
        """A classic member that learns of a rebalance (on a busy machine its heartbeats are late) has to poll before it can."""
        deadline = time.monotonic() + DEADLINE_S
        while not (answer := self._java.ask(self._name, "commit").strip()).startswith("ok"):
            assert answer.startswith("RebalanceInProgressException"), answer
            assert time.monotonic() < deadline, answer
            self.poll()

    def close(self) -> None:
        self("close")


def produce(firn: Served, topic: str, partitions: int, values: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": firn.bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % partitions)
    assert producer.flush(DEADLINE_S) == 0


def settle(readers: Sequence[Reader], sizes: Sequence[int], places: int) -> None:
    """Poll until every reader has as many partitions as it should, and no two have the same."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for reader in readers:
            reader.poll()
        assigned = [reader.assignment() for reader in readers]
        if sorted(map(len, assigned)) == sorted(sizes) and len(set().union(*assigned)) == places:
            return
        assert time.monotonic() < deadline, assigned


def read_all(readers: Sequence[Reader], values: Sequence[str]) -> None:
    """Poll until all of these values are read, each once. (Others may come twice: what was not committed when it moved.)"""
    deadline = time.monotonic() + DEADLINE_S
    wanted = Counter(values)
    while True:
        counts = Counter(value for reader in readers for value in reader.values if value in wanted)
        if counts == wanted:
            return
        assert time.monotonic() < deadline, counts
        for reader in readers:
            reader.poll()


def described(firn: Served, group: str) -> Any:
    with Raw(firn.port) as raw:
        (found,) = raw.ask(
            ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request(ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=[group])
        ).groups
    return found
