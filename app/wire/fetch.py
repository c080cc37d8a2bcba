"""Fetch, written by hand for speed: both directions of versions 4 to 18.

A response is given as pieces: bytes to write as they are, and a ``RecordsRef`` in place of each range of records. The caller
writes the range from its source (a file, a chunk of the cache, a buffer). Records are neither joined nor copied here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from app.core.errors import ErrorCode, ProtocolError
from app.core.limits import MESSAGE_ELEMENTS_MAX
from app.wire.apikeys import ApiKey
from app.wire.bounds import elements_max
from app.wire.codec import decode_response
from app.wire.endpoints import LEADER, LEADER_BYTES, NodeEndpoint, put_node_endpoints
from app.wire.framing import frame
from app.wire.header import encode_request_header
from app.wire.primitives import (
    INT16,
    INT32,
    TROUBLES,
    Buffer,
    compact_string_end,
    explain,
    next_tagged_field,
    put_compact_string,
    put_string,
    read_uvarint,
    refuse_count,
    refuse_length,
    refuse_null,
    refuse_rest,
    refuse_tag_size,
    skip_tagged_fields,
    tagged_field_count,
    uuid_of,
    uvarint,
)
from app.wire.produce import TopicRef

if TYPE_CHECKING:
    from uuid import UUID

    from app.wire.apis.fetch import FetchResponse

VERSION_FIRST: Final = 4
VERSION_LAST: Final = 18
SESSIONS: Final = 7
"""First version with fetch sessions and an error for the whole response (KIP-227)."""
ANY_REPLICA: Final = 11
"""First version in which a consumer may read from a follower, and names its rack (KIP-392)."""
FLEXIBLE: Final = 12
"""First version with compact lengths and tagged fields, and with diverging epochs (KIP-595)."""
TOPIC_IDS: Final = 13
"""First version that speaks of topics by id (KIP-516)."""
REPLICA_STATE: Final = 15
"""First version whose replica is a tagged field (KIP-903)."""
ENDPOINTS: Final = 16
"""First version whose response may say where a leader is (KIP-951)."""
DIRECTORY_IDS: Final = 17
"""First version with the follower's directory (KIP-853)."""
HIGH_WATERMARKS: Final = 18
"""First version with the follower's high watermark (KIP-1166)."""

HIGH_WATERMARK_UNSUPPORTED: Final = (1 << 63) - 1

STORED_END_TAG: Final = 10_000
"""Firn's own tagged field of a partition in a request: ``stored_end``, an int64 (ADR 0024, S1). Kafka skips it."""


class FetchPartition(NamedTuple):
    """One partition of a request: where to read, and how much."""

    partition: int
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    """Of the follower that asks; -1 from consumers."""
    partition_max_bytes: int = 1 << 20
    stored_end: int = -1
    """Below it the follower that asks has stored everything as the topic asks (ADR 0024, S1); -1 if it does not say."""


@dataclass(slots=True)
class FetchRequest:
    """A Fetch request. Fields that its version lacks have their defaults."""

    replica_id: int = -1
    """The follower that asks; -1 for consumers."""
    replica_epoch: int = -1
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 0x7FFF_FFFF
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[tuple[TopicRef, list[FetchPartition]]] = field(default_factory=list)
    forgotten: list[tuple[TopicRef, list[int]]] = field(default_factory=list)
    """Partitions to drop from the session."""
    rack_id: str = ""
    cluster_id: str | None = None


# --- decoding requests ------------------------------------------------------------------------------------------------

HEAD_4: Final = Struct(">iiiibi")
"""Replica id, wait, bytes at least and at most, isolation level, count of topics."""
HEAD_7: Final = Struct(">iiiibiii")
"""… with session id and epoch before the count."""
HEAD_FLEXIBLE: Final = Struct(">iiiibiiB")
HEAD_REPLICA_STATE: Final = Struct(">iiibiiB")

PARTITION_4: Final = Struct(">iqi")
PARTITION_5: Final = Struct(">iqqi")
PARTITION_9: Final = Struct(">iiqqi")
PARTITION_FLEXIBLE: Final = Struct(">iiqiqiB")
"""Index, leader's epoch, offset, last fetched epoch, log start, bytes at most; first byte of the tagged fields."""
PARTITION_STORED_END: Final = Struct(">iiqiqiB3sq")
"""… with the one tagged field ``stored_end``: how many there are, its tag and size, its value."""
STORED_END: Final = Struct(">q")
INDEX: Final = Struct(">i")
LIMITS: Final = Struct(">iiib")
"""Wait, bytes at least and at most, isolation level."""
TWO_INTS: Final = Struct(">ii")

_new = tuple.__new__
REQUEST_ELEMENTS: Final = elements_max(ApiKey.FETCH)


def decode_fetch(version: int, view: Buffer) -> FetchRequest:
    """The Fetch request that ``view`` begins with. Bytes after it are ignored. Nothing in it refers to ``view``.

    The follower's directory id and high watermark, which only Kafka's metadata quorum uses, are checked and dropped.
    Raises: ProtocolError, with UNSUPPORTED_VERSION outside of versions 4 to 18.
    """
    try:
        if not VERSION_FIRST <= version <= VERSION_LAST:
            raise ProtocolError("The version is not served.", ErrorCode.UNSUPPORTED_VERSION)
        return _decode_flexible(version, view) if version >= FLEXIBLE else _decode_classic(version, view)
    except TROUBLES as trouble:
        raise explain(trouble, f"Fetch v{version} request") from None


def _decode_classic(version: int, view: Buffer) -> FetchRequest:
    end = len(view)
    left = REQUEST_ELEMENTS
    request = FetchRequest()
    if version >= SESSIONS:
        (
            request.replica_id,
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
            count,
        ) = HEAD_7.unpack_from(view)
        position = HEAD_7.size
    else:
        (
            request.replica_id,
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            count,
        ) = HEAD_4.unpack_from(view)
        position = HEAD_4.size
    partition_struct = PARTITION_9 if version >= 9 else PARTITION_5 if version >= 5 else PARTITION_4
    partition_bytes = partition_struct.size
    unpack = partition_struct.unpack_from
    left -= count
    if count < 0 or count * 6 > end - position or left < 0:
        raise refuse_count(count, "topics")
    for _ in range(count):
        size = INT16.unpack_from(view, position)[0]
        position += 2
        stop = position + size
        if size < 0 or stop > end:
            raise refuse_length(size, "topics.topic")
        topic = str(view[position:stop], "utf-8")
        partition_count = INT32.unpack_from(view, stop)[0]
        position = stop + 4
        left -= partition_count
        if partition_count < 0 or partition_count * partition_bytes > end - position or left < 0:
            raise refuse_count(partition_count, "partitions")
        partitions: list[FetchPartition] = []
        stop = position + partition_count * partition_bytes
        if version >= 9:
            for start in range(position, stop, partition_bytes):
                index, epoch, offset, log_start, max_bytes = unpack(view, start)
                partitions.append(_new(FetchPartition, (index, epoch, offset, -1, log_start, max_bytes, -1)))
        elif version >= 5:
            for start in range(position, stop, partition_bytes):
                index, offset, log_start, max_bytes = unpack(view, start)
                partitions.append(_new(FetchPartition, (index, -1, offset, -1, log_start, max_bytes, -1)))
        else:
            for start in range(position, stop, partition_bytes):
                index, offset, max_bytes = unpack(view, start)
                partitions.append(_new(FetchPartition, (index, -1, offset, -1, -1, max_bytes, -1)))
        position = stop
        request.topics.append((topic, partitions))
    if version >= SESSIONS:
        count = INT32.unpack_from(view, position)[0]
        position += 4
        left -= count
        if count < 0 or count * 6 > end - position or left < 0:
            raise refuse_count(count, "forgotten_topics_data")
        for _ in range(count):
            size = INT16.unpack_from(view, position)[0]
            position += 2
            stop = position + size
            if size < 0 or stop > end:
                raise refuse_length(size, "forgotten_topics_data.topic")
            topic = str(view[position:stop], "utf-8")
            partition_count = INT32.unpack_from(view, stop)[0]
            position = stop + 4
            left -= partition_count
            if partition_count < 0 or partition_count * 4 > end - position or left < 0:
                raise refuse_count(partition_count, "forgotten_topics_data.partitions")
            stop = position + 4 * partition_count
            request.forgotten.append((topic, [index for (index,) in INDEX.iter_unpack(view[position:stop])]))
            position = stop
    if version >= 11:
        size = INT16.unpack_from(view, position)[0]
        position += 2
        stop = position + size
        if size < 0 or stop > end:
            raise refuse_length(size, "rack_id")
        request.rack_id = str(view[position:stop], "utf-8")
        position = stop
    return request


def _decode_flexible(version: int, view: Buffer) -> FetchRequest:
    end = len(view)
    left = REQUEST_ELEMENTS
    request = FetchRequest()
    if version >= REPLICA_STATE:
        (
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
            count,
        ) = HEAD_REPLICA_STATE.unpack_from(view)
        position = HEAD_REPLICA_STATE.size
    else:
        (
            request.replica_id,
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
            count,
        ) = HEAD_FLEXIBLE.unpack_from(view)
        position = HEAD_FLEXIBLE.size
    if count > 127:
        count, position = read_uvarint(view, position - 1)
    count -= 1
    left -= count
    if count < 0:
        raise refuse_null("topics")
    if count * (18 if version >= TOPIC_IDS else 3) > end - position or left < 0:
        raise refuse_count(count, "topics")
    unpack = PARTITION_FLEXIBLE.unpack_from
    for _ in range(count):
        topic, position = _read_topic(version, view, position)
        partition_count, position = read_uvarint(view, position)
        partition_count -= 1
        left -= partition_count
        if partition_count < 0:
            raise refuse_null("partitions")
        if partition_count * 33 > end - position or left < 0:
            raise refuse_count(partition_count, "partitions")
        partitions: list[FetchPartition] = []
        for _ in range(partition_count):
            index, epoch, offset, last_epoch, log_start, max_bytes, tags = unpack(view, position)
            position += 33
            stored_end = -1
            if tags:
                stored_end, position = _read_partition_tags(version, view, position - 1)
            partitions.append(
                _new(FetchPartition, (index, epoch, offset, last_epoch, log_start, max_bytes, stored_end))
            )
        position = skip_tagged_fields(view, position) if view[position] else position + 1
        request.topics.append((topic, partitions))
    count, position = read_uvarint(view, position)
    count -= 1
    left -= count
    if count < 0:
        raise refuse_null("forgotten_topics_data")
    if count * (18 if version >= TOPIC_IDS else 3) > end - position or left < 0:
        raise refuse_count(count, "forgotten_topics_data")
    for _ in range(count):
        topic, position = _read_topic(version, view, position)
        partition_count, position = read_uvarint(view, position)
        partition_count -= 1
        left -= partition_count
        if partition_count < 0:
            raise refuse_null("forgotten_topics_data.partitions")
        if partition_count * 4 > end - position or left < 0:
            raise refuse_count(partition_count, "forgotten_topics_data.partitions")
        stop = position + 4 * partition_count
        request.forgotten.append((topic, [index for (index,) in INDEX.iter_unpack(view[position:stop])]))
        position = skip_tagged_fields(view, stop)
    size, position = read_uvarint(view, position)
    stop = compact_string_end(view, position, size, "rack_id")
    if size > 1:
        request.rack_id = str(view[position:stop], "utf-8")
    position = stop
    position = _read_request_tags(version, view, position, request) if view[position] else position + 1
    return request


def _read_topic(version: int, view: Buffer, position: int) -> tuple[TopicRef, int]:
    """The topic at ``position`` and the position after it."""
    if version >= TOPIC_IDS:
        stop = position + 16
        if stop > len(view):
            raise refuse_length(16, "topic_id")
        return uuid_of(bytes(view[position:stop])), stop
    size, position = read_uvarint(view, position)
    stop = compact_string_end(view, position, size, "topic")
    return str(view[position:stop], "utf-8"), stop


def _read_partition_tags(version: int, view: Buffer, position: int) -> tuple[int, int]:
    """The stored end and the position after the tagged fields of a partition; ``position`` is that of their count."""
    stored_end = -1
    count, position = tagged_field_count(view, position)
    tag = -1
    for _ in range(count):
        tag, start, position = next_tagged_field(view, position, tag)
        if tag == 0 and version >= DIRECTORY_IDS and position - start != 16:
            raise refuse_tag_size("replica_directory_id")
        if tag == 1 and version >= HIGH_WATERMARKS and position - start != 8:
            raise refuse_tag_size("high_watermark")
        if tag == STORED_END_TAG:
            if position - start != STORED_END.size:
                raise refuse_tag_size("stored_end")
            (stored_end,) = STORED_END.unpack_from(view, start)
    return stored_end, position


REPLICA: Final = Struct(">iq")


def _read_request_tags(version: int, view: Buffer, position: int, request: FetchRequest) -> int:
    """The position after the tagged fields of the request, which are put into ``request``."""
    count, position = tagged_field_count(view, position)
    tag = -1
    for _ in range(count):
        tag, start, position = next_tagged_field(view, position, tag)
        if tag == 0:
            size, start = read_uvarint(view, start)
            stop = compact_string_end(view, start, size, "cluster_id") if size else start
            if stop != position:
                raise refuse_tag_size("cluster_id")
            request.cluster_id = str(view[start:position], "utf-8") if size else None
        elif tag == 1 and version >= REPLICA_STATE:
            request.replica_id, request.replica_epoch = REPLICA.unpack_from(view, start)
            if skip_tagged_fields(view, start + REPLICA.size) != position:
                raise refuse_tag_size("replica_state")
    return position


# --- encoding responses -----------------------------------------------------------------------------------------------


class RecordsRef(NamedTuple):
    """A range of records in a response: ``length`` bytes, to be written from ``source``, which is the caller's own."""

    length: int
    source: object = None


Piece: TypeAlias = bytes | RecordsRef


class PartitionData(NamedTuple):
    """The answer for one partition."""

    partition_index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    preferred_read_replica: int = -1
    records: RecordsRef | None = None
    """None and a length of 0 are written alike, as empty records: clients older than KIP-74's want no null."""
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    """``(producer id, first offset)`` for read_committed; None otherwise."""
    diverging_epoch: tuple[int, int] | None = None
    """``(epoch, end offset)``: where a follower's log, or a consumer's position, parts from the leader's (KIP-595)."""
    current_leader: tuple[int, int] | None = None
    """``(broker id, leader epoch)``, with NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH."""


RESPONSE_4: Final = Struct(">ii")
"""Throttle time, count of topics."""
RESPONSE_7: Final = Struct(">ihii")
"""… with error and session id before the count."""
RESPONSE_FLEXIBLE: Final = Struct(">ihi")

DATA_4: Final = Struct(">ihqq")
DATA_5: Final = Struct(">ihqqq")
DATA_FLEXIBLE: Final = Struct(">ihqqqBi")
"""Index, error, high watermark, last stable offset, log start, aborted transactions (none), preferred replica."""
ABORTED: Final = Struct(">qq")
ABORTED_FLEXIBLE: Final = Struct(">qqx")
DIVERGING: Final = Struct(">BBiqx")
"""A tagged field of 13 bytes: tag, size, epoch, end offset, no tagged fields."""
DIVERGING_BYTES: Final = 13


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicRef, Sequence[PartitionData]]],
    *,
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Piece]:
    """The whole response, frame and header included, as pieces to write in order.

    A ``RecordsRef`` of the result is one of those passed in, never of length 0; neighbouring bytes are joined. Fields that
    the version lacks (the error before 7, leaders before 12) are left out.
    Raises: ValueError if a topic's name is too long for the version, or the frame for its prefix.
    """
    pieces: list[Piece] = []
    parts: list[bytes] = []
    flexible = version >= FLEXIBLE
    if flexible:
        parts.append(INT32.pack(correlation_id) + b"\0")
        parts.append(RESPONSE_FLEXIBLE.pack(throttle_time_ms, error_code, session_id))
        parts.append(uvarint(len(topics) + 1))
    elif version >= SESSIONS:
        parts.append(INT32.pack(correlation_id))
        parts.append(RESPONSE_7.pack(throttle_time_ms, error_code, session_id, len(topics)))
    else:
        parts.append(INT32.pack(correlation_id))
        parts.append(RESPONSE_4.pack(throttle_time_ms, len(topics)))
    size = 0
    for topic, partitions in topics:
        if version >= TOPIC_IDS:
            parts.append(topic.bytes)  # type: ignore[union-attr]
        elif flexible:
            put_compact_string(parts, topic)  # type: ignore[arg-type]
        else:
            put_string(parts, topic)  # type: ignore[arg-type]
        parts.append(uvarint(len(partitions) + 1) if flexible else INT32.pack(len(partitions)))
        for data in partitions:
            index, error, high_watermark, last_stable, log_start, replica, records, aborted, diverging, leader = data
            length = records.length if records is not None else 0
            if flexible:
                if aborted is None:
                    fixed = DATA_FLEXIBLE.pack(index, error, high_watermark, last_stable, log_start, 0, replica)
                    parts.append(fixed + uvarint(length + 1))
                else:
                    parts.append(DATA_5.pack(index, error, high_watermark, last_stable, log_start))
                    parts.append(uvarint(len(aborted) + 1))
                    parts.extend([ABORTED_FLEXIBLE.pack(*transaction) for transaction in aborted])
                    parts.append(INT32.pack(replica) + uvarint(length + 1))
            else:
                if version >= 5:
                    parts.append(DATA_5.pack(index, error, high_watermark, last_stable, log_start))
                else:
                    parts.append(DATA_4.pack(index, error, high_watermark, last_stable))
                if aborted is None:
                    parts.append(b"\xff\xff\xff\xff")
                else:
                    parts.append(INT32.pack(len(aborted)))
                    parts.extend([ABORTED.pack(*transaction) for transaction in aborted])
                if version >= 11:
                    parts.append(INT32.pack(replica))
                parts.append(INT32.pack(length))
            if length:
                assert records is not None
                piece = b"".join(parts)
                size += length + len(piece)
                pieces.append(piece)
                pieces.append(records)
                parts = []
            if flexible:
                if diverging is None and leader is None:
                    parts.append(b"\0")
                else:
                    _put_partition_tags(parts, diverging, leader)
        if flexible:
            parts.append(b"\0")
    if flexible:
        put_node_endpoints(parts, node_endpoints if version >= ENDPOINTS else ())
    if parts:
        piece = b"".join(parts)
        size += len(piece)
        pieces.append(piece)
    if size > 0x7FFF_FFFF:
        raise ValueError(f"a Fetch response of {size} bytes")
    pieces[0] = INT32.pack(size) + pieces[0]  # type: ignore[operator]
    return pieces


def _put_partition_tags(parts: list[bytes], diverging: tuple[int, int] | None, leader: tuple[int, int] | None) -> None:
    fields = []
    if diverging is not None and diverging != (-1, -1):
        fields.append(DIVERGING.pack(0, DIVERGING_BYTES, *diverging))
    if leader is not None and leader != (-1, -1):
        fields.append(LEADER.pack(1, LEADER_BYTES, *leader))
    parts.append(uvarint(len(fields)))
    parts.extend(fields)


# --- the client's direction -------------------------------------------------------------------------------------------

STORED_END_HEAD: Final = uvarint(STORED_END_TAG) + uvarint(STORED_END.size)


def encode_fetch_request(version: int, correlation_id: int, client_id: str | None, request: FetchRequest) -> bytes:
    """The whole request, frame and header included. Raises: ValueError if it cannot be said in this version."""
    header = encode_request_header(ApiKey.FETCH, version, correlation_id, client_id)
    return frame(header, encode_fetch_body(version, request))


def encode_fetch_body(version: int, request: FetchRequest) -> bytes:
    """The body of a request. Fields that the version lacks are left out.

    Raises: ValueError if a string is too long for the version, or the version is not known.
    """
    if not VERSION_FIRST <= version <= VERSION_LAST:
        raise ValueError(f"Fetch v{version} is not known")
    flexible = version >= FLEXIBLE
    parts: list[bytes] = []
    if version < REPLICA_STATE:
        parts.append(INT32.pack(request.replica_id))
    parts.append(LIMITS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level))
    if version >= SESSIONS:
        parts.append(TWO_INTS.pack(request.session_id, request.session_epoch))
    parts.append(_count(flexible, len(request.topics)))
    for topic, partitions in request.topics:
        _put_topic(version, parts, topic)
        parts.append(_count(flexible, len(partitions)))
        for index, epoch, offset, last_epoch, log_start, max_bytes, stored_end in partitions:
            if flexible and stored_end >= 0:
                asked = (index, epoch, offset, last_epoch, log_start, max_bytes)
                parts.append(PARTITION_STORED_END.pack(*asked, 1, STORED_END_HEAD, stored_end))
            elif flexible:
                parts.append(PARTITION_FLEXIBLE.pack(index, epoch, offset, last_epoch, log_start, max_bytes, 0))
            elif version >= 9:
                parts.append(PARTITION_9.pack(index, epoch, offset, log_start, max_bytes))
            elif version >= 5:
                parts.append(PARTITION_5.pack(index, offset, log_start, max_bytes))
            else:
                parts.append(PARTITION_4.pack(index, offset, max_bytes))
        if flexible:
            parts.append(b"\0")
    if version >= SESSIONS:
        parts.append(_count(flexible, len(request.forgotten)))
        for topic, indexes in request.forgotten:
            _put_topic(version, parts, topic)
            parts.append(_count(flexible, len(indexes)))
            parts.extend([INT32.pack(index) for index in indexes])
            if flexible:
                parts.append(b"\0")
    if flexible:
        put_compact_string(parts, request.rack_id)
        _put_request_tags(version, parts, request)
    elif version >= 11:
        put_string(parts, request.rack_id)
    return b"".join(parts)


def _count(flexible: bool, count: int) -> bytes:
    return uvarint(count + 1) if flexible else INT32.pack(count)


def _put_topic(version: int, parts: list[bytes], topic: TopicRef) -> None:
    if version >= TOPIC_IDS:
        parts.append(topic.bytes)  # type: ignore[union-attr]
    elif version >= FLEXIBLE:
        put_compact_string(parts, topic)  # type: ignore[arg-type]
    else:
        put_string(parts, topic)  # type: ignore[arg-type]


def _put_request_tags(version: int, parts: list[bytes], request: FetchRequest) -> None:
    fields: list[bytes] = []
    if request.cluster_id is not None:
        body: list[bytes] = []
        put_compact_string(body, request.cluster_id)
        joined = b"".join(body)
        fields.append(b"\x00" + uvarint(len(joined)) + joined)
    if version >= REPLICA_STATE and (request.replica_id, request.replica_epoch) != (-1, -1):
        fields.append(
            b"\x01" + uvarint(REPLICA.size + 1) + REPLICA.pack(request.replica_id, request.replica_epoch) + b"\0"
        )
    parts.append(uvarint(len(fields)))
    parts.extend(fields)


def decode_fetch_response(version: int, view: memoryview) -> FetchResponse:
    """The response that ``view`` is, without its header; records are slices of ``view``. Raises: ProtocolError."""
    response: FetchResponse = decode_response(ApiKey.FETCH, version, view)
    return response


# --- the follower's direction -----------------------------------------------------------------------------------------


class FetchedPartition(NamedTuple):
    """One partition of a leader's response to a follower."""

    topic_id: UUID
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None
    """``(epoch, end offset)``: the follower truncates its log to there before it appends (ADR 0024, A2)."""
    current_leader: tuple[int, int] | None
    """``(broker id, leader epoch)``, if the leader knows another."""
    records: memoryview
    """Whole batches, as a slice of the response. Empty if there are none."""


class Fetched(NamedTuple):
    """The response to a follower."""

    throttle_time_ms: int
    error_code: int
    """Of the session; nothing else is said then."""
    session_id: int
    partitions: list[FetchedPartition]


FETCHED_HEAD: Final = Struct(">ihi")
"""Throttle time, error, session id."""
NO_RECORDS: Final = memoryview(b"")
PAIR: Final = Struct(">iq")
"""Epoch and offset."""


def decode_fetched(version: int, view: memoryview) -> Fetched:
    """The response that ``view`` is, without its header, as a follower reads it: versions 13 to 18, which name topics by id.

    It is the same as ``decode_fetch_response`` without the fields that only consumers need (last stable offsets, aborted
    transactions, preferred replicas) and without the addresses of leaders, which a broker knows. Records are slices of ``view``.
    Raises: ProtocolError, with UNSUPPORTED_VERSION outside of these versions.
    """
    try:
        if not TOPIC_IDS <= version <= VERSION_LAST:
            raise ProtocolError("Followers do not speak this version.", ErrorCode.UNSUPPORTED_VERSION)
        return _decode_fetched(view)
    except TROUBLES as trouble:
        raise explain(trouble, f"Fetch v{version} response") from None


def _decode_fetched(view: memoryview) -> Fetched:
    end = len(view)
    left = MESSAGE_ELEMENTS_MAX
    throttle_time_ms, error_code, session_id = FETCHED_HEAD.unpack_from(view)
    topic_count, position = _read_count(view, FETCHED_HEAD.size, "responses", 18, left)
    left -= topic_count
    partitions: list[FetchedPartition] = []
    unpack = DATA_FLEXIBLE.unpack_from
    for _ in range(topic_count):
        if position + 16 > end:
            raise refuse_length(16, "topic_id")
        topic_id = uuid_of(bytes(view[position : position + 16]))
        partition_count, position = _read_count(view, position + 16, "partitions", 37, left)
        left -= partition_count
        for _ in range(partition_count):
            index, error, high_watermark, _, log_start, aborted, _ = unpack(view, position)
            if aborted > 1:
                position, left = _skip_aborted(view, position + DATA_5.size, left)
            else:
                position += DATA_FLEXIBLE.size
            size, position = read_uvarint(view, position)
            records = NO_RECORDS
            if size > 1:
                stop = position + size - 1
                if stop > end:
                    raise refuse_length(size - 1, "records")
                records = view[position:stop]
                position = stop
            diverging = leader = None
            if view[position]:
                diverging, leader, position = _read_answer_tags(view, position)
            else:
                position += 1
            partitions.append(
                _new(
                    FetchedPartition,
                    (topic_id, index, error, high_watermark, log_start, diverging, leader, records),
                )
            )
        position = skip_tagged_fields(view, position)
    position = skip_tagged_fields(view, position)
    if position != end:
        raise refuse_rest(end - position)
    return Fetched(throttle_time_ms, error_code, session_id, partitions)


def _read_count(view: memoryview, position: int, name: str, bytes_min: int, left: int) -> tuple[int, int]:
    """The count of a compact array at ``position``, whose elements have ``bytes_min`` bytes at least, and the position after it."""
    count, position = read_uvarint(view, position)
    count -= 1
    if count < 0:
        raise refuse_null(name)
    if count * bytes_min > len(view) - position or count > left:
        raise refuse_count(count, name)
    return count, position


def _skip_aborted(view: memoryview, position: int, left: int) -> tuple[int, int]:
    """The position after aborted transactions and the preferred replica, and how many elements the rest may have."""
    count, position = _read_count(view, position, "aborted_transactions", ABORTED_FLEXIBLE.size, left)
    for _ in range(count):
        position = skip_tagged_fields(view, position + ABORTED.size)
    return position + INT32.size, left - count


def _read_answer_tags(view: memoryview, position: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None, int]:
    """Diverging epoch, current leader, and the position after the tagged fields of a partition, whose count is at ``position``."""
    diverging: tuple[int, int] | None = None
    leader: tuple[int, int] | None = None
    count, position = tagged_field_count(view, position)
    tag = -1
    for _ in range(count):
        tag, start, position = next_tagged_field(view, position, tag)
        if tag == 0:
            diverging = PAIR.unpack_from(view, start)
            start += PAIR.size
        elif tag == 1:
            leader = TWO_INTS.unpack_from(view, start)
            start += TWO_INTS.size
        elif tag == 2:  # a snapshot of Kafka's metadata quorum
            start += PAIR.size
        else:
            continue
        if skip_tagged_fields(view, start) != position:
            raise refuse_tag_size(("diverging_epoch", "current_leader", "snapshot_id")[tag])
    return (
        None if diverging == (-1, -1) else diverging,
        None if leader == (-1, -1) else leader,
        position,
    )
