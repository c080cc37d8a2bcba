"""How fast Spark reads a topic's history: from Firn's bucket, against three limits, and against Spark's own Kafka source.

    python -m loadtests.spark_read [--record-bytes 100,1000] [--mib 512] [--warm-up 8] [--rounds 5] [--no-kafka]

In one run and in turns, with Spark on the machine's own cores (``local[2]``) and everything warmed up:

- ``firn``: ``format("firn")`` from a directory store, all columns of Spark's Kafka source;
- ``prebuilt``: a Python data source that yields one decoded record batch until there were as many records: what Spark takes
  at most;
- ``kernel``: decoding the same chunks to the same columns in one process per core, no Spark;
- ``kafka``: Spark's own source reading the same records from Apache Kafka, which runs on the same cores.

Each reads into Spark's ``noop`` sink. Rates and CPU times are medians of the rounds after ``--warm-up`` ones, in which Java
compiles its part: the first round takes ten times as long as the twentieth. CPU time is that of all processes that take part,
Kafka's broker too, and means something on a machine that others use. ``task_memory_mib`` is of a fresh process that reads all
splits, at its most: what is its own, and with the pages of libraries, which the tasks of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from app.records.batch import patch_batch
from app.records.builder import build_batch
from app.units import LeaderEpoch, Offset
from loadtests import kafka_peer
from loadtests.processes import family_cpu_seconds_and_ended
from pyspark_firn import count
from pyspark_firn.batch import plan
from pyspark_firn.columns import KAFKA_COLUMNS, struct_type
from pyspark_firn.memory import keep_freed_memory
from pyspark_firn.options import parse_read_options
from pyspark_firn.tasks import read_split
from tests.support.buckets import BucketBuilder

CORES = 2
TOPIC = "history"
BATCH_BYTES = 16 * 1024
SEGMENT_BYTES = 128 << 20
NOW_MS = 1_700_000_000_000
ROOT = Path(__file__).parent.parent
CONNECTOR = ROOT / ".cache" / "spark-kafka"


def records_of(record_bytes: int, seed: int = 0) -> list[tuple[int, bytes, bytes, tuple[()]]]:
    """The records of one batch."""
    rng = random.Random(record_bytes + seed)
    count = max(1, BATCH_BYTES // record_bytes)
    return [(NOW_MS + n, b"key-%06d" % n, rng.randbytes(record_bytes - 10), ()) for n in range(count)]


async def build_bucket(path: Path, record_bytes: int, total_bytes: int, *, distinct: bool = False) -> int:
    """A topic of one partition; answers its number of records. ``distinct``: no batch is like another."""
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic(TOPIC)
    template = build_batch(records_of(record_bytes))
    count = len(records_of(record_bytes))
    offset = 0
    while offset * len(template) // count < total_bytes:
        batches = []
        for _ in range(SEGMENT_BYTES // len(template)):
            batch = bytearray(build_batch(records_of(record_bytes, offset)) if distinct else template)
            patch_batch(batch, 0, Offset(offset), LeaderEpoch(0))
            batches.append(bytes(batch))
            offset += count
        await bucket.add_segment(topic_id, 0, batches)
    return offset


class PrebuiltSource(DataSource):
    """Yields one record batch until there were as many records as the topic has."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> StructType:
        return struct_type(KAFKA_COLUMNS)

    def reader(self, schema: object) -> DataSourceReader:
        return PrebuiltReader(self.options["file"], int(self.options["records"]), int(self.options["splits"]))


class PrebuiltSplit(InputPartition):
    """So many records."""

    def __init__(self, records: int) -> None:
        self.records = records


class PrebuiltReader(DataSourceReader):
    def __init__(self, file: str, records: int, splits: int) -> None:
        self._file = file
        self._edges = [records * number // splits for number in range(splits + 1)]

    def partitions(self) -> list[InputPartition]:
        return [PrebuiltSplit(end - start) for start, end in pairwise(self._edges)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()  # as Firn's tasks do
        batch = prebuilt_batch(self._file)
        for _ in range(partition.records // batch.num_rows):
            yield batch
        if left := partition.records % batch.num_rows:
            yield batch.slice(0, left)


def write_prebuilt(file: Path, store: str) -> dict[str, str]:
    """Decode the first record batch of the topic into ``file``; answers the options of ``PrebuiltSource``."""
    options = read_options(store)
    splits = plan(options)
    batch = next(read_split(options, options.columns, splits[0]))
    with pa.OSFile(str(file), "wb") as target, pa.ipc.new_file(target, batch.schema) as writer:
        writer.write_batch(batch)
    return {"file": str(file), "records": str(count(store, TOPIC)), "splits": str(len(splits))}


def prebuilt_batch(file: str) -> pa.RecordBatch:
    with pa.OSFile(file) as source:
        return pa.ipc.open_file(source).get_batch(0)


def read_options(store: str) -> Any:
    return parse_read_options({"store": store, "subscribe": TOPIC}, streaming=False)


def decode_splits(store: str, turn: int) -> tuple[int, float]:
    """Every second split, as one of two processes: (records, seconds)."""
    options = read_options(store)
    splits = plan(options)[turn::CORES]
    started = time.perf_counter()
    records = sum(batch.num_rows for split in splits for batch in read_split(options, options.columns, split))
    return records, time.perf_counter() - started


def kernel_rate(executor: ProcessPoolExecutor, store: str) -> float:
    done = list(executor.map(decode_splits, [store] * CORES, range(CORES)))
    return sum(records for records, _ in done) / max(seconds for _, seconds in done)


def task_memory_mib(store: str) -> dict[str, int]:
    """Of this process, after all splits."""
    import pyspark.worker  # noqa: F401 - what a task of Spark's has loaded before

    options = read_options(store)
    own = 0
    for split in plan(options):
        for _ in read_split(options, options.columns, split):
            own = max(own, _status_mib("RssAnon"))
    return {"own": own, "with_libraries": _status_mib("VmHWM")}


def _status_mib(name: str) -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) >> 10


def spark_session(connector: bool) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
    )
    if connector:
        builder = builder.config("spark.jars", ",".join(str(jar) for jar in sorted(CONNECTOR.glob("*.jar"))))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def fetch_connector() -> bool:
    """Bring the connector's jars and compile what stands in for Spark's token provider; whether all is there."""
    provider = CONNECTOR / "unsecured.jar"
    if not provider.exists() and shutil.which("mvn") and shutil.which("javac"):
        here = Path(__file__).parent
        command = ["mvn", "-q", "-B", "-f", str(here / "spark-kafka-pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={CONNECTOR}"], check=True)
        with tempfile.TemporaryDirectory() as scratch:
            jars = str(Path(pyspark.__file__).parent / "jars" / "*")
            sources = [str(path) for path in sorted((here / "spark-kafka-unsecured").glob("*.java"))]
            subprocess.run(["javac", "-cp", jars, "-d", scratch, *sources], check=True)
            with zipfile.ZipFile(provider, "w") as archive:
                for path in sorted(Path(scratch).rglob("*.class")):
                    archive.write(path, path.relative_to(scratch))
    return provider.exists()


def fill_kafka(bootstrap: str, record_bytes: int, records: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    # The records are of a day long ago, which Kafka's defaults would have deleted before they are read.
    admin.create_topics([NewTopic(TOPIC, 1, 1, config={"retention.ms": "-1"})])[TOPIC].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 18,
        }
    )
    batch = records_of(record_bytes)
    for number in range(records):
        timestamp, key, value, _ = batch[number % len(batch)]
        while True:
            try:
                producer.produce(TOPIC, value, key, timestamp=timestamp)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def check_same(spark: SparkSession, records: int, record_bytes: int, sources: Mapping[str, Mapping[str, str]]) -> None:
    """That every source gives all of the records: a source that reads nothing is the fastest of all."""
    for kind, options in sources.items():
        frame = spark.read.format(kind).options(**options).load().selectExpr("count(1)", "sum(length(value))")
        count, value_bytes = frame.collect()[0]
        assert (count, value_bytes) == (records, records * (record_bytes - 10)), (
            f"{kind}: {count} records, {value_bytes} bytes"
        )


def rate_of(records: int, read: Callable[[], None]) -> float:
    started = time.perf_counter()
    read()
    return records / (time.perf_counter() - started)


def measure(record_bytes: int, total_bytes: int, warm_up: int, rounds: int, *, with_kafka: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firn-spark-")))
        records = asyncio.run(build_bucket(base / "bucket", record_bytes, total_bytes))
        store = (base / "bucket").as_uri()
        executor = stack.enter_context(ProcessPoolExecutor(CORES))
        bootstrap = ""
        if with_kafka:
            bootstrap = stack.enter_context(kafka_peer.kafka_running(base / "kafka")).bootstrap
            fill_kafka(bootstrap, record_bytes, records)
        spark = spark_session(with_kafka)
        stack.callback(spark.stop)
        spark.dataSource.register(PrebuiltSource)
        prebuilt = write_prebuilt(base / "prebuilt.arrow", store)
        checked = {"firn": {"store": store, "subscribe": TOPIC}, "prebuilt": prebuilt}

        def into_nothing(kind: str, **options: str) -> Callable[[], None]:
            frame = spark.read.format(kind).options(**options).load()
            return lambda: frame.write.format("noop").mode("overwrite").save()

        reads: dict[str, Callable[[], float]] = {
            "firn": lambda: rate_of(records, into_nothing("firn", store=store, subscribe=TOPIC)),
            "prebuilt": lambda: rate_of(records, into_nothing("prebuilt", **prebuilt)),
            "kernel": lambda: kernel_rate(executor, store),
        }
        if with_kafka:
            kafka_options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "minPartitions": str(CORES)}
            reads["kafka"] = lambda: rate_of(records, into_nothing("kafka", **kafka_options))
            checked["kafka"] = kafka_options
        check_same(spark, records, record_bytes, checked)
        rates: dict[str, list[float]] = {name: [] for name in reads}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in reads}
        for turn in range(warm_up + rounds):
            for name, read in reads.items():
                cpu_before = family_cpu_seconds_and_ended(os.getpid())
                rate = read()
                if turn >= warm_up:
                    rates[name].append(rate)
                    cpu_seconds[name].append(family_cpu_seconds_and_ended(os.getpid()) - cpu_before)
        medians = {name: statistics.median(found) for name, found in rates.items()}
        cpu = {name: statistics.median(found) for name, found in cpu_seconds.items()}
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            memory = fresh.submit(task_memory_mib, store).result()
    limit = min(medians["prebuilt"], medians["kernel"])
    result: dict[str, Any] = {
        "record_bytes": record_bytes,
        "records": records,
        "million_records_per_s": {name: round(rate / 1e6, 3) for name, rate in medians.items()},
        "cpu_s_per_million_records": {name: round(seconds / records * 1e6, 3) for name, seconds in cpu.items()},
        "firn_of_lower_limit": round(medians["firn"] / limit, 2),
        "task_memory_mib": memory,
    }
    if "kafka" in medians:
        result["firn_times_kafka"] = round(medians["firn"] / medians["kafka"], 2)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record-bytes", default="100,1000")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-kafka", action="store_true")
    arguments = parser.parse_args()
    kafka = not arguments.no_kafka and fetch_connector()
    for size in arguments.record_bytes.split(","):
        found = measure(int(size), arguments.mib << 20, arguments.warm_up, arguments.rounds, with_kafka=kafka)
        print(json.dumps(found), flush=True)
