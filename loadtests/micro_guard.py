"""What the front of the HTTP application costs (``Host``, origin, form of the path, measure): CPU microseconds of a request,
without a network.

    python -m loadtests.micro_guard [--rounds 15]

An application that answers at once is asked with the front and without, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

import uvloop

from app.core.metrics import Registry
from app.http.access import Access
from app.http.front import Front, Measures
from app.http.guard import Guard

REQUESTS = 5_000
HEADERS = [
    (b"host", b"127.0.0.1:8082"),
    (b"user-agent", b"micro"),
    (b"accept", b"application/json"),
    (b"content-type", b"application/json"),
    (b"content-length", b"300"),
]


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers at once."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _ask(application: Any) -> float:
    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/topics/orders/records",
        "headers": HEADERS,
        "server": ("127.0.0.1", 8082),
    }
    started = time.process_time()
    for _ in range(REQUESTS):
        await application(dict(scope), receive, send)
    return (time.process_time() - started) / REQUESTS * 1e6


async def _measure(rounds: int) -> None:
    registry = Registry()
    guarded = Front(answering, guard=Guard(access=Access(), registry=registry), measures=Measures(registry))
    costs: dict[str, list[float]] = {"without the front": [], "with the front": []}
    for _ in range(rounds):
        costs["without the front"].append(await _ask(answering))
        costs["with the front"].append(await _ask(guarded))
    for name, spent in costs.items():
        print(f"{name:20} least {min(spent):6.2f} µs   median {statistics.median(spent):6.2f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure(options.rounds))


if __name__ == "__main__":
    main()
