"""Share sessions: what each member reads, so that its requests need not say it again (KIP-932). Pure.

As with fetch sessions an epoch counts the requests: 0 begins a session, -1 ends it, and any other must be the next one. A session
is of a member; it ends with the connection that it was begun on, so that what its member has is for others at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from app.configs import BrokerConfig
from app.configs.numbers import INT_MAX
from app.errors import ErrorCode, RequestRejected
from app.tiering.waiting import Waiters

FIRST: Final = 0
FINAL: Final = -1

PLACES_MAX: Final = 1_000_000
"""Partitions in all sessions together, as in fetch sessions: a member may name any, whether or not there are such."""

Place = tuple[UUID, int]
"""Topic id and partition."""


class ShareSession:
    """One member's."""

    __slots__ = ("epoch", "gives_back", "is_over", "on_end", "over", "places", "turn", "used_ms")

    def __init__(self, now_ms: int) -> None:
        self.is_over = False
        self.gives_back = False
        """It is over, and what its member has is for others; not if a new session of the member took its place."""
        self.on_end: Callable[[], None] | None = None
        """Called once, when it is over."""
        self.over = Waiters()
        self.used_ms = now_ms
        """When its last request came."""
        self.epoch = 1
        """Of the request that is expected next."""
        self.places: dict[Place, None] = {}
        """What it reads, in the order in which it was added."""
        self.turn = 0
        """Which place is looked at first; another one each time."""

    def end(self, *, gives_back: bool) -> None:
        """There will be no more requests."""
        if self.is_over:
            return
        self.is_over, self.gives_back = True, gives_back
        if self.on_end is not None:
            self.on_end()
        self.over.wake()

    def in_turn(self) -> list[Place]:
        """What it reads, beginning with another place each time, so that none starves."""
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
        self._places = 0
        """Of all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, group_id: str, member_id: str, now_ms: int) -> ShareSession:
        """A new session in the place of the member's old one. Raises: RequestRejected SHARE_SESSION_LIMIT_REACHED."""
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
            # Its member may still speak of what it has.
            self._end(before, gives_back=False)
        session = self._sessions[key] = ShareSession(now_ms)
        return session

    def drop(self, group_id: str, member_id: str, session: ShareSession) -> None:
        """Nobody is there any more to go on with a session, if it is still the member's."""
        if self._sessions.get((group_id, member_id)) is session:
            del self._sessions[group_id, member_id]
            self._end(session, gives_back=True)

    def _end(self, session: ShareSession, *, gives_back: bool) -> None:
        self._places -= len(session.places)
        session.end(gives_back=gives_back)

    def change(self, session: ShareSession, added: Iterable[Place], forgotten: Iterable[Place]) -> None:
        """What a session reads besides from now on, and what it does not read any more. Nothing happens if it is over.

        Raises: RequestRejected SHARE_SESSION_LIMIT_REACHED if all sessions together would read too much; nothing is changed then.
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
        """Members that were not heard of for so long are not members any more, and may not have said so."""
        for (group_id, member_id), session in tuple(self._sessions.items()):
            if session.used_ms < before_ms:
                self.drop(group_id, member_id, session)

    def next(self, group_id: str, member_id: str, epoch: int, now_ms: int) -> ShareSession:
        """The member's session, for its next request; with ``FINAL``, for its last one, after which it is to be dropped.

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
