"""What brokers ask each other about transactions, and the seam through which they do (ADR 0026)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from app.errors import ErrorCode
from app.transactions.state import ProducerIdentity
from app.units import TopicId, TopicPartition

if TYPE_CHECKING:
    from app.metadata.cluster import BrokerImage
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
    """What a coordinator says of them."""

    codes: Mapping[TopicPartition, ErrorCode]
    coordinator_epoch: int
    """-1 if the coordinator did not tell (V3)."""


class LookAsked(msgspec.Struct, array_like=True, frozen=True):
    """A coordinator whose log may lack its end asks each broker what it has of transactions (ADR 0037, J46)."""

    cluster_id: str
    sequence: int
    """The entry of the cluster log that the asked broker must have applied (J46g)."""
    producers: tuple[tuple[int, int], ...] = ()
    """Producer ids with open transactions, each with the epoch of one."""
    doubts: tuple[tuple[str, int, int, int], ...] = ()
    """Topic, partition, producer id and time: has the partition a marker of a decision of that time or later?"""


class LookAnswer(msgspec.Struct, array_like=True, frozen=True):
    """What a broker has."""

    error_code: int = 0
    led: tuple[tuple[str, int, int], ...] = ()
    """The partitions that this is about: all that the broker leads, each with its leader epoch. Those of ``__transaction_state``
    only if their logs are read."""
    opened: tuple[tuple[str, int, int, int, int], ...] = ()
    """If no producer was named: open transactions, each with topic, partition, producer id, its epoch, and the highest epoch of a
    coordinator."""
    known: tuple[int, ...] = ()
    """Which of the named producers belong to transactional ids whose coordinator lacks nothing."""
    outcomes: tuple[tuple[int, int, bool, int, tuple[tuple[str, int], ...]], ...] = ()
    """How transactions of the named producers ended: producer id, epoch of the marker, whether it commits, time of the decision or
    -1, and partitions."""
    marked: tuple[tuple[str, int, int, int], ...] = ()
    """The doubts whose partition has such a marker."""


class TransactionLink(Protocol):
    """Requests to other brokers. Each method raises BrokerUnavailable (the request may have been carried out), ProtocolError and
    RequestRejected."""

    async def write_markers(self, to: BrokerImage, asked: Sequence[MarkerAsked]) -> Sequence[ErrorCode]:
        """Write markers to partitions that ``to`` leads. Returns: what became of each, in the order of ``asked``; NONE if it is
        committed."""
        ...

    async def add_to_transactions(self, to: BrokerImage, asked: Sequence[AddAsked]) -> Sequence[AddAnswer]:
        """Add partitions to transactions that ``to`` coordinates, or verify that they were added. In the order of ``asked``."""
        ...

    async def look_at_transactions(self, to: BrokerImage, asked: LookAsked) -> LookAnswer:
        """Ask a broker what it has of transactions."""
        ...
