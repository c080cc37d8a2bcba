"""Announced and half-sent requests over real sockets: what clients that are not known keep delays nobody on another listener."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from app.handlers.policy.callers import PLAINTEXT
from app.handlers.serving.doors import ListenerAuthentication
from app.machine.runtime import raise_descriptor_limit
from app.security.sasl import PlainServer, plain_message
from app.transport.frame_memory import CLAIM_BYTES_MIN, UNPROVEN_BYTES_MAX
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.codec import encode_request
from app.wire.header import encode_request_header
from app.wire.produce import encode_produce_request
from tests.handlers.conversation import batch, talk
from tests.handlers.fakes import Bench
from tests.support.secured import listener
from tests.support.waiting import until

V = 8
SASL = "SASL_PLAINTEXT"
Clients = list[asyncio.StreamWriter]


def frame(key: ApiKey, version: int, message: Any) -> bytes:
    body = encode_request_header(key, version, 1, "test") + encode_request(key, version, message)
    return len(body).to_bytes(4, "big") + body


CHOICE = frame(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
LOGIN = frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(plain_message("alice", "alice-secret")))
LONG_LOGIN = frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(bytes(500_000)))


class Guarded:
    """A server with a plain listener and one where clients log in."""

    def __init__(self, bench: Bench, port: int, stack: AsyncExitStack) -> None:
        self.bench, self.port, self._stack = bench, port, stack

    async def flood(self, port: int, count: int, data: bytes) -> Clients:
        """So many connections that each send ``data`` and no more."""
        raise_descriptor_limit()
        writers: Clients = []
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            self._stack.callback(writer.close)
            writer.write(data)
            await writer.drain()
            writers.append(writer)
        return writers

    async def produce(self, size: int) -> tuple[int, int]:
        """What a Produce of so many bytes on the plain listener is answered."""
        client = await self._stack.enter_async_context(talk(self.bench.port))
        client.correlation_id = 1
        sent = encode_produce_request(V, 1, "test", [("t", [(0, batch(1, value=b"x" * size))])], acks=1, timeout_ms=10)
        for piece in sent:
            client.writer.write(bytes(piece))
        _, answer = await client.answer(0, V)
        partition = answer.responses[0].partition_responses[0]
        return partition.error_code, partition.base_offset


@pytest.fixture
async def guarded() -> AsyncIterator[Guarded]:
    async with AsyncExitStack() as stack:
        bench = Bench(queued_max_request_bytes=64 << 20)
        config = listener(SASL)
        login = PlainServer({"alice": b"alice-secret"})
        door = ListenerAuthentication(config, certificates=None, rules=None, new_mechanism=lambda _: login)
        bench.server.secure({SASL: door})
        bench.logs.add("t")
        plain, other = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0), backlog=1024)
        bench.port = await bench.server.listen(plain, bench.server.make, PLAINTEXT)
        port = await bench.server.listen(other, lambda: door.make(bench.server), SASL)
        stack.push_async_callback(bench.server.close)
        yield Guarded(bench, port, stack)


async def test_announcements_before_the_login_take_nothing_from_other_listeners(guarded: Guarded) -> None:
    announced = (524_288).to_bytes(4, "big") + LOGIN[4:15]
    await guarded.flood(guarded.port, 600, CHOICE + announced)
    frames = guarded.bench.server.frames
    await until(
        lambda: frames.unproven_bytes >= min(600 * CLAIM_BYTES_MIN, UNPROVEN_BYTES_MAX) - CLAIM_BYTES_MIN, pause_s=0.001
    )
    assert frames.bytes == 0
    assert await guarded.produce(900_000) == (0, 0)
    assert not frames.is_waited_for


async def test_announcements_on_a_plain_listener_leave_room_for_others(guarded: Guarded) -> None:
    await guarded.flood(guarded.bench.port, 600, (100 << 20).to_bytes(4, "big") + b"\0\0\0\x09\0\0\0\1" + b"\0" * 3)
    frames = guarded.bench.server.frames
    await until(lambda: frames.bytes == 600 * CLAIM_BYTES_MIN, pause_s=0.001)
    assert await guarded.produce(900_000) == (0, 0)
    assert not frames.is_waited_for


async def test_half_logins_are_ended_when_there_are_too_many_and_a_login_goes_on(guarded: Guarded) -> None:
    writers = await guarded.flood(guarded.port, 60, CHOICE + LONG_LOGIN[:400_000])
    frames = guarded.bench.server.frames
    await until(lambda: guarded.bench.counter("firn_connections_unfinished_closed_total") > 0, pause_s=0.001)
    assert frames.unproven_bytes <= UNPROVEN_BYTES_MAX
    assert frames.bytes == 0
    reader, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
    writer.write(CHOICE + LOGIN)
    for _ in range(2):
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = await reader.readexactly(size)
    assert answer[4:7] == b"\0\0\0", "the login is not refused"
    writer.close()
    for one in writers:
        one.close()
    await until(lambda: frames.unproven_bytes == 0, pause_s=0.001)


async def test_a_client_that_stops_in_its_frame_is_ended_when_others_wait_for_its_memory(guarded: Guarded) -> None:
    stopped = (100 << 20).to_bytes(4, "big") + bytes(40 << 20)
    await guarded.flood(guarded.bench.port, 1, stopped)
    frames = guarded.bench.server.frames
    await until(lambda: frames.bytes > 64 << 20, pause_s=0.001)
    assert await guarded.produce(900_000) == (0, 0)
    assert guarded.bench.counter("firn_connections_unfinished_closed_total") == 1
