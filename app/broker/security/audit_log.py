"""Writes the audit log of a broker (ADR 0033): lines that wait in memory go to a file, and to the topic ``__firn_audit``.

A caller that notes an event never waits. Lines that cannot be written are lost, and counted. The broker's log says so once, and so
does the audit log itself when it can be written again.

Tests: ``tests/broker/test_audit.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from app.core.errors import ConfigError
from app.core.limits import MIB
from app.core.metrics import Counter, Registry
from app.machine.rotated_file import RotatedFile
from app.security.audit import Lines, lost_line

if TYPE_CHECKING:
    from app.configs import BrokerConfig
    from app.core.faults import Faults
    from app.core.seams import BlockingPool, Clock
    from app.handlers.policy.auditing import Audit

BUFFER_BYTES_MAX: Final = 4 * MIB
"""Limit of the lines that wait for the file. The lines that wait for the topic have the same limit."""
WINDOW_S: Final = 60.0
"""Identical events are counted together for so long."""
FINISH_S: Final = 3.0
WRITING: Final = "writing the audit log"
FULL: Final = "lines came faster than they could be written"


class Place(Protocol):
    """Where lines are kept."""

    name: str

    async def write(self, lines: Sequence[bytes]) -> tuple[int, str]:
        """Returns: how many of the lines are there now, the first ones; and why the others are not."""
        ...


class FilePlace:
    """The file."""

    def __init__(self, file: RotatedFile, pool: BlockingPool) -> None:
        self.name = file.path
        self._file = file
        self._pool = pool
        self._writing = Lock()
        """A write whose caller was cancelled goes on by itself."""

    async def write(self, lines: Sequence[bytes]) -> tuple[int, str]:
        written, error = await self._pool.run(lambda: self._write(lines))
        return written, "" if error is None else error.strerror or str(error)

    def _write(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        with self._writing:
            return self._file.write(lines)

    def close(self) -> None:
        """Close the file, unless a disk that does not answer still has it."""
        if self._writing.acquire(blocking=False):
            self._file.close()
            self._writing.release()


class _Way:
    """The lines on their way to one place."""

    def __init__(
        self, place: Place, *, broker_id: int, clock: Clock, faults: Faults, written: Counter, lost: Counter
    ) -> None:
        self._place = place
        self._broker_id = broker_id
        self._clock = clock
        self._faults = faults
        self._written = written
        self._lost = lost
        self._lines = Lines(BUFFER_BYTES_MAX)
        self._wanted = asyncio.Event()
        self._missing = 0
        """Lines that could not be written, and that the place does not know of."""
        self._why = ""

    def put(self, line: bytes, *, important: bool) -> None:
        if not self._lines.put(line, important=important):
            self._lost.value += 1
            self._faults.met(
                WRITING,
                self._place.name,
                f"lines of the audit log are lost: {FULL} ({self._place.name}); they are counted",
            )
        self._wanted.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.write()

    async def write(self) -> None:
        """Write the waiting lines."""
        lines = self._lines.take()
        missing, why = self._missing + self._lines.lost, self._why if self._missing else FULL
        self._lines.lost = 0
        told = [lost_line(missing, why, self._clock.now_ms(), self._broker_id)] if missing else []
        if not (lines or told):
            return
        written, problem = await self._place.write([*told, *lines])
        if written < len(told):
            self._missing = missing
        else:
            self._missing = 0
            written -= len(told)
        self._written.value += written
        failed = len(lines) - written
        if problem:
            self._missing += failed
            self._why = problem
            self._lost.value += failed
            self._faults.met(
                WRITING,
                self._place.name,
                f"the audit log cannot be written to {self._place.name}: {problem}. Requests are served; lines that are lost are "
                "counted",
                lasting=True,
            )
        else:
            self._faults.over(WRITING, self._place.name)


class AuditWriter:
    """Takes the lines, and owns those that are not written yet. Belongs to one loop."""

    def __init__(
        self, places: Sequence[tuple[str, Place]], *, broker_id: int, clock: Clock, faults: Faults, registry: Registry
    ) -> None:
        """``places``: each with its kind, for metrics."""
        self._ways = [
            _Way(
                place,
                broker_id=broker_id,
                clock=clock,
                faults=faults,
                written=registry.counter("firn_audit_lines_total", "Lines of the audit log written.", to=kind),
                lost=registry.counter(
                    "firn_audit_lines_lost_total", "Lines of the audit log that could not be written.", to=kind
                ),
            )
            for kind, place in places
        ]

    def put(self, line: bytes, *, important: bool) -> None:
        for way in self._ways:
            way.put(line, important=important)

    async def run(self, audit: Audit) -> None:
        """Write, and close windows, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for way in self._ways:
                tasks.create_task(way.run())
            tasks.create_task(_close_windows(audit))

    async def finish(self, audit: Audit) -> None:
        """Write the remaining lines, as far as that is quickly done. ``run`` has ended."""
        audit.close_window()
        try:
            async with asyncio.timeout(FINISH_S):
                await asyncio.gather(*(way.write() for way in self._ways))
        except TimeoutError:
            return  # a disk or a leader that does not answer keeps no broker from stopping


async def _close_windows(audit: Audit) -> None:
    while True:
        await asyncio.sleep(WINDOW_S)
        audit.close_window()


def open_file(config: BrokerConfig) -> RotatedFile:
    """The file that the settings name. Raises: ConfigError."""
    path = config.firn_audit_log_path
    file = RotatedFile(path, bytes_max=config.firn_audit_log_bytes_max, files_max=config.firn_audit_log_files_max)
    try:
        file.open()
    except BlockingIOError:
        raise ConfigError(
            f"The audit log {path} is written by another process: give each broker its own firn.audit.log.path."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"The audit log {path} cannot be written: {error.strerror or error}. Mend it, or set firn.audit.log.path to another "
            "file or to off."
        ) from None
    return file
