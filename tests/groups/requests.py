"""Requests of groups to a broker."""

from __future__ import annotations

import asyncio
from typing import Any

from app.core.errors import ErrorCode, RequestRejected
from app.handlers.base.context import Context
from app.handlers.base.portions import serve_split
from app.handlers.base.request import Request
from app.handlers.serving.dispatch import Apis
from app.wire.apikeys import ApiKey
from tests.interop.peers import make, request
from tests.support.broker import RunningBroker
from tests.support.callers import SOMEBODY

DEADLINE_S = 60
FEW = {"offsets_topic_num_partitions": 2, "group_initial_rebalance_delay_ms": 0}


async def ask(context: Context, key: ApiKey, version: int, message: Any) -> Any:
    """What the handler answers; what is only for now is asked again."""
    api = Apis()[key]
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while True:
        asked = Request(key, version, 1, "test", SOMEBODY)
        try:
            if api.before is not None:
                api.before(context, asked, message)
            if api.split is not None and api.split.is_long(message):
                answer = serve_split(api.split, api.handle, api.refuse, context, asked, message)
            else:
                answer = api.handle(context, asked, message)
            return answer if not hasattr(answer, "__await__") else await answer
        except RequestRejected as error:
            waits = error.code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if not waits or asyncio.get_running_loop().time() > deadline:
                return api.refuse(asked, message, error.code, str(error))
            await asyncio.sleep(0.01)


def commit(group: str, topic: str, partition: int, offset: int) -> Any:
    key = ApiKey.OFFSET_COMMIT
    asked = make(key, "OffsetCommitRequestPartition", partition_index=partition, committed_offset=offset)
    return request(key, group_id=group, topics=[make(key, "OffsetCommitRequestTopic", name=topic, partitions=[asked])])


async def committed(context: Context, group: str) -> dict[tuple[str, int], int]:
    key = ApiKey.OFFSET_FETCH
    message = request(key, groups=[make(key, "OffsetFetchRequestGroup", group_id=group, topics=None)])
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while True:
        (found,) = (await ask(context, key, 8, message)).groups
        if found.error_code == 0:
            return {
                (topic.name, row.partition_index): row.committed_offset
                for topic in found.topics
                for row in topic.partitions
            }
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.01)


async def find(broker: RunningBroker, group: str = "g") -> Any:
    message = request(ApiKey.FIND_COORDINATOR, key=group, key_type=0)
    return await ask(broker.node.context, ApiKey.FIND_COORDINATOR, 3, message)
