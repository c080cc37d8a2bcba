"""Two hundred members come and go at random, by every protocol: assignments settle, partitions are owned once, nobody starves."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from struct import pack, unpack_from
from typing import Any, Final

import pytest

from app.core.errors import ErrorCode
from app.core.units import NO_TOPIC_ID
from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.header import encode_request_header, parse_response_header
from tests.interop.peers import make, request
from tests.interop.serving import create_topic, firn_serving

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MEMBERS: Final = 200
PARTITIONS: Final = 400
COMINGS_AND_GOINGS: Final = 300
GROUP: Final = "crowd"
TOPIC: Final = "crowded"
SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 10_000
HEARTBEAT_S: Final = 0.5
SETTLE_S_MAX: Final = 120
NAMED_TOPIC: Final = pack(">h", len(TOPIC)) + TOPIC.encode()
SUBSCRIPTION: Final = pack(">hi", 0, 1) + NAMED_TOPIC + pack(">i", -1)


class Member:
    """A client of a group, over a connection of its own, as small as it can be."""

    keeps_partitions = False
    """Whether it reads on while the group rebalances, so that no two may ever own a partition at a time."""

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.port = port
        self.member_id = ""
        self.generation = -1
        """Or member epoch."""
        self.owned: tuple[int, ...] = ()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        body = codec.encode_request(key, version, request(key, group_id=GROUP, **fields))
        frame = encode_request_header(key, version, 7, f"m{self.number}") + body
        self._writer.write(pack(">i", len(frame)) + frame)
        (size,) = unpack_from(">i", await self._reader.readexactly(4))
        answer = memoryview(await self._reader.readexactly(size))
        return codec.decode_response(key, version, answer[parse_response_header(answer, key, version).body_start :])

    async def run(self, stopping: asyncio.Event, *, silently: bool) -> None:
        """Take part until told to stop; then leave, or just fall silent."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while not stopping.is_set():
                if await self.join():
                    await self.stay(stopping)
            if not silently and self.member_id:
                await self.leave()
        finally:
            self.owned = ()
            self._writer.close()

    async def join(self) -> bool:
        """Whether the member has an assignment now."""
        raise NotImplementedError

    async def stay(self, stopping: asyncio.Event) -> None:
        """Take part until told to stop, or until it has to join again."""
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError


class ClassicMember(Member):
    """Of the classic protocol: if it leads it deals partitions out. Eager: it has none while the group rebalances."""

    protocol = "range"

    def subscription(self) -> bytes:
        return SUBSCRIPTION

    def deal(self, members: Sequence[Any]) -> dict[str, Sequence[int]]:
        """The leader's work: partitions in turns."""
        names = sorted(member.member_id for member in members)
        return {name: range(place, PARTITIONS, len(names)) for place, name in enumerate(names)}

    def take(self, assigned: tuple[int, ...]) -> bool:
        """Own what is assigned from now on; whether there is nothing to join again for."""
        self.owned = assigned
        return True

    async def leave(self) -> None:
        member = make(ApiKey.LEAVE_GROUP, "MemberIdentity", member_id=self.member_id)
        await self.ask(ApiKey.LEAVE_GROUP, 4, members=[member])

    async def join(self) -> bool:
        protocol = make(ApiKey.JOIN_GROUP, "JoinGroupRequestProtocol", name=self.protocol, metadata=self.subscription())
        joined = await self.ask(
            ApiKey.JOIN_GROUP,
            7,
            member_id=self.member_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[protocol],
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return False
        if joined.error_code:
            self._hear(joined.error_code)
            return False
        self.generation = joined.generation_id
        synced = await self.ask(
            ApiKey.SYNC_GROUP,
            5,
            member_id=self.member_id,
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=self.protocol,
            assignments=[
                make(
                    ApiKey.SYNC_GROUP,
                    "SyncGroupRequestAssignment",
                    member_id=name,
                    assignment=pack(f">{len(share)}i", *share),
                )
                for name, share in (self.deal(joined.members) if joined.members else {}).items()
            ],
        )
        if synced.error_code:
            self._hear(synced.error_code)
            return False
        count = len(synced.assignment) // 4
        return self.take(unpack_from(f">{count}i", synced.assignment))

    async def stay(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            answer = await self.ask(ApiKey.HEARTBEAT, 4, member_id=self.member_id, generation_id=self.generation)
            if answer.error_code:
                self._hear(answer.error_code)
                return
            try:
                await asyncio.wait_for(stopping.wait(), HEARTBEAT_S)
            except TimeoutError:
                continue

    def _hear(self, code: int) -> None:
        if code != ErrorCode.REBALANCE_IN_PROGRESS or not self.keeps_partitions:
            self.owned = ()
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        assert code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,  # the topic of offsets was made just now
        ), ErrorCode(code)


class CooperativeMember(ClassicMember):
    """Of the classic protocol, cooperative (KIP-429): it gives up only what another gets, and then joins again."""

    protocol = "cooperative-sticky"
    keeps_partitions = True

    def subscription(self) -> bytes:
        owned = NAMED_TOPIC + pack(f">i{len(self.owned)}i", len(self.owned), *self.owned)
        return pack(">hi", 1, 1) + NAMED_TOPIC + pack(">ii", -1, 1) + owned

    def deal(self, members: Sequence[Any]) -> dict[str, Sequence[int]]:
        """Everybody keeps what it has, up to its share; what somebody has to give up is given to nobody yet."""
        had = {member.member_id: _owned_by(member.metadata) for member in members}
        free = set(range(PARTITIONS)).difference(*had.values())
        share, longer = divmod(PARTITIONS, len(had))
        dealt: dict[str, Sequence[int]] = {}
        for place, name in enumerate(sorted(had, key=lambda name: -len(had[name]))):
            kept = had[name][: share + (place < longer)]
            dealt[name] = (*kept, *(free.pop() for _ in range(min(len(free), share + (place < longer) - len(kept)))))
        return dealt

    def take(self, assigned: tuple[int, ...]) -> bool:
        gives_up = bool(set(self.owned) - set(assigned))
        self.owned = assigned
        return not gives_up


def _owned_by(metadata: bytes) -> tuple[int, ...]:
    """What ``CooperativeMember.subscription`` says of partitions."""
    at = len(pack(">hi", 1, 1) + NAMED_TOPIC + pack(">ii", -1, 1) + NAMED_TOPIC)
    (count,) = unpack_from(">i", metadata, at)
    return unpack_from(f">{count}i", metadata, at + 4)


class AssignedMember(Member):
    """Of the consumer protocol (KIP-848): the broker deals partitions out, and this gives up what it is told to, and says so."""

    keeps_partitions = True
    topic_id = NO_TOPIC_ID

    async def join(self) -> bool:
        self.member_id, self.generation = self.member_id or f"member-{self.number}", 0
        return await self._beat(rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=[TOPIC])

    async def _beat(self, **fields: Any) -> bool:
        """One heartbeat; another at once if there was something to give up or to get. False if it has to join again."""
        parts = [
            make(ApiKey.CONSUMER_GROUP_HEARTBEAT, "TopicPartitions", topic_id=self.topic_id, partitions=self.owned)
        ]
        answer = await self.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            member_id=self.member_id,
            member_epoch=self.generation,
            topic_partitions=parts if self.owned else [],
            **fields,
        )
        if answer.error_code:
            self.owned = ()
            assert answer.error_code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ), ErrorCode(answer.error_code)
            return False
        self.generation = answer.member_epoch
        if answer.assignment is not None:
            told = tuple(index for topic in answer.assignment.topic_partitions for index in topic.partitions)
            if set(told) != set(self.owned):
                self.owned = told
                return await self._beat()
        return True

    async def stay(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            if not await self._beat():
                return
            try:
                await asyncio.wait_for(stopping.wait(), HEARTBEAT_S)
            except TimeoutError:
                continue

    async def leave(self) -> None:
        self.owned, self.generation = (), -1
        await self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, member_id=self.member_id, member_epoch=-1)


class Crowd:
    def __init__(self, kind: type[Member], port: int, tasks: asyncio.TaskGroup) -> None:
        self.kind = kind
        self.port = port
        self.tasks = tasks
        self.members: dict[Member, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self.count = 0

    def come(self, rng: random.Random) -> None:
        member = self.kind(self.count, self.port)
        self.count += 1
        stopping = asyncio.Event()
        task = self.tasks.create_task(member.run(stopping, silently=rng.random() < 0.3))
        self.members[member] = (stopping, task)

    def go(self, rng: random.Random) -> None:
        member = rng.choice(list(self.members))
        stopping, _ = self.members.pop(member)
        stopping.set()

    def is_settled(self) -> bool:
        """Whether all are in one generation, own every partition once, and nobody has none."""
        owned = sorted(index for member in self.members for index in member.owned)
        return (
            owned == list(range(PARTITIONS))
            and all(member.owned for member in self.members)
            and len({member.generation for member in self.members}) == 1
        )

    def check_owned_once(self) -> None:
        owned = [index for member in self.members for index in member.owned]
        assert len(owned) == len(set(owned)), "a partition has two owners"

    async def settle(self) -> None:
        deadline = time.monotonic() + SETTLE_S_MAX
        while not self.is_settled():
            if self.kind.keeps_partitions:
                self.check_owned_once()
            assert time.monotonic() < deadline, "the group does not settle"
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", [ClassicMember, CooperativeMember, AssignedMember])
async def test_two_hundred_members_that_come_and_go_settle_each_time(tmp_path: Path, kind: type[Member]) -> None:
    rng = random.Random(11)
    settings = {
        "group_initial_rebalance_delay_ms": 500,
        "offsets_topic_num_partitions": 2,
        "group_consumer_min_session_timeout_ms": SESSION_MS,
        "group_consumer_session_timeout_ms": SESSION_MS,
    }
    with firn_serving(tmp_path, **settings) as firn:
        AssignedMember.topic_id = create_topic(firn.port, TOPIC, PARTITIONS)
        seeker = kind(-1, firn.port)
        seeker._reader, seeker._writer = await asyncio.open_connection("127.0.0.1", firn.port)
        found = codec.encode_request(ApiKey.FIND_COORDINATOR, 3, request(ApiKey.FIND_COORDINATOR, key=GROUP))
        frame = encode_request_header(ApiKey.FIND_COORDINATOR, 3, 7, "seeker") + found
        seeker._writer.write(pack(">i", len(frame)) + frame)
        (size,) = unpack_from(">i", await seeker._reader.readexactly(4))
        await seeker._reader.readexactly(size)
        seeker._writer.close()
        async with asyncio.TaskGroup() as tasks:
            crowd = Crowd(kind, firn.port, tasks)
            for _ in range(MEMBERS):
                crowd.come(rng)
            await crowd.settle()
            for step in range(COMINGS_AND_GOINGS):
                if len(crowd.members) < 10 or (rng.random() < 0.5 and len(crowd.members) < MEMBERS):
                    crowd.come(rng)
                else:
                    crowd.go(rng)
                await asyncio.sleep(rng.random() * 0.1)
                if step % 100 == 99:
                    await crowd.settle()
            await crowd.settle()
            # A member that stays is not made to join anew for ever.
            generation = next(iter(crowd.members)).generation
            await asyncio.sleep(3 * HEARTBEAT_S)
            assert crowd.is_settled()
            assert {member.generation for member in crowd.members} == {generation}
            for stopping, _ in crowd.members.values():
                stopping.set()
        assert not firn.troubles
