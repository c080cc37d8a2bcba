"""DescribeAcls (key 29), CreateAcls (30), DeleteAcls (31): the rules of access, through the controller (KIP-140, KIP-290).

Tests: ``tests/broker/test_authorisation.py``, ``tests/handlers/test_audited_changes.py``.
"""

from __future__ import annotations

from typing import Final

from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.turns import Portion
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.mutations import Refusal, refusal
from app.handlers.base.request import Request
from app.handlers.base.views import ChangesView
from app.metadata.changes import acl_changes
from app.security.acls import Acl, AclFilter, Pattern, Rule, exact_filter
from app.wire.apikeys import ApiKey
from app.wire.apis.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from app.wire.apis.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from app.wire.apis.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

DELETED_MAX: Final = 20_000
"""ACLs that the filters of one request match, each counted as often as it is matched. A change has 10,000 at most."""


def _check_enabled(context: ChangesView) -> None:
    """Raises: RequestRejected SECURITY_DISABLED."""
    if context.authorizer is None:
        raise RequestRejected(
            ErrorCode.SECURITY_DISABLED,
            "No Authorizer is configured on the broker: set authorizer.class.name, and restart the brokers.",
        )


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


async def describe_acls(context: ChangesView, request: Request, message: DescribeAclsRequest) -> DescribeAclsResponse:
    """The ACLs that a filter matches. Raises: RequestRejected SECURITY_DISABLED, INVALID_REQUEST."""
    del request
    _check_enabled(context)
    wanted = _filter(message)
    why = wanted.why_unknown()
    if why is not None:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, why)
    portion = Portion()
    found: dict[Pattern, DescribeAclsResource] = {}
    for (kind, pattern_type, name), rule in wanted.find(context.image.acls):
        pattern = Pattern(kind, pattern_type, name)
        resource = found.get(pattern)
        if resource is None:
            resource = found[pattern] = DescribeAclsResource(kind, name, pattern_type)
        resource.acls.append(AclDescription(*rule))
        if portion.spent_by():
            await portion.rest()
    return DescribeAclsResponse(error_message=None, resources=list(found.values()))


def refuse_describe_acls(
    request: Request, message: DescribeAclsRequest, code: ErrorCode, sentence: str
) -> DescribeAclsResponse:
    del request, message
    return DescribeAclsResponse(error_code=code, error_message=sentence)


async def create_acls(context: ChangesView, request: Request, message: CreateAclsRequest) -> CreateAclsResponse:
    """Make each ACL that can be made. Raises: RequestRejected SECURITY_DISABLED."""
    _check_enabled(context)
    asked = [
        Acl(
            Pattern(one.resource_type, one.resource_pattern_type, one.resource_name),
            Rule(one.principal, one.host, one.operation, one.permission_type),
        )
        for one in message.creations
    ]
    try:
        outcomes = await context.controller.submit(lambda draft, _: acl_changes.create_acls(draft, asked))
    except FirnError as error:
        return refuse_create_acls(request, message, *refusal(error))
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_message=None) if one is None else AclCreationResult(*_told(one)) for one in outcomes
        ]
    )


def _told(error: RequestRejected) -> Refusal:
    return Refusal(error.code, str(error))


def refuse_create_acls(
    request: Request, message: CreateAclsRequest, code: ErrorCode, sentence: str
) -> CreateAclsResponse:
    del request
    return CreateAclsResponse(results=[AclCreationResult(code, sentence) for _ in message.creations])


async def delete_acls(context: ChangesView, request: Request, message: DeleteAclsRequest) -> DeleteAclsResponse:
    """Delete the ACLs that match each filter. Raises: RequestRejected SECURITY_DISABLED.

    This broker finds the matching ACLs, in portions. It asks the controller for these ACLs one by one, so the controller looks at
    no others. An ACL that is created meanwhile stays, as if it had been created afterwards.
    """
    _check_enabled(context)
    portion = Portion()
    meant: dict[AclFilter, list[Acl]] = {}
    count = 0
    try:
        for asked in message.filters:
            wanted = _filter(asked)
            if wanted.why_unknown() is not None:
                continue
            if wanted not in meant:
                found = meant[wanted] = []
                for acl in wanted.find(context.image.acls):
                    found.append(acl)
                    if portion.spent_by():
                        await portion.rest()
            count += len(meant[wanted])
            if count > DELETED_MAX:
                raise RequestRejected(
                    ErrorCode.INVALID_REQUEST, f"The filters match more than {DELETED_MAX} ACLs. Send fewer filters."
                )
            await portion.rest_if_spent()
        exact = list(dict.fromkeys(acl for found in meant.values() for acl in found))
        filters = [exact_filter(acl) for acl in exact]
        outcomes = (
            await context.controller.submit(lambda draft, _: acl_changes.delete_acls(draft, filters)) if exact else []
        )
    except FirnError as error:
        return refuse_delete_acls(request, message, *refusal(error))
    gone = {
        acl
        for acl, outcome in zip(exact, outcomes, strict=True)
        if not isinstance(outcome, RequestRejected) and outcome
    }
    results = []
    for asked in message.filters:
        wanted = _filter(asked)
        why = wanted.why_unknown()
        if why is not None:
            results.append(DeleteAclsFilterResult(ErrorCode.INVALID_REQUEST, why))
            continue
        deleted = [
            DeleteAclsMatchingAcl(
                ErrorCode.NONE, None, pattern.resource_type, pattern.name, pattern.pattern_type, *rule
            )
            for pattern, rule in meant[wanted]
            if (pattern, rule) in gone
        ]
        results.append(DeleteAclsFilterResult(error_message=None, matching_acls=deleted))
        if portion.spent_by(1 + len(deleted)):
            await portion.rest()
    return DeleteAclsResponse(filter_results=results)


def refuse_delete_acls(
    request: Request, message: DeleteAclsRequest, code: ErrorCode, sentence: str
) -> DeleteAclsResponse:
    del request
    return DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(code, sentence) for _ in message.filters])


APIS: Final[ApiTable] = {
    ApiKey.DESCRIBE_ACLS: Api(describe_acls, refuse_describe_acls),
    ApiKey.CREATE_ACLS: Api(create_acls, refuse_create_acls),
    ApiKey.DELETE_ACLS: Api(delete_acls, refuse_delete_acls),
}
