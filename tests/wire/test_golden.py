"""Requests as real clients sent them (``golden/capture.py``): read, and written again byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from app.records.batch import iter_headers
from app.wire import codec, fetch, produce
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataRequest
from app.wire.framing import SIZE
from app.wire.header import encode_request_header, parse_request_header
from app.wire.versions import ADVERTISED

CLIENTS = 4
FRAMES = [
    pytest.param(bytes.fromhex(hexed), id=f"{client}-{name}")
    for client, frames in json.loads((Path(__file__).parent / "golden" / "requests.json").read_text()).items()
    for name, hexed in frames.items()
]


ALL_TOPICS_OF_LIBRDKAFKA = bytes.fromhex("00 000000 01 00 00")
"""It writes the null list of topics in four bytes, of which one is read; so it ends three bytes later than it should."""


SENT_BY_BROKERS = frozenset(range(ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY + 1))
"""No client sends these, though brokers list them."""


def test_every_advertised_api_was_captured() -> None:
    captured = {parse_request_header(memoryview(parameter.values[0])[4:]).api_key for parameter in FRAMES}  # type: ignore[arg-type]
    assert captured == set(ADVERTISED) - SENT_BY_BROKERS


@pytest.mark.parametrize("frame", FRAMES)
def test_what_a_client_sent_is_read_and_written_again(frame: bytes) -> None:
    assert SIZE.unpack_from(frame) == (len(frame) - 4,)
    header = parse_request_header(memoryview(frame)[4:])
    key, version = header.api_key, header.api_version
    again = encode_request_header(key, version, header.correlation_id, header.client_id)
    assert again == frame[4 : 4 + header.body_start]
    body = memoryview(frame)[4 + header.body_start :]
    message = codec.decode_request(key, version, body)
    again = codec.encode_request(key, version, message)
    assert body[: len(again)] == again
    behind = {ApiKey.ALTER_USER_SCRAM_CREDENTIALS: b"\0"}.get(
        ApiKey(key), b""
    )  # librdkafka counts a list of tags too many
    assert bytes(body[len(again) :]) == (b"\x01\0\0" if body == ALL_TOPICS_OF_LIBRDKAFKA else behind)


def test_the_topics_that_librdkafka_lists_are_all_topics() -> None:
    assert (13, ALL_TOPICS_OF_LIBRDKAFKA) in of(ApiKey.METADATA)
    message = codec.decode_request(ApiKey.METADATA, 13, memoryview(ALL_TOPICS_OF_LIBRDKAFKA))
    assert message == MetadataRequest(topics=None, allow_auto_topic_creation=False)


def of(key: ApiKey) -> list[tuple[int, memoryview]]:
    """``(version, body)`` of the captured requests of one API."""
    found = []
    for parameter in FRAMES:
        view = memoryview(parameter.values[0])[4:]  # type: ignore[arg-type]
        header = parse_request_header(view)
        if header.api_key == key:
            found.append((header.api_version, view[header.body_start :]))
    assert len(found) >= CLIENTS
    return found


def test_a_produced_batch_lies_where_the_fast_reader_says() -> None:
    for version, body in of(ApiKey.PRODUCE):
        request = produce.decode_produce(version, body)
        ((topic, ((index, records),)),) = request.topics
        assert index == 0
        assert topic == "golden" if version < produce.TOPIC_IDS else isinstance(topic, UUID)
        assert records is not None
        ((_, batch),) = list(iter_headers(records))
        assert (batch.magic, batch.record_count, batch.size_bytes) == (2, 1, len(records))


def test_a_fetch_asks_for_the_partition_that_the_fast_reader_says() -> None:
    for version, body in of(ApiKey.FETCH):
        request = fetch.decode_fetch(version, body)
        if request.session_id > 0:
            assert not request.topics
            continue
        ((topic, (asked,)),) = request.topics
        assert topic == "golden" if version < fetch.TOPIC_IDS else isinstance(topic, UUID)
        assert (asked.partition, asked.fetch_offset, request.replica_id) == (0, 0, -1)
        assert request.max_wait_ms == 500
