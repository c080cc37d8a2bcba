"""Topics, groups, schemas and an open transaction, so that each page of the console has something to show."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Mapping
from typing import Final

import httpx

from app.client.cluster import ClusterClient
from app.client.groups import GroupClient
from app.client.transactional_batches import write_batches
from app.client.transactions import begin_transaction
from app.core.units import PartitionIndex, TimestampMs, TopicPartition

TOPICS: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    "orders": (6, {}),
    "orders.dead-letters": (1, {"cleanup.policy": "compact"}),
    "payments.settled": (12, {"retention.ms": "86400000"}),
    "telemetry.of.machines.in.plants.with.a.rather.long.name-v2": (3, {"firn.durability": "object"}),
    "clicks": (24, {"retention.ms": "3600000"}),
}
"""Partitions and settings."""
RECORDS: Final = 40
"""Of each topic."""
FLIGHTS: Final = "flights"
"""The topic of the demo."""
USED_S: Final = 150.0
READ_EVERY: Final = 5
PAUSE_S: Final = 0.15
ID: Final = "settlement"
TIMEOUT_MS: Final = 900_000


async def fill(base: str) -> None:
    """Fill the cluster behind the HTTP process at ``base``, which has the demo's flights."""
    async with httpx.AsyncClient(base_url=base, timeout=60) as http:
        (cluster,) = (await http.get("/v3/clusters")).json()["data"]
        path = f"/v3/clusters/{cluster['cluster_id']}"
        (broker, *_) = (await http.get(f"{path}/brokers")).json()["data"]
        for name, (partitions, settings) in TOPICS.items():
            configs = [{"name": key, "value": value} for key, value in settings.items()]
            asked = {"topic_name": name, "partitions_count": partitions, "configs": configs}
            (await http.post(f"{path}/topics", json=asked)).raise_for_status()
            for number in range(RECORDS):
                value = {"number": number, "city": "Łódź", "amount": 12.5 * number}
                record = {
                    "partition_id": number % partitions,
                    "key": {"type": "STRING", "data": f"customer-{number % 7}"},
                    "headers": [{"name": "trace", "value": "YWJj"}],
                    "value": {"type": "JSON", "data": value},
                }
                (await http.post(f"{path}/topics/{name}/records", json=record)).raise_for_status()
        for names in (("carrier", "flight"), ("carrier", "flight", "delay")):
            fields = [{"name": name, "type": "string", "default": ""} for name in names]
            doc = "A flight that left New York."
            schema = json.dumps({"type": "record", "name": "Flight", "doc": doc, "fields": fields})
            (await http.post(f"/subjects/{FLIGHTS}-value/versions", json={"schema": schema})).raise_for_status()
    async with ClusterClient([(broker["host"], broker["port"])], rng=random.Random(1)) as client:
        await _groups(GroupClient(client))
        transaction = await begin_transaction(client, ID, timeout_ms=TIMEOUT_MS)
        record = (TimestampMs(1), None, b"open", ())
        await write_batches(client, transaction, {_place("orders", 0): [record]})


async def use(base: str) -> None:
    """Write to the topics and read the flights for ``USED_S``, so that rates, requests and dollars have values."""
    text = "x" * 2_000
    async with httpx.AsyncClient(base_url=base, timeout=60) as http:
        (cluster,) = (await http.get("/v3/clusters")).json()["data"]
        ends_s = time.monotonic() + USED_S
        for number in itertools.count():
            for name, (partitions, _) in TOPICS.items():
                value = {"type": "JSON", "data": {"number": number, "city": "Łódź", "text": text}}
                record = {"partition_id": number % partitions, "value": value}
                if "compact" not in TOPICS[name][1].get("cleanup.policy", ""):  # which takes no record without a key
                    path = f"/v3/clusters/{cluster['cluster_id']}/topics/{name}/records"
                    (await http.post(path, json=record)).raise_for_status()
            if not number % READ_EVERY:
                offset = number * 977 % 20_000
                url = f"/console/topics/{FLIGHTS}/messages?offset={offset}"
                (await http.get(url, headers={"accept": "text/html"})).raise_for_status()
            if time.monotonic() >= ends_s:
                return
            await asyncio.sleep(PAUSE_S)


def _place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(partition))


async def _groups(groups: GroupClient) -> None:
    await groups.commit("delays", {_place(FLIGHTS, index): 20_000 - 500 * index for index in range(4)})
    await groups.commit("board", {_place(FLIGHTS, index): 70_000 for index in range(2)})
    await groups.commit("billing", {_place("payments.settled", index): 1 for index in range(12)})
    await groups.commit("fraud", {_place("payments.settled", index): index % 3 for index in range(12)})
    await groups.commit("warehouse.of.a.team.with.a.long.name", {_place("orders", index): 1 for index in range(6)})
