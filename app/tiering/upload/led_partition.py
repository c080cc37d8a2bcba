"""The tier state of one led partition: steps under way, failures, and the time of the next look."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from app.core.loop_time import loop_time_s
from app.core.units import Offset, TopicIdPartition
from app.metadata.manifest.manifest import SegmentEntry, SegmentManifest
from app.tiering.upload.tiered_log import TieredLog


@dataclass(slots=True, eq=False)
class TierDeadlines:
    """When the regular work of a partition is due next, in seconds of loop time."""

    retry_at_s: float = 0.0
    """No round begins before. Later than the loop time only after a failure."""
    expire_at_s: float = 0.0
    retention_at_s: float = 0.0
    """Time of the next check of ``retention.ms``, which is a part of ``EXPIRE``."""
    reconcile_at_s: float = 0.0
    sweep_at_s: float = 0.0


@dataclass(slots=True, eq=False)
class UnfinishedCopies:
    """Copies of this leadership whose entries in the manifest are not final."""

    announced: SegmentEntry | None = None
    """The entry whose COPY_STARTED was written together with the finish of the previous segment. Its upload is next."""
    finishing: SegmentEntry | None = None
    """The uploaded entry whose COPY_FINISHED must be written (again)."""
    abandoned: list[uuid.UUID] = field(default_factory=list)
    """This broker's COPY_STARTED entries that will not be finished."""
    swapping: tuple[list[SegmentEntry], list[SegmentEntry]] | None = None
    """Readable segments and uploaded ones that replace them all, by an entry that may have been written."""


@dataclass(slots=True, eq=False)
class TierProgress:
    """The part of the state that people read. No decision depends on it."""

    phase: str = "idle"
    phase_since_s: float = 0.0
    copying: tuple[Offset, Offset] | None = None
    uploaded_bytes: float = 0.0
    """Approximate raw bytes of the present upload that are in the store."""
    copied_segments: int = 0
    copied_bytes: int = 0
    expired_segments: int = 0
    deleted_objects: int = 0
    failures: int = 0
    """All failures since the partition was attached."""
    last_error: str = ""
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class LedPartition:
    """The tier state of one led partition."""

    log: TieredLog
    manifest: SegmentManifest
    key: TopicIdPartition
    held: bool = False
    """Whether no further copy may begin: see ``RemoteLogManager.hold_copies``."""
    busy: bool = False
    """Whether a round is under way."""
    detached: bool = False
    settled: bool = False
    """Whether copies of earlier leaderships are settled."""
    failures: int = 0
    """Failures in a row."""
    rolled_end: int = 0
    """Base of the active segment at the last check of ``retention.ms``. All earlier segments had rolled by then."""
    cached_version: int = -1
    """Version of the manifest that was cached last."""
    due: TierDeadlines = field(default_factory=TierDeadlines)
    copies: UnfinishedCopies = field(default_factory=UnfinishedCopies)
    progress: TierProgress = field(default_factory=TierProgress)

    def set_phase(self, phase: str) -> None:
        self.progress.phase = phase
        self.progress.phase_since_s = loop_time_s()
