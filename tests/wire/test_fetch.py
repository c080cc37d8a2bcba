"""The hand-written Fetch says and reads what the codec does, which is held against kio."""

from __future__ import annotations

import dataclasses
import random
import struct
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import ErrorCode, ProtocolError
from app.wire import codec, fetch
from app.wire.apikeys import ApiKey
from app.wire.apis import fetch as messages
from app.wire.endpoints import NodeEndpoint
from app.wire.fetch import FetchPartition, FetchRequest, PartitionData, RecordsRef
from app.wire.framing import response_frame
from app.wire.header import parse_request_header
from app.wire.primitives import STRING_BYTES_MAX, uvarint
from app.wire.schema import ZERO_UUID
from tests.wire import reference
from tests.wire.attacks import REFUSED_AT_ONCE, attacks, full_message, with_texts
from tests.wire.drawn import int64s, names, nodes
from tests.wire.reference import Subject

VERSIONS = range(4, 19)

versions = st.sampled_from(VERSIONS)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)


def topic_refs(version: int) -> st.SearchStrategy[Any]:
    return st.uuids() if version >= fetch.TOPIC_IDS else names


def via_codec(version: int, data: bytes) -> FetchRequest:
    """What the codec reads, in the shape of the hand-written reader."""
    message = codec.decode_request(ApiKey.FETCH, version, data)

    def ref(topic: Any) -> Any:
        return topic.topic_id if version >= fetch.TOPIC_IDS else topic.topic

    by_tag = version >= fetch.REPLICA_STATE
    return FetchRequest(
        replica_id=message.replica_state.replica_id if by_tag else message.replica_id,
        replica_epoch=message.replica_state.replica_epoch,
        max_wait_ms=message.max_wait_ms,
        min_bytes=message.min_bytes,
        max_bytes=message.max_bytes,
        isolation_level=message.isolation_level,
        session_id=message.session_id,
        session_epoch=message.session_epoch,
        topics=[
            (
                ref(topic),
                [
                    FetchPartition(
                        asked.partition,
                        asked.current_leader_epoch,
                        asked.fetch_offset,
                        asked.last_fetched_epoch,
                        asked.log_start_offset,
                        asked.partition_max_bytes,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in message.topics
        ],
        forgotten=[(ref(topic), topic.partitions) for topic in message.forgotten_topics_data],
        rack_id=message.rack_id,
        cluster_id=message.cluster_id,
    )


def assert_agree(version: int, data: bytes) -> None:
    """Both readers read the same, or both refuse."""
    try:
        expected = via_codec(version, data)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            fetch.decode_fetch(version, memoryview(data))
        return
    assert fetch.decode_fetch(version, memoryview(data)) == expected


# --- requests ---------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, (1 << 32) - 1), version=versions)
def test_requests_whole_and_mutated_are_read_as_the_codec_reads_them(seed: int, version: int) -> None:
    chance = random.Random(seed)
    subject = Subject(ApiKey.FETCH, version, True)
    tags = reference.UNKNOWN_TAGS if seed % 2 else ()
    data = reference.encode(subject, reference.make(subject, chance, full=seed % 3 == 0), tags).data
    assert fetch.decode_fetch(version, memoryview(data)) == via_codec(version, data)
    for _ in range(10):
        mutated = bytearray(data)
        mutated[chance.randrange(len(data))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        assert_agree(version, bytes(mutated))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_lengthened_or_changed_at_any_byte_is_read_as_the_codec_reads_it(version: int) -> None:
    subject = Subject(ApiKey.FETCH, version, True)
    data = full_message(subject).data
    for cut in range(len(data)):
        with pytest.raises(ProtocolError, match=f"Fetch v{version} request"):
            fetch.decode_fetch(version, data[:cut])
    for rest in (b"\0", b"\0\0\0", b"\xff" * 9, data):
        assert fetch.decode_fetch(version, data + rest) == fetch.decode_fetch(version, data)
    for position in range(len(data)):
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF):
            assert_agree(version, data[:position] + bytes([value]) + data[position + 1 :])


@pytest.mark.parametrize("version", VERSIONS)
def test_hostile_counts_and_lengths_are_refused(version: int) -> None:
    subject = Subject(ApiKey.FETCH, version, True)
    for _, data in attacks(subject, full_message(subject)):
        with pytest.raises(ProtocolError, match=f"{REFUSED_AT_ONCE}|cluster_id is not as long"):
            fetch.decode_fetch(version, data)


@pytest.mark.parametrize(
    "version", [version for version in VERSIONS if Subject(ApiKey.FETCH, version, True).is_flexible]
)
def test_a_string_longer_than_an_int16_can_say_is_refused(version: int) -> None:
    for data in with_texts(full_message(Subject(ApiKey.FETCH, version, True)), STRING_BYTES_MAX + 1):
        with pytest.raises(ProtocolError, match="claims 32768 bytes"):
            fetch.decode_fetch(version, data)


@pytest.mark.parametrize(("version", "tag", "size"), [(17, 0, 15), (17, 0, 17), (18, 0, 0), (18, 1, 7), (18, 1, 9)])
def test_a_followers_tagged_fields_must_have_their_size(version: int, tag: int, size: int) -> None:
    head = struct.pack(">iiibii", 0, 0, 0, 0, 0, 0) + b"\x02" + bytes(16) + b"\x02"
    partition = struct.pack(">iiqiqi", 0, 0, 0, 0, 0, 0)
    for right_size in (16, 8)[tag], size:
        data = head + partition + bytes([1, tag, right_size]) + bytes(right_size) + b"\0\x01\x01\0"
        if right_size == size:
            with pytest.raises(ProtocolError, match="not as long as it says"):
                fetch.decode_fetch(version, data)
            with pytest.raises(ProtocolError):
                codec.decode_request(ApiKey.FETCH, version, data)
        else:
            assert fetch.decode_fetch(version, data) == via_codec(version, data)


def test_a_follower_tells_its_stored_end_and_its_epoch_in_bytes_that_kafka_skips() -> None:
    topic = UUID(int=7)
    told = FetchPartition(3, 5, 100, 4, 0, 1 << 20, 99)
    plain = FetchPartition(4, 5, 100, 4, 0, 1 << 20)
    request = FetchRequest(2, 77, 500, 1, 1 << 20, topics=[(topic, [told, plain])])
    body = fetch.encode_fetch_body(17, request)
    assert body.count(b"\x01\x90\x4e\x08" + struct.pack(">q", 99)) == 1
    assert body.endswith(b"\x01\x01\x0d" + struct.pack(">iq", 2, 77) + b"\0")
    assert fetch.decode_fetch(17, body) == request
    kafka = via_codec(17, body)
    assert kafka.topics == [(topic, [told._replace(stored_end=-1), plain])]
    assert (kafka.replica_id, kafka.replica_epoch) == (2, 77)


@pytest.mark.parametrize("version", range(12, 19))
@pytest.mark.parametrize("size", [0, 7, 9, 200])
def test_a_stored_end_that_is_no_int64_is_refused(version: int, size: int) -> None:
    asked = FetchPartition(0, 1, 2, 3, 4, 5, 6)
    body = fetch.encode_fetch_body(
        version, FetchRequest(topics=[(ZERO_UUID if version >= fetch.TOPIC_IDS else "t", [asked])])
    )
    tag = b"\x90\x4e\x08" + struct.pack(">q", 6)
    with pytest.raises(ProtocolError, match="stored_end is not as long as it says"):
        fetch.decode_fetch(version, body.replace(tag, b"\x90\x4e" + uvarint(size) + bytes(size)))
    for cut in range(body.index(tag), len(body)):
        with pytest.raises(ProtocolError):
            fetch.decode_fetch(version, body[:cut])


@pytest.mark.parametrize("version", [-1, 3, 19])
def test_versions_that_are_not_served_are_refused_by_their_code(version: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        fetch.decode_fetch(version, bytes(100))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


@settings(max_examples=100, deadline=None)
@given(data=st.data(), version=versions)
def test_a_request_that_the_client_writes_is_what_the_broker_reads(data: st.DataObject, version: int) -> None:
    partitions = st.lists(
        st.builds(FetchPartition, int32s, int32s, int64s, int32s, int64s, int32s, st.integers(-1, (1 << 63) - 1)).map(
            lambda asked: asked._replace(
                current_leader_epoch=asked.current_leader_epoch if version >= 9 else -1,
                last_fetched_epoch=asked.last_fetched_epoch if version >= 12 else -1,
                log_start_offset=asked.log_start_offset if version >= 5 else -1,
                stored_end=asked.stored_end if version >= fetch.FLEXIBLE else -1,
            )
        ),
        max_size=3,
    )
    sessions = version >= fetch.SESSIONS
    request = FetchRequest(
        replica_id=data.draw(int32s),
        replica_epoch=data.draw(int64s) if version >= fetch.REPLICA_STATE else -1,
        max_wait_ms=data.draw(int32s),
        min_bytes=data.draw(int32s),
        max_bytes=data.draw(int32s),
        isolation_level=data.draw(st.sampled_from((0, 1))),
        session_id=data.draw(int32s) if sessions else 0,
        session_epoch=data.draw(int32s) if sessions else -1,
        topics=data.draw(st.lists(st.tuples(topic_refs(version), partitions), max_size=3)),
        forgotten=data.draw(st.lists(st.tuples(topic_refs(version), st.lists(int32s, max_size=2)), max_size=2))
        if sessions
        else [],
        rack_id=data.draw(st.text(max_size=4)) if version >= 11 else "",
        cluster_id=data.draw(st.none() | st.text(max_size=4)) if version >= 12 else None,
    )
    frame = fetch.encode_fetch_request(version, 3, "me", request)
    header = parse_request_header(frame[4:])
    assert header[:4] == (ApiKey.FETCH, version, 3, "me")
    body = memoryview(frame)[4 + header.body_start :]
    assert fetch.decode_fetch(version, body) == request
    message = codec.decode_request(ApiKey.FETCH, version, body)
    untold = [(topic, [asked._replace(stored_end=-1) for asked in items]) for topic, items in request.topics]
    told_by_kafka = fetch.encode_fetch_body(version, dataclasses.replace(request, topics=untold))
    assert codec.encode_request(ApiKey.FETCH, version, message) == told_by_kafka
    if untold == request.topics:
        assert body == told_by_kafka


def test_a_request_of_a_version_that_is_not_known_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="is not known"):
        fetch.encode_fetch_body(19, FetchRequest())


# --- responses --------------------------------------------------------------------------------------------------------

optional_pairs = st.none() | st.tuples(st.integers(-1, 9), st.integers(-1, 9))
answers = st.builds(
    PartitionData,
    partition_index=st.integers(0, 1 << 30),
    error_code=st.sampled_from((0, 1, 6)),
    high_watermark=int64s,
    last_stable_offset=int64s,
    log_start_offset=int64s,
    preferred_read_replica=int32s,
    records=st.none()
    | st.binary(max_size=200).map(lambda source: RecordsRef(len(source), source))
    | st.just(RecordsRef(20_000, bytes(20_000))),
    aborted_transactions=st.none() | st.lists(st.tuples(int64s, int64s), max_size=2),
    diverging_epoch=optional_pairs,
    current_leader=optional_pairs,
)


def as_message(
    topics: list[tuple[Any, list[PartitionData]]],
    throttle: int,
    error: int,
    session: int,
    endpoints: list[NodeEndpoint],
) -> messages.FetchResponse:
    return messages.FetchResponse(
        throttle_time_ms=throttle,
        error_code=error,
        session_id=session,
        responses=[
            messages.FetchableTopicResponse(
                topic=topic if isinstance(topic, str) else "",
                topic_id=topic if isinstance(topic, UUID) else ZERO_UUID,
                partitions=[
                    messages.PartitionData(
                        partition_index=data.partition_index,
                        error_code=data.error_code,
                        high_watermark=data.high_watermark,
                        last_stable_offset=data.last_stable_offset,
                        log_start_offset=data.log_start_offset,
                        diverging_epoch=messages.EpochEndOffset(*(data.diverging_epoch or (-1, -1))),
                        current_leader=messages.LeaderIdAndEpoch(*(data.current_leader or (-1, -1))),
                        aborted_transactions=None
                        if data.aborted_transactions is None
                        else [messages.AbortedTransaction(*aborted) for aborted in data.aborted_transactions],
                        preferred_read_replica=data.preferred_read_replica,
                        records=data.records.source if data.records else b"",  # type: ignore[arg-type]
                    )
                    for data in partitions
                ],
            )
            for topic, partitions in topics
        ],
        node_endpoints=[messages.NodeEndpoint(*node) for node in endpoints],
    )


@settings(max_examples=200, deadline=None)
@given(data=st.data(), version=versions)
def test_a_response_with_its_records_in_place_equals_the_codecs(data: st.DataObject, version: int) -> None:
    topics = data.draw(st.lists(st.tuples(topic_refs(version), st.lists(answers, max_size=3)), max_size=3))
    throttle, session = data.draw(st.integers(0, 1000)), data.draw(st.integers(0, 1000))
    error = data.draw(st.sampled_from((0, 70)))
    endpoints = data.draw(st.lists(nodes, max_size=2))
    pieces = fetch.encode_fetch_response(
        version,
        9,
        topics,
        throttle_time_ms=throttle,
        error_code=error,
        session_id=session,
        node_endpoints=endpoints,
    )
    written = b"".join(piece if isinstance(piece, bytes) else piece.source for piece in pieces)  # type: ignore[misc]
    message = as_message(topics, throttle, error, session, endpoints)
    assert written == response_frame(ApiKey.FETCH, version, 9, message)
    given = [item.records for _, items in topics for item in items if item.records and item.records.length]
    kept = [piece for piece in pieces if isinstance(piece, RecordsRef)]
    assert all(one is other for one, other in zip(given, kept, strict=True))
    assert not any(type(one) is type(other) is bytes for one, other in pairwise(pieces))


def test_a_client_reads_records_as_slices_of_what_it_received() -> None:
    records = RecordsRef(3, b"abc")
    pieces = fetch.encode_fetch_response(12, 1, [("t", [PartitionData(0, records=records)])])
    frame = b"".join(piece if isinstance(piece, bytes) else piece.source for piece in pieces)  # type: ignore[misc]
    view = memoryview(frame)[9:]
    read = fetch.decode_fetch_response(12, view).responses[0].partitions[0].records
    assert isinstance(read, memoryview)
    assert read == b"abc"
    assert read.obj is frame


def test_a_response_longer_than_a_frame_can_be_is_our_own_mistake() -> None:
    huge = PartitionData(0, records=RecordsRef(1 << 30))
    with pytest.raises(ValueError, match="bytes"):
        fetch.encode_fetch_response(12, 1, [("t", [huge, huge])])


# --- what a follower reads --------------------------------------------------------------------------------------------

followers_versions = st.sampled_from(range(fetch.TOPIC_IDS, fetch.VERSION_LAST + 1))


def fetched_via_codec(version: int, view: memoryview) -> fetch.Fetched:
    """What the codec reads, in the shape of the follower's reader."""
    message = fetch.decode_fetch_response(version, view)

    def pair(first: int, second: int) -> tuple[int, int] | None:
        return None if (first, second) == (-1, -1) else (first, second)

    return fetch.Fetched(
        message.throttle_time_ms,
        message.error_code,
        message.session_id,
        [
            fetch.FetchedPartition(
                topic.topic_id,
                data.partition_index,
                data.error_code,
                data.high_watermark,
                data.log_start_offset,
                pair(data.diverging_epoch.epoch, data.diverging_epoch.end_offset),
                pair(data.current_leader.leader_id, data.current_leader.leader_epoch),
                memoryview(data.records or b""),
            )
            for topic in message.responses
            for data in topic.partitions
        ],
    )


def assert_fetched_alike(version: int, data: bytes) -> None:
    try:
        expected = fetched_via_codec(version, memoryview(data))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            fetch.decode_fetched(version, memoryview(data))
        return
    assert fetch.decode_fetched(version, memoryview(data)) == expected


def answer_to_follower(version: int, chance: random.Random, *, full: bool, unknown: Any = ()) -> bytes:
    """Without the addresses of leaders, of which a follower reads nothing."""
    subject = Subject(ApiKey.FETCH, version, False)
    message = reference.make(subject, chance, full=full)
    message.node_endpoints = []
    return reference.encode(subject, message, unknown).data


@pytest.mark.ci
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, (1 << 32) - 1), version=followers_versions)
def test_a_follower_reads_responses_whole_and_mutated_as_the_codec_reads_them(seed: int, version: int) -> None:
    chance = random.Random(seed)
    tags = reference.UNKNOWN_TAGS if seed % 2 else ()
    data = answer_to_follower(version, chance, full=seed % 3 == 0, unknown=tags)
    assert fetch.decode_fetched(version, memoryview(data)) == fetched_via_codec(version, memoryview(data))
    for _ in range(10):
        mutated = bytearray(data)
        mutated[chance.randrange(len(data))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        assert_fetched_alike(version, bytes(mutated))


@pytest.mark.parametrize("version", range(fetch.TOPIC_IDS, fetch.VERSION_LAST + 1))
def test_a_response_to_a_follower_cut_lengthened_or_changed_at_any_byte_is_read_as_the_codec_reads_it(
    version: int,
) -> None:
    data = answer_to_follower(version, random.Random(7), full=True)
    for cut in range(len(data)):
        with pytest.raises(ProtocolError, match=f"Fetch v{version} response"):
            fetch.decode_fetched(version, memoryview(data[:cut]))
    with pytest.raises(ProtocolError, match="1 bytes follow"):
        fetch.decode_fetched(version, memoryview(data + b"\0"))
    for position in range(len(data)):
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF):
            assert_fetched_alike(version, data[:position] + bytes([value]) + data[position + 1 :])


@pytest.mark.parametrize("version", range(fetch.TOPIC_IDS, fetch.VERSION_LAST + 1))
def test_hostile_counts_and_lengths_of_a_response_are_refused_by_a_follower(version: int) -> None:
    subject = Subject(ApiKey.FETCH, version, False)
    message = reference.make(subject, random.Random(7), full=True)
    message.node_endpoints = []
    for _, data in attacks(subject, reference.encode(subject, message)):
        with pytest.raises(ProtocolError, match=f"{REFUSED_AT_ONCE}|is not as long as it says"):
            fetch.decode_fetched(version, memoryview(data))


@pytest.mark.ci
@settings(max_examples=200, deadline=None)
@given(data=st.data(), version=followers_versions)
def test_a_follower_reads_what_a_leader_writes(data: st.DataObject, version: int) -> None:
    topics = data.draw(st.lists(st.tuples(st.uuids(), st.lists(answers, max_size=3)), max_size=3))
    endpoints = data.draw(st.lists(nodes, max_size=2))
    pieces = fetch.encode_fetch_response(version, 9, topics, throttle_time_ms=4, session_id=6, node_endpoints=endpoints)
    frame = b"".join(piece if isinstance(piece, bytes) else piece.source for piece in pieces)  # type: ignore[misc]
    view = memoryview(frame)[9:]
    assert fetch.decode_fetched(version, view) == fetched_via_codec(version, view)


def test_a_follower_reads_records_as_slices_of_what_it_received() -> None:
    answer = PartitionData(1, 0, 10, 9, 2, records=RecordsRef(3, b"abc"))
    pieces = fetch.encode_fetch_response(17, 1, [(UUID(int=5), [answer])])
    frame = b"".join(piece if isinstance(piece, bytes) else piece.source for piece in pieces)  # type: ignore[misc]
    (read,) = fetch.decode_fetched(17, memoryview(frame)[9:]).partitions
    assert read == (UUID(int=5), 1, 0, 10, 2, None, None, b"abc")
    assert read.records.obj is frame


def test_a_leader_or_a_divergence_that_is_none_is_read_as_none() -> None:
    known = fetch.LEADER.pack(1, fetch.LEADER_BYTES, -1, -1), fetch.DIVERGING.pack(0, fetch.DIVERGING_BYTES, -1, -1)
    for tag in known:
        head = fetch.FETCHED_HEAD.pack(0, 0, 0) + b"\2" + bytes(16) + b"\2"
        data = memoryview(head + fetch.DATA_FLEXIBLE.pack(0, 0, 0, 0, 0, 0, -1) + b"\0" + b"\1" + tag + b"\0\0")
        (read,) = fetch.decode_fetched(17, data).partitions
        assert (read.diverging_epoch, read.current_leader) == (None, None)
        assert fetch.decode_fetched(17, data) == fetched_via_codec(17, data)


@pytest.mark.parametrize("version", [4, 12, 19])
def test_a_follower_does_not_read_versions_that_it_does_not_speak(version: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        fetch.decode_fetched(version, memoryview(bytes(100)))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
