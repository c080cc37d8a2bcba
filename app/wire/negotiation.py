"""The response to ApiVersions (KIP-35, KIP-511).

A client does not know the broker's versions when it sends its first ApiVersions. So a broker answers even a version that it
does not know: with version 0, UNSUPPORTED_VERSION, and the versions of ApiVersions that it does know. The request's body is
not read then.
"""

from __future__ import annotations

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersion, ApiVersionsResponse
from app.wire.framing import response_frame
from app.wire.versions import ADVERTISED


def advertised_api_keys() -> list[ApiVersion]:
    """The version ranges that a broker names, by key."""
    return [
        ApiVersion(api_key=int(key), min_version=first, max_version=last)
        for key, (first, last) in sorted(ADVERTISED.items())
    ]


def is_api_versions_known(version: int) -> bool:
    """Whether an ApiVersions request of this version is to be read, else ``unknown_api_versions_frame`` is the answer."""
    first, last = ADVERTISED[ApiKey.API_VERSIONS]
    return first <= version <= last


def unknown_api_versions_frame(correlation_id: int) -> bytes:
    """The whole answer to an ApiVersions request of a version that is not known."""
    first, last = ADVERTISED[ApiKey.API_VERSIONS]
    message = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=first, max_version=last)],
    )
    return response_frame(ApiKey.API_VERSIONS, 0, correlation_id, message)
