"""Fetches the partitions that this broker follows from their leaders (ADR 0024, S and A).

Each leader has one connection and one fetch session, for any number of partitions. Before its next fetch a follower waits for its
own syncs. So syncs are grouped, and the stored end that the fetch tells is really stored (S2).

A partition that begins anew at the tiered end reads from the object store first (T5). It leaves the session meanwhile, so that no
other partition waits for the store. With one after another, a leader would have deleted the first local segments after that end
before the last of many partitions could fetch them.

Tests: ``tests/broker/test_following_in_turns.py``, ``tests/broker/test_replication.py``.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from app.core.errors import (
    BrokerUnavailable,
    ConflictError,
    CorruptionError,
    ErrorCode,
    FirnError,
    ProtocolError,
    RequestRejected,
    StorageFull,
    StorageUnavailable,
)
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.seams import Clock
from app.core.units import BrokerId, LeaderEpoch, TopicIdPartition
from app.handlers.state.parked_followers import RESTLESS_MS
from app.hot.log import PartitionLog
from app.metadata.image.image import BrokerImage, ClusterImage
from app.replication.following import (
    Append,
    Damaged,
    FollowedPartition,
    Ignore,
    LogAtFetch,
    Pause,
    StartAt,
    StartAtTier,
    Truncate,
    step,
)
from app.replication.partition import Partition, PartitionTable
from app.replication.roles import Role
from app.replication.throttle import UNLIMITED, Throttle
from app.wire.fetch import Fetched, FetchedPartition, FetchPartition, FetchRequest

WAIT_MS: Final = 2_000
"""How long a leader may wait that has nothing at all to tell. Otherwise it waits for ``RESTLESS_MS``."""
LAG_SHARE: Final = 4
"""A leader hears so often of a follower, within the time after which a silent one is out of sync."""
RESPONSE_BYTES: Final = 10 * 1024 * 1024
PARTITION_BYTES: Final = 1024 * 1024
"""``replica.fetch.response.max.bytes`` and ``replica.fetch.max.bytes``."""
PAUSE_S: Final = 0.2
"""After a refusal; the image will say more."""
FAULT_PAUSE_S: Final = 1.0
STARTS_AT_ONCE: Final = 32
"""Partitions that read from the store at the same time, to begin at the tiered end. The others go on in their turn."""
SCAN_SHARE: Final = 100
SCAN_MIN: Final = 4
"""Each request looks at so many partitions without news (a hundredth of all, and a few at least): a follower is not told when the
start of its log moves."""
THROTTLED_PAUSE_S: Final = 0.2
"""While more was fetched than the throttle allows."""
AT_ONCE: Final = 64
"""Partitions of one response that are handled before the loop serves other work."""
TOUCHED_AT_ONCE: Final = 1_000
"""Touched partitions that are looked at in one turn of the loop: 3 ms."""
NAMED_MAX: Final = 5_000
"""Partitions that one fetch adds to a session, and as many that it takes out. With a topic each, the request is within its bounds
(``app/wire/bounds.py``), and the leader looks at them in one turn."""
EPOCH_MAX: Final = 0x7FFF_FFFF
REFUSED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors that end by themselves when both brokers have the same image."""


HISTORY_DIFFERS: Final = "its leader's history differs"
"""Why a log is cut back."""
MAY_LACK: Final = "a compacted log may lack records that were lost with power"
"""Compaction may have made the hole as well."""


class FetchLink(Protocol):
    """The connections to leaders."""

    async def reach(self, to: BrokerImage) -> None:
        """Have a connection to a leader. Raises: BrokerUnavailable, ProtocolError."""
        ...

    async def fetch(self, to: BrokerImage, request: FetchRequest) -> Fetched:
        """Raises: BrokerUnavailable, ProtocolError, RequestRejected."""
        ...


class _Followed:
    """One partition that is fetched from one leader."""

    __slots__ = ("asked", "key", "lag", "leader_epoch", "not_before_s", "partition", "sent")

    def __init__(self, key: TopicIdPartition, partition: Partition, leader_epoch: LeaderEpoch) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.sent: FetchPartition | None = None
        """The position in the session."""
        self.asked: LogAtFetch | None = None
        self.not_before_s = 0.0
        self.lag = -1
        """Committed records of the leader that are missing here; -1 until the leader has answered."""

    def now(self) -> LogAtFetch:
        log = self.partition.log
        return LogAtFetch(self.leader_epoch, log.log_end_offset, log.truncations)

    def last_epoch(self) -> int:
        """The leader epoch of the last record; -1 for none."""
        epochs = self.partition.log.leader_epochs()
        end = self.partition.log.log_end_offset
        last_epoch = epochs[-1].epoch if epochs and epochs[-1].start_offset < end else -1
        if last_epoch < 0 and len(epochs) > 1:
            last_epoch = next((one.epoch for one in reversed(epochs) if one.start_offset < end), -1)
        return last_epoch

    def position(self) -> FetchPartition:
        log = self.partition.log
        return FetchPartition(
            self.partition.index,
            self.leader_epoch,
            log.log_end_offset,
            self.last_epoch(),
            log.log_start_offset,
            PARTITION_BYTES,
            log.stored_end_offset,
        )


class Followers:
    """Belongs to one event loop. Keep ``run`` running."""

    def __init__(
        self,
        table: PartitionTable,
        link: FetchLink,
        *,
        broker_id: BrokerId,
        broker_epoch: Callable[[], int],
        image: Callable[[], ClusterImage],
        start_at_tier: Callable[[PartitionLog, Callable[[], bool]], Awaitable[None]],
        throttle: Throttle,
        clock: Clock,
        faults: Faults,
        log_line: Callable[[str], None],
        lower_high_watermark: Callable[[TopicIdPartition, int], Awaitable[bool]],
    ) -> None:
        """``start_at_tier`` empties a log and lets it go on at the tiered end, with the epochs and producers of there (T5), if the
        condition that it is given still holds after it has read the store. Raises: FirnError. ``lower_high_watermark`` notes
        durably that committed records are given up from an offset on, or returns False.
        """
        self.table = table
        self.link = link
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.image = image
        self.start_at_tier = start_at_tier
        self.lower_high_watermark = lower_high_watermark
        self.throttle = throttle
        """Limits the bytes that are fetched for throttled replicas that are out of sync (V7)."""
        self.clock = clock
        self.faults = faults
        self.log_line = log_line
        self._fetchers: dict[int, _Fetcher] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._leader_of: dict[TopicIdPartition, int] = {}
        """The leader of every partition that is fetched."""
        self._to_follow: deque[Partition] = deque()
        """Touched partitions whose leader was not looked at yet."""
        self.counted_on: set[TopicIdPartition] = set()
        """Partitions that were fetched although their log lacks segment files, in this run of the broker (A6)."""
        self.start_turns = asyncio.Semaphore(STARTS_AT_ONCE)
        self._group: asyncio.TaskGroup | None = None

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Start a task beside the fetches. Only while ``run`` is running."""
        assert self._group is not None
        self._group.create_task(work)

    def lag_max(self) -> int:
        """The missing committed records of the replica that is furthest behind, as far as leaders have answered."""
        return max((0, *(fetcher.lag_max() for fetcher in self._fetchers.values())))

    async def run(self) -> None:
        """Fetch until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.table.on_touched = self._touched
            for partition in self.table:
                self._follow(partition)
            try:
                await asyncio.Event().wait()
            finally:
                self.table.on_touched = None

    def _touched(self) -> None:
        if not self._to_follow:
            asyncio.get_running_loop().call_soon(self._follow_touched)

    def _follow_touched(self) -> None:
        """Fetch the partitions whose leader, epoch or role has changed from their present leaders; some in each turn."""
        waiting = self._to_follow
        waiting.extend(self.table.take_touched())
        for _ in range(min(len(waiting), TOUCHED_AT_ONCE)):
            self._follow(waiting.popleft())
        if waiting:
            asyncio.get_running_loop().call_soon(self._follow_touched)

    def _follow(self, partition: Partition) -> None:
        key, leader = partition.key, self.table.leader_to_follow(partition)
        before = self._leader_of.get(key)
        if before is not None and before != leader:
            self._fetchers[before].forget(key, partition if leader is None else None)
            if leader is None and not self._fetchers[before].follows(key):
                del self._leader_of[key]
        if leader is None or self._group is None:
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = _Fetcher(self, leader)
            self._tasks[leader] = self._group.create_task(fetcher.run())
        self._leader_of[key] = leader
        fetcher.follow(key, partition)


class _Fetcher:
    """Fetches from one leader."""

    def __init__(self, owner: Followers, leader: int) -> None:
        self._owner = owner
        self._leader = leader
        self._followed: dict[TopicIdPartition, _Followed] = {}
        self._dirty: dict[_Followed, None] = {}
        """Partitions whose position may differ from the one in the session. The others cost a request nothing."""
        self._resting: dict[_Followed, None] = {}
        self._lacking: dict[_Followed, None] = {}
        """Partitions whose log lacks segment files, or may lack records. They rest until ``_cut_lacking`` has decided (A6)."""
        self._to_scan: list[_Followed] = []
        self._forgotten: dict[TopicIdPartition, None] = {}
        self._in_session: dict[TopicIdPartition, None] = {}
        self._session_id = 0
        self._session_epoch = 0
        self._changed = asyncio.Event()

    def follow(self, key: TopicIdPartition, partition: Partition) -> None:
        """Fetch this partition, in the leader epoch that it has now."""
        found = self._followed.get(key)
        if found is not None:
            if found.leader_epoch == partition.leader_epoch and found.partition is partition:
                return
            self._let_go(found)
        followed = self._followed[key] = _Followed(key, partition, partition.leader_epoch)
        if partition.log.lacks_from is not None and key not in self._owner.counted_on:
            self._lacking[followed] = None
            self._rest(followed, math.inf)
        else:
            self._dirty[followed] = None
        self._changed.set()

    def follows(self, key: TopicIdPartition) -> bool:
        return key in self._followed

    def forget(self, key: TopicIdPartition, partition: Partition | None) -> None:
        """Stop to fetch a partition. ``partition``: only if this object is still the one of its key; None for any."""
        found = self._followed.get(key)
        if found is None or (partition is not None and found.partition is not partition):
            return
        del self._followed[key]
        self._let_go(found)
        if key in self._in_session:
            del self._in_session[key]
            self._forgotten[key] = None
        self._changed.set()

    def _let_go(self, followed: _Followed) -> None:
        self._dirty.pop(followed, None)
        self._resting.pop(followed, None)
        self._lacking.pop(followed, None)

    def lag_max(self) -> int:
        return max((followed.lag for followed in self._followed.values()), default=0)

    async def run(self) -> None:
        while True:
            self._changed.clear()
            if not self._followed:
                self._end_session()
                await self._changed.wait()
                continue
            to = self._owner.image().brokers.get(self._leader)
            if to is None:
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                if not self._session_id:
                    # A request that names thousands of partitions is not made for a leader that is dead.
                    await self._owner.link.reach(to)
                if self._lacking:
                    await self._cut_lacking()
                request, pause_s = self._request()
                if request is None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause_s):
                            await self._changed.wait()
                    continue
                answer = await self._owner.link.fetch(to, request)
            except (BrokerUnavailable, ProtocolError, RequestRejected) as error:
                self._end_session()
                subject = f"broker {self._leader}"
                self._owner.faults.met(
                    "fetching from", subject, f"cannot fetch from {subject}, will try again: {error}"
                )
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.error_code:
                self._end_session()
                await asyncio.sleep(0 if self._session_id else PAUSE_S / 4)
                continue
            self._session_id = answer.session_id
            self._session_epoch = 0 if not answer.session_id else self._session_epoch % EPOCH_MAX + 1
            await self._handle(answer)

    def _end_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._in_session.clear()
        self._forgotten.clear()
        for followed in self._followed.values():
            followed.sent = None
            self._dirty[followed] = None

    # --- asking -------------------------------------------------------------------------------------------------------

    def _request(self) -> tuple[FetchRequest | None, float]:
        """The next request; None and for how long to wait if all partitions pause."""
        now_s = asyncio.get_running_loop().time()
        soonest_s = now_s + WAIT_MS / 1000
        self._rest_throttled(now_s)
        for followed in tuple(self._resting):
            if followed.not_before_s <= now_s:
                del self._resting[followed]
                self._dirty[followed] = None
            else:
                # It may begin at the tiered end at any moment: the fetch of the others is to be short.
                begins_anew = followed.not_before_s == math.inf
                soonest_s = min(soonest_s, now_s + PAUSE_S if begins_anew else followed.not_before_s)
                self._dirty.pop(followed, None)
                followed.sent = None
                if followed.key in self._in_session:
                    self._forgotten[followed.key] = None
                    del self._in_session[followed.key]
        if len(self._resting) == len(self._followed):
            return None, max(soonest_s - now_s, 0.01)
        self._scan()
        topics: dict[TopicIdPartition, FetchPartition] = {}
        dirty = list(islice(self._dirty, NAMED_MAX))
        for followed in dirty:
            del self._dirty[followed]
        has_more = bool(self._dirty)
        for followed in dirty:
            position = followed.position()
            followed.asked = followed.now()
            if position != followed.sent:
                key = followed.key
                followed.sent = topics[key] = position
                self._forgotten.pop(key, None)
                self._in_session[key] = None
            if position.stored_end < position.fetch_offset:
                self._dirty[followed] = None  # until its sync is over, which gives no notice
        by_topic: dict[object, list[FetchPartition]] = {}
        for key, position in topics.items():
            by_topic.setdefault(key.topic_id, []).append(position)
        forgotten: dict[object, list[int]] = {}
        if self._session_id:
            for key in list(islice(self._forgotten, NAMED_MAX)):
                del self._forgotten[key]
                forgotten.setdefault(key.topic_id, []).append(key.partition)
            has_more = has_more or bool(self._forgotten)
        else:
            self._forgotten.clear()
        wait_ms = max(RESTLESS_MS, min(WAIT_MS, self._owner.table.lag_ms_max // LAG_SHARE))
        if self._resting:
            wait_ms = max(1, min(wait_ms, int((soonest_s - now_s) * 1000)))
        if has_more:
            wait_ms = 1
        return (
            FetchRequest(
                replica_id=self._owner.broker_id,
                replica_epoch=self._owner.broker_epoch(),
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=RESPONSE_BYTES,
                session_id=self._session_id,
                session_epoch=self._session_epoch,
                topics=list(by_topic.items()),  # type: ignore[arg-type] # topics by id
                forgotten=list(forgotten.items()),  # type: ignore[arg-type]
            ),
            0.0,
        )

    def _scan(self) -> None:
        """Look at some partitions, others with each request."""
        if not self._to_scan:
            self._to_scan = [followed for followed in self._followed.values() if followed not in self._resting]
        count = max(SCAN_MIN, len(self._followed) // SCAN_SHARE)
        for followed in self._to_scan[-count:]:
            if self._followed.get(followed.key) is followed and followed not in self._resting:
                self._dirty[followed] = None
        del self._to_scan[-count:]

    # --- handling -----------------------------------------------------------------------------------------------------

    async def _handle(self, answer: Fetched) -> None:
        stored: list[Awaitable[None]] = []
        for count, one in enumerate(answer.partitions, 1):
            followed = self._followed.get(TopicIdPartition(one.topic_id, one.partition))  # type: ignore[arg-type]
            if followed is not None and followed.asked is not None:
                self._dirty[followed] = None
                try:
                    await self._take(followed, one)
                except FirnError as error:
                    self._tell(followed, error)
                    self._rest(followed, FAULT_PAUSE_S)
                else:
                    log = followed.partition.log
                    waiting = log.wait_stored(log.log_end_offset)
                    if waiting is not None:
                        stored.append(waiting)
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        for waiting in stored:
            try:
                await waiting
            except (StorageUnavailable, StorageFull, RequestRejected) as error:
                self._owner.faults.met("syncing", "followed logs", f"cannot sync what was fetched: {error}")

    async def _take(self, followed: _Followed, one: FetchedPartition) -> None:
        """Raises: FirnError."""
        partition = followed.partition
        if partition.role is not Role.FOLLOWER or followed.asked is None:
            return
        log = partition.log
        answered = FollowedPartition(
            ErrorCode(one.error_code), one.high_watermark, one.log_start_offset, one.diverging_epoch, bool(one.records)
        )
        todo = step(
            followed.asked,
            followed.now(),
            answered,
            high_watermark=log.high_watermark,
            epoch_end=lambda epoch: log.epoch_end_offset(LeaderEpoch(epoch)),
            last_epoch=followed.last_epoch(),
            unclean_epoch=partition.unclean_epoch,
        )
        match todo:
            case Append(high_watermark, log_start):
                if one.records:
                    log.append_as_follower(one.records, now_ms=self._owner.clock.now_ms())
                    if self._is_throttled(followed):
                        now_ms = int(asyncio.get_running_loop().time() * 1000)
                        self._owner.throttle.record(len(one.records), now_ms)
                followed.lag = max(high_watermark - log.log_end_offset, 0)
                log.commit(min(high_watermark, log.log_end_offset))
                if log_start > log.log_start_offset:
                    log.advance_log_start(min(log_start, log.high_watermark))
            case Truncate(offset, 0):
                self._cut(followed, offset, HISTORY_DIFFERS)
            case Truncate(offset, committed):
                asked = followed.asked
                if not await self._owner.lower_high_watermark(partition.key, offset):
                    self._rest(followed, PAUSE_S)
                elif partition.role is Role.FOLLOWER and followed.now() == asked:
                    why = (
                        f"{HISTORY_DIFFERS}. {committed} offsets of them were committed: the unclean election of leader epoch"
                        f" {partition.unclean_epoch} has given them up"
                    )
                    if self._cut(followed, offset, why, given_up=True):
                        self._owner.table.given_up += committed
            case StartAt(offset):
                try:
                    log.truncate_fully_and_start_at(offset, log_start_offset=offset)
                except ConflictError:
                    self._rest(followed, PAUSE_S)
            case StartAtTier():
                self._rest(followed, math.inf)
                self._owner.begin(self._start_at_tier(followed, followed.asked))
            case Damaged(why):
                self._owner.table.put_offline(partition, why)
                self._owner.log_line(
                    Event.PARTITION_OFFLINE.line(
                        f"{partition.topic}-{partition.index} is offline here: {why}",
                        topic=partition.topic,
                        partition=int(partition.index),
                    )
                )
            case Pause(error):
                if error not in REFUSED:
                    self._tell(followed, RequestRejected(error))
                self._rest(followed, PAUSE_S)
            case Ignore():
                followed.sent = None

    async def _start_at_tier(self, followed: _Followed, asked: LogAtFetch) -> None:
        """Let a partition that rests begin anew at the tiered end, and fetch it again."""
        partition = followed.partition

        def is_wanted() -> bool:
            followed_here = self._followed.get(followed.key) is followed and partition.role is Role.FOLLOWER
            return followed_here and followed.now() == asked

        pause_s = 0.0
        try:
            async with self._owner.start_turns:
                if is_wanted():
                    await self._owner.start_at_tier(partition.log, is_wanted)
        except FirnError as error:
            self._tell(followed, error)
            pause_s = FAULT_PAUSE_S
        else:
            if followed.now() == asked:
                pause_s = PAUSE_S  # the leader knows more than the store has shown
        self._rest(followed, pause_s)
        self._changed.set()

    async def _cut_lacking(self) -> None:
        """Cut logs that lack segment files, or may lack records, back to before the first loss, to fetch the records again (A6).

        A log is not cut before the image has the registration of this run, nor after a fetch: a leader that saw the old end could
        take this broker back into the set. A broker that is in a set by then was the leader, and others count on its log: it
        goes on at its end.
        """
        this = self._owner.image().brokers.get(self._owner.broker_id)
        if this is None or this.broker_epoch != self._owner.broker_epoch():
            return
        for followed in tuple(self._lacking):
            partition, log = followed.partition, followed.partition.log
            image = self._owner.image().partition(followed.key.topic_id, followed.key.partition)
            if image is None or followed not in self._lacking:
                continue
            if log.lacks_from is not None and self._owner.broker_id in (*image.isr, *image.eligible):
                self._go_on_lacking(followed)
                continue
            if log.lacks_from is not None:
                start, before = log.lacks_from, followed.now()
                if not await self._owner.lower_high_watermark(partition.key, min(start, log.high_watermark)):
                    continue
                if followed not in self._lacking or partition.role is not Role.FOLLOWER or followed.now() != before:
                    continue
                why = f"segment files of offsets {log.lost[0]} are missing or damaged" if log.lost else MAY_LACK
                try:
                    self._cut(followed, start, f"{why}: it fetches the records again", given_up=True)
                except FirnError as error:
                    self._tell(followed, error)
                if log.log_end_offset <= start:
                    log.unsure_from = None
            if log.lacks_from is None:
                del self._lacking[followed]
                self._rest(followed, 0.0)

    def _go_on_lacking(self, followed: _Followed) -> None:
        partition = followed.partition
        self._owner.counted_on.add(followed.key)
        del self._lacking[followed]
        self._rest(followed, 0.0)
        if not partition.log.lost:
            return  # compaction may have made the hole
        self._owner.log_line(
            Event.LOG_SEGMENTS_MISSING.line(
                f"{partition.topic}-{partition.index} lacks offsets {', '.join(map(str, partition.log.lost))} and follows all the"
                " same, because others count on its newer records. When another replica is in sync, start this broker again:"
                " then it fetches the records that it lacks",
                topic=partition.topic,
                partition=int(partition.index),
            )
        )

    def _cut(self, followed: _Followed, offset: int, why: str, *, given_up: bool = False) -> bool:
        """Cut a log back to ``offset``. ``why`` follows "where" in the log. ``given_up``: committed records may go, too.

        Returns: False if nothing was cut: there was nothing to cut, or a sync is under way, and the leader is asked again after it.
        Raises: CorruptionError, StorageUnavailable.
        """
        partition = followed.partition
        log, end = partition.log, partition.log.log_end_offset
        try:
            if not log.truncate_to(offset, given_up=given_up):
                return False
        except ConflictError:
            self._rest(followed, math.inf if followed in self._lacking else PAUSE_S)
            return False
        self._owner.log_line(
            Event.PARTITION_TRUNCATED.line(
                f"{partition.topic}-{partition.index} is cut back from {end} to {offset}, where {why}",
                topic=partition.topic,
                partition=int(partition.index),
            )
        )
        return True

    def _rest_throttled(self, now_s: float) -> None:
        """Do not ask for throttled partitions while the rate is above its limit. Costs nothing while it is not."""
        if self._owner.throttle.is_exceeded(int(now_s * 1000)):
            for followed in self._followed.values():
                if followed.not_before_s <= now_s and self._is_throttled(followed):
                    self._rest(followed, THROTTLED_PAUSE_S)

    def _is_throttled(self, followed: _Followed) -> bool:
        """Whether fetched bytes count for the throttle: the replica is behind, and is named."""
        throttle, partition = self._owner.throttle, followed.partition
        return (
            throttle.limit != UNLIMITED
            and followed.lag != 0
            and throttle.covers(partition.log.config.follower_replication_throttled_replicas, partition.index)
        )

    def _rest(self, followed: _Followed, pause_s: float) -> None:
        followed.not_before_s = asyncio.get_running_loop().time() + pause_s
        if self._followed.get(followed.key) is followed:
            self._resting[followed] = None

    def _tell(self, followed: _Followed, error: FirnError) -> None:
        name = f"{followed.partition.topic}-{followed.partition.index}"
        kind = "is damaged" if isinstance(error, CorruptionError) else "cannot be followed now"
        self._owner.faults.met("following", name, f"{name} {kind}, will try again: {error}")
