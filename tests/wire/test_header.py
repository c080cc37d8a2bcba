"""Headers, frames, version tables and the answer to a client that speaks a later protocol."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader

from app.core.errors import ErrorCode, ProtocolError
from app.wire import codec, framing, negotiation, versions
from app.wire.apikeys import ApiKey
from app.wire.apis import APIS
from app.wire.apis.metadata import MetadataRequest
from app.wire.header import (
    encode_request_header,
    encode_traced_header,
    has_flexible_response_header,
    parse_correlation_id,
    parse_request_header,
    parse_response_header,
    response_header,
    traceparent_of,
)
from app.wire.versions import ADVERTISED, BETWEEN_BROKERS, OPAQUE, PRIVATE, SERVED
from tests.wire import reference

ROOT = Path(__file__).resolve().parent.parent.parent
ALL = [(key, version) for key, api in APIS.items() for version in range(api.version_first, api.version_last + 1)]


def kio_headers(key: int, version: int) -> tuple[Any, Any]:
    package = f"kio.schema.{APIS[key].module}.v{version}"
    request = getattr(importlib.import_module(f"{package}.request"), f"{APIS[key].name}Request")
    response = getattr(importlib.import_module(f"{package}.response"), f"{APIS[key].name}Response")
    return request.__header_schema__, response.__header_schema__


def test_every_api_and_version_has_the_header_that_the_oracle_gives_it() -> None:
    for key, version in ALL:
        request_schema, response_schema = kio_headers(key, version)
        data = encode_request_header(key, version, 7, "größe")
        entity, size = entity_reader(request_schema)(data, 0)
        assert size == len(data)
        assert (entity.request_api_key, entity.request_api_version) == (key, version)
        assert (entity.correlation_id, entity.client_id) == (7, "größe")
        assert parse_request_header(memoryview(data + b"rest")) == (key, version, 7, "größe", len(data))
        data = response_header(9, key, version)
        entity, size = entity_reader(response_schema)(data, 0)
        assert (entity.correlation_id, size) == (9, len(data))
        assert parse_response_header(memoryview(data + b"rest"), key, version) == (9, len(data))
        assert parse_correlation_id(data) == 9


def test_a_client_id_may_be_null_or_empty() -> None:
    for client_id in (None, "", "x" * 32_767):
        data = encode_request_header(ApiKey.METADATA, 12, 1, client_id)
        assert parse_request_header(data).client_id == client_id
    with pytest.raises(ValueError, match="32768 bytes"):
        encode_request_header(ApiKey.METADATA, 12, 1, "x" * 32_768)


def test_api_versions_is_answered_with_the_old_header_in_every_version() -> None:
    assert not any(has_flexible_response_header(ApiKey.API_VERSIONS, version) for version in range(10))
    assert parse_request_header(encode_request_header(ApiKey.API_VERSIONS, 3, 1, "c")).body_start == 12


def test_tagged_fields_of_headers_are_skipped() -> None:
    data = encode_request_header(ApiKey.METADATA, 12, 1, "c")[:-1] + b"\x01\x05\x03abc"
    assert parse_request_header(data + b"body").body_start == len(data)
    data = response_header(1, ApiKey.METADATA, 12)[:-1] + b"\x01\x05\x03abc"
    assert parse_response_header(data + b"body", ApiKey.METADATA, 12).body_start == len(data)


@pytest.mark.parametrize("version", [8, 9])
def test_a_header_cut_anywhere_is_refused(version: int) -> None:
    data = encode_request_header(ApiKey.METADATA, version, 1, "client")
    for cut in range(len(data)):
        with pytest.raises(ProtocolError, match="request header"):
            parse_request_header(data[:cut])
    data = response_header(1, ApiKey.METADATA, version)
    for cut in range(len(data)):
        with pytest.raises(ProtocolError, match=r"[Rr]esponse header"):
            parse_response_header(data[:cut], ApiKey.METADATA, version)


@pytest.mark.parametrize("size", [b"\x7f\xff", b"\xff\xfe", b"\x80\x00", b"\x00\x09"])
def test_a_client_id_of_impossible_length_is_refused(size: bytes) -> None:
    with pytest.raises(ProtocolError, match="the client id claims"):
        parse_request_header(b"\x00\x03\x00\x00\x00\x00\x00\x01" + size + b"12345678")


def test_a_client_id_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not UTF-8"):
        parse_request_header(b"\x00\x03\x00\x00\x00\x00\x00\x01\x00\x01\xff")


@pytest.mark.parametrize("key", [4, 5, 6, 7, 93, 500, -1, 19_999, 20_022])
def test_an_unknown_key_is_refused_by_its_code(key: int) -> None:
    data = key.to_bytes(2, "big", signed=True) + b"\x00\x00\x00\x00\x00\x01\xff\xff"
    with pytest.raises(ProtocolError) as caught:
        parse_request_header(data)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40))
def test_random_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        header = parse_request_header(memoryview(data))
    except ProtocolError:
        return
    assert header.body_start <= len(data)


def test_private_keys_have_flexible_headers() -> None:
    for key in OPAQUE:
        data = encode_request_header(key, 0, 5, "firn")
        assert data.endswith(b"firn\0")
        assert parse_request_header(data).body_start == len(data)
        assert response_header(5, key, 0) == b"\0\0\0\x05\0"


# --- frames -----------------------------------------------------------------------------------------------------------


def test_a_frame_is_preceded_by_its_size() -> None:
    assert framing.frame(b"abcd", memoryview(b"ef")) == b"\0\0\0\x06abcdef"


def test_whole_frames_are_size_header_and_body() -> None:
    frame = framing.request_frame(ApiKey.METADATA, 12, 4, "c", MetadataRequest(topics=None))
    header = parse_request_header(frame[4:])
    assert framing.SIZE.unpack_from(frame) == (len(frame) - 4,)
    assert codec.decode_request(header.api_key, header.api_version, frame[4 + header.body_start :]).topics is None


# --- versions ---------------------------------------------------------------------------------------------------------


def test_every_served_version_has_a_schema() -> None:
    for key, (first, last) in SERVED.items():
        api = APIS[key]
        assert api.version_first <= first <= last <= api.version_last


def test_produce_is_advertised_from_zero_and_served_from_three() -> None:
    assert ADVERTISED[ApiKey.PRODUCE] == (0, 13)
    assert not versions.is_served(ApiKey.PRODUCE, 2)
    assert versions.is_served(ApiKey.PRODUCE, 3)
    assert {key: ADVERTISED[key] for key in SERVED if key is not ApiKey.PRODUCE} == {
        key: SERVED[key] for key in SERVED if key is not ApiKey.PRODUCE
    }


def test_private_keys_are_served_but_not_advertised() -> None:
    assert all(versions.is_served(key, 0) and not versions.is_served(key, 1) for key in PRIVATE)
    assert not PRIVATE & set(ADVERTISED)
    assert not versions.is_served(12_345, 0)


def test_what_brokers_alone_send_is_not_advertised_and_has_a_header_and_a_codec() -> None:
    assert not set(BETWEEN_BROKERS) & set(ADVERTISED)
    assert {key for key in BETWEEN_BROKERS if key not in APIS} == OPAQUE - PRIVATE
    for key, (first, last) in BETWEEN_BROKERS.items():
        if key in APIS:
            assert APIS[key].version_first <= first <= last <= APIS[key].version_last
        else:
            assert (first, last) == (0, 0)
            assert codec.decode_request(key, 0, codec.encode_request(key, 0, b"abc")) == b"abc"
        for version in range(first, last + 1):
            data = encode_request_header(key, version, 5, "firn")
            assert parse_request_header(data) == (key, version, 5, "firn", len(data))
            assert versions.is_flexible(key, version)
            assert versions.is_between_brokers(key, version)
            assert not versions.is_served(key, version)
        assert not versions.is_between_brokers(key, first - 1)
        assert not versions.is_between_brokers(key, last + 1)


def test_an_api_versions_request_from_the_future_is_answered_so_that_an_old_reader_understands() -> None:
    assert negotiation.is_api_versions_known(4)
    assert not negotiation.is_api_versions_known(5)
    assert not negotiation.is_api_versions_known(-1)
    frame = negotiation.unknown_api_versions_frame(77)
    assert framing.SIZE.unpack_from(frame) == (len(frame) - 4,)
    answer = codec.decode_response(ApiKey.API_VERSIONS, 0, frame[8:])
    assert parse_correlation_id(frame[4:]) == 77
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(item.api_key, item.min_version, item.max_version) for item in answer.api_keys] == [(18, 0, 4)]


def test_the_advertised_keys_are_those_of_the_table_in_order() -> None:
    keys = negotiation.advertised_api_keys()
    assert [item.api_key for item in keys] == sorted(ADVERTISED)
    assert (keys[0].api_key, keys[0].min_version, keys[0].max_version) == (0, 0, 13)


# --- what is generated ------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_the_committed_modules_are_what_the_script_writes() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_wire.py", "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


def test_every_api_has_a_key_by_its_name() -> None:
    assert {int(key) for key in ApiKey} == set(APIS) | OPAQUE
    assert all(ApiKey(key).name.lower() == api.module for key, api in APIS.items())


def test_importing_the_codec_imports_no_messages() -> None:
    code = (
        "import sys, app.wire.codec, app.wire.header, app.wire.versions; "
        "assert not [name for name in sys.modules if name.startswith('app.wire.apis.') or name.startswith('kio')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_reference_messages_of_one_seed_are_the_same() -> None:
    subject = next(reference.all_subjects())
    assert reference.make(subject, random.Random(5)) == reference.make(subject, random.Random(5))


def test_a_trace_is_a_tagged_field_that_every_parser_skips() -> None:
    traceparent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for client_id in (None, "", "c"):
        traced = encode_traced_header(0, 9, 7, client_id, traceparent)
        plain = parse_request_header(encode_request_header(0, 9, 7, client_id))
        assert parse_request_header(traced)[:4] == plain[:4]
        assert parse_request_header(traced).body_start == len(traced)
        assert traceparent_of(b"size" + traced + b"body", 4, 4 + len(traced)) == traceparent
    assert encode_traced_header(0, 8, 7, "c", traceparent) == encode_request_header(0, 8, 7, "c"), "it has no tags"


@pytest.mark.parametrize("client_id_bytes", [-32768, -1, 0, 1, 32767])
def test_a_trace_is_found_in_no_other_bytes(client_id_bytes: int) -> None:
    traced = bytearray(encode_traced_header(0, 9, 7, "c", b"x" * 55))
    traced[8:10] = client_id_bytes.to_bytes(2, "big", signed=True)
    for end in range(len(traced) + 1):
        found = traceparent_of(bytes(traced[:end]), 0, end)
        assert found == (b"x" * 55 if client_id_bytes == 1 and end == len(traced) else None)
    two = bytes(encode_traced_header(0, 9, 7, "c", b"x" * 55)).replace(b"\x01\xa0", b"\x02\xa0") + b"\xff\x01\0"
    assert traceparent_of(two, 0, len(two)) is None
