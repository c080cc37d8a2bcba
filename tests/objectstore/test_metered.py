"""What the metered store counts."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import StorageUnavailable
from app.metrics import Registry
from app.objectstore.api import AlreadyExists, ObjectMissing, ObjectStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.objectstore.metered import MeteredStore


def value(registry: Registry, name: str, **labels: str) -> float:
    wanted = tuple(sorted(labels.items()))
    return sum(sample.value for sample in registry.samples() if sample.name == name and sample.labels == wanted)


async def test_operations_are_counted_by_how_they_ended() -> None:
    registry = Registry()
    inner = MemoryStore()
    store: ObjectStore = MeteredStore(inner, registry)
    await store.put_if_absent("k", b"12345")
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("k", b"12345")
    assert await store.get("k") == b"12345"
    assert await store.get_range("k", 1, 3) == b"23"
    assert await store.get_tail("k", 1) == (b"5", 5)
    with pytest.raises(ObjectMissing):
        await store.head("gone")
    inner.faults = [Fault(FaultKind.UNAVAILABLE, "delete"), Fault(FaultKind.HANG, "list_objects")]
    with pytest.raises(StorageUnavailable):
        await store.delete("k")
    task = asyncio.create_task(store.list_objects(""))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    def requests(operation: str, outcome: str) -> float:
        return value(registry, "firn_store_requests_total", operation=operation, outcome=outcome)

    assert requests("put_if_absent", "ok") == requests("put_if_absent", "exists") == 1
    assert (
        requests("head", "missing") == requests("delete", "unavailable") == requests("list_objects", "cancelled") == 1
    )
    assert value(registry, "firn_store_bytes_total", direction="up") == 5
    assert value(registry, "firn_store_bytes_total", direction="down") == 8
    assert value(registry, "firn_store_request_seconds_count", operation="put_if_absent") == 2


async def test_uploads_are_counted_by_their_parts() -> None:
    registry = Registry()
    store = MeteredStore(MemoryStore(), registry)
    upload = await store.begin_upload("k")
    await upload.put_part(1, b"123")
    await upload.put_part(2, b"45")
    await upload.complete()
    await upload.abort()
    assert await store.get("k") == b"12345"
    assert value(registry, "firn_store_requests_total", operation="put_part", outcome="ok") == 2
    assert value(registry, "firn_store_requests_total", operation="complete", outcome="ok") == 1
    assert value(registry, "firn_store_bytes_total", direction="up") == 5
