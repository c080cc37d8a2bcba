"""The bucket: objects of write-ahead logs, manifests, and the cluster log. Answers get lost, requests land late, or never.

What a request does happens at one moment. A request that was sent goes on by itself, whatever becomes of its sender.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from app.errors import CorruptionError
from app.hot.checkpoints import EpochStart
from app.metadata.wal_ranges import WalId
from app.units import TopicIdPartition
from app.wal.format import WalFooter, decode_whole
from tests.replication_model.timeline import Timeline
from tests.replication_model.violation import Violation

if TYPE_CHECKING:
    from tests.wal_simulation.checkers import Checkers
    from tests.wal_simulation.process import Process

LATENCY_MS: Final = (10.0, 50.0)
TIMEOUT_MS: Final = 800.0
LATE_MS: Final = (300.0, 6000.0)
"""When a request that was given up takes effect after all."""

Values = list[int]


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in the tier, with what its footer says of the log at its end."""

    start: int
    end: int
    values: tuple[int, ...]
    epochs: tuple[EpochStart, ...]
    snapshot: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """The segment manifest of a partition. Its appends are conditional on the leader epoch, as seals make them (T1)."""

    leader_epoch: int = -1
    log_start: int = 0
    segments: tuple[Segment, ...] = ()

    @property
    def tiered_end(self) -> int:
        return self.segments[-1].end if self.segments else 0


@dataclass(slots=True)
class Stored:
    """An object."""

    data: bytes
    footer: WalFooter


@dataclass(slots=True)
class Bucket:
    """What is stored, and how to reach it. Outcomes are None while they are not known."""

    timeline: Timeline
    rng: Random
    checkers: Checkers
    wals: dict[WalId, dict[int, Stored]] = field(default_factory=dict)
    manifests: dict[TopicIdPartition, Manifest] = field(default_factory=dict)
    away_from: set[int] = field(default_factory=set)
    """Machines that cannot reach it."""
    undecided_share: float = 0.0
    slow_until_ms: float = -1.0
    slowness: float = 1.0

    def ask(self, process: Process, apply: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Have ``apply`` done in the store, and tell its outcome, or None."""
        rng = self.rng
        latency_ms = rng.uniform(*LATENCY_MS)
        if self.timeline.now_ms < self.slow_until_ms:
            latency_ms *= self.slowness
        if process.node_id in self.away_from:
            process.after(TIMEOUT_MS, done, None)
            return
        if self.undecided_share and rng.random() < self.undecided_share:
            fate = rng.randrange(3)
            if fate == 0:
                self.timeline.after(latency_ms, apply)
            elif fate == 1:
                self.timeline.after(rng.uniform(*LATE_MS), apply)
            process.after(TIMEOUT_MS, done, None)
            return

        def act() -> None:
            found = apply()
            if process.node_id in self.away_from:
                process.after(TIMEOUT_MS, done, None)
            else:
                process.after(latency_ms / 2, done, found)

        self.timeline.after(latency_ms / 2, act)

    # --- write-ahead logs -----------------------------------------------------------------------------------------------

    def put(self, process: Process, wal: WalId, number: int, data: bytes, done: Callable[[Any], None]) -> None:
        """Put if absent. Outcome: whether it was written."""
        self.ask(process, lambda: self._put(wal, number, data), done)

    def _put(self, wal: WalId, number: int, data: bytes) -> bool:
        log = self.wals.setdefault(wal, {})
        if number in log:
            return False
        try:
            stored = Stored(data, decode_whole(data, f"wal/{wal}/{number}", wal, number))
        except CorruptionError as error:
            raise Violation("damage", str(error)) from None
        log[number] = stored
        self.checkers.object_stored(wal, number, stored.footer)
        return True

    def read(self, process: Process, wal: WalId, number: int, done: Callable[[Any], None]) -> None:
        """An object. Outcome: ``Stored``, or "missing"."""
        self.ask(process, lambda: self.wals.get(wal, {}).get(number, "missing"), done)

    def list_numbers(self, process: Process, wal: WalId, above: int, done: Callable[[Any], None]) -> None:
        """Outcome: the numbers of the log above ``above``, in order."""
        self.ask(process, lambda: sorted(each for each in self.wals.get(wal, {}) if each > above), done)

    def list_wals(self, process: Process, done: Callable[[Any], None]) -> None:
        """Outcome: the logs that have objects."""
        self.ask(process, lambda: [wal for wal, log in self.wals.items() if log], done)

    def delete(self, process: Process, wal: WalId, numbers: list[int], done: Callable[[Any], None]) -> None:
        """Delete objects. Outcome: True."""
        self.ask(process, lambda: self._delete(wal, numbers), done)

    def _delete(self, wal: WalId, numbers: list[int]) -> bool:
        log = self.wals.get(wal, {})
        for number in numbers:
            stored = log.pop(number, None)
            if stored is not None:
                self.checkers.object_deleted(wal, number, stored.footer)
        return True

    # --- manifests ------------------------------------------------------------------------------------------------------

    def manifest(self, partition: TopicIdPartition) -> Manifest:
        """As it is now: for the store itself, and for checkers."""
        return self.manifests.get(partition, Manifest())

    def read_manifest(self, process: Process, partition: TopicIdPartition, done: Callable[[Any], None]) -> None:
        """Outcome: the manifest."""
        self.ask(process, lambda: self.manifest(partition), done)

    def append_segment(
        self,
        process: Process,
        partition: TopicIdPartition,
        leader_epoch: int,
        segment: Segment,
        done: Callable[[Any], None],
    ) -> None:
        """Outcome: whether the segment is in the manifest."""

        def apply() -> bool:
            before = self.manifest(partition)
            if segment in before.segments:
                return True
            if leader_epoch < before.leader_epoch or segment.start != before.tiered_end:
                return False
            self.manifests[partition] = Manifest(leader_epoch, before.log_start, (*before.segments, segment))
            self.checkers.segment_tiered(partition, segment)
            return True

        self.ask(process, apply, done)

    def raise_log_start(
        self,
        process: Process,
        partition: TopicIdPartition,
        leader_epoch: int,
        log_start: int,
        done: Callable[[Any], None],
    ) -> None:
        """Outcome: whether the log start is in the manifest."""

        def apply() -> bool:
            before = self.manifest(partition)
            if leader_epoch < before.leader_epoch:
                return False
            self.manifests[partition] = Manifest(leader_epoch, max(log_start, before.log_start), before.segments)
            return True

        self.ask(process, apply, done)
