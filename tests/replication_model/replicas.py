"""The replicas of one broker: what it leads, what it follows, and the tier.

The decisions are those of ``InSync`` and ``Following``. Here is what is done with them: logs, requests, manifests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.core.errors import ErrorCode
from app.core.units import BrokerId, Offset
from app.metadata.changes.broker_changes import ProposedSet
from app.metadata.image.image import ClusterImage, PartitionImage
from tests.replication_model.checkers import Segment
from tests.replication_model.clients import LatestAsked, ProduceAsked, Produced
from tests.replication_model.disk import Record, ReplicaLog
from tests.replication_model.following_shell import FetchAsked, Fetched, FollowerShell
from tests.replication_model.leading_shell import LeaderShell
from tests.replication_model.network import REFUSED
from tests.replication_model.numbered import NumberedModel, Outcome

if TYPE_CHECKING:
    from tests.replication_model.bucket import LogEntry
    from tests.replication_model.process import Process

FETCH_RECORDS_MAX: Final = 12
FETCH_WAIT_MS: Final = 400.0
SYNC_MS: Final = (2.0, 25.0)
TIER_EVERY_MS: Final = 1_500.0
SEGMENT_RECORDS: Final = 5
LOCAL_RECORDS_MIN: Final = 6
UPLOAD_MS: Final = (20.0, 300.0)
PROPOSE_MS: Final = 200.0
PROPOSAL_TIMEOUT_MS: Final = 1_500.0


class Waiting(NamedTuple):
    """A producer that waits for acks=all."""

    offset: int
    record: Record
    reply: Callable[[Any], None]


class Replica:
    """One replica on one broker."""

    def __init__(self, replicas: Replicas, index: int, log: ReplicaLog) -> None:
        self.replicas = replicas
        self.process = replicas.process
        self.index = index
        self.log = log
        self.epoch = -1
        """The leader epoch that it knows and works under."""
        self.leader: LeaderShell | None = None
        self.follower: FollowerShell | None = None
        self.offline = ""
        """Why it neither leads nor follows any more."""
        self.high_watermark = self.process.rules.first_high_watermark(log)
        self.exposed_end = log.start
        self.syncing = False
        self.parked: list[tuple[FetchAsked, Callable[[Any], None]]] = []
        self.waiting: list[Waiting] = []
        self.manifest = NumberedModel(
            self.process, self.process.world.bucket, f"manifest-{index}", self.process.name, self._manifest_entry
        )
        self._tier_epochs: list[tuple[int, int]] = []
        self.segments: list[Segment] = []
        """The finished ones of the manifest entries that were seen."""
        self.busy_tiering = False

    @property
    def tiered_end(self) -> int:
        """As far as this broker has seen."""
        return self.segments[-1].end if self.segments else 0

    @property
    def unclean_epoch(self) -> int:
        """Of the last unclean election that this broker knows of."""
        topic = self.process.image.topics_by_id.get(self.process.world.topic_id)
        return -1 if topic is None else topic.partitions[self.index].unclean_epoch

    @property
    def stored_end(self) -> int:
        """S1."""
        return self.log.synced_end if self.process.world.plan.disk else self.log.end

    # --- high watermark -----------------------------------------------------------------------------------------------

    def expose(self) -> None:
        """A role begins: readers are served by the high watermark from before."""
        if self.high_watermark > self.exposed_end:
            self.process.world.checkers.begins_exposed(
                self.process.node_id, self.index, self.epoch, self.log, self.exposed_end, self.high_watermark
            )
            self.exposed_end = self.high_watermark

    def raise_high_watermark(self, end: int) -> None:
        """It is at least ``end``: tell readers."""
        if end > self.high_watermark:
            self.high_watermark = end
            world = self.process.world
            if self.leader is not None:
                world.checkers.committed_by(self.index, *self.leader.in_sync_counts)
            if end > self.exposed_end:
                world.checkers.exposed(
                    self.process.node_id,
                    self.index,
                    self.epoch,
                    self.log,
                    self.exposed_end,
                    end,
                    leader=self.leader is not None,
                )
                self.exposed_end = end
            while self.waiting and self.waiting[0].offset < end:
                waiting = self.waiting.pop(0)
                waiting.reply(Produced("", waiting.offset, waiting.record[0]))
            self.wake()

    def truncate_to(self, end: int) -> None:
        """Cut the log."""
        self.process.trace(f"p{self.index} truncates from {self.log.end} to {end}")
        self.log.truncate_to(end)
        # Only after an unclean election is either above the end (A3).
        self.high_watermark = min(self.high_watermark, self.log.end)
        self.log.checkpoint = min(self.log.checkpoint, self.log.end)
        self.exposed_end = min(self.exposed_end, self.log.end)

    def restart_at(self, offset: int, epochs: list[tuple[int, int]]) -> None:
        """Go on at the tiered end (T5)."""
        self.process.trace(f"p{self.index} starts anew at {offset}, from [{self.log.start}, {self.log.end})")
        self.log.restart_at(offset, epochs)
        self.high_watermark = self.exposed_end = offset

    def append(self, records: list[Record]) -> None:
        """Append, and sync if that is asked for."""
        world = self.process.world
        world.checkers.appended(self.process.node_id, self.index, self.log.end, records)
        self.log.append(records)

    def sync(self, done: Callable[[], None]) -> None:
        """fdatasync."""
        end, truncations = self.log.end, self.log.truncations

        def synced() -> None:
            if self.log.truncations == truncations:
                self.log.synced_end = max(self.log.synced_end, end)
            done()

        self.process.after(self.process.rng.uniform(*SYNC_MS), synced)

    def wake(self) -> None:
        """Something changed: answer the fetches that wait."""
        parked, self.parked = self.parked, []
        for asked, reply in parked:
            reply(self.replicas.read(self, asked))

    # --- roles --------------------------------------------------------------------------------------------------------

    def resign(self, why: str) -> None:
        """End whatever role it has."""
        if self.leader is not None:
            self.process.trace(f"p{self.index} resigns from epoch {self.epoch}: {why}")
        self.leader = None
        self.follower = None
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each.reply(Produced("not leader"))
        parked, self.parked = self.parked, []
        for _, reply in parked:
            reply(Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # --- the tier -----------------------------------------------------------------------------------------------------

    def _manifest_entry(self, entry: LogEntry) -> None:
        if not entry.is_seal and entry.records[0] == "finished":
            segment: Segment = entry.records[1]
            self.segments.append(segment)
            for offset, (epoch, _) in enumerate(segment.records, segment.start):
                if not self._tier_epochs or self._tier_epochs[-1][0] != epoch:
                    self._tier_epochs.append((epoch, offset))
            self.log.known_tiered_end, self.log.known_tiered_epoch = segment.end, segment.records[-1][0]

    def tier_epochs(self) -> list[tuple[int, int]]:
        """Of the footers."""
        return self._tier_epochs

    @property
    def parts_from_tier(self) -> bool:
        """Whether the last tiered record is another one here. Where two logs have the same epoch, all before is the same."""
        last = self.tiered_end - 1
        if last < self.log.start:
            return False
        epoch = max(epoch for epoch, start in self.tier_epochs() if start <= last)
        return int(self.log.epochs.epoch_of(Offset(last))) != epoch

    def tend_tier(self) -> None:
        """Upload as leader; follow the manifest and apply local retention as anybody."""
        if self.busy_tiering or not self.process.world.plan.tier:
            return
        leader = self.leader
        end = self.tiered_end + SEGMENT_RECORDS
        limit = self.high_watermark if self.process.rules.uploads_below_high_watermark else self.log.end
        if leader is not None and leader.serving and end <= limit and self.log.start <= self.tiered_end:
            self.busy_tiering = True
            if self.process.rules.seals_manifests and (
                not self.manifest.sealed or self.manifest.writer != (self.process.name, self.epoch)
            ):
                self.manifest.poll(lambda ok: self._seal_manifest(ok, self.epoch))
            else:
                self.manifest.sealed = True
                self._upload(Outcome.OURS, self.epoch)
        elif self.process.rng.random() < 0.5:
            self.busy_tiering = True
            self.manifest.poll(self._manifest_read)

    def learn_tier(self) -> None:
        """Read the manifest: its epochs are asked for (T7)."""
        if not self.busy_tiering:
            self.busy_tiering = True
            self.manifest.poll(self._manifest_read)

    def _seal_manifest(self, ok: bool, epoch: int) -> None:
        if not ok or self.leader is None or self.epoch != epoch:
            self.busy_tiering = False
            return
        self.manifest.seal(epoch, lambda outcome: self._upload(outcome, epoch))

    def _upload(self, outcome: Outcome, epoch: int) -> None:
        start = self.tiered_end
        end = start + SEGMENT_RECORDS
        leader = self.leader
        limit = self.high_watermark if self.process.rules.uploads_below_high_watermark else self.log.end
        if (
            outcome is not Outcome.OURS
            or leader is None
            or self.epoch != epoch
            or end > limit
            or self.log.start > start
        ):
            self.busy_tiering = False
            return
        records = self.log.read(start, end)
        segment = Segment(start, end, records)

        def started(outcome: Outcome) -> None:
            if outcome is Outcome.OURS:
                self.process.after(self.process.rng.uniform(*UPLOAD_MS), uploaded)
            else:
                self.busy_tiering = False

        def uploaded() -> None:
            # T1 rests on the seal: this leader may be over by now, and does not know it.
            self.manifest.append(self.manifest.next_sequence, ("finished", segment), finished)

        def finished(outcome: Outcome) -> None:
            self.busy_tiering = False
            self.drop_tiered()

        self.manifest.append(self.manifest.next_sequence, ("started", segment), started)

    def _manifest_read(self, ok: bool) -> None:
        self.busy_tiering = False
        self.drop_tiered()

    def drop_tiered(self) -> None:
        """T3: delete local segments below the tiered end that was seen."""
        keep_from = self.log.end - LOCAL_RECORDS_MIN
        tiered_end = self.tiered_end
        if self.process.rules.drops_untiered:
            tiered_end = self.high_watermark
        below = min(keep_from, tiered_end, self.high_watermark)
        if below > self.log.start and (self.leader is not None or self.follower is not None):
            below -= below % SEGMENT_RECORDS
            self.log.drop_below(below)
            self.process.world.checkers.dropped(self.process.node_id, self.index, self.log)


class Replicas:
    """Every replica of one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.by_index: dict[int, Replica] = {}
        self._begun = False

    def begin(self) -> None:
        """The broker is registered: lead and follow."""
        self._begun = True
        for index, log in self.process.machine.disk.logs.items():
            self.by_index[index] = Replica(self, index, log)
        self.follow(None, self.process.image)
        self._propose()
        self._tend_tier()

    def close(self) -> None:
        """The broker stops."""
        for replica in self.by_index.values():
            replica.resign("the broker stops")
        self.checkpoint()
        self._begun = False

    def checkpoint(self) -> None:
        """Write high watermarks down (A4)."""
        for replica in self.by_index.values():
            replica.log.checkpoint = replica.high_watermark

    def follow(self, before: ClusterImage | None, image: ClusterImage) -> None:
        """A new image."""
        if not self._begun:
            return
        for topic_id, topic in image.topics_by_id.items():
            if topic_id != self.process.world.topic_id:
                continue
            old = before.topics_by_id.get(topic_id) if before is not None else None
            if old is topic:
                continue
            for index, partition in enumerate(topic.partitions):
                if old is None or old.partitions[index] != partition:
                    self._follow_partition(index, partition, int(topic.configs.get("min.insync.replicas", "1")))
                elif (
                    old.configs != topic.configs
                    and (replica := self.by_index.get(index)) is not None
                    and replica.leader
                ):
                    replica.leader.image_changed(partition, int(topic.configs["min.insync.replicas"]))

    def _follow_partition(self, index: int, partition: PartitionImage, min_in_sync: int) -> None:
        process = self.process
        replica = self.by_index.get(index)
        if process.node_id not in partition.replicas:
            if replica is not None:
                replica.resign("no replica any more")
                del self.by_index[index]
                del process.machine.disk.logs[index]
            return
        if replica is None:
            log = process.machine.disk.logs[index] = ReplicaLog()
            replica = self.by_index[index] = Replica(self, index, log)
        epoch = int(partition.leader_epoch)
        if replica.offline:
            if partition.leader != process.node_id:
                return
            replica.offline = ""  # elected for want of others: its history is the partition's now
        if partition.leader == process.node_id:
            registered = process.image.brokers.get(process.node_id)
            if registered is None or registered.broker_epoch != process.broker_epoch:
                replica.resign("another start has its place")
            elif epoch > replica.epoch or replica.leader is None:
                replica.resign("a new epoch")
                replica.epoch = epoch
                replica.leader = LeaderShell(replica, partition, min_in_sync)
            else:
                replica.leader.image_changed(partition, min_in_sync)
        elif epoch > replica.epoch or replica.leader is not None or replica.follower is None:
            replica.resign("another leads")
            replica.epoch = epoch
            if partition.leader >= 0:
                replica.expose()
                replica.follower = FollowerShell(replica, int(partition.leader), epoch)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _propose(self) -> None:
        self.process.after(PROPOSE_MS, self._propose)
        for replica in list(self.by_index.values()):
            if replica.leader is not None:
                replica.leader.tick()

    def _tend_tier(self) -> None:
        self.process.after(TIER_EVERY_MS * self.process.rng.uniform(0.7, 1.3), self._tend_tier)
        for replica in list(self.by_index.values()):
            replica.tend_tier()

    def alter(self, proposals: list[ProposedSet], on_reply: Callable[[Any], None]) -> None:
        """Ask the controller for in-sync sets. The response may be late, doubled, or missing."""
        process = self.process
        request = (process.node_id, process.broker_epoch, proposals)
        if process.office.active:
            process.office.serve("alter", request, on_reply)
        elif process.controller_id >= 0:
            process.world.network.call(
                process, process.controller_id, "alter", request, on_reply, timeout_ms=PROPOSAL_TIMEOUT_MS
            )
        else:
            on_reply(REFUSED)

    # --- what others ask ----------------------------------------------------------------------------------------------

    def serve_produce(self, asked: ProduceAsked, reply: Callable[[Any], None]) -> None:
        """Append one record, and answer when it is committed."""
        replica = self.by_index.get(asked.index)
        if replica is None or replica.leader is None or not replica.leader.serving:
            reply(Produced("not leader"))
            return
        if not replica.leader.enough_in_sync:
            reply(Produced("not enough replicas"))
            return
        record = (replica.epoch, asked.value)
        replica.waiting.append(Waiting(replica.log.end, record, reply))
        replica.append([record])
        replica.leader.appended()
        replica.wake()

    def serve_latest(self, asked: LatestAsked, reply: Callable[[Any], None]) -> None:
        """ListOffsets(latest)."""
        replica = self.by_index.get(asked.index)
        if replica is None or replica.leader is None or not replica.leader.serving:
            reply(-1)
            return
        if self.process.rules.knows_latest_at_once or replica.leader.knows_latest:
            self.process.world.checkers.told_end(asked.index, replica.epoch, replica.high_watermark)
            reply(replica.high_watermark)
        else:
            reply(-1)

    def serve_fetch(self, asked: FetchAsked, reply: Callable[[Any], None]) -> None:
        """A follower's fetch. It waits if there is nothing for it."""
        replica = self.by_index.get(asked.index)
        error = self._check(replica, asked)
        if error is not ErrorCode.NONE or replica is None or replica.leader is None:
            reply(Fetched(error))
            return
        found = self.read(replica, asked)
        if found.diverging is None and found.error is ErrorCode.NONE:
            replica.leader.fetched(asked)
            found = self.read(replica, asked)
            if not found.records:
                replica.parked.append((asked, reply))
                self.process.after(FETCH_WAIT_MS, self._wait_is_over, replica, asked, reply)
                return
        reply(found)

    def _wait_is_over(self, replica: Replica, asked: FetchAsked, reply: Callable[[Any], None]) -> None:
        if (asked, reply) in replica.parked:
            replica.parked.remove((asked, reply))
            reply(self.read(replica, asked))

    def _check(self, replica: Replica | None, asked: FetchAsked) -> ErrorCode:
        """A5."""
        if replica is None or replica.leader is None or not replica.leader.serving:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        rules = self.process.rules
        if asked.leader_epoch != replica.epoch and rules.checks_fetch_epochs:
            behind = asked.leader_epoch < replica.epoch
            return ErrorCode.FENCED_LEADER_EPOCH if behind else ErrorCode.UNKNOWN_LEADER_EPOCH
        broker = self.process.image.brokers.get(BrokerId(asked.broker_id))
        if (broker is None or broker.broker_epoch != asked.broker_epoch) and rules.checks_broker_epochs:
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE

    def gone(self, replica: Replica) -> bool:
        """Whether this is no replica of this broker any more."""
        return self.by_index.get(replica.index) is not replica

    def read(self, replica: Replica, asked: FetchAsked) -> Fetched:
        """What the log has for a follower."""
        if replica.leader is None:
            return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = replica.log
        if asked.offset < log.start:
            return Fetched(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
        if asked.last_epoch >= 0 and self.process.rules.compares_epochs:
            epoch, end = end_of_epoch(replica, asked.last_epoch)
            if (
                epoch < log.first_epoch
                and replica.tiered_end < log.start
                and self.process.rules.asks_manifest_for_epochs
            ):
                replica.learn_tier()
                return Fetched(ErrorCode.OFFSET_NOT_AVAILABLE)
            if epoch < asked.last_epoch or end < asked.offset:
                self.process.world.checkers.told_divergence(
                    self.process.node_id, replica.index, replica.epoch, log, asked.last_epoch, (epoch, end)
                )
                return Fetched(diverging=(epoch, end))
        if asked.offset > log.end:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
        end = min(log.end, asked.offset + FETCH_RECORDS_MAX)
        return Fetched(ErrorCode.NONE, tuple(log.read(asked.offset, end)), replica.high_watermark)


def end_of_epoch(replica: Replica, epoch: int) -> tuple[int, int]:
    """The largest epoch of this history that is at most ``epoch``, and where it ends (A2, T7)."""
    starts = {int(each.epoch): int(each.start_offset) for each in replica.log.epochs.entries()}
    lowest = min(starts, default=1 << 30)
    for tier_epoch, start in replica.tier_epochs():
        if tier_epoch < lowest:
            starts[tier_epoch] = start
        elif tier_epoch == lowest:
            starts[tier_epoch] = min(start, starts[tier_epoch])
    floor = max((each for each in starts if each <= epoch), default=-1)
    above = [start for each, start in starts.items() if each > epoch]
    return floor, min(above) if above else replica.log.end
