"""Share sessions: they remember the partitions of each member, so that requests need not repeat them (KIP-932). Pure.

As in fetch sessions, an epoch counts the requests: 0 begins a session, -1 ends it, and any other value must be the next one. A
session belongs to a member. It ends with its connection, so that other members can get the member's records at once.

Tests: ``tests/groups/test_share.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from app.configs import BrokerConfig
from app.configs.numbers import INT_MAX
from app.core.errors import ErrorCode, RequestRejected
from app.core.wake import Wake

FIRST: Final = 0
FINAL: Final = -1

PLACES_MAX: Final = 1_000_000
"""Maximum partitions in all sessions together, as in fetch sessions: a member may name partitions that do not exist."""

Place = tuple[UUID, int]
"""Topic id and partition."""


class ShareSession:
    """The session of one member."""

    __slots__ = ("epoch", "gives_back", "is_over", "on_end", "over", "places", "turn", "used_ms")

    def __init__(self, now_ms: int) -> None:
        self.is_over = False
        self.gives_back = False
        """Whether the session has ended, so that its member's records are released. Not set if a new session of the member
        replaced it."""
        self.on_end: Callable[[], None] | None = None
        """Called once, when the session ends."""
        self.over = Wake()
        self.used_ms = now_ms
        """Time of the last request."""
        self.epoch = 1
        """Epoch of the next expected request."""
        self.places: dict[Place, None] = {}
        """The partitions, in the order in which they were added."""
        self.turn = 0
        """Index of the first partition to serve. It changes each time."""

    def end(self, *, gives_back: bool) -> None:
        """End the session."""
        if self.is_over:
            return
        self.is_over, self.gives_back = True, gives_back
        if self.on_end is not None:
            self.on_end()
        self.over.wake()

    def in_turn(self) -> list[Place]:
        """The partitions, starting at another index each time, so that none starves."""
        places = list(self.places)
        if not places:
            return places
        start = self.turn % len(places)
        self.turn += 1
        return places[start:] + places[:start]


class ShareSessions:
    """All sessions of a broker, by group and member."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._of_group: dict[str, dict[ShareSession, None]] = {}
        self._places = 0
        """Number of partitions in all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, group_id: str, member_id: str, now_ms: int) -> ShareSession:
        """Begin a session, which replaces the member's old one. Raises: RequestRejected SHARE_SESSION_LIMIT_REACHED."""
        key = (group_id, member_id)
        config = self._config()
        if key not in self._sessions and len(self._sessions) >= config.group_share_max_share_sessions:
            self._drop_idle(now_ms - config.group_share_session_timeout_ms)
        if key not in self._sessions and len(self._sessions) >= config.group_share_max_share_sessions:
            raise RequestRejected(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, "The limit of share sessions has been reached."
            )
        before = self._sessions.get(key)
        if before is not None:
            # Its member may still acknowledge its records.
            self._end(before, gives_back=False)
        session = self._sessions[key] = ShareSession(now_ms)
        self._of_group.setdefault(group_id, {})[session] = None
        if before is not None:
            self._forget(group_id, before)
        return session

    def is_read(self, group_id: str, place: Place) -> bool:
        """Whether a session of the group reads a partition."""
        return any(place in session.places for session in self._of_group.get(group_id, ()))

    def _forget(self, group_id: str, session: ShareSession) -> None:
        sessions = self._of_group[group_id]
        del sessions[session]
        if not sessions:
            del self._of_group[group_id]

    def drop(self, group_id: str, member_id: str, session: ShareSession) -> None:
        """Drop a session without a client, if it is still the member's session."""
        if self._sessions.get((group_id, member_id)) is session:
            del self._sessions[group_id, member_id]
            self._forget(group_id, session)
            self._end(session, gives_back=True)

    def _end(self, session: ShareSession, *, gives_back: bool) -> None:
        self._places -= len(session.places)
        session.end(gives_back=gives_back)

    def change(self, session: ShareSession, added: Iterable[Place], forgotten: Iterable[Place]) -> None:
        """Add and remove partitions of a session. Does nothing if the session has ended.

        Raises: RequestRejected SHARE_SESSION_LIMIT_REACHED if all sessions together would have too many; then nothing has changed.
        """
        if session.is_over:
            return
        new = [place for place in dict.fromkeys(added) if place not in session.places]
        if self._places + len(new) > PLACES_MAX:
            raise RequestRejected(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, "The limit of partitions in share sessions has been reached."
            )
        before = len(session.places)
        session.places.update(dict.fromkeys(new))
        for place in forgotten:
            session.places.pop(place, None)
        self._places += len(session.places) - before

    def _drop_idle(self, before_ms: int) -> None:
        """Drop sessions whose last request was before ``before_ms``: their members have left, perhaps without notice."""
        for (group_id, member_id), session in tuple(self._sessions.items()):
            if session.used_ms < before_ms:
                self.drop(group_id, member_id, session)

    def next(self, group_id: str, member_id: str, epoch: int, now_ms: int) -> ShareSession:
        """The member's session for its next request. With ``FINAL``: for its last request, after which the caller drops it.

        Raises: RequestRejected SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        key = (group_id, member_id)
        session = self._sessions.get(key)
        if session is None:
            raise RequestRejected(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session was not found.")
        if epoch == FINAL:
            return session
        if epoch != session.epoch:
            raise RequestRejected(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "The share session epoch is invalid.")
        session.used_ms = now_ms
        session.epoch = 1 if epoch == INT_MAX else epoch + 1
        return session
