"""Access control lists of REST v3: search, create and delete.

A filter that a search leaves out matches every ACL. A deletion must name the resource type, pattern type, operation and permission,
so that a forgotten filter deletes nothing.

Tests: ``tests/http/rest_v3/test_acls.py``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.turns import Portion, ordered
from app.http.bodies import JSON_TYPE
from app.http.errors import NO_STORE, RestError
from app.http.rest_v3.resources import PAGED, body_of, checked, listed, page_list, url, with_elements
from app.http.schemas import reference, request_body
from app.security.acls import Acl, AclFilter, Operation, Pattern, PatternType, Permission, ResourceType, Rule

router = APIRouter(prefix="/v3/clusters", default_response_class=Response, tags=["ACL (v3)"])

Names = TypeVar("Names", bound=IntEnum)

_CREATED: Final = 201
ACLS_MAX: Final = 1_000
"""ACLs of one request."""


class CreateAclBody(msgspec.Struct, forbid_unknown_fields=True):
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class CreateAclsBody(msgspec.Struct, forbid_unknown_fields=True):
    data: Annotated[list[CreateAclBody], msgspec.Meta(min_length=1, max_length=ACLS_MAX)]


class AclMetadata(msgspec.Struct):
    """The link to an ACL: a search that finds it alone."""

    self_url: str = msgspec.field(name="self")


class AclResource(msgspec.Struct, kw_only=True):
    """An ACL."""

    kind: Literal["KafkaAcl"] = "KafkaAcl"
    metadata: AclMetadata
    cluster_id: str
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


BODIES: Final = (CreateAclBody, CreateAclsBody, AclResource)

_FILTERS: Final[dict[str, tuple[type[IntEnum] | None, str]]] = {
    "resource_type": (ResourceType, "The kind of resource."),
    "resource_name": (
        None,
        "The name in the pattern. With MATCH: the name of a resource to which the pattern applies.",
    ),
    "pattern_type": (
        PatternType,
        "How the pattern compares names. MATCH finds all patterns that apply to a resource.",
    ),
    "principal": (None, "The user, as `User:name`."),
    "host": (None, "The address, or `*`."),
    "operation": (Operation, "The operation."),
    "permission": (Permission, "Whether the rule allows or denies."),
}
_NEEDED_TO_DELETE: Final = ("resource_type", "pattern_type", "operation", "permission")


def _parameters(*needed: str) -> list[dict[str, Any]]:
    found = []
    for name, (names, text) in _FILTERS.items():
        schema: dict[str, Any] = {"type": "string"}
        if names is not None:
            schema["enum"] = [one.name for one in names if one.name != "UNKNOWN"]
        found.append({"name": name, "in": "query", "required": name in needed, "description": text, "schema": schema})
    return found


_EXAMPLE: Final = {
    "resource_type": "TOPIC",
    "resource_name": "flights",
    "pattern_type": "LITERAL",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}


@router.get(
    "/{cluster_id}/acls",
    summary="Search ACLs",
    responses=listed(AclResource, "The ACLs that match all filters."),
    openapi_extra={"parameters": [*_parameters(), *PAGED["parameters"]]},
)
async def search_acls(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = _filter_of(request)
    found = await ordered(await gateway.admin.describe_acls(wanted), Portion(), _place)
    query = urlencode({name: value for name, value in request.query_params.items() if name in _FILTERS})
    return await page_list(
        request,
        "KafkaAclList",
        f"clusters/{cluster_id}/acls" + (f"?{query}" if query else ""),
        found,
        place=_place,
        shape=lambda acl: _resource(request, cluster_id, acl),
    )


@router.post(
    "/{cluster_id}/acls",
    summary="Create an ACL",
    status_code=201,
    openapi_extra=request_body(CreateAclBody, _EXAMPLE),
)
async def create_acl(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, CreateAclBody)
    acl = _acl_of(wanted)
    await gateway.admin.create_acls([acl])
    location = _resource(request, cluster_id, acl).metadata.self_url
    return Response(status_code=_CREATED, headers={**NO_STORE, "location": location})


@router.post(
    "/{cluster_id}/acls:batch",
    summary="Create several ACLs",
    status_code=201,
    openapi_extra=request_body(CreateAclsBody, {"data": [_EXAMPLE]}),
)
async def create_acls(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, CreateAclsBody)
    await gateway.admin.create_acls([_acl_of(one, f"data[{index}].") for index, one in enumerate(wanted.data)])
    return Response(status_code=_CREATED, headers=NO_STORE)


@router.delete(
    "/{cluster_id}/acls",
    summary="Delete ACLs",
    responses={
        200: {
            "description": "The deleted ACLs.",
            "content": {
                JSON_TYPE: {
                    "schema": {
                        "type": "object",
                        "required": ["data"],
                        "properties": {"data": {"type": "array", "items": reference(AclResource)}},
                    }
                }
            },
        }
    },
    openapi_extra={"parameters": _parameters(*_NEEDED_TO_DELETE)},
)
async def delete_acls(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    for name in _NEEDED_TO_DELETE:
        if name not in request.query_params:
            raise RestError(400, f"The parameter {name} is missing. Use ANY to delete ACLs with any {name}.")
    deleted = await ordered(await gateway.admin.delete_acls([_filter_of(request)]), Portion(), _place)
    return await with_elements({"data": []}, (_resource(request, cluster_id, acl) for acl in deleted))


# --- reading and showing --------------------------------------------------------------------------------------------


def _number(names: type[Names], field: str, text: str) -> int:
    """The number of a name. Raises: RestError 400."""
    found = names.__members__.get(text.upper())
    if found is None or found.name == "UNKNOWN":
        known = ", ".join(one.name for one in names if one.name != "UNKNOWN")
        raise RestError(400, f"The field {field} is {text[:40]!r}, and none of {known}.")
    return int(found)


def _filter_of(request: Request) -> AclFilter:
    """Raises: RestError 400."""
    query = request.query_params
    return AclFilter(
        _number(ResourceType, "resource_type", query.get("resource_type", "ANY")),
        query.get("resource_name"),
        _number(PatternType, "pattern_type", query.get("pattern_type", "ANY")),
        query.get("principal"),
        query.get("host"),
        _number(Operation, "operation", query.get("operation", "ANY")),
        _number(Permission, "permission", query.get("permission", "ANY")),
    )


def _acl_of(wanted: CreateAclBody, where: str = "") -> Acl:
    """Raises: RestError 400."""
    pattern = Pattern(
        _number(ResourceType, f"{where}resource_type", wanted.resource_type),
        _number(PatternType, f"{where}pattern_type", wanted.pattern_type),
        wanted.resource_name,
    )
    operation = _number(Operation, f"{where}operation", wanted.operation)
    permission = _number(Permission, f"{where}permission", wanted.permission)
    return Acl(pattern, Rule(wanted.principal, wanted.host, operation, permission))


def _place(acl: Acl) -> tuple[str | int, ...]:
    return (*acl.pattern, *acl.rule)


def _resource(request: Request, cluster_id: str, acl: Acl) -> AclResource:
    fields: dict[str, Any] = {
        "resource_type": ResourceType(acl.pattern.resource_type).name,
        "resource_name": acl.pattern.name,
        "pattern_type": PatternType(acl.pattern.pattern_type).name,
        "principal": acl.rule.principal,
        "host": acl.rule.host,
        "operation": Operation(acl.rule.operation).name,
        "permission": Permission(acl.rule.permission).name,
    }
    return AclResource(
        metadata=AclMetadata(url(request, f"clusters/{cluster_id}/acls?{urlencode(fields)}")),
        cluster_id=cluster_id,
        **fields,
    )
