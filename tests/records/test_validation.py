"""The interior of a batch: what Kafka refuses is refused, the bad records are named, and readers agree on what is sound."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.core.errors import CorruptionError, ErrorCode, LimitExceeded, ProtocolError, RecordsRejected
from app.core.units import TimestampMs
from app.records.batch import HEADER, HEADER_BYTES, check_batches, parse_header, rewrite_header
from app.records.builder import build_batch
from app.records.compression import compress
from app.records.record import NewRecord, iter_records
from app.records.validation import (
    NO_KEY,
    RECORD_ERRORS_MAX,
    check_interior,
    check_produced,
    first_at_or_after,
)
from tests.records.strategies import NOW_MS, new_records

ALL_TIMES = (0, 2**62)


def batch_of(*records: tuple[int, bytes | None, bytes | None], codec: int = 0) -> bytes:
    return build_batch([(TimestampMs(at), key, value, ()) for at, key, value in records], codec=codec)


def with_body(body: bytes, count: int, *, codec: int = 0) -> memoryview:
    """A batch whose header and checksum are right and whose records section is ``body``."""
    model = bytearray(build_batch([(TimestampMs(NOW_MS), None, b"", ())] * count))
    header = parse_header(model)
    stored = compress(codec, body) if codec else body
    batch = bytearray(model[:HEADER_BYTES]) + stored
    HEADER.pack_into(batch, 0, *header._replace(batch_length=HEADER_BYTES - 12 + len(stored)))
    rewrite_header(batch, 0, attributes=codec)
    check_batches(memoryview(batch), max_batch_bytes=1 << 30)
    return memoryview(batch)


def body_of(count: int) -> bytes:
    return build_batch([(TimestampMs(NOW_MS), b"k", b"value", ())] * count)[HEADER_BYTES:]


GOOD = body_of(3)
RECORD = len(GOOD) // 3
UNSOUND = [
    (b"\xff" * len(GOOD), "a varint"),
    (GOOD + b"\0", "1 bytes follow the last record"),
    (GOOD[:-1] + b"\x02", "headers in 0 bytes"),
    (GOOD[: 2 * RECORD] + GOOD[RECORD : 2 * RECORD], "offset delta 1 after 1"),  # an offset twice
    (GOOD[RECORD:] + GOOD[:RECORD], "offset delta 0 after 2"),  # a false order
    (bytes([GOOD[0] - 2]) + GOOD[1:], "leaves its record|longer or shorter|headers in"),
    (bytes([GOOD[0] + 2]) + GOOD[1:], "longer or shorter"),
    (b"\x7e" + GOOD[1:], "a record claims"),
    (GOOD[:4] + b"\x7e" + GOOD[5:], "a key of 63 bytes"),
    (GOOD[:4] + b"\x03" + GOOD[5:], "a key of -2 bytes"),
    (GOOD[:6] + b"\x7e" + GOOD[7:], "a value of 63 bytes"),
]


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize(("body", "words"), UNSOUND)
def test_an_unsound_interior_is_refused_with_the_record_that_is_at_fault(body: bytes, words: str, codec: int) -> None:
    batch = with_body(body, 3, codec=codec)
    with pytest.raises(ProtocolError, match=words) as told:
        check_produced(batch, keys_needed=False, timestamps=ALL_TIMES)
    assert told.value.code is ErrorCode.INVALID_RECORD
    assert re.match(r"Record \d of the batch cannot be read", str(told.value))
    with pytest.raises(CorruptionError, match=r"Record \d of the batch at offset 0 cannot be read"):
        check_interior(batch)


def test_damaged_compression_is_refused() -> None:
    batch = bytearray(with_body(GOOD, 3, codec=4))
    batch[-1] ^= 0xFF
    batch[HEADER_BYTES] ^= 0xFF
    rewrite_header(batch, 0)
    with pytest.raises(ProtocolError, match="Zstd data is damaged") as told:
        check_produced(memoryview(batch), keys_needed=False)
    assert told.value.code is ErrorCode.INVALID_RECORD


def test_a_bomb_stops_at_the_limit() -> None:
    batch = with_body(bytes(1 << 20), 1, codec=4)
    with pytest.raises(LimitExceeded):
        check_produced(batch, keys_needed=False, max_bytes=1 << 16)


def test_records_without_keys_are_named_each() -> None:
    batch = batch_of((NOW_MS, b"k", b"0"), (NOW_MS, None, b"1"), (NOW_MS, b"", b"2"), (NOW_MS, None, None))
    assert check_produced(batch, keys_needed=False) == NOW_MS
    with pytest.raises(RecordsRejected, match="2 of the batch's 4 records are refused; record 1") as told:
        check_produced(batch, keys_needed=True)
    assert told.value.code is ErrorCode.INVALID_RECORD
    assert told.value.record_errors == ((1, NO_KEY), (3, NO_KEY))


def test_records_out_of_time_are_named_and_their_code_comes_before_that_of_keys() -> None:
    batch = batch_of((NOW_MS, None, b""), (NOW_MS - 2, b"k", b""), (-1, b"k", b""), (NOW_MS + 2, b"k", b""))
    with pytest.raises(RecordsRejected) as told:
        check_produced(batch, keys_needed=True, timestamps=(NOW_MS - 1, NOW_MS + 1))
    assert told.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [number for number, _ in told.value.record_errors] == [0, 1, 3], "no timestamp is none that is out of time"


def test_what_a_refusal_names_is_bounded() -> None:
    count = RECORD_ERRORS_MAX + 5
    batch = build_batch([(TimestampMs(NOW_MS), None, b"", ())] * count, codec=4)
    with pytest.raises(RecordsRejected) as told:
        check_produced(batch, keys_needed=True)
    assert len(told.value.record_errors) == RECORD_ERRORS_MAX


@pytest.mark.parametrize(
    ("times", "greatest"), [([5, 9, 7], 9), ([-1, -1], -1), ([-1, 4], 4), ([NOW_MS, 3], NOW_MS), ([0], 0)]
)
def test_the_greatest_timestamp_is_that_of_the_records(times: list[int], greatest: int) -> None:
    batch = bytearray(batch_of(*((at, None, b"") for at in times)))
    rewrite_header(batch, 0, max_timestamp=TimestampMs(12345))
    assert check_produced(memoryview(batch), keys_needed=False, timestamps=ALL_TIMES) == greatest


@given(new_records, st.sampled_from([0, 1, 2, 3, 4]))
def test_what_a_producer_builds_is_sound(records: list[NewRecord], codec: int) -> None:
    batch = build_batch(records, codec=codec)
    greatest = check_produced(batch, keys_needed=False, timestamps=ALL_TIMES)
    assert greatest == max(record.timestamp for record in records)
    assert check_interior(batch) == len(records)


def outcome(check: Callable[[], object]) -> bool:
    try:
        check()
    except (CorruptionError, ProtocolError):
        return False
    return True


@given(new_records, st.data())
def test_readers_and_the_check_agree_on_what_is_sound(records: list[NewRecord], data: st.DataObject) -> None:
    body = bytearray(build_batch(records)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    batch = with_body(bytes(body), len(records))

    def read() -> None:
        try:
            list(iter_records(batch))
        except CorruptionError as error:
            assume("UTF-8" not in str(error))  # the name of a header is for whoever reads it, as with Kafka
            raise

    assert outcome(lambda: check_produced(batch, keys_needed=False)) == outcome(read)
    assert outcome(lambda: check_interior(batch)) == outcome(read)


@given(new_records, st.integers(-5, 5), st.integers(0, 14))
def test_a_lookup_in_a_batch_finds_what_a_reader_would(records: list[NewRecord], shift: int, start: int) -> None:
    batch = build_batch(records)
    timestamp = records[len(records) // 2].timestamp + shift
    expected = next(
        (
            (one.timestamp, one.offset)
            for one in iter_records(batch)
            if one.timestamp >= timestamp and one.offset >= start
        ),
        None,
    )
    assert first_at_or_after(batch, timestamp, start) == expected
