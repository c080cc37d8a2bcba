"""Produce, written by hand for speed: both directions of versions 3 to 13.

The common request carries one batch for one partition. Two precompiled Structs read it, around the topic's name. If the records
end where the message ends, everything is in its usual place, and nothing is left to check. All other requests, malformed ones
included, are decoded in full, so the error names the malformed field.

Records are slices of the buffer that was given, and are never copied here. A caller that keeps them longer than the buffer copies
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from uuid import UUID

from app.core.errors import ErrorCode, ProtocolError
from app.core.limits import TOPIC_NAME_CHARS_MAX
from app.wire.apikeys import ApiKey
from app.wire.bounds import elements_max
from app.wire.codec import decode_response
from app.wire.endpoints import LEADER, LEADER_BYTES, NodeEndpoint, put_node_endpoints
from app.wire.header import encode_request_header
from app.wire.primitives import (
    INT16,
    INT32,
    TROUBLES,
    Buffer,
    compact_string_end,
    explain,
    put_compact_string,
    put_string,
    read_uvarint,
    refuse_count,
    refuse_length,
    refuse_null,
    skip_tagged_fields,
    uuid_of,
    uvarint,
)

if TYPE_CHECKING:
    from app.wire.apis.produce import ProduceResponse

VERSION_FIRST: Final = 3
VERSION_LAST: Final = 13
FLEXIBLE: Final = 9
"""First version with compact lengths and tagged fields."""
LEADERS: Final = 10
"""First version whose response may name the current leader (KIP-951)."""
TOPIC_IDS: Final = 13
"""First version that speaks of topics by id (KIP-516)."""

TopicRef: TypeAlias = str | UUID
"""A topic by its name, or from version 13 by its id."""


@dataclass(slots=True)
class ProduceRequest:
    """A Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicRef, list[tuple[int, memoryview | None]]]]
    """``[(topic, [(partition index, records)])]`` in the order of the wire."""
    rest_bytes: int = field(default=0, compare=False)
    """Bytes behind the request, which mean nothing (``app.wire.codec``)."""


class PartitionResult(NamedTuple):
    """The result of a Produce to one partition."""

    partition_index: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    """``(index in the batch, message)`` of the records that were refused (KIP-467)."""
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None
    """``(broker id, leader epoch)``, with NOT_LEADER_OR_FOLLOWER (KIP-951)."""


# --- decoding requests ------------------------------------------------------------------------------------------------

HEAD: Final = Struct(">hhiih")
"""Length of the transactional id (-1), acks, time-out, count of topics, length of the first topic's name."""
HEAD_FLEXIBLE: Final = Struct(">BhiBB")
"""The same, compact."""
HEAD_TOPIC_ID: Final = Struct(">BhiB16sBi")
"""The same with a topic id, then the count of partitions and the first one's index."""
NAMED: Final = tuple(Struct(f">{size}siii") for size in range(TOPIC_NAME_CHARS_MAX + 1))
"""By length of name: the name, count of partitions, first partition's index, length of its records."""
NAMED_FLEXIBLE: Final = tuple(Struct(f">{size}sBi") for size in range(127))
"""By length of name: the name, count of partitions, first partition's index."""


def decode_produce(version: int, view: memoryview) -> ProduceRequest:
    """The Produce request that ``view`` begins with. Bytes after it are counted and ignored.

    Records are slices of ``view``. Their content is not looked at.
    Raises: ProtocolError, with UNSUPPORTED_VERSION outside of versions 3 to 13.
    """
    end = len(view)
    try:
        if version < FLEXIBLE:
            if version < VERSION_FIRST:
                raise ProtocolError("The version is not served.", ErrorCode.UNSUPPORTED_VERSION)
            if end >= 26:  # HEAD and one partition
                id_size, acks, timeout_ms, topics, size = HEAD.unpack_from(view)
                if id_size == -1 and topics == 1 and 0 <= size <= TOPIC_NAME_CHARS_MAX and 26 + size <= end:
                    name, partitions, index, size = NAMED[size].unpack_from(view, 14)
                    start = 26 + len(name)
                    if partitions == 1 and size >= 0 and start + size == end:
                        return ProduceRequest(None, acks, timeout_ms, [(name.decode(), [(index, view[start:])])])
            return _decode_classic(view)
        if version < TOPIC_IDS:
            id_size, acks, timeout_ms, topics, size = HEAD_FLEXIBLE.unpack_from(view)
            if id_size == 0 and topics == 2 and 0 < size < 128 and 13 + size < end:
                name, partitions, index = NAMED_FLEXIBLE[size - 1].unpack_from(view, 9)
                start = 13 + size
                if partitions == 2:
                    size = view[start]
                    start += 1
                    if size > 127:
                        more = view[start]
                        if more < 128:
                            size += (more << 7) - 128
                            start += 1
                        else:
                            size, start = read_uvarint(view, start - 1)
                    stop = start + size - 1
                    if size and stop + 3 == end and not (view[stop] or view[stop + 1] or view[stop + 2]):
                        return ProduceRequest(None, acks, timeout_ms, [(name.decode(), [(index, view[start:stop])])])
        elif version > VERSION_LAST:
            raise ProtocolError("The version is not served.", ErrorCode.UNSUPPORTED_VERSION)
        elif end >= 29:
            id_size, acks, timeout_ms, topics, topic_id, partitions, index = HEAD_TOPIC_ID.unpack_from(view)
            if id_size == 0 and topics == 2 and partitions == 2:
                size = view[29]
                start = 30
                if size > 127:
                    more = view[30]
                    if more < 128:
                        size += (more << 7) - 128
                        start = 31
                    else:
                        size, start = read_uvarint(view, 29)
                stop = start + size - 1
                if size and stop + 3 == end and not (view[stop] or view[stop + 1] or view[stop + 2]):
                    return ProduceRequest(None, acks, timeout_ms, [(uuid_of(topic_id), [(index, view[start:stop])])])
        return _decode_flexible(version, view)
    except TROUBLES as trouble:
        raise explain(trouble, f"Produce v{version} request") from None


TWO_INTS: Final = Struct(">ii")
INDEX_AND_SIZE: Final = Struct(">iB")
"""A partition's index and the first byte of the length of its records."""
ACKS_TIMEOUT: Final = Struct(">hi")
REQUEST_ELEMENTS: Final = elements_max(ApiKey.PRODUCE)


def _decode_classic(view: memoryview) -> ProduceRequest:
    end = len(view)
    left = REQUEST_ELEMENTS
    transactional_id = None
    size = INT16.unpack_from(view)[0]
    position = 2
    if size >= 0:
        position += size
        if position > end:
            raise refuse_length(size, "transactional_id")
        transactional_id = str(view[2:position], "utf-8")
    elif size != -1:
        raise refuse_length(size, "transactional_id")
    acks, timeout_ms = ACKS_TIMEOUT.unpack_from(view, position)
    position += 6
    topic_count = INT32.unpack_from(view, position)[0]
    position += 4
    left -= topic_count
    if topic_count < 0 or topic_count * 6 > end - position or left < 0:
        raise refuse_count(topic_count, "topic_data")
    topics: list[tuple[TopicRef, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        size = INT16.unpack_from(view, position)[0]
        position += 2
        stop = position + size
        if size < 0 or stop > end:
            raise refuse_length(size, "topic_data.name")
        name = str(view[position:stop], "utf-8")
        position = stop
        partition_count = INT32.unpack_from(view, position)[0]
        position += 4
        left -= partition_count
        if partition_count < 0 or partition_count * 8 > end - position or left < 0:
            raise refuse_count(partition_count, "partition_data")
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            index, size = TWO_INTS.unpack_from(view, position)
            position += 8
            if size >= 0:
                stop = position + size
                if stop > end:
                    raise refuse_length(size, "records")
                partitions.append((index, view[position:stop]))
                position = stop
            elif size == -1:
                partitions.append((index, None))
            else:
                raise refuse_length(size, "records")
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, end - position)


def _decode_flexible(version: int, view: memoryview) -> ProduceRequest:
    end = len(view)
    left = REQUEST_ELEMENTS
    transactional_id = None
    size, position = read_uvarint(view, 0)
    if size:
        stop = compact_string_end(view, position, size, "transactional_id")
        transactional_id = str(view[position:stop], "utf-8")
        position = stop
    acks, timeout_ms = ACKS_TIMEOUT.unpack_from(view, position)
    topic_count, position = read_uvarint(view, position + 6)
    topic_count -= 1
    left -= topic_count
    if topic_count < 0:
        raise refuse_null("topic_data")
    if topic_count * (18 if version >= TOPIC_IDS else 3) > end - position or left < 0:
        raise refuse_count(topic_count, "topic_data")
    topics: list[tuple[TopicRef, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        topic: TopicRef
        if version >= TOPIC_IDS:
            stop = position + 16
            if stop > end:
                raise refuse_length(16, "topic_id")
            topic = uuid_of(bytes(view[position:stop]))
        else:
            size, position = read_uvarint(view, position)
            stop = compact_string_end(view, position, size, "topic_data.name")
            topic = str(view[position:stop], "utf-8")
        partition_count, position = read_uvarint(view, stop)
        partition_count -= 1
        left -= partition_count
        if partition_count < 0:
            raise refuse_null("partition_data")
        if partition_count * 6 > end - position or left < 0:
            raise refuse_count(partition_count, "partition_data")
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            index, size = INDEX_AND_SIZE.unpack_from(view, position)
            position += 5
            if size > 127:
                size, position = read_uvarint(view, position - 1)
            if size:
                stop = position + size - 1
                if stop > end:
                    raise refuse_length(size - 1, "records")
                partitions.append((index, view[position:stop]))
                position = stop
            else:
                partitions.append((index, None))
            position = skip_tagged_fields(view, position) if view[position] else position + 1
        position = skip_tagged_fields(view, position) if view[position] else position + 1
        topics.append((topic, partitions))
    position = skip_tagged_fields(view, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, end - position)


# --- encoding responses -----------------------------------------------------------------------------------------------

ONE_HEAD: Final = Struct(">iiih")
"""Frame size, correlation id, count of topics, length of the name."""
ONE_HEAD_FLEXIBLE: Final = Struct(">iixBB")
ONE_TAIL_3: Final = Struct(">iihqqi")
"""Count of partitions, index, error, base offset, append time, throttle time."""
ONE_TAIL_5: Final = Struct(">iihqqqi")
"""… with the log start offset before the throttle time."""
ONE_TAIL_8: Final = Struct(">iihqqqihi")
"""… with no record errors and no message before the throttle time."""
ONE_TAIL_FLEXIBLE: Final = Struct(">BihqqqBxxxix")
ONE_TOPIC_ID: Final = Struct(">iixB16sBihqqqBxxxix")

ONE_3_BYTES: Final = ONE_HEAD.size + ONE_TAIL_3.size - 4
"""The frame's size without the topic's name."""
ONE_5_BYTES: Final = ONE_HEAD.size + ONE_TAIL_5.size - 4
ONE_8_BYTES: Final = ONE_HEAD.size + ONE_TAIL_8.size - 4
ONE_FLEXIBLE_BYTES: Final = ONE_HEAD_FLEXIBLE.size + ONE_TAIL_FLEXIBLE.size - 4
ONE_TOPIC_ID_BYTES: Final = ONE_TOPIC_ID.size - 4

PARTITION_3: Final = Struct(">ihqq")
PARTITION_5: Final = Struct(">ihqqq")
PARTITION_8: Final = Struct(">ihqqqih")
PARTITION_FLEXIBLE: Final = Struct(">ihqqqBxx")
"""No record errors, no message, no tagged fields."""


def encode_produce_success(
    version: int,
    correlation_id: int,
    topic: TopicRef,
    partition_index: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
    throttle_time_ms: int = 0,
) -> bytes:
    """The whole response, frame and header included, when one partition was written to and nothing went wrong.

    ``topic`` is an id from version 13 on, a name before. Raises: ValueError if the name is too long for the version.
    """
    if version >= TOPIC_IDS:
        return ONE_TOPIC_ID.pack(
            ONE_TOPIC_ID_BYTES, correlation_id, 2, topic.bytes,  # type: ignore[union-attr]
            2, partition_index, 0, base_offset, log_append_time_ms, log_start_offset, 1, throttle_time_ms,
        )  # fmt: skip
    name = topic.encode()  # type: ignore[union-attr]
    size = len(name)
    if version >= FLEXIBLE:
        if size < 127:
            head = ONE_HEAD_FLEXIBLE.pack(ONE_FLEXIBLE_BYTES + size, correlation_id, 2, size + 1)
            tail = ONE_TAIL_FLEXIBLE.pack(
                2, partition_index, 0, base_offset, log_append_time_ms, log_start_offset, 1, throttle_time_ms
            )
            return head + name + tail
    elif size < 32_768:
        if version >= 8:
            head = ONE_HEAD.pack(ONE_8_BYTES + size, correlation_id, 1, size)
            tail = ONE_TAIL_8.pack(
                1, partition_index, 0, base_offset, log_append_time_ms, log_start_offset, 0, -1, throttle_time_ms
            )
        elif version >= 5:
            head = ONE_HEAD.pack(ONE_5_BYTES + size, correlation_id, 1, size)
            tail = ONE_TAIL_5.pack(
                1, partition_index, 0, base_offset, log_append_time_ms, log_start_offset, throttle_time_ms
            )
        else:
            head = ONE_HEAD.pack(ONE_3_BYTES + size, correlation_id, 1, size)
            tail = ONE_TAIL_3.pack(1, partition_index, 0, base_offset, log_append_time_ms, throttle_time_ms)
        return head + name + tail
    result = PartitionResult(partition_index, 0, base_offset, log_append_time_ms, log_start_offset)
    return encode_produce_response(version, correlation_id, [(topic, [result])], throttle_time_ms)


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicRef, Sequence[PartitionResult]]],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The whole response, frame and header included.

    Fields that the version lacks (record errors before 8, leaders before 10) are left out.
    Raises: ValueError if a string is too long for the version.
    """
    if version >= FLEXIBLE:
        parts = [b"", uvarint(len(topics) + 1)]
        for topic, results in topics:
            if version >= TOPIC_IDS:
                parts.append(topic.bytes)  # type: ignore[union-attr]
            else:
                put_compact_string(parts, topic)  # type: ignore[arg-type]
            parts.append(uvarint(len(results) + 1))
            for result in results:
                if not result.record_errors and result.error_message is None and result.current_leader is None:
                    parts.append(PARTITION_FLEXIBLE.pack(*result[:5], 1))
                else:
                    _put_failure_flexible(version, parts, result)
            parts.append(b"\0")
        parts.append(INT32.pack(throttle_time_ms))
        put_node_endpoints(parts, node_endpoints if version >= LEADERS else ())
        header = b"%b\0" % INT32.pack(correlation_id)
    else:
        parts = [b"", INT32.pack(len(topics))]
        for topic, results in topics:
            put_string(parts, topic)  # type: ignore[arg-type]
            parts.append(INT32.pack(len(results)))
            for result in results:
                if version >= 8:
                    _put_result_classic(parts, result)
                elif version >= 5:
                    parts.append(PARTITION_5.pack(*result[:5]))
                else:
                    parts.append(PARTITION_3.pack(*result[:4]))
        parts.append(INT32.pack(throttle_time_ms))
        header = INT32.pack(correlation_id)
    parts[0] = INT32.pack(len(header) + sum(map(len, parts))) + header
    return b"".join(parts)


def _put_result_classic(parts: list[bytes], result: PartitionResult) -> None:
    if not result.record_errors and result.error_message is None:
        parts.append(PARTITION_8.pack(*result[:5], 0, -1))
        return
    parts.append(PARTITION_5.pack(*result[:5]))
    parts.append(INT32.pack(len(result.record_errors)))
    for index, message in result.record_errors:
        parts.append(INT32.pack(index))
        put_string(parts, message)
    put_string(parts, result.error_message)


def _put_failure_flexible(version: int, parts: list[bytes], result: PartitionResult) -> None:
    parts.append(PARTITION_5.pack(*result[:5]))
    parts.append(uvarint(len(result.record_errors) + 1))
    for index, message in result.record_errors:
        parts.append(INT32.pack(index))
        put_compact_string(parts, message)
        parts.append(b"\0")
    put_compact_string(parts, result.error_message)
    if result.current_leader is None or result.current_leader == (-1, -1) or version < LEADERS:
        parts.append(b"\0")
    else:
        parts.append(b"\x01" + LEADER.pack(0, LEADER_BYTES, *result.current_leader))


# --- the client's direction -------------------------------------------------------------------------------------------


def encode_produce_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topics: Sequence[tuple[TopicRef, Sequence[tuple[int, Buffer | None]]]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> list[Buffer]:
    """The whole request, frame and header included, as pieces to write in order; records are not copied.

    Raises: ValueError if a string is too long for the version, or the version is not known.
    """
    if not VERSION_FIRST <= version <= VERSION_LAST:
        raise ValueError(f"Produce v{version} is not known")
    header = encode_request_header(ApiKey.PRODUCE, version, correlation_id, client_id)
    pieces = _request_pieces(version, topics, acks, timeout_ms, transactional_id)
    size = INT32.pack(len(header) + sum(map(len, pieces)))
    return [b"".join((size, header, pieces[0])), *pieces[1:]]


def encode_produce_body(
    version: int,
    topics: Sequence[tuple[TopicRef, Sequence[tuple[int, Buffer | None]]]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> bytes:
    """The request without its header. Raises: ValueError if a string is too long for the version."""
    return b"".join(_request_pieces(version, topics, acks, timeout_ms, transactional_id))


def _request_pieces(
    version: int,
    topics: Sequence[tuple[TopicRef, Sequence[tuple[int, Buffer | None]]]],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
) -> list[Buffer]:
    """The request without its header, in pieces: records are not copied."""
    pieces: list[Buffer] = []
    parts: list[bytes] = []
    flexible = version >= FLEXIBLE
    put_text = put_compact_string if flexible else put_string
    put_text(parts, transactional_id)
    parts.append(ACKS_TIMEOUT.pack(acks, timeout_ms))
    parts.append(uvarint(len(topics) + 1) if flexible else INT32.pack(len(topics)))
    for topic, partitions in topics:
        if version >= TOPIC_IDS:
            parts.append(topic.bytes)  # type: ignore[union-attr]
        else:
            put_text(parts, topic)  # type: ignore[arg-type]
        parts.append(uvarint(len(partitions) + 1) if flexible else INT32.pack(len(partitions)))
        for index, records in partitions:
            parts.append(INT32.pack(index))
            if records is None:
                parts.append(b"\0" if flexible else b"\xff\xff\xff\xff")
            else:
                parts.append(uvarint(len(records) + 1) if flexible else INT32.pack(len(records)))
                pieces.append(b"".join(parts))
                pieces.append(records)
                parts = []
            if flexible:
                parts.append(b"\0")
        if flexible:
            parts.append(b"\0")
    if flexible:
        parts.append(b"\0")
    if parts:
        pieces.append(b"".join(parts))
    return pieces


ONLY_RESULT: Final = Struct(">B16sBihqqqBBBBiB")
"""A response without its header: one topic by its id, one partition, no record errors, no message."""
ONLY_RESULT_FRAME: Final = (2, 2, 0, 1, 0, 0, 0, 0)
"""Its counts, error code, and ends of fields."""


def read_only_success(version: int, view: Buffer) -> tuple[bytes, int, int, int] | None:
    """The topic's id, the partition, the base offset and the log append time of a response without its header that tells of one
    partition, and of no error. None for every other response, and before version 13."""
    if version < TOPIC_IDS or len(view) != ONLY_RESULT.size:
        return None
    found = ONLY_RESULT.unpack(view)
    topic_id, index, base_offset, log_append_time_ms = found[1], found[3], found[5], found[6]
    if (found[0], found[2], found[4], *found[8:12], found[13]) != ONLY_RESULT_FRAME:
        return None
    return topic_id, index, base_offset, log_append_time_ms


def decode_produce_response(version: int, view: Buffer) -> ProduceResponse:
    """The response that ``view`` is, without its header. Raises: ProtocolError."""
    response: ProduceResponse = decode_response(ApiKey.PRODUCE, version, view)
    return response
