"""What is in a bucket by its keys and footers alone, as a tool that has no manifest finds it (INV-5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from app.core.errors import CorruptionError
from app.core.units import TopicIdPartition
from app.objectstore.api import ObjectInfo, ObjectMissing, ObjectStore
from app.tiering.store.discovery import list_segment_objects, read_footer
from app.tiering.store.segment_format import SegmentFooter


class DiscoveredSegment(NamedTuple):
    """A segment object, as described by LIST and its footer."""

    info: ObjectInfo
    partition: TopicIdPartition
    footer: SegmentFooter | None
    error: CorruptionError | None
    """Why there is no footer."""


async def discover(store: ObjectStore) -> AsyncIterator[DiscoveredSegment]:
    """Every segment of the bucket, in key order, without any manifest. Raises: StorageUnavailable."""
    async for info, named in list_segment_objects(store):
        if named is None:
            continue
        partition = TopicIdPartition(named.topic_id, named.partition)
        try:
            footer = await read_footer(store, info.key)
            told = (footer.topic_id, footer.partition, footer.base_offset, footer.segment_id)
            if told != tuple(named):
                raise CorruptionError(f"{info.key}: the footer is of {told}")
        except ObjectMissing:
            continue  # deleted since it was listed
        except CorruptionError as error:
            yield DiscoveredSegment(info, partition, None, error)
        else:
            yield DiscoveredSegment(info, partition, footer, None)


def longest_chains(segments: list[SegmentFooter]) -> list[SegmentFooter]:
    """The footers of one partition that a reader would use: from the lowest offset on, without overlap. If several begin at the
    same offset, the one with the highest end counts, and among these the newest.

    A copy that was abandoned and repeated leaves two objects with the same offsets and bytes. Both are readable.
    """
    chosen: list[SegmentFooter] = []
    end = -1
    for footer in sorted(segments, key=lambda one: (one.base_offset, -one.end_offset, -one.created_ms)):
        if footer.base_offset >= end:
            chosen.append(footer)
            end = footer.end_offset
    return chosen
