"""Members of share groups of one broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from app.core.errors import ErrorCode
from app.metadata.changes.topic_changes import ConfigChange
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.share_acknowledge import AcknowledgementBatch as Said
from app.wire.apis.share_acknowledge import AcknowledgePartition, AcknowledgeTopic, ShareAcknowledgeRequest
from app.wire.apis.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker
from tests.support.changing import alter_configs
from tests.support.talking import headers

GROUP = "workers"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
TRANSIENT = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


class Worker:
    """A member of a share group, on a connection of its own."""

    def __init__(self, connection: Talk, broker: RunningBroker, name: str) -> None:
        self.connection = connection
        self.broker = broker
        self.name = name
        self.epoch = 0

    async def join(self, topic: str = "t") -> Any:
        await self.connection.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=GROUP))
        async with asyncio.timeout(60):
            while True:
                answer = await self.connection.ask(
                    ApiKey.SHARE_GROUP_HEARTBEAT, 1, ShareGroupHeartbeatRequest(GROUP, self.name, 0, None, [topic])
                )
                if answer.error_code not in TRANSIENT:
                    assert answer.error_code == 0, answer
                    return answer
                await asyncio.sleep(0.02)

    async def leave(self) -> None:
        answer = await self.connection.ask(
            ApiKey.SHARE_GROUP_HEARTBEAT, 1, ShareGroupHeartbeatRequest(GROUP, self.name, -1)
        )
        assert answer.error_code == 0

    def _topics(self, topic: str, partitions: Sequence[int]) -> list[FetchTopic]:
        topic_id = self.broker.node.cluster.image.topics_by_name[topic].topic_id
        return [FetchTopic(topic_id, [FetchPartition(index) for index in partitions])]

    async def ask(self, topic: str = "t", partitions: Sequence[int] = (0,), **fields: Any) -> Any:
        request = ShareFetchRequest(
            GROUP,
            self.name,
            share_session_epoch=fields.pop("epoch", self.epoch),
            max_wait_ms=fields.pop("max_wait_ms", 0),
            max_records=fields.pop("max_records", 500),
            topics=self._topics(topic, partitions) if self.epoch == 0 else [],
            **fields,
        )
        answer = await self.connection.ask(ApiKey.SHARE_FETCH, 2, request)
        if answer.error_code == 0:
            self.epoch += 1
        return answer

    async def get(self, topic: str = "t", **fields: Any) -> list[tuple[int, int, int]]:
        """What it is given of partition 0: offset ranges (last one included) with how often they were delivered."""
        async with asyncio.timeout(60):
            while True:
                answer = await self.ask(topic, **fields)
                assert answer.error_code == 0, answer
                parts = [part for responses in answer.responses for part in responses.partitions]
                if any(part.error_code in TRANSIENT for part in parts):
                    await asyncio.sleep(0.02)
                    continue
                assert all(part.error_code == 0 for part in parts), parts
                for part in parts:
                    offsets = {header.base_offset for header in headers(bytes(part.records or b""))}
                    assert min(offsets) <= part.acquired_records[0].first_offset
                return [
                    (each.first_offset, each.last_offset, each.delivery_count)
                    for part in parts
                    for each in part.acquired_records
                ]

    async def say(
        self, first: int, last: int, *types: int, topic: str = "t", partition: int = 0, **fields: Any
    ) -> ErrorCode:
        """Acknowledge a range."""
        topic_id = self.broker.node.cluster.image.topics_by_name[topic].topic_id
        said = AcknowledgePartition(partition, [Said(first, last, list(types))])
        request = ShareAcknowledgeRequest(
            GROUP,
            self.name,
            share_session_epoch=fields.pop("epoch", self.epoch),
            is_renew_ack=RENEW in types,
            topics=[AcknowledgeTopic(topic_id, [said])],
        )
        answer = await self.connection.ask(ApiKey.SHARE_ACKNOWLEDGE, 2, request)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        self.epoch += 1
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    async def close(self) -> None:
        answer = await self.connection.ask(
            ApiKey.SHARE_ACKNOWLEDGE, 2, ShareAcknowledgeRequest(GROUP, self.name, share_session_epoch=-1)
        )
        assert answer.error_code == 0


async def configure(broker: RunningBroker, **configs: str) -> None:
    changes = [ConfigChange(name.replace("_", "."), ConfigOperation.SET, value) for name, value in configs.items()]
    await alter_configs(broker.node.membership.controller, ConfigResourceType.GROUP, GROUP, changes)


@asynccontextmanager
async def workers(broker: RunningBroker, *names: str) -> AsyncIterator[list[Worker]]:
    made = []
    try:
        for name in names:
            connection = talk(broker.port)
            worker = Worker(await connection.__aenter__(), broker, name)
            made.append((connection, worker))
            await worker.join()
        yield [worker for _, worker in made]
    finally:
        for connection, _ in made:
            await connection.__aexit__(None, None, None)
