"""Produce of REST v2: one result for each record, and nothing stored of a request that cannot be converted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.http.rest_v2.produce import RECORDS_MAX
from tests.http.rest_v2.clients import Rest

BINARY, JSON = (f"application/vnd.kafka.{form}.v2+json" for form in ("binary", "json"))


async def test_records_have_their_places_in_order_and_read_back_as_they_were_sent(rest: Rest) -> None:
    await rest.broker.create_topic("flights", partitions=2)
    records = [
        {"key": "a", "value": {"n": 1}, "partition": 1},
        {"value": None, "partition": 1},
        {"value": "ä", "partition": 1},
    ]
    answer = await rest.ask("POST", "/topics/flights", {"records": records}, content_type=JSON)
    assert answer.status_code == 200
    assert answer.json() == {
        "offsets": [{"partition": 1, "offset": offset, "error_code": None, "error": None} for offset in range(3)],
        "key_schema_id": None,
        "value_schema_id": None,
    }
    made = await rest.instance("g")
    await made.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 1}]})
    read = await made.read()
    assert [(one["key"], one["value"]) for one in read] == [("a", {"n": 1}), (None, None), (None, "ä")]


async def test_binary_records_keep_every_byte(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    record = {"key": "AP8=", "value": "/wA="}
    for kind in (BINARY, "application/vnd.kafka.v2+json", "application/json"):
        answer = await rest.ask("POST", "/topics/flights/partitions/0", {"records": [record]}, content_type=kind)
        assert answer.status_code == 200, answer.text
    made = await rest.instance("g", format="binary")
    await made.do("POST", "/assignments", {"partitions": [{"topic": "flights", "partition": 0}]})
    assert [{"key": one["key"], "value": one["value"]} for one in await made.read()] == [record] * 3


async def test_a_record_that_the_broker_refuses_has_an_error_and_the_others_are_stored(rest: Rest) -> None:
    await rest.broker.create_topic("flights", partitions=2)
    records = [{"value": "YQ==", "partition": 0}, {"value": "YQ==", "partition": 9}, {"value": "YQ==", "partition": 1}]
    answer = await rest.ask("POST", "/topics/flights", {"records": records}, content_type=BINARY)
    assert answer.status_code == 200
    first, refused, last = answer.json()["offsets"]
    assert [(one["partition"], one["offset"], one["error_code"]) for one in (first, last)] == [
        (0, 0, None),
        (1, 0, None),
    ]
    assert (refused["partition"], refused["offset"], refused["error_code"]) == (None, None, 40402)
    assert refused["error"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"records": []}, 422, 422),
        ({"records": {}}, 422, 422),
        ({}, 422, 422),
        ({"records": [1]}, 422, 422),
        ({"records": [{"value": "YQ=="}, {"valur": "YQ=="}]}, 422, 422),
        ({"records": [{"value": "YQ=="}, {"value": "not base64"}]}, 422, 42203),
        ({"records": [{"value": "YQ=="}, {"value": 5}]}, 422, 42203),
        ({"records": [{"value": "YQ=="}, {"key": {}, "value": "YQ=="}]}, 422, 42203),
        ({"records": [{"value": "YQ=="}], "more": 1}, 422, 422),
        ({"records": [{"value": "YQ=="}] * (RECORDS_MAX + 1)}, 413, 413),
    ],
)
async def test_a_body_that_cannot_be_converted_stores_nothing(rest: Rest, body: Any, status: int, code: int) -> None:
    await rest.broker.create_topic("flights")
    answer = await rest.ask("POST", "/topics/flights", body, content_type=BINARY)
    assert (answer.status_code, answer.json()["error_code"]) == (status, code)
    assert rest.broker.log("flights").log_end_offset == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"records":[{"value":"YQ=="}', b'{"records":' + b"[" * 100_000, b'{"records":[{"value":"\xff"}]}'],
)
async def test_bytes_that_are_no_json_are_refused(rest: Rest, body: bytes) -> None:
    await rest.broker.create_topic("flights")
    answer = await rest.http.post("/topics/flights", content=body, headers={"content-type": JSON})
    assert 400 <= answer.status_code < 500, answer.text
    assert rest.broker.log("flights").log_end_offset == 0


async def test_topics_and_partitions_that_there_are_not_are_404(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    for path, code in (("/topics/absent", 40401), ("/topics/flights/partitions/7", 40402)):
        answer = await rest.ask("POST", path, {"records": [{"value": "YQ=="}]}, content_type=BINARY)
        assert (answer.status_code, answer.json()["error_code"]) == (404, code)


async def test_the_number_of_a_partition_may_be_a_text(rest: Rest) -> None:
    await rest.broker.create_topic("flights", 2)
    records = [{"partition": partition, "value": "YQ=="} for partition in ("1", 1.0)]
    answer = await rest.ask("POST", "/topics/flights", {"records": records}, content_type=BINARY)
    assert [(one["partition"], one["offset"]) for one in answer.json()["offsets"]] == [(1, 0), (1, 1)]


async def test_a_partition_in_a_record_of_a_partition_is_refused(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    body = json.loads('{"records": [{"partition": 0, "value": "YQ=="}]}')
    answer = await rest.ask("POST", "/topics/flights/partitions/0", body, content_type=BINARY)
    assert answer.status_code == 422


@pytest.mark.parametrize("path", ["/topics/flights", "/topics/flights/partitions/0"])
@pytest.mark.parametrize("more", [{}, {"idempotency-key": "a"}])
async def test_a_condition_is_refused_and_not_ignored(rest: Rest, path: str, more: dict[str, str]) -> None:
    await rest.broker.create_topic("flights")
    headers = {"content-type": BINARY, "if-match": '"0"'} | more
    body = json.dumps({"records": [{"value": "YQ=="}]})
    answer = await rest.http.post(path, content=body, headers=headers)
    assert (answer.status_code, answer.json()["error_code"]) == (400, 400)
    assert "If-Match" in answer.json()["message"]
    assert rest.broker.log("flights").log_end_offset == 0
