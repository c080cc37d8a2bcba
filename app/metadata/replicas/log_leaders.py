"""Who leads a partition whose records are in write-ahead logs (ADR 0037, J16 to J23). Pure: a partition goes in, another comes out.

Any broker may lead such a partition, because it needs nothing but the bucket. So neither in-sync sets nor eligible replicas mean
anything here: the leader is the only replica. A leadership is bound by its *open range*, which names the log that the leader
writes.

- ``ended``: the leadership is over, and no broker leads. The range stays open: it is *orphaned*, because its broker may still
  write.
- ``wal_changes.wal_sealed``: the log was sealed, and its end is known. The range is closed.
- ``LogLeaders.elect``: a broker becomes the leader of a partition without an open range, and gets a range.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from app.core.turns import Steps, Stepwise, slices, whole
from app.core.units import BrokerId, LeaderEpoch
from app.metadata.image.image import BrokerImage, PartitionImage, TopicImage
from app.metadata.image.records import NOT_SEALED
from app.metadata.image.wal_ranges import PartitionDurability, WalId, WalRange, opened
from app.metadata.replicas.elections import NOBODY, stamped

COUNTED_AT_ONCE: Final = 2_000
"""Partitions of one step: about 0.3 ms."""


def orphaned(partition: PartitionImage) -> WalRange | None:
    """The open range whose broker leads no more; None if there is none. While there is one, no leader is named."""
    if partition.leader != NOBODY or not partition.wal_ranges:
        return None
    newest = partition.wal_ranges[-1]
    return newest if newest.is_open else None


@Stepwise
def orphaned_logs(topics: Iterable[TopicImage]) -> Steps[set[WalId]]:
    """The logs that are to be sealed, because partitions wait for their end."""
    logs: set[WalId] = set()
    for topic in topics:
        for some in slices(topic.partitions, COUNTED_AT_ONCE):
            logs.update([found.wal for partition in some if (found := orphaned(partition)) is not None])
            yield
    return logs


def ended(partition: PartitionImage, brokers: Collection[int]) -> PartitionImage:
    """An entry ends the leaderships of brokers (a fence, a registration, an unregistration; J16, J22).

    Others leave the in-sync set, which means something only while the partition leaves the write-ahead log (J41).
    """
    if partition.leader in brokers:
        return stamped(partition, partition._replace(leader=NOBODY, isr=()))
    isr = tuple([each for each in partition.isr if each not in brokers])
    return partition if len(isr) == len(partition.isr) else stamped(partition, partition._replace(isr=isr))


def first_number(partition: PartitionImage, wal: WalId, told: int) -> int:
    """Where a new range of that log begins: at a number that its broker has told (J19), above its earlier ranges (J20)."""
    return max([told, *(each.last + 1 for each in partition.wal_ranges if each.wal == wal)])


def led(partition: PartitionImage, broker: BrokerImage, told: int) -> PartitionImage:
    """The partition led by another broker, under a new leader epoch and with an open range, as one change.

    ``told``: the number that the broker has told last; 0 if none. The partition has no open range.
    """
    leader = broker.broker_id
    replicas: tuple[BrokerId, ...] = (leader,)
    if partition.durability is PartitionDurability.FROM_OBJECT:
        # They fetch from the leader, and are to be the replicas when the change is complete (J41).
        replicas = (leader, *(each for each in partition.replicas if each != leader))
    after = stamped(
        partition,
        partition._replace(leader=leader, replicas=replicas, isr=(leader,), adding=(), removing=()),
    )
    return after._replace(wal_ranges=opened_by(partition, broker, after.leader_epoch, told))


def opened_by(
    partition: PartitionImage, broker: BrokerImage, leader_epoch: LeaderEpoch, told: int
) -> tuple[WalRange, ...]:
    """The partition's ranges with an open one of a broker's leadership."""
    return opened(partition.wal_ranges, broker.wal, leader_epoch, first_number(partition, broker.wal, told))


def may_lead(broker: BrokerImage) -> bool:
    """Whether a broker may get a range: its log must not have ended (J14)."""
    return broker.active and broker.wal_end == NOT_SEALED


def log_has_ended(broker: BrokerImage, orphans: Collection[WalId]) -> bool:
    """Whether a broker is to register again: its log has ended, or is to end, because the entry that fenced it left ranges open."""
    return broker.wal_end != NOT_SEALED or broker.wal in orphans


class LogLeaders:
    """Elects leaders in one plan. It gives the next leadership to the broker that has the fewest of this kind."""

    def __init__(
        self,
        topics: Iterable[TopicImage],
        brokers: Mapping[int, BrokerImage | None],
        told: Callable[[WalId], int],
    ) -> None:
        """``brokers``: as they are after the change. ``told``: the next number of a broker's log, from its last heartbeat."""
        self._topics = topics
        self._brokers = brokers
        self._told = told
        self._count: dict[BrokerId, int] | None = None
        """By broker that may lead; reckoned when it is first needed."""

    def elect(self, partition: PartitionImage, *, other_than: int = NOBODY, rather: int = NOBODY) -> PartitionImage:
        """The partition with a leader, if it has none, no range is open, and some broker may lead (J23); else the same object.

        ``other_than``: the broker that has just given it up. ``rather``: the one that it was given up for. A reassignment under
        way decides where ``rather`` does not.
        """
        if partition.leader != NOBODY or (partition.wal_ranges and partition.wal_ranges[-1].is_open):
            return partition
        leader = self._choose(partition, other_than, rather)
        if leader is None:
            return partition
        return led(partition, leader, self._told(leader.wal))

    def _choose(self, partition: PartitionImage, other_than: int, rather: int) -> BrokerImage | None:
        count = self._counted()
        candidates = [each for each in count if each != other_than]
        if partition.durability.needs_disks:
            candidates = [each for each in candidates if not self._is_ephemeral(each)]
        if not candidates:
            return None
        wanted = [rather, *partition.adding]
        if partition.durability is PartitionDurability.FROM_OBJECT:
            wanted += partition.replicas  # they have most of the records, and are to be its replicas
        leader = next((BrokerId(each) for each in wanted if each in candidates), None)
        if leader is None:
            leader = min(candidates, key=lambda each: (count[each], each))
        count[leader] += 1
        return self._brokers[leader]

    def _is_ephemeral(self, broker_id: int) -> bool:
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.ephemeral

    def counting(self) -> Steps[None]:
        """Reckon before the first election, in steps. Planning many topics needs it: else ``elect`` reckons at once."""
        if self._count is not None:
            return
        count = {each.broker_id: 0 for each in self._brokers.values() if each is not None and may_lead(each)}
        for topic in self._topics:
            for some in slices(topic.partitions, COUNTED_AT_ONCE):
                for partition in some:
                    if partition.leader in count and partition.durability.by_log:
                        count[partition.leader] += 1
                yield
        self._count = count

    def _counted(self) -> dict[BrokerId, int]:
        if self._count is None:
            whole(self.counting())
        assert self._count is not None
        return self._count
