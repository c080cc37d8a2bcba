"""Which objects of a write-ahead log may be deleted (ADR 0037, J32 to J38). Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from app.metadata.wal_ranges import WalId, WalRange
from app.units import Offset, TopicIdPartition
from app.wal.format import WINDOW
from app.wal.writer import DurableObject


class _Need(NamedTuple):
    number: int
    end_offset: int
    state_number: int


class _Partition:
    __slots__ = ("needs", "newest", "released_at")

    def __init__(self) -> None:
        self.needs: deque[_Need] = deque()
        self.newest: _Need | None = None
        """Its last section, needed or not: while that stays, its state object stays, too."""
        self.released_at = -1
        """-1 while this broker leads; else the partition epoch at which it gave the partition up."""


class WalNeeds:
    """What partitions need of the living log of this process. Its owner tells what happens, and deletes below ``trim_end``."""

    def __init__(self, wal: WalId, *, window: int = WINDOW) -> None:
        self._wal = wal
        self._window = window
        self._partitions: dict[TopicIdPartition, _Partition] = {}
        self._sizes: deque[tuple[int, int]] = deque()
        """(number, bytes) of acknowledged objects that are not deleted."""
        self.held_bytes = 0

    def note_object(self, durable: DurableObject) -> None:
        """An object is acknowledged."""
        self._sizes.append((durable.number, durable.size_bytes))
        self.held_bytes += durable.size_bytes
        for section in durable.sections:
            partition = self._partitions.setdefault(section.partition, _Partition())
            partition.newest = _Need(durable.number, section.end_offset, section.state_number)
            partition.needs.append(partition.newest)

    def note_floor(self, partition: TopicIdPartition, floor: Offset) -> None:
        """The manifest's entry is durable, and says that everything below is tiered or deleted (J33).

        Only the leader of the partition may say so. What another broker has tiered is told by ``note_image``.
        """
        found = self._partitions.get(partition)
        if found is not None and found.released_at < 0:
            while found.needs and found.needs[0].end_offset <= floor:
                found.needs.popleft()

    def note_released(self, partition: TopicIdPartition, partition_epoch: int) -> None:
        """This broker gives the partition up, by a request that names this partition epoch (J34)."""
        found = self._partitions.get(partition)
        if found is not None:
            found.released_at = partition_epoch

    def note_image(self, partition: TopicIdPartition, partition_epoch: int, ranges: Collection[WalRange]) -> None:
        """The record of a partition that this broker has given up, in a newer image (J34)."""
        found = self._partitions.get(partition)
        if found is not None and 0 <= found.released_at < partition_epoch:
            mine = [each for each in ranges if each.wal == self._wal]
            found.needs = deque(need for need in found.needs if any(each.covers(need.number) for each in mine))
            if not found.needs:
                del self._partitions[partition]

    def note_led_again(self, partition: TopicIdPartition) -> None:
        """This broker leads a partition again that it had given up: its own floor counts again."""
        found = self._partitions.get(partition)
        if found is not None:
            found.released_at = -1

    def note_gone(self, partition: TopicIdPartition) -> None:
        """An image has no such partition any more."""
        self._partitions.pop(partition, None)

    def trim_end(self, durable_end: int) -> int:
        """All objects below may be deleted (J13, J32)."""
        kept = end = durable_end - (self._window + 1)
        for partition in self._partitions.values():
            if partition.needs:
                end = min(end, partition.needs[0].state_number)
            if partition.newest is not None and partition.newest.number >= kept:
                end = min(end, partition.newest.state_number)
        return max(0, end)

    def note_deleted(self, end: int) -> None:
        """All objects below are deleted."""
        while self._sizes and self._sizes[0][0] < end:
            self.held_bytes -= self._sizes.popleft()[1]

    def to_roll(self, bytes_max: int) -> Iterator[TopicIdPartition]:
        """Partitions whose old records hold more than ``bytes_max`` back, the oldest first (J38)."""
        excess = self.held_bytes - bytes_max
        if excess <= 0:
            return
        last = -1
        for number, size_bytes in self._sizes:
            last, excess = number, excess - size_bytes
            if excess <= 0:
                break
        holding = [
            (partition.needs[0].state_number, key)
            for key, partition in self._partitions.items()
            if partition.needs and partition.needs[0].state_number <= last and partition.released_at < 0
        ]
        yield from (key for _, key in sorted(holding))


def deletable(numbers: Iterable[int], end: int, ranges: Collection[WalRange]) -> list[int]:
    """Objects of a sealed log that nobody needs (J11, J12, J36).

    ``numbers``: the objects that are there. ``end``: where the log was sealed. ``ranges``: those of this log in the records of all
    partitions, by an image that has the end of the log.
    """
    assert not any(each.is_open for each in ranges), ranges
    return [number for number in numbers if number != end and not any(each.covers(number) for each in ranges)]
