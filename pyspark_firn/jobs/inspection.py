"""``verify`` at scale and ``audit``: every segment read whole, by as many workers as there are, and held against its manifest.

The contents of a segment, as a worker read them, are *facts*. Each problem is a *finding*. Objects are LISTed before manifests
are read, and manifests once more where an object is not there, as ``firn verify`` does, so that changes during the audit are
not taken for damage. Expired segments are only counted, and segments that replaced others are read too.

The content hash of a segment is the SHA-256 of its record batches one after the other, as they are in the log: it depends neither
on how they are cut into chunks nor on how those are compressed. Of a segment that several were merged into it is that of all their
batches.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from app.core.errors import ConfigError, CorruptionError
from app.core.units import Offset, PartitionIndex, TopicId, TopicIdPartition
from app.hot.unreadable import UnreadableBatch
from app.metadata.log import layout
from app.metadata.manifest.manifest_state import SegmentEntry
from app.objectstore.api import ObjectInfo, ObjectMissing, RangeUnsatisfiable, UploadInfo
from app.records.batch import LOG_APPEND_TIME, iter_headers
from app.tiering.repair.unnamed import unnamed_above
from app.tiering.repair.verify import (
    Finding,
    FindingKind,
    check_ranges,
    is_readable,
    lost_entries,
    lost_manifests,
    manifest_now,
    missing_object,
    older_than_manifest,
    orphan_objects,
    orphan_uploads,
    read_checked_footer,
    unnamed_objects,
    unreadable_batches,
    unreadable_records,
    unseen_segments,
)
from app.tiering.store.discovery import list_manifests, list_segment_objects
from app.tiering.store.segment_format import check_raw_chunk, check_stored_chunk
from app.tiering.store.store_work import unfold_chunk
from pyspark_firn.jobs.running import Runner
from pyspark_firn.memory import keep_freed_memory
from pyspark_firn.session import StoreSession

SEGMENTS_PER_PART: Final = 16
PARTS_PER_WORKER: Final = 8

Progress = Callable[[int, int], None]
"""Told (segments done, segments in all)."""


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """Some segments of one partition for a worker."""

    store: str
    topic_id: str
    partition: int
    entries: tuple[SegmentEntry, ...]
    records: bool = False
    """Decode every record too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """The contents of a segment object, recomputed from its bytes, beside the manifest's entry for it."""

    topic: str = ""
    topic_id: str
    partition: int
    segment_id: str
    object_key: str
    base_offset: int
    end_offset: int
    records: int = 0
    batches: int = 0
    raw_bytes: int = 0
    object_bytes: int = 0
    first_offset: int = -1
    last_offset: int = -1
    min_timestamp: int = -1
    """Least time that a batch begins with; -1 if no record has one."""
    max_timestamp: int = -1
    sha256: str = ""
    problem: str = ""
    """Empty: everything is as the manifest says."""
    is_missing: bool = False
    unreadable: tuple[UnreadableBatch, ...] = ()
    """Batches whose records cannot be decoded, if that was asked for."""


def inspect_segments(task: SegmentTask) -> list[SegmentFacts]:
    """Read and check whole segments. Raises: StorageUnavailable; damage is in the facts."""
    keep_freed_memory()
    partition = TopicIdPartition(TopicId(uuid.UUID(task.topic_id)), PartitionIndex(task.partition))
    with StoreSession(task.store) as session:
        return [_inspect(session, partition, entry, task.records) for entry in task.entries]


def _inspect(
    session: StoreSession, partition: TopicIdPartition, entry: SegmentEntry, every_record: bool
) -> SegmentFacts:
    key = entry.object_key(*partition)
    named: dict[str, Any] = {
        "topic_id": str(partition.topic_id),
        "partition": int(partition.partition),
        "segment_id": str(entry.segment_id),
        "object_key": key,
        "base_offset": int(entry.base_offset),
        "end_offset": int(entry.end_offset),
    }
    try:
        footer, _ = session.run(read_checked_footer(session.store, partition, entry, key))
        digest = hashlib.sha256()
        batches = records = raw_bytes = 0
        first = last = least = greatest = -1
        unreadable: list[UnreadableBatch] = []
        for index, chunk in enumerate(footer.chunks):
            stored = session.run(session.store.get_range(key, chunk.position, chunk.position + chunk.stored_bytes))
            check_stored_chunk(stored, chunk, key)
            raw = memoryview(unfold_chunk(stored, chunk, key))
            check_raw_chunk(raw, chunk, footer.chunk_end_offset(index), key)
            digest.update(raw)
            if every_record:
                unreadable += unreadable_batches(raw)
            raw_bytes += len(raw)
            for _, header in iter_headers(raw):
                first = header.base_offset if first < 0 else first
                last = header.end_offset - 1
                greatest = max(greatest, header.max_timestamp)
                if header.record_count:
                    # With LogAppendTime the producer's time is there still, and is that of no record.
                    is_appended = header.attributes & LOG_APPEND_TIME
                    begins = header.max_timestamp if is_appended else header.base_timestamp
                    least = begins if least < 0 else min(least, begins)
                records += header.record_count
                batches += 1
    except ObjectMissing:
        return SegmentFacts(**named, problem=missing_object(partition, entry).message, is_missing=True)
    except RangeUnsatisfiable as error:
        return SegmentFacts(**named, problem=f"{key} is shorter than its chunk table says: {error}")
    except CorruptionError as error:
        return SegmentFacts(**named, problem=str(error))
    return SegmentFacts(
        **named,
        records=records,
        batches=batches,
        raw_bytes=raw_bytes,
        object_bytes=entry.size_bytes,
        first_offset=first,
        last_offset=last,
        min_timestamp=least,
        max_timestamp=greatest,
        sha256=digest.hexdigest(),
        unreadable=tuple(unreadable),
    )


@dataclass(slots=True)
class Inspection:
    """The findings in a bucket, or in some topics of it."""

    store: str
    cluster_id: str
    topics: tuple[str, ...] = ()
    """Names of the topics that were looked at; empty: everything was."""
    names: Mapping[uuid.UUID, str] = field(default_factory=dict)
    """Of all topics."""
    partitions: int = 0
    expired: int = 0
    """Segments that were deleted or replaced while this ran."""
    facts: list[SegmentFacts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not any(finding.is_damage for finding in self.findings)

    def place_of(self, finding: Finding) -> str | None:
        """Topic and partition of a finding, as ``topic-0``."""
        if finding.partition is None:
            return None
        topic_id, partition = finding.partition
        return f"{self.names.get(topic_id, str(topic_id))}-{partition}"

    def as_json(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "cluster_id": self.cluster_id,
            "sound": self.is_sound,
            "partitions": self.partitions,
            "segments": len(self.facts),
            "expired": self.expired,
            "records": sum(facts.records for facts in self.facts),
            "raw_bytes": sum(facts.raw_bytes for facts in self.facts),
            "findings": [
                {
                    "kind": one.kind.value,
                    "damage": one.is_damage,
                    "place": self.place_of(one),
                    "object_key": one.object_key,
                    "message": one.message,
                }
                for one in self.findings
            ],
        }


def inspect(
    store: str,
    runner: Runner,
    *,
    topics: Sequence[str] = (),
    records: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """Check everything in a store, or the named topics: every byte, every gap, every object that no manifest names. With
    ``records`` every record is decoded too.

    Changes nothing; a broker may be running. Raises: ConfigError (unknown topic, no cluster), StorageUnavailable.
    """
    with StoreSession(store) as session:
        image = session.run(session.metadata.cluster())
        if not image.cluster_id:
            raise ConfigError(f"There is no Firn cluster in {store}: name the same store as the brokers' settings.")
        for topic in topics:
            if image.topic(topic) is None:
                raise ConfigError(f"There is no topic {topic!r} in {store}.")
        names = {topic_id: topic.name for topic_id, topic in image.topics_by_id.items()}
        wanted = {topic_id for topic_id, name in names.items() if name in topics} if topics else None
        found = Inspection(store, image.cluster_id, tuple(topics), names)
        objects = session.run(_objects(session, wanted, found))
        uploads = session.run(_uploads(session))
        partitions = set(session.run(list_manifests(session.store))) | set(objects) | set(uploads)
        tasks: list[SegmentTask] = []
        ends: dict[TopicIdPartition, Offset] = {}
        history: dict[TopicIdPartition, list[ObjectInfo]] = {}
        for partition in sorted(partitions, key=lambda one: (str(one.topic_id), one.partition)):
            if wanted is not None and partition.topic_id not in wanted:
                continue
            found.partitions += 1
            try:
                state = session.run(session.metadata.manifest(partition))
            except CorruptionError as error:
                prefix = layout.manifest_prefix(*partition)
                found.findings.append(Finding(FindingKind.MANIFEST_UNREADABLE, partition, prefix, str(error)))
                continue
            unnamed = unnamed_objects(partition, state, objects.get(partition, ()))
            history[partition] = session.run(older_than_manifest(session.store, partition, state, unnamed))
            rest = set(unnamed) - set(history[partition])
            above = session.run(unnamed_above(session.store, partition, state, rest))
            if above and session.run(session.metadata.cluster()).partition(*partition) is not None:
                found.findings.append(lost_entries(partition, above, state))
                rest -= {one.info for one in above}
            found.findings += orphan_objects(partition, rest)
            found.findings += orphan_uploads(partition, state, uploads.get(partition, ()))
            found.findings += check_ranges(partition, state)
            ends[partition] = state.tiered_end
            tasks += _tasks(store, partition, state.finished, runner.parallelism, records)
        if any(history.values()):
            found.findings += lost_manifests(history, session.run(session.metadata.cluster()))
    looked_at: set[uuid.UUID] = set()
    total = 0
    while tasks:
        total += sum(len(task.entries) for task in tasks)
        looked_at.update(entry.segment_id for task in tasks for entry in task.entries)
        missing: dict[TopicIdPartition, list[SegmentFacts]] = {}
        for part in runner.run(inspect_segments, tasks):
            for facts in part:
                partition = TopicIdPartition(TopicId(uuid.UUID(facts.topic_id)), PartitionIndex(facts.partition))
                named = replace(facts, topic=names.get(partition.topic_id, ""))
                if facts.is_missing:
                    missing.setdefault(partition, []).append(named)
                    continue
                found.facts.append(named)
                if facts.problem:
                    kind = FindingKind.OBJECT_DAMAGED
                    found.findings.append(Finding(kind, partition, facts.object_key, facts.problem))
                for batch in facts.unreadable:
                    found.findings.append(unreadable_records(partition, facts.object_key, batch))
            if progress is not None:
                gone = found.expired + sum(len(some) for some in missing.values())
                progress(len(found.facts) + gone, total)
        tasks = _look_again(store, found, missing, ends, looked_at, runner.parallelism, records) if missing else []
    found.facts.sort(key=lambda facts: (facts.topic, facts.topic_id, facts.partition, facts.base_offset))
    return found


async def _objects(
    session: StoreSession, wanted: set[uuid.UUID] | None, found: Inspection
) -> dict[TopicIdPartition, list[ObjectInfo]]:
    objects: dict[TopicIdPartition, list[ObjectInfo]] = {}
    async for info, named in list_segment_objects(session.store):
        if named is None:
            if wanted is None:
                message = "not a key that Firn makes"
                found.findings.append(Finding(FindingKind.FOREIGN_OBJECT, None, info.key, message))
        elif wanted is None or named.topic_id in wanted:
            partition = TopicIdPartition(named.topic_id, named.partition)
            objects.setdefault(partition, []).append(info)
    return objects


async def _uploads(session: StoreSession) -> dict[TopicIdPartition, list[UploadInfo]]:
    """Uploads under way, by the partition that their keys name."""
    uploads: dict[TopicIdPartition, list[UploadInfo]] = {}
    for upload in await session.store.list_uploads(layout.DATA_PREFIX):
        named = layout.parse_segment_key(upload.key)
        if named is not None:
            uploads.setdefault(TopicIdPartition(named.topic_id, named.partition), []).append(upload)
    return uploads


def _look_again(
    store: str,
    found: Inspection,
    missing: Mapping[TopicIdPartition, Sequence[SegmentFacts]],
    ends: Mapping[TopicIdPartition, Offset],
    looked_at: Container[uuid.UUID],
    parallelism: int,
    records: bool,
) -> list[SegmentTask]:
    """Compare missing segments with the manifests as of now. Return the segments that replaced some of them.

    Raises: StorageUnavailable, CorruptionError.
    """
    tasks: list[SegmentTask] = []
    with StoreSession(store) as session:
        metadata = session.metadata
        for partition, gone in missing.items():
            now = session.run(manifest_now(partition, metadata.manifest, metadata.cluster))
            for facts in gone:
                if is_readable(now, uuid.UUID(facts.segment_id)):
                    found.facts.append(facts)
                    kind = FindingKind.OBJECT_MISSING
                    found.findings.append(Finding(kind, partition, facts.object_key, facts.problem))
                else:
                    found.expired += 1
            tasks += _tasks(store, partition, unseen_segments(now, looked_at, ends[partition]), parallelism, records)
    return tasks


def _tasks(
    store: str, partition: TopicIdPartition, entries: Sequence[SegmentEntry], parallelism: int, records: bool
) -> Iterator[SegmentTask]:
    size = max(1, min(SEGMENTS_PER_PART, len(entries) // (parallelism * PARTS_PER_WORKER)))
    for start in range(0, len(entries), size):
        part = tuple(entries[start : start + size])
        yield SegmentTask(store, str(partition.topic_id), int(partition.partition), part, records)
