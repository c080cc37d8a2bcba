"""``ClusterImage``, the immutable state of the cluster at one entry of the cluster log, and its parts. Pure.

An image serves requests and never changes. An entry makes a new image by a draft (``draft``). The new image shares all unchanged
parts with the old one, so ``ImageDelta`` finds a difference quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from app.configs import BrokerConfig, TopicConfig
from app.configs.resolving import apply_broker_overrides, resolve_topic_config
from app.core.units import BrokerId, LeaderEpoch, LogSequence, PartitionIndex, ProducerId, TimestampMs, TopicId
from app.metadata.image.records import (
    ALL_BROKERS,
    HTTP_REQUESTS_TOPIC,
    LEVEL_FEATURE,
    NOT_SEALED,
    ChangingPartitionRecord,
    Endpoint,
    EphemeralMemberRecord,
    LossyPartitionRecord,
    MemberRecord,
    ObjectTopicRecord,
    PartitionRecord,
    QuotaEntity,
    SealedMemberRecord,
    TopicRecord,
    WalPartitionRecord,
)
from app.metadata.image.wal_ranges import PartitionDurability, WalId, WalRanges
from app.metadata.log.log_format import NOTHING_APPLIED
from app.security.acls import Acls
from app.security.delegation import DelegationToken
from app.security.scram import SaltShape, ScramCredential

FIRST_PRODUCER_ID: Final = ProducerId(0)

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", HTTP_REQUESTS_TOPIC}
)
GUARDED_TOPICS: Final = INTERNAL_TOPICS | {"_schemas"}
"""Topics that clients may not write to: never, or not once Firn's schema registry has it (ADR 0041, SR5)."""


class PartitionImage(NamedTuple):
    """One partition in the image."""

    partition_index: PartitionIndex
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    eligible: tuple[BrokerId, ...] = ()
    last_known_eligible: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    recovering: bool = False
    unclean_epoch: int = -1
    """The leader epoch of the last unclean election; -1 if there was none."""
    durability: PartitionDurability = PartitionDurability.REPLICAS
    wal_ranges: WalRanges = ()

    @property
    def is_journaled(self) -> bool:
        """Whether its records count as stored when a write-ahead log in the bucket has them (ADR 0037)."""
        return self.durability.by_log

    def record(self) -> PartitionRecord:
        """The record of this state: the shortest form that says it."""
        if self.durability or self.wal_ranges:
            return WalPartitionRecord(1, *self[1:])
        if self.unclean_epoch >= 0:
            return LossyPartitionRecord(1, *self[1:12])
        if self.adding or self.removing or self.recovering:
            return ChangingPartitionRecord(1, *self[1:11])
        return PartitionRecord(1, *self[1:8])


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic that is not being deleted."""

    topic_id: TopicId
    name: str
    partitions: tuple[PartitionImage, ...]
    """Partitions by index."""
    configs: Mapping[str, str]
    """Overrides only. Not to be changed."""
    created_ms: TimestampMs
    replication_factor: int = -1
    """The factor that was asked for, if partitions have fewer replicas by meaning (``firn.durability=object``); -1 otherwise."""

    @property
    def is_internal(self) -> bool:
        """Whether the topic is internal."""
        return self.name in INTERNAL_TOPICS

    def record(self, **changes: object) -> TopicRecord:
        """The record of this state, with some fields changed."""
        fields = (1, self.name, len(self.partitions), dict(self.configs), self.created_ms)
        record = TopicRecord(*fields)
        if self.replication_factor >= 0:
            record = ObjectTopicRecord(*fields, replication_factor=self.replication_factor)
        return msgspec.structs.replace(record, **changes)


class DeletingTopic(NamedTuple):
    """A deleted topic that may still have objects in the bucket."""

    topic_id: TopicId
    name: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker, alive or not (``liveness.py``)."""

    broker_id: BrokerId
    directory_id: UUID
    incarnation: UUID
    broker_epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    registered_ms: TimestampMs
    instance_id: str = ""
    fenced: bool = False
    stopping: bool = False
    changed_at: int = -1
    boot_id: str = ""
    level_max: int = 0
    wal_end: int = NOT_SEALED
    """The number of the seal that ended the write-ahead log of this broker epoch; ``NOT_SEALED`` if none is known (J14)."""
    ephemeral: bool = False
    """Whether its disk may be lost at any time: it leads nothing but partitions in write-ahead logs (J47)."""

    @property
    def wal(self) -> WalId:
        """Its write-ahead log, if it has one (J1)."""
        return WalId(self.broker_id, self.broker_epoch)

    @property
    def active(self) -> bool:
        """Whether it may be elected and enter in-sync sets (M6)."""
        return not self.fenced and not self.stopping

    def record(self, **changes: object) -> MemberRecord:
        """The record of this state, with some fields changed (level 1)."""
        fields = (
            1,
            self.directory_id,
            self.incarnation,
            self.broker_epoch,
            self.endpoints,
            self.rack,
            self.registered_ms,
            self.instance_id,
            self.fenced,
            self.stopping,
            self.changed_at,
            self.boot_id,
            self.level_max,
        )
        record = MemberRecord(*fields)
        if self.ephemeral:
            record = EphemeralMemberRecord(*fields, self.wal_end, True)
        elif self.wal_end != NOT_SEALED:
            record = SealedMemberRecord(*fields, self.wal_end)
        return msgspec.structs.replace(record, **changes)

    @property
    def host(self) -> str:
        """Host of the first endpoint; empty if there is none."""
        return self.endpoints[0].host if self.endpoints else ""

    @property
    def port(self) -> int:
        return self.endpoints[0].port if self.endpoints else 0

    def endpoint(self, listener: str) -> Endpoint | None:
        """The broker's address for clients of that listener."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


class ControllerImage(NamedTuple):
    """The writer of the cluster log."""

    epoch: int
    broker_id: BrokerId
    incarnation: UUID


UNKNOWN_MS: Final = TimestampMs(-1)

NO_CONTROLLER: Final = ControllerImage(-1, BrokerId(-1), UUID(int=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """The whole state of the cluster log at one entry. Its mappings never change."""

    sequence: LogSequence = NOTHING_APPLIED
    """Number of the last entry in it."""
    cluster_id: str = ""
    created_ms: TimestampMs = UNKNOWN_MS
    """When the cluster was made."""
    wal_store: str = ""
    """The id of the store of write-ahead logs, if they have their own (J61)."""
    controller: ControllerImage = NO_CONTROLLER
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[UUID, TopicImage] = field(default_factory=dict)
    deleting: Mapping[UUID, DeletingTopic] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    broker_configs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic overrides by node id; ``ALL_BROKERS`` for those of every broker."""
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Overrides by group id."""
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings by the name of a subscription (KIP-714). The same mapping until one changes."""
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    """Limits of clients."""
    producer_id_next: ProducerId = FIRST_PRODUCER_ID
    features: Mapping[str, int] = field(default_factory=dict)
    """Finalised levels by the names of features."""
    next_node_id: int = 0
    """The lowest node id that was never given to a broker that asked for any."""
    acls: Acls = field(default_factory=dict)
    """The rules of access by pattern. The same mapping until a rule changes."""
    acl_count: int = 0
    scram_users: Mapping[str, Mapping[int, ScramCredential]] = field(default_factory=dict, repr=False)
    """By name and mechanism (``ScramMechanism``)."""
    scram_shapes: Mapping[int, Mapping[SaltShape, int]] = field(default_factory=dict, repr=False)
    """By mechanism, the shapes of salts of ``scram_users``, with the number of users."""
    imitated_shapes: Mapping[int, tuple[SaltShape, ...]] = field(default_factory=dict, repr=False)
    """By mechanism, the shapes that names without a user have."""
    scram_secret: bytes = field(default=b"", repr=False)
    tokens: Mapping[str, DelegationToken] = field(default_factory=dict)
    """Delegation tokens by id, those that have ended and were not swept yet among them."""

    @property
    def level(self) -> int:
        """The finalised level. ``LEVEL_MAX`` says what each brings."""
        return self.features.get(LEVEL_FEATURE, 0)

    def topic(self, name: str) -> TopicImage | None:
        """The topic of that name, unless it is being deleted."""
        return self.topics_by_name.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        """The topic of that id, unless it is being deleted."""
        return self.topics_by_id.get(topic_id)

    def partition(self, topic_id: UUID, index: int) -> PartitionImage | None:
        """A partition, if there is such."""
        topic = self.topics_by_id.get(topic_id)
        return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None

    def effective_broker_config(self, broker: BrokerConfig) -> BrokerConfig:
        """The settings of a broker that was started with ``broker``, dynamic overrides applied. Raises: RequestRejected."""
        for scope in (ALL_BROKERS, broker.node_id):
            overrides = self.broker_configs.get(scope)
            if overrides:
                broker = apply_broker_overrides(broker, overrides)
        return broker

    def effective_config(self, topic: TopicImage, broker: BrokerConfig) -> TopicConfig:
        """The settings of a topic on a broker that was started with ``broker``. Raises: RequestRejected."""
        return resolve_topic_config(self.effective_broker_config(broker), topic.configs)


class ImageDelta(NamedTuple):
    """The difference between two images."""

    topics: frozenset[UUID]
    """Created, changed or deleted topics."""
    brokers: bool
    broker_configs: bool
    deleting: bool
    features: bool = False
    acls: bool = False
    quotas: bool = False

    @classmethod
    def between(cls, old: ClusterImage, new: ClusterImage) -> ImageDelta:
        """Takes time in proportion to the number of topics, but little for topics that both images share."""
        topics = {
            topic_id
            for topic_id, topic in new.topics_by_id.items()
            if (before := old.topics_by_id.get(topic_id)) is not topic and before != topic
        }
        if new.topics_by_id is not old.topics_by_id:
            topics.update(topic_id for topic_id in old.topics_by_id if topic_id not in new.topics_by_id)
        return cls(
            frozenset(topics),
            old.brokers is not new.brokers and old.brokers != new.brokers,
            old.broker_configs is not new.broker_configs and old.broker_configs != new.broker_configs,
            old.deleting is not new.deleting and old.deleting != new.deleting,
            old.features is not new.features and old.features != new.features,
            old.acls is not new.acls and old.acls != new.acls,
            old.quotas is not new.quotas and old.quotas != new.quotas,
        )
