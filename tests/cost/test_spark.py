"""The requests of Spark jobs: the model against the counters of a store that the reader really reads, and the bills."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the reader is Spark's")

from app.core.errors import ConfigError
from app.core.limits import GIB, MIB
from app.core.metrics import Registry
from app.core.units import Offset, TopicId
from app.cost import spark
from app.cost.bill import Bill, bills
from app.cost.prices import Prices, with_overrides
from app.cost.requests import replay_segment
from app.cost.spark import SparkReads, with_spark
from app.cost.workload import Workload
from app.objectstore.memory import MemoryStore
from app.objectstore.metered import MeteredStore
from app.records.builder import build_batch
from pyspark_firn import planning
from pyspark_firn.batch import plan
from pyspark_firn.columns import struct_type
from pyspark_firn.options import parse_read_options
from pyspark_firn.splits import StoredSplit
from pyspark_firn.streaming import FirnStreamReader
from pyspark_firn.tasks import read_split
from tests.support.buckets import BucketBuilder

PRICES = Prices()
PARTITIONS = 2
SEGMENTS = 5
"""Of each partition, which two tasks share: one ends within the third segment."""
BATCHES = 20
BATCH_BYTES = 500_000


class Counted:
    """A bucket in memory, which is opened in the place of every s3:// store."""

    def __init__(self, path: Path) -> None:
        self.registry = Registry()
        self.store = MeteredStore(MemoryStore(), self.registry)
        self.path = path
        self.rng = random.Random(4)

    async def open(self, *location: object, **options: object) -> MeteredStore:
        return self.store

    def fill(self) -> None:
        async def make() -> None:
            self.bucket = await BucketBuilder.open(self.path, store=self.store)
            self.topic_id = await self.bucket.create_topic("t", PARTITIONS)
            for partition in range(PARTITIONS):
                for number in range(SEGMENTS):
                    await self.add(partition, number)

        asyncio.run(make())

    async def add(self, partition: int, number: int) -> None:
        first = number * BATCHES
        made = [
            build_batch([(1, None, self.rng.randbytes(BATCH_BYTES), ())], base_offset=Offset(offset))
            for offset in range(first, first + BATCHES)
        ]
        self.raw_bytes = sum(map(len, made))
        self.batch_bytes = len(made[0])
        await self.bucket.add_segment(TopicId(self.topic_id), partition, made)

    def during(self, work: Callable[[], object]) -> tuple[Counter[str], int]:
        """Requests, and bytes that came down."""
        before, bytes_before = self._requests(), self._bytes()
        work()
        return self._requests() - before, self._bytes() - bytes_before

    def _requests(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for sample in self.registry.samples():
            if sample.name == "firn_store_requests_total":
                found[dict(sample.labels)["operation"]] += int(sample.value)
        return found

    def _bytes(self) -> int:
        return sum(
            int(sample.value)
            for sample in self.registry.samples()
            if sample.name == "firn_store_bytes_total" and dict(sample.labels)["direction"] == "down"
        )


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted(tmp_path)
    monkeypatch.setattr("pyspark_firn.session.open_store", found.open)
    found.fill()
    return found


CLUSTER = spark.load_log(3, snapshots=0)
"""Of the bucket of these tests: the seal, the cluster's record and the topic's."""
MANIFEST = spark.load_log(1 + spark.ENTRIES_PER_SEGMENT * SEGMENTS, snapshots=0)
"""The seal, and the entries of each segment."""


def test_a_batch_job_asks_for_what_the_model_says(counted: Counted) -> None:
    raw_bytes = counted.raw_bytes * PARTITIONS * SEGMENTS
    options = parse_read_options({"store": "s3://bucket", "subscribe": "t"}, streaming=False)
    splits = []
    asked, _ = counted.during(lambda: splits.extend(plan(options)))
    assert asked == Counter(_present(spark.plan_scan(CLUSTER, MANIFEST, PARTITIONS)))
    assert len(splits) == spark.splits_of(raw_bytes, PARTITIONS)

    asked, down = counted.during(lambda: _read(options, splits))
    chunks = replay_segment(counted.raw_bytes, counted.batch_bytes)["get_range"] - 1
    assert chunks == replay_segment(counted.raw_bytes)["get_range"] - 1, "batches fill the chunks"
    assert asked == Counter(spark.read_segments(raw_bytes, counted.raw_bytes, PARTITIONS))
    # The footers are the rest.
    assert raw_bytes <= down <= raw_bytes * 1.001


def test_a_range_that_cuts_segments_costs_their_footers(counted: Counted) -> None:
    start, end = ('{"t": {"0": 5, "1": 5}}', '{"t": {"0": 95, "1": 95}}')
    options = parse_read_options(
        {"store": "s3://bucket", "subscribe": "t", "startingOffsets": start, "endingOffsets": end}, streaming=False
    )
    asked, _ = counted.during(lambda: plan(options))
    assert asked == Counter(spark.plan_scan(CLUSTER, MANIFEST, PARTITIONS, cut=2 * PARTITIONS))


def test_a_stream_asks_for_what_the_model_says(counted: Counted) -> None:
    reader = FirnStreamReader({"store": "s3://bucket", "subscribe": "t"}, struct_type(("offset",)))
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)

    def idle() -> None:
        assert reader.latestOffset(start, limit) == start
        reader.reportLatestOffset()

    def busy() -> None:
        end = reader.latestOffset(start, limit)
        reader.reportLatestOffset()
        splits.extend(reader.partitions(start, end))

    try:
        asked, _ = counted.during(idle)
        assert asked == Counter(_present(spark.trigger(CLUSTER, PARTITIONS)))
        asyncio.run(counted.add(0, SEGMENTS))
        splits: list[object] = []
        asked, _ = counted.during(busy)
        assert asked == Counter(spark.trigger(CLUSTER, PARTITIONS, changed=1, entries=2))
        asked, _ = counted.during(lambda: [list(reader.read(split)) for split in splits])  # type: ignore[arg-type]
        assert asked == Counter(spark.read_segments(counted.raw_bytes, counted.raw_bytes, 1))
    finally:
        reader.stop()


def _read(options: object, splits: list[StoredSplit]) -> None:
    for split in splits:
        for _ in read_split(options, ("offset", "value"), split):  # type: ignore[arg-type]
            pass


def _present(asked: dict[str, float]) -> dict[str, float]:
    return {operation: count for operation, count in asked.items() if count}


@pytest.mark.parametrize("total", [1, 40 * MIB, 300 * MIB, 5 * GIB, 300 * GIB])
def test_jobs_have_as_many_tasks_as_the_reader_plans(total: int) -> None:
    assert spark.splits_of(total, 1) == max(1, -(-total // planning.split_bytes_for(total)))


WORKLOAD = Workload(write_mb_per_s=10, partitions=20, zones=3)


def lines(reads: SparkReads, prices: Prices = PRICES) -> dict[str, dict[str, float]]:
    found = with_spark(bills(WORKLOAD, prices), WORKLOAD, reads, prices)
    return {one.system: {line.what: line.dollars for line in one.lines} for one in found}


def test_without_jobs_the_bills_are_as_they_were() -> None:
    found = bills(WORKLOAD, PRICES)
    assert with_spark(found, WORKLOAD, SparkReads(), PRICES) == found


def test_reads_of_a_batch_job_are_paid_by_the_request_and_kafkas_by_the_replay() -> None:
    reads = SparkReads(read_gib=10_000, scans=30)
    found = lines(reads)
    asked = spark.operations(WORKLOAD, reads)
    gets = sum(asked[name] for name in ("get", "get_range", "get_tail"))
    assert 10_000 * 256 < gets < 10_000 * 256 * 1.05, "a chunk has 4 MiB"
    assert found["Firn"]["Spark: reads"] == pytest.approx(asked["list_objects"] / 1000 * 0.005 + gets / 1000 * 0.0004)
    tiered = next(one for one in bills(WORKLOAD, PRICES) if one.system == "Kafka, tiered")
    assert found["Kafka, tiered"]["Spark: reads"] == pytest.approx(10_000 * tiered.replayed_gib)
    assert found["Firn"]["Spark: reads"] < found["Kafka, tiered"]["Spark: reads"] / 10, "nothing crosses zones"


def test_a_stream_costs_its_triggers_times_the_partitions_that_it_looks_at() -> None:
    often, seldom, narrow = (
        spark.operations(WORKLOAD, reads)["list_objects"]
        for reads in (
            SparkReads(streams=1, trigger_s=1),
            SparkReads(streams=1, trigger_s=10),
            SparkReads(streams=1, trigger_s=1, partitions=1),
        )
    )
    assert often == pytest.approx(10 * seldom, rel=0.1)
    assert often == pytest.approx(730 * 3600 * 2 * (20 + 1), rel=0.05)
    assert narrow == pytest.approx(730 * 3600 * 2 * (1 + 1), rel=0.05)
    assert spark.operations(WORKLOAD, SparkReads(streams=2, trigger_s=1))["list_objects"] == pytest.approx(2 * often)


def test_workers_and_bytes_cost_what_their_prices_say_in_every_bill() -> None:
    dear = with_overrides(PRICES, {"spark_worker_hour": 2.0, "spark_gib": 0.02})
    found = lines(SparkReads(read_gib=100, scans=1, worker_hours=50), dear)
    assert {one["Spark: workers"] for one in found.values()} == {100.0}
    cheap = lines(SparkReads(read_gib=100, scans=1))
    assert found["Firn"]["Spark: reads"] - cheap["Firn"]["Spark: reads"] == pytest.approx(2)
    assert found["Kafka, tiered"]["Spark: reads"] == cheap["Kafka, tiered"]["Spark: reads"]
    assert "Spark: reads" not in lines(SparkReads(worker_hours=1))["Firn"]


def test_requests_of_spark_are_among_those_of_firns_bill() -> None:
    def of(found: tuple[Bill, ...]) -> float:
        return found[0].operations["get_range"]

    found, reads = bills(WORKLOAD, PRICES), SparkReads(read_gib=100, scans=1)
    more = spark.operations(WORKLOAD, reads)["get_range"]
    assert of(with_spark(found, WORKLOAD, reads, PRICES)) == pytest.approx(of(found) + more)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"read_gib": 1}, "both their number and the bytes"),
        ({"scans": 1}, "both their number and the bytes"),
        ({"streams": -1}, "Spark's streams must be a number, 0 or more"),
        ({"worker_hours": float("nan")}, "Spark's workers must be a number, 0 or more"),
        ({"trigger_s": 0}, "must be a number above 0"),
        ({"partitions": 0}, "must be 1 or more"),
        ({"streams": 1, "partitions": 21}, "at most the 20 partitions"),
    ],
)
def test_jobs_that_cannot_be_are_refused(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_spark((), WORKLOAD, SparkReads(**wrong), PRICES)  # type: ignore[arg-type]
