"""Topics whose records are in the bucket when they are acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from app.core.errors import ErrorCode
from app.metadata.image.records import OBJECT_LEVEL
from app.wire.apikeys import ApiKey
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.config_resources import ConfigOperation
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker
from tests.support.several import member, unfenced
from tests.support.talking import fetch_all, headers
from tests.support.waiting import until

TOPIC_RESOURCE = 2
CONFIGS = {
    "firn.durability": "object",
    "firn.wal.linger.ms": "5",
    "segment.bytes": "1048576",
    "local.retention.ms": "0",
    "remote.storage.enable": "true",
}


@asynccontextmanager
async def alone(path: Path, **settings: Any) -> AsyncIterator[RunningBroker]:
    """Broker 1, the only one of its cluster, unfenced."""
    settings = {"broker_heartbeat_interval_ms": 50, "remote_log_manager_task_interval_ms": 50, **settings}
    async with member(path, 1, new_level=OBJECT_LEVEL, **settings) as broker:
        await until(lambda: unfenced(broker) == [1])
        yield broker


async def create(broker: RunningBroker, name: str, partitions: int = 1, **configs: str) -> None:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    await broker.node.membership.controller.create_topic(name, partitions, {**CONFIGS, **named})
    await led(broker, name, partitions)


async def led(broker: RunningBroker, name: str, partitions: int = 1) -> None:
    table = broker.node.partitions.table
    await until(lambda: all(table.led(name, index) is not None for index in range(partitions)))


async def produce_count(
    client: Talk, count: int, *, topic: str = "t", index: int = 0, **fields: Any
) -> tuple[ErrorCode, int]:
    extra = {"timeout_ms": fields.pop("timeout_ms")} if "timeout_ms" in fields else {}
    answer = await client.produce(9, [(topic, [(index, batch(count, **fields))])], **extra)
    found = answer.responses[0].partition_responses[0]
    return ErrorCode(found.error_code), found.base_offset


def objects(path: Path) -> list[Path]:
    return sorted(one for one in (path / "store" / "wal").rglob("*") if one.is_file())


async def records_read(broker: RunningBroker, end: int, topic: str = "t") -> int:
    async with talk(broker.port) as client:
        return sum(header.record_count for header in headers(await fetch_all(client, topic, end=end)))


async def alter(client: Talk, topic: str, durability: str) -> None:
    """Set ``firn.durability`` of a topic."""
    config = AlterableConfig("firn.durability", int(ConfigOperation.SET), durability)
    answer = await client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        IncrementalAlterConfigsRequest([AlterConfigsResource(TOPIC_RESOURCE, topic, [config])], False),
    )
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message
