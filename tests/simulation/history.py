"""What producers sent, what was acknowledged, and what anybody has seen: the truth that a run is held against."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from uuid import UUID

from tests.sim.violation import Violation


@dataclass(slots=True, eq=False)
class Batch:
    """One batch of one producer. ``tail`` is all that the broker never changes: from the CRC to the end."""

    number: int
    stream: int
    place: int
    """Its place among the batches of its stream."""
    count: int
    tail: bytes
    timestamps: tuple[int, ...]
    idempotent: bool
    attempts: int = 0
    acked: bool = False
    retired: bool = False
    """Some place of it was lost in a way that is allowed, so it may be anywhere else, or there again."""


@dataclass(slots=True, eq=False)
class Bound:
    """A batch at its offset."""

    batch: Batch
    base: int
    end: int
    epoch: int
    acked: bool = False
    needs_disk: bool = False
    """It must survive a loss of power."""
    tiered: bool = False
    """It must survive the loss of the disk."""

    def is_in(self, tail: bytes, epoch: int) -> bool:
        """Whether a batch at its offset is this one, of the same leader epoch. Two leaders may take the same bytes."""
        return tail == self.batch.tail and (self.epoch < 0 or self.epoch == epoch)


@dataclass(slots=True, eq=False)
class PartitionHistory:
    """Everything about one partition of one topic (by id: a topic made again under the same name is another)."""

    topic: str
    topic_id: UUID
    index: int
    disk: bool
    """``firn.durability=disk``."""
    expires: bool
    """Retention may raise the log start by itself."""
    sent: dict[bytes, Batch] = field(default_factory=dict)
    bound: dict[int, Bound] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)
    ever: dict[tuple[int, int], Batch] = field(default_factory=dict)
    """By leader epoch and base offset, for ever: a pair never means two batches."""
    places: dict[int, int] = field(default_factory=dict)
    """Base offset by batch number, for idempotent batches."""
    seen: dict[int, int] = field(default_factory=dict)
    """Number of offsets by batch number, for the others."""
    log_start_asked: int = 0
    log_start_acked: int = 0
    high_watermark: int = 0
    losses: int = 0
    rotten_from: int | None = None
    deleting: bool = False
    """Somebody has asked to delete the topic; it may be gone."""
    gone: bool = False
    """It was said to be gone."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def end(self) -> int:
        return self.bound[self.bases[-1]].end if self.bases else 0

    def bind(self, batch: Batch, base: int, epoch: int) -> Bound:
        """``batch`` is at ``base``. Raises: Violation if that cannot be."""
        end = base + batch.count
        known = self.bound.get(base)
        if known is not None:
            if known.batch is not batch:
                raise Violation(
                    "INV-1",
                    f"{self.name}: offset {base} was given to batch {known.batch.number} and now to batch {batch.number}",
                )
            if epoch >= 0:
                if known.epoch < 0:
                    known.epoch = epoch
                elif known.epoch != epoch:
                    raise Violation("INV-1", f"{self.name}: batch at {base} was of epoch {known.epoch}, now {epoch}")
                self._bind_epoch(batch, base, epoch)
            return known
        at = bisect_left(self.bases, base)
        before = self.bound[self.bases[at - 1]] if at > 0 else None
        after = self.bases[at] if at < len(self.bases) else None
        if (before is not None and before.end > base) or (after is not None and after < end):
            raise Violation("INV-1", f"{self.name}: [{base}, {end}) overlaps with batches that are there")
        if epoch >= 0:
            self._bind_epoch(batch, base, epoch)
        if batch.idempotent:
            other = self.places.get(batch.number)
            if other is not None and other != base:
                raise Violation("INV-1", f"{self.name}: batch {batch.number} is at {other} and again at {base}")
            self.places[batch.number] = base
        else:
            self.seen[batch.number] = self.seen.get(batch.number, 0) + 1
            if self.seen[batch.number] > batch.attempts and not batch.retired:
                raise Violation("INV-1", f"{self.name}: batch {batch.number} is there more often than it was sent")
        insort(self.bases, base)
        made = self.bound[base] = Bound(batch, base, end, epoch)
        return made

    def _bind_epoch(self, batch: Batch, base: int, epoch: int) -> None:
        known = self.ever.setdefault((epoch, base), batch)
        if known is not batch:
            raise Violation(
                "INV-1",
                f"{self.name}: offset {base} of leader epoch {epoch} was batch {known.number} and is batch {batch.number}",
            )

    def drop_from(self, offset: int) -> None:
        """Forget what was at or past ``offset``: it was lost in a way that is allowed."""
        at = bisect_left(self.bases, offset)
        if at > 0 and self.bound[self.bases[at - 1]].end > offset:
            at -= 1
        for base in self.bases[at:]:
            gone = self.bound.pop(base)
            gone.batch.retired = True
            self.places.pop(gone.batch.number, None)
            if gone.batch.number in self.seen:
                self.seen[gone.batch.number] -= 1
        del self.bases[at:]
        self.high_watermark = min(self.high_watermark, offset)
        self.losses += 1

    def know_marker(self, tail: bytes, timestamp: int) -> None:
        """The end of a transaction: no client sent it, and one may be written again."""
        if tail not in self.sent:
            number = -1 - len(self.sent)
            self.sent[tail] = Batch(number, -1, 0, 1, tail, (timestamp,), idempotent=False, attempts=1 << 30)

    def find(self, offset: int) -> Bound | None:
        """What covers ``offset``, if anybody knows."""
        at = bisect_left(self.bases, offset + 1) - 1
        if at < 0:
            return None
        found = self.bound[self.bases[at]]
        return found if found.end > offset else None
