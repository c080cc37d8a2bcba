"""What must hold in every run, whatever fails. Each checker knows the whole truth, which no broker does.

``INV-1``  an acknowledged acks=all record is lost by no failures that leave one member of the last in-sync set, or of the eligible
           leader replicas, with its disk; and each member of both has it already when it is acknowledged
``INV-2``  one writer of a manifest at a time
``INV-3``  what a consumer may have read does not disappear, and the end that it is told does not go back
``INV-4``  no gap and no contradiction between local logs and the tier
``INV-13`` one order: every image is a prefix of the cluster log, a leader epoch names one leader, an offset of an epoch one record
``member`` a start of a broker has one broker epoch, a later start replaces an earlier one, and who is unfenced has applied its
           registration
``calm``   a broker that nothing happened to is not fenced, and brokers do not depose each other for ever
``alive``  when everything is healed, everything works again
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage
from tests.replication_model.bucket import LogEntry
from tests.replication_model.disk import Record, ReplicaLog
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.replication_model.world import World


SEALS_IN_A_ROW_MAX: Final = 4


@dataclass(slots=True)
class Segment:
    """A segment in the tier."""

    start: int
    end: int
    records: list[Record]


@dataclass(slots=True)
class History:
    """The truth about one partition."""

    index: int
    committed: list[Record] = field(default_factory=list)
    """What was below an exposed high watermark, from offset 0."""
    acked: dict[int, Record] = field(default_factory=dict)
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    """Values by leader epoch and offset."""
    leaders: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Broker and process by leader epoch."""
    told_end: dict[int, int] = field(default_factory=dict)
    """The highest end that consumers were told, by leader epoch."""
    damaged: dict[int, int] = field(default_factory=dict)
    """Brokers that lost records or their disk: the broker epoch of before."""
    members: frozenset[int] = frozenset()
    """The last in-sync set with the eligible replicas."""
    excused_above: int | None = None
    """Every member lost its disk: a leader of a later epoch need not have the records."""
    era_epoch: int = -1
    """Records of leaders before this epoch may be lost: their loss was excused."""
    excuses: int = 0
    tiered: list[Segment] = field(default_factory=list)

    @property
    def tiered_end(self) -> int:
        return self.tiered[-1].end if self.tiered else 0

    def tiered_records(self) -> list[Record]:
        return [record for segment in self.tiered for record in segment.records]


class Checkers:
    """They are told what happens, and raise ``Violation``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.histories: dict[int, History] = {}
        self._manifest_writers: dict[str, tuple[str, int]] = {}
        self._applied: dict[int, tuple[bytes, int]] = {}
        self._epochs_of_starts: dict[UUID, int] = {}
        self._newest_start: dict[int, int] = {}
        self._applied_under: dict[int, int] = {}
        """The newest entry that a start applied, by its broker epoch."""
        self._seals_in_a_row = 0

    def history(self, index: int) -> History:
        """Of one partition."""
        return self.histories.setdefault(index, History(index))

    # --- the cluster log ----------------------------------------------------------------------------------------------

    def entry_stored(self, entry: LogEntry, before: ClusterImage, image: ClusterImage) -> None:
        """An entry of the cluster log is durable."""
        applied = self._applied.get(entry.sequence)
        if applied is not None and applied[0] != entry.nonce:
            raise Violation(
                "INV-13", f"broker {applied[1]} applied another entry {entry.sequence} than the one that became durable"
            )
        self._seals_in_a_row = self._seals_in_a_row + 1 if entry.is_seal else 0
        if self._seals_in_a_row > SEALS_IN_A_ROW_MAX:
            raise Violation("calm", f"{self._seals_in_a_row} seals in a row: brokers depose each other")
        if before.brokers is not image.brokers:
            for broker_id, broker in image.brokers.items():
                old = before.brokers.get(broker_id)
                if old is not None and old != broker:
                    self._broker_changed(old, broker)
        topic = image.topics_by_id.get(self._world.topic_id)
        if topic is not None and topic is not before.topics_by_id.get(self._world.topic_id):
            old_topic = before.topics_by_id.get(self._world.topic_id)
            for partition in topic.partitions:
                if old_topic is not None:
                    entered = set(partition.isr) - set(old_topic.partitions[partition.partition_index].isr)
                    self._look_at_entered(partition, {int(broker) for broker in entered})
                self._partition_changed(partition, image)

    def _broker_changed(self, old: BrokerImage, broker: BrokerImage) -> None:
        node_id = int(broker.broker_id)
        if broker.broker_epoch != old.broker_epoch:
            known = self._epochs_of_starts.setdefault(broker.incarnation, broker.broker_epoch)
            start = self._world.starts.get(broker.incarnation, 0)
            if known != broker.broker_epoch:
                raise Violation(
                    "member", f"one start of broker {node_id} has broker epochs {known} and {broker.broker_epoch}"
                )
            if start < self._newest_start.get(node_id, 0):
                raise Violation("member", f"an earlier start of broker {node_id} replaces a later one")
            self._newest_start[node_id] = start
        elif old.fenced and not broker.fenced:
            applied = self._applied_under.get(broker.broker_epoch, -1)
            if applied < old.changed_at:
                raise Violation(
                    "member", f"broker {node_id} is unfenced, and has applied {applied}, not {old.changed_at}"
                )
        elif broker.fenced and not old.fenced and not self._world.was_disturbed(node_id):
            raise Violation("calm", f"broker {node_id} is fenced, and nothing happened to it")

    def entry_applied(self, broker: int, broker_epoch: int, entry: LogEntry) -> None:
        """A broker applies an entry. ``broker_epoch``: what it is registered under, or about to be."""
        if broker_epoch >= 0:
            self._applied_under[broker_epoch] = max(entry.sequence, self._applied_under.get(broker_epoch, -1))
        durable = self._world.bucket.logs["cluster"].get(entry.sequence)
        if durable is not None and durable.nonce != entry.nonce:
            raise Violation("INV-13", f"broker {broker} applies entry {entry.sequence}, which is not that of the log")
        self._applied[entry.sequence] = (entry.nonce, broker)

    def _partition_changed(self, partition: PartitionImage, image: ClusterImage) -> None:
        history = self.history(partition.partition_index)
        for broker in partition.isr:
            lost_at = history.damaged.get(broker)
            if lost_at is not None and broker in image.brokers and image.brokers[broker].broker_epoch > lost_at:
                del history.damaged[broker]
        members = frozenset(partition.isr) | frozenset(partition.eligible)
        if partition.recovering and partition.leader >= 0 and partition.leader not in history.members:
            history.excused_above = max(history.excused_above or -1, partition.leader_epoch - 1)
        if members:
            history.members = frozenset(int(broker) for broker in members)
        self._look_at_members(history)

    def _look_at_entered(self, partition: PartitionImage, entered: set[int]) -> None:
        """Who enters the set has what is committed (R1, R6, R7)."""
        history = self.history(partition.partition_index)
        if history.excused_above is not None or partition.recovering:
            return
        for broker in entered:
            log = self._world.machines[broker].disk.logs.get(history.index)
            end = log.end if log is not None else 0
            if end < len(history.committed) and not self._lost_since(broker, history):
                raise Violation(
                    "INV-1",
                    f"partition {history.index}: broker {broker} enters the set with {end} of {len(history.committed)} records",
                )

    def _lost_since(self, broker: int, history: History) -> bool:
        """Whether the broker lost records under the broker epoch that is registered: the proposal was made before."""
        lost_at = history.damaged.get(broker)
        return lost_at is not None and lost_at == self._world.newest.brokers[broker].broker_epoch  # type: ignore[index]

    def _look_at_members(self, history: History) -> None:
        if history.members and history.members <= history.damaged.keys():
            epoch = int(self._world.newest_partition(history.index).leader_epoch)
            history.excused_above = max(history.excused_above if history.excused_above is not None else -1, epoch)

    # --- failures -----------------------------------------------------------------------------------------------------

    def disk_damaged(self, broker: int) -> None:
        """A machine lost records: its disk is another one, an old one, or lost what was not synced."""
        registered = self._world.newest.brokers.get(broker)
        for history in self.histories.values():
            history.damaged[broker] = registered.broker_epoch if registered is not None else -1
            self._look_at_members(history)

    # --- logs ---------------------------------------------------------------------------------------------------------

    def appended(self, broker: int, index: int, offset: int, records: list[Record]) -> None:
        """A replica appends."""
        offsets = self.history(index).offsets
        for at, (epoch, value) in enumerate(records, offset):
            if offsets.setdefault((epoch, at), value) != value:
                raise Violation(
                    "INV-13",
                    f"partition {index}: offset {at} of epoch {epoch} is {value} on broker {broker}, and was "
                    f"{offsets[epoch, at]}",
                )

    def leads(self, broker: int, process: str, index: int, epoch: int, log: ReplicaLog, high_watermark: int) -> None:
        """A broker begins to serve as leader."""
        history = self.history(index)
        if history.leaders.setdefault(epoch, (broker, process)) != (broker, process):
            raise Violation(
                "INV-13",
                f"partition {index}: epoch {epoch} has leaders {history.leaders[epoch]} and {(broker, process)}",
            )
        if log.start > history.tiered_end:
            raise Violation(
                "INV-4", f"partition {index}: the leader begins at {log.start}, the tier ends at {history.tiered_end}"
            )
        whole = history.tiered_records()[: log.start] + log.records
        if history.excused_above is not None and epoch > history.excused_above:
            history.excused_above = None
            history.era_epoch = epoch
            history.excuses += 1
            common = _common(history.committed, whole)
            history.committed[common:] = whole[common:high_watermark]
            history.acked = {offset: record for offset, record in history.acked.items() if offset < common}
        elif epoch < history.era_epoch or self._is_stale(index, epoch):
            return
        for offset, record in history.acked.items():
            if offset >= len(whole) or whole[offset] != record:
                raise Violation(
                    "INV-1",
                    f"partition {index}: broker {broker} leads epoch {epoch} without the acknowledged record {record} "
                    f"at {offset}; its log ends at {log.end}",
                )
        common = _common(history.committed, whole)
        if common < len(history.committed):
            raise Violation(
                "INV-3",
                f"partition {index}: broker {broker} leads epoch {epoch} and lacks {history.committed[common]} at {common},"
                " which consumers may have read",
            )
        tier = history.tiered_records()
        if _common(tier, whole) < min(len(tier), len(whole)):
            raise Violation(
                "INV-4", f"partition {index}: broker {broker} leads epoch {epoch} with other records than the tier"
            )

    def exposed(
        self, broker: int, index: int, epoch: int, log: ReplicaLog, start: int, end: int, *, leader: bool
    ) -> None:
        """A replica has raised the high watermark that it serves readers by to ``end``. It knows leader ``epoch``."""
        history = self.history(index)
        if epoch < history.era_epoch:
            return
        if history.excused_above is not None and epoch > history.excused_above:
            return  # a follower of a leader that has not begun: nothing new can be committed
        committed = history.committed
        for offset in range(max(start, log.start), end):
            record = log.records[offset - log.start]
            if offset == len(committed):
                committed.append(record)
            elif offset > len(committed):
                # Below its start the log has what the tier has.
                committed += history.tiered_records()[len(committed) : offset]
                if offset != len(committed):
                    raise Violation(
                        "INV-4", f"partition {index}: broker {broker} has {offset}, and the tier ends before it"
                    )
                committed.append(record)
            elif committed[offset] != record:
                raise Violation(
                    "INV-3",
                    f"partition {index}: broker {broker} serves {record} at {offset}, where {committed[offset]} was served",
                )
        if leader and not self._is_stale(index, epoch):
            self._stored_by_all(history, broker, epoch, end)

    def begins_exposed(self, broker: int, index: int, epoch: int, log: ReplicaLog, start: int, end: int) -> None:
        """A follower serves readers up to ``end`` from its start on (A4). After an excused loss it may serve what was lost."""
        if not self.history(index).excuses and self.history(index).excused_above is None:
            self.exposed(broker, index, epoch, log, start, end, leader=False)

    def _is_stale(self, index: int, epoch: int) -> bool:
        return int(self._world.newest_partition(index).leader_epoch) > epoch

    def _stored_by_all(self, history: History, leader: int, epoch: int, end: int) -> None:
        partition = self._world.newest_partition(history.index)
        for member in (*partition.isr, *partition.eligible):
            if member in history.damaged:
                continue
            log = self._world.machines[int(member)].disk.logs.get(history.index)
            stored_end = 0 if log is None else log.synced_end if self._world.plan.disk else log.end
            if stored_end < end:
                raise Violation(
                    "INV-1",
                    f"partition {history.index}: leader {leader} of epoch {epoch} commits up to {end}; member {member} has stored"
                    f" up to {stored_end}",
                )

    def committed_by(self, index: int, members: int, min_in_sync: int) -> None:
        """A leader raises its high watermark while the newest set that it knows has so many members (R2)."""
        if members < min_in_sync:
            raise Violation(
                "INV-1", f"partition {index}: {members} in sync commit a record, and {min_in_sync} are asked for"
            )

    def acknowledged(self, index: int, epoch: int, offset: int, record: Record) -> None:
        """An acks=all record is acknowledged."""
        history = self.history(index)
        if epoch >= history.era_epoch:
            history.acked[offset] = record

    def told_end(self, index: int, epoch: int, end: int) -> None:
        """A consumer is told the latest offset."""
        history = self.history(index)
        if epoch < history.era_epoch:
            return
        for before, told in history.told_end.items():
            if history.era_epoch <= before <= epoch and told > end:
                raise Violation(
                    "INV-3", f"partition {index}: the end {end} in epoch {epoch}, after {told} in epoch {before}"
                )
        history.told_end[epoch] = max(end, history.told_end.get(epoch, 0))

    # --- the tier -----------------------------------------------------------------------------------------------------

    def told_divergence(
        self, broker: int, index: int, epoch: int, log: ReplicaLog, last_epoch: int, told: tuple[int, int]
    ) -> None:
        """A leader tells a follower the greatest epoch that is at most ``last_epoch``, and where it ends.

        Both are those of its whole history: that of the tier up to its local start, and its own from there on.
        """
        history = self.history(index)
        if epoch < history.era_epoch or history.excused_above is not None or self._is_stale(index, epoch):
            return
        whole = [record_epoch for record_epoch, _ in history.tiered_records()[: log.start] + log.records]
        end = next((offset for offset, each in enumerate(whole) if each > last_epoch), len(whole))
        true = (whole[end - 1] if end else -1, end)
        if told != true:
            raise Violation(
                "INV-4",
                f"partition {index}: leader {broker} of epoch {epoch} says that {told} is the end of epoch {last_epoch}, and"
                f" with the tier it is {true}",
            )

    def manifest_stored(self, index: int, entry: LogEntry) -> None:
        """An entry of a manifest is durable."""
        history = self.history(index)
        name = f"manifest-{index}"
        writer = self._manifest_writers.get(name, ("", -1))
        if entry.is_seal:
            if entry.epoch < writer[1]:
                raise Violation("INV-2", f"partition {index}: a seal of epoch {entry.epoch} after {writer[1]}")
            self._manifest_writers[name] = (entry.writer_id, entry.epoch)
            return
        if (entry.writer_id, entry.epoch) != writer:
            raise Violation("INV-2", f"partition {index}: {entry.writer_id} writes the manifest that {writer} sealed")
        what, segment = entry.records
        if what != "finished":
            return
        if segment.start != history.tiered_end:
            raise Violation(
                "INV-4",
                f"partition {index}: a segment from {segment.start} where the tier ends at {history.tiered_end}",
            )
        if entry.epoch >= history.era_epoch and history.excused_above is None:
            known = history.committed[segment.start : segment.end]
            if known != segment.records:
                raise Violation(
                    "INV-4", f"partition {index}: uncommitted records in the tier, [{segment.start}, {segment.end})"
                )
        history.tiered.append(segment)

    def dropped(self, broker: int, index: int, log: ReplicaLog) -> None:
        """A broker deleted local segments."""
        if log.start > self.history(index).tiered_end:
            raise Violation(
                "INV-4", f"partition {index}: broker {broker} deleted what is not in the tier, up to {log.start}"
            )


def _common(first: list[Record], second: list[Record]) -> int:
    for offset, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return offset
    return min(len(first), len(second))
