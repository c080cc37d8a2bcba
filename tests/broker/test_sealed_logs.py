"""What is read of ended write-ahead logs, and shared by partitions that go on together (ADR 0037, J31)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from app.broker.write_ahead.write_ahead import OBJECTS_KEPT, SealedLogs
from app.core.errors import StorageUnavailable
from app.metadata.log import layout
from app.objectstore.api import ObjectInfo, ObjectMissing
from app.objectstore.memory import MemoryStore
from app.wal.format import WalFooter, encode_object
from app.wal.takeover import Piece
from tests.wal.objects import NONCE, NOW, WAL, P, batch, draft


def one_object(number: int) -> bytes:
    return encode_object(WAL, number, NONCE, NOW, [draft(P, [batch(number)], number)])[0]


def piece(footer: WalFooter) -> Piece:
    return Piece(footer.wal, footer.number, footer.sections[0])


async def piece_of(sealed: SealedLogs, footer: WalFooter) -> memoryview:
    async with sealed.reading([piece(footer)]) as read:
        return await read(piece(footer))


async def test_footers_of_objects_that_are_gone_are_forgotten() -> None:
    """The next try of a partition would else believe them again, and keep them for the try after that."""
    store = MemoryStore()
    for number in (0, 1):
        await store.put_if_absent(layout.wal_key(*WAL, number), one_object(number))
    sealed = SealedLogs(store)
    footers = await sealed.footers(WAL, 0, since_s=0.0)
    assert sorted(footers) == [0, 1]
    await store.delete_many([layout.wal_key(*WAL, 1)])
    assert sorted(await sealed.footers(WAL, 0, since_s=0.0)) == [0, 1]
    await piece_of(sealed, footers[0])
    with pytest.raises(ObjectMissing):
        await piece_of(sealed, footers[1])
    assert sorted(await sealed.footers(WAL, 0, since_s=0.0)) == [0]


class SlowStore(MemoryStore):
    """Answers one read of a footer, and is away for the others, until it is asked for the next list."""

    def __init__(self) -> None:
        super().__init__()
        self.tails = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.tails += 1
        if self.tails > 1:
            raise StorageUnavailable("too many requests")
        return await super().get_range(key, start, end)

    async def list_objects(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        self.tails = 0
        return await super().list_objects(prefix, start_after=start_after, limit=limit)


async def test_each_try_of_a_store_that_is_too_slow_gets_further() -> None:
    store = SlowStore()
    for number in range(3):
        await store.put_if_absent(layout.wal_key(*WAL, number), one_object(number))
    sealed = SealedLogs(store)
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await sealed.footers(WAL, 0, since_s=0.0)
    assert sorted(await sealed.footers(WAL, 0, since_s=0.0)) == [0, 1, 2]


class CountingStore(MemoryStore):
    """Notes the objects whose ends were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.read.append(key)
        return await super().get_range(key, start, end)


async def test_footers_are_read_once_and_only_from_where_they_are_wanted() -> None:
    store = CountingStore()
    for number in range(4):
        await store.put_if_absent(layout.wal_key(*WAL, number), one_object(number))
    sealed = SealedLogs(store)
    assert sorted(await sealed.footers(WAL, 2, since_s=0.0)) == [2, 3]
    assert sorted(await sealed.footers(WAL, 3, since_s=0.0)) == [2, 3]
    assert sorted(await sealed.footers(WAL, 1, since_s=0.0)) == [1, 2, 3]
    assert sorted(await sealed.footers(WAL, 1, since_s=asyncio.get_running_loop().time() + 1)) == [1, 2, 3]
    assert sorted(store.read) == [layout.wal_key(*WAL, number) for number in (1, 2, 3)]


class CountingWholes(MemoryStore):
    """Notes the objects that were read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, key: str) -> bytes:
        self.read.append(key)
        return await super().get(key)


async def filled(store: MemoryStore, count: int) -> tuple[SealedLogs, Mapping[int, WalFooter]]:
    """A reader of an ended log of so many objects, and their footers."""
    for number in range(count):
        await store.put_if_absent(layout.wal_key(*WAL, number), one_object(number))
    sealed = SealedLogs(store)
    return sealed, await sealed.footers(WAL, 0, since_s=0.0)


async def test_partitions_that_go_on_together_read_each_object_once_however_many_there_are() -> None:
    store = CountingWholes()
    count = 3 * OBJECTS_KEPT
    sealed, footers = await filled(store, count)
    wanted = [piece(footers[number]) for number in range(count)]

    async def go_on() -> int:
        async with sealed.reading(wanted) as read:
            return sum([len(await read(each)) for each in wanted])

    sizes = await asyncio.gather(*(go_on() for _ in range(20)))
    assert set(sizes) == {sum(len(batch(number)) for number in range(count))}
    assert sorted(store.read) == [layout.wal_key(*WAL, number) for number in range(count)]


async def test_partitions_that_come_later_or_read_in_another_order_get_theirs_and_nothing_stays() -> None:
    store = CountingWholes()
    count = 3 * OBJECTS_KEPT
    sealed, footers = await filled(store, count)
    up = [piece(footers[number]) for number in range(count)]

    async def go_on(wanted: list[Piece], stop_after: int, late: bool) -> None:
        if late:
            while len(store.read) < count // 2:
                await asyncio.sleep(0)
        async with sealed.reading(wanted) as read:
            for each in wanted[:stop_after]:
                assert bytes(await read(each)) == batch(each.number)

    async with asyncio.timeout(60):
        await asyncio.gather(
            go_on(up, count, late=False),
            go_on(up[::-1], count, late=False),
            go_on(up, 5, late=False),
            go_on(up, count, late=True),
        )
    store.read.clear()
    await go_on(up[:1], 1, late=False)
    assert store.read == [layout.wal_key(*WAL, 0)], "what nobody wants any more is not kept"
