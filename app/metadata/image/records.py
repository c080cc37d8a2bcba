"""The cluster log's records, and how they are written and read. Pure.

Every record has the whole state of its key. Kinds (first element of the key), and the other elements:

    16 cluster                     18 broker, <node id>            20 partition, <topic id>, <index>     22 producer ids
    17 controller                  19 topic, <topic id>            21 broker configs, <node id or -1>
    26 feature, <name>             27 group configs, <group id>    28 counters
    30 client metrics, <name of the subscription>
    23 access control, <resource type>, <pattern type>, <resource name>, <principal>, <host>, <operation>, <permission>
    25 SCRAM user, <name>, <mechanism>                              25 SCRAM user                             the secret of all
    24 quota, <user>, <client id>, <ip>                             29 delegation token, <token id>

Kinds 26 and 28 are written from level 1 on (``firn.version``), as are the fields of brokers and partitions that only several
brokers need (ADR 0023). Kinds 23 to 25 and 29 are written from level 2 on (ADR 0030 to 0032, 0035), and the fields of partitions
in write-ahead logs from level 3 on (ADR 0037). Kind 30 is written from level 6 on.

Tests: ``tests/metadata/test_image.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from app.core.units import BrokerId, LeaderEpoch, ProducerId, TimestampMs
from app.metadata.image.wal_ranges import PartitionDurability, WalRange
from app.metadata.log.log_format import KeyValue, ValueDecoder, Versioned, encode_key, encode_value
from app.security.acls import Acl
from app.security.delegation import DelegationToken
from app.security.scram import ScramCredential

ALL_BROKERS: Final = -1
"""Node id of the configs that apply to every broker."""

LEVEL_FEATURE: Final = "firn.version"
"""The feature whose level says which records may be written. ``upgrade_needed`` tells users that it is too low."""
SECURITY_LEVEL: Final = 2
"""The first level at which access control, quotas and users may be written: programs of a lower level would serve every client."""
OBJECT_LEVEL: Final = 3
"""The first level at which topics may have ``firn.durability=object``: programs of a lower level would ignore the ranges."""
PULSE_LEVEL: Final = 4
"""The first level at which brokers send pulses to each other: programs of a lower level do not know them."""
REGISTRY_LEVEL: Final = 5
"""The first level at which the schema registry writes: programs of a lower level let producers write to its topic."""
CLIENT_METRICS_LEVEL: Final = 6
"""The first level at which there are subscriptions to the metrics of clients: older programs would ignore them."""
REQUESTS_LEVEL: Final = 7
"""The first level at which keyed requests over HTTP are served: programs of a lower level do not know their coordinator, and would
let clients write to its topic."""
APPEND_LEVEL: Final = 8
"""The first level at which conditional appends and whole tries of keyed requests (FirnKeyed) are served, and results of keyed
requests have schemas: programs of a lower level know none of them."""
LEVEL_MAX: Final = 8
"""The highest level that this program understands. 0: one broker. 1: several brokers, replicas. 2: security. 3: object durability,
which is write-ahead logs in the bucket. 4: pulses between brokers. 5: the schema registry. 6: metrics of clients. 7: keyed requests
over HTTP. 8: conditional appends over HTTP."""

HTTP_REQUESTS_TOPIC: Final = "__http_requests"
"""The topic of the results of keyed requests (ADR 0043). Its name is here because HTTP processes load no image."""

NOT_SEALED: Final = -1
"""In place of the number of a seal."""


def upgrade_needed(subject: str, wanted: int, level: int) -> str:
    """The sentence for a caller whose request needs a higher level. ``subject``: with its verb, "ACLs need"."""
    return (
        f"{subject} {LEVEL_FEATURE} {wanted}, and the cluster is at {level}. Upgrade all brokers, then run"
        f" `firn cluster features --upgrade {LEVEL_FEATURE}={wanted}`."
    )


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
    CLIENT_METRICS = 30


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
    """Whether it is about to stop. Then it is not given any leadership."""
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


class ClientMetricsRecord(Versioned, array_like=True, frozen=True):
    """The settings of a subscription to the metrics of clients (level 6)."""

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


class QuotaEntity(NamedTuple):
    """Whose limits: by name, "" for the default of that type, None if the entity has no such part."""

    user: str | None
    client_id: str | None
    ip: str | None


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


CLUSTERS: Final = ValueDecoder(WalStoreClusterRecord, 3, "cluster")
CONTROLLERS: Final = ValueDecoder(ControllerRecord, 1, "controller")
BROKERS: Final = ValueDecoder(EphemeralMemberRecord, 1, "broker")
TOPICS: Final = ValueDecoder(ObjectTopicRecord, 1, "topic")
PARTITIONS: Final = ValueDecoder(WalPartitionRecord, 1, "partition")
BROKER_CONFIGS: Final = ValueDecoder(BrokerConfigsRecord, 1, "broker configs")
GROUP_CONFIGS: Final = ValueDecoder(GroupConfigsRecord, 1, "group configs")
CLIENT_METRICS: Final = ValueDecoder(ClientMetricsRecord, 1, "client metrics")
PRODUCER_IDS: Final = ValueDecoder(ProducerIdsRecord, 1, "producer ids")
ACLS: Final = ValueDecoder(AclRecord, 1, "access control")
SCRAM_USERS: Final = ValueDecoder(ScramRecord, 1, "SCRAM user")
SCRAM_SECRETS: Final = ValueDecoder(ScramSecretRecord, 1, "SCRAM secret")
TOKENS: Final = ValueDecoder(TokenRecord, 1, "delegation token")
QUOTAS: Final = ValueDecoder(QuotaRecord, 1, "quota")
FEATURES: Final = ValueDecoder(FeatureRecord, 1, "feature")
COUNTERS: Final = ValueDecoder(CountersRecord, 1, "counters")


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


def client_metrics_change(name: str, configs: Mapping[str, str]) -> KeyValue:
    """The settings of a subscription. Without any it is gone."""
    return encode_key(Kind.CLIENT_METRICS, name), (
        encode_value(ClientMetricsRecord(1, dict(configs))) if configs else None
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


def token_of(record: TokenRecord) -> DelegationToken:
    """The delegation token in a record."""
    return DelegationToken(
        record.owner, record.requester, record.renewers, record.issued_ms, record.max_ms, record.expires_ms
    )


def quota_change(entity: QuotaEntity, limits: Mapping[str, float]) -> KeyValue:
    """In a key, a part is "" if there is none, "*" for the default, and "=" before a name."""
    parts = ("" if one is None else f"={one}" if one else "*" for one in entity)
    return encode_key(Kind.QUOTA, *parts), encode_value(QuotaRecord(1, dict(limits))) if limits else None


def quota_entity(parts: Sequence[str]) -> QuotaEntity:
    """The entity in a key of ``quota_change``, given the parts behind its kind. Raises: ValueError."""
    user, client_id, ip = (None if not one else "" if one == "*" else one.removeprefix("=") for one in parts)
    return QuotaEntity(user, client_id, ip)


def feature_change(name: str, level: int) -> KeyValue:
    """Level 0 takes the feature away."""
    return encode_key(Kind.FEATURE, name), encode_value(FeatureRecord(1, level)) if level else None


def counters_change(record: CountersRecord) -> KeyValue:
    return encode_key(Kind.COUNTERS), encode_value(record)
