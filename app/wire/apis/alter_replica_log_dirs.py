"""AlterReplicaLogDirs, key 34, versions 1 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class AlterReplicaLogDirTopic:
    """``topics`` of AlterReplicaLogDir."""

    name: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class AlterReplicaLogDir:
    """``dirs`` of AlterReplicaLogDirsRequest."""

    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = field(default_factory=list)


@dataclass(slots=True)
class AlterReplicaLogDirsRequest:
    """The request."""

    dirs: list[AlterReplicaLogDir] = field(default_factory=list)


@dataclass(slots=True)
class AlterReplicaLogDirPartitionResult:
    """``partitions`` of AlterReplicaLogDirTopicResult."""

    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class AlterReplicaLogDirTopicResult:
    """``results`` of AlterReplicaLogDirsResponse."""

    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class AlterReplicaLogDirsResponse:
    """The response."""

    throttle_time_ms: int = 0
    results: list[AlterReplicaLogDirTopicResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "AlterReplicaLogDirTopic": (
        ("name", "string", False, 1, 2, False, None, ""),
        ("partitions", "int32", True, 1, 2, False, None, ""),
    ),
    "AlterReplicaLogDir": (
        ("path", "string", False, 1, 2, False, None, ""),
        ("topics", "AlterReplicaLogDirTopic", True, 1, 2, False, None, ""),
    ),
    "AlterReplicaLogDirsRequest": (("dirs", "AlterReplicaLogDir", True, 1, 2, False, None, ""),),
    "AlterReplicaLogDirPartitionResult": (
        ("partition_index", "int32", False, 1, 2, False, None, 0),
        ("error_code", "int16", False, 1, 2, False, None, 0),
    ),
    "AlterReplicaLogDirTopicResult": (
        ("topic_name", "string", False, 1, 2, False, None, ""),
        ("partitions", "AlterReplicaLogDirPartitionResult", True, 1, 2, False, None, ""),
    ),
    "AlterReplicaLogDirsResponse": (
        ("throttle_time_ms", "int32", False, 1, 2, False, None, 0),
        ("results", "AlterReplicaLogDirTopicResult", True, 1, 2, False, None, ""),
    ),
}
