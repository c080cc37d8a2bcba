"""Moving partitions to other brokers (KIP-455). Pure.

A reassignment begins by naming its targets: they become replicas beside the present ones, and fetch. When all targets are in sync,
the entry that shows it takes the other replicas away (``completed``, a hook of ``replica_changes.altered``). Until then it can be
cancelled, and the partition gets the replicas back that it had before the first reassignment began.

A partition in write-ahead logs has its leader alone as a replica (ADR 0037). To move it is to change its leader: the first target
stands as the one that is added until the present leader has released the partition, and the other targets mean nothing.

Whenever a replica leaves, a new leader epoch begins. It deletes its log, and no late fetch of it may count when it comes back (R6).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import STRIDE, Steps, Stepwise
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicIdPartition
from app.metadata.changes.terms import TermsOfTopics
from app.metadata.changes.topic_changes import PlanInputs, Planned, changes_of
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, PartitionImage
from app.metadata.image.wal_ranges import PartitionDurability
from app.metadata.replicas.elections import NOBODY, stamped, was_unclean
from app.metadata.replicas.log_leaders import may_lead
from app.metadata.replicas.replica_changes import Terms, unfenced


class ReassignmentAsked(NamedTuple):
    """The request for one partition."""

    topic: str
    partition: int
    targets: tuple[int, ...] | None
    """Its replicas, the preferred leader first. None cancels the reassignment under way."""


class ReassignmentAnswer(NamedTuple):
    """The result for one partition."""

    topic: str
    partition: int
    error: ErrorCode
    why: str
    """One sentence; empty if there is no error."""


class Reassigned(NamedTuple):
    """The results of a request."""

    answers: list[ReassignmentAnswer]
    """In the order of the request."""
    unclean: tuple[TopicIdPartition, ...]
    """Partitions that got a leader which may lack committed records: to be counted and logged (E3)."""


class Reassignment(NamedTuple):
    """A reassignment under way."""

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]


# --- one partition --------------------------------------------------------------------------------------------------


def in_progress(partition: PartitionImage) -> bool:
    """Whether a reassignment is under way."""
    return bool(partition.adding or partition.removing)


def original(partition: PartitionImage) -> tuple[BrokerId, ...]:
    """The replicas without those that the reassignment under way adds."""
    return tuple([each for each in partition.replicas if each not in partition.adding])


def begin(partition: PartitionImage, targets: Sequence[int]) -> PartitionImage:
    """The partition with these targets. They come first, so the preferred leader is the targets' first.

    A reassignment under way is replaced. A replica that it was adding is removed at once if it is in no set: nothing depends on it.
    """
    before = original(partition)
    wanted = tuple([BrokerId(each) for each in targets])
    known = {*partition.isr, *partition.eligible, *partition.last_known_eligible}
    leaving = [each for each in before if each not in wanted]
    leaving += [each for each in partition.adding if each not in wanted and each in known]
    return _with_replicas(
        partition,
        (*wanted, *leaving),
        adding=tuple([each for each in wanted if each not in before]),
        removing=tuple(leaving),
    )


def completed(partition: PartitionImage) -> PartitionImage:
    """The partition without the replicas that leave, if all others are in sync; else as it is. Its leader may be one that left."""
    targets = tuple([each for each in partition.replicas if each not in partition.removing])
    if not in_progress(partition) or not set(targets) <= set(partition.isr):
        return partition
    return _with_replicas(partition, targets)


def cancel(partition: PartitionImage) -> PartitionImage:
    """The partition without the replicas that were added. Its leader may be one of them, and its in-sync set may be empty.

    As in Kafka, the order of the others is the new one, so the preferred leader may be another than before.
    """
    return _with_replicas(partition, original(partition))


def _with_replicas(
    partition: PartitionImage,
    replicas: tuple[BrokerId, ...],
    *,
    adding: tuple[BrokerId, ...] = (),
    removing: tuple[BrokerId, ...] = (),
) -> PartitionImage:
    """Other replicas. No set names one that left."""
    left = any(each not in replicas for each in partition.replicas)
    return partition._replace(
        replicas=replicas,
        isr=_among(replicas, partition.isr),
        eligible=_among(replicas, partition.eligible),
        last_known_eligible=_among(replicas, partition.last_known_eligible),
        adding=adding,
        removing=removing,
        leader_epoch=LeaderEpoch(partition.leader_epoch + left),
    )


def _among(replicas: Collection[BrokerId], brokers: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    return tuple([each for each in brokers if each in replicas])


def _led(before: PartitionImage, changed: PartitionImage, terms: Terms) -> PartitionImage:
    """``changed`` with a leader (E1 to E4), as one change from ``before``."""
    if changed.leader not in changed.isr:
        changed = changed._replace(leader=NOBODY)
    return stamped(before, unfenced(changed, terms))


# --- plans ----------------------------------------------------------------------------------------------------------


@Stepwise
def alter_reassignments(
    draft: ImageDraft,
    around: PlanInputs,
    asked: Sequence[ReassignmentAsked],
    *,
    allow_factor_change: bool = True,
) -> Steps[Planned[Reassigned]]:
    """Begin, replace or cancel reassignments, each for itself. The refusals are in the answers."""
    terms = TermsOfTopics(draft, around)
    decided: dict[tuple[UUID, int], PartitionImage] = {}
    unclean: list[TopicIdPartition] = []
    answers: list[ReassignmentAnswer] = []
    for seen, one in enumerate(asked):
        if not seen % STRIDE:
            yield
        topic = draft.topic(one.topic)
        try:
            if topic is None or not 0 <= one.partition < len(topic.partitions):
                raise RequestRejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"There is no partition {one.partition} of topic '{one.topic}'.",
                )
            key = (topic.topic_id, one.partition)
            image = topic.partitions[one.partition]
            before = decided.get(key, image)
            if one.targets is None:
                after = _cancelled(before, terms.of(topic))
            elif before.durability is PartitionDurability.FROM_OBJECT:
                raise RequestRejected(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "The partition is on its way from object durability: wait until its replicas are in sync.",
                )
            elif before.durability.by_log:
                _check_leader(draft, one.targets)
                after = _led_by_release(before, one.targets[0])
            else:
                _check_targets(draft, before, one.targets, allow_factor_change=allow_factor_change)
                after = _led(before, completed(begin(before, one.targets)), terms.of(topic))
        except RequestRejected as error:
            answers.append(ReassignmentAnswer(one.topic, one.partition, error.code, str(error)))
            continue
        if after is not before:
            decided[key] = after
            if was_unclean(before, after):
                unclean.append(TopicIdPartition(TopicId(topic.topic_id), PartitionIndex(one.partition)))
        answers.append(ReassignmentAnswer(one.topic, one.partition, ErrorCode.NONE, ""))
    return Planned((yield from changes_of(decided)), Reassigned(answers, tuple(unclean)))


def list_reassignments(
    image: ClusterImage, asked: Iterable[tuple[str, Iterable[int]]] | None = None
) -> list[Reassignment]:
    """The reassignments under way, of partitions that are named by topic and index, or (None) of all. Unknown ones are left out."""
    if asked is None:
        asked = [(name, range(len(topic.partitions))) for name, topic in sorted(image.topics_by_name.items())]
    found: list[Reassignment] = []
    for name, indexes in asked:
        topic = image.topic(name)
        partitions = () if topic is None else topic.partitions
        for index in indexes:
            if 0 <= index < len(partitions) and in_progress(partitions[index]):
                one = partitions[index]
                found.append(Reassignment(name, index, one.replicas, one.adding, one.removing))
    return found


def _cancelled(before: PartitionImage, terms: Terms) -> PartitionImage:
    """Raises: RequestRejected NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICA_ASSIGNMENT."""
    if not in_progress(before):
        raise RequestRejected(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of this partition is under way.")
    if before.durability.by_log:
        return stamped(before, before._replace(adding=(), removing=()))
    after = _led(before, cancel(before), terms)
    if after.leader == NOBODY and (before.leader != NOBODY or (_has_records(before) and not _has_records(after))):
        raise RequestRejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Only replicas that the reassignment adds have all records, so a cancellation would be an unclean election. Wait until"
            " another replica is in sync, or allow it with unclean.leader.election.enable.",
        )
    return after


def _led_by_release(before: PartitionImage, target: int) -> PartitionImage:
    """A partition in write-ahead logs is to be led by another broker: it is as soon as its leader has released it (J18).

    Until then ``adding`` names the next leader. It gets no replica, because it needs none.
    """
    wanted = () if target == before.leader else (BrokerId(target),)
    leaving = tuple([each for each in before.replicas[:1] if wanted and each != target])
    return stamped(before, before._replace(adding=wanted, removing=leaving))


def _check_leader(draft: ImageDraft, targets: tuple[int, ...]) -> None:
    """Raises: RequestRejected INVALID_REPLICA_ASSIGNMENT."""
    why = None
    if not targets:
        why = "The list of replicas is empty."
    elif len(set(targets)) != len(targets):
        why = "The list of replicas names a broker twice."
    elif (broker := draft.brokers.get(targets[0])) is None:
        why = f"Broker {targets[0]} is not registered."
    elif not may_lead(broker):
        why = f"Broker {targets[0]} cannot lead now: it is fenced, or about to stop."
    if why is not None:
        raise RequestRejected(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)


def _has_records(partition: PartitionImage) -> bool:
    """Whether any replica is known to have the records."""
    return bool(partition.isr or partition.eligible or partition.last_known_eligible)


def _check_targets(
    draft: ImageDraft, partition: PartitionImage, targets: tuple[int, ...], *, allow_factor_change: bool
) -> None:
    """Raises: RequestRejected INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR."""
    why = None
    new = [each for each in targets if each not in partition.replicas]
    if not targets:
        why = "The list of replicas is empty."
    elif len(set(targets)) != len(targets):
        why = "The list of replicas names a broker twice."
    elif unknown := [each for each in targets if each not in draft.brokers]:
        why = f"Broker {unknown[0]} is not registered."
    elif dead := [each for each in new if draft.brokers[each].fenced]:
        why = f"Broker {dead[0]} is fenced: start it first, so that it can get a replica."
    elif partition.durability.needs_disks and (ephemeral := [each for each in new if draft.brokers[each].ephemeral]):
        why = f"Broker {ephemeral[0]} is ephemeral: it leads only topics with firn.durability=object."
    elif new and not draft.level:
        why = "The cluster is of one broker."
    if why is not None:
        raise RequestRejected(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)
    factor = len(original(partition))
    if len(targets) != factor and not allow_factor_change:
        raise RequestRejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor would change from {factor} to {len(targets)}, and the request does not allow that.",
        )
