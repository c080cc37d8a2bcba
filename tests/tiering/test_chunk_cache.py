"""The chunk cache keeps its budget, its pins and its order, and reads a chunk once for all who ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import CorruptionError, FirnError, StorageUnavailable
from app.core.metrics import Registry
from app.core.tracing import CURRENT, SpanContext
from app.core.units import FilePosition, Offset, TimestampMs
from app.hot.descriptors import DescriptorCache
from app.machine.files import PosixFileSystem
from app.tiering.read import chunk_cache
from app.tiering.read.chunk_cache import ERROR_S, PIN_S, CachedChunk, ChunkCache
from app.tiering.store.segment_format import ChunkCodec, ChunkEntry
from app.tiering.store.store_work import BatchIndex, ChunkLocation, FooterBytes, UploadedSegment, UploadJob
from tests.support.virtual_loop import VirtualPool, run_virtual
from tests.tiering.segments import batch

RAW = batch(0, 1, value_bytes=39)
CHUNK_BYTES = len(RAW)


def chunk(number: int) -> ChunkEntry:
    return ChunkEntry(
        FilePosition(number * CHUNK_BYTES), CHUNK_BYTES, CHUNK_BYTES, Offset(number), 1, 1, TimestampMs(0),
        TimestampMs(0), 0, ChunkCodec.VERBATIM,
    )  # fmt: skip


class _Work:
    """Store work that takes a second a chunk and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.parents: list[SpanContext | None] = []
        """The sampled request that each read belongs to."""
        self.finished = 0
        self.error: FirnError | None = None
        self.in_place: str | None = None

    async def fetch_chunk(self, key: str, chunk: ChunkEntry, cache_path: str) -> ChunkLocation:
        self.asked.append(chunk.base_offset)
        self.parents.append(CURRENT.get())
        await asyncio.sleep(1)
        if self.error is not None:
            raise self.error
        index = BatchIndex.encode(memoryview(RAW))
        self.finished += 1
        if self.in_place is not None:
            return ChunkLocation(self.in_place, chunk.position, chunk.raw_bytes, False, index)
        Path(cache_path).write_bytes(RAW)
        return ChunkLocation(cache_path, FilePosition(0), chunk.raw_bytes, True, index)

    async def upload_segment(self, job: UploadJob) -> UploadedSegment:
        raise AssertionError

    async def upload_progress(self) -> dict[bytes, int]:
        raise AssertionError

    async def read_footer(self, key: str, place: tuple[int, int] | None) -> FooterBytes:
        raise AssertionError


class _Bench:
    def __init__(self, directory: Path, chunks: int) -> None:
        self.work = _Work()
        self.directory = directory
        fs = PosixFileSystem()
        self.cache = ChunkCache(
            self.work,
            str(directory),
            chunks * CHUNK_BYTES,
            fs=fs,
            pool=VirtualPool(lambda: 0.0),
            descriptors=DescriptorCache(fs, 100),
            registry=Registry(),
        )

    def files(self) -> int:
        return len(list(self.directory.glob("*.chunk")))

    async def get(self, number: int, *, serve: bool = True) -> CachedChunk:
        while True:
            entry = self.cache.request("o", chunk(number))
            if entry.ready:
                if serve:
                    self.cache.served(entry)
                return entry
            woken = asyncio.Event()
            entry.waiters.add(woken.set)
            await woken.wait()


def _run(directory: Path, chunks: int, scenario: Callable[[_Bench], Coroutine[Any, Any, None]]) -> None:
    async def main(_: object) -> None:
        bench = _Bench(directory / "cache", chunks)
        running = asyncio.create_task(bench.cache.run())
        await asyncio.sleep(0.01)
        try:
            await scenario(bench)
        finally:
            running.cancel()
            await asyncio.wait((running,))
            if not running.cancelled():
                running.result()

    run_virtual(main)


def test_files_of_an_earlier_run_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "1.chunk").write_bytes(b"old")

    async def scenario(bench: _Bench) -> None:
        assert bench.files() == 0

    _run(tmp_path, 1, scenario)


def test_many_who_ask_at_once_cost_one_read_and_all_are_woken(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        found = await asyncio.gather(*(bench.get(0) for _ in range(20)))
        assert bench.work.asked == [0]
        assert len(set(map(id, found))) == 1
        handle = found[0].handle
        assert handle is not None
        assert handle.acquire().pread(CHUNK_BYTES, 0) == RAW
        handle.release()

    _run(tmp_path, 4, scenario)


def test_the_longest_unused_goes_first_and_its_file_with_it(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        for number in (0, 1, 2, 0, 3):
            await bench.get(number)
        await asyncio.sleep(1)
        assert bench.files() == 3
        assert bench.cache.peek("o", chunk(1)) is None
        assert all(bench.cache.peek("o", chunk(number)) for number in (0, 2, 3))

    _run(tmp_path, 3, scenario)


def test_a_started_read_is_not_cancelled_when_its_asker_leaves(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        asker = asyncio.create_task(bench.get(0))
        await asyncio.sleep(0.5)
        asker.cancel()
        await asyncio.sleep(1)
        assert bench.work.finished == 1
        assert bench.cache.peek("o", chunk(0)) is not None

    _run(tmp_path, 1, scenario)


def test_pinned_chunks_stay_and_further_reads_queue_in_order_until_a_pin_ends(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        first = await bench.get(0, serve=False)
        await bench.get(1, serve=False)
        waiting = [asyncio.create_task(bench.get(number, serve=False)) for number in (2, 3)]
        await asyncio.sleep(0)
        assert not bench.cache.ask_ahead("o", chunk(4)), "read-ahead does not queue"
        await asyncio.sleep(PIN_S / 2)
        assert bench.work.asked == [0, 1], "pins fill the budget"
        bench.cache.served(first)
        await asyncio.sleep(2)
        assert bench.work.asked == [0, 1, 2], "the one that came first"
        await asyncio.gather(*waiting)
        assert bench.work.asked == [0, 1, 2, 3], "a pin ends by itself"

    _run(tmp_path, 2, scenario)


@pytest.mark.parametrize("served", [True, False])
def test_a_queued_read_is_no_child_of_the_sampled_request_that_came_behind_it(tmp_path: Path, served: bool) -> None:
    async def scenario(bench: _Bench) -> None:
        first = await bench.get(0, serve=False)
        await bench.get(1, serve=False)
        bench.cache.request("o", chunk(2))
        token = CURRENT.set(SpanContext(1, 1))
        if served:
            bench.cache.served(first)  # there is room at the end of this turn
        else:
            bench.cache.request("o", chunk(3))  # both wait for the end of a pin
        CURRENT.reset(token)
        await asyncio.sleep(PIN_S - 0.5)
        assert bench.work.asked[2:] == [2]
        assert bench.work.parents == [None] * 3

    _run(tmp_path, 2, scenario)


def test_a_read_that_a_sampled_request_starts_is_its_child(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        CURRENT.set(SpanContext(1, 1))
        await bench.get(0)
        assert bench.work.parents == [SpanContext(1, 1)]

    _run(tmp_path, 2, scenario)


def test_a_chunk_that_a_sequential_reader_is_in_the_middle_of_stays_for_it_but_not_for_ever(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        entry = await bench.get(0, serve=False)
        for _ in range(3):
            bench.cache.served(entry, goes_on=True)
            bench.cache.request("o", chunk(1))
            await asyncio.sleep(PIN_S * 0.9)
            assert bench.work.asked == [0]
        bench.cache.served(entry)
        await asyncio.sleep(2)
        assert bench.work.asked == [0, 1], "it has come to the end"
        bench.cache.served(await bench.get(2, serve=False), goes_on=True)
        await bench.get(3)
        assert bench.work.asked == [0, 1, 2, 3], "it has not come back"

    _run(tmp_path, 1, scenario)


def test_queued_reads_of_a_reader_that_has_left_are_not_made(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        await bench.get(0, serve=False)
        for number in (1, 2, 3):
            bench.cache.request("o", chunk(number))
        waits = asyncio.create_task(bench.get(4))
        await asyncio.sleep(PIN_S * 0.9)
        bench.cache.request("o", chunk(2))
        await waits
        assert bench.work.asked == [0, 2, 4], "one was asked for again, one is waited for"
        bench.cache.served(await bench.get(1))
        assert bench.work.asked == [0, 2, 4, 1], "it can be asked for again"

    _run(tmp_path, 1, scenario)


def test_a_failed_read_is_told_to_all_who_wait_and_tried_again_after_a_pause(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        bench.work.error = CorruptionError("o: wrong CRC of the chunk at position 0")
        for outcome in await asyncio.gather(*(bench.get(0) for _ in range(3)), return_exceptions=True):
            assert isinstance(outcome, CorruptionError)
        with pytest.raises(CorruptionError) as one:
            bench.cache.request("o", chunk(0))
        with pytest.raises(CorruptionError) as other:
            bench.cache.request("o", chunk(0))
        assert one.value is not other.value, "an error that was raised holds the frames of its caller"
        assert bench.work.asked == [0]
        assert bench.files() == 0, "what is corrupt is not kept"
        assert bench.cache.used_bytes == 0
        await asyncio.sleep(ERROR_S + 0.1)
        bench.work.error = None
        await bench.get(0)
        assert bench.work.asked == [0, 0]

    _run(tmp_path, 1, scenario)


def test_a_failed_read_ahead_leaves_no_trace(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        bench.work.error = StorageUnavailable("away")
        assert bench.cache.ask_ahead("o", chunk(0))
        await asyncio.sleep(2)
        bench.work.error = None
        await bench.get(0)

    _run(tmp_path, 1, scenario)


def test_a_chunk_larger_than_the_budget_is_served_alone(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        await bench.get(0)
        await bench.get(1)
        assert bench.files() <= 2
        assert bench.cache.used_bytes == CHUNK_BYTES

    _run(tmp_path, 0, scenario)


def test_a_chunk_that_is_served_stays_for_the_turn_though_others_wait_for_its_room(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        entry = await bench.get(0, serve=False)
        bench.cache.request("o", chunk(1))
        bench.cache.served(entry)
        handle = entry.handle
        assert handle is not None
        handle.acquire()
        await asyncio.sleep(0)
        assert bench.cache.peek("o", chunk(0)) is None, "its room is taken"
        handle.release()
        await bench.get(1)

    _run(tmp_path, 1, scenario)


def test_what_was_read_ahead_outlives_what_readers_have_done_with_but_not_for_ever(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        assert bench.cache.ask_ahead("o", chunk(9))
        await asyncio.sleep(2)
        for number in range(4):
            await bench.get(number)
            assert bench.cache.peek("o", chunk(9)) is not None
        await bench.get(4)
        assert bench.cache.peek("o", chunk(9)) is None

    _run(tmp_path, 3, scenario)


def test_reads_under_way_stay_within_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_cache, "READ_BYTES_MAX", 2 * CHUNK_BYTES)

    async def scenario(bench: _Bench) -> None:
        for number in range(5):
            bench.cache.request("o", chunk(number))
        assert bench.work.asked == []
        await asyncio.sleep(0.5)
        assert bench.work.asked == [0, 1]
        assert not bench.cache.ask_ahead("o", chunk(9))
        await asyncio.sleep(1)
        assert bench.work.asked == [0, 1, 2, 3]
        await asyncio.sleep(2)
        assert bench.work.asked == [0, 1, 2, 3, 4]
        assert bench.cache.ask_ahead("o", chunk(9)), "room again"

    _run(tmp_path, 10, scenario)


def test_chunks_served_in_place_take_no_room_and_their_file_is_never_unlinked(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        (tmp_path / "object").write_bytes(RAW * 10)
        bench.work.in_place = str(tmp_path / "object")
        found = [await bench.get(number) for number in range(5)]
        assert bench.cache.used_bytes == 0
        assert len({id(one.handle) for one in found}) == 1, "one descriptor for one object"
        bench.cache.forget_object("o")
        assert bench.cache.peek("o", chunk(0)) is None
        await asyncio.sleep(1)
        assert (tmp_path / "object").exists()

    _run(tmp_path, 1, scenario)


def test_the_file_of_an_evicted_chunk_is_written_over_by_the_read_that_takes_its_room(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        evicted = (await bench.get(0)).handle
        assert evicted is not None
        successor = (await bench.get(1)).handle
        assert successor is not None
        assert successor.path == evicted.path
        with pytest.raises(StorageUnavailable):
            evicted.acquire()
        await asyncio.sleep(1)
        assert bench.files() == 1, "it was not unlinked either"

    _run(tmp_path, 1, scenario)


def test_a_file_that_somebody_reads_is_not_written_over(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        read = (await bench.get(0)).handle
        assert read is not None
        read.acquire()
        successor = (await bench.get(1)).handle
        assert successor is not None
        assert successor.path != read.path
        read.release()

    _run(tmp_path, 1, scenario)


def test_a_spare_file_that_its_read_did_not_need_goes(tmp_path: Path) -> None:
    async def scenario(bench: _Bench) -> None:
        await bench.get(0)
        (tmp_path / "object").write_bytes(RAW * 10)
        bench.work.in_place = str(tmp_path / "object")
        await bench.get(1)
        bench.work.in_place = None
        await bench.get(2)
        bench.work.error = CorruptionError("bad")
        with pytest.raises(CorruptionError):
            await bench.get(3)
        await asyncio.sleep(1)
        assert bench.files() == 0

    _run(tmp_path, 1, scenario)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["ask", "ahead", "serve", "forget", "wait"]), st.integers(0, 6)), max_size=60),
    st.integers(1, 4),
)
def test_the_budget_and_the_files_agree_whatever_is_asked(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], capacity: int
) -> None:
    async def scenario(bench: _Bench) -> None:
        cache = bench.cache
        for step, number in steps:
            match step:
                case "ask":
                    cache.request("o", chunk(number))
                case "ahead":
                    cache.ask_ahead("o", chunk(number))
                case "serve":
                    entry = cache.peek("o", chunk(number))
                    if entry is not None:
                        cache.served(entry)
                case "forget":
                    cache.forget_object("o")
                case "wait":
                    await asyncio.sleep(number)
            assert 0 <= cache.used_bytes <= capacity * CHUNK_BYTES
        await asyncio.sleep(PIN_S * 10)
        assert cache.used_bytes == bench.files() * CHUNK_BYTES, "every file is accounted for and nothing is left over"
        asked = {number for step, number in steps if step == "ask"}
        await asyncio.gather(*(bench.get(number) for number in asked))
        assert asked <= set(bench.work.asked), "whatever is waited for is read in the end"

    _run(tmp_path_factory.mktemp("cache"), capacity, scenario)
