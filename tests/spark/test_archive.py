"""``archive``: every record once, in files by day, whatever was killed before; the same for an Iceberg table."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from app.core.errors import ConfigError, CorruptionError, StorageFull
from app.core.units import Offset
from app.records.builder import build_batch
from pyspark_firn.columns import arrow_schema
from pyspark_firn.jobs.archive import ValuesWanted, archive_iceberg, archive_parquet
from pyspark_firn.jobs.compact import compact
from pyspark_firn.jobs.parquet_files import DayWriter
from pyspark_firn.jobs.running import ProcessRunner
from pyspark_firn.jobs.targets import Folder, TableFiles, show_files
from pyspark_firn.reading import SplitReader
from tests.spark.archives import archived, expected
from tests.spark.conftest import DAY_MS, NOON_MS, Topic, add
from tests.support.buckets import BucketBuilder


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


def grow(topic: Topic, first: int, segments: int) -> None:
    asyncio.run(add(BucketBuilder(store_of(topic), topic.path, 77), topic, first, segments))


def store_of(topic: Topic) -> Any:
    from app.objectstore.directory import DirectoryStore

    return DirectoryStore(topic.path)


@pytest.mark.ci
def test_each_run_adds_what_came_since(topic: Topic, tmp_path: Path) -> None:
    target = (tmp_path / "lake").as_uri()
    first = archive_parquet(topic.store, "t", target, ProcessRunner(1), part_bytes=4000)
    assert (first.records, first.ends, first.parts > 1) == (300, {0: 300, 1: 0}, True)
    assert archived(tmp_path / "lake" / "t") == expected(topic)
    assert archive_parquet(topic.store, "t", target, ProcessRunner(1)).parts == 0
    grow(topic, 300, 2)
    second = archive_parquet(topic.store, "t", target, ProcessRunner(1), part_bytes=4000)
    assert (second.records, second.ends) == (200, {0: 500, 1: 0})
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
    assert (found.runs, found.records, found.ends) == (2, 400, {0: 400, 1: 0})
    assert archived(tmp_path / "lake" / "t") == expected(topic)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_killed_run_leaves_no_file_of_what_was_compacted_away_since(topic: Topic, tmp_path: Path, parts: int) -> None:
    """Days of which nothing is left were written before; the records have one key."""
    lake, target = tmp_path / "lake", (tmp_path / "lake").as_uri()
    with pytest.raises(Killed):
        archive_parquet(topic.store, "t", target, KilledRunner(parts), part_bytes=4000)
    other = lake / "t" / "date=2023-11-14" / "by-hand.parquet"
    other.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"offset": [1]}), other)
    compact(topic.store, "t", by_key=True)
    found = archive_parquet(topic.store, "t", target, ProcessRunner(1), part_bytes=4000)
    [commit] = (lake / "t" / "_firn").glob("*.commit")
    named = {file["path"] for file in json.loads(commit.read_bytes())["files"]}
    assert {str(path.relative_to(lake / "t")) for path in (lake / "t").rglob("*.parquet")} == named | {
        "date=2023-11-14/by-hand.parquet"
    }
    other.unlink()
    assert found.records == 1
    assert [offset for offset, _, _ in archived(lake / "t")] == [299]


def test_of_two_runs_at_the_same_time_one_takes_nothing_away_that_the_other_has_committed(
    topic: Topic, tmp_path: Path
) -> None:
    """The one that commits has planned before the topic was compacted, the other after it."""
    lake, target = tmp_path / "lake", (tmp_path / "lake").as_uri()
    planned, compacted = threading.Event(), threading.Event()

    def wait_for_the_other() -> None:
        planned.set()
        assert compacted.wait(60)

    first = threading.Thread(target=lambda: archive_parquet(topic.store, "t", target, RunnerAfter(wait_for_the_other)))
    first.start()

    def let_it_commit() -> None:
        compacted.set()
        first.join()

    try:
        assert planned.wait(60)
        compact(topic.store, "t", by_key=True)
        archive_parquet(topic.store, "t", target, RunnerAfter(let_it_commit))
    finally:
        let_it_commit()
    [commit] = (lake / "t" / "_firn").glob("*.commit")
    named = {file["path"] for file in json.loads(commit.read_bytes())["files"]}
    assert len(named) > 5
    assert {path.relative_to(lake / "t").as_posix() for path in (lake / "t").rglob("*.parquet")} == named


@pytest.mark.parametrize("late", ["before the compaction", "after it"])
def test_of_two_runs_around_a_compaction_one_counts_and_the_other_leaves_nothing(
    topic: Topic, tmp_path: Path, late: str
) -> None:
    """Both do the same plan; one reads 300 records of it, the other the one that compaction keeps. The late one writes last."""
    lake, target = tmp_path / "lake", (tmp_path / "lake").as_uri()
    with pytest.raises(Killed):
        archive_parquet(topic.store, "t", target, KilledRunner(0), part_bytes=4000)

    def other_run() -> None:
        if late == "before the compaction":
            compact(topic.store, "t", by_key=True)
        archive_parquet(topic.store, "t", target, ProcessRunner(1), part_bytes=4000)

    class Late:
        parallelism = 1

        def run(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
            tasks = list(arguments)
            if late == "before the compaction":
                done = [function(task) for task in tasks]
                other_run()
            else:
                other_run()
                done = [function(task) for task in tasks]
            yield from done

    archive_parquet(topic.store, "t", target, Late(), part_bytes=4000)
    [commit] = (lake / "t" / "_firn").glob("*.commit")
    named = {file["path"]: file["bytes"] for file in json.loads(commit.read_bytes())["files"]}
    there = {path.relative_to(lake / "t").as_posix(): path.stat().st_size for path in (lake / "t").rglob("date=*/*")}
    assert there == named
    offsets = [offset for offset, _, _ in archived(lake / "t")]
    assert offsets == ([299] if late == "before the compaction" else list(range(300)))


def test_readers_of_the_folder_see_nothing_before_the_commit(topic: Topic, tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    def look(write: Callable[[Any], Any], task: Any) -> Any:
        done = write(task)
        assert list(lake.rglob("*.parquet.pending"))
        assert not list(lake.rglob("*.parquet"))
        assert ds.dataset(lake / "t", format="parquet").to_table().num_rows == 0
        return done

    archive_parquet(topic.store, "t", lake.as_uri(), RunnerOf(look), part_bytes=4000)
    assert not list(lake.rglob("*.pending"))
    assert archived(lake / "t") == expected(topic)


@pytest.mark.parametrize("shown", [0, 2, 1000])
def test_a_run_that_is_killed_after_its_commit_is_shown_by_the_next(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: int
) -> None:
    lake = tmp_path / "lake"

    def some(url: str, folder: str, paths: Sequence[str]) -> None:
        show_files(url, folder, paths[:shown])
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("pyspark_firn.jobs.archive.show_files", some)
        with pytest.raises(Killed):
            archive_parquet(topic.store, "t", lake.as_uri(), ProcessRunner(1), part_bytes=4000)
    assert len(list(lake.rglob("*.parquet"))) < 15 if shown < 1000 else True
    assert archive_parquet(topic.store, "t", lake.as_uri(), ProcessRunner(1)).parts == 0
    assert archived(lake / "t") == expected(topic)
    assert not list(lake.rglob("*.pending"))
    assert archive_parquet(topic.store, "t", lake.as_uri(), ProcessRunner(1)).parts == 0


def test_a_file_that_a_commit_names_and_that_is_gone_is_said(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"

    def killed(url: str, folder: str, paths: Sequence[str]) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("pyspark_firn.jobs.archive.show_files", killed)
        with pytest.raises(Killed):
            archive_parquet(topic.store, "t", lake.as_uri(), ProcessRunner(1), part_bytes=4000)
    next(lake.rglob("*.pending")).unlink()
    with pytest.raises(CorruptionError, match="is gone, which a commit of the archive names"):
        archive_parquet(topic.store, "t", lake.as_uri(), ProcessRunner(1))


def test_a_run_that_an_older_firn_has_begun_is_finished_without_its_files(topic: Topic, tmp_path: Path) -> None:
    """Its files had no attempt in their names, and were there before the commit."""
    lake = tmp_path / "lake"
    with pytest.raises(Killed):
        archive_parquet(topic.store, "t", lake.as_uri(), KilledRunner(0))
    [plan] = (lake / "t" / "_firn").glob("*.plan")
    document = json.loads(plan.read_bytes())
    plan.write_text(json.dumps({**document, "version": 1}))
    old = lake / "t" / "date=2023-11-14" / f"00000-{0:020d}-{300:020d}.parquet"
    old.parent.mkdir()
    pq.write_table(pa.table({"offset": [1]}), old)
    archive_parquet(topic.store, "t", lake.as_uri(), ProcessRunner(1))
    assert not old.exists()
    assert archived(lake / "t") == expected(topic)


def in_table(name: str, catalog: dict[str, str]) -> dict[str, int]:
    """Bytes that a table says its files have, by path."""
    from pyspark_firn.jobs.iceberg import opened_table

    table = opened_table(name, catalog)
    assert table is not None
    files = table.inspect.files().select(["file_path", "file_size_in_bytes"]).to_pylist()
    return {file["file_path"].removeprefix("file://"): file["file_size_in_bytes"] for file in files}


def on_disk(warehouse: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in warehouse.rglob("data/**/*.parquet")}


def test_of_two_runs_into_an_iceberg_table_around_a_compaction_one_leaves_nothing(topic: Topic, tmp_path: Path) -> None:
    """The one that loses has planned before the compaction and writes after the other's commit."""
    from pyspark_firn.jobs.iceberg import local_catalog

    catalog = local_catalog(tmp_path / "warehouse")

    class Overtaken:
        parallelism = 1

        def run(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
            tasks = list(arguments)
            written = [function(task) for task in tasks]
            compact(topic.store, "t", by_key=True)
            archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1), part_bytes=4000)
            yield from written
            yield from map(function, tasks)  # as a task that is tried again

    with pytest.raises(ConfigError, match="Nothing was added: run the job again"):
        archive_iceberg(topic.store, "t", "lake.t", catalog, Overtaken(), part_bytes=4000)
    assert len(in_table("lake.t", catalog)) == 1
    assert on_disk(tmp_path / "warehouse") == in_table("lake.t", catalog)


def test_files_of_a_killed_run_into_an_iceberg_table_are_removed_by_the_next(topic: Topic, tmp_path: Path) -> None:
    from pyspark_firn.jobs.iceberg import local_catalog

    catalog = local_catalog(tmp_path / "warehouse")
    with pytest.raises(Killed):
        archive_iceberg(topic.store, "t", "lake.t", catalog, KilledRunner(2), part_bytes=4000)
    assert on_disk(tmp_path / "warehouse")
    archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    grow(topic, 300, 1)
    archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    assert on_disk(tmp_path / "warehouse") == in_table("lake.t", catalog)


class RunnerAfter:
    """Something else happens before the first part."""

    parallelism = 1

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first

    def run(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        self._first()
        yield from map(function, arguments)


def test_what_goes_while_it_is_archived_is_said_without_an_option_that_jobs_have_not(
    topic: Topic, tmp_path: Path
) -> None:
    class Overtaken:
        parallelism = 1

        def run(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
            async def expire() -> None:
                manifest = await BucketBuilder(store_of(topic), topic.path, 99).manifest(topic.topic_id, 0)
                await manifest.delete_started([manifest.finished[0].segment_id], log_start_offset=100)

            asyncio.run(expire())
            [path] = (topic.path / "data").glob(f"*/{topic.topic_id}/0/{0:020d}-*.seg")
            path.unlink()
            yield from map(function, arguments)

    with pytest.raises(
        CorruptionError, match=r"of t-0 are gone.*; retention or a deletion was quicker than the job\.$"
    ):
        archive_parquet(topic.store, "t", (tmp_path / "lake").as_uri(), Overtaken())
    assert not list((tmp_path / "lake").rglob("date=*/*"))


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
    assert (first.records, first.ends) == (300, {0: 300, 1: 0})
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

    with pytest.raises(ConfigError, match="Nothing was added: run the job again"):
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
        assert {file.path for file in inner[0].files}.isdisjoint(file.path for file in outer.files)
        assert [file.records for file in inner[0].files] == [file.records for file in outer.files]
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


async def reopened(topic: Topic, seed: int) -> BucketBuilder:
    bucket = BucketBuilder(store_of(topic), topic.path, seed)
    await bucket._cluster.load()
    await bucket._cluster.seal(bucket._cluster.next_sequence)
    return bucket


def made_again(topic: Topic, values: bytes) -> Topic:
    """The topic is deleted, and one of its name begun that has as many records."""

    async def make() -> Topic:
        bucket = await reopened(topic, 55)
        await bucket.delete_topic(topic.topic_id)
        again = Topic(topic.path, "t", await bucket.create_topic("t", 2), 2)
        records = [(NOON_MS, b"k", values, ())] * 300
        await bucket.add_segment(again.topic_id, 0, [build_batch(records)])
        return again

    return asyncio.run(make())


def test_what_was_begun_with_a_topic_that_is_deleted_is_not_gone_on_with_by_another(
    topic: Topic, tmp_path: Path
) -> None:
    target = (tmp_path / "lake").as_uri()
    with pytest.raises(Killed):
        archive_parquet(topic.store, "t", target, KilledRunner(1), part_bytes=4000)
    made_again(topic, b"another")
    with pytest.raises(ConfigError, match="another topic 't', which was deleted since"):
        archive_parquet(topic.store, "t", target, ProcessRunner(1))
    assert not list((tmp_path / "lake").rglob("*.commit"))


def test_a_topic_that_is_made_again_writes_over_no_file_of_an_iceberg_table(topic: Topic, tmp_path: Path) -> None:
    from pyspark_firn.jobs.iceberg import local_catalog, opened_table

    catalog = local_catalog(tmp_path / "warehouse")
    archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    again = made_again(topic, b"another")
    archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    found = opened_table("lake.t", catalog).scan().to_arrow()["value"].to_pylist()
    values = [row["value"] for one in (topic, again) for row in one.reference()]
    assert sorted(found) == sorted(values)
    assert len(values) == 600


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_what_came_and_went_in_a_partition_that_was_empty_is_said(topic: Topic, tmp_path: Path, kind: str) -> None:
    def archive() -> Any:
        if kind == "parquet":
            return archive_parquet(topic.store, "t", (tmp_path / "lake").as_uri(), ProcessRunner(1))
        from pyspark_firn.jobs.iceberg import local_catalog

        catalog = local_catalog(tmp_path / "warehouse")
        return archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))

    assert archive().ends == {0: 300, 1: 0}

    async def expire() -> None:
        bucket = BucketBuilder(store_of(topic), topic.path, 66)
        await bucket.add_segment(topic.topic_id, 1, [build_batch([(NOON_MS, None, b"v", ())] * 30)])
        await (await bucket.manifest(topic.topic_id, 1)).set_log_start(Offset(20))

    asyncio.run(expire())
    with pytest.raises(CorruptionError, match=r"t-1 starts at offset 20 now.*\[0, 20\) were deleted"):
        archive()


def test_a_day_that_no_iceberg_table_can_be_told_is_said_with_its_record(tmp_path: Path) -> None:
    from pyspark_firn.jobs.iceberg import local_catalog

    async def make() -> Topic:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic = Topic(tmp_path / "bucket", "t", await bucket.create_topic("t"))
        times = (-1, NOON_MS, 253_402_300_799_999, 253_402_300_800_000)
        await bucket.add_segment(topic.topic_id, 0, [build_batch([(time, None, b"v", ()) for time in times])])
        return topic

    topic = asyncio.run(make())
    catalog = local_catalog(tmp_path / "warehouse")
    with pytest.raises(ConfigError, match="t-0 has a record of 10000-01-01 at offset 3"):
        archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    assert not [path for path in (tmp_path / "warehouse").rglob("data/**/*") if path.is_file()]


def test_what_workers_have_half_written_when_a_run_is_ended_is_removed(topic: Topic, tmp_path: Path) -> None:
    left = tmp_path / "lake" / "t" / "date=2023-11-14" / "_00000-0-9.parquet.0123.tmp"

    class Ended:
        parallelism = 2

        def run(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
            yield function(arguments[0])
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(b"PAR1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        archive_parquet(topic.store, "t", (tmp_path / "lake").as_uri(), Ended(), part_bytes=4000)
    assert not left.exists()
    assert list((tmp_path / "lake").rglob("*.parquet.pending"))


@pytest.mark.parametrize("step", ["__init__", "write_table"])
def test_a_full_target_keeps_nothing_of_a_file(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*arguments: Any, **named: Any) -> None:
        # As Arrow says it.
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    monkeypatch.setattr(f"pyspark_firn.jobs.parquet_files.pq.ParquetWriter.{step}", full)
    told = rf"^Could not write {tmp_path}/out/t/date=.*\.parquet\.pending: No space left on device; free some space\.$"
    with pytest.raises(StorageFull, match=told):
        archive_parquet(topic.store, "t", f"file://{tmp_path}/out", ProcessRunner(1))
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and "_firn" not in path.parts]


def test_a_full_place_for_temporary_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a table's files are written to before they are sent."""
    monkeypatch.setattr(
        "pyspark_firn.jobs.targets.tempfile.TemporaryFile",
        lambda prefix: open("/dev/full", "r+b"),  # noqa: SIM115
    )
    days = DayWriter(
        TableFiles("s3://nowhere/t", {"s3.region": "x"}), "data", "part", arrow_schema(("value", "timestamp"))
    )
    batch = pa.RecordBatch.from_pylist(
        [{"value": b"v", "timestamp": NOON_MS * 1000}], schema=arrow_schema(("value", "timestamp"))
    )
    days.add(batch)
    with pytest.raises(
        StorageFull, match=r"^Could not write temporary files in .* \(TMPDIR .*\): No space left on device; free"
    ):
        days.close()
    days.discard()


def test_files_are_what_anybody_makes_and_no_programs(topic: Topic, tmp_path: Path) -> None:
    archive_parquet(topic.store, "t", (tmp_path / "lake").as_uri(), ProcessRunner(1))
    (tmp_path / "any").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "lake" / "t").rglob("date=*/*")}
    assert modes == {(tmp_path / "any").stat().st_mode}


def test_bad_records_do_not_get_among_those_of_a_topic_of_that_name(topic: Topic, tmp_path: Path) -> None:
    async def make() -> None:
        bucket = await reopened(topic, 44)
        await bucket.add_segment(await bucket.create_topic("t_bad"), 0, [build_batch([(NOON_MS, None, b"{}", ())])])

    asyncio.run(make())
    wanted = ValuesWanted("json", "id bigint")
    one, other = (tmp_path / "one").as_uri(), (tmp_path / "other").as_uri()
    archive_parquet(topic.store, "t_bad", one, ProcessRunner(1))
    with pytest.raises(ConfigError, match="holds an archive of the topic 't_bad'"):
        archive_parquet(topic.store, "t", one, ProcessRunner(1), values=wanted)
    archive_parquet(topic.store, "t", other, ProcessRunner(1), values=wanted)
    with pytest.raises(ConfigError, match="keeps bad records of 't'"):
        archive_parquet(topic.store, "t_bad", other, ProcessRunner(1))


@pytest.mark.ci
def test_topics_of_which_one_has_the_name_of_the_others_bad_records_share_a_target(
    topic: Topic, tmp_path: Path
) -> None:
    """As long as values are archived as they are. The files of both have the same names."""

    async def make() -> None:
        bucket = await reopened(topic, 44)
        made = [build_batch([(NOON_MS - n * DAY_MS, None, b"v", ()) for n in range(300)])]
        await bucket.add_segment(await bucket.create_topic("t_bad"), 0, made)

    asyncio.run(make())
    for name in ("t_bad", "t"):
        archive_parquet(topic.store, name, (tmp_path / "lake").as_uri(), ProcessRunner(1))
    assert len(archived(tmp_path / "lake" / "t_bad")) == len(archived(tmp_path / "lake" / "t")) == 300


def test_a_file_that_is_swept_away_before_it_is_held_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept, flock = [], fcntl.flock

    def late(file: int, operation: int) -> None:
        if not swept:
            swept.extend(tmp_path.glob("*.tmp"))
            swept[0].unlink()
        flock(file, operation)

    monkeypatch.setattr("fcntl.flock", late)
    file = Folder(tmp_path).create("a.parquet")
    Path(file.sink).write_bytes(b"whole")
    assert file.publish() == 5
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_a_table_that_was_changed_by_hand_takes_nothing_that_would_be_wrong(topic: Topic, tmp_path: Path) -> None:
    from pyiceberg.transforms import BucketTransform

    from pyspark_firn.jobs.iceberg import local_catalog, opened_table

    catalog = local_catalog(tmp_path / "warehouse")
    archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    grow(topic, 300, 1)
    table = opened_table("lake.t", catalog)
    with table.update_schema() as schema:
        schema.delete_column("headers")
    with pytest.raises(ConfigError, match=r"The table lake\.t refuses the archive's files"):
        archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    with table.update_spec() as spec:
        spec.add_field("key", BucketTransform(4), "bucket")
    with pytest.raises(ConfigError, match="is partitioned by 'key'"):
        archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    assert table.refresh().scan().to_arrow().num_rows == 300


@pytest.mark.parametrize(
    ("catalog", "sentence"),
    [
        ({"type": "nothing"}, "'nothing' is not a valid CatalogType"),
        ({"type": "sql", "uri": "sqlite:////nowhere/catalog.db", "warehouse": "file:///nowhere"}, "unable to open"),
    ],
)
def test_a_catalog_that_does_not_work_is_said_in_a_sentence(
    topic: Topic, catalog: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^The catalog of lake\.t refused or failed: .*{sentence}"):
        archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
