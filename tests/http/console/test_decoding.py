"""Keys and values of messages, decoded by the schemas that they name."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI

from app.core.turns import Portion
from app.core.units import Offset, TimestampMs
from app.http.console.records import decoding
from app.http.console.records.decoding import Decoding, named_in
from app.http.console.records.masks import MASK, Masks
from app.http.registry.record_schemas import RecordSchemas, SchemaUnknown
from app.metadata.image.records import REGISTRY_LEVEL
from app.records.record import Record
from app.registry.payloads.prefix import Side
from app.security.acls import Operation, ResourceType
from tests.http.secured import Secured, secured
from tests.support.broker import RunningBroker, running_broker
from tests.support.registry_routes import register
from tests.support.silent_registry import SilentRegistry

FLIGHT = json.dumps({"type": "record", "name": "Flight", "fields": [{"name": "gate", "type": "string"}]})
PLACE = json.dumps({"type": "object", "properties": {"city": {"type": "string"}}})
LEG = 'syntax = "proto3"; message Other { string x = 1; } message Leg { string to = 1; }'
GUID = "00112233-4455-6677-8899-aabbccddeeff"
MESSAGES = "/console/topics/flights/messages?offset=0"
ONE = "/console/topics/flights/partitions/0/messages"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=1, new_level=REGISTRY_LEVEL) as running:
        await running.create_topic("flights", 1)
        yield running


def binary(content: bytes) -> dict[str, str]:
    return {"type": "BINARY", "data": b64encode(content).decode()}


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def avro(text: str) -> bytes:
    return bytes([2 * len(text)]) + text.encode()


async def produce(
    http: httpx.AsyncClient, cluster: str, value: bytes, key: bytes | None = None, **headers: bytes
) -> None:
    record: dict[str, Any] = {"value": binary(value)}
    if key is not None:
        record["key"] = binary(key)
    record["headers"] = [{"name": name, "value": b64encode(one).decode()} for name, one in headers.items()]
    answer = await http.post(f"{cluster}/topics/flights/records", json=record)
    assert answer.status_code == 200, answer.text


async def test_keys_and_values_are_decoded_by_the_id_before_the_payload(http: httpx.AsyncClient, cluster: str) -> None:
    flight = await register(http, "flights-value", FLIGHT)
    place = await register(http, "flights-key", PLACE, "JSON")
    await produce(http, cluster, framed(flight, avro("B42")), framed(place, b'{"city": "Oslo"}'))
    page = (await http.get(MESSAGES)).text
    assert "{&#34;gate&#34;:&#34;B42&#34;}" in page
    assert "{&#34;city&#34;:&#34;Oslo&#34;}" in page
    assert f"Avro, schema {flight}" in page
    assert f"JSON Schema, schema {place}" in page
    one = (await http.get(f"{ONE}/0")).text
    assert "{\n  &#34;gate&#34;: &#34;B42&#34;\n}" in one
    assert f"Avro, schema {flight}" in one
    saved = await http.get(f"{ONE}/0/value")
    assert saved.content == framed(flight, avro("B42")), "a saved value has its bytes as they are"


async def test_values_are_decoded_by_the_id_in_a_header(http: httpx.AsyncClient, cluster: str) -> None:
    flight = await register(http, "flights-value", FLIGHT)
    leg = await register(http, "legs-value", LEG, "PROTOBUF")
    await produce(http, cluster, avro("B42"), __value_schema_id=b"\0" + flight.to_bytes(4, "big"))
    second_message = b"\x02\x02"  # a list of one index, which is 1
    header = b"\0" + leg.to_bytes(4, "big") + second_message
    await produce(http, cluster, b"\x0a\x04Oslo", __value_schema_id=header)
    guid = UUID((await http.get(f"/schemas/ids/{flight}")).json()["guid"])
    await produce(http, cluster, avro("C7"), __value_schema_id=b"\1" + guid.bytes)
    page = (await http.get(MESSAGES)).text
    assert "{&#34;gate&#34;:&#34;B42&#34;}" in page
    assert "{&#34;to&#34;:&#34;Oslo&#34;}" in page
    assert "{&#34;gate&#34;:&#34;C7&#34;}" in page
    assert f"Protobuf, schema {leg}" in page


async def test_what_cannot_be_decoded_is_shown_as_bytes_with_the_reason(http: httpx.AsyncClient, cluster: str) -> None:
    flight = await register(http, "flights-value", FLIGHT)
    await produce(http, cluster, framed(4711, b"abc"))
    await produce(http, cluster, framed(flight, b"\x50short"))
    listed = (await http.get(MESSAGES)).text
    assert listed.count("not decoded") == 2
    assert "00 00 00 12 67 61 62 63" in listed
    assert "Schema 4711 cannot be found or read." in (await http.get(f"{ONE}/0")).text
    assert "It does not fit its schema: " in (await http.get(f"{ONE}/1")).text


NESTED = {"type": "record", "name": "Person", "fields": [{"name": "mail", "type": "string"}]}
UNION = json.dumps({"type": "record", "name": "R", "fields": [{"name": "person", "type": ["null", NESTED]}]})
CAMEL = 'syntax = "proto3"; message R { string card_number = 1; }'


async def test_a_mask_of_fields_hides_values_whose_schema_names_them_otherwise(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    union = await register(http, "a-value", UNION)
    camel = await register(http, "b-value", CAMEL, "PROTOBUF")
    place = await register(http, "c-value", PLACE, "JSON")
    await produce(http, cluster, framed(union, b"\2" + avro("SECRET-1")))
    await produce(http, cluster, framed(camel, b"\0\x0a\x08SECRET-2"))
    await produce(http, cluster, framed(place, b'{"city": "SECRET-3", "country": "shown"}'))
    urls = (MESSAGES, *(f"{ONE}/{offset}" for offset in range(3)))
    for number, url in enumerate(urls[1:], 1):
        assert f"SECRET-{number}" in (await http.get(url)).text
    rules = [("flights", "person.mail"), ("flights", "card_number"), ("flights", "city")]
    application.state.console.masks = Masks(rules)
    for url in urls:
        text = (await http.get(url)).text
        assert MASK in text
        assert "SECRET" not in text
    assert "{&#34;city&#34;:&#34;•••&#34;,&#34;country&#34;:&#34;shown&#34;}" in (await http.get(MESSAGES)).text


async def _written(http: Secured, topic: str, value: bytes) -> None:
    answer = await http.ask("admin", f"{http.cluster}/topics/{topic}/records", "POST", json={"value": binary(value)})
    assert answer.status_code == 200, answer.text


async def test_a_schema_that_the_caller_may_not_see_decodes_nothing(tmp_path: Path) -> None:
    async with secured(tmp_path, new_level=REGISTRY_LEVEL) as http:
        await http.add_user("admin", "reader")
        for kind, name in ((ResourceType.TOPIC, "*"), (ResourceType.CLUSTER, "kafka-cluster")):
            await http.allow("admin", (Operation.ALL, kind, name))
        for operation in (Operation.READ, Operation.DESCRIBE):
            await http.allow("reader", (operation, ResourceType.TOPIC, "open"))
        for topic in ("open", "closed"):
            made = await http.ask("admin", f"{http.cluster}/topics", "POST", json={"topic_name": topic})
            assert made.status_code == 201, made.text
        ids = []
        for topic, field in (("open", "a"), ("closed", "b")):
            schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": field, "type": "string"}]})
            path = f"/subjects/{topic}-value/versions"
            answer = await http.ask("admin", path, "POST", json={"schema": schema})
            assert answer.status_code == 200, answer.text
            ids.append(answer.json()["id"])
        await _written(http, "open", framed(ids[0], avro("seen")))
        await _written(http, "open", framed(ids[1], avro("covert")))
        page = "/console/topics/open/messages?offset=0"
        assert "covert" in (await http.ask("admin", page)).text
        text = (await http.ask("reader", page)).text
        assert "{&#34;a&#34;:&#34;seen&#34;}" in text
        assert "covert" not in text
        assert f"Schema {ids[1]} cannot be found or read." in text


# --- bounds ---------------------------------------------------------------------------------------------------------


def record(value: bytes, *headers: tuple[str, bytes | None]) -> Record:
    return Record(Offset(0), TimestampMs(0), None, value, headers)


@pytest.mark.parametrize(
    ("one", "ref", "start"),
    [
        (record(framed(7, b"x")), 7, 5),
        (record(b"\1" + UUID(GUID).bytes + b"x"), GUID, 17),
        (record(b"x", ("__value_schema_id", b"\0\0\0\0\7")), 7, 0),
        (record(framed(8, b"x"), ("__value_schema_id", b"\0\0\0\0\7")), 7, 0),
        (record(framed(8, b"x"), ("__key_schema_id", b"\0\0\0\0\7")), 8, 5),
        (record(framed(8, b"x"), ("__value_schema_id", b"no id")), 8, 5),
    ],
)
def test_a_header_counts_before_the_payload(one: Record, ref: int | str, start: int) -> None:
    named = named_in(one, Side.VALUE, one.value or b"")
    assert named is not None
    assert (named.ref, named.start) == (ref, start)


@pytest.mark.parametrize("value", [b"", b"plain", b"\0\0\0\7", b"\1" + bytes(15), b"\2" + bytes(20)])
def test_other_bytes_name_no_schema(value: bytes) -> None:
    assert named_in(record(value), Side.VALUE, value) is None


class Registry:
    """Counts the schemas that a page looks up. There are none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looked_up: list[int | str] = []

        async def by_ref(_: RecordSchemas, ref: int | str) -> None:
            self.looked_up.append(ref)
            raise SchemaUnknown("None here.")

        monkeypatch.setattr(RecordSchemas, "by_ref", by_ref)


def decoding_of_a_page() -> Decoding:
    state = SimpleNamespace(encoding_turns=None)
    return Decoding(SimpleNamespace(app=SimpleNamespace(state=state)))  # type: ignore[arg-type]


async def test_a_page_looks_up_few_schemas_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(monkeypatch)
    page = decoding_of_a_page()
    for number in [*range(100), *range(100)]:
        key, value = await page.decoded(record(framed(number, b"x")), Portion())
        assert key is None
        assert value is not None
        assert value.json is None
        assert value.why
    assert registry.looked_up == [*range(decoding.SCHEMAS_MAX)]


async def test_a_page_waits_for_a_silent_registry_once(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SilentRegistry(monkeypatch)
    page = decoding_of_a_page()
    for number in range(3):
        _, value = await page.decoded(record(framed(number, b"x")), Portion())
        assert value is not None
        assert "did not respond" in value.why
    assert registry.asked == [0]


async def test_a_list_decodes_no_long_values_and_few_bytes_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(monkeypatch)
    page = decoding_of_a_page()
    _, long = await page.decoded(record(framed(1, bytes(decoding.PART_BYTES_MAX))), Portion())
    assert long is not None
    assert "Open the record" in long.why
    assert registry.looked_up == []
    monkeypatch.setattr(decoding, "PAGE_BYTES_MAX", 10)
    _, first = await page.decoded(record(framed(1, bytes(20))), Portion())
    _, second = await page.decoded(record(framed(2, bytes(20))), Portion())
    assert first is not None
    assert second is not None
    assert "Open the record" in second.why
    assert registry.looked_up == [1]
