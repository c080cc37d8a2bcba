"""Facts from the bucket alone (INV-5): every segment is found by its key and described by its own footer.

The manifests make this quick, and record deletions. If they are lost, keys and footers still tell which object has which offsets of
which partition.

Tests: ``tests/tiering/test_bucket.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from app.core.units import BrokerId, TimestampMs, TopicIdPartition
from app.metadata.log import layout
from app.metadata.manifest.manifest_state import SegmentEntry
from app.objectstore.api import ObjectInfo, ObjectStore
from app.tiering.store.segment_format import TAIL_BYTES, SegmentFooter, decode_footer, footer_tail_bytes

NO_BROKER: Final = BrokerId(-1)
"""Broker id of segments that no broker copied: a job or an operator added them."""
PAGE_KEYS: Final = 1000


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
