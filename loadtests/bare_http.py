"""uvicorn without an application: it reads a request's body and answers a constant. The limit for ``http_rates.py``.

    python -m loadtests.bare_http PORT [BROKER_PORT TOPIC]

With a broker, each request first waits for the answer to a Produce request of its own, which was prepared: one record of 200 bytes.
No application that stores a record by Kafka's protocol before it answers can do less, unless records share a Produce request.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from functools import cached_property
from typing import cast

import uvicorn
from starlette.types import Receive, Scope, Send

from app.client.cluster import ClusterClient
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.header import encode_request_header
from app.wire.produce import encode_produce_body
from app.wire.versions import SERVED

BODY = (
    b'{"error_code":200,"cluster_id":"0123456789012345678901","topic_name":"rest","partition_id":0,"offset":1234567}\n'
)
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


async def constant(scope: Scope, receive: Receive, send: Send) -> None:
    """The whole application."""
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


class Hop(asyncio.Protocol):
    """The application with one round trip to a broker for each request. Answers come in the order of the requests."""

    def __init__(self, broker_port: int, topic: str) -> None:
        self._broker_port = broker_port
        self._topic = topic
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._received = b""
        self._transport: asyncio.WriteTransport
        self._frame = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._opened
        answered = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        self._transport.write(self._frame)
        await answered
        await constant(scope, receive, send)

    @cached_property
    def _opened(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._open())

    async def _open(self) -> None:
        async with ClusterClient([("127.0.0.1", self._broker_port)], rng=random.Random(1)) as cluster:
            topic = await cluster.topic(self._topic)
        batch = build_batch([(1_700_000_000_000, None, b"x" * 200, ())])
        version = SERVED[ApiKey.PRODUCE][1]
        body = encode_produce_body(version, [(topic.topic_id, [(0, batch)])], acks=-1, timeout_ms=30_000)
        request = encode_request_header(ApiKey.PRODUCE, version, 1, "bare") + body
        self._frame = len(request).to_bytes(4, "big") + request
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._broker_port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._received + data
        position = 0
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                break
            position = end
            self._waiting.popleft().set_result(None)
        self._received = data[position:]


if __name__ == "__main__":
    uvicorn.run(
        constant if len(sys.argv) == 2 else Hop(int(sys.argv[2]), sys.argv[3]),
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
