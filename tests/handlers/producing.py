"""Produce requests over a connection, and their responses."""

from __future__ import annotations

from typing import Any

from tests.handlers.conversation import Talk


def only(answer: Any) -> Any:
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    return partition


async def ask_to_produce(client: Talk, version: int, topic: Any, records: bytes | None, **extra: Any) -> Any:
    return only(await client.produce(version, [(topic, [(0, records)])], **extra))
