"""What the machine can do without any broker: the floor that every figure is held against.

    python -m loadtests.bare_limits send FILE
    python -m loadtests.bare_limits sendfile FILE
    python -m loadtests.bare_limits sendfile-many FILE CONNECTIONS [SEND_BUFFER_BYTES]
    python -m loadtests.bare_limits receive FILE REQUEST_BYTES
    python -m loadtests.bare_limits discard

each serve one connection on the port that they print, or so many. ``send`` answers each byte with the whole file by a bare pread
and write loop, ``sendfile`` without copying it, ``sendfile-many`` with the next MiB of it. ``receive`` appends what comes to a
file, a write for each read of the socket, and answers so many bytes as a Produce response has for each request. ``discard`` only
reads: the loopback copy.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtests.measuring import LOAD_CORE, SERVER_CORE, Report
from loadtests.processes import cpu_seconds
from loadtests.system import ROOT

PIECE_BYTES = 1 << 20
RECEIVE_BYTES = 1 << 18
ANSWER_BYTES = 60
FILE_BYTES = 256 << 20
WRAP_BYTES = 4 << 30
"""A received file is cut to nothing at this size. Until then each of its pages is a new one, as a log's are; the pages of a file
that was cut just now would be used again, which no log's are."""


def _accept() -> socket.socket:
    (connection,) = _accept_many(1)
    return connection


def _accept_many(count: int) -> list[socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=count)
    print(listener.getsockname()[1], flush=True)
    connections = [listener.accept()[0] for _ in range(count)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connections


def send(path: Path) -> None:
    """Answer each byte received with the whole file, by pread into one reused buffer and write."""
    connection = _accept()
    file = os.open(path, os.O_RDONLY)
    buffer = memoryview(bytearray(PIECE_BYTES))
    while connection.recv(1):
        position = 0
        while got := os.preadv(file, [buffer], position):
            connection.sendall(buffer[:got])
            position += got


def send_by_reference(path: Path) -> None:
    """The same by ``sendfile``, as much at a time."""
    connection = _accept()
    file = os.open(path, os.O_RDONLY)
    while connection.recv(1):
        position = 0
        while sent := os.sendfile(connection.fileno(), file, position, PIECE_BYTES):
            position += sent


def send_to_many(path: Path, count: int, send_buffer_bytes: int) -> None:
    """Answer each byte of any connection with the next piece of the file, by ``sendfile`` without waiting for room.

    ``send_buffer_bytes`` of 0 leaves the size of the sockets' buffers to the kernel.
    """
    file, file_bytes = os.open(path, os.O_RDONLY), path.stat().st_size
    connections = {one.fileno(): one for one in _accept_many(count)}
    begins, sent = dict.fromkeys(connections, 0), dict.fromkeys(connections, PIECE_BYTES)
    poll = select.epoll()
    for descriptor, connection in connections.items():
        connection.setblocking(False)
        if send_buffer_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        poll.register(descriptor, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    while True:
        for descriptor, events in poll.poll():
            if events & select.EPOLLIN and sent[descriptor] == PIECE_BYTES:
                if not connections[descriptor].recv(1):
                    return
                begins[descriptor] = (begins[descriptor] + PIECE_BYTES) % file_bytes
                sent[descriptor] = 0
            try:
                while (at := sent[descriptor]) < PIECE_BYTES:
                    sent[descriptor] += os.sendfile(descriptor, file, begins[descriptor] + at, PIECE_BYTES - at)
            except BlockingIOError:
                continue


def receive(path: Path, request_bytes: int) -> None:
    """Append all that comes to a file; acknowledge each whole request."""
    connection = _accept()
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    answers = bytes(ANSWER_BYTES * (RECEIVE_BYTES // request_bytes + 2))
    position = over = 0
    while got := connection.recv_into(buffer):
        os.pwrite(file, buffer[:got], position)
        position += got
        whole, over = divmod(over + got, request_bytes)
        if whole:
            connection.sendall(answers[: whole * ANSWER_BYTES])
        if position >= WRAP_BYTES:
            os.ftruncate(file, 0)
            position = 0


def discard() -> None:
    """Read and forget."""
    connection = _accept()
    buffer = bytearray(PIECE_BYTES)
    while connection.recv_into(buffer):
        pass


class Bare:
    """One bare server and its connections; the load runs in this process, on the load's core."""

    def __init__(self, process: subprocess.Popen[bytes], connections: list[socket.socket]) -> None:
        self._process, self._connections = process, connections
        self._connection = connections[0]
        for one in connections:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fetched(self, seconds: float) -> Report:
        """From ``send`` or ``sendfile``: MB/s and CPU seconds per GB."""
        buffer = bytearray(4 << 20)

        def turn() -> int:
            self._connection.sendall(b"x")
            left = FILE_BYTES
            while left:
                left -= self._connection.recv_into(buffer, min(left, len(buffer)))
            return FILE_BYTES

        return self._measured(seconds, turn)

    def fetched_by_many(self, seconds: float) -> Report:
        """From ``sendfile-many``: the same, every connection asking for the next piece when it has one."""
        buffer = memoryview(bytearray(PIECE_BYTES))
        left = {one.fileno(): PIECE_BYTES for one in self._connections}
        sockets = {one.fileno(): one for one in self._connections}
        with select.epoll() as poll:
            for descriptor, one in sockets.items():
                poll.register(descriptor, select.EPOLLIN)
                one.sendall(b"x")

            def turn() -> int:
                total = 0
                for descriptor, _ in poll.poll():
                    got = sockets[descriptor].recv_into(buffer[: left[descriptor]])
                    total += got
                    left[descriptor] -= got
                    if not left[descriptor]:
                        left[descriptor] = PIECE_BYTES
                        sockets[descriptor].sendall(b"x")
                return total

            report = self._measured(seconds, turn)
        for descriptor, one in sockets.items():  # so that a later run begins with nothing under way
            while left[descriptor]:
                left[descriptor] -= one.recv_into(buffer[: left[descriptor]])
        return report

    def produced(self, seconds: float, request_bytes: int, pipeline: int, bytes_max: int = 0) -> Report:
        """To ``receive``: the same, with latencies, so many requests in flight, or up to ``bytes_max`` however long it takes."""
        request = os.urandom(request_bytes)
        joined = {count: request * count for count in range(1, pipeline + 1)}
        sent_at: deque[float] = deque()
        latencies: list[float] = []
        over = 0

        def turn() -> int:
            nonlocal over
            room = pipeline - len(sent_at)
            if room:
                sent_at.extend([time.perf_counter()] * room)
                self._connection.sendall(joined[room])
            whole, over = divmod(over + len(self._connection.recv(1 << 16)), ANSWER_BYTES)
            now = time.perf_counter()
            latencies.extend(now - sent_at.popleft() for _ in range(whole))
            return whole * request_bytes

        report = self._measured(seconds, turn, bytes_max)
        while sent_at:
            whole, over = divmod(over + len(self._connection.recv(1 << 16)), ANSWER_BYTES)
            for _ in range(whole):
                sent_at.popleft()
        latencies.sort()
        report["requests_per_s"] = report["mb_per_s"] * 1e6 / request_bytes
        report["server_cpu_us_per_request"] = report["server_cpu_s_per_gb"] * request_bytes / 1000
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)):
            report[name] = latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1000
        return report

    def produced_by_many(self, seconds: float, request_bytes: int, pipeline: int) -> Report:
        """To ``receive-many``: the same without latencies, every connection with so many requests in flight."""
        request = os.urandom(request_bytes)
        joined = {count: request * count for count in range(1, pipeline + 1)}
        connections = {one.fileno(): one for one in self._connections}
        over = dict.fromkeys(connections, 0)

        def answered(descriptor: int) -> int:
            got = len(connections[descriptor].recv(1 << 16))
            whole, over[descriptor] = divmod(over[descriptor] + got, ANSWER_BYTES)
            return whole

        with select.epoll() as poll:
            for descriptor, one in connections.items():
                poll.register(descriptor, select.EPOLLIN)
                one.sendall(joined[pipeline])

            def turn() -> int:
                total = 0
                for descriptor, _ in poll.poll():
                    if whole := answered(descriptor):
                        connections[descriptor].sendall(joined[whole])
                        total += whole
                return total * request_bytes

            report = self._measured(seconds, turn)
        for descriptor in connections:  # so that a later run begins with nothing under way
            left = pipeline
            while left:
                left -= answered(descriptor)
        report["requests_per_s"] = report["mb_per_s"] * 1e6 / request_bytes
        report["server_cpu_us_per_request"] = report["server_cpu_s_per_gb"] * request_bytes / 1000
        return report

    def copied(self, seconds: float) -> Report:
        """To ``discard``: what loopback itself carries."""
        piece = os.urandom(PIECE_BYTES)

        def turn() -> int:
            self._connection.sendall(piece)
            return PIECE_BYTES

        return self._measured(seconds, turn)

    def _measured(self, seconds: float, turn: object, bytes_max: int = 0) -> Report:
        assert callable(turn)
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {LOAD_CORE})
        try:
            before, started, total = cpu_seconds(self._process.pid), time.perf_counter(), 0
            while total < bytes_max if bytes_max else time.perf_counter() - started < seconds:
                total += turn()
            elapsed = time.perf_counter() - started
            spent = cpu_seconds(self._process.pid) - before
        finally:
            os.sched_setaffinity(0, allowed)
        return {"mb_per_s": total / elapsed / 1e6, "server_cpu_s_per_gb": spent / total * 1e9}


@contextmanager
def bare(*what: str, connections: int = 1) -> Iterator[Bare]:
    """A bare server pinned to the server's core, and so many connections to it."""
    command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "loadtests.bare_limits", *what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            with ExitStack() as stack:
                address = ("127.0.0.1", int(process.stdout.readline()))
                opened = [stack.enter_context(socket.create_connection(address)) for _ in range(connections)]
                yield Bare(process, opened)
        finally:
            process.terminate()


def touch_pages(directory: Path, total_bytes: int) -> None:
    """Fill and free so much page cache: where a host takes idle memory back, its first use again is many times slower.

    What is used right afterwards gets these pages; a second later a host may have taken back all but about a GB of them.
    """
    path = directory / "touched"
    piece = bytes(PIECE_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, total_bytes, PIECE_BYTES):
            file.write(piece)
    path.unlink()


def page_cache_write(directory: Path, total_bytes: int) -> tuple[Report, Report]:
    """Appending 1 MiB pieces to a new file, and to one whose pages are there already."""
    path = directory / "page-cache-write"
    piece = os.urandom(PIECE_BYTES)
    reports: list[Report] = []
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        for _ in range(2):
            before, started = time.process_time(), time.perf_counter()
            for position in range(0, total_bytes, PIECE_BYTES):
                os.pwrite(file, piece, position)
            elapsed, spent = time.perf_counter() - started, time.process_time() - before
            reports.append({"mb_per_s": total_bytes / elapsed / 1e6, "server_cpu_s_per_gb": spent / total_bytes * 1e9})
    finally:
        os.close(file)
        path.unlink()
    return reports[0], reports[1]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send", path]:
            send(Path(path))
        case ["sendfile", path]:
            send_by_reference(Path(path))
        case ["sendfile-many", path, connections, *send_buffer]:
            send_to_many(Path(path), int(connections), int(*send_buffer))
        case ["receive", path, request_bytes]:
            receive(Path(path), int(request_bytes))
        case ["discard"]:
            discard()
        case _:
            raise SystemExit(__doc__)
