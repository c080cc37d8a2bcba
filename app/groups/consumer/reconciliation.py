"""Moves one member of a consumer group from its present partitions to its target (KIP-848). Pure.

First a member gives up the partitions that are not in its target, and confirms it. Only then it moves on to the target's epoch.
It gets a partition only when no other member holds it. So two members never hold the same partition:

    STABLE ──(newer target)──► UNREVOKED_PARTITIONS ──(revoked)──► UNRELEASED_PARTITIONS ──(all free)──► STABLE

A middle state is skipped if there is nothing to revoke, or if others hold nothing of the target.

Tests: ``tests/groups/test_consumer.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from app.core.errors import ErrorCode, RequestRejected
from app.groups.consumer.assignors import NO_PARTITIONS, Assignment
from app.groups.consumer.consumer_records import NO_EPOCHS, AssignmentEpochs, CurrentAssignment, MemberState

if TYPE_CHECKING:
    from uuid import UUID


def is_reconciled(current: CurrentAssignment, target_epoch: int) -> bool:
    """Whether a member has reached a target."""
    return current.state is MemberState.STABLE and current.member_epoch == target_epoch


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    is_held: Callable[[UUID, int], bool],
) -> CurrentAssignment:
    """The member's next step towards ``target``; ``current`` itself if no step is possible now.

    ``owned`` are the partitions that the member reports; None if it reports none. ``is_held`` returns whether a member, this one
    included, holds a partition or has not given it up.

    Raises: RequestRejected FENCED_MEMBER_EPOCH if only a newer version knows the member's state, and the member does not rejoin.
    """
    match current.state:
        case MemberState.STABLE:
            if current.member_epoch == target_epoch:
                return current
            return _next(current, current.member_epoch, target_epoch, target, owned, is_held)
        case MemberState.UNREVOKED_PARTITIONS:
            if _still_reads(owned, current.pending_revocation):
                return current
            return _next(current, current.member_epoch + 1, target_epoch, target, owned, is_held)
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(current, current.member_epoch, target_epoch, target, owned, is_held)
    if owned is None or owned:
        raise RequestRejected(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
        )
    return _next(current, target_epoch, target_epoch, target, owned, is_held)


def _still_reads(owned: Assignment | None, revoked: Assignment) -> bool:
    """Whether the member may still read a revoked partition. A member without a report may."""
    if owned is None:
        return True
    return any(not partitions.isdisjoint(revoked.get(topic_id, ())) for topic_id, partitions in owned.items())


def _next(
    current: CurrentAssignment,
    member_epoch: int,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    is_held: Callable[[UUID, int], bool],
) -> CurrentAssignment:
    kept: dict[UUID, frozenset[int]] = {}
    revoked: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in current.assigned.items():
        wanted = target.get(topic_id)
        if wanted is None:
            revoked[topic_id] = partitions
        elif partitions <= wanted:
            kept[topic_id] = partitions
        else:
            revoked[topic_id] = partitions - wanted
            if partitions & wanted:
                kept[topic_id] = partitions & wanted
    if revoked and _still_reads(owned, revoked):
        return CurrentAssignment(
            member_epoch,
            current.member_epoch,
            MemberState.UNREVOKED_PARTITIONS,
            kept,
            revoked,
            _epochs(current, (kept, revoked)),
        )
    held_by_others = False
    assigned = dict(kept)
    for topic_id, wanted in target.items():
        missing = wanted - kept[topic_id] if topic_id in kept else wanted
        if not missing:
            continue
        free = frozenset([partition for partition in missing if not is_held(topic_id, partition)])
        held_by_others = held_by_others or len(free) < len(missing)
        if free:
            assigned[topic_id] = kept[topic_id] | free if topic_id in kept else free
    state = MemberState.UNRELEASED_PARTITIONS if held_by_others else MemberState.STABLE
    if assigned == current.assigned:
        assigned_now: Mapping[UUID, frozenset[int]] = current.assigned
    else:
        assigned_now = assigned or NO_PARTITIONS
    if (
        current.state is state
        and current.member_epoch == target_epoch
        and assigned_now is current.assigned
        and not current.pending_revocation
    ):
        return current
    return replace(
        current,
        member_epoch=target_epoch,
        previous_member_epoch=current.member_epoch,
        state=state,
        assigned=assigned_now,
        pending_revocation=NO_PARTITIONS,
        epochs=_epochs(current, (assigned_now,), target_epoch),
    )


def _epochs(current: CurrentAssignment, assignments: Iterable[Assignment], new_epoch: int = 0) -> AssignmentEpochs:
    """The epochs at which the member got its present partitions. New ones have ``new_epoch``."""
    epochs: dict[UUID, dict[int, int]] = {}
    for assignment in assignments:
        for topic_id, partitions in assignment.items():
            before = current.assigned.get(topic_id, frozenset())
            of_topic = epochs.setdefault(topic_id, {})
            for partition in partitions:
                of_topic[partition] = current.epoch_of(topic_id, partition) if partition in before else new_epoch
    return epochs or NO_EPOCHS
