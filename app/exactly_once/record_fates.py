"""The fates of records at the brokers that lead them (ADR 0043, EO11).

A broker that leads results asks others with its own rights. Tests: ``tests/exactly_once/test_record_fates.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.client.cluster import refusal
from app.coordinator.partition import ProducerIdAndEpoch
from app.core.errors import ErrorCode, ProtocolError, RequestRejected
from app.core.units import BrokerId, TopicPartition
from app.exactly_once.coordinator import RequestCoordinator
from app.exactly_once.deciding import RecordFate
from app.metadata.image.image import BrokerImage, ClusterImage
from app.wire.private import RequestsRequest, RequestsResponse


class RequestsLink(Protocol):
    """Connections to other brokers."""

    async def requests(self, to: BrokerImage, asked: RequestsRequest) -> RequestsResponse:
        """Raises: BrokerUnavailable, ProtocolError."""
        ...


class RecordFates:
    """Asks the leader, which may be this broker."""

    def __init__(
        self,
        broker_id: BrokerId,
        coordinator: RequestCoordinator,
        image: Callable[[], ClusterImage],
        link: RequestsLink | None,
    ) -> None:
        """Without ``link`` this broker is alone."""
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._image = image
        self._link = link

    async def fate(self, target: TopicPartition, offset: int, producer: ProducerIdAndEpoch) -> RecordFate:
        """As ``RequestCoordinator.fate``. Raises: RequestRejected, BrokerUnavailable, ProtocolError, FirnError."""
        image = self._image()
        topic = image.topic(target.topic)
        if topic is None or target.partition >= len(topic.partitions):
            return RecordFate.GONE
        leader = topic.partitions[target.partition].leader
        if leader == self._broker_id or self._link is None:
            return await self._coordinator.fate(target, offset, producer)
        broker = image.brokers.get(leader)
        if broker is None:
            raise RequestRejected(ErrorCode.LEADER_NOT_AVAILABLE, f"The partition {target} has no leader now.")
        asked = RequestsRequest(
            "fate",
            partitions=[target],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            offset=offset,
        )
        answer = await self._link.requests(broker, asked)
        if answer.error_code:
            raise refusal(answer.error_code, str(target), answer.error)
        try:
            return RecordFate(answer.found)
        except ValueError as error:
            raise ProtocolError(f"Broker {leader} names a fate that there is not: {answer.found[:64]!r}.") from error
