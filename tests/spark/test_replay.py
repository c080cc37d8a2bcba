"""``replay`` where something goes wrong: refused records, history that is gone, partitions that come later."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.client.producer import Acknowledged, Producer
from app.core.errors import BrokerUnavailable, ConfigError, CorruptionError, RequestRejected
from app.core.units import Offset, TopicId
from app.records.builder import build_batch
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from pyspark_firn.jobs.replay import Pace, ReplayRequest, replay
from pyspark_firn.reading import SplitReader
from tests.spark.reading_back import produced
from tests.support.broker import RunningBroker, running_broker
from tests.support.buckets import BucketBuilder

NOW_MS = 1_700_000_000_000


def batch_of(values: list[bytes], first: int, times_ms: list[int] | None = None) -> bytes:
    times = times_ms or [NOW_MS + first + n for n in range(len(values))]
    records: list[Any] = [(time, b"k", value, ()) for time, value in zip(times, values, strict=True)]
    return build_batch(records, base_offset=Offset(first))


async def add(bucket: BucketBuilder, topic_id: TopicId, partition: int, values: list[bytes], first: int = 0) -> None:
    """One segment with a batch for each ten records."""
    made = [batch_of(values[at : at + 10], first + at) for at in range(0, len(values), 10)]
    await bucket.add_segment(topic_id, partition, made)


def request(path: Path, broker: RunningBroker) -> ReplayRequest:
    return ReplayRequest(
        store=(path / "source").as_uri(),
        topic="t",
        bootstrap=(("127.0.0.1", broker.port),),
        target="again",
        state_path=path / "state.json",
    )


async def allow(broker: RunningBroker, message_bytes_max: int) -> None:
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        change = ("max.message.bytes", ConfigOperation.SET, str(message_bytes_max))
        await AdminClient(cluster).alter_configs(ConfigResourceType.TOPIC, "again", [change])


async def test_a_refused_record_ends_the_replay_which_begins_with_it_when_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = await BucketBuilder.open(tmp_path / "source")
    values = [b"v%d" % n for n in range(60)]
    values[35] = b"x" * 5_000
    await add(bucket, await bucket.create_topic("t"), 0, values)
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 1, max_message_bytes="3000")
        wanted = request(tmp_path, broker)
        monkeypatch.setattr("pyspark_firn.jobs.replay.STATE_EVERY_RECORDS", 20)
        monkeypatch.setattr("pyspark_firn.jobs.replay.STATE_EVERY_S", 3_600.0)  # The machine may be slow.
        arguments = ["job", "replay", "t", "--store", wanted.store, "--target", "again", "-b", broker.bootstrap]
        assert await asyncio.to_thread(main, [*arguments, "--state", str(wanted.state_path), "--json"]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert "again did not take offset 35 of t-0" in said.err
        assert "max.message.bytes" in said.err
        assert wanted.state_path is not None
        assert json.loads(wanted.state_path.read_text())["source_next"] == {"0": 20}
        with pytest.raises(RequestRejected, match="offset 35 of t-0"):
            await asyncio.to_thread(replay, wanted)
        await allow(broker, 10_000)
        # Those that were sent along with the refused one are there, and are not sent again.
        there = len(await produced(broker.port, "again"))
        summary = await asyncio.to_thread(replay, wanted)
        assert (summary.resumed_at, summary.records) == (there, 60 - there)
        found = [record.value for record in await produced(broker.port, "again")]
        assert len(found) == 60
        assert set(found) == set(values)
        assert [value for value in found if value != values[35]] == [value for value in values if value != values[35]]


async def test_a_partition_whose_first_records_came_after_the_first_start_is_replayed_too(tmp_path: Path) -> None:
    bucket = await BucketBuilder.open(tmp_path / "source")
    topic_id = await bucket.create_topic("t", 2)
    await add(bucket, topic_id, 0, [b"a%d" % n for n in range(20)])
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 2)
        wanted = request(tmp_path, broker)
        assert (await asyncio.to_thread(replay, wanted)).records == 20
        await add(bucket, topic_id, 1, [b"b%d" % n for n in range(20)])
        for records in (20, 0):
            summary = await asyncio.to_thread(replay, wanted)
            assert (summary.resumed_at, summary.records) == (40 - records, records)
        for index, letter in enumerate((b"a", b"b")):
            assert [one.value for one in await produced(broker.port, "again", index)] == [
                letter + b"%d" % n for n in range(20)
            ]


async def test_a_replay_that_retention_has_overtaken_says_what_it_cannot_replay(tmp_path: Path) -> None:
    bucket = await BucketBuilder.open(tmp_path / "source")
    topic_id = await bucket.create_topic("t")
    await add(bucket, topic_id, 0, [b"v%d" % n for n in range(20)])
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 1)
        wanted = request(tmp_path, broker)
        assert (await asyncio.to_thread(replay, wanted)).records == 20
        await add(bucket, topic_id, 0, [b"v%d" % n for n in range(20, 60)], first=20)
        manifest = await bucket.manifest(topic_id, 0)
        await manifest.set_log_start(30)
        with pytest.raises(CorruptionError, match=r"t-0 starts at offset 30 now: \[20, 30\) are gone"):
            await asyncio.to_thread(replay, wanted)
        assert len(await produced(broker.port, "again")) == 20


async def test_what_came_and_went_in_a_partition_that_was_empty_is_said(tmp_path: Path) -> None:
    bucket = await BucketBuilder.open(tmp_path / "source")
    topic_id = await bucket.create_topic("t", 2)
    await add(bucket, topic_id, 0, [b"v"] * 20)
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 2)
        wanted = request(tmp_path, broker)
        assert (await asyncio.to_thread(replay, wanted)).records == 20
        await add(bucket, topic_id, 1, [b"v"] * 30)
        await (await bucket.manifest(topic_id, 1)).set_log_start(20)
        with pytest.raises(CorruptionError, match=r"t-1 starts at offset 20 now: \[0, 20\) are gone"):
            await asyncio.to_thread(replay, wanted)


async def test_a_source_or_target_that_was_made_again_ends_what_was_begun_with_another(tmp_path: Path) -> None:
    bucket = await BucketBuilder.open(tmp_path / "source")
    topic_id = await bucket.create_topic("t")
    await add(bucket, topic_id, 0, [b"v"] * 20)
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 1)
        wanted = request(tmp_path, broker)
        assert (await asyncio.to_thread(replay, wanted)).records == 20
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            await AdminClient(cluster).delete_topic("again")
        await broker.create_topic("again", 1)
        with pytest.raises(ConfigError, match="again-0 ends at offset 0 and has been at 20 in this replay"):
            await asyncio.to_thread(replay, wanted)
        await bucket.delete_topic(topic_id)
        await add(bucket, await bucket.create_topic("t"), 0, [b"w"] * 40)
        with pytest.raises(ConfigError, match="another topic 't', which was deleted since"):
            await asyncio.to_thread(replay, wanted)
        assert not await produced(broker.port, "again")


async def test_a_partition_is_opened_when_those_before_it_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await BucketBuilder.open(tmp_path / "source")
    topic_id = await bucket.create_topic("t", 3)
    for index in range(3):
        await add(bucket, topic_id, index, [b"v"] * 20)
    sent, opened = 0, []
    send, read = Producer.send, SplitReader.read

    async def counted(self: Producer, *arguments: Any, **named: Any) -> asyncio.Future[Acknowledged]:
        nonlocal sent
        sent += 1
        return await send(self, *arguments, **named)

    def noted(self: SplitReader, split: Any) -> Any:
        opened.append(sent)
        return read(self, split)

    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 3)
        monkeypatch.setattr(Producer, "send", counted)
        monkeypatch.setattr(SplitReader, "read", noted)
        assert (await asyncio.to_thread(replay, request(tmp_path, broker))).records == 60
    assert opened == [0, 20, 40]


async def test_a_replay_that_has_come_to_its_end_misses_nothing_that_expires(tmp_path: Path) -> None:
    bucket = await BucketBuilder.open(tmp_path / "source")
    topic_id = await bucket.create_topic("t")
    await bucket.add_segment(topic_id, 0, [batch_of([b"v"] * 4, 0, [1000, 2000, 3000, 4000])])
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 1)
        wanted = replace(request(tmp_path, broker), end="1970-01-01T00:00:03Z")
        assert (await asyncio.to_thread(replay, wanted)).records == 2
        manifest = await bucket.manifest(topic_id, 0)
        await manifest.set_log_start(3)
        assert (await asyncio.to_thread(replay, wanted)).records == 0
        assert len(await produced(broker.port, "again")) == 2


async def test_original_times_are_exact(tmp_path: Path) -> None:
    # The first three times 1000 are too small, as floats of seconds; the last but one is of the year 10000.
    times_ms = [1_001, 1_003, 1_005, NOW_MS, 253_402_300_800_000, -1]
    bucket = await BucketBuilder.open(tmp_path / "source")
    topic_id = await bucket.create_topic("t")
    await bucket.add_segment(topic_id, 0, [batch_of([b"v"] * len(times_ms), 0, times_ms)])
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 1)
        await asyncio.to_thread(replay, request(tmp_path, broker))
        found = [dict(record.headers)["firn.replay.timestamp"] for record in await produced(broker.port, "again")]
        assert found == [b"%d" % time for time in times_ms]


def test_records_are_due_at_the_original_pace_times_a_factor() -> None:
    pace = Pace(None, 10.0)
    assert [pace.due_s(NOW_MS + after) for after in (0, 500, 20_000, 10_000, -5)] == [0, 0.05, 2.0, 1.0, 0]


def test_a_record_without_a_time_holds_nobody_back() -> None:
    pace = Pace(None, 1.0)
    assert [pace.due_s(time) for time in (-1, NOW_MS, NOW_MS + 1_000, -1)] == [0, 0, 1.0, 0]


def test_a_rate_holds_records_back_whatever_their_times_are() -> None:
    pace = Pace(4.0, None)
    assert [pace.due_s(NOW_MS) for _ in range(3)] == [0, 0.25, 0.5]
    both = Pace(4.0, 1.0)
    assert [both.due_s(NOW_MS + after) for after in (0, 1_000, 1_000)] == [0, 1.0, 1.0]


async def test_by_pace_partitions_are_merged_by_time_and_what_is_done_is_noted_before_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await BucketBuilder.open(tmp_path / "source")
    topic_id = await bucket.create_topic("t", 2)
    hour_ms = 3_600_000
    for index, hours in enumerate(([0, 2, 4, 5], [1, 3, 6])):
        times = [NOW_MS + hour * hour_ms for hour in hours]
        await bucket.add_segment(topic_id, index, [batch_of([b"%d" % hour for hour in hours], 0, times)])
    due: list[float] = []
    noted: list[int] = []
    due_s = Pace.due_s

    def at_once(self: Pace, timestamp_ms: int) -> float:
        due.append(due_s(self, timestamp_ms))
        return due[-1] / 1e6

    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 2)
        monkeypatch.setattr(Pace, "due_s", at_once)
        monkeypatch.setattr("pyspark_firn.jobs.replay.STATE_EVERY_S", 0.0)
        wanted = replace(request(tmp_path, broker), pace=0.5)
        await asyncio.to_thread(replay, wanted, progress=lambda done, total: noted.append(done))
        assert due == [hour * 3_600 / 0.5 for hour in range(7)]
        assert noted == [1, 2, 3, 4, 5, 6, 7]
        assert [one.value for one in await produced(broker.port, "again", 0)] == [b"0", b"2", b"4", b"5"]
        assert [one.value for one in await produced(broker.port, "again", 1)] == [b"1", b"3", b"6"]


async def test_a_record_that_no_broker_took_ends_the_replay_and_comes_once_when_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await BucketBuilder.open(tmp_path / "source")
    await add(bucket, await bucket.create_topic("t"), 0, [b"v%d" % n for n in range(60)])
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 1)
        wanted = request(tmp_path, broker)
        send, sent = Producer.send, 0

        async def failing(self: Producer, *arguments: Any, **named: Any) -> asyncio.Future[Acknowledged]:
            nonlocal sent
            sent += 1
            if sent != 35:
                return await send(self, *arguments, **named)
            lost: asyncio.Future[Acknowledged] = asyncio.get_running_loop().create_future()
            lost.set_exception(BrokerUnavailable("the broker went away"))
            return lost

        monkeypatch.setattr("pyspark_firn.jobs.replay.STATE_EVERY_RECORDS", 20)
        monkeypatch.setattr("pyspark_firn.jobs.replay.STATE_EVERY_S", 3_600.0)
        with monkeypatch.context() as patched:
            patched.setattr(Producer, "send", failing)
            with pytest.raises(BrokerUnavailable, match="again did not take offset 34 of t-0: the broker went away"):
                await asyncio.to_thread(replay, wanted)
        assert wanted.state_path is not None
        assert json.loads(wanted.state_path.read_text())["source_next"] == {"0": 20}
        there = len(await produced(broker.port, "again"))
        summary = await asyncio.to_thread(replay, wanted)
        assert (summary.resumed_at, summary.records) == (there, 60 - there)
        assert sorted(one.value for one in await produced(broker.port, "again")) == sorted(
            b"v%d" % n for n in range(60)
        )
