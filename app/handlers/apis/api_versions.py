"""ApiVersions (key 18): the APIs and versions that this broker serves.

Only this request is answered in every version. Unknown versions are answered where connections are served
(``app.wire.negotiation``).
"""

from __future__ import annotations

import re
from typing import Final

from app.core.errors import ErrorCode
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.context import Context, Request
from app.metadata.changes.features import OF_PROTOCOL
from app.metadata.image.records import LEVEL_FEATURE, LEVEL_MAX
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from app.wire.negotiation import advertised_api_keys

SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The names and versions of clients that KIP-511 allows. They end up in metrics and logs."""


FEATURES_EPOCH: Final = 0
"""Of a cluster of one broker. With several it is the level of ``firn.version``, the only level that changes."""
LEVEL_0_FROM: Final = 4
"""First version whose clients take a range of levels that begins at 0."""


def handle(context: Context, request: Request, message: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer the served ranges, and the features that clients choose their protocols by (KIP-584). ``firn.version`` is among them
    from level 1 on."""
    if request.api_version >= 3 and not (
        SOFTWARE_NAME.fullmatch(message.client_software_name)
        and SOFTWARE_NAME.fullmatch(message.client_software_version)
    ):
        return refuse(request, message, ErrorCode.INVALID_REQUEST, "")
    lowest = 0 if request.api_version >= LEVEL_0_FROM else 1
    level = context.image.level
    finalised = {**OF_PROTOCOL, LEVEL_FEATURE: level} if level else OF_PROTOCOL
    supported = {**OF_PROTOCOL, LEVEL_FEATURE: LEVEL_MAX} if level else OF_PROTOCOL
    return ApiVersionsResponse(
        api_keys=advertised_api_keys(),
        supported_features=[SupportedFeatureKey(name, lowest, highest) for name, highest in supported.items()],
        finalized_features_epoch=level or FEATURES_EPOCH,
        finalized_features=[FinalizedFeatureKey(name, level, level) for name, level in finalised.items()],
    )


def refuse(request: Request, message: ApiVersionsRequest, code: ErrorCode, sentence: str) -> ApiVersionsResponse:
    del request, message, sentence
    return ApiVersionsResponse(error_code=code)


APIS: Final[ApiTable] = {ApiKey.API_VERSIONS: Api(handle, refuse)}
