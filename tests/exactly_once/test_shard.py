"""The condition of a result's append, open results, reservations and the expiry of one partition."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from app.coordinator.partition import ProducerIdAndEpoch, ReplayedBatch
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import whole
from app.core.units import NO_PRODUCER_ID, NO_TIMESTAMP, Offset, ProducerEpoch, ProducerId
from app.exactly_once.bounds import Amount, Bounds, Usage
from app.exactly_once.records import Part, RequestKey, Result, Tick, encode_result, encode_tick
from app.exactly_once.shard import RESERVATIONS_MAX, RESERVED_MS, KeyTaken, RequestShard
from app.records.control import ControlType, EndTransactionMarker

KEY = RequestKey("User:a", b"k")
HOUR = 3_600_000
RESULT = Result(b"1" * 16, b"d" * 32, 200, 0, 0, (Part("t", 0, 5, 1, -1),), (0,))
OTHER = RESULT._replace(try_id=b"2" * 16)
EPOCH = ProducerEpoch(0)


def producer(number: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(number), EPOCH)


class Log:
    """The turn of the shard, and its log."""

    def __init__(self) -> None:
        self.records: list[tuple[ProducerId, Any]] = []
        self.now_ms = self.steady_ms = 0
        self.timers: dict[Hashable, int] = {}
        self.full = False

    def append(self, records: Any, *, producer: ProducerIdAndEpoch | None = None) -> Offset:
        if self.full:
            raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The disk is full.")
        (record,) = records
        self.records.append((NO_PRODUCER_ID if producer is None else producer.producer_id, record))
        return Offset(len(self.records))

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        self.timers[key] = delay_ms

    def mark(self, number: int, *, commit: bool) -> None:
        self.records.append((ProducerId(number), commit))

    def replayed(self, usage: Usage | None = None) -> RequestShard:
        shard = RequestShard(Usage() if usage is None else usage, lambda: HOUR, buckets=1)
        for offset, (producer_id, content) in enumerate(self.records):
            end = Offset(offset + 1)
            if isinstance(content, bool):
                kind = ControlType.COMMIT if content else ControlType.ABORT
                marker = EndTransactionMarker(kind, 0, producer_id, EPOCH, Offset(offset), NO_TIMESTAMP)
                shard.load(ReplayedBatch(end, producer_id, EPOCH, [], marker))
            else:
                shard.load(ReplayedBatch(end, producer_id, EPOCH, [content], None))
        shard.loaded(self)  # type: ignore[arg-type]
        return shard


def accept(shard: RequestShard, log: Log, result: Result, number: int, others: tuple[int, ...] = ()) -> Any:
    return shard.accept(log, KEY, result, producer(number), others)  # type: ignore[arg-type]


def test_a_key_has_one_open_result() -> None:
    log = Log()
    shard = log.replayed()
    assert accept(shard, log, RESULT, 1) == (0, False)
    with pytest.raises(KeyTaken, match="open"):
        accept(shard, log, OTHER, 2)
    assert len(log.records) == 1
    standing = shard.look(KEY, OTHER.try_id, 0)
    assert standing.open is not None
    assert standing.open.try_id == RESULT.try_id


def test_the_same_try_is_a_repeat_and_writes_nothing() -> None:
    log = Log()
    shard = log.replayed()
    accept(shard, log, RESULT, 1)
    assert accept(shard, log, RESULT, 1) == (0, True)
    assert len(log.records) == 1


def test_a_producer_has_one_open_result_because_one_marker_would_end_both() -> None:
    log = Log()
    shard = log.replayed()
    accept(shard, log, RESULT, 1)
    second = RequestKey("User:a", b"another")
    with pytest.raises(RequestRejected, match="earlier transaction"):
        shard.accept(log, second, OTHER, producer(1), ())  # type: ignore[arg-type]
    assert len(log.records) == 1
    shard.complete(ProducerId(1), commit=False)
    assert shard.accept(log, second, OTHER, producer(1), ()) == (1, False)  # type: ignore[arg-type]


def test_a_key_with_a_committed_result_is_taken() -> None:
    log = Log()
    shard = log.replayed()
    accept(shard, log, RESULT, 1)
    shard.complete(ProducerId(1), commit=True)
    shard.complete(ProducerId(1), commit=True)
    assert shard.look(KEY, OTHER.try_id, 0) == (None, (0,), 0)
    for result in (OTHER, RESULT):
        with pytest.raises(KeyTaken, match="has a result"):
            accept(shard, log, result, 2)


def test_a_committed_result_of_another_key_with_the_same_hash_does_not_take_the_key() -> None:
    log = Log()
    shard = log.replayed()
    accept(shard, log, RESULT, 1)
    shard.complete(ProducerId(1), commit=True)
    assert accept(shard, log, OTHER, 2, others=(0,)) == (1, False)


def test_an_aborted_result_frees_its_key_and_its_room() -> None:
    log, usage = Log(), Usage()
    shard = log.replayed(usage)
    accept(shard, log, RESULT, 1)
    assert shard.open_producers() == [1]
    shard.complete(ProducerId(1), commit=False)
    assert shard.open_producers() == []
    assert usage.total == Amount()
    assert accept(shard, log, OTHER, 2) == (1, False)


@pytest.mark.parametrize("commit", [None, True, False])
def test_a_replay_gives_the_same_standing(commit: bool | None) -> None:
    log, usage = Log(), Usage()
    log.now_ms = 77
    shard = log.replayed(usage)
    accept(shard, log, RESULT, 1)
    if commit is not None:
        log.mark(1, commit=commit)
        shard.complete(ProducerId(1), commit=commit)
    again = Usage()
    next_one = log.replayed(again)
    assert next_one.look(KEY, b"", 0) == shard.look(KEY, b"", 0)
    assert next_one.key_count == shard.key_count == (commit is not False)
    assert again == usage
    assert log.records[0][1] == encode_result(KEY, RESULT._replace(appended_ms=77))


def test_a_result_that_cannot_be_written_changes_nothing() -> None:
    log, usage = Log(), Usage()
    shard = log.replayed(usage)
    log.full = True
    with pytest.raises(RequestRejected, match="full"):
        accept(shard, log, RESULT, 1)
    assert shard.look(KEY, b"", 0).open is None
    assert usage.total == Amount()


def test_a_key_is_reserved_for_its_try_for_ten_seconds() -> None:
    shard = Log().replayed()
    shard.reserve(KEY, RESULT.try_id, 200, 0)
    assert shard.look(KEY, OTHER.try_id, 4_000).reserved_ms == 6_000
    assert shard.look(KEY, RESULT.try_id, 4_000).reserved_ms == 0
    assert shard.look(KEY, OTHER.try_id, RESERVED_MS).reserved_ms == 0
    shard.release(KEY, OTHER.try_id)
    assert shard.look(KEY, OTHER.try_id, 0).reserved_ms == RESERVED_MS
    shard.release(KEY, RESULT.try_id)
    assert shard.look(KEY, OTHER.try_id, 0).reserved_ms == 0


def test_the_oldest_reservation_is_forgotten_first() -> None:
    shard = Log().replayed()
    for number in range(RESERVATIONS_MAX + 1):
        shard.reserve(RequestKey("User:a", b"%d" % number), RESULT.try_id, 200, 0)
    assert shard.look(RequestKey("User:a", b"0"), OTHER.try_id, 0).reserved_ms == 0
    assert shard.look(RequestKey("User:a", b"1"), OTHER.try_id, 0).reserved_ms == RESERVED_MS


def test_beyond_the_bounds_a_key_is_refused_before_and_at_the_append() -> None:
    log, usage = Log(), Usage(Bounds(0, 1 << 30))
    shard = log.replayed(usage)
    for refused in (lambda: shard.reserve(KEY, RESULT.try_id, 200, 0), lambda: accept(shard, log, RESULT, 1)):
        with pytest.raises(RequestRejected) as raised:
            refused()
        assert raised.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert not log.records


def test_ticks_let_results_expire_and_the_start_follows() -> None:
    log, usage = Log(), Usage()
    shard = log.replayed(usage)
    assert log.timers == {Tick: 60_000}
    shard.due(log, Tick)  # type: ignore[arg-type]
    assert not log.records, "time need not pass while there is no result"
    accept(shard, log, RESULT, 1)
    shard.complete(ProducerId(1), commit=True)
    log.mark(1, commit=True)
    for minute in range(1, 61):
        assert shard.look(KEY, b"", 0).offsets == (0,)
        log.now_ms = minute * 60_000
        shard.due(log, Tick)  # type: ignore[arg-type]
    assert shard.look(KEY, b"", 0).offsets == ()
    assert shard.start == len(log.records)
    assert usage.total == Amount()
    whole(shard.drop_expired())
    assert shard.key_count == 0


def test_an_open_result_does_not_expire() -> None:
    log = Log()
    shard = log.replayed()
    accept(shard, log, RESULT, 1)
    for minute in range(1, 200):
        log.now_ms = minute * 60_000
        shard.due(log, Tick)  # type: ignore[arg-type]
    assert shard.start == 0
    with pytest.raises(KeyTaken):
        accept(shard, log, OTHER, 2)


def test_open_results_are_listed_while_others_end() -> None:
    log = Log()
    for number in (1, 2, 3):
        log.records.append((ProducerId(number), encode_result(RequestKey("User:a", b"%d" % number), RESULT)))
    shard = log.replayed()
    listed = shard.open_results()
    assert next(listed) == (1, 0)
    shard.complete(ProducerId(2), commit=True)
    assert list(listed) == [(3, 2)]


def test_the_start_stays_below_the_first_open_result_though_a_key_has_two() -> None:
    log = Log()
    for number, key in ((1, KEY), (2, RequestKey("User:a", b"l")), (3, KEY)):
        log.records.append((ProducerId(number), encode_result(key, RESULT)))
        log.records.append((NO_PRODUCER_ID, encode_tick(len(log.records) * 60_000)))
    shard = log.replayed()
    for minute in range(10, 200):
        log.now_ms = minute * 60_000
        shard.due(log, Tick)  # type: ignore[arg-type]
    assert shard.start == 2


def test_a_tick_that_cannot_be_written_is_tried_again() -> None:
    log = Log()
    shard = log.replayed()
    accept(shard, log, RESULT, 1)
    log.full = True
    log.timers.clear()
    shard.due(log, Tick)  # type: ignore[arg-type]
    assert log.timers == {Tick: 60_000}


def test_a_shard_that_is_unloaded_counts_nothing() -> None:
    log, usage = Log(), Usage()
    shard = log.replayed(usage)
    accept(shard, log, RESULT, 1)
    shard.unloaded(log)  # type: ignore[arg-type]
    assert usage.total == Amount()


@pytest.mark.parametrize("commit", [True, False])
def test_a_log_with_two_open_results_of_a_key_is_loaded_and_each_ends_with_its_own_marker(commit: bool) -> None:
    log, usage = Log(), Usage()
    log.records = [(ProducerId(number), encode_result(KEY, result)) for number, result in ((1, RESULT), (2, OTHER))]
    log.mark(1, commit=commit)
    shard = log.replayed(usage)
    assert list(shard.open_results()) == [(2, 1)]
    assert not shard.is_open(ProducerId(1), Offset(0))
    assert shard.look(KEY, b"", 0).offsets == ((0,) if commit else ())
    log.mark(2, commit=False)
    usage = Usage()
    assert list(log.replayed(usage).open_results()) == []
    assert usage.total.keys == int(commit)
