"""Elections of leaders on request (KIP-183, KIP-460), and the return of preferred leaders (E5). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from app.core.errors import ErrorCode
from app.core.turns import STRIDE, Steps, Stepwise
from app.core.units import BrokerId, PartitionIndex, TopicId, TopicIdPartition
from app.metadata.changes.topic_changes import PlanInputs, Planned, changes_of
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import PartitionImage
from app.metadata.replicas.elections import NOBODY, elect, preferred
from app.metadata.replicas.log_leaders import LogLeaders, orphaned

ELECTIONS_PER_CHANGE_MAX: Final = 10_000
"""Maximum leaders that one change elects: about 0.7 MB of records."""

PUT_OFF_MAX: Final = 10
"""Intervals for which preferred leaders wait for brokers that have just come: 300 s by default, as long as a check of Kafka."""


class Election(NamedTuple):
    """The result of the election of one partition's leader."""

    topic: str
    partition: int
    error: ErrorCode
    why: str
    """One sentence; empty if there is no error."""


class LeadersElected(NamedTuple):
    """The results of elections."""

    elections: list[Election]
    """One for each partition that was named. If all were asked for, those that need no election are left out, as in Kafka."""
    unclean: tuple[TopicIdPartition, ...]
    """Partitions that got a leader which may lack committed records: to be counted and logged (E3)."""


@Stepwise
def elect_leaders(
    draft: ImageDraft,
    around: PlanInputs,
    asked: Iterable[tuple[str, int]] | None,
    *,
    unclean: bool,
    at_most: int = ELECTIONS_PER_CHANGE_MAX,
) -> Steps[Planned[LeadersElected]]:
    """Have preferred leaders lead (E5). With ``unclean``, let any living replica lead a partition without a leader (E3).

    The leader of a partition in write-ahead logs is any broker: none is elected while one leads, nor before the log of the last
    leader has ended (ADR 0037, J16).

    ``asked``: partitions by topic and index; None for all. The refusals are in the answer. An election that is not possible now is
    not waited for.
    """
    active = _active(draft)
    of_logs = LogLeaders(draft.topics, draft.brokers, around.wal_next)
    yield from of_logs.counting()
    everything = asked is None
    changed: dict[tuple[UUID, int], PartitionImage] = {}
    elections: list[Election] = []
    uncleanly: list[TopicIdPartition] = []
    for seen, (name, index) in enumerate(_all(draft) if asked is None else asked):
        if not seen % STRIDE:
            yield
        topic = draft.topic(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            why = f"There is no partition {index} of topic '{name}'."
            elections.append(Election(name, index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why))
            continue
        key = (topic.topic_id, index)
        before = changed.get(key, topic.partitions[index])
        in_log = before.durability.by_log
        if before.leader != NOBODY if unclean or in_log else before.leader == before.replicas[0]:
            if not everything:
                why = f"Broker {before.leader} leads the partition: no election is needed."
                elections.append(Election(name, index, ErrorCode.ELECTION_NOT_NEEDED, why))
            continue
        if len(changed) >= at_most:
            why = f"At most {at_most} leaders are elected at once: ask again for this one."
            elections.append(Election(name, index, ErrorCode.OPERATION_NOT_ATTEMPTED, why))
            continue
        if in_log:
            after, lossy = of_logs.elect(before), False
        elif unclean:
            after, lossy = elect(before, active.__contains__, unclean=True)
        else:
            after, lossy = preferred(before, active.__contains__), False
        if after is before:
            elections.append(Election(name, index, *_refusal(before, unclean=unclean or in_log)))
            continue
        changed[key] = after
        if lossy:
            uncleanly.append(TopicIdPartition(TopicId(topic.topic_id), PartitionIndex(index)))
        elections.append(Election(name, index, ErrorCode.NONE, ""))
    return Planned((yield from changes_of(changed)), LeadersElected(elections, tuple(uncleanly)))


class Comebacks:
    """When preferred leaders lead again, and on which brokers (E5). Pure.

    A broker that has just started may go away again, and each move of a leadership costs clients a refusal. So a broker gets its
    leaderships back once it has been unfenced for a whole interval. They are moved together: while another broker has just come,
    all wait for it, for ``PUT_OFF_MAX`` intervals at most.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        """``interval_s``: ``leader.imbalance.check.interval.seconds``."""
        self._interval_s = interval_s
        self._next_s = now_s + interval_s
        self._put_off = 0
        """How many checks in turn were put off."""

    def due(self, now_s: float, steady_since: Mapping[BrokerId, float]) -> frozenset[BrokerId]:
        """The brokers that may lead again now; none if it is not time to look.

        ``steady_since``: the unfenced brokers, and since when each is without a break.
        """
        if now_s < self._next_s:
            return frozenset()
        self._next_s = now_s + self._interval_s
        stable = frozenset([one for one, since_s in steady_since.items() if now_s - since_s >= self._interval_s])
        if len(stable) < len(steady_since) and self._put_off < PUT_OFF_MAX:
            self._put_off += 1
            return frozenset()
        self._put_off = 0
        return stable


@Stepwise
def preferred_leaders_back(
    draft: ImageDraft, around: PlanInputs, stable: Collection[BrokerId], at_most: int
) -> Steps[Planned[int]]:
    """Let the first replicas lead again that are in sync and on a ``stable`` broker, of at most so many partitions (E5). Returns:
    of how many. If it is ``at_most``, there may be more."""
    del around
    active = _active(draft).intersection(stable)
    changed: dict[tuple[UUID, int], PartitionImage] = {}
    seen = 0
    for topic in draft.topics:
        for before in topic.partitions:
            if len(changed) >= at_most:
                return Planned((yield from changes_of(changed)), len(changed))
            seen += 1
            if not seen % STRIDE:
                yield
            after = preferred(before, active.__contains__)
            if after is not before:
                changed[topic.topic_id, before.partition_index] = after
    return Planned((yield from changes_of(changed)), len(changed))


def _active(draft: ImageDraft) -> frozenset[BrokerId]:
    return frozenset([each.broker_id for each in draft.brokers.values() if each.active])


def _all(draft: ImageDraft) -> Iterator[tuple[str, int]]:
    for topic in draft.topics:
        for index in range(len(topic.partitions)):
            yield topic.name, index


def _refusal(partition: PartitionImage, *, unclean: bool) -> tuple[ErrorCode, str]:
    found = orphaned(partition)
    if found is not None:
        why = f"Write-ahead log {found.wal} of its last leader must end first, which the controller sees to."
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, why
    if unclean:
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is alive: start one of its brokers."
    return (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        f"The preferred leader, broker {partition.replicas[0]}, is not in sync, or does not live.",
    )
