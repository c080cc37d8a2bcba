"""A group of many members of the consumer protocol (KIP-848) in one process: how long a rebalance takes, and what it costs.

    python loadtests/raw_group.py --port 9092 --topic t --partitions 2000 --members 1000 --server-pid 1234

Members keep the protocol as clients do: a heartbeat every interval that the broker names, another at once after they have given
up or got partitions, and they begin anew when they are fenced. First all of them join a group that is not there. Then
``--churn`` of them leave and as many new ones join, all at once: that is the rebalance which is measured. It is over when every
member has reached the newest epoch and has its share of the partitions. Prints one JSON object. Speaks to any Kafka broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from loadtests.processes import family_cpu_seconds

GROUP = "many-members"
CONNECTIONS = 20
"""Members share them: what is measured is the coordinator, not the accepting of connections."""
SETTLE_TIMEOUT_S = 300.0
REBALANCE_TIMEOUT_MS = 60_000
FENCING = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
TRANSIENT = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Connection:
    """Requests one after the other, of whoever comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    async def ask(self, key: int, version: int, message: Any) -> Any:
        """The answer. Who is cancelled meanwhile leaves none behind that the next would take for its own."""
        return await asyncio.shield(self._ask(key, version, message))

    async def _ask(self, key: int, version: int, message: Any) -> Any:
        async with self._turn:
            self._writer.write(request_frame(key, version, 1, "raw-group", message))
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            frame = memoryview(await self._reader.readexactly(size))
        return decode_response(key, version, frame[parse_response_header(frame, key, version).body_start :])

    def close(self) -> None:
        self._writer.close()


class Member:
    def __init__(self, group: Group, connection: Connection) -> None:
        self.group = group
        self.connection = connection
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: dict[UUID, list[int]] = {}
        self.heartbeats = 0

    async def live(self) -> None:
        """Join and go on until cancelled."""
        while True:
            answer = await self.beat()
            if answer.error_code in FENCING:
                self.epoch, self.owned = 0, {}
                continue
            if answer.error_code in TRANSIENT:
                await asyncio.sleep(0.1)
                continue
            if answer.error_code:
                raise SystemExit(
                    f"a heartbeat was answered {ErrorCode(answer.error_code).name}: {answer.error_message}"
                )
            self.epoch = answer.member_epoch
            self.group.epoch = max(self.group.epoch, self.epoch)
            self.group.interval_s = answer.heartbeat_interval_ms / 1000
            if answer.assignment is not None:
                told = {topic.topic_id: topic.partitions for topic in answer.assignment.topic_partitions}
                if told != self.owned:
                    self.owned = told
                    continue
            await asyncio.sleep(self.group.interval_s)

    async def beat(self) -> ConsumerGroupHeartbeatResponse:
        self.heartbeats += 1
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            topic_partitions=[TopicPartitions(topic_id, parts) for topic_id, parts in self.owned.items()],
        )
        if self.epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.subscribed_topic_names = [self.group.topic]
        answer: ConsumerGroupHeartbeatResponse = await self.connection.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        return answer

    async def leave(self) -> None:
        self.epoch = -1
        await self.beat()


class Group:
    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.members: dict[Member, asyncio.Task[None]] = {}
        self.epoch = 0
        self.interval_s = 5.0

    def add(self, connection: Connection, tasks: asyncio.TaskGroup) -> None:
        member = Member(self, connection)
        self.members[member] = tasks.create_task(member.live())

    async def remove(self, member: Member) -> None:
        self.members.pop(member).cancel()
        await member.leave()

    @property
    def is_settled(self) -> bool:
        """Whether everybody is as far as anybody, every partition is owned, and nobody has two more than another: brokers that
        do not assign at every change (KIP-1263) are not done when the first of these is true."""
        counts = [sum(map(len, member.owned.values())) for member in self.members]
        return (
            all(member.epoch == self.epoch for member in self.members)
            and sum(counts) == self.partitions
            and max(counts) - min(counts) <= 1
        )

    async def settle(self) -> None:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not self.is_settled:
            if time.monotonic() > deadline:
                raise SystemExit("the group does not settle")
            await asyncio.sleep(0.1)


async def wait_for_coordinator(connection: Connection) -> None:
    """Have the coordinator made, and answer."""
    stranger = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="stranger", member_epoch=1)
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    await connection.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=GROUP))
    while (await connection.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, stranger)).error_code in TRANSIENT:
        if time.monotonic() > deadline:
            raise SystemExit("no coordinator answers")
        await asyncio.sleep(0.2)


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    connections = [
        Connection(*await asyncio.open_connection(arguments.host, arguments.port)) for _ in range(CONNECTIONS)
    ]
    await wait_for_coordinator(connections[0])
    group = Group(arguments.topic, arguments.partitions)
    report: dict[str, object] = {"members": arguments.members, "partitions": arguments.partitions}

    async def timed(name: str, what: Any) -> None:
        cpu, started = family_cpu_seconds(arguments.server_pid), time.monotonic()
        beats = sum(member.heartbeats for member in group.members)
        await what
        await group.settle()
        seconds = time.monotonic() - started
        report[f"{name}_s"] = round(seconds, 2)
        report[f"{name}_intervals"] = round(seconds / group.interval_s, 2)
        report[f"{name}_cpu_s"] = round(family_cpu_seconds(arguments.server_pid) - cpu, 2)
        report[f"{name}_heartbeats"] = sum(member.heartbeats for member in group.members) - beats

    async with asyncio.TaskGroup() as tasks:

        async def join(count: int) -> None:
            for number in range(count):
                group.add(connections[number % CONNECTIONS], tasks)

        async def churn() -> None:
            leaving = list(group.members)[:: max(1, arguments.members // arguments.churn)][: arguments.churn]
            await asyncio.gather(*(group.remove(member) for member in leaving))
            await join(len(leaving))

        await timed("join", join(arguments.members))
        # Heartbeats are spread over the interval in a group that has been there for a while, and not all due at once.
        for member, task in group.members.items():
            task.cancel()
            group.members[member] = tasks.create_task(_later(member, group.interval_s))
        await asyncio.sleep(group.interval_s * 1.2)
        await timed("rebalance", churn())
        for task in group.members.values():
            task.cancel()
    for connection in connections:
        connection.close()
    return report


async def _later(member: Member, interval_s: float) -> None:
    await asyncio.sleep(interval_s * (hash(member.member_id) % 1000) / 1000)
    await member.live()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True, help="that the topic has")
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--churn", type=int, default=100, help="members that leave and join in the rebalance")
    parser.add_argument("--server-pid", type=int, required=True)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
