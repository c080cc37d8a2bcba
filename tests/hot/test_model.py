"""The real log against a naive model: append, roll, truncate, delete from the start, flush, kill, lose power, reopen."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.configs import Durability, TopicConfig
from app.core.errors import RequestRejected
from app.core.units import LeaderEpoch, ProducerEpoch, ProducerId
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.hot.state_file import LogState
from app.records.batch import parse_header
from app.records.control import ControlType
from tests.hot.helpers import (
    NOW,
    ManualClock,
    batch,
    found_or_new,
    idempotent,
    manager_over,
    new_log,
    read_all,
    running,
    sim,
)

PRODUCERS = (1, 2)


class ModelProducer:
    def __init__(self) -> None:
        self.epoch = 0
        self.last_sequence = -1
        self.batches: list[tuple[int, int, int, int, int]] = []
        self.open_from: int | None = None
        self.opened: list[tuple[int, int]] = []
        """The batches of the open transaction: base offset, end offset."""


class LogMachine(RuleBasedStateMachine):
    """``self.batches`` is all that was ever appended and not truncated: (base offset, end offset, bytes)."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.manager: LogManager
        self.log: PartitionLog

    @initialize(seed=st.integers(0, 2**32), durability=st.sampled_from([Durability.MEMORY, Durability.DISK]))
    def begin(self, seed: int, durability: Durability) -> None:
        self.fs = sim(seed)
        self.clock = ManualClock()
        self.config = {
            "segment_bytes": 1200,
            "index_interval_bytes": 200,
            "firn_durability": durability,
            "firn_tier_max_lag_ms": 100_000,
        }
        self.batches: list[tuple[int, int, bytes]] = []
        self.log_start_max = 0
        self.log_start = 0
        self.epoch = 0

        async def start() -> None:
            self.manager = manager_over(self.fs, clock=self.clock)
            await self.manager.load_all()
            self.log = new_log(self.manager, **self.config)
            await self.log.flush()

        self.runner.run(start())
        self.synced_end = 0

    def teardown(self) -> None:
        self.runner.close()

    # --- the model ---

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else self.start

    start = 0
    lost_power = False

    def producers(self) -> dict[int, ModelProducer]:
        """Producer state, worked out from all batches there are."""
        found: dict[int, ModelProducer] = {}
        for base, end, data in self.batches:
            header = parse_header(data)
            if header.producer_id < 0:
                continue
            producer = found.setdefault(header.producer_id, ModelProducer())
            if header.is_control:
                producer.open_from, producer.opened = None, []
                continue
            last_sequence = header.base_sequence + end - base - 1
            producer.last_sequence = last_sequence
            producer.batches.append((header.base_sequence, last_sequence, base, end - 1, header.max_timestamp))
            if header.is_transactional:
                producer.open_from = base if producer.open_from is None else producer.open_from
                producer.opened.append((base, end))
        return found

    def note(self, records: memoryview, base: int, end: int) -> None:
        self.batches.append((base, end, bytes(records)))

    # --- what happens ---

    @rule(count=st.integers(1, 4), size=st.sampled_from([5, 100, 400]), late=st.integers(-50, 50))
    def append(self, count: int, size: int, late: int) -> None:
        records = batch(count, value=b"x" * size, timestamp=NOW + late)
        result = self.log.append_as_leader(records, now_ms=self.clock.now)
        assert (result.base_offset, result.last_offset_end) == (self.end, self.end + count)
        self.note(records, result.base_offset, result.last_offset_end)

    @rule(producer_id=st.sampled_from(PRODUCERS), count=st.integers(1, 3), transactional=st.booleans())
    def append_idempotent(self, producer_id: int, count: int, transactional: bool) -> None:
        known = self.producers().get(producer_id, ModelProducer())
        transactional = transactional or known.open_from is not None
        records = idempotent(
            known.last_sequence + 1, count, producer_id=producer_id, transactional=transactional, value=b"y" * 30
        )
        result = self.log.append_as_leader(records, now_ms=self.clock.now)
        assert (result.base_offset, result.duplicate) == (self.end, False)
        self.note(records, result.base_offset, result.last_offset_end)

    @rule(
        producer_ids=st.lists(st.sampled_from([-1, *PRODUCERS]), min_size=1, max_size=6), size=st.sampled_from([5, 300])
    )
    def append_together(self, producer_ids: list[int], size: int) -> None:
        known = self.producers()
        following: dict[int, int] = {}
        run = []
        for producer_id in producer_ids:
            if producer_id < 0:
                records = batch(2, value=b"z" * size)
            else:
                producer = known.get(producer_id, ModelProducer())
                sequence = following.get(producer_id, producer.last_sequence + 1)
                following[producer_id] = sequence + 1
                records = idempotent(
                    sequence, producer_id=producer_id, transactional=producer.open_from is not None, value=b"z" * size
                )
            found = self.log.check_plain(records)
            assert found is not None
            run.append((records, found))
        results = self.log.append_run(run, now_ms=self.clock.now)
        if len(results) < len(run):
            results.append(self.log.append_as_leader(run[len(results)][0], now_ms=self.clock.now))
        for (records, _), result in zip(run, results, strict=False):
            assert (result.base_offset, result.duplicate) == (self.end, False)
            self.note(records, result.base_offset, result.last_offset_end)

    @rule(producer_id=st.sampled_from(PRODUCERS), back=st.integers(1, 6))
    def repeat(self, producer_id: int, back: int) -> None:
        known = self.producers().get(producer_id)
        entry = self.log.producers.entries.get(producer_id)
        if known is None or entry is None or len(known.batches) < back:
            return
        base_sequence, last_sequence, base, last, _ = known.batches[-back]
        records = idempotent(
            base_sequence,
            last_sequence - base_sequence + 1,
            producer_id=producer_id,
            transactional=known.open_from is not None,
        )
        try:
            result = self.log.append_as_leader(records, now_ms=self.clock.now)
        except RequestRejected:
            # Forgotten: more than five back, or deleted from the start. It must not be appended again.
            assert back > len(entry.batches)
            return
        assert (result.base_offset, result.last_offset_end, result.duplicate) == (base, last + 1, True)

    @rule(producer_id=st.sampled_from(PRODUCERS), abort=st.booleans())
    def end_transaction(self, producer_id: int, abort: bool) -> None:
        if producer_id not in self.log.producers.open_transactions:
            return
        result = self.log.append_control(
            ControlType.ABORT if abort else ControlType.COMMIT,
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(0),
            coordinator_epoch=0,
            now_ms=self.clock.now,
        )
        segment = self.log.segments()[-1]
        file = self.fs.open(segment.path)
        marker = file.pread(segment.size_bytes, 0)[-78:]
        file.close()
        assert parse_header(marker).is_control
        self.note(memoryview(marker), result.base_offset, result.last_offset_end)

    @rule()
    def lead_anew(self) -> None:
        self.epoch += 1
        self.log.become_leader(LeaderEpoch(self.epoch))

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.runner.run(self.log.flush())
        self.synced_end = self.end

    @rule(rounds=st.integers(1, 12))
    def background(self, rounds: int) -> None:
        async def work() -> None:
            async with running(self.manager):
                for _ in range(rounds):
                    await asyncio.sleep(0)

        self.runner.run(work())
        self.synced_end = max(self.synced_end, self.log.synced_end_offset)

    @rule()
    def checkpoint(self) -> None:
        self.runner.run(self.manager.checkpoint())

    @rule(data=st.data())
    def delete_from_start(self, data: st.DataObject) -> None:
        self.log_start = data.draw(st.integers(self.log_start, self.log.high_watermark))
        self.log.advance_log_start(self.log_start)
        self.log_start_max = max(self.log_start_max, self.log_start)

    @rule(data=st.data())
    def delete_local(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.log.recovery_point))
        self.log.delete_local_before(offset)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(max(self.log.local_log_start_offset, self.log_start), self.end))
        self.log.truncate_to(offset)
        while self.batches and self.batches[-1][1] > offset:
            self.batches.pop()
        if self.end < self.log_start:
            # The cut went through the batch in which the log starts: it goes on, empty, at its start.
            self.batches, self.start = [], self.log_start
        self.synced_end = min(self.synced_end, self.end)

    @precondition(lambda self: self.end > 0)
    @rule(ahead=st.integers(0, 5))
    def start_anew(self, ahead: int) -> None:
        self.start = self.log_start = self.end + ahead
        if self.synced_end == 0:
            # Only the first sync makes the name of the log's directory durable.
            self.runner.run(self.log.flush())
        self.log.truncate_fully_and_start_at(self.start, self.log.leader_epochs())
        assert self.log.log_end_offset == self.log.local_log_start_offset == self.start
        self.batches = []
        self.synced_end = self.start

    # --- ends and beginnings ---

    def open(self, *, lead: bool = True) -> None:
        async def load() -> None:
            self.manager = manager_over(self.fs, clock=self.clock)
            await self.manager.load_all(lambda _: TopicConfig(**self.config))  # type: ignore[arg-type]
            self.log = found_or_new(self.manager, **self.config)

        self.runner.run(load())
        if lead:
            self.log.become_leader(LeaderEpoch(self.epoch))

    @rule()
    def reopen(self) -> None:
        before, is_assumed = self.log.state(), self.log.start_is_assumed
        high_watermark = self.end
        self.runner.run(self.manager.close())
        assert self.fs.open_files == 0
        self.open(lead=False)
        self.synced_end = self.end
        after = self.log.state()
        if is_assumed:  # no state was kept, so it is read from the files
            assert known_by_files(after) == known_by_files(before)
        else:
            assert after == before
        self.log.become_leader(LeaderEpoch(self.epoch))
        assert self.log.high_watermark == high_watermark

    @rule()
    def reopen_from_kafkas_files(self) -> None:
        before = self.log.state()
        self.runner.run(self.manager.close())
        self.fs.unlink("/data/.firn_log_state")
        self.open(lead=False)
        self.synced_end = self.end
        after = self.log.state()
        assert known_by_files(after) == known_by_files(before)
        # An epoch without a record is forgotten by the files, as by Kafka's.
        self.log.become_leader(LeaderEpoch(self.epoch))
        assert {entry for entry in before.leader_epochs if entry[1] < self.end} <= set(after.leader_epochs)

    @rule()
    def kill(self) -> None:
        self.fs.kill()
        self.open()
        assert self.log.log_end_offset == self.end
        self.log_start = self.log.log_start_offset
        if self.config["firn_durability"] is Durability.DISK:
            self.synced_end = self.log.synced_end_offset
            assert self.log.high_watermark == self.end

    @rule()
    def lose_power(self) -> None:
        self.lost_power = True
        self.fs.crash()
        self.open()
        end = self.log.log_end_offset
        assert self.synced_end <= end <= self.end
        while self.batches and self.batches[-1][1] > end:
            self.batches.pop()
        if end == self.log.log_start_offset == self.log.segments()[0].base_offset and self.end < end:
            # All was lost up to before the log's start: it goes on, empty, at its start.
            self.batches, self.start = [], end
        assert self.end == end, "the log ends within a batch"
        self.log_start = self.log.log_start_offset
        self.synced_end = min(end, max(self.synced_end, self.log.synced_end_offset))

    # --- what must always be true ---

    @invariant()
    def content_is_what_was_appended(self) -> None:
        log = self.log
        assert log.log_end_offset == self.end
        assert log.log_start_offset == self.log_start
        assert log.synced_end_offset >= min(self.synced_end, log.synced_end_offset)
        assert log.recovery_point <= log.log_end_offset
        start = log.local_log_start_offset
        expected = b"".join(data for _, end, data in self.batches if end > start and end <= log.high_watermark)
        assert self.runner.run(read_all(log, start, max_bytes=700)) == expected

    @invariant()
    def producers_are_what_the_log_says(self) -> None:
        expected = self.producers()
        first = self.log.segments()[0].base_offset
        for producer_id, producer in expected.items():
            entry = self.log.producers.entries.get(producer_id)
            if entry is None:
                # Only if nothing of it is left on this disk; a snapshot may or may not have kept it.
                assert all(base < first for _, _, base, _, _ in producer.batches)
                continue
            if not producer.batches:
                continue
            assert entry.last_sequence == producer.last_sequence
            assert entry.batches == producer.batches[-len(entry.batches) :]
            on_disk = [known for known in producer.batches[-5:] if known[2] >= first]
            assert entry.batches[-len(on_disk) :] == on_disk or not on_disk
            assert (entry.transaction_first_offset >= 0) == (producer.open_from is not None)

    @invariant()
    def epochs_and_stability_hold(self) -> None:
        log = self.log
        first = log.log_start_offset
        held_at = [
            max(base, first)
            for producer_id, producer in self.producers().items()
            if producer_id in log.producers.entries
            for base, end in producer.opened
            # DeleteRecords may take the first records of an open transaction away. Records that are gone hold nothing back: after a
            # loss of power a log knows a transaction by the batches that are left.
            if end > first or not self.lost_power
        ]
        assert log.last_stable_offset <= log.high_watermark
        if held_at:
            assert log.last_stable_offset <= min(held_at)
        for base, _, data in self.batches:
            if base >= max(log.local_log_start_offset, self.log_start_max):
                assert log.epoch_of(base) == parse_header(data).leader_epoch


def known_by_files(state: LogState) -> list[tuple[int, ...]]:
    """The columns of a state that the files of segments hold, by segment."""
    return [segment[:5] for segment in _rows(state.segments)]


def _rows(segments: list[object]) -> list[tuple[int, ...]]:
    return [
        (
            segment.base_offset,  # type: ignore[attr-defined]
            segment.end_offset,  # type: ignore[attr-defined]
            segment.size_bytes,  # type: ignore[attr-defined]
            segment.max_timestamp,  # type: ignore[attr-defined]
            segment.max_timestamp_offset,  # type: ignore[attr-defined]
        )
        for segment in segments
    ]


TestLogAgainstModel = LogMachine.TestCase
TestLogAgainstModel.settings = settings(
    max_examples=60,
    report_multiple_bugs=False,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
