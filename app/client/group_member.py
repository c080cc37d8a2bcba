"""A member of a consumer group by the consumer protocol (KIP-848): the broker assigns, the member follows with its heartbeats.

``GroupMembership`` is the state machine, without I/O: it says the next heartbeat and takes its response. ``ActiveMember`` sends
heartbeats, tells its owner of partitions that come and go, and finds the coordinator again when it moves.

Tests: ``tests/client/test_group_member.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self
from uuid import UUID

from app.client.cluster import ClusterClient, TopicView, refusal
from app.client.groups import GroupClient
from app.client.retry import backoff_ms, is_retriable
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected, copy_of, without_frames
from app.core.turns import Portion
from app.core.units import BrokerId, PartitionIndex, TopicPartition
from app.wire.apikeys import ApiKey
from app.wire.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

JOINING: Final = 0
LEAVING: Final = -1
REBALANCE_TIMEOUT_MS: Final = 60_000
"""Time that the coordinator gives this member to give partitions up."""
LEAVE_TIMEOUT_S: Final = 5.0
"""Of the last heartbeat. The coordinator ends the session of a member that cannot say it."""
FENCED: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
"""Codes after which a member has no partitions and joins anew."""

Assigned = Mapping[UUID, tuple[int, ...]]
"""Partitions by topic id."""


class GroupSubscription(NamedTuple):
    """The topics that a member wants: by names, or by a regular expression of RE2."""

    names: tuple[str, ...] = ()
    regex: str | None = None


class GroupMembership:
    """One member's state. Every change comes from ``answered`` and ``fenced``."""

    def __init__(self, group_id: str, member_id: str, subscription: GroupSubscription) -> None:
        self.group_id: Final = group_id
        self.member_id: Final = member_id
        self.subscription: Final = subscription
        self.epoch = JOINING
        self.heartbeat_interval_ms = 0
        """As the coordinator says it; 0 before its first response."""
        self.owned: Assigned = {}
        self._told: Assigned | None = None
        """The partitions in the newest heartbeat that was answered; None if the coordinator may not know of the member's state."""

    def heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat. It says everything when the member joins, and after a heartbeat without a response; else it says the
        member's partitions if they have changed."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch, topic_partitions=None
        )
        if self._told is None:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.subscribed_topic_names = list(self.subscription.names)
            request.subscribed_topic_regex = self.subscription.regex
            request.topic_partitions = _rows(self.owned)
        elif self._told != self.owned:
            request.topic_partitions = _rows(self.owned)
        return request

    def leave(self) -> ConsumerGroupHeartbeatRequest:
        """The last heartbeat."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=LEAVING, topic_partitions=None
        )

    def answered(self, response: ConsumerGroupHeartbeatResponse) -> Assigned | None:
        """Take the response to ``heartbeat``. Returns: the partitions to move to, None if they stay as they are.

        The owner gives partitions up first, and calls ``moved`` then.
        """
        self._told = self.owned
        self.epoch = response.member_epoch
        self.heartbeat_interval_ms = max(1, response.heartbeat_interval_ms)
        wanted = response.assignment
        if wanted is None:
            return None
        assigned = {topic.topic_id: tuple(topic.partitions) for topic in wanted.topic_partitions if topic.partitions}
        return None if assigned == self.owned else assigned

    def moved(self, assigned: Assigned) -> None:
        """These are the member's partitions now. The next heartbeat says so."""
        self.owned = assigned

    def fenced(self) -> None:
        """The coordinator does not know this member any more: it has no partitions, and joins anew."""
        self.epoch = JOINING
        self.owned = {}
        self._told = None

    def unanswered(self) -> None:
        """A heartbeat had no response. The coordinator may have changed the assignment, and says it once only."""
        self._told = None

    @property
    def is_current(self) -> bool:
        """Whether the coordinator knows the partitions that this member has."""
        return self.epoch > JOINING and self._told == self.owned


def _rows(assigned: Assigned) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id, list(partitions)) for topic_id, partitions in assigned.items()]


def moves(
    before: Mapping[TopicPartition, UUID], after: Mapping[TopicPartition, UUID], topics: Mapping[str, TopicView]
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """The partitions to give up, and those that are taken anew because another topic has the name now.

    A commit names topics. So partitions of a topic whose name another one has are not given up: their offsets would be committed
    for the other topic.

    Args:
        before, after: partitions with the ids of their topics.
        topics: the topics that are known, by name.
    """
    given_up: list[TopicPartition] = []
    anew: list[TopicPartition] = []
    for one, topic_id in before.items():
        now = after.get(one)
        if now == topic_id:
            continue
        known = topics.get(one.topic)
        if now is not None:
            anew.append(one)
        elif known is None or known.topic_id == topic_id:
            given_up.append(one)
    return given_up, anew


class MemberOwner(Protocol):
    """Is told of partitions that come and go. Heartbeats wait for it."""

    async def giving_up(self, partitions: Sequence[TopicPartition]) -> None:
        """The member gives these up now. It still has them, so their offsets may be committed."""

    async def taken(self, partitions: Sequence[TopicPartition], anew: Collection[TopicPartition]) -> None:
        """The member has exactly these from now on. ``anew``: those among them that are of another topic than before, which has
        taken the name. Positions of the topic before say nothing about them."""

    def lost(self) -> None:
        """Other members may have all partitions already. Nothing may be committed."""


class ActiveMember:
    """A member that sends its heartbeats by a task of its own, from ``join`` to ``leave``."""

    def __init__(
        self, cluster: ClusterClient, group_id: str, member_id: str, subscription: GroupSubscription, owner: MemberOwner
    ) -> None:
        self.membership: Final = GroupMembership(group_id, member_id, subscription)
        self._cluster = cluster
        self._groups = GroupClient(cluster)
        self._owner = owner
        self._coordinator: BrokerId | None = None
        self._beating: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._failure: FirnError | None = None
        self._partitions: Mapping[TopicPartition, UUID] = {}
        """Each with the id of its topic."""

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    @property
    def identity(self) -> tuple[str, int]:
        """Member id and epoch, as commits say them."""
        return self.membership.member_id, self.membership.epoch

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """The id of the topic of a partition that the member has."""
        return self._partitions.get(partition)

    @property
    def failed(self) -> bool:
        """Whether an error has ended this member."""
        return self._failure is not None

    def check(self) -> None:
        """Raises: the error that ended this member, if one has."""
        if self._failure is not None:
            raise copy_of(self._failure)

    async def join(self) -> None:
        """Join the group.

        Raises: RequestRejected (GROUP_AUTHORIZATION_FAILED, INVALID_REGULAR_EXPRESSION, GROUP_MAX_SIZE_REACHED,
        UNSUPPORTED_VERSION…), BrokerUnavailable after the retry budget. The member is in no group then.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._cluster.retry_budget_ms / 1000
        attempt = 0
        while True:
            try:
                await self.beat()
                break
            except FirnError as error:
                attempt += 1
                pause_s = backoff_ms(attempt, self._cluster.rng) / 1000
                if not is_retriable(error) or loop.time() + pause_s >= deadline_s:
                    await self._resign()
                    raise
            await asyncio.sleep(pause_s)
        self._beating = asyncio.create_task(self._run(), name=f"member of {self.membership.group_id}")

    async def assigned(self, timeout_s: float) -> bool:
        """Wait until the member has partitions that the coordinator knows of. Returns: whether it has, after that time at most.

        Raises: the error that ended this member.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not (self._partitions and self.membership.is_current):
                    self.check()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End the heartbeats without a word to the coordinator."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def leave(self) -> None:
        """Leave the group, as far as its coordinator can be told in ``LEAVE_TIMEOUT_S``. Raises: nothing."""
        await self.stop()
        await self._resign()

    async def _resign(self) -> None:
        if self.membership.epoch <= JOINING:
            return
        self.membership.epoch = LEAVING
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._send(self.membership.leave())
        except (FirnError, TimeoutError):
            return  # the coordinator ends the session by itself

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        attempt = 0
        while True:
            membership = self.membership
            pause_ms: float = membership.heartbeat_interval_ms
            if attempt:
                pause_ms = min(pause_ms, backoff_ms(attempt, self._cluster.rng))
            elif not membership.is_current:
                pause_ms = 0
            await asyncio.sleep(pause_ms / 1000)
            try:
                await self.beat()
                attempt = 0
            except FirnError as error:
                if not is_retriable(error):
                    self._failure = without_frames(error)
                    self._lost()
                    await self._resign()
                    return
                attempt += 1

    async def beat(self) -> None:
        """One heartbeat, and the move that its response asks for. Raises: RequestRejected, BrokerUnavailable."""
        membership = self.membership
        try:
            response = await self._send(membership.heartbeat())
        except RequestRejected as error:
            if error.code not in FENCED or membership.epoch == JOINING:
                membership.unanswered()
                raise
            membership.fenced()
            self._lost()
            return
        except BrokerUnavailable:
            membership.unanswered()
            raise
        assigned = membership.answered(response)
        if assigned is not None:
            named = await self._named(assigned)
            given_up, anew = moves(self._partitions, named, self._cluster.view.topics)
            if given_up:
                await self._owner.giving_up(given_up)
            await self._owner.taken(tuple(named), anew)
            self._partitions = named
            membership.moved(assigned)
        self._changed.set()

    def _lost(self) -> None:
        self._partitions = {}
        self._owner.lost()
        self._changed.set()

    async def _send(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """Raises: RequestRejected, BrokerUnavailable."""
        try:
            if self._coordinator is None:
                self._coordinator = await self._groups.coordinator_of(request.group_id)
            connection = await self._cluster.broker(self._coordinator)
            response: ConsumerGroupHeartbeatResponse = await connection.request(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, request
            )
        except BrokerUnavailable:
            self._coordinator = None
            raise
        if response.error_code:
            error = refusal(response.error_code, request.group_id, response.error_message)
            if is_retriable(error):
                self._coordinator = None
            raise error
        return response

    async def _named(self, assigned: Assigned) -> dict[TopicPartition, UUID]:
        """Partitions by the names of their topics, without topics that are gone. Raises: RequestRejected, BrokerUnavailable."""
        names = await self._names_of(assigned)
        found: dict[TopicPartition, UUID] = {}
        portion = Portion()
        for topic_id, partitions in assigned.items():
            name = names.get(topic_id)
            if name is None:
                continue
            for partition in partitions:
                found[TopicPartition(name, PartitionIndex(partition))] = topic_id
                if portion.spent_by():
                    await portion.rest()
        return found

    async def _names_of(self, wanted: Assigned) -> dict[UUID, str]:
        names = self._known_names()
        if not wanted.keys() <= names.keys():
            subscription = self.membership.subscription
            if subscription.regex is None:
                for name in subscription.names:
                    await self._refresh(name)
            else:
                await self._cluster.refresh()
            names = self._known_names()
        return names

    async def _refresh(self, name: str) -> None:
        try:
            await self._cluster.refresh([name])
        except RequestRejected as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise

    def _known_names(self) -> dict[UUID, str]:
        return {topic.topic_id: topic.name for topic in self._cluster.view.topics.values()}
