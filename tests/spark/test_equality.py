"""What the Spark reader gives equals what the plain reader gives, record for record, for topics of every kind."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from app.records.builder import build_batch
from app.records.control import ControlType, control_key, control_value
from tests.records.strategies import NOW_MS, new_records
from tests.spark.conftest import ALL_COLUMNS, Topic, read
from tests.spark.reference import projected
from tests.support.buckets import BucketBuilder


class Drawn:
    """A partition made of drawn batches, some of them in transactions."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.offset = 0
        self.epoch = 0
        self.epochs = [(0, 0)]
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int, int]] = []
        self.batches: list[bytes] = []

    def add(self) -> None:
        kind = self.draw(
            st.sampled_from(["plain", "plain", "compacted", "empty", "append time", "data", "marker", "epoch"])
        )
        codec = self.draw(st.integers(0, 4))
        common = {"leader_epoch": LeaderEpoch(self.epoch), "base_offset": Offset(self.offset)}
        if kind == "epoch":
            self.epoch += 1
            self.epochs.append((self.epoch, self.offset))
            return
        if kind == "empty":
            self.batches.append(build_batch([], last_offset_delta=3, **common))
            self.offset += 4
            return
        if kind == "marker" and self.open:
            producer = self.draw(st.sampled_from(sorted(self.open)))
            first = self.open.pop(producer)
            commit = self.draw(st.booleans())
            marker = (NOW_MS, control_key(ControlType.COMMIT if commit else ControlType.ABORT), control_value(0), ())
            made = build_batch(
                [marker],
                producer_id=ProducerId(producer),
                producer_epoch=ProducerEpoch(0),
                transactional=True,
                control=True,
                **common,
            )
            if not commit:
                self.aborted.append((producer, first, self.offset, min(self.open.values(), default=self.offset)))
            self.batches.append(made)
            self.offset += 1
            return
        records = self.draw(new_records)
        count = len(records)
        if kind == "compacted":
            deltas = sorted(self.draw(st.sets(st.integers(0, count * 3), min_size=count, max_size=count)))
            last = self.draw(st.integers(deltas[-1], deltas[-1] + 5))
            made = build_batch(records, codec=codec, offset_deltas=deltas, last_offset_delta=last, **common)
            self.offset += last + 1
        elif kind == "append time":
            made = build_batch(records, codec=codec, log_append_time=TimestampMs(NOW_MS + 5), **common)
            self.offset += count
        elif kind == "data":
            producer = self.draw(st.integers(1, 3))
            self.open.setdefault(producer, self.offset)
            made = build_batch(
                records,
                codec=codec,
                producer_id=ProducerId(producer),
                producer_epoch=ProducerEpoch(0),
                base_sequence=0,
                transactional=True,
                **common,
            )
            self.offset += count
        else:
            made = build_batch(records, codec=codec, **common)
            self.offset += count
        self.batches.append(made)

    def close(self) -> None:
        """Abort what is open: a segment lies below the last stable offset."""
        for producer, first in sorted(self.open.items()):
            marker = (NOW_MS, control_key(ControlType.ABORT), control_value(0), ())
            self.batches.append(
                build_batch(
                    [marker],
                    base_offset=Offset(self.offset),
                    leader_epoch=LeaderEpoch(self.epoch),
                    producer_id=ProducerId(producer),
                    producer_epoch=ProducerEpoch(0),
                    transactional=True,
                    control=True,
                )
            )
            self.aborted.append((producer, first, self.offset, self.offset))
            self.offset += 1
        self.open.clear()


@st.composite
def drawn_partitions(draw: st.DrawFn) -> Drawn:
    drawn = Drawn(draw)
    for _ in range(draw(st.integers(1, 14))):
        drawn.add()
    drawn.close()
    if not drawn.batches:
        drawn.batches.append(build_batch([(NOW_MS, None, b"only", ())], leader_epoch=LeaderEpoch(drawn.epoch)))
        drawn.offset = 1
    return drawn


async def _tier(path: Path, drawn: Drawn, *, chunk_bytes: int, compression: str, segments: int) -> Topic:
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic("drawn")
    size = -(-len(drawn.batches) // segments)
    for start in range(0, len(drawn.batches), size):
        part = drawn.batches[start : start + size]
        base = int.from_bytes(part[0][:8], "big")
        behind = drawn.batches[start + size : start + size + 1]
        end = int.from_bytes(behind[0][:8], "big") if behind else drawn.offset
        await bucket.add_segment(
            topic_id,
            0,
            part,
            end_offset=end,
            chunk_bytes=chunk_bytes,
            compression=compression,
            aborted=[one for one in drawn.aborted if one[1] < end and one[2] >= base],
            epochs=[
                one
                for one in drawn.epochs
                if one[1] < end and not any(later[1] == one[1] and later[0] > one[0] for later in drawn.epochs)
            ],
        )
    return Topic(path, "drawn", topic_id)


@pytest.mark.ci
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    drawn=drawn_partitions(),
    chunk_bytes=st.sampled_from([300, 3000, 1 << 20]),
    compression=st.sampled_from(["none", "zstd"]),
    segments=st.integers(1, 4),
    isolation=st.sampled_from(["read_committed", "read_uncommitted"]),
)
def test_every_kind_of_topic_reads_as_the_plain_reader_reads_it(
    drawn: Drawn, chunk_bytes: int, compression: str, segments: int, isolation: str
) -> None:
    with tempfile.TemporaryDirectory() as path:
        topic = asyncio.run(
            _tier(Path(path), drawn, chunk_bytes=chunk_bytes, compression=compression, segments=segments)
        )
        committed = isolation == "read_committed"
        expected = topic.reference(read_committed=committed)
        assert read(topic, isolation=isolation, splitBytes="1m") == expected
        if expected:
            start = expected[len(expected) // 3]["offset"]
            end = expected[-1]["offset"]
            found = read(
                topic,
                isolation=isolation,
                startingOffsets=f'{{"drawn": {{"0": {start}}}}}',
                endingOffsets=f'{{"drawn": {{"0": {end}}}}}',
            )
            assert found == topic.reference(read_committed=committed, start=start, end=end)


@pytest.mark.parametrize(
    "columns", [("value",), ("offset", "key"), ("headers",), ("timestamp", "topic"), ALL_COLUMNS[::-1]]
)
def test_columns_that_were_not_asked_for_are_left_out(tmp_path: Path, columns: tuple[str, ...]) -> None:
    records = [(NOW_MS + n, b"k%d" % n, None if n % 5 == 0 else b"v" * n, (("h", b"x"),) * (n % 3)) for n in range(50)]

    async def tier() -> Topic:
        bucket = await BucketBuilder.open(tmp_path)
        topic_id = await bucket.create_topic("t")
        await bucket.add_segment(topic_id, 0, [build_batch(records, codec=4)])
        return Topic(tmp_path, "t", topic_id)

    topic = asyncio.run(tier())
    assert read(topic, columns=columns) == projected(topic.reference(), columns)


def test_splits_divide_a_segment_and_join_small_ones(tmp_path: Path) -> None:
    rng = random.Random(3)

    async def tier() -> Topic:
        bucket = await BucketBuilder.open(tmp_path)
        topic_id = await bucket.create_topic("t")
        offset = 0
        for batches in (60, 1, 1, 1, 2):
            made = []
            for _ in range(batches):
                records = [(NOW_MS, None, rng.randbytes(1000), ()) for _ in range(100)]
                made.append(build_batch(records, base_offset=Offset(offset)))
                offset += 100
            await bucket.add_segment(topic_id, 0, made, chunk_bytes=200_000)
        return Topic(tmp_path, "t", topic_id)

    topic = asyncio.run(tier())
    from pyspark_firn.batch import plan
    from pyspark_firn.options import parse_read_options

    options = parse_read_options({"store": topic.store, "subscribe": "t", "splitBytes": "1m"}, streaming=False)
    splits = plan(options)
    assert len(splits) == 7
    assert len(splits[-1].pieces) == 5  # type: ignore[union-attr]
    assert read(topic, splitBytes="1m") == topic.reference()
