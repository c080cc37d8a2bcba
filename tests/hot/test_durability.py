"""When a record counts as stored, and what happens when a sync fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from app.configs import Durability
from app.core.errors import RequestRejected, StorageFull, StorageUnavailable
from app.core.units import LeaderEpoch
from app.hot.checkpoints import encode_leader_epochs
from app.hot.descriptors import FileHandle
from app.hot.durability import WRITE_BACK_BYTES
from app.hot.log import PartitionLog
from app.machine.files import File, read_file
from tests.hot.helpers import (
    DATA,
    NOW,
    GatedPool,
    InlinePool,
    batch,
    idempotent,
    manager_over,
    new_log,
    read_all,
    running,
    sim,
)

T = TypeVar("T")

LOG_PATH = f"{DATA}/t-0/00000000000000000000.log"


def append(log: PartitionLog, count: int = 1) -> int:
    return log.append_as_leader(batch(count), now_ms=NOW).last_offset_end


async def settle(rounds: int = 30) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def test_memory_is_stored_at_once() -> None:
    log = new_log(manager_over(sim()))
    assert log.wait_stored(append(log)) is None
    assert log.high_watermark == 1


async def test_disk_waits_for_its_sync_and_so_does_the_high_watermark() -> None:
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager, firn_durability=Durability.DISK)
        stored = log.wait_stored(append(log, 3))
        assert stored is not None
        assert (log.high_watermark, log.log_end_offset) == (0, 3)
        await stored
        assert (log.high_watermark, log.synced_end_offset) == (3, 3)
        assert log.wait_stored(3) is None


async def test_a_new_files_names_are_synced_before_its_bytes_count() -> None:
    fs = sim()
    async with running(manager_over(fs)) as manager:
        fs.trace = []
        log = new_log(manager, firn_durability=Durability.DISK)
        stored = log.wait_stored(append(log))
        assert stored is not None
        await stored
        synced = [(call, path) for call, path in fs.trace if call in ("fsync_dir", "fdatasync", "write")]
        assert synced.index(("write", LOG_PATH)) < synced.index(("fsync_dir", DATA))
        assert synced.index(("fsync_dir", DATA)) < synced.index(("fsync_dir", f"{DATA}/t-0"))
        assert synced.index(("fsync_dir", f"{DATA}/t-0")) < synced.index(("fdatasync", LOG_PATH))


async def test_many_appends_share_one_sync() -> None:
    fs = sim()
    pool = GatedPool()
    async with running(manager_over(fs, pool=pool)) as manager:
        log = new_log(manager, firn_durability=Durability.DISK)
        first = log.wait_stored(append(log))
        await settle()
        assert pool.waiting == 1  # the first sync is under way; these come too late for it
        others = [log.wait_stored(append(log)) for _ in range(50)]
        fs.trace = []
        pool.gate.set()
        await asyncio.gather(*[stored for stored in (first, *others) if stored is not None])
        synced = [path.rpartition("/")[2] for call, path in fs.trace if call == "fdatasync"]
        assert synced.count("00000000000000000000.log") == 2
        assert synced.count("partition.metadata") == 1, "whose log it is becomes durable once, with its name"
        assert log.high_watermark == 51


async def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    pool = GatedPool()
    async with running(manager_over(sim(), pool=pool)) as manager:
        log = new_log(manager, firn_durability=Durability.DISK)
        first = log.wait_stored(append(log))
        await settle()
        second = log.wait_stored(append(log))
        assert first is not None
        assert second is not None
        pool.gate.set()
        await first
        assert log.synced_end_offset == 1
        await second
        assert log.synced_end_offset == 2


async def test_a_failed_sync_takes_the_directory_offline_and_is_not_tried_again() -> None:
    fs = sim()
    told: list[str] = []
    async with running(manager_over(fs)) as manager:
        manager.log_directory.on_offline = told.append
        log = new_log(manager, firn_durability=Durability.DISK)
        other = new_log(manager, "other")
        append(other)
        stored = log.wait_stored(append(log))
        fs.fail_next("fdatasync", ".log")
        assert stored is not None
        with pytest.raises(StorageUnavailable):
            await stored
        fs.calls.clear()
        for refused in (log, other):
            with pytest.raises(StorageUnavailable):
                append(refused)
            with pytest.raises(StorageUnavailable):
                refused.read(0, 100, end_offset=1)
            with pytest.raises(StorageUnavailable):
                await refused.flush()
        late = log.wait_stored(1)
        assert late is not None
        with pytest.raises(StorageUnavailable):
            await late
        with pytest.raises(StorageUnavailable):
            new_log(manager, "third")
        await settle()
        assert fs.calls["fdatasync"] == 0
        assert log.high_watermark == 0
        assert manager.offline_reason is not None
        assert len(told) == 1
    await manager.close()
    assert not fs.exists(f"{DATA}/.kafka_cleanshutdown")


async def test_a_sync_that_fails_while_the_work_is_being_stopped_is_not_tried_again_either() -> None:
    fs = sim()
    pool = GatedPool()
    manager = manager_over(fs, pool=pool)
    running_manager = asyncio.create_task(manager.run())
    log = new_log(manager, firn_durability=Durability.DISK)
    awaited = log.wait_stored(append(log))
    assert awaited is not None
    stored = asyncio.ensure_future(awaited)
    await settle()
    running_manager.cancel()
    await settle()
    assert log.syncing, "the thread goes on"
    fs.fail_next("fdatasync", ".log")
    pool.gate.set()
    await asyncio.wait([running_manager])
    assert running_manager.cancelled()
    assert stored.done(), "not left to whoever would sync again"
    with pytest.raises(StorageUnavailable):
        await stored
    await manager.close()
    assert not fs.exists(f"{DATA}/.kafka_cleanshutdown")


async def test_what_nobody_waits_for_is_stored_too_even_if_it_came_during_a_sync() -> None:
    pool = GatedPool()
    async with running(manager_over(sim(), pool=pool)) as manager:
        log = new_log(manager, firn_durability=Durability.DISK)
        moved = asyncio.Event()
        log.add_waiter(lambda: moved.set() if log.high_watermark == 2 else None)
        log.request_stored(append(log))
        await settle()
        assert log.syncing
        log.request_stored(append(log))
        pool.gate.set()
        async with asyncio.timeout(60):
            await moved.wait()
        assert not log.syncing


async def test_a_sync_that_cannot_begin_is_begun_again_with_all_that_it_was_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when all descriptors are in use."""
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager, firn_durability=Durability.DISK, segment_bytes=len(batch()))
        opened: list[FileHandle] = []
        acquire = FileHandle.acquire

        def refuse_the_second(handle: FileHandle) -> File:
            if opened:
                raise StorageUnavailable("all file descriptors of the log are in use")
            opened.append(handle)
            return acquire(handle)

        monkeypatch.setattr(FileHandle, "acquire", refuse_the_second)
        stored = [log.wait_stored(append(log)) for _ in range(2)]
        await settle()
        (handle,) = opened
        assert handle.users == 0
        monkeypatch.undo()
        fs.trace = []
        await manager.tick()
        async with asyncio.timeout(60):
            await asyncio.gather(*[one for one in stored if one is not None])
        synced = [(call, path) for call, path in fs.trace if call in ("fsync_dir", "fdatasync")]
        assert {("fsync_dir", DATA), ("fsync_dir", f"{DATA}/t-0"), ("fdatasync", LOG_PATH)} <= set(synced)


async def test_write_back_starts_by_itself_and_moves_the_recovery_point() -> None:
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager)
        value = b"x" * 900_000
        while log.size_bytes < WRITE_BACK_BYTES:
            log.append_as_leader(batch(value=value), now_ms=NOW)
        assert log.recovery_point == 0
        end = log.log_end_offset
        await settle()
        assert log.recovery_point == log.synced_end_offset == end


async def test_flush_messages_requests_a_sync() -> None:
    async with running(manager_over(sim())) as manager:
        log = new_log(manager, flush_messages=3)
        append(log, 2)
        await settle()
        assert log.synced_end_offset == 0
        append(log, 1)
        await settle()
        assert log.synced_end_offset == 3


async def test_flush_ms_requests_a_sync() -> None:
    async with running(manager_over(sim())) as manager:
        log = new_log(manager, flush_ms=1000)
        append(log)
        log.maybe_flush_by_time(NOW + 999)
        await settle()
        assert log.synced_end_offset == 0
        log.maybe_flush_by_time(NOW + 1000)
        await settle()
        assert log.synced_end_offset == 1


async def test_batches_are_stored_even_without_room_for_side_files() -> None:
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager, firn_durability=Durability.DISK, index_interval_bytes=0)
        log.append_as_leader(idempotent(0), now_ms=NOW)
        end = log.append_as_leader(idempotent(1), now_ms=NOW).last_offset_end
        fs.capacity_bytes = fs.used
        log.request_checkpoint()
        stored = log.wait_stored(end)
        assert stored is not None
        await stored
        assert (log.synced_end_offset, log.recovery_point) == (2, 0)
        with pytest.raises(StorageFull):
            await log.flush()
        fs.capacity_bytes += 100_000
        await log.flush()
        assert log.recovery_point == 2
        assert manager.offline_reason is None


async def test_listeners_hear_of_a_higher_watermark_until_they_are_removed() -> None:
    heard: list[int] = []
    async with running(manager_over(sim())) as manager:
        log = new_log(manager)
        disk = new_log(manager, "disk", firn_durability=Durability.DISK)

        def on_memory() -> None:
            heard.append(log.high_watermark)

        def on_disk() -> None:
            heard.append(100 + disk.high_watermark)

        log.add_waiter(on_memory)
        disk.add_waiter(on_disk)
        append(log)
        assert heard == [1]
        append(disk)
        assert heard == [1]
        await disk.flush()
        assert heard == [1, 101]
        log.remove_waiter(on_memory)
        log.remove_waiter(on_memory)
        append(log)
        assert heard == [1, 101]


async def test_a_cancelled_flush_does_not_close_a_file_under_its_thread() -> None:
    pool = GatedPool()
    manager = manager_over(sim(), pool=pool)
    log = new_log(manager)
    append(log)
    flush = asyncio.create_task(log.flush())
    await settle(3)
    flush.cancel()
    await settle(3)
    assert not flush.done()
    pool.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await flush
    await log.flush()
    assert log.recovery_point == 1


async def test_reads_above_the_high_watermark_are_empty_and_past_the_end_refused() -> None:
    async with running(manager_over(sim())) as manager:
        log = new_log(manager, firn_durability=Durability.DISK)
        append(log, 2)
        assert log.read(0, 1000, end_offset=log.high_watermark).length == 0
        assert log.read(2, 1000, end_offset=log.high_watermark).length == 0
        with pytest.raises(RequestRejected):
            log.read(3, 1000, end_offset=log.high_watermark)
        await log.flush()
        assert len(await read_all(log)) == len(batch(2))


async def test_a_sync_and_the_loop_write_the_same_side_files_without_taking_each_others_place() -> None:
    fs = sim()
    manager = manager_over(fs)
    log = new_log(manager)
    append(log)
    log.request_checkpoint()
    rename = fs.rename
    met = []

    def raising_the_epoch_meanwhile(source: str, target: str) -> None:
        # What the event loop does while the sync's thread is between writing its file and renaming it.
        if target == f"{log.path}/leader-epoch-checkpoint" and not met:
            met.append(source)
            log.become_leader(LeaderEpoch(7))
        rename(source, target)

    log.become_leader(LeaderEpoch(6))
    fs.rename = raising_the_epoch_meanwhile  # type: ignore[method-assign]
    await log.sync()
    assert met
    assert manager.offline_reason is None
    assert log.leader_epochs()[-1] == (7, 1)
    # The sync's older lineage came last, and is not what stays.
    assert read_file(fs, f"{log.path}/leader-epoch-checkpoint") == encode_leader_epochs(log.leader_epochs())


async def test_a_log_that_is_deleted_while_it_is_synced_leaves_the_directory_alone() -> None:
    fs = sim()
    written, told = asyncio.Event(), asyncio.Event()

    class LatePool(InlinePool):
        """Does the work, and tells of it later."""

        async def run(self, work: Callable[[], T]) -> T:
            result = await super().run(work)
            written.set()
            await told.wait()
            return result

    async with running(manager_over(fs, pool=LatePool())) as manager:
        log = new_log(manager)
        log.become_leader(LeaderEpoch(1))
        append(log)
        log.request_checkpoint()
        await written.wait()
        log.become_leader(LeaderEpoch(2))
        assert manager.delete("t", 0)
        told.set()
        await settle()
        assert not log.syncing
        assert manager.offline_reason is None, "what its files should say now is nobody's concern"
