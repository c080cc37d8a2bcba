"""Settings by Kafka's names, typed: the one place of every topic and broker setting that Firn knows.

``TopicConfig`` is what the log, the tier and the handlers read: every setting that a topic can carry, with its effective
value. ``BrokerConfig`` is the same for a broker. A field is named like its Kafka setting with ``.`` and ``-`` turned into
``_``. ``TOPIC_DEFINITIONS`` and ``BROKER_DEFINITIONS`` say of each setting its type, bounds, default, broker-wide names and
what it does; parsing, checking and describing are driven by them.

A topic's setting comes from, first found first taken (Kafka's order):

    the topic's own override                                    DYNAMIC_TOPIC_CONFIG
    an override of this broker, by a broker-wide name           DYNAMIC_BROKER_CONFIG
    an override of all brokers, by a broker-wide name           DYNAMIC_DEFAULT_BROKER_CONFIG
    what the broker was started with                            STATIC_BROKER_CONFIG
    Firn's default                                              DEFAULT_CONFIG

Within one of these ``log.retention.ms`` comes before ``log.retention.minutes`` and that before ``log.retention.hours``.
Two defaults bend to what a topic says, so that saying one thing is enough: ``remote.storage.enable`` is false for a
compacted topic, and ``local.retention.*`` is never more than ``retention.*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from app.errors import ConfigError, ErrorCode, RequestRejected
from app.limits import CHUNK_BYTES_MAX, LOG_CLEANER_THREADS_MAX

SHORT_MAX: Final = (1 << 15) - 1
INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
KAFKA_DOUBLE_MAX: Final = 1.7976931348623157e308

DERIVED: Final = -2
"""``local.retention.*``: as ``retention.*``."""


class Durability(StrEnum):
    """When a record counts as stored (``firn.durability``)."""

    MEMORY = "memory"
    """In the page cache: survives a kill of the process, not a loss of power. Kafka's default."""
    DISK = "disk"
    """fdatasync of the bytes, and of a new file's directory entry, has returned."""
    OBJECT = "object"
    """In the object-store WAL."""


class TimestampType(StrEnum):
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class TierCompression(StrEnum):
    """How chunks of a segment object are stored (``firn.tier.compression``)."""

    AUTO = "auto"
    """zstd, but verbatim where the batches of a chunk are compressed already, and where the store is a local directory:
    there a verbatim chunk is served from the object's own file."""
    NONE = "none"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Effective settings of one topic: its own overrides over the broker's defaults over Firn's."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    follower_replication_throttled_replicas: frozenset[str] = frozenset()
    index_interval_bytes: int = 4096
    leader_replication_throttled_replicas: frozenset[str] = frozenset()
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False
    remote_storage_enable: bool = True
    local_retention_bytes: int = -2
    local_retention_ms: int = 3_600_000
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    firn_durability: Durability = Durability.MEMORY
    firn_tier_max_lag_ms: int = 3_600_000
    firn_tier_chunk_bytes: int = 4 * 1024 * 1024
    firn_tier_compression: TierCompression = TierCompression.AUTO
    firn_remote_delete_delay_ms: int = 60_000

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def tiered(self) -> bool:
        """Whether segments of the topic go to the object store. Compacted topics stay local."""
        return self.remote_storage_enable and not self.compacted

    @property
    def local_retention_ms_effective(self) -> int:
        """How long the local copy is kept; -1 for ever. Without a tier the local copy is all there is."""
        if not self.tiered or self.local_retention_ms == DERIVED:
            return self.retention_ms
        return self.local_retention_ms

    @property
    def local_retention_bytes_effective(self) -> int:
        """How much is kept locally; -1 without a limit."""
        if not self.tiered or self.local_retention_bytes == DERIVED:
            return self.retention_bytes
        return self.local_retention_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process, fixed when it starts. Fields are named like ``TopicConfig``'s."""

    node_id: int = 1
    broker_rack: str | None = None
    data_dir: str = "./firn-data"
    store_url: str = ""
    """``file:///path`` or ``s3://bucket/prefix``; empty is the directory ``<data-dir>-store`` beside the data."""
    listen_host: str = "127.0.0.1"
    listen_port: int = 9092
    """0 lets the system choose a free port."""
    advertised_host: str = ""
    """What clients are told to connect to; empty is ``listen_host``."""
    advertised_port: int = 0
    """0 is the port that is listened on."""
    http_address: str = "127.0.0.1:8080"
    """``host:port`` of the HTTP process, or ``off``."""
    redis_url: str | None = None
    take_over: bool = False

    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    """What a topic has where neither it nor a broker override says otherwise."""
    num_partitions: int = 1
    default_replication_factor: int = 1
    auto_create_topics_enable: bool = True

    socket_request_max_bytes: int = 104_857_600
    socket_send_buffer_bytes: int = 102_400
    queued_max_request_bytes: int = 268_435_456
    """Memory for request frames that are still arriving, over all connections (Kafka: -1, none). Past it, reading waits."""
    connections_max_idle_ms: int = 600_000
    max_connections: int = 2_147_483_647
    fetch_max_bytes: int = 57_671_680
    max_incremental_fetch_session_cache_slots: int = 1000
    max_request_partition_size_limit: int = 2000
    producer_id_expiration_ms: int = 86_400_000
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 1
    offsets_topic_segment_bytes: int = 104_857_600
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4096
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3000
    group_max_size: int = 2_147_483_647
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_assignment_interval_ms: int = 1000
    group_consumer_max_size: int = 2_147_483_647
    group_consumer_assignors: frozenset[str] = frozenset({"uniform", "range"})
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_share_session_timeout_ms: int = 45_000
    group_share_heartbeat_interval_ms: int = 5000
    group_share_assignment_interval_ms: int = 1000
    group_share_max_size: int = 200
    group_share_delivery_count_limit: int = 5
    group_share_record_lock_duration_ms: int = 30_000
    group_share_partition_max_record_locks: int = 2000
    group_share_max_share_sessions: int = 2000
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 1
    transaction_state_log_segment_bytes: int = 104_857_600
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_partition_verification_enable: bool = True
    share_coordinator_state_topic_num_partitions: int = 50
    share_coordinator_state_topic_replication_factor: int = 1
    share_coordinator_state_topic_segment_bytes: int = 104_857_600
    remote_log_manager_task_interval_ms: int = 30_000
    remote_fetch_max_wait_ms: int = 500
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = 1
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 25_165_824
    """Memory for the maps of newest offsets (Kafka: 128 MiB); keys that it has no room for are left to a further round."""
    log_cleaner_io_buffer_size: int = 2_097_152
    """Memory for what compaction reads and writes at once (Kafka: 512 KiB)."""
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = KAFKA_DOUBLE_MAX
    firn_chunk_cache_bytes: int = 1_073_741_824
    """Room on the local disk for chunks fetched from the object store."""
    firn_read_ahead_bytes: int = 268_435_456
    """Bytes of chunks asked for ahead of sequential remote readers, over all of them."""
    firn_log_dir_free_bytes_min: int = 1_073_741_824
    """Below this much free room on the data directory's disk producers get a retriable error."""


# --- definitions ----------------------------------------------------------------------------------------------------


class ConfigType(IntEnum):
    """Type of a setting, with its number in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from, with its number in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class Importance(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Update(Enum):
    """When a broker setting can change."""

    READ_ONLY = "read-only"
    """Only by starting the broker again."""
    CLUSTER_WIDE = "cluster-wide"
    """While it runs, for all brokers; one broker may differ."""


Value = bool | int | float | str | frozenset[str] | None


class Synonym(NamedTuple):
    """A broker-wide name of a topic setting; one of its units is ``factor`` of the topic setting's."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One setting."""

    name: str
    type: ConfigType
    field: str
    """Its field in ``TopicConfig`` or ``BrokerConfig``; empty where several make up one setting (``listeners``)."""
    default: Value
    documentation: str
    """What it does, in a sentence or two; says so where Firn's default is not Kafka's."""
    importance: Importance = Importance.MEDIUM
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    replicas: bool = False
    """A list of ``<partition>:<broker>``, or ``*`` for all."""
    synonyms: tuple[Synonym, ...] = ()
    """Broker-wide names of a topic setting, first found first taken."""
    kafka_default: str | None = None
    """Kafka's default where it is another."""
    update: Update = Update.READ_ONLY

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is ConfigType.PASSWORD


_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")
_NUMBER_RANGE: Final = {
    ConfigType.SHORT: (-SHORT_MAX - 1, SHORT_MAX),
    ConfigType.INT: (-INT_MAX - 1, INT_MAX),
    ConfigType.LONG: (-LONG_MAX - 1, LONG_MAX),
}
_ENUMS: Final[Mapping[str, type[StrEnum]]] = {
    "message.timestamp.type": TimestampType,
    "firn.durability": Durability,
    "firn.tier.compression": TierCompression,
}

_BOOLEAN, _STRING, _INT, _SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
_LONG, _DOUBLE, _LIST, _PASSWORD = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST, ConfigType.PASSWORD
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000


def _documented(documentation: str, default: Value, kafka_default: str | None) -> str:
    if kafka_default is None:
        return documentation
    return f"{documentation} Firn's own default is {format_value(default)}; Kafka's is {kafka_default}."


def _topic(
    name: str,
    kind: ConfigType,
    documentation: str,
    *synonyms: str | Synonym,
    kafka_default: str | None = None,
    **more: Any,
) -> Definition:
    attribute = name.replace(".", "_")
    default = getattr(_TOPIC_BLANK, attribute)
    return Definition(
        name=name,
        type=kind,
        field=attribute,
        default=default,
        documentation=_documented(documentation, default, kafka_default),
        synonyms=tuple(s if isinstance(s, Synonym) else Synonym(s) for s in synonyms or (name,)),
        kafka_default=kafka_default,
        update=Update.CLUSTER_WIDE,
        **more,
    )


def _broker(
    name: str,
    kind: ConfigType,
    documentation: str,
    *,
    attribute: str | None = None,
    kafka_default: str | None = None,
    default: Value = None,
    **more: Any,
) -> Definition:
    attribute = name.replace(".", "_") if attribute is None else attribute
    if attribute:
        default = getattr(_BROKER_BLANK, attribute)
    return Definition(
        name=name,
        type=kind,
        field=attribute,
        default=default,
        documentation=_documented(documentation, default, kafka_default),
        kafka_default=kafka_default,
        **more,
    )


def format_value(value: Value) -> str | None:
    """A value as Kafka writes it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case frozenset():
            return ",".join(sorted(value))
        case float():
            return str(value).replace("e+", "E")
        case _:
            return str(value)


_TOPIC_BLANK: Final = TopicConfig()
_BROKER_BLANK: Final = BrokerConfig()

TOPIC_DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in (
            _topic(
                "cleanup.policy",
                _LIST,
                "What becomes of old segments: delete removes them by retention.*, compact keeps the newest record of every "
                "key, both do both, an empty list keeps everything for ever.",
                "log.cleanup.policy",
                choices=("compact", "delete"),
            ),
            _topic(
                "compression.type",
                _STRING,
                "Codec that batches are stored in; producer keeps what the producer chose, uncompressed unpacks them.",
                choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            ),
            _topic(
                "compression.gzip.level",
                _INT,
                "Level of gzip where compression.type is gzip: 1 to 9, or -1 for the library's default.",
                minimum=-1,
                maximum=9,
            ),
            _topic(
                "compression.lz4.level",
                _INT,
                "Level of lz4 where compression.type is lz4; 9 is its fast mode.",
                minimum=1,
                maximum=17,
            ),
            _topic(
                "compression.zstd.level",
                _INT,
                "Level of zstd where compression.type is zstd; negative levels are faster.",
                minimum=-131072,
                maximum=22,
            ),
            _topic(
                "delete.retention.ms",
                _LONG,
                "How long a compacted topic keeps tombstones, so that a reader from the start sees every deletion.",
                "log.cleaner.delete.retention.ms",
                minimum=0,
            ),
            _topic(
                "file.delete.delay.ms",
                _LONG,
                "How long the files of a deleted segment stay on disk under another name, for readers that are in them.",
                "log.segment.delete.delay.ms",
                minimum=0,
            ),
            _topic(
                "flush.messages",
                _LONG,
                "Records after which a partition is synced to disk; with firn.durability=disk producers wait for it too.",
                "log.flush.interval.messages",
                minimum=1,
            ),
            _topic(
                "flush.ms",
                _LONG,
                "Time after which a partition's new records are synced to disk.",
                "log.flush.interval.ms",
                "log.flush.scheduler.interval.ms",
                minimum=0,
            ),
            _topic(
                "follower.replication.throttled.replicas",
                _LIST,
                "Replicas whose fetching is held to a rate. (Kept and shown; with one replica there is nothing to hold back.)",
                replicas=True,
            ),
            _topic(
                "leader.replication.throttled.replicas",
                _LIST,
                "Replicas whose serving of followers is held to a rate. (Kept and shown, as above.)",
                replicas=True,
            ),
            _topic(
                "index.interval.bytes",
                _INT,
                "Bytes of log between two entries of the local offset index.",
                "log.index.interval.bytes",
                minimum=0,
            ),
            _topic(
                "max.compaction.lag.ms",
                _LONG,
                "Longest time that a record of a compacted topic may stay out of reach of compaction.",
                "log.cleaner.max.compaction.lag.ms",
                minimum=1,
            ),
            _topic(
                "max.message.bytes",
                _INT,
                "Largest record batch that is taken, in bytes and as it is sent (compressed).",
                "message.max.bytes",
                minimum=0,
            ),
            _topic(
                "message.timestamp.after.max.ms",
                _LONG,
                "How far in the broker's future a record's own timestamp may lie.",
                "log.message.timestamp.after.max.ms",
                minimum=0,
            ),
            _topic(
                "message.timestamp.before.max.ms",
                _LONG,
                "How far in the broker's past a record's own timestamp may lie.",
                "log.message.timestamp.before.max.ms",
                minimum=0,
            ),
            _topic(
                "message.timestamp.type",
                _STRING,
                "Whether a record's time is its producer's (CreateTime) or the broker's when it is stored (LogAppendTime).",
                "log.message.timestamp.type",
                choices=tuple(TimestampType),
            ),
            _topic(
                "min.cleanable.dirty.ratio",
                _DOUBLE,
                "Share of a compacted log that must be new before it is compacted again.",
                "log.cleaner.min.cleanable.ratio",
                minimum=0,
                maximum=1,
            ),
            _topic(
                "min.compaction.lag.ms",
                _LONG,
                "Shortest time that a record of a compacted topic is left as it is.",
                "log.cleaner.min.compaction.lag.ms",
                minimum=0,
            ),
            _topic(
                "min.insync.replicas",
                _INT,
                "In-sync replicas that must hold a record before a producer with acks=all is answered.",
                minimum=1,
            ),
            _topic(
                "preallocate",
                _BOOLEAN,
                "Whether a new segment's file is made at its full size. (Kept and shown; a file grows with what is written to it.)",
                "log.preallocate",
            ),
            _topic(
                "retention.bytes",
                _LONG,
                "Size of a partition, over both tiers, beyond which its oldest segments are deleted; -1 is no limit.",
                "log.retention.bytes",
            ),
            _topic(
                "retention.ms",
                _LONG,
                "Age beyond which segments are deleted from both tiers; -1 keeps them for ever.",
                "log.retention.ms",
                Synonym("log.retention.minutes", _MINUTE_MS),
                Synonym("log.retention.hours", _HOUR_MS),
                minimum=-1,
            ),
            _topic(
                "segment.bytes",
                _INT,
                "Size at which a segment is closed and becomes ready to be tiered.",
                "log.segment.bytes",
                minimum=1024 * 1024,
            ),
            _topic(
                "segment.index.bytes",
                _INT,
                "Size of a local offset index at which its segment is closed.",
                "log.index.size.max.bytes",
                minimum=4,
            ),
            _topic(
                "segment.jitter.ms",
                _LONG,
                "Most that is taken off segment.ms at random, so that partitions do not all roll at once.",
                "log.roll.jitter.ms",
                Synonym("log.roll.jitter.hours", _HOUR_MS),
                minimum=0,
            ),
            _topic(
                "segment.ms",
                _LONG,
                "Age at which a segment is closed even if it is small.",
                "log.roll.ms",
                Synonym("log.roll.hours", _HOUR_MS),
                minimum=1,
            ),
            _topic(
                "unclean.leader.election.enable",
                _BOOLEAN,
                "Whether a replica that is not in sync may become leader, at the price of losing records.",
            ),
            _topic(
                "remote.storage.enable",
                _BOOLEAN,
                "Whether closed segments go to the object store. A compacted topic stays local: false is its default.",
                kafka_default="false",
            ),
            _topic(
                "local.retention.bytes",
                _LONG,
                "Local bytes of a partition beyond which segments that are in the object store leave the local disk; -2 is "
                "as retention.bytes.",
                "log.local.retention.bytes",
                minimum=-2,
            ),
            _topic(
                "local.retention.ms",
                _LONG,
                "Age beyond which segments that are in the object store leave the local disk; -2 is as retention.ms. Where "
                "it is not set it is never more than retention.ms.",
                "log.local.retention.ms",
                kafka_default="-2",
                minimum=-2,
            ),
            _topic(
                "remote.log.copy.disable",
                _BOOLEAN,
                "Stops tiering: what is in the object store can still be read and expires, nothing new goes there.",
            ),
            _topic(
                "remote.log.delete.on.disable",
                _BOOLEAN,
                "Says that what is in the object store alone may be deleted when remote.storage.enable becomes false; what is on "
                "the local disk too stays in both until it expires.",
            ),
            _topic(
                "firn.durability",
                _STRING,
                "When a record counts as stored: memory is in the operating system's page cache, which survives a crash of "
                "the broker but not of the machine; disk is after fdatasync. (object is not available in this version.)",
                importance=Importance.HIGH,
                choices=tuple(Durability),
            ),
            _topic(
                "firn.tier.max.lag.ms",
                _LONG,
                "Age at which a segment with records is closed, even without new appends, so that it can be tiered.",
                minimum=1,
            ),
            _topic(
                "firn.tier.chunk.bytes",
                _INT,
                "Bytes of whole batches that make up a chunk of a segment object: the unit of reading and caching.",
                minimum=64 * 1024,
                maximum=CHUNK_BYTES_MAX,
            ),
            _topic(
                "firn.tier.compression",
                _STRING,
                "How chunks are stored: zstd, none, or auto, which leaves chunks of compressed batches as they are.",
                choices=tuple(TierCompression),
            ),
            _topic(
                "firn.remote.delete.delay.ms",
                _LONG,
                "How long an object stays in the store after its segment was given up, for readers that are in it.",
                minimum=0,
            ),
        )
    }
)
"""Every setting that a topic can carry, by name."""

assert {definition.field for definition in TOPIC_DEFINITIONS.values()} == {f.name for f in fields(TopicConfig)}

BROKER_DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in (
            _broker(
                "node.id",
                _INT,
                "Number of this broker, different from every other's in the cluster.",
                importance=Importance.HIGH,
                minimum=0,
                kafka_default="none",
            ),
            _broker("broker.rack", _STRING, "Rack or availability zone of this broker; replicas are spread over them."),
            _broker(
                "log.dirs",
                _STRING,
                "Directory of the local partition logs.",
                attribute="data_dir",
                importance=Importance.HIGH,
                kafka_default="/tmp/kafka-logs",
            ),
            _broker(
                "firn.store.url",
                _STRING,
                "Object store of the cluster: file:///path or s3://bucket/prefix. By default a directory beside log.dirs.",
                attribute="store_url",
                importance=Importance.HIGH,
            ),
            _broker(
                "listeners",
                _LIST,
                "Address that clients connect to.",
                attribute="",
                default="PLAINTEXT://127.0.0.1:9092",
                kafka_default="PLAINTEXT://:9092",
                importance=Importance.HIGH,
            ),
            _broker(
                "advertised.listeners",
                _LIST,
                "Address that clients are told to connect to; by default the one that is listened on.",
                attribute="",
                importance=Importance.HIGH,
            ),
            _broker("firn.http.listen", _STRING, "Address of the HTTP interface, or off.", attribute="http_address"),
            _broker(
                "firn.redis.url",
                _PASSWORD,
                "Redis for liveness in a cluster of several brokers; one broker alone needs none.",
                attribute="redis_url",
            ),
            _broker(
                "num.partitions",
                _INT,
                "Partitions of a topic whose creator does not say.",
                minimum=1,
            ),
            _broker(
                "default.replication.factor",
                _INT,
                "Replicas of a topic whose creator does not say.",
                minimum=1,
                maximum=SHORT_MAX,
            ),
            _broker(
                "auto.create.topics.enable",
                _BOOLEAN,
                "Whether a client that asks for a topic's metadata, and allows it, creates the topic.",
                importance=Importance.HIGH,
            ),
            _broker(
                "socket.request.max.bytes",
                _INT,
                "Largest request; a larger one closes its connection.",
                importance=Importance.HIGH,
                minimum=1024,
            ),
            _broker(
                "socket.send.buffer.bytes",
                _INT,
                "The kernel's send buffer of each of many connections that fetch, up to four times as much of each of a few; "
                "-1: as large as the kernel likes, for readers far away.",
                importance=Importance.HIGH,
                minimum=-1,
            ),
            _broker(
                "queued.max.request.bytes",
                _LONG,
                "Memory for requests that are still arriving, over all connections; reading waits beyond it. -1: no limit.",
                minimum=-1,
                kafka_default="-1",
            ),
            _broker(
                "connections.max.idle.ms",
                _LONG,
                "Time after which a connection without requests is closed; -1 is never.",
                minimum=-1,
            ),
            _broker(
                "max.connections",
                _INT,
                "Connections at a time, and never more than half of the files that the process may open; further ones wait until "
                "others are closed.",
                minimum=0,
            ),
            _broker(
                "fetch.max.bytes",
                _INT,
                "Most bytes of records in one answer to a Fetch, whatever the client allows.",
                minimum=1024,
            ),
            _broker(
                "max.incremental.fetch.session.cache.slots",
                _INT,
                "Incremental fetch sessions that are kept at a time.",
                minimum=0,
            ),
            _broker(
                "max.request.partition.size.limit",
                _INT,
                "Most partitions in one answer to DescribeTopicPartitions.",
                minimum=1,
            ),
            _broker(
                "producer.id.expiration.ms",
                _INT,
                "Time after which an idempotent producer that writes nothing is forgotten.",
                importance=Importance.LOW,
                minimum=1,
            ),
            *(
                definition
                for prefix, what in (
                    ("offsets.topic", "committed offsets and groups"),
                    ("transaction.state.log", "the state of transactions"),
                    ("share.coordinator.state.topic", "the state of share groups"),
                )
                for definition in (
                    _broker(
                        f"{prefix}.num.partitions",
                        _INT,
                        f"Partitions of the topic of {what}, when it is made; it must not change afterwards.",
                        importance=Importance.HIGH,
                        minimum=1,
                    ),
                    _broker(
                        f"{prefix}.replication.factor",
                        _SHORT,
                        f"Replicas of the topic of {what}, when it is made.",
                        importance=Importance.HIGH,
                        minimum=1,
                        kafka_default="3",
                    ),
                    _broker(
                        f"{prefix}.segment.bytes",
                        _INT,
                        f"Size of the segments of the topic of {what}, when it is made: small, so that it is soon compacted.",
                        importance=Importance.HIGH,
                        minimum=1024,
                    ),
                )
            ),
            _broker(
                "transaction.max.timeout.ms",
                _INT,
                "Longest timeout that a producer may ask for its transactions; what is open longer than its timeout is aborted.",
                importance=Importance.HIGH,
                minimum=1,
            ),
            _broker(
                "transactional.id.expiration.ms",
                _INT,
                "Time after which a transactional id is forgotten that began and ended nothing.",
                importance=Importance.HIGH,
                minimum=1,
            ),
            _broker(
                "transaction.remove.expired.transaction.cleanup.interval.ms",
                _INT,
                "Time between two looks for transactional ids that are past their expiration.",
                importance=Importance.LOW,
                minimum=1,
            ),
            _broker(
                "transaction.partition.verification.enable",
                _BOOLEAN,
                "Whether a batch that begins a transaction in a partition is refused unless the transaction may write there.",
                importance=Importance.LOW,
            ),
            _broker(
                "offsets.retention.minutes",
                _INT,
                "Time after which committed offsets go that nobody uses: of a group without members, or of a topic that a "
                "group no longer reads.",
                importance=Importance.HIGH,
                minimum=1,
            ),
            _broker(
                "offsets.retention.check.interval.ms",
                _LONG,
                "Time between two looks for committed offsets that are past their retention.",
                importance=Importance.HIGH,
                minimum=1,
            ),
            _broker(
                "offset.metadata.max.bytes",
                _INT,
                "Longest metadata that may be committed with an offset.",
                importance=Importance.HIGH,
            ),
            _broker(
                "group.min.session.timeout.ms",
                _INT,
                "Shortest session timeout that a member of a classic group may ask for.",
            ),
            _broker(
                "group.max.session.timeout.ms",
                _INT,
                "Longest session timeout that a member of a classic group may ask for.",
            ),
            _broker(
                "group.initial.rebalance.delay.ms",
                _INT,
                "How long an empty classic group waits for more members after the first before it assigns partitions.",
            ),
            _broker(
                "group.max.size",
                _INT,
                "Most members of a classic group.",
                minimum=1,
            ),
            _broker(
                "group.consumer.session.timeout.ms",
                _INT,
                "Time after which a member of a consumer group that has sent no heartbeat is taken out of it (KIP-848).",
                minimum=1,
            ),
            _broker(
                "group.consumer.heartbeat.interval.ms",
                _INT,
                "Time between two heartbeats that members of consumer groups are told to keep.",
                minimum=1,
            ),
            _broker(
                "group.consumer.assignment.interval.ms",
                _INT,
                "Time between two computations of what members of a consumer group should read; members that join together "
                "are dealt with together (KIP-1263). 0 computes whenever something has changed.",
                minimum=0,
                maximum=15_000,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "group.consumer.max.size",
                _INT,
                "Most members of a consumer group.",
                minimum=1,
            ),
            _broker(
                "group.consumer.assignors",
                _LIST,
                "Assignors that consumer groups can use: uniform balances and moves little, range keeps partitions of equal "
                "number together. A group that does not say uses uniform if it is here.",
                choices=("uniform", "range"),
            ),
            _broker(
                "group.consumer.migration.policy",
                _STRING,
                "Whether a group may change its protocol while it has members: to the consumer protocol (upgrade), back to "
                "the classic one (downgrade), both (bidirectional), or neither (disabled).",
                choices=("bidirectional", "upgrade", "downgrade", "disabled"),
            ),
            _broker(
                "group.share.session.timeout.ms",
                _INT,
                "Time after which a member of a share group that has sent no heartbeat is taken out of it (KIP-932).",
                minimum=1,
            ),
            _broker(
                "group.share.heartbeat.interval.ms",
                _INT,
                "Time between two heartbeats that members of share groups are told to keep.",
                minimum=1,
            ),
            _broker(
                "group.share.assignment.interval.ms",
                _INT,
                "As group.consumer.assignment.interval.ms, of share groups.",
                minimum=0,
                maximum=15_000,
                update=Update.CLUSTER_WIDE,
            ),
            _broker("group.share.max.size", _SHORT, "Most members of a share group.", minimum=1, maximum=1000),
            _broker(
                "group.share.delivery.count.limit",
                _INT,
                "Times that a record is delivered to members of a share group before it is given up.",
                minimum=2,
                maximum=10,
            ),
            _broker(
                "group.share.record.lock.duration.ms",
                _INT,
                "Time that a member of a share group has for a record before another may get it.",
                minimum=1000,
                maximum=3_600_000,
            ),
            _broker(
                "group.share.partition.max.record.locks",
                _INT,
                "Most records of a partition between the oldest that a share group is not done with and the newest that one "
                "of its members was given.",
                minimum=100,
                maximum=10_000,
            ),
            _broker(
                "group.share.max.share.sessions",
                _INT,
                "Most share sessions of a broker: one for each member of a share group that reads from it.",
                minimum=1,
            ),
            _broker(
                "group.consumer.regex.refresh.interval.ms",
                _INT,
                "Time after which a subscribed regular expression is matched against all topics again. New and deleted "
                "topics are noticed at once.",
                minimum=10_000,
            ),
            _broker(
                "remote.log.manager.task.interval.ms",
                _LONG,
                "Time between two looks at a partition for segments to delete from the object store and from the local disk, if "
                "log.retention.check.interval.ms is not shorter. Segments are copied to the store as they roll.",
                minimum=1,
            ),
            _broker(
                "remote.fetch.max.wait.ms",
                _INT,
                "Longest that a Fetch waits for data from the object store, if the client would wait longer; it is answered with "
                "what there is by then, and what arrives later is kept for the next one.",
                minimum=1,
            ),
            _broker(
                "log.retention.check.interval.ms",
                _LONG,
                "Time between two looks for segments that are past their retention. One look is at both tiers: it comes after this "
                "time or after remote.log.manager.task.interval.ms, whichever is shorter.",
                minimum=1,
            ),
            _broker(
                "log.cleaner.enable",
                _BOOLEAN,
                "Whether logs with cleanup.policy compact are compacted; if not, they grow for ever, internal topics too.",
            ),
            _broker(
                "log.cleaner.threads",
                _INT,
                "Logs compacted at the same time, each by a process of its own; 0 compacts none.",
                minimum=0,
                maximum=LOG_CLEANER_THREADS_MAX,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.backoff.ms",
                _LONG,
                "Time until the log cleaner looks again when no compacted log was due.",
                minimum=0,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.dedupe.buffer.size",
                _LONG,
                "Memory for the maps from keys to newest offsets of all log.cleaner.threads; a log with more keys takes "
                "several rounds.",
                minimum=1024 * 1024,
                kafka_default="134217728",
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.io.buffer.size",
                _INT,
                "Memory for what compaction reads and writes at once, over all log.cleaner.threads; more only for a batch "
                "that is larger.",
                minimum=0,
                kafka_default="524288",
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.io.buffer.load.factor",
                _DOUBLE,
                "Share of the map from keys to newest offsets that may be taken: the more, the longer a key is looked for.",
                minimum=0.01,
                maximum=0.99,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.io.max.bytes.per.second",
                _DOUBLE,
                "Most bytes a second that compaction reads and writes together.",
                minimum=1,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "firn.chunk.cache.bytes",
                _LONG,
                "Room on the local disk for chunks that were fetched from the object store.",
                minimum=0,
            ),
            _broker(
                "firn.read.ahead.bytes",
                _LONG,
                "Bytes fetched from the object store ahead of sequential readers, over all of them.",
                minimum=0,
            ),
            _broker(
                "firn.log.dir.free.bytes.min",
                _LONG,
                "Free room on the disk of log.dirs below which producers get a retriable error.",
                minimum=0,
            ),
        )
    }
)
"""Settings of a broker that are not defaults of topic settings, by name."""

_TOPIC_BY_SYNONYM: Final[Mapping[str, tuple[Definition, Synonym]]] = {
    synonym.name: (definition, synonym) for definition in TOPIC_DEFINITIONS.values() for synonym in definition.synonyms
}


# --- values ---------------------------------------------------------------------------------------------------------


def parse_value(definition: Definition, text: str, *, name: str | None = None) -> Value:
    """The value that ``text`` stands for; ``name`` is the synonym it was given under.

    Raises: RequestRejected INVALID_CONFIG in Kafka's words.
    """
    name = name or definition.name
    trimmed = text.strip()
    match definition.type:
        case ConfigType.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise _invalid(name, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            low, high = _NUMBER_RANGE[definition.type]
            if not re.fullmatch(r"[+-]?[0-9]{1,20}", trimmed) or not low <= int(trimmed) <= high:
                raise _invalid(name, text, f"Not a number of type {definition.type.name}")
            return _in_range(definition, name, int(trimmed))
        case ConfigType.DOUBLE:
            if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", trimmed):
                raise _invalid(name, text, "Not a number of type DOUBLE")
            return _in_range(definition, name, float(trimmed))
        case ConfigType.LIST:
            parts = [part.strip() for part in trimmed.split(",")] if trimmed else []
            for part in parts:
                _check_choice(definition, name, part)
            if definition.replicas and parts != ["*"] and not all(_REPLICA.fullmatch(part) for part in parts):
                raise _invalid(
                    name,
                    text,
                    f"{name} must be the literal '*' or a list of replicas in the following format: "
                    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
                )
            if len(set(parts)) != len(parts):
                raise _invalid(name, text, f"Configuration '{name}' values must not be duplicated.")
            return frozenset(parts)
        case _:
            _check_choice(definition, name, trimmed)
            enum = _ENUMS.get(definition.name)
            return enum(trimmed) if enum else trimmed


def _in_range(definition: Definition, name: str, number: float) -> float:
    if definition.minimum is not None and number < definition.minimum:
        raise _invalid(name, number, f"Value must be at least {definition.minimum}")
    if definition.maximum is not None and number > definition.maximum:
        raise _invalid(name, number, f"Value must be no more than {definition.maximum}")
    return number


def _check_choice(definition: Definition, name: str, text: str) -> None:
    if definition.choices and text not in definition.choices:
        raise _invalid(name, text, f"String must be one of: {', '.join(definition.choices)}")


def _invalid(name: str, value: object, why: str) -> RequestRejected:
    return RequestRejected(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {why}")


def _parse_synonym(name: str, text: str) -> tuple[Definition, Value]:
    """The topic setting that a broker-wide name stands for, and its value in the topic setting's unit."""
    definition, synonym = _TOPIC_BY_SYNONYM[name]
    if synonym.factor == 1:
        return definition, parse_value(definition, text, name=name)
    coarse = replace(definition, type=_INT)
    number = parse_value(coarse, text, name=name)
    assert isinstance(number, int)
    return definition, number * synonym.factor if number >= 0 else number


# --- resolving ------------------------------------------------------------------------------------------------------


def resolve_topic_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """The effective settings of a topic with these overrides on a broker.

    ``broker`` already bears its dynamic overrides (``apply_broker_overrides``). Names that are not known are left out: they
    come from a newer version and were checked there.

    Raises: RequestRejected INVALID_CONFIG for a value that cannot be read.
    """
    values: dict[str, Any] = {
        definition.field: parse_value(definition, text)
        for name, text in overrides.items()
        if (definition := TOPIC_DEFINITIONS.get(name)) is not None
    }
    config = replace(broker.topic_defaults, **values)
    bent: dict[str, Any] = {}
    if config.compacted and "remote.storage.enable" not in overrides:
        bent["remote_storage_enable"] = False
    if "local.retention.ms" not in overrides and not _local_fits(
        config, config.local_retention_ms, config.retention_ms
    ):
        bent["local_retention_ms"] = DERIVED
    if "local.retention.bytes" not in overrides and not _local_fits(
        config, config.local_retention_bytes, config.retention_bytes
    ):
        bent["local_retention_bytes"] = DERIVED
    return replace(config, **bent) if bent else config


def _local_fits(config: TopicConfig, local: int, whole: int) -> bool:
    """Whether a default of ``local.retention.*`` may stand beside a topic's ``retention.*``."""
    if config.remote_log_copy_disable:
        return local in (DERIVED, whole)
    return whole < 0 or local == DERIVED or 0 <= local <= whole


def validate_topic_configs(
    overrides: Mapping[str, str | None],
    *,
    broker: BrokerConfig | None = None,
    existing: Mapping[str, str] | None = None,
) -> TopicConfig:
    """Check all the overrides that a topic is to have; answers the settings they come to.

    ``existing`` are the overrides it has now, None for a topic that is being created.

    Raises: RequestRejected INVALID_CONFIG in Kafka's words: an unknown name, a value of the wrong type or out of range,
    settings that contradict each other, tiering turned off without saying that the tiered data may go (KIP-950).
    """
    broker = broker or _BROKER_BLANK
    given: dict[str, str] = {}
    for name, text in overrides.items():
        if name not in TOPIC_DEFINITIONS:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if text is None:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
        given[name] = text
    config = resolve_topic_config(broker, given)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})",
        )
    if config.firn_durability is Durability.OBJECT:
        raise _invalid("firn.durability", "object", "It is not available in this version; use memory or disk.")
    if config.remote_storage_enable and config.compacted:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list.",
        )
    if config.tiered:
        _check_local_retention("ms", config.local_retention_ms, config.retention_ms, config.remote_log_copy_disable)
        _check_local_retention(
            "bytes", config.local_retention_bytes, config.retention_bytes, config.remote_log_copy_disable
        )
    elif (
        existing is not None
        and not config.remote_log_delete_on_disable
        and resolve_topic_config(broker, existing).tiered
    ):
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            "Remote storage cannot be turned off while the topic's remote data is kept: to keep it and copy nothing more, "
            "set remote.storage.enable=true,remote.log.copy.disable=true; to delete it, set "
            "remote.storage.enable=false,remote.log.delete.on.disable=true.",
        )
    return config


def _check_local_retention(unit: str, local: int, whole: int, copy_disabled: bool) -> None:
    if local == DERIVED:
        return
    if copy_disabled and local != whole:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            f"While remote.log.copy.disable is true, local.retention.{unit} must be -2 or equal retention.{unit}, because "
            "nothing more is copied to the object store.",
        )
    if whole < 0:
        return
    if local == -1:
        raise _invalid(
            f"local.retention.{unit}", local, f"Value must not be -1 as retention.{unit} value is set as {whole}."
        )
    if local > whole:
        raise _invalid(
            f"local.retention.{unit}", local, f"Value must not be more than retention.{unit} property value: {whole}"
        )


def check_broker_config(broker: BrokerConfig) -> None:
    """Refuse what a broker must not start with, its topic defaults among it. Raises: ConfigError."""
    try:
        validate_topic_configs({}, broker=broker)
    except RequestRejected as error:
        raise ConfigError(f"The broker's topic defaults cannot be used: {error}") from None


# --- dynamic settings of brokers ------------------------------------------------------------------------------------


def apply_broker_overrides(broker: BrokerConfig, overrides: Mapping[str, str]) -> BrokerConfig:
    """``broker`` with dynamic overrides: first those of all brokers are applied, then those of this one.

    Names that are not known, or can no longer be changed, are left out.

    Raises: RequestRejected INVALID_CONFIG for a value that cannot be read.
    """
    topic: dict[str, Any] = {}
    for definition in TOPIC_DEFINITIONS.values():
        for synonym in definition.synonyms:
            if synonym.name in overrides:
                topic[definition.field] = _parse_synonym(synonym.name, overrides[synonym.name])[1]
                break
    own: dict[str, Any] = {
        definition.field: parse_value(definition, overrides[name])
        for name, definition in BROKER_DEFINITIONS.items()
        if name in overrides and definition.update is not Update.READ_ONLY
    }
    if topic:
        own["topic_defaults"] = replace(broker.topic_defaults, **topic)
    return replace(broker, **own) if own else broker


def validate_broker_configs(overrides: Mapping[str, str | None], *, broker: BrokerConfig | None = None) -> BrokerConfig:
    """Check the dynamic overrides that one broker, or all, are to have; answers what they come to on ``broker``.

    Raises: RequestRejected INVALID_CONFIG for an unknown name or a bad value; INVALID_REQUEST for a setting that only
    changes by starting the broker again.
    """
    given: dict[str, str] = {}
    for name, text in overrides.items():
        definition = BROKER_DEFINITIONS.get(name)
        if definition is None and name not in _TOPIC_BY_SYNONYM:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
        if definition is not None and definition.update is Update.READ_ONLY:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {name}")
        if text is None:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Null value not supported for broker configs: {name}")
        given[name] = text
        if name in _TOPIC_BY_SYNONYM:
            _parse_synonym(name, text)
    effective = apply_broker_overrides(broker or _BROKER_BLANK, given)
    validate_topic_configs({}, broker=effective)
    return effective


# --- describing -----------------------------------------------------------------------------------------------------


class SourcedValue(NamedTuple):
    """A value of a setting under one of its names, and where it was said."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """Everything there is to say of one setting of one resource."""

    definition: Definition
    name: str
    value: str | None
    """The effective value; None if there is none or it is sensitive."""
    source: ConfigSource
    read_only: bool
    synonyms: Sequence[SourcedValue]
    """Every place that says something, the one that counts first."""


def describe_topic(
    broker: BrokerConfig,
    overrides: Mapping[str, str],
    *,
    broker_overrides: Mapping[str, str] = MappingProxyType({}),
    cluster_overrides: Mapping[str, str] = MappingProxyType({}),
) -> list[DescribedConfig]:
    """Every setting of a topic, by name. ``broker`` is as it was started, without dynamic overrides."""
    effective_broker = apply_broker_overrides(apply_broker_overrides(broker, cluster_overrides), broker_overrides)
    effective = resolve_topic_config(effective_broker, overrides)
    described = []
    for name, definition in sorted(TOPIC_DEFINITIONS.items()):
        said = []
        if name in overrides:
            said.append(SourcedValue(name, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        said += _said_by_brokers(definition, broker, broker_overrides, cluster_overrides)
        value = overrides.get(name) or format_value(getattr(effective, definition.field))
        described.append(DescribedConfig(definition, name, value, said[0].source, False, said))
    return described


def describe_broker(
    broker: BrokerConfig,
    *,
    broker_overrides: Mapping[str, str] = MappingProxyType({}),
    cluster_overrides: Mapping[str, str] = MappingProxyType({}),
) -> list[DescribedConfig]:
    """Every setting of a broker, by name. ``broker`` is as it was started, without dynamic overrides."""
    effective = apply_broker_overrides(apply_broker_overrides(broker, cluster_overrides), broker_overrides)
    layers = (
        (broker_overrides, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (cluster_overrides, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    )
    described = []
    for name, definition in BROKER_DEFINITIONS.items():
        said = [SourcedValue(name, layer[name], source) for layer, source in layers if name in layer]
        static = _static_text(broker, definition)
        if static != format_value(definition.default):
            said.append(SourcedValue(name, static, ConfigSource.STATIC_BROKER_CONFIG))
        if definition.default is not None or not said:
            said.append(SourcedValue(name, format_value(definition.default), ConfigSource.DEFAULT_CONFIG))
        if definition.sensitive:
            said = [entry._replace(value=None) for entry in said]
        value = said[0].value
        described.append(
            DescribedConfig(definition, name, value, said[0].source, definition.update is Update.READ_ONLY, said)
        )
    for name, (definition, synonym) in _TOPIC_BY_SYNONYM.items():
        said = _said_by_brokers(definition, broker, broker_overrides, cluster_overrides)
        value = _in_unit(getattr(effective.topic_defaults, definition.field), synonym)
        described.append(DescribedConfig(definition, name, value, said[0].source, False, said))
    return sorted(described, key=lambda config: config.name)


def _said_by_brokers(
    definition: Definition,
    broker: BrokerConfig,
    broker_overrides: Mapping[str, str],
    cluster_overrides: Mapping[str, str],
) -> list[SourcedValue]:
    """What brokers say of a topic setting, what counts first."""
    said = [
        SourcedValue(synonym.name, layer[synonym.name], source)
        for layer, source in (
            (broker_overrides, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (cluster_overrides, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        )
        for synonym in definition.synonyms
        if synonym.name in layer
    ]
    static = getattr(broker.topic_defaults, definition.field)
    if static != definition.default:
        said.append(SourcedValue(definition.synonyms[0].name, format_value(static), ConfigSource.STATIC_BROKER_CONFIG))
    coarsest = definition.synonyms[-1]
    said.append(SourcedValue(coarsest.name, _in_unit(definition.default, coarsest), ConfigSource.DEFAULT_CONFIG))
    return said


def _in_unit(value: Value, synonym: Synonym) -> str | None:
    """A topic setting's value in the unit of a broker-wide name; None where it is no whole number of them."""
    if synonym.factor == 1 or not isinstance(value, int) or value < 0:
        return format_value(value)
    return None if value % synonym.factor else str(value // synonym.factor)


def _static_text(broker: BrokerConfig, definition: Definition) -> str | None:
    if definition.name == "listeners":
        return f"PLAINTEXT://{broker.listen_host}:{broker.listen_port}"
    if definition.name == "advertised.listeners":
        if not broker.advertised_host:
            return None
        return f"PLAINTEXT://{broker.advertised_host}:{broker.advertised_port or broker.listen_port}"
    return format_value(getattr(broker, definition.field))


def broker_setting_names() -> Iterable[str]:
    """Every name by which something can be set for a broker."""
    return (*BROKER_DEFINITIONS, *_TOPIC_BY_SYNONYM)
