"""Every setting that a topic can carry, and the broker-wide names of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from app.configs.definition import ConfigType, Definition, Importance, Synonym, Update
from app.configs.topic import Durability, ProduceValidation, TierCompression, TimestampType, TopicConfig
from app.configs.values import documented
from app.limits import CHUNK_BYTES_MAX, SEGMENT_BYTES_MIN

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000

_BLANK: Final = TopicConfig()


def _topic(
    name: str,
    kind: ConfigType,
    documentation: str,
    *synonyms: str | Synonym,
    kafka_default: str | None = None,
    idle: str = "",
    **more: Any,
) -> Definition:
    attribute = name.replace(".", "_")
    default = getattr(_BLANK, attribute)
    if idle:
        documentation = f"{documentation} Without effect: {idle}."
    return Definition(
        name=name,
        type=kind,
        field=attribute,
        default=default,
        documentation=documented(documentation, default, kafka_default),
        synonyms=tuple(s if isinstance(s, Synonym) else Synonym(s) for s in synonyms or (name,)),
        kafka_default=kafka_default,
        update=Update.CLUSTER_WIDE,
        idle=idle,
        **more,
    )


TOPIC_DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in (
            _topic(
                "cleanup.policy",
                _LIST,
                "Treatment of old segments. delete: delete them by retention.*. compact: keep the newest record of every key. Both "
                "values together do both. An empty list keeps all records for ever.",
                "log.cleanup.policy",
                choices=("compact", "delete"),
            ),
            _topic(
                "compression.type",
                _STRING,
                "Codec of stored batches. producer keeps the producer's codec; uncompressed decompresses the batches.",
                choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            ),
            _topic(
                "compression.gzip.level",
                _INT,
                "Compression level if compression.type is gzip: 1 to 9, or -1 for the library's default.",
                minimum=-1,
                maximum=9,
            ),
            _topic(
                "compression.lz4.level",
                _INT,
                "Compression level if compression.type is lz4. 9 is the fast mode.",
                minimum=1,
                maximum=17,
            ),
            _topic(
                "compression.zstd.level",
                _INT,
                "Compression level if compression.type is zstd. Negative levels are faster.",
                minimum=-131072,
                maximum=22,
            ),
            _topic(
                "delete.retention.ms",
                _LONG,
                "Time that a compacted topic keeps tombstones, so that a reader from the start sees every deletion.",
                "log.cleaner.delete.retention.ms",
                minimum=0,
            ),
            _topic(
                "file.delete.delay.ms",
                _LONG,
                "Time that the files of a deleted segment stay on disk under another name, for readers that still use them.",
                "log.segment.delete.delay.ms",
                minimum=0,
            ),
            _topic(
                "flush.messages",
                _LONG,
                "Number of records after which a partition is synced to disk. With firn.durability=disk producers wait for "
                "this sync too.",
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
                "Replicas (partition:broker, or * for all) that fetch at follower.replication.throttled.rate while they are out "
                "of sync.",
                replicas=True,
            ),
            _topic(
                "leader.replication.throttled.replicas",
                _LIST,
                "Leaders (partition:broker, or * for all) that serve followers out of sync at leader.replication.throttled.rate.",
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
                "Maximum time until a record of a compacted topic becomes eligible for compaction.",
                "log.cleaner.max.compaction.lag.ms",
                minimum=1,
            ),
            _topic(
                "max.message.bytes",
                _INT,
                "Maximum size of a record batch in bytes, as the producer sends it (compressed).",
                "message.max.bytes",
                minimum=0,
            ),
            _topic(
                "message.timestamp.after.max.ms",
                _LONG,
                "How far a producer's timestamp may be ahead of the broker's clock.",
                "log.message.timestamp.after.max.ms",
                minimum=0,
            ),
            _topic(
                "message.timestamp.before.max.ms",
                _LONG,
                "How far a producer's timestamp may be behind the broker's clock.",
                "log.message.timestamp.before.max.ms",
                minimum=0,
            ),
            _topic(
                "message.timestamp.type",
                _STRING,
                "Timestamp of a record: the producer's (CreateTime), or the time at which the broker stores it (LogAppendTime).",
                "log.message.timestamp.type",
                choices=tuple(TimestampType),
            ),
            _topic(
                "min.cleanable.dirty.ratio",
                _DOUBLE,
                "Share of a compacted log that must be new before the log is compacted again.",
                "log.cleaner.min.cleanable.ratio",
                minimum=0,
                maximum=1,
            ),
            _topic(
                "min.compaction.lag.ms",
                _LONG,
                "Minimum time that a record of a compacted topic stays uncompacted.",
                "log.cleaner.min.compaction.lag.ms",
                minimum=0,
            ),
            _topic(
                "min.insync.replicas",
                _INT,
                "Number of in-sync replicas that must have a record before a producer with acks=all gets the acknowledgement. "
                "Never more than the partition's replicas.",
                minimum=1,
            ),
            _topic(
                "preallocate",
                _BOOLEAN,
                "Whether the file of a new segment gets its full size at once.",
                "log.preallocate",
                idle="a segment's file grows with what is written to it",
            ),
            _topic(
                "retention.bytes",
                _LONG,
                "Maximum size of a partition in both tiers together. Beyond it the oldest segments are deleted. -1: no limit.",
                "log.retention.bytes",
            ),
            _topic(
                "retention.ms",
                _LONG,
                "Age at which segments are deleted from both tiers. -1: never.",
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
                minimum=SEGMENT_BYTES_MIN,
            ),
            _topic(
                "segment.index.bytes",
                _INT,
                "Size of the local offset index at which a segment is closed.",
                "log.index.size.max.bytes",
                minimum=4,
            ),
            _topic(
                "segment.jitter.ms",
                _LONG,
                "Maximum random time that is subtracted from segment.ms, so that partitions do not all roll at once.",
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
                "Whether a replica that is not in sync may become leader, although this loses records.",
            ),
            _topic(
                "remote.storage.enable",
                _BOOLEAN,
                "Whether closed segments are copied to the object store. The default of a compacted topic is false: it stays "
                "local.",
                kafka_default="false",
            ),
            _topic(
                "local.retention.bytes",
                _LONG,
                "Maximum size of a partition on the local disk. Beyond it the oldest segments that are in the object store are "
                "deleted from the local disk. -2: as retention.bytes.",
                "log.local.retention.bytes",
                minimum=-2,
            ),
            _topic(
                "local.retention.ms",
                _LONG,
                "Age at which segments that are in the object store are deleted from the local disk. -2: as retention.ms. The "
                "default is never more than retention.ms.",
                "log.local.retention.ms",
                kafka_default="-2",
                minimum=-2,
            ),
            _topic(
                "remote.log.copy.disable",
                _BOOLEAN,
                "true stops tiering. Nothing more is copied to the object store. Records in the object store can still be "
                "read, and expire.",
            ),
            _topic(
                "remote.log.delete.on.disable",
                _BOOLEAN,
                "true allows a loss when remote.storage.enable becomes false: segments that are only in the object store are "
                "deleted. Segments that are also on the local disk stay in both until they expire.",
            ),
            _topic(
                "firn.durability",
                _STRING,
                "When a record counts as stored. memory: when it is in the operating system's page cache, which survives a "
                "crash of the broker but not of the machine. disk: after fdatasync. object: when it is in the write-ahead log in "
                "the object store, so that it survives the loss of all brokers and disks. It needs firn.version 3, and a topic "
                "that is tiered; a compacted one is tiered then too, and cannot change back. As the brokers' default, object is of "
                "new topics, which keep it as their own setting; other topics are as with disk.",
                importance=Importance.HIGH,
                choices=tuple(Durability),
            ),
            _topic(
                "firn.wal.linger.ms",
                _LONG,
                "With firn.durability=object: how long a batch waits at most until the write-ahead log's next object is put, so "
                "that many batches share one. Less costs more requests, and answers producers sooner.",
                "wal.linger.ms",
                minimum=1,
                maximum=60_000,
            ),
            _topic(
                "firn.produce.validation",
                _STRING,
                "Checks of a produced batch before it is stored. batch: its header and checksum, at a cost that does not "
                "depend on the number of records. records: also every record, as in Apache Kafka: its encoding, offset and "
                "timestamp. A topic with cleanup.policy=compact always has its records decoded, to check their keys.",
                choices=tuple(ProduceValidation),
            ),
            _topic(
                "firn.tier.max.lag.ms",
                _LONG,
                "Age at which a segment with records is closed and can be tiered, even if no more records arrive.",
                minimum=1,
            ),
            _topic(
                "firn.tier.chunk.bytes",
                _INT,
                "Size of the chunks of a segment object. A chunk has whole batches, and is the unit of reading and caching.",
                minimum=64 * 1024,
                maximum=CHUNK_BYTES_MAX,
            ),
            _topic(
                "firn.tier.compression",
                _STRING,
                "Compression of chunks: zstd, none, or auto. auto does not compress chunks whose batches are compressed already.",
                choices=tuple(TierCompression),
            ),
            _topic(
                "firn.tier.kms.key.id",
                _STRING,
                "Key of AWS KMS (its id, ARN or alias) that encrypts the topic's segments in the object store from now on. Empty: "
                "the store's own key. Only S3 stores can do this.",
            ),
            _topic(
                "firn.remote.delete.delay.ms",
                _LONG,
                "Time that the object of a deleted segment stays in the store, for readers that still use it.",
                minimum=0,
            ),
        )
    }
)
"""Every setting that a topic can carry, by name."""

assert {definition.field for definition in TOPIC_DEFINITIONS.values()} == {f.name for f in fields(TopicConfig)}

TOPIC_IDLE: Final[Mapping[str, str]] = MappingProxyType(
    {name: definition.idle for name, definition in TOPIC_DEFINITIONS.items() if definition.idle}
)
"""Settings of topics that DescribeConfigs shows although they have no effect here, with the reason."""

TOPIC_BY_SYNONYM: Final[Mapping[str, tuple[Definition, Synonym]]] = {
    synonym.name: (definition, synonym) for definition in TOPIC_DEFINITIONS.values() for synonym in definition.synonyms
}
"""Topic settings by their broker-wide names."""

BROKER_IDLE: Final[Mapping[str, str]] = MappingProxyType(
    {name: definition.idle for name, (definition, _) in TOPIC_BY_SYNONYM.items() if definition.idle}
)
"""The same by their broker-wide names."""
