"""Callers who lost the race for the end of the log three times in a row are admitted alone for a moment (ADR 0041, SR10). Pure.

Without this, a bulk import moves the end between every read and write of another process. A reservation is a courtesy: the
condition on the end stays the only rule that keeps ids unique. Tests: ``tests/schemas/test_reservations.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

LOSSES_MAX: Final = 3
RESERVED_MS: Final = 200
"""How long a caller is admitted alone. Its next read and write take some milliseconds."""
REST_MS: Final = 800
"""How long a caller who let a reservation pass unused gets no other one. So false losses hold the others up for a fifth of the
time at most."""
CALLERS_MAX: Final = 1_000
"""Callers whose losses are counted. The one that lost longest ago is forgotten first."""


class Reservations:
    """How often each caller lost a race for the end of the log, and the caller for which the log is reserved."""

    __slots__ = ("_holder", "_losses", "_resting", "_until_ms")

    def __init__(self) -> None:
        self._losses: OrderedDict[Hashable, int] = OrderedDict()
        self._holder: Hashable | None = None
        self._until_ms = 0
        self._resting: OrderedDict[Hashable, int] = OrderedDict()
        """By caller who let a reservation pass: the time until which it gets no other one."""

    def wait_ms(self, caller: Hashable, now_ms: int) -> int:
        """How long ``caller`` has to wait because another one is admitted alone; 0 if it need not."""
        self._pass(now_ms)
        return 0 if self._holder in (None, caller) else self._until_ms - now_ms

    def lost(self, caller: Hashable, now_ms: int) -> bool:
        """Count that the log did not end where ``caller`` expected. Returns: whether it is admitted alone from now on."""
        self._pass(now_ms)
        losses = self._losses.pop(caller, 0) + 1
        self._losses[caller] = losses
        if len(self._losses) > CALLERS_MAX:
            self._losses.popitem(last=False)
        if self._holder is not None or losses < LOSSES_MAX or self._resting.get(caller, now_ms) > now_ms:
            return False
        self._holder, self._until_ms = caller, now_ms + RESERVED_MS
        return True

    def won(self, caller: Hashable) -> None:
        """Note that ``caller`` has appended. Its losses are forgotten, and its reservation ends."""
        self._losses.pop(caller, None)
        self._resting.pop(caller, None)
        if self._holder == caller:
            self._holder = None

    def _pass(self, now_ms: int) -> None:
        holder = self._holder
        if holder is None or now_ms < self._until_ms:
            return
        self._holder = None
        self._losses.pop(holder, None)
        self._resting.pop(holder, None)
        self._resting[holder] = self._until_ms + REST_MS
        if len(self._resting) > CALLERS_MAX:
            self._resting.popitem(last=False)
