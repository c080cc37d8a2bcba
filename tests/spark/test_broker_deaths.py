"""A broker that is killed under readers of its tail and under writers, and comes back elsewhere: an error or all of it, once."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.client.producer import Producer
from app.core.errors import BrokerUnavailable
from app.machine.runtime import SystemClock
from pyspark_firn.batch import plan
from pyspark_firn.options import parse_read_options
from pyspark_firn.tasks import read_split
from pyspark_firn.writing import FirnStreamWriter, FirnWriter, OpenTransaction, parse_write_options
from tests.faults.served import Served, serving
from tests.spark.conftest import rows_of
from tests.spark.writers import SCHEMA, rows, values
from tests.spark.written_topics import asked, committed

pytestmark = pytest.mark.slow

RECORDS = 4000
"""More bytes than a reader of a tail has under way at a time."""


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    hasty = functools.partial(ClusterClient, retry_budget_ms=3000)
    for module in ("reading", "writing"):
        monkeypatch.setattr(f"pyspark_firn.{module}.ClusterClient", hasty)
    monkeypatch.setattr("pyspark_firn.writing.Producer", functools.partial(Producer, delivery_timeout_ms=5000))
    with serving(tmp_path) as served:
        asked(served, lambda cluster: AdminClient(cluster).create_topic("out", partitions_count=1))
        yield served
        served.stop()
        served.check_no_bug()


async def fill(cluster: ClusterClient) -> None:
    async with Producer(cluster, SystemClock()) as producer:
        for number in range(RECORDS):
            await producer.send("out", random.Random(number).randbytes(10_000), key=b"%d" % number)


def test_a_read_of_a_tail_fails_with_its_broker_and_gives_all_when_it_is_back(broker: Served) -> None:
    asked(broker, fill)

    def planned() -> tuple[Any, list[Any]]:
        given = {"store": broker.store, "subscribe": "out", "tail": broker.bootstrap, "columns": "offset,key"}
        options = parse_read_options(given, streaming=False)
        return options, plan(options)

    options, [split] = planned()
    batches = read_split(options, options.columns, split)
    found = rows_of([next(batches)])
    broker.kill()
    with pytest.raises(BrokerUnavailable):
        found.extend(row for batch in batches for row in rows_of([batch]))
    wanted = [{"offset": number, "key": b"%d" % number} for number in range(RECORDS)]
    assert found == wanted[: len(found)] != wanted
    broker.start()
    options, [split] = planned()
    assert rows_of(list(read_split(options, options.columns, split))) == wanted


def writer_to(broker: Served) -> FirnStreamWriter:
    given = {"bootstrap": broker.bootstrap, "topic": "out", "transactionTimeout": "300000"}
    return FirnStreamWriter(parse_write_options(given, SCHEMA))


def attempt(broker: Served, start: int, end: int, name: str) -> OpenTransaction:
    return asyncio.run(writer_to(broker).write_attempt(rows(start, end), "query", 0, name))


@pytest.mark.parametrize("step", ["check_open", "write_intent", "finish"])
def test_a_batch_whose_broker_dies_under_its_commit_is_there_once_when_it_is_repeated(
    broker: Served, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    opened = [attempt(broker, n, n + 5, f"{n}-1") for n in (0, 5)]
    whole = getattr(FirnStreamWriter, step)

    async def die(*arguments: Any) -> None:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()
        await whole(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(FirnStreamWriter, step, die if step == "write_intent" else staticmethod(die))
        with pytest.raises(BrokerUnavailable):
            asyncio.run(writer_to(broker).commit_batch(opened, 0))
    broker.start()
    asyncio.run(writer_to(broker).abort_batch(opened, 0))
    again = [attempt(broker, n, n + 5, f"{n}-2") for n in (0, 5)]
    assert {one.already_intended for one in again} == {step == "finish"}
    asyncio.run(writer_to(broker).commit_batch(again, 0))
    assert committed(broker) == values(0, 10)


def test_a_batch_whose_broker_died_between_its_tasks_and_its_commit_is_committed(broker: Served) -> None:
    opened = [attempt(broker, n, n + 5, f"{n}-1") for n in (0, 5)]
    broker.kill()
    broker.start()
    asyncio.run(writer_to(broker).commit_batch(opened, 0))
    assert committed(broker) == values(0, 10)


def test_a_task_of_a_batch_write_that_is_run_again_loses_nothing(broker: Served) -> None:
    """Rows may be there twice, as with Spark's Kafka sink: those of the attempt that died."""

    def dying() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 5)
        broker.kill()
        broker.start()
        raise RuntimeError("the task died")

    def write(batches: Iterator[pa.RecordBatch]) -> None:
        options = parse_write_options({"bootstrap": broker.bootstrap, "topic": "out"}, SCHEMA)
        FirnWriter(options).write(batches)

    with pytest.raises(RuntimeError, match="the task died"):
        write(dying())
    write(rows(0, 10))
    assert committed(broker) == sorted(values(0, 5) + values(0, 10), key=lambda value: int(value[1:]))
