"""How a cluster stands, by its image."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from app.configs import BrokerConfig
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TimestampMs, TopicId
from app.handlers.apis.cluster import describe_standing
from app.metadata.changes.reassignments import Reassignment, list_reassignments
from app.metadata.image.image import ClusterImage, ControllerImage, PartitionImage, TopicImage
from app.metadata.view.standing import NAMED_MAX, PARTITIONS_A_STEP, standing
from app.wire.private import ClusterRequest, ClusterResponse, pack, unpack

REPLICAS = (BrokerId(1), BrokerId(2))


def image_of(partitions: int) -> ClusterImage:
    """A topic whose first partition has no leader, and whose second one has a replica that is not in sync."""
    made = []
    for index in range(partitions):
        leader = BrokerId(-1 if index == 0 else 1)
        in_sync = REPLICAS[:1] if index == 1 else REPLICAS
        made.append(PartitionImage(PartitionIndex(index), leader, LeaderEpoch(4), 9, REPLICAS, in_sync))
    topic = TopicImage(TopicId(UUID(int=1)), "t", tuple(made), {}, TimestampMs(0))
    return ClusterImage(
        cluster_id="cluster",
        controller=ControllerImage(1, BrokerId(1), UUID(int=7)),
        topics_by_name={topic.name: topic},
        topics_by_id={topic.topic_id: topic},
        brokers={},
    )


def test_partitions_that_lack_something_are_counted_and_named() -> None:
    found = standing(image_of(10), BrokerConfig())
    assert (found.topics, found.partitions) == (1, 10)
    assert (found.offline, found.offline_count) == ([("t", 0)], 1)
    assert (found.under_replicated, found.under_replicated_count) == ([("t", 1)], 1)


def one_partition(
    leader: int, replicas: tuple[int, ...], in_sync: tuple[int, ...], adding: int | None = None
) -> ClusterImage:
    image = image_of(1)
    (topic,) = image.topics_by_name.values()
    changed = topic.partitions[0]._replace(
        leader=BrokerId(leader),
        replicas=tuple(map(BrokerId, replicas)),
        isr=tuple(map(BrokerId, in_sync)),
        adding=() if adding is None else (BrokerId(adding),),
    )
    topic = replace(topic, partitions=(changed,))
    return replace(image, topics_by_name={"t": topic}, topics_by_id={topic.topic_id: topic})


@pytest.mark.parametrize(
    ("image", "lacks"),
    [
        (one_partition(1, (1, 2, 3), (1, 2)), False),
        (one_partition(1, (1, 2, 3), (1, 3)), True),
        (one_partition(1, (1, 2, 3), (1,)), True),
        (one_partition(3, (1, 2, 3), (3,)), True),
        (one_partition(-1, (1, 2, 3), (1, 2)), True),
        (one_partition(-1, (1, 3), (3,)), True),
        (one_partition(-1, (3,), (3,)), False),
        (one_partition(-1, (3,), ()), False),
        (one_partition(-1, (2,), (2,)), True),
        (one_partition(1, (1, 3, 4), (1, 4), adding=4), False),
        (one_partition(1, (1, 2, 3, 4), (1, 4), adding=4), True),
    ],
)
def test_a_broker_that_is_to_stop_waits_for_replicas_of_others_and_not_for_its_own(
    image: ClusterImage, lacks: bool
) -> None:
    found = standing(image, BrokerConfig(), 3)
    assert (found.under_replicated_count + found.offline_count > 0) is lacks
    whole = standing(image, BrokerConfig())
    assert whole.under_replicated_count + whole.offline_count > 0


def test_a_large_cluster_is_looked_at_in_steps() -> None:
    steps = standing.steps(image_of(10 * PARTITIONS_A_STEP), BrokerConfig())
    assert sum(1 for _ in steps) == 10


def test_no_more_reassignments_are_looked_up_than_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    image = image_of(NAMED_MAX + 500)
    (topic,) = image.topics_by_name.values()
    moving = replace(topic, partitions=tuple(one._replace(adding=(BrokerId(3),)) for one in topic.partitions))
    image = replace(image, topics_by_name={"t": moving}, topics_by_id={moving.topic_id: moving})
    looked_up: list[int] = []

    def counted(image: ClusterImage, asked: Any) -> list[Reassignment]:
        found = list_reassignments(image, asked)
        looked_up.append(len(found))
        return found

    monkeypatch.setattr("app.metadata.view.standing.list_reassignments", counted)
    found = standing(image, BrokerConfig())
    assert looked_up == [NAMED_MAX]
    assert [one.partition for one in found.reassignments] == list(range(NAMED_MAX))
    assert found.reassignment_count == NAMED_MAX + 500


async def test_a_broker_serves_others_while_it_looks_at_a_large_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.core.turns.PORTION_S", 0.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    config: Any = BrokerConfig()
    context: Any = SimpleNamespace(image=image_of(10 * PARTITIONS_A_STEP), config=config, desk=None, store_trouble=None)
    serving = asyncio.create_task(others())
    request: Any = None
    answer = unpack(ClusterResponse, await describe_standing(context, request, pack(ClusterRequest())))
    serving.cancel()
    assert answer.partitions == 10 * PARTITIONS_A_STEP
    assert turns >= 10
