"""Keeps the high watermarks of partitions with several replicas in the data directory (ADR 0024, A4).

Tests: ``tests/broker/test_high_watermarks.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from app.core.faults import Faults
from app.core.log_events import Event
from app.core.seams import BlockingPool
from app.core.turns import Portion
from app.core.units import TopicIdPartition
from app.hot.high_watermarks import HIGH_WATERMARKS_FILE, encode_high_watermarks, parse_high_watermarks
from app.machine.files import FileSystem, read_file, replace_file
from app.replication.partition import PartitionTable
from app.replication.roles import Role

EVERY_S: Final = 5.0
"""``replica.high.watermark.checkpoint.interval.ms``."""


class HighWatermarks:
    """Belongs to one event loop. ``read`` at the start, keep ``run`` running, ``write`` at the end."""

    def __init__(
        self,
        table: PartitionTable,
        directory: str,
        *,
        fs: FileSystem,
        pool: BlockingPool,
        faults: Faults,
        interval_s: float = EVERY_S,
    ) -> None:
        """``directory``: Firn's own folder in the data directory. ``interval_s``: time between two writes."""
        self._interval_s = interval_s
        self._table = table
        self._directory = directory
        self._path = f"{directory}/{HIGH_WATERMARKS_FILE}"
        self._fs = fs
        self._pool = pool
        self._faults = faults
        self._one_at_a_time = asyncio.Lock()
        self._written: dict[TopicIdPartition, int] = {}

    async def read(self) -> dict[TopicIdPartition, int]:
        """Return the high watermarks that the last run has left; none if they cannot be read."""

        def read() -> bytes:
            try:
                return read_file(self._fs, self._path)
            except FileNotFoundError:
                return b""

        try:
            return parse_high_watermarks(await self._pool.run(read))
        except OSError as error:
            self._faults.met(
                "reading", HIGH_WATERMARKS_FILE, Event.LOG_DIRECTORY_FAILED.line(f"cannot read {self._path}: {error}")
            )
            return {}

    async def run(self) -> None:
        """Write every ``interval_s``, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.write()

    async def write(self) -> None:
        """Write the changed high watermarks. A failure is logged: the older file is true as well."""
        async with self._one_at_a_time:
            await self._write({})

    async def lower(self, key: TopicIdPartition, offset: int) -> bool:
        """Write that the committed records of a partition end at ``offset``, before it is cut back to there. Records that are
        appended there later must not count as committed after a crash (A4). Cut it back before anything else is awaited.

        Returns: whether it is durable.
        """
        async with self._one_at_a_time:
            return await self._write({key: offset})

    async def _write(self, lowered: Mapping[TopicIdPartition, int]) -> bool:
        now: dict[TopicIdPartition, int] = {}
        portion = Portion()
        waiting = list(self._table)
        while waiting:  # without those that are done, so that a deleted topic is not freed in one turn
            partition = waiting.pop()
            if not partition.commits_alone and partition.role is not Role.OFFLINE:
                now[partition.key] = int(partition.log.high_watermark)
            if portion.spent_by():
                await portion.rest()
        now.update(lowered)
        if now == self._written:
            return True

        def write() -> None:
            self._fs.make_dirs(self._directory)
            replace_file(self._fs, self._path, encode_high_watermarks(now), durable=True)

        try:
            await self._pool.run(write)
        except OSError as error:
            self._faults.met(
                "writing", HIGH_WATERMARKS_FILE, Event.LOG_DIRECTORY_FAILED.line(f"cannot write {self._path}: {error}")
            )
            return False
        self._written = now
        return True
