"""Which objects of a write-ahead log may be deleted (ADR 0037, J32 to J38). Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from app.core.limits import WAL_OBJECTS_MAX
from app.core.units import Offset, TopicIdPartition
from app.metadata.image.wal_ranges import WalId, WalRange
from app.wal.format import WINDOW
from app.wal.writer import DurableObject

NOT_LED: Final = -1
NO_DELETION: Final = Offset(0)


class _Need(NamedTuple):
    number: int
    end_offset: int
    state_number: int
    leader_epoch: int


class _Partition:
    __slots__ = ("image_epoch", "leader_epoch", "needs", "newest", "ranges")

    def __init__(self) -> None:
        self.leader_epoch = NOT_LED
        """Of this broker's present leadership."""
        self.image_epoch = -1
        """The leader epoch in the newest image that was told, and the ranges of this log there."""
        self.ranges: tuple[WalRange, ...] = ()
        self.needs: deque[_Need] = deque()
        self.newest: _Need | None = None
        """Its last section, needed or not: while that stays, its state object stays, too."""

    def counts(self, number: int, leader_epoch: int) -> bool:
        """Whether a section of that leadership in that object is anything to anybody."""
        return (
            leader_epoch == self.leader_epoch or leader_epoch >= self.image_epoch or self._covers(number, leader_epoch)
        )

    def _covers(self, number: int, leader_epoch: int) -> bool:
        return any(each.leader_epoch == leader_epoch and each.covers(number) for each in self.ranges)


class WalNeeds:
    """The objects that partitions need of the living log of this process. Its owner reports events, and deletes below
    ``trim_end``."""

    def __init__(self, wal: WalId, *, window: int = WINDOW) -> None:
        self._wal = wal
        self._window = window
        self._partitions: dict[TopicIdPartition, _Partition] = {}
        self._sizes: deque[tuple[int, int]] = deque()
        """(number, bytes) of acknowledged objects that are not deleted."""
        self.held_bytes = 0

    def note_led(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        """This broker begins to write a partition to this log. No sections are kept of partitions that were never named here.

        Tell the record of the partition by ``note_image``, too: it shows the needs of this broker's earlier leaderships.
        """
        self._partitions.setdefault(partition, _Partition()).leader_epoch = leader_epoch

    def note_object(self, durable: DurableObject) -> None:
        """An object is acknowledged. Leaderships of its sections may have ended meanwhile, and partitions may be gone."""
        self._sizes.append((durable.number, durable.size_bytes))
        self.held_bytes += durable.size_bytes
        for section in durable.sections:
            found = self._partitions.get(section.partition)
            if found is not None and found.counts(durable.number, section.leader_epoch):
                found.newest = _Need(durable.number, section.end_offset, section.state_number, section.leader_epoch)
                found.needs.append(found.newest)

    def note_floor(
        self,
        partition: TopicIdPartition,
        tiered_end: Offset,
        log_start: Offset = NO_DELETION,
        *,
        may_be_repeated: bool = False,
    ) -> None:
        """The manifest says that everything below is tiered, and below ``log_start`` deleted (J33). Its entry is durable.

        Only the leader of the partition may say so. It says so after it has read the manifest for the first time, too: what it held
        from an earlier leadership may be tiered. The last section is needed until it is tiered, whether its records were deleted or
        not: nothing else has the producers (J32).

        ``may_be_repeated``: a producer may still repeat batches of the last section. It is needed then though it is tiered, because
        the footer of a segment knows only the last batch of each producer.
        """
        found = self._partitions.get(partition)
        if found is not None and found.leader_epoch != NOT_LED:
            needs, floor = found.needs, max(tiered_end, log_start)
            while len(needs) > 1 and needs[0].end_offset <= floor:
                needs.popleft()
            if not may_be_repeated and len(needs) == 1 and needs[0].end_offset <= tiered_end:
                needs.popleft()

    def note_image(self, partition: TopicIdPartition, *, leader_epoch: int, ranges: Collection[WalRange]) -> None:
        """The record of a partition in a newer image (J34). Objects of earlier leaderships are needed while a range covers them.

        If its leader epoch is greater than that of this broker's leadership, that is over, by a release or not.
        """
        found = self._partitions.get(partition)
        if found is None or leader_epoch < found.image_epoch:
            return
        found.image_epoch = leader_epoch
        found.ranges = tuple(each for each in ranges if each.wal == self._wal)
        if leader_epoch > found.leader_epoch:
            found.leader_epoch = NOT_LED
        found.needs = deque(need for need in found.needs if found.counts(need.number, need.leader_epoch))
        if found.leader_epoch == NOT_LED and not found.needs and not found.ranges:
            del self._partitions[partition]

    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """All of which something is known."""
        return tuple(self._partitions)

    def note_gone(self, partition: TopicIdPartition) -> None:
        """An image has no such partition any more. Objects with sections of it may still be on their way."""
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

    def is_long(self, bytes_max: int, objects_max: int = WAL_OBJECTS_MAX) -> bool:
        """Whether the log has more than so much that is not deleted (J38)."""
        return self.held_bytes > bytes_max or len(self._sizes) > objects_max

    def to_roll(self, bytes_max: int, objects_max: int = WAL_OBJECTS_MAX) -> Iterator[TopicIdPartition]:
        """Partitions that hold more than so much back, the oldest first (J38): they are to be tiered up to their ends.

        Also if their records were deleted: the last section is needed until it is tiered.
        """
        if not self.is_long(bytes_max, objects_max):
            return
        excess, too_many = self.held_bytes - bytes_max, len(self._sizes) - objects_max
        last = -1
        for number, size_bytes in self._sizes:
            if excess <= 0 and too_many <= 0:
                break
            last, excess, too_many = number, excess - size_bytes, too_many - 1
        holding = [
            (partition.needs[0].state_number, key)
            for key, partition in self._partitions.items()
            if partition.needs and partition.needs[0].state_number <= last and partition.leader_epoch != NOT_LED
        ]
        yield from (key for _, key in sorted(holding))


class LogRegistration(NamedTuple):
    """The registration of the broker of a log in an image."""

    sequence: int
    """Of the image: the number of its last entry."""
    broker_epoch: int | None
    """Of the broker's record; None if there is none."""
    wal_end: int = -1
    """Where the log of that broker epoch was ended; -1 if the record has no such number (J14)."""


def has_ended(wal: WalId, said: LogRegistration) -> bool:
    """Whether an image says that a log has ended (J36).

    An image from before the broker's registration says nothing: it has no such broker, or an earlier broker epoch.
    """
    if wal.broker_epoch > said.sequence:
        return False
    if said.broker_epoch is None or said.broker_epoch > wal.broker_epoch:
        return True
    return said.broker_epoch == wal.broker_epoch and said.wal_end >= 0


def deletable(
    wal: WalId, numbers: Iterable[int], end: int, ranges: Collection[WalRange], said: LogRegistration
) -> list[int]:
    """Objects of a sealed log that no partition needs (J11, J12, J36); none if the image does not have the end of the log.

    ``numbers``: the objects that are there. ``end``: where the log was sealed. ``ranges``: those of this log in the records of all
    partitions, by the image of ``said``. An open one is of a leadership that has ended, and whose end is not written yet.
    """
    if not has_ended(wal, said):
        return []
    assert said.broker_epoch != wal.broker_epoch or said.wal_end == end, (wal, end, said)
    return [number for number in numbers if number != end and not any(each.covers(number) for each in ranges)]
