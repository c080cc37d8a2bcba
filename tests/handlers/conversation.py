"""A client made of a raw socket: what a test sends and reads is exactly what is on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any

from app.core.errors import ErrorCode
from app.records.builder import build_batch
from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from app.wire.produce import encode_produce_request

SIZE = Struct(">i")


class Talk:
    """One connection. Correlation ids count up from 1; ``ask`` sends one request and reads its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.correlation_id = 0
        self.client_id = "test"

    def send(self, key: int, version: int, message: Any) -> int:
        self.correlation_id += 1
        self.writer.write(request_frame(key, version, self.correlation_id, self.client_id, message))
        return self.correlation_id

    def send_produce(self, version: int, topics: Any, *, acks: int = -1, timeout_ms: int = 60_000, **extra: Any) -> int:
        self.correlation_id += 1
        pieces = encode_produce_request(
            version, self.correlation_id, self.client_id, topics, acks=acks, timeout_ms=timeout_ms, **extra
        )
        self.writer.write(b"".join(bytes(piece) for piece in pieces))
        return self.correlation_id

    async def frame(self) -> bytes:
        async with asyncio.timeout(60):
            (size,) = SIZE.unpack(await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def answer(self, key: int, version: int) -> tuple[int, Any]:
        frame = memoryview(await self.frame())
        header = parse_response_header(frame, key, version)
        return header.correlation_id, decode_response(key, version, frame[header.body_start :])

    async def ask(self, key: int, version: int, message: Any) -> Any:
        sent = self.send(key, version, message)
        correlation_id, answer = await self.answer(key, version)
        assert correlation_id == sent
        return answer

    async def produce(self, version: int, topics: Any, **extra: Any) -> Any:
        sent = self.send_produce(version, topics, **extra)
        correlation_id, answer = await self.answer(0, version)
        assert correlation_id == sent
        return answer

    async def closed(self) -> bool:
        """Whether the broker closes the connection, once it has sent what it had to."""
        async with asyncio.timeout(60):
            try:
                await self.reader.read()
            except ConnectionError:
                return True
        return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


@asynccontextmanager
async def talk(port: int, *, host: str = "127.0.0.1", **how: Any) -> AsyncIterator[Talk]:
    """``how``: as of ``asyncio.open_connection``."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 26, **how)
    conversation = Talk(reader, writer)
    try:
        yield conversation
    finally:
        await conversation.close()


def batch(count: int = 1, *, value: bytes = b"value", timestamp: int = 1_700_000_000_000, **fields: Any) -> bytes:
    """A record batch of ``count`` records."""
    return build_batch([(timestamp + i, None, value, ()) for i in range(count)], **fields)


async def produce_one(client: Talk) -> ErrorCode:
    """What the broker answers to one record for ``t-0``."""
    answer = await client.produce(9, [("t", [(0, batch())])])
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)
