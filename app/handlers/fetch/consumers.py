"""A consumer's look at its partitions: committed records of the disk and of the object store.

Offsets below the local log come from the object store through the remote reader. The response has the chunks that the reader holds.
Missing chunks are downloaded, and the download is never cancelled, because the next request can use them too.

Tests: ``tests/handlers/test_fetch.py``, ``tests/broker/test_readers.py``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from app.core.errors import ErrorCode, FirnError, RequestRejected, copy_of
from app.core.units import LeaderEpoch, Offset
from app.handlers.base.authorising import denial, may
from app.handlers.base.partitions import check_epoch, topic_name
from app.handlers.fetch.attempts import FETCH, Attempt, Found
from app.hot.reads import PageMiss
from app.replication.reading import Awaited
from app.security.acls import Operation, ResourceType
from app.wire.fetch import ANY_REPLICA

if TYPE_CHECKING:
    from app.handlers.base.views import FetchView
    from app.handlers.clients.client import Client
    from app.handlers.state.fetch_sessions import CachedPartition
    from app.hot.log import PartitionLog
    from app.replication.partition import Partition
    from app.replication.reading import PartitionRead
    from app.wire.fetch import FetchRequest

READ_COMMITTED: Final = 1


class ConsumerAttempt(Attempt):
    """One look at all partitions of a consumer's request."""

    __slots__ = ("cold_bytes", "out_of_time", "rack", "replays", "require", "shareable")

    # All fields are set here: a further call would add to the CPU of each request.
    def __init__(
        self,
        client: Client,
        version: int,
        request: FetchRequest,
        max_bytes: int,
        *,
        out_of_time: bool,
        disk_error: FirnError | None = None,
    ) -> None:
        """``out_of_time``: the client waits no longer, not even for the turn of a replay."""
        context = client.context
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
        self.out_of_time = out_of_time
        self.replays: bool | None = None
        """Whether the tier may be read in this attempt; None until ``turn`` decides it."""
        self.cold_bytes = 0
        """Bytes of reads that began in the object store."""
        self.shareable: PartitionLog | None = None
        """The log of the last records found, if other consumers will find the same ones: committed, local, up to the byte limit."""
        self.rack = ""
        """The rack in which the consumer should read; empty if it reads here (V1)."""
        if version >= ANY_REPLICA:
            self.require = context.partitions.require_replica
            if context.selects_by_rack:
                self.rack = request.rack_id
        else:
            self.require = context.partitions.require_served

    def find(self, cached: CachedPartition) -> Partition:
        context, caller = self.client.context, self.client.caller
        name = topic_name(context, cached.topic)
        if name is None:
            raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_ID)
        if context.authorizer is not None and not may(context, caller, Operation.READ, ResourceType.TOPIC, name):
            self.deny(Operation.READ, ResourceType.TOPIC, name)
            raise denial(caller, Operation.READ, ResourceType.TOPIC, name)
        return self.require(name, cached.partition)

    def read(self, partition: Partition, cached: CachedPartition, limit: int) -> Found:
        if self.rack:
            preferred = preferred_replica(self.client.context, partition, cached, self.rack)
            if preferred is not None:
                self.at_once = True
                return preferred
        check_epoch(partition.reader_epoch, cached.current_leader_epoch)
        log = partition.log
        offset = cached.fetch_offset
        high_watermark = log.high_watermark
        stable = log.last_stable_offset
        log_start = log.log_start_offset
        if cached.last_fetched_epoch >= 0:
            epoch, end = self.client.context.reads.epoch_end(log, LeaderEpoch(cached.last_fetched_epoch))
            if epoch < 0 or end < 0:
                raise RequestRejected(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < cached.last_fetched_epoch or end < offset:
                return Found(cached, ErrorCode.NONE, high_watermark, stable, log_start, diverging=(epoch, end))
        committed = self.request.isolation_level == READ_COMMITTED
        end_offset = stable if committed else high_watermark
        if not log_start <= offset <= log.log_end_offset:
            raise RequestRejected(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset >= end_offset:
            self.logs.append(log)
            return Found(cached, ErrorCode.NONE, high_watermark, stable, log_start, aborted=() if committed else None)
        first = self.record_bytes == 0
        if limit <= 0 and not first:
            return Found(cached, ErrorCode.NONE, high_watermark, stable, log_start, aborted=() if committed else None)
        read = self.client.context.reads.read(
            log,
            offset,
            limit,
            end_offset=end_offset,
            committed=committed,
            min_one_batch=first,
            enough_bytes=self.request.min_bytes - self.record_bytes,
            turn=self.turn,
        )
        if read.lacks is not None or read.is_cut:
            if self.disk_error is not None and not read.ranges and isinstance(read.lacks, PageMiss):
                raise copy_of(self.disk_error)
            self.note_end(read)
        elif len(read.ranges) == 1 and read.is_local and read.end_offset < end_offset and partition.leads:
            self.shareable = log
        if read.end_offset >= end_offset:
            self.logs.append(log)
            if read.end_offset > end_offset:
                # All records of the tier are committed and stable (T1), also if a new leader does not know that yet.
                high_watermark, stable = (
                    Offset(max(high_watermark, read.end_offset)),
                    Offset(max(stable, read.end_offset)),
                )
        if not read.is_local:
            self.cold_bytes += read.length
        return Found(
            cached,
            ErrorCode.NONE,
            high_watermark,
            stable,
            log_start,
            read.ranges,
            read.length,
            read.end_offset - offset,
            tuple(read.aborted) if committed else None,
            log=log,
        )

    def turn(self) -> Awaited | None:
        """Return None if the tier may be read in this attempt. Otherwise return the wait for this client's turn to read it."""
        replays = self.client.context.replays
        if self.replays is None:
            self.replays = self.out_of_time or replays.may_go_on(self.client)
        return None if self.replays else Awaited(partial(replays.wait, self.client), False)

    def note_end(self, read: PartitionRead) -> None:
        """Note why a read of one partition ended before its limits."""
        if read.is_cut:
            self.at_once = True
        match read.lacks:
            case PageMiss() as miss:
                self.misses.append(miss)
            case Awaited() as awaited:
                self.remote_waits.append(awaited.add)
                self.awaits_store = self.awaits_store or awaited.of_store
            case None:
                pass

    def failed(self, cached: CachedPartition) -> None:
        """Nothing is kept of it: the consumer asks again."""

    def charge(self, client_id: str | None) -> int:
        client = self.client
        client.replaying = self.replays is True
        context = client.context
        quotas, zones = context.quotas, context.metrics.zones
        if zones is not None and self.record_bytes:
            zones.consumed(client_id, self.request.rack_id, self.record_bytes)
        if quotas is None:
            return 0
        throttle_time_ms = quotas.charge(client.caller, client_id, FETCH, self.record_bytes)
        if self.cold_bytes:
            throttle_time_ms = max(throttle_time_ms, quotas.read_cold(client.caller, client_id, self.cold_bytes))
        return client.rest(throttle_time_ms)

    def count_sent(self) -> None:
        metrics = self.client.context.metrics
        metrics.bytes_out.value += self.record_bytes
        metrics.records_out.value += self.offset_span


def preferred_replica(context: FetchView, partition: Partition, cached: CachedPartition, rack: str) -> Found | None:
    """The follower that a consumer in ``rack`` should read from (V2); None for this broker. Raises: as ``Attempt.find``."""
    check_epoch(partition.reader_epoch, cached.current_leader_epoch)
    replica = partition.preferred_replica(rack, cached.fetch_offset, context.image.brokers)
    if replica is None:
        return None
    log = partition.log
    return Found(
        cached,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        preferred_replica=replica,
    )
