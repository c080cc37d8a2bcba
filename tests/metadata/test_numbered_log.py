"""The numbered log over stores: what is promised to its users, one behaviour at a time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TypeVar

import pytest

from app.core.errors import ConflictError, CorruptionError, FencedError, LimitExceeded, StorageUnavailable
from app.core.turns import Portion, Steps, whole
from app.metadata.log import layout, numbered_log
from app.metadata.log.log_format import NO_WRITER
from app.metadata.log.numbered_log import NumberedLog
from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from tests.metadata.support import FixedClock, Replay, key, make_log, on_virtual_time, requests_of, value
from tests.support.virtual_loop import VirtualLoop

T = TypeVar("T")
ENTRY = "cluster/log/{:020d}"


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return DirectoryStore(tmp_path / "store")
    return MemoryStore(FixedClock(), random.Random(1))


async def sealed(store: ObjectStore, writer_id: str, **more: int) -> NumberedLog[Replay]:
    log = make_log(store, writer_id, **more)
    await log.load()
    await log.seal(log.next_sequence)
    return log


async def append(log: NumberedLog[Replay], count: int, *, keys: int = 10) -> None:
    for _ in range(count):
        number = log.next_sequence
        await log.append(number, [(key(number % keys), value(number))])


async def keys_of(store: ObjectStore, prefix: str) -> list[str]:
    return [info.key for info in await store.list_objects(prefix)]


# --- behaviour, over every store ------------------------------------------------------------------------------------


async def test_an_empty_prefix_is_an_empty_log(store: ObjectStore) -> None:
    log = make_log(store, "a")
    assert not await log.load()
    assert (log.next_sequence, log.writer, dict(log.live)) == (0, NO_WRITER, {})
    assert not await log.poll()


async def test_what_is_appended_is_read_by_others_in_order(store: ObjectStore) -> None:
    writer, reader = await sealed(store, "a"), make_log(store, "b")
    await reader.load()
    await writer.append(1, [(key(1), value(1)), (key(2), value(2))])
    await writer.append(2, [(key(1), None), (key(3), value(3))])
    assert await reader.poll()
    assert dict(reader.live) == dict(writer.live) == {key(2): value(2), key(3): value(3)}
    assert [entry.sequence for entry in reader.state.entries] == [0, 1, 2]
    assert reader.writer.writer_id == "a"
    assert not await reader.poll()


async def test_nobody_appends_without_a_seal(store: ObjectStore) -> None:
    log = make_log(store, "a")
    await log.load()
    with pytest.raises(ConflictError, match="not sealed"):
        await log.append(0, [(key(1), value(1))])
    assert await keys_of(store, "") == []


async def test_an_append_under_another_number_than_the_next_writes_nothing(store: ObjectStore) -> None:
    log = await sealed(store, "a")
    for wrong in (0, 2):
        with pytest.raises(ConflictError, match="goes on at 1"):
            await log.append(wrong, [(key(1), value(1))])
    await append(log, 1)


async def test_the_overtaken_writer_meets_the_seal_and_is_fenced_for_good(store: ObjectStore) -> None:
    old = await sealed(store, "old")
    await append(old, 3)
    new = await sealed(store, "new")
    with pytest.raises(ConflictError, match="new has written"):
        await append(old, 1)
    await old.poll()
    for _ in range(2):
        with pytest.raises(FencedError, match="new has taken over cluster from old"):
            await append(old, 1)
        with pytest.raises(FencedError):
            await old.seal(old.next_sequence)
    await append(new, 1)


async def test_the_overtaken_writer_meets_the_seal_after_all_else_was_deleted(store: ObjectStore) -> None:
    old = await sealed(store, "old")
    await append(old, 3)
    new = await sealed(store, "new")
    for _ in range(4):
        await append(new, 20)
        await new.snapshot()
    left = await keys_of(store, "cluster/log/")
    assert left[:2] == [ENTRY.format(0), ENTRY.format(4)]
    assert len(left) == 2 + 20 + 1, "below the snapshot before the newest only seals are left"
    with pytest.raises(ConflictError, match="new has written"):
        await append(old, 1)


async def test_a_seal_on_a_deleted_number_is_not_believed(store: ObjectStore) -> None:
    writer, late, behind = await sealed(store, "w"), make_log(store, "late"), make_log(store, "behind")
    await append(writer, 10)
    for log in (late, behind):
        await log.load()
    for _ in range(3):
        await append(writer, 10)
        await writer.snapshot()
    at = late.next_sequence
    with pytest.raises(ConflictError, match="had gone on past"):
        await late.seal(at)
    assert not late.is_writer
    assert ENTRY.format(at) in await keys_of(store, "cluster/log/"), "the useless seal is there"
    # Whoever is at that very number meets it, and goes on with the truth.
    for log in (behind, late):
        await log.poll()
        assert dict(log.live) == log.state.records == dict(writer.live)
        assert log.writer.writer_id == "w"
    await append(writer, 1)
    await late.poll()
    await late.seal(late.next_sequence)
    assert late.is_writer


async def test_a_useless_seal_next_to_a_number_that_is_left_is_told_by_the_chain(store: ObjectStore) -> None:
    writer = await sealed(store, "w")
    await append(writer, 9)
    late, behind = make_log(store, "late"), make_log(store, "behind")
    for log in (late, behind):
        await log.load()
    await append(writer, 1)  # number 10, which is deleted below, while 11 stays
    await append(writer, 1)
    await writer.snapshot()
    await append(writer, 1)
    await writer.snapshot()
    await append(writer, 1)
    assert late.next_sequence == behind.next_sequence == 10
    assert ENTRY.format(10) not in await keys_of(store, "cluster/log/")
    assert ENTRY.format(11) in await keys_of(store, "cluster/log/")
    with pytest.raises(ConflictError):
        await late.seal(10)
    await behind.poll()
    assert dict(behind.live) == behind.state.records == dict(writer.live)


async def test_a_lower_epoch_does_not_seal_over_a_higher_one(store: ObjectStore) -> None:
    await sealed(store, "new", epoch=5)
    old = make_log(store, "old", epoch=4)
    await old.load()
    with pytest.raises(FencedError, match="epoch 5, which is above 4"):
        await old.seal(old.next_sequence)
    await sealed(store, "newer", epoch=5)


async def test_nobody_seals_over_a_higher_epoch_of_the_same_process(store: ObjectStore) -> None:
    """A broker that leads again opens the manifest again, while a copy of its former leadership may still be under way."""
    former = await sealed(store, "same", epoch=0)
    again = make_log(store, "same", epoch=2)
    await again.load()
    await again.seal(again.next_sequence)
    await former.poll()
    with pytest.raises(FencedError, match="epoch 2, which is above 0"):
        await former.seal(former.next_sequence)
    await append(again, 1)


async def test_snapshot_and_tail_equal_a_full_replay(store: ObjectStore) -> None:
    writer, witness = await sealed(store, "a"), make_log(store, "witness")
    await witness.load()
    for round_number in range(5):
        await append(writer, 7 + round_number)
        await writer.append(writer.next_sequence, [(key(round_number), None)])
        await witness.poll()
        await writer.snapshot()
    fresh = make_log(store, "fresh")
    await fresh.load()
    assert dict(fresh.live) == fresh.state.records == dict(witness.live)
    assert fresh.state.ready_through == fresh.next_sequence - 1
    assert (fresh.next_sequence, fresh.writer) == (writer.next_sequence, writer.writer)


async def test_a_reader_that_fell_behind_reloads_the_snapshot(store: ObjectStore) -> None:
    writer, reader = await sealed(store, "a"), make_log(store, "b")
    await append(writer, 2)
    await reader.load()
    for _ in range(3):
        await append(writer, 10)
        await writer.snapshot()
    await append(writer, 1)
    assert await reader.poll()
    assert reader.state.ready_through is not None, "it came from a snapshot"
    assert dict(reader.live) == dict(writer.live)


async def test_a_cached_copy_is_used_and_caught_up(store: ObjectStore) -> None:
    writer = await sealed(store, "a")
    await append(writer, 5)
    cached = writer.to_cache()
    await append(writer, 3)
    restarted = make_log(store, "b")
    assert await restarted.load(cached)
    assert dict(restarted.live) == dict(writer.live)
    assert restarted.state.ready_through == 5
    await restarted.seal(restarted.next_sequence)
    await append(restarted, 100)
    await restarted.snapshot()
    await append(restarted, 1)
    await restarted.snapshot()
    assert ENTRY.format(0) in await keys_of(store, "cluster/log/"), "the copy knew the seals"
    assert ENTRY.format(1) not in await keys_of(store, "cluster/log/")


async def test_a_cached_copy_that_goes_to_a_known_end_is_all_that_is_needed(store: ObjectStore) -> None:
    writer = await sealed(store, "a")
    cached = writer.to_cache()
    await append(writer, 5)
    reader = make_log(store, "b")
    assert await reader.restore(None, 0)
    assert not await reader.restore(cached, writer.next_sequence)
    assert not await reader.restore(writer.to_cache()[:-1], writer.next_sequence)
    assert reader.next_sequence == 0, "what could not be used changed nothing"
    assert await reader.restore(writer.to_cache(), writer.next_sequence)
    assert dict(reader.live) == dict(writer.live)
    await reader.seal(reader.next_sequence)


async def test_a_damaged_cached_copy_costs_only_time(store: ObjectStore) -> None:
    writer = await sealed(store, "a")
    await append(writer, 5)
    cached = bytearray(writer.to_cache())
    cached[len(cached) // 2] ^= 1
    for bad in (bytes(cached), b"", b"nonsense", writer.to_cache()[:-1]):
        reader = make_log(store, "b")
        assert not await reader.load(bad)
        assert dict(reader.live) == dict(writer.live)


async def test_a_store_that_lost_what_was_acknowledged_is_corrupt_not_up_to_date(store: ObjectStore) -> None:
    writer = await sealed(store, "a")
    await append(writer, 5)
    cached = writer.to_cache()
    await store.delete_many(await keys_of(store, ""))
    with pytest.raises(CorruptionError, match="was there, and now the log ends at -1"):
        await writer.poll()
    with pytest.raises(CorruptionError):
        await make_log(store, "b").load(cached)


async def test_a_missing_entry_is_corruption_that_names_it(store: ObjectStore) -> None:
    writer, reader = await sealed(store, "a"), make_log(store, "b")
    await reader.load()
    await append(writer, 5)
    await store.delete(ENTRY.format(3))
    with pytest.raises(CorruptionError, match=f"{ENTRY.format(3)} is missing"):
        await make_log(store, "c").load()
    with pytest.raises(CorruptionError, match=ENTRY.format(3)):
        await reader.poll()


async def test_a_damaged_entry_or_snapshot_is_corruption_that_names_it(store: ObjectStore) -> None:
    writer = await sealed(store, "a")
    await append(writer, 5)
    await writer.snapshot()
    await append(writer, 2)
    for damaged in (ENTRY.format(6), f"cluster/snapshot/{5:020d}"):
        good = await store.get(damaged)
        await store.put(damaged, good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(CorruptionError, match=f"{damaged} is corrupt"):
            await make_log(store, "b").load()
        await store.put(damaged, good)
    await make_log(store, "b").load()


async def test_too_large_an_entry_writes_nothing_and_costs_no_seal(store: ObjectStore) -> None:
    log = await sealed(store, "a")
    with pytest.raises(LimitExceeded):
        await log.append(1, [(key(1), bytes(9 * 1024 * 1024))])
    await append(log, 1)


async def test_a_log_of_more_keys_than_a_page_loads(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_log, "LIST_PAGE_KEYS", 20)
    writer = await sealed(store, "a")
    await append(writer, 50)
    reader = make_log(store, "b")
    await reader.load()
    assert dict(reader.live) == dict(writer.live)
    await writer.snapshot()
    late = make_log(store, "c")
    await late.load()
    assert late.state.ready_through == 50


async def test_two_that_bootstrap_at_once_end_with_one_writer(store: ObjectStore) -> None:
    first, second = make_log(store, "a"), make_log(store, "b", seed=2)
    await asyncio.gather(first.load(), second.load())
    outcomes = await asyncio.gather(first.seal(0), second.seal(0), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConflictError", "int"]
    await first.poll()
    await second.poll()
    assert first.writer == second.writer
    assert [first.is_writer, second.is_writer].count(True) == 1


# --- troubles, on virtual time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.HANG_APPLIED, FaultKind.APPLIED_LATE])
def test_an_applied_put_whose_answer_is_lost_is_found_to_be_ours(kind: FaultKind) -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        log = await sealed(store, "a")
        store.faults = [Fault(kind, operation="put_if_absent", times=1, latency_ms=(20, 20))]
        assert await log.append(1, [(key(1), value(1))]) == 1
        assert requests_of(store)["put_if_absent"] == 3
        assert requests_of(store)["get"] == 1
        assert len(store.contents()) == 2

    on_virtual_time(main)


def test_missing_on_the_read_back_puts_the_same_bytes_again() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        log = await sealed(store, "a")
        entry = ENTRY.format(1)
        store.faults = [
            Fault(FaultKind.LOST_ANSWER, operation="put_if_absent", times=1),
            Fault(FaultKind.LATENCY, operation="get", key_prefix=entry, times=1, latency_ms=(100, 100)),
        ]
        append_one = asyncio.create_task(log.append(1, [(key(1), value(1))]))
        while requests_of(store)["put_if_absent"] < 3:
            await asyncio.sleep(0.001)
        written = store.contents()[entry]
        store.lose(entry)
        await append_one
        assert store.contents()[entry] == written

    on_virtual_time(main)


def test_after_the_deadline_we_are_not_the_writer_and_may_seal_again() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        log = await sealed(store, "a")
        store.faults = [Fault(FaultKind.UNAVAILABLE)]
        before_s = loop.time()
        with pytest.raises(StorageUnavailable, match=r"stayed undecided for 30 s: .*503 Slow Down"):
            await log.append(1, [(key(1), value(1))])
        assert 20 < loop.time() - before_s <= 30
        assert not log.is_writer
        store.faults = []
        with pytest.raises(ConflictError, match="not sealed"):
            await log.append(1, [(key(1), value(1))])
        assert await log.seal(1) == 1
        await append(log, 1)

    on_virtual_time(main)


def test_an_append_that_was_given_up_and_arrives_late_is_found_before_the_next_seal() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        log = await sealed(store, "a")
        store.faults = [
            Fault(FaultKind.APPLIED_LATE, operation="put_if_absent", times=1, latency_ms=(60_000, 60_000)),
            Fault(FaultKind.UNAVAILABLE, operation="put_if_absent"),
        ]
        assert log.end_is_known
        with pytest.raises(StorageUnavailable):
            await log.append(1, [(key(1), value(1))])
        assert not log.end_is_known
        await asyncio.sleep(60)
        store.faults = []
        with pytest.raises(ConflictError, match="a has written"):
            await log.seal(1)
        assert not log.end_is_known
        await log.poll()
        assert log.end_is_known
        assert dict(log.live) == {key(1): value(1)}
        assert await log.seal(2) == 2

    on_virtual_time(main)


def test_an_undecided_entry_that_is_found_later_is_not_at_hand() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        log = await sealed(store, "a")
        log.on_own_entry(lambda: None)
        await append(log, 1)
        store.faults = [Fault(FaultKind.HANG_APPLIED, operation="put_if_absent", times=1)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.append(2, [(key(1), value(1))]), 1)
        await log.poll()
        assert log.next_sequence == 3
        assert log.recent(1, 1_000) == [store.contents()[ENTRY.format(1)]]
        assert log.recent(2, 1_000) is None, "the reader is to take it from the store"
        await log.seal(3)
        await append(log, 1)
        assert log.recent(3, 1_000_000) == [store.contents()[ENTRY.format(number)] for number in (3, 4)]
        assert log.recent(2, 1_000_000) is None

    on_virtual_time(main)


def test_a_cancelled_append_leaves_a_log_that_must_seal_again() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        log = await sealed(store, "a")
        store.faults = [Fault(FaultKind.HANG_APPLIED, operation="put_if_absent", times=1)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.append(1, [(key(1), value(1))]), 1)
        assert not log.is_writer
        with pytest.raises(ConflictError):
            await log.seal(1)
        await log.poll()
        assert await log.seal(2) == 2

    on_virtual_time(main)


def test_a_writer_that_has_applied_anothers_seal_appends_nothing_though_its_read_was_cancelled() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        old = await sealed(store, "old")
        new = await sealed(store, "new")
        hangs = Fault(FaultKind.HANG, operation="list_objects", skip=1, times=1)
        store.faults = [hangs]
        confirming = asyncio.create_task(old.confirm())
        while not hangs.struck:
            await asyncio.sleep(0.001)
        assert old.next_sequence == 2, "the seal is applied, and the second LIST is under way"
        assert not old.is_writer
        appending = asyncio.create_task(old.append(2, [(key(1), value(1))]))
        await asyncio.sleep(0.001)
        confirming.cancel()
        with pytest.raises(FencedError, match="new has taken over cluster from old"):
            await appending
        await append(new, 1)
        reader = make_log(store, "reader")
        await reader.load()
        assert dict(reader.live) == dict(new.live)

    on_virtual_time(main)


def test_entries_are_fetched_together_and_decoded_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        writer = await sealed(store, "a")
        for number in range(1, 9):
            await writer.append(number, [(key(name), bytes(20_000)) for name in range(2)])
        decoding: list[int] = []
        decoded: list[int] = []

        async def run(steps: Steps[T], portion: Portion) -> T:
            decoding.append(len(decoding) - len(decoded) + 1)
            await portion.rest()  # as if each entry took more than a portion
            result = whole(steps)
            decoded.append(1)
            return result

        monkeypatch.setattr(numbered_log, "run", run)
        store.faults = [Fault(FaultKind.LATENCY, operation="get", latency_ms=(1_000, 1_000))]
        before_s = loop.time()
        reader = make_log(store, "b")
        await reader.load()
        assert dict(reader.live) == dict(writer.live)
        assert decoding == [1] * 8, "one at a time"
        assert loop.time() - before_s < 2, "fetched at the same time"

    on_virtual_time(main)


def test_other_work_goes_on_while_many_short_entries_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        writer = await sealed(store, "a")
        await append(writer, 60)
        rests: list[int] = []

        class Spent(Portion):
            __slots__ = ()

            async def rest_if_spent(self) -> None:
                rests.append(1)
                await self.rest()

        monkeypatch.setattr(numbered_log, "Portion", Spent)
        await make_log(store, "b").load()
        assert len(rests) == 61, "after each entry that fills the portion"

    on_virtual_time(main)


def test_a_byte_that_flips_on_the_way_is_read_again() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        writer = await sealed(store, "a")
        await append(writer, 3)
        store.faults = [
            Fault(FaultKind.FLIPPED_BYTE, operation="get", key_prefix=ENTRY.format(2), times=1),
            Fault(FaultKind.TORN_READ, operation="get", key_prefix=ENTRY.format(1), times=1),
        ]
        reader = make_log(store, "b")
        await reader.load()
        assert dict(reader.live) == dict(writer.live)

    on_virtual_time(main)


def test_a_state_that_refuses_an_entry_is_loaded_again() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        writer, reader = await sealed(store, "a"), make_log(store, "b")
        await reader.load()
        await append(writer, 2)
        refusing, apply = True, Replay.apply

        def refuse(self: Replay, entry: object) -> None:
            apply(self, entry)  # type: ignore[arg-type]
            if refusing and self is reader.state:
                raise CorruptionError("half applied")

        Replay.apply = refuse  # type: ignore[method-assign, assignment]
        try:
            with pytest.raises(CorruptionError, match="half applied"):
                await reader.poll()
            broken = reader.state
            refusing = False
            await reader.poll()
        finally:
            Replay.apply = apply  # type: ignore[method-assign]
        assert reader.state is not broken
        assert reader.state.records == dict(writer.live)

    on_virtual_time(main)


# --- what it costs --------------------------------------------------------------------------------------------------


def test_requests_are_counted() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        def since(start: int) -> dict[str, int]:
            return dict(requests_of(store, start))

        log = make_log(store, "a")
        await log.load()
        assert since(0) == {"list_objects": 1}
        start = len(store.history)
        await log.seal(0)
        assert since(start) == {"put_if_absent": 1, "list_objects": 1}
        start = len(store.history)
        await append(log, 1)
        assert since(start) == {"put_if_absent": 1}
        start = len(store.history)
        assert not await log.poll()
        assert since(start) == {"list_objects": 1}
        await append(log, 100)
        start = len(store.history)
        await log.snapshot()
        assert since(start) == {"put_if_absent": 1, "list_objects": 1}
        await append(log, 10)
        start = len(store.history)
        await log.snapshot()
        assert since(start) == {"put_if_absent": 1, "list_objects": 1, "delete_many": 1}
        start = len(store.history)
        await make_log(store, "b").load()
        assert since(start) == {"list_objects": 1, "get": 1}
        start = len(store.history)
        await make_log(store, "b").load(log.to_cache())
        assert since(start) == {"list_objects": 1}

    on_virtual_time(main)


def test_start_up_is_in_proportion_to_live_keys_not_history() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        log = await sealed(store, "a")
        for _ in range(2000):
            await append(log, 1, keys=5)
            if log.snapshot_due:
                await log.snapshot()
        assert len(store.contents()) < 200
        start = len(store.history)
        await make_log(store, "b").load()
        assert sum(requests_of(store, start).values()) < 70

    on_virtual_time(main)


def test_keys_of_the_log_are_those_of_the_layout() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        log = await sealed(store, "a")
        await append(log, 1)
        await log.snapshot()
        assert list(store.contents()) == [
            layout.entry_key("cluster", 0),
            layout.entry_key("cluster", 1),
            layout.snapshot_key("cluster", 1),
        ]

    on_virtual_time(main)
