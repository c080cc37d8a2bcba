"""Produce and fetch over a raw connection, and tier what was produced."""

from __future__ import annotations

import asyncio
from typing import Any

from app.records.batch import iter_headers
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.handlers.conversation import Talk
from tests.support.broker import RunningBroker
from tests.support.waiting import until

FETCH = 1


async def produce(client: Talk, topic: str, *batches: bytes, partition: int = 0) -> list[int]:
    offsets = []
    for one in batches:
        answer = await client.produce(9, [(topic, [(partition, one)])])
        found = answer.responses[0].partition_responses[0]
        assert found.error_code == 0, found
        offsets.append(found.base_offset)
    return offsets


async def fetch_all(client: Talk, topic: str, *, start: int = 0, partition: int = 0, end: int) -> bytes:
    """Everything from ``start`` to ``end``, as a consumer reads it."""
    data = bytearray()
    offset = start
    async with asyncio.timeout(60):
        while offset < end:
            client.correlation_id += 1
            request = FetchRequest(
                max_wait_ms=1000, topics=[(topic, [FetchPartition(partition, -1, offset, partition_max_bytes=1 << 22)])]
            )
            client.writer.write(encode_fetch_request(12, client.correlation_id, "test", request))
            _, answer = await client.answer(FETCH, 12)
            found = answer.responses[0].partitions[0]
            assert found.error_code == 0, found.error_code
            records = bytes(found.records or b"")
            data += records
            for header in headers(records):
                offset = header.end_offset
    return bytes(data)


def headers(data: bytes) -> list[Any]:
    return [header for _, header in iter_headers(data)]


async def tier_everything(broker: RunningBroker, topic: str, partition: int = 0) -> None:
    """Roll, copy, and drop the local copies."""
    log = broker.log(topic, partition)
    log.roll()
    broker.node.remote_log_manager.kick()
    await until(lambda: broker.node.remote_log_manager.tiered_end(log.topic_id, log.partition) == log.log_end_offset)
