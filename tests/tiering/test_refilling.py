"""Compacted topics that are tiered: a log gets back from the object store what it has to have from its start on (ADR 0037)."""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.configs import BrokerConfig, Durability
from app.core.errors import CorruptionError, StorageUnavailable
from app.core.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from app.hot.cleaning.cleaner import LogCleaner
from app.hot.cleaning.plain import PlainEngine
from app.hot.cleaning.work import InlineCleanerWork
from app.records.batch import iter_headers
from app.records.builder import build_batch
from app.records.record import iter_records
from app.tiering.repair.refilling import is_whole, refill
from tests.tiering.world import CONFIG, World, run_world

COMPACT = replace(
    CONFIG,
    cleanup_policy=frozenset({"compact"}),
    firn_durability=Durability.OBJECT,
    min_cleanable_dirty_ratio=0.0,
    index_interval_bytes=100,
)


def write(world: World, *keys: int, producer: int = -1, sequence: int = 0) -> None:
    """One record for each key, in a batch of its own."""
    for number, key in enumerate(keys):
        world.batches += 1
        value = random.Random(world.batches).randbytes(90)
        fields = {} if producer < 0 else {
            "producer_id": ProducerId(producer),
            "producer_epoch": ProducerEpoch(0),
            "base_sequence": sequence + number,
        }  # fmt: skip
        data = bytearray(build_batch([(world.clock.now_ms(), b"%d" % key, value, ())], **fields))
        world.log.append_as_leader(memoryview(data), now_ms=world.clock.now_ms())


async def tiered(world: World) -> None:
    world.log.roll()
    await world.log.flush()
    world.log.commit(world.log.log_end_offset)
    await world.until(world.all_copied)


def cleaner(world: World) -> LogCleaner:
    return LogCleaner(
        world.logs,
        lambda: InlineCleanerWork(world.fs, world.pool, PlainEngine),
        config=BrokerConfig,
        fs=world.fs,
        pool=world.pool,
        clock=world.clock,
        rng=world.rng,
        registry=world.registry,
        log_line=world.lines.append,
        tiered_end=lambda log: world.manifest.tiered_end,
    )


async def refilled(world: World) -> None:
    await refill(world.log, world.manifest, world.work, fs=world.fs, pool=world.pool, now_ms=world.clock.now_ms)


async def table(world: World) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The newest record of each key in the local log, and its offset."""
    found = {}
    log = world.log
    at = log.log_start_offset
    while at < log.log_end_offset:
        read = log.read(at, 100_000, end_offset=log.log_end_offset)
        data = bytes(await read.read_bytes())
        for position, header in iter_headers(data):
            for record in iter_records(memoryview(data)[position : position + header.size_bytes]):
                found[record.key] = (record.offset, record.value)
        at = read.end_offset
    return found


async def lose_the_disk(world: World) -> None:
    await world.crash()
    shutil.rmtree(world.directory / "data")
    await world.start()


def test_the_local_log_keeps_its_start_although_everything_is_tiered(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        write(world, *range(40))
        await tiered(world)
        assert world.manifest.tiered_end == 40
        world.tier.kick()
        await world.until(lambda: world.status().phase == "idle")
        assert world.log.local_log_start_offset == 0
        assert len(world.log.segments()) > 3
        assert is_whole(world.log, world.manifest)

    run_world(tmp_path, scenario, config=COMPACT)


def test_a_lost_log_is_refilled_with_its_offsets_epochs_and_producers(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        write(world, *range(10), producer=7)
        world.log.become_leader(LeaderEpoch(5))
        write(world, *range(5, 30), producer=7, sequence=10)
        await tiered(world)
        before = await table(world)
        producers = world.log.producer_snapshot(world.log.log_end_offset)
        epochs = world.log.leader_epochs()
        ends = [entry.end_offset for entry in world.manifest.finished]
        await lose_the_disk(world)
        assert not is_whole(world.log, world.manifest)
        await refilled(world)
        assert is_whole(world.log, world.manifest)
        assert (world.log.log_start_offset, world.log.local_log_start_offset, world.log.log_end_offset) == (0, 0, 35)
        assert await table(world) == before
        assert world.log.producer_snapshot(world.log.log_end_offset) == producers
        assert world.log.leader_epochs() == epochs
        assert set(ends) <= {segment.end_offset for segment in world.log.segments()}
        world.log.become_leader(LeaderEpoch(9))
        write(world, 1, 2, 3)
        await tiered(world)
        assert (world.log.log_end_offset, world.manifest.tiered_end) == (38, 38)

    run_world(tmp_path, scenario, config=COMPACT)


def test_only_what_is_tiered_is_compacted_and_the_rest_stays(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        write(world, *[1, 2, 3] * 10)
        await tiered(world)
        world.tier.drain(False)
        held = world.manifest.tiered_end
        world.config = replace(COMPACT, remote_log_copy_disable=True)
        world.log.update_config(world.config)
        write(world, *[1, 2, 3] * 10)
        world.log.roll()
        await world.log.flush()
        world.log.commit(world.log.log_end_offset)
        assert await cleaner(world).clean_next()
        assert not await cleaner(world).clean_next()
        assert world.log.cleaned_end_offset == held == 30
        left = [header.base_offset for _, header in iter_headers(await whole(world)) if header.record_count]
        assert left == [27, 28, 29, *range(30, 60)]

    run_world(tmp_path, scenario, config=COMPACT)


async def whole(world: World) -> bytes:
    found = []
    at = world.log.log_start_offset
    while at < world.log.log_end_offset:
        read = world.log.read(at, 100_000, end_offset=world.log.log_end_offset)
        found.append(bytes(await read.read_bytes()))
        at = read.end_offset
    return b"".join(found)


def test_a_log_that_was_compacted_before_it_was_tiered_keeps_its_gaps_and_its_end(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.config = replace(COMPACT, remote_storage_enable=False)
        world.log.update_config(world.config)
        write(world, *[1, 2, 3] * 10)
        world.log.roll()
        await world.log.flush()
        world.log.commit(world.log.log_end_offset)
        assert await cleaner(world).clean_next()
        # The newest values of all keys come in the active segment: the next round leaves nothing of what is rolled.
        write(world, *[1, 2, 3] * 4)
        world.log.roll()
        await world.log.flush()
        world.log.commit(world.log.log_end_offset)
        assert await cleaner(world).clean_next()
        before = await table(world)
        assert world.log.log_end_offset == 42
        world.config = COMPACT
        world.log.update_config(COMPACT)
        await world.until(lambda: world.manifest.tiered_end == 42 or bool(world.status().last_error))
        assert world.status().last_error == ""
        await lose_the_disk(world)
        await refilled(world)
        assert await table(world) == before
        assert (world.log.local_log_start_offset, world.log.log_end_offset) == (0, 42)
        write(world, 9)
        assert world.log.log_end_offset == 43

    run_world(tmp_path, scenario, config=COMPACT)


def test_a_part_of_a_refilled_log_is_not_taken_for_all_of_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        write(world, *range(40))
        await tiered(world)
        before = await table(world)
        await lose_the_disk(world)
        second = world.manifest.object_key(world.manifest.finished[1])
        kept = world.store._objects.pop(second)
        with pytest.raises(CorruptionError, match="missing"):
            await refilled(world)
        assert not is_whole(world.log, world.manifest)
        world.store._objects[second] = kept
        await refilled(world)
        assert await table(world) == before

    run_world(tmp_path, scenario, config=COMPACT)


def test_a_log_start_within_a_remote_segment_stays_where_it_is(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        write(world, *range(40))
        await tiered(world)
        entry = world.manifest.finished[2]
        start = Offset(entry.base_offset + 2)
        await world.tier.advance_log_start(world.log.topic_id, world.log.partition, start)
        await lose_the_disk(world)
        await refilled(world)
        assert (world.log.log_start_offset, world.log.local_log_start_offset) == (start, start)
        assert is_whole(world.log, world.manifest)
        assert world.log.log_end_offset == 40

    run_world(tmp_path, scenario, config=replace(COMPACT, cleanup_policy=frozenset({"compact", "delete"})))


async def cleaned(world: World) -> None:
    """Have everything that is tiered cleaned, also what a tombstone says."""
    while await cleaner(world).clean_next():
        pass


def test_remote_segments_are_replaced_by_what_the_cleaner_has_left_of_them(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for _ in range(12):
            write(world, *[1, 2, 3] * 10)
        await tiered(world)
        raw_bytes = world.manifest.state.raw_bytes
        await cleaned(world)
        before = await table(world)
        world.tier.kick()
        await world.until(lambda: world.manifest.state.raw_bytes < raw_bytes / 2)
        assert world.manifest.tiered_end == 360
        await lose_the_disk(world)
        await refilled(world)
        assert await table(world) == before
        write(world, 1)
        await tiered(world)
        assert world.manifest.tiered_end == 361
        assert world.status().last_error == ""

    run_world(tmp_path, scenario, config=COMPACT)


def test_a_replacement_whose_answer_is_lost_is_finished_and_one_that_fails_leaves_the_segments(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for _ in range(12):
            write(world, *[1, 2, 3] * 10)
        await tiered(world)
        many = [one.segment_id for one in world.manifest.finished]
        await cleaned(world)
        before = await table(world)
        appended = world.manifest.change
        asked = 0

        async def change(plan: Any) -> None:
            nonlocal asked
            asked += 1
            if asked == 2:
                await appended(plan)
                raise StorageUnavailable("the answer was lost")
            await appended(plan)

        world.manifest.change = change  # type: ignore[method-assign]
        world.tier.kick()
        await world.until(lambda: asked >= 2 and [one.segment_id for one in world.manifest.finished] != many)
        world.tier.kick()
        await world.until(lambda: world.status().phase == "idle" and world.status().last_error == "")
        assert not world.manifest.state.pending_copies()
        await lose_the_disk(world)
        await refilled(world)
        assert await table(world) == before

    run_world(tmp_path, scenario, config=COMPACT)


def test_j59_a_deleted_key_stays_deleted_when_its_tombstone_is_gone_from_the_bucket(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        write(world, *range(30))
        data = bytearray(build_batch([(world.clock.now_ms(), b"3", None, ())]))
        world.log.append_as_leader(memoryview(data), now_ms=world.clock.now_ms())
        for _ in range(10):
            write(world, *range(10, 20))
        await tiered(world)
        raw_bytes = world.manifest.state.raw_bytes
        await cleaned(world)  # the value goes
        for _ in range(10):
            await asyncio.sleep(1)
            write(world, *range(10, 20))
            await tiered(world)
            await cleaned(world)  # and the tombstone
        assert b"3" not in await table(world)
        world.tier.kick()
        await world.until(lambda: world.manifest.state.raw_bytes < raw_bytes / 2)
        await lose_the_disk(world)
        await refilled(world)
        assert b"3" not in await table(world)

    run_world(tmp_path, scenario, config=replace(COMPACT, delete_retention_ms=0))
