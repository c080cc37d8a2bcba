"""From Spark to a broker and back: batch and stream writes with real tasks, executors that die, executors of their own."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.units import Offset, PartitionIndex, TopicPartition
from tests.spark.test_with_spark import SparkSession, session
from tests.support.broker import RunningBroker, running_broker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    started = session("local[2]")
    yield started
    started.stop()


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


LOCAL_CLUSTER = """
import asyncio, os, sys
from pathlib import Path
from tests.spark.test_with_spark import BucketBuilder, Topic, collected, grow, session

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


def run_script(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(script, process.returncode, output)


def test_code_and_options_travel_to_executors_of_their_own(tmp_path: Path) -> None:
    done = run_script(LOCAL_CLUSTER, str(tmp_path / "bucket"))
    assert done.returncode == 0, done.stdout[-4000:]
