"""Which requests are sampled, and the spans that wait to be sent."""

from __future__ import annotations

import random

import pytest

from app.core.metrics import Registry
from app.core.tracing import (
    LINKS_MAX,
    PARTITIONS_MAX,
    QUEUE_MAX,
    TRACES_PER_S,
    Caller,
    SpanContext,
    Tracer,
    parse_traceparent,
    traceparent,
)

TOPIC = bytes(16)


class Times:
    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.elapsed_s = 5.0


def tracer(ratio: float, times: Times | None = None, registry: Registry | None = None) -> Tracer:
    times = times or Times()
    return Tracer(
        ratio,
        rng=random.Random(7),
        now_ms=lambda: times.wall_ms,
        elapsed_s=lambda: times.elapsed_s,
        registry=registry or Registry(),
    )


def value(registry: Registry, name: str, **labels: str) -> float:
    return sum(one.value for one in registry.samples() if one.name == name and dict(one.labels) == labels)


@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.01])
def test_the_share_of_sampled_requests_is_the_ratio(ratio: float) -> None:
    one = tracer(ratio)
    hits = passed = 0
    while hits < 5000:
        passed += one.left + 1
        hits += 1
        one.draw()
    assert hits / passed == pytest.approx(ratio, rel=0.05)


def test_no_request_is_sampled_with_a_ratio_of_zero() -> None:
    one = tracer(0)
    assert one.left > 10**18
    assert not any(one.chance() for _ in range(1000))


def test_the_smallest_ratio_samples_no_request_of_a_lifetime() -> None:
    assert tracer(1e-310).left > 10**18


def test_traces_of_a_second_are_limited() -> None:
    times, registry = Times(), Registry()
    one = tracer(1, times, registry)
    assert all(one.begin() is not None for _ in range(TRACES_PER_S))
    assert one.begin() is None
    assert value(registry, "firn_trace_requests_skipped_total") == 1
    times.elapsed_s += 1
    assert one.begin() is not None


def test_a_span_has_wall_clock_times_of_its_trace() -> None:
    times = Times()
    one = tracer(1, times)
    root = one.begin()
    assert root is not None
    child = one.child(root)
    assert child.trace_id == root.trace_id
    assert child.span_id != root.span_id
    one.ended("wait", child, root, 5.25, 5.5, {})
    one.ended("Fetch", root, None, 5.0, 5.5, {"n": 1}, error="It failed.")
    waited, fetched = one.take(10)
    assert (waited.parent_id, fetched.parent_id) == (root.span_id, None)
    assert (waited.start_ns, waited.end_ns) == (1_700_000_000_250_000_000, 1_700_000_000_500_000_000)
    assert (fetched.start_ns, fetched.attributes, fetched.error) == (1_700_000_000_000_000_000, {"n": 1}, "It failed.")
    assert one.take(10) == []


def test_spans_without_room_are_dropped_and_counted() -> None:
    registry = Registry()
    one = tracer(1, registry=registry)
    for number in range(QUEUE_MAX + 3):
        one.ended("Fetch", SpanContext(1, number + 1), None, 5.0, 5.0, {})
    assert value(registry, "firn_trace_spans_dropped_total", reason="queue") == 3
    assert [span.context.span_id for span in one.take(QUEUE_MAX)] == list(range(1, QUEUE_MAX + 1))


def test_an_upload_is_linked_once_to_requests_below_its_end() -> None:
    one = tracer(1)
    for offset in (4, 9, 14):
        one.produced(TOPIC, 0, offset, SpanContext(offset, 1))
    one.produced(TOPIC, 1, 3, SpanContext(99, 1))
    for _ in range(2):
        assert [link.trace_id for link in one.links(TOPIC, 0, 10)] == [4, 9], "until it has ended"
    one.linked(TOPIC, 0, 10)
    assert [link.trace_id for link in one.links(TOPIC, 0, 20)] == [14]
    one.linked(TOPIC, 0, 20)
    assert one.links(TOPIC, 0, 20) == ()
    assert [link.trace_id for link in one.links(TOPIC, 1, 20)] == [99]


def test_kept_requests_are_bounded_in_each_partition_and_in_all() -> None:
    one = tracer(1)
    for offset in range(10 * LINKS_MAX):
        one.produced(TOPIC, 0, offset, SpanContext(offset + 1, 1))
    links = one.links(TOPIC, 0, 10 * LINKS_MAX)
    assert len(links) == LINKS_MAX
    assert max(link.trace_id for link in links) > LINKS_MAX
    for partition in range(PARTITIONS_MAX + 5):
        one.produced(TOPIC, partition, 0, SpanContext(1, 1))
    assert sum(len(one.links(TOPIC, partition, 1)) for partition in range(PARTITIONS_MAX + 5)) == PARTITIONS_MAX


SAMPLED = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
IDS = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (SAMPLED, True),
        (SAMPLED[:-1] + b"0", False),
        (SAMPLED[:-2] + b"ff", True),
        (b"cc" + SAMPLED[2:], True),
        (b"cc" + SAMPLED[2:] + b"-what-the-future-holds", True),
    ],
)
def test_a_traceparent_names_the_caller_and_whether_it_is_kept(text: bytes, sampled: bool) -> None:
    assert parse_traceparent(text) == Caller(IDS, sampled)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        SAMPLED[:-1],
        SAMPLED + b"-more",
        b"cc" + SAMPLED[2:] + b".more",
        b"cc" + SAMPLED[2:] + b"-" + b"x" * 500,
        b"ff" + SAMPLED[2:],
        SAMPLED.upper(),
        SAMPLED.replace(b"-", b"_"),
        SAMPLED.replace(b"0af7651916cd43dd8448eb211c80319c", b"0" * 32),
        SAMPLED.replace(b"b7ad6b7169203331", b"0" * 16),
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333é-1".encode(),
    ],
)
def test_a_malformed_traceparent_names_no_caller(text: bytes) -> None:
    assert parse_traceparent(text) is None


def test_the_traceparent_of_a_span_is_read_as_its_ids() -> None:
    assert traceparent(IDS) == SAMPLED
    assert traceparent(SpanContext(1, 2)) == b"00-%031d1-%015d2-01" % (0, 0)
