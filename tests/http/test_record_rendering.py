"""Any bytes have a JSON form on one line, from which the same bytes come back."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.turns import whole
from app.core.units import Offset, TimestampMs
from app.http import record_rendering
from app.http.record_rendering import Rendering, ShortRecords, shown_steps
from app.records.record import Headers, Record


def shown(value: bytes | None, rendering: Rendering, key: bytes | None = None) -> tuple[bytes, str | None, object]:
    """The line, and type and content of the value in it."""
    line = whole(shown_steps(Record(Offset(1), TimestampMs(0), key, value), 0, rendering))
    part = json.loads(line)["value"]
    return line, part and part["type"], part and part["data"]


@given(value=st.binary() | st.text().map(str.encode), rendering=st.sampled_from(Rendering))
def test_any_value_is_on_one_line_and_comes_back(value: bytes, rendering: Rendering) -> None:
    line, kind, data = shown(value, rendering)
    assert b"\n" not in line
    if kind == "BINARY":
        assert b64decode(str(data)) == value
    elif kind == "STRING":
        assert str(data).encode() == value
    else:
        assert rendering is Rendering.AUTO
        assert data == json.loads(value)


CONTENTS = (
    st.none()
    | st.binary(max_size=20)
    | st.text(max_size=20).map(str.encode)
    | st.sampled_from([b'{"a": [1, 2]}', b'{"a":\n1}', b" 7 ", b"01", b"null", b"[", b'"\xc3\xa4"', b'{"a":"\xff"}'])
)


@given(
    key=CONTENTS,
    value=CONTENTS,
    headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
    timestamp=st.sampled_from([-1, 0, 1_700_000_000_123, 1 << 60]).map(TimestampMs),
    rendering=st.sampled_from(Rendering),
)
def test_a_short_record_is_shown_as_any_other(
    key: bytes | None, value: bytes | None, headers: Headers, timestamp: TimestampMs, rendering: Rendering
) -> None:
    record = Record(Offset(5), timestamp, key, value, headers)
    assert ShortRecords(3, rendering).shown(record) == whole(shown_steps(record, 3, rendering))


@pytest.mark.parametrize(
    "content", [b'{"a":"\xff"}', b'"\xc3"', b'"\xed\xa0\x80"', b'{"a":"\xc3\xa4"}', b"{}", b"{", b""]
)
def test_a_short_record_is_json_only_if_it_is_utf8(content: bytes) -> None:
    record = Record(Offset(1), TimestampMs(0), content, content)
    assert ShortRecords(0, Rendering.AUTO).shown(record) == whole(shown_steps(record, 0, Rendering.AUTO))


@pytest.mark.parametrize(
    "value",
    [b'{"a": 1}', b"[1,\n2]", b" 7 ", b"1e999", b'"x"', b"null", b"true", b'{"n": 123456789012345678901234567890}'],
)
def test_json_is_shown_as_it_is(value: bytes) -> None:
    line, kind, _ = shown(value, Rendering.AUTO)
    assert kind == "JSON"
    assert b"".join(value.split()) in line


@pytest.mark.parametrize(
    "value", [b"", b"{", b'{"a":}', b"[1,]", b"tru", b"01", b"1 2", b"{a:1}", b"[" * 5_000 + b"]" * 5_000]
)
def test_text_that_only_looks_like_json_is_a_string(value: bytes) -> None:
    assert shown(value, Rendering.AUTO)[1:] == ("STRING", value.decode())


def test_null_is_null() -> None:
    assert shown(None, Rendering.BINARY)[1] is None


def test_a_long_value_is_binary_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_rendering, "LOOKED_AT_BYTES_MAX", 100)
    monkeypatch.setattr(record_rendering, "BASE64_A_STEP", 9)
    value = bytes(range(101))
    steps = shown_steps(Record(Offset(1), TimestampMs(0), None, value), 0, Rendering.STRING)
    assert sum(1 for _ in steps) > 10
    _, kind, data = shown(value, Rendering.STRING)
    assert (kind, b64decode(str(data))) == ("BINARY", value)
