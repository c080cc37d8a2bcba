"""A follower's look at its partitions: all records that are on this disk, also those that are not committed (ADR 0024).

A caller that claims to be a follower is checked in every look, so also a parked request is checked again. A session knows which
of its partitions have news.

Tests: ``tests/handlers/test_followers.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.core.errors import ErrorCode, FirnError, RequestRejected, copy_of, without_frames
from app.core.units import BrokerId
from app.handlers.base.authorising import may
from app.handlers.base.partitions import topic_name
from app.handlers.fetch.attempts import FETCH, Attempt, Found
from app.handlers.fetch.followers import (
    check_follower,
    compare,
    find_follower,
    note_position,
    settle,
    share_of_moves,
)
from app.handlers.fetch.followers import read as read_for_follower
from app.hot.reads import PageMiss
from app.replication.throttle import UNLIMITED
from app.security.acls import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.handlers.base.views import FetchView
    from app.handlers.clients.client import Client
    from app.handlers.fetch.followers import Follower
    from app.handlers.policy.callers import Caller
    from app.handlers.state.fetch_sessions import CachedPartition, FetchSession
    from app.replication.partition import Partition
    from app.wire.fetch import FetchRequest

MOVES_AT_ONCE: Final = 2
"""Partitions that a reassignment adds, looked at for one response while it has a limit for them (V9)."""


def follower_of(context: FetchView, caller: Caller, request: FetchRequest) -> Follower | None:
    """The follower that a request claims to be from, if there is one and the caller may act as a broker.

    Only that follower may use its session and its positions.
    """
    if request.replica_id < 0 or not may(context, caller, Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return None
    return find_follower(context.image, context.node_id, request.replica_id, request.replica_epoch)


class FollowerAttempt(Attempt):
    """One look at the partitions of a request that names a replica. If its caller is no follower, all of them are refused."""

    __slots__ = ("follower", "is_denied", "moves_left", "notes_position", "now_ms", "session")

    def __init__(
        self,
        client: Client,
        request: FetchRequest,
        max_bytes: int,
        session: FetchSession | None,
        *,
        disk_error: FirnError | None = None,
        notes_position: bool = False,
    ) -> None:
        """``session``: the follower's, which knows the partitions to look at. ``notes_position``: the request has just come, so the
        position that it tells is its present one."""
        self.client = client
        self.request = request
        self.max_bytes = max_bytes
        self.disk_error = disk_error
        self.found = []
        self.logs = []
        self.misses = []
        self.remote_waits = []
        self.awaits_store = False
        self.record_bytes = 0
        self.offset_span = 0
        self.denied = None
        self.at_once = False
        self.follower = follower_of(client.context, client.caller, request)
        """The broker that asks, if it was found to be one."""
        self.is_denied = self.follower is None and not may(
            client.context, client.caller, Operation.CLUSTER_ACTION, ResourceType.CLUSTER
        )
        self.session = session
        self.notes_position = notes_position
        self.now_ms = int(client.server.loop.time() * 1000)
        """Loop time in milliseconds."""
        self.moves_left: int | None = None
        """Bytes that are left for replicas which a reassignment adds; None: no limit (V9)."""

    def look_at_due(self, listed: Iterable[CachedPartition]) -> None:
        """Look at the partitions of the session that may have news, or at ``listed`` ones without a session."""
        session = self.session
        if session is None:
            self.look_at(listed)
            return
        appended_bytes = self.client.context.metrics.bytes_in.value
        self.moves_left = share_of_moves(session, appended_bytes, self.now_ms)
        self.look_at(session.to_look_at(None if self.moves_left is None else MOVES_AT_ONCE))

    def find(self, cached: CachedPartition) -> Partition:
        context = self.client.context
        name = topic_name(context, cached.topic)
        if name is None:
            raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_ID)
        if self.is_denied:
            self.deny(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
            raise RequestRejected(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return context.partitions.require(name, cached.partition)

    def read(self, partition: Partition, cached: CachedPartition, limit: int) -> Found:
        context, request, session = self.client.context, self.request, self.session
        log = partition.log
        follower = check_follower(
            context.image,
            partition,
            self.follower,
            request.replica_id,
            request.replica_epoch,
            cached.current_leader_epoch,
        )
        in_sync = follower.broker_id in partition.in_sync
        share = None if in_sync or follower.broker_id not in partition.adding else self.moves_left
        if share == 0 and session is not None and cached.fetch_offset < log.log_end_offset:
            session.let_move(cached)
            return Found(cached, ErrorCode.NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset)
        refused = compare(context, log, cached)
        if refused is not None:
            self.at_once = True
            if session is not None:
                session.due[cached] = None
            return Found(
                cached,
                refused.error,
                log.high_watermark,
                log.last_stable_offset,
                log.log_start_offset,
                diverging=refused.diverging,
            )
        if self.notes_position:
            note_position(context, partition, follower, cached, self.now_ms)
        marks = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
        if context.selects_by_rack and 0 <= cached.high_watermark < log.high_watermark:
            # Consumers may wait at this follower for the high watermark (V4). Without a session this broker does not know
            # which high watermark it has told them.
            self.at_once = True
        throttled = is_throttled(context, partition, follower)
        if throttled and context.leader_throttle.is_exceeded(context.partitions.now_ms()):
            return Found(cached, ErrorCode.NONE, *marks)  # the next request looks again
        # A move that has a share gets a batch, however large it is, also if the response has records of others.
        min_one_batch = self.record_bytes == 0 or share is not None
        if share is not None:
            limit = min(limit, share)
        try:
            read = read_for_follower(log, cached.fetch_offset, limit, min_one_batch=min_one_batch)
        except PageMiss as miss:
            if self.disk_error is not None:
                raise copy_of(self.disk_error) from None
            self.misses.append(without_frames(miss))
            return Found(cached, ErrorCode.NONE, *marks)
        if read.at_end:
            self.logs.append(log)
        if read.range is None:
            if session is not None and self.notes_position and read.at_end:
                settle(session, cached, partition, follower, tells_at_once=context.selects_by_rack)
            return Found(cached, ErrorCode.NONE, *marks)
        if session is not None:
            if share is not None:
                self.moves_left = max(0, share - read.range.length)
                session.moves_bytes -= read.range.length
                session.let_move(cached)
            else:
                session.due.pop(cached, None)  # behind the others, until the follower tells that it has them
                session.due[cached] = None
                if in_sync:
                    session.in_sync_ms = self.now_ms
        span = read.end_offset - cached.fetch_offset
        return Found(cached, ErrorCode.NONE, *marks, (read.range,), read.range.length, span, throttled=throttled)

    def failed(self, cached: CachedPartition) -> None:
        if self.session is not None:
            self.session.due[cached] = None

    def charge(self, client_id: str | None) -> int:
        client, follower = self.client, self.follower
        client.replaying = False
        context = client.context
        if follower is None:  # nothing was read for it
            quotas = context.quotas
            return 0 if quotas is None else client.rest(quotas.charge(client.caller, client_id, FETCH, 0))
        zones = context.metrics.zones
        if zones is not None and self.record_bytes:
            broker = context.image.brokers.get(BrokerId(follower.broker_id))
            zones.replicated(None if broker is None else broker.rack, self.record_bytes)
        return 0

    def count_sent(self) -> None:
        context = self.client.context
        context.metrics.replication_bytes_out.value += self.record_bytes
        throttled_bytes = sum(one.record_bytes for one in self.found if one.throttled)
        if throttled_bytes:
            context.leader_throttle.record(throttled_bytes, context.partitions.now_ms())


def is_throttled(context: FetchView, partition: Partition, follower: Follower) -> bool:
    """Whether a follower's records count for the throttle: its replica is out of sync, and the setting names this one (V7)."""
    throttle = context.leader_throttle
    return (
        throttle.limit != UNLIMITED
        and throttle.covers(partition.log.config.leader_replication_throttled_replicas, partition.index)
        and follower.broker_id not in partition.in_sync
    )
