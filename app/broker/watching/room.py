"""Watches the free space of the disk, and refuses producers before writes to the file system fail.

Tests: ``tests/broker/test_room.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from app.core.errors import StorageFull, StorageUnavailable, clause
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.seams import BlockingPool, shared_wait_s
from app.handlers.base.context import Context

ROOM_CHECK_S: Final = 1.0


class DiskRoom:
    """The watch of one broker."""

    def __init__(
        self, context: Context, *, pool: BlockingPool, faults: Faults, log_line: Callable[[str], None]
    ) -> None:
        self._context = context
        self._pool = pool
        self._faults = faults
        self._log_line = log_line

    async def run(self) -> None:
        """Look every ``ROOM_CHECK_S``, until cancelled. Returns at once without a limit (firn.log.dir.free.bytes.min)."""
        context = self._context
        data_dir, least = context.config.data_dir, context.config.firn_log_dir_free_bytes_min
        while least > 0:
            try:
                free = await self._pool.run(context.logs.free_bytes)
            except StorageUnavailable as error:
                # The next write will report the fault of the disk.
                self._faults.met_error("reading the free space of", data_dir, error)
                await asyncio.sleep(shared_wait_s(asyncio.get_running_loop().time(), ROOM_CHECK_S))
                continue
            if free < least and context.no_room is None:
                full = StorageFull(
                    f"The disk of {data_dir} has {free} bytes left, below firn.log.dir.free.bytes.min={least}."
                )
                context.refuse_for_room(full)
                sentence = f"{clause(full)}; producers are refused until there is space"
                self._faults.met("finding room in", data_dir, sentence, lasting=True)
            elif free >= least and context.no_room is not None:
                context.refuse_for_room(None)
                self._faults.over("finding room in", data_dir)
                self._log_line(
                    Event.DISK_HAS_SPACE.line(
                        f"the disk of {data_dir} has enough space again; producers are served", directory=data_dir
                    )
                )
            await asyncio.sleep(shared_wait_s(asyncio.get_running_loop().time(), ROOM_CHECK_S))
