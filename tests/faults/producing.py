"""Producers that write down what was acknowledged, and readers that compare the log with it.

A producer here is as small as an idempotent producer can be: batches numbered by sequence, a few under way, and after any
trouble everything that has no answer again, in the same order with the same numbers. Nothing of Firn's own client takes
part, so that a mistake there hides none in the broker.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from app.core.errors import ErrorCode
from app.records.batch import iter_headers
from app.records.builder import build_batch
from app.records.record import iter_records
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.codec import decode_response
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from app.wire.private import MetricsRequest, MetricsResponse, pack, unpack
from app.wire.produce import encode_produce_request

ANSWER_S_MAX = 30.0
IN_FLIGHT_MAX = 5
"""Batches that a broker remembers of a producer (KIP-98)."""
PRODUCE_VERSION = 9
FETCH_VERSION = 12
LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5

PASSING = frozenset({ErrorCode.KAFKA_STORAGE_ERROR})
"""The one refusal that these producers may meet, first of those under way: no room, or the disk is gone."""


class Link:
    """One connection, spoken to in frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    def write(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def frame(self) -> memoryview:
        """Raises: ConnectionError, asyncio.IncompleteReadError, TimeoutError."""
        async with asyncio.timeout(ANSWER_S_MAX):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return memoryview(await self._reader.readexactly(size))

    async def answer(self, key: int, version: int) -> Any:
        frame = await self.frame()
        header = parse_response_header(frame, key, version)
        return decode_response(key, version, frame[header.body_start :])

    async def ask(self, key: int, version: int, message: Any) -> Any:
        self._correlation_id += 1
        self.write(request_frame(key, version, self._correlation_id, "fault", message))
        return await self.answer(key, version)

    async def produce(self, topic: str, partition: int, batch: bytes, acks: int = -1) -> Any:
        """Send a batch; the partition's answer."""
        self.write(produce_frame(topic, partition, batch, acks))
        return (await self.answer(ApiKey.PRODUCE, PRODUCE_VERSION)).responses[0].partition_responses[0]

    async def fetch(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 1 << 22, max_wait_ms: int = 500
    ) -> Any:
        """The partition's answer to a Fetch."""
        wanted = FetchPartition(partition, -1, offset, partition_max_bytes=max_bytes)
        request = FetchRequest(max_wait_ms=max_wait_ms, topics=[(topic, [wanted])])
        self.write(encode_fetch_request(FETCH_VERSION, 1, "fault", request))
        return (await self.answer(ApiKey.FETCH, FETCH_VERSION)).responses[0].partitions[0]

    async def offset(self, topic: str, partition: int, timestamp: int) -> int:
        asked = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, -1, timestamp)])
        answer = await self.ask(ApiKey.LIST_OFFSETS, 11, ListOffsetsRequest(-1, 0, [asked]))
        found = answer.topics[0].partitions[0]
        assert found.error_code == 0, found
        return int(found.offset)

    async def create_topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        wanted = CreatableTopic(name, partitions, 1)
        wanted.configs = [CreatableTopicConfig(key, value) for key, value in (configs or {}).items()]
        (result,) = (await self.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([wanted], 30_000))).topics
        assert result.error_code == 0, result

    async def metric(self, name: str) -> float:
        """A metric of the broker and its store process, summed over its labels; 0 if it is not there."""
        answer = unpack(MetricsResponse, await self.ask(ApiKey.FIRN_METRICS, 0, pack(MetricsRequest())))
        return sum(sample.value for sample in answer.samples if sample.name == name)

    async def producer_id(self) -> tuple[int, int]:
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None))
        assert answer.error_code == 0, answer
        return answer.producer_id, answer.producer_epoch

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return


@asynccontextmanager
async def link(port: int) -> AsyncIterator[Link]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    made = Link(reader, writer)
    try:
        yield made
    finally:
        await made.close()


def produce_frame(topic: str, partition: int, batch: bytes, acks: int = -1) -> bytes:
    pieces = encode_produce_request(
        PRODUCE_VERSION, 1, "fault", [(topic, [(partition, batch)])], acks=acks, timeout_ms=20_000
    )
    return b"".join(bytes(piece) for piece in pieces)


def plain_batch(count: int = 1, value: bytes = b"value", **fields: Any) -> bytes:
    """Records of now, so that no retention takes them."""
    now_ms = int(time.time() * 1000)
    return build_batch([(now_ms, None, value, ()) for _ in range(count)], **fields)


@dataclass(slots=True)
class Sent:
    """One batch: the records it holds and, once acknowledged, where they are."""

    sequence: int
    values: list[bytes]
    data: bytes
    offset: int = -1


@dataclass
class Producer:
    """An idempotent producer of one partition that never gives up."""

    port: Callable[[], int]
    """Where the broker is now."""
    topic: str
    partition: int
    rng: random.Random
    value_bytes: int = 2_000
    batch_records_max: int = 8
    pause_s: float = 0.0
    acknowledged: list[Sent] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    reconnects: int = 0
    stopping: bool = False
    _waiting: deque[Sent] = field(default_factory=deque)
    """Batches without an answer, in order; the first ``_in_flight`` were sent on the connection there is."""
    _in_flight: int = 0
    _sequence: int = 0
    _identity: tuple[int, int] = (-1, -1)

    async def run(self) -> None:
        """Produce until ``stopping``, then until all that was sent is acknowledged."""
        while not (self.stopping and not self._waiting):
            try:
                async with link(self.port()) as connection:
                    if self._identity[0] < 0:
                        self._identity = await connection.producer_id()
                    await self._converse(connection)
            except (OSError, asyncio.IncompleteReadError):
                self.reconnects += 1
                await asyncio.sleep(0.01)

    async def _converse(self, connection: Link) -> None:
        self._in_flight = 0
        while True:
            while self._in_flight < min(IN_FLIGHT_MAX, len(self._waiting) + (not self.stopping)):
                if self._in_flight == len(self._waiting):
                    self._waiting.append(self._next())
                connection.write(produce_frame(self.topic, self.partition, self._waiting[self._in_flight].data))
                self._in_flight += 1
            if not self._in_flight:
                return
            answer = await connection.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
            result = answer.responses[0].partition_responses[0]
            self._in_flight -= 1
            if result.error_code:
                code = ErrorCode(result.error_code)
                assert code in PASSING, (code.name, result.error_message)
                self.refusals[code.name] = self.refusals.get(code.name, 0) + 1
                # What was behind it is refused, too; all of it goes again, on this connection, from the first on.
                while self._in_flight:
                    later = (await connection.answer(ApiKey.PRODUCE, PRODUCE_VERSION)).responses[0]
                    assert later.partition_responses[0].error_code, "acknowledged behind a batch that was refused"
                    self._in_flight -= 1
                await asyncio.sleep(0.02)
                continue
            sent = self._waiting.popleft()
            sent.offset = int(result.base_offset)
            self.acknowledged.append(sent)
            if self.pause_s:
                await asyncio.sleep(self.pause_s)

    def _next(self) -> Sent:
        count = self.rng.randint(1, self.batch_records_max)
        values = [
            b"%d/%d/%d " % (self.partition, self._sequence + n, self._identity[0])
            + self.rng.randbytes(self.rng.randrange(self.value_bytes))
            for n in range(count)
        ]
        data = build_batch(
            [(1_700_000_000_000 + self._sequence + n, b"k", value, ()) for n, value in enumerate(values)],
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            base_sequence=self._sequence,
        )
        sent = Sent(self._sequence, values, data)
        self._sequence += count
        return sent

    @property
    def records(self) -> int:
        return sum(len(sent.values) for sent in self.acknowledged)


async def read_log(port: int, topic: str, partition: int, *, start: int = 0, end: int | None = None) -> list[Any]:
    """Every record from ``start`` to ``end`` (the end of the log) as a consumer reads it: no gap, no overlap."""
    records: list[Any] = []
    async with link(port) as connection, asyncio.timeout(120):
        if end is None:
            end = await connection.offset(topic, partition, LATEST)
        offset = start
        while offset < end:
            answer = await connection.fetch(topic, partition, offset)
            if answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                await asyncio.sleep(0.05)
                continue
            assert answer.error_code == 0, (offset, ErrorCode(answer.error_code).name)
            data = memoryview(answer.records or b"")
            for position, header in iter_headers(data):
                assert header.base_offset <= offset < header.end_offset or header.base_offset == offset, (
                    offset,
                    header,
                )
                whole = data[position : position + header.size_bytes]
                records.extend(record for record in iter_records(whole) if record.offset >= offset)
                offset = header.end_offset
    assert [record.offset for record in records] == list(range(start, start + len(records)))
    return records


async def check_all_kept(port: int, producer: Producer) -> int:
    """Hold the log of a producer's partition against what was acknowledged: all of it, once, in order, the same bytes.

    The producer was alone in the partition and has got an answer to everything. Returns: how many records.
    """
    assert not producer._waiting
    records = await read_log(port, producer.topic, producer.partition)
    wanted = [value for sent in producer.acknowledged for value in sent.values]
    assert len(records) == len(wanted), (producer.partition, len(records), len(wanted))
    place = 0
    for sent in producer.acknowledged:
        assert sent.offset == place, (producer.partition, sent.sequence, sent.offset, place)
        for value in sent.values:
            assert records[place].value == value, (producer.partition, place)
            place += 1
    return len(records)
