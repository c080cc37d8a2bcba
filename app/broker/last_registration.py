"""Under which broker epoch a data directory was last served, and whether it was closed in order (ADR 0023, M4).

``.firn/registration`` is the CRC-32C (uint32) of the rest, and then a msgpack array: format version (1), broker epoch, whether
the stop was clean, and the boot id of the machine. It is written durably before the first record of a run, and again at
the end of a stop in order. A file that cannot be read counts as absent: the registration is then not *kept*.

Tests: ``tests/broker/test_stages.py``.
"""

from __future__ import annotations

from typing import Final

import msgspec
from crc32c import crc32c

from app.machine.files import FileSystem, read_file, replace_file

REGISTRATION_FILE: Final = "registration"
VERSION: Final = 1


class LastRun(msgspec.Struct, array_like=True, frozen=True):
    """The content of the file."""

    version: int
    broker_epoch: int
    clean: bool
    boot_id: str


NO_RUN: Final = LastRun(VERSION, -1, False, "")


class LastRegistration:
    """The file. Its methods block for one small file."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        """``directory``: Firn's own folder in the data directory."""
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{REGISTRATION_FILE}"

    def read(self) -> LastRun:
        """The last run; ``NO_RUN`` if none is known. Raises: OSError, but not for a missing file."""
        try:
            data = read_file(self._fs, self._path)
        except FileNotFoundError:
            return NO_RUN
        if len(data) < 4 or int.from_bytes(data[:4], "big") != crc32c(data[4:]):
            return NO_RUN
        try:
            found = msgspec.msgpack.decode(data[4:], type=LastRun)
        except msgspec.MsgspecError:
            return NO_RUN
        return found if found.version == VERSION else NO_RUN

    def write(self, broker_epoch: int, boot_id: str, *, clean: bool) -> None:
        """Durable when this returns. Raises: OSError."""
        body = msgspec.msgpack.encode(LastRun(VERSION, broker_epoch, clean, boot_id))
        self._fs.make_dirs(self._directory)
        replace_file(self._fs, self._path, crc32c(body).to_bytes(4, "big") + body, durable=True)
