"""Traces of HTTP requests: from a caller's ``traceparent`` to the broker's span, as a collector gets them (ADR 0049)."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI

from app.broker.start.process import http_environment, http_options
from app.cli import main
from app.client.cluster import ClusterClient
from app.client.connection import KafkaConnection
from app.client.producer import Producer
from app.client.traced import SERVING, Serving, TracedProducer, serving
from app.core.metrics import Registry
from app.core.tracing import TRACES_PER_S, SpanContext, Tracer
from app.http.application import create_app
from app.http.gateway import HttpSettings, connection_kind, producer_kind
from app.machine.runtime import SystemClock
from app.settings import load
from tests.handlers.conversation import talk
from tests.http.processes import http_process
from tests.support.broker import RunningBroker, running_broker
from tests.support.collector import Collector, collecting, values
from tests.support.talking import fetch_all
from tests.support.waiting import until

pytest.importorskip("opentelemetry.sdk")

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
CALLER: Final = "b7ad6b7169203331"
SAMPLED: Final = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
SERVER: Final = 2
CLIENT: Final = 3
RECORDS: Final = "/v3/clusters/{cluster_id}/topics/{topic_name}/records"


class Traced:
    """A broker that traces, HTTP in front of it, and the spans of both."""

    def __init__(self, broker: RunningBroker, collector: Collector, app: FastAPI, http: httpx.AsyncClient) -> None:
        self.broker, self.collector, self.app, self.http = broker, collector, app, http
        self.topic = f"/v3/clusters/{broker.node.cluster.image.cluster_id}/topics/t"

    async def produce(self, value: int = 1, headers: Any = None) -> httpx.Response:
        answer = await self.http.post(f"{self.topic}/records", json={"value": {"data": value}}, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer

    async def span(self, is_wanted: Callable[[Any], bool]) -> Any:
        found: list[Any] = []

        def comes() -> bool:
            found[:] = [one for one in self.collector.spans if is_wanted(one)]
            return bool(found)

        await until(comes, wait_s=30)
        (one,) = found
        return one


@asynccontextmanager
async def traced(tmp_path: Path, ratio: float = 0.0) -> AsyncIterator[Traced]:
    async with collecting() as collector:
        settings: dict[str, Any] = {"firn_tracing_endpoint": collector.endpoint, "firn_tracing_sample_ratio": 0.0}
        async with running_broker(tmp_path, **settings) as broker:
            await broker.create_topic("t", 1)
            app = create_app(
                HttpSettings(
                    bootstrap=(("127.0.0.1", broker.port),),
                    allowed_hosts=("firn",),
                    tracing_endpoint=collector.endpoint,
                    tracing_sample_ratio=ratio,
                    tracing_instance="1",
                ),
                clock=SystemClock(),
                rng=random.Random(3),
            )
            transport = httpx.ASGITransport(app=app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://firn") as http,
            ):
                yield Traced(broker, collector, app, http)


def named(name: str, kind: int) -> Callable[[Any], bool]:
    return lambda span: bool(span.name == name and span.kind == kind)


async def test_a_callers_trace_goes_on_through_http_to_the_append_of_the_broker(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        await one.produce(7, SAMPLED)
        served = await one.span(named(f"POST {RECORDS}", SERVER))
        sent = await one.span(named("Produce", CLIENT))
        produced = await one.span(named("Produce", SERVER))
        appended = await one.span(lambda span: span.name == "append")
        async with talk(one.broker.port) as client:
            stored = await fetch_all(client, "t", end=1)
    assert served.trace_id.hex() == TRACE
    assert served.parent_span_id.hex() == CALLER
    chain = (served, sent, produced, appended)
    assert {span.trace_id for span in chain} == {served.trace_id}
    assert [child.parent_span_id for child in chain[1:]] == [parent.span_id for parent in chain[:-1]]
    assert values(served.attributes) == {
        "http.request.method": "POST",
        "http.route": RECORDS,
        "http.response.status_code": 200,
    }
    assert values(sent.attributes)["server.port"] == one.broker.port
    assert values(produced.attributes)["messaging.destination.name"] == "t"
    assert b"traceparent" not in repr(stored).encode(), "records are stored as they were sent"
    services = {values_of["service.name"]: values_of["service.instance.id"] for values_of in one.collector.resources}
    assert services == {"firn": "1", "firn-http": "1/http"}


async def test_a_read_over_http_is_the_cause_of_the_brokers_fetch(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        await one.produce()
        answer = await one.http.get(f"{one.topic}/partitions/0/records?offset=0", headers=SAMPLED)
        assert answer.status_code == 200
        served = await one.span(lambda span: span.kind == SERVER and span.name.startswith("GET /v3"))
        fetched = await one.span(named("Fetch", SERVER))
        sent = await one.span(lambda span: span.span_id == fetched.parent_span_id)
    assert (sent.name, sent.kind, sent.parent_span_id) == ("Fetch", CLIENT, served.span_id)
    assert fetched.trace_id == served.trace_id
    assert not [span for span in one.collector.spans if span.name == "Produce"], "nothing else was sampled"


OTHER: Final = "1" * 32
IGNORED: Final = (
    [],
    [("traceparent", f"00-{OTHER}-{CALLER}-00")],
    [("traceparent", f"00-{OTHER}-{CALLER}-01")] * 2,
    [("traceparent", f"ff-{OTHER}-{CALLER}-01")],
    [("traceparent", f"00-{'0' * 32}-{CALLER}-01")],
    [("traceparent", f"00-{OTHER}-{'0' * 16}-01")],
    [("traceparent", f"00-{OTHER}-{CALLER}-01-more")],
    [("traceparent", f"00-{'ABCD' * 8}-{CALLER}-01")],
    [("traceparent", f"01-{OTHER}-{CALLER}-01-" + "x" * 4000)],
    [("traceparent", "x" * 4000)],
    [("traceparent", "")],
    [("traceparent", f"{number}") for number in range(60)],
)
"""Headers of requests whose callers sample nothing, or say so in no form that can be read."""


async def test_a_request_without_a_sampled_caller_is_not_traced(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        for headers in IGNORED:
            await one.produce(1, httpx.Headers(headers))
        await one.produce(2, SAMPLED)
        served = await one.span(named(f"POST {RECORDS}", SERVER))
        await one.span(named("Produce", SERVER))
        assert served.parent_span_id.hex() == CALLER
        assert {span.trace_id.hex() for span in one.collector.spans} == {TRACE}


async def test_a_request_without_a_trace_is_sampled_by_the_ratio(tmp_path: Path) -> None:
    async with traced(tmp_path, ratio=1.0) as one:
        missing = await one.http.get("/v3/clusters/no-such/topics/hidden-name")
        nowhere = await one.http.get("/no/such/hidden-name")
        assert (missing.status_code, nowhere.status_code) == (404, 404)
        served = await one.span(lambda span: span.name == "GET /v3/clusters/{cluster_id}/topics/{topic_name}")
        unmatched = await one.span(lambda span: span.name == "GET")
    assert not served.parent_span_id
    assert values(unmatched.attributes) == {"http.request.method": "GET", "http.response.status_code": 404}
    assert served.trace_id != unmatched.trace_id
    assert "hidden-name" not in str(one.collector.spans), "spans have the route, not its names"


async def test_each_sampled_request_of_a_shared_produce_is_named_by_it(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        await one.produce()
        others = [f"{number:032x}" for number in range(1, 7)]
        await asyncio.gather(*(one.produce(1, {"traceparent": f"00-{trace}-{CALLER}-01"}) for trace in others))

        def told() -> set[str]:
            spans = [span for span in one.collector.spans if named("Produce", CLIENT)(span)]
            return {span.trace_id.hex() for span in spans} | {
                link.trace_id.hex() for span in spans for link in span.links
            }

        await until(lambda: told() >= set(others), wait_s=30)


async def test_callers_begin_no_more_traces_than_a_process_has_room_for(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        for _ in range(2 * TRACES_PER_S):
            await one.http.get("/healthz", headers=SAMPLED)
        samples = await one.http.get("/metrics")
    skipped = [line for line in samples.text.splitlines() if line.startswith("firn_trace_requests_skipped_total")]
    assert any('process="http"' in line for line in skipped)


async def test_a_produce_for_others_is_no_part_of_the_request_that_began_to_send(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        first_is_stored, may_end = asyncio.Event(), asyncio.Event()

        async def stream() -> AsyncIterator[bytes]:
            yield b'{"value":{"data":1}}'
            first_is_stored.set()
            await may_end.wait()

        streaming = asyncio.create_task(one.http.post(f"{one.topic}/records", content=stream(), headers=SAMPLED))
        await first_is_stored.wait()
        await one.span(named("Produce", SERVER))
        await one.produce(2)
        may_end.set()
        assert (await streaming).status_code == 200
        await one.span(named(f"POST {RECORDS}", SERVER))
        assert len([span for span in one.collector.spans if named("Produce", CLIENT)(span)]) == 1
        assert one.broker.log("t").log_end_offset == 2


def test_a_request_has_no_spans_after_its_end_and_beyond_its_share() -> None:
    tracer = Tracer(1, rng=random.Random(7), now_ms=lambda: 0, elapsed_s=lambda: 5.0, registry=Registry())
    request = Serving(tracer, SpanContext(1, 2))
    token = SERVING.set(request)
    try:
        assert serving() is request
        request.left = 0
        assert serving() is None
        request.left, request.ended = 1, True
        assert serving() is None
    finally:
        SERVING.reset(token)


async def test_a_process_of_http_gets_the_settings_of_traces_by_its_command(tmp_path: Path) -> None:
    async with collecting() as collector, running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1)
        config = load(
            environment={"FIRN_TRACING_ENDPOINT": collector.endpoint, "FIRN_TRACING_SAMPLE_RATIO": "1"}
        ).broker
        flags = [flag for flag in http_options(config) if flag.startswith("--tracing")]
        async with http_process(broker, *flags) as process:
            reader, writer = await process.connect()
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            await until(lambda: bool(collector.named("GET /healthz")), wait_s=30)
            writer.close()


async def test_firn_http_traces_by_the_options_that_a_broker_has_as_settings(tmp_path: Path) -> None:
    async with collecting() as collector, running_broker(tmp_path) as broker:
        flags = ("--tracing-endpoint", collector.endpoint, "--tracing-sample-ratio", "1")
        async with http_process(broker, *flags, command=("app.cli", "http")) as process:
            _, writer = await process.connect()
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: bool(collector.named("GET /healthz")), wait_s=30)
            writer.close()
    assert collector.resources[0]["service.name"] == "firn-http"
    assert collector.resources[0]["service.instance.id"] == f"{socket.gethostname()}:{process.port}/http"


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--tracing-endpoint", "localhost:4317", "it must be empty, or a URL such as http://localhost:4318/v1/traces"),
        ("--tracing-endpoint", "http://alice:hunter2@c/", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
        ("--tracing-sample-ratio", "2", "firn.tracing.sample.ratio"),
    ],
)
def test_firn_http_refuses_options_that_a_broker_refuses(
    flag: str, value: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["http", flag, value]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"firn: {flag} cannot have this value: ")
    assert why in told
    assert "hunter2" not in told


def test_only_a_broker_that_traces_hands_on_the_login_of_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=hunter2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "other")
    assert not http_environment(load(environment={}).broker)
    config = load(environment={"FIRN_TRACING_ENDPOINT": "http://c/v1/traces"}).broker
    assert http_environment(config) == {
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=hunter2",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
    }
    assert "hunter2" not in repr(http_options(config))


def test_a_process_that_does_not_trace_has_the_usual_parts_and_imports_nothing_of_traces() -> None:
    settings = HttpSettings(bootstrap=(("127.0.0.1", 1),))
    assert (connection_kind(settings), producer_kind(settings)) == (KafkaConnection, Producer)
    code = """
import random, sys
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
app = create_app(HttpSettings(bootstrap=(("127.0.0.1", 1),)), clock=SystemClock(), rng=random.Random(1))
print([one.func.__name__ for one in app.around])
names = ("app.http.traced", "app.client.traced", "app.core.tracing", "app.machine.span_export", "opentelemetry.sdk")
print([name for name in names if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "['DirectRoutes', 'Front']\n[]\n"


async def test_a_batch_whose_records_were_taken_back_is_forgotten(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1)
        tracer = Tracer(
            1.0, rng=random.Random(1), now_ms=SystemClock().now_ms, elapsed_s=time.monotonic, registry=Registry()
        )
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            producer = TracedProducer(cluster, SystemClock(), linger_ms=3_600_000)
            async with producer:
                context = tracer.begin()
                assert context is not None
                token = SERVING.set(Serving(tracer, context))
                sent = await producer.send("t", b"v")
                SERVING.reset(token)
                assert len(producer._causes) == 1
                assert producer.take_back(sent) is not None
                assert not producer._causes
