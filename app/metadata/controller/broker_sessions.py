"""A controller's knowledge of the liveness of brokers (ADR 0023: C5, M5, M7, M13, L1, L2, L4 to L6).

Pure: heartbeats and refused connections go in, with the time on the controller's own monotonic clock. The brokers to fence and
to unfence come out. The owner makes the changes, and passes the brokers of the new image in (``follow``). A controller makes a
new ``BrokerSessions`` when its term begins, so every session begins anew (C5).

Nothing here makes anything safe (L3). A wrong result costs a needless election, or a late one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from app.core.errors import ErrorCode
from app.core.units import BrokerId
from app.metadata.image.image import BrokerImage
from app.metadata.peers.pace import STARVED_PATIENCE_S

SESSION_TIMEOUT_S: Final = 3.0
"""Default of ``broker.session.timeout.ms``."""

TICK_INTERVAL_S: Final = 0.5
PAUSE_S_MIN: Final = 0.6
"""Time beyond a tick interval in which nothing was called. From here on it counts as a pause of the controller (L1)."""

MOST_SILENT_TIMEOUTS: Final = 2
MOST_SILENT_S_MIN: Final = 2 * SESSION_TIMEOUT_S
"""Session time-outs, and time at least, before most of the unfenced brokers are fenced for their silence alone (L4). The others
need time to elect another controller, which does not depend on the session time-out (``candidacy.py``)."""

QUIET_TIMEOUTS: Final = 0.5
"""Part of a session time-out after which a broker counts as silent beside one that is silent for all of it (L4): brokers that are
cut off together have sent their last heartbeats at different times."""

REFUSALS: Final = 3
REFUSALS_WITHIN_S: Final = 0.5
"""So many refused connections within so short a time count as silence (L2)."""

NOTHING_APPLIED: Final = -1


@dataclass(slots=True)
class _Session:
    """A broker under one broker epoch."""

    broker_epoch: int
    alive_s: float
    """When its session began, or was prolonged."""
    pulsed_s: float = -inf
    """When a heartbeat would have come for which its last pulse counts (L6)."""
    fenced: bool = False
    steady_s: float = 0.0
    """Since when it is unfenced without a break, as far as this controller knows."""
    changed_at: int = NOTHING_APPLIED
    """The entry that registered it, or fenced it last (M7)."""
    has_beaten: bool = False
    applied: int = NOTHING_APPLIED
    wal_next: int = 0
    wants_stop: bool = False
    wants_fence: bool = False
    refusals_s: list[float] = field(default_factory=list)
    """The newest, at most ``REFUSALS``."""
    refused_s: float | None = None
    """Since when its address counts as refusing."""

    @property
    def sign_s(self) -> float:
        """The last sign of life, by a heartbeat or a pulse."""
        return max(self.alive_s, self.pulsed_s)

    @property
    def may_be_cut_off(self) -> bool:
        """Whether nothing but its silence speaks for a fence."""
        return not self.wants_fence and self.refused_s is None


class BrokerSessions:
    """Sessions of the registered brokers."""

    def __init__(
        self,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        now_s: float = 0.0,
        *,
        tick_interval_s: float = TICK_INTERVAL_S,
    ) -> None:
        self._session_timeout_s = session_timeout_s
        self._pause_s_min = tick_interval_s + PAUSE_S_MIN
        self._tick_interval_s = tick_interval_s
        self._now_s = now_s
        self.starved = False
        """Whether this controller's own loop is starved: then only a longer silence of a broker counts (L5)."""
        self._sessions: dict[int, _Session] = {}

    # --- events -------------------------------------------------------------------------------------------------------

    def follow(self, brokers: Mapping[int, BrokerImage], now_s: float) -> None:
        """Take over the brokers of the newest image. A broker epoch that was not known begins a session."""
        self._pass_time(now_s)
        for broker_id in self._sessions.keys() - brokers.keys():
            del self._sessions[broker_id]
        for broker_id, broker in brokers.items():
            session = self._sessions.get(broker_id)
            if session is None or session.broker_epoch != broker.broker_epoch:
                session = self._sessions[broker_id] = _Session(broker.broker_epoch, now_s, steady_s=now_s)
            if session.fenced and not broker.fenced:
                session.steady_s = now_s
            session.fenced = broker.fenced
            if broker.fenced:
                session.pulsed_s = -inf
            session.changed_at = broker.changed_at

    def steady_since(self) -> dict[BrokerId, float]:
        """The unfenced brokers, and since when each is without a break. A controller counts from the start of its term (C5)."""
        return {
            BrokerId(broker_id): session.steady_s for broker_id, session in self._sessions.items() if not session.fenced
        }

    def heard(
        self,
        broker_id: int,
        broker_epoch: int,
        now_s: float,
        *,
        applied: int,
        wants_stop: bool = False,
        wants_fence: bool = False,
        wal_next: int = 0,
    ) -> ErrorCode:
        """A heartbeat. ``applied``: number of the newest entry that the broker has applied.

        Returns: NONE, or BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH. Then the heartbeat counts for nothing (M5).
        """
        self._pass_time(now_s)
        session = self._sessions.get(broker_id)
        if session is None:
            return ErrorCode.BROKER_ID_NOT_REGISTERED
        if session.broker_epoch != broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        session.has_beaten = True
        session.alive_s = now_s
        # Heartbeats may overtake each other. Applied entries stay applied, and a broker that stops does not change its mind.
        session.applied = max(session.applied, applied)
        session.wal_next = max(session.wal_next, wal_next)
        session.wants_stop |= wants_stop
        session.wants_fence = wants_fence
        session.refusals_s.clear()
        session.refused_s = None
        return ErrorCode.NONE

    def pulsed(self, broker_id: int, broker_epoch: int, now_s: float, *, turned_ago_s: float) -> ErrorCode:
        """A pulse of a broker whose loop is late, and turned last ``turned_ago_s`` before (L6).

        It counts for an unfenced broker, and for no longer than a heartbeat: until 9 s after the loop turned last, and a session
        time-out more after the last heartbeat. A pulse is no heartbeat: it unfences no broker, ends no refusal, and names no
        applied entry.

        Returns: as ``heard``.
        """
        self._pass_time(now_s)
        session = self._sessions.get(broker_id)
        if session is None:
            return ErrorCode.BROKER_ID_NOT_REGISTERED
        if session.broker_epoch != broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if not session.fenced:
            turned_s = now_s - max(turned_ago_s, 0.0)
            longest_s = min(turned_s - self._session_timeout_s, session.alive_s) + STARVED_PATIENCE_S
            session.pulsed_s = max(session.pulsed_s, min(now_s, longest_s))
        return ErrorCode.NONE

    def refused(self, broker_id: int, broker_epoch: int, now_s: float) -> None:
        """A connection to the broker's address was refused: no process listens there (L2).

        C5 does not hold this back. It is about heartbeats that went to the predecessor, and this controller saw the refusal itself.
        """
        self._pass_time(now_s)
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return
        session.refusals_s = [*session.refusals_s[1 - REFUSALS :], now_s]
        if len(session.refusals_s) == REFUSALS and now_s - session.refusals_s[0] <= REFUSALS_WITHIN_S:
            session.refused_s = now_s

    def tick(self, now_s: float) -> None:
        """To be called every ``tick_interval_s``, so that a pause of the controller's loop is noticed (L1)."""
        self._pass_time(now_s)

    def _pass_time(self, now_s: float) -> None:
        """L1: do not count a pause of the controller as silence of brokers. Every call shows that the loop runs. So the first call
        after a pause finds the pause, even if it is for a heartbeat that waited in a socket."""
        if now_s - self._now_s > self._pause_s_min:
            pause_s = now_s - self._now_s - self._tick_interval_s
            for session in self._sessions.values():
                session.alive_s += pause_s
                session.pulsed_s += pause_s
        self._now_s = max(self._now_s, now_s)

    # --- conclusions --------------------------------------------------------------------------------------------------

    def expired(self, now_s: float) -> list[int]:
        """Unfenced brokers that are to be fenced: silent (L1), refusing (L2), or at their own wish. Named until they are fenced.

        If most of the unfenced brokers are silent at once, it is rather this controller that is cut off. Then the silent ones are
        named later, so that they can elect another controller first (L4).
        """
        self._pass_time(now_s)
        unfenced = [one for one in self._sessions.values() if not one.fenced]
        quiet_s = QUIET_TIMEOUTS * self._session_timeout_s
        quiet = sum(one.may_be_cut_off and one.sign_s + quiet_s <= now_s for one in unfenced)
        most_are_quiet = quiet >= len(unfenced) // 2 + 1
        held_s = max(MOST_SILENT_TIMEOUTS * self._session_timeout_s, MOST_SILENT_S_MIN) if most_are_quiet else 0.0
        return [
            broker_id
            for broker_id, one in self._sessions.items()
            if not one.fenced and self._due_s(one) <= now_s and not (one.may_be_cut_off and now_s < one.sign_s + held_s)
        ]

    def to_unfence(self) -> list[int]:
        """Fenced brokers that are to be unfenced: alive, not about to stop, and with the entry applied that registered or fenced
        them (M7). As of the last call that named a time."""
        return [
            broker_id
            for broker_id, one in self._sessions.items()
            if one.fenced
            and one.has_beaten
            and not one.wants_stop
            and one.applied >= one.changed_at
            and self._due_s(one) > self._now_s
        ]

    def next_deadline_s(self) -> float | None:
        """When ``expired`` may name a broker next, if nothing is heard until then; in the past if one is to be fenced already.
        None: no broker is unfenced."""
        return min((self._due_s(one) for one in self._sessions.values() if not one.fenced), default=None)

    def applied(self, broker_id: int) -> int:
        """Number of the newest entry that the broker has applied, as far as it told this controller."""
        session = self._sessions.get(broker_id)
        return NOTHING_APPLIED if session is None else session.applied

    def wal_next(self, broker_id: int, broker_epoch: int) -> int:
        """The next number of a broker's write-ahead log, as far as it told this controller; 0 if it did not (J19)."""
        session = self._sessions.get(broker_id)
        return 0 if session is None or session.broker_epoch != broker_epoch else session.wal_next

    @property
    def stopping(self) -> frozenset[int]:
        """Brokers that want to stop (M13)."""
        return frozenset(broker_id for broker_id, one in self._sessions.items() if one.wants_stop)

    def _due_s(self, session: _Session) -> float:
        """When the broker is to be fenced."""
        if session.wants_fence:
            return session.alive_s
        if session.refused_s is not None:
            return session.refused_s
        due_s = session.sign_s + self._session_timeout_s
        if self.starved:
            return max(due_s, session.alive_s + STARVED_PATIENCE_S)
        return due_s
