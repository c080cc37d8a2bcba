"""The schema log of tests behaves as the seam says."""

from __future__ import annotations

import pytest

from app.registry.schema_log import EndMoved, SchemaLog
from tests.support.schema_log import MemorySchemaLog


async def test_an_append_at_another_end_appends_nothing() -> None:
    memory = MemorySchemaLog()
    log: SchemaLog = memory
    assert await log.append(0, "a-value", [(b"k", b"v")]) == 1
    with pytest.raises(EndMoved) as refused:
        await log.append(0, "a-value", [(b"k", b"w")])
    assert refused.value.end == 1
    assert [entry.value for entry in memory.entries] == [b"v"]


async def test_reading_on_from_each_end_gives_every_entry_once() -> None:
    memory = MemorySchemaLog(part=2)
    memory.put(*((b"%d" % n, b"v") for n in range(5)))
    memory.compact()
    at, seen = 0, []
    while True:
        entries, end = await memory.read(at)
        if not entries:
            break
        seen += entries
        at = end
    assert seen == memory.entries
    assert at == memory.end
