"""All transactional ids of one partition of ``__transaction_state``. Input: requests and deadlines. Output: records. Pure.

``app/coordinator/shell.py`` calls the methods. ``state.py`` makes the decisions about one id. This module writes them, applies
them, and sets their deadlines. It does not write markers: it passes a decided transaction to ``decided``, and its owner calls
``complete`` when the markers are written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import Final

from app.coordinator.partition import ReplayedBatch
from app.coordinator.shell import Turn
from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import KIB
from app.core.turns import slices
from app.core.units import PartitionIndex, ProducerId, TimestampMs, TopicPartition
from app.metadata.changes.internal_topics import KEYED_ID_PREFIX
from app.transactions import records, state
from app.transactions.counters import TransactionCounters
from app.transactions.state import BUSY, PREPARED, ProducerIdentity, Transaction, TransactionState

RETRY_MS: Final = 1_000
"""Pause after a failed append before due work is retried."""

LOOKED_AT_ONCE: Final = 500
"""Ids that a search for expired ones checks before the event loop serves other work."""

DECODED_AT_ONCE: Final = 64
"""Ids of a list that are decoded between two looks at the clock: half a millisecond."""

KEYED_EXPIRATION_MS: Final = 600_000
"""Ids of keyed requests over HTTP are forgotten so long after their last transaction (ADR 0043, EO8): each start of a process makes
new ones."""

TOMBSTONES_BYTES_MAX: Final = 512 * KIB
"""Maximum bytes of one batch of tombstones, for ids of any length: half of the topic's limit."""


class Chore(Enum):
    """Timer keys of other work. The timer key of a transaction is its id."""

    EXPIRY = "expiry"
    KEYED_EXPIRY = "keyed expiry"


class TransactionShard:
    """Transactions by id, as in the log."""

    __slots__ = (
        "_counters",
        "_decided",
        "_expiration_ms",
        "_expiry_interval_ms",
        "_keyed",
        "_keyed_left",
        "_looking",
        "_partition",
        "_transactions",
        "_unread",
        "_unread_busy",
        "decided_epoch",
    )

    def __init__(
        self,
        partition: PartitionIndex,
        decided: Callable[[PartitionIndex, Transaction], None],
        *,
        expiration_ms: int,
        expiry_interval_ms: int,
        counters: TransactionCounters,
    ) -> None:
        """``decided`` gets every prepared transaction, maybe before its record is stored. It must only note the transaction."""
        self._counters = counters
        self._partition = partition
        self._decided = decided
        self._expiration_ms = expiration_ms
        self._expiry_interval_ms = expiry_interval_ms
        self._transactions: dict[str, Transaction] = {}
        self._unread: dict[str, bytes] = {}
        """By id: undecoded records of inactive ids that were not requested since the load. Decoding all would delay the event
        loop."""
        self._unread_busy: dict[str, None] = {}
        """The ids of incomplete transactions whose records are undecoded. Some may be decoded, or gone, meanwhile."""
        self._keyed: dict[str, None] = {}
        """The ids of keyed requests. There is a timer while there are any."""
        self._keyed_left = 0
        """How many of them the present search for expired ones has not looked at."""
        self._looking: Iterator[str] | None = None
        """Ids that the present search for expired ones has not checked yet."""
        self.decided_epoch = -1
        """The leader epoch up to which all is done that losses of the log's end asked for, as the log notes; -1 without a note."""

    def get(self, transactional_id: str) -> Transaction | None:
        found = self._transactions.get(transactional_id)
        if found is None and (value := self._unread.get(transactional_id)) is not None:
            found = records.decode(transactional_id, value)
            if found is not None:
                self._transactions[transactional_id] = found
            del self._unread[transactional_id]
        return found

    def all(self) -> Iterator[list[Transaction]]:
        """All transactions, some at a time: clients decide how many there are.

        An id is decoded when its turn comes, and has the state of that moment. Other requests may be served in between.
        Raises: CorruptionError.
        """
        for some in slices((*self._transactions, *self._unread), DECODED_AT_ONCE):
            yield [found for each in some if (found := self.get(each)) is not None]

    def busy_now(self) -> list[Transaction]:
        """Incomplete transactions, also before ``loaded``."""
        self._read_busy()
        return list(self.busy())

    def _read_busy(self) -> None:
        """Decode the loaded records of incomplete transactions. Raises: CorruptionError."""
        for transactional_id in self._unread_busy:
            self.get(transactional_id)
        self._unread_busy.clear()

    def busy(self) -> Iterator[Transaction]:
        """Incomplete transactions."""
        return (found for found in self._transactions.values() if found.state in BUSY)

    @property
    def id_count(self) -> int:
        """Number of known transactional ids."""
        return len(self._transactions) + len(self._unread)

    def known(self, producer_ids: Collection[ProducerId]) -> set[ProducerId]:
        """Those of ``producer_ids`` that belong to an id of this shard."""
        found = {records.producer_id_of(value) for value in self._unread.values()}
        for one in self._transactions.values():
            found.update((one.producer_id, one.previous_producer_id, one.next_producer_id))
        return found.intersection(producer_ids)

    # --- requests -----------------------------------------------------------------------------------------------------

    def initialize(
        self,
        turn: Turn,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        spare_id: ProducerId | None,
    ) -> Transaction:
        """As ``state.initialize``; also raises RequestRejected if it cannot be written."""
        decided = state.initialize(
            self.get(transactional_id),
            transactional_id,
            timeout_ms=timeout_ms,
            expected=expected,
            spare_id=spare_id,
            now_ms=TimestampMs(turn.now_ms),
        )
        return self._put(turn, decided)

    def add_partitions(
        self,
        turn: Turn,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        client_version: int,
    ) -> Transaction:
        """As ``state.add_partitions``; also raises RequestRejected if it cannot be written."""
        decided = state.add_partitions(
            self.get(transactional_id),
            identity,
            partitions,
            client_version=client_version,
            now_ms=TimestampMs(turn.now_ms),
        )
        return self._put(turn, decided)

    def end(
        self,
        turn: Turn,
        transactional_id: str,
        identity: ProducerIdentity,
        *,
        commit: bool,
        client_version: int,
        spare_id: ProducerId | None,
    ) -> Transaction:
        """As ``state.end``; also raises RequestRejected if it cannot be written.

        If this shard has forgotten ids, a commit of an unknown id is PRODUCER_FENCED: it may have been decided before (J46k).
        """
        try:
            decided = state.end(
                self.get(transactional_id),
                identity,
                commit=commit,
                client_version=client_version,
                spare_id=spare_id,
                now_ms=TimestampMs(turn.now_ms),
            )
        except RequestRejected as error:
            if commit and error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING and self.decided_epoch >= 0:
                raise _forgotten(transactional_id, identity) from error
            raise
        return self._put(turn, decided)

    def abort_open(self, turn: Turn, wanted: Callable[[Transaction], bool]) -> int:
        """Abort the open transactions that are ``wanted``, as ``due`` does. Returns: how many.

        Raises: RequestRejected if a decision cannot be written; earlier transactions are aborted.
        """
        found = [one for one in self.busy() if one.state is TransactionState.ONGOING and wanted(one)]
        for transaction in found:
            self._put(turn, state.fence(transaction, TimestampMs(turn.now_ms)), timed_out=True)
        return len(found)

    def complete(self, turn: Turn, prepared: Transaction) -> None:
        """All markers of ``prepared`` are stored. Does nothing if it is no longer the newest transaction of its id.

        Raises: RequestRejected if it cannot be written.
        """
        if self.get(prepared.transactional_id) is prepared:
            self._put(turn, state.complete(prepared, TimestampMs(turn.now_ms)))
            self._counters.seconds.observe((turn.now_ms - prepared.started_ms) / 1000)

    def _put(self, turn: Turn, transaction: Transaction, *, timed_out: bool = False) -> Transaction:
        """Write and apply a decision, unless nothing changes."""
        transactional_id = transaction.transactional_id
        before = self.get(transactional_id)
        if transaction is before:
            return transaction
        turn.append([records.encode(transaction)])
        self._transactions[transactional_id] = transaction
        if before is None and transactional_id.startswith(KEYED_ID_PREFIX):
            if not self._keyed:
                turn.set_timer(Chore.KEYED_EXPIRY, KEYED_EXPIRATION_MS)
            self._keyed[transactional_id] = None
        deadline_ms = transaction.deadline_ms
        if deadline_ms is None:
            if before is not None and before.deadline_ms is not None:
                turn.cancel_timer(transactional_id)
        elif before is None or before.deadline_ms != deadline_ms:
            turn.set_timer(transactional_id, transaction.left_ms(turn.now_ms))
        if transaction.state in PREPARED:
            self._counters.ended(transaction, timed_out=timed_out)
            self._decided(self._partition, transaction)
        return transaction

    # --- deadlines ----------------------------------------------------------------------------------------------------

    def due(self, turn: Turn, key: object) -> None:
        """Abort a timed-out transaction, or look for ids to forget."""
        try:
            if key is Chore.EXPIRY:
                self._forget_some(turn)
            elif key is Chore.KEYED_EXPIRY:
                self._forget_keyed(turn)
            elif isinstance(key, str):
                transaction = self.get(key)
                if transaction is not None and transaction.deadline_ms is not None:
                    self._put(turn, state.fence(transaction, TimestampMs(turn.now_ms)), timed_out=True)
        except RequestRejected:
            turn.set_timer(key, RETRY_MS)  # the disk is full, perhaps only now; nothing has changed

    def _forget_some(self, turn: Turn) -> None:
        """Write tombstones for ids that were silent for ``transactional.id.expiration.ms``, up to the limit of one turn."""
        if self._looking is None:
            self._looking = iter((*self._transactions, *self._unread))
        looked = list(islice(self._looking, LOOKED_AT_ONCE))
        expired = [
            transactional_id
            for transactional_id in looked
            if (transaction := self.get(transactional_id)) is not None
            and transaction.is_expired(turn.now_ms, self._expiration_ms)
        ]
        if len(looked) < LOOKED_AT_ONCE:
            self._looking = None
        some: list[str] = []
        size_bytes = 0
        for transactional_id in expired:
            some.append(transactional_id)
            size_bytes += len(transactional_id.encode())
            if size_bytes > TOMBSTONES_BYTES_MAX:
                self._forget(turn, some)
                some, size_bytes = [], 0
        self._forget(turn, some)
        turn.set_timer(Chore.EXPIRY, self._expiry_interval_ms if self._looking is None else 0)

    def _forget_keyed(self, turn: Turn) -> None:
        """Write tombstones for ids of keyed requests that were silent for ``KEYED_EXPIRATION_MS``, up to the limit of one turn."""
        self._keyed_left = self._keyed_left or len(self._keyed)
        looked = list(islice(self._keyed, min(LOOKED_AT_ONCE, self._keyed_left)))
        expired = [
            one
            for one in looked
            if (transaction := self.get(one)) is None or transaction.is_expired(turn.now_ms, KEYED_EXPIRATION_MS)
        ]
        self._forget(turn, expired)
        for one in looked:
            if one in self._keyed:  # it is looked at again when the others were
                del self._keyed[one]
                self._keyed[one] = None
        self._keyed_left = min(self._keyed_left - len(looked), len(self._keyed))
        if self._keyed:
            turn.set_timer(Chore.KEYED_EXPIRY, 0 if self._keyed_left else KEYED_EXPIRATION_MS)

    def forget_all(self, turn: Turn, leader_epoch: int) -> None:
        """Forget every id, so that each gets another producer id, and note that this is done for ``leader_epoch`` (J46).

        Raises: RequestRejected if it cannot be written; then some ids may be forgotten, and there is no note.
        """
        some: list[str] = []
        size_bytes = 0
        for transactional_id in (*self._transactions, *self._unread):
            some.append(transactional_id)
            size_bytes += len(transactional_id.encode())
            if size_bytes > TOMBSTONES_BYTES_MAX:
                self._forget(turn, some)
                some, size_bytes = [], 0
        self._forget(turn, some)
        turn.append([records.decided_note(leader_epoch)])
        self.decided_epoch = leader_epoch

    def _forget(self, turn: Turn, transactional_ids: Collection[str]) -> None:
        if transactional_ids:
            turn.append([records.tombstone(transactional_id) for transactional_id in transactional_ids])
        for transactional_id in transactional_ids:
            self._transactions.pop(transactional_id, None)
            self._unread.pop(transactional_id, None)
            self._keyed.pop(transactional_id, None)

    # --- loading ------------------------------------------------------------------------------------------------------

    def load(self, batch: ReplayedBatch) -> None:
        """Load records of the log. Raises: CorruptionError."""
        for key, value in batch.records:
            transactional_id = records.decode_id(key)
            if transactional_id is None:
                noted = records.decode_note(key, value)
                if noted is not None:
                    self.decided_epoch = noted
                continue
            if value is None:
                self._unread.pop(transactional_id, None)
                self._unread_busy.pop(transactional_id, None)
                self._keyed.pop(transactional_id, None)
            else:
                if transactional_id.startswith(KEYED_ID_PREFIX):
                    self._keyed[transactional_id] = None
                if records.is_at_rest(value):  # raises now if the value cannot be read
                    self._unread_busy.pop(transactional_id, None)
                else:
                    self._unread_busy[transactional_id] = None
                self._unread[transactional_id] = value

    def loaded(self, turn: Turn) -> None:
        """Set the deadlines of open transactions, and end decided ones."""
        self._read_busy()
        for transaction in self.busy():
            transactional_id = transaction.transactional_id
            if transaction.deadline_ms is not None:
                turn.set_timer(transactional_id, transaction.left_ms(turn.now_ms))
            elif transaction.state in PREPARED:
                self._decided(self._partition, transaction)
        turn.set_timer(Chore.EXPIRY, self._expiry_interval_ms)
        if self._keyed:
            turn.set_timer(Chore.KEYED_EXPIRY, KEYED_EXPIRATION_MS)

    def unloaded(self, turn: Turn) -> None:
        """Nothing to do: every request gets its response in its own turn, so no request waits here."""


def _forgotten(transactional_id: str, identity: ProducerIdentity) -> RequestRejected:
    return RequestRejected(
        ErrorCode.PRODUCER_FENCED,
        f"Records of {transactional_id} were lost: whether its last transaction is committed was decided without producer "
        f"{identity.producer_id}.",
    )
