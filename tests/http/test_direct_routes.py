"""Frequent requests pass by FastAPI's router, and are answered as it would have them answered."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.application import Application, create_app
from app.http.connections import WHOLE
from app.http.direct_routes import DirectRoutes
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.image.records import REGISTRY_LEVEL
from tests.support.broker import RunningBroker, running_broker
from tests.support.record_bodies import BODIES, LIMIT, RECORD
from tests.support.routes import served_routes
from tests.support.several import unfenced
from tests.support.waiting import until
from tests.support.walked_routes import http_server

SCHEMA: Final = json.dumps({"schema": '"string"'}).encode()


def application() -> Application:
    return create_app(HttpSettings(bootstrap=(("127.0.0.1", 1),)), clock=SystemClock(), rng=random.Random(1))


def direct_of(app: Application) -> DirectRoutes:
    (found,) = (one for one in app.around if one.func is DirectRoutes)
    return DirectRoutes(app.router, **found.keywords)


class InPieces:
    """Middleware that hides from routes that a body has come as a whole."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.pop(WHOLE, None)
        await self._inner(scope, receive, send)


def through_the_router(app: Application) -> None:
    """Let no request take a shorter way."""
    app.state.quick_records = None
    app.around[:] = (one for one in app.around if one.func is not DirectRoutes)
    app.around.append(partial(InPieces))


def flat(routes: Iterable[Any]) -> Iterator[Any]:
    """Routes in the order in which the router looks at them, those of included routers too."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from flat(inner.routes)


def test_a_direct_route_is_the_one_that_the_router_chooses() -> None:
    app = application()
    direct = direct_of(app)
    through_the_router(app)
    chosen_from = [route for route in flat(app.router.routes) if isinstance(route, APIRoute)]
    taken = set()
    for method, path in served_routes(app):
        filled = re.sub(r"\{[^}]+\}", "x", path)
        scope = {"type": "http", "method": method, "path": filled, "root_path": "", "app": app}
        chosen = direct.chosen(scope)
        if chosen is None:
            continue
        taken.add((method, path))
        assert chosen[0].path == path
        full = (route for route in chosen_from if route.matches(dict(scope))[0] is Match.FULL)
        first = next(full)
        assert first.endpoint is chosen[0].endpoint
        assert first.matches(dict(scope))[1]["path_params"] == chosen[1]
    assert ("POST", "/v3/clusters/{cluster_id}/topics/{topic_name}/records") in taken
    assert ("GET", "/schemas/ids/{schema_id}") in taken


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v3/clusters/c/topics/t/records"),
        ("POST", "/v3/clusters//topics/t/records"),
        ("POST", "/v3/clusters/c/topics/t/records/more"),
        ("POST", "/v3/clusters/c/groups/t/records"),
    ],
)
def test_other_requests_are_left_to_the_router(method: str, path: str) -> None:
    scope = {"type": "http", "method": method, "path": path, "root_path": ""}
    assert direct_of(application()).chosen(scope) is None


def test_no_application_builds_the_routes_of_routers_again() -> None:
    first, second = application().router.routes, application().router.routes
    shared = {id(route) for route in first} & {id(route) for route in second}
    assert {getattr(route, "path", "included") for route in first if id(route) not in shared} == {
        *("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics")
    }


def test_an_endpoint_that_needs_fastapi_is_refused() -> None:
    router = APIRouter()

    @router.get("/numbers/{number}")
    async def numbered(number: int, request: Request) -> Response:
        return Response(str(number))

    with pytest.raises(AssertionError):
        DirectRoutes(router, routes=router.routes)  # type: ignore[arg-type]


# --- the same answers -------------------------------------------------------------------------------------------------


@pytest.fixture(name="broker")
async def _broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    """A broker of the level that the schema registry needs."""
    async with running_broker(tmp_path, num_partitions=1, new_level=REGISTRY_LEVEL) as running:
        await until(lambda: unfenced(running))
        yield running


@pytest.fixture(name="ports")
async def _ports(broker: RunningBroker) -> AsyncIterator[tuple[int, int]]:
    """Of a server as it is, and of one whose requests all go through the router."""
    await broker.create_topic("direct", 1)
    await broker.create_topic("router", 1)
    where = ("127.0.0.1", broker.port)
    async with (
        http_server(where, record_bytes_max=LIMIT) as direct,
        http_server(where, record_bytes_max=LIMIT, change=through_the_router) as router,
    ):
        yield direct.port, router.port


async def said(port: int, head: str, body: bytes) -> tuple[bytes, list[bytes], bytes]:
    """A request on a connection of its own. Returns: status line, headers but those of the framing, and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
    answer = await reader.read()
    writer.close()
    lines, _, content = answer.partition(b"\r\n\r\n")
    status, *headers = lines.split(b"\r\n")
    if b"transfer-encoding: chunked" in headers:
        pieces, rest = [], content
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            pieces.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        content = b"".join(pieces)
    framing = (b"content-length", b"transfer-encoding", b"date")
    return status, sorted(one for one in headers if not one.startswith(framing)), content


async def test_records_are_answered_as_through_the_router(ports: tuple[int, int], cluster: str) -> None:
    direct, router = ports
    for title, body in BODIES.items():
        for version in ("1.1", "1.0"):
            answers = []
            for port, topic in ((direct, "direct"), (router, "router")):
                head = f"POST {cluster}/topics/{topic}/records HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}"
                status, headers, content = await said(port, head, body)
                answers.append((status, headers, content.replace(topic.encode(), b"t")))
            assert answers[0] == answers[1], (title, version)
    assert answers[0][0] == b"HTTP/1.1 200 OK"
    assert b'"offset":' in answers[0][2]


async def test_other_forms_of_a_request_for_one_record_are_answered_as_through_the_router(
    ports: tuple[int, int], cluster: str
) -> None:
    direct, router = ports
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(RECORD), RECORD)
    packed = gzip.compress(RECORD)
    for path, more, body in (
        (f"{cluster}/topics/TOPIC/records", "Transfer-Encoding: chunked", chunked),
        (f"{cluster}/topics/TOPIC/records", f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}", packed),
        (f"{cluster}/topics/TOPIC/records", f"Content-Encoding: br\r\nContent-Length: {len(RECORD)}", RECORD),
        (f"{cluster}/topics/TOPIC/records/", f"Content-Length: {len(RECORD)}", RECORD),
        (f"{cluster}/topics/absent/records", f"Content-Length: {len(RECORD)}", RECORD),
        (f"{cluster}/topics/a%2Fb/records", f"Content-Length: {len(RECORD)}", RECORD),
        ("/v3/clusters/other/topics/TOPIC/records", f"Content-Length: {len(RECORD)}", RECORD),
        (f"{cluster}/topics/TOPIC/records", f"Origin: http://evil.example\r\nContent-Length: {len(RECORD)}", RECORD),
    ):
        answers = []
        for port, topic in ((direct, "direct"), (router, "router")):
            head = f"POST {path.replace('TOPIC', topic)} HTTP/1.1\r\nHost: localhost\r\n{more}"
            status, headers, content = await said(port, head, body)
            answers.append((status, headers, content.replace(topic.encode(), b"t")))
        assert answers[0] == answers[1], (path, more)


async def test_a_host_that_was_served_once_is_no_leave_for_pages_and_other_hosts(
    ports: tuple[int, int], cluster: str
) -> None:
    head = f"POST {cluster}/topics/direct/records HTTP/1.1\r\nContent-Length: {len(RECORD)}\r\n"
    served = [
        (await said(ports[0], head + more, RECORD))[0].split()[1]
        for more in (
            "Host: localhost",
            "Host: localhost\r\nOrigin: http://evil.example",
            "Host: localhost\r\nSec-Fetch-Site: cross-site",
            "Host: evil.example",
            "Host: localhost\r\nHost: localhost",
            "Host: localhost",
        )
    ]
    assert served == [b"200", b"403", b"403", b"421", b"400", b"200"]


async def test_lookups_of_schemas_are_answered_as_through_the_router(ports: tuple[int, int]) -> None:
    direct, router = ports
    head = f"POST /subjects/s-value/versions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(SCHEMA)}"
    status, _, content = await said(direct, head, SCHEMA)
    assert status == b"HTTP/1.1 200 OK", content
    length = f"\r\nContent-Length: {len(SCHEMA)}"
    for asked, more, body in (
        ("GET /schemas/ids/1", "", b""),
        ("GET /schemas/ids/1/schema", "", b""),
        ("GET /schemas/ids/1?fetchMaxId=true", "", b""),
        ("GET /schemas/ids/99", "", b""),
        ("GET /schemas/ids/x", "", b""),
        ("HEAD /schemas/ids/1", "", b""),
        ("GET /contexts/x/schemas/ids/1", "", b""),
        ("GET /schemas/guids/x", "", b""),
        ("POST /subjects/s-value", length, SCHEMA),
        ("POST /subjects/other", length, SCHEMA),
        ("POST /subjects/s-value", "\r\nContent-Length: 1", b"{"),
        ("GET /subjects/s-value/versions/1", "", b""),
        ("GET /subjects/s-value/versions/latest", "", b""),
        ("GET /subjects/s-value/versions/x", "", b""),
        ("PUT /subjects/s-value/versions/1", "", b""),
        ("DELETE /subjects/s-value/versions/7", "", b""),
    ):
        head = f"{asked} HTTP/1.1\r\nHost: localhost{more}"
        assert await said(direct, head, body) == await said(router, head, body), asked


async def test_metrics_name_the_same_routes(ports: tuple[int, int], cluster: str) -> None:
    counted = []
    for port in ports:
        head = f"POST {cluster}/topics/direct/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(RECORD)}"
        await said(port, head, RECORD)
        await said(port, "GET /schemas/ids/99 HTTP/1.1\r\nHost: localhost", b"")
        metrics = (await said(port, "GET /metrics HTTP/1.1\r\nHost: localhost", b""))[2].decode()
        counted.append(sorted(line for line in metrics.splitlines() if line.startswith("firn_http_requests_total{")))
        assert re.search(r'^firn_http_records_total\{.*outcome="stored".*\} 1$', metrics, re.MULTILINE)
    assert counted[0] == counted[1]
    assert len(counted[0]) == 2
