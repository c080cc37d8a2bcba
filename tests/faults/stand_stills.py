"""Producers with ``acks=all`` that stand still while a majority of the replicas is up and hears each other.

``StandStills`` decides by what it is told; ``Watch`` is a thread that looks at brokers and clients, and asks it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.cluster import Brokers
from tests.support.cluster_faults import Load

LIMIT_S: Final = 15.0
LOOK_S: Final = 0.1
ASK_S: Final = 2.0
"""How long a broker may take to say how it sees the cluster."""
LINES: Final = 4
"""Of each broker's log, in a failure."""

Partition: TypeAlias = tuple[str, int]


def majority(
    replicas: Collection[int], is_up: Callable[[int], bool], hear_each_other: Callable[[int, int], bool]
) -> bool:
    """Whether more than half of the replicas are up, each of which hears each other one of them."""
    up = [one for one in replicas if is_up(one)]
    return any(
        all(hear_each_other(one, other) for one, other in combinations(some, 2))
        for some in combinations(up, len(replicas) // 2 + 1)
    )


class StandStill(NamedTuple):
    """A while without an acknowledgement in which a majority was there."""

    partition: Partition
    since_s: float
    """When the last record before it was acknowledged, or when the majority was back, if that is later."""
    lasted_s: float
    """So far."""
    fault: str
    """What was under way when it began."""
    last_fault: str
    """What was under way at its end, or is now."""

    def __str__(self) -> str:
        topic, index = self.partition
        end = "" if self.fault == self.last_fault else f", until {self.last_fault}"
        return f"{topic}-{index} stood still for {self.lasted_s:.1f} s, from {self.fault}{end}"


class _Quiet(NamedTuple):
    """Since when a partition has had no acknowledgement."""

    count: int
    since_s: float
    fault: str


class StandStills:
    """The longest stand-still of each topic. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self.longest: dict[str, StandStill] = {}
        self._quiet: dict[Partition, _Quiet] = {}

    def look(self, now_s: float, counts: Mapping[Partition, int], *, is_majority: bool, fault: str) -> list[StandStill]:
        """``counts``: the records of each partition that are acknowledged by now. Returns: what stands still, the longest first."""
        if not is_majority:  # counting starts anew when it is back
            self._quiet.clear()
            return []
        found = []
        for partition, count in counts.items():
            before = self._quiet.setdefault(partition, _Quiet(count, now_s, fault))
            still = StandStill(partition, before.since_s, now_s - before.since_s, before.fault, fault)
            longest = self.longest.get(partition[0])
            if longest is None or still.lasted_s > longest.lasted_s:
                self.longest[partition[0]] = still
            if count != before.count:
                self._quiet[partition] = _Quiet(count, now_s, fault)
            found.append(still)
        return sorted(found, key=lambda one: -one.lasted_s)


class Watch:
    """A thread that looks at all producers until ``stop``. The first stand-still over ``limit_s`` is kept as ``failure``, with how
    each broker saw the cluster then."""

    def __init__(
        self,
        brokers: Brokers,
        counts: Callable[[], Mapping[Partition, int]],
        *,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._brokers = brokers
        self._counts = counts
        self.fault: Callable[[], str] = lambda: "the beginning"
        """Says what is under way."""
        self._limit_s = limit_s
        self._stills = StandStills()
        self.failure: str | None = None
        self.latest_s = 0.0
        """The longest time between two looks: a machine that is too busy for this thread."""
        self.counted_s = 0.0
        """How long a majority was there."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def longest(self) -> Mapping[str, StandStill]:
        """By topic."""
        return dict(self._stills.longest)

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._stop.wait(LOOK_S):
            now_s = time.monotonic()
            since_s, looked_s = now_s - looked_s, now_s
            self.latest_s = max(self.latest_s, since_s)
            is_majority = majority(self._brokers.nodes, self._brokers.is_up, self._brokers.hear_each_other)
            self.counted_s += since_s if is_majority else 0.0
            found = self._stills.look(now_s, self._counts(), is_majority=is_majority, fault=self.fault())
            if found and found[0].lasted_s > self._limit_s and self.failure is None:
                self.failure = self._tell(found, now_s)
                print(self.failure, flush=True)

    def _tell(self, found: list[StandStill], now_s: float) -> str:
        still = [one for one in found if one.lasted_s > self._limit_s / 2]
        began = time.time() - (now_s - found[0].since_s)
        return "\n".join(
            [
                f"acks=all stands still since {began:.2f}, though a majority is up and hears each other:",
                *(f"    {one}" for one in still),
                f"now: {self.fault()}; this thread was late by {self.latest_s:.1f} s at most",
                *(line for node_id in self._brokers.nodes for line in self._seen_by(node_id, still)),
            ]
        )

    def _seen_by(self, node_id: int, still: list[StandStill]) -> list[str]:
        """How a broker sees the cluster, and what it printed last."""
        brokers = self._brokers
        heard = [other for other in brokers.nodes if other != node_id and brokers.hear_each_other(node_id, other)]
        state = f"broker {node_id}, {'up' if brokers.is_up(node_id) else 'down'}, and {heard} hear each other; it "
        if brokers.is_up(node_id):
            client: dict[str, Any] = {"bootstrap.servers": brokers.addresses[node_id], **brokers.client_of("admin")}
            try:
                said = AdminClient(client).list_topics(timeout=ASK_S)
            except KafkaException as error:
                state += f"does not answer: {error}"
            else:
                state += f"sees {sorted(said.brokers)} under controller {said.controller_id}"
                for topic, index in (one.partition for one in still):
                    if topic in said.topics and index in said.topics[topic].partitions:
                        one = said.topics[topic].partitions[index]
                        state += f"; {topic}-{index} is led by {one.leader}, in sync {one.isrs}"
        else:
            state += "is not asked"
        return [state, *(f"    {line}" for line in brokers.lines(node_id).splitlines()[-LINES:])]

    def check(self) -> None:
        """No producer has stood still for too long."""
        assert self.failure is None, self.failure

    def stop(self) -> None:
        """Before producers end. A second call does nothing."""
        self._stop.set()
        self._thread.join()


class Watched:
    """A load whose waits end as soon as a producer has stood still for too long."""

    def __init__(self, load: Load, watch: Watch) -> None:
        self.name = load.name
        self.between_brokers = load.between_brokers
        self._load = load
        self._watch = watch

    def more(self) -> Callable[[], bool]:
        holds = self._load.more()

        def checked() -> bool:
            self._watch.check()
            return holds()

        return checked
