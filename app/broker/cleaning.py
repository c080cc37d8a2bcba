"""The cleaner process as the broker sees it: started for the first job, ended when there was none for a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from app.broker.children import Child
from app.errors import FirnError, StorageUnavailable
from app.hot.cleaning.job import CleaningJob, Indexed, SegmentFile
from app.hot.cleaning.work import ProxyCleanerWork
from app.hot.segments import CleanedSegment
from app.machine.rpc import RpcClient
from app.machine.runtime import look_at_error

T = TypeVar("T")

IDLE_S: Final = 60.0
"""Time without a job after which the process ends, and gives its memory back."""
ALIVE_ASK_S: Final = 10.0
"""While a job runs it is asked so often whether it is still there, and ended if it has not answered after:"""
ALIVE_ANSWER_S: Final = 30.0
START_S: Final = 120.0
"""How long it may take to answer for the first time: after an installation numba compiles the kernels."""


class CleanerProcesses:
    """As many ``CleanerProcess`` as are asked for."""

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
        """Another one, which does not run yet."""
        process = CleanerProcess(self._lock_descriptor, self._cache_directory, rng=self._rng, log_line=self._log_line)
        self._processes.append(process)
        return process

    @property
    def process_ids(self) -> list[int]:
        """Of those that run."""
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
        self._child = Child(
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

    @property
    def process_id(self) -> int:
        """0 if it does not run."""
        return self._child.process_id

    async def begin(self, job: CleaningJob) -> Indexed:
        self._idle_since_s = None
        if not self._child.process_id:
            await self.start()
        return await self._unless_stuck(self._work.begin(job))

    async def start(self) -> None:
        """Have it running, and its kernels compiled. Raises: StorageUnavailable."""
        try:
            await self._child.start()
            await self._rpc.call("process.ping", b"", timeout_s=START_S)
        except OSError as error:
            raise StorageUnavailable(f"cannot start the cleaner process: {error}") from error
        except BaseException:
            await self.stop()
            raise

    async def write(self, group: Sequence[SegmentFile]) -> CleanedSegment:
        return await self._unless_stuck(self._work.write(group))

    async def _unless_stuck(self, asked: Coroutine[Any, Any, T]) -> T:
        """What the process answers, however long it takes, as long as it is alive. Raises: StorageUnavailable if it is not."""
        asking = asyncio.ensure_future(asked)
        try:
            while not (await asyncio.wait([asking], timeout=ALIVE_ASK_S))[0]:
                try:
                    await self._rpc.call("process.ping", b"", timeout_s=ALIVE_ANSWER_S)
                except FirnError:
                    await self.stop()
            return asking.result()
        finally:
            asking.add_done_callback(look_at_error)
            if not asking.done():
                asking.cancel()
                await asyncio.wait([asking])

    async def end(self) -> None:
        if not self._child.process_id:
            return
        try:
            await self._work.end()
        except FirnError:
            await self.stop()  # then it does not touch any file either
        self._idle_since_s = asyncio.get_running_loop().time()

    async def rest(self) -> None:
        since_s = self._idle_since_s
        if since_s is not None and asyncio.get_running_loop().time() - since_s >= IDLE_S:
            self._idle_since_s = None
            await self.stop()

    async def stop(self) -> None:
        """End the process, if it runs, and wait until it has ended."""
        await self._rpc.close()
        await self._child.stop()
