"""Waits for requested data, and the tasks that fetch it.

Tests: ``tests/tiering/test_reader.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, NamedTuple

from app.core.errors import StorageUnavailable
from app.core.wake import Wake


class RemoteWait(NamedTuple):
    """No bytes are ready yet."""

    waiters: Wake

    def __call__(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` once, when a new read can make progress. Returns: a function that cancels this."""
        return self.waiters.add(wake)

    async def woken(self) -> None:
        """Wait until a new read can make progress."""
        await self.waiters.wait()


class ReadTasks:
    """The tasks that fetch data for reads. A read never waits for one, and its end cancels none."""

    def __init__(self) -> None:
        self.group: asyncio.TaskGroup | None = None
        """The group that owns the tasks; None before the reader runs, and after it."""

    def spawn(self, work: Coroutine[Any, Any, None], *, context: Context | None = None) -> None:
        """Begin a task, with a copy of the present context unless one is given. Raises: StorageUnavailable if the reader does not
        run."""
        if self.group is None:
            work.close()
            raise StorageUnavailable("The remote reader is not running.")
        self.group.create_task(work, context=context)
