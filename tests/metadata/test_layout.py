"""Keys are what docs/formats.md says, and every parser undoes its builder and nothing else."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.units import LogSequence, SegmentId, TopicId, TopicIdPartition
from app.metadata.log import layout

TOPIC = TopicId(uuid.UUID("0198c0de-0000-7000-8000-00000000000a"))
SEGMENT = SegmentId(uuid.UUID("0198c0de-0000-7000-8000-00000000000b"))

partitions = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
sequences = st.integers(0, 10**20 - 1)


def test_keys_are_literally_these() -> None:
    assert layout.entry_key("cluster", 7) == "cluster/log/00000000000000000007"
    assert layout.snapshot_key("cluster", 7) == "cluster/snapshot/00000000000000000007"
    assert layout.manifest_prefix(TOPIC, 3) == "topics/0198c0de-0000-7000-8000-00000000000a/3"
    assert layout.heartbeat_key(1, SEGMENT) == "cluster/heartbeat/1/0198c0de-0000-7000-8000-00000000000b"
    assert layout.wal_key(1, 17, 2) == "wal/1/00000000000000000017/00000000000000000002"
    assert layout.segment_key(TOPIC, 3, 42, SEGMENT) == (
        "data/67/0198c0de-0000-7000-8000-00000000000a/3/00000000000000000042-0198c0de-0000-7000-8000-00000000000b.seg"
    )


@given(st.uuids(), partitions, offsets, st.uuids())
def test_segment_key_round_trips(topic: uuid.UUID, partition: int, base: int, segment: uuid.UUID) -> None:
    key = layout.segment_key(TopicId(topic), partition, base, SegmentId(segment))
    assert layout.parse_segment_key(key) == (topic, partition, base, segment)
    assert key.startswith(layout.data_prefix(TopicId(topic), partition))


@given(sequences, st.sampled_from(["cluster", "topics/x/0", "a/log/b"]))
def test_numbered_keys_round_trip(sequence: int, prefix: str) -> None:
    assert layout.parse_numbered_key(layout.entry_key(prefix, sequence)) == (prefix, False, LogSequence(sequence))
    assert layout.parse_numbered_key(layout.snapshot_key(prefix, sequence)) == (prefix, True, LogSequence(sequence))


@given(sequences, sequences)
def test_byte_order_of_entry_keys_is_number_order(one: int, other: int) -> None:
    assert (layout.entry_key("p", one) < layout.entry_key("p", other)) == (one < other)


@given(st.uuids(), partitions)
def test_manifest_prefix_round_trips(topic: uuid.UUID, partition: int) -> None:
    prefix = layout.manifest_prefix(TopicId(topic), partition)
    assert layout.parse_manifest_prefix(prefix) == TopicIdPartition(TopicId(topic), partition)  # type: ignore[arg-type]
    assert layout.parse_manifest_prefix(layout.entry_key(prefix, 1)) == (topic, partition)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "data/67/x",
        "data/00/0198c0de-0000-7000-8000-00000000000a/3/00000000000000000042-0198c0de-0000-7000-8000-00000000000b.seg",
        "data/67/0198c0de-0000-7000-8000-00000000000a/03/00000000000000000042-0198c0de-0000-7000-8000-00000000000b.seg",
        "data/67/0198C0DE-0000-7000-8000-00000000000a/3/00000000000000000042-0198c0de-0000-7000-8000-00000000000b.seg",
        "data/67/0198c0de-0000-7000-8000-00000000000a/3/42-0198c0de-0000-7000-8000-00000000000b.seg",
        "data/67/0198c0de-0000-7000-8000-00000000000a/3/00000000000000000042-0198c0de-0000-7000-8000-00000000000b.seg\n",
        "cluster/log/7",
        "cluster/log/0000000000000000000７",
        "wal/1/0/00000000000000000002",
        "wal/01/00000000000000000017/00000000000000000002",
        "topics/abc/1",
    ],
)
def test_parsers_refuse_what_no_builder_makes(key: str) -> None:
    assert layout.parse_segment_key(key) is None
    assert layout.parse_numbered_key(key) is None
    assert layout.parse_manifest_prefix(key) is None
    assert layout.parse_wal_key(key) is None


@given(st.integers(0, 2**31 - 1), sequences, sequences)
def test_wal_key_round_trips(broker: int, epoch: int, number: int) -> None:
    assert layout.parse_wal_key(layout.wal_key(broker, epoch, number)) == (broker, epoch, number)


def test_partitions_spread_over_many_prefixes() -> None:
    assert len({layout.spread(TOPIC, partition) for partition in range(1000)}) > 200


def test_only_segments_and_entries_of_a_manifest_are_of_a_topic() -> None:
    topic = TopicId(uuid.UUID(int=7))
    manifest = layout.manifest_prefix(topic, 3)
    segment = layout.segment_key(topic, 3, 5, SegmentId(uuid.UUID(int=1)))
    for key in (segment, layout.entry_key(manifest, 4), layout.snapshot_key(manifest, 4)):
        assert layout.topic_of(key) == topic
    for key in (
        "cluster/log/00000000000000000001",
        f"{manifest}/notes.txt",
        f"{manifest}/deeper/log/00000000000000000001",
        layout.data_prefix(topic, 3),
        f"{segment}.bak",
    ):
        assert layout.topic_of(key) is None
