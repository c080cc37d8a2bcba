"""``failOnDataLoss``: whatever is gone is an error, or a warning and a count, wherever it is found. No JVM."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.client.cluster import ClusterClient
from app.client.producer import Producer
from app.core.errors import ConfigError, CorruptionError
from app.core.units import Offset, TopicId
from app.machine.runtime import SystemClock
from app.metadata.manifest.manifest_state import SegmentState
from app.records.builder import build_batch
from pyspark_firn.batch import plan
from pyspark_firn.columns import struct_type
from pyspark_firn.losses import DataLoss
from pyspark_firn.options import parse_read_options
from pyspark_firn.splits import StoredSplit, TailSplit
from pyspark_firn.streaming import FirnStreamReader
from pyspark_firn.tasks import read_split
from tests.spark.conftest import rows_of
from tests.spark.triggers import trigger
from tests.support.broker import RunningBroker, running_broker
from tests.support.buckets import BucketBuilder
from tests.support.changing import delete_topic

NOW_MS = 1_700_000_000_000
MIB = 1 << 20


def counted(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The offsets that each warning counts."""
    return [int(found) for found in re.findall(r"\((\d+) offsets\)", caplog.text)]


def given_of(url: str, **given: str) -> dict[str, str]:
    which = {} if "subscribePattern" in given else {"subscribe": "t"}
    return {"store": url, "columns": "offset", **which, **given}


def options_of(url: str, **given: str) -> Any:
    return parse_read_options(given_of(url, **given), streaming=False)


def offsets_of(options: Any, splits: list[Any]) -> list[int]:
    return [
        row["offset"] for row in rows_of([one for split in splits for one in read_split(options, ["offset"], split)])
    ]


# --- segments that several tasks read -------------------------------------------------------------------------------


async def big_segments(path: Path) -> tuple[BucketBuilder, TopicId]:
    """Three segments of 12 MiB, a chunk and an offset to a MiB."""
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic("t")
    rng = random.Random(1)
    for first in (0, 12, 24):
        made = [
            build_batch([(NOW_MS, None, rng.randbytes(MIB - 200), ())], base_offset=Offset(offset))
            for offset in range(first, first + 12)
        ]
        await bucket.add_segment(topic_id, 0, made, chunk_bytes=MIB)
    return bucket, topic_id


async def expire_middle(bucket: BucketBuilder, topic_id: TopicId) -> None:
    manifest = await bucket.manifest(topic_id, 0)
    doomed = manifest.finished[:2]
    await manifest.delete_started([entry.segment_id for entry in doomed], log_start_offset=24)
    await bucket.store.delete_many([manifest.object_key(entry) for entry in doomed])


def test_a_segment_that_goes_while_several_tasks_read_it_is_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, topic_id = asyncio.run(big_segments(tmp_path))
    # The first segment is cut by the range, so that planning knows its chunks; the second it knows by its share.
    given = {"splitBytes": "5m", "startingOffsets": '{"t": {"0": 3}}'}
    strict, lenient = (options_of(tmp_path.as_uri(), failOnDataLoss=flag, **given) for flag in ("true", "false"))
    splits = plan(lenient)
    assert sum(1 for split in splits if isinstance(split, StoredSplit)) >= 6
    asyncio.run(expire_middle(bucket, topic_id))
    assert offsets_of(lenient, splits) == list(range(24, 36))
    assert sum(counted(caplog)) == 24 - 3
    for split in splits[:-3]:
        with pytest.raises(DataLoss, match=r"gone with data/.*; write failOnDataLoss=false to go on without them"):
            offsets_of(strict, [split])


def test_a_segment_that_is_replaced_while_several_tasks_read_it_asks_for_another_run(tmp_path: Path) -> None:
    async def replace() -> None:
        manifest = await bucket.manifest(topic_id, 0)
        old = manifest.finished[1]
        made = [build_batch([(NOW_MS, None, b"new", ())], base_offset=Offset(offset)) for offset in range(12, 24)]
        new = await bucket.add_segment(topic_id, 0, made, enter=False)
        await manifest.copy_started(new)
        await manifest.change(
            lambda state: [
                manifest.entered(old, SegmentState.DELETE_STARTED),
                manifest.entered(new, SegmentState.COPY_FINISHED),
            ]
        )
        await bucket.store.delete(manifest.object_key(old))

    bucket, topic_id = asyncio.run(big_segments(tmp_path))
    lenient = options_of(tmp_path.as_uri(), splitBytes="5m", failOnDataLoss="false")
    splits = plan(lenient)
    asyncio.run(replace())
    with pytest.raises(DataLoss, match="was replaced while several tasks read parts of it; run the job again"):
        offsets_of(lenient, splits)
    assert offsets_of(lenient, plan(lenient)) == list(range(36))


# --- what is gone when planning -------------------------------------------------------------------------------------


async def small_segments(path: Path) -> tuple[BucketBuilder, TopicId]:
    """Offsets [0, 300) in three segments."""
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic("t")
    for first in (0, 100, 200):
        await add(bucket, topic_id, first)
    return bucket, topic_id


async def add(bucket: BucketBuilder, topic_id: TopicId, first: int) -> None:
    records = [(NOW_MS + offset, None, b"v", ()) for offset in range(first, first + 100)]
    await bucket.add_segment(topic_id, 0, [build_batch(records, base_offset=Offset(first))])


async def expire_first(bucket: BucketBuilder, topic_id: TopicId) -> None:
    manifest = await bucket.manifest(topic_id, 0)
    doomed = manifest.finished[0]
    await manifest.delete_started([doomed.segment_id], log_start_offset=doomed.end_offset)
    await bucket.store.delete(manifest.object_key(doomed))


def test_offsets_that_are_gone_when_planning_are_named_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, topic_id = asyncio.run(small_segments(tmp_path))
    asyncio.run(expire_first(bucket, topic_id))
    given = {"startingOffsets": '{"t": {"0": 40}}'}
    with pytest.raises(DataLoss, match=r"Offsets \[40, 100\) of t-0 are gone: it starts at offset 100; write"):
        plan(options_of(tmp_path.as_uri(), **given))
    lenient = options_of(tmp_path.as_uri(), failOnDataLoss="false", **given)
    assert offsets_of(lenient, plan(lenient)) == list(range(100, 300))
    assert counted(caplog) == [60]


def test_a_range_that_is_gone_as_a_whole_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bucket, topic_id = asyncio.run(small_segments(tmp_path))
    asyncio.run(expire_first(bucket, topic_id))
    given = {"endingOffsets": '{"t": {"0": 40}}'}
    with pytest.raises(DataLoss, match="All of t-0 up to its ending offset 40 is gone: it starts at offset 100; write"):
        plan(options_of(tmp_path.as_uri(), **given))
    lenient = options_of(tmp_path.as_uri(), failOnDataLoss="false", **given)
    assert offsets_of(lenient, plan(lenient)) == []
    assert "nobody knows how many" in caplog.text


# --- streams --------------------------------------------------------------------------------------------------------


def stream(url: str, **given: str) -> FirnStreamReader:
    return FirnStreamReader(given_of(url, **given), struct_type(("offset",)))


def batch(reader: FirnStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    splits = reader.partitions(start, end)
    return [row["offset"] for row in rows_of([one for split in splits for one in reader.read(split)])]


def test_a_checkpoint_of_sparks_kafka_source_is_told_of_in_a_sentence(tmp_path: Path) -> None:
    asyncio.run(small_segments(tmp_path))
    reader = stream(tmp_path.as_uri())
    with pytest.raises(
        ConfigError, match="The checkpoint is of another source than Firn's: give the stream a checkpoint"
    ):
        trigger(reader, {"t": {"0": 40}})
    reader.stop()


def test_a_stream_that_retention_has_overtaken_stops_or_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, topic_id = asyncio.run(small_segments(tmp_path))
    strict, lenient = (stream(tmp_path.as_uri(), failOnDataLoss=flag) for flag in ("true", "false"))
    start = strict.initialOffset()
    end = trigger(strict, start)
    asyncio.run(expire_first(bucket, topic_id))
    with pytest.raises(DataLoss, match=r"Offsets \[0, 100\) of t-0 are gone"):
        batch(strict, start, end)
    assert batch(lenient, start, end) == list(range(100, 300))
    assert counted(caplog) == [100]
    for reader in (strict, lenient):
        reader.stop()


def test_a_partition_that_a_checkpoint_does_not_know_is_read_from_its_first_offset_or_that_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def make() -> BucketBuilder:
        bucket = await BucketBuilder.open(tmp_path)
        await bucket.create_topic("t0")
        return bucket

    bucket = asyncio.run(make())
    strict, lenient = (
        stream(tmp_path.as_uri(), subscribePattern="t.*", failOnDataLoss=flag) for flag in ("true", "false")
    )
    start = strict.initialOffset()

    async def appear() -> TopicId:
        topic_id = await bucket.create_topic("t1")
        for first in (0, 100):
            await add(bucket, topic_id, first)
        return topic_id

    topic_id = asyncio.run(appear())
    end = trigger(strict, start)
    assert batch(strict, start, end) == list(range(200))
    asyncio.run(expire_first(bucket, topic_id))
    # The same batch once more, as after a restart: what it was to give is not there any more.
    with pytest.raises(DataLoss, match=r"Offsets \[0, 100\) of t1-0 are gone"):
        batch(strict, start, end)
    assert batch(lenient, start, end) == list(range(100, 200))
    assert counted(caplog) == [100]
    for reader in (strict, lenient):
        reader.stop()


def test_a_deleted_topic_stops_a_stream_or_is_counted_and_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, topic_id = asyncio.run(small_segments(tmp_path))
    strict, lenient = (stream(tmp_path.as_uri(), failOnDataLoss=flag) for flag in ("true", "false"))
    start = strict.initialOffset()
    end = trigger(strict, start)
    asyncio.run(bucket.delete_topic(topic_id))
    gone = (
        "Records of topic 't' that the stream was still to read are gone: the topic was deleted; write failOnDataLoss"
    )
    with pytest.raises(DataLoss, match=gone):
        trigger(strict, start)
    with pytest.raises(DataLoss, match=gone):
        batch(strict, start, end)
    assert batch(lenient, start, end) == []
    assert counted(caplog) == [300]
    nothing = trigger(lenient, end)
    assert nothing["topics"] == {}
    assert "nobody knows how many" in caplog.text
    assert trigger(lenient, nothing) == nothing
    for reader in (strict, lenient):
        reader.stop()


def test_a_topic_that_was_made_again_stops_a_stream_or_is_read_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, topic_id = asyncio.run(small_segments(tmp_path))
    strict, lenient = (stream(tmp_path.as_uri(), failOnDataLoss=flag) for flag in ("true", "false"))
    start = strict.initialOffset()
    end = trigger(strict, start)

    async def again() -> None:
        await bucket.delete_topic(topic_id)
        await add(bucket, await bucket.create_topic("t"), 0)

    asyncio.run(again())
    with pytest.raises(DataLoss, match="the topic was deleted and made again"):
        trigger(strict, end)
    assert batch(lenient, start, end) == []
    assert counted(caplog) == [300]
    new_end = trigger(lenient, end)
    assert batch(lenient, end, new_end) == list(range(100))
    for reader in (strict, lenient):
        reader.stop()


def test_a_stream_that_starts_with_a_topic_that_never_was_is_told_so(tmp_path: Path) -> None:
    asyncio.run(small_segments(tmp_path))
    reader = stream(tmp_path.as_uri(), subscribe="u", failOnDataLoss="false")
    with pytest.raises(ConfigError, match="There is no topic 'u'"):
        reader.initialOffset()
    reader.stop()


# --- the tail -------------------------------------------------------------------------------------------------------


async def produce(broker: RunningBroker, count: int) -> None:
    async with (
        ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster,
        Producer(cluster, SystemClock()) as producer,
    ):
        for number in range(count):
            await producer.send("t", b"%d" % number)
            if number % 10 == 9:
                await producer.flush()


async def deleted_records(broker: RunningBroker) -> None:
    broker.log("t").advance_log_start(Offset(30))


async def deleted_topic(broker: RunningBroker) -> None:
    await delete_topic(broker.node.membership.controller, "t")


async def topic_made_again(broker: RunningBroker) -> None:
    await deleted_topic(broker)
    async with asyncio.timeout(30):
        while broker.node.logs.get("t", 0) is not None:
            await asyncio.sleep(0.01)
    await broker.create_topic("t")
    await produce(broker, 100)


@pytest.mark.parametrize(
    ("harm", "sentence", "left"),
    [
        (deleted_records, r"Offsets \[0, 30\) of t-0 are gone from the brokers: it starts at offset 30 now", (30, 50)),
        (deleted_topic, r"Offsets \[0, 50\) of t-0 are gone from the brokers: it was deleted", (0, 0)),
        (
            topic_made_again,
            r"Offsets \[0, 50\) of t-0 are gone from the brokers: it was deleted and made again",
            (0, 0),
        ),
    ],
)
async def test_what_goes_from_the_tail_under_a_job_is_an_error_or_counted(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[RunningBroker], Awaitable[None]],
    sentence: str,
    left: tuple[int, int],
) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await produce(broker, 50)
        url = (tmp_path / "store").as_uri()
        strict, lenient = (options_of(url, tail=broker.bootstrap, failOnDataLoss=flag) for flag in ("true", "false"))
        splits = await asyncio.to_thread(plan, strict)
        assert [type(split) for split in splits] == [TailSplit]
        await harm(broker)
        with pytest.raises(CorruptionError, match=f"{sentence}; write failOnDataLoss=false"):
            await asyncio.to_thread(offsets_of, strict, splits)
        assert await asyncio.to_thread(offsets_of, lenient, splits) == list(range(*left))
        assert counted(caplog) == [50 - (left[1] - left[0])]


async def test_a_stream_beyond_the_end_of_its_brokers_stops_or_counts_and_goes_on_from_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await produce(broker, 20)
        url = (tmp_path / "store").as_uri()
        strict, lenient = (stream(url, tail=broker.bootstrap, failOnDataLoss=flag) for flag in ("true", "false"))

        def check() -> None:
            start = strict.initialOffset()
            end = trigger(strict, start)
            topic = {**end["topics"]["t"], "offsets": {"0": 50}}
            beyond = {**end, "topics": {"t": topic}}
            lost = "t-0 ends at offset 20 on its brokers, yet the checkpoint has come to 50: records were lost there"
            with pytest.raises(DataLoss, match=lost):
                trigger(strict, beyond)
            with pytest.raises(DataLoss, match=lost):
                batch(strict, start, beyond)
            assert trigger(lenient, beyond) == end
            assert batch(lenient, start, beyond) == list(range(20))
            assert batch(lenient, beyond, end) == []
            assert counted(caplog) == [30, 30]
            for reader in (strict, lenient):
                reader.stop()

        await asyncio.to_thread(check)
