"""Counters of groups and their offsets. State machines count; ``app/core/metrics.py`` adds up.

Tests: ``tests/groups/test_metrics.py``.
"""

from __future__ import annotations

from app.core.metrics import Registry
from app.groups.group import GroupType


class GroupCounters:
    """Events of groups and their offsets."""

    __slots__ = ("assignments", "members_expired", "offsets_committed", "offsets_deleted", "offsets_pending")

    def __init__(self, registry: Registry) -> None:
        text = "Offsets that groups committed, by whether a transaction committed them (they count when it commits)."
        self.offsets_committed = registry.counter("firn_group_offsets_committed_total", text, transactional="false")
        self.offsets_pending = registry.counter("firn_group_offsets_committed_total", text, transactional="true")
        self.offsets_deleted = registry.counter(
            "firn_group_offsets_deleted_total", "Committed offsets that expired or were deleted."
        )
        text = "Members of groups that were removed because they sent no heartbeat in time, by type of group."
        self.members_expired = {
            group_type: registry.counter("firn_group_members_expired_total", text, type=group_type.value)
            for group_type in GroupType
        }
        text = "Assignments that the broker has computed, by type of group."
        self.assignments = {
            group_type: registry.counter("firn_group_assignments_total", text, type=group_type.value)
            for group_type in (GroupType.CONSUMER, GroupType.SHARE)
        }
