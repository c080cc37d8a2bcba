"""What must hold in every run, whatever fails. Each checker knows the whole truth, which no broker does.

``lost``     a record that was acknowledged, or that a reader may have seen, is there for ever, at its offset
``reused``   an offset is never given to another record
``doubled``  a batch of an idempotent producer is there once
``reader``   a reader gets what was committed, all of it, and nothing else; nothing of transactions that are open or aborted
``seal``     a log has one end, nobody acknowledges beyond it, and the seal stays
``needed``   no object is deleted that a partition needs, and no range leaves a record that is needed
``tier``     segments have what was committed
``memory``   a writer holds no more than it may
``held``     a log in the bucket has no more than wal.retention.bytes for long
``window``   number n + W lands after number n
``writers``  one process writes a log
``damage``   a leader finds what its ranges name
``alive``    when everything is healed, everything works again, and nothing is left that nobody needs

Some of them restate a rule: they find a broken rule before it does harm. Where rules are taken back one by one they are muted, and
only the harm counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from app.core.units import TopicIdPartition
from app.metadata.image.wal_ranges import WalId
from app.wal.format import WalFooter
from app.wal.trimming import has_ended
from app.wal.writer import WalWriter
from tests.sim.violation import Violation
from tests.wal_simulation.bucket import Segment, Stored
from tests.wal_simulation.cluster import Image, Mode, PartitionRecord

if TYPE_CHECKING:
    from tests.wal_simulation.leading import Fetched, Leading
    from tests.wal_simulation.world import World

SLACK_BYTES: Final = 20_000
"""Footers of objects on their way."""

RESTATING: Final = frozenset({"seal", "needed", "window", "writers"})
"""Checkers that would find any breach of a rule, harmful or not."""


@dataclass(slots=True)
class LogTruth:
    """What is true of one write-ahead log."""

    landed: set[int] = field(default_factory=set)
    """Numbers that have had records."""
    back: set[int] = field(default_factory=set)
    """Numbers that came back after they were deleted, because a put was late."""
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
        self.damaged: set[TopicIdPartition] = set()
        """Partitions of which the store has lost something: they may be refused, but nothing wrong may be served."""
        self.acked = 0
        self.read = 0
        self.take_overs = 0
        self.deleted = 0
        self.resets = 0

    # --- records ----------------------------------------------------------------------------------------------------------

    def leads(self, leading: Leading, end: int) -> None:
        """A leader goes on at ``end``."""
        key = leading.key
        record = self._world.log.newest.partitions.get(key)
        if record is None:
            return
        truth = self.truth[key]
        self.take_overs += 1
        # A leader of the past may know less. What it knows is in closed ranges, so it counts.
        if record.leader_epoch == leading.leader_epoch and end < len(truth):
            raise Violation(
                "lost",
                f"broker {leading.broker.node_id} leads {key} by epoch {leading.leader_epoch} from {end} on, committed were "
                f"{len(truth)}",
            )
        for offset in range(len(truth), end):
            self._extend(key, offset, self._world.value_at(leading, offset))

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

    def producer_resets(self) -> None:
        """A producer takes the next epoch, because a partition refuses its batches."""
        self.resets += 1

    def was_read(self, key: TopicIdPartition, offset: int, found: Fetched, *, committed: bool) -> None:
        """A consumer has read from ``offset`` on."""
        world, truth = self._world, self.truth[key]
        if found.kind == "reset":
            if found.at > world.bucket.manifest(key).log_start:
                raise Violation("reader", f"{key} says that it begins at {found.at}")
            return
        if found.kind == "damage":
            if key not in self.damaged:
                raise Violation("reader", f"{key} says that offset {found.at} is damaged")
            return
        at, values = found.at, found.values
        self.read += len(values)
        if at != offset and at > world.bucket.manifest(key).log_start:
            raise Violation("reader", f"{key} was read at {offset}, and gave offset {at}")
        if truth[at : at + len(values)] != values:
            raise Violation("reader", f"{key} gave {values} at {at}, and has {truth[at : at + len(values)]}")
        if committed:
            self._check_committed(key, found)

    def _check_committed(self, key: TopicIdPartition, found: Fetched) -> None:
        """A consumer drops records of the transactions that the broker names, and gets all others."""
        world = self._world
        for position, value in enumerate(found.values, found.at):
            if value in world.markers or value not in world.transactions:
                continue
            producer_id = world.producer_of[value]
            dropped = any(
                each.producer_id == producer_id and each.first_offset <= position <= each.last_offset
                for each in found.aborted
            )
            match world.transactions[value]:
                case None:
                    raise Violation("reader", f"{key} gave record {value} at {position}, whose transaction is open")
                case True if dropped:
                    raise Violation("reader", f"{key} names the committed record {value} at {position} as aborted")
                case False if not dropped:
                    raise Violation("reader", f"{key} gave record {value} at {position}, which is aborted")

    def damage(self, key: TopicIdPartition, leader_epoch: int, error: Exception) -> None:
        """A leader cannot go on."""
        record = self._world.log.newest.partitions.get(key)
        if record is not None and record.leader_epoch == leader_epoch and key not in self.damaged:
            raise Violation("damage", f"{key}: {error}")

    def _restated(self, invariant: str, text: str) -> None:
        """A rule is broken, and perhaps nothing else."""
        assert invariant in RESTATING, invariant
        if not self._world.muted:
            raise Violation(invariant, text)

    # --- logs -------------------------------------------------------------------------------------------------------------

    def object_stored(self, wal: WalId, number: int, footer: WalFooter) -> None:
        """An object has landed."""
        log = self.logs[wal]
        if footer.is_seal:
            if number not in log.landed:
                if log.end is not None:
                    self._restated("seal", f"log {wal} is sealed at {log.end} and at {number}")
                log.end = number
            return
        if number in log.landed:
            log.back.add(number)
        log.landed.add(number)
        window = self._world.plan.window
        if number >= window and number - window not in log.landed:
            self._restated("window", f"object {number} of log {wal} has landed before {number - window}")

    def object_deleted(self, wal: WalId, number: int, footer: WalFooter) -> None:
        """An object is gone."""
        self.deleted += 1
        log = self.logs[wal]
        if footer.is_seal:
            if number == log.end:
                self._restated("seal", f"the seal {number} of log {wal} is deleted")
            return
        image = self._world.log.newest
        for key, record in image.partitions.items():
            if not any(each.wal == wal and each.covers(number) for each in record.ranges):
                continue
            if log.end is not None and number >= log.end:
                continue
            floor = self.floor(key)
            for other, footers in ((number, footer), *self._footers(wal)):
                for section in footers.sections:
                    if section.partition != key or section.end_offset <= floor:
                        continue
                    if not any(each.wal == wal and each.covers(other) for each in record.ranges):
                        continue
                    if number in (other, section.state_number):
                        self._restated(
                            "needed", f"object {number} of log {wal} is deleted, and {key} needs it from {floor} on"
                        )

    def _footers(self, wal: WalId) -> list[tuple[int, WalFooter]]:
        return [(number, stored.footer) for number, stored in self._world.bucket.wals.get(wal, {}).items()]

    def floor(self, key: TopicIdPartition) -> int:
        """Below it no record is needed."""
        manifest = self._world.bucket.manifest(key)
        return max(manifest.tiered_end, manifest.log_start)

    def topics_changed(self) -> None:
        """A topic was made or deleted."""
        self._world.note_topics()

    def entry_stored(self, before: Image, image: Image) -> None:
        """An entry of the cluster log is durable."""
        for key, record in image.partitions.items():
            old = before.partitions.get(key)
            if old is None or record.mode is Mode.REPLICA:  # the members have everything that is not tiered (J41)
                continue
            gone = [
                each
                for each in old.ranges
                if not any(one.wal == each.wal and one.first == each.first for one in record.ranges)
            ]
            floor = self.floor(key)
            for each in gone:
                end = self.logs[each.wal].end
                for number, footer in self._footers(each.wal):
                    counts = each.covers(number) and (end is None or number < end)
                    for section in footer.sections:
                        if counts and section.partition == key and section.end_offset > floor:
                            self._restated(
                                "needed", f"range {each} leaves the record of {key}, which needs it from {floor} on"
                            )

    def landed_above(self, wal: WalId, durable_end: int) -> bool:
        """Whether objects are there of which their writer does not know that they count."""
        return any(number >= durable_end for number in self.logs[wal].landed)

    def sealed(self, wal: WalId, end: int) -> None:
        """A taker takes ``end`` for the end of a log."""
        truth = self.logs[wal]
        if truth.end != end:
            self._restated("seal", f"a taker takes {end} for the end of log {wal}, and that is {truth.end}")

    def writer_is(self, writer: WalWriter) -> None:
        """The owner of a log has learnt something."""
        log = self.logs[writer.wal]
        if log.end is not None and writer.durable_end > log.end:
            self._restated(
                "seal",
                f"log {writer.wal} has ended at {log.end}, and its owner acknowledges up to {writer.durable_end}",
            )
        for number in range(max(0, writer.durable_end - self._world.plan.window), writer.durable_end):
            if number not in log.landed:
                raise Violation("lost", f"the owner of log {writer.wal} counts object {number}, which never landed")
        if writer.held_bytes > self._world.plan.buffer_bytes + SLACK_BYTES:
            raise Violation("memory", f"the writer of log {writer.wal} holds {writer.held_bytes} bytes")

    def writer_began(self, wal: WalId) -> None:
        """A process begins to write a log."""
        if wal in self._begun:
            self._restated("writers", f"log {wal} is begun twice")
        self._begun.add(wal)

    def foreign_object(self, wal: WalId, number: int) -> None:
        """A process finds an object in its log that it has not put there."""
        self._restated("writers", f"object {number} of log {wal} is of somebody else")

    # --- the tier ---------------------------------------------------------------------------------------------------------

    def segment_tiered(self, key: TopicIdPartition, segment: Segment) -> None:
        """A segment is in the manifest."""
        if tuple(self.truth[key][segment.start : segment.end]) != segment.values:
            raise Violation("tier", f"segment {segment.start} to {segment.end} of {key} is not what was committed")

    # --- the end ----------------------------------------------------------------------------------------------------------

    def at_end(self) -> None:
        """Everything was healed some time ago, and nobody has written for a while."""
        world = self._world
        image = world.log.newest
        sound = {key: record for key, record in image.partitions.items() if key not in self.damaged}
        for key, record in sound.items():
            self._check_leader(key, record)
        for client in world.producers:
            if client.key in sound and not client.is_done:
                raise Violation("alive", f"a producer of {client.key} waits for {len(client.unacked)} batches")
        for consumer in world.consumers:
            if consumer.key in sound and consumer.offset < len(self.truth[consumer.key]):
                raise Violation(
                    "alive", f"a consumer of {consumer.key} is at {consumer.offset} of {len(self.truth[consumer.key])}"
                )
        if not self.damaged:
            for wal, objects in world.bucket.wals.items():
                self._check_rest(wal, {number: one for number, one in objects.items() if not one.footer.is_seal})

    def _check_leader(self, key: TopicIdPartition, record: PartitionRecord) -> None:
        truth = self.truth[key]
        broker = self._world.process_of(record.leader)
        leading = broker.led.get(key) if broker is not None else None
        if leading is None or not leading.serving:
            raise Violation("alive", f"nobody leads {key}")
        if leading.high_watermark != len(truth):
            raise Violation("lost", f"{key} ends at {leading.high_watermark}, committed were {len(truth)}")
        manifest = self._world.bucket.manifest(key)
        nothing_to_tier = manifest.log_start == len(truth)
        if not nothing_to_tier and [each for each in record.ranges if not each.is_open]:
            raise Violation("alive", f"{key} still has the ranges {record.ranges}")

    def _check_rest(self, wal: WalId, objects: Mapping[int, Stored]) -> None:
        """What is left of a log at the end."""
        world = self._world
        image = world.log.newest
        if has_ended(wal, image.said_of(wal)):
            needed = [each for record in image.partitions.values() for each in record.ranges if each.wal == wal]
            left = [number for number in objects if not any(each.covers(number) for each in needed)]
            if left:
                raise Violation("alive", f"log {wal} has ended and still has the objects {left}")
            return
        process = world.process_of(wal.broker_id)
        if process is None or process.writer is None or process.writer.wal != wal:
            return
        newest = process.writer.durable_end - (process.needs._window + 1)
        old = {number: one for number, one in objects.items() if number < newest}
        states = [
            each.state_number for number, one in objects.items() if number >= newest for each in one.footer.sections
        ]
        held = sum(len(one.data) for number, one in old.items() if number < min(states, default=newest))
        if held > world.plan.retention_bytes + max((len(one.data) for one in objects.values()), default=0):
            raise Violation("held", f"log {wal} has {held} bytes in its old objects {sorted(old)}")
        first = min((self._first_needed(wal, key, objects, newest) for key in image.partitions), default=newest)
        left = [number for number in old if number < first and number not in self.logs[wal].back]
        if left:
            raise Violation("alive", f"living log {wal} still has the objects {left}, which nobody needs")

    def _first_needed(self, wal: WalId, key: TopicIdPartition, objects: Mapping[int, Stored], newest: int) -> int:
        """The first object of a living log that a partition may need: for what is not tiered, and for the newest objects."""
        record = self._world.log.newest.partitions[key]
        tiered_end = self._world.bucket.manifest(key).tiered_end
        first = 1 << 60
        for number, stored in objects.items():
            for section in stored.footer.sections:
                covered = any(each.wal == wal and each.covers(number) for each in record.ranges)
                if section.partition == key and ((covered and section.end_offset > tiered_end) or number >= newest):
                    first = min(first, section.state_number)
        return first
