"""Values in Avro become columns by the schemas of a registry, each by the schema that it names."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import fastavro
import pytest
from pyspark.sql.types import StructType

from app.core.errors import BrokerUnavailable, ConfigError, CorruptionError
from app.records.builder import build_batch
from pyspark_firn import registry
from pyspark_firn.batch import plan
from pyspark_firn.columns import struct_type
from pyspark_firn.options import parse_columns, parse_read_options, parse_registry
from pyspark_firn.registry_values import data_type, reader_text, with_reader
from pyspark_firn.tasks import read_split
from tests.spark.sessions import SparkSession, collected
from tests.support.buckets import BucketBuilder

NOW_MS = 1_700_000_000_000
FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "string"}],
}
SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "noon", "type": {"type": "int", "logicalType": "time-millis"}, "default": 7},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            "default": "\u0004\u00d2",
        },
        {
            "name": "more",
            "type": {
                "type": "record",
                "name": "More",
                "fields": [
                    {"name": "raw", "type": "bytes"},
                    {"name": "fix", "type": {"type": "fixed", "name": "Two", "size": 2}, "default": "\u00fea"},
                    {"name": "own", "type": "Two", "default": "ab"},
                    {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 5},
                ],
            },
            "default": {"raw": "\u00ff", "own": "cd"},
        },
        {"name": "twice", "type": {"type": "array", "items": "Two"}, "default": ["xy"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {}},
    ],
}
DEFAULTS = {
    "note": None,
    "at": datetime(1970, 1, 1, tzinfo=UTC),
    "day": None,
    "noon": 7,
    "price": Decimal("12.34"),
    "more": {"raw": b"\xff", "fix": b"\xfea", "own": b"cd", "when": datetime(1970, 1, 1, 0, 0, 0, 5_000, UTC)},
    "twice": [b"xy"],
    "tags": [],
    "counts": [],
}
TYPE = (
    "struct<id:bigint,note:string,at:timestamp,day:date,noon:int,price:decimal(6,2),"
    "more:struct<raw:binary,fix:binary,own:binary,when:timestamp>,twice:array<binary>,tags:array<string>,counts:map<string,int>>"
)


FULL: dict[str, Any] = {
    "id": 3,
    "note": "x",
    "at": datetime(2024, 5, 6, 7, 8, 9, 123_000, UTC),
    "day": date(2024, 5, 6),
    "noon": 43_200_000,
    "price": Decimal("-5.00"),
    "more": {"raw": b"r", "fix": b"ff", "own": b"oo", "when": datetime(2024, 1, 1, tzinfo=UTC)},
    "twice": [],
    "tags": ["a", "b"],
    "counts": {"a": 1},
}
WRITTEN = {**FULL, "noon": datetime(2024, 1, 1, 12).time()}


class Registry(HTTPServer):
    """Schemas by ids from 1, and the ids of each subject's versions."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[tuple[str, str]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.logins: set[str | None] = set()
        self.failures: list[int] = []
        """Statuses of the next answers."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, subject: str, schema: Any, kind: str = "AVRO") -> int:
        self.schemas.append((json.dumps(schema), kind))
        self.subjects.setdefault(subject, []).append(len(self.schemas))
        return len(self.schemas)


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.logins.add(self.headers.get("authorization"))
        if self.server.failures:
            self._answer(self.server.failures.pop(0), {})
            return
        url = urlsplit(self.path)
        assert parse_qs(url.query)["format"] == ["resolved"]
        match [unquote(part) for part in url.path.split("/")[1:]]:
            case ["subjects", subject, "versions", version]:
                ids = self.server.subjects.get(subject, [])
                place = len(ids) if version == "latest" else int(version)
                found = ids[place - 1] if 1 <= place <= len(ids) else 0
            case ["schemas", "ids", number]:
                found = int(number) if int(number) <= len(self.server.schemas) else 0
        if not found:
            self._answer(404, {"error_code": 40403, "message": "not found"})
            return
        text, kind = self.server.schemas[found - 1]
        self._answer(200, {"id": found, "schema": text, **({} if kind == "AVRO" else {"schemaType": kind})})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if status == 302:
            self.send_header("location", f"{self.server.url}/subjects/t-value/versions/latest?format=resolved")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(registry, "RETRY_BASE_S", 0.0)
    server = Registry()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4) + made.getvalue()


def store_of(path: Path, *values: bytes | None) -> str:
    async def make() -> None:
        bucket = await BucketBuilder.open(path)
        topic_id = await bucket.create_topic("t")
        await bucket.add_segment(topic_id, 0, [build_batch([(NOW_MS, b"k", value, ()) for value in values])])

    asyncio.run(make())
    return path.as_uri()


def given(store: str, served: Registry, **more: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {"store": store, "subscribe": "t", "schema.registry.url": served.url, **named}


def rows(options: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of a read, as Spark makes it of these options."""
    names = parse_columns(options)
    schema = struct_type(names, data_type(reader_text(parse_registry(options))))
    read = with_reader(parse_read_options(options, streaming=False), schema)
    return [row for split in plan(read) for batch in read_split(read, names, split) for row in batch.to_pylist()]


def test_each_value_is_read_by_its_own_schema_and_has_the_columns_of_the_newest(
    tmp_path: Path, served: Registry
) -> None:
    first, second = served.add("t-value", FIRST), served.add("t-value", SECOND)
    values = [framed(first, FIRST, {"id": 1, "gone": "z"}), None, framed(second, SECOND, WRITTEN)]
    found = rows(given(store_of(tmp_path, *values), served))
    assert list(found[0]) == ["key", "data", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert [row["data"] for row in found] == [{"id": 1, **DEFAULTS}, None, {**FULL, "counts": [("a", 1)]}]
    assert [row["offset"] for row in found] == [0, 1, 2]
    asked = [path for path in served.asked if path.startswith("/schemas/")]
    assert len(asked) == 2, "each schema is asked for once"


def test_columns_may_have_the_bytes_beside_the_decoded_value(tmp_path: Path, served: Registry) -> None:
    value = framed(served.add("t-value", FIRST), FIRST, {"id": 1, "gone": "z"})
    found = rows(given(store_of(tmp_path, value), served, columns="data,value"))
    assert found == [{"data": {"id": 1, "gone": "z"}, "value": value}]
    asked = len(served.asked)
    assert rows_without_data(given(store_of(tmp_path / "b", value), served, columns="value")) == [{"value": value}]
    assert len(served.asked) == asked, "without the column, the registry is not asked"


def rows_without_data(options: dict[str, str]) -> list[dict[str, Any]]:
    names = parse_columns(options)
    read = with_reader(parse_read_options(options, streaming=False), struct_type(names))
    return [row for split in plan(read) for batch in read_split(read, names, split) for row in batch.to_pylist()]


def test_a_version_may_be_named(tmp_path: Path, served: Registry) -> None:
    first, second = served.add("t-value", FIRST), served.add("t-value", SECOND)
    both = [framed(first, FIRST, {"id": 1, "gone": "z"}), framed(first, FIRST, {"id": 2, "gone": "y"})]
    found = rows(given(store_of(tmp_path, *both), served, schema_registry_version="1", columns="data"))
    assert [row["data"] for row in found] == [{"id": 1, "gone": "z"}, {"id": 2, "gone": "y"}]
    assert second == 2


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "does not begin with the id"),
        (b"{}", "does not begin with the id"),
        (b"\0\0\0\0\x09\x02", "no Avro schema with the id 9"),
        (b"\0\0\0\0\x01\x02\x02zz", "bytes follow the record"),
        (b"\0\0\0\0\x01\x02", ""),
        (b"\0\0\0\0\x02\x02", "no Avro schema with the id 2"),
        (b"\0\0\0\0\x03\xfe\xff\xff\xff\x0f\x00", "schema 3 is not read here"),
    ],
)
def test_a_value_that_is_not_of_its_schema_ends_the_read_or_is_null(
    tmp_path: Path, served: Registry, value: bytes, why: str
) -> None:
    good = framed(served.add("t-value", FIRST), FIRST, {"id": 1, "gone": "z"})
    served.add("other", {"type": "object"}, "JSON")
    nothings = {"name": "nothings", "type": {"type": "array", "items": "null"}}
    served.add("another", {"type": "record", "name": "Order", "fields": [nothings]})
    store = store_of(tmp_path, good, value)
    with pytest.raises(CorruptionError, match="offset 1 of t-0") as told:
        rows(given(store, served))
    assert why in str(told.value)
    found = rows(given(store, served, badValues="null"))
    assert [row["data"] for row in found] == [{"id": 1, "gone": "z"}, None]


def test_the_login_is_sent_and_goes_to_no_other_host(tmp_path: Path, served: Registry) -> None:
    value = framed(served.add("t-value", FIRST), FIRST, {"id": 1, "gone": "z"})
    options = given(store_of(tmp_path, value), served, schema_registry_basic_auth_user_info="alice:secret")
    assert len(rows(options)) == 1
    assert served.logins == {f"Basic {b64encode(b'alice:secret').decode()}"}
    asked = len(served.asked)
    served.failures.append(302)
    with pytest.raises(ConfigError, match="302"):
        rows(options)
    assert len(served.asked) == asked + 1


def test_a_registry_that_is_busy_is_asked_again_and_one_that_is_away_is_named(tmp_path: Path, served: Registry) -> None:
    value = framed(served.add("t-value", FIRST), FIRST, {"id": 1, "gone": "z"})
    options = given(store_of(tmp_path, value), served)
    served.failures += [503, 429]
    assert len(rows(options)) == 1
    served.failures += [503] * registry.ATTEMPTS
    with pytest.raises(BrokerUnavailable, match="status 503"):
        rows(options)
    served.failures.append(401)
    with pytest.raises(ConfigError, match="status 401"):
        rows(options)


def test_a_version_that_was_registered_after_the_load_is_told(served: Registry) -> None:
    served.add("t-value", FIRST)
    options = given("file:///nowhere", served)
    schema = struct_type(parse_columns(options), data_type(reader_text(parse_registry(options))))
    served.add("t-value", SECOND)
    with pytest.raises(ConfigError, match="load the frame again"):
        with_reader(parse_read_options(options, streaming=False), schema)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"schema.registry.subject": "none"}, "no version latest of subject 'none'"),
        ({"schema.registry.version": "9"}, "no version 9"),
        ({"schema.registry.version": "newest"}, "write a number"),
        ({"schema.registry.subject": "json"}, "of type JSON, and only Avro"),
        ({"schema.registry.subject": "long"}, "must be of a record"),
        ({"schema.registry.url": "ftp://a"}, "write http"),
        ({"schema.registry.ssl.ca.location": "/nowhere.pem"}, "cannot be read"),
        ({"badValues": "skip"}, "write fail or null"),
        ({"subscribe": "a,b"}, "schema.registry.subject' is missing"),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(served: Registry, more: dict[str, str], words: str) -> None:
    served.add("t-value", FIRST)
    served.add("json", {}, "JSON")
    served.add("long", "long")
    with pytest.raises(ConfigError, match=words):
        rows({**given("file:///nowhere", served), **more})


def test_options_of_a_registry_need_its_address() -> None:
    with pytest.raises(ConfigError, match="needs schema"):
        parse_read_options({"store": "file:///a", "subscribe": "t", "badValues": "null"}, streaming=False)


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_spark_has_the_columns_of_the_schema_in_batches_and_streams(
    spark: SparkSession, tmp_path: Path, served: Registry
) -> None:
    first, second = served.add("t-value", FIRST), served.add("t-value", SECOND)
    values = [framed(first, FIRST, {"id": 1, "gone": "z"}), framed(second, SECOND, WRITTEN)]
    store = store_of(tmp_path / "bucket", *values)
    options = given(store, served)
    frame = spark.read.format("firn").options(**options).load()
    assert isinstance(frame.schema, StructType)
    assert frame.schema["data"].dataType.simpleString() == TYPE
    assert [row["note"] for row in collected(frame.select("partition", "offset", "data.note"))] == [None, "x"]
    assert frame.selectExpr("sum(data.id) total").first()["total"] == 4
    stream = spark.readStream.format("firn").options(**options).load()
    query = (
        stream.selectExpr("data.id id", "data.price price")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("id").collect()
    assert [(row["id"], row["price"]) for row in found] == [(1, Decimal("12.34")), (3, Decimal("-5.00"))]
