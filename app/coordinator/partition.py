"""One led partition of an internal topic, with the operations of a coordinator: append, wait until stored, read all records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.errors import CorruptionError, StorageUnavailable, clause
from app.core.limits import KIB
from app.core.units import (
    NO_PRODUCER_ID,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from app.records.batch import CODEC_MASK, CONTROL, HEADER_BYTES, LENGTH_PREFIX_BYTES, TRANSACTIONAL
from app.records.builder import build_batch
from app.records.control import EndTransactionMarker, parse_marker
from app.records.record import iter_records, walk_records
from app.records.varint import encode_varint
from app.replication.reading import Awaited

if TYPE_CHECKING:
    from app.replication.partition import Partition
    from app.replication.reading import PartitionReads

REPLAY_READ_BYTES: Final = 64 * KIB
"""Bytes read and decoded before the event loop serves other work: 1,000 to 2,000 records, a few milliseconds."""

REPLAY_TRIES_MAX: Final = 10
"""Maximum retries of a read because compaction swapped the segment meanwhile."""

_HEADER: Final = Struct(">qi9xhi16xqh4xi")
"""Fields of a batch header: base offset, length, attributes, last offset delta, producer id and epoch, record count."""
_LENGTH_AT, _LENGTH_END = 8, 12
_KIND_AT, _KIND_END = 21, 27
"""Attributes and last offset delta."""
_PRODUCER_AT: Final = 43
_NOT_PLAIN: Final = CODEC_MASK | TRANSACTIONAL | CONTROL
_NO_EPOCH: Final = ProducerEpoch(-1)

assert _HEADER.size == HEADER_BYTES

RawRecord = tuple[bytes, bytes | None]
"""Key and value. The value None is a tombstone."""


class ProducerIdAndEpoch(NamedTuple):
    """The producer for which a transactional batch is written."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class ReplayedBatch(NamedTuple):
    """One or several successive batches that were read: records, or the marker that ends a producer's transaction."""

    end_offset: Offset
    producer_id: ProducerId
    """Producer id of a transactional batch; -1 for other batches."""
    producer_epoch: ProducerEpoch
    records: Sequence[RawRecord]
    marker: EndTransactionMarker | None


class CoordinatedLog:
    """A led partition of an internal topic. Records are appended in the order of the calls, and there is no other writer."""

    __slots__ = ("_log", "_partition")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._log = partition.log

    @property
    def topic_partition(self) -> TopicPartition:
        return self._log.topic_partition

    @property
    def partition(self) -> PartitionIndex:
        return self._log.partition

    @property
    def end_offset(self) -> Offset:
        """One past the last record appended."""
        return self._log.log_end_offset

    @property
    def record_count(self) -> int:
        """Records of the log, at most."""
        return self._log.log_end_offset - self._log.log_start_offset

    def append(
        self, records: Sequence[RawRecord], *, now_ms: int, producer: ProducerIdAndEpoch | None = None
    ) -> Offset:
        """Write records as one batch. Returns: the offset after them, which is the argument of ``stored``.

        With ``producer`` the batch belongs to its open transaction, and does not count before the marker (KIP-98).

        Raises, with nothing written: RequestRejected NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE, INVALID_PRODUCER_EPOCH, and
        NOT_LEADER_OR_FOLLOWER once this broker leads the partition no more; StorageFull; StorageUnavailable.
        """
        assert records
        if not self._partition.commits_alone:
            self._partition.check_in_sync()
        timestamp = TimestampMs(now_ms)
        rows = [(timestamp, key, value, ()) for key, value in records]
        if producer is None:
            batch = build_batch(rows)
        else:
            batch = build_batch(
                rows,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transactional=True,
            )
        return self._log.append_from_coordinator(memoryview(bytearray(batch)), now_ms=now_ms).last_offset_end

    def stored(self, offset_end: Offset) -> Awaitable[None] | None:
        """None if all records below ``offset_end`` are stored under the topic's durability by all replicas in sync; else an
        awaitable until they are.

        The awaitable raises NotLeader if this broker stopped to lead meanwhile, even if it leads again: another record may have the
        offset then. It raises StorageUnavailable if they cannot be stored any more.
        """
        return self._partition.wait_stored_as_leader(offset_end)

    def is_of(self, partition: Partition) -> bool:
        """Whether this is the log of that very partition."""
        return self._partition is partition

    async def replay(
        self, start: Offset | None = None, reads: PartitionReads | None = None
    ) -> AsyncIterator[list[ReplayedBatch]]:
        """All records of the log from ``start`` on (None: from its start), in order, some batches at a time. The event loop serves
        other work in between. ``reads``: as for ``read_all``. Raises: as ``read_all``.
        """
        async for data in self.read_all(start, reads):
            yield decode_batches(data)

    async def read_all(
        self,
        start: Offset | None = None,
        reads: PartitionReads | None = None,
        *,
        at_once_bytes: int = REPLAY_READ_BYTES,
    ) -> AsyncIterator[bytes]:
        """The bytes of all batches of the log from ``start`` on (None: from its start), in order, some whole batches at a time. The
        event loop serves other work in between. ``reads``: for a topic that is not compacted, and so may have records in the store
        alone.

        Records that are appended meanwhile are included: the iteration ends only at the log end.

        Raises: CorruptionError; StorageUnavailable.
        """
        log = self._log
        offset = log.log_start_offset if start is None else max(start, log.log_start_offset)
        tries = 0
        while offset < log.log_end_offset:
            try:
                if reads is not None and offset < log.local_log_start_offset:
                    next_offset, data = await self._of_store(reads, offset, at_once_bytes)
                else:
                    read = await log.read_when_ready(offset, at_once_bytes, end_offset=log.log_end_offset)
                    found = read.try_read_now()
                    data = await read.read_bytes() if found is None else found
                    next_offset = read.end_offset
            except StorageUnavailable:
                tries += 1
                if log.offline_error is not None or tries == REPLAY_TRIES_MAX:
                    raise
                continue
            tries = 0
            if next_offset <= offset:
                raise CorruptionError(f"{log.topic_partition} has nothing to read at offset {offset}, below its end.")
            yield bytes(data)
            offset = next_offset
            await asyncio.sleep(0)

    async def _of_store(
        self, reads: PartitionReads, offset: Offset, at_once_bytes: int
    ) -> tuple[Offset, bytes | bytearray]:
        """Batches below the local log start, and the offset after them. Raises: FirnError."""
        log = self._log
        while True:
            read = await reads.read_when_ready(
                log, offset, at_once_bytes, end_offset=log.local_log_start_offset, committed=False
            )
            if read.ranges:
                return Offset(read.end_offset), await reads.take(read)
            await until_at_hand(read.lacks, log.topic_partition)


async def until_at_hand(lacks: object, partition: TopicPartition) -> None:
    """Wait for bytes of the object store. ``lacks``: of a ``PartitionRead`` without bytes. Raises: StorageUnavailable."""
    if not isinstance(lacks, Awaited):
        raise StorageUnavailable(f"{partition} cannot be read now.")
    ready = asyncio.Event()
    forget = lacks.add(ready.set)
    try:
        await ready.wait()
    finally:
        forget()


def decode_batches(data: bytes) -> list[ReplayedBatch]:
    """The batches in ``data``, trusted bytes of our own log, with their records. Raises: CorruptionError.

    Successive batches without a transaction and without compression are merged into one: most of them have a single commit, and the
    start of a broker pays for every batch and every record.
    """
    batches: list[ReplayedBatch] = []
    plain: list[RawRecord] = []
    shapes: dict[bytes, _Shape] = {}
    position, data_end = 0, len(data)
    plain_at = -1
    while position + HEADER_BYTES <= data_end:
        shape = shapes.get(data[position + _LENGTH_AT : position + _LENGTH_END])
        if shape is not None:
            unpack, kind, head, between, size = shape
            if position + size <= data_end:
                kind_here, head_here, key, between_here, value = unpack(data, position)
                if kind_here == kind and head_here == head and between_here == between:
                    plain.append((key, value))
                    plain_at = position
                    position += size
                    continue
        base_offset, length, attributes, delta, producer_id, epoch, count = _HEADER.unpack_from(data, position)
        end = position + LENGTH_PREFIX_BYTES + length
        if end > data_end:
            break
        end_offset = Offset(base_offset + delta + 1)
        if attributes & _NOT_PLAIN:
            if plain:
                batches.append(ReplayedBatch(Offset(base_offset), NO_PRODUCER_ID, _NO_EPOCH, plain, None))
                plain = []
            plain_at = -1
            if not attributes & TRANSACTIONAL:
                producer_id = NO_PRODUCER_ID
            view = memoryview(data)[position:end]
            marker = parse_marker(view) if attributes & CONTROL else None
            records = [] if attributes & CONTROL else _records(view)
            batches.append(ReplayedBatch(end_offset, producer_id, epoch, records, marker))
        else:
            try:
                plain += [
                    (data[key_at:key_end], data[value_at:value_end] if value_end >= 0 else None)
                    for _, _, key_at, key_end, value_at, value_end, _ in walk_records(
                        data, position + HEADER_BYTES, end, count, delta
                    )
                    if key_end >= 0
                ]
            except (IndexError, ValueError) as error:
                raise CorruptionError(
                    f"The batch at offset {base_offset} is not sound inside: {clause(error)}."
                ) from None
            plain_at = position
            if count == 1 and shape is None and plain:
                shape = _shape_of(data[position:end], *plain[-1])
                if shape is not None:
                    shapes[data[position + _LENGTH_AT : position + _LENGTH_END]] = shape
        position = end
    if plain_at >= 0:
        base_offset, _, _, delta, _, _, _ = _HEADER.unpack_from(data, plain_at)
        batches.append(ReplayedBatch(Offset(base_offset + delta + 1), NO_PRODUCER_ID, _NO_EPOCH, plain, None))
    return batches


class _Shape(NamedTuple):
    """The layout of a plain batch with one record. Another batch of the same length has the same layout if these bytes are
    equal. Then it need not be decoded."""

    unpack: Callable[[bytes, int], tuple[bytes, ...]]
    """Splits a batch into the three parts below. The key follows the second part, and the value follows the third."""
    kind: bytes
    """Attributes and last offset delta."""
    head: bytes
    """From the producer id to the length of the record's key."""
    between: bytes
    """Length of the value, after the key."""
    size: int


def _shape_of(batch: bytes, key: bytes, value: bytes | None) -> _Shape | None:
    """The layout of a decoded plain batch with one record. None if the batch is unusual: if it has headers, or numbers in more
    bytes than necessary."""
    if value is None:
        return None
    key_length, between = encode_varint(len(key)), encode_varint(len(value))
    # Before the key: attributes, timestamp delta, offset delta; after the value: the number of headers.
    body = b"".join((bytes(3), key_length, key, between, value, bytes(1)))
    record = encode_varint(len(body)) + body
    if batch[HEADER_BYTES:] != record:
        return None
    key_start = len(batch) - 1 - len(value) - len(between) - len(key)
    kind, head = batch[_KIND_AT:_KIND_END], batch[_PRODUCER_AT:key_start]
    fields = f"{len(head)}s{len(key)}s{len(between)}s{len(value)}s"
    unpack = Struct(f">{_KIND_AT}x{len(kind)}s{_PRODUCER_AT - _KIND_END}x{fields}").unpack_from
    return _Shape(unpack, kind, head, between, len(batch))


def _records(batch: memoryview) -> list[RawRecord]:
    return [(record.key, record.value) for record in iter_records(batch) if record.key is not None]
