"""Deletes objects of a partition or a topic. No other code deletes them.

Keys come from manifest records and from LISTs. A record may be damaged, or come from an older version that stored a caller's
text. So every key is parsed first. If one key does not belong to exactly this partition (or topic), all are refused, and
nothing is deleted.

Tests: ``tests/tiering/test_bucket.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from app.core.errors import CorruptionError
from app.core.units import TopicIdPartition
from app.metadata.log import layout
from app.objectstore.api import ObjectStore


async def delete_segments(store: ObjectStore, partition: TopicIdPartition, keys: Sequence[str]) -> None:
    """Delete segment objects of a partition. An object that is not there is no error.

    Raises: CorruptionError (a key is not that of a segment of the partition; nothing was deleted), StorageUnavailable.
    """
    for key in keys:
        named = layout.parse_segment_key(key)
        if named is None or (named.topic_id, named.partition) != tuple(partition):
            raise CorruptionError(
                f"{key!r} was to be deleted, but is not a segment of {partition.topic_id}/{partition.partition}; nothing was"
                " deleted."
            )
    await store.delete_many(list(keys))


async def delete_of_topics(store: ObjectStore, topic_ids: Iterable[UUID], keys: Sequence[str]) -> None:
    """Delete segment objects and manifest entries of topics that the cluster no longer knows.

    Raises: CorruptionError (a key is none of these topics'; nothing was deleted), StorageUnavailable.
    """
    topics = frozenset(topic_ids)
    for key in keys:
        if layout.topic_of(key) not in topics:
            raise CorruptionError(
                f"{key!r} was to be deleted, but belongs to no topic that is being deleted; nothing was deleted."
            )
    await store.delete_many(list(keys))
