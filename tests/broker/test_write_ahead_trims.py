"""The broker looks in portions at the partitions of its write-ahead log (INV-15). Other work runs in between.

It looks for objects that no partition needs, for records that are not acknowledged yet, and for leaderships that have ended.
"""

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
from app.core.errors import FirnError
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId, TopicIdPartition
from app.hot.producers import ProducerStates
from app.metadata.image.image import PartitionImage
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalId, WalRange
from app.objectstore.memory import MemoryStore
from app.records.builder import build_batch
from app.wal.format import NONCE_BYTES, encode_seal
from app.wal.objects import put
from tests.support.counted_loop import TurnCounts, count_turns
from tests.support.virtual_loop import VirtualClock, VirtualLoop, run_virtual

TOPIC = TopicId(UUID(int=5))
BROKER = BrokerId(1)
MANY = 3_000
TURNS_MIN = 4
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
        self.floors, self.images, self.rolls, self.ends = TurnCounts(), TurnCounts(), TurnCounts(), TurnCounts()
        self.on_end: Callable[[], None] = lambda: None
        self.store = MemoryStore()
        self.on_look: Callable[[], None] = lambda: None
        self.journals: dict[int, Any] = {}
        self.wal = WriteAhead(
            self.store,
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
            end_journal=self._end,
        )

    def _end(self, _error: FirnError) -> None:
        self.ends.note()
        self.on_end()

    def lead(self, log: Any) -> None:
        self.wal.lead(log, image_of(log.partition, self.broker_epoch))

    def append(self, index: int) -> None:
        batch = build_batch([(0, None, b"v", [])], leader_epoch=LeaderEpoch(self.broker_epoch))
        self.journals[index].admit(len(batch))
        self.journals[index].take((memoryview(batch),))


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


def test_records_of_many_stopped_partitions_are_waited_for_in_portions() -> None:
    async def main(loop: VirtualLoop) -> None:
        led = Led(loop, MANY)
        led.wal.stop_taking(led.wal.led_partitions, led)
        assert await count_turns(led.wal.flushed(led.wal.led_partitions)) >= TURNS_MIN

    run(main)


def test_an_object_that_is_acknowledged_during_a_look_counts_for_every_waiter() -> None:
    async def main(loop: VirtualLoop) -> None:
        led = Led(loop, MANY)
        partitions = led.wal.led_partitions
        led.append(0)
        led.wal.stop_taking(partitions, led)
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(led.wal.flushed(some)) for some in (partitions, partitions[:1], partitions)]
            running = group.create_task(led.wal.run())
            async with asyncio.timeout(10 * TRIM_S):
                await asyncio.wait(waiting)
            running.cancel()
        assert led.wal.last_number(partitions[0]) == 0

    run(main)


async def sealed_by_another(led: Led) -> list[WalId]:
    """Run the log until another broker has sealed it. Returns: the logs that were told to have ended."""
    ended: list[WalId] = []
    told = asyncio.Event()

    def tell(wal: WalId) -> None:
        ended.append(wal)
        told.set()

    led.wal.on_ended = tell
    wal = led.wal.id
    assert wal is not None
    await put(led.store, wal, 0, encode_seal(wal, 0, b"n" * NONCE_BYTES, TimestampMs(0), 2))
    led.append(0)
    running = asyncio.ensure_future(led.wal.run())
    await told.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return ended


def test_the_leaderships_of_a_sealed_log_end_in_portions() -> None:
    async def main(loop: VirtualLoop) -> None:
        led = Led(loop, MANY)
        wal = led.wal.id
        assert await sealed_by_another(led) == [wal]
        assert led.ends.all == MANY
        assert max(led.ends.counts) <= PORTION_MAX
        assert led.wal.led_partitions == []

    run(main)


def test_a_leadership_that_begins_while_those_of_a_sealed_log_end_goes_on() -> None:
    async def main(loop: VirtualLoop) -> None:
        led = Led(loop, MANY)

        def begin_anew() -> None:
            led.on_end = lambda: None
            led.register(8)
            led.lead(led.logs[-1])

        led.on_end = begin_anew
        await sealed_by_another(led)
        assert led.ends.all == MANY - 1
        assert [one.partition for one in led.wal.led_partitions] == [MANY - 1]

    run(main)
