"""A broker of a cluster in a process of its own, to be killed, stopped and started again.

    python -m tests.support.cluster_process PATH NODE_ID PORT

The bucket is the directory ``PATH/store``, the broker's data ``PATH/broker-<id>/data``. SIGTERM stops it in order. It
prints ``ready`` when it serves, and its notices.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from pathlib import Path

from app.machine.runtime import ThreadPool, boot_id
from app.objectstore.directory import DirectoryStore
from tests.support.broker import running_broker


async def serve(path: Path, node_id: int, port: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    pool = ThreadPool(4)
    store = DirectoryStore(path / "store", pool)
    await store.open()
    async with running_broker(
        path / f"broker-{node_id}",
        store=store,
        rng=random.Random(),
        new_level=1,
        boot_id=boot_id(),
        node_id=node_id,
        listen_port=port,
        log_line=lambda line: print(f"{time.time():.2f} {line}", flush=True),
    ) as broker:
        print("ready", flush=True)
        fenced = asyncio.create_task(broker.ended.wait())
        await asyncio.wait([fenced, asyncio.create_task(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
    pool.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
