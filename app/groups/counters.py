"""Counters of groups of all types. State machines count; ``app/metrics.py`` adds up."""

from __future__ import annotations

from app.groups.group import GroupType
from app.groups.share_window import AcknowledgeType
from app.metrics import Registry


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
