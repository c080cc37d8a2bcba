"""A led partition of an internal topic: what is appended is what is read back, and what a crash may take away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.configs import TopicConfig
from app.coordinator.partition import CoordinatedLog, ProducerIdAndEpoch, RawRecord, ReplayedBatch, decode_batches
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TimestampMs
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.records.builder import build_batch
from app.records.compression import Codec
from app.records.control import ControlType
from app.records.record import Headers
from app.replication.partition import Partition
from tests.hot.helpers import NOW, TOPIC_ID, manager_over, sim
from tests.support.simfs import SimFileSystem

TOPIC = "__consumer_offsets"
COMPACTED = TopicConfig(cleanup_policy=frozenset({"compact"}))


@asynccontextmanager
async def opened(fs: SimFileSystem) -> AsyncIterator[LogManager]:
    manager = manager_over(fs)
    await manager.load_all(lambda _: COMPACTED)
    try:
        yield manager
    finally:
        await manager.close()


async def read_all(log: PartitionLog) -> list[ReplayedBatch]:
    return [batch async for batches in CoordinatedLog(Partition(log)).replay() for batch in batches]


def rows(batches: list[ReplayedBatch]) -> list[RawRecord]:
    return [record for batch in batches for record in batch.records]


async def test_what_is_appended_is_read_back_in_order_with_tombstones_and_long_fields() -> None:
    written: list[RawRecord] = [
        (b"k1", b"v1"),
        (b"k2", None),
        (b"k" * 300, b"v" * 70_000),
        (b"", b""),
        *((b"key %d" % number, b"x" * number) for number in range(300)),
    ]
    async with opened(sim()) as manager:
        log = manager.create(TOPIC, TOPIC_ID, PartitionIndex(0), COMPACTED)
        coordinated = CoordinatedLog(Partition(log))
        for start in range(0, len(written), 7):
            end = coordinated.append(written[start : start + 7], now_ms=NOW)
            assert end == coordinated.end_offset == min(start + 7, len(written))
            assert coordinated.stored(end) is None
        assert rows(await read_all(log)) == written


fields = st.one_of(st.sampled_from([b"", b"a", b"\0", b"\0\0\0"]), st.binary(max_size=70))
of_one_length = st.builds(
    lambda length, filler, more: (bytes([filler]) * length, bytes([filler]) * (6 - length - 3 * more), more),
    st.integers(0, 3),
    st.sampled_from([0, 2, 4, 6, 8, 10, 12]),
    st.booleans(),
)
"""Filled with bytes that could be lengths; a header takes three bytes."""
any_record = st.tuples(fields, st.none() | fields, st.booleans())


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.lists(of_one_length, min_size=1, max_size=1) | st.lists(any_record, min_size=1, max_size=3),
            st.sampled_from([{}, {}, {}, {"transactional": True, "producer_id": 5, "producer_epoch": 1}]),
            st.integers(0, 2),
        ),
        max_size=16,
    )
)
def test_batches_that_follow_one_another_are_what_each_is_by_itself(
    written: list[tuple[list[tuple[bytes, bytes | None, bool]], dict[str, Any], int]],
) -> None:
    """Batches of one record are compared with earlier ones of their length instead of decoded.

    ``gap``: how many offsets compaction emptied after a batch's last record.
    """
    batches: list[bytes] = []
    offset = 0
    for records, producer, gap in written:
        headers: dict[bool, Headers] = {False: (), True: (("h", b""),)}
        raw = bytearray(build_batch([(NOW, key, value, headers[more]) for key, value, more in records], **producer))
        raw[:8] = offset.to_bytes(8, "big")
        raw[23:27] = (len(records) - 1 + gap).to_bytes(4, "big")
        batches.append(bytes(raw))
        offset += len(records) + gap
    together = decode_batches(b"".join(batches))
    assert rows(together) == [row for batch in batches for row in rows(decode_batches(batch))]
    assert rows(together) == [(key, value) for records, _, _ in written for key, value, _ in records]
    assert [batch.end_offset for batch in together[-1:]] == [offset] * bool(batches)


async def test_compressed_batches_are_read_too() -> None:
    async with opened(sim()) as manager:
        log = manager.create(TOPIC, TOPIC_ID, PartitionIndex(0), COMPACTED)
        records = [(TimestampMs(NOW), b"k%d" % number, b"v" * 50, ()) for number in range(20)]
        log.append_as_leader(memoryview(bytearray(build_batch(records, codec=Codec.LZ4))), now_ms=NOW, prepared=True)
        assert rows(await read_all(log)) == [(key, value) for _, key, value, _ in records]


async def test_a_transactional_batch_is_open_until_its_marker_also_when_read_again() -> None:
    fs = sim()
    producer = ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(3))
    async with opened(fs) as manager:
        log = manager.create(TOPIC, TOPIC_ID, PartitionIndex(0), COMPACTED)
        coordinated = CoordinatedLog(Partition(log))
        coordinated.append([(b"plain", b"1")], now_ms=NOW)
        coordinated.append([(b"pending", b"2")], now_ms=NOW, producer=producer)
        coordinated.append([(b"pending", b"3")], now_ms=NOW, producer=producer)
        assert (log.last_stable_offset, log.high_watermark) == (1, 3)
        await log.flush()
        for name in [name for name in fs.list_dir(log.path) if name.endswith(".snapshot")]:
            fs.unlink(f"{log.path}/{name}")  # so that the producer is known from the batches alone
    async with opened(fs) as manager:
        found = manager.get(TOPIC, 0)
        assert found is not None
        assert (found.last_stable_offset, found.high_watermark) == (1, 3)
        found.append_control(
            ControlType.COMMIT,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=1,
            now_ms=NOW,
        )
        assert found.last_stable_offset == 4
        plain, first, second, marker = await read_all(found)
        assert plain.producer_id == -1
        assert (first.producer_id, first.producer_epoch, first.records) == (9, 3, [(b"pending", b"2")])
        assert second.records == [(b"pending", b"3")]
        assert marker.marker is not None
        assert (marker.marker.control_type, marker.marker.producer_id) == (ControlType.COMMIT, 9)


async def test_a_batch_of_a_fenced_producer_and_one_that_is_too_large_write_nothing() -> None:
    async with opened(sim()) as manager:
        log = manager.create(TOPIC, TOPIC_ID, PartitionIndex(0), COMPACTED)
        coordinated = CoordinatedLog(Partition(log))
        coordinated.append([(b"k", b"v")], now_ms=NOW, producer=ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(3)))
        with pytest.raises(RequestRejected) as fenced:
            coordinated.append([(b"k", b"v")], now_ms=NOW, producer=ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(2)))
        assert fenced.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        with pytest.raises(RequestRejected) as large:
            coordinated.append([(b"k", bytes(2 << 20))], now_ms=NOW)
        assert large.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert coordinated.end_offset == 1
