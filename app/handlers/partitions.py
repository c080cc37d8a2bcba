"""Finding the partition that a request names, and the checks that all data requests begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from app.errors import ErrorCode, RequestRejected
from app.handlers.context import Context

if TYPE_CHECKING:
    from app.hot.log import PartitionLog


def topic_name(context: Context, topic: str | UUID) -> str | None:
    """The name of a topic that a request speaks of by name or by id; None for an id that is not known."""
    if isinstance(topic, str):
        return topic
    found = context.image.topic_by_id(topic)
    return None if found is None else found.name


def led_log(context: Context, topic: str, partition: int) -> PartitionLog:
    """The log of a partition that this broker leads.

    Raises: RequestRejected with UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, or KAFKA_STORAGE_ERROR if this broker
    leads the partition but its log is not there (being made, or its disk failed).
    """
    log = context.logs.get(topic, partition)
    if log is not None:
        return log
    found = context.image.topics_by_name.get(topic)
    if found is None or not 0 <= partition < len(found.partitions):
        raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}")
    if found.partitions[partition].leader != context.config.node_id:
        raise RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {topic}-{partition}")
    raise RequestRejected(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic}-{partition} is not available")


def check_leader_epoch(log: PartitionLog, claimed: int) -> None:
    """Compare the epoch that a client believes in with the leader's (KIP-320); -1 claims nothing.

    Raises: RequestRejected with FENCED_LEADER_EPOCH (the client is behind) or UNKNOWN_LEADER_EPOCH (we are).
    """
    if claimed < 0:
        return
    current = log.leader_epoch
    if claimed < current:
        raise RequestRejected(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {claimed} is over; it is {current} now")
    if claimed > current:
        raise RequestRejected(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {claimed} is not known; it is {current}")
