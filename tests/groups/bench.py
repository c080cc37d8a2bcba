"""What a group's state machine is given in tests: a turn that keeps what is appended, a clock, and topics."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Sequence
from typing import Any

from app.coordinator.timers import Timers
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId, LeaderEpoch, LogSequence, PartitionIndex, TimestampMs, TopicId
from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage, TopicImage

START_MS = 1_700_000_000_000


class FakeTurn:
    """The turns of one shard: what was appended, batch by batch, and the timers. Wall clock and timers are one clock."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.log: list[Sequence[tuple[bytes, bytes | None]]] = []
        self.timers: Timers[Any] = Timers()
        self.refuse_with: ErrorCode | None = None
        """The next appends fail with this."""
        self.answers: list[tuple[Any, Any]] = []

    @property
    def steady_ms(self) -> int:
        return self.now_ms

    def append(self, records: Sequence[tuple[bytes, bytes | None]], *, producer: Any = None) -> int:
        assert records
        if self.refuse_with is not None:
            raise RequestRejected(self.refuse_with)
        self.log.append([(bytes(key), value) for key, value in records])
        return sum(map(len, self.log))

    def answer(self, reply: Any, answer: Any) -> None:
        self.answers.append((reply, answer))

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        self.timers.set(key, self.now_ms + delay_ms)

    def cancel_timer(self, key: Hashable) -> None:
        self.timers.cancel(key)


def topic_id(name: str, life: int = 0) -> TopicId:
    return TopicId(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name} {life}"))


def image_of(
    topics: dict[str, int],
    *,
    racks: dict[int, str] | None = None,
    replicas: Sequence[int] = (1,),
    sequence: int = 1,
    lives: dict[str, int] | None = None,
) -> ClusterImage:
    """An image with topics by name and partition count; partition i has its only replica on ``replicas[i % n]``.

    ``lives`` says of topics how often they were made: each time they have another id.
    """
    made = {}
    for name, count in topics.items():
        partitions = tuple(
            PartitionImage(
                PartitionIndex(index),
                BrokerId(replicas[index % len(replicas)]),
                LeaderEpoch(0),
                0,
                (BrokerId(replicas[index % len(replicas)]),),
                (BrokerId(replicas[index % len(replicas)]),),
            )
            for index in range(count)
        )
        made[name] = TopicImage(topic_id(name, (lives or {}).get(name, 0)), name, partitions, {}, TimestampMs(0))
    brokers = {
        broker_id: BrokerImage(BrokerId(broker_id), uuid.uuid4(), uuid.uuid4(), 1, (), rack, TimestampMs(0))
        for broker_id, rack in (racks or {}).items()
    }
    return ClusterImage(
        sequence=LogSequence(sequence),
        topics_by_name=made,
        topics_by_id={topic.topic_id: topic for topic in made.values()},
        brokers=brokers,
    )
