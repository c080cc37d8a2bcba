"""Bad bytes stop at the door (INV-6, INV-7): whatever arrives, a message or ProtocolError comes out, in bounded memory."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import ProtocolError
from app.core.limits import REQUEST_ELEMENTS_MAX, TAGGED_FIELDS_MAX
from app.core.turns import whole
from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.apis import APIS
from app.wire.primitives import STRING_BYTES_MAX
from tests.wire import reference
from tests.wire.attacks import REFUSED_AT_ONCE, attacks, full_message, replaced, with_texts
from tests.wire.messages import MESSAGE_IDS, MESSAGES, decode, encode
from tests.wire.reference import Subject

BYTES_PER_MESSAGE_MAX = 40_000
"""What decoding one of these small messages may allocate at its peak, refused or not."""


def refusal_of(subject: Subject, data: bytes) -> str:
    """Why bytes are no message; empty if they are one."""
    try:
        decode(subject, data)
    except ProtocolError as error:
        return str(error)
    return ""


by_message = pytest.mark.parametrize(("key", "is_request"), MESSAGES, ids=MESSAGE_IDS)


@by_message
def test_a_string_longer_than_an_int16_can_say_is_refused_anywhere(key: int, is_request: bool) -> None:
    for subject in reference.subjects(key, is_request):
        if subject.is_flexible:
            notes = full_message(subject)
            for data in with_texts(notes, STRING_BYTES_MAX + 1):
                assert "claims 32768 bytes" in refusal_of(subject, data)
            for data in with_texts(notes, STRING_BYTES_MAX):
                assert "bytes" not in refusal_of(subject, data)


@pytest.mark.ci
@by_message
def test_a_hostile_count_or_length_anywhere_is_refused_before_anything_is_allocated(key: int, is_request: bool) -> None:
    for subject in reference.subjects(key, is_request):
        notes = full_message(subject)
        decode(subject, notes.data)  # compiled now, so that only the reading is measured
        tracemalloc.start()
        try:
            for spot, data in attacks(subject, notes):
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                with pytest.raises(ProtocolError, match=REFUSED_AT_ONCE):
                    decode(subject, data)
                _, peak = tracemalloc.get_traced_memory()
                assert peak - before < BYTES_PER_MESSAGE_MAX, (subject, spot)
        finally:
            tracemalloc.stop()


@by_message
def test_null_is_taken_only_where_the_version_has_it(key: int, is_request: bool) -> None:
    for subject in reference.subjects(key, is_request):
        notes = full_message(subject)
        for spot in notes.spots:
            null = b"\0" if subject.is_flexible else b"\xff" * spot.size
            if spot.is_nullable:
                # What the field carried is now garbage behind it, which is refused for any reason but this null, unless
                # a request is at its end before the garbage is.
                data = replaced(notes, spot, null)
                refusal = refusal_of(subject, data)
                assert f".{spot.name} must not be null" not in refusal
                if not refusal:
                    assert is_request
                    assert len(encode(subject, decode(subject, data))) < len(data)
            else:
                with pytest.raises(ProtocolError):
                    decode(subject, replaced(notes, spot, null))


@by_message
def test_a_message_cut_anywhere_is_refused(key: int, is_request: bool) -> None:
    for subject in reference.subjects(key, is_request):
        data = full_message(subject).data
        for cut in range(len(data)):
            with pytest.raises(ProtocolError):
                decode(subject, data[:cut])


@by_message
def test_bytes_behind_a_request_mean_nothing_and_behind_a_response_are_refused(key: int, is_request: bool) -> None:
    for subject in reference.subjects(key, is_request):
        data = full_message(subject).data
        if is_request:
            for rest in (b"\0", b"\0\0\0", b"\xff" * 9, data):
                assert encode(subject, decode(subject, data + rest)) == data
        else:
            with pytest.raises(ProtocolError, match="1 bytes follow the message"):
                decode(subject, data + b"\0")


@by_message
def test_text_that_is_not_utf8_is_refused_everywhere(key: int, is_request: bool) -> None:
    for subject in reference.subjects(key, is_request):
        notes = full_message(subject)
        for position in notes.texts:
            data = notes.data[:position] + b"\xff" + notes.data[position + 1 :]
            with pytest.raises(ProtocolError, match="not UTF-8"):
                decode(subject, data)


@by_message
def test_unknown_tagged_fields_are_skipped_in_every_section(key: int, is_request: bool) -> None:
    for subject in reference.subjects(key, is_request):
        if not subject.is_flexible:
            continue
        for seed in range(3):
            message = reference.make(subject, random.Random(seed), full=seed == 0)
            notes = reference.encode(subject, message, reference.UNKNOWN_TAGS)
            assert decode(subject, notes.data) == message


@by_message
def test_tagged_fields_that_repeat_or_fall_are_refused_in_every_section(key: int, is_request: bool) -> None:
    for subject in reference.subjects(key, is_request):
        message = reference.make(subject, random.Random(7), full=True)
        for section in range(len(reference.encode(subject, message).tag_sections)):
            for first, second in ((20_000, 20_000), (20_001, 20_000)):
                notes = reference.encode(subject, message, ((first, b"a"), (second, b"b")), section)
                with pytest.raises(ProtocolError, match=f"Tagged field {second} follows {first}"):
                    decode(subject, notes.data)


@by_message
@settings(max_examples=12, deadline=None)
@given(data=st.binary(max_size=120), choice=st.integers(0, 1000))
def test_random_bytes_give_a_message_or_a_protocol_error(key: int, is_request: bool, data: bytes, choice: int) -> None:
    versions = reference.subjects(key, is_request)
    with contextlib.suppress(ProtocolError):
        decode(versions[choice % len(versions)], data)


@by_message
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, (1 << 32) - 1))
def test_a_message_with_flipped_bytes_gives_a_message_or_a_protocol_error(
    key: int, is_request: bool, seed: int
) -> None:
    chance = random.Random(seed)
    for subject in reference.subjects(key, is_request):
        data = bytearray(reference.encode(subject, reference.make(subject, chance)).data)
        for _ in range(chance.randint(1, 4)):
            if data:
                data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        with contextlib.suppress(ProtocolError):
            decode(subject, bytes(data))


def test_the_elements_of_all_arrays_of_a_message_share_one_bound() -> None:
    """Each array is below the bound and fits in its bytes; together they are above it."""
    half = REQUEST_ELEMENTS_MAX // 2 + 1
    topic = struct.pack(">h", 0) + struct.pack(">i", half) + bytes(4 * half)
    data = struct.pack(">i", 2) + topic + topic
    with pytest.raises(ProtocolError, match=f"claims {half} elements"):
        codec.decode_request(ApiKey.OFFSET_FETCH, 1, struct.pack(">h", 0) + data)
    with pytest.raises(ProtocolError, match=f"claims {half} elements"):
        whole(codec.decode_request_steps(ApiKey.OFFSET_FETCH, 1, struct.pack(">h", 0) + data))


def test_more_tagged_fields_than_allowed_are_refused_even_if_all_are_there() -> None:
    count = TAGGED_FIELDS_MAX + 1
    fields = b"".join(reference.varint(tag) + b"\0" for tag in range(count))
    with pytest.raises(ProtocolError, match=f"{count} tagged fields are claimed"):
        codec.decode_request(ApiKey.API_VERSIONS, 3, b"\x02n\x02v" + reference.varint(count) + fields)
    allowed = b"\x02n\x02v" + reference.varint(count - 1) + fields[: -len(reference.varint(count - 1)) - 1]
    assert codec.decode_request(ApiKey.API_VERSIONS, 3, allowed).client_software_name == "n"


def test_a_tagged_field_must_be_as_long_as_it_says() -> None:
    # Fetch v12: cluster id, tag 0, says 3 bytes but holds "a" (2 bytes).
    head = struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, 0) + b"\x01\x01\x01"
    right = head + b"\x01" + b"\x00\x02" + b"\x02a"
    assert codec.decode_request(ApiKey.FETCH, 12, right).cluster_id == "a"
    with pytest.raises(ProtocolError, match="not as long as it says"):
        codec.decode_request(ApiKey.FETCH, 12, head + b"\x01" + b"\x00\x03" + b"\x02a\x00")


def test_a_nullable_struct_opens_with_minus_one_or_one() -> None:
    head = b"\x01" + struct.pack(">i", 5)
    assert codec.decode_request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, head + b"\xff\x00").cursor is None
    cursor = codec.decode_request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, head + b"\x01\x02t\0\0\0\x07\0\0").cursor
    assert (cursor.topic_name, cursor.partition_index) == ("t", 7)
    with pytest.raises(ProtocolError, match="opens with 0"):
        codec.decode_request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, head + b"\x00\x00")


def test_every_api_is_attacked() -> None:
    assert {key for key, _ in MESSAGES} == set(APIS)
