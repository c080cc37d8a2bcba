"""Members of a consumer group as clients play them (KIP-848): what they have, what they were told, what they send next."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from app.configs import BrokerConfig
from app.coordinator.records import GROUP_RECORDS
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import whole
from app.core.units import TimestampMs
from app.groups.consumer.consumer import (
    AssignmentDue,
    ClientInfo,
    ConsumerGroup,
    MemberTimer,
    check_heartbeat,
)
from app.groups.consumer.consumer_records import from_bytes
from app.groups.consumer.subscriptions import ResolvedRegex, TopicPattern
from app.groups.consumer.targets import ASSIGNED_AT_ONCE_MAX, Computed
from app.metadata.image.image import ClusterImage
from app.wire.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.groups.bench import FakeTurn

GROUP = "readers"
CONFIG = BrokerConfig(group_consumer_assignment_interval_ms=0)


class Coordinator:
    """One group, its log and its time."""

    def __init__(
        self, image: ClusterImage, config: BrokerConfig = CONFIG, assigned_at_once_max: int = ASSIGNED_AT_ONCE_MAX
    ) -> None:
        self.image = image
        self.config = config
        self.turn = FakeTurn()
        self.group = ConsumerGroup(GROUP, config)
        self.group.assigned_at_once_max = assigned_at_once_max
        self.computed: list[Computed] = []
        """Targets that were computed between requests, and not taken yet."""

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, host: str = "/h") -> ConsumerGroupHeartbeatResponse:
        """Raises: RequestRejected."""
        check_heartbeat(request, 1, self.config.group_consumer_assignors)
        regex = self.group.unresolved_regex(request, self.turn.now_ms)
        resolved = None
        if regex is not None:
            topics = TopicPattern(regex).among(self.image.topics_by_name)
            resolved = ResolvedRegex(topics, self.image.sequence, TimestampMs(self.turn.now_ms))
        return self.group.heartbeat(self.turn, request, ClientInfo("client", host), self.image, resolved)

    def pass_time(self, duration_ms: int) -> list[str]:
        """Let time pass, and timers come due; the members that were taken out."""
        end = self.turn.now_ms + duration_ms
        removed = []
        while (next_ms := self.turn.timers.next_ms()) is not None and next_ms <= end:
            self.turn.now_ms = max(self.turn.now_ms, next_ms)
            key = self.turn.timers.pop_due(self.turn.now_ms)
            if key is None:
                continue
            if isinstance(key, AssignmentDue):
                self.compute()
                continue
            assert isinstance(key, MemberTimer)
            member = self.group.due(key)
            if member is not None:
                self.group.remove(self.turn, [member], self.image)
                removed.append(member.member_id)
        self.turn.now_ms = end
        return removed

    def compute(self) -> None:
        """Compute the target that is due, if one is."""
        steps = self.group.computed(self.image, self.turn.steady_ms)
        if steps is not None:
            self.computed.append(whole(steps))

    def take(self) -> None:
        """Write the targets that were computed. Raises: RequestRejected."""
        while self.computed:
            self.group.take(self.turn, self.computed.pop(0), self.image)

    def restart(self) -> None:
        """Begin again with what is in the log."""
        at_once = self.group.assigned_at_once_max
        self.group = loaded(self.turn.log, self.config)
        self.group.assigned_at_once_max = at_once
        self.turn.timers = type(self.turn.timers)()
        self.group.loaded(self.turn)


def loaded(log: Any, config: BrokerConfig = CONFIG) -> ConsumerGroup:
    """A group as its log says."""
    group = ConsumerGroup(GROUP, config)
    for batch in log:
        for key, value in batch:
            decoded = GROUP_RECORDS.decode_key(key)
            assert decoded is not None
            assert decoded.group_id == GROUP
            group.replay(from_bytes(decoded, value))
    return group


class Consumer:
    """A client. It gives partitions up as soon as it is told to, in two steps: it hears of it, and then it says so."""

    def __init__(
        self,
        member_id: str,
        topics: set[str] | None = None,
        *,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        rack_id: str | None = None,
        rebalance_timeout_ms: int = 60_000,
    ) -> None:
        self.member_id = member_id
        self.topics = topics
        self.regex = regex
        self.instance_id = instance_id
        self.assignor = assignor
        self.rack_id = rack_id
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.epoch = 0
        self.owned: dict[UUID, frozenset[int]] = {}
        """What it reads."""
        self.told: dict[UUID, frozenset[int]] = {}
        """What it should read."""
        self.changed = True
        """Whether the next heartbeat has to say everything."""

    def request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            server_assignor=self.assignor,
            topic_partitions=[TopicPartitions(topic_id, sorted(parts)) for topic_id, parts in self.owned.items()],
        )
        if self.changed or self.epoch == 0:
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
            # As Java's client, what is not wanted is empty: null goes on as it was, also for who takes a static member's place.
            request.subscribed_topic_names = sorted(self.topics or ())
            request.subscribed_topic_regex = self.regex or ""
        return request

    def hear(self, response: ConsumerGroupHeartbeatResponse, *, slow: bool = False) -> None:
        """Take an answer in; a slow one goes on reading what it did until it hears the next."""
        self.epoch = response.member_epoch
        self.changed = False
        if response.assignment is not None:
            self.told = {topic.topic_id: frozenset(topic.partitions) for topic in response.assignment.topic_partitions}
        if not slow:
            self.owned = self.told

    def fenced(self) -> None:
        """Give everything up and begin again."""
        self.epoch, self.owned, self.told, self.changed = 0, {}, {}, True

    def beat(self, coordinator: Coordinator) -> ConsumerGroupHeartbeatResponse:
        """One heartbeat that arrives, and whose answer arrives. Raises: RequestRejected."""
        response = coordinator.heartbeat(self.request())
        self.hear(response)
        return response

    def live(self, coordinator: Coordinator) -> None:
        """One heartbeat, as a client goes on whatever it is told."""
        try:
            self.beat(coordinator)
        except RequestRejected as error:
            if error.code not in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
                raise
            self.fenced()

    @property
    def count(self) -> int:
        return sum(map(len, self.owned.values()))


def settle(coordinator: Coordinator, consumers: list[Consumer], rounds: int = 12) -> int:
    """Let everybody send heartbeats until the group is stable; how many rounds that took."""
    for done in range(rounds):
        for consumer in consumers:
            consumer.live(coordinator)
        coordinator.pass_time(0)
        coordinator.take()
        if coordinator.group.state == "Stable":
            return done + 1
    raise AssertionError(f"not stable after {rounds} rounds: {coordinator.group.state}")
