"""The seam to the file system, and the real one.

All that the hot tier does with a disk goes through ``FileSystem`` and ``File``, so that the simulation can put a disk under it
that loses unflushed tails, tears writes, rots bits and fills up. Paths are plain strings. Errors are ``OSError`` with the errno
a POSIX system would give; callers turn them into the error tree.

The promises of a file system, and no more:

- Bytes written are seen by later reads at once, and kept through a crash of the process.
- Bytes are kept through a loss of power once ``fdatasync`` of their file has returned, and the file's name once ``fsync_dir`` of
  its directory has.
- A rename within a directory is atomic to readers and after a crash shows the old or the new file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from app.core.errors import ConflictError, FirnError, StorageFull, StorageUnavailable, clause
from app.core.units import Buffer
from app.machine.page_cache import all_pages_cached, finish_write_back, start_write_back

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
"""A right to read files is a right to read records, so only the broker's user has it."""


class File(Protocol):
    """One open regular file. Several threads may read it at once; for everything else it belongs to one."""

    pwrite: Callable[[Buffer, int], int]
    """Write the buffer at the position. Returns the bytes written, which may be fewer. It is an attribute, not a method, so that
    the real file can put the system call itself there."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers one after the other at ``position``. Returns the bytes written, which may be fewer."""
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes at ``position``; fewer only at the end of the file. May block on the disk."""
        ...

    def pread_into(self, view: memoryview, position: int) -> int:
        """Fill ``view`` from ``position``. Returns the bytes read, fewer only at the end of the file. May block on the disk."""
        ...

    def preadv_nowait(self, view: memoryview, position: int) -> int | None:
        """Fill ``view`` with bytes that are there without a wait for the disk.

        Returns: bytes read, perhaps fewer than asked; None if nothing is at hand or the file system cannot tell.
        """
        ...

    @property
    def can_tell_misses(self) -> bool:
        """Whether ``preadv_nowait`` works here; where it does not, it always answers None."""
        ...

    def is_cached(self, position: int, length: int) -> bool:
        """Whether these bytes can be had without waiting for the disk. False where the file system cannot tell.

        A page that is still being read from the disk may count as cached. Only one thread of the process may call it.
        """
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def fdatasync(self) -> None: ...

    def start_write_back(self, position: int, length: int) -> None:
        """Start to write these bytes to the disk, so that ``fdatasync`` has less to do. This makes nothing durable. A file system
        with a journal commits nothing for it, so no other write waits. ``length`` 0 is all from ``position`` on."""
        ...

    def finish_write_back(self, position: int, length: int) -> None:
        """The same, and wait until the disk has taken them. An error raised here may not be raised again by ``fdatasync``."""
        ...

    def drop_cached(self, position: int, length: int) -> None:
        """Drop these bytes from the page cache, except those that the disk does not have yet. Later reads wait for the disk.
        Does nothing where the system cannot do it."""
        ...

    def fileno(self) -> int:
        """The descriptor, for system calls of the caller. Raises OSError where there is none (simulation)."""
        ...

    def close(self) -> None: ...


LOCK_FILE: Final = ".lock"
"""Name of the lock file in a data directory, as in Kafka."""


class DirectoryLock(Protocol):
    """An exclusive lock on a directory, held until it is closed or the last process that inherited it has ended."""

    def fileno(self) -> int:
        """The descriptor that children inherit."""
        ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """A tree of directories and files."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open for reading and writing; with ``create`` a missing file is made. Raises FileNotFoundError."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomically; a file in the way is replaced."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Raises FileExistsError."""
        ...

    def unlink(self, path: str) -> None: ...

    def list_dir(self, path: str) -> list[str]: ...

    def is_dir(self, path: str) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def make_dirs(self, path: str) -> None:
        """Make a directory and its missing parents; one that exists is fine."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def free_bytes(self, path: str) -> int:
        """Room left for this process on the file system of ``path``."""
        ...

    def total_bytes(self, path: str) -> int:
        """Size of the file system of ``path``."""
        ...

    def lock(self, path: str) -> DirectoryLock:
        """Take the lock file at ``path``, made if missing. Raises BlockingIOError if another process has it."""
        ...


# --- small whole files ----------------------------------------------------------------------------------------------


def read_file(fs: FileSystem, path: str) -> bytes:
    """The bytes of a small file. Raises FileNotFoundError."""
    file = fs.open(path, read_only=True)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write_whole(file: File, data: Buffer, position: int) -> None:
    """Write all of ``data``, however short the single writes are. Raises OSError; then part of it may have been written."""
    written = file.pwrite(data, position)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(view):
        count = file.pwrite(view[written:], position + written)
        if count <= 0:
            raise OSError(errno.EIO, "the file system took no bytes")
        written += count


def write_all(file: File, buffers: Sequence[memoryview], position: int) -> None:
    """Write the buffers one after the other, by one call unless it falls short. Raises OSError; then part of it may have been
    written."""
    written = file.pwritev(buffers, position)
    if written == sum(map(len, buffers)):
        return
    for buffer in buffers:
        if written < len(buffer):
            write_whole(file, buffer[written:], position + written)
        written = max(0, written - len(buffer))
        position += len(buffer)


def replace_file(
    fs: FileSystem, path: str, data: bytes, *, durable: bool, writer: str = "", sync_name: bool = True
) -> None:
    """Put ``data`` at ``path`` in one step: readers see the old bytes or the new.

    With ``durable`` they also survive a loss of power once this returns; otherwise after such a loss the file may be empty or
    missing, and what reads it must be able to do without. Of one ``writer`` (``.name``) only one may be at work on a path:
    another thread needs another name, or one would rename the other's half-written temporary file away. ``sync_name=False``: the
    caller syncs the directory afterwards.
    """
    temporary = f"{path}{writer}.tmp"
    write_file(fs, temporary, data, durable=durable)
    fs.rename(temporary, path)
    if durable and sync_name:
        fs.fsync_dir(os.path.dirname(path))


def write_file(fs: FileSystem, path: str, data: bytes, *, durable: bool) -> None:
    """Write a file that is not read yet. Its name is not made durable."""
    file = fs.open(path, create=True)
    try:
        if file.size():
            file.truncate(0)
        write_whole(file, data, 0)
        if durable:
            file.fdatasync()
    finally:
        file.close()


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory and all in it. It may be gone already."""
    try:
        names = fs.list_dir(path)
    except FileNotFoundError:
        return
    for name in names:
        child = f"{path}/{name}"
        if fs.is_dir(child):
            remove_tree(fs, child)
        else:
            unlink_quietly(fs, child)
    fs.remove_dir(path)


def unlink_quietly(fs: FileSystem, path: str) -> None:
    """Unlink a file. It may be gone already."""
    try:
        fs.unlink(path)
    except FileNotFoundError:
        return


FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def storage_error(error: OSError, what: str) -> FirnError:
    """The error of the tree for an ``OSError``: StorageFull for want of room, StorageUnavailable otherwise."""
    detail = error.strerror or str(error)
    if error.errno in FULL_ERRNOS:
        return StorageFull(f"{what}: {clause(detail)}.")
    return StorageUnavailable(f"{what}: {clause(detail)}.")


# --- the real one ---------------------------------------------------------------------------------------------------


class _PosixLock:
    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PosixFile:
    """A descriptor. ``pwrite`` is the system call itself, bound to it: a method around it would cost a tenth as much again."""

    __slots__ = ("_descriptor", "_file_system", "pwrite")

    def __init__(self, descriptor: int, file_system: PosixFileSystem) -> None:
        self._descriptor = descriptor
        self._file_system = file_system
        self.pwrite: Callable[[Buffer, int], int] = partial(os.pwrite, descriptor)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(self._descriptor, buffers, position)

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._descriptor, length - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_into(self, view: memoryview, position: int) -> int:
        got = 0
        while got < len(view):
            count = os.preadv(self._descriptor, [view[got:]], position + got)
            if count == 0:
                break
            got += count
        return got

    def preadv_nowait(self, view: memoryview, position: int) -> int | None:
        if not self._file_system.can_tell_misses:
            return None
        try:
            return os.preadv(self._descriptor, [view], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                self._file_system.can_tell_misses = False
                return None
            raise

    @property
    def can_tell_misses(self) -> bool:
        return self._file_system.can_tell_misses

    def is_cached(self, position: int, length: int) -> bool:
        file_system = self._file_system
        if not (file_system.can_count_pages and file_system.can_tell_misses):
            return False
        try:
            # Of pages that read-ahead has asked for, and that are not there yet, the last one tells most often.
            return (
                all_pages_cached(self._descriptor, position, length)
                and self.preadv_nowait(file_system.probe, position + length - 1) == 1
            )
        except OSError as error:
            if error.errno == errno.EPERM:
                return False  # another user's file
            if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
                file_system.can_count_pages = False
                return False
            raise

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def fdatasync(self) -> None:
        os.fdatasync(self._descriptor)

    def start_write_back(self, position: int, length: int) -> None:
        start_write_back(self._descriptor, position, length)

    def finish_write_back(self, position: int, length: int) -> None:
        finish_write_back(self._descriptor, position, length)

    def drop_cached(self, position: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, position, length, os.POSIX_FADV_DONTNEED)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PosixFileSystem:
    """The machine's own file system.

    Whether ``RWF_NOWAIT`` and ``cachestat`` work is found out by the first use and held for all: a data directory is on one
    file system.
    """

    def __init__(self) -> None:
        self.can_tell_misses = hasattr(os, "RWF_NOWAIT")
        self.can_count_pages = sys.platform == "linux"
        self.probe = memoryview(bytearray(1))
        """Buffer for a byte that is read only to see whether it can be read."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT
        return PosixFile(os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE), self)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def list_dir(self, path: str) -> list[str]:
        return os.listdir(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, PRIVATE_DIRECTORY, exist_ok=True)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        stats = os.statvfs(path)
        return stats.f_bavail * stats.f_frsize

    def total_bytes(self, path: str) -> int:
        stats = os.statvfs(path)
        return stats.f_blocks * stats.f_frsize

    def lock(self, path: str) -> DirectoryLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return _PosixLock(descriptor)


def make_private(directory: str) -> str | None:
    """Take all rights from group and others in a directory of records, which an older version or another program may have made.

    Returns: why it stays open to them, or None.
    """
    mode = stat.S_IMODE(os.stat(directory).st_mode)
    if not mode & ~PRIVATE_DIRECTORY:
        return None
    try:
        os.chmod(directory, mode & PRIVATE_DIRECTORY)
    except OSError as error:
        return f"{directory} is open to other users of this machine (mode {mode:o}), and stays so: {error.strerror}"
    return None


def claim_directory(fs: FileSystem, directory: str) -> DirectoryLock:
    """Make a data directory, durably, and take its lock. Raises: ConflictError, StorageUnavailable."""
    try:
        fs.make_dirs(directory)
        # Its name must outlive a loss of power as the records in it do.
        fs.fsync_dir(os.path.dirname(os.path.abspath(directory)))
    except OSError as error:
        raise storage_error(error, f"Cannot make {directory}") from error
    return lock_directory(fs, directory)


def lock_directory(fs: FileSystem, directory: str) -> DirectoryLock:
    """Take ``directory``'s ``.lock``, as Kafka does, so that no second process works in it.

    Raises: ConflictError if another process has it; StorageUnavailable if the directory cannot be written.
    """
    try:
        return fs.lock(f"{directory}/{LOCK_FILE}")
    except BlockingIOError:
        raise ConflictError(f"{directory} is in use by another process; stop that one first.") from None
    except OSError as error:
        raise storage_error(error, f"Cannot lock {directory}") from error
