"""Two hundred members come and go at random: assignments settle, every partition is owned once, nobody starves."""

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
    """A client of the classic protocol, over a connection of its own, as small as it can be."""

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.port = port
        self.member_id = ""
        self.generation = -1
        self.owned: tuple[int, ...] = ()
        self.rebalances = 0
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
                if await self._join():
                    await self._stay(stopping)
            if not silently and self.member_id:
                member = make(ApiKey.LEAVE_GROUP, "MemberIdentity", member_id=self.member_id)
                await self.ask(ApiKey.LEAVE_GROUP, 4, members=[member])
        finally:
            self.owned = ()
            self._writer.close()

    async def _join(self) -> bool:
        """Whether the member has an assignment now."""
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
        self.rebalances += 1
        return True

    async def _stay(self, stopping: asyncio.Event) -> None:
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
    def __init__(self, port: int, tasks: asyncio.TaskGroup) -> None:
        self.port = port
        self.tasks = tasks
        self.members: dict[Member, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self.count = 0

    def come(self, rng: random.Random) -> None:
        member = Member(self.count, self.port)
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

    async def settle(self) -> None:
        deadline = time.monotonic() + SETTLE_S_MAX
        while not self.is_settled():
            assert time.monotonic() < deadline, "the group does not settle"
            await asyncio.sleep(0.05)


async def test_two_hundred_members_that_come_and_go_settle_each_time(tmp_path: Path) -> None:
    rng = random.Random(11)
    with firn_serving(tmp_path, group_initial_rebalance_delay_ms=500, offsets_topic_num_partitions=2) as firn:
        create_topic(firn.port, TOPIC, PARTITIONS)
        seeker = Member(-1, firn.port)
        seeker._reader, seeker._writer = await asyncio.open_connection("127.0.0.1", firn.port)
        found = codec.encode_request(ApiKey.FIND_COORDINATOR, 3, request(ApiKey.FIND_COORDINATOR, key=GROUP))
        frame = encode_request_header(ApiKey.FIND_COORDINATOR, 3, 7, "seeker") + found
        seeker._writer.write(pack(">i", len(frame)) + frame)
        (size,) = unpack_from(">i", await seeker._reader.readexactly(4))
        await seeker._reader.readexactly(size)
        seeker._writer.close()
        async with asyncio.TaskGroup() as tasks:
            crowd = Crowd(firn.port, tasks)
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
