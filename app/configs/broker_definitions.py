"""Every setting of a broker that is not the default of a topic's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from app.addresses import FORWARDED_HEADERS
from app.configs.broker import (
    LEADER_SELECTOR,
    RACK_AWARE_SELECTOR,
    STANDARD_AUTHORIZER,
    BrokerConfig,
)
from app.configs.definition import ConfigType, Definition, Importance, Update, Value
from app.configs.group_bounds import GROUP_BOUNDS
from app.configs.listeners import LIMITS_OF_LISTENERS
from app.configs.numbers import SHORT_MAX
from app.configs.security_definitions import SECURITY_DEFINITIONS
from app.configs.topic import InternalDurability
from app.configs.values import documented
from app.limits import (
    DECOMPRESSED_BATCH_BYTES_MAX,
    LOG_CLEANER_THREADS_MAX,
    MIB,
    PARTITIONS_PER_TOPIC_MAX,
    WAL_BYTES_MAX,
)

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
"""Kafka's ranges for the bounds of group settings, unless the range is simply 1 or more."""


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
                "Number of this broker. Each broker of a cluster has a different one. With auto, the broker gets a number that no "
                "other broker ever had, and keeps it in its data directory.",
                importance=Importance.HIGH,
                minimum=0,
                kafka_default="none",
            ),
            _broker(
                "firn.new.store.level",
                _INT,
                "Level of the feature firn.version that this broker gives a store that is empty. -1: the newest that it knows. A "
                "lower level is for brokers of an earlier version that are to use the store; at level 0 no other broker can join. "
                "It has no effect on a store that holds a cluster: `firn cluster features --upgrade` raises that one's level.",
                minimum=-1,
            ),
            _broker(
                "firn.ephemeral",
                _BOOLEAN,
                "Whether this broker's data directory may be lost whenever it stops, as on a tmpfs. It then leads only topics with "
                "firn.durability=object, and holds nothing that matters. An empty store becomes a cluster whose new "
                "topics have firn.durability=object. It needs firn.version 3. Without node.id, the broker gets one (auto).",
            ),
            _broker(
                "firn.spot.notice.endpoint",
                _STRING,
                "URL of the metadata service that is asked every five seconds whether this spot machine is about to be taken away, "
                "as http://169.254.169.254 on AWS. The broker then drains and stops. Empty: nobody is asked.",
            ),
            _broker(
                "broker.rack",
                _STRING,
                "Rack or availability zone of this broker. Clients can see it, the uniform assignor prefers members in the "
                "same rack, replicas are spread over racks, and replica.selector.class can choose by it.",
            ),
            _broker(
                "replica.selector.class",
                _STRING,
                "Which replica consumers read from. With Kafka's RackAwareReplicaSelector, consumers with client.rack read from a "
                "replica in their rack that is in sync. Without it they read from the leader.",
                choices=("", LEADER_SELECTOR, RACK_AWARE_SELECTOR),
            ),
            _broker(
                "leader.replication.throttled.rate",
                _LONG,
                "Bytes a second that this broker, as leader, sends to replicas that are out of sync and named by "
                "leader.replication.throttled.replicas.",
                minimum=0,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "follower.replication.throttled.rate",
                _LONG,
                "Bytes a second that this broker, as follower, fetches for its replicas that are out of sync and named by "
                "follower.replication.throttled.replicas.",
                minimum=0,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "replication.quota.window.num",
                _INT,
                "Number of samples over which rates of throttled replication are measured.",
                minimum=1,
            ),
            _broker(
                "replication.quota.window.size.seconds",
                _INT,
                "Length of one of these samples.",
                minimum=1,
            ),
            _broker(
                "quota.window.size.seconds",
                _INT,
                "How many seconds' worth of its quota a client may use in a burst.",
                minimum=1,
            ),
            _broker(
                "firn.quota.scope",
                _STRING,
                "Whether byte rates of quotas are limits of each broker, as in Kafka, or of the whole cluster. cluster needs "
                "firn.redis.url, and every broker must have it. While Redis is away, each broker allows the limit divided by "
                "the number of brokers.",
                choices=("broker", "cluster"),
            ),
            _broker(
                "controller.quota.window.num",
                _INT,
                "Number of samples: a client may use so many samples' worth of controller_mutation_rate in a burst.",
                minimum=1,
            ),
            _broker(
                "controller.quota.window.size.seconds",
                _INT,
                "Length of one of these samples.",
                minimum=1,
            ),
            _broker(
                "broker.heartbeat.interval.ms",
                _INT,
                "Time between two heartbeats of a broker of several to the controller.",
                importance=Importance.HIGH,
                minimum=50,
                maximum=1000,
                kafka_default="2000",
            ),
            _broker(
                "broker.session.timeout.ms",
                _INT,
                "Time without a heartbeat after which the controller lets others lead what the broker led. It should be several "
                "times broker.heartbeat.interval.ms. The setting of the controller counts.",
                importance=Importance.HIGH,
                minimum=500,
                kafka_default="9000",
            ),
            _broker(
                "replica.lag.time.max.ms",
                _LONG,
                "Time after which a follower that does not reach its leader's end leaves the in-sync set.",
                importance=Importance.HIGH,
                minimum=500,
            ),
            _broker(
                "replica.high.watermark.checkpoint.interval.ms",
                _LONG,
                "Time between two writes of the high watermarks of partitions with several replicas.",
                importance=Importance.HIGH,
                minimum=100,
            ),
            _broker(
                "auto.leader.rebalance.enable",
                _BOOLEAN,
                "Whether the first of a partition's replicas leads again, once it is in sync and its broker is stable.",
                importance=Importance.HIGH,
            ),
            _broker(
                "leader.imbalance.check.interval.seconds",
                _LONG,
                "Time between two checks of the controller for partitions that their first replica could lead again, and how "
                "long the broker of that replica must have been alive without a break. All are moved together: a check waits for "
                "brokers that have just come, at most ten intervals. Firn's own default.",
                importance=Importance.HIGH,
                minimum=1,
                kafka_default="300",
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
                "firn.wal.store.url",
                _STRING,
                "Store of the write-ahead logs of topics with firn.durability=object: file:///path or s3://bucket/prefix, for "
                "example a bucket of S3 Express, or a shared file system. Empty: they are in firn.store.url. All brokers of a "
                "cluster have the same one, and it needs firn.version 3.",
                attribute="wal_store_url",
                importance=Importance.HIGH,
            ),
            _broker(
                "listeners",
                _LIST,
                "Addresses at which the broker accepts connections, each as NAME://HOST:PORT.",
                attribute="",
                default="PLAINTEXT://127.0.0.1:9092",
                kafka_default="PLAINTEXT://:9092",
                importance=Importance.HIGH,
            ),
            _broker(
                "advertised.listeners",
                _LIST,
                "Addresses that the broker gives to clients to connect to, one for each listener. Default: those of listeners.",
                attribute="",
                importance=Importance.HIGH,
            ),
            _broker("firn.http.listen", _STRING, "Address of the HTTP interface, or off.", attribute="http_address"),
            _broker(
                "firn.http.allowed.hosts",
                _LIST,
                "Host names (NAME, NAME:PORT, *.NAME) that are allowed in the Host header of HTTP requests. localhost, the "
                "address that received the request and the advertised address are always allowed. * allows any name, and so "
                "DNS rebinding by web pages.",
                attribute="firn_http_allowed_hosts",
            ),
            _broker(
                "firn.http.allowed.origins",
                _LIST,
                "Origins (https://NAME, http://NAME:PORT) whose web pages may use the HTTP interface, in addition to its own "
                "pages. * allows every page in an operator's browser to write.",
                attribute="firn_http_allowed_origins",
            ),
            _broker(
                "firn.http.client.config",
                _STRING,
                "File with Kafka's client settings, by which the HTTP process reaches the broker if a listener has TLS or a "
                "login: whom to trust, and its own user, whom it needs only with firn.http.anonymous.enable. Default: "
                "the truststore of the listener.",
            ),
            _broker(
                "firn.http.anonymous.enable",
                _BOOLEAN,
                "Whether HTTP requests without a user and without a token have the rights of the user of "
                "firn.http.client.config, where Kafka's clients have to log in.",
            ),
            _broker(
                "firn.http.plain.credentials.enable",
                _BOOLEAN,
                "Whether HTTP takes passwords and tokens without TLS at an address that other machines reach, because a proxy "
                "in front of it encrypts.",
            ),
            _broker(
                "firn.http.trusted.proxies",
                _LIST,
                "Addresses and networks (10.0.0.7, 10.1.0.0/24) of the proxies in front of HTTP. The header of "
                "firn.http.forwarded.header says for whom they ask. Nobody else's header is believed.",
                attribute="firn_http_trusted_proxies",
            ),
            _broker(
                "firn.http.forwarded.header",
                _STRING,
                "Header in which proxies in front of HTTP name their clients: x-forwarded-for or forwarded (RFC 7239). Name the "
                "one that the proxies set themselves: another one is passed on as a client wrote it.",
                choices=FORWARDED_HEADERS,
                any_case=True,
            ),
            _broker(
                "firn.trusted.proxies",
                _LIST,
                "Addresses and networks of HTTP processes, which may say for which client they connect, where clients log in. "
                "ACLs and the audit log see that client's address then. Whoever connects from there can name any address.",
                attribute="firn_trusted_proxies",
            ),
            _broker(
                "firn.http.ssl.keystore.type",
                _STRING,
                "Format of the key and the certificates of HTTPS. It must be PEM.",
            ),
            _broker(
                "firn.http.ssl.keystore.location",
                _STRING,
                "PEM file with the private key and the chain of certificates of HTTPS. A changed file is read again. Without it "
                "HTTP is plain.",
            ),
            _broker("firn.http.ssl.keystore.key", _PASSWORD, "The private key of HTTPS itself, as PEM text."),
            _broker(
                "firn.http.ssl.keystore.certificate.chain",
                _PASSWORD,
                "The chain of certificates of HTTPS itself, as PEM text.",
            ),
            _broker("firn.http.ssl.key.password", _PASSWORD, "Password of the private key of HTTPS."),
            _broker(
                "firn.http.ssl.enabled.protocols",
                _LIST,
                "Versions of TLS of HTTPS.",
                choices=("TLSv1.2", "TLSv1.3"),
            ),
            _broker(
                "firn.http.ssl.cipher.suites",
                _STRING,
                "Cipher suites of HTTPS, separated by commas; empty for OpenSSL's choice.",
            ),
            _broker(
                "firn.http.ssl.client.auth",
                _STRING,
                "Whether HTTPS asks callers for a certificate. It must be none: a caller's certificate cannot be passed on to "
                "brokers.",
            ),
            _broker(
                "firn.http.max.connections",
                _INT,
                "Maximum number of HTTP connections at a time. Beyond it a new connection replaces an idle one. If no "
                "connection is idle, new connections get responses to health checks only.",
                minimum=1,
            ),
            _broker(
                "firn.http.header.timeout.ms",
                _INT,
                "Time that a client has to send the head of an HTTP request, counted from the connection or from the first byte.",
                minimum=1,
            ),
            _broker(
                "firn.http.body.timeout.ms",
                _INT,
                "Time without progress after which an HTTP request is given up, because its body does not arrive or its response "
                "is not read. Progress is a whole record, or 1 KiB a second.",
                minimum=1,
            ),
            _broker(
                "firn.redis.url",
                _PASSWORD,
                "Redis for limits of the whole cluster (firn.quota.scope), and for the signs of life of a broker whose store is at "
                "level 0 of firn.version. Without it, and at higher levels, signs of life are objects in the store.",
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
                "Number of replicas of a new topic if its creator does not specify it. Never more than the number of brokers.",
                minimum=1,
                maximum=SHORT_MAX,
            ),
            _broker(
                "auto.create.topics.enable",
                _BOOLEAN,
                "Whether a request for the metadata of a missing topic creates the topic, if the client allows it.",
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
                "Maximum size of a request. A larger request closes its connection.",
                importance=Importance.HIGH,
                minimum=1024,
            ),
            _broker(
                "socket.send.buffer.bytes",
                _INT,
                "Size of the kernel's send buffer of each fetching connection. With few fetching connections each gets up to "
                "four times as much. -1: the kernel chooses the size, for distant readers.",
                importance=Importance.HIGH,
                minimum=-1,
            ),
            _broker(
                "queued.max.request.bytes",
                _LONG,
                "Memory for requests that are still arriving, over all connections. If it is full, reading waits. -1: no limit.",
                minimum=-1,
                kafka_default="-1",
            ),
            _broker(
                "connections.max.idle.ms",
                _LONG,
                "Time after which a connection without requests is closed. -1: never.",
                minimum=-1,
            ),
            _broker(
                "max.connections",
                _INT,
                "Maximum number of connections at a time, and never more than half of the files that the process may open. Further "
                "connections wait until others are closed. On the listener between brokers, if there are others, a connection "
                "does not wait: the connection of another listener that was used least recently is closed. "
                "listener.name.….max.connections limits one listener.",
                minimum=0,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "max.connections.per.ip",
                _INT,
                "Maximum number of connections of one address. Further ones are closed at once. It can be 0 only if "
                "max.connections.per.ip.overrides names who may connect.",
                minimum=0,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "max.connections.per.ip.overrides",
                _STRING,
                "Maximum number of connections of single addresses, instead of max.connections.per.ip: ADDRESS:NUMBER,…. Names of "
                "hosts are not looked up.",
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "max.connection.creation.rate",
                _INT,
                "Connections that are accepted in a second. Further ones wait. The listener between brokers, if there are others, "
                "is not held to it. listener.name.….max.connection.creation.rate limits one listener.",
                minimum=0,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "fetch.max.bytes",
                _INT,
                "Maximum bytes of records in one Fetch response, even if the client allows more.",
                minimum=1024,
            ),
            _broker(
                "max.incremental.fetch.session.cache.slots",
                _INT,
                "Maximum number of incremental fetch sessions at a time.",
                minimum=0,
            ),
            _broker(
                "max.request.partition.size.limit",
                _INT,
                "Maximum number of partitions in one DescribeTopicPartitions response.",
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
                        f"Number of partitions of the topic of {what} when it is created. It must not change afterwards.",
                        importance=Importance.HIGH,
                        minimum=1,
                        maximum=PARTITIONS_PER_TOPIC_MAX,
                    ),
                    _broker(
                        f"{prefix}.replication.factor",
                        _SHORT,
                        f"Number of replicas of the topic of {what}. While there are fewer brokers, it has as many replicas as "
                        "there are brokers. As brokers join, it gets more by itself.",
                        importance=Importance.HIGH,
                        minimum=1,
                    ),
                    _broker(
                        f"{prefix}.segment.bytes",
                        _INT,
                        f"Segment size of the topic of {what} when it is created. It is small, so that the topic is compacted "
                        "soon. Less than 1 MiB is raised to 1 MiB, the minimum of every topic.",
                        importance=Importance.HIGH,
                        minimum=1,
                    ),
                )
            ),
            *(
                _broker(
                    f"{prefix}.min.isr",
                    kind,
                    f"min.insync.replicas of the topic of {what} when it is created. If the topic has fewer replicas, all must be "
                    "in sync.",
                    importance=Importance.HIGH,
                    minimum=1,
                )
                for prefix, kind, what in (
                    ("transaction.state.log", _INT, "the state of transactions"),
                    ("share.coordinator.state.topic", _SHORT, "the state of share groups"),
                )
            ),
            _broker(
                "transaction.max.timeout.ms",
                _INT,
                "Maximum transaction timeout that a producer may request. A transaction that stays open past its timeout is "
                "aborted.",
                importance=Importance.HIGH,
                minimum=1,
            ),
            _broker(
                "transactional.id.expiration.ms",
                _INT,
                "Time after which the broker forgets a transactional id that begins and ends no transaction.",
                importance=Importance.HIGH,
                minimum=1,
            ),
            _broker(
                "transaction.remove.expired.transaction.cleanup.interval.ms",
                _INT,
                "Interval at which the broker looks for expired transactional ids.",
                importance=Importance.LOW,
                minimum=1,
            ),
            _broker(
                "transaction.partition.verification.enable",
                _BOOLEAN,
                "Whether the broker refuses the first batch of a transaction in a partition that was not added to the transaction.",
                importance=Importance.LOW,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "offsets.commit.timeout.ms",
                _INT,
                "How long a response of the group coordinator waits until the replicas in sync have stored its records. Then the "
                "client is told to try again.",
                importance=Importance.HIGH,
                minimum=1,
            ),
            _broker(
                "offsets.retention.minutes",
                _INT,
                "Time after which unused committed offsets are deleted: offsets of a group without members, or of a topic that "
                "the group no longer reads.",
                importance=Importance.HIGH,
                minimum=1,
            ),
            _broker(
                "offsets.retention.check.interval.ms",
                _LONG,
                "Interval at which the broker looks for committed offsets to delete.",
                importance=Importance.HIGH,
                minimum=1,
            ),
            _broker(
                "offset.metadata.max.bytes",
                _INT,
                "Maximum size of the metadata that is committed with an offset.",
                importance=Importance.HIGH,
            ),
            _broker(
                "group.min.session.timeout.ms",
                _INT,
                "Minimum session timeout that a member of a classic group may request.",
            ),
            _broker(
                "group.max.session.timeout.ms",
                _INT,
                "Maximum session timeout that a member of a classic group may request.",
            ),
            _broker(
                "group.initial.rebalance.delay.ms",
                _INT,
                "Time that an empty classic group waits for more members after the first, before it assigns partitions.",
            ),
            _broker(
                "group.max.size",
                _INT,
                "Maximum number of members of a classic group.",
                minimum=1,
            ),
            _broker(
                "group.consumer.session.timeout.ms",
                _INT,
                "Time without a heartbeat after which a member is removed from its consumer group (KIP-848).",
                minimum=1,
            ),
            _broker(
                "group.consumer.heartbeat.interval.ms",
                _INT,
                "Interval at which members of consumer groups must send heartbeats.",
                minimum=1,
            ),
            _broker(
                "group.consumer.assignment.interval.ms",
                _INT,
                "Minimum time between two assignments of a consumer group's partitions. Members that join together are assigned "
                "together (KIP-1263). 0: assign after every change.",
                minimum=0,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "group.consumer.max.size",
                _INT,
                "Maximum number of members of a consumer group.",
                minimum=1,
            ),
            _broker(
                "group.consumer.assignors",
                _LIST,
                "Assignors that consumer groups can use. uniform balances partitions and moves few of them. range gives the "
                "partitions with the same number to the same member. A group that names no assignor uses the first.",
                choices=("uniform", "range"),
                ordered=True,
            ),
            _broker(
                "group.consumer.migration.policy",
                _STRING,
                "Whether a group may change its protocol while it has members: to the consumer protocol (upgrade), to the classic "
                "protocol (downgrade), both (bidirectional), or neither (disabled).",
                choices=("bidirectional", "upgrade", "downgrade", "disabled"),
                any_case=True,
            ),
            _broker(
                "group.share.session.timeout.ms",
                _INT,
                "Time without a heartbeat after which a member is removed from its share group (KIP-932).",
                minimum=1,
            ),
            _broker(
                "group.share.heartbeat.interval.ms",
                _INT,
                "Interval at which members of share groups must send heartbeats.",
                minimum=1,
            ),
            _broker(
                "group.share.assignment.interval.ms",
                _INT,
                "Like group.consumer.assignment.interval.ms, for share groups.",
                minimum=0,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "group.share.max.size", _INT, "Maximum number of members of a share group.", minimum=1, maximum=1000
            ),
            _broker(
                "group.share.delivery.count.limit",
                _INT,
                "Maximum number of deliveries of a record to members of a share group.",
                minimum=2,
                maximum=10,
            ),
            _broker(
                "group.share.record.lock.duration.ms",
                _INT,
                "Time that a member of a share group has for a record before another member may get the record.",
                minimum=1000,
                maximum=3_600_000,
            ),
            _broker(
                "share.coordinator.snapshot.update.records.per.snapshot",
                _INT,
                "Maximum number of updates of a share group's progress in a partition between two snapshots. The next snapshot is "
                "written earlier if the updates together contain as much as a snapshot.",
                minimum=0,
                maximum=500,
            ),
            _broker(
                "group.share.partition.max.record.locks",
                _INT,
                "Maximum number of records of a partition between the oldest unfinished record of a share group and the newest "
                "record that one of its members got.",
                minimum=100,
                maximum=10_000,
            ),
            _broker(
                "group.share.max.share.sessions",
                _INT,
                "Maximum number of share sessions of a broker. Each member of a share group that reads from the broker has one.",
                minimum=1,
            ),
            *(
                _broker(
                    name,
                    _INT,
                    f"{word} of {bound.setting}, and of a group's {bound.of_group}.",
                    minimum=minimum,
                    maximum=maximum,
                )
                for bound in GROUP_BOUNDS
                for name, word, (minimum, maximum) in (
                    (bound.least, "Minimum", _LEAST.get(bound.name, (1, None))),
                    (bound.most, "Maximum", _MOST.get(bound.name, (1, None))),
                )
            ),
            _broker(
                "group.consumer.regex.refresh.interval.ms",
                _INT,
                "Interval at which a subscribed regular expression is matched against all topics again. New and deleted topics "
                "take effect at once.",
                minimum=10_000,
            ),
            _broker(
                "firn.internal.durability",
                _STRING,
                "firn.durability of the topics __consumer_offsets, __transaction_state and __share_group_state when they are "
                "made: memory, disk or object. With auto they get object if firn.version is at least 3, and object is the brokers' "
                "default or the setting of any topic, or the broker has no disk (--ephemeral); otherwise the brokers' default. "
                "Topics that exist keep theirs; to change it, set firn.durability=object,remote.storage.enable=true on each of "
                "them, which cannot be taken back. With object, committed offsets, transactional ids, open transactions and the "
                "progress of share groups survive the loss of all disks.",
                choices=tuple(InternalDurability),
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "wal.bytes",
                _INT,
                "An object of this broker's write-ahead log is put when so many bytes wait, or when the oldest batch has waited "
                "for wal.linger.ms. A batch that is longer gets an object of its own.",
                minimum=64 * 1024,
                maximum=WAL_BYTES_MAX,
            ),
            _broker(
                "wal.buffer.bytes",
                _LONG,
                "Memory for batches that are not yet in the write-ahead log. If it is full, because the object store is slow or "
                "away, producers of topics with firn.durability=object get a retriable error. At least twice wal.bytes.",
                minimum=128 * 1024,
            ),
            _broker(
                "wal.retention.bytes",
                _LONG,
                "If this broker's write-ahead log is longer than this, or has more than 4,096 objects, the partitions that need "
                "its oldest objects close their segments and tier them, so that the objects can be deleted. A take-over reads a "
                "small part of each object.",
                minimum=MIB,
            ),
            _broker(
                "remote.log.manager.task.interval.ms",
                _LONG,
                "Interval at which the broker looks for segments to delete from the object store and from the local disk, unless "
                "log.retention.check.interval.ms is shorter. Segments are copied to the store when they roll.",
                minimum=1,
            ),
            _broker(
                "remote.fetch.max.wait.ms",
                _INT,
                "Maximum time that a Fetch waits for data from the object store, even if the client would wait longer. The "
                "response then has the data that has arrived. Data that arrives later is kept for the next Fetch.",
                minimum=1,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.retention.check.interval.ms",
                _LONG,
                "Interval at which the broker looks for segments older than retention.ms, in both tiers. The first look at a "
                "partition is this time after the broker began to lead it, and a segment stays at least this time after it "
                "rolled. retention.bytes is also checked every remote.log.manager.task.interval.ms, if that is shorter.",
                minimum=1,
            ),
            _broker(
                "log.cleaner.enable",
                _BOOLEAN,
                "Whether logs with cleanup.policy=compact are compacted. If not, they grow without limit, internal topics too.",
            ),
            _broker(
                "log.cleaner.threads",
                _INT,
                "Number of logs that are compacted at the same time, each by its own process. 0: none.",
                minimum=0,
                maximum=LOG_CLEANER_THREADS_MAX,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.backoff.ms",
                _LONG,
                "Time until the log cleaner looks again if no log had to be compacted.",
                minimum=0,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.dedupe.buffer.size",
                _LONG,
                "Memory for the maps from keys to newest offsets, of all log.cleaner.threads together. A log with more keys needs "
                "several rounds.",
                minimum=1024 * 1024,
                kafka_default="134217728",
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.io.buffer.size",
                _INT,
                "Memory for the read and write buffers of compaction, of all log.cleaner.threads together. Only a larger batch "
                "uses more.",
                minimum=0,
                kafka_default="524288",
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.io.buffer.load.factor",
                _DOUBLE,
                "Share of the map from keys to newest offsets that may be filled. A fuller map makes the search for a key slower.",
                minimum=0.01,
                maximum=0.99,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "log.cleaner.io.max.bytes.per.second",
                _DOUBLE,
                "Maximum bytes a second that compaction reads and writes together.",
                minimum=1,
                update=Update.CLUSTER_WIDE,
            ),
            _broker(
                "firn.metrics.lag.series.max",
                _INT,
                "Maximum number of partitions whose consumer-group lag is in the metrics. Groups with members come first; "
                "firn_group_lag_left_out counts the partitions left out. 0: none.",
                minimum=0,
            ),
            _broker(
                "firn.chunk.cache.bytes",
                _LONG,
                "Local disk space for chunks from the object store.",
                minimum=0,
            ),
            _broker(
                "firn.read.ahead.bytes",
                _LONG,
                "Memory for read-ahead from the object store, of all sequential readers together.",
                minimum=0,
            ),
            _broker(
                "firn.decompressed.batch.bytes.max",
                _INT,
                "Maximum decompressed size of a produced batch. It applies to topics whose batches the broker decompresses: "
                "compacted topics, and topics with a compression.type other than producer. max.message.bytes limits compressed "
                "bytes.",
                minimum=MIB,
                maximum=DECOMPRESSED_BATCH_BYTES_MAX,
            ),
            _broker(
                "firn.loop.stall.ms",
                _INT,
                "If the broker's event loop stands still for longer, so that no client is served, the log says for how long and "
                "which request or timer it was, and firn_loop_stalls_total counts it. 0: the loop is not watched.",
                minimum=0,
            ),
            _broker(
                "firn.preparation.bytes.max",
                _LONG,
                "Memory for produced batches that are being decompressed, checked and recompressed, over all connections. Further "
                "batches wait.",
                minimum=MIB,
            ),
            _broker(
                "authorizer.class.name",
                _STRING,
                "Kafka's StandardAuthorizer, so that ACLs and super.users decide what callers may do. Without it everybody who can "
                "connect may do everything, and there are no ACLs. ACLs need firn.version 2.",
                choices=("", STANDARD_AUTHORIZER),
            ),
            _broker(
                "firn.cluster.log.key",
                _PASSWORD,
                "Keys in base64, of 32 bytes or more, separated by commas: the same on every broker, and nowhere else. The first "
                "proves that a broker has written an entry of the cluster log, and each is enough to check that. A broker that "
                "finds an entry without such a proof stops. Empty for none.",
            ),
            _broker(
                "firn.cluster.log.key.location",
                _STRING,
                "File with the keys of firn.cluster.log.key, one a line. Set one of the two. Only the brokers' user may read it.",
            ),
            _broker(
                "firn.cluster.log.key.introducing",
                _BOOLEAN,
                "Accept entries without a proof, too. Set it only while the key is introduced or taken away by rolling restarts.",
            ),
            _broker(
                "delegation.token.secret.key",
                _PASSWORD,
                "Key from which the secrets of delegation tokens are derived. Every broker must have the same one, and another one "
                "ends all tokens. Without it there are no delegation tokens. They need firn.version 2.",
            ),
            _broker(
                "delegation.token.max.lifetime.ms",
                _LONG,
                "Time after which a delegation token ends even if it is renewed.",
                minimum=1,
            ),
            _broker(
                "delegation.token.expiry.time.ms",
                _LONG,
                "Time for which a delegation token is valid before it has to be renewed.",
                minimum=1,
            ),
            _broker(
                "delegation.token.expiry.check.interval.ms",
                _LONG,
                "Time between two searches for delegation tokens that have ended, to remove them.",
                minimum=1,
                importance=Importance.LOW,
            ),
            _broker(
                "super.users",
                _STRING,
                "Principals that may do everything whatever the ACLs say, separated by semicolons, as in User:admin;User:broker. "
                "The brokers' own principals belong here, or get CLUSTER_ACTION on the cluster by an ACL. Without "
                "authorizer.class.name it only says who passes requests of others on, as brokers do.",
            ),
            _broker(
                "allow.everyone.if.no.acl.found",
                _BOOLEAN,
                "Whether everybody may do everything with a resource that no ACL matches. It has an effect with "
                "authorizer.class.name only.",
            ),
            _broker(
                "firn.audit.log.path",
                _STRING,
                "File to which the broker writes what it refused, what was changed and who logged in, as lines of JSON; off (the "
                "default) writes none. The broker rotates it, and nobody but its user may read it. Each broker needs its own file.",
            ),
            _broker(
                "firn.audit.log.bytes.max",
                _LONG,
                "Size at which the audit log is rotated: FILE is renamed to FILE.1, FILE.1 to FILE.2 and so on.",
                minimum=MIB,
            ),
            _broker(
                "firn.audit.log.files.max",
                _INT,
                "How many files of the audit log are kept, with the one that is written.",
                minimum=2,
                maximum=1000,
            ),
            _broker(
                "firn.audit.topic.enable",
                _BOOLEAN,
                "Whether the lines of the audit log are also records of the topic __firn_audit, which is made when it is first "
                "needed. Whoever may read the topic reads the audit log.",
            ),
            _broker(
                "firn.audit.allowed.one.in",
                _INT,
                "One in so many requests that were allowed and change no settings is in the audit log; 0: none. What was refused "
                "or changed, and logins, are all in it.",
                minimum=0,
            ),
            _broker(
                "firn.log.dir.free.bytes.min",
                _LONG,
                "Producers get a retriable error if the disk of log.dirs has less free space than this.",
                minimum=0,
            ),
            *SECURITY_DEFINITIONS.values(),
        )
    }
)
"""Settings of a broker that are not defaults of topic settings, by name."""


def definition_of_listener(setting: str) -> Definition | None:
    """The definition of ``listener.name.<name>.<setting>``; None for a setting that no listener has of its own."""
    if setting in LIMITS_OF_LISTENERS:
        return BROKER_DEFINITIONS[setting]
    return SECURITY_DEFINITIONS.get(setting) or SECURITY_DEFINITIONS.get(setting.partition(".")[2])
