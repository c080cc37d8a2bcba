"""The window that the transaction time-out leaves to a stream that writes: a broker of its own, whose clock really passes it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.client.transactions import Transaction, is_open
from app.core.errors import ConfigError
from app.core.units import ProducerEpoch, ProducerId
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis.list_transactions import ListTransactionsRequest
from pyspark_firn.writing import FirnStreamWriter, OpenTransaction, parse_write_options
from tests.faults.served import Served, serving
from tests.spark.sessions import PySparkException, SparkSession
from tests.spark.writers import SCHEMA, rows, values
from tests.spark.written_topics import asked, committed
from tests.support.buckets import BucketBuilder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

SHORT_MS = 8000
"""Passes in a test; long enough for a slow machine to commit before."""
LONG_MS = 300_000
DEADLINE_S = 120.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        asked(served, lambda cluster: AdminClient(cluster).create_topic("out", partitions_count=1))
        yield served
        served.stop()
        served.check_no_bug()


def wait_for_time_out(broker: Served, *opened: OpenTransaction) -> None:
    """Until the coordinator has aborted them, by itself and by its own clock."""

    async def wait(cluster: ClusterClient) -> None:
        async with asyncio.timeout(DEADLINE_S):
            for one in opened:
                assert one.transaction is not None
                name, producer_id, epoch = one.transaction
                while await is_open(cluster, Transaction(name, ProducerId(producer_id), ProducerEpoch(epoch))):
                    await asyncio.sleep(0.05)

    asked(broker, wait)


def writer_to(broker: Served, timeout_ms: int = SHORT_MS) -> FirnStreamWriter:
    given = {"bootstrap": broker.bootstrap, "topic": "out", "transactionTimeout": str(timeout_ms)}
    return FirnStreamWriter(parse_write_options(given, SCHEMA))


def test_a_time_out_between_the_tasks_and_the_commit_fails_the_batch_which_is_written_anew(broker: Served) -> None:
    writer = writer_to(broker)
    opened = [asyncio.run(writer.write_attempt(rows(n, n + 5), "query", 0, f"{n}-1")) for n in (0, 5)]
    wait_for_time_out(broker, *opened)
    with pytest.raises(
        ConfigError, match="was over before batch 0 could be committed: nothing of the batch is committed"
    ):
        asyncio.run(writer.commit_batch(opened, 0))
    asyncio.run(writer.abort_batch(opened, 0))
    assert committed(broker) == []
    patient = writer_to(broker, LONG_MS)
    again = asyncio.run(patient.write_attempt(rows(0, 10), "query", 0, "0-9"))
    asyncio.run(patient.commit_batch([again], 0))
    assert committed(broker) == values(0, 10)


@pytest.mark.parametrize("ended", [0, 1], ids=["nothing ended", "one ended"])
def test_a_driver_that_comes_back_after_the_time_out_stops_and_says_which_batch_is_missing(
    broker: Served, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    writer = writer_to(broker)
    opened = [asyncio.run(writer.write_attempt(rows(n, n + 5), "query", 4, f"{n}-1")) for n in (0, 5)]
    finish, left = FirnStreamWriter.finish, ended

    class Died(Exception):
        pass

    async def die(cluster: ClusterClient, transaction: Transaction, batch_id: int) -> None:
        nonlocal left
        if not left:
            raise Died
        left -= 1
        await finish(cluster, transaction, batch_id)

    with monkeypatch.context() as patched:
        patched.setattr(FirnStreamWriter, "finish", staticmethod(die))
        with pytest.raises(Died):
            asyncio.run(writer.commit_batch(opened, 4))
    wait_for_time_out(broker, *opened[ended:])
    # However often it comes back, it neither writes the batch again nor goes on without it.
    for _ in range(2):
        repeated = asyncio.run(writer.write_attempt(rows(0, 10), "query", 4, "0-9"))
        assert repeated.already_intended
        with pytest.raises(ConfigError, match=r"of batch 4 cannot be committed .* its time-out had passed"):
            asyncio.run(writer.commit_batch([repeated], 4))
    assert committed(broker) == values(0, 5 * ended)


# --- a query of Spark's ---------------------------------------------------------------------------------------------


def two_partitions(path: Path) -> str:
    async def make() -> None:
        bucket = await BucketBuilder.open(path)
        topic_id = await bucket.create_topic("in", 2)
        for partition in (0, 1):
            records = [(1, None, b"v%d" % n, ()) for n in range(partition * 50, partition * 50 + 50)]
            await bucket.add_segment(topic_id, partition, [build_batch(records)])

    asyncio.run(make())
    return path.as_uri()


def aborted_by_time(broker: Served) -> bool:
    """Whether the coordinator knows of a transaction that it has aborted."""

    async def look(cluster: ClusterClient) -> bool:
        connection = await cluster.any_broker()
        request = ListTransactionsRequest(state_filters=["CompleteAbort"], producer_id_filters=[])
        return bool((await connection.request(ApiKey.LIST_TRANSACTIONS, request)).transaction_states)

    return asked(broker, look)


def test_a_query_whose_batch_outlasts_the_time_out_stops_and_writes_it_once_when_it_is_started_again(
    broker: Served, spark: SparkSession, tmp_path: Path
) -> None:
    store, go_on = two_partitions(tmp_path / "bucket"), str(tmp_path / "go-on")
    deadline_s = DEADLINE_S

    def hold_second(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            deadline = time.monotonic() + deadline_s
            while batch.column(0)[0].as_py() == b"v50" and not os.path.exists(go_on):
                assert time.monotonic() < deadline, "nobody let the task go on"
                time.sleep(0.05)
            yield batch

    def start(timeout_ms: int) -> object:
        return (
            spark.readStream.format("firn")
            .option("store", store)
            .option("subscribe", "in")
            .load()
            .select("value")
            .mapInArrow(hold_second, "value binary")
            .writeStream.format("firn")
            .option("bootstrap", broker.bootstrap)
            .option("topic", "out")
            .option("transactionTimeout", str(timeout_ms))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    query = start(SHORT_MS)
    deadline = time.monotonic() + DEADLINE_S
    while not aborted_by_time(broker):
        assert time.monotonic() < deadline, "no transaction was aborted"
        time.sleep(0.1)
    Path(go_on).touch()
    with pytest.raises(PySparkException, match="was over before batch 0 could be committed"):
        query.awaitTermination(240)  # type: ignore[attr-defined]
    assert committed(broker) == []
    assert start(LONG_MS).awaitTermination(240)  # type: ignore[attr-defined]
    assert committed(broker) == values(0, 100)
