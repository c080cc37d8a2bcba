"""DescribeUserScramCredentials and AlterUserScramCredentials (keys 50, 51, KIP-554).

Tests: ``tests/broker/test_secured_listeners.py``, ``tests/handlers/test_repeats.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from app.core.errors import ErrorCode
from app.core.turns import Portion, ordered
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import ChangesView
from app.metadata.changes import scram_changes
from app.metadata.changes.scram_changes import ScramAsked
from app.security.scram import SECRET_BYTES
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from app.wire.apis.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    UserName,
)


async def describe(
    context: ChangesView, request: Request, message: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Return the mechanisms of users and their iterations. Salts and keys, which could be attacked, are left out."""
    users = context.image.scram_users
    portion = Portion()
    names: Iterable[str] = await ordered(users, portion, key=str) if not message.users else map(_name, message.users)
    asked: Counter[str] = Counter()
    for name in names:
        asked[name] += 1
        if portion.spent_by():
            await portion.rest()
    results = []
    for name, count in asked.items():
        if portion.spent_by():
            await portion.rest()
        if count > 1:
            results.append(
                DescribeUserScramCredentialsResult(
                    name,
                    ErrorCode.DUPLICATE_RESOURCE,
                    f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}.",
                )
            )
        elif name not in users:
            results.append(
                DescribeUserScramCredentialsResult(
                    name,
                    ErrorCode.RESOURCE_NOT_FOUND,
                    f"Attempt to describe a user credential that does not exist: {name}.",
                )
            )
        else:
            infos = [CredentialInfo(mechanism, one.iterations) for mechanism, one in sorted(users[name].items())]
            results.append(DescribeUserScramCredentialsResult(name, ErrorCode.NONE, None, infos))
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _name(asked: UserName) -> str:
    return asked.name


def refuse_describe(
    request: Request, message: DescribeUserScramCredentialsRequest, code: ErrorCode, sentence: str
) -> DescribeUserScramCredentialsResponse:
    del request, message
    return DescribeUserScramCredentialsResponse(error_code=code, error_message=sentence)


async def alter(
    context: ChangesView, request: Request, message: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Raises: RequestRejected."""
    asked = [ScramAsked(one.name, one.mechanism, True) for one in message.deletions]
    asked += [
        ScramAsked(one.name, one.mechanism, False, one.iterations, bytes(one.salt), bytes(one.salted_password))
        for one in message.upsertions
    ]
    secret = context.random_bytes(SECRET_BYTES)
    answers = await context.controller.submit(
        lambda draft, _: scram_changes.alter_scram_users.steps(draft, asked, secret)
    )
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResult(one.user, one.code, one.sentence) for one in answers]
    )


def refuse_alter(
    request: Request, message: AlterUserScramCredentialsRequest, code: ErrorCode, sentence: str
) -> AlterUserScramCredentialsResponse:
    del request
    names = dict.fromkeys([one.name for one in message.deletions] + [one.name for one in message.upsertions])
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResult(name, code, sentence) for name in names]
    )


APIS: Final[ApiTable] = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(describe, refuse_describe),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(alter, refuse_alter),
}
