"""Entries and snapshots byte for byte (docs/formats.md, "Numbered logs"); whatever is wrong with them is CorruptionError."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.errors import CorruptionError, LimitExceeded
from app.core.limits import LOG_ENTRY_BYTES_MAX
from app.core.units import LogSequence, TimestampMs
from app.metadata.log import log_format
from app.metadata.log.log_format import (
    Entry,
    SnapshotHeader,
    SnapshotReader,
    ValueDecoder,
    Writer,
    decode_entry,
    decode_key,
    encode_entry,
    iter_snapshot,
)
from app.records.builder import build_batch
from tests.metadata.support import Number, key, value

NONCE = bytes(range(16))
PREVIOUS = bytes(range(16, 32))
WRITER = Writer("w", 3, LogSequence(5))

ENTRY_BYTES = bytes.fromhex(
    "0000000000000000" "00000073" "ffffffff" "02" "619975a4" "0000" "00000001"  # base offset, length … last offset delta
    "00000000000003e8" "00000000000003e8" "ffffffffffffffff" "ffff" "ffffffff" "00000002"
    "6600000004" "9100" "56"  # header record: key [0], and a value of 43 bytes
    "970107a177" "c410" "000102030405060708090a0b0c0d0e0f" "c200" "c410" "101112131415161718191a1b1c1d1e1f" "00"
    "1a00000208" "9210a16b" "06" "92012a" "00"  # [16, "k"] -> [1, 42]
)  # fmt: skip


def encode(records: list[tuple[bytes, bytes | None]], sequence: int = 7, **more: Any) -> bytes:
    fields: dict[str, Any] = {"writer_id": "w", "nonce": NONCE, "is_seal": False, "epoch": 0, "previous": PREVIOUS}
    return encode_entry(sequence, records, **(fields | {"timestamp_ms": TimestampMs(1000)} | more))


def snapshot(live: dict[bytes, bytes], sequence: int = 9) -> bytes:
    header = SnapshotHeader(1, sequence, 0, 2, [5], 4, NONCE)
    return b"".join(iter_snapshot(header, WRITER, live, TimestampMs(1000)))


def read_snapshot(data: bytes) -> tuple[SnapshotReader, dict[bytes, bytes]]:
    reader = SnapshotReader("the snapshot", data)
    return reader, dict(record for records in reader for record in records)


keys = st.one_of(st.integers(0, 50), st.text(max_size=5)).map(key)
changes = st.lists(st.tuples(keys, st.one_of(st.none(), st.binary(max_size=40))), max_size=20)


def test_an_entry_is_these_bytes() -> None:
    assert encode([(key("k"), value(42))]).hex() == ENTRY_BYTES.hex()
    assert decode_entry("a key", 7, ENTRY_BYTES) == Entry(
        LogSequence(7), "w", NONCE, False, 0, PREVIOUS, TimestampMs(1000), ((key("k"), value(42)),)
    )


@given(changes, st.integers(0, 2**62), st.booleans(), st.integers(0, 2**31))
def test_entries_round_trip(
    records: list[tuple[bytes, bytes | None]], sequence: int, is_seal: bool, epoch: int
) -> None:
    kept = [] if is_seal else records
    data = encode(kept, sequence, is_seal=is_seal, epoch=epoch)
    assert decode_entry("k", sequence, data) == (sequence, "w", NONCE, is_seal, epoch, PREVIOUS, 1000, tuple(kept))


def test_a_seal_with_records_is_corruption() -> None:
    header = log_format.EntryHeader(1, 7, "w", NONCE, True, 0, PREVIOUS)
    records = [(0, log_format.HEADER_KEY, log_format.encode_value(header), ()), (0, key(1), value(1), ())]
    with pytest.raises(CorruptionError, match="it is a seal and has records"):
        decode_entry("k", 7, build_batch(records))


@settings(max_examples=60)
@given(changes, st.data())
def test_a_changed_byte_of_an_entry_is_corruption_and_nothing_else(
    records: list[tuple[bytes, bytes | None]], data: st.DataObject
) -> None:
    damaged = bytearray(encode(records))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptionError, match="cluster/log/x is corrupt"):
        decode_entry("cluster/log/x", 7, bytes(damaged))


def test_every_beginning_of_an_entry_is_corruption() -> None:
    for length in range(len(ENTRY_BYTES)):
        with pytest.raises(CorruptionError, match="is corrupt"):
            decode_entry("k", 7, ENTRY_BYTES[:length])
    with pytest.raises(CorruptionError, match="bytes follow"):
        decode_entry("k", 7, ENTRY_BYTES + b"\x00")


def test_an_entry_under_another_number_is_corruption() -> None:
    with pytest.raises(CorruptionError, match="it is entry 7"):
        decode_entry("k", 8, ENTRY_BYTES)


def test_a_batch_that_is_no_entry_is_corruption() -> None:
    for records in ([(0, key(1), value(1), ())], [(0, None, value(1), ())], [(0, log_format.HEADER_KEY, None, ())]):
        with pytest.raises(CorruptionError, match="not an entry header"):
            decode_entry("k", 7, build_batch(records))


def test_an_entry_from_the_future_says_so() -> None:
    future = msgspec.msgpack.encode([2, {"another": "shape"}])
    data = build_batch([(0, log_format.HEADER_KEY, future, ())])
    with pytest.raises(CorruptionError, match=r"k is corrupt: .*format version from the future.*upgrade"):
        decode_entry("k", 7, data)


def test_an_entry_may_not_pass_its_limit() -> None:
    big = b"x" * (LOG_ENTRY_BYTES_MAX // 2)
    encode([(key(1), big)])
    with pytest.raises(LimitExceeded):
        encode([(key(1), big), (key(2), big)])


@given(st.dictionaries(keys, st.binary(max_size=40), max_size=30))
def test_snapshots_round_trip(live: dict[bytes, bytes]) -> None:
    reader, records = read_snapshot(snapshot(live))
    assert records == live
    assert reader.start is not None
    assert reader.start.writer == WRITER
    assert reader.start.header == SnapshotHeader(1, 9, len(live) + 1, 2, [5], 4, NONCE)


def test_a_large_snapshot_is_many_batches_and_misses_none() -> None:
    live = {key(number): bytes(5000) for number in range(100)}
    data = snapshot(live)
    assert sum(1 for _ in SnapshotReader("s", data)) > 3
    assert read_snapshot(data)[1] == live


@settings(max_examples=60)
@given(st.data())
def test_a_changed_or_missing_byte_of_a_snapshot_is_corruption(data: st.DataObject) -> None:
    whole = snapshot({key(number): bytes([number]) * 5000 for number in range(60)})
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(damaged), whole[: data.draw(st.integers(0, len(whole) - 1))]):
        with pytest.raises(CorruptionError, match="the snapshot is corrupt"):
            read_snapshot(bad)


def test_a_snapshot_that_ends_between_batches_is_corruption() -> None:
    whole = snapshot({key(number): bytes([number]) * 5000 for number in range(60)})
    first = 12 + int.from_bytes(whole[8:12], "big")
    assert first < len(whole)
    with pytest.raises(CorruptionError, match="records are missing"):
        read_snapshot(whole[:first])


@example(b"\x91\xa2\x00\x80")
@example(b"\x91" * 5000)
@given(st.binary(max_size=30))
def test_any_bytes_as_key_or_value_give_a_value_or_corruption(data: bytes) -> None:
    decoder = ValueDecoder(Number, 1, "number")
    for decode in (decode_key, decoder.decode):
        try:
            decode(data)
        except CorruptionError:
            continue


def test_versions_rule() -> None:
    decoder = ValueDecoder(Number, 1, "number")
    assert decoder.decode(msgspec.msgpack.encode([1, 5, "a field that was added"])) == Number(1, 5)
    for future in ([2, 5], [2], [9, "five"]):
        with pytest.raises(CorruptionError, match="format version from the future"):
            decoder.decode(msgspec.msgpack.encode(future))
    for wrong in ([0, 5], [1], [1, "five"], [], {}):
        with pytest.raises(CorruptionError):
            decoder.decode(msgspec.msgpack.encode(wrong))
