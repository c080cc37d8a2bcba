"""Counters and gauges of groups of all types. Pure: state machines count, ``app/metrics.py`` sums up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from app.groups.group import GroupType
from app.groups.share_window import AcknowledgeType
from app.metrics import Labels, Registry

if TYPE_CHECKING:
    from app.groups.shard import GroupShard


class GroupCounters:
    """What happens to groups and their offsets."""

    __slots__ = ("assignments", "members_expired", "offsets_committed", "offsets_deleted", "offsets_pending")

    def __init__(self, registry: Registry) -> None:
        text = (
            "Offsets that groups committed, by whether a transaction committed them; such count once it is committed."
        )
        self.offsets_committed = registry.counter("firn_group_offsets_committed_total", text, transactional="false")
        self.offsets_pending = registry.counter("firn_group_offsets_committed_total", text, transactional="true")
        self.offsets_deleted = registry.counter(
            "firn_group_offsets_deleted_total", "Committed offsets that expired or were deleted."
        )
        text = "Members of groups that were taken out because nothing was heard of them in time, by type of group."
        self.members_expired = {
            group_type: registry.counter("firn_group_members_expired_total", text, type=group_type.value)
            for group_type in GroupType
        }
        text = "Assignments that the broker has computed, by type of group."
        self.assignments = {
            group_type: registry.counter("firn_group_assignments_total", text, type=group_type.value)
            for group_type in (GroupType.CONSUMER, GroupType.SHARE)
        }


class ShareCounters:
    """What happens to records of share groups."""

    __slots__ = ("acknowledged", "acquired", "locks_expired")

    def __init__(self, registry: Registry) -> None:
        self.acquired = registry.counter(
            "firn_share_records_acquired_total", "Records given to members of share groups."
        )
        text = "Records that members of share groups have said something of."
        self.acknowledged = {
            kind: registry.counter("firn_share_records_acknowledged_total", text, type=kind.name.lower())
            for kind in AcknowledgeType
        }
        self.locks_expired = registry.counter(
            "firn_share_locks_expired_total",
            "Records taken back from members of share groups that had them for too long.",
        )


def show_lag(
    registry: Registry,
    shards: Callable[[], Iterable[GroupShard]],
    end_of: Callable[[str, int], int | None],
    series_max: int,
) -> None:
    """Have the registry show how far groups have got, for at most ``series_max`` partitions of groups, those with members first.

    ``end_of`` returns the high watermark of a partition; None if this broker does not lead it.
    """
    registry.describe("firn_group_offset", "gauge", "Offset that a group has committed in a partition.")
    registry.describe(
        "firn_group_lag_records", "gauge", "Offsets from what a group has committed to the high watermark."
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
            yield "firn_group_lag_records", labels, float(max(0, end - committed.offset))
        return looked_at

    registry.source(read)


def show_groups(registry: Registry, shards: Callable[[], Iterable[GroupShard]]) -> None:
    """Have the registry show what groups there are."""

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
