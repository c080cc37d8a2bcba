"""The state of share groups except their members: share-partitions, and the sessions in which members read them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from app.configs import BrokerConfig
from app.coordinator.shell import Coordinator, Turn
from app.coordinator.topics import SHARE_GROUP_STATE, ensure_topic
from app.errors import ErrorCode, RequestRejected
from app.faults import Faults, Limited
from app.groups.counters import ShareCounters
from app.groups.share_sessions import ShareSession, ShareSessions
from app.groups.share_state import ShareKey, SharePartition, ShareSettings, ShareStateShard
from app.metadata.cluster import ClusterImage, ImageDelta
from app.metadata.cluster_changes import ClusterChanges
from app.metadata.group_configs import (
    AUTO_OFFSET_RESET,
    ISOLATION_LEVEL,
    LATEST,
    READ_COMMITTED,
    RENEW_ENABLE,
    config_of_group,
)
from app.metadata.view import ClusterView
from app.metrics import Registry
from app.replication.partition import PartitionTable
from app.seams import Clock
from app.units import BrokerId

R = TypeVar("R")

LOAD_WAIT_S: Final = 10.0
"""How long an operator's request waits for partitions of ``__share_group_state`` that are loading."""


class ShareCoordinator:
    """Share-partitions of the partitions of ``__share_group_state`` that this broker leads; keep ``run`` running."""

    def __init__(
        self,
        *,
        config: Callable[[], BrokerConfig],
        cluster: ClusterView,
        controller: ClusterChanges,
        broker_id: BrokerId,
        partitions: PartitionTable,
        clock: Clock,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
    ) -> None:
        """``config`` returns the broker's present settings."""
        self.config = config
        self._cluster, self._controller = cluster, controller
        self._log_line = Limited(log_line)
        self.sessions = ShareSessions(config)
        registry.gauge("firn_share_sessions", "Share sessions of members.", lambda: [((), float(len(self.sessions)))])
        counters = ShareCounters(registry)
        self.shell: Coordinator[ShareStateShard] = Coordinator(
            SHARE_GROUP_STATE,
            lambda partition: ShareStateShard(partition, self.settings, counters),
            broker_id=broker_id,
            partitions=partitions,
            clock=clock,
            registry=registry,
            log_line=log_line,
            faults=faults,
        )

    def settings(self, group_id: str) -> ShareSettings:
        """The sharing settings of a group."""
        overrides = self._cluster.image.group_configs.get(group_id, {})
        config = config_of_group(self.config(), overrides)
        return ShareSettings(
            config.group_share_record_lock_duration_ms,
            config.group_share_delivery_count_limit,
            config.group_share_partition_max_record_locks,
            overrides.get(ISOLATION_LEVEL) == READ_COMMITTED,
            overrides.get(AUTO_OFFSET_RESET, LATEST),
            overrides.get(RENEW_ENABLE, "true").strip().lower() == "true",
            config.share_coordinator_snapshot_update_records_per_snapshot,
        )

    async def run(self) -> None:
        """Load led partitions, and serve timers, until cancelled."""
        await self.shell.run()

    def follow(self, image: ClusterImage, delta: ImageDelta | None = None) -> None:
        """Apply a change of the cluster, or the first image if there is no ``delta``."""
        self.shell.follow(image)
        deleted = {topic_id for topic_id in delta.topics if topic_id not in image.topics_by_id} if delta else set()
        if not deleted:
            return
        for partition, shard in self.shell.shards():
            keys = [key for key in shard.partitions if key.topic_id in deleted]
            try:
                if keys:
                    self.shell.tell(partition, lambda shard, turn, keys=keys: shard.forget(turn, keys))  # type: ignore[misc]
            except RequestRejected as error:
                self._log_line(
                    f"what share groups have read of deleted topics stays in {SHARE_GROUP_STATE.name}: {error}"
                )

    async def ready(self) -> None:
        """Create the topic if it does not exist. Raises: as ``ensure_topic``."""
        if self._cluster.image.topic(SHARE_GROUP_STATE.name) is None:
            await ensure_topic(self._cluster, self._controller, SHARE_GROUP_STATE)

    def perform(self, key: ShareKey, event: Callable[[ShareStateShard, Turn], R]) -> R | Awaitable[R]:
        """Run an event on a share-partition now. Returns the result of ``event`` when its records are stored.

        Raises: as ``Coordinator.perform``.
        """
        return self.shell.perform(self.shell.partition_of(key.name), event)

    async def when_loaded(self, keys: Iterable[ShareKey]) -> None:
        """Wait until the progress of these share-partitions is loaded.

        After the topic was created, all its partitions are loaded, which takes a moment. Clients do not retry operators'
        requests about offsets. Raises: RequestRejected COORDINATOR_LOAD_IN_PROGRESS if it takes longer than ``LOAD_WAIT_S``.
        """
        if self._cluster.image.topic(SHARE_GROUP_STATE.name) is not None:
            await self.shell.when_loaded([self.shell.partition_of(key.name) for key in keys], timeout_s=LOAD_WAIT_S)

    def find(self, key: ShareKey) -> SharePartition | None:
        """The share-partition, if the group reads it. Raises: as ``Coordinator.look``, but not before the topic exists."""
        if self._cluster.image.topic(SHARE_GROUP_STATE.name) is None:
            return None
        return self.shell.look(self.shell.partition_of(key.name), lambda shard: shard.shared(key))

    def release(self, group_id: str, member_id: str, session: ShareSession) -> None:
        """Release the records of an ended session. If that cannot be written, their locks expire later."""
        for place in session.places:
            key = ShareKey(group_id, *place)
            try:
                partition = self.shell.partition_of(key.name)
                self.shell.tell(partition, lambda shard, turn, key=key: shard.release(turn, key, member_id))  # type: ignore[misc]
            except RequestRejected as error:
                self._log_line(f"{key.name} is not given back by {member_id} before its time is up: {error}")

    def keys(self, wanted: Callable[[ShareKey], bool]) -> list[ShareKey]:
        """Number of loaded share-partitions."""
        return sorted(key for _, shard in self.shell.shards() for key in shard.partitions if wanted(key))

    async def forget(self, wanted: Callable[[ShareKey], bool]) -> None:
        """Forget the progress of share-partitions, after all progress is loaded: progress that loads later would come back.

        Raises: RequestRejected COORDINATOR_LOAD_IN_PROGRESS if the load takes longer than ``LOAD_WAIT_S``; the errors of an append.
        Progress forgotten until then stays forgotten.
        """
        await self.shell.when_loaded(timeout_s=LOAD_WAIT_S)
        if self.shell.loading:
            raise RequestRejected(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"A part of {SHARE_GROUP_STATE.name} cannot be read; that is tried again every few seconds.",
            )
        for partition, shard in self.shell.shards():
            keys = [key for key in shard.partitions if wanted(key)]
            if keys:
                done = self.shell.perform(partition, lambda shard, turn, keys=keys: shard.forget(turn, keys))  # type: ignore[misc]
                if done is not None:
                    await done
