"""What a leader does with ``InSync``: it counts, proposes in-sync sets, raises the high watermark, and takes the tier over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from app.core.units import BrokerId, Offset
from app.metadata.changes.broker_changes import ProposedSet
from app.metadata.image.image import PartitionImage
from app.metadata.replicas.replica_changes import ProposedReplica
from tests.replication_model.numbered import Outcome

if TYPE_CHECKING:
    from tests.replication_model.following_shell import FetchAsked
    from tests.replication_model.replicas import Replica

LAG_MS_MAX: Final = 8_000
"""``replica.lag.time.max.ms``."""


class LeaderShell:
    """Of one leadership of one partition."""

    def __init__(self, replica: Replica, partition: PartitionImage, min_in_sync: int) -> None:
        self._replica = replica
        self._process = replica.process
        self._partition = partition
        self._min_in_sync = min_in_sync
        self._epoch = int(partition.leader_epoch)
        self._start = -1
        self._syncing = False
        self.serving = False
        self.core: Any = None
        if partition.recovering and self._process.world.plan.tier and self._process.rules.seals_after_unclean:
            self._process.trace(
                f"p{replica.index} leads epoch {self._epoch} after an unclean election: seals the manifest"
            )
            self._take_tier_over()
        else:
            self._serve()

    @property
    def _lives(self) -> bool:
        return self._replica.leader is self and self._process.alive

    # --- taking over --------------------------------------------------------------------------------------------------

    def _take_tier_over(self) -> None:
        """T2: seal, read, start at max(own end, tiered end)."""
        manifest = self._replica.manifest

        def read(ok: bool) -> None:
            if not self._lives:
                return
            if ok:
                manifest.seal(self._epoch, sealed)
            else:
                self._process.after(300.0, self._take_tier_over)

        def sealed(outcome: Outcome) -> None:
            if not self._lives:
                return
            if outcome is not Outcome.OURS:
                self._process.after(300.0, self._take_tier_over)
                return
            replica = self._replica
            if replica.log.end < replica.tiered_end or (
                self._process.rules.compares_with_tier and replica.parts_from_tier
            ):
                replica.restart_at(replica.tiered_end, replica.tier_epochs())
            self._serve()

        # ``leader`` is set by the caller after this constructor: go on after that.
        self._process.after(0.0, lambda: manifest.poll(read))

    def _serve(self) -> None:
        replica, process = self._replica, self._process
        log = replica.log
        self._start = log.end
        partition = self._partition
        self.core = process.rules.in_sync(
            BrokerId(process.node_id),
            partition.leader_epoch,
            epoch_start=Offset(log.end),
            replicas=partition.replicas,
            in_sync=partition.isr,
            partition_epoch=partition.partition_epoch,
            min_in_sync=self._min_in_sync,
            high_watermark=Offset(replica.high_watermark),
            now_ms=int(process.now_ms),
            lag_ms_max=LAG_MS_MAX,
        )
        self.serving = True
        process.trace(
            f"p{replica.index} leads epoch {self._epoch} from {log.end}, high watermark {replica.high_watermark}"
        )
        process.world.checkers.leads(
            process.node_id, process.name, replica.index, self._epoch, log, replica.high_watermark
        )
        process.after(0.0, self.count)
        self.appended()

    # --- what happens -------------------------------------------------------------------------------------------------

    @property
    def in_sync_counts(self) -> tuple[int, int]:
        """How many are in sync by the newest image, and how many must be."""
        partition = self._partition
        return len(partition.isr), max(1, min(self._min_in_sync, len(partition.replicas)))

    @property
    def enough_in_sync(self) -> bool:
        """Whether acks=all is possible."""
        members, asked = self.in_sync_counts
        return members >= asked

    @property
    def knows_latest(self) -> bool:
        """A5."""
        return bool(self.core.reached_epoch_start)

    def image_changed(self, partition: PartitionImage, min_in_sync: int) -> None:
        self._partition, self._min_in_sync = partition, min_in_sync
        if self.core is not None:
            self.core.note_image(
                partition.partition_epoch, partition.isr, partition.replicas, min_in_sync, int(self._process.now_ms)
            )
            self.count()

    def fetched(self, asked: FetchAsked) -> None:
        """A follower fetched, and its history is this log's."""
        self.core.note_follower(
            asked.broker_id,
            asked.broker_epoch,
            fetch_offset=asked.offset,
            stored_end=asked.stored_end if self._process.rules.counts_stored_end else asked.offset,
            log_end=self._replica.log.end,
            now_ms=int(self._process.now_ms),
        )
        self.count()

    def appended(self) -> None:
        if not self._process.world.plan.disk:
            self.count()
            return
        if not self._syncing:
            self._syncing = True
            self._replica.sync(self._synced)

    def _synced(self) -> None:
        self._syncing = False
        if self._lives:
            self.count()
            if self._replica.log.synced_end < self._replica.log.end:
                self.appended()

    def count(self) -> None:
        """Commit what all have stored."""
        replica = self._replica
        if self.serving and (replica.leader is self or replica.leader is None):
            self.core.note_own(replica.stored_end, replica.log.end)
            replica.raise_high_watermark(self.core.high_watermark)

    def tick(self) -> None:
        """Propose an in-sync set if it is time."""
        if not self.serving:
            return
        process, partition = self._process, self._partition
        brokers = process.image.brokers
        now_ms = int(process.now_ms)
        if self.core.wants_look(now_ms):
            proposal = self.core.proposal(
                now_ms,
                may_join=lambda broker: broker in brokers and brokers[broker].active,
                broker_epochs={int(key): broker.broker_epoch for key, broker in brokers.items()},
            )
            self.count()
            if proposal is not None:
                self._ask(proposal.leader_epoch, proposal.partition_epoch, proposal.members)
                return
        if partition.recovering and self.core.pending is None:
            # The tier is confirmed: the set is this broker alone, as it is.
            self._ask(self._epoch, partition.partition_epoch, ((process.node_id, process.broker_epoch),))

    def _ask(self, leader_epoch: int, partition_epoch: int, members: Any) -> None:
        process, replica = self._process, self._replica
        named = tuple(ProposedReplica(*member) for member in members)
        process.trace(f"p{replica.index} proposes {[member.broker_id for member in named]} at {partition_epoch}")
        process.replicas.alter(
            [ProposedSet(process.world.topic_id, replica.index, leader_epoch, partition_epoch, named)], self._answered
        )

    def _answered(self, answer: Any) -> None:
        """An answer decides nothing (R4). The image does."""
        if self._process.rules.answers_decide and self._lives:
            self._process.rules.answers_decide(self, answer)
