"""Which open transactions are committed, and which aborted, after their coordinator's log has lost its end (ADR 0037, J46). Pure.

The lost records had the decisions. What is left of a decision are markers, and Prepare records that were not lost. Of a
transaction of the second protocol, or one that was fenced, the marker has the epoch after the transaction's: it belongs to this
transaction alone. In the first protocol a producer keeps its epoch. There a marker says when its transaction was decided and which
partitions it has, so it belongs to what is open in one of these partitions, unless that partition has this marker, or a later one,
already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from app.transactions.markers import Marker
from app.transactions.state import EPOCH_MAX, PREPARED, VERSION_2, ProducerIdentity, Transaction
from app.units import ProducerEpoch, ProducerId, TopicPartition


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
    """What the record of a transaction says of its end; None if it is not decided, or has all its markers."""
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
    """What has to be looked up before ``decide``: at most one doubt for each open transaction.

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

    A marker has the epoch above its transaction's. So it fences the producer, and whoever decides again after a crash in between
    finds the same outcome by the epoch alone.
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
