"""What quotas cost a Produce request of 1 KB, without a network: CPU microseconds per request.

    python -m loadtests.micro_quotas [--directory /dev/shm] [--rounds 41]

A whole broker runs in this process. Its 50 connections are fed one after the other, as the loop does with 50 producers: one request
in a turn, then five. Rounds without limits and with them take turns, so that a slow while of the machine falls on all alike. The
limits are never reached.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from app.broker.node import Node
from app.handlers.policy.client_quotas import ClientQuotas
from app.metadata.image.records import QuotaEntity
from app.transport.connection import Connection
from loadtests.micro_connection import Producer, Sink, node_running

CONNECTIONS: Final = 50
TURNS: Final = 40
"""Of each connection in a round."""
BYTES: Final = {"producer_byte_rate": 1e12}
ALL: Final = {**BYTES, "consumer_byte_rate": 1e12, "request_percentage": 1e6}
KINDS: Final = (("without", None), ("bytes", BYTES), ("bytes and time", ALL))


async def _measure(directory: Path, rounds: int) -> None:
    async with node_running(directory) as node:
        await node.membership.controller.create_topic("micro", 1, {"remote.storage.enable": "false"})
        kinds: list[tuple[str, ClientQuotas | None]] = []
        for title, limits in KINDS:
            quotas = None
            if limits is not None:
                quotas = ClientQuotas(node.config, time.perf_counter)
                quotas.follow({QuotaEntity("ANONYMOUS", None, None): limits})
            kinds.append((title, quotas))
        for together in (1, 5):
            await _measure_turns(node, kinds, together, rounds)


async def _measure_turns(node: Node, kinds: list[tuple[str, ClientQuotas | None]], together: int, rounds: int) -> None:
    clients = []
    for number in range(CONNECTIONS):
        connection = node.server.make()
        connection.connection_made(Sink())  # type: ignore[arg-type]
        clients.append((connection, Producer("micro", 1_000, 8, together, 1_000 * together + number)))
    costs: dict[str, list[float]] = {title: [] for title, _ in kinds}
    for number in range(rounds + 1):
        for title, quotas in kinds:
            node.context.quotas = quotas
            spent = sum(_turn(clients) for _ in range(TURNS))
            if number:
                costs[title].append(spent / (TURNS * CONNECTIONS * together) * 1e6)
            await asyncio.sleep(0)
    for connection, _ in clients:
        connection.close()
    base = costs[kinds[0][0]]
    for title, of_kind in costs.items():
        more = statistics.median(cost - plain for cost, plain in zip(of_kind, base, strict=True))
        print(
            f"{together} in a turn, {title:15} least {min(of_kind):6.2f} µs   median {statistics.median(of_kind):6.2f} µs   "
            f"more than without {more:5.2f} µs",
            flush=True,
        )


def _turn(clients: list[tuple[Connection, Producer]]) -> float:
    """Every connection receives its next requests. Returns: CPU seconds."""
    arrived = [(connection, memoryview(producer.renew())) for connection, producer in clients]
    started = time.process_time()
    for connection, data in arrived:
        count = len(data)
        connection.get_buffer(-1)[:count] = data
        connection.buffer_updated(count)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--directory", type=Path, default=None, help="where the broker keeps its data (a temporary folder)"
    )
    parser.add_argument("--rounds", type=int, default=41)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="firn-micro-", dir=options.directory))
    try:
        uvloop.run(_measure(directory, options.rounds))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
