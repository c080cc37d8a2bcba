"""Share groups in a cluster of several brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from app.core.errors import ErrorCode
from app.core.units import BrokerId
from app.groups.share.core.share_state import ShareKey
from app.metadata.changes.reassignments import ReassignmentAsked
from app.metadata.changes.topic_changes import ConfigChange
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from app.wire.apis.share_acknowledge import AcknowledgementBatch as Said
from app.wire.apis.share_acknowledge import AcknowledgePartition, AcknowledgeTopic, ShareAcknowledgeRequest
from app.wire.apis.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker
from tests.support.changing import alter_configs
from tests.support.waiting import until

GROUP = "workers"
STATE, OFFSETS = "__share_group_state", "__consumer_offsets"
ACCEPT, RELEASE = 1, 2
NOW_NOT = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


class Cluster:
    """Three brokers. ``t`` is a topic of one partition."""

    def __init__(self, brokers: list[RunningBroker]) -> None:
        self.brokers = brokers
        self._stack = AsyncExitStack()
        self._talks: dict[int, Talk] = {}

    def leader(self, topic: str) -> int:
        found = self.brokers[0].node.cluster.image.topic(topic)
        assert found is not None
        return int(found.partitions[0].leader)

    async def to(self, node_id: int) -> Talk:
        """A connection that all requests of the test to a broker share, except those of workers."""
        if node_id not in self._talks:
            self._talks[node_id] = await self._stack.enter_async_context(talk(self.brokers[node_id - 1].port))
        return self._talks[node_id]

    async def move(self, topic: str, node_id: int) -> None:
        """Have another broker lead, and wait until all know it."""
        controller = self.brokers[0].node.membership.controller
        found = self.brokers[0].node.cluster.image.topics_by_name[topic].partitions[0]
        await until(lambda: len(self.brokers[0].node.cluster.image.topics_by_name[topic].partitions[0].isr) == 3)
        order = (BrokerId(node_id), *[each for each in found.replicas if each != node_id])
        await controller.alter_reassignments([ReassignmentAsked(topic, 0, order)])
        await controller.elect_leaders([(topic, 0)])
        for broker in self.brokers:
            await until(lambda b=broker: b.node.cluster.image.topics_by_name[topic].partitions[0].leader == node_id)
        leads = self.brokers[node_id - 1].node.partitions.table
        await until(lambda: leads.led(topic, 0) is not None)

    async def configure(self, **configs: str) -> None:
        """Settings of the group, with ``_`` for ``.``. All brokers know them then."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        changes = [ConfigChange(name, ConfigOperation.SET, value) for name, value in named.items()]
        await alter_configs(self.brokers[0].node.membership.controller, ConfigResourceType.GROUP, GROUP, changes)
        for broker in self.brokers:
            await until(lambda b=broker: named.items() <= b.node.cluster.image.group_configs.get(GROUP, {}).items())

    async def spread(self) -> None:
        """The topic is led by broker 1, the progress is kept by broker 2, the group is coordinated by broker 3."""
        for topic, node_id in (("t", 1), (STATE, 2), (OFFSETS, 3)):
            if self.leader(topic) != node_id:
                await self.move(topic, node_id)

    async def produce(self, count: int) -> None:
        async with asyncio.timeout(60):
            while True:
                client = await self.to(self.leader("t"))
                answer = await client.produce(9, [("t", [(0, batch(count))])])
                if answer.responses[0].partition_responses[0].error_code == 0:
                    return
                await asyncio.sleep(0.02)

    async def asked(self, topic: str, key: ApiKey, version: int, request: Any, code: Any) -> Any:
        """Ask the leader of an internal topic until the answer's code, as ``code`` finds it, is not a passing one."""
        async with asyncio.timeout(60):
            while True:
                answer = await (await self.to(self.leader(topic))).ask(key, version, request)
                if code(answer) not in NOW_NOT:
                    return answer
                await asyncio.sleep(0.02)

    async def start_of(self) -> tuple[int, int]:
        """Where the group has got to in ``t``, and its lag, as its coordinator says."""
        group = DescribeShareGroupOffsetsRequestGroup(GROUP, None)
        answer = await self.asked(
            OFFSETS,
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            1,
            DescribeShareGroupOffsetsRequest([group]),
            lambda answer: max(
                [answer.groups[0].error_code]
                + [part.error_code for topic in answer.groups[0].topics for part in topic.partitions]
            ),
        )
        assert answer.groups[0].error_code == 0
        if not answer.groups[0].topics:
            return -1, -1
        (partition,) = answer.groups[0].topics[0].partitions
        return partition.start_offset, partition.lag

    async def until_start_is(self, start: int, *, lag: int) -> None:
        """Until the group coordinator, which may be a follower of ``t``, says so."""
        async with asyncio.timeout(60):
            while (found := await self.start_of()) != (start, lag):
                assert found[0] == start, found
                await asyncio.sleep(0.05)

    @property
    def key(self) -> ShareKey:
        return ShareKey(GROUP, self.brokers[0].node.cluster.image.topics_by_name["t"].topic_id, 0)


class Worker:
    """A member of the group. Its session is on one broker at a time."""

    def __init__(self, made: Cluster, name: str, stack: AsyncExitStack) -> None:
        self.cluster, self.name = made, name
        self._stack = stack
        self._talks: dict[int, Talk] = {}
        self.epochs: dict[int, int] = {}
        self.named_leader = (-1, 0)

    async def _to(self, node_id: int) -> Talk:
        if node_id not in self._talks:
            self._talks[node_id] = await self._stack.enter_async_context(talk(self.cluster.brokers[node_id - 1].port))
        return self._talks[node_id]

    async def beat(self, epoch: int = 0) -> Any:
        request = ShareGroupHeartbeatRequest(GROUP, self.name, epoch, None, ["t"] if epoch == 0 else None)
        answer = await self.cluster.asked(OFFSETS, ApiKey.SHARE_GROUP_HEARTBEAT, 1, request, lambda a: a.error_code)
        assert answer.error_code == 0, answer
        return answer

    async def fetch(self, **fields: Any) -> Any:
        node_id = self.cluster.leader("t")
        epoch = self.epochs.get(node_id, 0)
        topics = [FetchTopic(self.cluster.key.topic_id, [FetchPartition(0)])] if epoch == 0 else []
        answer = await (await self._to(node_id)).ask(
            ApiKey.SHARE_FETCH,
            2,
            ShareFetchRequest(
                GROUP,
                self.name,
                share_session_epoch=epoch,
                max_wait_ms=fields.pop("max_wait_ms", 0),
                max_records=fields.pop("max_records", 500),
                topics=topics,
                **fields,
            ),
        )
        assert answer.error_code == 0, answer
        self.epochs[node_id] = epoch + 1
        return answer

    async def get(self, **fields: Any) -> list[tuple[int, int, int]]:
        """What it is given: offset ranges with how often they were delivered. Empty if there is nothing for it."""
        async with asyncio.timeout(60):
            while True:
                answer = await self.fetch(**dict(fields))
                parts = [part for topic in answer.responses for part in topic.partitions]
                if all(part.error_code == 0 for part in parts):
                    return [
                        (each.first_offset, each.last_offset, each.delivery_count)
                        for part in parts
                        for each in part.acquired_records
                    ]
                assert all(part.error_code in (0, *NOW_NOT) for part in parts), parts
                await asyncio.sleep(0.02)

    async def wait_for(self, **fields: Any) -> list[tuple[int, int, int]]:
        async with asyncio.timeout(60):
            while not (given := await self.get(max_wait_ms=500, **dict(fields))):
                pass
        return given

    async def say(self, first: int, last: int, *types: int, node_id: int | None = None) -> ErrorCode:
        node_id = self.cluster.leader("t") if node_id is None else node_id
        said = AcknowledgePartition(0, [Said(first, last, list(types))])
        request = ShareAcknowledgeRequest(
            GROUP,
            self.name,
            share_session_epoch=self.epochs[node_id],
            topics=[AcknowledgeTopic(self.cluster.key.topic_id, [said])],
        )
        answer = await (await self._to(node_id)).ask(ApiKey.SHARE_ACKNOWLEDGE, 2, request)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        self.epochs[node_id] += 1
        (part,) = answer.responses[0].partitions
        for each in answer.node_endpoints:
            self.named_leader = (part.current_leader.leader_id, each.port)
        return ErrorCode(part.error_code)

    async def close(self) -> None:
        """End its session."""
        node_id = self.cluster.leader("t")
        answer = await (await self._to(node_id)).ask(
            ApiKey.SHARE_ACKNOWLEDGE, 2, ShareAcknowledgeRequest(GROUP, self.name, share_session_epoch=-1)
        )
        assert answer.error_code == 0
        del self.epochs[node_id]


@asynccontextmanager
async def workers(made: Cluster, *names: str) -> AsyncIterator[list[Worker]]:
    async with AsyncExitStack() as stack:
        found = [Worker(made, name, stack) for name in names]
        for worker in found:
            await worker.beat()
        yield found
