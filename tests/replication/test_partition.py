"""What a partition says of records while its role changes."""

from __future__ import annotations

import pytest

from app.configs import Durability
from app.errors import NotLeader, RequestRejected
from app.metadata.cluster import ClusterImage
from app.replication.partition import PartitionTable
from app.units import BrokerId, LeaderEpoch
from tests.hot.helpers import NOW, batch, manager_over, new_log, running, sim


async def test_what_is_stored_after_this_broker_has_stopped_to_lead_is_not_called_stored() -> None:
    manager = manager_over(sim())
    table = PartitionTable(BrokerId(1), ClusterImage)
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
    table = PartitionTable(BrokerId(1), ClusterImage)
    partition = table.hold(new_log(manager))
    table.lead(partition, LeaderEpoch(1))
    partition.log.append_as_leader(batch(), now_ms=NOW)
    table.put_offline(partition, "its manifest is damaged")
    with pytest.raises(RequestRejected, match="does not lead"):
        partition.log.append_as_leader(batch(), now_ms=NOW)
    table.lead(partition, LeaderEpoch(2))
    partition.log.append_as_leader(batch(), now_ms=NOW)
    await manager.close()
