"""Which leaders are asked for the ends of partitions, for how many at a time, and what is known if some do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from app.core.errors import BrokerUnavailable
from app.core.units import BrokerId, Offset, PartitionIndex, TopicPartition
from app.groups.share.leader_ends import REQUEST_PARTITIONS_MAX, LeaderEnds

HERE = BrokerId(1)


class Link:
    """Each broker tells of each partition its index. ``deaf`` ones never answer, ``lost`` ones cannot be reached."""

    def __init__(self, *, deaf: Sequence[int] = (), lost: Sequence[int] = ()) -> None:
        self.asked: list[tuple[Any, Sequence[TopicPartition]]] = []
        self._deaf, self._lost = deaf, lost

    async def ends(self, to: Any, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        self.asked.append((to, asked))
        if to in self._lost:
            raise BrokerUnavailable("lost")
        if to in self._deaf:
            await asyncio.get_running_loop().create_future()
        return {one: Offset(one.partition) for one in asked}


def partition(index: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


def ends(link: Link | None, leaders: Sequence[int]) -> LeaderEnds:
    """By a topic whose partitions have these leaders. An image of a broker is its number here."""
    topic = SimpleNamespace(partitions=[SimpleNamespace(leader=leader) for leader in leaders])
    image = SimpleNamespace(topic={"t": topic}.get, brokers={leader: leader for leader in leaders if leader >= 0})
    view: Any = SimpleNamespace(image=image)
    return LeaderEnds(view, HERE, link)


async def test_each_leader_is_asked_once_for_all_that_it_leads() -> None:
    link = Link()
    found = await ends(link, [2, 3, 2, -1, HERE]).of([partition(index) for index in (0, 1, 2, 0, 3, 4, 7, -1)])
    assert link.asked == [(2, [partition(0), partition(2)]), (3, [partition(1)])]
    assert found == {partition(index): index for index in (0, 1, 2)}


async def test_one_request_names_no_more_than_its_leader_answers_within_a_portion() -> None:
    link, count = Link(), 2 * REQUEST_PARTITIONS_MAX + 1
    found = await ends(link, [2] * count).of([partition(index) for index in range(count)])
    assert [len(asked) for _, asked in link.asked] == [REQUEST_PARTITIONS_MAX, REQUEST_PARTITIONS_MAX, 1]
    assert len(found) == count


async def test_leaders_that_cannot_be_reached_or_do_not_answer_leave_only_theirs_unknown() -> None:
    link = Link(deaf=[2], lost=[3])
    found = await ends(link, [2, 3, 4]).of([partition(index) for index in range(3)], timeout_s=0.05)
    assert found == {partition(2): 2}
    assert len(link.asked) == 3


async def test_a_broker_alone_asks_nobody() -> None:
    assert await ends(None, [2]).of([partition(0)]) == {}
    assert await ends(Link(), [2]).of([partition(0, "gone")]) == {}
