"""Kafka's files, byte for byte."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import CorruptionError
from app.core.units import (
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)
from app.hot.checkpoints import (
    EpochStart,
    MetaProperties,
    encode_leader_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
    parse_leader_epochs,
    parse_meta_properties,
    parse_offsets,
    parse_partition_metadata,
)
from app.hot.epochs import LeaderEpochs
from app.hot.indexes import AbortedTransaction, SegmentIndex, encode_aborted, parse_aborted
from app.hot.producers import ProducerStates, encode_snapshot, parse_snapshot
from app.hot.state_file import LogState, PartitionState, encode_states, parse_states
from app.records.control import ControlType
from tests.hot.helpers import DATA, NOW, batch, idempotent, manager_over, new_log, sim

HEX_ID = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
TEXT_ID = "AAECAwQFBgcICQoLDA0ODw"


def epochs(*entries: tuple[int, int]) -> list[EpochStart]:
    return [EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries]


def test_leader_epoch_checkpoint() -> None:
    data = b"0\n2\n0 0\n5 12\n"
    assert encode_leader_epochs(epochs((0, 0), (5, 12))) == data
    assert parse_leader_epochs(data) == epochs((0, 0), (5, 12))
    for bad in (
        b"",
        b"1\n0\n",
        b"0\n2\n0 0\n",
        b"0\nx\n",
        b"0\n1\n0 x\n",
        b"0\n2\n1 0\n1 5\n",
        b"0\n2\n1 5\n2 3\n",
        b"\xff",
    ):
        with pytest.raises(CorruptionError):
            parse_leader_epochs(bad)


def test_offset_checkpoints() -> None:
    offsets = {TopicPartition("a.b-c", PartitionIndex(3)): Offset(17)}
    assert encode_offsets(offsets) == b"0\n1\na.b-c 3 17\n"
    assert parse_offsets(b"0\n1\na.b-c 3 17\n", "it") == offsets
    with pytest.raises(CorruptionError):
        parse_offsets(b"0\n2\na.b-c 3 17\n", "it")


def test_partition_metadata() -> None:
    data = f"version: 0\ntopic_id: {TEXT_ID}\n".encode()
    assert encode_partition_metadata(TopicId(HEX_ID)) == data
    assert parse_partition_metadata(data) == HEX_ID
    for bad in (b"", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", b"version: 0\ntopic_id: short"):
        with pytest.raises(CorruptionError):
            parse_partition_metadata(bad)


def test_meta_properties_of_ours_and_of_kafkas() -> None:
    meta = MetaProperties("cluster", BrokerId(4), HEX_ID)
    assert parse_meta_properties(encode_meta_properties(meta)) == meta
    kafkas = (
        f"#\n#Sat Nov 21 08:00:00 UTC 2026\nnode.id=4\ndirectory.id={TEXT_ID}\nversion=1\ncluster.id=cluster\n".encode()
    )
    assert parse_meta_properties(kafkas) == meta
    with pytest.raises(CorruptionError):
        parse_meta_properties(b"version=1\n")


def test_sparse_indexes() -> None:
    index = SegmentIndex()
    index.offsets.extend([7, 9])
    index.positions.extend([4200, 9000])
    index.add_time(NOW, 7)
    index.add_time(NOW, 9)  # no greater: not noted
    assert index.encode_offsets().hex() == "00000007" + "00001068" + "00000009" + "00002328"
    assert index.encode_times().hex() == f"{NOW:016x}" + "00000007"
    assert index.encode_offsets(1).hex() == "00000009" + "00002328"
    preallocated = SegmentIndex.parse(
        index.encode_offsets() + bytes(80), index.encode_times() + bytes(12), log_bytes=9001
    )
    assert (preallocated.offsets, preallocated.positions) == (index.offsets, index.positions)
    for offsets, log_bytes in (
        (index.encode_offsets(), 9000),
        (index.encode_offsets()[8:] + index.encode_offsets(), 10**6),
    ):
        with pytest.raises(CorruptionError):
            SegmentIndex.parse(offsets, b"", log_bytes=log_bytes)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 5000), st.integers(0, 1000)), max_size=1500))
def test_sparse_indexes_come_back_from_their_files(steps: list[tuple[int, int, int]]) -> None:
    index = SegmentIndex()
    offset = position = timestamp = 0
    for offset_step, position_step, time_step in steps:
        offset, position, timestamp = (offset + offset_step) % 2**31, position + position_step, timestamp + time_step
        index.offsets.append(offset)
        index.positions.append(position)
        index.add_time(timestamp, offset)
    found = SegmentIndex.parse(index.encode_offsets(), index.encode_times(), log_bytes=position + 1)
    assert (found.offsets, found.positions, found.times, found.time_offsets) == (
        index.offsets,
        index.positions,
        index.times,
        index.time_offsets,
    )


def test_transaction_index() -> None:
    entry = AbortedTransaction(ProducerId(1), Offset(2), Offset(3), Offset(4))
    data = encode_aborted(entry)
    assert data.hex() == "0000" + "".join(f"{number:016x}" for number in (1, 2, 3, 4))
    assert parse_aborted(data) == [entry]
    for bad in (data[:-1], b"\x00\x01" + data[2:], data + data):
        with pytest.raises(CorruptionError):
            parse_aborted(bad)


def test_producer_snapshot() -> None:
    rows = [(1, 2, 3, 4, 5, 6, 7, -1)]
    data = encode_snapshot(rows)
    body = "00000001" + "0000000000000001" + "0002" + "00000003" + "0000000000000004" + "00000005" + "0000000000000006"
    body += "00000007" + "ffffffffffffffff"
    assert data.hex() == "0001" + "c5f361a0" + body
    assert parse_snapshot(data) == rows
    flipped = bytearray(data)
    flipped[20] ^= 1
    for bad in (b"", data[:-1], bytes(flipped), b"\x00\x02" + data[2:]):
        with pytest.raises(CorruptionError):
            parse_snapshot(bad)


def test_producer_state_survives_its_snapshot() -> None:
    states = ProducerStates()
    states.apply(1, 0, 5, 100, 104, NOW, 0)
    states.apply(2, 3, 0, 105, 105, NOW, 1)
    again = ProducerStates()
    again.load_rows(parse_snapshot(encode_snapshot(states.rows())))
    assert again.rows() == states.rows()
    assert again.open_transactions == {2: 105}
    assert again.entries[1].batches == [(5, 9, 100, 104, NOW)]


def test_state_file_is_checked() -> None:
    states = [PartitionState("t", 0, bytes(16), LogState(0, [(0, 0)], [], []))]
    data = encode_states(states)
    assert parse_states(data) == states
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptionError):
            parse_states(bytes(damaged))


async def test_the_files_of_a_partition() -> None:
    fs = sim()
    log = new_log(manager_over(fs), index_interval_bytes=0, segment_bytes=4 * len(idempotent(0)))
    for sequence in range(4):
        log.append_as_leader(idempotent(sequence, timestamp=NOW + sequence), now_ms=NOW)
    log.append_as_leader(idempotent(4, timestamp=NOW + 1), now_ms=NOW)
    log.append_as_leader(idempotent(0, producer_id=9, transactional=True), now_ms=NOW)
    log.append_control(
        ControlType.ABORT, producer_id=ProducerId(9), producer_epoch=ProducerEpoch(0), coordinator_epoch=0, now_ms=NOW
    )
    await log.flush()
    size = len(batch())

    def content(name: str) -> bytes:
        path = f"{DATA}/t-0/{name}"
        return fs.open(path).pread(fs.file_size(path), 0)

    def numbers(*values: tuple[int, int], width: int) -> str:
        return "".join(f"{first:0{width}x}{second:08x}" for first, second in values)

    first, second = "00000000000000000000", "00000000000000000004"
    assert sorted(fs.list_dir(f"{DATA}/t-0")) == [
        f"{first}.index",
        f"{first}.log",
        f"{first}.timeindex",
        f"{second}.index",
        f"{second}.log",
        f"{second}.snapshot",
        f"{second}.timeindex",
        f"{second}.txnindex",
        "00000000000000000007.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    # An entry says: this batch's last offset, and where it begins; the first batch never has one.
    assert content(f"{first}.index").hex() == numbers((1, size), (2, 2 * size), (3, 3 * size), width=8)
    assert content(f"{first}.timeindex").hex() == numbers((NOW + 1, 1), (NOW + 2, 2), (NOW + 3, 3), width=16)
    assert content(f"{second}.index").hex() == numbers((1, size), (2, 2 * size), width=8)
    assert content(f"{second}.txnindex") == encode_aborted(
        AbortedTransaction(ProducerId(9), Offset(5), Offset(6), Offset(7))
    )
    assert parse_snapshot(content(f"{second}.snapshot")) == [(1, 0, 3, 3, 0, NOW + 3, -1, -1)]
    assert content("leader-epoch-checkpoint") == b"0\n1\n0 0\n"


# --- leader epochs --------------------------------------------------------------------------------------------------


def test_end_offset_of_an_epoch() -> None:
    lineage = LeaderEpochs(epochs((2, 0), (4, 10), (7, 20)))
    assert lineage.end_offset_of(LeaderEpoch(7), Offset(33)) == (7, 33)
    assert lineage.end_offset_of(LeaderEpoch(4), Offset(33)) == (4, 20)
    assert lineage.end_offset_of(LeaderEpoch(5), Offset(33)) == (4, 20)
    assert lineage.end_offset_of(LeaderEpoch(1), Offset(33)) == (1, 0)
    assert lineage.end_offset_of(LeaderEpoch(8), Offset(33)) == (-1, -1)
    assert lineage.end_offset_of(LeaderEpoch(-1), Offset(33)) == (-1, -1)
    assert [lineage.epoch_of(Offset(offset)) for offset in (0, 9, 10, 25)] == [2, 2, 4, 7]


def test_epochs_are_truncated_at_both_ends() -> None:
    lineage = LeaderEpochs(epochs((2, 0), (4, 10), (7, 20)))
    lineage.truncate_from_end(Offset(20))
    assert lineage.entries() == tuple(epochs((2, 0), (4, 10)))
    lineage.truncate_from_start(Offset(5))
    assert lineage.entries() == tuple(epochs((2, 5), (4, 10)))
    lineage.truncate_from_start(Offset(10))
    assert lineage.entries() == tuple(epochs((4, 10)))
    lineage.assign(LeaderEpoch(5), Offset(8))
    assert lineage.entries() == tuple(epochs((5, 8)))
