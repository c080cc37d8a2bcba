"""The owner of a write-ahead log: puts the objects that the writer cuts, and reports acknowledged ones. A thin shell around
``WalWriter``.

Tests: ``tests/wal/test_shells.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from app.core.errors import CorruptionError, FirnError, StorageUnavailable, copy_of, without_frames
from app.core.seams import Clock
from app.metadata.log.append_attempt import PutOutcome, ReadOutcome
from app.objectstore.api import AlreadyExists, ObjectMissing, ObjectStore
from app.wal.format import WalFooter
from app.wal.objects import put, read_footer
from app.wal.writer import Action, Done, DurableObject, Put, ReadBack, WalWriter


class WalOwner:
    """Belongs to one event loop. Keep ``run`` running; call ``wake`` after each turn that has appended to the writer."""

    def __init__(
        self,
        writer: WalWriter,
        store: ObjectStore,
        clock: Clock,
        rng: Random,
        on_acknowledged: Callable[[DurableObject], None],
    ) -> None:
        """``on_acknowledged`` is called with each object that counts, in the order of numbers. It must not raise."""
        self._writer = writer
        self._store = store
        self._clock = clock
        self._rng = rng
        self._on_acknowledged = on_acknowledged
        self._changed = asyncio.Event()
        self._failure: FirnError | None = None

    def wake(self) -> None:
        """Something was appended, or a partition was stopped."""
        self._changed.set()

    async def run(self) -> None:
        """Write until the log has ended, and everything below its end is acknowledged: then another broker epoch goes on (J14).

        Raises: FencedError if another process writes the log, CorruptionError. Cancel it to stop; puts on their way stay undecided.
        """
        loop = asyncio.get_running_loop()
        under_way: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as group:
                while self._writer.sealed_at is None and self._failure is None:
                    self._changed.clear()
                    now_ms = int(loop.time() * 1000)
                    while (begun := self._writer.cut(now_ms, self._clock.now_ms())) is not None:
                        task = group.create_task(self._make_durable(begun))
                        under_way.add(task)
                        task.add_done_callback(under_way.discard)
                    cut_ms = self._writer.cut_ms
                    wait_s = None if cut_ms is None else max(0.0, cut_ms / 1000 - loop.time()) + 0.001
                    try:
                        async with asyncio.timeout(wait_s):
                            await self._changed.wait()
                    except TimeoutError:
                        continue
                if self._failure is not None:
                    for task in under_way:
                        task.cancel()
        finally:
            self._tell()
        if self._failure is not None:
            raise copy_of(self._failure)

    def _tell(self) -> None:
        for durable in self._writer.take_acknowledged():
            self._on_acknowledged(durable)

    async def _make_durable(self, action: Action) -> None:
        """Carry out the writer's actions for one number, until nothing is left to do (J3)."""
        try:
            while not isinstance(action, Done) and self._writer.wants(action.number):
                if action.delay_s:
                    await asyncio.sleep(action.delay_s * self._rng.uniform(0.5, 1.0))
                    if not self._writer.wants(action.number):
                        break
                action = await self._step(action)
        except FirnError as error:
            self._failure = without_frames(error)
        self._tell()
        self._changed.set()

    async def _step(self, action: Put | ReadBack) -> Action:
        number = action.number
        if isinstance(action, Put):
            try:
                await put(self._store, self._writer.wal, number, self._writer.bytes_of(number))
                outcome = PutOutcome.WRITTEN
            except AlreadyExists:
                outcome = PutOutcome.EXISTS
            except StorageUnavailable:
                outcome = PutOutcome.UNDECIDED
            return self._writer.on_put(number, outcome) if self._writer.wants(number) else Done(number)
        found: WalFooter | ReadOutcome
        try:
            found = await read_footer(self._store, self._writer.wal, number)
        except ObjectMissing:
            found = ReadOutcome.MISSING
        except StorageUnavailable:
            found = ReadOutcome.UNDECIDED
        except CorruptionError:
            found = ReadOutcome.CORRUPT
        return self._writer.on_read(number, found) if self._writer.wants(number) else Done(number)
