"""What the tests of the Spark package share: topics of every kind, and reads without a JVM."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from app.core.units import TopicId
from app.objectstore.directory import DirectoryStore
from pyspark_firn.batch import plan
from pyspark_firn.columns import SPARK_TYPES
from pyspark_firn.options import parse_read_options
from pyspark_firn.tasks import read_split
from tests.spark.reference import Row, reference_rows
from tests.support.leftovers import own_temporary_folder

ALL_COLUMNS = tuple(SPARK_TYPES)


@pytest.fixture(scope="session", autouse=True)
def _temporary_files() -> Iterator[None]:
    """Sessions of Spark and jobs, many of which are killed, leave their temporary files where they go with the tests."""
    with own_temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        patch.setenv("SPARK_SUBMIT_OPTS", f"-Djava.io.tmpdir={folder}")
        yield


class Topic(NamedTuple):
    """A topic in a directory store."""

    path: Path
    name: str
    topic_id: TopicId
    partitions: int = 1

    @property
    def store(self) -> str:
        return self.path.as_uri()

    def reference(self, **options: Any) -> list[Row]:
        store = DirectoryStore(self.path)
        rows: list[Row] = []
        for index in range(self.partitions):
            rows += asyncio.run(reference_rows(store, self.name, self.topic_id, index, **options))
        return rows


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    rows: list[Row] = []
    for batch in batches:
        if "timestamp" in batch.schema.names:
            index = batch.schema.get_field_index("timestamp")
            milliseconds = pc.divide(pc.cast(batch.column(index), pa.int64()), 1000)
            batch = batch.set_column(index, "timestamp", milliseconds)
        rows += batch.to_pylist()
    return rows


def read(topic: Topic, *, columns: Sequence[str] = ALL_COLUMNS, **options: str) -> list[Row]:
    """What Spark would be given, in the order of the splits."""
    given = {"store": topic.store, "subscribe": topic.name, "columns": ",".join(columns), **options}
    parsed = parse_read_options(given, streaming=False)
    return rows_of([batch for split in plan(parsed) for batch in read_split(parsed, parsed.columns, split)])
