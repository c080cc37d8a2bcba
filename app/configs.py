"""Settings by Kafka's names, typed.

``TopicConfig`` is what the log, the tier and the handlers read: every setting that a topic can carry, with its effective
value. A field is named like its Kafka setting with ``.`` and ``-`` turned into ``_``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

LONG_MAX: Final = (1 << 63) - 1


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
    """zstd, but verbatim where the batches of a chunk are compressed already."""
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
    index_interval_bytes: int = 4096
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
    queued_max_request_bytes: int = 268_435_456
    """Memory for request frames that are still arriving, over all connections (Kafka: -1, none). Past it, reading waits."""
    connections_max_idle_ms: int = 600_000
    max_connections: int = 2_147_483_647
    fetch_max_bytes: int = 57_671_680
    max_incremental_fetch_session_cache_slots: int = 1000
    max_request_partition_size_limit: int = 2000
    producer_id_expiration_ms: int = 86_400_000
    remote_log_manager_task_interval_ms: int = 30_000
    log_retention_check_interval_ms: int = 300_000
    firn_chunk_cache_bytes: int = 1_073_741_824
    """Room on the local disk for chunks fetched from the object store."""
    firn_read_ahead_bytes: int = 268_435_456
    """Bytes of chunks asked for ahead of sequential remote readers, over all of them."""
    firn_log_dir_free_bytes_min: int = 1_073_741_824
    """Below this much free room on the data directory's disk producers get a retriable error."""
