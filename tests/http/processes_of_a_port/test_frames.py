"""Messages between the workers of a port."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ProtocolError
from app.core.metrics import Sample
from app.http.processes.frames import (
    FRAME_BYTES_MAX,
    PIECE_BYTES,
    AskReady,
    AskSamples,
    Frame,
    PassedRequest,
    Piece,
    Readiness,
    ResponseStart,
    SomeSamples,
    encode,
    pieces,
    read,
)

HEADERS = [(b"host", b"firn"), (b"x-bytes", bytes(range(256)))]
FRAMES: list[Frame] = [
    PassedRequest("GET", "/é", b"/%C3%A9", b"a=b", "1.1", "https", HEADERS, ("::1", 9), ("127.0.0.1", 8080), False),
    PassedRequest("HEAD", "/", b"", b"", "1.0", "http", [], None, ("/socket", None), True),
    Piece(b"data", True),
    Piece(b"", False),
    ResponseStart(404, HEADERS),
    AskSamples(),
    SomeSamples([Sample("f", "gauge", "help", "f", (("a", "b"),), 1.5)], False),
    AskReady(),
    Readiness("No broker answered in time."),
]


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def test_messages_are_read_as_they_were_sent_one_after_the_other() -> None:
    reader = reader_of(b"".join(map(encode, FRAMES)))
    assert [await read(reader) for _ in FRAMES] == FRAMES
    assert await read(reader) is None


async def test_a_message_that_is_cut_is_the_end_of_the_other_side() -> None:
    for frame in FRAMES:
        data = encode(frame)
        for end in range(len(data)):
            assert await read(reader_of(data[:end])) is None


@pytest.mark.parametrize(
    "data", [(FRAME_BYTES_MAX + 1).to_bytes(4), b"\0\0\0\1\xc1", b"\0\0\0\2\x91\x63", b"\0\0\0\3\x92\1\1"]
)
async def test_bytes_that_no_worker_sends_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        await read(reader_of(data))


@given(st.sampled_from((0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES)), st.booleans())
def test_a_body_in_pieces_is_the_body_and_ends_once(size: int, more: bool) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    found = list(pieces(data[:size], more=more))
    assert b"".join(piece.data for piece in found) == data[:size]
    assert [piece.more for piece in found] == [True] * (len(found) - 1) + [more]
    assert max(len(piece.data) for piece in found) <= PIECE_BYTES
