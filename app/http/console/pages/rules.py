"""The page of access rules, each as a sentence.

Tests: ``tests/http/console/test_administration.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import Portion, ordered
from app.http.console.asking import soon
from app.http.console.pages.topics import QUERY_CHARS_MAX, number_in
from app.http.console.rendering import ConsoleRoute, page
from app.http.errors import RestError
from app.http.serving import gateway_of
from app.security.acls import WILDCARD, Acl, AclFilter, Operation, PatternType, Permission, ResourceType, Rule

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

RULES_A_PAGE: Final = 100
_VERBS: Final[Mapping[int, str]] = {
    Operation.ALL: "do everything with",
    Operation.READ: "read",
    Operation.WRITE: "write to",
    Operation.CREATE: "create",
    Operation.DELETE: "delete",
    Operation.ALTER: "alter",
    Operation.DESCRIBE: "describe",
    Operation.CLUSTER_ACTION: "act as a broker of",
    Operation.DESCRIBE_CONFIGS: "see the settings of",
    Operation.ALTER_CONFIGS: "alter the settings of",
    Operation.IDEMPOTENT_WRITE: "write with idempotence to",
    Operation.CREATE_TOKENS: "make tokens for",
    Operation.DESCRIBE_TOKENS: "see tokens of",
    Operation.TWO_PHASE_COMMIT: "use two-phase commit with",
}
_NOUNS: Final[Mapping[int, tuple[str, str]]] = {
    ResourceType.TOPIC: ("topic", "topics"),
    ResourceType.GROUP: ("group", "groups"),
    ResourceType.TRANSACTIONAL_ID: ("transactional id", "transactional ids"),
    ResourceType.DELEGATION_TOKEN: ("delegation token", "delegation tokens"),
    ResourceType.USER: ("user", "users"),
}


@dataclass(frozen=True, slots=True)
class RuleSentence:
    """A rule, in the parts of its sentence."""

    rule: Rule
    denies: bool
    verb: str
    what: str
    name: str
    """Of the resource, or the beginning of its name; empty for all of them."""


def sentence_of(acl: Acl) -> RuleSentence:
    """The words of a rule. Numbers of a newer version are shown as they are."""
    pattern, rule = acl
    one, more = _NOUNS.get(pattern.resource_type, (f"resource of type {pattern.resource_type}",) * 2)
    name = pattern.name
    if pattern.resource_type == ResourceType.CLUSTER:
        what, name = "the cluster", ""
    elif pattern.pattern_type == PatternType.PREFIXED:
        what = f"{more} whose name begins with"
    elif name == WILDCARD:
        what, name = f"all {more}", ""
    else:
        what = one
    verb = _VERBS.get(rule.operation, f"do operation {rule.operation} with")
    return RuleSentence(rule, rule.permission == Permission.DENY, verb, what, name)


@router.get("/console/access")
async def list_rules(request: Request) -> Response:
    gateway = gateway_of(request)
    wanted = request.query_params.get("q", "")
    if len(wanted) > QUERY_CHARS_MAX:
        raise RestError(400, f"A filter has {QUERY_CHARS_MAX} characters at most.")
    begin = number_in(request, "from", 0, 10_000_000)
    try:
        await soon(gateway, gateway.admin.describe_brokers)
        known = await gateway.admin.describe_acls(AclFilter())
    except RequestRejected as error:
        if error.code is not ErrorCode.SECURITY_DISABLED:
            raise
        return await page(request, "access", section="access", enabled=False)
    portion = Portion()
    fitting: list[Acl] = []
    for acl in known:
        if wanted in acl.rule.principal or wanted in acl.pattern.name:
            fitting.append(acl)
        if portion.spent_by():
            await portion.rest()
    fitting = await ordered(fitting, portion, lambda acl: (acl.rule.principal, acl))
    shown = fitting[begin : begin + RULES_A_PAGE]
    return await page(
        request,
        "access",
        section="access",
        enabled=True,
        rows=[sentence_of(acl) for acl in shown],
        count=len(fitting),
        total=len(known),
        begin=begin,
        query=wanted,
        following=begin + RULES_A_PAGE if begin + RULES_A_PAGE < len(fitting) else 0,
    )
