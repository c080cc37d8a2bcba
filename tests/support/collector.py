"""A collector of spans on this machine, by OTLP over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any


class Collector:
    """Takes spans, and decodes them."""

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                (length,) = [int(line.partition(":")[2]) for line in head.splitlines() if "content-length" in line]
                request = ExportTraceServiceRequest.FromString(await reader.readexactly(length))
                for of_resource in request.resource_spans:
                    self.resources.append(values(of_resource.resource.attributes))
                    for of_scope in of_resource.scope_spans:
                        self.spans += of_scope.spans
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        writer.close()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    server = await asyncio.start_server(collector.serve, "127.0.0.1", 0)
    collector.port = server.sockets[0].getsockname()[1]
    try:
        yield collector
    finally:
        server.close()
