"""Real brokers that lose their disks at every restart, under producers of topics with ``firn.durability=object`` (ADR 0037)."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.faults.object_load import (
    OBJECT,
    SETTINGS,
    TIERED,
    TOPIC,
    Careless,
    Following,
    check,
    create_all,
    wait_until_led,
)
from tests.faults.served import BUG
from tests.support.cluster import Brokers, Writing, brokers_running
from tests.support.cluster_faults import wait_for_more

pytestmark = pytest.mark.faults
MANY = 100


def end_and_wipe(brokers: Brokers, nodes: Sequence[int]) -> None:
    """All at once, and what they had on their disks is gone."""
    for node_id in nodes:
        brokers.processes[node_id].send_signal(signal.SIGKILL)
    for node_id in nodes:
        brokers.end(node_id, signal.SIGKILL)
        if (brokers.path / f"broker-{node_id}" / "data").exists():
            brokers.lose_disk(node_id)


def kill(path: Path, nodes: Sequence[int], kills: int, seed: int, configs: Mapping[str, str]) -> None:
    """Kill one broker, or all, at random moments, and wipe their disks, while clients go on."""
    rng = random.Random(seed)
    with brokers_running(path, nodes, settings=SETTINGS) as brokers:
        create_all(brokers, configs)
        writing, following, careless = Writing(brokers.bootstrap), Following(brokers.bootstrap), Careless(brokers.bootstrap)
        try:
            wait_for_more([writing, following, careless])
            for number in range(kills):
                victims = brokers.nodes if rng.random() < 0.2 else (rng.choice(brokers.nodes),)
                at_work = rng.random() < 0.8
                print(f"{time.time():.2f} kill {number + 1}: {victims}{'' if at_work else ', at whatever they are'}")
                if at_work:
                    wait_for_more([writing])
                time.sleep(rng.uniform(0, 1.0))
                end_and_wipe(brokers, victims)
                if len(victims) < len(brokers.nodes) and rng.random() < 0.5:
                    wait_for_more([writing])  # without it
                for node_id in victims:
                    brokers.start(node_id)
            wait_until_led(brokers.admin, TOPIC)
            wait_for_more([writing, following])
        finally:
            careless.stop()
            following.stop()
            writing.finish()
        records = check(brokers.bootstrap, writing, following)
        print(f"seed {seed}: {records} records, {kills} kills")
        for node_id in brokers.nodes:
            found = [line for line in brokers.lines(node_id).splitlines() if BUG.search(line)]
            assert not found, (node_id, found)


@pytest.mark.ci
@pytest.mark.parametrize("configs", [OBJECT, TIERED], ids=["kept", "tiered"])
def test_one_broker_that_loses_its_disk_has_lost_doubled_and_reordered_nothing(
    tmp_path: Path, configs: Mapping[str, str]
) -> None:
    kill(tmp_path, [1], 3, 1, configs)


@pytest.mark.ci
def test_brokers_that_lose_their_disks_have_lost_doubled_and_reordered_nothing(tmp_path: Path) -> None:
    kill(tmp_path, [1, 2, 3], 4, 2, TIERED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_a_hundred_kills_of_one_broker(tmp_path: Path, seed: int) -> None:
    kill(tmp_path, [1], MANY, seed, TIERED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 6])
def test_a_hundred_kills_of_three_brokers(tmp_path: Path, seed: int) -> None:
    kill(tmp_path, [1, 2, 3], MANY, seed, TIERED)
