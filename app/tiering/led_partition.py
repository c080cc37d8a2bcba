"""The state of one led partition's tier: what is under way, what failed, when it is looked at next."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from app.metadata.manifest import SegmentEntry, SegmentManifest
from app.tiering.deadlines import loop_time_s
from app.tiering.tiered_log import TieredLog
from app.units import Offset, TopicIdPartition


@dataclass(slots=True, eq=False)
class LedPartition:
    """State of one led partition's tier."""

    log: TieredLog
    manifest: SegmentManifest
    key: TopicIdPartition
    busy: bool = False
    detached: bool = False
    held: bool = False
    """No further copy is begun: see ``RemoteLogManager.copies_held``."""
    leftovers_checked: bool = False
    announced: SegmentEntry | None = None
    """COPY_STARTED together with the finish of the segment before; its upload is next."""
    finishing: SegmentEntry | None = None
    """Uploaded; its COPY_FINISHED is to be written (again)."""
    abandoned: list[uuid.UUID] = field(default_factory=list)
    """COPY_STARTED entries of ours that will not be finished."""
    phase: str = "idle"
    phase_since_s: float = 0.0
    copying: tuple[Offset, Offset] | None = None
    uploaded_bytes: float = 0.0
    """About how many raw bytes of the segment that is being uploaded are in the store."""
    copied_segments: int = 0
    copied_bytes: int = 0
    expired_segments: int = 0
    deleted_objects: int = 0
    failures: int = 0
    """In a row."""
    failures_total: int = 0
    last_error: str = ""
    retry_at_s: float = 0.0
    expire_at_s: float = 0.0
    retention_at_s: float = 0.0
    """When ``retention.ms`` is looked at next."""
    rolled_end: int = 0
    """Where the active segment began at the last such look: all below it had rolled by then."""
    reconcile_at_s: float = 0.0
    sweep_at_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    cached_version: int = -1

    def set_phase(self, phase: str) -> None:
        self.phase = phase
        self.phase_since_s = loop_time_s()
