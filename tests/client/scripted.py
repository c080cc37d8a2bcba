"""A broker that answers as a test tells it: real sockets and real bytes, no state of its own but what the script holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid5

from app.core.errors import ErrorCode
from app.core.units import LeaderEpoch, Offset
from app.records.batch import check_batches, parse_header, patch_batch
from app.records.record import Record, iter_records
from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersion, ApiVersionsResponse
from app.wire.apis.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from app.wire.apis.init_producer_id import InitProducerIdResponse
from app.wire.apis.list_offsets import ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse
from app.wire.apis.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from app.wire.apis.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from app.wire.header import RequestHeader, parse_request_header, response_header
from app.wire.versions import ADVERTISED

Answer = Any
Script = Callable[[RequestHeader, Any], Awaitable[Answer]]


class Cut(Exception):
    """Raised by a script: close the connection without an answer."""


class Raw(bytes):
    """Answered by a script: these bytes as the whole body."""


NO_ANSWER = object()
"""Answered by a script: nothing, and the connection stays open."""


class ScriptedBroker:
    """One listening address; ``script`` answers every request but ApiVersions and Metadata, unless it overrides them."""

    def __init__(self) -> None:
        self.scripts: dict[int, Script] = {}
        self.seen: list[tuple[RequestHeader, Any]] = []
        self.topics: dict[str, int] = {}
        self.port = 0
        self.node_id = 1
        self.connections = 0
        self.writers: set[asyncio.StreamWriter] = set()
        self.versions = {int(key): versions for key, versions in ADVERTISED.items()}

    def on(self, key: ApiKey) -> Callable[[Script], Script]:
        def register(script: Script) -> Script:
            self.scripts[key] = script
            return script

        return register

    def requests(self, key: ApiKey) -> list[Any]:
        return [body for header, body in self.seen if header.api_key == key]

    def cut_all(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                header = parse_request_header(frame)
                body = codec.decode_request(header.api_key, header.api_version, frame[header.body_start :])
                self.seen.append((header, body))
                answer = await self._answer(header, body)
                if answer is NO_ANSWER:
                    continue
                payload = (
                    bytes(answer)
                    if isinstance(answer, Raw)
                    else codec.encode_response(header.api_key, header.api_version, answer)
                )
                head = response_header(header.correlation_id, header.api_key, header.api_version)
                writer.write((len(head) + len(payload)).to_bytes(4, "big") + head + payload)
                await writer.drain()
        except (Cut, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, header: RequestHeader, body: Any) -> Answer:
        script = self.scripts.get(header.api_key)
        if script is not None:
            return await script(header, body)
        match header.api_key:
            case ApiKey.API_VERSIONS:
                return self.api_versions()
            case ApiKey.METADATA:
                return self.metadata(None if body.topics is None else [topic.name for topic in body.topics])
            case _:
                raise Cut

    def api_versions(self) -> ApiVersionsResponse:
        return ApiVersionsResponse(api_keys=[ApiVersion(key, low, high) for key, (low, high) in self.versions.items()])

    def topic_id(self, name: str) -> UUID:
        return uuid5(UUID(int=1), name)

    def topic_name(self, topic: Any) -> str:
        """The name of a topic that a request names, by name or by id."""
        by_id = {self.topic_id(name): name for name in self.topics}
        name: str = getattr(topic, "name", "") or getattr(topic, "topic", "")
        return name or by_id[topic.topic_id]

    def metadata(self, names: list[str] | None) -> MetadataResponse:
        wanted = list(self.topics) if names is None else names
        return MetadataResponse(
            brokers=[MetadataResponseBroker(self.node_id, "127.0.0.1", self.port)],
            cluster_id="scripted",
            controller_id=self.node_id,
            topics=[
                MetadataResponseTopic(
                    error_code=0 if name in self.topics else 3,
                    name=name,
                    topic_id=self.topic_id(name),
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index,
                            leader_id=self.node_id,
                            leader_epoch=0,
                            replica_nodes=[self.node_id],
                            isr_nodes=[self.node_id],
                        )
                        for index in range(self.topics.get(name, 0))
                    ],
                )
                for name in wanted
            ],
        )


@asynccontextmanager
async def scripted_broker(**topics: int) -> AsyncIterator[ScriptedBroker]:
    """A scripted broker with these topics and partition counts; every task of it ends with the block."""
    broker = ScriptedBroker()
    broker.topics = dict(topics)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(broker.serve(reader, writer))
        tasks.add(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        broker.cut_all()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


class FakeLog:
    """Partitions kept in memory behind a scripted broker, with KIP-98's sequence check and faults as data.

    ``faults`` is what becomes of the next Produce requests, in order: a code (refused), ``"lost"`` (stored, and the
    connection is cut before the answer), ``"cut"`` (not stored, cut) or None (as it should be).
    """

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.batches: dict[tuple[str, int], list[bytes]] = {}
        self.end: dict[tuple[str, int], int] = {}
        self.faults: list[int | str | None] = []
        self.batch_bytes_max = 1 << 20
        self.next_producer_id = 1000
        self._sequences: dict[tuple[str, int, int], list[tuple[int, int, int]]] = {}
        broker.scripts[ApiKey.PRODUCE] = self.produce
        broker.scripts[ApiKey.INIT_PRODUCER_ID] = self.init_producer_id
        broker.scripts[ApiKey.FETCH] = self.fetch
        broker.scripts[ApiKey.LIST_OFFSETS] = self.list_offsets

    def records(self, topic: str, partition: int = 0) -> list[Record]:
        return [record for batch in self.batches.get((topic, partition), []) for record in iter_records(batch)]

    def forget_producers(self) -> None:
        self._sequences.clear()

    async def init_producer_id(self, header: RequestHeader, body: Any) -> Any:
        self.next_producer_id += 1
        return InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0)

    async def produce(self, header: RequestHeader, body: Any) -> Any:
        fault = self.faults.pop(0) if self.faults else None
        if fault == "cut":
            raise Cut
        answer = ProduceResponse()
        for topic in body.topic_data:
            name = self.broker.topic_name(topic)
            out = TopicProduceResponse(topic_id=topic.topic_id, name=name)
            for part in topic.partition_data:
                code, offset = (fault, -1) if isinstance(fault, int) else self._append(name, part.index, part.records)
                out.partition_responses.append(
                    PartitionProduceResponse(index=part.index, error_code=code, base_offset=offset)
                )
            answer.responses.append(out)
        if fault == "lost":
            raise Cut
        return NO_ANSWER if body.acks == 0 else answer

    def _append(self, topic: str, partition: int, records: memoryview) -> tuple[int, int]:
        ((_, header),) = check_batches(records, max_batch_bytes=1 << 30, batches_max=1)
        if header.size_bytes > self.batch_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        key = (topic, partition)
        if header.producer_id >= 0:
            known = self._sequences.setdefault((*key, header.producer_id), [])
            for sequence, count, offset in known[-5:]:
                if (sequence, count) == (header.base_sequence, header.record_count):
                    return ErrorCode.NONE, offset
            due = known[-1][0] + known[-1][1] if known else None
            if due is None and header.base_sequence:
                return ErrorCode.UNKNOWN_PRODUCER_ID if self.end.get(
                    key
                ) else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            if due is not None and header.base_sequence != due:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        base = self.end.get(key, 0)
        if header.producer_id >= 0:
            known.append((header.base_sequence, header.record_count, base))
        stored = bytearray(records)
        patch_batch(stored, 0, Offset(base), LeaderEpoch(0))
        self.batches.setdefault(key, []).append(bytes(stored))
        self.end[key] = base + header.record_count
        return ErrorCode.NONE, base

    async def fetch(self, header: RequestHeader, body: Any) -> Any:
        answer = FetchResponse()
        for topic in body.topics:
            name = self.broker.topic_name(topic)
            out = FetchableTopicResponse(topic=name, topic_id=topic.topic_id)
            for part in topic.partitions:
                key = (name, part.partition)
                end = self.end.get(key, 0)
                code = 0 if part.fetch_offset <= end else ErrorCode.OFFSET_OUT_OF_RANGE
                data = b""
                for batch in self.batches.get(key, []):
                    if parse_header(batch).end_offset > part.fetch_offset and len(data) < part.partition_max_bytes:
                        data += batch
                out.partitions.append(
                    PartitionData(
                        partition_index=part.partition,
                        error_code=code,
                        high_watermark=end,
                        log_start_offset=0,
                        records=data,
                    )
                )
            answer.responses.append(out)
        return answer

    async def list_offsets(self, header: RequestHeader, body: Any) -> Any:
        answer = ListOffsetsResponse()
        for topic in body.topics:
            out = ListOffsetsTopicResponse(name=topic.name)
            for part in topic.partitions:
                key = (topic.name, part.partition_index)
                match part.timestamp:
                    case -1:
                        offset, timestamp = self.end.get(key, 0), -1
                    case -2:
                        offset, timestamp = 0, -1
                    case wanted:
                        young = [record for record in self.records(*key) if record.timestamp >= wanted]
                        offset, timestamp = (young[0].offset, young[0].timestamp) if young else (-1, -1)
                out.partitions.append(ListOffsetsPartitionResponse(part.partition_index, 0, timestamp, offset))
            answer.topics.append(out)
        return answer
