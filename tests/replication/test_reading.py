"""One reader over both tiers: what is at hand, what is lacking, and searches while the starts of the log move."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from app.core.errors import CorruptionError, StorageUnavailable
from app.core.units import LeaderEpoch, Offset, TimestampMs
from app.hot.checkpoints import EpochStart
from app.hot.descriptors import DescriptorCache, FileHandle
from app.hot.log import PartitionLog
from app.hot.reads import PageMiss
from app.replication.reading import RANGES_MAX, SEARCHES_MAX, Awaited, PartitionReads
from app.tiering.read.chunk_reads import RemoteRange
from app.tiering.read.reader import RemoteRead
from tests.handlers.fakes import FakeRemote
from tests.hot.helpers import NOW, InlinePool, batch, manager_over, new_log, read_all, sim
from tests.support.simfs import SimFileSystem

MIB = 1 << 20


class Tiered:
    """A log of segments of one batch of ten records each; those below ``tiered_end`` are in the store only."""

    def __init__(self, segments: int = 6, tiered: int = 3) -> None:
        self.fs = sim()
        self.log: PartitionLog = new_log(manager_over(self.fs), index_interval_bytes=1)
        for number in range(segments):
            if number:
                self.log.roll()
            self.log.append_as_leader(batch(10, value=b"%d" % number * 100), now_ms=NOW)
        self.bytes_of_segment = self.log.segments()[0].size_bytes
        self.tiered_end = tiered * 10
        self.remote = FakeRemote()
        self.reads = PartitionReads(self.remote, InlinePool())  # type: ignore[arg-type]

    async def move_away(self) -> bytes:
        """Have the tiered segments leave the disk. Returns: all bytes of the log."""
        whole = await read_all(self.log)
        size = self.bytes_of_segment
        for number in range(self.tiered_end // 10):
            self.remote.arrive(number * 10, whole[number * size : (number + 1) * size], number * 10 + 10)
        self.log.delete_local_before(self.tiered_end)
        assert self.log.local_log_start_offset == self.tiered_end
        return whole

    def read(self, offset: int, max_bytes: int = MIB, **options: Any) -> Any:
        options = {"end_offset": self.log.high_watermark, "committed": False, **options}
        return self.reads.read(self.log, offset, max_bytes, **options)


async def test_a_read_goes_on_from_the_store_into_the_local_log_in_order_and_without_gaps() -> None:
    world = Tiered()
    whole = await world.move_away()
    read = world.read(0, enough_bytes=MIB)
    assert (len(read.ranges), read.length, read.end_offset, read.is_local) == (6, len(whole), 60, False)
    assert (read.lacks, read.is_cut) == (None, False)
    assert await world.reads.take(read) == whole
    assert read.ranges == []
    assert world.remote.asked == [0, 10, 20]


async def test_limits_end_a_read_at_a_batch_and_the_first_batch_comes_whatever_its_size() -> None:
    world = Tiered()
    whole = await world.move_away()
    size = world.bytes_of_segment
    for max_bytes, segments in ((1, 1), (size, 1), (size * 2 - 1, 1), (size * 2, 2)):
        read = world.read(30, max_bytes)
        assert (read.length, read.end_offset) == (segments * size, 30 + segments * 10)
        assert await world.reads.take(read) == whole[3 * size :][: read.length]
    none = world.read(30, size - 1, min_one_batch=False)
    assert (none.length, none.ranges, none.end_offset, none.lacks) == (0, [], 30, None)
    below = world.read(30, end_offset=50)
    assert below.end_offset == 50
    below.release()


async def test_the_next_read_begins_behind_what_compaction_has_left_empty() -> None:
    world = Tiered()
    await world.move_away()
    first = world.remote.answers[0]
    world.remote.answers[0] = first._replace(end_offset=Offset(20))
    read = world.read(0)
    assert (len(read.ranges), read.end_offset) == (1, 20)
    read.release()


async def test_who_has_enough_does_not_ask_the_store_for_more() -> None:
    world = Tiered()
    await world.move_away()
    read = world.read(0, enough_bytes=world.bytes_of_segment + 1)
    assert (world.remote.asked, read.end_offset, read.lacks) == ([0, 10], 20, None)
    read.release()


async def test_what_is_not_in_the_store_yet_is_named_and_wakes_once() -> None:
    world = Tiered()
    await world.move_away()
    del world.remote.answers[10]
    first = world.read(0, enough_bytes=MIB)
    assert first.end_offset == 10, "what was at hand before it is not held back"
    assert isinstance(first.lacks, Awaited)
    assert first.lacks.of_store
    first.release()
    nothing = world.read(10)
    assert (nothing.ranges, nothing.length, nothing.end_offset) == ([], 0, 10)
    woken: list[int] = []
    assert isinstance(nothing.lacks, Awaited)
    nothing.lacks.add(lambda: woken.append(1))
    cancelled = nothing.lacks.add(lambda: woken.append(2))
    cancelled()
    world.remote.waiters.wake()
    world.remote.waiters.wake()
    assert woken == [1]


async def test_a_reader_whose_turn_it_is_not_reads_the_disk_and_not_the_store() -> None:
    world = Tiered()
    await world.move_away()
    added: list[Callable[[], None]] = []

    def wait(wake: Callable[[], None]) -> Callable[[], None]:
        added.append(wake)
        return added.clear

    turn = Awaited(wait, False)
    read = world.read(20, turn=lambda: turn)
    assert (read.lacks, read.length, world.remote.asked) == (turn, 0, [])
    local = world.read(30, turn=lambda: turn)
    assert (local.lacks, local.end_offset, local.is_local) == (None, 60, True)
    local.release()


async def test_bytes_that_are_not_in_memory_are_named_or_read_in_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Tiered()
    whole = await world.move_away()
    plan, missing = world.log.plan_read, [40]

    def sometimes(log: PartitionLog, offset: int, max_bytes: int, **options: Any) -> Any:
        if offset in missing:
            raise PageMiss(world.log._segments[0], missing.clear, lambda found: None)
        return plan(offset, max_bytes, **options)

    monkeypatch.setattr(PartitionLog, "plan_read", sometimes)
    read = world.read(30)
    assert (read.end_offset, type(read.lacks)) == (40, PageMiss), "what was at hand before it is not held back"
    assert read.lacks.__traceback__ is None
    read.release()
    assert world.read(40).ranges == []
    ready = await world.reads.read_when_ready(world.log, 40, MIB, end_offset=60, committed=False)
    assert await world.reads.take(ready) == whole[4 * world.bytes_of_segment :]


async def test_an_error_behind_what_was_found_is_left_to_the_next_read() -> None:
    world = Tiered()
    await world.move_away()
    world.remote.answers[10] = CorruptionError("damaged")
    read = world.read(0, enough_bytes=MIB)
    assert (read.end_offset, read.is_cut, read.lacks) == (10, True, None)
    read.release()
    with pytest.raises(CorruptionError, match="damaged"):
        world.read(10)


async def test_a_read_holds_no_more_files_than_it_may() -> None:
    world = Tiered(RANGES_MAX + 2, 0)
    read = world.read(0)
    assert (len(read.ranges), read.is_cut, read.end_offset) == (RANGES_MAX, True, RANGES_MAX * 10)
    read.release()


async def test_a_read_of_more_chunks_than_there_are_descriptors_takes_what_it_can_and_lets_go_of_all() -> None:
    world = Tiered()
    await world.move_away()
    fs = SimFileSystem(random.Random(1))
    fs.make_dirs("/c")
    cache = DescriptorCache(fs, 3)
    ranges = []
    for number in range(5):
        file = fs.open(f"/c/{number}", create=True)
        file.pwrite(b"%d" % number * 4, 0)
        file.close()
        ranges.append(RemoteRange(FileHandle(cache, f"/c/{number}"), 0, 4, Offset(number), Offset(number + 1)))
    world.remote.answers[0] = RemoteRead(ranges, 20, Offset(5), [])
    for _ in range(3):
        read = world.read(0)
        assert (read.length, read.end_offset, read.is_cut) == (12, 3, True)
        assert await world.reads.take(read) == b"000011112222"
    assert all(part.handle.users == 0 for part in ranges)
    for part in ranges[:3]:
        part.handle.acquire()
    world.remote.answers[3] = RemoteRead(ranges[3:], 8, Offset(5), [])
    with pytest.raises(StorageUnavailable):
        world.read(3)
    assert all(part.handle.users == 0 for part in ranges[3:])


@pytest.mark.parametrize("greatest", [False, True], ids=["by time", "greatest time"])
async def test_a_search_begins_again_if_the_start_moved_and_gives_up_after_a_while(greatest: bool) -> None:
    world = Tiered(SEARCHES_MAX + 4, 3)
    await world.move_away()
    moves = [1]

    class Moving(FakeRemote):
        async def offset_for_timestamp(self, *asked: Any, claimed_from: int | None = None) -> Any:
            return self._found()

        async def max_timestamp_offset(self, *asked: Any) -> Any:
            return self._found()

        def _found(self) -> tuple[int, int]:
            if moves[0]:
                moves[0] -= 1
                world.log.advance_log_start(world.log.log_start_offset + 1)
            return NOW + 1, world.log.log_start_offset

    reads = PartitionReads(Moving(), InlinePool())  # type: ignore[arg-type]

    async def search() -> Any:
        if greatest:
            return await reads.max_timestamp_offset(world.log)
        return await reads.offset_for_timestamp(world.log, TimestampMs(NOW + 1))

    assert await search() == (NOW + 1, 1)
    moves[0] = SEARCHES_MAX
    with pytest.raises(StorageUnavailable, match="moves to the tier faster"):
        await search()


async def test_a_record_that_left_the_disk_is_not_taken_from_the_store_where_it_is_local_too() -> None:
    world = Tiered()
    await world.move_away()
    world.remote.by_time = (NOW, 35)
    assert await world.reads.offset_for_timestamp(world.log, TimestampMs(NOW)) == (NOW, 30)
    world.remote.by_time = (NOW, 5)
    assert await world.reads.offset_for_timestamp(world.log, TimestampMs(NOW)) == (NOW, 5)
    world.remote.latest = (NOW - 1, 5)
    assert await world.reads.max_timestamp_offset(world.log) == (NOW, 30)


async def test_an_epoch_that_only_the_store_knows_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Tiered()
    asked: list[int] = []

    def end_of(topic_id: object, partition: int, epoch: int) -> tuple[int, int] | None:
        asked.append(epoch)
        return (epoch, 17) if epoch == 3 else None

    monkeypatch.setattr(world.remote, "epoch_end_offset", end_of)
    assert world.reads.epoch_end(world.log, LeaderEpoch(0)) == (0, 60)
    monkeypatch.setattr(PartitionLog, "epoch_end_offset", lambda log, epoch: (-1, -1))
    assert world.reads.epoch_end(world.log, LeaderEpoch(3)) == (-1, -1)
    assert asked == [], "all of the log is on this disk"
    await world.move_away()
    assert world.reads.epoch_end(world.log, LeaderEpoch(3)) == (3, 17)
    assert world.reads.epoch_end(world.log, LeaderEpoch(4)) == (-1, -1)
    assert asked == [3, 4]


async def test_the_manifest_answers_for_epochs_below_those_of_the_local_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Tiered()
    monkeypatch.setattr(world.remote, "epoch_end_offset", lambda *at: (LeaderEpoch(3), Offset(17)))
    await world.move_away()
    world.log.restore_lineage(
        [EpochStart(LeaderEpoch(0), Offset(0)), EpochStart(LeaderEpoch(5), Offset(world.tiered_end))]
    )
    assert world.reads.epoch_end(world.log, LeaderEpoch(3)) == (0, world.tiered_end), (
        "the log knows its epochs from its start on"
    )
    world.log.restore_lineage([EpochStart(LeaderEpoch(5), Offset(world.tiered_end))])
    assert world.reads.epoch_end(world.log, LeaderEpoch(3)) == (3, 17)
