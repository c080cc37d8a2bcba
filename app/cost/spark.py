"""The cost of Spark jobs that read topics from the bucket: requests, bytes, and hours of workers.

The numbers are those of the code (``pyspark_firn``: each look reads the cluster log and the manifests; a task reads the footer of
each segment that it needs, and each chunk by a ranged GET). ``tests/cost/test_spark.py`` holds them against the counters of a
store that is really read. The model leaves out records that are not in the bucket yet, which brokers send (the option ``tail``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Final

from app.core.errors import ConfigError
from app.core.limits import GIB, MIB
from app.cost import requests
from app.cost.bill import Bill, Line, request_dollars
from app.cost.prices import SECONDS_PER_MONTH, Prices
from app.cost.requests import CHUNK_BYTES, SNAPSHOT_ENTRIES_MIN, SNAPSHOT_LIVE_SHARE
from app.cost.workload import Workload

SPLIT_BYTES_FEWEST: Final = 32 * MIB
SPLIT_BYTES_MOST: Final = 256 * MIB
SPLITS_MULTIPLE: Final = 8
LOOKS_WHEN_IDLE: Final = 2
LOOKS_PER_TRIGGER: Final = 3
"""Spark asks a stream for the end of the trigger and for the end of its source, and for the splits if there are new records."""
ENTRIES_PER_SEGMENT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkReads:
    """The jobs of a month that read from the bucket."""

    read_gib: float = 0.0
    """Bytes of records that all batch jobs read."""
    scans: float = 0.0
    """Batch jobs: each of them plans once."""
    streams: float = 0.0
    """Streams that read each new record of all partitions, all the time."""
    trigger_s: float = 60.0
    """Time from one trigger of a stream to the next one."""
    partitions: int | None = None
    """Partitions that a job reads; None: all."""
    worker_hours: float = 0.0

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        # Asked so that a value that is no number is refused too.
        for name, value in {
            "What Spark's batch jobs read": self.read_gib,
            "The number of Spark's batch jobs": self.scans,
            "The number of Spark's streams": self.streams,
            "The hours of Spark's workers": self.worker_hours,
        }.items():
            if not 0 <= value < inf:
                raise ConfigError(f"{name} must be a number, 0 or more.")
        if not 0 < self.trigger_s < inf:
            raise ConfigError("The time between triggers of a stream must be a number above 0.")
        if self.partitions is not None and self.partitions < 1:
            raise ConfigError("The number of partitions that a Spark job reads must be 1 or more.")
        if bool(self.read_gib) != bool(self.scans):
            raise ConfigError(
                "Batch jobs of Spark need both their number and the bytes that they read (--spark-scans, --spark-read)."
            )

    @property
    def is_any(self) -> bool:
        """Whether there is anything to bill."""
        return bool(self.scans or self.streams or self.worker_hours)


def load_log(entries: float, snapshots: float = 1) -> dict[str, float]:
    """A reader gets a log of up to 1,000 objects: a listing, its newest snapshot, and the entries behind it."""
    return {"list_objects": 1, "get": snapshots + entries}


def plan_scan(
    cluster: dict[str, float], manifest: dict[str, float], partitions: float, cut: float = 0
) -> dict[str, float]:
    """The driver's part of a batch read: a first request, the cluster log and the manifests. ``cut``: segments that start
    before the range, or end behind it, whose footers are read."""
    return requests.add({"list_objects": 1, "get_tail": cut}, cluster, requests.times(manifest, partitions))


def trigger(
    cluster: dict[str, float], partitions: float, *, changed: float = 0, entries: float = 0
) -> dict[str, float]:
    """The driver's part of a trigger: each look reads the cluster log again, and asks each kept manifest for new entries.
    ``changed`` manifests have ``entries`` new ones together, and are listed once more."""
    looks = LOOKS_PER_TRIGGER if changed else LOOKS_WHEN_IDLE
    look = requests.add(cluster, {"list_objects": partitions})
    return requests.add(requests.times(look, looks), {"list_objects": changed, "get": entries})


def splits_of(raw_bytes: float, partitions: float) -> float:
    """Tasks of one job that reads so many bytes, spread evenly."""
    multiples = max(1, ceil(raw_bytes / (SPLITS_MULTIPLE * SPLIT_BYTES_MOST)))
    size = max(SPLIT_BYTES_FEWEST, ceil(raw_bytes / (SPLITS_MULTIPLE * multiples)))
    return partitions * max(1, ceil(raw_bytes / partitions / size))


def read_segments(raw_bytes: float, segment_bytes: float, partitions: float) -> dict[str, float]:
    """The tasks' part of a job: chunks, and a footer for each part of a segment; two of a segment in which a task ends."""
    segments = max(1.0, raw_bytes / segment_bytes)
    footers = segments + splits_of(raw_bytes, partitions) - partitions
    return {"get_range": footers + segments * ceil(min(raw_bytes, segment_bytes) / CHUNK_BYTES)}


def operations(workload: Workload, spark: SparkReads) -> dict[str, float]:
    """Requests of a month. Raises: ConfigError if a job reads more partitions than there are."""
    if spark.partitions is not None and spark.partitions > workload.partitions:
        raise ConfigError(f"A Spark job reads at most the {workload.partitions} partitions that there are.")
    partitions = float(spark.partitions or workload.partitions)
    live = workload.retained_gib * GIB / workload.rolled_bytes / workload.partitions
    # A reader comes at any time between two snapshots.
    manifest = load_log(max(SNAPSHOT_ENTRIES_MIN, live / SNAPSHOT_LIVE_SHARE) / 2)
    cluster = load_log(SNAPSHOT_ENTRIES_MIN / 2)
    found: dict[str, float] = {}
    if spark.scans:
        read_bytes = spark.read_gib * GIB / spark.scans
        read_from = min(partitions, max(1.0, read_bytes / workload.rolled_bytes))
        is_whole = spark.read_gib / spark.scans >= workload.retained_gib * partitions / workload.partitions
        scan = requests.add(
            plan_scan(cluster, manifest, partitions, 0.0 if is_whole else 2 * read_from),
            read_segments(read_bytes, workload.rolled_bytes, read_from),
        )
        found = requests.times(scan, spark.scans)
    if spark.streams:
        share = partitions / workload.partitions
        triggers = SECONDS_PER_MONTH / spark.trigger_s
        segments = workload.segments_per_month * share
        # Triggers that find no new segment have one look less. Segments come one by one.
        finding = min(triggers, segments)
        entries = segments * ENTRIES_PER_SEGMENT
        read_from = min(partitions, max(1.0, segments / finding))
        busy = requests.times(trigger(cluster, partitions, changed=read_from, entries=entries / finding), finding)
        idle = requests.times(trigger(cluster, partitions), triggers - finding)
        read_bytes = segments * workload.rolled_bytes / finding
        reads = requests.times(read_segments(read_bytes, workload.rolled_bytes, read_from), finding)
        found = requests.add(found, requests.times(requests.add(busy, idle, reads), spark.streams))
    return found


def streamed_gib(workload: Workload, spark: SparkReads) -> float:
    """Bytes of records that streams read in a month."""
    return workload.gib_per_month * spark.streams * (spark.partitions or workload.partitions) / workload.partitions


def with_spark(found: Sequence[Bill], workload: Workload, spark: SparkReads, prices: Prices) -> tuple[Bill, ...]:
    """The bills with those jobs. Firn's records are read from the bucket; Kafka's from its brokers, by batch jobs at the price of a
    replay, and by streams in their own zone, where they cost nothing. Workers cost the same everywhere. Raises: as ``operations``.
    """
    if not spark.is_any:
        return tuple(found)
    asked = operations(workload, spark)
    puts, gets = requests.billed(asked)
    gib = (spark.read_gib + streamed_gib(workload, spark)) * workload.stored_share
    of_firn = Line(
        "Spark: reads",
        request_dollars(asked, prices) + gib * prices.spark_gib,
        f"{puts:,.0f} LIST, {gets:,.0f} GET; {gib:,.0f} GiB from the bucket",
    )
    of_kafka = f"{spark.read_gib:,.0f} GiB replayed from brokers; streams read in their own zone"
    told = []
    for bill in found:
        is_kafka = bill.system.startswith("Kafka")
        lines = list(bill.lines)
        if spark.scans or spark.streams:
            lines.append(Line("Spark: reads", spark.read_gib * bill.replayed_gib, of_kafka) if is_kafka else of_firn)
        if spark.worker_hours:
            dollars = spark.worker_hours * prices.spark_worker_hour
            lines.append(Line("Spark: workers", dollars, f"{spark.worker_hours:,.0f} hours of a worker"))
        all_operations = bill.operations if is_kafka else requests.add(bill.operations, asked)
        told.append(replace(bill, lines=tuple(lines), operations=all_operations))
    return tuple(told)
