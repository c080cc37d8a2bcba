"""The tier of a partition, as its follower knows it. Tests: ``tests/broker/test_tier_replication.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from app.metadata.manifest.manifest import SegmentManifest
    from app.replication.partition import Partition


class FollowedTier(NamedTuple):
    """The tier of a followed partition, as this broker knows it."""

    partition: Partition
    manifest: SegmentManifest | None
    """None if nothing is known yet, or there is nothing to know."""
    is_current: bool
    """Whether the view has all that the present leader has told."""
