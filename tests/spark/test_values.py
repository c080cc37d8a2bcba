"""Values of an archive are decoded, or kept aside with the reason; never changed."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections.abc import Sequence
from datetime import datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.dataset as ds
import pytest

from app.core.errors import ConfigError
from app.core.units import Offset, TopicId
from app.objectstore.directory import DirectoryStore
from app.records.builder import build_batch
from pyspark_firn.jobs.archive import ArchiveSummary, ValuesWanted, archive_iceberg, archive_parquet
from pyspark_firn.jobs.running import ProcessRunner
from tests.spark.conftest import Topic
from tests.support.buckets import BucketBuilder

NOW_MS = 1_700_000_000_000
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": "double"}},
    ],
}

HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
HOSTILE = [
    b"",
    b"\x00\x0a",  # a branch that the union has not
    b"\x00\x02" + HUGE,  # a string longer than memory
    b"\x00\x02\x02\xff\x00\x00",  # not UTF-8
    b"\x00\x00" + HUGE + b"\x00",  # a moment after the last year
    b"\x00\x00\x00" + HUGE,  # more elements than there are bytes
    b"\xff" * 40,  # a number without end
]
INDEXED = {
    "type": "record",
    "name": "Indexed",
    "fields": [
        {"name": "before", "type": {"type": "array", "items": {"type": "map", "values": ["null", "string"]}}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b", "c"]}},
        {"name": "again", "type": ["null", "Kind"]},
    ],
}
WIDE = {"name": "wide", "type": {"type": "bytes", "logicalType": "decimal", "precision": 50}}
EMPTY_ELEMENTS = {"name": "nothings", "type": {"type": "array", "items": "null"}}


def topic_of(path: Path, values: Sequence[bytes | None]) -> Topic:
    async def make() -> Topic:
        bucket = await BucketBuilder.open(path)
        topic_id = await bucket.create_topic("t")
        await bucket.add_segment(topic_id, 0, [build_batch([(NOW_MS, None, value, ()) for value in values])])
        return Topic(path, "t", topic_id)

    return asyncio.run(make())


def archived(tmp_path: Path, values: Sequence[bytes | None], wanted: ValuesWanted) -> tuple[list[dict], list[dict]]:  # type: ignore[type-arg]
    topic = topic_of(tmp_path / "bucket", values)
    summary = archive_parquet(topic.store, "t", (tmp_path / "lake").as_uri(), ProcessRunner(1), values=wanted)
    good = ds.dataset(tmp_path / "lake" / "t", format="parquet").to_table().to_pylist()
    folder = tmp_path / "lake" / "t_bad"
    bad = ds.dataset(folder, format="parquet").to_table().to_pylist() if folder.exists() else []
    assert (summary.records, summary.bad_records) == (len(good), len(bad))
    return good, bad


def test_json_of_a_given_schema_and_its_bad_records(tmp_path: Path) -> None:
    values = [
        b'{"id": 1, "name": "a", "more": 2}',
        b'{"id": "x"}',
        b"{",
        None,
        b'{"id": 2.5}',
        b"[1]",
        b'{"name": null}',
    ]
    good, bad = archived(tmp_path, values, ValuesWanted("json", "id bigint, name string"))
    assert [(row["offset"], row["data"]) for row in good] == [
        (0, {"id": 1, "name": "a"}),
        (3, None),
        (6, {"id": None, "name": None}),
    ]
    assert [(row["offset"], row["value"]) for row in bad] == [(n, values[n]) for n in (1, 2, 4, 5)]
    assert all(row["reason"] for row in bad)


def test_an_inferred_shape_is_fixed_by_the_first_run(tmp_path: Path) -> None:
    values = [b'{"id": 1, "tags": ["x"], "at": {"lat": 1.5}}', b'{"id": 2, "extra": true}']
    good, bad = archived(tmp_path, values, ValuesWanted("json"))
    assert not bad
    assert good[0]["data"] == {"id": 1, "tags": ["x"], "at": {"lat": 1.5}, "extra": None}
    store, target = (tmp_path / "bucket").as_uri(), (tmp_path / "lake").as_uri()
    assert archive_parquet(store, "t", target, ProcessRunner(1), values=ValuesWanted("json")).parts == 0
    with pytest.raises(ConfigError, match="decodes its values as json"):
        _grow_and_archive(tmp_path, None)


def _grow_and_archive(tmp_path: Path, wanted: ValuesWanted | None) -> None:
    async def grow() -> None:
        builder = BucketBuilder(DirectoryStore(tmp_path / "bucket"), tmp_path / "bucket", 5)
        [topic] = (tmp_path / "bucket" / "topics").iterdir()
        batch = build_batch([(NOW_MS, None, b"{}", ())], base_offset=Offset(2))
        await builder.add_segment(TopicId(uuid.UUID(topic.name)), 0, [batch])

    asyncio.run(grow())
    store, target = (tmp_path / "bucket").as_uri(), (tmp_path / "lake").as_uri()
    archive_parquet(store, "t", target, ProcessRunner(1), values=wanted)


def test_avro_of_a_given_schema_and_its_bad_records(tmp_path: Path) -> None:
    def encoded(record: dict[str, object]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), record)
        return stream.getvalue()

    whole = encoded({"id": 7, "note": None, "at": NOW_MS, "lines": [1.0, 2.5]})
    good, bad = archived(tmp_path, [whole, whole[:-3], whole + b"!", *HOSTILE], ValuesWanted("avro", json.dumps(AVRO)))
    [row] = good
    assert (row["data"]["id"], row["data"]["lines"], row["data"]["note"]) == (7, [1.0, 2.5], None)
    assert row["data"]["at"].timestamp() * 1000 == NOW_MS
    assert [row["offset"] for row in bad] == list(range(1, 3 + len(HOSTILE)))
    assert all(row["reason"] for row in bad)
    assert bad[1]["reason"] == "1 bytes follow the record"


def test_a_negative_index_of_an_avro_union_or_enum_makes_a_bad_record_and_no_other_value(tmp_path: Path) -> None:
    blocks = b"\x01\x0a\x02\x02k\x02\x02v\x00"  # one element, in a block that says its length
    sound = blocks + b"\x00" + b"xyz" + b"\x02" + b"\x02\x04"
    values = [
        sound,
        sound[:-2] + b"\x01\x04",
        sound[:-2] + b"\x02\x01",
        sound[:-3] + b"\x05\x00",
        sound.replace(b"\x02\x02v", b"\x01\x02v"),
    ]
    good, bad = archived(tmp_path, values, ValuesWanted("avro", json.dumps(INDEXED)))
    assert [row["data"] for row in good] == [{"before": [[("k", "v")]], "hash": b"xyz", "kind": "b", "again": "c"}]
    assert [(row["offset"], row["reason"]) for row in bad] == [
        (1, "a union's index is -1"),
        (2, "an enum's index is -1"),
        (3, "an enum's index is -3"),
        (4, "a union's index is -1"),
    ]


def test_an_iceberg_table_has_decoded_values_and_another_the_bad_ones_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_firn.jobs import iceberg

    values = [b'{"id": 1}', b"{", b'{"id": "x"}', None, b'{"id": 5}']
    topic = topic_of(tmp_path / "bucket", values)
    catalog = iceberg.local_catalog(tmp_path / "warehouse")
    wanted = ValuesWanted("json", "id bigint")

    def archive(kind: ValuesWanted | None = wanted) -> ArchiveSummary:
        return archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1), values=kind)

    class Killed(Exception):
        pass

    add_files = iceberg.add_files

    def die_before_the_second(table: Any, *arguments: Any) -> None:
        if table.name()[-1] == "t":
            raise Killed
        add_files(table, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(iceberg, "add_files", die_before_the_second)
        with pytest.raises(Killed):
            archive()
    found = archive()
    assert (found.records, found.bad_records, found.ends) == (3, 0, {0: 5})
    assert archive().parts == 0

    def held(name: str) -> list[dict[str, Any]]:
        table = iceberg.opened_table(name, catalog)
        assert table is not None
        rows: list[dict[str, Any]] = table.scan().to_arrow().sort_by("offset").to_pylist()
        return rows

    assert [(row["offset"], row["data"] and row["data"]["id"]) for row in held("lake.t")] == [(0, 1), (3, None), (4, 5)]
    assert [(row["offset"], row["value"]) for row in held("lake.t_bad")] == [(1, b"{"), (2, b'{"id": "x"}')]
    assert all(row["reason"] for row in held("lake.t_bad"))
    with pytest.raises(ConfigError, match="say the same, or name another target"):
        archive(None)


DEEP = b'{"x": ' + b"[" * 100_000


def test_json_that_no_column_can_hold_is_bad_and_never_another_value(tmp_path: Path) -> None:
    values = [
        b'{"id": 1, "small": 1.5}',
        b'{"small": 1e39}',  # infinite as a float of 32 bits
        DEEP,
        b'{"id": 9223372036854775808}',
        b'{"note": "\\ud800"}',
        b'{"note": "\xff"}',
        b'{"small": NaN}',
        b'{"id": 1e3}',
    ]
    good, bad = archived(tmp_path, values, ValuesWanted("json", "id bigint, small float, note string"))
    assert [(row["data"]["id"], row["data"]["small"]) for row in good] == [(1, 1.5)]
    assert [row["value"] for row in bad] == values[1:]
    assert all(row["reason"] for row in bad)


def test_a_shape_is_inferred_of_whatever_the_first_records_are(tmp_path: Path) -> None:
    values = [
        DEEP,
        b'{"id": 18446744073709551615, "gone": {}, "list": [], "deep": {"none": null, "mixed": [1, "x"]}}',
        b'{"id": 2, "both": 1}',
        b'{"both": 2.5}',
        b"{" + b'"a": {' * 40 + b'"b": 1' + b"}" * 41,
    ]
    good, bad = archived(tmp_path, values, ValuesWanted("json"))
    struct = ds.dataset(tmp_path / "lake" / "t", format="parquet").schema.field("data").type
    assert {field.name: str(field.type) for field in struct} == {
        "id": "int64",
        "list": "list<element: string>",
        "deep": "struct<none: string, mixed: list<element: string>>",
        "both": "double",
    }
    assert [row["offset"] for row in bad] == [0, 1]  # too deep to be read at all, and beyond int64
    assert [row["data"]["both"] for row in good] == [1.0, 2.5, None]


def test_avro_values_of_every_logical_type_have_a_column(tmp_path: Path) -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20)
    logical: list[tuple[dict[str, Any], Any, Any]] = [
        ({"type": "int", "logicalType": "time-millis"}, time(1, 2, 3), time(1, 2, 3)),
        ({"type": "long", "logicalType": "time-micros"}, time(1, 2, 3), time(1, 2, 3)),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, moment, moment),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, moment, moment),
        ({"type": "int", "logicalType": "date"}, moment.date(), moment.date()),
        ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=3), str(uuid.UUID(int=3))),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, Decimal("1.23"), Decimal("1.23")),
        ({"type": "string", "logicalType": "colour"}, "red", "red"),
    ]
    fields = [{"name": f"f{index}", "type": kind} for index, (kind, _, _) in enumerate(logical)]
    schema = {"type": "record", "name": "All", "fields": fields}
    stream = io.BytesIO()
    record = {f"f{index}": value for index, (_, value, _) in enumerate(logical)}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), record)
    good, bad = archived(tmp_path, [stream.getvalue()], ValuesWanted("avro", json.dumps(schema)))
    assert not bad
    assert list(good[0]["data"].values()) == [wanted for _, _, wanted in logical]


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (ValuesWanted("json", "id int8"), "no field of a schema"),
        (ValuesWanted("avro"), "do not hold their schema"),
        (ValuesWanted("avro", "{}"), "no Avro schema"),
        (ValuesWanted("avro", json.dumps(AVRO | {"fields": [EMPTY_ELEMENTS]})), "at least a byte each"),
        (ValuesWanted("xml"), "write json or avro"),
        (ValuesWanted("json"), "None of the first records is a JSON object"),
        (ValuesWanted("json", "id bigint, id string"), "two fields named 'id'"),
        (ValuesWanted("avro", json.dumps(AVRO | {"fields": [WIDE]})), "up to 38 digits, this one has 50"),
    ],
)
def test_a_shape_that_cannot_be_is_said_in_a_sentence(tmp_path: Path, wanted: ValuesWanted, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        archived(tmp_path, [b"\x00\x01"], wanted)
