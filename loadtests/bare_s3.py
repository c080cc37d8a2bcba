"""What the S3 client alone reads: ranged GETs through aiobotocore, many at a time, the bytes thrown away.

    python -m loadtests.bare_s3 's3://bench/?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true' 5

reads the objects under ``data/`` over and over for so many seconds and prints one JSON object. Credentials come from the
environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from loadtests.measuring import Report

RANGE_BYTES = 8 << 20
IN_FLIGHT = 16
WARM_UP_S = 1.0


async def read(store_url: str, seconds: float) -> Report:
    endpoint = store_url.partition("endpoint=")[2].partition("&")[0]
    config = AioConfig(max_pool_connections=IN_FLIGHT, s3={"addressing_style": "path"})
    async with get_session().create_client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", config=config
    ) as client:
        listed = await client.list_objects_v2(Bucket="bench", Prefix="data/")
        ranges = [
            (one["Key"], start, min(start + RANGE_BYTES, one["Size"]))
            for one in listed["Contents"]
            for start in range(0, one["Size"], RANGE_BYTES)
        ]
        turn = total = 0
        deadline = time.perf_counter() + WARM_UP_S

        async def reader() -> None:
            nonlocal turn, total
            while time.perf_counter() < deadline:
                key, start, end = ranges[turn % len(ranges)]
                turn += 1
                answer = await client.get_object(Bucket="bench", Key=key, Range=f"bytes={start}-{end - 1}")
                data = await answer["Body"].read()
                total += len(data)  # not in one statement with the await: others add meanwhile

        async def readers() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(IN_FLIGHT):
                    group.create_task(reader())

        await readers()  # connections, and what botocore reads from disk for its first requests
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
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print(json.dumps(uvloop.run(read(sys.argv[1], float(sys.argv[2])))))
