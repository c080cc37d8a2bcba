"""Shared by commits of offsets, in a transaction and outside of one.

Tests: ``tests/groups/test_broker.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import OFFSETS_PER_COMMIT_MAX
from app.core.turns import PORTION_S
from app.groups.shard import CommittedPartition
from app.handlers.base.portions import Split
from app.wire.apis.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition
from app.wire.apis.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition

if TYPE_CHECKING:
    from app.handlers.base.request import Request
    from app.handlers.base.views import ImageView

COMMITTED_AT_ONCE: Final = 500
"""Topics and offsets that are committed with one batch in any case."""
COMMITS: Final = Split(
    "topics", "topics", "partitions", "partitions",
    at_once=COMMITTED_AT_ONCE, writes=True, keeps_repeats=True, first=COMMITTED_AT_ONCE, slice_s=PORTION_S,
)  # fmt: skip
"""A long commit is several batches, and its group is asked at each of them. Each offset is answered by itself, so a client hears of
those that were refused."""


def check_count(context: ImageView, request: Request, message: OffsetCommitRequest | TxnOffsetCommitRequest) -> None:
    """Raises: RequestRejected INVALID_COMMIT_OFFSET_SIZE if it is more than one commit takes."""
    del context, request
    count = sum([len(topic.partitions) for topic in message.topics])
    if count > OFFSETS_PER_COMMIT_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
            f"{count} offsets in a commit, which takes {OFFSETS_PER_COMMIT_MAX} at most.",
        )


def sort_partitions(
    asked: Sequence[OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition],
    partitions_count: int,
    metadata_max: int,
) -> tuple[list[ErrorCode], list[CommittedPartition] | None]:
    """Return a code for each partition of a topic with ``partitions_count`` partitions, and the offsets to commit.

    The offsets are None if none of the partitions exists: then the group is not asked, as in Kafka. If all metadata is too long,
    the group is asked.
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
