"""Jobs and streams that are killed with SIGKILL, at every place that matters: repeated, they end as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.client.producer import Producer
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.machine.runtime import SystemClock
from app.records.builder import build_batch
from pyspark_firn.jobs.iceberg import local_catalog, opened_table
from pyspark_firn.jobs.inspection import inspect
from pyspark_firn.jobs.running import ProcessRunner
from tests.spark.archives import archived, expected
from tests.spark.conftest import Topic, read
from tests.spark.conftest import topic as topic
from tests.spark.open_transactions import abort_what_is_open
from tests.spark.programs import run_script
from tests.spark.reading_back import produced
from tests.spark.tiered import http_server, tiered
from tests.support.broker import RunningBroker, running_broker
from tests.support.buckets import BucketBuilder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

DEADLINE_S = 60
KILLS_MAX = 100

# --- jobs -----------------------------------------------------------------------------------------------------------

DYING = """
import functools, json, os, signal, sys
from app.cli import main
from app.client.producer import Producer
from app.objectstore.directory import DirectoryStore, DirectoryUpload
import pyspark_firn.jobs.archive, pyspark_firn.jobs.preloaded
import pyspark_firn.jobs.audit_report as audit_report
import pyspark_firn.jobs.iceberg as iceberg
import pyspark_firn.jobs.inspection as inspection
from pyspark_firn.jobs.compact import LeaderManifest
from pyspark_firn.jobs.targets import HeldFile

left = 0

def dies(owner, name):
    "It dies instead of doing it, when enough was done."
    whole = getattr(owner, name)

    @functools.wraps(whole)
    def step(*arguments, **named):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return whole(*arguments, **named)

    setattr(owner, name, step)

for owner, names in {
    DirectoryStore: ("put_if_absent", "begin_upload"),
    DirectoryUpload: ("put_part", "complete"),
    LeaderManifest: ("_ask",),
    HeldFile: ("__init__", "publish"),
    inspection: ("_inspect",),
    audit_report: ("html_page",),
    iceberg: ("made_table", "add_files"),
    Producer: ("send",),
}.items():
    for name in names:
        dies(owner, name)
for line in sys.stdin:
    left, arguments = json.loads(line)
    child = os.fork()
    if not child:
        said = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.exit(main(arguments))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

KilledAfter = Callable[..., bool]
"""Runs a command that is killed after some steps; answers whether it came to its end before that."""


@pytest.fixture(scope="module")
def killed_after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledAfter]:
    """Each command is a process of its own, forked from one that has loaded what it needs and has done nothing yet."""
    said = tmp_path_factory.mktemp("jobs") / "said"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", DYING, str(said)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(steps: int, *arguments: str) -> bool:
        print(json.dumps([steps, arguments]), file=process.stdin, flush=True)
        ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
        assert ready, f"no end after {DEADLINE_S} s: {said.read_text()}"
        code = int(process.stdout.readline())
        assert code in (0, -signal.SIGKILL), said.read_text()
        return code == 0

    try:
        yield run
    finally:
        # Its group, and with it a command that is at work still.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_an_archive_that_is_killed_again_and_again_holds_every_record_once(
    topic: Topic, tmp_path: Path, killed_after: KilledAfter
) -> None:
    lake = tmp_path / "lake"
    arguments = ("job", "archive", "t", "--store", topic.store, "--to", lake.as_uri(), "-w", "1")
    # Each start goes further than the one before, until one comes to the end.
    for steps in range(0, KILLS_MAX, 4):
        if killed_after(steps, *arguments):
            break
        assert not list(lake.glob("t/_firn/*.commit"))
    assert steps > 20
    assert archived(lake / "t") == expected(topic)
    assert not list(lake.rglob("*.tmp"))
    assert killed_after(KILLS_MAX, *arguments)
    assert archived(lake / "t") == expected(topic)


def test_an_iceberg_table_that_is_killed_again_and_again_holds_every_record_once(
    topic: Topic, tmp_path: Path, killed_after: KilledAfter
) -> None:
    house = tmp_path / "house"
    arguments = (
        "job",
        "archive",
        "t",
        "--store",
        topic.store,
        "--iceberg",
        "lake.t",
        "--warehouse",
        str(house),
        "-w",
        "1",
    )
    for steps in range(0, KILLS_MAX, 11):
        if killed_after(steps, *arguments):
            break
    assert steps > 20
    assert killed_after(KILLS_MAX, *arguments)
    table = opened_table("lake.t", local_catalog(house))
    assert table is not None
    rows = table.scan().to_arrow()
    assert sorted(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True)) == [
        (offset, value) for offset, value, _ in expected(topic)
    ]
    assert not list(house.rglob("*.tmp"))


@pytest.mark.parametrize("job", ["verify", "audit"])
def test_a_proof_that_is_killed_is_made_by_the_next(
    topic: Topic, tmp_path: Path, killed_after: KilledAfter, job: str
) -> None:
    report = ["--to", str(tmp_path / "audit")] if job == "audit" else []
    arguments = ["job", job, "--store", topic.store, "-w", "1", *report]
    steps = 0
    while not killed_after(steps, *arguments):
        steps += 1
        assert steps < KILLS_MAX
    assert steps >= 3
    if report:
        assert pq.read_table(tmp_path / "audit" / "segments.parquet").num_rows == 3
        assert "✓ Sound" in (tmp_path / "audit" / "report.html").read_text()


async def produce(broker: RunningBroker, start: int, end: int) -> None:
    async with (
        ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster,
        Producer(cluster, SystemClock(), batch_bytes=8000) as producer,
    ):
        for number in range(start, end):
            await producer.send("t", b"%d " % number * 100, key=b"k%d" % (number % 37))
        await producer.flush()


async def consumed(broker: RunningBroker, topic: str, *, committed: bool = False) -> list[tuple[int, bytes | None]]:
    partition = TopicPartition(topic, PartitionIndex(0))
    found: list[tuple[int, bytes | None]] = []
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        end = (await cluster.list_offsets({partition: -1}, read_committed=committed))[partition].offset
        async with Consumer(cluster, read_committed=committed) as consumer:
            consumer.assign({partition: Offset(0)})
            while consumer.position(partition) < end:
                for batch in await consumer.poll(10_000):
                    found += [(record.offset, record.value) for record in batch.records()]
    return found


async def only_what_is_readable_is_left(path: Path, store: str) -> None:
    """Every object of the store is in a manifest, and every upload is gone."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await asyncio.to_thread(inspect, store, ProcessRunner(1))
            assert found.is_sound, found.findings
            if not found.findings and len(list((path / "data").rglob("*.seg"))) == len(found.facts):
                return
            await asyncio.sleep(0.1)


TOPIC = {
    "segment_bytes": "1048576",
    "local_retention_ms": "0",
    "firn_tier_max_lag_ms": "600000",
    "firn_remote_delete_delay_ms": "0",
}
PROMPT = {"remote_log_manager_task_interval_ms": 50}


@pytest.mark.parametrize("by_key", [False, True])
async def test_a_compaction_that_is_killed_before_every_step_loses_nothing(
    tmp_path: Path, killed_after: KilledAfter, by_key: bool
) -> None:
    store = (tmp_path / "store").as_uri()
    async with running_broker(tmp_path, **PROMPT) as broker:
        await broker.create_topic("t", **TOPIC)
        await produce(broker, 0, 12_000)
        await tiered(broker, 8000)
        before = await consumed(broker, "t")
        topic_id = broker.log("t").topic_id
    topic = Topic(tmp_path / "store", "t", topic_id)
    history = await asyncio.to_thread(read, topic)
    newest = {row["key"]: row["value"] for row in history}
    arguments = ["job", "compact", "t", "--store", store, "--offline", "--target-mib", "3"]
    for steps in range(KILLS_MAX):
        ended = await asyncio.to_thread(killed_after, steps, *arguments, *(["--by-key"] if by_key else []))
        rows = await asyncio.to_thread(read, topic)
        if by_key:
            assert {row["key"]: row["value"] for row in rows} == newest
        else:
            assert rows == history
        if ended:
            break
    assert (
        steps >= 4
    )  # A seal and the three steps of a run of segments; how many runs there are depends on what is tiered.
    assert len(list((tmp_path / "store" / "data").rglob("*.seg"))) > 4
    async with running_broker(tmp_path, **PROMPT) as broker:
        await only_what_is_readable_is_left(tmp_path / "store", store)
        after = await consumed(broker, "t")
        assert after == before if not by_key else set(after) < set(before)


async def test_a_compaction_that_is_killed_beside_a_running_cluster_leaves_it_nothing_to_sweep(
    tmp_path: Path, killed_after: KilledAfter
) -> None:
    store = (tmp_path / "store").as_uri()
    async with running_broker(tmp_path, **PROMPT) as broker, http_server(broker.port) as address:
        await broker.create_topic("t", **TOPIC)
        await produce(broker, 0, 12_000)
        await tiered(broker, 8000)
        before = await consumed(broker, "t")
        arguments = ["job", "compact", "t", "--store", store, "--http", address, "--target-mib", "3", "-w", "1"]
        for steps in range(KILLS_MAX):
            ended = await asyncio.to_thread(killed_after, steps, *arguments)
            assert await consumed(broker, "t") == before
            if ended:
                break
        assert steps >= 4
        await only_what_is_readable_is_left(tmp_path / "store", store)


def two_partitions(path: Path) -> Topic:
    """No two values are alike."""

    async def make() -> Topic:
        bucket = await BucketBuilder.open(path)
        topic_id = await bucket.create_topic("t", 2)
        for partition in (0, 1):
            made = [
                build_batch(
                    [(1, None, b"%d of %d" % (n, partition), ()) for n in range(start, start + 50)],
                    base_offset=Offset(start),
                )
                for start in range(0, 300, 50)
            ]
            await bucket.add_segment(topic_id, partition, made)
        return Topic(path, "t", topic_id, 2)

    return asyncio.run(make())


async def test_a_replay_that_is_killed_in_the_middle_of_sending_produces_each_record_once(
    tmp_path: Path, killed_after: KilledAfter
) -> None:
    topic = await asyncio.to_thread(two_partitions, tmp_path / "bucket")
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 2)
        # Slow enough for what is sent to leave before the next kill.
        arguments = ["job", "replay", "t", "--store", topic.store, "--target", "again", "--bootstrap", broker.bootstrap]
        arguments += ["--rate", "800", "--state", str(tmp_path / "state.json")]
        kills = 0
        while not await asyncio.to_thread(killed_after, 170, *arguments):
            kills += 1
            assert kills < KILLS_MAX
        assert kills >= 3
        again = [await produced(broker.port, "again", index) for index in (0, 1)]
    for index in (0, 1):
        assert [record.value for record in again[index]] == [b"%d of %d" % (n, index) for n in range(300)]


# --- streams into topics --------------------------------------------------------------------------------------------

STREAM = """
import json, os, signal, sys
from pathlib import Path
import pyspark_firn.writing as writing
from pyspark_firn.source import FirnDataSource
from tests.spark.sessions import session

master, store, bootstrap, scratch, planned = sys.argv[1:]
deaths = [tuple(one) for one in json.loads(planned)]
os.environ["PYTHONPATH"] = os.getcwd()
driver = os.getpid()

def die(place, batch_id):
    "If that is planned, once."
    if (place, batch_id) not in deaths:
        return
    try:
        os.close(os.open(f"{scratch}/died {place} {batch_id}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if master.startswith("local["):
        os.killpg(driver, signal.SIGKILL)
    # A task's Python was forked by a daemon, whose parent is the executor.
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

class DyingProducer(writing.Producer):
    batch_id, sent = None, 0

    async def send(self, *arguments, **named):
        answer = await super().send(*arguments, **named)
        self.sent += 1
        if self.sent == 20:
            await self.flush()
            die("sending", self.batch_id)
        return answer

class DyingWriter(writing.FirnStreamWriter):
    async def write_attempt(self, batches, query_id, batch_id, attempt, *, slot=None):
        writing.Producer = type("OfThisBatch", (DyingProducer,), {"batch_id": batch_id})
        left = await super().write_attempt(batches, query_id, batch_id, attempt, slot=slot)
        if left.transaction is not None:
            die("sent", batch_id)
        return left

    async def write_intent(self, cluster, query_id, intent, writer):
        die("before the intent", intent.batch_id)
        end_transaction = writing.end_transaction

        async def end(cluster, transaction, *, commit):
            die("in the intent", intent.batch_id)
            await end_transaction(cluster, transaction, commit=commit)

        writing.end_transaction = end
        await super().write_intent(cluster, query_id, intent, writer)
        writing.end_transaction = end_transaction
        die("after the intent", intent.batch_id)

    @staticmethod
    async def finish(cluster, transaction, batch_id):
        await writing.FirnStreamWriter.finish(cluster, transaction, batch_id)
        die("between two ends", batch_id)

    async def commit_batch(self, messages, batch_id):
        await super().commit_batch(messages, batch_id)
        die("after the commit", batch_id)

class DyingSource(FirnDataSource):
    @classmethod
    def name(cls):
        return "dying"

    def streamWriter(self, schema, overwrite):
        return DyingWriter(writing.parse_write_options(self.options, schema))

spark = session(master)
spark.dataSource.register(DyingSource)
query = (
    spark.readStream.format("firn").option("store", store).option("subscribe", "t").option("splitBytes", "1m")
    .option("maxRecordsPerTrigger", "100").load().select("key", "value")
    .writeStream.format("dying").option("bootstrap", bootstrap).option("topic", "out").option("transactionTimeout", "300000")
    .option("checkpointLocation", scratch + "/checkpoint").trigger(availableNow=True).start()
)
sys.exit(0 if query.awaitTermination(240) else 1)
"""
BATCHES = 6
"""Of two tasks, hence of two transactions each: ``two_partitions`` at 100 records for each trigger."""
IN_TASKS = ("sending", "sent")
ON_DRIVER = ("before the intent", "in the intent", "after the intent", "between two ends", "after the commit")
Death = tuple[str, int]
"""At which place of which batch."""


def drawn_death(place: str) -> Death:
    """In any batch but the first: in the others there is an older intent, and ids are handed on."""
    return place, random.Random(place).randrange(1, BATCHES)


def has_happened(death: Death, scratch: Path) -> bool:
    return (scratch / f"died {death[0]} {death[1]}").exists()


async def everything_is_committed_once(broker: RunningBroker, topic: Topic) -> None:
    """Each value is there once for readers at read_committed."""
    wanted = Counter(row["value"] for row in await asyncio.to_thread(topic.reference))
    assert Counter(value for _, value in await consumed(broker, "out", committed=True)) == wanted


async def test_a_stream_writes_once_what_executors_died_over(tmp_path: Path) -> None:
    topic = await asyncio.to_thread(two_partitions, tmp_path / "bucket")
    deaths = [drawn_death(place) for place in IN_TASKS]
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("out")
        arguments = ("local-cluster[2,1,1024]", topic.store, broker.bootstrap, str(tmp_path), json.dumps(deaths))
        done = await asyncio.to_thread(run_script, STREAM, *arguments)
        assert done.returncode == 0, done.stdout[-4000:]
        assert all(has_happened(death, tmp_path) for death in deaths), deaths
        left_open = await abort_what_is_open(broker)
        await everything_is_committed_once(broker, topic)
        # Each of the dead was in the middle of a transaction, which nobody else may end.
        assert left_open == len(deaths)


@pytest.mark.parametrize("place", [*IN_TASKS, *ON_DRIVER])
async def test_a_stream_whose_driver_is_killed_writes_everything_once(tmp_path: Path, place: str) -> None:
    topic = await asyncio.to_thread(two_partitions, tmp_path / "bucket")
    death = drawn_death(place)
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("out")
        arguments = ("local[2]", topic.store, broker.bootstrap, str(tmp_path), json.dumps([death]))
        done = await asyncio.to_thread(run_script, STREAM, *arguments)
        assert done.returncode == -signal.SIGKILL, done.stdout[-4000:]
        assert has_happened(death, tmp_path), death
        done = await asyncio.to_thread(run_script, STREAM, *arguments)
        assert done.returncode == 0, done.stdout[-4000:]
        left_open = await abort_what_is_open(broker)
        await everything_is_committed_once(broker, topic)
        # What an intent named was committed by the next start; what had none was written by it again.
        had_intent = place in ("after the intent", "between two ends", "after the commit")
        assert (left_open > 0) is not had_intent
