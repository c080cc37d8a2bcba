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
_ONE_REPLICA: Final = "a partition has one replica"


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
                "Replicas whose fetching is held to a rate.",
                replicas=True,
                idle=_ONE_REPLICA,
            ),
            _topic(
                "leader.replication.throttled.replicas",
                _LIST,
                "Replicas whose serving of followers is held to a rate.",
                replicas=True,
                idle=_ONE_REPLICA,
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
                "In-sync replicas that must hold a record before a producer with acks=all is answered; never more than a "
                "partition has replicas.",
                minimum=1,
            ),
            _topic(
                "preallocate",
                _BOOLEAN,
                "Whether a new segment's file is made at its full size.",
                "log.preallocate",
                idle="a segment's file grows with what is written to it",
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
                minimum=SEGMENT_BYTES_MIN,
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
                idle=_ONE_REPLICA,
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
                "firn.produce.validation",
                _STRING,
                "How much of a produced batch is checked before it is stored. batch: its header and checksum, at a cost that does "
                "not depend on the number of records. records: every record too, as Apache Kafka does: that it decodes, its offset "
                "and its timestamp. A topic with cleanup.policy compact always has its records decoded, to look at their keys.",
                choices=tuple(ProduceValidation),
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

TOPIC_IDLE: Final[Mapping[str, str]] = MappingProxyType(
    {name: definition.idle for name, definition in TOPIC_DEFINITIONS.items() if definition.idle}
)
"""Settings of topics that are described and change nothing here, with the reason."""

TOPIC_BY_SYNONYM: Final[Mapping[str, tuple[Definition, Synonym]]] = {
    synonym.name: (definition, synonym) for definition in TOPIC_DEFINITIONS.values() for synonym in definition.synonyms
}
"""Topic settings by their broker-wide names."""

BROKER_IDLE: Final[Mapping[str, str]] = MappingProxyType(
    {name: definition.idle for name, (definition, _) in TOPIC_BY_SYNONYM.items() if definition.idle}
)
"""The same by their broker-wide names."""
