"""The HTTP process: uvicorn around the application, until a signal or the end of the parent.

If a broker starts it, the process inherits one end of a socket pair. The broker tells its health there. End of file means that the
broker is gone, and the process ends at once. This module makes the process's clock and randomness.

Tests: ``tests/http/test_application.py``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from app import __version__
from app.core.errors import ConfigError, clause
from app.core.faults import Faults, met_bug
from app.core.log_events import Event
from app.core.metrics import Registry
from app.core.notices import announce, follow_format, log_exception, log_line
from app.core.seams import Clock
from app.core.usage import show_process
from app.http.access import check_encrypted
from app.http.application import create_app, refusal_of
from app.http.connections import RESERVED, ConnectionLimits, OpenConnections, connection_class
from app.http.errors import ProcessEnded
from app.http.gateway import HttpSettings
from app.http.health import HealthReader
from app.http.processes.listening import BACKLOG, listen
from app.machine.runtime import SystemClock, settle_memory

if TYPE_CHECKING:
    from fastapi import FastAPI

    from app.http.processes.accepting import Accepting
    from app.http.processes.answering import Answering
    from app.http.processes.worker import Worker
    from app.http.tls import HttpTls

GRACE_S: Final = 5
"""How long requests under way may take to end after a signal."""
ORPHAN_GRACE_S: Final = 1
"""How long requests under way may take to end after the parent has ended."""
DESCRIPTORS_KEPT: Final = 64
"""So many of the files that the process may open are kept for other uses than connections."""
HANDSHAKES_MAX: Final = 256
"""TLS handshakes under way. A further one takes the place of the oldest."""
KEEP_ALIVE_S: Final = 75
ENDED_BY_A_STOP: Final = "Cancel %s running task(s), timeout graceful shutdown exceeded"
"""The message that uvicorn logs with a count of requests, before it ends them."""


class BugLog(logging.Handler):
    """Errors that uvicorn and asyncio log. Each is logged when it begins, with its traceback, and then from time to time.

    A client can repeat a request that meets a bug of this program at any rate. Requests that the end of a process has ended are no
    bugs.
    """

    def __init__(
        self, faults: Faults, log_line: Callable[[str], None] = log_line, *, door: OpenConnections | None = None
    ) -> None:
        """``door``: counts the requests that have no task."""
        super().__init__(logging.ERROR)
        self._faults = faults
        self._door = door
        self._log_line = log_line

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (asyncio.CancelledError, ProcessEnded)):
            return
        if record.msg == ENDED_BY_A_STOP:
            count: Any = record.args[0]  # type: ignore[index]
            if self._door is not None:
                count += self._door.quick_under_way
            text = f"HTTP requests that had not ended in time were ended by the stop: {count}"
            self._log_line(Event.HTTP_REQUESTS_CUT_SHORT.line(text, requests=count))
            return
        if met_bug(self._faults, f"HTTP: {record.getMessage().strip()}", error) and error is not None:
            log_exception(error)


class Server(uvicorn.Server):
    """Reports that it listens, and where."""

    def __init__(
        self,
        config: uvicorn.Config,
        door: OpenConnections,
        *,
        quiet: bool,
        scheme: str,
        share: _Share | None = None,
    ) -> None:
        super().__init__(config)
        self._door = door
        self._quiet = quiet
        self._scheme = scheme
        self._share = share

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._share is not None:
            assert sockets is not None
            await super().startup([])
            self.servers += await self._share.begin(sockets[0], self._protocol)  # type: ignore[arg-type]
            return
        await super().startup(sockets)
        if not self._quiet and self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            announce(Event.HTTP_LISTENING.line(f"Firn HTTP listens on {self._scheme}://{host}:{port}", port=port))

    async def _wait_tasks_to_complete(self) -> None:
        await super()._wait_tasks_to_complete()
        while self._door.quick_under_way and not self.force_exit:  # noqa: ASYNC110 (a second signal sets no event)
            await asyncio.sleep(0.1)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class _Share:
    """The part of a port's requests that this process serves, if several share the port."""

    def __init__(self, app: FastAPI, worker: Worker, registry: Registry, faults: Faults, supervisor: int) -> None:
        """``supervisor``: the descriptor by which the supervisor hears."""
        self._app = app
        self._worker = worker
        self._registry = registry
        self._faults = faults
        self._supervisor = supervisor

    async def begin(
        self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]
    ) -> tuple[Answering, Accepting]:
        """Answer the other processes, and then accept connections. Raises: ConfigError."""
        from app.http.processes.accepting import Accepting
        from app.http.processes.answering import Answering
        from app.http.processes.worker import READY

        answering = Answering(self._app, self._registry, lambda: refusal_of(self._app))
        try:
            await answering.start(self._worker)
        except OSError as error:
            raise ConfigError(
                f"HTTP cannot listen on {self._worker.path_of(self._worker.index)}: {clause(error)}."
            ) from None
        accepting = Accepting(listening, protocol, self._faults)
        os.write(self._supervisor, READY)
        return answering, accepting


def run(settings: HttpSettings, *, host: str, port: int, parent_fd: int | None = None) -> int:
    """Serve until a signal or the parent's end; the exit code.

    Raises: ConfigError if the address cannot be listened on, or the settings do not fit each other.
    """
    kept = RESERVED + DESCRIPTORS_KEPT
    if settings.tls is not None:
        kept += HANDSHAKES_MAX
    if settings.client:
        from app.http.callers import CALLERS_MAX, callers_log_in

        if callers_log_in(settings.client):
            check_encrypted(host, encrypted=settings.tls is not None or settings.plain_credentials)
            kept += 2 * CALLERS_MAX
    worker = settings.worker
    if worker is not None:
        from app.http.processes.places import DESCRIPTORS

        kept += DESCRIPTORS
    follow_format()
    clock: Clock = SystemClock()
    registry = Registry()
    show_process(registry, __version__)
    faults = Faults(log_line, time.monotonic)
    app = create_app(settings, clock=clock, rng=random.Random(), registry=registry, faults=faults)
    limits = ConnectionLimits(
        connections_max=_descriptors_for(settings.connections_max, kept),
        header_timeout_ms=settings.header_timeout_ms,
        transfer_timeout_ms=settings.body_idle_timeout_ms,
    )
    door = OpenConnections(limits, registry, quick=app.state.quick_records)
    connection: Any = connection_class(door)
    tls: HttpTls | None = None
    if settings.tls is not None:
        from app.http.tls import HttpTls

        tls = HttpTls(settings.tls, door, handshakes_max=HANDSHAKES_MAX)
        tls.register(registry)
        connection = tls.around(connection)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=connection,
        ws="none",
        # Errors of clients are counted; a line for each would let them fill the log.
        log_level="error",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # uvicorn would believe every process on this machine; ``forwarded.py`` reads them
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addHandler(BugLog(faults, door=door))
        logging.getLogger(name).propagate = False
    share = None
    if worker is None:
        listening = listen(host, port)
    else:
        assert parent_fd is not None
        listening = socket.socket(fileno=worker.listening)
        share = _Share(app, worker, registry, faults, parent_fd)
    settle_memory()  # with Python's own thresholds, the loop would look through all objects of the start-up again and again
    scheme = "http" if tls is None else "https"
    server = Server(config, door, quiet=parent_fd is not None, scheme=scheme, share=share)
    with listening, asyncio.Runner(loop_factory=_uvloop) as runner:
        return runner.run(_serve(server, listening, parent_fd, app.state.health, faults, tls))


def _descriptors_for(connections: int, kept: int) -> int:
    """Ask the system for as many open files as ``connections`` need, beside ``kept`` others. Returns how many connections it
    allows."""
    wanted = connections + kept
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            connections = max(1, soft - kept)
    return connections


async def _serve(
    server: Server,
    listening: socket.socket,
    parent_fd: int | None,
    health: HealthReader,
    faults: Faults,
    tls: HttpTls | None,
) -> int:
    if parent_fd is not None:
        loop = asyncio.get_running_loop()
        os.set_blocking(parent_fd, False)

        def parent_spoke() -> None:
            if told := os.read(parent_fd, 4096):
                health.feed(told)
            else:
                loop.remove_reader(parent_fd)
                # The broker is gone: requests under way cannot end well, and the address is wanted by the next one.
                server.config.timeout_graceful_shutdown = ORPHAN_GRACE_S
                server.should_exit = True

        loop.add_reader(parent_fd, parent_spoke)
    watching = [asyncio.create_task(faults.run())]
    if tls is not None:
        watching.append(asyncio.create_task(tls.run(faults, log_line)))
    try:
        await server.serve(sockets=[listening])
    finally:
        for task in watching:
            task.cancel()
        if tls is not None:
            tls.arrivals.end_all()
    return 0 if server.started else 1


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()
