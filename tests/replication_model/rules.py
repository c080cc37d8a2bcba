"""The rules that a run goes by: the real cores. Planted faults replace one of them each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.core.errors import ErrorCode
from app.core.units import BrokerId, LeaderEpoch, Offset
from app.metadata.changes.broker_changes import alter_in_sync, fence_brokers, register_broker, unfence_brokers
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.controller.broker_sessions import BrokerSessions
from app.metadata.controller.candidacy import Candidacy
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import PartitionImage
from app.metadata.image.records import partition_change
from app.metadata.peers.control import Heartbeat
from app.replication.following import step
from app.replication.in_sync import InSync
from tests.replication_model.office import TICK_MS, change_min_in_sync

if TYPE_CHECKING:
    from tests.replication_model.disk import ReplicaLog
    from tests.replication_model.process import Process
    from tests.replication_model.replicas import Replica


def sessions(timeout_s: float, now_s: float) -> BrokerSessions:
    """C5: they begin anew."""
    return BrokerSessions(timeout_s, now_s, tick_interval_s=TICK_MS / 1000)


def heard(sessions: BrokerSessions, process: Process, beat: Heartbeat) -> ErrorCode:
    """M5."""
    return sessions.heard(
        beat.broker_id, beat.broker_epoch, process.now_s, applied=beat.applied, wants_stop=beat.wants_stop
    )


def alter(draft: Any, around: Any, broker_id: int, broker_epoch: int, proposals: Any) -> Planned[Any]:
    """R5."""
    return alter_in_sync(draft, around, broker_id, broker_epoch, proposals, after=completed)


def reassign(draft: ImageDraft, around: PlanInputs, index: int, target: tuple[int, ...]) -> Planned[None]:
    """Let other brokers replicate a partition. The present replicas stay until the new ones are in sync (KIP-455)."""
    (topic,) = [each for each in draft.topics if each.name == "model"]
    before = topic.partitions[index]
    settled = tuple(each for each in before.replicas if each not in before.adding)
    wanted = tuple(BrokerId(each) for each in target)
    left = tuple(each for each in settled if each not in wanted)
    # Replicas that an earlier reassignment was adding stay until the next in-sync set, as they may be in sync.
    extra = tuple(each for each in before.adding if each not in wanted and each in (*before.isr, *before.eligible))
    changed = before._replace(
        replicas=(*wanted, *left, *extra),
        adding=tuple(each for each in wanted if each not in settled),
        removing=(*left, *extra),
        partition_epoch=before.partition_epoch + 1,
    )
    if changed._replace(partition_epoch=before.partition_epoch) == before:
        return Planned([], None)
    if before.leader not in changed.replicas:
        return Planned([], None)
    return Planned([partition_change(topic.topic_id, index, changed.record())], None)


def completed(partition: PartitionImage) -> PartitionImage:
    """The partition after its reassignment, if every new replica is in sync.

    A new leader epoch begins, so that no late fetch of a replica that left, and deleted its log, counts when it comes back (R6).
    """
    return _completed(partition, leader_epochs=1)


def completed_in_the_same_epoch(partition: PartitionImage) -> PartitionImage:
    """Planted: the leader epoch goes on."""
    return _completed(partition, leader_epochs=0)


def _completed(partition: PartitionImage, leader_epochs: int) -> PartitionImage:
    target = tuple(each for each in partition.replicas if each not in partition.removing)
    if not (partition.adding or partition.removing) or not set(target) <= set(partition.isr):
        return partition
    return partition._replace(
        replicas=target,
        isr=tuple(each for each in partition.isr if each in target),
        eligible=tuple(each for each in partition.eligible if each in target),
        adding=(),
        removing=(),
        leader_epoch=LeaderEpoch(partition.leader_epoch + leader_epochs),
    )


def start_in_tier(replica: Replica) -> int:
    """T5."""
    return replica.tiered_end


def first_high_watermark(log: ReplicaLog) -> int:
    """A4. The tiered end counts only if the last tiered record is this log's: a replica of another history may know it too."""
    end = max(log.checkpoint, log.start)
    tiered_end = log.known_tiered_end
    if end < tiered_end <= log.end and int(log.epochs.epoch_of(Offset(tiered_end - 1))) == log.known_tiered_epoch:
        end = tiered_end
    return min(end, log.end)


def nothing(draft: Any, around: Any, *args: Any) -> Planned[Any]:
    """E5 is a courtesy: leaders stay where they are."""
    return Planned([], None)


@dataclass(frozen=True, slots=True)
class Rules:
    """Each field is a rule, or the core that keeps it."""

    candidacy: Callable[..., Any] = Candidacy
    sessions: Callable[..., Any] = sessions
    heard: Callable[..., ErrorCode] = heard
    register: Callable[..., Planned[Any]] = register_broker
    fence: Callable[..., Planned[Any]] = fence_brokers
    unfence: Callable[..., Planned[Any]] = unfence_brokers
    alter: Callable[..., Planned[Any]] = alter
    reassign: Callable[..., Planned[Any]] = reassign
    leaders_back: Callable[..., Planned[Any]] = nothing
    change_min_in_sync: Callable[..., Planned[Any]] = change_min_in_sync
    in_sync: Callable[..., Any] = InSync
    step: Callable[..., Any] = step
    start_in_tier: Callable[[Any], int] = start_in_tier
    first_high_watermark: Callable[[ReplicaLog], int] = first_high_watermark
    answers_decide: Callable[[Any, Any], None] | None = None
    """R4."""
    tells_before_durable: bool = False
    """C1."""
    reads_after_undecided: bool = True
    """C2."""
    confirms: bool = True
    """C6."""
    reads_when_behind: bool = True
    """C9."""
    counts_stored_end: bool = True
    """S1."""
    uploads_below_high_watermark: bool = True
    """T1."""
    seals_manifests: bool = True
    """T1."""
    seals_after_unclean: bool = True
    """T2."""
    compares_with_tier: bool = True
    """T2: an unclean leader whose history parts from the tier's begins at the tiered end, however long its log is."""
    asks_manifest_for_epochs: bool = True
    """T7."""
    drops_untiered: bool = False
    """T3."""
    knows_latest_at_once: bool = False
    """A5."""
    checks_fetch_epochs: bool = True
    """A5."""
    checks_broker_epochs: bool = True
    """A5."""
    compares_epochs: bool = True
    """A2."""
    cuts_to_high_watermark: bool = False
    """A2 as it was before KIP-101: a follower cuts its log back to its high watermark when it begins."""


RULES = Rules()
