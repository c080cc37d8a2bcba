"""A topic of several days, and the files of its archive."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tests.spark.conftest import Topic


def archived(folder: Path) -> list[tuple[int, bytes, int]]:
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    days = pc.strftime(table["timestamp"], "%Y-%m-%d").to_pylist()
    assert days == [str(day) for day in table["date"].to_pylist()]
    times = pc.divide(pc.cast(table["timestamp"], pa.int64()), 1000).to_pylist()
    return sorted(zip(table["offset"].to_pylist(), table["value"].to_pylist(), times, strict=True))


def expected(topic: Topic) -> list[tuple[int, bytes, int]]:
    return [(row["offset"], row["value"], row["timestamp"]) for row in topic.reference()]
