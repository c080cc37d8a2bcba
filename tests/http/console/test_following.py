from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.core.units import Offset, TimestampMs
from app.http.console.acts import following
from app.http.console.acts.following import Pace, event
from app.records.record import Record
from app.security.acls import Operation, ResourceType
from tests.http.secured import secured
from tests.support.broker import RunningBroker
from tests.support.console_forms import HTML, token_in
from tests.support.silent_registry import SilentRegistry
from tests.support.waiting import until

FOLLOW = "/console/topics/t/follow"
HOSTILE = "</td><script>alert(1)</script>\ntwo"


class Heard:
    """What a browser hears of a stream."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        self.over = False


@asynccontextmanager
async def stream(app: FastAPI, query: str = "", **headers: str) -> AsyncIterator[Heard]:
    """Ask for a stream, and hear it until the block ends."""
    heard, leaves = Heard(), asyncio.Event()
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            heard.status = message["status"]
            heard.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            heard.text += message["body"].decode()

    sent = {"host": "localhost", "accept": "text/event-stream", **headers}
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": FOLLOW, "raw_path": FOLLOW.encode(),
        "query_string": query.encode(), "root_path": "", "client": ("127.0.0.1", 1), "server": ("localhost", None),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()],
    }  # fmt: skip
    task = asyncio.create_task(app(scope, receive, send))
    task.add_done_callback(lambda _: setattr(heard, "over", True))
    try:
        yield heard
    finally:
        leaves.set()
        await task


def has(heard: Heard, text: str) -> Callable[[], bool]:
    return lambda: text in heard.text


@pytest.fixture
async def write(http: httpx.AsyncClient, cluster: str, broker: RunningBroker) -> Callable[..., Any]:
    await broker.create_topic("t", 1)

    async def written(*values: str) -> None:
        for value in values:
            record = {"key": {"type": "STRING", "data": value[:3]}, "value": {"type": "STRING", "data": value}}
            assert (await http.post(f"{cluster}/topics/t/records", json=record)).json()["error_code"] == 200

    return written


async def test_new_messages_come_as_rows_in_which_all_text_is_escaped(
    application: FastAPI, write: Callable[..., Any]
) -> None:
    await write("old")
    async with stream(application, "offset=1") as heard:
        await until(has(heard, ":\n\n"))
        await write("new-one", HOSTILE)
        await until(has(heard, "id: 2\n"))
        assert heard.status == 200
        assert heard.headers["content-type"].startswith("text/event-stream")
        assert heard.headers["cache-control"] == "no-store"
        assert heard.headers["x-content-type-options"] == "nosniff"
        assert "old" not in heard.text
        assert "new-one" in heard.text
        assert "<script>" not in heard.text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\ndata: two" in heard.text
        assert '<a href="/console/topics/t/partitions/0/messages/2">' in heard.text


async def test_a_stream_has_the_filter_of_its_page_and_goes_on_behind_what_was_heard(
    application: FastAPI, write: Callable[..., Any]
) -> None:
    await write("a-1", "b-1", "a-2")
    async with stream(application, "offset=0&contains=a-") as heard:
        await until(has(heard, "id: 2\n"))
        assert "b-1" not in heard.text
    for query, headers in (("", {"last_event_id": "1"}), ("&after=1", {}), ("&after=0", {"last_event_id": "1"})):
        async with stream(application, f"offset=0{query}", **headers) as heard:
            await until(has(heard, "id: 2\n"))
            assert "a-1" not in heard.text, query
            assert "b-1" not in heard.text, query


async def test_a_stream_that_falls_behind_goes_on_near_the_end_and_says_so(
    application: FastAPI, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ROWS_A_SECOND", 3)
    monkeypatch.setattr(following, "NEAR_THE_END", 2)
    await write(*(f"v{index:02}" for index in range(20)))
    async with stream(application, "offset=0") as heard:
        await until(has(heard, "id: 19\n"))
        assert "event: left-out\ndata: 15\n\n" in heard.text
        shown = [value for value in range(20) if f"v{value:02}" in heard.text]
        assert shown == [0, 1, 2, 18, 19]


async def test_rows_of_several_rounds_count_together(
    application: FastAPI, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "WINDOW_S", 3_600.0)
    monkeypatch.setattr(following, "ROWS_A_SECOND", 3)
    monkeypatch.setattr(following, "NEAR_THE_END", 0)
    async with stream(application) as heard:
        for index in range(3):
            await write(f"v{index}")
            await until(has(heard, f"id: {index}\n"))
        await write("v3")
        await until(has(heard, "event: left-out\ndata: 1\n\n"))
        assert "v3" not in heard.text


async def test_a_stream_whose_filter_fits_nothing_looks_at_so_many_bytes_and_goes_on_near_the_end(
    application: FastAPI, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "BYTES_A_SECOND", 3 * (following.RECORD_BYTES + 2 * len("v00")))
    monkeypatch.setattr(following, "NEAR_THE_END", 2)
    await write(*(f"v{index:02}" for index in range(20)))
    async with stream(application, "offset=0&contains=v19") as heard:
        await until(has(heard, "id: 19\n"))
        assert "event: left-out\ndata: 15\n\n" in heard.text


def test_a_pace_has_room_again_when_its_window_is_over() -> None:
    pace = Pace()
    record = Record(Offset(0), TimestampMs(0), None, None, ())
    pace.begin(10.0)
    for _ in range(following.ROWS_A_SECOND):
        assert not pace.is_full
        pace.looked_at(record)
        pace.shown()
    pace.begin(10.5)
    assert pace.is_full
    assert pace.left_s(10.5) == 0.5
    pace.begin(11.0)
    assert not pace.is_full
    pace.looked_at(record._replace(headers=(("h", bytes(following.BYTES_A_SECOND)),)))
    assert pace.is_full
    assert pace.left_s(13.0) == 0.0


async def test_a_stream_asks_a_silent_registry_once_in_a_while(
    application: FastAPI, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = SilentRegistry(monkeypatch)
    async with stream(application) as heard:
        for number in range(3):
            await write(f"\0\0\0\0{number:c}x")
            await until(has(heard, f"id: {number}\n"))
        assert heard.text.count("did not respond") == 3
    assert len(registry.asked) == 1


async def test_followers_are_bounded(application: FastAPI, write: Callable[..., Any]) -> None:
    gateway = application.state.gateway
    gateway.lanes._endless = gateway.lanes._endless_max
    async with stream(application) as heard:
        await until(lambda: heard.over)
        assert heard.status == 429
    gateway.lanes._endless = 0


async def test_a_stream_ends_with_its_session(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol")
        await http.broker.create_topic("t")
        await http.allow("carol", (Operation.READ, ResourceType.TOPIC, "t"))
        login = token_in((await http.client.get("/console/login", headers=HTML)).text)
        form = {"form_token": login, "user": "carol", "password": "carol-secret"}
        cookie = (await http.client.post("/console/login", data=form)).headers["set-cookie"].partition(";")[0]
        async with stream(http.app, cookie=cookie) as heard:
            await until(has(heard, ":\n\n"))
            sessions = http.app.state.console.sessions
            (session,) = sessions._known.values()
            sessions.end(session)
            await until(lambda: heard.over)
            assert "event: ended\ndata: Your session has ended. Log in again.\n\n" in heard.text
        async with stream(http.app, cookie=cookie) as heard:
            await until(lambda: heard.over)
            assert heard.status == 401


def test_an_event_has_each_line_of_its_text() -> None:
    assert event("a\nb\rc", name="x", offset=3) == b"event: x\nid: 3\ndata: a\ndata: b\ndata: c\n\n"
