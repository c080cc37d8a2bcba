"""What a take-over of the results of keyed requests costs: reading a partition of `__http_requests`, without a network.

    python -m loadtests.keyed_takeover [--keys 1000000] [--partitions 8] [--callers 50] [--one-by-one] [--keep DIR]

The log of each partition is written from ready batches: results of ``--callers`` requests at a time, and their markers. One try
in a hundred is aborted. Then the logs are read as a coordinator reads them. The figures are
microseconds of a key: reading alone, reading and decoding, and the whole load; the longest that the loop is held; and the bytes of
memory that a key takes in the index. ``--keep`` leaves the logs in a folder, and a second run with the same arguments reads them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import random
import resource
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from app.configs import TopicConfig
from app.coordinator.partition import REPLAY_READ_BYTES, CoordinatedLog, decode_batches
from app.coordinator.shell import Decode
from app.core.units import LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicId
from app.exactly_once.bounds import Usage
from app.exactly_once.columns import scan
from app.exactly_once.coordinator import SCANNED_BYTES
from app.exactly_once.records import TOPIC, Part, RequestKey, Result, encode_result
from app.exactly_once.shard import RequestShard
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.machine.files import PosixFileSystem
from app.machine.runtime import SystemClock, ThreadPool
from app.records.builder import build_batch
from app.records.control import ControlType, build_marker
from app.replication.partition import Partition
from loadtests.measuring import Report

NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = 104_857_600
BATCHES_AT_ONCE = 500
ABORTED_ONE_IN = 100
RETENTION_MS = 3_600_000
KEYS_A_SECOND = 2_700


class _Turn:
    """Takes a timer and does nothing with it."""

    def set_timer(self, key: object, delay_ms: int) -> None: ...


class _Load(NamedTuple):
    seconds: float
    cpu_s: float
    longest_ms: float
    """Of this thread's CPU time, between two places where a portion may end."""
    shards: list[RequestShard]


def _batches(partition: int, keys: int, callers: int) -> Iterator[bytes]:
    """Results and markers, as ``callers`` requests side by side write them."""
    rng = random.Random(partition)
    offset = written = 0
    while written < keys:
        turn = range(min(callers, keys - written))
        now_ms = TimestampMs(NOW_MS + written * 8_000 // KEYS_A_SECOND)
        for caller in turn:
            key = RequestKey("User:orders-service", str(uuid.UUID(int=rng.getrandbits(128))).encode())
            part = Part("orders", caller % 12, written + caller, 1, -1)
            result = Result(rng.randbytes(16), rng.randbytes(32), 200, now_ms, now_ms, (part,), (0,))
            yield build_batch(
                [(now_ms, *encode_result(key, result), ())],
                base_offset=Offset(offset),
                leader_epoch=LeaderEpoch(0),
                producer_id=ProducerId(1_000 + caller),
                producer_epoch=ProducerEpoch(1),
                transactional=True,
            )
            offset += 1
        for caller in rng.sample(turn, len(turn)):
            kind = ControlType.ABORT if rng.randrange(ABORTED_ONE_IN) == 0 else ControlType.COMMIT
            yield build_marker(
                kind,
                producer_id=ProducerId(1_000 + caller),
                producer_epoch=ProducerEpoch(1),
                coordinator_epoch=0,
                timestamp=now_ms,
                base_offset=Offset(offset),
                leader_epoch=LeaderEpoch(0),
            )
            offset += 1
        written += len(turn)


def _fill(log: PartitionLog, keys: int, callers: int) -> None:
    waiting: list[bytes] = []
    for batch in _batches(int(log.partition), keys, callers):
        waiting.append(batch)
        if len(waiting) == BATCHES_AT_ONCE:
            log.append_as_follower(memoryview(b"".join(waiting)), now_ms=NOW_MS)
            waiting = []
    if waiting:
        log.append_as_follower(memoryview(b"".join(waiting)), now_ms=NOW_MS)


async def _read(logs: list[PartitionLog], at_once_bytes: int) -> float:
    """CPU seconds of reading alone."""
    began = time.process_time()
    for log in logs:
        async for _ in CoordinatedLog(Partition(log)).read_all(at_once_bytes=at_once_bytes):
            pass
    return time.process_time() - began


async def _load(logs: list[PartitionLog], decode: Decode, at_once_bytes: int, usage: Usage | None) -> _Load:
    """Load all logs, as a coordinator does. Without ``usage``: read and decode alone."""
    began, cpu, longest = time.perf_counter(), time.process_time(), 0.0
    shards: list[RequestShard] = []
    for log in logs:
        shard = RequestShard(usage or Usage(), lambda: RETENTION_MS)
        async for data in CoordinatedLog(Partition(log)).read_all(at_once_bytes=at_once_bytes):
            turned = time.thread_time()
            for batch in decode(data):
                if usage is not None:
                    shard.load(batch)
                longest = max(longest, time.thread_time() - turned)
                turned = time.thread_time()
        turned = time.thread_time()
        shard.loaded(_Turn())  # type: ignore[arg-type]
        longest = max(longest, time.thread_time() - turned)
        shards.append(shard)
    return _Load(time.perf_counter() - began, time.process_time() - cpu, longest * 1e3, shards)


async def measure(directory: str, keys: int, partitions: int, callers: int, *, one_by_one: bool) -> Report:
    """The figures of one log of ``keys`` results in all."""
    pool = ThreadPool(2)
    manager = LogManager(directory, PosixFileSystem(), pool, SystemClock(), random.Random(1))
    manager.lock()
    await manager.load_all()
    config = TopicConfig(segment_bytes=SEGMENT_BYTES, retention_ms=-1)
    logs = [
        manager.get(TOPIC, index) or manager.create(TOPIC, TopicId(uuid.UUID(int=7)), PartitionIndex(index), config)
        for index in range(partitions)
    ]
    for log in logs:
        if not log.log_end_offset:
            _fill(log, keys // partitions, callers)
    size = sum(entry.stat().st_size for path, _, _ in os.walk(directory) for entry in os.scandir(path))
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    gc.freeze()
    decode: Decode = decode_batches if one_by_one else scan
    at_once_bytes = REPLAY_READ_BYTES if one_by_one else SCANNED_BYTES
    read_s = await _read(logs, at_once_bytes)
    decoded = await _load(logs, decode, at_once_bytes, None)
    usage = Usage()
    load = await _load(logs, decode, at_once_bytes, usage)
    found: Report = {
        "log_mb": size / 1e6,
        "read_us": read_s / keys * 1e6,
        "decode_us": decoded.cpu_s / keys * 1e6,
        "cpu_us": load.cpu_s / keys * 1e6,
        "load_s": load.seconds,
        "longest_ms": load.longest_ms,
        "index_bytes": sum(shard.index_bytes for shard in load.shards) / usage.total.keys,
        "grown_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb,
        "keys": usage.total.keys,
    }
    await manager.close()
    pool.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--callers", type=int, default=50)
    parser.add_argument("--one-by-one", action="store_true", help="decode each batch by itself, as for short logs")
    parser.add_argument("--keep", metavar="DIR", help="where the logs are written and stay (a temporary folder)")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = arguments.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="firn-keyed-"))
        found = asyncio.run(
            measure(directory, arguments.keys, arguments.partitions, arguments.callers, one_by_one=arguments.one_by_one)
        )
    for name, value in found.items():
        print(f"{name:>12} {value:,.2f}")


if __name__ == "__main__":
    main()
