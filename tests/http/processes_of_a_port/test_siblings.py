"""A worker passes a request on to another one, and asks it for metrics and readiness."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.core.metrics import Registry
from app.http.errors import ProcessEnded, RestError
from app.http.processes import places
from app.http.processes import siblings as module
from app.http.processes.answering import Answering
from app.http.processes.frames import ResponseStart, encode
from app.http.processes.siblings import SiblingAway, Siblings
from app.http.processes.worker import PASSED, Worker

SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/consumers/g/instances/i",
    "raw_path": b"/consumers/g/instances/i",
    "query_string": b"a=1",
    "headers": [(b"authorization", b"Basic abc"), (b"host", b"firn")],
    "scheme": "https",
    "client": ("192.0.2.7", 1234),
    "server": ("127.0.0.1", 443),
}


class Client:
    """The client of a request: its body, and what it was sent."""

    def __init__(self, *body: bytes) -> None:
        self._body = list(body) or [b""]
        self.left = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.heard = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self._body:
            data = self._body.pop(0)
            return {"type": "http.request", "body": data, "more_body": bool(self._body)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.heard.set()

    @property
    def body(self) -> bytes:
        return b"".join(one["body"] for one in self.sent[1:])


async def ready() -> str:
    return ""


@asynccontextmanager
async def answering(
    directory: Path, app: Any, refusal: Callable[[], Awaitable[str]] = ready, registry: Registry | None = None
) -> AsyncIterator[Siblings]:
    """The second of two workers answers; the first one asks."""
    other = Answering(app, Registry() if registry is None else registry, refusal)
    await other.start(Worker(1, 2, 0, str(directory)))
    try:
        yield Siblings(Worker(0, 2, 0, str(directory)))
    finally:
        other.close()
        await other.wait_closed()


async def whole_body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        if not message["more_body"]:
            return body


async def test_a_request_comes_with_all_that_its_process_would_know(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope)
        body = await whole_body(receive)
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        await send({"type": "http.response.body", "body": body[1:]})

    client = Client(b"x" * 100_000, b"", b"y" * 100_000)
    async with answering(tmp_path, app) as siblings:
        await siblings.pass_on(1, dict(SCOPE), client.receive, client.send)
    assert {name: seen[name] for name in SCOPE} == SCOPE
    assert seen[PASSED] is True
    assert client.sent[0] == {"type": "http.response.start", "status": 201, "headers": [(b"x", b"y")]}
    assert client.body == b"x" * 100_000 + b"y" * 100_000
    assert [one["more_body"] for one in client.sent[1:]][-1] is False


async def test_a_response_comes_while_the_body_is_still_open(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": (await receive())["body"], "more_body": True})
        await send({"type": "http.response.body", "body": (await receive())["body"]})

    client = Client(b"first")
    client._body.append(b"")
    more = asyncio.Event()

    async def receive() -> dict[str, Any]:
        message = await client.receive()
        if message["type"] == "http.request" and not message["more_body"]:
            await more.wait()
            return {**message, "body": b"second"}
        return message

    async with answering(tmp_path, app) as siblings:
        passing = asyncio.create_task(siblings.pass_on(1, dict(SCOPE), receive, client.send))
        while client.body != b"first":
            client.heard.clear()
            await client.heard.wait()
        more.set()
        await passing
    assert client.body == b"firstsecond"


async def test_the_other_process_hears_that_the_client_has_left(tmp_path: Path) -> None:
    heard, waits = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole_body(receive)
        waits.set()
        assert (await receive())["type"] == "http.disconnect"
        heard.set()

    client = Client(b"body")
    async with answering(tmp_path, app) as siblings:
        passing = asyncio.create_task(siblings.pass_on(1, dict(SCOPE), client.receive, client.send))
        await waits.wait()
        client.left.set()
        await heard.wait()
        await passing
    assert client.sent == []


async def test_a_process_that_does_not_run_is_away(tmp_path: Path) -> None:
    client = Client()
    siblings = Siblings(Worker(0, 2, 0, str(tmp_path)))
    with pytest.raises(SiblingAway) as away:
        await siblings.pass_on(1, dict(SCOPE), client.receive, client.send)
    assert away.value.untouched
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(siblings.worker.path_of(1))  # of a process that was killed: nothing listens
        with pytest.raises(SiblingAway):
            await siblings.pass_on(1, dict(SCOPE), client.receive, client.send)
    assert client.sent == []


@pytest.mark.parametrize("said", [b"", encode(ResponseStart(200, []))])
async def test_a_process_that_ends_before_its_response_is_away_and_one_that_ends_in_it_has_ended(
    tmp_path: Path, said: bytes
) -> None:
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(said)
        writer.close()

    worker = Worker(0, 2, 0, str(tmp_path))
    server = await asyncio.start_unix_server(end, worker.path_of(1))
    client = Client(b"body")
    with pytest.raises(ProcessEnded if said else SiblingAway):
        await Siblings(worker).pass_on(1, dict(SCOPE), client.receive, client.send)
    assert len(client.sent) == bool(said)
    server.close()


async def test_an_error_of_the_application_is_logged_and_answered_with_500(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ArithmeticError("a bug")

    client = Client()
    monitored = logging.getLogger("uvicorn.error")
    monitored.addHandler(caplog.handler)
    try:
        async with answering(tmp_path, app) as siblings:
            await siblings.pass_on(1, dict(SCOPE), client.receive, client.send)
    finally:
        monitored.removeHandler(caplog.handler)
    assert client.sent[0]["status"] == 500
    assert any(record.exc_info and isinstance(record.exc_info[1], ArithmeticError) for record in caplog.records)


async def test_a_worker_passes_a_limited_number_of_requests_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PASSED_MAX", 1)
    waits, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        waits.set()
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    first, second = Client(), Client()
    async with answering(tmp_path, app) as siblings:
        passing = asyncio.create_task(siblings.pass_on(1, dict(SCOPE), first.receive, first.send))
        await waits.wait()
        with pytest.raises(RestError, match="too many requests") as refused:
            await siblings.pass_on(1, dict(SCOPE), second.receive, second.send)
        assert refused.value.answer.status == 503
        go_on.set()
        await passing
        await siblings.pass_on(1, dict(SCOPE), second.receive, second.send)
    assert second.sent[0]["status"] == 200


async def test_a_worker_takes_a_limited_number_of_streams_from_all_others_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "ENDLESS_PASSED_MAX", 1)
    waits, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not waits.is_set():
            waits.set()
            await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    path = "/console/topics/t/follow"
    stream = {**SCOPE, "path": path, "raw_path": path.encode()}
    first, second, third = Client(), Client(), Client()
    async with answering(tmp_path, app) as one:
        other = Siblings(Worker(2, 3, 0, str(tmp_path)))
        passing = asyncio.create_task(one.pass_on(1, dict(stream), first.receive, first.send, console=True))
        await waits.wait()
        await other.pass_on(1, dict(stream), second.receive, second.send, console=True)
        go_on.set()
        assert second.sent[0]["status"] == 429
        await passing
        await other.pass_on(1, dict(stream), third.receive, third.send, console=True)
    assert third.sent[0]["status"] == 200


async def test_a_worker_takes_a_limited_number_of_requests_from_all_others_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "PASSED_MAX", 1)
    waits, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not waits.is_set():
            waits.set()
            await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    first, second, page, third = Client(), Client(), Client(), Client()
    async with answering(tmp_path, app) as one:
        other = Siblings(Worker(2, 3, 0, str(tmp_path)))
        passing = asyncio.create_task(one.pass_on(1, dict(SCOPE), first.receive, first.send))
        await waits.wait()
        await other.pass_on(1, dict(SCOPE), second.receive, second.send)
        go_on.set()
        assert second.sent[0]["status"] == 503
        assert json.loads(second.body)["error_code"] == 50302
        assert (b"retry-after", b"1") in second.sent[0]["headers"]
        await other.pass_on(1, dict(SCOPE), page.receive, page.send, console=True)
        await passing
        await other.pass_on(1, dict(SCOPE), third.receive, third.send)
    assert [one.sent[0]["status"] for one in (first, page, third)] == [200, 200, 200]


async def test_callers_at_the_same_time_share_one_connection_to_each_other_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.asked_once.KEPT_S", 60.0)
    asked = 0

    async def refusal() -> str:
        nonlocal asked
        asked += 1
        return "No broker answered in time."

    registry = Registry()
    registry.counter("firn_test_total", "A test.").value = 1
    connecting = asyncio.open_unix_connection
    connections = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal connections
        connections += 1
        return connecting(*arguments, **options)

    monkeypatch.setattr(asyncio, "open_unix_connection", counted)
    async with answering(tmp_path, None, refusal, registry) as siblings:
        assert set(await asyncio.gather(*(siblings.refusal() for _ in range(20)))) == {"No broker answered in time."}
        assert await siblings.refusal() == "No broker answered in time."
        assert (asked, connections) == (1, 1)
        found = await asyncio.gather(*(siblings.samples() for _ in range(20)))
        assert {len(one) for one in found} == {2}
        assert connections == 2


async def test_samples_of_the_others_have_their_names_and_say_who_answered(tmp_path: Path) -> None:
    registry = Registry()
    for number in range(1_200):
        registry.counter("firn_test_total", "A test.", number=str(number)).value = number
    async with answering(tmp_path, None, registry=registry) as siblings:
        found = await siblings.samples()
    *counters, up = found
    assert [one.value for one in counters] == list(range(1_200))
    assert counters[7].labels == (("process", "http-1"), ("number", "7"))
    assert (up.name, up.labels, up.value) == ("firn_http_process_up", (("process", "http-1"),), 1.0)
    (up,) = await siblings.samples()
    assert up.value == 0.0


async def test_a_process_that_runs_and_reaches_no_broker_is_not_ready_and_one_that_does_not_run_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.asked_once.KEPT_S", 0.0)
    said = ["", "No broker answered in time."]

    async def refusal() -> str:
        return said.pop(0)

    async with answering(tmp_path, None, refusal) as siblings:
        assert await siblings.refusal() == ""
        assert await siblings.refusal() == "No broker answered in time."
    assert await siblings.refusal() == ""


async def test_a_process_that_stands_still_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_TIMEOUT_S", 0.01)
    worker = Worker(0, 2, 0, str(tmp_path))
    with socket.socket(socket.AF_UNIX) as still:
        still.bind(worker.path_of(1))
        still.listen()
        assert await Siblings(worker).refusal() == "Process http-1 of the server does not respond."
