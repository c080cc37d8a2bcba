"""Spark inside a test, and records for its topics."""

from __future__ import annotations

import os
import random
import sys
import warnings
from typing import Any

from app.core.units import Offset
from app.records.builder import build_batch
from tests.spark.reference import Row
from tests.support.buckets import BucketBuilder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Spark warns of each pandas that is newer than Spark
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

NOW_MS = 1_700_000_000_000
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that ends before its second compiler has paid for itself."""


def session(master: str, *, python: str = sys.executable, **configs: str) -> SparkSession:
    """``configs``: Spark's names with underscores for dots."""
    os.environ["PYSPARK_PYTHON"] = python
    builder = (
        SparkSession.builder.master(master)
        .appName("firn-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED)
        .config("spark.executor.extraJavaOptions", SHORT_LIVED)
    )
    for name, value in configs.items():
        builder = builder.config(name.replace("_", "."), value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def records(first: int, count: int) -> list[Any]:
    rng = random.Random(first)
    return [
        (NOW_MS + offset * 1000, b"k%d" % (offset % 7), rng.randbytes(200), (("h", b"%d" % offset),) * (offset % 2))
        for offset in range(first, first + count)
    ]


async def grow(bucket: BucketBuilder, topic_id: Any, partition: int, first: int, segments: int = 2) -> int:
    """Add segments of 200 records in batches of 50 and every codec; answers the next offset."""
    for number in range(segments):
        made = [
            build_batch(records(first + n * 50, 50), base_offset=Offset(first + n * 50), codec=(n + number) % 5)
            for n in range(4)
        ]
        await bucket.add_segment(topic_id, partition, made, chunk_bytes=12_000)
        first += 200
    return first


def collected(frame: DataFrame) -> list[Row]:
    rows = []
    for row in frame.collect():
        found = row.asDict(recursive=True)
        if "timestamp" in found:
            found["timestamp"] = round(found["timestamp"].timestamp() * 1000)
        for name in ("key", "value"):
            if found.get(name) is not None:
                found[name] = bytes(found[name])
        for header in found.get("headers") or []:
            header["value"] = None if header["value"] is None else bytes(header["value"])
        rows.append(found)
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def sentence_of(error: PySparkException) -> str:
    """The line of Spark's text that is Firn's; there is no traceback of Firn's own around it."""
    lines = str(error).splitlines()
    [at] = [
        number
        for number, line in enumerate(lines)
        if line.startswith(("app.core.errors.", "app.tiering.", "pyspark_firn."))
    ]
    assert not [line for line in lines if "/app/" in line or "asyncio" in line], lines
    assert sum("/pyspark_firn/" in line for line in lines[:at]) <= 3, lines
    assert at < 16, lines
    return lines[at].partition(": ")[2]
