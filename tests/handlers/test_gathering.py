"""Produce requests that came together: what is appended by one write, in which order answers leave, and what ends it early.

Connections are given transports of the test's, so that it says what comes in one turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected, StorageFull
from app.handlers.policy.auditing import Sampler
from app.handlers.policy.callers import Rights
from app.handlers.produce import gathering
from app.transport.server import SET_ASIDE_MAX
from app.wire.apikeys import ApiKey
from tests.handlers.conversation import SIZE, batch
from tests.handlers.fakes import Bench, FakeLog
from tests.handlers.produce_wire import Wire


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    made.server.attach()
    made.logs.add("t").together_max = 1000
    yield made
    await made.server.close()


def log_of(bench: Bench, topic: str = "t") -> FakeLog:
    log = bench.logs.get(topic, 0)
    assert log is not None
    return log


def several(bench: Bench, count: int, *, learnt: bool = True) -> list[Wire]:
    """So many clients, which the broker has seen at work in one turn."""
    wires = [Wire(bench, f"client-{number}") for number in range(count)]
    if learnt:
        for wire in wires:
            wire.learn()
    bench.server.gathering.several = True
    return wires


async def turn() -> None:
    await asyncio.sleep(0)


async def test_what_one_client_sends_together_is_appended_together_at_once(bench: Bench) -> None:
    wire = Wire(bench)
    wire.learn()
    wire.send(*(wire.frame() for _ in range(5)))
    assert wire.answers() == [(number + 1, 0, number) for number in range(1, 6)]
    assert log_of(bench).runs == [5]


async def test_one_request_of_one_client_goes_alone(bench: Bench) -> None:
    wire = Wire(bench)
    wire.learn()
    wire.send(wire.frame())
    assert wire.answers() == [(2, 0, 1)]
    assert log_of(bench).runs == []


async def test_requests_of_several_clients_are_appended_at_the_end_of_the_turn_in_the_order_they_came(
    bench: Bench,
) -> None:
    one, other, third = several(bench, 3)
    one.send(one.frame(), one.frame())
    other.send(other.frame())
    third.send(third.frame(), third.frame())
    assert log_of(bench).log_end_offset == 3, "they are not there yet"
    assert (one.answers(), other.answers(), third.answers()) == ([], [], [])
    await turn()
    assert one.answers() == [(2, 0, 3), (3, 0, 4)]
    assert other.answers() == [(2, 0, 5)]
    assert third.answers() == [(2, 0, 6), (3, 0, 7)]
    assert log_of(bench).runs == [5]
    one.send(one.frame())
    await turn()
    assert one.answers() == [(4, 0, 8)]
    assert not bench.server.gathering.several, "it was alone"
    one.send(one.frame())
    assert one.answers() == [(5, 0, 9)]


async def test_two_clients_in_one_turn_are_several_from_the_next_turn_on(bench: Bench, monkeypatch: Any) -> None:
    one, other = Wire(bench), Wire(bench, "other")
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: 5.0)  # as loops have it that ask the clock once in a turn
    one.learn()
    assert not bench.server.gathering.several
    other.learn()
    assert bench.server.gathering.several


async def test_each_log_has_what_is_its_own(bench: Bench) -> None:
    bench.logs.add("u").together_max = 1000
    one, other = several(bench, 2)
    for wire in (one, other):
        wire.send(wire.frame("u"))
    await turn()
    one.answers(), other.answers()
    bench.server.gathering.several = True
    log_of(bench, "u").runs.clear()
    one.send(one.frame("t"), one.frame("u"), one.frame("t"))
    other.send(other.frame("u"), other.frame("t"))
    await turn()
    assert (log_of(bench).runs, log_of(bench, "u").runs) == ([3], [2])
    assert one.answers() == [(3, 0, 2), (4, 0, 2), (5, 0, 3)]
    assert other.answers() == [(3, 0, 3), (4, 0, 4)]


async def test_another_request_behind_them_is_answered_behind_them(bench: Bench) -> None:
    one, other = several(bench, 2)
    other.send(other.frame())
    one.send(one.frame(), one.ask_versions(), one.frame())
    assert other.answers() == [(2, 0, 2)], "the other request was looked at, so all before it are done"
    await turn()
    assert [correlation_id for correlation_id, _, _ in one.answers()] == [2, 3, 4]
    assert log_of(bench).runs == [2, 1]


async def test_a_batch_that_is_wrong_is_refused_in_its_place(bench: Bench) -> None:
    one, other = several(bench, 2)
    other.send(other.frame())
    wrong = bytearray(batch())
    wrong[-1] ^= 1
    one.send(one.frame(), one.frame(records=bytes(wrong)), one.frame())
    await turn()
    assert other.answers() == [(2, 0, 2)]
    assert one.answers() == [(2, 0, 3), (3, ErrorCode.CORRUPT_MESSAGE, -1), (4, 0, 4)]


@pytest.mark.parametrize("together", [1, 2, 3])
async def test_a_batch_that_the_log_refuses_and_those_behind_it_are_served_one_by_one(
    bench: Bench, together: int
) -> None:
    one, other = several(bench, 2)
    log = log_of(bench)
    log.together_max = together
    append, refused = log.append_as_leader, batch(value=b"refused")

    def picky(records: memoryview, **how: Any) -> Any:
        if bytes(records[21:]) == refused[21:]:
            raise RequestRejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return append(records, **how)

    log.append_as_leader = picky  # type: ignore[method-assign]
    one.send(one.frame(), one.frame(), one.frame(records=refused), one.frame())
    other.send(other.frame(), other.frame(records=refused))
    await turn()
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert one.answers() == [(2, 0, 2), (3, 0, 3), (4, code, -1), (5, 0, 4)]
    assert other.answers() == [(2, 0, 5), (3, code, -1)]
    assert bench.counter("firn_records_in_total") == log.log_end_offset == 6
    assert bench.counter("firn_requests_total", api="produce") == 8


async def test_after_a_write_that_failed_each_is_tried_by_itself(bench: Bench) -> None:
    one, other = several(bench, 2)

    def full(run: Any, *, now_ms: int) -> Any:
        for records, _ in run:
            records[:8] = b"\1" * 8  # as a log has placed them
        raise StorageFull("no room")

    log_of(bench).append_run = full  # type: ignore[method-assign]
    one.send(one.frame(), one.frame())
    other.send(other.frame())
    await turn()
    assert one.answers() == [(2, 0, 2), (3, 0, 3)]
    assert other.answers() == [(2, 0, 4)]


async def test_other_terms_meanwhile_are_looked_at(bench: Bench) -> None:
    one, other = several(bench, 2)
    one.send(one.frame())
    other.send(other.frame())
    log_of(bench).config = replace(log_of(bench).config, max_message_bytes=10)
    await turn()
    assert [error for _, error, _ in one.answers() + other.answers()] == [ErrorCode.MESSAGE_TOO_LARGE] * 2
    assert log_of(bench).runs == []


async def test_rights_that_were_taken_meanwhile_are_looked_at(bench: Bench) -> None:
    one, other = several(bench, 2)
    one.client.speak_as(replace(one.client.caller, rights=Rights("User:one")))
    one.learn()
    one.send(one.frame())
    other.send(other.frame(), other.frame())
    one.client.caller.rights.valid = False
    await turn()
    assert one.answers() + other.answers() == [(3, 0, 3), (2, 0, 4), (3, 0, 5)], "this broker has no rules"
    assert log_of(bench).runs == [], "but it was asked for them"


async def test_who_may_not_write_any_more_is_refused_what_was_not_appended_yet(bench: Bench) -> None:
    one, other = several(bench, 2)
    one.client.speak_as(replace(one.client.caller, rights=Rights("User:one")))
    one.learn()
    one.send(one.frame(), one.frame())
    other.send(other.frame())
    allows = SimpleNamespace(allows=lambda principal, *_: principal != "User:one")
    bench.server.context.authorizer = allows  # type: ignore[assignment]
    one.client.caller.rights.valid = False
    await turn()
    assert [error for _, error, _ in one.answers()] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    assert other.answers() == [(2, 0, 3)]
    assert log_of(bench).log_end_offset == 4


async def test_what_came_before_a_broken_frame_is_answered_before_the_connection_ends(bench: Bench) -> None:
    one, other = several(bench, 2)
    other.send(other.frame())
    one.send(one.frame(), SIZE.pack(3) + bytes(20))
    assert one.closed
    assert one.answers() == [(2, 0, 3)]
    await turn()
    assert other.answers() == [(2, 0, 2)]


async def test_a_client_that_leaves_meanwhile_has_sent_what_it_has_sent(bench: Bench) -> None:
    one, other = several(bench, 2)
    one.send(one.frame())
    other.send(other.frame())
    one.connection.connection_lost(None)
    await turn()
    assert one.answers() == []
    assert other.answers() == [(2, 0, 3)]
    assert log_of(bench).log_end_offset == 4


async def test_a_frame_in_a_buffer_of_its_own_does_not_wait(bench: Bench) -> None:
    one, other = several(bench, 2)
    large = one.frame(records=batch(value=b"x" * 100_000))
    one.send(large[:50_000])
    one.send(large[50_000:])
    assert one.answers() == [(2, 0, 2)]
    other.send(other.frame())
    await turn()
    assert other.answers() == [(2, 0, 3)]


async def test_more_clients_than_there_are_buffers_are_served_in_between(bench: Bench) -> None:
    wires = several(bench, SET_ASIDE_MAX + 3)
    for wire in wires:
        wire.send(wire.frame(), wire.frame())
    assert [len(wire.answers()) for wire in wires] == [2] * (SET_ASIDE_MAX + 1) + [0] * 2
    await turn()
    assert [len(wire.answers()) for wire in wires] == [0] * (SET_ASIDE_MAX + 1) + [2] * 2
    assert sum(log_of(bench).runs) == 2 * len(wires)
    for wire in wires:  # with the same buffers
        wire.send(wire.frame())
    await turn()
    assert [len(wire.answers()) for wire in wires] == [1] * len(wires)


async def test_many_requests_do_not_wait_for_the_end_of_the_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GATHERED_MAX", 4)
    one, other = several(bench, 2)
    one.send(*(one.frame() for _ in range(3)))
    assert one.answers() == []
    other.send(other.frame())
    assert (len(one.answers()), len(other.answers())) == (3, 1)


async def test_requests_of_a_shape_wait_behind_those_of_another_that_is_outdated(bench: Bench) -> None:
    """Both shapes are of one log. The first request of the outdated one is served by itself, and all behind it."""
    one, other = several(bench, 2)
    outdated = other.client.produced_shape
    assert outdated is not None
    one.send(one.frame())
    other.send(other.frame())
    one.send(one.frame())
    outdated.terms = object()  # type: ignore[assignment]
    await turn()
    assert one.answers() == [(2, 0, 2), (3, 0, 4)]
    assert other.answers() == [(2, 0, 3)]
    assert log_of(bench).runs == [1]


class Samples:
    """The audit log of a broker that samples every request, with the log's end at the time of each sample."""

    def __init__(self, bench: Bench) -> None:
        self.told: list[tuple[str | None, int | None, int]] = []
        self._bench = bench
        bench.context.sampler = Sampler(1)
        bench.context.audit = self  # type: ignore[assignment]

    def served(self, caller: Any, api_key: int, client_id: str | None, correlation_id: int | None, _: Any) -> None:
        assert api_key == ApiKey.PRODUCE
        self.told.append((client_id, correlation_id, log_of(self._bench).log_end_offset))


async def test_requests_that_came_together_are_sampled_for_the_audit_log_as_others_are(bench: Bench) -> None:
    wire = Wire(bench)
    wire.learn()
    samples = Samples(bench)
    wire.send(wire.frame(), wire.frame(), wire.frame())
    wire.send(wire.frame())
    assert samples.told == [("client", 2, 4), ("client", 3, 4), ("client", 4, 4), ("client", 5, 5)]


async def test_a_request_that_waits_for_the_end_of_the_turn_is_sampled_when_it_is_appended(bench: Bench) -> None:
    one, other = several(bench, 2)
    samples = Samples(bench)
    one.send(one.frame())
    other.send(other.frame())
    assert samples.told == [], "they are not appended yet"
    await turn()
    assert samples.told == [("client-0", 2, 4), ("client-1", 2, 4)]


async def test_a_request_whose_rights_end_before_its_append_is_no_sample_of_the_allowed(bench: Bench) -> None:
    one, other = several(bench, 2)
    samples = Samples(bench)
    one.send(one.frame())
    other.send(other.frame())
    bench.context.authorizer = SimpleNamespace(allows=lambda *_: False)  # type: ignore[assignment]
    bench.context.audit.refused = lambda *_: None  # type: ignore[union-attr, method-assign]
    one.client.caller.rights.end()
    await turn()
    assert [error for _, error, _ in one.answers()] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert samples.told == []


async def test_a_request_that_leaves_the_others_is_sampled_once(bench: Bench) -> None:
    one, other = several(bench, 2)
    samples = Samples(bench)
    one.send(one.frame())
    other.send(other.frame())
    bench.context.refusal = StorageFull("No room.")
    await turn()
    assert [error for _, error, _ in one.answers()] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert samples.told == [("client-0", 2, 2), ("client-1", 2, 2)]


async def test_a_bug_ends_the_connections_that_would_wait_for_an_answer(bench: Bench) -> None:
    one, other, third = several(bench, 3)
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    log = log_of(bench)
    append_run = log.append_run

    def broken(run: Any, *, now_ms: int) -> Any:
        raise KeyError("a bug")

    log.append_run = broken  # type: ignore[method-assign]
    one.send(one.frame())
    other.send(other.frame())
    await turn()
    assert (one.closed, other.closed, third.closed) == (True, True, False)
    assert len(told) == 1
    log.append_run = append_run  # type: ignore[method-assign]
    third.send(third.frame(), third.frame())
    await turn()
    assert [error for _, error, _ in third.answers()] == [0, 0]
