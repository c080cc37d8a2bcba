"""Who should lead partitions in write-ahead logs, so that brokers lead about as many each (ADR 0037, J50). Pure.

Any broker can lead such a partition, and nothing is copied. So leaderships go to a new broker at once. Every leader reckons the
same plan from the same image, and carries out its own part of it by releases (J18). If images differ for a moment, the next round
mends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from app.core.turns import STRIDE, Steps, Stepwise, slices
from app.core.units import TopicId, TopicIdPartition
from app.metadata.image.image import ClusterImage, PartitionImage, TopicImage
from app.metadata.image.wal_ranges import PartitionDurability
from app.metadata.replicas.log_leaders import may_lead

BALANCED: Final = 0.1
"""Counts that differ by less than this share of the mean count as even, as do those that differ by one."""

LOOKED_AT_ONCE: Final = 8 * STRIDE
"""Partitions of a topic between two looks at the clock."""


def may_move(partition: PartitionImage) -> bool:
    """Whether a leadership may be given up for another broker to have as many: nothing else is under way."""
    return partition.durability is PartitionDurability.OBJECT and not partition.adding and not partition.removing


@Stepwise
def reassigned(image: ClusterImage, broker_id: int, topics: Iterable[TopicImage]) -> Steps[dict[TopicIdPartition, int]]:
    """The partitions of these topics that a broker leads and a reassignment gives to another that can lead: with that one."""
    found: dict[TopicIdPartition, int] = {}
    for topic in topics:
        for some in slices(topic.partitions, LOOKED_AT_ONCE):
            for partition in some:
                if partition.leader != broker_id or not partition.adding:
                    continue
                taker = image.brokers.get(partition.adding[0])
                if partition.durability is PartitionDurability.OBJECT and taker is not None and may_lead(taker):
                    found[TopicIdPartition(TopicId(topic.topic_id), partition.partition_index)] = int(taker.broker_id)
            yield
    return found


@Stepwise
def to_give(image: ClusterImage, broker_id: int) -> Steps[list[int]]:
    """For each leadership that a broker should give up, the broker that should have it."""
    counts = {each.broker_id: 0 for each in image.brokers.values() if may_lead(each)}
    if broker_id not in counts or len(counts) < 2:
        return []
    for topic in image.topics_by_id.values():
        for some in slices(topic.partitions, LOOKED_AT_ONCE):
            for partition in some:
                if partition.leader in counts and may_move(partition):
                    counts[partition.leader] += 1
            yield
    total = sum(counts.values())
    most, least = max(counts.values()), min(counts.values())
    if most - least < 2 or most - least <= BALANCED * total / len(counts):
        return []
    # Those that lead the most keep one more, where the number does not divide.
    base, more = divmod(total, len(counts))
    ordered = sorted(counts, key=lambda each: (-counts[each], each))
    target = {each: base + (place < more) for place, each in enumerate(ordered)}
    lacking = {each: target[each] - counts[each] for each in sorted(counts) if target[each] > counts[each]}
    takers: list[int] = []
    while lacking:
        takers += lacking
        lacking = {each: left - 1 for each, left in lacking.items() if left > 1}
    place = 0
    for each in sorted(counts):
        surplus = max(0, counts[each] - target[each])
        if each == broker_id:
            return takers[place : place + surplus]
        place += surplus
    return []


def busiest_first(loads: Mapping[TopicIdPartition, float]) -> Callable[[TopicIdPartition], tuple[float, int, int]]:
    """The key by which partitions are ordered for ``spread``. ``loads``: how much is written to each."""
    return lambda each: (-loads[each], each.topic_id.int, each.partition)  # a UUID compares slowly


def spread(ordered: Sequence[TopicIdPartition], count: int) -> Sequence[TopicIdPartition]:
    """So many of a broker's partitions, with about that share of its load. They come in the order of ``busiest_first``."""
    count = min(count, len(ordered))
    # One from every part of the order. From its middle, so that one of two is not always the busier.
    return [ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count)]
