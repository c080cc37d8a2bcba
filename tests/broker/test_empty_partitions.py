"""Partitions without records have no files: a start must know those that never had any from those that have lost them.

What was lost is led under a higher leader epoch, so that no offset is given out twice under one (KIP-320).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.broker.node import Node
from app.broker.partitions.manifest_copies import LED_BY_FILE
from app.broker.partitions.partitions import LOGS_AT_ONCE
from app.core.errors import StorageFull, StorageUnavailable
from app.hot.checkpoints import CLEAN_SHUTDOWN_FILE
from app.hot.manager import LogManager
from app.hot.state_file import STATE_FILE
from app.machine.runtime import SystemClock
from app.metadata.controller.controller import Controller
from app.objectstore.memory import MemoryStore
from tests.handlers.conversation import batch, talk
from tests.support.broker import running_broker
from tests.support.talking import produce

SETTINGS = {"remote_log_manager_task_interval_ms": 50}


async def fill(path: Path, store: MemoryStore, topic: str = "t", **where: Any) -> None:
    """Run a broker for as long as it takes to make a topic of two partitions, one of them with records; stop it in order."""
    async with running_broker(path, store=store, **where, **SETTINGS) as broker:
        await broker.create_topic(topic, 2, remote_storage_enable="false")
        async with talk(broker.port) as client:
            assert await produce(client, topic, batch(4)) == [0]


async def epochs(path: Path, store: MemoryStore, topic: str = "t", **where: Any) -> list[int]:
    """The leader epochs of a topic's partitions under the next start."""
    async with running_broker(path, store=store, **where, **SETTINGS) as broker:
        return [int(broker.log(topic, index).leader_epoch) for index in range(2)]


async def fails(*_: object, **__: object) -> None:
    raise StorageUnavailable("the store is away")


async def test_what_never_had_records_is_led_on_after_a_stop_in_order(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await fill(tmp_path, store)
    assert not (tmp_path / "data" / "t-1").exists()
    for _ in range(2):
        assert await epochs(tmp_path, store) == [0, 0]


def all_files(data: Path) -> None:
    for file in (data / "t-0").iterdir():
        file.unlink()


def directory(data: Path) -> None:
    shutil.rmtree(data / "t-0")


def segment(data: Path) -> None:
    for file in (data / "t-0").glob("*.log"):
        file.unlink()


def segment_and_topic_id(data: Path) -> None:
    segment(data)
    (data / "t-0" / "partition.metadata").unlink()


def directory_and_state(data: Path) -> None:
    directory(data)
    (data / STATE_FILE).unlink()


@pytest.mark.parametrize("lose", [all_files, directory, segment, segment_and_topic_id])
async def test_what_lost_its_files_after_a_stop_in_order_is_led_under_a_higher_epoch(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    store = MemoryStore(SystemClock())
    await fill(tmp_path, store)
    lose(tmp_path / "data")
    assert await epochs(tmp_path, store) == [1, 0]


async def test_a_lost_state_file_hides_no_loss(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await fill(tmp_path, store)
    directory_and_state(tmp_path / "data")
    assert (await epochs(tmp_path, store))[0] == 1


@pytest.mark.parametrize("given_up", [(Controller, "bump_leader_epochs"), (Node, "run")])
async def test_a_start_that_is_given_up_hides_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_up: tuple[type, str]
) -> None:
    store = MemoryStore(SystemClock())
    await fill(tmp_path, store)
    directory(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(*given_up, fails)
        with pytest.raises(StorageUnavailable):
            await running_broker(tmp_path, store=store, **SETTINGS).__aenter__()
    assert (await epochs(tmp_path, store))[0] == 1


async def test_an_older_copy_of_the_directory_is_not_taken_for_the_newest_state(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await fill(tmp_path, store)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker, talk(broker.port) as client:
        assert await produce(client, "t", batch(4)) == [4]
        await broker.create_topic("u", 2, remote_storage_enable="false")
        assert await produce(client, "u", batch(4)) == [0]
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "copy").rename(tmp_path / "data")
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        assert [int(broker.log(topic).leader_epoch) for topic in ("t", "u")] == [1, 1]


async def test_what_another_directory_led_meanwhile_is_led_under_a_higher_epoch_though_a_start_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(SystemClock())
    await fill(tmp_path, store)
    await fill(tmp_path, store, "u", data_dir=tmp_path / "other", take_over=True, seed=99)
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "bump_leader_epochs", fails)
        with pytest.raises(StorageUnavailable):
            await running_broker(tmp_path, store=store, take_over=True, **SETTINGS).__aenter__()
    assert await epochs(tmp_path, store, "u") == [1, 1]


def manifest_writes(store: MemoryStore) -> list[str]:
    return [one.key for one in store.history if one.operation == "put_if_absent" and one.key.startswith("topics/")]


async def test_after_a_kill_all_epochs_rise_and_manifests_are_sealed_only_if_another_may_still_write_them(
    tmp_path: Path,
) -> None:
    store = MemoryStore(SystemClock())
    await fill(tmp_path, store)
    marker, led_by = tmp_path / "data" / CLEAN_SHUTDOWN_FILE, tmp_path / "data" / ".firn" / LED_BY_FILE
    marker.unlink()
    store.history.clear()
    assert await epochs(tmp_path, store) == [1, 1]
    assert manifest_writes(store) == []
    marker.unlink()
    led_by.unlink()
    assert await epochs(tmp_path, store) == [2, 2]
    assert len(manifest_writes(store)) == 1, "that of the partition without files"


async def test_partitions_whose_logs_there_was_no_time_to_make_have_never_had_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(SystemClock())
    create = LogManager.create

    def create_some(self: LogManager, topic: str, topic_id: Any, partition: int, config: Any) -> Any:
        if partition >= LOGS_AT_ONCE:
            raise StorageFull("no room")
        return create(self, topic, topic_id, partition, config)

    with monkeypatch.context() as patch:
        patch.setattr(LogManager, "create", create_some)
        async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
            await broker.create_topic("many", 2 * LOGS_AT_ONCE)
    async with running_broker(tmp_path, store=store, **SETTINGS) as broker:
        assert {int(log.leader_epoch) for log in broker.node.logs.logs()} == {0}
        assert len(broker.node.logs.logs()) == 2 * LOGS_AT_ONCE
