"""One store, asked from synchronous code: a thread of its own runs the event loop that the store's adapters need.

Spark calls a data source's methods from ordinary threads and expects iterators. A ``StoreSession`` lets such code ask for many
things at once and wait for each when it is needed; the thread that decodes is never the one that moves bytes.
"""

from __future__ import annotations

import asyncio
import atexit
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from app.core.errors import ConfigError
from app.machine.runtime import SystemClock, ThreadPool
from app.metadata.log import layout
from app.metadata.view.follower import MetadataFollower
from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore
from app.objectstore.directory_work import storage_error
from app.objectstore.location import DirectoryLocation, parse_store_url
from app.objectstore.opening import open_store

T = TypeVar("T")

POOL_THREADS: Final = 8
"""Blocking reads of a directory at the same time: they mostly wait for a disk."""


class StoreSession:
    """Use it as ``with``. ``store`` and ``metadata`` are for coroutines given to ``submit`` or ``run``."""

    store: ObjectStore
    metadata: MetadataFollower

    def __init__(self, url: str, *, keeps_manifests: bool = False) -> None:
        """Nothing is asked of the store yet; nothing is ever written to it by the session itself.

        ``keeps_manifests``: for a session that asks for the same manifests again and again.
        """
        self.url = url
        self._keeps_manifests = keeps_manifests
        self._is_checked = False
        self._location = parse_store_url(url)

    def __enter__(self) -> Self:
        """Raises: ConfigError (no such folder, an S3 client that cannot be made), StorageUnavailable."""
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPool(POOL_THREADS)
        self._thread = threading.Thread(target=self._loop.run_forever, name="firn-store", daemon=True)
        self._thread.start()
        try:
            self.run(self._open())
        except BaseException:
            self._stop()
            raise
        atexit.register(self._end_with_interpreter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        atexit.unregister(self._end_with_interpreter)
        if self._loop.is_closed():
            return
        try:
            self.run(self._close())
        finally:
            self._stop()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the session's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Start a coroutine and wait for it."""
        return self.submit(work).result()

    async def check_store(self) -> None:
        """Ask the store for something small, the first time. One that cannot be read is told of at once then: who reads a log
        asks again for half a minute. Raises: StorageUnavailable."""
        if not self._is_checked:
            await self.store.list_objects(f"{layout.CLUSTER_PREFIX}/", limit=1)
            self._is_checked = True

    async def _open(self) -> None:
        if isinstance(self._location, DirectoryLocation):
            try:
                is_there = self._location.path.is_dir()
            except OSError as error:
                raise storage_error(error, f"Could not look for {self._location.path}") from error
            if not is_there:
                raise ConfigError(f"There is no folder {self._location.path}: name the bucket with the option 'store'.")
            # Not opened as a broker opens it: that would clean up, and a reader may lack the right to write.
            self.store = DirectoryStore(self._location.path, self._pool, mode=self._location.mode)
        else:
            self.store = await open_store(self._location, pool=self._pool, rng=random.Random())
        self.metadata = MetadataFollower(self.store, SystemClock(), keeps=self._keeps_manifests)

    async def _close(self) -> None:
        await _cancel_others()
        await self.store.close()

    def _end_with_interpreter(self) -> None:
        """End before the interpreter stops daemon threads: else an unfinished read would close this session later, and wait for
        its thread for ever. The store is not closed: its pool takes no more work by then."""
        try:
            self.run(_cancel_others())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pool.close()


async def _cancel_others() -> None:
    """Cancel every task of the loop but this one, and wait for their ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
