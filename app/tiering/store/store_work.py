"""The heavy work of tiering: upload a segment, fetch a chunk, read a footer.

``StoreWork`` is a seam. ``InlineStoreWork`` does the work in the calling process: in the store process, and in one event loop
of tests and the simulation. ``ProxyStoreWork`` (``store_proxy.py``) calls the store process, so the broker's core never
compresses, checks or moves cold bytes. Bulk data passes through files: segment files for uploads, chunk-cache files for
fetches.

Guarantees:

- A damaged batch is never uploaded: the CRC of every batch is checked when the file is read.
- An object appears completely or not at all, and never replaces another object (conditional completion).
- No byte of a chunk is returned before the CRC of the chunk was checked.
- Memory is bounded by the number of concurrent uploads and reads, never by a segment's size.
- Every wait for the store has a deadline. Progress is counted, so that a watchdog sees an upload without progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import pairwise
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from crc32c import crc32c

from app.configs import TierCompression
from app.core.errors import (
    ConflictError,
    CorruptionError,
    FirnError,
    LimitExceeded,
    StorageUnavailable,
    clause,
    without_frames,
)
from app.core.limits import CHUNK_BYTES_MAX, KIB, MIB, SEGMENT_FOOTER_BYTES_MAX
from app.core.seams import BlockingPool
from app.core.units import (
    Buffer,
    FilePosition,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    SegmentId,
    TimestampMs,
    TopicId,
)
from app.machine.files import FileSystem, storage_error, unlink_quietly, write_whole
from app.objectstore.api import AlreadyExists, ObjectMissing, ObjectStore, RangeUnsatisfiable, Upload
from app.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, parse_header
from app.tiering.store.segment_format import (
    TAIL_BYTES,
    TRAILER_BYTES,
    AbortedTransaction,
    ChunkCodec,
    ChunkEntry,
    EpochStart,
    RawChunk,
    SegmentFooter,
    check_stored_chunk,
    encode_footer,
    footer_tail_bytes,
    scan_chunk,
    store_compressed,
)

if TYPE_CHECKING:
    from app.metadata.manifest.manifest import SegmentEntry

T = TypeVar("T")
Memory: TypeAlias = "bytearray | mmap"

PART_BYTES: Final = 8 * MIB
"""Size at which collected chunks are uploaded as one part. Large parts cost the fewest requests and the least CPU per byte."""
PARTS_IN_FLIGHT: Final = 3
CHUNKS_IN_FLIGHT: Final = 3
PART_DEADLINE_S: Final = 60.0
"""Deadline for one part of a few MiB. A slower store is treated as hanging."""
PART_ATTEMPTS: Final = 3
GET_DEADLINE_S: Final = 30.0
RANGE_BYTES: Final = 8 * MIB
"""A larger chunk is fetched by several concurrent ranged GETs."""
ZSTD_LEVEL: Final = 1
"""zstd's fastest ordinary level: uploads must keep up with producers on one core."""
CHUNK_BUFFER_BYTES: Final = 4 * MIB
"""Default maximum size of chunks. A single larger batch makes a larger chunk."""
CHUNK_BUFFERS_KEPT_MAX: Final = 6
PART_BUFFERS_KEPT_MAX: Final = 4
RETRY_BASE_S: Final = 0.1
SAMPLE_BYTES: Final = 64 * KIB
INDEX_STEP_BYTES: Final = 16 * KIB

_OFFSET_AND_LENGTH: Final = Struct(">qi")
"""The first fields of every batch."""


class UploadJob(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs for the conversion of a segment file into a segment object."""

    key: str
    segment_id: bytes
    topic_id: bytes
    partition: int
    path: str
    """Path of the segment's ``.log`` file. The file is neither unlinked nor truncated while the job runs."""
    start_position: int = 0
    log_bytes: int
    """The segment is bytes [start_position, log_bytes) of the file."""
    base_offset: int
    end_offset: int
    """Expected end of the last batch."""
    leader_epochs: list[tuple[int, int]]
    aborted: list[tuple[int, int, int, int]]
    producer_snapshot: bytes
    compression: str
    chunk_bytes: int
    created_ms: int
    kms_key_id: str = ""
    """The key of AWS KMS that encrypts the object; empty for the store's own."""


class UploadedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a finished upload."""

    size_bytes: int
    footer_position: int
    raw_bytes: int
    record_count: int
    batch_count: int
    chunk_count: int
    min_timestamp: int
    max_timestamp: int

    def recorded_in(self, entry: SegmentEntry) -> SegmentEntry:
        """The segment's manifest record, completed with facts about its object."""
        return entry.replace(
            min_timestamp=TimestampMs(self.min_timestamp),
            max_timestamp=TimestampMs(self.max_timestamp),
            record_count=self.record_count,
            raw_bytes=self.raw_bytes,
            size_bytes=self.size_bytes,
            footer_position=self.footer_position,
            footer_bytes=self.size_bytes - self.footer_position,
            chunk_count=self.chunk_count,
        )


class ChunkLocation(NamedTuple):
    """The place of a chunk's checked raw bytes: a range of a local file."""

    path: str
    position: FilePosition
    length: int
    in_cache: bool
    """Whether the file is a chunk-cache file for this chunk only. Otherwise it is the object itself."""
    batch_index: bytes
    """Starts of batches, about every ``INDEX_STEP_BYTES``; see ``BatchIndex``."""


class BatchIndex:
    """Some batch starts of a chunk, the first one included, in the order of the chunk.

    A reader that stops at an indexed batch can continue there without a scan. The encoded form is the offsets as little-endian
    int64, and then the positions within the chunk as little-endian uint32.
    """

    __slots__ = ("offsets", "positions")

    def __init__(self, encoded: bytes) -> None:
        count = len(encoded) // 12
        self.offsets: tuple[int, ...] = unpack_from(f"<{count}q", encoded)
        self.positions: tuple[int, ...] = unpack_from(f"<{count}I", encoded, 8 * count)

    @staticmethod
    def encode(raw: memoryview) -> bytes:
        """Build the index of a whole chunk. Reads one header per batch."""
        unpack = _OFFSET_AND_LENGTH.unpack_from
        offsets: list[int] = []
        positions: list[int] = []
        at, following, end = 0, 0, len(raw)
        while at + HEADER_BYTES <= end:
            offset, length = unpack(raw, at)
            if at >= following:
                offsets.append(offset)
                positions.append(at)
                following = at + INDEX_STEP_BYTES
            if length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
                break
            at += length + LENGTH_PREFIX_BYTES
        if at != end:
            raise CorruptionError(f"A chunk of {end} bytes has a batch that ends at {at}.")
        return pack(f"<{len(offsets)}q", *offsets) + pack(f"<{len(positions)}I", *positions)


class FooterBytes(NamedTuple):
    """The tail of an object. The caller decodes and checks it."""

    tail: bytes
    object_bytes: int


class StoreWork(Protocol):
    """The module's docstring lists the guarantees."""

    async def upload_segment(self, job: UploadJob) -> UploadedSegment:
        """Create the segment object. It is durable when this returns.

        A cancellation gives the upload up. Its parts are aborted now, or later by the sweeper.
        Raises: CorruptionError (a batch of the file is bad; nothing was made), ConflictError (the key exists with other
        bytes), StorageUnavailable (undecided: the object may have been made).
        """
        ...

    async def upload_progress(self) -> dict[bytes, int]:
        """Progress of each upload under way, by segment id. It rises whenever a chunk is read or a part is stored."""
        ...

    async def fetch_chunk(self, key: str, chunk: ChunkEntry, cache_path: str) -> ChunkLocation:
        """Fetch one chunk to the local disk, checked and decompressed.

        The bytes are written to the file at ``cache_path``. An existing file is overwritten, so it must have no reader. No file is
        written if the object is a local file that contains the chunk verbatim. If this raises, the file's content is undefined.
        Raises: ObjectMissing, CorruptionError, StorageFull, StorageUnavailable.
        """
        ...

    async def read_footer(self, key: str, place: tuple[int, int] | None) -> FooterBytes:
        """The tail of a segment object, by one ranged GET unless its footer is huge.

        Args:
            place: footer position and object bytes, if they are known.

        Raises: ObjectMissing, CorruptionError, StorageUnavailable.
        """
        ...


class _Packed(NamedTuple):
    raw: RawChunk
    stored: Buffer
    crc: int
    codec: ChunkCodec


class _Shelf:
    """A pool of buffers of one size: the first touch of fresh memory costs more than the copy into it.

    Buffers are whole pages, so that a directory store can write them directly to the disk. A buffer that a pool thread or a
    request may still use is never given back. It is simply dropped.
    """

    def __init__(self, size_bytes: int, kept_max: int) -> None:
        self.size_bytes = size_bytes
        self._kept_max = kept_max
        self._kept: list[Memory] = []

    def take(self) -> Memory:
        """A buffer with undefined content. May be called from several threads."""
        try:
            return self._kept.pop()
        except IndexError:
            return mmap(-1, self.size_bytes, MAP_PRIVATE | MAP_ANONYMOUS)

    def give_back(self, buffer: Memory) -> None:
        """Give back ``buffer``, which nothing uses any more. A buffer of another size is dropped."""
        if len(buffer) == self.size_bytes and len(self._kept) < self._kept_max:
            self._kept.append(buffer)


class InlineStoreWork:
    """Does the work in the calling event loop and its pool."""

    def __init__(
        self,
        store: ObjectStore,
        fs: FileSystem,
        pool: BlockingPool,
        rng: random.Random,
        *,
        object_path: Callable[[str], str] | None = None,
        part_bytes: int = PART_BYTES,
        part_deadline_s: float = PART_DEADLINE_S,
        get_deadline_s: float = GET_DEADLINE_S,
    ) -> None:
        """``object_path`` returns the local path of an object, if objects are local files."""
        self._store, self._fs, self._pool, self._rng = store, fs, pool, rng
        self._object_path = object_path
        self.part_bytes = max(part_bytes, store.part_bytes_min)
        self._part_deadline_s, self._get_deadline_s = part_deadline_s, get_deadline_s
        self._progress: dict[bytes, int] = {}
        self._chunks = _Shelf(CHUNK_BUFFER_BYTES, CHUNK_BUFFERS_KEPT_MAX)
        self.parts = _Shelf(self.part_bytes, PART_BUFFERS_KEPT_MAX)

    # --- upload ---------------------------------------------------------------------------------------------------

    def store_of(self, job: UploadJob) -> ObjectStore:
        """Where the object of a job is written. Raises: StorageUnavailable: it cannot be encrypted with the job's key."""
        return self._store.encrypted_with(job.kms_key_id) if job.kms_key_id else self._store

    async def upload_segment(self, job: UploadJob) -> UploadedSegment:
        if job.segment_id in self._progress:
            raise LimitExceeded(f"{job.key}: an upload of this segment id is under way.")
        self._progress[job.segment_id] = 0
        try:
            return await self._upload(job)
        finally:
            del self._progress[job.segment_id]

    async def upload_progress(self) -> dict[bytes, int]:
        return dict(self._progress)

    async def _upload(self, job: UploadJob) -> UploadedSegment:
        writer = _ObjectWriter(self, job)
        compression = TierCompression(job.compression)
        if compression is TierCompression.AUTO and self._object_path is not None:
            # Objects are local files: verbatim chunks are served from where they lie, which is worth more than room.
            compression = TierCompression.NONE
        chunks: list[ChunkEntry] = []
        packing: deque[asyncio.Task[_Packed]] = deque()
        raw_buffers: deque[Memory] = deque()
        position, stored_position = job.start_position, 0
        offset = Offset(job.base_offset)

        async def take_packed() -> None:
            nonlocal stored_position
            packed = await packing.popleft()
            raw = packed.raw
            chunks.append(
                ChunkEntry(
                    FilePosition(stored_position), len(packed.stored), raw.raw_bytes, raw.base_offset, raw.record_count,
                    raw.batch_count, raw.min_timestamp, raw.max_timestamp, packed.crc, packed.codec,
                )
            )  # fmt: skip
            stored_position += len(packed.stored)
            await writer.add(packed.stored)
            self._chunks.give_back(raw_buffers.popleft())

        try:
            async with asyncio.TaskGroup() as group:
                writer.group = group
                while position < job.log_bytes:
                    start, expected = position, offset
                    raw, buffer = await self._pool.run(lambda: self._read_chunk(job, start, expected))  # noqa: B023
                    raw_buffers.append(buffer)
                    view = memoryview(buffer)[: raw.raw_bytes]
                    packing.append(group.create_task(self._pack(raw, view, compression)))
                    position += raw.raw_bytes
                    offset = raw.end_offset
                    self._progress[job.segment_id] += 1
                    if len(packing) >= CHUNKS_IN_FLIGHT:
                        await take_packed()
                if offset != job.end_offset:
                    raise CorruptionError(f"{job.path}: ends at offset {offset}, expected {job.end_offset}.")
                while packing:
                    await take_packed()
                footer = _footer_of(job, chunks)
                encoded = encode_footer(footer)
                await writer.add(encoded)
                await writer.flush()
            await writer.complete(encoded)
        except BaseExceptionGroup as failures:
            await writer.abandon()
            packing.clear()
            failure = _first_of(failures)
        except (asyncio.CancelledError, StorageUnavailable, ConflictError):
            await writer.abandon()
            raise
        else:
            return UploadedSegment(
                size_bytes=stored_position + len(encoded),
                footer_position=stored_position,
                raw_bytes=footer.raw_bytes,
                record_count=footer.record_count,
                batch_count=footer.batch_count,
                chunk_count=len(chunks),
                min_timestamp=footer.min_timestamp,
                max_timestamp=footer.max_timestamp,
            )
        # Not where the group is handled: it would become the error's context, and the two would hold each other.
        try:
            raise failure
        finally:
            del failure  # it holds this frame, and that the buffers

    def _read_chunk(self, job: UploadJob, position: int, offset: Offset) -> tuple[RawChunk, Memory]:
        """Read and check the chunk that starts at ``position`` of the segment file. Runs on a pool thread."""
        wanted = min(job.chunk_bytes, job.log_bytes - position)
        while True:
            own = self._chunks.take() if wanted <= CHUNK_BUFFER_BYTES else bytearray(wanted)
            buffer = memoryview(own)[:wanted]
            try:
                got = self._read_into(job.path, position, buffer)
            except FileNotFoundError as error:
                raise StorageUnavailable(f"{job.path} is missing.") from error
            if got < wanted:
                raise CorruptionError(f"{job.path}: ends at {position + got}, {job.log_bytes} bytes were expected.")
            raw = scan_chunk(
                buffer,
                chunk_bytes=job.chunk_bytes,
                expected_offset=offset,
                end_offset=Offset(job.end_offset),
                name=job.path,
                position=position,
            )
            if raw is not None:
                return raw, own
            # The first batch is longer than a chunk: read all of it.
            size = parse_header(buffer).batch_length + LENGTH_PREFIX_BYTES if wanted >= HEADER_BYTES else 0
            if not wanted < size <= min(job.log_bytes - position, CHUNK_BYTES_MAX):
                raise CorruptionError(f"{job.path}: batch at position {position} is cut off.")
            wanted = size

    def _read_into(self, path: str, position: int, buffer: memoryview) -> int:
        """Bytes read; fewer only at the end of the file. Raises: FileNotFoundError, StorageUnavailable."""
        try:
            file = self._fs.open(path, read_only=True)
            try:
                return file.pread_into(buffer, position)
            finally:
                file.close()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(error, f"Cannot read {path} at {position}") from error

    async def _pack(self, raw: RawChunk, view: memoryview, compression: TierCompression) -> _Packed:
        return await self._pool.run(lambda: _pack_chunk(raw, view, compression))

    async def attempt(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run one request of an upload, with retries within its budget. Raises: StorageUnavailable, and the errors of ``work``."""
        failure: StorageUnavailable | None = None
        for attempt in range(PART_ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_BASE_S * 2**attempt * (0.5 + self._rng.random()))
            try:
                async with asyncio.timeout(self._part_deadline_s):
                    return await work()
            except StorageUnavailable as error:
                failure = error
            except TimeoutError:
                failure = StorageUnavailable(f"{what}: no response within {self._part_deadline_s:g} s.")
        assert failure is not None
        try:
            raise failure
        finally:
            del failure  # it holds this frame, and the frame holds the bytes to upload

    def note_progress(self, segment_id: bytes) -> None:
        self._progress[segment_id] += 1

    @property
    def store(self) -> ObjectStore:
        return self._store

    # --- fetch ----------------------------------------------------------------------------------------------------

    async def fetch_chunk(self, key: str, chunk: ChunkEntry, cache_path: str) -> ChunkLocation:
        if self._object_path is not None and chunk.codec == ChunkCodec.VERBATIM:
            path = self._object_path(key)
            try:
                index = await self._pool.run(lambda: self._check_in_place(key, path, chunk))
            except ObjectMissing:
                await self._store.head(key)  # raises StorageUnavailable if the whole store is out of reach
                raise
            return ChunkLocation(path, chunk.position, chunk.raw_bytes, False, index)
        stored = await self._get_range(key, chunk.position, chunk.position + chunk.stored_bytes)
        index = await self._pool.run(lambda: self._unfold(key, stored, chunk, cache_path))
        return ChunkLocation(cache_path, FilePosition(0), chunk.raw_bytes, True, index)

    def _check_in_place(self, key: str, path: str, chunk: ChunkEntry) -> bytes:
        size = chunk.stored_bytes
        own = self._chunks.take() if size <= CHUNK_BUFFER_BYTES else bytearray(size)
        buffer = memoryview(own)[:size]
        try:
            got = self._read_into(path, chunk.position, buffer)
        except FileNotFoundError as error:
            raise ObjectMissing(f"{key} is missing.") from error
        check_stored_chunk(buffer[:got], chunk, key)
        index = BatchIndex.encode(buffer)
        self._chunks.give_back(own)
        return index

    def _unfold(self, key: str, stored: bytes | memoryview, chunk: ChunkEntry, cache_path: str) -> bytes:
        check_stored_chunk(stored, chunk, key)
        raw = unfold_chunk(stored, chunk, key)
        index = BatchIndex.encode(memoryview(raw))
        try:
            self._write_over(cache_path, raw)
        except OSError as error:
            unlink_quietly(self._fs, cache_path)
            raise storage_error(error, f"Cannot write {cache_path}") from error
        return index

    def _write_over(self, path: str, data: bytes | memoryview) -> None:
        """Replace the content of the file by ``data``. An existing file's pages are reused."""
        file = self._fs.open(path, create=True)
        try:
            write_whole(file, data, 0)
            if file.size() > len(data):
                file.truncate(len(data))
        finally:
            file.close()

    async def _get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        pieces: list[asyncio.Task[bytes | memoryview]] = []
        try:
            async with asyncio.timeout(self._get_deadline_s):
                if end - start <= RANGE_BYTES:
                    return await self._store.get_range(key, start, end)
                edges = [*range(start, end, RANGE_BYTES), end]
                async with asyncio.TaskGroup() as group:
                    for low, high in pairwise(edges):
                        pieces.append(group.create_task(self._store.get_range(key, low, high)))
                return b"".join(piece.result() for piece in pieces)
        except TimeoutError as error:
            raise StorageUnavailable(f"{key}: no response within {self._get_deadline_s:g} s.") from error
        except RangeUnsatisfiable as error:
            raise CorruptionError(f"{key}: ends before position {start}.") from error
        except BaseExceptionGroup as failures:
            failure = _first_of(failures)
        pieces.clear()
        if isinstance(failure, RangeUnsatisfiable):
            raise CorruptionError(f"{key}: ends before position {end}.")
        # Not where the group is handled: it would become the error's context, and the two would hold each other.
        try:
            raise failure
        finally:
            del failure  # it holds this frame

    async def read_footer(self, key: str, place: tuple[int, int] | None) -> FooterBytes:
        try:
            async with asyncio.timeout(self._get_deadline_s):
                if place is not None:
                    start, object_bytes = place
                    if not 0 < object_bytes - start <= SEGMENT_FOOTER_BYTES_MAX + TRAILER_BYTES:
                        raise CorruptionError(f"{key}: no footer can lie at [{start}, {object_bytes}).")
                    tail = await self._store.get_range(key, start, object_bytes)
                    if len(tail) != object_bytes - start:
                        raise CorruptionError(
                            f"{key}: ends at {start + len(tail)}, {object_bytes} bytes were expected."
                        )
                    return FooterBytes(bytes(tail), object_bytes)
                tail, object_bytes = await self._store.get_tail(key, TAIL_BYTES)
                wanted = footer_tail_bytes(tail, object_bytes, key)
                if wanted > len(tail):
                    tail, object_bytes = await self._store.get_tail(key, wanted)
                return FooterBytes(tail, object_bytes)
        except TimeoutError as error:
            raise StorageUnavailable(f"{key}: no response within {self._get_deadline_s:g} s.") from error
        except RangeUnsatisfiable as error:
            raise CorruptionError(f"{key}: ends before its footer.") from error


class _ObjectWriter:
    """Collects the bytes of one object into parts of equal size, and uploads a few parts at a time.

    An object that fits into one part is written by one conditional put. A larger object is a multipart upload. A part's buffer
    is reused when the part is stored, because the first touch of fresh memory costs more than the copy. The buffer of an
    abandoned request is not reused, because a pool thread or a socket may still read it.
    """

    def __init__(self, work: InlineStoreWork, job: UploadJob) -> None:
        self._work, self._job = work, job
        self._store = work.store_of(job)
        self._part_bytes = work.part_bytes
        self._buffer = work.parts.take()
        self._filled = 0
        self._upload: Upload | None = None
        self._parts = 0
        self._slots = asyncio.Semaphore(PARTS_IN_FLIGHT)
        self.group: asyncio.TaskGroup

    async def add(self, data: Buffer) -> None:
        """Add the next bytes. Waits while too many parts are under way."""
        view = memoryview(data)
        taken = 0
        while taken < len(view):
            if self._filled == self._part_bytes:
                await self._put_part()
            count = min(len(view) - taken, self._part_bytes - self._filled)
            self._buffer[self._filled : self._filled + count] = view[taken : taken + count]
            self._filled += count
            taken += count

    async def _put_part(self) -> None:
        if self._upload is None:
            self._upload = await self._work.attempt(
                f"{self._job.key}: begin", lambda: self._store.begin_upload(self._job.key)
            )
        await self._slots.acquire()
        self._parts += 1
        self.group.create_task(self._put(self._upload, self._parts, self._buffer, self._filled))
        self._buffer = self._work.parts.take()
        self._filled = 0

    async def _put(self, upload: Upload, number: int, buffer: Memory, length: int) -> None:
        view = memoryview(buffer)[:length]
        attempts = 0

        def put() -> Awaitable[None]:
            nonlocal attempts
            attempts += 1
            return upload.put_part(number, view)

        try:
            await self._work.attempt(f"{self._job.key}: part {number}", put)
            self._work.note_progress(self._job.segment_id)
        finally:
            self._slots.release()
        if attempts == 1:
            self._work.parts.give_back(buffer)

    async def flush(self) -> None:
        """Upload the rest of a multipart upload. Its last part may be short."""
        if self._upload is not None and self._filled:
            await self._put_part()

    async def complete(self, footer: bytes) -> None:
        """Make the object visible. All parts have been stored. Raises: ConflictError, StorageUnavailable."""
        key, store = self._job.key, self._store
        upload = self._upload
        try:
            if upload is None:
                data = memoryview(self._buffer)[: self._filled]
                await self._work.attempt(f"{key}: put", lambda: store.put_if_absent(key, data))
            else:
                await self._work.attempt(f"{key}: complete", upload.complete)
        except (AlreadyExists, ObjectMissing) as error:
            # Perhaps an earlier attempt of ours whose answer was lost: the key holds our segment id, and so does its footer.
            if not await self._is_ours(footer):
                if isinstance(error, ObjectMissing):
                    raise StorageUnavailable(f"{key}: the upload was aborted before it was complete.") from error
                raise ConflictError(f"{key}: there is another object of this key.") from error
        self._upload = None
        self._work.parts.give_back(self._buffer)

    async def _is_ours(self, footer: bytes) -> bool:
        try:
            tail, _ = await self._work.attempt(
                f"{self._job.key}: read back", lambda: self._work.store.get_tail(self._job.key, len(footer))
            )
        except ObjectMissing:
            return False
        return tail == footer

    async def abandon(self) -> None:
        """Try once to abort the upload, without a long wait. If that fails, the sweeper aborts it later."""
        upload, self._upload = self._upload, None
        if upload is not None:
            with contextlib.suppress(StorageUnavailable, TimeoutError):
                async with asyncio.timeout(GET_DEADLINE_S):
                    await upload.abort()


def _footer_of(job: UploadJob, chunks: list[ChunkEntry]) -> SegmentFooter:
    return SegmentFooter(
        topic_id=TopicId(uuid.UUID(bytes=job.topic_id)),
        segment_id=SegmentId(uuid.UUID(bytes=job.segment_id)),
        partition=PartitionIndex(job.partition),
        base_offset=Offset(job.base_offset),
        end_offset=Offset(job.end_offset),
        min_timestamp=TimestampMs(min(chunk.min_timestamp for chunk in chunks)),
        max_timestamp=TimestampMs(max(chunk.max_timestamp for chunk in chunks)),
        record_count=sum(chunk.record_count for chunk in chunks),
        batch_count=sum(chunk.batch_count for chunk in chunks),
        raw_bytes=sum(chunk.raw_bytes for chunk in chunks),
        stored_bytes=sum(chunk.stored_bytes for chunk in chunks),
        created_ms=TimestampMs(job.created_ms),
        leader_epochs=tuple(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in job.leader_epochs),
        aborted=tuple(
            AbortedTransaction(ProducerId(producer), Offset(first), Offset(last), Offset(stable))
            for producer, first, last, stable in job.aborted
        ),
        producer_snapshot=job.producer_snapshot,
        chunks=tuple(chunks),
    )


class _ZstdContexts(threading.local):
    """One compressor and decompressor for each pool thread. Their tables are large, and creating them costs page faults."""

    def __init__(self) -> None:
        import zstandard

        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts: _ZstdContexts | None = None


def _zstd() -> _ZstdContexts:
    """The calling thread's contexts. The library is imported when the first chunk needs it."""
    global _contexts  # noqa: PLW0603 - made once; the thread-local inside keeps threads apart
    if _contexts is None:
        _contexts = _ZstdContexts()
    return _contexts


def _pack_chunk(raw: RawChunk, view: memoryview, compression: TierCompression) -> _Packed:
    """The stored form of a chunk. Runs on a pool thread."""
    if store_compressed(raw, compression) and _is_worth_it(view):
        packed = _zstd().compressor.compress(view)
        if len(packed) < raw.raw_bytes:
            return _Packed(raw, packed, crc32c(packed), ChunkCodec.ZSTD)
    return _Packed(raw, view, crc32c(view), ChunkCodec.VERBATIM)


def _is_worth_it(view: memoryview) -> bool:
    """Whether a sample from the middle shrinks by a tenth. Otherwise (encrypted or compressed values) compression is not tried."""
    if len(view) < 4 * SAMPLE_BYTES:
        return True
    start = len(view) // 2
    sample = view[start : start + SAMPLE_BYTES]
    return len(_zstd().compressor.compress(sample)) * 10 < SAMPLE_BYTES * 9


def unfold_chunk(stored: bytes | memoryview, chunk: ChunkEntry, name: str) -> bytes | memoryview:
    """The raw batches of a stored chunk whose CRC was checked. A verbatim chunk is returned itself. Raises: CorruptionError."""
    match chunk.codec:
        case ChunkCodec.VERBATIM:
            return stored
        case ChunkCodec.ZSTD:
            import zstandard

            try:
                content_bytes = zstandard.get_frame_parameters(stored).content_size
                if content_bytes != chunk.raw_bytes:
                    raise CorruptionError(
                        f"{name}: chunk at position {chunk.position} decompresses to {content_bytes} bytes, "
                        f"{chunk.raw_bytes} claimed."
                    )
                return _zstd().decompressor.decompress(stored, allow_extra_data=False)
            except zstandard.ZstdError as error:
                raise CorruptionError(
                    f"{name}: chunk at position {chunk.position} cannot be decompressed: {clause(error)}."
                ) from error


def _first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The cause of a failed task group: its first error that is not itself a group. Raise it from None.

    FirnErrors and the groups drop their frames. Frames hold the buffers of the failed work, and a group and the frames of its
    task group hold each other. Other errors are bugs, and keep their frames.
    """
    first: BaseException = without_frames(failures)
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
        if isinstance(first, (BaseExceptionGroup, FirnError)):
            without_frames(first)
    return first
