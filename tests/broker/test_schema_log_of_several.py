"""The log of schemas over three brokers, whose leader is killed (ADR 0041)."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

from app.client.cluster import ClusterClient
from app.client.schema_log import BrokerSchemaLog
from app.metadata.image.records import LEVEL_MAX
from app.registry.ownership import ownership_of
from app.registry.schema_log import EndMoved, Entry
from tests.support.broker import RunningBroker
from tests.support.schema_records import schema_record
from tests.support.several import cluster_on

SCHEMAS = 12


def leader_of(brokers: list[RunningBroker]) -> RunningBroker:
    (found,) = [one for one in brokers if (it := one.node.partitions.table.get("_schemas", 0)) is not None and it.leads]
    return found


async def whole(log: BrokerSchemaLog) -> tuple[list[Entry], int]:
    entries, end = await log.read(0)
    return entries, end


async def register(log: BrokerSchemaLog, subject: str) -> int:
    """Register a schema as a process does: read, decide, append; and again if another one was first. Returns: its id."""
    while True:
        entries, end = await whole(log)
        ownerships = [one for entry in entries if (one := ownership_of(entry.key, entry.value)) is not None]
        schema_id = 1 + max([one.greatest_of(".") for one in ownerships], default=0)
        try:
            await log.append(end, subject, [schema_record(subject, schema_id, f'"{subject}"')])
        except EndMoved:
            continue
        return schema_id


async def test_schemas_of_two_processes_have_ids_of_their_own_though_the_leader_is_killed_in_between(
    tmp_path: Path,
) -> None:
    settings = {"new_level": LEVEL_MAX, "default_replication_factor": 3}
    async with cluster_on(tmp_path, 3, **settings) as brokers:
        bootstrap = [("127.0.0.1", broker.port) for broker in brokers]
        async with (
            ClusterClient(bootstrap, rng=random.Random(1), retry_budget_ms=120_000) as first,
            ClusterClient(bootstrap, rng=random.Random(2), retry_budget_ms=120_000) as second,
        ):
            logs = [BrokerSchemaLog(first), BrokerSchemaLog(second)]
            ids = {"s-value": await register(logs[0], "s-value")}
            topic = brokers[0].node.cluster.image.topic("_schemas")
            assert topic is not None
            assert len(topic.partitions[0].replicas) == 3

            async def some(log: BrokerSchemaLog, name: str) -> None:
                for number in range(SCHEMAS):
                    subject = f"{name}-{number}-value"
                    ids[subject] = await register(log, subject)

            work = asyncio.gather(some(logs[0], "a"), some(logs[1], "b"))
            while len(ids) < SCHEMAS // 2:
                await asyncio.sleep(0.01)
            await leader_of(brokers).kill()
            async with asyncio.timeout(180):
                await work
            entries, _ = await whole(logs[0])
    told = [json.loads(entry.value) for entry in entries if entry.value is not None and b"SCHEMA" in entry.key]
    assert len(ids) == 2 * SCHEMAS + 1
    assert sorted(ids.values()) == list(range(1, 2 * SCHEMAS + 2)), "each id once, and none skipped"
    assert {one["subject"]: one["id"] for one in told} == ids
    assert Counter(one["subject"] for one in told) == Counter(ids.keys()), "each schema is written once"
