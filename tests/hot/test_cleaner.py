"""The log cleaner over a simulated disk: what it keeps, what it drops, and what is left after a kill at any point."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from app.configs import Durability, TopicConfig
from app.core.errors import ConflictError, ErrorCode, RecordsRejected, StorageUnavailable
from app.core.metrics import Registry
from app.core.units import Offset, ProducerEpoch, ProducerId
from app.hot.checkpoints import CLEANER_OFFSETS_FILE, parse_offsets
from app.hot.cleaning import compaction
from app.hot.cleaning.engine import SLOT_BYTES
from app.hot.cleaning.job import CleaningJob, Indexed
from app.hot.cleaning.plain import PlainEngine
from app.hot.cleaning.selection import group_segments
from app.hot.cleaning.work import InlineCleanerWork
from app.machine.files import File
from app.records.control import ControlType
from tests.hot.cleaning import COMPACT, PATH, cleaner_over, committed, keyed, newest, offsets_in, opened, roll, seen_in
from tests.hot.helpers import (
    DATA,
    NOW,
    GatedPool,
    InlinePool,
    ManualClock,
    batch,
    headers,
    manager_over,
    new_log,
    read_all,
    running,
    sim,
)
from tests.support.simfs import SimFileSystem

T = TypeVar("T")


# --- what stays -----------------------------------------------------------------------------------------------------


async def test_the_newest_record_of_every_key_stays_at_its_offset() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    async with running(manager):
        for number in range(30):
            log.append_as_leader(
                keyed((b"k%d" % (number % 3), b"%d" % number), (b"once-%d" % number, b"x")), now_ms=NOW
            )
        await roll(log)
        assert await cleaner_over(manager, fs, clock=clock).clean_next()
        seen = await seen_in(log)
        assert [entry.record.offset for entry in seen if entry.record.key[:1] == b"k"] == [54, 56, 58]  # type: ignore[index]
        assert len(seen) == 33
        assert (log.log_start_offset, log.log_end_offset, log.cleaned_end_offset) == (0, 60, 60)
        assert log.segments()[0].base_offset == 0
        assert not [name for name in fs.list_dir(PATH) if name.endswith((".cleaned", ".swap"))]
    await manager.close()
    offsets = parse_offsets(fs.open(f"{DATA}/{CLEANER_OFFSETS_FILE}").pread(1000, 0), "")
    assert list(offsets.values()) == [60]


async def test_a_tombstone_stays_until_its_delete_horizon_and_then_goes() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock, delete_retention_ms=1000)
    async with running(manager):
        cleaner = cleaner_over(manager, fs, clock=clock)
        log.append_as_leader(keyed((b"a", b"1"), (b"a", None), (b"b", b"2")), now_ms=NOW)
        await roll(log)
        await cleaner.clean_next()
        assert await offsets_in(log) == [1, 2]
        header = headers(await read_all(log))[0]
        assert header.has_delete_horizon
        assert header.base_timestamp == NOW + 1000
        assert (await seen_in(log))[0].record.timestamp == NOW

        clock.now += 999
        log.append_as_leader(keyed((b"c", b"3")), now_ms=NOW)
        await roll(log)
        await cleaner.clean_next()
        assert await offsets_in(log) == [1, 2, 3]

        clock.now += 1
        log.append_as_leader(keyed((b"d", b"3")), now_ms=NOW)
        await roll(log)
        await cleaner.clean_next()
        assert await offsets_in(log) == [2, 3, 4]
    await manager.close()


async def test_aborted_records_go_at_once_and_the_marker_only_when_nothing_of_its_transaction_is_left() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock, delete_retention_ms=1000)
    async with running(manager):
        cleaner = cleaner_over(manager, fs, clock=clock)
        log.append_as_leader(keyed((b"a", b"kept")), now_ms=NOW)
        log.append_as_leader(
            keyed(
                (b"a", b"gone"), (b"b", b"gone"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
            ),
            now_ms=NOW,
        )
        log.append_control(
            ControlType.ABORT,
            producer_id=ProducerId(1),
            producer_epoch=ProducerEpoch(0),
            coordinator_epoch=0,
            now_ms=NOW,
        )
        # The producer goes on elsewhere in the log, so that nothing of it has to stay here.
        log.append_as_leader(
            keyed((b"z", b"1"), producer_id=1, producer_epoch=0, base_sequence=2, transactional=True), now_ms=NOW
        )
        log.append_control(
            ControlType.COMMIT,
            producer_id=ProducerId(1),
            producer_epoch=ProducerEpoch(0),
            coordinator_epoch=0,
            now_ms=NOW,
        )
        await roll(log)
        await cleaner.clean_next()
        seen = await seen_in(log)
        assert [entry.record.offset for entry in seen] == [0, 3, 4, 5]
        assert [entry.record.offset for entry in seen if entry.control] == [3, 5]
        assert len(await log.aborted_transactions_when_ready(0, log.log_end_offset)) == 1
        for _ in range(2):
            log.append_as_leader(keyed((b"x", b"%d" % clock.now)), now_ms=NOW)
            await roll(log)
            await cleaner.clean_next()
            clock.now += 1001
        assert 3 not in await offsets_in(log), "the abort marker outlives its transaction for ever"
        assert await log.aborted_transactions_when_ready(0, log.log_end_offset) == []
        assert 5 in await offsets_in(log)
    await manager.close()


async def test_records_of_an_open_transaction_and_everything_after_it_are_left_alone() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    async with running(manager):
        log.append_as_leader(keyed((b"a", b"1"), (b"a", b"2")), now_ms=NOW)
        await roll(log)
        log.append_as_leader(
            keyed((b"a", b"3"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), now_ms=NOW
        )
        log.append_as_leader(keyed((b"a", b"4"), (b"a", b"5")), now_ms=NOW)
        await roll(log)
        await cleaner_over(manager, fs, clock=clock).clean_next()
        assert await offsets_in(log) == [1, 2, 3, 4]
        assert log.cleaned_end_offset == 2
    await manager.close()


async def test_the_last_batch_of_a_producer_stays_emptied_so_that_sequences_go_on() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    async with running(manager):
        log.append_as_leader(
            keyed((b"a", b"1"), (b"a", b"2"), producer_id=4, producer_epoch=1, base_sequence=7), now_ms=NOW
        )
        log.append_as_leader(keyed((b"a", b"3")), now_ms=NOW)
        await roll(log)
        await cleaner_over(manager, fs, clock=clock).clean_next()
        kept = headers(await read_all(log))
        assert [(header.base_offset, header.record_count, header.producer_id) for header in kept] == [
            (0, 0, 4),
            (2, 1, -1),
        ]
    fs.kill()
    manager, log = await opened(fs, clock)
    assert log.producers.entries[4].last_sequence == 8
    duplicate = log.append_as_leader(
        keyed((b"a", b"1"), (b"a", b"2"), producer_id=4, producer_epoch=1, base_sequence=7), now_ms=NOW
    )
    assert duplicate.duplicate
    await manager.close()


async def test_a_record_without_a_key_is_refused() -> None:
    manager, log = await opened(sim(), ManualClock())
    with pytest.raises(RecordsRejected) as caught:
        log.append_as_leader(batch(2), now_ms=NOW)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    await manager.close()


async def test_more_keys_than_the_map_has_room_for_take_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "KEYS_MIN", 4)
    fs, clock, registry = sim(), ManualClock(), Registry()
    manager, log = await opened(fs, clock)
    async with running(manager):
        for number in range(60):
            log.append_as_leader(keyed((b"k%d" % (number % 20), b"%d" % number)), now_ms=NOW)
        await roll(log)
        cleaner = cleaner_over(
            manager, fs, clock=clock, registry=registry, log_cleaner_dedupe_buffer_size=5 * SLOT_BYTES
        )
        assert await cleaner.clean_next()
        assert await offsets_in(log) == list(range(40, 60))
        assert not await cleaner.clean_next()
    rounds = next(sample for sample in registry.samples() if sample.name == "firn_log_cleaner_rounds_total")
    assert rounds.value > 10
    await manager.close()


async def test_min_compaction_lag_keeps_young_records_and_max_compaction_lag_does_not_wait_for_dirt() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock, min_compaction_lag_ms=500, min_cleanable_dirty_ratio=1.0)
    async with running(manager):
        cleaner = cleaner_over(manager, fs, clock=clock)
        log.append_as_leader(keyed((b"a", b"1"), (b"a", b"2")), now_ms=NOW)
        await roll(log)
        assert not await cleaner.clean_next()
        clock.now += 500
        assert not await cleaner.clean_next(), "not dirtier than the ratio asks"
        log.update_config(TopicConfig(**{**COMPACT, "max_compaction_lag_ms": 499, "min_cleanable_dirty_ratio": 1.0}))  # type: ignore[arg-type]
        assert await cleaner.clean_next()
        assert await offsets_in(log) == [1]
        log.append_as_leader(keyed((b"a", b"3")), now_ms=clock.now)
        assert not log.maybe_roll_by_time(clock.now + 498)
        assert log.maybe_roll_by_time(clock.now + 499)
    await manager.close()


# --- readers, neighbours, damage ------------------------------------------------------------------------------------


async def test_a_reader_at_work_finishes_with_the_old_file() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    async with running(manager):
        for number in range(30):
            log.append_as_leader(keyed((b"k", b"%d" % number)), now_ms=NOW)
        await roll(log)
        before = await read_all(log)
        read = await log.read_when_ready(0, 1 << 20, end_offset=log.high_watermark)
        planned = await log.read_when_ready(0, 1 << 20, end_offset=log.high_watermark)
        file = read.handle.acquire()
        await cleaner_over(manager, fs, clock=clock).clean_next()
        assert file.pread(read.length, read.position) == before[: read.length]
        read.handle.release()
        with pytest.raises(StorageUnavailable):
            planned.try_read_now()
        assert await offsets_in(log) == [29]
    await manager.close()


async def test_a_search_by_time_survives_a_swap() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    async with running(manager):
        for number in range(30):
            log.append_as_leader(keyed((b"k%d" % (number % 2), b"v" * 60), timestamp=NOW + number), now_ms=NOW + 60)
        await roll(log)
        cleaner = cleaner_over(manager, fs, clock=clock)
        searching = asyncio.create_task(log.offset_for_timestamp(NOW + 20))
        await asyncio.sleep(0)
        await cleaner.clean_next()
        assert (await searching) in ((NOW + 20, 20), (NOW + 28, 28))
        assert await log.offset_for_timestamp(NOW + 20) == (NOW + 28, 28)
        assert await log.max_timestamp_offset() == (NOW + 29, 29)
    await manager.close()


async def test_a_damaged_log_is_left_as_it_is_and_counted() -> None:
    fs, clock, registry = sim(), ManualClock(), Registry()
    manager, log = await opened(fs, clock)
    async with running(manager):
        for number in range(30):
            log.append_as_leader(keyed((b"k", b"%d" % number)), now_ms=NOW)
        await roll(log)
        fs.flip_bit(f"{PATH}/00000000000000000000.log", 70)
        before = await read_all(log)
        said: list[str] = []
        cleaner = cleaner_over(manager, fs, clock=clock, said=said.append, registry=registry)
        await cleaner.clean_next()
        assert not await cleaner.clean_next()
        assert await read_all(log) == before
        assert "is no longer compacted" in said[0]
        uncleanable = [s.value for s in registry.samples() if s.name == "firn_log_cleaner_uncleanable_logs"]
        assert uncleanable == [1.0]
        assert not [name for name in fs.list_dir(PATH) if name.endswith((".cleaned", ".swap"))]
    await manager.close()


@pytest.mark.parametrize("how", ["deleted", "not compacted"])
async def test_a_damaged_log_counts_until_its_records_are_deleted_or_it_is_not_compacted(how: str) -> None:
    fs, clock, registry = sim(), ManualClock(), Registry()
    manager, log = await opened(fs, clock)

    def uncleanable() -> list[float]:
        return [one.value for one in registry.samples() if one.name == "firn_log_cleaner_uncleanable_logs"]

    async with running(manager):
        for number in range(30):
            log.append_as_leader(keyed((b"k", b"%d" % number)), now_ms=NOW)
        await roll(log)
        fs.flip_bit(f"{PATH}/00000000000000000000.log", 70)
        cleaner = cleaner_over(manager, fs, clock=clock, registry=registry)
        await cleaner.clean_next()
        await cleaner.clean_next()
        assert uncleanable() == [1.0]
        if how == "deleted":
            log.advance_log_start(Offset(30))
        else:
            log.update_config(replace(log.config, cleanup_policy=frozenset({"delete"})))
        await cleaner.clean_next()
        assert uncleanable() == [0.0]
    await manager.close()


async def test_a_log_whose_damage_is_deleted_while_it_is_read_is_compacted_again() -> None:
    fs, clock, registry = sim(), ManualClock(), Registry()
    manager, log = await opened(fs, clock)
    async with running(manager):
        for number in range(30):
            log.append_as_leader(keyed((b"k", b"%d" % number)), now_ms=NOW)
        await roll(log)
        fs.flip_bit(f"{PATH}/00000000000000000000.log", 70)

        class DeletesMeanwhile(InlinePool):
            async def run(self, work: Callable[..., Any], *args: Any) -> Any:
                try:
                    return await super().run(work, *args)
                finally:
                    log.advance_log_start(Offset(30))

        cleaner = cleaner_over(manager, fs, clock=clock, registry=registry, pool=DeletesMeanwhile())
        await cleaner.clean_next()
        await cleaner.clean_next()
        found = [one.value for one in registry.samples() if one.name == "firn_log_cleaner_uncleanable_logs"]
        assert found == [0.0]
    await manager.close()


async def test_as_many_logs_are_compacted_at_a_time_as_there_are_threads_and_each_once() -> None:
    fs, clock, registry = sim(), ManualClock(), Registry()
    manager, _ = await opened(fs, clock)
    async with running(manager):
        logs = [manager.get("t", 0), *(new_log(manager, "t", number, **COMPACT) for number in (1, 2))]
        for log in logs:
            assert log is not None
            for number in range(30):
                log.append_as_leader(keyed((b"k", b"%d" % number)), now_ms=NOW)
            await roll(log)
        pool, jobs = GatedPool(), []

        class Worker(InlineCleanerWork):
            async def begin(self, job: CleaningJob) -> Indexed:
                jobs.append(job)
                return await super().begin(job)

        cleaner = cleaner_over(
            manager,
            fs,
            clock=clock,
            new_work=lambda: Worker(fs, pool, PlainEngine),
            registry=registry,
            log_cleaner_threads=2,
            log_cleaner_dedupe_buffer_size=1000,
            log_cleaner_io_max_bytes_per_second=100.0,
            log_cleaner_backoff_ms=1,
        )
        task = asyncio.create_task(cleaner.run())
        while pool.waiting < 2:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert pool.waiting == 2
        assert len({job.directory for job in jobs}) == 2
        assert {(job.map_bytes_max, job.bytes_per_second_max) for job in jobs} == {(500, 50.0)}
        pool.gate.set()
        async with asyncio.timeout(60):
            while not all(log is not None and log.cleaned_end_offset == 30 for log in logs):
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert len(jobs) == 3
    await manager.close()


async def test_a_cleaner_that_is_not_enabled_cleans_nothing() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    async with running(manager):
        log.append_as_leader(keyed((b"a", b"1"), (b"a", b"2")), now_ms=NOW)
        await roll(log)
        async with asyncio.timeout(60):
            await cleaner_over(manager, fs, clock=clock, log_cleaner_enable=False).run()
        assert await offsets_in(log) == [0, 1]
    await manager.close()


async def test_transaction_indexes_that_are_not_in_memory_are_read_on_the_pool() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    async with running(manager):
        producer = {"producer_id": ProducerId(7), "producer_epoch": ProducerEpoch(0)}
        for sequence in range(2):
            log.append_as_leader(
                keyed((b"a", b"1"), base_sequence=sequence, transactional=True, **producer), now_ms=NOW
            )
            log.append_control(ControlType.ABORT, **producer, coordinator_epoch=0, now_ms=NOW)
            await roll(log)
        known = log.aborted_transactions(0, log.log_end_offset)
    await manager.close()

    class Watched(InlinePool):
        working = False

        async def run(self, work: Callable[[], T]) -> T:
            def watched() -> T:
                self.working = True
                try:
                    return work()
                finally:
                    self.working = False

            return await super().run(watched)

    pool = Watched()
    manager = manager_over(fs, clock=clock, pool=pool)
    await manager.load_all()
    again = manager.get("t", 0)
    assert again is not None
    read_on_loop: list[str] = []
    whole = fs.open

    def opening(path: str, **options: bool) -> File:
        if path.endswith(".txnindex") and not pool.working:
            read_on_loop.append(path)
        return whole(path, **options)

    fs.open = opening  # type: ignore[method-assign]
    assert await again.aborted_transactions_when_ready(0, again.log_end_offset) == known
    assert len(known) == 2
    assert again.aborted_transactions(0, again.log_end_offset) == known
    assert read_on_loop == []
    await manager.close()


async def test_a_topic_deleted_while_it_is_compacted_lets_go_of_its_files_before_its_name_is_free() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    async with running(manager):
        for number in range(30):
            log.append_as_leader(keyed((b"k", b"%d" % number)), now_ms=NOW)
        await roll(log)
        pool = GatedPool()
        cleaner = cleaner_over(manager, fs, clock=clock, work=InlineCleanerWork(fs, pool, PlainEngine))
        cleaning = asyncio.create_task(cleaner.clean_next())
        while not pool.waiting:
            await asyncio.sleep(0)
        manager.delete("t", 0)
        with pytest.raises(StorageUnavailable, match="still being written to"):
            new_log(manager)
        await asyncio.sleep(0)
        assert not cleaning.done()
        pool.gate.set()
        await cleaning
        new_log(manager).append_as_leader(keyed((b"k", b"v")), now_ms=NOW)
        assert sorted(fs.list_dir(PATH)) == ["00000000000000000000.log", "partition.metadata"]
    await manager.close()


async def test_a_stop_while_a_deleted_log_is_let_go_of_leaves_no_error_behind() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    begun, ending, let_go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Worker(InlineCleanerWork):
        async def begin(self, job: CleaningJob) -> Indexed:
            begun.set()
            await ended.wait()
            raise StorageUnavailable("Cannot compact: No such file or directory")

        async def end(self) -> None:
            ending.set()
            await let_go.wait()
            ended.set()

    async with running(manager):
        for number in range(30):
            log.append_as_leader(keyed((b"k", b"%d" % number)), now_ms=NOW)
        await roll(log)
        cleaner = cleaner_over(manager, fs, clock=clock, work=Worker(fs, InlinePool(), PlainEngine))
        cleaning = asyncio.create_task(cleaner.clean_next())
        await begun.wait()
        manager.delete("t", 0)
        await ending.wait()
        cleaning.cancel()
        await asyncio.sleep(0)
        let_go.set()
        await asyncio.wait([cleaning])
        assert cleaning.cancelled()
        assert ended.is_set()
        del cleaning
        for _ in range(5):  # the work fails, and whoever looks at its error is called
            await asyncio.sleep(0)
        gc.collect()
        assert not unseen
    await manager.close()


async def test_records_that_are_deleted_before_their_compaction_begins_need_none() -> None:
    class DeletesMeanwhile(InlinePool):
        async def run(self, work: Callable[[], T]) -> T:
            found = await super().run(work)
            if log.offline_error is None:
                log.advance_log_start(log.high_watermark)
            return found

    fs, clock, said = sim(), ManualClock(), list[str]()
    manager, log = await opened(fs, clock, cleanup_policy=frozenset({"compact", "delete"}))
    for _ in range(3):
        log.append_as_leader(keyed((b"k", b"v")), now_ms=NOW)
        await roll(log)
    manager._pool = DeletesMeanwhile()
    cleaner = cleaner_over(manager, fs, clock=clock, said=said.append)
    assert await cleaner.clean_next()
    assert not await cleaner.clean_next()
    assert not said
    await manager.close()


async def test_a_topic_deleted_while_others_are_looked_at_is_not_compacted_nor_is_who_got_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.hot.cleaning.cleaner.LOGS_PER_TURN", 2)
    fs, clock, said = sim(), ManualClock(), list[str]()
    manager, log = await opened(fs, clock)
    for _ in range(3):
        log.append_as_leader(keyed((b"k", b"v")), now_ms=NOW)
        await roll(log)
    new_log(manager, "other")
    cleaner = cleaner_over(manager, fs, clock=clock, said=said.append)
    cleaning = asyncio.create_task(cleaner.clean_next())
    await asyncio.sleep(0)
    manager.delete("t", 0)
    new_log(manager)
    fs.trace = []
    await cleaning
    assert not [path for _, path in fs.trace if path.endswith((".log", ".cleaned"))]
    assert not said
    await manager.close()


async def test_a_log_that_is_rewritten_for_the_tier_while_others_are_looked_at_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.hot.cleaning.cleaner.LOGS_PER_TURN", 2)
    fs, clock, said = sim(), ManualClock(), list[str]()
    manager, log = await opened(fs, clock)
    for _ in range(3):
        log.append_as_leader(keyed((b"k", b"v")), now_ms=NOW)
        await roll(log)
    new_log(manager, "other")
    cleaner = cleaner_over(manager, fs, clock=clock, said=said.append)
    cleaning = asyncio.create_task(cleaner.clean_next())
    await asyncio.sleep(0)
    other = log.begin_cleaning(lambda: None)
    assert not await cleaning
    log.finish_cleaning(other)
    assert await cleaner.clean_next()
    assert not said
    await manager.close()


async def test_a_held_segment_is_neither_replaced_nor_is_one_about_to_be_replaced_held() -> None:
    manager, log = await opened(sim(), ManualClock())
    async with running(manager):
        log.append_as_leader(keyed((b"k", b"1")), now_ms=NOW)
        await roll(log)
        ours, other = log.hold(0), log.hold(0)
        with pytest.raises(ConflictError):
            log.keep_for_replacement([ours])
        other.release()
        log.keep_for_replacement([ours])
        with pytest.raises(ConflictError):
            log.hold(0)
        ours.release()
    await manager.close()


# --- kills ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is dead: nothing it does reaches the disk any more."""


class MortalFileSystem(SimFileSystem):
    """Dies before the operation of a given number."""

    left = 1 << 60

    def note(self, call: str, path: str) -> None:
        # Noted after it was done, so the death comes after it; 0 dies at once.
        super().note(call, path)
        if call in ("read", "open", "close"):
            return
        self.left -= 1
        if self.left < 0:
            raise Killed(f"{call} {path}")


def _mortal(seed: int) -> MortalFileSystem:
    fs = MortalFileSystem(random.Random(seed))
    fs.make_dirs(DATA)
    fs.fsync_dir("/")
    return fs


async def _fill(fs: SimFileSystem, clock: ManualClock) -> None:
    """A log of several segments with transactions and tombstones, all of it durable. Its first half was compacted before, so that
    its segments are small and will be merged."""
    rng = random.Random(7)
    manager, log = await opened(fs, clock, segment_bytes=600, firn_durability=Durability.DISK)
    async with running(manager):
        sequence = 0
        for number in range(60):
            if number == 30:
                await roll(log)
                assert await cleaner_over(manager, fs, clock=clock).clean_next()
            rows = [(b"k%d" % rng.randrange(6), rng.choice([None, b"v%d" % number, b"w" * 40])) for _ in range(2)]
            if number % 5:
                log.append_as_leader(keyed(*rows), now_ms=NOW)
                continue
            fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
            log.append_as_leader(keyed(*rows, **fields), now_ms=NOW)  # type: ignore[arg-type]
            sequence += 2
            log.append_control(
                ControlType.ABORT if number % 2 else ControlType.COMMIT,
                producer_id=ProducerId(1),
                producer_epoch=ProducerEpoch(0),
                coordinator_epoch=0,
                now_ms=NOW,
            )
        await roll(log)
        await manager.checkpoint()
        groups = group_segments(log.rolled_segments(), log.config)
        assert any(len(group) > 2 for group in groups), "nothing is merged"


async def _kill_at(fs: MortalFileSystem, number: int, power: bool) -> bool:
    """Clean with a death after ``number`` operations, then recover and check. False if it did not come to the death."""
    clock = ManualClock()
    manager, log = await opened(fs, clock, segment_bytes=600, firn_durability=Durability.DISK)
    model = newest(await committed(log, await seen_in(log)))
    end, stable, producer = log.log_end_offset, log.last_stable_offset, log.producers.entries[1].last_sequence
    fs.left = number
    died = False
    try:
        await cleaner_over(manager, fs, clock=clock).clean_next()
    except Killed:
        died = True
    fs.left = 1 << 60
    (fs.crash if power else fs.kill)()
    for again in range(2):
        manager = manager_over(fs, clock=clock)
        report = await manager.load_all()
        recovered = manager.get("t", 0)
        assert recovered is not None
        log = recovered
        log.update_config(TopicConfig(**COMPACT))  # type: ignore[arg-type]
        async with running(manager):
            await log.flush()
        assert report.truncated_bytes == 0, report.problems
        seen = await seen_in(log)
        assert newest(await committed(log, seen)) == model, report.problems
        assert [entry.record.offset for entry in seen] == sorted({entry.record.offset for entry in seen})
        assert (log.log_end_offset, log.last_stable_offset) == (end, stable)
        assert log.producers.entries[1].last_sequence == producer
        assert not [name for name in fs.list_dir(PATH) if name.endswith((".cleaned", ".swap", ".deleted"))]
        if again:
            break
        fs.kill()
    async with running(manager):
        log.append_as_leader(keyed((b"k0", b"after")), now_ms=NOW)
        await roll(log)
        while await cleaner_over(manager, fs, clock=clock).clean_next():
            pass
        assert newest(await committed(log, await seen_in(log))) == {**model, b"k0": b"after"}
    await manager.close()
    return died


async def _die_everywhere(power: bool, stride: int) -> int:
    fs = _mortal(11)
    await _fill(fs, ManualClock())
    fs.kill()
    number = 0
    while await _kill_at(copy.deepcopy(fs), number, power):
        number += stride
    return number


@pytest.mark.ci
@pytest.mark.parametrize("power", [False, True], ids=["kill", "loss of power"])
async def test_a_death_at_many_operations_of_a_compaction_loses_nothing(power: bool) -> None:
    assert await _die_everywhere(power, 7) > 60, "there was hardly anything to do"


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill", "loss of power"])
async def test_a_death_at_any_operation_of_a_compaction_loses_nothing(power: bool) -> None:
    assert await _die_everywhere(power, 1) > 60, "there was hardly anything to do"


# --- the disk -------------------------------------------------------------------------------------------------------


async def test_the_files_of_a_segment_are_synced_when_the_disk_has_taken_all_of_them() -> None:
    """So the first sync commits for all, and the others find nothing left to commit."""
    fs, clock = sim(), ManualClock()
    manager, log = await opened(fs, clock)
    async with running(manager):
        for number in range(20):
            log.append_as_leader(keyed((b"k%d" % (number % 3), b"v" * 100)), now_ms=NOW)
        await roll(log)
        fs.trace = []
        assert await cleaner_over(manager, fs, clock=clock).clean_next()
        calls = [(call, path) for call, path in fs.trace if path.endswith(".cleaned")]
    await manager.close()
    segments = {path.split(".")[0] for _, path in calls}
    for segment in segments:
        own = [(call, path) for call, path in calls if path.startswith(segment)]
        written = {path for call, path in own if call == "write"}
        synced = [place for place, (call, _) in enumerate(own) if call == "fdatasync"]
        assert {own[place][1] for place in synced} == written
        assert {path for call, path in own[: synced[0]] if call == "finish write-back"} == written
        assert {call for call, _ in own[synced[0] :]} <= {"fdatasync", "close", "rename"}


class MeasuringFileSystem(SimFileSystem):
    """Keeps how much was written to rewritten segments by each call."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.lengths: list[int] = []

    def write_length(self, path: str, length: int) -> int:
        if path.endswith(".log.cleaned"):
            self.lengths.append(length)
        return super().write_length(path, length)


async def test_rewritten_segments_are_written_by_pieces() -> None:
    """The kernel finishes a call before it gives the core to another thread."""
    fs, clock = MeasuringFileSystem(random.Random(1)), ManualClock()
    fs.make_dirs(DATA)
    fs.fsync_dir("/")
    manager, log = await opened(fs, clock)
    async with running(manager):
        for number in range(3):
            log.append_as_leader(keyed((b"k%d" % number, b"v" * 200_000)), now_ms=NOW)
        await roll(log)
        before = await read_all(log)
        assert await cleaner_over(manager, fs, clock=clock).clean_next()
        assert await read_all(log) == before
    await manager.close()
    assert sum(fs.lengths) == len(before) > 4 * compaction.PIECE_BYTES
    assert max(fs.lengths) == compaction.PIECE_BYTES


async def test_a_full_disk_leaves_the_log_as_it_was_and_compaction_goes_on_once_there_is_room() -> None:
    filled = _mortal(5)
    await _fill(filled, ManualClock())
    filled.kill()
    done = False
    failures = 0
    for room in itertools.count(0, 300):
        fs, clock, said = copy.deepcopy(filled), ManualClock(), list[str]()
        manager, log = await opened(fs, clock, segment_bytes=600, firn_durability=Durability.DISK)
        model = newest(await committed(log, await seen_in(log)))
        cleaner = cleaner_over(manager, fs, clock=clock, said=said.append)
        fs.capacity_bytes = fs.used + room
        done = await cleaner.clean_next()
        assert done == (not said)
        failures += len(said)
        assert all("No space left" in line for line in said)
        assert not [name for name in fs.list_dir(PATH) if name.endswith((".cleaned", ".swap"))]
        assert newest(await committed(log, await seen_in(log))) == model
        fs.capacity_bytes = 1 << 40
        while await cleaner.clean_next():
            pass
        assert newest(await committed(log, await seen_in(log))) == model
        assert log.offline_error is None
        await manager.close()
        if done:
            break
    assert failures > 3, "it hardly needed room"
