"""A partition changes between replicas and write-ahead logs (ADR 0037, J40 to J42). Pure: a partition goes in, another comes out.

Each way takes two entries. The first comes with the topic's setting. From then on the leader keeps records by both rules, and the
partition fails over by the earlier rule. The leader asks for the second entry as soon as the new rule holds for all records. From
its request on it takes no record until the entry, which begins a new leader epoch of the same leader. So the earlier records are
in a closed range, and if a replica leaves and comes back, its late fetches do not count (R6).
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId, LeaderEpoch
from app.metadata.image.image import BrokerImage, PartitionImage
from app.metadata.image.wal_ranges import PartitionDurability, WalRange, released
from app.metadata.replicas.elections import stamped
from app.metadata.replicas.log_leaders import may_lead, opened_by
from app.metadata.replicas.replica_changes import effective_min_in_sync


def to_object(partition: PartitionImage) -> PartitionImage:
    """The first entry of the way to the write-ahead log (J40). Raises: RequestRejected INVALID_REQUEST."""
    match partition.durability:
        case PartitionDurability.FROM_OBJECT:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST,
                f"Partition {partition.partition_index} is still on its way from object durability: wait until its replicas are in"
                " sync.",
            )
        case PartitionDurability.REPLICAS:
            return stamped(partition, partition._replace(durability=PartitionDurability.TO_OBJECT))
        case _:
            return partition


def from_object(partition: PartitionImage, others: Sequence[BrokerId]) -> PartitionImage:
    """The first entry of the way back: ``others`` become replicas beside the leader, and fetch (J41).

    A partition that was only on its way to the log has its replicas still.
    """
    match partition.durability:
        case PartitionDurability.TO_OBJECT:
            return stamped(partition, partition._replace(durability=PartitionDurability.REPLICAS))
        case PartitionDurability.OBJECT:
            replicas = (*partition.replicas[:1], *(each for each in others if each not in partition.replicas[:1]))
            changed = partition._replace(
                durability=PartitionDurability.FROM_OBJECT, replicas=replicas, adding=(), removing=()
            )
            return stamped(partition, changed)
        case _:
            return partition


def switched(partition: PartitionImage, broker: BrokerImage, first: int, last: int, min_in_sync: int) -> PartitionImage:
    """The second entry, as the leader asks for it. ``first`` and ``last``: the objects of its log that have records of this
    leadership; ``last`` is lower if there are none.

    Raises: RequestRejected INVALID_REQUEST, ELIGIBLE_LEADERS_NOT_AVAILABLE, INELIGIBLE_REPLICA.
    """
    match partition.durability:
        case PartitionDurability.TO_OBJECT:
            return _in_log(partition, broker, first, last)
        case PartitionDurability.FROM_OBJECT:
            return _with_replicas(partition, broker, last, min_in_sync)
        case _:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "The partition does not change its durability.")


def _in_log(partition: PartitionImage, broker: BrokerImage, first: int, last: int) -> PartitionImage:
    if not may_lead(broker):
        raise RequestRejected(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "The leader is about to stop, or its write-ahead log has ended."
        )
    if partition.recovering or first < 0:
        why = "the leader has not confirmed the tier" if partition.recovering else "its first object is missing"
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"The partition cannot go on in the write-ahead log: {why}.")
    written = (WalRange(*broker.wal, partition.leader_epoch, first, last),) if last >= first else ()
    alone = (partition.leader,)
    changed = partition._replace(
        durability=PartitionDurability.OBJECT,
        leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
        replicas=alone,
        isr=alone,
        eligible=(),
        last_known_eligible=(),
        adding=(),
        removing=(),
        # Records in earlier ranges are tiered by now, or are in this range. So an empty range must not lead back to those (J25).
        wal_ranges=written,
    )
    after = stamped(partition, changed)
    return after._replace(wal_ranges=opened_by(after, broker, after.leader_epoch, first))


def _with_replicas(partition: PartitionImage, broker: BrokerImage, last: int, min_in_sync: int) -> PartitionImage:
    newest = partition.wal_ranges[-1]
    if not newest.is_open or newest.wal != broker.wal:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST, f"Write-ahead log {broker.wal} has no open range of the partition."
        )
    wanted = effective_min_in_sync(min_in_sync, len(partition.replicas))
    if len(partition.isr) < wanted:
        raise RequestRejected(
            ErrorCode.INELIGIBLE_REPLICA,
            f"{len(partition.isr)} replicas are in sync, and {wanted} must be: ask again when more are.",
        )
    changed = partition._replace(
        durability=PartitionDurability.REPLICAS,
        leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
        adding=(),
        removing=(),
        wal_ranges=released(partition.wal_ranges, broker.wal, last),
    )
    return stamped(partition, changed)
