"""Fetch sessions (KIP-227): a consumer names its partitions once and afterwards only the changes.

A follower's session also knows which of its partitions have to be looked at (ADR 0024, W). The others cost its requests nothing.

Pure: time comes in as ``now_ms``, randomness through the constructor. A request is turned into a ``FetchPlan``, the
partitions to look at in order; afterwards ``FetchPlan.includes`` says for each result whether the response has to carry it.

A *full* request (epoch 0) names every partition and asks for a session; epoch -1 asks for none. An *incremental* request
names the partitions that are new, changed or forgotten and is answered with those that have something new. A partition that
was answered with records goes to the end of its session's order, so that with a byte limit no partition starves.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import UUID

from app.core.errors import ErrorCode
from app.core.limits import TOPIC_NAME_CHARS_MAX

if TYPE_CHECKING:
    from app.hot.log import PartitionLog

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
NO_SESSION: Final = 0
EPOCH_MAX: Final = 2_147_483_647
EVICTION_MS: Final = 120_000
"""A session unused for this long gives way to any other. A session younger than this does not give way to a larger one."""
NEVER_MS: Final = -(1 << 62)
CACHED_PARTITIONS_MAX: Final = 1_000_000
"""Partitions of all sessions together: about 200 MB, and 300 MB more if each is of another topic that does not exist. A request
with a name that no topic can have gets no session."""

TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]
FollowerKey = tuple[int, int]
"""Broker id and broker epoch."""


class AskedPartition(NamedTuple):
    """One partition as a request names it."""

    topic: TopicKey
    """Its id from version 13 on, before that its name."""
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    stored_end: int = -1
    """The end of the follower's stored records (ADR 0024, S1); -1 from consumers."""
    log_start: int = -1
    """The log start of the follower; -1 from consumers."""


def _has_long_name(asked: Iterable[AskedPartition]) -> bool:
    """Whether one of the topic names is too long for a topic."""
    return any(type(one.topic) is str and len(one.topic) > TOPIC_NAME_CHARS_MAX for one in asked)


class Watch(Protocol):
    """Marks a partition of a follower's session as due when its log changes."""

    log: PartitionLog

    def ride_on(self) -> None:
        """The partition has nothing to tell, as of the request that is being served."""
        ...

    @property
    def asked_ms(self) -> int:
        """Time of the last request at which the follower had all records."""
        ...

    def close(self) -> None:
        """Hear of no more changes. The follower does not count as caught up any longer through this watch."""
        ...


class CachedPartition:
    """A partition of a session: the fields of its last request, and of its last response."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark",
        "last_fetched_epoch",
        "log_start",
        "log_start_offset",
        "max_bytes",
        "partition",
        "stored_end",
        "topic",
        "watch",
    )

    def __init__(self, asked: AskedPartition) -> None:
        self.watch: Watch | None = None
        self.topic = asked.topic
        self.partition = asked.partition
        self.high_watermark = -1
        self.log_start_offset = -1
        self.update(asked)

    def update(self, asked: AskedPartition) -> None:
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.stored_end = asked.stored_end
        self.log_start = asked.log_start

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


class FetchSession:
    """One session. ``epoch``: the epoch that the next incremental request must have."""

    __slots__ = (
        "appended_bytes",
        "asked_ms",
        "counted",
        "created_ms",
        "due",
        "epoch",
        "follower",
        "id",
        "in_sync_ms",
        "moved",
        "moves_bytes",
        "moves_ms",
        "moving",
        "on_due",
        "on_moved",
        "partitions",
        "used_ms",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, uses_topic_ids: bool, follower: FollowerKey | None, now_ms: int) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.follower = follower
        """The follower that owns it; None for a consumer's. Only its owner may go on with it."""
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.epoch = 1
        self.partitions: OrderedDict[PartitionKey, CachedPartition] = OrderedDict()
        self.counted = 0
        """Partitions that the cache has counted for this session."""
        self.due: dict[CachedPartition, None] = {}
        """Of a follower's session: the partitions that a request has to look at, in this order. A partition that is not among them
        has no record for the follower and no error, and its position is counted."""
        self.moved: dict[CachedPartition, None] = {}
        """… whose high watermark may have moved since it was told. They do not answer a request that waits."""
        self.moving: dict[CachedPartition, None] = {}
        """… that are due, but wait for their turn, since a reassignment adds them (V9)."""
        self.on_due: Callable[[], None] | None = None
        """Called when the log of a watched partition has changed, also if it is due already."""
        self.on_moved: Callable[[], None] | None = None
        """Called when the first partition has come into ``moved``."""
        self.asked_ms = 0
        """… when its last request was served, on the loop's clock."""
        self.in_sync_ms = NEVER_MS
        """… when it was last given records of a partition in which it is in sync."""
        self.moves_bytes = 0
        """… bytes that replicas which a reassignment adds may have beside those; below 0 if they have had more."""
        self.moves_ms = 0
        """… when that was counted."""
        self.appended_bytes = 0.0
        """… bytes that this broker's producers had appended by then."""

    @property
    def privileged(self) -> bool:
        """Whether consumers' sessions do not push it out: it is a follower's."""
        return self.follower is not None

    @property
    def restless(self) -> bool:
        """Of a follower's session: whether it has news that do not end a waiting request yet."""
        return bool(self.moved or self.due or self.moving)

    def to_look_at(self, moving_max: int | None = None) -> list[CachedPartition]:
        """The partitions of a follower's session that may have news, and up to ``moving_max`` of those that wait for their turn."""
        if self.moving:
            self.due.update(self.take_moving(moving_max))
        if not self.moved:
            return list(self.due)
        return list(self.due | self.moved)

    def take_moving(self, count: int | None) -> dict[CachedPartition, None]:
        """Take the next ``count`` partitions out of ``moving``; None: all."""
        if count is None or count >= len(self.moving):
            taken, self.moving = self.moving, {}
            return taken
        taken = dict.fromkeys(islice(self.moving, count))
        for cached in taken:
            del self.moving[cached]
        return taken

    def let_move(self, cached: CachedPartition) -> None:
        """A partition waits for its turn, behind the others."""
        self.due.pop(cached, None)
        self.moving.pop(cached, None)
        self.moving[cached] = None

    def let_go(self, cached: CachedPartition) -> None:
        """Remove a partition that is not in the session any more."""
        self.due.pop(cached, None)
        self.moving.pop(cached, None)
        self.moved.pop(cached, None)
        if cached.watch is not None:
            cached.watch.close()
            cached.watch = None


class FetchPlan:
    """The partitions that one Fetch request asks for."""

    __slots__ = ("error", "expected_epoch", "followed", "incremental", "partitions", "session", "session_id")

    def __init__(
        self,
        partitions: Iterable[CachedPartition],
        *,
        session: FetchSession | None = None,
        incremental: bool = False,
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self.partitions = partitions
        """In the order in which they are to be read. A live view of the session: read it before anything is awaited."""
        self.session = session
        self.session_id = session.id if session is not None else NO_SESSION
        self.incremental = incremental
        self.error = error
        """The error of the request as a whole."""
        self.expected_epoch = session.epoch if session is not None else INITIAL_EPOCH
        self.followed = session if session is not None and session.follower is not None else None
        """The session, if it is a follower's: its partitions that are due are looked at, and no others."""

    @property
    def overtaken(self) -> bool:
        """Whether a later request of the session was served while this one waited."""
        return self.incremental and self.session is not None and self.session.epoch != self.expected_epoch

    def includes(
        self,
        cached: CachedPartition,
        *,
        error: int,
        high_watermark: int,
        log_start_offset: int,
        record_bytes: int,
        diverges: bool,
        redirects: bool = False,
    ) -> bool:
        """Whether the response carries this partition. Remembers the response and turns the order.

        An incremental response leaves out a partition without news. An error is told again every time.
        """
        changed = (
            record_bytes > 0
            or error != 0
            or diverges
            or redirects
            or cached.high_watermark != high_watermark
            or cached.log_start_offset != log_start_offset
        )
        cached.high_watermark = -1 if error or diverges else high_watermark
        cached.log_start_offset = log_start_offset
        session = self.session
        if session is not None and record_bytes > 0 and cached.key in session.partitions:
            session.partitions.move_to_end(cached.key)
        return changed or not self.incremental


class FetchSessions:
    """All sessions of a broker, bounded by ``slots``."""

    def __init__(self, slots: int, rng: random.Random) -> None:
        self._slots = slots
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """Longest unused first."""
        self.partitions = 0
        """Partitions of all sessions."""
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        session_id: int,
        epoch: int,
        asked: list[AskedPartition],
        forgotten: Iterable[PartitionKey],
        *,
        uses_topic_ids: bool,
        follower: FollowerKey | None = None,
        now_ms: int,
    ) -> FetchPlan:
        """Bring the session up to date with a request, and return the partitions that it asks for.

        ``follower``: the sender, if it is a follower; the caller has checked that. A follower's new session may take the place of a
        consumer's. A session has the positions of its follower (ADR 0024, R6), so other senders do not find it.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if self._of(session_id, follower) is not None:
                self._remove(session_id)
            wanted: OrderedDict[PartitionKey, CachedPartition] = OrderedDict()
            for one in asked:
                wanted[one.topic, one.partition] = CachedPartition(one)
            session = None
            if epoch == INITIAL_EPOCH and wanted and not _has_long_name(asked):
                session = self._create(wanted, uses_topic_ids, follower, now_ms)
                if session is not None and follower is not None:
                    session.due = dict.fromkeys(wanted.values())
            return FetchPlan(wanted.values(), session=session)
        session = self._of(session_id, follower)
        if session is None:
            return FetchPlan((), error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return FetchPlan((), error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchPlan((), error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        partitions = session.partitions
        for one in asked:
            cached = partitions.get((one.topic, one.partition))
            if cached is None:
                cached = partitions[one.topic, one.partition] = CachedPartition(one)
            else:
                cached.update(one)
            if follower is not None:
                session.due[cached] = None
        for key in forgotten:
            gone = partitions.pop(key, None)
            if gone is not None:
                session.let_go(gone)
        if (
            not partitions
            or self.partitions + len(partitions) - session.counted > CACHED_PARTITIONS_MAX
            or _has_long_name(asked)
        ):
            self._remove(session_id)
            return FetchPlan(partitions.values())
        self.partitions += len(partitions) - session.counted
        session.counted = len(partitions)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        self._sessions.move_to_end(session_id)
        return FetchPlan(partitions.values(), session=session, incremental=True)

    def _of(self, session_id: int, follower: FollowerKey | None) -> FetchSession | None:
        session = self._sessions.get(session_id)
        return session if session is not None and session.follower == follower else None

    def _create(
        self,
        partitions: OrderedDict[PartitionKey, CachedPartition],
        uses_topic_ids: bool,
        follower: FollowerKey | None,
        now_ms: int,
    ) -> FetchSession | None:
        """A new session, if there is room for one. Without a session the client goes on with full requests."""
        if follower is not None:
            # A follower has one session. An earlier one would hear of every append until another session needs its place.
            for other in [one for one in self._sessions.values() if one.follower and one.follower[0] == follower[0]]:
                self._remove(other.id)
        if self.partitions + len(partitions) > CACHED_PARTITIONS_MAX:
            return None
        if len(self._sessions) >= self._slots and not self._make_room(follower is not None, len(partitions), now_ms):
            return None
        session_id = self._rng.randrange(1, EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, EPOCH_MAX)
        session = FetchSession(session_id, uses_topic_ids, follower, now_ms)
        session.partitions = partitions
        session.counted = len(partitions)
        self.partitions += len(partitions)
        self._sessions[session_id] = session
        return session

    def _make_room(self, privileged: bool, size: int, now_ms: int) -> bool:
        """Drop the session longest unused, or a session that counts for less than a new one of ``size`` partitions."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms > EVICTION_MS:
            self._evict(oldest)
            return True
        least: FetchSession | None = None
        for session in self._sessions.values():
            if privileged and not session.privileged:
                protected = False
            else:
                protected = now_ms - session.created_ms <= EVICTION_MS
            if protected:
                continue
            if least is None or (session.privileged, session.counted) < (least.privileged, least.counted):
                least = session
        if least is None or (least.privileged, least.counted) >= (privileged, size):
            return False
        self._evict(least)
        return True

    def _evict(self, session: FetchSession) -> None:
        self.evictions += 1
        self._remove(session.id)

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= session.counted
            for cached in session.partitions.values():
                session.let_go(cached)
