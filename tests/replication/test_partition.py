"""What a partition says of records while its role changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.configs import Durability
from app.core.errors import ErrorCode, NotLeader, RequestRejected, StorageUnavailable
from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex
from app.metadata.image.image import ClusterImage, PartitionImage
from app.records.batch import patch_batch
from app.replication.partition import PartitionTable
from tests.hot.helpers import NOW, batch, manager_over, new_log, running, sim

ME, OTHER = BrokerId(1), BrokerId(2)


async def test_what_is_stored_after_this_broker_has_stopped_to_lead_is_not_called_stored() -> None:
    manager = manager_over(sim())
    table = PartitionTable(ME, ClusterImage)
    partition = table.hold(new_log(manager, firn_durability=Durability.DISK))
    table.lead(partition, LeaderEpoch(1))
    partition.log.append_as_leader(batch(), now_ms=NOW)
    end = partition.log.log_end_offset
    meanwhile, before = partition.wait_stored_as_leader(end), partition.wait_stored_as_leader(end)
    assert meanwhile is not None
    assert before is not None
    async with running(manager):
        await before
        table.resign(partition)
        with pytest.raises(NotLeader):
            await meanwhile
    await manager.close()


async def test_nothing_is_written_to_a_partition_that_went_offline_whoever_still_has_its_log() -> None:
    manager = manager_over(sim())
    table = PartitionTable(ME, ClusterImage)
    partition = table.hold(new_log(manager))
    table.lead(partition, LeaderEpoch(1))
    partition.log.append_as_leader(batch(), now_ms=NOW)
    table.put_offline(partition, "its manifest is damaged")
    with pytest.raises(RequestRejected, match="does not lead"):
        partition.log.append_as_leader(batch(), now_ms=NOW)
    table.lead(partition, LeaderEpoch(2))
    partition.log.append_as_leader(batch(), now_ms=NOW)
    await manager.close()


def two_in_sync(epoch: int = 1, *in_sync: int) -> PartitionImage:
    """A partition with two replicas that this broker leads."""
    return PartitionImage(
        PartitionIndex(0),
        ME,
        LeaderEpoch(1),
        epoch,
        (ME, OTHER),
        tuple(BrokerId(one) for one in in_sync) or (ME, OTHER),
    )


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
async def test_while_another_replica_is_in_sync_nothing_is_committed_by_this_disk_alone(durability: Durability) -> None:
    manager = manager_over(sim())
    table = PartitionTable(ME, ClusterImage)
    partition = table.hold(new_log(manager, firn_durability=durability))
    table.note(partition, two_in_sync())
    table.lead(partition, LeaderEpoch(1))
    log = partition.log
    assert (partition.commits_alone, partition.in_sync, partition.partition_epoch) == (False, (ME, OTHER), 1)
    end = log.append_as_leader(batch(3), now_ms=NOW).last_offset_end
    async with running(manager):
        here = partition.wait_stored(end, in_sync=False)
        if here is not None:
            await here
        assert log.stored_end_offset == end
        everywhere = partition.wait_stored(end)
        assert everywhere is not None
        waiting = asyncio.ensure_future(everywhere)
        await log.flush()
        await asyncio.sleep(0)
        assert (log.high_watermark, log.last_stable_offset, waiting.done()) == (0, 0, False)
        with pytest.raises(RequestRejected):
            log.advance_log_start(end)
        log.commit(2)
        await asyncio.sleep(0)
        assert (log.high_watermark, waiting.done()) == (2, False)
        table.note(partition, two_in_sync(2, ME))
        await asyncio.wait_for(waiting, 60)
        assert (log.high_watermark, partition.commits_alone) == (end, False)
        assert partition.wait_stored(end) is None
    await manager.close()


@pytest.mark.parametrize(
    "later",
    [
        pytest.param({"leader": OTHER, "isr": (OTHER,), "leader_epoch": LeaderEpoch(2)}, id="another leads"),
        pytest.param({"leader": BrokerId(-1), "isr": (ME,), "leader_epoch": LeaderEpoch(2)}, id="nobody leads"),
        pytest.param({"isr": (ME,), "leader_epoch": LeaderEpoch(3)}, id="it leads again, after another"),
    ],
)
async def test_r10_the_image_of_a_later_leadership_commits_nothing_of_this_one(later: dict[str, Any]) -> None:
    """What only a part of its in-sync set has stored may have been cut away by whoever led after it."""
    manager = manager_over(sim())
    table = PartitionTable(ME, ClusterImage)
    partition = table.hold(new_log(manager))
    table.note(partition, two_in_sync())
    table.lead(partition, LeaderEpoch(1))
    partition.log.append_as_leader(batch(3), now_ms=NOW)
    await partition.log.flush()
    table.note(partition, two_in_sync()._replace(partition_epoch=2, **later))
    assert partition.log.high_watermark == 0
    await manager.close()


@pytest.mark.parametrize("how", ["resigned", "closed"])
async def test_who_waits_for_other_replicas_is_told_if_the_leadership_or_the_log_ends(how: str) -> None:
    manager = manager_over(sim())
    table = PartitionTable(ME, ClusterImage)
    partition = table.hold(new_log(manager))
    table.note(partition, two_in_sync())
    table.lead(partition, LeaderEpoch(1))
    end = partition.log.append_as_leader(batch(), now_ms=NOW).last_offset_end
    stored = partition.wait_stored(end)
    assert stored is not None
    waiting = asyncio.ensure_future(stored)
    await asyncio.sleep(0)
    if how == "resigned":
        table.resign(partition)
    else:
        partition.log.refuse(StorageUnavailable("the disk is gone"))
    with pytest.raises(NotLeader if how == "resigned" else StorageUnavailable):
        await asyncio.wait_for(waiting, 60)
    assert not partition.log._waiters, "nobody waits any more"
    await manager.close()


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
async def test_what_a_broker_stores_after_it_has_resigned_is_not_committed_by_it(durability: Durability) -> None:
    manager = manager_over(sim())
    table = PartitionTable(ME, ClusterImage)
    partition = table.hold(new_log(manager, firn_durability=durability))
    table.lead(partition, LeaderEpoch(1))
    partition.log.append_as_leader(batch(), now_ms=NOW)
    before = partition.log.high_watermark
    table.resign(partition)
    partition.log.append_as_follower(placed(batch(), partition.log.log_end_offset), now_ms=NOW)
    async with running(manager):
        await partition.log.flush()
        assert partition.log.stored_end_offset == 2
        assert partition.log.high_watermark == before
        table.lead(partition, LeaderEpoch(2))
        assert partition.log.high_watermark == 2
    await manager.close()


def test_too_few_replicas_in_sync_are_refused_and_no_more_are_asked_for_than_there_are() -> None:
    table = PartitionTable(ME, ClusterImage)
    partition = table.hold(new_log(manager_over(sim()), min_insync_replicas=3))
    partition.check_in_sync()
    table.note(partition, two_in_sync())
    partition.check_in_sync()
    table.note(partition, two_in_sync(2, ME))
    with pytest.raises(RequestRejected, match="1 replicas are in sync") as refused:
        partition.check_in_sync()
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


def placed(records: memoryview, offset: int) -> memoryview:
    """As a follower gets it."""
    patch_batch(records, 0, Offset(offset), LeaderEpoch(1))
    return records
