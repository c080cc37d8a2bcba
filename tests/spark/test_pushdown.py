"""Filters that Spark pushes prune what is read, and never what they leave: Spark applies them all once more. No JVM."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from app.records.builder import build_batch
from app.units import Offset
from pyspark_firn.columns import struct_type
from pyspark_firn.options import parse_read_options
from pyspark_firn.source import PushingReader
from pyspark_firn.splits import StoredSplit
from tests.spark.conftest import rows_of
from tests.spark.reference import Row
from tests.support.buckets import BucketBuilder

NOW_MS = 1_700_000_000_000
COLUMNS = ("topic", "partition", "offset", "timestamp", "value")


async def make(path: Path) -> None:
    """Topics a and b of two partitions, 40 records each in two segments of two chunks; a record is a second younger than the one
    before it but for every seventh, which is a minute older."""
    bucket = await BucketBuilder.open(path)
    for name in ("a", "b"):
        topic_id = await bucket.create_topic(name, 2)
        for partition in range(2):
            for first in (0, 20):
                made = [
                    build_batch(
                        [(time_of(offset), None, b"%d" % offset, ()) for offset in range(start, start + 10)],
                        base_offset=Offset(start),
                    )
                    for start in (first, first + 10)
                ]
                await bucket.add_segment(topic_id, partition, made, chunk_bytes=100)


def time_of(offset: int) -> int:
    return NOW_MS + offset * 1000 - (60_000 if offset % 7 == 6 else 0)


def moment(offset: int) -> datetime:
    return datetime.fromtimestamp(time_of(offset) / 1000, UTC)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bucket")
    asyncio.run(make(path))
    return path.as_uri()


def planned(bucket: str, filters: Sequence[Filter]) -> tuple[PushingReader, list[Any]]:
    options = parse_read_options(
        {"store": bucket, "subscribe": "a,b", "pushdown": "true", "columns": ",".join(COLUMNS)}, streaming=False
    )
    reader = PushingReader(options, struct_type(COLUMNS))
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark is to apply every filter once more"
    return reader, reader.partitions()


def read(bucket: str, filters: Sequence[Filter]) -> list[Row]:
    reader, splits = planned(bucket, filters)
    return rows_of([batch for split in splits for batch in reader.read(split)])


@functools.cache
def read_all(bucket: str) -> list[Row]:
    return read(bucket, ())


def fits(row: Row, one: Any) -> bool:
    """What the filter says of a row, in plain Python."""
    value = row[one.attribute[0]] if not isinstance(one, Not) else None
    if one.__class__ is not Not and one.attribute[0] == "timestamp":
        value = datetime.fromtimestamp(value / 1000, UTC)
    match one:
        case EqualTo() | EqualNullSafe():
            return bool(value == one.value)
        case In():
            return value in one.value
        case GreaterThan():
            return bool(value > one.value)
        case GreaterThanOrEqual():
            return bool(value >= one.value)
        case LessThan():
            return bool(value < one.value)
        case LessThanOrEqual():
            return bool(value <= one.value)
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case StringContains():
            return one.value in value
        case StringStartsWith():
            return bool(value.startswith(one.value))
        case Not():
            return not fits(row, one.child)
        case _:
            raise AssertionError(one)


def comparisons(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    kinds: list[Callable[..., Filter]] = [
        EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual,
    ]  # fmt: skip
    return st.one_of(
        st.builds(lambda kind, value: kind((column,), value), st.sampled_from(kinds), values),
        st.builds(lambda some: In((column,), tuple(some)), st.lists(values, min_size=1, max_size=3)),
    )


OFFSETS = st.integers(-2, 45)
UNDERSTOOD_OR_NOT = st.one_of(
    comparisons("topic", st.sampled_from(["a", "b", "c"])),
    comparisons("partition", st.integers(-1, 3)),
    comparisons("offset", OFFSETS),
    comparisons("timestamp", OFFSETS.map(moment)),
    comparisons("timestamp", OFFSETS.map(lambda offset: moment(offset) + timedelta(microseconds=500))),
    st.sampled_from([IsNull(("value",)), IsNotNull(("value",)), StringContains(("topic",), "a")]),
    st.sampled_from([StringStartsWith(("topic",), "b"), Not(EqualTo(("topic",), "a")), Not(EqualTo(("offset",), 3))]),
)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(filters=st.lists(UNDERSTOOD_OR_NOT, max_size=4))
def test_whatever_filters_are_pushed_no_record_that_fits_them_is_left_out(bucket: str, filters: list[Filter]) -> None:
    everything = read_all(bucket)
    assert len(everything) == 160
    found = read(bucket, filters)
    assert all(row in everything for row in found)
    assert [row for row in found if all(fits(row, one) for one in filters)] == [
        row for row in everything if all(fits(row, one) for one in filters)
    ]


@pytest.mark.parametrize(
    ("filters", "partitions", "offsets"),
    [
        ([EqualTo(("topic",), "a")], {("a", 0), ("a", 1)}, range(40)),
        ([In(("topic",), ("b", "c")), EqualTo(("partition",), 1)], {("b", 1)}, range(40)),
        ([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], set(), range(0)),
        ([EqualTo(("offset",), 17), EqualTo(("topic",), "a"), EqualTo(("partition",), 0)], {("a", 0)}, range(17, 18)),
        # Whole chunks of ten records go, by the youngest that is in them.
        (
            [GreaterThanOrEqual(("timestamp",), moment(29)), EqualTo(("topic",), "b")],
            {("b", 0), ("b", 1)},
            range(20, 40),
        ),
        (
            [GreaterThan(("timestamp",), moment(25)), LessThan(("offset",), 35), In(("partition",), (0,))],
            {("a", 0), ("b", 0)},
            range(20, 35),
        ),
        ([GreaterThan(("timestamp",), moment(39))], {("a", 0), ("a", 1), ("b", 0), ("b", 1)}, range(20, 40)),
        ([GreaterThan(("timestamp",), moment(39) + timedelta(seconds=1))], set(), range(0)),
    ],
)
def test_what_filters_leave_is_what_is_planned(
    bucket: str, filters: list[Filter], partitions: set[tuple[str, int]], offsets: range
) -> None:
    _, splits = planned(bucket, filters)
    assert all(isinstance(split, StoredSplit) for split in splits)
    assert {(split.topic, split.partition) for split in splits} == partitions
    for topic, partition in partitions:
        found = [
            row["offset"] for row in read(bucket, filters) if (row["topic"], row["partition"]) == (topic, partition)
        ]
        assert found == list(offsets)


@pytest.mark.parametrize(
    "one",
    [
        LessThan(("timestamp",), moment(0)),
        GreaterThan(("timestamp",), moment(39).replace(tzinfo=None)),
        Not(EqualTo(("topic",), "a")),
        StringStartsWith(("topic",), "b"),
        EqualTo(("topic", "nested"), "a"),
        IsNull(("value",)),
        EqualTo(("offset",), None),
    ],
)
def test_a_filter_that_is_not_understood_prunes_nothing(bucket: str, one: Filter) -> None:
    assert len(read(bucket, [one])) == 160


def test_records_without_a_time_fit_a_filter_from_before_1970(tmp_path: Path) -> None:
    async def tier() -> None:
        bucket = await BucketBuilder.open(tmp_path)
        for name in ("a", "b"):
            topic_id = await bucket.create_topic(name)
            await bucket.add_segment(topic_id, 0, [build_batch([(-1, None, b"v", ())])])

    asyncio.run(tier())
    assert len(read(tmp_path.as_uri(), [GreaterThan(("timestamp",), datetime(1969, 1, 1, tzinfo=UTC))])) == 2
    assert read(tmp_path.as_uri(), [GreaterThan(("timestamp",), datetime(1970, 1, 1, tzinfo=UTC))]) == []
