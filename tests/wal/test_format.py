"""The objects of a write-ahead log are what docs/formats.md says, byte for byte, and no bad byte passes."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import CorruptionError
from app.core.units import LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicIdPartition
from app.hot.checkpoints import EpochStart
from app.hot.epochs import LeaderEpochs
from app.hot.producers import ProducerStates
from app.metadata.image.wal_ranges import WalId
from app.wal.format import (
    SectionDraft,
    WalFooter,
    check_section,
    decode_footer,
    decode_whole,
    encode_object,
    encode_seal,
    footer_tail_bytes,
)
from app.wal.states import captured, replay
from tests.wal.objects import NONCE, NOW, TOPIC, WAL, P, batch, draft, fields_of, marker, small_object
from tests.wal.plain_reader import read

NAME = "wal/3/17/4"


def test_a_seal_is_literally_these_bytes() -> None:
    body = b"FIRNWALF" + struct.pack("<HHIHHiqq", 1, 0, 96, 1, 8, 3, 17, 4) + NONCE
    body += struct.pack("<qIIIIqiI", 0, 0, 0, 0, 0, 2000, 9, 0)
    assert len(body) == 96
    crc = crc32c(body + struct.pack("<I", 96))
    assert encode_seal(WAL, 4, NONCE, NOW, 9) == body + struct.pack("<II", 96, crc) + b"FIRNWALT"
    assert decode_whole(encode_seal(WAL, 4, NONCE, NOW, 9), NAME, WAL, 4).is_seal


def test_a_footer_is_literally_these_bytes() -> None:
    data, _ = encode_object(WAL, 4, NONCE, NOW, [draft(P, [batch(10, 2)], 4)])
    records = batch(10, 2)
    size = len(records)
    state = struct.pack("<qIIII", 10, 0, 10, 0, 0) + draft(P, [records], 4).state.snapshot + bytes(6)  # type: ignore[union-attr]
    body = b"FIRNWALF" + struct.pack("<HHIHHiqq", 1, 0, 96, 0, 8, 3, 17, 4) + NONCE
    body += struct.pack("<qIIIIqiI", size, 1, 1, 1, 0, 2000, -1, 0)
    body += TOPIC.bytes + struct.pack("<i4xqi4xI4xi4xq", 0, 0, size, crc32c(records), 1, 4)  # the section
    body += struct.pack("<I4x", len(state))
    body += struct.pack("<qi4xi4xh6xi4xq", 10, size, 0, 0, 1, 1001)  # base offset to greatest timestamp
    body += struct.pack("<qh6xi4xi4xb7xi4x", -1, -1, -1, 2, -1, -1)  # producer to marker
    body += state
    crc = crc32c(body + struct.pack("<I", len(body)))
    assert data == records + body + struct.pack("<II", len(body), crc) + b"FIRNWALT"


def test_an_object_survives_the_round_trip() -> None:
    data, footer = small_object()
    assert decode_whole(data, NAME, WAL, 4) == footer
    assert [(section.base_offset, section.end_offset) for section in footer.sections] == [(10, 15), (0, 1)]
    tail = data[-footer_tail_bytes(data, len(data), NAME) :]
    assert decode_footer(tail, len(data), NAME, WAL, 4) == footer


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, WalFooter]:
    number = draw(st.integers(0, 2**40))
    drafts = []
    for partition in range(draw(st.integers(1, 4))):
        offset = first = draw(st.integers(0, 2**40))
        epoch = draw(st.integers(0, 100))
        producers = ProducerStates()
        batches, all_fields = [], []
        for _ in range(draw(st.integers(1, 5))):
            kind = draw(st.sampled_from(["plain", "idempotent", "marker"]))
            if kind == "marker":
                data = marker(offset, 5, aborted=True, epoch=epoch)
                fields = fields_of(data, marker=0)
            elif kind == "plain":
                data = batch(offset, draw(st.integers(1, 4)), epoch=epoch)
                fields = fields_of(data)
            else:
                data = batch(offset, 2, epoch=epoch, producer=6, sequence=draw(st.integers(0, 2**31 - 1)))
                fields = fields_of(data)
            batches.append(data)
            all_fields.append(fields)
            offset = fields.end_offset
        state_number = max(0, number - draw(st.integers(0, 3)))
        state = None
        at = draw(st.sampled_from([fields.base_offset for fields in all_fields]))
        if state_number == number:
            at = all_fields[0].base_offset
        if state_number == number or (at != all_fields[0].base_offset and draw(st.booleans())):
            lineage = [EpochStart(LeaderEpoch(index), Offset(index)) for index in range(min(first, 3))]
            before = [
                fields_of(batch(index, 1, producer=8, sequence=index)) for index in range(draw(st.integers(0, 4)))
            ]
            replay(producers, LeaderEpochs(), before)
            state = captured(producers, lineage, at)
        key = TopicIdPartition(TOPIC, PartitionIndex(partition))
        drafts.append(SectionDraft(key, batches, all_fields, state_number, state))
    return encode_object(WAL, number, NONCE, TimestampMs(draw(st.integers(0, 2**40))), drafts)


@settings(max_examples=60, deadline=None)
@given(objects())
def test_every_object_survives_the_round_trip_and_an_independent_reader_reads_it(made: tuple[bytes, WalFooter]) -> None:
    data, footer = made
    assert decode_whole(data, NAME, WAL, footer.number) == footer
    plain = read(data)
    assert (plain["broker"], plain["epoch"], plain["number"], plain["kind"], plain["window"]) == (
        *WAL,
        footer.number,
        0,
        8,
    )
    for section, found in zip(footer.sections, plain["sections"], strict=True):
        assert (found["topic"], found["partition"]) == (section.partition.topic_id.bytes, section.partition.partition)
        assert [tuple(row.values()) for row in found["batches"]] == list(section.batches)
        assert found["state_number"] == section.state_number
        if section.state is None:
            assert found["state"] is None
        else:
            assert found["state"] == {
                "offset": section.state.offset,
                "epochs": list(section.state.leader_epochs),
                "older": list(section.state.older),
                "snapshot": section.state.snapshot,
            }


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_flipped_bit_anywhere_is_found(data: st.DataObject) -> None:
    whole, _ = small_object()
    broken = bytearray(whole)
    broken[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptionError, match=NAME):
        decode_whole(bytes(broken), NAME, WAL, 4)


def test_an_object_cut_or_lengthened_anywhere_is_found() -> None:
    whole, _ = small_object()
    for length in range(len(whole)):
        with pytest.raises(CorruptionError):
            decode_whole(whole[:length], NAME, WAL, 4)
        with pytest.raises(CorruptionError):
            decode_whole(whole[len(whole) - length :], NAME, WAL, 4)
    for wrong in (len(whole) - 1, len(whole) + 1):
        with pytest.raises(CorruptionError, match="before a footer at"):
            decode_footer(whole, wrong, NAME, WAL, 4)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 10_000))
def test_any_bytes_are_refused_and_nothing_else_happens(data: bytes, more: int) -> None:
    with pytest.raises(CorruptionError):
        decode_footer(data, len(data) + more, NAME, WAL, 4)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 400), st.integers(0, 255), st.booleans())
def test_a_footer_with_any_byte_changed_and_its_crc_made_right_is_refused_or_read(
    at: int, value: int, small: bool
) -> None:
    """A hostile footer: the CRC fits. No other error than CorruptionError, and no memory for what it only claims."""
    whole = small_object()[0] if not small else encode_seal(WAL, 4, NONCE, NOW, 9)
    footer_bytes = struct.unpack("<I", whole[-16:-12])[0]
    body = bytearray(whole[-16 - footer_bytes : -16])
    body[at % len(body)] = value
    crc = crc32c(bytes(body) + struct.pack("<I", len(body)))
    changed = whole[: -16 - footer_bytes] + bytes(body) + struct.pack("<II", len(body), crc) + b"FIRNWALT"
    with suppress(CorruptionError):
        decode_whole(changed, NAME, WAL, 4)


def test_a_claim_of_many_sections_is_refused_before_memory_is_taken() -> None:
    whole, _ = small_object()
    footer_bytes = struct.unpack("<I", whole[-16:-12])[0]
    body = bytearray(whole[-16 - footer_bytes : -16])
    body[64:72] = struct.pack("<II", 2**31, 2**32 - 1)
    crc = crc32c(bytes(body) + struct.pack("<I", len(body)))
    changed = whole[: -16 - footer_bytes] + bytes(body) + struct.pack("<II", len(body), crc) + b"FIRNWALT"
    with pytest.raises(CorruptionError, match="it ends within"):
        decode_footer(changed, len(changed), NAME, WAL, 4)


def test_another_object_than_asked_for_is_refused() -> None:
    data, _ = small_object()
    for wal, number in ((WalId(3, 18), 4), (WalId(2, 17), 4), (WAL, 5)):
        with pytest.raises(CorruptionError, match="object 4 of log 3/17"):
            decode_whole(data, NAME, wal, number)


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        ([batch(10), batch(12)], "goes on at 12 after 11"),
        ([batch(10), batch(10)], "goes on at 10 after 11"),
        ([batch(10, epoch=3), batch(11, epoch=4)], "two leader epochs"),
        ([batch(10, epoch=-1)], "leader epoch -1"),
    ],
)
def test_sections_that_are_no_log_are_refused(batches: list[bytes], why: str) -> None:
    data, _ = encode_object(WAL, 4, NONCE, NOW, [draft(P, batches, 4)])
    with pytest.raises(CorruptionError, match=why):
        decode_whole(data, NAME, WAL, 4)


def test_two_sections_of_a_partition_and_a_far_state_are_refused() -> None:
    twice, _ = encode_object(WAL, 4, NONCE, NOW, [draft(P, [batch(0)], 4), draft(P, [batch(1)], 4)])
    with pytest.raises(CorruptionError, match="two sections"):
        decode_whole(twice, NAME, WAL, 4)
    far, _ = encode_object(WAL, 400, NONCE, NOW, [draft(P, [batch(0)], 400, state_number=143)])
    with pytest.raises(CorruptionError, match="state in object 143"):
        decode_whole(far, NAME, WAL, 400)


def test_the_future_and_another_window_are_refused_with_a_sentence() -> None:
    whole = encode_seal(WAL, 4, NONCE, NOW, 9)
    for at, value, why in ((8, 2, "from the future"), (18, 9, "window of 9"), (10, 1, "unknown flags")):
        body = bytearray(whole[:-16])
        body[at : at + 2] = struct.pack("<H", value)
        crc = crc32c(bytes(body) + struct.pack("<I", len(body)))
        with pytest.raises(CorruptionError, match=why):
            decode_whole(bytes(body) + struct.pack("<II", len(body), crc) + b"FIRNWALT", NAME, WAL, 4)


def test_a_section_that_is_not_what_the_footer_names_is_refused() -> None:
    data, footer = small_object()
    section = footer.sections[1]
    own = memoryview(data)[section.position : section.position + section.size_bytes]
    check_section(own, section, NAME)
    other = replace(section, batches=(section.batches[0]._replace(max_timestamp=TimestampMs(7)),))
    with pytest.raises(CorruptionError, match="not the one that the footer names"):
        check_section(own, other, NAME)
