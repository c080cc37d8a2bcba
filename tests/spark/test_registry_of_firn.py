"""Spark's columns by the registry of a broker: schemas and records that came by HTTP, read back from the bucket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.metadata.image.records import REGISTRY_LEVEL
from pyspark_firn.batch import plan
from pyspark_firn.columns import struct_type
from pyspark_firn.options import parse_columns, parse_read_options, parse_registry
from pyspark_firn.registry_values import data_type, reader_text, with_reader
from pyspark_firn.tasks import read_split
from tests.spark.tiered import http_server, tiered
from tests.support.broker import RunningBroker, running_broker

AIRPORT = {"type": "record", "name": "Airport", "fields": [{"name": "code", "type": "string"}]}
ORIGIN = {"name": "origin", "type": "Airport"}
FIRST = {"type": "record", "name": "Flight", "fields": [ORIGIN]}
SECOND = {
    "type": "record",
    "name": "Flight",
    "fields": [ORIGIN, {"name": "delay", "type": ["null", "int"], "default": None}],
}
REFERENCES = [{"name": "Airport", "subject": "airport", "version": 1}]


async def registered(client: httpx.AsyncClient, subject: str, schema: Any, references: list[Any]) -> int:
    body = {"schema": json.dumps(schema), "references": references}
    answer = await client.post(f"/subjects/{subject}/versions", json=body)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["id"]
    return found


async def produced(client: httpx.AsyncClient, broker: RunningBroker, schema_id: int, value: Any) -> None:
    cluster_id = broker.node.cluster.image.cluster_id
    body = {"value": {"schema_id": schema_id, "data": value}}
    answer = await client.post(f"/v3/clusters/{cluster_id}/topics/t/records", json=body)
    assert json.loads(answer.content)["error_code"] == 200, answer.text


def columns(store: Path, url: str) -> list[dict[str, Any]]:
    """The column ``data`` of each record of the topic, as Spark makes it."""
    options = {"store": store.as_uri(), "subscribe": "t", "schema.registry.url": url, "columns": "data"}
    names = parse_columns(options)
    schema = struct_type(names, data_type(reader_text(parse_registry(options))))
    read = with_reader(parse_read_options(options, streaming=False), schema)
    return [
        row["data"] for split in plan(read) for batch in read_split(read, names, split) for row in batch.to_pylist()
    ]


@pytest.mark.ci
async def test_columns_come_from_the_newest_schema_of_the_brokers_own_registry(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, new_level=REGISTRY_LEVEL) as broker,
        http_server(broker.port) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        await broker.create_topic("t", 1, segment_bytes=str(1 << 20), local_retention_bytes="1")
        await registered(client, "airport", AIRPORT, [])
        ids = [await registered(client, "t-value", one, REFERENCES) for one in (FIRST, SECOND)]
        await produced(client, broker, ids[0], {"origin": {"code": "EWR"}})
        await produced(client, broker, ids[1], {"origin": {"code": "JFK"}, "delay": {"int": 7}})
        for _ in range(8):  # until the segment with both is rolled
            await produced(client, broker, ids[1], {"origin": {"code": "x" * 200_000}, "delay": None})
        await tiered(broker, 1)
        found = await asyncio.to_thread(columns, tmp_path / "store", url)
    assert found[:2] == [{"origin": {"code": "EWR"}, "delay": None}, {"origin": {"code": "JFK"}, "delay": 7}]
    assert all(one["delay"] is None for one in found[2:])
