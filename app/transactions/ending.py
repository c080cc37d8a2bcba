"""Ends decided transactions::

    Prepare record → a marker in every partition → Complete record

Each step is stored before the next one begins. The client gets its response after the first step. The other steps follow even
if the client or this broker dies: the next coordinator finds the Prepare record. If no step has to wait for a disk, all three
happen at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from app.coordinator.shell import Coordinator, Turn
from app.coordinator.topics import TRANSACTION_STATE
from app.errors import ErrorCode, FirnError, RequestRejected, kafka_code, without_frames
from app.faults import Faults, Limited
from app.transactions.markers import Marker, MarkerWriter
from app.transactions.shard import TransactionShard
from app.transactions.state import ProducerIdentity, Transaction
from app.units import PartitionIndex, TopicPartition

if TYPE_CHECKING:
    from app.replication.partition import PartitionTable

RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 10.0
"""Pauses between attempts to write a marker to a partition that refuses it."""

TOLD_FROM_S: Final = 1.0
"""From this pause on the failure is logged. A log that is just being created accepts the marker earlier."""

NOTHING_TO_END: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Final refusals of a marker: the topic was deleted, or a newer producer has written there, so the transaction is not open."""


class _Ending(NamedTuple):
    partition: PartitionIndex
    """Partition of ``__transaction_state``."""
    transaction: Transaction
    """The prepared transaction. It must stay the newest of its id until it ends."""


class Endings:
    """All decided, incomplete transactions of a coordinator's shards."""

    def __init__(
        self,
        coordinator: Coordinator[TransactionShard],
        partitions: PartitionTable,
        markers: MarkerWriter,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._partitions = partitions
        self._markers = markers
        self._log_line = Limited(log_line)
        self._faults = faults if faults is not None else Faults(log_line)
        self._begun: dict[str, _Ending] = {}
        """By transactional id: transactions that no task has begun to end."""
        self._settled: dict[str, asyncio.Future[None]] = {}
        """By transactional id: done when the transaction is complete, or when this broker no longer coordinates it."""
        self._wake = asyncio.Event()

    def note(self, partition: PartitionIndex, transaction: Transaction) -> None:
        """Note a decided transaction. Its record may not be stored yet."""
        transactional_id = transaction.transactional_id
        self._begun[transactional_id] = _Ending(partition, transaction)
        if transactional_id not in self._settled:
            self._settled[transactional_id] = asyncio.get_running_loop().create_future()
        self._wake.set()

    async def wait_settled(self, transactional_id: str, timeout_s: float) -> None:
        """Wait until the decided transaction of an id is complete, or the time is up."""
        settled = self._settled.get(transactional_id)
        if settled is not None:
            await asyncio.wait([settled], timeout=timeout_s)

    def try_now(self, transaction: Transaction) -> None:
        """End a transaction whose Prepare record is stored, if no step has to wait. Otherwise ``run`` ends it."""
        ending = self._begun.get(transaction.transactional_id)
        if ending is None or ending.transaction is not transaction:
            return
        if not all(self._markers.stores_at_once(target) for target in transaction.partitions):
            return
        waiting, refused = self._write_markers(ending, transaction.partitions)
        assert not waiting
        if not refused and self._complete(ending) is True:
            del self._begun[transaction.transactional_id]
            self._settle(transaction)

    async def run(self) -> None:
        """End the noted transactions, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._begun:
                    _, ending = self._begun.popitem()
                    tasks.create_task(self._end(ending))

    async def _end(self, ending: _Ending) -> None:
        """End a transaction, with retries, while this broker coordinates it."""
        left: Collection[TopicPartition] = ending.transaction.partitions
        pause_s = RETRY_S_MIN
        try:
            stored = self._coordinator.perform(ending.partition, _nothing)
            if stored is not None:
                await stored
            while self._is_current(ending):
                waiting, refused = self._write_markers(ending, left)
                not_written = refused | await _failed(waiting)
                left = not_written.keys()
                if pause_s >= TOLD_FROM_S:
                    self._tell(ending.transaction, not_written)
                if not left:
                    completed = self._complete(ending)
                    if completed if isinstance(completed, bool) else await completed:
                        return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
        except RequestRejected:
            return  # not coordinated here any more, or read again: whoever loads it finds the Prepare record
        finally:
            self._settle(ending.transaction)

    def _tell(self, transaction: Transaction, not_written: Mapping[TopicPartition, FirnError]) -> None:
        """Consumers at read_committed and the transaction's producer wait for each of these markers."""
        for target, error in not_written.items():
            sentence = (
                f"transaction {transaction.transactional_id} cannot be ended in {target}, will try again: {error}"
            )
            self._faults.met("ending transactions in", str(target), sentence)

    def _is_current(self, ending: _Ending) -> bool:
        """Whether this broker must still end the transaction. Raises: RequestRejected as ``Coordinator.look``."""
        transactional_id = ending.transaction.transactional_id
        return self._coordinator.look(ending.partition, lambda shard: shard.get(transactional_id)) is ending.transaction

    def _write_markers(
        self, ending: _Ending, targets: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, Awaitable[None]], dict[TopicPartition, FirnError]]:
        """Write a marker to each of ``targets``. Returns: the markers that wait for the disk, and the targets that refuse one
        now."""
        transaction = ending.transaction
        log = self._partitions.led_log(TRANSACTION_STATE.name, ending.partition)
        marker = Marker(
            ProducerIdentity(transaction.producer_id, transaction.epoch),
            transaction.commits,
            -1 if log is None else log.leader_epoch,
            transaction.client_version,
        )
        waiting: dict[TopicPartition, Awaitable[None]] = {}
        refused: dict[TopicPartition, FirnError] = {}
        for target in sorted(targets):  # the same run after run, whatever a set makes of it
            try:
                stored = self._markers.write(marker, target)
            except FirnError as error:
                if kafka_code(error) in NOTHING_TO_END:
                    self._log_line(f"{target} takes no marker of {transaction.transactional_id}: {error}")
                else:
                    refused[target] = without_frames(error)
            else:
                if stored is not None:
                    waiting[target] = stored
        return waiting, refused

    def _complete(self, ending: _Ending) -> bool | Awaitable[bool]:
        """Write the Complete record; False if it cannot be written now. Raises: RequestRejected as ``Coordinator.perform``."""

        def event(shard: TransactionShard, turn: Turn) -> bool:
            try:
                shard.complete(turn, ending.transaction)
            except RequestRejected:
                return False
            return True

        return self._coordinator.perform(ending.partition, event)

    def _settle(self, transaction: Transaction) -> None:
        settled = self._settled.pop(transaction.transactional_id, None)
        if settled is not None:
            settled.set_result(None)


def _nothing(shard: TransactionShard, turn: Turn) -> None:
    """An event that only waits until earlier records are stored."""


async def _failed(waiting: dict[TopicPartition, Awaitable[None]]) -> dict[TopicPartition, FirnError]:
    """Wait until markers are stored. Returns: the failed ones, with the reasons."""
    failed = {}
    for target, stored in waiting.items():
        try:
            await stored
        except FirnError as error:
            failed[target] = without_frames(error)
    return failed
