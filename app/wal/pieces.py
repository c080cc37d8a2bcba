"""Reads what a partition has in logs that have ended, in order, until it is tiered (ADR 0037, J30, J31).

``PieceReader`` reads several pieces at once and holds a bounded number of bytes. How a piece is read is an argument: a range of one
object for one partition, or a whole object once for many partitions that go on together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from app.errors import ConflictError
from app.limits import MIB
from app.objectstore.api import ObjectMissing, ObjectStore
from app.units import Buffer, Offset
from app.wal.objects import read_section
from app.wal.takeover import Piece

AT_ONCE: Final = 4
"""Pieces that are read at the same time."""

BYTES_MAX: Final = 32 * MIB
"""Bytes of pieces that are on their way, or were read ahead. A longer piece is read alone."""

ReadPiece = Callable[[Piece], Awaitable[Buffer]]
"""Reads the bytes of a piece's section, and checks them. Raises: ObjectMissing, StorageUnavailable, CorruptionError."""


class PieceMissing(ConflictError):
    """An object of a range is gone: it was tiered and trimmed, or the store has lost it.

    Read the manifest and the newest image before you decide which (J31).
    """

    def __init__(self, piece: Piece) -> None:
        super().__init__(
            f"object {piece.number} of write-ahead log {piece.wal} is missing, with the records of {piece.section.partition} from "
            f"offset {piece.section.base_offset} to {piece.section.end_offset}"
        )
        self.piece = piece


class Records(NamedTuple):
    """Whole batches of a partition, one after the other, without a gap."""

    base_offset: Offset
    end_offset: Offset
    data: memoryview


def first_batch(piece: Piece, start: int) -> tuple[Offset, int]:
    """The batch of a piece that has ``start``, or is the first one. Returns: its base offset, and its position in the section."""
    position = 0
    for fields in piece.section.batches:
        if fields.end_offset > start:
            return fields.base_offset, position
        position += fields.size_bytes
    raise AssertionError((piece.section.end_offset, start))


def read_from(store: ObjectStore) -> ReadPiece:
    """Reads each piece by one request for its range of the object."""
    return lambda piece: read_section(store, piece.wal, piece.number, piece.section)


class PieceReader:
    """Of one partition, one pass. Use it as a context: whatever is on its way is cancelled at the end.

    ``start``: batches that end at or below it are left out. ``pieces`` are in order, as a ``TakeOver`` has them.
    """

    def __init__(
        self,
        read: ReadPiece,
        pieces: Sequence[Piece],
        start: Offset,
        *,
        at_once: int = AT_ONCE,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._read = read
        self._start = start
        self._left = deque(piece for piece in pieces if piece.section.end_offset > start)
        self._under_way: deque[tuple[Piece, asyncio.Task[Buffer] | None]] = deque()
        """None: the read has failed, and is repeated at the next call."""
        self._bytes = 0
        self._at_once = at_once
        self._bytes_max = bytes_max

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = [task for _, task in self._under_way if task is not None]
        self._under_way.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def next(self) -> Records | None:
        """The records of the next piece; None if there are no more.

        After StorageUnavailable, or if it was cancelled, the same piece comes at the next call.
        Raises: PieceMissing, StorageUnavailable, CorruptionError.
        """
        self._read_ahead()
        if not self._under_way:
            return None
        piece, task = self._under_way[0]
        if task is None:
            task = asyncio.ensure_future(self._read(piece))
            self._under_way[0] = (piece, task)
        await asyncio.wait([task])
        if (failure := task.exception()) is not None:
            self._under_way[0] = (piece, None)
            if isinstance(failure, ObjectMissing):
                raise PieceMissing(piece) from failure
            raise failure
        self._under_way.popleft()
        self._bytes -= piece.section.size_bytes
        base_offset, position = first_batch(piece, self._start)
        return Records(base_offset, piece.section.end_offset, memoryview(task.result())[position:])

    def _read_ahead(self) -> None:
        while self._left and len(self._under_way) < self._at_once:
            size_bytes = self._left[0].section.size_bytes
            if self._under_way and self._bytes + size_bytes > self._bytes_max:
                return
            piece = self._left.popleft()
            self._bytes += size_bytes
            self._under_way.append((piece, asyncio.ensure_future(self._read(piece))))
