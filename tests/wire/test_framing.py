"""Frames: the size is before the parts, does not count itself, and has a limit."""

from __future__ import annotations

from typing import cast

import pytest

from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest, ApiVersionsResponse
from app.wire.framing import frame, framed, request_frame, response_frame


class Long:
    """Stands for so many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def test_the_size_is_before_the_parts_and_does_not_count_itself() -> None:
    assert frame(b"abc", b"", memoryview(b"de")) == b"\0\0\0\5abcde"
    assert framed(b"abc", b"de") == [b"\0\0\0\5", b"abc", b"de"]
    assert frame() == b"\0\0\0\0"


def test_a_size_is_an_int32() -> None:
    longest = cast("bytes", Long(0x7FFF_FFFF))
    assert framed(longest)[0] == b"\x7f\xff\xff\xff"
    with pytest.raises(ValueError, match="a frame of 2147483648 bytes"):
        framed(longest, b"a")


def test_requests_and_responses_are_whole_frames() -> None:
    assert request_frame(ApiKey.API_VERSIONS, 0, 7, "me", ApiVersionsRequest()) == (
        b"\0\0\0\x0c\0\x12\0\0\0\0\0\7\0\2me"
    )
    assert response_frame(ApiKey.API_VERSIONS, 0, 7, ApiVersionsResponse(35)) == (b"\0\0\0\x0a\0\0\0\7\0\x23\0\0\0\0")
