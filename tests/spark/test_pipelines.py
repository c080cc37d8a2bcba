"""From Spark to a broker and back: batch and stream writes with real tasks, executors that die, executors of their own."""

from __future__ import annotations

import asyncio
import random
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.core.units import Offset, PartitionIndex, TopicPartition
from tests.spark.programs import files_that_count, run_script
from tests.spark.sessions import SparkSession, grow
from tests.support.broker import RunningBroker, running_broker
from tests.support.buckets import BucketBuilder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

DEADLINE_S = 120.0


async def beside(spark: SparkSession, work: Callable[[], None]) -> None:
    """Use Spark on a thread of its own, so that the broker in this one goes on."""

    def run() -> None:
        # Makes the session the thread's own: Spark looks for Python sources in that one.
        spark.createDataFrame([(1,)], "one int")
        work()

    await asyncio.to_thread(run)


async def read_all(broker: RunningBroker, topic: str, partitions: int) -> list[tuple[bytes | None, bytes | None]]:
    found = []
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        for index in range(partitions):
            partition = TopicPartition(topic, PartitionIndex(index))
            end = (await cluster.list_offsets({partition: -1}, read_committed=True))[partition].offset
            async with Consumer(cluster, read_committed=True) as consumer:
                consumer.assign({partition: Offset(0)})
                while consumer.position(partition) < end:
                    for batch in await consumer.poll(10_000):
                        found += [(record.key, record.value) for record in batch.records()]
    return found


async def test_what_a_batch_writes_is_there(spark: SparkSession, tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("out", 2)

        def write() -> None:
            frame = spark.range(0, 500, 1, 3).selectExpr("cast(id as string) key", "concat('v', id) value")
            frame.write.format("firn").option("bootstrap", broker.bootstrap).option("topic", "out").mode(
                "append"
            ).save()

        await beside(spark, write)
        assert sorted(await read_all(broker, "out", 2)) == sorted((b"%d" % n, b"v%d" % n) for n in range(500))


async def test_a_stream_from_topic_to_topic_is_exactly_once_across_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with running_broker(tmp_path, remote_log_manager_task_interval_ms=50) as broker:
        await broker.create_topic("in", 2, firn_tier_max_lag_ms="600000")
        await broker.create_topic("out", 1)

        def fill(start: int, end: int) -> None:
            frame = spark.range(start, end, 1, 2).selectExpr("cast(id as string) key", "concat('v', id) value")
            frame.write.format("firn").option("bootstrap", broker.bootstrap).option("topic", "in").mode("append").save()

        def run() -> None:
            query = (
                spark.readStream.format("firn")
                .option("store", (tmp_path / "store").as_uri())
                .option("subscribe", "in")
                .option("tail", broker.bootstrap)
                .option("maxRecordsPerTrigger", "150")
                .load()
                .selectExpr("key", "value")
                .writeStream.format("firn")
                .option("bootstrap", broker.bootstrap)
                .option("topic", "out")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(200)

        await beside(spark, lambda: fill(0, 400))
        await beside(spark, run)
        # The driver died after the last commit of a batch was asked for: the batch is done again.
        commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        for crc in (tmp_path / "checkpoint" / "commits").glob(f".{commits[-1].name}.crc"):
            crc.unlink()
        await beside(spark, lambda: fill(400, 500))
        await beside(spark, run)
        assert sorted(await read_all(broker, "out", 1)) == sorted((b"%d" % n, b"v%d" % n) for n in range(500))


@pytest.mark.parametrize("tail", [False, True], ids=["tiered end", "live tail"])
async def test_a_running_stream_follows_what_comes_and_the_partitions_and_topics_that_are_made(
    spark: SparkSession, tmp_path: Path, tail: bool
) -> None:
    lag = {} if tail else {"firn_tier_max_lag_ms": "50"}
    async with running_broker(tmp_path, remote_log_manager_task_interval_ms=50) as broker:
        await broker.create_topic("t1", 2, **lag)

        def fill(topic: str, partition: int, start: int, end: int) -> None:
            frame = spark.range(start, end, 1, 1).selectExpr("concat('v', id) value", f"{partition} partition")
            frame.write.format("firn").option("bootstrap", broker.bootstrap).option("topic", topic).mode(
                "append"
            ).save()
            wanted.update((topic, f"v{n}") for n in range(start, end))

        async def grow() -> None:
            async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
                await AdminClient(cluster).create_partitions("t1", 3)

        def start() -> Any:
            return (
                spark.readStream.format("firn")
                .option("store", (tmp_path / "store").as_uri())
                .option("subscribePattern", "t.*")
                .option("tail", broker.bootstrap if tail else "none")
                .load()
                .selectExpr("topic", "cast(value as string) value")
                .writeStream.format("parquet")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .option("path", str(tmp_path / "sink"))
                .trigger(processingTime="100 milliseconds")
                .start()
            )

        def sunk() -> list[tuple[str, str]]:
            files = files_that_count(tmp_path / "sink")
            rows = ds.dataset(files, format="parquet").to_table().to_pylist() if files else []
            return sorted((row["topic"], row["value"]) for row in rows)

        def wait(query: Any) -> None:
            deadline = time.monotonic() + DEADLINE_S
            while len(found := sunk()) < len(wanted):
                assert query.exception() is None
                assert time.monotonic() < deadline, f"the stream has {len(found)} of {len(wanted)} records"
                time.sleep(0.1)
            assert found == sorted(wanted)

        def follow() -> None:
            fill("t1", 0, 0, 200)
            fill("t1", 1, 200, 300)
            query = start()
            try:
                wait(query)
                fill("t1", 1, 300, 400)
                wait(query)
                asyncio.run_coroutine_threadsafe(grow(), loop).result(DEADLINE_S)
                fill("t1", 2, 400, 450)
                wait(query)
                asyncio.run_coroutine_threadsafe(broker.create_topic("t2", 1, **lag), loop).result(DEADLINE_S)
                fill("t2", 0, 0, 50)
                wait(query)
            finally:
                query.stop()
            assert sunk() == sorted(wanted)

        wanted: set[tuple[str, str]] = set()
        loop = asyncio.get_running_loop()
        await beside(spark, follow)


LOCAL_CLUSTER = """
import asyncio, os, sys
from pathlib import Path
from tests.spark.sessions import BucketBuilder, Topic, collected, grow, session

async def make(path):
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic("t", 1)
    await grow(bucket, topic_id, 0, 0, 3)
    return Topic(path, "t", topic_id)

topic = asyncio.run(make(Path(sys.argv[1])))
os.environ["PYTHONPATH"] = os.getcwd()
spark = session("local-cluster[2,1,1024]")
frame = spark.read.format("firn").option("store", topic.store).option("subscribe", "t").option("splitBytes", "1m").load()
found = collected(frame)
expected = [{name: row[name] for name in frame.columns} for row in topic.reference()]
spark.stop()
sys.exit(0 if found == expected and len(found) == 600 else 1)
"""


def test_code_and_options_travel_to_executors_of_their_own(tmp_path: Path) -> None:
    done = run_script(LOCAL_CLUSTER, str(tmp_path / "bucket"))
    assert done.returncode == 0, done.stdout[-4000:]


async def make_topic(path: Path) -> None:
    bucket = await BucketBuilder.open(path)
    await grow(bucket, await bucket.create_topic("t", 1), 0, 0, 3)


SHADOWED = """
import os, sys
from pyspark_firn.jobs.archive import archive_parquet
from pyspark_firn.jobs.running import SparkRunner
from tests.spark.sessions import PySparkException, session

store, users_own, lake = sys.argv[1:]
os.environ["PYTHONPATH"] = os.getcwd()
spark = session(
    "local-cluster[1,1,1024]",
    python=users_own + "/python",
    spark_task_maxFailures="2",
    spark_python_use_daemon="false",  # Each task is to be started anew.
)
frame = spark.read.format("firn").option("store", store).option("subscribe", "t").load()

def write():
    rows = spark.range(1).selectExpr("'v' value")
    rows.write.format("firn").option("bootstrap", "127.0.0.1:1").option("topic", "t").mode("append").save()

def archive():
    archive_parquet(store, "t", lake, SparkRunner(spark))

def told(work):
    try:
        work()
    except Exception as error:
        lines = str(error).splitlines()
        print("TOLD", next((line for line in lines if "FirnAppShadowed: " in line), lines), flush=True)

for work in (frame.collect, write, archive):
    told(work)
print("WORKS", spark.range(3).count())
os.unlink(users_own + "/is-found")
spark.sparkContext.addPyFile(users_own + "/app.zip")
print("WORKS", frame.count())  # Spark does not send it to tasks that read.
told(archive)
spark.stop()
"""


def test_executors_that_find_another_app_than_the_driver_say_so_at_once(tmp_path: Path) -> None:
    """By their own path, and by what the driver sends along."""
    users_own = tmp_path / "users-own"
    (users_own / "app").mkdir(parents=True)
    (users_own / "app" / "__init__.py").write_text("")
    with zipfile.ZipFile(users_own / "app.zip", "w") as archive:
        archive.writestr("app/__init__.py", "")
    (users_own / "is-found").touch()
    interpreter = users_own / "python"
    interpreter.write_text(
        # An executor works in a folder that is named after the application.
        f'#!/bin/sh\ncase "$PWD" in */app-*) [ -e "{users_own}/is-found" ] && PYTHONPATH="{users_own}:$PYTHONPATH";; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    interpreter.chmod(0o755)
    asyncio.run(make_topic(tmp_path / "bucket"))
    done = run_script(SHADOWED, (tmp_path / "bucket").as_uri(), str(users_own), (tmp_path / "lake").as_uri())
    assert done.returncode == 0, done.stdout[-4000:]
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD")]
    own = [f" {users_own}/app/__init__.py"] * 3
    for line, place in zip(told, [*own, "/app.zip/app/__init__.py"], strict=True):
        assert "FirnAppShadowed: The package 'app' is " in line
        assert f"{place}, not Firn's: Firn's modules live in a package of that name, so rename yours" in line
    assert "WORKS 3" in done.stdout
    assert "WORKS 600" in done.stdout
