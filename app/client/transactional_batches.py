"""Writes one batch for each partition in a transaction (KIP-890). Every batch gets an offset, or the whole fails.

A ``Producer`` does not suffice where records must be all written or none: it may begin its sequences again behind a refused batch,
and a later batch is then taken for a repeat. Here each partition gets one batch, of sequence 0, and a repeat has the same bytes. So
a repeat whose first answer was lost gets the offset of the first. Records of a partition are neighbours. Tests:
``tests/client/test_transactional_batches.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from app.client.cluster import ClusterClient, refusal
from app.client.retry import retrying
from app.client.transactions import Transaction, busy
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected
from app.core.turns import Steps, run, whole
from app.core.units import Offset, TimestampMs, TopicPartition
from app.records.builder import build_batch_in_steps
from app.wire.apikeys import ApiKey
from app.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData

ADDS_PARTITIONS: Final = 12
"""First version of Produce that adds a partition to the transaction."""
AT_ONCE: Final = 16
"""Partitions that are written to side by side."""

Row = tuple[TimestampMs, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Timestamp, key, value and headers of a record."""


class WrittenBatch(NamedTuple):
    """Where a batch is."""

    base_offset: Offset
    log_append_ms: int
    """-1 if the topic keeps the records' own timestamps."""


async def write_batches(
    cluster: ClusterClient,
    transaction: Transaction,
    batches: Mapping[TopicPartition, Sequence[Row]],
    *,
    busy_ms: int | None = None,
) -> dict[TopicPartition, WrittenBatch]:
    """Write each batch with acks=all, and return where it is. The transaction must have written nothing yet.
    ``busy_ms``: as of ``begin_transaction``.

    Raises: RequestRejected, BrokerUnavailable. Then some batches may be written: abort the transaction.
    """
    limit = asyncio.Semaphore(AT_ONCE)
    found: dict[TopicPartition, WrittenBatch] = {}

    async def write(partition: TopicPartition, rows: Sequence[Row]) -> None:
        async with limit:
            found[partition] = await _write(cluster, transaction, partition, rows, busy(busy_ms))

    try:
        async with asyncio.TaskGroup() as group:
            for partition, rows in batches.items():
                group.create_task(write(partition, rows))
    except* FirnError as errors:
        raise _first(errors) from None
    return found


def encoded_batch(transaction: Transaction, rows: Sequence[Row]) -> bytes:
    """The first batch of a transaction in a partition, of a few records."""
    return whole(_batch_steps(transaction, rows))


def _batch_steps(transaction: Transaction, rows: Sequence[Row]) -> Steps[bytes]:
    return build_batch_in_steps(
        rows,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        base_sequence=0,
        transactional=True,
    )


def _first(errors: BaseExceptionGroup[FirnError]) -> FirnError:
    one = errors.exceptions[0]
    return _first(one) if isinstance(one, BaseExceptionGroup) else one


async def _write(
    cluster: ClusterClient,
    transaction: Transaction,
    partition: TopicPartition,
    rows: Sequence[Row],
    shorter_ms: Mapping[ErrorCode, int],
) -> WrittenBatch:
    encoded = await run(_batch_steps(transaction, rows))

    async def ask() -> WrittenBatch:
        topic = await cluster.topic(partition.topic)
        connection = await cluster.leader(partition)
        if connection.version_of(ApiKey.PRODUCE) < ADDS_PARTITIONS:
            raise RequestRejected(
                ErrorCode.UNSUPPORTED_VERSION,
                f"The broker serves no Produce of version {ADDS_PARTITIONS}. Upgrade it to write in transactions.",
            )
        data = PartitionProduceData(index=partition.partition, records=encoded)
        request = ProduceRequest(
            transactional_id=transaction.transactional_id,
            acks=-1,
            timeout_ms=cluster.request_timeout_ms,
            topic_data=[TopicProduceData(topic_id=topic.topic_id, name=partition.topic, partition_data=[data])],
        )
        answer = await connection.request(ApiKey.PRODUCE, request, timeout_ms=cluster.request_timeout_ms + 1_000)
        parts = [part for one in answer.responses for part in one.partition_responses]
        if len(parts) != 1:
            raise BrokerUnavailable(f"The leader of {partition} answered for {len(parts)} partitions.")
        (part,) = parts
        if part.error_code:
            raise refusal(part.error_code, str(partition), part.error_message)
        if part.base_offset < 0:
            raise RequestRejected(ErrorCode.UNKNOWN_SERVER_ERROR, f"The leader of {partition} names no offset.")
        return WrittenBatch(Offset(part.base_offset), part.log_append_time_ms)

    async def look_again(error: FirnError) -> None:
        del error
        cluster.forget(partition.topic)

    return await retrying(
        ask, rng=cluster.rng, budget_ms=cluster.retry_budget_ms, before_retry=look_again, shorter_ms=shorter_ms
    )
