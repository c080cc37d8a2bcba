"""HTTP processes send keyed requests while answers are lost, leaders change, clocks jump and markers are slow (ADR 0043).

The shard of results, the steps of an attempt, the transactions' states and the rule of strength are the program's. The logs, the
network and the processes are small models. Checkers look at what readers of committed records and callers can see. Each rule is
taken back once, and the checker that is meant for it must find that.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from app.configs import Durability
from app.coordinator.partition import ProducerIdAndEpoch, ReplayedBatch
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import whole
from app.core.units import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from app.exactly_once import ages
from app.exactly_once.attempt import (
    Aborted,
    Attempt,
    Busy,
    Found,
    Known,
    Outcome,
    Refused,
    Step,
    Stored,
    Unknown,
)
from app.exactly_once.bounds import Usage
from app.exactly_once.deciding import Fate, TransactionSeen, decide
from app.exactly_once.records import Part, RequestKey, Result, Tick, decode
from app.exactly_once.shard import Accepted, KeyTaken, RequestShard
from app.exactly_once.strength import strength_of, weaker
from app.records.control import ControlType, EndTransactionMarker
from app.transactions import state
from app.transactions.state import PREPARED, ProducerIdentity, Transaction, TransactionState
from tests.sim.planted import assert_found
from tests.sim.violation import Violation

SEEDS = 40
STEPS = 1_200
RETENTION_MS = 3_600_000
JUMPS_MAX = 4
KEYS = tuple(RequestKey("User:a", f"key-{number}".encode()) for number in range(10))
RECORDS = 3
DATA = tuple(TopicPartition("data", PartitionIndex(number)) for number in range(RECORDS))
"""Each record has a partition of its own, as a batch of several would."""
RESULTS = TopicPartition("__http_requests", PartitionIndex(0))
TRIES_MAX = 3
STRONG = strength_of(Durability.DISK, 2, 3)
WEAK = strength_of(Durability.MEMORY, 2, 3)
_POLICY = ErrorCode.POLICY_VIOLATION


class Rules(NamedTuple):
    """The rules that hold; a test takes one back."""

    counts_open: bool = True
    compares_tries: bool = True
    knows_own_repeat: bool = True
    decides_in_the_turn: bool = True
    commits_only_whole: bool = True
    believes_only_success: bool = True
    joins_the_transaction: bool = True
    replays_open: bool = True
    waits_for_commit: bool = True
    is_as_strong: bool = True
    bounds_gaps: bool = True
    decides_after_a_loss: bool = True
    fences_the_unanswered: bool = True


class Shard(RequestShard):
    """The real one, but for rules that were taken back."""

    rules = Rules()

    def accept(
        self,
        turn: Any,
        request: RequestKey,
        result: Result,
        producer: ProducerIdAndEpoch,
        others: Collection[int],
    ) -> Accepted:
        found = self._open.get(request)
        if found is not None:
            mine = found.try_id == result.try_id
            if not self.rules.counts_open or not self.rules.decides_in_the_turn:
                del self._open[request]
            elif not mine and not self.rules.compares_tries:
                return Accepted(found.offset, repeated=True)
            elif mine and not self.rules.knows_own_repeat:
                raise Violation("repeats", "a try is refused because of its own result")
        if not self.rules.decides_in_the_turn:
            others = self._index.find(request.hash64)
        return super().accept(turn, request, result, producer, others)


class Entry(NamedTuple):
    """A batch or a marker of a log."""

    producer_id: int
    epoch: int
    sequence: int = -1
    content: Any = None
    """A record, or (key, value)."""
    commit: bool | None = None
    """Of a marker."""


class Fenced(Exception):
    """The log knows a newer epoch of the producer."""


class Log:
    """A partition with its producers' epochs."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        self.committed = 0
        self.epochs: dict[int, int] = {}
        self.open: dict[int, list[int]] = {}
        """By producer: the offsets of its open transaction."""
        self.fates: dict[int, bool] = {}
        """By offset: whether it is committed."""
        self.places: dict[tuple[int, int, int], int] = {}
        """By producer id, epoch and sequence: the offset."""
        for one in entries:
            self._put(one)

    def _put(self, one: Entry) -> list[int]:
        """Returns: the offsets that a marker decides."""
        offset = len(self.entries)
        self.entries.append(one)
        if one.producer_id < 0:
            return []
        self.epochs[one.producer_id] = max(one.epoch, self.epochs.get(one.producer_id, -1))
        if one.commit is None:
            self.open.setdefault(one.producer_id, []).append(offset)
            if one.sequence >= 0:
                self.places[one[:3]] = offset
            return []
        decided = self.open.pop(one.producer_id, [])
        self.fates.update(dict.fromkeys(decided, one.commit))
        return decided

    def cut(self, end: int) -> Log:
        """The log without the entries from ``end`` on."""
        found = Log(self.entries[:end])
        found.committed = min(self.committed, end)
        return found

    def epoch_of(self, producer_id: int) -> int:
        return self.epochs.get(producer_id, -1)

    def append(self, entry: Entry) -> int:
        """The offset; of the earlier one, if it is a repeat. Raises: Fenced."""
        if entry.producer_id >= 0 and entry.epoch < self.epoch_of(entry.producer_id):
            raise Fenced
        if entry.sequence >= 0 and entry[:3] in self.places:
            return self.places[entry[:3]]
        self._put(entry)
        return len(self.entries) - 1

    def mark(self, producer_id: int, epoch: int, *, commit: bool) -> list[int] | None:
        """Write a marker. Returns: the offsets that it decides; None if it was there."""
        if epoch <= self.epoch_of(producer_id) and producer_id not in self.open:
            return None
        return self._put(Entry(producer_id, epoch, commit=commit))

    def fate(self, offset: int) -> bool | None:
        """Whether the record at an offset is committed; None while its transaction is open."""
        return self.fates.get(offset)


@dataclass
class Process:
    """An HTTP process that serves one keyed request after the other."""

    number: int
    attempt: Attempt | None = None
    request: RequestKey = KEYS[0]
    transactional_id: str = ""
    identity: ProducerIdentity | None = None
    written: dict[int, tuple[TopicPartition, int]] = field(default_factory=dict)
    """By record: where it is."""
    failed: bool = False
    tries: int = 0
    ids_made: int = 0


class World:
    """All of it. It is the turn of the shard, too."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.rng = random.Random(seed)
        self.rules = rules
        self.now = 0
        """True time in ms."""
        self.skew = 0
        self.jumps_left = JUMPS_MAX
        self.strength = WEAK if seed % 4 == 0 else STRONG
        self.logs: dict[TopicPartition, Log] = {target: Log() for target in (*DATA, RESULTS)}
        self.transactions: dict[str, Transaction] = {}
        self.markers: list[tuple[str, TopicPartition, int, int, bool]] = []
        """Markers that are under way: id, partition, producer id, epoch, commit."""
        self.producer_ids = 0
        self.tries = 0
        self.late: list[tuple[Any, ...]] = []
        self.answers: dict[RequestKey, tuple[int, Result]] = {}
        """By key: the last answer that said stored, and when its result was appended."""
        self.aborted: set[bytes] = set()
        """Tries of which an answer said that nothing was written."""
        self.counts: dict[str, int] = {}
        self.when: dict[bytes, int] = {}
        """By try: the true time at which its result was appended."""
        self.processes = [Process(number) for number in range(3)]
        self.next_tick = ages.TICK_MS
        self.committed: dict[RequestKey, dict[bytes, int]] = {}
        """By key: its committed tries, and when they were appended."""
        self.start = 0
        """Records of lower offsets are deleted."""
        self.usage = Usage()
        self.shard = self.replayed()

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    # --- the turn of the shard ----------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.now + self.skew

    @property
    def steady_ms(self) -> int:
        return self.now

    def append(self, records: Any, *, producer: ProducerIdAndEpoch | None = None) -> Offset:
        (record,) = records
        identity = (-1, -1) if producer is None else producer
        self.logs[RESULTS].append(Entry(*identity, content=record))
        return Offset(len(self.logs[RESULTS].entries))

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        assert key is Tick
        self.next_tick = self.now + delay_ms

    def replayed(self) -> Shard:
        self.usage = Usage()
        shard = Shard(self.usage, lambda: RETENTION_MS, buckets=4)
        shard.rules = self.rules
        for offset, one in enumerate(self.logs[RESULTS].entries):
            if offset < self.start:
                continue
            end = Offset(offset + 1)
            epoch = ProducerEpoch(one.epoch)
            if one.commit is None:
                is_open = self.logs[RESULTS].fate(offset) is None and one.producer_id >= 0
                if is_open and not self.rules.replays_open:
                    continue
                producer_id = ProducerId(one.producer_id) if one.producer_id >= 0 else NO_PRODUCER_ID
                shard.load(ReplayedBatch(end, producer_id, epoch, [one.content], None))
            else:
                kind = ControlType.COMMIT if one.commit else ControlType.ABORT
                producer_id = ProducerId(one.producer_id)
                marker = EndTransactionMarker(kind, NO_LEADER_EPOCH, producer_id, epoch, Offset(offset), NO_TIMESTAMP)
                shard.load(ReplayedBatch(end, producer_id, epoch, [], marker))
        shard.loaded(self)  # type: ignore[arg-type]
        return shard

    # --- brokers ------------------------------------------------------------------------------------------------------

    def store(self) -> None:
        self.logs[RESULTS].committed = len(self.logs[RESULTS].entries)

    def fail_over(self) -> None:
        """Another replica leads the results, with all committed records and maybe more."""
        log = self.logs[RESULTS]
        if self.rng.random() < 0.5:
            self.logs[RESULTS] = log.cut(log.committed)
        self.store()
        if self.jumps_left and self.rng.random() < 0.5:
            self.jumps_left -= 1
            self.skew = self.rng.randrange(-5, 6) * RETENTION_MS
        self.shard = self.replayed()
        self.count("failovers")

    def lose_power(self) -> None:
        """All machines lose power: a partition in memory loses its end, and one on disks loses nothing."""
        if not self.strength.power:
            log = self.logs[RESULTS]
            self.logs[RESULTS] = log.cut(self.rng.randrange(max(0, len(log.entries) - 12), len(log.entries) + 1))
            self.store()
            self.decide_after_a_loss()
        self.shard = self.replayed()
        self.count("power")

    def lose_markers(self) -> None:
        """An unclean election takes the end of the results: here, markers that follow the last record."""
        log = self.logs[RESULTS]
        last = max((at for at, one in enumerate(log.entries) if one.commit is None), default=-1)
        if last + 1 < len(log.entries):
            self.logs[RESULTS] = log.cut(last + 1)
            self.store()
            self.count("lost markers")
            self.decide_after_a_loss()
        self.shard = self.replayed()

    def decide_after_a_loss(self) -> None:
        """The partition is held until its open results are decided, as their own records are (EO11)."""
        if not self.rules.decides_after_a_loss:
            return
        log = self.logs[RESULTS]
        for offset, one in list(enumerate(log.entries)):
            if one.commit is not None or one.producer_id < 0 or log.fate(offset) is not None:
                continue
            known = [each for each in self.transactions.values() if each.producer_id == one.producer_id]
            busy = [each for each in known if each.state in state.BUSY]
            seen = None
            if busy:
                decision = busy[0].commits if busy[0].state in PREPARED else None
                seen = TransactionSeen(busy[0].epoch, RESULTS in busy[0].partitions, decision)
            found = decode(*one.content)
            assert found is not None
            assert not isinstance(found, Tick)
            fates = [self.logs[DATA[part.partition]].fate(part.base_offset) for part in found[1].parts]
            fate = decide(one.epoch, seen, fates)
            if fate is Fate.WAITS:
                continue  # its coordinator ends it
            log.mark(one.producer_id, one.epoch + 1, commit=fate is Fate.COMMITTED)
            self.count("decided")
        self.store()

    def initialize(self, transactional_id: str) -> ProducerIdentity | None:
        current = self.transactions.get(transactional_id)
        self.producer_ids += 1
        try:
            after = state.initialize(
                current,
                transactional_id,
                timeout_ms=60_000,
                expected=None,
                spare_id=ProducerId(self.producer_ids),
                now_ms=TimestampMs(self.now),
            )
        except RequestRejected:
            return None
        self.put(after)
        return after.client_identity if after.state is TransactionState.EMPTY else None

    def put(self, after: Transaction) -> None:
        before = self.transactions.get(after.transactional_id)
        self.transactions[after.transactional_id] = after
        if after.state in PREPARED and after is not before:
            for target in sorted(after.partitions):
                self.markers.append((after.transactional_id, target, after.producer_id, after.epoch, after.commits))
            self.complete_if_marked(after.transactional_id)

    def complete_if_marked(self, transactional_id: str) -> None:
        current = self.transactions[transactional_id]
        if current.state in PREPARED and not any(one[0] == transactional_id for one in self.markers):
            self.transactions[transactional_id] = state.complete(current, TimestampMs(self.now))

    def write_marker(self) -> None:
        transactional_id, target, producer_id, epoch, commit = self.markers.pop(self.rng.randrange(len(self.markers)))
        decided = self.logs[target].mark(producer_id, epoch, commit=commit)
        self.store()  # a marker counts once it is stored
        if target != RESULTS:
            self.check_committed(target, decided or [] if commit else [])
        elif decided is not None:
            self.shard.end = Offset(len(self.logs[RESULTS].entries))
            self.shard.complete(ProducerId(producer_id), commit=commit)
        self.complete_if_marked(transactional_id)

    def join(self, transactional_id: str, identity: ProducerIdentity, *targets: TopicPartition) -> bool:
        """Add partitions to a transaction, as a broker that leads them does. Returns: the coordinator's yes."""
        try:
            self.put(
                state.add_partitions(
                    self.transactions.get(transactional_id),
                    identity,
                    targets,
                    client_version=state.VERSION_2,
                    now_ms=TimestampMs(self.now),
                )
            )
        except RequestRejected:
            return False
        return True

    def produce(self, transactional_id: str, identity: ProducerIdentity, record: int, content: Any) -> int | None:
        """Append a record. Returns: its offset; None if it is refused."""
        if not self.join(transactional_id, identity, DATA[record]):
            return None
        return self.append_data(transactional_id, identity, record, content)

    def joined(self, transactional_id: str, identity: ProducerIdentity, target: TopicPartition) -> bool:
        """Whether the coordinator lets the open transaction write to a partition now."""
        try:
            state.check_partition(self.transactions.get(transactional_id), identity, target)
        except RequestRejected:
            return False
        return True

    def append_data(self, transactional_id: str, identity: ProducerIdentity, record: int, content: Any) -> int | None:
        """Append a record in a transaction that its partition has joined. Returns: its offset; None if it is refused."""
        target = DATA[record]
        if not self.joined(transactional_id, identity, target):
            return None
        try:
            return self.logs[target].append(Entry(*identity, sequence=record, content=content))
        except Fenced:
            return None

    def append_result(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        request: RequestKey,
        result: Result,
        *,
        joins: bool = True,
    ) -> Accepted | None:
        """The conditional append. Returns: None if it is refused."""
        admits = self.join if joins else self.joined
        if self.rules.joins_the_transaction and not admits(transactional_id, identity, RESULTS):
            return None
        if identity.epoch < self.logs[RESULTS].epoch_of(identity.producer_id):
            return None
        others = [at for at in self.shard.look(request, result.try_id, self.now).offsets if not self.has(at, request)]
        try:
            accepted = self.shard.accept(
                self,
                request,
                result,
                ProducerIdAndEpoch(*identity),
                others,
            )
        except KeyTaken:
            self.count("taken")
            return None
        except RequestRejected:
            return None  # an earlier result of the producer has lost its marker
        if not accepted.repeated:
            self.when[result.try_id] = self.now
        if self.rules.waits_for_commit:
            self.store()
        return accepted

    def has(self, offset: int, request: RequestKey) -> bool:
        found = decode(*self.logs[RESULTS].entries[offset].content)
        return isinstance(found, tuple) and found[0] == request

    def end(self, transactional_id: str, identity: ProducerIdentity, *, commit: bool) -> bool:
        """EndTxn. Returns: whether it succeeded."""
        try:
            self.put(
                state.end(
                    self.transactions.get(transactional_id),
                    identity,
                    commit=commit,
                    client_version=state.VERSION_2,
                    spare_id=None,
                    now_ms=TimestampMs(self.now),
                )
            )
        except RequestRejected:
            return False
        return True

    def look(self, request: RequestKey, try_id: bytes, *, reserve: bool) -> Found:
        if self.rules.is_as_strong and weaker(self.strength, STRONG) is not None:
            return Refused(RequestRejected(_POLICY, "The results are weaker than the data."))
        standing = self.shard.look(request, try_id, self.now)
        if standing.open is not None:
            return Busy(standing.open.try_id)
        for offset in standing.offsets:
            if self.has(offset, request):
                found = decode(*self.logs[RESULTS].entries[offset].content)
                assert found is not None
                assert not isinstance(found, Tick)
                self.store()
                return Known(found[1])
        if standing.reserved_ms and self.rng.random() < 0.5:
            return Busy(b"")  # else it was reserved at another leader: a courtesy
        if reserve:
            self.shard.reserve(request, try_id, 200, self.now)
        return Unknown()

    def tick(self) -> None:
        self.shard.due(self, Tick)  # type: ignore[arg-type]
        self.start = max(self.start, int(self.shard.start))
        whole(self.shard.drop_expired())

    # --- processes ----------------------------------------------------------------------------------------------------

    def begin(self, process: Process) -> None:
        self.tries += 1
        process.request = self.rng.choice(KEYS)
        body = b"other" if self.rng.random() < 0.05 else b"body"
        process.attempt = Attempt(self.tries.to_bytes(16), body.ljust(32))
        process.written, process.failed, process.tries, process.identity = {}, False, 0, None

    def crash(self, process: Process) -> None:
        process.attempt = None
        process.transactional_id = ""
        self.count("crashes")

    def go_on(self, process: Process) -> None:
        attempt = process.attempt
        assert attempt is not None
        drawn = self.rng.random()
        arrives, is_answered = drawn > 0.10, drawn > 0.22
        match attempt.step:
            case Step.LOOK if not attempt.wrote and (identity := self.kept(process)) and self.rng.random() < 0.8:
                self.send_all(process, attempt, identity, arrives=arrives, is_answered=is_answered)
            case Step.LOOK | Step.SETTLE:
                if not is_answered:
                    process.tries += 1
                    if process.tries > TRIES_MAX:
                        attempt.gave_up()
                else:
                    attempt.found(self.look(process.request, attempt.try_id, reserve=attempt.step is Step.LOOK))
                    self.prepare(process)
            case Step.WRITE:
                self.write(process, attempt, arrives=arrives, is_answered=is_answered)
            case Step.RESULT:
                self.send_result(process, attempt, arrives=arrives, is_answered=is_answered)
            case Step.COMMIT | Step.ABORT:
                self.send_end(process, attempt, arrives=arrives, is_answered=is_answered)
            case Step.DONE:
                self.answer(process, attempt)

    def kept(self, process: Process) -> ProducerIdentity | None:
        """The identity for the next transaction of the process's id, if it has one at rest."""
        current = self.transactions.get(process.transactional_id)
        return None if current is None or current.state not in state.AT_REST else current.client_identity

    def send_all(
        self, process: Process, attempt: Attempt, identity: ProducerIdentity, *, arrives: bool, is_answered: bool
    ) -> None:
        """Have a broker take all steps by itself (EO19)."""
        process.identity, process.tries = identity, 0
        asked = (process.transactional_id, identity, process.request, attempt.try_id, attempt.digest)
        answer = self.take_steps(*asked) if arrives else None
        if not arrives:
            self.late.append((self.take_steps, *asked))
        if answer is None or not is_answered:
            attempt.unanswered(RequestRejected(_POLICY, "No answer in time."))
            self.count("unanswered")
            return
        found, result = answer
        if not isinstance(found, str):
            attempt.found(found)
            self.prepare(process)
            return
        self.count(found)
        attempt.found(Unknown())
        attempt.began()
        if result is None:
            attempt.failed(RequestRejected(_POLICY, "A record was refused."))
            return
        attempt.written(result)
        if found == "taken":
            attempt.refused(None)
            return
        attempt.accepted()
        if found == "committed":
            attempt.ended(success=True)

    def pauses(self, go_on: Any, *asked: Any) -> bool:
        """Whether a broker that takes steps is slow now. Its caller gives up, and the next step comes later."""
        if self.rng.random() < 0.8:
            return False
        if self.rng.random() < 0.8:  # else it dies
            self.late.append((go_on, *asked))
        return True

    def take_steps(
        self, transactional_id: str, identity: ProducerIdentity, request: RequestKey, try_id: bytes, digest: bytes
    ) -> tuple[Found | str, Result | None] | None:
        """Look the key up, and let all partitions join the transaction. Returns: how far it came; None without an answer."""
        found = self.look(request, try_id, reserve=True)
        if not isinstance(found, Unknown):
            return found, None
        if not self.join(transactional_id, identity, *DATA, RESULTS):
            return found, None
        asked = (transactional_id, identity, request, try_id, digest)
        return None if self.pauses(self.write_all, *asked) else self.write_all(*asked)

    def write_all(
        self, transactional_id: str, identity: ProducerIdentity, request: RequestKey, try_id: bytes, digest: bytes
    ) -> tuple[Found | str, Result | None] | None:
        """Append the records and the result in one turn."""
        parts = []
        for record in range(RECORDS):
            offset = self.append_data(transactional_id, identity, record, (request, try_id, record))
            if offset is None or self.rng.random() < 0.02:
                return "failed", None
            parts.append(Part("data", record, offset, 1, -1))
        result = Result(try_id, digest, 200, 0, self.now, tuple(parts), tuple(range(RECORDS)))
        if self.append_result(transactional_id, identity, request, result, joins=False) is None:
            return "taken", result
        asked = (transactional_id, identity, result)
        return None if self.pauses(self.commit_all, *asked) else self.commit_all(*asked)

    def commit_all(
        self, transactional_id: str, identity: ProducerIdentity, result: Result
    ) -> tuple[Found | str, Result | None]:
        committed = self.end(transactional_id, identity, commit=True)
        in_time = self.rng.random() < 0.8  # else the answer comes before it is known that the decision is stored
        return "committed" if committed and in_time else "accepted", result

    def prepare(self, process: Process) -> None:
        """Take a transactional id of this process, and a new one if the last is not complete (EO8)."""
        assert process.attempt is not None
        if process.attempt.step is not Step.WRITE:
            return
        process.tries = 0
        current = self.transactions.get(process.transactional_id)
        if not process.transactional_id or (current is not None and current.state not in state.AT_REST):
            process.ids_made += 1
            process.transactional_id = f"__http.{process.number}.{process.ids_made}"
        process.identity = self.initialize(process.transactional_id)
        if process.identity is None:
            process.transactional_id = ""
            process.attempt.failed(RequestRejected(_POLICY, "No identity."))

    def write(self, process: Process, attempt: Attempt, *, arrives: bool, is_answered: bool) -> None:
        assert process.identity is not None
        if not attempt.wrote:
            attempt.began()
        record = next(number for number in range(RECORDS) if number not in process.written)
        content = (process.request, attempt.try_id, record)
        asked = (process.transactional_id, process.identity, record, content)
        if self.rng.random() < 0.02:
            process.failed = True  # the partition refuses this record for good
            process.written[record] = DATA[record], -1
        elif not arrives:
            self.late.append((self.produce, *asked))
        else:
            offset = self.produce(*asked)
            if offset is None:
                process.failed = True
                process.written[record] = DATA[record], -1
            elif is_answered:
                process.written[record] = DATA[record], offset
        process.tries += not is_answered
        if process.failed and self.rules.commits_only_whole:
            attempt.failed(RequestRejected(_POLICY, "A record was refused."))
        elif process.tries > TRIES_MAX:
            attempt.failed(RequestRejected(_POLICY, "No answer in time."))
        elif len(process.written) == RECORDS:
            process.tries = 0
            attempt.written(self.result_of(process, attempt))

    def result_of(self, process: Process, attempt: Attempt) -> Result:
        parts = tuple(Part("data", record, at, 1, -1) for record, (_, at) in sorted(process.written.items()))
        places = tuple(range(RECORDS))
        return Result(attempt.try_id, attempt.digest, 200, 0, self.now, parts, places)

    def send_result(self, process: Process, attempt: Attempt, *, arrives: bool, is_answered: bool) -> None:
        assert process.identity is not None
        assert attempt.result is not None
        asked = (process.transactional_id, process.identity, process.request, attempt.result)
        if arrives:
            accepted = self.append_result(*asked)
            if is_answered:
                process.tries = 0
                if accepted is None:
                    attempt.refused(None)
                else:
                    attempt.accepted()
                return
        else:
            self.late.append((self.append_result, *asked))
        process.tries += 1
        if process.tries > TRIES_MAX:
            process.tries = 0
            attempt.refused(RequestRejected(_POLICY, "No answer in time."))

    def send_end(self, process: Process, attempt: Attempt, *, arrives: bool, is_answered: bool) -> None:
        assert process.identity is not None
        commit = attempt.step is Step.COMMIT
        success = False
        if arrives:
            success = self.end(process.transactional_id, process.identity, commit=commit)
        else:
            self.late.append((self.late_end, process.transactional_id, process.identity, commit))
        if is_answered or attempt.lost or process.tries > TRIES_MAX:
            process.tries = 0
            fenced = success and is_answered
            attempt.ended(success=fenced or (attempt.lost and not self.rules.fences_the_unanswered))
            if commit and not success and not self.rules.believes_only_success:
                attempt.gave_up()
                attempt.outcome = Aborted(None)
            if not success:
                process.transactional_id = ""  # set aside
        else:
            process.tries += 1

    def late_end(self, transactional_id: str, identity: ProducerIdentity, commit: bool) -> bool:
        return self.end(transactional_id, identity, commit=commit)

    def answer(self, process: Process, attempt: Attempt) -> None:
        process.attempt = None
        outcome: Outcome | None = attempt.outcome
        assert outcome is not None
        self.count(type(outcome).__name__)
        if isinstance(outcome, Aborted) and attempt.wrote:
            self.aborted.add(attempt.try_id)
        if isinstance(outcome, Stored):
            result = outcome.result
            at = self.when.setdefault(result.try_id, self.now)
            before = self.answers.get(process.request)
            if before is not None and before[1][:2] != result[:2] and abs(at - before[0]) < self.kept_ms():
                raise Violation("answers", f"{process.request.key!r} was answered with two results")
            if before is not None and before[1][:2] == result[:2]:
                assert list(before[1].offsets()) == list(result.offsets())
            self.answers[process.request] = at, result
            for record, (part, offset) in enumerate(result.offsets()):
                log = self.logs[TopicPartition(part.topic, PartitionIndex(part.partition))]
                if offset < 0 or log.entries[offset].content != (process.request, result.try_id, record):
                    raise Violation("whole", f"an answer names offset {offset} for record {record}")
                if log.fate(offset) is False:
                    raise Violation("answers", "an answer says stored of a record that was aborted")

    @staticmethod
    def kept_ms() -> int:
        """How long a result is kept at least: each jump of a clock may take two minutes."""
        return RETENTION_MS - JUMPS_MAX * ages.GAP_MAX_MS

    # --- checkers -----------------------------------------------------------------------------------------------------

    def check_committed(self, target: TopicPartition, offsets: Iterable[int]) -> None:
        """Every key's records are committed at most once within the retention, by a try that was not answered as aborted."""
        for offset in offsets:
            request, try_id, _ = self.logs[target].entries[offset].content
            if try_id in self.aborted:
                raise Violation("answers", f"{request.key!r} was answered as not written, and is committed")
            at = self.when.setdefault(try_id, self.now)
            tries = self.committed.setdefault(request, {})
            tries[try_id] = at
            for other, when in tries.items():
                if other != try_id and abs(at - when) < self.kept_ms():
                    raise Violation("once", f"{request.key!r} is committed twice, {at - when} ms apart")

    def check_end(self) -> None:
        """Everything is healed: no key stays open, and what is committed is whole."""
        for process in self.processes:
            self.crash(process)
        self.now += 120_000
        for transactional_id, one in list(self.transactions.items()):
            if one.state is TransactionState.ONGOING:
                self.put(state.fence(one, TimestampMs(self.now)))
            self.complete_if_marked(transactional_id)
        while self.markers:
            self.write_marker()
        self.fail_over()
        stuck = self.shard.open_producers()
        if stuck:
            raise Violation("stuck", f"{len(stuck)} keys are open for ever")
        counts: dict[bytes, int] = {}
        for target in DATA:
            log = self.logs[target]
            for offset, entry in enumerate(log.entries):
                if entry.commit is None and log.fate(offset):
                    counts[entry.content[1]] = counts.get(entry.content[1], 0) + 1
        for found in counts.values():
            if found != RECORDS:
                raise Violation("whole", f"{found} of {RECORDS} records of a try are committed")

    # --- a run --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now += self.rng.randrange(12_000)
        while self.next_tick <= self.now:
            self.tick()
        process = self.rng.choice(self.processes)
        draw = self.rng.random()
        if draw < 0.02:
            self.fail_over()
        elif draw < (0.025 if self.strength is STRONG else 0.04):
            self.lose_power()
        elif draw < 0.045 and self.strength is STRONG:
            self.lose_markers()
        elif draw < 0.055:
            self.crash(process)
        elif draw < 0.07:
            self.time_out()
        elif draw < 0.10 and self.late:
            call, *asked = self.late.pop(self.rng.randrange(len(self.late)))
            call(*asked)
        elif draw < 0.25 and self.markers:
            self.write_marker()
        elif 0.25 <= draw < 0.252 and self.strength is WEAK:
            self.strength = STRONG
        elif 0.252 <= draw < 0.262 and self.jumps_left:
            self.jumps_left -= 1
            self.skew += self.rng.randrange(-3, 4) * RETENTION_MS
        elif process.attempt is None:
            self.begin(process)
        else:
            self.go_on(process)

    def time_out(self) -> None:
        ongoing = [one for one in self.transactions.values() if one.state is TransactionState.ONGOING]
        if ongoing:
            self.put(state.fence(self.rng.choice(ongoing), TimestampMs(self.now)))
            self.count("time-outs")


def play(seed: int, rules: Rules, monkeypatch: pytest.MonkeyPatch | None = None) -> World:
    if monkeypatch is not None:
        monkeypatch.setattr(ages, "GAP_MAX_MS", 120_000 if rules.bounds_gaps else 1 << 40)
    world = World(seed, rules)
    for _ in range(STEPS):
        world.step()
    world.check_end()
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_key_is_committed_once_and_answered_alike(seed: int) -> None:
    world = play(seed, Rules())
    assert "Stored" in world.counts or world.strength is WEAK


def test_the_model_reaches_all_that_it_is_about() -> None:
    counts: dict[str, int] = {}
    expired = 0
    for seed in range(SEEDS):
        world = play(seed, Rules())
        expired += world.start > 0
        for name, count in world.counts.items():
            counts[name] = counts.get(name, 0) + count
    wanted = {"Stored", "Aborted", "InProgress", "OtherBody", "Undecided"}
    wanted |= {"failovers", "power", "lost markers", "decided", "crashes", "time-outs", "taken"}
    wanted |= {"unanswered", "failed", "accepted", "committed"}
    assert wanted <= counts.keys()
    assert expired


@pytest.mark.parametrize(
    ("rule", "checkers"),
    [
        ("counts_open", {"once", "answers"}),
        ("compares_tries", {"once", "answers"}),
        ("knows_own_repeat", {"repeats"}),
        ("decides_in_the_turn", {"once", "answers"}),
        ("commits_only_whole", {"whole"}),
        ("believes_only_success", {"answers"}),
        ("joins_the_transaction", {"stuck", "once"}),
        ("replays_open", {"once", "answers"}),
        ("waits_for_commit", {"once", "answers"}),
        ("is_as_strong", {"once", "answers"}),
        ("bounds_gaps", {"once", "answers"}),
        ("decides_after_a_loss", {"stuck"}),
        ("fences_the_unanswered", {"answers"}),
    ],
)
def test_a_rule_that_is_taken_back_is_found_by_its_checker(
    rule: str, checkers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(seed: int) -> None:
        play(seed, Rules()._replace(**{rule: False}), monkeypatch)

    assert_found(checkers, range(10 * SEEDS), run)
