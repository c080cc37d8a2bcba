"""Checks of produced and of stored batches, and changes in place."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import CorruptionError, ErrorCode, ProtocolError, RequestRejected
from app.core.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from app.records.batch import (
    CONTROL,
    CRC_START,
    HAS_DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    check_batches,
    check_single,
    check_stored_batch,
    iter_headers,
    lacks_maximum,
    parse_header,
    patch_batch,
    rewrite_header,
    stored_batches,
)
from app.records.builder import build_batch
from app.records.compression import Codec
from app.records.record import NewRecord, iter_records
from tests.records.strategies import NOW_MS, new_records

MAX = 1 << 20


def three_records(codec: Codec = Codec.NONE, **options: object) -> bytes:
    records = [NewRecord(TimestampMs(NOW_MS + i), b"key", b"value %d" % i) for i in range(3)]
    return build_batch(records, codec=codec, **options)  # type: ignore[arg-type]


def altered(batch: bytes, **fields: int) -> memoryview:
    """The batch with header fields set and, unless ``crc`` is one of them, a CRC that matches."""
    buffer = bytearray(batch)
    header = parse_header(buffer)._replace(**fields)  # type: ignore[arg-type]
    HEADER.pack_into(buffer, 0, *header)
    if "crc" not in fields:
        header = header._replace(crc=crc32c(memoryview(buffer)[CRC_START:]))
        HEADER.pack_into(buffer, 0, *header)
    return memoryview(buffer)


@pytest.mark.parametrize("codec", list(Codec))
@given(records=new_records)
@settings(max_examples=15)
def test_every_batch_that_is_built_passes_the_check(codec: Codec, records: list[NewRecord]) -> None:
    batch = build_batch(
        records, codec=codec, producer_id=ProducerId(4), producer_epoch=ProducerEpoch(0), base_sequence=0
    )
    [(position, header)] = check_batches(memoryview(batch), max_batch_bytes=len(batch))
    assert position == 0
    assert header == parse_header(batch)
    assert header.size_bytes == len(batch)
    assert header.record_count == len(records)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert check_stored_batch(memoryview(batch)) == header


def test_several_batches_are_answered_with_their_positions() -> None:
    one, two = three_records(), three_records(Codec.LZ4)
    found = check_batches(memoryview(one + two), max_batch_bytes=MAX)
    assert [position for position, _ in found] == [0, len(one)]
    assert list(iter_headers(one + two)) == found


@pytest.mark.parametrize("length", [-(1 << 31), -13, -12, 0, HEADER_BYTES - 13])
def test_a_walk_over_headers_ends_at_a_length_that_no_batch_has(length: int) -> None:
    one, two = three_records(), bytearray(three_records())
    two[8:12] = length.to_bytes(4, "big", signed=True)
    found = iter_headers(one + two)
    assert next(found) == (0, parse_header(one))
    with pytest.raises(CorruptionError, match=f"at {len(one)} says that it has {length + 12} bytes"):
        next(found)


def test_more_batches_than_allowed_are_an_invalid_record() -> None:
    two = memoryview(three_records() * 2)
    with pytest.raises(ProtocolError, match="2 record batches") as caught:
        check_batches(two, max_batch_bytes=MAX, batches_max=1)
    assert caught.value.code is ErrorCode.INVALID_RECORD


REFUSED: list[tuple[str, dict[str, int], ErrorCode]] = [
    ("a wrong crc", {"crc": 1}, ErrorCode.CORRUPT_MESSAGE),
    ("magic 0", {"magic": 0}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("magic 1", {"magic": 1}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("magic 3", {"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
    ("magic -1", {"magic": -1}, ErrorCode.CORRUPT_MESSAGE),
    ("a length past the end", {"batch_length": 10_000}, ErrorCode.CORRUPT_MESSAGE),
    ("a negative length", {"batch_length": -1}, ErrorCode.CORRUPT_MESSAGE),
    ("the least length", {"batch_length": -(1 << 31)}, ErrorCode.CORRUPT_MESSAGE),
    ("a length less than a header", {"batch_length": HEADER_BYTES - 13}, ErrorCode.CORRUPT_MESSAGE),
    ("codec 5", {"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("codec 7", {"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("a control batch", {"attributes": CONTROL}, ErrorCode.INVALID_RECORD),
    ("log append time", {"attributes": LOG_APPEND_TIME}, ErrorCode.INVALID_TIMESTAMP),
    ("a delete horizon", {"attributes": HAS_DELETE_HORIZON}, ErrorCode.INVALID_RECORD),
    ("an unknown attribute", {"attributes": 0x80}, ErrorCode.INVALID_RECORD),
    ("the sign of the attributes", {"attributes": -(1 << 15)}, ErrorCode.INVALID_RECORD),
    ("a base offset", {"base_offset": 1}, ErrorCode.INVALID_RECORD),
    ("a negative base offset", {"base_offset": -1}, ErrorCode.INVALID_RECORD),
    ("no records", {"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
    ("a negative count", {"record_count": -3}, ErrorCode.INVALID_RECORD),
    ("a count over the offsets", {"record_count": 4}, ErrorCode.INVALID_RECORD),
    ("a count under the offsets", {"record_count": 2}, ErrorCode.INVALID_RECORD),
    ("more records than fit", {"record_count": 9, "last_offset_delta": 8}, ErrorCode.INVALID_RECORD),
    (
        "more compressed records than can be",
        {"attributes": 4, "record_count": 1 << 30, "last_offset_delta": (1 << 30) - 1},
        ErrorCode.INVALID_RECORD,
    ),
    ("producer id -2", {"producer_id": -2}, ErrorCode.INVALID_RECORD),
    ("a producer without epoch", {"producer_id": 5, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
    ("a producer without sequence", {"producer_id": 5, "producer_epoch": 0}, ErrorCode.INVALID_RECORD),
    ("a transaction without producer", {"attributes": TRANSACTIONAL}, ErrorCode.INVALID_RECORD),
]


@pytest.mark.parametrize(
    ("base_timestamp", "max_timestamp", "lacks"),
    [
        (NOW_MS, NOW_MS, False),
        (NOW_MS, NOW_MS - 1, True),
        (NOW_MS, -1, True),
        (-1, -1, True),
        (-1, -2, True),
        (-2000, -1000, True),
        (-2000, 0, False),
        (-1, 0, False),
        (-(1 << 63), (1 << 63) - 1, False),
    ],
)
def test_any_timestamps_are_accepted_as_in_kafka_and_a_missing_maximum_is_noticed(
    base_timestamp: int, max_timestamp: int, lacks: bool
) -> None:
    made = altered(three_records(), base_timestamp=base_timestamp, max_timestamp=max_timestamp)
    [(_, header)] = check_batches(made, max_batch_bytes=MAX)
    assert lacks_maximum(header) is lacks
    assert (check_single(made, MAX) is None) is lacks


@pytest.mark.parametrize(("fields", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_produced_batch_is_refused_for(fields: dict[str, int], code: ErrorCode) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_batches(altered(three_records(), **fields), max_batch_bytes=MAX)
    assert caught.value.code is code


@pytest.mark.parametrize(
    "fields",
    [
        {"base_sequence": 0},
        {"producer_epoch": 0, "base_sequence": 0},
        {"max_timestamp": -1},
        {"base_timestamp": -1, "max_timestamp": -1},
        {"base_timestamp": -1},
        {"leader_epoch": 17},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": (1 << 31) - 1},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL},
    ],
    ids=str,
)
def test_what_clients_in_use_send_is_taken(fields: dict[str, int]) -> None:
    [(_, header)] = check_batches(altered(three_records(), **fields), max_batch_bytes=MAX)
    for name, value in fields.items():
        assert getattr(header, name) == value


def test_an_old_message_shorter_than_a_batch_header_is_still_told_apart() -> None:
    # A magic 1 message of a null key and an empty value: offset, size, CRC, magic, attributes, timestamp, key, value.
    message = bytes.fromhex("0000000000000000 00000016 12345678 01 00 000001234567890a ffffffff 00000000")
    assert len(message) < HEADER_BYTES
    with pytest.raises(ProtocolError) as caught:
        check_batches(memoryview(message), max_batch_bytes=MAX)
    assert caught.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_the_size_limit_is_of_one_batch_and_inclusive() -> None:
    batch = three_records()
    assert len(check_batches(memoryview(batch * 2), max_batch_bytes=len(batch))) == 2
    with pytest.raises(RequestRejected, match="over max") as caught:
        check_batches(memoryview(batch), max_batch_bytes=len(batch) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_no_batch_at_all_is_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        check_batches(memoryview(b""), max_batch_bytes=MAX)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_every_truncation_and_every_trailing_garbage_is_refused() -> None:
    batch = three_records()
    for cut in range(len(batch)):
        with pytest.raises(ProtocolError):
            check_batches(memoryview(batch)[:cut], max_batch_bytes=MAX)
        with pytest.raises(ProtocolError):
            check_batches(memoryview(batch + batch[:cut] + b"\x07"), max_batch_bytes=MAX)


def test_every_flipped_bit_is_refused_except_where_the_crc_does_not_look() -> None:
    batch = three_records()
    for position in range(len(batch)):
        for bit in range(8):
            buffer = bytearray(batch)
            buffer[position] ^= 1 << bit
            if 12 <= position < 16:  # the leader epoch, which the broker sets anyway
                check_batches(memoryview(buffer), max_batch_bytes=MAX)
                continue
            with pytest.raises((ProtocolError, RequestRejected)):
                check_batches(memoryview(buffer), max_batch_bytes=MAX)


@given(data=st.binary(max_size=200))
@settings(max_examples=100)
def test_random_bytes_raise_nothing_but_what_is_said(data: bytes) -> None:
    with pytest.raises((ProtocolError, RequestRejected)):
        check_batches(memoryview(data), max_batch_bytes=100)
    with pytest.raises(CorruptionError):
        check_stored_batch(memoryview(data))


@given(values=st.tuples(*[st.sampled_from([-(1 << 15), -2, -1, 0, 1, 2, 4, 16, 32, (1 << 15) - 1])] * 13))
@settings(max_examples=200)
def test_any_header_with_a_matching_crc_is_taken_or_refused_in_words(values: tuple[int, ...]) -> None:
    fields = dict(zip(BatchHeader._fields, values, strict=True))
    del fields["crc"], fields["batch_length"]
    fields["magic"] = max(-128, min(127, fields["magic"]))
    batch = altered(three_records(), **fields)
    try:
        [(_, header)] = check_batches(batch, max_batch_bytes=MAX)
    except ProtocolError:
        return
    assert check_stored_batch(batch) == header


def stored(*first_offsets: int, epoch: int = 3) -> bytearray:
    """Batches of three records as a leader has written them."""
    buffer = bytearray(b"".join(three_records() for _ in first_offsets))
    size = len(buffer) // len(first_offsets)
    for place, first in enumerate(first_offsets):
        patch_batch(memoryview(buffer), place * size, Offset(first), LeaderEpoch(epoch))
    return buffer


def test_stored_batches_that_follow_one_another_are_checked_in_one_go() -> None:
    view = memoryview(stored(7, 10, 13))
    size = len(view) // 3
    expected = [(position, check_stored_batch(view, position)) for position in (0, size, 2 * size)]
    assert stored_batches(view, 7, 3) == stored_batches(view, 7, -1) == expected


@pytest.mark.parametrize(
    ("view", "after", "epoch"),
    [
        (memoryview(stored(7)), 6, 3),  # a gap
        (memoryview(stored(7)), 8, 3),  # known already
        (memoryview(stored(7)), 7, 4),  # an older leader's
        (memoryview(stored(7, 11)), 7, 3),
        (memoryview(stored(7) + stored(10, epoch=2)), 7, 2),
        (memoryview(stored(7))[:-1], 7, 3),
        (memoryview(stored(7))[:40], 7, 3),
    ],
)
def test_anything_else_is_left_to_the_way_that_says_what_is_wrong(view: memoryview, after: int, epoch: int) -> None:
    assert stored_batches(view, after, epoch) is None


def test_stored_batches_take_nothing_that_is_refused_one_by_one() -> None:
    batch = stored(7)
    for position in range(len(batch)):
        for bit in range(8):
            buffer = bytearray(batch)
            buffer[position] ^= 1 << bit
            found = stored_batches(memoryview(buffer), 7, -1)
            if found is not None:
                assert found == [(0, check_stored_batch(memoryview(buffer)))]
                assert 12 <= position < 16, "the leader epoch, which no CRC covers"


def test_patching_changes_offset_and_epoch_and_keeps_the_crc() -> None:
    buffer = bytearray(b"before" + three_records())
    patch_batch(memoryview(buffer), 6, Offset(1 << 40), LeaderEpoch(7))
    header = check_stored_batch(memoryview(buffer), 6)
    assert (header.base_offset, header.leader_epoch, header.end_offset) == (1 << 40, 7, (1 << 40) + 3)
    assert [record.offset for record in iter_records(memoryview(buffer)[6:])] == [(1 << 40) + i for i in range(3)]


def test_log_append_time_is_written_with_a_new_crc() -> None:
    buffer = bytearray(three_records() + three_records())
    position = len(buffer) // 2
    header = parse_header(buffer, position)
    answered = rewrite_header(
        buffer, position, attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=TimestampMs(NOW_MS + 99)
    )
    assert check_stored_batch(memoryview(buffer), position) == answered
    assert [record.timestamp for record in iter_records(memoryview(buffer)[position:])] == [NOW_MS + 99] * 3
    check_stored_batch(memoryview(buffer), 0)


def test_producer_fields_can_be_rewritten() -> None:
    buffer = bytearray(three_records())
    rewrite_header(buffer, 0, producer_id=ProducerId(9), producer_epoch=ProducerEpoch(2), base_sequence=40)
    header = check_stored_batch(memoryview(buffer))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 40)


def test_a_compacted_batch_is_stored_soundly() -> None:
    records = [NewRecord(TimestampMs(NOW_MS), b"k", b"v")] * 2
    gaps = build_batch(records, base_offset=Offset(100), offset_deltas=[3, 8], last_offset_delta=9)
    header = check_stored_batch(memoryview(gaps))
    assert (header.end_offset, header.record_count) == (110, 2)
    assert [record.offset for record in iter_records(gaps)] == [103, 108]
    empty = build_batch([], base_offset=Offset(110), last_offset_delta=4)
    assert check_stored_batch(memoryview(empty)).end_offset == 115
    assert list(iter_records(empty)) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"crc": 1},
        {"magic": 1},
        {"batch_length": 1000},
        {"batch_length": 10},
        {"base_offset": -1},
        {"record_count": 4},
        {"record_count": -1},
        {"last_offset_delta": -1},
        {"attributes": 6},
    ],
    ids=str,
)
def test_a_damaged_stored_batch_is_corruption_that_names_its_position(fields: dict[str, int]) -> None:
    view = memoryview(bytes(10) + altered(three_records(), **fields))
    with pytest.raises(CorruptionError, match="position 10"):
        check_stored_batch(view, 10)
