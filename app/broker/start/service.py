"""Messages to the service manager: the protocol of sd_notify(3), a datagram for each message.

systemd names its socket in ``NOTIFY_SOCKET``. A unit with ``Type=notify`` counts as started when the broker sends ``READY=1``.
Until then, and while it stops or drains, the broker repeatedly asks for more time (``EXTEND_TIMEOUT_USEC``), so that a long
recovery does not look like a hanging start. With ``WatchdogSec=`` the event loop sends ``WATCHDOG=1``. A hanging loop sends
nothing, and systemd restarts the broker.

Without that socket every message is dropped, and nothing costs anything.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, MutableMapping
from typing import Final

from app.core.log_events import Event
from app.core.notices import log_line

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
WATCHDOG_PROCESS: Final = "WATCHDOG_PID"
MORE_TIME_S: Final = 30.0
"""Time requested with each message, many times longer than the pause between two messages."""
PAUSE_S: Final = 1.0
"""Pause between two messages while the broker starts, drains or stops."""


class ServiceManager:
    """The service manager of this process. Belongs to the loop that calls ``run``."""

    def __init__(
        self,
        address: str | bytes | None,
        *,
        watchdog_s: float | None = None,
        log_line: Callable[[str], None] = log_line,
    ) -> None:
        """``address``: a datagram socket; None for no service manager. ``watchdog_s``: how long the loop may be silent."""
        self._address = address
        self._watchdog_s = watchdog_s
        self._log_line = log_line
        self._socket = (
            None if address is None else socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        )
        if self._socket is not None:
            self._socket.setblocking(False)
        self._failed = False
        self._needs_time = self._stops = False

    @classmethod
    def of_environment(
        cls, environment: MutableMapping[str, str], process_id: int, log_line: Callable[[str], None] = log_line
    ) -> ServiceManager:
        """The manager that the environment names. The variables are removed, because they are not for child processes."""
        name = environment.pop(SOCKET, "")
        microseconds, process = environment.pop(WATCHDOG, ""), environment.pop(WATCHDOG_PROCESS, "")
        watchdog_s = None
        if microseconds.isascii() and microseconds.isdecimal() and process in ("", str(process_id)):
            watchdog_s = int(microseconds) / 1e6 or None
        address: str | bytes | None = None
        if name.startswith("@"):
            address = b"\0" + name[1:].encode()  # Linux' abstract names
        elif name.startswith("/"):
            address = name
        elif name:
            log_line(
                Event.SERVICE_MANAGER_FAILED.line(
                    f"{SOCKET}={name} is an unknown kind of address: the service manager gets no notifications"
                )
            )
        return cls(address, watchdog_s=None if address is None else watchdog_s, log_line=log_line)

    # --- messages ------------------------------------------------------------------------------------------------

    def starting(self, status: str) -> None:
        """The broker begins to start, which may take longer than the unit allows."""
        self._needs_time = True
        self._tell(status)

    def ready(self, status: str) -> None:
        """The broker serves. Nothing is said if it stops already: a stop needs the time that it was given."""
        if not self._stops:
            self._needs_time = False
            self._tell(status, "READY=1")

    def busy(self, status: str) -> None:
        """The broker drains, which may take longer than the unit allows."""
        self._needs_time = True
        if not self._stops:
            self._tell(status)

    def serving(self, status: str) -> None:
        """The broker serves again, because a drain was cancelled."""
        if not self._stops:
            self._needs_time = False
            self._tell(status)

    def stopping(self, status: str) -> None:
        """The broker has begun to stop. May be called again."""
        if not self._stops:
            self._stops = self._needs_time = True
            self._tell(status, "STOPPING=1")

    def _tell(self, status: str, *fields: str) -> None:
        self._send(*fields, f"STATUS={' '.join(status.split())}", *self._more_time())

    def _more_time(self) -> tuple[str, ...]:
        return (f"EXTEND_TIMEOUT_USEC={int(MORE_TIME_S * 1e6)}",) if self._needs_time else ()

    def _send(self, *fields: str) -> None:
        if self._socket is None or not fields:
            return
        assert self._address is not None
        try:
            self._socket.sendto("\n".join(fields).encode(), self._address)
        except OSError as error:
            # The broker serves also without a listening manager. The next message may arrive.
            if not self._failed:
                self._log_line(
                    Event.SERVICE_MANAGER_FAILED.line(f"cannot notify the service manager: {error.strerror or error}")
                )
            self._failed = True

    # --- life ----------------------------------------------------------------------------------------------------

    async def run(self, look: Callable[[], None] = lambda: None) -> None:
        """Report that the loop runs, and ask for time if necessary, until cancelled. ``look`` is called before each message."""
        if self._socket is None:
            return
        watchdog_s = self._watchdog_s
        pause_s = PAUSE_S if watchdog_s is None else min(PAUSE_S, watchdog_s / 2)
        while True:
            look()
            self._send(*(() if watchdog_s is None else ("WATCHDOG=1",)), *self._more_time())
            await asyncio.sleep(pause_s)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
