"""Connections of a broker that traces: sampled requests among others, at a transport of the test's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from app.core.tracing import TRACES_PER_S, Kind, Span, SpanContext, Tracer, traceparent
from app.handlers.serving.traced import LEFT, TracedServer, TracedSession
from app.wire.header import TRACE_BYTES, encode_traced_header, parse_request_header
from app.wire.produce import decode_produce
from tests.handlers.fakes import Bench
from tests.handlers.produce_wire import Wire
from tests.support.waiting import until


class TracedBench(Bench):
    """``Bench``, with a broker that traces every request unless a test says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 5.0
        self.tracer = Tracer(
            1, rng=Random(7), now_ms=self.clock.now_ms, elapsed_s=lambda: self.elapsed_s, registry=self.registry
        )
        self.server: TracedServer = TracedServer(
            self.context, self.context.apis, connections_max=100, tracer=self.tracer
        )

    def spans(self, name: str) -> list[Span]:
        return [span for span in self.tracer.take(1000) if span.name == name]


@pytest.fixture
async def bench() -> AsyncIterator[TracedBench]:
    made = TracedBench()
    made.server.attach()
    made.logs.add("t").together_max = 1000
    yield made
    await made.server.close()


async def test_a_buffer_has_no_other_user_while_requests_around_a_sampled_one_are_served(
    bench: TracedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(bench)
    wire.send(wire.frame())
    assert wire.answers() == [(1, 0, 0)]
    give_back = bench.server.buffers.give_back

    def give_to_the_next(buffer: memoryview) -> None:
        buffer[:] = bytes(len(buffer))
        give_back(buffer)

    monkeypatch.setattr(bench.server.buffers, "give_back", give_to_the_next)
    bench.server.gathering.several = True
    bench.tracer.left = 2
    wire.send(*(wire.frame() for _ in range(4)))
    bench.server.gathering.flush()
    assert wire.answers() == [(number, 0, number - 1) for number in range(2, 6)]
    assert len(bench.spans("Produce")) == 3


async def test_requests_beyond_the_traces_of_a_second_are_not_decoded_again_and_are_appended_together(
    bench: TracedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(bench)
    wire.send(wire.frame())
    wire.answers()
    while bench.tracer.begin() is not None:
        pass
    skipped = bench.counter("firn_trace_requests_skipped_total")
    decoded: list[int] = []

    def counted(version: int, body: memoryview) -> Any:
        decoded.append(len(body))
        return decode_produce(version, body)

    monkeypatch.setattr("app.handlers.serving.traced.decode_produce", counted)
    wire.send(*(wire.frame() for _ in range(5)))
    assert [error for _, error, _ in wire.answers()] == [0] * 5
    log = bench.logs.get("t", 0)
    assert log is not None
    assert (decoded, log.runs) == ([], [5])
    assert bench.counter("firn_trace_requests_skipped_total") == skipped + 5
    bench.elapsed_s += 1
    wire.send(wire.frame())
    assert len(decoded) == 1


async def test_a_sampled_request_has_one_trace_from_its_coming_though_its_turn_comes_later(bench: TracedBench) -> None:
    wire = Wire(bench)
    for _ in range(TRACES_PER_S - 1):
        assert bench.tracer.begin() is not None
    session = wire.connection.core
    assert isinstance(session, TracedSession)
    before = session.open_slot(bench.server.produce_meter, stops_parsing=True)
    wire.send(wire.frame())
    assert wire.answers() == []
    bench.elapsed_s += 0.5
    session.complete(before, None)
    await until(lambda: wire.written)
    assert wire.answers() == [(1, 0, 0)]
    appended, produced = bench.tracer.take(10)
    assert (appended.name, produced.name) == ("append", "Produce")
    assert produced.end_ns - produced.start_ns == 500_000_000
    assert appended.start_ns == appended.end_ns == produced.end_ns
    assert bench.counter("firn_trace_requests_skipped_total") == 0


async def test_a_sampled_request_whose_client_leaves_before_its_turn_has_a_span_that_says_so(
    bench: TracedBench,
) -> None:
    wire = Wire(bench)
    wire.connection.core.open_slot(bench.server.produce_meter, stops_parsing=True)
    wire.send(wire.frame())
    wire.connection.connection_lost(None)
    assert [span.error for span in bench.spans("Produce")] == [LEFT]


CALLER = SpanContext(0xA1, 0xB2)


def caused(frame: bytes, cause: bytes) -> bytes:
    """The request of a client that has sampled it."""
    header = parse_request_header(frame[4:])
    traced = encode_traced_header(*header[:4], cause) + frame[4 + header.body_start :]
    return len(traced).to_bytes(4, "big") + traced


async def test_a_request_that_its_client_has_sampled_is_a_child_of_the_clients_span(bench: TracedBench) -> None:
    bench.tracer.left = 2
    wire = Wire(bench)
    frames = [wire.frame() for _ in range(4)]
    frames[1] = caused(frames[1], traceparent(CALLER))
    wire.send(*frames)
    bench.server.gathering.flush()
    assert wire.answers() == [(number, 0, number - 1) for number in range(1, 5)]
    first, second = bench.spans("Produce")
    assert (first.context.trace_id, first.parent_id, first.kind) == (*CALLER, Kind.SERVER)
    assert (second.parent_id, bench.tracer.left) == (None, 0), "it does not count down to the next sample"
    assert len(bench.server.produce_shapes) == 1, "its prefix, which no other request has, is not kept"


async def test_a_trace_that_cannot_be_read_is_ignored(bench: TracedBench) -> None:
    bench.tracer.left = 100
    wire = Wire(bench)
    for cause in (b"x" * TRACE_BYTES, traceparent(CALLER)[:-1] + b"0", b"\xff" * TRACE_BYTES):
        wire.send(caused(wire.frame(), cause))
    assert [error for _, error, _ in wire.answers()] == [0, 0, 0]
    assert (bench.tracer.take(10), bench.tracer.left) == ([], 97)


async def test_clients_that_sample_each_request_are_served_together_beyond_the_traces_of_a_second(
    bench: TracedBench,
) -> None:
    bench.tracer.left = 1000
    wire = Wire(bench)
    for _ in range(TRACES_PER_S):
        wire.send(*(caused(wire.frame(), traceparent(CALLER)) for _ in range(3)))
    assert [error for _, error, _ in wire.answers()] == [0] * 3 * TRACES_PER_S
    assert len(bench.spans("Produce")) == TRACES_PER_S
    assert bench.counter("firn_trace_requests_skipped_total") == 0
    assert bench.tracer.left == 1000 - 2 * TRACES_PER_S, "those that it did not look at count down to the next sample"
