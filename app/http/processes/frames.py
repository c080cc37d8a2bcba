"""Messages between the workers of a port. Pure, but for the streams that bring them.

A worker opens a connection for each thing that it asks, and the connection ends with the answer. A message is its length (u32) and
msgpack. A request of a client comes as ``PassedRequest`` and pieces of its body, and its response as ``ResponseStart`` and pieces
of its body. All workers are of one installation, so there are no versions.

Tests: ``tests/http/processes_of_a_port/test_frames.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from app.core.errors import ProtocolError, clause
from app.core.limits import KIB, MIB
from app.core.metrics import Sample

PIECE_BYTES: Final = 64 * KIB
"""Of a body, in one message."""
FRAME_BYTES_MAX: Final = 4 * MIB
"""More than any head, piece or slice of samples has."""
SAMPLES_A_FRAME: Final = 500
_LENGTH: Final = Struct(">I")


class PassedRequest(msgspec.Struct, array_like=True, tag=0):
    """The head of a client's request."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    http_version: str
    scheme: str
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    """The peer of the connection that the request came by."""
    server: tuple[str, int | None] | None
    console: bool
    """It is for a page of the console."""


class Piece(msgspec.Struct, array_like=True, tag=1):
    """A part of a body."""

    data: bytes
    more: bool


class ResponseStart(msgspec.Struct, array_like=True, tag=2):
    """The head of a response."""

    status: int
    headers: list[tuple[bytes, bytes]]


class AskSamples(msgspec.Struct, array_like=True, tag=3):
    """Asks for the metrics of the process."""


class SomeSamples(msgspec.Struct, array_like=True, tag=4):
    """A part of them."""

    samples: list[Sample]
    more: bool


class AskReady(msgspec.Struct, array_like=True, tag=5):
    """Asks whether the process reaches a broker."""


class Readiness(msgspec.Struct, array_like=True, tag=6):
    """Whether it does."""

    refusal: str
    """A sentence that says why not; empty if it does."""


Frame: TypeAlias = PassedRequest | Piece | ResponseStart | AskSamples | SomeSamples | AskReady | Readiness

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Frame]] = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """A message as bytes."""
    body = _ENCODER.encode(frame)
    assert len(body) <= FRAME_BYTES_MAX, len(body)
    return _LENGTH.pack(len(body)) + body


def pieces(data: bytes, *, more: bool) -> Iterator[Piece]:
    """A part of a body, in messages. ``more``: further parts follow."""
    last = max(0, len(data) - 1) // PIECE_BYTES * PIECE_BYTES
    for start in range(0, last + 1, PIECE_BYTES):
        yield Piece(data[start : start + PIECE_BYTES], more or start < last)


async def read(reader: asyncio.StreamReader) -> Frame | None:
    """The next message; None if the other end has closed its connection, in the middle of a message too.

    Raises: ProtocolError for bytes that no worker of this installation sends.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > FRAME_BYTES_MAX:
            raise ProtocolError(f"A message between HTTP processes has {length} bytes, and may have {FRAME_BYTES_MAX}.")
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"A message between HTTP processes cannot be read: {clause(error)}.") from None
