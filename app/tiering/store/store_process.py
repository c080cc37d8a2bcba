"""The store process: every object-store request, chunk compression and decompression, beside the broker.

    python -m app.tiering.store.store_process --store URL [--wal-store URL] --socket FD [--urgent] [--existing]

With a store of their own for write-ahead logs both are served here, each with its own connections and limits.

It is started by exec. It inherits one end of a socket pair (``FD``) and the lock of the data directory, and serves ``store.*``
and ``tier.*`` calls. It ends at once when the broker ends or the socket reaches end-of-file, without finishing its work: all
its work can be repeated, and its leftovers in the store are swept.

It imports only the adapter that it needs, so with a directory store it responds within a third of a second.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from app import __version__
from app.core.errors import FirnError
from app.core.faults import LOOK_S, Faults
from app.core.limits import MIB
from app.core.log_events import Event
from app.core.metrics import Registry, Sample
from app.core.notices import announce, follow_format, log_line
from app.core.units import Buffer
from app.core.usage import show_process
from app.machine.allocator import keep_freed_memory
from app.machine.files import PosixFileSystem
from app.machine.priority import give_way
from app.machine.rpc import Handler, RpcServer
from app.machine.terminating import end_with_parent
from app.objectstore.api import ObjectStore
from app.objectstore.location import DirectoryLocation, parse_store_url
from app.objectstore.metered import MeteredStore
from app.objectstore.opening import open_store
from app.objectstore.proxy import store_handlers
from app.objectstore.split import stores_of
from app.tiering.store.store_proxy import store_work_handlers
from app.tiering.store.store_work import InlineStoreWork

T = TypeVar("T")

THREADS: Final = 8
"""Threads of the pool. They mostly wait for disks; compression and checksums release the interpreter lock."""
NICENESS: Final = 5
"""Niceness: if cores are scarce, hot reads and writes have priority over cold bytes. Not where writes are in the store alone."""
KEPT_MEMORY_BYTES_MAX: Final = 64 * MIB
"""Freed memory that stays in the process: half of ``chunk_cache.READ_BYTES_MAX``, because it is soon needed again."""
GARBAGE_THRESHOLD: Final = 10_000
"""New objects between two garbage collections. Requests make few cycles, and objects from the start stay."""
EXIT_CONFIG: Final = 2


class StoreThreads:
    """A ``BlockingPool`` of real threads."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="store")

    async def run(self, work: Callable[[], T]) -> T:
        running = asyncio.wrap_future(self._executor.submit(work))
        # The work outlives a caller that leaves, and then no other code looks at its error.
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(running)
        finally:
            del running  # An error that the work raised holds this frame, and the future holds the error.


def encode_samples(samples: Sequence[Sample]) -> bytes:
    """Encode metrics for the broker."""
    return msgspec.msgpack.encode(samples)


def decode_samples(data: bytes) -> list[Sample]:
    """Inverse of ``encode_samples``."""
    return msgspec.msgpack.decode(data, type=list[Sample])


async def serve(url: str, sock: socket.socket, wal_url: str = "", *, create: bool = True, traced: bool = False) -> None:
    """Serve calls over ``sock`` until end-of-file. ``wal_url``: the store of write-ahead logs, if they have their own.

    ``create``: a missing or empty directory becomes a new store. ``traced``: single requests can be noted.

    Raises: ConfigError, StorageUnavailable (a store cannot be opened).
    """
    registry = Registry()
    show_process(registry, __version__)
    pool = StoreThreads(THREADS)
    rng = random.Random()
    location = parse_store_url(url)
    faults = Faults(log_line)
    store = await open_store(
        location, pool=pool, rng=rng, registry=registry, faults=faults, wal=wal_url, create=create, traced=traced
    )
    object_path = None
    if isinstance(location, DirectoryLocation):
        root = str(location.path)
        object_path = lambda key: f"{root}/{key}"  # noqa: E731
    work = InlineStoreWork(store, PosixFileSystem(), pool, rng, object_path=object_path)

    async def metrics(_: Buffer) -> Buffer:
        return encode_samples(registry.samples())

    async def ping(asked: Buffer) -> Buffer:
        return asked

    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)
    gc.enable()
    own: dict[str, Handler] = {"process.metrics": metrics, "process.ping": ping}
    watching = asyncio.ensure_future(watch(faults, store))
    handlers = {**store_handlers(store), **store_work_handlers(work), **own}
    try:
        await RpcServer(handlers).serve(sock)
    finally:
        watching.cancel()


async def watch(faults: Faults, store: ObjectStore) -> None:
    """Report hanging operations, and faults that continue or end, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK_S)
        for one in stores_of(store):
            if isinstance(one, MeteredStore):
                one.look_for_hanging(loop.time())
        faults.look()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process. Never returns normally: it exits without waiting for threads or open requests."""
    parser = argparse.ArgumentParser(
        prog="firn store process", description="The broker starts this process. Do not start it by hand."
    )
    parser.add_argument("--store", required=True, help="URL of the object store")
    parser.add_argument("--wal-store", default="", help="URL of the store of write-ahead logs, if they have their own")
    parser.add_argument("--socket", required=True, type=int, help="inherited descriptor of a Unix stream socket")
    parser.add_argument("--urgent", action="store_true", help="do not give way: producers wait for write-ahead objects")
    parser.add_argument("--existing", action="store_true", help="a missing or empty directory is no store")
    parser.add_argument(
        "--traced", action="store_true", help="note single requests of uploads and reads that are traced"
    )
    options = parser.parse_args(arguments)
    end_with_parent(options.socket)
    follow_format()
    gc.disable()  # until the store is open: objects that are made before stay
    # Ctrl-C in a terminal reaches the whole group; this process ends with its socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not options.urgent:
        give_way(NICENESS)
    keep_freed_memory(KEPT_MEMORY_BYTES_MAX)
    sock = socket.socket(fileno=options.socket)
    # aiobotocore looks whether they are there, to no use here, and importing one takes a fifth of this process's start.
    sys.modules["httpx"] = sys.modules["httpx2"] = None  # type: ignore[assignment]
    import uvloop

    try:
        uvloop.run(_until_closed(options.store, options.wal_store, sock, not options.existing, options.traced))
    except FirnError as error:
        announce(Event.STORE_PROCESS_FAILED.line(f"firn store process: {error}"))
        os._exit(EXIT_CONFIG)
    os._exit(0)


async def _until_closed(url: str, wal_url: str, sock: socket.socket, create: bool, traced: bool) -> None:
    await serve(url, sock, wal_url, create=create, traced=traced)
    os._exit(0)  # at once: cancelled work may still be on its threads


if __name__ == "__main__":
    main()
