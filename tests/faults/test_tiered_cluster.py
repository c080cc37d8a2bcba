"""Three broker processes under a producer of a tiered topic: killed, paused and stopped while they upload (ADR 0024, T)."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from app.cli.session import connected
from app.client import admin as firn
from app.client.firn_api import PartitionTierStatus
from tests.support.cluster import NODES, PARTITIONS, WAIT_S, Writing, all_in_sync, brokers_running, read, seen, until

pytestmark = pytest.mark.faults
CONFIG = {
    "min.insync.replicas": "2",
    "remote.storage.enable": "true",
    "segment.ms": "300",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}


def tiers(bootstrap: str) -> list[PartitionTierStatus]:
    """What each replica has of each partition."""

    async def ask() -> list[PartitionTierStatus]:
        async with connected(bootstrap) as cluster:
            answers = await firn.AdminClient(cluster).tier_answers(["t"], replicas=True)
        return [one for answer in answers.values() for one in answer.partitions]

    return asyncio.run(ask())


def is_in_the_tier(bootstrap: str) -> bool:
    """Whether all replicas have most records in the tier only."""
    found = tiers(bootstrap)
    return len(found) == PARTITIONS * len(NODES) and all(
        one.local_start_offset * 2 > one.log_end_offset for one in found
    )


@pytest.mark.parametrize(
    ("faults", "seed"),
    [pytest.param(faults, seed, marks=pytest.mark.slow) for faults, seed in ((4, 1), (50, 2), (50, 3))],
)
def test_every_acknowledged_record_is_read_from_the_tier_once_and_in_order(
    tmp_path: Path, faults: int, seed: int
) -> None:
    rng = random.Random(seed)
    with brokers_running(tmp_path, settings={"remote_log_manager_task_interval_ms": 200}) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        until(lambda: len(seen(admin).brokers) == 3, "three brokers are in the cluster")
        admin.create_topics([NewTopic("t", PARTITIONS, 3, config=CONFIG)])["t"].result(WAIT_S)
        writing = Writing(brokers.bootstrap)
        try:
            writing.wait_for_more()
            for fault in range(faults):
                node_id = rng.choice(NODES)
                how = ("kill", "pause", "kill", "stop")[fault % 4]
                if how == "pause":
                    brokers.pause(node_id)
                    writing.wait_for_more()
                    brokers.go_on(node_id)
                else:
                    brokers.end(node_id, signal.SIGKILL if how == "kill" else signal.SIGTERM)
                    writing.wait_for_more()
                    brokers.start(node_id)
                until(lambda: all_in_sync(admin), f"all are in sync after the {how} of broker {node_id}")
                writing.wait_for_more()
            until(lambda: is_in_the_tier(brokers.bootstrap), "followers and leaders have left most to the tier")
        finally:
            writing.finish()
        assert writing.refused == []
        assert [one.faults for one in tiers(brokers.bootstrap) if one.faults] == []
        for partition in range(PARTITIONS):
            found = read(brokers.bootstrap, partition)
            assert [number for _, number in found] == sorted({number for _, number in found}), "once, in order"
            at = {number: offset for offset, number in found}
            assert writing.acknowledged[partition].items() <= at.items()
