"""Pages of records share a bound of bytes, and a page that gets no more ends early."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Message

from app.http.read_budget import Held, ReadBudget
from tests.support.broker import RunningBroker


def test_the_first_record_of_a_page_is_never_refused_and_a_further_one_is() -> None:
    budget = ReadBudget(100)
    with budget.page() as first, budget.page() as second:
        assert first.take(90)
        assert second.take(50)
        assert not second.take(1)
        assert not first.take(1)
        assert budget.taken == 140
    assert budget.taken == 0


def test_one_caller_leaves_bytes_to_others() -> None:
    budget = ReadBudget(100)
    greedy, modest = budget.part_of_caller(), budget.part_of_caller()
    with greedy.page() as some, greedy.page() as more, modest.page() as other:
        assert some.take(30)
        assert more.take(20)
        assert not more.take(1)
        assert other.take(10)
        assert other.take(10)
    assert (budget.taken, greedy.taken, modest.taken) == (0, 0, 0)


async def test_bytes_are_held_until_the_response_is_sent_or_has_failed() -> None:
    budget = ReadBudget(100)
    for fails in (False, True):
        with budget.page() as page:
            assert page.take(60)
            response = Held(Response(b"x" * 60), page)
        assert budget.taken == 60

        async def send(message: Message, fails: bool = fails) -> None:
            assert budget.taken == 60
            if fails:
                raise ConnectionError

        async def receive() -> Message:
            raise AssertionError("a response needs nothing")

        scope: dict[str, Any] = {"type": "http"}
        if fails:
            with pytest.raises(ConnectionError):
                await response(scope, receive, send)
        else:
            await response(scope, receive, send)
        assert budget.taken == 0


async def test_a_page_that_gets_no_more_bytes_ends_there_and_the_next_one_goes_on(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    content = b"".join(b'{"value":{"data":%d}}' % number for number in range(10))
    assert (await http.post(f"{cluster}/topics/t/records", content=content)).status_code == 200
    path = f"{cluster}/topics/t/partitions/0/records"
    whole = (await http.get(path)).json()
    assert (len(whole["data"]), whole["ended_by"]) == (10, "end")
    budget = application.state.gateway.read_budget = ReadBudget(350)
    for accept in ("application/json", "application/x-ndjson"):
        seen, following = 0, path
        while seen < 10:
            answer = await http.get(following, headers={"accept": accept})
            lines = answer.json()["data"] if accept == "application/json" else answer.text.splitlines()
            assert 1 <= len(lines) <= 4
            seen += len(lines)
            following = answer.links["next"]["url"]
            assert budget.taken == 0
        assert seen == 10
    short = (await http.get(path)).json()
    assert short["ended_by"] == "bytes"
    assert short["data"] == whole["data"][: short["next_offset"]]
    budget.add(350)  # others hold all of it
    (alone,) = (await http.get(path)).json()["data"]
    assert alone == whole["data"][0]
