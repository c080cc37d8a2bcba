"""The effect of a broker's event on one partition (ADR 0024, R and E; ADR 0023, M). Pure: a partition goes in, another comes out.

Each function returns the same object if nothing changes. Otherwise it returns a partition whose epochs are those of *one* change,
even if several fields changed. All functions end in the same two steps: which replicas are eligible (R9), and which one leads (E1
to E4).

Neither step means anything for a partition whose leaders follow one another by write-ahead logs (``log_leaders.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import STRIDE, Steps, Stepwise, slices
from app.core.units import BrokerId
from app.metadata.image.image import BrokerImage, PartitionImage, TopicImage
from app.metadata.image.records import partition_change
from app.metadata.log.log_format import KeyValue
from app.metadata.replicas.elections import NOBODY, Active, elect, stamped
from app.metadata.replicas.log_leaders import ended


class Terms(NamedTuple):
    """The inputs for decisions about the partitions of a topic, beside the partitions themselves."""

    active: Active
    """Whether a broker may be elected, after the event."""
    unfenced: Active
    """Whether a broker may go on leading, after the event: it is unfenced, and may be stopping."""
    min_in_sync: int = 1
    """``min.insync.replicas`` of the topic."""
    unclean: bool = False
    """``unclean.leader.election.enable`` of the topic."""
    of_logs: Callable[[PartitionImage], PartitionImage] = lambda partition: partition
    """Elects a leader of a partition in write-ahead logs, if it may have one (``LogLeaders.elect``)."""


class ProposedReplica(NamedTuple):
    """A member of a proposed in-sync set."""

    broker_id: int
    broker_epoch: int


def effective_min_in_sync(min_in_sync: int, replicas: int) -> int:
    """How many replicas must be in sync for the high watermark to rise (R2)."""
    return max(1, min(min_in_sync, replicas))


def fenced(partition: PartitionImage, brokers: Collection[int], terms: Terms) -> PartitionImage:
    """Brokers are fenced by one entry: they leave the in-sync set and the leadership, and become eligible by R9 (M6)."""
    if partition.durability.by_log:
        return ended(partition, brokers)
    isr = tuple([each for each in partition.isr if each not in brokers])
    if len(isr) == len(partition.isr):
        return partition
    return _settled(partition, partition._replace(isr=isr), terms)


def registered(
    partition: PartitionImage, broker: BrokerId, terms: Terms, *, kept: bool, new_directory: bool
) -> PartitionImage:
    """A broker registers, and is fenced from then on. Its leadership ends (M2). If it is not ``kept``, it leaves both sets, with a
    ``new_directory`` also the last known ones (M3)."""
    if broker not in partition.replicas:
        return partition
    if partition.durability.by_log:
        return ended(partition, (broker,))
    isr = tuple([each for each in partition.isr if each != broker])
    changed = partition._replace(isr=isr)
    if kept:
        return _settled(partition, changed, terms)
    eligible = _eligible(partition, changed, terms, (broker,))
    last_known = partition.last_known_eligible
    if not isr and not eligible and (partition.isr or partition.eligible):
        last_known = (broker,)
    if new_directory and len(partition.replicas) > 1:
        # A single replica goes on with its new directory, as a take-over of a single copy does (ADR 0018).
        last_known = tuple([each for each in last_known if each != broker])
    return _settled(partition, changed._replace(last_known_eligible=last_known), terms, lost=(broker,))


def lost(partition: PartitionImage, broker: BrokerId, terms: Terms, *, new_directory: bool) -> PartitionImage:
    """A broker may have lost records of this partition, or is gone for good: it leaves both sets (M3)."""
    return registered(partition, broker, terms, kept=False, new_directory=new_directory)


def unfenced(partition: PartitionImage, terms: Terms) -> PartitionImage:
    """Brokers were unfenced: a partition without a leader gets one if any replica may lead."""
    if partition.leader != NOBODY:
        return partition
    return terms.of_logs(partition) if partition.durability.by_log else _settled(partition, partition, terms)


def stopping(partition: PartitionImage, broker: BrokerId, terms: Terms) -> PartitionImage:
    """A broker is about to stop: another one leads if it can without loss, and the broker leaves the in-sync set. A partition that
    no other broker can lead stays with it (M13)."""
    if broker not in partition.isr:
        return partition
    if partition.durability.by_log:
        # Its leader releases it: only the leader knows the last number (J18).
        return partition if partition.leader == broker else ended(partition, (broker,))
    others = tuple([each for each in partition.isr if each != broker])
    if others and (partition.leader != broker or any(terms.active(each) for each in others)):
        return _settled(partition, partition._replace(isr=others), terms)
    return _settled(partition, partition, terms)


def min_in_sync_changed(partition: PartitionImage) -> PartitionImage:
    """``min.insync.replicas`` changed: no replica is eligible any more (R9).

    While no replica is in sync, no record can be committed, with any setting. Then the eligible replicas stay: they have all
    records.
    """
    return stamped(partition, partition._replace(eligible=())) if partition.isr else partition


@Stepwise
def clear_eligible(topics: Iterable[TopicImage]) -> Steps[list[KeyValue]]:
    """The records that belong into the entry that changes ``min.insync.replicas`` of these topics (R9)."""
    records: list[KeyValue] = []
    for topic in topics:
        for some in slices(topic.partitions, STRIDE):
            records += [
                partition_change(topic.topic_id, after.partition_index, after.record())
                for image in some
                if (after := min_in_sync_changed(image)) is not image
            ]
            yield
    return records


def unchanged(partition: PartitionImage) -> PartitionImage:
    """The partition as it is."""
    return partition


def altered(
    partition: PartitionImage,
    leader: int,
    leader_epoch: int,
    partition_epoch: int,
    members: Sequence[ProposedReplica],
    brokers: Mapping[int, BrokerImage],
    terms: Terms,
    *,
    recovering: bool = False,
    after: Callable[[PartitionImage], PartitionImage] = unchanged,
) -> PartitionImage:
    """The leader's proposal of an in-sync set, accepted (R5). ``recovering``: the leader has not yet confirmed the tier (E3).

    ``after`` completes a reassignment: it is called with the new set, and may take replicas and the leader away.

    The partition epoch rises also if the set is the present one. A leader can withdraw a proposal so: once it sees the higher
    epoch, no copy of an earlier proposal can be accepted any more (R4).

    Raises: RequestRejected, with the codes of Kafka's AlterPartition.
    """
    check_leads(partition, leader, leader_epoch, partition_epoch)
    named = {member.broker_id: member.broker_epoch for member in members}
    strange = [broker for broker in named if broker not in partition.replicas]
    if strange or len(named) != len(members) or leader not in named:
        why = f"broker {strange[0]} is no replica" if strange else "the leader is missing, or a member is named twice"
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"The proposed in-sync set is not valid: {why}.")
    if recovering and (len(named) > 1 or not partition.recovering):
        why = "a leader that is recovering is alone in sync" if partition.recovering else "its leader is recovered"
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"The proposal says that the leader is recovering, but {why}.")
    for broker_id, broker_epoch in named.items():
        _check_member(broker_id, broker_epoch, brokers.get(broker_id), leads=broker_id == leader)
    isr = tuple([broker for broker in partition.replicas if broker in named])
    if set(isr) == set(partition.isr):
        isr = partition.isr
    proposed = partition._replace(isr=isr, recovering=partition.recovering and recovering)
    if partition.durability.by_log:
        return proposed._replace(partition_epoch=partition.partition_epoch + 1)
    result = _settled(partition, after(proposed), terms)
    if result is partition:
        return partition._replace(partition_epoch=partition.partition_epoch + 1)
    return result


def check_leads(partition: PartitionImage, leader: int, leader_epoch: int, partition_epoch: int) -> None:
    """Check that a proposal comes from the present leader, and is of the present epochs (R4).

    Raises: RequestRejected NOT_CONTROLLER, FENCED_LEADER_EPOCH, INVALID_REQUEST, INVALID_UPDATE_VERSION.
    """
    if leader_epoch > partition.leader_epoch or partition_epoch > partition.partition_epoch:
        raise RequestRejected(
            ErrorCode.NOT_CONTROLLER,
            f"The proposal is of leader epoch {leader_epoch} and partition epoch {partition_epoch}, newer than "
            f"{partition.leader_epoch} and {partition.partition_epoch} here: ask the present controller.",
        )
    if leader_epoch < partition.leader_epoch:
        raise RequestRejected(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"Leader epoch {leader_epoch} is over: broker {partition.leader} leads by epoch {partition.leader_epoch}.",
        )
    if leader != partition.leader:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"Broker {leader} proposes a change, but {partition.leader} leads: only the leader may.",
        )
    if partition_epoch < partition.partition_epoch:
        raise RequestRejected(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Partition epoch {partition_epoch} is over: propose again with epoch {partition.partition_epoch}.",
        )


def _check_member(broker_id: int, broker_epoch: int, broker: BrokerImage | None, *, leads: bool) -> None:
    """Raises: RequestRejected INELIGIBLE_REPLICA."""
    if broker is None:
        why = "is not registered"
    elif broker.broker_epoch != broker_epoch:
        why = f"is registered under broker epoch {broker.broker_epoch}, not {broker_epoch}"
    elif broker.fenced:
        why = "is fenced"
    elif broker.stopping and not leads:
        # A leader that stops, and that no replica can replace, may let another one in.
        why = "is about to stop"
    else:
        return
    raise RequestRejected(
        ErrorCode.INELIGIBLE_REPLICA, f"Broker {broker_id} {why}: propose a set without it, or wait until it may enter."
    )


def _settled(
    before: PartitionImage, changed: PartitionImage, terms: Terms, lost: Collection[int] = ()
) -> PartitionImage:
    """``changed`` with its eligible replicas (R9) and a leader (E1 to E4), as one change from ``before``."""
    changed = changed._replace(eligible=_eligible(before, changed, terms, lost))
    leader = changed.leader
    stops = leader != NOBODY and not terms.active(leader) and terms.unfenced(leader)
    elected, unclean = elect(changed, terms.active, unclean=terms.unclean, prefer_other_than=leader if stops else None)
    if not unclean and elected.isr is not changed.isr:
        # An eligible replica became the in-sync set: the size of the set counts again.
        elected = elected._replace(eligible=_eligible(before, elected, terms, lost))
    return stamped(before, elected)


def _eligible(
    before: PartitionImage, changed: PartitionImage, terms: Terms, lost: Collection[int]
) -> tuple[BrokerId, ...]:
    """R9: who was in a set, is in sync no more and has lost nothing, while the in-sync set is smaller than min ISR."""
    isr = changed.isr
    if len(isr) >= effective_min_in_sync(terms.min_in_sync, len(changed.replicas)):
        return ()
    return tuple(
        [
            each
            for each in changed.replicas
            if each not in isr and each not in lost and (each in before.isr or each in before.eligible)
        ]
    )
