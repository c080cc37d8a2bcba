"""Store work between the broker and its store process: both ends of the ``tier.*`` methods.

Parameters and results are msgpack arrays. Bulk data passes through files, and only their paths are sent.

Tests: ``tests/tiering/test_store_process.py``.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from app.core.errors import FirnError
from app.core.units import Buffer, FilePosition, Offset, TimestampMs
from app.machine.rpc import Handler, RpcClient, decode_error, encode_error
from app.objectstore.noting import NOTED, Noted, StoreRequest
from app.tiering.store.segment_format import ChunkCodec, ChunkEntry
from app.tiering.store.store_work import ChunkLocation, FooterBytes, StoreWork, UploadedSegment, UploadJob

PROGRESS_TIMEOUT_S: Final = 10.0
"""Deadline for a progress report. A store process that misses it makes no progress."""
FETCH_TIMEOUT_S: Final = 120.0
"""Longer than the store process's own deadlines for a chunk or footer, so that its more precise error arrives first."""


class _FetchChunk(msgspec.Struct, array_like=True):
    key: str
    position: int
    stored_bytes: int
    raw_bytes: int
    base_offset: int
    record_count: int
    batch_count: int
    min_timestamp: int
    max_timestamp: int
    crc: int
    codec: int
    cache_path: str


class _Location(msgspec.Struct, array_like=True):
    path: str
    position: int
    length: int
    in_cache: bool
    batch_index: bytes


class _ReadFooter(msgspec.Struct, array_like=True):
    key: str
    place: tuple[int, int] | None


class _Footer(msgspec.Struct, array_like=True):
    tail: bytes
    object_bytes: int


class _Traced(msgspec.Struct, array_like=True):
    """The result of a method, or its error, with the requests that it made."""

    requests: list[StoreRequest]
    count: int
    result: bytes
    error: bytes | None


TRACED: Final = "traced."
"""Before the name of a method whose requests to the store are noted."""


class ProxyStoreWork:
    """StoreWork in the broker: calls the store process. ``StoreWork`` lists the guarantees."""

    def __init__(self, rpc: RpcClient) -> None:
        self._rpc = rpc

    async def upload_segment(self, job: UploadJob) -> UploadedSegment:
        answer = await self._call("tier.upload_segment", msgspec.msgpack.encode(job))
        return msgspec.msgpack.decode(answer, type=UploadedSegment)

    async def upload_progress(self) -> dict[bytes, int]:
        answer = await self._rpc.call("tier.upload_progress", timeout_s=PROGRESS_TIMEOUT_S)
        return dict(msgspec.msgpack.decode(answer, type=list[tuple[bytes, int]]))

    async def fetch_chunk(self, key: str, chunk: ChunkEntry, cache_path: str) -> ChunkLocation:
        asked = msgspec.msgpack.encode(_FetchChunk(key, *chunk, cache_path))
        answer = await self._call("tier.fetch_chunk", asked, timeout_s=FETCH_TIMEOUT_S)
        found = msgspec.msgpack.decode(answer, type=_Location)
        return ChunkLocation(found.path, FilePosition(found.position), found.length, found.in_cache, found.batch_index)

    async def read_footer(self, key: str, place: tuple[int, int] | None) -> FooterBytes:
        asked = msgspec.msgpack.encode(_ReadFooter(key, place))
        answer = await self._call("tier.read_footer", asked, timeout_s=FETCH_TIMEOUT_S)
        found = msgspec.msgpack.decode(answer, type=_Footer)
        return FooterBytes(found.tail, found.object_bytes)

    async def _call(self, method: str, asked: bytes, timeout_s: float | None = None) -> bytes:
        noted = NOTED.get()
        if noted is None:
            return await self._rpc.call(method, asked, timeout_s=timeout_s)
        answer = await self._rpc.call(TRACED + method, asked, timeout_s=timeout_s)
        told = msgspec.msgpack.decode(answer, type=_Traced)
        noted.take(told.requests, told.count)
        if told.error is not None:
            raise decode_error(told.error)
        return told.result


def store_work_handlers(work: StoreWork) -> dict[str, Handler]:
    """The part in the store process: serves the calls of ``ProxyStoreWork`` to an ``RpcServer``."""

    async def upload_segment(asked: Buffer) -> Buffer:
        return msgspec.msgpack.encode(await work.upload_segment(msgspec.msgpack.decode(asked, type=UploadJob)))

    async def upload_progress(_: Buffer) -> Buffer:
        return msgspec.msgpack.encode(list((await work.upload_progress()).items()))

    async def fetch_chunk(asked: Buffer) -> Buffer:
        told = msgspec.msgpack.decode(asked, type=_FetchChunk)
        chunk = ChunkEntry(
            FilePosition(told.position), told.stored_bytes, told.raw_bytes, Offset(told.base_offset), told.record_count,
            told.batch_count, TimestampMs(told.min_timestamp), TimestampMs(told.max_timestamp), told.crc,
            ChunkCodec(told.codec),
        )  # fmt: skip
        return msgspec.msgpack.encode(_Location(*await work.fetch_chunk(told.key, chunk, told.cache_path)))

    async def read_footer(asked: Buffer) -> Buffer:
        told = msgspec.msgpack.decode(asked, type=_ReadFooter)
        return msgspec.msgpack.encode(_Footer(*await work.read_footer(told.key, told.place)))

    traceable: dict[str, Handler] = {
        "tier.upload_segment": upload_segment,
        "tier.fetch_chunk": fetch_chunk,
        "tier.read_footer": read_footer,
    }
    traced = {TRACED + method: _noting(handler) for method, handler in traceable.items()}
    return {**traceable, **traced, "tier.upload_progress": upload_progress}


def _noting(handler: Handler) -> Handler:
    """The same, whose answer has the requests that it made."""

    async def noting(asked: Buffer) -> Buffer:
        noted = Noted(time.perf_counter)
        token = NOTED.set(noted)
        result, error = b"", None
        try:
            result = bytes(await handler(asked))
        except FirnError as failure:
            error = encode_error(failure)
        finally:
            NOTED.reset(token)
        return msgspec.msgpack.encode(_Traced(noted.requests, noted.count, result, error))

    return noting
