"""Links between the machines of a model: they delay, lose, double and hold back messages, and are cut in one direction or both.

The network of whole brokers carries bytes of connections (``network.py``). A small model sends typed messages.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.sim.timeline import Timeline


class Links:
    """A base for the networks of models."""

    delay_ms = (1.0, 8.0)
    """Of a message on a quiet link."""
    late_ms = (200.0, 6000.0)
    """Of a message that is late."""
    held_share = 0.5
    """Of the messages to a link that is cut. They are in a buffer of a socket, and arrive if the connection lives so long."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self.timeline = timeline
        self.rng = rng
        self.cut: set[tuple[int, int]] = set()
        """Pairs (from, to) that messages do not pass."""
        self.cut_off: set[int] = set()
        """Machines that reach no other one, and are reached by none."""
        self.lost_share = 0.0
        self.late_share = 0.0
        self.doubled_share = 0.0
        self._held: list[tuple[int, int, Callable[[], None]]] = []

    def is_cut(self, source: int, to: int) -> bool:
        if (source, to) in self.cut:
            return True
        return source != to and (source in self.cut_off or to in self.cut_off)

    def send(self, source: int, to: int, deliver: Callable[[], None], *, doubles: bool = False) -> None:
        """Call ``deliver`` once the message is there; never, if it is lost. ``doubles``: it may arrive twice."""
        rng = self.rng
        if self.is_cut(source, to):
            if self.held_share and rng.random() < self.held_share:
                self._held.append((source, to, deliver))
            return
        if self.lost_share and rng.random() < self.lost_share:
            return
        delay_ms = rng.uniform(*self.delay_ms)
        if self.late_share and rng.random() < self.late_share:
            delay_ms = rng.uniform(*self.late_ms)
        self.timeline.after(delay_ms, deliver)
        if doubles and self.doubled_share and rng.random() < self.doubled_share:
            self.timeline.after(delay_ms + rng.uniform(*self.late_ms), deliver)

    def heal(self) -> None:
        """Every link works, and carries what was held back."""
        self.cut.clear()
        self.cut_off.clear()
        self.lost_share = self.late_share = self.doubled_share = 0.0
        self.release()

    def release(self) -> None:
        """Deliver what was held back by cuts that are over."""
        held, self._held = self._held, []
        for source, to, deliver in held:
            if self.is_cut(source, to):
                self._held.append((source, to, deliver))
            else:
                self.timeline.after(self.rng.uniform(*self.delay_ms), deliver)
