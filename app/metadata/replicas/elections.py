"""Who leads a partition (ADR 0024, E1 to E5). Pure: a partition goes in, and the partition with its leader comes out.

Leaders are taken in the order of the replicas. When a broker dies, the second replicas of its partitions lead. So its leaderships
spread over the survivors as evenly as placement has spread the second replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from app.core.units import BrokerId, LeaderEpoch
from app.metadata.image.image import PartitionImage

NOBODY: Final = BrokerId(-1)
"""The leader of a partition that no broker can lead."""

Active = Callable[[BrokerId], bool]
"""Whether a broker may be elected: it is registered, unfenced and not stopping (M6)."""


class Elected(NamedTuple):
    """The outcome of an election."""

    partition: PartitionImage
    """The partition itself if nothing changed."""
    unclean: bool
    """Whether the leader may lack committed records (E3, E4)."""


def elect(
    partition: PartitionImage, active: Active, *, unclean: bool = False, prefer_other_than: BrokerId | None = None
) -> Elected:
    """The partition with the leader that the rules E1 to E4 give it. A leader that may go on stays.

    ``unclean``: any living replica may lead if no other can (E3). ``prefer_other_than``: a leader that is about to stop. It
    stays only if no other replica can lead without loss (M13).

    The eligible replicas are not computed here: ``replica_changes`` does that, because it needs ``min.insync.replicas``.
    """
    assert not partition.durability.by_log, partition
    leader, isr = partition.leader, partition.isr
    if leader != prefer_other_than and leader in isr and active(leader):
        return Elected(partition, False)
    for broker in partition.replicas:
        if broker in isr and broker != prefer_other_than and active(broker):
            return Elected(stamped(partition, partition._replace(leader=broker, last_known_eligible=())), False)
    for broker in partition.replicas:
        if broker in partition.eligible and broker != prefer_other_than and active(broker):
            others = tuple(each for each in partition.eligible if each != broker)
            changed = partition._replace(leader=broker, isr=(broker,), eligible=others, last_known_eligible=())
            return Elected(stamped(partition, changed), False)
    if leader == prefer_other_than and leader in isr:
        return Elected(partition, False)
    if not isr and not partition.eligible and len(partition.last_known_eligible) == 1:
        last = partition.last_known_eligible[0]
        if active(last):
            # No other broker can have more records than a single replica (ADR 0018), so its election loses nothing. An earlier loss
            # is noted all the same (J46).
            return _alone(partition, last, unclean=len(partition.replicas) > 1)
    if unclean:
        for broker in partition.replicas:
            if active(broker):
                return _alone(partition, broker, unclean=True)
    return Elected(stamped(partition, partition._replace(leader=NOBODY)), False)


def preferred(partition: PartitionImage, active: Active) -> PartitionImage:
    """The partition led by its first replica if that is alive and in sync, else as it is (E5)."""
    first = partition.replicas[0]
    if partition.durability.by_log:
        return partition  # its leader is its only replica
    if partition.leader == first or first not in partition.isr or not active(first):
        return partition
    return stamped(partition, partition._replace(leader=first))


def was_unclean(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether the change from ``before`` to ``after`` elected a leader that may lack committed records."""
    leader = after.leader
    return (
        after.recovering
        and leader not in (NOBODY, before.leader)
        and leader not in before.isr
        and leader not in before.eligible
    )


def stamped(before: PartitionImage, after: PartitionImage) -> PartitionImage:
    """``after`` with the epochs of one change from ``before``. Returns: ``before`` itself if nothing changes.

    The leader epoch rises by one if the leader changes, also to none, or if ``after`` has raised it already (E2). The partition
    epoch rises by one with every change. An unclean election in ``after`` is one of the new leader epoch.
    """
    ended = after.leader != before.leader or after.leader_epoch > before.leader_epoch
    leader_epoch = LeaderEpoch(before.leader_epoch + ended)
    after = after._replace(leader_epoch=leader_epoch, partition_epoch=before.partition_epoch)
    if after.unclean_epoch > before.unclean_epoch:
        after = after._replace(unclean_epoch=leader_epoch)
    return before if after == before else after._replace(partition_epoch=before.partition_epoch + 1)


def _alone(partition: PartitionImage, broker: BrokerId, *, unclean: bool) -> Elected:
    """Led by a replica that was in no set. Its history is the partition's now, so no other replica is eligible."""
    changed = partition._replace(
        leader=broker,
        isr=(broker,),
        eligible=(),
        last_known_eligible=(),
        recovering=partition.recovering or unclean,
        unclean_epoch=partition.leader_epoch + 1,
    )
    return Elected(stamped(partition, changed), unclean)
