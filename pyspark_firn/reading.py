"""Reading a split: many ranged GETs under way, every chunk checked, record batches out in order.

``IN_FLIGHT_BYTES`` bounds the bytes under way and not yet decoded. A task also holds one chunk, its decompressed batches (in
portions, see ``decoding.py``) and one record batch. From a directory a chunk is read by the thread that decodes it, when it is
its turn, and the kernel is told of those behind it: to hand it over between threads costs as much as to copy it.

**Changes under a running job.** Offsets are fixed when planning. If a segment object is gone when it is read, the
manifest is read again: if another segment covers the offsets now (compaction wrote it), reading goes on there; if retention
has taken them, that is data loss, and an error or a warning with a count as ``failOnDataLoss`` says.
"""

from __future__ import annotations

import asyncio
import functools
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from app.client.cluster import EARLIEST, ClusterClient
from app.client.consumer import Consumer, FetchedBatch
from app.core.errors import BrokerUnavailable, CorruptionError, ErrorCode, RequestRejected, StorageUnavailable
from app.core.limits import MIB
from app.core.units import Offset, PartitionIndex, TopicId, TopicIdPartition, TopicPartition
from app.metadata.manifest.manifest_state import ManifestState
from app.objectstore.api import ObjectMissing, RangeUnsatisfiable
from app.objectstore.directory import DirectoryStore
from app.tiering.store.segment_format import SegmentFooter, check_stored_chunk, decode_footer
from app.tiering.store.store_work import unfold_chunk
from pyspark_firn.damage import missing
from pyspark_firn.decoding import RecordDecoder
from pyspark_firn.losses import OPTION_MEND, DataLoss, Losses
from pyspark_firn.options import Isolation
from pyspark_firn.planning import segments_between
from pyspark_firn.session import StoreSession
from pyspark_firn.splits import Piece, StoredSplit, TailSplit

IN_FLIGHT_BYTES: Final = 16 * MIB
"""Stored bytes asked for and not yet decoded, of one task."""
FOOTERS_AHEAD: Final = 8
GET_DEADLINE_S: Final = 60.0
GET_ATTEMPTS: Final = 4
RETRY_BASE_S: Final = 0.2
TAIL_FETCH_BYTES: Final = 8 * MIB
TAIL_IDLE_MS: Final = 30_000
"""A leader that gives nothing below an offset that it has named is given up after that."""


@dataclass(slots=True)
class ReadCounts:
    """The cost of reading a split."""

    requests: int = 0
    bytes: int = 0
    records: int = 0


class SplitReader:
    """Reads splits of one topic's partitions with one session."""

    def __init__(
        self,
        session: StoreSession,
        columns: Sequence[str],
        isolation: Isolation,
        *,
        fail_on_data_loss: bool,
        mend: str = OPTION_MEND,
    ) -> None:
        """``mend``: the last sentence of an error about lost data."""
        self.counts = ReadCounts()
        self.losses = Losses(fail=fail_on_data_loss, mend=mend)
        self._session = session
        self._columns = columns
        self._committed = isolation is Isolation.READ_COMMITTED

    def read(self, split: StoredSplit) -> Iterator[pa.RecordBatch]:
        """The records of a split, in order. Raises: CorruptionError, StorageUnavailable."""
        decoder = RecordDecoder(self._columns, split.topic, split.partition)
        for chunk in _ChunkReads(self._session, split, self.counts, self.losses):
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


@dataclass(slots=True)
class _Chunk:
    object_key: str
    footer: SegmentFooter
    index: int
    stored: bytes | memoryview
    offset_start: int
    offset_end: int
    """The end of the offsets that this read returns: a replacement may reach past the piece that it stands for."""


@dataclass(slots=True)
class _Asked:
    """A chunk on its way."""

    object_key: str
    footer: SegmentFooter
    index: int
    offset_start: int
    offset_end: int
    stored: Future[bytes | memoryview] | _ReadInTurn


class _ReadInTurn:
    """A range of a directory's object, in the place of a future: read when it is wanted."""

    def __init__(self, read: Callable[[], bytes | memoryview]) -> None:
        self.result = read

    def cancel(self) -> None:
        """Nothing is under way."""


@dataclass(slots=True)
class _Run:
    """A run of chunks of one object, wanted for the offsets [offset_start, offset_end)."""

    object_key: str
    footer: Future[SegmentFooter]
    chunk_start: int | None
    """None: the chunks that cover the offsets, as the footer says."""
    chunk_end: int | None
    offset_start: int
    offset_end: int
    piece: Piece | None = None
    """The planned piece, if nothing has moved yet."""


class _ChunkReads:
    """Iterates the stored chunks of a split in order, with reads ahead of it."""

    def __init__(self, session: StoreSession, split: StoredSplit, counts: ReadCounts, losses: Losses) -> None:
        self._session = session
        self._split = split
        topic_id = TopicId(uuid.UUID(bytes=split.topic_id))
        self._partition = TopicIdPartition(topic_id, PartitionIndex(split.partition))
        self._name = f"{split.topic}-{split.partition}"
        self._counts = counts
        self._losses = losses
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
            self._runs.append(
                _Run(
                    piece.object_key,
                    asked,
                    piece.chunk_start,
                    piece.chunk_end,
                    piece.base_offset,
                    piece.end_offset,
                    piece,
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
                    f"{run.object_key}: {len(footer.chunks)} chunks, where the manifest tells of {run.chunk_end}."
                )
            index = run.chunk_start
            if index >= run.chunk_end:
                self._runs.popleft()
                continue
            run.chunk_start = index + 1
            entry = footer.chunks[index]
            self._in_flight += entry.stored_bytes
            stored = self._ask(run.object_key, entry.position, entry.stored_bytes)
            self._asked.append(_Asked(run.object_key, footer, index, run.offset_start, run.offset_end, stored))

    # --- moved segments ---------------------------------------------------------------------------------------------

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
        # Reads that were requested behind it are requested again behind the replacement.
        behind: list[_Run] = []
        while self._asked:
            asked = self._asked.popleft()
            self._forget(asked)
            known: Future[SegmentFooter] = Future()
            known.set_result(asked.footer)
            start_index, end_index = asked.index, asked.index + 1
            behind.append(_Run(asked.object_key, known, start_index, end_index, asked.offset_start, asked.offset_end))
        self._runs.extendleft(reversed(behind))
        self._find_again(start, min(int(end), missing.offset_end), missing.object_key)

    def _find_run_again(self, run: _Run) -> None:
        """A footer's object is gone, before any chunk of it was asked for."""
        if run.piece is None or run.piece.knows_offsets:
            self._find_again(run.offset_start, run.offset_end, run.object_key)
            return
        # Without the footer, the offsets of these chunks are unknown, and other tasks read the rest.
        now = segments_between(self._manifest(), run.offset_start, run.offset_end)
        for entry in now:
            self._check_moved(entry.object_key(*self._partition), run.object_key)
        if now:
            raise DataLoss(f"{run.object_key} was replaced while several tasks read parts of it; run the job again.")
        self._losses.report(
            f"A part of offsets [{run.offset_start}, {run.offset_end}) of {self._name} is gone with {run.object_key}",
            run.piece.offsets_about,
        )

    def _forget(self, asked: _Asked) -> None:
        asked.stored.cancel()
        self._in_flight -= asked.footer.chunks[asked.index].stored_bytes

    def _find_again(self, start: int, end: int, object_key: str) -> None:
        """Put the pieces that cover [start, end) now before all remaining ones. Raises: DataLoss, CorruptionError."""
        at, end = max(start, self._split.offset_start), min(end, self._split.offset_end)
        state = self._manifest()
        found: list[_Run] = []
        while at < end:
            entry = state.find(at)
            if entry is None:
                following = state.finished[state.index_at(at) :]
                next_start = min(following[0].base_offset, end) if following else end
                self._losses.report(
                    f"Offsets [{at}, {next_start}) of {self._name} are gone with {object_key}", next_start - at
                )
                at = next_start
                continue
            key = entry.object_key(*self._partition)
            self._check_moved(key, object_key)
            footer = self._session.submit(self._footer(key, entry.size_bytes, entry.footer_position))
            run_end = min(int(entry.end_offset), end)
            found.append(_Run(key, footer, None, None, at, run_end))
            at = run_end
        self._runs.extendleft(reversed(found))

    @staticmethod
    def _check_moved(key: str, missing_key: str) -> None:
        """Raises: CorruptionError if the manifest still names an object that is missing."""
        if key == missing_key:
            raise missing(key)

    def _manifest(self) -> ManifestState:
        """The manifest as of now."""
        return self._session.run(self._session.metadata.manifest(self._partition))

    # --- requests ---------------------------------------------------------------------------------------------------

    def _ask(self, key: str, position: int, length: int) -> Future[bytes | memoryview] | _ReadInTurn:
        store = self._session.store
        if isinstance(store, DirectoryStore):
            store.expect_range(key, position, position + length)
            return _ReadInTurn(functools.partial(self._get_now, store, key, position, length))
        return self._session.submit(self._get(key, position, length))

    def _get_now(self, store: DirectoryStore, key: str, position: int, length: int) -> bytes | memoryview:
        """As ``_get``, on this thread unless something is wrong."""
        try:
            data = store.get_range_now(key, position, position + length)
        except (RangeUnsatisfiable, StorageUnavailable):
            data = b""
        if len(data) != length:
            return self._session.run(self._get(key, position, length))
        self._counts.requests += 1
        self._counts.bytes += length
        return data

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
                raise CorruptionError(f"{key} ends before position {position}.") from error
            except TimeoutError:
                failure = StorageUnavailable(f"{key} was not answered within {GET_DEADLINE_S:g} s.")
            except StorageUnavailable as error:
                failure = error
            else:
                self._counts.bytes += len(data)
                if len(data) != length:
                    raise CorruptionError(f"{key} ends before position {position + length}.")
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
    losses: Losses,
) -> Iterator[pa.RecordBatch]:
    """The records of a split that is fetched from its leader, in order.

    Raises: DataLoss (the offsets are not there any more), BrokerUnavailable, RequestRejected, CorruptionError.
    """
    decoder = RecordDecoder(columns, split.topic, split.partition)
    partition = TopicPartition(split.topic, PartitionIndex(split.partition))
    fetches = _TailFetches(brokers, partition, isolation, split, losses)
    if not session.run(fetches.open()):
        return
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
        losses: Losses,
    ) -> None:
        self._brokers = brokers
        self._partition = partition
        self._committed = isolation is Isolation.READ_COMMITTED
        self._split = split
        self._losses = losses

    async def open(self) -> bool:
        """Whether there is anything to fetch; if not, nothing stays open."""
        self._cluster = ClusterClient(self._brokers, rng=random.Random(), client_id="firn-spark")
        self._consumer = Consumer(
            self._cluster,
            max_bytes=TAIL_FETCH_BYTES,
            partition_max_bytes=TAIL_FETCH_BYTES,
            read_committed=self._committed,
        )
        self._consumer.assign({self._partition: Offset(self._split.offset_start)})
        try:
            try:
                await self._cluster.topic(self._partition.topic)
            except RequestRejected as error:
                self._refused(error)
            self._check_topic(self.position)
        except BaseException:
            await self.close()
            raise
        if self.position < self._split.offset_end:
            return True
        await self.close()
        return False

    @property
    def position(self) -> int:
        return self._consumer.position(self._partition)

    async def poll(self) -> list[FetchedBatch]:
        """The next batches; none if only the position moved, perhaps over deleted offsets."""
        before = self.position
        try:
            batches = await self._consumer.poll(TAIL_IDLE_MS)
        except RequestRejected as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._pass_over()
            else:
                self._refused(error)
            return []
        if not self._check_topic(before):
            return []
        if not batches and self.position == before:
            raise BrokerUnavailable(
                f"The leader of {self._partition} gave nothing of [{before}, {self._split.offset_end}) in"
                f" {TAIL_IDLE_MS // 1000} s."
            )
        return batches

    def _check_topic(self, start: int) -> bool:
        """Whether the records from ``start`` on are of the planned topic: a client goes on unasked in a new one of that name."""
        topic = self._cluster.view.topics.get(self._partition.topic)
        if topic is None or topic.topic_id.bytes == self._split.topic_id:
            return True
        self._lost("was deleted and made again", start, self._split.offset_end)
        return False

    def _refused(self, error: RequestRejected) -> None:
        """Raises: DataLoss; the error itself unless it says that the topic is gone."""
        if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            raise error
        self._lost("was deleted", self.position, self._split.offset_end)

    def _lost(self, why: str, start: int, end: int) -> None:
        """Report that [start, end) is gone, and go on behind it. Raises: DataLoss."""
        self._losses.report(
            f"Offsets [{start}, {end}) of {self._partition} are gone from the brokers: it {why}", end - start
        )
        self._consumer.seek(self._partition, Offset(end))

    async def _pass_over(self) -> None:
        """The position is outside the log: go on where the log starts, or nowhere if it ends before the position."""
        found = await self._cluster.list_offsets({self._partition: EARLIEST})
        log_start = found[self._partition].offset
        if log_start > self.position:
            self._lost(f"starts at offset {log_start} now", self.position, min(log_start, self._split.offset_end))
        else:
            self._lost("ends before them now", self.position, self._split.offset_end)

    async def close(self) -> None:
        await self._consumer.close()
        await self._cluster.close()
