"""The writer's protocol against a broker, without a JVM: what tasks and driver do, and what a death between two steps leaves."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.client.transactions import Transaction, begin_transaction, end_transaction
from app.core.errors import BrokerUnavailable, ConfigError, CorruptionError, ErrorCode, RequestRejected
from app.core.units import Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.demo import sizes_of
from app.records.compression import Codec
from app.wire.apikeys import ApiKey
from app.wire.apis.list_transactions import ListTransactionsRequest
from pyspark_firn.source import FirnDataSource
from pyspark_firn.writing import (
    FirnStreamWriter,
    FirnWriter,
    Intent,
    OpenTransaction,
    Slot,
    ensure_commit_topic,
    parse_write_options,
    read_intent,
)
from tests.spark.writers import SCHEMA, committed, rows, served, values
from tests.support.broker import RunningBroker


async def test_a_micro_batch_appears_with_its_commit_and_not_before(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        one = await writer.write_attempt(rows(0, 50), "query", 0, "0-1")
        other = await writer.write_attempt(rows(50, 60), "query", 0, "1-2")
        assert await committed(broker) == []
        await writer.commit_batch([one, other], 0)
        assert sorted(await committed(broker), key=lambda value: int(value[1:])) == values(0, 60)  # type: ignore[index]


EVERY_COLUMN = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


async def test_every_column_goes_into_the_record(tmp_path: Path) -> None:
    """What is null is the broker's or the partitioner's to choose, as in Spark's Kafka sink."""
    moment = datetime(2013, 7, 1, 12, 30, 0, 250_000, UTC)
    full = {
        "key": b"k\xff",
        "value": "flight",
        "topic": "other",
        "partition": 2,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        "timestamp": moment,
    }
    sparse = dict.fromkeys(full) | {"topic": "other"}
    batch = pa.RecordBatch.from_pylist([full, sparse], schema=EVERY_COLUMN)
    schema = from_arrow_schema(EVERY_COLUMN)
    async with served(tmp_path) as (broker, _):
        await broker.create_topic("other", 3)
        given = {"kafka.bootstrap.servers": broker.bootstrap, "compression": "lz4"}
        before_ms = time.time_ns() // 1_000_000
        written = await FirnWriter(parse_write_options(given, schema)).write_batches(iter([batch]))
        # The option goes before the column.
        options = parse_write_options({**given, "topic": "out"}, schema)
        written += await FirnWriter(options).write_batches(iter([batch.slice(1)]))
        assert written == 3
        found = {}
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            for name in [TopicPartition("other", PartitionIndex(n)) for n in range(3)] + [
                TopicPartition("out", PartitionIndex(0))
            ]:
                end = (await cluster.list_offsets({name: -1}))[name].offset
                async with Consumer(cluster) as consumer:
                    consumer.assign({name: Offset(0)})
                    while consumer.position(name) < end:
                        for fetched in await consumer.poll(10_000):
                            assert fetched.header.codec == Codec.LZ4
                            found |= {
                                (name.topic, record.value): (name.partition, record) for record in fetched.records()
                            }
    index, record = found["other", b"flight"]
    assert (index, record.key, record.headers) == (2, b"k\xff", (("h", b"1"), ("h", None)))
    assert record.timestamp == round(moment.timestamp() * 1000)
    for topic in ("other", "out"):
        _, record = found[topic, None]
        assert (record.key, record.headers) == (None, ())
        assert before_ms <= record.timestamp <= time.time_ns() // 1_000_000


async def test_a_failed_attempt_leaves_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)

        def failing() -> Iterator[pa.RecordBatch]:
            yield from rows(0, 10)
            yield pa.RecordBatch.from_pylist([{"key": "k", "value": b"v", "partition": 77}])

        with pytest.raises(Exception, match="partition"):
            await writer.write_attempt(failing(), "query", 0, "0-1")
        again = await writer.write_attempt(rows(0, 10), "query", 0, "0-2")
        await writer.commit_batch([again], 0)
        assert await committed(broker) == values(0, 10)


async def test_a_batch_that_is_repeated_after_its_intent_is_finished_and_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        one = await writer.write_attempt(rows(0, 5), "query", 7, "0-1")
        other = await writer.write_attempt(rows(5, 9), "query", 7, "1-1")

        class Died(Exception):
            pass

        finish, ended = FirnStreamWriter.finish, 0

        async def die(cluster: ClusterClient, transaction: object, batch_id: int) -> None:
            nonlocal ended
            if ended == 1:
                raise Died
            ended += 1
            await finish(cluster, transaction, batch_id)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(FirnStreamWriter, "finish", staticmethod(die))
            with pytest.raises(Died):
                await writer.commit_batch([one, other], 7)
        repeated = [await writer.write_attempt(rows(0, 9), "query", 7, "0-9")]
        assert repeated == [OpenTransaction("query", None, already_intended=True)]
        await writer.commit_batch(repeated, 7)
        await writer.commit_batch(repeated, 7)
        assert sorted(await committed(broker)) == values(0, 9)  # type: ignore[type-var]
        following = await writer.write_attempt(rows(9, 12), "query", 8, "0-1")
        await writer.commit_batch([following], 8)
        assert sorted(await committed(broker), key=lambda value: int(value[1:])) == values(0, 12)  # type: ignore[index]


async def test_a_batch_that_died_before_its_intent_is_written_by_the_next_attempt_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        lost = await writer.write_attempt(rows(0, 5), "query", 0, "0-1")
        again = await writer.write_attempt(rows(0, 5), "query", 0, "0-2")
        await writer.commit_batch([again], 0)
        # The attempt that was lost holds readers up until its time-out; here it is ended as the coordinator would.
        await time_out(broker, lost)
        assert await committed(broker) == values(0, 5)


@pytest.mark.parametrize("error", [ValueError("a row that cannot be read"), KeyboardInterrupt()])
async def test_an_attempt_that_dies_of_anything_holds_no_reader_up(tmp_path: Path, error: BaseException) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)

        def failing() -> Iterator[pa.RecordBatch]:
            yield from rows(0, 10)
            raise error

        # Caught here: pytest stops for an interrupt, and a task of asyncio hands it to the loop at once.
        async def attempt() -> BaseException | None:
            try:
                await writer.write_attempt(failing(), "query", 0, "0-1")
            except (ValueError, KeyboardInterrupt) as caught:
                return caught
            return None

        assert await attempt() is error
        again = await writer.write_attempt(rows(0, 10), "query", 0, "0-2")
        await writer.commit_batch([again], 0)
        assert await committed(broker) == values(0, 10)


async def test_a_part_whose_batches_are_empty_has_nothing_to_commit(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        empty = await writer.write_attempt(rows(0, 0), "query", 0, "0-1")
        assert empty.transaction is None
        await writer.commit_batch([empty, await writer.write_attempt(rows(0, 5), "query", 0, "1-1")], 0)
        assert await committed(broker) == values(0, 5)


async def test_a_batch_that_took_longer_than_the_time_out_fails_without_an_intent_and_is_written_again(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        opened = [await writer.write_attempt(rows(n, n + 5), "query", 0, f"{n}-1") for n in (0, 5)]
        await time_out(broker, opened[1])
        with pytest.raises(ConfigError, match="Start the query again to write the batch anew"):
            await writer.commit_batch(opened, 0)
        await writer.abort_batch(opened, 0)
        again = await writer.write_attempt(rows(0, 10), "query", 0, "0-9")
        assert not again.already_intended
        await writer.commit_batch([again], 0)
        assert await committed(broker) == values(0, 10)


async def test_a_commit_after_the_time_out_stops_the_stream_says_so_and_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        opened = [await writer.write_attempt(rows(n, n + 5), "query", 0, f"{n}-1") for n in (0, 5)]
        write_intent = FirnStreamWriter.write_intent

        async def late(*arguments: Any) -> None:
            await write_intent(*arguments)
            await time_out(broker, opened[0])

        with monkeypatch.context() as patched:
            patched.setattr(FirnStreamWriter, "write_intent", late)
            with pytest.raises(ConfigError, match=r"0-0-1 of batch 0 .* its time-out had passed"):
                await writer.commit_batch(opened, 0)
        assert await committed(broker) == values(5, 10)


async def test_a_refused_commit_is_called_a_time_out_only_if_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        opened = [await writer.write_attempt(rows(0, 5), "query", 0, "0-1")]

        async def refuse(cluster: ClusterClient, transaction: Transaction, *, commit: bool) -> None:
            if transaction.transactional_id == "firn-query-commits":
                return await end_transaction(cluster, transaction, commit=commit)
            raise RequestRejected(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "not allowed")

        with monkeypatch.context() as patched:
            patched.setattr("pyspark_firn.writing.end_transaction", refuse)
            with pytest.raises(RequestRejected, match="not allowed"):
                await writer.commit_batch(opened, 0)
        repeated = [await writer.write_attempt(rows(0, 5), "query", 0, "0-2")]
        await writer.commit_batch(repeated, 0)
        assert await committed(broker) == values(0, 5)


@pytest.mark.parametrize("died_in", ["write_intent", "finish"])
async def test_a_commit_that_failed_after_its_intent_is_not_aborted_but_finished_when_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died_in: str
) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        opened = [await writer.write_attempt(rows(n, n + 5), "query", 3, f"{n}-1") for n in (0, 5)]
        write_intent = FirnStreamWriter.write_intent

        async def fail(*arguments: Any) -> None:
            if died_in == "write_intent":  # It is stored; the acknowledgement is what was lost.
                await write_intent(*arguments)
            raise BrokerUnavailable("the broker went away")

        with monkeypatch.context() as patched:
            patched.setattr(FirnStreamWriter, died_in, fail if died_in == "write_intent" else staticmethod(fail))
            with pytest.raises(BrokerUnavailable):
                await writer.commit_batch(opened, 3)
        await writer.abort_batch(opened, 3)
        repeated = [await writer.write_attempt(rows(0, 10), "query", 3, "0-9")]
        assert repeated == [OpenTransaction("query", None, already_intended=True)]
        await writer.commit_batch(repeated, 3)
        assert sorted(await committed(broker)) == values(0, 10)  # type: ignore[type-var]


async def test_a_batch_that_failed_before_its_intent_is_aborted_at_once_and_written_again(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        await writer.commit_batch([await writer.write_attempt(rows(0, 5), "query", 2, "0-1")], 2)
        await writer.abort_batch([await writer.write_attempt(rows(5, 9), "query", 3, "0-1")], 3)
        again = await writer.write_attempt(rows(5, 9), "query", 3, "0-2")
        await writer.commit_batch([again], 3)
        # Had the first attempt been left open, the last stable offset would stand before it.
        assert await committed(broker) == values(0, 9)


async def test_an_abort_that_cannot_read_the_intent_leaves_the_transactions_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        opened = [await writer.write_attempt(rows(0, 5), "query", 0, "0-1")]

        async def fail(*arguments: object, **named: object) -> None:
            raise CorruptionError("damaged")

        with monkeypatch.context() as patched:
            patched.setattr("pyspark_firn.writing.read_intent", fail)
            await writer.abort_batch(opened, 0)
        await writer.commit_batch(opened, 0)
        assert await committed(broker) == values(0, 5)


async def write_batch(writer: FirnStreamWriter, batch: int, run: str = "run", *, attempts: int = 1) -> list[str]:
    """A micro-batch of two tasks, the second of which has rows in every other one; answers the ids of its winners."""
    opened = []
    for task in (0, 1):
        given = rows(batch, batch + 1) if task == 0 or batch % 2 == 0 else iter(())
        for number in range(attempts):
            slot = Slot(run, task, is_first_attempt=number == 0)
            last = await writer.write_attempt(given, "query", batch, f"{run}-{batch}-{task}-{number}", slot=slot)
        opened.append(last)
    await writer.commit_batch(opened, batch)
    return [one.transactional_id for one in opened]


async def transactional_ids(broker: RunningBroker) -> set[str]:
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        connection = await cluster.any_broker()
        answer = await connection.request(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(), timeout_ms=10_000)
        return {one.transactional_id for one in answer.transaction_states}


async def test_transactional_ids_are_used_again_batch_after_batch(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        first = await write_batch(writer, 0)
        for batch in range(1, 8):
            assert await write_batch(writer, batch) == first
        assert await transactional_ids(broker) == {*first, "firn-query-commits"}
        assert sorted(await committed(broker)) == sorted(b"v%d" % n for n in range(8) for _ in range(2 - n % 2))


async def test_an_id_that_another_attempt_or_run_may_hold_is_not_used_again(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, options):
        writer = FirnStreamWriter(options)
        first = await write_batch(writer, 0)
        # The driver died: an executor of its own may be at work still.
        other = await write_batch(writer, 1, "other run")
        assert not set(first) & set(other)
        slow = await writer.write_attempt(
            rows(90, 91), "query", 2, "lost", slot=Slot("other run", 0, is_first_attempt=True)
        )
        assert slow.transactional_id == other[0]
        again = await writer.write_attempt(
            rows(2, 3), "query", 2, "won", slot=Slot("other run", 0, is_first_attempt=False)
        )
        await writer.commit_batch([again], 2)
        following = await writer.write_attempt(
            rows(3, 4), "query", 3, "next", slot=Slot("other run", 0, is_first_attempt=True)
        )
        assert following.transactional_id == again.transactional_id not in {slow.transactional_id, *first}
        await writer.commit_batch([following], 3)
        await time_out(broker, slow)
        assert sorted(await committed(broker)) == [b"v0", b"v0", b"v1", b"v2", b"v3"]


async def test_the_topic_of_intents_stays_small(tmp_path: Path) -> None:
    async with served(tmp_path, log_cleaner_backoff_ms=20) as (broker, options):
        writer = FirnStreamWriter(options)
        transactions = tuple(Transaction(f"{n:0200d}", ProducerId(n), ProducerEpoch(0)) for n in range(1000))
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            await ensure_commit_topic(cluster, options.commit_topic)
            for batch in range(40):
                query_id = f"query {batch % 2}"
                driver = await begin_transaction(cluster, query_id, timeout_ms=60_000)
                await writer.write_intent(cluster, query_id, Intent(batch, transactions), driver)
            written = 40 * len(Intent(0, transactions).encode())
            log = broker.log(options.commit_topic)
            async with asyncio.timeout(60):
                while sum(sizes_of(Path(log.path).glob("*.log"))) > written / 3:
                    await asyncio.sleep(0.02)
            for query in (0, 1):
                newest = await read_intent(cluster, options.commit_topic, f"query {query}")
                assert newest is not None
                assert newest.batch_id == 38 + query


async def time_out(broker: RunningBroker, message: OpenTransaction) -> None:
    """Do what the coordinator does when the time of a transaction is over."""
    assert message.transaction is not None
    name, producer_id, epoch = message.transaction
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        ended = Transaction(name, ProducerId(producer_id), ProducerEpoch(epoch))
        await end_transaction(cluster, ended, commit=False)


@pytest.mark.parametrize(
    ("options", "schema", "sentence"),
    [
        ({}, SCHEMA, "'bootstrap' is missing"),
        ({"bootstrap": "h:1"}, SCHEMA, "which topic to write to"),
        ({"bootstrap": "h", "topic": "t"}, SCHEMA, "host:9092"),
        ({"bootstrap": "h:1", "topic": "t", "acks": "1"}, SCHEMA, "no option 'acks'"),
        ({"bootstrap": "h:1", "topic": "t"}, StructType([StructField("key", StringType())]), "'value' is missing"),
        ({"bootstrap": "h:1", "topic": "t"}, StructType([StructField("value", IntegerType())]), "string or binary"),
        ({"bootstrap": "h:1", "topic": "t", "compression": "brotli"}, SCHEMA, "write none, gzip"),
    ],
)
def test_mistakes_of_a_write_are_one_plain_sentence(options: dict[str, str], schema: StructType, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_write_options(options, schema)


@pytest.mark.parametrize("name", ["commitTopic", "transactiontimeout"])
def test_options_of_transactions_are_refused_for_a_batch_which_has_none(name: str) -> None:
    given = {"bootstrap": "b:1", "topic": "out", name: "60000"}
    parse_write_options(given, SCHEMA, streaming=True)
    with pytest.raises(ConfigError, match="does not go with a batch"):
        FirnDataSource(given).writer(SCHEMA, overwrite=False)


@pytest.mark.parametrize("timeout", ["0", "2147483648", "1e3", "²"])
def test_a_transaction_timeout_that_no_request_can_carry_is_refused(timeout: str) -> None:
    with pytest.raises(ConfigError, match="from 1 to 2147483647"):
        parse_write_options({"bootstrap": "b:1", "topic": "out", "transactionTimeout": timeout}, SCHEMA)
