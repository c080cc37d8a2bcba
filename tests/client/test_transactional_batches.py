"""Batches of a transaction: each has an offset, a repeat has the same one, and the identity goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.client.cluster import EARLIEST, LATEST, ClusterClient
from app.client.connection import KafkaConnection
from app.client.consumer import Consumer
from app.client.transactional_batches import Row, write_batches
from app.client.transactions import Transaction, begin_transaction, end_transaction
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.core.turns import whole
from app.core.units import BrokerId, Offset, PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from app.records.batch import parse_header
from app.records.builder import build_batch, build_batch_in_steps
from tests.support.broker import RunningBroker, running_broker
from tests.support.counted_loop import LookedAtLoop, count_turns

ZERO = TopicPartition("t", PartitionIndex(0))
ONE = TopicPartition("t", PartitionIndex(1))


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        yield broker


@pytest.fixture
async def client(running: RunningBroker) -> AsyncIterator[ClusterClient]:
    async with ClusterClient([("127.0.0.1", running.port)], rng=random.Random(1)) as cluster:
        yield cluster


def rows(*values: bytes) -> list[Row]:
    return [(TimestampMs(1_000), None, value, ()) for value in values]


async def begun(client: ClusterClient) -> Transaction:
    return await begin_transaction(client, "id", timeout_ms=30_000)


async def committed(client: ClusterClient, partition: TopicPartition) -> list[bytes | None]:
    end = (await client.list_offsets({partition: LATEST}))[partition].offset
    start = (await client.list_offsets({partition: EARLIEST}))[partition].offset
    found: list[bytes | None] = []
    async with Consumer(client, read_committed=True) as consumer:
        consumer.assign({partition: Offset(start)})
        while consumer.position(partition) < end:
            for batch in await consumer.poll(5_000):
                found += [record.value for record in batch.records()]
    return found


async def test_each_batch_has_its_offset_and_counts_with_the_commit(client: ClusterClient) -> None:
    transaction = await begun(client)
    written = await write_batches(client, transaction, {ZERO: rows(b"a", b"b"), ONE: rows(b"c")})
    assert {partition: batch.base_offset for partition, batch in written.items()} == {ZERO: 0, ONE: 0}
    assert {batch.log_append_ms for batch in written.values()} == {-1}
    await end_transaction(client, transaction, commit=True)
    assert await committed(client, ZERO) == [b"a", b"b"]
    assert await committed(client, ONE) == [b"c"]


async def test_a_repeat_gets_the_offset_of_the_first_and_writes_nothing(client: ClusterClient) -> None:
    transaction = await begun(client)
    first = await write_batches(client, transaction, {ZERO: rows(b"a")})
    assert await write_batches(client, transaction, {ZERO: rows(b"a")}) == first
    await end_transaction(client, transaction, commit=True)
    assert await committed(client, ZERO) == [b"a"]


async def test_the_identity_after_an_end_writes_the_next_transaction(client: ClusterClient) -> None:
    transaction = await begun(client)
    await write_batches(client, transaction, {ZERO: rows(b"a")})
    after = await end_transaction(client, transaction, commit=False)
    assert after == transaction._replace(producer_epoch=ProducerEpoch(transaction.producer_epoch + 1))
    await write_batches(client, after, {ZERO: rows(b"b")})
    await end_transaction(client, after, commit=True)
    assert await committed(client, ZERO) == [b"b"]
    with pytest.raises(RequestRejected):
        await write_batches(client, transaction, {ZERO: rows(b"late")})


async def test_a_coordinator_that_moved_is_looked_for_again(client: ClusterClient) -> None:
    transaction = await begun(client)
    (node,) = client.coordinators.values()
    for wrong in (BrokerId(node + 1), node):
        client.coordinators["id"] = wrong
        await write_batches(client, transaction, {ZERO: rows(b"a")})
        transaction = await end_transaction(client, transaction, commit=True)
        assert client.coordinators == {"id": node}
    assert await committed(client, ZERO) == [b"a", b"a"]


async def test_a_broker_that_cannot_be_reached_is_forgotten_for_all_its_ids(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = await begun(client)
    (node,) = client.coordinators.values()
    client.coordinators |= {"other": node, "elsewhere": BrokerId(node + 1)}
    client.retry_budget_ms = 1

    async def lost(self: KafkaConnection, *asked: Any, **named: Any) -> None:
        raise BrokerUnavailable("The connection was lost.")

    with monkeypatch.context() as patch:
        patch.setattr(KafkaConnection, "request", lost)
        with pytest.raises(BrokerUnavailable):
            await end_transaction(client, transaction, commit=True)
    assert client.coordinators == {"elsewhere": node + 1}


async def test_a_partition_that_does_not_exist_fails_the_whole(client: ClusterClient) -> None:
    transaction = await begun(client)
    nowhere = TopicPartition("t", PartitionIndex(7))
    client.retry_budget_ms = 1
    with pytest.raises(RequestRejected) as refused:
        await write_batches(client, transaction, {ZERO: rows(b"a"), nowhere: rows(b"b")})
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_batch_that_is_built_in_steps_is_the_same_batch() -> None:
    records = [(TimestampMs(1_000 + number % 7), b"k", b"v" * number, (("h", b"1"),)) for number in range(250)]
    identity = {"producer_id": ProducerId(7), "producer_epoch": ProducerEpoch(3), "base_sequence": 0}
    built = whole(build_batch_in_steps(records, **identity, transactional=True))  # type: ignore[arg-type]
    assert built == build_batch(records, **identity, transactional=True)  # type: ignore[arg-type]
    header = parse_header(built)
    assert (header.producer_id, header.producer_epoch, header.is_transactional) == (7, 3, True)


def test_a_batch_of_many_records_is_built_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(self: ClusterClient, name: str) -> None:
        del self, name
        raise RequestRejected(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async def turns(count: int) -> int:
        cluster = ClusterClient([("127.0.0.1", 1)], rng=random.Random(1))
        transaction = Transaction("id", ProducerId(1), ProducerEpoch(0))

        async def write() -> None:
            with pytest.raises(RequestRejected):
                await write_batches(cluster, transaction, {ZERO: rows(b"a") * count})

        return await count_turns(write())

    async def both() -> None:
        few, many = await turns(100), await turns(20_000)
        assert many - few >= 15, "a portion is ten looks, and a look comes after 100 records"

    monkeypatch.setattr(ClusterClient, "topic", refuses)
    with asyncio.Runner(loop_factory=LookedAtLoop) as runner:
        runner.run(both())
