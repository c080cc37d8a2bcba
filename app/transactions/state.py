"""The states of a transactional id (KIP-98, KIP-360, KIP-890). Pure. Input: a transaction and a request. Output: the next
transaction.

::

                    InitProducerId                  a partition is added
        (nothing) ────────────────► Empty ───────────────────────────────► Ongoing ◄─────┐
                                      ▲                                    │     │       │ a partition is added
                        InitProducerId│            EndTxn commits          │     │       │
                                      │      ┌─────────────────────────────┘     │ EndTxn aborts, time is up,
                                      │      ▼                                   ▼ or InitProducerId fences
                                      │   PrepareCommit                       PrepareAbort
                                      │      │ every marker is written           │
                                      │      ▼                                   ▼
                                      └── CompleteCommit ──┬── CompleteAbort ────┘
                                                           └─► Ongoing: the next transaction

Every arrow is one record of ``__transaction_state``. When a Prepare record is stored, the transaction is decided. Then the
present leader of the coordinator's partition writes markers until all are written.

There are two protocols. In version 1 a client keeps its epoch between transactions, and names every partition before it writes
there. In version 2 every end of a transaction raises the epoch, so late requests are recognized and refused. Partitions are
added at the first write to them. The version of an EndTxn request says which protocol the client uses.

Epochs are int16. ``LAST_CLIENT_EPOCH`` is the last epoch of a client, so there is always one more epoch to fence it. A client
that has used all epochs continues with another producer id at epoch 0.

Every function returns the transaction after the request. If nothing must be written (a repeated request), it returns the same
object. The caller first writes the record, and then replaces the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import NO_PRODUCER_ID, NO_TIMESTAMP, ProducerEpoch, ProducerId, TimestampMs, TopicPartition

NO_EPOCH: Final = ProducerEpoch(-1)
EPOCH_MAX: Final = 32_767
LAST_CLIENT_EPOCH: Final = EPOCH_MAX - 1
VERSION_1: Final = 0
"""Kafka records transactions of the classic protocol with client version 0."""
VERSION_2: Final = 2


class TransactionState(IntEnum):
    """Kafka's numbers, as in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """Kafka's name of the state, in responses and filters."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
BUSY: Final = PREPARED | {TransactionState.ONGOING}
"""States of incomplete transactions."""
AT_REST: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
"""States without an open transaction or missing markers. An id in such a state may be forgotten."""


class ProducerIdentity(NamedTuple):
    """Producer id and epoch: the identity with which a client writes."""

    producer_id: ProducerId
    epoch: ProducerEpoch


class ProducerIdNeeded(Exception):
    """A decision needs an unused producer id. This is not an error: the caller gets an id and asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The state of one transactional id."""

    transactional_id: str
    producer_id: ProducerId
    epoch: ProducerEpoch
    state: TransactionState
    timeout_ms: int
    updated_ms: TimestampMs
    started_ms: TimestampMs = NO_TIMESTAMP
    partitions: frozenset[TopicPartition] = frozenset()
    """Partitions to which the open transaction has written or may have written. When it is prepared: partitions that need a
    marker."""
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The client's producer id before ``producer_id``. Usually the same."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """The client's next producer id after the prepared transaction, if its epochs are used up."""
    last_epoch: ProducerEpoch = NO_EPOCH
    """The client's previous epoch. Not in the log."""
    client_version: int = VERSION_1
    """Protocol version of the last change."""

    @property
    def client_identity(self) -> ProducerIdentity:
        """The client's identity after this transaction."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, ProducerEpoch(0))
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def commits(self) -> bool:
        """For a prepared transaction: whether the decision is to commit."""
        assert self.state in PREPARED
        return self.state is TransactionState.PREPARE_COMMIT

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the open transaction is aborted; None if none is open."""
        if self.state is not TransactionState.ONGOING:
            return None
        return self.started_ms + self.timeout_ms

    def left_ms(self, now_ms: int) -> int:
        """Remaining time of an open transaction. A clock that was set back never gives more than the time-out."""
        return min(self.timeout_ms, max(0, self.started_ms + self.timeout_ms - now_ms))

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id was silent for ``transactional.id.expiration.ms`` and may be forgotten."""
        return self.state in AT_REST and now_ms - self.updated_ms >= expiration_ms


# --- InitProducerId ---------------------------------------------------------------------------------------------------


def initialize(
    current: Transaction | None,
    transactional_id: str,
    *,
    timeout_ms: int,
    expected: ProducerIdentity | None,
    spare_id: ProducerId | None,
    now_ms: TimestampMs,
) -> Transaction:
    """Give the caller an identity that fences all earlier clients.

    ``expected`` is the caller's identity by its own knowledge, if it continues after an error (KIP-360). ``spare_id`` is an unused
    producer id, if one is ready.

    Returns: an Empty transaction with the identity. If a transaction was open: this transaction, prepared to abort; the caller gets
    CONCURRENT_TRANSACTIONS and retries.
    Raises: ProducerIdNeeded; RequestRejected PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    if current is None:
        return Transaction(
            transactional_id=transactional_id,
            producer_id=_needed(spare_id),
            epoch=ProducerEpoch(0),
            state=TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
        )
    if current.state in PREPARED:
        raise _completing(current)
    if expected is not None and not _may_go_on(current, expected):
        raise _fenced(current, expected)
    if current.state is TransactionState.ONGOING:
        return fence(current, now_ms)
    if expected is not None and expected.epoch != current.epoch:
        if expected.epoch != current.last_epoch:
            raise _fenced(current, expected)
        if current.epoch <= LAST_CLIENT_EPOCH:
            # The request is repeated, or its transaction was aborted meanwhile. No other client has initialized the id in between:
            # that would have cleared the last epoch.
            return replace(
                current,
                state=TransactionState.EMPTY,
                timeout_ms=timeout_ms,
                updated_ms=now_ms,
                started_ms=NO_TIMESTAMP,
            )
    producer_id, epoch = current.producer_id, ProducerEpoch(current.epoch + 1)
    if current.epoch >= LAST_CLIENT_EPOCH:
        producer_id, epoch = _needed(spare_id), ProducerEpoch(0)
    return replace(
        current,
        state=TransactionState.EMPTY,
        producer_id=producer_id,
        epoch=epoch,
        previous_producer_id=current.producer_id,
        last_epoch=NO_EPOCH if expected is None else expected.epoch,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
        started_ms=NO_TIMESTAMP,
    )


def _may_go_on(current: Transaction, expected: ProducerIdentity) -> bool:
    """Whether the caller has the newest identity, or missed the response with its new identity."""
    return expected.producer_id == current.producer_id or (
        expected.producer_id == current.previous_producer_id and expected.epoch >= LAST_CLIENT_EPOCH
    )


def fence(current: Transaction, now_ms: TimestampMs) -> Transaction:
    """Abort an open transaction without a request of its client: it timed out, or another client took the id.

    The markers have an epoch above the client's, so no later write of the client is accepted. If the client itself wanted the
    abort, it looks as if its own request had succeeded. This holds for a client of the second protocol that aborts, and for one
    that continues after an error: it gets the new epoch, unless another client was faster.
    """
    assert current.state is TransactionState.ONGOING
    return replace(
        current,
        state=TransactionState.PREPARE_ABORT,
        epoch=ProducerEpoch(current.epoch + 1),
        last_epoch=current.epoch,
        updated_ms=now_ms,
        client_version=VERSION_2,
    )


# --- partitions -------------------------------------------------------------------------------------------------------


def check_owner(current: Transaction | None, identity: ProducerIdentity) -> Transaction:
    """Check that the caller owns the transaction, and return it.

    Raises: RequestRejected INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED.
    """
    if current is None:
        raise RequestRejected(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "The transactional id is not known.")
    if current.producer_id != identity.producer_id:
        raise RequestRejected(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{current.transactional_id} belongs to producer {current.producer_id}, not to {identity.producer_id}.",
        )
    if current.epoch != identity.epoch:
        raise _fenced(current, identity)
    return current


def add_partitions(
    current: Transaction | None,
    identity: ProducerIdentity,
    partitions: Iterable[TopicPartition],
    *,
    client_version: int,
    now_ms: TimestampMs,
) -> Transaction:
    """Let the transaction write to ``partitions``. The first partition begins the transaction.

    Raises: RequestRejected INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    if current is not None and current.state in PREPARED:
        raise _completing(current)  # as in ``end``
    current = check_owner(current, identity)
    if current.epoch > LAST_CLIENT_EPOCH:
        raise _fenced(current, identity)
    if current.state is TransactionState.ONGOING:
        added = current.partitions.union(partitions)
        if len(added) == len(current.partitions):
            return current
        return replace(
            current, partitions=added, updated_ms=_no_earlier(current, now_ms), client_version=client_version
        )
    return replace(
        current,
        state=TransactionState.ONGOING,
        partitions=frozenset(partitions),
        started_ms=now_ms,
        updated_ms=_no_earlier(current, now_ms),
        client_version=client_version,
    )


def check_partition(current: Transaction | None, identity: ProducerIdentity, partition: TopicPartition) -> None:
    """Check that the transaction may write to ``partition``, so that a marker will end every write (KIP-890).

    Raises: RequestRejected INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE.
    """
    current = check_owner(current, identity)
    if current.state in PREPARED:
        raise _completing(current)
    if partition not in current.partitions:
        raise RequestRejected(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"{partition} was not added to the transaction of {current.transactional_id}.",
        )


# --- the end ----------------------------------------------------------------------------------------------------------


def end(
    current: Transaction | None,
    identity: ProducerIdentity,
    *,
    commit: bool,
    client_version: int,
    spare_id: ProducerId | None,
    now_ms: TimestampMs,
) -> Transaction:
    """Decide the open transaction, as its client requests.

    Returns: the prepared transaction; ``current`` itself if it was already ended as requested.
    Raises: ProducerIdNeeded; RequestRejected INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS (markers of
    an earlier decision are being written), INVALID_TXN_STATE.
    """
    if current is None or client_version < VERSION_2:
        return _end_first_version(check_owner(current, identity), commit, now_ms)
    if current.state in PREPARED:
        # Before the identity is checked: the client may already have its next one, which takes effect with the Complete record.
        raise _completing(current)
    completed = current.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    overflowed = (
        current.previous_producer_id == identity.producer_id
        and current.previous_producer_id != current.producer_id
        and identity.epoch == LAST_CLIENT_EPOCH
        and current.epoch == 0
    )
    if overflowed and not completed:
        raise _fenced(current, identity)  # the client, or another one, has gone on
    repeated = overflowed or (
        current.producer_id == identity.producer_id
        and completed
        and current.epoch == identity.epoch + 1
        # After a fence the last epoch of all belongs to no client.
        and current.epoch < EPOCH_MAX
    )
    if repeated:
        if commit and current.state is TransactionState.COMPLETE_ABORT:
            # A client repeats only its own request, so the coordinator aborted this transaction: its time was up. The client has an
            # old epoch. It gets an error after which Kafka Streams continues. INVALID_TXN_STATE would end its thread (KAFKA-20785,
            # after 4.3.1).
            raise _fenced(current, identity)
        return _end_again(current, commit)
    check_owner(current, identity)
    if current.epoch > LAST_CLIENT_EPOCH:
        raise _fenced(current, identity)
    if current.state is not TransactionState.ONGOING and commit:
        raise _impossible(current, commit)
    return replace(
        current,
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        epoch=ProducerEpoch(current.epoch + 1),
        last_epoch=current.epoch,
        next_producer_id=NO_PRODUCER_ID if current.epoch < LAST_CLIENT_EPOCH else _needed(spare_id),
        # A client may abort a transaction that has not written to any partition: it begins and ends now.
        started_ms=current.started_ms if current.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=VERSION_2,
    )


def _end_first_version(current: Transaction, commit: bool, now_ms: TimestampMs) -> Transaction:
    if current.state is not TransactionState.ONGOING:
        return _end_again(current, commit)
    return replace(
        current,
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        # Later than all earlier decisions of the epoch, even if the clock went back: the time tells their markers apart (J46e).
        updated_ms=TimestampMs(max(now_ms, current.updated_ms + 1)),
        client_version=VERSION_1,
    )


def _end_again(current: Transaction, commit: bool) -> Transaction:
    """A transaction that was already ended, as requested now or differently."""
    if current.state in PREPARED:
        raise _completing(current)  # for a commit and an abort: the client gets the outcome when it retries
    match current.state:
        case TransactionState.COMPLETE_COMMIT if commit:
            return current
        case TransactionState.COMPLETE_ABORT if not commit:
            return current
    raise _impossible(current, commit)


def complete(current: Transaction, now_ms: TimestampMs) -> Transaction:
    """Every marker of a prepared transaction is stored."""
    state = TransactionState.COMPLETE_COMMIT if current.commits else TransactionState.COMPLETE_ABORT
    identity = current.client_identity
    return replace(
        current,
        state=state,
        producer_id=identity.producer_id,
        epoch=identity.epoch,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        updated_ms=_no_earlier(current, now_ms),
    )


def _no_earlier(current: Transaction, now_ms: TimestampMs) -> TimestampMs:
    """Now, also if the clock was set back since the last change."""
    return TimestampMs(max(now_ms, current.updated_ms))


# --- refusals ---------------------------------------------------------------------------------------------------------


def _needed(spare_id: ProducerId | None) -> ProducerId:
    if spare_id is None:
        raise ProducerIdNeeded
    return spare_id


def _fenced(current: Transaction, identity: ProducerIdentity) -> RequestRejected:
    return RequestRejected(
        ErrorCode.PRODUCER_FENCED,
        f"{current.transactional_id} is at epoch {current.epoch} of producer {current.producer_id}; epoch {identity.epoch} of "
        f"producer {identity.producer_id} is not its owner.",
    )


def _completing(current: Transaction) -> RequestRejected:
    return RequestRejected(
        ErrorCode.CONCURRENT_TRANSACTIONS, f"The last transaction of {current.transactional_id} is still being ended."
    )


def _impossible(current: Transaction, commit: bool) -> RequestRejected:
    verb = "committed" if commit else "aborted"
    return RequestRejected(
        ErrorCode.INVALID_TXN_STATE,
        f"The transaction of {current.transactional_id} is {current.state.title} and cannot be {verb}.",
    )
