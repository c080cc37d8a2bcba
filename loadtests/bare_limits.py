"""What the machine can do without any broker: the floor that every figure is held against.

Run as a process pinned to the server's core: ``python -m loadtests.bare_limits send FILE`` serves one connection with a
bare pread and write loop, 1 MiB at a time, as often as the peer asks by sending one byte.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

PIECE_BYTES = 1 << 20


def send(path: Path) -> None:
    """Answer each byte received with the whole file, by pread into one reused buffer and write."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    file = os.open(path, os.O_RDONLY)
    buffer = memoryview(bytearray(PIECE_BYTES))
    while connection.recv(1):
        position = 0
        while got := os.preadv(file, [buffer], position):
            connection.sendall(buffer[:got])
            position += got


def touch_pages(directory: Path, total_bytes: int) -> None:
    """Fill and free so much page cache: where a host takes idle memory back, its first use again is many times slower."""
    path = directory / "touched"
    piece = bytes(PIECE_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, total_bytes, PIECE_BYTES):
            file.write(piece)
    path.unlink()


def page_cache_write(directory: Path, total_bytes: int) -> tuple[float, float]:
    """MB/s of appending 1 MiB pieces to a new file, and to one whose pages are there already."""
    path = directory / "page-cache-write"
    piece = os.urandom(PIECE_BYTES)
    rates = []
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        for _ in range(2):
            started = time.perf_counter()
            for position in range(0, total_bytes, PIECE_BYTES):
                os.pwrite(file, piece, position)
            rates.append(total_bytes / (time.perf_counter() - started) / 1e6)
    finally:
        os.close(file)
        path.unlink()
    return rates[0], rates[1]


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "send":
        raise SystemExit(__doc__)
    send(Path(sys.argv[2]))
