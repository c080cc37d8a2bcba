"""Remote reads give exactly the batches that were written, from any offset, and say precisely what is wrong."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from app.core.errors import CorruptionError, ErrorCode, RequestRejected, StorageUnavailable
from app.core.metrics import Registry
from app.core.tracing import CURRENT, SpanContext
from app.core.units import Buffer, Offset, PartitionIndex, TimestampMs, TopicIdPartition
from app.machine.files import PosixFile
from app.metadata.log import layout
from app.metadata.manifest.manifest import SegmentState
from app.objectstore.api import ObjectMissing
from app.objectstore.memory import Fault, FaultKind
from app.records.batch import iter_headers
from app.tiering.read import chunk_cache, footers, read_ahead
from app.tiering.read.reader import RemoteRead, RemoteReader
from app.tiering.read.waiting import RemoteWait
from app.tiering.repair.rebuild import lost_beginning
from app.tiering.store import store_work
from tests.tiering.segments import TOPIC
from tests.tiering.world import CONFIG, KEY, World, run_world

P0 = PartitionIndex(0)


async def _tiered(world: World, batches: int = 40, **shape: int) -> int:
    """Everything rolled is in the store only. The offset where the local log begins."""
    world.append(batches, **shape)
    await world.until(world.all_copied)
    await world.until(lambda: len(world.log.segments()) == 1)
    return world.log.local_log_start_offset


def test_records_lost_at_the_beginning_are_an_error_to_readers_and_stay_one_after_a_restart(tmp_path: Path) -> None:
    """Were the log to start above them, readers would step over the loss, and ``verify`` would take it for expiry."""

    async def scenario(world: World) -> None:
        end = await _tiered(world)
        kept = list(world.manifest.finished)[2:]
        start = kept[0].base_offset
        await world.crash()
        for info in await world.store.list_objects(layout.topic_prefix(TOPIC)):
            await world.store.delete(info.key)
        manifest = world.new_manifest()
        for entry in kept:
            await manifest.copy_started(entry.replace(state=SegmentState.COPY_STARTED))
            await manifest.copy_finished(entry)
        await world.start()
        await asyncio.sleep(100)  # retention has looked at it
        assert lost_beginning(world.manifest) == (0, start)
        assert (world.log.log_start_offset, world.log.local_log_start_offset) == (0, end)
        for offset in (0, start - 1):
            with pytest.raises(CorruptionError, match=f"covers {offset}, and nothing has expired there"):
                await world.read_remote(offset)
        assert (await world.read_remote(start))[1] > start
        await world.tier.advance_log_start(TOPIC, KEY.partition, start)
        assert lost_beginning(world.manifest) is None
        with pytest.raises(RequestRejected, match=f"covers {start - 1}"):
            await world.read_remote(start - 1)

    run_world(tmp_path, scenario)


@pytest.mark.parametrize("max_bytes", [1, 250, 700, 3000, 1_000_000])
def test_every_offset_is_answered_with_the_batch_that_holds_it(tmp_path: Path, max_bytes: int) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world)
        for offset in range(end):
            data, following = await world.read_remote(offset, max_bytes=max_bytes)
            headers = [header for _, header in iter_headers(data)]
            assert headers[0].base_offset <= offset < headers[0].end_offset
            assert sum(header.size_bytes for header in headers) == len(data), "whole batches only"
            assert headers[-1].end_offset == following
            assert len(data) <= max_bytes or len(headers) == 1
            assert data == b"".join(world.appended[header.base_offset] for header in headers)

    run_world(tmp_path, scenario)


def test_large_batches_and_blocks_within_a_chunk_are_found(tmp_path: Path) -> None:
    config = replace(CONFIG, segment_bytes=400_000, firn_tier_chunk_bytes=100_000)

    async def scenario(world: World) -> None:
        for index in range(300):
            world.append(1, records=5, value_bytes=20_000 if index % 50 == 7 else 100)
        await world.until(world.all_copied)
        await world.until(lambda: len(world.log.segments()) == 1)
        end = world.log.local_log_start_offset
        assert end > 500
        for max_bytes in (100, 5000, 60_000):
            at = 3
            while at < end:
                data, following = await world.read_remote(at, max_bytes=max_bytes)
                headers = [header for _, header in iter_headers(data)]
                assert headers[0].base_offset <= at < headers[0].end_offset
                assert data == b"".join(world.appended[header.base_offset] for header in headers)
                assert following > at
                at = following

    run_world(tmp_path, scenario, config=config)


def test_without_min_one_batch_a_first_batch_that_does_not_fit_gives_nothing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        await world.read_remote(0)
        found = world.reader.read(TOPIC, P0, Offset(0), 10, min_one_batch=False)
        assert isinstance(found, RemoteRead)
        assert (found.ranges, found.length, found.end_offset) == ([], 0, 0)

    run_world(tmp_path, scenario)


def test_an_offset_that_no_segment_covers_is_out_of_range(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world)
        await world.tier.advance_log_start(TOPIC, P0, Offset(10))
        polls = len(world.store.history)
        for offset in (9, end):
            with pytest.raises(RequestRejected) as refusal:
                await world.read_remote(offset)
            assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        with pytest.raises(RequestRejected):
            await world.read_remote(end)
        asked = [one.operation for one in list(world.store.history)[polls:] if one.operation == "list_objects"]
        assert asked == ["list_objects"], "past the tiered end the manifest is read once, and below the log start never"
        with pytest.raises(RequestRejected) as refusal:
            world.reader.read(TOPIC, PartitionIndex(1), Offset(0), 100, min_one_batch=True)
        assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_world(tmp_path, scenario)


def test_a_slow_store_never_makes_a_read_start_over(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        world.store.faults = [Fault(FaultKind.LATENCY, "get_range", latency_ms=(3000, 3000))]
        before = len(world.store.history)
        for _ in range(20):
            found = world.reader.read(TOPIC, P0, Offset(0), 100, min_one_batch=True)
            assert isinstance(found, RemoteWait)
            take_back = found(lambda: None)
            await asyncio.sleep(0.1)
            take_back()
        await asyncio.sleep(10)
        await world.read_remote(0)
        reads = [one for one in list(world.store.history)[before:] if one.operation == "get_range"]
        assert len(reads) == 2, "one for the footer and one for the chunk"

    run_world(tmp_path, scenario)


def test_corrupt_chunks_are_never_served_and_the_client_can_try_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        await world.read_remote(0)
        other = world.manifest.finished[2].base_offset
        await world.read_remote(other)  # its footer is at hand now
        chunk_two = world.manifest.finished[2].end_offset - 1
        fault = Fault(FaultKind.FLIPPED_BYTE, "get_range")
        world.store.faults = [fault]
        with pytest.raises(CorruptionError, match=r"wrong CRC of the chunk at position \d+"):
            await world.read_remote(chunk_two)
        counted = {sample.name: sample.value for sample in world.registry.samples() if not sample.labels}
        assert counted["firn_remote_corruptions_total"] >= 1
        world.store.faults = []
        await asyncio.sleep(2)
        await world.read_remote(chunk_two)

    run_world(tmp_path, scenario)


@pytest.mark.parametrize("at_hand", [True, False], ids=["page cache", "disk"])
@pytest.mark.parametrize("damage", ["zeros", "cut off", "length"])
def test_a_chunk_that_the_local_disk_has_damaged_is_brought_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, at_hand: bool
) -> None:
    if not at_hand:
        monkeypatch.setattr(PosixFile, "preadv_nowait", lambda self, view, position: None)

    async def scenario(world: World) -> None:
        await _tiered(world)
        _, end = await world.read_remote(0, max_bytes=1)
        _, after = await world.read_remote(end, max_bytes=1)
        await world.crash()
        await world.start()
        await world.read_remote(0, max_bytes=1_000_000)
        for path in (tmp_path / "cache").iterdir():
            match damage:
                case "zeros":
                    path.write_bytes(bytes(path.stat().st_size))
                case "cut off":
                    path.write_bytes(b"")
                case _:
                    path.write_bytes(path.read_bytes()[:8] + (-12).to_bytes(4, "big", signed=True) * 1000)
        failures = 0
        while True:
            try:
                data, following = await world.read_remote(end, max_bytes=1)
                break
            except CorruptionError:
                failures += 1
                assert failures == 1
        assert (data, following) == (world.appended[end], after)
        counted = {sample.name: sample.value for sample in world.registry.samples() if not sample.labels}
        assert counted["firn_remote_corruptions_total"] == 1
        (line,) = [line for line in world.lines if "is fetched again" in line]
        assert "differs from the bytes that were written to it" in line

    run_world(tmp_path, scenario, config=replace(CONFIG, firn_tier_chunk_bytes=CONFIG.segment_bytes))


def test_a_corrupt_footer_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        world.store.faults = [Fault(FaultKind.FLIPPED_BYTE, "get_range")]
        with pytest.raises(CorruptionError):
            await world.read_remote(0)
        world.store.faults = []
        await asyncio.sleep(2)
        await world.read_remote(0)

    run_world(tmp_path, scenario)


def test_a_missing_object_that_the_manifest_still_names_is_a_storage_error(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        await world.store.delete(world.manifest.object_key(world.manifest.finished[0]))
        with pytest.raises(StorageUnavailable, match="missing, although the manifest names it"):
            await world.read_remote(0)

    run_world(tmp_path, scenario)


def test_a_missing_object_that_was_deleted_meanwhile_is_out_of_range(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        first = world.manifest.finished[0]
        other = world.new_manifest()  # somebody else changes the manifest behind our back
        await other.load()
        await other.delete_started([first.segment_id], log_start_offset=first.end_offset)
        await world.store.delete(world.manifest.object_key(first))
        with pytest.raises(RequestRejected) as refusal:
            await world.read_remote(0)
        assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        await world.read_remote(first.end_offset)

    run_world(tmp_path, scenario)


@pytest.mark.parametrize("missing", [True, False])
def test_requests_that_wait_for_a_manifest_are_woken_outside_the_trace_of_the_first(
    tmp_path: Path, missing: bool
) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world)
        entry = world.manifest.finished[0]
        known = world.reader.footers
        token = CURRENT.set(SpanContext(1, 1))
        if missing:
            wait = known.recheck(world.manifest, entry, ObjectMissing("gone"))
        else:
            wait = known.look_again(world.manifest, TopicIdPartition(TOPIC, P0), Offset(end))
        CURRENT.reset(token)
        woken: list[SpanContext | None] = []
        wait(lambda: woken.append(CURRENT.get()))
        await wait.woken()
        assert woken == [None]

    run_world(tmp_path, scenario)


# --- read-ahead ---------------------------------------------------------------------------------------------------------


def test_sequential_readers_get_chunks_ahead_across_segments_and_seekers_do_not(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world, 60)
        world.store.faults = [Fault(FaultKind.LATENCY, "get_range", latency_ms=(200, 200))]

        async def timed(offsets_in_order: bool) -> float:
            started = world.loop.time()
            at = 0
            while at < end:
                _, at = await world.read_remote(at, max_bytes=350)
                if not offsets_in_order:
                    world.reader.read_ahead.streams.clear()
                    world.reader.read_ahead.window_bytes = 0
            return world.loop.time() - started

        ahead_s = await timed(True)
        samples = {sample.name: sample.value for sample in world.registry.samples() if not sample.labels}
        assert samples["firn_read_ahead_window_bytes"] <= 4000
        await world.crash()
        await world.start()
        seeking_s = await timed(False)
        assert ahead_s < seeking_s * 0.6, (ahead_s, seeking_s)

    run_world(tmp_path, scenario)


def test_a_window_does_not_stand_still_for_the_footers_that_it_reaches(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world, 120)
        latency_s = 0.2
        world.store.faults = [Fault(FaultKind.LATENCY, "get_range", latency_ms=(200, 200))]
        started_s = world.loop.time()
        at = 0
        while at < end:
            _, at = await world.read_remote(at, max_bytes=350)
        segments = len(world.manifest.finished)
        assert segments > 30
        # A window of 4,000 bytes reaches over four segments: less than a latency for two of them, and some to open it.
        assert world.loop.time() - started_s < (segments / 2) * latency_s

    run_world(tmp_path, scenario)


@pytest.mark.parametrize("readers", [1, 3])
def test_what_is_answered_stays_until_it_is_held_however_little_the_cache_holds(tmp_path: Path, readers: int) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world, 60)
        world.cache._capacity_bytes = 3 * 500
        world.store.faults = [Fault(FaultKind.LATENCY, "get_range", latency_ms=(10, 200))]

        async def reader(start: int) -> None:
            at = start
            while at < end:
                _, at = await world.read_remote(at)

        await asyncio.gather(*(reader(number * end // readers) for number in range(readers)))

    run_world(tmp_path, scenario)


def test_more_readers_than_the_cache_has_room_for_take_turns_and_read_each_chunk_about_once(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world, 200, records=1, value_bytes=20)
        world.cache._capacity_bytes = 3 * 400
        world.store.faults = [Fault(FaultKind.LATENCY, "get_range", latency_ms=(10, 10))]
        edges = [number * end // 8 for number in range(9)]

        async def reader(start: int, stop: int) -> None:
            at = start
            while at < stop:
                _, at = await world.read_remote(at, max_bytes=100)
                await asyncio.sleep(0.001)

        await asyncio.gather(*(reader(start, stop) for start, stop in pairwise(edges)))
        sizes = {sample.name: sample.value for sample in world.registry.samples() if not sample.labels}
        read, served = sizes["firn_chunk_cache_read_bytes_total"], sizes["firn_remote_served_bytes_total"]
        assert read < 1.5 * served, (read, served)

    run_world(tmp_path, scenario)


def test_all_windows_together_stay_within_the_budget(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world, 60)
        world.store.faults = [Fault(FaultKind.LATENCY, "get_range", latency_ms=(500, 500))]

        async def reader(start: int) -> None:
            at = start
            for _ in range(6):
                if at < end:
                    _, at = await world.read_remote(at, max_bytes=350)
                    assert world.reader.read_ahead.window_bytes <= 4000
                    assert (
                        sum(one.window_bytes for one in world.reader.read_ahead.streams.values())
                        == world.reader.read_ahead.window_bytes
                    )

        await asyncio.gather(*(reader(start) for start in range(0, end, 7)))

    run_world(tmp_path, scenario)


def test_windows_leave_half_of_the_cache_to_what_is_being_served(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        reader = RemoteReader(
            world.work,
            world.cache,
            world.tier.manifest_of,
            pool=world.pool,
            registry=Registry(),
            read_ahead_bytes=100 * world.cache.capacity_bytes,
        )
        stream = reader.read_ahead.stream_at(TopicIdPartition(TOPIC, P0), Offset(0))
        reader.read_ahead.grow(stream, 100 * world.cache.capacity_bytes)
        assert stream.window_bytes == reader.read_ahead.window_bytes == world.cache.capacity_bytes // 2

    run_world(tmp_path, scenario)


def test_a_reader_that_has_left_does_not_keep_its_window_from_the_next(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world, 60)
        world.store.faults = [Fault(FaultKind.LATENCY, "get_range", latency_ms=(200, 200))]

        async def read(start: int, stop: int) -> int:
            """The window that the reader had in the end."""
            at = start
            while at < stop:
                _, at = await world.read_remote(at, max_bytes=350)
            return next(reversed(world.reader.read_ahead.streams.values())).window_bytes

        await read(0, end // 4)
        reader = world.reader
        reader.read_ahead.grow(next(reversed(reader.read_ahead.streams.values())), 4000)
        assert reader.read_ahead.window_bytes == 4000
        await asyncio.sleep(3)
        assert await read(end // 2, end) > 500
        assert (
            sum(one.window_bytes for one in reader.read_ahead.streams.values())
            == reader.read_ahead.window_bytes
            <= 4000
        )

    run_world(tmp_path, scenario)


def test_a_reader_that_comes_to_the_end_of_the_tier_gives_its_window_back(tmp_path: Path) -> None:
    """One that begins again at the log start is another reader: it would have none until the first was idle."""

    async def scenario(world: World) -> None:
        end = await _tiered(world, 60)
        world.store.faults = [Fault(FaultKind.LATENCY, "get_range", latency_ms=(200, 200))]
        at, most = 0, 0
        while at < end:
            _, at = await world.read_remote(at, max_bytes=350)
            most = max(most, world.reader.read_ahead.window_bytes)
        await asyncio.sleep(0)  # windows are looked at once the answer is held
        assert most > 1000
        assert world.reader.read_ahead.window_bytes == 0

    run_world(tmp_path, scenario)


def test_a_reader_that_comes_while_others_hold_all_windows_gets_its_share(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        end = await _tiered(world, 400)
        reader, budget = world.reader, 4000
        world.store.faults = [Fault(FaultKind.LATENCY, "get_range", latency_ms=(200, 200))]

        def window_at(offset: int) -> int:
            return reader.read_ahead.streams[TopicIdPartition(TOPIC, P0), Offset(offset)].window_bytes

        async def read_on(at: int, answers: int) -> int:
            for _ in range(answers):
                _, at = await world.read_remote(at, max_bytes=350)
            return at

        first = await read_on(0, 4)
        reader.read_ahead.grow(next(reversed(reader.read_ahead.streams.values())), budget)
        assert window_at(first) == reader.read_ahead.window_bytes == budget
        second = end // 2
        for _ in range(10):
            first, second = await asyncio.gather(read_on(first, 3), read_on(second, 3))
            assert reader.read_ahead.window_bytes == window_at(first) + window_at(second) <= budget
        assert window_at(second) == window_at(first) == budget // 2

    run_world(tmp_path, scenario)


def test_a_reader_without_a_window_does_not_look_at_all_others_each_time_it_wants_one(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        def calls_of_one_more_try(readers: int) -> int:
            """Function calls while a reader asks in vain for a window, as it does with each of its reads."""
            budget = world.cache.capacity_bytes // 2
            reader = RemoteReader(
                world.work,
                world.cache,
                world.tier.manifest_of,
                pool=world.pool,
                registry=Registry(),
                read_ahead_bytes=budget,
            )
            streams = [
                reader.read_ahead.stream_at(TopicIdPartition(TOPIC, P0), Offset(place)) for place in range(readers)
            ]
            for stream in streams:
                stream.window_bytes_min = budget // 8
                reader.read_ahead.grow(stream, budget // 8)
            assert [bool(stream.window_bytes) for stream in streams] == [place < 8 for place in range(readers)]
            calls = 0

            def count(*_: object) -> None:
                nonlocal calls
                calls += 1

            profile = sys.getprofile()
            sys.setprofile(count)
            try:
                reader.read_ahead.grow(streams[-1], budget // 8)
            finally:
                sys.setprofile(profile)
            assert not streams[-1].window_bytes
            return calls

        assert calls_of_one_more_try(200) == calls_of_one_more_try(20)

    run_world(tmp_path, scenario)


@pytest.mark.ci
@pytest.mark.parametrize(("first_byte_s", "least_share"), [(0.0, 0.9), (0.02, 0.9), (0.1, 0.8)])
def test_one_reader_that_starts_over_and_over_gets_nearly_what_the_store_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_byte_s: float, least_share: float
) -> None:
    """The laboratory's replay from S3 at a thousandth of its size: 400 kB/s over all reads, chunks of 4 kB, segments of 32 kB,
    a cache of a quarter of what is read, and a reader that needs half as long for what it is given."""
    bytes_per_s, piece_bytes, answer_bytes, passes = 400_000, 250, 1000, 3
    for module in (chunk_cache, read_ahead):
        monkeypatch.setattr(module, "READ_BYTES_MAX", 128_000)
    monkeypatch.setattr(store_work, "INDEX_STEP_BYTES", 16)

    async def scenario(world: World) -> None:
        end = await _tiered(world, 1000, records=1, value_bytes=900)
        world.cache._capacity_bytes, world.reader.read_ahead.budget_bytes = 250_000, 125_000
        get_range, free_s = world.store.get_range, 0.0

        async def paced(key: str, start: int, stop: int) -> Buffer:
            """Every read gets its turn for each piece."""
            nonlocal free_s
            data = await get_range(key, start, stop)
            await asyncio.sleep(first_byte_s)
            for _ in range(0, len(data), piece_bytes):
                now_s = world.loop.time()
                turn_s = max(free_s, now_s)
                free_s = turn_s + piece_bytes / bytes_per_s
                await asyncio.sleep(turn_s - now_s)
            return data

        monkeypatch.setattr(world.store, "get_range", paced)
        served, began_s = 0, world.loop.time()
        for _ in range(passes):
            at = 0
            while at < end:
                data, at = await world.read_remote(at, max_bytes=answer_bytes)
                served += len(data)
                await asyncio.sleep(len(data) / bytes_per_s / 2)
        assert served / (world.loop.time() - began_s) >= least_share * bytes_per_s

    config = replace(CONFIG, segment_bytes=32_000, firn_tier_chunk_bytes=4_000)
    run_world(tmp_path, scenario, config=config)


# --- lookups ------------------------------------------------------------------------------------------------------------


def test_offsets_are_found_by_timestamp_exactly_as_a_scan_finds_them(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        stamps: list[tuple[int, int]] = []
        for _ in range(30):
            at = world.log.log_end_offset
            world.append(1, records=3)
            now = world.clock.now_ms()
            stamps += [(now + index, at + index) for index in range(3)]
            await asyncio.sleep(5)
        await world.until(world.all_copied)
        await world.until(lambda: len(world.log.segments()) == 1)
        end = world.log.local_log_start_offset
        remote = [(stamp, offset) for stamp, offset in stamps if offset < end]
        for wanted in range(stamps[0][0] - 2, remote[-1][0] + 2, 997):
            expected = next(((stamp, offset) for stamp, offset in remote if stamp >= wanted), None)
            assert await world.reader.lookups.offset_for_timestamp(TOPIC, P0, TimestampMs(wanted)) == expected
        assert await world.reader.lookups.max_timestamp_offset(TOPIC, P0) == remote[-1]
        await world.tier.advance_log_start(TOPIC, P0, Offset(10))
        assert await world.reader.lookups.offset_for_timestamp(TOPIC, P0, TimestampMs(0)) == stamps[10]

    run_world(tmp_path, scenario)


def test_epochs_of_remote_segments_have_ends(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world, 20)
        second_start = world.log.log_end_offset
        await world.crash()
        await world.start()
        await _tiered(world, 20)
        first, second = (one.epoch for one in world.log.leader_epochs())
        assert world.reader.lookups.epoch_end_offset(TOPIC, P0, first) == (first, second_start)
        assert world.reader.lookups.epoch_end_offset(TOPIC, P0, second) is None

    run_world(tmp_path, scenario)


def test_partitions_that_are_let_go_are_not_served(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world, 20)
        world.tier.detach(*KEY)
        with pytest.raises(RequestRejected):
            world.reader.read(TOPIC, P0, Offset(0), 100, min_one_batch=True)

    run_world(tmp_path, scenario)


def test_t4_a_reader_whose_manifest_lacks_entries_reads_them_before_it_answers(tmp_path: Path) -> None:
    """A follower's view is behind: it has dropped its local records, and knows nothing of their segments."""

    async def scenario(world: World) -> None:
        view = world.new_manifest()
        await view.load()
        end = await _tiered(world)
        expected = await world.read_all(0, end)
        world.reader._manifest_of = lambda _: view
        assert view.tiered_end == 0
        assert await world.read_all(0, end) == expected
        assert view.tiered_end == world.manifest.tiered_end
        world.store.faults = [Fault(FaultKind.UNAVAILABLE, "list_objects")]
        await asyncio.sleep(footers.RECHECK_S + 1)
        with pytest.raises(StorageUnavailable):
            await world.read_remote(end)
        world.store.faults = []
        await asyncio.sleep(footers.FOOTER_ERROR_S + 1)
        with pytest.raises(RequestRejected):
            await world.read_remote(end)

    run_world(tmp_path, scenario)
