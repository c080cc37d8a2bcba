"""The broker looks in portions for objects of its write-ahead log that no partition needs (INV-15). Other work runs in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from app.broker.write_ahead.write_ahead import TRIM_S, WriteAhead
from app.configs import BrokerConfig
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition
from app.hot.producers import ProducerStates
from app.metadata.image.cluster import PartitionImage
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalRange
from app.objectstore.memory import MemoryStore
from app.records.builder import build_batch
from tests.support.counted_loop import TurnCounts
from tests.support.virtual_loop import VirtualClock, VirtualLoop, run_virtual

TOPIC = TopicId(UUID(int=5))
BROKER = BrokerId(1)
MANY = 3_000
PORTION_MAX = 700
"""Twenty looks at the clock of the virtual loop, and 32 partitions between two of them."""
ROLLS_MAX = 25


def image_of(index: int, broker_epoch: int) -> PartitionImage:
    return PartitionImage(
        PartitionIndex(index),
        BROKER,
        LeaderEpoch(broker_epoch),
        broker_epoch,
        (BROKER,),
        (BROKER,),
        durability=PartitionDurability.OBJECT,
        wal_ranges=(WalRange(BROKER, broker_epoch, broker_epoch, 0, OPEN),),
    )


class Led:
    """A broker that leads many partitions."""

    def __init__(self, loop: VirtualLoop, partitions: int, *, retention_bytes: int = 1 << 30) -> None:
        self.broker_epoch = 7
        self.looked: list[int] = []
        """Partitions whose floor was asked for."""
        self.floors, self.images, self.rolls = TurnCounts(), TurnCounts(), TurnCounts()
        self.on_look: Callable[[], None] = lambda: None
        self.journals: dict[int, Any] = {}
        self.wal = WriteAhead(
            MemoryStore(),
            config=lambda: BrokerConfig(data_dir="/nowhere", wal_retention_bytes=retention_bytes),
            broker_id=BROKER,
            image=lambda: self.image,
            floor_of=self._floor_of,
            clock=VirtualClock(loop),
            rng=random.Random(1),
            registry=Registry(),
            log_line=lambda _line: None,
            faults=Faults(lambda _line: None),
        )
        self.register(self.broker_epoch)
        self.logs = [self._log(index) for index in range(partitions)]
        for log in self.logs:
            self.lead(log)

    def register(self, broker_epoch: int) -> None:
        """A new image, perhaps with a new registration of this broker."""
        self.broker_epoch = broker_epoch
        brokers = {BROKER: SimpleNamespace(broker_epoch=broker_epoch)}
        self.image: Any = SimpleNamespace(brokers=brokers, partition=self._partition)

    def _partition(self, topic_id: TopicId, index: int) -> PartitionImage:
        self.images.note()
        return image_of(index, self.broker_epoch)

    def _floor_of(self, key: TopicIdPartition) -> tuple[Offset, Offset]:
        self.looked.append(key.partition)
        self.floors.note()
        self.on_look()
        return Offset(0), Offset(0)

    def _log(self, index: int) -> Any:
        return SimpleNamespace(
            topic_id=TOPIC,
            partition=PartitionIndex(index),
            topic_partition=f"t-{index}",
            log_end_offset=0,
            leader_epoch=self.broker_epoch,
            config=SimpleNamespace(firn_wal_linger_ms=0),
            producers=ProducerStates(),
            leader_epochs=tuple,
            note_journaled=lambda _end: None,
            begin_journal=lambda journal: self.journals.update({index: journal}),
            roll=self.rolls.note,
        )

    def lead(self, log: Any) -> None:
        self.wal.lead(log, image_of(log.partition, self.broker_epoch))

    def append(self, index: int) -> None:
        batch = build_batch([(0, None, b"v", [])], leader_epoch=LeaderEpoch(self.broker_epoch))
        self.journals[index].admit(len(batch))
        self.journals[index].take(memoryview(batch))


def run(test: Callable[[VirtualLoop], Any]) -> None:
    run_virtual(test, seconds_max=60.0)


async def one_look(led: Led) -> None:
    """Run the log until it has looked at its partitions once."""
    running = asyncio.ensure_future(led.wal.run())
    await asyncio.sleep(1.5 * TRIM_S)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def test_a_look_at_all_led_partitions_goes_in_portions() -> None:
    async def main(loop: VirtualLoop) -> None:
        led = Led(loop, MANY)
        await one_look(led)
        assert led.looked == list(range(MANY))
        assert max(led.floors.counts) <= PORTION_MAX
        assert led.images.all >= MANY
        assert max(led.images.counts) <= 2 * PORTION_MAX  # a look at a floor may ask for the image, too

    run(main)


def test_segments_that_a_long_log_closes_are_closed_in_portions() -> None:
    async def main(loop: VirtualLoop) -> None:
        led = Led(loop, 200, retention_bytes=0)
        for index in range(200):
            led.append(index)
        await one_look(led)
        assert led.rolls.all == 200
        assert max(led.rolls.counts) <= ROLLS_MAX

    run(main)


def test_a_leadership_that_ends_during_a_look_is_not_looked_at() -> None:
    async def main(loop: VirtualLoop) -> None:
        led = Led(loop, MANY)
        led.on_look = lambda: led.wal.resign(led.logs[-1])
        await one_look(led)
        assert led.looked == list(range(MANY - 1))

    run(main)


def test_a_look_ends_when_another_log_begins() -> None:
    async def main(loop: VirtualLoop) -> None:
        led = Led(loop, MANY)

        def begin_another() -> None:
            led.on_look = lambda: None
            led.register(8)
            led.lead(led.logs[0])

        led.on_look = begin_another
        await one_look(led)
        assert led.looked == [0]

    run(main)
