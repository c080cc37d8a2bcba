"""Transactions in the simulation: producers that begin, commit, abort, vanish and come again, and readers of what is committed.

What is checked, by every reader at read_committed and in the end:

- **Hidden**: nothing of a transaction is seen that nobody has asked to commit, and nothing at or past the last stable offset.
- **All or nothing**: of a transaction that was committed, all is seen that was acknowledged; of any other, all or nothing.
- **Fenced**: whoever was overtaken by another producer of its transactional id writes nothing any more.
- **Ended**: a transaction does not stay open past its time-out: the last stable offset gets to the high watermark.

A take-over by a machine without the records loses what was not tiered, so a transaction of before may be torn there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING
from uuid import UUID

from app.core.errors import ErrorCode
from app.core.units import ProducerEpoch, ProducerId
from app.records.batch import BatchHeader
from app.records.builder import build_batch
from app.records.control import ControlType, parse_marker
from app.wire.apikeys import ApiKey
from app.wire.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from app.wire.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from app.wire.apis.end_txn import EndTxnRequest, EndTxnResponse
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from app.wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.simulation.actors import EXPECTED, LOST_PRODUCER, Actor, Consumer
from tests.simulation.checkers import CRC_POSITION, served_batches
from tests.simulation.groups import COORDINATOR_TROUBLE, Commit, Place
from tests.simulation.history import Batch, PartitionHistory

if TYPE_CHECKING:
    from tests.simulation.world import World

TIMEOUT_MS = 1500
GROUP_ID = "of transactions"
"""In which offsets are committed by transactions only."""
READ_COMMITTED = 1
TRANSACTION_EXPECTED = (
    EXPECTED
    | COORDINATOR_TROUBLE
    | LOST_PRODUCER
    | {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
AGAIN = COORDINATOR_TROUBLE | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT}
"""On these the same may be asked again."""


class Fate(Enum):
    """What is known of a transaction's end."""

    OPEN = "nobody has asked to commit it"
    ASKED = "somebody has asked to commit it"
    COMMITTED = "said to be committed"
    ABORTED = "said to be aborted"


@dataclass(slots=True, eq=False)
class Transaction:
    number: int
    fate: Fate = Fate.OPEN
    batches: list[tuple[PartitionHistory, Batch]] = field(default_factory=list)
    offsets: list[tuple[Place, Commit]] = field(default_factory=list)
    unsure: list[Commit] = field(default_factory=list)
    """Offsets that it may have."""
    torn: bool = False
    """Some of it may be lost in a way that is allowed."""


class Transactions:
    """INV-9: see the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_batch: dict[Batch, Transaction] = {}
        self._all: list[Transaction] = []
        self._newest: dict[str, tuple[int, int, float]] = {}
        """Producer id and epoch that a transactional id was last given, and when."""
        self.losses = 0

    def lost(self) -> None:
        """Logs may have lost their ends."""
        self.losses += 1
        self._newest.clear()
        for transaction in self._all:
            transaction.torn = True

    def begun(self) -> Transaction:
        transaction = Transaction(self._world.next_number())
        self._all.append(transaction)
        return transaction

    def sent(self, transaction: Transaction, history: PartitionHistory, batch: Batch) -> None:
        transaction.batches.append((history, batch))
        self._by_batch[batch] = transaction

    # --- fencing ----------------------------------------------------------------------------------------------------

    def identified(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """A producer was told who it is: those before it are fenced."""
        self._newest[transactional_id] = (producer_id, epoch, self._world.loop.time())

    def newest_of(self, transactional_id: str) -> tuple[int, int, float] | None:
        """Who was last told to be the producer of a transactional id, and when."""
        return self._newest.get(transactional_id)

    def wrote(self, transactional_id: str, producer_id: int, epoch: int, sent_s: float) -> None:
        """A batch sent at ``sent_s`` was acknowledged. Raises: Violation if its producer was fenced before."""
        newest_id, newest_epoch, since_s = self._newest.get(transactional_id, (producer_id, epoch, 0.0))
        older = producer_id != newest_id or epoch < newest_epoch
        if older and since_s < sent_s:
            raise Violation(
                "INV-9",
                f"{transactional_id}: producer {producer_id} of epoch {epoch} wrote after {newest_id} of {newest_epoch} came",
            )

    # --- reading ----------------------------------------------------------------------------------------------------

    def seen(self, history: PartitionHistory, offset: int, batch: Batch) -> None:
        """A reader at read_committed has got a batch. Raises: Violation."""
        transaction = self._by_batch.get(batch)
        if transaction is not None and transaction.fate in (Fate.OPEN, Fate.ABORTED):
            raise Violation(
                "INV-9",
                f"{history.name}: batch {batch.number} at {offset} is seen, and of its transaction is known: "
                f"{transaction.fate.value}",
            )

    def whole(self, seen: set[tuple[UUID, int, int]]) -> None:
        """All partitions were read: (topic id, partition, number) of each batch that is seen. Raises: Violation."""
        for transaction in self._all:
            if transaction.torn:
                continue
            there, missing = [], []
            for history, batch in transaction.batches:
                bound = history.bound.get(history.places.get(batch.number, -1))
                if history.deleting or history.expires or bound is None or bound.base < history.log_start_asked:
                    continue
                known = (history.topic_id, history.index, batch.number) in seen
                if known or batch.acked:
                    (there if known else missing).append(f"batch {batch.number} at {bound.base} of {history.name}")
            if missing and (there or transaction.fate is Fate.COMMITTED):
                raise Violation(
                    "INV-9",
                    f"of transaction {transaction.number} ({transaction.fate.value}) {missing[0]} is not seen, "
                    f"and {there[0] if there else 'nothing'} is",
                )


class TransactionalProducer(Actor):
    """One instance of an application; others may have its transactional id."""

    def __init__(self, world: World, name: str, transactional_id: str, *, second_protocol: bool) -> None:
        super().__init__(world, name)
        self.transactional_id = transactional_id
        self.second = second_protocol
        self.timeout_ms = TIMEOUT_MS
        self.group_id = GROUP_ID
        self.pause_s = world.rng.choice((0.02, 0.08))
        self._producer_id = self._epoch = -1
        self._sequences: dict[tuple[UUID, int], tuple[int, int]] = {}
        """Next sequence and stream of each partition."""
        self._transaction: Transaction | None = None
        self._added: set[tuple[UUID, int]] = set()
        self._commits: bool | None = None
        """How the transaction is being ended, once that was asked for."""
        self.last_code = ErrorCode.NONE

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * self.pause_s)
            if not self.world.producing:
                continue
            try:
                await self._turn()
            except Unreachable:
                if self.rng.random() < 0.5:
                    self._forget()

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction was begun here and has not ended, as far as this producer knows."""
        return self._producer_id >= 0 and self._transaction is not None

    def _forget(self) -> None:
        """Begin anew, as an application that was started again."""
        self._producer_id = -1
        self._transaction, self._commits = None, None

    def _told(self, what: str, code: int, *, of_ours: bool = True) -> ErrorCode:
        """An answer's code, if it may be. Raises: Violation."""
        self.world.trace("txn", self.name, what, self._producer_id, self._epoch, ErrorCode(code).name)
        self.world.expect(code, TRANSACTION_EXPECTED, f"{what} of {self.transactional_id}")
        self.last_code = ErrorCode(code)
        if of_ours and ErrorCode(code) is not ErrorCode.NONE and ErrorCode(code) not in AGAIN:
            self._forget()
        return ErrorCode(code)

    async def _turn(self) -> None:
        if self._producer_id < 0:
            await self.identify()
        elif self._commits is not None:
            await self.end()
        elif self._transaction is None:
            self.begin()
        else:
            dice = self.rng.random()
            if dice < 0.6:
                await self.produce()
            elif dice < 0.68:
                await self._commit_offset()
            elif dice < 0.95:
                # Clients do not end what they have not begun.
                if self._transaction.batches or self._transaction.offsets:
                    self._commits = self.rng.random() < 0.7
            elif dice < 0.98:
                await asyncio.sleep(self.rng.uniform(0.5, 1.5) * TIMEOUT_MS / 1000)
            else:
                self._forget()

    async def identify(self) -> None:
        for kind, key in ((1, self.transactional_id), (0, self.group_id)):
            found = await self.ask(
                ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            )
            if self._told("FindCoordinator", found.coordinators[0].error_code) is not ErrorCode.NONE:
                return
        request = InitProducerIdRequest(self.transactional_id, self.timeout_ms)
        answer: InitProducerIdResponse = await self.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
        if self._told("InitProducerId", answer.error_code) is not ErrorCode.NONE:
            return
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        if self.sure():
            self.world.transactions.identified(self.transactional_id, self._producer_id, self._epoch)

    # --- within a transaction ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._transaction = self.world.transactions.begun()
        self._added.clear()

    async def add(self, history: PartitionHistory) -> bool:
        """Add a partition as the first protocol does; whether it is added. Raises: Unreachable, Violation."""
        place = (history.topic_id, history.index)
        if place not in self._added:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self._producer_id,
                v3_and_below_producer_epoch=self._epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(history.topic, [history.index])],
            )
            added = await self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
            result = added.results_by_topic_v3_and_below[0].results_by_partition[0]
            if self._told("AddPartitionsToTxn", result.partition_error_code) is not ErrorCode.NONE:
                return False
            self._added.add(place)
        return True

    async def produce(self, history: PartitionHistory | None = None) -> None:
        """Write to a partition, any if none is named. Raises: Unreachable, Violation."""
        world, transaction = self.world, self._transaction
        assert transaction is not None
        if history is None:
            history = self.rng.choice(self.partitions())
        place = (history.topic_id, history.index)
        if not self.second and not await self.add(history):
            return
        sequence, stream = self._sequences.get(place, (0, world.next_number()))
        count = self.rng.randint(1, 3)
        batch, data = self._batch(history, stream, sequence, count)
        world.transactions.sent(transaction, history, batch)
        try:
            code = await self._send(history, batch, data)
        except Unreachable:
            code = ErrorCode.REQUEST_TIMED_OUT
        if code is ErrorCode.NONE:
            self._sequences[place] = (sequence + count, stream)
        else:
            # Perhaps it was written: nothing else may have its sequence.
            self._forget()

    def _batch(self, history: PartitionHistory, stream: int, sequence: int, count: int) -> tuple[Batch, bytes]:
        number, now_ms = self.world.next_number(), self.world.clock.now_ms()
        timestamps = (now_ms,) * count
        data = build_batch(
            [(when, b"%d" % place, b"%d/%d" % (number, place), ()) for place, when in enumerate(timestamps)],
            producer_id=ProducerId(self._producer_id),
            producer_epoch=ProducerEpoch(self._epoch),
            base_sequence=sequence,
            transactional=True,
            codec=self.world.codec,
        )
        batch = Batch(number, stream, sequence, count, data[CRC_POSITION:], timestamps, idempotent=True, attempts=1)
        history.sent[batch.tail] = batch
        return batch, data

    async def _send(self, history: PartitionHistory, batch: Batch, data: bytes) -> ErrorCode:
        world, sent_s = self.world, self.world.loop.time()
        identity = (self._producer_id, self._epoch)
        version = 13 if self.second else 11
        result = await self.ask_to_produce(history, version, data, transactional_id=self.transactional_id)
        code = self._told(f"Produce {batch.number}", result.error_code, of_ours=False)
        if code is ErrorCode.NONE:
            if self.sure():
                world.transactions.wrote(self.transactional_id, *identity, sent_s)
                self.acknowledged(history, batch, result.base_offset)
                world.acks += 1
            else:
                batch.retired = True
        return code

    async def _commit_offset(self) -> None:
        """Raises: Unreachable, Violation."""
        transaction = self._transaction
        assert transaction is not None
        history = self.rng.choice(self.partitions())
        if not self.second:
            adding = AddOffsetsToTxnRequest(self.transactional_id, self._producer_id, self._epoch, self.group_id)
            added = await self.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, adding)
            if self._told("AddOffsetsToTxn", added.error_code) is not ErrorCode.NONE:
                return
        place, number = (self.group_id, history.topic, history.index), self.world.next_number()
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.group_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[
                TxnOffsetCommitRequestTopic(history.topic, [TxnOffsetCommitRequestPartition(history.index, number)])
            ],
        )
        # Not committed before its transaction is; until somebody asks for that it must not be read.
        commit = self.world.committed_offsets.sent(place, number, -1)
        commit.refused = True
        transaction.unsure.append(commit)
        answer = await self.ask(ApiKey.TXN_OFFSET_COMMIT, 5 if self.second else 3, request)
        code = self._told(f"TxnOffsetCommit {number}", answer.topics[0].partitions[0].error_code)
        if code is ErrorCode.NONE:
            transaction.offsets = [one for one in transaction.offsets if one[0] != place]
            if self.sure():
                transaction.offsets.append((place, commit))

    async def end(self, *, commit: bool | None = None) -> None:
        """Ask for the end, or ask again. Raises: Unreachable, Violation."""
        if commit is not None:
            self._commits = commit
        transaction, commits = self._transaction, self._commits
        assert transaction is not None
        assert commits is not None
        if commits and transaction.fate is Fate.OPEN:
            transaction.fate = Fate.ASKED
            for commit in transaction.unsure:
                commit.refused = False
            for _, commit in transaction.offsets:
                commit.sent_s = self.world.loop.time()
        request = EndTxnRequest(self.transactional_id, self._producer_id, self._epoch, commits)
        answer: EndTxnResponse = await self.ask(ApiKey.END_TXN, 5 if self.second else 3, request)
        what = "commit" if commits else "abort"
        if self._told(f"EndTxn {transaction.number} {what}", answer.error_code) is not ErrorCode.NONE:
            return
        if self.sure():
            transaction.fate = Fate.COMMITTED if commits else Fate.ABORTED
            if commits:
                for _, commit in transaction.offsets:
                    commit.acked_s = self.world.loop.time()
        else:
            transaction.torn = True
        if self.second and answer.producer_id >= 0:
            if (answer.producer_id, answer.producer_epoch) != (self._producer_id, self._epoch):
                self._sequences.clear()
            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._transaction, self._commits = None, None


class CommittedReader(Consumer):
    """Reads at read_committed, and leaves out what a client leaves out: markers, and the records of aborted transactions."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * self.pause_s)
            if not self.world.producing:
                continue
            history = self.rng.choice(list(self.world.histories.values()))
            try:
                await self.read_committed(history, set())
            except Unreachable:
                continue

    async def read_all(self) -> set[tuple[UUID, int, int]] | None:
        """Every batch that is seen; None if a partition cannot be read to its end now. Raises: Unreachable, Violation."""
        seen: set[tuple[UUID, int, int]] = set()
        for history in self.world.histories.values():
            if not history.deleting and not await self.read_committed(history, seen):
                return None
        return seen

    async def read_committed(self, history: PartitionHistory, seen: set[tuple[UUID, int, int]]) -> bool:
        """Read a partition from its start; whether it was read to its high watermark. Raises: Unreachable, Violation."""
        losses = self.world.transactions.losses
        offset = await self.list_offset(history, -2)
        aborting: set[int] = set()
        while offset is not None:
            part = await self._fetch_committed(history, offset)
            if part is None or losses != self.world.transactions.losses or not self.owns() or history.deleting:
                return False
            end = self._take(history, offset, part, aborting, seen)
            if end == offset:
                return offset >= part.high_watermark
            offset = end
        return False

    async def _fetch_committed(self, history: PartitionHistory, offset: int) -> PartitionData | None:
        wanted = FetchPartition(
            partition=history.index, fetch_offset=offset, partition_max_bytes=self.rng.choice(self.bytes_choices)
        )
        request = FetchRequest(
            max_wait_ms=50,
            min_bytes=1,
            max_bytes=100_000,
            isolation_level=READ_COMMITTED,
            topics=[FetchTopic(topic_id=history.topic_id, partitions=[wanted])],
        )
        answer = await self.ask(ApiKey.FETCH, 13, request)
        if not answer.responses:
            return None
        part: PartitionData = answer.responses[0].partitions[0]
        self.world.trace(
            "committed",
            self.name,
            history.name,
            offset,
            len(part.records or b""),
            part.last_stable_offset,
            part.error_code,
        )
        return None if part.error_code else part

    def _take(
        self,
        history: PartitionHistory,
        offset: int,
        part: PartitionData,
        aborting: set[int],
        seen: set[tuple[UUID, int, int]],
    ) -> int:
        """What a client makes of an answer. Returns: where to read on."""
        begin = {one.first_offset: one.producer_id for one in part.aborted_transactions or ()}
        starts = sorted(begin)
        records = memoryview(part.records or b"")
        for position, header in served_batches(records, history.name):
            if header.end_offset <= offset:
                continue
            if header.end_offset > part.last_stable_offset:
                raise Violation(
                    "INV-9",
                    f"{history.name}: {header.base_offset} is read, the last stable offset is {part.last_stable_offset}",
                )
            while starts and starts[0] <= header.base_offset:
                aborting.add(begin[starts.pop(0)])
            offset = header.end_offset
            batch = records[position : position + header.size_bytes]
            if header.is_control:
                self._take_marker(batch, header, aborting)
                continue
            if header.is_transactional and header.producer_id in aborting:
                continue
            found = history.sent.get(bytes(batch[CRC_POSITION:]))
            if found is None:
                raise Violation("INV-1", f"{history.name}: at {header.base_offset} are bytes that nobody sent")
            self.world.transactions.seen(history, header.base_offset, found)
            seen.add((history.topic_id, history.index, found.number))
        return offset

    @staticmethod
    def _take_marker(batch: memoryview, header: BatchHeader, aborting: set[int]) -> None:
        marker = parse_marker(batch)
        if marker is not None and marker.control_type is ControlType.ABORT:
            aborting.discard(header.producer_id)
