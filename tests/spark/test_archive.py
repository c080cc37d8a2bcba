"""``archive``: every record once, in files by day, whatever was killed before; the same for an Iceberg table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from app.errors import ConfigError, CorruptionError
from app.records.builder import build_batch
from app.units import Offset
from pyspark_firn.jobs.archive import archive_iceberg, archive_parquet
from pyspark_firn.jobs.running import ProcessRunner
from pyspark_firn.jobs.targets import Folder
from pyspark_firn.reading import SplitReader
from tests.spark.conftest import Topic
from tests.support.buckets import BucketBuilder

DAY_MS = 86_400_000
NOON_MS = 1_700_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2


class Killed(Exception):
    pass


class KilledRunner:
    """Does some parts and dies."""

    parallelism = 1

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def run(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        for argument in arguments[: self._parts]:
            yield function(argument)
        raise Killed


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


def grow(topic: Topic, first: int, segments: int) -> None:
    asyncio.run(add(BucketBuilder(store_of(topic), topic.path, 77), topic, first, segments))


def store_of(topic: Topic) -> Any:
    from app.objectstore.directory import DirectoryStore

    return DirectoryStore(topic.path)


def archived(folder: Path) -> list[tuple[int, bytes, int]]:
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    days = pc.strftime(table["timestamp"], "%Y-%m-%d").to_pylist()
    assert days == [str(day) for day in table["date"].to_pylist()]
    times = pc.divide(pc.cast(table["timestamp"], pa.int64()), 1000).to_pylist()
    return sorted(zip(table["offset"].to_pylist(), table["value"].to_pylist(), times, strict=True))


def expected(topic: Topic) -> list[tuple[int, bytes, int]]:
    return [(row["offset"], row["value"], row["timestamp"]) for row in topic.reference()]


def test_each_run_adds_what_came_since(topic: Topic, tmp_path: Path) -> None:
    target = (tmp_path / "lake").as_uri()
    first = archive_parquet(topic.store, "t", target, ProcessRunner(1), part_bytes=4000)
    assert (first.records, first.ends, first.parts > 1) == (300, {0: 300}, True)
    assert archived(tmp_path / "lake" / "t") == expected(topic)
    assert archive_parquet(topic.store, "t", target, ProcessRunner(1)).parts == 0
    grow(topic, 300, 2)
    second = archive_parquet(topic.store, "t", target, ProcessRunner(1), part_bytes=4000)
    assert (second.records, second.ends) == (200, {0: 500})
    assert archived(tmp_path / "lake" / "t") == expected(topic)


def test_files_are_compressed_sorted_and_say_what_they_hold(topic: Topic, tmp_path: Path) -> None:
    """Readers leave out files and row groups by the least and greatest offset and time."""
    archive_parquet(topic.store, "t", (tmp_path / "lake").as_uri(), ProcessRunner(1), part_bytes=4000)
    files = [pq.ParquetFile(path) for path in sorted((tmp_path / "lake" / "t").rglob("*.parquet"))]
    assert len(files) > 5
    for file in files:
        offsets = file.read(["offset"])["offset"].to_pylist()
        assert offsets == sorted(offsets)
        group = file.metadata.row_group(0)
        columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
        assert {column.compression for column in columns.values()} == {"ZSTD"}
        said = columns["offset"].statistics
        assert (said.min, said.max) == (offsets[0], offsets[-1])
        times = file.read(["timestamp"])["timestamp"].to_pylist()
        said = columns["timestamp"].statistics
        assert (said.min, said.max) == (min(times), max(times))
        # A part of about so much of records, a file of at most that: days cut it.
        assert group.total_byte_size < 2 * 4000


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_killed_run_is_finished_by_the_next_without_doubles(topic: Topic, tmp_path: Path, parts: int) -> None:
    target = (tmp_path / "lake").as_uri()
    with pytest.raises(Killed):
        archive_parquet(topic.store, "t", target, KilledRunner(parts), part_bytes=4000)
    grow(topic, 300, 1)
    # With other sizes: what was begun is done as it was planned.
    found = archive_parquet(topic.store, "t", target, ProcessRunner(1), part_bytes=1 << 30)
    assert (found.runs, found.records, found.ends) == (2, 400, {0: 400})
    assert archived(tmp_path / "lake" / "t") == expected(topic)


def test_what_was_deleted_before_it_was_archived_is_said(topic: Topic, tmp_path: Path) -> None:
    target = (tmp_path / "lake").as_uri()
    archive_parquet(topic.store, "t", target, ProcessRunner(1))
    grow(topic, 300, 2)

    async def expire() -> None:
        manifest = await BucketBuilder(store_of(topic), topic.path, 99).manifest(topic.topic_id, 0)
        await manifest.delete_started([entry.segment_id for entry in manifest.finished[:4]], log_start_offset=400)

    asyncio.run(expire())
    with pytest.raises(CorruptionError, match=r"\[300, 400\) were deleted before they were archived"):
        archive_parquet(topic.store, "t", target, ProcessRunner(1))


def test_an_iceberg_table_gets_every_record_once(topic: Topic, tmp_path: Path) -> None:
    from pyspark_firn.jobs.iceberg import local_catalog, opened_table

    catalog = local_catalog(tmp_path / "warehouse")

    def held() -> list[tuple[int, bytes]]:
        table = opened_table("lake.t", catalog).scan().to_arrow()
        return sorted(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))

    with pytest.raises(Killed):
        archive_iceberg(topic.store, "t", "lake.t", catalog, KilledRunner(1), part_bytes=4000)
    first = archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1), part_bytes=4000)
    assert (first.records, first.ends) == (300, {0: 300})
    assert archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1)).parts == 0
    grow(topic, 300, 1)
    archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    assert held() == [(offset, value) for offset, value, _ in expected(topic)]


def test_of_two_runs_into_one_iceberg_table_one_adds_nothing(topic: Topic, tmp_path: Path) -> None:
    from pyspark_firn.jobs.iceberg import local_catalog, opened_table

    catalog = local_catalog(tmp_path / "warehouse")

    class Overtaken:
        parallelism = 1

        def run(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
            archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
            yield from map(function, arguments)

    with pytest.raises(ConfigError, match="nothing was added; run the job again"):
        archive_iceberg(topic.store, "t", "lake.t", catalog, Overtaken(), part_bytes=4000)
    assert opened_table("lake.t", catalog).scan().to_arrow().num_rows == 300


class RunnerOf:
    """Has ``work`` do each part."""

    parallelism = 1

    def __init__(self, work: Callable[[Callable[[Any], Any], Any], Any]) -> None:
        self._work = work

    def run(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        for argument in arguments:
            yield self._work(function, argument)


def test_two_attempts_at_one_part_do_not_get_in_each_others_way(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SplitReader.read

    def twice(write: Callable[[Any], Any], task: Any) -> Any:
        inner: list[Any] = []

        def overtaken(self: SplitReader, split: Any) -> Iterator[pa.RecordBatch]:
            for batch in read(self, split):
                yield batch
                if not inner:  # A second attempt does all its work while the first has its file open.
                    inner.append(None)
                    inner[0] = write(task)

        with monkeypatch.context() as patched:
            patched.setattr(SplitReader, "read", overtaken)
            outer = write(task)
        assert inner == [outer]
        return outer

    archive_parquet(topic.store, "t", (tmp_path / "lake").as_uri(), RunnerOf(twice))
    files = [path.relative_to(tmp_path / "lake" / "t") for path in (tmp_path / "lake" / "t").rglob("date=*/*")]
    assert not [path for path in files if path.suffix != ".parquet"]
    found = ds.dataset(tmp_path / "lake" / "t", format="parquet").to_table().column("offset").to_pylist()
    assert sorted(found) == list(range(300))


def test_an_attempt_that_fails_leaves_no_file(topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = SplitReader.read

    def failing(self: SplitReader, split: Any) -> Iterator[pa.RecordBatch]:
        yield from read(self, split)
        raise CorruptionError("damaged")

    monkeypatch.setattr(SplitReader, "read", failing)
    with pytest.raises(CorruptionError):
        archive_parquet(topic.store, "t", (tmp_path / "lake").as_uri(), ProcessRunner(1))
    assert not list((tmp_path / "lake" / "t").rglob("date=*/*"))


def test_files_of_killed_writers_go_and_those_of_living_ones_stay(topic: Topic, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    left = lake / "t" / "date=2023-11-14" / "_00000-0-9.parquet.0123.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"PAR1")
    living = Folder(lake).create("t/date=2023-11-14/00001-0-9.parquet")
    Path(str(living.sink)).write_bytes(b"whole")
    archive_parquet(topic.store, "t", lake.as_uri(), ProcessRunner(1))
    assert not left.exists()
    assert living.publish() == 5
    assert not list(lake.rglob("*.tmp"))


def test_records_from_beyond_the_year_9999_are_archived_under_their_day(tmp_path: Path) -> None:
    async def make() -> Topic:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic = Topic(tmp_path / "bucket", "t", await bucket.create_topic("t"))
        times = (-1, 253_402_300_799_999, 253_402_300_800_000)
        await bucket.add_segment(topic.topic_id, 0, [build_batch([(time, None, b"v", ()) for time in times])])
        return topic

    topic = asyncio.run(make())
    summary = archive_parquet(topic.store, "t", (tmp_path / "lake").as_uri(), ProcessRunner(1))
    assert summary.records == 3
    days = {path.parent.name for path in (tmp_path / "lake" / "t").rglob("*.parquet")}
    assert days == {"date=1969-12-31", "date=9999-12-31", "date=10000-01-01"}
