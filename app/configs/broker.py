"""The settings of a broker. Each is declared once, as a field: ``broker_definitions.py`` makes the table of them.

Tests: ``tests/test_configs.py``, ``tests/test_declaring.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from app.configs.declaring import setting
from app.configs.kinds import ConfigType, Importance, Update
from app.configs.listeners import ListenerConfig, SecurityProtocol
from app.configs.numbers import INT_MAX, KAFKA_DOUBLE_MAX, LONG_MAX, SHORT_MAX
from app.configs.topic import InternalDurability, TopicConfig
from app.core.addresses import FORWARDED_HEADERS
from app.core.limits import (
    DECOMPRESSED_BATCH_BYTES_MAX,
    HTTP_BODY_TIMEOUT_MS,
    HTTP_CONNECTIONS_MAX,
    HTTP_HEADER_TIMEOUT_MS,
    HTTP_INSTANCE_TIMEOUT_MS,
    HTTP_PROCESSES_MAX,
    LOG_CLEANER_THREADS_MAX,
    MIB,
    PARTITIONS_PER_TOPIC_MAX,
    WAL_BYTES_MAX,
)

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_SHORT, _DOUBLE, _LIST, _PASSWORD = ConfigType.SHORT, ConfigType.DOUBLE, ConfigType.LIST, ConfigType.PASSWORD

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
"""The values that ``replica.selector.class`` may have. It may also be empty."""
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The value that ``authorizer.class.name`` may have. It may also be empty."""
NODE_ID_AUTO: Final = -1
"""As ``node_id``: the data directory says which one, or the cluster gives a new one (``--node-id auto``)."""
NEWEST_LEVEL: Final = -1
"""``firn.new.store.level``: the newest level that the program knows."""
OFF: Final = "off"
"""As ``http_address`` and ``firn_audit_log_path``."""


def _partitions(default: int, what: str) -> int:
    text = f"Number of partitions of the topic of {what} when it is created. It must not change afterwards."
    return setting(default, _INT, text, importance=Importance.HIGH, minimum=1, maximum=PARTITIONS_PER_TOPIC_MAX)


def _replicas(default: int, what: str) -> int:
    text = (
        f"Number of replicas of the topic of {what}. While there are fewer brokers, it has as many replicas as there are brokers. "
        "As brokers join, it gets more by itself."
    )
    return setting(default, _SHORT, text, importance=Importance.HIGH, minimum=1)


def _segment_bytes(default: int, what: str) -> int:
    text = (
        f"Segment size of the topic of {what} when it is created. It is small, so that the topic is compacted soon. Less than "
        "1 MiB is raised to 1 MiB, the minimum of every topic."
    )
    return setting(default, _INT, text, importance=Importance.HIGH, minimum=1)


def _min_isr(default: int, kind: ConfigType, what: str) -> int:
    text = f"min.insync.replicas of the topic of {what} when it is created. If the topic has fewer replicas, all must be in sync."
    return setting(default, kind, text, importance=Importance.HIGH, minimum=1)


def _least(default: int, name: str, *, minimum: int = 1, maximum: int | None = None) -> int:
    """A bound of a setting of groups, with Kafka's range for it (``group_bounds.py``)."""
    text = f"Minimum of group.{name}, and of a group's {name}."
    return setting(default, _INT, text, minimum=minimum, maximum=maximum)


def _most(default: int, name: str, *, minimum: int = 1, maximum: int | None = None) -> int:
    """As ``_least``."""
    text = f"Maximum of group.{name}, and of a group's {name}."
    return setting(default, _INT, text, minimum=minimum, maximum=maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process, fixed when it starts. Fields are named like ``TopicConfig``'s."""

    node_id: int = setting(
        1,
        _INT,
        "Number of this broker. Each broker of a cluster has a different one. With auto, the broker gets a number that no "
        "other broker ever had, and keeps it in its data directory.",
        importance=Importance.HIGH,
        minimum=0,
        kafka_default="none",
    )
    """``NODE_ID_AUTO`` until the broker knows it."""
    firn_new_store_level: int = setting(
        NEWEST_LEVEL,
        _INT,
        "Level of the feature firn.version that this broker gives a store that is empty. -1: the newest that it knows. A "
        "lower level is for brokers of an earlier version that are to use the store; at level 0 no other broker can join. "
        "It has no effect on a store that holds a cluster: `firn cluster features --upgrade` raises that one's level.",
        minimum=-1,
    )
    firn_ephemeral: bool = setting(
        False,
        _BOOLEAN,
        "Whether this broker's data directory may be lost whenever it stops, as on a tmpfs. It then leads only topics with "
        "firn.durability=object, and holds nothing that matters. An empty store becomes a cluster whose new "
        "topics have firn.durability=object. It needs firn.version 3. Without node.id, the broker gets one (auto).",
    )
    firn_spot_notice_endpoint: str = setting(
        "",
        _STRING,
        "URL of the metadata service that is asked every five seconds whether this spot machine is about to be taken away, "
        "as http://169.254.169.254 on AWS. The broker then drains and stops. Empty: nobody is asked.",
    )
    broker_rack: str | None = setting(
        None,
        _STRING,
        "Rack or availability zone of this broker. Clients can see it, the uniform assignor prefers members in the "
        "same rack, replicas are spread over racks, and replica.selector.class can choose by it.",
    )
    replica_selector_class: str | None = setting(
        None,
        _STRING,
        "Which replica consumers read from. With Kafka's RackAwareReplicaSelector, consumers with client.rack read from a "
        "replica in their rack that is in sync. Without it they read from the leader.",
        choices=("", LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    )
    """Kafka's class that chooses the replica that a consumer reads from; None or empty for the leader (KIP-392)."""
    leader_replication_throttled_rate: int = setting(
        LONG_MAX,
        _LONG,
        "Bytes a second that this broker, as leader, sends to replicas that are out of sync and named by "
        "leader.replication.throttled.replicas.",
        minimum=0,
        update=Update.CLUSTER_WIDE,
    )
    follower_replication_throttled_rate: int = setting(
        LONG_MAX,
        _LONG,
        "Bytes a second that this broker, as follower, fetches for its replicas that are out of sync and named by "
        "follower.replication.throttled.replicas.",
        minimum=0,
        update=Update.CLUSTER_WIDE,
    )
    replication_quota_window_num: int = setting(
        11, _INT, "Number of samples over which rates of throttled replication are measured.", minimum=1
    )
    replication_quota_window_size_seconds: int = setting(1, _INT, "Length of one of these samples.", minimum=1)
    quota_window_size_seconds: int = setting(
        1, _INT, "How many seconds' worth of its quota a client may use in a burst.", minimum=1
    )
    firn_quota_scope: str = setting(
        "broker",
        _STRING,
        "Whether byte rates of quotas are limits of each broker, as in Kafka, or of the whole cluster. cluster needs "
        "firn.redis.url, and every broker must have it. While Redis is away, each broker allows the limit divided by "
        "the number of brokers.",
        choices=("broker", "cluster"),
    )
    controller_quota_window_num: int = setting(
        11,
        _INT,
        "Number of samples: a client may use so many samples' worth of controller_mutation_rate in a burst.",
        minimum=1,
    )
    controller_quota_window_size_seconds: int = setting(1, _INT, "Length of one of these samples.", minimum=1)
    broker_heartbeat_interval_ms: int = setting(
        500,
        _INT,
        "Time between two heartbeats of a broker of several to the controller.",
        importance=Importance.HIGH,
        minimum=50,
        maximum=1000,
        kafka_default="2000",
    )
    broker_session_timeout_ms: int = setting(
        3000,
        _INT,
        "Time without a heartbeat after which the controller lets others lead what the broker led. It should be several "
        "times broker.heartbeat.interval.ms. The setting of the controller counts.",
        importance=Importance.HIGH,
        minimum=500,
        kafka_default="9000",
    )
    replica_lag_time_max_ms: int = setting(
        30_000,
        _LONG,
        "Time after which a follower that does not reach its leader's end leaves the in-sync set.",
        importance=Importance.HIGH,
        minimum=500,
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000,
        _LONG,
        "Time between two writes of the high watermarks of partitions with several replicas.",
        importance=Importance.HIGH,
        minimum=100,
    )
    auto_leader_rebalance_enable: bool = setting(
        True,
        _BOOLEAN,
        "Whether the first of a partition's replicas leads again, once it is in sync and its broker is stable.",
        importance=Importance.HIGH,
    )
    leader_imbalance_check_interval_seconds: int = setting(
        30,
        _LONG,
        "Time between two checks of the controller for partitions that their first replica could lead again, and how "
        "long the broker of that replica must have been alive without a break. All are moved together: a check waits for "
        "brokers that have just come, at most ten intervals. Firn's own default.",
        importance=Importance.HIGH,
        minimum=1,
        kafka_default="300",
    )
    firn_instance_id: str = setting(
        "",
        _STRING,
        "Name of the machine that the broker runs on, for example i-0abc… of EC2. The broker registers it with its node "
        "id, and `firn cluster place` prints it.",
    )
    data_dir: str = setting(
        "./firn-data",
        _STRING,
        "Directory of the local partition logs.",
        name="log.dirs",
        importance=Importance.HIGH,
        kafka_default="/tmp/kafka-logs",
    )
    store_url: str = setting(
        "",
        _STRING,
        "Object store of the cluster: file:///path or s3://bucket/prefix. By default a directory next to log.dirs.",
        name="firn.store.url",
        importance=Importance.HIGH,
    )
    """``file:///path`` or ``s3://bucket/prefix``; empty is the directory ``<data-dir>-store`` beside the data."""
    wal_store_url: str = setting(
        "",
        _STRING,
        "Store of the write-ahead logs of topics with firn.durability=object: file:///path or s3://bucket/prefix, for "
        "example a bucket of S3 Express, or a shared file system. Empty: they are in firn.store.url. All brokers of a "
        "cluster have the same one, and it needs firn.version 3.",
        name="firn.wal.store.url",
        importance=Importance.HIGH,
    )
    listen_host: str = "127.0.0.1"
    listen_port: int = 9092
    """0 lets the system choose a free port."""
    advertised_host: str = ""
    """The host to which clients connect; empty means ``listen_host``."""
    advertised_port: int = 0
    """0 means the port of the listener."""
    listeners: tuple[ListenerConfig, ...] = ()
    """All listeners; empty for the plain one of ``listen_host``. With some, the four fields above are of the ``local`` one."""
    inter_broker_listener: str = "PLAINTEXT"
    """Name of the listener on which brokers reach each other."""
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings of listeners as they were given, secrets among them."""
    http_address: str = setting(
        "127.0.0.1:8080", _STRING, "Address of the HTTP interface, or off.", name="firn.http.listen"
    )
    firn_http_allowed_hosts: frozenset[str] = setting(
        frozenset(),
        _LIST,
        "Host names (NAME, NAME:PORT, *.NAME) that are allowed in the Host header of HTTP requests. localhost, the "
        "address that received the request and the advertised address are always allowed. * allows any name, and so "
        "DNS rebinding by web pages.",
    )
    firn_http_allowed_origins: frozenset[str] = setting(
        frozenset(),
        _LIST,
        "Origins (https://NAME, http://NAME:PORT) whose web pages may use the HTTP interface, in addition to its own "
        "pages. * allows every page in an operator's browser to write.",
    )
    firn_http_client_config: str = setting(
        "",
        _STRING,
        "File with Kafka's client settings, by which the HTTP process reaches the broker if a listener has TLS or a "
        "login: whom to trust, and its own user, whom it needs only with firn.http.anonymous.enable. Default: "
        "the truststore of the listener.",
    )
    firn_http_anonymous_enable: bool = setting(
        False,
        _BOOLEAN,
        "Whether HTTP requests without a user and without a token have the rights of the user of "
        "firn.http.client.config, where Kafka's clients have to log in.",
    )
    firn_http_plain_credentials_enable: bool = setting(
        False,
        _BOOLEAN,
        "Whether HTTP takes passwords and tokens without TLS at an address that other machines reach, because a proxy "
        "in front of it encrypts.",
    )
    firn_console_mask: frozenset[str] = setting(
        frozenset(),
        _LIST,
        "Fields of messages that the console's pages and files hide: TOPICS:FIELD.FIELD, TOPICS:@key or TOPICS:@headers, "
        "such as orders-*:customer.email. Kafka clients and HTTP's other paths still show these fields.",
    )
    firn_console_read_only: bool = setting(
        False,
        _BOOLEAN,
        "Whether the console is read-only: its pages offer no change, and refuse each one. The setting affects neither the "
        "rights of callers nor HTTP's other paths.",
    )
    firn_http_trusted_proxies: frozenset[str] = setting(
        frozenset(),
        _LIST,
        "Addresses and networks (10.0.0.7, 10.1.0.0/24) of the proxies in front of HTTP. The header of "
        "firn.http.forwarded.header names the client. This header is ignored from all other addresses.",
    )
    firn_http_forwarded_header: str = setting(
        FORWARDED_HEADERS[0],
        _STRING,
        "Header in which proxies in front of HTTP name their clients: x-forwarded-for or forwarded (RFC 7239). Name the "
        "one that the proxies set themselves: another one is passed on as a client wrote it.",
        choices=FORWARDED_HEADERS,
        any_case=True,
    )
    firn_trusted_proxies: frozenset[str] = setting(
        frozenset(),
        _LIST,
        "Addresses and networks of HTTP processes, which may say for which client they connect, where clients log in. "
        "ACLs and the audit log see that client's address then. Whoever connects from there can name any address.",
    )
    firn_http_ssl_keystore_type: str = setting(
        "PEM", _STRING, "Format of the key and the certificates of HTTPS. It must be PEM."
    )
    firn_http_ssl_keystore_location: str = setting(
        "",
        _STRING,
        "PEM file with the private key and the chain of certificates of HTTPS. A changed file is read again. Without it "
        "HTTP is plain.",
    )
    firn_http_ssl_keystore_key: str = setting("", _PASSWORD, "The private key of HTTPS itself, as PEM text.")
    firn_http_ssl_keystore_certificate_chain: str = setting(
        "", _PASSWORD, "The chain of certificates of HTTPS itself, as PEM text."
    )
    firn_http_ssl_key_password: str = setting("", _PASSWORD, "Password of the private key of HTTPS.")
    firn_http_ssl_enabled_protocols: frozenset[str] = setting(
        frozenset({"TLSv1.2", "TLSv1.3"}), _LIST, "Versions of TLS of HTTPS.", choices=("TLSv1.2", "TLSv1.3")
    )
    firn_http_ssl_cipher_suites: str = setting(
        "", _STRING, "Cipher suites of HTTPS, separated by commas; empty for OpenSSL's choice."
    )
    firn_http_ssl_client_auth: str = setting(
        "none",
        _STRING,
        "Whether HTTPS asks callers for a certificate. It must be none: a caller's certificate cannot be passed on to "
        "brokers.",
    )
    firn_http_max_connections: int = setting(
        HTTP_CONNECTIONS_MAX,
        _INT,
        "Maximum number of HTTP connections at a time. Beyond it a new connection replaces an idle one. If no "
        "connection is idle, new connections get responses to health checks only.",
        minimum=1,
    )
    firn_http_idempotency_retention_ms: int = setting(
        3_600_000,
        _LONG,
        "How long the result of an HTTP request with an Idempotency-Key is kept at least. A repeat within it gets the same "
        "answer. A rate of r keys a second needs room for r times as many keys as there are seconds.",
        minimum=60_000,
        update=Update.CLUSTER_WIDE,
    )
    firn_http_processes: int = setting(
        1,
        _INT,
        "Processes that share the port of HTTP, each with a core's work. The limits of HTTP hold for each of them. A request "
        "for a consumer instance of another process is passed on to it.",
        minimum=1,
        maximum=HTTP_PROCESSES_MAX,
    )
    firn_http_header_timeout_ms: int = setting(
        HTTP_HEADER_TIMEOUT_MS,
        _INT,
        "Time that a client has to send the head of an HTTP request, counted from the connection or from the first byte.",
        minimum=1,
    )
    firn_http_body_timeout_ms: int = setting(
        HTTP_BODY_TIMEOUT_MS,
        _INT,
        "Time without progress after which an HTTP request is given up, because its body does not arrive or its response "
        "is not read. Progress is a whole record, or 1 KiB a second.",
        minimum=1,
    )
    firn_http_consumer_instance_timeout_ms: int = setting(
        HTTP_INSTANCE_TIMEOUT_MS,
        _INT,
        "Time without a request after which a consumer instance of REST v2 leaves its group and is forgotten.",
        minimum=1,
    )
    redis_url: str | None = setting(
        None,
        _PASSWORD,
        "Redis for limits of the whole cluster (firn.quota.scope), and for the signs of life of a broker whose store is at "
        "level 0 of firn.version. Without it, and at higher levels, signs of life are objects in the store.",
        name="firn.redis.url",
    )
    """It may have a password."""
    num_partitions: int = setting(
        1,
        _INT,
        "Number of partitions of a new topic if its creator does not specify one.",
        minimum=1,
        maximum=PARTITIONS_PER_TOPIC_MAX,
    )
    default_replication_factor: int = setting(
        1,
        _INT,
        "Number of replicas of a new topic if its creator does not specify it. Never more than the number of brokers.",
        minimum=1,
        maximum=SHORT_MAX,
    )
    auto_create_topics_enable: bool = setting(
        True,
        _BOOLEAN,
        "Whether a request for the metadata of a missing topic creates the topic, if the client allows it.",
        importance=Importance.HIGH,
    )
    delete_topic_enable: bool = setting(
        True, _BOOLEAN, "Whether topics can be deleted; if not, DeleteTopics is refused.", importance=Importance.HIGH
    )
    socket_request_max_bytes: int = setting(
        104_857_600,
        _INT,
        "Maximum size of a request. A larger request closes its connection.",
        importance=Importance.HIGH,
        minimum=1024,
    )
    socket_send_buffer_bytes: int = setting(
        102_400,
        _INT,
        "Size of the kernel's send buffer of each fetching connection. With few fetching connections each gets up to "
        "four times as much. -1: the kernel chooses the size, for distant readers.",
        importance=Importance.HIGH,
        minimum=-1,
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        _LONG,
        "Memory for requests that are still arriving, over all connections. If it is full, reading waits. -1: no limit.",
        minimum=-1,
        kafka_default="-1",
    )
    connections_max_idle_ms: int = setting(
        600_000, _LONG, "Time after which a connection without requests is closed. -1: never.", minimum=-1
    )
    max_connections: int = setting(
        INT_MAX,
        _INT,
        "Maximum number of connections at a time, and never more than half of the files that the process may open. Further "
        "connections wait until others are closed. On the listener between brokers, if there are others, a connection "
        "does not wait: the connection of another listener that was used least recently is closed. "
        "listener.name.….max.connections limits one listener.",
        minimum=0,
        update=Update.CLUSTER_WIDE,
    )
    max_connections_per_ip: int = setting(
        INT_MAX,
        _INT,
        "Maximum number of connections of one address. Further ones are closed at once. It can be 0 only if "
        "max.connections.per.ip.overrides names who may connect.",
        minimum=0,
        update=Update.CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides: str = setting(
        "",
        _STRING,
        "Maximum number of connections of single addresses, instead of max.connections.per.ip: ADDRESS:NUMBER,…. Names of "
        "hosts are not looked up.",
        update=Update.CLUSTER_WIDE,
    )
    max_connection_creation_rate: int = setting(
        INT_MAX,
        _INT,
        "Connections that are accepted in a second. Further ones wait. The listener between brokers, if there are others, "
        "is not held to it. listener.name.….max.connection.creation.rate limits one listener.",
        minimum=0,
        update=Update.CLUSTER_WIDE,
    )
    fetch_max_bytes: int = setting(
        57_671_680,
        _INT,
        "Maximum bytes of records in one Fetch response, even if the client allows more.",
        minimum=1024,
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        1000, _INT, "Maximum number of incremental fetch sessions at a time.", minimum=0
    )
    max_request_partition_size_limit: int = setting(
        2000, _INT, "Maximum number of partitions in one DescribeTopicPartitions response.", minimum=1
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        _INT,
        "Time after which an idempotent producer that writes nothing is forgotten.",
        importance=Importance.LOW,
        minimum=1,
        update=Update.CLUSTER_WIDE,
    )
    offsets_topic_num_partitions: int = _partitions(50, "committed offsets and groups")
    offsets_topic_replication_factor: int = _replicas(3, "committed offsets and groups")
    offsets_topic_segment_bytes: int = _segment_bytes(104_857_600, "committed offsets and groups")
    transaction_state_log_num_partitions: int = _partitions(50, "the state of transactions")
    transaction_state_log_replication_factor: int = _replicas(3, "the state of transactions")
    transaction_state_log_segment_bytes: int = _segment_bytes(104_857_600, "the state of transactions")
    share_coordinator_state_topic_num_partitions: int = _partitions(50, "the state of share groups")
    share_coordinator_state_topic_replication_factor: int = _replicas(3, "the state of share groups")
    share_coordinator_state_topic_segment_bytes: int = _segment_bytes(104_857_600, "the state of share groups")
    transaction_state_log_min_isr: int = _min_isr(2, _INT, "the state of transactions")
    share_coordinator_state_topic_min_isr: int = _min_isr(2, _SHORT, "the state of share groups")
    transaction_max_timeout_ms: int = setting(
        900_000,
        _INT,
        "Maximum transaction timeout that a producer may request. A transaction that stays open past its timeout is "
        "aborted.",
        importance=Importance.HIGH,
        minimum=1,
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        _INT,
        "Time after which the broker forgets a transactional id that begins and ends no transaction.",
        importance=Importance.HIGH,
        minimum=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000,
        _INT,
        "Interval at which the broker looks for expired transactional ids.",
        importance=Importance.LOW,
        minimum=1,
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        _BOOLEAN,
        "Whether the broker refuses the first batch of a transaction in a partition that was not added to the transaction.",
        importance=Importance.LOW,
        update=Update.CLUSTER_WIDE,
    )
    offsets_commit_timeout_ms: int = setting(
        5000,
        _INT,
        "How long a response of the group coordinator waits until the replicas in sync have stored its records. Then the "
        "client is told to try again.",
        importance=Importance.HIGH,
        minimum=1,
    )
    offsets_retention_minutes: int = setting(
        10_080,
        _INT,
        "Time after which unused committed offsets are deleted: offsets of a group without members, or of a topic that "
        "the group no longer reads.",
        importance=Importance.HIGH,
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        _LONG,
        "Interval at which the broker looks for committed offsets to delete.",
        importance=Importance.HIGH,
        minimum=1,
    )
    offset_metadata_max_bytes: int = setting(
        4096, _INT, "Maximum size of the metadata that is committed with an offset.", importance=Importance.HIGH
    )
    group_min_session_timeout_ms: int = setting(
        6000, _INT, "Minimum session timeout that a member of a classic group may request."
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, _INT, "Maximum session timeout that a member of a classic group may request."
    )
    group_initial_rebalance_delay_ms: int = setting(
        3000,
        _INT,
        "Time that an empty classic group waits for more members after the first, before it assigns partitions.",
    )
    group_max_size: int = setting(INT_MAX, _INT, "Maximum number of members of a classic group.", minimum=1)
    group_consumer_session_timeout_ms: int = setting(
        45_000,
        _INT,
        "Time without a heartbeat after which a member is removed from its consumer group (KIP-848).",
        minimum=1,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5000, _INT, "Interval at which members of consumer groups must send heartbeats.", minimum=1
    )
    group_consumer_assignment_interval_ms: int = setting(
        1000,
        _INT,
        "Minimum time between two assignments of a consumer group's partitions. Members that join together are assigned "
        "together (KIP-1263). 0: assign after every change.",
        minimum=0,
        update=Update.CLUSTER_WIDE,
    )
    group_consumer_max_size: int = setting(INT_MAX, _INT, "Maximum number of members of a consumer group.", minimum=1)
    group_consumer_assignors: tuple[str, ...] = setting(
        ("uniform", "range"),
        _LIST,
        "Assignors that consumer groups can use. uniform balances partitions and moves few of them. range gives the "
        "partitions with the same number to the same member. A group that names no assignor uses the first.",
        choices=("uniform", "range"),
        ordered=True,
    )
    """The first is the default of groups."""
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        _STRING,
        "Whether a group may change its protocol while it has members: to the consumer protocol (upgrade), to the classic "
        "protocol (downgrade), both (bidirectional), or neither (disabled).",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        any_case=True,
    )
    group_share_session_timeout_ms: int = setting(
        45_000,
        _INT,
        "Time without a heartbeat after which a member is removed from its share group (KIP-932).",
        minimum=1,
    )
    group_share_heartbeat_interval_ms: int = setting(
        5000, _INT, "Interval at which members of share groups must send heartbeats.", minimum=1
    )
    group_share_assignment_interval_ms: int = setting(
        1000,
        _INT,
        "Like group.consumer.assignment.interval.ms, for share groups.",
        minimum=0,
        update=Update.CLUSTER_WIDE,
    )
    group_share_max_size: int = setting(
        200, _INT, "Maximum number of members of a share group.", minimum=1, maximum=1000
    )
    group_share_delivery_count_limit: int = setting(
        5, _INT, "Maximum number of deliveries of a record to members of a share group.", minimum=2, maximum=10
    )
    group_share_record_lock_duration_ms: int = setting(
        30_000,
        _INT,
        "Time that a member of a share group has for a record before another member may get the record.",
        minimum=1000,
        maximum=3_600_000,
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        500,
        _INT,
        "Maximum number of updates of a share group's progress in a partition between two snapshots. The next snapshot is "
        "written earlier if the updates together contain as much as a snapshot.",
        minimum=0,
        maximum=500,
    )
    group_share_partition_max_record_locks: int = setting(
        2000,
        _INT,
        "Maximum number of records of a partition between the oldest unfinished record of a share group and the newest "
        "record that one of its members got.",
        minimum=100,
        maximum=10_000,
    )
    group_share_max_share_sessions: int = setting(
        2000,
        _INT,
        "Maximum number of share sessions of a broker. Each member of a share group that reads from the broker has one.",
        minimum=1,
    )
    group_consumer_min_session_timeout_ms: int = _least(45_000, "consumer.session.timeout.ms")
    group_consumer_max_session_timeout_ms: int = _most(60_000, "consumer.session.timeout.ms")
    group_consumer_min_heartbeat_interval_ms: int = _least(5000, "consumer.heartbeat.interval.ms")
    group_consumer_max_heartbeat_interval_ms: int = _most(15_000, "consumer.heartbeat.interval.ms")
    group_consumer_min_assignment_interval_ms: int = _least(0, "consumer.assignment.interval.ms", minimum=0)
    group_consumer_max_assignment_interval_ms: int = _most(15_000, "consumer.assignment.interval.ms", minimum=0)
    group_share_min_session_timeout_ms: int = _least(45_000, "share.session.timeout.ms")
    group_share_max_session_timeout_ms: int = _most(60_000, "share.session.timeout.ms")
    group_share_min_heartbeat_interval_ms: int = _least(5000, "share.heartbeat.interval.ms")
    group_share_max_heartbeat_interval_ms: int = _most(15_000, "share.heartbeat.interval.ms")
    group_share_min_assignment_interval_ms: int = _least(0, "share.assignment.interval.ms", minimum=0)
    group_share_max_assignment_interval_ms: int = _most(15_000, "share.assignment.interval.ms", minimum=0)
    group_share_min_record_lock_duration_ms: int = _least(
        15_000, "share.record.lock.duration.ms", minimum=1000, maximum=30_000
    )
    group_share_max_record_lock_duration_ms: int = _most(
        60_000, "share.record.lock.duration.ms", minimum=30_000, maximum=3_600_000
    )
    group_share_min_delivery_count_limit: int = _least(2, "share.delivery.count.limit", minimum=2, maximum=5)
    group_share_max_delivery_count_limit: int = _most(10, "share.delivery.count.limit", minimum=5, maximum=25)
    group_share_min_partition_max_record_locks: int = _least(
        100, "share.partition.max.record.locks", minimum=100, maximum=2000
    )
    group_share_max_partition_max_record_locks: int = _most(
        4000, "share.partition.max.record.locks", minimum=2000, maximum=10_000
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        600_000,
        _INT,
        "Interval at which a subscribed regular expression is matched against all topics again. New and deleted topics "
        "take effect at once.",
        minimum=10_000,
    )
    firn_internal_durability: InternalDurability = setting(
        InternalDurability.AUTO,
        _STRING,
        "firn.durability of the topics __consumer_offsets, __transaction_state and __share_group_state when they are "
        "made: memory, disk or object. With auto they get object if firn.version is at least 3, and object is the brokers' "
        "default or the setting of any topic, or the broker has no disk (--ephemeral); otherwise the brokers' default. "
        "Topics that exist keep theirs; to change it, set firn.durability=object,remote.storage.enable=true on each of "
        "them, which cannot be taken back. With object, committed offsets, transactional ids, open transactions and the "
        "progress of share groups survive the loss of all disks.",
        update=Update.CLUSTER_WIDE,
    )
    wal_bytes: int = setting(
        8_388_608,
        _INT,
        "An object of this broker's write-ahead log is put when so many bytes wait, or when the oldest batch has waited "
        "for wal.linger.ms. A batch that is longer gets an object of its own.",
        minimum=64 * 1024,
        maximum=WAL_BYTES_MAX,
    )
    wal_buffer_bytes: int = setting(
        150_994_944,
        _LONG,
        "Memory for batches that are not yet in the write-ahead log. If it is full, because the object store is slow or "
        "away, producers of topics with firn.durability=object get a retriable error. At least twice wal.bytes.",
        minimum=128 * 1024,
    )
    """Twice the bytes that may be under way at once: the window of 8 objects and the next one."""
    wal_retention_bytes: int = setting(
        1_073_741_824,
        _LONG,
        "If this broker's write-ahead log is longer than this, or has more than 4,096 objects, the partitions that need "
        "its oldest objects close their segments and tier them, so that the objects can be deleted. A take-over reads a "
        "small part of each object.",
        minimum=MIB,
    )
    """128 full objects: a take-over reads the footer of each, and they cost two cents a month."""
    remote_log_manager_task_interval_ms: int = setting(
        30_000,
        _LONG,
        "Interval at which the broker looks for segments to delete from the object store and from the local disk, unless "
        "log.retention.check.interval.ms is shorter. Segments are copied to the store when they roll.",
        minimum=1,
    )
    remote_fetch_max_wait_ms: int = setting(
        500,
        _INT,
        "Maximum time that a Fetch waits for data from the object store, even if the client would wait longer. The "
        "response then has the data that has arrived. Data that arrives later is kept for the next Fetch.",
        minimum=1,
        update=Update.CLUSTER_WIDE,
    )
    log_retention_check_interval_ms: int = setting(
        300_000,
        _LONG,
        "Interval at which the broker looks for segments older than retention.ms, in both tiers. The first look at a "
        "partition is this time after the broker began to lead it, and a segment stays at least this time after it "
        "rolled. retention.bytes is also checked every remote.log.manager.task.interval.ms, if that is shorter.",
        minimum=1,
    )
    log_cleaner_enable: bool = setting(
        True,
        _BOOLEAN,
        "Whether logs with cleanup.policy=compact are compacted. If not, they grow without limit, internal topics too.",
    )
    log_cleaner_threads: int = setting(
        1,
        _INT,
        "Number of logs that are compacted at the same time, each by its own process. 0: none.",
        minimum=0,
        maximum=LOG_CLEANER_THREADS_MAX,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        _LONG,
        "Time until the log cleaner looks again if no log had to be compacted.",
        minimum=0,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        25_165_824,
        _LONG,
        "Memory for the maps from keys to newest offsets, of all log.cleaner.threads together. A log with more keys needs "
        "several rounds.",
        minimum=1024 * 1024,
        kafka_default="134217728",
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_size: int = setting(
        2_097_152,
        _INT,
        "Memory for the read and write buffers of compaction, of all log.cleaner.threads together. Only a larger batch "
        "uses more.",
        minimum=0,
        kafka_default="524288",
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9,
        _DOUBLE,
        "Share of the map from keys to newest offsets that may be filled. A fuller map makes the search for a key slower.",
        minimum=0.01,
        maximum=0.99,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        KAFKA_DOUBLE_MAX,
        _DOUBLE,
        "Maximum bytes a second that compaction reads and writes together.",
        minimum=1,
        update=Update.CLUSTER_WIDE,
    )
    firn_metrics_lag_series_max: int = setting(
        10_000,
        _INT,
        "Maximum number of partitions whose consumer-group lag is in the metrics. Groups with members come first; "
        "firn_group_lag_left_out counts the partitions left out. 0: none.",
        minimum=0,
    )
    """Each partition has two samples. The maximum is some 3 MB of text, and 0.1 s of the broker's time in small pieces at each
    scrape."""
    telemetry_max_bytes: int = setting(
        MIB,
        _INT,
        "Maximum bytes of metrics that a client may push at once, compressed (KIP-714). They may decompress to four times as many.",
        minimum=1,
    )
    firn_telemetry_series_max: int = setting(
        20_000,
        _INT,
        "Maximum number of time series of clients' metrics (KIP-714) that this broker keeps and shows at /metrics. "
        "firn_telemetry_points_dropped_total counts the points beyond. 0: none are kept.",
        minimum=0,
    )
    """A series takes some 400 bytes, so the default takes 8 MB."""
    firn_telemetry_client_series_max: int = setting(
        500,
        _INT,
        "Maximum number of time series of one client's metrics (KIP-714).",
        minimum=0,
    )
    firn_tracing_endpoint: str = setting(
        "",
        _STRING,
        "URL to which this broker sends traces of sampled requests by OTLP over HTTP, such as http://localhost:4318/v1/traces. "
        "It needs the extra tracing. Empty: nothing is traced.",
    )
    firn_tracing_sample_ratio: float = setting(
        0.01,
        _DOUBLE,
        "Share of Produce and Fetch requests that are traced. At most 50 traces begin in a second.",
        minimum=0,
        maximum=1,
    )
    firn_chunk_cache_bytes: int = setting(
        1_073_741_824, _LONG, "Local disk space for chunks from the object store.", minimum=0
    )
    firn_read_ahead_bytes: int = setting(
        268_435_456,
        _LONG,
        "Memory for read-ahead from the object store, of all sequential readers together.",
        minimum=0,
    )
    firn_decompressed_batch_bytes_max: int = setting(
        67_108_864,
        _INT,
        "Maximum decompressed size of a produced batch. It applies to topics whose batches the broker decompresses: "
        "compacted topics, and topics with a compression.type other than producer. max.message.bytes limits compressed "
        "bytes.",
        minimum=MIB,
        maximum=DECOMPRESSED_BATCH_BYTES_MAX,
    )
    firn_loop_stall_ms: int = setting(
        50,
        _INT,
        "If the broker's event loop stands still for longer, so that no client is served, the log says for how long and "
        "which request or timer it was, and firn_loop_stalls_total counts it. 0: the loop is not watched.",
        minimum=0,
    )
    firn_log_format: str = setting(
        "text",
        _STRING,
        "Format of the log on standard error. text: for people. json: each line is one JSON object with time, level, event and "
        "message, for programs; docs/log-events.md lists the names of events.",
        choices=("text", "json"),
    )
    firn_preparation_bytes_max: int = setting(
        268_435_456,
        _LONG,
        "Memory for produced batches that are being decompressed, checked and recompressed, over all connections. Further "
        "batches wait.",
        minimum=MIB,
    )
    authorizer_class_name: str = setting(
        "",
        _STRING,
        "Kafka's StandardAuthorizer, so that ACLs and super.users decide what callers may do. Without it everybody who can "
        "connect may do everything, and there are no ACLs. ACLs need firn.version 2.",
        choices=("", STANDARD_AUTHORIZER),
    )
    """Kafka's class whose rules authorize callers' requests; empty if every caller may do everything."""
    firn_cluster_log_key: str | None = setting(
        None,
        _PASSWORD,
        "Keys in base64, of 32 bytes or more, separated by commas: the same on every broker, and nowhere else. The first "
        "proves that a broker has written an entry of the cluster log, and each is enough to check that. A broker that "
        "finds an entry without such a proof stops. Empty for none.",
    )
    """Keys that prove that brokers have written the cluster log, the one that is used first; None or empty for none."""
    firn_cluster_log_key_location: str = setting(
        "",
        _STRING,
        "File with the keys of firn.cluster.log.key, one a line. Set one of the two. Only the brokers' user may read it.",
    )
    firn_cluster_log_key_introducing: bool = setting(
        False,
        _BOOLEAN,
        "Accept entries without a proof, too. Set it only while the key is introduced or taken away by rolling restarts.",
    )
    delegation_token_secret_key: str | None = setting(
        None,
        _PASSWORD,
        "Key from which the secrets of delegation tokens are derived. Every broker must have the same one, and another one "
        "ends all tokens. Without it there are no delegation tokens. They need firn.version 2.",
    )
    """The key from which secrets of delegation tokens are derived; None or empty if there are no tokens."""
    delegation_token_max_lifetime_ms: int = setting(
        604_800_000, _LONG, "Time after which a delegation token ends even if it is renewed.", minimum=1
    )
    delegation_token_expiry_time_ms: int = setting(
        86_400_000, _LONG, "Time for which a delegation token is valid before it has to be renewed.", minimum=1
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        3_600_000,
        _LONG,
        "Time between two searches for delegation tokens that have ended, to remove them.",
        minimum=1,
        importance=Importance.LOW,
    )
    super_users: str = setting(
        "",
        _STRING,
        "Principals that may do everything whatever the ACLs say, separated by semicolons, as in User:admin;User:broker. "
        "The brokers' own principals belong here, or get CLUSTER_ACTION on the cluster by an ACL. Without "
        "authorizer.class.name it only says who passes requests of others on, as brokers do.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False,
        _BOOLEAN,
        "Whether everybody may do everything with a resource that no ACL matches. It has an effect with "
        "authorizer.class.name only.",
    )
    firn_audit_log_path: str = setting(
        OFF,
        _STRING,
        "File to which the broker writes what it refused, what was changed and who logged in, as lines of JSON; off (the "
        "default) writes none. The broker rotates it, and nobody but its user may read it. Each broker needs its own file.",
    )
    firn_audit_log_bytes_max: int = setting(
        67_108_864,
        _LONG,
        "Size at which the audit log is rotated: FILE is renamed to FILE.1, FILE.1 to FILE.2 and so on.",
        minimum=MIB,
    )
    firn_audit_log_files_max: int = setting(
        10, _INT, "How many files of the audit log are kept, with the one that is written.", minimum=2, maximum=1000
    )
    firn_audit_topic_enable: bool = setting(
        False,
        _BOOLEAN,
        "Whether the lines of the audit log are also records of the topic __firn_audit, which is made when it is first "
        "needed. Whoever may read the topic reads the audit log.",
    )
    firn_audit_allowed_one_in: int = setting(
        1000,
        _INT,
        "One in so many requests that were allowed and change no settings is in the audit log; 0: none. What was refused "
        "or changed, and logins, are all in it.",
        minimum=0,
    )
    firn_log_dir_free_bytes_min: int = setting(
        1_073_741_824,
        _LONG,
        "Producers get a retriable error if the disk of log.dirs has less free space than this.",
        minimum=0,
    )
    store_create: bool = False
    """Whether a missing or empty store directory becomes a new store of a broker whose data directory may be lost."""
    take_over: bool = False
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    """Settings of a topic without its own overrides and without broker overrides."""
    without_effect: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Given settings of Kafka that have no effect in Firn, with their texts. Secrets are left out."""

    @property
    def wal_linger_ms(self) -> int:
        """How long a batch waits in the write-ahead log's buffer, in topics that do not say otherwise."""
        return self.topic_defaults.firn_wal_linger_ms

    @property
    def served(self) -> tuple[ListenerConfig, ...]:
        """All listeners. The one between brokers is the first: others ask for the first endpoint of a registration."""
        if not self.listeners:
            return (
                ListenerConfig(
                    name="PLAINTEXT",
                    host=self.listen_host,
                    port=self.listen_port,
                    advertised_host=self.advertised_host,
                    advertised_port=self.advertised_port,
                ),
            )
        return tuple(sorted(self.listeners, key=lambda one: one.name != self.inter_broker_listener))

    @property
    def local(self) -> ListenerConfig:
        """The listener that this machine's own processes use: a plain one if there is one, else the one between brokers."""
        plain = [one for one in self.served if one.protocol is SecurityProtocol.PLAINTEXT]
        return plain[0] if plain else self.served[0]

    @property
    def http_listener(self) -> ListenerConfig:
        """The listener that the HTTP process uses: one with a login if there is one, so that its callers are asked who they are,
        and rather one for clients than the one between brokers. Else ``local``."""
        with_login = [one for one in self.listeners if one.protocol.sasl]
        return min(with_login, key=lambda one: one.name == self.inter_broker_listener, default=self.local)

    @property
    def has_https(self) -> bool:
        """Whether HTTP is encrypted."""
        return bool(self.firn_http_ssl_keystore_location or self.firn_http_ssl_keystore_key)

    @property
    def open(self) -> bool:
        """Whether every listener is plain, so that no client logs in."""
        return all(one.protocol is SecurityProtocol.PLAINTEXT for one in self.listeners)

    @property
    def audited(self) -> bool:
        """Whether clients' requests are audited: written to the audit log, or counted because they can be refused."""
        return (
            self.firn_audit_log_path != OFF
            or self.firn_audit_topic_enable
            or bool(self.authorizer_class_name)
            or not self.open
        )

    @property
    def needs_users(self) -> bool:
        """Whether clients log in with users that the cluster log has."""
        return any(name.startswith("SCRAM-") for one in self.listeners for name in one.mechanisms)

    @property
    def security_numbers(self) -> tuple[int, int, int]:
        """Time for authentication, connections that are at it, and delay of a failure: of the broker, not of one listener."""
        general = ListenerConfig(name="", settings=self.security)
        return (
            general.number("firn.authentication.timeout.ms", 30_000),
            general.number("firn.unauthenticated.connections.max", 1000),
            general.number("connection.failed.authentication.delay.ms", 100),
        )
