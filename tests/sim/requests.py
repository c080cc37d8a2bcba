"""The way of a model's processes to their store: requests are slow, get lost, stay undecided, or take effect late.

The bucket of whole brokers holds objects (``bucket.py``). A small model holds typed values of its own, and asks for them here.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.process import ModelProcess
from tests.sim.timeline import Timeline


class StoreRequests:
    """A base for the buckets of models. A request takes effect at one moment, no matter what becomes of its sender."""

    latency_ms = (10.0, 50.0)
    """From a request to its response."""
    timeout_ms = 800.0
    """After which a request without a response is given up."""
    late_ms = (300.0, 6000.0)
    """When a request that was given up takes effect after all."""
    loses_responses = True
    """Whether a machine that is cut off gets no response to a request that has arrived."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self.timeline = timeline
        self.rng = rng
        self.away_from: set[int] = set()
        """Machines that cannot reach it."""
        self.undecided_share = 0.0
        self.slow_until_ms = -1.0
        self.slowness = 1.0

    def ask(
        self,
        process: ModelProcess,
        act: Callable[[], Any],
        done: Callable[[Any], None],
        *,
        only_reads: bool = False,
        back: float = 0.5,
    ) -> None:
        """Have ``act`` done in the store, and tell its outcome; or None, if the process does not learn it.

        Args:
            only_reads: an undecided request has no effect then, so the seed does not say which.
            back: the way back, in ways there and back.
        """
        rng = self.rng
        latency_ms = rng.uniform(*self.latency_ms)
        if self.timeline.now_ms < self.slow_until_ms:
            latency_ms *= self.slowness
        if process.node_id in self.away_from:
            self.time_out(process, done)
            return
        if self.undecided_share and rng.random() < self.undecided_share:
            fate = None if only_reads else rng.randrange(3)
            if fate == 0:
                self.timeline.after(latency_ms, act)
            elif fate == 1:
                self.timeline.after(rng.uniform(*self.late_ms), act)
            self.time_out(process, done)
            return

        def arrives() -> None:
            found = act()
            if self.loses_responses and process.node_id in self.away_from:
                self.time_out(process, done)
            else:
                process.after(latency_ms * back, done, found)

        self.timeline.after(latency_ms / 2, arrives)

    def time_out(self, process: ModelProcess, done: Callable[[Any], None]) -> None:
        """The process gives a request up."""
        process.after(self.timeout_ms, done, None)
