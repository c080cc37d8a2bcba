"""TLS 1.3 and SCRAM for the raw generators and the bare servers, as cheap as Python has them.

A ``TlsSocket`` encrypts in memory and moves many records with each system call, as a broker's link does: two records in a call of
their own cost more than what is in them. ``Secured`` says how to connect: whom to trust, and who logs in.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.security import scram
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest

MECHANISM = scram.ScramMechanism.SCRAM_SHA_512
HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2
SERVER_NAME = "localhost"
SCRATCH_BYTES = 1 << 18
SEND_BYTES = 1 << 17
"""Encrypted at a time: the server is at work on it while the next is encrypted."""
Ask = Callable[[int, int, object], Any]
"""Sends a request (key, version, message). Returns: its response."""


class TlsSocket:
    """A blocking socket with TLS. Has what the generators use of a plain one."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server: bool = False) -> None:
        """Shakes hands."""
        self.plain = plain
        self._received, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if server else SERVER_NAME
        self._tls = context.wrap_bio(self._received, self._outgoing, server_side=server, server_hostname=name)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                if not self._take():
                    raise SystemExit("the server ended the handshake") from None
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self.plain.sendall(self._outgoing.read())

    def _take(self) -> int:
        got = self.plain.recv_into(self._scratch)
        self._received.write(self._scratch[:got])
        return got

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        for start in range(0, len(view), SEND_BYTES):
            self._tls.write(view[start : start + SEND_BYTES])
            self._flush()

    def encrypted(self, data: bytes) -> bytes:
        """What ``sendall`` would send now."""
        self._tls.write(data)
        return self._outgoing.read()

    def recv_into(self, buffer: bytearray | memoryview, size: int = 0) -> int:
        """As much as there is. Returns: 0 at the end. No event of the socket tells of what stays because ``buffer`` was full."""
        view = memoryview(buffer)[: size or len(buffer)]
        filled, room = 0, len(view)
        while True:
            try:
                while filled < room:
                    taken = self._tls.read(room - filled, view[filled:])
                    if not taken:
                        return filled
                    filled += taken  # type: ignore[operator]
            except ssl.SSLWantReadError:
                if not filled:
                    if not self._take():
                        return 0
                    continue
            return filled

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(memoryview(buffer)[: self.recv_into(buffer)])

    def end(self) -> None:
        """Say that this is the end, and wait until the server has ended, too."""
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            self._flush()
        self.plain.shutdown(socket.SHUT_WR)
        while self.plain.recv_into(self._scratch):
            pass
        self.plain.close()

    def settimeout(self, seconds: float | None) -> None:
        self.plain.settimeout(seconds)

    def close(self) -> None:
        """End without a word."""
        self.plain.close()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.plain.setsockopt(level, option, value)

    def fileno(self) -> int:
        return self.plain.fileno()


def client_context(authority: str) -> ssl.SSLContext:
    """One that trusts the certificates of this file, and speaks TLS 1.3 only."""
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def server_context(identity: str) -> ssl.SSLContext:
    """One with the key and certificates of this file, TLS 1.3 only, without tickets, as a broker has it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.load_cert_chain(identity)
    return context


@dataclass(frozen=True, slots=True)
class Secured:
    """How to connect."""

    context: ssl.SSLContext
    user: str = ""
    """Who logs in; nobody if empty."""
    password: str = ""

    def log_in(self, ask: Ask) -> None:
        """``ask`` sends over the connection that is to be logged in. Raises: SystemExit if the server refuses the login."""
        if not self.user:
            return
        client = scram.ScramClient(MECHANISM, self.user, self.password, nonce=os.urandom(18).hex())
        answer = ask(ApiKey.SASL_HANDSHAKE, HANDSHAKE_VERSION, SaslHandshakeRequest(MECHANISM.sasl_name))
        if answer.error_code:
            raise SystemExit(f"SaslHandshake answers error {answer.error_code}")
        token = _authenticate(ask, client.first)
        client.check(_authenticate(ask, client.answer(token)))


def _authenticate(ask: Ask, token: bytes) -> bytes:
    answer = ask(ApiKey.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, SaslAuthenticateRequest(token))
    if answer.error_code:
        raise SystemExit(f"SaslAuthenticate answers error {answer.error_code}: {answer.error_message}")
    return bytes(answer.auth_bytes)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags that ``secured_of`` reads."""
    group = parser.add_argument_group("security")
    group.add_argument("--tls-authority", default="", help="speak TLS 1.3, and trust this file's certificates")
    group.add_argument("--user", default="", help="log in by SCRAM-SHA-512")
    group.add_argument("--password", default="", help="of a user of a measurement")


def secured_of(arguments: argparse.Namespace) -> Secured | None:
    """None for a plain connection."""
    if not arguments.tls_authority:
        return None
    return Secured(client_context(arguments.tls_authority), arguments.user, arguments.password)
