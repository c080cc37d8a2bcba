"""DescribeLogDirs, key 35, versions 1 to 5. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DescribableLogDirTopic:
    """``topics`` of DescribeLogDirsRequest."""

    topic: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DescribeLogDirsRequest:
    """The request."""

    topics: list[DescribableLogDirTopic] | None = field(default_factory=list)


@dataclass(slots=True)
class DescribeLogDirsPartition:
    """``partitions`` of DescribeLogDirsTopic."""

    partition_index: int = 0
    partition_size: int = 0
    offset_lag: int = 0
    is_future_key: bool = False


@dataclass(slots=True)
class DescribeLogDirsTopic:
    """``topics`` of DescribeLogDirsResult."""

    name: str = ""
    partitions: list[DescribeLogDirsPartition] = field(default_factory=list)


@dataclass(slots=True)
class DescribeLogDirsResult:
    """``results`` of DescribeLogDirsResponse."""

    error_code: int = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = field(default_factory=list)
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False


@dataclass(slots=True)
class DescribeLogDirsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    results: list[DescribeLogDirsResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DescribableLogDirTopic": (
        ("topic", "string", False, 1, 5, False, None, ""),
        ("partitions", "int32", True, 1, 5, False, None, ""),
    ),
    "DescribeLogDirsRequest": (("topics", "DescribableLogDirTopic", True, 1, 5, True, None, ""),),
    "DescribeLogDirsPartition": (
        ("partition_index", "int32", False, 1, 5, False, None, 0),
        ("partition_size", "int64", False, 1, 5, False, None, 0),
        ("offset_lag", "int64", False, 1, 5, False, None, 0),
        ("is_future_key", "bool", False, 1, 5, False, None, False),
    ),
    "DescribeLogDirsTopic": (
        ("name", "string", False, 1, 5, False, None, ""),
        ("partitions", "DescribeLogDirsPartition", True, 1, 5, False, None, ""),
    ),
    "DescribeLogDirsResult": (
        ("error_code", "int16", False, 1, 5, False, None, 0),
        ("log_dir", "string", False, 1, 5, False, None, ""),
        ("topics", "DescribeLogDirsTopic", True, 1, 5, False, None, ""),
        ("total_bytes", "int64", False, 4, 5, False, None, -1),
        ("usable_bytes", "int64", False, 4, 5, False, None, -1),
        ("is_cordoned", "bool", False, 5, 5, False, None, False),
    ),
    "DescribeLogDirsResponse": (
        ("throttle_time_ms", "int32", False, 1, 5, False, None, 0),
        ("error_code", "int16", False, 3, 5, False, None, 0),
        ("results", "DescribeLogDirsResult", True, 1, 5, False, None, ""),
    ),
}
