"""The supervisor of the workers of a port: it listens, starts, restarts and ends them. It serves no request itself.

Rules: docs/adr/0046-http-processes.md. Tests: ``tests/http/processes_of_a_port/test_supervisor.py``.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from app.core.errors import ConfigError, clause
from app.core.log_events import Event
from app.core.notices import announce, log_line
from app.core.units import TimestampMs
from app.http.processes.listening import listen
from app.http.processes.worker import READY, Worker, name_of
from app.machine.children import Child
from app.machine.interpreter import python_environment
from app.machine.runtime import SystemClock

GRACE_S: Final = 15.0
"""How long workers may take to end after a signal. They give requests under way 5 s, and then leave their groups."""
ORPHAN_GRACE_S: Final = 4.0
"""The same after the end of the parent, which kills this process in a second more."""
TELL_AGAIN_S: Final = 1.0
"""After a worker did not take the broker's health."""
WRONG_SETTINGS: Final = 2
"""Exit code of a worker that cannot serve with its settings."""
HEALTH_BYTES_MAX: Final = 64 * 1024
PREFIX: Final = "firn-http-"
"""Of the names of the folders."""
_SOCKET: Final = re.compile(r"[0-9]+\.sock")
DIRECTORY_BYTES_MAX: Final = 96
"""Unix allows some 100 bytes for the path of a socket."""
YOUNG_S: Final = 60.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def supervise(*, host: str, port: int, processes: int, scheme: str, parent_fd: int | None = None) -> int:
    """Serve by workers until a signal or the parent's end; the exit code.

    The workers have the command and the environment of this process, with flags that say which worker each is.

    Raises: ConfigError if the address cannot be listened on, or no folder for the workers' sockets can be made.
    """
    with ExitStack() as stack:
        listening = stack.enter_context(listen(host, port))
        directory = stack.enter_context(private_directory(tempfile.gettempdir(), SystemClock().now_ms()))
        supervisor = Supervisor(listening, directory, processes, this_command)
        address = "{}:{}".format(*listening.getsockname()[:2])
        greeting = None if parent_fd is not None else f"Firn HTTP listens on {scheme}://{address}"
        return asyncio.run(supervisor.run(parent_fd, greeting))


@contextmanager
def private_directory(parent: str, now_ms: TimestampMs) -> Iterator[str]:
    """A new folder that only this user may enter, removed after the block. Those of processes that were killed are removed, too.

    Raises: ConfigError.
    """
    try:
        _remove_abandoned(parent, now_ms)
        directory = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    except OSError as error:
        raise ConfigError(f"HTTP cannot make a folder for its processes: {clause(error)}.") from None
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        if len(os.fsencode(directory)) > DIRECTORY_BYTES_MAX:
            raise ConfigError(
                f"The path {directory} is too long for sockets of HTTP processes. Set TMPDIR to a path of at most "
                f"{DIRECTORY_BYTES_MAX - len(PREFIX) - 9} bytes."
            )
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(held)


def _remove_abandoned(parent: str, now_ms: TimestampMs) -> None:
    """A folder in use is locked by its process. One that is not yet is young.

    A folder that cannot be removed stays: another process may use it, remove it meanwhile, or be its owner.
    """
    for name in os.listdir(parent):
        if name.startswith(PREFIX):
            with suppress(OSError):
                _remove_if_abandoned(os.path.join(parent, name), now_ms)


def _remove_if_abandoned(path: str, now_ms: TimestampMs) -> None:
    """Remove a folder that has nothing but sockets of workers. Raises: OSError."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(held)
        if found.st_uid != os.geteuid() or now_ms / 1000 - found.st_mtime < YOUNG_S:
            return
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        names = os.listdir(held)
        if all(_is_socket_of_worker(name, held) for name in names):
            for name in names:
                os.unlink(name, dir_fd=held)
            os.rmdir(path)
    finally:
        os.close(held)


def _is_socket_of_worker(name: str, directory: int) -> bool:
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    return stat.S_ISSOCK(mode) and _SOCKET.fullmatch(name) is not None


def this_command(worker: Worker, parent_fd: int) -> Sequence[str]:
    """The command of this process, for a worker. The last flag of a name counts."""
    return [
        *(sys.executable, *sys.orig_argv[1:]),
        *("--worker", worker.argument(), "--parent-fd", str(parent_fd)),
    ]


class Supervisor:
    """The workers of one port."""

    def __init__(
        self, listening: socket.socket, directory: str, processes: int, command: Callable[[Worker, int], Sequence[str]]
    ) -> None:
        """``command``: of a worker whose end of its socket pair has this number."""
        rng = random.Random()
        self._members = [
            _Member(Worker(index, processes, listening.fileno(), directory), command, rng, self._ended)
            for index in range(processes)
        ]
        self._health = b""
        """The newest line of health from the parent."""
        self._rest = b""
        self._untold = asyncio.Event()
        """At least one worker has not taken the newest line."""
        self._stopping = asyncio.Event()
        self._code = 0
        self._signals = 0
        self._orphaned = False

    async def run(self, parent_fd: int | None, greeting: str | None) -> int:
        """Serve; the exit code."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        if parent_fd is not None:
            os.set_blocking(parent_fd, False)
            loop.add_reader(parent_fd, self._parent_spoke, parent_fd)
        tasks = [asyncio.create_task(self._tell_health())]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            starting = asyncio.create_task(self._start(greeting))
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            tasks.append(starting)
            await stopping
        finally:
            tasks.extend(one.watching for one in self._members if one.watching is not None)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_all()
        return self._code

    async def _start(self, greeting: str | None) -> None:
        """The first worker alone, so that a wrong setting is reported once. The others when it serves."""
        first, *others = self._members
        await first.start(self._newest_health)
        await first.served.wait()
        if greeting is not None:
            announce(Event.HTTP_LISTENING.line(greeting))
        for member in others:
            await member.start(self._newest_health)

    def _ended(self, member: _Member, code: int) -> bool:
        if code == WRONG_SETTINGS and not any(one.served.is_set() for one in self._members):
            self._code = code
            self._stopping.set()
            return False
        return True

    # --- ends -------------------------------------------------------------------------------------------------------------

    def _signalled(self) -> None:
        """The first signal ends the workers in order, a further one at once."""
        self._signals += 1
        self._stopping.set()
        if self._signals > 1:
            for member in self._members:
                member.child.signal(signal.SIGKILL)

    async def _end_all(self) -> None:
        if self._orphaned:  # the end of its pair gives a worker less time
            wait_s = ORPHAN_GRACE_S
        else:
            wait_s = GRACE_S
            for member in self._members:
                member.child.signal(signal.SIGTERM)
        await asyncio.gather(*(member.end(wait_s, hang_up=self._orphaned) for member in self._members))

    # --- the parent -------------------------------------------------------------------------------------------------------

    def _parent_spoke(self, parent_fd: int) -> None:
        told = os.read(parent_fd, 4096)
        if not told:
            asyncio.get_running_loop().remove_reader(parent_fd)
            self._orphaned = True
            self._stopping.set()
            return
        *lines, self._rest = (self._rest + told).split(b"\n")
        assert len(self._rest) <= HEALTH_BYTES_MAX, len(self._rest)
        if lines:
            self._health = lines[-1] + b"\n"
            self._untold.set()

    def _newest_health(self) -> bytes:
        return self._health

    async def _tell_health(self) -> None:
        """Hand the newest line of the parent on to each worker, until cancelled."""
        while True:
            await self._untold.wait()
            self._untold.clear()
            refusals = [member for member in self._members if not member.tell(self._health)]
            if refusals:
                await asyncio.sleep(TELL_AGAIN_S)
                self._untold.set()


class _Member:
    """One worker and its successors."""

    def __init__(
        self,
        worker: Worker,
        command: Callable[[Worker, int], Sequence[str]],
        rng: random.Random,
        ended: Callable[[_Member, int], bool],
    ) -> None:
        self.served = asyncio.Event()
        """A process of it has served."""
        self.watching: asyncio.Task[None] | None = None
        self._pair: socket.socket | None = None
        self._health: Callable[[], bytes] = bytes
        self.child = Child(
            name_of(worker.index),
            lambda descriptor: command(worker, descriptor),
            environment=python_environment,
            inherited=[worker.listening],
            rng=rng,
            log_line=log_line,
            connected=self._connected,
            ended=lambda code: ended(self, code),
        )

    async def start(self, health: Callable[[], bytes]) -> None:
        """Start, and start again. ``health``: the parent's newest line."""
        self._health = health
        try:
            await self.child.start()
        except OSError as error:
            log_line(
                Event.PROCESS_START_FAILED.line(
                    f"cannot start the {self.child.name} process: {error}", process=self.child.name
                )
            )
        self.watching = asyncio.create_task(self.child.watch())

    def tell(self, line: bytes) -> bool:
        """Hand on a line. Returns: False if the process that runs did not take it."""
        if self._pair is None or not line:
            return True
        try:
            self._pair.send(line)  # some hundred bytes: all of them, or none
        except BlockingIOError:
            return False
        except OSError:
            return True  # it has ended, and its successor is told when it starts
        return True

    async def end(self, wait_s: float, *, hang_up: bool) -> None:
        """End the process for good. ``hang_up``: by the end of its pair, besides signals."""
        if hang_up:
            self._hang_up()
        await self.child.stop(wait_s)
        self._hang_up()

    async def _connected(self, pair: socket.socket) -> None:
        self._hang_up()
        pair.setblocking(False)
        self._pair = pair
        asyncio.get_running_loop().add_reader(pair.fileno(), self._heard, pair)
        self.tell(self._health())

    def _heard(self, pair: socket.socket) -> None:
        try:
            said = pair.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if READY in said:
            self.served.set()
        if not said:
            asyncio.get_running_loop().remove_reader(pair.fileno())

    def _hang_up(self) -> None:
        if self._pair is not None:
            asyncio.get_running_loop().remove_reader(self._pair.fileno())
            self._pair.close()
            self._pair = None
