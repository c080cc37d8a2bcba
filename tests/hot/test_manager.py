"""A data directory: who has it, what is in it, and coming back to it."""

from __future__ import annotations

import asyncio
import gc
import shutil
import uuid
import weakref
from collections.abc import Callable
from typing import TypeVar

import pytest

from app.configs import Durability, TopicConfig
from app.core.errors import ConflictError, CorruptionError, FirnError, StorageFull, StorageUnavailable
from app.core.metrics import Registry
from app.core.units import NO_TOPIC_ID, BrokerId, LeaderEpoch
from app.hot.checkpoints import LOG_STARTS_FILE, RECOVERY_POINTS_FILE, MetaProperties, encode_partition_metadata
from app.hot.manager import CHECKPOINT_MS, LOADS_AT_ONCE_MAX, TICK_MS
from app.machine.files import PosixFileSystem, read_file, remove_tree, write_file
from tests.hot.helpers import (
    DATA,
    NOW,
    TOPIC_ID,
    GatedPool,
    InlinePool,
    ManualClock,
    batch,
    idempotent,
    manager_over,
    new_log,
    read_all,
    running,
    sim,
)

T = TypeVar("T")


async def settle(rounds: int = 40) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


def test_a_second_process_is_refused_until_the_first_lets_go(tmp_path: object) -> None:
    first = manager_over(PosixFileSystem(), data_dir=f"{tmp_path}/data")
    second = manager_over(PosixFileSystem(), data_dir=f"{tmp_path}/data")
    first.lock()
    assert first.lock() is first.lock()
    with pytest.raises(ConflictError):
        second.lock()
    asyncio.run(first.close())
    second.lock()
    asyncio.run(second.close())


async def test_meta_properties_are_kept() -> None:
    fs = sim()
    manager = manager_over(fs)
    assert manager.read_meta() is None
    meta = MetaProperties("cluster", BrokerId(1), uuid.UUID(int=9))
    manager.write_meta(meta)
    fs.crash()
    assert manager_over(fs).read_meta() == meta
    fs.flip_bit(f"{DATA}/meta.properties", 3, 2)
    with pytest.raises(CorruptionError):
        manager_over(fs).read_meta()


async def test_a_clean_stop_spares_the_next_start_the_files() -> None:
    fs = sim()
    manager = manager_over(fs)
    await manager.load_all()
    logs = [new_log(manager, f"topic.{number}", number) for number in range(50)]
    for log in logs:
        log.append_as_leader(idempotent(0, 3), now_ms=NOW)
    await manager.close()
    assert fs.exists(f"{DATA}/.kafka_cleanshutdown")
    fs.calls.clear()
    again = manager_over(fs)
    report = await again.load_all()
    assert (report.clean, report.logs, report.scanned, report.problems) == (True, 50, 0, [])
    assert fs.calls["open"] == fs.calls["read"] == 3  # the state file and two checkpoints
    assert not fs.exists(f"{DATA}/.kafka_cleanshutdown")
    log = again.get("topic.7", 7)
    assert log is not None
    assert log.topic_id == TOPIC_ID
    assert (log.log_end_offset, log.high_watermark) == (3, 3)
    assert log.append_as_leader(idempotent(0, 3), now_ms=NOW).duplicate
    assert log.append_as_leader(idempotent(3), now_ms=NOW).base_offset == 3


async def test_the_marker_of_a_clean_stop_holds_for_one_start() -> None:
    fs = sim()
    manager = manager_over(fs)
    new_log(manager).append_as_leader(batch(), now_ms=NOW)
    await manager.close()
    assert (await manager_over(fs).load_all()).clean
    fs.crash()
    assert not (await manager_over(fs).load_all()).clean


async def test_a_log_that_changed_after_the_stop_is_recovered() -> None:
    fs = sim()
    manager = manager_over(fs)
    log = new_log(manager)
    for _ in range(3):
        log.append_as_leader(batch(), now_ms=NOW)
    path = log.segments()[0].path
    await manager.close()
    fs.open(path).truncate(len(batch()) * 2)
    again = manager_over(fs)
    report = await again.load_all()
    log = again.logs()[0]
    assert (log.log_end_offset, report.scanned) == (2, 1)
    assert report.problems


async def test_settings_come_by_topic_name() -> None:
    fs = sim()
    manager = manager_over(fs)
    new_log(manager, "a-1", 2).append_as_leader(batch(), now_ms=NOW)
    await manager.close()
    again = manager_over(fs)
    await again.load_all(lambda topic: TopicConfig(segment_bytes=len(topic)))
    log = again.get("a-1", 2)
    assert log is not None
    assert log.config.segment_bytes == 3


async def test_a_lost_topic_id_is_no_topic_id() -> None:
    fs = sim()
    manager = manager_over(fs)
    log = new_log(manager)
    log.append_as_leader(batch(), now_ms=NOW)
    fs.unlink(f"{log.path}/partition.metadata")
    fs.kill()
    again = manager_over(fs)
    await again.load_all()
    assert again.logs()[0].topic_id == NO_TOPIC_ID


async def test_there_is_one_log_of_a_partition() -> None:
    manager = manager_over(sim())
    new_log(manager)
    with pytest.raises(ConflictError):
        new_log(manager)


async def test_a_log_has_no_files_before_its_first_record() -> None:
    fs = sim()
    manager = manager_over(fs)
    logs = [new_log(manager, partition=number) for number in range(3)]
    before = sorted(fs.list_dir(DATA))
    for log in logs:
        log.become_leader(LeaderEpoch(3))
        log.request_checkpoint()
        log.restore_leader_epochs(())
        await log.sync()
        await log.flush()
        assert await log.offset_for_timestamp(0) is None
        assert await read_all(log) == b""
        assert not log.roll()
    await manager.checkpoint()
    assert read_file(fs, f"{DATA}/{RECOVERY_POINTS_FILE}") == b"0\n0\n"
    assert manager.delete("t", 2)
    assert set(fs.list_dir(DATA)) - set(before) == {RECOVERY_POINTS_FILE, LOG_STARTS_FILE}
    logs[0].append_as_leader(batch(), now_ms=NOW)
    assert sorted(fs.list_dir(f"{DATA}/t-0")) == ["00000000000000000000.log", "partition.metadata"]
    assert not fs.exists(f"{DATA}/t-1")
    await manager.close()
    again = manager_over(fs)
    report = await again.load_all()
    assert (report.clean, report.logs, report.problems) == (True, 1, [])
    found = again.get("t", 0)
    assert found is not None
    assert found.leader_epochs() == ((3, 0),)


@pytest.mark.parametrize("seed", range(8))
async def test_the_first_record_survives_a_loss_of_power_with_the_files_that_it_makes(seed: int) -> None:
    fs = sim(seed)
    manager = manager_over(fs)
    log = new_log(manager, firn_durability=Durability.DISK)
    log.append_as_leader(idempotent(0), now_ms=NOW)
    async with running(manager):
        await log.wait_stored(1)
    fs.crash()
    again = manager_over(fs)
    await again.load_all(lambda _: TopicConfig(firn_durability=Durability.DISK))
    found = again.get("t", 0)
    assert found is not None
    assert (found.topic_id, found.log_end_offset, found.high_watermark) == (TOPIC_ID, 1, 1)


@pytest.mark.parametrize("room", [0, 1, 70])
async def test_a_full_disk_refuses_the_first_record_until_there_is_room(room: int) -> None:
    fs = sim()
    manager = manager_over(fs)
    log = new_log(manager)
    capacity_bytes, fs.capacity_bytes = fs.capacity_bytes, fs.used + room
    for _ in range(2):
        with pytest.raises(StorageFull):
            log.append_as_leader(idempotent(0), now_ms=NOW)
    assert (log.log_end_offset, fs.open_files <= 1) == (0, True)
    fs.capacity_bytes = capacity_bytes
    assert log.append_as_leader(idempotent(0), now_ms=NOW).base_offset == 0
    await log.flush()
    fs.crash()
    again = manager_over(fs)
    await again.load_all()
    found = again.get("t", 0)
    assert found is not None
    assert (found.topic_id, found.log_end_offset) == (TOPIC_ID, 1)


@pytest.mark.parametrize("left", [[], ["partition.metadata"]])
async def test_files_of_a_log_that_was_killed_while_it_made_them_are_an_empty_log(left: list[str]) -> None:
    fs = sim()
    manager = manager_over(fs)
    log = new_log(manager)
    log.append_as_leader(batch(), now_ms=NOW)
    for name in {*fs.list_dir(log.path)} - {*left}:
        fs.unlink(f"{log.path}/{name}")
    fs.kill()
    again = manager_over(fs)
    await again.load_all()
    found = again.get("t", 0)
    assert found is not None
    assert (found.topic_id, found.log_end_offset) == (TOPIC_ID if left else NO_TOPIC_ID, 0)
    found.append_as_leader(batch(), now_ms=NOW)


async def test_a_directory_that_is_missing_after_a_clean_stop_is_told() -> None:
    fs = sim()
    manager = manager_over(fs)
    for number in range(2):
        new_log(manager, partition=number).append_as_leader(batch(), now_ms=NOW)
    await manager.close()
    remove_tree(fs, f"{DATA}/t-1")
    again = manager_over(fs)
    report = await again.load_all()
    assert (report.logs, len(report.problems)) == (1, 1)
    assert "t-1 was there" in report.problems[0]


async def test_a_new_log_may_begin_at_the_tiered_end() -> None:
    fs = sim()
    log = new_log(manager_over(fs))
    log.truncate_fully_and_start_at(500)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (500, 500, 500)
    fs.kill()
    again = manager_over(fs)
    await again.load_all()
    found = again.get("t", 0)
    assert found is not None
    assert (found.log_start_offset, found.log_end_offset) == (500, 500)
    assert found.append_as_leader(batch(), now_ms=NOW).base_offset == 500


async def test_a_deleted_log_goes_at_once_and_its_files_later() -> None:
    fs = sim()
    clock = ManualClock()
    manager = manager_over(fs, clock=clock)
    log = new_log(manager, file_delete_delay_ms=1000)
    log.append_as_leader(batch(), now_ms=NOW)
    heard: list[int] = []
    log.add_waiter(lambda: heard.append(1))
    hold = log.hold(0)
    assert manager.delete("t", 0)
    assert not manager.delete("t", 0)
    assert manager.get("t", 0) is None
    assert heard
    with pytest.raises(StorageUnavailable):
        log.append_as_leader(batch(), now_ms=NOW)
    again = new_log(manager)
    assert again.log_end_offset == 0

    def doomed() -> list[str]:
        return [name for name in fs.list_dir(DATA) if name.endswith("-delete")]

    assert len(doomed()) == 1
    await manager.take_out_trash(clock.now + 999)
    await manager.take_out_trash(clock.now + 1000)
    assert len(doomed()) == 1  # a copy is outstanding
    hold.release()
    await manager.take_out_trash(clock.now + 1000)
    assert doomed() == []


async def test_a_deleted_log_leaves_memory_at_once_without_the_garbage_collector() -> None:
    manager = manager_over(sim())
    logs = [new_log(manager, partition=number) for number in range(3)]
    for log in logs:
        log.append_as_leader(batch(), now_ms=NOW)
        await log.flush()
    dead = [weakref.ref(log) for log in logs]
    gc.collect()
    gc.disable()
    try:
        for number in range(3):
            manager.delete("t", number)
        logs.clear()
        del log
        assert [ref() for ref in dead] == [None] * 3
    finally:
        gc.enable()


async def test_a_deleted_log_that_is_still_being_synced_keeps_its_name_however_short_the_delay() -> None:
    fs, clock, pool = sim(), ManualClock(), GatedPool()
    manager = manager_over(fs, clock=clock, pool=pool)
    log = new_log(manager, file_delete_delay_ms=0)
    log.append_as_leader(batch(), now_ms=NOW)
    flushing = asyncio.create_task(log.flush())
    await settle()
    manager.delete("t", 0)
    manager._pool = InlinePool()
    await manager.take_out_trash(clock.now)
    with pytest.raises(StorageUnavailable, match="still being written to"):
        new_log(manager)
    pool.gate.set()
    await asyncio.wait([flushing])
    assert isinstance(flushing.exception(), StorageUnavailable)
    await manager.take_out_trash(clock.now)
    new_log(manager).append_as_leader(batch(), now_ms=NOW)
    assert [name for name in fs.list_dir(DATA) if name.startswith("t-0")] == ["t-0"]


async def test_deleted_directories_of_an_earlier_life_are_removed() -> None:
    fs = sim()
    manager = manager_over(fs)
    new_log(manager).append_as_leader(batch(), now_ms=NOW)
    manager.delete("t", 0)
    fs.kill()
    again = manager_over(fs)
    report = await again.load_all()
    assert report.logs == 0
    await again.take_out_trash(NOW)
    assert [name for name in fs.list_dir(DATA) if name.endswith("-delete")] == []


async def test_dropped_segments_are_unlinked_in_the_background() -> None:
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager, segment_bytes=len(batch()))
        for _ in range(5):
            log.append_as_leader(batch(), now_ms=NOW)
        await log.flush()
        log.advance_log_start(3)
        await settle()
        names = fs.list_dir(log.path)
        assert not [name for name in names if name.endswith(".deleted")]
        assert [name for name in names if name.endswith(".log")] == [f"{base:020d}.log" for base in (3, 4)]


async def test_time_passes_for_idle_logs() -> None:
    clock = ManualClock()
    manager = manager_over(sim(), clock=clock)
    log = new_log(manager, firn_tier_max_lag_ms=60_000)
    local = new_log(manager, "local", remote_storage_enable=False)
    for each in (log, local):
        each.append_as_leader(batch(), now_ms=clock.now)
    await manager.tick()
    assert len(log.segments()) == 1
    clock.now += 60_000
    await manager.tick()
    assert (len(log.segments()), len(local.segments())) == (2, 1)
    assert CHECKPOINT_MS > TICK_MS


async def test_time_passes_however_much_there_is_to_do_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.hot.manager.TICK_MS", 500)
    clock = ManualClock()
    async with running(manager_over(sim(), clock=clock)) as manager:
        log = new_log(manager, firn_tier_max_lag_ms=60_000)
        log.append_as_leader(batch(), now_ms=clock.now)
        clock.now += 60_000
        async with asyncio.timeout(60):
            while len(log.segments()) == 1:
                manager.log_directory.housekeeping.set()
                await asyncio.sleep(0)


async def test_a_damaged_log_does_not_keep_the_others_from_rolling() -> None:
    fs, clock = sim(), ManualClock()
    manager = manager_over(fs, clock=clock)
    for topic in ("damaged", "sound"):
        new_log(manager, topic, remote_storage_enable=True).append_as_leader(batch(3), now_ms=NOW)
    await manager.close()
    again = manager_over(fs, clock=clock)
    assert (await again.load_all(lambda _: TopicConfig(remote_storage_enable=True))).clean
    for suffix in (".index", ".timeindex"):
        fs.unlink(f"{DATA}/damaged-0/{0:020d}{suffix}")
    fs.flip_bit(f"{DATA}/damaged-0/{0:020d}.log", 9, 0)  # the length of its batch
    clock.now += 3_600_000
    await again.tick()
    damaged, sound = again.get("damaged", 0), again.get("sound", 0)
    assert damaged is not None
    assert sound is not None
    assert [len(damaged.segments()), len(sound.segments())] == [1, 2]
    await again.close()


async def test_checkpoints_tell_recovery_points_and_log_starts() -> None:
    fs = sim()
    manager = manager_over(fs)
    log = new_log(manager)
    for _ in range(4):
        log.append_as_leader(batch(), now_ms=NOW)
    await log.flush()
    log.advance_log_start(1)
    log.append_as_leader(batch(), now_ms=NOW)
    await manager.checkpoint()
    fs.kill()

    def content(name: str) -> bytes:
        return fs.open(f"{DATA}/{name}").pread(1000, 0)

    assert content("recovery-point-offset-checkpoint") == b"0\n1\nt 0 4\n"
    assert content("log-start-offset-checkpoint") == b"0\n1\nt 0 1\n"


async def test_a_full_disk_at_the_last_moment_is_no_clean_stop_but_loses_nothing() -> None:
    fs = sim()
    manager = manager_over(fs)
    log = new_log(manager)
    log.append_as_leader(idempotent(0), now_ms=NOW)
    fs.capacity_bytes = fs.used
    await manager.close()
    assert not fs.exists(f"{DATA}/.kafka_cleanshutdown")
    fs.capacity_bytes += 100_000
    again = manager_over(fs)
    await again.load_all()
    assert len(await read_all(again.logs()[0])) == len(idempotent(0))


async def test_sizes_and_troubles_are_metrics() -> None:
    registry = Registry()
    manager = manager_over(sim(), registry=registry)
    log = new_log(manager)
    log.append_as_leader(batch(), now_ms=NOW)
    log.roll()
    values = {(sample.name, sample.labels): sample.value for sample in registry.samples()}
    assert values["firn_log_local_bytes", (("partition", "0"), ("topic", "t"))] == len(batch())
    assert values["firn_log_rolls_total", ()] == 1
    assert values["firn_log_offline", ()] == 0


async def test_the_machines_own_file_system_does_the_same(tmp_path: object) -> None:
    data_dir = f"{tmp_path}/data"
    manager = manager_over(PosixFileSystem(), data_dir=data_dir)
    manager.lock()
    await manager.load_all()
    async with running(manager):
        log = new_log(manager, segment_bytes=1000, index_interval_bytes=100)
        sent = b""
        for sequence in range(40):
            records = idempotent(sequence, timestamp=NOW + sequence)
            log.append_as_leader(records, now_ms=NOW)
            sent += bytes(records)
        assert await read_all(log, max_bytes=500) == sent
        assert 0 < manager.free_bytes() <= manager.total_bytes() == shutil.disk_usage(data_dir).total
    await manager.close()
    for clean in (True, False):
        again = manager_over(PosixFileSystem(), data_dir=data_dir)
        again.lock()
        assert (await again.load_all()).clean == clean
        log = again.logs()[0]
        assert await read_all(log, max_bytes=500) == sent
        assert await log.offset_for_timestamp(NOW + 17) == (NOW + 17, 17)
        again._lock.close()  # type: ignore[union-attr]


async def test_logs_are_opened_one_after_the_other_unless_the_disk_makes_wait() -> None:
    fs = sim()
    manager = manager_over(fs)
    await manager.load_all()
    for partition in range(40):
        new_log(manager, partition=partition).append_as_leader(batch(), now_ms=NOW)
    fs.kill()

    class Disk(InlinePool):
        """Counts pieces of work under way, which wait for ``ready``; the first of all, which lists the directory, does not."""

        def __init__(self) -> None:
            self.ready = asyncio.Event()
            self.listed = False
            self.under_way = self.most = 0

        async def run(self, work: Callable[[], T]) -> T:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            if self.listed:
                await self.ready.wait()
            self.listed = True
            try:
                return await super().run(work)
            finally:
                self.under_way -= 1

    disk = Disk()
    disk.ready.set()
    assert (await manager_over(fs, pool=disk).load_all()).scanned == 40
    assert disk.most == 1
    fs.kill()
    disk = Disk()
    loading = asyncio.create_task(manager_over(fs, pool=disk).load_all())
    async with asyncio.timeout(60):
        while disk.under_way < LOADS_AT_ONCE_MAX:
            await asyncio.sleep(0.001)
    disk.ready.set()
    assert (await loading).scanned == 40
    assert disk.most == LOADS_AT_ONCE_MAX


@pytest.mark.parametrize("then", ["deleted", "stopped"])
async def test_nothing_is_left_of_files_that_could_not_all_be_made(then: str) -> None:
    fs = sim()
    manager = manager_over(fs, descriptors_max=1)
    new_log(manager, "other").append_as_leader(batch(), now_ms=NOW)
    log = new_log(manager)
    with pytest.raises(FirnError):
        log.append_as_leader(batch(), now_ms=NOW)
    if then == "deleted":
        manager.delete("t", 0)
    else:
        await manager.close()
    assert [name for name in fs.list_dir(DATA) if name.startswith("t-0")] == []


@pytest.mark.parametrize("seed", range(6))
async def test_a_log_that_is_read_after_a_clean_stop_keeps_its_topic_id_through_a_loss_of_power(seed: int) -> None:
    fs = sim(seed)
    manager = manager_over(fs)
    new_log(manager, firn_durability=Durability.DISK)
    await manager.close()
    # As an older version left it, whose first append was refused: files that no sync has ever covered.
    fs.make_dirs(f"{DATA}/t-0")
    write_file(fs, f"{DATA}/t-0/partition.metadata", encode_partition_metadata(TOPIC_ID), durable=False)
    again = manager_over(fs)
    assert (await again.load_all(lambda _: TopicConfig(firn_durability=Durability.DISK))).clean
    log = again.get("t", 0)
    assert log is not None
    log.append_as_leader(batch(), now_ms=NOW)
    async with running(again):
        await log.wait_stored(1)
    fs.crash()
    last = manager_over(fs)
    await last.load_all()
    found = last.get("t", 0)
    assert found is not None
    assert found.topic_id == TOPIC_ID


async def test_a_log_that_was_not_set_aside_need_not_be_brought_back() -> None:
    """A follower that is offline because records would have to be cut away keeps its log in use, until another broker leads."""
    manager = manager_over(sim())
    log = new_log(manager)
    manager.bring_back(log)
    assert manager.logs() == [log]
    manager.set_aside(log)
    assert manager.logs() == []
    manager.bring_back(log)
    assert manager.logs() == [log]
