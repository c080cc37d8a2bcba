"""Copies in order and resumable, retention in both tiers, and never a gap (INV-4), whatever fails when."""

from __future__ import annotations

import asyncio
import math
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.errors import StorageUnavailable
from app.core.units import Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicIdPartition
from app.hot.log import PartitionLog
from app.metadata.log import layout
from app.metadata.manifest.manifest import SegmentState
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.records.builder import build_batch
from app.records.control import ControlType
from app.tiering.read.reader import RemoteRead
from app.tiering.store.segment_format import decode_footer
from app.tiering.store.store_work import InlineStoreWork
from app.tiering.upload import expiry
from app.tiering.upload.tier_status import SegmentStatus
from tests.tiering.segments import TOPIC, upload_job
from tests.tiering.world import CONFIG, KEY, World, run_world

YEAR_MS = 31_536_000_000


def test_rolled_segments_go_to_the_store_and_leave_the_disk(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(40)
        rolled = len(world.log.segments()) - 1
        assert rolled > 5
        await world.until(world.all_copied)
        await world.until(lambda: len(world.log.segments()) == 1)
        assert [entry.state for entry in world.manifest.entries] == [SegmentState.COPY_FINISHED] * rolled
        status = world.status()
        assert (status.copied_segments, status.remote_segments) == (rolled, rolled)
        assert status.lag_bytes == world.log.size_bytes > 0, "the active segment is not in the store"
        assert status.tiered_end == world.log.local_log_start_offset
        assert world.log.log_start_offset == 0
        await world.check()

    run_world(tmp_path, scenario)


def test_finish_and_next_start_share_a_manifest_entry(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(40)
        await world.until(world.all_copied)
        copied = world.status().copied_segments
        puts = [
            one for one in world.store.history if one.operation == "put_if_absent" and one.key.startswith("topics/")
        ]
        assert len(puts) <= copied + 2, "one entry per segment, but for the first and the last"

    run_world(tmp_path, scenario)


def test_what_lies_in_the_active_segment_is_counted_as_not_in_the_store_with_its_age(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        assert (world.status().lag_bytes, world.status().lag_ms) == (0, 0)
        world.append(1)
        await asyncio.sleep(60)
        assert len(world.log.segments()) == 1
        assert (world.status().lag_bytes, world.status().lag_ms) == (world.log.size_bytes, pytest.approx(60_000, abs=1))
        world.log.roll()
        await world.until(lambda: world.status().tiered_end == world.log.log_end_offset)
        assert (world.status().lag_bytes, world.status().lag_ms) == (0, 0)

    run_world(tmp_path, scenario)


def test_only_stable_rolled_segments_are_copied_and_the_active_one_never(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(3)
        await asyncio.sleep(60)
        assert await world.store.list_objects("data/") == []
        assert world.status().tiered_end == 0

    run_world(tmp_path, scenario)


def test_copies_take_the_time_of_their_rate_and_what_waits_stays_on_the_disk(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.tier.limit_copies(50.0)
        began_s = asyncio.get_running_loop().time()
        world.append(60)
        size_bytes = world.log.size_bytes
        await asyncio.sleep(10)
        assert not world.all_copied()
        assert world.log.local_log_start_offset <= world.manifest.tiered_end
        world.append(1)
        await world.until(world.all_copied, seconds=10_000)
        took_s = asyncio.get_running_loop().time() - began_s
        # The last segment begins once the one before it is paid, and the active one is not copied.
        assert 0.7 * size_bytes / 50 < took_s < 1.2 * size_bytes / 50 + 20
        assert not world.manifest.state.pending_copies()

    run_world(tmp_path, scenario)


def test_a_rate_that_ends_and_a_drain_let_all_go_at_once(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for let_go in (lambda: world.tier.limit_copies(None), lambda: world.tier.drain(True)):
            world.tier.limit_copies(0.001)
            world.append(30)
            await asyncio.sleep(60)
            assert not world.all_copied()
            let_go()
            await world.until(world.all_copied, seconds=60)

    run_world(tmp_path, scenario)


def test_the_object_of_a_segment_is_encrypted_with_the_key_of_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    def encrypted_with(store: MemoryStore, kms_key_id: str) -> MemoryStore:
        keys.append(kms_key_id)
        return store

    monkeypatch.setattr(MemoryStore, "encrypted_with", encrypted_with)

    async def scenario(world: World) -> None:
        world.append(14)
        await world.until(world.all_copied)
        assert keys == []
        world.log.config = replace(world.log.config, firn_tier_kms_key_id="alias/t")
        world.append(14)
        await world.until(world.all_copied)
        assert set(keys) == {"alias/t"}

    run_world(tmp_path, scenario)


def test_nothing_at_or_above_the_last_stable_offset_is_copied_and_aborts_travel_with_the_segment(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        world.append(2)
        open_at = world.log.log_end_offset
        opened = bytearray(
            build_batch(
                [(world.clock.now_ms(), None, b"undecided", ())],
                producer_id=ProducerId(7),
                producer_epoch=ProducerEpoch(0),
                base_sequence=0,
                transactional=True,
            )
        )
        world.log.append_as_leader(memoryview(opened), now_ms=world.clock.now_ms())
        world.append(30)
        await asyncio.sleep(60)
        assert world.log.last_stable_offset == open_at
        assert world.manifest.tiered_end <= open_at
        marker = world.log.append_control(
            ControlType.ABORT,
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            coordinator_epoch=0,
            now_ms=world.clock.now_ms(),
        ).base_offset
        await world.until(lambda: world.manifest.tiered_end > open_at + 10)
        found = await world.work.read_footer(world.manifest.object_key(world.manifest.finished[0]), None)
        [aborted] = decode_footer(found.tail, found.object_bytes, "first").aborted
        assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (7, open_at, marker)
        assert marker >= world.manifest.finished[0].end_offset, "the marker lies in a later segment"
        assert world.manifest.finished[0].aborted_transaction_count == 1
        await world.until(lambda: world.log.local_log_start_offset > open_at)
        await world.read_remote(open_at)
        read = world.reader.read(TOPIC, PartitionIndex(0), open_at, 10_000, min_one_batch=True)
        assert isinstance(read, RemoteRead)
        assert [(one.producer_id, one.first_offset) for one in read.aborted] == [(7, open_at)]

    run_world(tmp_path, scenario)


def test_a_leftover_whose_object_is_another_segments_is_deleted_not_finished(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        fault = Fault(FaultKind.HANG, "begin_upload", times=1)
        world.store.faults = [fault, Fault(FaultKind.HANG, "put_if_absent", key_prefix="data/", times=1)]
        world.append(14)
        await world.until(lambda: bool(world.manifest.state.pending_copies()))
        [pending] = world.manifest.state.pending_copies()
        key = world.manifest.object_key(pending)
        await world.crash()
        world.store.faults = []
        data = b"".join(world.appended[base] for base in sorted(world.appended) if base < pending.end_offset)
        (tmp_path / "other.log").write_bytes(data)
        job = upload_job(str(tmp_path / "other.log"), data, key=key, segment_id=bytes(16))
        await InlineStoreWork(world.store, world.fs, world.pool, world.rng).upload_segment(job)
        await world.start()
        await world.until(world.all_copied)
        assert pending.segment_id not in {entry.segment_id for entry in world.manifest.finished}
        await world.check()

    run_world(tmp_path, scenario)


def test_the_order_is_sync_announce_upload_finish_drop(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [Fault(FaultKind.LATENCY, latency_ms=(1000, 1000))]
        world.append(8)
        seen: list[str] = []

        def look() -> bool:
            entries = world.manifest.entries
            state = entries[0].state.name if entries else "none"
            objects = any(key.startswith("data/") for key in world.store._keys)
            local = world.log.local_log_start_offset == 0
            synced = world.log.synced_end_offset > 0
            now = f"{state} object={objects} local={local} synced={synced}"
            if not seen or seen[-1] != now:
                seen.append(now)
            return not local

        await world.until(look)
        assert seen[-1].startswith("COPY_FINISHED object=True local=False")
        assert not any("COPY_FINISHED object=False" in one for one in seen)
        assert not any(one.startswith("none object=True") for one in seen)
        assert not any("local=False" in one and not one.startswith("COPY_FINISHED") for one in seen)
        assert not any(one.startswith("COPY_STARTED") and one.endswith("synced=False") for one in seen)

    run_world(tmp_path, scenario)


def test_several_segments_are_in_order_and_one_at_a_time(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [Fault(FaultKind.LATENCY, latency_ms=(100, 500))]
        world.append(40)
        overlapping = 0

        def look() -> bool:
            nonlocal overlapping
            started = [one for one in world.manifest.entries if one.state is SegmentState.COPY_STARTED]
            overlapping = max(overlapping, len(started))
            ends = [one.end_offset for one in world.manifest.finished]
            assert ends == sorted(ends)
            return world.all_copied()

        await world.until(look)
        assert overlapping == 1

    run_world(tmp_path, scenario)


# --- crash at every step ------------------------------------------------------------------------------------------------


def _crashes() -> list[object]:
    """Every request of the scenario, applied and not; by default half of them, so that each request is met one way."""
    return [
        pytest.param(step, kind, marks=() if step % 2 == index else pytest.mark.slow)
        for step in range(26)
        for index, kind in enumerate((FaultKind.HANG, FaultKind.HANG_APPLIED))
    ]


@pytest.mark.parametrize(("step", "kind"), _crashes())
def test_a_crash_at_any_request_loses_nothing_and_the_next_start_goes_on(
    tmp_path: Path, step: int, kind: FaultKind
) -> None:
    """The broker dies while its request number ``step`` is under way, applied or not."""

    async def scenario(world: World) -> None:
        fault = Fault(kind, skip=step, times=1)
        world.store.faults = [fault]
        world.append(14)
        await world.until(lambda: fault.struck > 0 or world.all_copied())
        await world.crash()
        world.store.faults = []
        await world.start()
        await world.check()
        world.append(6)
        await world.until(world.all_copied)
        await world.check()
        await world.until(lambda: not world.manifest.state.pending_deletes(), seconds=300)
        await world.tier.sweep(KEY)
        named = {world.manifest.object_key(entry) for entry in world.manifest.entries}
        assert {info.key for info in await world.store.list_objects("data/")} == named
        assert await world.store.list_uploads("data/") == []

    run_world(tmp_path, scenario)


@pytest.mark.parametrize("seed", range(8))
def test_a_store_that_fails_at_random_delays_copies_and_loses_nothing(tmp_path: Path, seed: int) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [
            Fault(FaultKind.LATENCY, latency_ms=(0, 300)),
            Fault(FaultKind.UNAVAILABLE, probability=0.1),
            Fault(FaultKind.LOST_ANSWER, probability=0.1),
            Fault(FaultKind.HANG, probability=0.02),
            Fault(FaultKind.APPLIED_LATE, "complete", probability=0.2, latency_ms=(0, 20_000)),
            Fault(FaultKind.APPLIED_LATE, "put_if_absent", probability=0.1, latency_ms=(0, 20_000)),
        ]
        for _ in range(4):
            world.append(8)
            await asyncio.sleep(world.rng.random() * 30)
            if world.rng.random() < 0.5:
                await world.crash()
                await world.start()
        await asyncio.sleep(60)
        world.store.faults = []
        world.tier.kick()
        await world.until(world.all_copied)
        await world.check()

    run_world(tmp_path, scenario, seed=seed)


def test_a_change_of_a_topic_has_the_partitions_of_no_other_looked_at(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        partition = world.tier._partitions[KEY]
        for topics, is_meant in (({uuid.uuid4()}, False), ({uuid.uuid4(), KEY.topic_id}, True), (None, True)):
            partition.due.expire_at_s = partition.due.retry_at_s = math.inf
            world.tier.kick(topics)
            assert partition.due.expire_at_s == partition.due.retry_at_s == (0 if is_meant else math.inf)

    run_world(tmp_path, scenario)


def test_while_the_store_is_away_the_log_goes_on_and_nothing_local_is_dropped(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [Fault(FaultKind.UNAVAILABLE)]
        for _ in range(10):
            world.append(10)
            await asyncio.sleep(60)
        assert world.log.local_log_start_offset == 0
        status = world.status()
        assert status.last_error
        assert status.lag_bytes > 0
        assert status.lag_ms > 500_000
        requests = len(world.store.history)
        assert requests < 2000, "retries back off"
        world.store.faults = []
        await world.until(world.all_copied)
        assert world.status().last_error == ""
        await world.check()

    run_world(tmp_path, scenario)


def test_an_upload_that_stands_still_is_abandoned_and_made_again_under_another_id(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(8)
        fault = Fault(FaultKind.HANG, "put_part", times=1)
        world.store.faults = [fault]
        await world.until(lambda: bool(world.manifest.entries))
        [first] = [entry.segment_id for entry in world.manifest.entries][:1]
        await world.until(world.all_copied)
        assert fault.struck == 1
        assert first not in {entry.segment_id for entry in world.manifest.finished}
        await world.check()

    run_world(tmp_path, scenario, stall_s=3)


@pytest.mark.parametrize("above", [True, False])
def test_a_cut_ends_an_upload_of_what_is_cut_away_and_no_other(tmp_path: Path, above: bool) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [Fault(FaultKind.LATENCY, "begin_upload", latency_ms=(2000, 2000))]
        world.append(30)
        await world.until(lambda: bool(world.manifest.state.pending_copies()) and world.log.held)
        [pending] = world.manifest.state.pending_copies()
        world.tier.detach(TOPIC, PartitionIndex(0))
        world.log.resign()
        began_s = world.loop.time()
        assert world.log.truncate_to(pending.end_offset - 1 if above else pending.end_offset)
        assert world.loop.time() == began_s
        assert world.log.held != above
        await world.tier.wait_left(TOPIC)
        assert (pending.segment_id in {entry.segment_id for entry in world.manifest.finished}) != above
        assert (world.manifest.object_key(pending) in world.store._keys) != above
        assert not world.log.held
        assert world.loop.time() - began_s < 1 or not above, "its upload ended with the cut"

    run_world(tmp_path, scenario)


def test_of_a_partition_that_was_let_go_nothing_is_written_once_its_last_step_was_waited_for(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [Fault(FaultKind.LATENCY, latency_ms=(700, 700))]
        world.append(8)
        await world.until(lambda: world.status().phase == "uploading")
        world.tier.detach(*KEY)
        before = len(list(world.store.history))
        await world.tier.wait_left(TOPIC)
        after = len(list(world.store.history))
        assert after > before
        await asyncio.sleep(60)
        assert len(list(world.store.history)) == after

    run_world(tmp_path, scenario)


def test_a_corrupt_local_segment_is_never_uploaded_and_the_error_says_where(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(8)
        first = world.log.segments()[0]
        data = bytearray(Path(first.path).read_bytes())
        data[200] ^= 1
        Path(first.path).write_bytes(data)
        await asyncio.sleep(30)
        assert world.manifest.finished == []
        status = world.status()
        assert ".log" in status.last_error
        assert "position" in status.last_error
        assert world.log.local_log_start_offset == 0
        await asyncio.sleep(100)
        assert await world.store.list_objects("data/") == []

    run_world(tmp_path, scenario)


def test_two_leaders_cannot_both_finish_a_copy(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [Fault(FaultKind.LATENCY, "complete", latency_ms=(3000, 3000))]
        world.append(8)
        await world.until(lambda: bool(world.manifest.state.pending_copies()))
        usurper = world.new_manifest()
        await usurper.load()
        await usurper.seal()
        await asyncio.sleep(60)
        assert world.tier.status() == [], "the fenced leader has let go"
        await usurper.refresh()
        assert usurper.finished == []
        assert usurper.state.pending_copies(), "what it began is left to the new leader to finish or delete"

    run_world(tmp_path, scenario)


# --- retention ----------------------------------------------------------------------------------------------------------


def test_time_retention_raises_the_log_start_durably_before_anything_is_deleted(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_ms=100_000)

    async def scenario(world: World) -> None:
        world.append(20)
        await world.until(world.all_copied)
        objects = await world.store.list_objects("data/")
        assert len(objects) > 3
        end = world.manifest.tiered_end
        await world.until(lambda: world.log.log_start_offset >= end)
        assert world.manifest.log_start_offset >= end
        assert world.manifest.finished == []
        left = await world.store.list_objects("data/")
        assert len(left) >= len(objects), "objects stay for the delay"
        await world.until(lambda: not world.manifest.entries, seconds=200)
        assert await world.store.list_objects("data/") == []
        assert world.manifest.tiered_end >= end, "the tiered end outlives its segments"

    run_world(tmp_path, scenario, config=config)


def test_the_log_start_is_in_force_with_the_first_of_several_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "CHANGES_PER_ENTRY_MAX", 2)

    async def scenario(world: World) -> None:
        world.append(20)
        await world.until(world.all_copied)
        copied = len(world.manifest.finished)
        still_readable: list[int] = []
        advance = PartitionLog.advance_log_start

        def note(log: PartitionLog, offset: Offset) -> None:
            still_readable.append(len(world.manifest.finished))
            advance(log, offset)

        monkeypatch.setattr(PartitionLog, "advance_log_start", note)
        end = world.manifest.tiered_end
        await world.until(lambda: world.log.log_start_offset >= end and not world.manifest.finished)
        assert copied > 4
        assert still_readable == [copied - 2]

    run_world(tmp_path, scenario, config=replace(CONFIG, retention_ms=100_000))


def test_size_retention_counts_both_tiers(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_bytes=5000)

    async def scenario(world: World) -> None:
        world.append(80)
        await world.until(world.all_copied)
        await asyncio.sleep(30)
        total = world.manifest.state.raw_bytes + world.log.size_bytes
        assert 5000 <= total < 6000 + 300
        world.log_start = world.log.log_start_offset
        assert world.log_start > 0
        await world.check()

    run_world(tmp_path, scenario, config=config)


def test_local_retention_of_minus_two_is_that_of_the_whole_log(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_ms=-1, local_retention_ms=-2, local_retention_bytes=-2)

    async def scenario(world: World) -> None:
        world.append(20)
        await world.until(world.all_copied)
        await asyncio.sleep(100)
        assert world.log.local_log_start_offset == 0
        assert world.status().remote_segments > 3
        assert {line.tier for line in world.tier.segments(TOPIC, PartitionIndex(0))} == {"both", "local"}

    run_world(tmp_path, scenario, config=config)


def test_each_segment_tells_its_times_and_how_late_it_came_into_the_store(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_ms=-1, local_retention_ms=-1)

    async def scenario(world: World) -> None:
        def lines() -> list[SegmentStatus]:
            return world.tier.segments(TOPIC, PartitionIndex(0))

        away = Fault(FaultKind.UNAVAILABLE, key_prefix="data/")
        world.store.faults.append(away)
        first_ms = world.clock.now_ms()
        world.append(2, records=1)
        await asyncio.sleep(5)
        last_ms = world.clock.now_ms()
        world.append(1, records=1)
        world.log.roll()
        world.append(1, records=1)
        await asyncio.sleep(100)
        found = {line.state: line for line in lines()}
        assert [found["ROLLED"].min_timestamp, found["ROLLED"].max_timestamp] == [first_ms, last_ms]
        assert found["ROLLED"].lag_ms == found["COPY_STARTED"].lag_ms == pytest.approx(100_000, abs=1)
        assert (found["ACTIVE"].lag_ms, found["DELETE_STARTED"].lag_ms) == (-1, -1), "it is not to be there, it failed"
        world.store.faults.remove(away)
        await world.until(world.all_copied)
        await asyncio.sleep(1000)
        (stored,) = [line for line in lines() if line.state == "COPY_FINISHED"]
        assert (stored.min_timestamp, stored.max_timestamp) == (first_ms, last_ms)
        assert stored.lag_ms == stored.changed_ms - last_ms
        assert 100_000 <= stored.lag_ms < 200_000, "it waits no longer"

        old = build_batch([(first_ms - YEAR_MS, None, b"old", ())])
        world.log.roll()
        world.log.append_as_leader(memoryview(bytearray(old)), now_ms=world.clock.now_ms())
        world.log.roll()
        await world.until(world.all_copied)
        replayed = lines()[-2]
        assert replayed.max_timestamp == first_ms - YEAR_MS
        assert 0 <= replayed.lag_ms < 100_000, "that its records are old is no lag"

    run_world(tmp_path, scenario, config=config)


def test_local_bytes_bound_the_local_part_only(tmp_path: Path) -> None:
    config = replace(CONFIG, local_retention_ms=-1, local_retention_bytes=3000)

    async def scenario(world: World) -> None:
        world.append(60)
        await world.until(world.all_copied)
        await asyncio.sleep(5)
        assert 3000 <= world.log.size_bytes < 4300
        assert world.log.log_start_offset == 0
        await world.check()

    run_world(tmp_path, scenario, config=config)


def test_copying_can_be_turned_off_and_the_local_log_then_stays(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(20)
        await asyncio.sleep(100)
        assert await world.store.list_objects("") == []
        assert world.log.local_log_start_offset == 0
        world.log.update_config(CONFIG)
        await world.until(world.all_copied)
        await world.check()

    run_world(tmp_path, scenario, config=replace(CONFIG, remote_log_copy_disable=True))


def test_turning_the_tier_off_with_deletion_lets_the_log_start_at_the_local_part(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(20)
        await world.until(world.all_copied)
        await asyncio.sleep(2)
        local_start = world.log.local_log_start_offset
        assert local_start > 0
        world.log.update_config(replace(CONFIG, remote_storage_enable=False, remote_log_delete_on_disable=True))
        await world.until(lambda: not world.manifest.entries, seconds=300)
        assert world.log.log_start_offset == local_start == world.manifest.log_start_offset
        assert await world.store.list_objects("data/") == []

    run_world(tmp_path, scenario)


@pytest.mark.parametrize(("policy", "retention_ms"), [("delete", 10_000_000), ("compact", 500_000)])
def test_what_is_local_when_the_tier_is_turned_off_goes_with_the_log_start_alone(
    tmp_path: Path, policy: str, retention_ms: int
) -> None:
    tiered = replace(CONFIG, retention_ms=retention_ms, local_retention_ms=50_000)
    off = replace(
        tiered, remote_storage_enable=False, remote_log_delete_on_disable=True, cleanup_policy=frozenset({policy})
    )

    async def scenario(world: World) -> None:
        world.append(20)
        await world.until(world.all_copied)
        assert world.log.local_log_start_offset == 0
        end = world.log.log_end_offset
        world.log.update_config(off)
        await asyncio.sleep(1000)
        assert world.log.log_start_offset == world.log.local_log_start_offset == 0
        assert world.log.log_end_offset == end
        await world.check()

    run_world(tmp_path, scenario, config=tiered)


def test_deleted_records_are_gone_for_good_before_the_answer(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(40)
        await world.until(world.all_copied)
        middle = world.manifest.finished[2].base_offset + 1
        await world.tier.advance_log_start(TOPIC, PartitionIndex(0), middle)
        assert world.manifest.log_start_offset == middle == world.log.log_start_offset
        await world.crash()
        await world.start()
        assert world.log.log_start_offset == middle
        assert world.manifest.find(middle - 1) is None
        await world.until(lambda: world.manifest.entries[0].end_offset > middle, seconds=300)
        data, _ = await world.read_remote(middle)
        assert data

    run_world(tmp_path, scenario)


def test_objects_are_kept_for_the_delay_after_delete_started(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(20)
        await world.until(world.all_copied)
        key = world.manifest.object_key(world.manifest.finished[0])
        await world.tier.advance_log_start(TOPIC, PartitionIndex(0), world.manifest.finished[0].end_offset)
        await world.until(lambda: bool(world.manifest.state.pending_deletes()))
        started = world.loop.time()
        await world.until(lambda: key not in world.store._keys, seconds=300)
        assert 55 <= world.loop.time() - started <= 80
        await world.until(lambda: not world.manifest.state.pending_deletes())

    run_world(tmp_path, scenario)


# --- losing the disk ----------------------------------------------------------------------------------------------------


def test_a_lost_data_directory_is_rebuilt_from_the_bucket_up_to_the_tiered_end(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(40)
        await world.until(world.all_copied)
        end = world.manifest.tiered_end
        lineage = world.log.leader_epochs()
        await world.crash()
        (tmp_path / "data").rename(tmp_path / "lost")
        await world.start()
        assert (world.log.log_start_offset, world.log.local_log_start_offset, world.log.log_end_offset) == (0, end, end)
        assert world.log.leader_epochs()[: len(lineage)] == lineage
        world.appended = {base: data for base, data in world.appended.items() if base < end}
        await world.check()
        world.append(10)
        await world.until(world.all_copied)
        await world.check()

    run_world(tmp_path, scenario)


def test_a_log_that_ends_below_the_tiered_end_never_reuses_an_offset(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(20)
        await world.until(world.all_copied)
        end = world.manifest.tiered_end
        await world.crash()
        (tmp_path / "data").rename(tmp_path / "lost")
        await world.start()
        world.append(1)
        assert max(world.appended) >= end

    run_world(tmp_path, scenario)


def test_a_log_whose_history_has_all_expired_goes_on_at_the_tiered_end(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(20)
        await world.until(world.all_copied)
        end = world.manifest.tiered_end
        await world.tier.advance_log_start(TOPIC, PartitionIndex(0), end)
        await world.until(lambda: not world.manifest.entries, seconds=300)
        await world.crash()
        (tmp_path / "data").rename(tmp_path / "lost")
        await world.start()
        assert (world.log.log_start_offset, world.log.log_end_offset) == (end, end)

    run_world(tmp_path, scenario)


def test_keys_lie_where_the_layout_says(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(20)
        await world.until(world.all_copied)
        for info in await world.store.list_objects("data/"):
            named = layout.parse_segment_key(info.key)
            assert named is not None
            assert (named.topic_id, named.partition) == (TOPIC, 0)

    run_world(tmp_path, scenario)


def soon_s() -> float:
    """Until when counts wait for copies under way."""
    return asyncio.get_running_loop().time() + 15


def test_while_copies_are_held_none_begins_and_they_go_on_afterwards(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for _ in range(2):
            world.tier.hold_copies(TOPIC)
        assert await world.tier.count_held([KEY], soon_s()) == 0
        world.append(40)
        assert len(world.log.segments()) > 5
        for _ in range(2):
            await asyncio.sleep(60)
            assert world.manifest.state.is_blank
            assert await world.store.list_objects("data/") == []
            world.tier.release_copies(TOPIC)
        await world.until(world.all_copied)
        await world.check()

    run_world(tmp_path, scenario)


def test_a_copy_under_way_is_waited_for_and_counted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [Fault(FaultKind.LATENCY, latency_ms=(2000, 2000))]
        world.append(10)
        await world.until(lambda: world.status().phase == "announcing")
        assert world.manifest.state.entries == [], "that it begins is not written yet"
        world.tier.hold_copies(TOPIC)
        assert await world.tier.count_held([KEY], soon_s()) > 0
        known = len(world.manifest.state.entries)
        await asyncio.sleep(60)
        assert len(world.manifest.state.entries) == known

    run_world(tmp_path, scenario)


def test_a_partition_that_is_not_led_here_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.tier.hold_copies(TOPIC)
        with pytest.raises(StorageUnavailable, match="try again"):
            await world.tier.count_held([KEY, TopicIdPartition(TOPIC, PartitionIndex(1))], soon_s())

    run_world(tmp_path, scenario)


def test_a_drain_does_not_wait_for_the_end_of_a_pause_that_was_begun_before_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [Fault(FaultKind.UNAVAILABLE)]
        world.append(10)
        await world.until(lambda: world.status().failures >= 6 and world.status().phase == "waiting to retry")
        world.store.faults = []
        world.tier.drain(True)
        await world.until(world.all_copied, seconds=5)

    run_world(tmp_path, scenario)


def test_while_the_broker_drains_a_store_that_comes_back_is_tried_again_within_a_moment(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store.faults = [Fault(FaultKind.UNAVAILABLE)]
        world.append(10)
        await world.until(lambda: world.status().failures >= 6)  # by now the pauses are half a minute long
        world.tier.drain(True)
        before = world.status().failures
        await world.until(lambda: world.status().failures >= before + 6, seconds=240)
        world.store.faults = []
        await world.until(world.all_copied, seconds=5)
        await world.check()

    run_world(tmp_path, scenario)


def test_a_damaged_segment_is_not_read_and_uploaded_again_and_again_while_the_broker_drains(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.append(10)
        world.log.roll()
        damaged = next(path for path in sorted(Path(world.log.path).iterdir()) if path.suffix == ".log")
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(bytes(content))
        world.tier.drain(True)
        await world.until(lambda: world.status().failures >= 1)
        await asyncio.sleep(60)
        assert world.status().failures == 1

    run_world(tmp_path, scenario)
