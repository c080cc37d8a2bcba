"""Planning one day of a topic of very many segments, what reading it costs, and how fast ``archive`` writes.

    python -m loadtests.spark_plan [--segments 100000] [--archive-mib 512]

The topic has a year in ``--segments`` segments; only those of the day that is read have objects, the rest are known to the
manifest alone, as planning must not look at them. Planning is what ``partitions()`` does, from opening the store to splits; the
start of Python and its imports are reported apart. Times are wall clock; ``cpu_s`` is this process's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from app.core.units import LeaderEpoch, Offset, SegmentId, TimestampMs
from app.metadata.manifest.manifest import SegmentEntry
from app.records.builder import build_batch
from loadtests.spark_read import TOPIC, build_bucket
from pyspark_firn.batch import plan
from pyspark_firn.jobs.archive import archive_parquet
from pyspark_firn.jobs.running import ProcessRunner
from pyspark_firn.memory import keep_freed_memory
from pyspark_firn.options import Isolation, parse_read_options
from pyspark_firn.reading import SplitReader
from pyspark_firn.session import StoreSession
from pyspark_firn.splits import StoredSplit
from tests.support.buckets import BROKER, BucketBuilder

YEAR_START_MS = 1_672_531_200_000
YEAR_MS = 365 * 86_400_000
DAY_START_MS = YEAR_START_MS + 180 * 86_400_000
DAY_END_MS = DAY_START_MS + 86_400_000
RECORDS_PER_SEGMENT = 1000
VALUE_BYTES = 1000
ENTRIES_AT_ONCE = 5000


async def build_year(path: Path, segments: int) -> None:
    """A year in one partition."""
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic(TOPIC)
    manifest = await bucket.manifest(topic_id, 0)
    rng = random.Random(4)
    value = rng.randbytes(VALUE_BYTES)
    step_ms = YEAR_MS / segments
    pending: list[SegmentEntry] = []

    async def enter() -> None:
        for start in range(0, len(pending), ENTRIES_AT_ONCE):
            page = pending[start : start + ENTRIES_AT_ONCE]
            await manifest.change(lambda state, page=page: [entry.replace(state=0) for entry in page])  # type: ignore[misc]
            await manifest.change(lambda state, page=page: [entry.replace(state=1) for entry in page])  # type: ignore[misc]
        pending.clear()

    for number in range(segments):
        base = number * RECORDS_PER_SEGMENT
        first_ms = int(YEAR_START_MS + number * step_ms)
        last_ms = int(YEAR_START_MS + (number + 1) * step_ms) - 1
        if first_ms < DAY_END_MS + 3_600_000 and last_ms >= DAY_START_MS - 3_600_000:
            records = [
                (first_ms + (last_ms - first_ms) * n // (RECORDS_PER_SEGMENT - 1), b"key", value, ())
                for n in range(RECORDS_PER_SEGMENT)
            ]
            batches = [
                build_batch(records[n : n + 100], base_offset=Offset(base + n))
                for n in range(0, RECORDS_PER_SEGMENT, 100)
            ]
            pending.append(await bucket.add_segment(topic_id, 0, batches, enter=False))
            continue
        entry = SegmentEntry.started(
            SegmentId(uuid.UUID(int=rng.getrandbits(128))),
            Offset(base),
            Offset(base + RECORDS_PER_SEGMENT),
            broker_id=BROKER,
        )
        pending.append(
            entry.replace(
                leader_epochs=((LeaderEpoch(0), Offset(0)),),
                min_timestamp=TimestampMs(first_ms),
                max_timestamp=TimestampMs(last_ms),
                record_count=RECORDS_PER_SEGMENT,
                raw_bytes=1_050_000,
                size_bytes=1_050_400,
                footer_position=1_050_000,
                footer_bytes=400,
                chunk_count=1,
            )
        )
    await enter()
    await manifest._log.snapshot()


def plan_a_day(store: str) -> dict[str, object]:
    given = {
        "store": store,
        "subscribe": TOPIC,
        "startingTimestamp": str(DAY_START_MS),
        "endingTimestamp": str(DAY_END_MS),
        "columns": "value,offset",
    }
    options = parse_read_options(given, streaming=False)
    started, cpu = time.perf_counter(), time.process_time()
    splits = [split for split in plan(options) if isinstance(split, StoredSplit)]
    planned_s, planned_cpu_s = time.perf_counter() - started, time.process_time() - cpu
    keep_freed_memory()
    records = read_bytes = requests = 0
    with StoreSession(store) as session:
        for split in splits:
            reader = SplitReader(session, options.columns, Isolation.READ_COMMITTED, fail_on_data_loss=True)
            for batch in reader.read(split):
                records += batch.num_rows
            read_bytes += reader.counts.bytes
            requests += reader.counts.requests
    range_bytes = records * (VALUE_BYTES + 15)
    return {
        "plan_s": round(planned_s, 2),
        "plan_cpu_s": round(planned_cpu_s, 2),
        "splits": len(splits),
        "records": records,
        "bytes_read_of_range": round(read_bytes / range_bytes, 3),
        "requests": requests,
    }


def archive_rate(base: Path, mib: int) -> dict[str, object]:
    asyncio.run(build_bucket(base / "bucket", 1000, mib << 20, distinct=True))
    rates = []
    for turn in range(3):
        started = time.perf_counter()
        summary = archive_parquet(
            (base / "bucket").as_uri(), TOPIC, (base / f"lake-{turn}").as_uri(), ProcessRunner(2), part_bytes=64 << 20
        )
        rates.append(summary.records * 1000 / (time.perf_counter() - started) / 1e6)
    return {"archive_mb_per_s": [round(rate) for rate in rates], "processes": 2}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--archive-mib", type=int, default=512)
    arguments = parser.parse_args()
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import pyspark_firn.batch"], check=True)
    result: dict[str, object] = {
        "segments": arguments.segments,
        "start_and_imports_s": round(time.perf_counter() - started, 2),
    }
    with tempfile.TemporaryDirectory(prefix="firn-plan-") as scratch:
        asyncio.run(build_year(Path(scratch) / "year", arguments.segments))
        result |= plan_a_day((Path(scratch) / "year").as_uri())
        if arguments.archive_mib:
            result |= archive_rate(Path(scratch), arguments.archive_mib)
    print(json.dumps(result))
