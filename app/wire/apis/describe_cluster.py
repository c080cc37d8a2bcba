"""DescribeCluster, key 60, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DescribeClusterRequest:
    """The request."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1
    include_fenced_brokers: bool = False


@dataclass(slots=True)
class DescribeClusterBroker:
    """``brokers`` of DescribeClusterResponse."""

    broker_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False


@dataclass(slots=True)
class DescribeClusterResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: list[DescribeClusterBroker] = field(default_factory=list)
    cluster_authorized_operations: int = -2147483648


FIELDS: Final[Rows] = {
    "DescribeClusterRequest": (
        ("include_cluster_authorized_operations", "bool", False, 0, 2, False, None, False),
        ("endpoint_type", "int8", False, 1, 2, False, None, 1),
        ("include_fenced_brokers", "bool", False, 2, 2, False, None, False),
    ),
    "DescribeClusterBroker": (
        ("broker_id", "int32", False, 0, 2, False, None, 0),
        ("host", "string", False, 0, 2, False, None, ""),
        ("port", "int32", False, 0, 2, False, None, 0),
        ("rack", "string", False, 0, 2, True, None, None),
        ("is_fenced", "bool", False, 2, 2, False, None, False),
    ),
    "DescribeClusterResponse": (
        ("throttle_time_ms", "int32", False, 0, 2, False, None, 0),
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("error_message", "string", False, 0, 2, True, None, None),
        ("endpoint_type", "int8", False, 1, 2, False, None, 1),
        ("cluster_id", "string", False, 0, 2, False, None, ""),
        ("controller_id", "int32", False, 0, 2, False, None, -1),
        ("brokers", "DescribeClusterBroker", True, 0, 2, False, None, ""),
        ("cluster_authorized_operations", "int32", False, 0, 2, False, None, -2147483648),
    ),
}
