"""Records in Avro and JSON Schema: schemas by text and by id, and what consumers of the registry read."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from app.http.registry import record_schemas
from app.metadata.image.records import REGISTRY_LEVEL
from app.registry.parsing.limits import StepBudget
from tests.http.rest_v2.clients import Rest
from tests.support.broker import RunningBroker, running_broker

AVRO, JSON_SCHEMA, PROTOBUF = (f"application/vnd.kafka.{form}.v2+json" for form in ("avro", "jsonschema", "protobuf"))
FLIGHT = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [{"name": "n", "type": "int"}, {"name": "c", "type": ["null", "string"]}],
    }
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=1, new_level=REGISTRY_LEVEL) as running:
        yield running


async def produce(rest: Rest, kind: str, **body: Any) -> Any:
    return await rest.ask("POST", "/topics/flights", body, content_type=kind)


async def test_a_schema_is_registered_and_its_id_serves_the_next_request_and_consumers(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    values = [{"n": 1, "c": {"string": "UA"}}, {"n": 2, "c": None}]
    first = await produce(rest, AVRO, value_schema=FLIGHT, records=[{"value": values[0]}])
    assert first.status_code == 200, first.text
    schema_id = first.json()["value_schema_id"]
    assert first.json()["key_schema_id"] is None
    assert (await rest.http.get("/subjects/flights-value/versions")).json() == [1]
    again = await produce(rest, AVRO, value_schema=FLIGHT, records=[{"value": values[0]}])
    assert again.json()["value_schema_id"] == schema_id
    by_id = await produce(rest, AVRO, value_schema_id=schema_id, records=[{"value": values[1]}])
    assert by_id.status_code == 200, by_id.text
    made = await rest.instance("g", format="avro")
    await made.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 0}]})
    assert [one["value"] for one in await made.read()] == [values[0], values[0], values[1]]
    raw = await rest.instance("h", format="binary")
    await raw.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 0}]})
    content = b64decode((await raw.read())[0]["value"])
    assert content[:5] == b"\0" + schema_id.to_bytes(4)
    read = fastavro.schemaless_reader(BytesIO(content[5:]), json.loads(FLIGHT), None)
    assert read == {"n": 1, "c": "UA"}


async def test_json_of_a_schema_is_stored_behind_its_id(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    schema = '{"type":"object","properties":{"n":{"type":"integer"}}}'
    answer = await produce(
        rest,
        JSON_SCHEMA,
        key_schema='{"type":"string"}',
        value_schema=schema,
        records=[{"key": "UA", "value": {"n": 1}}],
    )
    assert answer.status_code == 200, answer.text
    made = await rest.instance("g", format="jsonschema")
    await made.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 0}]})
    (read,) = await made.read()
    assert (read["key"], read["value"]) == ("UA", {"n": 1})


async def test_a_message_of_protobuf_is_stored_behind_its_id_and_read_with_the_names_of_json(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    schema = (
        'syntax = "proto3"; message Flight { int32 flight_number = 1; string origin = 2; repeated string via = 3; }'
    )
    values = [{"flightNumber": 7, "origin": "UA", "via": ["X"]}, {"flight_number": 8}]
    answer = await produce(rest, PROTOBUF, value_schema=schema, records=[{"value": one} for one in values])
    assert answer.status_code == 200, answer.text
    schema_id = answer.json()["value_schema_id"]
    by_id = await produce(rest, PROTOBUF, value_schema_id=schema_id, records=[{"value": {"origin": "ZRH"}}])
    assert by_id.status_code == 200, by_id.text
    made = await rest.instance("g", format="protobuf")
    await made.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 0}]})
    assert await made.read_all(3) == [
        values[0],
        {"flightNumber": 8, "origin": "", "via": []},
        {"flightNumber": 0, "origin": "ZRH", "via": []},
    ]
    raw = await rest.instance("h", format="binary")
    await raw.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 0}]})
    content = b64decode((await raw.read())[0]["value"])
    assert content == b"\0" + schema_id.to_bytes(4) + b"\0" + b"\x08\x07\x12\x02UA\x1a\x01X"


async def test_a_value_that_no_message_has_stores_nothing(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    schema = 'syntax = "proto3"; message Flight { int32 number = 1; }'
    answer = await produce(rest, PROTOBUF, value_schema=schema, records=[{"value": {"number": 1}}, {"value": {"n": 1}}])
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42203), answer.text
    assert "record 1" in answer.json()["message"]
    assert rest.broker.log("flights").log_end_offset == 0


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"records": [{"key": "a"}]}, 422, 42201),
        ({"records": [{"value": "a"}]}, 422, 42202),
        ({"value_schema": FLIGHT, "records": [{"value": {"n": "x", "c": None}}]}, 422, 42203),
        ({"value_schema": '{"type":"nothing"}', "records": [{"value": 1}]}, 422, 42205),
        ({"value_schema": "[" * 100_000, "records": [{"value": 1}]}, 422, 42205),
        ({"value_schema_id": 99, "records": [{"value": 1}]}, 408, 40801),
    ],
)
async def test_a_schema_that_is_missing_wrong_or_unknown_stores_nothing(
    rest: Rest, body: Any, status: int, code: int
) -> None:
    await rest.broker.create_topic("flights")
    answer = await produce(rest, AVRO, **body)
    assert (answer.status_code, answer.json()["error_code"]) == (status, code), answer.text
    assert rest.broker.log("flights").log_end_offset == 0


async def test_a_schema_of_another_type_is_refused(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    made = (await produce(rest, AVRO, value_schema=FLIGHT, records=[{"value": None}])).json()
    answer = await produce(rest, JSON_SCHEMA, value_schema_id=made["value_schema_id"], records=[{"value": 1}])
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42205)


async def test_a_record_without_a_schema_is_told_to_a_consumer_of_avro(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", 1)
    made = await rest.instance("g", format="avro")
    await made.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 0}]})
    answer = await made.ask("GET", "/records", accept=AVRO)
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42203)


async def test_the_loop_spends_few_steps_on_a_short_value_that_needs_many(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.broker.create_topic("flights")
    fields = [{"name": f"f{number}", "type": "null", "default": None} for number in range(20)]
    item = {"type": "record", "name": "R", "fields": fields}
    schema = json.dumps({"type": "array", "items": item})
    known = await produce(rest, AVRO, value_schema=schema, records=[{"value": []}])
    assert known.status_code == 200, known.text
    spent: dict[bool, int] = {}
    original = StepBudget.spend

    def spend(self: StepBudget, count: int = 1) -> None:
        inline = threading.current_thread() is threading.main_thread()
        spent[inline] = spent.get(inline, 0) + count
        original(self, count)

    monkeypatch.setattr(StepBudget, "spend", spend)
    schema_id = known.json()["value_schema_id"]
    answer = await produce(rest, AVRO, value_schema_id=schema_id, records=[{"value": [{}] * 200}])
    assert answer.status_code == 200, answer.text
    assert (spent.pop(True), spent.pop(False)) == (record_schemas.INLINE_STEPS + 1, 4_201)
    made = await rest.instance("g", format="avro")
    await made.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 0}]})
    values = await made.read_all(2)
    assert values[1] == [dict.fromkeys((one["name"] for one in fields), None)] * 200
    assert spent[True] <= record_schemas.INLINE_STEPS + 2  # the empty array is one step
    assert spent[False] == 4_201


async def test_a_page_ends_before_its_json_is_too_large(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    await rest.broker.create_topic("flights")
    values = [{"n": number, "c": {"string": "x" * 100}} for number in range(3)]
    answer = await produce(rest, AVRO, value_schema=FLIGHT, records=[{"value": value} for value in values])
    assert answer.status_code == 200, answer.text
    monkeypatch.setattr(record_schemas, "SHOWN_BYTES_MAX", 200)
    made = await rest.instance("g", format="avro")
    await made.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 0}]})
    assert [one["value"] for one in await made.read()] == values[:2]
    assert [one["value"] for one in await made.read()] == values[2:]
