"""The process of a data directory and its addresses, for ``firn stop``, ``firn doctor`` and a second start.

A broker writes ``.firn/process.json`` when it has the directory's lock, and again when it serves. It removes the file when it
stops in order. The file of a killed broker names a process that no longer exists: the process id and its start time distinguish
it from a later process with the same id.

Tests: ``tests/cli/test_background.py``.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from app.machine.files import LOCK_FILE
from app.machine.listeners import holders_of, process_status

_NOTE: Final = ".firn/process.json"


class RunningBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has a data directory's lock, and its addresses when it serves."""

    process_id: int
    started_ticks: int
    """Start time of the process, in kernel ticks since the boot of the machine."""
    cluster_id: str = ""
    node_id: int = -1
    """-1 while it starts."""
    kafka: str = ""
    """HOST:PORT; empty while it starts."""
    http: str = ""
    """HOST:PORT or ``off``; empty while it starts."""
    https: bool = False
    """Whether HTTP is encrypted."""
    local: str = ""
    """HOST:PORT at which this machine reaches the broker (not the advertised address); empty while it starts."""


def note_running(
    data_dir: str,
    *,
    cluster_id: str = "",
    node_id: int = -1,
    kafka: str = "",
    http: str = "",
    https: bool = False,
    local: str = "",
) -> None:
    """Write the file of this process, which has the lock. Raises: OSError."""
    note = RunningBroker(
        process_id=os.getpid(),
        started_ticks=_started_ticks(os.getpid()),
        cluster_id=cluster_id,
        node_id=node_id,
        kafka=kafka,
        http=http,
        https=https,
        local=local,
    )
    path = Path(data_dir, _NOTE)
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(note))
    new.replace(path)


def forget_running(data_dir: str) -> None:
    """Remove the file of this process. Raises: OSError."""
    Path(data_dir, _NOTE).unlink(missing_ok=True)


def find_running(data_dir: str | Path) -> RunningBroker | None:
    """The running broker of ``data_dir``; None if there is none, or if this process cannot see it.

    Raises: PermissionError.
    """
    try:
        note = msgspec.json.decode(Path(data_dir, _NOTE).read_bytes(), type=RunningBroker)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    return note if is_alive(note) else None


def find_deleted(data_dir: str | Path) -> RunningBroker | None:
    """The broker that runs on ``data_dir`` although this folder was deleted; None if this process can see none."""
    holders = holders_of(f"{os.path.abspath(data_dir)}/{LOCK_FILE}")
    # Its children hold the lock, too. Each has an ancestor that does.
    for process_id in holders:
        try:
            if _parent_of(process_id) not in holders:
                return RunningBroker(process_id=process_id, started_ticks=_started_ticks(process_id))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return None


def is_alive(broker: RunningBroker) -> bool:
    """Whether the process still runs."""
    try:
        return _started_ticks(broker.process_id) == broker.started_ticks
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_locked(data_dir: str | Path) -> bool:
    """Whether a process has the lock of ``data_dir``, even in another container, or a child that outlives its broker.

    Takes a shared lock for a moment. Raises: OSError other than that the directory or its lock is not there.
    """
    try:
        descriptor = os.open(Path(data_dir, LOCK_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        return True
    finally:
        os.close(descriptor)


def _started_ticks(process_id: int) -> int:
    """Raises: as ``process_status``."""
    return int(process_status(process_id)[19])


def _parent_of(process_id: int) -> int:
    """Raises: as ``process_status``."""
    return int(process_status(process_id)[1])
