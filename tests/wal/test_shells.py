"""Owner, taker and readers on a store: what was acknowledged is read back, whatever answers get lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from app.core.errors import CorruptionError, FencedError, StorageUnavailable
from app.core.units import Buffer, TimestampMs
from app.metadata.image.wal_ranges import WalRange
from app.metadata.log import layout
from app.objectstore.api import AlreadyExists, ObjectStore
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.wal.format import encode_object, encode_seal
from app.wal.objects import READS, list_sizes, read_footer, read_footers, read_whole
from app.wal.owner import WalOwner
from app.wal.takeover import TakeOver, continue_from
from app.wal.taker import seal
from app.wal.writer import CORRUPT_READS, DurableObject, WalWriter
from tests.support.virtual_loop import VirtualLoop, run_virtual
from tests.wal.objects import NONCE, NOW, WAL, P, Q, batch, draft, empty_state, fields_of


class Clock:
    def now_ms(self) -> TimestampMs:
        return TimestampMs(5)


class Broker:
    """A process that leads two partitions."""

    def __init__(self, store: ObjectStore, seed: int = 1) -> None:
        rng = Random(seed)
        size = len(batch(0))
        self.writer = WalWriter(
            WAL, new_nonce=lambda: rng.randbytes(16), object_bytes=10 * size, buffer_bytes=500 * size
        )
        self.acknowledged = {P: 0, Q: 0}
        self.ends = {P: 0, Q: 0}
        self.moved = asyncio.Event()
        for partition in (P, Q):
            self.writer.lead(partition)
        self.owner = WalOwner(self.writer, store, Clock(), rng, self._on_acknowledged)
        self.task = asyncio.ensure_future(self.owner.run())

    def _on_acknowledged(self, durable: DurableObject) -> None:
        for section in durable.sections:
            assert self.acknowledged[section.partition] < section.end_offset
            self.acknowledged[section.partition] = section.end_offset
        self.moved.set()

    def append(self, count: int) -> None:
        for _ in range(count):
            for partition in (P, Q):
                offset = self.ends[partition]
                data = batch(offset)
                self.writer.check_room(partition, len(data))
                state = empty_state(offset) if self.writer.wants_state(partition) else None
                now_ms = int(asyncio.get_running_loop().time() * 1000)
                self.writer.append(partition, data, fields_of(data), now_ms=now_ms, linger_ms=2, state=state)
                self.ends[partition] = offset + 1
        self.owner.wake()

    async def wait_acknowledged(self, end: int) -> None:
        while min(self.acknowledged.values()) < end:
            self.moved.clear()
            await self.moved.wait()

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def read_back(store: ObjectStore, end: int) -> dict[object, bytes]:
    """All batches of both partitions, from the sealed log alone."""
    ranges = [WalRange(*WAL, 0, 0, end - 1)] if end else []
    objects = {WAL: await read_footers(store, WAL, [each for each in await list_sizes(store, WAL) if each < end])}
    found: dict[object, bytes] = {}
    for partition in (P, Q):
        taken = continue_from(partition, ranges, objects, None)
        assert isinstance(taken, TakeOver)
        parts = []
        for piece in taken.pieces:
            data, section = await read_whole(store, piece.wal, piece.number), piece.section
            parts.append(data[section.position : section.position + section.size_bytes])
        found[partition] = b"".join(parts)
    return found


async def killed_and_read_back(store: ObjectStore, *, acknowledged: int, more: int) -> None:
    """A process is killed with records on their way; everything that was acknowledged is there, and nothing twice."""
    broker = Broker(store)
    for _ in range(acknowledged):
        broker.append(1)
        await asyncio.sleep(0.001)
    await broker.wait_acknowledged(acknowledged)
    broker.append(more)
    await broker.kill()
    told = dict(broker.acknowledged)
    end = await seal(store, WAL, sealer=9, clock=Clock(), rng=Random(3))
    found = await read_back(store, end)
    for partition, data in found.items():
        expected = b"".join(batch(offset) for offset in range(acknowledged + more))
        assert expected.startswith(data)
        assert len(data) >= len(b"".join(batch(offset) for offset in range(told[partition])))  # type: ignore[index]
    assert await seal(store, WAL, sealer=8, clock=Clock(), rng=Random(4)) == end


def test_what_was_acknowledged_is_read_back_from_a_directory(tmp_path: Path) -> None:
    asyncio.run(killed_and_read_back(DirectoryStore(tmp_path), acknowledged=20, more=5))


@pytest.mark.parametrize("seed", range(20))
def test_what_was_acknowledged_is_read_back_whatever_answers_get_lost(seed: int) -> None:
    kinds = (
        FaultKind.LOST_ANSWER,
        FaultKind.APPLIED_LATE,
        FaultKind.UNAVAILABLE,
        FaultKind.HANG,
        FaultKind.HANG_APPLIED,
    )
    faults = [Fault(kind, probability=0.06, latency_ms=(50.0, 4000.0)) for kind in kinds]
    faults.append(Fault(FaultKind.LATENCY, latency_ms=(5.0, 80.0)))

    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore(rng=Random(seed), faults=faults)
        try:
            await killed_and_read_back(store, acknowledged=30, more=10)
        finally:
            store.faults.clear()

    # A read of a section is not repeated by the shell: its caller does that.
    for fault in faults[:-1]:
        fault.operation = "put_if_absent"
    run_virtual(main)


def test_an_owner_whose_log_is_sealed_ends_and_acknowledges_nothing_beyond() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore(rng=Random(1), faults=[Fault(FaultKind.LATENCY, latency_ms=(5.0, 40.0))])
        broker = Broker(store)
        broker.append(10)
        await broker.wait_acknowledged(10)
        taking = asyncio.ensure_future(seal(store, WAL, sealer=9, clock=Clock(), rng=Random(3)))
        for _ in range(40):
            broker.append(1)
            await asyncio.sleep(0.005)
            if taking.done():
                break
        end = await taking
        broker.append(1)  # an owner that has nothing to put does not find the seal
        await broker.task
        with pytest.raises(FencedError):
            broker.append(1)
        assert broker.writer.sealed_at == broker.writer.durable_end == end
        found = await read_back(store, end)
        assert all(len(found[key]) >= len(batch(0)) * told // 2 for key, told in broker.acknowledged.items())

    run_virtual(main)


def test_a_read_back_that_was_damaged_on_its_way_is_read_again() -> None:
    """The first put's answer is lost, and reads give damaged bytes for a while: nothing of that ends a log."""

    async def main(loop: VirtualLoop) -> None:
        lost = Fault(FaultKind.LOST_ANSWER, operation="put_if_absent", times=1)
        damaged = Fault(FaultKind.TORN_READ, operation="get_tail", times=READS * (CORRUPT_READS - 1))
        broker = Broker(MemoryStore(rng=Random(1), faults=[lost, damaged]))
        broker.append(1)
        await broker.wait_acknowledged(1)
        await broker.kill()

    run_virtual(main)


def test_an_object_that_is_damaged_for_good_ends_its_owner() -> None:
    async def main(loop: VirtualLoop) -> None:
        lost = Fault(FaultKind.LOST_ANSWER, operation="put_if_absent", times=1)
        broker = Broker(MemoryStore(rng=Random(1), faults=[lost, Fault(FaultKind.TORN_READ, operation="get_tail")]))
        broker.append(1)
        with pytest.raises(CorruptionError, match="each time its bytes were not what was written"):
            await broker.task

    run_virtual(main)


def test_a_seal_finds_the_end_though_a_footer_is_damaged_on_its_way() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore(rng=Random(1))
        broker = Broker(store)
        broker.append(1)
        await broker.wait_acknowledged(1)
        await broker.kill()
        store.faults.append(Fault(FaultKind.TORN_READ, operation="get_tail", times=READS - 1))
        assert await seal(store, WAL, sealer=9, clock=Clock(), rng=Random(3)) == 1

    run_virtual(main)


class FasterWriter(MemoryStore):
    """Where a seal is to be put, the writer has just put an object."""

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        found = layout.parse_wal_key(key)
        assert found is not None
        whole, _ = encode_object(WAL, found.number, NONCE, NOW, [draft(P, [batch(found.number)], found.number)])
        await super().put_if_absent(key, whole)
        raise AlreadyExists(key)


def test_a_taker_gives_up_against_a_writer_that_is_always_faster() -> None:
    async def main(loop: VirtualLoop) -> None:
        with pytest.raises(StorageUnavailable, match="its writer is alive and goes on"):
            await seal(FasterWriter(), WAL, sealer=9, clock=Clock(), rng=Random(3))

    run_virtual(main)


def test_a_taker_gives_up_when_the_store_stays_away() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore(faults=[Fault(FaultKind.UNAVAILABLE)])
        with pytest.raises(StorageUnavailable):
            await seal(store, WAL, sealer=9, clock=Clock(), rng=Random(3), deadline_s=5.0)
        assert loop.time() < 6

    run_virtual(main)


def test_requests_are_those_of_the_formula(tmp_path: Path) -> None:
    """One PUT for each object, none for a probe; a seal is two LISTs, one PUT and at most nine GETs."""

    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore()
        broker = Broker(store)
        for number in range(12):
            broker.append(1)
            await broker.wait_acknowledged(number + 1)
        await broker.kill()
        assert [each.operation for each in store.history] == ["put_if_absent"] * 12
        store.history.clear()
        assert await seal(store, WAL, sealer=9, clock=Clock(), rng=Random(3)) == 12
        operations = [each.operation for each in store.history]
        assert sorted(operations) == ["get_range"] * 9 + ["list_objects"] * 2 + ["put_if_absent"]

    run_virtual(main)


def test_numbers_are_listed_over_pages_and_other_keys_are_left_out() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore()
        for number in range(1005):
            await store.put(layout.wal_key(*WAL, number), b"x")
        await store.put("wal/3/other", b"x")
        await store.put(layout.wal_prefix(*WAL) + "other", b"x")
        assert await list_sizes(store, WAL) == dict.fromkeys(range(1005), 1)
        assert await list_sizes(store, WAL, above=1002) == {1003: 1, 1004: 1}

    run_virtual(main)


def test_a_long_footer_takes_a_second_request() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore()
        size = len(batch(0))
        writer = WalWriter(WAL, new_nonce=lambda: bytes(16), object_bytes=4000 * size, buffer_bytes=8000 * size)
        writer.lead(P)
        for offset in range(2000):
            data = batch(offset)
            state = empty_state(offset) if writer.wants_state(P) else None
            writer.append(P, data, fields_of(data), now_ms=0, linger_ms=0, state=state)
        assert writer.cut(0) is not None
        await store.put(layout.wal_key(*WAL, 0), writer.bytes_of(0))
        footer = await read_footer(store, WAL, 0)
        assert len(footer.sections[0].batches) == 2000
        assert [each.operation for each in store.history] == ["put", "get_tail", "get_range"]

    run_virtual(main)


def test_a_footer_is_found_though_a_seal_has_taken_the_place_of_a_longer_object() -> None:
    """A LIST has told the size of what lay there before."""

    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore()
        key = layout.wal_key(*WAL, 3)
        await store.put(key, encode_seal(WAL, 3, bytes(16), 0, 1))
        for said in (None, 0, 1, 64, len(await store.get(key)), 100_000, 10_000_000):
            assert (await read_footer(store, WAL, 3, said)).is_seal, said

    run_virtual(main)
