"""A log file that is rotated by its writer: the broker's audit log (ADR 0033). Everything here blocks, and belongs to one thread
at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from typing import Final

from app.machine.files import PRIVATE_DIRECTORY, PRIVATE_FILE

WRITE_BYTES_MAX: Final = 256 * 1024
"""Of one write: after it, it is known how many lines are there."""


class RotatedFile:
    """``path`` and, older and older, ``path.1``, ``path.2`` …: ``files_max`` files of ``bytes_max``. Only their owner reads
    them."""

    def __init__(self, path: str, *, bytes_max: int, files_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._descriptor = -1
        self._size = 0

    def open(self) -> None:
        """Open, or make, the file at ``path`` and take its lock. Lines are added to its end. What a kill or a loss of power
        has left of a last line is ended, so that the next one is whole.

        Raises: OSError; BlockingIOError if another process writes it.
        """
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), PRIVATE_DIRECTORY, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.path, flags, PRIVATE_FILE)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_IMODE(found.st_mode) != PRIVATE_FILE:
                os.fchmod(descriptor, PRIVATE_FILE)
            size = _end_line(descriptor, found.st_size)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._size = descriptor, size

    def write(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Add lines. A line is there as a whole or not at all.

        Returns: how many are there, the first ones; and why the others are not.
        """
        written = 0
        try:
            self._find()
            while written < len(lines):
                size = end = 0
                for line in lines[written:]:
                    if end and size + len(line) > WRITE_BYTES_MAX:
                        break
                    size += len(line)
                    end += 1
                if self._size and self._size + size > self._bytes_max:
                    self._rotate()
                self._add(b"".join(lines[written : written + end]))
                written += end
        except OSError as error:
            return written, error
        return written, None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _find(self) -> None:
        """Open again, if the file was moved away, or an earlier step has failed."""
        if self._descriptor >= 0:
            try:
                there, mine = os.stat(self.path, follow_symlinks=False), os.fstat(self._descriptor)
                if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                    self._size = mine.st_size
                    return
            except FileNotFoundError:
                pass
        self.open()

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            source = self.path if number == 1 else f"{self.path}.{number - 1}"
            try:
                os.rename(source, f"{self.path}.{number}")
            except FileNotFoundError:
                continue
        self.open()

    def _add(self, data: bytes) -> None:
        """Write ``data``, or nothing of it."""
        start, view = self._size, memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, start)
            raise
        self._size = start + len(data)


def _end_line(descriptor: int, size: int) -> int:
    """End the last line of a file of this size. Returns: the size then. Raises: OSError."""
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    return size + os.write(descriptor, b"\n")
