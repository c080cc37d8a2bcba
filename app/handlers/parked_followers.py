"""How long fetches of followers wait: long only where nothing happens (ADR 0024, V10)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

HEARD_S: Final = 10.0
"""So long after a change of leaders every broker is taken to have heard of it."""
RESTLESS_MS: Final = 500
"""How long a fetch waits at most while something is under way that does not answer it: Kafka's ``replica.fetch.wait.max.ms``."""


class ParkedFollowers:
    """Fetches of followers that wait at this broker. Belongs to one loop.

    A connection takes no further request while one waits. So what a follower newly follows of this broker is asked for only once
    the fetch before is answered.
    """

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._changed_s = -math.inf
        self.waiting: set[Callable[[], None]] = set()
        """To be called when leaders change: the fetch then ends within ``RESTLESS_MS``."""

    @property
    def restless(self) -> bool:
        """Whether a follower may not have heard yet whom it follows."""
        return self._elapsed_s() < self._changed_s + HEARD_S

    def leaders_changed(self) -> None:
        """Partitions have other leaders, or there are other partitions or brokers."""
        self._changed_s = self._elapsed_s()
        for hurry in tuple(self.waiting):
            hurry()
