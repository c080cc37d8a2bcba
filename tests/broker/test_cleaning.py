"""The cleaner process for real: compiled kernels in a process of its own, which may die at any time."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.broker.start.cleaning import TICKS_PER_S, CleanerProcess, GrantedTime
from app.configs import TopicConfig
from app.core.errors import StorageUnavailable
from app.hot.cleaning.cleaner import LogCleaner
from app.hot.cleaning.job import CleaningJob, Indexed
from app.hot.cleaning.process import NICENESS, Throttle, untouched_mappings
from app.hot.cleaning.work import ProxyCleanerWork
from app.hot.log import PartitionLog
from app.machine.files import PosixFileSystem
from app.machine.runtime import ThreadPool
from tests.hot.cleaning import COMPACT, cleaner_over, committed, keyed, newest, seen_in
from tests.hot.helpers import NOW, ManualClock, manager_over, new_log, running

DEADLINE_S = 120


@pytest.fixture(scope="module", autouse=True)
def compiled_kernels() -> None:
    """Compile what a fresh checkout has not compiled yet, before any deadline begins: the process does it at a low priority, and
    beside other work that takes minutes."""
    work = "from app.hot.cleaning.compiled import CompiledEngine, warm_up; warm_up(CompiledEngine())"
    subprocess.run([sys.executable, "-c", work], check=True)


class Beside(NamedTuple):
    """A log on the real disk, the process, a cleaner that works with it, and what they say."""

    log: PartitionLog
    process: CleanerProcess
    cleaner: LogCleaner
    said: list[str]


@asynccontextmanager
async def beside(path: Path) -> AsyncIterator[Beside]:
    pool = ThreadPool()
    said: list[str] = []
    manager = manager_over(PosixFileSystem(), data_dir=str(path), pool=pool)
    lock = manager.lock()
    await manager.load_all()
    log = manager.get("t", 0)
    settings = {**COMPACT, "segment_bytes": 100_000}
    if log is None:
        log = new_log(manager, **settings)
    log.update_config(TopicConfig(**settings))  # type: ignore[arg-type]
    process = CleanerProcess(lock.fileno(), str(path / "kernels"), rng=random.Random(1), log_line=said.append)
    cleaner = cleaner_over(manager, PosixFileSystem(), clock=ManualClock(), pool=pool, work=process, said=said.append)
    try:
        async with asyncio.timeout(DEADLINE_S), running(manager):
            yield Beside(log, process, cleaner, said)
    finally:
        await process.stop()
        await manager.close()
        pool.close()


async def fill(log: PartitionLog, batches: int) -> None:
    rng = random.Random(5)
    for number in range(batches):
        rows = [(b"key-%d" % rng.randrange(500), rng.choice([None, b"%d" % number * 20])) for _ in range(20)]
        log.append_as_leader(keyed(*rows, codec=rng.choice([0, 0, 4])), now_ms=NOW)
    log.roll()
    await log.flush()


@pytest.mark.ci
async def test_a_log_is_compacted_by_the_process_which_then_ends(tmp_path: Path) -> None:
    async with beside(tmp_path) as (log, process, cleaner, said):
        await fill(log, 500)
        before = newest(await committed(log, await seen_in(log)))
        size = log.size_bytes
        assert process.process_id == 0
        assert await cleaner.clean_next(), said
        assert process.process_id > 0
        assert newest(await committed(log, await seen_in(log))) == before
        assert log.size_bytes < size / 3
        await process.stop()
        assert process.process_id == 0


@pytest.mark.ci
async def test_a_process_that_dies_in_the_midst_is_told_of_and_the_next_round_does_it_all(tmp_path: Path) -> None:
    async with beside(tmp_path) as (log, process, cleaner, said):
        await fill(log, 500)
        before = newest(await committed(log, await seen_in(log)))
        cleaning = asyncio.create_task(cleaner.clean_next())
        while not log.held:
            await asyncio.sleep(0)
        os.kill(process.process_id, signal.SIGKILL)
        assert not await cleaning
        assert "will try again" in said[-1]
        assert not log.held
        assert await cleaner.clean_next(), said
        assert newest(await committed(log, await seen_in(log))) == before


@pytest.mark.ci
async def test_a_process_that_stands_still_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.broker.start.cleaning.ALIVE_ASK_S", 0.05)
    monkeypatch.setattr("app.broker.start.cleaning.ALIVE_ANSWER_S", 0.2)
    monkeypatch.setattr("app.machine.children.EXIT_WAIT_S", 0.2)
    async with beside(tmp_path) as (log, process, cleaner, _):
        await fill(log, 50)
        await process.start()
        os.kill(process.process_id, signal.SIGSTOP)
        assert not await cleaner.clean_next()
        assert process.process_id == 0


@pytest.mark.ci
async def test_a_process_that_stands_still_holds_no_segment_and_a_cut_does_not_wait_for_it(tmp_path: Path) -> None:
    async with beside(tmp_path) as (log, process, cleaner, _):
        await fill(log, 200)
        starting = asyncio.create_task(cleaner.clean_next())
        while not process.process_id:
            await asyncio.sleep(0)
        os.kill(process.process_id, signal.SIGSTOP)
        assert not log.held
        os.kill(process.process_id, signal.SIGCONT)
        while not log.held:
            await asyncio.sleep(0)
        os.kill(process.process_id, signal.SIGSTOP)
        middle = log.segments()[1].base_offset
        log.resign()
        assert log.truncate_to(middle)
        assert not log.held
        os.kill(process.process_id, signal.SIGCONT)
        assert await starting
        assert log.log_end_offset == middle
        assert not [name for name in os.listdir(log.path) if name.endswith((".cleaned", ".swap"))]


def proc_of(path: Path, *threads: tuple[str, int, int]) -> None:
    """A process as ``/proc`` shows it: of each thread its state and its ticks as user and as system."""
    for number, (state, user, system) in enumerate(threads):
        task = path / "7" / "task" / str(number)
        task.mkdir(parents=True, exist_ok=True)
        (task / "stat").write_text(f"7 (a (b) c) {state} " + "0 " * 10 + f"{user} {system} 0 0")


@pytest.mark.ci
def test_only_the_time_that_a_process_gets_counts_while_it_waits_for_a_core(tmp_path: Path) -> None:
    now_s = 0.0
    tick_s = 1 / TICKS_PER_S
    proc_of(tmp_path, ("S", 0, 0), ("R", 10, 0))
    granted = GrantedTime(7, proc=str(tmp_path), now_s=lambda: now_s)
    now_s = 100.0
    proc_of(tmp_path, ("S", 0, 0), ("R", 12, 3))
    assert granted.count_s() == pytest.approx(5 * tick_s)
    now_s = 130.0
    proc_of(tmp_path, ("S", 1, 0), ("S", 12, 3))
    assert granted.count_s() == pytest.approx(5 * tick_s + 30), "it sleeps"
    now_s = 140.0
    proc_of(tmp_path, ("T", 1, 0), ("T", 12, 3))
    assert granted.count_s() == pytest.approx(5 * tick_s + 40), "it was stopped"


def test_the_clock_counts_where_the_system_does_not_tell(tmp_path: Path) -> None:
    now_s = 0.0
    granted = GrantedTime(7, proc=str(tmp_path), now_s=lambda: now_s)
    now_s = 12.0
    assert granted.count_s() == 12.0


@pytest.mark.ci
async def test_closing_in_the_midst_of_a_round_leaves_a_log_that_opens_clean(tmp_path: Path) -> None:
    async with beside(tmp_path) as (log, process, cleaner, _):
        await fill(log, 500)
        before = newest(await committed(log, await seen_in(log)))
        await process.start()
        task = asyncio.create_task(cleaner.run())
        while not log.held:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert not log.held
    async with beside(tmp_path) as (log, process, _, _):
        assert newest(await committed(log, await seen_in(log))) == before
        assert not [name for name in os.listdir(log.path) if name.endswith(".swap")]


async def test_a_process_that_cannot_start_is_a_storage_error(tmp_path: Path) -> None:
    async with beside(tmp_path) as (_, process, _, _):
        process._child._command = lambda descriptor: ("-c", "raise SystemExit(3)")
        with pytest.raises(StorageUnavailable, match="cleaner process"):
            await process.start()
        assert process.process_id == 0


def test_a_broker_imports_neither_numba_nor_numpy() -> None:
    code = (
        "import sys, app.broker.node, app.broker.start.process, app.broker.start.cleaning\n"
        "print([name for name in ('numba', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_a_cleaner_gets_a_tenth_of_a_core_beside_three_busy_sessions_a_core() -> None:
    """Linux's table (``sched_prio_to_weight``): each step of niceness is worth a fifth of what is left."""
    weight = 1024 / 1.25**NICENESS
    assert weight / (weight + 3 * 1024) > 0.1
    assert NICENESS > 0, "the broker goes first"


def test_memory_is_given_back_only_where_nothing_was_written_to_what_the_file_says() -> None:
    maps = (
        ("7f0000000000-7f0000001000 r-xp 00000000 08:01 11   /lib/code.so", 0),
        ("7f0000001000-7f0000003000 r--p 00001000 08:01 11   /lib/code.so", 0),
        ("7f0000003000-7f0000004000 r--p 00003000 08:01 11   /lib/relocated.so", 8),
        ("7f0000004000-7f0000005000 rw-p 00004000 08:01 11   /lib/data.so", 0),
        ("7f0000005000-7f0000006000 r--p 00000000 00:00 0 ", 0),
        ("7f0000006000-7f0000007000 r-xp 00000000 00:00 0                          [vdso]", 0),
    )
    text = "".join(f"{line}\nSize:   4 kB\nRss:   4 kB\nAnonymous:   {kb} kB\nVmFlags: rd ex\n" for line, kb in maps)
    assert list(untouched_mappings(text)) == [(0x7F0000000000, 0x7F0000001000), (0x7F0000001000, 0x7F0000003000)]


def test_the_limit_on_bytes_a_second_waits_as_long_as_they_cost() -> None:
    now_s = 0.0
    waited: list[float] = []

    def wait(seconds: float) -> None:
        nonlocal now_s
        waited.append(seconds)
        now_s += seconds

    throttle = Throttle(1000, lambda: now_s, wait)
    for _ in range(10):
        throttle(100)
    assert abs(sum(waited) - 1.0) < 0.011
    now_s += 100
    waited.clear()
    throttle(5)
    assert waited == [], "what was not used is not saved up, and a few bytes are not waited for"


async def test_a_job_that_fails_in_the_moment_in_which_it_is_ended_leaves_no_error_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    class Work(ProxyCleanerWork):
        async def begin(self, job: CleaningJob) -> Indexed:
            begun.set()
            await ended.wait()
            raise StorageUnavailable("Cannot compact: No such file or directory")

    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    monkeypatch.setattr("app.broker.start.cleaning.ProxyCleanerWork", Work)
    async with beside(tmp_path) as (_, process, _, _):
        job: Any = None  # nobody looks at it
        beginning = asyncio.create_task(process.begin(job))
        await begun.wait()
        ended.set()
        await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait([beginning])
        assert beginning.cancelled()
        del beginning
        await asyncio.sleep(0.01)
        gc.collect()
        assert not unseen
