"""SaslHandshake, SaslAuthenticate (keys 17, 36) and FirnForwarded (20021) on a listener without SASL, or after the login.

On a listener with SASL the connection itself serves the login (``doors.py``).
"""

from __future__ import annotations

from typing import Any, Final

from app.core.errors import ErrorCode, RequestRejected
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.context import Context, Request
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateResponse
from app.wire.apis.sasl_handshake import SaslHandshakeResponse


def handle(context: Context, request: Request, message: Any) -> Any:
    """Raises: RequestRejected ILLEGAL_SASL_STATE."""
    raise RequestRejected(ErrorCode.ILLEGAL_SASL_STATE, f"Nobody logs in on the listener {request.caller.listener}.")


def refuse_handshake(request: Request, message: Any, code: ErrorCode, sentence: str) -> SaslHandshakeResponse:
    del request, message, sentence
    return SaslHandshakeResponse(error_code=code)


def refuse_authenticate(request: Request, message: Any, code: ErrorCode, sentence: str) -> SaslAuthenticateResponse:
    del request, message
    return SaslAuthenticateResponse(error_code=code, error_message=sentence)


def handle_forwarded(context: Context, request: Request, message: bytes) -> Any:
    """Raises: RequestRejected ILLEGAL_SASL_STATE."""
    raise RequestRejected(ErrorCode.ILLEGAL_SASL_STATE, "An address is named before the login, where there is one.")


def refuse_forwarded(request: Request, message: bytes, code: ErrorCode, sentence: str) -> None:
    """The connection is closed, with a line in the log."""
    del request, message, code, sentence


APIS: Final[ApiTable] = {
    ApiKey.SASL_HANDSHAKE: Api(handle, refuse_handshake),
    ApiKey.SASL_AUTHENTICATE: Api(handle, refuse_authenticate),
    ApiKey.FIRN_FORWARDED: Api(handle_forwarded, refuse_forwarded),
}
