"""Deletes orphans: objects and uploads left by crashes, lost responses and fenced leaders.

The order matters (ADR 0007). Objects and uploads are LISTed *first*, and the manifest is read *afterwards*. COPY_STARTED is
durable before the first byte of a copy, so the manifest already announced every listed object. If the later manifest does not
know the id, the copy was given up and forgotten, and never becomes known again. In the other order, a copy that began in
between would look like an orphan.

Objects at or above the tiered end stay until the tiered end has passed them (``unnamed.py`` says why).

Objects older than the manifest's first entry (a seal, which is never deleted) are not orphans. The manifest replaced a lost
manifest, and the lost one named these objects. So they stay, as all objects do if there is no manifest. Both times are the
store's own.

Tests: ``tests/tiering/test_bucket.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from app.core.errors import StorageUnavailable
from app.core.units import PartitionIndex, TopicId, TopicIdPartition
from app.metadata.log import layout
from app.metadata.manifest.manifest import ManifestState, SegmentState
from app.objectstore.api import ObjectStore
from app.tiering.store.discovery import manifest_begun_ms
from app.tiering.upload.deletion import delete_of_topics, delete_segments

PAGE_KEYS: Final = 1000
DELETE_PAGES_MAX: Final = 10_000
"""Maximum pages deleted below one prefix in one call. The next call deletes more."""


@dataclass(slots=True)
class Swept:
    """The counts of one sweep."""

    objects: int = 0
    bytes: int = 0
    uploads: int = 0

    def add(self, other: Swept) -> None:
        self.objects += other.objects
        self.bytes += other.bytes
        self.uploads += other.uploads


async def sweep_partition(
    store: ObjectStore, partition: TopicIdPartition, read_manifest: Callable[[], Awaitable[ManifestState]]
) -> Swept:
    """Delete the orphans of an existing partition, but no object that is older than its manifest.

    ``read_manifest`` must read the manifest from the store when it is called: an earlier image is not enough. Costs a LIST per
    1,000 objects, a LIST of the uploads, and the requests for the manifest. If there are orphans, it also costs a LIST and a
    delete per 1,000.
    Raises: StorageUnavailable, CorruptionError; orphans deleted until then stay deleted.
    """
    swept = Swept()
    prefix = layout.data_prefix(partition.topic_id, partition.partition)
    objects = []
    after = ""
    while True:
        page = await store.list_objects(prefix, start_after=after, limit=PAGE_KEYS)
        objects += page
        if len(page) < PAGE_KEYS:
            break
        after = page[-1].key
    uploads = await store.list_uploads(prefix)
    if not objects and not uploads:
        return swept
    state = await read_manifest()
    orphans = []
    for info in objects:
        named = layout.parse_segment_key(info.key)
        if (
            named is not None
            and (named.topic_id, named.partition) == tuple(partition)
            and state.get(named.segment_id) is None
            # Above it may lie segments whose entries the manifest has lost. Segments that were only given up are swept once the
            # tiered end has passed them.
            and named.base_offset < max(state.tiered_end, state.log_start_offset)
        ):
            orphans.append(info)
    if orphans:
        begun_ms = await manifest_begun_ms(store, partition)
        orphans = [info for info in orphans if begun_ms is not None and info.modified_ms >= begun_ms]
    for start in range(0, len(orphans), PAGE_KEYS):
        page = orphans[start : start + PAGE_KEYS]
        await delete_segments(store, partition, [info.key for info in page])
        swept.objects += len(page)
        swept.bytes += sum(info.size_bytes for info in page)
    for upload in uploads:
        named = layout.parse_segment_key(upload.key)
        if named is None:
            continue
        entry = state.get(named.segment_id)
        if entry is None or entry.state is not SegmentState.COPY_STARTED:
            await store.abort_upload(upload.key, upload.upload_id)
            swept.uploads += 1
    return swept


async def sweep_unknown_topics(store: ObjectStore, known_topics: Callable[[], Awaitable[frozenset[TopicId]]]) -> Swept:
    """Delete the segment objects, uploads and manifests of topics that the cluster log does not know. For the controller.

    ``known_topics`` reads the cluster log after the LIST, and includes topics whose deletion is under way.
    Raises: as ``sweep_partition``.
    """
    swept = Swept()
    for prefix in (layout.DATA_PREFIX, layout.TOPICS_PREFIX):
        after = ""
        while True:
            page = await store.list_objects(prefix, start_after=after, limit=PAGE_KEYS)
            if page:
                known = await known_topics()
                orphans = [info for info in page if _is_of_unknown(info.key, known)]
                if orphans:
                    topics = {topic for info in orphans if (topic := layout.topic_of(info.key)) is not None}
                    await delete_of_topics(store, topics, [info.key for info in orphans])
                    swept.add(Swept(len(orphans), sum(info.size_bytes for info in orphans)))
            if len(page) < PAGE_KEYS:
                break
            after = page[-1].key
    uploads = await store.list_uploads(layout.DATA_PREFIX)
    if uploads:
        known = await known_topics()
        for upload in uploads:
            if _is_of_unknown(upload.key, known):
                await store.abort_upload(upload.key, upload.upload_id)
                swept.uploads += 1
    return swept


def _is_of_unknown(key: str, known: frozenset[TopicId]) -> bool:
    topic_id = layout.topic_of(key)
    return topic_id is not None and topic_id not in known


async def delete_topic(store: ObjectStore, topic_id: TopicId, partition_count: int) -> Swept:
    """Delete all objects of a topic: segment objects and uploads first, then manifests, until a LIST finds nothing of the topic.

    Only then may the cluster log forget the topic. May be called again after any failure.
    Raises: StorageUnavailable (also if there is still something after many rounds: an old leader is still writing).
    """
    swept = Swept()
    for partition in range(partition_count):
        swept.add(await _delete_prefix(store, topic_id, layout.data_prefix(topic_id, PartitionIndex(partition))))
    swept.add(await _delete_prefix(store, topic_id, layout.topic_prefix(topic_id)))
    return swept


async def _delete_prefix(store: ObjectStore, topic_id: TopicId, prefix: str) -> Swept:
    """Delete the topic's objects below a prefix. Objects that Firn did not write stay."""
    swept = Swept()
    for upload in await store.list_uploads(prefix):
        if layout.topic_of(upload.key) == topic_id:
            await store.abort_upload(upload.key, upload.upload_id)
            swept.uploads += 1
    # A writer that has not heard of the deletion yet may add objects meanwhile. So the number of pages is limited.
    after = ""
    for _ in range(DELETE_PAGES_MAX):
        page = await store.list_objects(prefix, start_after=after, limit=PAGE_KEYS)
        ours = [info for info in page if layout.topic_of(info.key) == topic_id]
        if ours:
            await delete_of_topics(store, [topic_id], [info.key for info in ours])
            swept.add(Swept(len(ours), sum(info.size_bytes for info in ours)))
            after = ""
        elif len(page) < PAGE_KEYS:
            return swept
        else:
            after = page[-1].key
    raise StorageUnavailable(f"{prefix} does not become empty.")
