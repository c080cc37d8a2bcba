"""Counters of share groups. State machines count; ``app/core/metrics.py`` adds up.

Tests: ``tests/groups/test_metrics.py``.
"""

from __future__ import annotations

from app.core.metrics import Registry
from app.groups.share.core.share_window import AcknowledgeType


class ShareCounters:
    """Events of records of share groups."""

    __slots__ = ("acknowledged", "acquired", "locks_expired")

    def __init__(self, registry: Registry) -> None:
        self.acquired = registry.counter(
            "firn_share_records_acquired_total", "Records given to members of share groups."
        )
        text = "Records that members of share groups acknowledged, by type of acknowledgement."
        self.acknowledged = {
            kind: registry.counter("firn_share_records_acknowledged_total", text, type=kind.name.lower())
            for kind in AcknowledgeType
        }
        self.locks_expired = registry.counter(
            "firn_share_locks_expired_total",
            "Records taken back from members of share groups because their lock expired.",
        )
