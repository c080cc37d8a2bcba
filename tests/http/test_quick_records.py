"""A small record alone goes past ASGI, and is answered and counted as every other one."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.lifespan.off import LifespanOff
from uvicorn.server import ServerState

from app.client.producer import Acknowledged
from app.core.errors import BrokerUnavailable, FirnError
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicPartition
from app.http.access import Access
from app.http.application import create_app
from app.http.bodies import PIECE_BYTES_MAX
from app.http.connections import ConnectionLimits, HttpConnection, OpenConnections, connection_class
from app.http.front import Measures
from app.http.gateway import HttpSettings
from app.http.guard import Guard
from app.http.quick_records import Accepted, QuickRecords, Target
from app.http.server import BugLog, Server
from app.machine.runtime import SystemClock
from tests.support.broker import RunningBroker, running_broker
from tests.support.record_bodies import BODIES, LIMIT, RECORD
from tests.support.waiting import until
from tests.support.walked_routes import http_server

QUICK: Final = {"one record behind white space", "one record", "the last record", "a deep record"}
"""Of ``BODIES``, those that go the short way."""


@pytest.fixture(name="broker")
async def _broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path) as running:
        await running.create_topic("quick", 1)
        await running.create_topic("usual", 1)
        yield running


@pytest.fixture(name="took")
def _took(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies of requests that went the short way."""
    found: list[bytes] = []
    original = QuickRecords.accept

    def accept(self: QuickRecords, target: Target, body: bytes, began_s: float) -> Accepted | None:
        accepted = original(self, target, body, began_s)
        if accepted is not None:
            found.append(body)
        return accepted

    monkeypatch.setattr(QuickRecords, "accept", accept)
    return found


def without(app: FastAPI) -> None:
    app.state.quick_records = None


@pytest.fixture(name="ports")
async def _ports(broker: RunningBroker, took: list[bytes]) -> AsyncIterator[tuple[int, int]]:
    """Of a server as it is, and of one without the short way."""
    where = ("127.0.0.1", broker.port)
    async with (
        http_server(where, record_bytes_max=LIMIT) as quick,
        http_server(where, record_bytes_max=LIMIT, change=without) as usual,
    ):
        yield quick.port, usual.port


class Kept:
    """A connection that is kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def answer(self) -> tuple[bytes, list[bytes], bytes]:
        """Status line, headers but those of the framing, and body of the next response."""
        lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4]
        status, *headers = lines.split(b"\r\n")
        if b" 100 " in status:
            return await self.answer()
        if b"transfer-encoding: chunked" in headers:
            content = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                content += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        else:
            length = next(one for one in headers if one.startswith(b"content-length"))
            content = await self.reader.readexactly(int(length.split()[1]))
        framing = (b"content-length", b"transfer-encoding", b"date")
        return status, sorted(one for one in headers if not one.startswith(framing)), content

    async def ask(self, head: str, body: bytes) -> tuple[bytes, list[bytes], bytes]:
        self.writer.write(head.encode() + b"\r\n\r\n" + body)
        return await self.answer()


async def kept(port: int) -> Kept:
    return Kept(*await asyncio.open_connection("127.0.0.1", port))


async def asked(port: int, head: str, body: bytes) -> tuple[bytes, list[bytes], bytes]:
    """The answer on a connection of its own."""
    connection = await kept(port)
    try:
        return await connection.ask(head, body)
    finally:
        connection.writer.close()


def head_of(cluster: str, topic: str, body: bytes, more: str = "") -> str:
    return f"POST {cluster}/topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}{more}"


async def test_records_are_answered_as_the_usual_way(ports: tuple[int, int], took: list[bytes], cluster: str) -> None:
    for _ in range(2):  # a host is served the usual way once
        for title, body in BODIES.items():
            answers, before = [], len(took)
            for port, topic in zip(ports, ("quick", "usual"), strict=True):
                status, headers, content = await asked(port, head_of(cluster, topic, body), body)
                answers.append((status, headers, content.replace(topic.encode(), b"t")))
            assert answers[0] == answers[1], title
            taken = len(took) > before
    assert taken
    assert {title for title, body in BODIES.items() if body in took} == QUICK


@pytest.mark.parametrize(
    ("more", "quickly"),
    [
        ("", True),
        ("\r\nContent-Type: application/json\r\nUser-Agent: a\r\nAccept: */*\r\nConnection: Keep-Alive", True),
        ("\r\nConnection: close", False),
        ("\r\nCookie: a=b", False),
        ("\r\nOrigin: http://evil.example", False),
        ("\r\nSec-Fetch-Site: cross-site", False),
        ("\r\nHost: localhost", False),
        ("\r\nIf-Match: x", False),
        ("\r\nContent-Encoding: br", False),
        ("\r\nExpect: 100-continue", False),
        ("\r\nAuthorization: Basic eDp5", False),
    ],
)
async def test_other_headers_go_the_usual_way_and_get_the_same_answer(
    more: str, quickly: bool, ports: tuple[int, int], took: list[bytes], cluster: str
) -> None:
    await asked(ports[0], head_of(cluster, "quick", RECORD), RECORD)
    answers = []
    for port, topic in zip(ports, ("quick", "usual"), strict=True):
        connection = await kept(port)
        connection.writer.write((head_of(cluster, topic, RECORD, more) + "\r\n\r\n").encode() + RECORD)
        answer = await connection.answer()
        connection.writer.close()
        answers.append((answer[0], answer[1], b'"offset"' in answer[2]))
    assert answers[0] == answers[1]
    assert (len(took) == 1) is quickly


async def test_each_host_is_judged_the_usual_way_first(ports: tuple[int, int], took: list[bytes], cluster: str) -> None:
    statuses = []
    for host in ("localhost", "evil.example", "127.0.0.1", "evil.example", "localhost", "127.0.0.1"):
        head = head_of(cluster, "quick", RECORD).replace("localhost", host)
        statuses.append((await asked(ports[0], head, RECORD))[0].split()[1])
        assert len(took) == max(0, len(statuses) - 4)
    assert statuses == [b"200", b"421", b"200", b"421", b"200", b"200"]


@pytest.mark.parametrize(
    "line",
    [
        "POST {cluster}/topics/absent/records HTTP/1.1",
        "POST {cluster}/topics/quick/records/ HTTP/1.1",
        "POST {cluster}/topics/quick/records?a=b HTTP/1.1",
        "POST {cluster}/topics/%71uick/records HTTP/1.1",
        "POST /v3/clusters/other/topics/quick/records HTTP/1.1",
        "PUT {cluster}/topics/quick/records HTTP/1.1",
    ],
)
async def test_other_paths_go_the_usual_way_and_get_the_same_answer(
    line: str, ports: tuple[int, int], took: list[bytes], cluster: str
) -> None:
    await asked(ports[0], head_of(cluster, "quick", RECORD), RECORD)
    head = f"{line.format(cluster=cluster)}\r\nHost: localhost\r\nContent-Length: {len(RECORD)}"
    answers = [await asked(port, head, RECORD) for port in ports]
    assert [one[:2] for one in answers[:1]] == [one[:2] for one in answers[1:]]
    assert not took


async def test_requests_that_come_together_are_answered_in_order(
    ports: tuple[int, int], took: list[bytes], cluster: str
) -> None:
    one = (head_of(cluster, "quick", RECORD) + "\r\n\r\n").encode() + RECORD
    health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connection = await kept(ports[0])
    connection.writer.write(one)
    await connection.answer()
    connection.writer.write(one + health + one + one + health)
    found = [(await connection.answer())[2] for _ in range(5)]
    assert [b'"offset":%d,' % number in found[place] for number, place in ((1, 0), (2, 2), (3, 3))] == [True] * 3
    assert found[1] == found[4] == b'{"status":"ok"}'
    assert len(took) == 1
    connection.writer.write(one)
    await connection.answer()
    assert len(took) == 2
    connection.writer.close()


async def test_a_body_that_comes_in_two_parts_goes_the_usual_way(
    ports: tuple[int, int], took: list[bytes], cluster: str
) -> None:
    connection = await kept(ports[0])
    for cut in (0, 1, len(RECORD) - 1, len(RECORD)):
        before = len(took)
        connection.writer.write((head_of(cluster, "quick", RECORD) + "\r\n\r\n").encode() + RECORD[:cut])
        await connection.writer.drain()
        for _ in range(20):  # turns of the loop, in which the server reads the first part
            await asyncio.sleep(0)
        connection.writer.write(RECORD[cut:])
        assert (await connection.answer())[0] == b"HTTP/1.1 200 OK"
        if cut < len(RECORD):
            assert len(took) == before
    connection.writer.close()


async def test_both_ways_count_the_same(ports: tuple[int, int], took: list[bytes], cluster: str) -> None:
    counted = []
    for port, topic in zip(ports, ("quick", "usual"), strict=True):
        for body in (RECORD, RECORD, b'{"value":{"type":"STRING"}}'):
            await asked(port, head_of(cluster, topic, body), body)
        metrics = (await asked(port, "GET /metrics HTTP/1.1\r\nHost: localhost", b""))[2].decode()
        names = ("firn_http_requests_total{", "firn_http_records_total{", "firn_http_request_seconds_count{")
        counted.append(sorted(line for line in metrics.splitlines() if line.startswith(names)))
    assert counted[0] == counted[1]
    assert len(took) == 2


# --- one connection, whose record is stored when a test says so -------------------------------------------------------


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    def resume_reading(self) -> None:
        """All bytes are given by the test."""


class Held(QuickRecords):
    """The short way, with a producer that stores when it is told."""

    def __init__(self, registry: Registry) -> None:
        access = Access()
        super().__init__(
            "/r", guard=Guard(access=access, registry=registry), measures=Measures(registry), registry=registry
        )
        self.futures: list[asyncio.Future[Acknowledged]] = []
        self.takes = True

    def target_of(self, path: bytes, headers: Any, server: Any, scheme: str) -> Target | None:
        return Target("c", "t")

    def accept(self, target: Target, body: bytes, began_s: float) -> Accepted | None:
        if not self.takes:
            return None
        self.futures.append(asyncio.get_running_loop().create_future())
        return Accepted(target, None, None, self.futures[-1], began_s)


STORED: Final = Acknowledged(TopicPartition("t", PartitionIndex(0)), Offset(5), TimestampMs(0))
REQUEST: Final = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


async def _nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("no request goes the usual way")


def door_of(held: Held, registry: Registry) -> OpenConnections:
    limits = ConnectionLimits(connections_max=5, header_timeout_ms=10**6, transfer_timeout_ms=10**6)
    return OpenConnections(limits, registry, quick=held)


def opened(app: Any = _nothing) -> tuple[HttpConnection, Wire, Held, Registry]:
    registry = Registry()
    held = Held(registry)
    door = door_of(held, registry)
    config = uvicorn.Config(app, log_config=None)
    config.load()
    connection = connection_class(door)(config=config, server_state=ServerState(), app_state={})
    wire = Wire()
    connection.connection_made(wire)
    return connection, wire, held, registry


def count(registry: Registry, status: str) -> float:
    return sum(
        one.value
        for one in registry.samples()
        if one.name == "firn_http_requests_total" and dict(one.labels)["status"] == status
    )


async def _drains(scope: object, receive: Any, send: Any) -> None:
    """Reads the body, and answers with its length."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0"), (b"size", b"%d" % size)]}
    )
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("way", ["short", "refused", "in parts"])
async def test_no_body_is_kept_once_its_request_goes_on(way: str) -> None:
    connection, wire, held, _ = opened(_drains)
    held.takes = way == "short"
    body = b"x" * 50_000
    request = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    cut = len(request) - 1 if way == "in parts" else len(request)
    connection.data_received(request[:cut])
    assert (connection._held, connection._held_body) == (None, b"")
    connection.data_received(request[cut:])
    if way == "short":
        held.futures[0].set_result(STORED)
        await asyncio.sleep(0)
        assert b'"offset":5' in wire.written
    else:
        await until(lambda: b"size: 50000\r\n" in wire.written)
    assert connection._held_body == b""
    connection.connection_lost(None)


@pytest.mark.parametrize(
    ("length", "quickly"),
    [
        (b"%d" % PIECE_BYTES_MAX, True),
        (b"%d" % (PIECE_BYTES_MAX + 1), False),
        (b"9" * 5_000, False),
        (b"x", False),
        (b"-1", False),
    ],
)
def test_a_body_that_is_too_long_by_its_head_is_not_held(
    length: bytes, quickly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "serves", lambda *_: True)
    registry = Registry()
    quick = QuickRecords(
        "/r", guard=Guard(access=Access(), registry=registry), measures=Measures(registry), registry=registry
    )
    quick.gateway = object()  # type: ignore[assignment]
    headers = [(b"host", b"a"), (b"content-length", length)]
    target = quick.target_of(b"/v3/clusters/c/topics/t/records", headers, ("127.0.0.1", 80), "http")
    assert target == (Target("c", "t") if quickly else None)


async def test_a_stop_that_comes_to_its_time_counts_records_that_are_not_stored() -> None:
    registry = Registry()
    held = Held(registry)
    door = door_of(held, registry)
    lines: list[str] = []
    handler = BugLog(Faults(lines.append, lambda: 0.0), lines.append, door=door)
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    http: Any = connection_class(door)
    config = uvicorn.Config(
        _nothing, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=0, http=http
    )
    server = uvicorn.Server(config)
    bound = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        _, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(REQUEST)
        await until(lambda: bool(held.futures))
        server.should_exit = True
        await serving
        writer.close()
    finally:
        logger.removeHandler(handler)
    assert lines == ["HTTP requests that had not ended in time were ended by the stop: 1"]


async def test_a_stop_waits_for_the_record_of_a_client_that_has_left() -> None:
    connection, _, held, _ = opened()
    config = connection.config
    server = Server(config, connection.door, quiet=True, scheme="http")
    server.servers, server.lifespan = [], LifespanOff(config)
    connection.data_received(REQUEST)
    connection.connection_lost(ConnectionResetError())
    asyncio.get_running_loop().call_later(0.5, held.futures[0].set_result, STORED)  # uvicorn alone ends after 0.1 s
    await server.shutdown()
    assert held.futures[0].done()


async def test_a_stopping_server_answers_and_then_closes() -> None:
    connection, wire, held, registry = opened()
    connection.data_received(REQUEST)
    connection.shutdown()
    assert not wire.ended
    held.futures[0].set_result(STORED)
    await asyncio.sleep(0)
    assert b"\r\nconnection: close\r\n\r\n{" in wire.written
    assert wire.ended
    assert count(registry, "200") == 1
    connection.connection_lost(None)


async def test_a_client_that_has_left_is_not_answered() -> None:
    connection, wire, held, registry = opened()
    connection.data_received(REQUEST)
    connection.connection_lost(ConnectionResetError())
    held.futures[0].set_result(STORED)
    await asyncio.sleep(0)
    assert wire.written == b""
    assert count(registry, "200") == 1


@pytest.mark.parametrize(
    ("error", "status"), [(BrokerUnavailable("No broker."), b"503"), (None, b"503")], ids=["an error", "taken back"]
)
async def test_a_record_that_is_not_stored_has_its_status(error: FirnError | None, status: bytes) -> None:
    connection, wire, held, registry = opened()
    connection.data_received(REQUEST)
    if error is None:
        held.futures[0].cancel()
    else:
        held.futures[0].set_exception(error)
    await asyncio.sleep(0)
    assert wire.written.startswith(b"HTTP/1.1 " + status)
    assert b"\r\nretry-after: 1\r\n" in wire.written
    assert (count(registry, status.decode()), wire.ended) == (1, False)
    connection.data_received(REQUEST)
    held.futures[1].set_result(STORED)
    await asyncio.sleep(0)
    assert wire.written.count(b"HTTP/1.1 200 OK\r\n") == 1
    connection.connection_lost(None)


@pytest.mark.parametrize(
    ("settings", "has"),
    [
        ({}, True),
        (
            {
                "client": {
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": "u",
                    "sasl.password": "p",
                }
            },
            False,
        ),
    ],
)
def test_a_process_whose_callers_log_in_has_no_short_way(settings: dict[str, Any], has: bool) -> None:
    made = HttpSettings(bootstrap=(("127.0.0.1", 1),), **settings)
    app = create_app(made, clock=SystemClock(), rng=random.Random(1))
    assert (app.state.quick_records is not None) is has


async def test_the_short_way_ends_with_the_application(broker: RunningBroker) -> None:
    app = create_app(HttpSettings(bootstrap=(("127.0.0.1", broker.port),)), clock=SystemClock(), rng=random.Random(1))
    quick: QuickRecords = app.state.quick_records
    assert quick.gateway is None
    async with app.router.lifespan_context(app):
        await until(lambda: quick.gateway is app.state.gateway)
    assert quick.gateway is None
    assert quick.accept(Target("c", "t"), RECORD, 0.0) is None
