"""What must hold in every run, whatever fails. Each checker knows the whole truth, which no broker does.

``lost``     a record that was acknowledged, or that a reader may have seen, is there for ever, at its offset
``reused``   an offset is never given to another record
``doubled``  a batch of an idempotent producer is there once
``reader``   a reader gets what was committed, and nothing else
``seal``     a log has one end, nobody acknowledges beyond it, and the seal stays
``needed``   no object is deleted that a partition needs, and no range leaves a record that is needed
``tier``     segments have what was committed
``memory``   a writer holds no more than it may
``window``   number n + W lands after number n
``writers``  one process writes a log
``damage``   a leader finds what its ranges name
``alive``    when everything is healed, everything works again, and nothing is left that nobody needs
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from app.metadata.wal_ranges import WalId
from app.units import TopicIdPartition
from app.wal.format import WINDOW, WalFooter
from app.wal.writer import WalWriter
from tests.replication_model.violation import Violation
from tests.wal_simulation.bucket import Segment
from tests.wal_simulation.cluster import Image, Mode

if TYPE_CHECKING:
    from tests.wal_simulation.world import World

SLACK_BYTES: Final = 20_000
"""Footers of objects on their way."""


@dataclass(slots=True)
class LogTruth:
    """What is true of one write-ahead log."""

    landed: set[int] = field(default_factory=set)
    """Numbers that have had records."""
    end: int | None = None
    """Where it was sealed."""


class Checkers:
    """They are told what happens, and raise ``Violation``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.truth: dict[TopicIdPartition, list[int]] = defaultdict(list)
        """Values by offset: committed, or read from a log that has ended."""
        self._first: dict[int, int] = {}
        """The first offset of each value."""
        self.logs: dict[WalId, LogTruth] = defaultdict(LogTruth)
        self._begun: set[WalId] = set()
        self.acked = 0
        self.read = 0
        self.take_overs = 0
        self.deleted = 0
        self.resets = 0

    # --- records ----------------------------------------------------------------------------------------------------------

    def leads(self, key: TopicIdPartition, leader_epoch: int, node_id: int, end: int) -> None:
        """A leader goes on at ``end``."""
        record = self._world.log.newest.partitions[key]
        truth = self.truth[key]
        self.take_overs += 1
        # A leader of the past may know less. What it knows is in closed ranges, so it counts.
        if record.leader_epoch == leader_epoch and end < len(truth):
            raise Violation(
                "lost",
                f"broker {node_id} leads {key} by epoch {leader_epoch} from {end} on, committed were {len(truth)}",
            )
        for offset in range(len(truth), end):
            self._extend(key, offset, self._world.value_at(key, offset, node_id))

    def committed(self, key: TopicIdPartition, leader_epoch: int, start: int, values: list[int]) -> None:
        """A leader's high watermark has passed these records."""
        for offset, value in enumerate(values, start):
            self._extend(key, offset, value)

    def _extend(self, key: TopicIdPartition, offset: int, value: int) -> None:
        truth = self.truth[key]
        if offset < len(truth):
            if truth[offset] != value:
                raise Violation("reused", f"offset {offset} of {key} was record {truth[offset]}, and is {value} now")
            return
        if offset > len(truth):
            raise Violation("lost", f"{key} goes on at {offset} after {len(truth)}")
        first = self._first.setdefault(value, offset)
        if offset - first >= self._world.counts[value]:
            raise Violation("doubled", f"record {value} is at {first} and at {offset} of {key}")
        truth.append(value)

    def acknowledged(self, key: TopicIdPartition, base: int, value: int) -> None:
        """A producer was told that its batch is at ``base``."""
        self.acked += 1
        count = self._world.counts[value]
        if self.truth[key][base : base + count] != [value] * count:
            raise Violation("lost", f"record {value} was acknowledged at {base} of {key}, and is not there")

    def producer_resets(self, key: TopicIdPartition, values: list[int]) -> None:
        """A producer gives its id up, because a partition refuses its batches."""
        self.resets += 1
        missing = [value for value in values if value not in self._first]
        if missing:
            raise Violation("alive", f"{key} refuses the batches {values} as out of order, and does not have {missing}")

    def was_read(self, key: TopicIdPartition, offset: int, values: list[int]) -> None:
        """A consumer has read."""
        self.read += len(values)
        if self.truth[key][offset : offset + len(values)] != values:
            raise Violation(
                "reader", f"{key} gave {values} at {offset}, and has {self.truth[key][offset : offset + len(values)]}"
            )

    def damage(self, key: TopicIdPartition, leader_epoch: int, error: Exception) -> None:
        """A leader cannot go on."""
        if self._world.log.newest.partitions[key].leader_epoch == leader_epoch:
            raise Violation("damage", f"{key}: {error}")

    # --- logs -------------------------------------------------------------------------------------------------------------

    def object_stored(self, wal: WalId, number: int, footer: WalFooter) -> None:
        """An object has landed."""
        log = self.logs[wal]
        if footer.is_seal:
            if number not in log.landed:
                if log.end is not None:
                    raise Violation("seal", f"log {wal} is sealed at {log.end} and at {number}")
                log.end = number
            return
        log.landed.add(number)
        if number >= WINDOW and number - WINDOW not in log.landed:
            raise Violation("window", f"object {number} of log {wal} has landed before {number - WINDOW}")

    def object_deleted(self, wal: WalId, number: int, footer: WalFooter) -> None:
        """An object is gone."""
        self.deleted += 1
        log = self.logs[wal]
        if footer.is_seal:
            if number == log.end:
                raise Violation("seal", f"the seal {number} of log {wal} is deleted")
            return
        image = self._world.log.newest
        for key, record in image.partitions.items():
            if not any(each.wal == wal and each.covers(number) for each in record.ranges):
                continue
            if log.end is not None and number >= log.end:
                continue
            floor = self._floor(key)
            for other, footers in ((number, footer), *self._footers(wal)):
                for section in footers.sections:
                    if section.partition != key or section.end_offset <= floor:
                        continue
                    if not any(each.wal == wal and each.covers(other) for each in record.ranges):
                        continue
                    if number in (other, section.state_number):
                        raise Violation(
                            "needed", f"object {number} of log {wal} is deleted, and {key} needs it from {floor} on"
                        )

    def _footers(self, wal: WalId) -> list[tuple[int, WalFooter]]:
        return [(number, stored.footer) for number, stored in self._world.bucket.wals.get(wal, {}).items()]

    def _floor(self, key: TopicIdPartition) -> int:
        manifest = self._world.bucket.manifest(key)
        return max(manifest.tiered_end, manifest.log_start)

    def entry_stored(self, before: Image, image: Image) -> None:
        """An entry of the cluster log is durable."""
        for key, record in image.partitions.items():
            old = before.partitions[key]
            gone = [
                each
                for each in old.ranges
                if not any(one.wal == each.wal and one.first == each.first for one in record.ranges)
            ]
            floor = self._floor(key)
            for each in gone:
                end = self.logs[each.wal].end
                for number, footer in self._footers(each.wal):
                    counts = each.covers(number) and (end is None or number < end)
                    for section in footer.sections:
                        if counts and section.partition == key and section.end_offset > floor:
                            raise Violation(
                                "needed", f"range {each} leaves the record of {key}, which needs it from {floor} on"
                            )

    def sealed(self, wal: WalId, end: int) -> None:
        """A taker takes ``end`` for the end of a log."""
        truth = self.logs[wal]
        if truth.end != end:
            raise Violation("seal", f"a taker takes {end} for the end of log {wal}, and that is {truth.end}")

    def writer_is(self, writer: WalWriter) -> None:
        """The owner of a log has learnt something."""
        log = self.logs[writer.wal]
        if log.end is not None and writer.durable_end > log.end:
            raise Violation(
                "seal",
                f"log {writer.wal} has ended at {log.end}, and its owner acknowledges up to {writer.durable_end}",
            )
        for number in range(max(0, writer.durable_end - WINDOW), writer.durable_end):
            if number not in log.landed:
                raise Violation("lost", f"the owner of log {writer.wal} counts object {number}, which never landed")
        if writer.held_bytes > self._world.plan.buffer_bytes + SLACK_BYTES:
            raise Violation("memory", f"the writer of log {writer.wal} holds {writer.held_bytes} bytes")

    def writer_began(self, wal: WalId) -> None:
        """A process begins to write a log."""
        if wal in self._begun:
            raise Violation("writers", f"log {wal} is begun twice")
        self._begun.add(wal)

    def foreign_object(self, wal: WalId, number: int) -> None:
        """A process finds an object in its log that it has not put there."""
        raise Violation("writers", f"object {number} of log {wal} is of somebody else")

    # --- the tier ---------------------------------------------------------------------------------------------------------

    def segment_tiered(self, key: TopicIdPartition, segment: Segment) -> None:
        """A segment is in the manifest."""
        if tuple(self.truth[key][segment.start : segment.end]) != segment.values:
            raise Violation("tier", f"segment {segment.start} to {segment.end} of {key} is not what was committed")

    # --- the end ----------------------------------------------------------------------------------------------------------

    def at_end(self) -> None:
        """Everything was healed some time ago, and nobody has written for a while."""
        world = self._world
        for client in world.producers:
            if client.unacked:
                raise Violation("alive", f"a producer of {client.key} waits for {len(client.unacked)} batches")
        image = world.log.newest
        for key, record in image.partitions.items():
            truth = self.truth[key]
            broker = world.process_of(record.leader)
            leading = broker.led.get(key) if broker is not None else None
            if leading is None or not leading.serving:
                raise Violation("alive", f"nobody leads {key}")
            if leading.high_watermark != len(truth):
                raise Violation("lost", f"{key} ends at {leading.high_watermark}, committed were {len(truth)}")
            if record.mode is Mode.OBJECT and [each for each in record.ranges if not each.is_open]:
                raise Violation("alive", f"{key} still has the ranges {record.ranges}")
        for consumer in world.consumers:
            if consumer.offset < len(self.truth[consumer.key]):
                raise Violation(
                    "alive", f"a consumer of {consumer.key} is at {consumer.offset} of {len(self.truth[consumer.key])}"
                )
        for wal, objects in world.bucket.wals.items():
            left = [number for number, one in objects.items() if not one.footer.is_seal]
            if image.is_dead(wal) and left:
                raise Violation("alive", f"dead log {wal} still has the objects {left}")
