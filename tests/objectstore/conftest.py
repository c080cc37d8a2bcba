"""Every adapter of the object store seam, for the behaviour suite."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import MemoryStore
from app.objectstore.proxy import StoreProxy, store_handlers
from app.objectstore.rpc import RpcClient, RpcServer

T = TypeVar("T")


class ThreadPool:
    """A BlockingPool of real threads."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


@pytest.fixture(scope="session")
def pool() -> Iterator[ThreadPool]:
    with ThreadPoolExecutor(4) as executor:
        yield ThreadPool(executor)


@contextlib.asynccontextmanager
async def over_rpc(store: ObjectStore) -> AsyncIterator[StoreProxy]:
    """A proxy of ``store`` over a real socket pair, both ends on this loop."""
    ours, theirs = socket.socketpair()
    client = RpcClient()
    async with asyncio.TaskGroup() as group:
        group.create_task(RpcServer(store_handlers(store)).serve(theirs))
        await client.connect(ours)
        yield StoreProxy(client, part_bytes_min=store.part_bytes_min)
        await client.close()


@pytest.fixture(params=["memory", "directory", "memory over rpc", "directory over rpc"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, pool: ThreadPool) -> AsyncIterator[ObjectStore]:
    async with contextlib.AsyncExitStack() as stack:
        adapter: ObjectStore
        match request.param:
            case "memory":
                adapter = MemoryStore()
            case "directory":
                adapter = DirectoryStore(tmp_path / "store", pool)
            case "memory over rpc":
                adapter = await stack.enter_async_context(over_rpc(MemoryStore()))
            case "directory over rpc":
                adapter = await stack.enter_async_context(over_rpc(DirectoryStore(tmp_path / "store", pool)))
            case other:
                raise AssertionError(other)
        yield adapter
        await adapter.close()
