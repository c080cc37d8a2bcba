"""What an S3 client alone reads: ranged GETs of 8 MiB, 16 at a time, the bytes thrown away.

    python -m loadtests.bare_s3 obstore 's3://bench/?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true' 5

reads the objects under ``data/`` over and over for so many seconds, through obstore or aiobotocore, and prints one JSON object.
Credentials come from the environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import obstore
import uvloop
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from obstore.store import S3Store

from loadtests.measuring import Report

RANGE_BYTES = 8 << 20
IN_FLIGHT = 16
WARM_UP_S = 1.0
BUCKET, PREFIX = "bench", "data/"

Read = Callable[[str, int, int], Awaitable[int]]
"""Get the bytes of an object from one position to another; returns how many came."""


@asynccontextmanager
async def through_obstore(endpoint: str) -> AsyncIterator[tuple[dict[str, int], Read]]:
    """Sizes of the objects by name, and how to read one."""
    store = S3Store(BUCKET, endpoint=endpoint, region="us-east-1", client_options={"allow_http": True})
    sizes = {one["path"]: one["size"] for page in obstore.list(store, PREFIX) for one in page}

    async def read(key: str, start: int, end: int) -> int:
        return len(await obstore.get_range_async(store, key, start=start, end=end))

    yield sizes, read


@asynccontextmanager
async def through_aiobotocore(endpoint: str) -> AsyncIterator[tuple[dict[str, int], Read]]:
    """The same."""
    config = AioConfig(max_pool_connections=IN_FLIGHT, s3={"addressing_style": "path"})
    async with get_session().create_client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", config=config
    ) as client:
        listed = await client.list_objects_v2(Bucket=BUCKET, Prefix=PREFIX)
        sizes = {one["Key"]: one["Size"] for one in listed["Contents"]}

        async def read(key: str, start: int, end: int) -> int:
            answer = await client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={start}-{end - 1}")
            return len(await answer["Body"].read())

        yield sizes, read


CLIENTS = {"obstore": through_obstore, "aiobotocore": through_aiobotocore}


async def measure(client: str, store_url: str, seconds: float) -> Report:
    [endpoint] = parse_qs(urlsplit(store_url).query)["endpoint"]
    async with CLIENTS[client](endpoint) as (sizes, read):
        ranges = [
            (key, start, min(start + RANGE_BYTES, size))
            for key, size in sorted(sizes.items())
            for start in range(0, size, RANGE_BYTES)
        ]
        turn = total = 0
        deadline = time.perf_counter() + WARM_UP_S

        async def reader() -> None:
            nonlocal turn, total
            while time.perf_counter() < deadline:
                place = ranges[turn % len(ranges)]
                turn += 1
                got = await read(*place)
                total += got  # not in one statement with the await: others add meanwhile

        async def readers() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(IN_FLIGHT):
                    group.create_task(reader())

        await readers()  # connections, and what a client reads from disk for its first requests
        turn = total = 0
        before, started = time.process_time(), time.perf_counter()
        deadline = started + seconds
        await readers()
        elapsed, spent = time.perf_counter() - started, time.process_time() - before
    return {
        "mb_per_s": total / elapsed / 1e6,
        "server_cpu_s_per_gb": spent / total * 1e9,
        "requests_per_s": turn / elapsed,
    }


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in CLIENTS:
        raise SystemExit(__doc__)
    print(json.dumps(uvloop.run(measure(sys.argv[1], sys.argv[2], float(sys.argv[3])))))
