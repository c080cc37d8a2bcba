"""A connection as the handlers of Produce and Fetch see it: its caller, the shapes of its requests, and the broker's parts.

Tests: ``tests/handlers/test_produce.py``, ``tests/handlers/test_fetch.py``.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from app.handlers.base.request import UNKNOWN_SOFTWARE
from app.handlers.policy.callers import PLAINTEXT
from app.transport.core import ConnectionCore
from app.transport.server import Server

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from app.handlers.base.api import Api
    from app.handlers.base.views import ClientView
    from app.handlers.clients.fetch_shape import FetchShape
    from app.handlers.clients.held_sequences import HeldSequences
    from app.handlers.clients.produce_shape import ProduceShape, ProduceShapes
    from app.handlers.policy.callers import Caller
    from app.handlers.state.metrics import ApiMeter, ApiMetrics
    from app.handlers.state.preparations import Preparations
    from app.transport.answers import Answers
    from app.transport.arrivals import Arrivals
    from app.transport.connection import Connection


SOFTWARE_CHARACTERS_MAX: Final = 64
"""Characters of the name and of the version of a client's library that a connection keeps."""
SIDE_BY_SIDE_MAX: Final = 32
"""Requests of one connection that are served beside each other. They begin in one turn of the loop, and the first step of each may
take 0.6 ms."""


class Gathers(Protocol):
    """Serves Produce requests of the usual kind, alone or together (``gathering.py``)."""

    def serve(
        self,
        client: Client,
        shape: ProduceShape,
        correlation_id: int,
        buffer: bytearray,
        view: memoryview,
        position: int,
        frame_end: int,
        end: int,
    ) -> bytes | None: ...

    def flush(self, caller: Client | None = None) -> None: ...

    def end_of_call(self, client: Client, view: memoryview) -> None: ...


class Service(Server, ABC):
    """The parts that all connections share."""

    context: ClientView
    serving: Any = None
    """The present or last request: a ``Client`` (that produces), a ``Client`` with its API key, or a ``Request``."""
    rouse: Callable[[], None] | None = None
    """Is called once a connection is read, if the watch of the loop rests."""
    apis: Mapping[int, Api]
    metrics: ApiMetrics
    produce_meter: ApiMeter
    produce_shapes: ProduceShapes
    answers: Answers
    gathering: Gathers
    preparations: Preparations
    arrivals: Arrivals
    failure_delay_ms: int
    """Time before a failed login is answered."""
    tls_scratch: memoryview

    @abstractmethod
    def make(self) -> Connection:
        """A connection for the next client."""

    @abstractmethod
    def handshake_failed(self, listener: str, host: str, why: str) -> None: ...

    @abstractmethod
    def tls_broken(self, host: str, why: str) -> None: ...


class RequestFields(NamedTuple):
    """The fields that a response takes from its request, and the throttle time that it tells."""

    version: int
    correlation_id: int
    throttle_time_ms: int = 0
    """The connection is not read for so long (KIP-219)."""


class Client(ConnectionCore):
    """One client. ``serve`` is in ``session.py``."""

    __slots__ = ("_shape", "caller", "context", "fetch_shape", "gathered", "held", "logging_in", "now_ms", "software")

    server: Service

    def __init__(self, service: Service, listener: str = PLAINTEXT) -> None:
        super().__init__(service, listener)
        self.context = service.context
        self.now_ms = 0
        """Wall-clock time of this callback, in milliseconds. Batches that it appends get this time."""
        self._shape: ProduceShape | None = None
        """The shape of the last Produce that was decoded, or that was found among the remembered shapes."""
        self.gathered = 0
        """Its Produce requests that are to be appended together with others."""
        self.held: HeldSequences | None = None
        """Batches that are missing because they were refused; None if there are none. No Produce takes the fast path meanwhile."""
        self.fetch_shape: FetchShape | None = None
        """The shape of the last Fetch that was decoded."""
        self.caller: Caller = None  # type: ignore[assignment]
        """The present caller. The shapes above belong to it."""
        self.software = UNKNOWN_SOFTWARE
        """Name and version of its library, if it has told them (KIP-511)."""
        self.logging_in = False
        """The client logs in again (KIP-368): nothing else is served until that is done."""

    def lost(self) -> None:
        super().lost()
        self.server.serving = None  # a client is not kept beyond its end to know who was served last

    @property
    def produced_shape(self) -> ProduceShape | None:
        """The shape of its last Produce, if that is known."""
        return self._shape

    def opened(self, host: str, port: int) -> None:
        super().opened(host, port)
        self.caller = self.context.doorkeeper.admit(self.listener, host, port)

    def speak_as(self, caller: Caller) -> None:
        """From now on the client is ``caller``. Shapes that were learnt before are forgotten."""
        self.caller = caller
        self._shape = None
        self.fetch_shape = None

    def charge(self, client_id: str | None, api_key: int, size_bytes: int) -> int:
        """Charge the client's quotas for a request, or for records that it is sent.

        Returns: the throttle time in milliseconds that the response tells. The connection is not read for so long (KIP-219).
        """
        quotas = self.context.quotas
        if quotas is None:
            return 0
        return self.rest(quotas.charge(self.caller, client_id, api_key, size_bytes))

    def rest(self, throttle_time_ms: int) -> int:
        """Do not read the connection for so long. Returns: ``throttle_time_ms``."""
        if throttle_time_ms > 0:
            self.stop_parsing()
            self.on_close.add(_Rest(self, throttle_time_ms))
        return throttle_time_ms

    def follow(self, wake: Callable[[], None]) -> Callable[[], None]:
        """``wake``, which continues the present request after a wait for the store. Traced connections note the request."""
        return wake

    def remember(self, shape: ProduceShape) -> None:
        """Serve Produce requests of this shape on the fast path from now on."""
        self.server.produce_shapes.remember(shape)
        self._shape = shape


def software_of(message: Any) -> tuple[str, str]:
    """Name and version of a client's library, of its ApiVersions request (KIP-511). Too long ones are not kept."""
    told = (message.client_software_name, message.client_software_version)
    if not told[0] or max(map(len, told)) > SOFTWARE_CHARACTERS_MAX:
        return UNKNOWN_SOFTWARE
    return sys.intern(told[0]), sys.intern(told[1])


class _Rest:
    """A connection that is not read for a while."""

    __slots__ = ("_client", "_timer")

    def __init__(self, client: Client, throttle_time_ms: int) -> None:
        self._client = client
        self._timer: asyncio.TimerHandle | None = client.server.loop.call_later(throttle_time_ms / 1000, self._over)

    def _over(self) -> None:
        self._timer = None  # each holds the other
        self._client.on_close.discard(self)
        self._client.parse_on()

    def cancel(self) -> None:
        """The connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
