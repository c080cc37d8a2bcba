"""Pages of transactions: open transactions by age, the records that a transaction holds back, the producers of a partition.

A broker is first asked for the ids of its open transactions, and then for the ages of ``DESCRIBED_MAX`` at most. If a broker has
more open transactions, the page shows the oldest.

Tests: ``tests/http/console/test_transactions.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import LATEST
from app.client.connection import KafkaConnection
from app.client.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
    TransactionRow,
    active_producers,
    described_transaction,
    described_transactions,
    transaction_coordinator,
    transactions_at,
)
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.core.turns import Portion, ordered
from app.core.units import BrokerId, PartitionIndex, TopicPartition
from app.http.console.asking import of_broker, side_by_side, soon
from app.http.console.pages.overview import OPEN_TOO_LONG_S
from app.http.console.pages.topics import found_topic, number_in, topic_page
from app.http.console.rendering import ConsoleRoute, console_of, page
from app.http.console.texts.formats import shell
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.rest_v3.resources import text_of
from app.http.serving import gateway_of

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

TRANSACTIONS_A_PAGE: Final = 50
DESCRIBED_MAX: Final = 1_000
"""Open transactions of a broker whose ages are asked for."""
OLDER_MS: Final = (86_400_000, 3_600_000, 900_000, 60_000, 10_000)
"""The ages by which the oldest of more are found."""
PARTITIONS_SHOWN: Final = 50
PRODUCERS_SHOWN: Final = 200


class OfBroker(NamedTuple):
    """The open transactions that a broker coordinates."""

    all_count: int
    described: list[TransactionRow]


class Held(NamedTuple):
    """A partition of an open transaction."""

    partition: TopicPartition
    first_offset: int | None = None
    """Of the transaction; None if the leader did not say it, or the caller may not read the topic."""
    records: int | None = None
    """Between the last stable offset and the end: readers with ``read_committed`` wait for these."""
    abort: str = ""
    """The command that aborts the transaction in this partition."""


async def open_at(connection: KafkaConnection) -> OfBroker:
    """The open transactions of one broker. Raises: RequestRejected, BrokerUnavailable."""
    listed: Sequence[ListedTransaction] = await transactions_at(connection)
    count = len(listed)
    if count > DESCRIBED_MAX:
        listed = await _oldest_first(connection, listed)
    described = await described_transactions(connection, [one.transactional_id for one in listed[:DESCRIBED_MAX]])
    return OfBroker(count, described)


async def _oldest_first(
    connection: KafkaConnection, listed: Sequence[ListedTransaction]
) -> Sequence[ListedTransaction]:
    """At most ``DESCRIBED_MAX`` of the listed transactions, the oldest among them."""
    found: dict[str, ListedTransaction] = {}
    for older_ms in OLDER_MS:
        for one in await transactions_at(connection, older_ms=older_ms):
            found.setdefault(one.transactional_id, one)
            if len(found) >= DESCRIBED_MAX:
                return [*found.values()]
    for one in listed:
        found.setdefault(one.transactional_id, one)
        if len(found) >= DESCRIBED_MAX:
            break
    return [*found.values()]


@router.get("/console/transactions")
async def list_transactions(request: Request) -> Response:
    gateway = gateway_of(request)
    begin = number_in(request, "from", 0, 10_000_000)
    view = await soon(gateway, gateway.admin.describe_brokers)
    told = await side_by_side(gateway, sorted(view.brokers), lambda _, connection: open_at(connection))
    found = [(one, node_id) for node_id, answer in told.answers.items() for one in answer.described]
    now_ms = int(console_of(request).clock.now_ms())
    found = await ordered(found, Portion(), lambda pair: (_since_ms(pair[0], now_ms), pair[0].transactional_id))
    count = sum(answer.all_count for answer in told.answers.values())
    return await page(
        request,
        "transactions",
        section="transactions",
        rows=found[begin : begin + TRANSACTIONS_A_PAGE],
        count=count,
        cut=count > len(found),
        begin=begin,
        following=begin + TRANSACTIONS_A_PAGE if begin + TRANSACTIONS_A_PAGE < len(found) else 0,
        too_long_ms=1000 * OPEN_TOO_LONG_S,
        silent=told.silent,
    )


def _since_ms(one: TransactionRow, now_ms: int) -> int:
    """When a transaction began; now if it has no records yet."""
    return one.started_ms if one.started_ms >= 0 else now_ms


@router.get("/console/transactions/{transactional_id}")
async def show_transaction(transactional_id: str, request: Request) -> Response:
    gateway = gateway_of(request)
    name = text_of(request, "transactional_id")
    node_id = await soon(gateway, lambda: transaction_coordinator(gateway.cluster, name))
    try:
        transaction = await of_broker(gateway, node_id, lambda connection: described_transaction(connection, name))
    except RequestRejected as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        raise RestError(404, f"There is no transaction with the id {name}.") from None
    shown = transaction.partitions[:PARTITIONS_SHOWN]
    held, silent = await _held_by(gateway, transaction, shown)
    return await page(
        request,
        "transaction",
        section="transactions",
        transaction=transaction,
        coordinator=node_id,
        held=held,
        partitions_left=len(transaction.partitions) - len(shown),
        too_long_ms=1000 * OPEN_TOO_LONG_S,
        silent=silent,
    )


async def _held_by(
    gateway: Gateway, transaction: DescribedTransaction, partitions: Sequence[TopicPartition]
) -> tuple[list[Held], list[BrokerId]]:
    """The records that a transaction holds back in some partitions, and the leaders that did not respond."""
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    for partition in partitions:
        try:
            by_leader.setdefault(await gateway.cluster.leader_id(partition), []).append(partition)
        except (RequestRejected, BrokerUnavailable):
            continue  # it has no leader, or the caller does not see its topic

    async def ask(node_id: BrokerId, connection: KafkaConnection) -> list[Held]:
        led = by_leader[node_id]
        try:
            producers: Mapping[TopicPartition, Sequence[ActiveProducer]] = await active_producers(connection, led)
            stable = await gateway.cluster.list_offsets(dict.fromkeys(led, LATEST), read_committed=True)
            ends = await gateway.cluster.list_offsets(dict.fromkeys(led, LATEST))
        except RequestRejected:
            return []
        return [_held(transaction, one, producers.get(one, ()), ends[one].offset - stable[one].offset) for one in led]

    told = await side_by_side(gateway, by_leader, ask)
    known = {one.partition: one for answer in told.answers.values() for one in answer}
    return [known.get(partition, Held(partition)) for partition in partitions], told.silent


def _held(
    transaction: DescribedTransaction, partition: TopicPartition, producers: Sequence[ActiveProducer], records: int
) -> Held:
    own = next((one for one in producers if one.producer_id == transaction.producer_id and one.open_from >= 0), None)
    if own is None:
        return Held(partition, None, records)
    form = f"kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {{}} --partition {partition.partition} --start-offset {own.open_from}"  # noqa: E501
    return Held(partition, own.open_from, records, shell(form, partition.topic))


@router.get("/console/topics/{topic_name}/partitions/{partition_id}/producers")
async def list_producers(topic_name: str, partition_id: str, request: Request) -> Response:
    gateway, topic = await found_topic(request)
    if not partition_id.isascii() or not partition_id.isdecimal() or len(partition_id) > 9:
        raise RestError(404, f"Topic {topic_name} has no partition {partition_id[:20]}.")
    index = int(partition_id)
    if index >= len(topic.partitions):
        raise RestError(404, f"Topic {topic_name} has no partition {index}.")
    partition = TopicPartition(topic_name, PartitionIndex(index))
    found = await of_broker(
        gateway,
        await gateway.cluster.leader_id(partition),
        lambda connection: active_producers(connection, [partition]),
    )
    if partition not in found:
        raise BrokerUnavailable(f"The leader of {partition} cannot say its producers now. Try again later.")
    producers = await ordered(
        found[partition],
        Portion(),
        lambda one: (one.open_from < 0, one.open_from, -one.last_timestamp, one.producer_id),
    )
    return await topic_page(
        request,
        "producers",
        topic,
        partition=index,
        rows=producers[:PRODUCERS_SHOWN],
        count=len(producers),
        left=max(0, len(producers) - PRODUCERS_SHOWN),
    )
