"""ApiVersions (key 18): what this broker serves.

The one request that is answered in every version: to a version it does not know, a broker answers version 0 with
UNSUPPORTED_VERSION and its own range, so that the client can ask again (KIP-511). The response header has no tagged fields in
any version, since the client cannot know yet which versions the broker speaks.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

from app.errors import ErrorCode
from app.handlers.api import Api, ApiTable
from app.handlers.context import Context, Request
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from app.wire.codec import encode_response
from app.wire.versions import ADVERTISED

SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""What KIP-511 allows as a client's name and version, which end up in metrics and logs."""
FRAME_HEAD: Final = Struct(">ii")


def _keys() -> list[ApiVersion]:
    return [ApiVersion(int(key), first, last) for key, (first, last) in sorted(ADVERTISED.items())]


def handle(context: Context, request: Request, message: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer the served ranges. No feature is finalized: a single broker has none to agree on with others."""
    del context
    if request.api_version >= 3 and not (
        SOFTWARE_NAME.fullmatch(message.client_software_name) and SOFTWARE_NAME.fullmatch(message.client_software_version)
    ):
        return refuse(request, message, ErrorCode.INVALID_REQUEST, "")
    return ApiVersionsResponse(api_keys=_keys())


def refuse(request: Request, message: ApiVersionsRequest, code: ErrorCode, sentence: str) -> ApiVersionsResponse:
    del request, message, sentence
    return ApiVersionsResponse(error_code=code)


def unsupported_version_frame(correlation_id: int) -> bytes:
    """The whole response frame to an ApiVersions request of a version that is not served."""
    first, last = ADVERTISED[ApiKey.API_VERSIONS]
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[ApiVersion(int(ApiKey.API_VERSIONS), first, last)]
    )
    body = encode_response(ApiKey.API_VERSIONS, 0, response)
    return FRAME_HEAD.pack(4 + len(body), correlation_id) + body


APIS: Final[ApiTable] = {ApiKey.API_VERSIONS: Api(handle, refuse)}
