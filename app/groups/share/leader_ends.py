"""Where partitions end that other brokers lead, as Kafka's coordinators ask for it: ListOffsets to each leader (KIP-1226).

A coordinator needs it to say how far a group is behind where it has no replica of a partition itself. As in Kafka, a leader with an
authorizer tells it to brokers that are super users or have DESCRIBE on the topic. An end that a leader does not tell in time is
unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from app.core.errors import FirnError
from app.core.turns import Portion
from app.core.units import BrokerId, Offset, TopicPartition
from app.metadata.image.image import BrokerImage
from app.metadata.view.view import ClusterView

REQUEST_PARTITIONS_MAX: Final = 1_000
"""Partitions in one request. A leader answers so many within a portion of 10 ms."""
ENDS_S: Final = 5.0
"""Time for all leaders. The client of the request that needs their answers waits 30 s and more."""


class EndsLink(Protocol):
    """Connections to leaders on other brokers."""

    async def ends(self, to: BrokerImage, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """The high watermarks of partitions that a broker leads; those that it does not tell are left out.

        Raises: BrokerUnavailable, ProtocolError, RequestRejected.
        """
        ...


class LeaderEnds:
    """Asks leaders."""

    def __init__(self, cluster: ClusterView, broker_id: BrokerId, link: EndsLink | None) -> None:
        """Without ``link`` this broker is alone."""
        self._cluster = cluster
        self._broker_id = broker_id
        self._link = link

    async def of(self, asked: Iterable[TopicPartition], *, timeout_s: float = ENDS_S) -> dict[TopicPartition, Offset]:
        """The high watermarks of partitions that others lead, as far as their leaders tell them within ``timeout_s``: each leader
        is asked for all of its partitions, beside the others. Does not raise."""
        by_leader: dict[BrokerId, list[TopicPartition]] = {}
        portion = Portion()
        for one in dict.fromkeys(asked):
            topic = self._cluster.image.topic(one.topic)
            if topic is not None and 0 <= one.partition < len(topic.partitions):
                by_leader.setdefault(topic.partitions[one.partition].leader, []).append(one)
            if portion.spent_by():
                await portion.rest()
        found: dict[TopicPartition, Offset] = {}
        if self._link is None:
            return found
        brokers = self._cluster.image.brokers
        tasks = [
            asyncio.ensure_future(self._ask(self._link, brokers[leader], of_leader, found))
            for leader, of_leader in by_leader.items()
            if leader != self._broker_id and leader in brokers
        ]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=timeout_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return found

    async def _ask(
        self, link: EndsLink, leader: BrokerImage, asked: Sequence[TopicPartition], found: dict[TopicPartition, Offset]
    ) -> None:
        for first in range(0, len(asked), REQUEST_PARTITIONS_MAX):
            try:
                found |= await link.ends(leader, asked[first : first + REQUEST_PARTITIONS_MAX])
            except FirnError:
                return  # its partitions are unknown, which the caller tells
