"""Shared by commits of offsets, in a transaction and outside of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.errors import ErrorCode, RequestRejected
from app.groups.shard import CommittedPartition
from app.limits import OFFSETS_PER_COMMIT_MAX
from app.wire.apis.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from app.wire.apis.txn_offset_commit import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic


def check_count(topics: Iterable[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic]) -> None:
    """Raises: RequestRejected INVALID_COMMIT_OFFSET_SIZE if it is more than one commit takes."""
    count = sum(len(topic.partitions) for topic in topics)
    if count > OFFSETS_PER_COMMIT_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
            f"{count} offsets in a commit, which takes {OFFSETS_PER_COMMIT_MAX} at most",
        )


def sort_partitions(
    asked: Sequence[OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition],
    partitions_count: int,
    metadata_max: int,
) -> tuple[list[ErrorCode], list[CommittedPartition] | None]:
    """A code for each partition of a topic of ``partitions_count``, and what is to be committed: None if it has none of them.

    Without any that there are, the group is not asked, as in Kafka; for over-long metadata alone it is.
    """
    codes: list[ErrorCode] = []
    taken: list[CommittedPartition] = []
    has_some = False
    for each in asked:
        metadata = each.committed_metadata
        if not 0 <= each.partition_index < partitions_count:
            codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        has_some = True
        if metadata is not None and len(metadata) > metadata_max:
            codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
        else:
            codes.append(ErrorCode.NONE)
            taken.append((each.partition_index, each.committed_offset, each.committed_leader_epoch, metadata))
    return codes, taken if has_some else None
