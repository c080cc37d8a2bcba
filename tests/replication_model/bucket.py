"""The bucket: numbered logs that are put if absent, and signs of life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from app.core.units import NO_TIMESTAMP, LogSequence
from app.metadata.log.append_attempt import PutOutcome, ReadOutcome
from app.metadata.log.log_format import NO_NONCE, Entry
from tests.sim.requests import StoreRequests
from tests.sim.timeline import Timeline
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.replication_model.process import Process


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


class Bucket(StoreRequests):
    """What is stored, and how to reach it."""

    latency_ms = (15.0, 60.0)
    timeout_ms = 1000.0
    late_ms = (300.0, 9000.0)
    loses_responses = False
    """Here they get lost by ``undecided_share`` alone: the seeds of the planted faults are counted with that."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        super().__init__(timeline, rng)
        self.logs: dict[str, dict[int, LogEntry]] = {}
        self.beats_ms: dict[int, float] = {}
        """When each broker put its last sign of life."""
        self.on_stored: Callable[[str, LogEntry], None] = lambda name, entry: None

    def end(self, name: str) -> int:
        """The first number without an entry."""
        return len(self.logs.get(name, ()))

    def put_if_absent(self, process: Process, name: str, entry: LogEntry, done: Callable[[PutOutcome], None]) -> None:
        """PUT with If-None-Match."""
        self.ask(
            process,
            lambda: self._store(name, entry),
            lambda found: done(PutOutcome.UNDECIDED if found is None else found),
        )

    def read(self, process: Process, name: str, sequence: int, done: Callable[[LogEntry | ReadOutcome], None]) -> None:
        """GET of one entry."""
        self.ask(
            process,
            lambda: self.logs.get(name, {}).get(sequence, ReadOutcome.MISSING),
            lambda found: done(ReadOutcome.UNDECIDED if found is None else found),
            only_reads=True,
        )

    def read_from(self, process: Process, name: str, start: int, done: Callable[[list[LogEntry] | None], None]) -> None:
        """LIST and GET of all entries from ``start`` on; None if that failed."""

        def look() -> list[LogEntry]:
            log = self.logs.get(name, {})
            return [log[number] for number in range(start, len(log))]

        self.ask(process, look, done, only_reads=True, back=1.0)

    def beat(self, process: Process, broker_id: int) -> None:
        """Put a sign of life."""
        if process.node_id not in self.away_from:
            self.beats_ms[broker_id] = self.timeline.now_ms

    def ages_ms(self, process: Process, done: Callable[[dict[int, float] | None], None]) -> None:
        """How old each broker's sign of life is; None if that is not known."""
        if process.node_id in self.away_from:
            self.time_out(process, done)
            return
        now_ms = self.timeline.now_ms
        ages_ms = {broker: now_ms - beat_ms for broker, beat_ms in self.beats_ms.items()}
        process.after(self.rng.uniform(*self.latency_ms), done, ages_ms)

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
