"""``tail``: what is not in the store yet comes from its leader, joined exactly where the store ends."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from app.client.cluster import ClusterClient, KnownCluster
from app.client.producer import Producer
from app.core.errors import ConfigError
from app.core.units import Offset
from app.machine.runtime import SystemClock
from app.records.builder import build_batch
from pyspark_firn.batch import plan
from pyspark_firn.columns import struct_type
from pyspark_firn.options import parse_read_options
from pyspark_firn.splits import Split, StoredSplit, TailSplit
from pyspark_firn.streaming import FirnStreamReader
from pyspark_firn.tasks import read_split
from tests.spark.conftest import rows_of
from tests.support.broker import running_broker
from tests.support.buckets import BucketBuilder


async def test_stored_and_hot_records_are_joined_without_gap_or_double(tmp_path: Path) -> None:
    async with running_broker(tmp_path, remote_log_manager_task_interval_ms=50) as broker:
        await broker.create_topic("t", segment_bytes="1048576", local_retention_ms="0", firn_tier_max_lag_ms="600000")
        async with (
            ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster,
            Producer(cluster, SystemClock()) as producer,
        ):
            for number in range(3000):
                await producer.send("t", b"x" * 1000, key=b"%d" % number)
            await producer.flush()
        given = {"store": (tmp_path / "store").as_uri(), "subscribe": "t", "columns": "offset,key"}
        options = parse_read_options({**given, "tail": f"127.0.0.1:{broker.port}"}, streaming=False)

        def read(splits: list[Split]) -> list[tuple[int, bytes]]:
            rows = rows_of([batch for split in splits for batch in read_split(options, options.columns, split)])
            return [(row["offset"], row["key"]) for row in rows]

        async with asyncio.timeout(60):
            # An object alone is not stored yet: what is readable the manifest says, a moment later.
            while not any(isinstance(split, StoredSplit) for split in await asyncio.to_thread(plan, options)):
                await asyncio.sleep(0.05)
        splits = await asyncio.to_thread(plan, options)
        assert {type(split) for split in splits} == {StoredSplit, TailSplit}
        assert await asyncio.to_thread(read, splits) == [(number, b"%d" % number) for number in range(3000)]


async def test_a_batch_of_a_stream_is_the_same_when_it_is_read_again_from_the_bucket(tmp_path: Path) -> None:
    """As after a kill of the driver: what brokers had the first time is in the store, and on no local disk, the second."""
    async with running_broker(tmp_path, remote_log_manager_task_interval_ms=50) as broker:
        await broker.create_topic("t", segment_bytes="1048576", local_retention_ms="0", firn_tier_max_lag_ms="600000")

        async def produce(start: int, end: int) -> None:
            async with (
                ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster,
                Producer(cluster, SystemClock()) as producer,
            ):
                for number in range(start, end):
                    await producer.send("t", b"x" * 1000, key=b"%d" % number)

        def stream() -> FirnStreamReader:
            given = {"store": (tmp_path / "store").as_uri(), "subscribe": "t", "tail": broker.bootstrap}
            return FirnStreamReader({**given, "columns": "offset,key"}, struct_type(("offset", "key")))

        def again(start: dict[str, Any], end: dict[str, Any]) -> tuple[set[type], list[Any]]:
            reader = stream()
            splits = reader.partitions(start, end)
            found = rows_of([batch for split in splits for batch in reader.read(split)])
            reader.stop()
            return {type(split) for split in splits}, found

        def first() -> tuple[dict[str, Any], dict[str, Any]]:
            reader = stream()
            start = reader.initialOffset()
            end = reader.latestOffset(start, ReadAllAvailable())
            reader.stop()
            return start, end

        await produce(0, 300)
        start, end = await asyncio.to_thread(first)
        wanted = [{"offset": number, "key": b"%d" % number} for number in range(300)]
        assert await asyncio.to_thread(again, start, end) == ({TailSplit}, wanted)
        await produce(300, 3000)
        log = broker.log("t")
        async with asyncio.timeout(60):
            while log.local_log_start_offset < 300:
                await asyncio.sleep(0.05)
        assert await asyncio.to_thread(again, start, end) == ({StoredSplit}, wanted)


async def test_brokers_of_another_topic_of_that_name_are_found_when_planning(tmp_path: Path) -> None:
    bucket = await BucketBuilder.open(tmp_path / "other")
    topic_id = await bucket.create_topic("t")
    await bucket.add_segment(topic_id, 0, [build_batch([(1, b"k", b"v", ())], base_offset=Offset(0))])
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t")
        given = {"store": (tmp_path / "other").as_uri(), "subscribe": "t", "tail": broker.bootstrap}
        options = parse_read_options(given, streaming=False)
        with pytest.raises(ConfigError, match="have another topic 't'"):
            await asyncio.to_thread(plan, options)


async def test_brokers_that_end_before_the_store_are_found_when_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await BucketBuilder.open(tmp_path / "other")
    topic_id = await bucket.create_topic("t")
    await bucket.add_segment(topic_id, 0, [build_batch([(1, b"k", b"v", ())], base_offset=Offset(0))])
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t")
        refresh = ClusterClient.refresh

        async def same_id(self: ClusterClient, *arguments: Any, **named: Any) -> KnownCluster:
            view = await refresh(self, *arguments, **named)
            self.view = replace(view, topics={"t": replace(view.topics["t"], topic_id=topic_id)})
            return self.view

        monkeypatch.setattr(ClusterClient, "refresh", same_id)
        given = {"store": (tmp_path / "other").as_uri(), "subscribe": "t", "tail": broker.bootstrap}
        options = parse_read_options(given, streaming=False)
        with pytest.raises(ConfigError, match=r"t-0 ends at offset 0 on the brokers .* and at 1 in"):
            await asyncio.to_thread(plan, options)
