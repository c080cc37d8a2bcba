"""What requests to S3 cost the store process's side: ranges, small objects and pages of a LIST through obstore and through
aiobotocore, and chunks on their way to a cache file.

    python -m loadtests.micro_s3 [--megabytes 256] [--rounds 5] [--default-allocator]

An S3 server on this machine answers from a file; CPU is this process's own, so the server's does not count. Ways that are
compared take turns; the least of the rounds is the cost without the neighbours' noise.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import uvloop
from crc32c import crc32c

from app.core.limits import KIB, MIB
from app.core.units import FilePosition, Offset, TimestampMs
from app.machine.allocator import keep_freed_memory
from app.machine.files import PosixFileSystem
from app.objectstore.location import S3Location, parse_store_url
from app.objectstore.s3 import S3Store
from app.records.builder import build_batch
from app.tiering.store.segment_format import ChunkCodec, ChunkEntry
from app.tiering.store.store_process import KEPT_MEMORY_BYTES_MAX, THREADS, StoreThreads
from app.tiering.store.store_work import InlineStoreWork
from loadtests.start_up import S3_ENVIRONMENT, s3_url, slow_s3

RANGE_BYTES = 4 * MIB
FOOTER_BYTES = 16 * KIB
SMALL = 200
"""Small requests of a kind in one round."""
IN_FLIGHT = 8
KEYS = 1000
OBJECT = "data/one"
SMALL_OBJECT = "data/small"

Work = Callable[[], Awaitable[object]]


async def _all(starts: range, read: Callable[[int], Awaitable[object]]) -> None:
    """``read`` each, a few at a time."""
    left = iter(starts)

    async def reader() -> None:
        for start in left:
            await read(start)

    await asyncio.gather(*(reader() for _ in range(IN_FLIGHT)))


async def _cost(work: Work) -> tuple[float, float]:
    """CPU seconds and seconds."""
    cpu_s, started = time.process_time(), time.perf_counter()
    await work()
    return time.process_time() - cpu_s, time.perf_counter() - started


async def _in_turns(ways: Mapping[str, Work], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Costs of each way by round, after one that warms up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, work in ways.items():
            cost = await _cost(work)
            if turn:
                found[name].append(cost)
    return found


def _show(what: str, found: Mapping[str, list[tuple[float, float]]], total_bytes: int) -> None:
    for name, costs in found.items():
        cpu = [cost[0] / total_bytes * 1e9 for cost in costs]
        rates = [total_bytes / 1e6 / cost[1] for cost in costs]
        print(
            f"{what}{name:<18} least {min(cpu):.2f} s CPU per GB, median {statistics.median(cpu):.2f}, "
            f"{statistics.median(rates):.0f} MB/s",
            flush=True,
        )


async def _measure(url: str, batch: bytes, total_bytes: int, rounds: int, scratch: Path) -> None:
    location = parse_store_url(url)
    assert isinstance(location, S3Location)
    store = S3Store(location, rng=random.Random(1))
    await store.open()
    short_cut = store._short_cut

    def through(works: Mapping[str, Callable[[], Awaitable[object]]]) -> dict[str, Work]:
        """Each work in both ways."""

        async def do(work: Callable[[], Awaitable[object]], *, obstore: bool) -> None:
            store._short_cut = short_cut if obstore else None
            await work()
            store._short_cut = short_cut

        return {
            f"{what}, {name}": partial(do, work, obstore=name == "obstore")
            for what, work in works.items()
            for name in ("obstore", "aiobotocore")
        }

    numbers = itertools.count()

    async def read(length: int, starts: range) -> None:
        await _all(starts, lambda start: store.get_range(OBJECT, start, start + length))

    async def put(size_bytes: int, count: int) -> None:
        data = bytes(size_bytes)
        await _all(range(count), lambda _: store.put_if_absent(f"put/{next(numbers)}", data))

    large, small = range(0, total_bytes, RANGE_BYTES), range(0, SMALL * FOOTER_BYTES, FOOTER_BYTES)
    _show("ranges of 4 MiB", await _in_turns(through({"": partial(read, RANGE_BYTES, large)}), rounds), total_bytes)
    requests = {
        "a range of 16 KiB": partial(read, FOOTER_BYTES, small),
        "a whole object of 16 KiB": partial(_all, range(SMALL), lambda _: store.get(SMALL_OBJECT)),
        "a put of 300 bytes": partial(put, 300, SMALL),
        "a put of 1 MiB": partial(put, MIB, SMALL),
        "a LIST without a key": partial(_all, range(SMALL), lambda _: store.list_objects("none/")),
        f"a LIST of {KEYS:,} keys": partial(_all, range(SMALL // 10), lambda _: store.list_objects("keys/")),
    }
    for name, costs in (await _in_turns(through(requests), rounds)).items():
        count = SMALL // 10 if "keys" in name else SMALL
        cpu_ms = [cost[0] / count * 1000 for cost in costs]
        print(f"{name:<37} least {min(cpu_ms):.2f} ms CPU, median {statistics.median(cpu_ms):.2f}", flush=True)

    work = InlineStoreWork(store, PosixFileSystem(), StoreThreads(THREADS), random.Random(1))
    batches = RANGE_BYTES // len(batch)
    chunk_bytes = batches * len(batch)
    crc = crc32c(batch * batches)

    async def fetch(start: int, path: str) -> None:
        chunk = ChunkEntry(
            FilePosition(start), chunk_bytes, chunk_bytes, Offset(0), batches, batches, TimestampMs(0), TimestampMs(0),
            crc, ChunkCodec.VERBATIM,
        )  # fmt: skip
        await work.fetch_chunk(OBJECT, chunk, path)

    async def fetch_anew(start: int) -> None:
        path = f"{scratch}/new-{next(numbers)}"
        await fetch(start, path)
        os.unlink(path)

    chunks = range(0, total_bytes - chunk_bytes, chunk_bytes)
    ways = {
        "new file": lambda: _all(chunks, fetch_anew),
        "file written over": lambda: _all(chunks, lambda start: fetch(start, f"{scratch}/{start}")),
    }
    _show("chunks of 4 MiB, ", await _in_turns(ways, rounds), len(chunks) * chunk_bytes)

    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--default-allocator", action="store_true", help="give freed memory back, as glibc does")
    options = parser.parse_args()
    if not options.default_allocator:
        keep_freed_memory(KEPT_MEMORY_BYTES_MAX)
    os.environ.update(S3_ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="firn-micro-s3-") as name:
        scratch, bucket = Path(name), Path(name) / "bucket"
        (bucket / "data").mkdir(parents=True)
        (bucket / "keys").mkdir()
        batch = build_batch([(0, None, os.urandom(1000), ()) for _ in range(16)])
        total_bytes = 0
        with (bucket / OBJECT).open("wb") as file:
            while total_bytes < options.megabytes * MIB:
                total_bytes += file.write(batch)
        total_bytes = total_bytes // RANGE_BYTES * RANGE_BYTES
        (bucket / SMALL_OBJECT).write_bytes(bytes(FOOTER_BYTES))
        for number in range(KEYS):
            (bucket / "keys" / f"{number:020d}").touch()
        with slow_s3(bucket, 0) as endpoint:
            uvloop.run(_measure(s3_url(endpoint), batch, total_bytes, options.rounds, scratch))


if __name__ == "__main__":
    main()
