"""Ending transactions that are decided::

    Prepare record → a marker in every partition → Complete record

Each is stored before the next begins. Whoever asked is answered after the first: the rest happens whatever becomes of it, or of
this broker, whose successor finds the Prepare record. Where nothing has to wait for a disk all three happen in one go.
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
"""Pauses between attempts while a partition cannot take its marker."""

TOLD_FROM_S: Final = 1.0
"""The pause from which on it is told that a marker cannot be written: a log that is just being made takes it soon."""

NOTHING_TO_END: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Refusals of a marker that are final: the topic was deleted, or a newer producer has written there, so that nothing is open."""


class _Ending(NamedTuple):
    partition: PartitionIndex
    """Of ``__transaction_state``."""
    transaction: Transaction
    """Prepared, and the newest of its id for as long as this goes on."""


class Endings:
    """The transactions that are decided and not complete, of all shards of a coordinator."""

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
        """By transactional id: those that no task has taken up yet."""
        self._settled: dict[str, asyncio.Future[None]] = {}
        """By transactional id: done when its transaction is complete, or is not ours to complete any more."""
        self._wake = asyncio.Event()

    def note(self, partition: PartitionIndex, transaction: Transaction) -> None:
        """A transaction was decided; its record may not be stored yet."""
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
        """End a transaction whose Prepare record is stored, if nothing has to wait. Otherwise ``run`` does it."""
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
        """End what is noted, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._begun:
                    _, ending = self._begun.popitem()
                    tasks.create_task(self._end(ending))

    async def _end(self, ending: _Ending) -> None:
        """End a transaction as often as it takes, while this broker coordinates it."""
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
        """Whether it is still to be ended, by us. Raises: RequestRejected as ``Coordinator.look``."""
        transactional_id = ending.transaction.transactional_id
        return self._coordinator.look(ending.partition, lambda shard: shard.get(transactional_id)) is ending.transaction

    def _write_markers(
        self, ending: _Ending, targets: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, Awaitable[None]], dict[TopicPartition, FirnError]]:
        """Write a marker to each of ``targets``. Answers those that wait for the disk, and those that cannot take one now."""
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
    """An event that only waits for what was written before."""


async def _failed(waiting: dict[TopicPartition, Awaitable[None]]) -> dict[TopicPartition, FirnError]:
    """Wait for markers to be stored; those that were not, and why."""
    failed = {}
    for target, stored in waiting.items():
        try:
            await stored
        except FirnError as error:
            failed[target] = without_frames(error)
    return failed
