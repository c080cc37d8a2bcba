"""``tail``: what is not in the store yet comes from its leader, joined exactly where the store ends."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from app.broker.runtime import SystemClock
from app.client.cluster import ClusterClient
from app.client.producer import Producer
from pyspark_firn.batch import plan
from pyspark_firn.options import parse_read_options
from pyspark_firn.splits import StoredSplit, TailSplit
from pyspark_firn.tasks import read_split
from tests.spark.conftest import rows_of
from tests.support.broker import running_broker


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
        async with asyncio.timeout(30):
            while not (tmp_path / "store" / "data").exists() or not [*(tmp_path / "store" / "data").rglob("*.seg")]:
                await asyncio.sleep(0.05)
        given = {"store": (tmp_path / "store").as_uri(), "subscribe": "t", "columns": "offset,key"}
        tail = f"127.0.0.1:{broker.port}"

        def read() -> tuple[set[type], list[tuple[int, bytes]]]:
            options = parse_read_options({**given, "tail": tail}, streaming=False)
            splits = plan(options)
            rows = rows_of([batch for split in splits for batch in read_split(options, options.columns, split)])
            return {type(split) for split in splits}, [(row["offset"], row["key"]) for row in rows]

        kinds, rows = await asyncio.to_thread(read)
        assert kinds == {StoredSplit, TailSplit}
        assert rows == [(number, b"%d" % number) for number in range(3000)]
