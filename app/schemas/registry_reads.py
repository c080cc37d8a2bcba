"""Reads of `_schemas` on the broker that leads it, with this broker's own rights (ADR 0044, SV8).

Tests: ``tests/broker/test_schema_validation.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from app.client.cluster import refusal
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId
from app.metadata.image.image import BrokerImage, ClusterImage
from app.registry.schema_log import Entry
from app.schemas.coordinator import SchemaCoordinator
from app.schemas.strength import TOPIC
from app.wire.private import SCHEMA_READ_BYTES, SchemasRequest, SchemasResponse


class LogRead(NamedTuple):
    """Committed records of `_schemas`."""

    entries: list[Entry]
    end: int
    """Where the next read begins."""
    history: str
    """Names the topic and its last loss of an end."""
    whole: bool
    """Whether the log had no more records when it was read."""


class SchemasLink(Protocol):
    """Connections to other brokers."""

    async def schemas(self, to: BrokerImage, asked: SchemasRequest) -> SchemasResponse:
        """Raises: BrokerUnavailable, ProtocolError."""
        ...


class RegistryReads:
    """Reads from the leader, which may be this broker."""

    def __init__(
        self,
        broker_id: BrokerId,
        coordinator: SchemaCoordinator,
        image: Callable[[], ClusterImage],
        link: SchemasLink | None,
    ) -> None:
        """Without ``link`` this broker is alone."""
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._image = image
        self._link = link

    async def read(self, start: int) -> LogRead:
        """The records from offset ``start`` on, one portion of them. The end is learned after the call began.

        Raises: RequestRejected, BrokerUnavailable, ProtocolError.
        """
        image = self._image()
        topic = image.topic(TOPIC)
        if topic is None or not topic.partitions:
            raise RequestRejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {TOPIC} yet. Register a schema first."
            )
        leader = topic.partitions[0].leader
        if leader == self._broker_id or self._link is None:
            records, end, history = await self._coordinator.read(start, SCHEMA_READ_BYTES, lambda _: True)
            return _read([Entry(*one) for one in records], end, history)
        broker = image.brokers.get(leader)
        if broker is None:
            raise RequestRejected(ErrorCode.LEADER_NOT_AVAILABLE, f"The topic {TOPIC} has no leader now.")
        answer = await self._link.schemas(broker, SchemasRequest("read", start))
        if answer.error_code:
            raise refusal(answer.error_code, TOPIC, answer.error)
        return _read([Entry(*one) for one in answer.records], answer.end, answer.history)


def _read(entries: list[Entry], end: int, history: str) -> LogRead:
    size = sum(len(one.key) + len(one.value or b"") for one in entries)
    return LogRead(entries, end, history, size < SCHEMA_READ_BYTES)
