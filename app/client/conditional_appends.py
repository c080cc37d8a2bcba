"""Appends a batch if its partition has no data that the caller has not read (ADR 0043, EO18).

Each append has a producer id that no other append uses meanwhile. So a try whose answer was lost is repeated, and gets the offset
of the first one. A producer id is used again only after an append that had one try and a certain outcome. Otherwise a late batch of
an earlier try could be taken for a later append.

Tests: ``tests/broker/test_conditional_appends.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from app.client.cluster import ClusterClient, check_code, refusal
from app.client.connection import KafkaConnection
from app.client.feature_levels import require_level
from app.client.retry import retrying
from app.client.transactional_batches import Row, WrittenBatch
from app.client.transactions import Transaction
from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.limits import MIB
from app.core.turns import run
from app.core.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition
from app.metadata.image.records import APPEND_LEVEL
from app.records.builder import build_batch_in_steps
from app.wire.apikeys import ApiKey
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.private import AppendRequest, AppendResponse, pack, unpack

LANE: Final = "conditional"
"""An append holds up later requests of its connection until it is stored."""
BATCH_BYTES_MAX: Final = 7 * MIB
"""A broker closes the connection of a longer request."""
IDENTITIES_MAX: Final = 64
"""Producer ids at rest."""
SEQUENCE_MASK: Final = 2**31 - 1


class SeenEnd(NamedTuple):
    """The place in a partition up to which a reader has read all."""

    topic_id: UUID
    end: Offset
    epoch: LeaderEpoch
    """The leader epoch of the last batch below ``end``; -1 for an empty partition."""


class EndMoved(Exception):
    """The partition has other data than its reader has seen. Nothing was appended."""

    def __init__(self, message: str, end: SeenEnd | None) -> None:
        super().__init__(message)
        self.end = end
        """Where a reader of committed records would be now; None if that is not known."""


class Appended(NamedTuple):
    """Where a batch is."""

    batch: WrittenBatch
    end: SeenEnd
    """The place behind it."""


async def partition_end(cluster: ClusterClient, partition: TopicPartition, *, budget_ms: int | None = None) -> SeenEnd:
    """Where a reader of committed records has read all of them. ``budget_ms``: of retries, as the cluster's for None.

    Raises: RequestRejected, BrokerUnavailable.
    """

    async def ask() -> SeenEnd:
        topic = await cluster.topic(partition.topic)
        connection = await cluster.leader(partition)
        answer = await _answer(cluster, connection, AppendRequest(topic.topic_id, partition.partition), str(partition))
        return SeenEnd(topic.topic_id, Offset(answer.end), LeaderEpoch(answer.epoch))

    budget_ms = cluster.retry_budget_ms if budget_ms is None else budget_ms
    return await retrying(ask, rng=cluster.rng, budget_ms=budget_ms, before_retry=_forgetting(cluster, partition))


async def append_in_transaction(
    cluster: ClusterClient, transaction: Transaction, partition: TopicPartition, seen: SeenEnd, rows: Sequence[Row]
) -> WrittenBatch:
    """As ``ConditionalWriter.append``, in a transaction that has written nothing to the partition yet."""
    batch = await run(
        build_batch_in_steps(
            rows,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
    )
    return (await _Append(cluster, partition, seen, batch, transaction.transactional_id).do()).batch


class _Identity:
    """A producer id, and its next sequence in each partition."""

    __slots__ = ("next", "producer_epoch", "producer_id")

    def __init__(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.next: dict[TopicPartition, int] = {}


class ConditionalWriter:
    """The conditional appends of one caller."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._at_rest: list[_Identity] = []

    async def append(self, partition: TopicPartition, seen: SeenEnd, rows: Sequence[Row]) -> Appended:
        """Append one batch behind the place that was seen, and wait until it is stored (acks=all).

        Raises: EndMoved, with nothing appended; RequestRejected, BrokerUnavailable. The batch may be appended if their code is
        retriable.
        """
        await self._find(partition)
        identity = self._at_rest.pop() if self._at_rest else await self._new_identity()
        one = await self._prepare(identity, partition, seen, rows)
        try:
            return await self._send(identity, one, len(rows))
        except RequestRejected as error:
            if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or one.tries != 1:
                raise
        # The log has lost the last append of this identity. Nothing was appended now.
        identity = await self._new_identity()
        return await self._send(identity, await self._prepare(identity, partition, seen, rows), len(rows))

    async def _find(self, partition: TopicPartition) -> None:
        """Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION at once if there is no such partition; BrokerUnavailable."""
        cluster = self._cluster
        known = cluster.known_topic(partition.topic)
        if known is not None and partition.partition >= len(known.partitions):
            cluster.forget(partition.topic)  # it may have grown
        await retrying(
            partial(cluster.leader_id, partition),
            rng=cluster.rng,
            budget_ms=cluster.retry_budget_ms,
            also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
            before_retry=_forgetting(cluster, partition),
        )

    async def _prepare(
        self, identity: _Identity, partition: TopicPartition, seen: SeenEnd, rows: Sequence[Row]
    ) -> _Append:
        batch = await run(
            build_batch_in_steps(
                rows,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                base_sequence=identity.next.get(partition, 0),
            )
        )
        return _Append(self._cluster, partition, seen, batch, "")

    async def _send(self, identity: _Identity, one: _Append, records: int) -> Appended:
        """Append, and keep the identity for the next one unless the log may have more of it. Raises: as ``append``."""
        try:
            appended = await one.do()
        except EndMoved:
            self._rest(identity, one)
            raise
        except RequestRejected as error:
            if error.code in REFUSED:
                self._rest(identity, one)
            raise
        partition = one.partition
        identity.next[partition] = (identity.next.get(partition, 0) + records) & SEQUENCE_MASK
        self._rest(identity, one)
        return appended

    def _rest(self, identity: _Identity, one: _Append) -> None:
        if one.tries <= 1 and len(self._at_rest) < IDENTITIES_MAX:
            self._at_rest.append(identity)

    async def _new_identity(self) -> _Identity:
        """Raises: RequestRejected, BrokerUnavailable."""

        async def ask() -> _Identity:
            connection = await self._cluster.any_broker()
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=SEQUENCE_MASK)
            answer = await connection.request(
                ApiKey.INIT_PRODUCER_ID, request, timeout_ms=self._cluster.request_timeout_ms
            )
            check_code(answer.error_code, None, "a producer id")
            return _Identity(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))

        return await retrying(ask, rng=self._cluster.rng, budget_ms=self._cluster.retry_budget_ms)


class _Append:
    """One append. A try whose answer was lost is repeated with the same bytes."""

    def __init__(
        self, cluster: ClusterClient, partition: TopicPartition, seen: SeenEnd, batch: bytes, transactional_id: str
    ) -> None:
        self._cluster = cluster
        self.partition = partition
        self._seen = seen
        self._asked = AppendRequest(
            seen.topic_id,
            partition.partition,
            batch,
            seen.end,
            seen.epoch,
            transactional_id,
            cluster.request_timeout_ms,
        )
        self.tries = 0
        """How often the batch was sent."""

    async def do(self) -> Appended:
        """Raises: as ``ConditionalWriter.append``."""
        if len(self._asked.records) > BATCH_BYTES_MAX:
            raise RequestRejected(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The records have {len(self._asked.records)} bytes, and {BATCH_BYTES_MAX} are allowed. Send fewer records.",
            )
        cluster = self._cluster
        return await retrying(
            self._try,
            rng=cluster.rng,
            budget_ms=cluster.retry_budget_ms,
            before_retry=_forgetting(cluster, self.partition),
        )

    async def _try(self) -> Appended:
        cluster, partition, seen = self._cluster, self.partition, self._seen
        if (await cluster.topic(partition.topic)).topic_id != seen.topic_id:
            cluster.forget(partition.topic)
            if (await cluster.topic(partition.topic)).topic_id != seen.topic_id:
                raise EndMoved(f"Topic {partition.topic} was made anew since it was read. Read it again.", None)
        connection = await cluster.leader(partition, LANE)
        self.tries += 1
        answer = await _answer(cluster, connection, self._asked, str(partition))
        end = SeenEnd(seen.topic_id, Offset(answer.end), LeaderEpoch(answer.epoch))
        if answer.moved:
            raise EndMoved(answer.error, end if answer.end >= 0 else None)
        if answer.base_offset < 0:
            raise RequestRejected(ErrorCode.UNKNOWN_SERVER_ERROR, f"The leader of {partition} names no offset.")
        return Appended(WrittenBatch(Offset(answer.base_offset), answer.log_append_ms), end)


async def _answer(
    cluster: ClusterClient, connection: KafkaConnection, asked: AppendRequest, what: str
) -> AppendResponse:
    """Raises: RequestRejected, BrokerUnavailable."""
    await _require(connection)
    body = await connection.request(
        ApiKey.FIRN_APPEND, pack(asked), version=0, timeout_ms=cluster.request_timeout_ms + 1_000
    )
    answer = unpack(AppendResponse, body)
    if answer.error_code:
        raise refusal(answer.error_code, what, answer.error)
    return answer


async def _require(connection: KafkaConnection) -> None:
    await require_level(connection, APPEND_LEVEL, "Conditional appends (If-Match) need")


def _forgetting(cluster: ClusterClient, partition: TopicPartition) -> Callable[[FirnError], Awaitable[None]]:
    async def forget(error: FirnError) -> None:
        del error
        cluster.forget(partition.topic)

    return forget


REFUSED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.POLICY_VIOLATION,
    }
)
"""Codes of a batch that no log has, for any producer: the next sequence of its producer stays."""
