"""Counts requests to an object store, their outcomes, bytes and times."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable
from typing import Final, TypeVar

from app.core.errors import FirnError, StorageFull, StorageUnavailable
from app.core.faults import Faults
from app.core.metrics import Counter, Histogram, Registry
from app.core.units import Buffer
from app.objectstore.api import (
    AlreadyExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    RangeUnsatisfiable,
    Upload,
    UploadInfo,
)
from app.objectstore.directory import DirectoryStore
from app.objectstore.keys import LIST_LIMIT_MAX
from app.objectstore.split import main_of

T = TypeVar("T")

_OUTCOMES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ObjectMissing, "missing"),
    (AlreadyExists, "exists"),
    (RangeUnsatisfiable, "range"),
    (StorageFull, "full"),
    (StorageUnavailable, "unavailable"),
    (asyncio.CancelledError, "cancelled"),
)
"""Label of each outcome except ``ok``. All other outcomes are ``error``."""


_KINDS: Final = {"wal": "wal", "data": "data", "topics": "manifests", "cluster": "cluster"}
"""Kind of keys by their first part. All other keys are ``other``."""
WAL: Final = "wal"
DATA: Final = "data"
MANIFESTS: Final = "manifests"
CLUSTER: Final = "cluster"


def kind_of(key: str) -> str:
    """The purpose of an object, by its key or by the beginning of its key (``docs/formats.md``)."""
    return _KINDS.get(key.partition("/")[0], "other")


def outcome_of(error: BaseException) -> str:
    """The label of a failed operation."""
    return next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "error")


STORE: Final = "the object store's"
"""Name of the store in log lines about faults, before the operation."""
WAL_STORE: Final = "the WAL store's"
"""The same of a store for write-ahead logs alone."""
HANGING_S: Final = 20.0
"""An operation without a response for this time hangs: a part of 8 MiB takes a second."""

GIVEN_UP_S: Final = 2.0
"""If a caller cancels an operation earlier, the reason is not that the store does not respond."""


class MeteredStore:
    """``inner`` with metrics: an ObjectStore whose operations are counted in ``registry``.

    ``firn_store_requests_total{operation,kind,outcome}``, ``firn_store_bytes_total{direction}`` (``up`` and ``down``, payloads
    of successful requests) and ``firn_store_request_seconds{operation}``. An operation counts once, with all retries of its
    adapter. The kind is that of its key: reads and listings of kind ``wal`` are those of take-overs, seals and sweeps. A store
    for write-ahead logs alone has the label ``store="wal"`` besides.
    """

    def __init__(
        self, inner: ObjectStore, registry: Registry, faults: Faults | None = None, *, of_wal: bool = False
    ) -> None:
        """``faults`` gets reports that the store does not respond properly. ``of_wal``: it is a store of its own for write-ahead
        logs."""
        self.inner = inner
        self._faults = faults
        self._name = WAL_STORE if of_wal else STORE
        self._labels = {"store": WAL} if of_wal else {}
        self._under_way: dict[object, tuple[str, float]] = {}
        self.part_bytes_min = inner.part_bytes_min
        self._registry = registry
        self._requests: dict[tuple[str, str, str], Counter] = {}
        self._seconds: dict[str, Histogram] = {}
        self._up = self._bytes("up")
        self._down = self._bytes("down")

    async def get(self, key: str) -> bytes:
        data = await self._measure("get", key, self.inner.get(key))
        self._down.value += len(data)
        return data

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        data = await self._measure("get_range", key, self.inner.get_range(key, start, end))
        self._down.value += len(data)
        return data

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        data, size_bytes = await self._measure("get_tail", key, self.inner.get_tail(key, length))
        self._down.value += len(data)
        return data, size_bytes

    async def head(self, key: str) -> ObjectInfo:
        return await self._measure("head", key, self.inner.head(key))

    def encrypted_with(self, kms_key_id: str) -> MeteredStore:
        other = copy.copy(self)  # the counters are shared
        other.inner = self.inner.encrypted_with(kms_key_id)
        return other

    async def put(self, key: str, data: Buffer) -> None:
        await self._measure("put", key, self.inner.put(key, data))
        self._up.value += len(data)

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        await self._measure("put_if_absent", key, self.inner.put_if_absent(key, data))
        self._up.value += len(data)

    async def delete(self, key: str) -> None:
        await self._measure("delete", key, self.inner.delete(key))

    async def delete_many(self, keys: list[str]) -> None:
        await self._measure("delete_many", keys[0] if keys else "", self.inner.delete_many(keys))

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX
    ) -> list[ObjectInfo]:
        listing = self.inner.list_objects(prefix, start_after=start_after, limit=limit)
        return await self._measure("list_objects", prefix, listing)

    async def begin_upload(self, key: str) -> MeteredUpload:
        return MeteredUpload(self, await self._measure("begin_upload", key, self.inner.begin_upload(key)))

    async def list_uploads(self, prefix: str) -> list[UploadInfo]:
        return await self._measure("list_uploads", prefix, self.inner.list_uploads(prefix))

    async def abort_upload(self, key: str, upload_id: str) -> None:
        await self._measure("abort", key, self.inner.abort_upload(key, upload_id))

    async def close(self) -> None:
        await self.inner.close()

    async def _measure(self, operation: str, key: str, call: Awaitable[T]) -> T:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        outcome = "ok"
        request = object()
        self._under_way[request] = (operation, started_s)
        try:
            return await call
        except BaseException as error:
            outcome = outcome_of(error)
            if self._faults is not None:
                self._tell(operation, error, loop.time() - started_s)
            raise
        finally:
            del self._under_way[request]
            self._count(operation, kind_of(key), outcome)
            self._histogram(operation).observe(loop.time() - started_s)

    def _tell(self, operation: str, error: BaseException, took_s: float) -> None:
        assert self._faults is not None
        if isinstance(error, FirnError):
            self._faults.met_error(self._name, operation, error)
        elif isinstance(error, asyncio.CancelledError) and took_s >= GIVEN_UP_S:
            sentence = f"{self._name} {operation} was given up after {took_s:.0f} s without a response"
            self._faults.met(self._name, operation, sentence)

    def look_for_hanging(self, now_s: float) -> None:
        """Report operations without a response for long, even if no caller waits for them any more."""
        if self._faults is None:
            return
        oldest: dict[str, float] = {}
        for operation, started_s in self._under_way.values():
            oldest[operation] = min(started_s, oldest.get(operation, started_s))
        for operation, started_s in oldest.items():
            if now_s - started_s >= HANGING_S:
                sentence = f"{self._name} {operation} has had no response for {now_s - started_s:.0f} s"
                self._faults.met(self._name, operation, sentence)

    def _count(self, operation: str, kind: str, outcome: str) -> None:
        counter = self._requests.get((operation, kind, outcome))
        if counter is None:
            counter = self._registry.counter(
                "firn_store_requests_total",
                "Operations on the object store, by kind of key and outcome.",
                operation=operation,
                kind=kind,
                outcome=outcome,
                **self._labels,
            )
            self._requests[operation, kind, outcome] = counter
        counter.value += 1

    def _histogram(self, operation: str) -> Histogram:
        histogram = self._seconds.get(operation)
        if histogram is None:
            histogram = self._registry.histogram(
                "firn_store_request_seconds",
                "How long operations on the object store took.",
                operation=operation,
                **self._labels,
            )
            self._seconds[operation] = histogram
        return histogram

    def _bytes(self, direction: str) -> Counter:
        return self._registry.counter(
            "firn_store_bytes_total",
            "Bytes sent to and received from the object store.",
            direction=direction,
            **self._labels,
        )


class MeteredUpload:
    """Upload of a MeteredStore."""

    def __init__(self, store: MeteredStore, inner: Upload) -> None:
        self.key = inner.key
        self.upload_id = inner.upload_id
        self._store = store
        self._inner = inner

    async def put_part(self, number: int, data: Buffer) -> None:
        await self._store._measure("put_part", self.key, self._inner.put_part(number, data))
        self._store._up.value += len(data)

    async def complete(self) -> None:
        await self._store._measure("complete", self.key, self._inner.complete())

    async def abort(self) -> None:
        await self._store._measure("abort", self.key, self._inner.abort())


def directory_of(store: ObjectStore) -> DirectoryStore | None:
    """The directory store under ``store``, if there is one: its objects can be served from their own files."""
    store = main_of(store)
    while isinstance(store, MeteredStore):
        store = store.inner
    return store if isinstance(store, DirectoryStore) else None
