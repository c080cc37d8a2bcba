"""What has begun and how it ends, and the parts that run beside the requests.

Tests: ``tests/broker/test_stages.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self

Run = Callable[[], Coroutine[Any, Any, None]]
"""``run`` of a part: it returns when the part has nothing left to do, or when it is cancelled."""


class Stops:
    """The ends of what has begun. The newest ends first."""

    def __init__(self) -> None:
        self._stops: list[Run] = []

    def begun(self, stop: Run) -> None:
        """A part has begun: ``stop`` ends it before everything that has begun earlier."""
        self._stops.append(stop)

    async def stop(self) -> None:
        """End everything that has begun, each once. Raises: as the end that failed.

        After a failure the earlier parts are left as they are: the marker of a clean stop says that all later parts have ended.
        """
        while self._stops:
            await self._stops.pop()()


class Background:
    """The tasks of the parts, in the order of their start. If one fails, all others are cancelled.

    async with background:
        background.start(part.run)
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._group.__aexit__(kind, error, trace)

    def start(self, run: Run) -> asyncio.Task[None]:
        """Run a part until ``cancel``. Raises: RuntimeError outside the block."""
        task = self._group.create_task(run())
        self._tasks.append(task)
        return task

    def start_all(self, runs: Iterable[Run]) -> None:
        """Run several parts, in this order."""
        for run in runs:
            self.start(run)

    def cancel(self) -> None:
        """End all parts. The block ends when they have ended."""
        for task in self._tasks:
            task.cancel()


def first_error(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group that is not itself a group."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
