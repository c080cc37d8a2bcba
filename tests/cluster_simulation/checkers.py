"""One checker for each invariant that a cluster can break. Each knows the whole truth, and raises ``Violation``.

INV-2, INV-5 and INV-7 are held by the checkers of the simulation of one broker.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.core.errors import CorruptionError
from app.hot.log import PartitionLog
from app.metadata.image.draft import ClusterState
from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage
from app.metadata.log import layout
from app.metadata.log.log_format import Entry, decode_entry
from app.metadata.replicas.log_leaders import log_has_ended, orphaned_logs
from tests.cluster_simulation.truth import ReplicatedHistory, Stored, batches_of
from tests.sim.violation import Violation
from tests.simulation.history import Batch

if TYPE_CHECKING:
    from tests.cluster_simulation.machine import ClusterMachine
    from tests.cluster_simulation.world import World

SEALS_IN_A_ROW_MAX: Final = 4


class OneOrder:
    """INV-13: every broker's image is a prefix of the cluster log, and a leader epoch names one leader and one record an offset."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._state = ClusterState()
        self._images: dict[int, ClusterImage] = {}
        self._seen: dict[str, int] = {}
        """The newest entry whose image was compared, by process."""
        self._next = 0

    @property
    def newest(self) -> ClusterImage:
        """What is durable."""
        return self._state.image

    def stored(self, key: str, data: bytes) -> tuple[ClusterImage, ClusterImage, Entry] | None:
        """An object was stored. Returns, for the next entry of the cluster log: the image before and after, and the entry."""
        named = layout.parse_numbered_key(key)
        if named is None or named.is_snapshot or named.prefix != layout.CLUSTER_PREFIX or named.sequence != self._next:
            return None
        entry = decode_entry(key, named.sequence, data)
        before = self._state.image
        try:
            self._state.apply(entry)
        except CorruptionError as error:
            raise Violation("INV-13", f"{key}: {error}") from error
        self._images[self._next] = self._state.image
        self._images.pop(self._next - 400, None)
        self._next += 1
        return before, self._state.image, entry

    def look(self, machine: ClusterMachine) -> None:
        node, process = machine.node, machine.process
        assert node is not None
        assert process is not None
        image = node.cluster.image
        sequence = int(image.sequence)
        if sequence < 0 or self._seen.get(process.name, -1) == sequence:
            return
        if sequence >= self._next:
            raise Violation("INV-13", f"{process.name} has applied entry {sequence}, which is not durable")
        self._seen[process.name] = sequence
        durable = self._images.get(sequence)
        if durable is not None and image != durable:
            raise Violation("INV-13", f"{process.name} has another image at entry {sequence} than the cluster log")

    def leads(self, machine: ClusterMachine, history: ReplicatedHistory, epoch: int) -> None:
        """A broker begins to lead."""
        process = machine.process
        assert process is not None
        if self.newest.level == 0:
            return  # the one broker leads on in its epoch when it is started again
        mine = (machine.node_id, process.name)
        if history.leaders.setdefault(epoch, mine) != mine:
            raise Violation("INV-13", f"{history.name}: epoch {epoch} has leaders {history.leaders[epoch]} and {mine}")

    @staticmethod
    def appended(machine: ClusterMachine, history: ReplicatedHistory, batch: Stored) -> None:
        """A replica has a batch, committed or not."""
        if history.offsets.setdefault((batch.epoch, batch.base), batch.tail) != batch.tail:
            raise Violation(
                "INV-13",
                f"{history.name}: offset {batch.base} of epoch {batch.epoch} is another batch on {machine.name} than elsewhere",
            )


class Members:
    """``member``: a start of a broker has one broker epoch, later ones replace earlier ones, and who is unfenced has applied it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._epochs: dict[UUID, int] = {}

    def changed(self, old: BrokerImage, new: BrokerImage) -> None:
        node_id = int(new.broker_id)
        if old.broker_epoch != new.broker_epoch:
            known = self._epochs.setdefault(new.incarnation, new.broker_epoch)
            if known != new.broker_epoch and self._world.objects is not None and self._has_ended(old):
                known = self._epochs[new.incarnation] = new.broker_epoch  # J14: it has lost its log, and nothing else
            if known != new.broker_epoch:
                raise Violation(
                    "member", f"one start of broker {node_id} has broker epochs {known} and {new.broker_epoch}"
                )
            start = self._world.starts.get(new.incarnation, 0)
            if start < self._world.starts.get(old.incarnation, 0):
                raise Violation("member", f"an earlier start of broker {node_id} replaces a later one")
        elif old.fenced and not new.fenced:
            machine = self._world.machine(node_id)
            node = machine.node
            applied = int(node.cluster.image.sequence) if machine.alive and node is not None else -1
            mine = node is not None and machine.alive and node.membership.view.identity.incarnation == new.incarnation
            if mine and applied < old.changed_at:
                raise Violation(
                    "member", f"broker {node_id} is unfenced, and has applied {applied}, not {old.changed_at}"
                )

    def _has_ended(self, broker: BrokerImage) -> bool:
        """Whether its write-ahead log has ended, or is to end."""
        image = self._world.newest
        return log_has_ended(broker, orphaned_logs(image.topics_by_id.values()))


class Calm:
    """``calm``: who nothing happened to is not fenced, and brokers do not depose each other for ever."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seals = 0

    def entry(self, *, is_seal: bool) -> None:
        self._seals = self._seals + 1 if is_seal else 0
        if self._seals > SEALS_IN_A_ROW_MAX:
            raise Violation("calm", f"{self._seals} seals in a row: brokers depose each other")

    def changed(self, old: BrokerImage, new: BrokerImage) -> None:
        if old.broker_epoch == new.broker_epoch and new.fenced and not old.fenced:
            machine = self._world.machine(int(new.broker_id))
            if not self._world.was_disturbed(machine):
                raise Violation("calm", f"{machine.name} is fenced, and nothing happened to it")


PROMPT_S = 0.4
"""Within which a partition is followed that changed its leader in order: 20 ms (V10), the network, the image, and what this
simulation looks at in steps."""


class Prompt:
    """``prompt``: a partition that changes its leader while nothing goes wrong is followed soon (V10).

    Until all that are in sync have asked the new leader, nothing that it takes is acknowledged.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._since_s: dict[tuple[UUID, int], tuple[int, float]] = {}
        """By partition: the newest leader epoch that was seen, and since when."""

    def look(self, machine: ClusterMachine) -> None:
        """Raises: Violation."""
        node, now_s = machine.node, self._world.loop.time()
        assert node is not None
        for partition in node.partitions.table:
            key = (partition.topic_id, int(partition.index))
            counting = partition.counting
            if not partition.leads or counting is None or key not in self._world.histories:
                continue
            epoch, since_s = self._since_s.get(key, (-1, now_s))
            if partition.leader_epoch > epoch:
                epoch, since_s = self._since_s[key] = (int(partition.leader_epoch), now_s)
            if epoch != partition.leader_epoch or now_s <= since_s + PROMPT_S:
                continue
            for member in partition.in_sync:
                follower = counting.replica(member)
                if follower is not None and follower.stored_end < 0:
                    raise Violation(
                        "prompt",
                        f"{partition.topic}-{partition.index}: n{member} has not asked {machine.name}, which leads since"
                        f" {now_s - since_s:.2f} s",
                    )


@dataclass(slots=True)
class _Seen:
    """What was looked at of one log of one process."""

    log: PartitionLog
    truncations: int
    appended_to: int
    exposed_to: int
    led_epoch: int = -1
    small: tuple[int, int] | None = None
    """Partition epoch and high watermark at the last look, if the leader's own image had too few in sync then (R2)."""


class Replication:
    """INV-1 over failover, INV-3 and INV-4: watches the logs of every replica.

    INV-1: a leader commits what all members of the in-sync set and of the eligible replicas have stored, and no leader comes
    without an acknowledged record. INV-3: what readers could see stays. INV-4: local logs and the tier cover everything.
    """

    def __init__(self, world: World, one_order: OneOrder) -> None:
        self._world = world
        self._one_order = one_order
        self._seen: dict[tuple[str, UUID, int], _Seen] = {}

    def look(self, machine: ClusterMachine) -> None:
        node, process = machine.node, machine.process
        assert node is not None
        assert process is not None
        table = node.partitions.table
        for partition in table:
            history = self._world.histories.get((partition.topic_id, int(partition.index)))
            if history is None or history.deleting:
                continue
            log = partition.log
            key = (process.name, partition.topic_id, int(partition.index))
            seen = self._seen.get(key)
            if seen is None or seen.log is not log or seen.truncations != log.truncations:
                start = int(log.segments()[0].base_offset)
                led = -1 if seen is None else seen.led_epoch
                seen = self._seen[key] = _Seen(log, log.truncations, start, start, led)
            end = int(log.log_end_offset)
            if end > seen.appended_to:
                for batch in batches_of(machine.disk, log, seen.appended_to):
                    self._one_order.appended(machine, history, batch)
                seen.appended_to = end
            leads = partition.leads
            epoch = int(partition.leader_epoch)
            if leads and seen.led_epoch != epoch:
                seen.led_epoch = epoch
                self._one_order.leads(machine, history, epoch)
                self._leads(machine, history, epoch, log)
            high_watermark = int(log.high_watermark)
            if high_watermark > seen.exposed_to and not log._assumes_committed:
                self._exposed(machine, history, epoch, log, seen.exposed_to, high_watermark, leads=leads)
                seen.exposed_to = high_watermark
            if leads:
                self._covers(machine, history, epoch, log)
                topic = node.cluster.image.topics_by_id.get(partition.topic_id)
                if topic is not None and not history.by_log:
                    asked = node.cluster.effective_config(topic).min_insync_replicas
                    small = None
                    if len(partition.in_sync) < min(asked, len(partition.replicas)):
                        small = (partition.partition_epoch, high_watermark)
                    if small and seen.small and small[0] == seen.small[0] and small[1] > seen.small[1]:
                        raise Violation(
                            "INV-1",
                            f"{history.name}: {machine.name} commits up to {high_watermark} with {partition.in_sync} in sync, and"
                            f" min.insync.replicas is {asked}",
                        )
                    seen.small = small

    def _is_stale(self, history: ReplicatedHistory, epoch: int) -> bool:
        newest = self._world.partition_image(history)
        return newest is None or int(newest.leader_epoch) > epoch

    def _leads(self, machine: ClusterMachine, history: ReplicatedHistory, epoch: int, log: PartitionLog) -> None:
        self._world.trace("leads", machine.name, history.name, epoch, int(log.log_end_offset))
        stored = {batch.base: batch for batch in batches_of(machine.disk, log, 0)}
        if history.excused_above is not None and epoch > history.excused_above:
            history.excused_above = None
            history.era_epoch = epoch
            start = int(log.segments()[0].base_offset)
            for base in list(history.bases):
                bound = history.bound[base]
                found = stored.get(base)
                if base >= start and (found is None or not bound.is_in(found.tail, found.epoch)):
                    self._world.trace("excused", history.name, base)
                    history.drop_from(base)
                    break
            history.told_end.clear()
            return
        if epoch < history.era_epoch or self._is_stale(history, epoch):
            return
        local_start = int(log.segments()[0].base_offset)
        for base in history.bases[bisect_left(history.bases, local_start) :]:
            bound = history.bound[base]
            found = stored.get(base)
            if found is None or found.tail != bound.batch.tail:
                raise Violation(
                    "INV-1" if bound.acked else "INV-3",
                    f"{history.name}: {machine.name} leads epoch {epoch} without the"
                    f" {'acknowledged' if bound.acked else 'committed'} batch {bound.batch.number} at {base}; its log is"
                    f" [{local_start}, {log.log_end_offset})",
                )

    def _exposed(
        self,
        machine: ClusterMachine,
        history: ReplicatedHistory,
        epoch: int,
        log: PartitionLog,
        start: int,
        end: int,
        *,
        leads: bool,
    ) -> None:
        """A replica shows readers what is below ``end``."""
        if epoch < history.era_epoch or (history.excused_above is not None and epoch > history.excused_above):
            return
        if history.losses and not leads:
            return  # after an excused loss a replica may show what was lost until it hears of it
        for batch in batches_of(machine.disk, log, start):
            if batch.end > end:
                break
            if batch.is_control:
                history.know_marker(batch.tail, batch.timestamp)
            sent = history.sent.get(batch.tail)
            if sent is None:
                raise Violation(
                    "INV-1", f"{history.name}: at {batch.base} of {machine.name} are bytes that nobody sent"
                )
            self._bind(history, sent, batch, machine)
        if leads and self._world.objects is not None:
            self._world.objects.logs.shown(history, epoch, end, f"leader {machine.name} of epoch {epoch}")
        if leads and not self._is_stale(history, epoch):
            self._stored_by_all(machine, history, epoch, end)

    @staticmethod
    def _bind(history: ReplicatedHistory, sent: Batch, batch: Stored, machine: ClusterMachine) -> None:
        known = history.bound.get(batch.base)
        if known is not None and known.batch is not sent and not known.acked:
            raise Violation(
                "INV-3",
                f"{history.name}: {machine.name} shows batch {sent.number} at {batch.base}, and {known.batch.number} was shown",
            )
        history.bind(sent, batch.base, batch.epoch)

    def _stored_by_all(self, leader: ClusterMachine, history: ReplicatedHistory, epoch: int, end: int) -> None:
        newest = self._world.partition_image(history)
        assert newest is not None
        for member in (*newest.isr, *newest.eligible):
            if int(member) in history.damaged:
                continue
            stored_end = self._world.stored_end(self._world.machine(int(member)), history)
            if stored_end is not None and stored_end < end:
                raise Violation(
                    "INV-1",
                    f"{history.name}: leader {leader.name} of epoch {epoch} commits up to {end}; member n{member} has stored up to"
                    f" {stored_end}",
                )

    def _covers(self, machine: ClusterMachine, history: ReplicatedHistory, epoch: int, log: PartitionLog) -> None:
        if self._is_stale(history, epoch) or log.offline_error is not None:
            return
        state = self._world.one_writer.manifest(history.topic_id, history.index)
        tiered_end = int(state.tiered_end)
        if int(log.log_end_offset) < tiered_end:
            raise Violation(
                "INV-4",
                f"{history.name} ends at {log.log_end_offset} on {machine.name}, below the tiered end {tiered_end}",
            )
        start, local_start = int(log.log_start_offset), int(log.segments()[0].base_offset)
        if start < local_start and tiered_end < local_start:
            raise Violation("INV-4", f"{history.name}: [{max(start, tiered_end)}, {local_start}) is in no tier")

    # --- what clients see ---------------------------------------------------------------------------------------------

    @staticmethod
    def acked(history: ReplicatedHistory, batch: Batch, base: int, losses: int) -> None:
        """An acks=all batch is acknowledged; ``losses`` of the partition when it was sent."""
        if history.deleting:
            return
        if history.excused or losses != history.losses:
            batch.retired = True
            return
        bound = history.bind(batch, base, -1)
        bound.acked = batch.acked = True

    @staticmethod
    def entered(
        world: World,
        history: ReplicatedHistory,
        partition: PartitionImage,
        before: PartitionImage,
        registered: frozenset[int],
    ) -> None:
        """Who enters the in-sync set, or stays in it with a new registration, has what is committed (R1, R6, R7, M3)."""
        if history.excused or partition.recovering or history.losses:
            return
        for broker in partition.isr:
            if broker in before.isr and int(broker) not in registered:
                continue
            if partition.durability.by_log and broker == partition.leader:
                continue  # it needs nothing but the bucket
            stored_end = world.stored_end(world.machine(int(broker)), history)
            lost_at = history.damaged.get(int(broker))
            lost = lost_at is not None and lost_at == world.broker_epochs().get(int(broker))
            if stored_end is not None and stored_end < history.end and not lost:
                raise Violation(
                    "INV-1",
                    f"{history.name}: n{broker} enters the in-sync set with records up to {stored_end} of {history.end}",
                )
