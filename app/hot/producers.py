"""The state of a partition's idempotent and transactional producers (KIP-98, KIP-360). Pure.

Each producer id has an epoch, its last five batches, and its open transaction. A batch must continue the sequence of the last
batch. A batch that equals one of the last five is a duplicate, and gets the original offset. Kafka's ``.snapshot`` format,
version 1:

    version int16 (1), CRC-32C uint32 of all that follows, count int32, then for each producer
    producer id int64, epoch int16, last sequence int32, last offset int64, offset delta int32, timestamp int64,
    coordinator epoch int32, first offset of the open transaction int64 (-1: none)

A snapshot has only the last batch of each producer. After loading it, ``remember_older`` can add the others.

Tests: ``tests/hot/test_formats.py``, ``tests/hot/test_append.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from app.core.errors import CorruptionError, ErrorCode, RequestRejected, SequenceRefused
from app.core.units import NO_OFFSET, NO_TIMESTAMP, Offset, ProducerId, TimestampMs
from app.hot.indexes import AbortedTransaction
from app.records.batch import BatchHeader
from app.records.control import ControlType, EndTransactionMarker

BATCHES_KEPT: Final = 5
"""As in Kafka: an idempotent client has at most five requests in flight."""

SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences are int32, and continue at 0 after the maximum."""

_VERSION: Final = 1
_PREFIX: Final = Struct(">hIi")
_ENTRY: Final = Struct(">qhiqiqiq")
_CRC_START: Final = 6

NO_SEQUENCE: Final = -1

SnapshotRow = tuple[int, int, int, int, int, int, int, int]
"""One producer in a snapshot; fields in the order of the format above."""


class ProducerBatch(NamedTuple):
    """One batch that a producer wrote."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: TimestampMs


class ProducerEntry:
    """State of one producer id in one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_sequence",
        "last_timestamp",
        "transaction_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_sequence = NO_SEQUENCE
        """Last sequence of the newest batch of this epoch; -1 if there is none."""
        self.batches: list[tuple[int, int, int, int, int]] = []
        """Up to five batches, oldest first; fields as in ``ProducerBatch``. Plain tuples, because every append creates one."""
        self.last_timestamp: int = NO_TIMESTAMP
        self.coordinator_epoch = -1
        self.transaction_first_offset: int = NO_OFFSET
        """-1 if no transaction is open."""


class CompletedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    """Offset of the marker."""
    aborted: bool


class TransactionGuard:
    """Made before a transaction's coordinator is asked whether a producer may begin the transaction in a partition.

    The first batch and every marker of the producer spend it. While it is unspent, the answer is no older than all markers that the
    partition has.
    """

    __slots__ = ("epoch", "producer_id", "spent")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.spent = False


class ProducerStates:
    """The state of all producers of one partition."""

    __slots__ = ("entries", "guards", "open_transactions", "undecided")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.guards: dict[int, TransactionGuard] = {}
        """By producer id: guards of requests that wait for a coordinator. Not in snapshots."""
        self.open_transactions: dict[int, int] = {}
        """First offset of the open transaction by producer id, in rising order: a new transaction is the newest."""
        self.undecided: dict[int, int] = {}
        """For completed transactions whose marker is not yet below the high watermark: marker offset by first offset."""

    # --- checking: nothing changes ---

    def check(self, header: BatchHeader, entry: ProducerEntry | None) -> ProducerBatch | None:
        """Check a produced batch. ``entry`` is its producer's state, or None if the producer is unknown.

        Returns: None if the batch may be appended; the original batch if it is a duplicate.
        Raises: RequestRejected INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.
        """
        if entry is None:
            return None
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch < entry.epoch:
            raise _refused(
                header,
                entry,
                "old_epoch",
                f"Epoch {epoch} of producer {header.producer_id} is below the last one seen, {entry.epoch}.",
                code=ErrorCode.INVALID_PRODUCER_EPOCH,
            )
        if epoch != entry.epoch:
            if sequence != 0:
                raise _refused(
                    header,
                    entry,
                    "new_epoch",
                    f"the new epoch {epoch} of producer {header.producer_id} begins at sequence {sequence} instead of 0",
                )
        else:
            last_sequence = (sequence + header.last_offset_delta) & SEQUENCE_MASK
            for batch in entry.batches:
                if batch[0] == sequence and batch[1] == last_sequence:
                    return ProducerBatch._make(batch)
            expected = (entry.last_sequence + 1) & SEQUENCE_MASK
            if sequence != expected:
                raise _refused(
                    header,
                    entry,
                    "out_of_order",
                    f"sequence {sequence} of producer {header.producer_id} is out of order; the next sequence is {expected}",
                )
        if entry.transaction_first_offset >= 0 and not header.is_transactional:
            raise RequestRejected(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {header.producer_id} has an open transaction and sent a batch outside it.",
            )
        return None

    def check_coordinator(self, header: BatchHeader) -> None:
        """Check a transactional batch that a coordinator writes for a producer. It has no sequence, so only its epoch is checked.

        Raises: RequestRejected INVALID_PRODUCER_EPOCH.
        """
        entry = self.entries.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            raise RequestRejected(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch {header.producer_epoch} of producer {header.producer_id} is below the last one seen, {entry.epoch}.",
            )

    def check_marker(self, marker: EndTransactionMarker) -> None:
        """Raises: RequestRejected INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED."""
        entry = self.entries.get(marker.producer_id)
        if entry is None:
            return
        if marker.producer_epoch < entry.epoch:
            raise RequestRejected(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"A marker of epoch {marker.producer_epoch} for producer {marker.producer_id}, whose epoch is {entry.epoch}.",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise RequestRejected(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"A marker of coordinator epoch {marker.coordinator_epoch}, but epoch {entry.coordinator_epoch} is known.",
            )

    # --- guards: between a question to a coordinator and the append ---

    def guard(self, producer_id: int, epoch: int) -> TransactionGuard:
        """A new guard for a producer; one that it had does not hold any more. Give it to ``release`` in the end."""
        made = self.guards[producer_id] = TransactionGuard(producer_id, epoch)
        return made

    def holds(self, guard: TransactionGuard) -> bool:
        """Whether the newest guard of its producer is this one, unspent."""
        return self.guards.get(guard.producer_id) is guard

    def release(self, guard: TransactionGuard) -> None:
        """The request that waited has ended."""
        if self.holds(guard):
            del self.guards[guard.producer_id]

    def spend_all(self) -> None:
        """Later responses of coordinators to earlier questions are ignored."""
        for guard in self.guards.values():
            guard.spent = True
        self.guards.clear()

    def _spend(self, producer_id: int) -> None:
        guard = self.guards.pop(producer_id, None)
        if guard is not None:
            guard.spent = True

    # --- applying records of the log ---

    def apply(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp: int,
        transactional: int,
    ) -> None:
        """Note a data batch of the producer that is in the log. A batch that a coordinator wrote for it has no sequence (-1)."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches = []
            entry.last_sequence = NO_SEQUENCE
        entry.last_timestamp = timestamp
        if base_sequence != NO_SEQUENCE:
            last_sequence = (base_sequence + last_offset - base_offset) & SEQUENCE_MASK
            entry.last_sequence = last_sequence
            batches = entry.batches
            batches.append((base_sequence, last_sequence, base_offset, last_offset, timestamp))
            if len(batches) > BATCHES_KEPT:
                del batches[0]
        if transactional and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = base_offset
            self.open_transactions[producer_id] = base_offset
            if self.guards:
                self._spend(producer_id)

    def apply_header(self, header: BatchHeader) -> None:
        """``apply`` for a batch that is being replayed from the log."""
        if header.producer_id >= 0 and (header.base_sequence >= 0 or header.is_transactional):
            self.apply(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_offset,
                header.base_offset + header.last_offset_delta,
                header.max_timestamp,
                header.is_transactional,
            )

    def apply_marker(self, marker: EndTransactionMarker) -> CompletedTransaction | None:
        """Note an end-transaction marker that is in the log. Returns: the transaction that it ends; None if none was open."""
        if self.guards:
            self._spend(marker.producer_id)
        entry = self.entries.get(marker.producer_id)
        if entry is None:
            entry = self.entries[marker.producer_id] = ProducerEntry(marker.producer_epoch)
        elif entry.epoch != marker.producer_epoch:
            entry.epoch = marker.producer_epoch
            entry.batches = []
            entry.last_sequence = NO_SEQUENCE
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = marker.timestamp
        first_offset = entry.transaction_first_offset
        if first_offset < 0:
            return None
        entry.transaction_first_offset = NO_OFFSET
        del self.open_transactions[marker.producer_id]
        self.undecided[first_offset] = marker.offset
        return CompletedTransaction(
            marker.producer_id, Offset(first_offset), marker.offset, marker.control_type == ControlType.ABORT
        )

    def last_stable_offset_after(self, completed: CompletedTransaction) -> Offset:
        """The last stable offset after ``completed`` counts as decided: the first offset of the oldest open transaction."""
        for first_offset in self.open_transactions.values():
            return Offset(first_offset)
        return Offset(completed.last_offset + 1)

    # --- the last stable offset ---

    @property
    def has_transactions(self) -> bool:
        """Whether a transaction holds the last stable offset back."""
        return bool(self.open_transactions or self.undecided)

    @property
    def first_unstable_offset(self) -> Offset | None:
        """First offset of the oldest transaction that is open or has an uncommitted marker."""
        candidates = list(self.undecided)
        for first_offset in self.open_transactions.values():
            candidates.append(first_offset)
            break
        return Offset(min(candidates)) if candidates else None

    def decide_below(self, high_watermark: int) -> None:
        """Markers below the high watermark are committed: their transactions no longer hold the last stable offset back."""
        decided = [first for first, marker in self.undecided.items() if marker < high_watermark]
        for first in decided:
            del self.undecided[first]

    def doubt(self, from_offset: int, below: int) -> None:
        """Transactions that end below ``below`` were taken for decided, and need not be.

        Which transactions that are, and where they began, is not known any more. If there were any at all, the last stable offset
        is no higher than ``from_offset`` until everything below ``below`` is committed.
        """
        if any(entry.coordinator_epoch >= 0 for entry in self.entries.values()):
            self.undecided[from_offset] = max(self.undecided.get(from_offset, NO_OFFSET), below - 1)

    def leave_undecided(self, before: Mapping[int, int], end_offset: int) -> None:
        """After the log was cut at ``end_offset`` and read again: transactions that were undecided before stay undecided. The
        state that was read lacks transactions that ended before its snapshot."""
        for first, marker in before.items():
            self.undecided[first] = max(self.undecided.get(first, NO_OFFSET), min(marker, end_offset - 1))

    # --- forgetting ---

    def expire(self, now_ms: TimestampMs, expiration_ms: int) -> int:
        """Forget producers that were silent for ``producer.id.expiration.ms``, but none with an open transaction.

        Returns: how many.
        """
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)

    def clear(self) -> None:
        self.entries = {}
        self.guards = {}
        self.open_transactions = {}
        self.undecided = {}

    # --- files ---

    def rows(self) -> list[SnapshotRow]:
        """A copy of the state, for ``encode_snapshot`` on another thread."""
        rows = []
        for producer_id, entry in self.entries.items():
            if entry.batches:
                _, last_sequence, base_offset, last_offset, _ = entry.batches[-1]
                delta = last_offset - base_offset
            else:
                last_sequence, last_offset, delta = entry.last_sequence, -1, 0
            rows.append(
                (
                    producer_id,
                    entry.epoch,
                    last_sequence,
                    last_offset,
                    delta,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    entry.transaction_first_offset,
                )
            )
        return rows

    def load_rows(self, rows: Iterable[SnapshotRow]) -> None:
        """Replace the state by that of a snapshot."""
        self.clear()
        opened: list[tuple[int, int]] = []
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset in rows:
            entry = self.entries[producer_id] = ProducerEntry(epoch)
            entry.last_sequence = last_sequence
            entry.last_timestamp = timestamp
            entry.coordinator_epoch = coordinator_epoch
            entry.transaction_first_offset = first_offset
            if last_offset >= 0:
                base_sequence = (last_sequence - delta) & SEQUENCE_MASK
                entry.batches.append((base_sequence, last_sequence, last_offset - delta, last_offset, timestamp))
            if first_offset >= 0:
                opened.append((first_offset, producer_id))
        self.open_transactions = {producer_id: first_offset for first_offset, producer_id in sorted(opened)}

    def correct(self, rows: Iterable[SnapshotRow]) -> None:
        """Replace state that was replayed from an unknown beginning by a snapshot's, and keep the older batches that match it."""
        replayed = self.entries.copy()
        self.load_rows(rows)
        for producer_id, entry in self.entries.items():
            known = replayed.get(producer_id)
            if (
                known is not None
                and known.epoch == entry.epoch
                and entry.batches
                and known.batches[-1:] == entry.batches
            ):
                entry.batches = known.batches

    def remember_older(self, headers: Iterable[BatchHeader]) -> None:
        """Add the batches before the last one from the log. ``headers`` are in order of offset.

        A snapshot has one batch for each producer, but a client may repeat any of five batches.
        """
        older: dict[int, list[tuple[int, int, int, int, int]]] = {}
        for header in headers:
            entry = self.entries.get(header.producer_id)
            if (
                entry is None
                or header.producer_epoch != entry.epoch
                or header.base_sequence < 0
                or not entry.batches
                or header.base_offset >= entry.batches[0][2]
            ):
                continue
            kept = older.setdefault(header.producer_id, [])
            last_sequence = (header.base_sequence + header.last_offset_delta) & SEQUENCE_MASK
            last_offset = header.base_offset + header.last_offset_delta
            kept.append((header.base_sequence, last_sequence, header.base_offset, last_offset, header.max_timestamp))
            if len(kept) >= BATCHES_KEPT:
                del kept[0]
        for producer_id, kept in older.items():
            entry = self.entries[producer_id]
            entry.batches = [*kept, *entry.batches][-BATCHES_KEPT:]


def _refused(
    header: BatchHeader,
    entry: ProducerEntry,
    reason: str,
    message: str,
    *,
    code: ErrorCode = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
) -> SequenceRefused:
    return SequenceRefused(
        code,
        message,
        reason=reason,
        producer_id=header.producer_id,
        epoch=header.producer_epoch,
        known_epoch=entry.epoch,
        sequence=header.base_sequence,
        expected=(entry.last_sequence + 1) & SEQUENCE_MASK if header.producer_epoch == entry.epoch else 0,
    )


def encode_snapshot(rows: Iterable[SnapshotRow]) -> bytes:
    """A ``.snapshot`` file."""
    body = [_ENTRY.pack(*row) for row in rows]
    data = bytearray(_PREFIX.pack(_VERSION, 0, len(body)) + b"".join(body))
    data[2:6] = crc32c(memoryview(data)[_CRC_START:]).to_bytes(4, "big")
    return bytes(data)


def parse_snapshot(data: bytes) -> list[SnapshotRow]:
    """The rows of a ``.snapshot`` file. Raises: CorruptionError."""
    if len(data) < _PREFIX.size:
        raise CorruptionError(f"A producer snapshot of {len(data)} bytes is cut short.")
    version, crc, count = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise CorruptionError(f"A producer snapshot of version {version} where {_VERSION} is known.")
    if crc32c(memoryview(data)[_CRC_START:]) != crc:
        raise CorruptionError("A producer snapshot does not match its CRC.")
    if count * _ENTRY.size != len(data) - _PREFIX.size:
        raise CorruptionError(f"A producer snapshot claims {count} producers in {len(data)} bytes.")
    return [*_iter_rows(data)]


def _iter_rows(data: bytes) -> Iterator[SnapshotRow]:
    yield from _ENTRY.iter_unpack(memoryview(data)[_PREFIX.size :])


def aborted_entry(completed: CompletedTransaction, last_stable_offset: Offset) -> AbortedTransaction:
    return AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset)
