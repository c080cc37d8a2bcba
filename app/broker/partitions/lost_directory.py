"""Log lines of a broker that starts on a new data directory although the cluster has topics: names and counts of the losses.

The bucket has the tiered records, and all records of topics with ``firn.durability=object``. Other internal topics are not tiered.
Then committed offsets, transactional ids, the state of share groups and the results of keyed requests were only on the former disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from app.configs import Durability, TopicConfig
from app.coordinator.topics import CONSUMER_OFFSETS, HTTP_REQUESTS, SHARE_GROUP_STATE, TRANSACTION_STATE

NAMED_MAX: Final = 10
"""Topics or partitions in one line of the log."""

LOST_WITH: Final = "lost with the former data directory:"

COORDINATED: Final = {
    CONSUMER_OFFSETS.name: "the committed offsets of every consumer group, so groups begin where auto.offset.reset says",
    TRANSACTION_STATE.name: "every transactional id, so its next producer gets a new producer id",
    SHARE_GROUP_STATE.name: "the progress of every share group, so share groups begin where share.auto.offset.reset says",
    HTTP_REQUESTS.name: "the results of all keyed requests, so retries of them may be written again",
}
"""The content of each internal topic."""


class BegunAnew(NamedTuple):
    """A topic of which this broker leads partitions. It created their logs at this start."""

    name: str
    config: TopicConfig
    partitions: Sequence[int]
    untiered: Sequence[int]
    """The partitions that have no record in the store."""


class Back(NamedTuple):
    """A tiered topic of which this broker leads partitions, after it replaced another data directory."""

    name: str
    ends: Sequence[tuple[int, int]]
    """Each partition, and the offset at which its log continues. All earlier records are in the store, or deleted."""

    @property
    def offsets(self) -> int:
        """The sum of these offsets."""
        return sum(end for _, end in self.ends)


def back_from_the_store(topics: Sequence[Back]) -> list[str]:
    """Lines that say up to which offset each tiered topic was recovered; none if there is no tiered topic."""
    if not topics:
        return []
    partitions = sum(len(topic.ends) for topic in topics)
    lines = [
        f"recovered from the store: {_count(len(topics), 'tiered topic')} with {_count(partitions, 'partition')}; the end"
        f" offsets add up to {sum(topic.offsets for topic in topics)}"
    ]
    for topic in topics[:NAMED_MAX]:
        ends = [f"{index} up to {end}" for index, end in topic.ends]
        lines.append(
            f"recovered from the store: {topic.name}, {_count(len(topic.ends), 'partition')}; the end offsets add up to"
            f" {topic.offsets} (partition {_some(ends)})"
        )
    if len(topics) > NAMED_MAX:
        lines.append(f"recovered from the store: {len(topics) - NAMED_MAX} more topics; `firn tier status` lists them")
    return lines


def lost_with_the_directory(data_dir: str, topics: Sequence[BegunAnew]) -> list[str]:
    """Lines for the operator; none if there was nothing to lose."""
    topics = [topic for topic in topics if topic.config.firn_durability is not Durability.OBJECT]
    if not topics:
        return []
    partitions = sum(len(topic.partitions) for topic in topics)
    lines = [
        f"the data directory {data_dir} is new, but this broker leads {_count(len(topics), 'topic')} with "
        f"{_count(partitions, 'partition')}: data that only the former data directory had is lost"
    ]
    lines += [
        f"{LOST_WITH} {COORDINATED[topic.name]} ({topic.name}, {_count(len(topic.partitions), 'partition')})"
        for topic in topics
        if topic.name in COORDINATED
    ]
    local = [topic for topic in topics if not topic.config.tiered and topic.name not in COORDINATED]
    if local:
        named = [f"{topic.name} ({_count(len(topic.partitions), 'partition')}, {_why_local(topic)})" for topic in local]
        lines.append(f"{LOST_WITH} the records of {_count(len(local), 'untiered topic')}: {_some(named)}")
    tiered = [topic for topic in topics if topic.config.tiered]
    if tiered:
        begin = [f"{topic.name}-{index}" for topic in tiered for index in topic.untiered]
        lines.append(
            f"{LOST_WITH} the records of {_count(len(tiered), 'tiered topic')} that were not in the store yet"
            + (f"; the store has no record of {_count(len(begin), 'partition')}: {_some(begin)}" if begin else "")
        )
    return lines


def _why_local(topic: BegunAnew) -> str:
    return "compacted" if topic.config.compacted else "remote.storage.enable=false"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
