"""One partition with everything of its tier, on virtual time: log, manifest, manager, cache and reader over a memory store.

``crash`` ends a broker as a kill would: its tasks stop where they are, files stay as they are. ``start`` begins another on
the same directory and store. ``check`` holds what can be read against what was appended, and INV-4 against the manifest.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from app.configs import TierCompression, TopicConfig
from app.core.errors import FirnError
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition
from app.hot.descriptors import DescriptorCache
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.machine.files import PosixFileSystem
from app.metadata.manifest.manifest import SegmentManifest
from app.objectstore.memory import MemoryStore
from app.records.batch import iter_headers
from app.tiering.read.chunk_cache import ChunkCache
from app.tiering.read.reader import RemoteReader
from app.tiering.read.waiting import RemoteWait
from app.tiering.repair.rebuild import agree
from app.tiering.store.store_work import InlineStoreWork, StoreWork
from app.tiering.upload.remote_log_manager import RemoteLogManager
from app.tiering.upload.retention import coverage_faults
from app.tiering.upload.tier_status import PartitionTierStatus
from tests.support.virtual_loop import VirtualClock, VirtualLoop, VirtualPool, run_virtual
from tests.tiering.segments import TOPIC, batch

T = TypeVar("T")

CONFIG = TopicConfig(
    segment_bytes=1000,
    local_retention_ms=0,
    retention_ms=-1,
    firn_tier_chunk_bytes=400,
    firn_tier_compression=TierCompression.NONE,
    firn_remote_delete_delay_ms=60_000,
)
"""Segments of a few batches, chunks of one or two, local copies gone as soon as they may."""


class World:
    """See the module's page."""

    def __init__(
        self, loop: VirtualLoop, directory: Path, *, config: TopicConfig = CONFIG, seed: int = 0, **manager: Any
    ) -> None:
        self.loop, self.directory, self.config = loop, directory, config
        self.clock = VirtualClock(loop)
        self.rng = random.Random(seed)
        self.pool = VirtualPool(lambda: 0.001)
        self.fs = PosixFileSystem()
        self.store = MemoryStore(self.clock, random.Random(seed))
        self.appended: dict[int, bytes] = {}
        """Every batch that was acknowledged, by base offset."""
        self.log_start = 0
        """What DeleteRecords or retention made of it."""
        self.manager_options = manager
        self.generation = 0
        self.batches = 0
        self._task: asyncio.Task[None] | None = None
        self.log: PartitionLog
        self.logs: LogManager
        self.manifest: SegmentManifest
        self.tier: RemoteLogManager
        self.reader: RemoteReader
        self.cache: ChunkCache
        self.chunks: DescriptorCache
        self.work: StoreWork

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a broker; faults of the store are outlived by trying again."""
        self.generation += 1
        self.lines: list[str] = []
        self.registry = Registry()
        self.logs = LogManager(str(self.directory / "data"), self.fs, self.pool, self.clock, self.rng)
        (self.directory / "data").mkdir(exist_ok=True)
        await self.logs.load_all(lambda _: self.config)
        found = self.logs.get("t", 0)
        self.log = found if found is not None else self.logs.create("t", TOPIC, PartitionIndex(0), self.config)
        self.log.become_leader(LeaderEpoch(self.generation))
        self.work = InlineStoreWork(
            self.store, self.fs, self.pool, self.rng, part_bytes=700, part_deadline_s=5, get_deadline_s=5
        )
        while True:
            try:
                self.manifest = self.new_manifest()
                await self.manifest.load()
                await agree(self.log, self.manifest, self.work)
                break
            except FirnError:
                await asyncio.sleep(1)
        self.tier = RemoteLogManager(
            self.store,
            self.work,
            clock=self.clock,
            rng=self.rng,
            registry=self.registry,
            broker_id=BrokerId(1),
            **({"interval_ms": 10_000, "stall_s": 40} | self.manager_options),
        )
        self.tier.attach(self.log, self.manifest)
        self.chunks = DescriptorCache(self.fs, 100)
        self.cache = ChunkCache(
            self.work,
            str(self.directory / "cache"),
            10_000,
            fs=self.fs,
            pool=self.pool,
            descriptors=self.chunks,
            registry=self.registry,
        )
        self.reader = RemoteReader(
            self.work,
            self.cache,
            self.tier.manifest_of,
            pool=self.pool,
            registry=self.registry,
            read_ahead_bytes=4000,
            faults=Faults(self.lines.append),
        )
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0.01)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.tier.run())
            group.create_task(self.reader.run())

    def new_manifest(self) -> SegmentManifest:
        return SegmentManifest(
            self.store,
            TOPIC,
            PartitionIndex(0),
            writer_id=str(uuid.UUID(int=self.rng.getrandbits(128))),
            broker_id=BrokerId(1),
            leader_epoch=LeaderEpoch(0),
            rng=self.rng,
            clock=self.clock,
        )

    async def crash(self) -> None:
        """Stop at once. Uploads that were under way are left as they are, as a killed store process leaves them."""
        task, self._task = self._task, None
        assert task is not None
        uploads = dict(self.store._uploads)
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()
        self.store._uploads.update(uploads)
        self._close()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()
            self._close()

    def _close(self) -> None:
        self.log.abandon()
        self.chunks.close_all()

    # --- use --------------------------------------------------------------------------------------------------------

    def append(self, batches: int = 1, *, records: int = 2, value_bytes: int = 100) -> None:
        for _ in range(batches):
            self.batches += 1
            made = batch(0, records, value_bytes=value_bytes, timestamp=self.clock.now_ms(), seed=self.batches)
            data = bytearray(made)
            result = self.log.append_as_leader(memoryview(data), now_ms=self.clock.now_ms())
            self.appended[result.base_offset] = bytes(data)

    def status(self) -> PartitionTierStatus:
        [one] = self.tier.status()
        return one

    async def until(self, holds: Callable[[], bool], *, seconds: float = 2000) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.25)

    def all_copied(self) -> bool:
        return all(segment.active or segment.end_offset <= self.manifest.tiered_end for segment in self.log.segments())

    async def read_remote(self, offset: int, *, max_bytes: int = 350) -> tuple[bytes, int]:
        """One answer of the remote reader, waited for: bytes and where to read on."""
        while True:
            found = self.reader.read(TOPIC, PartitionIndex(0), Offset(offset), max_bytes, min_one_batch=True)
            if isinstance(found, RemoteWait):
                woken = asyncio.Event()
                found(woken.set)
                async with asyncio.timeout(200):
                    await woken.wait()
                continue
            pieces = []
            for one in found.ranges:
                file = one.handle.acquire()
                pieces.append(file.pread(one.length, one.position))
                one.handle.release()
            assert sum(map(len, pieces)) == found.length
            return b"".join(pieces), found.end_offset

    async def read_all(self, start: int, end: int, *, max_bytes: int = 350) -> bytes:
        """Everything in [start, end) as a consumer would get it, from whichever tier has it."""
        pieces = []
        at = start
        while at < end:
            if at < self.log.local_log_start_offset:
                data, at = await self.read_remote(at, max_bytes=max_bytes)
                pieces.append(data)
            else:
                read = self.log.read(at, max_bytes, end_offset=end)
                pieces.append(bytes(await read.read_bytes()))
                at = read.end_offset
        return b"".join(pieces)

    async def check(self) -> None:
        """Nothing acknowledged is lost or changed, and the tiers fit together."""
        faults = coverage_faults(
            log_start=self.log.log_start_offset,
            local_start=self.log.local_log_start_offset,
            log_end=self.log.log_end_offset,
            tiered_end=self.manifest.tiered_end,
            remote=[(entry.base_offset, entry.end_offset) for entry in self.manifest.finished],
        )
        assert not faults, faults
        start, end = self.log.log_start_offset, self.log.log_end_offset
        assert start <= max(self.log_start, 0), "the log start went up by itself"
        expected = {base: data for base, data in self.appended.items() if base >= start}
        last = expected[max(expected)] if expected else b""
        assert not last or end == list(iter_headers(last))[-1][1].end_offset
        assert await self.read_all(start, end) == b"".join(expected[base] for base in sorted(expected))


KEY = TopicIdPartition(TopicId(TOPIC), PartitionIndex(0))


def run_world(directory: Path, scenario: Callable[[World], Coroutine[Any, Any, T]], **options: Any) -> T:
    """Run a scenario in a fresh world."""

    async def main(loop: VirtualLoop) -> T:
        world = World(loop, directory, **options)
        await world.start()
        try:
            return await scenario(world)
        finally:
            await world.stop()

    return run_virtual(main)
