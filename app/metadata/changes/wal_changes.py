"""Changes of partitions in write-ahead logs (ADR 0037): their end, releases, and ranges that are done. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from app.core.errors import CorruptionError, ErrorCode, RequestRejected
from app.core.turns import STRIDE, Steps, Stepwise
from app.core.units import TopicId, TopicIdPartition
from app.metadata.changes.broker_changes import AlteredSet, no_such_partition, require_broker
from app.metadata.changes.durability_changes import switched
from app.metadata.changes.terms import TermsOfTopics
from app.metadata.changes.topic_changes import PlanInputs, Planned, changes_of
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import PartitionImage
from app.metadata.image.records import NOT_SEALED, broker_change, partition_change
from app.metadata.image.wal_ranges import WalId, dropped, released, sealed
from app.metadata.log.log_format import KeyValue
from app.metadata.peers.control import ANYBODY_OR_NOBODY, DropAsked, ReleaseAsked, SwitchAsked
from app.metadata.replicas.elections import NOBODY, stamped
from app.metadata.replicas.log_leaders import LogLeaders, orphaned
from app.metadata.replicas.replica_changes import check_leads

CLOSED_PER_CHANGE_MAX: Final = 10_000
"""Maximum partitions of one change: about 1 MB of records."""


class WalSealed(NamedTuple):
    """The results for the partitions that waited for the end of a log."""

    closed: int
    """So many partitions know the end now."""
    without_leader: int
    """So many of them no broker can lead, until one is unfenced."""
    damaged: tuple[tuple[TopicIdPartition, str], ...]
    """Partitions that stay without a leader, each with the damage that was found (J21)."""
    more: bool
    """Whether more partitions wait: plan it again."""


Asked = TypeVar("Asked", ReleaseAsked, DropAsked, SwitchAsked)


@Stepwise
def plan_wal_sealed(
    draft: ImageDraft, around: PlanInputs, wal: WalId, end: int, *, at_most: int = CLOSED_PER_CHANGE_MAX
) -> Steps[Planned[WalSealed]]:
    """A log has ended at ``end`` for good: close the ranges that wait for it, and elect leaders (J16, J17, J21, J23).

    The end is noted in the registration of its broker, if that is still of the same broker epoch (J14). Planned again, it changes
    nothing.
    """
    records: list[KeyValue] = []
    brokers = dict(draft.brokers)
    owner = brokers.get(wal.broker_id)
    if owner is not None and owner.broker_epoch == wal.broker_epoch and owner.wal_end == NOT_SEALED:
        brokers[wal.broker_id] = owner = replace(owner, wal_end=end)
        records.append(broker_change(wal.broker_id, owner.record()))
    leaders = LogLeaders(draft.topics, brokers, around.wal_next)
    yield from leaders.counting()
    closed = without_leader = 0
    damaged: list[tuple[TopicIdPartition, str]] = []
    for topic in draft.topics:
        for seen, image in enumerate(topic.partitions):
            if not seen % STRIDE:
                yield
            found = orphaned(image)
            if found is None or found.wal != wal:
                continue
            if closed >= at_most:
                return Planned(records, WalSealed(closed, without_leader, tuple(damaged), True))
            try:
                ranges = sealed(image.wal_ranges, wal, end)
            except CorruptionError as error:
                # The range stays open, so no leader is elected.
                damaged.append((TopicIdPartition(TopicId(topic.topic_id), image.partition_index), str(error)))
                continue
            after = leaders.elect(image._replace(wal_ranges=ranges))
            if after.leader == NOBODY:
                without_leader += 1
                after = image._replace(wal_ranges=ranges, partition_epoch=image.partition_epoch + 1)
            closed += 1
            records.append(partition_change(topic.topic_id, image.partition_index, after.record()))
    return Planned(records, WalSealed(closed, without_leader, tuple(damaged), False))


@Stepwise
def release_partitions(
    draft: ImageDraft, around: PlanInputs, broker_id: int, broker_epoch: int, asked: Sequence[ReleaseAsked]
) -> Steps[Planned[list[AlteredSet]]]:
    """Close the ranges of leaderships that their leader has given up, and name the next leaders (J18). Each is decided for itself.

    If no other broker can lead, the leadership goes on: only the partition epoch rises, so that the leader hears of it. The
    leadership of a leader that stops ends all the same (``ANYBODY_OR_NOBODY``): then the next leader needs no seal (J49).
    Raises: RequestRejected BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    require_broker(draft, broker_id, broker_epoch)
    wal = WalId(broker_id, broker_epoch)
    leaders = LogLeaders(draft.topics, draft.brokers, around.wal_next)
    yield from leaders.counting()

    def decide(image: PartitionImage, one: ReleaseAsked) -> PartitionImage:
        ranges = released(image.wal_ranges, wal, one.last_number)
        given_up = image._replace(leader=NOBODY, wal_ranges=ranges)
        after = leaders.elect(given_up, other_than=broker_id, rather=one.to)
        if after.leader != NOBODY:
            return after
        if one.to == ANYBODY_OR_NOBODY:
            return stamped(image, given_up._replace(isr=()))
        return image._replace(partition_epoch=image.partition_epoch + 1)

    planned = yield from _each(draft, wal, asked, decide)
    stay = "No other broker can lead the partition now: lead it on."
    answers = [
        one._replace(error=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, why=stay)
        if one.error is ErrorCode.NONE and one.image is not None and one.image.leader == broker_id
        else one
        for one in planned.answer
    ]
    return Planned(planned.records, answers)


@Stepwise
def drop_ranges(
    draft: ImageDraft, broker_id: int, broker_epoch: int, asked: Sequence[DropAsked]
) -> Steps[Planned[list[AlteredSet]]]:
    """Take closed ranges out of partitions, as their leaders ask (J35). Each is decided for itself.

    Raises: RequestRejected BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    require_broker(draft, broker_id, broker_epoch)

    def decide(image: PartitionImage, one: DropAsked) -> PartitionImage:
        ranges = dropped(image.wal_ranges, one.ranges)
        return image._replace(wal_ranges=ranges, partition_epoch=image.partition_epoch + 1)

    return (yield from _each(draft, WalId(broker_id, broker_epoch), asked, decide))


@Stepwise
def switch_partitions(
    draft: ImageDraft, around: PlanInputs, broker_id: int, broker_epoch: int, asked: Sequence[SwitchAsked]
) -> Steps[Planned[list[AlteredSet]]]:
    """Complete changes of durability, as leaders ask for them (J40, J41). Each is decided for itself.

    Raises: RequestRejected BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    broker = require_broker(draft, broker_id, broker_epoch)
    terms = TermsOfTopics(draft, around)

    def decide(image: PartitionImage, one: SwitchAsked) -> PartitionImage:
        topic = draft.topic_by_id(one.topic_id)
        assert topic is not None
        return switched(image, broker, one.first_number, one.last_number, terms.of(topic).min_in_sync)

    return (yield from _each(draft, broker.wal, asked, decide))


def _each(
    draft: ImageDraft, wal: WalId, asked: Sequence[Asked], decide: Callable[[PartitionImage, Asked], PartitionImage]
) -> Steps[Planned[list[AlteredSet]]]:
    """Decide on a leader's requests for its partitions, if it leads them by the epochs that it names, and writes this log."""
    decided: dict[tuple[UUID, int], PartitionImage] = {}
    answers: list[AlteredSet] = []
    for seen, one in enumerate(asked):
        if not seen % STRIDE:
            yield
        key = (one.topic_id, one.partition)
        topic = draft.topic_by_id(one.topic_id)
        if topic is None or not 0 <= one.partition < len(topic.partitions):
            answers.append(no_such_partition(topic, *key))
            continue
        image = decided.get(key, topic.partitions[one.partition])
        try:
            check_leads(image, wal.broker_id, one.leader_epoch, one.partition_epoch)
            if isinstance(one, ReleaseAsked):
                _check_open(image, wal)
            after = decide(image, one)
        except RequestRejected as error:
            answers.append(AlteredSet(*key, error.code, str(error), image))
            continue
        decided[key] = after
        answers.append(AlteredSet(*key, ErrorCode.NONE, "", after))
    return Planned((yield from changes_of(decided)), answers)


def _check_open(image: PartitionImage, wal: WalId) -> None:
    """Raises: RequestRejected INVALID_REQUEST."""
    newest = image.wal_ranges[-1] if image.wal_ranges else None
    if not image.durability.by_log or newest is None or not newest.is_open or newest.wal != wal:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"Write-ahead log {wal} has no open range of the partition.")
