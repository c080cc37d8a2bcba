"""What a machine has on its disk: logs, checkpoints and the marker of how the broker stopped."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from app.core.units import LeaderEpoch, Offset
from app.hot.checkpoints import EpochStart
from app.hot.epochs import LeaderEpochs

Record = tuple[int, int]
"""Leader epoch and value."""


class ReplicaLog:
    """The log of one replica. ``records[i]`` has offset ``start + i``."""

    __slots__ = (
        "checkpoint",
        "epochs",
        "known_tiered_end",
        "known_tiered_epoch",
        "records",
        "start",
        "synced_end",
        "truncations",
    )

    def __init__(self) -> None:
        self.start = 0
        self.records: list[Record] = []
        self.synced_end = 0
        self.epochs = LeaderEpochs()
        self.checkpoint = 0
        """The high watermark that was last written down."""
        self.known_tiered_end = 0
        """Of the newest manifest entry that the broker has seen; kept with its copy of the manifest."""
        self.known_tiered_epoch = -1
        """Leader epoch of the last record in the tier."""
        self.truncations = 0

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.start + len(self.records)

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record, -1 if there is none."""
        return int(self.epochs.latest)

    @property
    def first_epoch(self) -> int:
        """The lowest that is known."""
        entries = self.epochs.entries()
        return int(entries[0].epoch) if entries else -1

    def append(self, records: list[Record]) -> None:
        """Append at the end, in the page cache."""
        for epoch, _ in records:
            self.epochs.assign(LeaderEpoch(epoch), Offset(self.end))
            break
        end = self.end
        for index, (epoch, _) in enumerate(records):
            if index and epoch != records[index - 1][0]:
                self.epochs.assign(LeaderEpoch(epoch), Offset(end + index))
        self.records += records

    def read(self, offset: int, end: int) -> list[Record]:
        """The records of a range that is in the log."""
        return self.records[offset - self.start : end - self.start]

    def truncate_to(self, end: int) -> None:
        """Cut the log. What is cut does not come back with a loss of power."""
        if end < self.end:
            end = max(end, self.start)
            del self.records[end - self.start :]
            self.epochs.truncate_from_end(Offset(end))
            self.synced_end = min(self.synced_end, end)
            self.truncations += 1

    def restart_at(self, offset: int, epochs: list[tuple[int, int]]) -> None:
        """Delete everything and go on at ``offset``, with the epochs of what is below."""
        self.start = offset
        self.records = []
        self.synced_end = offset
        self.epochs.replace(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs)
        self.truncations += 1

    def drop_below(self, offset: int) -> None:
        """Delete local segments."""
        if self.start < offset <= self.end:
            del self.records[: offset - self.start]
            self.start = offset
            self.epochs.truncate_from_start(Offset(offset))

    def lose_power(self, rng: Random) -> None:
        """Some of what was not synced is gone."""
        end = rng.randint(min(self.synced_end, self.end), self.end) if rng.random() < 0.5 else self.synced_end
        if end < self.end:
            del self.records[max(end - self.start, 0) :]
            self.epochs.truncate_from_end(Offset(end))
        self.synced_end = self.end


@dataclass(slots=True)
class Marker:
    """The marker in the data directory."""

    broker_epoch: int
    clean: bool
    boot_id: str


@dataclass(slots=True)
class Disk:
    """One data directory."""

    directory_id: UUID
    node_id: int
    marker: Marker | None = None
    logs: dict[int, ReplicaLog] = field(default_factory=dict)
    """By the partition's index."""

    def copy(self) -> Disk:
        """An image of it."""
        return Disk(
            self.directory_id,
            self.node_id,
            deepcopy(self.marker),
            {index: _copy(log) for index, log in self.logs.items()},
        )


def _copy(log: ReplicaLog) -> ReplicaLog:
    copied = ReplicaLog()
    copied.start, copied.records, copied.synced_end = log.start, list(log.records), log.synced_end
    copied.epochs = LeaderEpochs(log.epochs.entries())
    copied.checkpoint = log.checkpoint
    copied.known_tiered_end, copied.known_tiered_epoch = log.known_tiered_end, log.known_tiered_epoch
    return copied
