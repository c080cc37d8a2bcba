"""The cluster log: a chain of images, each of which is put if absent. Only who read the newest one can append."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from app.core.units import TopicIdPartition
from app.metadata.image.wal_ranges import WalId, WalRange
from app.wal.trimming import LogRegistration

if TYPE_CHECKING:
    from tests.wal_simulation.bucket import Bucket
    from tests.wal_simulation.process import Process

NOBODY = -1


class Mode(IntEnum):
    """The durability of a partition (J40, J41)."""

    REPLICA = 0
    TO_OBJECT = 1
    OBJECT = 2
    FROM_OBJECT = 3

    @property
    def is_walled(self) -> bool:
        """Whether the leader writes records to its write-ahead log."""
        return self is not Mode.REPLICA

    @property
    def fails_over_by_log(self) -> bool:
        """J42: whether a leader goes on from objects, and not from its disk."""
        return self in (Mode.OBJECT, Mode.FROM_OBJECT)


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    broker_epoch: int
    incarnation: int
    fenced: bool = False
    sealed_at: int | None = None
    """Where the log of this broker epoch was ended (J14)."""


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    leader: int
    leader_epoch: int
    partition_epoch: int
    ranges: tuple[WalRange, ...]
    mode: Mode = Mode.OBJECT
    members: tuple[int, ...] = ()
    """The brokers with local copies, while the mode is not OBJECT."""
    offline: bool = False
    """The store has lost what the record names (J21)."""

    def changed(self, **changes: Any) -> PartitionRecord:
        """The record after a change."""
        return replace(self, partition_epoch=self.partition_epoch + 1, **changes)

    @property
    def open_range(self) -> WalRange | None:
        return self.ranges[-1] if self.ranges and self.ranges[-1].is_open else None


@dataclass(frozen=True, slots=True)
class Image:
    """The cluster as of one entry."""

    sequence: int = 0
    controller: int = NOBODY
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerRecord] = field(default_factory=dict)
    partitions: Mapping[TopicIdPartition, PartitionRecord] = field(default_factory=dict)

    def next(self, **changes: Any) -> Image:
        """The image after an entry."""
        return replace(self, sequence=self.sequence + 1, **changes)

    def with_partitions(self, changed: Mapping[TopicIdPartition, PartitionRecord], **changes: Any) -> Image:
        return self.next(partitions={**self.partitions, **changed}, **changes)

    def wal_of(self, node_id: int) -> WalId | None:
        """The present log of a broker."""
        broker = self.brokers.get(node_id)
        return WalId(node_id, broker.broker_epoch) if broker is not None else None

    def is_orphaned(self, record: PartitionRecord) -> bool:
        """Whether nobody writes the open range of a partition any more (J16)."""
        found = record.open_range
        return found is not None and (record.leader == NOBODY or self.wal_of(record.leader) != found.wal)

    def orphaned_wals(self) -> list[WalId]:
        """Logs that are to be sealed, so that their ranges can be closed."""
        return sorted({each.ranges[-1].wal for each in self.partitions.values() if self.is_orphaned(each)})

    def said_of(self, wal: WalId) -> LogRegistration:
        """What is known of the broker of a log (J36)."""
        broker = self.brokers.get(wal.broker_id)
        if broker is None:
            return LogRegistration(self.sequence, None)
        return LogRegistration(self.sequence, broker.broker_epoch, -1 if broker.sealed_at is None else broker.sealed_at)


class ClusterLog:
    """What is stored."""

    def __init__(self, bucket: Bucket, first: Image) -> None:
        self._bucket = bucket
        self.images = [Image(), first]

    @property
    def newest(self) -> Image:
        return self.images[-1]

    def read(self, process: Process, done: Callable[[Any], None]) -> None:
        """Outcome: the newest image."""
        self._bucket.ask_main(process, lambda: self.newest, done)

    def append(self, process: Process, image: Image, done: Callable[[Any], None]) -> None:
        """Outcome: whether ``image`` is in the log under its number."""

        def apply() -> bool:
            if image.sequence < len(self.images):
                return self.images[image.sequence] is image
            if image.sequence != len(self.images):
                return False
            self._bucket.checkers.entry_stored(self.newest, image)
            self.images.append(image)
            if image.partitions.keys() != self.images[-2].partitions.keys():
                self._bucket.checkers.topics_changed()
            return True

        self._bucket.ask_main(process, apply, done)
