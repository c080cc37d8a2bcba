"""How any HTTP server reads a request: HEAD, slashes at the end, HTTP/1.0, encodings and byte order marks."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.support.broker import RunningBroker

RECORD = b'{"value":{"type":"STRING","data":"fine"}}'
MARK = b"\xef\xbb\xbf"


def codes(response: httpx.Response) -> list[int]:
    return [json.loads(line)["error_code"] for line in response.content.splitlines()]


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/v3/clusters"])
async def test_head_is_get_without_the_body(http: httpx.AsyncClient, path: str) -> None:
    got, head = await http.get(path), await http.head(path)
    assert (head.status_code, head.headers["content-type"]) == (got.status_code, got.headers["content-type"])
    assert head.content == b""
    if path not in ("/metrics", "/readyz"):
        assert head.headers["content-length"] == got.headers["content-length"]


async def test_head_of_a_path_that_only_takes_posts_is_refused_as_get_is(http: httpx.AsyncClient, cluster: str) -> None:
    assert (await http.head(f"{cluster}/topics/t/records")).status_code == 405


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/mode", "DELETE, GET, HEAD, PUT"),
        ("/subjects/a/versions", "GET, HEAD, POST"),
        ("/consumers/g/instances/i/subscription", "DELETE, GET, HEAD, POST"),
        ("/v3/clusters/c/topics/t/records", "POST"),
        ("/healthz", "GET, HEAD"),
    ],
)
async def test_a_refused_method_is_answered_with_all_that_the_path_has(
    http: httpx.AsyncClient, path: str, allowed: str
) -> None:
    response = await http.patch(path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/healthz/", "/v3/clusters/", "/v3/clusters///"])
async def test_a_slash_at_the_end_changes_nothing(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 200


async def test_rest_v3_is_below_kafka_too_and_its_links_stay_there(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    clusters = (await http.get("/kafka/v3/clusters")).json()
    links = [clusters["metadata"]["self"], clusters["data"][0]["topics"]["related"]]
    below = str(http.base_url.join("/kafka/v3/clusters"))
    assert [link.startswith(below) for link in links] == [True, True], links
    topics = (await http.get(links[1])).json()["data"]
    assert [one["topic_name"] for one in topics] == ["t"]
    assert topics[0]["metadata"]["self"].startswith(below)
    records = f"/kafka{cluster}/topics/t/records"
    assert codes(await http.post(records, content=RECORD)) == [200]
    made = await http.post(f"/kafka{cluster}/topics/", json={"topic_name": "u"})
    assert made.headers["location"] == f"{below}/{cluster.removeprefix('/v3/clusters/')}/topics/u"
    group = await http.get(f"/kafka{cluster}/consumer-groups/a%2Fb")
    assert (group.status_code, "a/b" in group.json()["message"]) == (404, True)
    for path in (
        "/kafka",
        "/kafka/v3",
        "/kafka/topics",
        "/kafka/subjects",
        "/kafka/kafka/v3/clusters",
        "/kafkav3/clusters",
    ):
        assert (await http.get(path)).status_code == 404, path


async def test_a_record_is_stored_by_a_path_with_a_slash_at_its_end(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    assert codes(await http.post(f"{cluster}/topics/t/records/", content=RECORD)) == [200]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"value":{"type":"STRING","data":"caf\xe9"}}',
        b'{"key":{"type":"STRING","data":"\xff"},"value":{"type":"STRING","data":"x"}}',
        b'{"value":{"type":"BINARY","data":"\xe9"}}',
        b'{"value":{"type":"JSON","data":"\xe9"}}',
        b'{"value":{"type":"\xe9","data":"x"}}',
        b'{"headers":[{"name":"\xe9"}]}',
        b'{"headers":[{"name":"n","value":"\xe9"}]}',
        b'{"timestamp":"\xe9"}',
        b'{"\xe9":1}',
        b'{"value":{"type":"STRING","data":"\\ud800"}}',
    ],
)
async def test_a_record_that_is_not_utf8_is_refused_alone(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, bad: bytes
) -> None:
    await broker.create_topic("t", 1)
    assert (await http.post(f"{cluster}/topics/t/records", content=bad)).status_code == 400
    assert codes(await http.post(f"{cluster}/topics/t/records", content=RECORD + bad + RECORD)) == [200, 400, 200]


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 20])
async def test_a_byte_order_mark_before_the_first_record_is_skipped(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, cut: int
) -> None:
    await broker.create_topic("t", 1)

    async def pieces() -> AsyncIterator[bytes]:
        body = MARK + RECORD + RECORD
        yield body[:cut]
        yield body[cut:]

    assert codes(await http.post(f"{cluster}/topics/t/records", content=pieces())) == [200, 200]


@pytest.mark.parametrize("body", [MARK, MARK[:2], RECORD + MARK])
async def test_a_byte_order_mark_in_another_place_is_refused(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, body: bytes
) -> None:
    await broker.create_topic("t", 1)
    response = await http.post(f"{cluster}/topics/t/records", content=body)
    assert codes(response)[-1] in (400, 40002)


async def test_bodies_of_other_routes_may_be_in_gzip_or_begin_with_a_byte_order_mark(
    http: httpx.AsyncClient, cluster: str
) -> None:
    for name, encode, headers in (
        ("marked", lambda body: MARK + body, {}),
        ("packed", gzip.compress, {"content-encoding": "gzip"}),
    ):
        body: Any = encode(json.dumps({"topic_name": name}).encode())
        response = await http.post(f"{cluster}/topics", content=body, headers=headers)
        assert response.status_code == 201, response.text


async def test_records_in_gzip_are_stored(http: httpx.AsyncClient, cluster: str, broker: RunningBroker) -> None:
    await broker.create_topic("t", 1)
    body = gzip.compress(RECORD * 500)
    response = await http.post(f"{cluster}/topics/t/records", content=body, headers={"content-encoding": "gzip"})
    assert codes(response) == [200] * 500


async def test_a_gzip_body_that_breaks_off_is_told_behind_the_receipts_of_its_records(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    body = gzip.compress(RECORD * 2)[:-3]
    response = await http.post(f"{cluster}/topics/t/records", content=body, headers={"content-encoding": "gzip"})
    assert codes(response) == [200, 200, 400]


@pytest.mark.parametrize("path", ["records", "records:batch"])
async def test_an_encoding_that_is_not_served_is_415(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, path: str
) -> None:
    await broker.create_topic("t", 1)
    response = await http.post(f"{cluster}/topics/t/{path}", content=RECORD, headers={"content-encoding": "br"})
    assert (response.status_code, response.json()["error_code"]) == (415, 415)
    assert "gzip" in response.json()["message"]


async def test_a_body_that_grows_a_thousandfold_lets_others_have_turns(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create_topic("t", 1)
    monkeypatch.setattr("app.core.turns.PORTION_S", 0.0)  # so that a fast machine rests as often
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(other())
    body = gzip.compress(b" " * 50_000_000)
    response = await http.post(f"{cluster}/topics/t/records", content=body, headers={"content-encoding": "gzip"})
    beside.cancel()
    assert response.status_code == 400
    assert turns >= 50_000_000 // (64 * 1024)


async def as_http_1_0(application: FastAPI, path: str, body: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Headers and body of the answer to a POST of a client of HTTP/1.0, as the server is told them."""
    scope = {
        "type": "http",
        "http_version": "1.0",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"firn"), (b"content-length", str(len(body)).encode())],
        "scheme": "http",
        "server": ("127.0.0.1", 80),
    }
    parts = [body[start : start + 65536] for start in range(0, len(body), 65536)]
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        messages.append(message)

    await application(scope, receive, send)
    (start,) = (message for message in messages if message["type"] == "http.response.start")
    return dict(start["headers"]), b"".join(message.get("body", b"") for message in messages)


async def test_a_client_of_http_1_0_gets_its_receipts_with_their_length(
    application: FastAPI, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    for count in (1, 3):
        headers, body = await as_http_1_0(application, f"{cluster}/topics/t/records", RECORD * count)
        assert int(headers[b"content-length"]) == len(body)
        assert len(body.splitlines()) == count


async def test_receipts_held_for_a_client_of_http_1_0_are_bounded_and_the_last_one_says_so(
    application: FastAPI, cluster: str, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.bodies.HELD_BYTES_MAX", 10_000)
    await broker.create_topic("t", 1)
    _, body = await as_http_1_0(application, f"{cluster}/topics/t/records", RECORD * 10_000)
    *stored, last = [json.loads(line) for line in body.splitlines()]
    assert {one["error_code"] for one in stored} == {200}
    assert last["error_code"] == 413
    assert "HTTP/1.1" in last["message"]
    assert broker.log("t").log_end_offset == len(stored) < 10_000
