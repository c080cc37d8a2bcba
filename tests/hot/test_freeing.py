"""Deleted files give back what they have piece by piece, and never hold up the loop or the stop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from app.hot.freeing import PATIENT_FILES_MAX, PIECE_BYTES, REST_S, free_files, free_tree
from app.machine.files import PosixFileSystem
from app.machine.page_cache import all_pages_cached
from tests.hot.helpers import DATA, NOW, GatedPool, InlinePool, batch, manager_over, new_log, running, sim
from tests.support.simfs import SimFileSystem

T = TypeVar("T")


class CountingPool(InlinePool):
    """Says how many calls there have been."""

    calls = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.calls += 1
        return await super().run(work)


class AtOncePool:
    async def run(self, work: Callable[[], T]) -> T:
        return work()


async def settle() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


def put(fs: SimFileSystem, name: str, size_bytes: int) -> str:
    path = f"{DATA}/{name}"
    fs.make_dirs(DATA)
    file = fs.open(path, create=True)
    file.pwrite(bytes(size_bytes), 0)
    file.close()
    return path


async def test_a_large_file_lets_go_of_its_pages_piece_by_piece_before_it_is_unlinked() -> None:
    fs, pool = sim(), CountingPool()
    path = put(fs, "x", 2 * PIECE_BYTES + 1)
    fs.trace = []
    await free_files(fs, pool, deque([path]))
    freed = [call for call, _ in fs.trace if call in ("drop cached", "unlink")]
    assert freed == ["drop cached", "drop cached", "drop cached", "unlink"]
    assert pool.calls == 1 + 3 + 1  # each in a call of its own
    assert not fs.exists(path)
    assert fs.open_files == 0


async def test_small_files_go_together_but_no_more_of_them_at_a_time_than_a_piece() -> None:
    fs, pool = sim(), CountingPool()
    sizes = (0, 10, PIECE_BYTES - 10, 20, PIECE_BYTES + 1, 30)
    paths = [put(fs, f"{number}", size) for number, size in enumerate(sizes)]
    paths.insert(1, f"{DATA}/gone already")
    left = deque(paths)
    await free_files(fs, pool, left)
    assert not left
    assert fs.list_dir(DATA) == []
    assert (
        pool.calls == 1 + 1 + 2 + 1 + 1
    )  # three files; one, and the large one opened; its two pieces; its name; the last one


async def test_without_a_descriptor_to_spare_a_large_file_goes_at_once() -> None:
    fs = sim()
    path = put(fs, "x", PIECE_BYTES + 1)
    fs.open_files_max = fs.open_files
    await free_files(fs, InlinePool(), deque([path]))
    assert not fs.exists(path)


async def test_a_directory_goes_with_its_files_and_one_that_has_gone_is_fine() -> None:
    fs = sim()
    fs.make_dirs(f"{DATA}/t-0/sub")
    put(fs, "t-0/small", 1)
    put(fs, "t-0/large", PIECE_BYTES + 1)
    await free_tree(fs, InlinePool(), f"{DATA}/t-0")
    assert fs.list_dir(DATA) == []
    assert fs.calls["drop cached"] == 2
    await free_tree(fs, InlinePool(), f"{DATA}/t-0")


async def test_a_clean_stop_leaves_no_deleted_file_behind() -> None:
    fs = sim()
    manager = manager_over(fs)
    log = new_log(manager, segment_bytes=len(batch()))
    for _ in range(3):
        log.append_as_leader(batch(), now_ms=NOW)
    await log.flush()
    log.advance_log_start(2)
    assert [name for name in fs.list_dir(log.path) if name.endswith(".deleted")]
    await manager.close()
    assert not [name for name in fs.list_dir(log.path) if name.endswith(".deleted")]


async def test_checkpoints_do_not_wait_for_deleted_files() -> None:
    fs, gated = sim(), GatedPool()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager, segment_bytes=len(batch()))
        for _ in range(3):
            log.append_as_leader(batch(), now_ms=NOW)
        await log.flush()
        manager._pool = gated
        log.advance_log_start(2)
        await settle()
        freeing = gated.waiting
        manager.log_directory.recovery_points_moved = 1 << 20
        manager.log_directory.housekeeping.set()
        await settle()
        moved = manager.log_directory.recovery_points_moved
        gated.gate.set()
        assert (freeing, moved) == (1, 0)  # none has moved since a checkpoint that was planned


def test_what_is_dropped_from_the_page_cache_is_still_in_the_file(tmp_path: Path) -> None:
    file = PosixFileSystem().open(str(tmp_path / "file"), create=True)
    file.pwrite(b"x" * 100_000, 0)
    file.drop_cached(0, 100_000)  # not synced: nothing may get lost
    assert file.pread(100_000, 0) == b"x" * 100_000
    file.fdatasync()
    try:
        assert all_pages_cached(file.fileno(), 0, 100_000)
    except OSError as error:
        pytest.skip(f"this system cannot tell what is cached: {error}")
    file.drop_cached(0, 100_000)
    dropped = not all_pages_cached(file.fileno(), 0, 4096)
    assert dropped or file.pread(4096, 0) == b"x" * 4096  # a file system in memory keeps what it has
    assert file.pread(100_000, 0) == b"x" * 100_000
    file.close()


@pytest.mark.parametrize(("count", "rests"), [(PATIENT_FILES_MAX, True), (PATIENT_FILES_MAX + 1, False)])
async def test_with_many_files_to_go_there_are_no_rests(
    monkeypatch: pytest.MonkeyPatch, count: int, rests: bool
) -> None:
    fs = sim()
    slept: list[float] = []
    paths = deque([put(fs, "large", PIECE_BYTES + 1), *(put(fs, f"{number}", 0) for number in range(count - 1))])

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await free_files(fs, AtOncePool(), paths)
    assert slept == [REST_S if rests else 0] * 2
