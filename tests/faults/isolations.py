"""Brokers of a cluster that hear neither the others nor the bucket, under groups of all kinds (ADR 0040).

    python -m tests.faults.isolations BROKERS FAULTS SEED [OBJECT]

prints how long each group needed to get on, from the beginning of each fault, and who was cut off. With ``OBJECT`` the records, and
what coordinators keep, are in the object store.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from tests.faults import share_load
from tests.faults.group_load import Groups
from tests.faults.share_load import Shares
from tests.support.cluster import PARTITIONS, WAIT_S, Brokers, Writing, brokers_running, controller_of, seen
from tests.support.waiting import block_until

LOOKS: Final = 10
LOOK_S: Final = 0.3
HOLD_S: Final = 2.0
"""How long a fault lasts at least after all have got on."""
SETTINGS: Final[Mapping[str, object]] = (
    share_load.SETTINGS
    | {
        "group_initial_rebalance_delay_ms": 0,
        "group_consumer_heartbeat_interval_ms": 500,
        "group_consumer_min_heartbeat_interval_ms": 500,
        "group_share_heartbeat_interval_ms": 500,
        "group_share_min_heartbeat_interval_ms": 500,
        "replica_lag_time_max_ms": 5_000,  # a follower of a busy machine stays in sync; one that is cut off is fenced after 3 s
    }
)


def is_whole(brokers: Brokers) -> bool:
    """Whether all brokers are there, and all replicas in sync."""
    found = seen(brokers.admin)
    return (
        len(found.brokers) == len(brokers.nodes)
        and bool(found.topics)
        and all(
            one.leader >= 0 and len(one.isrs) == len(one.replicas)
            for topic in found.topics.values()
            for one in topic.partitions.values()
        )
    )


def wait_until_whole(brokers: Brokers, when: str) -> None:
    """Until every broker says so, as far as can be told: each look asks any of them. A broker that takes the others for fenced is
    alone in its cluster, and would never be isolated."""
    for _ in range(LOOKS):
        try:
            block_until(lambda: is_whole(brokers), "")
        except AssertionError:
            lacking = [
                f"{name}-{one.id}: leader {one.leader}, in sync {one.isrs} of {one.replicas}"
                for name, topic in seen(brokers.admin).topics.items()
                for one in topic.partitions.values()
                if len(one.isrs) < len(one.replicas)
            ]
            raise AssertionError(f"all are in sync {when}, but {lacking}") from None
        time.sleep(LOOK_S)


def cut_off(brokers: Brokers, victim: int, when: str, *, in_store: bool) -> tuple[Collection[tuple[int, int]], float]:
    """Cut a broker off from the others and from the bucket. Returns: the ways that are cut, and since when on the monotonic clock.

    On a busy machine a follower lags now and then for longer than ``replica.lag.time.max.ms``. No other broker may lead what the
    victim led while nobody else was in sync, so then the cut is made again. After the cut the victim cannot change in-sync sets.
    """
    assert brokers.links is not None
    ways = brokers.links.apart([victim], brokers.nodes)
    others = ",".join(address for node_id, address in brokers.addresses.items() if node_id != victim)
    end = time.monotonic() + WAIT_S
    while True:
        wait_until_whole(brokers, when)
        began_s = time.monotonic()
        brokers.cut_bucket(victim)
        brokers.links.cut(ways)
        found: list[ClusterMetadata] = []

        def is_told(found: list[ClusterMetadata] = found) -> bool:
            admin = AdminClient({"bootstrap.servers": others, **brokers.client_of("admin")})
            found.append(seen(admin))
            return bool(found[-1].topics)

        block_until(is_told, f"another broker than {victim} says who is in sync")
        partitions = [one for topic in found[-1].topics.values() for one in topic.partitions.values()]
        if in_store or all(one.isrs != [victim] for one in partitions):
            return ways, began_s
        assert time.monotonic() < end, f"{when}: other replicas stay in sync with broker {victim}"
        print(
            f"{time.time():.2f} nobody was in sync with broker {victim} at the cut: it is healed, and cut again",
            flush=True,
        )
        heal(brokers, victim, ways)


def heal(brokers: Brokers, victim: int, ways: Collection[tuple[int, int]]) -> None:
    assert brokers.links is not None
    brokers.links.heal(ways)
    brokers.heal_bucket(victim)


class Clients:
    """A producer, groups of both protocols with static and cooperative members, and a share group."""

    def __init__(self, brokers: Brokers, seed: int, *, in_store: bool) -> None:
        config = {"min.insync.replicas": str(min(2, len(brokers.nodes) - 1))}
        if in_store:
            config |= {"firn.durability": "object", "firn.wal.linger.ms": "50"}
        block_until(lambda: len(seen(brokers.admin).brokers) == len(brokers.nodes), "all brokers are in the cluster")
        topic = NewTopic("t", PARTITIONS, min(3, len(brokers.nodes)), config=config)
        admin = brokers.admin
        admin.create_topics([topic])["t"].result(WAIT_S)
        block_until(lambda: is_whole(brokers), "the topic is there")
        self.writing = Writing(brokers.bootstrap, pace_s=0.04)
        self.groups = Groups(brokers.bootstrap, self.writing)
        self.shares = Shares(brokers.bootstrap, self.writing, seed)

    def more(self) -> dict[str, Callable[[], bool]]:
        """By group: whether it has got something done, in every partition, that began after this call."""
        found: dict[str, Callable[[], bool]] = {"share group": self.shares.more(), "producer": self.writing.more()}
        for group in self.groups.groups:
            before = list(group.committed)
            found[group.name] = lambda group=group, before=before: all(  # type: ignore[misc]
                now > old for now, old in zip(group.committed, before, strict=True)
            )
        return found

    def get_on(self, what: str, began_s: float | None = None) -> dict[str, float]:
        """Wait until all have got on. Returns: how long each needed, in seconds from ``began_s``, or from now."""
        began_s = time.monotonic() if began_s is None else began_s
        waiting = self.more()
        took_s: dict[str, float] = {}

        def all_have() -> bool:
            for name, has in waiting.items():
                if name not in took_s and has():
                    took_s[name] = time.monotonic() - began_s
            return len(took_s) == len(waiting)

        try:
            block_until(all_have, what)
        except AssertionError:
            stuck = sorted(waiting.keys() - took_s.keys())
            told = [self.groups.described(one.name) for one in self.groups.groups if one.name in stuck]
            raise AssertionError(
                f"{what}: {stuck} did not get on; {took_s}; {told}; committed"
                f" { {one.name: one.committed for one in self.groups.groups} }; members: {self.groups.doings()}"
            ) from None
        return took_s

    def finish(self) -> None:
        """Write no more, and wait until everything was read."""
        self.writing.finish()
        self.groups.finish()
        self.shares.finish()

    def stop(self) -> None:
        self.groups.stop()
        self.shares.stop()
        self.writing.finish()

    def check(self, brokers: Brokers) -> None:
        self.writing.check(brokers.bootstrap)
        self.groups.check()
        self.shares.check()


def isolate(
    path: Path, nodes: int, count: int, seed: int, *, in_store: bool = False
) -> list[tuple[str, dict[str, float]]]:
    """Cut brokers off from the others and from the bucket, one after another; the controller is every second one. Each time all
    clients have to get on before it is healed. Returns: who was cut off, and how long each client needed."""
    rng = random.Random(seed)
    found: list[tuple[str, dict[str, float]]] = []
    settings = dict(SETTINGS)
    if nodes == 2:  # one of two brokers is away: it is to be enough
        settings["share_coordinator_state_topic_min_isr"] = 1
    if in_store:
        settings |= {"new_level": 3, "firn_internal_durability": "object"}
    with brokers_running(path, range(1, nodes + 1), proxied=True, settings=settings) as brokers:
        clients = Clients(brokers, seed, in_store=in_store)
        try:
            clients.get_on("before the first fault")
            for number in range(count):
                controller = controller_of(brokers.admin)
                others = [one for one in brokers.nodes if one != controller]
                victim = controller if number % 2 else rng.choice(others)
                who = "the controller" if victim == controller else "another broker"
                ways, began_s = cut_off(brokers, victim, f"before fault {number + 1}", in_store=in_store)
                took_s = clients.get_on(f"fault {number + 1}, {who}, broker {victim} of {nodes}, is cut off", began_s)
                time.sleep(HOLD_S)
                heal(brokers, victim, ways)
                found.append((who, took_s))
                slowest = ", ".join(f"{name} {s:.1f}" for name, s in sorted(took_s.items(), key=lambda one: -one[1]))
                print(f"{time.time():.2f} {number + 1}: {who}, broker {victim} of {nodes}: {slowest}", flush=True)
                wait_until_whole(brokers, f"after fault {number + 1}")
                clients.get_on(f"after fault {number + 1}")
            clients.finish()
        finally:
            clients.stop()
        clients.check(brokers)
        for node_id in brokers.nodes:
            assert "Traceback" not in brokers.lines(node_id), node_id
    return found


if __name__ == "__main__":
    brokers_, faults_, seed_ = map(int, sys.argv[1:4])
    with tempfile.TemporaryDirectory() as folder:
        took = isolate(Path(folder), brokers_, faults_, seed_, in_store="OBJECT" in sys.argv[4:])
    longest: dict[tuple[str, str], float] = {}
    for who_, each in took:
        for name_, seconds in each.items():
            longest[who_, name_] = max(longest.get((who_, name_), 0.0), seconds)
    for (who_, name_), seconds in sorted(longest.items()):
        print(f"{who_} of {brokers_} cut off, {name_}: {seconds:.1f} s at most")
