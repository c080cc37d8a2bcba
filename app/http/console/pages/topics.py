"""Pages of topics: the list, and of one topic its timeline, its partitions and its settings.

The list asks any broker for the names of a page, which the broker filters and sorts. Then it asks for the numbers of these topics.
Tests: ``tests/http/console/test_topics.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.admin import ConfigEntry
from app.client.cluster import TopicView
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import Portion, run
from app.core.units import BrokerId, PartitionIndex, TopicPartition
from app.http.bodies import json_response
from app.http.console.asking import ANY_S, Told, of_broker, side_by_side, soon, together
from app.http.console.pages.topic_totals import RANKED_MAX, Lags, lags_of, measured
from app.http.console.rendering import GUARDED, ConsoleRoute, console_of, page
from app.http.console.texts.formats import setting
from app.http.console.texts.timeline import Axis, Taking, timeline_steps
from app.http.errors import BROKER_NOT_AVAILABLE, RestError
from app.http.gateway import Gateway
from app.http.serving import gateway_of
from app.wire.config_resources import ConfigResourceType
from app.wire.private import OFFLINE, PartitionTierStatus, SegmentInfo, TierStatusResponse, TopicsResponse

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

TOPICS_A_PAGE: Final = 50
PARTITIONS_A_PAGE: Final = 200
PARTITIONS_SUMMED_MAX: Final = 5_000
"""Of the topics of one page. Beyond them their bytes are not asked for."""
QUERY_CHARS_MAX: Final = 300
GROUPS_DRAWN: Final = 50
"""Groups of a topic that its timeline shows, by their ids."""
COLUMNS: Final[Mapping[str, str]] = {
    "partitions": "Partitions",
    "records": "Records",
    "written": "Written",
    "lag": "Lag",
    "tiers": "Tiers",
    "bucket": "Bucket",
    "disk": "Disk",
    "upload": "To upload",
    "retention": "Retention",
    "durability": "Durability",
    "cost": "$ a month",
}
"""Columns of the list that a reader can choose."""
_SHOWN_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("records", "upload"))
SORTS: Final = ("bucket", "written", "cost")
"""Columns by which the list can be sorted, by what brokers measured in the last hour. The order of names needs no measure."""
BY_LAG: Final = "lag"
"""The column by which a list of some topics can be sorted, by the lags of now."""
SORTED_BY_LAG_MAX: Final = 1_000
"""Topics of a list that is sorted by lag. Their lags are all asked for."""
_MOVING: Final = frozenset({"written", "lag"})
_SHOWN: Final = ("retention.ms", "cleanup.policy", "firn.durability", "remote.storage.enable")


@dataclass(slots=True)
class TopicBytes:
    """The bytes of a topic by tier, as the leaders of its partitions tell them."""

    remote: int = 0
    local: int = 0
    lag: int = 0
    records: int = 0
    tiered: bool = False
    parts: set[int] = field(default_factory=set)
    """The partitions that it sums up."""


async def found_topic(request: Request) -> tuple[Gateway, TopicView]:
    """The topic that the path names, as of now. Raises: RequestRejected, BrokerUnavailable."""
    gateway = gateway_of(request)
    name: str = request.path_params["topic_name"]
    return gateway, await soon(gateway, lambda: gateway.admin.describe_topic(name))


def number_in(request: Request, name: str, default: int, most: int) -> int:
    """A parameter of the query. Raises: RestError 400."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most:
        return int(text)
    raise RestError(400, f"The parameter {name} must be a number from 0 to {most}.")


async def told_of(gateway: Gateway, topics: Sequence[TopicView]) -> Told[TierStatusResponse] | None:
    """The state of the tiers of some topics, as their leaders report it; None if they have too many partitions, or one was deleted
    meanwhile."""
    if sum(len(topic.partitions) for topic in topics) > PARTITIONS_SUMMED_MAX:
        return None
    leaders = {one.leader for topic in topics for one in topic.partitions if one.leader is not None}
    names = [topic.name for topic in topics]
    try:
        return await side_by_side(gateway, leaders, lambda _, one: gateway.admin.tier_status_by(one, names))
    except RequestRejected:
        return None  # the page says that they are missing


def _led_by(topic: TopicView, brokers: Container[BrokerId]) -> bool:
    """Whether some of these brokers lead a part of a topic."""
    return any(one.leader in brokers for one in topic.partitions if one.leader is not None)


def _add(sums: TopicBytes, one: PartitionTierStatus) -> None:
    """Add a partition, unless its broker could not open it: nothing is known of it then."""
    if one.state == OFFLINE:
        return
    sums.parts.add(one.partition)
    sums.remote += one.remote_bytes
    sums.local += one.local_bytes
    sums.lag += one.lag_bytes
    sums.records += max(0, one.high_watermark - one.log_start_offset)
    sums.tiered |= one.tiered


async def _bytes_of(told: Told[TierStatusResponse]) -> Mapping[str, TopicBytes]:
    """The bytes of topics, without those of partitions that no broker reported."""
    found: dict[str, TopicBytes] = {}
    portion = Portion()
    for answer in told.answers.values():
        for one in answer.partitions:
            _add(found.setdefault(one.topic, TopicBytes()), one)
            if portion.spent_by():
                await portion.rest()
    return found


def _whole(topic: TopicView, numbers: Mapping[str, TopicBytes] | None, away: Container[BrokerId]) -> TopicBytes | None:
    """The bytes of a topic. None if those of a part are not known: a sum without it would look as if the part were empty."""
    if numbers is None or _led_by(topic, away):
        return None
    found = numbers.get(topic.name, TopicBytes())
    return found if len(found.parts) >= len(topic.partitions) else None


async def ends_of(told: Told[TierStatusResponse]) -> Mapping[str, Mapping[int, int]]:
    """The high watermark of each partition of topics, without those that no broker leads. While a partition moves, its old leader
    may report it, too: the higher one counts."""
    found: dict[str, dict[int, int]] = {}
    portion = Portion()
    for answer in told.answers.values():
        for one in answer.partitions:
            if one.state != OFFLINE:
                own = found.setdefault(one.topic, {})
                own[one.partition] = max(one.high_watermark, own.get(one.partition, 0))
            if portion.spent_by():
                await portion.rest()
    return found


def state_of(topic: TopicView) -> str:
    """The problem of a topic, in a phrase; empty if there is none."""
    without = sum(one.leader is None for one in topic.partitions)
    if without:
        return f"{without:,} without a leader"
    behind = sum(len(one.in_sync_replicas) < len(one.replicas) for one in topic.partitions)
    return f"{behind:,} not in sync" if behind else ""


class _Asked(NamedTuple):
    """A page of the list, as the query names it."""

    wanted: str
    after: str
    internal: bool
    columns: frozenset[str] = frozenset(_SHOWN_COLUMNS)
    sort: str = ""
    """One of ``SORTS``; empty for the order of names."""
    begin: int = 0
    """Topics of a ranking before the page."""
    names: tuple[str, ...] = ()
    """Of the topics of the page, where they are known already."""

    def query(self, after: str = "", *, sort: str | None = None, begin: int = 0) -> str:
        """A page of the same list in a URL, by default in the same order."""
        given = [("q", self.wanted), ("internal", "1" if self.internal else ""), ("after", after)]
        given += [("sort", self.sort if sort is None else sort), ("from", str(begin or ""))]
        chosen = (
            [("col", name) for name in COLUMNS if name in self.columns] if self.columns != {*_SHOWN_COLUMNS} else []
        )
        return urlencode([(name, value) for name, value in given if value] + chosen)


def _asked(request: Request) -> _Asked:
    """Raises: RestError 400."""
    query = request.query_params
    columns = frozenset(COLUMNS).intersection(query.getlist("col")) or frozenset(_SHOWN_COLUMNS)
    sort = query.get("sort", "")
    if sort and sort not in (*SORTS, BY_LAG):
        raise RestError(400, f"The parameter sort must be one of {', '.join((*SORTS, BY_LAG))}.")
    begin = number_in(request, "from", 0, max(RANKED_MAX, SORTED_BY_LAG_MAX))
    internal = query.get("internal") == "1"
    names = tuple(query.getlist("name")[:TOPICS_A_PAGE])
    found = _Asked(query.get("q", ""), query.get("after", ""), internal, columns, sort, begin, names)
    if max(map(len, (found.wanted, found.after, *names))) > QUERY_CHARS_MAX:
        raise RestError(400, f"A filter has {QUERY_CHARS_MAX} characters at most.")
    return found


class _Page(NamedTuple):
    """The topics of a page, and how many there are."""

    shown: Sequence[TopicView]
    before: int
    fitting: int
    total: int
    ranked: int | None
    """Topics of the ranking; None in the order of names."""
    following: str
    """The next page in a URL; empty if there is none."""


async def _page(request: Request, asked: _Asked) -> _Page:
    """Raises: RestError 403; BrokerUnavailable, RequestRejected."""
    gateway = gateway_of(request)
    limit = {"": TOPICS_A_PAGE, BY_LAG: SORTED_BY_LAG_MAX}.get(asked.sort, 1)
    listed = await soon(
        gateway,
        lambda: gateway.admin.topic_names(
            contains=asked.wanted, after=asked.after, limit=limit, internal=asked.internal
        ),
    )
    if not asked.sort:
        shown = [*(await gateway.admin.describe_topics(listed.names)).values()]
        more = listed.before + len(listed.names) < listed.fitting
        following = asked.query(listed.names[-1]) if more else ""
        return _Page(shown, listed.before, listed.fitting, listed.total, None, following)
    await soon(gateway, gateway.admin.describe_brokers)
    if asked.sort == BY_LAG:
        return await _page_by_lag(gateway, asked, listed)
    found = await measured(request)
    if found is None:
        raise RestError(403, "To sort topics by size, rate or cost you need the right to DESCRIBE the cluster.")
    names = [name for name in found.ranked(asked.sort) if asked.wanted in name]
    topics = await gateway.admin.describe_topics(names)
    ranked = [topics[name] for name in names if name in topics and (asked.internal or not topics[name].internal)]
    end = asked.begin + TOPICS_A_PAGE
    following = asked.query(begin=end) if end < len(ranked) else ""
    return _Page(ranked[asked.begin : end], asked.begin, listed.fitting, listed.total, len(ranked), following)


async def _page_by_lag(gateway: Gateway, asked: _Asked, listed: TopicsResponse) -> _Page:
    """A page of the topics in which groups are furthest behind. Topics whose lag is not known come last.

    Raises: RestError 400 if the list has too many topics or partitions to ask for all lags.
    """
    whole = listed.fitting == len(listed.names)
    topics = [*(await gateway.admin.describe_topics(listed.names)).values()] if whole else []
    if not whole or sum(len(one.partitions) for one in topics) > PARTITIONS_SUMMED_MAX:
        raise RestError(
            400,
            f"{listed.fitting:,} topics fit. The order by lag is for lists of {SORTED_BY_LAG_MAX:,} topics with "
            f"{PARTITIONS_SUMMED_MAX:,} partitions at most: filter the names.",
        )
    told = await told_of(gateway, topics)
    if told is None:
        raise RestError(503, "A topic was deleted meanwhile. Load the page again.", error_code=BROKER_NOT_AVAILABLE[1])
    lags = (await lags_of(gateway, topics, await ends_of(told), away=told.silent)).topics
    topics.sort(key=lambda one: (-lags[one.name].lag if one.name in lags else 1, one.name))
    end = asked.begin + TOPICS_A_PAGE
    following = asked.query(begin=end) if end < len(topics) else ""
    shown = topics[asked.begin : end]
    return _Page(shown, asked.begin, listed.fitting, listed.total, len(topics), following)


@router.get("/console/live/topics")
async def live(request: Request) -> Response:
    """How many records each topic of a page has got so far, for the script of the list, which computes rates from two of these
    responses. Topics are left out unless the ends of all of their partitions are known, because a sum without one would look like a
    leap."""
    gateway = gateway_of(request)
    asked = _asked(request)
    if asked.names:
        shown: Sequence[TopicView] = [*(await gateway.admin.describe_topics(asked.names)).values()]
    else:
        shown = (await _page(request, asked)).shown
    told = await told_of(gateway, shown)
    counters = None
    gauges: dict[str, int] = {}
    at_s = asyncio.get_running_loop().time()
    if told is not None:
        ends = await ends_of(told)
        counters = {
            one.name: sum(ends[one.name].values())
            for one in shown
            if len(ends.get(one.name, ())) == len(one.partitions)
        }
        for name, lag in (await lags_of(gateway, shown, ends, away=told.silent)).topics.items():
            gauges |= {f"lag {name}": lag.lag, f"most {name}": lag.greatest}
    response = json_response({"counters": counters, "gauges": gauges, "at_s": at_s})
    response.headers.update(GUARDED)
    return response


@router.get("/console/topics")
async def list_topics(request: Request) -> Response:
    gateway = gateway_of(request)
    asked = _asked(request)
    listed = await _page(request, asked)
    shown = listed.shown
    portion = Portion()
    rows = []
    read: list[Any] = await together(_sums(gateway, shown), _settings(gateway, shown), measured(request))
    (told, numbers, lags), settings, counted = read
    away = told.silent if told else ()
    for topic in shown:
        values = {entry.name: entry.value or "" for entry in settings.get(topic.name, ())}
        rows.append(
            {
                "topic": topic,
                "replicas": max((len(one.replicas) for one in topic.partitions), default=0),
                "bytes": _whole(topic, numbers, away),
                "state": state_of(topic),
                "lag": lags.topics.get(topic.name),
                "dollars": None if counted is None else counted.dollars_of(topic.name),
                "settings": values,
                "retention": setting("retention.ms", values.get("retention.ms")),
            }
        )
        await portion.rest_if_spent()
    return await page(
        request,
        "topics",
        section="topics",
        rows=rows,
        count=listed.fitting,
        total=listed.total,
        first=listed.before + 1,
        query=asked.wanted,
        internal=asked.internal,
        columns={name: text for name, text in COLUMNS.items() if name != "cost" or counted is not None},
        shown=asked.columns,
        live=_live_query(asked, shown) if numbers is not None and asked.columns & _MOVING else None,
        following=listed.following,
        begun=asked.query() if listed.before else None,
        sort=asked.sort,
        sorts=_sorts(asked, listed, measured=counted is not None),
        ranked=listed.ranked,
        missing=numbers is None and bool(shown),
        silent=sorted({*away, *lags.silent}),
    )


def _live_query(asked: _Asked, shown: Sequence[TopicView]) -> str:
    """The numbers that move on a page, in a URL. The order by lag is not asked for anew: the rows of the page stay."""
    if asked.sort == BY_LAG:
        return urlencode([("name", one.name) for one in shown])
    return asked.query(asked.after, begin=asked.begin)


def _sorts(asked: _Asked, listed: _Page, *, measured: bool) -> Mapping[str, str]:
    """The orders that a reader can choose, as queries."""
    orders = [*(SORTS if measured else ()), *([BY_LAG] if listed.fitting <= SORTED_BY_LAG_MAX else ())]
    return {name: asked.query(sort=name) for name in ("", *orders)} if orders else {}


async def _sums(
    gateway: Gateway, topics: Sequence[TopicView]
) -> tuple[Told[TierStatusResponse] | None, Mapping[str, TopicBytes] | None, Lags]:
    """What leaders tell of some topics, their bytes, and how far groups are behind in them."""
    told = await told_of(gateway, topics)
    if told is None:
        return None, None, Lags()
    return told, await _bytes_of(told), await lags_of(gateway, topics, await ends_of(told), away=told.silent)


async def _settings(gateway: Gateway, topics: Sequence[TopicView]) -> Mapping[str, Sequence[ConfigEntry]]:
    if not topics:
        return {}
    return await gateway.admin.describe_topics_configs([topic.name for topic in topics], _SHOWN)


# --- one topic ------------------------------------------------------------------------------------------------------


async def _statuses_of(
    gateway: Gateway, topic: TopicView
) -> tuple[dict[int, PartitionTierStatus] | None, list[BrokerId]]:
    """The state of the tiers of each partition, None as in ``told_of``; and the leaders that did not respond."""
    told = await told_of(gateway, [topic])
    if told is None:
        return None, []
    return {one.partition: one for answer in told.answers.values() for one in answer.partitions}, told.silent


def _taking(entries: Mapping[str, ConfigEntry]) -> Taking:
    """The settings by which records of a topic are taken."""

    def value(name: str, otherwise: str) -> str:
        entry = entries.get(name)
        return (entry.value if entry else None) or otherwise

    def limit(name: str) -> int:
        text = value(name, "-1")
        return int(text) if text.removeprefix("-").isdecimal() else -1

    ratio = value("min.cleanable.dirty.ratio", "0.5")
    found = Taking(
        dirty_ratio=float(ratio) if ratio.replace(".", "", 1).isdecimal() else 0.5,
        compaction_lag_ms=limit("min.compaction.lag.ms"),
    )
    policy = value("cleanup.policy", "delete")
    if "delete" in policy:
        found = found._replace(retention_ms=limit("retention.ms"), retention_bytes=limit("retention.bytes"))
    if "compact" in policy:
        return found  # compaction reads all of a log, so nothing of it leaves the disk earlier
    local_ms = limit("local.retention.ms")
    return found._replace(local_retention_ms=found.retention_ms if local_ms == -2 else local_ms)


async def settings_of(gateway: Gateway, name: str) -> dict[str, ConfigEntry] | None:
    """The settings of a topic; None if the caller may not see them."""
    try:
        found = await gateway.admin.describe_configs(ConfigResourceType.TOPIC, name, documentation=True)
    except RequestRejected:
        return None
    return {entry.name: entry for entry in found}


@router.get("/console/topics/{topic_name}")
async def show_timeline(topic_name: str, request: Request) -> Response:
    gateway, topic = await found_topic(request)
    index = number_in(request, "partition", 0, 2**31 - 1)
    if index >= len(topic.partitions):
        raise RestError(404, f"Topic {topic_name} has no partition {index}.")
    axis: Axis = "offset" if request.query_params.get("by") == "offset" else "time"
    statuses, silent = await _statuses_of(gateway, topic)
    status = None if statuses is None else statuses.get(index)
    drawn = None
    entries = await settings_of(gateway, topic_name) or {}
    durability = entries.get("firn.durability")
    write_ahead = durability is not None and durability.value == "object"
    if status is not None and status.state != OFFLINE:
        partition = TopicPartition(topic_name, PartitionIndex(index))
        segments: list[SegmentInfo] = await of_broker(
            gateway, BrokerId(status.leader), lambda _: gateway.admin.tier_segments(partition), within_s=ANY_S
        )
        steps = timeline_steps(
            segments,
            status,
            axis=axis,
            write_ahead=write_ahead,
            now_ms=int(console_of(request).clock.now_ms()),
            taking=_taking(entries),
            committed=await _committed(gateway, topic, index, silent),
        )
        drawn = await run(steps)
    total = TopicBytes()
    for one in (statuses or {}).values():
        _add(total, one)
    return await topic_page(
        request,
        "timeline",
        topic,
        partition=index,
        drawn=drawn,
        status=status,
        by=axis,
        sums=total if len(total.parts) >= len(topic.partitions) else None,
        write_ahead=write_ahead,
        view=topic.partitions[index],
        silent=silent,
    )


async def _committed(
    gateway: Gateway, topic: TopicView, index: int, away: Collection[BrokerId]
) -> list[tuple[str, int]]:
    """Some groups with their offset in a partition."""
    if len(topic.partitions) > PARTITIONS_SUMMED_MAX:
        return []
    lags = await lags_of(gateway, [topic], {}, away=away, limit=GROUPS_DRAWN, partition=index)
    return [(group.group_id, offset) for group in lags.groups for _, offset in group.offsets]


@router.get("/console/topics/{topic_name}/partitions")
async def list_partitions(topic_name: str, request: Request) -> Response:
    gateway, topic = await found_topic(request)
    begin = number_in(request, "from", 0, 2**31 - 1)
    statuses, silent = await _statuses_of(gateway, topic)
    shown = topic.partitions[begin : begin + PARTITIONS_A_PAGE]
    rows = [{"view": one, "status": (statuses or {}).get(one.index)} for one in shown]
    following = begin + PARTITIONS_A_PAGE
    return await topic_page(
        request,
        "partitions",
        topic,
        rows=rows,
        begin=begin,
        following=following if following < len(topic.partitions) else 0,
        missing=statuses is None,
        silent=silent,
    )


@router.get("/console/topics/{topic_name}/settings")
async def list_settings(topic_name: str, request: Request) -> Response:
    gateway, topic = await found_topic(request)
    try:
        found = await gateway.admin.describe_configs(ConfigResourceType.TOPIC, topic_name, documentation=True)
    except RequestRejected as error:
        if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        sentence = f"Your user needs the right DESCRIBE_CONFIGS on topic {topic_name} to see its settings."
        raise RestError(403, sentence, error_code=40301) from None
    changed = [entry for entry in found if entry.source == "DYNAMIC_TOPIC_CONFIG"]
    others = [entry for entry in found if entry.source != "DYNAMIC_TOPIC_CONFIG"]
    return await topic_page(request, "settings", topic, changed=changed, others=others)


async def topic_page(request: Request, tab: str, topic: TopicView, **values: Any) -> Response:
    """A tab of the page of a topic."""
    return await page(
        request,
        f"topic_{tab}",
        section="topics",
        tab=tab,
        topic=topic,
        state=state_of(topic),
        **values,
    )
