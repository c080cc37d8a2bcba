"""What a start believes of the copies of manifests in its data directory, and what it asks the store about."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.broker.composing.local_parts import OWN_DIRECTORY
from app.broker.partitions.manifest_copies import ENDS_FILE
from app.broker.partitions.manifests import Manifests
from app.core.errors import FencedError
from app.core.units import BrokerId, LeaderEpoch, TopicIdPartition
from app.hot.checkpoints import CLEAN_SHUTDOWN_FILE
from app.hot.log import PartitionLog
from app.machine.runtime import SystemClock
from app.metadata.image.records import LEVEL_MAX
from app.metadata.manifest.manifest import SegmentManifest
from app.objectstore.memory import MemoryStore
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import delete_topic
from tests.support.talking import produce, tier_everything
from tests.support.waiting import until

SETTINGS = {"remote_log_manager_task_interval_ms": 50}


def listed(store: MemoryStore) -> bool:
    """Whether manifests were, since the history was cleared."""
    return any(one.operation == "list_objects" and one.key.startswith("topics/") for one in store.history)


def attached(broker: RunningBroker, topic: str, partition: int) -> SegmentManifest | None:
    log = broker.log(topic, partition)
    return broker.node.remote_log_manager.manifest_of(TopicIdPartition(log.topic_id, log.partition))


def manifest_of(broker: RunningBroker, topic: str = "t", partition: int = 0) -> SegmentManifest:
    manifest = attached(broker, topic, partition)
    assert manifest is not None
    return manifest


async def tier_a_batch(broker: RunningBroker) -> None:
    async with talk(broker.port) as client:
        await produce(client, "t", batch(4))
    await tier_everything(broker, "t")


async def left_by_a_broker(path: Path, store: MemoryStore) -> None:
    """A topic of two partitions, of which one has remote segments."""
    async with running_broker(path, store=store, **SETTINGS) as broker:
        await broker.create_topic("t", 2, retention_ms="-1")
        await until(lambda: all(attached(broker, "t", n) for n in (0, 1)))
        await tier_a_batch(broker)


async def test_after_a_stop_in_order_manifests_are_listed_only_when_clients_are_served(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await left_by_a_broker(tmp_path, store)
    store.history.clear()
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        assert not listed(store)
        assert [manifest_of(broker, "t", n).tiered_end for n in (0, 1)] == [4, 0]
        await until(lambda: listed(store))
        await tier_a_batch(broker)
        assert manifest_of(broker).tiered_end == 8


async def test_after_a_kill_every_manifest_is_listed(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await left_by_a_broker(tmp_path, store)
    copies = tmp_path / "data" / OWN_DIRECTORY / "manifests"
    shutil.copytree(copies, tmp_path / "copies")
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        await tier_a_batch(broker)
    # What a stop in order adds is not there after a kill, and copies are behind.
    (tmp_path / "data" / CLEAN_SHUTDOWN_FILE).unlink()
    (tmp_path / "data" / OWN_DIRECTORY / ENDS_FILE).unlink()
    shutil.rmtree(copies)
    (tmp_path / "copies").rename(copies)
    store.history.clear()
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        assert not broker.node.load_report.clean
        assert listed(store)
        assert manifest_of(broker).tiered_end == 8


async def test_ends_that_an_older_start_has_left_are_not_believed(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await left_by_a_broker(tmp_path, store)
    own = tmp_path / "data" / OWN_DIRECTORY
    shutil.copytree(own, tmp_path / "own")
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        await tier_a_batch(broker)
    shutil.rmtree(own)
    (tmp_path / "own").rename(own)
    assert (own / ENDS_FILE).exists()
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        assert manifest_of(broker).tiered_end == 8


async def test_copies_that_do_not_go_to_the_ends_are_not_believed(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await left_by_a_broker(tmp_path, store)
    copies = tmp_path / "data" / OWN_DIRECTORY / "manifests"
    shutil.copytree(copies, tmp_path / "copies")
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        await tier_a_batch(broker)
    shutil.rmtree(copies)
    (tmp_path / "copies").rename(copies)
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        assert manifest_of(broker).tiered_end == 8
    for path in copies.iterdir():
        path.unlink()
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        assert manifest_of(broker).tiered_end == 8


async def test_partitions_without_records_cost_a_start_no_write_and_keep_their_leader_epoch(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())

    async def writes_of_a_start() -> tuple[int, set[int]]:
        store.history.clear()
        async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
            epochs = {int(broker.log("t", n).leader_epoch) for n in range(20)}
            return sum(
                one.operation.startswith("put") and one.key.startswith("topics/") for one in store.history
            ), epochs

    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        await broker.create_topic("t", 20)
    assert not list((tmp_path / "data").glob("t-*"))
    assert await writes_of_a_start() == (0, {0})
    (tmp_path / "data" / CLEAN_SHUTDOWN_FILE).unlink()
    (tmp_path / "data" / OWN_DIRECTORY / ENDS_FILE).unlink()
    assert await writes_of_a_start() == (0, {1})


async def test_a_partition_whose_files_are_gone_after_a_stop_in_order_gets_a_new_leader_epoch(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        await broker.create_topic("t", 2)
        async with talk(broker.port) as client:
            await produce(client, "t", batch(4))
    shutil.rmtree(tmp_path / "data" / "t-0")
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        assert [broker.log("t", n).leader_epoch for n in (0, 1)] == [1, 0]
        assert any("t-0 was there at the last clean stop" in line for line in broker.lines)


async def test_a_copy_is_kept_of_each_manifest_with_entries_until_its_topic_is_deleted(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await left_by_a_broker(tmp_path, store)
    copies = tmp_path / "data" / OWN_DIRECTORY / "manifests"
    (of_tiered,) = copies.iterdir()
    of_unknown = copies / f"topics_00000000{of_tiered.name[15:]}"
    of_unknown.write_bytes(b"of a topic that is not known any more")
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        await broker.create_topic("u", 1, retention_ms="-1")
        assert of_tiered.exists()
        await delete_topic(broker.node.membership.controller, "t")
        async with talk(broker.port) as client:
            await produce(client, "u", batch(4))
        await tier_everything(broker, "u")
    (of_new,) = copies.iterdir()
    assert of_new not in (of_tiered, of_unknown)


async def test_manifests_of_many_new_partitions_are_listed_together(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        store.history.clear()
        await broker.create_topic("t", 400)
        await until(lambda: all(attached(broker, "t", n) for n in range(400)))
        lists = sum(one.operation == "list_objects" and one.key.startswith("topics/") for one in store.history)
        assert lists < 50


async def test_what_a_job_wrote_while_no_broker_ran_is_found_soon_and_the_job_is_fenced(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await tier_a_batch(broker)
        log = broker.log("t")
    job = SegmentManifest(
        store,
        log.topic_id,
        log.partition,
        writer_id="job",
        broker_id=BrokerId(-1),
        leader_epoch=LeaderEpoch(0),
        rng=random.Random(1),
        clock=SystemClock(),
    )
    await job.load()
    await job.set_log_start(2)
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        manifest = manifest_of(broker)
        await until(lambda: manifest.log_start_offset == 2 and manifest.sealed_by.startswith("1/"))


async def test_a_manifest_that_a_later_leader_has_sealed_does_not_end_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leadership may be over by the time at which the seal is refused."""
    load, refused = Manifests.load, []

    async def load_manifest(manifests: Manifests, log: PartitionLog, *rest: Any) -> SegmentManifest:
        if log.topic == "t" and not refused:
            refused.append(log)
            raise FencedError("A later leader has taken over the manifest.")
        return await load(manifests, log, *rest)

    monkeypatch.setattr(Manifests, "load", load_manifest)
    async with running_broker(tmp_path, store=MemoryStore(SystemClock()), new_level=LEVEL_MAX, **SETTINGS) as broker:
        assert broker.node.cluster.image.level
        await broker.create_topic("t", 1, retention_ms="-1")
        await until(lambda: attached(broker, "t", 0))
        assert refused
        await tier_a_batch(broker)
