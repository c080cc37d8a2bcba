"""Executors and Python workers that are killed inside the tail's part of a split, and their broker with them: all of it, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from app.client.admin import AdminClient
from app.client.cluster import EARLIEST_LOCAL, LATEST, ClusterClient
from app.client.consumer import Consumer
from app.client.producer import Producer
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.machine.runtime import SystemClock
from pyspark_firn.batch import plan
from pyspark_firn.options import parse_read_options
from pyspark_firn.splits import TailSplit
from pyspark_firn.streaming import decode_position
from tests.faults.served import SMALL_SEGMENTS, Served, serving
from tests.spark.programs import files_that_count
from tests.spark.written_topics import asked
from tests.support.ports import free_port
from tests.support.waiting import block_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

DEADLINE_S = 240.0
PARTITIONS = [TopicPartition("t", PartitionIndex(index)) for index in (0, 1)]
RECORDS = 1500
"""Of about 1 KB in each partition, when a reader starts: a segment, which is in the store, and a tail of 500."""
PLACE = 1200
"""In the tail."""
DEATHS = [("executor", 0, PLACE), ("worker", 1, PLACE), ("executor", 0, 2 * RECORDS + 100)]
"""Of what, and by which record: its partition and offset. A stream meets the last when it has caught up and follows."""

DYING = """
import json, os, signal, sys, time
from pathlib import Path
import pyspark_firn.reading
from pyspark_firn.options import parse_read_options
from pyspark_firn.source import FirnDataSource, FirnReader
from pyspark_firn.splits import TailSplit
from pyspark_firn.streaming import FirnStreamReader
from tests.spark.sessions import session

store, tail, scratch = sys.argv[1], sys.argv[2], Path(sys.argv[3])
deaths, deadline_s = json.loads(sys.argv[4]), float(sys.argv[5])
os.environ["PYTHONPATH"] = os.getcwd()

def die_once(number):
    "When it is told to, and never again."
    try:
        os.close(os.open(scratch / f"reached {number}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    deadline = time.monotonic() + deadline_s
    while not (scratch / f"die {number}").exists():
        assert time.monotonic() < deadline, "nobody let it die"
        time.sleep(0.01)
    if deaths[number][0] == "executor":
        # The task's Python was forked by a daemon, whose parent is the executor.
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

class Dying:
    "Between two batches of a tail, with fetches under way."

    def read(self, split):
        pyspark_firn.reading.TAIL_FETCH_BYTES = 100_000
        for batch in super().read(split):
            yield batch
            first, last = (batch.column("offset")[at].as_py() for at in (0, -1))
            for number, (_, partition, offset) in enumerate(deaths):
                if isinstance(split, TailSplit) and split.partition == partition and first <= offset <= last:
                    die_once(number)

class DyingReader(Dying, FirnReader):
    pass

class DyingStreamReader(Dying, FirnStreamReader):
    pass

class DyingSource(FirnDataSource):
    @classmethod
    def name(cls):
        return "dying"

    def reader(self, schema):
        return DyingReader(parse_read_options(self.options, streaming=False), schema)

    def streamReader(self, schema):
        return DyingStreamReader(self.options, schema)

spark = session("local-cluster[2,1,1024]")
spark.dataSource.register(DyingSource)

def load(reader):
    return reader.format("dying").option("store", store).option("subscribe", "t").option("tail", tail).load()
"""

BATCH = f"""{DYING}
load(spark.read).write.parquet(str(scratch / "sink"))
spark.stop()
"""

STREAM = f"""{DYING}
query = (
    load(spark.readStream).writeStream.format("parquet")
    .option("checkpointLocation", str(scratch / "checkpoint")).option("path", str(scratch / "sink"))
    .trigger(processingTime="100 milliseconds").start()
)
while not query.awaitTermination(0.1):
    if (scratch / "stop").exists():
        query.stop()
spark.stop()
"""

Row = tuple[int, int, bytes | None]
"""Partition, offset, value."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    """With a topic of which Firn's reader takes a part from the store and a part from its leader."""
    settings = {"remote.log.manager.task.interval.ms": 50}
    # Its address is the same after each start: readers are told it once.
    with serving(tmp_path / "broker", "--listen", f"127.0.0.1:{free_port()}", settings=settings) as served:
        configs = {**SMALL_SEGMENTS, "firn.tier.max.lag.ms": "600000"}
        asked(
            served,
            lambda cluster: AdminClient(cluster).create_topic("t", partitions_count=len(PARTITIONS), configs=configs),
        )
        produce(served, PARTITIONS, 0, RECORDS)

        def is_joined() -> bool:
            given = {"store": served.store, "subscribe": "t", "tail": served.bootstrap}
            splits = plan(parse_read_options(given, streaming=False))
            tails = [split for split in splits if isinstance(split, TailSplit)]
            return len(tails) == len(PARTITIONS) and all(0 < split.offset_start < PLACE for split in tails)

        block_until(is_joined, "a segment of each partition is in the store", DEADLINE_S)
        yield served


def produce(broker: Served, partitions: Collection[TopicPartition], start: int, end: int) -> None:
    async def send(cluster: ClusterClient) -> None:
        async with Producer(cluster, SystemClock(), batch_bytes=16_000) as producer:
            for number in range(start, end):
                for partition in partitions:
                    value = b"%d of %d" % (number, partition.partition)
                    await producer.send("t", value.ljust(1000), partition=partition.partition)

    asked(broker, send)


def consumed(broker: Served) -> list[Row]:
    """All that a client is given now."""

    async def consume(cluster: ClusterClient) -> list[Row]:
        ends = await cluster.list_offsets(dict.fromkeys(PARTITIONS, LATEST))
        found: list[Row] = []
        async with Consumer(cluster) as consumer:
            consumer.assign(dict.fromkeys(PARTITIONS, Offset(0)))
            while any(consumer.position(name) < end.offset for name, end in ends.items()):
                for batch in await consumer.poll(10_000):
                    index = int(batch.partition.partition)
                    found += [(index, int(record.offset), record.value) for record in batch.records()]
        return sorted(found)

    return asked(broker, consume)


def rows_in(files: Path | list[str]) -> list[Row]:
    rows = ds.dataset(files, format="parquet").to_table(["partition", "offset", "value"])
    return sorted(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))


@contextmanager
def running(script: str, broker: Served, scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Such a script, which is gone with all that it has started when the block is left."""
    arguments = (broker.store, broker.bootstrap, str(scratch), json.dumps(DEATHS), str(DEADLINE_S))
    with (scratch / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script, *arguments],
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_death(number: int, process: subprocess.Popen[bytes], scratch: Path) -> None:
    def has_come() -> bool:
        assert process.poll() is None, (scratch / "said").read_text()
        return (scratch / f"reached {number}").exists()

    block_until(has_come, f"a task is where death {number} waits for it", DEADLINE_S)


def kill_both_while_the_broker_is_away(broker: Served, process: subprocess.Popen[bytes], scratch: Path) -> None:
    """One executor and the other's worker. Before that, what they were reading leaves the broker's disk, and more comes behind it;
    whoever reads it again meets a broker that is just starting."""
    for number in (0, 1):
        wait_for_death(number, process, scratch)
    produce(broker, PARTITIONS, RECORDS, 2 * RECORDS)

    def is_cold() -> bool:
        found = asked(broker, lambda cluster: cluster.list_offsets(dict.fromkeys(PARTITIONS, EARLIEST_LOCAL)))
        return all(one.offset >= RECORDS for one in found.values())

    block_until(is_cold, "the tail is in the store alone", DEADLINE_S)
    broker.kill()
    for number in (0, 1):
        (scratch / f"die {number}").touch()
    broker.start()


def test_a_tail_over_which_an_executor_and_a_worker_die_is_read_once_as_it_was_planned(
    broker: Served, tmp_path: Path
) -> None:
    planned = consumed(broker)
    assert len(planned) == 2 * RECORDS
    with running(BATCH, broker, tmp_path) as process:
        kill_both_while_the_broker_is_away(broker, process, tmp_path)
        assert process.wait(DEADLINE_S) == 0, (tmp_path / "said").read_text()
    assert rows_in(tmp_path / "sink") == planned


def test_a_stream_that_follows_a_tail_over_which_executors_die_writes_everything_once(
    broker: Served, tmp_path: Path
) -> None:
    with running(STREAM, broker, tmp_path) as process:

        def check_all_is_there() -> None:
            wanted = consumed(broker)
            ends = {partition: offset + 1 for partition, offset, _ in wanted}

            def has_caught_up() -> bool:
                assert process.poll() is None, (tmp_path / "said").read_text()
                return position_in(tmp_path / "checkpoint") == ends

            block_until(has_caught_up, "the stream has caught up", DEADLINE_S)
            assert rows_in(files_that_count(tmp_path / "sink")) == wanted

        kill_both_while_the_broker_is_away(broker, process, tmp_path)
        check_all_is_there()
        produce(broker, PARTITIONS[:1], 2 * RECORDS, 2 * RECORDS + 200)
        wait_for_death(2, process, tmp_path)
        produce(broker, PARTITIONS, 2 * RECORDS + 200, 2 * RECORDS + 300)
        (tmp_path / "die 2").touch()
        check_all_is_there()
        (tmp_path / "stop").touch()
        assert process.wait(DEADLINE_S) == 0, (tmp_path / "said").read_text()


def position_in(checkpoint: Path) -> Mapping[int, int]:
    """The next offset of each partition behind the last batch that is done."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not done:
        return {}
    stored = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1]
    return decode_position(json.loads(stored))["t"].offsets
