"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken (keys 38 to 41, KIP-48, KIP-373).

Tests: ``tests/broker/test_delegation_tokens.py``.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Final

from app.configs.listeners import SecurityProtocol
from app.core.errors import ErrorCode, RequestRejected
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import may, refuse
from app.handlers.base.request import Request
from app.handlers.base.views import TokensView
from app.handlers.policy.callers import ANONYMOUS
from app.metadata.changes import token_changes
from app.metadata.changes.token_changes import TokenAsked, check_principals
from app.security.acls import Operation, ResourceType
from app.security.delegation import DelegationToken, TokenSecrets
from app.security.noting import note
from app.wire.apikeys import ApiKey
from app.wire.apis.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from app.wire.apis.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from app.wire.apis.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from app.wire.apis.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse

ID_BYTES: Final = 16
NO_TIME: Final = -1


def check_connection(context: TokensView, request: Request, message: object) -> None:
    """Asked on the broker to which the client is connected (DT1, DT2).

    Raises: RequestRejected DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
    """
    caller = request.caller
    protocol = next((one.protocol for one in context.config.served if one.name == caller.listener), None)
    if protocol in (None, SecurityProtocol.PLAINTEXT):
        why = f"The listener {caller.listener} is plain"
    elif protocol is SecurityProtocol.SSL and caller.principal == ANONYMOUS:
        why = "The client has not shown who it is"
    else:
        _check_not_by_token(request)
        return
    raise _not_allowed(request, f"{why}: ask for delegation tokens on a listener with a login, or show a certificate.")


def _check_not_by_token(request: Request) -> None:
    if request.caller.by_token:
        raise _not_allowed(request, "The client has logged in with a delegation token, and tokens make no tokens.")


def _not_allowed(request: Request, sentence: str) -> RequestRejected:
    operation = Operation.DESCRIBE_TOKENS
    if request.api_key == ApiKey.CREATE_DELEGATION_TOKEN:
        operation = Operation.CREATE_TOKENS
    note(request, operation, ResourceType.USER, request.caller.principal)
    return RequestRejected(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, sentence)


def _secrets(context: TokensView) -> TokenSecrets:
    """Raises: RequestRejected DELEGATION_TOKEN_AUTH_DISABLED."""
    if context.token_secrets is None:
        raise RequestRejected(
            ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
            "There are no delegation tokens: set the same delegation.token.secret.key on every broker.",
        )
    return context.token_secrets


async def create(
    context: TokensView, request: Request, message: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """Raises: RequestRejected."""
    _check_not_by_token(request)
    owner = _owner(request, message)
    if owner != request.caller.principal and not may(
        context, request.caller, Operation.CREATE_TOKENS, ResourceType.USER, owner
    ):
        raise refuse(request, Operation.CREATE_TOKENS, ResourceType.USER, owner)
    renewers = tuple(dict.fromkeys(f"{one.principal_type}:{one.principal_name}" for one in message.renewers))
    asked = TokenAsked(owner, request.caller.principal, renewers, message.max_lifetime_ms)
    check_principals(asked)
    secrets = _secrets(context)
    token_id = urlsafe_b64encode(context.random_bytes(ID_BYTES)).rstrip(b"=").decode()
    _, token = await context.controller.submit(
        lambda draft, around: token_changes.create_token(draft, around, token_id, asked)
    )
    response = _about(owner, request)
    response.issue_timestamp_ms = token.issued_ms
    response.expiry_timestamp_ms = token.expires_ms
    response.max_timestamp_ms = token.max_ms
    response.token_id = token_id
    response.hmac = secrets.hmac_of(token_id)
    return response


def _owner(request: Request, message: CreateDelegationTokenRequest) -> str:
    if not message.owner_principal_name:
        return request.caller.principal
    return f"{message.owner_principal_type or ''}:{message.owner_principal_name}"


def _about(owner: str, request: Request) -> CreateDelegationTokenResponse:
    kind, _, name = owner.partition(":")
    asking_kind, _, asking_name = request.caller.principal.partition(":")
    return CreateDelegationTokenResponse(
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=asking_kind,
        token_requester_principal_name=asking_name,
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
    )


def refuse_create(
    request: Request, message: CreateDelegationTokenRequest, code: ErrorCode, sentence: str
) -> CreateDelegationTokenResponse:
    del sentence
    response = _about(_owner(request, message), request)
    response.error_code = code
    return response


async def renew(
    context: TokensView, request: Request, message: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """Raises: RequestRejected."""
    _check_not_by_token(request)
    token_id = request.about = _secrets(context).find(bytes(message.hmac), context.image.tokens)
    ends_ms = await context.controller.submit(
        lambda draft, around: token_changes.renew_token(
            draft, around, token_id, request.caller.principal, message.renew_period_ms
        )
    )
    return RenewDelegationTokenResponse(expiry_timestamp_ms=ends_ms)


def refuse_renew(request: Request, message: object, code: ErrorCode, sentence: str) -> RenewDelegationTokenResponse:
    del request, message, sentence
    return RenewDelegationTokenResponse(code, NO_TIME)


async def expire(
    context: TokensView, request: Request, message: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """Raises: RequestRejected."""
    _check_not_by_token(request)
    token_id = request.about = _secrets(context).find(bytes(message.hmac), context.image.tokens)
    ends_ms = await context.controller.submit(
        lambda draft, around: token_changes.expire_token(
            draft, around, token_id, request.caller.principal, message.expiry_time_period_ms
        )
    )
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=ends_ms)


def refuse_expire(request: Request, message: object, code: ErrorCode, sentence: str) -> ExpireDelegationTokenResponse:
    del request, message, sentence
    return ExpireDelegationTokenResponse(code, NO_TIME)


def describe(
    context: TokensView, request: Request, message: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """The tokens that the caller owns, has made, may renew, or may describe. Raises: RequestRejected."""
    secrets = _secrets(context)
    owners = None
    if message.owners is not None:
        owners = {f"{one.principal_type}:{one.principal_name}" for one in message.owners}
    principal = request.caller.principal

    def shown(token_id: str, token: DelegationToken) -> bool:
        if owners is not None and not any(token.belongs_to(one) for one in owners):
            return False
        return (
            token.belongs_to(principal)
            or may(context, request.caller, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token_id)
            or may(context, request.caller, Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
        )

    return DescribeDelegationTokenResponse(
        tokens=[
            _described(token_id, token, secrets)
            for token_id, token in sorted(context.image.tokens.items())
            if shown(token_id, token)
        ]
    )


def _described(token_id: str, token: DelegationToken, secrets: TokenSecrets) -> DescribedDelegationToken:
    kind, _, name = token.owner.partition(":")
    asking_kind, _, asking_name = token.requester.partition(":")
    return DescribedDelegationToken(
        kind,
        name,
        asking_kind,
        asking_name,
        token.issued_ms,
        token.expires_ms,
        token.max_ms,
        token_id,
        secrets.hmac_of(token_id),
        [DescribedDelegationTokenRenewer(*one.split(":", 1)) for one in token.renewers],
    )


def refuse_describe(
    request: Request, message: object, code: ErrorCode, sentence: str
) -> DescribeDelegationTokenResponse:
    del request, message, sentence
    return DescribeDelegationTokenResponse(code)


APIS: Final[ApiTable] = {
    ApiKey.CREATE_DELEGATION_TOKEN: Api(create, refuse_create, before=check_connection),
    ApiKey.RENEW_DELEGATION_TOKEN: Api(renew, refuse_renew, before=check_connection),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Api(expire, refuse_expire, before=check_connection),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Api(describe, refuse_describe, before=check_connection),
}
