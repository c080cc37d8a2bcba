"""Records as JSON: every kind of data, and a sentence for whatever is wrong."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.client.producer import Acknowledged
from app.core.errors import ProtocolError
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicPartition
from app.http.record_json import (
    BASE64_A_STEP,
    HEADERS_MAX,
    PartReceipt,
    decode_record,
    format_timestamp,
    receipt,
)


def decode(**fields: Any) -> Any:
    return decode_record(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ({"type": "JSON", "data": {"a": [1, None]}}, b'{"a": [1, null]}'),
        ({"data": 7}, b"7"),
        ({"type": "JSON", "data": "x"}, b'"x"'),
        ({"type": "STRING", "data": "schön"}, "schön".encode()),
        ({"type": "string", "data": ""}, b""),
        ({"type": "BINARY", "data": "AAH/"}, b"\x00\x01\xff"),
        ({"type": "BINARY", "data": None}, None),
        ({"type": "JSON"}, None),
        (None, None),
    ],
)
def test_keys_and_values_become_the_bytes_that_their_type_says(part: Any, content: bytes | None) -> None:
    record = decode(key=part, value=part)
    assert record.key.content == record.value.content == content


def test_json_keeps_numbers_that_no_double_holds() -> None:
    assert (
        decode_record(b'{"value":{"data":12345678901234567890.000001}}').value.content == b"12345678901234567890.000001"
    )


def test_headers_are_base64_and_may_be_null_or_repeat() -> None:
    record = decode(headers=[{"name": "a", "value": "eA=="}, {"name": "a", "value": None}])
    assert record.headers == (("a", b"x"), ("a", None))


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("2013-07-01T02:00:00.123456+02:00", 1_372_636_800_123),
        ("2013-07-01", 1_372_636_800_000),
        (77, 77),
        (None, None),
    ],
)
def test_timestamps_are_iso_8601_or_milliseconds(text: Any, milliseconds: int | None) -> None:
    assert decode(timestamp=text).timestamp == milliseconds


def test_numbers_may_be_texts_and_headers_may_be_null() -> None:
    for headers in (None, []):
        found = decode(partition_id="7", headers=headers, value={"data": "7"})
        assert (found.partition, found.headers, found.value.content) == (7, (), b'"7"')
    named = decode(value={"schema_id": "7", "data": 1})
    assert named.value.id == 7


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"value": {"type": "XML", "data": 1}}, "'XML' is not served: use BINARY, JSON, STRING, AVRO"),
        ({"value": {"type": "STRING", "data": 1}}, "must be a JSON string"),
        ({"key": {"type": "BINARY", "data": "%%%"}}, "key's data is not base64"),
        ({"headers": [{"name": "h", "value": "%%%"}]}, "header 'h' is not base64"),
        ({"headers": [{"value": "eA=="}]}, "missing required field `name`"),
        ({"partition_id": -1}, "partition_id"),
        ({"partition_id": 1 << 31}, "partition_id"),
        ({"timestamp": "yesterday"}, "not of the form"),
        ({"timestamp": -5}, "out of range"),
        ({"timestamp": "1969-01-01"}, "out of range"),
    ],
)
def test_what_is_wrong_with_a_record_is_said_in_words(fields: Any, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode(**fields)


@pytest.mark.parametrize(
    "data",
    [b"{", b'{"value":{"data":tru}}', b"\xff{}", b"[]", b'{"value":{"data":"\xff"}}', b'{"key":{"data":1.2.3}}'],
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_record(data)


def test_json_nested_deeper_than_the_stack_is_refused() -> None:
    depth = 100_000
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode_record(b'{"value":{"data":' + b"[" * depth + b"]" * depth + b"}}")


def test_a_receipt_is_one_line() -> None:
    stored = Acknowledged(TopicPartition("t", PartitionIndex(2)), Offset(9), TimestampMs(1_372_636_800_123))
    line = receipt("c", PartReceipt("STRING", 3), None, stored)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "error_code": 200,
        "cluster_id": "c",
        "topic_name": "t",
        "partition_id": 2,
        "offset": 9,
        "timestamp": "2013-07-01T00:00:00.123Z",
        "key": {"type": "STRING", "size": 3},
    }


def test_times_past_the_calendar_are_shown_as_numbers() -> None:
    assert format_timestamp(TimestampMs(1 << 60)) == str(1 << 60)


def test_more_headers_than_one_turn_can_read_are_refused() -> None:
    most = b'{"headers":[' + b",".join([b'{"name":"h","value":"AAAA"}'] * HEADERS_MAX) + b"]}"
    assert decode_record(most).headers == (("h", b"\0\0\0"),) * HEADERS_MAX
    with pytest.raises(ProtocolError, match=f"more than {HEADERS_MAX} headers"):
        decode_record(most.replace(b"]", b',{"name":"h"}]'))


@given(
    st.lists(
        st.sampled_from(["a", "ä", "€", "😀", '"', "\\", "\n", "\\u", "\x00", "/", "\ud7ff", "\ue000"]), max_size=60
    ),
    st.integers(12, 40),
    st.booleans(),
)
def test_a_long_string_is_read_in_pieces_as_if_at_once(words: list[str], a_step: int, ascii_only: bool) -> None:
    text = "".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.http.record_json.TEXT_A_STEP", a_step)
        data = json.dumps({"value": {"type": "STRING", "data": text}}, ensure_ascii=ascii_only).encode()
        assert decode_record(data).value.content == text.encode()


@given(st.binary(max_size=80), st.integers(12, 40))
def test_a_string_that_is_none_is_refused_in_pieces_as_if_at_once(inside: bytes, a_step: int) -> None:
    def outcome() -> object:
        try:
            return decode_record(b'{"value":{"type":"STRING","data":"' + inside + b'"}}').value.content
        except ProtocolError as error:
            return str(error)

    at_once = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.http.record_json.TEXT_A_STEP", a_step)
        assert outcome() == at_once


@pytest.mark.parametrize("bad", [rb"\ud800", rb"\udc00", rb"\ud800\u0041", rb"\ud800\ud800", b"\xff", b"\xc3"])
def test_a_bad_character_is_refused_wherever_a_piece_ends(bad: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.http.record_json.TEXT_A_STEP", 16)
        for before in range(40):
            inside = b"x" * before + bad + b"y" * 40
            with pytest.raises(ProtocolError):
                decode_record(b'{"value":{"type":"STRING","data":"' + inside + b'"}}')


def test_long_base64_is_read_in_pieces_as_if_at_once() -> None:
    content = bytes(range(256)) * 10_000
    text = b64encode(content)
    assert len(text) > 2 * BASE64_A_STEP
    assert decode_record(b'{"value":{"type":"BINARY","data":"' + text + b'"}}').value.content == content
    at = BASE64_A_STEP - 4
    for bad in (text[:at] + b"AA==" + text[at:], text[:-1], text[: at + 1] + b"!" + text[at + 2 :], text + b"===="):
        with pytest.raises(ProtocolError, match="not base64"):
            decode_record(b'{"value":{"type":"BINARY","data":"' + bad + b'"}}')
