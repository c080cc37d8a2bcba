"""The internal topics in which coordinators keep their state, and which partition a group or transactional id belongs to.

They are ordinary compacted topics with Kafka's names, created when a client first asks for a coordinator. The leader of a partition
coordinates all names that hash to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from app.configs import BrokerConfig
from app.errors import ErrorCode, RequestRejected
from app.limits import SEGMENT_BYTES_MIN
from app.units import PartitionIndex

if TYPE_CHECKING:
    from app.metadata.cluster import TopicImage
    from app.metadata.cluster_changes import ClusterChanges
    from app.metadata.view import ClusterView

HASHES_KEPT_MAX: Final = 16_384
"""Number of cached hashes: the group of a commit is needed again a second later."""


class InternalTopic(NamedTuple):
    """One of the topics, and the broker settings for it."""

    name: str
    partitions_field: str
    """Fields of ``BrokerConfig``."""
    replication_factor_field: str
    segment_bytes_field: str
    min_in_sync_field: str = ""
    """Empty: the brokers' ``min.insync.replicas``."""


CONSUMER_OFFSETS: Final = InternalTopic(
    "__consumer_offsets",
    "offsets_topic_num_partitions",
    "offsets_topic_replication_factor",
    "offsets_topic_segment_bytes",
)
TRANSACTION_STATE: Final = InternalTopic(
    "__transaction_state",
    "transaction_state_log_num_partitions",
    "transaction_state_log_replication_factor",
    "transaction_state_log_segment_bytes",
    "transaction_state_log_min_isr",
)
SHARE_GROUP_STATE: Final = InternalTopic(
    "__share_group_state",
    "share_coordinator_state_topic_num_partitions",
    "share_coordinator_state_topic_replication_factor",
    "share_coordinator_state_topic_segment_bytes",
    "share_coordinator_state_topic_min_isr",
)

INTERNAL: Final = {topic.name: topic for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE)}
"""The topics by name."""


@lru_cache(HASHES_KEPT_MAX)
def name_hash(name: str) -> int:
    """Java's ``String.hashCode``, over UTF-16 code units, made non-negative as Kafka makes it."""
    units = name.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    if value >= 1 << 31:
        value -= 1 << 32
    return 0 if value == -(1 << 31) else abs(value)


def partition_for(name: str, count: int) -> PartitionIndex:
    """The partition, of ``count``, of a group id, transactional id or share-partition key."""
    return PartitionIndex(name_hash(name) % count)


def topic_configs(topic: InternalTopic, config: BrokerConfig) -> dict[str, str]:
    """The overrides with which the topic is created."""
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "remote.storage.enable": "false",
        "segment.bytes": str(max(getattr(config, topic.segment_bytes_field), SEGMENT_BYTES_MIN)),
    }
    if topic.min_in_sync_field:
        configs["min.insync.replicas"] = str(getattr(config, topic.min_in_sync_field))
    return configs


async def ensure_topic(cluster: ClusterView, controller: ClusterChanges, topic: InternalTopic) -> TopicImage:
    """The topic. Creates it if it does not exist.

    Raises: RequestRejected COORDINATOR_NOT_AVAILABLE if it cannot be created; StorageUnavailable; FencedError.
    """
    found = cluster.image.topic(topic.name)
    if found is not None:
        return found
    config = cluster.effective_broker_config()
    try:
        return await controller.create_topic(
            topic.name,
            getattr(config, topic.partitions_field),
            topic_configs(topic, config),
            getattr(config, topic.replication_factor_field),
            fewer_replicas=True,
        )
    except RequestRejected as error:
        found = cluster.image.topic(topic.name)
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS and found is not None:
            return found
        raise RequestRejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the topic {topic.name} cannot be made: {error}"
        ) from error
