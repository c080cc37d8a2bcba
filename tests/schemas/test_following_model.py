"""A broker checks ids while schemas are registered and deleted, the log loses its end, and its leader is away (ADR 0044).

The follower is the real one, on a simulated clock. The log and the batches are small models. Checkers look at the responses. Each
rule is taken back once, and the checker that is meant for it must find that.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any, NamedTuple

import pytest

from app.configs.topic import SubjectNameStrategy
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, ProtocolError, RequestRejected
from app.registry.parsing.schemas import PROTOBUF_CHARS
from app.registry.payloads.prefix import Side
from app.registry.record_json import Key, KeyType, write_deleted_version, write_key
from app.registry.schema_log import Entry
from app.schemas import follower as module
from app.schemas.follower import AGE_MAX_S, READ_EVERY_S, SchemaFollower
from app.schemas.knowing import Naming
from app.schemas.registry_reads import LogRead
from tests.sim.planted import assert_found
from tests.sim.violation import Violation
from tests.support.registry import schema_record as registered
from tests.support.schema_records import schema_record
from tests.support.virtual_loop import VirtualLoop, VirtualPool, run_virtual

NAMING = Naming("t", Side.VALUE, SubjectNameStrategy.TOPIC)
SEEDS = 40
STEPS = 120
CHUNK = 3
"""Records of one response."""
SLACK_S = 7.0
"""A deletion counts after the age and the time of one read."""


class Rules(NamedTuple):
    """The rules that hold; a test takes one back."""

    reads_before_refusal: bool = True
    begins_anew: bool = True
    reads_whole: bool = True
    retries: bool = True
    ages: bool = True
    known_count: bool = True
    compares_history: bool = True


class Follower(SchemaFollower):
    """The real one, but for rules that were taken back."""

    rules = Rules()

    async def _refreshed(self) -> FirnError | None:
        if not self.rules.reads_before_refusal and self._read_at_s is not None:
            return None
        if not self.rules.begins_anew and self._under_way is not None:
            await asyncio.wait([self._under_way])  # joins a read that began before
            return None
        error = await super()._refreshed()
        return error if self.rules.retries else None

    def knows(self, number: int) -> bool:
        """Whether the view at hand has an id."""
        return self._version(NAMING, number) is not None

    _under_way: asyncio.Task[None] | None = None

    async def _read_on(self) -> None:
        self._under_way = asyncio.ensure_future(super()._read_on())
        try:
            await self._under_way
        finally:
            self._under_way = None

    def _is_old(self) -> bool:
        if not self.rules.ages and self._read_at_s is not None:
            return False
        old = super()._is_old()
        if old and self._failing and not self.rules.known_count:
            raise RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, "The view is too old.")
        return old


class World:
    """The log of schemas, and the time at which each id was registered or deleted."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.rng = random.Random(seed)
        self.rules = rules
        self.entries: list[tuple[bytes, bytes | None]] = []
        self.history = 0
        self.away_until_s = 0.0
        self.registered: dict[int, float] = {}
        self.deleted: dict[int, float] = {}
        self.lost: dict[int, float] = {}
        self.next_id = 1
        self.refused = self.accepted = self.retried = 0
        self.quick = True
        """Whether a known id was never asked to wait for a log that is away."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def read(self, start: int) -> LogRead:
        await asyncio.sleep(self.rng.uniform(0, 0.2))
        if self.now_s() < self.away_until_s:
            raise BrokerUnavailable("The leader is away.")
        some = self.entries[start : start + CHUNK]
        end = start + len(some) if start <= len(self.entries) else len(self.entries)
        made = [Entry(start + place, 0, *one) for place, one in enumerate(some)]
        whole = end >= len(self.entries) or not self.rules.reads_whole
        history = f"{self.history}" if self.rules.compares_history else ""
        await asyncio.sleep(self.rng.uniform(0, 0.2))
        return LogRead(made, end, history, whole)

    def register(self) -> None:
        number, self.next_id = self.next_id, self.next_id + 1
        self.entries.append(schema_record("t-value", number, f'"{number}"', number))
        self.registered[number] = self.now_s()

    def delete(self) -> None:
        live = sorted(self.registered.keys() - self.deleted.keys() - self.lost.keys())
        if not live:
            return
        last = self.rng.choice(live)
        value = write_deleted_version("t-value", last)
        self.entries.append((write_key(Key(KeyType.DELETE_SUBJECT, "t-value")), value))
        for number in live:
            if number <= last:
                self.deleted[number] = self.now_s()

    def lose_all(self) -> None:
        """The topic is made anew, and other schemas are registered: as many records, or more."""
        count = len(self.entries)
        for number in self.registered.keys() - self.lost.keys():
            self.lost[number] = self.now_s()
        self.entries.clear()
        self.history += 1
        for _ in range(count + self.rng.randrange(3)):
            self.register()

    def gone_s(self, number: int) -> float:
        return min(self.deleted.get(number, 1e9), self.lost.get(number, 1e9))

    async def batch(self, follower: Follower, number: int) -> None:
        came_s = self.now_s()
        known_before = self.registered.get(number, 1e9) <= came_s
        was_known = follower.knows(number)
        try:
            found = (await follower.versions([(NAMING, number)]))[NAMING, number]
        except RequestRejected as error:
            if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS:
                raise Violation("code", error.code.name) from None
            self.retried += 1
            if was_known and self.gone_s(number) > self.now_s():
                raise Violation("known", f"the known id {number} had to wait for a log that is away") from None
            return
        if found is None:
            self.refused += 1
            if known_before and self.gone_s(number) > self.now_s():
                raise Violation("good", f"the id {number} was registered before the batch came") from None
        else:
            self.accepted += 1
            if number not in self.registered:
                raise Violation("bad", f"nobody has registered {number}")
            late_s = came_s - self.gone_s(number)
            if late_s > AGE_MAX_S + SLACK_S and came_s - self.away_until_s > AGE_MAX_S + SLACK_S:
                raise Violation("age", f"the id {number} was deleted {late_s} s ago")


async def play(world: World) -> None:
    made = type("_Follower", (Follower,), {"rules": world.rules})
    follower: Follower = made(world.read, VirtualPool(lambda: 0.0))
    reading = asyncio.ensure_future(follower.run())
    batches: set[asyncio.Task[None]] = set()
    world.register()
    try:
        for _ in range(STEPS):
            await asyncio.sleep(world.rng.choice((0.0, 0.05, 0.2, 0.5, 5.0, 40.0 if world.rng.random() < 0.1 else 0.1)))
            chance = world.rng.random()
            if chance < 0.2:
                world.register()
            elif chance < 0.24:
                world.delete()
            elif chance < 0.26:
                world.lose_all()
            elif chance < 0.3:
                world.away_until_s = world.now_s() + world.rng.choice((0.5, 3.0, 60.0))
            for _ in range(world.rng.randrange(3)):
                number = (
                    world.next_id - world.rng.randrange(0, 4)
                    if world.rng.random() < 0.8
                    else world.rng.randint(1, world.next_id)
                )
                batches.add(asyncio.ensure_future(world.batch(follower, number)))
            for one in [one for one in batches if one.done()]:
                batches.discard(one)
                one.result()
        for one in batches:
            await one
    finally:
        for one in [reading, *batches]:
            one.cancel()
        await asyncio.gather(reading, *batches, return_exceptions=True)


def run(seed: int, rules: Rules = Rules()) -> World:  # noqa: B008
    made: list[World] = []

    async def main(loop: VirtualLoop) -> None:
        made.append(World(seed, rules))
        await play(made[0])

    run_virtual(main)
    return made[0]


def test_no_good_id_is_refused_and_no_bad_one_passes() -> None:
    worlds = [run(seed) for seed in range(SEEDS)]
    assert min(sum(getattr(one, name) for one in worlds) for name in ("refused", "accepted", "retried")) > 100


@pytest.mark.parametrize(
    ("rule", "checker"),
    [
        ("reads_before_refusal", "good"),
        ("begins_anew", "good"),
        ("reads_whole", "good"),
        ("retries", "good"),
        ("compares_history", "good"),
        ("ages", "age"),
        ("known_count", "known"),
    ],
)
def test_without_a_rule_the_checker_that_is_meant_for_it_finds_a_schedule(rule: str, checker: str) -> None:
    def without(seed: int) -> None:
        run(seed, Rules()._replace(**{rule: False}))

    assert_found(checker, range(4 * SEEDS), without)


# --- single schedules -----------------------------------------------------------------------------------------------------


class Log:
    """A log whose reads are counted, and wait while it is held."""

    def __init__(self, *records: tuple[bytes, bytes | None]) -> None:
        self.records = list(records)
        self.reads = 0
        self.history = "h"
        self.open = asyncio.Event()
        self.open.set()
        self.error: FirnError | None = None

    async def read(self, start: int) -> LogRead:
        self.reads += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        made = [Entry(start + place, 0, *one) for place, one in enumerate(self.records[start:])]
        return LogRead(made, len(self.records), self.history, True)


def virtually(main: Any) -> None:
    async def with_log(_: VirtualLoop) -> None:
        log = Log(schema_record("t-value", 1))
        follower = SchemaFollower(log.read, VirtualPool(lambda: 0.0))
        reading = asyncio.ensure_future(follower.run())
        try:
            await main(log, follower)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    run_virtual(with_log)


def asked(follower: SchemaFollower, *numbers: int) -> Coroutine[Any, Any, Any]:
    return follower.versions([(NAMING, number) for number in numbers])


def test_batches_that_wait_share_one_read_and_known_ids_need_none() -> None:
    async def main(log: Log, follower: SchemaFollower) -> None:
        await asked(follower, 1)
        assert log.reads == 1
        await asked(follower, 1)
        assert log.reads == 1, "a known id costs nothing"
        await asyncio.gather(*(asked(follower, 100 + number) for number in range(50)))
        assert log.reads == 2

    virtually(main)


def test_a_caller_of_unknown_ids_costs_twenty_reads_a_second_at_most() -> None:
    async def main(log: Log, follower: SchemaFollower) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while loop.time() < begin_s + 10:
            assert (await asked(follower, 9))[NAMING, 9] is None
        assert log.reads <= 10 / READ_EVERY_S + 2

    virtually(main)


def test_a_read_that_hangs_is_answered_as_an_error_that_clients_retry() -> None:
    async def main(log: Log, follower: SchemaFollower) -> None:
        await asked(follower, 1)
        log.open.clear()
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        with pytest.raises(
            RequestRejected, match=r"cannot be read: a read took longer than 5 s\. Try again"
        ) as refused:
            await asked(follower, 2)
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert loop.time() - begin_s <= module.WAIT_S + 1
        assert (await asked(follower, 1))[NAMING, 1] is not None

    virtually(main)


def test_known_ids_do_not_wait_for_each_try_while_the_log_is_away() -> None:
    async def main(log: Log, follower: SchemaFollower) -> None:
        await asked(follower, 1)
        log.error = BrokerUnavailable("The leader is away.")
        await asyncio.sleep(AGE_MAX_S + 1)
        await asked(follower, 1)  # finds out
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        for _ in range(100):
            assert (await asked(follower, 1))[NAMING, 1] is not None
        assert loop.time() == begin_s
        log.error = None
        await asyncio.sleep(5)
        assert (await asked(follower, 1))[NAMING, 1] is not None
        assert log.reads >= 3

    virtually(main)


def test_models_are_made_once_and_bounded_by_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(log: Log, follower: SchemaFollower) -> None:
        made = 0
        real = module.parse

        def counted(*given: Any, **more: Any) -> Any:
            nonlocal made
            made += 1
            return real(*given, **more)

        monkeypatch.setattr(module, "parse", counted)
        monkeypatch.setattr(module, "MODELS_CHARS_MAX", 12)
        log.records += [schema_record("t-value", 2, '"long"', 2), schema_record("t-value", 3, '"nothing"', 3)]
        found = await asked(follower, 1, 2, 3)
        one, two, three = [found[NAMING, number] for number in (1, 2, 3)]
        assert (await follower.model(one)) is (await follower.model(one)) is not None
        assert made == 1
        await follower.model(two)
        await follower.model(one)
        assert made == 3, "the first one was dropped for the second"
        assert await follower.model(three) is None, "the text cannot be read"

    virtually(main)


def test_a_protobuf_model_counts_for_more_than_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(log: Log, follower: SchemaFollower) -> None:
        monkeypatch.setattr(module, "MODELS_CHARS_MAX", 2 * PROTOBUF_CHARS)
        for number in (2, 3):
            text = f'syntax = "proto3"; message M{number} {{ }}'
            log.records.append(registered("t-value", number, number, text, schema_type="PROTOBUF"))
        found = await asked(follower, 2, 3)
        second, third = [found[NAMING, number] for number in (2, 3)]
        first = await follower.model(second)
        assert first is not None
        await follower.model(third)
        assert await follower.model(second) is not first, "it was dropped for the other"

    virtually(main)


def test_the_texts_whose_models_one_batch_holds_are_bounded_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(log: Log, follower: SchemaFollower) -> None:
        log.records += [schema_record("t-value", 2, '"long"', 2), schema_record("t-value", 3, '"nothing"', 3)]
        found = await asked(follower, 1, 2, 3)
        one, two, three = [found[NAMING, number] for number in (1, 2, 3)]
        monkeypatch.setattr(module, "BATCH_CHARS_MAX", len('"string""long"'))
        with pytest.raises(ProtocolError, match="more than 14 characters together") as refused:
            await follower.models([one, two, three])
        assert refused.value.code is ErrorCode.INVALID_RECORD
        assert follower._models == {}
        assert await follower.models([one, two]) == [await follower.model(one), await follower.model(two)]

    virtually(main)


def test_a_registry_that_is_too_large_is_not_read_on_and_known_ids_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(log: Log, follower: SchemaFollower) -> None:
        await asked(follower, 1)
        monkeypatch.setattr(module, "VIEW_BYTES_MAX", 2 * module.VERSION_BYTES)
        log.records += [schema_record("t-value", number, f'"{number}"', number) for number in range(2, 5)]
        with pytest.raises(RequestRejected, match=r"more than 2600 bytes, so brokers do not check") as refused:
            await asked(follower, 9)
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await asked(follower, 1))[NAMING, 1] is not None

    virtually(main)


def test_a_history_that_is_too_large_adds_no_more_to_the_view_with_each_try(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(log: Log, follower: SchemaFollower) -> None:
        await asked(follower, 1)
        monkeypatch.setattr(module, "VIEW_BYTES_MAX", 2 * module.VERSION_BYTES)
        for number in range(2, 8):
            log.records.append(schema_record("t-value", number, f'"{number}"', number))
            with contextlib.suppress(RequestRejected):
                await asked(follower, 9)
        assert log.reads == 7
        assert follower._view.version_count == 2, "the first one, and the one that was too much"
        assert (await asked(follower, 1))[NAMING, 1] is not None
        log.records, log.history = [schema_record("t-value", 9)], "another"
        assert (await asked(follower, 9))[NAMING, 9] is not None, "another history may be small enough"

    virtually(main)
