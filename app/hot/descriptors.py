"""Which files are open: as many as the process may have, and never one closed under somebody.

A segment's file is a ``FileHandle`` that may be open or not. The cache opens it on demand and, when there are too many, closes
the one longest unused; files that were unused for long are closed anyway. Not closed are files that somebody reads at the
moment (``users``) and files with unsynced bytes (``pinned``): a write-back error is reported to descriptors that were open when
it happened, so closing such a one could lose the only report of lost data.
"""

from __future__ import annotations

from collections.abc import Callable

from app.errors import StorageUnavailable
from app.machine.files import File, FileSystem, storage_error


class FileHandle:
    """One file of a log, open or not."""

    __slots__ = ("cache", "deleted", "file", "owner", "path", "pinned", "touched", "users")

    def __init__(self, cache: DescriptorCache, path: str) -> None:
        self.cache = cache
        self.owner: object = None
        """Whoever pinned it; None if it is not pinned."""
        self.path = path
        self.file: File | None = None
        self.users = 0
        """Readers at work. Not evicted, and closed after the last of them if deleted meanwhile."""
        self.pinned = False
        """Has unsynced bytes."""
        self.touched = False
        """Used since eviction last looked at it."""
        self.deleted = False

    def acquire(self) -> File:
        """Open the file if need be and keep it open until ``release``.

        Raises: StorageUnavailable if it cannot be opened or was deleted.
        """
        file = self.file
        if file is None:
            file = self.cache.open(self)
        self.users += 1
        self.touched = True
        return file

    def release(self) -> None:
        self.users -= 1
        assert self.users >= 0, self.path
        if self.deleted and self.users == 0:
            self.cache.close(self)


class DescriptorCache:
    """Open files, up to a limit. Belongs to the event loop; only the reading itself happens elsewhere."""

    def __init__(self, fs: FileSystem, descriptors_max: int) -> None:
        assert descriptors_max > 0
        self._fs = fs
        self._descriptors_max = descriptors_max
        self._idle: dict[FileHandle, None] = {}
        """Open and not pinned, in the order in which eviction looks at them."""
        self._pinned: dict[FileHandle, None] = {}
        """Open and pinned, longest first."""
        self._unasked: dict[FileHandle, None] = {}
        """Those of them whose sync was not asked for under pressure."""
        self.on_pressure: Callable[[FileHandle], None] | None = None
        """Called for the file pinned longest while more than half of the descriptors are pinned: sync it, so that it can be
        closed. Once for each."""

    @property
    def open_count(self) -> int:
        return len(self._idle) + len(self._pinned)

    def open(self, handle: FileHandle, *, create: bool = False) -> File:
        """The handle's open file. Raises StorageUnavailable, StorageFull."""
        if handle.file is not None:
            return handle.file
        if handle.deleted:
            raise StorageUnavailable(f"{handle.path} has been deleted")
        if self.open_count >= self._descriptors_max:
            self._evict()
        try:
            file = self._fs.open(handle.path, create=create)
        except OSError as error:
            raise storage_error(error, f"cannot open {handle.path}") from error
        handle.file = file
        handle.touched = True
        if handle.pinned:
            self._pinned[handle] = None
        else:
            self._idle[handle] = None
        return file

    def pin(self, handle: FileHandle, owner: object = None) -> None:
        """The file now has unsynced bytes, which ``owner`` can sync; it is open."""
        assert handle.file is not None, handle.path
        handle.owner = owner
        handle.pinned = True
        self._idle.pop(handle, None)
        self._pinned[handle] = self._unasked[handle] = None
        if len(self._pinned) * 2 > self._descriptors_max and self.on_pressure is not None:
            oldest = next(iter(self._unasked))
            del self._unasked[oldest]
            self.on_pressure(oldest)

    def unpin(self, handle: FileHandle) -> None:
        """All its bytes are synced, or no longer matter."""
        if handle.pinned:
            handle.pinned = False
            handle.owner = None
            del self._pinned[handle]
            self._unasked.pop(handle, None)
            self._idle[handle] = None

    def delete(self, handle: FileHandle) -> None:
        """The file goes: close it now, or after its last reader. It cannot be opened again through this handle."""
        handle.deleted = True
        self.unpin(handle)
        if handle.users == 0:
            self.close(handle)

    def close(self, handle: FileHandle) -> None:
        """Close one file; nobody uses it and nothing in it is unsynced (or it no longer matters)."""
        assert handle.users == 0, handle.path
        file = handle.file
        if file is None:
            return
        handle.file = None
        handle.pinned = False
        handle.owner = None
        self._idle.pop(handle, None)
        self._pinned.pop(handle, None)
        self._unasked.pop(handle, None)
        file.close()

    def close_unused(self) -> int:
        """Close the files that nobody has used since this was called last. Returns: how many.

        Files with readers or with unsynced bytes stay open.
        """
        closed = 0
        for handle in list(self._idle):
            if handle.touched or handle.users:
                handle.touched = False
            else:
                self.close(handle)
                closed += 1
        return closed

    def _evict(self) -> None:
        # A second chance for each that was used since the last look; then whoever comes first goes.
        for _ in range(2 * len(self._idle)):
            handle = next(iter(self._idle))
            del self._idle[handle]
            if handle.users or handle.touched:
                handle.touched = False
                self._idle[handle] = None
                continue
            file = handle.file
            handle.file = None
            assert file is not None, handle.path
            file.close()
            return
        raise StorageUnavailable(
            f"all {self._descriptors_max} file descriptors of the log are in use; raise the limit of open files"
        )
