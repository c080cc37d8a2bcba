"""Records in and out of batches."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import CorruptionError, ErrorCode, LimitExceeded, ProtocolError
from app.core.limits import MIB, RECORD_HEADERS_MAX
from app.core.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from app.records.batch import CRC_START, HEADER, check_batches, parse_header
from app.records.builder import build_batch, recompress
from app.records.compression import Codec, compress
from app.records.record import NewRecord, Record, iter_records
from tests.records.strategies import NOW_MS, new_records

NOW = TimestampMs(NOW_MS)


def with_body(body: bytes, count: int = 1, last_offset_delta: int | None = None, codec: Codec = Codec.NONE) -> bytes:
    """A batch of exactly these record bytes, header and CRC sound."""
    last = count - 1 if last_offset_delta is None else last_offset_delta
    buffer = bytearray(61)
    fields = (int(codec), last, NOW_MS, NOW_MS, -1, -1, -1, count)
    HEADER.pack_into(buffer, 0, 0, 49 + len(body), -1, 2, 0, *fields)
    buffer += body
    HEADER.pack_into(buffer, 0, 0, 49 + len(body), -1, 2, crc32c(memoryview(buffer)[CRC_START:]), *fields)
    return bytes(buffer)


@pytest.mark.parametrize("codec", list(Codec))
@given(records=new_records)
@settings(max_examples=20)
def test_records_come_back_as_they_went_in(codec: Codec, records: list[NewRecord]) -> None:
    batch = build_batch(records, base_offset=Offset(77), codec=codec)
    assert list(iter_records(memoryview(batch))) == [
        Record(Offset(77 + index), *record) for index, record in enumerate(records)
    ]


def test_a_batch_followed_by_others_is_read_alone() -> None:
    batch = build_batch([NewRecord(NOW, b"k", b"v")])
    assert len(list(iter_records(memoryview(batch + batch)))) == 1


def test_a_log_append_time_batch_shows_the_brokers_time() -> None:
    batch = build_batch([NewRecord(NOW, None, b"v")] * 2, log_append_time=TimestampMs(NOW_MS + 5))
    assert [record.timestamp for record in iter_records(batch)] == [NOW_MS + 5] * 2


def test_timestamps_may_fall_within_a_batch() -> None:
    records = [NewRecord(TimestampMs(NOW_MS + delta), None, b"") for delta in (0, -(10**12), 10**12)]
    batch = build_batch(records)
    assert [record.timestamp for record in iter_records(batch)] == [record.timestamp for record in records]
    assert parse_header(batch).max_timestamp == NOW_MS + 10**12


BAD_BODIES: list[tuple[str, str]] = [
    ("no bytes", ""),
    ("a record that ends early", "0c 00 00 00"),
    ("a length over the batch", "7e 00 00 00 01 01 00"),
    ("a negative length", "01 00 00 00 01 01 00"),
    ("a length of less than the least record", "0a 00 00 00 01 01 00"),
    ("a key over its record", "0c 00 00 00 08 01 00 00 00 00 00"),
    ("a key length of -2", "0c 00 00 00 03 01 00"),
    ("a length that never ends", "ff ff ff ff ff ff ff"),
    ("an offset delta over the last", "0c 00 00 02 01 01 00"),
    ("a negative offset delta", "0c 00 00 01 01 01 00"),
    ("bytes after the fields", "0e 00 00 00 01 01 00 00"),
    ("bytes after the last record", "0c 00 00 00 01 01 00 00"),
    ("a negative header count", "0c 00 00 00 01 01 01"),
    ("more headers than bytes", "0c 00 00 00 01 01 7e"),
    ("a header without key", "10 00 00 00 01 01 02 01 01"),
    ("a header key that is not text", "12 00 00 00 01 01 02 02 ff 01"),
    ("a header over its record", "10 00 00 00 01 01 02 04 61"),
    ("a value over its record", "0c 00 00 00 01 7e 00"),
]


@pytest.mark.parametrize("body", [row[1] for row in BAD_BODIES], ids=[row[0] for row in BAD_BODIES])
def test_an_unsound_interior_is_corruption(body: str) -> None:
    with pytest.raises(CorruptionError, match="not sound inside"):
        list(iter_records(with_body(bytes.fromhex(body))))


def test_offsets_must_rise() -> None:
    record = bytes.fromhex("0c 00 00 02 01 01 00")
    with pytest.raises(CorruptionError, match="offset delta 1 after 1"):
        list(iter_records(with_body(record * 2, count=2)))


def test_a_count_that_cannot_fit_is_refused_before_anything_is_read() -> None:
    record = bytes.fromhex("0c 00 00 00 01 01 00")
    with pytest.raises(CorruptionError, match="1000000 records do not fit"):
        list(iter_records(with_body(compress(Codec.ZSTD, record), count=1_000_000, codec=Codec.ZSTD)))


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.data())
@settings(max_examples=40)
def test_flipped_and_cut_interiors_raise_corruption_and_nothing_else(codec: Codec, data: st.DataObject) -> None:
    batch = build_batch(
        [NewRecord(NOW, b"key", b"value" * index, (("name", b"x"), ("none", None))) for index in range(4)], codec=codec
    )
    body = bytearray(batch[61:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        records = list(iter_records(with_body(bytes(body[: data.draw(st.integers(0, len(body)))]), 4, codec=codec)))
    except CorruptionError:
        return
    assert len(records) == 4


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_batch_that_is_a_bomb_is_corruption_at_a_reader(codec: Codec) -> None:
    batch = with_body(compress(codec, bytes(2 * MIB)), codec=codec)
    with pytest.raises(CorruptionError, match="unfolds to more than"):
        list(iter_records(batch, max_bytes=1 * MIB))


@given(records=new_records, old=st.sampled_from(list(Codec)), new=st.sampled_from(list(Codec)))
@settings(max_examples=40)
def test_recompression_changes_the_codec_and_nothing_else(records: list[NewRecord], old: Codec, new: Codec) -> None:
    batch = build_batch(
        records,
        base_offset=Offset(9),
        leader_epoch=LeaderEpoch(3),
        codec=old,
        producer_id=ProducerId(8),
        producer_epoch=ProducerEpoch(1),
        base_sequence=55,
        transactional=True,
    )
    again = recompress(memoryview(batch + b"next"), new)
    before, after = parse_header(batch), parse_header(again)
    assert after.codec == new
    assert after.is_transactional
    assert after._replace(crc=0, attributes=0, batch_length=0) == before._replace(crc=0, attributes=0, batch_length=0)
    assert list(iter_records(again)) == list(iter_records(batch))
    zeroed = bytearray(again)
    zeroed[:8] = bytes(8)
    check_batches(memoryview(zeroed), max_batch_bytes=len(again))


def test_recompression_of_bad_bytes_is_the_producers_error() -> None:
    with pytest.raises(ProtocolError) as caught:
        recompress(with_body(b"not gzip", codec=Codec.GZIP), Codec.NONE)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(ProtocolError) as caught:
        recompress(with_body(compress(Codec.GZIP, bytes(MIB)), codec=Codec.GZIP), Codec.NONE, max_bytes=1000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_without_records_must_say_what_it_covers() -> None:
    with pytest.raises(ValueError, match="covers"):
        build_batch([])


def test_more_headers_than_a_reader_takes_are_not_written() -> None:
    headers = (("h", None),) * (RECORD_HEADERS_MAX + 1)
    with pytest.raises(LimitExceeded):
        build_batch([NewRecord(NOW, None, None, headers)])
