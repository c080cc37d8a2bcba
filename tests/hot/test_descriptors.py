"""Open files: never too many, never one closed under somebody."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from app.core.errors import StorageUnavailable
from app.hot.descriptors import DescriptorCache, FileHandle
from app.hot.manager import IDLE_MS
from app.machine.files import PosixFileSystem
from tests.hot.helpers import DATA, NOW, batch, manager_over, new_log, read_all, running, sim


def handles(count: int, descriptors_max: int) -> tuple[DescriptorCache, list[FileHandle]]:
    fs = sim()
    for number in range(count):
        fs.open(f"{DATA}/{number}", create=True).close()
    cache = DescriptorCache(fs, descriptors_max)
    return cache, [FileHandle(cache, f"{DATA}/{number}") for number in range(count)]


def test_the_file_longest_unused_is_closed_first() -> None:
    cache, files = handles(4, 3)
    for file in files[:3]:
        cache.open(file)
        file.touched = False
    files[0].touched = True
    cache.open(files[3])
    assert [file.file is not None for file in files] == [True, False, True, True]
    assert cache.open_count == 3


def test_files_with_readers_or_unsynced_bytes_stay_open() -> None:
    cache, files = handles(4, 2)
    reading = files[0].acquire()
    cache.open(files[1])
    cache.pin(files[1])
    with pytest.raises(StorageUnavailable):
        cache.open(files[2])
    cache.unpin(files[1])
    cache.open(files[2])
    assert files[1].file is None
    assert reading.size() == 0
    files[0].release()
    cache.open(files[3])
    assert cache.open_count == 2


def test_readers_crowd_the_cache_when_they_have_three_quarters_of_it_and_each_file_counts_once() -> None:
    cache, files = handles(4, 4)
    for file in files[:2]:
        file.acquire()
        file.acquire()
    assert not cache.crowded
    files[2].acquire()
    assert cache.crowded
    files[0].release()
    assert cache.crowded
    files[0].release()
    assert not cache.crowded
    cache.delete(files[1])
    files[1].release()
    files[1].release()
    assert cache.read == 1


def test_a_deleted_file_closes_after_its_last_reader() -> None:
    cache, files = handles(1, 2)
    file = files[0].acquire()
    again = files[0].acquire()
    cache.pin(files[0])
    cache.delete(files[0])
    files[0].release()
    assert again.size() == 0
    files[0].release()
    assert (cache.open_count, files[0].file) == (0, None)
    with pytest.raises(OSError, match="Bad file"):
        file.size()
    with pytest.raises(StorageUnavailable):
        files[0].acquire()


def test_pressure_is_reported_when_half_is_pinned() -> None:
    cache, files = handles(4, 4)
    pressed: list[FileHandle] = []
    cache.on_pressure = pressed.append
    for file in files:
        cache.open(file)
        cache.pin(file)
    assert pressed == files[:2]  # each that comes pushes out the oldest


async def test_many_more_partitions_than_descriptors_take_appends_and_reads() -> None:
    fs = sim()
    fs.open_files_max = 40
    async with running(manager_over(fs, descriptors_max=20)) as manager:
        logs = [new_log(manager, partition=number) for number in range(200)]
        for _ in range(3):
            for log in logs:
                log.append_as_leader(batch(), now_ms=NOW)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        for log in logs:
            assert len(await read_all(log)) == 3 * len(batch())
        assert fs.open_files <= 20
        assert fs.open_files_peak <= 30
    await manager.close()
    assert fs.open_files == 0


def test_files_that_nobody_used_since_the_last_look_are_closed_but_for_those_in_use_and_unsynced() -> None:
    cache, files = handles(4, 10)
    for file in files:
        cache.open(file)
    files[1].acquire()
    cache.pin(files[2])
    assert cache.close_unused() == 0, "all were opened since the look before"
    files[3].acquire()
    files[3].release()
    assert cache.close_unused() == 1
    assert [file.file is not None for file in files] == [False, True, True, True]
    files[0].acquire()
    files[0].release()
    assert files[0].file is not None
    files[1].release()


async def test_idle_logs_are_synced_then_closed_and_opened_again_by_the_next_append_and_read() -> None:
    fs = sim()
    async with running(manager_over(fs, descriptors_max=100)) as manager:
        idle = [new_log(manager, partition=number) for number in range(20)]
        busy = new_log(manager, partition=20)
        for log in [*idle, busy]:
            log.append_as_leader(batch(), now_ms=NOW)
        later = NOW + IDLE_MS
        busy.append_as_leader(batch(), now_ms=later)
        await manager.close_idle_files(later)
        assert manager.log_directory.descriptors.open_count == 21, "what is not synced stays open"
        async with asyncio.timeout(60):
            while any(log.synced_end_offset == 0 for log in idle):
                await asyncio.sleep(0)
        assert busy.synced_end_offset == 0
        for _ in range(2):
            await manager.close_idle_files(later)
        assert manager.log_directory.descriptors.open_count == 1
        for log in idle:
            log.append_as_leader(batch(), now_ms=later)
            assert len(await read_all(log)) == 2 * len(batch())
    await manager.close()


def test_at_the_end_all_files_are_closed_but_those_in_use_and_unsynced() -> None:
    cache, files = handles(4, 4)
    for file in files:
        file.acquire()
        if file is not files[1]:
            file.release()
    cache.pin(files[2])
    cache.close_all()
    assert [file.file is not None for file in files] == [False, True, True, False]
    files[1].release()
    cache.unpin(files[2])
    cache.close_all()
    assert cache.open_count == 0


async def test_a_stop_in_order_leaves_no_file_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    manager = manager_over(PosixFileSystem(), data_dir=str(tmp_path))
    log = new_log(manager)
    log.append_as_leader(batch(), now_ms=NOW)
    chunk = FileHandle(manager.log_directory.descriptors, str(tmp_path / "chunk"))
    (tmp_path / "chunk").touch()
    chunk.acquire()
    chunk.release()
    await manager.close()
    assert set(os.listdir("/proc/self/fd")) <= before
