"""Compaction of a log with other replicas (ADR 0025, CF): each cleans its own, and a follower copies what its leader left."""

from __future__ import annotations

import random

import pytest

from app.core.units import LeaderEpoch
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from tests.hot.cleaning import cleaner_over, committed, keyed, newest, offsets_in, opened, records_of, roll, seen_in
from tests.hot.helpers import NOW, ManualClock, headers, read_all, running, sim
from tests.support.simfs import SimFileSystem


class Replica:
    """A log on a disk of its own, with its cleaner."""

    def __init__(self, manager: LogManager, log: PartitionLog, fs: SimFileSystem, clock: ManualClock) -> None:
        self.manager, self.log = manager, log
        self.cleaner = cleaner_over(manager, fs, clock=clock)
        log.commit_alone(False)

    async def clean(self) -> bool:
        return await self.cleaner.clean_next()


async def leader() -> Replica:
    fs, clock = sim(1), ManualClock()
    return Replica(*await opened(fs, clock), fs, clock)


async def follower() -> Replica:
    fs, clock = sim(2), ManualClock()
    replica = Replica(*await opened(fs, clock), fs, clock)
    replica.log.resign()
    return replica


def append(log: PartitionLog, *rows: tuple[bytes, bytes | None]) -> None:
    log.append_as_leader(keyed(*rows), now_ms=NOW)


async def copy(source: PartitionLog, target: PartitionLog, *, end: int | None = None) -> None:
    """What a follower does: it asks at the end of its log until it has all, or what is below ``end``."""
    end = source.log_end_offset if end is None else end
    while target.log_end_offset < end:
        asked = target.log_end_offset
        read = await source.read_when_ready(asked, 3000, end_offset=end)
        target.append_as_follower(memoryview(bytearray(await read.read_bytes())), now_ms=NOW)
        assert target.log_end_offset > asked, f"there is nothing to read at {asked}"
        target.commit(min(source.high_watermark, target.log_end_offset))


async def all_offsets(log: PartitionLog) -> list[int]:
    """Those above the high watermark, too."""
    found: list[int] = []
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        read = await log.read_when_ready(offset, 1 << 20, end_offset=log.log_end_offset)
        found += [one.record.offset for one in records_of(bytes(await read.read_bytes()))]
        offset = read.end_offset
    return found


async def test_cf1_a_follower_cleans_nothing_for_a_record_above_the_high_watermark_that_it_knows() -> None:
    one, other = await leader(), await follower()
    async with running(one.manager), running(other.manager):
        for number in range(60):
            append(one.log, (b"k%d" % (number % 3), b"%d" % number * 20))
        one.log.commit(20)
        await copy(one.log, other.log)
        await roll(other.log)
        assert other.log.high_watermark == 20
        await other.clean()
        left = await all_offsets(other.log)
        assert {17, 18, 19} <= set(left)  # the newest committed ones
        assert set(range(20, 60)) <= set(left)
        assert other.log.cleaned_end_offset is None or other.log.cleaned_end_offset <= 20
        # The rest is cut away, as another leader never had it: nothing is missing.
        other.log.truncate_to(20)
        assert newest(await committed(other.log, await seen_in(other.log))) == {
            b"k%d" % (number % 3): b"%d" % number * 20 for number in (18, 19, 17)
        }


async def test_cf1_a_leader_cleans_nothing_that_its_followers_may_not_have() -> None:
    one = await leader()
    async with running(one.manager):
        for number in range(60):
            append(one.log, (b"k", b"%d" % number * 20))
        one.log.commit(20)
        await roll(one.log)
        await one.clean()
        assert set(range(19, 60)) <= set(await all_offsets(one.log))


@pytest.mark.parametrize("before", [0, 37, 120])
async def test_cf2_a_follower_copies_a_compacted_log_with_its_offsets(before: int) -> None:
    """``before``: what it had when the leader compacted."""
    rng = random.Random(before)
    one, other = await leader(), await follower()
    async with running(one.manager), running(other.manager):
        for number in range(150):
            if number in (50, 100):
                one.log.become_leader(LeaderEpoch(number))
            append(one.log, (b"k%d" % rng.randrange(5), rng.choice([None, b"%d" % number * 10])))
        one.log.commit(one.log.log_end_offset)
        await copy(one.log, other.log, end=before)
        await roll(one.log)
        assert await one.clean()
        kept = await offsets_in(one.log)
        assert len(kept) < 100  # there are gaps
        table = newest(await committed(one.log, await seen_in(one.log)))
        await copy(one.log, other.log)
        assert other.log.log_end_offset == one.log.log_end_offset == 150
        assert other.log.high_watermark == 150
        mine = await offsets_in(other.log)
        assert [offset for offset in mine if offset >= before] == [offset for offset in kept if offset >= before]
        last = other.log.leader_epochs()[-1]
        assert last.epoch == 100
        assert 100 <= last.start_offset <= min(offset for offset in mine if offset >= 100)
        ends = {header.base_offset: header.end_offset for header in headers(await read_all(one.log))}
        for header in headers(await read_all(other.log)):
            if header.base_offset >= before:
                assert ends[header.base_offset] == header.end_offset
        assert newest(await committed(other.log, await seen_in(other.log))) == table
        # It cleans by itself, and becomes the leader.
        await roll(other.log)
        await other.clean()
        other.log.become_leader(LeaderEpoch(200))
        assert newest(await committed(other.log, await seen_in(other.log))) == table
        append(other.log, (b"k0", b"new"))
        assert (await all_offsets(other.log))[-1] == 150


async def test_cf2_a_follower_reaches_the_end_although_all_records_before_it_were_removed() -> None:
    one, other = await leader(), await follower()
    async with running(one.manager), running(other.manager):
        for number in range(40):
            append(one.log, (b"k", None if number % 2 else b"%d" % number * 20))
        one.log.commit(40)
        await copy(one.log, other.log, end=10)
        await roll(one.log)
        while await one.clean():
            pass
        await copy(one.log, other.log)
        assert other.log.log_end_offset == 40
