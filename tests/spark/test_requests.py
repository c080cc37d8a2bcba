"""What may be asked for, what is refused and how, and what is read when something is wrong with the bucket. No JVM."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pyspark_firn
from app.errors import ConfigError, CorruptionError
from app.metadata.manifest_state import SegmentState
from app.objectstore.directory import DirectoryStore
from app.records.builder import build_batch
from app.units import Offset
from pyspark_firn.batch import plan
from pyspark_firn.options import parse_read_options
from pyspark_firn.splits import StoredSplit
from pyspark_firn.tasks import read_split
from tests.spark.conftest import Topic, read, rows_of
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
        ({"startingOffsets": "latest"}, (300, 300)),
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
        ({"subscribe": "t", "startingOffset": "1"}, "There is no option 'startingOffset': there are store"),
        ({"subscribe": "t", "kafka.bootstrap.servers": "h:1"}, "write tail"),
        ({"subscribe": "t", "maxBytesPerTrigger": "1"}, "only a stream has triggers"),
        ({"subscribe": "t", "endingOffsets": "earliest"}, "write latest or JSON"),
        (
            {"subscribe": "t", "endingOffsets": '{"t": {"0": 301}}'},
            r"Offset 301 is past the end of t-0, which has \[0, 300\)",
        ),
        ({"subscribe": "t", "startingOffsets": '{"u": {"0": 1}}'}, "leave out t-0"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": 1, "1": 1}}'}, "name t-1, which is not read"),
        ({"subscribe": "t", "startingTimestamp": "2013-07-01T00:00:00"}, "without a time zone: add one"),
        ({"subscribe": "t", "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"subscribe": "t", "startingTimestamp": str(NOW_MS + 900)}, "no record of time"),
        ({"subscribe": "t", "columns": "offset,valve"}, "no column 'valve'"),
        ({"subscribe": "t", "splitBytes": "12"}, "at least 1048576"),
        ({"subscribe": "t", "isolation": "dirty"}, "read_committed or read_uncommitted"),
        ({"subscribe": "t", "tail": "here"}, "host:9092"),
        ({"subscribe": "t", "failOnDataLoss": "yes"}, "true or false"),
    ],
)
def test_mistakes_are_one_plain_sentence(topic: Topic, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        plan(parse_read_options({"store": topic.store, **options}, streaming=False))
    assert "\n" not in str(caught.value)


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


@pytest.mark.parametrize(
    "use",
    [
        'pyspark_firn.DefaultSource({"store": "file:///nowhere", "subscribe": "t"})',
        'pyspark_firn.count("file:///nowhere", "t")',
        "from pyspark_firn.jobs.archive import archive_parquet",
    ],
    ids=["source", "count", "job"],
)
def test_a_users_own_package_named_app_is_told_of_in_a_sentence(tmp_path: Path, use: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", SHADOWED, str(tmp_path), use], capture_output=True, text=True, timeout=120, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert "FirnAppShadowed: The package 'app' is " in last
    assert "not Firn's: Firn's modules live in a package of that name, so rename yours" in last


def test_counts_come_from_metadata(topic: Topic) -> None:
    for path in (topic.path / "data").rglob("*.seg"):
        path.unlink()
    assert pyspark_firn.count(topic.store, "t") == 300


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


def test_a_flipped_bit_is_named_with_its_object(topic: Topic) -> None:
    parsed, splits = _plan(topic)
    path = _segment_path(topic, 100)
    damaged = bytearray(path.read_bytes())
    damaged[500] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptionError, match=rf"{path.name}: wrong CRC of the chunk at position"):
        _read(parsed, splits)


def test_a_footer_of_the_future_is_refused_in_words(topic: Topic) -> None:
    parsed, splits = _plan(topic)
    path = _segment_path(topic, 0)
    path.write_bytes(path.read_bytes()[:-40] + b"\x00" * 40)
    with pytest.raises(CorruptionError, match=path.name):
        _read(parsed, splits)


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
                *(manifest._enter(entry, SegmentState.DELETE_STARTED) for entry in old),
                manifest._enter(new, SegmentState.COPY_FINISHED),
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
