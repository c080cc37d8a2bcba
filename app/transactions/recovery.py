"""What follows when a partition of ``__transaction_state`` may have lost its end (ADR 0037, J46).

Its coordinator serves nobody until every open transaction that no coordinator knows is decided, and every transactional id of the
partition is forgotten. ``deciding.py`` decides. This module looks at the partitions, and writes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from app.coordinator.shell import Coordinator, Turn
from app.coordinator.topics import TRANSACTION_STATE
from app.errors import FirnError, StorageUnavailable
from app.faults import Faults
from app.limits import MIB
from app.records.batch import BatchHeader, iter_headers
from app.records.control import ControlType, decision_of, parse_marker
from app.replication.reading import Awaited
from app.transactions.deciding import Doubt, OpenTransaction, Outcome, decide, doubts, outcome_of
from app.transactions.decisions import parse_decision
from app.transactions.markers import MarkerWriter
from app.transactions.shard import TransactionShard
from app.units import PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition

if TYPE_CHECKING:
    from app.hot.log import PartitionLog
    from app.metadata.cluster import ClusterImage
    from app.replication.partition import Partition, PartitionTable
    from app.replication.reading import PartitionReads

RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 5.0
TOLD_FROM_S: Final = 1.0
"""From this pause on it is logged what is waited for: a start takes a moment until everything is led."""
READ_BYTES: Final = 1 * MIB
NAMED_MAX: Final = 10
"""Transactions that log lines name one by one."""


def in_doubt(partition: Partition, shard: TransactionShard, *, alone: bool) -> bool:
    """Whether the log may lack its end, and what that asks for is not done.

    ``alone``: at level 0 no image says so. There an empty log of a partition that was led before has lost what it had, if it had
    anything.
    """
    log = partition.log
    if partition.unclean_epoch > shard.decided_epoch:
        return True
    return alone and log.log_end_offset == 0 and log.leader_epoch > 0


class Recovery:
    """Decides for the shards that a coordinator holds. Keep ``run`` running."""

    def __init__(
        self,
        coordinator: Coordinator[TransactionShard],
        partitions: PartitionTable,
        markers: MarkerWriter,
        reads: PartitionReads,
        image: Callable[[], ClusterImage],
        log_line: Callable[[str], None],
        faults: Faults,
    ) -> None:
        self._coordinator = coordinator
        self._partitions = partitions
        self._markers = markers
        self._reads = reads
        self._image = image
        self._log_line = log_line
        self._faults = faults
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A shard is held, or the image has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Decide until cancelled."""
        pause_s = RETRY_S_MIN
        while True:
            if not self._coordinator.held():
                pause_s = RETRY_S_MIN
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._round()
                pause_s = RETRY_S_MIN
            except FirnError as error:
                if pause_s >= TOLD_FROM_S:
                    name = TRANSACTION_STATE.name
                    self._faults.met(
                        "deciding transactions of",
                        name,
                        f"{name} may have lost its last records. Transactional ids wait until open transactions are decided: {error}",
                    )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _round(self) -> None:
        """Decide for all shards that are held now. Raises: FirnError if something cannot be looked at or written now."""
        held = self._coordinator.held()
        # In this order (J46c): a transaction that begins meanwhile is in none of the lists, or its coordinator knows it.
        looked = self._all_led()
        opened = list(_opened(looked))
        unknown = {one.producer_id for one in opened}
        for shard in self._others(held):
            unknown -= shard.known(unknown)
            await asyncio.sleep(0)
        orphans = [one for one in opened if one.producer_id in unknown]
        if orphans:
            await self._decide(held, looked, orphans)
        for partition, shard in held:
            await self._forget(partition, shard)

    def _all_led(self) -> list[Partition]:
        """Every partition of the cluster. Raises: FirnError if one cannot be looked at now."""
        found = []
        for topic in self._image().topics_by_name.values():
            for one in topic.partitions:
                found.append(self._partitions.require(topic.name, one.partition_index))
        return found

    def _others(self, held: Sequence[tuple[PartitionIndex, TransactionShard]]) -> list[TransactionShard]:
        """The shards that have all their records. Raises: StorageUnavailable if one is not read."""
        topic = self._image().topic(TRANSACTION_STATE.name)
        served = dict(self._coordinator.shards())
        missing = [
            one.partition_index
            for one in (topic.partitions if topic is not None else ())
            if one.partition_index not in served and one.partition_index not in dict(held)
        ]
        if missing:
            raise StorageUnavailable(f"{TRANSACTION_STATE.name}-{missing[0]} is not read yet")
        return list(served.values())

    async def _decide(
        self,
        held: Sequence[tuple[PartitionIndex, TransactionShard]],
        looked: Sequence[Partition],
        orphans: Sequence[OpenTransaction],
    ) -> None:
        """Write the markers that transactions without a coordinator lack, and wait until they are stored. Raises: FirnError."""
        outcomes = [found for _, shard in held for one in shard.busy_now() if (found := outcome_of(one)) is not None]
        for partition in looked:
            outcomes += await self._last_markers(partition, orphans)
        applying = [doubt for doubt in doubts(orphans, outcomes) if not await self._has_marker_since(doubt)]
        epoch = max(self._partitions.require(TRANSACTION_STATE.name, index).log.leader_epoch for index, _ in held)
        decided = decide(orphans, outcomes, applying, epoch)
        waiting: list[Awaitable[None]] = []
        for target, marker in decided:
            stored = self._markers.write(marker, target)
            if stored is not None:
                waiting.append(stored)
        for each in waiting:
            await each
        for target, marker in decided[:NAMED_MAX]:
            what = "committed, as a marker in another partition says" if marker.commit else "aborted: no marker commits it"
            self._log_line(
                f"the transaction of producer {marker.identity.producer_id} in {target} had lost its coordinator's records and is {what}"
            )
        if len(decided) > NAMED_MAX:
            self._log_line(f"{len(decided) - NAMED_MAX} more transactions were decided likewise")

    async def _last_markers(self, partition: Partition, orphans: Iterable[OpenTransaction]) -> list[Outcome]:
        """The last marker of each producer of ``orphans`` that has no transaction open in this partition. Raises: FirnError."""
        epochs: dict[ProducerId, set[int]] = defaultdict(set)
        for one in orphans:
            epochs[one.producer_id].update((one.epoch, one.epoch + 1))
        entries = partition.log.producers.entries
        wanted = {
            producer_id: entry.last_timestamp
            for producer_id, of_open in epochs.items()
            if (entry := entries.get(producer_id)) is not None
            and entry.coordinator_epoch >= 0
            and entry.transaction_first_offset < 0
            and entry.epoch in of_open
        }
        if not wanted:
            return []
        last: dict[ProducerId, Outcome] = {}
        async for found in self._markers_since(partition.log, min(wanted.values())):
            if found.producer_id in wanted:
                last[found.producer_id] = found
        return list(last.values())

    async def _has_marker_since(self, doubt: Doubt) -> bool:
        """Raises: FirnError."""
        one = doubt.open
        log = self._partitions.require(one.target.topic, one.target.partition).log
        async for found in self._markers_since(log, doubt.decided_ms):
            if found.producer_id == one.producer_id and found.decided_ms >= doubt.decided_ms:
                return True  # of this decision or a later one
        return False

    async def _markers_since(self, log: PartitionLog, timestamp_ms: int):  # type: ignore[no-untyped-def]
        """The markers of a partition, in both of its tiers, from the first record that is as new as ``timestamp_ms``."""
        found = await self._reads.offset_for_timestamp(log, TimestampMs(timestamp_ms))
        offset = log.log_end_offset if found is None else max(found[1], log.log_start_offset)
        end = log.log_end_offset
        while offset < end:
            read = await self._reads.read_when_ready(log, offset, READ_BYTES, end_offset=end, committed=False)
            if not read.ranges:
                if not isinstance(read.lacks, Awaited):
                    raise StorageUnavailable(f"{log.topic_partition} cannot be read at offset {offset}")
                ready = asyncio.Event()
                forget = read.lacks.add(ready.set)
                try:
                    await ready.wait()
                finally:
                    forget()
                continue
            next_offset = read.end_offset
            data = memoryview(await self._reads.take(read))
            for position, header in iter_headers(data):
                outcome = _outcome(data, position, header)
                if outcome is not None:
                    yield outcome
            offset = next_offset
            await asyncio.sleep(0)

    async def _forget(self, partition: PartitionIndex, shard: TransactionShard) -> None:
        """Forget all ids of a shard, and let it serve. Raises: RequestRejected."""
        epoch = self._partitions.require(TRANSACTION_STATE.name, partition).log.leader_epoch
        count = shard.id_count

        def event(shard: TransactionShard, turn: Turn) -> None:
            shard.forget_all(turn, epoch)

        stored = self._coordinator.perform_held(partition, shard, event)
        if stored is not None:
            await stored
        if count:
            self._log_line(
                f"{TRANSACTION_STATE.name}-{partition} may have lost its last records: its {count} transactional ids get new producer ids"
            )
        self._coordinator.admit(partition, shard)


def _opened(partitions: Iterable[Partition]) -> Iterator[OpenTransaction]:
    for partition in partitions:
        producers = partition.log.producers
        for producer_id in producers.open_transactions:
            entry = producers.entries[producer_id]
            target = TopicPartition(partition.topic, partition.index)
            yield OpenTransaction(target, ProducerId(producer_id), ProducerEpoch(entry.epoch), entry.coordinator_epoch)


def _outcome(data: memoryview, position: int, header: BatchHeader) -> Outcome | None:
    if not header.is_control:
        return None
    marker = parse_marker(data[position : position + header.size_bytes])
    if marker is None:
        return None
    commit = marker.control_type is ControlType.COMMIT
    decision = parse_decision(decision_of(data[position : position + header.size_bytes]))
    if decision is None:
        return Outcome(marker.producer_id, marker.producer_epoch, commit)
    return Outcome(marker.producer_id, marker.producer_epoch, commit, *decision)
