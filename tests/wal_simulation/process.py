"""A process of this world, and what is under way in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.process import ModelProcess
from tests.sim.timeline import Timeline


class Process(ModelProcess):
    """What broker processes are made of."""

    def __init__(self, timeline: Timeline, node_id: int, incarnation: int, rng: Random) -> None:
        super().__init__(timeline, node_id, rng)
        self.incarnation = incarnation
        self.steps: Counter[str] = Counter()
        """What is under way: how often each step has begun and not ended."""

    def step(self, name: str, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """``done``, which ends a step that begins now."""
        self.steps[name] += 1

        def ended(found: Any) -> None:
            self.steps[name] -= 1
            done(found)

        return ended

    def repeat(self, every_ms: tuple[float, float], do: Callable[[], None]) -> None:
        """Call ``do`` again and again."""

        def tick() -> None:
            do()
            self.after(self.rng.uniform(*every_ms), tick)

        self.after(self.rng.uniform(0, every_ms[1]), tick)

    def until_known(self, ask: Callable[[Callable[[Any], None]], None], done: Callable[[Any], None]) -> None:
        """Ask the store, and again until it answers. What is asked may be repeated."""

        def answered(found: Any) -> None:
            if found is None:
                self.after(self.rng.uniform(50, 200), ask, answered)
            else:
                done(found)

        ask(answered)
