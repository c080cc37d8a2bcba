"""Two starts of a query that writes: a driver that was held up, or is dead while what it sent is not, and the one after it.

Whatever is late, each batch is committed once, and whoever reads its intent reads the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.client.cluster import ClusterClient
from app.client.producer import Producer
from app.client.transactions import begin_transaction, end_transaction
from app.core.errors import CorruptionError, FencedError
from app.machine.runtime import SystemClock
from pyspark_firn.writing import FirnStreamWriter, Intent, OpenTransaction, WriteOptions, decode_intent, read_intent
from tests.spark.writers import committed, rows, served, values
from tests.support.broker import RunningBroker

WAIT_S = 60.0
STEPS = ("intend", "check_open", "write_intent", "finish")
"""Of a driver's commit; it may be held up before each."""


class HeldUp:
    """A commit of batch ``batch_id`` that stands still before one of its steps, until it is let go on."""

    def __init__(self, options: WriteOptions, step: str, opened: list[OpenTransaction], batch_id: int) -> None:
        self._reached, self._go_on = asyncio.Event(), asyncio.Event()
        whole: Callable[..., Awaitable[Any]] = getattr(FirnStreamWriter, step)

        async def wait(*arguments: Any, **named: Any) -> Any:
            self._reached.set()
            await self._go_on.wait()
            return await whole(*arguments, **named)

        is_static = step in ("check_open", "finish")
        held = type("HeldWriter", (FirnStreamWriter,), {step: staticmethod(wait) if is_static else wait})
        self._work = asyncio.create_task(held(options).commit_batch(opened, batch_id))

    async def reached(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._reached.wait()

    async def goes_on(self) -> None:
        """To its end. Raises: what the commit raises."""
        self._go_on.set()
        async with asyncio.timeout(WAIT_S):
            await self._work


@asynccontextmanager
async def clustered(broker: RunningBroker) -> AsyncIterator[ClusterClient]:
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        yield cluster


async def part(options: WriteOptions, start: int, end: int, batch_id: int, attempt: str) -> list[OpenTransaction]:
    return [await FirnStreamWriter(options).write_attempt(rows(start, end), "query", batch_id, attempt)]


async def newest_intent(broker: RunningBroker, options: WriteOptions) -> Intent:
    async with clustered(broker) as cluster:
        found = await read_intent(cluster, options.commit_topic, "query", settled=True)
    assert found is not None
    return found


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("with_older", [False, True], ids=["first batch", "later batch"])
async def test_a_driver_that_was_held_up_while_its_successor_committed_the_batch_adds_nothing(
    tmp_path: Path, step: str, with_older: bool
) -> None:
    async with served(tmp_path) as (broker, options):
        batch_id = int(with_older)
        if with_older:
            await FirnStreamWriter(options).commit_batch(await part(options, 100, 103, 0, "old"), 0)
        first = await part(options, 0, 5, batch_id, "first")
        late = HeldUp(options, step, first, batch_id)
        await late.reached()
        successor = await part(options, 0, 5, batch_id, "second")
        assert successor[0].already_intended is (step == "finish")
        await FirnStreamWriter(options).commit_batch(successor, batch_id)
        intent = await newest_intent(broker, options)
        if step in ("intend", "finish"):  # It finds the successor's, or the successor has found its own.
            await late.goes_on()
        else:
            with pytest.raises(FencedError, match="another start of the query"):
                await late.goes_on()
            await FirnStreamWriter(options).abort_batch(first, batch_id)
        assert await newest_intent(broker, options) == intent
        assert sorted(await committed(broker)) == sorted(values(0, 5) + values(100, 103) * with_older)  # type: ignore[type-var]


@pytest.mark.parametrize("step", ["check_open", "write_intent"])
async def test_an_intent_that_comes_after_its_successors_is_not_found_by_the_start_after_that(
    tmp_path: Path, step: str
) -> None:
    """The driver itself is dead, so that it ends nothing; the successor dies too, before it has ended its own."""
    async with served(tmp_path) as (broker, options):
        late = HeldUp(options, step, await part(options, 0, 5, 0, "first"), 0)
        await late.reached()
        second = await part(options, 0, 5, 0, "second")
        dying = HeldUp(options, "finish", second, 0)
        await dying.reached()
        with pytest.raises(FencedError):
            await late.goes_on()
        third = await part(options, 0, 5, 0, "third")
        assert third[0].already_intended
        await FirnStreamWriter(options).commit_batch(third, 0)
        assert (await newest_intent(broker, options)).transactions == intended(second)
        await dying.goes_on()
        await give_up(broker, "first", options)
        assert await committed(broker) == values(0, 5)


def intended(opened: list[OpenTransaction]) -> tuple[Any, ...]:
    return tuple(one.transaction for one in opened)


async def give_up(broker: RunningBroker, attempt: str, options: WriteOptions) -> None:
    """As the time-out of an attempt would."""
    async with clustered(broker) as cluster:
        await begin_transaction(cluster, f"firn-query-0-{attempt}", timeout_ms=options.transaction_timeout_ms)


async def test_an_intent_that_was_written_while_the_batch_was_repeated_is_finished_and_the_repetition_given_up(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (broker, options):
        first = await part(options, 0, 5, 0, "first")
        second = await part(options, 0, 5, 0, "second")
        late = HeldUp(options, "finish", first, 0)
        await late.reached()
        third = await part(options, 5, 9, 0, "third")
        await FirnStreamWriter(options).commit_batch([*second, *third], 0)
        assert await committed(broker) == values(0, 5)
        await late.goes_on()
        assert await committed(broker) == values(0, 5)


async def test_a_driver_that_is_batches_behind_stops_and_does_not_hurt_the_one_ahead(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, options):
        first = await part(options, 0, 5, 0, "first")
        for batch_id in (0, 1):
            await FirnStreamWriter(options).commit_batch(
                await part(options, 5 * batch_id, 5 * batch_id + 5, batch_id, "ahead"), batch_id
            )
        ahead = HeldUp(options, "write_intent", await part(options, 10, 15, 2, "ahead"), 2)
        await ahead.reached()
        with pytest.raises(FencedError, match="has gone on to batch 1"):
            await FirnStreamWriter(options).commit_batch(first, 0)
        await ahead.goes_on()
        assert await committed(broker) == values(0, 15)


async def test_an_intent_whose_transaction_was_left_open_does_not_count(tmp_path: Path) -> None:
    """A driver died between the intent and its end."""
    async with served(tmp_path) as (broker, options):
        first = await part(options, 0, 5, 0, "first")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pyspark_firn.writing.end_transaction", dies)
            with pytest.raises(Died):
                await FirnStreamWriter(options).commit_batch(first, 0)
        second = await part(options, 0, 5, 0, "second")
        assert not second[0].already_intended
        await FirnStreamWriter(options).commit_batch(second, 0)
        assert (await newest_intent(broker, options)).transactions == intended(second)
        await give_up(broker, "first", options)
        assert await committed(broker) == values(0, 5)


class Died(Exception):
    pass


async def dies(*arguments: object, **named: object) -> None:
    raise Died


async def test_what_another_query_leaves_open_hides_no_intent_from_a_commit(tmp_path: Path) -> None:
    """Its transaction holds the last stable offset of the topic that they share before this query's newest intent."""
    async with served(tmp_path) as (broker, options), clustered(broker) as cluster:
        await FirnStreamWriter(options).commit_batch(await part(options, 100, 103, 0, "old"), 0)
        held = HeldUp(options, "write_intent", await part(options, 0, 5, 1, "first"), 1)
        await held.reached()
        other = await begin_transaction(cluster, "firn-other-driver", timeout_ms=60_000)
        async with Producer(cluster, SystemClock(), transaction=other) as producer:
            await producer.send(options.commit_topic, Intent(7, ()).encode(), key=b"other", partition=0)
        await held.goes_on()
        # A task need not wait: what it writes in vain is given up.
        second = await part(options, 0, 5, 1, "second")
        assert not second[0].already_intended
        waits = asyncio.Event()

        async def read(*arguments: Any, settled: bool = False) -> Intent | None:
            if settled:
                waits.set()
            return await read_intent(*arguments, settled=settled)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pyspark_firn.writing.read_intent", read)
            commit = asyncio.create_task(FirnStreamWriter(options).commit_batch(second, 1))
            waiting = asyncio.create_task(waits.wait())
            await asyncio.wait({commit, waiting}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await end_transaction(cluster, other, commit=False)
            await commit
        assert sorted(await committed(broker)) == sorted(values(100, 103) + values(0, 5))  # type: ignore[type-var]


async def test_an_intent_that_tasks_have_seen_and_that_is_gone_is_an_error(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, options):
        seen = OpenTransaction("query", None, already_intended=True)
        opened = await part(options, 0, 5, 0, "first")
        with pytest.raises(CorruptionError, match=r"intent of batch 0 .* is gone from topic 'firn-spark-commits'"):
            await FirnStreamWriter(options).commit_batch([*opened, seen], 0)
        assert await committed(broker) == []


def test_intents_of_before_are_read() -> None:
    old = b'{"version": 1, "batch": 4, "transactions": [["firn-a", 3, 1]]}'
    assert decode_intent(old, "query").batch_id == 4
    with pytest.raises(CorruptionError, match="version 3: use a newer Firn"):
        decode_intent(old.replace(b'"version": 1', b'"version": 3'), "query")
