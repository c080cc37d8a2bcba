"""The cluster log's records, and the immutable image that results from them.

Every record has the whole state of its key. Kinds (first element of the key), and the other elements:

    16 cluster                     18 broker, <node id>            20 partition, <topic id>, <index>     22 producer ids
    17 controller                  19 topic, <topic id>            21 broker configs, <node id or -1>
    26 feature, <name>             27 group configs, <group id>    28 counters
    23 access control, <resource type>, <pattern type>, <resource name>, <principal>, <host>, <operation>, <permission>
    25 SCRAM user, <name>, <mechanism>                              25 SCRAM user                             the secret of all
    24 quota, <user>, <client id>, <ip>                             29 delegation token, <token id>

Kinds 26 and 28 are written from level 1 on (``firn.version``), as are the fields of brokers and partitions that only several
brokers need (ADR 0023). Kinds 23 to 25 and 29 are written from level 2 on (ADR 0030 to 0032, 0035), and the fields of partitions
in write-ahead logs from level 3 on (ADR 0037).

``ClusterImage`` serves requests and never changes. An entry makes a new image, which shares all unchanged parts. ``ImageDraft``
is a mutable image: the controller plans a whole group of changes on one draft, so that maps are copied once for a group and not
for every change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from app.configs import BrokerConfig, TopicConfig
from app.configs.resolving import apply_broker_overrides, resolve_topic_config
from app.core.errors import CorruptionError
from app.core.turns import Steps, slices, whole
from app.core.units import BrokerId, LeaderEpoch, LogSequence, PartitionIndex, ProducerId, TimestampMs, TopicId
from app.metadata.image.wal_ranges import PartitionDurability, WalId, WalRange, WalRanges
from app.metadata.log.log_format import (
    NOTHING_APPLIED,
    Entry,
    KeyValue,
    ValueDecoder,
    Versioned,
    decode_key,
    encode_key,
    encode_value,
)
from app.security.acls import Acl, Acls, Pattern, Rule
from app.security.delegation import DelegationToken
from app.security.scram import NO_SHAPES, SaltShape, ScramCredential, counted, imitated

ALL_BROKERS: Final = -1
"""Node id of the configs that apply to every broker."""

LEVEL_FEATURE: Final = "firn.version"
"""The feature whose level says which records may be written."""
SECURITY_LEVEL: Final = 2
"""The first level at which access control, quotas and users may be written: programs of a lower level would serve every client."""
OBJECT_LEVEL: Final = 3
"""The first level at which topics may have ``firn.durability=object``: programs of a lower level would ignore the ranges."""
PULSE_LEVEL: Final = 4
"""The first level at which brokers send pulses to each other: programs of a lower level do not know them."""
REGISTRY_LEVEL: Final = 5
"""The first level at which the schema registry writes: programs of a lower level let producers write to its topic."""
LEVEL_MAX: Final = 5
"""The highest level that this program understands. 0: one broker. 1: several brokers, replicas. 2: security. 3: object durability,
which is write-ahead logs in the bucket. 4: pulses between brokers. 5: the schema registry."""

NOT_SEALED: Final = -1
"""In place of the number of a seal."""

TAKEN_AT_ONCE: Final = 100
"""Records that are added to an image in one step: about 0.5 ms."""
SETTLED_AT_ONCE: Final = 2_000
"""Partitions after which the topics that were assembled are a step: about 1 ms. A topic is assembled in one step."""

FIRST_PRODUCER_ID: Final = ProducerId(0)

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
GUARDED_TOPICS: Final = INTERNAL_TOPICS | {"_schemas"}
"""Topics that clients may not write to: never, or not once Firn's schema registry has it (ADR 0041, SR5)."""

_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


class Kind(IntEnum):
    """First element of the key of a record in the cluster log."""

    CLUSTER = 16
    CONTROLLER = 17
    BROKER = 18
    TOPIC = 19
    PARTITION = 20
    BROKER_CONFIGS = 21
    PRODUCER_IDS = 22
    ACCESS_CONTROL = 23
    QUOTA = 24
    SCRAM_USER = 25
    FEATURE = 26
    GROUP_CONFIGS = 27
    COUNTERS = 28
    DELEGATION_TOKEN = 29


# --- records --------------------------------------------------------------------------------------------------------


class ClusterRecord(Versioned, array_like=True, frozen=True):
    """Which cluster this is. Version 2 says the same; it is written from level 1 on, so that programs of level 0 refuse the log."""

    cluster_id: str
    created_ms: TimestampMs


class WalStoreClusterRecord(ClusterRecord, array_like=True, frozen=True):
    """A cluster whose write-ahead logs are in a store of their own (level 3, J61). Version 3 is written while there is one, so that
    programs refuse the log that would look for write-ahead logs in the main store."""

    wal_store: str = ""
    """The id in the marker of that store; empty if it is the main store."""


class ControllerRecord(Versioned, array_like=True, frozen=True):
    """The writer of the cluster log; part of its seal."""

    epoch: int
    broker_id: BrokerId
    incarnation: UUID


class Endpoint(NamedTuple):
    """An address where clients reach a broker."""

    listener: str
    host: str
    port: int
    protocol: str


class BrokerRecord(Versioned, array_like=True, frozen=True):
    """A broker's registration. It binds the node id to a data directory."""

    directory_id: UUID
    incarnation: UUID
    """A new id for every start of the process."""
    broker_epoch: int
    """Rises with every registration of any broker."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    registered_ms: TimestampMs
    instance_id: str = ""
    """The operator's name of the machine (``firn.instance.id``), to ask a cloud whether the machine still exists."""


class MemberRecord(BrokerRecord, array_like=True, frozen=True):
    """The registration of one broker of several (level 1)."""

    fenced: bool = False
    """Whether it may lead nothing and be in no in-sync set: it has just registered, or is not heard."""
    stopping: bool = False
    """Whether it is about to stop in order, so that it gets no leadership."""
    changed_at: int = -1
    """Number of the entry that registered or fenced it. It must have applied that entry before it is unfenced (M7)."""
    boot_id: str = ""
    """The boot of its machine; empty if unknown."""
    level_max: int = 0
    """The highest level that its program understands."""


class SealedMemberRecord(MemberRecord, array_like=True, frozen=True):
    """A registration whose write-ahead log was ended by the controller (level 3, J14)."""

    wal_end: int = NOT_SEALED
    """The number of the seal: the broker is not unfenced under this broker epoch any more."""


class EphemeralMemberRecord(SealedMemberRecord, array_like=True, frozen=True):
    """The registration of a broker whose disk may be lost at any time (level 3, J47)."""

    ephemeral: bool = False


class TopicRecord(Versioned, array_like=True, frozen=True):
    """A topic without its partitions. When it is ``deleting``, its name is free. The record stays until the bucket has no
    object of the topic."""

    name: str
    partition_count: int
    configs: dict[str, str]
    created_ms: TimestampMs
    deleting: bool = False


class ObjectTopicRecord(TopicRecord, array_like=True, frozen=True):
    """A topic that was created with ``firn.durability=object`` (level 3). Its partitions have one replica, for any requested
    factor."""

    replication_factor: int = -1
    """The factor that was asked for, to be used if the durability is changed back."""


class PartitionRecord(Versioned, array_like=True, frozen=True):
    """Leader and followers of a partition."""

    leader: BrokerId
    """-1 if no broker can lead."""
    leader_epoch: LeaderEpoch
    partition_epoch: int
    """Rises with every change of this record."""
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    eligible: tuple[BrokerId, ...] = ()
    """Eligible leader replicas (KIP-966): not in sync, and have all committed records."""
    last_known_eligible: tuple[BrokerId, ...] = ()
    """The last leader, if no replica is in sync or eligible any more."""


class ChangingPartitionRecord(PartitionRecord, array_like=True, frozen=True):
    """A partition that is being reassigned, or whose leader was elected uncleanly (level 1)."""

    adding: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment adds; they are among ``replicas``."""
    removing: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment removes when it is complete; they are among ``replicas``."""
    recovering: bool = False
    """Whether the leader was elected without being in sync, and has not confirmed that it holds on to the tier (E3)."""


class LossyPartitionRecord(ChangingPartitionRecord, array_like=True, frozen=True):
    """A partition whose leader was once elected uncleanly (level 1)."""

    unclean_epoch: int = -1
    """The leader epoch of the last unclean election: followers may cut away committed records of earlier epochs (A3)."""


class WalPartitionRecord(LossyPartitionRecord, array_like=True, frozen=True):
    """A partition whose records are, or were, in write-ahead logs (level 3, ADR 0037)."""

    durability: PartitionDurability = PartitionDurability.REPLICAS
    wal_ranges: tuple[WalRange, ...] = ()
    """Oldest first. Only the last one may be open."""


class BrokerConfigsRecord(Versioned, array_like=True, frozen=True):
    """Dynamic configs of one broker, or of all."""

    configs: dict[str, str]


class GroupConfigsRecord(Versioned, array_like=True, frozen=True):
    """Settings of one group. The group need not exist."""

    configs: dict[str, str]


class ProducerIdsRecord(Versioned, array_like=True, frozen=True):
    """Producer ids below ``next_producer_id`` are given away."""

    next_producer_id: ProducerId
    broker_id: BrokerId
    """The broker that got the last block."""


class AclRecord(Versioned, array_like=True, frozen=True):
    """An access control list (level 2). Its key says all; the record says that it is there."""


class ScramRecord(Versioned, array_like=True, frozen=True):
    """The SCRAM credential that is derived from a user's password for one mechanism (level 2)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class ScramSecretRecord(Versioned, array_like=True, frozen=True):
    """The secret from which salts are derived for users that do not exist (level 2)."""

    secret: bytes


class TokenRecord(Versioned, array_like=True, frozen=True):
    """A delegation token (level 2). Its secret follows from its id and the brokers' secret key."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: TimestampMs
    max_ms: TimestampMs
    expires_ms: TimestampMs


class QuotaRecord(Versioned, array_like=True, frozen=True):
    """Limits of one entity (level 2)."""

    limits: dict[str, float]


class FeatureRecord(Versioned, array_like=True, frozen=True):
    """The finalised level of a feature (KIP-584)."""

    level: int


class CountersRecord(Versioned, array_like=True, frozen=True):
    """Counters of numbers that are given out only once."""

    next_node_id: int
    """The lowest node id that no broker with ``--node-id auto`` ever had."""


CLUSTERS = ValueDecoder(WalStoreClusterRecord, 3, "cluster")
_controllers = ValueDecoder(ControllerRecord, 1, "controller")
_brokers = ValueDecoder(EphemeralMemberRecord, 1, "broker")
_topics = ValueDecoder(ObjectTopicRecord, 1, "topic")
_partitions = ValueDecoder(WalPartitionRecord, 1, "partition")
_broker_configs = ValueDecoder(BrokerConfigsRecord, 1, "broker configs")
_group_configs = ValueDecoder(GroupConfigsRecord, 1, "group configs")
_producer_ids = ValueDecoder(ProducerIdsRecord, 1, "producer ids")
_acls = ValueDecoder(AclRecord, 1, "access control")
_scram = ValueDecoder(ScramRecord, 1, "SCRAM user")
_scram_secret = ValueDecoder(ScramSecretRecord, 1, "SCRAM secret")
_tokens = ValueDecoder(TokenRecord, 1, "delegation token")
_quotas = ValueDecoder(QuotaRecord, 1, "quota")
_features = ValueDecoder(FeatureRecord, 1, "feature")
_counters = ValueDecoder(CountersRecord, 1, "counters")

_TOPIC_PREFIX: Final = encode_key(Kind.TOPIC, UUID(int=0))[:-16]


def cluster_change(record: ClusterRecord) -> KeyValue:
    return encode_key(Kind.CLUSTER), encode_value(record)


def wal_store_change(cluster_id: str, created_ms: TimestampMs, wal_store: str) -> KeyValue:
    """From now on the cluster's write-ahead logs are in the store with that id; in the main store if it is empty."""
    if wal_store:
        return cluster_change(WalStoreClusterRecord(3, cluster_id, created_ms, wal_store))
    return cluster_change(ClusterRecord(2, cluster_id, created_ms))


def controller_change(record: ControllerRecord) -> KeyValue:
    return encode_key(Kind.CONTROLLER), encode_value(record)


def broker_change(broker_id: int, record: BrokerRecord | None) -> KeyValue:
    return encode_key(Kind.BROKER, broker_id), None if record is None else encode_value(record)


def topic_change(topic_id: UUID, record: TopicRecord | None) -> KeyValue:
    return encode_key(Kind.TOPIC, topic_id), None if record is None else encode_value(record)


def partition_change(topic_id: UUID, index: int, record: PartitionRecord | None) -> KeyValue:
    return encode_key(Kind.PARTITION, topic_id, index), None if record is None else encode_value(record)


def broker_configs_change(broker_id: int, configs: Mapping[str, str]) -> KeyValue:
    return encode_key(Kind.BROKER_CONFIGS, broker_id), (
        encode_value(BrokerConfigsRecord(1, dict(configs))) if configs else None
    )


def group_configs_change(group_id: str, configs: Mapping[str, str]) -> KeyValue:
    return encode_key(Kind.GROUP_CONFIGS, group_id), (
        encode_value(GroupConfigsRecord(1, dict(configs))) if configs else None
    )


def producer_ids_change(record: ProducerIdsRecord) -> KeyValue:
    return encode_key(Kind.PRODUCER_IDS), encode_value(record)


def acl_change(acl: Acl, *, exists: bool) -> KeyValue:
    """``exists``: whether the ACL is there from now on."""
    (kind, pattern_type, name), (principal, host, operation, permission) = acl
    key = encode_key(
        Kind.ACCESS_CONTROL, int(kind), int(pattern_type), name, principal, host, int(operation), int(permission)
    )
    return key, encode_value(AclRecord(1)) if exists else None


def scram_change(user: str, mechanism: int, credential: ScramCredential | None) -> KeyValue:
    """None takes it away."""
    return encode_key(Kind.SCRAM_USER, user, mechanism), (
        None if credential is None else encode_value(ScramRecord(1, *credential))
    )


def scram_secret_change(secret: bytes) -> KeyValue:
    return encode_key(Kind.SCRAM_USER), encode_value(ScramSecretRecord(1, secret))


def token_change(token_id: str, token: DelegationToken | None) -> KeyValue:
    """None takes it away."""
    return encode_key(Kind.DELEGATION_TOKEN, token_id), None if token is None else encode_value(_token_record(token))


def _token_record(token: DelegationToken) -> TokenRecord:
    owner, requester, renewers, issued_ms, max_ms, expires_ms = token
    return TokenRecord(
        1, owner, requester, renewers, TimestampMs(issued_ms), TimestampMs(max_ms), TimestampMs(expires_ms)
    )


class QuotaEntity(NamedTuple):
    """Whose limits: by name, "" for the default of that type, None if the entity has no such part."""

    user: str | None
    client_id: str | None
    ip: str | None


def quota_change(entity: QuotaEntity, limits: Mapping[str, float]) -> KeyValue:
    """In a key, a part is "" if there is none, "*" for the default, and "=" before a name."""
    parts = ("" if one is None else f"={one}" if one else "*" for one in entity)
    return encode_key(Kind.QUOTA, *parts), encode_value(QuotaRecord(1, dict(limits))) if limits else None


def _quota_entity(parts: Sequence[object]) -> QuotaEntity:
    user, client_id, ip = (
        None if not one else "" if one == "*" else one.removeprefix("=") for one in map(_text, parts)
    )
    return QuotaEntity(user, client_id, ip)


def feature_change(name: str, level: int) -> KeyValue:
    """Level 0 takes the feature away."""
    return encode_key(Kind.FEATURE, name), encode_value(FeatureRecord(1, level)) if level else None


def counters_change(record: CountersRecord) -> KeyValue:
    return encode_key(Kind.COUNTERS), encode_value(record)


# --- image ----------------------------------------------------------------------------------------------------------


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
        """The finalised level: 0 for one broker, 1 for several, 2 with security, 3 with object durability."""
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

    def draft(self) -> ImageDraft:
        """A draft of a next image."""
        return ImageDraft(self)


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


@dataclass(slots=True)
class _TopicInTheMaking:
    record: TopicRecord | None
    partitions: dict[int, PartitionImage]
    deleted: bool = False


class ImageDraft:
    """A mutable image: ``take`` records, look up the result, ``freeze`` it. Maps are copied on their first change."""

    def __init__(self, base: ClusterImage) -> None:
        self._cluster_id = base.cluster_id
        self._created_ms = base.created_ms
        self._wal_store = base.wal_store
        self._controller = base.controller
        self._producer_id_next = base.producer_id_next
        self._features: dict[str, int] = base.features  # type: ignore[assignment]
        self._next_node_id = base.next_node_id
        self._sequence = base.sequence
        self._topics_by_name: dict[str, TopicImage] = base.topics_by_name  # type: ignore[assignment] # until copied
        self._topics_by_id: dict[UUID, TopicImage] = base.topics_by_id  # type: ignore[assignment]
        self._deleting: dict[UUID, DeletingTopic] = base.deleting  # type: ignore[assignment]
        self._brokers: dict[int, BrokerImage] = base.brokers  # type: ignore[assignment]
        self._broker_configs: dict[int, Mapping[str, str]] = base.broker_configs  # type: ignore[assignment]
        self._group_configs: dict[str, Mapping[str, str]] = base.group_configs  # type: ignore[assignment]
        self._quotas: dict[QuotaEntity, Mapping[str, float]] = base.quotas  # type: ignore[assignment]
        self._quotas_owned = False
        self._topics_owned = self._deleting_owned = self._brokers_owned = self._configs_owned = False
        self._group_configs_owned = self._acls_owned = False
        self._acls: dict[Pattern, dict[str, tuple[Rule, ...]]] = base.acls  # type: ignore[assignment]
        self._patterns_owned: set[Pattern] = set()
        self._acl_count = base.acl_count
        self._scram_users: dict[str, Mapping[int, ScramCredential]] = base.scram_users  # type: ignore[assignment]
        self._scram_users_owned = False
        self._scram_shapes: Mapping[int, Mapping[SaltShape, int]] = base.scram_shapes
        self._scram_shapes_before, self._imitated_shapes = base.scram_shapes, base.imitated_shapes
        self._scram_secret = base.scram_secret
        self._tokens: dict[str, DelegationToken] = base.tokens  # type: ignore[assignment]
        self._tokens_owned = False
        self._making: dict[UUID, _TopicInTheMaking] = {}
        self._folded_names: dict[str, str] | None = None

    # Read by plans. After ``settle`` these properties are like a ClusterImage's.

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def created_ms(self) -> TimestampMs:
        return self._created_ms

    @property
    def wal_store(self) -> str:
        return self._wal_store

    @property
    def controller(self) -> ControllerImage:
        return self._controller

    @property
    def brokers(self) -> Mapping[int, BrokerImage]:
        return self._brokers

    @property
    def broker_configs(self) -> Mapping[int, Mapping[str, str]]:
        return self._broker_configs

    @property
    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        return self._group_configs

    @property
    def quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return self._quotas

    @property
    def deleting(self) -> Mapping[UUID, DeletingTopic]:
        return self._deleting

    @property
    def acls(self) -> Acls:
        return self._acls

    @property
    def acl_count(self) -> int:
        return self._acl_count

    @property
    def producer_id_next(self) -> ProducerId:
        return self._producer_id_next

    @property
    def scram_users(self) -> Mapping[str, Mapping[int, ScramCredential]]:
        return self._scram_users

    @property
    def scram_secret(self) -> bytes:
        return self._scram_secret

    @property
    def tokens(self) -> Mapping[str, DelegationToken]:
        return self._tokens

    @property
    def features(self) -> Mapping[str, int]:
        return self._features

    @property
    def level(self) -> int:
        return self._features.get(LEVEL_FEATURE, 0)

    @property
    def next_node_id(self) -> int:
        return self._next_node_id

    def topic(self, name: str) -> TopicImage | None:
        return self._topics_by_name.get(name)

    @property
    def topics(self) -> Collection[TopicImage]:
        """Every topic of this draft."""
        return self._topics_by_name.values()

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        return self._topics_by_id.get(topic_id)

    def colliding_name(self, name: str) -> str | None:
        """A topic whose name differs from ``name`` only in ``.`` and ``_``: metrics could not distinguish them."""
        if self._folded_names is None:
            self._folded_names = {other.replace(".", "_"): other for other in self._topics_by_name}
        found = self._folded_names.get(name.replace(".", "_"))
        return found if found != name else None

    # Making it.

    def apply(self, records: Sequence[KeyValue]) -> None:
        """Add the records of one change, and assemble the topics. Raises: CorruptionError."""
        self.take(records)
        whole(self.settling())

    def applying(self, records: Sequence[KeyValue]) -> Steps[None]:
        """As ``apply``, in steps. The draft is whole again after the last one."""
        for some in slices(records, TAKEN_AT_ONCE):
            self.take(some)
            yield
        yield from self.settling()

    def take(self, records: Sequence[KeyValue]) -> None:
        """Add records. Partitions and their topics may come in any order. Raises: CorruptionError."""
        for key, value in records:
            parts = decode_key(key)
            try:
                self._take(parts, value)
            except (IndexError, TypeError, ValueError):
                raise CorruptionError(f"The record key {parts} of the cluster log is not one of its kind.") from None

    def settling(self) -> Steps[None]:
        """Assemble the topics whose records were added, in steps. Raises: CorruptionError."""
        partitions = 0
        for topic_id, making in self._making.items():
            self._settle_topic(topic_id, making)
            partitions += 1 + len(making.partitions)
            if partitions >= SETTLED_AT_ONCE:
                partitions = 0
                yield
        self._making.clear()

    def freeze(self, sequence: LogSequence) -> ClusterImage:
        """The image at entry ``sequence``. The draft must not be changed afterwards."""
        assert not self._making, "the topics are not assembled"
        return ClusterImage(
            sequence=sequence,
            cluster_id=self._cluster_id,
            created_ms=self._created_ms,
            wal_store=self._wal_store,
            controller=self._controller,
            topics_by_name=self._topics_by_name,
            topics_by_id=self._topics_by_id,
            deleting=self._deleting,
            brokers=self._brokers,
            broker_configs=self._broker_configs,
            group_configs=self._group_configs,
            quotas=self._quotas,
            producer_id_next=self._producer_id_next,
            features=self._features,
            next_node_id=self._next_node_id,
            acls=self._acls,
            acl_count=self._acl_count,
            scram_users=self._scram_users,
            scram_shapes=self._scram_shapes,
            imitated_shapes=(
                self._imitated_shapes
                if self._scram_shapes is self._scram_shapes_before
                else {mechanism: imitated(shapes) for mechanism, shapes in self._scram_shapes.items()}
            ),
            scram_secret=self._scram_secret,
            tokens=self._tokens,
        )

    def _take(self, parts: list[object], value: bytes | None) -> None:
        match parts[0]:
            case Kind.PARTITION:
                self._take_partition(_uuid(parts[1]), _number(parts[2]), value)
            case Kind.TOPIC:
                making = self._topic_in_the_making(_uuid(parts[1]))
                if value is None:
                    making.record, making.deleted = None, True
                else:
                    making.record, making.deleted = _topics.decode(value), False
            case Kind.BROKER:
                self._take_broker(_number(parts[1]), value)
            case Kind.BROKER_CONFIGS:
                if not self._configs_owned:
                    self._broker_configs, self._configs_owned = dict(self._broker_configs), True
                if value is None:
                    self._broker_configs.pop(_number(parts[1]), None)
                else:
                    self._broker_configs[_number(parts[1])] = _broker_configs.decode(value).configs
            case Kind.GROUP_CONFIGS:
                if not self._group_configs_owned:
                    self._group_configs, self._group_configs_owned = dict(self._group_configs), True
                if value is None:
                    self._group_configs.pop(_text(parts[1]), None)
                else:
                    self._group_configs[_text(parts[1])] = _group_configs.decode(value).configs
            case Kind.SCRAM_USER if len(parts) == 1:
                if value is None:
                    raise CorruptionError("The secret of SCRAM users is gone.")
                self._scram_secret = _scram_secret.decode(value).secret
            case Kind.SCRAM_USER:
                self._take_scram_user(_text(parts[1]), _number(parts[2]), value)
            case Kind.DELEGATION_TOKEN:
                if not self._tokens_owned:
                    self._tokens, self._tokens_owned = dict(self._tokens), True
                if value is None:
                    self._tokens.pop(_text(parts[1]), None)
                else:
                    self._tokens[_text(parts[1])] = _token(_tokens.decode(value))
            case Kind.QUOTA:
                if not self._quotas_owned:
                    self._quotas, self._quotas_owned = dict(self._quotas), True
                entity = _quota_entity(parts[1:])
                if value is None:
                    self._quotas.pop(entity, None)
                else:
                    self._quotas[entity] = _quotas.decode(value).limits
            case Kind.FEATURE:
                self._features = dict(self._features)
                if value is None:
                    self._features.pop(_text(parts[1]), None)
                else:
                    self._features[_text(parts[1])] = _features.decode(value).level
            case Kind.ACCESS_CONTROL:
                self._take_acl(parts, value)
            case Kind.COUNTERS:
                if value is None:
                    raise CorruptionError("The record of counters is gone.")
                self._next_node_id = _counters.decode(value).next_node_id
            case Kind.CLUSTER:
                if value is None:
                    raise CorruptionError("The cluster's record is gone.")
                cluster = CLUSTERS.decode(value)
                self._cluster_id, self._created_ms = cluster.cluster_id, cluster.created_ms
                self._wal_store = cluster.wal_store
            case Kind.CONTROLLER:
                if value is None:
                    raise CorruptionError("The controller's record is gone.")
                controller = _controllers.decode(value)
                self._controller = ControllerImage(controller.epoch, controller.broker_id, controller.incarnation)
            case Kind.PRODUCER_IDS:
                if value is None:
                    raise CorruptionError("The record of producer ids is gone.")
                block = _producer_ids.decode(value)
                if block.next_producer_id < self._producer_id_next:
                    raise CorruptionError(
                        f"Producer ids would go back from {self._producer_id_next} to {block.next_producer_id}."
                    )
                self._producer_id_next = block.next_producer_id
            case _:
                # Of a newer version, or reserved: kept by the log, meaningless here.
                return

    def _take_partition(self, topic_id: UUID, index: int, value: bytes | None) -> None:
        making = self._topic_in_the_making(topic_id)
        if value is None:
            making.partitions.pop(index, None)
            return
        record = _partitions.decode(value)
        making.partitions[index] = PartitionImage(
            PartitionIndex(index),
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.replicas,
            record.isr,
            record.eligible,
            record.last_known_eligible,
            record.adding,
            record.removing,
            record.recovering,
            record.unclean_epoch,
            record.durability,
            record.wal_ranges,
        )

    def _take_acl(self, parts: list[object], value: bytes | None) -> None:
        kind, pattern_type, name, principal, host, operation, permission = parts[1:]
        pattern = Pattern(_number(kind), _number(pattern_type), _text(name))
        rule = Rule(_text(principal), _text(host), _number(operation), _number(permission))
        if value is not None:
            _acls.decode(value)
        by_principal = self._acls.get(pattern, {})
        before = by_principal.get(rule.principal, ())
        if (rule in before) == (value is not None):
            return
        if not self._acls_owned:
            self._acls, self._acls_owned = dict(self._acls), True
        if pattern not in self._patterns_owned:
            self._patterns_owned.add(pattern)
            by_principal = self._acls[pattern] = dict(by_principal)
        if value is not None:
            by_principal[rule.principal] = (*before, rule)
            self._acl_count += 1
            return
        self._acl_count -= 1
        by_principal[rule.principal] = tuple([one for one in before if one != rule])
        if len(before) == 1:
            del by_principal[rule.principal]
            if not by_principal:
                del self._acls[pattern]
                self._patterns_owned.discard(pattern)

    def _take_scram_user(self, user: str, mechanism: int, value: bytes | None) -> None:
        if not self._scram_users_owned:
            self._scram_users, self._scram_users_owned = dict(self._scram_users), True
        of_user = dict(self._scram_users.get(user, {}))
        before = of_user.pop(mechanism, None)
        if value is not None:
            record = _scram.decode(value)
            of_user[mechanism] = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
        shapes = counted(self._scram_shapes.get(mechanism, NO_SHAPES), before, of_user.get(mechanism))
        of_others = {kind: each for kind, each in self._scram_shapes.items() if kind != mechanism}
        self._scram_shapes = {**of_others, mechanism: shapes} if shapes else of_others
        if of_user:
            self._scram_users[user] = of_user
        else:
            self._scram_users.pop(user, None)

    def _take_broker(self, broker_id: int, value: bytes | None) -> None:
        if not self._brokers_owned:
            self._brokers, self._brokers_owned = dict(self._brokers), True
        if value is None:
            self._brokers.pop(broker_id, None)
            return
        record = _brokers.decode(value)
        self._brokers[broker_id] = BrokerImage(
            BrokerId(broker_id),
            record.directory_id,
            record.incarnation,
            record.broker_epoch,
            record.endpoints,
            record.rack,
            record.registered_ms,
            record.instance_id,
            record.fenced,
            record.stopping,
            record.changed_at,
            record.boot_id,
            record.level_max,
            record.wal_end,
            record.ephemeral,
        )

    def _topic_in_the_making(self, topic_id: UUID) -> _TopicInTheMaking:
        making = self._making.get(topic_id)
        if making is None:
            topic = self._topics_by_id.get(topic_id)
            deleting = self._deleting.get(topic_id)
            if topic is not None:
                making = _TopicInTheMaking(topic.record(), {p.partition_index: p for p in topic.partitions})
            elif deleting is not None:
                record = TopicRecord(1, deleting.name, deleting.partition_count, {}, TimestampMs(-1), True)
                making = _TopicInTheMaking(record, {})
            else:
                making = _TopicInTheMaking(None, {})
            self._making[topic_id] = making
        return making

    def _settle_topic(self, topic_id: UUID, making: _TopicInTheMaking) -> None:
        record = making.record
        before = self._topics_by_id.get(topic_id)
        if record is None or record.deleting:
            if record is None and making.partitions:
                raise CorruptionError(f"There are partitions of topic {topic_id}, but no such topic.")
            if before is not None:
                self._own_topics()
                del self._topics_by_id[topic_id]
                del self._topics_by_name[before.name]
                if self._folded_names is not None:
                    self._folded_names.pop(before.name.replace(".", "_"), None)
            if not self._deleting_owned:
                self._deleting, self._deleting_owned = dict(self._deleting), True
            if record is None:
                self._deleting.pop(topic_id, None)
            else:
                self._deleting[topic_id] = DeletingTopic(TopicId(topic_id), record.name, record.partition_count)
            return
        count = record.partition_count
        try:
            partitions = tuple([making.partitions[index] for index in range(count)])
        except KeyError as missing:
            raise CorruptionError(f"Topic {record.name!r} has no record of partition {missing}.") from None
        if len(making.partitions) != count:
            raise CorruptionError(f"Topic {record.name!r} has {len(making.partitions)} partitions, not {count}.")
        other = self._topics_by_name.get(record.name)
        if other is not None and other.topic_id != topic_id:
            raise CorruptionError(f"Topics {other.topic_id} and {topic_id} have the same name {record.name!r}.")
        factor = record.replication_factor if isinstance(record, ObjectTopicRecord) else -1
        topic = TopicImage(TopicId(topic_id), record.name, partitions, record.configs, record.created_ms, factor)
        self._own_topics()
        self._topics_by_id[topic_id] = self._topics_by_name[record.name] = topic
        if self._folded_names is not None:
            self._folded_names[record.name.replace(".", "_")] = record.name

    def _own_topics(self) -> None:
        if not self._topics_owned:
            self._topics_by_name, self._topics_by_id = dict(self._topics_by_name), dict(self._topics_by_id)
            self._topics_owned = True


def _token(record: TokenRecord) -> DelegationToken:
    return DelegationToken(
        record.owner, record.requester, record.renewers, record.issued_ms, record.max_ms, record.expires_ms
    )


def _uuid(part: object) -> UUID:
    if type(part) is not bytes:
        raise TypeError
    return UUID(bytes=part)


def _text(part: object) -> str:
    if type(part) is not str:
        raise TypeError
    return part


def _number(part: object) -> int:
    if type(part) is not int:
        raise TypeError
    return part


class ClusterState:
    """LogState of the cluster log. It has the newest image."""

    __slots__ = ("_loading", "image")

    def __init__(self) -> None:
        self.image = ClusterImage()
        self._loading: ImageDraft | None = None

    def load(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Add a part of a snapshot."""
        if self._loading is None:
            self._loading = self.image.draft()
        self._loading.take(records)

    def loaded(self, sequence: LogSequence) -> None:
        """Assemble the image."""
        whole(self.loading_ends(sequence))

    def loading_ends(self, sequence: LogSequence) -> Steps[None]:
        """As ``loaded``, in steps."""
        if self._loading is not None:
            yield from self._loading.settling()
            self.image = self._loading.freeze(sequence)
            self._loading = None

    def apply(self, entry: Entry) -> None:
        """Apply one entry. It makes a new image. After a CorruptionError the old image stays."""
        whole(self.applying(entry))

    def applying(self, entry: Entry) -> Steps[None]:
        """As ``apply``, in steps. The last one replaces the image, so a part of an entry is never seen."""
        draft = self.image.draft()
        yield from draft.applying(entry.records)
        self.image = draft.freeze(entry.sequence)
