"""How far groups are behind in some topics, as their coordinator knows their offsets and the caller the ends. Pure.

There is no index from topics to groups, because each commit would keep it up. A look at 15,000 groups takes some 15 ms.

Tests: ``tests/groups/test_topic_lags.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from app.core.turns import Steps, slices
from app.groups.group import Group
from app.groups.shard import GroupShard
from app.groups.share.core.share import ShareGroup
from app.wire.private import (
    LAG_GROUPS_MAX,
    LAG_OFFSETS_SHOWN,
    UNKNOWN_END,
    GroupOnTopic,
    TopicLag,
    TopicLagsRequest,
    TopicLagsResponse,
)

LOOKED_AT_MAX: Final = 200_000
"""Groups and offsets that are looked at for one response: some 100 ms. Beyond them its sums are not whole."""
LOOKED_A_STEP: Final = 64
"""Groups and offsets that are looked at before the clock: some 100 µs."""


@dataclass(slots=True)
class _Sum:
    """The lags in a topic."""

    ends: Sequence[int]
    groups: int = 0
    lag: int = 0
    greatest: int = 0
    greatest_group: str = ""
    whole: bool = True

    def add(self, group_id: str, offsets: Mapping[int, int]) -> None:
        """A group with its committed offsets."""
        lag, whole = _lag(self.ends, offsets.items())
        self.groups += 1
        self.whole &= whole
        self.lag += lag
        if lag > self.greatest:
            self.greatest, self.greatest_group = lag, group_id


def _lag(ends: Sequence[int], offsets: Iterable[tuple[int, int]]) -> tuple[int, bool]:
    """The lags of all partitions together, and whether each is known. ``offsets``: partitions with their committed offset."""
    lag, whole = 0, True
    for partition, offset in offsets:
        end = ends[partition] if partition < len(ends) else UNKNOWN_END
        if end == UNKNOWN_END:
            whole = False
        else:
            lag += max(0, end - offset)
    return lag, whole


def topic_lags_steps(
    asked: TopicLagsRequest, shards: Iterable[GroupShard], sees: Callable[[str], bool]
) -> Steps[TopicLagsResponse]:
    """The response to a request whose topics the caller may describe. ``sees``: whether the caller may describe a group."""
    sums = {topic: _Sum(ends) for topic, ends in asked.ends}
    first = asked.ends[0][0] if asked.ends and asked.limit > 0 else None
    limit = min(asked.limit, LAG_GROUPS_MAX)
    looked = before = following = 0
    named: list[tuple[str, GroupShard]] = []
    for shard in shards:
        for group_id in tuple(shard.groups):
            offsets: dict[str, dict[int, int]] = {}
            for place in shard.offsets.in_topics(group_id, sums) if sees(group_id) else ():
                looked += 1
                if place is not None:
                    offsets.setdefault(place[0], {})[place[1]] = place[2]
                if not looked % LOOKED_A_STEP:
                    yield
                if looked >= LOOKED_AT_MAX:
                    break
            looked += 1
            if not looked % LOOKED_A_STEP:
                yield
            if looked >= LOOKED_AT_MAX:
                return _answer(sums, [], before, before + following, whole=False)
            for topic, own in offsets.items():
                sums[topic].add(group_id, own)
            group = shard.groups.get(group_id)
            if (
                first is None
                or group is None
                or not (first in offsets or (_is_on(shard, group, first) and sees(group_id)))
            ):
                continue
            if group_id <= asked.after:
                before += 1
                continue
            following += 1
            named.append((group_id, shard))
            if len(named) >= 2 * LAG_GROUPS_MAX:
                named = sorted(named, key=_id)[:limit]
    rows = []
    for group_id, shard in sorted(named, key=_id)[:limit]:
        assert first is not None
        row = yield from _row(shard, group_id, first, sums[first].ends, asked.partition)
        if row is not None:
            rows.append(row)
        yield
    return _answer(sums, rows, before, before + following, whole=True)


def _id(named: tuple[str, GroupShard]) -> str:
    return named[0]


def _answer(
    sums: Mapping[str, _Sum], rows: list[GroupOnTopic], before: int, fitting: int, *, whole: bool
) -> TopicLagsResponse:
    lags = [
        TopicLag(topic, one.groups, one.lag, one.greatest, one.greatest_group, one.whole) for topic, one in sums.items()
    ]
    return TopicLagsResponse(lags, rows, before, fitting, whole)


def _is_on(shard: GroupShard, group: Group, topic: str) -> bool:
    """Whether a group without commits reads a topic, or has progress there."""
    if isinstance(group, ShareGroup):
        found = shard.image().topic(topic)
        return found is not None and found.topic_id in group.topics
    return len(group.members) > 0 and group.subscribes_to(topic)


def _row(
    shard: GroupShard, group_id: str, topic: str, ends: Sequence[int], partition: int
) -> Steps[GroupOnTopic | None]:
    """A group on a topic; None if it was deleted meanwhile."""
    offsets: dict[int, int] = {}
    for looked, place in enumerate(shard.offsets.in_topics(group_id, [topic]), 1):
        if place is not None:
            offsets[place[1]] = place[2]
        if not looked % LOOKED_A_STEP:
            yield
    lag, whole = 0, True
    most: list[tuple[int, int]] = []
    for some in slices([*offsets.items()], LOOKED_A_STEP):
        more, known = _lag(ends, some)
        lag, whole = lag + more, whole and known
        most = nlargest(LAG_OFFSETS_SHOWN, most + [(_lag(ends, [one])[0], -one[0]) for one in some])
        yield
    if partition >= 0:
        shown = [partition] if partition in offsets else []
    else:
        shown = sorted(-negative for _, negative in most)
    group = shard.groups.get(group_id)
    if group is None:
        return None
    return GroupOnTopic(
        group_id,
        group.group_type,
        group.state,
        len(group.members),
        len(group.members) > 0 and group.subscribes_to(topic),
        len(offsets),
        lag if whole else -1,
        [(one, offsets[one]) for one in shown],
    )
