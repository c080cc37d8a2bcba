"""The log of a partition on one disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from app.core.units import LeaderEpoch, Offset
from app.hot.epochs import LeaderEpochs
from app.hot.indexes import AbortedTransaction
from app.hot.producers import ProducerStates
from app.wal.format import BatchFields, PartitionState
from app.wal.states import restored

NOTHING_KNOWN: Final = PartitionState(Offset(0), (), b"", ())


class LocalBatch(NamedTuple):
    """A batch on the local disk."""

    fields: BatchFields
    value: int
    state: PartitionState
    """After it."""
    aborted: AbortedTransaction | None = None
    """The transaction that this marker aborts."""

    @property
    def values(self) -> list[int]:
        return [self.value] * (self.fields.last_offset_delta + 1)


@dataclass(slots=True)
class LocalLog:
    """Batches from ``start`` on, and what was known at ``start``."""

    start: int = 0
    batches: list[LocalBatch] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    state_at_start: PartitionState = NOTHING_KNOWN

    @property
    def end(self) -> int:
        return int(self.batches[-1].fields.end_offset) if self.batches else self.start

    def producers(self) -> ProducerStates:
        """Producers at the end."""
        state = self.batches[-1].state if self.batches else self.state_at_start
        return restored(state)[0] if state.snapshot else ProducerStates()

    def append(self, batch: LocalBatch) -> None:
        """A batch at the end."""
        self.epochs.assign(LeaderEpoch(batch.fields.leader_epoch), batch.fields.base_offset)
        self.batches.append(batch)

    def cut(self, end: int) -> None:
        """Forget everything from ``end`` on."""
        self.batches = [batch for batch in self.batches if batch.fields.base_offset < end]
        self.epochs.truncate_from_end(Offset(end))

    def forget_below(self, end: int) -> None:
        """Delete old batches."""
        count = sum(batch.fields.end_offset <= end for batch in self.batches)
        if count:
            last = self.batches[count - 1]
            self.start, self.state_at_start = int(last.fields.end_offset), last.state
            self.batches = self.batches[count:]

    def copy(self) -> LocalLog:
        """For another disk."""
        return LocalLog(self.start, list(self.batches), LeaderEpochs(self.epochs.entries()), self.state_at_start)

    def values_from(self, offset: int, end: int) -> list[int]:
        """Values of [offset, end), up to where they are here; ``offset`` is not below the start."""
        found: list[int] = []
        for batch in self.batches:
            base = batch.fields.base_offset
            if batch.fields.end_offset <= offset:
                continue
            if base >= end:
                break
            for index, value in enumerate(batch.values):
                if offset <= base + index < end:
                    found.append(value)
        return found
