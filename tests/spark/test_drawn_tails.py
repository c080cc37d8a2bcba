"""Drawn topics, half in the store and half on their broker: with ``tail`` Spark reads what a client consumes, record for record."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.client.producer import Producer
from app.client.transactions import Transaction, begin_transaction, end_transaction
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.machine.runtime import SystemClock
from app.records.batch import LOG_APPEND_TIME
from app.records.compression import Codec
from app.records.record import NewRecord
from pyspark_firn.batch import plan
from pyspark_firn.options import parse_read_options
from pyspark_firn.splits import TailSplit
from pyspark_firn.tasks import read_split
from tests.records.strategies import NOW_MS, new_records
from tests.spark.conftest import rows_of
from tests.spark.reference import Row
from tests.support.broker import RunningBroker, running_broker

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers", "leader_epoch")
PARTITION = TopicPartition("t", PartitionIndex(0))
DEADLINE_S = 60


class Send(NamedTuple):
    """In a transaction of its producer, begun with the first records; without a producer in none."""

    producer: str | None
    codec: Codec
    records: list[NewRecord]


class End(NamedTuple):
    producer: str
    commit: bool


class Roll(NamedTuple):
    """What was written so far may go to the store, up to the last stable offset."""


Step = Send | End | Roll
producers = st.sampled_from(["one", "two"])
steps = st.one_of(
    st.builds(Send, st.none() | producers, st.sampled_from(Codec), new_records),
    st.builds(End, producers, st.booleans()),
    st.builds(Roll),
)
lives = st.lists(st.lists(steps, min_size=1, max_size=8), min_size=1, max_size=3)
"""What is done between two starts of the broker, each with a leader epoch of its own."""


class Writing:
    """Carries out the steps of one life."""

    def __init__(self, broker: RunningBroker, cluster: ClusterClient) -> None:
        self._broker = broker
        self._cluster = cluster
        self._open: dict[str, tuple[Transaction, Producer, AsyncExitStack]] = {}

    async def do(self, step: Step) -> None:
        match step:
            case Send(None, codec, records):
                async with Producer(self._cluster, SystemClock(), compression=codec) as producer:
                    await self._send(producer, records)
            case Send(name, codec, records):
                if name not in self._open:
                    stack = AsyncExitStack()
                    transaction = await begin_transaction(self._cluster, name, timeout_ms=60_000)
                    made = Producer(self._cluster, SystemClock(), compression=codec, transaction=transaction)
                    self._open[name] = (transaction, await stack.enter_async_context(made), stack)
                await self._send(self._open[name][1], records)
            case End(name, commit):
                if name in self._open:
                    transaction, _, stack = self._open.pop(name)
                    await stack.aclose()
                    await end_transaction(self._cluster, transaction, commit=commit)
            case Roll():
                self._broker.log("t").roll()

    async def end(self) -> None:
        for name in list(self._open):
            await self.do(End(name, commit=name == "one"))

    @staticmethod
    async def _send(producer: Producer, records: Sequence[NewRecord]) -> None:
        for record in records:
            answer = await producer.send(
                "t", record.value, key=record.key, headers=record.headers, timestamp=record.timestamp
            )
        await producer.flush()
        await answer


async def consumed(cluster: ClusterClient, *, read_committed: bool) -> list[Row]:
    end = (await cluster.list_offsets({PARTITION: -1}, read_committed=read_committed))[PARTITION].offset
    found: list[Row] = []
    async with Consumer(cluster, read_committed=read_committed) as consumer:
        consumer.assign({PARTITION: Offset(0)})
        while consumer.position(PARTITION) < end:
            for batch in await consumer.poll(10_000):
                for record in batch.records():
                    found.append(
                        {
                            "key": record.key,
                            "value": record.value,
                            "offset": record.offset,
                            "timestamp": record.timestamp,
                            "timestampType": int(bool(batch.header.attributes & LOG_APPEND_TIME)),
                            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
                            "leader_epoch": batch.header.leader_epoch,
                        }
                    )
    return found


def read(store: str, tail: str, isolation: str) -> list[Row]:
    given = {"store": store, "subscribe": "t", "tail": tail, "isolation": isolation, "columns": ",".join(COLUMNS)}
    options = parse_read_options(given, streaming=False)
    splits = plan(options)
    assert any(isinstance(split, TailSplit) for split in splits)
    return rows_of([batch for split in splits for batch in read_split(options, options.columns, split)])


async def check(path: Path, lives: Sequence[Sequence[Step]], *, append_time: bool) -> None:
    for number, steps_of_life in enumerate(lives):
        async with (
            # Each start draws ids of its own, as a broker does.
            running_broker(path, seed=number, remote_log_manager_task_interval_ms=20) as broker,
            ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster,
        ):
            if number == 0:
                times = {"message_timestamp_type": "LogAppendTime"} if append_time else {}
                await broker.create_topic("t", retention_ms="-1", local_retention_ms="0", **times)
            writing = Writing(broker, cluster)
            for step in steps_of_life:
                await writing.do(step)
            await writing.end()
            if number + 1 < len(lives):
                continue
            # Something is to be on the broker alone.
            await writing.do(Send(None, Codec.NONE, [NewRecord(NOW_MS, None, b"last", ())]))
            async with asyncio.timeout(DEADLINE_S):
                while len(broker.log("t").segments()) > 1:
                    await asyncio.sleep(0.01)
            for isolation in ("read_committed", "read_uncommitted"):
                expected = await consumed(cluster, read_committed=isolation == "read_committed")
                store = (path / "store").as_uri()
                assert await asyncio.to_thread(read, store, broker.bootstrap, isolation) == expected


DRAWN = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    # An example is a broker or three: to look for the least one that fails would take minutes.
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}


@pytest.mark.ci
@settings(max_examples=5, **DRAWN)
@given(lives=lives, append_time=st.booleans())
def test_a_drawn_topic_reads_with_its_tail_as_a_client_consumes_it(lives: list[list[Step]], append_time: bool) -> None:
    with tempfile.TemporaryDirectory() as path:
        asyncio.run(check(Path(path), lives, append_time=append_time))


@pytest.mark.slow
@settings(max_examples=100, **DRAWN)
@given(lives=lives, append_time=st.booleans())
def test_many_drawn_topics_read_with_their_tails_as_a_client_consumes_them(
    lives: list[list[Step]], append_time: bool
) -> None:
    with tempfile.TemporaryDirectory() as path:
        asyncio.run(check(Path(path), lives, append_time=append_time))
