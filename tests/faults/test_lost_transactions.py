"""librdkafka's transactional producers, before and after a broker loses the disk with its coordinator's records (ADR 0037, J46)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from app.client.connection import open_connection
from app.core.units import PartitionIndex
from app.core.units import TopicPartition as Target
from app.transactions.decisions import Decision, encode_decision
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_producers import DescribeProducersRequest, TopicRequest
from app.wire.apis.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.faults.object_brokers import check_no_bug, end_and_wipe
from tests.faults.object_load import OBJECT, SETTINGS, create, wait_until_led
from tests.support.cluster import Brokers, brokers_running
from tests.support.waiting import block_until

pytestmark = pytest.mark.faults


def producer_of(brokers: Brokers, name: str) -> Producer:
    made = Producer(
        {"bootstrap.servers": brokers.bootstrap, "transactional.id": name, "linger.ms": 0, "socket.timeout.ms": 3_000}
    )
    made.init_transactions(60)
    return made


def write(producer: Producer, value: str) -> None:
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce("t", value, partition=partition)
    assert producer.flush(60) == 0


def ask(brokers: Brokers, key: ApiKey, message: Any, version: int) -> Any:
    host, port = brokers.bootstrap.split(",")[0].rsplit(":", 1)

    async def once() -> Any:
        connection = await open_connection(host, int(port), client_id="test", timeout_ms=10_000)
        try:
            return await connection.request(key, message, version=version, timeout_ms=10_000)
        finally:
            await connection.close()

    return asyncio.run(once())


def opened(brokers: Brokers, partition: int) -> dict[int, int]:
    """Epochs of the producers with a transaction open."""
    answer = ask(brokers, ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest([TopicRequest("t", [0, 1])]), 0)
    found = answer.topics[0].partitions[partition]
    return {one.producer_id: one.producer_epoch for one in found.active_producers if one.current_txn_start_offset >= 0}


def commit_in_one_partition(brokers: Brokers, producer_id: int, epoch: int) -> None:
    """What a coordinator does that dies after the first of its markers."""
    both = frozenset(Target("t", PartitionIndex(index)) for index in (0, 1))
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic("t", [0])],
        coordinator_epoch=0,
        decision=encode_decision(Decision(1_800_000_000_000, both)),
    )
    answer = ask(brokers, ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest([marker]), 2)
    assert [one.error_code for one in answer.markers[0].topics[0].partitions] == [0]


def committed(brokers: Brokers, partition: int) -> list[str]:
    reader = Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "group.id": "nobody",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    try:
        reader.assign([TopicPartition("t", partition, 0)])
        values = []
        while True:
            message = reader.poll(10)
            if message is None or message.error():
                return values
            values.append(message.value().decode())
    finally:
        reader.close()


@pytest.mark.slow
def test_producers_of_before_are_fenced_and_no_transaction_is_half_committed(tmp_path: Path) -> None:
    with brokers_running(tmp_path, (1,), settings=SETTINGS) as brokers:
        # The coordinator's topic is made while no topic is in the bucket, so it is on the disk alone.
        producers = {name: producer_of(brokers, name) for name in ("half", "open", "idle")}
        create(brokers.admin, 1, OBJECT, "t", partitions=2)
        wait_until_led(brokers.admin, "t")
        for name, producer in producers.items():
            write(producer, f"first of {name}")
            producer.commit_transaction(60)
        block_until(lambda: not opened(brokers, 0) and not opened(brokers, 1), "the first transactions are ended")
        write(producers["half"], "half")
        ((half, epoch),) = opened(brokers, 1).items()
        write(producers["open"], "never")
        commit_in_one_partition(brokers, half, epoch)
        assert opened(brokers, 0).keys() == opened(brokers, 1).keys() - {half}
        before = opened(brokers, 1).keys()
        end_and_wipe(brokers, [1])
        brokers.start(1)
        wait_until_led(brokers.admin, "t")
        block_until(lambda: not opened(brokers, 0) and not opened(brokers, 1), "what was open is decided")
        wanted = [*(f"first of {name}" for name in producers), "half"]
        assert [committed(brokers, partition) for partition in (0, 1)] == [wanted, wanted]
        with pytest.raises(KafkaException) as refused:
            producers["open"].commit_transaction(60)
        # Had it to abort, it would be told that nothing is committed, which its coordinator does not know any more (J46k).
        assert refused.value.args[0].fatal()
        for name in producers:
            again = producer_of(brokers, name)
            write(again, f"again {name}")
            assert not opened(brokers, 0).keys() & before
            again.commit_transaction(60)
            wanted.append(f"again {name}")
        block_until(lambda: not opened(brokers, 0) and not opened(brokers, 1), "the last transactions are ended")
        assert [committed(brokers, partition) for partition in (0, 1)] == [wanted, wanted]
        check_no_bug(brokers)
