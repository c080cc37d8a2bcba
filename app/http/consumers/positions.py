"""How far an instance is in each partition: the next offset, the one that its client is known to have, the committed one. Pure.

A record is *delivered* when the response with it begins to be sent. The client is *known to have* it when its next request for
records comes. Only records that the client is known to have are committed by the instance itself, except at its deletion.

Tests: ``tests/http/consumers/test_positions.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from app.core.units import Offset, TopicPartition
from app.records.record import Record

Read = tuple[TopicPartition, Record]


@dataclass(slots=True)
class Page:
    """The records of one response."""

    records: list[Read] = field(default_factory=list)
    bytes: int = 0
    """Of keys and values."""
    starts: dict[TopicPartition, Offset] = field(default_factory=dict)
    """Positions from which the page was read."""
    ends: dict[TopicPartition, Offset] = field(default_factory=dict)
    """Positions behind the page."""
    tenures: dict[TopicPartition, int] = field(default_factory=dict)
    """The instance's tenures of the partitions at that time."""

    def add(self, partition: TopicPartition, record: Record) -> None:
        self.records.append((partition, record))
        self.bytes += len(record.key or b"") + len(record.value or b"")
        self.ends[partition] = Offset(record.offset + 1)

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the records of all other partitions."""
        kept = set(partitions)
        if self.starts.keys() <= kept:
            return
        self.records = [one for one in self.records if one[0] in kept]
        for places in (self.starts, self.ends):
            for gone in places.keys() - kept:
                del places[gone]

    def cut(self, count: int) -> None:
        """Keep the first ``count`` records only. The others are read again."""
        for partition, record in reversed(self.records[count:]):
            self.ends[partition] = Offset(record.offset)
        del self.records[count:]


class Positions:
    """The positions of an instance."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, Offset] = {}
        self._known: dict[TopicPartition, Offset] = {}
        self._committed: dict[TopicPartition, Offset] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._next

    def position(self, partition: TopicPartition) -> Offset:
        """Offset of the next record."""
        return self._next[partition]

    def missing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those without a position."""
        return [one for one in partitions if one not in self._next]

    def begin(self, committed: Mapping[TopicPartition, Offset], reset: Mapping[TopicPartition, Offset]) -> None:
        """Begin at the group's committed offsets, and at the positions that ``auto.offset.reset`` gave. Only the latter need a
        commit: without one, the next member would begin at its own reset, behind records that were delivered here."""
        for positions in (committed, reset):
            self._next.update(positions)
            self._known.update(positions)
        self._committed.update(committed)

    def seek(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Go on at positions that the client names. The client knows of them, and a commit says them."""
        self._next.update(positions)
        self._known.update(positions)

    def deliver(self, page: Page) -> None:
        """The page goes to the client now. Partitions that were sought elsewhere meanwhile stay where they are."""
        for partition, end in page.ends.items():
            if self._next.get(partition) == page.starts.get(partition):
                self._next[partition] = end

    def client_has_all(self) -> None:
        """The client is known to have all that was delivered."""
        self._known.update(self._next)

    def uncommitted(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, Offset]:
        """Positions behind the records that the client is known to have, where no commit says them."""
        return {
            one: offset
            for one, offset in self._known.items()
            if self._committed.get(one) != offset and (partitions is None or one in partitions)
        }

    def positions(self) -> dict[TopicPartition, Offset]:
        """All positions."""
        return dict(self._next)

    def was_committed(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        for partition, offset in offsets.items():
            if partition in self._next:
                self._committed[partition] = offset

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions."""
        for places in (self._next, self._known, self._committed):
            for gone in partitions:
                places.pop(gone, None)

    def retain(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all other partitions."""
        kept = set(partitions)
        for places in (self._next, self._known, self._committed):
            for gone in places.keys() - kept:
                del places[gone]
