"""The segment object is what docs/formats.md says, byte for byte, and no bad byte passes."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from app.configs import TierCompression
from app.core.errors import CorruptionError
from app.core.units import FilePosition, LeaderEpoch, Offset, ProducerId, TimestampMs
from app.tiering.store.segment_format import (
    TRAILER_BYTES,
    AbortedTransaction,
    ChunkCodec,
    ChunkEntry,
    EpochStart,
    RawChunk,
    SegmentFooter,
    check_raw_chunk,
    check_stored_chunk,
    decode_footer,
    encode_footer,
    footer_tail_bytes,
    scan_chunk,
    store_compressed,
)
from tests.tiering.segments import SEGMENT, TOPIC, batch, segment_bytes, small_footer

NAME = "x.seg"


def _whole(footer: SegmentFooter) -> tuple[bytes, int]:
    """The footer as the tail of an object, and the object's size."""
    tail = encode_footer(footer)
    return tail, footer.stored_bytes + len(tail)


def test_a_footer_is_literally_these_bytes() -> None:
    head = b"FIRNSEGF" + struct.pack("<HHI", 1, 0, 144) + TOPIC.bytes + SEGMENT.bytes
    head += struct.pack("<iIqqqqqqqqIIIIq", 3, 2, 10, 22, 990, 1020, 12, 5, 500, 250, 2, 1, 5, 0, 2000)
    assert len(head) == 144
    columns = (
        struct.pack("<2q", 10, 15)  # base offsets
        + struct.pack("<2q", 0, 200)  # positions
        + struct.pack("<2q", 1000, 990)  # min timestamps
        + struct.pack("<2q", 1009, 1020)  # max timestamps
        + struct.pack("<2i", 200, 50)  # stored bytes
        + struct.pack("<2i", 200, 300)  # raw bytes
        + struct.pack("<2i", 5, 7)  # records
        + struct.pack("<2i", 2, 3)  # batches
        + struct.pack("<2I", 0x01020304, 0xFFFFFFFE)  # CRC-32C
        + bytes([0, 4]) + bytes(6)  # codecs, padded to eight bytes
        + struct.pack("<2i", 0, 4)  # epochs
        + struct.pack("<2q", 0, 12)  # their first offsets
        + struct.pack("<4q", 77, 11, 30, 11)  # one aborted transaction: four columns of one
        + b"\x00\x01abc" + bytes(3)
    )  # fmt: skip
    body = head + columns
    crc = crc32c(body + struct.pack("<I", len(body)))
    assert encode_footer(small_footer()) == body + struct.pack("<II", len(body), crc) + b"FIRNSEGT"


def test_a_footer_survives_the_round_trip_and_says_which_chunk_covers_an_offset() -> None:
    footer = small_footer()
    tail, size = _whole(footer)
    found = decode_footer(tail, size, NAME)
    assert found == footer
    assert [found.chunk_index_of(Offset(offset)) for offset in (10, 14, 15, 21)] == [0, 0, 1, 1]
    assert (found.chunk_end_offset(0), found.chunk_end_offset(1)) == (15, 22)
    # A longer tail than needed is the usual case.
    assert decode_footer(b"chunk bytes" + tail, size, NAME) == footer


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_footer_survives_the_round_trip(data: st.DataObject) -> None:
    sizes = data.draw(
        st.lists(st.tuples(st.integers(61, 10_000), st.integers(0, 100), st.booleans()), min_size=1, max_size=20)
    )
    chunks, position, offset = [], 0, data.draw(st.integers(0, 2**40))
    base = offset
    for raw, records, folded in sizes:
        stored = max(1, raw // 2) if folded else raw
        stamps = sorted(data.draw(st.tuples(st.integers(-1, 2**50), st.integers(-1, 2**50))))
        codec = ChunkCodec.ZSTD if folded else ChunkCodec.VERBATIM
        chunks.append(
            ChunkEntry(
                FilePosition(position), stored, raw, Offset(offset), records, 1, TimestampMs(stamps[0]),
                TimestampMs(stamps[1]), data.draw(st.integers(0, 2**32 - 1)), codec,
            )
        )  # fmt: skip
        position += stored
        offset += max(1, records)
    epochs = data.draw(st.lists(st.integers(0, 1000), unique=True, max_size=5).map(sorted))
    footer = replace(
        small_footer(),
        base_offset=Offset(base),
        end_offset=Offset(offset + 10),
        chunks=tuple(chunks),
        stored_bytes=position,
        raw_bytes=sum(chunk.raw_bytes for chunk in chunks),
        record_count=sum(chunk.record_count for chunk in chunks),
        batch_count=len(chunks),
        min_timestamp=min(chunk.min_timestamp for chunk in chunks),
        max_timestamp=max(chunk.max_timestamp for chunk in chunks),
        leader_epochs=tuple(EpochStart(LeaderEpoch(epoch), Offset(index)) for index, epoch in enumerate(epochs)),
        aborted=tuple(
            AbortedTransaction(ProducerId(index), Offset(base), Offset(base + index), Offset(0))
            for index in range(data.draw(st.integers(0, 3)))
        ),
        producer_snapshot=data.draw(st.binary(max_size=40)),
    )
    tail, size = _whole(footer)
    assert decode_footer(tail, size, NAME) == footer


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_flipped_bit_anywhere_in_a_footer_is_found(data: st.DataObject) -> None:
    tail, size = _whole(small_footer())
    at = data.draw(st.integers(0, len(tail) - 1))
    broken = bytearray(tail)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptionError, match=r"x\.seg"):
        decode_footer(bytes(broken), size, NAME)


def test_a_footer_cut_anywhere_is_found() -> None:
    tail, size = _whole(small_footer())
    for length in range(len(tail)):
        with pytest.raises(CorruptionError):
            decode_footer(tail[:length], size - len(tail) + length, NAME)  # the object ends early
        with pytest.raises(CorruptionError):
            decode_footer(tail[len(tail) - length :], size, NAME)  # the reader has too little


def test_bytes_missing_or_added_before_the_footer_are_found() -> None:
    tail, size = _whole(small_footer())
    for wrong in (size - 1, size + 1):
        with pytest.raises(CorruptionError, match="before a footer at"):
            decode_footer(tail, wrong, NAME)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 10_000))
def test_random_bytes_are_no_footer(junk: bytes, extra: int) -> None:
    with pytest.raises(CorruptionError):
        decode_footer(junk, len(junk) + extra, NAME)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_footer_with_right_crc_but_any_wrong_number_raises_only_corruption(data: st.DataObject) -> None:
    """A CRC says that bytes are what was written, not that they were written by a sane writer."""
    footer = small_footer()
    tail, size = _whole(footer)
    body = bytearray(tail[:-TRAILER_BYTES])
    at = data.draw(st.integers(0, len(body) - 8))
    body[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    crc = crc32c(bytes(body) + struct.pack("<I", len(body)))
    broken = bytes(body) + struct.pack("<II", len(body), crc) + b"FIRNSEGT"
    try:
        found = decode_footer(broken, size, NAME)
    except CorruptionError:
        return
    assert found.base_offset <= found.chunks[0].base_offset
    assert sum(chunk.stored_bytes for chunk in found.chunks) == footer.stored_bytes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"end_offset": Offset(10)}, "offsets"),
        ({"record_count": 13}, "records"),
        ({"raw_bytes": 501}, "raw bytes"),
        ({"batch_count": 6}, "batches"),
        ({"min_timestamp": TimestampMs(1)}, "least timestamp"),
        ({"max_timestamp": TimestampMs(1)}, "greatest timestamp"),
        ({"base_offset": Offset(11)}, "starts at offset"),
        ({"leader_epochs": (EpochStart(LeaderEpoch(2), Offset(0)), EpochStart(LeaderEpoch(1), Offset(1)))}, "epoch"),
        ({"leader_epochs": (EpochStart(LeaderEpoch(1), Offset(22)),)}, "epoch"),
        ({"aborted": (AbortedTransaction(ProducerId(1), Offset(22), Offset(30), Offset(0)),)}, "aborted"),
        ({"aborted": (AbortedTransaction(ProducerId(1), Offset(2), Offset(9), Offset(0)),)}, "aborted"),
    ],
)
def test_a_footer_that_contradicts_itself_is_refused_in_words(change: dict[str, object], words: str) -> None:
    tail, size = _whole(replace(small_footer(), **change))  # type: ignore[arg-type]
    with pytest.raises(CorruptionError, match=words):
        decode_footer(tail, size, NAME)


def test_a_tail_tells_how_much_of_it_is_needed() -> None:
    tail, size = _whole(small_footer())
    assert footer_tail_bytes(tail[-TRAILER_BYTES:], size, NAME) == len(tail)


# --- chunks ---------------------------------------------------------------------------------------------------------


def _scan(data: bytes, *, chunk_bytes: int = 1 << 20, expected: int = 0, end: int = 1 << 40) -> RawChunk | None:
    return scan_chunk(
        memoryview(data),
        chunk_bytes=chunk_bytes,
        expected_offset=Offset(expected),
        end_offset=Offset(end),
        name="0.log",
        position=0,
    )


def test_a_chunk_is_as_many_whole_batches_as_fit() -> None:
    one = len(batch(0, 3))
    data, _ = segment_bytes(batches=10)
    found = _scan(data, chunk_bytes=3 * one + 5)
    assert found is not None
    assert (found.raw_bytes, found.base_offset, found.end_offset) == (3 * one, 0, 9)
    assert (found.record_count, found.batch_count, found.min_timestamp, found.max_timestamp) == (9, 3, 1000, 1022)
    exactly = _scan(data, chunk_bytes=3 * one)
    assert exactly is not None
    assert exactly.raw_bytes == 3 * one


def test_a_batch_longer_than_a_chunk_is_a_chunk_of_its_own() -> None:
    data = batch(0, 1, value_bytes=5000) + batch(1, 1)
    assert _scan(data[:1000], chunk_bytes=1000) is None  # more is to be read
    found = _scan(data, chunk_bytes=1000)
    assert found is not None
    assert found.batch_count == 1


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_flipped_bit_in_a_batch_is_never_taken(data: st.DataObject) -> None:
    """The base offset and the leader epoch lie outside the CRC; a wrong offset is found by its neighbours."""
    raw, end = segment_bytes(batches=3)
    at = data.draw(st.integers(0, len(raw) - 1))
    size = len(raw) // 3
    if 12 <= at % size < 16:
        return  # leader epoch: any is possible
    broken = bytearray(raw)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = _scan(bytes(broken), end=end)
    except CorruptionError:
        return
    # A batch whose length grew past the end looks cut off; the uploader then finds the file short. A base offset can only
    # have moved into a gap that is not there, so what was taken is less than all or ends elsewhere.
    assert found is None or found.raw_bytes < len(raw) or found.base_offset != 0


@pytest.mark.parametrize(
    "data",
    [
        batch(5, 3) + batch(5, 3),  # the same offsets again
        batch(5, 3) + batch(6, 3),  # overlap
        batch(3, 1),  # before the segment
        batch(5, 3) + batch(99, 3),  # past its end
        bytes(100),
    ],
)
def test_batches_out_of_place_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        _scan(data, expected=5, end=20)


@pytest.mark.parametrize(
    ("compression", "compressed", "tried"),
    [
        (TierCompression.NONE, 0, False),
        (TierCompression.ZSTD, 1000, True),
        (TierCompression.AUTO, 0, True),
        (TierCompression.AUTO, 499, True),
        (TierCompression.AUTO, 500, False),
        (TierCompression.AUTO, 1000, False),
    ],
)
def test_auto_leaves_compressed_batches_alone(compression: TierCompression, compressed: int, tried: bool) -> None:
    chunk = RawChunk(1000, Offset(0), Offset(1), 1, 1, TimestampMs(0), TimestampMs(0), compressed)
    assert store_compressed(chunk, compression) is tried


def test_verify_holds_a_chunk_against_its_entry_in_every_number() -> None:
    raw, end = segment_bytes(batches=4)
    entry = ChunkEntry(
        FilePosition(0), len(raw), len(raw), Offset(0), 12, 4, TimestampMs(1000), TimestampMs(1032), crc32c(raw),
        ChunkCodec.VERBATIM,
    )  # fmt: skip
    check_stored_chunk(raw, entry, NAME)
    check_raw_chunk(memoryview(raw), entry, end, NAME)
    with pytest.raises(CorruptionError, match="wrong CRC of the chunk at position 0"):
        check_stored_chunk(raw[:-1] + b"x", entry, NAME)
    with pytest.raises(CorruptionError, match="bytes of the"):
        check_stored_chunk(raw[:-1], entry, NAME)
    for wrong in (
        entry._replace(record_count=11),
        entry._replace(batch_count=3),
        entry._replace(min_timestamp=TimestampMs(999)),
        entry._replace(max_timestamp=TimestampMs(1033)),
        entry._replace(raw_bytes=len(raw) + 1),
    ):
        with pytest.raises(CorruptionError):
            check_raw_chunk(memoryview(raw), wrong, end, NAME)
    with pytest.raises(CorruptionError, match="offsets"):
        check_raw_chunk(memoryview(raw), entry, Offset(end - 1), NAME)
