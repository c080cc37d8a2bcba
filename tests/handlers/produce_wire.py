"""A connection of a client that produces, at a transport of the test's."""

from __future__ import annotations

from typing import Any

from app.handlers.clients.client import Client
from app.transport.connection import Connection
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from app.wire.produce import encode_produce_request
from tests.handlers.conversation import SIZE, batch
from tests.handlers.fakes import Bench

VERSION = 9
API_VERSIONS_VERSION = 3


class Wire:
    """The transport of a connection, and the client behind it."""

    def __init__(self, bench: Bench, name: str = "client") -> None:
        self.bench = bench
        self.name = name
        self.written = bytearray()
        self.closed = False
        self.correlation_id = 0
        self.others: set[int] = set()
        """Correlation ids of requests that are no Produce."""
        self.connection: Connection = bench.server.make()
        self.connection.connection_made(self)  # type: ignore[arg-type]

    @property
    def client(self) -> Client:
        core = self.connection.core
        assert isinstance(core, Client)
        return core

    # --- the transport ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    abort = close

    # --- the client ---

    def send(self, *frames: bytes) -> None:
        """These bytes come in one piece."""
        data = b"".join(frames)
        room = self.connection.get_buffer(-1)
        room[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def frame(self, topic: str = "t", records: bytes | None = None, *, partition: int = 0) -> bytes:
        self.correlation_id += 1
        pieces = encode_produce_request(
            VERSION,
            self.correlation_id,
            self.name,
            [(topic, [(partition, batch() if records is None else records)])],
            acks=1,
            timeout_ms=1000,
        )
        return b"".join(map(bytes, pieces))

    def ask_versions(self) -> bytes:
        self.correlation_id += 1
        self.others.add(self.correlation_id)
        return request_frame(
            ApiKey.API_VERSIONS, API_VERSIONS_VERSION, self.correlation_id, self.name, ApiVersionsRequest("test", "1")
        )

    def answers(self) -> list[tuple[int, int, int]]:
        """Correlation id, error code and base offset of each Produce that was answered since the last call."""
        found = []
        while self.written:
            (size,) = SIZE.unpack_from(self.written)
            frame = memoryview(bytes(self.written[4 : 4 + size]))
            del self.written[: 4 + size]
            header = parse_response_header(frame, 0, VERSION)
            if header.correlation_id in self.others:
                found.append((header.correlation_id, -1, -1))
                continue
            (topic,) = decode_response(0, VERSION, frame[header.body_start :]).responses
            (one,) = topic.partition_responses
            found.append((header.correlation_id, one.error_code, one.base_offset))
        return found

    def learn(self) -> None:
        """Have the broker learn what this client's requests look like."""
        self.send(self.frame())
        assert [error for _, error, _ in self.answers()] == [0]
