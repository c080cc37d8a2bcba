"""Delegation tokens in the cluster log (KIP-48, KIP-373, ADR 0035): made, renewed, expired and swept. Pure.

``app/handlers/apis/delegation_tokens.py`` decides earlier which owners a caller may make tokens for. Which tokens a caller
may renew is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, RequestRejected
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL, token_change
from app.security.delegation import USER_PREFIX, DelegationToken

TOKENS_MAX: Final = 10_000
"""The image has all of them, and DescribeDelegationToken returns all of them in one response."""
RENEWERS_MAX: Final = 100
PRINCIPAL_CHARS_MAX: Final = 1024
RENEWERS_CHARS_MAX: Final = 8192
"""Of the names of a token's renewers together: every broker keeps them, so that all tokens take 100 MB at most."""
SWEPT_AT_ONCE_MAX: Final = 1000
"""Tokens that one change removes."""
LONG_MAX: Final = (1 << 63) - 1


class TokenAsked(NamedTuple):
    """A token to be made."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    lifetime_ms: int
    """The greatest lifetime that the requester wants; 0 or less for the broker's."""


class MadeToken(NamedTuple):
    token_id: str
    token: DelegationToken


def create_token(draft: ImageDraft, around: PlanInputs, token_id: str, asked: TokenAsked) -> Planned[MadeToken]:
    """Make a token. Raises: RequestRejected UNSUPPORTED_VERSION, INVALID_PRINCIPAL_TYPE, INVALID_REQUEST, POLICY_VIOLATION."""
    _check_level(draft)
    check_principals(asked)
    if len(draft.tokens) >= TOKENS_MAX:
        raise RequestRejected(
            ErrorCode.POLICY_VIOLATION,
            f"There are {len(draft.tokens)} delegation tokens, and a cluster has {TOKENS_MAX} at most. Expire some.",
        )
    config, now_ms = around.config, around.now_ms
    lifetime_ms = config.delegation_token_max_lifetime_ms
    if asked.lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, asked.lifetime_ms)
    max_ms = _sum(now_ms, lifetime_ms)
    expires_ms = min(max_ms, _sum(now_ms, config.delegation_token_expiry_time_ms))
    token = DelegationToken(asked.owner, asked.requester, asked.renewers, now_ms, max_ms, expires_ms)
    return Planned([token_change(token_id, token)], MadeToken(token_id, token))


def check_principals(asked: TokenAsked) -> None:
    """Raises: RequestRejected INVALID_PRINCIPAL_TYPE, INVALID_REQUEST."""
    for principal in (asked.owner, *asked.renewers):
        if not principal.startswith(USER_PREFIX):
            raise RequestRejected(
                ErrorCode.INVALID_PRINCIPAL_TYPE,
                f"Owners and renewers of delegation tokens are of the form User:name, and {principal!r} is not.",
            )
        if len(principal) == len(USER_PREFIX) or len(principal) > PRINCIPAL_CHARS_MAX:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST, f"A principal has a name, of {PRINCIPAL_CHARS_MAX} characters at most."
            )
    if len(asked.renewers) > RENEWERS_MAX:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"A delegation token has {RENEWERS_MAX} renewers at most.")
    if sum(map(len, asked.renewers)) > RENEWERS_CHARS_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"The renewers of a delegation token have names of {RENEWERS_CHARS_MAX} characters together at most.",
        )


def renew_token(
    draft: ImageDraft, around: PlanInputs, token_id: str | None, principal: str, period_ms: int
) -> Planned[int]:
    """Move a token's end to ``period_ms`` from now, at most to its greatest end. Result: the new end.

    ``period_ms``: 0 or less for the broker's. Raises: RequestRejected.
    """
    _check_level(draft)
    token = _found(draft, token_id)
    _check_alive(token, around.now_ms)
    _check_renewer(token, principal)
    longest_ms = around.config.delegation_token_expiry_time_ms
    period_ms = min(longest_ms, period_ms) if period_ms > 0 else longest_ms
    return _ends_at(token_id, token, min(token.max_ms, _sum(around.now_ms, period_ms)))


def expire_token(
    draft: ImageDraft, around: PlanInputs, token_id: str | None, principal: str, period_ms: int
) -> Planned[int]:
    """Let a token end ``period_ms`` from now; less than 0 removes it at once. Result: its end. Raises: RequestRejected."""
    _check_level(draft)
    token = _found(draft, token_id)
    _check_renewer(token, principal)
    if period_ms < 0:
        assert token_id is not None
        return Planned([token_change(token_id, None)], around.now_ms)
    _check_alive(token, around.now_ms)
    return _ends_at(token_id, token, min(token.max_ms, _sum(around.now_ms, period_ms)))


def sweep_tokens(draft: ImageDraft, around: PlanInputs) -> Planned[Sequence[str]]:
    """Remove tokens that have ended, at most ``SWEPT_AT_ONCE_MAX``. Result: their ids."""
    ended = [token_id for token_id, token in draft.tokens.items() if token.has_ended(around.now_ms)]
    ended = ended[:SWEPT_AT_ONCE_MAX]
    return Planned([token_change(token_id, None) for token_id in ended], ended)


def _ends_at(token_id: str | None, token: DelegationToken, expires_ms: int) -> Planned[int]:
    assert token_id is not None
    return Planned([token_change(token_id, token._replace(expires_ms=expires_ms))], expires_ms)


def _found(draft: ImageDraft, token_id: str | None) -> DelegationToken:
    token = None if token_id is None else draft.tokens.get(token_id)
    if token is None:
        raise RequestRejected(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "There is no delegation token with this HMAC.")
    return token


def _check_alive(token: DelegationToken, now_ms: int) -> None:
    if token.has_ended(now_ms):
        raise RequestRejected(ErrorCode.DELEGATION_TOKEN_EXPIRED, "The delegation token has ended: make a new one.")


def _check_renewer(token: DelegationToken, principal: str) -> None:
    if not token.may_renew(principal):
        raise RequestRejected(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
            f"{principal} neither owns the delegation token nor may renew it.",
        )


def _check_level(draft: ImageDraft) -> None:
    if draft.level < SECURITY_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Delegation tokens need {LEVEL_FEATURE} {SECURITY_LEVEL}, and it is {draft.level}: run "
            f"`firn cluster features --upgrade {LEVEL_FEATURE}={SECURITY_LEVEL}`.",
        )


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, LONG_MAX)
