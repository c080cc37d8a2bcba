"""What a Produce or Fetch request costs from the received bytes to the answer, without a network: CPU microseconds per request.

    python -m loadtests.micro_connection [--directory /dev/shm] [--rounds 15]

A whole broker runs in this process; a connection is fed whole receive buffers of pipelined requests, as the loop would, and its
answers are dropped. The least of all rounds is the cost without the neighbours' noise.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import Struct
from typing import Any

import uvloop
from crc32c import crc32c

from app.broker.composing.node_seams import NodeSeams
from app.broker.node import Node
from app.configs import BrokerConfig
from app.core.units import ProducerEpoch, ProducerId
from app.machine.files import PosixFileSystem
from app.machine.runtime import SystemClock, ThreadPool, boot_s, raise_descriptor_limit, settle_memory
from app.objectstore.directory import DirectoryStore
from app.records.builder import build_batch
from app.tiering.store.store_work import InlineStoreWork
from app.transport.connection import Connection
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from app.wire.produce import encode_produce_request

SEQUENCE_POSITION = 53
CRC_POSITION, CRC_START = 17, 21
SIZES = (
    ("1 KB, 8 messages", 1_000, 8, 20),
    ("16 KB, 140 messages", 16_384, 140, 10),
    ("1 MB, 950 messages", 1_000_000, 950, 2),
)
"""Title, bytes of a batch, records in it, requests received together."""
FETCHES = 1_000


class Sink:
    """A transport whose peer reads everything at once."""

    def __init__(self) -> None:
        self.answers = 0
        self.reading = asyncio.Event()
        """Not set while the connection waits for the response of a request that was not answered at once."""
        self.reading.set()

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """There is no buffer."""

    def write(self, data: bytes) -> None:
        self.answers += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading.clear()

    def resume_reading(self) -> None:
        self.reading.set()

    def close(self) -> None:
        """Nothing is open."""


def fetches(topic: str, version: int) -> list[bytearray]:
    """Requests of a consumer without a session, which reads one batch of about 1 KB after the other."""
    return [
        bytearray(
            encode_fetch_request(
                version,
                1,
                "micro",
                FetchRequest(topics=[(topic, [FetchPartition(0, fetch_offset=offset, partition_max_bytes=1_000)])]),
            )
        )
        for offset in range(0, FETCHES * SIZES[0][2], SIZES[0][2])
    ]


class Producer:
    """Requests of one idempotent producer, whose sequences follow one another."""

    def __init__(self, topic: str, batch_bytes: int, records: int, together: int, producer_id: int) -> None:
        value = random.Random(1).randbytes(max(1, (batch_bytes - 61) // records - 10))
        now_ms = int(time.time() * 1000)
        body: list[Any] = [(now_ms, None, value, ())] * records
        self._batch = build_batch(
            body, producer_id=ProducerId(producer_id), producer_epoch=ProducerEpoch(0), base_sequence=0
        )
        pieces = encode_produce_request(
            9, 1, "micro", [(topic, [(0, memoryview(self._batch))])], acks=-1, timeout_ms=30_000
        )
        frame = b"".join(pieces)
        self._frame_bytes = len(frame)
        self._start = frame.index(self._batch)
        self._records = records
        self._sequence = 0
        self.buffer = bytearray(frame * together)

    def renew(self) -> bytearray:
        """The next requests, in one buffer. Costs what a client would pay."""
        buffer = self.buffer
        for place in range(self._start, len(buffer), self._frame_bytes):
            buffer[place : place + len(self._batch)] = self._batch
            Struct(">i").pack_into(buffer, place + SEQUENCE_POSITION, self._sequence)
            self._sequence += self._records
            crc = crc32c(memoryview(buffer)[place + CRC_START : place + len(self._batch)])
            Struct(">I").pack_into(buffer, place + CRC_POSITION, crc)
        return buffer


def receive(connection: Connection, data: bytearray) -> float:
    """Hand over bytes as the loop does; CPU seconds of what follows from each piece."""
    position, spent = 0, 0.0
    view = memoryview(data)
    while position < len(view):
        room = connection.get_buffer(-1)
        count = min(len(room), len(view) - position)
        room[:count] = view[position : position + count]
        position += count
        started = time.process_time()
        connection.buffer_updated(count)
        spent += time.process_time() - started
    return spent


async def _measure_fetches(node: Node, topic: str, rounds: int) -> None:
    for version in (11, 12):
        connection, sink = node.server.make(), Sink()
        connection.connection_made(sink)  # type: ignore[arg-type]
        requests, costs = fetches(topic, version), []
        for _ in range(rounds + 1):
            spent, count = 0.0, 0
            for one in requests:
                cost = receive(connection, one)
                if sink.reading.is_set():
                    spent += cost
                    count += 1
                else:
                    # The kernel had not the bytes at hand, so that a thread reads them: not what is measured here.
                    await asyncio.wait_for(sink.reading.wait(), 10)
            assert count > len(requests) // 2, f"only {count} of {len(requests)} requests were answered at once"
            costs.append(spent / count * 1e6)
            await asyncio.sleep(0)
        title = f"1 KB, version {version}"
        print(
            f"Fetch   {title:22} least {min(costs[1:]):8.2f} µs   median {statistics.median(costs[1:]):8.2f} µs",
            flush=True,
        )
        connection.close()


@asynccontextmanager
async def node_running(directory: Path, **settings: Any) -> AsyncIterator[Node]:
    """A whole broker in this process that listens to nobody, on a directory store; its memory is settled as a started one's is.
    ``settings``: fields of ``BrokerConfig``."""
    pool, rng, fs = ThreadPool(2), random.Random(1), PosixFileSystem()
    store = DirectoryStore(directory / "bucket", pool)
    await store.open()
    work = InlineStoreWork(store, fs, pool, rng, object_path=lambda key: str(directory / "bucket" / key))
    config = BrokerConfig(data_dir=str(directory / "data"), listen_port=0, http_address="off", **settings)
    node = Node(
        config,
        NodeSeams(
            clock=SystemClock(), rng=rng, pool=pool, fs=fs, store=store, work=work, log_line=print, boot_s=boot_s,
            descriptors_max=raise_descriptor_limit(),
        ),
    )  # fmt: skip
    await node.start(listen=False)
    ready = asyncio.Event()
    serving = asyncio.create_task(node.run(ready.set))
    await ready.wait()
    settle_memory()
    yield node
    node.request_stop()
    await serving
    await node.stop()
    pool.close()


async def _measure(directory: Path, rounds: int) -> None:
    async with node_running(directory) as node:
        await _measure_produces(node, rounds)


async def _measure_produces(node: Node, rounds: int) -> None:
    for number, (title, batch_bytes, records, together) in enumerate(SIZES):
        topic = f"micro-{number}"
        await node.membership.controller.create_topic(topic, 1, {"remote.storage.enable": "false"})
        connection = node.server.make()
        sink = Sink()
        connection.connection_made(sink)  # type: ignore[arg-type]
        producer = Producer(topic, batch_bytes, records, together, 1000 + number)
        costs = []
        for _ in range(rounds + 1):
            spent, count = 0.0, 0
            for _ in range(max(4, 20_000_000 // (batch_bytes * together * 2))):
                spent += receive(connection, producer.renew())
                count += together
                assert sink.reading.is_set(), "a Produce request was not answered at once"
            costs.append(spent / count * 1e6)
            await asyncio.sleep(0)
        assert sink.answers
        print(
            f"Produce {title:22} least {min(costs[1:]):8.2f} µs   median {statistics.median(costs[1:]):8.2f} µs",
            flush=True,
        )
        connection.close()
        if not number:
            await _measure_fetches(node, topic, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--directory", type=Path, default=None, help="where the broker keeps its data (a temporary folder)"
    )
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="firn-micro-", dir=options.directory))
    try:
        uvloop.run(_measure(directory, options.rounds))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
