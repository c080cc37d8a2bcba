from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.http.console.acts import exporting
from tests.support.broker import RunningBroker

EXPORT = "/console/topics/t/export"
HOSTILE = '</script>\n"\u202e'


@pytest.fixture
async def written(http: httpx.AsyncClient, cluster: str, broker: RunningBroker) -> list[dict[str, Any]]:
    await broker.create_topic("t", 1)
    for index in range(12):
        text = {"type": "STRING", "data": f"v{index}{HOSTILE}"}
        key = {"type": "STRING", "data": "even" if index % 2 == 0 else "odd"}
        stored = await http.post(f"{cluster}/topics/t/records", json={"key": key, "value": text})
        assert stored.json()["error_code"] == 200
    found: list[dict[str, Any]] = (await http.get(f"{cluster}/topics/t/partitions/0/records")).json()["data"]
    return found


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.content.splitlines()]


async def test_a_file_has_what_the_search_finds_in_the_form_of_rest(
    http: httpx.AsyncClient, written: list[dict[str, Any]]
) -> None:
    response = await http.get(f"{EXPORT}?offset=0")
    assert lines(response) == written
    assert response.headers["content-disposition"] == 'attachment; filename="t-0-from-0.ndjson"'
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"
    assert "content-security-policy" in response.headers
    assert lines(await http.get(f"{EXPORT}?offset=9")) == written[9:]
    assert lines(await http.get(f"{EXPORT}?offset=0&key=odd")) == written[1::2]
    assert lines(await http.get(f"{EXPORT}?offset=0&contains=v1")) == [written[1], *written[10:]]
    page = (await http.get("/console/topics/t/messages?offset=3&key=odd")).text
    assert (
        'href="/console/topics/t/export?partition=0&amp;count=50&amp;key=odd&amp;contains=&amp;header=&amp;offset=3"'
        in page
    )


async def test_a_file_that_ends_at_a_limit_says_so_in_its_last_line(
    http: httpx.AsyncClient, written: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit, count in (("EXPORTED_MAX", 5, 5), ("EXPORTED_BYTES_MAX", 1, 1), ("SCANNED_BYTES_MAX", 1, 1)):
        with monkeypatch.context() as patch:
            patch.setattr(exporting, name, limit)
            found = lines(await http.get(f"{EXPORT}?offset=0"))
        assert found[:-1] == written[:count], name
        assert found[-1]["next_offset"] == count
        assert "The file ends before offset" in found[-1]["message"]
        assert lines(await http.get(f"{EXPORT}?offset={found[-1]['next_offset']}")) == written[count:]


async def test_a_file_is_sent_in_pieces_within_the_budget_of_reads(
    http: httpx.AsyncClient, written: list[dict[str, Any]], application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "PIECE_BYTES", 1)
    budget = application.state.gateway.read_budget
    seen = []

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        async def watched(message: Any) -> None:
            if message["type"] == "http.response.body" and message["body"]:
                seen.append((budget.taken, len(message["body"])))
            await send(message)

        await application(scope, receive, watched)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=asked), base_url="http://firn") as client:
        assert lines(await client.get(f"{EXPORT}?offset=0")) == written
    assert len(seen) == len(written)
    assert all(taken == size for taken, size in seen)
    assert budget.taken == 0
    budget.add(budget.bytes_max)
    (refused,) = lines(await http.get(f"{EXPORT}?offset=0"))
    assert refused["error_code"] == 42901
    budget.add(-budget.bytes_max)


async def test_a_search_that_is_none_is_refused_before_the_file_begins(
    http: httpx.AsyncClient, written: list[dict[str, Any]]
) -> None:
    for query in ("partition=9", "offset=x", "time=soon"):
        assert (await http.get(f"{EXPORT}?{query}")).status_code in (400, 404), query
    assert (await http.get("/console/topics/none/export")).status_code == 404
    assert (await http.head(f"{EXPORT}?offset=0")).content == b""
