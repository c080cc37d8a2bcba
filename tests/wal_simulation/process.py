"""A process on a machine: it may be killed or paused at any event. Whatever comes in a pause comes after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.timeline import Timeline


class Process:
    """What broker processes are made of."""

    def __init__(self, timeline: Timeline, node_id: int, incarnation: int, rng: Random) -> None:
        self.timeline = timeline
        self.node_id = node_id
        self.incarnation = incarnation
        self.rng = rng
        self.alive = True
        self._paused_until_ms = -1.0
        self.steps: Counter[str] = Counter()
        """What is under way: how often each step has begun and not ended."""

    def step(self, name: str, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """``done``, which ends a step that begins now."""
        self.steps[name] += 1

        def ended(found: Any) -> None:
            self.steps[name] -= 1
            done(found)

        return ended

    def after(self, delay_ms: float, do: Callable[..., None], *args: Any) -> None:
        """Call ``do(*args)`` in ``delay_ms``, if the process lives then."""
        self.timeline.after(delay_ms, self._run, do, args)

    def _run(self, do: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        left_ms = self._paused_until_ms - self.timeline.now_ms
        if left_ms > 0:
            self.timeline.after(left_ms, self._run, do, args)
        else:
            do(*args)

    def pause(self, for_ms: float) -> None:
        """SIGSTOP, and SIGCONT after ``for_ms``."""
        self._paused_until_ms = max(self._paused_until_ms, self.timeline.now_ms + for_ms)

    def repeat(self, every_ms: tuple[float, float], do: Callable[[], None]) -> None:
        """Call ``do`` again and again."""

        def tick() -> None:
            do()
            self.after(self.rng.uniform(*every_ms), tick)

        self.after(self.rng.uniform(0, every_ms[1]), tick)

    @property
    def now_ms(self) -> float:
        return self.timeline.now_ms

    def until_known(self, ask: Callable[[Callable[[Any], None]], None], done: Callable[[Any], None]) -> None:
        """Ask the store, and again until it answers. What is asked may be repeated."""

        def answered(found: Any) -> None:
            if found is None:
                self.after(self.rng.uniform(50, 200), ask, answered)
            else:
                done(found)

        ask(answered)
