"""How far each trigger of a stream goes, and what a checkpoint means to a stream with other options. No JVM."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from app.core.units import Offset, TopicId
from app.records.builder import build_batch
from pyspark_firn.columns import struct_type
from pyspark_firn.streaming import FirnStreamReader
from tests.spark.conftest import rows_of
from tests.support.buckets import BucketBuilder

NOW_MS = 1_700_000_000_000
SEGMENT_RECORDS = 100


async def add(bucket: BucketBuilder, topic_id: TopicId, partition: int, first: int) -> None:
    records = [(NOW_MS + offset, None, b"v" * 90, ()) for offset in range(first, first + SEGMENT_RECORDS)]
    await bucket.add_segment(topic_id, partition, [build_batch(records, base_offset=Offset(first))])


async def make(path: Path) -> tuple[BucketBuilder, TopicId]:
    """Topic ``t``: 300 records in its partition 0, 100 in 1, none in 2."""
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic("t", 3)
    for partition, segments in ((0, 3), (1, 1)):
        for number in range(segments):
            await add(bucket, topic_id, partition, number * SEGMENT_RECORDS)
    return bucket, topic_id


@contextmanager
def stream(path: Path, **options: str) -> Iterator[FirnStreamReader]:
    which = {} if "subscribePattern" in options else {"subscribe": "t"}
    reader = FirnStreamReader(
        {"store": path.as_uri(), **which, **options}, struct_type(("topic", "partition", "offset"))
    )
    try:
        yield reader
    finally:
        reader.stop()


def batches(
    reader: FirnStreamReader, start: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], list[tuple[str, int, int]]]]:
    """What each trigger reads and where it ends, until one has nothing new."""
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        read = [one for split in reader.partitions(start, end) for one in reader.read(split)]
        yield end, [(row["topic"], row["partition"], row["offset"]) for row in rows_of(read)]
        start = end


def expected(topic: str, partition: int, start: int, end: int) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for offset in range(start, end)]


def test_available_now_ends_where_everything_ended_when_it_began(tmp_path: Path) -> None:
    bucket, topic_id = asyncio.run(make(tmp_path))

    async def grow() -> None:
        await add(bucket, topic_id, 1, 100)
        await add(bucket, topic_id, 2, 0)
        await add(bucket, await bucket.create_topic("t2"), 0, 0)

    with stream(tmp_path, subscribePattern="t", maxRecordsPerTrigger="150") as reader:
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        asyncio.run(grow())
        found = list(batches(reader, start))
        assert [len(rows) for _, rows in found] == [149, 149, 102]
        rows = sorted(row for _, rows in found for row in rows)
        assert rows == expected("t", 0, 0, 300) + expected("t", 1, 0, 100)
        latest = reader.reportLatestOffset()
        assert latest is not None
        assert latest["topics"]["t"]["offsets"] == {"0": 300, "1": 200, "2": 100}
    with stream(tmp_path, subscribePattern="t") as reader:
        reader.prepareForTriggerAvailableNow()
        [(_, rows)] = batches(reader, found[-1][0])
        assert sorted(rows) == expected("t", 1, 100, 200) + expected("t", 2, 0, 100) + expected("t2", 0, 0, 100)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"maxRecordsPerTrigger": "40"}, 40),
        ({"maxBytesPerTrigger": "10k"}, 105),
        ({"maxBytesPerTrigger": "10k", "maxRecordsPerTrigger": "40"}, 40),
        ({"maxBytesPerTrigger": "2k", "maxRecordsPerTrigger": "40"}, 21),
        ({}, 400),
    ],
    ids=str,
)
def test_a_trigger_keeps_to_its_limits_and_all_is_read_once(tmp_path: Path, options: dict[str, str], most: int) -> None:
    asyncio.run(make(tmp_path))
    with stream(tmp_path, **options) as reader:
        found = [rows for _, rows in batches(reader, reader.initialOffset())]
    assert max(map(len, found)) <= most
    assert len(found) <= 2 + 400 // (0.9 * most)
    rows = sorted(row for rows in found for row in rows)
    assert rows == expected("t", 0, 0, 300) + expected("t", 1, 0, 100)


def test_a_trigger_that_is_to_take_everything_passes_over_the_limits(tmp_path: Path) -> None:
    """As ``Trigger.Once`` asks it to."""
    asyncio.run(make(tmp_path))
    with stream(tmp_path, maxRecordsPerTrigger="40", maxBytesPerTrigger="1k") as reader:
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["topics"]["t"]["offsets"] == {"0": 300, "1": 100, "2": 0}


def test_options_of_where_to_start_mean_nothing_to_a_checkpoint(tmp_path: Path) -> None:
    asyncio.run(make(tmp_path))
    with stream(tmp_path, maxRecordsPerTrigger="100") as reader:
        position, first = next(batches(reader, reader.initialOffset()))
    with stream(
        tmp_path, startingTimestamp=str(NOW_MS + 10**9), maxBytesPerTrigger="1m", isolation="read_uncommitted"
    ) as reader:
        [(_, rest)] = batches(reader, position)
    assert sorted(first + rest) == expected("t", 0, 0, 300) + expected("t", 1, 0, 100)


def test_a_topic_that_a_stream_no_longer_reads_keeps_its_place(tmp_path: Path) -> None:
    bucket, topic_id = asyncio.run(make(tmp_path))

    async def grow() -> None:
        await add(bucket, await bucket.create_topic("u"), 0, 0)
        await add(bucket, topic_id, 1, 100)

    with stream(tmp_path) as reader:
        [(position, _)] = batches(reader, reader.initialOffset())
    asyncio.run(grow())
    with stream(tmp_path, subscribePattern="^u") as reader:
        [(position, rows)] = batches(reader, position)
    assert rows == expected("u", 0, 0, 100)
    with stream(tmp_path, subscribePattern="^[tu]") as reader:
        [(_, rows)] = batches(reader, position)
    assert rows == expected("t", 1, 100, 200)
