"""Fetch requests over a connection, and their responses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from app.hot.descriptors import DescriptorCache, FileHandle
from app.machine.files import PosixFileSystem
from app.records.batch import iter_headers
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.handlers.conversation import Talk, batch
from tests.handlers.fakes import Bench, FakeLog

FETCH = 1
VERSIONS = range(4, 19)


def request(
    *partitions: FetchPartition, topic: Any = "t", wait_ms: int = 0, min_bytes: int = 1, **fields: Any
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=min_bytes, topics=[(topic, list(partitions))] if partitions else [], **fields
    )


def send(client: Talk, version: int, message: FetchRequest) -> int:
    client.correlation_id += 1
    client.writer.write(encode_fetch_request(version, client.correlation_id, client.client_id, message))
    return client.correlation_id


async def ask(client: Talk, version: int, message: FetchRequest) -> Any:
    sent = send(client, version, message)
    correlation_id, answer = await client.answer(FETCH, version)
    assert correlation_id == sent
    return answer


def only(answer: Any) -> Any:
    (topic,) = answer.responses
    (partition,) = topic.partitions
    return partition


def offsets(data: bytes) -> list[int]:
    return [header.base_offset for _, header in iter_headers(data)]


async def fill(client: Talk, topic: str, *batches: bytes, partition: int = 0) -> None:
    for one in batches:
        answer = await client.produce(8, [(topic, [(partition, one)])])
        assert answer.responses[0].partition_responses[0].error_code == 0


def ref(bench: Bench, version: int) -> Any:
    """How that version speaks of topic ``t``."""
    return bench.logs.get("t", 0).topic_id if version >= 13 else "t"  # type: ignore[union-attr]


BATCH_BYTES = 40_000
TWO_BATCHES = 2 * (BATCH_BYTES + 200)


def asked(offset: int, **fields: Any) -> FetchPartition:
    return FetchPartition(0, fetch_offset=offset, partition_max_bytes=TWO_BATCHES, **fields)


async def on_disk(client: Talk, bench: Bench, path: Path, *values: int) -> FakeLog:
    """A log of batches with values of so many bytes, in a real file."""
    log = bench.logs.add("t")
    for size in values:
        await fill(client, "t", batch(value=os.urandom(size)))
    path.write_bytes(log.file.data)
    log.handle = FileHandle(DescriptorCache(PosixFileSystem(), 10), str(path))  # type: ignore[assignment]
    return log
