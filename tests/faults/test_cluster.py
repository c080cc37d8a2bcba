"""Real brokers of a cluster under a producer: killed, paused, stopped, cut off and robbed of their disks, one after another.

The rules that these faults try are those of ADR 0023 and 0024.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster import (
    NODES,
    PARTITIONS,
    WAIT_S,
    Brokers,
    Writing,
    all_in_sync,
    brokers_running,
    controller_of,
    read,
    seen,
    until,
)

pytestmark = pytest.mark.faults

SETTINGS = {"replica_lag_time_max_ms": 2_000, "leader_imbalance_check_interval_seconds": 2}


class Faults:
    """What can happen to a cluster of three. Each method does it, waits until records are acknowledged all the same, mends it."""

    def __init__(self, brokers: Brokers, admin: AdminClient, writing: Writing, rng: random.Random) -> None:
        self._brokers = brokers
        self._admin = admin
        self._writing = writing
        self._rng = rng

    def _one(self) -> int:
        return self._rng.choice(NODES)

    def _end(self, node_id: int, how: signal.Signals) -> None:
        self._brokers.end(node_id, how)
        self._writing.wait_for_more()

    def kill(self) -> None:
        node_id = self._one()
        self._end(node_id, signal.SIGKILL)
        self._brokers.start(node_id)

    def kill_the_controller(self) -> None:
        node_id = controller_of(self._admin)
        self._end(node_id, signal.SIGKILL)
        self._brokers.start(node_id)

    def stop(self) -> None:
        node_id = self._one()
        self._end(node_id, signal.SIGTERM)
        self._brokers.start(node_id)

    def roll(self) -> None:
        """Stop and start each broker in turn."""
        for node_id in self._rng.sample(NODES, len(NODES)):
            self._end(node_id, signal.SIGTERM)
            self._brokers.start(node_id)
            until(lambda: all_in_sync(self._admin), f"all are in sync after broker {node_id} was rolled")

    def pause(self) -> None:
        node_id = self._one()
        self._brokers.pause(node_id)
        self._writing.wait_for_more()
        self._brokers.go_on(node_id)

    def lose_the_disk(self) -> None:
        node_id = self._one()
        self._end(node_id, signal.SIGKILL)
        self._brokers.lose_disk(node_id)
        self._brokers.start(node_id)

    def cut_off(self) -> None:
        """One broker and the others do not hear each other; clients and the bucket hear all."""
        assert self._brokers.links is not None
        ways = self._brokers.links.apart([self._one()], NODES)
        self._brokers.links.cut(ways)
        self._writing.wait_for_more()
        self._brokers.links.heal(ways)

    def cut_one_way(self) -> None:
        assert self._brokers.links is not None
        one, other = self._rng.sample(NODES, 2)
        self._brokers.links.cut([(one, other)])
        self._writing.wait_for_more()
        self._brokers.links.heal()

    def reset(self) -> None:
        assert self._brokers.links is not None
        self._brokers.links.reset(self._brokers.links.apart([self._one()], NODES))
        self._writing.wait_for_more()

    def lose_the_bucket(self) -> None:
        node_id = self._one()
        self._brokers.cut_bucket(node_id)
        self._writing.wait_for_more()
        self._brokers.heal_bucket(node_id)

    def all_lose_the_bucket(self) -> None:
        """Nothing of the cluster can change meanwhile."""
        for node_id in NODES:
            self._brokers.cut_bucket(node_id)
        self._writing.wait_for_more()
        for node_id in NODES:
            self._brokers.heal_bucket(node_id)

    def isolate(self) -> None:
        """One broker hears neither the others nor the bucket; clients hear it."""
        assert self._brokers.links is not None
        node_id = self._one()
        ways = self._brokers.links.apart([node_id], NODES)
        self._brokers.cut_bucket(node_id)
        self._brokers.links.cut(ways)
        self._writing.wait_for_more()
        self._brokers.links.heal(ways)
        self._brokers.heal_bucket(node_id)

    def all(self) -> list[Callable[[], None]]:
        return [
            self.kill,
            self.stop,
            self.pause,
            self.reset,
            self.kill_the_controller,
            self.cut_off,
            self.lose_the_bucket,
            self.lose_the_disk,
            self.all_lose_the_bucket,
            self.isolate,
            self.cut_one_way,
            self.roll,
        ]


@pytest.mark.parametrize(
    ("faults", "seed"), [(12, 1), *(pytest.param(50, seed, marks=pytest.mark.slow) for seed in (2, 3, 4, 5))]
)
def test_every_acknowledged_record_is_there_once_and_in_order(tmp_path: Path, faults: int, seed: int) -> None:
    rng = random.Random(seed)
    with brokers_running(tmp_path, proxied=True, settings=SETTINGS) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        until(lambda: len(seen(admin).brokers) == 3, "three brokers are in the cluster")
        topic = NewTopic("t", PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["t"].result(WAIT_S)
        writing = Writing(brokers.bootstrap)
        kinds = Faults(brokers, admin, writing, rng).all()
        try:
            writing.wait_for_more()
            for number in range(faults):
                fault = kinds[number] if number < len(kinds) else rng.choice(kinds)
                fault()
                until(lambda: all_in_sync(admin), f"all are in sync after fault {number}, {fault.__name__}")
                writing.wait_for_more()
        finally:
            writing.finish()
        assert writing.refused == []
        for partition in range(PARTITIONS):
            found = read(brokers.bootstrap, partition)
            assert [number for _, number in found] == sorted({number for _, number in found}), "once, in order"
            at = {number: offset for offset, number in found}
            assert writing.acknowledged[partition].items() <= at.items()
