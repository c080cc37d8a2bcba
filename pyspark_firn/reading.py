"""Reading a split: many ranged GETs under way, every chunk checked, record batches out in order.

What is under way and not yet decoded is bounded by ``IN_FLIGHT_BYTES``; besides it a task holds one chunk, what its batches
unfold to (in portions, see ``decoding.py``) and one record batch.

**What may change under a running job.** Offsets are fixed when planning. If a segment object is gone when it is read, the
manifest is read again: if another segment covers the offsets now (compaction wrote it), reading goes on there; if retention
has taken them, that is data loss, and an error or a warning with a count as ``failOnDataLoss`` says.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer, FetchedBatch
from app.errors import BrokerUnavailable, CorruptionError, ErrorCode, RequestRejected, StorageUnavailable
from app.limits import MIB
from app.objectstore.api import ObjectMissing, RangeUnsatisfiable
from app.tiering.segment_format import SegmentFooter, check_stored_chunk, decode_footer
from app.tiering.store_work import unfold_chunk
from app.units import Offset, PartitionIndex, TopicId, TopicIdPartition, TopicPartition
from pyspark_firn.decoding import RecordDecoder
from pyspark_firn.options import Isolation
from pyspark_firn.session import StoreSession
from pyspark_firn.splits import StoredSplit, TailSplit

IN_FLIGHT_BYTES: Final = 16 * MIB
"""Stored bytes asked for and not yet decoded, of one task."""
FOOTERS_AHEAD: Final = 8
GET_DEADLINE_S: Final = 60.0
GET_ATTEMPTS: Final = 4
RETRY_BASE_S: Final = 0.2
TAIL_FETCH_BYTES: Final = 8 * MIB
TAIL_IDLE_MS: Final = 30_000
"""A leader that gives nothing below an offset that it has named is given up after that."""

_logger = logging.getLogger("pyspark_firn")


@dataclass(slots=True)
class ReadCounts:
    """What reading a split has cost."""

    requests: int = 0
    bytes: int = 0
    records: int = 0
    offsets_lost: int = 0


class DataLoss(CorruptionError):
    """Offsets that were there when the read was planned are gone."""


class SplitReader:
    """Reads splits of one topic's partitions with one session."""

    def __init__(
        self, session: StoreSession, columns: Sequence[str], isolation: Isolation, *, fail_on_data_loss: bool
    ) -> None:
        self.counts = ReadCounts()
        self._session = session
        self._columns = columns
        self._committed = isolation is Isolation.READ_COMMITTED
        self._fail_on_data_loss = fail_on_data_loss

    def read(self, split: StoredSplit) -> Iterator[pa.RecordBatch]:
        """The records of a split, in order. Raises: CorruptionError, StorageUnavailable."""
        decoder = RecordDecoder(self._columns, split.topic, split.partition)
        for chunk in _ChunkReads(self._session, split, self.counts, self._lost):
            footer = chunk.footer
            entry = footer.chunks[chunk.index]
            name = f"{chunk.object_key}: chunk at position {entry.position}"
            for batch in decoder.decode(
                unfold_chunk(chunk.stored, entry, chunk.object_key),
                name,
                batch_count=entry.batch_count,
                first_offset=max(split.offset_start, chunk.offset_start),
                end_offset=min(split.offset_end, chunk.offset_end),
                aborted=footer.aborted if self._committed else (),
            ):
                if batch.num_rows:
                    self.counts.records += batch.num_rows
                    yield batch

    def _lost(self, what: str, offsets: int) -> None:
        if self._fail_on_data_loss:
            raise DataLoss(f"{what}; write failOnDataLoss=false to go on without them.")
        self.counts.offsets_lost += offsets
        _logger.warning("%s (%d offsets).", what, offsets)


@dataclass(slots=True)
class _Chunk:
    object_key: str
    footer: SegmentFooter
    index: int
    stored: bytes | memoryview
    offset_start: int
    offset_end: int
    """What of it this read is to give: a replacement may reach past the piece that it stands for."""


@dataclass(slots=True)
class _Asked:
    """A chunk on its way."""

    object_key: str
    footer: SegmentFooter
    index: int
    offset_start: int
    offset_end: int
    stored: Future[bytes | memoryview]


@dataclass(slots=True)
class _Run:
    """A run of chunks of one object, wanted for the offsets [offset_start, offset_end)."""

    object_key: str
    footer: Future[SegmentFooter]
    chunk_start: int | None
    """None: the chunks that cover the offsets, as the footer says."""
    chunk_end: int | None
    is_whole: bool
    """Whether these are all chunks of the object, so that the offsets alone say what is meant."""
    offset_start: int
    offset_end: int


class _ChunkReads:
    """Iterates the stored chunks of a split in order, with reads ahead of it."""

    def __init__(
        self, session: StoreSession, split: StoredSplit, counts: ReadCounts, lost: Callable[[str, int], None]
    ) -> None:
        self._session = session
        self._split = split
        self._counts = counts
        self._lost = lost
        self._pieces = deque(split.pieces)
        self._runs: deque[_Run] = deque()
        self._asked: deque[_Asked] = deque()
        self._in_flight = 0

    def __iter__(self) -> Iterator[_Chunk]:
        try:
            while True:
                self._fill()
                if not self._asked:
                    if not self._runs:
                        return
                    continue
                asked = self._asked.popleft()
                entry = asked.footer.chunks[asked.index]
                self._in_flight -= entry.stored_bytes
                try:
                    stored = asked.stored.result()
                except ObjectMissing:
                    self._find_chunks_again(asked)
                    continue
                check_stored_chunk(stored, entry, asked.object_key)
                yield _Chunk(asked.object_key, asked.footer, asked.index, stored, asked.offset_start, asked.offset_end)
        finally:
            for asked in self._asked:
                asked.stored.cancel()
            for run in self._runs:
                run.footer.cancel()

    def _fill(self) -> None:
        """Ask for footers and chunks as far ahead as the bounds allow; waits only if nothing at all is under way."""
        while self._pieces and len(self._runs) < FOOTERS_AHEAD:
            piece = self._pieces.popleft()
            asked = self._session.submit(self._footer(piece.object_key, piece.object_bytes, piece.footer_position))
            is_whole = piece.chunk_start == 0 and piece.chunk_end == piece.chunk_count
            self._runs.append(
                _Run(
                    piece.object_key,
                    asked,
                    piece.chunk_start,
                    piece.chunk_end,
                    is_whole,
                    piece.base_offset,
                    piece.end_offset,
                )
            )
        while self._runs and (self._in_flight < IN_FLIGHT_BYTES or not self._asked):
            run = self._runs[0]
            if self._asked and not run.footer.done():
                return
            try:
                footer = run.footer.result()
            except ObjectMissing:
                self._runs.popleft()
                self._find_run_again(run)
                continue
            if run.chunk_start is None or run.chunk_end is None:
                run.chunk_start = footer.chunk_index_of(Offset(max(run.offset_start, footer.base_offset)))
                run.chunk_end = footer.chunk_index_of(Offset(min(run.offset_end, footer.end_offset) - 1)) + 1
            if run.chunk_end > len(footer.chunks):
                raise CorruptionError(
                    f"{run.object_key}: {len(footer.chunks)} chunks, where the manifest tells of {run.chunk_end}"
                )
            index = run.chunk_start
            if index >= run.chunk_end:
                self._runs.popleft()
                continue
            run.chunk_start = index + 1
            entry = footer.chunks[index]
            self._in_flight += entry.stored_bytes
            stored = self._session.submit(self._get(run.object_key, entry.position, entry.stored_bytes))
            self._asked.append(_Asked(run.object_key, footer, index, run.offset_start, run.offset_end, stored))

    # --- what has moved ---------------------------------------------------------------------------------------------

    def _find_chunks_again(self, missing: _Asked) -> None:
        """A chunk's object is gone: all of the object that was not read yet, which is known by its offsets, is found again."""
        start = max(int(missing.footer.chunks[missing.index].base_offset), missing.offset_start)
        end = missing.footer.chunk_end_offset(missing.index)
        while self._asked and self._asked[0].object_key == missing.object_key:
            end = self._asked[0].footer.chunk_end_offset(self._asked[0].index)
            self._forget(self._asked.popleft())
        if self._runs and self._runs[0].object_key == missing.object_key and self._runs[0].footer.done():
            run = self._runs.popleft()
            assert run.chunk_end is not None
            end = missing.footer.chunk_end_offset(run.chunk_end - 1)
        # What was asked for behind it is asked for again behind what is found now.
        behind: list[_Run] = []
        while self._asked:
            asked = self._asked.popleft()
            self._forget(asked)
            known: Future[SegmentFooter] = Future()
            known.set_result(asked.footer)
            start_index, end_index = asked.index, asked.index + 1
            behind.append(
                _Run(asked.object_key, known, start_index, end_index, False, asked.offset_start, asked.offset_end)
            )
        self._runs.extendleft(reversed(behind))
        self._find_again(start, min(int(end), missing.offset_end), missing.object_key)

    def _find_run_again(self, run: _Run) -> None:
        """A footer's object is gone, before any chunk of it was asked for."""
        if not run.is_whole:
            # Without the footer nobody knows which offsets these chunks held, and other tasks read the rest.
            raise DataLoss(
                f"{run.object_key} was deleted or replaced while it was being read in parts; run the job again"
            )
        self._find_again(run.offset_start, run.offset_end, run.object_key)

    def _forget(self, asked: _Asked) -> None:
        asked.stored.cancel()
        self._in_flight -= asked.footer.chunks[asked.index].stored_bytes

    def _find_again(self, start: int, end: int, object_key: str) -> None:
        """Put what covers [start, end) now before everything that is still to be read. Raises: DataLoss, CorruptionError."""
        at, end = max(start, self._split.offset_start), min(end, self._split.offset_end)
        topic_id = TopicId(uuid.UUID(bytes=self._split.topic_id))
        partition = TopicIdPartition(topic_id, PartitionIndex(self._split.partition))
        where = f"{self._split.topic}-{self._split.partition}"
        state = self._session.run(self._session.metadata.manifest(partition))
        found: list[_Run] = []
        while at < end:
            entry = state.find(at)
            if entry is None:
                following = state.finished[state.index_at(at) :]
                next_start = min(following[0].base_offset, end) if following else end
                self._lost(f"Offsets [{at}, {next_start}) of {where} are gone with {object_key}", next_start - at)
                at = next_start
                continue
            key = entry.object_key(*partition)
            if key == object_key:
                raise CorruptionError(
                    f"{key} is gone, although the manifest names it; `firn verify` tells what else is missing"
                )
            footer = self._session.submit(self._footer(key, entry.size_bytes, entry.footer_position))
            run_end = min(int(entry.end_offset), end)
            found.append(_Run(key, footer, None, None, True, at, run_end))
            at = run_end
        self._runs.extendleft(reversed(found))

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _footer(self, key: str, object_bytes: int, position: int) -> SegmentFooter:
        tail = await self._get(key, position, object_bytes - position)
        return decode_footer(tail, object_bytes, key)

    async def _get(self, key: str, position: int, length: int) -> bytes | memoryview:
        """A range of an object, asked for again while the store is not available.

        Raises: ObjectMissing, CorruptionError (the object is too short), StorageUnavailable.
        """
        for attempt in range(GET_ATTEMPTS):
            self._counts.requests += 1
            try:
                async with asyncio.timeout(GET_DEADLINE_S):
                    data = await self._session.store.get_range(key, position, position + length)
            except RangeUnsatisfiable as error:
                raise CorruptionError(f"{key} ends before position {position}") from error
            except TimeoutError:
                failure = StorageUnavailable(f"{key} was not answered within {GET_DEADLINE_S:g} s")
            except StorageUnavailable as error:
                failure = error
            else:
                self._counts.bytes += len(data)
                if len(data) != length:
                    raise CorruptionError(f"{key} ends before position {position + length}")
                return data
            if attempt + 1 == GET_ATTEMPTS:
                raise failure
            await asyncio.sleep(RETRY_BASE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")


def read_tail(
    session: StoreSession,
    brokers: Sequence[tuple[str, int]],
    columns: Sequence[str],
    isolation: Isolation,
    split: TailSplit,
) -> Iterator[pa.RecordBatch]:
    """The records of a split that is fetched from its leader, in order.

    Raises: DataLoss (the offsets are not there any more), BrokerUnavailable, RequestRejected, CorruptionError.
    """
    decoder = RecordDecoder(columns, split.topic, split.partition)
    partition = TopicPartition(split.topic, PartitionIndex(split.partition))
    fetches = _TailFetches(brokers, partition, isolation, split)
    session.run(fetches.open())
    try:
        while fetches.position < split.offset_end:
            for fetched in session.run(fetches.poll()):
                yield from (
                    batch
                    for batch in decoder.decode(
                        fetched.view,
                        f"{partition} from its leader",
                        batch_count=1,
                        first_offset=split.offset_start,
                        end_offset=split.offset_end,
                    )
                    if batch.num_rows
                )
    finally:
        session.run(fetches.close())


class _TailFetches:
    """A consumer of one partition on the session's loop."""

    def __init__(
        self,
        brokers: Sequence[tuple[str, int]],
        partition: TopicPartition,
        isolation: Isolation,
        split: TailSplit,
    ) -> None:
        self._brokers = brokers
        self._partition = partition
        self._committed = isolation is Isolation.READ_COMMITTED
        self._split = split

    async def open(self) -> None:
        self._cluster = ClusterClient(self._brokers, rng=random.Random(), client_id="firn-spark")
        self._consumer = Consumer(
            self._cluster,
            max_bytes=TAIL_FETCH_BYTES,
            partition_max_bytes=TAIL_FETCH_BYTES,
            read_committed=self._committed,
        )
        self._consumer.assign({self._partition: Offset(self._split.offset_start)})
        try:
            topic = await self._cluster.topic(self._partition.topic)
        except BaseException:
            await self.close()
            raise
        if topic.topic_id.bytes != self._split.topic_id:
            await self.close()
            raise DataLoss(f"Topic {self._partition.topic} was deleted and made again; run the job again")

    @property
    def position(self) -> int:
        return self._consumer.position(self._partition)

    async def poll(self) -> list[FetchedBatch]:
        before = self.position
        try:
            batches = await self._consumer.poll(TAIL_IDLE_MS)
        except RequestRejected as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                raise DataLoss(f"{error}: the records went while the job ran; run the job again") from error
            raise
        if not batches and self.position == before:
            raise BrokerUnavailable(
                f"The leader of {self._partition} gave nothing of [{before}, {self._split.offset_end}) in"
                f" {TAIL_IDLE_MS // 1000} s"
            )
        return batches

    async def close(self) -> None:
        await self._consumer.close()
        await self._cluster.close()
