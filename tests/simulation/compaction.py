"""A compacted topic in the simulation: writers of keys, in transactions or not, and readers that want the newest of each.

What is checked whenever the topic is read from its start to its end, whatever the cleaner has done meanwhile:

- **Newest kept**: of every key the newest acknowledged record is there, or a later one, or a tombstone took its place.
- **In place**: a record is at the offset at which it was acknowledged, in order.
- **Hidden**: nothing of an aborted transaction is there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING
from uuid import UUID

from app.core.errors import ErrorCode
from app.core.units import ProducerEpoch, ProducerId
from app.records.builder import build_batch
from app.records.control import ControlType, parse_marker
from app.records.record import iter_records
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.produce import encode_produce_request
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.simulation.actors import EXPECTED, Actor
from tests.simulation.checkers import served_batches
from tests.simulation.transactions import READ_COMMITTED, TIMEOUT_MS, TRANSACTION_EXPECTED

if TYPE_CHECKING:
    from tests.simulation.world import World

TOPIC = "keyed"
KEYS = tuple(b"k%d" % number for number in range(6))


class State(Enum):
    """What is known of a record."""

    MAYBE = "it may be there"
    KEPT = "it was acknowledged"
    VOID = "it must not be seen"


@dataclass(slots=True, eq=False)
class Write:
    """A record that somebody has sent."""

    number: int
    key: bytes
    tombstone: bool
    state: State = State.MAYBE
    offset: int = -1


class KeyedTopic:
    """INV-10: see the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.topic_id: UUID | None = None
        self.delete_retention_ms = 0
        """Of the topic. At 0 a slow reader may see an older record and miss the tombstone behind it, as in Kafka."""
        self.losses = 0
        self._writes: dict[int, Write] = {}
        self._newest: dict[bytes, Write] = {}

    def lost(self) -> None:
        """The log may have lost its end, or all of it."""
        self.losses += 1
        self._newest.clear()
        for write in self._writes.values():
            write.offset = -1
            if write.state is State.KEPT:
                write.state = State.MAYBE

    def sent(self, key: bytes, *, tombstone: bool) -> Write:
        number = self._world.next_number()
        write = self._writes[number] = Write(number, key, tombstone)
        return write

    def kept(self, write: Write) -> None:
        """It counts, at ``write.offset``."""
        write.state = State.KEPT
        newest = self._newest.get(write.key)
        if newest is None or newest.offset < write.offset:
            self._newest[write.key] = write

    def newest(self) -> dict[bytes, Write]:
        """Of every key the newest record that was acknowledged."""
        return dict(self._newest)

    def read(self, offset: int, key: bytes, value: bytes | None) -> None:
        """A reader has got a record. Raises: Violation."""
        if value is None:
            return
        write = self._writes.get(int(value.partition(b"/")[0]))
        if write is None or write.key != key:
            raise Violation("INV-10", f"at {offset} is a record of key {key!r} that nobody sent")
        if write.state is State.VOID:
            raise Violation("INV-10", f"at {offset} is record {write.number}, and {write.state.value}")
        if write.offset not in (-1, offset):
            raise Violation("INV-10", f"record {write.number} was at {write.offset} and is at {offset}")

    def whole(self, wanted: dict[bytes, Write], found: dict[bytes, int]) -> None:
        """The topic was read to its end; ``wanted`` was the newest of each key when that began. Raises: Violation."""
        for key, write in wanted.items():
            at = found.get(key, -1)
            if at >= write.offset:
                continue
            deleted = any(
                one.key == key
                and one.tombstone
                and one.state is not State.VOID
                and (one.offset >= write.offset or one.offset < 0)
                for one in self._writes.values()
            )
            if not deleted or (at >= 0 and self.delete_retention_ms > 0):
                raise Violation(
                    "INV-10",
                    f"the newest record of {key!r} is {write.number} at {write.offset}, and what is read is at {at}",
                )


class KeyedWriter(Actor):
    """Writes batches of keys and deletes some; in transactions if it has a transactional id."""

    def __init__(self, world: World, name: str, *, transactional: bool) -> None:
        super().__init__(world, name)
        self.transactional_id = name if transactional else None
        self._producer_id = self._epoch = self._sequence = -1

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.01, 0.08))
            if not self.world.producing:
                continue
            self._want_cleaning()
            try:
                await self._turn()
            except Unreachable:
                self._producer_id = -1

    def _want_cleaning(self) -> None:
        """Only what lies below the recovery point is cleaned, and that moves seldom by itself."""
        machine = self.world.owner
        if machine.up and machine.node is not None and machine.process is not None and self.rng.random() < 0.3:
            for log in machine.node.logs.logs():
                if log.config.compacted and log.offline_error is None:
                    machine.process.call_at(self.world.loop.time(), log.request_checkpoint)

    async def _turn(self) -> None:
        """Raises: Unreachable, Violation."""
        if self.world.keyed.topic_id is None:
            await self._create()
        elif self.transactional_id is not None and self._producer_id < 0:
            await self._identify(self.transactional_id)
        else:
            await self._write()

    async def _create(self) -> None:
        retention_ms = self.rng.choice((0, 400))
        configs = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": str(retention_ms),
            "firn.durability": "disk" if self.world.internal_on_disk else "memory",
        }
        topic = CreatableTopic(
            name=TOPIC,
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        answer = await self.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=3000))
        code = ErrorCode(answer.topics[0].error_code)
        self.world.expect(code, EXPECTED | {ErrorCode.TOPIC_ALREADY_EXISTS}, f"CreateTopics of {TOPIC}")
        if code is ErrorCode.NONE:
            self.world.keyed.topic_id = answer.topics[0].topic_id
            self.world.keyed.delete_retention_ms = retention_ms
        elif code is ErrorCode.TOPIC_ALREADY_EXISTS:
            node = self.world.owner.node
            made = node.cluster.image.topic(TOPIC) if node is not None and self.world.owner.up else None
            self.world.keyed.topic_id = made.topic_id if made is not None else None

    async def _identify(self, transactional_id: str) -> None:
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
        found = (await self.ask(ApiKey.FIND_COORDINATOR, 4, asked)).coordinators[0]
        self.world.expect(found.error_code, TRANSACTION_EXPECTED, "FindCoordinator")
        if found.error_code:
            return
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id, TIMEOUT_MS))
        self.world.expect(answer.error_code, TRANSACTION_EXPECTED, "InitProducerId")
        if not answer.error_code:
            self._producer_id, self._epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0

    async def _write(self) -> None:
        """One batch, in a transaction of its own if there are transactions. Raises: Unreachable, Violation."""
        keyed = self.world.keyed
        losses = keyed.losses
        writes = [
            keyed.sent(self.rng.choice(KEYS), tombstone=self.rng.random() < 0.15) for _ in range(self.rng.randint(1, 5))
        ]
        if self.transactional_id is not None:
            for write in writes:
                write.state = State.VOID  # until somebody asks to commit it
        base = await self._produce(writes)
        ours = self.owns() and losses == keyed.losses
        for place, write in enumerate(writes):
            write.offset = base + place if base >= 0 and ours else -1
        if base < 0:
            self._producer_id = -1
        elif self.transactional_id is None:
            if ours:
                for write in writes:
                    keyed.kept(write)
        else:
            await self._end(self.transactional_id, writes, ours=ours, losses=losses)

    async def _produce(self, writes: list[Write]) -> int:
        """Raises: Unreachable, Violation. Returns: the base offset; -1 if it was refused."""
        now_ms = self.world.clock.now_ms()
        transactional = self.transactional_id is not None
        filler = b"/" + b"v" * self.world.filler_bytes
        data = build_batch(
            [(now_ms, one.key, None if one.tombstone else b"%d" % one.number + filler, ()) for one in writes],
            producer_id=ProducerId(self._producer_id if transactional else -1),
            producer_epoch=ProducerEpoch(self._epoch if transactional else -1),
            base_sequence=self._sequence if transactional else -1,
            transactional=transactional,
            codec=self.world.codec,
        )
        assert self.world.keyed.topic_id is not None
        wire = self.connect()
        frame = encode_produce_request(
            13,
            wire.next_correlation_id(),
            self.name,
            [(self.world.keyed.topic_id, [(0, data)])],
            acks=-1,
            timeout_ms=3000,
            transactional_id=self.transactional_id,
        )
        future = wire.send(ApiKey.PRODUCE, 13, b"".join(bytes(piece) for piece in frame))
        result = (await self.answered(wire, future)).responses[0].partition_responses[0]
        self.world.trace("keyed", self.name, writes[0].number, result.base_offset, ErrorCode(result.error_code).name)
        self.world.expect(result.error_code, TRANSACTION_EXPECTED, f"Produce to {TOPIC}")
        self._sequence += len(writes)
        return -1 if result.error_code else result.base_offset

    async def _end(self, transactional_id: str, writes: list[Write], *, ours: bool, losses: int) -> None:
        """Raises: Unreachable, Violation."""
        keyed, commit = self.world.keyed, self.rng.random() < 0.7
        if commit:
            for write in writes:
                write.state = State.MAYBE
        request = EndTxnRequest(transactional_id, self._producer_id, self._epoch, commit)
        answer = await self.ask(ApiKey.END_TXN, 5, request)
        self.world.expect(answer.error_code, TRANSACTION_EXPECTED, "EndTxn")
        if answer.error_code:
            self._producer_id = -1
            return
        if answer.producer_epoch != self._epoch or answer.producer_id != self._producer_id:
            self._sequence = 0
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        if commit and ours and self.owns() and losses == keyed.losses:
            for write in writes:
                keyed.kept(write)


class KeyedReader(Actor):
    """Reads the topic from its start to its end at read_committed, and keeps the newest of each key."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))
            if self.world.producing:
                try:
                    await self.read_all()
                except Unreachable:
                    continue

    async def read_all(self) -> bool:
        """Whether it was read to its end. Raises: Unreachable, Violation."""
        keyed = self.world.keyed
        if keyed.topic_id is None:
            return True
        losses, wanted = keyed.losses, keyed.newest()
        found: dict[bytes, int] = {}
        aborting: set[int] = set()
        offset = 0
        while True:
            part = await self._fetch(keyed.topic_id, offset)
            if part is None or losses != keyed.losses or not self.owns():
                return False
            end = self._take(offset, part, aborting, found)
            if end == offset:
                break
            offset = end
        if offset < part.high_watermark:
            return False  # a transaction is open
        self.world.trace("keyed read", self.name, offset, len(found))
        keyed.whole(wanted, found)
        return True

    async def _fetch(self, topic_id: UUID, offset: int) -> PartitionData | None:
        wanted = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=self.rng.choice((300, 2000, 100_000))
        )
        request = FetchRequest(
            max_wait_ms=20,
            min_bytes=1,
            max_bytes=100_000,
            isolation_level=READ_COMMITTED,
            topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
        )
        answer = await self.ask(ApiKey.FETCH, 13, request)
        if not answer.responses:
            return None
        part: PartitionData = answer.responses[0].partitions[0]
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Violation("INV-10", f"{TOPIC}-0: records from {offset} on are gone, and nothing of it may expire")
        self.world.expect(part.error_code, EXPECTED, f"Fetch of {TOPIC} at {offset}")
        return None if part.error_code else part

    def _take(self, offset: int, part: PartitionData, aborting: set[int], found: dict[bytes, int]) -> int:
        """What a client makes of an answer. Returns: where to read on. Raises: Violation."""
        begin = {one.first_offset: one.producer_id for one in part.aborted_transactions or ()}
        starts = sorted(begin)
        records = memoryview(part.records or b"")
        for position, header in served_batches(records, f"{TOPIC}-0"):
            if header.end_offset <= offset:
                continue
            while starts and starts[0] <= header.base_offset:
                aborting.add(begin[starts.pop(0)])
            batch = records[position : position + header.size_bytes]
            if header.is_control:
                marker = parse_marker(batch) if header.record_count else None
                if marker is not None and marker.control_type is ControlType.ABORT:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                for record in iter_records(batch):
                    assert record.key is not None
                    self.world.keyed.read(record.offset, bytes(record.key), record.value)
                    found[bytes(record.key)] = record.offset
            offset = header.end_offset
        return offset
