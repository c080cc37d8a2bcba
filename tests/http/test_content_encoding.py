"""Request bodies in gzip: the same bytes however they are cut, and bounded steps."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ProtocolError
from app.http.content_encoding import PIECE_BYTES_MAX, Gunzip, Identity, decoder_for


@given(members=st.lists(st.binary(max_size=200), min_size=1, max_size=4), cut=st.integers(1, 50))
def test_however_it_is_cut_the_same_bytes_come_out(members: list[bytes], cut: int) -> None:
    body = b"".join(map(gzip.compress, members))
    decoder = Gunzip()
    found = b"".join(piece for start in range(0, len(body), cut) for piece in decoder.feed(body[start : start + cut]))
    decoder.end()
    assert found == b"".join(members)


@pytest.mark.parametrize("size", [PIECE_BYTES_MAX - 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 5 * PIECE_BYTES_MAX])
def test_no_piece_is_larger_than_the_limit_and_none_is_left_behind(size: int) -> None:
    decoder = Gunzip()
    pieces = list(decoder.feed(gzip.compress(b"0" * size)))
    decoder.end()
    assert max(map(len, pieces)) <= PIECE_BYTES_MAX
    assert sum(map(len, pieces)) == size


@pytest.mark.parametrize(
    "body",
    [b"", gzip.compress(b"whole", mtime=0)[:-1], gzip.compress(b"a", mtime=0) + gzip.compress(b"b", mtime=0)[:5]],
)
def test_a_body_that_ends_within_a_member_is_refused(body: bytes) -> None:
    decoder = Gunzip()
    for _ in decoder.feed(body):
        pass
    with pytest.raises(ProtocolError, match="middle"):
        decoder.end()


@pytest.mark.parametrize(
    "body", [b"plain", gzip.compress(b"a", mtime=0) + b"trailing", gzip.compress(b"abc", mtime=0)[:-6] + b"\0" * 6]
)
def test_bytes_that_are_no_gzip_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="not valid gzip"):
        for _ in Gunzip().feed(body):
            pass


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], Identity),
        (["identity"], Identity),
        (["GZIP"], Gunzip),
        (["x-gzip"], Gunzip),
        (["identity, gzip"], Gunzip),
        (["br"], None),
        (["gzip", "gzip"], None),
        (["deflate"], None),
    ],
)
def test_none_gzip_and_nothing_else_is_served(values: list[str], kind: type | None) -> None:
    assert type(decoder_for(values)) is (type(None) if kind is None else kind)
