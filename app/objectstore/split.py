"""Two stores as one: write-ahead logs in a store of their own, everything else in the main store (ADR 0037, J61).

Which one is asked depends on the key alone, so each keeps the guarantees of the seam for its own keys, and fails apart from the
other. Only a list of everything needs both.
"""

from __future__ import annotations

from typing import Final

from app.core.units import Buffer
from app.objectstore.api import ObjectInfo, ObjectStore, Upload, UploadInfo
from app.objectstore.keys import LIST_LIMIT_MAX

WAL_KEYS: Final = "wal/"
"""Beginning of the keys of write-ahead logs (docs/formats.md)."""


class SplitStore:
    """ObjectStore whose keys below ``wal/`` are in ``wal``, and all others in ``main``. It owns both."""

    def __init__(self, main: ObjectStore, wal: ObjectStore) -> None:
        self.main = main
        self.wal = wal
        self.part_bytes_min = main.part_bytes_min

    def _of(self, key: str) -> ObjectStore:
        return self.wal if key.startswith(WAL_KEYS) else self.main

    async def get(self, key: str) -> bytes:
        return await self._of(key).get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        return await self._of(key).get_range(key, start, end)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        return await self._of(key).get_tail(key, length)

    async def head(self, key: str) -> ObjectInfo:
        return await self._of(key).head(key)

    async def put(self, key: str, data: Buffer) -> None:
        await self._of(key).put(key, data)

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        await self._of(key).put_if_absent(key, data)

    async def delete(self, key: str) -> None:
        await self._of(key).delete(key)

    async def delete_many(self, keys: list[str]) -> None:
        of_wal = [key for key in keys if key.startswith(WAL_KEYS)]
        of_main = [key for key in keys if not key.startswith(WAL_KEYS)]
        for store, some in ((self.wal, of_wal), (self.main, of_main)):
            if some:
                await store.delete_many(some)

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX
    ) -> list[ObjectInfo]:
        if not _covers_both(prefix):
            return await self._of(prefix).list_objects(prefix, start_after=start_after, limit=limit)
        found = await self.wal.list_objects(prefix, start_after=start_after, limit=limit)
        after = start_after
        while True:
            page = await self.main.list_objects(prefix, start_after=after, limit=limit)
            found += [info for info in page if not info.key.startswith(WAL_KEYS)]
            if len(page) < limit or len(found) >= 2 * limit:
                return sorted(found)[:limit]
            after = page[-1].key

    def encrypted_with(self, kms_key_id: str) -> SplitStore:
        """For segments, which are in the main store: write-ahead logs keep the key of their own store."""
        return SplitStore(self.main.encrypted_with(kms_key_id), self.wal)

    async def begin_upload(self, key: str) -> Upload:
        return await self._of(key).begin_upload(key)

    async def list_uploads(self, prefix: str) -> list[UploadInfo]:
        if not _covers_both(prefix):
            return await self._of(prefix).list_uploads(prefix)
        of_main = [one for one in await self.main.list_uploads(prefix) if not one.key.startswith(WAL_KEYS)]
        return sorted([*of_main, *await self.wal.list_uploads(prefix)])

    async def abort_upload(self, key: str, upload_id: str) -> None:
        await self._of(key).abort_upload(key, upload_id)

    async def close(self) -> None:
        try:
            await self.wal.close()
        finally:
            await self.main.close()


def _covers_both(prefix: str) -> bool:
    """Whether keys of both stores may begin like this: it is empty, or a part of ``wal/``."""
    return WAL_KEYS.startswith(prefix) and prefix != WAL_KEYS


def main_of(store: ObjectStore) -> ObjectStore:
    """The store of everything but write-ahead logs."""
    return store.main if isinstance(store, SplitStore) else store


def stores_of(store: ObjectStore) -> tuple[ObjectStore, ...]:
    """The stores that ``store`` is made of."""
    return (store.main, store.wal) if isinstance(store, SplitStore) else (store,)
