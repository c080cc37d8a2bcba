"""The tab of a topic's groups: those with commits or members on it, and their lag by partition.

Tests: ``tests/http/console/test_topic_groups.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.errors import BrokerUnavailable, RequestRejected
from app.core.turns import slices
from app.core.units import BrokerId
from app.groups.group import GroupType
from app.http.console.asking import of_broker, soon, together
from app.http.console.pages.topic_totals import lags_of
from app.http.console.pages.topics import QUERY_CHARS_MAX, ends_of, found_topic, told_of, topic_page
from app.http.console.rendering import ConsoleRoute
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.wire.private import LAG_OFFSETS_SHOWN, GroupOnTopic

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

GROUPS_A_PAGE: Final = 50
SHARES_AT_ONCE: Final = 3
"""Share groups whose progress is asked for at the same time."""


class Row(NamedTuple):
    """A group on the topic."""

    group: GroupOnTopic
    lag: int | None
    """None if it is not known of each partition."""
    partitions: int
    parts: Sequence[tuple[int, int | None]]
    """Partition and lag of those that are furthest behind."""


@router.get("/console/topics/{topic_name}/groups")
async def list_groups(topic_name: str, request: Request) -> Response:
    gateway, topic = await found_topic(request)
    after = request.query_params.get("after", "")
    if len(after) > QUERY_CHARS_MAX:
        raise RestError(400, f"The parameter after has {QUERY_CHARS_MAX} characters at most.")
    told = await told_of(gateway, [topic])
    ends = {} if told is None else await ends_of(told)
    silent = told.silent if told else ()
    found = await lags_of(gateway, [topic], ends, away=silent, limit=GROUPS_A_PAGE, after=after)
    away = {*found.silent}
    own = ends.get(topic.name, {})
    rows = []
    for some in slices(found.groups, SHARES_AT_ONCE):
        rows += await together(*(_row(gateway, topic.name, own, one, away) for one in some))
    seen = found.before + len(rows)
    return await topic_page(
        request,
        "groups",
        topic,
        rows=rows,
        sums=found.topics.get(topic.name),
        whole=found.whole or bool(away),
        missing=told is None,
        first=found.before + 1,
        count=found.fitting,
        begun=found.before > 0,
        after=rows[-1].group.group_id if rows and seen < found.fitting else "",
        silent=sorted(away),
    )


async def _row(
    gateway: Gateway, topic: str, ends: Mapping[int, int], group: GroupOnTopic, away: Collection[BrokerId]
) -> Row:
    if group.group_type == GroupType.SHARE:
        return await _of_share(gateway, topic, group, away)
    parts = [
        (partition, max(0, ends[partition] - offset) if partition in ends else None)
        for partition, offset in group.offsets
    ]
    return Row(group, None if group.lag < 0 else group.lag, group.partitions, parts)


async def _of_share(gateway: Gateway, topic: str, group: GroupOnTopic, away: Collection[BrokerId]) -> Row:
    """A share group commits no offsets: its coordinator knows its progress."""
    try:
        coordinator = await soon(gateway, lambda: gateway.groups.coordinator_of(group.group_id))
        if coordinator in away:
            return Row(group, None, 0, ())
        told = await of_broker(gateway, coordinator, lambda _: gateway.groups.share_progress(group.group_id))
    except (BrokerUnavailable, RequestRejected):
        return Row(group, None, 0, ())
    progress = {one.partition: shared.lag for one, shared in told.items() if one.topic == topic}
    lags = [*progress.values()]
    known = [lag for lag in lags if lag is not None]
    most = sorted(progress, key=lambda partition: -(progress[partition] or 0))[:LAG_OFFSETS_SHOWN]
    parts = [(int(partition), progress[partition]) for partition in sorted(most)]
    return Row(group, sum(known) if lags and len(known) == len(lags) else None, len(progress), parts)
