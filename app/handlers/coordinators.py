"""FindCoordinator (key 10): where a group or a transactional id is coordinated. Nowhere yet, and the answer says so."""

from __future__ import annotations

from typing import Final

from app.errors import ErrorCode, RequestRejected
from app.handlers.api import Api, ApiTable
from app.handlers.context import Context, Request
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
KEYS_IN_A_LIST_FROM: Final = 4
"""First version that asks for many keys at once (KIP-699)."""
_KINDS: Final = {GROUP: "consumer groups", TRANSACTION: "transactions", SHARE: "share groups"}


def handle(context: Context, request: Request, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """COORDINATOR_NOT_AVAILABLE with a sentence for every key: clients say it and try again.

    Raises: RequestRejected for a kind of key that Kafka does not know either.
    """
    del context
    kind = _KINDS.get(message.key_type)
    if kind is None:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {message.key_type}")
    return refuse(request, message, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"this broker does not serve {kind}")


def refuse(
    request: Request, message: FindCoordinatorRequest, code: ErrorCode, sentence: str
) -> FindCoordinatorResponse:
    if request.api_version >= KEYS_IN_A_LIST_FROM:
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=sentence)
                for key in message.coordinator_keys
            ]
        )
    return FindCoordinatorResponse(error_code=code, error_message=sentence, node_id=-1, host="", port=-1)


APIS: Final[ApiTable] = {ApiKey.FIND_COORDINATOR: Api(handle, refuse)}
