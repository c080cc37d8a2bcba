"""Workers accept connections from one socket."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from app.core.faults import Faults
from app.http.processes.accepting import Accepting
from app.http.processes.listening import listen


class Counted(asyncio.Protocol):
    """Counts the connections of a worker, and greets each."""

    made = 0

    def connection_made(self, transport: Any) -> None:
        type(self).made += 1
        transport.write(b"here")


@pytest.fixture(name="listening")
def _listening() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as listening:
        yield listening


async def greeted(address: tuple[str, int]) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(*address)
    assert await reader.readexactly(4) == b"here"
    return writer


async def test_a_burst_of_connections_spreads_over_the_workers(listening: socket.socket) -> None:
    kinds = [type(f"Counted{number}", (Counted,), {"made": 0}) for number in range(3)]
    clients = [socket.create_connection(listening.getsockname()) for _ in range(30)]  # all wait in the queue
    workers = [Accepting(listening.dup(), kind, Faults(print)) for kind in kinds]
    loop = asyncio.get_running_loop()
    for client in clients:
        client.setblocking(False)
        assert await loop.sock_recv(client, 4) == b"here"
        client.close()
    assert [kind.made for kind in kinds] == [10, 10, 10]
    for worker in workers:
        worker.close()
        await worker.wait_closed()


class NoFiles(socket.socket):
    """A listening socket of a process that has no descriptor left, once."""

    failed = False

    def accept(self) -> Any:
        if not self.failed:
            self.failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_a_worker_without_descriptors_says_so_and_accepts_later(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.processes.accepting.PAUSE_S", 0.0)
    said: list[str] = []
    failing = NoFiles(fileno=listening.dup().detach())
    accepting = Accepting(failing, Counted, Faults(said.append))
    writer = await greeted(listening.getsockname())
    assert failing.failed
    assert "HTTP cannot accept connections" in said[0]
    writer.close()
    accepting.close()


async def test_a_worker_that_is_closed_leaves_connections_to_others(listening: socket.socket) -> None:
    kind, other = type("First", (Counted,), {"made": 0}), type("Second", (Counted,), {"made": 0})
    first = Accepting(listening.dup(), kind, Faults(print))
    second = Accepting(listening.dup(), other, Faults(print))
    first.close()
    for _ in range(3):
        (await greeted(listening.getsockname())).close()
    assert (kind.made, other.made) == (0, 3)
    second.close()
