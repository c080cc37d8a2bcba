"""ApiVersions (key 18): what this broker serves.

The one request that is answered in every version; the answer to one that is not known is made where connections are served
(``app.wire.negotiation``).
"""

from __future__ import annotations

import re
from typing import Final

from app.errors import ErrorCode
from app.handlers.api import Api, ApiTable
from app.handlers.context import Context, Request
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest, ApiVersionsResponse
from app.wire.negotiation import advertised_api_keys

SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""What KIP-511 allows as a client's name and version, which end up in metrics and logs."""


def handle(context: Context, request: Request, message: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer the served ranges. No feature is finalized: a single broker has none to agree on with others."""
    del context
    if request.api_version >= 3 and not (
        SOFTWARE_NAME.fullmatch(message.client_software_name)
        and SOFTWARE_NAME.fullmatch(message.client_software_version)
    ):
        return refuse(request, message, ErrorCode.INVALID_REQUEST, "")
    return ApiVersionsResponse(api_keys=advertised_api_keys())


def refuse(request: Request, message: ApiVersionsRequest, code: ErrorCode, sentence: str) -> ApiVersionsResponse:
    del request, message, sentence
    return ApiVersionsResponse(error_code=code)


APIS: Final[ApiTable] = {ApiKey.API_VERSIONS: Api(handle, refuse)}
