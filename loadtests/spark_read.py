"""How fast Spark reads a topic's history: from Firn's bucket, against three limits, and against Spark's own Kafka source.

    python -m loadtests.spark_read [--record-bytes 100,1000] [--codec none] [--mib 1024] [--warm-up-queries 60]
        [--warm-up-s 15] [--rounds 5] [--no-kafka] [--conf NAME=VALUE ...] [--firn NAME=VALUE ...]

In one run and in turns, with Spark on the machine's own cores (``local[2]``) and everything warmed up:

- ``firn``: ``format("firn")`` from a directory store, all columns of Spark's Kafka source;
- ``prebuilt``: a Python data source that yields one decoded record batch until there were as many records: what Spark takes
  at most;
- ``kernel``: decoding the same chunks to the same columns in one process per core, no Spark;
- ``kafka``: Spark's own source reading the same records from Apache Kafka, which runs on the same cores;
- ``firn_by_default``: ``firn`` once more, without the one setting that docs/spark.md recommends and all others are run with:
  Unix sockets between Spark and its Python processes (Spark's Kafka source has none, so that it makes no difference to it).

Each reads into Spark's ``noop`` sink. Rates and CPU times are medians of the rounds after the warm-up, in which Java compiles
its part. What plans a query is the most of that, by count of queries and not of records: each system makes
``--warm-up-queries`` of a small part of the topic, in turns, and then reads all of it for ``--warm-up-s`` seconds. A
query is timed from its start to its end, with planning; ``one_record_s`` is what one takes that reads a single record, which
every query pays once, however long its history. CPU time is that of all processes that take part, Kafka's broker too, and
means something on a machine that others use. ``task_memory_mib`` is of a fresh process that reads all splits, at its most: what
is its own, and with the pages of libraries, which the tasks of a machine share. ``--conf`` gives Spark a setting, ``--firn`` its
reader an option. Values are random bytes; with a ``--codec``, which the producers compress with, they are JSON text of fields drawn
from a few, some three quarters of which a codec saves. ``--mib`` is before compression.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from app.core.units import LeaderEpoch, Offset
from app.records.batch import patch_batch
from app.records.builder import build_batch
from app.records.compression import CODEC_NAMES, Codec
from loadtests import kafka_peer
from loadtests.processes import family_cpu_seconds_and_ended
from pyspark_firn import count
from pyspark_firn.batch import plan
from pyspark_firn.columns import KAFKA_COLUMNS, struct_type
from pyspark_firn.memory import keep_freed_memory
from pyspark_firn.options import parse_read_options
from pyspark_firn.tasks import leave_out_of_collections, read_split
from tests.support.buckets import BucketBuilder

CORES = 2
TOPIC = "history"
BATCH_BYTES = 16 * 1024
LEVELS = ("INFO", "WARN", "ERROR")
SEGMENT_BYTES = 128 << 20
NOW_MS = 1_700_000_000_000
ROOT = Path(__file__).parent.parent
CONNECTOR = ROOT / ".cache" / "spark-kafka"
WARM_UP_PART = 16
"""A query that warms up reads so small a part of the topic."""
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"


def records_of(
    record_bytes: int, seed: int = 0, codec: Codec = Codec.NONE
) -> list[tuple[int, bytes, bytes, tuple[()]]]:
    """The records of one batch, such as there is something to save for ``codec``."""
    rng = random.Random(record_bytes + seed)
    count = max(1, BATCH_BYTES // record_bytes)
    names = [rng.randbytes(4).hex() for _ in range(64)]
    return [(NOW_MS + n, b"key-%06d" % n, value_of(rng, record_bytes - 10, codec, names), ()) for n in range(count)]


def value_of(rng: random.Random, value_bytes: int, codec: Codec, names: Sequence[str]) -> bytes:
    if codec is Codec.NONE:
        return rng.randbytes(value_bytes)
    text = "{"
    while len(text) < value_bytes:
        text += f'"{rng.choice(names)}": {rng.randrange(100_000)}, "level": "{rng.choice(LEVELS)}", '
    return text[:value_bytes].encode()


async def build_bucket(
    path: Path, record_bytes: int, total_bytes: int, codec: Codec = Codec.NONE, *, distinct: bool = False
) -> int:
    """A topic of one partition; answers its number of records. ``distinct``: no batch is like another."""
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic(TOPIC)
    records = records_of(record_bytes, 0, codec)
    template = build_batch(records, codec=codec)
    raw_bytes, count = len(build_batch(records)), len(records)
    offset = 0
    while offset * raw_bytes // count < total_bytes:
        batches = []
        for _ in range(SEGMENT_BYTES // len(template)):
            fresh = build_batch(records_of(record_bytes, offset, codec), codec=codec) if distinct else template
            batch = bytearray(fresh)
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
        keep_freed_memory()  # as Firn's tasks do, and so at the end
        batch = prebuilt_batch(self._file)
        for _ in range(partition.records // batch.num_rows):
            yield batch
        if left := partition.records % batch.num_rows:
            yield batch.slice(0, left)
        leave_out_of_collections()


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


def decode_splits(store: str, turn: int) -> int:
    """Every second split, as one of two processes: how many records it has."""
    options = read_options(store)
    splits = plan(options)[turn::CORES]
    return sum(batch.num_rows for split in splits for batch in read_split(options, options.columns, split))


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


def spark_session(connector: bool, settings: Mapping[str, str]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    if connector:
        builder = builder.config("spark.jars", ",".join(str(jar) for jar in sorted(CONNECTOR.glob("*.jar"))))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def fetch_connector() -> bool:
    """Bring the connector's jars and compile what stands in for Spark's token provider; whether all is there, and Kafka too."""
    try:
        kafka_peer.kafka_libs()
    except kafka_peer.PeerMissing:
        return False
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


def fill_kafka(bootstrap: str, record_bytes: int, records: int, codec: Codec) -> None:
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
            "compression.type": codec.name.lower(),
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 18,
        }
    )
    batch = records_of(record_bytes, 0, codec)
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


def beginning(kind: str, records: int) -> dict[str, str]:
    """The options by which a source reads no more than the first records of the topic."""
    if kind == "prebuilt":
        return {"records": str(records), "splits": str(CORES)}
    return {"endingOffsets": json.dumps({TOPIC: {"0": records}})}


@dataclass(frozen=True, slots=True)
class Effort:
    """How much each system reads. ``total_bytes`` is that of the topic; before the rounds that count come so many queries of a
    part of it, then ``warm_up_s`` of reading all."""

    total_bytes: int
    warm_up_queries: int
    warm_up_s: float
    rounds: int


@dataclass(slots=True)
class Compared:
    """One system's query."""

    read: Callable[[], object]
    spent_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def run(self, *, counts: bool) -> None:
        cpu_before, started = family_cpu_seconds_and_ended(os.getpid()), time.perf_counter()
        self.read()
        seconds = time.perf_counter() - started
        self.spent_s += seconds
        if counts:
            self.seconds.append(seconds)
            self.cpu_seconds.append(family_cpu_seconds_and_ended(os.getpid()) - cpu_before)


def in_turns(systems: Mapping[str, Compared], effort: Effort) -> None:
    """Warm every system up for as long, then let them read in turns."""
    while any(system.spent_s < effort.warm_up_s for system in systems.values()):
        for system in systems.values():
            if system.spent_s < effort.warm_up_s:
                system.run(counts=False)
    for _ in range(effort.rounds):
        for system in systems.values():
            system.run(counts=True)


def measure(
    record_bytes: int,
    codec: Codec,
    effort: Effort,
    settings: Mapping[str, str],
    options: Mapping[str, str],
    *,
    with_kafka: bool,
) -> dict[str, Any]:
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firn-spark-")))
        records = asyncio.run(build_bucket(base / "bucket", record_bytes, effort.total_bytes, codec))
        store = (base / "bucket").as_uri()
        executor = stack.enter_context(ProcessPoolExecutor(CORES))
        bootstrap = ""
        if with_kafka:
            bootstrap = stack.enter_context(kafka_peer.kafka_running(base / "kafka")).bootstrap
            fill_kafka(bootstrap, record_bytes, records, codec)
        spark = spark_session(with_kafka, {UNIX_SOCKETS: "true"} | dict(settings))
        stack.callback(spark.stop)
        spark.dataSource.register(PrebuiltSource)
        sources: dict[str, dict[str, str]] = {
            "firn": {"store": store, "subscribe": TOPIC, **options},
            "prebuilt": write_prebuilt(base / "prebuilt.arrow", store),
        }
        if with_kafka:
            sources["kafka"] = {
                "kafka.bootstrap.servers": bootstrap,
                "subscribe": TOPIC,
                "minPartitions": str(CORES),
            }
        check_same(spark, records, record_bytes, sources)

        def into_nothing(spark: SparkSession, kind: str, options: Mapping[str, str]) -> Compared:
            frame = spark.read.format(kind).options(**options).load()
            return Compared(lambda: frame.write.format("noop").mode("overwrite").save())

        for _ in range(effort.warm_up_queries):
            for kind, options in sources.items():
                into_nothing(spark, kind, options | beginning(kind, records // WARM_UP_PART)).read()
        systems = {kind: into_nothing(spark, kind, options) for kind, options in sources.items()}
        systems["kernel"] = Compared(lambda: list(executor.map(decode_splits, [store] * CORES, range(CORES))))
        in_turns(systems, effort)
        starts = {
            kind: into_nothing(spark, kind, sources[kind] | beginning(kind, 1))
            for kind in sources
            if kind != "prebuilt"
        }
        in_turns(starts, replace(effort, warm_up_s=0.0))
        # In the same Java process, which is warm, and would remember the setting.
        spark.stop()
        plain = spark_session(with_kafka, dict(settings) | {UNIX_SOCKETS: "false"})
        stack.callback(plain.stop)
        by_default = into_nothing(plain, "firn", sources["firn"])
        in_turns({"firn_by_default": by_default}, replace(effort, warm_up_s=effort.warm_up_s / 3))
        systems["firn_by_default"] = by_default
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            memory = fresh.submit(task_memory_mib, store).result()
    rates = {kind: records / statistics.median(system.seconds) for kind, system in systems.items()}
    result: dict[str, Any] = {
        "record_bytes": record_bytes,
        "codec": codec.name.lower(),
        "records": records,
        "million_records_per_s": {kind: round(rate / 1e6, 3) for kind, rate in rates.items()},
        "cpu_s_per_million_records": {
            kind: round(statistics.median(system.cpu_seconds) / records * 1e6, 3) for kind, system in systems.items()
        },
        "one_record_s": {kind: round(statistics.median(start.seconds), 3) for kind, start in starts.items()},
        "firn_of_lower_limit": round(rates["firn"] / min(rates["prebuilt"], rates["kernel"]), 2),
        "task_memory_mib": memory,
    }
    if "kafka" in rates:
        result["firn_times_kafka"] = round(rates["firn"] / rates["kafka"], 2)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record-bytes", default="100,1000")
    parser.add_argument("--codec", default="none", choices=CODEC_NAMES)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--warm-up-queries", type=int, default=60)
    parser.add_argument("--warm-up-s", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--firn", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    kafka = not arguments.no_kafka and fetch_connector()
    for size in arguments.record_bytes.split(","):
        effort = Effort(arguments.mib << 20, arguments.warm_up_queries, arguments.warm_up_s, arguments.rounds)
        settings, options = (dict(text.split("=", 1) for text in texts) for texts in (arguments.conf, arguments.firn))
        codec = CODEC_NAMES[arguments.codec]
        found = measure(int(size), codec, effort, settings, options, with_kafka=kafka)
        print(json.dumps(found), flush=True)
