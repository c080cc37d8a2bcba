"""Simulated processes on one virtual loop: each can be stopped dead between two steps, as ``kill -9`` does.

Whatever a process starts (tasks, timers, callbacks) carries the process in its context variables. Killing it takes all of that
out of the loop and keeps it: no ``finally`` runs, nothing is cleaned up, as if the power of the process were cut. What was
taken out is put back only after the run, when nothing is looked at any more, so that Python may end it without complaint.

Tasks hash by a running number instead of their address, because asyncio keeps them in sets: the same seed must cancel them in
the same order on every machine.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from tests.support.virtual_loop import VirtualLoop


class ProcessDied(BaseException):
    """The process that runs this was killed in the middle of a step. Nothing of it may go on."""


CURRENT: ContextVar[Process | None] = ContextVar("CURRENT", default=None)


class Process:
    """One process of the simulation; the simulation's own tasks and its network belong to none."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.dead = False
        self.buried = False
        self.paused = False
        self.frozen: list[asyncio.Handle] = []
        self.sleeping: list[asyncio.TimerHandle] = []
        """Timers of a paused process."""
        self.kept: list[asyncio.Task[Any]] = []
        """Tasks of a dead process: kept, so that nobody finalises them while the run goes on."""
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.create_task(work, context=self.context.copy())

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> None:
        """Call something as a part of this process. A dead one does not hear of it."""
        if not self.dead:
            self.loop.call_at(when_s, callback, *args, context=self.context)

    def kill(self) -> None:
        """Nothing of the process runs from now on. May be called from within a step of it, which must raise ProcessDied."""
        self.dead = True
        loop = self.loop
        self.kept = [task for task in asyncio.all_tasks(loop) if isinstance(task, SimTask) and task.owner is self]
        self._take_out_ready()
        self.sleeping.clear()
        loop._scheduled[:] = [one for one in loop._scheduled if one._context.get(CURRENT) is not self]
        heapq.heapify(loop._scheduled)

    def pause(self) -> None:
        """The process stands still, as by SIGSTOP: none of its steps is made, and all clocks go on."""
        assert not self.paused
        self.paused = True
        self._take_out_ready()
        loop = self.loop
        self.sleeping = [one for one in loop._scheduled if one._context.get(CURRENT) is self]
        for timer in self.sleeping:
            timer._scheduled = False
        loop._scheduled[:] = [one for one in loop._scheduled if one._context.get(CURRENT) is not self]
        heapq.heapify(loop._scheduled)

    def resume(self) -> None:
        """It goes on, as by SIGCONT, with all that has become due."""
        if not self.paused:
            return
        self.paused = False
        if self.dead:
            return
        self.loop._ready.extend(self.frozen)
        self.frozen.clear()
        for timer in self.sleeping:
            if not timer.cancelled():
                heapq.heappush(self.loop._scheduled, timer)
                timer._scheduled = True
        self.sleeping.clear()

    def _take_out_ready(self) -> None:
        nothing = asyncio.Handle(lambda: None, (), self.loop)
        nothing.cancel()
        for place, handle in enumerate(self.loop._ready):
            if handle._context.get(CURRENT) is self:
                self.frozen.append(handle)
                self.loop._ready[place] = nothing  # the loop counts on their number

    def check(self) -> None:
        """Raises: ProcessDied if it is dead."""
        if self.dead:
            raise ProcessDied(self.name)


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task with an order."""

    _count = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SimTask._count += 1
        self._number = SimTask._count
        context: Context | None = kwargs.get("context")
        self.owner = CURRENT.get() if context is None else context.get(CURRENT)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class SimLoop(VirtualLoop):
    """A virtual loop that knows whose every callback is."""

    def __init__(self, *, seconds_max: float = 1e7) -> None:
        super().__init__(seconds_max=seconds_max)
        SimTask._count = 0
        self.set_task_factory(lambda loop, work, **kwargs: SimTask(work, loop=loop, **kwargs))

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        owner = CURRENT.get() if context is None else context.get(CURRENT)
        handle = asyncio.Handle(callback, args, self, context)
        if owner is not None and (owner.paused or owner.dead) and not owner.buried:
            owner.frozen.append(handle)
        else:
            self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        owner = CURRENT.get() if context is None else context.get(CURRENT)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if owner is not None and owner.paused and not owner.dead:
            owner.sleeping.append(handle)
        elif owner is None or not owner.dead:
            heapq.heappush(self._scheduled, handle)
            handle._scheduled = True
        return handle

    def bury(self, processes: list[Process]) -> None:
        """After the run: let every task end, so that nothing is left to the garbage collector. Nobody looks any more."""
        self.set_exception_handler(lambda _loop, _context: None)
        for process in processes:
            if not process.dead:
                process.kill()
            process.buried = True
            self._ready.extend(process.frozen)
            process.frozen.clear()
        self._scheduled.clear()
        for _ in range(50):
            left = asyncio.all_tasks(self)
            if not left:
                return
            for task in left:
                task.cancel()
            self.run_until_complete(self._some_steps())
            self._scheduled.clear()
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    @staticmethod
    async def _some_steps() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
