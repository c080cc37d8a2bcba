"""Consumer groups whose assignment the broker makes (KIP-848) in the simulation, and what their members may believe.

A member is entitled to what it was told to have as long as its session lasts for certain: from when it sent the last heartbeat
that was answered. It gives a partition up by sending a heartbeat that does not name it any more. What is checked:

- **One owner**: no two members are entitled to one partition at a time.
- **Onward**: the epoch of a member that goes on does not fall.
- **In the end** every partition has an owner among the members that are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from tests.sim.machine import SESSION_MS, Unreachable
from tests.sim.violation import Violation
from tests.simulation.actors import EXPECTED, Actor
from tests.simulation.groups import COORDINATOR_TROUBLE

if TYPE_CHECKING:
    from tests.simulation.world import World

Place = tuple[UUID, int]

GROUP = "assigned"
REBALANCE_MS = 4 * SESSION_MS
"""Longer than a session: a member is not thrown out for being slow before it is for being silent."""
FENCING = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})
MEMBER_EXPECTED = EXPECTED | COORDINATOR_TROUBLE | FENCING


class OneOwner:
    """INV-11: see the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._entitled: dict[Place, tuple[str, float]] = {}
        """By partition: a member, and until when."""
        self.losses = 0
        """How many times the coordinator may have lost a part of its state."""

    def lost(self) -> None:
        """The coordinator's log may have lost its end, so it may know no member, or assignments of before."""
        self._entitled.clear()
        self.losses += 1

    def told(self, member_id: str, until_s: float, places: set[Place]) -> None:
        """A member hears what it has. Raises: Violation."""
        now_s = self._world.loop.time()
        if until_s <= now_s:
            return  # it may be out of the group already
        for place in places:
            other, other_until_s = self._entitled.get(place, (member_id, 0.0))
            if other != member_id and other_until_s > now_s:
                raise Violation("INV-11", f"{place} was given to {member_id}, and {other} has it until {other_until_s}")
            self._entitled[place] = member_id, until_s

    def gave_up(self, member_id: str, kept: set[Place]) -> None:
        """A member is about to say that it has ``kept`` and nothing else."""
        for place in [place for place, (owner, _) in self._entitled.items() if owner == member_id]:
            if place not in kept:
                del self._entitled[place]


class AssignedMember(Actor):
    """A member: it joins, beats, gives up sooner or later what it is told to, sleeps too long now and then, and goes."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.pause_s = world.rng.choice((0.05, 0.2))
        self.lives = 0
        self.member_id = ""
        self.epoch = 0
        self.reads: set[Place] = set()
        self.told: set[Place] = set()
        self.told_after_losses = 0
        """``OneOwner.losses`` when it was told."""
        self.says_all = True
        self._be_new()

    def _be_new(self) -> None:
        self.world.one_owner.gave_up(self.member_id, set())
        self.lives += 1
        self.member_id = f"{self.name}-{self.lives}"
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.world.one_owner.gave_up(self.member_id, set())
        self.epoch, self.reads, self.told, self.says_all = 0, set(), set(), True

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * self.pause_s)
            if not self.world.producing:
                continue
            dice = self.rng.random()
            try:
                if dice < 0.04:
                    await self.leave()
                elif dice < 0.1:
                    await asyncio.sleep(self.rng.uniform(0.5, 2.5) * SESSION_MS / 1000)
                    await self.beat()
                else:
                    await self.beat(slow=dice < 0.3)
            except Unreachable:
                self.says_all = True

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(GROUP, self.member_id, epoch, topic_partitions=None)
        if self.says_all or epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = self.topics()
        return request

    async def beat(self, *, slow: bool = False) -> bool:
        """One heartbeat; a ``slow`` member goes on reading what was taken from it. True if it has all it should have.

        Raises: Unreachable, Violation.
        """
        world = self.world
        if self.epoch == 0:
            asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
            found = (await self.ask(ApiKey.FIND_COORDINATOR, 4, asked)).coordinators[0]
            world.expect(found.error_code, MEMBER_EXPECTED, "FindCoordinator")
            if found.error_code:
                return False
        request = self._request(self.epoch)
        by_topic: dict[UUID, list[int]] = {}
        for topic_id, index in sorted(self.reads):
            by_topic.setdefault(topic_id, []).append(index)
        request.topic_partitions = [TopicPartitions(topic_id, parts) for topic_id, parts in by_topic.items()]
        sent_s = world.loop.time()
        losses = world.one_owner.losses
        world.one_owner.gave_up(self.member_id, self.reads)
        answer: ConsumerGroupHeartbeatResponse = await self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        code = ErrorCode(answer.error_code)
        world.trace("assigned", self.member_id, self.epoch, answer.member_epoch, code.name)
        world.expect(code, MEMBER_EXPECTED, "ConsumerGroupHeartbeat")
        if not self.current():
            self._be_new()  # somebody who does not know better has answered
            return False
        if code in FENCING:
            self._begin_anew()
        if code is not ErrorCode.NONE:
            self.says_all = True
            return False
        if answer.member_epoch < self.epoch:
            raise Violation("INV-11", f"the epoch of {self.member_id} fell from {self.epoch} to {answer.member_epoch}")
        self.epoch, self.says_all = answer.member_epoch, False
        if answer.assignment is not None:
            parts = answer.assignment.topic_partitions
            self.told = {(topic.topic_id, index) for topic in parts for index in topic.partitions}
            self.told_after_losses = losses
        self.reads = self.reads | self.told if slow else set(self.told)
        if self.told_after_losses == losses:
            # A coordinator that has lost its state does not know this member's assignment, and only sends changes of its own state.
            world.one_owner.told(self.member_id, sent_s + SESSION_MS / 1000, self.told)
        return self.reads == self.told

    def topics(self) -> list[str]:
        """What it subscribes to."""
        return sorted({one.topic for one in self.world.histories.values()})

    async def leave(self) -> None:
        """Raises: Unreachable."""
        request = self._request(-1)
        self._be_new()
        answer = await self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        self.world.expect(answer.error_code, MEMBER_EXPECTED, "ConsumerGroupHeartbeat, leaving")


async def settle(world: World, new: Callable[[str], AssignedMember]) -> None:
    """Two new members have all partitions between them before long. Raises: Violation."""
    members = [new(f"last {number}") for number in range(2)]
    wanted = {(history.topic_id, history.index) for history in members[0].partitions()}
    end_s = world.loop.time() + 60
    while True:
        for member in members:
            try:
                await member.beat()
            except Unreachable:
                member.says_all = True
        places = [place for member in members for place in member.reads]
        if sorted(place for place in places if place in wanted) == sorted(wanted):
            return
        if world.loop.time() > end_s:
            raise Violation("liveness", f"{GROUP} does not settle: {[len(member.reads) for member in members]}")
        await asyncio.sleep(0.2)
