"""High watermarks in the data directory: what a start finds after a stop, a crash at any step, and a cut (ADR 0024, A3, A4)."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from app.broker.replication.high_watermark_file import HighWatermarks
from app.core.faults import Faults
from app.core.units import PartitionIndex, TopicId, TopicIdPartition
from app.hot.high_watermarks import HIGH_WATERMARKS_FILE
from app.machine.files import replace_file
from app.replication.roles import Role
from tests.support.simfs import SimFileSystem

ONE = TopicIdPartition(TopicId(UUID(int=1)), PartitionIndex(0))
OTHER = TopicIdPartition(TopicId(UUID(int=1)), PartitionIndex(1))


class Pool:
    """Runs everything at once."""

    async def run(self, work: Any) -> Any:
        return work()


class Broker:
    """One machine: its partitions and its disk."""

    def __init__(self) -> None:
        self.fs = SimFileSystem(random.Random(1))
        self.fs.make_dirs("/data/.firn")
        for path in ("/", "/data"):
            self.fs.fsync_dir(path)
        self.logs = {ONE: SimpleNamespace(high_watermark=0), OTHER: SimpleNamespace(high_watermark=0)}
        self.kept = self.started()

    def started(self) -> HighWatermarks:
        table: Any = [
            SimpleNamespace(key=key, log=log, commits_alone=False, role=Role.FOLLOWER) for key, log in self.logs.items()
        ]
        self.lines: list[str] = []
        faults = Faults(self.lines.append, lambda: 0.0)
        return HighWatermarks(table, "/data/.firn", fs=self.fs, pool=Pool(), faults=faults)  # type: ignore[arg-type]

    async def found_after_a_loss_of_power(self) -> dict[TopicIdPartition, int]:
        self.fs.crash()
        return await self.started().read()


async def test_what_was_written_is_found_after_a_loss_of_power() -> None:
    broker = Broker()
    assert await broker.kept.read() == {}
    broker.logs[ONE].high_watermark = 7
    await broker.kept.write()
    broker.logs[ONE].high_watermark = 9
    assert await broker.found_after_a_loss_of_power() == {ONE: 7, OTHER: 0}


async def test_a_lowered_high_watermark_is_durable_before_the_log_is_cut() -> None:
    broker = Broker()
    broker.logs[ONE].high_watermark, broker.logs[OTHER].high_watermark = 9, 4
    await broker.kept.write()
    assert await broker.kept.lower(ONE, 5)
    assert broker.logs[ONE].high_watermark == 9  # the owner cuts the log now, and loses power instead
    assert await broker.found_after_a_loss_of_power() == {ONE: 5, OTHER: 4}


async def test_what_grows_after_a_cut_counts_as_committed_only_once_it_was_written() -> None:
    broker = Broker()
    broker.logs[ONE].high_watermark = 9
    await broker.kept.write()
    assert await broker.kept.lower(ONE, 5)
    broker.logs[ONE].high_watermark = 5
    await broker.kept.write()
    broker.logs[ONE].high_watermark = 8
    assert (await broker.found_after_a_loss_of_power())[ONE] == 5
    await broker.kept.write()
    assert (await broker.found_after_a_loss_of_power())[ONE] == 8


async def test_a_lowering_that_cannot_be_written_is_refused_and_the_older_file_stays() -> None:
    broker = Broker()
    broker.logs[ONE].high_watermark = 9
    await broker.kept.write()

    def full(*_: object) -> None:
        raise OSError(28, "no space")

    broker.fs.make_dirs = full  # type: ignore[method-assign]
    assert not await broker.kept.lower(ONE, 5)
    assert await broker.found_after_a_loss_of_power() == {ONE: 9, OTHER: 0}


async def test_a_write_of_before_does_not_undo_a_lowering() -> None:
    """The pool holds the periodic write back; the lowering waits for its turn."""
    broker = Broker()
    broker.logs[ONE].high_watermark = 9
    go_on = asyncio.Event()

    class Slow:
        async def run(self, work: Any) -> Any:
            await go_on.wait()
            return work()

    broker.kept._pool = Slow()  # type: ignore[assignment]
    async with asyncio.TaskGroup() as group:
        group.create_task(broker.kept.write())
        await asyncio.sleep(0)
        lowered = group.create_task(broker.kept.lower(ONE, 5))
        await asyncio.sleep(0)
        assert not lowered.done()
        go_on.set()
    assert lowered.result()
    assert (await broker.found_after_a_loss_of_power())[ONE] == 5


@pytest.mark.parametrize("damage", [b"", b"abc", b"\0\0\0\0rest"])
async def test_a_damaged_file_counts_as_absent(damage: bytes) -> None:
    broker = Broker()
    broker.logs[ONE].high_watermark = 9
    await broker.kept.write()
    path = f"/data/.firn/{HIGH_WATERMARKS_FILE}"
    replace_file(broker.fs, path, damage, durable=True)
    assert await broker.kept.read() == {}
