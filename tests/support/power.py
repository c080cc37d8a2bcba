"""Losses of power for real broker processes: a file system that keeps account, and what takes back.

A page cache outlives a process that is killed, so a killed broker loses nothing that it wrote. ``AccountedFileSystem`` is the
real file system. In files that outlive the process it notes what bytes and names were before each change, and what was synced.
``lose_power`` reads these notes when the process has ended, and leaves what a disk may have after a loss of power:

- What ``fdatasync`` or ``fsync_dir`` has made durable is there.
- Of other writes, pages or sectors are there or not, one by one, and some of them in part. A file has its old size, its new
  one, or ends with what was kept. In place of what was not kept are the bytes of before, or zeros.
- Of the names that were made, moved or removed in a directory, the first ones are, and the others are not. Each directory
  forgets by itself.

``SimFileSystem`` forgets in the same way. What a process does past ``FileSystem`` is kept: the lock of a data directory, the audit
log, which is promised to nobody after a loss of power, and a directory that stands for the bucket, which is another machine.

The account of a directory is a folder on the same file system, outside of it:

- ``start``: the names that were durable when it began,
- ``life-N``: what the N-th process noted,
- ``removed/INODE``: second names of files that were removed, as long as the removal may be taken back.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import stat
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from app.core.units import Buffer
from app.machine.files import PRIVATE_DIRECTORY, PosixFile, PosixFileSystem

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
KEEP_RATES: Final = (0.0, 0.3, 0.5, 0.8, 0.95, 1.0)
"""How much of what was written since its last sync a file may keep."""
TORN_RATE: Final = 0.1
"""How often a page or sector that is kept is kept in part only."""

_NOTE: Final = struct.Struct("<BQQQQI")
"""Kind; inode; three numbers; length of what follows."""
_CHANGED: Final = 1
"""Bytes of a file are about to change: position, length, and size before; then the bytes that are there now."""
_SYNC_BEGUN: Final = 2
"""Of a file or directory: number of the sync."""
_SYNCED: Final = 3
_NAMES: Final = 4
"""Names of a directory have changed in one step: JSON of the inode by name, null where there is none any more."""
_NEW_FILE: Final = 5
"""The inode is a new file from now on: it may have been another one's."""
_NEW_DIRECTORY: Final = 6
_GONE: Final = 7
"""The inode may be another one's from now on."""

Node: TypeAlias = "_FileNode | _DirectoryNode"


# --- the account ----------------------------------------------------------------------------------------------------


def begin(directory: Path, account: Path) -> None:
    """Begin an account: all that is in the directory now is durable. There is no process in it."""
    (account / "removed").mkdir(parents=True)
    tree = {
        str(os.stat(parent).st_ino): {
            name: (os.lstat(f"{parent}/{name}").st_ino, name in folders) for name in (*folders, *files)
        }
        for parent, folders, files in os.walk(directory)
    }
    (account / "start").write_text(json.dumps(tree))


class Account:
    """What a process notes. Its threads may do so at once."""

    def __init__(self, path: str, sync_s_max: float) -> None:
        self.sync_s_max = sync_s_max
        self.path = path
        lives = [name for name in os.listdir(path) if name.startswith("life-")]
        self._notes = os.open(f"{path}/life-{len(lives)}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._syncs = itertools.count()
        self.lock = threading.RLock()
        """Held from a note to the end of what it tells of. A sync begins between two of them."""

    def close(self) -> None:
        """The process notes no more."""
        os.close(self._notes)

    def note(self, kind: int, inode: int, *numbers: int, more: bytes = b"") -> None:
        """Call it with the lock."""
        first, second, third = (*numbers, 0, 0, 0)[:3]
        note = _NOTE.pack(kind, inode, first, second, third, len(more)) + more
        written = os.write(self._notes, note)
        assert written == len(note), "the disk of the test is full"

    def begin_sync(self, inode: int) -> int:
        """Returns: a number for ``end_sync``. What changes from now on is not synced by it."""
        with self.lock:
            number = next(self._syncs)
            self.note(_SYNC_BEGUN, inode, number)
            return number

    def end_sync(self, inode: int, number: int) -> None:
        with self.lock:
            self.note(_SYNCED, inode, number)

    def write(self, descriptor: int, inode: int, data: Buffer, position: int) -> int:
        with self.lock:
            self.note_change(descriptor, inode, position, memoryview(data).nbytes)
            return os.pwrite(descriptor, data, position)

    def truncate(self, descriptor: int, inode: int, size: int) -> None:
        with self.lock:
            self.note_change(descriptor, inode, size, os.fstat(descriptor).st_size - size)
            os.ftruncate(descriptor, size)

    def note_change(self, descriptor: int, inode: int, position: int, length: int) -> None:
        size = os.fstat(descriptor).st_size
        old = os.pread(descriptor, length, position) if length > 0 and position < size else b""
        start, end = min(position, size), max(position, position + length)
        if start < end:
            self.note(_CHANGED, inode, start, end - start, size, more=old if start == position else b"")

    def note_names(self, directory: str, names: Mapping[str, int | None]) -> None:
        """They have changed in one step. Call it with the lock."""
        self.note(_NAMES, os.stat(directory).st_ino, more=json.dumps(names).encode())

    def keep(self, path: str) -> int:
        """Keep a file whose name is about to go. Returns: its inode."""
        inode = os.lstat(path).st_ino
        with suppress(FileExistsError):  # it had another name, which has gone
            os.link(path, f"{self.path}/removed/{inode}")
        return inode

    def let_go(self, inodes: Sequence[int]) -> None:
        """Names of these files have gone for good."""
        with self.lock:
            for inode in dict.fromkeys(inodes):
                path = f"{self.path}/removed/{inode}"
                if os.stat(path).st_nlink == 1:
                    self.note(_GONE, inode)
                os.unlink(path)


class AccountedFile(PosixFile):
    """A file whose changes are noted."""

    __slots__ = ("_account", "_inode")

    def __init__(self, descriptor: int, file_system: AccountedFileSystem) -> None:
        super().__init__(descriptor, file_system)
        self._account = file_system.account
        self._inode = os.fstat(descriptor).st_ino
        self.pwrite = partial(self._account.write, descriptor, self._inode)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return self.pwrite(b"".join(buffers), position)

    def truncate(self, size: int) -> None:
        self._account.truncate(self._descriptor, self._inode, size)

    def fdatasync(self) -> None:
        number = self._account.begin_sync(self._inode)
        if self._account.sync_s_max:
            time.sleep(random.uniform(0, self._account.sync_s_max))
        super().fdatasync()
        self._account.end_sync(self._inode, number)


class AccountedFileSystem(PosixFileSystem):
    """The machine's own, with an account of a directory. Files elsewhere are not to be opened with it."""

    def __init__(self, account: Path, *, sync_s_max: float = 0.0) -> None:
        """``account``: one that was begun. A process has one such file system. ``sync_s_max``: how much longer than on this disk it
        takes at most to sync a file. So more is not synced when the power goes."""
        super().__init__()
        self.account = Account(str(account), sync_s_max)
        self._removed: dict[int, list[int]] = {}
        """Files whose names have gone since the last sync of a directory, by the inode of the directory."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> AccountedFile:
        if not create:
            return self._opened(path, os.O_RDONLY if read_only else os.O_RDWR)
        with self.account.lock:
            is_new = not os.path.lexists(path)
            file = self._opened(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CREAT)
            if is_new:
                inode = os.fstat(file.fileno()).st_ino
                self.account.note(_NEW_FILE, inode)
                self._note_names(path, inode)
            return file

    def _opened(self, path: str, flags: int) -> AccountedFile:
        return AccountedFile(os.open(path, flags | os.O_CLOEXEC, 0o600), self)

    def _note_names(self, path: str, inode: int | None) -> None:
        directory, name = os.path.split(path)
        self.account.note_names(directory, {name: inode})

    def rename(self, source: str, target: str) -> None:
        directory, name = os.path.split(source)
        target_directory, target_name = os.path.split(target)
        assert directory == target_directory, "within a directory, as FileSystem promises"
        with self.account.lock:
            inode = os.lstat(source).st_ino
            if os.path.isfile(target):
                self._remember(directory, self.account.keep(target))
            super().rename(source, target)
            self.account.note_names(directory, {name: None, target_name: inode})

    def _remember(self, directory: str, inode: int) -> None:
        self._removed.setdefault(os.stat(directory).st_ino, []).append(inode)

    def link(self, source: str, target: str) -> None:
        with self.account.lock:
            super().link(source, target)
            self._note_names(target, os.lstat(target).st_ino)

    def unlink(self, path: str) -> None:
        with self.account.lock:
            self._remember(os.path.dirname(path), self.account.keep(path))
            super().unlink(path)
            self._note_names(path, None)

    def make_dirs(self, path: str) -> None:
        with self.account.lock:
            missing = []
            while not os.path.isdir(path):
                missing.append(path)
                path = os.path.dirname(path)
            for each in reversed(missing):
                os.mkdir(each, PRIVATE_DIRECTORY)
                inode = os.stat(each).st_ino
                self.account.note(_NEW_DIRECTORY, inode)
                self._note_names(each, inode)

    def remove_dir(self, path: str) -> None:
        with self.account.lock:
            inode = os.stat(path).st_ino
            super().remove_dir(path)
            self._note_names(path, None)
            self.account.note(_GONE, inode)

    def fsync_dir(self, path: str) -> None:
        inode = os.stat(path).st_ino
        with self.account.lock:
            number = self.account.begin_sync(inode)
            removed = self._removed.pop(inode, [])
        super().fsync_dir(path)
        self.account.end_sync(inode, number)
        self.account.let_go(removed)


# --- the loss -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Change:
    """Of bytes of a file."""

    start: int
    length: int
    size_before: int
    old: bytes
    """What was there, from ``start`` on. It is shorter than ``length`` where the file ended."""


@dataclass(eq=False)
class _FileNode:
    inode: int
    changes: list[_Change] = field(default_factory=list)
    """Since the last sync, in order."""
    begun: dict[int, int] = field(default_factory=dict)
    """How many of ``changes`` a sync makes durable, by its number. Numbers begin anew with each process."""

    def begin_sync(self, number: int) -> None:
        self.begun[number] = len(self.changes)

    def end_sync(self, number: int) -> None:
        count = self.begun.pop(number)
        del self.changes[:count]
        self.begun = {other: max(other_count - count, 0) for other, other_count in self.begun.items()}

    def durable_of(self, current: bytes) -> bytearray:
        """What the last sync left, of a file that has these bytes."""
        content = bytearray(current)
        for change in reversed(self.changes):
            _put(content, change.start, change.old)
            del content[change.size_before :]
            content.extend(bytes(change.size_before - len(content)))
        return content


@dataclass(eq=False)
class _DirectoryNode:
    inode: int
    names: dict[str, Node] = field(default_factory=dict)
    """As processes see them."""
    durable: dict[str, Node] = field(default_factory=dict)
    changes: list[Mapping[str, Node | None]] = field(default_factory=list)
    """Of names, since the last sync, in order."""
    begun: dict[int, int] = field(default_factory=dict)
    """As of a file."""

    def change(self, change: Mapping[str, Node | None]) -> None:
        _apply(self.names, change)
        self.changes.append(change)

    def begin_sync(self, number: int) -> None:
        self.begun[number] = len(self.changes)

    def end_sync(self, number: int) -> None:
        count = self.begun.pop(number)
        for change in self.changes[:count]:
            _apply(self.durable, change)
        del self.changes[:count]
        self.begun = {other: max(other_count - count, 0) for other, other_count in self.begun.items()}


def _apply(names: dict[str, Node], change: Mapping[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _put(content: bytearray, start: int, data: bytes) -> None:
    """Put bytes into a file, with zeros before them if it is shorter."""
    content.extend(bytes(max(start - len(content), 0)))
    content[start : start + len(data)] = data


class Lost(NamedTuple):
    """What a loss of power has taken back."""

    files: int
    """Files that had changed since their last sync."""
    changed_files: int
    """Those of them that have other bytes now. Files whose names are lost do not count."""
    names: int
    """Changes of names that were not synced."""
    lost_names: int
    """Those of them that were taken back."""


def lose_power(directory: Path, account: Path, rng: random.Random) -> Lost:
    """Leave in a directory what a disk may have after a loss of power, and begin its account anew. No process is in it any more."""
    nodes = _read(account)
    root = nodes[os.stat(directory).st_ino]
    assert isinstance(root, _DirectoryNode)
    loss = _Loss(nodes, account / "removed", rng)
    loss.look_at(root, directory)
    loss.leave(root, account / "disk")
    directory.rename(account / "before")
    (account / "disk").rename(directory)
    shutil.rmtree(account)
    begin(directory, account)
    return Lost(loss.files, loss.changed_files, loss.names, loss.lost_names)


def _read(account: Path) -> dict[int, Node]:
    """What is known of each inode."""
    nodes: dict[int, Node] = {}
    start = json.loads((account / "start").read_text())
    for directory in start:
        nodes[int(directory)] = _DirectoryNode(int(directory))
    for directory, entries in start.items():
        node = nodes[int(directory)]
        assert isinstance(node, _DirectoryNode)
        node.names = {
            name: nodes[inode] if is_directory else nodes.setdefault(inode, _FileNode(inode))
            for name, (inode, is_directory) in entries.items()
        }
        node.durable = dict(node.names)
    for number in range(len(list(account.glob("life-*")))):
        for note in _notes((account / f"life-{number}").read_bytes()):
            _follow(nodes, *note)
    return nodes


def _notes(data: bytes) -> Iterator[tuple[int, int, int, int, int, bytes]]:
    """Kind, inode, numbers, and what follows. The last note may be cut: then nothing came of what it tells of."""
    position = 0
    while position + _NOTE.size <= len(data):
        *numbers, length = _NOTE.unpack_from(data, position)
        position += _NOTE.size
        if position + length > len(data):
            return
        kind, inode, first, second, third = numbers
        yield kind, inode, first, second, third, data[position : position + length]
        position += length


def _follow(nodes: dict[int, Node], kind: int, inode: int, first: int, second: int, third: int, more: bytes) -> None:
    """Do in ``nodes`` what a note tells of."""
    if kind == _NEW_FILE:
        nodes[inode] = _FileNode(inode)
    elif kind == _NEW_DIRECTORY:
        nodes[inode] = _DirectoryNode(inode)
    elif kind == _GONE:
        nodes.pop(inode, None)
    elif kind == _NAMES:
        # What is not known here was made by a process that was killed before it noted that. The next process names it.
        directory = nodes.setdefault(inode, _DirectoryNode(inode))
        assert isinstance(directory, _DirectoryNode)
        directory.change(
            {name: None if to is None else nodes.setdefault(to, _FileNode(to)) for name, to in json.loads(more).items()}
        )
    elif (node := nodes.get(inode)) is None:
        return  # its names have gone for good, and somebody has it open
    elif kind == _SYNC_BEGUN:
        node.begin_sync(first)
    elif kind == _SYNCED:
        if first in node.begun:  # else it began before the inode became this file
            node.end_sync(first)
    else:
        assert kind == _CHANGED
        assert isinstance(node, _FileNode)
        node.changes.append(_Change(first, second, third, more))


class _Loss:
    """Of one directory."""

    def __init__(self, nodes: Mapping[int, Node], removed: Path, rng: random.Random) -> None:
        self._nodes = nodes
        self._rng = rng
        self._places = {int(name): f"{removed}/{name}" for name in os.listdir(removed)}
        """Where each file or directory is, by its inode."""
        self._strange: dict[_DirectoryNode, list[str]] = {}
        """What is in a directory and was not made through ``FileSystem``."""
        self._settled: set[_FileNode] = set()
        self.files = self.changed_files = self.names = self.lost_names = 0

    def look_at(self, node: _DirectoryNode, path: str | Path) -> None:
        """Look at what is in a directory: the process may have changed names that it could not note any more."""
        self._places[node.inode] = str(path)
        there: dict[str, Node] = {}
        for name in sorted(os.listdir(path)):
            child = self._nodes.get(os.lstat(f"{path}/{name}").st_ino)
            if child is None:
                self._strange.setdefault(node, []).append(f"{path}/{name}")
                continue
            there[name] = child
            if isinstance(child, _DirectoryNode):
                self.look_at(child, f"{path}/{name}")
            else:
                self._places[child.inode] = f"{path}/{name}"
        if there != node.names:
            node.change({name: there.get(name) for name in sorted(there.keys() | node.names.keys())})

    def leave(self, node: _DirectoryNode, target: Path) -> None:
        """Make a directory with what is left of one."""
        place = self._place_of(node)
        target.mkdir(PRIVATE_DIRECTORY if place is None else stat.S_IMODE(os.stat(place).st_mode))
        kept = self._rng.randint(0, len(node.changes))
        names = dict(node.durable)
        for change in node.changes[:kept]:
            _apply(names, change)
        self.names += len(node.changes)
        self.lost_names += len(node.changes) - kept
        for name, child in sorted(names.items()):
            if isinstance(child, _DirectoryNode):
                self.leave(child, target / name)
            else:
                path = self._place_of(child)
                assert path is not None, f"the bytes of {target / name} are kept as long as its name may come back"
                os.link(path, target / name)
                self._settle(child, target / name)
        for strange in self._strange.get(node, ()):
            name = os.path.basename(strange)
            if name not in names:
                os.rename(strange, target / name)

    def _place_of(self, node: Node) -> str | None:
        """Where it is; None if it is nowhere any more."""
        return self._places.get(node.inode) if self._nodes.get(node.inode) is node else None

    def _settle(self, node: _FileNode, path: Path) -> None:
        """Take bytes of a file back."""
        if not node.changes or node in self._settled:
            return
        self._settled.add(node)
        was = path.stat()
        current = path.read_bytes()
        content = left_of(current, node, self._rng)
        path.write_bytes(content)
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        self.files += 1
        self.changed_files += content != current


def left_of(current: bytes, node: _FileNode, rng: random.Random) -> bytes:
    """What is left of a file that processes see as ``current``."""
    unit = rng.choice((PAGE_BYTES, SECTOR_BYTES))
    keep_rate = rng.choice(KEEP_RATES)
    durable = node.durable_of(current)
    content = bytearray(durable)
    changed = {
        number
        for change in node.changes
        for number in range(change.start // unit, -(-(change.start + change.length) // unit))
    }
    for start in (number * unit for number in sorted(changed)):
        data = current[start : start + unit]
        if data and rng.random() < keep_rate:
            if rng.random() < TORN_RATE:
                data = data[: rng.randrange(len(data))]
            _put(content, start, data)
    size = rng.choice((len(content), len(durable), len(current)))
    content.extend(bytes(max(size - len(content), 0)))
    return bytes(content[:size])
