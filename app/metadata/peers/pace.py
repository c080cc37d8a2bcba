"""Whether this broker's own loop is starved, so that the silence of others says little (ADR 0023: L5).

Pure: the lateness of the loop's timers goes in. A loop is starved while it was late for a quarter of the last seconds in all.
One long pause counts as well. A short stall, as of a garbage collection or a slow disk, does not.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 6.0
LATE_S_MIN: Final = 1.5
"""So much lateness within the window is starvation."""
LATE_NOTED_S: Final = 0.05
"""A smaller lateness does not count: timers are that late on a machine that is only busy."""
STARVED_PATIENCE_S: Final = 9.0
"""How long a starved broker waits for a sign of life of another one. Kafka's default of ``broker.session.timeout.ms``."""
NOTES_MAX: Final = 64
"""A loop that is starved comes to few of its timers. There are two a second."""


class Pace:
    """Of one event loop."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=NOTES_MAX)
        """When the loop came late, and by how much."""

    def came(self, due_s: float, now_s: float) -> None:
        """The loop came at ``now_s`` to a timer that was due at ``due_s``."""
        late_s = now_s - due_s
        if late_s >= LATE_NOTED_S:
            self._late.append((now_s, late_s))

    def is_starved(self, now_s: float) -> bool:
        late = self._late
        while late and late[0][0] <= now_s - WINDOW_S:
            late.popleft()
        return sum(late_s for _, late_s in late) >= LATE_S_MIN
