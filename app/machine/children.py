"""Child processes: started by exec, watched, started again with back-off.

A child inherits one end of a socket pair. However its parent ended, the child ends: Linux kills it (``end_with_parent``), and
elsewhere it reads end-of-file.

Tests: ``tests/broker/test_process.py``, ``tests/broker/test_cleaning.py``, ``tests/http/processes_of_a_port/test_supervisor.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from app.core.log_events import Event

RESTART_DELAY_S_MIN: Final = 0.1
RESTART_DELAY_S_MAX: Final = 10.0
STEADY_S: Final = 30.0
"""A child that lived this long starts again without delay."""
EXIT_WAIT_S: Final = 5.0
"""How long a child may take to end after its socket was closed, before it is killed."""


class Child:
    """One child process and its successors."""

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        *,
        environment: Callable[[], Mapping[str, str]],
        inherited: Sequence[int],
        rng: random.Random,
        log_line: Callable[[str], None],
        connected: Callable[[socket.socket], Awaitable[None]] | None = None,
        ended: Callable[[int], bool] | None = None,
    ) -> None:
        """``command`` makes program and arguments from the number of the child's end of the socket pair. ``environment`` is asked
        for the child's at each start. ``inherited``: further descriptors.

        ``connected`` is given this process's end of every new pair and owns it; without it this object keeps it open. ``ended`` is
        told the exit code of each process that ended by itself, and says whether another one is started.
        """
        self.name = name
        self._command = command
        self._inherited = tuple(inherited)
        self._rng = rng
        self._log_line = log_line
        self._connected = connected
        self._environment = environment
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._kept: socket.socket | None = None
        self.restarts = 0

    @property
    def process_id(self) -> int:
        """Of the child that runs now; 0 if none does."""
        process = self._process
        return 0 if process is None or process.returncode is not None else process.pid

    async def start(self) -> None:
        """Start the process and hand on its socket. Raises: OSError."""
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(theirs.fileno()),
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *self._inherited),
                start_new_session=True,  # Ctrl-C is for the parent, which then ends its children in order
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        if self._connected is not None:
            await self._connected(ours)
        else:
            if self._kept is not None:
                self._kept.close()
            self._kept = ours

    async def watch(self) -> None:
        """Start the child again whenever it has ended, until cancelled, or until ``ended`` says no."""
        delay_s = RESTART_DELAY_S_MIN
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            if self._process is not None:
                code = await self._process.wait()
                if self._ended is not None and not self._ended(code):
                    return
                self._log_line(
                    Event.PROCESS_ENDED.line(
                        f"the {self.name} process ended ({_how(code)}); starting it again",
                        process=self.name,
                        exit_code=code,
                    )
                )
            if loop.time() - started_s >= STEADY_S:
                delay_s = RESTART_DELAY_S_MIN
            await asyncio.sleep(delay_s * self._rng.uniform(0.75, 1.25))
            delay_s = min(delay_s * 2, RESTART_DELAY_S_MAX)
            self.restarts += 1
            try:
                await self.start()
            except OSError as error:
                self._log_line(
                    Event.PROCESS_START_FAILED.line(f"cannot start the {self.name} process: {error}", process=self.name)
                )
                self._process = None

    def signal(self, number: int) -> None:
        """Send a signal to the process that runs now."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def stop(self, wait_s: float | None = None) -> None:
        """Close the socket, which tells the child to end, and wait ``EXIT_WAIT_S`` or so long; kill it if it does not."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            async with asyncio.timeout(EXIT_WAIT_S if wait_s is None else wait_s):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
