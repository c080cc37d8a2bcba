"""The lines by which a broker on a new data directory tells what is lost, and what came back from the store."""

from __future__ import annotations

import re

import pytest

from app.broker.partitions.lost_directory import (
    COORDINATED,
    NAMED_MAX,
    Back,
    BegunAnew,
    back_from_the_store,
    lost_with_the_directory,
)
from app.configs import Durability, TopicConfig
from app.coordinator.topics import CONSUMER_OFFSETS
from app.metadata.image.image import INTERNAL_TOPICS

TIERED = TopicConfig(remote_storage_enable=True)
LOCAL = TopicConfig(remote_storage_enable=False)
COMPACTED = TopicConfig(remote_storage_enable=False, cleanup_policy=frozenset({"compact"}))


def test_nothing_is_told_if_nothing_was_to_lose() -> None:
    assert lost_with_the_directory("/data", []) == []
    stored = TopicConfig(remote_storage_enable=True, firn_durability=Durability.OBJECT)
    assert lost_with_the_directory("/data", [BegunAnew("o", stored, [0], [0])]) == []
    assert back_from_the_store([]) == []


def test_one_line_each_for_coordinators_for_topics_without_a_tier_and_for_tiered_ones() -> None:
    lines = lost_with_the_directory(
        "/data",
        [
            BegunAnew(CONSUMER_OFFSETS.name, COMPACTED, [0, 1], [0, 1]),
            BegunAnew("keys", COMPACTED, [0], [0]),
            BegunAnew("here", LOCAL, [0, 1], [0, 1]),
            BegunAnew("tiered", TIERED, [0, 1, 2], [2]),
        ],
    )
    assert lines == [
        "the data directory /data is new, but this broker leads 4 topics with 8 partitions: data that only the former data "
        "directory had is lost",
        "lost with the former data directory: the committed offsets of every consumer group, so groups begin where "
        "auto.offset.reset says (__consumer_offsets, 2 partitions)",
        "lost with the former data directory: the records of 2 untiered topics: keys (1 partition, compacted), "
        "here (2 partitions, remote.storage.enable=false)",
        "lost with the former data directory: the records of 1 tiered topic that were not in the store yet; the store has "
        "no record of 1 partition: tiered-2",
    ]


def test_the_loss_of_every_internal_topic_has_a_consequence() -> None:
    assert set(COORDINATED) == INTERNAL_TOPICS
    untiered = TopicConfig(remote_storage_enable=False)
    for name, consequence in COORDINATED.items():
        assert lost_with_the_directory("/data", [BegunAnew(name, untiered, [0], [0])])[1:] == [
            f"lost with the former data directory: {consequence} ({name}, 1 partition)"
        ]


def test_a_tiered_topic_with_records_in_the_store_names_no_partition() -> None:
    lines = lost_with_the_directory("/data", [BegunAnew("t", TIERED, [0], [])])
    assert lines[1:] == [
        "lost with the former data directory: the records of 1 tiered topic that were not in the store yet"
    ]


def test_recovered_ends_are_told_by_topic_with_their_sum() -> None:
    assert back_from_the_store([Back("a", [(0, 5), (3, 7)]), Back("b", [(0, 1)])]) == [
        "recovered from the store: 2 tiered topics with 3 partitions; the end offsets add up to 13",
        "recovered from the store: a, 2 partitions; the end offsets add up to 12 (partition 0 up to 5, 3 up to 7)",
        "recovered from the store: b, 1 partition; the end offsets add up to 1 (partition 0 up to 1)",
    ]


@pytest.mark.parametrize("more", [0, 1, 3])
def test_few_topics_and_partitions_are_named_and_the_others_counted(more: int) -> None:
    count = NAMED_MAX + more
    lines = back_from_the_store([Back(f"t{number}", [(index, 1) for index in range(count)]) for number in range(count)])
    named = lines[1]
    assert len(re.findall(r"\d up to 1", named)) == NAMED_MAX
    assert named.endswith(f" and {more} more)" if more else "9 up to 1)")
    assert len(lines) == 1 + NAMED_MAX + bool(more)
    assert not more or lines[-1].startswith(f"recovered from the store: {more} more topics")
