"""What may be asked for, what is refused and how, and what is read when something is wrong with the bucket. No JVM."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

import pyspark_firn
from app.core.errors import ConfigError, CorruptionError, StorageUnavailable
from app.core.units import Offset
from app.metadata.log.log_format import decode_entry, encode_entry
from app.metadata.manifest.manifest_state import SegmentState
from app.objectstore.directory import DirectoryStore
from app.objectstore.directory_work import DirectoryWork
from app.records.builder import build_batch
from pyspark_firn.batch import plan
from pyspark_firn.columns import column_names
from pyspark_firn.options import parse_read_options
from pyspark_firn.source import FirnReader
from pyspark_firn.spark_version import SparkTooOld, require_spark
from pyspark_firn.splits import StoredSplit
from pyspark_firn.tasks import read_split
from tests.spark.conftest import Topic, read, rows_of
from tests.spark.damages import flip, of_the_future
from tests.support.buckets import BucketBuilder

NOW_MS = 1_700_000_000_000


async def add(bucket: BucketBuilder, topic_id: Any, first: int, count: int = 100, **options: Any) -> Any:
    made = [
        build_batch([(NOW_MS + n, None, b"v%d" % n, ()) for n in range(start, start + 10)], base_offset=Offset(start))
        for start in range(first, first + count, 10)
    ]
    return await bucket.add_segment(topic_id, 0, made, chunk_bytes=400, **options)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """Offsets [0, 300) in three segments; a record's time is NOW_MS plus its offset."""

    async def make() -> Topic:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic_id = await bucket.create_topic("t")
        for first in (0, 100, 200):
            await add(bucket, topic_id, first)
        return Topic(tmp_path / "bucket", "t", topic_id)

    return asyncio.run(make())


def offsets(topic: Topic, **options: str) -> list[int]:
    return [row["offset"] for row in read(topic, columns=("offset",), **options)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0, 300)),
        ({"startingOffsets": '{"t": {"0": 150}}', "endingOffsets": '{"t": {"0": 155}}'}, (150, 155)),
        ({"startingOffsets": '{"t": {"0": -2}}', "endingOffsets": '{"t": {"0": -1}}'}, (0, 300)),
        ({"startingOffsets": '{"t": {"0": 300}}'}, (300, 300)),
        ({"STARTINGoffsets": " Earliest ", "ENDINGoffsets": "LATEST", "failondataloss": " TRUE"}, (0, 300)),
        ({"startingOffsets": '{"t": {"0": 5, "0": 7}}'}, (7, 300)),
        ({"startingOffsets": '{"t": {"0": 5}}', "startingTimestamp": str(NOW_MS + 9)}, (9, 300)),
        ({"startingTimestamp": str(NOW_MS + 7), "endingTimestamp": str(NOW_MS + 213)}, (7, 213)),
        ({"startingTimestamp": f'{{"t": {{"0": {NOW_MS + 99}}}}}'}, (99, 300)),
        ({"startingOffsetsByTimestamp": f'{{"t": {{"0": {NOW_MS + 101}}}}}'}, (101, 300)),
        ({"startingTimestamp": "2023-11-14T22:13:20.250Z", "endingTimestamp": str(NOW_MS + 10**6)}, (250, 300)),
        ({"startingTimestamp": str(NOW_MS + 900), "startingOffsetsByTimestampStrategy": "latest"}, (300, 300)),
    ],
)
def test_ranges_are_read_exactly(topic: Topic, options: dict[str, str], expected: tuple[int, int]) -> None:
    assert offsets(topic, **options) == list(range(*expected))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "nowhere"}, "There is no topic 'nowhere' in file://"),
        ({"subscribe": "t", "subscribePattern": "t"}, "subscribe and subscribePattern are given"),
        ({}, "none is given"),
        ({"subscribePattern": "x.*"}, "No topic in .* matches 'x.\\*'"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"assign": '{"t": [9]}'}, "partitions 0 to 0 and no partition 9"),
        ({"assign": "t"}, "no JSON"),
        (
            {"subscribe": "t", "startingOffset": "1"},
            "There is no option 'startingOffset': perhaps startingOffsets is meant",
        ),
        (
            {"subscribe": "t", "colour": "1"},
            "There is no option 'colour': there are store, .*, endingOffsetsByTimestamp.$",
        ),
        (
            {"subscribe": "t", "PushDown": "true"},
            "There is no option 'pushdown': leave it out, records were missing with it",
        ),
        ({"subscribe": "t", "minpartitions": "4"}, "There is no option 'minPartitions': leave it out, splits follow"),
        (
            {"subscribe": "t", "kafka.group.id": "g", "kafka.max.poll.records": "9", "maxOffsetsPerTrigger": "1"},
            r"There are no options 'kafka.group.id' \(leave it out, .*\), 'kafka.max.poll.records' \(.*\),"
            r" 'maxOffsetsPerTrigger' \(write maxRecordsPerTrigger\)\.$",
        ),
        ({"subscribe": "t", "kafka.bootstrap.servers": "h:1"}, "write tail"),
        ({"subscribe": "t", "maxBytesPerTrigger": "1"}, "only a stream has triggers"),
        ({"subscribe": "t", "endingOffsets": "earliest"}, "write latest or JSON"),
        ({"subscribe": "t", "startingOffsets": "latest"}, "'latest', and a batch has nothing to read there"),
        (
            {"subscribe": "t", "startingOffsets": '{"t": {"0": -1}}'},
            "has -1 for t-0: write an offset, or -2 for earliest",
        ),
        ({"subscribe": "t", "endingOffsets": '{"t": {"0": -2}}'}, "has -2 for t-0: write an offset, or -1 for latest"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": true}}'}, "has true for t-0"),
        (
            {"subscribe": "t", "startingOffsets": '{"t": {"0": 20}}', "endingOffsets": '{"t": {"0": 19}}'},
            "The read of t-0 starts at offset 20 and ends before, at offset 19",
        ),
        (
            {"subscribe": "t", "startingTimestamp": str(NOW_MS + 5), "endingTimestamp": str(NOW_MS + 4)},
            "The read of t-0 starts at offset 5 and ends before, at offset 4",
        ),
        (
            {"subscribe": "t", "endingOffsets": '{"t": {"0": 301}}'},
            r"Offset 301 is past the end of t-0, which has \[0, 300\)",
        ),
        ({"subscribe": "t", "startingOffsets": '{"u": {"0": 1}}'}, "leave out t-0"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": 1, "1": 1}}'}, "name t-1, which is not read"),
        ({"subscribe": "t", "startingTimestamp": "2013-07-01T00:00:00"}, "without a time zone: add one"),
        (
            {"subscribe": "t", "endingTimestamp": "2013-07-01"},
            r"as in 2013-07-01T00:00:00Z or 2013-07-01T00:00:00\+02:00",
        ),
        ({"subscribe": "t", "startingOffsetsByTimestamp": '{"t": {"0": "2013-07-01T00:00"}}'}, "without a time zone"),
        ({"subscribe": "t", "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"subscribe": "t", "startingTimestamp": "-1"}, "milliseconds since 1970"),
        ({"subscribe": "t", "startingTimestamp": "9" * 5000}, "milliseconds since 1970"),
        ({"subscribe": "t", "endingTimestamp": "1969-12-31T23:59:59.999Z"}, "before 1970: write 0 or a later time"),
        ({"subscribe": "t", "splitBytes": "9" * 5000}, "write a number"),
        ({"subscribe": "t", "startingTimestamp": str(NOW_MS + 900)}, "no record of time"),
        ({"subscribe": "t", "columns": "offset,valve"}, "no column 'valve'"),
        ({"subscribe": "t", "splitBytes": "12"}, "at least 1048576"),
        ({"subscribe": "t", "splitBytes": "64MiB"}, "'64MiB': write a number, perhaps with k, m or g"),
        ({"subscribe": "t", "isolation": "dirty"}, "read_committed or read_uncommitted"),
        ({"subscribe": "t", "tail": "here"}, "host:9092"),
        ({"subscribe": "t", "failOnDataLoss": "yes"}, "true or false"),
    ],
)
def test_mistakes_are_one_plain_sentence(topic: Topic, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        plan(parse_read_options({"store": topic.store, **options}, streaming=False))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("t", ["other", "t", "t2"]),
        ("^t", ["t", "t2"]),
        ("^t$", ["t"]),
        ("(?i)T.*R", ["other"]),
        (".*", ["other", "t", "t2"]),
        ("__", []),
    ],
)
def test_a_pattern_need_only_be_found_in_a_name_and_finds_no_topic_of_the_brokers_own(
    pattern: str, topics: list[str]
) -> None:
    """As with Spark's Kafka source."""
    options = parse_read_options({"store": "file:///nowhere", "subscribePattern": pattern}, streaming=False)
    names = ("__consumer_offsets", "__share_group_state", "__transaction_state", "other", "t", "t2")
    assert [name for name in names if options.subscription.wants(name)] == topics


def test_no_reader_takes_filters_of_one_query_that_would_prune_another() -> None:
    """Spark 4.2 gives the plan that a query's filters have pruned to other queries of the same DataFrame."""
    assert "pushFilters" not in vars(FirnReader)
    assert FirnReader.pushFilters is DataSourceReader.pushFilters


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end; leave it out"),
        (
            {"pushdown": "true"},
            "There is no option 'pushdown': leave it out, records were missing with it: Spark gives",
        ),
        ({"maxRecordsPerTrigger": "1k"}, "write a whole number, at least 1"),
        ({"maxRecordsPerTrigger": "0"}, "write a whole number, at least 1"),
        ({"maxBytesPerTrigger": "0"}, "write at least 1"),
        ({"minOffsetsPerTrigger": "5"}, "a trigger takes what there is; say how often"),
        ({"maxRecordPerTrigger": "5"}, "perhaps maxRecordsPerTrigger is meant"),
    ],
)
def test_mistakes_of_a_stream_are_one_plain_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_read_options({"store": "file:///nowhere", "subscribe": "t", **options}, streaming=True)


@pytest.mark.parametrize(
    ("ddl", "sentence"),
    [
        ("offset int", "The column 'offset' is of type bigint, not int: cast it after reading."),
        ("offset bigint not null", "cannot be declared NOT NULL: leave that out"),
        ("note string", "There is no column 'note': a topic has key, value, "),
        ("offset bigint, offset bigint", "The column 'offset' is in the schema more than once: name it once."),
    ],
)
def test_a_schema_that_no_topic_has_is_told_of_in_a_sentence(ddl: str, sentence: str) -> None:
    types = {"int": IntegerType(), "bigint": LongType(), "string": StringType()}
    fields = [field.split() for field in ddl.split(", ")]
    schema = StructType([StructField(name, types[kind], not null) for name, kind, *null in fields])
    with pytest.raises(ConfigError, match=sentence):
        column_names(schema)


@pytest.mark.parametrize("version", ["3.5.1", "4.0.0", "4.1.0.dev2"])
def test_an_older_spark_is_told_which_one_is_needed(version: str) -> None:
    with pytest.raises(SparkTooOld, match=rf"^This is pyspark {version}, and Firn needs 4.2 or newer: pip install"):
        require_spark(version)


def test_a_bucket_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no folder"):
        plan(parse_read_options({"store": (tmp_path / "no").as_uri(), "subscribe": "t"}, streaming=False))
    with pytest.raises(ConfigError, match="There is no Firn cluster"):
        plan(parse_read_options({"store": tmp_path.as_uri(), "subscribe": "t"}, streaming=False))


LEFT_HALF_READ = """
import sys
from pyspark_firn.batch import plan
from pyspark_firn.options import parse_read_options
from pyspark_firn.tasks import read_split

options = parse_read_options({"store": sys.argv[1], "subscribe": "t"}, streaming=False)
left = read_split(options, options.columns, plan(options)[0])
print(next(left).num_rows > 0)
"""


def test_a_read_that_is_left_half_done_lets_the_interpreter_end_in_peace(topic: Topic) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_HALF_READ, topic.store], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


SHADOWED = """
import sys
sys.path.insert(0, sys.argv[1])
import pyspark_firn
exec(sys.argv[2])
"""


USES = {
    "source": 'pyspark_firn.DefaultSource({"store": "file:///nowhere", "subscribe": "t"})',
    "count": 'pyspark_firn.count("file:///nowhere", "t")',
    "job": "from pyspark_firn.jobs.archive import archive_parquet",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_users_own_package_named_app_is_told_of_in_a_sentence(tmp_path: Path, use: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("")
    assert_told_of_shadowing(tmp_path, use, str(tmp_path / "app" / "__init__.py"))


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_users_own_program_named_app_is_told_of_and_not_run(tmp_path: Path, use: str) -> None:
    """Spark's processes look for modules where the program was started: ``spark-submit app.py``."""
    (tmp_path / "app.py").write_text("raise SystemExit('it was run')")
    assert_told_of_shadowing(tmp_path, use, str(tmp_path / "app.py"))


OPENED = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
for data in pickle.load(sys.stdin.buffer):
    try:
        pickle.loads(data)
    except ImportError as error:
        print(type(error).__name__, error)
"""


def test_what_spark_sends_to_other_processes_tells_of_another_app_there(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("")
    schema = StructType([StructField("value", BinaryType())])
    reads = pyspark_firn.DefaultSource({"store": "file:///nowhere", "subscribe": "t"})
    writes = pyspark_firn.DefaultSource({"bootstrap": "h:1", "topic": "t"})
    sent = [reads, reads.reader(schema), reads.streamReader(schema)]
    sent += [writes.writer(schema, overwrite=False), writes.streamWriter(schema, overwrite=False)]
    data = [pickle.dumps(one) for one in sent]
    assert [type(pickle.loads(one)) for one in data] == [type(one) for one in sent]
    done = subprocess.run(
        [sys.executable, "-c", OPENED, str(tmp_path)],
        input=pickle.dumps(data),
        capture_output=True,
        timeout=120,
        check=True,
    )
    told = done.stdout.decode().splitlines()
    named = f"FirnAppShadowed The package 'app' is {tmp_path}/app/__init__.py, not Firn's"
    assert [line.startswith(named) for line in told] == [True] * len(sent)


def assert_told_of_shadowing(path: Path, use: str, named: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHADOWED, str(path), use], capture_output=True, text=True, timeout=120, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert f"FirnAppShadowed: The package 'app' is {named}, not Firn's: Firn's modules live in a" in last
    assert "package of that name, so rename yours" in last


def test_counts_come_from_metadata(topic: Topic) -> None:
    for path in (topic.path / "data").rglob("*.seg"):
        path.unlink()
    assert pyspark_firn.count(topic.store, "t") == 300


def test_whole_segments_are_planned_without_a_look_at_any_data(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    for name in ("get", "get_range", "get_tail", "head", "list_objects"):
        whole = getattr(DirectoryStore, name)

        async def noted(self: DirectoryStore, key: str, *rest: Any, whole: Any = whole, **named: Any) -> Any:
            looked_at.append(key)
            return await whole(self, key, *rest, **named)

        monkeypatch.setattr(DirectoryStore, name, noted)
    _, splits = _plan(topic)
    assert [(split.offset_start, split.offset_end) for split in splits] == [(0, 300)]
    assert {key.partition("/")[0] for key in looked_at} == {"cluster", "topics"}
    # A range that cuts a segment looks into that one's footer, and into no other.
    looked_at.clear()
    _plan(topic, **_cut_at(150))
    assert {key for key in looked_at if key.startswith("data/")} == {
        _segment_path(topic, 100).relative_to(topic.path).as_posix()
    }


def test_several_chunks_are_under_way_at_a_time(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, splits = _plan(topic)
    footers = {piece.object_key: piece.footer_position for split in splits for piece in split.pieces}
    get_range, under_way, enough = DirectoryStore.get_range, 0, asyncio.Event()

    async def together(self: DirectoryStore, key: str, start: int, end: int) -> Any:
        nonlocal under_way
        if start < footers[key]:
            under_way += 1
            if under_way == 4:
                enough.set()
            async with asyncio.timeout(60):
                await enough.wait()
        return await get_range(self, key, start, end)

    monkeypatch.setattr(DirectoryStore, "get_range", together)
    # As of any other store: chunks of a directory are read in their turn.
    monkeypatch.setattr("pyspark_firn.reading.DirectoryStore", type("NoDirectoryStore", (), {}))
    monkeypatch.setattr("pyspark_firn.reading.GET_ATTEMPTS", 1)
    assert _read(parsed, splits) == list(range(300))


def test_what_a_directory_does_not_give_at_once_is_asked_for_again(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, splits = _plan(topic)
    footers = {piece.object_key: piece.footer_position for split in splits for piece in split.pieces}
    whole, refused = DirectoryWork.read, set[tuple[str, int]]()

    def second_time(self: DirectoryWork, key: str, start: int, end: int | None) -> bytes:
        if start < footers.get(key, 0) and (key, start) not in refused:
            refused.add((key, start))
            raise StorageUnavailable(f"Could not read {key}")
        return whole(self, key, start, end)

    monkeypatch.setattr(DirectoryWork, "read", second_time)
    assert _read(parsed, splits) == list(range(300))
    assert len(refused) > len(footers)


def _segment_path(topic: Topic, base: int) -> Path:
    [path] = (topic.path / "data").rglob(f"{base:020d}-*.seg")
    return path


def _plan(topic: Topic, **options: str) -> tuple[Any, list[StoredSplit]]:
    parsed = parse_read_options(
        {"store": topic.store, "subscribe": "t", "columns": "offset", **options}, streaming=False
    )
    splits = plan(parsed)
    assert all(isinstance(split, StoredSplit) for split in splits)
    return parsed, splits  # type: ignore[return-value]


def _read(parsed: Any, splits: list[StoredSplit]) -> list[int]:
    return [
        row["offset"] for row in rows_of([batch for split in splits for batch in read_split(parsed, ["offset"], split)])
    ]


MEND = r"bring the object back from a copy, or leave its offsets out; `firn verify` tells what else is damaged\.$"


def test_a_flipped_bit_is_named_with_its_object_and_what_to_do(topic: Topic) -> None:
    parsed, splits = _plan(topic)
    path = _segment_path(topic, 100)
    flip(path, 500)
    with pytest.raises(
        CorruptionError, match=rf"{path.name}: wrong CRC of the chunk at position \d+: {MEND}"
    ) as caught:
        _read(parsed, splits)
    assert "\n" not in str(caught.value)


def test_a_damaged_footer_is_named_with_its_object_and_what_to_do(topic: Topic) -> None:
    parsed, splits = _plan(topic)
    path = _segment_path(topic, 0)
    flip(path, -100)
    with pytest.raises(CorruptionError, match=rf"{path.name}: wrong CRC of the footer at position \d+: {MEND}"):
        _read(parsed, splits)


def _cut_at(offset: int) -> dict[str, str]:
    return {"startingOffsets": f'{{"t": {{"0": {offset}}}}}'}


def _at_time(offset: int) -> dict[str, str]:
    return {"startingTimestamp": str(NOW_MS + offset)}


@pytest.mark.parametrize("options", [_cut_at(150), _at_time(150)], ids=["offset", "time"])
def test_a_damaged_footer_is_found_when_planning_looks_into_it(topic: Topic, options: dict[str, str]) -> None:
    path = _segment_path(topic, 100)
    flip(path, -100)
    with pytest.raises(CorruptionError, match=rf"{path.name}: wrong CRC of the footer at position \d+: {MEND}"):
        _plan(topic, **options)


@pytest.mark.parametrize("options", [_cut_at(150), _at_time(150)], ids=["offset", "time"])
def test_a_missing_object_is_found_when_planning_looks_into_it(topic: Topic, options: dict[str, str]) -> None:
    path = _segment_path(topic, 100)
    path.unlink()
    with pytest.raises(CorruptionError, match=rf"{path.name} is gone, although the manifest names it: {MEND}"):
        _plan(topic, **options)


def test_an_object_that_goes_while_a_time_is_looked_for_is_named(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _segment_path(topic, 100)
    get_range = DirectoryStore.get_range

    async def gone(self: DirectoryStore, key: str, start: int, end: int) -> Any:
        if key.endswith(path.name):
            path.unlink()
        return await get_range(self, key, start, end)

    monkeypatch.setattr(DirectoryStore, "get_range", gone)
    with pytest.raises(CorruptionError, match=rf"{path.name} is gone, although the manifest names it: {MEND}"):
        _plan(topic, **_at_time(150))


def test_a_flipped_bit_is_found_when_planning_looks_for_a_time(topic: Topic) -> None:
    path = _segment_path(topic, 100)
    flip(path, 1)
    with pytest.raises(CorruptionError, match=rf"{path.name}: wrong CRC of the chunk at position 0: {MEND}"):
        _plan(topic, **_at_time(101))


def test_a_segment_of_a_future_format_asks_for_newer_software(topic: Topic) -> None:
    path = _segment_path(topic, 100)
    parsed, splits = _plan(topic)
    of_the_future(path)
    told = rf"{path.name}: .*format version 9 is from the future: this software knows up to 1; upgrade it\.$"
    with pytest.raises(CorruptionError, match=told):
        _read(parsed, splits)
    with pytest.raises(CorruptionError, match=told):
        _plan(topic, **_cut_at(150))


@pytest.mark.parametrize("log", ["cluster", "topics"])
def test_metadata_of_a_future_format_names_its_object_and_asks_for_newer_software(topic: Topic, log: str) -> None:
    newest = max((topic.path / log).rglob("log/*"))
    key = newest.relative_to(topic.path).as_posix()
    entry = decode_entry(key, int(newest.name), newest.read_bytes())
    name, value = entry.records[-1]
    assert value is not None
    fields = msgspec.msgpack.decode(value)
    newer = [*entry.records[:-1], (name, msgspec.msgpack.encode([9, *fields[1:]]))]
    newest.write_bytes(encode_entry(**{**entry._asdict(), "records": newer}))
    with pytest.raises(CorruptionError, match=rf"{key}: .*format version from the future: .* upgrade it") as caught:
        _plan(topic)
    assert "\n" not in str(caught.value)


def test_a_segment_that_was_replaced_under_the_job_is_read_from_its_replacement(topic: Topic) -> None:
    parsed, splits = _plan(topic)
    first = next(iter(read_split(parsed, ["offset"], splits[0])))
    assert first.num_rows

    async def replace() -> None:
        again = BucketBuilder(_store(topic), topic.path, 9)
        manifest = await again.manifest(topic.topic_id, 0)
        old = [entry for entry in manifest.finished if entry.base_offset >= 100]
        new = await add(again, topic.topic_id, 100, 200, enter=False)
        await manifest.copy_started(new)
        await manifest.change(
            lambda state: [
                *(manifest.entered(entry, SegmentState.DELETE_STARTED) for entry in old),
                manifest.entered(new, SegmentState.COPY_FINISHED),
            ]
        )
        await again.store.delete_many([manifest.object_key(entry) for entry in old])

    asyncio.run(replace())
    assert _read(parsed, splits) == list(range(300))


def test_what_retention_took_under_the_job_is_an_error_or_a_counted_warning(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    parsed, splits = _plan(topic)
    lenient, _ = _plan(topic, failOnDataLoss="false")

    async def expire() -> None:
        again = BucketBuilder(_store(topic), topic.path, 9)
        manifest = await again.manifest(topic.topic_id, 0)
        doomed = manifest.finished[0]
        await manifest.delete_started([doomed.segment_id], log_start_offset=100)
        await again.store.delete(manifest.object_key(doomed))

    asyncio.run(expire())
    with pytest.raises(CorruptionError, match=r"Offsets \[0, 100\) of t-0 are gone .* failOnDataLoss=false"):
        _read(parsed, splits)
    assert _read(lenient, splits) == list(range(100, 300))
    assert "(100 offsets)" in caplog.text


def _store(topic: Topic) -> DirectoryStore:
    return DirectoryStore(topic.path)
