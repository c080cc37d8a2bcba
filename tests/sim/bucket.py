"""The bucket of the simulation: one store in memory that everybody shares, watched, and each process's way to it.

A request that was sent goes on by itself: the death of its sender, or its giving up, may come before or after it took effect.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Protocol, TypeVar

from app.core.seams import Clock
from app.core.units import Buffer, TimestampMs
from app.objectstore.api import ObjectInfo, UploadInfo
from app.objectstore.memory import MemoryStore
from tests.sim.loop import Process

T = TypeVar("T")


class BucketWatcher(Protocol):
    """Told of what changes, at the moment when it does."""

    def stored(self, key: str, data: bytes, before: bytes | None) -> None: ...
    def removed(self, key: str, data: bytes) -> None: ...


class Bucket(MemoryStore):
    """The store itself."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        super().__init__(clock, rng)
        self.watchers: list[BucketWatcher] = []

    def _store(self, key: str, data: bytes) -> None:
        before = self._objects.get(key)
        super()._store(key, data)
        for watcher in self.watchers:
            watcher.stored(key, data, before[0] if before is not None else None)

    def _remove(self, key: str) -> None:
        before = self._objects.get(key)
        super()._remove(key)
        if before is not None:
            for watcher in self.watchers:
                watcher.removed(key, before[0])

    def peek(self, key: str) -> bytes | None:
        """An object, without an operation."""
        found = self._objects.get(key)
        return found[0] if found is not None else None

    def hide(self, keys: list[str]) -> dict[str, tuple[bytes, TimestampMs]]:
        """Take objects away as if they had never been, and nobody has done it. Returns what ``show`` needs."""
        hidden = {key: self._objects[key] for key in keys}
        for key in keys:
            super()._remove(key)
        return hidden

    def show(self, hidden: dict[str, tuple[bytes, TimestampMs]]) -> None:
        """Put back what was hidden, in the place of whatever lies there."""
        for key, (data, modified_ms) in hidden.items():
            super()._store(key, data)
            self._objects[key] = (data, modified_ms)

    def keys_from(self, prefix: str) -> list[str]:
        """Keys that start with ``prefix``, without an operation."""
        found = []
        for key in self._keys[self._first_at(prefix) :]:
            if not key.startswith(prefix):
                break
            found.append(key)
        return found


class ProcessStore:
    """``ObjectStore`` of one process."""

    def __init__(self, process: Process, bucket: Bucket, rng: random.Random, outside: Context, note: Any) -> None:
        self._process = process
        self._bucket = bucket
        self._rng = rng
        self._outside = outside
        self._note = note
        self.part_bytes_min = bucket.part_bytes_min
        self.cut_off = False
        """Whether the network between this process and the bucket is down."""

    async def ask(self, operation: str, key: str, request: Callable[[], Awaitable[T]]) -> T:
        self._process.check()
        loop = asyncio.get_running_loop()
        if self.cut_off:
            await loop.create_future()
        answer: asyncio.Future[T] = loop.create_future()
        under_way = loop.create_task(request(), context=self._outside)  # type: ignore[arg-type]

        def answered(done: asyncio.Task[T]) -> None:
            if done.cancelled():
                outcome = "cancelled"
            else:
                error = done.exception()
                outcome = "ok" if error is None else type(error).__name__
                if not answer.done() and not self.cut_off:
                    if error is None:
                        answer.set_result(done.result())
                    else:
                        answer.set_exception(error)
            self._note("store", self._process.name, operation, key, outcome)

        under_way.add_done_callback(answered, context=self._outside)
        try:
            return await answer
        except asyncio.CancelledError:
            if not under_way.done() and self._rng.random() < 0.5:
                under_way.cancel()
            raise

    async def get(self, key: str) -> bytes:
        return await self.ask("get", key, lambda: self._bucket.get(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self.ask("get_range", key, lambda: self._bucket.get_range(key, start, end))

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        return await self.ask("get_tail", key, lambda: self._bucket.get_tail(key, length))

    async def head(self, key: str) -> ObjectInfo:
        return await self.ask("head", key, lambda: self._bucket.head(key))

    async def list_objects(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        return await self.ask(
            "list", prefix, lambda: self._bucket.list_objects(prefix, start_after=start_after, limit=limit)
        )

    async def put(self, key: str, data: Buffer) -> None:
        kept = bytes(data)
        await self.ask("put", key, lambda: self._bucket.put(key, kept))

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        kept = bytes(data)
        await self.ask("put_if_absent", key, lambda: self._bucket.put_if_absent(key, kept))

    async def delete(self, key: str) -> None:
        await self.ask("delete", key, lambda: self._bucket.delete(key))

    async def delete_many(self, keys: list[str]) -> None:
        await self.ask("delete_many", keys[0] if keys else "", lambda: self._bucket.delete_many(list(keys)))

    async def begin_upload(self, key: str) -> _ProcessUpload:
        return _ProcessUpload(self, await self.ask("begin_upload", key, lambda: self._bucket.begin_upload(key)))

    async def list_uploads(self, prefix: str) -> list[UploadInfo]:
        return await self.ask("list_uploads", prefix, lambda: self._bucket.list_uploads(prefix))

    async def abort_upload(self, key: str, upload_id: str) -> None:
        await self.ask("abort", key, lambda: self._bucket.abort_upload(key, upload_id))

    async def close(self) -> None:
        """Nothing to release."""


class _ProcessUpload:
    """An upload of one process."""

    def __init__(self, store: ProcessStore, upload: Any) -> None:
        self._store = store
        self._upload = upload
        self.key: str = upload.key
        self.upload_id: str = upload.upload_id

    async def put_part(self, number: int, data: Buffer) -> None:
        kept = bytes(data)
        await self._store.ask("put_part", self.key, lambda: self._upload.put_part(number, kept))

    async def complete(self) -> None:
        await self._store.ask("complete", self.key, lambda: self._upload.complete())

    async def abort(self) -> None:
        await self._store.ask("abort", self.key, lambda: self._upload.abort())
