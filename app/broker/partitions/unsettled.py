"""Records of the partitions that have work left: each with its stage. Synchronous, without I/O.

A partition without a record here is settled: it follows, or leads with its manifest read. So the memory is that of the work.

Tests: ``tests/broker/test_next_step.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.broker.partitions.next_step import CHECKED_LATE, UNSETTLED, Stage
from app.core.units import TopicIdPartition
from app.replication.roles import Role

if TYPE_CHECKING:
    from app.replication.partition import Partition


RETRY_S_MIN: Final = 0.5
RETRY_S_MAX: Final = 30.0
"""Pauses between two attempts to do the work that is left. Each is twice as long as the one before."""
STARTED_AT_ONCE: Final = 16
"""Attempts started before the event loop serves other work. Each takes about 0.1 ms."""

_SETTLED: Final = {Role.LEADER: Stage.LEADING, Role.FOLLOWER: Stage.FOLLOWING, Role.OFFLINE: Stage.CONTRADICTED}
"""By role: the stage without a record."""


@dataclass(slots=True, eq=False)
class Unsettled:
    """A partition that has work left. A partition that is named anew gets a new record, so an attempt knows its own."""

    partition: Partition
    stage: Stage
    since_s: float = 0.0
    """Loop time at which it was named. Footers of ended write-ahead logs that were read before may be too old (J15)."""
    named: int = -1
    """The leader epoch in which it was named."""
    was_in_sync: bool = False
    """Whether it was in the in-sync set, so that its log has to agree with the manifest (T10)."""
    bumped_above: int | None = None
    """The highest known leader epoch at the last raise of its epoch."""


class UnsettledPartitions:
    """The records, by stage and key. A key has one record at most."""

    def __init__(self) -> None:
        self._by_stage: dict[Stage, dict[TopicIdPartition, Unsettled]] = {stage: {} for stage in UNSETTLED}

    def get(self, key: TopicIdPartition) -> Unsettled | None:
        """The record of a partition; None if it is settled."""
        for records in self._by_stage.values():
            if records and (one := records.get(key)) is not None:
                return one
        return None

    def stage_of(self, partition: Partition) -> Stage:
        """The stage of a partition that has a log here. If damage was found while it was named, it is offline."""
        one = self.get(partition.key)
        if one is None or one.partition is not partition:
            return _SETTLED[partition.role]
        return Stage.OFFLINE if partition.role is Role.OFFLINE else one.stage

    def begin(self, one: Unsettled) -> None:
        """A settled partition has work left now."""
        key = one.partition.key
        assert self.get(key) is None, f"{one.partition} has a record in another stage"
        self._by_stage[one.stage][key] = one

    def put_offline(self, one: Unsettled) -> None:
        """Damage was found: keep the record, in the stage OFFLINE."""
        assert one.stage in CHECKED_LATE
        key = one.partition.key
        removed = self._by_stage[one.stage].pop(key)
        assert removed is one
        one.stage = Stage.OFFLINE
        self._by_stage[Stage.OFFLINE][key] = one

    def settle(self, key: TopicIdPartition) -> None:
        """No work is left, or the partition is given up. A repeated call does nothing."""
        for records in self._by_stage.values():
            if records and records.pop(key, None) is not None:
                return

    def holds(self, one: Unsettled) -> bool:
        """Whether this record is still the one of its partition: it was not settled, nor named anew."""
        return self._by_stage[one.stage].get(one.partition.key) is one

    def of(self, *stages: Stage) -> dict[TopicIdPartition, Unsettled]:
        """A copy of the records of these stages, by key. No key is hashed anew, so a copy of 10,000 takes some 0.1 ms."""
        records: dict[TopicIdPartition, Unsettled] = {}
        for stage in stages:
            records |= self._by_stage[stage]
        return records

    def count(self, *stages: Stage) -> int:
        """The number of partitions in these stages."""
        return sum(len(self._by_stage[stage]) for stage in stages)
