"""The result of a read of the log: a range of a file, not yet its bytes.

The plan is made without touching the data; the caller then asks for the bytes with ``try_read_now`` and, if they are not in the
page cache, with ``await read_bytes()``. One ``pread`` for the whole range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from app.core.errors import CorruptionError, FirnError, StorageUnavailable
from app.core.limits import MIB
from app.core.seams import BlockingPool
from app.core.units import Offset
from app.hot.descriptors import FileHandle
from app.machine.files import File, storage_error

if TYPE_CHECKING:
    from app.hot.segments import Segment

WARM_TAIL_BYTES: Final = 64 * MIB
"""If the file system cannot tell whether bytes are cached, bytes this near to the end of an active segment count as cached."""


class PageMiss(Exception):
    """A plan needs bytes that are not in memory. This is not an error: fetch the bytes, and plan again."""

    def __init__(self, segment: Segment, work: Callable[[], object], accept: Callable[[object], None]) -> None:
        """``work`` reads the bytes on a pool thread. ``accept`` takes the result on the loop."""
        super().__init__("page miss")
        self._segment = segment
        self._work = work
        self._accept = accept

    async def fetch(self, pool: BlockingPool) -> None:
        """Read the bytes in the pool. Raises: StorageUnavailable, CorruptionError.

        A segment may leave the log meanwhile, and a compacted segment may take its name. Then the bytes are ignored without an
        error, because the next plan reads elsewhere.
        """
        try:
            found = await pool.run(self._work)
        except (OSError, CorruptionError) as error:
            if self._segment.deleted:
                return
            if isinstance(error, OSError):
                raise self._storage_error(error) from error
            raise
        if not self._segment.deleted:
            self._accept(found)

    def fetch_now(self) -> None:
        """Read the bytes at once. Blocks."""
        try:
            found = self._work()
        except OSError as error:
            raise self._storage_error(error) from error
        self._accept(found)

    def _storage_error(self, error: OSError) -> FirnError:
        return storage_error(error, f"Cannot read {self._segment.handle.path}")


class LocalRead:
    """Whole batches in one file: ``[position, position + length)``, records ``[start_offset, end_offset)``.

    ``start_offset`` is the first batch's base offset, which may be below the requested offset. ``length`` may be 0. Use the range
    soon, and on the loop that created it: the segment may be deleted before the read begins. Then the read raises
    StorageUnavailable, and the client tries again.
    """

    __slots__ = ("_pool", "end_offset", "handle", "is_full", "length", "position", "start_offset", "warm")

    def __init__(
        self,
        handle: FileHandle,
        position: int,
        length: int,
        start_offset: Offset,
        end_offset: Offset,
        pool: BlockingPool,
        warm: bool,
        is_full: bool = False,
    ) -> None:
        self.handle = handle
        self.position = position
        self.length = length
        self.start_offset = start_offset
        self.end_offset = end_offset
        self._pool = pool
        self.warm = warm
        """Whether the range is near the end of an active segment, so that it counts as cached if the file system cannot tell."""
        self.is_full = is_full
        """Whether the range would exceed the requested size with the next batch."""

    def try_read_now(self) -> bytes | bytearray | None:
        """All bytes if the page cache has them; None if not. Then call ``await read_bytes()``.

        Raises: StorageUnavailable, CorruptionError (the file is shorter than it was).
        """
        if self.length == 0:
            return b""
        buffer = bytearray(self.length)
        return buffer if self.try_read_into(memoryview(buffer)) else None

    def try_read_into(self, view: memoryview) -> bool:
        """Fill ``view``, which is as long as the range, if the page cache has all bytes. If False, ``view`` has undefined content.

        Raises: as ``try_read_now``.
        """
        handle = self.handle
        file = handle.file
        if file is None:
            file = handle.cache.open(handle)
        handle.touched = True
        try:
            got = file.preadv_nowait(view, self.position)
            if got is None and self.warm and not file.can_tell_misses:
                got = file.pread_into(view, self.position)
                if got < self.length:
                    raise self._cut_short(got)
        except OSError as error:
            raise storage_error(error, f"Cannot read {handle.path}") from error
        return got == self.length

    async def read_bytes(self) -> bytearray:
        """Read all bytes on a pool thread. Raises: as ``try_read_now``."""
        buffer = bytearray(self.length)
        await self.read_into(memoryview(buffer))
        return buffer

    async def read_into(self, view: memoryview) -> None:
        """Fill ``view`` on a pool thread. The thread fills it even if the caller is cancelled, so do not reuse ``view`` then.

        Raises: as ``try_read_now``.
        """
        handle = self.handle
        file = handle.acquire()
        position = self.position

        def work(file: File = file) -> int:
            return file.pread_into(view, position)

        task = asyncio.ensure_future(self._pool.run(work))
        task.add_done_callback(lambda done: _release(handle, done))
        try:
            got = await asyncio.shield(task)
        except OSError as error:
            raise storage_error(error, f"Cannot read {handle.path}") from error
        if got < self.length:
            raise self._cut_short(got)

    def _cut_short(self, got: int) -> CorruptionError | StorageUnavailable:
        if self.handle.deleted:
            return StorageUnavailable(f"{self.handle.path} was deleted while it was read.")
        return CorruptionError(
            f"{self.handle.path} has {got} bytes at position {self.position} where {self.length} were written."
        )


class FileRange:
    """A range of an open file, which stays open until the range is released. It can be sent (``app.transport.sending``)."""

    __slots__ = ("_cached", "_file", "_lasting", "handle", "length", "position", "warm")

    def __init__(
        self,
        handle: FileHandle,
        position: int,
        length: int,
        *,
        warm: bool = False,
        lasting: bool,
        cached: bool = False,
    ) -> None:
        """``warm``: the bytes count as cached if the file system cannot tell. ``lasting``: nothing is ever written over these
        bytes. ``cached``: they were in the page cache just now.

        Raises: StorageUnavailable.
        """
        self._file: File = handle.acquire()
        self.warm = warm
        self._lasting = lasting
        self._cached = cached
        self.handle = handle
        self.position = position
        self.length = length

    def reference(self, start: int, length: int) -> int:
        file = self._file
        if self._cached and not start:
            return file.fileno()  # the rest may have left the cache before the client reads on
        return file.fileno() if self._lasting and file.is_cached(self.position + start, length) else -1

    def read_nowait(self, start: int, into: memoryview) -> int:
        file = self._file
        got = file.preadv_nowait(into, self.position + start)
        if got is None:
            return file.pread_into(into, self.position + start) if self.warm and not file.can_tell_misses else -1
        return got

    def read(self, start: int, into: memoryview) -> int:
        return self._file.pread_into(into, self.position + start)

    def release(self) -> None:
        self.handle.release()


def _release(handle: FileHandle, done: asyncio.Task[int]) -> None:
    handle.release()
    if not done.cancelled():
        done.exception()
