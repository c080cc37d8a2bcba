"""How fast segments go up and cold chunks come down, through a real store process and a directory store.

    python loadtests/micro_tier.py [--megabytes 512] [--rounds 3]

Each figure is the median of its rounds after one that warms up; uploads are of raw segment bytes, including their fdatasync,
and serving is what a Fetch does: ask the remote reader, read the ranges from the page cache into a buffer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import shutil
import socket
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

import uvloop

from app.core.limits import MIB
from app.core.metrics import Registry
from app.core.units import BrokerId, LogSequence, Offset, PartitionIndex, SegmentId, TopicId
from app.hot.descriptors import DescriptorCache
from app.machine.files import PosixFileSystem
from app.machine.rpc import RpcClient
from app.machine.runtime import ThreadPool
from app.metadata.log import layout
from app.metadata.manifest.manifest_state import ManifestState, SegmentEntry, SegmentState
from app.records.builder import build_batch
from app.tiering.read.chunk_cache import ChunkCache
from app.tiering.read.reader import RemoteReader
from app.tiering.read.waiting import RemoteWait
from app.tiering.store.store_proxy import ProxyStoreWork
from app.tiering.store.store_work import UploadJob

TOPIC = TopicId(uuid.UUID(int=7))
CHUNK_BYTES = 4 * MIB


def _segment(path: Path, total_bytes: int, kind: str) -> tuple[int, int]:
    """A segment file of 16 KiB batches; its size and end offset."""
    rng = random.Random(1)
    words = [rng.randbytes(6).hex() for _ in range(300)]

    def value() -> bytes:
        if kind == "incompressible":
            return rng.randbytes(1000)
        return " ".join(rng.choices(words, k=77)).encode()[:1000]

    # A few hundred different batches in turn: building is not what is measured.
    bodies = [[(1000, None, value(), ()) for _ in range(16)] for _ in range(128)]
    made = [bytearray(build_batch(body)) for body in bodies]
    offset = size = 0
    with path.open("wb") as file:
        while size < total_bytes:
            one = made[(offset // 16) % len(made)]
            one[0:8] = offset.to_bytes(8, "big")
            file.write(one)
            offset += 16
            size += len(one)
        file.flush()
        os.fdatasync(file.fileno())
    return size, offset


class _Manifest:
    """What the reader needs of a manifest, without a log behind it."""

    def __init__(self, entries: list[SegmentEntry], partition: int) -> None:
        self.topic_id, self.partition = TOPIC, PartitionIndex(partition)
        self.state = ManifestState()
        self.state._by_id = {entry.segment_id: entry for entry in entries}
        self.state.loaded(LogSequence(0))
        self.log_start_offset = Offset(0)

    @property
    def finished(self) -> object:
        return self.state.finished

    def find(self, offset: int) -> SegmentEntry | None:
        return self.state.find(offset)

    def object_key(self, entry: SegmentEntry) -> str:
        return entry.object_key(self.topic_id, self.partition)


async def _store_process(root: Path) -> tuple[asyncio.subprocess.Process, RpcClient]:
    ours, theirs = socket.socketpair()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "app.tiering.store.store_process", "--store", f"file://{root}", "--socket", str(theirs.fileno())),
        pass_fds=(theirs.fileno(),),
    )
    theirs.close()
    rpc = RpcClient()
    await rpc.connect(ours)
    return process, rpc


def _cpu_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _upload(
    work: ProxyStoreWork, path: Path, size: int, end: int, compression: str, partition: int
) -> SegmentEntry:
    segment_id = SegmentId(uuid.uuid4())
    job = UploadJob(
        key=layout.segment_key(TOPIC, partition, 0, segment_id),
        segment_id=segment_id.bytes,
        topic_id=TOPIC.bytes,
        partition=partition,
        path=str(path),
        log_bytes=size,
        base_offset=0,
        end_offset=end,
        leader_epochs=[(0, 0)],
        aborted=[],
        producer_snapshot=b"",
        compression=compression,
        chunk_bytes=CHUNK_BYTES,
        created_ms=0,
    )
    made = await work.upload_segment(job)
    return SegmentEntry.started(segment_id, Offset(0), Offset(end), broker_id=BrokerId(1)).replace(
        state=SegmentState.COPY_FINISHED,
        record_count=made.record_count,
        raw_bytes=made.raw_bytes,
        size_bytes=made.size_bytes,
        footer_position=made.footer_position,
        footer_bytes=made.size_bytes - made.footer_position,
        chunk_count=made.chunk_count,
        max_timestamp=made.max_timestamp,
    )


async def _measure(options: argparse.Namespace, directory: Path) -> None:
    total = options.megabytes * MIB
    process, rpc = await _store_process(directory / "store")
    work = ProxyStoreWork(rpc)
    await rpc.call("process.ping")
    for kind, compression in (
        ("incompressible", "auto"),
        ("incompressible", "zstd"),
        ("text", "auto"),
        ("text", "zstd"),
    ):
        path = directory / f"{kind}.log"
        size, end = _segment(path, total, kind)
        rates, costs = [], []
        entries: list[SegmentEntry] = []
        for _ in range(options.rounds + 1):
            for entry in entries:
                (directory / "store" / entry.object_key(TOPIC, PartitionIndex(0))).unlink()
            cpu_s, started = _cpu_s(process.pid), time.perf_counter()
            entries = [await _upload(work, path, size, end, compression, 0)]
            rates.append(size / MIB / (time.perf_counter() - started))
            costs.append((_cpu_s(process.pid) - cpu_s) / size * 1e9)
        stored = entries[0].size_bytes / size
        print(
            f"upload {kind:>14} {compression:>4}: {statistics.median(rates[1:]):6.0f} MiB/s, "
            f"{statistics.median(costs[1:]):.2f} s CPU per GB in the store process, stored at {stored:.0%}"
        )
        for partitions in (1, 8):
            await _measure_serving(
                options, directory, work, process.pid, entries[0], end, partitions, kind, compression
            )
        path.unlink()
    rss = Path(f"/proc/{process.pid}/status").read_text()
    print("store process", next(line for line in rss.splitlines() if line.startswith("VmHWM")))
    await rpc.close()
    await process.wait()


async def _measure_serving(
    options: argparse.Namespace,
    directory: Path,
    work: ProxyStoreWork,
    store_process_id: int,
    entry: SegmentEntry,
    end: int,
    partitions: int,
    kind: str,
    compression: str,
) -> None:
    rates, broker_costs, store_costs = [], [], []
    part_end = end // partitions
    for _ in range(options.rounds + 1):
        registry, pool, fs = Registry(), ThreadPool(4), PosixFileSystem()
        manifest = _Manifest([entry], 0)
        cache = ChunkCache(
            work,
            str(directory / "cache"),
            1024 * MIB,
            fs=fs,
            pool=pool,
            descriptors=DescriptorCache(fs, 1000),
            registry=registry,
        )
        reader = RemoteReader(
            work,
            cache,
            lambda _, manifest=manifest: manifest,  # type: ignore[misc]
            pool=pool,
            registry=registry,
            read_ahead_bytes=256 * MIB,
        )
        running = asyncio.create_task(reader.run())
        await asyncio.sleep(0.05)
        before = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s, started = _cpu_s(store_process_id), time.perf_counter()

        async def one(index: int, reader: RemoteReader = reader) -> int:
            # Eight parts of one segment stand for eight partitions: as many readers at different chunks.
            at, total = index * part_end, 0
            buffer = memoryview(bytearray(2 * MIB))
            while at < (index + 1) * part_end:
                found = reader.read(TOPIC, PartitionIndex(0), Offset(at), MIB, min_one_batch=True)
                if isinstance(found, RemoteWait):
                    woken = asyncio.Event()
                    found(woken.set)
                    await woken.wait()
                    continue
                for span in found.ranges:
                    file = span.handle.acquire()
                    if file.preadv_nowait(buffer[: span.length], span.position) != span.length:
                        file.pread_into(buffer[: span.length], span.position)
                    span.handle.release()
                    total += span.length
                at = found.end_offset
                await asyncio.sleep(0)
            return total

        totals = await asyncio.gather(*(one(index) for index in range(partitions)))
        elapsed = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        rates.append(sum(totals) / MIB / elapsed)
        broker_costs.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / sum(totals) * 1e9)
        store_costs.append((_cpu_s(store_process_id) - cpu_s) / sum(totals) * 1e9)
        running.cancel()
        await asyncio.wait((running,))
    print(
        f"serve  {kind:>14} {compression:>4}, {partitions} readers: {statistics.median(rates[1:]):6.0f} MiB/s, "
        f"CPU per GB {statistics.median(broker_costs[1:]):.2f} s here, "
        f"{statistics.median(store_costs[1:]):.2f} s in the store process"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="firn-micro-tier-", dir=options.directory))
    try:
        uvloop.run(_measure(options, directory))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
