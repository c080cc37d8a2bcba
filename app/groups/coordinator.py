"""The group coordinator of this broker: its partitions of ``__consumer_offsets``, and the groups there.

Tests: ``tests/groups/test_many_expressions.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Set
from typing import TypeVar

from app.configs import BrokerConfig
from app.coordinator.partition import ProducerIdAndEpoch
from app.coordinator.shell import Coordinator, Reply, Turn
from app.coordinator.topics import CONSUMER_OFFSETS
from app.core.errors import ErrorCode, RequestRejected, copy_of
from app.core.faults import Faults, Limited
from app.core.log_events import Event
from app.core.metrics import Registry
from app.core.seams import Clock
from app.core.turns import Portion, run
from app.core.units import BrokerId, PartitionIndex
from app.groups.counters import GroupCounters
from app.groups.memory import GroupMemory
from app.groups.metrics import ELSEWHERE, show_groups, show_lag
from app.groups.shard import CommittedPartition, GroupShard
from app.metadata.image.image import ClusterImage, ImageDelta
from app.replication.partition import PartitionTable
from app.replication.roles import Role

R = TypeVar("R")

TopicCommits = Iterable[tuple[str, Collection[CommittedPartition]]]


class GroupCoordinator:
    """Groups and committed offsets of the partitions that this broker leads. Belongs to its loop; keep ``run`` running."""

    def __init__(
        self,
        *,
        config: Callable[[], BrokerConfig],
        broker_id: BrokerId,
        partitions: PartitionTable,
        clock: Clock,
        rng: random.Random,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
    ) -> None:
        """``config`` returns the broker's present settings."""
        self.config = config
        self._log_line = Limited(log_line)
        self._faults = Faults(log_line) if faults is None else faults
        self._clock = clock
        self.image = ClusterImage()
        """The present image of the cluster."""
        self._topic_names: dict[object, str] = {}
        self._unmatched: deque[Iterator[None]] = deque()
        """Changes of topics that expressions are still to be matched with, the oldest first."""
        self._to_match = asyncio.Event()
        self._unassigned: OrderedDict[tuple[PartitionIndex, str], None] = OrderedDict()
        """Large groups whose new target is to be computed."""
        self._to_assign = asyncio.Event()
        counters = GroupCounters(registry)
        self.memory = GroupMemory(lambda: (shard.groups.account for _, shard in self.shell.shards()))
        """The memory that members of classic groups keep."""
        memory = self.memory
        self.shell: Coordinator[GroupShard] = Coordinator(
            CONSUMER_OFFSETS,
            lambda partition: GroupShard(
                partition, config, rng, lambda: self.image, counters, memory, self._assign_later
            ),
            broker_id=broker_id,
            partitions=partitions,
            clock=clock,
            registry=registry,
            log_line=log_line,
            faults=faults,
            stored_within_ms=config().offsets_commit_timeout_ms,
        )
        registry.gauge(
            "firn_group_memory_bytes",
            "Memory that members of classic groups keep by what they sent.",
            lambda: [((), float(memory.bytes))],
        )
        show_groups(registry, lambda: (shard for _, shard in self.shell.shards()))

        def end_of(topic: str, partition: int) -> int | None:
            # Also of a follower, whose high watermark comes a moment later.
            found = partitions.get(topic, partition)
            if found is not None and found.role is not Role.OFFLINE:
                return found.log.high_watermark
            known = self.image.topic(topic)
            return ELSEWHERE if known is not None and partition < len(known.partitions) else None

        show_lag(
            registry,
            lambda: (shard for _, shard in self.shell.shards()),
            end_of,
            config().firn_metrics_lag_series_max,
        )

    async def run(self) -> None:
        """Load led partitions, and serve timers, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.shell.run())
            tasks.create_task(self.match_rest())
            tasks.create_task(self._assign_rest())

    def start(self, image: ClusterImage) -> None:
        """The logs are open: coordinate the partitions of ``image`` that this broker leads."""
        self.image = image
        self._topic_names = {topic_id: topic.name for topic_id, topic in image.topics_by_id.items()}
        self.shell.follow(image)

    def follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        """The cluster has changed."""
        self.image = image
        if not delta.topics:
            return
        self.shell.follow(image)
        added, deleted = set(), set()
        for topic_id in delta.topics:
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                if topic_id not in self._topic_names:
                    added.add(topic.name)
                self._topic_names[topic_id] = topic.name
            elif (name := self._topic_names.pop(topic_id, None)) is not None and image.topic(name) is None:
                deleted.add(name)
        if added or deleted:
            self.match_topics(added, deleted)
        if deleted:
            self._topics_deleted(deleted)

    def match_topics(self, added: Set[str], deleted: Set[str]) -> None:
        """Match expressions with changed topics: one portion at once, and the rest later, in order."""
        steps = self._matching(added, deleted)
        if not self._unmatched:
            portion = Portion()
            for _ in steps:
                if portion.spent():
                    break
            else:
                return
        self._unmatched.append(steps)
        self._to_match.set()

    def _matching(self, added: Set[str], deleted: Set[str]) -> Iterator[None]:
        now_ms = self._clock.now_ms()
        for _, shard in self.shell.shards():
            yield from shard.topics_changed(added, deleted, now_ms)

    async def match_rest(self) -> None:
        """Match the expressions that ``match_topics`` has left, until cancelled."""
        while True:
            await self._to_match.wait()
            self._to_match.clear()
            portion = Portion()
            while self._unmatched:
                for _ in self._unmatched[0]:
                    if portion.spent():
                        await portion.rest()
                self._unmatched.popleft()

    def _assign_later(self, partition: PartitionIndex, group_id: str) -> None:
        self._unassigned[partition, group_id] = None
        self._to_assign.set()

    async def _assign_rest(self) -> None:
        """Compute the targets of large groups, one after the other, until cancelled."""
        while True:
            await self._to_assign.wait()
            self._to_assign.clear()
            while self._unassigned:
                (partition, group_id), _ = self._unassigned.popitem(last=False)
                try:
                    await self._assign(partition, group_id)
                except RequestRejected as error:
                    # A heartbeat asks for it again, here or at the next coordinator.
                    self._faults.met_error("assigning", f"group {group_id}", error)

    async def _assign(self, partition: PartitionIndex, group_id: str) -> None:
        """Raises: RequestRejected if this broker does not coordinate the group, or the log takes nothing."""
        steps = self.shell.look(partition, lambda shard: shard.computed(group_id, self.shell.loop_ms()))
        if steps is not None:
            computed = await run(steps)
            try:
                self.shell.tell(partition, lambda shard, turn: shard.take(turn, group_id, computed))
            except RequestRejected as error:
                told = copy_of(error)
                self.shell.look(partition, lambda shard: shard.was_not_written(group_id, told, self.shell.loop_ms()))
                raise

    def _topics_deleted(self, names: Collection[str]) -> None:
        """Delete offsets of deleted topics. Offsets that cannot be deleted now are deleted when they expire."""
        for partition, _ in self.shell.shards():
            try:
                self.shell.tell(partition, lambda shard, turn: shard.topics_deleted(turn, names))
            except RequestRejected as error:
                self._log_line(
                    Event.OFFSETS_STAY.line(
                        f"offsets of deleted topics stay in {CONSUMER_OFFSETS.name}-{partition}: {error}"
                    )
                )

    # --- events -------------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> PartitionIndex:
        """Raises: RequestRejected COORDINATOR_NOT_AVAILABLE."""
        return self.shell.partition_of(group_id)

    def perform(
        self, group_id: str, event: Callable[[GroupShard, Turn], R], *, nameless: bool = False
    ) -> R | Awaitable[R]:
        """Run an event on a group now. Returns the result of ``event`` when its records are stored.

        ``nameless``: the group id may be empty. Such a group has offsets but cannot have members.

        Raises: as ``Coordinator.perform``; RequestRejected INVALID_GROUP_ID.
        """
        if not group_id and not nameless:
            raise RequestRejected(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
        return self.shell.perform(self.partition_of(group_id), event)

    def look(self, group_id: str, read: Callable[[GroupShard], R]) -> R:
        """As ``Coordinator.look``, at the shard of a group. Raises: RequestRejected."""
        return self.shell.look(self.partition_of(group_id), read)

    async def request(
        self, group_id: str, event: Callable[[GroupShard, Turn, Reply[R]], None], *, nameless: bool = False
    ) -> R:
        """Like ``perform``, for an event whose response may come in a later turn."""
        if not group_id and not nameless:
            raise RequestRejected(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
        return await self.shell.request(self.partition_of(group_id), event)

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        member_epoch: int,
        commits: TopicCommits,
        *,
        api_version: int,
        retention_ms: int = -1,
        producer: ProducerIdAndEpoch | None = None,
    ) -> Awaitable[None] | None:
        """Commit offsets; with ``producer``, as part of its open transaction (TxnOffsetCommit).

        Raises: RequestRejected with the code for all of them; then nothing is committed.
        """

        def event(shard: GroupShard, turn: Turn) -> None:
            group = shard.check_commit(
                group_id,
                member_id,
                instance_id,
                member_epoch,
                transactional=producer is not None,
                api_version=api_version,
                places=lambda: ((topic, each[0]) for topic, partitions in commits for each in partitions),
            )
            shard.commit(turn, group_id, group, member_id, commits, retention_ms=retention_ms, producer=producer)

        return self.perform(group_id, event, nameless=producer is None)

    def complete_transaction(self, partition: PartitionIndex, producer_id: int, *, commit: bool) -> None:
        """Called after the marker of a producer's transaction was appended to a partition of ``__consumer_offsets``.

        A partition that is not loaded yet will find the marker in its log.
        """
        if any(index == partition for index, _ in self.shell.shards()):
            self.shell.look(partition, lambda shard: shard.complete_transaction(producer_id, commit=commit))
