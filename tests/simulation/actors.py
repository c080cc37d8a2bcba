"""Clients of the simulation: producers, consumers, an administrator. All of them only send frames and read answers."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from app.core.errors import ErrorCode
from app.core.units import ProducerEpoch, ProducerId
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.apis.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.produce import encode_produce_request
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.sim.wire import Wire
from tests.simulation.checkers import CRC_POSITION, served_batches
from tests.simulation.history import Batch, PartitionHistory
from tests.simulation.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.world import World

ANSWER_S = 4.0
IN_FLIGHT_MAX = 4
EXPECTED = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
    }
)
GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
LOST_PRODUCER = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    }
)


class Actor:
    """Something with a connection that comes and goes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = world.rng
        self.wire: Wire | None = None
        self.machine: Machine | None = None
        self._asked: tuple[object, ...] = ()
        """Whom the last request went to, and how often records had been lost by then."""

    def connect(self) -> Wire:
        """The open connection, or a new one. Raises: Unreachable."""
        if self.wire is None or not self.wire.open:
            self.wire, self.machine = self.world.connect()
        return self.wire

    def hang_up(self) -> None:
        if self.wire is not None:
            self.wire.close()
            self.wire = None

    async def ask(self, key: int, version: int, message: Any) -> Any:
        """Raises: Unreachable: no connection, or no answer in time."""
        wire = self.connect()
        self.note()
        return await self.answered(wire, wire.ask(key, version, message))

    async def ask_to_produce(
        self, history: PartitionHistory, version: int, data: bytes, *, transactional_id: str | None
    ) -> Any:
        """Send one batch with acks=all. Returns: the answer for its partition. Raises: Unreachable."""
        wire = self.connect()
        self.note()
        topic = history.topic_id if version >= 13 else history.topic
        frame = encode_produce_request(
            version,
            wire.next_correlation_id(),
            self.name,
            [(topic, [(history.index, data)])],
            acks=-1,
            timeout_ms=3000,
            transactional_id=transactional_id,
        )
        future = wire.send(ApiKey.PRODUCE, version, b"".join(bytes(piece) for piece in frame))
        return (await self.answered(wire, future)).responses[0].partition_responses[0]

    def note(self) -> None:
        """A request is about to leave."""
        self._asked = (self.machine, self.world.committed_offsets.losses, self.world.transactions.losses)

    def sure(self) -> bool:
        """Whether what the last answer says is done can be lost in no way that is allowed."""
        return self._asked == (self.world.owner, self.world.committed_offsets.losses, self.world.transactions.losses)

    def current(self) -> bool:
        """Whether the last answer came from the broker that all others took for the one to ask."""
        return self.sure()

    def acknowledged(self, history: PartitionHistory, batch: Batch, base: int) -> None:
        """``ask_to_produce`` was told so."""
        assert self.machine is not None
        self.world.acked_means_kept.acked(history, batch, base, self.machine)

    def partitions(self) -> list[PartitionHistory]:
        """What there is to read and write."""
        return [one for one in self.world.histories.values() if not one.deleting]

    async def answered(self, wire: Wire, future: asyncio.Future[Any]) -> Any:
        """The answer to a request on ``wire``. Raises: Unreachable."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await future
        except (ConnectionResetError, TimeoutError):
            if self.wire is wire:
                self.hang_up()
            raise Unreachable from None

    def owns(self) -> bool:
        """Whether the broker at the other end is the one that should be there."""
        return self.machine is self.world.owner


@dataclass(slots=True, eq=False)
class _Sent:
    """A batch that is not answered yet."""

    batch: Batch
    data: bytes


@dataclass(slots=True, eq=False)
class _Stream:
    """One producer's batches to one partition."""

    number: int
    history: PartitionHistory
    producer_id: int = -1
    losses: int = 0
    sequence: int = 0
    placed: int = 0
    acked_place: int = -1
    in_flight: deque[_Sent] = field(default_factory=deque)


class Producer(Actor):
    """Sends batches to the partitions that there are; an idempotent one sends again what was not answered."""

    def __init__(self, world: World, name: str, *, idempotent: bool, acks: int) -> None:
        super().__init__(world, name)
        self.idempotent = idempotent
        self.acks = acks
        self.pause_s = world.rng.choice((0.03, 0.08, 0.3))
        self._streams: dict[tuple[UUID, int], _Stream] = {}
        self._producer_id = -1
        self._broken = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * self.pause_s)
            if not self.world.producing and not any(stream.in_flight for stream in self._streams.values()):
                continue
            try:
                await self._turn()
            except Unreachable:
                self._forget_unanswered()

    async def _turn(self) -> None:
        if self.wire is None or not self.wire.open or self._broken:
            self.hang_up()
            self._forget_unanswered()
            self._broken = False
            self.connect()
            if self.idempotent:
                for stream in list(self._streams.values()):
                    self._check_id(stream)
                    for sent in stream.in_flight:
                        self._send(stream, sent)
        if self.idempotent and self._producer_id < 0:
            answer = await self.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None))
            if answer.error_code:
                self.world.expect(answer.error_code, EXPECTED, "InitProducerId")
                return
            self._producer_id = answer.producer_id
        if not self.world.producing:
            return
        alive = [one for one in self.world.histories.values() if not one.deleting]
        if not alive:
            return
        history = self.rng.choice(alive)
        key = (history.topic_id, history.index)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(self.world.next_number(), history)
        self._check_id(stream)
        if len(stream.in_flight) < IN_FLIGHT_MAX:
            self._send(stream, self._new_batch(stream))

    def _check_id(self, stream: _Stream) -> None:
        if self.idempotent and stream.producer_id != self._producer_id:
            stream.in_flight.clear()
            stream.number = self.world.next_number()
            stream.producer_id, stream.sequence, stream.placed, stream.acked_place = self._producer_id, 0, 0, -1
            stream.losses = stream.history.losses

    def _new_batch(self, stream: _Stream) -> _Sent:
        number = self.world.next_number()
        count = self.rng.randint(1, 4)
        now_ms = self.world.clock.now_ms()
        timestamps = tuple(now_ms - self.rng.randrange(500) for _ in range(count))
        filler = b"x" * self.rng.randrange(self.world.filler_bytes)
        data = build_batch(
            [(when, b"%d" % place, b"%d/%d" % (number, place) + filler, ()) for place, when in enumerate(timestamps)],
            producer_id=ProducerId(stream.producer_id),
            producer_epoch=ProducerEpoch(0 if self.idempotent else -1),
            base_sequence=stream.sequence if self.idempotent else -1,
            codec=self.world.codec,
        )
        batch = Batch(number, stream.number, stream.placed, count, data[CRC_POSITION:], timestamps, self.idempotent)
        stream.sequence += count
        stream.placed += 1
        stream.history.sent[batch.tail] = batch
        sent = _Sent(batch, data)
        stream.in_flight.append(sent)
        return sent

    def _send(self, stream: _Stream, sent: _Sent) -> None:
        wire, machine = self.wire, self.machine
        assert wire is not None
        assert machine is not None
        sent.batch.attempts += 1
        frame = encode_produce_request(
            13,
            wire.next_correlation_id(),
            self.name,
            [(stream.history.topic_id, [(stream.history.index, sent.data)])],
            acks=self.acks,
            timeout_ms=3000,
        )
        data = b"".join(bytes(piece) for piece in frame)
        future = wire.send(ApiKey.PRODUCE, 13, data, answered=self.acks != 0)
        if self.acks == 0:
            stream.in_flight.remove(sent)
            return
        number = stream.number
        future.add_done_callback(lambda done: self._answered(stream, number, sent, machine, wire, done))
        self.world.loop.call_later(ANSWER_S, self._overdue, wire, future)

    def _overdue(self, wire: Wire, future: asyncio.Future[Any]) -> None:
        if not future.done():
            wire.close()

    def _answered(
        self, stream: _Stream, number: int, sent: _Sent, machine: Machine, wire: Wire, done: asyncio.Future[Any]
    ) -> None:
        with self.world.judging():
            if done.cancelled() or done.exception() is not None:
                self._broken = True
                return
            result = done.result().responses[0].partition_responses[0]
            code = ErrorCode(result.error_code)
            history = stream.history
            self.world.trace("produced", self.name, history.name, sent.batch.number, result.base_offset, code.name)
            current = stream.number == number and sent in stream.in_flight
            if code is ErrorCode.NONE:
                if machine is self.world.owner:
                    self.world.acked_means_kept.acked(history, sent.batch, result.base_offset, machine)
                    self.world.acks += 1
                else:
                    sent.batch.retired = True
                if current:
                    stream.in_flight.remove(sent)
                    stream.acked_place = max(stream.acked_place, sent.batch.place)
                return
            if code in LOST_PRODUCER and self.idempotent:
                if not current:
                    return
                if stream.in_flight[0] is not sent:
                    self._broken = True  # one before it failed: all of them again, in order
                    return
                # The first batch that a broker ever takes of a producer may be any, as in Kafka: only the next one is certain.
                follows = 0 <= stream.acked_place == sent.batch.place - 1 and not history.deleting
                if (
                    follows
                    and stream.losses == history.losses
                    and history.rotten_from is None
                    and machine is self.world.owner
                ):
                    raise Violation(
                        "INV-1",
                        f"{history.name}: {code.name} for a producer whose records were kept ({stream.losses} losses)",
                    )
                self._producer_id = -1
                self._broken = True
                return
            self.world.expect(code, EXPECTED, f"Produce to {history.name} ({result.error_message})")
            if code in GONE:
                if not history.deleting and machine is self.world.owner:
                    raise Violation("INV-1", f"{history.name} is not there any more")
                if history.deleting:
                    stream.in_flight.clear()
            self._broken = True

    def _forget_unanswered(self) -> None:
        if not self.idempotent:
            for stream in self._streams.values():
                again = self.rng.random() < 0.3
                if not again:
                    stream.in_flight.clear()
                    continue
                for sent in stream.in_flight:
                    sent.batch.attempts += 1
                stream.in_flight.clear()


class Consumer(Actor):
    """Reads a partition from somewhere on, again and again, and looks for offsets by time."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.pause_s = world.rng.choice((0.1, 0.3, 0.6))
        self.bytes_choices: tuple[int, ...] = (1, 700, 5000, 100_000)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * self.pause_s)
            alive = list(self.world.histories.values())
            if not alive or not self.world.producing:
                continue
            history = self.rng.choice(alive)
            try:
                if self.rng.random() < 0.15:
                    await self.by_time(history)
                else:
                    known = history.end
                    start = 0 if self.rng.random() < 0.5 else self.rng.randrange(known + 1)
                    await self.read(history, max(start, history.log_start_acked), self.rng.randint(1, 4))
            except Unreachable:
                continue

    async def read(self, history: PartitionHistory, offset: int, fetches: int) -> tuple[int, int, bool]:
        """Read on from ``offset``. Returns: where it got to, the log start, and whether that is the end."""
        log_start = -1
        for _ in range(fetches):
            result = await self.fetch(history, offset)
            if result is None:
                return offset, log_start, False
            found, high_watermark, log_start, moved = result
            if moved is not None:
                offset = moved
                continue
            if not found and offset >= high_watermark:
                return offset, log_start, True
            offset = found[-1] if found else offset
        return offset, log_start, False

    async def fetch(
        self, history: PartitionHistory, offset: int, sink: list[int] | None = None
    ) -> tuple[list[int], int, int, int | None] | None:
        """One Fetch: ends of the batches, the high watermark, the log start, and another place to read from, if need be."""
        rng = self.rng
        gone = history.gone
        deleting, losses, high_watermark = history.deleting, history.losses, history.high_watermark
        request = FetchRequest(
            max_wait_ms=rng.choice((0, 50, 300)),
            min_bytes=1,
            max_bytes=rng.choice(self.bytes_choices),
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic_id=history.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=history.index,
                            fetch_offset=offset,
                            partition_max_bytes=rng.choice(self.bytes_choices),
                        )
                    ],
                )
            ],
        )
        answer = await self.ask(ApiKey.FETCH, 13, request)
        machine = self.machine
        owner = machine is self.world.owner and losses == history.losses
        self.world.expect(answer.error_code, EXPECTED, "Fetch")
        if not answer.responses:
            return None
        part = answer.responses[0].partitions[0]
        code = ErrorCode(part.error_code)
        self.world.trace(
            "fetched", self.name, history.name, offset, code.name, len(part.records or b""), part.high_watermark
        )
        deleting = deleting or history.deleting
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if (
                owner
                and not deleting
                and not history.expires
                and history.rotten_from is None
                and history.log_start_asked <= offset <= history.high_watermark
            ):
                raise Violation("INV-1", f"{history.name}: offset {offset} cannot be read any more")
            start = await self.list_offset(history, -2)
            if start is None:
                return None
            if start == offset:
                return None
            return [], -1, start, start
        if code in GONE:
            if not deleting and owner:
                raise Violation("INV-1", f"{history.name} is not there any more")
            return None
        if gone and owner and code is ErrorCode.NONE:
            raise Violation("INV-1", f"{history.name} was deleted and can be read")
        if code is not ErrorCode.NONE:
            self.world.expect(code, EXPECTED, f"Fetch of {history.name}")
            return None
        ends: list[int] = []
        at = offset
        records = memoryview(part.records or b"")
        rotten = history.rotten_from is not None or (machine is not None and machine.rotten)
        for position, header in served_batches(records, history.name, rotten=rotten):
            if header.end_offset <= offset or (header.base_offset != at and ends) or header.base_offset > at:
                if machine is not None and machine.rotten:
                    return None  # offsets are no part of a batch's CRC
                raise Violation(
                    "INV-4", f"{history.name}: read from {at} on and got [{header.base_offset}, {header.end_offset})"
                )
            tail = bytes(records[position + CRC_POSITION : position + header.size_bytes])
            if header.is_control:
                history.know_marker(tail, header.max_timestamp)
            if owner and not deleting:
                batch = self.world.acked_means_kept.observed(
                    history,
                    header.base_offset,
                    header.end_offset - header.base_offset,
                    tail,
                    header.leader_epoch,
                    visible=True,
                )
                if batch is not None and history.disk and machine is not None and not machine.rotten:
                    self.world.acked_means_kept.check_on_disk(history, header.base_offset, batch, machine)
            elif tail not in history.sent and machine is not None and not machine.rotten:
                raise Violation("INV-1", f"{history.name}: at {header.base_offset} are bytes that nobody sent")
            at = header.end_offset
            ends.append(at)
            if sink is not None:
                sink.append(header.base_offset)
            self.world.reads += 1
        if owner and not deleting and machine is not None and not machine.rotten:
            self.world.committed_only.fetched(history, part.high_watermark, at if ends else 0, high_watermark)
        return ends, part.high_watermark, part.log_start_offset, None

    async def list_offset(self, history: PartitionHistory, timestamp: int) -> int | None:
        """ListOffsets. Returns: the offset; None if there is none or it is not known now."""
        found = await self._list_offsets(history, timestamp)
        return None if found is None else found[0]

    async def _list_offsets(self, history: PartitionHistory, timestamp: int) -> tuple[int, int] | None:
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=history.topic,
                    partitions=[ListOffsetsPartition(partition_index=history.index, timestamp=timestamp)],
                )
            ],
        )
        answer = await self.ask(ApiKey.LIST_OFFSETS, 9, request)
        part = answer.topics[0].partitions[0]
        self.world.trace("offset", self.name, history.name, timestamp, part.offset, part.error_code)
        self.world.expect(part.error_code, EXPECTED, f"ListOffsets of {history.name}")
        return None if part.error_code else (part.offset, part.timestamp)

    async def by_time(self, history: PartitionHistory) -> None:
        """The first record at or after a time: no earlier one may be known that fits."""
        if history.deleting or not history.bases or history.expires:
            return
        batch = history.bound[self.rng.choice(history.bases)].batch
        wanted = batch.timestamps[0] + self.rng.choice((-1, 0, 0, 1))
        start, losses = history.log_start_asked, history.losses
        known = [
            bound.base + place
            for base in history.bases
            if (bound := history.bound[base]).end <= history.high_watermark
            for place, timestamp in enumerate(bound.batch.timestamps)
            if timestamp >= wanted
        ]
        found = await self._list_offsets(history, wanted)
        if found is None or history.deleting or not self.owns() or losses != history.losses:
            return
        if history.rotten_from is not None:
            return
        # Records below an asked log start may be gone by now.
        start = max(start, history.log_start_asked)
        expected = next((offset for offset in known if offset >= start), None)
        offset, timestamp = found
        if expected is not None and (offset < 0 or offset > expected):
            raise Violation("INV-1", f"{history.name}: first record from {wanted} on is at {expected}, not {offset}")
        if offset >= 0 and timestamp < wanted:
            raise Violation("INV-1", f"{history.name}: the record found for {wanted} is of {timestamp}")
        bound = history.find(offset) if offset >= 0 else None
        if bound is not None and bound.batch.timestamps[offset - bound.base] != timestamp:
            raise Violation("INV-1", f"{history.name}: the record at {offset} is not of {timestamp}")


class Administrator(Actor):
    """Makes and deletes topics and records, and changes settings."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.5, 3.0))
            if not self.world.producing:
                continue
            alive = [one for one in self.world.histories.values() if not one.deleting]
            try:
                dice = self.rng.random()
                if dice < 0.55 and alive:
                    await self.delete_records(self.rng.choice(alive))
                elif dice < 0.7 and alive:
                    await self.alter(self.rng.choice(alive))
                elif dice < 0.85 and alive and self.world.topics_come_and_go:
                    await self.delete_topic(self.rng.choice(alive))
                elif self.world.topics_come_and_go and len(alive) < 4:
                    await self.create_topic()
            except Unreachable:
                continue

    async def create_topic(self) -> bool:
        """Raises: Unreachable."""
        rng, world = self.rng, self.world
        names = [name for name in ("alpha", "beta", "gamma") if name not in world.taken]
        if not names:
            return False
        name = names[0]
        world.taken.add(name)
        disk = rng.random() < world.disk_share
        expires = rng.random() < 0.15
        configs = {"firn.durability": "disk" if disk else "memory"}
        if expires:
            configs["retention.ms"] = str(rng.choice((3000, 8000)))
        if rng.random() < 0.5:
            configs["local.retention.ms"] = "1" if expires else str(rng.choice((0, 1, 500, 4000)))
        partitions = rng.randint(1, 2)
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
                )
            ],
            timeout_ms=3000,
        )
        owner = world.owner
        answer = await self.ask(ApiKey.CREATE_TOPICS, 7, request)
        result = answer.topics[0]
        code = ErrorCode(result.error_code)
        world.trace("created", name, code.name)
        if code is ErrorCode.NONE and self.machine is world.owner and owner is world.owner:
            world.know_topic(name, result.topic_id, partitions, disk=disk, expires=expires)
            return True
        world.expect(code, EXPECTED | {ErrorCode.TOPIC_ALREADY_EXISTS}, "CreateTopics")
        return False

    async def delete_topic(self, history: PartitionHistory) -> None:
        world = self.world
        all_of_it = [one for one in world.histories.values() if one.topic_id == history.topic_id]
        for one in all_of_it:
            one.deleting = True
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=history.topic_id)], timeout_ms=3000)
        answer = await self.ask(ApiKey.DELETE_TOPICS, 6, request)
        code = ErrorCode(answer.responses[0].error_code)
        world.trace("deleted", history.topic, code.name)
        world.expect(code, EXPECTED, "DeleteTopics")
        if code is ErrorCode.NONE and self.owns():
            for one in all_of_it:
                one.gone = True
            world.taken.discard(history.topic)

    async def delete_records(self, history: PartitionHistory) -> None:
        losses = history.losses
        offset = self.rng.randint(history.log_start_asked, max(history.log_start_asked, history.high_watermark))
        history.log_start_asked = max(history.log_start_asked, offset)
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=history.topic,
                    partitions=[DeleteRecordsPartition(partition_index=history.index, offset=offset)],
                )
            ],
            timeout_ms=3000,
        )
        answer = await self.ask(ApiKey.DELETE_RECORDS, 2, request)
        result = answer.topics[0].partitions[0]
        code = ErrorCode(result.error_code)
        self.world.trace("truncated", history.name, offset, code.name, result.low_watermark)
        self.world.expect(code, EXPECTED | {ErrorCode.OFFSET_OUT_OF_RANGE}, f"DeleteRecords of {history.name}")
        if code is ErrorCode.NONE and self.owns() and not history.deleting and losses == history.losses:
            history.log_start_acked = max(history.log_start_acked, offset)

    async def alter(self, history: PartitionHistory) -> None:
        name, value = self.rng.choice(
            (
                ("local.retention.ms", "1"),
                ("local.retention.ms", "2000"),
                ("segment.ms", "700"),
                ("firn.tier.max.lag.ms", "1000"),
                ("index.interval.bytes", "64"),
            )
        )
        if history.expires and name == "local.retention.ms":
            return
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=2,
                    resource_name=history.topic,
                    configs=[AlterableConfig(name=name, config_operation=0, value=value)],
                )
            ]
        )
        answer = await self.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        self.world.trace("altered", history.topic, name, answer.responses[0].error_code)
        self.world.expect(answer.responses[0].error_code, EXPECTED, "IncrementalAlterConfigs")
