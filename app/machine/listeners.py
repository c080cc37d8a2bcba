"""Which processes of this machine listen on a port, as Linux's ``/proc`` tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_LISTENING: Final = "0A"
"""The state of a socket in ``/proc/net/tcp``."""


class ListeningProcess(NamedTuple):
    """A process that listens."""

    process_id: int
    command: tuple[str, ...]
    parent_command: tuple[str, ...]
    """Empty if the parent cannot be seen."""

    def __str__(self) -> str:
        name = os.path.basename(self.command[0]) if self.command else "?"
        return f"process {self.process_id} ({name})"


def listeners_on(port: int) -> list[ListeningProcess]:
    """The processes that listen on a TCP port, as far as this process may see them. Empty where there is no ``/proc``."""
    links = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not links:
        return []
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and not links.isdisjoint(_links(process / "fd")):
            process_id = int(process.name)
            if command := _command_of(process_id):
                found.append(ListeningProcess(process_id, command, _command_of(_parent_of(process_id))))
    return found


def holders_of(path: str) -> list[int]:
    """The processes that have a file open which was deleted since and had this path, as far as this process may see them."""
    deleted = f"{path} (deleted)"
    return [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdecimal() and deleted in _links(process / "fd")
    ]


def _inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:  # no IPv6, or no Linux
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _command_of(process_id: int) -> tuple[str, ...]:
    """Empty if the process has ended."""
    try:
        words = Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ()
    return tuple(os.fsdecode(word) for word in words if word)


def _parent_of(process_id: int) -> int:
    """0 if the process has ended."""
    try:
        return int(process_status(process_id)[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def process_status(process_id: int) -> list[bytes]:
    """The fields of a process from its state on (proc(5), ``/proc/PID/stat``).

    Raises: FileNotFoundError, ProcessLookupError for a process that has ended (also one that its parent has not waited for).
    """
    # The name of the program stands in parentheses and may have any characters in it.
    fields = Path(f"/proc/{process_id}/stat").read_bytes().rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        raise ProcessLookupError(process_id)
    return fields


def _links(folder: Path) -> set[str]:
    """Where the descriptors of a process lead; empty if it has ended or belongs to another user."""
    found = set()
    try:
        for name in os.listdir(folder):
            try:
                found.add(os.readlink(folder / name))
            except OSError:  # it was closed meanwhile
                continue
    except OSError:
        return set()
    return found
