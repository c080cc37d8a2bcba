"""How a leader answers the Fetch of a follower: its right to fetch, its position, and its records (ADR 0024).

A follower reads to the end of the log, past the committed records. So a caller that claims to be a follower is checked in every
request. The position that its request tells is noted before the read, so that its answer has the high watermark that this position
makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import LeaderEpoch, TopicIdPartition
from app.handlers.base.partitions import check_leader_epoch, check_reader
from app.hot.reads import FileRange
from app.replication.partition import LEVEL_OF_FOLLOWERS

if TYPE_CHECKING:
    from app.handlers.base.views import FetchView
    from app.handlers.state.fetch_sessions import CachedPartition, FetchSession
    from app.hot.log import PartitionLog
    from app.metadata.image.image import ClusterImage
    from app.replication.partition import Partition


class Follower(NamedTuple):
    """A broker whose registration was checked."""

    broker_id: int
    broker_epoch: int


# --- checks of the sender ---------------------------------------------------------------------------------------------


def find_follower(image: ClusterImage, node_id: int, replica_id: int, replica_epoch: int) -> Follower | None:
    """The broker that a request claims to be from, if it is registered under this broker epoch (A5) and is not this one."""
    if image.level < LEVEL_OF_FOLLOWERS or replica_id == node_id:
        return None
    broker = image.brokers.get(replica_id)
    if broker is None or broker.broker_epoch != replica_epoch:
        return None
    return Follower(replica_id, replica_epoch)


def check_follower(
    image: ClusterImage,
    partition: Partition,
    follower: Follower | None,
    replica_id: int,
    replica_epoch: int,
    epoch: int,
) -> Follower:
    """The broker that asks for ``partition`` in leader ``epoch``, if it may read uncommitted records.

    Raises: RequestRejected. FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH: the follower or this broker is behind. A follower always
    names the leader epoch (A2). Else as Kafka: NOT_LEADER_OR_FOLLOWER for a broker epoch that is over; UNKNOWN_LEADER_EPOCH for a
    broker or a replica that this broker does not know, since its image may be the older one.
    """
    log = partition.log
    if follower is None:
        check_leader_epoch(log, epoch)
        broker = image.brokers.get(replica_id) if image.level >= LEVEL_OF_FOLLOWERS else None
        if broker is not None and replica_epoch < broker.broker_epoch:
            raise RequestRejected(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Broker epoch {replica_epoch} of broker {replica_id} is over; it is {broker.broker_epoch} now.",
            )
        check_reader(log, replica_id, epoch)  # refuses
        raise AssertionError(f"{replica_id} is no broker")
    if epoch < 0:
        raise RequestRejected(ErrorCode.FENCED_LEADER_EPOCH, f"Broker {replica_id} names no leader epoch.")
    check_leader_epoch(log, epoch)
    if follower.broker_id not in partition.replicas:
        check_reader(log, replica_id, epoch)
    return follower


# --- partitions without news ------------------------------------------------------------------------------------------


class FollowedWatch:
    """Watches a partition of a follower's session that has no news. It tells when there is news (W1), and that the follower has all
    records until then (W2)."""

    __slots__ = ("_cached", "_frozen_ms", "_session", "_tells_at_once", "log")

    def __init__(
        self, session: FetchSession, cached: CachedPartition, log: PartitionLog, *, tells_at_once: bool
    ) -> None:
        """``tells_at_once``: a request that waits is answered when the high watermark moves (V4)."""
        self._session = session
        self._cached = cached
        self._frozen_ms = -1
        self._tells_at_once = tells_at_once
        self.log = log
        log.add_tail_waiter(self.changed)
        log.add_waiter(self.moved)

    @property
    def asked_ms(self) -> int:
        return self._session.asked_ms if self._frozen_ms < 0 else self._frozen_ms

    def ride_on(self) -> None:
        """The partition has nothing to tell, as of the request that is being served."""
        self._frozen_ms = -1

    def changed(self) -> None:
        """The log has grown, or refuses, or is not led any more, or its in-sync set has changed."""
        if self._cached.watch is not self:
            return  # it was closed in this very turn
        session = self._session
        if self._frozen_ms < 0:
            self._frozen_ms = session.asked_ms
        session.due[self._cached] = None
        if session.on_due is not None:
            session.on_due()

    def moved(self) -> None:
        """The high watermark has moved, or the log start."""
        session = self._session
        if self._cached.watch is not self:
            return
        first = not session.moved
        session.moved[self._cached] = None
        if self._tells_at_once and session.on_due is not None:
            session.on_due()
        elif first and session.on_moved is not None:
            session.on_moved()

    def close(self) -> None:
        if self._frozen_ms < 0:
            self._frozen_ms = self._session.asked_ms
        self.log.remove_tail_waiter(self.changed)
        self.log.remove_waiter(self.moved)


def settle(
    session: FetchSession,
    cached: CachedPartition,
    partition: Partition,
    follower: Follower,
    *,
    tells_at_once: bool = False,
) -> None:
    """A request has found no news in a partition for a follower whose position is counted: the partition is not due until its log
    changes."""
    counting = partition.counting
    if counting is None:
        return
    watch = cached.watch
    if watch is None or watch.log is not partition.log:
        if watch is not None:
            watch.close()
        watch = FollowedWatch(session, cached, partition.log, tells_at_once=tells_at_once)
        cached.watch = watch
    log = partition.log
    if counting.let_ride(follower.broker_id, follower.broker_epoch, log.log_end_offset, watch):
        watch.ride_on()
        session.due.pop(cached, None)
        if cached.high_watermark != log.high_watermark or cached.log_start_offset != log.log_start_offset:
            session.moved[cached] = None  # not told yet


# --- reassignments beside replicas in sync --------------------------------------------------------------------------------

MOVES_BYTES_PER_MS: Final = 20_000
"""20 MB/s from a leader to a follower. Batches are sent whole, so a response may have none, or more."""
MOVES_SAVED_MAX: Final = 1_000_000
"""An unused share is kept up to so many bytes."""
BESIDE_MS: Final = 1_000
"""For so long after records of in-sync partitions, moves have only their share."""
GROWTHS: Final = 2


def share_of_moves(session: FetchSession, appended_bytes: float, now_ms: int) -> int | None:
    """The bytes that replicas which a reassignment adds may have now (V9); None for no limit.

    A follower's next fetch waits for the response before it, and so does every record that it is in sync for. ``appended_bytes``:
    bytes that this broker's producers have appended so far. Moves get twice of that besides, so that they come to an end.
    """
    grown = GROWTHS * int(appended_bytes - session.appended_bytes)
    passed_ms = now_ms - session.moves_ms
    session.appended_bytes, session.moves_ms = appended_bytes, now_ms
    if now_ms - session.in_sync_ms >= BESIDE_MS:
        session.moves_bytes = 0
        return None
    earned = MOVES_BYTES_PER_MS * passed_ms + grown
    session.moves_bytes = min(session.moves_bytes + earned, MOVES_SAVED_MAX + grown)
    return max(0, session.moves_bytes)


def moves_wait_ms(session: FetchSession) -> int:
    """Milliseconds until ``share_of_moves`` is above 0 again."""
    return 1 + max(0, -session.moves_bytes) // MOVES_BYTES_PER_MS


# --- positions and reads ----------------------------------------------------------------------------------------------


class FollowerRead(NamedTuple):
    """The records or the error for a follower. Release the range after use."""

    error: ErrorCode = ErrorCode.NONE
    diverging: tuple[int, int] | None = None
    """The greatest epoch not above the follower's last one, and where it ended."""
    range: FileRange | None = None
    end_offset: int = -1
    """The end of the range, or the offset that the follower asked for."""
    at_end: bool = False
    """Whether only an append can add to it."""


def note_position(
    context: FetchView, partition: Partition, follower: Follower, asked: CachedPartition, now_ms: int
) -> None:
    """Count the position that a follower tells. Call it once a request, when its history was found to be this log's (A2, R7).

    A follower that names no epoch has no records on its disk. It counts where it needs none (R10). Its stored end is at most its
    fetch offset.
    """
    log = partition.log
    if partition.counting is None or (asked.last_fetched_epoch < 0 and not needs_no_record(context, log, asked)):
        return
    partition.note_follower(
        follower.broker_id,
        follower.broker_epoch,
        fetch_offset=asked.fetch_offset,
        stored_end=min(asked.stored_end, asked.fetch_offset),
        log_start=asked.log_start,
        log_end=log.log_end_offset,
        now_ms=now_ms,
    )


def needs_no_record(context: FetchView, log: PartitionLog, asked: CachedPartition) -> bool:
    """Whether a follower without a local record lacks none (R10): all records below its offset are deleted, or in the store.

    The tier's history is this log's (T2, T10), and stays so: no later leader gives these offsets to other records.
    """
    if asked.fetch_offset <= log.log_start_offset:
        return True
    if log.config.stays_local:
        return False
    manifest = context.remote_log_manager.manifest_of(TopicIdPartition(log.topic_id, log.partition))
    return manifest is not None and asked.fetch_offset <= manifest.tiered_end


def compare(context: FetchView, log: PartitionLog, asked: CachedPartition) -> FollowerRead | None:
    """Return an error or a divergence if a follower must not read: it is outside of the log, or its history ends earlier (A2).

    None if it may read. A follower that is to begin in the tier gets OFFSET_MOVED_TO_TIERED_STORAGE: below the local log start, or
    if it lacks much.
    """
    offset = asked.fetch_offset
    if offset < log.log_start_offset:
        return FollowerRead(ErrorCode.OFFSET_OUT_OF_RANGE)
    if asked.last_fetched_epoch >= 0:
        epoch, end = context.reads.epoch_end(log, LeaderEpoch(asked.last_fetched_epoch))
        if epoch < 0 or end < 0:
            return FollowerRead(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < asked.last_fetched_epoch or end < offset:
            return FollowerRead(diverging=(epoch, end))
    if offset > log.log_end_offset:
        return FollowerRead(ErrorCode.OFFSET_OUT_OF_RANGE)
    if offset < log.local_log_start_offset or (offset < log.high_watermark and begins_in_tier(context, log, asked)):
        return FollowerRead(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
    return None


def begins_in_tier(context: FetchView, log: PartitionLog, asked: CachedPartition) -> bool:
    """Whether a follower is to begin at the tiered end, though this disk has its offset (T5): it has no records yet, or more than a
    segment of its missing records is in the store."""
    if log.config.stays_local:
        return False  # a compacted log is one from its start on, on every disk
    manifest = context.remote_log_manager.manifest_of(TopicIdPartition(log.topic_id, log.partition))
    if manifest is None or asked.fetch_offset >= manifest.tiered_end:
        return False
    if asked.last_fetched_epoch < 0:
        return True
    lacking_bytes = 0
    for entry in manifest.finished[manifest.state.index_at(asked.fetch_offset) :]:
        lacking_bytes += entry.raw_bytes
        if lacking_bytes > log.config.segment_bytes:
            return True
    return False


def read(log: PartitionLog, offset: int, bytes_max: int, *, min_one_batch: bool) -> FollowerRead:
    """Whole batches of one local segment from ``offset`` on, up to the log end. ``offset`` is on this disk, or the log end.

    Raises: PageMiss, with which bytes to fetch first; FirnError, answered for this partition alone.
    """
    end = log.log_end_offset
    if offset >= end:
        return FollowerRead(end_offset=offset, at_end=True)
    if bytes_max <= 0 and not min_one_batch:
        return FollowerRead(end_offset=offset)
    local = log.plan_read(offset, bytes_max, end_offset=end, min_one_batch=min_one_batch)
    if not local.length:
        return FollowerRead(end_offset=offset)
    # Records that are not committed may be truncated, and others written in their place, while the response is on its way.
    lasting = local.end_offset <= log.high_watermark
    found = FileRange(local.handle, local.position, local.length, warm=local.warm, lasting=lasting)
    return FollowerRead(range=found, end_offset=local.end_offset, at_end=local.end_offset >= end)
