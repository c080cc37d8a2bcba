"""Appending: offsets, checks, producers, rolls, and a disk without room."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.configs import TimestampType
from app.core.errors import (
    ErrorCode,
    ProtocolError,
    RecordsRejected,
    RequestRejected,
    SequenceRefused,
    StorageFull,
    StorageUnavailable,
)
from app.core.limits import KIB
from app.core.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from app.hot.log import PartitionLog
from app.hot.producers import ProducerStates
from app.records.batch import (
    LOG_APPEND_TIME,
    HeaderFields,
    check_stored_batch,
    iter_headers,
    parse_header,
    patch_batch,
)
from app.records.builder import build_batch
from app.records.control import ControlType
from app.records.record import iter_records
from tests.hot.helpers import DATA, NOW, batch, idempotent, manager_over, new_log, read_all, sim

MIB = KIB * KIB


def plain(log: PartitionLog, records: memoryview) -> tuple[memoryview, HeaderFields]:
    found = log.check_plain(records)
    assert found is not None
    return records, found


def append(log: PartitionLog, records: memoryview, now_ms: int = NOW) -> tuple[int, int, bool]:
    result = log.append_as_leader(records, now_ms=now_ms)
    return result.base_offset, result.last_offset_end, result.duplicate


async def test_offsets_follow_one_another_and_epochs_are_stamped() -> None:
    log = new_log(manager_over(sim()))
    log.become_leader(LeaderEpoch(3))
    assert append(log, batch(2)) == (0, 2, False)
    assert append(log, batch(3)) == (2, 5, False)
    found = [header for _, header in iter_headers(await read_all(log))]
    assert [(header.base_offset, header.leader_epoch) for header in found] == [(0, 3), (2, 3)]
    assert log.log_end_offset == log.high_watermark == log.last_stable_offset == 5
    assert log.leader_epochs() == ((3, 0),)


async def test_the_bytes_on_disk_are_the_producers_but_for_offset_and_epoch() -> None:
    fs = sim()
    log = new_log(manager_over(fs))
    sent = bytes(batch(3, value=b"x" * 100))
    append(log, memoryview(bytearray(sent)))
    append(log, memoryview(bytearray(sent)))
    stored = fs.open(f"{DATA}/t-0/00000000000000000000.log").pread(10_000, 0)
    assert len(stored) == 2 * len(sent)
    second = stored[len(sent) :]
    assert second[:8] == (3).to_bytes(8, "big")
    assert second[8:12] == sent[8:12]
    assert second[12:16] == (0).to_bytes(4, "big")
    assert second[16:] == sent[16:]


async def test_several_batches_are_one_append_unless_one_is_idempotent() -> None:
    log = new_log(manager_over(sim()))
    assert append(log, memoryview(bytearray(bytes(batch(2)) + bytes(batch(1))))) == (0, 3, False)
    with pytest.raises(ProtocolError) as caught:
        append(log, memoryview(bytearray(bytes(idempotent(0)) + bytes(idempotent(1)))))
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 3


async def test_log_append_time_rewrites_header_and_crc() -> None:
    log = new_log(manager_over(sim()), message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    result = log.append_as_leader(batch(2, timestamp=5), now_ms=NOW + 1)
    assert result.log_append_time_ms == NOW + 1
    header = check_stored_batch(memoryview(await read_all(log)))
    assert (header.max_timestamp, header.attributes) == (NOW + 1, LOG_APPEND_TIME)
    assert (await log.offset_for_timestamp(NOW)) == (NOW + 1, 0)


@pytest.mark.parametrize(
    ("timestamp", "good"), [(NOW + 1000, True), (NOW + 1001, False), (NOW - 500, True), (NOW - 501, False)]
)
async def test_timestamps_too_far_from_now_are_refused(timestamp: int, good: bool) -> None:
    log = new_log(manager_over(sim()), message_timestamp_after_max_ms=1000, message_timestamp_before_max_ms=500)
    for _ in range(2):  # by the general way, then by the straight one
        if good:
            append(log, batch(timestamp=timestamp))
        else:
            with pytest.raises(RequestRejected) as caught:
                append(log, batch(timestamp=timestamp))
            assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
            append(log, batch())


async def test_a_batch_over_max_message_bytes_is_refused() -> None:
    log = new_log(manager_over(sim()), max_message_bytes=100)
    with pytest.raises(RequestRejected) as caught:
        append(log, batch(value=b"x" * 100))
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(("name", "codec"), [("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4), ("uncompressed", 0)])
async def test_compression_type_recompresses(name: str, codec: int) -> None:
    log = new_log(manager_over(sim()), compression_type=name)
    sent = batch(20, value=b"v" * 50, codec=1 if codec != 1 else 0)
    assert log.needs_preparation(sent)
    prepared = memoryview(log.prepare_append(sent))
    assert not log.needs_preparation(prepared)
    assert append(log, prepared) == (0, 20, False)
    stored = await read_all(log)
    assert check_stored_batch(memoryview(stored)).codec == codec
    assert [record.value for record in iter_records(stored)] == [b"v" * 50] * 20


async def test_an_unprepared_batch_is_prepared_at_the_append() -> None:
    log = new_log(manager_over(sim()), compression_type="zstd")
    append(log, batch(5))
    assert check_stored_batch(memoryview(await read_all(log))).codec == 4


async def test_a_compacted_topic_wants_keys() -> None:
    log = new_log(manager_over(sim()), cleanup_policy=frozenset({"compact"}))
    append(log, batch(2, key=b"k"))
    with pytest.raises(RecordsRejected) as caught:
        append(log, batch(2))
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert [number for number, _ in caught.value.record_errors] == [0, 1]


# --- idempotent producers -------------------------------------------------------------------------------------------


async def test_a_duplicate_is_answered_with_the_original_offset_and_not_written() -> None:
    log = new_log(manager_over(sim()))
    for sequence in range(0, 14, 2):
        append(log, idempotent(sequence, 2))
    size = log.size_bytes
    for sequence in (4, 6, 8, 10, 12):
        assert append(log, idempotent(sequence, 2)) == (sequence, sequence + 2, True)
    assert log.size_bytes == size
    with pytest.raises(RequestRejected) as caught:
        append(log, idempotent(2, 2))  # the sixth back is forgotten
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_gap_in_sequences_is_refused() -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(0, 2))
    with pytest.raises(RequestRejected) as caught:
        append(log, idempotent(3))
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, idempotent(2)) == (2, 3, False)


async def test_an_unknown_producer_may_begin_anywhere() -> None:
    log = new_log(manager_over(sim()))
    assert append(log, idempotent(77)) == (0, 1, False)


async def test_sequences_wrap_after_the_greatest_int32() -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(2**31 - 2))
    assert append(log, idempotent(2**31 - 1, 3)) == (1, 4, False)  # 2^31-1, 0, 1
    assert append(log, idempotent(2)) == (4, 5, False)
    assert append(log, idempotent(2**31 - 1, 3)) == (1, 4, True)


async def test_a_new_epoch_begins_at_zero_and_fences_the_old() -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(0, 5))
    with pytest.raises(RequestRejected) as caught:
        append(log, idempotent(5, epoch=1))
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, idempotent(0, epoch=1))
    with pytest.raises(RequestRejected) as caught:
        append(log, idempotent(5))
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_silent_producers_are_forgotten() -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(0, timestamp=NOW))
    append(log, idempotent(0, producer_id=2, timestamp=NOW + 500))
    assert log.expire_producers(NOW + 1000, 1000) == 1
    assert list(log.producers.entries) == [2]


# --- transactions ---------------------------------------------------------------------------------------------------


async def test_an_open_transaction_holds_the_last_stable_offset_until_its_marker() -> None:
    log = new_log(manager_over(sim()))
    append(log, batch(1))
    append(log, idempotent(0, 2, transactional=True))
    append(log, batch(1))
    assert (log.high_watermark, log.last_stable_offset) == (4, 1)
    log.append_control(
        ControlType.ABORT, producer_id=ProducerId(1), producer_epoch=ProducerEpoch(0), coordinator_epoch=0, now_ms=NOW
    )
    assert log.last_stable_offset == log.log_end_offset == 5
    assert log.aborted_transactions(0, 5) == [(1, 1, 4, 5)]
    assert log.aborted_transactions(0, 1) == []
    append(log, idempotent(2, transactional=True))
    log.append_control(
        ControlType.COMMIT, producer_id=ProducerId(1), producer_epoch=ProducerEpoch(0), coordinator_epoch=0, now_ms=NOW
    )
    assert log.aborted_transactions(5, 100) == []
    assert log.last_stable_offset == 7


async def test_a_producer_that_wrote_outside_a_transaction_may_begin_one() -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(0))
    append(log, idempotent(1, transactional=True))
    append(log, idempotent(2, transactional=True))
    assert log.producers.open_transactions == {1: 1}
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)


async def test_markers_of_an_old_epoch_or_coordinator_are_refused() -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(0, epoch=1, transactional=True))
    marker = {"producer_id": ProducerId(1), "now_ms": NOW}
    with pytest.raises(RequestRejected) as caught:
        log.append_control(ControlType.COMMIT, producer_epoch=ProducerEpoch(0), coordinator_epoch=5, **marker)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    log.append_control(ControlType.COMMIT, producer_epoch=ProducerEpoch(1), coordinator_epoch=5, **marker)
    with pytest.raises(RequestRejected) as caught:
        log.append_control(ControlType.COMMIT, producer_epoch=ProducerEpoch(1), coordinator_epoch=4, **marker)
    assert caught.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


async def test_a_batch_outside_its_producers_open_transaction_is_refused() -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(0, transactional=True))
    with pytest.raises(RequestRejected) as caught:
        append(log, idempotent(1))
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE


# --- rolls ----------------------------------------------------------------------------------------------------------


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments()]


async def test_a_segment_never_passes_segment_bytes() -> None:
    size = len(batch(1))
    log = new_log(manager_over(sim()), segment_bytes=3 * size)
    for _ in range(7):
        append(log, batch(1))
    assert bases(log) == [0, 3, 6]
    assert {segment.size_bytes for segment in log.segments()[:-1]} == {3 * size}


async def test_segment_ms_counts_from_the_first_records_timestamp_to_the_incoming_ones() -> None:
    log = new_log(manager_over(sim()), segment_ms=1000)
    append(log, batch(timestamp=NOW - 5000))
    append(log, batch(timestamp=NOW - 4000), now_ms=NOW + 10**9)
    assert bases(log) == [0]
    append(log, batch(timestamp=NOW - 3999))
    assert bases(log) == [0, 2]


async def test_segment_ms_counts_by_the_clock_where_records_have_no_timestamps() -> None:
    log = new_log(manager_over(sim()), segment_ms=1000)
    append(log, batch(timestamp=-1))
    append(log, batch(timestamp=-1), now_ms=NOW + 1000)
    assert bases(log) == [0]
    append(log, batch(timestamp=-1), now_ms=NOW + 1001)
    assert bases(log) == [0, 2]


async def test_jitter_rolls_sooner_never_later() -> None:
    log = new_log(manager_over(sim()), segment_ms=1000, segment_jitter_ms=900)
    for step in range(40):
        append(log, batch(timestamp=NOW + step * 100))
    gaps = {after - before for before, after in zip(bases(log), bases(log)[1:], strict=False)}
    assert len(gaps) > 1
    assert max(gaps) <= 11


async def test_a_full_index_rolls() -> None:
    log = new_log(manager_over(sim()), segment_index_bytes=12 * 3, index_interval_bytes=0)
    for step in range(10):
        append(log, batch(timestamp=NOW + step))
    assert bases(log) == [0, 4, 8]


async def test_offsets_that_do_not_fit_an_index_roll() -> None:
    log = new_log(manager_over(sim()))
    for offset in (0, 2**31 - 1, 2**31):
        log.append_as_follower(batch(base_offset=offset, leader_epoch=0), now_ms=NOW)
    assert bases(log) == [0, 2**31]


async def test_an_old_active_segment_rolls_without_appends() -> None:
    log = new_log(manager_over(sim()), firn_tier_max_lag_ms=1000)
    assert not log.maybe_roll_by_time(NOW + 10_000)
    append(log, batch())
    assert not log.maybe_roll_by_time(NOW + 999)
    assert log.maybe_roll_by_time(NOW + 1000)
    assert bases(log) == [0, 1]
    assert not log.roll()


# --- both ways of an append -----------------------------------------------------------------------------------------

one_batch = st.tuples(
    st.integers(1, 3),  # records
    st.sampled_from([-1, 1, 2]),  # producer
    st.integers(0, 4),  # sequence, as a distance from the next one, less 2
    st.integers(-3000, 3000),  # timestamp from now
    st.booleans(),  # transactional
)


def drawn(one: tuple[int, int, int, int, bool], next_sequence: dict[int, int]) -> memoryview:
    """The batch that ``one_batch`` says."""
    count, producer_id, distance, shift, transactional = one
    if producer_id < 0:
        return batch(count, timestamp=NOW + shift)
    sequence = max(0, next_sequence[producer_id] + (distance - 2) * (distance != 2))
    return idempotent(sequence, count, producer_id=producer_id, timestamp=NOW + shift, transactional=transactional)


@settings(max_examples=60, deadline=None)
@given(st.lists(one_batch, max_size=25))
def test_the_straight_way_of_an_append_equals_the_general_one(batches: list[tuple[int, int, int, int, bool]]) -> None:
    logs = []
    for plain in (True, False):
        fs = sim()
        log = new_log(
            manager_over(fs),
            segment_bytes=700,
            index_interval_bytes=150,
            segment_ms=2500,
            message_timestamp_after_max_ms=2000,
        )
        log._plain = plain
        next_sequence = {1: 0, 2: 0}
        outcomes: list[object] = []
        for one in batches:
            producer_id = one[1]
            records = drawn(one, next_sequence)
            try:
                outcomes.append(append(log, records))
                if producer_id >= 0:
                    next_sequence[producer_id] = log.producers.entries[producer_id].last_sequence + 1
            except RequestRejected as error:
                outcomes.append(error.code)
        written = log.segments() if log.log_end_offset else ()
        files = {segment.base_offset: fs.open(segment.path).pread(10_000, 0) for segment in written}
        logs.append((outcomes, files, log.state(), log.last_stable_offset))
    assert logs[0] == logs[1]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(one_batch, min_size=5, max_size=25),
    st.lists(st.integers(1, 7), min_size=25, max_size=25),
    st.sampled_from([(900, 24), (500, MIB), (MIB, MIB)]),
)
def test_batches_appended_together_equal_those_appended_one_by_one(
    batches: list[tuple[int, int, int, int, bool]], lengths: list[int], segment_sizes: tuple[int, int]
) -> None:
    """A batch that cannot go with those before it is appended by itself, as its owner does it."""
    sent: list[bytes] = []
    logs = []
    for together in (False, True):
        fs = sim()
        fs.short_write_rate = 0.3
        log = new_log(
            manager_over(fs),
            segment_bytes=segment_sizes[0],
            index_interval_bytes=150,
            segment_index_bytes=segment_sizes[1],
            segment_ms=1000,
            message_timestamp_after_max_ms=2000,
        )
        outcomes: list[object] = []

        def alone(log: PartitionLog, records: memoryview, outcomes: list[object] = outcomes) -> None:
            try:
                outcomes.append(append(log, records))
            except RequestRejected as error:
                outcomes.append(error.code)

        if together:
            left = [memoryview(bytearray(one)) for one in sent]
            for length in lengths:
                run = [(records, found) for records in left[:length] if (found := log.check_plain(records)) is not None]
                assert len(run) == len(left[:length])
                results = log.append_run(run, now_ms=NOW)
                outcomes += [tuple(one[:2] + one[3:]) for one in results]
                del left[: len(results)]
                if left and len(results) < length:
                    alone(log, left.pop(0))
            for records in left:
                alone(log, records)
        else:
            next_sequence = {1: 0, 2: 0}
            for one in batches:
                producer_id = one[1]
                records = drawn(one, next_sequence)
                sent.append(bytes(records))
                alone(log, records)
                if producer_id >= 0 and producer_id in log.producers.entries:
                    next_sequence[producer_id] = log.producers.entries[producer_id].last_sequence + 1
        written = log.segments() if log.log_end_offset else ()
        files = {segment.base_offset: fs.open(segment.path).pread(10_000, 0) for segment in written}
        indexes = [
            (segment.index.encode_offsets(), segment.index.encode_times())
            for segment in log._segments
            if segment.index is not None
        ]
        logs.append((outcomes, files, indexes, log.state(), log.last_stable_offset, log.high_watermark))
    assert logs[0] == logs[1]


async def test_batches_that_go_together_are_one_write_and_one_notice() -> None:
    fs = sim()
    log = new_log(manager_over(fs))
    append(log, batch())
    append(log, idempotent(0))
    writes: list[str] = []
    woken: list[int] = []
    fs.note = lambda call, path: writes.append(path) if call == "write" else None  # type: ignore[method-assign]
    log.add_waiter(lambda: woken.append(log.high_watermark))
    run = [plain(log, one) for one in (batch(2), idempotent(1, 3), batch(), idempotent(4))]
    assert [tuple(one) for one in log.append_run(run, now_ms=NOW)] == [
        (2, 4, -1, False),
        (4, 7, -1, False),
        (7, 8, -1, False),
        (8, 9, -1, False),
    ]
    assert (len(writes), woken) == (1, [9])
    assert [header.base_offset for _, header in iter_headers(await read_all(log))] == [0, 1, 2, 4, 7, 8]
    assert append(log, idempotent(5)) == (9, 10, False)
    assert append(log, idempotent(1, 3)) == (4, 7, True)


@pytest.mark.parametrize("room_bytes", [0, 10, 100])
async def test_a_full_disk_takes_nothing_of_what_goes_together(room_bytes: int) -> None:
    fs = sim()
    log = new_log(manager_over(fs))
    append(log, idempotent(0))
    before = log.state()
    sent = [idempotent(1), batch(), idempotent(2)]
    fs.capacity_bytes = fs.used + room_bytes
    with pytest.raises(StorageFull):
        log.append_run([plain(log, one) for one in sent], now_ms=NOW)
    assert log.state() == before
    assert fs.file_size(f"{DATA}/t-0/00000000000000000000.log") == len(idempotent(0))
    fs.capacity_bytes += 10_000
    for records in sent:
        records[:8] = bytes(8)
    assert [one[0] for one in log.append_run([plain(log, one) for one in sent], now_ms=NOW)] == [1, 2, 3]
    assert [header.base_offset for _, header in iter_headers(await read_all(log))] == [0, 1, 2, 3]


async def test_a_log_that_is_sealed_or_led_no_more_takes_nothing_together() -> None:
    log = new_log(manager_over(sim()))
    append(log, batch())
    run = [plain(log, batch())]
    log.seal(RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, "drained"))
    assert log.append_run(run, now_ms=NOW) == []
    assert log.check_plain(batch()) is None
    assert log.log_end_offset == 1


@pytest.mark.parametrize("way", ["alone", "together", "followed"])
async def test_each_way_keeps_the_last_five_batches_of_a_producer(way: str) -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(0))
    sent = [idempotent(sequence) for sequence in range(1, 7)]
    if way == "alone":
        for records in sent:
            append(log, records)
    elif way == "together":
        assert len(log.append_run([plain(log, records) for records in sent], now_ms=NOW)) == 6
    else:
        for offset, records in enumerate(sent, start=1):
            patch_batch(records, 0, Offset(offset), LeaderEpoch(0))
            log.append_as_follower(records, now_ms=NOW)
    kept = log.producers.entries[1].batches
    assert kept == [(number, number, number, number, NOW) for number in range(2, 7)]


# --- a disk that is full, or broken ---------------------------------------------------------------------------------


async def test_a_full_disk_refuses_and_works_again_when_there_is_room() -> None:
    fs = sim()
    log = new_log(manager_over(fs))
    append(log, idempotent(0))
    fs.capacity_bytes = fs.used + 10
    for _ in range(2):
        with pytest.raises(StorageFull):
            append(log, idempotent(1))
    assert (await read_all(log)) == (await read_all(log))
    assert log.log_end_offset == 1
    fs.capacity_bytes += 10_000
    assert append(log, idempotent(1)) == (1, 2, False)
    assert [header.base_offset for _, header in iter_headers(await read_all(log))] == [0, 1]


async def test_no_room_for_a_new_segment_refuses_and_keeps_the_old() -> None:
    fs = sim()
    log = new_log(manager_over(fs), segment_bytes=len(batch()) + 1)
    append(log, batch())
    fs.capacity_bytes = fs.used
    with pytest.raises(StorageFull):
        append(log, batch())
    assert bases(log) == [0]
    fs.capacity_bytes += 10_000
    assert append(log, batch()) == (1, 2, False)


async def test_a_failed_write_that_cannot_be_cut_off_is_cut_off_before_the_next() -> None:
    fs = sim()
    log = new_log(manager_over(fs))
    append(log, batch())
    fs.capacity_bytes = fs.used + 10
    fs.fail_next("truncate")
    with pytest.raises(StorageFull):
        append(log, batch())
    assert fs.file_size(f"{DATA}/t-0/00000000000000000000.log") == len(batch()) + 10
    fs.capacity_bytes += 10_000
    fs.fail_next("truncate")
    with pytest.raises(StorageUnavailable):
        append(log, batch())
    append(log, batch())
    assert len(await read_all(log)) == 2 * len(batch())


async def test_short_writes_are_finished() -> None:
    fs = sim()
    fs.short_write_rate = 0.7
    log = new_log(manager_over(fs))
    for _ in range(20):
        append(log, batch(3))
    assert [header.base_offset for _, header in iter_headers(await read_all(log))] == list(range(0, 60, 3))


async def test_a_sealed_log_takes_nothing_from_anybody_and_does_all_else() -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(0))
    append(log, batch(2))
    log.seal(RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, "drained"))
    for _ in range(2):
        with pytest.raises(RequestRejected, match="drained"):
            append(log, batch(1))
        with pytest.raises(RequestRejected, match="drained"):
            log.append_control(
                ControlType.ABORT,
                producer_id=ProducerId(1),
                producer_epoch=ProducerEpoch(0),
                coordinator_epoch=0,
                now_ms=NOW,
            )
        with pytest.raises(RequestRejected, match="drained"):
            log.append_from_coordinator(batch(1), now_ms=NOW)
        with pytest.raises(RequestRejected, match="drained"):
            log.append_as_follower(batch(1), now_ms=NOW)
        assert log.roll() or log.segments()[-1].size_bytes == 0  # what looks at the guard does not take the seal off
    assert log.sealed
    assert log.log_end_offset == 3
    await log.flush()
    assert len(await read_all(log)) > 0
    await log.close()


@pytest.mark.parametrize(
    ("epoch", "sequence", "reason", "expected"),
    [(1, 9, "out_of_order", 2), (0, 9, "old_epoch", 0), (2, 9, "new_epoch", 0)],
)
def test_a_refused_sequence_names_what_was_sent_and_what_is_expected(
    epoch: int, sequence: int, reason: str, expected: int
) -> None:
    states = ProducerStates()
    states.apply(7, 1, 0, 0, 1, 0, 0)
    records = build_batch(
        [(0, None, b"v", ())],
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(epoch),
        base_sequence=sequence,
    )
    with pytest.raises(SequenceRefused) as caught:
        states.check(parse_header(records), states.entries[7])
    refused = caught.value
    assert (refused.reason, refused.producer_id, refused.epoch, refused.known_epoch) == (reason, 7, epoch, 1)
    assert (refused.sequence, refused.expected) == (sequence, expected)
