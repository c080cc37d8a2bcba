"""What the metered store counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from app.core.errors import StorageUnavailable
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import Offset, SegmentId, TopicId
from app.metadata.log import layout
from app.objectstore.api import AlreadyExists, ObjectMissing, ObjectStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.objectstore.metered import CLUSTER, DATA, MANIFESTS, WAL, MeteredStore
from app.tiering.store.store_process import watch
from tests.support.virtual_loop import run_virtual


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
        return value(registry, "firn_store_requests_total", kind="other", operation=operation, outcome=outcome)

    assert requests("put_if_absent", "ok") == requests("put_if_absent", "exists") == 1
    assert (
        requests("head", "missing") == requests("delete", "unavailable") == requests("list_objects", "cancelled") == 1
    )
    assert value(registry, "firn_store_bytes_total", direction="up") == 5
    assert value(registry, "firn_store_bytes_total", direction="down") == 8
    assert value(registry, "firn_store_request_seconds_count", operation="put_if_absent") == 2


async def test_requests_are_counted_by_the_kind_of_their_key() -> None:
    registry = Registry()
    store = MeteredStore(MemoryStore(), registry)
    await store.put_if_absent(layout.wal_key(1, 2, 3), b"")
    await store.list_objects(layout.wal_prefix(1, 2))
    await store.list_objects(layout.WAL_PREFIX)
    await store.delete_many([layout.wal_key(1, 2, 3), layout.wal_key(1, 2, 4)])
    topic_id = TopicId(UUID(int=5))
    await store.put(layout.segment_key(topic_id, 0, Offset(0), SegmentId(UUID(int=6))), b"")
    await store.list_objects(layout.data_prefix(topic_id, 0))
    await store.put(layout.entry_key(layout.manifest_prefix(topic_id, 0), 1), b"")
    await store.put(layout.heartbeat_key(1, UUID(int=7)), b"")
    await store.list_objects(layout.CLUSTER_PREFIX)
    await store.delete_many([])
    found = {
        (labels["operation"], labels["kind"]): sample.value
        for sample in registry.samples()
        if sample.name == "firn_store_requests_total" and (labels := dict(sample.labels))
    }
    assert found == {
        ("put_if_absent", WAL): 1,
        ("list_objects", WAL): 2,
        ("delete_many", WAL): 1,
        ("put", DATA): 1,
        ("list_objects", DATA): 1,
        ("put", MANIFESTS): 1,
        ("put", CLUSTER): 1,
        ("list_objects", CLUSTER): 1,
        ("delete_many", "other"): 1,
    }


async def test_uploads_are_counted_by_their_parts() -> None:
    registry = Registry()
    store = MeteredStore(MemoryStore(), registry)
    upload = await store.begin_upload("k")
    await upload.put_part(1, b"123")
    await upload.put_part(2, b"45")
    await upload.complete()
    await upload.abort()
    assert await store.get("k") == b"12345"
    assert value(registry, "firn_store_requests_total", kind="other", operation="put_part", outcome="ok") == 2
    assert value(registry, "firn_store_requests_total", kind="other", operation="complete", outcome="ok") == 1
    assert value(registry, "firn_store_bytes_total", direction="up") == 5


class Watched:
    """A store in memory whose faults are told, on a virtual clock."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.inner = MemoryStore()
        self.faults = Faults(self.lines.append)
        self.store = MeteredStore(self.inner, Registry(), self.faults)

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main(_: object) -> None:
            watching = asyncio.ensure_future(watch(self.faults, self.store))
            try:
                await scenario()
            finally:
                watching.cancel()

        run_virtual(main)


def test_a_store_that_refuses_is_told_once_and_when_it_answers_again() -> None:
    watched = Watched()

    async def scenario() -> None:
        watched.inner.faults = [Fault(FaultKind.UNAVAILABLE, "get", times=30)]
        for _ in range(30):
            with pytest.raises(StorageUnavailable):
                await watched.store.get("k")
            await asyncio.sleep(1)
        assert len(watched.lines) == 1
        assert watched.lines[0].startswith("the object store's get fails: ")
        for _ in range(120):
            with pytest.raises(ObjectMissing):
                await watched.store.get("k")
            await asyncio.sleep(1)

    watched.run(scenario)
    assert watched.lines[1:] == ["over after 29 s: the object store's get failed 30 times"]


def test_a_store_that_hangs_is_told_while_it_hangs_and_when_that_is_over() -> None:
    watched = Watched()

    async def scenario() -> None:
        watched.inner.faults = [Fault(FaultKind.HANG, "get", times=1)]
        asking = asyncio.ensure_future(watched.store.get("k"))
        await asyncio.sleep(19)
        assert watched.lines == []
        await asyncio.sleep(100)
        assert watched.lines[0] == "the object store's get has had no response for 20 s"
        assert watched.lines[1].startswith("the object store's get has had no response for 80 s (")
        asking.cancel()
        await asyncio.sleep(70)

    watched.run(scenario)
    assert len(watched.lines) == 3
    assert watched.lines[2].startswith("over after ")


def test_an_operation_that_its_caller_gives_up_is_told_but_not_one_that_nobody_wants_any_more() -> None:
    watched = Watched()

    async def scenario() -> None:
        for wait_s in (0.5, 10.0):
            watched.inner.faults = [Fault(FaultKind.HANG, "head")]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await watched.store.head("k")

    watched.run(scenario)
    assert watched.lines == ["the object store's head was given up after 10 s without a response"]
