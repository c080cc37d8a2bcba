"""Frames: every request and response is preceded by its size, an int32 that does not count itself."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from app.wire.codec import encode_request, encode_response
from app.wire.header import encode_request_header, response_header
from app.wire.primitives import Buffer

SIZE: Final = Struct(">i")


def frame(*parts: Buffer) -> bytes:
    """The parts of one request or response as a frame, size prefix first. Raises: ValueError beyond 2³¹ − 1 bytes."""
    return b"".join((_size_of(parts), *parts))


def framed(*parts: bytes) -> list[bytes]:
    """As ``frame``, not joined: the size prefix, and the parts as they are."""
    return [_size_of(parts), *parts]


def _size_of(parts: Sequence[Buffer]) -> bytes:
    size = sum(map(len, parts))
    if size > 0x7FFF_FFFF:
        raise ValueError(f"a frame of {size} bytes")
    return SIZE.pack(size)


def request_frame(key: int, version: int, correlation_id: int, client_id: str | None, message: Any) -> bytes:
    """A whole request. Raises: ValueError if the message cannot be said in this version."""
    return frame(encode_request_header(key, version, correlation_id, client_id), encode_request(key, version, message))


def response_frame(key: int, version: int, correlation_id: int, message: Any) -> bytes:
    """A whole response to a request of ``key`` and ``version``. Raises: ValueError as ``request_frame``."""
    return frame(response_header(correlation_id, key, version), encode_response(key, version, message))
