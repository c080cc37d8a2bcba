"""Opens the store of an address.

Tests: ``tests/objectstore/test_url.py``, ``tests/objectstore/test_split.py``.
"""

from __future__ import annotations

import random

from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.seams import BlockingPool
from app.objectstore.api import ObjectStore
from app.objectstore.location import DirectoryLocation, StoreLocation, parse_store_url


async def open_store(
    url: str | StoreLocation,
    *,
    pool: BlockingPool,
    rng: random.Random,
    registry: Registry | None = None,
    faults: Faults | None = None,
    wal: str | StoreLocation | None = None,
    create: bool = True,
    traced: bool = False,
) -> ObjectStore:
    """The store at ``url``, ready for use. The caller closes it. ``wal``: the store of write-ahead logs, if they have their own.

    ``pool`` runs system calls of a directory; ``rng`` spreads the retries of S3; with ``registry`` every operation is
    counted (``MeteredStore``), and ``faults`` is told of those that fail. ``traced``: single requests can be noted.

    A directory is created if necessary, unless ``create`` is False, and cleaned of leftovers of crashes. This does not check
    whether S3 is reachable or which calls it allows, because a broker must start even if S3 is unreachable
    (``check.check_store`` checks it).

    Raises: ConfigError (the URL, or an S3 client that cannot be made of it), StorageUnavailable (the directory), StoreNotThere (the
    directory is missing or empty, and ``create`` is False).
    """
    if wal:
        from app.objectstore.split import SplitStore

        main = await _open(url, pool, rng, registry, faults, create=create, traced=traced)
        try:
            return SplitStore(main, await _open(wal, pool, rng, registry, faults, of_wal=True, traced=traced))
        except BaseException:
            await main.close()
            raise
    return await _open(url, pool, rng, registry, faults, create=create, traced=traced)


async def _open(
    url: str | StoreLocation,
    pool: BlockingPool,
    rng: random.Random,
    registry: Registry | None,
    faults: Faults | None,
    *,
    of_wal: bool = False,
    create: bool = True,
    traced: bool = False,
) -> ObjectStore:
    # Each adapter is imported where it is used: aiobotocore alone takes most of a second.
    location = parse_store_url(url) if isinstance(url, str) else url
    store: ObjectStore
    if isinstance(location, DirectoryLocation):
        from app.objectstore.directory import DirectoryStore

        directory = DirectoryStore(location.path, pool, mode=location.mode)
        await directory.open(create=create)
        store = directory
    else:
        from app.objectstore.s3 import S3Store

        s3 = S3Store(location, rng=rng, registry=registry, of_wal=of_wal)
        await s3.open()
        store = s3
    if registry is None:
        return store
    if traced:
        from app.objectstore.traced import TracedStore

        return TracedStore(store, registry, faults, of_wal=of_wal)
    from app.objectstore.metered import MeteredStore

    return MeteredStore(store, registry, faults, of_wal=of_wal)
