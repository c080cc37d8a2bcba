"""Whether Firn can use a store: each feature that Firn needs is tried once, with a fix for each failure.

``firn doctor`` prints the results. Most important is that conditional writes are conditional: a server that accepts
``If-None-Match`` and ignores it would let two brokers write the same partition (INV-2).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Final

from app.core.errors import ConfigError, FirnError
from app.core.seams import Clock
from app.objectstore.api import AlreadyExists, ObjectMissing, ObjectStore, Upload
from app.objectstore.metered import directory_of

CLOCK_SKEW_MAX_MS: Final = 60_000
"""S3 refuses requests from a skew of 15 minutes on. A minute already makes time retention and displayed ages wrong."""

_CONDITIONAL_MEND: Final = (
    "two brokers could write the same data here: use a store that honours If-None-Match on PutObject and on "
    "CompleteMultipartUpload (AWS S3 does), or a newer version of this server"
)
CHECK_PREFIX: Final = "check/"
"""Prefix of the keys of all objects that the checks write."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    name: str
    passed: bool
    detail: str
    """The finding of the check: a sentence or less."""
    mend: str = ""
    """The repair; empty if the check passed."""


class _Failed(Exception):
    """A check found a fault although no operation failed."""

    def __init__(self, detail: str, mend: str) -> None:
        super().__init__(detail)
        self.mend = mend


async def check_store(
    store: ObjectStore, *, clock: Clock | None = None, name: str = "doctor", uploads: bool = True
) -> list[CheckResult]:
    """Try every operation of Firn on a store, under its own keys (``check/<name>/…``), and delete these objects afterwards.

    ``name`` separates runs at the same time. With ``clock``, the store's time is compared with this machine's. ``uploads``: whether
    there will be multipart uploads, as everywhere but in a store for write-ahead logs alone.
    A failed check raises nothing. The list ends early if later checks need the operation that failed.
    """
    return await _Check(store, clock, f"{CHECK_PREFIX}{name}", uploads).run()


class _Check:
    def __init__(self, store: ObjectStore, clock: Clock | None, prefix: str, uploads: bool) -> None:
        self._store = store
        self._uploads = uploads
        self._clock = clock
        self._prefix = prefix
        self._results: list[CheckResult] = []

    async def run(self) -> list[CheckResult]:
        directory = directory_of(self._store)
        if directory is not None:
            await self._try("hard links", "the file system has them", directory.check())
        if await self._try("list", "objects can be listed", self._clean()):
            await self._try("write", "an object was written", self._store.put(f"{self._prefix}/object", b"0123456789"))
        if self._results[-1].passed:
            await self._try("read", "written bytes are read back: whole, by range and by tail", self._read())
            await self._try("conditional write", "the second of two writers of one key is refused", self._conditional())
            if self._uploads:
                await self._try("multipart upload", "an object was written in parts", self._multipart())
                await self._try(
                    "conditional completion", "an upload does not replace an object", self._conditional_completion()
                )
            if self._clock is not None:
                await self._try("clock", "this machine and the store agree on the time", self._skew(self._clock))
            await self._try("delete", "objects can be deleted", self._delete())
        return self._results

    async def _try(self, name: str, detail: str, work: Awaitable[None]) -> bool:
        """Await ``work`` and record the result."""
        try:
            await work
        except _Failed as failed:
            self._results.append(CheckResult(name, False, str(failed), failed.mend))
        except ConfigError as error:
            self._results.append(CheckResult(name, False, str(error), "move the store"))
        except FirnError as error:
            self._results.append(CheckResult(name, False, str(error), "fix what the store reports, and run this again"))
        else:
            self._results.append(CheckResult(name, True, detail))
        return self._results[-1].passed

    async def _clean(self) -> None:
        """Remove objects of an earlier run; needs LIST."""
        for info in await self._store.list_uploads(f"{self._prefix}/") if self._uploads else ():
            await self._store.abort_upload(info.key, info.upload_id)
        left = [info.key for info in await self._store.list_objects(f"{self._prefix}/")]
        await self._store.delete_many(left)

    async def _read(self) -> None:
        key = f"{self._prefix}/object"
        answers = (
            await self._store.get(key),
            await self._store.get_range(key, 2, 5),
            (await self._store.get_tail(key, 3))[0],
            (await self._store.head(key)).size_bytes,
            [info.key for info in await self._store.list_objects(f"{self._prefix}/")],
        )
        wanted = (b"0123456789", b"234", b"789", 10, [key])
        if answers != wanted:
            raise _Failed(
                f"the store answered {answers!r} where {wanted!r} was written", "do not keep data in this store"
            )

    async def _conditional(self) -> None:
        key = f"{self._prefix}/once"
        await self._store.put_if_absent(key, b"first")
        try:
            await self._store.put_if_absent(key, b"second")
        except AlreadyExists:
            if await self._store.get(key) == b"first":
                return
            raise _Failed("a refused write changed the object", _CONDITIONAL_MEND) from None
        raise _Failed("the store ignores the condition of a conditional write", _CONDITIONAL_MEND)

    async def _multipart(self) -> None:
        key = f"{self._prefix}/parts"
        async with self._upload(key, b"ab") as upload:
            await upload.complete()
        data = await self._store.get(key)
        if data != b"ab":
            raise _Failed(
                f"an object that was uploaded in parts has {len(data)} different bytes",
                "do not keep data in this store",
            )

    async def _conditional_completion(self) -> None:
        key = f"{self._prefix}/once-in-parts"
        async with self._upload(key, b"late") as upload:
            await self._store.put(key, b"early")
            try:
                await upload.complete()
            except AlreadyExists:
                return
            raise _Failed("the store ignores the condition of a conditional completion", _CONDITIONAL_MEND)

    async def _skew(self, clock: Clock) -> None:
        before_ms = clock.now_ms()
        await self._store.put(f"{self._prefix}/time", b"")
        after_ms = clock.now_ms()
        theirs_ms = (await self._store.head(f"{self._prefix}/time")).modified_ms
        skew_ms = max(before_ms - theirs_ms, theirs_ms - after_ms)
        if skew_ms > CLOCK_SKEW_MAX_MS:
            raise _Failed(
                f"this machine's clock and the store's differ by {skew_ms // 1000} s", "set both clocks by NTP"
            )

    async def _delete(self) -> None:
        await self._clean()
        try:
            await self._store.head(f"{self._prefix}/object")
        except ObjectMissing:
            return
        raise _Failed(
            "a deleted object is still there", "turn off the feature that prevents deletes, such as Object Lock"
        )

    @contextlib.asynccontextmanager
    async def _upload(self, key: str, data: bytes) -> AsyncIterator[Upload]:
        """An upload with one part, which is aborted in the end."""
        upload = await self._store.begin_upload(key)
        try:
            await upload.put_part(1, data)
            yield upload
        finally:
            await upload.abort()
