"""Pages of groups: the list, and the page of one group with its members and its lag, which the script follows.

Tests: ``tests/http/console/test_groups.py``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import LATEST
from app.client.connection import KafkaConnection
from app.client.groups import Committed, GroupMember, ListedGroup
from app.core.errors import BrokerUnavailable, RequestRejected
from app.core.turns import Portion, ordered, slices
from app.core.units import BrokerId, TopicPartition
from app.http.bodies import json_response
from app.http.console.asking import of_broker, side_by_side, soon, together
from app.http.console.forms import is_done
from app.http.console.pages.topics import QUERY_CHARS_MAX, number_in
from app.http.console.rendering import GUARDED, ConsoleRoute, page
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.rest_v3.groups import behind, owners_in, present
from app.http.rest_v3.resources import text_of
from app.http.serving import gateway_of

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

GROUPS_A_PAGE: Final = 50
LAGS_A_PAGE: Final = 200
LAGGING_PARTITIONS_MAX: Final = 2_000
"""Partitions of the groups of one page whose ends are asked for."""
GROUPS_AT_ONCE: Final = 3
"""Groups whose offsets are asked for at the same time. The size of each is known only when its offsets have come."""
SHARE: Final = "share"
MEMBERS_SHOWN: Final = 100


@router.get("/console/groups")
async def list_groups(request: Request) -> Response:
    gateway = gateway_of(request)
    query = request.query_params
    wanted, after = query.get("q", ""), query.get("after", "")
    if len(wanted) > QUERY_CHARS_MAX or len(after) > QUERY_CHARS_MAX:
        raise RestError(400, f"A filter has {QUERY_CHARS_MAX} characters at most.")
    view = await soon(gateway, gateway.admin.describe_brokers)
    told = await side_by_side(gateway, view.brokers, gateway.groups.groups_at)
    portion = Portion()
    listed: list[ListedGroup] = []
    for answer in told.answers.values():
        listed += answer
    fitting: list[ListedGroup] = []
    for group in listed:
        if wanted in group.group_id:
            fitting.append(group)
        if portion.spent_by():
            await portion.rest()
    fitting = await ordered(fitting, portion, lambda group: group.group_id)
    begin = bisect_right(fitting, after, key=lambda group: group.group_id) if after else 0
    shown = fitting[begin : begin + GROUPS_A_PAGE]
    lags = await _lags_of(gateway, shown, told.silent)
    return await page(
        request,
        "groups",
        lags=lags,
        section="groups",
        rows=shown,
        count=len(fitting),
        total=len(listed),
        first=begin + 1,
        query=wanted,
        after=shown[-1].group_id if begin + GROUPS_A_PAGE < len(fitting) else "",
        begun=begin > 0,
        silent=told.silent,
    )


class _Progress(NamedTuple):
    """How far a share group is."""

    lag: int | None
    """None if it is not known of each partition."""
    partitions: int


def _sum(lags: Iterable[int | None]) -> int | None:
    """The lags of all partitions together; None if one is not known, because a part of them is no lag."""
    total = 0
    for lag in lags:
        if lag is None:
            return None
        total += lag
    return total


async def _lags_of(gateway: Gateway, groups: Sequence[ListedGroup], silent: Collection[BrokerId]) -> dict[str, int]:
    """The records that some groups lack, all partitions together. A coordinator that did not respond once is not asked again.

    A group is left out if the lag of a partition is not known, if it has no offsets, or if the groups before it and itself have
    more than ``LAGGING_PARTITIONS_MAX`` partitions. No group is asked for once those before it have as many.
    """
    away = set(silent)

    async def offsets_of(group: ListedGroup) -> Mapping[TopicPartition, Committed] | _Progress | None:
        if group.coordinator in away:
            return None
        try:
            if group.group_type == SHARE:
                progress = await of_broker(
                    gateway, group.coordinator, lambda _: gateway.groups.share_progress(group.group_id)
                )
                return _Progress(_sum(one.lag for one in progress.values()), len(progress)) if progress else None
            return await of_broker(gateway, group.coordinator, lambda _: gateway.groups.committed(group.group_id))
        except BrokerUnavailable:
            away.add(group.coordinator)
            return None
        except RequestRejected:
            return None

    found: dict[str, int] = {}
    offsets: dict[str, Mapping[TopicPartition, Committed]] = {}
    left = LAGGING_PARTITIONS_MAX
    for some in slices(groups, GROUPS_AT_ONCE):
        if left <= 0:
            break
        for group, told in zip(some, await together(*map(offsets_of, some)), strict=True):
            if isinstance(told, _Progress):
                if told.lag is not None:
                    found[group.group_id] = told.lag
                left -= told.partitions
            elif told:
                if len(told) <= left:
                    offsets[group.group_id] = told
                left -= len(told)
    partitions = [*dict.fromkeys(partition for one in offsets.values() for partition in one)]
    ends = await _ends_of(gateway, partitions, silent)
    portion = Portion()
    for name, committed in offsets.items():
        if all(partition in ends for partition in committed):
            found[name] = sum(max(0, ends[partition] - one.offset) for partition, one in committed.items())
        await portion.rest_if_spent()
    return found


async def _ends_of(
    gateway: Gateway, partitions: Sequence[TopicPartition], silent: Collection[BrokerId]
) -> dict[TopicPartition, int]:
    """The ends of those partitions whose leaders respond. Brokers that were ``silent`` are not asked again."""
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    try:
        there = await present(gateway, partitions)
    except (BrokerUnavailable, RequestRejected):
        return {}
    for partition in there:
        leader = gateway.cluster.view.leader_of(partition)
        if leader is not None and leader not in silent:
            by_leader.setdefault(leader, []).append(partition)

    async def ask(node_id: BrokerId, _: KafkaConnection) -> dict[TopicPartition, int]:
        try:
            ends = await gateway.cluster.list_offsets(dict.fromkeys(by_leader[node_id], LATEST))
        except RequestRejected:
            return {}  # a topic was deleted meanwhile
        return {partition: one.offset for partition, one in ends.items()}

    told = await side_by_side(gateway, by_leader, ask)
    gone = dict.fromkeys(set(partitions) - set(there), 0)
    return gone | {partition: end for answer in told.answers.values() for partition, end in answer.items()}


class Lag(NamedTuple):
    """The progress of a group in a partition."""

    partition: TopicPartition
    offset: int
    member: GroupMember | None
    end_offset: int | None = None
    """None if its leader did not say it."""

    @property
    def lag(self) -> int | None:
        return None if self.end_offset is None else max(0, self.end_offset - self.offset)


async def _lags(
    gateway: Gateway,
    owners: Mapping[TopicPartition, GroupMember],
    committed: Mapping[TopicPartition, Committed],
    partitions: Sequence[TopicPartition],
) -> tuple[list[Lag], list[BrokerId]]:
    """The progress of a group in at most ``LAGS_A_PAGE`` partitions, and the leaders that did not respond.

    Raises: RequestRejected.
    """
    found = {one: Lag(one, committed[one].offset, owners.get(one)) for one in partitions}
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    for partition in partitions:
        leader = gateway.cluster.view.leader_of(partition)
        if leader is not None:
            by_leader.setdefault(leader, []).append(partition)
    told = await side_by_side(
        gateway, by_leader, lambda node_id, _: behind(gateway, owners, committed, by_leader[node_id])
    )
    for answer in told.answers.values():
        for one in answer:
            found[one.partition] = found[one.partition]._replace(end_offset=one.end_offset)
    return [*found.values()], told.silent


@router.get("/console/groups/{group_id}")
async def show_group(group_id: str, request: Request) -> Response:
    gateway = gateway_of(request)
    name = text_of(request, "group_id")
    begin = number_in(request, "from", 0, 10_000_000)
    count = number_in(request, "set", 0, 10_000_000)
    coordinator = await soon(gateway, lambda: gateway.groups.coordinator_of(name))
    view = await of_broker(gateway, coordinator, lambda _: gateway.groups.describe(name))
    values: dict[str, Any] = {
        "silent": [],
        "share": view.group_type == "share",
        "lags": [],
        "progress": [],
        "following": 0,
        "total": 0,
    }
    portion = Portion()
    if view.group_type == "share":
        progress = await of_broker(gateway, coordinator, lambda _: gateway.groups.share_progress(name))
        places = await ordered(progress, portion, lambda partition: partition)
        shown = places[begin : begin + LAGS_A_PAGE]
        values["progress"] = [(partition, progress[partition]) for partition in shown]
        values["total"] = _sum(one.lag for _, one in values["progress"])
    else:
        committed = await of_broker(gateway, coordinator, lambda _: gateway.groups.committed(name))
        places = await ordered(committed, portion, lambda partition: partition)
        shown = places[begin : begin + LAGS_A_PAGE]
        owners = await owners_in(view)
        values["lags"], values["silent"] = await _lags(gateway, owners, committed, await present(gateway, shown))
        values["total"] = _sum(one.lag for one in values["lags"])
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
        coordinator=coordinator,
        moves=0 < len(places) <= LAGS_A_PAGE,
        set=count if is_done(request, f"set {name} {count}") else 0,
        **values,
    )


@router.get("/console/groups/{group_id}/live")
async def live(group_id: str, request: Request) -> Response:
    """How far a group is, for the script of its page, which computes rates from two of these responses.

    Of the first ``LAGS_A_PAGE`` partitions of its offsets. Raises: BrokerUnavailable if the lag of one is not known, because a sum
    without it would look like a leap.
    """
    gateway = gateway_of(request)
    name = text_of(request, "group_id")
    coordinator = await soon(gateway, lambda: gateway.groups.coordinator_of(name))
    portion = Portion()
    if request.query_params.get("share") == "1":
        progress = await of_broker(gateway, coordinator, lambda _: gateway.groups.share_progress(name))
        shown = (await ordered(progress, portion, lambda partition: partition))[:LAGS_A_PAGE]
        known = [(one, int(progress[one].offset), progress[one].lag) for one in shown]
    else:
        committed = await of_broker(gateway, coordinator, lambda _: gateway.groups.committed(name))
        shown = (await ordered(committed, portion, lambda partition: partition))[:LAGS_A_PAGE]
        lags, silent = await _lags(gateway, {}, committed, await present(gateway, shown))
        if silent:
            raise BrokerUnavailable(f"Broker {silent[0]} did not respond.")
        known = [(one.partition, int(one.offset), one.lag) for one in lags]
    done = lag = 0
    for partition, offset, left in known:
        if left is None:
            raise BrokerUnavailable(
                f"The end of partition {partition} is not known, or it has no leader. Try again later."
            )
        done += offset
        lag += left
    body = {
        "counters": {"done": done, "written": done + lag},
        "gauges": {"lag": lag},
        "at_s": asyncio.get_running_loop().time(),
    }
    response = json_response(body)
    response.headers.update(GUARDED)
    return response
