"""Requests between brokers about transactions, and the seam that carries them (ADR 0026).

Tests: ``tests/transactions/test_requests.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.core.errors import ErrorCode
from app.core.units import TopicId, TopicPartition
from app.transactions.state import ProducerIdentity

if TYPE_CHECKING:
    from app.metadata.image.image import BrokerImage
    from app.metadata.peers.control import LookRequest, LookResponse
    from app.transactions.markers import Marker


class MarkerAsked(NamedTuple):
    """A marker for one partition that another broker leads."""

    marker: Marker
    topic_id: TopicId
    """As the coordinator's image has it (X6)."""
    target: TopicPartition


class AddAsked(NamedTuple):
    """Partitions that one transaction is about to write to."""

    transactional_id: str
    identity: ProducerIdentity
    topic_ids: Mapping[TopicPartition, TopicId]
    """The partitions, with the ids of their topics (X5)."""
    verify_only: bool
    """Whether the client has added them itself."""


class AddAnswer(NamedTuple):
    """A coordinator's answer to ``AddAsked``."""

    codes: Mapping[TopicPartition, ErrorCode]
    coordinator_epoch: int
    """-1 if the coordinator did not tell (XV3)."""


class TransactionLink(Protocol):
    """Requests to other brokers. Each method raises BrokerUnavailable (the request may have been carried out), ProtocolError and
    RequestRejected."""

    async def write_markers(self, to: BrokerImage, asked: Sequence[MarkerAsked]) -> Sequence[ErrorCode]:
        """Write markers to partitions that ``to`` leads. Returns: an error code for each, in the order of ``asked``; NONE if the
        marker is committed."""
        ...

    async def add_to_transactions(
        self, to: BrokerImage, asked: Sequence[AddAsked], *, late: bool = False
    ) -> Sequence[AddAnswer]:
        """Add partitions to transactions that ``to`` coordinates, or verify that they were added. In the order of ``asked``.
        ``late``: by a connection of their own, because they are expected to be answered late."""
        ...

    async def look_at_transactions(self, to: BrokerImage, asked: LookRequest) -> LookResponse:
        """Ask a broker for its facts about transactions."""
        ...
