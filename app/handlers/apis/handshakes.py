"""The first requests of a connection. ApiVersions (key 18): the APIs and versions that this broker serves. SaslHandshake,
SaslAuthenticate (keys 17, 36) and FirnForwarded (20021) on a listener without SASL, or after the login.

Only ApiVersions is answered in every version. Unknown versions are answered where connections are served
(``app.wire.negotiation``). On a listener with SASL the connection itself serves the login (``doors.py``).

Tests: ``tests/handlers/test_small_apis.py``.
"""

from __future__ import annotations

import re
from typing import Any, Final

from app.core.errors import ErrorCode, RequestRejected
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import ImageView
from app.metadata.changes.features import OF_PROTOCOL
from app.metadata.image.records import LEVEL_FEATURE, LEVEL_MAX
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from app.wire.apis.sasl_authenticate import SaslAuthenticateResponse
from app.wire.apis.sasl_handshake import SaslHandshakeResponse
from app.wire.negotiation import advertised_api_keys

SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The names and versions of clients that KIP-511 allows. They end up in metrics and logs."""


FEATURES_EPOCH: Final = 0
"""Of a cluster of one broker. With several it is the level of ``firn.version``, the only level that changes."""
LEVEL_0_FROM: Final = 4
"""First version whose clients take a range of levels that begins at 0."""


def handle_versions(context: ImageView, request: Request, message: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer the served ranges, and the features that clients choose their protocols by (KIP-584). ``firn.version`` is among them
    from level 1 on."""
    if request.api_version >= 3 and not (
        SOFTWARE_NAME.fullmatch(message.client_software_name)
        and SOFTWARE_NAME.fullmatch(message.client_software_version)
    ):
        return refuse_versions(request, message, ErrorCode.INVALID_REQUEST, "")
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


def refuse_versions(
    request: Request, message: ApiVersionsRequest, code: ErrorCode, sentence: str
) -> ApiVersionsResponse:
    del request, message, sentence
    return ApiVersionsResponse(error_code=code)


# --- logins -----------------------------------------------------------------------------------------------------------


def handle_login(context: ImageView, request: Request, message: Any) -> Any:
    """Raises: RequestRejected ILLEGAL_SASL_STATE."""
    raise RequestRejected(ErrorCode.ILLEGAL_SASL_STATE, f"Nobody logs in on the listener {request.caller.listener}.")


def refuse_handshake(request: Request, message: Any, code: ErrorCode, sentence: str) -> SaslHandshakeResponse:
    del request, message, sentence
    return SaslHandshakeResponse(error_code=code)


def refuse_authenticate(request: Request, message: Any, code: ErrorCode, sentence: str) -> SaslAuthenticateResponse:
    del request, message
    return SaslAuthenticateResponse(error_code=code, error_message=sentence)


def handle_forwarded(context: ImageView, request: Request, message: bytes) -> Any:
    """Raises: RequestRejected ILLEGAL_SASL_STATE."""
    raise RequestRejected(ErrorCode.ILLEGAL_SASL_STATE, "An address is named before the login, where there is one.")


def refuse_forwarded(request: Request, message: bytes, code: ErrorCode, sentence: str) -> None:
    """The connection is closed, with a line in the log."""
    del request, message, code, sentence


APIS: Final[ApiTable] = {
    ApiKey.API_VERSIONS: Api(handle_versions, refuse_versions),
    ApiKey.SASL_HANDSHAKE: Api(handle_login, refuse_handshake),
    ApiKey.SASL_AUTHENTICATE: Api(handle_login, refuse_authenticate),
    ApiKey.FIRN_FORWARDED: Api(handle_forwarded, refuse_forwarded),
}
