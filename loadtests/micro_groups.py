"""What groups cost, without a network: loading committed offsets, and assigning partitions in one large group.

    python -m loadtests.micro_groups [--offsets 1000000] [--directory DIR]

Loading: seconds for a million, and the longest that the loop is held. Twice: with one offset in each batch, which is
what a consumer of one partition leaves, and with a hundred. Compaction keeps batches as they are, so the first is what
a broker has to expect.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import shutil
import tempfile
import time
import uuid

from app.configs import BrokerConfig, TopicConfig
from app.coordinator.partition import CoordinatedLog, RawRecord
from app.coordinator.topics import CONSUMER_OFFSETS
from app.core.units import PartitionIndex, TopicId
from app.groups.consumer.assignors import MemberSpec, TopicSpec, assign_uniform
from app.groups.offsets.offsets import offset_key, offset_value
from app.groups.shard import GroupShard
from app.hot.manager import LogManager
from app.machine.files import PosixFileSystem
from app.machine.runtime import SystemClock, ThreadPool
from app.replication.partition import Partition
from loadtests.measuring import Report

NOW_MS = 1_700_000_000_000
OFFSETS_PER_GROUP = 1_000
ROUNDS = 3
MEMBERS = 1_000


class _Turn:
    """Takes timers and does nothing with them."""

    now_ms = NOW_MS

    def set_timer(self, key: object, delay_ms: int) -> None: ...


def _fill(log: CoordinatedLog, offsets: int, per_batch: int) -> None:
    batch: list[RawRecord] = []
    for number in range(offsets):
        group, partition = divmod(number, OFFSETS_PER_GROUP)
        batch.append((offset_key(f"group-{group}", "topic", partition), offset_value(number, 0, "", NOW_MS)))
        if len(batch) == per_batch:
            log.append(batch, now_ms=NOW_MS)
            batch = []
    if batch:
        log.append(batch, now_ms=NOW_MS)


async def _load(log: CoordinatedLog) -> tuple[float, float, float, int]:
    """Seconds, CPU seconds, longest slice in milliseconds of this thread's CPU, groups."""
    shard = GroupShard(PartitionIndex(0), BrokerConfig, random.Random(1))
    began, cpu, longest = time.perf_counter(), time.process_time(), 0.0
    turned = time.thread_time()
    async for batches in log.replay():
        for batch in batches:
            shard.load(batch)
        longest = max(longest, time.thread_time() - turned)
        turned = time.thread_time()
    shard.loaded(_Turn())  # type: ignore[arg-type]
    longest = max(longest, time.thread_time() - turned)
    return time.perf_counter() - began, time.process_time() - cpu, longest * 1e3, len(shard.groups)


async def measure(directory: str, offsets: int) -> dict[int, Report]:
    """What loading takes, by how many offsets there are in a batch."""
    found: dict[int, Report] = {}
    for per_batch in (1, 100):
        path = tempfile.mkdtemp(dir=directory)
        pool = ThreadPool(2)
        manager = LogManager(path, PosixFileSystem(), pool, SystemClock(), random.Random(1))
        manager.lock()
        await manager.load_all()
        config = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=104_857_600)
        log = CoordinatedLog(
            Partition(manager.create(CONSUMER_OFFSETS.name, TopicId(uuid.UUID(int=7)), PartitionIndex(0), config))
        )
        _fill(log, offsets, per_batch)
        rounds = sorted([await _load(log) for _ in range(ROUNDS)])
        seconds, cpu, longest_ms, groups = rounds[ROUNDS // 2]
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found[per_batch] = {"load_s": seconds, "cpu_s": cpu, "longest_ms": longest_ms, "memory_mb": memory_mb}
        print(
            f"{offsets:,} offsets of {groups:,} groups, {per_batch} in a batch: {seconds:.2f} s ({cpu:.2f} s CPU), "
            f"at most {longest_ms:.0f} ms CPU at a time, {memory_mb:.0f} MB at most",
            flush=True,
        )
        await manager.close()
        pool.close()
        shutil.rmtree(path)
    return found


def assign() -> None:
    """CPU of the uniform assignor, which holds the loop, by how alike the members' subscriptions are: everything for the first
    time, and after a tenth of the members was replaced."""
    rng = random.Random(1)
    for topics_count, partitions in ((1, 1000), (100, 10), (1000, 1)):
        ids = [uuid.UUID(int=number + 1) for number in range(topics_count)]
        other = uuid.UUID(int=topics_count + 1)
        topics = {topic_id: TopicSpec(partitions) for topic_id in (*ids, other)}
        shapes = {
            "one subscription": [frozenset(topics)],
            "two": [frozenset(topics), frozenset(ids)],
            "each its own, of up to 20 topics": [
                frozenset({ids[number % topics_count], other, *rng.sample(ids, min(20, topics_count))})
                for number in range(MEMBERS)
            ],
        }
        for shape, subscriptions in shapes.items():
            wanted = {f"member-{number:04}": subscriptions[number % len(subscriptions)] for number in range(MEMBERS)}
            began = time.process_time()
            first = assign_uniform({name: MemberSpec(ids_of, {}) for name, ids_of in wanted.items()}, topics)
            again = time.process_time()
            specs = {
                name if number % 10 else f"new-{number:04}": MemberSpec(
                    wanted[name], first[name] if number % 10 else {}
                )
                for number, name in enumerate(wanted)
            }
            started = time.process_time()
            assign_uniform(specs, topics)
            print(
                f"{MEMBERS:,} members, {topics_count:,} topics of {partitions:,} partitions, {shape}: "
                f"{(again - began) * 1e3:.1f} ms CPU, {(time.process_time() - started) * 1e3:.1f} ms when a tenth is replaced",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offsets", type=int, default=1_000_000)
    parser.add_argument("--directory", help="where the log is written (a temporary folder)")
    arguments = parser.parse_args()
    assign()
    directory = tempfile.mkdtemp(prefix="firn-micro-", dir=arguments.directory)
    try:
        asyncio.run(measure(directory, arguments.offsets))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
