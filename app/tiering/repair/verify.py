"""Verifies a bucket: every manifest, every segment, every byte.

Objects are LISTed first, and each manifest is read afterwards, as in the sweeper. So changes in between are not reported as
damage. A missing object is damage only if the manifest, read again, still names it. Otherwise it has expired or was replaced,
and its replacement is then read too.

Every readable segment is read completely. Its size and footer are compared with the manifest. The CRC of each stored chunk is
checked. Each batch's CRC, offsets, counts and times are compared with the chunk table. Ranges must join, with no gap and no
overlap. If a live partition has segment objects older than its manifest, or an empty manifest beside segment objects, its
former manifest was lost.

Tests: ``tests/tiering/test_bucket.py``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from app.core.errors import CorruptionError, StorageUnavailable, clause
from app.core.units import Offset, TopicIdPartition
from app.hot.unreadable import UnreadableBatch
from app.metadata.image.image import ClusterImage
from app.metadata.log import layout
from app.metadata.manifest.manifest import ManifestState, SegmentEntry, SegmentState
from app.objectstore.api import ObjectInfo, ObjectMissing, ObjectStore, RangeUnsatisfiable, UploadInfo
from app.records.batch import iter_headers
from app.records.validation import check_interior
from app.tiering.repair.unnamed import UnnamedSegment, describe, unnamed_above
from app.tiering.store.discovery import list_manifests, list_segment_objects, manifest_begun_ms
from app.tiering.store.segment_format import SegmentFooter, check_raw_chunk, check_stored_chunk, decode_footer
from app.tiering.store.store_work import unfold_chunk

CHUNKS_AT_ONCE: Final = 4


class FindingKind(StrEnum):
    """The possible faults of a bucket."""

    MANIFEST_UNREADABLE = "manifest unreadable"
    MANIFEST_MISSING = "manifest missing"
    FOREIGN_KEY = "foreign key recorded"
    ENTRIES_LOST = "manifest entries lost"
    OBJECT_MISSING = "object missing"
    OBJECT_DAMAGED = "object damaged"
    RECORDS_UNREADABLE = "records unreadable"
    OFFSET_GAP = "offset gap"
    OFFSET_OVERLAP = "offset overlap"
    ORPHAN_OBJECT = "orphan object"
    ORPHAN_UPLOAD = "orphan upload"
    FOREIGN_OBJECT = "foreign object"


HARMLESS: Final = frozenset({FindingKind.ORPHAN_OBJECT, FindingKind.ORPHAN_UPLOAD, FindingKind.FOREIGN_OBJECT})
"""Findings that waste space, while no record is in danger."""


class Finding(NamedTuple):
    """One fault."""

    kind: FindingKind
    partition: TopicIdPartition | None
    object_key: str
    message: str

    @property
    def is_damage(self) -> bool:
        """Whether records are missing or wrong."""
        return self.kind not in HARMLESS


@dataclass(slots=True)
class Progress:
    """The progress of a verification. ``bytes_total`` is known when all objects are listed. Orphans are subtracted from the
    totals, so that the totals equal the bytes read at the end."""

    partitions_total: int = 0
    partitions_done: int = 0
    segments_total: int = 0
    segments_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    records_done: int = 0
    chunks_done: int = 0


ManifestReader = Callable[[TopicIdPartition], Awaitable[ManifestState]]
ClusterReader = Callable[[], Awaitable[ClusterImage]]


async def verify(
    store: ObjectStore,
    read_manifest: ManifestReader,
    read_cluster: ClusterReader,
    *,
    progress: Progress | None = None,
    only: Callable[[TopicIdPartition], bool] | None = None,
    records: bool = False,
) -> AsyncIterator[Finding]:
    """Walk the bucket and yield each fault when it is found. If nothing is yielded, the bucket is proven.

    Args:
        read_manifest: reads a partition's manifest from the store when it is called.
        read_cluster: reads the cluster log from the store when it is called, if an object or a manifest may be missing.
        progress: updated during the walk.
        only: partitions to verify; all if None.
        records: decode every record too, which takes about two microseconds of CPU for each.

    Costs a GET per chunk. Raises: StorageUnavailable, CorruptionError (of the cluster log).
    """
    at = progress if progress is not None else Progress()
    objects: dict[TopicIdPartition, dict[str, ObjectInfo]] = defaultdict(dict)
    async for info, named in list_segment_objects(store):
        if named is None:
            if only is None:
                yield Finding(FindingKind.FOREIGN_OBJECT, None, info.key, "not a key that Firn makes")
            continue
        partition = TopicIdPartition(named.topic_id, named.partition)
        if only is None or only(partition):
            objects[partition][info.key] = info
    uploads = await store.list_uploads(layout.DATA_PREFIX)
    with_manifest = [one for one in await list_manifests(store) if only is None or only(one)]
    partitions = sorted({*with_manifest, *objects}, key=lambda one: (str(one.topic_id), one.partition))
    at.partitions_total = len(partitions)
    at.segments_total = sum(len(found) for found in objects.values())
    at.bytes_total = sum(info.size_bytes for found in objects.values() for info in found.values())
    history: dict[TopicIdPartition, list[ObjectInfo]] = {}
    for partition in partitions:
        try:
            state = await read_manifest(partition)
        except CorruptionError as error:
            yield Finding(FindingKind.MANIFEST_UNREADABLE, partition, layout.manifest_prefix(*partition), str(error))
            at.partitions_done += 1
            continue
        unnamed = unnamed_objects(partition, state, objects[partition].values())
        at.segments_total -= len(unnamed)
        at.bytes_total -= sum(info.size_bytes for info in unnamed)
        history[partition] = await older_than_manifest(store, partition, state, unnamed)
        rest = set(unnamed) - set(history[partition])
        above = await unnamed_above(store, partition, state, rest)
        if above and (await read_cluster()).partition(*partition) is not None:
            yield lost_entries(partition, above, state)
            rest -= {one.info for one in above}
        for finding in orphan_objects(partition, rest):
            yield finding
        async for finding in _verify_partition(
            store, partition, state, read_manifest, read_cluster, at, records=records
        ):
            yield finding
        for orphan in orphan_uploads(partition, state, uploads):
            yield orphan
        at.partitions_done += 1
    if any(history.values()):
        for finding in lost_manifests(history, await read_cluster()):
            yield finding


def unnamed_objects(
    partition: TopicIdPartition, state: ManifestState, objects: Iterable[ObjectInfo]
) -> list[ObjectInfo]:
    """The objects of ``partition`` that its manifest, read after the LIST, does not name."""
    known = {entry.object_key(*partition) for entry in state.entries}
    return [info for info in objects if info.key not in known]


async def older_than_manifest(
    store: ObjectStore, partition: TopicIdPartition, state: ManifestState, unnamed: Sequence[ObjectInfo]
) -> list[ObjectInfo]:
    """The objects among ``unnamed`` that the manifest never knew, if the partition is not deleted.

    They are older than the manifest's first entry, and no readable segment begins at the same offset: the manifest that named
    them was lost. Costs a LIST if there are unnamed objects. Raises: StorageUnavailable.
    """
    if state.is_blank or not unnamed:
        return list(unnamed)
    begun_ms = await manifest_begun_ms(store, partition)
    return [
        info for info in unnamed if begun_ms is not None and info.modified_ms < begun_ms and _is_needed(info, state)
    ]


def _is_needed(info: ObjectInfo, state: ManifestState) -> bool:
    named = layout.parse_segment_key(info.key)
    return named is not None and named.base_offset >= state.log_start_offset and state.find(named.base_offset) is None


def lost_entries(partition: TopicIdPartition, above: list[UnnamedSegment], state: ManifestState) -> Finding:
    """The finding for unnamed segments above the tiered end of a partition that is not deleted."""
    prefix = layout.manifest_prefix(*partition)
    message = (
        f"{describe(above, state)}, or a broker that still has these records will copy them again; if the partition is offline,"
        f" restore the objects under {prefix}/, or use `firn tier adopt`"
    )
    return Finding(FindingKind.ENTRIES_LOST, partition, prefix, message)


def orphan_objects(partition: TopicIdPartition, unnamed: Iterable[ObjectInfo]) -> Iterator[Finding]:
    """The finding for each of ``unnamed``, by key."""
    for info in sorted(unnamed):
        yield Finding(FindingKind.ORPHAN_OBJECT, partition, info.key, f"{info.size_bytes} bytes that no manifest names")


def lost_manifests(
    history: Mapping[TopicIdPartition, Sequence[ObjectInfo]], cluster: ClusterImage
) -> Iterator[Finding]:
    """The findings for the objects of ``older_than_manifest``, by partition.

    ``cluster`` must be read afterwards. A topic's manifests are deleted only after the topic is marked as deleted, so a
    partition that still exists has lost its manifest. Objects of a deleted topic only take space.
    """
    for partition, objects in history.items():
        if not objects:
            continue
        if cluster.partition(*partition) is None:
            yield from orphan_objects(partition, objects)
            continue
        prefix = layout.manifest_prefix(*partition)
        message = (
            f"{len(objects)} segment objects of {sum(info.size_bytes for info in objects)} bytes have no manifest, because it"
            f" was lost, and none of them was read; stop the brokers, and restore the objects under {prefix}/ (from older versions,"
            f" or from a copy of the bucket)"
        )
        yield Finding(FindingKind.MANIFEST_MISSING, partition, prefix, message)


def orphan_uploads(
    partition: TopicIdPartition, state: ManifestState, uploads: Iterable[UploadInfo]
) -> Iterator[Finding]:
    """The uploads into ``partition`` that no copy under way needs, by a manifest that was read after listing them."""
    for upload in uploads:
        named = layout.parse_segment_key(upload.key)
        if named is None or (named.topic_id, named.partition) != tuple(partition):
            continue
        entry = state.get(named.segment_id)
        if entry is None or entry.state is not SegmentState.COPY_STARTED:
            message = f"no copy under way needs upload {upload.upload_id}"
            yield Finding(FindingKind.ORPHAN_UPLOAD, partition, upload.key, message)


async def _verify_partition(
    store: ObjectStore,
    partition: TopicIdPartition,
    state: ManifestState,
    read_manifest: ManifestReader,
    read_cluster: ClusterReader,
    progress: Progress,
    *,
    records: bool,
) -> AsyncIterator[Finding]:
    for finding in check_ranges(partition, state):
        yield finding
    end, seen = state.tiered_end, set[UUID]()
    waiting = list(state.finished)
    while waiting:
        missing: list[SegmentEntry] = []
        for entry in waiting:
            seen.add(entry.segment_id)
            key = entry.object_key(*partition)
            unreadable: list[UnreadableBatch] = []
            try:
                await _verify_segment(store, partition, entry, key, progress, unreadable if records else None)
            except ObjectMissing:
                missing.append(entry)
            except CorruptionError as error:
                yield Finding(FindingKind.OBJECT_DAMAGED, partition, key, str(error))
            for batch in sorted(unreadable):
                yield unreadable_records(partition, key, batch)
            progress.segments_done += 1
        if not missing:
            return
        now = await manifest_now(partition, read_manifest, read_cluster)
        for entry in missing:
            if is_readable(now, entry.segment_id):
                yield missing_object(partition, entry)
            else:
                progress.segments_done -= 1
                progress.segments_total -= 1
        waiting = unseen_segments(now, seen, end)
        progress.segments_total += len(waiting)


async def manifest_now(
    partition: TopicIdPartition, read_manifest: ManifestReader, read_cluster: ClusterReader
) -> ManifestState | None:
    """The manifest, read again after one of its objects was missing; None if the topic was deleted.

    The objects of a deleted topic are deleted before its manifests, which name them to the end.
    Raises: StorageUnavailable, CorruptionError.
    """
    state = await read_manifest(partition)
    return state if (await read_cluster()).partition(*partition) is not None else None


def is_readable(now: ManifestState | None, segment_id: UUID) -> bool:
    """Whether a formerly readable segment must still be readable. A manifest that has lost all records does not change this."""
    if now is None:
        return False
    found = now.get(segment_id)
    return now.is_blank or (found is not None and found.state is SegmentState.COPY_FINISHED)


def unseen_segments(now: ManifestState | None, seen: Container[UUID], end: Offset) -> list[SegmentEntry]:
    """Readable segments below ``end`` that were not verified. They replaced other segments meanwhile."""
    if now is None:
        return []
    return [entry for entry in now.finished if entry.base_offset < end and entry.segment_id not in seen]


def missing_object(partition: TopicIdPartition, entry: SegmentEntry) -> Finding:
    """The finding for a segment that must be readable but whose object is missing."""
    message = f"the object with records [{entry.base_offset}, {entry.end_offset}) is missing"
    return Finding(FindingKind.OBJECT_MISSING, partition, entry.object_key(*partition), message)


def unreadable_batches(raw: memoryview) -> Iterator[UnreadableBatch]:
    """Batches of a checked chunk whose records cannot be decoded, because the producer sent them in this state."""
    for position, header in iter_headers(raw):
        try:
            check_interior(raw[position : position + header.size_bytes])
        except CorruptionError as error:
            yield UnreadableBatch(header.base_offset, header.end_offset, str(error))


def unreadable_records(partition: TopicIdPartition, key: str, batch: UnreadableBatch) -> Finding:
    """The finding for a batch that no consumer can read."""
    message = (
        f"no consumer can read offsets [{batch.base_offset}, {batch.end_offset}): {clause(batch.why)}; the producer sent the "
        f"batch in this state. Move consumers to offset {batch.end_offset} (firn group reset), or delete the records before that "
        f"offset (firn topic delete-records)"
    )
    return Finding(FindingKind.RECORDS_UNREADABLE, partition, key, message)


def check_ranges(partition: TopicIdPartition, state: ManifestState) -> list[Finding]:
    """No gap and no overlap from the log start to the tiered end (INV-4), and no record with a key of another object. Pure."""
    found = []
    at = state.log_start_offset
    prefix = layout.manifest_prefix(*partition)
    for entry in state.with_foreign_keys():
        message = (
            f"the record of segment {entry.segment_id} ({entry.state.name}) names {entry.stored_key!r}, which is not its object; no"
            " broker reads or deletes that object"
        )
        found.append(Finding(FindingKind.FOREIGN_KEY, partition, prefix, message))
    previous_end = None
    for entry in state.finished:
        if previous_end is not None and entry.base_offset < previous_end:
            message = f"segment {entry.segment_id} starts at {entry.base_offset}, but the previous segment ends at {previous_end}"
            found.append(Finding(FindingKind.OFFSET_OVERLAP, partition, prefix, message))
        if entry.end_offset > state.log_start_offset:
            if entry.base_offset > at:
                message = f"no segment covers [{at}, {entry.base_offset})"
                found.append(Finding(FindingKind.OFFSET_GAP, partition, prefix, message))
            at = entry.end_offset
        previous_end = entry.end_offset
    if at < state.tiered_end:
        message = f"no segment covers [{at}, {state.tiered_end})"
        found.append(Finding(FindingKind.OFFSET_GAP, partition, prefix, message))
    return found


async def read_checked_footer(
    store: ObjectStore, partition: TopicIdPartition, entry: SegmentEntry, key: str
) -> tuple[SegmentFooter, int]:
    """The footer of a segment object, compared with the manifest, and the object's size.

    Raises: ObjectMissing, CorruptionError, StorageUnavailable.
    """
    tail, object_bytes = await store.get_tail(key, max(1, entry.size_bytes - entry.footer_position))
    if object_bytes != entry.size_bytes:
        raise CorruptionError(f"{key}: has {object_bytes} bytes, but the manifest says {entry.size_bytes}.")
    footer = decode_footer(tail, object_bytes, key)
    told = (
        footer.topic_id, footer.partition, footer.segment_id, footer.base_offset, footer.end_offset, footer.record_count,
        footer.raw_bytes, footer.min_timestamp, footer.max_timestamp, len(footer.chunks), footer.stored_bytes,
    )  # fmt: skip
    meant = (
        partition.topic_id, partition.partition, entry.segment_id, entry.base_offset, entry.end_offset,
        entry.record_count, entry.raw_bytes, entry.min_timestamp, entry.max_timestamp, entry.chunk_count, entry.footer_position,
    )  # fmt: skip
    if told != meant:
        raise CorruptionError(f"{key}: the footer says {told}, the manifest {meant}.")
    return footer, len(tail)


async def _verify_segment(
    store: ObjectStore,
    partition: TopicIdPartition,
    entry: SegmentEntry,
    key: str,
    progress: Progress,
    unreadable: list[UnreadableBatch] | None,
) -> None:
    """Read and check a whole segment object. ``unreadable``, if given, gets batches whose records cannot be decoded.

    Raises: ObjectMissing, CorruptionError, StorageUnavailable."""
    footer, footer_bytes = await read_checked_footer(store, partition, entry, key)
    turns = asyncio.Semaphore(CHUNKS_AT_ONCE)
    try:
        async with asyncio.TaskGroup() as group:
            for index in range(len(footer.chunks)):
                await turns.acquire()
                group.create_task(_verify_chunk(store, key, footer, index, progress, turns, unreadable))
    except* (CorruptionError, ObjectMissing, StorageUnavailable) as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    progress.bytes_done += footer_bytes


async def _verify_chunk(
    store: ObjectStore,
    key: str,
    footer: SegmentFooter,
    index: int,
    progress: Progress,
    turns: asyncio.Semaphore,
    unreadable: list[UnreadableBatch] | None,
) -> None:
    chunk = footer.chunks[index]
    try:
        try:
            stored = await store.get_range(key, chunk.position, chunk.position + chunk.stored_bytes)
        except RangeUnsatisfiable as error:
            raise CorruptionError(f"{key}: ends before the chunk at {chunk.position}.") from error
        check_stored_chunk(stored, chunk, key)
        raw = unfold_chunk(stored, chunk, key)
        check_raw_chunk(memoryview(raw), chunk, footer.chunk_end_offset(index), key)
        if unreadable is not None:
            unreadable += unreadable_batches(memoryview(raw))
    finally:
        turns.release()
    progress.bytes_done += chunk.stored_bytes
    progress.records_done += chunk.record_count
    progress.chunks_done += 1
