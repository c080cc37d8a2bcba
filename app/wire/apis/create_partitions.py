"""CreatePartitions, key 37, versions 0 to 3. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class CreatePartitionsAssignment:
    """``assignments`` of CreatePartitionsTopic."""

    broker_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CreatePartitionsTopic:
    """``topics`` of CreatePartitionsRequest."""

    name: str = ""
    count: int = 0
    assignments: list[CreatePartitionsAssignment] | None = field(default_factory=list)


@dataclass(slots=True)
class CreatePartitionsRequest:
    """The request."""

    topics: list[CreatePartitionsTopic] = field(default_factory=list)
    timeout_ms: int = 0
    validate_only: bool = False


@dataclass(slots=True)
class CreatePartitionsTopicResult:
    """``results`` of CreatePartitionsResponse."""

    name: str = ""
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class CreatePartitionsResponse:
    """The response."""

    throttle_time_ms: int = 0
    results: list[CreatePartitionsTopicResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "CreatePartitionsAssignment": (("broker_ids", "int32", True, 0, 3, False, None, ""),),
    "CreatePartitionsTopic": (
        ("name", "string", False, 0, 3, False, None, ""),
        ("count", "int32", False, 0, 3, False, None, 0),
        ("assignments", "CreatePartitionsAssignment", True, 0, 3, True, None, ""),
    ),
    "CreatePartitionsRequest": (
        ("topics", "CreatePartitionsTopic", True, 0, 3, False, None, ""),
        ("timeout_ms", "int32", False, 0, 3, False, None, 0),
        ("validate_only", "bool", False, 0, 3, False, None, False),
    ),
    "CreatePartitionsTopicResult": (
        ("name", "string", False, 0, 3, False, None, ""),
        ("error_code", "int16", False, 0, 3, False, None, 0),
        ("error_message", "string", False, 0, 3, True, None, None),
    ),
    "CreatePartitionsResponse": (
        ("throttle_time_ms", "int32", False, 0, 3, False, None, 0),
        ("results", "CreatePartitionsTopicResult", True, 0, 3, False, None, ""),
    ),
}
