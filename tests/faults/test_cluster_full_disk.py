"""One broker of a cluster has a full disk, for real: what the others lead goes on, nothing is lost, and room mends it."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.cluster import PARTITIONS, Writing, brokers_running, create_topics, seen
from tests.support.cluster_faults import Faults
from tests.support.small_disk import fill, put_ballast, small_file_system
from tests.support.waiting import block_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]
FULL = 1
ROUNDS = 3
SETTINGS = {"replica_lag_time_max_ms": 2_000, "leader_imbalance_check_interval_seconds": 2}


def led_by_others(admin: AdminClient) -> list[int]:
    partitions = seen(admin).topics["t"].partitions
    return [index for index, one in partitions.items() if one.leader not in (FULL, -1)]


def wait_for_more(writing: Writing, partitions: list[int]) -> None:
    before = [len(found) for found in writing.acknowledged]
    block_until(
        lambda: all(len(writing.acknowledged[index]) > before[index] + 20 for index in partitions),
        f"records are acknowledged in {partitions}",
    )


@pytest.mark.parametrize("killed", [False, True])
def test_a_broker_with_a_full_disk_stops_only_what_it_leads(tmp_path: Path, killed: bool) -> None:
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    with (
        small_file_system(cluster / f"broker-{FULL}") as disk,
        brokers_running(cluster, settings=SETTINGS) as brokers,
    ):
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        create_topics(admin, "t")
        writing = Writing(brokers.bootstrap)
        faults = Faults(brokers, random.Random(1), [writing])
        try:
            for _ in range(ROUNDS):
                writing.wait_for_more()
                block_until(lambda: len(led_by_others(admin)) < PARTITIONS, "the broker with the full disk leads some")
                others = led_by_others(admin)
                ballast = put_ballast(disk, 0)
                fill(ballast)
                block_until(
                    lambda: any(FULL not in one.isrs for one in seen(admin).topics["t"].partitions.values()),
                    "a follower that cannot store records is not in sync",
                )
                wait_for_more(writing, others)
                if killed:
                    brokers.end(FULL, signal.SIGKILL)
                    writing.wait_for_more()
                    brokers.start(FULL)
                    writing.wait_for_more()
                ballast.unlink()
                faults.settle("there is room again")
                faults.go_on()
        finally:
            writing.finish()
        writing.check(brokers.bootstrap)
