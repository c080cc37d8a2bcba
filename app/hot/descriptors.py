"""The cache of open files. It stays below the process's limit, and never closes a file that is in use.

A segment's file is a ``FileHandle``, open or closed. The cache opens it on demand. If too many files are open, the cache closes
the file that has been unused for the longest time. It also closes files that have been unused for long. Two kinds of files stay
open: files that are being read (``users``), and files with unsynced bytes (``pinned``). The kernel reports a write-back error only
to descriptors that were open when the error happened, so closing a pinned file could lose the only report of lost data.

One request may read thousands of files. Its reader asks ``crowded`` after each and stops, so that appends find descriptors.
"""

from __future__ import annotations

from collections.abc import Callable

from app.core.errors import StorageUnavailable
from app.machine.files import File, FileSystem, storage_error


class FileHandle:
    """One file of a log, open or not."""

    __slots__ = ("cache", "deleted", "file", "owner", "path", "pinned", "touched", "users")

    def __init__(self, cache: DescriptorCache, path: str) -> None:
        self.cache = cache
        self.owner: object = None
        """The owner that pinned the file; None if it is not pinned."""
        self.path = path
        self.file: File | None = None
        self.users = 0
        """Number of active readers. The file is not evicted meanwhile. If it is deleted, it is closed after its last reader."""
        self.pinned = False
        """Whether the file has unsynced bytes."""
        self.touched = False
        """Whether the file was used since eviction last checked it."""
        self.deleted = False

    def acquire(self) -> File:
        """Open the file unless it is open, and keep it open until ``release``.

        Raises: StorageUnavailable if it cannot be opened or was deleted.
        """
        file = self.file
        if file is None:
            file = self.cache.open(self)
        if not self.users:
            self.cache.read += 1
        self.users += 1
        self.touched = True
        return file

    def release(self) -> None:
        self.users -= 1
        assert self.users >= 0, self.path
        if not self.users:
            self.cache.read -= 1
            if self.deleted:
                self.cache.close(self)


class DescriptorCache:
    """Open files, up to a limit. Belongs to the event loop; only the reads themselves run elsewhere."""

    def __init__(self, fs: FileSystem, descriptors_max: int) -> None:
        assert descriptors_max > 0
        self._fs = fs
        self._descriptors_max = descriptors_max
        self.read = 0
        """Files that have readers."""
        self._read_max = descriptors_max * 3 // 4
        self._idle: dict[FileHandle, None] = {}
        """Open files that are not pinned, in the order in which eviction checks them."""
        self._pinned: dict[FileHandle, None] = {}
        """Open pinned files, the longest pinned first."""
        self._unasked: dict[FileHandle, None] = {}
        """Pinned files whose sync the cache has not requested yet."""
        self.on_pressure: Callable[[FileHandle], None] | None = None
        """Called for the longest pinned file while more than half of the descriptors are pinned. The callee syncs the file, so
        that it can be closed. Called once for each file."""

    @property
    def open_count(self) -> int:
        return len(self._idle) + len(self._pinned)

    @property
    def crowded(self) -> bool:
        """Whether readers have three quarters of all descriptors. A request that has records should take no more then."""
        return self.read >= self._read_max

    def open(self, handle: FileHandle, *, create: bool = False) -> File:
        """The handle's open file. Raises StorageUnavailable, StorageFull."""
        if handle.file is not None:
            return handle.file
        if handle.deleted:
            raise StorageUnavailable(f"{handle.path} has been deleted.")
        if self.open_count >= self._descriptors_max:
            self._evict()
        try:
            file = self._fs.open(handle.path, create=create)
        except OSError as error:
            raise storage_error(error, f"Cannot open {handle.path}") from error
        handle.file = file
        handle.touched = True
        if handle.pinned:
            self._pinned[handle] = None
        else:
            self._idle[handle] = None
        return file

    def pin(self, handle: FileHandle, owner: object = None) -> None:
        """The open file now has unsynced bytes. ``owner`` can sync them."""
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
        """All bytes of the file are synced, or no longer matter."""
        if handle.pinned:
            handle.pinned = False
            handle.owner = None
            del self._pinned[handle]
            self._unasked.pop(handle, None)
            self._idle[handle] = None

    def delete(self, handle: FileHandle) -> None:
        """The file is deleted: close it now, or after its last reader. This handle cannot open it again."""
        handle.deleted = True
        self.unpin(handle)
        if handle.users == 0:
            self.close(handle)

    def close(self, handle: FileHandle) -> None:
        """Close a file that is not in use and has no unsynced bytes (or none that still matter)."""
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
        """Close the files that were not used since the last call. Returns: how many.

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

    def close_all(self) -> None:
        """Close all files without readers and without unsynced bytes: their users have ended."""
        for handle in list(self._idle):
            if not handle.users:
                self.close(handle)

    def _evict(self) -> None:
        # A second chance for each that was used since the last look; then the first file goes.
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
            f"All {self._descriptors_max} file descriptors of the log are in use; raise the limit of open files."
        )
