"""The registry's log on the broker that leads `_schemas`-0: conditional appends, and reads of committed records (ADR 0041).

A shell around ``SchemaShard``. Long work rests between portions: a request is read and checked in portions, and the turn
of the append looks at the end again. Tests: ``tests/broker/test_schema_log.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from app.configs import BrokerConfig
from app.coordinator.partition import CoordinatedLog, until_at_hand
from app.coordinator.shell import Coordinator, Turn
from app.coordinator.topics import make_topic, strongest
from app.core.errors import ErrorCode, NotLeader, RequestRejected, clause
from app.core.faults import Faults
from app.core.limits import KIB
from app.core.metrics import Registry
from app.core.seams import Clock
from app.core.turns import Portion, run
from app.core.units import BrokerId, PartitionIndex
from app.metadata.changes.internal_topics import InternalTopic
from app.metadata.image.records import REGISTRY_LEVEL
from app.records.batch import iter_headers
from app.records.record import iter_records
from app.schemas.records import Meaning, RawRecord
from app.schemas.reservations import Reservations
from app.schemas.shard import Admitted, SchemaShard
from app.schemas.strength import TOPIC, configs_of, weakness

if TYPE_CHECKING:
    from app.metadata.controller.controller import Controller
    from app.metadata.image.image import ClusterImage
    from app.metadata.view.view import ClusterView
    from app.replication.partition import Partition, PartitionTable
    from app.replication.reading import PartitionReads

ZERO: Final = PartitionIndex(0)
STORED_WITHIN_MS: Final = 10_000
"""How long a caller waits until other brokers have stored its records."""
LOADED_WITHIN_S: Final = 5.0
READ_BYTES: Final = 64 * KIB
"""Bytes that a read takes at once."""
NEVER: Final = -1
"""The end of a history that is over."""
TRIES_MAX: Final = 10
"""How often the log is read on for one append, while another registry writes to it."""

_SCHEMAS: Final = InternalTopic(TOPIC, "", "offsets_topic_replication_factor", "")


class StoredRecord(NamedTuple):
    """One committed record."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None


class OutcomeUnknown(RequestRejected):
    """Records were appended, and it is not known whether they count: the next leader decides, or time was up."""


class Refused(NamedTuple):
    """Nothing was appended, because another caller is admitted alone."""

    wait_ms: int


class SchemaCoordinator:
    """Admits appends to `_schemas`, and reads it. Belongs to its loop; keep ``run`` running."""

    def __init__(
        self,
        *,
        config: Callable[[], BrokerConfig],
        broker_id: BrokerId,
        cluster: ClusterView,
        controller: Controller,
        partitions: PartitionTable,
        reads: PartitionReads,
        clock: Clock,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._controller = controller
        self._partitions = partitions
        self._reads = reads
        self._coordinator: Coordinator[SchemaShard] = Coordinator(
            _SCHEMAS,
            lambda _: SchemaShard(),
            broker_id=broker_id,
            partitions=partitions,
            clock=clock,
            registry=registry,
            log_line=log_line,
            faults=faults,
            stored_within_ms=STORED_WITHIN_MS,
            hold=self._note_unclean_epoch,
        )
        self._reservations = Reservations()
        self._reading_on = asyncio.Lock()
        self._moved = registry.counter(
            "firn_schemas_moved_total", "Appends to _schemas that were refused because the log ends elsewhere."
        )

    @staticmethod
    def _note_unclean_epoch(partition: Partition, shard: SchemaShard) -> bool:
        shard.unclean_epoch = partition.unclean_epoch
        return False

    def follow(self, image: ClusterImage) -> None:
        """Update the role of this broker to a new image of the cluster."""
        self._coordinator.follow(image)

    async def run(self) -> None:
        """Load the log while this broker leads it, until cancelled."""
        await self._coordinator.run()

    # --- producers ----------------------------------------------------------------------------------------------------

    def check_producer(self, topic: str) -> None:
        """Refuse batches of producers from Firn's own first write on (SR5). While the log is not read yet, producers try again.

        Raises: RequestRejected INVALID_TOPIC_EXCEPTION, NOT_ENOUGH_REPLICAS.
        """
        if topic != TOPIC or self._cluster.image.level < REGISTRY_LEVEL:
            return  # at a lower level Firn writes nothing there
        try:
            owned = self._coordinator.look(ZERO, lambda shard: shard.owned)
        except RequestRejected as error:
            raise RequestRejected(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"Whether {TOPIC} may be written is not known yet: {clause(error)}."
            ) from None
        if owned:
            raise RequestRejected(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"The topic {TOPIC} is written by Firn's schema registry alone. Register schemas over HTTP.",
            )

    # --- appends ------------------------------------------------------------------------------------------------------

    async def ensure_topic(self) -> None:
        """Make the topic if there is none, with the strongest durability of the cluster (SR8).

        Raises: RequestRejected COORDINATOR_NOT_AVAILABLE; FirnError.
        """
        image = self._cluster.image
        if image.topic(TOPIC) is not None:
            return
        config = self._config()
        durability = await run(strongest(config, image))
        configs = configs_of(durability, config)
        await make_topic(self._controller, TOPIC, 1, configs, config.offsets_topic_replication_factor)

    async def append(
        self,
        caller: Hashable,
        expected_end: int,
        records: Sequence[RawRecord],
        asked: Sequence[Meaning],
        *,
        history: str,
        is_operator: bool,
    ) -> Admitted | Refused:
        """Append records as one batch if the log ends at ``expected_end``, and wait until they are committed. A result that says
        where the log ends instead is as committed.

        Args:
            caller: whose losses are counted together.
            asked: the meanings of the records.
            history: of the read that ended at ``expected_end``. A read of another history counts as one of another end.
            is_operator: whether the caller may alter the cluster.

        Raises: NotLeader, RequestRejected, with nothing written; OutcomeUnknown NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
        """
        for _ in range(TRIES_MAX):
            partition = await self._readable()
            await self._check_strength(partition)
            shard = self._coordinator.look(ZERO, lambda found: found)
            if history != history_of(partition) and (history or expected_end):
                expected_end = NEVER
            if shard.end == expected_end:
                await run(shard.check(asked, is_operator=is_operator))
            if self._coordinator.look(ZERO, lambda found: found) is not shard:
                continue
            if shard.end == partition.log.log_end_offset:
                return await self._append_now(partition, caller, expected_end, records, asked)
        raise RequestRejected(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"Another registry writes to {TOPIC} all the time. Stop it first."
        )

    async def _append_now(
        self,
        partition: Partition,
        caller: Hashable,
        expected_end: int,
        records: Sequence[RawRecord],
        asked: Sequence[Meaning],
    ) -> Admitted | Refused:
        """The turn of an append: no await between the last look at the end and the write (SR1)."""
        now_ms = self._coordinator.loop_ms()
        wait_ms = self._reservations.wait_ms(caller, now_ms)
        if wait_ms:
            return Refused(wait_ms)

        def decide(shard: SchemaShard, turn: Turn) -> Admitted:
            return shard.append(turn, expected_end, records, asked)

        try:
            result = self._coordinator.perform(ZERO, decide)
        except RequestRejected as error:
            log_error = error.__cause__
            if isinstance(log_error, RequestRejected) and log_error.code is ErrorCode.MESSAGE_TOO_LARGE:
                raise RequestRejected(log_error.code, str(log_error)) from None
            raise
        try:
            admitted = await result if isinstance(result, Awaitable) else result
        except RequestRejected as error:
            raise OutcomeUnknown(error.code, str(error)) from error
        if admitted.moved:
            self._moved.value += 1
            self._reservations.lost(caller, self._coordinator.loop_ms())
        else:
            self._reservations.won(caller)
        return admitted

    async def _readable(self) -> Partition:
        """The partition, once its shard has read the log to its end. Raises: NotLeader, RequestRejected."""
        self._partitions.require_served(TOPIC, 0)
        await self._coordinator.when_loaded(timeout_s=LOADED_WITHIN_S)
        partition = self._partitions.require_served(TOPIC, 0)
        async with self._reading_on:
            await self._read_on(partition)
        return partition

    async def _read_on(self, partition: Partition) -> None:
        """Read the records of another registry that came after the shard was loaded. Raises: RequestRejected, FirnError."""
        shard = self._coordinator.look(ZERO, lambda found: found)
        if shard.end == partition.log.log_end_offset:
            return
        async for batches in CoordinatedLog(partition).replay(shard.end):
            if self._coordinator.look(ZERO, lambda found: found) is not shard:
                return
            for batch in batches:
                shard.load(batch)

    async def _check_strength(self, partition: Partition) -> None:
        """Raises: RequestRejected POLICY_VIOLATION if the topic is weaker than the registry needs (SR9)."""
        image = self._cluster.image
        topic = image.topic(TOPIC)
        wanted = await run(strongest(self._config(), image))
        config = partition.log.config
        count = 1 if topic is None else len(topic.partitions)
        why = weakness(count, config.cleanup_policy, config.firn_durability, wanted)
        if why is not None:
            raise RequestRejected(ErrorCode.POLICY_VIOLATION, why)

    # --- reads --------------------------------------------------------------------------------------------------------

    async def read(
        self, start: int, bytes_max: int, shows: Callable[[bytes], bool]
    ) -> tuple[list[StoredRecord], int, str]:
        """The committed records from offset ``start`` on whose keys ``shows`` lets through, the offset at which they end, and the
        history of the log.

        The end of the log is learned after the call began. A result of ``bytes_max`` ends below it.

        Raises: NotLeader, RequestRejected, FirnError.
        """
        partition = self._partitions.require_served(TOPIC, 0)
        if not partition.end_is_known:
            raise RequestRejected(
                ErrorCode.OFFSET_NOT_AVAILABLE, f"The end of {TOPIC} is not known yet. Try again in a moment."
            )
        log, leadership, history = partition.log, partition.leadership, history_of(partition)
        end = log.high_watermark
        offset = max(start, log.log_start_offset)
        found: list[StoredRecord] = []
        size = 0
        portion = Portion()
        while offset < end and size < bytes_max:
            read = await self._reads.read_when_ready(log, offset, READ_BYTES, end_offset=end, committed=False)
            if not read.ranges:
                await until_at_hand(read.lacks, log.topic_partition)
                continue
            next_offset = read.end_offset
            data = memoryview(await self._reads.take(read))
            for position, header in iter_headers(data):
                if header.is_control:
                    continue
                for record in iter_records(data[position : position + header.size_bytes]):
                    if record.offset >= offset and record.key is not None and shows(record.key):
                        found.append(StoredRecord(record.offset, record.timestamp, record.key, record.value))
                        size += len(record.key) + len(record.value or b"")
                    if portion.spent_by():
                        await portion.rest()
            offset = next_offset
        if partition.leadership != leadership or not partition.serves:
            raise partition.lost_leadership()
        return found, offset if offset < end else end, history


def history_of(partition: Partition) -> str:
    """Names the topic and its last loss of an end: within one history an offset has one record (SR1)."""
    return f"{partition.topic_id}:{partition.unclean_epoch}"


def leader_of(error: RequestRejected, image: ClusterImage) -> int:
    """The node id of the broker to ask instead; -1 if there is none now."""
    if isinstance(error, NotLeader) and error.leader >= 0:
        return error.leader
    topic = image.topic(TOPIC)
    return -1 if topic is None or not topic.partitions else int(topic.partitions[0].leader)
