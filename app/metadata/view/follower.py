"""A read-only reader of a bucket's metadata, for tools and jobs with or without a running broker.

Tests: ``tests/broker/test_offline.py``.
"""

from __future__ import annotations

import random
import uuid

from app.core.errors import CorruptionError, clause
from app.core.seams import Clock
from app.core.units import BrokerId, LeaderEpoch, TopicIdPartition
from app.metadata.image.draft import ClusterState
from app.metadata.image.image import ClusterImage
from app.metadata.log import layout
from app.metadata.log.numbered_log import NumberedLog
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.manifest.manifest_state import ManifestState
from app.objectstore.api import ObjectStore


class MetadataFollower:
    """Reads the cluster log and segment manifests of a store on request.

    With ``keeps`` it remembers manifests, and reads only their new entries: one LIST for an unchanged manifest.
    """

    def __init__(self, store: ObjectStore, clock: Clock, *, keeps: bool = False) -> None:
        self._store = store
        self._clock = clock
        self._kept: dict[TopicIdPartition, SegmentManifest] | None = {} if keeps else None
        self._rng = random.Random()
        self._id = f"follower-{uuid.UUID(int=self._rng.getrandbits(128), version=4)}"

    async def cluster(self) -> ClusterImage:
        """The present cluster; without a cluster id if there is none. Raises: CorruptionError, StorageUnavailable."""
        log = NumberedLog(
            self._store,
            layout.CLUSTER_PREFIX,
            writer_id=self._id,
            rng=self._rng,
            clock=self._clock,
            new_state=ClusterState,
        )
        try:
            await log.load()
        except CorruptionError as error:
            raise CorruptionError(f"The cluster log is damaged: {clause(error)}.") from None
        return log.state.image

    async def manifest(self, partition: TopicIdPartition) -> ManifestState:
        """The present state of a partition's manifest; empty if nothing was ever tiered. Raises: CorruptionError,
        StorageUnavailable."""
        known = self._kept.get(partition) if self._kept is not None else None
        if known is not None:
            await known.refresh()
            return known.state
        manifest = SegmentManifest(
            self._store,
            partition.topic_id,
            partition.partition,
            writer_id=self._id,
            broker_id=BrokerId(0),
            leader_epoch=LeaderEpoch(0),
            rng=self._rng,
            clock=self._clock,
        )
        await manifest.load()
        if self._kept is not None:
            self._kept[partition] = manifest
        return manifest.state
