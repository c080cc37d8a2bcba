"""A broker of a cluster in a process of its own, to be killed, stopped, cut off and started again.

    python -m tests.support.cluster_process PATH NODE_ID PORT ['{"links": {…}, "redis": "redis://…", "settings": {…}}']

The bucket is the directory ``PATH/store``, the broker's data ``PATH/broker-<id>/data``. While the file ``PATH/no-bucket-<id>``
exists, this broker cannot reach the bucket. ``links`` is where it reaches the other brokers instead of their own ports. SIGTERM
stops it in order. It prints ``ready`` when it serves, and its notices.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from redis.asyncio import Redis

from app.broker.control_link import KafkaControlLink
from app.client.connection import dial_tcp
from app.errors import StorageUnavailable
from app.machine.runtime import ThreadPool, boot_id
from app.metadata.liveness import Liveness
from app.metadata.redis_liveness import RedisLiveness
from app.objectstore.directory import DirectoryStore
from tests.support.broker import running_broker

T = TypeVar("T")


class CutPool:
    """A BlockingPool for a bucket that cannot be reached while a file exists."""

    def __init__(self, pool: ThreadPool, cut: Path) -> None:
        self._pool = pool
        self._cut = cut

    async def run(self, work: Callable[[], T]) -> T:
        if self._cut.exists():
            raise StorageUnavailable("the bucket is cut off")
        done = await self._pool.run(work)
        if self._cut.exists():
            raise StorageUnavailable("the bucket was cut off before it answered")
        return done


def dialer(links: Mapping[str, int]) -> Any:
    async def dial(protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
        await dial_tcp(protocol, host, links.get(str(port), port))

    return dial


def redis_liveness(url: str) -> Liveness:
    """As of ``firn serve --redis``."""
    return RedisLiveness(Redis.from_url(url), namespace="firn")


async def serve(path: Path, node_id: int, port: int, more: Mapping[str, Any]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    pool = ThreadPool(4)
    store = DirectoryStore(path / "store", CutPool(pool, path / f"no-bucket-{node_id}"))
    await store.open()
    async with running_broker(
        path / f"broker-{node_id}",
        store=store,
        rng=random.Random(),
        new_level=1,
        boot_id=boot_id(),
        new_link=partial(KafkaControlLink, dial=dialer(more.get("links", {}))),
        node_id=node_id,
        listen_port=port,
        log_line=lambda line: print(f"{time.time():.2f} {line}", flush=True),
        liveness=redis_liveness(more["redis"]) if "redis" in more else None,
        **more.get("settings", {}),
    ) as broker:
        print("ready", flush=True)
        fenced = asyncio.create_task(broker.ended.wait())
        await asyncio.wait([fenced, asyncio.create_task(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
    pool.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(
        serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]) if sys.argv[4:] else {})
    )
