"""Every adapter of the object store seam, for the behaviour suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import MemoryStore

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


@pytest.fixture(params=["memory", "directory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, pool: ThreadPool) -> AsyncIterator[ObjectStore]:
    adapter: ObjectStore
    match request.param:
        case "memory":
            adapter = MemoryStore()
        case "directory":
            adapter = DirectoryStore(tmp_path / "store", pool)
        case other:
            raise AssertionError(other)
    yield adapter
    await adapter.close()
