"""The seam between the decision what to compact and the work itself: in this process, or in one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from app.hot.cleaning.compaction import Compaction
from app.hot.cleaning.engine import Engine
from app.hot.cleaning.job import CleaningJob, Indexed, SegmentFile
from app.hot.segments import CleanedSegment
from app.machine.files import FileSystem, storage_error
from app.machine.rpc import Handler, RpcClient
from app.seams import BlockingPool
from app.units import Buffer

T = TypeVar("T")

END_TIMEOUT_S: Final = 10.0
"""A job looks whether it should stop between two windows."""


class CleanerWork(Protocol):
    """Does one job at a time."""

    async def begin(self, job: CleaningJob) -> Indexed:
        """Take on a job and index its dirty part.

        Raises: CorruptionError, StorageFull, StorageUnavailable; ConflictError after ``end``. Then nothing was written.
        """
        ...

    async def write(self, group: Sequence[SegmentFile]) -> CleanedSegment:
        """See ``Compaction.write``. Raises: as ``begin``."""
        ...

    async def end(self) -> None:
        """Forget the job, half done or not. When this returns nothing touches its files any more."""
        ...

    async def rest(self) -> None:
        """There is nothing to do for now."""
        ...


class InlineCleanerWork:
    """Works on the pool of this process."""

    def __init__(
        self,
        fs: FileSystem,
        pool: BlockingPool,
        engine: Callable[[], Engine],
        throttle: Callable[[float], Callable[[int], None]] = lambda bytes_per_second_max: lambda size_bytes: None,
    ) -> None:
        """``throttle`` makes of bytes a second what ``Compaction`` is given; by default nothing is held back."""
        self._fs = fs
        self._pool = pool
        self._engine = engine
        self._throttle = throttle
        self._compaction: Compaction | None = None
        self._running: asyncio.Future[Any] | None = None

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
            raise storage_error(error, "cannot compact") from error

    async def end(self) -> None:
        compaction, running = self._compaction, self._running
        if compaction is not None:
            compaction.abandon()
        if running is not None:
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # told to whoever waited for it, if anybody did
        self._compaction = self._running = None

    async def rest(self) -> None:
        return


class ProxyCleanerWork:
    """Asks another process for everything."""

    def __init__(self, rpc: RpcClient) -> None:
        self._rpc = rpc

    async def begin(self, job: CleaningJob) -> Indexed:
        return msgspec.msgpack.decode(await self._rpc.call("clean.begin", msgspec.msgpack.encode(job)), type=Indexed)

    async def write(self, group: Sequence[SegmentFile]) -> CleanedSegment:
        answer = await self._rpc.call("clean.write", msgspec.msgpack.encode(list(group)))
        return msgspec.msgpack.decode(answer, type=CleanedSegment)

    async def end(self) -> None:
        """As ``CleanerWork.end``. Raises: StorageUnavailable if the process does not answer: whoever owns it ends it then."""
        await self._rpc.call("clean.end", b"", timeout_s=END_TIMEOUT_S)

    async def rest(self) -> None:
        return


def cleaner_handlers(work: CleanerWork) -> dict[str, Handler]:
    """The other process's end: what an ``RpcServer`` answers ``ProxyCleanerWork`` with."""

    async def begin(asked: bytes) -> Buffer:
        return msgspec.msgpack.encode(await work.begin(msgspec.msgpack.decode(asked, type=CleaningJob)))

    async def write(asked: bytes) -> Buffer:
        return msgspec.msgpack.encode(await work.write(msgspec.msgpack.decode(asked, type=list[SegmentFile])))

    async def end(_: bytes) -> Buffer:
        await work.end()
        return b""

    return {"clean.begin": begin, "clean.write": write, "clean.end": end}
