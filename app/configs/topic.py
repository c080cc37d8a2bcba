"""The settings of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.configs.numbers import LONG_MAX

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
    firn_wal_linger_ms: int = 250
    firn_produce_validation: ProduceValidation = ProduceValidation.BATCH
    firn_tier_max_lag_ms: int = 3_600_000
    firn_tier_chunk_bytes: int = 4 * 1024 * 1024
    firn_tier_compression: TierCompression = TierCompression.AUTO
    firn_tier_kms_key_id: str = ""
    firn_remote_delete_delay_ms: int = 60_000

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

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
