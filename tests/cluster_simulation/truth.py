"""What a run is held against: what clients were promised, what is durable in the bucket, and which failures excuse a loss.

A partition's records may be lost only if every member of its last in-sync set, and of the eligible replicas, has lost what it
had stored: its disk, or with ``memory`` the power of its machine. The next leader that may lack records says so, and
what it has is the truth from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from app.hot.log import PartitionLog
from app.metadata.image.image import PartitionImage
from app.metadata.image.wal_ranges import PartitionDurability
from app.records.batch import iter_headers
from tests.sim.disk import SimDisk
from tests.simulation.checkers import CRC_POSITION
from tests.simulation.history import PartitionHistory


@dataclass(slots=True, eq=False)
class ReplicatedHistory(PartitionHistory):
    """The truth about one partition. What is bound is committed."""

    replicas: tuple[int, ...] = ()
    leaders: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Broker and process by leader epoch."""
    offsets: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """Batches that any replica appended, by leader epoch and base offset."""
    damaged: dict[int, int] = field(default_factory=dict)
    """Brokers that have lost what they had stored: the broker epoch of before."""
    members: frozenset[int] = frozenset()
    """The last in-sync set, with the eligible replicas."""
    excused_above: int | None = None
    """A leader of a later epoch than this may lack records."""
    era_epoch: int = -1
    """What leaders before this epoch had may be lost."""
    told_end: dict[int, int] = field(default_factory=dict)
    """The highest end that readers were told, by leader epoch."""
    unclean: bool = False
    """``unclean.leader.election.enable``."""
    durability: PartitionDurability = PartitionDurability.REPLICAS
    told_high_watermark: int = 0
    """The highest that readers were told by who led, while no disk mattered."""

    @property
    def by_log(self) -> bool:
        """Whether its records are in write-ahead logs: then no disk that is lost excuses anything."""
        return self.durability.by_log

    def note_image(self, partition: PartitionImage, broker_epochs: dict[int, int]) -> None:
        """A change of the partition is durable."""
        self.durability = partition.durability
        if not self.by_log:
            self.told_high_watermark = 0
        for broker in partition.isr:
            lost_at = self.damaged.get(int(broker))
            if lost_at is not None and broker_epochs.get(int(broker), -1) > lost_at:
                del self.damaged[int(broker)]
        if partition.recovering and partition.leader >= 0 and int(partition.leader) not in self.members:
            before = self.excused_above if self.excused_above is not None else -1
            self.excused_above = max(before, int(partition.leader_epoch) - 1)
        members = frozenset(int(one) for one in (*partition.isr, *partition.eligible))
        if members:
            self.members = members
        self.look_at_members(int(partition.leader_epoch))

    def note_damage(self, broker: int, broker_epoch: int, leader_epoch: int) -> None:
        self.damaged[broker] = broker_epoch
        self.look_at_members(leader_epoch)

    def look_at_members(self, leader_epoch: int) -> None:
        if not self.by_log and self.members and self.members <= self.damaged.keys():
            before = self.excused_above if self.excused_above is not None else -1
            self.excused_above = max(before, leader_epoch)

    @property
    def excused(self) -> bool:
        """Whether a loss is excused that no leader has made good yet."""
        return self.excused_above is not None


class Stored(NamedTuple):
    """A batch in a log."""

    base: int
    end: int
    epoch: int
    tail: bytes
    is_control: bool
    timestamp: int


def batches_of(disk: SimDisk, log: PartitionLog, start: int) -> Iterator[Stored]:
    """The batches of a log's files that end after ``start``, in order."""
    for segment in log.segments():
        if segment.end_offset <= start or segment.end_offset == segment.base_offset:
            continue
        if not disk.exists(segment.path):
            continue
        data = bytes(disk._file(segment.path).current)
        for position, header in iter_headers(data):
            if header.end_offset <= start:
                continue
            if header.base_offset >= log.log_end_offset:
                return
            tail = data[position + CRC_POSITION : position + header.size_bytes]
            yield Stored(
                int(header.base_offset),
                int(header.end_offset),
                int(header.leader_epoch),
                tail,
                header.is_control,
                int(header.max_timestamp),
            )
