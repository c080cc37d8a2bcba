"""What the tests of the Spark package share: topics of every kind, and reads without a JVM."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from app.core.units import Offset, TopicId
from app.objectstore.directory import DirectoryStore
from app.records.builder import build_batch
from pyspark_firn.batch import plan
from pyspark_firn.columns import SPARK_TYPES
from pyspark_firn.options import parse_read_options
from pyspark_firn.tasks import read_split
from tests.spark.reference import Row, reference_rows
from tests.support.buckets import BucketBuilder
from tests.support.leftovers import own_temporary_folder

if TYPE_CHECKING:
    from tests.spark.sessions import SparkSession

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


DAY_MS = 86_400_000
NOON_MS = 1_700_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2


async def add(bucket: BucketBuilder, topic: Topic, first: int, segments: int) -> int:
    """Segments of 100 records, an hour apart: five days in each hundred or so."""
    for _ in range(segments):
        made = []
        for start in range(first, first + 100, 20):
            records = [(NOON_MS + n * 3_600_000, b"k", (b"%d " % n) * 20, ()) for n in range(start, start + 20)]
            made.append(build_batch(records, base_offset=Offset(start), codec=start // 20 % 5))
        await bucket.add_segment(topic.topic_id, 0, made, chunk_bytes=2000)
        first += 100
    return first


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    async def make() -> Topic:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic = Topic(tmp_path / "bucket", "t", await bucket.create_topic("t", 2), 2)
        await add(bucket, topic, 0, 3)
        return topic

    return asyncio.run(make())


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session of Spark with two cores."""
    from tests.spark.sessions import session  # takes a second, and only some tests need it

    started = session("local[2]")
    yield started
    started.stop()
