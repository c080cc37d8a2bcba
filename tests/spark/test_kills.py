"""Executors and drivers that are killed with SIGKILL, and objects that are flipped or deleted, all under running jobs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from app.core.units import Offset
from app.records.builder import build_batch
from pyspark_firn.jobs.archive import archive_parquet
from pyspark_firn.jobs.running import SparkRunner
from tests.spark.archives import archived, expected
from tests.spark.conftest import Topic
from tests.spark.programs import files_that_count, run_script
from tests.spark.sessions import NOW_MS, PySparkException, SparkSession, grow
from tests.support.buckets import BucketBuilder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

DEADLINE_S = 120.0


def small_topic(path: Path, segments: int) -> Topic:
    async def make() -> Topic:
        bucket = await BucketBuilder.open(path)
        topic_id = await bucket.create_topic("t", 1)
        await grow(bucket, topic_id, 0, 0, segments)
        return Topic(path, "t", topic_id)

    return asyncio.run(make())


# --- executors ------------------------------------------------------------------------------------------------------

KILLED_EXECUTORS = """
import functools, os, signal, sys
from pathlib import Path
from pyspark_firn.jobs.archive import archive_parquet
from pyspark_firn.jobs.running import SparkRunner
from tests.spark.sessions import session

store, scratch = sys.argv[1], sys.argv[2]
os.environ["PYTHONPATH"] = os.getcwd()

def kill_executor_once(marker):
    "The task's Python was forked by a daemon, whose parent is the executor."
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    signal.pause()

def pass_on(batches):
    for number, batch in enumerate(batches):
        yield batch
        kill_executor_once(scratch + "/reader-killed")

def archive_part(function, argument):
    done = function(argument)
    kill_executor_once(scratch + "/archiver-killed")
    return done

class DyingRunner(SparkRunner):
    def run(self, function, arguments):
        return super().run(functools.partial(archive_part, function), arguments)

spark = session("local-cluster[2,1,1024]")
frame = spark.read.format("firn").option("store", store).option("subscribe", "t").option("splitBytes", "1m").load()
frame.mapInArrow(pass_on, frame.schema).write.parquet(scratch + "/read")
archive_parquet(store, "t", Path(scratch, "lake").as_uri(), DyingRunner(spark), part_bytes=100_000)
spark.stop()
"""


def test_what_a_killed_executor_was_doing_is_done_once(tmp_path: Path) -> None:
    topic = small_topic(tmp_path / "bucket", 6)
    done = run_script(KILLED_EXECUTORS, topic.store, str(tmp_path))
    assert done.returncode == 0, done.stdout[-4000:]
    assert (tmp_path / "reader-killed").exists()
    assert (tmp_path / "archiver-killed").exists()
    read = ds.dataset(tmp_path / "read", format="parquet").to_table()
    rows = topic.reference()
    assert sorted(zip(read["offset"].to_pylist(), read["value"].to_pylist(), strict=True)) == [
        (row["offset"], row["value"]) for row in rows
    ]
    assert archived(tmp_path / "lake" / "t") == expected(topic)


# --- drivers --------------------------------------------------------------------------------------------------------

STREAM = """
import sys
from tests.spark.sessions import session

store, scratch = sys.argv[1], sys.argv[2]
query = (
    session("local[2]").readStream.format("firn").option("store", store).option("subscribe", "t")
    .option("maxRecordsPerTrigger", "100").load()
    .writeStream.format("parquet").option("checkpointLocation", scratch + "/checkpoint").option("path", scratch + "/sink")
    .trigger(availableNow=True).start()
)
sys.exit(0 if query.awaitTermination(200) else 1)
"""


def files_written(folder: Path) -> int:
    """By the stream so far: for each micro-batch its offsets, what it wrote, the sink's word for it, and its commit."""
    places = ("checkpoint/offsets/[0-9]*", "sink/*.parquet", "sink/_spark_metadata/[0-9]*", "checkpoint/commits/[0-9]*")
    return sum(len(list(folder.glob(place))) for place in places)


def kill_after(files: int, store: str, folder: Path) -> None:
    """Run the stream until it has written that many files, then kill its driver, tasks and all."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STREAM, store, str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + DEADLINE_S
    try:
        while files_written(folder) < files:
            assert process.poll() is None, f"the stream ended before it had written {files} files"
            assert time.monotonic() < deadline, "the stream makes no progress"
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_whose_driver_is_killed_at_any_point_writes_everything_once(tmp_path: Path, seed: int) -> None:
    topic = small_topic(tmp_path / "bucket", 3)
    kill_after(random.Random(seed).randint(5, 22), topic.store, tmp_path)
    done = run_script(STREAM, topic.store, str(tmp_path))
    assert done.returncode == 0, done.stdout[-4000:]
    rows = ds.dataset(files_that_count(tmp_path / "sink"), format="parquet").to_table(["offset", "value"]).to_pylist()
    assert sorted((row["offset"], row["value"]) for row in rows) == [
        (row["offset"], row["value"]) for row in topic.reference()
    ]


# --- objects --------------------------------------------------------------------------------------------------------


async def two_partitions(path: Path) -> Topic:
    """The first partition has more than the pipes between the processes of a task hold."""
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic("t", 2)
    rng = random.Random(5)
    for partition, batches in ((0, 24), (1, 2)):
        made = [
            build_batch([(NOW_MS, b"k", rng.randbytes(1 << 20), ())], base_offset=Offset(offset))
            for offset in range(batches)
        ]
        await bucket.add_segment(topic_id, partition, made, chunk_bytes=1 << 20)
    return Topic(path, "t", topic_id, 2)


@pytest.mark.parametrize("harm", ["flipped", "deleted"])
def test_an_object_that_goes_bad_under_a_running_job_is_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path, harm: str
) -> None:
    topic = asyncio.run(two_partitions(tmp_path / "bucket"))
    [victim] = (topic.path / "data").glob(f"*/{topic.topic_id}/1/*.seg")
    path, marker = str(victim), str(tmp_path / "harmed")

    def harm_at_first_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not os.path.exists(marker):
                with open(path, "r+b") as file:
                    file.seek(600_000)
                    byte = file.read(1)
                    file.seek(600_000)
                    file.write(bytes([byte[0] ^ 1]))
                if harm == "deleted":
                    os.unlink(path)
                open(marker, "xb").close()
            yield batch

    frame = spark.read.format("firn").option("store", topic.store).option("subscribe", "t").load()
    job = frame.coalesce(1).mapInArrow(harm_at_first_batch, frame.schema)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        with pytest.raises(PySparkException, match=victim.name):
            job.write.format("noop").mode("overwrite").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Path(marker).exists()


def test_jobs_run_as_tasks_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    topic = small_topic(tmp_path / "bucket", 4)
    found: list[Any] = []
    runner = SparkRunner(spark)
    target = (tmp_path / "lake").as_uri()
    summary = archive_parquet(
        topic.store, "t", target, runner, part_bytes=100_000, progress=lambda *at: found.append(at)
    )
    assert (summary.records, summary.parts) == (800, len(found))
    assert len(found) > 1
    assert archived(tmp_path / "lake" / "t") == expected(topic)


def test_results_of_spark_tasks_come_while_others_are_still_at_work(spark: SparkSession, tmp_path: Path) -> None:
    marker = str(tmp_path / "first-result-is-here")
    deadline_s = DEADLINE_S

    def part(name: str) -> str:
        deadline = time.monotonic() + deadline_s
        while name == "late" and not os.path.exists(marker):
            assert time.monotonic() < deadline, "no result came while a task was at work"
            time.sleep(0.01)
        return name

    results = SparkRunner(spark).run(part, ["late", "early"])
    assert next(results) == "early"
    Path(marker).touch()
    assert list(results) == ["late"]
