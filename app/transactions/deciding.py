"""Which open transactions are committed, and which aborted, after their coordinator's log has lost its end (ADR 0037, J46). Pure.

The lost records had the decisions. Two traces of a decision are left: its markers, and Prepare records that were not lost. The
marker of a fenced transaction, or of one of the second protocol, has the epoch after the transaction's. So it belongs to this
transaction alone. In the first protocol a producer keeps its epoch. There a marker has the time of the decision and the
transaction's partitions. It belongs to the open transaction in each of these partitions, unless the partition already has this
marker or a later one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from app.core.units import ProducerEpoch, ProducerId, TopicPartition
from app.transactions.markers import Marker
from app.transactions.state import EPOCH_MAX, PREPARED, VERSION_2, ProducerIdentity, Transaction


class OpenTransaction(NamedTuple):
    """A transaction that has no marker in a partition yet."""

    target: TopicPartition
    producer_id: ProducerId
    epoch: ProducerEpoch
    coordinator_epoch: int
    """The highest one that the partition has seen for the producer; -1 if there is none."""


class Outcome(NamedTuple):
    """How a transaction ended, as a marker or a Prepare record says."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    """Of the marker."""
    commit: bool
    decided_ms: int = -1
    """When it was decided, by its coordinator's clock. Rises with each transaction of a producer. -1: the epoch tells all."""
    partitions: frozenset[TopicPartition] = frozenset()
    """The transaction's partitions, in the first protocol."""


class Doubt(NamedTuple):
    """A marker of the first protocol may be that of an open transaction: not if the partition has one as late as this."""

    open: OpenTransaction
    decided_ms: int
    commit: bool


def outcome_of(transaction: Transaction) -> Outcome | None:
    """The outcome in the record of a transaction; None if it is not decided, or has all its markers."""
    if transaction.state not in PREPARED:
        return None
    if transaction.client_version >= VERSION_2:
        return Outcome(transaction.producer_id, transaction.epoch, transaction.commits)
    return Outcome(
        transaction.producer_id,
        transaction.epoch,
        transaction.commits,
        transaction.updated_ms,
        transaction.partitions,
    )


def doubts(opened: Iterable[OpenTransaction], outcomes: Iterable[Outcome]) -> list[Doubt]:
    """The markers to look up before ``decide``: at most one doubt for each open transaction.

    Only the latest marker that names the partition counts. If the partition has it, it has all earlier ones.
    """
    by_producer = _by_producer(outcomes)
    found = []
    for one in opened:
        named = [
            outcome
            for outcome in by_producer.get(one.producer_id, ())
            if outcome.epoch == one.epoch and outcome.decided_ms >= 0 and one.target in outcome.partitions
        ]
        if named:
            last = max(named, key=lambda outcome: outcome.decided_ms)
            found.append(Doubt(one, last.decided_ms, last.commit))
    return found


def decide(
    opened: Iterable[OpenTransaction],
    outcomes: Iterable[Outcome],
    applying: Collection[Doubt],
    coordinator_epoch: int,
) -> list[tuple[TopicPartition, Marker]]:
    """The marker that each open transaction gets: COMMIT if anything says so, else ABORT.

    ``applying``: the doubts whose partition has no marker as late. ``coordinator_epoch``: of the coordinator that decides.

    A marker has the epoch above its transaction's. So it fences the producer. If a crash interrupts the decision, the next
    coordinator finds the same outcome by this epoch alone.
    """
    by_producer = _by_producer(outcomes)
    commits = {doubt.open for doubt in applying if doubt.commit}
    decided = []
    for one in opened:
        after = ProducerEpoch(min(one.epoch + 1, EPOCH_MAX))
        commit = one in commits or any(
            outcome.commit and outcome.epoch == after and outcome.decided_ms < 0
            for outcome in by_producer.get(one.producer_id, ())
        )
        identity = ProducerIdentity(one.producer_id, after)
        epoch = max(coordinator_epoch, one.coordinator_epoch)
        decided.append((one.target, Marker(identity, commit, epoch, VERSION_2)))
    return decided


def _by_producer(outcomes: Iterable[Outcome]) -> dict[ProducerId, Sequence[Outcome]]:
    by_producer: dict[ProducerId, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_producer[outcome.producer_id].append(outcome)
    return dict(by_producer)
