"""Clients of a simulated cluster: producers, readers, an administrator. They reach it over the simulated network."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from app.client.connection import KafkaConnection, open_connection
from app.core.errors import BrokerUnavailable, ErrorCode, ProtocolError, RequestRejected
from app.core.units import ProducerEpoch, ProducerId
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.cluster_simulation.checkers import Replication
from tests.cluster_simulation.machine import PORT
from tests.cluster_simulation.truth import ReplicatedHistory
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.simulation.checkers import CRC_POSITION, served_batches
from tests.simulation.history import Batch

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World

ANSWER_MS = 4_000
FOUND_BY_ITSELF = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Errors that a client tries again after."""
LOST_PRODUCER = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    }
)


class Client:
    """Something with connections to all brokers."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = world.new_rng()
        self._dial = world.network.dialer(name, None)
        self._connections: dict[int, KafkaConnection] = {}
        self._connecting = asyncio.Lock()
        self._leaders: dict[tuple[UUID, int], int] = {}

    async def ask(self, node_id: int, key: ApiKey, message: Any, version: int | None = None) -> Any:
        """Raises: Unreachable."""
        try:
            async with self._connecting:  # requests leave in the order in which they were asked
                connection = self._connections.get(node_id)
                if connection is None or not connection.usable:
                    if connection is not None:
                        await connection.close()
                    connection = self._connections[node_id] = await self.connect(node_id)
            return await connection.request(key, message, version=version, timeout_ms=ANSWER_MS)
        except (BrokerUnavailable, RequestRejected, ProtocolError) as error:
            raise Unreachable(str(error)) from None

    async def connect(self, node_id: int) -> KafkaConnection:
        """A connection of its own. Raises: Unreachable."""
        try:
            return await open_connection(f"n{node_id}", PORT, client_id=self.name, timeout_ms=1_000, dial=self._dial)
        except (BrokerUnavailable, RequestRejected, ProtocolError) as error:
            raise Unreachable(str(error)) from None

    def any_broker(self) -> int:
        return self.rng.choice(self.world.machines).node_id

    async def ask_any(self, key: ApiKey, message: Any, version: int | None = None) -> Any:
        return await self.ask(self.any_broker(), key, message, version)

    async def leader_of(self, history: ReplicatedHistory) -> int:
        """Raises: Unreachable."""
        found = self._leaders.get((history.topic_id, history.index))
        if found is not None:
            return found
        request = MetadataRequest(topics=[MetadataRequestTopic(name=history.topic)], allow_auto_topic_creation=False)
        answer = await self.ask_any(ApiKey.METADATA, request, 12)
        for topic in answer.topics:
            if topic.topic_id == history.topic_id:
                for part in topic.partitions:
                    if part.partition_index == history.index and part.leader_id >= 0:
                        self._leaders[history.topic_id, history.index] = part.leader_id
                        return int(part.leader_id)
        raise Unreachable("nobody leads")

    def forget_leader(self, history: ReplicatedHistory) -> None:
        self._leaders.pop((history.topic_id, history.index), None)


@dataclass(slots=True, eq=False)
class _Sent:
    """A batch that is not answered yet."""

    batch: Batch
    data: bytes
    losses: int


@dataclass(slots=True, eq=False)
class _Stream:
    """One producer's batches to one partition."""

    number: int
    history: ReplicatedHistory
    producer_id: int = -1
    losses: int = 0
    sequence: int = 0
    placed: int = 0
    acked_place: int = -1
    queue: deque[_Sent] = field(default_factory=deque)


class Producer(Client):
    """Sends batches to the partitions that there are; an idempotent one sends again what was not answered."""

    def __init__(self, world: World, name: str, *, idempotent: bool, acks: int) -> None:
        super().__init__(world, name)
        self.idempotent, self.acks = idempotent, acks
        self.pause_s = self.rng.choice((0.05, 0.1, 0.3))
        self._streams: dict[tuple[UUID, int], _Stream] = {}
        self._producer_id = -1

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * self.pause_s)
            if not self.world.producing:
                continue
            alive = [one for one in self.world.histories.values() if not one.deleting]
            if alive:
                try:
                    await self.produce(self.rng.choice(alive))
                except Unreachable:
                    continue

    async def produce_to(self, node_id: int, history: ReplicatedHistory) -> bool:
        """As ``produce``, to a broker that may lead or not."""
        self._leaders[history.topic_id, history.index] = node_id
        return await self.produce(history)

    async def produce(self, history: ReplicatedHistory) -> bool:
        """Send new batches, behind those that were not answered. Returns: whether all were. Raises: Unreachable."""
        if self.idempotent and self._producer_id < 0:
            answer = await self.ask_any(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None), 4)
            self.world.expect(answer.error_code, FOUND_BY_ITSELF, "InitProducerId")
            if answer.error_code:
                return False
            self._producer_id = int(answer.producer_id)
            self.world.producer_id_given(self._producer_id)
        key = (history.topic_id, history.index)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(self.world.next_number(), history)
        if self.idempotent and stream.producer_id != self._producer_id:
            stream.queue.clear()
            stream.number = self.world.next_number()
            stream.producer_id, stream.sequence, stream.placed, stream.acked_place = self._producer_id, 0, 0, -1
            stream.losses = history.losses
        while len(stream.queue) < self._wanted():
            stream.queue.append(self._new_batch(stream))
        return await self._push(stream)

    def _wanted(self) -> int:
        """How many batches are to be under way."""
        return self.rng.choice((1, 1, 3))

    def _epoch(self, stream: _Stream) -> int:
        """The producer's epoch."""
        return 0

    def _new_batch(self, stream: _Stream) -> _Sent:
        number = self.world.next_number()
        count = self.rng.randint(1, 4)
        now_ms = 1_700_000_000_000 + int(self.world.loop.time() * 1000)
        timestamps = tuple(now_ms - self.rng.randrange(500) for _ in range(count))
        filler = b"x" * self.rng.randrange(self.world.filler_bytes)
        data = build_batch(
            [(when, b"%d" % place, b"%d/%d" % (number, place) + filler, ()) for place, when in enumerate(timestamps)],
            producer_id=ProducerId(stream.producer_id),
            producer_epoch=ProducerEpoch(self._epoch(stream) if self.idempotent else -1),
            base_sequence=stream.sequence if self.idempotent else -1,
        )
        batch = Batch(number, stream.number, stream.placed, count, data[CRC_POSITION:], timestamps, self.idempotent)
        stream.sequence += count
        stream.placed += 1
        stream.history.sent[batch.tail] = batch
        return _Sent(batch, data, stream.history.losses)

    async def _push(self, stream: _Stream) -> bool:
        """Send everything that is queued, in order. Raises: Unreachable, Violation."""
        history = stream.history
        leader = await self.leader_of(history)
        number = stream.number
        sent = list(stream.queue)
        results = await asyncio.gather(*(self._send(leader, history, one) for one in sent), return_exceptions=True)
        failed = False
        for one, result in zip(sent, results, strict=True):
            if isinstance(result, BaseException) and not isinstance(result, Unreachable):
                raise result
            if stream.number != number or one not in stream.queue:
                continue
            if isinstance(result, Unreachable):
                self.forget_leader(history)
                failed = True
                if not self.idempotent:
                    stream.queue.remove(one)
                continue
            self._answered(stream, one, leader, result, first=not failed)
            failed = failed or one in stream.queue
        return not failed

    async def _send(self, leader: int, history: ReplicatedHistory, one: _Sent) -> Any:
        one.batch.attempts += 1
        one.losses = history.losses
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=3000,
            topic_data=[
                TopicProduceData(
                    topic_id=history.topic_id,
                    partition_data=[PartitionProduceData(index=history.index, records=one.data)],
                )
            ],
        )
        answer = await self.ask(leader, ApiKey.PRODUCE, request, 13)
        result = answer.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        self.world.trace("produced", self.name, history.name, one.batch.number, result.base_offset, code.name)
        if code is ErrorCode.NONE:
            self.world.acks += 1
            if self.acks == -1:
                with self.world.judging():
                    Replication.acked(history, one.batch, int(result.base_offset), one.losses)
                    if self.world.objects is not None:
                        end = int(result.base_offset) + one.batch.count
                        self.world.objects.logs.shown(history, 1 << 60, end, f"n{leader}")
        return result

    def _answered(self, stream: _Stream, one: _Sent, leader: int, result: Any, *, first: bool) -> None:
        code = ErrorCode(result.error_code)
        history = stream.history
        if code is ErrorCode.NONE:
            stream.queue.remove(one)
            stream.acked_place = max(stream.acked_place, one.batch.place)
            return
        if code in LOST_PRODUCER and self.idempotent:
            if not first:
                return  # one before it failed: all of them again, in order
            newest = self.world.partition_image(history)
            follows = 0 <= stream.acked_place == one.batch.place - 1 and not history.deleting and self.acks == -1
            if self.world.shape.tiered and any(
                bound.batch.stream == stream.number and bound.batch.place > one.batch.place
                for bound in history.bound.values()
            ):
                # A replica that begins at the tiered end knows the last batch of each producer alone, as in Kafka.
                follows = False
            if (
                follows
                and stream.losses == history.losses
                and not history.excused
                and newest is not None
                and int(newest.leader) == leader
            ):
                raise Violation("INV-1", f"{history.name}: {code.name} for a producer whose records were kept")
            self._producer_id = -1
            return
        self.forget_leader(history)
        self.world.expect(code, FOUND_BY_ITSELF, f"Produce to {history.name} ({result.error_message})")
        if not self.idempotent:
            stream.queue.remove(one)
        if history.deleting:
            stream.queue.clear()


class Reader(Client):
    """Reads partitions from somewhere on, and asks for their ends."""

    def __init__(self, world: World, name: str, *, anywhere: bool = False) -> None:
        """``anywhere``: from any replica, as consumers with a rack do (KIP-392)."""
        super().__init__(world, name)
        self.anywhere = anywhere

    async def run(self) -> None:
        pause_s = self.rng.choice((0.1, 0.3))
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * pause_s)
            alive = [one for one in self.world.histories.values() if not one.deleting]
            if not alive or not self.world.producing:
                continue
            history = self.rng.choice(alive)
            try:
                if self.rng.random() < 0.3:
                    await self.latest(history)
                else:
                    offset = 0 if self.rng.random() < 0.3 else self.rng.randrange(history.end + 1)
                    for _ in range(self.rng.randint(1, 3)):
                        found = await self.fetch(history, offset)
                        if found is None or not found[0]:
                            break
                        offset = found[0][-1][1]
            except Unreachable:
                continue

    async def list_offset(self, history: ReplicatedHistory, timestamp: int) -> tuple[int, int] | None:
        """Offset and leader epoch; None for now. Raises: Unreachable."""
        leader = await self.leader_of(history)
        part = ListOffsetsPartition(partition_index=history.index, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=history.topic, partitions=[part])])
        answer = (await self.ask(leader, ApiKey.LIST_OFFSETS, request, 7)).topics[0].partitions[0]
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            self.forget_leader(history)
            self.world.expect(code, FOUND_BY_ITSELF, f"ListOffsets of {history.name}")
            return None
        return int(answer.offset), int(answer.leader_epoch)

    async def latest(self, history: ReplicatedHistory) -> None:
        """INV-3: the end that readers are told does not go back with a later leader."""
        losses, told_before = history.losses, dict(history.told_end)
        found = await self.list_offset(history, -1)
        if found is None or losses != history.losses or history.excused or history.deleting:
            return
        end, epoch = found
        self.world.trace("end", history.name, end, epoch)
        if epoch < history.era_epoch:
            return
        for before, told in told_before.items():
            if history.era_epoch <= before <= epoch and told > end:
                raise Violation(
                    "INV-3", f"{history.name}: the end {end} in epoch {epoch}, after {told} in epoch {before}"
                )
        history.told_end[epoch] = max(end, history.told_end.get(epoch, 0))

    async def fetch(
        self, history: ReplicatedHistory, offset: int, bytes_max: int = 4000
    ) -> tuple[list[tuple[int, int]], int, int] | None:
        """One Fetch: ranges of the batches, the high watermark, and the log start. None for now. Raises: Unreachable."""
        losses = history.losses
        leader = await self.leader_of(history)
        image = self.world.partition_image(history)
        if self.anywhere and image is not None:
            leader = int(self.rng.choice(image.replicas))
        request = FetchRequest(
            max_wait_ms=self.rng.choice((0, 100)),
            min_bytes=1,
            max_bytes=bytes_max,
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic_id=history.topic_id,
                    partitions=[
                        FetchPartition(partition=history.index, fetch_offset=offset, partition_max_bytes=bytes_max)
                    ],
                )
            ],
        )
        led_by, told = self._sure_of(leader, history), history.told_high_watermark
        answer = await self.ask(leader, ApiKey.FETCH, request, 13)
        self.world.expect(answer.error_code, FOUND_BY_ITSELF, "Fetch")
        if not answer.responses:
            return None
        part = answer.responses[0].partitions[0]
        if led_by is not None and led_by == self._sure_of(leader, history) and part.error_code == ErrorCode.NONE:
            if part.high_watermark < told:
                raise Violation(
                    "INV-3",
                    f"{history.name}: the high watermark {part.high_watermark} of n{leader}, after {told} was told",
                )
            history.told_high_watermark = max(history.told_high_watermark, part.high_watermark)
        code = ErrorCode(part.error_code)
        self.world.trace(
            "fetched", self.name, history.name, offset, code.name, len(part.records or b""), part.high_watermark
        )
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            # The next leader may not know yet that so much is committed.
            self.forget_leader(history)
            return None
        if code is not ErrorCode.NONE:
            self.forget_leader(history)
            self.world.expect(code, FOUND_BY_ITSELF, f"Fetch of {history.name}")
            return None
        if history.deleting:
            return None
        # Where a loss is excused, readers of a log that may have holes go on behind them.
        may_skip = self.world.shape.holes and (history.excused or history.era_epoch >= 0)
        found: list[tuple[int, int]] = []
        records = memoryview(part.records or b"")
        for position, header in served_batches(records, history.name):
            at = found[-1][1] if found else offset
            if may_skip and header.base_offset > at:
                at = header.base_offset
            if header.end_offset <= offset or (found and header.base_offset != at) or header.base_offset > at:
                raise Violation(
                    "INV-4", f"{history.name}: read from {at} on and got [{header.base_offset}, {header.end_offset})"
                )
            if header.end_offset > part.high_watermark:
                raise Violation(
                    "INV-3",
                    f"{history.name}: records up to {header.end_offset} were read, the high watermark is {part.high_watermark}",
                )
            tail = bytes(records[position + CRC_POSITION : position + header.size_bytes])
            if header.is_control:
                history.know_marker(tail, header.max_timestamp)
            batch = history.sent.get(tail)
            if batch is None:
                raise Violation("INV-1", f"{history.name}: at {header.base_offset} are bytes that nobody sent")
            if not history.losses and not history.excused and losses == history.losses:
                history.bind(batch, int(header.base_offset), int(header.leader_epoch))
            found.append((int(header.base_offset), int(header.end_offset)))
            self.world.reads += 1
        return found, int(part.high_watermark), int(part.log_start_offset)

    def _sure_of(self, leader: int, history: ReplicatedHistory) -> tuple[int, int] | None:
        """Who leads a partition without disks, if it is that broker, and it knows; None otherwise."""
        known = self.world.coordinated
        return known.led_by(history) if history.by_log and known.knows(leader, history) else None

    async def read_all(self, history: ReplicatedHistory) -> bool:
        """Read a partition from its start to its end, and hold it against the truth. Raises: Unreachable, Violation."""
        start = await self.list_offset(history, -2)
        if start is None:
            return False
        if start[0] > 0:
            raise Violation("INV-4", f"{history.name} starts at {start[0]}, and nothing was to be deleted")
        known = [bound for bound in history.bound.values() if bound.acked]
        offset, seen = 0, set[int]()
        while True:
            found = await self.fetch(history, offset, 1 << 20)
            if found is None:
                return False
            ranges, high_watermark, _ = found
            for base, _end in ranges:
                seen.add(base)
            if ranges:
                offset = ranges[-1][1]
            elif offset >= high_watermark:
                if any(bound.base >= high_watermark for bound in known):
                    return False  # a new leader does not know yet that so much is committed
                break
        for bound in known:
            if bound.base not in seen and history.bound.get(bound.base) is bound:
                raise Violation("INV-1", f"{history.name}: the acknowledged batch at {bound.base} is not there")
        return True


class Administrator(Client):
    """Makes and deletes topics, and asks for whatever else changes the cluster."""

    async def create_topic(
        self, name: str, partitions: int, factor: int, configs: dict[str, str], *, disk: bool, unclean: bool, once: bool
    ) -> bool:
        """``once``: nobody has asked for this topic before (F1). Raises: Unreachable, Violation."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=factor,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
                )
            ],
            timeout_ms=3000,
        )
        answer = (await self.ask_any(ApiKey.CREATE_TOPICS, request, 7)).topics[0]
        code = ErrorCode(answer.error_code)
        self.world.trace("created", name, code.name, answer.error_message)
        if code is ErrorCode.NONE:
            self.world.know_topic(name, answer.topic_id, partitions, disk=disk, unclean=unclean)
            return True
        if code is ErrorCode.TOPIC_ALREADY_EXISTS and once:
            raise Violation("once", f"topic {name} was asked for once, and the answer is that it exists")
        found = self.world.newest.topic(name)
        if found is not None and (found.topic_id, 0) not in self.world.histories:
            self.world.know_topic(name, found.topic_id, len(found.partitions), disk=disk, unclean=unclean)
            return True
        return False

    async def delete_topic(self, name: str) -> None:
        """Raises: Unreachable."""
        self.world.deleting(name)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=3000)
        answer = (await self.ask_any(ApiKey.DELETE_TOPICS, request, 6)).responses[0]
        self.world.trace("deleted", name, ErrorCode(answer.error_code).name)
