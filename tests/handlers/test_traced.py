"""Connections of a broker that traces: sampled requests among others, at a transport of the test's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from app.core.tracing import TRACES_PER_S, Kind, Span, SpanContext, Tracer, traceparent
from app.handlers.serving.traced import LEFT, TracedServer, TracedSession
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from app.wire.header import TRACE_BYTES, encode_traced_header, parse_request_header
from app.wire.produce import decode_produce
from tests.handlers.fakes import Bench
from tests.handlers.produce_wire import Wire
from tests.support.waiting import until


class TracedBench(Bench):
    """``Bench``, with a broker that traces every request unless a test says otherwise."""

    def __init__(self, ratio: float = 1) -> None:
        super().__init__()
        self.elapsed_s = 5.0
        self.tracer = Tracer(
            ratio, rng=Random(7), now_ms=self.clock.now_ms, elapsed_s=lambda: self.elapsed_s, registry=self.registry
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
    bench.server.due = -1  # two requests were served since, so the third of the next call is sampled
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
    bench.server.due = -3  # so the fourth is sampled
    wire = Wire(bench)
    frames = [wire.frame() for _ in range(4)]
    frames[1] = caused(frames[1], traceparent(CALLER))
    wire.send(*frames)
    bench.server.gathering.flush()
    assert wire.answers() == [(number, 0, number - 1) for number in range(1, 5)]
    first, second = bench.spans("Produce")
    assert (first.context.trace_id, first.parent_id, first.kind) == (*CALLER, Kind.SERVER)
    assert first.attributes["firn.response_bytes"] == second.attributes["firn.response_bytes"]
    assert second.parent_id is None
    assert len(bench.server.produce_shapes) == 1, "its prefix, which no other request has, is not kept"


async def test_a_fetch_that_its_client_has_sampled_is_a_child_of_the_clients_span(bench: TracedBench) -> None:
    bench.server.due = 100
    wire = Wire(bench)
    asked = [("t", [FetchPartition(0, fetch_offset=0, partition_max_bytes=1_000)])]
    body = FetchRequest(topics=asked, max_wait_ms=0)
    frame = bytes(encode_fetch_request(12, 1, "client", body))
    wire.send(frame, caused(frame, traceparent(CALLER)))
    (span,) = bench.spans("Fetch")
    assert (span.context.trace_id, span.parent_id) == CALLER
    assert span.attributes["firn.response_bytes"] == len(wire.written) / 2


async def test_a_request_that_client_and_broker_sample_has_one_span(bench: TracedBench) -> None:
    wire = Wire(bench)
    wire.send(caused(wire.frame(), traceparent(CALLER)))
    (span,) = bench.spans("Produce")
    assert span.parent_id == CALLER.span_id


async def test_a_trace_that_cannot_be_read_is_ignored(bench: TracedBench) -> None:
    bench.server.due = 100
    wire = Wire(bench)
    for cause in (b"x" * TRACE_BYTES, traceparent(CALLER)[:-1] + b"0", b"\xff" * TRACE_BYTES):
        wire.send(caused(wire.frame(), cause))
    assert [error for _, error, _ in wire.answers()] == [0, 0, 0]
    assert bench.tracer.take(10) == []


async def test_a_call_that_passes_a_drawn_request_gives_its_place_to_one_of_a_later_call(bench: TracedBench) -> None:
    bench.tracer.distance = lambda: 9  # type: ignore[method-assign]
    bench.server.due = bench.server.drawn = 3
    wire = Wire(bench)
    for _ in range(4):
        wire.send(*(wire.frame() for _ in range(5)))
    assert [error for _, error, _ in wire.answers()] == [0] * 20
    appended = [span.attributes for span in bench.spans("Produce")]
    # The fourth is passed by the first call, and its place there was the third last: so the third of the second call is sampled.
    assert len(appended) == 2
    assert bench.server.drawn == 23, "a sample that came late does not move those behind it"


@pytest.mark.parametrize("together", [1, 3, 40])
async def test_the_share_of_sampled_requests_is_the_ratio_however_many_come_together(together: int) -> None:
    bench = TracedBench(ratio=0.05)
    bench.server.attach()
    bench.logs.add("t").together_max = 1000
    wire = Wire(bench)
    calls = 2400 // together
    for _ in range(calls):
        bench.elapsed_s += 1
        wire.send(*(wire.frame() for _ in range(together)))
    found = len(bench.spans("Produce"))
    await bench.server.close()
    assert found / (calls * together) == pytest.approx(0.05, rel=0.25)


async def test_clients_that_sample_each_request_have_no_more_traces_than_others(
    bench: TracedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def counted(version: int, body: memoryview) -> Any:
        decoded.append(len(body))
        return decode_produce(version, body)

    monkeypatch.setattr("app.handlers.serving.traced.decode_produce", counted)
    bench.server.due = 1000
    wire = Wire(bench)
    for _ in range(TRACES_PER_S):
        wire.send(*(caused(wire.frame(), traceparent(CALLER)) for _ in range(3)))
    assert [error for _, error, _ in wire.answers()] == [0] * 3 * TRACES_PER_S
    assert len(bench.spans("Produce")) == TRACES_PER_S
    assert bench.counter("firn_trace_requests_skipped_total") == 2 * TRACES_PER_S
    assert len(decoded) == TRACES_PER_S, "the others are not decoded for a span"
