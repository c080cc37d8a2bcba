"""What a task loads: every Python process of an executor pays for it, in time before its first record and in memory."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from pathlib import Path

from app.core.units import Offset, ProducerEpoch, ProducerId
from app.records.builder import build_batch
from tests.support.buckets import BucketBuilder

LOADS_MACHINE_CODE = sys.platform.startswith("linux") and platform.machine() == "x86_64"
READ = """
import sys
from pyspark_firn.batch import plan
from pyspark_firn.columns import SPARK_TYPES
from pyspark_firn.options import parse_read_options
from pyspark_firn.tasks import read_split

columns = tuple(SPARK_TYPES)
options = parse_read_options({"store": sys.argv[1], "subscribe": "history"}, streaming=False)
rows = sum(batch.num_rows for split in plan(options) for batch in read_split(options, columns, split))
print(rows, *(name in sys.modules for name in ("pandas", "numba", "llvmlite")))
"""


async def two_kinds_of_batches(path: Path) -> None:
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic("history")
    records = [(1_700_000_000_000, b"key", b"value", (("name", b"content"),))]
    producers = [
        build_batch(records, base_offset=Offset(at), producer_id=ProducerId(at), producer_epoch=ProducerEpoch(0))
        for at in range(2)
    ]
    await bucket.add_segment(topic_id, 0, producers)


def test_reading_every_column_imports_neither_pandas_nor_a_compiler(tmp_path: Path) -> None:
    asyncio.run(two_kinds_of_batches(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", READ, tmp_path.as_uri()], capture_output=True, text=True, check=False, timeout=120
    )
    rows, *imported = done.stdout.split()
    assert rows == "2", done.stderr
    assert imported[0] == "False"
    if LOADS_MACHINE_CODE:
        assert imported[1:] == ["False", "False"]
