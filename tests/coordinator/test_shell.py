"""The shell: leadership, loading, time, and answers that wait until what they say is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from app.configs import Durability
from app.coordinator.partition import ReplayedBatch, decode_batches
from app.coordinator.shell import ANSWERS_AT_ONCE, Bulk, Decode, Reply, Turn
from app.core.errors import CorruptionError, ErrorCode, RequestRejected, StorageFull, StorageUnavailable
from app.core.units import LeaderEpoch, PartitionIndex
from app.metadata.image.image import ClusterImage
from tests.coordinator.bench import NAME, ZERO, Ledger, bench_over, serving
from tests.groups.bench import image_of, topic_id
from tests.hot.helpers import GatedPool
from tests.support.waiting import until


def led(partitions: int = 1, life: int = 0) -> ClusterImage:
    return image_of({NAME: partitions}, lives={NAME: life})


async def test_a_partition_serves_once_it_is_led_and_loaded_and_not_before_nor_after() -> None:
    async with bench_over() as bench:
        bench.create()
        assert bench.code() is ErrorCode.NOT_COORDINATOR
        with pytest.raises(RequestRejected) as refused:
            bench.coordinator.partition_of("g")
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.coordinator.follow(led())
        assert bench.coordinator.partition_of("g") == 0
        assert bench.code() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await serving(bench)
        assert bench.say(b"one") == 1
        bench.coordinator.follow(led())  # nothing has changed
        assert bench.say(b"two") == 2
        bench.coordinator.follow(ClusterImage())
        assert bench.code() is ErrorCode.NOT_COORDINATOR
        bench.coordinator.follow(led())
        await serving(bench)
        assert bench.made[-1].words == [b"one", b"two"]
        assert len(bench.made) == 2


async def test_a_log_that_is_made_later_is_waited_for() -> None:
    async with bench_over() as bench:
        bench.coordinator.follow(led(2))
        bench.create(1)
        await until(lambda: len(bench.coordinator.shards()) == 1)
        assert bench.code() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        bench.create(0)
        await serving(bench)
        assert sorted(partition for partition, _ in bench.coordinator.shards()) == [0, 1]


async def test_a_topic_made_anew_under_the_name_is_another() -> None:
    async with bench_over() as bench:
        bench.create()
        bench.coordinator.follow(led())
        await serving(bench)
        bench.say(b"old")
        bench.manager.delete(NAME, 0)
        log = bench.manager.create(NAME, topic_id(NAME, 1), ZERO, bench.config)
        bench.table.lead(bench.table.hold(log), LeaderEpoch(0))
        bench.coordinator.follow(led(life=1))
        await serving(bench)
        assert bench.made[-1].words == []


async def test_an_answer_waits_until_all_that_was_appended_is_stored() -> None:
    pool = GatedPool()
    pool.gate.set()
    async with bench_over(durability=Durability.DISK, pool=pool) as bench:
        log = bench.create()
        bench.coordinator.follow(led())
        await serving(bench)
        pool.gate.clear()
        waiting = asyncio.ensure_future(bench.say(b"one"))
        # What appends nothing says what is not stored yet, so it waits too.
        reading = asyncio.ensure_future(bench.coordinator.perform(ZERO, lambda shard, _: list(shard.words)))  # type: ignore[arg-type]
        asked = asyncio.ensure_future(
            bench.coordinator.request(ZERO, lambda shard, turn, reply: turn.answer(reply, f"{len(shard.words)}"))
        )
        await until(lambda: pool.waiting > 0)
        assert not waiting.done()
        assert not reading.done()
        assert not asked.done()
        assert log.high_watermark == 0
        pool.gate.set()
        assert await waiting == 1
        assert await reading == [b"one"]
        assert await asked == "1"


async def test_a_reply_may_come_in_a_later_turn() -> None:
    async with bench_over() as bench:
        bench.create()
        bench.coordinator.follow(led())
        await serving(bench)

        def park(shard: Ledger, turn: Turn, reply: Reply[str]) -> None:
            shard.parked = reply

        def answer(shard: Ledger, turn: Turn) -> None:
            assert shard.parked is not None
            turn.answer(shard.parked, "now")
            shard.parked = None

        asked = asyncio.create_task(bench.coordinator.request(ZERO, park))
        await until(lambda: bench.made[-1].parked is not None)
        bench.coordinator.perform(ZERO, answer)
        assert await asked == "now"
        asked = asyncio.create_task(bench.coordinator.request(ZERO, park))
        await until(lambda: bench.made[-1].parked is not None)
        bench.coordinator.on_resign(ZERO)
        assert await asked == "not any more"


@pytest.mark.parametrize("resigns", [False, True])
async def test_one_event_that_answers_many_answers_some_in_each_turn_and_all_in_the_end(resigns: bool) -> None:
    async with bench_over() as bench:
        bench.create()
        bench.coordinator.follow(led())
        await serving(bench)
        parked: list[Reply[str]] = []
        tasks = [
            asyncio.create_task(bench.coordinator.request(ZERO, lambda _, turn, reply: parked.append(reply)))
            for _ in range(3 * ANSWERS_AT_ONCE)
        ]
        await until(lambda: len(parked) == len(tasks))

        def answer(shard: Ledger, turn: Turn) -> None:
            for number, reply in enumerate(parked):
                turn.answer(reply, f"{number}")

        bench.coordinator.perform(ZERO, answer)
        answered = [sum(reply.answer is not None for reply in parked)]
        if resigns:
            bench.coordinator.on_resign(ZERO)
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            answered.append(sum(reply.answer is not None for reply in parked))
        assert max(after - before for before, after in pairwise([0, *answered])) == ANSWERS_AT_ONCE
        said = await asyncio.gather(*tasks, return_exceptions=True)
        there = ANSWERS_AT_ONCE if resigns else len(tasks)
        assert said[:there] == [f"{number}" for number in range(there)]
        for error in said[there:]:
            assert isinstance(error, RequestRejected)
            assert error.code is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StorageFull("full"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (StorageUnavailable("gone"), ErrorCode.NOT_COORDINATOR),
        (RequestRejected(ErrorCode.MESSAGE_TOO_LARGE), ErrorCode.UNKNOWN_SERVER_ERROR),
        (RequestRejected(ErrorCode.INVALID_PRODUCER_EPOCH), ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_an_append_that_fails_changes_nothing_and_says_how_to_go_on(
    failure: Exception, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench_over() as bench:
        log = bench.create()
        bench.coordinator.follow(led())
        await serving(bench)

        def fail(*_: object, **__: object) -> None:
            raise failure

        with monkeypatch.context() as broken:
            broken.setattr(type(log), "append_from_coordinator", fail)
            with pytest.raises(RequestRejected) as refused:
                bench.say(b"lost")
            with pytest.raises(RequestRejected):
                bench.say(b"lost, too")
        assert refused.value.code is code
        is_fault = isinstance(failure, StorageUnavailable)
        assert bench.lines == ([f"writing {NAME}-0 fails: {failure}"] if is_fault else [])
        assert bench.made[-1].words == []
        assert bench.say(b"kept") == 1


async def test_what_cannot_be_stored_is_forgotten_and_the_log_is_asked_again() -> None:
    pool = GatedPool()
    pool.gate.set()
    async with bench_over(durability=Durability.DISK, pool=pool) as bench:
        log = bench.create()
        bench.coordinator.follow(led())
        await serving(bench)
        pool.gate.clear()
        waiting = asyncio.ensure_future(bench.say(b"one"))
        await until(lambda: pool.waiting > 0)
        log.refuse(StorageUnavailable("the disk is gone"))
        with pytest.raises(RequestRejected) as refused:
            await waiting
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        assert bench.code() is ErrorCode.NOT_COORDINATOR
        assert any("is read again" in line for line in bench.lines)
        pool.gate.set()


async def test_timers_are_served_in_turns_and_many_of_them() -> None:
    async with bench_over() as bench:
        bench.create()
        bench.coordinator.follow(led())
        await serving(bench)

        def set_many(shard: Ledger, turn: Turn) -> None:
            for number in range(1000):
                turn.set_timer(number, number % 7)
            turn.set_timer(5000, 3_600_000)
            turn.cancel_timer(0)

        bench.coordinator.perform(ZERO, set_many)
        words = bench.made[-1].words
        await until(lambda: len(words) == 999)
        assert sorted(words) == sorted(b"due %d" % number for number in range(1, 1000))


async def test_what_a_timer_raises_is_told_and_keeps_no_other_timer_from_being_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    serve = Ledger.due

    def due(shard: Ledger, turn: Turn, key: Any) -> None:
        serve(shard, turn, key)
        if key == 2:
            if shard.parked is not None:
                turn.answer(shard.parked, "before it failed")
            raise StopIteration

    monkeypatch.setattr(Ledger, "due", due)
    async with bench_over() as bench:
        for partition in (ZERO, PartitionIndex(1)):
            bench.create(partition)
        bench.coordinator.follow(led(2))
        await serving(bench)
        first, second = bench.made

        def park(shard: Ledger, turn: Turn, reply: Reply[str]) -> None:
            shard.parked = reply

        asked = asyncio.create_task(bench.coordinator.request(PartitionIndex(first.partition), park))
        await until(lambda: first.parked is not None)
        for shard, keys in ((first, (1, 2)), (second, (1, 2, 3, 30))):
            bench.coordinator.perform(
                PartitionIndex(shard.partition),
                lambda _, turn, keys=keys: [turn.set_timer(key, key) for key in keys],  # type: ignore[misc]
            )
        assert await asked == "before it failed"
        await until(lambda: second.words == [b"due 1", b"due 2", b"due 3", b"due 30"])
        assert first.words == [b"due 1", b"due 2"]
        first.parked = None
    assert [type(error) for error in told] == [StopIteration, StopIteration]


async def test_a_log_that_is_damaged_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench_over() as bench:
        log = bench.create()
        bench.coordinator.follow(led())
        await serving(bench)
        bench.say(b"one")
        bench.coordinator.on_resign(ZERO)

        tries: list[int] = []

        async def fail(*_: object, **__: object) -> None:
            tries.append(1)
            raise StorageUnavailable("Cannot read")

        with monkeypatch.context() as broken:
            broken.setattr(type(log), "read_when_ready", fail)
            broken.setattr("app.coordinator.shell.RELOAD_S", 0.01)
            bench.coordinator.on_leader(ZERO, LeaderEpoch(1))
            await until(lambda: bench.code() is ErrorCode.NOT_COORDINATOR)
            await until(lambda: len(tries) > 3)
            assert len([line for line in bench.lines if "cannot be read, will try again" in line]) == 1
        await serving(bench)
        assert bench.made[-1].words == [b"one"]
        assert "cannot be read, will try again" in bench.lines[0]


async def test_a_long_log_of_a_large_topic_is_decoded_in_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.coordinator.shell.BULK_RECORDS", 3)
    sizes: list[int] = []

    def decode(data: bytes) -> Iterator[ReplayedBatch]:
        sizes.append(len(data))
        yield from decode_batches(data)

    async def decoder() -> Decode:
        return decode

    async with bench_over(bulk=Bulk(decoder, 150)) as bench:
        bench.create()
        bench.coordinator.follow(led())
        for words in ([], [b"one", b"two"], [b"three"]):
            await serving(bench)
            assert not sizes
            for word in words:
                bench.say(word)
            bench.coordinator.follow(ClusterImage())
            bench.coordinator.follow(led())
        await serving(bench)
        assert bench.made[-1].words == [b"one", b"two", b"three"]
        assert len(sizes) == 2, "two batches of 70 bytes fit into one read"


async def test_a_load_rests_between_batches_once_its_portion_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.core.turns.PORTION_S", -1.0)
    monkeypatch.setattr("app.coordinator.shell.BULK_RECORDS", 1)
    turns: list[int] = []

    async def decoder() -> Decode:
        return lambda data: [one for batch in decode_batches(data) for one in [batch] * 5]

    async with bench_over(bulk=Bulk(decoder, 1_000)) as bench:
        bench.create()
        bench.coordinator.follow(led())
        await serving(bench)
        bench.say(b"one")
        bench.coordinator.follow(ClusterImage())

        async def count() -> None:
            while True:
                turns.append(len(bench.made[-1].words))
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        bench.coordinator.follow(led())
        await serving(bench)
        counting.cancel()
        assert {1, 2, 3, 4} <= set(turns), "other work ran after each"


async def test_a_shard_whose_leadership_ends_while_it_is_read_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench_over() as bench:
        bench.create()
        bench.coordinator.follow(led())
        await serving(bench)
        bench.say(b"one")
        bench.coordinator.follow(ClusterImage())

        def resign(shard: Ledger, batch: ReplayedBatch) -> None:
            bench.coordinator.on_resign(ZERO)

        with monkeypatch.context() as resigning:
            resigning.setattr(Ledger, "load", resign)
            bench.coordinator.follow(led())
            await until(lambda: len(bench.made) == 2 and bench.made[-1].is_unloaded)
        assert not bench.made[-1].is_loaded
        bench.coordinator.follow(led())
        await serving(bench)
        assert not bench.made[-1].is_unloaded


async def test_a_shard_whose_log_is_corrupt_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench_over() as bench:
        bench.create()
        bench.coordinator.follow(led())
        await serving(bench)
        bench.say(b"one")
        bench.coordinator.follow(ClusterImage())

        def fail(shard: Ledger, batch: ReplayedBatch) -> None:
            raise CorruptionError("A record is corrupt.")

        monkeypatch.setattr(Ledger, "load", fail)
        bench.coordinator.follow(led())
        await until(lambda: bench.code() is ErrorCode.NOT_COORDINATOR)
        assert bench.made[-1].is_unloaded
