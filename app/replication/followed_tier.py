"""What a follower knows of the tier of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from app.metadata.manifest import SegmentManifest
    from app.replication.partition import Partition


class FollowedTier(NamedTuple):
    """What this broker knows of the tier of a partition that it follows."""

    partition: Partition
    manifest: SegmentManifest | None
    """None if nothing is known yet, or there is nothing to know."""
    is_current: bool
    """Whether the view has all that the present leader has told."""
