"""Facts from the bucket alone (INV-5): every segment is found by its key and described by its own footer.

The manifests make this quick, and record deletions. If they are lost, keys and footers still tell which object has which offsets of
which partition.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from app.errors import CorruptionError
from app.metadata import layout
from app.metadata.manifest_state import SegmentEntry
from app.objectstore.api import ObjectInfo, ObjectMissing, ObjectStore
from app.tiering.segment_format import TAIL_BYTES, SegmentFooter, decode_footer, footer_tail_bytes
from app.units import BrokerId, TimestampMs, TopicIdPartition

NO_BROKER: Final = BrokerId(-1)
"""Broker id of segments that no broker copied: a job or an operator added them."""
PAGE_KEYS: Final = 1000


class DiscoveredSegment(NamedTuple):
    """A segment object, as described by LIST and its footer."""

    info: ObjectInfo
    partition: TopicIdPartition
    footer: SegmentFooter | None
    error: CorruptionError | None
    """Why there is no footer."""


async def list_segment_objects(store: ObjectStore) -> AsyncIterator[tuple[ObjectInfo, layout.SegmentKey | None]]:
    """Every object below ``data/``, in key order, with its parsed key; None for a key that Firn never writes.

    One LIST per 1,000 objects. Raises: StorageUnavailable.
    """
    after = ""
    while True:
        page = await store.list_objects(layout.DATA_PREFIX, start_after=after, limit=PAGE_KEYS)
        for info in page:
            yield info, layout.parse_segment_key(info.key)
        if len(page) < PAGE_KEYS:
            return
        after = page[-1].key


async def list_manifests(store: ObjectStore) -> list[TopicIdPartition]:
    """Every partition that has a manifest, by topic id and number. Raises: StorageUnavailable."""
    found: dict[TopicIdPartition, None] = {}
    after = ""
    while True:
        page = await store.list_objects(layout.TOPICS_PREFIX, start_after=after, limit=PAGE_KEYS)
        for info in page:
            partition = layout.parse_manifest_prefix(info.key)
            if partition is not None:
                found[partition] = None
        if len(page) < PAGE_KEYS:
            return sorted(found, key=lambda one: (str(one.topic_id), one.partition))
        after = page[-1].key


async def manifest_begun_ms(store: ObjectStore, partition: TopicIdPartition) -> TimestampMs | None:
    """When the first entry of a partition's manifest was written, by the store's clock; None if there is none.

    This entry is a seal, and seals are never deleted. Older objects existed before the manifest. One LIST of one key.
    Raises: StorageUnavailable.
    """
    first = await store.list_objects(layout.log_prefix(layout.manifest_prefix(*partition)), limit=1)
    return first[0].modified_ms if first else None


async def read_footer(store: ObjectStore, key: str) -> SegmentFooter:
    """The footer of an otherwise unknown segment object: one ranged GET, two if the footer is huge.

    Raises: ObjectMissing, CorruptionError, StorageUnavailable.
    """
    tail, object_bytes = await store.get_tail(key, TAIL_BYTES)
    wanted = footer_tail_bytes(tail, object_bytes, key)
    if wanted > len(tail):
        tail, object_bytes = await store.get_tail(key, wanted)
    return decode_footer(tail, object_bytes, key)


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


def entry_of(footer: SegmentFooter, object_bytes: int) -> SegmentEntry:
    """A segment's manifest record, from its footer and its object's size. It lacks leader epochs and arrival time."""
    return SegmentEntry.started(footer.segment_id, footer.base_offset, footer.end_offset, broker_id=NO_BROKER).replace(
        min_timestamp=TimestampMs(footer.min_timestamp),
        max_timestamp=TimestampMs(footer.max_timestamp),
        record_count=footer.record_count,
        raw_bytes=footer.raw_bytes,
        size_bytes=object_bytes,
        footer_position=footer.stored_bytes,
        footer_bytes=object_bytes - footer.stored_bytes,
        chunk_count=len(footer.chunks),
        aborted_transaction_count=len(footer.aborted),
    )


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
