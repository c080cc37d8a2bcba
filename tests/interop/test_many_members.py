"""Two hundred members come and go at random, by either protocol: assignments settle, partitions are owned once, nobody starves."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from struct import pack, unpack_from
from typing import Any, Final

import pytest

from app.errors import ErrorCode
from app.units import NO_TOPIC_ID
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
SUBSCRIPTION: Final = pack(">hih", 0, 1, len(TOPIC)) + TOPIC.encode() + pack(">i", -1)


class Member:
    """A client of a group, over a connection of its own, as small as it can be."""

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
    """Of the classic protocol: if it leads it deals partitions out."""

    async def leave(self) -> None:
        member = make(ApiKey.LEAVE_GROUP, "MemberIdentity", member_id=self.member_id)
        await self.ask(ApiKey.LEAVE_GROUP, 4, members=[member])

    async def join(self) -> bool:
        protocol = make(ApiKey.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=SUBSCRIPTION)
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
            protocol_name="range",
            assignments=_assign([member.member_id for member in joined.members]),
        )
        if synced.error_code:
            self._hear(synced.error_code)
            return False
        count = len(synced.assignment) // 4
        self.owned = unpack_from(f">{count}i", synced.assignment)
        return True

    async def stay(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            answer = await self.ask(ApiKey.HEARTBEAT, 4, member_id=self.member_id, generation_id=self.generation)
            if answer.error_code:
                self.owned = ()
                self._hear(answer.error_code)
                return
            try:
                await asyncio.wait_for(stopping.wait(), HEARTBEAT_S)
            except TimeoutError:
                continue

    def _hear(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        assert code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,  # the topic of offsets was made just now
        ), ErrorCode(code)


class AssignedMember(Member):
    """Of the consumer protocol (KIP-848): the broker deals partitions out, and this gives up what it is told to, and says so."""

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


def _assign(members: Sequence[str]) -> list[Any]:
    """The leader's work: partitions in turns, as bare int32s."""
    shares = {name: range(place, PARTITIONS, len(members)) for place, name in enumerate(sorted(members))}
    return [
        make(
            ApiKey.SYNC_GROUP,
            "SyncGroupRequestAssignment",
            member_id=name,
            assignment=pack(f">{len(share)}i", *share),
        )
        for name, share in shares.items()
    ]


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
            if self.kind is AssignedMember:
                self.check_owned_once()  # at any time: there is no barrier in that protocol behind which it could be otherwise
            assert time.monotonic() < deadline, "the group does not settle"
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", [ClassicMember, AssignedMember])
async def test_two_hundred_members_that_come_and_go_settle_each_time(tmp_path: Path, kind: type[Member]) -> None:
    rng = random.Random(11)
    settings = {
        "group_initial_rebalance_delay_ms": 500,
        "offsets_topic_num_partitions": 2,
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
