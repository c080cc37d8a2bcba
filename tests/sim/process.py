"""A process of a small model: it may be killed or paused between two events. All that comes in a pause comes after it, in order.

The processes of whole brokers run on a loop (``loop.py``). This one runs on a ``Timeline``, which has callbacks and no tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.timeline import Timeline


class ModelProcess:
    """A base for the processes of brokers. After its death nothing of it is called any more."""

    def __init__(self, timeline: Timeline, node_id: int, rng: Random) -> None:
        """``node_id``: of the machine on which it runs."""
        self.timeline = timeline
        self.node_id = node_id
        self.rng = rng
        self.alive = True
        self.paused = False
        self._paused_until_ms = 0.0
        self._backlog: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    @property
    def now_ms(self) -> float:
        """A clock that never steps."""
        return self.timeline.now_ms

    def after(self, delay_ms: float, do: Callable[..., Any], *args: Any) -> None:
        """Call ``do(*args)`` in ``delay_ms``, if the process lives and runs then."""
        self.timeline.after(delay_ms, self.post, do, *args)

    def post(self, do: Callable[..., Any], *args: Any) -> None:
        """Call ``do(*args)`` now, or when the process goes on."""
        if not self.alive:
            return
        if self.paused:
            self._backlog.append((do, args))
        else:
            do(*args)

    def pause(self, for_ms: float) -> None:
        """Stand still as by SIGSTOP, until SIGCONT after ``for_ms``. A second pause can only make the first one longer."""
        until_ms = self.timeline.now_ms + for_ms
        if until_ms > self._paused_until_ms:
            self.paused = True
            self._paused_until_ms = until_ms
            self.timeline.after(for_ms, self._go_on)

    def goes_on(self) -> None:
        """A pause is over. For those who note it."""

    def _go_on(self) -> None:
        if self.timeline.now_ms < self._paused_until_ms:
            return  # it was made longer
        self.paused = False
        self.goes_on()
        backlog, self._backlog = self._backlog, []
        for do, args in backlog:
            self.post(do, *args)
