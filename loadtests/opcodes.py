"""How many opcodes of ``app`` a request costs, or a call of several: a figure that a busy machine hardly changes.

    python -m loadtests.opcodes [--requests 100] [--rounds 5]

One broker answers Produce and Fetch requests without a network. A broker that traces answers Produce requests of which none is
sampled, 20 together and one by one. Then three brokers in this process replicate Produce requests that come over loopback, one
after the other: that figure includes the fetches of both followers and the timers of all three brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from app.broker.node import Node
from app.transport.connection import Connection
from loadtests.micro_connection import SIZES, Producer, Sink, fetches, node_running, receive
from tests.support.broker import RunningBroker
from tests.support.several import cluster_on

APP: Final = str(Path(__file__).resolve().parent.parent / "app") + "/"
REPLICATED: Final = SIZES[:2]


class Counter:
    """Opcodes of the frames of ``app``, of whatever runs in this thread while it counts."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(APP):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.count += 1
        return self._stepped


def tell(title: str, rounds: list[float]) -> None:
    print(
        f"{title:38} median {statistics.median(rounds):9,.1f} opcodes, {min(rounds):,.1f} to {max(rounds):,.1f}",
        flush=True,
    )


async def one_broker(directory: Path, requests: int, rounds: int) -> None:
    async with node_running(directory) as node:
        for number, (title, batch_bytes, records, together) in enumerate(SIZES):
            topic = f"opcodes-{number}"
            await node.membership.controller.create_topic(topic, 1, {"remote.storage.enable": "false"})
            connection, sink = node.server.make(), Sink()
            connection.connection_made(sink)  # type: ignore[arg-type]
            producer = Producer(topic, batch_bytes, records, together, 1000 + number)
            receive(connection, producer.renew())
            found = []
            for _ in range(rounds):
                counter = Counter()
                for _ in range(requests):
                    data = producer.renew()
                    with counter.counting():
                        receive(connection, data)
                found.append(counter.count / (requests * together))
                await asyncio.sleep(0)
            tell(f"Produce, {title}", found)
            if not number:
                tell("Fetch, 1 KB", await fetched(node, topic, requests, rounds))


async def telemetry(directory: Path, requests: int, rounds: int) -> None:
    """Produce requests of 1 KB at a broker with and without traces."""
    _, batch_bytes, records, many = SIZES[0]
    for title, settings in (("", {}), (", traced", {"firn_tracing_endpoint": "http://127.0.0.1:1/v1/traces"})):
        async with node_running(
            directory / f"traced{len(settings)}", **settings, firn_tracing_sample_ratio=0.0
        ) as node:
            await node.membership.controller.create_topic("t", 1, {"remote.storage.enable": "false"})
            for together in (many, 1):
                connection, sink = node.server.make(), Sink()
                connection.connection_made(sink)  # type: ignore[arg-type]
                producer = Producer("t", batch_bytes, records, together, 1000 + together)
                receive(connection, producer.renew())
                tell(
                    f"Produce, 1 KB, {together} together{title}", await counted(connection, producer, requests, rounds)
                )


async def counted(connection: Connection, producer: Producer, calls: int, rounds: int) -> list[float]:
    """For each round: opcodes a call."""
    found = []
    for _ in range(rounds):
        counter = Counter()
        for _ in range(calls):
            data = producer.renew()
            with counter.counting():
                receive(connection, data)
        found.append(counter.count / calls)
        await asyncio.sleep(0)
    return found


async def fetched(node: Node, topic: str, requests: int, rounds: int) -> list[float]:
    """For each round: opcodes a request, of those that were answered at once. A thread reads for the others."""
    connection, sink = node.server.make(), Sink()
    connection.connection_made(sink)  # type: ignore[arg-type]
    found = []
    for _ in range(rounds):
        total = answered = 0
        for one in fetches(topic, 12)[:requests]:
            counter = Counter()
            with counter.counting():
                receive(connection, one)
            if sink.reading.is_set():
                total += counter.count
                answered += 1
            else:
                await asyncio.wait_for(sink.reading.wait(), 10)
        if not answered:
            raise SystemExit("no Fetch request was answered at once")
        found.append(total / answered)
    return found


async def leader_in_sync(brokers: list[RunningBroker], topic: str) -> RunningBroker:
    """The leader of the only partition of ``topic``, once all brokers are in sync."""
    while True:
        for broker in brokers:
            partition = broker.node.partitions.table.get(topic, 0)
            image = broker.node.cluster.image.topic(topic)
            if partition is not None and image is not None:
                at = image.partitions[0]
                if at.leader == broker.node.membership.view.identity.broker_id and len(at.isr) == len(brokers):
                    return broker
        await asyncio.sleep(0.1)


async def three_brokers(directory: Path, requests: int, rounds: int) -> None:
    async with cluster_on(directory, 3) as brokers:
        for number, (title, batch_bytes, records, _) in enumerate(REPLICATED):
            topic = f"opcodes-{number}"
            controller = next(
                one.node.membership.controller for one in brokers if one.node.membership.controller.active
            )
            await controller.create_topic(topic, 1, {"min.insync.replicas": "2"}, replication_factor=3)
            leader = await leader_in_sync(brokers, topic)
            producer = Producer(topic, batch_bytes, records, 1, 1000 + number)
            tell(f"Produce to three replicas, {title}", await replicated(leader.port, producer, requests, rounds))


async def replicated(port: int, producer: Producer, requests: int, rounds: int) -> list[float]:
    """For each round: opcodes a request, of all brokers of this process."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def produce() -> None:
        writer.write(bytes(producer.renew()))
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    for _ in range(10):
        await produce()
    found = []
    for _ in range(rounds):
        counter = Counter()
        with counter.counting():
            for _ in range(requests):
                await produce()
        found.append(counter.count / requests)
    writer.close()
    return found


async def measure(directory: Path, requests: int, rounds: int) -> None:
    await one_broker(directory / "one", requests, rounds)
    await telemetry(directory, requests, rounds)
    await three_brokers(directory / "three", requests, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firn-opcodes-") as directory:
        asyncio.run(measure(Path(directory), options.requests, options.rounds))


if __name__ == "__main__":
    main()
