"""The small text files of a data directory, as Kafka writes them. Pure: bytes in, bytes out.

- ``leader-epoch-checkpoint``: ``0``, the number of entries, then ``<epoch> <start offset>`` a line.
- ``recovery-point-offset-checkpoint``, ``log-start-offset-checkpoint`` and ``cleaner-offset-checkpoint``: ``0``, the number of
  entries, then ``<topic> <partition> <offset>`` a line.
- ``partition.metadata``: ``version: 0`` and ``topic_id: <22 characters of URL-safe Base64>``.
- ``meta.properties``: Java properties with ``version``, ``cluster.id``, ``node.id``, ``directory.id``.
- ``.kafka_cleanshutdown``: JSON with a version and a broker epoch.

Tests: ``tests/hot/test_formats.py``.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from app.core.errors import CorruptionError, clause
from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition

LEADER_EPOCHS_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"
RECOVERY_POINTS_FILE: Final = "recovery-point-offset-checkpoint"
LOG_STARTS_FILE: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS_FILE: Final = "cleaner-offset-checkpoint"
META_PROPERTIES_FILE: Final = "meta.properties"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_CONTENT: Final = b'{"version":0,"brokerEpoch":-1}'


class EpochStart(NamedTuple):
    """A leader epoch, and the offset of its first record."""

    epoch: LeaderEpoch
    start_offset: Offset


class MetaProperties(NamedTuple):
    """The owner of a data directory."""

    cluster_id: str
    node_id: BrokerId
    directory_id: uuid.UUID


def format_uuid(value: uuid.UUID) -> str:
    """Kafka's text form of a UUID: URL-safe Base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def parse_uuid(text: str) -> uuid.UUID:
    """Raises: CorruptionError."""
    try:
        return uuid.UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise CorruptionError(f"{text!r} is not an id of 22 Base64 characters.") from error


def _entries(data: bytes, fields: int, what: str) -> list[list[str]]:
    try:
        lines = data.decode().splitlines()
        if lines[0].strip() != "0":
            raise CorruptionError(f"{what} has version {lines[0]!r} where 0 is known.")
        count = int(lines[1])
        entries = [line.split(" ") for line in lines[2:]]
    except (IndexError, ValueError) as error:
        raise CorruptionError(f"{what} is damaged: {clause(error)}.") from error
    if len(entries) != count or any(len(entry) != fields for entry in entries):
        raise CorruptionError(f"{what} does not hold the {count} entries it claims.")
    return entries


def encode_leader_epochs(entries: Sequence[EpochStart]) -> bytes:
    lines = ["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]
    return ("\n".join(lines) + "\n").encode()


def parse_leader_epochs(data: bytes) -> list[EpochStart]:
    """Raises: CorruptionError if the file is damaged or its entries do not rise."""
    try:
        entries = [
            EpochStart(LeaderEpoch(int(epoch)), Offset(int(start)))
            for epoch, start in _entries(data, 2, LEADER_EPOCHS_FILE)
        ]
    except ValueError as error:
        raise CorruptionError(f"{LEADER_EPOCHS_FILE} is damaged: {clause(error)}.") from error
    for before, after in pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            raise CorruptionError(f"{LEADER_EPOCHS_FILE}: {before} is followed by {after}.")
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    lines = ["0", str(len(offsets)), *(f"{name} {partition} {offset}" for (name, partition), offset in offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def parse_offsets(data: bytes, what: str) -> dict[TopicPartition, Offset]:
    """Raises: CorruptionError."""
    try:
        return {
            TopicPartition(topic, PartitionIndex(int(partition))): Offset(int(offset))
            for topic, partition, offset in _entries(data, 3, what)
        }
    except ValueError as error:
        raise CorruptionError(f"{what} is damaged: {clause(error)}.") from error


def encode_partition_metadata(topic_id: TopicId) -> bytes:
    return f"version: 0\ntopic_id: {format_uuid(topic_id)}\n".encode()


def parse_partition_metadata(data: bytes) -> TopicId:
    """Raises: CorruptionError."""
    fields = dict(line.split(": ", 1) for line in data.decode(errors="replace").splitlines() if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CorruptionError(f"{PARTITION_METADATA_FILE} is damaged.")
    return TopicId(parse_uuid(fields["topic_id"]))


def encode_meta_properties(meta: MetaProperties) -> bytes:
    return (
        f"#\nversion=1\ncluster.id={meta.cluster_id}\nnode.id={meta.node_id}\n"
        f"directory.id={format_uuid(meta.directory_id)}\n"
    ).encode()


def parse_meta_properties(data: bytes) -> MetaProperties:
    """Raises: CorruptionError."""
    lines = (line.strip() for line in data.decode(errors="replace").splitlines())
    fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith(("#", "!")))
    try:
        if fields["version"] != "1":
            raise CorruptionError(f"{META_PROPERTIES_FILE} has version {fields['version']} where 1 is known.")
        return MetaProperties(
            fields["cluster.id"].replace("\\", ""), BrokerId(int(fields["node.id"])), parse_uuid(fields["directory.id"])
        )
    except (KeyError, ValueError) as error:
        raise CorruptionError(f"{META_PROPERTIES_FILE} is damaged: {clause(error)}.") from error
