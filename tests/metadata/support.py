"""What the tests of the metadata layer share."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from app.core.errors import FencedError
from app.core.units import LogSequence, TimestampMs
from app.metadata.log.log_format import Entry, Versioned, encode_key, encode_value
from app.metadata.log.numbered_log import LogTimings, NumberedLog
from app.metadata.membership.membership import Membership
from app.objectstore.api import ObjectStore
from app.objectstore.memory import MemoryStore
from tests.support.virtual_loop import VirtualClock, VirtualLoop, run_virtual


class FixedClock:
    """A clock that stands still until told otherwise."""

    def __init__(self, now_ms: int = 1_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.time_ms)


class Number(Versioned, array_like=True, frozen=True):
    """A value for tests."""

    number: int


def key(name: object) -> bytes:
    return encode_key(16, name)


def value(number: int) -> bytes:
    return encode_value(Number(1, number))


class Replay:
    """A LogState that keeps the newest record of every key by itself, as the oracle of the log's own bookkeeping."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.ready_through: int | None = None
        self.entries: list[Entry] = []

    def load(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        assert self.ready_through is None
        self.records.update(records)

    def loaded(self, sequence: LogSequence) -> None:
        assert self.ready_through is None
        self.ready_through = sequence

    def apply(self, entry: Entry) -> None:
        self.entries.append(entry)
        for record_key, record_value in entry.records:
            if record_value is None:
                self.records.pop(record_key, None)
            else:
                self.records[record_key] = record_value


QUICK = LogTimings(append_deadline_s=30.0, attempt_timeout_s=5.0, read_deadline_s=30.0)


def make_log(
    store: ObjectStore, writer_id: str, *, prefix: str = "cluster", epoch: int = 0, seed: int = 1
) -> NumberedLog[Replay]:
    return NumberedLog(
        store,
        prefix,
        writer_id=writer_id,
        rng=random.Random(f"{writer_id}{seed}"),
        clock=FixedClock(),
        new_state=Replay,
        epoch=epoch,
        timings=QUICK,
    )


def on_virtual_time(main: Callable[[VirtualLoop, MemoryStore], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a virtual loop, with a store in memory whose clock is the loop's."""

    async def run(loop: VirtualLoop) -> None:
        await main(loop, MemoryStore(VirtualClock(loop), random.Random(7)))

    run_virtual(run)


@asynccontextmanager
async def running(member: Membership) -> AsyncIterator[Membership]:
    """A started member, whose work goes on until the block is left. Then it leaves."""
    await member.start()
    task = asyncio.create_task(member.run())
    try:
        yield member
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, FencedError):
            raise error
    await member.leave()


def requests_of(store: MemoryStore, start: int = 0) -> Mapping[str, int]:
    """Requests by operation since history position ``start``."""
    return Counter(operation.operation for operation in list(store.history)[start:])


def uuid_of(number: int) -> UUID:
    return UUID(int=number)


__all__ = [
    "QUICK",
    "FixedClock",
    "Number",
    "Replay",
    "key",
    "make_log",
    "on_virtual_time",
    "requests_of",
    "running",
    "uuid_of",
    "value",
]
