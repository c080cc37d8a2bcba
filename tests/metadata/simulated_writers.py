"""Several writers of one numbered log on virtual time, over a store with faults, and what must be true of the outcome.

A script is data: for each writer a list of steps. Writers run at the same time; latencies, lost answers, late requests and
503s come from the script's faults. ``Witness`` is the store: it remembers the first bytes ever stored under every entry key,
which is the true history whatever compaction deletes later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from app.core.errors import ConflictError, CorruptionError, FencedError, FirnError, StorageUnavailable
from app.metadata.log import layout
from app.metadata.log.log_format import Entry, decode_entry
from app.metadata.log.numbered_log import LogTimings, NumberedLog
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from tests.metadata.support import FixedClock, Replay, key, value
from tests.sim.violation import Violation
from tests.support.virtual_loop import VirtualClock, VirtualLoop, run_virtual

PREFIX = "cluster"
LogFactory = Callable[..., NumberedLog[Replay]]


class Step(Enum):
    """What a writer does next."""

    SEAL = "seal"
    APPEND = "append"
    APPEND_MANY = "append many"
    SNAPSHOT = "snapshot"
    POLL = "poll"
    RESTART = "restart"
    RESTART_FROM_CACHE = "restart from cache"
    SLEEP = "sleep"
    LONG_SLEEP = "long sleep"
    CANCEL = "cancel an append"


@dataclass(frozen=True)
class Script:
    """One run: the steps of each writer, how bad the store is, and the seed of everything else."""

    steps: tuple[tuple[Step, ...], ...]
    fault_probability: float
    seed: int


def random_script(seed: int) -> Script:
    rng = random.Random(seed)
    weights = {Step.APPEND: 6, Step.APPEND_MANY: 2, Step.SNAPSHOT: 4, Step.SEAL: 2}
    steps = list(Step)
    return Script(
        tuple(
            tuple(rng.choices(steps, [weights.get(step, 1) for step in steps], k=rng.randrange(5, 40)))
            for _ in range(rng.randrange(1, 4))
        ),
        rng.choice([0.0, 0.05, 0.2, 0.4]),
        seed,
    )


class Witness(MemoryStore):
    """A store that knows everything that was ever true of it."""

    def __init__(self, *arguments: object, **more: object) -> None:
        super().__init__(*arguments, **more)  # type: ignore[arg-type]
        self.first: dict[str, bytes] = {}
        self.late_seals = 0
        """Seals that were put on a number that had been deleted: they are no part of the log."""

    def _store(self, object_key: str, data: bytes) -> None:
        if object_key.startswith(layout.log_prefix(PREFIX)) and self.first.setdefault(object_key, data) != data:
            parsed = layout.parse_numbered_key(object_key)
            assert parsed is not None
            if not decode_entry(object_key, parsed.sequence, data).is_seal:
                raise Violation("INV-13", f"{object_key} was given to two different entries")
            self.late_seals += 1
        super()._store(object_key, data)

    def _remove(self, object_key: str) -> None:
        parsed = layout.parse_numbered_key(object_key)
        if (
            object_key in self.first
            and parsed
            and decode_entry(object_key, parsed.sequence, self.first[object_key]).is_seal
        ):
            raise Violation("INV-13", f"the seal {object_key} was deleted")
        super()._remove(object_key)

    def journal(self) -> list[Entry]:
        """Every entry that was ever stored, in order."""
        entries = []
        for sequence in range(len(self.first)):
            entry_key = layout.entry_key(PREFIX, sequence)
            if entry_key not in self.first:
                raise Violation("INV-13", f"{entry_key} was never written, but a later one was")
            entries.append(decode_entry(entry_key, sequence, self.first[entry_key]))
        return entries


@dataclass
class Outcome:
    """What the writers were told."""

    store: Witness
    acknowledged: list[tuple[int, str, int]] = field(default_factory=list)
    """(number of the entry, writer, payload)."""
    refused: list[int] = field(default_factory=list)
    """Payloads that were told to be lost to another writer."""
    fenced: int = 0
    appends: int = 0


def faults_of(script: Script) -> list[Fault]:
    probability = script.fault_probability
    if not probability:
        return [Fault(FaultKind.LATENCY, latency_ms=(1, 100))]
    return [
        Fault(FaultKind.LATENCY, latency_ms=(1, 100)),
        Fault(FaultKind.LATENCY, probability=probability / 4, latency_ms=(500, 20_000)),
        Fault(FaultKind.UNAVAILABLE, probability=probability / 2),
        Fault(FaultKind.LOST_ANSWER, probability=probability),
        Fault(FaultKind.APPLIED_LATE, operation="put_if_absent", probability=probability, latency_ms=(10, 60_000)),
        Fault(FaultKind.HANG_APPLIED, probability=probability / 8),
        Fault(FaultKind.HANG, probability=probability / 8),
        Fault(FaultKind.SHORT_ANSWER, probability=probability / 8),
        Fault(FaultKind.FLIPPED_BYTE, operation="get", probability=probability / 16),
    ]


class Actor:
    """One broker: restarts under new writer ids, keeps at most one log open."""

    def __init__(self, index: int, store: Witness, rng: random.Random, outcome: Outcome, factory: LogFactory) -> None:
        self._index = index
        self._store = store
        self._rng = rng
        self._outcome = outcome
        self._factory = factory
        self._starts = 0
        self._log: NumberedLog[Replay] | None = None

    async def play(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            try:
                await self._do(step)
            except FencedError:
                self._outcome.fenced += 1
                self._log = None
            except (ConflictError, StorageUnavailable, CorruptionError):
                # Told that it is undecided or lost: the next step starts from wherever this left the log.
                continue

    async def _do(self, step: Step) -> None:
        if self._log is None:
            await self._open(None)
        assert self._log is not None
        log = self._log
        match step:
            case Step.SEAL:
                await log.seal(log.next_sequence)
            case Step.APPEND:
                await self._write(log)
            case Step.APPEND_MANY:
                for _ in range(self._rng.randrange(2, 12)):
                    await self._write(log)
            case Step.CANCEL:
                with_deadline = asyncio.wait_for(self._write(log), self._rng.uniform(0, 0.1))
                try:
                    await with_deadline
                except TimeoutError:
                    return
            case Step.SNAPSHOT:
                await log.snapshot()
            case Step.POLL:
                await log.poll()
                self._check_reader(log)
            case Step.RESTART:
                self._log = None
                await self._open(None)
            case Step.RESTART_FROM_CACHE:
                cached = log.to_cache()
                self._log = None
                await self._open(cached)
            case Step.SLEEP:
                await asyncio.sleep(self._rng.uniform(0, 1))
            case Step.LONG_SLEEP:
                await asyncio.sleep(self._rng.uniform(0, 200))

    async def _open(self, cached: bytes | None) -> None:
        self._starts += 1
        log = self._factory(
            self._store,
            PREFIX,
            writer_id=f"{self._index}.{self._starts}",
            rng=random.Random(self._rng.random()),
            clock=FixedClock(),
            new_state=Replay,
            timings=LogTimings(append_deadline_s=20, attempt_timeout_s=3, read_deadline_s=20),
        )
        await log.load(cached)
        self._check_reader(log)
        self._log = log

    async def _write(self, log: NumberedLog[Replay]) -> None:
        if not log.is_writer:
            await log.seal(log.next_sequence)
        self._outcome.appends += 1
        payload = self._outcome.appends
        records = [(key(self._rng.randrange(12)), value(payload)), (key("payload"), value(payload))]
        if self._rng.random() < 0.2:
            records.append((key(self._rng.randrange(12)), None))
        try:
            sequence = await log.append(log.next_sequence, records)
        except (ConflictError, FencedError):
            self._outcome.refused.append(payload)
            raise
        self._outcome.acknowledged.append((sequence, log.writer_id, payload))
        if log.next_sequence != sequence + 1:
            raise Violation("INV-13", "an acknowledged entry is not applied")

    def _check_reader(self, log: NumberedLog[Replay]) -> None:
        """What was read is the replay of the true history through there."""
        check_state(log, self._store.journal()[: log.next_sequence])


def check_state(log: NumberedLog[Replay], journal: list[Entry]) -> None:
    if len(journal) != log.next_sequence:
        raise Violation("INV-13", f"{log.next_sequence} entries were read, {len(journal)} were written")
    truth = Replay()
    for entry in journal:
        truth.apply(entry)
    if dict(log.live) != truth.records or log.state.records != truth.records:
        raise Violation("INV-13", "snapshot and tail differ from a replay of everything")
    seals = [entry for entry in journal if entry.is_seal]
    if seals and log.writer.writer_id != seals[-1].writer_id:
        raise Violation("INV-13", "a reader takes another for the writer")


def check_history(journal: list[Entry], outcome: Outcome) -> None:
    """One writer decides, and nothing that was acknowledged is lost."""
    writer = ""
    for entry in journal:
        if entry.is_seal:
            writer = entry.writer_id
        elif entry.writer_id != writer:
            raise Violation("INV-13", f"entry {entry.sequence} is of {entry.writer_id}, though {writer} had sealed")
    for sequence, writer_id, payload in outcome.acknowledged:
        if sequence >= len(journal):
            raise Violation("INV-13", f"acknowledged entry {sequence} is not in the log")
        entry = journal[sequence]
        if entry.writer_id != writer_id or (key("payload"), value(payload)) not in entry.records:
            raise Violation("INV-13", f"entry {sequence} was acknowledged to {writer_id} and is another's")
    written = {record for entry in journal for record in entry.records}
    for payload in outcome.refused:
        if (key("payload"), value(payload)) in written:
            raise Violation("INV-13", f"{payload} was refused and is in the log")


def run_script(script: Script, factory: LogFactory = NumberedLog) -> Outcome:
    """Raises: Violation."""

    async def main(loop: VirtualLoop) -> Outcome:
        rng = random.Random(script.seed)
        store = Witness(VirtualClock(loop), random.Random(script.seed + 1), faults_of(script))
        outcome = Outcome(store)
        actors = [
            Actor(index, store, random.Random(rng.random()), outcome, factory) for index in range(len(script.steps))
        ]
        violation: Violation | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for actor, steps in zip(actors, script.steps, strict=True):
                    group.create_task(actor.play(steps))
        except BaseExceptionGroup as failures:
            found, others = failures.split(Violation)
            if others is not None or found is None:
                raise
            violation = next(iter(_leaves(found)))
        if violation is not None:
            raise violation
        store.faults = []
        # Requests that are still under way arrive.
        await asyncio.sleep(100)
        journal = store.journal()
        check_history(journal, outcome)
        late = factory(store, PREFIX, writer_id="late", rng=rng, clock=FixedClock(), new_state=Replay)
        await late.load()
        check_state(late, journal)
        return outcome

    return run_virtual(main)


def _leaves(group: BaseExceptionGroup[Violation]) -> list[Violation]:
    found: list[Violation] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


__all__ = ["FirnError", "Script", "Step", "random_script", "run_script"]
