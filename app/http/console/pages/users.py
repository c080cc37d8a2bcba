"""Pages of users who log in by SCRAM, and of quotas.

Tests: ``tests/http/console/test_users.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.turns import Portion, ordered
from app.http.console.asking import soon
from app.http.console.pages.topics import QUERY_CHARS_MAX, number_in
from app.http.console.rendering import ConsoleRoute, page
from app.http.console.texts.formats import number, size
from app.http.errors import RestError
from app.http.serving import gateway_of
from app.security.scram import ScramMechanism

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

USERS_A_PAGE: Final = 100
QUOTAS_A_PAGE: Final = 100
_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "user": ("user", "users without limits of their own"),
    "client-id": ("client id", "client ids without limits of their own"),
    "ip": ("address", "addresses without limits of their own"),
}
_LIMITS: Final[Mapping[str, tuple[str, str]]] = {
    "producer_byte_rate": ("may write", "/s"),
    "consumer_byte_rate": ("may read", "/s"),
    "firn.cold_read_byte_rate": ("may read from the bucket", "/s"),
    "request_percentage": ("may use", " % of a broker's loop"),
    "controller_mutation_rate": ("may change", " partitions/s"),
    "connection_creation_rate": ("may open", " connections/s"),
}


class QuotaPart(NamedTuple):
    """A part of the entity that the limits apply to: its ``kind`` and its ``name``."""

    kind: str
    name: str
    """Empty for those without limits of their own."""


class QuotaRow(NamedTuple):
    """The limits of an entity."""

    parts: tuple[QuotaPart, ...]
    limits: tuple[tuple[str, str, str], ...]
    """For each limit: the action, the amount, and the name of the limit."""


def quota_row(entity: Mapping[str, str | None], limits: Mapping[str, float]) -> QuotaRow:
    """An entity with limits, in words."""
    parts = tuple(
        QuotaPart(_KINDS.get(kind, (kind, kind))[0 if name else 1], name or "") for kind, name in sorted(entity.items())
    )
    shown = []
    for key, value in sorted(limits.items()):
        verb, unit = _LIMITS.get(key, (key, ""))
        amount = size(value) if key.endswith("_byte_rate") else number(value) if value >= 10 else f"{value:g}"
        shown.append((verb, f"{amount}{unit}", key))
    return QuotaRow(parts, tuple(shown))


def _filter_of(request: Request) -> str:
    wanted = request.query_params.get("q", "")
    if len(wanted) > QUERY_CHARS_MAX:
        raise RestError(400, f"A filter has {QUERY_CHARS_MAX} characters at most.")
    return wanted


@router.get("/console/users")
async def list_users(request: Request) -> Response:
    gateway = gateway_of(request)
    wanted, begin = _filter_of(request), number_in(request, "from", 0, 10_000_000)
    known = await soon(gateway, gateway.admin.describe_users)
    portion = Portion()
    fitting = []
    for one in known:
        if wanted in one.name:
            fitting.append(one)
        if portion.spent_by():
            await portion.rest()
    fitting = await ordered(fitting, portion, lambda one: one.name)
    mechanisms = {int(one): one.sasl_name for one in ScramMechanism}
    return await page(
        request,
        "users",
        section="access",
        rows=fitting[begin : begin + USERS_A_PAGE],
        mechanisms=mechanisms,
        count=len(fitting),
        total=len(known),
        begin=begin,
        query=wanted,
        following=begin + USERS_A_PAGE if begin + USERS_A_PAGE < len(fitting) else 0,
    )


@router.get("/console/quotas")
async def list_quotas(request: Request) -> Response:
    gateway = gateway_of(request)
    wanted, begin = _filter_of(request), number_in(request, "from", 0, 10_000_000)
    known = await soon(gateway, gateway.admin.describe_quotas)
    portion = Portion()
    fitting = []
    for entity, limits in known:
        if not wanted or any(wanted in (name or "") for name in entity.values()):
            fitting.append((entity, limits))
        if portion.spent_by():
            await portion.rest()
    fitting = await ordered(fitting, portion, lambda one: sorted((kind, name or "") for kind, name in one[0].items()))
    return await page(
        request,
        "quotas",
        section="access",
        rows=[quota_row(*one) for one in fitting[begin : begin + QUOTAS_A_PAGE]],
        count=len(fitting),
        total=len(known),
        begin=begin,
        query=wanted,
        following=begin + QUOTAS_A_PAGE if begin + QUOTAS_A_PAGE < len(fitting) else 0,
    )
