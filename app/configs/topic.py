"""The settings of a topic. Each is declared once, as a field: ``topic_definitions.py`` makes the table of them.

Tests: ``tests/test_configs.py``, ``tests/test_declaring.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.configs.declaring import setting
from app.configs.kinds import ConfigType, Importance, Synonym
from app.configs.numbers import LONG_MAX
from app.core.limits import CHUNK_BYTES_MAX, SEGMENT_BYTES_MIN

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000

DERIVED: Final = -2
"""``local.retention.*``: as ``retention.*``."""


class Durability(StrEnum):
    """When a record counts as stored (``firn.durability``)."""

    MEMORY = "memory"
    """In the page cache: survives a kill of the process, not a loss of power. Kafka's default."""
    DISK = "disk"
    """fdatasync of the bytes, and of a new file's directory entry, has returned."""
    OBJECT = "object"
    """In the write-ahead log of its leader, in the object store (ADR 0037)."""


class InternalDurability(StrEnum):
    """``firn.durability`` of new internal topics (``firn.internal.durability``)."""

    AUTO = "auto"
    """``object`` if it is the brokers' default or that of any topic, else as other topics."""
    MEMORY = "memory"
    DISK = "disk"
    OBJECT = "object"


class TimestampType(StrEnum):
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class ProduceValidation(StrEnum):
    """Checks of a produced batch before it is appended (``firn.produce.validation``)."""

    BATCH = "batch"
    """The header and the checksum."""
    RECORDS = "records"
    """Every record too, as Apache Kafka does."""


class SchemaValidation(StrEnum):
    """Checks of a record's schema where a topic has its schemas checked (``firn.schema.validation``)."""

    ID = "id"
    """The id, in the header or the payload."""
    FULL = "full"
    """The payload too, by the schema."""


class SubjectNameStrategy(StrEnum):
    """The subject that must know the schema of a record (``confluent.value.subject.name.strategy``)."""

    TOPIC = "io.confluent.kafka.serializers.subject.TopicNameStrategy"
    """``<topic>-key`` or ``<topic>-value``."""
    RECORD = "io.confluent.kafka.serializers.subject.RecordNameStrategy"
    """The full name of the record that the schema defines."""
    TOPIC_RECORD = "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy"
    """``<topic>-<full name of the record>``."""


class TierCompression(StrEnum):
    """How chunks of a segment object are stored (``firn.tier.compression``)."""

    AUTO = "auto"
    """zstd, except for chunks whose batches are already compressed, and except if the store is a local directory: there a verbatim
    chunk is served from the object's own file."""
    NONE = "none"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Effective settings of one topic, from its own overrides, the broker's defaults and Firn's defaults."""

    cleanup_policy: frozenset[str] = setting(
        frozenset({"delete"}),
        _LIST,
        "Treatment of old segments. delete: delete them by retention.*. compact: keep the newest record of every key. Both "
        "values together do both. An empty list keeps all records for ever.",
        "log.cleanup.policy",
        choices=("compact", "delete"),
    )
    compression_type: str = setting(
        "producer",
        _STRING,
        "Codec of stored batches. producer keeps the producer's codec; uncompressed decompresses the batches.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level: int = setting(
        -1,
        _INT,
        "Compression level if compression.type is gzip: 1 to 9, or -1 for the library's default.",
        minimum=-1,
        maximum=9,
    )
    compression_lz4_level: int = setting(
        9, _INT, "Compression level if compression.type is lz4. 9 is the fast mode.", minimum=1, maximum=17
    )
    compression_zstd_level: int = setting(
        3,
        _INT,
        "Compression level if compression.type is zstd. Negative levels are faster.",
        minimum=-131072,
        maximum=22,
    )
    delete_retention_ms: int = setting(
        86_400_000,
        _LONG,
        "Time that a compacted topic keeps tombstones, so that a reader from the start sees every deletion.",
        "log.cleaner.delete.retention.ms",
        minimum=0,
    )
    file_delete_delay_ms: int = setting(
        60_000,
        _LONG,
        "Time that the files of a deleted segment stay on disk under another name, for readers that still use them.",
        "log.segment.delete.delay.ms",
        minimum=0,
    )
    flush_messages: int = setting(
        LONG_MAX,
        _LONG,
        "Number of records after which a partition is synced to disk. With firn.durability=disk producers wait for "
        "this sync too.",
        "log.flush.interval.messages",
        minimum=1,
    )
    flush_ms: int = setting(
        LONG_MAX,
        _LONG,
        "Time after which a partition's new records are synced to disk.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        minimum=0,
    )
    follower_replication_throttled_replicas: frozenset[str] = setting(
        frozenset(),
        _LIST,
        "Replicas (partition:broker, or * for all) that fetch at follower.replication.throttled.rate while they are out "
        "of sync.",
        replicas=True,
    )
    leader_replication_throttled_replicas: frozenset[str] = setting(
        frozenset(),
        _LIST,
        "Leaders (partition:broker, or * for all) that serve followers out of sync at leader.replication.throttled.rate.",
        replicas=True,
    )
    index_interval_bytes: int = setting(
        4096, _INT, "Bytes of log between two entries of the local offset index.", "log.index.interval.bytes", minimum=0
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX,
        _LONG,
        "Maximum time until a record of a compacted topic becomes eligible for compaction.",
        "log.cleaner.max.compaction.lag.ms",
        minimum=1,
    )
    max_message_bytes: int = setting(
        1_048_588,
        _INT,
        "Maximum size of a record batch in bytes, as the producer sends it (compressed).",
        "message.max.bytes",
        minimum=0,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        _LONG,
        "How far a producer's timestamp may be ahead of the broker's clock.",
        "log.message.timestamp.after.max.ms",
        minimum=0,
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX,
        _LONG,
        "How far a producer's timestamp may be behind the broker's clock.",
        "log.message.timestamp.before.max.ms",
        minimum=0,
    )
    message_timestamp_type: TimestampType = setting(
        TimestampType.CREATE_TIME,
        _STRING,
        "Timestamp of a record: the producer's (CreateTime), or the time at which the broker stores it (LogAppendTime).",
        "log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        _DOUBLE,
        "Share of a compacted log that must be new before the log is compacted again.",
        "log.cleaner.min.cleanable.ratio",
        minimum=0,
        maximum=1,
    )
    min_compaction_lag_ms: int = setting(
        0,
        _LONG,
        "Minimum time that a record of a compacted topic stays uncompacted.",
        "log.cleaner.min.compaction.lag.ms",
        minimum=0,
    )
    min_insync_replicas: int = setting(
        1,
        _INT,
        "Number of in-sync replicas that must have a record before a producer with acks=all gets the acknowledgement. "
        "Never more than the partition's replicas.",
        minimum=1,
    )
    preallocate: bool = setting(
        False,
        _BOOLEAN,
        "Whether the file of a new segment gets its full size at once.",
        "log.preallocate",
        idle="a segment's file grows with what is written to it",
    )
    retention_bytes: int = setting(
        -1,
        _LONG,
        "Maximum size of a partition in both tiers together. Beyond it the oldest segments are deleted. -1: no limit.",
        "log.retention.bytes",
    )
    retention_ms: int = setting(
        604_800_000,
        _LONG,
        "Age at which segments are deleted from both tiers. -1: never.",
        "log.retention.ms",
        Synonym("log.retention.minutes", _MINUTE_MS),
        Synonym("log.retention.hours", _HOUR_MS),
        minimum=-1,
    )
    segment_bytes: int = setting(
        1_073_741_824,
        _INT,
        "Size at which a segment is closed and becomes ready to be tiered.",
        "log.segment.bytes",
        minimum=SEGMENT_BYTES_MIN,
    )
    segment_index_bytes: int = setting(
        10_485_760,
        _INT,
        "Size of the local offset index at which a segment is closed.",
        "log.index.size.max.bytes",
        minimum=4,
    )
    segment_jitter_ms: int = setting(
        0,
        _LONG,
        "Maximum random time that is subtracted from segment.ms, so that partitions do not all roll at once.",
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", _HOUR_MS),
        minimum=0,
    )
    segment_ms: int = setting(
        604_800_000,
        _LONG,
        "Age at which a segment is closed even if it is small.",
        "log.roll.ms",
        Synonym("log.roll.hours", _HOUR_MS),
        minimum=1,
    )
    unclean_leader_election_enable: bool = setting(
        False, _BOOLEAN, "Whether a replica that is not in sync may become leader, although this loses records."
    )
    remote_storage_enable: bool = setting(
        True,
        _BOOLEAN,
        "Whether closed segments are copied to the object store. The default of a compacted topic is false: it stays "
        "local.",
        kafka_default="false",
    )
    local_retention_bytes: int = setting(
        -2,
        _LONG,
        "Maximum size of a partition on the local disk. Beyond it the oldest segments that are in the object store are "
        "deleted from the local disk. -2: as retention.bytes.",
        "log.local.retention.bytes",
        minimum=-2,
    )
    local_retention_ms: int = setting(
        3_600_000,
        _LONG,
        "Age at which segments that are in the object store are deleted from the local disk. -2: as retention.ms. The "
        "default is never more than retention.ms.",
        "log.local.retention.ms",
        kafka_default="-2",
        minimum=-2,
    )
    remote_log_copy_disable: bool = setting(
        False,
        _BOOLEAN,
        "true stops tiering. Nothing more is copied to the object store. Records in the object store can still be "
        "read, and expire.",
    )
    remote_log_delete_on_disable: bool = setting(
        False,
        _BOOLEAN,
        "true allows a loss when remote.storage.enable becomes false: segments that are only in the object store are "
        "deleted. Segments that are also on the local disk stay in both until they expire.",
    )
    firn_durability: Durability = setting(
        Durability.MEMORY,
        _STRING,
        "When a record counts as stored. memory: when it is in the operating system's page cache, which survives a "
        "crash of the broker but not of the machine. disk: after fdatasync. object: when it is in the write-ahead log in "
        "the object store, so that it survives the loss of all brokers and disks. It needs firn.version 3, and a topic "
        "that is tiered; a compacted one is tiered then too, and cannot change back. As the brokers' default, object is of "
        "new topics, which keep it as their own setting; other topics are as with disk.",
        importance=Importance.HIGH,
    )
    firn_wal_linger_ms: int = setting(
        250,
        _LONG,
        "With firn.durability=object: how long a batch waits at most until the write-ahead log's next object is put, so "
        "that many batches share one. Less costs more requests, and answers producers sooner.",
        "wal.linger.ms",
        minimum=1,
        maximum=60_000,
    )
    firn_produce_validation: ProduceValidation = setting(
        ProduceValidation.BATCH,
        _STRING,
        "Checks of a produced batch before it is stored. batch: its header and checksum, at a cost that does not "
        "depend on the number of records. records: also every record, as in Apache Kafka: its encoding, offset and "
        "timestamp. A topic with cleanup.policy=compact always has its records decoded, to check their keys.",
    )
    confluent_key_schema_validation: bool = setting(
        False,
        _BOOLEAN,
        "true: a batch is refused if the key of a record has no id of a schema, or one that the subject does not know. It needs "
        "firn.version 5, and is set on single topics.",
        of_topic_alone=True,
    )
    confluent_value_schema_validation: bool = setting(
        False,
        _BOOLEAN,
        "As confluent.key.schema.validation, for values. A null value passes in a compacted topic, where it deletes a key.",
        of_topic_alone=True,
    )
    confluent_key_subject_name_strategy: SubjectNameStrategy = setting(
        SubjectNameStrategy.TOPIC,
        _STRING,
        "The subject that must know the schemas of keys: that of the topic (TopicNameStrategy), of the record that the schema "
        "defines (RecordNameStrategy), or of both (TopicRecordNameStrategy).",
        of_topic_alone=True,
    )
    confluent_value_subject_name_strategy: SubjectNameStrategy = setting(
        SubjectNameStrategy.TOPIC,
        _STRING,
        "As confluent.key.subject.name.strategy, for values.",
        of_topic_alone=True,
    )
    firn_schema_validation: SchemaValidation = setting(
        SchemaValidation.ID,
        _STRING,
        "How much is checked where confluent.key.schema.validation or confluent.value.schema.validation is true. id: the id of "
        "the schema. full: also that the payload is a value of the schema, which costs CPU for each record.",
        of_topic_alone=True,
    )
    firn_tier_max_lag_ms: int = setting(
        3_600_000,
        _LONG,
        "Age at which a segment with records is closed and can be tiered, even if no more records arrive.",
        minimum=1,
    )
    firn_tier_chunk_bytes: int = setting(
        4 * 1024 * 1024,
        _INT,
        "Size of the chunks of a segment object. A chunk has whole batches, and is the unit of reading and caching.",
        minimum=64 * 1024,
        maximum=CHUNK_BYTES_MAX,
    )
    firn_tier_compression: TierCompression = setting(
        TierCompression.AUTO,
        _STRING,
        "Compression of chunks: zstd, none, or auto. auto does not compress chunks whose batches are compressed already.",
    )
    firn_tier_kms_key_id: str = setting(
        "",
        _STRING,
        "Key of AWS KMS (its id, ARN or alias) that encrypts the topic's segments in the object store from now on. Empty: "
        "the store's own key. Only S3 stores can do this.",
    )
    firn_remote_delete_delay_ms: int = setting(
        60_000,
        _LONG,
        "Time that the object of a deleted segment stays in the store, for readers that still use it.",
        minimum=0,
    )

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def checks_schemas(self) -> bool:
        """Whether produced records must name a schema that the registry knows (ADR 0044)."""
        return self.confluent_key_schema_validation or self.confluent_value_schema_validation

    @property
    def tiered(self) -> bool:
        """Whether segments of the topic go to the object store. Of compacted topics only those for which no disk matters."""
        return self.remote_storage_enable and (not self.compacted or self.firn_durability is Durability.OBJECT)

    @property
    def stays_local(self) -> bool:
        """Whether the local log has everything from the log start on, tiered or not. Compaction reads all of a log."""
        return self.compacted or not self.tiered

    @property
    def local_retention_ms_effective(self) -> int:
        """How long the local copy is kept; -1 for ever. Without a tier the local copy is the only one."""
        if self.stays_local or self.local_retention_ms == DERIVED:
            return self.retention_ms
        return self.local_retention_ms

    @property
    def local_retention_bytes_effective(self) -> int:
        """How many bytes are kept locally; -1 for no limit."""
        if self.stays_local or self.local_retention_bytes == DERIVED:
            return self.retention_bytes
        return self.local_retention_bytes
