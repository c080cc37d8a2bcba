"""The cleaner process as the broker sees it: started for the first job, ended when there was none for a while."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from app.broker.start.children import broker_child
from app.core.errors import FirnError, StorageUnavailable, clause
from app.hot.cleaning.job import CleaningJob, Indexed, SegmentFile
from app.hot.cleaning.work import ProxyCleanerWork
from app.hot.segments import CleanedSegment
from app.machine.rpc import RpcClient
from app.machine.runtime import look_at_error

T = TypeVar("T")

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

IDLE_S: Final = 60.0
"""Time without a job after which the process ends, and gives its memory back."""
ALIVE_ASK_S: Final = 10.0
"""How often the process is asked during a job whether it is still there. It is ended if it has not answered after:"""
ALIVE_ANSWER_S: Final = 30.0
START_S: Final = 120.0
"""How long it may take to answer for the first time: after an installation numba compiles the kernels.

These limits count the time in which the process computes or sleeps, not the time in which it waits for a core: see
``GrantedTime``. A process that other work starves is slow, and not stuck."""
END_S: Final = 10.0
"""How long it may take to end a job, which looks between two windows whether it was told to."""
LOOK_S: Final = 1.0
"""How often the time of a process is counted."""


class CleanerProcesses:
    """Makes a ``CleanerProcess`` for each caller, and stops all of them."""

    def __init__(
        self, lock_descriptor: int, cache_directory: str, *, rng: random.Random, log_line: Callable[[str], None]
    ) -> None:
        """As ``CleanerProcess``."""
        self._lock_descriptor = lock_descriptor
        self._cache_directory = cache_directory
        self._rng = rng
        self._log_line = log_line
        self._processes: list[CleanerProcess] = []

    def new(self) -> CleanerProcess:
        """A new process, which does not run yet."""
        process = CleanerProcess(self._lock_descriptor, self._cache_directory, rng=self._rng, log_line=self._log_line)
        self._processes.append(process)
        return process

    @property
    def process_ids(self) -> list[int]:
        """The ids of the running processes."""
        return [process.process_id for process in self._processes if process.process_id]

    async def stop(self) -> None:
        """End all of them and wait until they have ended."""
        for process in self._processes:
            await process.stop()


class CleanerProcess:
    """A ``CleanerWork`` in a process of its own."""

    def __init__(
        self, lock_descriptor: int, cache_directory: str, *, rng: random.Random, log_line: Callable[[str], None]
    ) -> None:
        """``lock_descriptor`` of the data directory's lock, which the process inherits: no new broker starts beside it.

        ``cache_directory`` is where compiled kernels may be kept if the package's own directory cannot be written.
        """
        self._rpc = RpcClient("cleaner process")
        self._work = ProxyCleanerWork(self._rpc)
        self._child = broker_child(
            "cleaner",
            lambda descriptor: (
                "app.hot.cleaning.process", "--socket", str(descriptor), "--cache", cache_directory,
            ),
            inherited=[lock_descriptor],
            rng=rng,
            log_line=log_line,
            connected=self._rpc.connect,
        )  # fmt: skip
        self._idle_since_s: float | None = None
        self._starting: asyncio.Future[None] | None = None
        self._begun = False
        """Whether the process may have a job."""

    @property
    def process_id(self) -> int:
        """0 if it does not run."""
        return self._child.process_id

    async def ready(self) -> None:
        """Wait until the process answers. A caller that no longer waits does not end the start, which the next job needs.

        Raises: StorageUnavailable.
        """
        try:
            if self._starting is None:
                if self._child.process_id:
                    await self._answer(self._rpc.call("process.ping"), ALIVE_ANSWER_S)
                    return
                self._starting = asyncio.ensure_future(self.start())
                self._starting.add_done_callback(self._started)
            await asyncio.shield(self._starting)
        finally:
            self._idle_since_s = asyncio.get_running_loop().time()

    def _started(self, starting: asyncio.Future[None]) -> None:
        self._starting = None
        look_at_error(starting)

    async def begin(self, job: CleaningJob) -> Indexed:
        if not self._child.process_id:
            await self.ready()
        self._idle_since_s = None
        self._begun = True
        return await self._unless_stuck(self._work.begin(job))

    async def start(self) -> None:
        """Have it running, and its kernels compiled. Raises: StorageUnavailable."""
        try:
            await self._child.start()
            await self._answer(self._rpc.call("process.ping"), START_S)
        except OSError as error:
            raise StorageUnavailable(f"Cannot start the cleaner process: {clause(error)}.") from error
        except BaseException:
            await self._end_process()
            raise

    async def _answer(self, asked: Coroutine[Any, Any, T], limit_s: float) -> T:
        """The answer of the process. It may take ``limit_s`` of the time that the process gets; else the process is ended.

        Raises: StorageUnavailable, and as ``asked``.
        """
        asking = asyncio.ensure_future(asked)
        granted = GrantedTime(self._child.process_id)
        try:
            while not (await asyncio.wait([asking], timeout=min(LOOK_S, limit_s)))[0]:
                if granted.count_s() >= limit_s:
                    await self._end_process()
                    raise StorageUnavailable(
                        f"The cleaner process did not answer in {limit_s:g} s of its time, and was ended. The next round of"
                        " compaction starts another."
                    )
            return asking.result()
        finally:
            asking.add_done_callback(look_at_error)
            if not asking.done():
                asking.cancel()
                await asyncio.wait([asking])

    async def write(self, group: Sequence[SegmentFile]) -> CleanedSegment:
        return await self._unless_stuck(self._work.write(group))

    async def _unless_stuck(self, asked: Coroutine[Any, Any, T]) -> T:
        """Wait for the answer of the process as long as the process is alive. Raises: StorageUnavailable if it is not."""
        asking = asyncio.ensure_future(asked)
        try:
            while not (await asyncio.wait([asking], timeout=ALIVE_ASK_S))[0]:
                with contextlib.suppress(FirnError):  # then the call itself fails, too
                    await self._answer(self._rpc.call("process.ping"), ALIVE_ANSWER_S)
            return asking.result()
        finally:
            asking.add_done_callback(look_at_error)
            if not asking.done():
                asking.cancel()
                await asyncio.wait([asking])

    async def end(self) -> None:
        if not self._begun:
            return
        self._begun = False
        try:
            await self._answer(self._work.end(), END_S)
        except FirnError:
            await self._end_process()  # then it does not touch any file either
        self._idle_since_s = asyncio.get_running_loop().time()

    async def rest(self) -> None:
        since_s = self._idle_since_s
        if since_s is not None and self._starting is None and asyncio.get_running_loop().time() - since_s >= IDLE_S:
            self._idle_since_s = None
            await self._end_process()

    async def stop(self) -> None:
        """End the process, if it runs or starts, and wait until it has ended."""
        starting = self._starting
        if starting is not None:
            starting.cancel()
            await asyncio.wait([starting])
        await self._end_process()

    async def _end_process(self) -> None:
        await self._rpc.close()
        await self._child.stop()


class GrantedTime:
    """Counts the time of a process that a limit on its answers may count, by looking at it again and again.

    While a thread of the process runs or waits for a core, its CPU time counts; a starved process gets little. Otherwise the clock
    counts: the process sleeps, waits for the disk, or is stopped by a signal. Where there is no ``/proc``, the clock counts, too.
    """

    def __init__(self, process_id: int, *, proc: str = "/proc", now_s: Callable[[], float] = time.monotonic) -> None:
        self._tasks = Path(proc, str(process_id), "task")
        self._now_s = now_s
        self._counted_s = 0.0
        self._looked_at_s = now_s()
        self._cpu_s = 0.0
        self._cpu_s = self._look()[0]

    def count_s(self) -> float:
        """The seconds since the start of the count."""
        now_s = self._now_s()
        cpu_s, wants_core = self._look()
        self._counted_s += max(cpu_s - self._cpu_s, 0.0) if wants_core else now_s - self._looked_at_s
        self._looked_at_s, self._cpu_s = now_s, cpu_s
        return self._counted_s

    def _look(self) -> tuple[float, bool]:
        """CPU time of all threads, and whether one of them runs or waits for a core."""
        ticks, wants_core = 0, False
        try:
            for task in self._tasks.iterdir():
                # The name, in brackets, may have spaces.
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                wants_core = wants_core or fields[0] == "R"
                ticks += int(fields[11]) + int(fields[12])
        except (OSError, IndexError, ValueError):
            return self._cpu_s, False
        return ticks / TICKS_PER_S, wants_core
