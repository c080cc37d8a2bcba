"""The end of a transaction over many partitions lets others have the loop (INV-15)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from app.wire.apikeys import ApiKey
from app.wire.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from app.wire.apis.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.counted_loop import growth_in_turns, on_looked_at_loop

PARTITIONS = 150
AT_ONCE = 12
"""Markers of one turn: ten looks at the clock are one portion, and the turn may have begun before."""


async def initialize(client: Talk) -> InitProducerIdResponse:
    while True:
        answer: InitProducerIdResponse = await client.ask(
            ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
        )
        if not answer.error_code:
            return answer
        await asyncio.sleep(0.01)


async def begin(broker: RunningBroker, client: Talk, partitions: int) -> InitProducerIdResponse:
    """A transaction over all partitions of a topic."""
    await broker.create_topic("wide", partitions)
    await client.ask(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]))
    identity = await initialize(client)
    topic = AddPartitionsToTxnTopic("wide", partitions=list(range(partitions)))
    added = await client.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[topic],
        ),
    )
    codes = {
        each.partition_error_code for one in added.results_by_topic_v3_and_below for each in one.results_by_partition
    }
    assert codes == {0}
    return identity


def ends(broker: RunningBroker) -> float:
    """The ends of all logs of the topic together."""
    logs = broker.node.logs
    return float(
        sum(log.log_end_offset for number in range(PARTITIONS) if (log := logs.get("wide", number)) is not None)
    )


@on_looked_at_loop
async def test_the_markers_of_a_transaction_over_many_partitions_are_written_in_portions(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        identity = await begin(broker, client, PARTITIONS)
        async with growth_in_turns(lambda: ends(broker)) as grown:
            end = EndTxnRequest("t", identity.producer_id, identity.producer_epoch, committed=True)
            assert (await client.ask(ApiKey.END_TXN, 3, end)).error_code == 0
            await initialize(client)  # once the transaction is complete
        assert sum(grown) == PARTITIONS  # one marker each, and none twice
        assert max(grown) <= AT_ONCE


@on_looked_at_loop
async def test_markers_that_an_operator_writes_are_written_in_portions(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("wide", PARTITIONS)
        async with growth_in_turns(lambda: ends(broker)) as grown:
            topic = WritableTxnMarkerTopic("wide", list(range(PARTITIONS)) * 2)
            asked = WriteTxnMarkersRequest([WritableTxnMarker(7, 1, False, [topic])])
            answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 1, asked)
        assert [each.error_code for each in answer.markers[0].topics[0].partitions] == [0] * PARTITIONS
        assert sum(grown) == PARTITIONS
        assert max(grown) <= AT_ONCE


@on_looked_at_loop
async def test_partitions_are_checked_in_portions_and_added_together(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("wide", 1_000)
        await client.ask(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]))
        identity = await initialize(client)
        coordinator = broker.node.context.transactions

        def added() -> float:
            partitions = [one.partitions for some in coordinator.all() for one in some]
            return float(sum(map(len, partitions)))

        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic("wide", partitions=list(range(1_000)))],
        )
        async with growth_in_turns(added) as grown:
            answer = await client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, asked)
        found = [each.partition_error_code for each in answer.results_by_topic_v3_and_below[0].results_by_partition]
        assert found == [0] * 1_000
        assert grown == [1_000]
