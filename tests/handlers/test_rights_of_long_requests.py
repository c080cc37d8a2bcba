"""The rights of a request that names thousands of things are asked for in portions (INV-15, ADR 0039)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from app.core.errors import ErrorCode
from app.core.turns import STRIDE
from app.handlers.apis.topics import refuse_create_partitions
from app.handlers.base.api import Api
from app.handlers.base.authorising import STEPS_AT_ONCE, guarded
from app.handlers.base.request import Request
from app.handlers.policy.callers import Caller, Rights
from app.security.acls import Acls, Operation, Pattern, PatternType, Permission, ResourceType, Rule
from app.security.authorizer import Authorizer
from app.wire.apikeys import ApiKey
from app.wire.apis.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

ALICE = "User:alice"
COUNT = STRIDE * STEPS_AT_ONCE * 2
TOPICS = [f"{'mine' if number % 2 else 'theirs'}-{number}" for number in range(COUNT)]
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def rules(*prefixes: str) -> Acls:
    rule = Rule(ALICE, "*", Operation.ALTER, Permission.ALLOW)
    return {Pattern(ResourceType.TOPIC, PatternType.PREFIXED, name): {ALICE: (rule,)} for name in prefixes}


def asked(authorizer: Authorizer) -> Coroutine[Any, Any, CreatePartitionsResponse]:
    """The way of a long request, before its first step in a portion."""
    api = Api(handle, refuse_create_partitions)
    request = Request(ApiKey.CREATE_PARTITIONS, 3, 1, "client", Caller(Rights(ALICE), host="10.0.0.1"), set())
    message = CreatePartitionsRequest([CreatePartitionsTopic(name, 2) for name in TOPICS])
    context: Any = SimpleNamespace(authorizer=authorizer)
    found = guarded(ApiKey.CREATE_PARTITIONS, api).handle(context, request, message)
    assert asyncio.iscoroutine(found), "it is served between other requests"
    return found


async def handle(context: Any, request: Request, message: CreatePartitionsRequest) -> CreatePartitionsResponse:
    del context, request
    return CreatePartitionsResponse(results=[CreatePartitionsTopicResult(name=one.name) for one in message.topics])


def codes(response: CreatePartitionsResponse) -> dict[str, int]:
    return {one.name: one.error_code for one in response.results}


async def test_what_is_allowed_is_served_and_the_rest_is_refused() -> None:
    authorizer = Authorizer()
    authorizer.follow(rules("mine"))
    found = codes(await asked(authorizer))
    assert found == {name: 0 if name.startswith("mine") else DENIED for name in TOPICS}


async def test_rules_that_change_meanwhile_decide() -> None:
    authorizer = Authorizer()
    authorizer.follow(rules("mine", "theirs"))
    way = asked(authorizer)
    authorizer.follow(rules("theirs"))
    found = codes(await way)
    assert found == {name: 0 if name.startswith("theirs") else DENIED for name in TOPICS}


async def test_a_request_without_any_right_is_refused_as_a_whole() -> None:
    authorizer = Authorizer()
    authorizer.follow(rules("other"))
    assert codes(await asked(authorizer)) == dict.fromkeys(TOPICS, int(DENIED))
