"""The seam between the decision to compact and the work itself, which runs in this process or in its own process.

Tests: ``tests/hot/test_cleaner.py``, ``tests/hot/test_cleaning_ended.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from app.core.seams import BlockingPool
from app.core.units import Buffer
from app.hot.cleaning.compaction import Compaction
from app.hot.cleaning.engine import Engine
from app.hot.cleaning.job import CleaningJob, Indexed, SegmentFile
from app.hot.segments import CleanedSegment
from app.machine.files import FileSystem, storage_error
from app.machine.rpc import Handler, RpcClient
from app.machine.runtime import look_at_error

T = TypeVar("T")


class CleanerWork(Protocol):
    """Does one job at a time."""

    async def ready(self) -> None:
        """Wait until a job can begin at once. Raises: StorageUnavailable."""
        ...

    async def begin(self, job: CleaningJob) -> Indexed:
        """Begin a job and index its dirty part.

        Raises: CorruptionError, StorageFull, StorageUnavailable; ConflictError after ``end``. Then nothing was written.
        """
        ...

    async def write(self, group: Sequence[SegmentFile]) -> CleanedSegment:
        """See ``Compaction.write``. Raises: as ``begin``."""
        ...

    async def end(self) -> None:
        """End the job, finished or not. When this returns, nothing uses its files."""
        ...

    async def rest(self) -> None:
        """Release memory, because there is no work for now."""
        ...


class InlineCleanerWork:
    """Runs jobs in the pool of this process."""

    def __init__(
        self,
        fs: FileSystem,
        pool: BlockingPool,
        engine: Callable[[], Engine],
        throttle: Callable[[float], Callable[[int], None]] = lambda bytes_per_second_max: lambda size_bytes: None,
    ) -> None:
        """``throttle`` converts bytes a second to the throttle of ``Compaction``; by default there is no limit."""
        self._fs = fs
        self._pool = pool
        self._engine = engine
        self._throttle = throttle
        self._compaction: Compaction | None = None
        self._running: asyncio.Future[Any] | None = None

    async def ready(self) -> None:
        return

    async def begin(self, job: CleaningJob) -> Indexed:
        assert self._compaction is None, "one job at a time"
        compaction = Compaction(job, self._fs, self._engine(), self._throttle(job.bytes_per_second_max))
        self._compaction = compaction
        return await self._run(compaction.index)

    async def write(self, group: Sequence[SegmentFile]) -> CleanedSegment:
        compaction = self._compaction
        assert compaction is not None, "no job"
        return await self._run(lambda: compaction.write(group))

    async def _run(self, work: Callable[[], T]) -> T:
        running = asyncio.ensure_future(self._pool.run(work))
        self._running = running
        try:
            return await asyncio.shield(running)
        except OSError as error:
            raise storage_error(error, "Cannot compact") from error

    async def end(self) -> None:
        compaction, running = self._compaction, self._running
        if compaction is not None:
            compaction.abandon()
        if running is not None:
            await asyncio.wait([running])
            look_at_error(running)  # its waiters, if any, have got the error
        self._compaction = self._running = None

    async def rest(self) -> None:
        return


class ProxyCleanerWork:
    """Runs jobs in another process. Its owner starts the process."""

    def __init__(self, rpc: RpcClient) -> None:
        self._rpc = rpc

    async def begin(self, job: CleaningJob) -> Indexed:
        return msgspec.msgpack.decode(await self._rpc.call("clean.begin", msgspec.msgpack.encode(job)), type=Indexed)

    async def write(self, group: Sequence[SegmentFile]) -> CleanedSegment:
        answer = await self._rpc.call("clean.write", msgspec.msgpack.encode(list(group)))
        return msgspec.msgpack.decode(answer, type=CleanedSegment)

    async def end(self) -> None:
        """As ``CleanerWork.end``. Its owner limits the wait, and ends a process that does not answer."""
        await self._rpc.call("clean.end")

    async def rest(self) -> None:
        return


def cleaner_handlers(work: CleanerWork) -> dict[str, Handler]:
    """The part in the other process: serves the calls of ``ProxyCleanerWork`` to an ``RpcServer``."""

    async def begin(asked: Buffer) -> Buffer:
        return msgspec.msgpack.encode(await work.begin(msgspec.msgpack.decode(asked, type=CleaningJob)))

    async def write(asked: Buffer) -> Buffer:
        return msgspec.msgpack.encode(await work.write(msgspec.msgpack.decode(asked, type=list[SegmentFile])))

    async def end(_: Buffer) -> Buffer:
        await work.end()
        return b""

    return {"clean.begin": begin, "clean.write": write, "clean.end": end}
