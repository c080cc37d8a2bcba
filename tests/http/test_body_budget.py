"""Bodies that are held as a whole share one budget, which no caller can use up alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from app.http import body_budget
from app.http.bodies import whole_body
from app.http.body_budget import BodyBudget
from app.http.errors import RestError
from tests.support.broker import RunningBroker

V2 = {"content-type": "application/vnd.kafka.json.v2+json"}


@pytest.mark.parametrize("route", ["v2", "v3"])
async def test_a_body_is_refused_while_others_hold_all_bytes_and_served_afterwards(
    http: httpx.AsyncClient, application: FastAPI, cluster: str, broker: RunningBroker, route: str
) -> None:
    await broker.create_topic("t", 1)
    budget = application.state.body_budget = BodyBudget(100_000)
    value = "x" * 70_000
    if route == "v2":
        path, body = "/topics/t", {"records": [{"value": value}]}
    else:
        path, body = f"{cluster}/topics/t/records:batch", {"entries": [{"id": "1", "value": {"data": value}}]}
    content = json.dumps(body).encode()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield content[:-10]
        begun.set()
        await may_end.wait()
        yield content[-10:]

    first = asyncio.create_task(http.post(path, content=slowly(), headers=V2))
    await begun.wait()
    refused = await http.post(path, content=content, headers=V2)
    assert (refused.status_code, refused.json()["error_code"]) == (429, 42901)
    assert refused.headers["retry-after"] == "1"
    short = await http.post("/topics/t", json={"records": [{"value": 1}]}, headers=V2)
    assert short.status_code == 200, "the first piece of a body is never refused"
    may_end.set()
    assert (await first).status_code in (200, 207)
    assert (await http.post(path, content=content, headers=V2)).status_code in (200, 207)
    assert budget.whole.taken == 0


async def test_bytes_are_held_until_the_records_are_stored(
    http: httpx.AsyncClient, application: FastAPI, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create_topic("t", 1)
    budget = application.state.body_budget = BodyBudget()
    seen: list[int] = []
    producer = application.state.gateway.producer
    send = producer.send

    async def noted(*arguments: object, **named: object) -> object:
        seen.append(budget.whole.taken)
        return await send(*arguments, **named)

    monkeypatch.setattr(producer, "send", noted)
    content = json.dumps({"records": [{"value": 1}]}).encode()
    assert (await http.post("/topics/t", content=content, headers=V2)).status_code == 200
    assert seen == [len(content)]
    assert budget.whole.taken == 0


async def test_one_caller_has_a_half_of_all_bytes(application: FastAPI) -> None:
    """The application says that callers log in, by having callers."""
    budget = BodyBudget(60_000)
    application.state.body_budget = budget
    application.state.callers = object()
    try:
        request = Request({"type": "http", "app": application, "headers": []})
        with body_budget.bytes_of_body(request) as held:
            body_budget.take_body(held, 20_000)
            body_budget.take_body(held, 10_000)
            with pytest.raises(RestError):
                body_budget.take_body(held, 1)
            assert budget.whole.has(30_000)
        assert budget.whole.taken == 0
    finally:
        application.state.callers = None


async def test_a_body_that_is_read_and_passed_on_gives_its_bytes_back(application: FastAPI) -> None:
    budget = application.state.body_budget = BodyBudget()
    seen: list[int] = []
    messages = [
        {"type": "http.request", "body": b"x" * 1_000, "more_body": True},
        {"type": "http.request", "body": b"y", "more_body": False},
    ]

    async def receive() -> dict[str, object]:
        seen.append(budget.whole.taken)
        return messages.pop(0)

    request = Request({"type": "http", "app": application, "headers": []}, receive)
    assert len(await whole_body(request, bytes_max=2_000, idle_timeout_ms=1_000)) == 1_001
    assert seen == [0, 1_000]
    assert budget.whole.taken == 0
