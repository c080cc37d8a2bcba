"""The results of keyed requests on the brokers that lead `__http_requests` (ADR 0043).

A shell around ``RequestShard``. A look-up answers when all that it depends on is stored. A result is decided on in the turn of its
append, and its answer waits until it is stored. Two loops run beside the requests: one frees expired results, and one decides
results that have lost their marker. Tests: ``tests/broker/test_keyed_requests.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from app.configs import BrokerConfig, Durability, TopicConfig
from app.configs.resolving import resolve_topic_config
from app.coordinator.partition import ProducerIdAndEpoch, until_at_hand
from app.coordinator.shell import Bulk, Coordinator, Decode, Turn
from app.coordinator.topics import HTTP_REQUESTS, make_topic, strongest
from app.core.errors import CorruptionError, DirectoryOffline, ErrorCode, FirnError, NotLeader, RequestRejected
from app.core.faults import Faults
from app.core.limits import KIB
from app.core.log_events import Event
from app.core.metrics import Registry
from app.core.seams import BlockingPool, Clock
from app.core.turns import Portion, run
from app.core.units import BrokerId, Offset, PartitionIndex, ProducerId, TopicId, TopicPartition
from app.exactly_once.bounds import Usage
from app.exactly_once.deciding import Fate, RecordFate, decide
from app.exactly_once.records import PARTITIONS, TOPIC, RequestKey, Result, Tick, decode, decode_head, encode_key
from app.exactly_once.shard import Accepted, KeyTaken, RequestShard, Standing
from app.exactly_once.strength import Strength, strength_of, weaker
from app.metadata.changes.internal_topics import strength_configs
from app.records.batch import iter_headers
from app.records.record import iter_records

if TYPE_CHECKING:
    from app.metadata.controller.controller import Controller
    from app.metadata.image.image import ClusterImage, TopicImage
    from app.metadata.view.view import ClusterView
    from app.replication.partition import Partition, PartitionTable
    from app.replication.reading import PartitionReads

STORED_WITHIN_MS: Final = 10_000
LOADED_WITHIN_S: Final = 5.0
SCANNED_BYTES: Final = 512 * KIB
"""Bytes of a long log that are loaded at a time: some 1,500 keys, about 3 ms, and 20 ms if all of them are open."""
READ_BYTES: Final = 4_096
"""A read takes one batch at least, and a result is one."""
TRIES_MAX: Final = 5
"""How often a key is looked up for one request, while its results change."""
TIMEOUT_MS: Final = 10_000
OBJECT_TIMEOUT_MS: Final = 60_000
"""How long a transaction may be open; the second where anything is in write-ahead logs."""
EXPIRY_S: Final = 300.0
"""Between two moves of the start of a log. Each costs a request to the store."""
DECIDE_S: Final = 30.0
ABANDONED_S: Final = 120.0
"""A result that is open for longer has no transaction any more: the coordinator ends one within ``OBJECT_TIMEOUT_MS``."""

CONFIGS_KEPT_MAX: Final = 1_000
"""Topics whose effective settings are kept for further requests."""

R = TypeVar("R")


class LookedUp(NamedTuple):
    """The state of a key."""

    found: str
    """``known``, ``open``, ``reserved`` or ``unknown``."""
    value: bytes = b""
    """Of a known one: the value of its record."""
    try_id: bytes = b""
    """Of an open one: the try that has it."""


class _Stored(NamedTuple):
    """A result as it lies in the log."""

    key: RequestKey
    value: bytes
    producer: ProducerIdAndEpoch


class _Resolved(NamedTuple):
    """The effective settings of a topic, and the settings of topic and broker that they were made of."""

    overrides: Mapping[str, str]
    broker: BrokerConfig
    config: TopicConfig


class _OpenSince(NamedTuple):
    """An open result, by its place."""

    partition: PartitionIndex
    producer_id: ProducerId
    offset: Offset


FateOf = Callable[[TopicPartition, int, ProducerIdAndEpoch], Awaitable[RecordFate]]
"""``RequestCoordinator.fate`` at the leader of a partition. Raises: FirnError."""
EndOf = Callable[[TopicPartition, ProducerIdAndEpoch, bool], Awaitable[None] | None]
"""Writes the marker that ends a transaction of this identity in a partition. Raises: FirnError."""


class RequestCoordinator:
    """Looks keys up, and admits results. Belongs to its loop; keep ``run`` running."""

    def __init__(
        self,
        *,
        config: Callable[[], BrokerConfig],
        broker_id: BrokerId,
        cluster: ClusterView,
        controller: Controller,
        partitions: PartitionTable,
        reads: PartitionReads,
        pool: BlockingPool,
        clock: Clock,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults,
        advance: Callable[[TopicId, PartitionIndex, Offset], Awaitable[None]],
    ) -> None:
        """``advance`` moves the start of a log, durably."""
        self._config = config
        self._cluster = cluster
        self._controller = controller
        self._partitions = partitions
        self._reads = reads
        self._log_line = log_line
        self._faults = faults
        self._advance = advance
        self._usage = Usage()
        self.fate_of: FateOf = self.fate
        """Set where other brokers lead partitions, too."""
        self.end_of: EndOf | None = None
        """Set before ``run``."""
        self._configs: dict[str, _Resolved] = {}
        """By topic."""
        self._seen: dict[_OpenSince, float] = {}
        """Loop time since which a result is known to be open."""
        self._coordinator: Coordinator[RequestShard] = Coordinator(
            HTTP_REQUESTS,
            lambda _: RequestShard(self._usage, lambda: self._config().firn_http_idempotency_retention_ms),
            broker_id=broker_id,
            partitions=partitions,
            clock=clock,
            registry=registry,
            log_line=log_line,
            faults=faults,
            stored_within_ms=STORED_WITHIN_MS,
            reads=reads,
            bulk=Bulk(lambda: pool.run(_scanner), SCANNED_BYTES),
        )
        registry.gauge(
            "firn_http_keys",
            "Keys of HTTP requests whose results this broker keeps.",
            lambda: [((), float(self._usage.total.keys))],
        )
        registry.gauge(
            "firn_http_keys_bytes",
            "Bytes of the results that this broker keeps for keys of HTTP requests.",
            lambda: [((), float(self._usage.total.bytes))],
        )
        text = "Results of keyed HTTP requests that were to be appended, by outcome."
        self._accepted, self._repeated, self._refused = (
            registry.counter("firn_http_results_total", text, outcome=outcome)
            for outcome in ("appended", "repeated", "refused")
        )

    def follow(self, image: ClusterImage) -> None:
        """Update the role of this broker to a new image of the cluster."""
        self._coordinator.follow(image)

    async def run(self) -> None:
        """Load the partitions that this broker leads, expire results, and decide abandoned ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._coordinator.run())
            tasks.create_task(self._repeat(EXPIRY_S, "expiring results of", self.expire))
            tasks.create_task(self._repeat(DECIDE_S, "deciding results of", self.decide_abandoned))

    async def _repeat(self, pause_s: float, kind: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do work again and again. A failure is told, and the next time tries again. Work handles failures of single
        partitions itself, so that another leader of one, which is no failure, does not come here."""
        while True:
            await asyncio.sleep(pause_s)
            try:
                await work()
            except DirectoryOffline as error:
                self._faults.met_error(kind, TOPIC, error)
            except FirnError as error:
                self._faults.met(kind, TOPIC, f"{kind} {TOPIC} fails: {error}")

    # --- the topic ----------------------------------------------------------------------------------------------------

    def leaders(self) -> list[int]:
        """The brokers that lead the partitions, -1 where none does; empty while there is no topic."""
        topic = self._cluster.image.topic(TOPIC)
        return [] if topic is None else [int(one.leader) for one in topic.partitions]

    async def ensure_topic(self) -> None:
        """Make the topic if there is none, with the strongest durability of the cluster (EO13).

        Raises: RequestRejected COORDINATOR_NOT_AVAILABLE; POLICY_VIOLATION if there is one that is not of Firn's making; FirnError.
        """
        image = self._cluster.image
        topic = image.topic(TOPIC)
        if topic is not None:
            self._check_topic(topic)
            return
        config = self._config()
        durability = await run(strongest(config, image))
        configs = _configs_of(durability, config)
        await make_topic(self._controller, TOPIC, PARTITIONS, configs, config.transaction_state_log_replication_factor)

    def _check_topic(self, topic: TopicImage) -> None:
        """Raises: RequestRejected POLICY_VIOLATION. A client may have made the topic while the cluster was of a lower level."""
        config = self._resolved(topic)
        if (
            len(topic.partitions) != PARTITIONS
            or set(config.cleanup_policy) != {"delete"}
            or config.retention_ms != -1
            or config.retention_bytes != -1
        ):
            raise RequestRejected(
                ErrorCode.POLICY_VIOLATION,
                f"The topic {TOPIC} was not made by Firn, and keeps results in another way. Delete it with a broker of an older"
                " version.",
            )

    # --- look-up ------------------------------------------------------------------------------------------------------

    async def look(self, key: RequestKey, try_id: bytes, size_bytes: int | None) -> LookedUp:
        """The state of a key (EO6). ``size_bytes``: of the result that a new key may get; the key is reserved for the try. None
        does not reserve it.

        Raises: NotLeader; RequestRejected THROTTLING_QUOTA_EXCEEDED, or as ``Coordinator.perform``; FirnError.
        """
        index = PartitionIndex(key.partition)
        for _ in range(TRIES_MAX):
            partition = await self._readable(index)
            standing = await self._standing(index, key, try_id)
            known, others = await self._read_all(partition, key, standing.offsets)
            if known is not None:
                return LookedUp("known", known)
            if standing.open is not None:
                return LookedUp("open", try_id=standing.open.try_id)
            if standing.reserved_ms and size_bytes is not None:
                return LookedUp("reserved")
            if size_bytes is None:
                return LookedUp("unknown")
            if await self._reserve(index, key, try_id, size_bytes, others):
                return LookedUp("unknown")
        raise RequestRejected(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            "Other requests with this key end all the time. Try again in a moment.",
        )

    async def _reserve(
        self, index: PartitionIndex, key: RequestKey, try_id: bytes, size_bytes: int, others: set[int]
    ) -> bool:
        """Reserve a key that still has no result. Returns: False if it may have one by now."""

        def reserve(shard: RequestShard, turn: Turn) -> bool:
            now = shard.look(key, try_id, turn.steady_ms)
            if now.open is not None or now.reserved_ms or not others.issuperset(now.offsets):
                return False
            shard.reserve(key, try_id, size_bytes, turn.steady_ms)
            return True

        return await _result(self._coordinator.perform(index, reserve))

    def is_new(self, key: RequestKey, try_id: bytes) -> bool:
        """Whether a key surely has no result, committed or open, and is not reserved for another try, as far as this broker knows
        now. What it knows may not be stored yet: the append of the result waits for that.

        Raises: NotLeader; RequestRejected, also while the partition is being read.
        """
        index = PartitionIndex(key.partition)
        self._partitions.require_served(TOPIC, index)
        steady_ms = self._coordinator.loop_ms()
        return self._coordinator.look(index, lambda shard: shard.look(key, try_id, steady_ms).is_new)

    def reserve_new(self, key: RequestKey, try_id: bytes, size_bytes: int) -> bool:
        """Reserve a key if it ``is_new``. Raises: RequestRejected, THROTTLING_QUOTA_EXCEEDED too (EO12)."""
        if not self.is_new(key, try_id):
            return False
        self._coordinator.tell(
            PartitionIndex(key.partition), lambda shard, turn: shard.reserve(key, try_id, size_bytes, turn.steady_ms)
        )
        return True

    def check_producer(self, key: RequestKey, try_id: bytes, producer_id: ProducerId) -> None:
        """Check that the partition of a key may join a transaction of a producer (EO11). Raises: RequestRejected."""
        index = PartitionIndex(key.partition)
        self._coordinator.look(index, lambda shard: shard.check_producer(producer_id, try_id))

    async def release(self, key: RequestKey, try_id: bytes) -> None:
        """A try ended without a result. Raises: NotLeader, RequestRejected."""
        index = PartitionIndex(key.partition)
        await self._readable(index)
        self._coordinator.tell(index, lambda shard, _: shard.release(key, try_id))

    # --- append -------------------------------------------------------------------------------------------------------

    async def others_of(self, key: RequestKey, try_id: bytes) -> set[int]:
        """The offsets of committed results with the hash of a key that have other keys (EO9).

        Raises: KeyTaken if the key has a result; as ``look``.
        """
        index = PartitionIndex(key.partition)
        partition = await self._readable(index)
        standing = await self._standing(index, key, try_id)
        known, others = await self._read_all(partition, key, standing.offsets)
        if known is not None:
            self._refused.value += 1
            raise KeyTaken(ErrorCode.CONCURRENT_TRANSACTIONS, "Another request with this key has a result.")
        return others

    def accept(
        self, key: RequestKey, result: Result, producer: ProducerIdAndEpoch, others: set[int]
    ) -> Awaitable[Accepted]:
        """Append a result in this turn, if its key has none (EO2). The transaction coordinator must have agreed. The awaitable
        waits until the log is stored up to its end.

        Raises, with nothing written: KeyTaken, RequestRejected. The awaitable raises RequestRejected if it is not known whether the
        result counts.
        """
        index = PartitionIndex(key.partition)
        try:
            result_or_wait = self._coordinator.perform(
                index, lambda shard, turn: shard.accept(turn, key, result, producer, others)
            )
        except KeyTaken:
            self._refused.value += 1
            raise
        return self._counted(result_or_wait)

    async def _counted(self, result: Accepted | Awaitable[Accepted]) -> Accepted:
        accepted = await _result(result)
        (self._repeated if accepted.repeated else self._accepted).value += 1
        return accepted

    def complete_transaction(self, partition: PartitionIndex, producer_id: ProducerId, *, commit: bool) -> None:
        """As ``PendingRecords``. A partition that is not loaded yet will find the marker in its log."""
        shard = self._coordinator.active(partition)
        if shard is not None:
            shard.complete(producer_id, commit=commit)

    # --- strength -----------------------------------------------------------------------------------------------------

    async def check_parts(self, key: RequestKey, parts: Iterable[tuple[str, int]]) -> int:
        """Check that the result of a key is as durable as records in ``parts`` (EO7). Returns: the time-out for their transaction,
        in milliseconds.

        Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, POLICY_VIOLATION.
        """
        image = self._cluster.image
        mine = self._strength_of(image, TOPIC, key.partition)
        known: dict[str, tuple[Durability, int]] = {}
        uses_object = mine.replicas
        portion = Portion()
        for topic, index in parts:
            strength = self._strength_of(image, topic, index, known)
            uses_object = uses_object or strength.replicas
            lost = weaker(mine, strength)
            if lost is not None:
                raise RequestRejected(
                    ErrorCode.POLICY_VIOLATION,
                    f"The results of keyed requests would not survive {lost}, which records of topic '{topic}' survive. Raise"
                    f" firn.durability of {TOPIC}, and wait until it has its replicas.",
                )
            await portion.rest_if_spent()
        return OBJECT_TIMEOUT_MS if uses_object else TIMEOUT_MS

    def _strength_of(
        self,
        image: ClusterImage,
        topic: str,
        index: int,
        known: dict[str, tuple[Durability, int]] | None = None,
    ) -> Strength:
        found = image.topic(topic)
        if found is None or not 0 <= index < len(found.partitions):
            raise RequestRejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}. Create the topic first."
            )
        of_topic = None if known is None else known.get(topic)
        if of_topic is None:
            config = self._resolved(found)
            of_topic = config.firn_durability, config.min_insync_replicas
            if known is not None:
                known[topic] = of_topic
        return strength_of(*of_topic, len(found.partitions[index].replicas))

    def _resolved(self, topic: TopicImage) -> TopicConfig:
        """The effective settings of a topic. Images share the settings of topics that have not changed."""
        broker = self._config()
        known = self._configs.get(topic.name)
        if known is not None and known.overrides is topic.configs and known.broker is broker:
            return known.config
        config = resolve_topic_config(broker, topic.configs)
        if len(self._configs) >= CONFIGS_KEPT_MAX:
            self._configs.clear()
        self._configs[topic.name] = _Resolved(topic.configs, broker, config)
        return config

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _readable(self, index: PartitionIndex) -> Partition:
        """Raises: NotLeader, RequestRejected."""
        self._partitions.require_served(TOPIC, index)
        await self._coordinator.when_loaded([index], timeout_s=LOADED_WITHIN_S)
        return self._partitions.require_served(TOPIC, index)

    async def _standing(self, index: PartitionIndex, key: RequestKey, try_id: bytes) -> Standing:
        return await _result(
            self._coordinator.perform(index, lambda shard, turn: shard.look(key, try_id, turn.steady_ms))
        )

    async def _read_all(
        self, partition: Partition, key: RequestKey, offsets: Sequence[int]
    ) -> tuple[bytes | None, set[int]]:
        """The value of the key's own record among those at ``offsets``, and the offsets that have other keys. Raises: FirnError."""
        others: set[int] = set()
        for offset in offsets:
            found = await self._stored(partition, offset)
            if found is not None and found.key == key:
                return found.value, others
            others.add(offset)
        return None, others

    async def _stored(self, partition: Partition, offset: int) -> _Stored | None:
        """The result at an offset; None if it has expired. Raises: CorruptionError, FirnError."""
        log = partition.log
        while offset >= log.log_start_offset:
            read = await self._reads.read_when_ready(
                log, offset, READ_BYTES, end_offset=log.log_end_offset, committed=False
            )
            if not read.ranges:
                await until_at_hand(read.lacks, log.topic_partition)
                continue
            data = memoryview(await self._reads.take(read))
            for position, header in iter_headers(data):
                if header.is_control:
                    continue
                for record in iter_records(data[position : position + header.size_bytes]):
                    if record.offset == offset and record.key is not None and record.value is not None:
                        found = decode_head(record.key, record.value)
                        if found is not None and not isinstance(found, Tick):
                            producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
                            return _Stored(found[0], bytes(record.value), producer)
            raise CorruptionError(f"{log.topic_partition} has no result at offset {offset}.")
        return None

    # --- time ---------------------------------------------------------------------------------------------------------

    async def expire(self) -> None:
        """Free the memory and the space of results that are older than the retention."""
        for index, shard in self._coordinator.shards():
            await run(shard.drop_expired())
            partition = self._partitions.led(TOPIC, index)
            if partition is None or not self._is_current(index, shard):
                continue
            log = partition.log
            start = Offset(min(shard.start, log.last_stable_offset))
            if start <= log.log_start_offset:
                continue
            try:
                await self._advance(log.topic_id, log.partition, start)
            except FirnError as error:
                self._tell("expiring results of", index, shard, error)

    def _is_current(self, index: PartitionIndex, shard: RequestShard) -> bool:
        return any(one is shard and at == index for at, one in self._coordinator.shards())

    def _tell(self, kind: str, index: PartitionIndex, shard: RequestShard, error: FirnError) -> None:
        """Work on one partition has failed. Another leader of it is no failure."""
        if isinstance(error, DirectoryOffline) or (isinstance(error, NotLeader) and not self._is_current(index, shard)):
            return  # that a directory is offline was told once for all
        self._faults.met(kind, f"{TOPIC}-{index}", f"{kind} {TOPIC}-{index} fails: {error}")

    # --- transactions without an end ----------------------------------------------------------------------------------

    async def decide_abandoned(self) -> None:
        """Decide open results whose transaction has ended without a marker here, because the log has lost it (EO11)."""
        now_s = asyncio.get_running_loop().time()
        seen: dict[_OpenSince, float] = {}
        portion = Portion()
        due: list[tuple[_OpenSince, RequestShard]] = []
        for index, shard in self._coordinator.shards():
            for producer_id, offset in shard.open_results():
                place = _OpenSince(index, producer_id, offset)
                seen[place] = self._seen.get(place, now_s)
                if now_s - seen[place] >= ABANDONED_S:
                    due.append((place, shard))
                if portion.spent_by():
                    await portion.rest()
        self._seen = seen
        for place, shard in due:
            if not self._is_current(place.partition, shard):
                continue
            try:
                await self._decide(place)
            except FirnError as error:
                self._tell("deciding a result of", place.partition, shard, error)

    async def _decide(self, place: _OpenSince) -> None:
        """Raises: FirnError if the fate of its records cannot be learned now, or the marker cannot be written."""
        partition = self._partitions.require_served(TOPIC, place.partition)
        found = await self._stored(partition, place.offset)
        if found is None or self.end_of is None:
            return
        result = _result_in(found)
        fates: set[RecordFate] = set()
        for part in result.parts:
            target = TopicPartition(part.topic, PartitionIndex(part.partition))
            fates.add(await self.fate_of(target, part.base_offset, found.producer))
        if RecordFate.OPEN in fates:
            return  # its own marker comes, or its partition is decided first
        if not self._is_open(place, partition, found.producer):
            return  # its marker came meanwhile
        if fates - {RecordFate.LOST} == {RecordFate.GONE} and self._coordinator.look(
            place.partition, lambda shard: shard.is_kept(place.offset)
        ):
            return  # readers may have seen them: its key is 409 as long as results are kept
        committed = (
            decide(found.producer.producer_epoch, None, [fate is RecordFate.COMMITTED for fate in fates])
            is Fate.COMMITTED
        )
        waiting = self.end_of(TopicPartition(TOPIC, place.partition), found.producer, committed)
        if waiting is not None:
            await waiting
        self._log_line(
            Event.TRANSACTION_DECIDED.line(
                f"a result of producer {place.producer_id} in {TOPIC}-{place.partition} had lost its marker: it is"
                f" {'committed' if committed else 'aborted'}, as its records are"
            )
        )

    def _is_open(self, place: _OpenSince, partition: Partition, producer: ProducerIdAndEpoch) -> bool:
        """Whether a result is open, and is all that its producer has open in the partition. Raises: NotLeader, RequestRejected."""
        if self._partitions.require_served(TOPIC, place.partition) is not partition:
            return False
        entry = partition.log.producers.entries.get(place.producer_id)
        return (
            entry is not None
            and (entry.epoch, entry.transaction_first_offset) == (producer.producer_epoch, place.offset)
            and self._coordinator.look(place.partition, lambda shard: shard.is_open(place.producer_id, place.offset))
        )

    async def fate(self, target: TopicPartition, offset: int, producer: ProducerIdAndEpoch) -> RecordFate:
        """The fate of a transaction's record at an offset.

        Raises: NotLeader, RequestRejected, FirnError.
        """
        partition = self._partitions.require_served(target.topic, target.partition)
        if not partition.end_is_known:
            raise RequestRejected(
                ErrorCode.OFFSET_NOT_AVAILABLE, f"The end of {target} is not known yet. Try again in a moment."
            )
        log = partition.log
        while True:
            stable_end = log.last_stable_offset
            if offset < log.log_start_offset:
                return RecordFate.GONE
            if offset >= log.log_end_offset:
                return RecordFate.LOST
            if offset >= stable_end:
                return RecordFate.OPEN
            read = await self._reads.read_when_ready(log, offset, READ_BYTES, end_offset=stable_end, committed=True)
            if not read.ranges:
                await until_at_hand(read.lacks, target)
                continue
            aborted = [*read.aborted.values()]
            data = memoryview(await self._reads.take(read))
            _, header = next(iter_headers(data), (0, None))
            if header is None:
                raise CorruptionError(f"A read of {target} at offset {offset} has no whole record batch.")
            if header.base_offset > offset:
                return RecordFate.GONE
            named = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
            if named != producer or not header.is_transactional or header.is_control:
                return RecordFate.LOST
            is_aborted = any(
                one.producer_id == producer.producer_id and one.first_offset <= offset <= one.last_offset
                for one in aborted
            )
            return RecordFate.ABORTED if is_aborted else RecordFate.COMMITTED


def _scanner() -> Decode:
    """Imports numpy at its first call."""
    scan: Decode = import_module("app.exactly_once.columns").scan
    return scan


def _result_in(found: _Stored) -> Result:
    """Raises: CorruptionError."""
    decoded = decode(encode_key(found.key), found.value)
    assert decoded is not None
    assert not isinstance(decoded, Tick)
    return decoded[1]


async def _result(result: R | Awaitable[R]) -> R:
    return await result if isinstance(result, Awaitable) else result


def _configs_of(durability: Durability, config: BrokerConfig) -> dict[str, str]:
    """The settings with which the topic is made."""
    own = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "segment.bytes": str(config.transaction_state_log_segment_bytes),
    }
    return own | strength_configs(durability, config.transaction_state_log_min_isr)
