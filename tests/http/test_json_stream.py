"""The splitter: the same objects however the stream is cut, and a clear end where no object can begin."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import LimitExceeded, ProtocolError
from app.http.json_stream import JsonSplitter

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=5)


@settings(max_examples=150, deadline=None)
@given(
    values=OBJECTS,
    gap=st.sampled_from(["", "\n", " \r\n\t", "\x1e"]),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 400)),
)
def test_however_it_is_cut_the_same_objects_come_out(
    values: list[object], gap: str, ascii_only: bool, cuts: list[int]
) -> None:
    texts = [json.dumps(value, ensure_ascii=ascii_only).encode() for value in values]
    stream = gap.encode() + b"".join(text + gap.encode() for text in texts)
    splitter = JsonSplitter(1 << 20)
    found, position = [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(stream)), len(stream)]:
        found += splitter.feed(stream[position:cut])
        position = cut
    splitter.end()
    assert found == texts


PARTS = [b"{", b"}", b"[", b"]", b'"', b"\\", b'{"a":1}', b'"\\"}"', b'"]\\\\"', b" ", b"x", b"\n"]
"""Pieces of streams: brackets, parts of strings, and strings with brackets and escapes in them."""


def outcome_of(pieces: list[bytes]) -> tuple[list[bytes], str]:
    splitter = JsonSplitter(64)
    found: list[bytes] = []
    try:
        for piece in pieces:
            try:
                found += splitter.feed(piece)
            except (ProtocolError, LimitExceeded):
                found += splitter.taken
                raise
        splitter.end()
    except (ProtocolError, LimitExceeded) as error:
        return found, str(error)
    return found, ""


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=40))
def test_a_stream_that_comes_at_once_is_cut_as_one_that_comes_byte_by_byte(parts: list[bytes]) -> None:
    stream = b"{" + b"".join(parts)
    assert outcome_of([stream]) == outcome_of([stream[at : at + 1] for at in range(len(stream))])


@pytest.mark.parametrize(
    ("stream", "taken"), [(b"[1]", 0), (b'{"a":1}, {"b":2}', 1), (b'{}{}"x"', 2), (b"nonsense", 0)]
)
def test_what_is_no_object_is_named_and_objects_before_it_are_kept(stream: bytes, taken: int) -> None:
    splitter = JsonSplitter(1 << 20)
    with pytest.raises(ProtocolError, match="must be a JSON object"):
        splitter.feed(stream)
    assert len(splitter.taken) == taken


@pytest.mark.parametrize("stream", [b"{", b'{"a', b'{"a\\', b'{"a":[1,2'])
def test_a_stream_that_ends_within_an_object_is_refused(stream: bytes) -> None:
    splitter = JsonSplitter(1 << 20)
    assert splitter.feed(stream) == []
    with pytest.raises(ProtocolError, match="ends in the middle"):
        splitter.end()


def test_an_object_that_grows_past_the_limit_is_refused_before_it_ends() -> None:
    splitter = JsonSplitter(100)
    assert splitter.feed(b'{"a":1}') == [b'{"a":1}']
    splitter.feed(b'{"a":"' + b"x" * 94)
    with pytest.raises(LimitExceeded):
        splitter.feed(b"x")
    with pytest.raises(LimitExceeded):
        JsonSplitter(100).feed(b'{"a":"' + b"x" * 100 + b'"}')


def test_a_long_string_in_small_pieces_is_read_once() -> None:
    splitter = JsonSplitter(1 << 24)
    splitter.feed(b'{"a":"')
    piece = b'x\\"' * 1_000
    for _ in range(1_000):
        splitter.feed(piece)
        assert splitter._scanned == len(splitter._buffer)
    assert len(splitter.feed(b'"}')[0]) == 8 + 3_000_000


GAPS = [b"", b"\n", b" ", b"\r\n", b"}{", b'}"{']
"""What may stand between two objects, or in a string of one."""


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(st.sampled_from([b'{"a":"%b"}' % gap.replace(b'"', b'\\"') for gap in GAPS]), max_size=8),
    gap=st.sampled_from([b"", b"\n", b" \r\n", b"\x1e"]),
    others=st.dictionaries(st.integers(0, 7), st.sampled_from([b"", b"\n", b"  "]), max_size=2),
)
def test_objects_that_are_parted_alike_are_cut_where_they_end(
    texts: list[bytes], gap: bytes, others: dict[int, bytes]
) -> None:
    stream = b"".join(text + others.get(place, gap) for place, text in enumerate(texts))
    assert JsonSplitter(1 << 20).feed(stream) == texts


def test_entries_that_are_parted_alike_need_their_commas() -> None:
    splitter = JsonSplitter(1 << 20, separated=True)
    assert splitter.feed(b'{"a":1},{"a":"},{"},{},{}]x') == [b'{"a":1}', b'{"a":"},{"}', b"{}", b"{}"]
    assert splitter.rest == b"x"
    splitter = JsonSplitter(1 << 20, separated=True)
    with pytest.raises(ProtocolError, match="comma"):
        splitter.feed(b"{},{},{}{}")
    assert splitter.taken == [b"{}", b"{}", b"{}"]


def test_an_object_that_is_no_json_ends_where_its_brackets_end() -> None:
    bad = b'{"a":1}{"b":[}{]}{"c":1}'
    assert JsonSplitter(1 << 20).feed(bad) == [b'{"a":1}', b'{"b":[}{]}', b'{"c":1}']
