"""An object store in a directory of a local or network file system: the default store, and a real one.

All guarantees of the seam hold across processes that use the same directory, also after a loss of power. ``directory_work.py``
explains how, and does the blocking work. This module is the asynchronous shell: each operation is one piece of work in the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from app.core.errors import StorageUnavailable
from app.core.seams import BlockingPool
from app.core.units import Buffer
from app.objectstore.api import ObjectInfo, UploadInfo
from app.objectstore.directory_work import DirectoryWork, UploadWork
from app.objectstore.keys import LIST_LIMIT_MAX, PART_NUMBER_MAX, check_key, check_prefix, check_range

T = TypeVar("T")


class DirectPool:
    """A BlockingPool that works at once, on the caller's thread: for tests and for tools without a loop to keep free."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()


class DirectoryStore:
    """ObjectStore in the directory ``root``, which is made on the first write.

    ``pool`` runs the system calls; without one they run on the caller's thread and block its loop.
    """

    part_bytes_min = 1

    def __init__(self, root: Path | str, pool: BlockingPool | None = None, *, mode: int | None = None) -> None:
        """``mode``: permissions of new directories, as in ``DirectoryLocation``."""
        self.root = Path(root).absolute()
        self._pool: BlockingPool = pool if pool is not None else DirectPool()
        self.work = DirectoryWork(self.root, mode=mode)

    async def open(self, *, create: bool = True) -> int:
        """Open the root, and remove leftovers of crashed processes. Live processes are not disturbed.

        ``create``: a root that is missing or empty becomes a new store. Otherwise it may be the place of a file system that is not
        mounted.

        Returns: the number of leftovers. The store also works without this call, because leftovers are invisible.
        Raises: StoreNotThere (only without ``create``), StorageUnavailable.
        """
        return await self._pool.run(lambda: self.work.prepare(create=create))

    async def check(self) -> None:
        """Whether conditional writes can work here.

        Raises: ConfigError (the file system has no hard links), StorageUnavailable (it cannot be written now).
        """
        await self._pool.run(self.work.check_links)

    def local_path(self, key: str) -> Path:
        """The path of the object's file, to serve its bytes without a copy. The object need not exist. The file never changes
        in place: a repeated ``put`` makes a new file. Raises: InvalidKey."""
        check_key(key)
        return self.root / key

    async def get(self, key: str) -> bytes:
        check_key(key)
        return await self._pool.run(lambda: self.work.read(key, 0, None))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_key(key)
        check_range(start, end)
        return await self._pool.run(lambda: self.work.read(key, start, end))

    def get_range_now(self, key: str, start: int, end: int) -> bytes:
        """As ``get_range``, on the caller's thread, for readers without a loop to keep free."""
        check_key(key)
        check_range(start, end)
        return self.work.read(key, start, end)

    def expect_range(self, key: str, start: int, end: int) -> None:
        """Make the kernel read a range into the page cache, without waiting, because it is needed soon."""
        check_key(key)
        check_range(start, end)
        self.work.read_ahead(key, start, end)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        check_key(key)
        check_range(0, length)
        return await self._pool.run(lambda: self.work.read_tail(key, length))

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        return await self._pool.run(lambda: self.work.head(key))

    def encrypted_with(self, kms_key_id: str) -> NoReturn:
        raise StorageUnavailable(
            f"A directory encrypts nothing, so no object can be written with the key {kms_key_id}: take firn.tier.kms.key.id"
            " from the topic, or use an S3 store."
        )

    async def put(self, key: str, data: Buffer) -> None:
        check_key(key)
        await self._pool.run(lambda: self.work.put(key, data))

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        check_key(key)
        await self._pool.run(lambda: self.work.put_if_absent(key, data))

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._pool.run(lambda: self.work.delete([key]))

    async def delete_many(self, keys: list[str]) -> None:
        assert len(keys) <= LIST_LIMIT_MAX, len(keys)
        for key in keys:
            check_key(key)
        await self._pool.run(lambda: self.work.delete(keys))

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX
    ) -> list[ObjectInfo]:
        check_prefix(prefix)
        assert 0 < limit <= LIST_LIMIT_MAX, limit
        return await self._pool.run(lambda: self.work.list_objects(prefix, start_after, limit))

    async def begin_upload(self, key: str) -> DirectoryUpload:
        check_key(key)
        upload_id = await self._pool.run(lambda: self.work.begin_upload(key))
        return DirectoryUpload(self.work, self._pool, key, upload_id)

    async def list_uploads(self, prefix: str) -> list[UploadInfo]:
        check_prefix(prefix)
        return await self._pool.run(lambda: self.work.list_uploads(prefix))

    async def abort_upload(self, key: str, upload_id: str) -> None:
        check_key(key)
        await self._pool.run(lambda: self.work.abort_upload(key, upload_id))

    async def close(self) -> None:
        await self._pool.run(self.work.close)


class DirectoryUpload:
    """Upload of a DirectoryStore; its parts are on disk, its bookkeeping ends with the process."""

    def __init__(self, work: DirectoryWork, pool: BlockingPool, key: str, upload_id: str) -> None:
        self.key = key
        self.upload_id = upload_id
        self._store_work = work
        self._pool = pool
        self.work = UploadWork(work, key, upload_id)

    async def put_part(self, number: int, data: Buffer) -> None:
        assert 1 <= number <= PART_NUMBER_MAX, number
        await self._pool.run(lambda: self.work.put_part(number, data))

    async def complete(self) -> None:
        await self._pool.run(self.work.complete)

    async def abort(self) -> None:
        await self._pool.run(lambda: self._store_work.abort_upload(self.key, self.upload_id))
