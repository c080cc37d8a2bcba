"""The bucket: numbered logs that are put if absent, and signs of life. Requests may stay undecided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from app.core.units import NO_TIMESTAMP, LogSequence
from app.metadata.log.append_attempt import PutOutcome, ReadOutcome
from app.metadata.log.log_format import NO_NONCE, Entry
from tests.sim.timeline import Timeline
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.replication_model.process import Process

LATENCY_MS: Final = (15.0, 60.0)
TIMEOUT_MS: Final = 1000.0
"""Of one request."""
LATE_MS: Final = (300.0, 9000.0)
"""When a PUT that was given up is applied after all."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a numbered log. What an attempt needs of ``log_format.Entry``, and what was written."""

    sequence: int
    writer_id: str
    nonce: bytes
    is_seal: bool
    epoch: int
    previous: bytes
    records: Any

    def as_entry(self) -> Entry:
        """What ``AppendAttempt`` looks at."""
        return Entry(
            LogSequence(self.sequence),
            self.writer_id,
            self.nonce,
            self.is_seal,
            self.epoch,
            self.previous,
            NO_TIMESTAMP,
            (),
        )


class Bucket:
    """What is stored, and how to reach it."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self._timeline = timeline
        self._rng = rng
        self.logs: dict[str, dict[int, LogEntry]] = {}
        self.beats_ms: dict[int, float] = {}
        """When each broker put its last sign of life."""
        self.away_from: set[int] = set()
        """Machines that cannot reach it."""
        self.undecided_share = 0.0
        self.on_stored: Callable[[str, LogEntry], None] = lambda name, entry: None

    def end(self, name: str) -> int:
        """The first number without an entry."""
        return len(self.logs.get(name, ()))

    def put_if_absent(self, process: Process, name: str, entry: LogEntry, done: Callable[[PutOutcome], None]) -> None:
        """PUT with If-None-Match."""
        rng = self._rng
        latency_ms = rng.uniform(*LATENCY_MS)
        if process.node_id in self.away_from:
            process.after(TIMEOUT_MS, done, PutOutcome.UNDECIDED)
            return
        if self.undecided_share and rng.random() < self.undecided_share:
            fate = rng.randrange(3)
            if fate == 0:
                self._timeline.after(latency_ms, self._store, name, entry)
            elif fate == 1:
                self._timeline.after(rng.uniform(*LATE_MS), self._store, name, entry)
            process.after(TIMEOUT_MS, done, PutOutcome.UNDECIDED)
            return
        self._timeline.after(latency_ms / 2, self._put, process, name, entry, done, latency_ms / 2)

    def read(self, process: Process, name: str, sequence: int, done: Callable[[LogEntry | ReadOutcome], None]) -> None:
        """GET of one entry."""

        def look() -> None:
            found = self.logs.get(name, {}).get(sequence)
            process.after(latency_ms / 2, done, found if found is not None else ReadOutcome.MISSING)

        latency_ms = self._rng.uniform(*LATENCY_MS)
        if process.node_id in self.away_from or (self.undecided_share and self._rng.random() < self.undecided_share):
            process.after(TIMEOUT_MS, done, ReadOutcome.UNDECIDED)
            return
        self._timeline.after(latency_ms / 2, look)

    def read_from(self, process: Process, name: str, start: int, done: Callable[[list[LogEntry] | None], None]) -> None:
        """LIST and GET of all entries from ``start`` on; None if that failed."""

        def look() -> None:
            log = self.logs.get(name, {})
            process.after(latency_ms, done, [log[n] for n in range(start, len(log))])

        latency_ms = self._rng.uniform(*LATENCY_MS)
        if process.node_id in self.away_from or (self.undecided_share and self._rng.random() < self.undecided_share):
            process.after(TIMEOUT_MS, done, None)
            return
        self._timeline.after(latency_ms / 2, look)

    def beat(self, process: Process, broker_id: int) -> None:
        """Put a sign of life."""
        if process.node_id not in self.away_from:
            self.beats_ms[broker_id] = self._timeline.now_ms

    def ages_ms(self, process: Process, done: Callable[[dict[int, float] | None], None]) -> None:
        """How old each broker's sign of life is; None if that is not known."""
        if process.node_id in self.away_from:
            process.after(TIMEOUT_MS, done, None)
            return
        now_ms = self._timeline.now_ms
        ages_ms = {broker: now_ms - beat_ms for broker, beat_ms in self.beats_ms.items()}
        process.after(self._rng.uniform(*LATENCY_MS), done, ages_ms)

    def _put(self, process: Process, name: str, entry: LogEntry, done: Any, back_ms: float) -> None:
        outcome = self._store(name, entry)
        process.after(back_ms, done, outcome)

    def _store(self, name: str, entry: LogEntry) -> PutOutcome:
        log = self.logs.setdefault(name, {})
        if entry.sequence in log:
            return PutOutcome.EXISTS
        if entry.sequence != len(log):
            raise Violation(
                "INV-13", f"{entry.writer_id} writes entry {entry.sequence} of {name}, which ends at {len(log)}"
            )
        log[entry.sequence] = entry
        self.on_stored(name, entry)
        return PutOutcome.WRITTEN


NO_ENTRY: Final = LogEntry(-1, "", NO_NONCE, False, -1, NO_NONCE, ())
