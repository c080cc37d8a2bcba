"""The writer of a write-ahead log: what is acknowledged is durable, and in order (ADR 0037, J1 to J8, J14, J18)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import CorruptionError, ErrorCode, FencedError, RequestRejected
from app.core.units import Offset, PartitionIndex, TopicIdPartition
from app.hot.producers import ProducerStates
from app.metadata.log.append_attempt import PutOutcome, ReadOutcome
from app.wal.format import (
    STATE_NUMBERS_MAX,
    WINDOW,
    PartitionState,
    WalFooter,
    decode_whole,
    encode_seal,
    encode_state,
    footer_tail_bytes,
)
from app.wal.states import captured
from app.wal.writer import CORRUPT_READS, STATE_EVERY, Done, Put, ReadBack, WalWriter
from tests.wal.objects import NONCE, NOW, TOPIC, WAL, P, Q, batch, empty_state, fields_of

WRITTEN, EXISTS, UNDECIDED = PutOutcome.WRITTEN, PutOutcome.EXISTS, PutOutcome.UNDECIDED
SIZE = len(batch(0))


def state_of(producers: int, offset: int) -> PartitionState:
    """The state of a log that so many producers wrote."""
    states = ProducerStates()
    for producer_id in range(producers):
        states.apply(producer_id, 0, 0, 0, 0, 1000, 0)
    return captured(states, [], Offset(offset))


class Log:
    """A writer with logs that grow by one record at a time."""

    def __init__(
        self,
        *,
        object_bytes: int = 10 * SIZE,
        buffer_bytes: int = 100 * SIZE,
        footer_bytes: int | None = None,
        partitions: Sequence[TopicIdPartition] = (P, Q),
    ) -> None:
        nonces = count(1)
        self.writer = WalWriter(
            WAL,
            new_nonce=lambda: next(nonces).to_bytes(16, "big"),
            object_bytes=object_bytes,
            buffer_bytes=buffer_bytes,
            footer_bytes=footer_bytes,
            waiting_bytes=0,
        )
        self.ends: dict[TopicIdPartition, int] = dict.fromkeys(partitions, 0)
        for partition in partitions:
            self.writer.lead(partition)

    def append(
        self,
        partition: TopicIdPartition = P,
        *,
        now_ms: int = 0,
        linger_ms: int = 0,
        epoch: int = 0,
        producers: int = 0,
    ) -> None:
        offset = self.ends[partition]
        data = batch(offset, epoch=epoch)
        self.writer.check_room(partition, len(data))
        state = state_of(producers, offset) if self.writer.wants_state(partition) else None
        self.writer.append(partition, data, fields_of(data), now_ms=now_ms, linger_ms=linger_ms, state=state)
        self.ends[partition] = offset + 1

    def cut_each(self, numbers: int) -> None:
        for _ in range(numbers):
            self.append()
            assert self.writer.cut(0) is not None

    def footer(self, number: int) -> WalFooter:
        return decode_whole(self.writer.bytes_of(number), "wal", WAL, number)

    def acknowledged(self) -> list[int]:
        return [each.number for each in self.writer.take_acknowledged()]


def test_an_object_is_cut_when_the_oldest_linger_is_over_and_an_empty_buffer_makes_none() -> None:
    log = Log()
    assert log.writer.cut_ms is None
    log.append(P, now_ms=1000, linger_ms=250)
    log.append(Q, now_ms=1001, linger_ms=100)
    assert log.writer.cut_ms == 1101
    assert log.writer.cut(1100) is None
    assert log.writer.cut(1101) == Put(0, 0.0)
    assert log.writer.cut_ms is None
    footer = decode_whole(log.writer.bytes_of(0), "wal", WAL, 0)
    assert [(section.partition, section.end_offset) for section in footer.sections] == [(P, 1), (Q, 1)]


def test_a_full_buffer_is_cut_at_once_and_an_object_takes_the_oldest_batches() -> None:
    log = Log(object_bytes=2 * SIZE, buffer_bytes=20 * SIZE)
    for partition in (P, Q, P):
        log.append(partition, linger_ms=1000)
    assert log.writer.cut(0) == Put(0, 0.0)
    assert log.writer.cut(0) is None  # one batch is left, and its linger is not over
    assert log.writer.cut(1000) == Put(1, 0.0)
    footers = [decode_whole(log.writer.bytes_of(number), "wal", WAL, number) for number in (0, 1)]
    assert [len(footer.sections) for footer in footers] == [2, 1]
    assert (footers[1].sections[0].base_offset, footers[1].sections[0].state_number) == (1, 0)


def test_records_are_acknowledged_in_the_order_of_numbers_whatever_the_order_of_outcomes() -> None:
    log = Log()
    log.cut_each(3)
    assert log.writer.on_put(2, WRITTEN) == Done(2)
    assert log.writer.on_put(1, WRITTEN) == Done(1)
    assert log.acknowledged() == []
    log.writer.on_put(0, WRITTEN)
    assert log.acknowledged() == [0, 1, 2]
    assert log.writer.durable_end == 3


def test_at_most_a_window_of_numbers_is_begun() -> None:
    log = Log()
    log.cut_each(WINDOW)
    log.append()
    assert log.writer.cut(0) is None
    log.writer.on_put(1, WRITTEN)
    assert log.writer.cut(0) is None, "number 8 is not begun before number 0 is durable"
    log.writer.on_put(0, WRITTEN)
    assert log.writer.cut(0) == Put(WINDOW, 0.0)


def test_every_try_puts_the_same_bytes_and_never_ends() -> None:
    log = Log()
    log.cut_each(1)
    first = log.writer.bytes_of(0)
    delays = []
    for _ in range(20):
        log.append()
        action = log.writer.on_put(0, UNDECIDED)
        assert isinstance(action, Put)
        delays.append(action.delay_s)
        assert log.writer.bytes_of(0) is first
    assert delays[:3] == [0.05, 0.1, 0.2]
    assert max(delays) == 2.0


def test_an_object_that_exists_is_read_back_before_it_counts() -> None:
    log = Log()
    log.cut_each(1)
    assert log.writer.on_put(0, EXISTS) == ReadBack(0, 0.0)
    assert isinstance(log.writer.on_read(0, ReadOutcome.UNDECIDED), ReadBack)
    assert isinstance(log.writer.on_read(0, ReadOutcome.MISSING), Put)
    assert log.acknowledged() == []
    own = decode_whole(log.writer.bytes_of(0), "wal", WAL, 0)
    assert log.writer.on_read(0, own) == Done(0)
    assert log.acknowledged() == [0]


def test_an_object_that_is_read_back_damaged_is_read_again_before_the_log_ends() -> None:
    log = Log()
    log.cut_each(1)
    own = log.footer(0)
    for _ in range(CORRUPT_READS - 1):
        assert isinstance(log.writer.on_read(0, ReadOutcome.CORRUPT), ReadBack)
    assert isinstance(log.writer.on_read(0, ReadOutcome.UNDECIDED), ReadBack)
    for _ in range(CORRUPT_READS - 1):
        assert isinstance(log.writer.on_read(0, ReadOutcome.CORRUPT), ReadBack)
    with pytest.raises(CorruptionError, match="Object 0 of write-ahead log 3/17 was read back 5 times"):
        log.writer.on_read(0, ReadOutcome.CORRUPT)
    assert log.writer.on_read(0, own) == Done(0)


def test_a_seal_ends_the_log_and_what_is_below_may_still_be_acknowledged() -> None:
    log = Log()
    log.cut_each(4)
    log.append()
    seal = decode_whole(encode_seal(WAL, 2, NONCE, NOW, 9), "wal", WAL, 2)
    log.writer.on_put(3, WRITTEN)
    assert log.writer.on_read(2, seal) == Done(2)
    assert log.writer.sealed_at == 2
    assert [number for number in range(4) if log.writer.wants(number)] == [0, 1]
    log.writer.on_put(1, WRITTEN)
    log.writer.on_put(0, WRITTEN)
    assert log.acknowledged() == [0, 1]
    assert log.writer.held_bytes == 0
    assert log.writer.cut(10**9) is None
    with pytest.raises(FencedError, match="sealed at 2"):
        log.append()


def test_another_writer_of_the_same_log_is_a_fault() -> None:
    log, other = Log(), Log()
    log.cut_each(1)
    other.cut_each(2)
    foreign = decode_whole(other.writer.bytes_of(1), "wal", WAL, 1)
    with pytest.raises(FencedError, match="not what this process has put there"):
        log.writer.on_read(0, foreign)


def test_a_buffer_that_is_full_refuses_before_anything_is_appended() -> None:
    log = Log(object_bytes=SIZE, buffer_bytes=4 * SIZE + len(encode_state(empty_state())))
    for _ in range(4):
        log.append()
    with pytest.raises(RequestRejected) as refused:
        log.append()
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert log.writer.held_bytes == 4 * SIZE + len(encode_state(empty_state()))
    log.writer.cut(0)
    log.writer.on_put(0, WRITTEN)
    log.append()


def test_several_batches_are_admitted_only_if_the_buffer_has_room_for_all_of_them() -> None:
    log = Log(object_bytes=SIZE, buffer_bytes=4 * SIZE + len(encode_state(empty_state())))
    with pytest.raises(RequestRejected, match="wait for the object store"):
        log.writer.check_room(P, 5 * SIZE, batches=5)
    log.writer.check_room(P, 5 * SIZE)  # one batch that is longer than the buffer
    log.writer.check_room(P, 4 * SIZE, batches=4)
    log.append()
    with pytest.raises(RequestRejected, match="wait for the object store"):
        log.writer.check_room(P, 4 * SIZE, batches=4)
    log.writer.check_room(P, 3 * SIZE, batches=3)


def test_a_release_says_the_last_number_once_everything_of_the_partition_is_acknowledged() -> None:
    log = Log()
    log.append(P, linger_ms=5000)
    log.writer.stop(P)
    assert log.writer.last_number_if_flushed(P) is None
    assert log.writer.cut(0) == Put(0, 0.0), "a release does not wait for the linger"
    log.append(Q)
    log.writer.cut(0)
    log.writer.on_put(1, WRITTEN)
    assert log.writer.last_number_if_flushed(P) is None
    log.writer.on_put(0, WRITTEN)
    assert log.writer.last_number_if_flushed(P) == 0
    with pytest.raises(RequestRejected, match="given"):
        log.append(P)
    log.append(Q)


def test_a_partition_without_records_is_released_at_once() -> None:
    log = Log()
    log.writer.stop(P)
    assert log.writer.last_number_if_flushed(P) == -1


def test_a_later_leadership_in_the_same_log_brings_its_state_anew() -> None:
    log = Log()
    log.cut_each(1)
    log.writer.on_put(0, WRITTEN)
    assert not log.writer.wants_state(P)
    log.writer.stop(P)
    log.writer.lead(P)
    assert log.writer.wants_state(P)


def test_the_state_comes_again_after_some_numbers() -> None:
    log = Log()
    for number in range(STATE_EVERY + 2):
        log.append()
        log.writer.cut(0)
        log.writer.on_put(number, WRITTEN)
    numbers = [each.sections[0].state_number for each in log.writer.take_acknowledged()]
    assert numbers == [0] * STATE_EVERY + [STATE_EVERY] * 2


def test_no_section_names_a_state_that_is_trimmed() -> None:
    log = Log()
    log.cut_each(2)
    log.writer.on_put(0, WRITTEN)
    assert log.writer.begin_trim(1) == 0, "object 1 names the state in object 0, and is on its way"
    log.writer.on_put(1, WRITTEN)
    log.append()
    assert log.writer.begin_trim(1) == 0, "so does the batch that waits"
    log.writer.cut(0)
    log.writer.on_put(2, WRITTEN)
    assert log.writer.begin_trim(1) == 1
    assert log.writer.wants_state(P)


def test_an_object_on_its_way_keeps_the_state_that_it_names_though_a_newer_one_is_cut() -> None:
    log = Log()
    for number in range(STATE_EVERY):
        log.append()
        log.writer.cut(0)
        if number < STATE_EVERY - 1:
            log.writer.on_put(number, WRITTEN)
    log.append()
    log.writer.cut(0)  # the state comes again with this one
    log.writer.on_put(STATE_EVERY, WRITTEN)
    assert log.writer.begin_trim(STATE_EVERY - 10) == 0


def test_a_release_that_is_refused_for_good_lets_the_partition_go_on_in_its_range() -> None:
    log = Log()
    log.cut_each(1)
    log.writer.on_put(0, WRITTEN)
    log.writer.stop(P)
    assert log.writer.last_number_if_flushed(P) == 0
    log.writer.resume(P)
    log.writer.stop(P)
    assert log.writer.last_number_if_flushed(P) == 0, "records from before the refusal are in the range as well"


# --- leaderships that end --------------------------------------------------------------------------------------------


def test_a_leadership_may_return_before_its_batches_were_cut_and_they_are_gone() -> None:
    log = Log()
    for _ in range(3):
        log.append(P, linger_ms=50)
        log.append(Q, linger_ms=80)
    log.writer.forget(P)
    log.writer.lead(P)
    log.ends[P] = 1  # another leader has given two of its offsets to others
    log.append(P, epoch=4, linger_ms=60)
    assert log.writer.held_bytes == 4 * SIZE + 2 * len(encode_state(empty_state()))
    assert log.writer.cut_ms == 60, "those that were due at 50 are gone"
    assert log.writer.cut(60) == Put(0, 0.0)
    sections = {section.partition: section for section in log.footer(0).sections}
    assert (sections[P].base_offset, sections[P].end_offset, sections[P].leader_epoch) == (1, 2, 4)
    assert (sections[Q].base_offset, sections[Q].end_offset) == (0, 3)
    assert log.writer.cut_ms is None
    assert log.writer.held_bytes == len(log.writer.bytes_of(0))


def test_no_leadership_goes_on_behind_a_hole() -> None:
    log = Log()
    log.append(P, epoch=4)
    log.writer.lead(P)
    with pytest.raises(AssertionError):
        log.append(P, epoch=4)
    log.append(P, epoch=5)
    log.ends[P] += 1
    with pytest.raises(AssertionError):
        log.append(P, epoch=5)


def test_what_an_earlier_leadership_has_on_its_way_is_told_as_its_own() -> None:
    log = Log()
    log.cut_each(1)
    log.writer.lead(P)
    log.append(P, epoch=2)
    log.writer.cut(0)
    log.writer.on_put(0, WRITTEN)
    log.writer.on_put(1, WRITTEN)
    told = [each.sections[0] for each in log.writer.take_acknowledged()]
    assert [(each.end_offset, each.leader_epoch, each.state_number) for each in told] == [(1, 0, 0), (2, 2, 1)]


def test_a_deleted_partition_leaves_nothing_behind() -> None:
    log = Log()
    log.append(P, linger_ms=50)
    log.writer.stop(P)
    log.writer.forget(P)
    assert log.writer.cut_ms is None, "nobody is in a hurry any more"
    assert log.writer.held_bytes == 0
    assert log.writer.cut(10**9) is None
    with pytest.raises(RequestRejected, match="does not lead it"):
        log.append(P)


def test_a_partition_that_goes_on_after_all_is_not_in_a_hurry() -> None:
    log = Log()
    log.append(P, linger_ms=50)
    log.append(Q, linger_ms=90)
    log.writer.stop(P)
    log.writer.stop(P)
    assert log.writer.cut_ms == -1
    log.writer.resume(P)
    assert log.writer.cut_ms == 50


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_an_object_is_due_when_the_first_of_all_waiting_batches_is(data: st.DataObject) -> None:
    """A plain list beside the writer says when: whatever the lingers of topics, and whichever leaderships end."""
    log = Log(object_bytes=5 * SIZE, buffer_bytes=100 * SIZE)
    waiting: list[tuple[TopicIdPartition, int]] = []
    now_ms = 0
    for _ in range(50):
        now_ms += data.draw(st.integers(0, 3))
        match data.draw(st.sampled_from(["append", "append", "append", "cut", "forget"])):
            case "append" if len(waiting) < 20:
                partition, linger_ms = data.draw(st.sampled_from([P, Q])), data.draw(st.sampled_from([1, 5, 40]))
                log.append(partition, now_ms=now_ms, linger_ms=linger_ms)
                waiting.append((partition, now_ms + linger_ms))
            case "forget":
                partition = data.draw(st.sampled_from([P, Q]))
                log.writer.forget(partition)
                log.writer.lead(partition)
                waiting = [each for each in waiting if each[0] != partition]
            case "cut" if (put := log.writer.cut(now_ms)) is not None:
                taken = sum(len(section.batches) for section in log.footer(put.number).sections)
                del waiting[:taken]
                log.writer.on_put(put.number, WRITTEN)
        full = len(waiting) >= 5
        assert log.writer.cut_ms == (-1 if full else min((due_ms for _, due_ms in waiting), default=None))


# --- states -----------------------------------------------------------------------------------------------------------


def test_many_partitions_with_many_producers_end_an_object_early_and_lose_nothing() -> None:
    partitions = [TopicIdPartition(TOPIC, PartitionIndex(index)) for index in range(40)]
    log = Log(object_bytes=100 * SIZE, buffer_bytes=2000 * SIZE, footer_bytes=10_000, partitions=partitions)
    for _ in range(2):
        for partition in partitions:
            log.append(partition, linger_ms=1000, producers=50)  # a state of 2,400 bytes
    held = 80 * SIZE + 40 * len(encode_state(state_of(50, 0)))
    assert log.writer.held_bytes == held, "states are in memory, too"
    assert log.writer.cut_ms == -1, "there are states for more than one object"
    ends = dict.fromkeys(partitions, 0)
    while (put := log.writer.cut(2000)) is not None:
        whole = log.writer.bytes_of(put.number)
        assert footer_tail_bytes(whole[-16:], len(whole), "wal") < 10_200
        for section in log.footer(put.number).sections:
            assert section.base_offset == ends[section.partition]
            ends[section.partition] = section.end_offset
        log.writer.on_put(put.number, WRITTEN)
    assert ends == dict.fromkeys(partitions, 2)
    assert log.writer.next_number == 11
    assert log.writer.held_bytes == 0


def test_a_full_buffer_takes_no_more_objects_than_a_state_may_be_away() -> None:
    """Whatever the settings are: batches that wait behind many short objects still find their state (J37)."""
    log = Log(object_bytes=SIZE, buffer_bytes=10**9, footer_bytes=200, partitions=(P, Q))
    log.append(P)
    refused = 0
    while not refused:
        try:
            log.append(Q)
        except RequestRejected:
            refused += 1
    log.writer.stop(P)
    log.writer.stop(Q)
    while (put := log.writer.cut(0)) is not None:
        log.writer.on_put(put.number, WRITTEN)
    assert 50 < log.writer.next_number <= STATE_NUMBERS_MAX - STATE_EVERY
    assert log.writer.held_bytes == 0


def test_a_state_longer_than_a_footer_should_be_is_alone_in_its_object() -> None:
    log = Log(footer_bytes=2000)
    log.append(Q)
    log.append(P, producers=100)
    log.append(Q)
    for number in range(3):
        assert log.writer.cut(0) == Put(number, 0.0)
        log.writer.on_put(number, WRITTEN)


def test_a_cut_that_fails_has_changed_nothing() -> None:
    log = Log()
    log.append(P, linger_ms=5)
    log.append(Q, linger_ms=9)
    held, new_nonce = log.writer.held_bytes, log.writer._new_nonce

    def fail() -> bytes:
        raise MemoryError

    log.writer._new_nonce = fail
    with pytest.raises(MemoryError):
        log.writer.cut(100)
    assert (log.writer.held_bytes, log.writer.cut_ms, log.writer.next_number) == (held, 5, 0)
    log.writer._new_nonce = new_nonce
    assert log.writer.cut(100) == Put(0, 0.0)
    assert [section.state_number for section in log.footer(0).sections] == [0, 0]


def test_a_state_that_comes_amid_a_section_is_for_later_ones() -> None:
    """What the section has before its state, a reader of this section must know as well: it begins with the state before."""
    log = Log(object_bytes=2 * SIZE + 8, buffer_bytes=20 * SIZE)
    for number in range(STATE_EVERY - 1):
        log.append()
        log.writer.cut(0)
        log.writer.on_put(number, WRITTEN)
    for _ in range(3):
        log.append()
    log.writer.cut(0)  # takes two of three, so one waits when the next number wants a state
    log.writer.on_put(STATE_EVERY - 1, WRITTEN)
    assert log.writer.wants_state(P)
    log.append()
    log.writer.cut(0)
    log.append()
    log.writer.cut(0)
    sections = [log.footer(number).sections[0] for number in (STATE_EVERY, STATE_EVERY + 1)]
    assert (sections[0].base_offset, sections[0].state_number) == (STATE_EVERY + 1, 0)
    assert sections[0].state is not None
    assert sections[0].state.offset == STATE_EVERY + 2
    assert (sections[1].state_number, sections[1].state) == (STATE_EVERY, None)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_no_outcome_loses_a_record_or_gives_one_twice(data: st.DataObject) -> None:
    """Whatever comes in whatever order: what is acknowledged are the records from the first on, each once, in order."""
    log = Log(object_bytes=3 * SIZE, buffer_bytes=30 * SIZE)
    open_numbers: list[int] = []
    ends = {P: 0, Q: 0}
    for _ in range(60):
        step = data.draw(st.sampled_from(["append", "append", "cut", "outcome"]))
        if step == "append" and log.writer.held_bytes < 20 * SIZE:
            log.append(data.draw(st.sampled_from([P, Q])), linger_ms=data.draw(st.integers(0, 3)))
        elif step == "cut" and (put := log.writer.cut(10)) is not None:
            open_numbers.append(put.number)
        elif open_numbers:
            number = data.draw(st.sampled_from(open_numbers))
            action = log.writer.on_put(number, data.draw(st.sampled_from([WRITTEN, EXISTS, UNDECIDED])))
            if isinstance(action, ReadBack):
                action = log.writer.on_read(number, decode_whole(log.writer.bytes_of(number), "wal", WAL, number))
            if isinstance(action, Done):
                open_numbers.remove(number)
        assert log.writer.next_number <= log.writer.durable_end + WINDOW
        for durable in log.writer.take_acknowledged():
            for section in durable.sections:
                assert section.end_offset > ends[section.partition]
                ends[section.partition] = section.end_offset
    assert all(ends[partition] <= log.ends[partition] for partition in (P, Q))
