"""Share groups except their members: the stored states of share-partitions, and the records that this broker hands out.

Two parts that may be on different brokers (ADR 0027): the leader of a partition of ``__share_group_state`` keeps states
(``shell``), and the leader of a topic's partition hands its records out (``leader``). ``states`` is the way to the first from
everywhere.

Tests: ``tests/broker/test_share_groups.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from app.configs import BrokerConfig
from app.coordinator.shell import Coordinator, Turn
from app.coordinator.topics import SHARE_GROUP_STATE, ensure_topic
from app.core.errors import ErrorCode, RequestRejected
from app.core.faults import Faults, Limited
from app.core.log_events import Event
from app.core.metrics import Registry
from app.core.seams import Clock
from app.core.units import BrokerId
from app.groups.share.core.share_counters import ShareCounters
from app.groups.share.core.share_partitions import SharePartition
from app.groups.share.core.share_sessions import ShareSession
from app.groups.share.core.share_state import (
    ANY_EPOCH,
    NOT_BEGUN,
    ShareKey,
    ShareSettings,
    ShareState,
    ShareStateShard,
    epoch_after_reset,
)
from app.groups.share.core.share_state_wire import (
    NO_STATE,
    Asked,
    Delete,
    Initialize,
    Read,
    StateAnswer,
    Summarize,
    Write,
)
from app.groups.share.core.share_window import Run, Window
from app.groups.share.leader_ends import EndsLink, LeaderEnds
from app.groups.share.share_leader import ShareLeader
from app.groups.share.share_states import NOT_YET, ShareStates, StateLink
from app.metadata.changes.group_configs import (
    AUTO_OFFSET_RESET,
    ISOLATION_LEVEL,
    LATEST,
    READ_COMMITTED,
    RENEW_ENABLE,
    config_of_group,
)
from app.metadata.controller.controller import Controller
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.view.view import ClusterView
from app.replication.partition import PartitionTable

LOAD_WAIT_S: Final = 10.0
"""How long an operator's request waits for partitions of ``__share_group_state`` that are loading."""
AT_ONCE: Final = 100
"""States that are created or deleted before the event loop serves other work."""


class CoordinatorLink(StateLink, EndsLink, Protocol):
    """Connections to other brokers."""


class ShareCoordinator:
    """States of the partitions of ``__share_group_state`` that this broker leads, and records of the partitions that it leads. Keep
    ``run`` running."""

    def __init__(
        self,
        *,
        config: Callable[[], BrokerConfig],
        cluster: ClusterView,
        controller: Controller,
        broker_id: BrokerId,
        partitions: PartitionTable,
        clock: Clock,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
        link: CoordinatorLink | None = None,
    ) -> None:
        """``config`` returns the broker's present settings. ``link`` reaches other brokers; without it this broker is alone."""
        self.config = config
        self._cluster, self._controller, self._partitions = cluster, controller, partitions
        self._log_line = Limited(log_line)
        self.shell: Coordinator[ShareStateShard] = Coordinator(
            SHARE_GROUP_STATE,
            lambda partition: ShareStateShard(partition, self.settings),
            broker_id=broker_id,
            partitions=partitions,
            clock=clock,
            registry=registry,
            log_line=log_line,
            faults=faults,
        )
        self.states = ShareStates(cluster, broker_id, self.answer, link)
        self.ends = LeaderEnds(cluster, broker_id, link)
        self.leader = ShareLeader(
            config=config,
            broker_id=broker_id,
            settings=self.settings,
            states=self.states,
            here=self,
            counters=ShareCounters(registry),
            log_line=log_line,
            faults=faults if faults is not None else Faults(log_line),
            is_shut=self._is_shut,
        )
        self.sessions = self.leader.sessions
        registry.gauge("firn_share_sessions", "Share sessions of members.", lambda: [((), float(len(self.sessions)))])

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
        """Load led partitions, store progress, and serve timers, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.shell.run())
            tasks.create_task(self.leader.run())

    def follow(self, image: ClusterImage, delta: ImageDelta | None = None) -> None:
        """Apply a change of the cluster, or the first image if there is no ``delta``."""
        self.shell.follow(image)
        self.leader.follow(image, None if delta is None else delta.topics)
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
                    Event.OFFSETS_STAY.line(
                        f"what share groups have read of deleted topics stays in {SHARE_GROUP_STATE.name}: {error}"
                    )
                )

    def _is_shut(self, key: ShareKey) -> bool:
        """Whether this broker is isolated, and refuses clients the partition of this key (ADR 0040)."""
        topic = self._cluster.image.topic_by_id(key.topic_id)
        partition = None if topic is None else self._partitions.get(topic.name, key.partition)
        return partition is not None and partition.shut

    async def ready(self) -> None:
        """Create the topic if it does not exist. Raises: as ``ensure_topic``."""
        if self._cluster.image.topic(SHARE_GROUP_STATE.name) is None:
            await ensure_topic(self._cluster, self._controller, SHARE_GROUP_STATE)

    # --- states that are kept here ------------------------------------------------------------------------------------

    def answer(self, asked: Asked) -> StateAnswer | Awaitable[StateAnswer]:
        """Serve a request of the leader of a topic's partition, or of a group coordinator, about a state that is kept here.

        Raises: as ``Coordinator.perform`` and the events of ``ShareStateShard``; so does the awaitable.
        """
        partition = self.shell.partition_of(asked.key.name)
        return self.shell.perform(partition, lambda shard, turn: self._answer(shard, turn, asked))

    def _answer(self, shard: ShareStateShard, turn: Turn, asked: Asked) -> StateAnswer:
        match asked:
            case Initialize(key, state_epoch, start):
                known = shard.shared(key)
                shard.initialize(turn, key, state_epoch, start)
                if known is not None and shard.shared(key) is not known:
                    self.leader.drop(key)
            case Read(key, leader_epoch):
                return StateAnswer(state=shard.read(turn, key, leader_epoch))
            case Write(key, state_epoch, leader_epoch, start, runs, _):
                shard.write(turn, key, state_epoch, leader_epoch, start, runs)
            case Delete(key):
                shard.forget(turn, [key])
                self.leader.drop(key)
            case Summarize(key):
                shared = shard.shared(key)
                if shared is None:
                    return StateAnswer(state=NO_STATE)
                return StateAnswer(state=shared.state._replace(runs=()), done_count=shared.window.done_count)
        return StateAnswer()

    def store(self, key: ShareKey, state_epoch: int, leader_epoch: int, window: Window, runs: tuple[Run, ...]) -> None:
        """Write a state into the log. Raises: RequestRejected, with nothing written."""
        self.shell.tell(
            self.shell.partition_of(key.name),
            lambda shard, turn: shard.write(turn, key, state_epoch, leader_epoch, window.start, runs, whole=True),
        )

    def stored(self, key: ShareKey) -> Awaitable[None] | None:
        """None if all writes are stored, else an awaitable of that. Both may raise RequestRejected."""
        return self.shell.perform(self.shell.partition_of(key.name), _nothing)

    def keys(self, wanted: Callable[[ShareKey], bool]) -> list[ShareKey]:
        """The share-partitions whose loaded states are kept here."""
        return sorted(key for _, shard in self.shell.shards() for key in shard.partitions if wanted(key))

    def state(self, key: ShareKey) -> ShareState | None:
        """A state that is kept here, if it is loaded."""
        shared = self.shell.look(self.shell.partition_of(key.name), lambda shard: shard.shared(key))
        return None if shared is None else shared.state

    # --- states, wherever they are kept -------------------------------------------------------------------------------

    async def create(self, keys: Iterable[ShareKey], *, timeout_s: float = LOAD_WAIT_S) -> None:
        """Create the states of share-partitions that have none. Raises: RequestRejected; as ``ready``."""
        await self.ready()
        wanted = [Initialize(key, ANY_EPOCH, NOT_BEGUN) for key in keys]
        for first in range(0, len(wanted), AT_ONCE):
            # A coordinator that does not know a new topic yet soon will.
            again_on = NOT_YET | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            part = wanted[first : first + AT_ONCE]
            check_all(await self.states.ask(part, timeout_s=timeout_s, again_on=again_on))
            await asyncio.sleep(0)

    async def reset(self, key: ShareKey, start: int) -> None:
        """Set the progress of a share-partition anew. Raises: RequestRejected."""
        await self.ready()
        (found,) = await self.summaries([key])
        check_all([found])
        assert found.state is not None
        known = found.state.state_epoch
        epoch = ANY_EPOCH if known == ANY_EPOCH else epoch_after_reset(known)
        if epoch == ANY_EPOCH and start == NOT_BEGUN:
            return
        check_all(await self.states.ask([Initialize(key, epoch, start)], timeout_s=LOAD_WAIT_S))

    async def summaries(self, keys: Iterable[ShareKey]) -> list[StateAnswer]:
        """The states without their runs, or why they cannot be read. ``NO_STATE`` if there is none."""
        wanted = [Summarize(key) for key in keys]
        if self._cluster.image.topic(SHARE_GROUP_STATE.name) is None:
            return [StateAnswer(state=NO_STATE)] * len(wanted)
        return await self.states.ask(wanted, timeout_s=LOAD_WAIT_S)

    async def delete(self, keys: Iterable[ShareKey]) -> None:
        """Delete the states of share-partitions. States that were deleted before an error stay deleted. Raises: RequestRejected."""
        if self._cluster.image.topic(SHARE_GROUP_STATE.name) is not None:
            wanted = [Delete(key) for key in keys]
            for first in range(0, len(wanted), AT_ONCE):
                check_all(await self.states.ask(wanted[first : first + AT_ONCE], timeout_s=LOAD_WAIT_S))
                await asyncio.sleep(0)

    # --- records that are handed out here -----------------------------------------------------------------------------

    def find(self, key: ShareKey) -> SharePartition | None:
        """The share-partition, if this broker hands out its records."""
        return self.leader.find(key)

    def release(self, group_id: str, member_id: str, session: ShareSession) -> None:
        """As ``ShareLeader.release``."""
        self.leader.release(group_id, member_id, session)


def check_all(answers: Iterable[StateAnswer]) -> None:
    """Raises: RequestRejected with the first error."""
    for answer in answers:
        if answer.error is not ErrorCode.NONE:
            raise RequestRejected(answer.error, answer.sentence or "")


def _nothing(shard: ShareStateShard, turn: Turn) -> None:
    """An event that only waits for earlier writes."""
