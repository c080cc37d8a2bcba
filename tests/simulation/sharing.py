"""Share groups (KIP-932) in the simulation: workers, and the truth that deliveries are held against. What is checked:

- **Done is done**: a record that was accepted or rejected, and the answer said so, is not delivered to whoever asks afterwards.
- **One at a time**: what a worker was given is not given to another while the time that it was promised lasts.
- **Kept for it**: as long, and on the connection that it was given on, the worker is not refused what it says of it.
- **In the end** every record that is there was delivered to somebody.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.apis.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from app.wire.apis.share_fetch import FetchPartition, FetchTopic, ForgottenTopic, ShareFetchRequest
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.sim.machine import SHARE_LOCK_MS, Unreachable
from tests.sim.violation import Violation
from tests.simulation.actors import EXPECTED, Actor
from tests.simulation.groups import COORDINATOR_TROUBLE

if TYPE_CHECKING:
    from tests.simulation.world import World

Place = tuple[UUID, int]

DRY_FETCHES = 4
"""So often each partition is asked for in vain before nothing is left."""
GROUP = "shared"
GROUP_RESOURCE = 32
ACCEPT, RELEASE, REJECT = 1, 2, 3
FENCING = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})
NO_SESSION = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH})
REFUSALS = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})
"""Of what is said of records that one has not, or nobody."""
WORKER_EXPECTED = EXPECTED | COORDINATOR_TROUBLE | FENCING | NO_SESSION | REFUSALS


class Grip(Protocol):
    """On which a worker has what it was given: its connection, and what else must stay."""

    @property
    def open(self) -> bool: ...


@dataclass(slots=True, eq=False)
class _Held:
    """A record that a worker was given."""

    worker: str
    grip: Grip
    until_s: float


@dataclass(slots=True, eq=False)
class _Progress:
    """Of one partition."""

    done_s: dict[int, float] = field(default_factory=dict)
    """When it was known of a record that it is done with."""
    held: dict[int, _Held] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)


class SharedOnce:
    """INV-12: see the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._partitions: dict[Place, _Progress] = {}

    def _of(self, place: Place) -> _Progress:
        return self._partitions.setdefault(place, _Progress())

    def lost(self) -> None:
        """The progress may have lost its end."""
        self._partitions.clear()

    def restarted(self) -> None:
        """Nobody remembers who was given what."""
        for progress in self._partitions.values():
            progress.held.clear()

    def delivered(self, place: Place, first: int, end: int, worker: str, grip: Grip, sent_s: float) -> None:
        """A worker is given ``[first, end)``, which it asked for at ``sent_s``. Raises: Violation."""
        progress, now_s = self._of(place), self._world.loop.time()
        progress.delivered.update(range(first, end))
        until_s = sent_s + SHARE_LOCK_MS / 1000
        if until_s <= now_s:
            return  # it may be somebody else's again
        for offset in range(first, end):
            if progress.done_s.get(offset, inf) < sent_s:
                raise Violation("INV-12", f"{place}: {offset} was done with and is delivered to {worker}")
            held = progress.held.get(offset)
            if held is not None and held.worker != worker and held.until_s > now_s and held.grip.open:
                raise Violation("INV-12", f"{place}: {offset} is delivered to {worker} while {held.worker} has it")
            progress.held[offset] = _Held(worker, grip, until_s)

    def says(self, place: Place, first: int, end: int, worker: str, grip: Grip) -> float:
        """A worker is about to say something of what it was given; until when it may be sure to have it."""
        held = self._of(place).held
        sure = [held.pop(offset, None) for offset in range(first, end)]
        return min(
            one.until_s if one is not None and one.worker == worker and one.grip == grip else -1.0 for one in sure
        )

    def answered(self, place: Place, first: int, end: int, kind: int, code: ErrorCode, sure_until_s: float) -> None:
        """What came of it. Raises: Violation."""
        now_s = self._world.loop.time()
        history = self._world.histories.get(place)
        if history is None or history.deleting:
            return  # with its topic, the group's progress goes
        if code in REFUSALS and sure_until_s > now_s:
            raise Violation("INV-12", f"{place}: [{first}, {end}) was refused to its worker before its time was up")
        if code is ErrorCode.NONE and kind != RELEASE:
            self._of(place).done_s.update(dict.fromkeys(range(first, end), now_s))

    def finished(self, places: Iterable[Place]) -> None:
        """Nothing of these partitions is left to be delivered. Raises: Violation."""
        for place in places:
            history = self._world.histories[place]
            if history.deleting or history.losses or history.rotten_from is not None or history.expires:
                continue
            delivered = self._of(place).delivered
            for bound in history.bound.values():
                missing = [offset for offset in range(bound.base, bound.end) if offset not in delivered]
                if bound.acked and bound.base >= history.log_start_asked and missing:
                    raise Violation("INV-12", f"{history.name}: {missing[0]} was never delivered")


class Worker(Actor):
    """A member of the share group: it joins, is given records and says what it did with them, or does not."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.pause_s = world.rng.choice((0.05, 0.2))
        self.epoch = 0
        self.places: list[Place] = []
        self.session_epoch = 0
        self.session_wire: Any = None
        self.given: list[tuple[Place, int, int]] = []

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
        """Raises: Unreachable, Violation."""
        dice = self.rng.random()
        if not self.places or dice < 0.15:
            await self.beat()
        elif self.given and dice < 0.7:
            await self.say(self.rng.choice((ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT)))
        elif dice < 0.75:
            await asyncio.sleep(self.rng.uniform(0.5, 2.0) * SHARE_LOCK_MS / 1000)
        elif dice < 0.8:
            self.hang_up()
        else:
            await self.fetch(max_records=self.rng.choice((1, 3, 100)), max_wait_ms=self.rng.choice((0, 0, 300)))

    async def beat(self) -> bool:
        """Raises: Unreachable."""
        world = self.world
        if self.epoch == 0:
            asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
            found = (await self.ask(ApiKey.FIND_COORDINATOR, 4, asked)).coordinators[0]
            world.expect(found.error_code, WORKER_EXPECTED, "FindCoordinator")
            if found.error_code:
                return False
        names = self.topics()
        request = ShareGroupHeartbeatRequest(GROUP, self.name, self.epoch, None, names)
        answer: ShareGroupHeartbeatResponse = await self.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, request)
        code = ErrorCode(answer.error_code)
        world.trace("sharing", self.name, self.epoch, answer.member_epoch, code.name)
        world.expect(code, WORKER_EXPECTED, "ShareGroupHeartbeat")
        if code in FENCING:
            self.epoch = 0
        if code is not ErrorCode.NONE:
            return False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            parts = answer.assignment.topic_partitions
            self.places = sorted((topic.topic_id, index) for topic in parts for index in topic.partitions)
        return True

    def topics(self) -> list[str]:
        """What it subscribes to."""
        return sorted({one.topic for one in self.world.histories.values()})

    async def session_connection(self) -> Any:
        """That of the session, or a new one. Raises: Unreachable."""
        return self.connect()

    def places_here(self) -> list[Place]:
        """Its partitions at the broker to which ``session_connection`` leads."""
        return self.places

    def grip(self, place: Place) -> Grip:
        assert self.wire is not None
        return self.wire

    def current_in(self, place: Place) -> bool:
        """As ``current``, for one partition of the last request."""
        return self.current()

    def move_on(self) -> None:
        """To another broker, if there are several."""

    async def fetch(self, *, max_records: int, max_wait_ms: int) -> int:
        """Ask for records; how many there were. Raises: Unreachable, Violation."""
        world, wire = self.world, await self.session_connection()
        if wire is not self.session_wire:
            self.session_epoch, self.session_wire, self.given = 0, wire, []
        by_topic: dict[UUID, list[int]] = {}
        for topic_id, index in self.places_here() if self.session_epoch == 0 else ():
            by_topic.setdefault(topic_id, []).append(index)
        request = ShareFetchRequest(
            GROUP,
            self.name,
            self.session_epoch,
            max_wait_ms,
            max_records=max_records,
            max_bytes=1 << 20,
            share_acquire_mode=self.rng.randrange(2),
            topics=[FetchTopic(topic, [FetchPartition(index) for index in parts]) for topic, parts in by_topic.items()],
            forgotten_topics_data=list[ForgottenTopic](),
        )
        sent_s = world.loop.time()
        answer = await self.ask(ApiKey.SHARE_FETCH, 2, request)
        code = ErrorCode(answer.error_code)
        world.trace("share fetch", self.name, self.session_epoch, code.name)
        world.expect(code, WORKER_EXPECTED, "ShareFetch")
        if code is not ErrorCode.NONE:
            self.session_epoch, self.session_wire = 0, None
            self.hang_up()
            return 0
        self.session_epoch += 1
        count = 0
        for topic in answer.responses:
            for part in topic.partitions:
                if part.error_code == ErrorCode.UNKNOWN_SERVER_ERROR and "subscribes" in (part.error_message or ""):
                    self.epoch = 0  # no partition is begun for who was forgotten as a member
                    continue
                world.expect(part.error_code, WORKER_EXPECTED, "ShareFetch of a partition")
                place = (topic.topic_id, part.partition_index)
                for run in part.acquired_records:
                    first, end = run.first_offset, run.last_offset + 1
                    world.trace("shared", self.name, part.partition_index, first, end, run.delivery_count)
                    count += end - first
                    if self.current_in(place):
                        world.shared_once.delivered(place, first, end, self.name, self.grip(place), sent_s)
                        self.given.append((place, first, end))
        return count

    async def say(self, kind: int) -> None:
        """Say one thing of some that was given. Raises: Unreachable, Violation."""
        world, wire = self.world, await self.session_connection()
        if wire is not self.session_wire or self.session_epoch == 0:
            self.given = []
            return
        place, first, end = self.given.pop(self.rng.randrange(len(self.given)))
        partition = AcknowledgePartition(place[1], [AcknowledgementBatch(first, end - 1, [kind])])
        request = ShareAcknowledgeRequest(
            GROUP, self.name, self.session_epoch, False, [AcknowledgeTopic(place[0], [partition])]
        )
        sure_until_s = world.shared_once.says(place, first, end, self.name, self.grip(place))
        answer = await self.ask(ApiKey.SHARE_ACKNOWLEDGE, 2, request)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            self.session_epoch += 1
            code = ErrorCode(answer.responses[0].partitions[0].error_code)
        else:
            self.hang_up()
        world.trace("said", self.name, place[1], first, end, kind, code.name)
        world.expect(code, WORKER_EXPECTED, "ShareAcknowledge")
        if self.sure():
            if not self.current_in(place):
                sure_until_s = -1.0
            world.shared_once.answered(place, first, end, kind, code, sure_until_s)


async def begin(actor: Actor) -> None:
    """Have the group begin at the start of each partition, before anybody joins it."""
    config = AlterableConfig("share.auto.offset.reset", 0, "earliest")
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP_RESOURCE, GROUP, [config])])
    while True:
        try:
            answer = await actor.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
            if answer.responses[0].error_code == 0:
                return
        except Unreachable:
            pass
        await asyncio.sleep(0.2)


async def drain(worker: Worker) -> None:
    """A last worker is given all that is left, and accepts it. Raises: Violation.

    It waits for nothing, so records of the tier come with a later fetch: one has the footer read, and the next one the chunk.
    """
    world = worker.world
    asked: Counter[Place] = Counter()
    """How often each partition was asked for since the last record came."""
    empty_since_s, end_s = world.loop.time(), world.loop.time() + 60
    wanted = sorted((one.topic_id, one.index) for one in worker.partitions())
    while True:
        count = 0
        worker.move_on()
        try:
            await worker.beat()
            if [place for place in worker.places if place in wanted] == wanted:
                count = await worker.fetch(max_records=10_000, max_wait_ms=0)
                asked.update(worker.places_here())
                while worker.given:
                    await worker.say(ACCEPT)
            else:
                count = 1  # others are members still
        except Unreachable:
            count = 1
        now_s = world.loop.time()
        if count:
            empty_since_s = now_s
            asked.clear()
        elif now_s > empty_since_s + 3 * SHARE_LOCK_MS / 1000 and all(asked[one] >= DRY_FETCHES for one in wanted):
            break
        if now_s > end_s:
            raise Violation("liveness", f"{GROUP} has not been given everything")
        await asyncio.sleep(0.1)
    if not world.committed_offsets.losses:
        world.shared_once.finished(wanted)
