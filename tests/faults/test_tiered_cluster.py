"""Three broker processes under a producer of a tiered topic: killed, paused and stopped while they upload (ADR 0024, T)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from app.cli.session import connected
from app.client import admin as firn
from app.wire.private import PartitionTierStatus
from tests.support.cluster import NODES, PARTITIONS, Writing, brokers_running, create_topics
from tests.support.cluster_faults import Faults
from tests.support.waiting import block_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]
FAULTS = 50
CONFIG = {
    "remote_storage_enable": "true",
    "segment_ms": "300",
    "local_retention_ms": "0",
    "retention_ms": "-1",
}
SETTINGS = {"remote_log_manager_task_interval_ms": 200}


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


@pytest.mark.parametrize("seed", [2, 3])
def test_every_acknowledged_record_is_read_from_the_tier_once_and_in_order(tmp_path: Path, seed: int) -> None:
    with brokers_running(tmp_path, settings=SETTINGS) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        create_topics(admin, "t", **CONFIG)
        writing = Writing(brokers.bootstrap)
        faults = Faults(brokers, random.Random(seed), [writing])
        try:
            faults.run([faults.kill, faults.pause, faults.kill, faults.stop], FAULTS)
            block_until(lambda: is_in_the_tier(brokers.bootstrap), "followers and leaders have left most to the tier")
        finally:
            writing.finish()
        assert [one.faults for one in tiers(brokers.bootstrap) if one.faults] == []
        writing.check(brokers.bootstrap)
