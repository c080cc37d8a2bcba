"""``records:batch``: every entry is told of by its id, and a body whose entries cannot be told apart stores nothing."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.broker import RunningBroker


def said(response: httpx.Response) -> tuple[dict[str, Any], dict[str, Any]]:
    """Successes and failures by their ids."""
    answer = response.json()
    return tuple({one["id"]: one for one in answer[part]} for part in ("successes", "failures"))  # type: ignore[return-value]


async def test_an_entry_that_fails_keeps_no_other_from_being_stored(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    entries = [
        b'{"id":"a","value":{"type":"STRING","data":"fine"}}',
        b'{"id":"b","value":{"type":"BINARY","data":"%"}}',
        b'{"id":"c","value":{"type":"STRING","data":"caf\xe9"}}',
        b'{"id":"d","partition_id":7}',
        b'{"id":"e","colour":1}',
        b'{"id":"f","value":{"data":{"id":"z","a":[1,2,"]}"]}}}',
    ]
    body = b' {"entries" : [ ' + b" , ".join(entries) + b" ] }\n"
    response = await http.post(f"{cluster}/topics/t/records:batch", content=body)
    assert response.status_code == 207
    successes, failures = said(response)
    assert {id: one["offset"] for id, one in successes.items()} == {"a": 0, "f": 1}
    assert {id: one["error_code"] for id, one in failures.items()} == {"b": 400, "c": 400, "d": 40403, "e": 400}
    assert successes["a"]["value"] == {"type": "STRING", "size": 4}
    assert broker.log("t").log_end_offset == 2


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "one member"),
        (b"[]", 400, "one member"),
        (b"{}", 400, "one member"),
        (b'{"entries":[]}', 422, "no entries"),
        (b'{"entries":[{"id":"1"}', 400, "one member"),
        (b'{"entries":[{"id":"1"}],"more":1}', 400, "one member"),
        (b'{"entries":[{"id":"1"} {"id":"2"}]}', 400, "comma"),
        (b'{"entries":[{"id":"1"},,{"id":"2"}]}', 400, "JSON object"),
        (b'{"entries":[{"id":"1"},]}', 400, "JSON object"),
        (b'{"entries":[1]}', 400, "JSON object"),
        (b'{"entries":[{"value":{"data":1}}]}', 422, "id"),
        (b'{"entries":[{"id":""}]}', 422, "id"),
        (b'{"entries":[{"id":"' + b"x" * 81 + b'"}]}', 422, "id"),
        (b'{"entries":[{"id":"1"},{"id":"1"}]}', 422, "'1'"),
        (b'{"entries":[' + b'{"id":"1"},' * 1001 + b"{}]}", 413, "1000 entries"),
    ],
)
async def test_a_batch_that_cannot_be_told_apart_stores_nothing(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, body: bytes, status: int, words: str
) -> None:
    await broker.create_topic("t", 1)
    response = await http.post(f"{cluster}/topics/t/records:batch", content=body)
    assert response.status_code == status
    assert words in response.json()["message"]
    assert broker.log("t").log_end_offset == 0


async def test_a_thousand_entries_are_stored_in_their_order(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    body = {"entries": [{"id": str(number), "value": {"data": number}} for number in range(1000)]}
    successes, failures = said(await http.post(f"{cluster}/topics/t/records:batch", content=json.dumps(body)))
    assert failures == {}
    assert [successes[str(number)]["offset"] for number in range(1000)] == list(range(1000))


async def test_a_topic_that_does_not_exist_is_refused_before_the_body_is_read(
    http: httpx.AsyncClient, cluster: str
) -> None:
    response = await http.post(f"{cluster}/topics/nowhere/records:batch", content=b"not read")
    assert (response.status_code, response.json()["error_code"]) == (404, 40403)
