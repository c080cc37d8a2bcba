"""One look at the partitions of a Fetch. ``ConsumerAttempt`` and ``FollowerAttempt`` are its two kinds.

Every partition is looked at in order, and ranges are collected within the byte limits. The first batch of the first partition that
has any is answered whole, however large it is (KIP-74). A failed partition is answered with its error, and the others go on.

Tests: ``tests/handlers/test_fetch.py``, ``tests/handlers/test_followers.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.errors import ErrorCode, FirnError, kafka_code
from app.handlers.base.partitions import hint
from app.security.noting import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from app.handlers.clients.client import Client
    from app.handlers.state.fetch_sessions import CachedPartition
    from app.hot.log import PartitionLog
    from app.hot.reads import PageMiss
    from app.replication.partition import Partition
    from app.security.acls import Operation, ResourceType
    from app.transport.sending import SendableRange
    from app.wire.fetch import FetchRequest

FETCH: Final = 1
READING: Final = "reading"
"""The name of this work in log lines about faults."""


class Found(NamedTuple):
    """The result of one attempt for one partition."""

    cached: CachedPartition
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    ranges: Sequence[SendableRange] = ()
    record_bytes: int = 0
    offset_span: int = 0
    """Offsets from the requested one to the end of the ranges: the number of records that the client gets."""
    aborted: Sequence[tuple[int, int]] | None = None
    diverging: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    log: PartitionLog | None = None
    """The log of the records."""
    preferred_replica: int = -1
    """Where the consumer should read instead (KIP-392)."""
    throttled: bool = False
    """Whether the records count for the throttle of replication."""


class Attempt(ABC):
    """One look at all partitions of a request."""

    __slots__ = (
        "at_once",
        "awaits_store",
        "client",
        "denied",
        "disk_error",
        "found",
        "logs",
        "max_bytes",
        "misses",
        "offset_span",
        "record_bytes",
        "remote_waits",
        "request",
    )

    client: Client
    request: FetchRequest
    max_bytes: int
    """Limit of the response's records."""
    disk_error: FirnError | None
    """Partitions that need the disk are answered with it, and the disk is not read again."""
    found: list[Found]
    logs: list[PartitionLog]
    """Logs whose next appends could add to the answer."""
    misses: list[PageMiss]
    """Bytes that must come from the disk before their partition can be looked at."""
    remote_waits: list[Callable[[Callable[[], None]], Callable[[], None]]]
    """Each calls back once, when it is worth looking again. It returns a function that cancels that."""
    awaits_store: bool
    """Whether bytes that were requested from the object store are not here yet."""
    record_bytes: int
    offset_span: int
    denied: dict[Resource, None] | None
    """Resources that the caller has no right to. With any, the response goes out at once."""
    at_once: bool
    """Waiting would not help: the answer has an error or a divergence, or is as long as it may be."""

    def look_at(self, partitions: Iterable[CachedPartition]) -> None:
        """Collect the records of further partitions, within the limits."""
        context = self.client.context
        descriptors = context.logs.log_directory.descriptors
        left = max(0, self.max_bytes - self.record_bytes)
        if self.record_bytes and descriptors.crowded:
            left = 0
        for cached in partitions:
            partition: Partition | None = None
            try:
                partition = self.find(cached)
                found = self.read(partition, cached, min(cached.max_bytes, left))
            except FirnError as error:
                if partition is not None:
                    context.faults.met_error(READING, str(partition.log.topic_partition), error)
                found = Found(cached, kafka_code(error), current_leader=hint(context, partition, error))
                self.at_once = True
                self.failed(cached)
            self.found.append(found)
            if found.record_bytes:
                self.record_bytes += found.record_bytes
                self.offset_span += found.offset_span
                left = max(0, left - found.record_bytes)
                if descriptors.crowded:
                    left = 0  # The next request reads on. Appends of others need descriptors, too.
                    self.at_once = True
            elif found.diverging is not None:
                self.at_once = True

    @abstractmethod
    def find(self, cached: CachedPartition) -> Partition:
        """The partition, if the caller may read it here. Raises: FirnError, answered for this partition alone."""

    @abstractmethod
    def read(self, partition: Partition, cached: CachedPartition, limit: int) -> Found:
        """Read one partition. Raises: as ``find``."""

    @abstractmethod
    def failed(self, cached: CachedPartition) -> None:
        """A partition is answered with an error."""

    @abstractmethod
    def charge(self, client_id: str | None) -> int:
        """As ``Client.charge``, for the records of this attempt. Also notes whether the client reads the tier as a replay.

        Returns: the throttle time of the response in milliseconds.
        """

    @abstractmethod
    def count_sent(self) -> None:
        """Count the records as sent."""

    def is_enough(self) -> bool:
        """Whether the response goes out without a wait."""
        return self.at_once or self.record_bytes >= min(self.request.min_bytes, self.max_bytes)

    def deny(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """The caller may not do this."""
        if self.denied is None:
            self.denied = {}
        self.denied[Resource(operation.name, kind.name, name)] = None

    def tell_denied(self, client_id: str | None, correlation_id: int) -> None:
        """Write the refusals to the audit log, if there are any."""
        audit = self.client.context.audit
        if self.denied and audit is not None:
            audit.refused(self.client.caller, FETCH, client_id, correlation_id, self.denied)

    def release(self) -> None:
        for one in self.found:
            for part in one.ranges:
                part.release()
