"""A script of requests that any broker can be asked, and what of its answers is compared."""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from crc32c import crc32c

from app.records.batch import CRC_START
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis import APIS
from tests.interop.serving import Closed, Raw, message_class

COMPARED = frozenset(
    {
        "error_code",
        "base_offset",
        "low_watermark",
        "high_watermark",
        "offset",
        "end_offset",
        "leader_epoch",
        "log_start_offset",
        "num_partitions",
        "replication_factor",
        "is_internal",
    }
)
"""Fields of responses that must be equal. Ids, times, addresses and sentences are each broker's own."""
LOADING = 14
TRANSIENT = frozenset({3, 5, 6, 100})
"""Codes that a client asks again after: the broker has not caught up with a new topic yet."""


def compared(message: Any) -> list[tuple[str, Any]]:
    """The compared fields of a response. The order of an array's elements means nothing."""
    found: list[tuple[str, Any]] = []
    for item in dataclasses.fields(message):
        value = getattr(message, item.name)
        if item.name == "log_start_offset" and getattr(message, "error_code", 0):
            continue  # beside an error it tells nothing, and Kafka is of two minds
        if item.name in COMPARED:
            found.append((item.name, value))
        elif item.name == "records" and value is not None:
            found.append(("record bytes", len(value)))
        elif isinstance(value, list):
            parts = sorted(compared(element) for element in value if dataclasses.is_dataclass(element))
            found += [pair for part in parts for pair in part]
        elif dataclasses.is_dataclass(value):
            found += compared(value)
    return found


class Peer:
    """One of the brokers, asked over a connection a request."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.ids: dict[str, UUID] = {}

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        with Raw(self.port) as raw:
            return raw.ask(key, version, message)

    def outcome(self, key: ApiKey, version: int, message: Any) -> Any:
        """What is compared of the answer, or that there was none. What is loading is waited for."""
        deadline = time.monotonic() + 60
        while True:
            try:
                found = compared(self.ask(key, version, message))
            except Closed:
                return "closed"
            if ("error_code", LOADING) not in found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Make a topic and wait until it takes and gives records."""
        wanted = make(
            ApiKey.CREATE_TOPICS, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=1
        )
        for key, value in configs.items():
            wanted.configs.append(
                make(ApiKey.CREATE_TOPICS, "CreatableTopicConfig", name=key.replace("_", "."), value=value)
            )
        (result,) = self.ask(ApiKey.CREATE_TOPICS, 7, request(ApiKey.CREATE_TOPICS, topics=[wanted])).topics
        assert result.error_code == 0, (self.name, result)
        self.ids[name] = result.topic_id
        deadline = time.monotonic() + 60
        while any(
            dict(self.outcome(ApiKey.LIST_OFFSETS, 7, list_offsets(name, n, -1))).get("error_code") in TRANSIENT
            for n in range(partitions)
        ):
            assert time.monotonic() < deadline, f"{self.name} does not serve {name}"
            time.sleep(0.05)


def make(key: int, class_name: str, /, **fields: Any) -> Any:
    return message_class(key, class_name)(**fields)


def request(key: int, /, **fields: Any) -> Any:
    return make(key, f"{APIS[key].name}Request", **fields)


def list_offsets(
    topic: str,
    partition: int,
    timestamp: int,
    *,
    leader_epoch: int = -1,
    isolation_level: int = 0,
    replica_id: int = -1,
) -> Any:
    key = ApiKey.LIST_OFFSETS
    asked = make(
        key, "ListOffsetsPartition", partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    topics = [make(key, "ListOffsetsTopic", name=topic, partitions=[asked])]
    return request(key, replica_id=replica_id, isolation_level=isolation_level, topics=topics)


def produce(
    *partitions: tuple[str | UUID, int, bytes | None], acks: int = -1, transactional_id: str | None = None
) -> Any:
    key = ApiKey.PRODUCE
    topics = []
    for topic, index, records in partitions:
        data = make(key, "PartitionProduceData", index=index, records=records)
        named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
        topics.append(make(key, "TopicProduceData", partition_data=[data], **named))
    return request(key, acks=acks, timeout_ms=5000, topic_data=topics, transactional_id=transactional_id)


def fetch(*partitions: tuple[str | UUID, dict[str, Any]], **fields: Any) -> Any:
    key = ApiKey.FETCH
    topics = []
    for topic, asked in partitions:
        item = make(key, "FetchPartition", **{"partition_max_bytes": 1 << 20, **asked})
        named = {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}
        topics.append(make(key, "FetchTopic", partitions=[item], **named))
    return request(key, **{"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": topics, **fields})


# --- record batches ---------------------------------------------------------------------------------------------------


def now_ms() -> int:
    return int(time.time() * 1000)


def batch(count: int = 1, *, value: bytes = b"value", timestamp: int | None = None, **fields: Any) -> bytes:
    start = now_ms() if timestamp is None else timestamp
    return build_batch([(start, None, value, ()) for _ in range(count)], **fields)


def patched(data: bytes, position: int, code: str, value: int, *, crc: bool = True) -> bytes:
    """A batch with one number of its header changed; with ``crc`` its checksum is made right again."""
    changed = bytearray(data)
    struct.pack_into(code, changed, position, value)
    if crc:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[CRC_START:])))
    return bytes(changed)


Step = Callable[[Peer], tuple[ApiKey, int, Any]]
"""Says what to ask a broker: API, version, request."""


def play(peer: Peer, steps: Iterable[Step]) -> list[Any]:
    return [peer.outcome(*step(peer)) for step in steps]
