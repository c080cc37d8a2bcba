"""Every setting of a broker that is not the default of a topic's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from app.configs.broker import BrokerConfig
from app.configs.definition import ConfigType, Definition, Importance, Update, Value
from app.configs.group_bounds import GROUP_BOUNDS
from app.configs.numbers import SHORT_MAX
from app.configs.values import documented
from app.limits import DECOMPRESSED_BATCH_BYTES_MAX, LOG_CLEANER_THREADS_MAX, MIB, PARTITIONS_PER_TOPIC_MAX

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_SHORT, _DOUBLE, _LIST, _PASSWORD = ConfigType.SHORT, ConfigType.DOUBLE, ConfigType.LIST, ConfigType.PASSWORD

_BLANK: Final = BrokerConfig()

_LEAST: Final[Mapping[str, tuple[int, int | None]]] = {
    "assignment.interval.ms": (0, None),
    "record.lock.duration.ms": (1000, 30_000),
    "delivery.count.limit": (2, 5),
    "partition.max.record.locks": (100, 2000),
}
_MOST: Final[Mapping[str, tuple[int, int | None]]] = {
    "assignment.interval.ms": (0, None),
    "record.lock.duration.ms": (30_000, 3_600_000),
    "delivery.count.limit": (5, 25),
    "partition.max.record.locks": (2000, 10_000),
}
"""Between what the bounds of groups' settings may lie, where that is not from 1 on; Kafka's."""


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
        default = getattr(_BLANK, attribute)
    return Definition(
        name=name,
        type=kind,
        field=attribute,
        default=default,
        documentation=documented(documentation, default, kafka_default),
        kafka_default=kafka_default,
        **more,
    )


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
            _broker(
                "broker.rack",
                _STRING,
                "Rack or availability zone of this broker. Clients are told, and the uniform assignor prefers members in the same.",
            ),
            _broker(
                "firn.instance.id",
                _STRING,
                "Name of the machine that the broker runs on, for example i-0abc… of EC2. The broker registers it with its node "
                "id, and `firn cluster place` prints it.",
            ),
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
                "Object store of the cluster: file:///path or s3://bucket/prefix. By default a directory next to log.dirs.",
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
                "firn.http.allowed.hosts",
                _LIST,
                "Names that HTTP requests may ask for in their Host header (NAME, NAME:PORT, *.NAME), besides localhost, the "
                "address that they came in at and the advertised one; * allows any, and with it DNS rebinding by web pages.",
                attribute="firn_http_allowed_hosts",
            ),
            _broker(
                "firn.http.allowed.origins",
                _LIST,
                "Origins (https://NAME, http://NAME:PORT) whose web pages may use the HTTP interface, besides its own; "
                "* allows every page that an operator's browser opens to write.",
                attribute="firn_http_allowed_origins",
            ),
            _broker(
                "firn.http.max.connections",
                _INT,
                "HTTP connections at a time. Past them a new one takes the place of one without a request under way; if "
                "there is none, only health checks are answered.",
                minimum=1,
            ),
            _broker(
                "firn.http.header.timeout.ms",
                _INT,
                "Time that a client has to send the head of an HTTP request, from its connection or the first byte on.",
                minimum=1,
            ),
            _broker(
                "firn.http.body.timeout.ms",
                _INT,
                "Time without progress after which an HTTP request's body is given up, or a response that nobody reads. "
                "Progress is a whole record, or 1 KiB a second.",
                minimum=1,
            ),
            _broker(
                "firn.redis.url",
                _PASSWORD,
                "Redis for liveness in a cluster of several brokers; a single broker needs none.",
                attribute="redis_url",
            ),
            _broker(
                "num.partitions",
                _INT,
                "Number of partitions of a new topic if its creator does not specify one.",
                minimum=1,
                maximum=PARTITIONS_PER_TOPIC_MAX,
            ),
            _broker(
                "default.replication.factor",
                _INT,
                "Replicas of a topic whose creator does not say; never more than there are brokers.",
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
                "delete.topic.enable",
                _BOOLEAN,
                "Whether topics can be deleted; if not, DeleteTopics is refused.",
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
                update=Update.CLUSTER_WIDE,
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
                update=Update.CLUSTER_WIDE,
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
                        maximum=PARTITIONS_PER_TOPIC_MAX,
                    ),
                    _broker(
                        f"{prefix}.replication.factor",
                        _SHORT,
                        f"Replicas of the topic of {what}, when it is made; never more than there are brokers.",
                        importance=Importance.HIGH,
                        minimum=1,
                        kafka_default="3",
                    ),
                    _broker(
                        f"{prefix}.segment.bytes",
                        _INT,
                        f"Size of the segments of the topic of {what}, when it is made: small, so that it is soon compacted. "
                        "As of any topic it is 1 MiB at least; less is raised to that.",
                        importance=Importance.HIGH,
                        minimum=1,
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
                update=Update.CLUSTER_WIDE,
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
                "number together. A group that does not say uses the first.",
                choices=("uniform", "range"),
                ordered=True,
            ),
            _broker(
                "group.consumer.migration.policy",
                _STRING,
                "Whether a group may change its protocol while it has members: to the consumer protocol (upgrade), back to "
                "the classic one (downgrade), both (bidirectional), or neither (disabled).",
                choices=("bidirectional", "upgrade", "downgrade", "disabled"),
                any_case=True,
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
                update=Update.CLUSTER_WIDE,
            ),
            _broker("group.share.max.size", _INT, "Most members of a share group.", minimum=1, maximum=1000),
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
                "share.coordinator.snapshot.update.records.per.snapshot",
                _INT,
                "Most updates of a share group's progress in a partition that are written after a snapshot, before the next "
                "one. A snapshot comes sooner when the updates have said as much as it would.",
                minimum=0,
                maximum=500,
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
            *(
                _broker(
                    name,
                    _INT,
                    f"{word} that {bound.setting} may be, and {bound.of_group} of a group.",
                    minimum=minimum,
                    maximum=maximum,
                )
                for bound in GROUP_BOUNDS
                for name, word, (minimum, maximum) in (
                    (bound.least, "Least", _LEAST.get(bound.name, (1, None))),
                    (bound.most, "Most", _MOST.get(bound.name, (1, None))),
                )
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
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.retention.check.interval.ms",
                _LONG,
                "Time between two looks for segments that are past retention.ms, in both tiers. A partition is not looked at "
                "before this time has passed since the broker began to lead it, and a segment stays for this time after it rolled. "
                "retention.bytes is also looked at every remote.log.manager.task.interval.ms, if that is shorter.",
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
                "firn.metrics.lag.series.max",
                _INT,
                "Partitions of consumer groups whose lag is shown in the metrics, groups with members first; "
                "firn_group_lag_left_out counts the others. 0 shows none.",
                minimum=0,
            ),
            _broker(
                "firn.chunk.cache.bytes",
                _LONG,
                "Local disk space for chunks that were fetched from the object store.",
                minimum=0,
            ),
            _broker(
                "firn.read.ahead.bytes",
                _LONG,
                "Read-ahead from the object store for all sequential readers together.",
                minimum=0,
            ),
            _broker(
                "firn.decompressed.batch.bytes.max",
                _INT,
                "Most bytes that a produced batch may decompress to, in topics that look into batches: compacted ones, and "
                "those with a compression.type of their own. max.message.bytes counts compressed bytes.",
                minimum=MIB,
                maximum=DECOMPRESSED_BATCH_BYTES_MAX,
            ),
            _broker(
                "firn.preparation.bytes.max",
                _LONG,
                "Memory for produced batches that are being decompressed, checked and recompressed, over all connections; "
                "further ones wait for their turn.",
                minimum=MIB,
            ),
            _broker(
                "firn.log.dir.free.bytes.min",
                _LONG,
                "Free space on the disk of log.dirs below which producers get a retriable error.",
                minimum=0,
            ),
        )
    }
)
"""Settings of a broker that are not defaults of topic settings, by name."""
