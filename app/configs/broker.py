"""The settings of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from app.addresses import FORWARDED_HEADERS
from app.configs.listeners import ListenerConfig, SecurityProtocol
from app.configs.numbers import INT_MAX, KAFKA_DOUBLE_MAX, LONG_MAX
from app.configs.topic import InternalDurability, TopicConfig
from app.limits import HTTP_BODY_TIMEOUT_MS, HTTP_CONNECTIONS_MAX, HTTP_HEADER_TIMEOUT_MS

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process, fixed when it starts. Fields are named like ``TopicConfig``'s."""

    node_id: int = 1
    """``NODE_ID_AUTO`` until the broker knows it."""
    firn_new_store_level: int = NEWEST_LEVEL
    """Level of ``firn.version`` of a store that is empty now."""
    firn_ephemeral: bool = False
    """Whether the data directory may be lost at any time: the broker leads only topics with ``firn.durability=object``."""
    firn_spot_notice_endpoint: str = ""
    """URL of the machine's metadata service, which is asked for spot notices; empty if none is."""
    broker_rack: str | None = None
    replica_selector_class: str | None = None
    """Kafka's class that chooses the replica that a consumer reads from; None or empty for the leader (KIP-392)."""
    leader_replication_throttled_rate: int = LONG_MAX
    """Bytes a second that this broker sends to throttled replicas that are out of sync (KIP-73)."""
    follower_replication_throttled_rate: int = LONG_MAX
    """Bytes a second that this broker fetches for throttled replicas that are out of sync."""
    replication_quota_window_num: int = 11
    replication_quota_window_size_seconds: int = 1
    firn_instance_id: str = ""
    """The operator's name of this machine; may be empty."""
    quota_window_size_seconds: int = 1
    """How many seconds' worth of its quota a client may use in a burst."""
    firn_quota_scope: str = "broker"
    """``broker`` or ``cluster``: whose the byte rates of quotas are."""
    controller_quota_window_num: int = 11
    controller_quota_window_size_seconds: int = 1
    """With the number: how many seconds' worth of controller_mutation_rate a client may use in a burst."""
    data_dir: str = "./firn-data"
    store_url: str = ""
    """``file:///path`` or ``s3://bucket/prefix``; empty is the directory ``<data-dir>-store`` beside the data."""
    wal_store_url: str = ""
    """Store of write-ahead logs; empty if they are in the same one as everything else (ADR 0037, J61)."""
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
    http_address: str = "127.0.0.1:8080"
    """``host:port`` of the HTTP process, or ``off``."""
    firn_http_allowed_hosts: frozenset[str] = frozenset()
    firn_http_allowed_origins: frozenset[str] = frozenset()
    firn_http_max_connections: int = HTTP_CONNECTIONS_MAX
    firn_http_header_timeout_ms: int = HTTP_HEADER_TIMEOUT_MS
    firn_http_body_timeout_ms: int = HTTP_BODY_TIMEOUT_MS
    firn_http_client_config: str = ""
    firn_http_anonymous_enable: bool = False
    firn_http_plain_credentials_enable: bool = False
    firn_http_trusted_proxies: frozenset[str] = frozenset()
    firn_http_forwarded_header: str = FORWARDED_HEADERS[0]
    firn_trusted_proxies: frozenset[str] = frozenset()
    """Networks of proxies that may name the clients behind their connections."""
    firn_http_ssl_keystore_type: str = "PEM"
    firn_http_ssl_keystore_location: str = ""
    firn_http_ssl_keystore_key: str = field(default="", repr=False)
    firn_http_ssl_keystore_certificate_chain: str = field(default="", repr=False)
    firn_http_ssl_key_password: str = field(default="", repr=False)
    firn_http_ssl_enabled_protocols: frozenset[str] = frozenset({"TLSv1.2", "TLSv1.3"})
    firn_http_ssl_cipher_suites: str = ""
    firn_http_ssl_client_auth: str = "none"
    redis_url: str | None = field(default=None, repr=False)
    """It may have a password."""
    store_create: bool = False
    """Whether a missing or empty store directory becomes a new store of a broker whose data directory may be lost."""
    take_over: bool = False
    authorizer_class_name: str = ""
    """Kafka's class whose rules authorize callers' requests; empty if every caller may do everything."""
    super_users: str = ""
    """Principals that may do everything, separated by semicolons."""
    allow_everyone_if_no_acl_found: bool = False
    firn_cluster_log_key: str | None = field(default=None, repr=False)
    """Keys that prove that brokers have written the cluster log, the one that is used first; None or empty for none."""
    firn_cluster_log_key_location: str = ""
    """A file with them."""
    firn_cluster_log_key_introducing: bool = False
    delegation_token_secret_key: str | None = field(default=None, repr=False)
    """The key from which secrets of delegation tokens are derived; None or empty if there are no tokens."""
    delegation_token_max_lifetime_ms: int = 604_800_000
    delegation_token_expiry_time_ms: int = 86_400_000
    delegation_token_expiry_check_interval_ms: int = 3_600_000
    firn_audit_log_path: str = OFF
    """File of the audit log, or ``off``."""
    firn_audit_log_bytes_max: int = 67_108_864
    firn_audit_log_files_max: int = 10
    firn_audit_topic_enable: bool = False
    firn_audit_allowed_one_in: int = 1000
    """Of so many requests that were allowed, one is in the audit log; 0 for none."""

    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    """Settings of a topic without its own overrides and without broker overrides."""
    num_partitions: int = 1
    default_replication_factor: int = 1
    auto_create_topics_enable: bool = True
    broker_heartbeat_interval_ms: int = 500
    broker_session_timeout_ms: int = 3000
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 30
    replica_lag_time_max_ms: int = 30_000
    replica_high_watermark_checkpoint_interval_ms: int = 5000
    delete_topic_enable: bool = True

    socket_request_max_bytes: int = 104_857_600
    socket_send_buffer_bytes: int = 102_400
    queued_max_request_bytes: int = 268_435_456
    """Memory for request frames that are still arriving, over all connections (Kafka: -1, no limit). If it is full, reading
    waits."""
    connections_max_idle_ms: int = 600_000
    max_connections: int = INT_MAX
    max_connections_per_ip: int = INT_MAX
    max_connections_per_ip_overrides: str = ""
    """``ADDRESS:NUMBER,…``: the limits of single addresses, which replace the general one."""
    max_connection_creation_rate: int = INT_MAX
    """Connections a second, of all listeners but the one between brokers."""
    fetch_max_bytes: int = 57_671_680
    max_incremental_fetch_session_cache_slots: int = 1000
    max_request_partition_size_limit: int = 2000
    producer_id_expiration_ms: int = 86_400_000
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 104_857_600
    offsets_commit_timeout_ms: int = 5000
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4096
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3000
    group_max_size: int = INT_MAX
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_assignment_interval_ms: int = 1000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_min_heartbeat_interval_ms: int = 5000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15_000
    group_consumer_max_size: int = INT_MAX
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first is the default of groups."""
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_share_session_timeout_ms: int = 45_000
    group_share_heartbeat_interval_ms: int = 5000
    group_share_assignment_interval_ms: int = 1000
    group_share_min_session_timeout_ms: int = 45_000
    group_share_max_session_timeout_ms: int = 60_000
    group_share_min_heartbeat_interval_ms: int = 5000
    group_share_max_heartbeat_interval_ms: int = 15_000
    group_share_min_assignment_interval_ms: int = 0
    group_share_max_assignment_interval_ms: int = 15_000
    group_share_min_record_lock_duration_ms: int = 15_000
    group_share_max_record_lock_duration_ms: int = 60_000
    group_share_min_delivery_count_limit: int = 2
    group_share_max_delivery_count_limit: int = 10
    group_share_min_partition_max_record_locks: int = 100
    group_share_max_partition_max_record_locks: int = 4000
    group_share_max_size: int = 200
    group_share_delivery_count_limit: int = 5
    group_share_record_lock_duration_ms: int = 30_000
    group_share_partition_max_record_locks: int = 2000
    group_share_max_share_sessions: int = 2000
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 3
    transaction_state_log_min_isr: int = 2
    transaction_state_log_segment_bytes: int = 104_857_600
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_partition_verification_enable: bool = True
    share_coordinator_state_topic_num_partitions: int = 50
    share_coordinator_state_topic_replication_factor: int = 3
    share_coordinator_state_topic_min_isr: int = 2
    share_coordinator_state_topic_segment_bytes: int = 104_857_600
    share_coordinator_snapshot_update_records_per_snapshot: int = 500
    """Maximum updates of a share-partition between two snapshots."""
    firn_internal_durability: InternalDurability = InternalDurability.AUTO
    wal_bytes: int = 8_388_608
    """An object of the write-ahead log is cut when so much waits."""
    wal_buffer_bytes: int = 150_994_944
    """Twice the bytes that may be under way at once: the window of 8 objects and the next one."""
    wal_retention_bytes: int = 1_073_741_824
    """128 full objects: a take-over reads the footer of each, and they cost two cents a month."""
    remote_log_manager_task_interval_ms: int = 30_000
    remote_fetch_max_wait_ms: int = 500
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = 1
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 25_165_824
    """Memory for the maps of newest offsets (Kafka: 128 MiB). Keys that do not fit are left to another round."""
    log_cleaner_io_buffer_size: int = 2_097_152
    """Memory for the read and write buffers of compaction (Kafka: 512 KiB)."""
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = KAFKA_DOUBLE_MAX
    firn_metrics_lag_series_max: int = 10_000
    """Each partition has two samples. The maximum is some 3 MB of text, and 0.1 s of the broker's time in small pieces at each
    scrape."""
    firn_chunk_cache_bytes: int = 1_073_741_824
    """Local disk space for chunks from the object store."""
    firn_read_ahead_bytes: int = 268_435_456
    """Bytes of chunks that are read ahead for all sequential remote readers together."""
    firn_decompressed_batch_bytes_max: int = 67_108_864
    """Maximum decompressed size of a produced batch that the broker decompresses. Kafka has no such limit."""
    firn_loop_stall_ms: int = 50
    """If the event loop stands still for longer, the log names the cause. 0: never."""
    firn_preparation_bytes_max: int = 268_435_456
    """Memory for batches that are being decompressed, checked and recompressed, over all connections."""
    firn_log_dir_free_bytes_min: int = 1_073_741_824
    """Producers get a retriable error if the data directory's disk has less free space."""
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
