"""A connection as the handlers of Produce and Fetch see it: what is remembered of its client, and the parts of the broker."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from app.transport.connection import Connection
from app.transport.server import Server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.handlers.api import Api
    from app.handlers.context import Context
    from app.handlers.fetch_shape import FetchShape
    from app.handlers.metrics import ApiMeter, ApiMetrics
    from app.handlers.preparations import Preparations
    from app.handlers.produce_shape import ProduceShape, ProduceShapes


class Service(Server):
    """What all clients of one listener are served with."""

    context: Context
    apis: Mapping[int, Api]
    metrics: ApiMetrics
    produce_meter: ApiMeter
    produce_shapes: ProduceShapes
    preparations: Preparations

    @abstractmethod
    def make(self) -> Client: ...


class Client(Connection):
    """One client. ``serve`` is in ``session.py``."""

    __slots__ = ("_shape", "context", "fetch_shape", "now_ms")

    server: Service

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.context = service.context
        self.now_ms = 0
        """Wall-clock time of this callback, for whatever it appends."""
        self._shape: ProduceShape | None = None
        """Of the last Produce that went the long way, or was found among the others."""
        self.fetch_shape: FetchShape | None = None
        """Of the last Fetch that went the long way."""

    def remember(self, shape: ProduceShape) -> None:
        """Serve Produce requests of this shape the short way from now on."""
        self.server.produce_shapes.remember(shape)
        self._shape = shape
