"""The internal topics, and how they get more replicas as brokers join (ADR 0025, N). Pure.

An internal topic is created with as many replicas as there are brokers, up to the configured number. ``MoreReplicas`` says which
partitions should get more of them now, and ``add_replicas`` is the change that begins to add them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from app.configs import BrokerConfig, Durability
from app.core.turns import Steps, Stepwise
from app.core.units import BrokerId
from app.metadata.changes.reassignments import Reassigned, ReassignmentAsked, alter_reassignments, in_progress
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import BrokerImage, ClusterImage, TopicImage
from app.metadata.image.records import HTTP_REQUESTS_TOPIC
from app.metadata.replicas.placement import staying

PARTITIONS_AT_ONCE: Final = 10
"""Partitions of one topic that get replicas at the same time (N2)."""


class InternalTopic(NamedTuple):
    """One of the topics, and the broker settings for it."""

    name: str
    partitions_field: str
    """Fields of ``BrokerConfig``."""
    replication_factor_field: str
    segment_bytes_field: str
    min_in_sync_field: str = ""
    """Empty: the brokers' ``min.insync.replicas``."""


CONSUMER_OFFSETS: Final = InternalTopic(
    "__consumer_offsets",
    "offsets_topic_num_partitions",
    "offsets_topic_replication_factor",
    "offsets_topic_segment_bytes",
)
TRANSACTION_STATE: Final = InternalTopic(
    "__transaction_state",
    "transaction_state_log_num_partitions",
    "transaction_state_log_replication_factor",
    "transaction_state_log_segment_bytes",
    "transaction_state_log_min_isr",
)
SHARE_GROUP_STATE: Final = InternalTopic(
    "__share_group_state",
    "share_coordinator_state_topic_num_partitions",
    "share_coordinator_state_topic_replication_factor",
    "share_coordinator_state_topic_segment_bytes",
    "share_coordinator_state_topic_min_isr",
)
HTTP_REQUESTS: Final = InternalTopic(
    HTTP_REQUESTS_TOPIC,
    "",
    "transaction_state_log_replication_factor",
    "transaction_state_log_segment_bytes",
    "transaction_state_log_min_isr",
)
"""Its coordinator alone makes it, with a number of partitions that no setting changes (ADR 0043, EO13)."""
KEYED_ID_PREFIX: Final = "__http."
"""The beginning of all transactional ids of keyed requests (ADR 0043, EO8)."""

INTERNAL: Final = {topic.name: topic for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE)}
"""The topics by name that a broker makes with the settings for them."""
GROWING: Final = (*INTERNAL.values(), HTTP_REQUESTS)
"""The topics that get more replicas."""


def strength_configs(durability: Durability | None, min_in_sync: int | None) -> dict[str, str]:
    """The overrides of a new internal topic for how safely it keeps records; compression is left to its writers.

    Args:
        durability: None leaves it to the default of the brokers.
        min_in_sync: replicas that must have a record; None leaves it to the default of the brokers.
    """
    configs = {
        "compression.type": "producer",
        "remote.storage.enable": "true" if durability is Durability.OBJECT else "false",
    }
    if durability is not None:
        configs["firn.durability"] = durability.value
    if min_in_sync is not None and durability is not Durability.OBJECT:
        # With object durability one replica is shown, and Kafka's tools would report each partition as under its minimum.
        configs["min.insync.replicas"] = str(min_in_sync)
    return configs


Place = tuple[UUID, int]
"""A topic id and the index of a partition."""


def missing_replicas(
    image: ClusterImage, config: BrokerConfig, live: Sequence[BrokerId], begun: Collection[Place] = ()
) -> list[Place]:
    """The partitions of internal topics that should get more replicas now, at most ``PARTITIONS_AT_ONCE`` of each topic (N2).

    ``begun`` are left out: they were begun for the present brokers (N4).
    """
    found: list[Place] = []
    for internal in GROWING:
        topic = image.topic(internal.name)
        if topic is None or any(in_progress(partition) for partition in topic.partitions):
            continue
        wanted = min(getattr(config, internal.replication_factor_field), len(live))
        lacking = [
            (topic.topic_id, int(partition.partition_index))
            for partition in topic.partitions
            if len(partition.replicas) < wanted and not partition.durability.by_log
        ]
        found += [place for place in lacking if place not in begun][:PARTITIONS_AT_ONCE]
    return found


class MoreReplicas:
    """The additions of replicas that one controller has begun for the present brokers (N4)."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._live: frozenset[BrokerId] = frozenset()
        self._begun: set[Place] = set()

    def due(self, image: ClusterImage, config: BrokerConfig) -> list[Place]:
        """The partitions of internal topics that should get more replicas now. Cheap while the image stays the same."""
        if image is self._image:
            return []
        self._image = image
        live = frozenset([each.broker_id for each in image.brokers.values() if each.active and not each.ephemeral])
        if live != self._live:
            self._live = live
            self._begun.clear()
        return missing_replicas(image, config, sorted(live), self._begun)

    def begun(self, places: Sequence[Place]) -> None:
        """The change for these partitions was decided, one way or the other."""
        self._begun.update(places)

    def again(self) -> None:
        """The change may not have been made: look at the same image again."""
        self._image = None


@Stepwise
def add_replicas(
    draft: ImageDraft, around: PlanInputs, config: BrokerConfig, places: Sequence[Place]
) -> Steps[Planned[Reassigned]]:
    """Begin to add replicas to partitions of internal topics, as far as they still lack some. Places that have changed since are
    skipped. ``config``: the brokers' present settings."""
    live = [
        each
        for each in around.live_brokers
        if each in draft.brokers and draft.brokers[each].active and not draft.brokers[each].ephemeral
    ]
    asked: list[ReassignmentAsked] = []
    for internal in GROWING:
        topic = draft.topic(internal.name)
        if topic is None or any(in_progress(partition) for partition in topic.partitions):
            continue
        wanted = min(getattr(config, internal.replication_factor_field), len(live))
        chosen = [index for topic_id, index in places if topic_id == topic.topic_id and index < len(topic.partitions)]
        everything = (partition for each in draft.topics for partition in each.partitions)
        new = yield from staying.steps(live, everything, wanted)
        for index, targets in _targets(topic, chosen, draft.brokers, new, wanted).items():
            asked.append(ReassignmentAsked(topic.name, index, targets))
    return (yield from alter_reassignments.steps(draft, around, asked))


def _targets(
    topic: TopicImage,
    chosen: Sequence[int],
    brokers: Mapping[int, BrokerImage],
    live: Sequence[BrokerId],
    wanted: int,
) -> dict[int, tuple[BrokerId, ...]]:
    """Replicas of the chosen partitions: the present ones, and others on the racks, hosts and brokers with the fewest. The first is
    the one that is first of the fewest partitions (N5)."""
    replicas_on = Counter(replica for partition in topic.partitions for replica in partition.replicas)
    first_of = Counter(partition.replicas[0] for partition in topic.partitions)
    found: dict[int, tuple[BrokerId, ...]] = {}
    for index in chosen:
        partition = topic.partitions[index]
        if len(partition.replicas) >= wanted:
            continue
        replicas = list(partition.replicas)
        while len(replicas) < wanted:
            others = [each for each in live if each not in replicas]
            if not others:
                break
            added = min(others, key=lambda each: _cost(each, replicas, replicas_on, brokers))
            replicas_on[added] += 1
            replicas.append(added)
        first_of[partition.replicas[0]] -= 1
        first = min(replicas, key=lambda each: (each not in live, first_of[each], replicas.index(each)))
        first_of[first] += 1
        found[index] = (first, *(each for each in replicas if each != first))
    return found


def _cost(
    broker: BrokerId, replicas: Sequence[BrokerId], replicas_on: Counter[BrokerId], brokers: Mapping[int, BrokerImage]
) -> tuple[int, int, int, int]:
    """How little a broker suits as one more replica: another rack is best, then another host, then few replicas."""
    image, others = brokers[broker], [brokers[each] for each in replicas if each in brokers]
    return (
        sum((each.rack or "") == (image.rack or "") for each in others),
        sum(each.host == image.host for each in others),
        replicas_on[broker],
        broker,
    )
