"""The state machine of one partition of `__http_requests` on the broker that leads it (ADR 0043). Pure.

It knows for each key whether a result is committed (and at which offset), open (its transaction has not ended), or reserved by a
look-up. ``accept`` is the condition: a result is appended only if its key has none, committed or open. It runs in the
turn of the append, after the transaction coordinator has agreed.

Two keys may share a 64-bit hash. A committed result is known by its hash alone, and only its record says which key it has. So a
caller first reads the records with the hash of its key, and names the offsets that have other keys.

Tests: ``tests/exactly_once/test_shard.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.coordinator.partition import ProducerIdAndEpoch, ReplayedBatch
from app.core.errors import CorruptionError, ErrorCode, RequestRejected
from app.core.turns import Steps
from app.core.units import NO_PRODUCER_ID, Offset, ProducerId
from app.exactly_once.ages import TICK_MS, Ages
from app.exactly_once.bounds import Usage
from app.exactly_once.index import BUCKETS, KeyIndex
from app.exactly_once.records import (
    Head,
    RequestKey,
    Result,
    Tick,
    decode_head,
    decode_result_key,
    encode_result,
    encode_tick,
)
from app.records.control import ControlType

if TYPE_CHECKING:
    from app.coordinator.shell import Turn
    from app.exactly_once.columns import Columns, Flags, SortedRows

RESERVED_MS: Final = 10_000
"""How long a key is kept for the caller who looked it up. A courtesy: the condition does not need it."""
RESERVATIONS_MAX: Final = 10_000
"""Beyond, the oldest one is forgotten."""
RECORD_OVERHEAD_BYTES: Final = 150
"""Of a batch with one result, and of its marker."""


class Open(NamedTuple):
    """A result whose transaction has not ended."""

    offset: Offset
    try_id: bytes
    size_bytes: int


class Standing(NamedTuple):
    """The state of a key."""

    open: Open | None
    """The open result of the key."""
    offsets: tuple[int, ...]
    """Offsets of committed results with the hash of the key. Read them to learn which has the key itself."""
    reserved_ms: int
    """How long another try has the key reserved; 0 if none has."""

    @property
    def is_new(self) -> bool:
        """Whether no try has the key."""
        return self.open is None and not self.offsets and not self.reserved_ms


class Accepted(NamedTuple):
    """A result that was appended."""

    offset: Offset
    repeated: bool
    """Whether an earlier append of the same try counts, and nothing was written now."""


class KeyTaken(RequestRejected):
    """The key has a result, committed or open: look it up again, and abort this transaction."""


class RequestShard:
    """The keys of one partition."""

    __slots__ = (
        "_ages",
        "_by_producer",
        "_index",
        "_open",
        "_reserved",
        "_retention_ms",
        "_rows",
        "_usage",
        "end",
        "start",
    )

    def __init__(self, usage: Usage, retention_ms: Callable[[], int], *, buckets: int = BUCKETS) -> None:
        """``usage``: of the broker. ``retention_ms``: how long results are kept, as it is set now."""
        self._usage = usage
        self._retention_ms = retention_ms
        self._index = KeyIndex(buckets)
        self._rows: SortedRows | None = None
        """Of a load, until they go to the index."""
        self._ages = Ages(usage)
        self._open: dict[RequestKey, Open] = {}
        """In the order of offsets."""
        self._by_producer: dict[ProducerId, list[tuple[RequestKey, Open]]] = {}
        self._reserved: OrderedDict[RequestKey, tuple[bytes, int]] = OrderedDict()
        """By key: the try that has it, and until when (steady ms)."""
        self.end = Offset(0)
        """The offset up to which the log was read or written."""
        self.start = Offset(0)
        """The offset below which no result is needed any more."""

    # --- replay -------------------------------------------------------------------------------------------------------

    def load(self, batch: ReplayedBatch | Columns) -> None:
        """Take in records of the log, or the marker of a transaction, or many of both. Raises: CorruptionError."""
        if not isinstance(batch, ReplayedBatch):
            self._load_columns(batch)
            return
        if batch.marker is not None:
            self.complete(batch.producer_id, commit=batch.marker.control_type is ControlType.COMMIT)
        offset = batch.end_offset - len(batch.records)
        if offset < 0:
            raise CorruptionError(f"A batch of results begins at offset {offset}.")
        for key, value in batch.records:
            self._take(Offset(offset), key, value, batch.producer_id)
            offset += 1
        self.end = batch.end_offset

    def _load_columns(self, columns: Columns) -> None:
        """As ``load`` of each batch (EO15). A log with two open results of a key, which no leader writes, may end in another state:
        the result that is taken one by one has the key until its own marker comes."""
        self._ages.add_columns(columns, RECORD_OVERHEAD_BYTES)
        decided = columns.decided(self.open_producers())
        self._add_rows(columns, decided.committed)
        for result in decided.aborted.nonzero()[0].tolist():
            principal = columns.principals[columns.principal_of[result]]
            size_bytes = int(columns.sizes[result]) + RECORD_OVERHEAD_BYTES
            self._ages.remove(int(columns.offsets[result]), principal, size_bytes)
        for at in decided.left:
            producer_id = ProducerId(int(columns.producers[at]))
            if columns.is_marker[at]:
                self.complete(producer_id, commit=bool(columns.is_commit[at]))
            else:
                result = int(columns.result_of[at])
                request = decode_result_key(columns.key_of(result))
                size_bytes = int(columns.sizes[result]) + RECORD_OVERHEAD_BYTES
                opened = Open(Offset(int(columns.offsets[result])), columns.try_id_of(result), size_bytes)
                self._note_open(request, opened, producer_id)
        self.end = columns.end_offset

    def _add_rows(self, columns: Columns, committed: Flags) -> None:
        if self._rows is None:
            from app.exactly_once.columns import SortedRows

            self._rows = SortedRows()
        self._rows.add(columns.hashes[committed], columns.offsets[committed])
        if self._rows.is_full:
            self._index.add_run(*self._rows.take())

    def _take(self, offset: Offset, key: bytes, value: bytes | None, producer_id: ProducerId) -> None:
        found = decode_head(key, value)
        if found is None:
            return
        if isinstance(found, Tick):
            self._ages.pass_time(found.appended_ms)
            return
        request, head = found
        if producer_id != NO_PRODUCER_ID:
            self._opened(offset, request, head, producer_id, _size(key, value))

    def _opened(
        self, offset: Offset, request: RequestKey, head: Head, producer_id: ProducerId, size_bytes: int
    ) -> None:
        self._ages.pass_time(head.appended_ms)
        self._ages.add(offset, request.principal, size_bytes)
        self._note_open(request, Open(offset, head.try_id, size_bytes), producer_id)

    def _note_open(self, request: RequestKey, opened: Open, producer_id: ProducerId) -> None:
        self._open.pop(request, None)
        self._open[request] = opened
        self._by_producer.setdefault(producer_id, []).append((request, opened))

    def loaded(self, turn: Turn) -> None:
        """All records are loaded: let time pass from now on."""
        if self._rows:
            self._index.add_run(*self._rows.take())
        self._rows = None
        turn.set_timer(Tick, TICK_MS)

    def unloaded(self, turn: Turn) -> None:
        """No request waits in a shard. Its keys do not count for this broker any more."""
        self._ages.forget_all()

    # --- transactions -------------------------------------------------------------------------------------------------

    def complete(self, producer_id: ProducerId, *, commit: bool) -> None:
        """The marker of a producer's transaction is in the log. A repeated call does nothing."""
        for request, found in self._by_producer.pop(producer_id, ()):
            # No leader writes two open results of a key. A log that has them is loaded anyway: each ends with its own marker.
            if self._open.get(request) is found:
                del self._open[request]
            if commit:
                self._index.add(request.index_hash, found.offset)
            else:
                self._ages.remove(found.offset, request.principal, found.size_bytes)
            self._reserved.pop(request, None)

    def open_producers(self) -> list[ProducerId]:
        """The producers whose transactions have open results."""
        return list(self._by_producer)

    def open_results(self) -> Iterator[tuple[ProducerId, Offset]]:
        """The producer and the offset of each open result. Other requests may be served in between."""
        for producer_id in self.open_producers():
            for _, opened in self._by_producer.get(producer_id, ()):
                yield producer_id, opened.offset

    def is_open(self, producer_id: ProducerId, offset: Offset) -> bool:
        """Whether the result at an offset is open."""
        return any(opened.offset == offset for _, opened in self._by_producer.get(producer_id, ()))

    def is_kept(self, offset: Offset) -> bool:
        """Whether an open result would be kept if it were committed (EO10)."""
        return self._ages.is_kept(offset, self._retention_ms())

    # --- requests -----------------------------------------------------------------------------------------------------

    def look(self, request: RequestKey, try_id: bytes, steady_ms: int) -> Standing:
        """The state of a key, for a try."""
        holder, until_ms = self._reserved.get(request, (try_id, 0))
        reserved_ms = 0 if holder == try_id else max(0, until_ms - steady_ms)
        return Standing(self._open.get(request), self._index.find(request.index_hash), reserved_ms)

    def reserve(self, request: RequestKey, try_id: bytes, size_bytes: int, steady_ms: int) -> None:
        """Keep a key without result for a try. ``size_bytes``: of the result that may come.

        Raises: RequestRejected THROTTLING_QUOTA_EXCEEDED if the result would not fit (EO12).
        """
        self._check_room(request, size_bytes)
        self._reserved.pop(request, None)
        self._reserved[request] = try_id, steady_ms + RESERVED_MS
        if len(self._reserved) > RESERVATIONS_MAX:
            self._reserved.popitem(last=False)

    def release(self, request: RequestKey, try_id: bytes) -> None:
        """A try ended without a result: the key is free."""
        if self._reserved.get(request, (b"", 0))[0] == try_id:
            del self._reserved[request]

    def accept(
        self,
        turn: Turn,
        request: RequestKey,
        result: Result,
        producer: ProducerIdAndEpoch,
        others: Collection[int],
    ) -> Accepted:
        """Append a result, if its key has none (EO2). ``others``: offsets of committed results that have other keys, as read.

        Only the same key and try id is a repeat (EO3). A producer has one open result at a time, because a marker ends all that it
        has. The time of the append is that of this turn.
        Raises, with nothing written: KeyTaken CONCURRENT_TRANSACTIONS; RequestRejected.
        """
        found = self._open.get(request)
        if found is not None:
            if found.try_id == result.try_id:
                return Accepted(found.offset, repeated=True)
            raise KeyTaken(
                ErrorCode.CONCURRENT_TRANSACTIONS, "Another request with this key has a result that is open."
            )
        if not set(self._index.find(request.index_hash)).issubset(others):
            raise KeyTaken(ErrorCode.CONCURRENT_TRANSACTIONS, "Another request with this key has a result.")
        self.check_producer(producer.producer_id, result.try_id)
        written = result._replace(appended_ms=turn.now_ms)
        record = encode_result(request, written)
        size_bytes = _size(*record)
        self._check_room(request, size_bytes)
        self.end = turn.append([record], producer=producer)
        offset = Offset(self.end - 1)
        self._opened(offset, request, Head(written.try_id, written.appended_ms), producer.producer_id, size_bytes)
        return Accepted(offset, repeated=False)

    def check_producer(self, producer_id: ProducerId, try_id: bytes) -> None:
        """Raise if a producer has an open result of another try. The marker of that one is lost, and a marker of its next
        transaction would end it (EO11). So the partition may not even join that transaction.

        Raises: RequestRejected CONCURRENT_TRANSACTIONS.
        """
        if any(earlier.try_id != try_id for _, earlier in self._by_producer.get(producer_id, ())):
            raise RequestRejected(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                "An earlier transaction of this producer has a result that is open. Try again in some minutes.",
            )

    def _check_room(self, request: RequestKey, size_bytes: int) -> None:
        why = self._usage.refusal(request.principal, size_bytes)
        if why is not None:
            raise RequestRejected(ErrorCode.THROTTLING_QUOTA_EXCEEDED, why)

    # --- time ---------------------------------------------------------------------------------------------------------

    def due(self, turn: Turn, key: Any) -> None:
        """Let a minute pass, and forget results that are old enough."""
        turn.set_timer(key, TICK_MS)
        if self._ages.is_empty:
            return
        try:
            self.end = turn.append([encode_tick(turn.now_ms)])
        except RequestRejected:
            return  # the next tick lets the time pass
        self._ages.pass_time(turn.now_ms)
        first_open = next(iter(self._open.values()), None)
        first_offset = None if first_open is None else first_open.offset
        self.start = Offset(self._ages.expire(self._retention_ms(), self.end, first_offset))
        self._index.start = max(self._index.start, self.start)

    def drop_expired(self) -> Steps[None]:
        """Free the memory of expired results, with a yield after every few."""
        return self._index.drop_below(self.start)

    @property
    def key_count(self) -> int:
        """Results that are kept, committed or open."""
        return len(self._index) + len(self._open)

    @property
    def index_bytes(self) -> int:
        """Bytes that the index takes. Counted in one go: for figures."""
        return self._index.memory_bytes


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
