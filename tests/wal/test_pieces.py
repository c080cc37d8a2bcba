"""What a partition has in ended logs is read in order, several pieces at once, with bounded memory (ADR 0037, J30, J31)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from app.errors import CorruptionError, StorageUnavailable
from app.metadata import layout
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.units import Buffer, Offset
from app.wal.format import encode_object
from app.wal.objects import READS
from app.wal.pieces import PieceMissing, PieceReader, read_from
from app.wal.takeover import Piece
from tests.support.virtual_loop import VirtualLoop, run_virtual
from tests.wal.objects import NONCE, NOW, WAL, P, Q, batch, draft


async def stored(store: MemoryStore, sections: Sequence[Sequence[int]]) -> list[Piece]:
    """Objects from 0 on, each with a section of another partition and one of P with records at these offsets."""
    pieces = []
    for number, offsets in enumerate(sections):
        drafts = [draft(Q, [batch(number)], number), draft(P, [batch(offset) for offset in offsets], number)]
        data, footer = encode_object(WAL, number, NONCE, NOW, drafts)
        await store.put(layout.wal_key(*WAL, number), data)
        pieces.append(Piece(WAL, number, footer.sections[1]))
    return pieces


async def read_all(reader: PieceReader) -> list[tuple[int, int, bytes]]:
    found = []
    while (records := await reader.next()) is not None:
        found.append((records.base_offset, records.end_offset, bytes(records.data)))
    return found


def records_of(*offsets: int) -> bytes:
    return b"".join(batch(offset) for offset in offsets)


@pytest.mark.parametrize("start", range(6))
def test_records_come_in_order_from_the_batch_that_has_the_start(start: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore(faults=[Fault(FaultKind.LATENCY, latency_ms=(1.0, 50.0))])
        pieces = await stored(store, [[0, 1], [2], [3, 4]])
        async with PieceReader(read_from(store), pieces, Offset(start)) as reader:
            found = await read_all(reader)
            assert await reader.next() is None
        assert b"".join(data for _, _, data in found) == records_of(*range(start, 5))
        assert [base for base, _, _ in found[:1]] == ([start] if start < 5 else [])
        assert all(before[1] == after[0] for before, after in pairwise(found))

    run_virtual(main)


class Reads:
    """Counts pieces that are being read, or were read and not given out."""

    def __init__(self) -> None:
        self.under_way = self.most = 0
        self.order: list[int] = []

    async def __call__(self, piece: Piece) -> Buffer:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.order.append(piece.number)
        try:
            await asyncio.sleep(0.1)
            return records_of(*(fields.base_offset for fields in piece.section.batches))
        finally:
            self.under_way -= 1


def test_several_pieces_are_read_at_once_and_no_more_bytes_than_allowed() -> None:
    async def main(loop: VirtualLoop) -> None:
        pieces = await stored(MemoryStore(), [[offset] for offset in range(12)])
        size = pieces[0].section.size_bytes
        for at_once, bytes_max, most in ((4, 1000 * size, 4), (4, 3 * size, 3), (4, 1, 1), (1, 1000 * size, 1)):
            reads, began_s = Reads(), loop.time()
            async with PieceReader(reads, pieces[:9], Offset(0), at_once=at_once, bytes_max=bytes_max) as reader:
                assert len(await read_all(reader)) == 9
            assert (reads.most, reads.order) == (most, list(range(9)))
            assert loop.time() - began_s == pytest.approx(0.1 * -(-9 // most))

    run_virtual(main)


def test_a_missing_object_is_told_apart_and_an_absent_store_is_asked_again() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore()
        pieces = await stored(store, [[0], [1], [2]])
        await store.delete(layout.wal_key(*WAL, 2))
        store.faults.append(Fault(FaultKind.UNAVAILABLE, operation="get_range", skip=1, times=1))
        async with PieceReader(read_from(store), pieces, Offset(0), at_once=1) as reader:
            assert await reader.next() is not None
            with pytest.raises(StorageUnavailable):
                await reader.next()
            again = await reader.next()
            assert again is not None
            assert again.base_offset == 1
            for _ in range(2):
                with pytest.raises(
                    PieceMissing, match="object 2 of write-ahead log 3/17 is missing, with the records of"
                ):
                    await reader.next()

    run_virtual(main)


def test_a_damaged_piece_is_never_given_out() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore()
        pieces = await stored(store, [[0]])
        store.faults.append(Fault(FaultKind.FLIPPED_BYTE, operation="get_range", times=READS))
        async with PieceReader(read_from(store), pieces, Offset(0)) as reader:
            with pytest.raises(CorruptionError):
                await reader.next()
            assert await reader.next() is not None

    run_virtual(main)


def test_whoever_leaves_takes_what_is_on_its_way_along() -> None:
    async def main(loop: VirtualLoop) -> None:
        pieces = await stored(MemoryStore(), [[offset] for offset in range(12)])
        reads = Reads()
        async with PieceReader(reads, pieces, Offset(0)) as reader:
            await reader.next()
            waiting = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            left_s = loop.time()
        assert reads.under_way == 0
        assert loop.time() == left_s, "it was not waited for"

    run_virtual(main)
