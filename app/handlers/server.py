"""The Kafka listener of a broker."""

from __future__ import annotations

from collections.abc import Mapping

from app.handlers.api import Api
from app.handlers.callers import PLAINTEXT
from app.handlers.client import Service
from app.handlers.context import Context
from app.handlers.preparations import Preparations
from app.handlers.produce import PRODUCE
from app.handlers.produce_shape import ProduceShapes
from app.handlers.session import Session
from app.transport.answers import Answers
from app.transport.connection import Connection
from app.transport.server import ServerLimits


class KafkaServer(Service):
    """Serves the Kafka protocol to every client that connects. Belongs to one loop."""

    def __init__(self, context: Context, apis: Mapping[int, Api], *, connections_max: int) -> None:
        config = context.config
        super().__init__(
            ServerLimits(
                connections_max=connections_max,
                request_bytes_max=config.socket_request_max_bytes,
                frame_bytes_max=config.queued_max_request_bytes,
                send_buffer_bytes=config.socket_send_buffer_bytes,
                idle_ms_max=config.connections_max_idle_ms,
            ),
            gate=context.gate,
            replays=context.replays,
            faults=context.faults,
            pool=context.pool,
            registry=context.registry,
        )
        self.context = context
        self.listener = PLAINTEXT
        self.metrics = context.metrics
        self.produce_meter = context.metrics.meter(PRODUCE)
        self.produce_shapes = ProduceShapes()
        self.preparations = Preparations(
            context.pool,
            bytes_max=config.firn_preparation_bytes_max,
            batch_bytes_max=config.firn_decompressed_batch_bytes_max,
        )
        self.apis = apis
        context.registry.gauge(
            "firn_preparation_memory_bytes",
            "Memory claimed for produced batches that are being decompressed, checked or recompressed.",
            lambda: [((), float(self.preparations.claimed_bytes))],
        )

    def attach(self) -> None:
        super().attach()
        self.answers = Answers(self.loop)

    def make(self) -> Connection:
        return Connection(self, Session(self))
