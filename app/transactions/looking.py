"""This broker's facts about transactions: the open ones in its partitions, and traces of how others ended (ADR 0037, J46).

A coordinator whose log may lack its end asks this of all brokers, its own included. ``recovery.py`` asks, and ``deciding.py``
decides.

Tests: ``tests/transactions/test_former_coordinators.py``, ``tests/broker/test_lost_transactions.py``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from app.coordinator.shell import Coordinator
from app.coordinator.topics import TRANSACTION_STATE
from app.core.errors import StorageUnavailable
from app.core.limits import MIB
from app.core.turns import Portion
from app.core.units import PartitionIndex, ProducerId, TimestampMs
from app.metadata.peers.control import LookRequest, LookResponse
from app.records.batch import BatchHeader, iter_headers
from app.records.control import ControlType, decision_of, parse_marker
from app.replication.reading import Awaited
from app.transactions.deciding import Outcome, outcome_of
from app.transactions.decisions import parse_decision
from app.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from app.hot.log import PartitionLog
    from app.replication.partition import Partition, PartitionTable
    from app.replication.reading import PartitionReads

ASKED_MAX: Final = 20_000
"""Producers, or doubts, of one question."""
READ_BYTES: Final = 1 * MIB
STORED_WITHIN_S: Final = 10.0
"""How long a look waits for markers that are being stored."""


class Looker:
    """Belongs to the broker's loop."""

    def __init__(
        self, coordinator: Coordinator[TransactionShard], partitions: PartitionTable, reads: PartitionReads
    ) -> None:
        self._coordinator = coordinator
        self._partitions = partitions
        self._reads = reads

    async def answer(self, asked: LookRequest) -> LookResponse:
        """The facts that a request asks for, from the partitions that this broker leads now. Raises: FirnError if a partition
        cannot be read now."""
        led = self._partitions.all_led()
        leaderships = [one.leadership for one in led]
        for one in led:
            if one.log.producers.undecided:
                await self._wait_stored(one)
        portion = Portion()
        opened = []
        outcomes: list[Outcome] = []
        known: set[ProducerId] = set()
        if asked.producers:
            epochs: dict[ProducerId, set[int]] = defaultdict(set)
            for producer_id, epoch in asked.producers[:ASKED_MAX]:
                epochs[ProducerId(producer_id)].update((epoch, epoch + 1))
            for _, shard in self._coordinator.shards():
                known |= shard.known(epochs)
                await asyncio.sleep(0)
            for _, shard in self._coordinator.held():
                found = [one for one in map(outcome_of, shard.busy_now()) if one is not None]
                outcomes += [one for one in found if one.producer_id in epochs]
            for partition in led:
                outcomes += await self._last_markers(partition.log, epochs)
                await portion.rest_if_spent()
        elif not asked.doubts:
            for partition in led:
                # A coordinator's answer from before the loss must not begin a transaction in this partition now (XV2).
                partition.log.producers.spend_all()
                opened += list(_opened(partition))
                await portion.rest_if_spent()
        by_place = {(one.topic, one.index): one.log for one in led}
        marked = []
        for topic, index, producer_id, decided_ms in asked.doubts[:ASKED_MAX]:
            log = by_place.get((topic, PartitionIndex(index)))
            if log is not None and await self._has_marker_since(log, producer_id, decided_ms):
                marked.append((topic, index, producer_id, decided_ms))
            await portion.rest_if_spent()
        read = {index for index, _ in (*self._coordinator.shards(), *self._coordinator.held())}
        return LookResponse(
            led=tuple(
                (one.topic, int(one.index), int(one.log.leader_epoch))
                for one, leadership in zip(led, leaderships, strict=True)
                # Facts from a leadership that has ended meanwhile do not count.
                if one.leads
                and one.leadership == leadership
                and (one.topic != TRANSACTION_STATE.name or one.index in read)
            ),
            opened=tuple(opened),
            known=tuple(known),
            outcomes=tuple(
                (one.producer_id, one.epoch, one.commit, one.decided_ms, tuple((*each,) for each in one.partitions))
                for one in outcomes
            ),
            marked=tuple(marked),
        )

    async def _wait_stored(self, partition: Partition) -> None:
        """Wait until the markers that the partition has are committed. Raises: FirnError."""
        log = partition.log
        stored = partition.wait_stored_as_leader(log.log_end_offset)
        if stored is None:
            return
        try:
            async with asyncio.timeout(STORED_WITHIN_S):
                await stored
        except TimeoutError:
            raise StorageUnavailable(f"The last markers of {log.topic_partition} are not stored yet.") from None

    async def _last_markers(self, log: PartitionLog, epochs: dict[ProducerId, set[int]]) -> list[Outcome]:
        """The last marker of each producer that has no transaction open in this partition, if it may be of one that is open in
        another: of the transaction's epoch or the next. Raises: FirnError."""
        entries = log.producers.entries
        # Most partitions know few of thousands of producers, so the smaller side is gone through.
        wanted: dict[ProducerId, int] = {}
        for producer_id in entries if len(entries) < len(epochs) else epochs:
            entry, of_open = entries.get(producer_id), epochs.get(ProducerId(producer_id))
            if (
                entry is not None
                and of_open is not None
                and entry.coordinator_epoch >= 0
                and entry.transaction_first_offset < 0
                and entry.epoch in of_open
            ):
                wanted[ProducerId(producer_id)] = entry.last_timestamp
        if not wanted:
            return []
        last: dict[ProducerId, Outcome] = {}
        async with aclosing(self._markers_since(log, min(wanted.values()))) as markers:
            async for found in markers:
                if found.producer_id in wanted:
                    last[found.producer_id] = found
        return list(last.values())

    async def _has_marker_since(self, log: PartitionLog, producer_id: int, decided_ms: int) -> bool:
        """Whether the partition has a marker of that decision or a later one. Raises: FirnError."""
        async with aclosing(self._markers_since(log, decided_ms)) as markers:
            async for found in markers:
                if found.producer_id == producer_id and found.decided_ms >= decided_ms:
                    return True
        return False

    async def _markers_since(self, log: PartitionLog, timestamp_ms: int) -> AsyncGenerator[Outcome, None]:
        """The markers of a partition, in both of its tiers, from the first record on that is as new as ``timestamp_ms``. All
        markers with that timestamp or a later one are among them. Raises: FirnError."""
        found = await self._reads.offset_for_timestamp(log, TimestampMs(timestamp_ms))
        end = log.log_end_offset
        offset: int = end if found is None else max(found[1], log.log_start_offset)
        while offset < end:
            read = await self._reads.read_when_ready(log, offset, READ_BYTES, end_offset=end, committed=False)
            if not read.ranges:
                if not isinstance(read.lacks, Awaited):
                    raise StorageUnavailable(f"{log.topic_partition} cannot be read at offset {offset}.")
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


def _opened(partition: Partition) -> Iterator[tuple[str, int, int, int, int]]:
    producers = partition.log.producers
    for producer_id in producers.open_transactions:
        entry = producers.entries[producer_id]
        yield partition.topic, int(partition.index), producer_id, entry.epoch, entry.coordinator_epoch


def _outcome(data: memoryview, position: int, header: BatchHeader) -> Outcome | None:
    if not header.is_control:
        return None
    batch = data[position : position + header.size_bytes]
    marker = parse_marker(batch)
    if marker is None:
        return None
    commit = marker.control_type is ControlType.COMMIT
    decision = parse_decision(decision_of(batch))
    if decision is None:
        return Outcome(marker.producer_id, marker.producer_epoch, commit)
    return Outcome(marker.producer_id, marker.producer_epoch, commit, *decision)
