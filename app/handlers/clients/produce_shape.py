"""Learns the bytes that repeat from one Produce request to the next, so that most requests need not be decoded.

A producer's requests for one partition differ only in the correlation id and in the length and content of the records.
Everything before the length (client id, acks, time-out, topic, partition) is always the same bytes. So is the answer, except for
its numbers. A ``ProduceShape`` is learnt from a request that was decoded in full. A later request means the same if it begins with
the same bytes, and its records end where its frame ends. One comparison shows that. Every other request is decoded in full.

Only the full decoder (``app.wire.produce``) knows the layout. A shape finds the place of the length from where the decoded records
lie. It finds the numbers of the answer by encoding an answer with marks in their places.

Tests: ``tests/handlers/test_produce.py``.
"""

from __future__ import annotations

from enum import Enum, auto
from struct import Struct
from typing import TYPE_CHECKING, Final

from app.handlers.policy.callers import UNKNOWN
from app.wire.header import tags_start
from app.wire.primitives import uvarint
from app.wire.produce import FLEXIBLE, TopicRef, encode_produce_success

if TYPE_CHECKING:
    from app.handlers.policy.callers import Rights
    from app.hot.log import PartitionLog
    from app.replication.partition import Partition

PREFIX_START: Final = 12
"""After the frame's size, the API key, its version and the correlation id."""
NO_TAGS: Final = b"\0\0\0"
"""The end of a flexible request of one partition: the partition, the topic and the request have no tagged fields."""
SHAPES_MAX: Final = 16_384
"""Shapes that a broker keeps for all its connections: one for each partition and client id. One takes about 800 bytes."""
PREFIX_BYTES_MAX: Final = 1024
"""Limit of a remembered prefix: with topic, client id and transactional id of usual lengths it has less than 100. So all shapes
together take 25 MB at most."""
LENGTHS_MAX: Final = 16
"""Prefix lengths that are tried. The length depends on the client id, the topic name and the version."""

_MARKS: Final = (0x7E6D5C4B3A291808, 0x7E6D5C4B3A291809, 0x7E6D5C4B3A29180A)
"""Base offset, append time and log start of the answer that is taken apart."""
_INT64: Final = Struct(">q")
_CORRELATION_END: Final = 8
"""A response begins with its size and the correlation id in every version."""


class Way(Enum):
    """How a Produce is served."""

    NOW = auto()
    """Appended at once, and answered at once: its records count as stored then."""
    BY_COMMIT = auto()
    """Appended at once, and answered when replicas or the write-ahead log have stored its records."""
    GENERAL = auto()
    """Decoded in full, and checked anew."""


NOW: Final = Way.NOW
BY_COMMIT: Final = Way.BY_COMMIT
GENERAL: Final = Way.GENERAL


class ProduceShape:
    """One kind of request that callers with the same rights make."""

    __slots__ = (
        "_head",
        "_middle",
        "_pack",
        "_tail",
        "client_id",
        "flexible",
        "has_log_start",
        "log",
        "partition",
        "prefix",
        "rights",
        "shares",
        "tail_bytes",
        "terms",
        "timeout_s",
        "topic_partition",
        "transactional",
        "version",
    )

    def __init__(
        self,
        rights: Rights,
        version: int,
        client_id: str | None,
        prefix: bytes,
        log: PartitionLog,
        topic: TopicRef,
        index: int,
        transactional: bool,
        partition: Partition | None = None,
        timeout_ms: int = 0,
    ) -> None:
        """``partition``: given if its other replicas or its journal have to store the records, within ``timeout_ms``."""
        self.rights = rights
        """The rights of callers whose requests may take the fast path."""
        self.version = version
        self.client_id = client_id
        """The client id in the prefix."""
        self.shares = UNKNOWN
        """The shares of such callers with this client id. The quotas check whether they are still valid."""
        self.prefix = prefix
        """The bytes from ``PREFIX_START`` up to the length of the records."""
        self.log = log
        self.terms = log.terms
        """The log's terms when the shape was learnt. A log that is not led any more refuses."""
        self.partition = partition
        self.timeout_s = max(timeout_ms, 0) / 1000
        self.transactional = transactional
        """Whether the prefix names a transactional id."""
        self.flexible = version >= FLEXIBLE
        self.tail_bytes = len(NO_TAGS) if self.flexible else 0
        answer = encode_produce_success(version, 0, topic, index, *_MARKS)
        numbers = b"".join(_INT64.pack(mark) for mark in _MARKS)
        self.has_log_start = numbers in answer
        """Whether the answer has a log start: not in versions 3 and 4."""
        if not self.has_log_start:
            numbers = numbers[: 2 * _INT64.size]
        self._head = answer[:4]
        self._middle, found, self._tail = answer[_CORRELATION_END:].rpartition(numbers)
        assert found, "a success names its offset and times, one after the other"
        count = len(numbers) // _INT64.size
        self._pack = Struct(f">4si{len(self._middle)}s{count}q{len(self._tail)}s").pack
        self.topic_partition = topic, index

    def way(self) -> Way:
        """How a request of this shape is served now. Under other rights or terms than those of the shape, or while the partition
        must not accept acks=all, the request is decoded and checked again."""
        log = self.log
        if self.terms is not log.terms or not self.rights.valid:
            return GENERAL
        partition = self.partition
        if partition is None:
            return NOW
        return BY_COMMIT if partition.accepts_all and partition.log is log else GENERAL

    def throttled_answer(
        self,
        correlation_id: int,
        base_offset: int,
        log_append_time_ms: int,
        log_start_offset: int,
        throttle_time_ms: int,
    ) -> bytes:
        """As ``answer``, for a client that has to wait."""
        numbers = base_offset, log_append_time_ms, log_start_offset, throttle_time_ms
        return encode_produce_success(self.version, correlation_id, *self.topic_partition, *numbers)

    def answer(self, correlation_id: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> bytes:
        """The whole response to a request that was appended."""
        if self.has_log_start:
            return self._pack(
                self._head, correlation_id, self._middle, base_offset, log_append_time_ms, log_start_offset, self._tail
            )
        return self._pack(self._head, correlation_id, self._middle, base_offset, log_append_time_ms, self._tail)


class ProduceShapes:
    """The shapes that a broker has learnt, for all of its connections: similar producers with the same rights share a shape."""

    __slots__ = ("_lengths", "_shapes")

    def __init__(self) -> None:
        self._shapes: dict[tuple[Rights, int, bytes], ProduceShape] = {}
        """By rights, version and prefix. The oldest shape is forgotten first."""
        self._lengths: list[int] = []
        """Lengths of prefixes. The length of the last hit comes first."""

    def __len__(self) -> int:
        return len(self._shapes)

    def find(self, rights: Rights, version: int, buffer: bytearray, start: int) -> ProduceShape | None:
        """The shape, learnt under the same rights, of the request whose prefix begins at ``start``."""
        for place, length in enumerate(self._lengths):
            shape = self._shapes.get((rights, version, bytes(buffer[start : start + length])))
            if shape is not None:
                if place:
                    self._lengths.insert(0, self._lengths.pop(place))
                return shape
        return None

    def forget_closed(self) -> None:
        """Let go of logs that are closed because their topics were deleted, and of rights that have ended."""
        for key, shape in tuple(self._shapes.items()):
            if shape.log.offline_error is not None or not shape.rights.valid:
                del self._shapes[key]

    def remember(self, shape: ProduceShape) -> None:
        """Remember a shape. A shape with a very long prefix is not kept: its requests are decoded in full."""
        if len(shape.prefix) > PREFIX_BYTES_MAX:
            return
        key = shape.rights, shape.version, shape.prefix
        if len(self._shapes) >= SHAPES_MAX and key not in self._shapes:
            del self._shapes[next(iter(self._shapes))]
        self._shapes[key] = shape
        length = len(shape.prefix)
        if length not in self._lengths:
            self._lengths.insert(0, length)
            del self._lengths[LENGTHS_MAX:]


def learn(
    rights: Rights,
    version: int,
    client_id: str | None,
    frame: memoryview,
    records: memoryview,
    log: PartitionLog,
    topic: TopicRef,
    index: int,
    transactional: bool,
    partition: Partition | None = None,
    timeout_ms: int = 0,
) -> ProduceShape | None:
    """The shape of a decoded request. ``frame`` is the request without its size; ``records`` are its only records. The rest: as
    ``ProduceShape``.

    None if the request is not of the usual kind: it has tagged fields, or an empty or unusual length of records.
    """
    size = len(records)
    if version >= FLEXIBLE:
        tags = tags_start(frame, 0)
        if frame[tags]:  # a trace, which no other request has
            return None
        length = uvarint(size + 1)
        if bytes(frame[-len(NO_TAGS) :]) != NO_TAGS:
            return None
        end = len(frame) - len(NO_TAGS)
    else:
        length = Struct(">i").pack(size)
        end = len(frame)
    start = end - size - len(length)
    if start <= PREFIX_START - 4 or bytes(frame[start : start + len(length)]) != length:
        return None
    prefix = bytes(frame[PREFIX_START - 4 : start])
    return ProduceShape(rights, version, client_id, prefix, log, topic, index, transactional, partition, timeout_ms)
