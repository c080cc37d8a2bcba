"""How long fetches of followers wait: long only where nothing happens (ADR 0024, V10).

Tests: ``tests/handlers/test_followers.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

HEARD_S: Final = 10.0
"""So long after a change of leaders every broker is taken to have heard of it."""
RESTLESS_MS: Final = 500
"""How long a fetch waits at most while something is under way that does not answer it: Kafka's ``replica.fetch.wait.max.ms``."""
EXPECTING_S: Final = 1.0
"""So long after a broker begins to lead partitions, followers are expected that ask for them for the first time."""
EXPECTING_MS: Final = 20
"""Limit of a fetch's wait meanwhile: the new leader's records are committed only when all replicas in sync have fetched them."""


class ParkedFollowers:
    """Fetches of followers that wait at this broker. Belongs to one loop.

    A connection takes no further request while one waits. So a follower asks for a partition that it newly follows only once the
    fetch before is answered.
    """

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._changed_s = -math.inf
        self._led_s = -math.inf
        self.waiting: dict[Callable[[int], None], None] = {}
        """To be called when leaders change, in the order in which they came: the fetch then ends within so many milliseconds."""

    @property
    def expecting(self) -> bool:
        """Whether followers are about to ask for partitions that this broker has just begun to lead."""
        return self._elapsed_s() < self._led_s + EXPECTING_S

    @property
    def restless(self) -> bool:
        """Whether a follower may not have heard of its leader yet."""
        return self._elapsed_s() < self._changed_s + HEARD_S

    def wait_ms(self, wait_ms: int, *, restless: bool) -> int:
        """The wait of a follower's fetch in milliseconds, at most ``wait_ms``. ``restless``: the follower has yet to hear of
        changes that do not end the wait by themselves."""
        if self.expecting:
            return min(wait_ms, EXPECTING_MS)
        return min(wait_ms, RESTLESS_MS) if restless or self.restless else wait_ms

    def leaders_changed(self) -> None:
        """Partitions have other leaders, or there are other partitions or brokers."""
        self._changed_s = self._elapsed_s()
        self._hurry(RESTLESS_MS)

    def began_to_lead(self) -> None:
        """This broker leads a partition that others follow, or leads it under another epoch."""
        expecting = self.expecting
        self._led_s = self._elapsed_s()
        if not expecting:  # else the waiting fetches have a short wait already
            self._hurry(EXPECTING_MS)

    def _hurry(self, wait_ms: int) -> None:
        for hurry in tuple(self.waiting):
            hurry(wait_ms)
