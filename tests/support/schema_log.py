"""A schema log in memory."""

from __future__ import annotations

from collections.abc import Sequence

from app.registry.schema_log import EndMoved, Entry


class MemorySchemaLog:
    """Keeps its entries in a list. ``moves`` lets a test append as another writer would, right before the next append."""

    def __init__(self, *, part: int = 100) -> None:
        self.entries: list[Entry] = []
        self.end = 0
        self.reads = 0
        self.subjects: list[str | None] = []
        """Of all appends."""
        self.moves: list[list[tuple[bytes, bytes | None]]] = []
        """Batches that other writers append first, one before each append."""
        self._part = part

    async def read(self, start: int) -> tuple[list[Entry], int]:
        self.reads += 1
        found = [entry for entry in self.entries if entry.offset >= start][: self._part]
        whole = not found or found[-1].offset == self.end - 1
        return found, self.end if whole else found[-1].offset + 1

    async def append(
        self, expected_end: int, subject: str | None, records: Sequence[tuple[bytes, bytes | None]]
    ) -> int:
        if self.moves:
            self.put(*self.moves.pop(0))
        if expected_end != self.end:
            raise EndMoved(self.end)
        self.subjects.append(subject)
        self.put(*records)
        return self.end

    def put(self, *records: tuple[bytes, bytes | None]) -> None:
        """Append as a writer without a condition."""
        for key, value in records:
            self.entries.append(Entry(self.end, 1_700_000_000_000 + self.end, key, value))
            self.end += 1

    def compact(self) -> None:
        """Keep the newest record of each key, and drop tombstones."""
        newest = {entry.key: entry.offset for entry in self.entries}
        self.entries = [
            entry for entry in self.entries if newest[entry.key] == entry.offset and entry.value is not None
        ]
