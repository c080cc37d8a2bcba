"""What store work needs of the local disk: reading segment files and writing chunk-cache files, all blocking.

Called on pool threads only. ``PosixLocalFiles`` is the machine's disk; the simulation passes its own.
"""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from app.errors import StorageFull, StorageUnavailable

_NO_ROOM = frozenset({28, 122})
"""ENOSPC and EDQUOT."""


class LocalFileMissing(StorageUnavailable):
    """There is no such local file (any more)."""


class LocalFiles(Protocol):
    """Blocking access to files by path."""

    def read_into(self, path: str, position: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``position`` on; fewer bytes only at the end of the file.

        Raises: LocalFileMissing, StorageUnavailable.
        """
        ...

    def write_whole(self, path: str, data: bytes | bytearray | memoryview) -> None:
        """Make a file with exactly these bytes; nobody sees it before it is whole. Not durable.

        Raises: StorageFull (nothing is left behind), StorageUnavailable.
        """
        ...

    def unlink(self, path: str) -> None:
        """Remove a file; one that is gone already is fine. Raises: StorageUnavailable."""
        ...

    def list_names(self, directory: str) -> list[str]:
        """Names in a directory, which is made if there is none. Raises: StorageUnavailable."""
        ...


class PosixLocalFiles:
    """The machine's own file system."""

    def read_into(self, path: str, position: int, buffer: memoryview) -> int:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise LocalFileMissing(f"{path} is missing") from error
        except OSError as error:
            raise StorageUnavailable(f"cannot open {path}: {error.strerror}") from error
        try:
            filled = 0
            while filled < len(buffer):
                count = os.preadv(descriptor, [buffer[filled:]], position + filled)
                if count == 0:
                    break
                filled += count
            return filled
        except OSError as error:
            raise StorageUnavailable(f"cannot read {path} at {position}: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def write_whole(self, path: str, data: bytes | bytearray | memoryview) -> None:
        temporary = path + ".tmp"
        view = memoryview(data)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                written = 0
                while written < len(view):
                    written += os.write(descriptor, view[written:])
            finally:
                os.close(descriptor)
            os.rename(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            kind = StorageFull if error.errno in _NO_ROOM else StorageUnavailable
            raise kind(f"cannot write {path}: {error.strerror}") from error

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageUnavailable(f"cannot remove {path}: {error.strerror}") from error

    def list_names(self, directory: str) -> list[str]:
        try:
            os.makedirs(directory, exist_ok=True)
            return sorted(os.listdir(directory))
        except OSError as error:
            raise StorageUnavailable(f"cannot list {directory}: {error.strerror}") from error
