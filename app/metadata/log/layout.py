"""Every object key of a cluster, in one place: builders and parsers (docs/formats.md, "Object layout").

All keys are relative to the store's root, one root per cluster.

    cluster/log/<seq>                               cluster log: entries
    cluster/snapshot/<seq>                          cluster log: snapshots
    cluster/heartbeat/<broker-id>/<directory-id>    rewritten while a broker lives, when there is no Redis
    cluster/heartbeat/<broker-id>/probe-<id>        there for a moment: the store's idea of now
    topics/<topic-id>/<partition>/log/<seq>         segment manifest: entries
    topics/<topic-id>/<partition>/snapshot/<seq>    segment manifest: snapshots
    data/<hh>/<topic-id>/<partition>/<base-offset>-<segment-id>.seg
    wal/<broker-id>/<broker-epoch>/<seq>            write-ahead log of a broker: objects and seals (ADR 0037)
    wal/store                                       marker of a store of their own for write-ahead logs

``<seq>``, ``<base-offset>`` and ``<broker-epoch>`` are 20 decimal digits, so that byte order is number order; ids are lower-case
hyphenated UUIDs; partitions and broker ids are plain decimals. ``<hh>`` is a function of topic id and partition alone: it spreads
partitions over S3's request-rate prefixes, and all segments of one partition are still found by one LIST.

A parser returns None for a key that its builder cannot have made. It never guesses.
"""

from __future__ import annotations

import re
import uuid
from typing import Final, NamedTuple

import crc32c

from app.core.units import BrokerId, LogSequence, Offset, PartitionIndex, SegmentId, TopicId, TopicIdPartition

CLUSTER_PREFIX: Final = "cluster"
TOPICS_PREFIX: Final = "topics/"
DATA_PREFIX: Final = "data/"
WAL_PREFIX: Final = "wal/"
WAL_STORE_KEY: Final = "wal/store"
HEARTBEAT_PREFIX: Final = "cluster/heartbeat/"
SEGMENT_SUFFIX: Final = ".seg"
SEQUENCE_DIGITS: Final = 20

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DECIMAL = "0|[1-9][0-9]{0,9}"
_NUMBERED = re.compile(rf"(?P<prefix>.+)/(?P<kind>log|snapshot)/(?P<sequence>[0-9]{{{SEQUENCE_DIGITS}}})", re.ASCII)
_SEGMENT = re.compile(
    rf"data/(?P<hh>[0-9a-f]{{2}})/(?P<topic>{_UUID})/(?P<partition>{_DECIMAL})"
    rf"/(?P<base>[0-9]{{{SEQUENCE_DIGITS}}})-(?P<segment>{_UUID})\.seg",
    re.ASCII,
)
_MANIFEST = re.compile(rf"topics/(?P<topic>{_UUID})/(?P<partition>{_DECIMAL})(?:/.*)?", re.ASCII)
_WAL = re.compile(
    rf"wal/(?P<broker>{_DECIMAL})/(?P<epoch>[0-9]{{{SEQUENCE_DIGITS}}})/(?P<number>[0-9]{{{SEQUENCE_DIGITS}}})",
    re.ASCII,
)


class NumberedKey(NamedTuple):
    """A parsed key of a numbered log."""

    prefix: str
    is_snapshot: bool
    sequence: LogSequence


class SegmentKey(NamedTuple):
    """A parsed key of a segment object."""

    topic_id: TopicId
    partition: PartitionIndex
    base_offset: Offset
    segment_id: SegmentId


class WalKey(NamedTuple):
    """A parsed key of a write-ahead log object."""

    broker_id: BrokerId
    broker_epoch: int
    number: int


# --- numbered logs --------------------------------------------------------------------------------------------------


def log_prefix(prefix: str) -> str:
    """Prefix of the keys of all entries of the numbered log at ``prefix``."""
    return f"{prefix}/log/"


def snapshot_prefix(prefix: str) -> str:
    """Prefix of the keys of all snapshots of the numbered log at ``prefix``."""
    return f"{prefix}/snapshot/"


def entry_key(prefix: str, sequence: int) -> str:
    """Key of entry ``sequence`` of the numbered log at ``prefix``."""
    assert 0 <= sequence < 10**SEQUENCE_DIGITS, sequence
    return f"{prefix}/log/{sequence:020d}"


def snapshot_key(prefix: str, sequence: int) -> str:
    """Key of the snapshot that covers entries [0, sequence] of the numbered log at ``prefix``."""
    assert 0 <= sequence < 10**SEQUENCE_DIGITS, sequence
    return f"{prefix}/snapshot/{sequence:020d}"


def parse_numbered_key(key: str) -> NumberedKey | None:
    """Inverse of ``entry_key`` and ``snapshot_key``."""
    found = _NUMBERED.fullmatch(key)
    if found is None:
        return None
    return NumberedKey(found["prefix"], found["kind"] == "snapshot", LogSequence(int(found["sequence"])))


# --- topics and their manifests -------------------------------------------------------------------------------------


def topic_prefix(topic_id: TopicId) -> str:
    """Prefix of the keys of all manifests of a topic."""
    return f"topics/{topic_id}/"


def manifest_prefix(topic_id: TopicId, partition: int) -> str:
    """Prefix of the numbered log that is the segment manifest of a partition (no slash at its end)."""
    assert partition >= 0, partition
    return f"topics/{topic_id}/{partition}"


def parse_manifest_prefix(key: str) -> TopicIdPartition | None:
    """The partition that a manifest prefix, or any key below it, belongs to."""
    found = _MANIFEST.fullmatch(key)
    if found is None:
        return None
    return TopicIdPartition(TopicId(uuid.UUID(found["topic"])), PartitionIndex(int(found["partition"])))


def topic_of(key: str) -> TopicId | None:
    """The topic that a segment object, or an entry or snapshot of a segment manifest, belongs to; None for any other key."""
    segment = parse_segment_key(key)
    if segment is not None:
        return segment.topic_id
    numbered = parse_numbered_key(key)
    partition = parse_manifest_prefix(numbered.prefix) if numbered is not None else None
    # The prefix itself, and nothing below it.
    if partition is None or numbered is None or numbered.prefix != manifest_prefix(*partition):
        return None
    return partition.topic_id


# --- segments -------------------------------------------------------------------------------------------------------


def spread(topic_id: TopicId, partition: int) -> str:
    """The ``<hh>`` of a partition: low byte of the CRC-32C of the topic id's 16 bytes and the partition as int32, in hex."""
    return f"{crc32c.crc32c(topic_id.bytes + partition.to_bytes(4, 'big')) & 0xFF:02x}"


def data_prefix(topic_id: TopicId, partition: int) -> str:
    """Prefix of the keys of all segment objects of a partition."""
    return f"data/{spread(topic_id, partition)}/{topic_id}/{partition}/"


def segment_key(topic_id: TopicId, partition: int, base_offset: int, segment_id: SegmentId) -> str:
    """Key of a segment object."""
    assert 0 <= base_offset < 1 << 63, base_offset
    return f"{data_prefix(topic_id, partition)}{base_offset:020d}-{segment_id}{SEGMENT_SUFFIX}"


def parse_segment_key(key: str) -> SegmentKey | None:
    """Inverse of ``segment_key``; None also where ``<hh>`` is not the partition's."""
    found = _SEGMENT.fullmatch(key)
    if found is None:
        return None
    topic_id, partition = TopicId(uuid.UUID(found["topic"])), PartitionIndex(int(found["partition"]))
    if found["hh"] != spread(topic_id, partition):
        return None
    return SegmentKey(topic_id, partition, Offset(int(found["base"])), SegmentId(uuid.UUID(found["segment"])))


# --- brokers --------------------------------------------------------------------------------------------------------


def heartbeat_prefix(broker_id: int) -> str:
    """Prefix of the keys of all heartbeats of a node id. Each data directory has one heartbeat."""
    assert broker_id >= 0, broker_id
    return f"{HEARTBEAT_PREFIX}{broker_id}/"


def heartbeat_key(broker_id: int, directory_id: uuid.UUID) -> str:
    """Key of the object that a living broker rewrites. Each data directory has its own, so rivals do not overwrite each other."""
    return f"{heartbeat_prefix(broker_id)}{directory_id}"


def probe_key(broker_id: int, probe_id: uuid.UUID) -> str:
    """Key of an object that is written only to learn its modification time."""
    return f"{heartbeat_prefix(broker_id)}probe-{probe_id}"


def wal_prefix(broker_id: int, broker_epoch: int) -> str:
    """Prefix of the keys of the write-ahead log of a broker under one broker epoch."""
    assert broker_id >= 0, broker_id
    assert 0 <= broker_epoch < 10**SEQUENCE_DIGITS, broker_epoch
    return f"{WAL_PREFIX}{broker_id}/{broker_epoch:020d}/"


def wal_key(broker_id: int, broker_epoch: int, number: int) -> str:
    """Key of one object of a broker's write-ahead log."""
    assert 0 <= number < 10**SEQUENCE_DIGITS, number
    return f"{wal_prefix(broker_id, broker_epoch)}{number:020d}"


def parse_wal_key(key: str) -> WalKey | None:
    """Inverse of ``wal_key``."""
    found = _WAL.fullmatch(key)
    if found is None:
        return None
    return WalKey(BrokerId(int(found["broker"])), int(found["epoch"]), int(found["number"]))
