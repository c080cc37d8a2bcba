"""Ends decided transactions::

    Prepare record → a marker in every partition → Complete record

Each step is stored before the next one begins. The client gets its response after the first step. The other steps follow even
if the client or this broker dies: the next coordinator finds the Prepare record. If no step has to wait for a disk, and all markers
fit in one portion (INV-15), all three happen at once. Partitions that another broker leads get their marker from there (ADR 0026,
X).

Tests: ``tests/transactions/test_coordinator.py``, ``tests/transactions/test_model.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.coordinator.shell import Coordinator, Turn
from app.coordinator.topics import TRANSACTION_STATE
from app.core.errors import ErrorCode, FirnError, NotLeader, RequestRejected, kafka_code, without_frames
from app.core.faults import Faults, Limited
from app.core.log_events import Event
from app.core.turns import Portion, ordered
from app.core.units import PartitionIndex, TopicId, TopicPartition
from app.core.wake import Wake
from app.transactions.decisions import Decision, encode_decision
from app.transactions.link import MarkerAsked
from app.transactions.markers import Marker, MarkerWriter
from app.transactions.outbox import Outbox
from app.transactions.shard import TransactionShard
from app.transactions.state import VERSION_2, ProducerIdentity, Transaction

if TYPE_CHECKING:
    from app.metadata.image.image import ClusterImage, PartitionImage
    from app.replication.partition import PartitionTable

RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 10.0
"""Pauses between attempts to write a marker to a partition that refuses it."""

TOLD_FROM_S: Final = 1.0
"""From this pause on the failure is logged. A log that is just being created accepts the marker earlier."""

TOLD_MAX: Final = 100
"""Partitions of one transaction that are told at a time."""

AT_ONCE_MAX: Final = 1_000
"""A transaction of more partitions is never ended before its response."""

NOTHING_TO_END: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Final refusals of a marker: the topic was deleted, or a newer producer has written there, so the transaction is not open."""

MarkerOutbox = Outbox[MarkerAsked, ErrorCode]


class Others(NamedTuple):
    """Markers for partitions that other brokers lead."""

    broker_id: int
    image: Callable[[], ClusterImage]
    markers: MarkerOutbox


class _Ending:
    """A decided transaction, until it ends."""

    __slots__ = ("left", "partition", "transaction")

    def __init__(self, partition: PartitionIndex, transaction: Transaction) -> None:
        self.partition = partition
        """Partition of ``__transaction_state``."""
        self.transaction = transaction
        """The prepared transaction. It must stay the newest of its id until it ends."""
        self.left: Collection[TopicPartition] = transaction.partitions
        """Its partitions without a marker."""


class _Written:
    """Markers that were written together, one portion after the other."""

    __slots__ = ("begun", "refused", "targets", "waiting")

    def __init__(self, targets: Sequence[TopicPartition]) -> None:
        self.targets = targets
        self.begun = 0
        """The first so many of ``targets`` were written to, or have refused."""
        self.waiting: dict[TopicPartition, Awaitable[None]] = {}
        """Markers that wait for a disk or another broker."""
        self.refused: dict[TopicPartition, FirnError] = {}
        """Targets that refuse a marker now."""

    @property
    def left(self) -> Sequence[TopicPartition]:
        return self.targets[self.begun :]


class Endings:
    """All decided, incomplete transactions of a coordinator's shards."""

    def __init__(
        self,
        coordinator: Coordinator[TransactionShard],
        partitions: PartitionTable,
        markers: MarkerWriter,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
        others: Others | None = None,
    ) -> None:
        """``others`` is None on a broker that is alone."""
        self._others = others
        self._image_changes = Wake()
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

    def follow(self) -> None:
        """The image of the cluster has changed."""
        self._image_changes.wake()

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
        if len(transaction.partitions) > AT_ONCE_MAX or not all(
            self._markers.stores_at_once(target) for target in transaction.partitions
        ):
            return
        written = _Written(sorted(ending.left))
        self._write_markers(ending, written, Portion())
        ending.left = [*written.left, *written.waiting, *written.refused]
        if not ending.left and self._complete(ending) is True:
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
        left = ending.left
        pause_s = RETRY_S_MIN
        try:
            stored = self._coordinator.perform(ending.partition, _nothing)
            if stored is not None:
                await stored
            while self._is_current(ending):
                not_written = await self._write_all_markers(ending, left)
                left = not_written.keys()
                if pause_s >= TOLD_FROM_S:
                    self._tell(ending.transaction, not_written)
                if not left:
                    completed = self._complete(ending)
                    if completed if isinstance(completed, bool) else await completed:
                        return
                moved = await self._pause(pause_s, left)
                pause_s = RETRY_S_MIN if moved else min(2 * pause_s, RETRY_S_MAX)
        except RequestRejected:
            return  # not coordinated here any more, or loaded again: the next load finds the Prepare record
        finally:
            self._settle(ending.transaction)

    async def _pause(self, pause_s: float, left: Collection[TopicPartition]) -> bool:
        """Wait before the next attempt. Returns: whether another broker leads one of the partitions ``left`` meanwhile."""
        if self._others is None:
            await asyncio.sleep(pause_s)
            return False
        before = self._leaders(left)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while self._leaders(left) == before:
                    await self._image_changes.wait()
                return True
        return False

    def _leaders(self, targets: Collection[TopicPartition]) -> list[tuple[TopicId, int, int] | None]:
        """Of the first of many targets: the others are tried again with them, or after the pause."""
        return [
            None if found is None else (found[0], found[1].leader, found[1].leader_epoch)
            for found in map(self._place, islice(targets, AT_ONCE_MAX))
        ]

    def _place(self, target: TopicPartition) -> tuple[TopicId, PartitionImage] | None:
        """The partition in the image, with its topic's id; None if there is none."""
        assert self._others is not None
        topic = self._others.image().topic(target.topic)
        if topic is None or target.partition >= len(topic.partitions):
            return None
        return topic.topic_id, topic.partitions[target.partition]

    def _tell(self, transaction: Transaction, not_written: Mapping[TopicPartition, FirnError]) -> None:
        """Consumers at read_committed and the transaction's producer wait for each of these markers."""
        for target, error in islice(not_written.items(), TOLD_MAX):
            sentence = (
                f"transaction {transaction.transactional_id} cannot be ended in {target}, will try again: {error}"
            )
            self._faults.met("ending transactions in", str(target), sentence)

    def _is_current(self, ending: _Ending) -> bool:
        """Whether this broker must still end the transaction. Raises: RequestRejected as ``Coordinator.look``."""
        transactional_id = ending.transaction.transactional_id
        return self._coordinator.look(ending.partition, lambda shard: shard.get(transactional_id)) is ending.transaction

    async def _write_all_markers(
        self, ending: _Ending, targets: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, FirnError]:
        """Write a marker to each of ``targets``, in portions, and wait until they are stored. Returns: the failed ones, with the
        reasons.

        Each partition has its marker at another moment, as with several brokers: the Prepare record alone says how all of them
        end. Raises: RequestRejected if the partition of ``__transaction_state`` is not led here any more.
        """
        portion = Portion()
        written = _Written(await ordered(targets, portion, key=_itself))
        while True:
            try:
                current = self._is_current(ending)
            except RequestRejected:
                current = False
            if not current:
                # The caller checks again after the markers that were begun are stored.
                error = RequestRejected(ErrorCode.NOT_COORDINATOR, "Another broker ends the transaction.")
                written.refused.update(dict.fromkeys(written.left, error))
                break
            self._write_markers(ending, written, portion)
            if not written.left:
                break
            await portion.rest()
        return written.refused | await _failed(written.waiting, portion)

    def _write_markers(self, ending: _Ending, written: _Written, portion: Portion) -> None:
        """Write markers to the targets that are left, until the portion is spent.

        Raises: RequestRejected if the partition of ``__transaction_state`` is not led here any more.
        """
        transaction = ending.transaction
        coordinated = self._partitions.require(TRANSACTION_STATE.name, ending.partition)
        marker = Marker(
            ProducerIdentity(transaction.producer_id, transaction.epoch),
            transaction.commits,
            coordinated.log.leader_epoch,
            transaction.client_version,
            # A coordinator's log in the bucket does not lose its end, so no recovery will need the decision.
            b"" if coordinated.log.journaled else _decision(transaction),
            ending.partition,
            coordinated.log.leader_epoch,
        )
        for target in written.left:  # sorted: a set has another order in each run
            written.begun += 1
            try:
                stored = self._send(marker, target) or self._markers.write(marker, target)
            except FirnError as error:
                if kafka_code(error) in NOTHING_TO_END:
                    self._log_line(
                        Event.TRANSACTION_FAILED.line(
                            f"{target} takes no marker of {transaction.transactional_id}: {error}"
                        )
                    )
                    stored = self._markers.refusal_stored(target)
                    if stored is not None:
                        written.waiting[target] = stored
                else:
                    written.refused[target] = without_frames(error)
            else:
                if stored is not None:
                    written.waiting[target] = stored
            if portion.spent():
                break

    def _send(self, marker: Marker, target: TopicPartition) -> Awaitable[None] | None:
        """Send a marker to the broker that leads ``target``. None if that is this one, or there is no such partition.

        Raises: NotLeader if it has no leader; RequestRejected.
        """
        others = self._others
        place = None if others is None else self._place(target)
        if others is None or place is None:
            return None
        topic_id, partition = place
        if partition.leader == others.broker_id:
            return None
        if partition.leader < 0:
            raise NotLeader(f"Nobody leads {target}.", partition.leader, partition.leader_epoch)
        answer = others.markers.put(partition.leader, MarkerAsked(marker, topic_id, target))
        return MarkerAnswer(target, answer, self._log_line)

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


def _decision(transaction: Transaction) -> bytes:
    """The header of its markers, if another partition may have to tell by it that the transaction was committed."""
    if transaction.client_version >= VERSION_2 or not transaction.commits or len(transaction.partitions) < 2:
        return b""
    return encode_decision(Decision(transaction.updated_ms, transaction.partitions))


class MarkerAnswer(Awaitable[None]):
    """That the leader of a partition has a marker, or that a newer producer has written there (X4).

    Raises: FirnError if the marker is to be sent again.
    """

    __slots__ = ("_answer", "_log_line", "_target")

    def __init__(self, target: TopicPartition, answer: Awaitable[ErrorCode], log_line: Callable[[str], None]) -> None:
        self._target = target
        self._answer = answer
        self._log_line = log_line

    def __await__(self) -> Generator[Any, None, None]:
        code = yield from self._answer.__await__()
        if code is ErrorCode.INVALID_PRODUCER_EPOCH:
            self._log_line(
                Event.TRANSACTION_DECIDED.line(f"{self._target} takes no marker: a newer producer has written there")
            )
        elif code is not ErrorCode.NONE:
            raise RequestRejected(code, f"The leader of {self._target} answered {code.name}.")


def _nothing(shard: TransactionShard, turn: Turn) -> None:
    """An event that only waits until earlier records are stored."""


async def _failed(
    waiting: Mapping[TopicPartition, Awaitable[None]], portion: Portion
) -> dict[TopicPartition, FirnError]:
    """Wait until markers are stored. Returns: the failed ones, with the reasons."""
    failed = {}
    for target, stored in waiting.items():
        try:
            await stored
        except FirnError as error:
            failed[target] = without_frames(error)
        if portion.spent_by():
            await portion.rest()
    return failed


def _itself(target: TopicPartition) -> TopicPartition:
    return target
