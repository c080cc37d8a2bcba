"""Share-partitions and their log, against everything that goes wrong, held to what KIP-932 promises of each record.

Members acquire records and say something of them, in time or late, or go; appends fail; the start of the log moves on; the group is
set back or forgotten; the coordinator starts again. What must always hold, of every share-partition:

- a record that was accepted, rejected or delivered too often, and it was said so, is given to nobody again, restarts or not;
- a record is with one member at a time, and what somebody says of a record that he does not have counts for nothing;
- a record that is not done with is given out in the end, and once only if it is accepted then: none is lost;
- a coordinator that starts from the log as it was after any record knows what was done with then, and that nothing is acquired.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.coordinator.partition import ReplayedBatch
from app.core.errors import ErrorCode, RequestRejected
from app.groups.share.core.share_partitions import RETRY_MS
from app.groups.share.core.share_state import ShareKey, ShareSettings
from app.groups.share.core.share_window import Acknowledgement, AcknowledgeType, RecordState, Window
from tests.groups.shards import ShardTurn
from tests.groups.share_bench import KEYS, ShareBench

LOCK_MS = 1000
SETTINGS = ShareSettings(lock_ms=LOCK_MS, deliveries_max=3, window_max=12, updates_max=5)
MEMBERS = ("a", "b")
LOG_END = 200

keys = st.sampled_from((KEYS[0], *KEYS))
rarely = st.sampled_from((False, False, False, False, True))
members = st.sampled_from(MEMBERS)
DONE = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass
class Truth:
    """Of one share-partition, offset by offset."""

    start: int = 0
    """Everything below is done with, or not there any more."""
    done: set[int] = field(default_factory=set)
    held: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Who has a record, and until when."""
    counts: dict[int, int] = field(default_factory=dict)
    """How often each was delivered, as far as the coordinator knows."""
    written: tuple[int, frozenset[int], dict[int, int]] = (0, frozenset(), {})
    """Start, what is done with, and counts, as far as the log knows."""

    def write(self) -> None:
        self.written = (self.start, frozenset(self.done), dict(self.counts))

    def restart(self) -> None:
        start, done, counts = self.written
        self.start, self.done, self.counts, self.held = start, set(done), dict(counts), {}

    def is_done(self, offset: int) -> bool:
        return offset < self.start or offset in self.done

    def give_back(self, offset: int) -> None:
        del self.held[offset]
        if self.counts[offset] >= SETTINGS.deliveries_max:
            self.done.add(offset)


def make_shard(batches: list[ReplayedBatch]) -> ShareBench:
    shard = ShareBench(lambda _: SETTINGS)
    for batch in batches:
        shard.load(batch)
    return shard


class ShareStateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.turn = ShardTurn()
        self.shard = make_shard([])
        self.truths: dict[ShareKey, Truth] = {}
        self.past: list[tuple[int, dict[ShareKey, tuple[int, frozenset[int]]]]] = []
        """Batches in the log, with what was done with then."""
        self.retry_ms = 0
        """Until when what is due may wait, because it could not be written down."""
        for key in KEYS:
            self.begin(key, 0)

    def appended(self, key: ShareKey, before: int) -> None:
        """What an event on a share-partition has come to be written, if it was."""
        if len(self.turn.batches) > before:
            self.truths[key].write()

    # --- members ------------------------------------------------------------------------------------------------------

    @rule(key=keys, member=members, count=st.integers(1, 8), gap=st.integers(0, 2), start=st.integers(0, 6))
    def acquire(self, key: ShareKey, member: str, count: int, gap: int = 0, start: int = 0) -> None:
        """A member reads from the first available record on; the first ``gap`` offsets are for nobody."""
        truth = self.truths.get(key)
        if truth is None:
            assert self.shard.acquire(self.turn, key, member, [(0, 9)], [], 0, count) == []
            return
        log_start = max(truth.start - 3, 0) + start if start > 4 else 0
        before = len(self.turn.batches)
        shared = self.shard.partitions[key]
        first = max(shared.window.next_offset, log_start)
        nobody = [(first, first + gap)] if gap else []
        given = self.shard.acquire(
            self.turn,
            key,
            member,
            [(first + gap, first + gap + 5), (first + gap + 5, LOG_END)],
            nobody,
            log_start,
            count,
        )
        self.log_begins(truth, log_start)
        if nobody and first < truth.start + SETTINGS.window_max:
            truth.done |= {at for at in range(*nobody[0]) if at not in truth.held and at >= truth.start}
        offsets = [(at, run.delivery_count) for run in given for at in range(run.first, run.end)]
        assert len(offsets) <= count
        for at, deliveries in offsets:
            assert not truth.is_done(at), "done is done"
            assert at not in truth.held, "one at a time"
            truth.counts[at] = truth.counts.get(at, 0) + 1
            assert deliveries == truth.counts[at]  # one more than the limit for who had it when the coordinator ended
            truth.held[at] = (member, self.turn.now_ms + LOCK_MS)
        self.trim(truth)
        self.appended(key, before)

    def log_begins(self, truth: Truth, log_start: int) -> None:
        if log_start > truth.start:
            truth.start = log_start
            truth.held = {at: held for at, held in truth.held.items() if at >= log_start}

    def trim(self, truth: Truth) -> None:
        while truth.start in truth.done:
            truth.start += 1

    @rule(
        key=keys,
        which=st.sampled_from((2, 0, 1, 3)),
        shift=st.sampled_from((0, 0, 0, -2, 3)),
        length=st.integers(1, 3),
        kind=st.sampled_from((*AcknowledgeType, AcknowledgeType.ACCEPT)),
        stranger=rarely,
        fails=rarely,
    )
    def acknowledge(
        self, key: ShareKey, which: int, shift: int, length: int, kind: AcknowledgeType, stranger: bool, fails: bool
    ) -> None:
        """Something is said of a record that somebody has, or beside it, by who has it, or by a stranger."""
        truth = self.truths.get(key)
        if truth is not None and not truth.held:
            self.acquire(key, "a", 6)
        held = [] if truth is None else sorted(truth.held.items())
        at, (member, _) = held[which % len(held)] if held else (which, ("a", 0))
        if stranger:
            member = "stranger"
        first = at + shift
        end = first + length
        before, window = len(self.turn.batches), self.window(key)
        self.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else None
        try:
            self.shard.acknowledge(self.turn, key, member, [Acknowledgement(first, end, [kind])])
        except RequestRejected as error:
            code = error.code
        else:
            code = ErrorCode.NONE
        self.turn.refuse_with = None
        if truth is None:
            assert code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return
        wanted = range(max(first, truth.start), end)
        has_all = all(truth.held.get(at, ("", 0))[0] == member for at in wanted)
        if code is not ErrorCode.NONE:
            assert not has_all or fails
            assert (self.window(key), len(self.turn.batches)) == (window, before)
            return
        assert has_all
        for at in wanted:
            if kind is AcknowledgeType.RENEW:
                truth.held[at] = (member, self.turn.now_ms + LOCK_MS)
            elif kind is AcknowledgeType.RELEASE:
                truth.give_back(at)
            else:
                del truth.held[at]
                truth.done.add(at)
        self.trim(truth)
        self.appended(key, before)

    @rule(key=keys, member=members, fails=rarely, goes=rarely)
    def a_member_goes(self, key: ShareKey, member: str, fails: bool, goes: bool) -> None:
        if not goes:
            return
        truth, before = self.truths.get(key), len(self.turn.batches)
        self.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else None
        try:
            self.shard.release(self.turn, key, member)
        except RequestRejected:
            return  # its time will be up
        finally:
            self.turn.refuse_with = None
        if truth is not None:
            for at in [at for at, (holder, _) in truth.held.items() if holder == member]:
                truth.give_back(at)
            self.trim(truth)
            self.appended(key, before)

    # --- time, and what befalls the group -----------------------------------------------------------------------------

    @rule(passed_ms=st.sampled_from((1, 400, LOCK_MS)), fails=st.sampled_from((False, False, True)))
    def time_passes(self, passed_ms: int, fails: bool) -> None:
        end_ms = self.turn.now_ms + passed_ms
        self.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else None
        while (next_ms := self.turn.timers.next_ms()) is not None and next_ms <= end_ms:
            self.turn.now_ms = max(self.turn.now_ms, next_ms)
            key = self.turn.timers.pop_due(self.turn.now_ms)
            if key is None:
                continue
            before = len(self.turn.batches)
            self.shard.due(self.turn, key)
            truth = self.truths.get(key)
            if fails:
                self.retry_ms = self.turn.now_ms + RETRY_MS
            if fails or truth is None:
                continue
            for at in [at for at, (_, until_ms) in truth.held.items() if until_ms <= self.turn.now_ms]:
                truth.give_back(at)
            self.trim(truth)
            self.appended(key, before)
        self.turn.now_ms = end_ms
        self.turn.refuse_with = None

    @rule(key=keys, start=st.integers(0, 30), known_too=rarely)
    def begin(self, key: ShareKey, start: int, known_too: bool = True) -> None:
        """The group reads the partition for the first time, or is told where to go on."""
        if key in self.truths and not known_too:
            return
        self.shard.begin(self.turn, key, start)
        self.truths[key] = Truth(start)
        self.truths[key].write()

    @rule(key=keys, really=rarely)
    def is_forgotten(self, key: ShareKey, really: bool) -> None:
        if key in self.truths and really:
            self.shard.forget(self.turn, [key])
            del self.truths[key]

    @rule()
    def the_coordinator_starts_again(self) -> None:
        self.shard.unloaded(self.turn)
        self.turn.timers = type(self.turn.timers)()
        self.shard = make_shard(self.turn.batches)
        self.shard.loaded(self.turn)
        for truth in self.truths.values():
            truth.restart()

    @rule(which=st.integers(0))
    def a_coordinator_starts_from_an_earlier_log(self, which: int) -> None:
        if not self.past:
            return
        count, then = self.past[which % len(self.past)]
        shard = make_shard(self.turn.batches[:count])
        assert {key: done_with(shared.window) for key, shared in shard.partitions.items()} == then
        assert all(shared.window.acquired_count == 0 for shared in shard.partitions.values())

    @rule(which=st.integers(0))
    def compaction_keeps_the_newest_record_of_each_key(self, which: int) -> None:
        """Of the log up to somewhere; what is said by a shard that loads the rest is the same."""
        count = which % (len(self.turn.batches) + 1)
        newest = {key: batch.end_offset for batch in self.turn.batches[:count] for key, _ in batch.records}
        cleaned = [
            batch._replace(records=[each for each in batch.records if newest[each[0]] == batch.end_offset])
            for batch in self.turn.batches[:count]
        ]
        shard = make_shard([*cleaned, *self.turn.batches[count:]])
        logged = make_shard(self.turn.batches)
        assert written(shard) == written(logged)

    # --- what holds ---------------------------------------------------------------------------------------------------

    def window(self, key: ShareKey) -> Window | None:
        shared = self.shard.partitions.get(key)
        return None if shared is None else shared.window

    @invariant()
    def the_coordinator_knows_what_is_true(self) -> None:
        assert set(self.shard.partitions) == set(self.truths)
        for key, truth in self.truths.items():
            window = self.shard.partitions[key].window
            assert done_with(window) == (truth.start, frozenset(at for at in truth.done if at >= truth.start))
            held = {
                at: (run.member_id, run.until_ms)
                for run in window.runs
                if run.state is RecordState.ACQUIRED
                for at in range(run.first, run.end)
            }
            assert held == truth.held
            assert self.turn.now_ms < self.retry_ms or all(self.turn.now_ms < until_ms for _, until_ms in held.values())
        if self.past and self.past[-1][0] == len(self.turn.batches):
            return
        logged = make_shard(self.turn.batches)
        self.past.append(
            (len(self.turn.batches), {key: done_with(shared.window) for key, shared in logged.partitions.items()})
        )
        for key, truth in self.truths.items():
            # What was for nobody may not be in the log yet; it is found again.
            start, done = done_with(logged.partitions[key].window)
            assert (start, set(done)) == (truth.written[0], {at for at in truth.written[1] if at >= start})

    def teardown(self) -> None:
        """Nothing fails any more: who is left gets everything that is not done with, and each record once."""
        self.the_coordinator_starts_again()
        for key, truth in self.truths.items():
            end = max([truth.start, *truth.counts, *truth.done]) + 5
            owed = [at for at in range(truth.start, end) if not truth.is_done(at)]
            got: list[int] = []
            while len(got) < len(owed):
                had = len(got)
                shared = self.shard.partitions[key]
                for run in self.shard.acquire(self.turn, key, "last", [(shared.window.next_offset, end)], [], 0, 1000):
                    got += range(run.first, run.end)
                    self.shard.acknowledge(self.turn, key, "last", [Acknowledgement(run.first, run.end, [1])])
                assert len(got) > had, f"{sorted(set(owed) - set(got))} are lost"
            assert got == owed
            assert self.shard.partitions[key].window.start == end


def written(shard: ShareBench) -> dict[ShareKey, tuple[int, dict[int, tuple[RecordState, int]], int, int]]:
    """What a shard has loaded, offset by offset."""
    return {
        key: (
            shared.window.start,
            {at: (run.state, run.delivery_count) for run in shared.window.runs for at in range(run.first, run.end)},
            shared.snapshot_epoch,
            shared.state_epoch,
        )
        for key, shared in shard.partitions.items()
    }


def done_with(window: Window) -> tuple[int, frozenset[int]]:
    """From where on anything is not done with, and what behind that is."""
    runs = [run for run in window.runs if run.state in DONE]
    return window.start, frozenset(at for run in runs for at in range(run.first, run.end))


ShareStateMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
test_what_is_done_with_stays_so_and_nothing_else_is_lost = ShareStateMachine.TestCase
