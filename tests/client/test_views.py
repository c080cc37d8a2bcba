"""Answers with metadata that are put into the view in portions, while others overtake them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from app.client.cluster import ClusterClient
from app.core.errors import ErrorCode, RequestRejected
from app.wire.apis.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

MANY = 20_000
"""Topics of an answer that takes several portions."""


def topic(name: str, *, leader: int = 1, error: ErrorCode = ErrorCode.NONE) -> MetadataResponseTopic:
    partitions = [MetadataResponsePartition(partition_index=0, leader_id=leader, replica_nodes=[1], isr_nodes=[1])]
    return MetadataResponseTopic(error_code=error, name=name, partitions=[] if error else partitions)


def answer(topics: Sequence[MetadataResponseTopic], *, port: int) -> MetadataResponse:
    brokers = [MetadataResponseBroker(node_id=1, host="h", port=port)]
    return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=1, topics=list(topics))


class Scripted(ClusterClient):
    """Gets its answers from a list."""

    def __init__(self, answers: list[MetadataResponse]) -> None:
        super().__init__([("127.0.0.1", 1)], rng=random.Random(1))
        self._answers = iter(answers)

    async def any_broker(self) -> Any:
        return self

    def version_of(self, key: int) -> int:
        return 12

    async def request(self, *_: object, **__: object) -> MetadataResponse:
        return next(self._answers)


def of_all(*more: MetadataResponseTopic) -> MetadataResponse:
    return answer([*more, *(topic(f"other-{number}") for number in range(MANY))], port=1)


async def begun(client: ClusterClient) -> asyncio.Task[Any]:
    """A refresh of all topics that has its answer, and has not put it into the view."""
    refreshing = asyncio.create_task(client.refresh())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not client.view.topics
    return refreshing


async def test_a_topic_that_is_gone_by_a_newer_answer_stays_gone() -> None:
    client = Scripted([of_all(topic("t")), answer([topic("t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)], port=2)])
    first = await begun(client)
    with pytest.raises(RequestRejected):
        await client.refresh(["t"])
    assert not first.done()
    await first
    assert "t" not in client.view.topics
    assert len(client.view.topics) == MANY


async def test_newer_leaders_and_brokers_stay() -> None:
    client = Scripted([of_all(topic("t")), answer([topic("t", leader=7)], port=2)])
    first = await begun(client)
    await client.refresh(["t"])
    assert not first.done()
    await first
    assert client.view.topics["t"].partitions[0].leader == 7
    assert [one.port for one in client.view.brokers.values()] == [2]


async def test_a_topic_that_was_forgotten_meanwhile_is_asked_for_again() -> None:
    client = Scripted([of_all(topic("t")), answer([topic("t", leader=7)], port=2)])
    first = await begun(client)
    client.forget("t")
    await first
    assert (await client.topic("t")).partitions[0].leader == 7
