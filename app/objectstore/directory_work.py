"""The blocking half of the directory store: plain system calls, to be run on a pool thread.

Layout under the root::

    <key>                              an object, at the path of its key
    <directory>/.<instance>-<n>.tmp    an object being written; becomes the object by link(2) or rename(2)
    .uploads/<instance>-<n>/           a multipart upload: ``key``, ``data`` and, rarely, ``part-<number>``
    .instances/<pid>-<n>               locked with flock(2) by one open store for as long as it lives

Names that begin with a dot are never keys, so nothing half written can be seen. A conditional write is: write the temporary
file, fdatasync it, link it to its final name (EEXIST is the answer "exists"), unlink the temporary name, fsync the
directory. The answer "exists" is given after an fsync too, because the object may be an earlier attempt of the same caller
that stopped before its own.

The root may lie on a mount that goes away while the store is open. Then an empty directory is found at its place, and nothing may
be written there or be called missing. So the open root is held by a descriptor. Each write, and each read that finds nothing,
compares it with the directory at the path. A store that comes back is known by the lock file of the instance.

Files of a new store are for its user alone. The permissions of ``.instances`` are those of the store.

Temporary files name the instance that made them, and an instance's lock tells whether it still lives. So files left by a crash
can be removed while other processes use the same directory.

Tests: ``tests/objectstore/test_directory.py``.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import shutil
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from app.core.errors import ConfigError, StorageFull, StorageUnavailable, clause
from app.core.limits import MIB
from app.core.units import Buffer, TimestampMs
from app.objectstore.api import AlreadyExists, ObjectInfo, ObjectMissing, RangeUnsatisfiable, UploadInfo
from app.objectstore.keys import is_visible_name

UPLOADS: Final = ".uploads"
INSTANCES: Final = ".instances"
PRIVATE: Final = 0o700
"""Permissions of a new store's directories. Files have the same without the right to execute."""

_OWNER: Final = re.compile(r"\.?([0-9]+-[0-9]+)-[0-9a-f]+-[0-9]+(?:\.tmp)?")
_DURABLE_DIRECTORIES_MAX: Final = 100_000
_CACHE_SAMPLE_BYTES: Final = 2 * MIB
_VANISHED_DIRECTORY_ATTEMPTS: Final = 20
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


def storage_error(error: OSError, doing: str) -> StorageUnavailable:
    """Convert an operating system error to an error of the store. ``doing`` describes the failed operation."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFull(f"{doing}: {reason}; free some space.")
    if error.errno in (errno.EACCES, errno.EROFS):
        return StorageUnavailable(f"{doing}: {reason}; give this user the permission.")
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return StorageUnavailable(
            f"{doing}: {reason}; a file is in the place of a directory, or a directory in the place of a file."
        )
    return StorageUnavailable(f"{doing}: {clause(reason)}.")


class StoreNotThere(StorageUnavailable):
    """A root is missing or empty that must hold a store: its file system may not be mounted."""


class Permissions(NamedTuple):
    """With which permissions directories and files are made."""

    directory: int
    file: int
    exact: bool
    """Whether they are set despite the umask."""


LEGACY: Final = Permissions(0o777, 0o644, False)
"""Of stores that others may read, as those of versions up to 0.1.1: as far as the umask lets them."""


def permissions_of(mode: int | None) -> Permissions:
    """``mode``: permissions of directories; None for a new store."""
    if mode is None or mode == PRIVATE:
        return Permissions(PRIVATE, PRIVATE & 0o666, False)
    return Permissions(mode, mode & 0o666, True)


class DirectoryWork:
    """Every operation on the files of one root. Safe to call from several threads at once."""

    def __init__(self, root: Path, *, mode: int | None = None) -> None:
        """``mode``: permissions of new directories; None for those of the store."""
        self.root = str(root)
        self._mode = mode
        self._permissions = permissions_of(mode)
        self._opened: tuple[int, int] | None = None
        """Device and inode of the root; None until it was found."""
        self._descriptor: weakref.finalize[..., DirectoryWork] | None = None
        """Holds the root open, so that its inode is given to no other directory."""
        self._registered: tuple[str, int] | None = None
        """Path and change time of this instance's lock file."""
        self._lock = threading.RLock()
        self._instance: str | None = None
        self._release: weakref.finalize[..., DirectoryWork] | None = None
        self._counter = itertools.count(1)
        self._durable: set[str] = set()
        """Directories whose own entries, up to the root, this instance has synced."""

    def path(self, key: str) -> str:
        return f"{self.root}/{key}"

    # --- the root -----------------------------------------------------------------------------------------------------

    def is_blank(self) -> bool:
        """Whether the root is missing, or has neither an object nor a trace of a store. Raises: OSError."""
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return True
        return not any(is_visible_name(name) or name in (INSTANCES, UPLOADS) for name in names)

    def prove(self) -> tuple[int, int]:
        """Check that the root is the one that was opened; the first call opens it. Returns: its device and inode.

        Raises: StorageUnavailable.
        """
        opened = self._opened
        try:
            status = os.stat(self.root)
        except FileNotFoundError:
            if opened is None:
                return self._open_root()
            raise StoreNotThere(self._gone("is missing")) from None
        except OSError as error:
            raise storage_error(error, f"Could not reach {self.root}") from error
        if opened is None:
            return self._open_root()
        if (status.st_dev, status.st_ino) != opened:
            return self._open_again()
        return opened

    def _prove_if_open(self) -> tuple[int, int] | None:
        """As ``prove``; a root that was not opened yet stays so."""
        return self.prove() if self._opened is not None else None

    def prove_still(self, opened: tuple[int, int] | None) -> None:
        """Check after an operation that the root is the one that it began with; None for one that was not open then.

        Raises: StorageUnavailable.
        """
        if opened is not None and self.prove() != opened:
            raise StorageUnavailable(self._gone("was another one for a while"))

    def _gone(self, what: str) -> str:
        return (
            f"The store directory {self.root} {what}. It is not the store that this process opened: its file system may have been "
            "unmounted. Mount it again."
        )

    def _open_root(self) -> tuple[int, int]:
        """Open the root, which is made if it is missing. Raises: StorageUnavailable."""
        with self._lock:
            if self._opened is not None:
                return self._opened
            try:
                self._take_permissions()
                self.make_directory(self.root)
                return self._hold_root()
            except OSError as error:
                raise storage_error(error, f"Could not open the store {self.root}") from error

    def _hold_root(self) -> tuple[int, int]:
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if self._descriptor is not None:
            self._descriptor()
        self._descriptor = weakref.finalize(self, os.close, descriptor)
        status = os.fstat(descriptor)
        self._opened = status.st_dev, status.st_ino
        return self._opened

    def _open_again(self) -> tuple[int, int]:
        """Another directory is at the root's place. It is used if it is the same store, as after a file system came back.

        Raises: StorageUnavailable.
        """
        with self._lock:
            try:
                if not self._is_mine():
                    raise StoreNotThere(self._gone("is empty" if self.is_blank() else "is another directory"))
                self._forget_instance()
                self._durable.clear()
                return self._hold_root()
            except OSError as error:
                raise storage_error(error, f"Could not open the store {self.root} again") from error

    def _is_mine(self) -> bool:
        """Whether the directory at the root's place has the lock file of this instance. One that never wrote accepts any store.

        Raises: OSError.
        """
        if self._registered is None:
            return not self.is_blank()
        path, changed_ns = self._registered
        try:
            return os.stat(path).st_ctime_ns == changed_ns
        except FileNotFoundError:
            return False

    def _take_permissions(self) -> None:
        """Use the permissions of the store, unless others were asked for. Raises: OSError."""
        if self._mode is not None:
            return
        try:
            mode = os.stat(f"{self.root}/{INSTANCES}").st_mode & 0o777
        except FileNotFoundError:
            self._permissions = permissions_of(None) if self.is_blank() else LEGACY
        else:
            self._permissions = LEGACY if mode & 0o007 else permissions_of(mode)

    def create_file(self, path: str, flags: int) -> int:
        """Open a file that this may create, with the store's permissions. Raises: OSError."""
        descriptor = os.open(path, flags | os.O_CLOEXEC, self._permissions.file)
        if self._permissions.exact:
            os.fchmod(descriptor, self._permissions.file)
        return descriptor

    def _make_one(self, directory: str) -> None:
        """Make one directory with the store's permissions. It keeps the set-group-ID bit of its parent. Raises: OSError."""
        os.mkdir(directory, self._permissions.directory)
        if self._permissions.exact:
            inherited = os.stat(directory).st_mode & stat.S_ISGID
            os.chmod(directory, self._permissions.directory | inherited)

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(self, key: str, start: int, end: int | None) -> bytes:
        """Bytes [start, end) of the object, all to its end for None. Raises: ObjectMissing, RangeUnsatisfiable, …"""
        try:
            descriptor = os.open(self.path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                if end is not None and start >= size:
                    raise RangeUnsatisfiable(f"{key} has {size} bytes; none at {start}.")
                return _pread_exactly(descriptor, start, size if end is None else min(end, size))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._read_error(error, key) from error

    def _read_error(self, error: OSError, key: str) -> ObjectMissing | StorageUnavailable:
        """The error of a failed read. An object is missing only if the root is the store's. Raises: StorageUnavailable."""
        if error.errno in _ABSENT:
            self._prove_if_open()
        return _read_error(error, key)

    def read_ahead(self, key: str, start: int, end: int) -> None:
        """A hint. If the file is damaged, the later read reports it."""
        if not hasattr(os, "posix_fadvise"):
            return
        with suppress(OSError):
            descriptor = os.open(self.path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not _is_cached(descriptor, start, end):
                    os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def read_tail(self, key: str, length: int) -> tuple[bytes, int]:
        try:
            descriptor = os.open(self.path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                return _pread_exactly(descriptor, max(0, size - length), size), size
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._read_error(error, key) from error

    def head(self, key: str) -> ObjectInfo:
        try:
            status = os.stat(self.path(key))
        except OSError as error:
            raise self._read_error(error, key) from error
        if not _is_file(status):
            raise ObjectMissing(f"{key} is not there.")
        return _info(key, status)

    def list_objects(self, prefix: str, start_after: str, limit: int) -> list[ObjectInfo]:
        """List in byte order. Enters only directories that can contain a matching key."""
        directory = prefix.rpartition("/")[0]
        opened = self._opened
        try:
            found = list(itertools.islice(self._walk(f"{directory}/" if directory else "", prefix, start_after), limit))
        except OSError as error:
            raise storage_error(error, f"Could not list {self.root}") from error
        self.prove_still(opened)
        return found

    def _walk(self, base: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        entries: list[str] = []
        try:
            with os.scandir(self.path(base)) as scan:
                for entry in scan:
                    if not is_visible_name(entry.name):
                        continue
                    # A directory sorts as its keys do: by its name and the slash that follows ("a-b" < "a/b" < "a0").
                    entries.append(f"{base}{entry.name}/" if entry.is_dir() else base + entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        entries.sort()
        for key in entries:
            if key.endswith("/"):
                passed = key < start_after and not start_after.startswith(key)
                if not passed and (key.startswith(prefix) or prefix.startswith(key)):
                    yield from self._walk(key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after:
                try:
                    status = os.stat(self.path(key))
                except FileNotFoundError:
                    continue  # deleted while the list was made
                if _is_file(status):
                    yield _info(key, status)

    # --- writes -----------------------------------------------------------------------------------------------------

    def put(self, key: str, data: Buffer) -> None:
        path = self.path(key)
        opened = self.prove()
        try:
            temporary = self.write_temporary(os.path.dirname(path), data)
            try:
                os.rename(temporary, path)
            except OSError:
                _unlink_if_there(temporary)
                raise
        except OSError as error:
            raise storage_error(error, f"Could not write {path}") from error
        self._sync_entry(path)
        self.prove_still(opened)

    def put_if_absent(self, key: str, data: Buffer) -> None:
        path = self.path(key)
        opened = self.prove()
        try:
            if os.path.lexists(path):
                self._sync_entry(path)
                self.prove_still(opened)
                raise AlreadyExists(f"{key} exists.")
            temporary = self.write_temporary(os.path.dirname(path), data)
            try:
                self._link(temporary, path, key)
            except BaseException:
                _unlink_if_there(temporary)
                raise
        except OSError as error:
            raise storage_error(error, f"Could not write {path}") from error
        # The object is there: from here on nothing may say that the write was undone.
        try:
            _unlink_if_there(temporary)
        except OSError as error:
            raise StorageUnavailable(f"Could not remove {temporary}: {error.strerror}.") from error
        self._sync_entry(path)
        self.prove_still(opened)

    def delete(self, keys: list[str]) -> None:
        """Durable when it returns: directories are synced once each, and removed when they are left empty."""
        changed: set[str] = set()
        opened = self._prove_if_open()
        try:
            for key in keys:
                path = self.path(key)
                try:
                    os.unlink(path)
                except OSError as error:
                    if error.errno not in _ABSENT:
                        raise
                    continue
                changed.add(os.path.dirname(path))
            for directory in changed:
                self._sync_remaining(directory)
        except OSError as error:
            raise storage_error(error, f"Could not delete from {self.root}") from error
        self.prove_still(opened)

    def write_temporary(self, directory: str, data: Buffer) -> str:
        """Create a synced temporary file in ``directory``, which is created if necessary. Returns its path. A failure leaves no
        file."""
        temporary = f"{directory}/.{self.instance()}-{next(self._counter)}.tmp"
        descriptor = self._create(directory, temporary)
        try:
            try:
                _write_all(descriptor, memoryview(data).cast("B"), 0)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            _unlink_if_there(temporary)
            raise
        return temporary

    def _create(self, directory: str, path: str) -> int:
        for _ in range(_VANISHED_DIRECTORY_ATTEMPTS):
            try:
                self.make_directory(directory)
                return self.create_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileNotFoundError:
                # Another thread or process removed it as empty in this moment: it is not durable any more either.
                self._durable.discard(directory)
        raise FileNotFoundError(errno.ENOENT, f"{directory} is removed repeatedly")

    def make_directory(self, directory: str) -> None:
        """Make ``directory`` with its parents, durably. Raises: OSError."""
        if directory in self._durable:
            return
        missing: list[str] = []
        above = directory
        while not os.path.isdir(above):
            missing.append(above)
            above = os.path.dirname(above)
        for made in reversed(missing):
            try:
                if len(made) < len(self.root):
                    os.mkdir(made)  # above the store
                else:
                    self._make_one(made)
            except FileExistsError:
                if os.path.lexists(made) and not os.path.isdir(made):
                    raise  # a file is there
                # Another thread made it, and may have removed it as empty again: then the next step does not find it.
        if not os.path.isdir(directory):
            raise FileNotFoundError(errno.ENOENT, f"{directory} was removed")
        # Another process may have made an existing parent and not synced it yet: sync all up to the root, and the missing ones
        # above it.
        unsynced = set(missing)
        step = directory
        while len(step) > len(self.root):
            unsynced.add(step)
            step = os.path.dirname(step)
        for one in unsynced:
            _fsync_directory(os.path.dirname(one))
        if len(self._durable) >= _DURABLE_DIRECTORIES_MAX:
            self._durable.clear()
        self._durable.add(directory)

    def _link(self, temporary: str, path: str, key: str) -> None:
        """Raises: AlreadyExists, StorageUnavailable (no hard links here), OSError."""
        try:
            os.link(temporary, path)
        except FileExistsError as error:
            self._sync_entry(path)
            raise AlreadyExists(f"{key} exists.") from error
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise StorageUnavailable(_no_links_sentence(self.root, error)) from error
            raise

    def _sync_entry(self, path: str) -> None:
        """Make the directory entry of ``path`` durable. Raises: StorageUnavailable: the entry is there, perhaps not kept."""
        try:
            _fsync_directory(os.path.dirname(path))
        except FileNotFoundError:
            return  # object and directory were deleted meanwhile; there is no entry to keep
        except OSError as error:
            raise StorageUnavailable(f"Could not sync the directory of {path}: {error.strerror}.") from error

    def _sync_remaining(self, directory: str) -> None:
        """Remove ``directory`` and its empty parents, and sync the rest."""
        while len(directory) > len(self.root):
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                pass
            except OSError:
                break  # not empty: the usual case
            self._durable.discard(directory)
            directory = os.path.dirname(directory)
        try:
            _fsync_directory(directory)
        except FileNotFoundError:
            return  # removed by another deletion, which syncs its parent

    # --- uploads ----------------------------------------------------------------------------------------------------

    def begin_upload(self, key: str) -> str:
        opened = self.prove()
        upload_id = f"{self.instance()}-{next(self._counter)}"
        directory = self.upload_path(upload_id)
        try:
            with suppress(FileExistsError):
                self._make_one(os.path.dirname(directory))
            self._make_one(directory)
            descriptor = self.create_file(f"{directory}/key", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                _write_all(descriptor, memoryview(key.encode("ascii")), 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise storage_error(error, f"Could not begin an upload in {self.root}") from error
        self.prove_still(opened)
        return upload_id

    def upload_path(self, upload_id: str) -> str:
        return f"{self.root}/{UPLOADS}/{upload_id}"

    def publish_upload(self, key: str, upload_id: str, file: str) -> None:
        """Link the synced ``file`` of an upload to its key, and forget the upload. Raises: as ``Upload.complete``."""
        path = self.path(key)
        directory = os.path.dirname(path)
        opened = self.prove()
        try:
            for _ in range(_VANISHED_DIRECTORY_ATTEMPTS):
                try:
                    self.make_directory(directory)
                    self._link(file, path, key)
                    break
                except FileNotFoundError:
                    if not os.path.exists(file):
                        raise ObjectMissing(f"Upload {upload_id} of {key} is gone.") from None
                    self._durable.discard(directory)
            else:
                raise FileNotFoundError(errno.ENOENT, f"{directory} is removed repeatedly")
        except OSError as error:
            raise storage_error(error, f"Could not write {path}") from error
        self._sync_entry(path)
        self.prove_still(opened)
        self.remove_upload(upload_id)

    def list_uploads(self, prefix: str) -> list[UploadInfo]:
        found: list[UploadInfo] = []
        try:
            with os.scandir(f"{self.root}/{UPLOADS}") as scan:
                for entry in scan:
                    try:
                        with open(f"{entry.path}/key", encoding="ascii") as file:
                            key = file.read()
                            started_ms = TimestampMs(os.fstat(file.fileno()).st_mtime_ns // 1_000_000)
                    except FileNotFoundError:
                        continue  # completed or aborted meanwhile
                    if key.startswith(prefix):
                        found.append(UploadInfo(key, entry.name, started_ms))
        except FileNotFoundError:
            self._prove_if_open()
            return []
        except OSError as error:
            raise storage_error(error, f"Could not list the uploads of {self.root}") from error
        return sorted(found)

    def abort_upload(self, key: str, upload_id: str) -> None:
        if not re.fullmatch(r"[0-9a-f-]+", upload_id):
            return  # not an id of this store, so there is no such upload
        self._prove_if_open()
        try:
            with open(f"{self.upload_path(upload_id)}/key", encoding="ascii") as file:
                if file.read() != key:
                    return
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, f"Could not abort upload {upload_id}") from error
        self.remove_upload(upload_id)

    def remove_upload(self, upload_id: str) -> None:
        try:
            _remove_tree(self.upload_path(upload_id))
        except OSError as error:
            raise storage_error(error, f"Could not remove upload {upload_id}") from error

    # --- the life of an instance ------------------------------------------------------------------------------------

    def instance(self) -> str:
        """The unique name of this open store under this root. It is created with its lock on the first write."""
        with self._lock:
            if self._instance is None:
                self._instance = self._register()
            return self._instance

    def _register(self) -> str:
        self.prove()
        directory = f"{self.root}/{INSTANCES}"
        self.make_directory(directory)
        process = os.getpid()
        for number in itertools.count():
            path = f"{directory}/{process}-{number}"
            try:
                descriptor = self.create_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            if status.st_nlink == 0:
                os.close(descriptor)  # a cleaner was faster than the lock
                continue
            self._release = weakref.finalize(self, _release_instance, path, descriptor, process)
            self._registered = path, status.st_ctime_ns
            return f"{process}-{number}-{status.st_ctime_ns:x}"
        raise AssertionError("counting does not end")

    def close(self) -> None:
        with self._lock:
            self._forget_instance()
            if self._descriptor is not None:
                self._descriptor()
            self._opened = self._descriptor = None

    def _forget_instance(self) -> None:
        if self._release is not None:
            self._release()
        self._instance = self._release = self._registered = None

    def prepare(self, *, create: bool = True) -> int:
        """Open the root and remove files of crashed instances. Returns how many entries it removed.

        Walks the tree only if an instance did die. ``create``: a root that is missing or empty becomes a new store.

        Raises: StoreNotThere (only without ``create``; nothing was made), StorageUnavailable.
        """
        try:
            if not create and self.is_blank():
                raise StoreNotThere(
                    f"The store directory {self.root} is missing or empty. Its file system may not be mounted. Mount it, or make a "
                    f"new store with `firn store init file://{self.root}`."
                )
            self.prove()
            dead = self._lock_dead_instances()
            try:
                removed = self._remove_leftovers(set(dead)) if dead else 0
                for name in dead:
                    _unlink_if_there(f"{self.root}/{INSTANCES}/{name}")
                return removed
            finally:
                for descriptor in dead.values():
                    os.close(descriptor)
        except OSError as error:
            raise storage_error(error, f"Could not open the store {self.root}") from error

    def _lock_dead_instances(self) -> dict[str, int]:
        dead: dict[str, int] = {}
        try:
            names = os.listdir(f"{self.root}/{INSTANCES}")
        except FileNotFoundError:
            return dead
        for name in names:
            try:
                descriptor = os.open(f"{self.root}/{INSTANCES}/{name}", os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except PermissionError:
                continue  # of another user, who cleans up
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            dead[name] = descriptor
        return dead

    def _remove_leftovers(self, dead: set[str]) -> int:
        def is_stale(name: str) -> bool:
            match = _OWNER.fullmatch(name)
            if match is None:
                return False
            # An instance has its lock file before its first temporary file, so none means dead.
            return match[1] in dead or not os.path.exists(f"{self.root}/{INSTANCES}/{match[1]}")

        removed = 0
        for directory, directories, names in os.walk(self.root):
            for name in names:
                if name.startswith(".") and name.endswith(".tmp") and is_stale(name):
                    _unlink_if_there(f"{directory}/{name}")
                    removed += 1
            directories[:] = [name for name in directories if is_visible_name(name)]
        try:
            uploads = os.listdir(f"{self.root}/{UPLOADS}")
        except FileNotFoundError:
            uploads = []
        for name in uploads:
            if is_stale(name):
                _remove_tree(self.upload_path(name))
                removed += 1
        return removed

    def check_links(self) -> None:
        """Raises: ConfigError if the file system has no hard links, StorageUnavailable if it cannot be written."""
        instance = self.instance()
        number = next(self._counter)
        first = f"{self.root}/.{instance}-{number}.tmp"
        second = f"{self.root}/.{instance}-{number}0.tmp"
        try:
            try:
                os.close(self.create_file(first, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                try:
                    os.link(first, second)
                except OSError as error:
                    if error.errno in _NO_LINKS:
                        raise ConfigError(_no_links_sentence(self.root, error)) from error
                    raise
                try:
                    os.link(first, second)
                except FileExistsError:
                    return
                raise ConfigError(
                    f"The file system of {self.root} links over an existing name; use ext4, xfs or btrfs."
                )
            finally:
                _unlink_if_there(first)
                _unlink_if_there(second)
        except OSError as error:
            raise storage_error(error, f"Could not write in {self.root}") from error


DIRECT_BLOCK_BYTES: Final = 4096
"""Memory, position and length of an unbuffered write are multiples of it: the logical blocks of disks are no longer."""
DIRECT_BYTES_MIN: Final = 1 * MIB
"""A shorter write does not keep a disk busy."""


class UploadWork:
    """The parts of one upload, from several threads at once.

    Nearly always every part but the last has the same length, so parts are written to their place in ``data`` at once and
    completing costs a sync and a link. The length of the first part to arrive is taken for that length; a part that does
    not fit goes to a file of its own, and then completing assembles.
    """

    def __init__(self, work: DirectoryWork, key: str, upload_id: str) -> None:
        self._work = work
        self._key = key
        self._upload_id = upload_id
        self._directory = work.upload_path(upload_id)
        self._changed = threading.Condition()
        self._writing = 0
        self._completing = False
        self._stride: int | None = None
        self._parts: dict[int, tuple[bool, int]] = {}
        """By number: whether it is in its place in ``data``, and its length."""

    def put_part(self, number: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with self._changed:
            # A part still under way must not reach a file that is already an object.
            if self._completing:
                raise ObjectMissing(f"Upload {self._upload_id} of {self._key} is completed.")
            if self._stride is None:
                self._stride = len(view)
            stride = self._stride
            placed = len(view) == stride or (len(view) < stride and self._is_last(number))
            self._writing += 1
        try:
            if placed:
                self._write("data", view, (number - 1) * stride)
            else:
                self._write(f"part-{number}", view, 0)
            with self._changed:
                self._parts[number] = (placed, len(view))
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()

    def complete(self) -> None:
        with self._changed:
            while self._writing:
                self._changed.wait()
            assert self._parts, "an upload has at least one part"
            self._completing = True
        try:
            whole = self._whole()
        except FileNotFoundError as error:
            self._work.prove()
            if os.path.exists(self._work.path(self._key)):
                raise AlreadyExists(f"{self._key} exists.") from error
            raise ObjectMissing(f"Upload {self._upload_id} of {self._key} is gone.") from error
        except OSError as error:
            with self._changed:
                self._completing = False
            raise storage_error(error, f"Could not complete {self._key}") from error
        # From here on the file may be an object, even if this fails: no part may be written to it any more.
        self._work.publish_upload(self._key, self._upload_id, whole)

    def _is_last(self, number: int) -> bool:
        return all(number >= other for other in self._parts)

    def _write(self, name: str, view: memoryview, position: int) -> None:
        path = f"{self._directory}/{name}"
        self._work.prove()
        try:
            if not os.path.exists(f"{self._directory}/key"):
                raise ObjectMissing(f"Upload {self._upload_id} of {self._key} is gone.")
            descriptor = self._work.create_file(path, os.O_WRONLY | os.O_CREAT)
            try:
                if name != "data":
                    os.ftruncate(descriptor, 0)
                direct = _write_past_the_cache(path, view, position)
                _write_all(descriptor, view[direct:], position + direct)
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            raise ObjectMissing(f"Upload {self._upload_id} of {self._key} is gone.") from error
        except OSError as error:
            raise storage_error(error, f"Could not write a part of {self._key}") from error

    def _whole(self) -> str:
        """Path of a synced file that holds the parts in order. Raises: OSError."""
        numbers = sorted(self._parts)
        stride = self._stride
        assert stride is not None
        in_place = numbers == list(range(1, len(numbers) + 1)) and all(
            placed and (length == stride or number == numbers[-1]) for number, (placed, length) in self._parts.items()
        )
        path = f"{self._directory}/data"
        if not in_place:
            path = f"{self._directory}/assembled"
            self._assemble(path, numbers, stride)
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, sum(length for _, length in self._parts.values()))
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return path

    def _assemble(self, path: str, numbers: list[int], stride: int) -> None:
        target = self._work.create_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            end = 0
            for number in numbers:
                placed, length = self._parts[number]
                name = "data" if placed else f"part-{number}"
                source = os.open(f"{self._directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    position = (number - 1) * stride if placed else 0
                    _write_all(target, memoryview(_pread_exactly(source, position, position + length)), end)
                finally:
                    os.close(source)
                end += length
        finally:
            os.close(target)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, TimestampMs(status.st_mtime_ns // 1_000_000))


def _is_file(status: os.stat_result) -> bool:
    return status.st_mode & 0o170000 == 0o100000


def _read_error(error: OSError, key: str) -> ObjectMissing | StorageUnavailable:
    if error.errno in _ABSENT:
        return ObjectMissing(f"{key} is not there.")
    return storage_error(error, f"Could not read {key}")


def _is_cached(descriptor: int, start: int, end: int) -> bool:
    """Whether the kernel has a range in its page cache, by samples: a read-ahead of cached bytes would check every page."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    sample = bytearray(1)
    try:
        for position in (*range(start, end, _CACHE_SAMPLE_BYTES), end - 1):
            os.preadv(descriptor, [sample], position, os.RWF_NOWAIT)
    except OSError:  # EAGAIN: it would have to wait; EOPNOTSUPP: this file system cannot tell
        return False
    return True


def _pread_exactly(descriptor: int, start: int, end: int) -> bytes:
    """Bytes [start, end) of a file that has them. Raises: OSError (EIO when it has not)."""
    data = os.pread(descriptor, end - start, start)
    if len(data) == end - start:
        return data
    pieces = [data]
    position = start + len(data)
    while data and position < end:
        data = os.pread(descriptor, end - position, position)
        pieces.append(data)
        position += len(data)
    if position < end:
        raise OSError(errno.EIO, "the file ended early")
    return b"".join(pieces)


def _write_all(descriptor: int, view: memoryview, position: int) -> None:
    """Raises: OSError; a part may have been written."""
    written = 0
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], position + written)


def _write_past_the_cache(path: str, view: memoryview, position: int) -> int:
    """Write the whole blocks at the start of ``view`` to an existing file straight from its memory; answers the bytes written.

    Copying an object into the page cache costs several times as much as checking it, and evicts pages that producers and
    consumers want. 0 where it cannot be done (a small or unaligned buffer, a file system that does not know how): then the
    cache is used. Raises: OSError.
    """
    whole = len(view) - len(view) % DIRECT_BLOCK_BYTES
    if whole < DIRECT_BYTES_MIN or position % DIRECT_BLOCK_BYTES or not hasattr(os, "O_DIRECT"):
        return 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return 0
        raise
    try:
        written = os.pwrite(descriptor, view[:whole], position)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return 0
        raise
    finally:
        os.close(descriptor)
    return written - written % DIRECT_BLOCK_BYTES


def _fsync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink_if_there(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _remove_tree(path: str) -> None:
    """Remove a flat directory, ``key`` first: without it the upload does not exist, even if a crash leaves other files."""
    _unlink_if_there(f"{path}/key")
    for _ in range(_VANISHED_DIRECTORY_ATTEMPTS):
        try:
            for name in os.listdir(path):
                _unlink_if_there(f"{path}/{name}")
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        else:
            return
    raise OSError(errno.ENOTEMPTY, f"{path} gets new files while it is removed")


def _release_instance(path: str, descriptor: int, process: int) -> None:
    if os.getpid() != process:
        return  # a forked copy: the lock is its parent's
    _unlink_if_there(path)
    os.close(descriptor)


def _no_links_sentence(root: str, error: OSError) -> str:
    return (
        f"The file system of {root} cannot make the hard links that conditional writes need ({error.strerror}); "
        "keep the store on ext4, xfs, btrfs or NFS."
    )
