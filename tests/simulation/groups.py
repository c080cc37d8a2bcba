"""Consumer groups in the simulation: members of the classic protocol, and the truth that committed offsets are held against.

Every commit is of a number that nobody else commits, so an offset that is read says whose commit it is. What is checked:

- **Kept**: an acknowledged commit is read again, or a later one, as long as what the internal topic was promised to survive is
  all that happens.
- **In order**: once a commit was acknowledged, or read, none is read that had been acknowledged or read before it was even sent.
- **Fenced**: a commit that was refused is never read, and a member of an older generation is refused once a newer one is known
  to be synced.
- **One assignment**: a member is given what the leader of its generation gave it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.heartbeat import HeartbeatRequest
from app.wire.apis.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from app.wire.apis.leave_group import LeaveGroupRequest, MemberIdentity
from app.wire.apis.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from app.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from app.wire.apis.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.simulation.actors import EXPECTED, Actor

if TYPE_CHECKING:
    from tests.simulation.world import World

Place = tuple[str, str, int]
"""Group, topic and partition of a committed offset."""

SESSION_MS = 800
REBALANCE_MS = 1200
COORDINATOR_TROUBLE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
OVERTAKEN = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
GROUP_EXPECTED = EXPECTED | COORDINATOR_TROUBLE | OVERTAKEN | {ErrorCode.MEMBER_ID_REQUIRED}


@dataclass(slots=True, eq=False)
class Commit:
    """An offset that somebody has tried to commit."""

    number: int
    generation: int
    sent_s: float
    acked_s: float = inf
    refused: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    synced: int = -1
    """The newest generation that somebody was told to be synced."""
    synced_s: float = inf
    assignments: dict[int, list[dict[str, bytes]]] = field(default_factory=dict)
    """What leaders sent, by generation; one that was lost before it was stored may come again."""


class CommittedOffsets:
    """INV-8: see the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._commits: dict[Place, dict[int, Commit]] = {}
        self._groups: dict[str, _Group] = {}
        self.losses = 0

    def lost(self) -> None:
        """The internal topic may have lost its end: nothing of what was acknowledged is certain any more."""
        self.losses += 1
        self._groups.clear()
        for commits in self._commits.values():
            for commit in commits.values():
                commit.acked_s = inf

    # --- commits ----------------------------------------------------------------------------------------------------

    def sent(self, place: Place, number: int, generation: int) -> Commit:
        commit = Commit(number, generation, self._world.loop.time())
        self._commits.setdefault(place, {})[number] = commit
        return commit

    def answered(self, place: Place, commit: Commit, code: ErrorCode) -> None:
        """Raises: Violation if a member was not fenced."""
        if code is not ErrorCode.NONE:
            # Of others it is not known whether they were stored.
            commit.refused = code in OVERTAKEN
            return
        group = self._groups.get(place[0])
        if group is not None and group.synced > commit.generation >= 0 and group.synced_s < commit.sent_s:
            raise Violation(
                "INV-8",
                f"{place[0]}: a member of generation {commit.generation} committed when {group.synced} was synced",
            )
        commit.acked_s = self._world.loop.time()

    def read(self, place: Place, number: int, asked_s: float) -> None:
        """The owner answered ``number`` (-1: nothing committed) to whoever asked at ``asked_s``. Raises: Violation."""
        commits = self._commits.get(place, {})
        known = commits.get(number)
        if number >= 0 and known is None:
            raise Violation("INV-8", f"{place}: {number} was read, which nobody committed")
        if known is not None and known.refused:
            raise Violation("INV-8", f"{place}: {number} was read, whose commit was refused")
        before_s = -1.0 if known is None else known.acked_s
        for later in commits.values():
            if later.acked_s < asked_s and before_s < later.sent_s:
                raise Violation(
                    "INV-8",
                    f"{place}: {number} was read, though {later.number} was committed after it and acknowledged",
                )
        if known is not None:
            known.acked_s = min(known.acked_s, self._world.loop.time())  # and it stays

    # --- generations ------------------------------------------------------------------------------------------------

    def led(self, group_id: str, generation: int, assignment: dict[str, bytes]) -> None:
        """A leader sends what everybody gets."""
        self._groups.setdefault(group_id, _Group()).assignments.setdefault(generation, []).append(assignment)

    def synced(self, group_id: str, generation: int, member_id: str, assignment: bytes) -> None:
        """A member was told its assignment. Raises: Violation."""
        group = self._groups.setdefault(group_id, _Group())
        sent = group.assignments.get(generation, [])
        if sent and not any(one.get(member_id) == assignment for one in sent):
            raise Violation("INV-8", f"{group_id}: {member_id} got what no leader of generation {generation} gave it")
        if generation > group.synced:
            group.synced, group.synced_s = generation, self._world.loop.time()


class Member(Actor):
    """A member of a group: it joins, commits what it owns, sleeps too long now and then, and goes."""

    def __init__(self, world: World, name: str, group_id: str) -> None:
        super().__init__(world, name)
        self.group_id = group_id
        self.pause_s = world.rng.choice((0.05, 0.2))
        self.member_id = ""
        self.generation = -1
        self.owned: list[tuple[str, int]] = []

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * self.pause_s)
            if not self.world.producing:
                continue
            try:
                await self.turn()
            except Unreachable:
                continue

    async def turn(self) -> None:
        """Do one thing. Raises: Unreachable."""
        if self.generation < 0:
            await self.join()
            return
        dice = self.rng.random()
        if dice < 0.55:
            await self.commit()
        elif dice < 0.75:
            await self.heartbeat()
        elif dice < 0.9:
            await self.read_offsets()
        elif dice < 0.97:
            # Longer than the session lasts: somebody else may own what this one still believes to own.
            await asyncio.sleep(self.rng.uniform(0.5, 2.5) * SESSION_MS / 1000)
            await self.commit()
        else:
            await self.leave()

    def _told(self, what: str, code: int) -> ErrorCode:
        """An answer's code, if it may be. Raises: Violation."""
        self.world.trace("group", self.name, what, self.generation, ErrorCode(code).name)
        self.world.expect(code, GROUP_EXPECTED, f"{what} of {self.group_id}")
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if ErrorCode(code) in OVERTAKEN:
            self.generation = -1
        return ErrorCode(code)

    # --- joining ----------------------------------------------------------------------------------------------------

    async def join(self) -> bool:
        """Join, and be given partitions. Raises: Unreachable."""
        found = await self.ask(
            ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group_id])
        )
        if self._told("FindCoordinator", found.coordinators[0].error_code) is not ErrorCode.NONE:
            return False
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"")],
        )
        joined: JoinGroupResponse = await self.ask(ApiKey.JOIN_GROUP, 7, request)
        code = self._told("JoinGroup", joined.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
        if code is not ErrorCode.NONE:
            return False
        self.member_id, generation = joined.member_id, joined.generation_id
        assignments = self._assign(joined, generation) if joined.leader == self.member_id else {}
        request_sync = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member, given) for member, given in assignments.items()],
        )
        synced = await self.ask(ApiKey.SYNC_GROUP, 5, request_sync)
        if self._told("SyncGroup", synced.error_code) is not ErrorCode.NONE:
            return False
        if self.current():
            self.world.committed_offsets.synced(self.group_id, generation, self.member_id, synced.assignment)
        self.generation = generation
        self.owned = _partitions(synced.assignment)
        return True

    def _assign(self, joined: JoinGroupResponse, generation: int) -> dict[str, bytes]:
        members = sorted(member.member_id for member in joined.members)
        places = sorted({(one.topic, one.index) for one in self.partitions()})
        given = {
            member: ",".join(f"{topic}/{index}" for topic, index in places[number :: len(members)]).encode()
            for number, member in enumerate(members)
        }
        self.world.committed_offsets.led(self.group_id, generation, given)
        return given

    # --- being a member ---------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Raises: Unreachable, Violation."""
        if not self.owned:
            return
        offsets = self.world.committed_offsets
        topic, index = self.rng.choice(self.owned)
        place = (self.group_id, topic, index)
        number, generation = self.world.next_number(), self.generation
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=generation,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[OffsetCommitRequestPartition(index, number)])],
        )
        commit = offsets.sent(place, number, generation)
        answer = await self.ask(ApiKey.OFFSET_COMMIT, 8, request)
        code = self._told(f"OffsetCommit {number}", answer.topics[0].partitions[0].error_code)
        if self.sure():
            offsets.answered(place, commit, code)

    async def heartbeat(self) -> None:
        """Raises: Unreachable."""
        request = HeartbeatRequest(self.group_id, self.generation, self.member_id)
        self._told("Heartbeat", (await self.ask(ApiKey.HEARTBEAT, 4, request)).error_code)

    async def leave(self) -> None:
        """Raises: Unreachable."""
        request = LeaveGroupRequest(group_id=self.group_id, members=[MemberIdentity(self.member_id)])
        answer = await self.ask(ApiKey.LEAVE_GROUP, 4, request)
        self._told("LeaveGroup", answer.error_code or answer.members[0].error_code)
        self.member_id, self.generation, self.owned = "", -1, []

    async def read_offsets(self) -> bool:
        """Read all that the group has committed, and hold it against the truth. Raises: Unreachable, Violation."""
        offsets = self.world.committed_offsets
        places = sorted({(one.topic, one.index) for one in self.partitions()})
        topics = {
            topic: [index for other, index in places if other == topic]
            for topic in sorted({topic for topic, _ in places})
        }
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    self.group_id,
                    topics=[
                        OffsetFetchRequestTopics(name=topic, partition_indexes=all_) for topic, all_ in topics.items()
                    ],
                )
            ]
        )
        asked_s = self.world.loop.time()
        (group,) = (await self.ask(ApiKey.OFFSET_FETCH, 8, request)).groups
        if self._told("OffsetFetch", group.error_code) is not ErrorCode.NONE:
            return False
        if not self.current():
            return False
        for topic in group.topics:
            for part in topic.partitions:
                self.world.expect(part.error_code, GROUP_EXPECTED, f"OffsetFetch of {topic.name}")
                if part.error_code == 0:
                    self.world.trace(
                        "offset of", self.group_id, topic.name, part.partition_index, part.committed_offset
                    )
                    offsets.read((self.group_id, topic.name, part.partition_index), part.committed_offset, asked_s)
        return True


def _partitions(assignment: bytes) -> list[tuple[str, int]]:
    places = (place.rpartition("/") for place in assignment.decode().split(",") if place)
    return [(topic, int(index)) for topic, _, index in places]
