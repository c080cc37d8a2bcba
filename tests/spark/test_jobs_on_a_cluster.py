"""Every job once as a user of a cluster has it: executors of their own, the store in S3."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from app.core.units import Offset
from app.records.builder import build_batch
from tests.objectstore.conftest import aws_credentials, moto_endpoint, opened_s3
from tests.spark.programs import run_script
from tests.support.broker import running_broker
from tests.support.buckets import BucketBuilder

__all__ = ["aws_credentials", "moto_endpoint"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

NOW_MS = 1_700_000_000_000
ALL_JOBS = """
import json, sys
import pyarrow.dataset as ds
from pathlib import Path
from pyspark_firn.jobs.archive import ValuesWanted, archive_iceberg, archive_parquet
from pyspark_firn.jobs.compact import compact
from pyspark_firn.jobs.iceberg import local_catalog, opened_table, warehouse_at
from pyspark_firn.jobs.inspection import inspect
from pyspark_firn.jobs.replay import ReplayRequest, replay
from pyspark_firn.jobs.running import SparkRunner
from tests.spark.sessions import session

store, lake, folder, port = sys.argv[1:]
runner = SparkRunner(session("local-cluster[2,1,1024]"))
catalog = local_catalog(Path(folder)) | warehouse_at(lake)
values = ValuesWanted("json")
told = {}

def offsets():
    rows = opened_table("lake.t", catalog).scan().to_arrow()
    return sorted((row["partition"], row["offset"], row["data"]["n"]) for row in rows.to_pylist())

def audited():
    found = inspect(store, runner)
    return found.is_sound, sum(facts.records for facts in found.facts), len(found.facts)

told["archived"] = [archive_parquet(store, "t", lake, runner, part_bytes=9000, values=values).records for _ in range(2)]
told["tabled"] = [archive_iceberg(store, "t", "lake.t", catalog, runner, part_bytes=9000, values=values).records for _ in range(2)]
told["rows"] = offsets()
told["audited"] = audited()
told["merged"] = compact(store, "t", runner=runner).segments_after
told["audited again"] = audited()
brokers, state = (("127.0.0.1", int(port)),), Path(folder) / "state"
request = ReplayRequest(store=store, topic="t", bootstrap=brokers, target="again", state_path=state)
told["replayed"] = [replay(request).records for _ in range(2)]
told["dropped"] = compact(store, "t", by_key=True, runner=runner).records_dropped
told["audited at last"] = audited()
print("TOLD", json.dumps(told), flush=True)
"""


async def test_every_job_works_on_executors_of_their_own_and_in_s3(
    tmp_path: Path, aws_credentials: None, moto_endpoint: str
) -> None:
    async with opened_s3(moto_endpoint) as store, running_broker(tmp_path / "broker") as broker:
        await broker.create_topic("again", 2)
        bucket = await BucketBuilder.open(tmp_path / "scratch", store=store)
        topic_id = await bucket.create_topic("t", 2)
        for partition in (0, 1):
            for first in range(0, 200, 40):
                made = [
                    build_batch(
                        [(NOW_MS + n * 60_000, b"k%d" % (n % 7), b'{"n": %d}' % n, ()) for n in range(at, at + 10)],
                        base_offset=Offset(at),
                    )
                    for at in range(first, first + 40, 10)
                ]
                await bucket.add_segment(topic_id, partition, made, chunk_bytes=600)
        location = store.location
        at = f"s3://{location.bucket}/{location.prefix.rstrip('/')}?endpoint={moto_endpoint}"
        lake = f"s3://{location.bucket}/lake?endpoint={moto_endpoint}"
        done = await asyncio.to_thread(run_script, ALL_JOBS, at, lake, str(tmp_path / "house"), str(broker.port))
        assert done.returncode == 0, done.stdout[-6000:]
        [line] = (line for line in done.stdout.splitlines() if line.startswith("TOLD "))
    assert json.loads(line.removeprefix("TOLD ")) == {
        "archived": [400, 0],
        "tabled": [400, 0],
        "rows": [[partition, n, n] for partition in (0, 1) for n in range(200)],
        "audited": [True, 400, 10],
        "merged": 2,
        "audited again": [True, 400, 2],
        "replayed": [400, 0],
        "dropped": 2 * (200 - 7),
        "audited at last": [True, 14, 2],
    }
