"""What bytes from S3 cost the store process's side: large ranges with the short cut and without, and a page of a LIST.

    python -m loadtests.micro_s3 [--megabytes 256] [--rounds 5]

An S3 server on this machine answers from a file; CPU is this process's own, so the server's does not count. The two ways take
turns; the least of the rounds is the cost without the neighbours' noise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from app.limits import MIB
from app.objectstore.s3 import S3Store
from app.objectstore.url import S3Location, parse_store_url
from loadtests.start_up import S3_ENVIRONMENT, s3_url, slow_s3

RANGE_BYTES = 4 * MIB
IN_FLIGHT = 8
KEYS = 1000
OBJECT = "data/one"


async def _read(store: S3Store, total_bytes: int) -> None:
    """All of the object, a few ranges at a time."""
    starts = iter(range(0, total_bytes, RANGE_BYTES))

    async def reader() -> None:
        for start in starts:
            assert len(await store.get_range(OBJECT, start, start + RANGE_BYTES)) == RANGE_BYTES

    await asyncio.gather(*(reader() for _ in range(IN_FLIGHT)))


async def _cost(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """CPU seconds and seconds."""
    cpu_s, started = time.process_time(), time.perf_counter()
    await work()
    return time.process_time() - cpu_s, time.perf_counter() - started


async def _measure(url: str, total_bytes: int, rounds: int) -> None:
    location = parse_store_url(url)
    assert isinstance(location, S3Location)
    store = S3Store(location, rng=random.Random(1))
    await store.open()
    short_cut = store._bulk
    found: dict[str, list[tuple[float, float]]] = {"obstore": [], "aiobotocore": []}
    for _ in range(rounds + 1):
        for name, costs in found.items():
            store._bulk = short_cut if name == "obstore" else None
            costs.append(await _cost(lambda: _read(store, total_bytes)))
    for name, costs in found.items():
        cpu = [cost[0] / total_bytes * 1e9 for cost in costs[1:]]
        rates = [total_bytes / 1e6 / cost[1] for cost in costs[1:]]
        print(
            f"ranges of 4 MiB, {name:<11}  least {min(cpu):.2f} s CPU per GB, median {statistics.median(cpu):.2f}, "
            f"{statistics.median(rates):.0f} MB/s"
        )
    pages = [await _cost(lambda: store.list_objects("keys/")) for _ in range(4 * rounds)]
    cpu_ms = [cost[0] * 1000 for cost in pages[1:]]
    print(f"a LIST of {KEYS:,} keys           least {min(cpu_ms):.1f} ms CPU, median {statistics.median(cpu_ms):.1f}")
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    total_bytes = options.megabytes * MIB // RANGE_BYTES * RANGE_BYTES
    os.environ.update(S3_ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="firn-micro-s3-") as scratch:
        bucket = Path(scratch)
        (bucket / "data").mkdir()
        (bucket / "keys").mkdir()
        piece = os.urandom(MIB)
        with (bucket / OBJECT).open("wb") as file:
            for _ in range(total_bytes // MIB):
                file.write(piece)
        for number in range(KEYS):
            (bucket / "keys" / f"{number:020d}").touch()
        with slow_s3(bucket, 0) as endpoint:
            uvloop.run(_measure(s3_url(endpoint), total_bytes, options.rounds))


if __name__ == "__main__":
    main()
