"""The bucket: objects of write-ahead logs, manifests, and the cluster log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from app.core.errors import CorruptionError
from app.core.units import TopicIdPartition
from app.hot.indexes import AbortedTransaction
from app.metadata.image.wal_ranges import WalId
from app.wal.format import PartitionState, WalFooter, decode_whole
from tests.sim.requests import StoreRequests
from tests.sim.timeline import Timeline
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.wal_simulation.checkers import Checkers
    from tests.wal_simulation.process import Process

Values = list[int]


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in the tier, with what its footer says of the log at its end."""

    start: int
    end: int
    values: tuple[int, ...]
    state: PartitionState
    """Lineage and producers at ``end``, with the older batches of each producer."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """Transactions whose abort marker is in it."""


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


class Bucket(StoreRequests):
    """What is stored. Outcomes are None while they are not known."""

    def __init__(self, timeline: Timeline, rng: Random, checkers: Checkers) -> None:
        super().__init__(timeline, rng)
        self.checkers = checkers
        self.wals: dict[WalId, dict[int, Stored]] = {}
        self.manifests: dict[TopicIdPartition, Manifest] = {}
        self.wals_away_from: set[int] = set()
        """Machines that cannot reach the store of the write-ahead logs, which may be another one."""
        self.main_away_from: set[int] = set()
        """Machines that cannot reach the store of the cluster log and the segments, but perhaps that of the logs."""
        self.corrupt_share = 0.0
        """Of objects that are read, how many arrive with a wrong byte."""
        self.page = 1000
        """How many numbers one LIST has."""

    def _ask_wals(self, process: Process, apply: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if process.node_id in self.wals_away_from:
            self.time_out(process, done)
        else:
            self.ask(process, apply, done)

    def ask_main(self, process: Process, apply: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Have ``apply`` done in the store of the cluster log and the segments."""
        if process.node_id in self.main_away_from:
            self.time_out(process, done)
        else:
            self.ask(process, apply, done)

    # --- write-ahead logs -----------------------------------------------------------------------------------------------

    def put(self, process: Process, wal: WalId, number: int, data: bytes, done: Callable[[Any], None]) -> None:
        """Put if absent. Outcome: whether it was written."""
        self._ask_wals(process, lambda: self._put(wal, number, data), process.step("put", done))

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
        """An object. Outcome: ``Stored``, or "missing"; None also if a byte was wrong, so it is read again."""

        def told(found: Any) -> None:
            if isinstance(found, Stored) and self.corrupt_share and self.rng.random() < self.corrupt_share:
                self._notice_corruption(found, wal, number)
                found = None
            done(found)

        self._ask_wals(process, lambda: self.wals.get(wal, {}).get(number, "missing"), told)

    def _notice_corruption(self, found: Stored, wal: WalId, number: int) -> None:
        """Whoever reads an object notices any wrong byte."""
        broken = bytearray(found.data)
        broken[self.rng.randrange(len(broken))] ^= 1 << self.rng.randrange(8)
        try:
            decode_whole(bytes(broken), f"wal/{wal}/{number}", wal, number)
        except CorruptionError:
            return
        raise Violation("damage", f"a wrong byte of object {number} of log {wal} is not noticed")

    def list_numbers(self, process: Process, wal: WalId, above: int, done: Callable[[Any], None]) -> None:
        """Outcome: the numbers of the log above ``above``, in order. A LIST gives a page, and others change the log in between."""
        numbers: list[int] = []

        def page_after(last: int) -> None:
            self._ask_wals(
                process,
                lambda: sorted(each for each in self.wals.get(wal, {}) if each > last)[: self.page],
                listed,
            )

        def listed(found: list[int] | None) -> None:
            if found is None:
                done(None)
                return
            numbers.extend(found)
            if len(found) < self.page:
                done(numbers)
            else:
                page_after(found[-1])

        page_after(above)

    def list_wals(self, process: Process, done: Callable[[Any], None]) -> None:
        """Outcome: the logs that have objects."""
        self._ask_wals(process, lambda: [wal for wal, log in self.wals.items() if log], done)

    def delete(self, process: Process, wal: WalId, numbers: list[int], done: Callable[[Any], None]) -> None:
        """Delete objects. Outcome: True."""
        self._ask_wals(process, lambda: self._delete(wal, numbers), process.step("trim", done))

    def lose(self, wal: WalId, number: int) -> None:
        """The store breaks its promise."""
        del self.wals[wal][number]

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
        self.ask_main(process, lambda: self.manifest(partition), done)

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
            if leader_epoch < before.leader_epoch:
                return False
            if (
                not before.tiered_end <= segment.start <= max(before.tiered_end, before.log_start)
                or segment.end <= before.tiered_end
            ):
                return False
            self.manifests[partition] = Manifest(leader_epoch, before.log_start, (*before.segments, segment))
            self.checkers.segment_tiered(partition, segment)
            return True

        self.ask_main(process, apply, done)

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

        self.ask_main(process, apply, done)
