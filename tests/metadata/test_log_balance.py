"""Which leaderships in write-ahead logs go to other brokers (ADR 0037, J50)."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TimestampMs, TopicId, TopicIdPartition
from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from app.metadata.image.wal_ranges import PartitionDurability
from app.metadata.replicas.log_balance import busiest_first, reassigned, spread, to_give

TOPIC = TopicId(UUID(int=1))


def image(*leaders: int, fenced: tuple[int, ...] = (), brokers: int = 3, **fields: object) -> ClusterImage:
    """One partition for each of ``leaders``, and brokers 1 to ``brokers``."""
    partitions = tuple(
        PartitionImage(
            PartitionIndex(index), BrokerId(leader), LeaderEpoch(0), 0, (BrokerId(leader),), (BrokerId(leader),),
            durability=PartitionDurability.OBJECT,
        )._replace(**fields)
        for index, leader in enumerate(leaders)
    )  # fmt: skip
    topic = TopicImage(TOPIC, "t", partitions, {}, TimestampMs(0))
    registered = {
        one: BrokerImage(
            BrokerId(one), UUID(int=one), UUID(int=one), one, (), None, TimestampMs(0), fenced=one in fenced
        )
        for one in range(1, brokers + 1)
    }
    return ClusterImage(topics_by_id={TOPIC: topic}, topics_by_name={"t": topic}, brokers=registered)


@pytest.mark.parametrize(
    ("leaders", "gives"),
    [
        ([1] * 9, {1: [2, 3, 2, 3, 2, 3]}),
        ([1] * 10, {1: [2, 3, 2, 3, 2, 3]}),
        ([1, 1, 1, 2, 2, 2, 2], {2: [3], 1: [3]}),
        ([1, 1, 2, 3], {}),
        ([1, 2, 3], {}),
        ([1] * 100 + [2] * 104 + [3] * 96, {}),
        ([-1, -1, 1], {}),
    ],
)
def test_every_leader_gives_what_it_has_too_many(leaders: list[int], gives: dict[int, list[int]]) -> None:
    found = image(*leaders)
    assert {each: given for each in (1, 2, 3) if (given := to_give(found, each))} == gives


def test_all_parts_of_the_plan_together_make_counts_even() -> None:
    leaders = [1] * 40 + [2] * 7 + [3] * 3 + [4] * 21
    found = image(*leaders, brokers=5)
    counts = Counter(leaders)
    for each in range(1, 6):
        for taker in to_give(found, each):
            counts[each] -= 1
            counts[taker] += 1
    assert sorted(counts.values()) == [14, 14, 14, 14, 15]


def test_a_leader_gives_what_was_reassigned_to_whom_it_was_as_soon_as_that_one_can_lead() -> None:
    found = image(1, 2, 1, adding=(BrokerId(3),), removing=(BrokerId(1),))
    topics = found.topics_by_id.values()
    assert reassigned(found, 1, topics) == {
        TopicIdPartition(TOPIC, PartitionIndex(0)): 3,
        TopicIdPartition(TOPIC, PartitionIndex(2)): 3,
    }
    assert reassigned(found, 3, topics) == {}
    for other in (
        image(1, adding=(BrokerId(3),), fenced=(3,)),
        image(1, adding=(BrokerId(9),)),
        image(1, adding=(BrokerId(3),), durability=PartitionDurability.FROM_OBJECT),
        image(1),
    ):
        assert reassigned(other, 1, other.topics_by_id.values()) == {}


def test_only_brokers_that_may_lead_count() -> None:
    assert to_give(image(1, 1, 1, 1, fenced=(2, 3)), 1) == []
    assert to_give(image(1, 1, 1, 1, fenced=(3,)), 1) == [2, 2]
    assert to_give(image(1, 1, 1, 1), 9) == []


def test_partitions_that_change_or_move_already_stay() -> None:
    assert to_give(image(1, 1, 1, 1, durability=PartitionDurability.REPLICAS), 1) == []
    assert to_give(image(1, 1, 1, 1, durability=PartitionDurability.FROM_OBJECT), 1) == []
    assert to_give(image(1, 1, 1, 1, adding=(BrokerId(2),)), 1) == []


def test_what_is_given_has_about_its_share_of_the_load() -> None:
    loads = {TopicIdPartition(TOPIC, PartitionIndex(index)): float(index) for index in range(100)}
    ordered = sorted(loads, key=busiest_first(loads))
    for count in (1, 2, 25, 50, 99, 100):
        found = spread(ordered, count)
        assert len(set(found)) == count
        share = sum(loads[each] for each in found) / sum(loads.values())
        assert share == pytest.approx(count / 100, abs=0.02)
    assert len(spread(ordered, 500)) == 100


def test_a_look_at_many_partitions_goes_in_steps() -> None:
    found = image(*[1] * 3_000)
    assert sum(1 for _ in to_give.steps(found, 1)) >= 10
    assert sum(1 for _ in reassigned.steps(found, 1, found.topics_by_id.values())) >= 10
