"""Pages of groups: the list, and of one group its members and how far it is behind.

Tests: ``tests/http/console/test_groups.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.groups import ListedGroup
from app.core.turns import Portion, ordered
from app.http.console.rendering import ConsoleRoute, page
from app.http.console.topics import QUERY_CHARS_MAX, number_in
from app.http.errors import RestError
from app.http.rest_v3.groups import behind, owners_in, present
from app.http.rest_v3.resources import text_of
from app.http.serving import gateway_of

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

GROUPS_A_PAGE: Final = 50
LAGS_A_PAGE: Final = 200
MEMBERS_SHOWN: Final = 100


@router.get("/console/groups")
async def list_groups(request: Request) -> Response:
    gateway = gateway_of(request)
    query = request.query_params
    wanted, after = query.get("q", ""), query.get("after", "")
    if len(wanted) > QUERY_CHARS_MAX or len(after) > QUERY_CHARS_MAX:
        raise RestError(400, f"A filter has {QUERY_CHARS_MAX} characters at most.")
    listed = await gateway.groups.list_groups()
    portion = Portion()
    fitting: list[ListedGroup] = []
    for group in listed:
        if wanted in group.group_id:
            fitting.append(group)
        if portion.spent_by():
            await portion.rest()
    fitting = await ordered(fitting, portion, lambda group: group.group_id)
    begin = bisect_right(fitting, after, key=lambda group: group.group_id) if after else 0
    shown = fitting[begin : begin + GROUPS_A_PAGE]
    return await page(
        request,
        "groups",
        section="groups",
        rows=shown,
        count=len(fitting),
        total=len(listed),
        first=begin + 1,
        query=wanted,
        after=shown[-1].group_id if begin + GROUPS_A_PAGE < len(fitting) else "",
        begun=begin > 0,
    )


@router.get("/console/groups/{group_id}")
async def show_group(group_id: str, request: Request) -> Response:
    gateway = gateway_of(request)
    name = text_of(request, "group_id")
    begin = number_in(request, "from", 0, 10_000_000)
    view = await gateway.groups.describe(name)
    values: dict[str, Any] = {
        "share": view.group_type == "share",
        "lags": [],
        "progress": [],
        "following": 0,
        "total": 0,
    }
    portion = Portion()
    if view.group_type == "share":
        progress = await gateway.groups.share_progress(name)
        places = await ordered(progress, portion, lambda partition: partition)
        shown = places[begin : begin + LAGS_A_PAGE]
        values["progress"] = [(partition, progress[partition]) for partition in shown]
    else:
        committed = await gateway.groups.committed(name)
        places = await ordered(committed, portion, lambda partition: partition)
        shown = places[begin : begin + LAGS_A_PAGE]
        owners = await owners_in(view)
        values["lags"] = await behind(gateway, owners, committed, await present(gateway, shown))
        values["total"] = sum(one.lag or 0 for one in values["lags"])
    if begin + LAGS_A_PAGE < len(places):
        values["following"] = begin + LAGS_A_PAGE
    return await page(
        request,
        "group",
        section="groups",
        group=view,
        members=view.members[:MEMBERS_SHOWN],
        partitions=len(places),
        begin=begin,
        coordinator=await gateway.groups.coordinator_of(name),
        **values,
    )
