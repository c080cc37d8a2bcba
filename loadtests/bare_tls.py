"""What Python's ``ssl`` and OpenSSL can do with TLS 1.3 without any broker, and what a client alone can.

    python -m loadtests.bare_tls receive IDENTITY FILE REQUEST_BYTES
    python -m loadtests.bare_tls receive-many IDENTITY FILE REQUEST_BYTES CONNECTIONS
    python -m loadtests.bare_tls send IDENTITY FILE
    python -m loadtests.bare_tls discard IDENTITY
    python -m loadtests.bare_tls prepared IDENTITY
    python -m loadtests.bare_tls handshakes IDENTITY

each serve on the port that they print. ``receive`` and ``send`` are those of ``bare_limits`` over TLS; ``receive-many`` is
the first for so many connections, in a loop of ``epoll``. The next two leave all work
to the client: ``discard`` forgets what comes without decrypting it, and ``prepared`` sends what it has encrypted before.
``handshakes`` serves any number of connections, and nothing but their handshakes and their ends.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtests.bare_limits import ANSWER_BYTES, FILE_BYTES, PIECE_BYTES, RECEIVE_BYTES, WRAP_BYTES, Bare
from loadtests.measuring import SERVER_CORE
from loadtests.raw_tls import TlsSocket, client_context, server_context
from loadtests.system import ROOT, System, free_port, running

SEND_BYTES = 1 << 17
START_TIMEOUT_S = 20.0


def _accept(identity: str) -> TlsSocket:
    (connection,) = _accept_many(identity, 1)
    return connection


def _accept_many(identity: str, count: int) -> list[TlsSocket]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=count)
    print(listener.getsockname()[1], flush=True)
    context, connections = server_context(identity), []
    for _ in range(count):
        connection = listener.accept()[0]
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections.append(TlsSocket(connection, context, server=True))
    return connections


def receive(identity: str, path: Path, request_bytes: int, count: int = 1) -> None:
    """Append all that comes to a file; acknowledge each whole request. Ends with the first connection that ends."""
    connections = {one.fileno(): one for one in _accept_many(identity, count)}
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    answers = bytes(ANSWER_BYTES * (RECEIVE_BYTES // request_bytes + 2))
    position = 0
    over = dict.fromkeys(connections, 0)
    poll = select.epoll()
    for descriptor in connections:
        poll.register(descriptor, select.EPOLLIN)
    ready = [(descriptor, 0) for descriptor in connections]
    while True:
        for descriptor, _ in ready if count == 1 else poll.poll():
            connection = connections[descriptor]
            if not (got := connection.recv_into(buffer)):
                return
            os.pwrite(file, buffer[:got], position)
            position += got
            whole, over[descriptor] = divmod(over[descriptor] + got, request_bytes)
            if whole:
                connection.sendall(answers[: whole * ANSWER_BYTES])
            if position >= WRAP_BYTES:
                os.ftruncate(file, 0)
                position = 0


def send(identity: str, path: Path) -> None:
    """Answer each byte received with the whole file, by pread into one reused buffer."""
    connection = _accept(identity)
    file = os.open(path, os.O_RDONLY)
    buffer = memoryview(bytearray(SEND_BYTES))
    while connection.recv(1):
        position = 0
        while got := os.preadv(file, [buffer], position):
            connection.sendall(buffer[:got])
            position += got


def discard(identity: str) -> None:
    """Read and forget, encrypted as it is."""
    connection = _accept(identity)
    buffer = bytearray(PIECE_BYTES)
    while connection.plain.recv_into(buffer):
        pass


def prepared(identity: str) -> None:
    """Send so much at once that has been encrypted already, when something comes."""
    connection = _accept(identity)
    piece = os.urandom(SEND_BYTES)
    pieces = [connection.encrypted(piece) for _ in range(FILE_BYTES // SEND_BYTES)]
    connection.plain.recv(PIECE_BYTES)
    for encrypted in pieces:
        connection.plain.sendall(encrypted)
    connection.plain.recv(1)


def handshakes(identity: str) -> None:
    """Serve handshakes of any number of connections."""
    context = server_context(identity)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    listener.setblocking(False)
    shaking: dict[int, ssl.SSLSocket] = {}
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                plain, _ = listener.accept()
                plain.setblocking(False)
                one = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                shaking[one.fileno()] = one
                poll.register(one.fileno(), select.EPOLLIN)
                continue
            one = shaking[descriptor]
            try:
                one.do_handshake()  # without effect once it is done
                ended = not one.recv(1 << 14)
            except ssl.SSLWantReadError:
                continue
            except OSError:
                ended = True
            if ended:
                del shaking[descriptor]
                one.close()


@contextmanager
def _serving(*what: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "loadtests.bare_tls", *what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def bare_tls(what: str, certificates: Path, *more: str, connections: int = 1) -> Iterator[Bare]:
    """A bare server pinned to the server's core, and so many connections to it."""
    with ExitStack() as stack:
        process, port = stack.enter_context(_serving(what, str(certificates / "broker.pem"), *more))
        context, opened = client_context(str(certificates / "ca.pem")), []
        for _ in range(connections):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            opened.append(TlsSocket(plain, context))
        yield Bare(process, opened)  # type: ignore[arg-type] # they have what is used of a socket


@contextmanager
def python_handshakes(certificates: Path) -> Iterator[System]:
    """A bare server of handshakes by Python's ``ssl``."""
    with _serving("handshakes", str(certificates / "broker.pem")) as (process, port):
        yield System("bare Python", "127.0.0.1", port, process.pid, 0.0, certificates)


@contextmanager
def openssl_handshakes(certificates: Path) -> Iterator[System]:
    """OpenSSL's own server, which has one connection after the other. Raises: SystemFailed."""
    identity, port = str(certificates / "broker.pem"), free_port()
    options = ["-accept", f"127.0.0.1:{port}", "-cert", identity, "-key", identity, "-tls1_3", "-num_tickets", "0"]
    with running(
        "openssl",
        ["openssl", "s_server", *options, "-quiet"],
        port=port,
        output=certificates / "s_server.out",
        logs=certificates,
        timeout_s=START_TIMEOUT_S,
        cores=str(SERVER_CORE),
    ) as system:
        yield system


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["receive", identity, path, request_bytes]:
            receive(identity, Path(path), int(request_bytes))
        case ["receive-many", identity, path, request_bytes, count]:
            receive(identity, Path(path), int(request_bytes), int(count))
        case ["send", identity, path]:
            send(identity, Path(path))
        case ["discard", identity]:
            discard(identity)
        case ["prepared", identity]:
            prepared(identity)
        case ["handshakes", identity]:
            handshakes(identity)
        case _:
            raise SystemExit(__doc__)
