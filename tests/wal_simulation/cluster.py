"""The cluster log: a chain of images, each of which is put if absent. Only who read the newest one can append."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from app.metadata.wal_ranges import WalId, WalRange
from app.units import TopicIdPartition
from app.wal.trimming import Registration, has_ended

if TYPE_CHECKING:
    from tests.wal_simulation.bucket import Bucket
    from tests.wal_simulation.process import Process

NOBODY = -1


class Mode(IntEnum):
    """The durability of a partition (J40)."""

    REPLICA = 0
    TO_OBJECT = 1
    OBJECT = 2


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
    home: int = NOBODY
    """The broker with the only local copy, while the mode is not OBJECT."""

    def changed(self, **changes: Any) -> PartitionRecord:
        """The record after a change."""
        return replace(self, partition_epoch=self.partition_epoch + 1, **changes)


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

    def said_of(self, wal: WalId) -> Registration:
        broker = self.brokers.get(wal.broker_id)
        if broker is None:
            return Registration(self.sequence, None)
        return Registration(self.sequence, broker.broker_epoch, -1 if broker.sealed_at is None else broker.sealed_at)

    def is_dead(self, wal: WalId) -> bool:
        """Whether a log has ended (J36)."""
        return has_ended(wal, self.said_of(wal))


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
        self._bucket.ask(process, lambda: self.newest, done)

    def append(self, process: Process, image: Image, done: Callable[[Any], None]) -> None:
        """Outcome: whether ``image`` is in the log under its number."""

        def apply() -> bool:
            if image.sequence < len(self.images):
                return self.images[image.sequence] is image
            if image.sequence != len(self.images):
                return False
            self._bucket.checkers.entry_stored(self.newest, image)
            self.images.append(image)
            return True

        self._bucket.ask(process, apply, done)
