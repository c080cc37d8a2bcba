"""Who stopped a partition stopped it for one leadership."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from app.broker.write_ahead.write_ahead import WriteAhead
from app.configs import BrokerConfig
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicIdPartition
from app.machine.runtime import SystemClock
from app.metadata.image.image import PartitionImage
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalRange
from app.objectstore.memory import MemoryStore

KEY = TopicIdPartition(TopicId(UUID(int=5)), PartitionIndex(0))
BROKER, BROKER_EPOCH = BrokerId(1), 7


def image_of(leader_epoch: int) -> PartitionImage:
    return PartitionImage(
        KEY.partition,
        BROKER,
        LeaderEpoch(leader_epoch),
        leader_epoch,
        (BROKER,),
        (BROKER,),
        durability=PartitionDurability.OBJECT,
        wal_ranges=(WalRange(BROKER, BROKER_EPOCH, leader_epoch, 0, OPEN),),
    )


async def test_a_leadership_that_began_after_the_stop_is_not_waited_for_nor_released() -> None:
    image: Any = SimpleNamespace(brokers={BROKER: SimpleNamespace(broker_epoch=BROKER_EPOCH)})
    wal = WriteAhead(
        MemoryStore(),
        config=lambda: BrokerConfig(data_dir="/nowhere"),
        broker_id=BROKER,
        image=lambda: image,
        floor_of=lambda _key: None,
        clock=SystemClock(),
        rng=random.Random(1),
        registry=Registry(),
        log_line=lambda _line: None,
        faults=Faults(lambda _line: None),
    )
    log: Any = SimpleNamespace(
        topic_id=KEY.topic_id,
        partition=KEY.partition,
        topic_partition="t-0",
        log_end_offset=0,
        begin_journal=lambda _journal: None,
    )
    wal.lead(log, image_of(1))
    wal.stop_taking([KEY], self_by := object())
    await wal.flushed([KEY])
    assert wal.last_number(KEY) == -1
    wal.resign(log)
    wal.lead(log, image_of(2))
    async with asyncio.timeout(60):
        await wal.flushed([KEY])
    assert wal.last_number(KEY) is None
    wal.take_again(KEY, self_by)
    wal.stop_taking([KEY], object())
    assert wal.last_number(KEY) == -1
