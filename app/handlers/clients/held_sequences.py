"""Keeps the order of idempotent producers across refusals that they retry (ADR 0042).

A producer has several batches in flight on a connection. If the first ones are refused by an error that it retries, because the
partition is not opened yet or has no room, and a later one is then judged by its sequence, that one is out of order. Clients take
this for lost records: they begin a new epoch and send stored batches again. So after such a refusal the later batches of the
producer get the same error, until the missing one comes, or is stored by another leader, or the epoch changes.

``HeldSequences`` belongs to one connection, and exists only while a batch is missing. Pure.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from app.core.errors import RETRIABLE, FirnError, SequenceRefused, copy_of, kafka_code
from app.core.limits import BATCH_OVERHEAD_BYTES
from app.core.log_events import Event
from app.hot.producers import SEQUENCE_MASK
from app.records.batch import PRODUCER_POSITION
from app.wire.produce import TopicRef

if TYPE_CHECKING:
    from app.handlers.base.views import ProduceView
    from app.hot.producers import ProducerEntry
    from app.replication.partition import Partition

PLACES_MAX: Final = 2_000
"""Producers' partitions of one connection. Later ones are not remembered, and judged by their sequence."""
HELD_MS: Final = 30_000
"""So long after its last refusal a missing batch counts as given up by its client, whose pauses are much shorter."""

_IDENTITY: Final = Struct(">qhi")
_HALF: Final = (SEQUENCE_MASK + 1) // 2

Place: TypeAlias = tuple[TopicRef, int, int]
"""Topic and partition, as the client names them, and producer id."""


class Sequenced(NamedTuple):
    """Which batch of which idempotent producer a partition was sent."""

    producer_id: int
    epoch: int
    sequence: int


def sequenced(records: memoryview | None) -> Sequenced | None:
    """None if the batch has no sequence, or is too short to have one."""
    if records is None or len(records) < BATCH_OVERHEAD_BYTES:
        return None
    found = Sequenced._make(_IDENTITY.unpack_from(records, PRODUCER_POSITION))
    return found if found.producer_id >= 0 and found.sequence >= 0 else None


class _Missing(NamedTuple):
    epoch: int
    sequence: int
    error: FirnError
    refused_ms: int


class HeldSequences:
    """The batches of one connection that were refused by an error that their producers retry, the first of each producer."""

    __slots__ = ("_missing",)

    def __init__(self) -> None:
        self._missing: dict[Place, _Missing] = {}

    @property
    def is_empty(self) -> bool:
        return not self._missing

    def refused(self, topic: TopicRef, index: int, batch: Sequenced, error: FirnError, now_ms: int) -> None:
        """A batch was refused, and nothing of it appended."""
        place = topic, index, batch.producer_id
        known = self._missing.get(place)
        if known is not None and known.epoch == batch.epoch and _is_after(batch.sequence, known.sequence):
            return
        self._missing.pop(place, None)
        if kafka_code(error) not in RETRIABLE:
            return  # the client will not send this one again
        self.forget_old(now_ms)
        if known is None and len(self._missing) >= PLACES_MAX:
            return  # to forget an older one would let the batches behind it pass
        self._missing[place] = _Missing(batch.epoch, batch.sequence, copy_of(error), now_ms)

    def forget_old(self, now_ms: int) -> None:
        """Forget batches that their clients have given up, or send elsewhere by now."""
        missing = self._missing  # the one that was refused first is the first
        while missing and now_ms - next(iter(missing.values())).refused_ms >= HELD_MS:
            del missing[next(iter(missing))]

    def held(
        self,
        topic: TopicRef,
        index: int,
        batch: Sequenced,
        entry: ProducerEntry | None,
        now_ms: int,
    ) -> FirnError | None:
        """The error that a batch gets because an earlier one is missing; None if it may be judged by its sequence.

        ``entry``: the log's state of the producer. It includes batches that another leader has stored meanwhile.
        """
        place = topic, index, batch.producer_id
        missing = self._missing.get(place)
        if missing is None or batch == (batch.producer_id, missing.epoch, missing.sequence):
            return None
        if (
            missing.epoch != batch.epoch
            or now_ms - missing.refused_ms >= HELD_MS
            or (entry is not None and entry.epoch == batch.epoch and _reaches(entry.last_sequence, missing.sequence))
        ):
            del self._missing[place]
            return None
        return copy_of(missing.error) if _is_after(batch.sequence, missing.sequence) else None

    def appended(self, topic: TopicRef, index: int, batch: Sequenced) -> None:
        """A batch is in the log."""
        place = topic, index, batch.producer_id
        missing = self._missing.get(place)
        if missing is not None and (missing.epoch, missing.sequence) == (batch.epoch, batch.sequence):
            del self._missing[place]


def _is_after(sequence: int, other: int) -> bool:
    """Sequences continue at 0 after the maximum."""
    return 0 < (sequence - other) & SEQUENCE_MASK < _HALF


def _reaches(last_sequence: int, sequence: int) -> bool:
    return last_sequence >= 0 and (last_sequence - sequence) & SEQUENCE_MASK < _HALF


def tell_refused(context: ProduceView, partition: Partition, error: SequenceRefused) -> None:
    """Count a batch that was refused for its sequence, and tell of it in the log (at most so many lines in a while)."""
    context.metrics.refused_sequences(error.reason).value += 1
    context.client_line(
        Event.BATCH_OUT_OF_SEQUENCE.line(
            f"{partition.log.topic_partition} refused a batch of producer {error.producer_id}: epoch {error.epoch}, sequence "
            f"{error.sequence}; the log is at epoch {error.known_epoch} and expects sequence {error.expected} ({error.reason})",
            producer_id=int(error.producer_id),
        )
    )
