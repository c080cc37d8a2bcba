"""Records of REST v3 in Avro, JSON Schema and Protobuf: one record, batches and streams."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fastavro
import httpx
import pytest

from app.http.registry import record_schemas
from app.metadata.image.records import REGISTRY_LEVEL
from tests.support.broker import RunningBroker, running_broker
from tests.support.registry_routes import register

FLIGHT = {"type": "record", "name": "Flight", "namespace": "air", "fields": [{"name": "n", "type": "int"}]}
FLIGHT_TEXT = json.dumps(FLIGHT)
TITLED = json.dumps({"title": "Place", "type": "object", "properties": {"n": {"type": "integer"}}})
MESSAGE = 'syntax = "proto3"; package air; message Leg { int32 n = 1; }'


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=1, new_level=REGISTRY_LEVEL) as running:
        await running.create_topic("flights", 1)
        yield running


async def produce(http: httpx.AsyncClient, cluster: str, **record: Any) -> httpx.Response:
    return await http.post(f"{cluster}/topics/flights/records", json=record)


async def stored(http: httpx.AsyncClient, cluster: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of the topic."""
    answer = await http.get(f"{cluster}/topics/flights/partitions/0/records?offset=0")
    assert answer.status_code == 200, answer.text
    return [tuple(_content(one.get(part)) for part in ("key", "value")) for one in answer.json()["data"]]  # type: ignore[misc]


def _content(part: Any) -> bytes | None:
    """A key or value in the form that a page chose for it."""
    if part is None:
        return None
    assert part["type"] in ("STRING", "BINARY")
    data: str = part["data"]
    return b64decode(data) if part["type"] == "BINARY" else data.encode()


async def test_a_text_is_registered_and_found_again_by_id_version_and_as_the_newest(
    http: httpx.AsyncClient, cluster: str
) -> None:
    by_text = {"type": "AVRO", "schema": FLIGHT_TEXT, "data": {"n": 1}}
    answer = await produce(http, cluster, key={"type": "AVRO", "schema": '"string"', "data": "UA"}, value=by_text)
    assert answer.status_code == 200, answer.text
    receipt = answer.json()
    schema_id = receipt["value"]["schema_id"]
    assert receipt["value"] == {
        "type": "AVRO",
        "size": 6,
        "subject": "flights-value",
        "schema_id": schema_id,
        "schema_version": 1,
    }
    assert (receipt["key"]["subject"], receipt["key"]["size"]) == ("flights-key", 8)
    named: list[dict[str, Any]] = [
        {"schema_id": schema_id},
        {"type": "AVRO", "schema_id": schema_id},
        {"schema_version": 1},
        {"type": "AVRO"},
        {"subject": "flights-value"},
        {"subject": "flights-value", "schema_version": 1},
        {"subject_name_strategy": "TOPIC_NAME"},
        by_text,
    ]
    for place, one in enumerate(named):
        answer = await produce(http, cluster, value={**one, "data": {"n": place}})
        assert answer.status_code == 200, (one, answer.text)
        assert answer.json()["value"] == receipt["value"], one
    contents = [value for _, value in (await stored(http, cluster))[1:]]
    for place, content in enumerate(contents):
        assert content is not None
        assert content[:5] == b"\0" + schema_id.to_bytes(4)
        assert fastavro.schemaless_reader(io.BytesIO(content[5:]), FLIGHT, None) == {"n": place}
    assert (await http.get("/subjects/flights-value/versions")).json() == [1]


async def test_every_type_has_its_bytes_and_null_is_a_tombstone(http: httpx.AsyncClient, cluster: str) -> None:
    ids = [
        await register(http, "a", FLIGHT_TEXT),
        await register(http, "j", TITLED, "JSON"),
        await register(http, "p", MESSAGE, "PROTOBUF"),
    ]
    types = ("AVRO", "JSONSCHEMA", "PROTOBUF")
    for schema_id, kind in zip(ids, types, strict=True):
        answer = await produce(http, cluster, key={"schema_id": schema_id, "data": {"n": 1}}, value={"type": kind})
        assert answer.status_code == 200, answer.text
        assert answer.json()["key"]["type"] == kind
        assert "value" not in answer.json()
    contents = (b"\x02", b'{"n":1}', b"\0\x08\x01")
    assert await stored(http, cluster) == [
        (b"\0" + schema_id.to_bytes(4) + content, None) for schema_id, content in zip(ids, contents, strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "schema", "name"),
    [("AVRO", FLIGHT_TEXT, "air.Flight"), ("JSONSCHEMA", TITLED, "Place"), ("PROTOBUF", MESSAGE, "air.Leg")],
)
async def test_strategies_name_subjects_by_topics_and_records(
    http: httpx.AsyncClient, cluster: str, kind: str, schema: str, name: str
) -> None:
    for strategy, subject in (("RECORD_NAME", name), ("TOPIC_RECORD_NAME", f"flights-{name}")):
        value = {"type": kind, "subject_name_strategy": strategy, "schema": schema, "data": {"n": 1}}
        answer = await produce(http, cluster, value=value)
        assert answer.status_code == 200, answer.text
        assert answer.json()["value"]["subject"] == subject
        by_id = {"subject_name_strategy": strategy, "schema_id": answer.json()["value"]["schema_id"], "data": {"n": 2}}
        again = await produce(http, cluster, value=by_id)
        assert again.json()["value"]["subject"] == subject, again.text
    assert set((await http.get("/subjects")).json()) == {name, f"flights-{name}"}


async def test_records_of_an_alias_have_the_schemas_of_the_subject_that_it_means(
    http: httpx.AsyncClient, cluster: str
) -> None:
    schema_id = await register(http, "all", '"string"')
    made = await http.put("/config/flights-value", json={"alias": "all"})
    assert made.status_code == 200
    for value in (
        {"type": "AVRO"},
        {"schema_version": 1},
        {"schema_id": schema_id},
        {"type": "AVRO", "schema": '"string"'},
    ):
        answer = await produce(http, cluster, value={**value, "data": "x"})
        assert answer.status_code == 200, answer.text
        named = answer.json()["value"]
        assert [named[member] for member in ("subject", "schema_id", "schema_version")] == ["all", schema_id, 1]
    assert (await http.get("/subjects")).json() == ["all"]


async def test_a_subject_of_a_context_has_ids_of_its_own(http: httpx.AsyncClient, cluster: str) -> None:
    await register(http, "flights-value", '"int"')
    schema_id = await register(http, ":.sales:flights-value", '"string"')
    assert schema_id == 1
    value = {"subject": ":.sales:flights-value", "schema_id": 1, "data": "x"}
    answer = await produce(http, cluster, key={"schema_id": 1, "data": 5}, value=value)
    assert answer.status_code == 200, answer.text
    assert await stored(http, cluster) == [(b"\0\0\0\0\x01\x0a", b"\0\0\0\0\x01\x02x")]


@pytest.mark.parametrize(
    ("value", "status", "code", "words"),
    [
        ({"schema_id": 99, "data": 1}, 408, 40801, "Schema 99"),
        ({"schema_version": 9, "data": 1}, 408, 40801, "no version 9"),
        ({"subject": "nothing", "data": 1}, 408, 40801, "'nothing'"),
        ({"type": "AVRO", "schema": '{"type":"nothing"}', "data": 1}, 422, 42205, "Invalid schema"),
        ({"type": "AVRO", "schema": FLIGHT_TEXT, "data": {"n": "x"}}, 422, 42203, "The value does not fit"),
        ({"type": "JSONSCHEMA", "schema_id": 1, "data": 1}, 422, 42205, "Schema 1 is of type AVRO"),
        (
            {"type": "AVRO", "schema": '"int"', "subject_name_strategy": "RECORD_NAME", "data": 1},
            422,
            42205,
            "has no name",
        ),
        ({"type": "JSON", "schema_id": 1, "data": 1}, 400, 400, "its type 'JSON' has none"),
        ({"schema_id": 1, "schema_version": 1, "data": 1}, 400, 400, "schema_id and by schema_version"),
        ({"schema": '"int"', "data": 1}, 400, 400, "without a type"),
        ({"subject": "a", "subject_name_strategy": "TOPIC_NAME", "data": 1}, 400, 400, "Send one of them"),
        ({"type": "AVRO", "subject_name_strategy": "RECORD_NAME", "data": 1}, 400, 400, "needs a schema"),
        ({"subject_name_strategy": "OTHER", "data": 1}, 400, 400, "subject_name_strategy"),
        ({"schema_id": -1, "data": 1}, 400, 400, "schema_id"),
    ],
)
async def test_a_part_without_one_schema_that_it_fits_is_refused_with_a_sentence(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, value: Any, status: int, code: int, words: str
) -> None:
    await register(http, "other", FLIGHT_TEXT)
    answer = await produce(http, cluster, value=value)
    assert (answer.status_code, answer.json()["error_code"]) == (status, code), answer.text
    assert words in answer.json()["message"]
    assert broker.log("flights").log_end_offset == 0


async def test_a_stream_gets_one_receipt_for_each_record_and_goes_on_after_a_wrong_one(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_schemas, "KEPT_OF_REQUEST_MAX", 2)
    ids = [await register(http, f"s{number}", json.dumps({**FLIGHT, "name": f"F{number}"})) for number in range(4)]
    records = [{"value": {"schema_id": schema_id, "data": {"n": place}}} for place, schema_id in enumerate(ids * 2)]
    records.insert(3, {"value": {"schema_id": ids[0], "data": {"n": None}}})

    async def body() -> AsyncIterator[bytes]:
        for record in records:
            yield json.dumps(record).encode()

    answer = await http.post(f"{cluster}/topics/flights/records", content=body())
    receipts = [json.loads(line) for line in answer.text.splitlines()]
    assert [one["error_code"] for one in receipts] == [200] * 3 + [42203] + [200] * 5
    found = [value for _, value in await stored(http, cluster)]
    assert found == [b"\0" + one.to_bytes(4) + bytes([2 * place]) for place, one in enumerate(ids * 2)]


async def test_a_batch_tells_each_entry_by_its_id(http: httpx.AsyncClient, cluster: str) -> None:
    schema_id = await register(http, "flights-value", FLIGHT_TEXT)
    entries = [
        {"id": "a", "value": {"type": "AVRO", "data": {"n": 1}}},
        {"id": "b", "value": {"type": "AVRO", "data": {"m": 1}}},
        {"id": "c", "value": {"schema_id": 99, "data": {"n": 1}}},
        {"id": "d", "value": {"type": "STRING", "data": "x"}},
    ]
    answer = await http.post(f"{cluster}/topics/flights/records:batch", json={"entries": entries})
    assert answer.status_code == 207
    successes = {one["id"]: one["value"] for one in answer.json()["successes"]}
    assert successes["a"]["schema_id"] == schema_id
    assert successes["d"] == {"type": "STRING", "size": 1}
    assert {one["id"]: one["error_code"] for one in answer.json()["failures"]} == {"b": 42203, "c": 40801}


async def test_the_newest_version_is_that_of_the_last_registration(http: httpx.AsyncClient, cluster: str) -> None:
    first = await register(http, "flights-value", FLIGHT_TEXT)
    assert (await produce(http, cluster, value={"type": "AVRO", "data": {"n": 1}})).json()["value"][
        "schema_id"
    ] == first
    wider = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "m", "type": "int", "default": 7}]}
    second = await register(http, "flights-value", json.dumps(wider))
    answer = await produce(http, cluster, value={"type": "AVRO", "data": {"n": 1}})
    assert (answer.json()["value"]["schema_id"], answer.json()["value"]["schema_version"]) == (second, 2)
    earlier = await produce(http, cluster, value={"schema_version": 1, "data": {"n": 1}})
    assert earlier.json()["value"]["schema_id"] == first
