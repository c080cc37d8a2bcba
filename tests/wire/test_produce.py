"""The hand-written Produce says and reads what the codec does, which is held against kio."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import ErrorCode, ProtocolError
from app.wire import codec, produce
from app.wire.apikeys import ApiKey
from app.wire.apis import produce as messages
from app.wire.endpoints import NodeEndpoint
from app.wire.framing import response_frame
from app.wire.header import parse_request_header
from app.wire.primitives import STRING_BYTES_MAX
from app.wire.produce import PartitionResult, TopicRef
from app.wire.schema import ZERO_UUID
from tests.wire import reference
from tests.wire.attacks import REFUSED_AT_ONCE, attacks, full_message, with_texts
from tests.wire.drawn import int64s, names, nodes
from tests.wire.reference import Subject

VERSIONS = range(3, 14)
TOPIC_ID = UUID("6f1d1a2e-5f0e-4c8f-9a35-2f9f6cb5a001")

versions = st.sampled_from(VERSIONS)
records = st.none() | st.binary(max_size=80) | st.sampled_from((bytes(126), bytes(127), bytes(16_383), bytes(70_000)))


def topic_refs(version: int) -> st.SearchStrategy[Any]:
    return st.uuids() if version >= produce.TOPIC_IDS else names


def via_codec(version: int, data: bytes) -> produce.ProduceRequest:
    """What the codec reads, in the shape of the hand-written reader."""
    message = codec.decode_request(ApiKey.PRODUCE, version, memoryview(data))
    return produce.ProduceRequest(
        message.transactional_id,
        message.acks,
        message.timeout_ms,
        [
            (
                topic.topic_id if version >= produce.TOPIC_IDS else topic.name,
                [(partition.index, partition.records) for partition in topic.partition_data],
            )
            for topic in message.topic_data
        ],
    )


def assert_agree(version: int, data: bytes) -> None:
    """Both readers read the same, or both refuse."""
    try:
        expected = via_codec(version, data)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            produce.decode_produce(version, memoryview(data))
        return
    assert produce.decode_produce(version, memoryview(data)) == expected


# --- requests ---------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(data=st.data(), version=versions)
def test_a_request_that_the_client_writes_is_what_the_broker_and_the_codec_read(
    data: st.DataObject, version: int
) -> None:
    partitions = st.lists(st.tuples(st.integers(0, 1 << 30), records), max_size=3)
    topics = data.draw(st.lists(st.tuples(topic_refs(version), partitions), max_size=3))
    transactional_id = data.draw(st.none() | st.text(max_size=5))
    pieces = produce.encode_produce_request(
        version, 77, "client", topics, acks=-1, timeout_ms=1500, transactional_id=transactional_id
    )
    for _, items in topics:
        for _, given_records in items:
            if given_records is not None:
                assert any(piece is given_records for piece in pieces), "records are copied"
    frame = b"".join(pieces)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = parse_request_header(memoryview(frame)[4:])
    assert header[:4] == (ApiKey.PRODUCE, version, 77, "client")
    body = frame[4 + header.body_start :]
    request = produce.decode_produce(version, memoryview(body))
    assert request == produce.ProduceRequest(transactional_id, -1, 1500, topics)  # type: ignore[arg-type]
    assert request == via_codec(version, body)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 61, 126, 127, 128, 16_382, 16_383, 20_000, 2_097_151])
def test_the_common_request_is_read_without_copying_its_records(version: int, size: int) -> None:
    topic: TopicRef = TOPIC_ID if version >= produce.TOPIC_IDS else "orders"
    pieces = produce.encode_produce_request(version, 1, None, [(topic, [(3, b"r" * size)])], acks=1, timeout_ms=9)
    frame = bytearray(b"".join(pieces))
    start = 4 + parse_request_header(frame[4:]).body_start  # type: ignore[arg-type]
    request = produce.decode_produce(version, memoryview(frame)[start:])
    ((read_topic, ((index, view),)),) = request.topics
    assert (read_topic, index, request.acks, request.timeout_ms) == (topic, 3, 1, 9)
    assert view == b"r" * size
    assert isinstance(view, memoryview)
    assert view.obj is frame


@pytest.mark.parametrize("version", VERSIONS)
def test_the_common_request_cut_anywhere_is_refused_and_lengthened_means_the_same(version: int) -> None:
    topic: TopicRef = TOPIC_ID if version >= produce.TOPIC_IDS else "orders"
    frame = b"".join(
        produce.encode_produce_request(version, 1, None, [(topic, [(3, b"r" * 150)])], acks=1, timeout_ms=9)
    )
    body = frame[4 + parse_request_header(frame[4:]).body_start :]
    for cut in range(len(body)):
        with pytest.raises(ProtocolError, match=f"Produce v{version} request"):
            produce.decode_produce(version, memoryview(body)[:cut])
    whole = produce.decode_produce(version, memoryview(body))
    assert whole.rest_bytes == 0
    for rest in (b"\0", b"\0\0\0", b"\xff" * 9, body):
        longer = produce.decode_produce(version, memoryview(body + rest))
        assert (longer, longer.rest_bytes) == (whole, len(rest))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_common_request_with_any_byte_changed_is_read_as_the_codec_reads_it(version: int) -> None:
    topic: TopicRef = TOPIC_ID if version >= produce.TOPIC_IDS else "orders"
    for size in (5, 150):
        frame = b"".join(
            produce.encode_produce_request(version, 1, None, [(topic, [(3, b"r" * size)])], acks=1, timeout_ms=9)
        )
        body = frame[4 + parse_request_header(frame[4:]).body_start :]
        for position in range(len(body)):
            for value in (0, 1, 2, 3, 0x7F, 0x80, 0xFF):
                assert_agree(version, body[:position] + bytes([value]) + body[position + 1 :])


@pytest.mark.parametrize("version", VERSIONS)
def test_hostile_counts_and_lengths_are_refused(version: int) -> None:
    subject = Subject(ApiKey.PRODUCE, version, True)
    for _, data in attacks(subject, full_message(subject)):
        with pytest.raises(ProtocolError, match=REFUSED_AT_ONCE):
            produce.decode_produce(version, memoryview(data))


@pytest.mark.parametrize(
    "version", [version for version in VERSIONS if Subject(ApiKey.PRODUCE, version, True).is_flexible]
)
def test_a_string_longer_than_an_int16_can_say_is_refused(version: int) -> None:
    for data in with_texts(full_message(Subject(ApiKey.PRODUCE, version, True)), STRING_BYTES_MAX + 1):
        with pytest.raises(ProtocolError, match="claims 32768 bytes"):
            produce.decode_produce(version, memoryview(data))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, (1 << 32) - 1), version=versions)
def test_mutated_requests_are_read_as_the_codec_reads_them(seed: int, version: int) -> None:
    chance = random.Random(seed)
    subject = Subject(ApiKey.PRODUCE, version, True)
    tags = reference.UNKNOWN_TAGS if seed % 2 else ()
    data = bytearray(reference.encode(subject, reference.make(subject, chance), tags).data)
    assert_agree(version, bytes(data))
    for _ in range(10):
        mutated = bytearray(data)
        mutated[chance.randrange(len(data))] = chance.randrange(256)
        assert_agree(version, bytes(mutated))


@pytest.mark.parametrize("version", [-1, 0, 2, 14])
def test_versions_that_are_not_served_are_refused_by_their_code(version: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        produce.decode_produce(version, memoryview(bytes(100)))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(ValueError, match="is not known"):
        produce.encode_produce_request(version, 1, None, [], acks=1, timeout_ms=1)


# --- responses --------------------------------------------------------------------------------------------------------


def as_message(
    version: int, topics: list[tuple[TopicRef, list[PartitionResult]]], throttle: int, nodes: list[NodeEndpoint]
) -> messages.ProduceResponse:
    return messages.ProduceResponse(
        responses=[
            messages.TopicProduceResponse(
                name=topic if isinstance(topic, str) else "",
                topic_id=topic if isinstance(topic, UUID) else ZERO_UUID,
                partition_responses=[
                    messages.PartitionProduceResponse(
                        index=result.partition_index,
                        error_code=result.error_code,
                        base_offset=result.base_offset,
                        log_append_time_ms=result.log_append_time_ms,
                        log_start_offset=result.log_start_offset,
                        record_errors=[messages.BatchIndexAndErrorMessage(*error) for error in result.record_errors],
                        error_message=result.error_message,
                        current_leader=messages.LeaderIdAndEpoch(*(result.current_leader or (-1, -1))),
                    )
                    for result in results
                ],
            )
            for topic, results in topics
        ],
        throttle_time_ms=throttle,
        node_endpoints=[messages.NodeEndpoint(*node) for node in nodes],
    )


results = st.builds(
    PartitionResult,
    partition_index=st.integers(0, 1 << 30),
    error_code=st.sampled_from((0, 6, 10)),
    base_offset=int64s,
    log_append_time_ms=int64s,
    log_start_offset=int64s,
    record_errors=st.just(()) | st.lists(st.tuples(st.integers(0, 99), st.none() | st.text(max_size=4)), max_size=2),
    error_message=st.none() | st.text(max_size=200),
    current_leader=st.none() | st.tuples(st.integers(-1, 9), st.integers(-1, 9)),
)


@pytest.mark.ci
@settings(max_examples=150, deadline=None)
@given(data=st.data(), version=versions)
def test_a_response_equals_the_codecs(data: st.DataObject, version: int) -> None:
    topics = data.draw(st.lists(st.tuples(topic_refs(version), st.lists(results, max_size=3)), max_size=3))
    throttle = data.draw(st.integers(0, 1000))
    endpoints = data.draw(st.lists(nodes, max_size=2))
    frame = produce.encode_produce_response(version, 5, topics, throttle, endpoints)
    message = as_message(version, topics, throttle, endpoints)
    assert frame == response_frame(ApiKey.PRODUCE, version, 5, message)
    start = 9 if version >= produce.FLEXIBLE else 8
    assert produce.decode_produce_response(version, frame[start:]).throttle_time_ms == throttle


@settings(max_examples=150, deadline=None)
@given(data=st.data(), version=versions, offsets=st.tuples(int64s, int64s, int64s), throttle=st.integers(0, 1000))
def test_the_common_response_equals_the_codecs(
    data: st.DataObject, version: int, offsets: tuple[int, int, int], throttle: int
) -> None:
    topic = data.draw(topic_refs(version))
    frame = produce.encode_produce_success(version, 6, topic, 8, *offsets, throttle)
    message = as_message(version, [(topic, [PartitionResult(8, 0, *offsets)])], throttle, [])
    assert frame == response_frame(ApiKey.PRODUCE, version, 6, message)


@given(
    versions,
    st.uuids(),
    st.integers(0, 2**31 - 1),
    st.sampled_from((0, 0, 3)),
    int64s,
    int64s,
    int64s,
    st.integers(0, 2**31 - 1),
)
def test_only_a_success_of_one_partition_by_its_id_is_read_at_once(
    version: int, topic_id: UUID, index: int, error: int, base: int, appended_ms: int, start: int, throttle_ms: int
) -> None:
    topic: TopicRef = topic_id if version >= produce.TOPIC_IDS else "t"
    result = PartitionResult(index, error, base, appended_ms, start)
    response = produce.encode_produce_response(version, 7, [(topic, [result])], throttle_ms)
    body = response[8 + (version >= produce.FLEXIBLE) :]
    expected = (topic_id.bytes, index, base, appended_ms) if version >= produce.TOPIC_IDS and not error else None
    assert produce.read_only_success(version, body) == expected
    assert produce.read_only_success(version, body + b"\0") is None


@given(st.integers(0, 59), st.integers(0, 255))
def test_a_response_that_is_read_at_once_means_the_same_to_the_codec(place: int, byte: int) -> None:
    result = PartitionResult(3, 0, 10, -1, 0)
    response = bytearray(produce.encode_produce_response(13, 7, [(TOPIC_ID, [result])])[9:])
    assert produce.read_only_success(13, response) == (TOPIC_ID.bytes, 3, 10, -1)
    response[place % len(response)] = byte
    found = produce.read_only_success(13, response)
    if found is None:
        return
    (topic,) = produce.decode_produce_response(13, response).responses
    (part,) = topic.partition_responses
    assert found == (topic.topic_id.bytes, part.index, part.base_offset, part.log_append_time_ms)
    assert (part.error_code, part.record_errors, part.error_message) == (0, [], None)


def test_a_name_too_long_for_the_version_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="40000 bytes"):
        produce.encode_produce_success(7, 1, "x" * 40_000, 0, 0, 0, 0)
