"""Requests of groups to Firn and to Apache Kafka."""

from __future__ import annotations

import dataclasses
import time
from typing import Any
from uuid import UUID

from app.wire.apikeys import ApiKey
from tests.interop.peers import Peer, make, request
from tests.interop.serving import Closed

OWN = frozenset(
    {"member_id", "leader", "error_message", "host", "port", "node_id", "throttle_time_ms", "client_host", "topic_id"}
)
"""Fields that are each broker's own."""
COORDINATOR_MOVES = frozenset({14, 15, 16})
"""Codes that a client asks again after."""
NO_SUCH_ID = UUID(int=0xDEAD)
READY_S = 60


def plain(message: Any) -> Any:
    """An answer without what is each broker's own; the order of an array's elements means nothing."""
    if dataclasses.is_dataclass(message):
        return {
            field.name: plain(getattr(message, field.name))
            for field in dataclasses.fields(message)
            if field.name not in OWN
        }
    if isinstance(message, list):
        return sorted((plain(element) for element in message), key=repr)
    return message


def codes(found: Any) -> set[int]:
    if isinstance(found, dict):
        own = {found["error_code"]} if "error_code" in found else set()
        return own.union(*map(codes, found.values()))
    return set().union(*map(codes, found)) if isinstance(found, list) else set()


def outcome(peer: Peer, key: ApiKey, version: int, message: Any) -> Any:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            found = plain(peer.ask(key, version, message))
        except Closed:
            return "closed"
        if not codes(found) & COORDINATOR_MOVES or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def commit(
    group: str,
    member_id: str = "",
    generation: int = -1,
    *,
    topic: str | UUID = "u",
    partition: int = 0,
    offset: int = 5,
    metadata: str | None = "",
    **fields: Any,
) -> Any:
    key = ApiKey.OFFSET_COMMIT
    asked = make(
        key,
        "OffsetCommitRequestPartition",
        partition_index=partition,
        committed_offset=offset,
        committed_metadata=metadata,
    )
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    topics = [make(key, "OffsetCommitRequestTopic", partitions=[asked], **named)]
    chosen = {"generation_id_or_member_epoch": generation, "topics": topics, **fields}
    return request(key, group_id=group, member_id=member_id, **chosen)


def fetch(group: str, topics: list[tuple[str | UUID, list[int]]] | None, version: int, **fields: Any) -> Any:
    key = ApiKey.OFFSET_FETCH
    if version < 8:
        asked = topics and [
            make(key, "OffsetFetchRequestTopic", name=name, partition_indexes=partitions) for name, partitions in topics
        ]
        return request(key, group_id=group, topics=asked, **fields)
    rows = None
    if topics is not None:
        rows = [
            make(
                key,
                "OffsetFetchRequestTopics",
                partition_indexes=partitions,
                **({"topic_id": name} if isinstance(name, UUID) else {"name": name}),
            )
            for name, partitions in topics
        ]
    who = {name: fields.pop(name) for name in ("member_id", "member_epoch") if name in fields}
    return request(key, groups=[make(key, "OffsetFetchRequestGroup", group_id=group, topics=rows, **who)], **fields)
