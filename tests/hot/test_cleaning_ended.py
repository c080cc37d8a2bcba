"""A compaction or a copy never keeps a log from being cut: the log ends the work, whatever step it is at."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from app.configs import Durability, TopicConfig
from app.core.errors import ConflictError, CorruptionError
from app.core.units import LeaderEpoch
from app.hot.cleaning.job import CleaningJob, Indexed
from app.hot.cleaning.plain import PlainEngine
from app.hot.cleaning.work import InlineCleanerWork
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.hot.segment_holds import LogCleaning
from app.records.record import Record
from tests.hot.cleaning import COMPACT, PATH, cleaner_over, keyed, opened, records_of, roll
from tests.hot.helpers import NOW, InlinePool, ManualClock, manager_over, new_log, running, sim
from tests.support.simfs import SimFileSystem

T = TypeVar("T")

SETTINGS = {"segment_bytes": 600, "firn_durability": Durability.DISK}


class StepPool(InlinePool):
    """Does ``steps`` pieces of work, then stands still until ``gate`` is set: before the next piece, or when it is done."""

    def __init__(self, steps: int, *, done_first: bool) -> None:
        self.left, self._done_first = steps, done_first
        self.gate = asyncio.Event()

    @property
    def stands_still(self) -> bool:
        return self.left < 0 and not self.gate.is_set()

    async def run(self, work: Callable[[], T]) -> T:
        self.left -= 1
        if not self.stands_still:
            return work()
        if self._done_first:
            done = work()
            await self.gate.wait()
            return done
        await self.gate.wait()
        return work()


class Waiting(InlineCleanerWork):
    """A process that does not answer: not when it is started, or not when it gets a job."""

    def __init__(self, fs: SimFileSystem, *, answers: bool) -> None:
        super().__init__(fs, InlinePool(), PlainEngine)
        self.answers = answers
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()

    async def ready(self) -> None:
        if not self.answers:
            self.asked.set()
            await self.gate.wait()

    async def begin(self, job: CleaningJob) -> Indexed:
        self.asked.set()
        await self.gate.wait()
        return await super().begin(job)


async def filled(fs: SimFileSystem, clock: ManualClock) -> tuple[LogManager, PartitionLog]:
    """A follower's log. One third was compacted before, so that its segments are small and will be merged. The next is dirty. The
    last is not committed. All of it is stored."""
    rng = random.Random(7)
    manager, log = await opened(fs, clock, **SETTINGS)
    async with running(manager):
        for number in range(90):
            if number == 30:
                await roll(log)
                assert await cleaner_over(manager, fs, clock=clock).clean_next()
            if number == 60:
                await roll(log)
                log.commit_alone(False)
            rows = [(b"k%d" % rng.randrange(6), rng.choice([None, b"v%d" % number, b"w" * 40])) for _ in range(2)]
            log.append_as_leader(keyed(*rows), now_ms=NOW)
        await roll(log)
    assert log.high_watermark == 120
    log.resign()
    return manager, log


async def all_of(log: PartitionLog) -> list[Record]:
    found: list[Record] = []
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        read = await log.read_when_ready(offset, 1 << 20, end_offset=log.log_end_offset)
        found += [one.record for one in records_of(bytes(await read.read_bytes()))]
        offset = read.end_offset
    return found


def leftovers(fs: SimFileSystem) -> list[str]:
    return [name for name in fs.list_dir(PATH) if name.endswith((".cleaned", ".swap"))]


async def cut_at(steps: int, *, done_first: bool, committed: bool, how: str) -> bool:
    """Cut a log when its compaction has done so many steps. False if the compaction was over by then."""
    fs, clock, said = sim(3), ManualClock(), list[str]()
    manager, log = await filled(fs, clock)
    high_watermark, end = log.high_watermark, log.log_end_offset
    newest = {record.key: record.offset for record in await all_of(log) if record.offset < high_watermark}
    middle = log.segments()[len(log.segments()) // 2].base_offset
    assert 60 < middle < high_watermark
    offset = middle + 1 if committed else high_watermark + 1
    pool = StepPool(steps, done_first=done_first)
    cleaner = cleaner_over(
        manager, fs, clock=clock, pool=pool, work=InlineCleanerWork(fs, pool, PlainEngine), said=said.append
    )
    cleaning = asyncio.create_task(cleaner.clean_next())
    while not (pool.stands_still or cleaning.done()):
        await asyncio.sleep(0)
    if cleaning.done():
        assert await cleaning
        assert log.cleaned_end_offset == high_watermark
        return False
    try:
        assert log.truncate_to(offset, given_up=committed)
    except ConflictError:
        assert log.busy, "only a swap is waited for"
        pool.gate.set()
        while log.busy:
            await asyncio.sleep(0)
        assert not leftovers(fs)
        assert log.truncate_to(offset, given_up=committed)
    left = await all_of(log)
    ends = [segment.base_offset for segment in log.segments()]
    assert log.log_end_offset <= offset < end
    assert not log.held
    pool.gate.set()
    assert await cleaning
    assert not said
    # The compaction changes nothing after the cut, not even what it knows to be clean.
    assert await all_of(log) == left
    assert log.cleaned_end_offset is None or log.cleaned_end_offset <= log.log_end_offset
    assert not leftovers(fs)
    assert log.offline_error is None
    assert [segment.base_offset for segment in log.segments()] == ends
    if not committed:
        assert {record.key: record.offset for record in left if record.offset < high_watermark} == newest
    if how == "reopened":
        (fs.crash if steps % 2 else fs.kill)()
        manager = manager_over(fs, clock=clock)
        await manager.load_all()
        found = manager.get("t", 0)
        assert found is not None
        log = found
        assert await all_of(log) == left
    # It is compacted as any other log after that, and has no record that was cut away.
    log.update_config(TopicConfig(**{**COMPACT, **SETTINGS}))  # type: ignore[arg-type]
    log.become_leader(LeaderEpoch(9))
    log.commit_alone(True)
    async with running(manager):
        end_after_cut = log.append_as_leader(keyed((b"k0", b"after")), now_ms=NOW).base_offset
        await roll(log)
        while await cleaner_over(manager, fs, clock=clock, said=said.append).clean_next():
            pass
        assert not said
        expected = {record.key: record.offset for record in left} | {b"k0": end_after_cut}
        assert {record.key: record.offset for record in await all_of(log)} == expected
        assert all(record.offset < offset for record in await all_of(log) if record.value != b"after")
    await manager.close()
    return True


@pytest.mark.parametrize("how", ["open", pytest.param("reopened", marks=pytest.mark.ci)])
@pytest.mark.parametrize("committed", [False, True], ids=["above the high watermark", "of committed records"])
@pytest.mark.parametrize("done_first", [False, True], ids=["before the step", "after the step"])
async def test_a_cut_at_any_step_of_a_compaction_is_done_at_once_and_nothing_comes_back(
    done_first: bool, committed: bool, how: str
) -> None:
    for steps in itertools.count():
        if not await cut_at(steps, done_first=done_first, committed=committed, how=how):
            break
    assert steps > 8, "there was hardly anything to do"


@pytest.mark.parametrize("answers", [False, True], ids=["that has not started", "that has a job"])
async def test_a_cut_does_not_wait_for_a_process_that_does_not_answer(answers: bool) -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await filled(fs, clock)
    work = Waiting(fs, answers=answers)
    cleaning = asyncio.create_task(cleaner_over(manager, fs, clock=clock, work=work).clean_next())
    await work.asked.wait()
    assert log.held == answers
    assert log.truncate_to(log.high_watermark)
    assert not log.held
    work.gate.set()
    assert await cleaning
    assert not leftovers(fs)
    await manager.close()


async def test_nothing_is_held_before_the_process_answers() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await filled(fs, clock)
    log.commit(log.log_end_offset)
    work = Waiting(fs, answers=False)
    cleaning = asyncio.create_task(cleaner_over(manager, fs, clock=clock, work=work).clean_next())
    await work.asked.wait()
    third = log.segments()[2].base_offset
    assert log.delete_local_before(third)
    assert log.local_log_start_offset == third
    work.answers = True
    work.gate.set()
    assert await cleaning
    assert log.local_log_start_offset == third
    await manager.close()


@pytest.mark.parametrize("answers", [False, True], ids=["that has not started", "that has a job"])
async def test_a_topic_that_is_no_longer_compacted_frees_its_files_at_once(answers: bool) -> None:
    fs, clock, said = sim(), ManualClock(), list[str]()
    manager, log = await filled(fs, clock)
    log.commit(log.log_end_offset)
    work = Waiting(fs, answers=answers)
    cleaning = asyncio.create_task(cleaner_over(manager, fs, clock=clock, work=work, said=said.append).clean_next())
    await work.asked.wait()
    log.update_config(TopicConfig(**{**COMPACT, **SETTINGS, "cleanup_policy": frozenset({"delete"})}))  # type: ignore[arg-type]
    log.advance_log_start(log.high_watermark)
    assert [segment.base_offset for segment in log.segments()] == [log.high_watermark]
    work.gate.set()
    assert await cleaning
    assert not said
    assert log.log_start_offset == log.high_watermark
    await manager.close()


async def test_other_settings_of_a_topic_do_not_end_its_compaction() -> None:
    fs, clock = sim(), ManualClock()
    manager, log = await filled(fs, clock)
    work = Waiting(fs, answers=True)
    cleaning = asyncio.create_task(cleaner_over(manager, fs, clock=clock, work=work).clean_next())
    await work.asked.wait()
    log.update_config(TopicConfig(**{**COMPACT, **SETTINGS, "delete_retention_ms": 5}))  # type: ignore[arg-type]
    assert log.held
    work.gate.set()
    assert await cleaning
    assert log.cleaned_end_offset == log.high_watermark
    await manager.close()


async def test_a_log_that_was_cut_under_a_compaction_is_not_taken_for_damaged() -> None:
    """What its process finds in a file that was cut meanwhile is nothing to tell of."""
    fs, clock, said = sim(), ManualClock(), list[str]()

    class FindsDamage(Waiting):
        async def begin(self, job: CleaningJob) -> Indexed:
            self.asked.set()
            await self.gate.wait()
            raise CorruptionError("a segment ends too early")

    manager, log = await filled(fs, clock)
    work = FindsDamage(fs, answers=True)
    cleaner = cleaner_over(manager, fs, clock=clock, work=work, said=said.append)
    cleaning = asyncio.create_task(cleaner.clean_next())
    await work.asked.wait()
    log.truncate_to(log.high_watermark)
    work.gate.set()
    assert await cleaning
    assert not said
    log.become_leader(LeaderEpoch(9))
    log.commit_alone(True)
    async with running(manager):
        log.append_as_leader(keyed((b"k0", b"more")), now_ms=NOW)
        await roll(log)
        assert await cleaner_over(manager, fs, clock=clock, said=said.append).clean_next()
    assert log.cleaned_end_offset == log.log_end_offset
    await manager.close()


async def test_a_cut_ends_the_copies_above_it_and_those_below_go_on() -> None:
    fs = sim()
    manager = manager_over(fs)
    log = new_log(manager, segment_bytes=300)
    log.commit_alone(False)
    for number in range(12):
        log.append_as_leader(keyed((b"k%d" % number, b"v" * 40)), now_ms=NOW)
    log.resign()
    first, second, third = log.segments()[:3]
    ended: list[str] = []
    below = log.hold(first, lambda: ended.append("below"))
    across = log.hold(second, lambda: ended.append("across"))
    above = log.hold(third, lambda: ended.append("above"))
    assert log.truncate_to(second.base_offset + 1)
    assert sorted(ended) == ["above", "across"]
    assert (below.ended, across.ended, above.ended) == (False, True, True)
    log.commit(log.log_end_offset)
    assert not log.delete_local_before(log.log_end_offset), "the copy that goes on needs its file"
    assert fs.exists(first.path)
    below.release()
    assert not log.held
    assert log.delete_local_before(log.log_end_offset)
    log.hold(log.segments()[-1], lambda: ended.append("all"))
    log.truncate_fully_and_start_at(100)
    assert ended[-1] == "all"
    assert log.log_start_offset == 100
    await manager.close()


async def test_a_cut_to_the_end_of_a_log_ends_nothing() -> None:
    manager = manager_over(sim())
    log = new_log(manager)
    log.append_as_leader(keyed((b"k", b"v")), now_ms=NOW)
    hold = log.hold(0)
    assert not log.truncate_to(log.log_end_offset)
    assert log.held
    hold.release()
    await manager.close()


# --- planted faults -----------------------------------------------------------------------------------------------------


def cuts_wait_for_compactions(patch: pytest.MonkeyPatch) -> None:
    truncate_to = PartitionLog.truncate_to

    def waits(log: PartitionLog, offset: int, *, given_up: bool = False) -> bool:
        if log.held:
            raise ConflictError("a segment is being copied")
        return truncate_to(log, offset, given_up=given_up)

    patch.setattr(PartitionLog, "truncate_to", waits)


def compactions_go_on_after_a_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogCleaning, "end", lambda cleaning: None)


@pytest.mark.parametrize(
    ("plant", "found_by"),
    [(cuts_wait_for_compactions, "only a swap is waited for"), (compactions_go_on_after_a_cut, "held")],
)
async def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], found_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_at_each() -> None:
        for steps in range(8):
            await cut_at(steps, done_first=True, committed=True, how="open")

    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found_by):
        await cut_at_each()
