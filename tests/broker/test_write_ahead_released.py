"""A broker that gives up leaderships of its write-ahead log looks at all of them in portions (INV-15)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from app.broker.write_ahead.release import Balance, Releases, leave
from app.core.errors import ErrorCode
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TimestampMs, TopicId, TopicIdPartition
from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalId, WalRange
from app.metadata.peers.control import InSyncAnswer, ReleaseAsked
from tests.support.counted_loop import TurnCounts
from tests.support.virtual_loop import VirtualLoop, run_virtual

TOPIC = TopicId(UUID(int=5))
OURS, OTHER = BrokerId(1), BrokerId(2)
WAL = WalId(OURS, 7)
MANY = 3_000
PORTION_MAX = 700
"""Twenty looks at the clock of the virtual loop, and 32 partitions between two of them."""


def led_by(index: int, leader: BrokerId, epoch: int) -> PartitionImage:
    return PartitionImage(
        PartitionIndex(index),
        leader,
        LeaderEpoch(epoch),
        epoch,
        (leader,),
        (leader,),
        durability=PartitionDurability.OBJECT,
        wal_ranges=(WalRange(leader, 7, epoch, 0, OPEN),),
    )


def registered(broker_id: BrokerId) -> BrokerImage:
    return BrokerImage(broker_id, UUID(int=broker_id), UUID(int=broker_id), 7, (), None, TimestampMs(0), fenced=False)


class World:
    """A broker that leads many partitions, another broker, and the image of both. It is the broker's log, too."""

    id = WAL

    def __init__(self) -> None:
        self.looks = TurnCounts()
        """Partitions that were looked up in the image."""
        self.released: list[ReleaseAsked] = []
        self._partitions = {index: led_by(index, OURS, 1) for index in range(MANY)}
        self.releases = Releases(self, image=self.image, broker_id=OURS, ask=self.ask, log_line=print)  # type: ignore[arg-type]

    # --- the image ----------------------------------------------------------------------------------------------------

    def image(self) -> Any:
        topic = TopicImage(TOPIC, "t", tuple(self._partitions.values()), {}, TimestampMs(0))
        brokers = {each: registered(each) for each in (OURS, OTHER)}
        image = ClusterImage(topics_by_id={TOPIC: topic}, topics_by_name={"t": topic}, brokers=brokers)
        return _Looked(image, self)

    def partition(self, _topic_id: TopicId, index: int) -> PartitionImage:
        self.looks.note()
        return self._partitions[index]

    async def ask(self, releases: Sequence[ReleaseAsked]) -> list[InSyncAnswer]:
        await asyncio.sleep(1)
        self.released += releases
        for one in releases:
            self._partitions[one.partition] = led_by(one.partition, BrokerId(one.to), one.partition_epoch + 1)
        return [InSyncAnswer(one.topic_id, one.partition, ErrorCode.NONE) for one in releases]

    # --- the log ------------------------------------------------------------------------------------------------------

    @property
    def led_partitions(self) -> list[TopicIdPartition]:
        return [TopicIdPartition(TOPIC, one.partition_index) for one in self._partitions.values() if one.leader == OURS]

    def loads(self) -> dict[TopicIdPartition, float]:
        return dict.fromkeys(self.led_partitions, 0.0)

    def stop_taking(self, partitions: object, by: object) -> None: ...

    async def flushed(self, partitions: object) -> None: ...

    def last_number(self, _partition: TopicIdPartition) -> int:
        return 3


class _Looked:
    """An image whose look-ups of partitions are counted."""

    def __init__(self, image: ClusterImage, world: World) -> None:
        self._image = image
        self.partition = world.partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._image, name)


def test_all_partitions_are_given_up_in_portions() -> None:
    async def main(_loop: VirtualLoop) -> None:
        world = World()
        await leave(world.releases, to=OTHER, within_s=60, log_line=print)
        assert [one.partition for one in world.released] == list(range(MANY))
        assert {one.to for one in world.released} == {OTHER}
        assert world.looks.all >= 3 * MANY
        assert max(world.looks.counts) <= 2 * PORTION_MAX  # one look may end and another begin in a turn

    run_virtual(main, seconds_max=100)


def test_leaderships_are_evened_out_in_portions() -> None:
    async def main(_loop: VirtualLoop) -> None:
        world = World()
        balance = Balance(
            world.releases,
            world,  # type: ignore[arg-type]
            image=world.image,
            broker_id=OURS,
            interval_s=lambda: 10.0,
            log_line=print,
        )
        running = asyncio.ensure_future(balance.run())
        await asyncio.sleep(60)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert len(world.led_partitions) == MANY // 2
        assert max(world.looks.counts) <= 2 * PORTION_MAX

    run_virtual(main, seconds_max=100)
