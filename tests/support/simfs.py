"""A disk in memory that forgets like a real one: the hot tier's ``FileSystem`` for tests and the simulation.

Bytes written live in the "page cache" until ``fdatasync`` of their file, names until ``fsync_dir`` of their directory. ``crash``
keeps what was made durable and, of the rest, whatever a seeded random generator pleases: pages of unsynced writes survive one by
one, so that tails are lost and writes torn; name changes survive as a prefix of their order in each directory. ``kill`` keeps
everything, as the page cache outlives a process. Room, failing syncs, cold pages and rotten bits are set from outside.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence

Buffer = bytes | bytearray | memoryview

PAGE_BYTES = 4096


class _Inode:
    """A file's bytes: as processes see them, and as the disk has them."""

    __slots__ = ("current", "dirty_pages", "durable", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.current = bytearray()
        self.durable = b""
        self.dirty_pages: set[int] = set()


class _Directory:
    """Names, as processes see them, and as the disk has them; ``pending`` are the changes between, in order."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}
        self.pending: list[tuple[tuple[str, _Inode | _Directory | None], ...]] = []

    def change(self, *changes: tuple[str, _Inode | _Directory | None]) -> None:
        """One atomic change of names; None removes."""
        _apply(self.names, changes)
        self.pending.append(changes)


def _apply(names: dict[str, _Inode | _Directory], changes: Sequence[tuple[str, _Inode | _Directory | None]]) -> None:
    for name, target in changes:
        if target is None:
            names.pop(name, None)
        else:
            names[name] = target


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class SimFile:
    """An open file of a ``SimFileSystem``."""

    def __init__(self, fs: SimFileSystem, path: str, inode: _Inode, read_only: bool) -> None:
        self._fs = fs
        self._inode = inode
        self._generation = fs.generation
        self._read_only = read_only
        self.path = path
        self.pwrite: Callable[[Buffer, int], int] = self._pwrite
        self.open = True

    def _check(self) -> None:
        if not self.open or self._generation != self._fs.generation:
            raise _error(errno.EBADF, self.path)

    def _pwrite(self, data: Buffer, position: int) -> int:
        self._check()
        if self._read_only:
            raise _error(errno.EBADF, self.path)
        fs, current = self._fs, self._inode.current
        length = fs.write_length(self.path, len(data))
        grown = max(0, position + length - len(current))
        if grown > fs.free:
            # As much as there is room for, like a real disk; nothing at all is an error.
            length -= grown - fs.free
            if length <= 0:
                raise _error(errno.ENOSPC, self.path)
            grown = fs.free
        fs.used += grown
        if position > len(current):
            current.extend(bytes(position - len(current)))
        current[position : position + length] = memoryview(data).cast("B")[:length]
        self._inode.dirty_pages.update(range(position // PAGE_BYTES, (position + length - 1) // PAGE_BYTES + 1))
        fs.note("write", self.path)
        return length

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return self._pwrite(b"".join(buffers), position)

    def pread(self, length: int, position: int) -> bytes:
        self._check()
        self._fs.note("read", self.path)
        return bytes(self._inode.current[position : position + length])

    def pread_into(self, view: memoryview, position: int) -> int:
        data = self.pread(len(view), position)
        view[: len(data)] = data
        return len(data)

    def preadv_nowait(self, view: memoryview, position: int) -> int | None:
        self._check()
        if not self._fs.can_tell_misses or self._fs.rng.random() < self._fs.cold_rate:
            return None
        return self.pread_into(view, position)

    @property
    def can_tell_misses(self) -> bool:
        return self._fs.can_tell_misses

    def is_cached(self, position: int, length: int) -> bool:
        return False

    def size(self) -> int:
        self._check()
        return len(self._inode.current)

    def truncate(self, size: int) -> None:
        self._check()
        if self._fs.fails("truncate", self.path):
            raise _error(errno.EIO, self.path)
        current = self._inode.current
        if size < len(current):
            self._fs.used -= len(current) - size
            del current[size:]
        else:
            self._fs.used += size - len(current)
            current.extend(bytes(size - len(current)))
        # The new size reaches the disk with the page it ends in.
        self._inode.dirty_pages.add(size // PAGE_BYTES)
        self._fs.note("truncate", self.path)

    def fdatasync(self) -> None:
        self._check()
        if self._fs.fails("fdatasync", self.path):
            # What the kernel does: the pages are clean now, and gone.
            self._inode.dirty_pages.clear()
            raise _error(errno.EIO, self.path)
        self._inode.durable = bytes(self._inode.current)
        self._inode.dirty_pages.clear()
        self._fs.note("fdatasync", self.path)

    def start_write_back(self, position: int, length: int) -> None:
        self._check()
        self._fs.note("start write-back", self.path)

    def finish_write_back(self, position: int, length: int) -> None:
        self._check()
        if self._fs.fails("finish write-back", self.path):
            raise _error(errno.EIO, self.path)
        self._fs.note("finish write-back", self.path)

    def drop_cached(self, position: int, length: int) -> None:
        self._check()
        self._fs.note("drop cached", self.path)

    def fileno(self) -> int:
        raise _error(errno.EBADF, self.path)

    def close(self) -> None:
        if self.open:
            self.open = False
            if self._generation == self._fs.generation:
                self._fs.open_files -= 1
                self._fs.note("close", self.path)


class SimLock:
    def __init__(self, fs: SimFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def fileno(self) -> int:
        raise _error(errno.EBADF, self._path)

    def close(self) -> None:
        self._fs.locked.discard(self._path)


class SimFileSystem:
    """The disk. Attributes are its knobs and meters; every random choice comes from ``rng``."""

    def __init__(self, rng: random.Random, *, capacity_bytes: int = 1 << 40) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.used = 0
        self.can_tell_misses = True
        self.cold_rate = 0.0
        """How often ``preadv_nowait`` finds nothing in the page cache."""
        self.short_write_rate = 0.0
        self.open_files = 0
        self.open_files_max = 1 << 30
        self.open_files_peak = 0
        self.generation = 0
        """Rises with every crash or kill: files opened before are dead."""
        self.locked: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.trace: list[tuple[str, str]] | None = None
        """Set it to a list to have (call, path) of everything that changes or syncs something."""
        self._failing: list[tuple[str, str]] = []
        self._root = _Directory()
        self._inodes = 0

    @property
    def free(self) -> int:
        return max(0, self.capacity_bytes - self.used)

    # --- faults -----------------------------------------------------------------------------------------------------

    def fail_next(self, call: str, path_end: str = "") -> None:
        """Have the next ``call`` (fdatasync, truncate, fsync_dir) on a path that ends so fail with EIO."""
        self._failing.append((call, path_end))

    def fails(self, call: str, path: str) -> bool:
        for number, (failing, path_end) in enumerate(self._failing):
            if failing == call and path.endswith(path_end):
                del self._failing[number]
                return True
        return False

    def write_length(self, path: str, length: int) -> int:
        if length > 1 and self.rng.random() < self.short_write_rate:
            return self.rng.randrange(1, length)
        return length

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Rot: one bit of a file changes, on the disk and in the page cache."""
        inode = self._file(path)
        inode.current[position] ^= 1 << bit
        if position < len(inode.durable):
            durable = bytearray(inode.durable)
            durable[position] ^= 1 << bit
            inode.durable = bytes(durable)

    def kill(self) -> None:
        """The process dies; the page cache lives."""
        self.generation += 1
        self.open_files = 0
        self.locked.clear()

    def crash(self) -> None:
        """The power goes: what was not synced may be lost, in part or all of it."""
        self.kill()
        self.used = 0
        self._crash_directory(self._root, set())

    def _crash_directory(self, directory: _Directory, seen: set[int]) -> None:
        for changes in directory.pending[: self.rng.randint(0, len(directory.pending))]:
            _apply(directory.durable, changes)
        directory.pending.clear()
        directory.names = dict(directory.durable)
        for target in directory.names.values():
            if isinstance(target, _Directory):
                self._crash_directory(target, seen)
            elif target.number not in seen:
                seen.add(target.number)
                self._crash_file(target)

    def _crash_file(self, inode: _Inode) -> None:
        if inode.dirty_pages:
            keep_rate = self.rng.choice((0.0, 0.5, 0.9, 1.0))
            survivors = [page for page in sorted(inode.dirty_pages) if self.rng.random() < keep_rate]
            content = bytearray(inode.durable)
            for page in survivors:
                start = page * PAGE_BYTES
                data = inode.current[start : start + PAGE_BYTES]
                if len(data) > 1 and self.rng.random() < 0.2:
                    data = data[: self.rng.randrange(1, len(data))]
                if start > len(content):
                    content.extend(bytes(start - len(content)))
                content[start : start + len(data)] = data
                if len(inode.current) < start + PAGE_BYTES and len(content) > len(inode.current):
                    del content[len(inode.current) :]
            inode.current = content
        else:
            inode.current = bytearray(inode.durable)
        inode.durable = bytes(inode.current)
        inode.dirty_pages.clear()
        self.used += len(inode.current)

    def note(self, call: str, path: str) -> None:
        self.calls[call] += 1
        if self.trace is not None and call != "read":
            self.trace.append((call, path))

    # --- names ------------------------------------------------------------------------------------------------------

    def _split(self, path: str) -> tuple[_Directory, str]:
        parts = [part for part in path.split("/") if part]
        directory = self._root
        for part in parts[:-1]:
            child = directory.names.get(part)
            if not isinstance(child, _Directory):
                raise _error(errno.ENOENT, path)
            directory = child
        return directory, parts[-1] if parts else ""

    def _find(self, path: str) -> _Inode | _Directory | None:
        try:
            directory, name = self._split(path)
        except FileNotFoundError:
            return None
        return directory.names.get(name) if name else directory

    def _file(self, path: str) -> _Inode:
        found = self._find(path)
        if not isinstance(found, _Inode):
            raise _error(errno.ENOENT if found is None else errno.EISDIR, path)
        return found

    def _dir(self, path: str) -> _Directory:
        found = self._find(path)
        if not isinstance(found, _Directory):
            raise _error(errno.ENOENT if found is None else errno.ENOTDIR, path)
        return found

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SimFile:
        if self.open_files >= self.open_files_max:
            raise _error(errno.EMFILE, path)
        directory, name = self._split(path)
        found = directory.names.get(name)
        if found is None:
            if not create:
                raise _error(errno.ENOENT, path)
            if self.free <= 0:
                raise _error(errno.ENOSPC, path)
            self._inodes += 1
            found = _Inode(self._inodes)
            directory.change((name, found))
            self.note("create", path)
        if isinstance(found, _Directory):
            raise _error(errno.EISDIR, path)
        self.open_files += 1
        self.open_files_peak = max(self.open_files_peak, self.open_files)
        self.note("open", path)
        return SimFile(self, path, found, read_only)

    def rename(self, source: str, target: str) -> None:
        directory, name = self._split(source)
        target_directory, target_name = self._split(target)
        found = directory.names.get(name)
        if found is None:
            raise _error(errno.ENOENT, source)
        if directory is not target_directory:
            raise _error(errno.EXDEV, target)
        replaced = directory.names.get(target_name)
        if isinstance(replaced, _Inode):
            self.used -= len(replaced.current)
        directory.change((name, None), (target_name, found))
        self.note("rename", target)

    def link(self, source: str, target: str) -> None:
        inode = self._file(source)
        directory, name = self._split(target)
        if name in directory.names:
            raise _error(errno.EEXIST, target)
        directory.change((name, inode))
        self.note("link", target)

    def unlink(self, path: str) -> None:
        inode = self._file(path)
        directory, name = self._split(path)
        directory.change((name, None))
        self.used -= len(inode.current)
        self.note("unlink", path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._dir(path).names)

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), _Directory)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def file_size(self, path: str) -> int:
        return len(self._file(path).current)

    def modified_ms(self, path: str) -> int:
        self._file(path)
        return 0

    def make_dirs(self, path: str) -> None:
        directory = self._root
        for part in [part for part in path.split("/") if part]:
            child = directory.names.get(part)
            if child is None:
                child = _Directory()
                directory.change((part, child))
                self.note("mkdir", path)
            if not isinstance(child, _Directory):
                raise _error(errno.EEXIST, path)
            directory = child

    def remove_dir(self, path: str) -> None:
        if self._dir(path).names:
            raise _error(errno.ENOTEMPTY, path)
        directory, name = self._split(path)
        directory.change((name, None))

    def fsync_dir(self, path: str) -> None:
        directory = self._dir(path)
        if self.fails("fsync_dir", path):
            raise _error(errno.EIO, path)
        for changes in directory.pending:
            _apply(directory.durable, changes)
        directory.pending.clear()
        self.note("fsync_dir", path)

    def free_bytes(self, path: str) -> int:
        return self.free

    def total_bytes(self, path: str) -> int:
        return self.capacity_bytes

    def lock(self, path: str) -> SimLock:
        if path in self.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.open(path, create=True).close()
        self.locked.add(path)
        return SimLock(self, path)
