"""The demo of several brokers: the broker that is killed, and the partitions that count as written again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli.demo_brokers import DemoBrokers, Killing, all_in_sync, ports_by_id
from app.demo import TOPIC, DemoFailed

PORTS = {1: 9001, 2: 9002, 3: 9003}


class Process:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def kill(self) -> None:
        self.calls.append("kill")

    def wait(self) -> None:
        self.calls.append("wait")


class Cluster:
    """Three brokers, and the metadata that they tell."""

    def __init__(self, leaders: Mapping[int, int]) -> None:
        self.leaders = dict(leaders)
        self.in_sync = 3
        self.processes = {port: Process() for port in PORTS.values()}
        processes: Any = self.processes
        admin: Any = self
        self.brokers = DemoBrokers(Path("/demo"), list(PORTS.values()), processes, admin)

    def list_topics(self, timeout: float) -> Any:
        del timeout
        partitions = {
            index: SimpleNamespace(leader=leader, isrs=range(self.in_sync), replicas=range(3))
            for index, leader in self.leaders.items()
        }
        brokers = {node_id: SimpleNamespace(port=port) for node_id, port in PORTS.items()}
        return SimpleNamespace(topics={TOPIC: SimpleNamespace(partitions=partitions)}, brokers=brokers)

    def killing(self) -> Killing:
        return Killing(self.brokers, PORTS)


def test_the_leader_of_the_first_partition_is_killed() -> None:
    cluster = Cluster({0: 2, 1: 3, 2: 2, 3: 1})
    killing = cluster.killing()
    killing.kill()
    assert (killing.node_id, killing.port) == (2, 9002)
    assert {port: process.calls for port, process in cluster.processes.items()} == {
        9001: [],
        9002: ["kill", "wait"],
        9003: [],
    }


def test_all_its_partitions_must_be_written_again_under_other_leaders() -> None:
    cluster = Cluster({0: 2, 1: 3, 2: 2, 3: 1})
    killing = cluster.killing()
    killing.kill()
    for partition in range(4):
        killing.stored(partition)  # by the killed broker, before
    with pytest.raises(DemoFailed, match=r"broker 2 led has no other leader: \[0, 2\]"):
        killing.told()
    cluster.leaders |= {0: 3, 2: -1}
    for partition in range(4):
        killing.stored(partition)
    with pytest.raises(DemoFailed, match=r"no other leader: \[2\]"):
        killing.told()
    cluster.leaders[2] = 1
    killing.stored(2)
    told = killing.told()
    assert told.startswith(f"broker 2, which led {TOPIC}-0, {TOPIC}-2, was killed with SIGKILL")


def test_the_topic_is_in_sync_if_all_replicas_of_all_led_partitions_are() -> None:
    cluster = Cluster({0: 1, 1: 2})

    def holds() -> bool:
        return all_in_sync(cluster.list_topics(0))

    assert holds()
    cluster.in_sync = 2
    assert not holds()
    cluster.in_sync = 3
    cluster.leaders[1] = -1
    assert not holds()
    cluster.leaders.clear()
    assert not holds(), "it has no partition yet"
    assert not all_in_sync(SimpleNamespace(topics={}))  # type: ignore[arg-type]


def test_brokers_are_known_by_id_and_reached_by_all_their_ports() -> None:
    cluster = Cluster({0: 1})
    assert ports_by_id(cluster.brokers, 3) == PORTS
    assert cluster.brokers.bootstrap == "127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003"
    assert cluster.brokers.bucket == Path("/demo/bucket")
