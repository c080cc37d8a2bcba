"""Resources that have configs, and operations on their configs, with Kafka's numbers.

Tests: ``tests/metadata/test_changes.py``.
"""

from __future__ import annotations

from enum import IntEnum


class ConfigResourceType(IntEnum):
    """``ConfigResource.Type`` of Kafka."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """``AlterConfigOp.OpType`` of Kafka (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
