"""The response to ApiVersions: what a broker advertises, and its answer to a version that it does not know (KIP-511)."""

from __future__ import annotations

import pytest

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsResponse
from app.wire.codec import decode_response
from app.wire.header import parse_response_header
from app.wire.negotiation import advertised_api_keys, is_api_versions_known, unknown_api_versions_frame
from app.wire.versions import ADVERTISED

FIRST, LAST = ADVERTISED[ApiKey.API_VERSIONS]


def test_each_api_is_advertised_once_in_the_order_of_keys() -> None:
    found = [(one.api_key, one.min_version, one.max_version) for one in advertised_api_keys()]
    assert found == sorted((int(key), *versions) for key, versions in ADVERTISED.items())


@pytest.mark.parametrize(("version", "known"), [(FIRST - 1, False), (FIRST, True), (LAST, True), (LAST + 1, False)])
def test_versions_within_the_advertised_range_are_known(version: int, known: bool) -> None:
    assert is_api_versions_known(version) is known


def test_an_unknown_version_is_answered_by_version_0_with_the_known_ones() -> None:
    frame = unknown_api_versions_frame(77)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = parse_response_header(memoryview(frame)[4:], ApiKey.API_VERSIONS, 0)
    assert header.correlation_id == 77
    answer = decode_response(ApiKey.API_VERSIONS, 0, memoryview(frame)[4 + header.body_start :])
    assert isinstance(answer, ApiVersionsResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys] == [
        (ApiKey.API_VERSIONS, FIRST, LAST)
    ]
