"""One blocking connection of the raw generators: whole frames out and in, plain or with TLS and a login."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Any

from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from loadtests.raw_tls import Secured, TlsSocket

INT32 = Struct(">i")


class Wire:
    """One blocking connection, plain or ``secured``."""

    def __init__(self, host: str, port: int, secured: Secured | None = None, *, buffer_bytes: int = 4 << 20) -> None:
        self.socket: socket.socket | TlsSocket = socket.create_connection((host, port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray(buffer_bytes)
        self.view = memoryview(self.buffer)
        if secured is not None:
            self.socket = TlsSocket(self.socket, secured.context)
            secured.log_in(self.ask)

    def read_exactly(self, size: int) -> memoryview:
        if size > len(self.buffer):
            self.buffer = bytearray(size)
            self.view = memoryview(self.buffer)
        got = 0
        while got < size:
            count = self.socket.recv_into(self.view[got:size])
            if not count:
                raise SystemExit("the server closed the connection")
            got += count
        return self.view[:size]

    def read_frame(self) -> memoryview:
        (size,) = INT32.unpack(self.read_exactly(4))
        return self.read_exactly(size)

    def ask(self, key: int, version: int, message: object) -> Any:
        self.socket.sendall(request_frame(key, version, 1, "raw-load", message))
        answer = self.read_frame()
        return decode_response(key, version, answer[parse_response_header(answer, key, version).body_start :])
