"""Types that carry units cost nothing, and partitions are told as Kafka and as object keys tell them."""

from __future__ import annotations

from uuid import UUID

from app.core.units import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    NO_TOPIC_ID,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)


def test_an_offset_is_an_int_at_run_time() -> None:
    assert type(Offset(3)) is int


def test_what_is_not_known_has_the_value_of_the_protocol() -> None:
    assert NO_OFFSET == NO_LEADER_EPOCH == NO_PRODUCER_ID == NO_TIMESTAMP == -1
    assert UUID("00000000-0000-0000-0000-000000000000") == NO_TOPIC_ID


def test_partitions_are_told_by_the_name_and_by_the_id_of_their_topic() -> None:
    topic_id = TopicId(UUID(int=7))
    assert str(TopicPartition("a-b", PartitionIndex(3))) == "a-b-3"
    assert str(TopicIdPartition(topic_id, PartitionIndex(3))) == "00000000-0000-0000-0000-000000000007/3"
