"""What is read of ended write-ahead logs, and shared by partitions that go on together (ADR 0037, J31)."""

from __future__ import annotations

import pytest

from app.broker.write_ahead import SealedLogs
from app.metadata import layout
from app.objectstore.api import ObjectMissing
from app.objectstore.memory import MemoryStore
from app.wal.format import encode_object
from tests.wal.objects import NONCE, NOW, WAL, P, batch, draft


async def test_footers_of_objects_that_are_gone_are_forgotten() -> None:
    """The next try of a partition would else believe them again, and keep them for the try after that."""
    store = MemoryStore()
    for number in (0, 1):
        data, _ = encode_object(WAL, number, NONCE, NOW, [draft(P, [batch(number)], number)])
        await store.put_if_absent(layout.wal_key(*WAL, number), data)
    sealed = SealedLogs(store)
    footers = await sealed.footers(WAL, since_s=0.0)
    assert sorted(footers) == [0, 1]
    await store.delete_many([layout.wal_key(*WAL, 1)])
    assert sorted(await sealed.footers(WAL, since_s=0.0)) == [0, 1]
    await sealed.section(WAL, 0, footers[0].sections[0])
    with pytest.raises(ObjectMissing):
        await sealed.section(WAL, 1, footers[1].sections[0])
    assert sorted(await sealed.footers(WAL, since_s=0.0)) == [0]
