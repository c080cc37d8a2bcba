"""Faults of the in-memory store: each does what it says, and the same seed meets the same ones."""

from __future__ import annotations

import asyncio
import random

import pytest

from app.core.errors import FirnError, StorageUnavailable
from app.core.units import TimestampMs
from app.objectstore.api import AlreadyExists, ObjectMissing
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from tests.support.virtual_loop import run_virtual


class FixedClock:
    def now_ms(self) -> TimestampMs:
        return TimestampMs(1234)


def outcomes(store: MemoryStore) -> list[tuple[str, str, bool]]:
    return [(operation.operation, operation.outcome, operation.applied) for operation in store.history]


async def test_a_503_does_nothing() -> None:
    store = MemoryStore(faults=[Fault(FaultKind.UNAVAILABLE, "put", times=1)])
    with pytest.raises(StorageUnavailable, match="503"):
        await store.put("k", b"x")
    assert store.contents() == {}
    await store.put("k", b"x")
    assert outcomes(store) == [("put", "StorageUnavailable", False), ("put", "ok", True)]


async def test_a_lost_answer_is_of_an_applied_write() -> None:
    store = MemoryStore(faults=[Fault(FaultKind.LOST_ANSWER, "put_if_absent", times=1)])
    with pytest.raises(StorageUnavailable):
        await store.put_if_absent("k", b"x")
    assert store.contents() == {"k": b"x"}
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("k", b"x")
    assert outcomes(store) == [("put_if_absent", "StorageUnavailable", True), ("put_if_absent", "AlreadyExists", False)]


async def test_a_refusal_can_be_lost_too() -> None:
    store = MemoryStore()
    await store.put("k", b"first")
    store.faults.append(Fault(FaultKind.LOST_ANSWER))
    with pytest.raises(StorageUnavailable):
        await store.put_if_absent("k", b"second")
    assert store.contents() == {"k": b"first"}


def test_a_late_request_is_applied_after_its_sender_gave_up() -> None:
    async def main() -> None:
        store = MemoryStore(faults=[Fault(FaultKind.APPLIED_LATE, times=1, latency_ms=(5000, 5000))])
        with pytest.raises(StorageUnavailable):
            await store.put_if_absent("k", b"late")
        assert store.contents() == {}
        await asyncio.sleep(5.1)
        assert store.contents() == {"k": b"late"}

    run_virtual(lambda _: main())


def test_a_late_request_that_is_refused_disturbs_nobody() -> None:
    async def main() -> None:
        store = MemoryStore(faults=[Fault(FaultKind.APPLIED_LATE, times=1, latency_ms=(5000, 5000))])
        with pytest.raises(StorageUnavailable):
            await store.put_if_absent("k", b"late")
        await store.put_if_absent("k", b"early")
        await asyncio.sleep(6)
        assert store.contents() == {"k": b"early"}

    run_virtual(lambda _: main())


@pytest.mark.parametrize(("kind", "applied"), [(FaultKind.HANG, False), (FaultKind.HANG_APPLIED, True)])
async def test_a_hang_lasts_until_cancelled(kind: FaultKind, applied: bool) -> None:
    store = MemoryStore(faults=[Fault(kind)])
    task = asyncio.create_task(store.put("k", b"x"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ("k" in store.contents()) is applied
    assert outcomes(store) == [("put", "CancelledError", applied)]


def test_latency_passes_on_the_loop_before_and_after_the_write() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = MemoryStore(faults=[Fault(FaultKind.LATENCY, latency_ms=(100, 100))])
        started_s = loop.time()
        task = asyncio.create_task(store.put("k", b"x"))
        await asyncio.sleep(0.049)
        assert store.contents() == {}
        await asyncio.sleep(0.002)
        assert store.contents() == {"k": b"x"}
        assert not task.done()
        await task
        assert loop.time() - started_s == pytest.approx(0.1)

    run_virtual(lambda _: main())


async def test_spoiled_reads_are_silent_and_a_short_answer_is_not() -> None:
    data = bytes(range(100))
    store = MemoryStore()
    await store.put("k", data)

    store.faults = [Fault(FaultKind.TORN_READ)]
    for read in (store.get("k"), store.get_range("k", 0, 100)):
        torn = await read
        assert data.startswith(torn)
        assert len(torn) < 100

    store.faults = [Fault(FaultKind.FLIPPED_BYTE)]
    flipped, size_bytes = await store.get_tail("k", 100)
    assert size_bytes == 100
    assert sum(a != b for a, b in zip(flipped, data, strict=True)) == 1

    store.faults = [Fault(FaultKind.SHORT_ANSWER)]
    with pytest.raises(StorageUnavailable):
        await store.get("k")
    await store.put("other", b"writes are spared")
    store.faults = []
    assert await store.get("k") == data


async def test_a_fault_strikes_where_and_as_often_as_it_says() -> None:
    store = MemoryStore(faults=[Fault(FaultKind.UNAVAILABLE, "put", "log/", skip=1, times=2)])
    answers = []
    for key in ("log/0", "other", "log/1", "log/2", "log/3"):
        try:
            await store.put(key, b"")
            answers.append("ok")
        except StorageUnavailable:
            answers.append("503")
    assert answers == ["ok", "ok", "503", "503", "ok"]


async def test_faults_of_an_upload_have_its_methods_names() -> None:
    store = MemoryStore()
    upload = await store.begin_upload("k")
    store.faults = [
        Fault(FaultKind.UNAVAILABLE, "put_part", times=1),
        Fault(FaultKind.LOST_ANSWER, "complete", times=1),
    ]
    with pytest.raises(StorageUnavailable):
        await upload.put_part(1, b"x")
    await upload.put_part(1, b"x")
    with pytest.raises(StorageUnavailable):
        await upload.complete()
    with pytest.raises(AlreadyExists):
        await upload.complete()
    assert store.contents() == {"k": b"x"}


def trace_of(seed: int) -> list[object]:
    async def main() -> list[object]:
        rng = random.Random(seed)
        store = MemoryStore(
            FixedClock(),
            rng,
            [
                Fault(FaultKind.LATENCY, probability=0.5, latency_ms=(1, 400)),
                Fault(FaultKind.UNAVAILABLE, probability=0.1),
                Fault(FaultKind.LOST_ANSWER, probability=0.1),
                Fault(FaultKind.APPLIED_LATE, probability=0.1, latency_ms=(1, 900)),
                Fault(FaultKind.FLIPPED_BYTE, probability=0.1),
                Fault(FaultKind.TORN_READ, probability=0.1),
            ],
        )

        async def worker(number: int) -> list[object]:
            seen: list[object] = []
            for turn in range(25):
                try:
                    match (number + turn) % 4:
                        case 0:
                            seen.append(await store.put_if_absent(f"log/{turn}", f"worker {number}".encode()))
                        case 1:
                            seen.append(await store.get(f"log/{turn - 1}"))
                        case 2:
                            seen.append(await store.list_objects("log/"))
                        case _:
                            seen.append(await store.delete(f"log/{turn - 2}"))
                except FirnError as error:
                    seen.append(repr(error))
            return seen

        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(worker(number)) for number in range(4)]
        return [[worker.result() for worker in workers], list(store.history), store.contents()]

    return run_virtual(lambda _: main())


def test_the_same_seed_meets_the_same_faults() -> None:
    assert trace_of(1) == trace_of(1)
    assert trace_of(1) != trace_of(2)


async def test_rot_and_loss_can_be_made() -> None:
    store = MemoryStore(FixedClock())
    await store.put("k", b"abc")
    store.flip_byte("k", 1)
    assert await store.get("k") == b"a\x9dc"
    assert (await store.head("k")).modified_ms == 1234
    store.lose("k")
    with pytest.raises(ObjectMissing):
        await store.get("k")
