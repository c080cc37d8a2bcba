"""A broker's parts in memory, for conversations with the handlers alone: no disk, no store, no controller.

``FakeLog`` keeps the rules of ``PartitionLog`` that handlers rely on, and lets a test decide when bytes are stored, when
they are in the page cache, and who is told of an append.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from app.configs import BrokerConfig, Durability, TopicConfig
from app.configs.broker import RACK_AWARE_SELECTOR
from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.faults import Faults, Limited
from app.core.loop_time import loop_time_s
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TopicIdPartition, TopicPartition
from app.core.wake import Wake
from app.groups.coordinator import GroupCoordinator
from app.groups.share.share_coordinator import ShareCoordinator
from app.handlers.base.context import Context
from app.handlers.policy.callers import KnownRights, OpenDoor
from app.handlers.serving.dispatch import Apis
from app.handlers.serving.server import KafkaServer
from app.handlers.state.acknowledging import AcknowledgementGate
from app.handlers.state.draining import Drain
from app.handlers.state.fetch_fan_out import FanOut
from app.handlers.state.fetch_sessions import FetchSessions
from app.handlers.state.metadata_cache import MetadataCache
from app.handlers.state.metrics import ApiMetrics
from app.handlers.state.parked_followers import ParkedFollowers
from app.handlers.state.producer_id_block import ProducerIds
from app.handlers.state.telemetry import Telemetry
from app.hot.descriptors import DescriptorCache
from app.hot.producers import ProducerStates
from app.machine.files import PosixFileSystem
from app.records.batch import HeaderFields, check_batches, check_single, iter_headers, parse_header, patch_batch
from app.records.builder import recompress
from app.records.compression import Codec
from app.replication.partition import PartitionTable
from app.replication.reading import PartitionReads
from app.replication.throttle import new_throttle
from app.tiering.read.chunk_reads import RemoteRange
from app.tiering.read.reader import RemoteRead
from app.tiering.read.waiting import RemoteWait
from app.transactions.coordinator import TransactionCoordinator
from app.transport.replays import ReplayTurns


class Appended(NamedTuple):
    base_offset: int
    last_offset_end: int
    log_append_time_ms: int = -1
    duplicate: bool = False


class FakeFile:
    """Bytes in memory, of which the first ``cached_bytes`` are in the page cache."""

    can_tell_misses = True

    def __init__(self) -> None:
        self.data = bytearray()
        self.cached_bytes: int | None = None

    def preadv_nowait(self, view: memoryview, position: int) -> int | None:
        end = len(self.data) if self.cached_bytes is None else self.cached_bytes
        if position >= end and position < len(self.data):
            return None
        got = min(len(view), end - position)
        view[:got] = self.data[position : position + got]
        return got

    def is_cached(self, position: int, length: int) -> bool:
        return False

    def pread_into(self, view: memoryview, position: int) -> int:
        got = min(len(view), len(self.data) - position)
        view[:got] = self.data[position : position + got]
        return got


class FakeHandle:
    def __init__(self, file: FakeFile) -> None:
        self.file = file
        self.users = 0

    def acquire(self) -> FakeFile:
        self.users += 1
        return self.file

    def release(self) -> None:
        self.users -= 1
        assert self.users >= 0


class FakeRead(NamedTuple):
    handle: FakeHandle
    position: int
    length: int
    start_offset: int
    end_offset: int
    warm: bool = True
    is_full: bool = False


class FakeLog:
    journaled = False

    def __init__(self, topic: str, partition: int = 0, config: TopicConfig | None = None) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, topic)
        self.config = config or TopicConfig()
        self.log_start_offset = 0
        self.local_log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.last_stable_offset = 0
        self.leader_epoch = 0
        self.offline_error: FirnError | None = None
        self.file = FakeFile()
        self.handle = FakeHandle(self.file)
        self.sent_bytes = self.sent_records = 0
        self.waiters: list[Callable[[], None]] = []
        self.tail_waiters: list[Callable[[], None]] = []
        self.unstored: list[asyncio.Future[None]] | None = None
        """Set by ``store_slowly``."""
        self.asked_to_store_to = 0
        self.refuse_with: RequestRejected | None = None
        self.aborted: list[SimpleNamespace] = []
        self.producers = ProducerStates()
        self.has_files = True
        self.journaled = False
        self.together_max = 1
        """Batches that go together; the next one goes the general way."""
        self.runs: list[int] = []
        """Batches that were appended together, for each time."""
        self.topic_partition = TopicPartition(topic, PartitionIndex(partition))

    def segments(self) -> list[SimpleNamespace]:
        return []

    @property
    def terms(self) -> object:
        return self.config

    @property
    def stored_end_offset(self) -> int:
        return self.log_end_offset

    def commit_alone(self, alone: bool) -> None: ...

    def wake_followers(self) -> None:
        for callback in tuple(self.tail_waiters):
            callback()

    def commit(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, offset)

    def become_leader(self, epoch: int) -> None:
        self.leader_epoch = epoch

    def resign(self) -> None:
        for waiter in list(self.waiters):
            waiter()

    def store_slowly(self) -> list[asyncio.Future[None]]:
        """Every append waits from now on until the test resolves what is in the list."""
        self.config = replace(self.config, firn_durability=Durability.DISK)
        self.unstored = []
        return self.unstored

    def append_as_leader(
        self, records: memoryview, *, now_ms: int, prepared: bool = False, may_prepare: bool = True
    ) -> Appended:
        if self.refuse_with is not None:
            raise self.refuse_with
        found = check_batches(records, max_batch_bytes=self.config.max_message_bytes)
        base = self.log_end_offset
        for position, header in found:
            patch_batch(records, position, self.log_end_offset, self.leader_epoch)
            self.log_end_offset += header.last_offset_delta + 1
        self.file.data += records
        self.high_watermark = self.last_stable_offset = self.log_end_offset
        for waiter in list(self.waiters):
            waiter()
        return Appended(base, self.log_end_offset)

    def check_plain(self, records: memoryview) -> HeaderFields | None:
        return check_single(records, self.config.max_message_bytes)

    def append_run(self, run: list[tuple[memoryview, HeaderFields]], *, now_ms: int) -> list[Appended]:
        appended = []
        with suppress(RequestRejected):  # the next one is refused if it is tried alone
            for records, _ in run[: self.together_max]:
                appended.append(self.append_as_leader(records, now_ms=now_ms))
        self.runs.append(len(appended))
        return appended

    def needs_preparation(self, records: memoryview) -> bool:
        return self.config.compression_type != "producer"

    def prepare_append(self, records: memoryview, *, raw_bytes_max: int = 0) -> bytearray:
        check_batches(records, max_batch_bytes=self.config.max_message_bytes)
        return bytearray(recompress(bytes(records), Codec.GZIP))

    def request_stored(self, offset_end: int) -> None:
        self.asked_to_store_to = offset_end

    def wait_stored(self, offset_end: int) -> asyncio.Future[None] | None:
        if self.unstored is None:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.unstored.append(future)
        return future

    def plan_read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool) -> FakeRead:
        start = length = 0
        first = last = offset
        is_full = False
        for position, header in iter_headers(self.file.data):
            if header.end_offset <= offset:
                continue
            if header.base_offset >= end_offset:
                break
            if length + header.size_bytes > max_bytes and not (min_one_batch and length == 0):
                is_full = True
                break
            if not length:
                start, first = position, header.base_offset
            length += header.size_bytes
            last = header.end_offset
        return FakeRead(self.handle, start, length, first, last, is_full=is_full)

    def add_waiter(self, callback: Callable[[], None]) -> None:
        self.waiters.append(callback)

    def remove_waiter(self, callback: Callable[[], None]) -> None:
        if callback in self.waiters:
            self.waiters.remove(callback)

    def add_tail_waiter(self, callback: Callable[[], None]) -> None:
        self.tail_waiters.append(callback)

    def remove_tail_waiter(self, callback: Callable[[], None]) -> None:
        if callback in self.tail_waiters:
            self.tail_waiters.remove(callback)

    def append_uncommitted(self, records: bytes) -> None:
        """An append of a leader that waits for its followers."""
        before = self.high_watermark, self.last_stable_offset
        waiting, self.waiters = self.waiters, []
        self.append_as_leader(memoryview(bytearray(records)), now_ms=0)
        self.waiters = waiting
        self.high_watermark, self.last_stable_offset = before
        for waiter in list(self.tail_waiters):
            waiter()

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return (epoch, self.log_end_offset) if epoch == self.leader_epoch else (self.leader_epoch, 0)

    def epoch_of(self, offset: int) -> int:
        return self.leader_epoch

    def aborted_transactions(self, start: int, end: int) -> list[Any]:
        return self.aborted

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        for _, header in iter_headers(self.file.data):
            if header.max_timestamp >= timestamp:
                return header.max_timestamp, header.base_offset
        return None

    async def max_timestamp_offset(self) -> tuple[int, int] | None:
        headers = [header for _, header in iter_headers(self.file.data)]
        if not headers:
            return None
        top = max(headers, key=lambda header: header.max_timestamp)
        return top.max_timestamp, top.base_offset


class FakeRemote:
    """A remote reader whose answers the test puts into ``answers``: by offset, a read, an error, or nothing yet."""

    def __init__(self) -> None:
        self.answers: dict[int, Any] = {}
        self.waiters = Wake()
        self.asked: list[int] = []
        self.by_time: tuple[int, int] | None = None
        self.latest: tuple[int, int] | None = None

    def read(self, topic_id: uuid.UUID, partition: int, offset: int, max_bytes: int, *, min_one_batch: bool) -> Any:
        self.asked.append(offset)
        answer = self.answers.get(offset)
        if isinstance(answer, Exception):
            raise answer
        return RemoteWait(self.waiters) if answer is None else answer

    def arrive(self, offset: int, data: bytes, end_offset: int, aborted: Any = ()) -> FakeHandle:
        file = FakeFile()
        file.data += b"....." + data
        handle = FakeHandle(file)
        one = RemoteRange(handle, 5, len(data), offset, end_offset)  # type: ignore[arg-type]
        self.answers[offset] = RemoteRead([one], len(data), end_offset, list(aborted))  # type: ignore[arg-type]
        self.waiters.wake()
        return handle

    @property
    def lookups(self) -> FakeRemote:
        """This same object: a reader and its lookups have no method in common."""
        return self

    async def offset_for_timestamp(
        self, topic_id: uuid.UUID, partition: int, timestamp: int, *, claimed_from: int | None = None
    ) -> tuple[int, int] | None:
        await asyncio.sleep(0)
        return self.by_time

    async def max_timestamp_offset(self, topic_id: uuid.UUID, partition: int) -> tuple[int, int] | None:
        await asyncio.sleep(0)
        return self.latest

    def epoch_end_offset(self, topic_id: uuid.UUID, partition: int, epoch: int) -> tuple[int, int] | None:
        return None


class FakeTier:
    """What handlers ask of the RemoteLogManager."""

    def __init__(self) -> None:
        self.end: int | None = None
        self.manifest: Any = None

    copied_bytes = 0

    def drain(self, on: bool) -> None: ...

    def manifest_of(self, partition: TopicIdPartition) -> Any:
        return self.manifest

    def tiered_end(self, topic_id: uuid.UUID, partition: int) -> int | None:
        return self.end

    def status(self) -> list[Any]:
        return []


class FakePool:
    async def run(self, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return work()


class FakeClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


class FakeController:
    def __init__(self) -> None:
        self.image = FakeImage()
        self.blocks = 0

    async def allocate_producer_ids(self) -> range:
        await asyncio.sleep(0)
        self.blocks += 1
        return range(self.blocks * 1000, self.blocks * 1000 + 3)


class FakeImage:
    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.topics_by_name = self.topics
        self.cluster_id = "fake"
        self.level = 0
        self.brokers: dict[int, Any] = {}

    def topic(self, name: str) -> Any:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Any:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)


class FakeLogs:
    def __init__(self, image: FakeImage) -> None:
        self.all: dict[tuple[str, int], FakeLog] = {}
        self.log_directory = SimpleNamespace(descriptors=DescriptorCache(PosixFileSystem(), 1000))
        self._image = image
        self.table = PartitionTable(BrokerId(1), lambda: image)  # type: ignore[arg-type,return-value]

    def get(self, topic: str, partition: int) -> FakeLog | None:
        return self.all.get((topic, partition))

    def free_bytes(self) -> int:
        return 1 << 30

    def total_bytes(self) -> int:
        return 1 << 31

    def add(self, topic: str, partition: int = 0, config: TopicConfig | None = None) -> FakeLog:
        log = FakeLog(topic, partition, config)
        self.all[topic, partition] = log
        partitions = [SimpleNamespace(leader=1, leader_epoch=0, isr=(1,), replicas=(1,)) for _ in range(partition + 1)]
        self._image.topics[topic] = SimpleNamespace(name=topic, topic_id=log.topic_id, partitions=partitions)
        self.table.lead(self.table.hold(log), LeaderEpoch(0))  # type: ignore[arg-type]
        return log

    def remove(self, topic: str, partition: int = 0) -> None:
        """The topic's log is gone."""
        del self.all[topic, partition]
        found = self.table.get(topic, partition)
        assert found is not None
        self.table.drop(found)


class Bench:
    """A server with fakes behind it."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.controller = FakeController()
        self.logs = FakeLogs(self.controller.image)
        self.registry = Registry()
        self.lines: list[str] = []
        self.remote = FakeRemote()
        config = BrokerConfig(listen_port=0, **settings)
        rng = random.Random(1)
        producer_ids = ProducerIds(self.controller)  # type: ignore[arg-type]
        pool = FakePool()
        groups = GroupCoordinator(
            config=lambda: config,
            broker_id=BrokerId(config.node_id),
            partitions=self.logs.table,
            clock=self.clock,  # type: ignore[arg-type]
            rng=rng,
            registry=self.registry,
            log_line=self.lines.append,
        )
        rights = KnownRights()
        transactions = TransactionCoordinator(
            config,
            partitions=self.logs.table,
            producer_ids=producer_ids,
            offsets=groups,
            clock=self.clock,  # type: ignore[arg-type]
            registry=self.registry,
            log_line=self.lines.append,
        )
        drain = Drain(
            config=config,
            clock=self.clock,  # type: ignore[arg-type]
            registry=self.registry,
            cluster=self.controller,  # type: ignore[arg-type]
            logs=self.logs,  # type: ignore[arg-type]
            partitions=self.logs.table,
            remote_log_manager=FakeTier(),  # type: ignore[arg-type]
            transactions=transactions,
            log_line=self.lines.append,
            client_line=self.lines.append,
        )
        self.context = Context(
            config=config,
            effective=config,
            selects_by_rack=config.replica_selector_class == RACK_AWARE_SELECTOR,
            apis=Apis(),
            rights=rights,
            doorkeeper=OpenDoor(rights),
            replays=ReplayTurns(),
            parked_followers=ParkedFollowers(loop_time_s),
            gate=AcknowledgementGate(),
            metadata_cache=MetadataCache(),
            fan_out=FanOut(),
            leader_throttle=new_throttle(config),
            client_line=Limited(self.lines.append),
            drain=drain,
            schemas=SimpleNamespace(),  # type: ignore[arg-type]
            schema_follower=SimpleNamespace(),  # type: ignore[arg-type]
            requests=SimpleNamespace(),  # type: ignore[arg-type]
            clock=self.clock,  # type: ignore[arg-type]
            rng=rng,
            pool=pool,
            registry=self.registry,
            faults=Faults(self.lines.append),
            cluster=self.controller,  # type: ignore[arg-type]
            controller=self.controller,  # type: ignore[arg-type]
            logs=self.logs,  # type: ignore[arg-type]
            partitions=self.logs.table,
            reads=PartitionReads(self.remote, pool),  # type: ignore[arg-type]
            remote_log_manager=FakeTier(),  # type: ignore[arg-type]
            copy_holds=None,  # type: ignore[arg-type]
            holds_of_leaders=None,  # type: ignore[arg-type]
            metrics=ApiMetrics(self.registry),
            telemetry=Telemetry(config),
            fetch_sessions=FetchSessions(config.max_incremental_fetch_session_cache_slots, rng),
            producer_ids=producer_ids,
            groups=groups,
            shares=ShareCoordinator(
                config=lambda: config,
                cluster=self.controller,  # type: ignore[arg-type]
                controller=self.controller,  # type: ignore[arg-type]
                broker_id=BrokerId(config.node_id),
                partitions=self.logs.table,
                clock=self.clock,  # type: ignore[arg-type]
                registry=self.registry,
                log_line=self.lines.append,
            ),
            transactions=transactions,
            advertised_host="127.0.0.1",
            advertised_port=9092,
            log_line=self.lines.append,
        )
        drain.on_change = self.context.decide_refusal
        self.server = KafkaServer(self.context, self.context.apis, connections_max=config.max_connections)
        self.port = 0

    def counter(self, name: str, **labels: str) -> float:
        wanted = tuple(sorted(labels.items()))
        return sum(s.value for s in self.registry.samples() if s.name == name and (not labels or s.labels == wanted))


def header_of(batch: bytes | memoryview) -> Any:
    return parse_header(batch)


def unknown(code: ErrorCode) -> RequestRejected:
    return RequestRejected(code)
