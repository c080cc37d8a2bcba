"""What the audit log costs: ``python -m loadtests.micro_audit``.

One line, one refusal of an identical request, and one question of the sampler, alone. Then Produce requests of 1 KB on a connection
without a socket, of two brokers in turns: without an audit log, and with one that has one in a thousand allowed requests.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from app.core.metrics import Registry
from app.handlers.policy.auditing import Audit, Sampler
from app.handlers.policy.callers import Caller, Rights
from app.machine.runtime import SystemClock
from app.security.audit import EventKind, Outcome, event, line_of
from app.security.noting import Resource
from app.wire.apikeys import ApiKey
from loadtests.micro_connection import Producer, Sink, node_running, receive
from loadtests.micro_rights import nanoseconds

REPEATS: Final = 20_000
ROUNDS: Final = 31
TOGETHER: Final = 20
ASKED: Final = (Resource("WRITE", "TOPIC", "team-7.events"),)


class Nowhere:
    """Takes lines."""

    def put(self, line: bytes, *, important: bool) -> None:
        """Let it go."""


def alone() -> None:
    """The parts."""
    audit = Audit(Registry(), SystemClock(), 1, Nowhere(), 1000)
    caller = Caller(Rights("User:7"), host="10.0.0.1")
    sampler = Sampler(1000)

    def refuse() -> None:
        for number in range(REPEATS):
            audit.refused(caller, ApiKey.PRODUCE, "app", number, ASKED)

    def different() -> None:
        for number in range(REPEATS):
            if not number % 100:
                audit.close_window()
            audit.refused(caller, ApiKey.PRODUCE, f"app-{number}", number, ASKED)

    def write() -> None:
        what = event(
            EventKind.ACCESS, Outcome.DENIED, principal="User:7", host="10.0.0.1", request="PRODUCE", resources=ASKED
        )
        for number in range(REPEATS):
            line_of(what, 1_700_000_000_000, broker_id=1, correlation_id=number)

    def sample() -> None:
        take = sampler.take
        for _ in range(REPEATS):
            take(1)

    parts: tuple[tuple[str, Callable[[], None]], ...] = (
        ("a refusal like the one before", refuse),
        ("a refusal that is another one", different),
        ("a line", write),
        ("a question of the sampler", sample),
    )
    for title, work in parts:
        print(f"{title:32} {nanoseconds(work, REPEATS) / 1e3:6.2f} µs", flush=True)


async def produces(directory: Path) -> None:
    """Requests of two brokers, in turns."""
    async with (
        node_running(directory / "off") as off,
        node_running(directory / "on", firn_audit_log_path=str(directory / "audit.log")) as on,
    ):
        sides = []
        for name, node in (("without an audit log", off), ("with one", on)):
            await node.membership.controller.create_topic("micro", 1, {"remote.storage.enable": "false"})
            connection = node.server.make()
            connection.connection_made(Sink())  # type: ignore[arg-type]
            sides.append((name, connection, Producer("micro", 1000, 8, TOGETHER, 1000), list[float]()))
        for number in range(ROUNDS):
            for _, connection, producer, costs in sides if number % 2 else reversed(sides):
                spent = sum(receive(connection, producer.renew()) for _ in range(250))
                costs.append(spent / 250 / TOGETHER * 1e6)
                await asyncio.sleep(0)
        for name, connection, _, costs in sides:
            print(
                f"Produce 1 KB {name:22} least {min(costs[1:]):6.2f} µs   median {statistics.median(costs[1:]):6.2f} µs"
            )
            connection.close()


def main() -> None:
    alone()
    directory = Path(tempfile.mkdtemp(prefix="firn-micro-"))
    try:
        for side in ("off", "on"):
            (directory / side).mkdir()
        uvloop.run(produces(directory))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
