"""What each idea for a fast Produce saves, by taking it away: CPU microseconds for a request of 1 KB, without clients.

    python -m loadtests.micro_ideas [--rounds 9]

A whole broker runs in this process, and a connection is fed as by ``micro_connection``; its answers go into a socket. First with
everything as it is, then with one thing done the plain way, by turns; the least of all rounds of each. What costs a request a
task or a future is measured with one request in each read, where nothing else is shared out among many. Then how long the loop
stands still for a full search for garbage; at last what one write for the requests of a turn would save at most, which was not
built: the write alone, with nothing around it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import uvloop

from app.broker.node import Node
from app.handlers.clients.client import Service
from app.handlers.clients.produce_shape import ProduceShape
from app.handlers.produce.gathering import Gathering
from app.handlers.serving.session import Session
from app.machine.runtime import settle_memory
from app.transport.connection import Connection
from app.wire.produce import encode_produce_success
from loadtests.micro_connection import Producer, Sink, node_running

TOPIC = "ideas"
BATCH_BYTES, RECORDS, TOGETHER = 1_000, 8, 20
READS = 500
"""In a round."""
WRITES = 20_000
PLAIN_GARBAGE = (700, 10, 10)
"""Python's own thresholds."""


class SocketSink(Sink):
    """A transport that writes into a real connection, whose other end is emptied now and then."""

    def __init__(self) -> None:
        super().__init__()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._far = socket.create_connection(listener.getsockname())
            self._near, _ = listener.accept()
        self._near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._far.setblocking(False)

    def write(self, data: bytes) -> None:
        super().write(data)
        self._near.sendall(data)

    def empty(self) -> None:
        """Read what was written."""
        try:
            while self._far.recv(1 << 20):
                pass
        except BlockingIOError:
            return

    def end(self) -> None:
        self._near.close()
        self._far.close()


class FreshBuffers(Session):
    """Every read gets a buffer of its own."""

    def get_buffer(self, sizehint: int) -> memoryview:
        self.server.scratch = memoryview(bytearray(len(self.server.scratch)))
        return super().get_buffer(sizehint)


class AnswerByAnswer(Connection):
    """Every answer leaves in a write of its own."""

    def _flush(self) -> bool:
        out = self.core.out
        answers, out[:] = list(out), out[:1]
        if answers:
            self.core.take_out()
        for answer in answers:
            self._transport.write(answer)
        return True


def _encoded(shape: ProduceShape, correlation_id: int, base_offset: int, append_time_ms: int, start: int) -> bytes:
    return encode_produce_success(shape.version, correlation_id, TOPIC, 0, base_offset, append_time_ms, start)


@contextmanager
def _general_encoder() -> Iterator[None]:
    with patch.object(ProduceShape, "answer", _encoded):
        yield


@contextmanager
def _general_decoder() -> Iterator[None]:
    with patch.object(Gathering, "serve", lambda *_: None):
        yield


@contextmanager
def _plain_collector() -> Iterator[None]:
    gc.unfreeze()
    gc.set_threshold(*PLAIN_GARBAGE)
    try:
        yield
    finally:
        settle_memory()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


Feed = Callable[[Connection, memoryview], Awaitable[None]]


async def _at_once(connection: Connection, data: memoryview) -> None:
    _read(connection, data)


async def _in_a_task(connection: Connection, data: memoryview) -> None:
    async def serve() -> None:
        _read(connection, data)

    await asyncio.get_running_loop().create_task(serve())


async def _by_a_future(connection: Connection, data: memoryview) -> None:
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    answered.add_done_callback(lambda _: _read(connection, data))
    answered.set_result(None)
    await asyncio.sleep(0)


async def _after_a_turn(connection: Connection, data: memoryview) -> None:
    _read(connection, data)
    await asyncio.sleep(0)


def _read(connection: Connection, data: memoryview) -> None:
    room = connection.get_buffer(-1)
    room[: len(data)] = data
    connection.buffer_updated(len(data))


def _as_it_is(server: Service) -> Connection:
    return server.make()


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve."""

    name: str
    make: Callable[[Service], Connection] = _as_it_is
    surroundings: Callable[[], AbstractContextManager[None]] = _nothing
    feed: Feed = _at_once
    together: int = TOGETHER


WAYS = (
    Way("as it is"),
    Way("a receive buffer for each read", make=lambda server: Connection(server, FreshBuffers(server))),
    Way("a write for each answer", make=lambda server: AnswerByAnswer(server, Session(server))),
    Way("each request decoded", surroundings=_general_decoder),
    Way("each answer encoded", surroundings=_general_encoder),
    Way("garbage collector as it comes", surroundings=_plain_collector),
    Way("one request in each read", together=1),
    Way("the same, a turn of the loop for each", feed=_after_a_turn, together=1),
    Way("the same, a task for each", feed=_in_a_task, together=1),
    Way("the same, a future for each", feed=_by_a_future, together=1),
)


async def _round(node: Node, way: Way, producer: Producer) -> float:
    """CPU seconds a request."""
    sink = SocketSink()
    connection = way.make(node.server)
    connection.connection_made(sink)  # type: ignore[arg-type]
    spent = 0.0
    with way.surroundings():
        for number in range(READS):
            data = memoryview(producer.renew())
            started = time.process_time()
            await way.feed(connection, data)
            if number:  # the first teaches the connection its requests
                spent += time.process_time() - started
            sink.empty()
    connection.close()
    sink.end()
    return spent / ((READS - 1) * way.together)


async def _measure(directory: Path, rounds: int) -> None:
    async with node_running(directory) as node:
        await node.membership.controller.create_topic(TOPIC, 1, {"remote.storage.enable": "false"})
        producers = {
            way.name: Producer(TOPIC, BATCH_BYTES, RECORDS, way.together, 1000 + number)
            for number, way in enumerate(WAYS)
        }
        found: dict[str, list[float]] = {way.name: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                found[way.name].append(await _round(node, way, producers[way.name]) * 1e6)
                await asyncio.sleep(0)
        _collections(rounds)
    for name, costs in found.items():
        print(f"{name:<40} least {min(costs):7.2f} µs   highest {max(costs):7.2f} µs a request", flush=True)


def _collections(rounds: int) -> None:
    """How long the loop stands still for a search for garbage among all that there is."""
    gc.unfreeze()
    costs = []
    for _ in range(rounds):
        started = time.process_time()
        gc.collect()
        costs.append((time.process_time() - started) * 1000)
    settle_memory()
    print(
        f"{'a search for garbage, nothing frozen':<40} least {min(costs):7.2f} ms   highest {max(costs):7.2f} ms",
        flush=True,
    )


def _writes(directory: Path, rounds: int) -> None:
    """One pwrite for each request, and one pwritev for those of a turn."""
    batch = bytes(BATCH_BYTES)
    found: dict[str, list[float]] = {"a pwrite for each request": [], "a pwritev for the requests of a turn": []}
    for _ in range(rounds):
        for name, costs in found.items():
            file = os.open(directory / "written", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            started = time.process_time()
            if "pwritev" in name:
                for place in range(0, WRITES, TOGETHER):
                    os.pwritev(file, [batch] * TOGETHER, place * BATCH_BYTES)
            else:
                for place in range(WRITES):
                    os.pwrite(file, batch, place * BATCH_BYTES)
            costs.append((time.process_time() - started) / WRITES * 1e6)
            os.close(file)
    for name, costs in found.items():
        print(f"{name:<40} least {min(costs):7.2f} µs   highest {max(costs):7.2f} µs a request", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where the broker keeps its data (a temporary folder)")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="firn-ideas-", dir=options.directory))
    try:
        uvloop.run(_measure(directory, options.rounds))
        _writes(directory, options.rounds)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
