"""Unnamed segments: objects above the tiered end that no record of the manifest names. Their entries were probably lost.

A copy's COPY_STARTED is durable before its first byte is uploaded, and the record stays until the object is deleted. So a correct
history leaves an unnamed object in only one way: an upload was given up and forgotten, and completed afterwards. In this case the
leader has the same records on its own disk and copies them again, and the tiered end soon passes the object.

A leader that has lost its disk cannot tell the two cases apart, and need not. In both cases the object has acknowledged records
that the leader lacks. To continue at the tiered end would give their offsets to other records. So no broker leads such a partition
until an operator has decided: restore the manifest, ``adopt`` the segments, or ``accept_loss``.

Tests: ``tests/broker/test_offline.py``, ``tests/tiering/test_bucket.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from app.core.errors import CorruptionError, StorageUnavailable
from app.core.units import LeaderEpoch, Offset, SegmentId, TopicIdPartition
from app.metadata.log import layout
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.manifest.manifest_state import Change, ManifestState, SegmentEntry, SegmentState
from app.objectstore.api import ObjectInfo, ObjectMissing, ObjectStore
from app.tiering.store.discovery import NO_BROKER, entry_of, read_footer
from app.tiering.store.segment_format import SegmentFooter

PAGE_KEYS: Final = 1000
CHECK_S: Final = 30.0
"""No broker leads the partition while its objects are listed."""


class UnnamedSegment(NamedTuple):
    """A segment object that no record names, with offsets above the tiered end."""

    info: ObjectInfo
    segment_id: SegmentId
    base_offset: Offset
    footer: SegmentFooter | None
    """None if it cannot be read."""

    @property
    def end_offset(self) -> Offset:
        """One past its last offset, if known."""
        return Offset(self.base_offset + 1) if self.footer is None else self.footer.end_offset


async def unnamed_above(
    store: ObjectStore, partition: TopicIdPartition, state: ManifestState, objects: Iterable[ObjectInfo]
) -> list[UnnamedSegment]:
    """The objects among ``objects`` that have offsets above the tiered end and that no record names, by key.

    ``state`` was read after the objects were listed. Costs a GET for each object that no record names.
    Raises: StorageUnavailable.
    """
    end = max(state.tiered_end, state.log_start_offset)
    found = []
    for info in sorted(objects):
        named = layout.parse_segment_key(info.key)
        if named is None or (named.topic_id, named.partition) != tuple(partition):
            continue
        if state.get(named.segment_id) is not None:
            continue
        footer: SegmentFooter | None
        try:
            footer = await read_footer(store, info.key)
            told = (footer.topic_id, footer.partition, footer.base_offset, footer.segment_id)
            if told != tuple(named):
                footer = None
        except ObjectMissing:
            continue  # Deleted since it was listed.
        except CorruptionError:
            footer = None
        one = UnnamedSegment(info, named.segment_id, named.base_offset, footer)
        if one.end_offset > end:
            found.append(one)
    return found


async def find_unnamed(store: ObjectStore, manifest: SegmentManifest) -> list[UnnamedSegment]:
    """The partition's unnamed segments that begin at or above the tiered end.

    An unnamed segment that begins below and ends above the tiered end can only be a replacement. Then its inputs are above the
    tiered end, and are found. Costs a LIST. If there are objects, also costs the rest of the manifest and a footer for each
    unnamed object.
    Raises: StorageUnavailable, CorruptionError (of the manifest).
    """
    prefix = layout.data_prefix(manifest.topic_id, manifest.partition)
    objects: list[ObjectInfo] = []
    # Not from the log start, which may lie within a segment.
    after = f"{prefix}{manifest.tiered_end:0{layout.SEQUENCE_DIGITS}d}"
    while True:
        page = await store.list_objects(prefix, start_after=after, limit=PAGE_KEYS)
        objects += page
        if len(page) < PAGE_KEYS:
            break
        after = page[-1].key
    if not objects:
        return []
    await manifest.refresh()
    key = TopicIdPartition(manifest.topic_id, manifest.partition)
    return await unnamed_above(store, key, manifest.state, objects)


async def check_nothing_is_unnamed(store: ObjectStore, manifest: SegmentManifest, name: str) -> None:
    """Refuse to lead a partition whose manifest has lost its last entries. ``name``: of the partition, for people.

    Raises: CorruptionError (says how to repair it), StorageUnavailable, also when the store has not answered in time.
    """
    try:
        async with asyncio.timeout(CHECK_S):
            found = await find_unnamed(store, manifest)
    except TimeoutError:
        raise StorageUnavailable(f"{name} is not led yet: its objects were not listed within {CHECK_S:g} s.") from None
    if found:
        topic, _, partition = name.rpartition("-")
        prefix = layout.manifest_prefix(manifest.topic_id, manifest.partition)
        raise CorruptionError(
            f"{describe(found, manifest.state)}; restore the objects under {prefix}/ (from older versions, or from a copy of the"
            f" bucket), or add these segments to the manifest with `firn tier adopt {topic} --partition {partition} --store URL`,"
            f" or give up their records with `firn tier accept-loss {topic} --partition {partition} --store URL`."
        )


def describe(found: list[UnnamedSegment], state: ManifestState) -> str:
    """A clause that describes unnamed segments."""
    start, end = min(one.base_offset for one in found), max(one.end_offset for one in found)
    return (
        f"{len(found)} segment objects hold offsets [{start}, {end}) above the tiered end {state.tiered_end}, but no record of the"
        f" manifest names them (the first is {found[0].info.key}): the manifest has lost its last entries"
    )


async def adopt(store: ObjectStore, manifest: SegmentManifest) -> list[SegmentEntry]:
    """Add the unnamed segments that follow the tiered end without a gap to the manifest, from their footers.

    The partition's leader must not write the manifest meanwhile, so this seals it. Returns: the new entries.
    Raises: ConflictError, StorageUnavailable, CorruptionError, FencedError; entries added until then stay.
    """
    adopted: list[SegmentEntry] = []
    found = await find_unnamed(store, manifest)
    while True:
        end = max(manifest.tiered_end, manifest.log_start_offset)
        following = [one.footer for one in found if one.footer is not None and one.base_offset == end]
        if not following:
            return adopted
        footer = max(following, key=lambda one: (one.end_offset, one.created_ms))
        [size] = [one.info.size_bytes for one in found if one.segment_id == footer.segment_id]
        entry = _adopted(footer, size)

        def plan(state: ManifestState, entry: SegmentEntry = entry) -> list[Change]:
            if state.get(entry.segment_id) is not None:
                return []
            return [
                manifest.entered(entry, SegmentState.COPY_STARTED),
                manifest.entered(entry, SegmentState.COPY_FINISHED),
            ]

        await manifest.change(plan)
        adopted.append(entry)


async def accept_loss(store: ObjectStore, manifest: SegmentManifest) -> list[UnnamedSegment]:
    """Give up the unnamed segments: their objects are deleted, and their offsets are given to other records.

    Each segment gets a record in DELETE_STARTED, so the decision is durable before anything is deleted. The leader deletes the
    objects after ``firn.remote.delete.delay.ms``. Returns: the segments given up. Raises: as ``adopt``.
    """
    found = await find_unnamed(store, manifest)

    def plan(state: ManifestState) -> list[Change]:
        changes: list[Change] = []
        for one in found:
            if state.get(one.segment_id) is None:
                entry = SegmentEntry.started(one.segment_id, one.base_offset, one.end_offset, broker_id=NO_BROKER)
                changes.append(manifest.entered(entry, SegmentState.COPY_STARTED))
                changes.append(manifest.entered(entry, SegmentState.DELETE_STARTED))
        return changes

    if found:
        await manifest.change(plan)
    return found


def _adopted(footer: SegmentFooter, size_bytes: int) -> SegmentEntry:
    lineage = [(LeaderEpoch(one.epoch), Offset(one.start_offset)) for one in footer.leader_epochs]
    ends = [start for _, start in lineage[1:]] + [footer.end_offset]
    epochs = tuple(one for one, end in zip(lineage, ends, strict=True) if end > footer.base_offset)
    return entry_of(footer, size_bytes).replace(leader_epochs=epochs)
