"""Gauges of groups of all types. Their values are read from the shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from app.core.metrics import Labels, Registry
from app.groups.group import GroupType

if TYPE_CHECKING:
    from app.groups.shard import GroupShard


ELSEWHERE: Final = -1


def show_lag(
    registry: Registry,
    shards: Callable[[], Iterable[GroupShard]],
    end_of: Callable[[str, int], int | None],
    series_max: int,
) -> None:
    """Register gauges of the groups' progress, for at most ``series_max`` partitions, groups with members first.

    ``end_of`` returns the high watermark of a partition, ``ELSEWHERE`` if this broker has no replica of it, and None if there is no
    such partition. Of a partition elsewhere the offset alone is shown: metrics are read without asking other brokers, and brokers
    with a replica show its high watermark (``firn_log_high_watermark``).
    """
    registry.describe("firn_group_offset", "gauge", "Offset that a group has committed in a partition.")
    registry.describe(
        "firn_group_lag_records", "gauge", "Offsets between a group's committed offset and the high watermark."
    )
    text = "Committed offsets beyond firn.metrics.lag.series.max, whose lag is not shown."
    registry.describe("firn_group_lag_left_out", "gauge", text)

    def read() -> Iterator[tuple[str, Labels, float] | None]:
        left = series_max
        left_out = 0
        waiting: list[tuple[GroupShard, str]] = []
        for shard in tuple(shards()):
            for group_id, group in tuple(shard.groups.items()):
                yield None
                if left and group.members:
                    left -= yield from _read_group(shard, group_id, left)
                else:
                    waiting.append((shard, group_id))
        for shard, group_id in waiting:
            if left:
                left -= yield from _read_group(shard, group_id, left)
            yield None
        for shard in tuple(shards()):
            left_out += shard.offsets.total
            yield None
        yield "firn_group_lag_left_out", (), float(max(0, left_out - (series_max - left)))

    def _read_group(
        shard: GroupShard, group_id: str, count_max: int
    ) -> Generator[tuple[str, Labels, float] | None, None, int]:
        looked_at = 0
        for found in shard.offsets.walk(group_id, count_max):
            looked_at += 1
            end = None if found is None else end_of(found[0], found[1])
            if found is None or end is None:
                yield None
                continue
            topic, partition, committed = found
            labels = (("group", group_id), ("partition", str(partition)), ("topic", topic))
            yield "firn_group_offset", labels, float(committed.offset)
            if end != ELSEWHERE:
                yield "firn_group_lag_records", labels, float(max(0, end - committed.offset))
        return looked_at

    registry.source(read, ("firn_group_offset", "firn_group_lag_records", "firn_group_lag_left_out"))


def show_groups(registry: Registry, shards: Callable[[], Iterable[GroupShard]]) -> None:
    """Register gauges of the groups."""

    def count() -> Iterable[tuple[Labels, float]]:
        found = Counter((group.group_type, group.state) for shard in shards() for group in shard.groups.values())
        for (group_type, state), groups in sorted(found.items()):
            yield (("state", state), ("type", group_type.value)), float(groups)

    def count_members() -> Iterable[tuple[Labels, float]]:
        members: Counter[GroupType] = Counter(dict.fromkeys(GroupType, 0))
        for shard in shards():
            for group in shard.groups.values():
                members[group.group_type] += len(group.members)
        for group_type, number in members.items():
            yield (("type", group_type.value),), float(number)

    def count_offsets() -> Iterable[tuple[Labels, float]]:
        yield (), float(sum(shard.offsets.total for shard in shards()))

    registry.gauge("firn_groups", "Groups that this broker coordinates, by type and state.", count)
    registry.gauge(
        "firn_group_members", "Members of groups that this broker coordinates, by type of group.", count_members
    )
    registry.gauge("firn_group_offsets", "Committed offsets of groups that this broker coordinates.", count_offsets)
