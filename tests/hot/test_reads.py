"""Reading by offset and by time, against slow plain references."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import CorruptionError, ErrorCode, RequestRejected, StorageUnavailable
from app.core.units import Offset
from app.hot.log import PartitionLog
from app.hot.reads import PageMiss
from app.records.batch import BatchHeader
from app.records.record import iter_records
from tests.hot.helpers import NOW, GatedPool, batch, headers, manager_over, new_log, read_all, sim
from tests.support.simfs import SimFileSystem


def filled(
    rng: random.Random, batches: int, *, fs: SimFileSystem | None = None, **settings: object
) -> tuple[PartitionLog, list[BatchHeader]]:
    log = new_log(
        manager_over(fs if fs is not None else sim()),
        **{"segment_bytes": 4000, "index_interval_bytes": 300, **settings},
    )
    for _ in range(batches):
        records = batch(
            rng.randint(1, 5), timestamp=NOW + rng.randint(-500, 500), value=b"x" * rng.choice((10, 90, 700))
        )
        log.append_as_leader(records, now_ms=NOW)
    stored = []
    for segment in log.segments():
        file = log._directory.fs.open(segment.path)
        stored += headers(file.pread(file.size(), 0))
    return log, stored


def expected_range(
    log: PartitionLog, stored: list[BatchHeader], offset: int, max_bytes: int, end_offset: int, min_one: bool
) -> tuple[int, int]:
    """(end offset, bytes) of a read, worked out batch by batch."""
    end, size = offset, 0
    segment_end = next(segment.end_offset for segment in log.segments() if offset < segment.end_offset)
    for header in stored:
        if header.end_offset <= offset or header.base_offset >= segment_end or header.end_offset > end_offset:
            continue
        if size + header.size_bytes > max_bytes and not (size == 0 and min_one):
            break
        size += header.size_bytes
        end = header.end_offset
        if size > max_bytes:
            break
    return end, size


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_a_read_is_the_whole_batches_that_fit(seed: int, data: st.DataObject) -> None:
    log, stored = filled(random.Random(seed), 30)
    for _ in range(20):
        offset = data.draw(st.integers(0, log.log_end_offset - 1))
        end_offset = data.draw(st.integers(offset, log.log_end_offset))
        max_bytes = data.draw(st.sampled_from([0, 1, 100, 500, 2000, 10_000]))
        min_one = data.draw(st.booleans())
        read = log.read(offset, max_bytes, end_offset=end_offset, min_one_batch=min_one)
        if end_offset == offset:
            assert read.length == 0
            continue
        end, size = expected_range(log, stored, offset, max_bytes, end_offset, min_one)
        assert read.length == size
        assert not size or read.end_offset == end
        if 0 < size <= max_bytes:
            segment_end = next(segment.end_offset for segment in log.segments() if offset < segment.end_offset)
            assert read.is_full == any(
                end <= h.base_offset < segment_end and h.end_offset <= end_offset for h in stored
            )
        content = read.try_read_now()
        assert content is not None
        found = headers(bytes(content))
        assert sum(header.size_bytes for header in found) == read.length
        if found:
            assert found[0].base_offset <= offset < found[0].end_offset
            assert found[0].base_offset == read.start_offset
            assert found[-1].end_offset == read.end_offset <= end_offset


@pytest.mark.parametrize("can_tell_misses", [True, False])
async def test_cold_pages_are_read_in_the_pool(can_tell_misses: bool) -> None:
    fs = sim()
    log, stored = filled(random.Random(3), 60, fs=fs)
    await log.flush()
    warm = await read_all(log, max_bytes=1500)
    fs.can_tell_misses, fs.cold_rate = can_tell_misses, 0.7
    for segment in log._segments[:-1]:
        log._directory.indexes.forget(segment)
        segment.index = None
    log._reader._cursors.clear()
    assert await read_all(log, max_bytes=1500) == warm
    assert sum(header.size_bytes for header in stored) == len(warm)
    fs.can_tell_misses, fs.cold_rate = True, 1.0
    log._reader._cursors.clear()
    log._reader._window = None
    with pytest.raises(PageMiss):
        log.plan_read(5, 700, end_offset=log.high_watermark)
    assert log.read(5, 700, end_offset=log.high_watermark).try_read_now() is None


async def test_what_was_missed_of_a_segment_that_has_left_the_log_is_not_missed_any_more() -> None:
    fs = sim()
    log, _ = filled(random.Random(3), 60, fs=fs)
    await log.flush()
    gone, other = log._segments[:2]
    for segment in (gone, other):
        log._directory.indexes.forget(segment)
        segment.index = None
    log._reader._cursors.clear()
    with pytest.raises(PageMiss) as missed:
        log._reader.index_of(gone)
    # As a compaction does, whose segment takes the name: what is read by it then fits no more.
    log._files.discard(gone)
    await missed.value.fetch(log._directory.pool)
    assert gone.index is None
    with pytest.raises(CorruptionError, match="has left the log"):
        log._reader.index_of(gone)
    with pytest.raises(PageMiss) as missed:
        log._reader.index_of(other)
    fs.rename(other.handle.path, other.handle.path + ".elsewhere")
    fs.unlink(other.path(".index"))
    with pytest.raises(StorageUnavailable, match="Cannot read"):
        await missed.value.fetch(log._directory.pool)


async def test_a_log_without_a_batch_below_its_end_is_damaged() -> None:
    log = new_log(manager_over(sim()))
    for _ in range(3):
        log.append_as_leader(batch(), now_ms=NOW)
    log.roll()
    first = log._segments[0]
    first.size_bytes, first.end_offset = len(batch()), Offset(1)  # as after a compaction that lost what it did not sync
    log._reader._cursors.clear()
    with pytest.raises(CorruptionError, match="no record batch from 1 on"):
        log.read(1, 1000, end_offset=log.log_end_offset)


async def test_reads_below_the_log_start_and_below_the_local_start_differ() -> None:
    log, _ = filled(random.Random(4), 40)
    second = log.segments()[1].base_offset
    log.delete_local_before(second)
    assert (log.log_start_offset, log.local_log_start_offset) == (0, second)
    with pytest.raises(RequestRejected) as moved:
        log.read(second - 1, 1000, end_offset=log.high_watermark)
    assert moved.value.code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    log.advance_log_start(second + 1)
    for offset in (0, second):
        with pytest.raises(RequestRejected) as caught:
            log.read(offset, 1000, end_offset=log.high_watermark)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(second + 1, 1000, end_offset=log.high_watermark).length > 0


async def test_a_reader_finishes_while_its_segment_is_deleted() -> None:
    fs = sim()
    log, _ = filled(random.Random(5), 40, fs=fs)
    first, second = log.segments()[:2]
    content = fs.open(first.path).pread(first.size_bytes, 0)
    pool = GatedPool()
    read = log.read(0, 10_000, end_offset=log.high_watermark)
    late = log.read(second.base_offset, 10_000, end_offset=log.high_watermark)
    read._pool = pool
    reading = asyncio.create_task(read.read_bytes())
    while not pool.waiting:
        await asyncio.sleep(0)
    log.delete_local_before(second.end_offset)
    open_files = fs.open_files
    pool.gate.set()
    assert await reading == content
    await asyncio.sleep(0)
    assert fs.open_files == open_files - 1
    with pytest.raises(StorageUnavailable):
        await late.read_bytes()
    with pytest.raises(StorageUnavailable):
        late.try_read_now()


async def test_a_held_segment_stays_until_it_is_released() -> None:
    fs = sim()
    log, _ = filled(random.Random(6), 60, fs=fs)
    second = log.segments()[1]
    hold = log.hold(second)
    assert [segment.base_offset for segment in log.delete_local_before(log.log_end_offset)] == [0]
    assert fs.exists(second.path)
    hold.release()
    hold.release()
    assert second.base_offset in [segment.base_offset for segment in log.delete_local_before(log.log_end_offset)]
    assert not fs.exists(second.path)


@pytest.mark.parametrize("damage", ["position", "offset", "shifted", "cut", "gone"])
async def test_a_damaged_index_is_rebuilt_from_the_log(damage: str) -> None:
    fs = sim()
    manager = manager_over(fs)
    log, _ = filled(random.Random(7), 60, fs=fs)
    whole = await read_all(log)
    await log.flush()
    segment = log._segments[0]
    path = segment.path(".index")
    log._directory.indexes.forget(segment)
    segment.index = None
    size = fs.file_size(path)
    match damage:
        case "position":
            fs.flip_bit(path, size - 1)
        case "offset":
            fs.flip_bit(path, size - 5)
        case "shifted":
            entries = fs.open(path).pread(size, 0)
            for at in range(0, size, 8):
                fs.open(path).pwrite((int.from_bytes(entries[at : at + 4], "big") - 1).to_bytes(4, "big"), at)
        case "cut":
            fs.open(path).truncate(size - 3)
        case _:
            fs.unlink(path)
    for offset in range(segment.end_offset):
        log._reader._cursors.clear()
        read = log.read(offset, 500, end_offset=log.high_watermark)
        assert read.start_offset <= offset < read.end_offset
    assert await read_all(log) == whole
    assert manager.offline_reason is None


async def test_a_log_shorter_than_it_was_is_corruption_not_silence() -> None:
    fs = sim()
    log, _ = filled(random.Random(8), 10, fs=fs, segment_bytes=100_000)
    read = log.read(0, 100_000, end_offset=log.high_watermark)
    fs.open(log.segments()[0].path).truncate(100)
    with pytest.raises(CorruptionError):
        await read.read_bytes()


# --- by time --------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40))
async def test_time_lookup_is_exact_to_the_record(seed: int, batches: int) -> None:
    rng = random.Random(seed)
    log = new_log(manager_over(sim()), segment_bytes=3000, index_interval_bytes=200)
    for _ in range(batches):
        step = rng.choice((-7, 0, 3, 50))
        log.append_as_leader(
            batch(rng.randint(1, 6), timestamp=NOW + rng.randint(-300, 300), step_ms=step, codec=rng.choice((0, 4))),
            now_ms=NOW,
        )
    start = rng.randint(0, log.log_end_offset)
    log.advance_log_start(start)
    content = await read_all(log, log.local_log_start_offset) if start < log.log_end_offset else b""
    records = [
        (record.timestamp, record.offset)
        for header, position in _positions(content)
        for record in iter_records(content[position : position + header.size_bytes])
        if record.offset >= start
    ]
    for target in [*range(NOW - 400, NOW + 700, 37), -1, 0, *(timestamp for timestamp, _ in records[:10])]:
        expected = next((record for record in records if record[0] >= target), None)
        assert await log.offset_for_timestamp(target) == expected
    found = await log.max_timestamp_offset()
    if records and start == 0:
        greatest = max(timestamp for timestamp, _ in records)
        assert found == next(record for record in records if record[0] == greatest)


def _positions(content: bytes) -> list[tuple[BatchHeader, int]]:
    found, position = [], 0
    for header in headers(content):
        found.append((header, position))
        position += header.size_bytes
    return found


async def test_a_segment_deleted_during_a_time_lookup_is_passed_over() -> None:
    fs = sim()
    log, _ = filled(random.Random(9), 40, fs=fs)
    await log.flush()
    second = log.segments()[1]
    pool = GatedPool()
    log._directory.pool = pool
    lookup = asyncio.create_task(log.offset_for_timestamp(0))
    while not pool.waiting:
        await asyncio.sleep(0)
    log.delete_local_before(second.base_offset)
    pool.gate.set()
    found = await lookup
    assert found is not None
    assert found[1] >= second.base_offset
