"""DescribeClientQuotas and AlterClientQuotas (keys 48 and 49, KIP-546): limits of users, client ids and addresses.

Tests: ``tests/handlers/test_admin_quotas.py``.
"""

from __future__ import annotations

from typing import Final

from app.core.errors import ErrorCode, RequestRejected
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.mutations import Refusal, each
from app.handlers.base.request import Request
from app.handlers.base.views import ChangesView
from app.metadata.changes.quotas import (
    DEFAULT,
    ENTITY_TYPES,
    Component,
    Match,
    QuotaOperation,
    alter_quotas,
    matching_quotas,
    quota_entity,
)
from app.metadata.image.records import QuotaEntity
from app.wire.apikeys import ApiKey
from app.wire.apis import alter_client_quotas as altering
from app.wire.apis import describe_client_quotas as describing

_MATCHES: Final = frozenset(Match)


def describe_client_quotas(
    context: ChangesView, request: Request, message: describing.DescribeClientQuotasRequest
) -> describing.DescribeClientQuotasResponse:
    """The limits of all entities that a filter lets through. Raises: RequestRejected."""
    del request
    components = [_component(one) for one in message.components]
    found = sorted(
        matching_quotas(context.image.quotas, components, strict=message.strict),
        key=lambda one: [name or "" for name in one[0]],
    )
    entries = [
        describing.EntryData(
            entity=[
                describing.EntityData(entity_type, name or None)
                for entity_type, name in zip(ENTITY_TYPES, entity, strict=True)
                if name is not None
            ],
            values=[describing.ValueData(key, value) for key, value in sorted(limits.items())],
        )
        for entity, limits in found
    ]
    return describing.DescribeClientQuotasResponse(error_message=None, entries=entries)


def _component(asked: describing.ComponentData) -> Component:
    if asked.match_type not in _MATCHES:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"{asked.match_type} is not a way to match an entity.")
    match = Match(asked.match_type)
    if (match is Match.EXACT) != bool(asked.match):
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST, "A filter for one name has that name, and a filter for others has none."
        )
    return Component(asked.entity_type, match, asked.match or DEFAULT)


def refuse_describe(
    request: Request, message: describing.DescribeClientQuotasRequest, code: ErrorCode, sentence: str
) -> describing.DescribeClientQuotasResponse:
    del request, message
    return describing.DescribeClientQuotasResponse(error_code=code, error_message=sentence, entries=None)


async def alter_client_quotas(
    context: ChangesView, request: Request, message: altering.AlterClientQuotasRequest
) -> altering.AlterClientQuotasResponse:
    """Change the limits of each entity, or with ``validate_only`` see whether they could be changed."""
    del request
    seen: set[QuotaEntity] = set()

    async def alter(entry: altering.AlterClientQuotasRequestEntryData) -> None:
        entity = quota_entity([(part.entity_type, part.entity_name) for part in entry.entity])
        if entity in seen:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "The request names an entity twice.")
        seen.add(entity)
        operations = [QuotaOperation(op.key, None if op.remove else op.value) for op in entry.ops]
        await context.controller.submit(
            lambda draft, around: alter_quotas(draft, around, entity, operations), validate_only=message.validate_only
        )

    response = altering.AlterClientQuotasResponse()
    for entry, answer in zip(message.entries, await each(message.entries, alter), strict=True):
        code, sentence = answer if isinstance(answer, Refusal) else (ErrorCode.NONE, None)
        response.entries.append(altering.AlterClientQuotasResponseEntryData(code, sentence, entry.entity))
    return response


def refuse_alter(
    request: Request, message: altering.AlterClientQuotasRequest, code: ErrorCode, sentence: str
) -> altering.AlterClientQuotasResponse:
    del request
    return altering.AlterClientQuotasResponse(
        entries=[altering.AlterClientQuotasResponseEntryData(code, sentence, entry.entity) for entry in message.entries]
    )


APIS: Final[ApiTable] = {
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(describe_client_quotas, refuse_describe),
    ApiKey.ALTER_CLIENT_QUOTAS: Api(alter_client_quotas, refuse_alter),
}
