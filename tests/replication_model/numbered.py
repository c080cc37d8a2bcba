"""One process' face of a numbered log: it applies entries in order, seals and appends. The steps are those of the real log, and an
append goes by the real ``AppendAttempt``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from app.metadata.log.append_attempt import Action, AppendAttempt, GiveUp, Lost, Ours, Put, ReadBack, ReadOutcome
from tests.replication_model.bucket import NO_ENTRY, Bucket, LogEntry

if TYPE_CHECKING:
    from tests.replication_model.process import Process

APPEND_DEADLINE_S: Final = 6.0


class Outcome(Enum):
    """What became of a write."""

    OURS = auto()
    CONFLICT = auto()
    """Another entry has the number. Nothing was written."""
    UNDECIDED = auto()


class NumberedModel:
    """Belongs to one process. One request is under way at a time; others wait for their turn."""

    def __init__(
        self, process: Process, bucket: Bucket, name: str, writer_id: str, apply: Callable[[LogEntry], None]
    ) -> None:
        self._process = process
        self._bucket = bucket
        self.name = name
        self.writer_id = writer_id
        self._apply_entry = apply
        self.last = NO_ENTRY
        self.writer: tuple[str, int] = ("", -1)
        """Who sealed last, and with which epoch."""
        self.sealed = False
        """Whether an append may be tried without a new seal."""
        self._offered: LogEntry | None = None
        self._busy = False
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def next_sequence(self) -> int:
        """Number of the first entry that is not applied yet."""
        return self.last.sequence + 1

    def offer(self, entry: LogEntry) -> bool:
        """Apply an entry that somebody handed out, if it is the next one. Returns: whether everything up to it is applied."""
        if entry.sequence == self.next_sequence and entry.previous == self.last.nonce:
            self._apply(entry)
        return self.last.sequence >= entry.sequence

    def poll(self, done: Callable[[bool], None]) -> None:
        """Apply everything that is in the bucket. ``done`` gets whether that could be read."""

        def read(entries: list[LogEntry] | None) -> None:
            for entry in entries or ():
                if entry.sequence == self.next_sequence:
                    self._apply(entry)
            self._end()
            done(entries is not None)

        self._in_turn(lambda: self._bucket.read_from(self._process, self.name, self.next_sequence, read))

    def seal(self, epoch: int, done: Callable[[Outcome], None]) -> None:
        """Become the writer with the next entry."""
        self._in_turn(lambda: self._write((), True, epoch, None, done))

    def append(
        self,
        expected_sequence: int,
        records: Any,
        done: Callable[[Outcome], None],
        *,
        then: Callable[[LogEntry], None] | None = None,
    ) -> None:
        """Write the next entry. We must have sealed before. ``then`` hears of the entry before it is sent."""

        def start() -> None:
            if not self.sealed or expected_sequence != self.next_sequence:
                self._end()
                done(Outcome.CONFLICT)
                return
            self._write(records, False, self.writer[1], then, done)

        self._in_turn(start)

    def take_for_written(self) -> None:
        """Planted: apply an entry of which it is not known whether it is written."""
        if self._offered is not None and self._offered.sequence == self.next_sequence:
            self._apply(self._offered)
        self.sealed = self.writer[0] == self.writer_id

    def _in_turn(self, start: Callable[[], None]) -> None:
        if self._busy:
            self._waiting.append(start)
        else:
            self._busy = True
            start()

    def _end(self) -> None:
        self._busy = False
        if self._waiting:
            self._busy = True
            self._waiting.popleft()()

    def _write(
        self,
        records: Sequence[Any],
        is_seal: bool,
        epoch: int,
        then: Callable[[LogEntry], None] | None,
        done: Callable[[Outcome], None],
    ) -> None:
        process = self._process
        if is_seal and epoch < self.writer[1]:
            self._end()
            done(Outcome.CONFLICT)
            return
        nonce = process.rng.randbytes(16)
        entry = LogEntry(self.next_sequence, self.writer_id, nonce, is_seal, epoch, self.last.nonce, records)
        attempt = AppendAttempt(
            writer_id=self.writer_id, nonce=nonce, deadline_s=process.now_ms / 1000 + APPEND_DEADLINE_S
        )
        self.sealed = False
        self._offered = entry
        if then is not None:
            then(entry)

        def finish(outcome: Outcome) -> None:
            self._end()
            done(outcome)

        def go(action: Action) -> None:
            match action:
                case Put(delay_s):
                    process.after(delay_s * 1000, put)
                case ReadBack(delay_s):
                    process.after(delay_s * 1000, read)
                case Ours():
                    if self.next_sequence == entry.sequence:
                        self._apply(entry)
                    self.sealed = self.writer[0] == self.writer_id
                    finish(Outcome.OURS)
                case Lost():
                    if self.next_sequence == entry.sequence:
                        self._apply(found_last[0])
                    finish(Outcome.CONFLICT)
                case GiveUp():
                    finish(Outcome.UNDECIDED)

        found_last: list[LogEntry] = []

        def put() -> None:
            self._bucket.put_if_absent(
                process, self.name, entry, lambda outcome: go(attempt.on_put(outcome, process.now_ms / 1000))
            )

        def read() -> None:
            self._bucket.read(process, self.name, entry.sequence, on_read)

        def on_read(found: LogEntry | ReadOutcome) -> None:
            now_s = process.now_ms / 1000
            if isinstance(found, ReadOutcome):
                go(attempt.on_read(found, now_s))
            else:
                found_last[:] = [found]
                go(attempt.on_read(found.as_entry(), now_s))

        go(attempt.start())

    def _apply(self, entry: LogEntry) -> None:
        if entry.is_seal:
            self.writer = (entry.writer_id, entry.epoch)
            if entry.writer_id != self.writer_id:
                self.sealed = False
        self.last = entry
        self._apply_entry(entry)
