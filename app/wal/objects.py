"""The objects of write-ahead logs in the store: thin calls, each with a deadline.

Tests: ``tests/wal/test_shells.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from app.core.errors import CorruptionError, StorageUnavailable
from app.core.units import Buffer
from app.metadata.image.wal_ranges import WalId
from app.metadata.log import layout
from app.objectstore.api import ObjectMissing, ObjectStore, RangeUnsatisfiable
from app.objectstore.keys import LIST_LIMIT_MAX
from app.wal.format import TAIL_BYTES, WalFooter, decode_footer, decode_whole, footer_tail_bytes

T = TypeVar("T")

REQUEST_S: Final = 10.0
"""A request that takes longer is undecided. It may still be applied: its caller repeats it."""

WHOLE_S: Final = 30.0
"""The same for a whole object, of 8 MiB by default."""

READS: Final = 3
"""So often wrong bytes are read before they count as damage: the transfer may be damaged, and not the
object. One flipped bit on its way would else end a log, or take partitions offline."""

FOOTERS_AT_ONCE: Final = 64
"""Footers that are read at the same time. A take-over of 500 MB has about as many objects."""


async def put(store: ObjectStore, wal: WalId, number: int, data: Buffer) -> None:
    """Put one object if absent. Raises: AlreadyExists, StorageUnavailable (undecided)."""
    try:
        async with asyncio.timeout(REQUEST_S):
            await store.put_if_absent(layout.wal_key(*wal, number), data)
    except TimeoutError:
        raise StorageUnavailable(f"{layout.wal_key(*wal, number)}: no response within {REQUEST_S:g} s.") from None


async def read_footer(store: ObjectStore, wal: WalId, number: int, size_bytes: int | None = None) -> WalFooter:
    """The footer of one object: one GET, two if the footer is long. ``size_bytes``: of the object, as a LIST said.

    Raises: ObjectMissing, StorageUnavailable, CorruptionError.
    """
    if size_bytes:
        # Where records were trimmed, a seal may lie meanwhile: another size. Without one the end is found in any case.
        with suppress(CorruptionError, RangeUnsatisfiable):
            return await _read_footer(store, wal, number, size_bytes)
    return await _read_until_whole(lambda: _read_footer(store, wal, number, None))


async def _read_footer(store: ObjectStore, wal: WalId, number: int, size_bytes: int | None) -> WalFooter:
    key = layout.wal_key(*wal, number)
    tail: Buffer
    try:
        async with asyncio.timeout(REQUEST_S):
            if size_bytes is None:
                tail, size_bytes = await store.get_tail(key, TAIL_BYTES)
            else:
                tail = await store.get_range(key, max(0, size_bytes - TAIL_BYTES), size_bytes)
            wanted = footer_tail_bytes(tail, size_bytes, key)
            if wanted > len(tail):
                tail = await store.get_range(key, size_bytes - wanted, size_bytes)
    except TimeoutError:
        raise StorageUnavailable(f"{key}: no response within {REQUEST_S:g} s.") from None
    return decode_footer(tail, size_bytes, key, wal, number)


async def _read_until_whole(read: Callable[[], Awaitable[T]]) -> T:
    for _ in range(READS - 1):
        with suppress(CorruptionError):
            return await read()
    return await read()


async def read_whole(store: ObjectStore, wal: WalId, number: int) -> bytes:
    """A whole object with every section checked. Raises: ObjectMissing, StorageUnavailable, CorruptionError."""
    return await _read_until_whole(lambda: _read_whole(store, wal, number))


async def _read_whole(store: ObjectStore, wal: WalId, number: int) -> bytes:
    key = layout.wal_key(*wal, number)
    try:
        async with asyncio.timeout(WHOLE_S):
            data = await store.get(key)
    except TimeoutError:
        raise StorageUnavailable(f"{key}: no response within {WHOLE_S:g} s.") from None
    decode_whole(data, key, wal, number)
    return data


async def list_sizes(store: ObjectStore, wal: WalId, *, above: int = -1) -> dict[int, int]:
    """The objects of a log above number ``above``, in order, and their bytes; other keys are left out. One LIST for 1,000.

    Raises: StorageUnavailable.
    """
    prefix = layout.wal_prefix(*wal)
    after = layout.wal_key(*wal, above) if above >= 0 else ""
    sizes: dict[int, int] = {}
    while True:
        page = await store.list_objects(prefix, start_after=after, limit=LIST_LIMIT_MAX)
        for info in page:
            found = layout.parse_wal_key(info.key)
            if found is not None:
                sizes[found.number] = info.size_bytes
        if len(page) < LIST_LIMIT_MAX:
            return sizes
        after = page[-1].key


async def read_footers(
    store: ObjectStore,
    wal: WalId,
    numbers: Collection[int],
    *,
    sizes: Mapping[int, int] = {},
    into: dict[int, WalFooter] | None = None,
    turns: asyncio.Semaphore | None = None,
) -> dict[int, WalFooter]:
    """The footers of these objects, without those that are missing. ``sizes``: from a LIST. ``into`` gets each that is read,
    also if others cannot be. ``turns``: for each request, if others share them.

    Raises: StorageUnavailable, CorruptionError.
    """
    found = {} if into is None else into
    turns = turns or asyncio.Semaphore(FOOTERS_AT_ONCE)

    async def read(number: int) -> None:
        async with turns:
            try:
                found[number] = await read_footer(store, wal, number, sizes.get(number))
            except ObjectMissing:
                return

    for outcome in await asyncio.gather(*map(read, numbers), return_exceptions=True):
        if outcome is not None:
            raise outcome
    return found
