"""The load's TLS: what is sent comes, whatever the sizes of buffers and records."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from loadtests.raw_tls import SEND_BYTES, TlsSocket, client_context, server_context
from loadtests.secured_peer import issue_certificates


@pytest.mark.parametrize("read_bytes", [1, 4096, 16_384, 1 << 20])
def test_a_tls_socket_passes_on_every_byte_with_buffers_of_any_size(tmp_path: Path, read_bytes: int) -> None:
    certificates = issue_certificates(tmp_path / "certificates")
    sent = os.urandom(2 * SEND_BYTES + 7 if read_bytes > 1 else 20_000)
    here, there = socket.socketpair()
    echoed = bytearray()

    def serve() -> None:
        connection = TlsSocket(there, server_context(str(certificates / "broker.pem")), server=True)
        while got := connection.recv(read_bytes):
            echoed.extend(got)
        there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = TlsSocket(here, client_context(str(certificates / "ca.pem")))
    client.sendall(sent)
    client.end()
    thread.join()
    assert bytes(echoed) == sent
