"""``compact --offline``: the same records at the same offsets in fewer objects, or the newest of each key; a broker goes on."""

from __future__ import annotations

import asyncio
import http.client
import io
import random
import urllib.error
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.cli.job import compact as compact_command
from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.client.producer import Producer
from app.core.errors import BrokerUnavailable, ConfigError, ConflictError, StorageFull
from app.core.units import (
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    SegmentId,
    TimestampMs,
    TopicIdPartition,
    TopicPartition,
)
from app.machine.runtime import SystemClock
from app.metadata.image.records import BrokerRecord, broker_change
from app.metadata.manifest.manifest import SegmentEntry
from app.metadata.peers.liveness import SILENCE_MS_MAX, ObjectLiveness
from app.objectstore.directory import DirectoryStore
from app.records.builder import build_batch
from app.records.control import ControlType, control_key, control_value
from app.records.record import Record
from app.tiering.upload.replacement import Replacement
from pyspark_firn.jobs.compact import Compaction, HttpLogin, LeaderManifest, OfflineManifest, compact
from pyspark_firn.jobs.inspection import inspect
from pyspark_firn.jobs.running import ProcessRunner
from pyspark_firn.session import StoreSession
from tests.spark.conftest import Topic, read
from tests.spark.tiered import http_server, tiered
from tests.support.broker import running_broker
from tests.support.buckets import BucketBuilder
from tests.support.secured import certificates

NOW_MS = 1_700_000_000_000


def live_entries(topic: Topic) -> int:
    with StoreSession(topic.store) as session:
        state = session.run(session.metadata.manifest(TopicIdPartition(topic.topic_id, PartitionIndex(0))))
        return len(state.finished)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """Six segments of 50 records under ten keys and none, every codec, one transaction that aborted: what it wrote under a key
    of its own is not newer than the one record that is committed."""

    async def make() -> Topic:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic_id = await bucket.create_topic("t")
        for number in range(6):
            made = []
            base = number * 50
            for start in range(base, base + 50, 10):
                records = [
                    (NOW_MS + n, b"once" if n == 7 else None if n % 11 == 0 else b"k%d" % (n * n % 10), b"v%d" % n, ())
                    for n in range(start, start + 10)
                ]
                made.append(build_batch(records, base_offset=Offset(start), codec=(start // 10) % 5))
            aborted = []
            if number == 3:
                producer = {"producer_id": ProducerId(9), "producer_epoch": ProducerEpoch(0), "transactional": True}
                made[1] = build_batch(
                    [(NOW_MS, b"once", b"never", ())] * 9, base_offset=Offset(160), base_sequence=0, **producer
                )
                marker = (NOW_MS, control_key(ControlType.ABORT), control_value(0), ())
                made.insert(2, build_batch([marker], base_offset=Offset(169), control=True, **producer))
                aborted = [(9, 160, 169, 169)]
            await bucket.add_segment(topic_id, 0, made, chunk_bytes=700, aborted=aborted)
        return Topic(tmp_path / "bucket", "t", topic_id)

    return asyncio.run(make())


def newest_of_keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    newest = {row["key"]: row["offset"] for row in rows if row["key"] is not None}
    return [row for row in rows if row["key"] is None or newest[row["key"]] == row["offset"]]


def test_merged_segments_hold_the_same_records(topic: Topic) -> None:
    before = read(topic)
    summary = compact(topic.store, "t", target_bytes=3000)
    assert (summary.segments_before, summary.segments_after, summary.records_dropped) == (6, live_entries(topic), 0)
    assert summary.segments_after < 6
    assert read(topic) == before
    found = inspect(topic.store, ProcessRunner(1))
    assert found.is_sound
    assert compact(topic.store, "t", target_bytes=3000).segments_after == summary.segments_after


def test_parts_are_worked_at_beside_each_other_and_progress_is_told(tmp_path: Path) -> None:
    async def make() -> Topic:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic_id = await bucket.create_topic("t", 2)
        for partition in (0, 1):
            for first in range(0, 40, 10):
                batch = build_batch([(NOW_MS, b"k", b"v%d" % first, ())] * 10, base_offset=Offset(first))
                await bucket.add_segment(topic_id, partition, [batch])
        return Topic(tmp_path / "bucket", "t", topic_id, 2)

    topic = asyncio.run(make())
    before, told = read(topic), []
    summary = compact(topic.store, "t", runner=ProcessRunner(2), progress=lambda *at: told.append(at))
    assert (summary.segments_before, summary.segments_after, summary.groups_skipped) == (8, 2, 0)
    assert told == [(4, 8), (8, 8)]
    assert read(topic) == before


def test_by_key_the_newest_of_each_key_is_left(topic: Topic) -> None:
    before = read(topic)
    compact(topic.store, "t", by_key=True)
    assert read(topic) == newest_of_keys(before)
    assert inspect(topic.store, ProcessRunner(1)).is_sound
    assert compact(topic.store, "t", by_key=True).records_dropped == 0


@pytest.mark.parametrize("at_once", [1, 3])
def test_by_key_a_partition_of_more_keys_than_fit_in_memory_is_read_again(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    before, readings = read(topic), 0
    keyed = Compaction.keyed

    def counted(self: Compaction, entries: Sequence[SegmentEntry]) -> Iterator[Record]:
        nonlocal readings
        readings += 1
        return keyed(self, entries)

    monkeypatch.setattr(Compaction, "keyed", counted)
    monkeypatch.setattr("pyspark_firn.jobs.compact.KEYS_AT_ONCE_MAX", at_once)
    compact(topic.store, "t", by_key=True)
    assert read(topic) == newest_of_keys(before)
    keys = len({row["key"] for row in before} - {None})
    assert keys > 3
    assert readings >= keys / at_once


def test_a_living_broker_is_left_alone(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    async def age(self: ObjectLiveness, broker_id: Any, directory_id: Any) -> int:
        return SILENCE_MS_MAX - 1

    monkeypatch.setattr(ObjectLiveness, "age_ms", age)
    asyncio.run(_register(topic))
    with pytest.raises(ConfigError, match="sign of life"):
        compact(topic.store, "t")


async def _register(topic: Topic) -> None:
    builder = BucketBuilder(DirectoryStore(topic.path), topic.path, 3)
    await builder._cluster.load()
    await builder._cluster.seal(builder._cluster.next_sequence)
    record = BrokerRecord(1, uuid.uuid4(), uuid.uuid4(), 1, (), None, TimestampMs(0))
    await builder._cluster.append(builder._cluster.next_sequence, [broker_change(1, record)])


async def consumed(port: int) -> list[tuple[int, bytes | None, bytes | None]]:
    partition = TopicPartition("t", PartitionIndex(0))
    found = []
    async with ClusterClient([("127.0.0.1", port)], rng=random.Random(1)) as cluster:
        start = (await cluster.list_offsets({partition: -2}))[partition].offset
        end = (await cluster.list_offsets({partition: -1}))[partition].offset
        async with Consumer(cluster) as consumer:
            consumer.assign({partition: Offset(start)})
            while consumer.position(partition) < end:
                for batch in await consumer.poll(10_000):
                    found += [(record.offset, record.key, record.value) for record in batch.records()]
    return found


async def produce(port: int, start: int, end: int) -> None:
    async with (
        ClusterClient([("127.0.0.1", port)], rng=random.Random(1)) as cluster,
        Producer(cluster, SystemClock(), batch_bytes=8000) as producer,
    ):
        for number in range(start, end):
            await producer.send("t", b"%d " % number * 100, key=b"k%d" % (number % 37))
        await producer.flush()


@pytest.mark.ci
@pytest.mark.parametrize("by_key", [False, True])
async def test_a_broker_that_comes_back_serves_the_new_segments_and_goes_on(tmp_path: Path, by_key: bool) -> None:
    settings = {"remote_log_manager_task_interval_ms": 50}
    async with running_broker(tmp_path, **settings) as broker:
        await broker.create_topic("t", segment_bytes="1048576", local_retention_ms="0", firn_tier_max_lag_ms="600000")
        await produce(broker.port, 0, 12_000)
        await tiered(broker, 8000)
        before = await consumed(broker.port)
    summary = await asyncio.to_thread(compact, (tmp_path / "store").as_uri(), "t", target_bytes=3 << 20, by_key=by_key)
    assert summary.segments_after < summary.segments_before
    async with running_broker(tmp_path, **settings) as broker:
        after = await consumed(broker.port)
        if by_key:
            # The broker stopped in order: it believes what it knew of the bucket until it has looked, a second later. What
            # is consumed over that moment begins as it was and ends as it is: only the next reading is of one of them.
            async with asyncio.timeout(60):
                while len(after) == len(before):
                    await asyncio.sleep(0.05)
                    after = await consumed(broker.port)
            after = await consumed(broker.port)
            kept = set(after)
            assert kept < set(before)
            assert {key: value for _, key, value in before} == {key: value for _, key, value in after}
        else:
            assert after == before
        await produce(broker.port, 12_000, 20_000)
        await tiered(broker, 14_000)
        assert (await consumed(broker.port))[: len(after)] == after


@pytest.mark.ci
async def test_beside_a_running_cluster_the_leader_swaps_and_consumers_see_one_or_the_other(tmp_path: Path) -> None:
    settings = {"remote_log_manager_task_interval_ms": 50}
    async with running_broker(tmp_path, **settings) as broker:
        await broker.create_topic("t", segment_bytes="1048576", local_retention_ms="0", firn_tier_max_lag_ms="600000")
        await produce(broker.port, 0, 12_000)
        await tiered(broker, 8000)
        before = await consumed(broker.port)
        async with http_server(broker.port) as address:
            store = (tmp_path / "store").as_uri()
            summary = await asyncio.to_thread(compact, store, "t", http=address, target_bytes=3 << 20)
            assert summary.segments_after < summary.segments_before
            assert await consumed(broker.port) == before
            broker.log("t").roll()
            by_key = await asyncio.to_thread(compact, store, "t", http=address, by_key=True)
            assert by_key.records_dropped > 0
            after = await consumed(broker.port)
            assert set(after) < set(before)
            assert {key: value for _, key, value in before} == {key: value for _, key, value in after}
            with pytest.raises(ConfigError, match="refuses"):
                await asyncio.to_thread(
                    LeaderManifest(address, "nowhere", PartitionIndex(0)).begin, nothing_to_replace()
                )


@pytest.mark.ci
@pytest.mark.parametrize("offline", [True, False])
async def test_a_run_of_which_something_expires_under_the_job_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    """The leader, or whoever writes in its place, looks at every input again before the swap."""
    async with running_broker(tmp_path, remote_log_manager_task_interval_ms=50) as broker:
        await broker.create_topic("t", segment_bytes="1048576", local_retention_ms="0", firn_tier_max_lag_ms="600000")
        await produce(broker.port, 0, 12_000)
        await tiered(broker, 8000)
        before = await consumed(broker.port)
        upload, expired = Compaction.upload, False

        async def late(self: Compaction, wanted: Replacement, inputs: Any, *rest: Any) -> None:
            nonlocal expired
            first = inputs[0].entry
            if not expired and offline:
                assert isinstance(self._writer, OfflineManifest)
                await self._writer._manifest.delete_started([first.segment_id], log_start_offset=first.end_offset)
            elif not expired:
                await delete_records(broker.port, first.end_offset)
                async with asyncio.timeout(60):
                    while (await self._session.metadata.manifest(self._partition)).finished[0] == first:
                        await asyncio.sleep(0.02)
            expired = True
            await upload(self, wanted, inputs, *rest)

        monkeypatch.setattr(Compaction, "upload", late)
        store = (tmp_path / "store").as_uri()
        if not offline:
            async with http_server(broker.port) as address:
                summary = await asyncio.to_thread(compact, store, "t", http=address, target_bytes=3 << 20)
            after = await consumed(broker.port)
            assert 0 < len(after) < len(before)
            assert after == before[-len(after) :]
    if offline:
        summary = await asyncio.to_thread(compact, store, "t", target_bytes=3 << 20)
    assert (expired, summary.groups_skipped) == (True, 1)
    assert 1 < summary.segments_after < summary.segments_before
    assert (await asyncio.to_thread(inspect, store, ProcessRunner(1))).is_sound


def test_what_is_not_replaced_is_not_counted_as_dropped(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_late(self: Compaction, *arguments: Any) -> None:
        raise ConflictError("expired meanwhile")

    monkeypatch.setattr(Compaction, "upload", too_late)
    summary = compact(topic.store, "t", by_key=True)
    assert (summary.groups_skipped, summary.records_dropped) == (1, 0)
    assert summary.segments_after == summary.segments_before


def test_a_full_place_for_temporary_files_is_named_and_nothing_is_begun(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = live_entries(topic)
    monkeypatch.setattr(
        "pyspark_firn.jobs.compact.tempfile.TemporaryFile",
        lambda prefix: open("/dev/full", "r+b"),  # noqa: SIM115
    )
    with pytest.raises(
        StorageFull, match=r"^Could not write temporary files in .* \(TMPDIR .*\): No space left on device; free"
    ):
        compact(topic.store, "t")
    assert live_entries(topic) == before


def test_what_lies_on_the_local_disk_meanwhile_has_no_name(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a job that is killed leaves nothing."""
    upload, lying = Compaction.upload, []
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    async def noted(self: Compaction, *arguments: Any) -> None:
        lying.append(list((tmp_path / "tmp").iterdir()))
        await upload(self, *arguments)

    monkeypatch.setattr(Compaction, "upload", noted)
    compact(topic.store, "t", target_bytes=3000)
    assert lying
    assert not any(lying)


@pytest.mark.parametrize("by_key", [False, True])
def test_a_run_of_which_an_object_is_gone_already_is_left_as_it_is(topic: Topic, by_key: bool) -> None:
    """Deleted or replaced by somebody else while this job had others to do."""
    before = [row for row in read(topic) if row["offset"] >= 100]
    [path] = (topic.path / "data").glob(f"*/{topic.topic_id}/0/{0:020d}-*.seg")
    path.unlink()
    summary = compact(topic.store, "t", target_bytes=3000, by_key=by_key)
    assert summary.groups_skipped == 1
    assert summary.segments_after < 6
    after = read(topic, startingOffsets='{"t": {"0": 100}}')
    if by_key:  # Its neighbours in the run keep what others have lost.
        assert [row for row in after if row in newest_of_keys(before)] == newest_of_keys(before)
        assert [row for row in before if row in after] == after
        assert len(after) < len(before)
    else:
        assert after == before


def test_what_does_not_speak_http_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(*arguments: Any, **named: Any) -> Any:
        raise http.client.BadStatusLine("\x00\x00")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    monkeypatch.setattr("pyspark_firn.jobs.compact.ATTEMPTS", 1)
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        LeaderManifest("http://127.0.0.1:1", "t", PartitionIndex(0)).begin(nothing_to_replace())


async def delete_records(port: int, offset: int) -> None:
    async with ClusterClient([("127.0.0.1", port)], rng=random.Random(1)) as cluster:
        await AdminClient(cluster).delete_records(TopicPartition("t", PartitionIndex(0)), Offset(offset))


def nothing_to_replace() -> Replacement:
    return Replacement(SegmentId(uuid.uuid4()), Offset(0), Offset(1), (uuid.uuid4(),))


def test_a_cluster_that_is_older_than_the_job_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    message = b'{"message": "The body is not of the right form: Object missing required field `output`."}'

    def urlopen(*arguments: Any, **named: Any) -> Any:
        raise urllib.error.HTTPError(
            "http://broker", 422, "Unprocessable", http.client.HTTPMessage(), io.BytesIO(message)
        )

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(ConfigError, match=r"an older version of Firn.*Nothing was changed\. Upgrade the brokers"):
        LeaderManifest("http://127.0.0.1:1", "t", PartitionIndex(0)).begin(nothing_to_replace())


def test_leaders_are_asked_as_the_user_of_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def urlopen(request: Any, **more: Any) -> Any:
        asked.append((request, more["context"]))
        return io.BytesIO(b"")

    monkeypatch.setattr("pyspark_firn.jobs.compact.urllib.request.urlopen", urlopen)
    trust = str(certificates(tmp_path / "c") / "ca.pem")
    login = HttpLogin("Basic abc", trust)
    assert "abc" not in repr(login)
    for address in ("https://firn", "http://127.0.0.1"):
        LeaderManifest(address, "t", PartitionIndex(0), login).begin(nothing_to_replace())
    assert [one.get_header("Authorization") for one, _ in asked] == ["Basic abc"] * 2
    assert [context is not None for _, context in asked] == [True, False]


def test_a_job_sends_its_password_encrypted_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in (("SECURITY_PROTOCOL", "SASL_SSL"), ("SASL_MECHANISM", "PLAIN"), ("SASL_USERNAME", "a")):
        monkeypatch.setenv(f"FIRN_CLIENT_{name}", text)
    monkeypatch.setenv("FIRN_CLIENT_SASL_PASSWORD", "p")
    with pytest.raises(ConfigError, match="use an https address"):
        compact_command("t", (tmp_path / "store").as_uri(), http="http://firn.example:8080")
