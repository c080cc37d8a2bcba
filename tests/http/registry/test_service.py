"""Writes under a condition, reads that requests share, and parsing in threads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.core.errors import BrokerUnavailable
from app.http.callers import CALLERS_MAX
from app.http.registry import followed
from app.http.registry.followed import (
    IDLE_MAX_S,
    KEPT_READS,
    KEPT_S,
    VIEWS_MAX,
    FollowedLog,
    FollowedLogs,
    KnownAnswers,
)
from app.http.registry.parsing_work import KEPT_CHARS_MAX, ParsingWork
from app.http.registry.service import SchemaService
from app.registry.parsing.schemas import PROTOBUF_CHARS, SchemaType
from app.registry.refusals import Code, RegistryRefusal
from app.registry.registering import SchemaRequest, with_text
from app.registry.schema_log import Entry
from app.registry.subjects import read_subject
from app.registry.view import View
from tests.support.counted_loop import LookedAtLoop, count_turns
from tests.support.registry import schema_record
from tests.support.registry_routes import Client, OwnedLog
from tests.support.schema_log import MemorySchemaLog
from tests.support.virtual_loop import VirtualLoop, run_virtual


def service(log: MemorySchemaLog) -> SchemaService:
    return SchemaService(FollowedLog(log), ParsingWork())


def asked(schema: str, subject: str = "a") -> SchemaRequest:
    return SchemaRequest(read_subject(subject), SchemaType.AVRO, schema)


async def test_a_writer_that_loses_decides_again_and_gives_no_id_twice() -> None:
    log = OwnedLog()
    log.moves = [[schema_record("b", 1, 1, '"long"')], [schema_record("b", 2, 2, '"double"')]]
    registered = await service(log).register(asked('"int"'))
    assert (registered.id, registered.version) == (3, 1)


async def test_a_writer_that_loses_against_the_same_schema_takes_its_id() -> None:
    log = OwnedLog()
    log.moves = [[schema_record("a", 1, 1, '"int"')]]
    registered = await service(log).register(asked('"int"'))
    assert (registered.id, registered.version, registered.append) == (1, 1, None)


async def test_a_writer_that_loses_against_an_incompatible_schema_is_refused() -> None:
    log = OwnedLog()
    log.moves = [[schema_record("a", 1, 1, '"string"')]]
    with pytest.raises(RegistryRefusal) as refused:
        await service(log).register(asked('"int"'))
    assert refused.value.code is Code.INCOMPATIBLE


async def test_a_writer_that_always_loses_is_told_to_try_again() -> None:
    log = OwnedLog()
    log.moves = [[schema_record("b", n, n, f'{{"type":"fixed","name":"F{n}","size":{n}}}')] for n in range(1, 80)]
    with pytest.raises(BrokerUnavailable):
        await service(log).register(asked('"int"'))


async def test_many_writers_at_once_give_each_schema_one_id() -> None:
    log = OwnedLog()
    one = service(log)
    other = service(log)
    made = await asyncio.gather(
        *(
            (one if n % 2 else other).register(asked(f'{{"type":"fixed","name":"F","size":{n % 10}}}', f"s{n}"))
            for n in range(30)
        )
    )
    assert {found.id for found in made} == set(range(1, 11))
    assert all(made[n].id == made[n + 10].id == made[n + 20].id for n in range(10))


class _Slow(MemorySchemaLog):
    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def read(self, start: int) -> tuple[list[Entry], int]:
        found = await super().read(start)
        await self.go.wait()
        return found


async def test_callers_that_wait_share_a_read_that_begins_after_them() -> None:
    log = _Slow()
    followed = FollowedLog(log)
    first = asyncio.create_task(followed.refreshed())
    await asyncio.sleep(0)
    log.put(schema_record("a", 1, 1))
    others = [asyncio.create_task(followed.refreshed()) for _ in range(20)]
    await asyncio.sleep(0)
    log.go.set()
    await first
    for found in await asyncio.gather(*others):
        assert found.version("a", 1) is not None
    assert log.reads <= 4


async def test_a_failed_read_fails_its_caller_and_no_other() -> None:
    class Failing(MemorySchemaLog):
        failures = 1

        async def read(self, start: int) -> tuple[list[Entry], int]:
            if self.failures:
                self.failures -= 1
                raise BrokerUnavailable("No broker answers.")
            return await super().read(start)

    followed = FollowedLog(Failing())
    results = await asyncio.gather(followed.refreshed(), followed.refreshed(), return_exceptions=True)
    assert isinstance(results[0], BrokerUnavailable)
    assert results[1] is followed.view


async def test_parts_without_entries_for_the_caller_do_not_end_the_read() -> None:
    class Filtered(MemorySchemaLog):
        async def read(self, start: int) -> tuple[list[Entry], int]:
            found, end = await super().read(start)
            return [one for one in found if b'"hidden"' not in one.key], end

    log = Filtered(part=1)
    log.put(schema_record("hidden", 1, 1), schema_record("hidden", 2, 2), schema_record("a", 1, 3))
    view = await FollowedLog(log).refreshed()
    assert list(view.subjects()) == ["a"]
    assert view.end == 3


async def test_a_log_that_lost_its_end_is_read_anew() -> None:
    log = MemorySchemaLog()
    log.put(schema_record("a", 1, 1), schema_record("b", 1, 2, '"int"'))
    followed = FollowedLog(log)
    await followed.refreshed()
    log.entries, log.end = log.entries[:1], 1
    view = await followed.refreshed()
    assert list(view.subjects()) == ["a"]
    assert view.end == 1


@pytest.mark.parametrize("path", ["/subjects", "/schemas", "/schemas/ids/1/subjects", "/schemas/ids/1/versions"])
def test_long_lists_are_made_in_portions(path: str) -> None:
    async def turns(subjects: int) -> int:
        client = Client()
        client.log.put(*(schema_record(f"s{n}", 1, 1) for n in range(subjects)))
        await client.good("GET", "/contexts")  # reads the log
        return await count_turns(client.good("GET", path))

    with asyncio.Runner(loop_factory=LookedAtLoop) as runner:
        assert runner.run(turns(4_000)) > runner.run(turns(100)) + 5


async def test_a_schema_is_looked_for_in_many_versions_in_portions() -> None:
    def turns(versions: int) -> int:
        return sum(1 for _ in with_text([version] * versions, wanted))

    log = OwnedLog()
    log.put(schema_record("a", 1, 1))
    view = await FollowedLog(log).refreshed()
    version = view.versions("a")[0]
    wanted = version.content._replace(schema='"int"')
    assert turns(10) == 0
    assert turns(10_000) > 100


def test_answers_are_kept_for_one_end_of_a_view_and_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "ANSWERS_BYTES_MAX", 1_000)
    view, answers = View(), KnownAnswers()
    view.reached(1)
    answers.keep(view, 1, (".", "/a", b""), b"A")
    assert answers.get(view, (".", "/a", b"")) == b"A"
    assert answers.get(view, (".", "/a", b"q")) is None
    view.reached(2)
    answers.keep(view, 1, (".", "/b", b""), b"an answer from before")
    assert [answers.get(view, (".", path, b"")) for path in ("/a", "/b")] == [None, None]
    for number in range(10):
        answers.keep(view, 2, (".", f"/{number}", b""), b"x" * 100)
        assert answers.get(view, (".", f"/{number}", b"")) == b"x" * 100
        assert 0 < answers.bytes <= 1_000
    answers.keep(view, 2, (".", "/long", b""), b"x" * 1_000)
    assert answers.get(view, (".", "/long", b"")) is None
    other = View()
    other.reached(2)
    assert answers.get(other, (".", "/9", b"")) is None
    assert answers.bytes == 0


async def test_views_of_large_logs_are_dropped_before_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemorySchemaLog()
    log.put(schema_record("a", 1, 1, f'"{"x" * 10_000}"'))
    logs = FollowedLogs(lambda _: log)
    owners: list[Any] = [object() for _ in range(4)]
    first = logs.of(owners[0])
    await first.refreshed()
    assert first.bytes > 10_000
    monkeypatch.setattr("app.http.registry.followed.VIEWS_BYTES_MAX", first.bytes * 2)
    for owner in owners[1:]:
        await logs.of(owner).refreshed()
    assert logs.of(owners[3]) is not None
    assert logs.of(owners[0]) is not first


async def test_there_are_at_most_twice_as_many_views_as_callers() -> None:
    assert VIEWS_MAX == 2 * CALLERS_MAX
    log = MemorySchemaLog()
    logs = FollowedLogs(lambda _: log)
    owners: list[Any] = [object() for _ in range(VIEWS_MAX + 1)]
    first = [logs.of(owner) for owner in owners]
    assert len(logs._logs) == VIEWS_MAX
    assert [logs.of(owner) for owner in owners[1:]] == first[1:]
    assert logs.of(owners[0]) is not first[0]


def test_a_view_is_kept_for_each_caller_until_it_is_idle() -> None:
    async def main(_: VirtualLoop) -> None:
        log = MemorySchemaLog()
        log.put(schema_record("a", 1, 1))
        logs = FollowedLogs(lambda _: log)
        owners: list[Any] = [object() for _ in range(200)]
        first = [logs.of(owner) for owner in owners]
        assert [logs.of(owner) for owner in owners] == first
        await asyncio.sleep(IDLE_MAX_S)
        logs.of(owners[7])
        await asyncio.sleep(1)
        logs.of(owners[7])
        assert logs.of(owners[7]) is first[7]
        assert logs.of(owners[8]) is not first[8]

    run_virtual(main)


def test_a_log_that_takes_long_to_read_is_read_anew_less_often() -> None:
    class Slow(MemorySchemaLog):
        async def read(self, start: int) -> tuple[list[Entry], int]:
            await asyncio.sleep(2.0 if start == 0 else 0.0)
            return await super().read(start)

    async def main(_: VirtualLoop) -> None:
        log = Slow()
        log.put(schema_record("a", 1, 1))
        followed = FollowedLog(log)
        await followed.refreshed()  # a new view is of no age
        await asyncio.sleep(KEPT_S + 1)
        first = await followed.refreshed()
        await asyncio.sleep(KEPT_READS * 2.0 - 3)
        assert await followed.refreshed() is first
        await asyncio.sleep(2.0)
        assert await followed.refreshed() is not first

    assert KEPT_READS * 2.0 - 3 > KEPT_S
    run_virtual(main)


async def test_the_texts_of_kept_models_are_bounded() -> None:
    work = ParsingWork()
    pad = "x" * 100_000
    for n in range(60):
        await work.parsed((SchemaType.AVRO, f'{{"type":"string","n":{n},"pad":"{pad}"}}', ()), is_new=True)
    assert work._chars <= KEPT_CHARS_MAX
    assert len(work._kept) < 60


async def test_a_kept_protobuf_model_counts_for_more_than_its_text() -> None:
    work = ParsingWork()
    most = KEPT_CHARS_MAX // PROTOBUF_CHARS
    for n in range(most + 10):
        await work.parsed((SchemaType.PROTOBUF, f"message M{n} {{ }}", ()), is_new=True)
    assert len(work._kept) == most - 1  # short texts beside as many pools
    assert work._chars == sum(PROTOBUF_CHARS + len(source[1]) for _, source in work._kept)
    await work.parsed((SchemaType.AVRO, '"string"', ()), is_new=True)
    assert len(work._kept) == most
