"""Compaction against a naive model: random batches, codecs, tombstones, transactions, small maps, kills, losses of power."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.configs import Durability, TopicConfig
from app.core.units import LeaderEpoch, ProducerEpoch, ProducerId
from app.hot.cleaning import compaction
from app.hot.cleaning.engine import SLOT_BYTES
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.records.builder import build_batch
from app.records.control import ControlType
from app.records.record import Record
from tests.hot.cleaning import COMPACT, cleaner_over, committed, newest, seen_in
from tests.hot.helpers import NOW, ManualClock, found_or_new, manager_over, new_log, running, sim

KEYS = [b"", b"a", b"b", b"c", b"d", b"longer-key"]
VALUES = st.sampled_from([None, None, b"", b"v" * 10, b"w" * 200])
ROWS = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=5)
WRITES = st.tuples(
    ROWS,
    st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([None, True, False, False]),
)
"""Rows, codec, producer (0: none), and whether its transaction then commits, aborts or goes on."""
DELETE_RETENTION_MS = 1000


class CompactionMachine(RuleBasedStateMachine):
    """``self.written`` is every data record ever appended and still in the log before compaction, by offset."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.runner = asyncio.Runner()
        self.manager: LogManager
        self.log: PartitionLog

    @initialize(seed=st.integers(0, 2**32), keys_max=st.sampled_from([2, 100]), lag_ms=st.sampled_from([0, 500]))
    def begin(self, seed: int, keys_max: int, lag_ms: int) -> None:
        self.patch.setattr(compaction, "KEYS_MIN", keys_max)
        self.keys_max = keys_max
        self.fs = sim(seed)
        self.clock = ManualClock()
        self.config = {
            **COMPACT,
            "segment_bytes": 900,
            "delete_retention_ms": DELETE_RETENTION_MS,
            "min_compaction_lag_ms": lag_ms,
            "firn_durability": Durability.DISK,
        }
        self.written: dict[int, Record] = {}
        self.decided: dict[int, bool] = {}
        """Whether a record is committed, once its transaction is ended."""
        self.open: dict[int, list[int]] = {}
        self.sequences: dict[int, int] = {}
        self.epoch = 0

        async def start() -> None:
            self.manager = manager_over(self.fs, clock=self.clock)
            await self.manager.load_all()
            self.log = new_log(self.manager, **self.config)
            await self.log.flush()

        self.runner.run(start())

    def teardown(self) -> None:
        self.patch.undo()
        self.runner.close()

    # --- what happens ---

    def _append(self, rows: list[tuple[bytes, bytes | None]], codec: int, **fields: object) -> list[int]:
        records = [(NOW + number, key, value, ()) for number, (key, value) in enumerate(rows)]
        data = memoryview(bytearray(build_batch(records, codec=codec, **fields)))  # type: ignore[arg-type]
        base = self.log.append_as_leader(data, now_ms=self.clock.now).base_offset
        offsets = list(range(base, base + len(rows)))
        for offset, (timestamp, key, value, _) in zip(offsets, records, strict=True):
            self.written[offset] = Record(offset, timestamp, key, value)  # type: ignore[arg-type]
        return offsets

    def write(self, writes: list[tuple[list[tuple[bytes, bytes | None]], int, int, bool | None]]) -> None:
        for rows, codec, producer_id, commits in writes:
            if not producer_id:
                for offset in self._append(rows, codec):
                    self.decided[offset] = True
                continue
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + len(rows)
            offsets = self._append(
                rows, codec, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
            )
            self.open.setdefault(producer_id, []).extend(offsets)
            if commits is not None:
                self._end_transaction(producer_id, commits)

    def end_transactions(self, commit: bool) -> None:
        for producer_id in list(self.open):
            self._end_transaction(producer_id, commit)

    def _end_transaction(self, producer_id: int, commit: bool) -> None:
        self.log.append_control(
            ControlType.COMMIT if commit else ControlType.ABORT,
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(0),
            coordinator_epoch=0,
            now_ms=self.clock.now,
        )
        for offset in self.open.pop(producer_id):
            self.decided[offset] = commit

    @rule(by_ms=st.sampled_from([100, 600, DELETE_RETENTION_MS + 1]))
    def time_passes(self, by_ms: int) -> None:
        self.clock.now += by_ms

    @rule(writes=st.lists(WRITES, min_size=1, max_size=8), ending=st.sampled_from([None, True, False]))
    def clean(
        self, writes: list[tuple[list[tuple[bytes, bytes | None]], int, int, bool | None]], ending: bool | None
    ) -> None:
        self.write(writes)
        if ending is not None:
            self.end_transactions(ending)

        async def work() -> None:
            async with running(self.manager):
                self.log.roll()
                await self.log.flush()
                cleaner = cleaner_over(
                    self.manager,
                    self.fs,
                    clock=self.clock,
                    said=self.fail,
                    log_cleaner_dedupe_buffer_size=self.keys_max * SLOT_BYTES,
                    log_cleaner_io_buffer_load_factor=0.99,
                )
                while await cleaner.clean_next():
                    await self._check_cleaned()
                await self.manager.take_out_trash(self.clock.now)

        self.runner.run(work())

    @staticmethod
    def fail(text: str) -> None:
        raise AssertionError(text)

    @rule(how=st.sampled_from(["stop", "kill", "crash"]))
    def start_again(self, how: str) -> None:
        end, cleaned_end = self.log.log_end_offset, self.log.cleaned_end_offset

        async def work() -> None:
            if how == "stop":
                async with running(self.manager):
                    await asyncio.sleep(0)
                await self.manager.close()
            else:
                if how == "crash":
                    await self._flush()
                (self.fs.kill if how == "kill" else self.fs.crash)()
            self.manager = manager_over(self.fs, clock=self.clock)
            await self.manager.load_all()  # the settings are not known yet: gaps must be fine all the same
            self.log = log = found_or_new(self.manager)
            log.update_config(TopicConfig(**self.config))  # type: ignore[arg-type]
            self.epoch += 1
            log.become_leader(LeaderEpoch(self.epoch))
            await self._flush()

        self.runner.run(work())
        assert self.log.log_end_offset == end
        assert self.log.cleaned_end_offset == cleaned_end

    async def _flush(self) -> None:
        async with running(self.manager):
            await self.log.flush()

    # --- what must hold ---

    async def _check_cleaned(self) -> None:
        """Nothing below the cleaned end is there for nothing."""
        seen = await seen_in(self.log)
        end = self.log.cleaned_end_offset
        assert end is not None
        below = [entry for entry in seen if entry.record.offset < end and not entry.control]
        assert all(self.decided[entry.record.offset] for entry in below), "an aborted record stays"
        keys = [entry.record.key for entry in below]
        assert len(keys) == len(set(keys)), "a key is there twice"

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def readers_see_the_same_table(self) -> None:
        async def work() -> None:
            seen = await seen_in(self.log)
            offsets = [entry.record.offset for entry in seen]
            assert offsets == sorted(set(offsets))
            for entry in seen:
                if not entry.control:
                    assert entry.record == self.written[entry.record.offset]
            for offset in range(self.log.log_start_offset, self.log.log_end_offset):
                read = await self.log.read_when_ready(offset, 1, end_offset=self.log.log_end_offset)
                assert read.length
                assert read.start_offset <= offset or offset not in offsets
                assert read.end_offset > offset
            stable = self.log.last_stable_offset
            read = [record for record in await committed(self.log, seen) if record.offset < stable]
            model = [self.written[offset] for offset in sorted(self.written) if self.decided.get(offset)]
            assert newest(read) == newest([record for record in model if record.offset < stable])

        async def synced() -> None:
            await self._flush()
            await work()

        self.runner.run(synced())

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def producers_go_on(self) -> None:
        entries = self.log.producers.entries
        for producer_id, sequence in self.sequences.items():
            assert entries[producer_id].last_sequence == sequence - 1
            assert (producer_id in self.log.producers.open_transactions) == (producer_id in self.open)


CompactionMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCompaction = CompactionMachine.TestCase
