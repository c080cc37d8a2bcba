"""Every API and version, both directions: our bytes are kio's, and what we read is what was written."""

from __future__ import annotations

import dataclasses
import importlib
import random
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from app.core.errors import ErrorCode, ProtocolError
from app.core.turns import whole
from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.apis import APIS
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from app.wire.apis.update_features import UpdatableFeatureResult, UpdateFeaturesResponse
from app.wire.schema import ZERO_UUID
from tests.wire import reference
from tests.wire.messages import MESSAGE_IDS, MESSAGES, decode, encode
from tests.wire.reference import Subject

seeds = st.integers(0, (1 << 32) - 1)


@cache
def kio_class(subject: Subject) -> Any:
    part = "request" if subject.is_request else "response"
    module = importlib.import_module(f"kio.schema.{APIS[subject.key].module}.v{subject.version}.{part}")
    return getattr(module, subject.struct)


def plain(value: Any) -> Any:
    """A value of kio's as Firn has it."""
    match value:
        case tuple():
            return [plain(element) for element in value]
        case timedelta():
            return round(value.total_seconds() * 1000)
        case datetime():
            return round(value.timestamp() * 1000)
    return value


def assert_same(ours: Any, theirs: Any) -> None:
    """Every field that kio's entity has is in our message, under its name, with its value."""
    for name in (item.name for item in dataclasses.fields(theirs)):
        value = plain(getattr(theirs, name))
        mine = getattr(ours, name) if hasattr(ours, name) else getattr(ours, f"{name}_ms")
        if isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
            assert len(mine) == len(value)
            for one, other in zip(mine, value, strict=True):
                assert_same(one, other)
        elif dataclasses.is_dataclass(value):
            assert_same(mine, value)
        elif isinstance(value, list):
            assert mine == [ZERO_UUID if element is None else element for element in value]
        elif value is None and mine is not None:
            assert mine in (ZERO_UUID, -1)
        else:
            assert mine == value, name


@pytest.mark.parametrize(("key", "is_request"), MESSAGES, ids=MESSAGE_IDS)
@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_every_version_equals_the_oracle_and_comes_back(key: int, is_request: bool, seed: int) -> None:
    for subject in reference.subjects(key, is_request):
        message = reference.make(subject, random.Random(seed))
        data = encode(subject, message)
        cls = kio_class(subject)
        entity, size = entity_reader(cls)(data, 0)
        assert size == len(data)
        assert_same(message, entity)
        assert b"".join(_written(cls, entity)) == data
        assert decode(subject, data) == message
        assert reference.encode(subject, message).data == data


@pytest.mark.parametrize(("key", "is_request"), MESSAGES, ids=MESSAGE_IDS)
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_the_forms_in_steps_read_and_write_the_same(key: int, is_request: bool, seed: int) -> None:
    for subject in reference.subjects(key, is_request):
        message = reference.make(subject, random.Random(seed))
        data = encode(subject, message)
        if is_request:
            assert whole(codec.decode_request_steps(key, subject.version, memoryview(data))) == message
        else:
            assert whole(codec.decode_response_steps(key, subject.version, memoryview(data))) == message
            assert b"".join(whole(codec.encode_response_steps(key, subject.version, message))) == data


def test_a_long_message_is_read_and_written_in_many_steps() -> None:
    topics = [MetadataRequestTopic(name=f"topic-{number}") for number in range(10_000)]
    data = codec.encode_request(ApiKey.METADATA, 12, MetadataRequest(topics=topics))
    assert len(list(codec.decode_request_steps(ApiKey.METADATA, 12, data))) > 10_000 // 40
    answer = MetadataResponse(topics=[MetadataResponseTopic(name=topic.name) for topic in topics])
    sizes = list(codec.encode_response_steps(ApiKey.METADATA, 12, answer))
    assert len(sizes) > 10_000 // 40
    assert max(sizes) < 4_096


def _written(cls: Any, entity: Any) -> list[bytes]:
    class Sink:
        pieces: list[bytes]

    sink = Sink()
    sink.pieces = []
    sink.write = sink.pieces.append  # type: ignore[attr-defined]
    entity_writer(cls)(sink, entity)  # type: ignore[arg-type]
    return sink.pieces


@pytest.mark.parametrize(("key", "is_request"), MESSAGES, ids=MESSAGE_IDS)
def test_a_message_of_defaults_comes_back_in_every_version(key: int, is_request: bool) -> None:
    for subject in reference.subjects(key, is_request):
        message = getattr(subject.module, subject.struct)()
        assert decode(subject, encode(subject, message)) == message


def test_a_field_that_a_version_lacks_is_not_written_and_has_its_default_when_read() -> None:
    message = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    data = codec.encode_request(ApiKey.METADATA, 3, message)
    assert codec.decode_request(ApiKey.METADATA, 3, data).allow_auto_topic_creation is True


def test_null_and_empty_topics_stay_apart_from_metadata_version_1_on() -> None:
    assert codec.decode_request(ApiKey.METADATA, 1, b"\xff\xff\xff\xff").topics is None
    assert codec.decode_request(ApiKey.METADATA, 1, b"\0\0\0\0").topics == []
    assert codec.decode_request(ApiKey.METADATA, 0, b"\0\0\0\0").topics == []
    with pytest.raises(ProtocolError, match="topics must not be null"):
        codec.decode_request(ApiKey.METADATA, 0, b"\xff\xff\xff\xff")


def test_null_where_the_version_has_none_is_our_own_mistake() -> None:
    nameless = MetadataResponse(topics=[MetadataResponseTopic(name=None)])
    assert codec.encode_response(ApiKey.METADATA, 12, nameless)
    with pytest.raises(ValueError, match="Metadata v11 response cannot be written"):
        codec.encode_response(ApiKey.METADATA, 11, nameless)
    with pytest.raises(ValueError, match="Metadata v0 request cannot be written"):
        codec.encode_request(ApiKey.METADATA, 0, MetadataRequest(topics=None))


def test_a_value_too_large_for_its_field_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        codec.encode_response(ApiKey.METADATA, 13, MetadataResponse(error_code=1 << 15))
    with pytest.raises(ValueError, match="cannot be written"):
        codec.encode_response(ApiKey.METADATA, 1, MetadataResponse(topics=[MetadataResponseTopic(name="x" * 40_000)]))


def test_an_api_or_version_without_schema_is_refused_by_its_code() -> None:
    for key, version in ((ApiKey.METADATA, 14), (ApiKey.METADATA, -1), (ApiKey.PRODUCE, 2), (4, 0), (12_345, 0)):
        with pytest.raises(ProtocolError) as caught:
            codec.decode_request(key, version, b"")
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(ValueError, match="is not known"):
            codec.encode_response(key, version, object())


def test_strings_and_bytes_are_their_own_and_records_are_slices() -> None:
    subject = Subject(ApiKey.SHARE_FETCH, 1, False)
    data = bytearray(encode(subject, reference.make(subject, random.Random(1), full=True)))
    view = memoryview(data)
    message = codec.decode_response(ApiKey.SHARE_FETCH, 1, view)
    records = message.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is data
    assert isinstance(message.error_message, str)


@pytest.mark.parametrize("key", [ApiKey.FIRN_METRICS, ApiKey.FIRN_TIER_STATUS, ApiKey.FIRN_TIER_SEGMENTS])
def test_private_messages_are_one_field_of_bytes(key: ApiKey) -> None:
    for body in (b"", b"x", b"y" * 300):
        data = codec.encode_request(key, 0, body)
        assert codec.decode_request(key, 0, memoryview(data)) == body
        assert codec.decode_response(key, 0, codec.encode_response(key, 0, body)) == body
        for cut in range(len(data)):
            with pytest.raises(ProtocolError):
                codec.decode_request(key, 0, data[:cut])
        with pytest.raises(ProtocolError):
            codec.decode_request(key, 0, data + b"\0")
    with pytest.raises(ProtocolError, match="null"):
        codec.decode_request(key, 0, b"\0")
    with pytest.raises(ProtocolError):
        codec.decode_request(key, 1, b"\1")


def test_a_sentence_that_quotes_a_long_name_is_cut_when_it_is_written():
    result = UpdatableFeatureResult("x", 42, "There is no feature " + "x" * 32_767)
    message = UpdateFeaturesResponse(error_code=42, error_message=None, results=[result])
    found = codec.decode_response(ApiKey.UPDATE_FEATURES, 1, codec.encode_response(ApiKey.UPDATE_FEATURES, 1, message))
    sentence = found.results[0].error_message
    assert sentence.startswith("There is no feature xxx")
    assert sentence.endswith("x…")
    assert len(sentence) < 2_000
