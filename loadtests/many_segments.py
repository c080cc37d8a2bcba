"""A data directory and a bucket with many partitions and remote segments, made by the broker's own code.

    python -m loadtests.many_segments DIRECTORY --partitions 1000 --segments 10

leaves ``DIRECTORY/data`` and ``DIRECTORY/bucket`` as a broker does that was stopped in order after every segment but the
active one of each partition had been copied and had left the local disk. Nothing is written by hand: records are appended
to the logs, segments are rolled, and the remote log manager copies them. It is made in memory and copied to its place,
because thirty thousand waits for a disk are not what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from app.broker.composing.node_seams import NodeSeams
from app.broker.node import Node
from app.configs import BrokerConfig
from app.hot.log import PartitionLog
from app.machine.files import PosixFileSystem
from app.machine.runtime import SystemClock, ThreadPool, raise_descriptor_limit
from app.objectstore.directory import DirectoryStore
from app.records.builder import build_batch
from app.tiering.store.store_work import InlineStoreWork

PARTITIONS_PER_TOPIC = 100
RECORDS_PER_SEGMENT = 10
UNCOPIED_SEGMENTS_MAX = 1_000
MEMORY_DISK = Path("/dev/shm")


def topic_names(partitions: int) -> list[tuple[str, int]]:
    """Names and partition counts of the topics that ``build`` makes."""
    whole, rest = divmod(partitions, PARTITIONS_PER_TOPIC)
    return [(f"many-{number}", PARTITIONS_PER_TOPIC) for number in range(whole)] + (
        [(f"many-{whole}", rest)] if rest else []
    )


def build(directory: Path, partitions: int, segments: int) -> None:
    """Make ``directory/data`` and ``directory/bucket`` with ``segments`` remote segments in each partition."""
    scratch = tempfile.mkdtemp(prefix="firn-many-", dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)
    try:
        uvloop.run(_build(Path(scratch), partitions, segments))
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("data", "bucket"):
            shutil.copytree(Path(scratch) / name, directory / name)
    finally:
        shutil.rmtree(scratch)


async def _build(directory: Path, partitions: int, segments: int) -> None:
    pool, rng, fs = ThreadPool(2), random.Random(1), PosixFileSystem()
    store = DirectoryStore(directory / "bucket", pool)
    await store.open()
    work = InlineStoreWork(store, fs, pool, rng, object_path=lambda key: str(directory / "bucket" / key))
    config = BrokerConfig(
        data_dir=str(directory / "data"),
        listen_port=0,
        http_address="off",
        firn_log_dir_free_bytes_min=0,
        remote_log_manager_task_interval_ms=1000,
    )
    clock = SystemClock()
    node = Node(
        config,
        NodeSeams(
            clock=clock,
            rng=rng,
            pool=pool,
            fs=fs,
            store=store,
            work=work,
            log_line=lambda line: print(line, file=sys.stderr),
            descriptors_max=raise_descriptor_limit(),
        ),
    )
    await node.start()
    ready = asyncio.Event()
    serving = asyncio.create_task(node.run(ready.set))
    await ready.wait()
    for name, count in topic_names(partitions):
        await node.membership.controller.create_topic(name, count, {"local.retention.ms": "0", "retention.ms": "-1"})
    logs = node.logs.logs()
    assert len(logs) == partitions, len(logs)
    tier = node.remote_log_manager
    # Copied now and then, because the files of unsynced segments stay open; not after each, because every wait takes its time.
    rounds = max(1, UNCOPIED_SEGMENTS_MAX // partitions)
    for number in range(segments):
        for log in logs:
            _append(log, clock.now_ms(), number)
            log.roll()
        if (number + 1) % rounds and number + 1 < segments:
            continue
        end = (number + 1) * RECORDS_PER_SEGMENT
        while any((tier.tiered_end(log.topic_id, log.partition) or 0) < end for log in logs) and not serving.done():
            tier.kick()
            await asyncio.sleep(0.1)
    for log in logs:
        _append(log, clock.now_ms(), segments)
    while any(log.local_log_start_offset < segments * RECORDS_PER_SEGMENT for log in logs) and not serving.done():
        tier.kick()
        await asyncio.sleep(0.1)
    node.request_stop()
    await serving
    await node.stop()
    pool.close()


def _append(log: PartitionLog, now_ms: int, number: int) -> None:
    records = [(now_ms, b"key", b"%d of segment %d" % (n, number), ()) for n in range(RECORDS_PER_SEGMENT)]
    log.append_as_leader(memoryview(bytearray(build_batch(records))), now_ms=now_ms)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--segments", type=int, default=10)
    arguments = parser.parse_args()
    started = time.monotonic()
    build(arguments.directory, arguments.partitions, arguments.segments)
    print(f"made in {time.monotonic() - started:.1f} s")
