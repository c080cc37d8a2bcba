"""The consumer: positions, ends, bad bytes, aborted transactions, and brokers that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.client.cluster import EARLIEST, LATEST, ClusterClient
from app.client.consumer import Consumer
from app.core.errors import BrokerUnavailable, CorruptionError, ErrorCode, RequestRejected
from app.core.units import (
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from app.records.batch import patch_batch
from app.records.builder import build_batch
from app.records.control import ControlType, build_marker
from app.wire.apikeys import ApiKey
from app.wire.apis.fetch import AbortedTransaction
from app.wire.header import RequestHeader
from tests.client.scripted import Cut, FakeLog, ScriptedBroker

pytestmark = pytest.mark.usefixtures("quick_retries")

ONE = TopicPartition("one", PartitionIndex(0))


def fill(log: FakeLog, topic: str, partition: int, *batches: bytes) -> None:
    for batch in batches:
        key = (topic, partition)
        stored = bytearray(batch)
        patch_batch(stored, 0, Offset(log.end.get(key, 0)), LeaderEpoch(0))
        log.batches.setdefault(key, []).append(bytes(stored))
        log.end[key] = log.end.get(key, 0) + int.from_bytes(batch[23:27], "big") + 1


def plain(*values: bytes, timestamp: int = 1_000) -> bytes:
    return build_batch([(timestamp, None, value, ()) for value in values])


async def read(consumer: Consumer, end: int, partition: TopicPartition = ONE) -> list[bytes | None]:
    found: list[bytes | None] = []
    while consumer.position(partition) < end:
        for batch in await consumer.poll(60_000):
            found += [record.value for record in batch.records()]
    return found


async def test_records_come_in_order_from_the_position_asked_for(cluster: ClusterClient, log: FakeLog) -> None:
    fill(log, "one", 0, plain(b"0", b"1", b"2"), plain(b"3", b"4"))
    async with Consumer(cluster, max_wait_ms=1) as consumer:
        consumer.assign({ONE: Offset(1)})
        assert await read(consumer, 5) == [b"1", b"2", b"3", b"4"]
        assert consumer.high_watermark(ONE) == 5
        consumer.seek(ONE, Offset(4))
        assert await read(consumer, 5) == [b"4"]


async def test_new_records_are_waited_for(cluster: ClusterClient, log: FakeLog) -> None:
    async with Consumer(cluster, max_wait_ms=1) as consumer:
        consumer.assign({ONE: Offset(0)})
        assert await consumer.poll(20) == []
        fill(log, "one", 0, plain(b"late"))
        assert await read(consumer, 1) == [b"late"]


async def test_every_partition_is_read_and_one_can_be_left(cluster: ClusterClient, log: FakeLog) -> None:
    partitions = [TopicPartition("three", PartitionIndex(index)) for index in range(3)]
    for partition in partitions:
        fill(log, "three", partition.partition, plain(b"%d" % partition.partition))
    async with Consumer(cluster, max_wait_ms=1) as consumer:
        consumer.assign(dict.fromkeys(partitions, Offset(0)))
        found = set()
        while len(found) < 3:
            found |= {record.value for batch in await consumer.poll(60_000) for record in batch.records()}
        consumer.unassign(partitions[0])
        assert consumer.assignment == tuple(partitions[1:])


@pytest.mark.parametrize("beside", [True, False])
async def test_a_topic_that_leaves_the_shared_view_before_its_fetch_is_asked_for_again(
    cluster: ClusterClient, log: FakeLog, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    other = TopicPartition("three", PartitionIndex(0))
    fill(log, "one", 0, plain(b"0"))
    fill(log, "three", 0, plain(b"1"))
    leader_id = cluster.leader_id

    async def leader_id_and_gone(partition: TopicPartition) -> BrokerId:
        found = await leader_id(partition)
        topics = {name: topic for name, topic in cluster.view.topics.items() if name != "one"}
        cluster.view = replace(cluster.view, topics=topics)
        return found

    async with Consumer(cluster, max_wait_ms=1) as consumer:
        consumer.assign(dict.fromkeys((ONE, other) if beside else (ONE,), Offset(0)))
        with monkeypatch.context() as patched:
            patched.setattr(cluster, "leader_id", leader_id_and_gone)
            first = await consumer.fetch_round(1)
        assert [batch.partition for batch in first] == ([other] if beside else [])
        assert consumer.trouble == "one-0 has no leader now."
        assert await read(consumer, 1) == [b"0"]


async def test_a_position_outside_the_log_is_refused_or_reset(cluster: ClusterClient, log: FakeLog) -> None:
    fill(log, "one", 0, plain(b"0", b"1"))
    async with Consumer(cluster, max_wait_ms=1) as strict:
        strict.assign({ONE: Offset(9)})
        with pytest.raises(RequestRejected, match="Offset 9 is not in one-0, which starts at 0") as refused:
            await strict.poll(60_000)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    async with Consumer(cluster, max_wait_ms=1, reset_to=EARLIEST) as lenient:
        lenient.assign({ONE: Offset(9)})
        while not (batches := await lenient.poll(60_000)):
            pass
        assert [record.value for record in batches[0].records()] == [b"0", b"1"]


async def test_a_damaged_batch_is_reported_after_what_came_before_it(cluster: ClusterClient, log: FakeLog) -> None:
    fill(log, "one", 0, plain(b"good"), plain(b"bad"))
    damaged = bytearray(log.batches["one", 0][1])
    damaged[-2] ^= 1
    log.batches["one", 0][1] = bytes(damaged)
    async with Consumer(cluster, max_wait_ms=1) as consumer:
        consumer.assign({ONE: Offset(0)})
        assert await read(consumer, 1) == [b"good"]
        with pytest.raises(CorruptionError, match="one-0 from offset 1"):
            await consumer.poll(60_000)
        assert consumer.position(ONE) == 1


async def test_read_committed_leaves_out_aborted_records_and_markers(
    cluster: ClusterClient, broker: ScriptedBroker, log: FakeLog
) -> None:
    def transactional(producer_id: int, value: bytes) -> bytes:
        return build_batch(
            [(1, None, value, ())],
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(0),
            base_sequence=0,
            transactional=True,
        )

    def marker(producer_id: int, kind: ControlType) -> bytes:
        return build_marker(
            kind,
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(0),
            coordinator_epoch=0,
            timestamp=TimestampMs(1),
        )

    fill(
        log, "one", 0,
        transactional(1, b"gone"), transactional(2, b"kept"), plain(b"plain"), marker(1, ControlType.ABORT),
        transactional(1, b"later"), marker(2, ControlType.COMMIT), marker(1, ControlType.COMMIT),
    )  # fmt: skip
    inner = log.fetch

    @broker.on(ApiKey.FETCH)
    async def with_aborted(header: RequestHeader, body: Any) -> Any:
        answer = await inner(header, body)
        if body.isolation_level:
            answer.responses[0].partitions[0].aborted_transactions = [AbortedTransaction(producer_id=1, first_offset=0)]
        return answer

    async with Consumer(cluster, max_wait_ms=1, read_committed=True) as consumer:
        consumer.assign({ONE: Offset(0)})
        assert await read(consumer, 7) == [b"kept", b"plain", b"later"]
    async with Consumer(cluster, max_wait_ms=1) as consumer:
        consumer.assign({ONE: Offset(0)})
        assert await read(consumer, 7) == [b"gone", b"kept", b"plain", b"later"]


async def test_a_cut_connection_and_a_moved_leader_are_got_over(
    cluster: ClusterClient, broker: ScriptedBroker, log: FakeLog
) -> None:
    fill(log, "one", 0, plain(b"0", b"1"))
    troubles: list[Any] = ["cut", ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, "cut"]
    inner = log.fetch

    @broker.on(ApiKey.FETCH)
    async def troubled(header: RequestHeader, body: Any) -> Any:
        trouble = troubles.pop(0) if troubles else None
        if trouble == "cut":
            raise Cut
        answer = await inner(header, body)
        if trouble is not None:
            answer.responses[0].partitions[0].error_code = trouble
            answer.responses[0].partitions[0].records = b""
        return answer

    async with Consumer(cluster, max_wait_ms=1) as consumer:
        consumer.assign({ONE: Offset(0)})
        assert await read(consumer, 2) == [b"0", b"1"]
    assert not troubles


async def test_a_broker_that_stays_away_is_reported_when_the_budget_is_used_up(
    cluster: ClusterClient, broker: ScriptedBroker, log: FakeLog
) -> None:
    cluster.retry_budget_ms = 30

    @broker.on(ApiKey.FETCH)
    async def cut(header: RequestHeader, body: Any) -> Any:
        raise Cut

    async with Consumer(cluster, max_wait_ms=1) as consumer:
        consumer.assign({ONE: Offset(0)})
        with pytest.raises(BrokerUnavailable):
            await read(consumer, 1)


async def test_what_was_asked_before_a_seek_is_dropped(cluster: ClusterClient, log: FakeLog) -> None:
    fill(log, "one", 0, plain(b"0"), plain(b"1"), plain(b"2"))
    async with Consumer(cluster, max_wait_ms=1, partition_max_bytes=1) as consumer:
        consumer.assign({ONE: Offset(0)})
        assert [record.value for batch in await consumer.poll(60_000) for record in batch.records()] == [b"0"]
        consumer.seek(ONE, Offset(0))  # while the next Fetch, from 1, is under way
        assert await read(consumer, 3) == [b"0", b"1", b"2"]


async def test_offsets_are_listed_by_time_and_by_name(cluster: ClusterClient, log: FakeLog) -> None:
    fill(log, "one", 0, plain(b"0", timestamp=10), plain(b"1", timestamp=20))
    for wanted, offset in ((EARLIEST, 0), (LATEST, 2), (11, 1), (10, 0), (21, -1)):
        assert (await cluster.list_offsets({ONE: wanted}))[ONE].offset == offset
