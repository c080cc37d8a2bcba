"""Totals of topics that no single leader knows: how far groups are behind, and what a topic costs.

Each broker sums up the lags of the groups that it coordinates (FirnTopicLags), so a page asks each broker once.
Tests: ``tests/http/console/test_topic_groups.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import Request
from msgspec.structs import replace

from app.client.cluster import TopicView
from app.client.connection import KafkaConnection
from app.core.errors import RequestRejected
from app.core.turns import slices
from app.core.units import BrokerId
from app.cost.measured import IN, MEASURED_NAMES, OTHERS, STORED
from app.http.console.asking import side_by_side
from app.http.console.pages.overview import Numbers, may_describe, numbers_of
from app.http.console.rendering import console_of
from app.http.gateway import Gateway
from app.http.serving import gateway_of
from app.wire.private import LAG_TOPICS_MAX, UNKNOWN_END, GroupOnTopic, TopicLag, TopicLagsResponse

Ends = Mapping[str, Mapping[int, int]]
"""The ends of partitions by topic and partition; some may be missing."""


@dataclass(slots=True)
class Lags:
    """How far groups are behind, as their coordinators tell it."""

    topics: dict[str, TopicLag] = field(default_factory=dict)
    """Without topics of which a lag is not known."""
    groups: list[GroupOnTopic] = field(default_factory=list)
    before: int = 0
    fitting: int = 0
    whole: bool = True
    """False if a coordinator did not tell of all of its groups."""
    silent: list[BrokerId] = field(default_factory=list)


async def lags_of(
    gateway: Gateway,
    topics: Sequence[TopicView],
    ends: Ends,
    *,
    away: Collection[BrokerId] = (),
    limit: int = 0,
    after: str = "",
    partition: int = -1,
) -> Lags:
    """The lags in some topics, 10,000 partitions at most; with a ``limit`` the groups of the first topic, too, in their order.

    Brokers that are ``away`` are not asked, so a page does not wait for them twice.
    """
    found = Lags()
    if not topics:
        return found
    asked = {
        topic.name: [ends.get(topic.name, {}).get(one.index, UNKNOWN_END) for one in topic.partitions]
        for topic in topics
    }

    async def ask(_: BrokerId, connection: KafkaConnection) -> TopicLagsResponse | None:
        lags: list[TopicLag] = []
        first: TopicLagsResponse | None = None
        whole = True
        for some in slices([*asked.items()], LAG_TOPICS_MAX):
            try:
                answer = await gateway.groups.topic_lags_at(
                    connection, dict(some), limit=0 if first else limit, after=after, partition=partition
                )
            except RequestRejected:
                return None  # of an older release; the page says that the lag is not known
            first = first or answer
            lags += answer.lags
            whole &= answer.whole
        return None if first is None else replace(first, lags=lags, whole=whole)

    told = await side_by_side(gateway, gateway.cluster.view.brokers.keys() - {*away}, ask)
    found.silent = sorted({*told.silent, *away})
    answers = [one for one in told.answers.values() if one is not None]
    found.whole = not found.silent and len(answers) == len(told.answers) and all(one.whole for one in answers)
    for answer in answers:
        found.groups += answer.groups
        found.before += answer.before
        found.fitting += answer.fitting
        for lag in answer.lags:
            found.topics[lag.topic] = _together(found.topics.get(lag.topic), lag)
    found.groups = sorted(found.groups, key=lambda one: one.group_id)[:limit]
    found.topics = {name: lag for name, lag in found.topics.items() if lag.whole and found.whole}
    return found


def _together(one: TopicLag | None, other: TopicLag) -> TopicLag:
    if one is None:
        return other
    most = max(one, other, key=lambda lag: lag.greatest)
    return TopicLag(
        one.topic,
        one.groups + other.groups,
        one.lag + other.lag,
        most.greatest,
        most.greatest_group,
        one.whole and other.whole,
    )


RANKED_MAX: Final = 200
"""Topics of a ranking. Brokers name the 100 with the most bytes each."""
_COUNTS: Final = {"bucket": STORED, "written": IN}


class Measured:
    """What brokers have measured of topics in the last hour: their cost a month, as the page of the cost has it, and rankings."""

    def __init__(self, numbers: Numbers) -> None:
        bill = None if numbers.silent else numbers.bill
        self._dollars = {} if bill is None else {one.topic: one.dollars for one in bill.topics}
        self._rest = None if bill is None or OTHERS in self._dollars else 0.0
        self._spent = numbers.spent

    def dollars_of(self, topic: str) -> float | None:
        """None if it is not known: no broker has counted for long enough, or the topic is one of those that are added up."""
        return self._dollars.get(topic, self._rest)

    def ranked(self, by: str) -> list[str]:
        """The topics with the most bytes in the ``bucket``, the most bytes ``written``, or the greatest ``cost``."""
        values: dict[str, float] = {}
        if by == "cost":
            values = dict(self._dollars)
        for spent in self._spent if by in _COUNTS else ():
            for (of, topic), value in spent.topics.items():
                if of == _COUNTS[by]:
                    values[topic] = values.get(topic, 0.0) + value
        values.pop(OTHERS, None)
        return sorted(values, key=lambda topic: (-values[topic], topic))[:RANKED_MAX]


async def measured(request: Request) -> Measured | None:
    """None if the caller may not describe the cluster. Callers who may share it for 2 s."""
    gateway = gateway_of(request)
    if not await may_describe(gateway):
        return None

    async def ask() -> Measured:
        return Measured(await numbers_of(gateway, sorted(gateway.cluster.view.brokers), MEASURED_NAMES))

    found: Measured = await console_of(request).measured.answer(ask)
    return found
