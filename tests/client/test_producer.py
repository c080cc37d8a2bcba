"""The producer against a broker that refuses, forgets, and loses answers: everything once, in order, or an error."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.client.cluster import ClusterClient
from app.client.producer import IN_FLIGHT_PER_PARTITION_MAX, Acknowledged, Producer
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, LimitExceeded, RequestRejected
from app.core.units import PartitionIndex, TimestampMs, TopicPartition
from app.records.batch import parse_header
from app.records.compression import Codec
from app.wire.apikeys import ApiKey
from app.wire.header import RequestHeader
from tests.client.conftest import TickingClock
from tests.client.scripted import FakeLog, ScriptedBroker, scripted_broker

pytestmark = pytest.mark.usefixtures("quick_retries")


def values(log: FakeLog, topic: str = "one", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in log.records(topic, partition)]


async def send_all(producer: Producer, count: int, **options: Any) -> list[asyncio.Future[Acknowledged]]:
    return [await producer.send("one", b"%d" % number, **options) for number in range(count)]


async def test_records_are_acknowledged_with_the_offsets_at_which_they_are(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock) as producer:
        answers = await send_all(producer, 10)
        await producer.flush()
        assert producer.buffered_bytes == 0
    assert [answer.result().offset for answer in answers] == list(range(10))
    assert values(log) == [b"%d" % number for number in range(10)]
    assert answers[3].result().partition == TopicPartition("one", 0)


async def test_a_record_keeps_its_key_headers_and_timestamp(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, compression=Codec.ZSTD) as producer:
        await producer.send("one", None, key=b"k", headers=(("a", b"1"), ("a", None)), timestamp=TimestampMs(77))
    (record,) = log.records("one")
    assert (record.key, record.value, record.headers, record.timestamp) == (b"k", None, (("a", b"1"), ("a", None)), 77)


async def test_records_that_are_sent_together_share_a_batch(
    cluster: ClusterClient, log: FakeLog, broker: ScriptedBroker, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, linger_ms=10_000) as producer:
        await send_all(producer, 100)
    assert len(log.batches["one", 0]) == 1


async def test_a_lone_record_goes_out_when_it_has_lingered(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, linger_ms=1) as producer:
        assert (await (await producer.send("one", b"x"))).offset == 0


async def test_an_eager_producer_sends_a_lone_record_at_once_and_gathers_while_it_is_under_way(
    cluster: ClusterClient, log: FakeLog, broker: ScriptedBroker, clock: TickingClock
) -> None:
    release, arrived = asyncio.Event(), asyncio.Event()
    inner = log.produce

    @broker.on(ApiKey.PRODUCE)
    async def slow(header: RequestHeader, body: Any) -> Any:
        arrived.set()
        await release.wait()
        return await inner(header, body)

    async with Producer(cluster, clock, linger_ms=3_600_000, eager=True) as producer:
        first = await producer.send("one", b"first")
        await arrived.wait()
        others = await send_all(producer, 5)
        release.set()
        assert [(await one).offset for one in (first, *others)] == [0, 1, 2, 3, 4, 5]
    assert [parse_header(batch).record_count for batch in log.batches["one", 0]] == [1, 5]


async def test_a_record_is_taken_back_only_if_no_request_has_had_it(
    cluster: ClusterClient, log: FakeLog, broker: ScriptedBroker, clock: TickingClock
) -> None:
    release, arrived = asyncio.Event(), asyncio.Event()
    inner = log.produce

    @broker.on(ApiKey.PRODUCE)
    async def slow(header: RequestHeader, body: Any) -> Any:
        arrived.set()
        await release.wait()
        return await inner(header, body)

    place = TopicPartition("one", PartitionIndex(0))
    async with Producer(cluster, clock, linger_ms=3_600_000, eager=True) as producer:
        first = await producer.send("one", b"first")
        await arrived.wait()
        second, third = [await producer.send("one", value) for value in (b"second", b"third")]
        before = producer.buffered_bytes
        assert producer.take_back(first) == (place, False), "it is under way"
        assert producer.take_back(second) == (place, True)
        assert producer.take_back(second) is None
        assert producer.buffered_bytes < before
        alone = await producer.send("three", b"alone", partition=1)
        assert producer.take_back(alone) == (TopicPartition("three", PartitionIndex(1)), True)
        release.set()
        assert [(await one).offset for one in (first, third)] == [0, 1]
        assert producer.take_back(first) is None
    assert values(log) == [b"first", b"third"]
    assert values(log, "three", 1) == []
    assert producer.buffered_bytes == 0


async def test_records_without_a_key_gather_at_the_partition_that_an_eager_producer_chose(
    cluster: ClusterClient, log: FakeLog, broker: ScriptedBroker, clock: TickingClock
) -> None:
    release, arrived = asyncio.Event(), asyncio.Event()
    inner = log.produce

    @broker.on(ApiKey.PRODUCE)
    async def slow(header: RequestHeader, body: Any) -> Any:
        arrived.set()
        await release.wait()
        return await inner(header, body)

    async with Producer(cluster, clock, linger_ms=3_600_000, eager=True) as producer:
        sent = [await producer.send("three", b"first")]
        await arrived.wait()
        for _ in range(5):
            sent.append(await producer.send("three", b"later"))
            await asyncio.sleep(0)
        release.set()
        assert len({(await one).partition.partition for one in sent}) == 1


async def test_a_batch_is_sealed_before_it_is_too_large(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, linger_ms=10_000, batch_bytes=5_000) as producer:
        for _ in range(20):
            await producer.send("one", b"x" * 1_000)
    assert max(len(batch) for batch in log.batches["one", 0]) <= 5_000
    assert len(log.records("one")) == 20


async def test_records_with_one_key_go_to_one_partition_and_others_stick(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, linger_ms=10_000) as producer:
        keyed = [await producer.send("three", b"x", key=b"21") for _ in range(3)]
        loose = [await producer.send("three", b"y") for _ in range(3)]
        chosen = await producer.send("three", b"z", partition=2)
    assert {answer.result().partition.partition for answer in keyed} == {0}
    assert len({answer.result().partition for answer in loose}) == 1
    assert chosen.result().partition.partition == 2


async def test_full_batches_of_keyless_records_move_from_partition_to_partition(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, batch_bytes=500) as producer:
        for _ in range(60):
            await producer.send("three", b"x" * 100)
    assert all(log.end.get(("three", partition)) for partition in range(3))


async def test_several_batches_of_a_partition_are_under_way_at_once(
    cluster: ClusterClient, log: FakeLog, broker: ScriptedBroker, clock: TickingClock
) -> None:
    release = asyncio.Event()
    inner, arrived = log.produce, 0

    @broker.on(ApiKey.PRODUCE)
    async def slow(header: RequestHeader, body: Any) -> Any:
        nonlocal arrived
        arrived += 1
        await release.wait()
        return await inner(header, body)

    async with Producer(cluster, clock, batch_bytes=150) as producer:
        for _ in range(20):
            await producer.send("one", b"x" * 100)
        (connection,) = cluster._connections.values()
        while connection.in_flight_count < IN_FLIGHT_PER_PARTITION_MAX:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert connection.in_flight_count == IN_FLIGHT_PER_PARTITION_MAX
        release.set()
    assert len(log.records("one")) == 20


async def test_no_batch_overtakes_one_that_waits_for_its_connection(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task may open the connection meanwhile. The next caller has it before those that waited are awake."""
    connect, release, asked = cluster.broker, asyncio.Event(), 0

    async def broker(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            await release.wait()
        return await connect(*given)

    monkeypatch.setattr(cluster, "broker", broker)
    async with Producer(cluster, clock, batch_bytes=1) as producer:
        answers = await send_all(producer, 7)
        for _ in range(50):
            await asyncio.sleep(0)
        assert asked == 1
        release.set()
    assert values(log) == [b"%d" % number for number in range(7)]
    assert [answer.result().offset for answer in answers] == list(range(7))
    assert asked > IN_FLIGHT_PER_PARTITION_MAX


FAULT = st.sampled_from(
    [
        None,
        None,
        "cut",
        "lost",
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.lists(FAULT, max_size=12), batch_bytes=st.sampled_from([1, 60, 100_000]), seed=st.integers(0, 99))
def test_whatever_passes_is_stored_once_and_in_order(
    quick_retries: None, faults: list[int | str | None], batch_bytes: int, seed: int
) -> None:
    async def run() -> None:
        async with (
            scripted_broker(one=1) as broker,
            ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(seed)) as cluster,
        ):
            log = FakeLog(broker)
            log.faults = list(faults)
            async with Producer(cluster, TickingClock(), batch_bytes=batch_bytes, linger_ms=0) as producer:
                answers = await send_all(producer, 15)
            assert values(log) == [b"%d" % number for number in range(15)]
            assert [answer.result().offset for answer in answers] == list(range(15))

    asyncio.run(run())


async def test_a_batch_that_is_refused_for_good_fails_alone_and_the_rest_go_on_in_order(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    log.faults = [None, ErrorCode.INVALID_RECORD]
    async with Producer(cluster, clock, batch_bytes=1) as producer:
        answers = await send_all(producer, 12)
    failed = [number for number, answer in enumerate(answers) if answer.exception() is not None]
    assert failed == [1]
    error = answers[1].exception()
    assert isinstance(error, RequestRejected)
    assert error.code is ErrorCode.INVALID_RECORD
    assert values(log) == [b"%d" % number for number in range(12) if number != 1]
    assert len({parse_header(batch).producer_id for batch in log.batches["one", 0]}) == 2


async def test_a_batch_of_which_nothing_is_known_fails_in_time_and_those_behind_it_are_not_doubled(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, batch_bytes=1, delivery_timeout_ms=1) as producer:
        log.faults = ["lost", "lost", "lost", "lost", "lost"]
        answers = await send_all(producer, 8)
    stored = values(log)
    assert len(set(stored)) == len(stored)
    assert sorted(stored) == stored
    for number, answer in enumerate(answers):
        if answer.exception() is None:
            assert b"%d" % number in stored
        else:
            assert isinstance(answer.exception(), BrokerUnavailable)


async def test_a_batch_that_is_too_large_is_halved_until_it_fits(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    log.batch_bytes_max = 300
    async with Producer(cluster, clock, linger_ms=10_000) as producer:
        answers = [await producer.send("one", b"%03d" % number + b"x" * 50) for number in range(64)]
    assert [answer.result().offset for answer in answers] == list(range(64))
    assert [value[:3] for value in values(log) if value] == [b"%03d" % number for number in range(64)]


async def test_one_record_that_is_too_large_is_refused_in_words(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    log.batch_bytes_max = 300
    async with Producer(cluster, clock) as producer:
        answer = await producer.send("one", b"x" * 1_000)
        after = await producer.send("one", b"small", partition=0)
    with pytest.raises(RequestRejected, match=r"larger than its max\.message\.bytes allows"):
        answer.result()
    assert isinstance(after.exception(), RequestRejected) or after.result().offset == 0


async def test_a_producer_that_the_broker_forgot_goes_on_under_a_new_id(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock) as producer:
        await (await producer.send("one", b"0"))
        log.forget_producers()
        assert (await (await producer.send("one", b"1"))).offset == 1
    assert values(log) == [b"0", b"1"]


async def test_acks_0_is_never_answered_and_never_waits(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, acks=0) as producer:
        assert (await (await producer.send("one", b"x"))).offset == -1
        (connection,) = cluster._connections.values()
        assert connection.in_flight_count == 0


async def test_an_unknown_topic_is_created_by_asking_for_it(
    cluster: ClusterClient, broker: ScriptedBroker, log: FakeLog, clock: TickingClock
) -> None:
    @broker.on(ApiKey.METADATA)
    async def create(header: RequestHeader, body: Any) -> Any:
        names = None if body.topics is None else [topic.name for topic in body.topics]
        answer = broker.metadata(names)
        if body.allow_auto_topic_creation:
            broker.topics.update(dict.fromkeys(names or [], 1))
        return answer

    async with Producer(cluster, clock) as producer:
        await producer.send("fresh", b"x")
    assert values(log, "fresh") == [b"x"]


async def test_an_unknown_topic_or_partition_is_refused_at_once_where_creating_is_not_wanted(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, create_topics=False) as producer:
        with pytest.raises(RequestRejected, match="no topic nowhere"):
            await producer.send("nowhere", b"x")
        with pytest.raises(RequestRejected, match="has 1 partitions and no partition 7"):
            await producer.send("one", b"x", partition=7)
        with pytest.raises(RequestRejected, match="not a time"):
            await producer.send("one", b"x", timestamp=TimestampMs(-5))
        with pytest.raises(RequestRejected, match="not valid Unicode"):
            await producer.send("one", b"x", headers=(("\udc80", None),))
    assert "one" not in [topic for topic, _ in log.batches]


async def test_memory_is_bounded_and_a_full_buffer_makes_senders_wait(
    cluster: ClusterClient, log: FakeLog, broker: ScriptedBroker, clock: TickingClock
) -> None:
    release = asyncio.Event()
    inner = log.produce

    @broker.on(ApiKey.PRODUCE)
    async def slow(header: RequestHeader, body: Any) -> Any:
        await release.wait()
        return await inner(header, body)

    async with Producer(cluster, clock, buffer_bytes_max=10_000) as producer:
        with pytest.raises(LimitExceeded):
            await producer.send("one", b"x" * 10_001)
        sender = asyncio.create_task(send_all(producer, 1_000))
        while not broker.requests(ApiKey.PRODUCE):
            await asyncio.sleep(0)
        assert not sender.done()
        assert producer.buffered_bytes <= 10_000
        release.set()
        await sender
    assert len(log.records("one")) == 1_000


async def test_a_record_is_queued_at_once_or_not_at_all(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    async with Producer(cluster, clock, buffer_bytes_max=200, linger_ms=10_000) as producer:
        assert producer.send_at_once("one", b"unknown yet") is None
        await producer.send("one", b"a")
        queued = producer.send_at_once("one", b"b", key=b"k", timestamp=TimestampMs(5))
        assert queued is not None
        assert producer.send_at_once("one", b"x" * 150) is None
        assert producer.send_at_once("one", b"", timestamp=TimestampMs(1 << 62)) is None
        with pytest.raises(RequestRejected, match="no partition 7"):
            producer.send_at_once("one", b"", partition=7)
        await producer.flush()
    assert queued.result().offset == 1
    assert values(log) == [b"a", b"b"]
    with pytest.raises(BrokerUnavailable, match="closed"):
        producer.send_at_once("one", b"late")


async def test_leaving_on_an_error_does_not_wait_for_what_is_unsent(
    cluster: ClusterClient, log: FakeLog, clock: TickingClock
) -> None:
    producer = Producer(cluster, clock, linger_ms=10_000)
    await producer.__aenter__()
    answer = await producer.send("one", b"x")
    await producer.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
    with pytest.raises(BrokerUnavailable, match="closed before an answer came"):
        answer.result()
    with pytest.raises(BrokerUnavailable, match="closed"):
        await producer.send("one", b"x")


async def test_whoever_sends_is_told_why_it_takes_long_and_at_the_end_why_it_failed(
    cluster: ClusterClient, log: FakeLog, broker: ScriptedBroker, clock: TickingClock
) -> None:
    inner = log.produce

    @broker.on(ApiKey.PRODUCE)
    async def short_of_replicas(header: RequestHeader, body: Any) -> Any:
        answer = await inner(header, body)
        for topic in answer.responses:
            for part in topic.partition_responses:
                part.error_code = ErrorCode.NOT_ENOUGH_REPLICAS
                part.error_message = "1 replica is in sync, min.insync.replicas is 2"
        return answer

    told: list[tuple[str, int]] = []

    def note(error: FirnError, attempts: int) -> None:
        told.append((str(error), attempts))
        if len(told) == 3:
            producer._delivery_timeout_s = 0.0  # it is over now, and on a slow machine not before

    async with Producer(cluster, clock, on_retry=note) as producer:
        answer = await producer.send("one", b"x")
        with pytest.raises((BrokerUnavailable, RequestRejected), match=r"min\.insync\.replicas is 2"):
            await answer
    assert [attempts for _, attempts in told] == [1, 2, 3]
    assert told[0][0] == "1 replica is in sync, min.insync.replicas is 2"
