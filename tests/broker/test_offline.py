"""Partitions that cannot be opened: each goes offline alone, says how it is mended, and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.cli.doctor import partition_checks, store_checks
from app.core.errors import ErrorCode
from app.core.units import PartitionIndex, TopicIdPartition
from app.machine.runtime import SystemClock
from app.metadata.changes.topic_changes import ConfigChange
from app.metadata.view.follower import MetadataFollower
from app.objectstore.api import ObjectInfo, ObjectStore
from app.objectstore.directory import DirectoryStore
from app.tiering.repair.verify import Finding, FindingKind, verify
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.config_resources import ConfigOperation
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import alter_configs, delete_topic
from tests.support.talking import fetch_all, produce, tier_everything
from tests.support.waiting import until

NO_LEADER = -1
TIER = ["tier"]
OF_T = ["t", "--partition", "0", "--store"]


def damaged_manifest(store: Path, topic_id: object) -> Path:
    """Flip a byte of an entry of partition 0's manifest; the file with the sound bytes is the one beside it."""
    entry = sorted((store / "topics" / str(topic_id) / "0" / "log").iterdir())[1]
    data = bytearray(entry.read_bytes())
    data[-3] ^= 1
    shutil.copy(entry, entry.parent.parent / "sound")
    entry.write_bytes(data)
    return entry


def missing_last_object(store: Path, topic_id: object) -> Path:
    """Take the last segment's object of partition 0 away."""
    last = sorted(store.glob(f"data/*/{topic_id}/0/*.seg"))[-1]
    shutil.copy(last, store / "topics" / str(topic_id) / "0" / "sound")
    last.unlink()
    return last


async def error_of(client: Talk, topic: str, partition: int) -> int:
    answer = await client.produce(9, [(topic, [(partition, batch(1))])])
    return int(answer.responses[0].partition_responses[0].error_code)


async def shown(client: Talk, topic: str) -> list[tuple[int, int, list[int]]]:
    """Error, leader and offline replicas of each partition, the same in both APIs that tell of them."""
    metadata = await client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
    described = await client.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest(topics=[TopicRequest(topic)])
    )
    one, other = (
        [(part.error_code, part.leader_id, part.offline_replicas) for part in answer.topics[0].partitions]
        for answer in (metadata, described)
    )
    assert one == other
    return one


def offline_count(broker: RunningBroker) -> float:
    [count] = [one.value for one in broker.node.registry.samples() if one.name == "firn_offline_partitions"]
    return count


def said_by(command: list[str]) -> str:
    """What a command of ``firn`` says, as one line. On a thread: the command has a loop of its own."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert main(command) == 0
    return " ".join(said.getvalue().split())


async def told(command: list[str], broker: RunningBroker) -> str:
    return await asyncio.to_thread(said_by, [*command, "--bootstrap", broker.bootstrap])


async def doctors_findings(broker: RunningBroker) -> list[str]:
    """The checks of the doctor that fail; each says how to mend what it found."""
    failed = [result for result in await partition_checks(broker.store) if not result.passed]
    assert all("restore the objects under" in result.mend for result in failed)
    return [result.name for result in failed]


async def two_tiered_partitions(path: Path) -> tuple[Any, bytes]:
    """A topic whose two partitions are tiered whole: its id, and what a consumer reads of the first."""
    async with running_broker(path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", 2, segment_bytes="1048576", retention_ms="-1", local_retention_bytes="0")
        for partition in (0, 1):
            await produce(client, "t", *[batch(10, value=b"%d" % n * 1000) for n in range(4)], partition=partition)
            await tier_everything(broker, "t", partition)
        sent = await fetch_all(client, "t", end=40)
        return broker.log("t").topic_id, sent


@pytest.mark.parametrize("damage", [damaged_manifest, missing_last_object])
async def test_a_partition_that_cannot_be_opened_is_offline_alone_and_back_when_mended(
    tmp_path: Path, damage: Callable[[Path, object], Path]
) -> None:
    topic_id, sent = await two_tiered_partitions(tmp_path)
    shutil.rmtree(tmp_path / "data")
    damaged = damage(tmp_path / "store", topic_id)
    async with running_broker(tmp_path, take_over=True) as broker, talk(broker.port) as client:
        [line] = [line for line in broker.lines if "is offline" in line]
        assert line.startswith("t-0 is offline, and the broker serves the other partitions: ")
        assert f"restore the objects under topics/{topic_id}/0/" in line
        assert offline_count(broker) == 1
        assert await shown(client, "t") == [(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, [1]), (0, 1, [])]
        assert await error_of(client, "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await produce(client, "t", batch(1), partition=1) == [40]
        for command in (["topic", "describe", "t"], ["tier", "status", "t"]):
            assert f"restore the objects under topics/{topic_id}/0/" in await told(command, broker)
        assert await doctors_findings(broker) == ["partition t-0"]
        url = f"file://{tmp_path}/store"
        assert [one.name for one in await store_checks(url) if not one.passed] == ["store: partition t-0"]
        assert all(one.passed for one in await store_checks(url, partitions=False)), "a broker starts all the same"
        await broker.create_topic("u")
        assert await produce(client, "u", batch(1)) == [0]
        change = ConfigChange("max.message.bytes", ConfigOperation.SET, "100000")
        await alter_configs(broker.node.membership.controller, 2, "t", [change])
        assert not [line for line in broker.lines if "cannot create, change or delete" in line]

        key = TopicIdPartition(topic_id, PartitionIndex(0))
        assert not await broker.node.partitions.opener.try_to_open(key)
        assert sum("t-0 is offline" in line for line in broker.lines) == 1, "told once"
        (tmp_path / "store" / "topics" / str(topic_id) / "0" / "sound").rename(damaged)
        assert await broker.node.partitions.opener.try_to_open(key)
        assert (offline_count(broker), "t-0 is led again" in broker.lines) == (0, True)
        assert await doctors_findings(broker) == []
        assert await shown(client, "t") == [(0, 1, []), (0, 1, [])]
        assert await fetch_all(client, "t", end=40) == sent
        assert await produce(client, "t", batch(1)) == [40]
        assert broker.log("t").config.max_message_bytes == 100_000, "settings that changed meanwhile hold"
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert await produce(client, "t", batch(1)) == [41]


async def test_an_offline_partition_keeps_its_local_records_over_stops_and_kills_of_the_broker(tmp_path: Path) -> None:
    topic_id, _ = await two_tiered_partitions(tmp_path)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert await produce(client, "t", batch(5)) == [40]
        epoch = broker.log("t").leader_epoch
        tail = await fetch_all(client, "t", start=40, end=45)
    shutil.rmtree(tmp_path / "data" / ".firn")
    damaged = damaged_manifest(tmp_path / "store", topic_id)
    for _ in range(2):
        async with running_broker(tmp_path) as broker, talk(broker.port) as client:
            assert await error_of(client, "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
            assert broker.node.load_report is not None
            assert broker.node.load_report.scanned == 0, "it was closed with the others"
    (tmp_path / "store" / "topics" / str(topic_id) / "0" / "sound").rename(damaged)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert await fetch_all(client, "t", start=40, end=45) == tail
        assert await produce(client, "t", batch(1)) == [45]
        assert broker.log("t").leader_epoch >= epoch


async def test_a_topic_with_an_offline_partition_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    topic_id, _ = await two_tiered_partitions(tmp_path)
    shutil.rmtree(tmp_path / "data" / ".firn")
    damaged_manifest(tmp_path / "store", topic_id)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert offline_count(broker) == 1
        await delete_topic(broker.node.membership.controller, "t")
        assert offline_count(broker) == 0
        await until(lambda: not broker.node.cluster.image.deleting)
        await broker.create_topic("t", 2)
        assert await produce(client, "t", batch(1)) == [0]


async def test_groups_of_an_offline_partition_have_no_coordinator_and_others_do(tmp_path: Path) -> None:
    async with running_broker(tmp_path, offsets_topic_num_partitions=2) as broker, talk(broker.port) as client:
        names = [f"group-{number}" for number in range(8)]
        before = await client.ask(
            ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=names)
        )
        assert {one.error_code for one in before.coordinators} == {0}
        topic_id = broker.log("__consumer_offsets").topic_id
    shutil.rmtree(tmp_path / "data" / ".firn", ignore_errors=True)
    entry = tmp_path / "store" / "topics" / str(topic_id) / "0" / "log" / f"{0:020d}"
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.write_bytes(b"garbage")
    async with running_broker(tmp_path, offsets_topic_num_partitions=2) as broker, talk(broker.port) as client:
        after = await client.ask(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=names))
        assert {one.error_code for one in after.coordinators} == {0, ErrorCode.COORDINATOR_NOT_AVAILABLE}


# --- a manifest that has lost its last entries, together with the disk ------------------------------------------------


async def lost_last_entries(path: Path, entries: int = 2) -> tuple[Any, bytes, Path]:
    """A partition of three tiered segments whose manifest has lost its last entries, and whose broker its data directory.

    Returns the topic's id, what a consumer reads of all, and where the entries are kept.
    """
    async with running_broker(path) as broker, talk(broker.port) as client:
        await broker.create_topic(
            "t",
            2,
            segment_bytes="1048576",
            retention_ms="-1",
            local_retention_bytes="0",
            firn_remote_delete_delay_ms="0",
        )
        for n in range(3):
            await produce(client, "t", batch(10, value=b"%d" % n * 1000))
            await tier_everything(broker, "t")
        sent = await fetch_all(client, "t", end=30)
        topic_id = broker.log("t").topic_id
    shutil.rmtree(path / "data")
    log = path / "store" / "topics" / str(topic_id) / "0" / "log"
    kept = path / "kept"
    kept.mkdir()
    for entry in sorted(log.iterdir())[-entries:]:
        entry.rename(kept / entry.name)
    return topic_id, sent, log


async def findings_of(store: ObjectStore) -> list[Finding]:
    follower = MetadataFollower(store, SystemClock())
    return [one async for one in verify(store, follower.manifest, follower.cluster) if one.is_damage]


async def test_offsets_of_segments_that_a_manifest_has_lost_are_not_given_out_again_until_it_is_put_back(
    tmp_path: Path,
) -> None:
    topic_id, sent, log = await lost_last_entries(tmp_path)
    for _ in range(2):  # the first leaves a data directory behind
        async with running_broker(tmp_path, take_over=True) as broker, talk(broker.port) as client:
            [line] = [line for line in broker.lines if "is offline" in line]
            assert line.startswith("t-0 is offline")
            assert "hold offsets [20, 30) above the tiered end 20" in line
            assert "`firn tier adopt t --partition 0 --store URL`" in line
            assert await error_of(client, "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
            [finding] = await findings_of(broker.store)
            assert (finding.kind, finding.object_key) == (FindingKind.ENTRIES_LOST, f"topics/{topic_id}/0")
            assert await doctors_findings(broker) == ["partition t-0"]
            assert await produce(client, "t", batch(1), partition=1)
    for entry in (tmp_path / "kept").iterdir():
        entry.rename(log / entry.name)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert await fetch_all(client, "t", end=30) == sent
        assert await produce(client, "t", batch(1)) == [30]
        assert await findings_of(broker.store) == []


async def test_adopted_segments_are_read_again_and_nothing_is_lost(tmp_path: Path) -> None:
    topic_id, sent, _ = await lost_last_entries(tmp_path, entries=4)
    key = TopicIdPartition(topic_id, PartitionIndex(0))
    async with running_broker(tmp_path, take_over=True) as broker, talk(broker.port) as client:
        assert key in broker.node.partitions.table.offline
        told = await asyncio.to_thread(said_by, [*TIER, "adopt", *OF_T, (tmp_path / "store").as_uri()])
        assert "[10, 20)" in told
        assert "[20, 30)" in told
        assert await broker.node.partitions.opener.try_to_open(key)
        assert await fetch_all(client, "t", end=30) == sent
        assert await produce(client, "t", batch(1)) == [30]
        assert await findings_of(broker.store) == []
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert (await fetch_all(client, "t", end=31)).startswith(sent)


async def test_a_loss_that_is_accepted_is_recorded_and_the_partition_goes_on_at_the_tiered_end(tmp_path: Path) -> None:
    topic_id, sent, _ = await lost_last_entries(tmp_path, entries=4)
    [middle] = (tmp_path / "store").glob(f"data/*/{topic_id}/0/{10:020d}-*.seg")
    middle.unlink()
    [left] = (tmp_path / "store").glob(f"data/*/{topic_id}/0/{20:020d}-*.seg")
    key = TopicIdPartition(topic_id, PartitionIndex(0))
    store = (tmp_path / "store").as_uri()
    async with running_broker(tmp_path, take_over=True, remote_log_manager_task_interval_ms=20) as broker:
        told = await asyncio.to_thread(said_by, [*TIER, "adopt", *OF_T, store])
        assert "No segment follows the tiered end of t-0" in told
        assert "1 segment above the tiered end cannot be adopted" in told
        assert not await broker.node.partitions.opener.try_to_open(key)
        told = await asyncio.to_thread(said_by, [*TIER, "accept-loss", *OF_T, store])
        assert f"{left.name} is given up: offsets from 20 on" in told
        assert await broker.node.partitions.opener.try_to_open(key)
        async with talk(broker.port) as client:
            assert await fetch_all(client, "t", end=10) == sent[: len(sent) // 3]
            assert await produce(client, "t", batch(1)) == [10]
        await until(lambda: not left.exists())
        assert await findings_of(broker.store) == []
    told = await asyncio.to_thread(said_by, [*TIER, "accept-loss", *OF_T, store])
    assert "nothing has changed" in told


async def test_a_start_on_its_own_directory_looks_for_no_unnamed_segments(tmp_path: Path) -> None:
    """Neither after a stop in order nor where the local log goes on above the tiered end."""
    await two_tiered_partitions(tmp_path)
    listed: list[str] = []

    class Listening(DirectoryStore):
        async def list_objects(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
            listed.append(prefix)
            return await super().list_objects(prefix, start_after=start_after, limit=limit)

    store = Listening(tmp_path / "store")
    async with running_broker(tmp_path, store=store) as broker, talk(broker.port) as client:
        for partition in (0, 1):
            await produce(client, "t", batch(1), partition=partition)
    (tmp_path / "data" / ".firn" / "manifest-ends").unlink()
    async with running_broker(tmp_path, store=store):
        pass
    assert listed
    assert not [prefix for prefix in listed if prefix.startswith("data/")]
