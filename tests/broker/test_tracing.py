"""Traces of a broker, as a collector on this machine gets them by OTLP over HTTP (ADR 0049)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from app.broker.watching.traced_work import TracedWork
from app.core.errors import ConfigError, StorageUnavailable
from app.core.metrics import Registry
from app.core.tracing import SpanContext, Tracer
from app.machine import span_export
from app.machine.runtime import SystemClock
from app.objectstore.memory import MemoryStore
from app.objectstore.traced import TracedStore
from app.settings import Source, Verdict, load, review
from app.tiering.store.store_work import UploadJob
from app.wire.produce import encode_produce_request
from tests.broker.object_topics import alone, create
from tests.handlers.conversation import batch, talk
from tests.handlers.fetching import ask, asked, only, request
from tests.support.broker import RunningBroker, running_broker
from tests.support.collector import collecting, values
from tests.support.secured import certificates, listener, security
from tests.support.talking import fetch_all, produce, tier_everything
from tests.support.waiting import until

pytest.importorskip("opentelemetry.sdk")

PRODUCE = 0


def one_record(correlation_id: int) -> bytes:
    """A Produce request, as it is sent."""
    topics = [("t", [(0, batch(1))])]
    return b"".join(map(bytes, encode_produce_request(9, correlation_id, "c", topics, acks=-1, timeout_ms=60_000)))


def counted(broker: RunningBroker, name: str, **labels: str) -> float:
    samples = broker.node.registry.samples()
    return sum(one.value for one in samples if one.name == name and dict(one.labels) == labels)


class SlowReads(MemoryStore):
    """A read takes several ticks of the loop's clock, so that a fetch is seen to wait for it."""

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await asyncio.sleep(0.02)
        return await super().get_range(key, start, end)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        await asyncio.sleep(0.02)
        return await super().get_tail(key, length)


async def test_records_are_followed_from_produce_by_their_upload_to_a_remote_read(tmp_path: Path) -> None:
    async with collecting() as collector:
        settings: dict[str, Any] = {"firn_tracing_endpoint": collector.endpoint, "firn_tracing_sample_ratio": 1.0}
        store = SlowReads(clock=SystemClock())
        async with running_broker(tmp_path, store=store, remote_log_manager_task_interval_ms=50, **settings) as broker:
            await broker.create_topic("t", 1, segment_bytes="1048576", local_retention_ms="0", retention_ms="-1")
            log = broker.log("t")
            topic_id = str(log.topic_id)
            async with talk(broker.port) as client:
                await produce(client, "t", *[batch(10, value=b"%d" % n * 30_000) for n in range(4)])
                await produce(client, "t", batch(1))
                await tier_everything(broker, "t")
                await until(lambda: log.local_log_start_offset == 41)
                assert only(await ask(client, 11, request(asked(0), wait_ms=60_000))).records
                await fetch_all(client, "t", end=41)
    requests = collector.named("Produce")
    assert len(requests) == 5
    (produced,) = [one for one in requests if values(one.attributes)["firn.request_bytes"] < 1000]
    told = values(produced.attributes)
    assert told["messaging.destination.name"] == "t"
    assert told["messaging.destination.partition.id"] == "0"
    assert told["messaging.client.id"]
    assert told["firn.request_bytes"] > 61
    assert told["firn.response_bytes"] > 20
    assert produced.kind == 2
    assert not produced.parent_span_id
    (appended,) = [one for one in collector.named("append") if one.trace_id == produced.trace_id]
    assert appended.parent_span_id == produced.span_id
    assert produced.start_time_unix_nano <= appended.start_time_unix_nano <= appended.end_time_unix_nano
    uploads = collector.named("segment upload")
    assert {values(one.attributes)["firn.topic_id"] for one in uploads} == {topic_id}
    linked = [link.span_id for one in uploads for link in one.links]
    assert sorted(linked) == sorted(one.span_id for one in requests if "firn.partition_count" in values(one.attributes))
    assert len(linked) >= 4
    keys = {values(one.attributes)["firn.object_key"] for one in uploads}
    fetches = {one.span_id: one for one in collector.named("Fetch")}
    for name in ("footer read", "chunk read"):
        reads = collector.named(name)
        assert reads
        for read in reads:
            assert read.trace_id == fetches[read.parent_span_id].trace_id
            assert values(read.attributes)["firn.object_key"] in keys
    first = min(fetches.values(), key=lambda one: one.start_time_unix_nano)
    children = {one.name for one in collector.spans if one.parent_span_id == first.span_id}
    assert children == {"footer read", "chunk read", "fetch wait"}
    assert collector.resources[0]["service.name"] == "firn"
    assert collector.resources[0]["service.instance.id"] == "1"


async def test_requests_to_the_store_are_children_of_their_upload_and_their_read(tmp_path: Path) -> None:
    async with collecting() as collector:
        settings: dict[str, Any] = {"firn_tracing_endpoint": collector.endpoint, "firn_tracing_sample_ratio": 1.0}
        store = TracedStore(MemoryStore(clock=SystemClock()), Registry())
        async with running_broker(tmp_path, store=store, remote_log_manager_task_interval_ms=50, **settings) as broker:
            await broker.create_topic("t", 1, segment_bytes="1048576", local_retention_ms="0", retention_ms="-1")
            log = broker.log("t")
            async with talk(broker.port) as client:
                await produce(client, "t", *[batch(10, value=b"%d" % n * 30_000) for n in range(4)])
                await produce(client, "t", batch(1))
                await tier_everything(broker, "t")
                await until(lambda: log.local_log_start_offset == 41)
                assert only(await ask(client, 11, request(asked(0), wait_ms=60_000))).records
    works = {one.span_id: one for one in collector.spans if one.name in ("segment upload", "chunk read", "footer read")}
    requests = [one for one in collector.spans if one.name.startswith("store ")]
    found = {(works[one.parent_span_id].name, one.name) for one in requests}
    assert found >= {("segment upload", "store put_if_absent"), ("chunk read", "store get_range")}
    for one in requests:
        work, told = works[one.parent_span_id], values(one.attributes)
        assert (one.trace_id, one.kind) == (work.trace_id, 3)
        assert work.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano
        assert one.end_time_unix_nano <= work.end_time_unix_nano
        assert (told["firn.store_kind"], told["firn.store_outcome"], told["firn.store_retry"]) == ("data", "ok", 0)
        assert told["firn.store_bytes"] > 0
    uploads = collector.named("segment upload")
    assert all(values(one.attributes)["firn.store_requests"] == 1 for one in uploads)


async def test_the_wait_for_a_commit_is_a_child_of_its_produce(tmp_path: Path) -> None:
    async with collecting() as collector:
        settings: dict[str, Any] = {"firn_tracing_endpoint": collector.endpoint, "firn_tracing_sample_ratio": 1.0}
        async with alone(tmp_path, **settings) as broker:
            await create(broker, "t")
            async with talk(broker.port) as client:
                for _ in range(3):
                    assert await produce(client, "t", batch(1)) != []
    produced = {one.span_id: one for one in collector.named("Produce")}
    waits = collector.named("commit wait")
    assert sorted(one.parent_span_id for one in waits) == sorted(produced)
    for wait in waits:
        assert wait.end_time_unix_nano == produced[wait.parent_span_id].end_time_unix_nano
        assert values(produced[wait.parent_span_id].attributes)["firn.response_bytes"] > 20


async def test_every_request_of_a_burst_has_its_own_trace_and_its_response(tmp_path: Path) -> None:
    async with collecting() as collector:
        settings: dict[str, Any] = {"firn_tracing_endpoint": collector.endpoint, "firn_tracing_sample_ratio": 0.5}
        async with running_broker(tmp_path, **settings) as broker:
            await broker.create_topic("t")
            async with talk(broker.port) as client:
                for _ in range(4):
                    first = client.correlation_id + 1
                    frames = [one_record(number) for number in range(first, first + 30)]
                    client.writer.write(b"".join(frames)[:-7])
                    await client.writer.drain()
                    client.writer.write(frames[-1][-7:])
                    for _ in range(30):
                        client.correlation_id += 1
                        correlation_id, answer = await client.answer(PRODUCE, 9)
                        assert correlation_id == client.correlation_id
                        assert answer.responses[0].partition_responses[0].error_code == 0
            assert broker.log("t").log_end_offset == 120
    produced = collector.named("Produce")
    assert 30 < len(produced) < 90
    assert len({one.trace_id for one in produced}) == len(produced)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT"])
async def test_requests_of_clients_that_log_in_are_traced(tmp_path: Path, protocol: str) -> None:
    folder = certificates(tmp_path / "tls", "client")
    async with collecting() as collector:
        settings: dict[str, Any] = {"firn_tracing_endpoint": collector.endpoint, "firn_tracing_sample_ratio": 1.0}
        async with running_broker(tmp_path, **settings, **security(listener(protocol, folder))) as broker:
            await broker.create_topic("t")
            login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "alice-secret"}
            producer = Producer(
                {
                    "bootstrap.servers": f"127.0.0.1:{broker.node.ports[protocol]}",
                    "security.protocol": protocol,
                    "ssl.ca.location": str(folder / "ca.pem"),
                    "client.id": "p",
                    **(login if "SASL" in protocol else {}),
                }
            )
            producer.produce("t", value=b"secret-value", key=b"secret-key")
            assert await asyncio.to_thread(producer.flush, 60) == 0
    (produced,) = collector.named("Produce")
    assert values(produced.attributes)["messaging.client.id"] == "p"
    assert not any(word in str(produced) for word in ("alice", "secret"))


async def test_a_collector_that_is_away_changes_nothing_for_clients(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "firn_tracing_endpoint": "http://127.0.0.1:1/v1/traces",
        "firn_tracing_sample_ratio": 1.0,
    }
    async with running_broker(tmp_path, **settings) as broker:
        await broker.create_topic("t")
        async with talk(broker.port) as client:
            assert await produce(client, "t", batch(1)) == [0]
            await until(lambda: counted(broker, "firn_trace_spans_dropped_total", reason="collector") >= 2, wait_s=30)
            assert await produce(client, "t", batch(1)) == [1]
        assert counted(broker, "firn_trace_spans_sent_total") == 0
        await until(lambda: any("did not take spans" in line for line in broker.lines))


async def test_an_upload_that_is_tried_again_has_the_links_of_the_first_try() -> None:
    class Failing:
        """The store is away at the first try."""

        tries = 0

        async def upload_segment(self, job: UploadJob) -> None:
            self.tries += 1
            if self.tries == 1:
                raise StorageUnavailable("The store is away.")

    tracer = Tracer(0, rng=Random(7), now_ms=lambda: 0, elapsed_s=lambda: 5.0, registry=Registry())
    work = TracedWork(Failing(), tracer)  # type: ignore[arg-type]
    job: Any = SimpleNamespace(
        key="k", topic_id=bytes(16), partition=0, base_offset=0, end_offset=10, log_bytes=1, start_position=0
    )
    request = SpanContext(1, 1)
    tracer.produced(job.topic_id, 0, 9, request)
    with pytest.raises(StorageUnavailable):
        await work.upload_segment(job)
    for _ in range(2):
        await work.upload_segment(job)
    assert [(span.error, span.links) for span in tracer.take(10)] == [
        ("The store is away.", (request,)),
        ("", (request,)),
    ]


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "NEEDED", ("opentelemetry.sdk", "opentelemetry.missing.part"))
    with pytest.raises(ConfigError) as refused:
        span_export.check_installed()
    assert str(refused.value).startswith(
        "firn.tracing.endpoint needs OpenTelemetry, which is not installed. Run pip install "
    )
    assert "[tracing]'." in str(refused.value)
    with pytest.raises(ConfigError, match="OpenTelemetry is not installed: run pip install"):
        load(environment={"FIRN_TRACING_ENDPOINT": "http://localhost:4318/v1/traces"})


def test_an_endpoint_is_a_url_of_http() -> None:
    with pytest.raises(ConfigError, match=r"firn\.tracing\.endpoint"):
        load(environment={"FIRN_TRACING_ENDPOINT": "localhost:4317"})
    found = load(
        environment={"FIRN_TRACING_ENDPOINT": "https://c/v1/traces", "FIRN_TRACING_SAMPLE_RATIO": "0.5"}
    ).broker
    assert (found.firn_tracing_endpoint, found.firn_tracing_sample_ratio) == ("https://c/v1/traces", 0.5)


def test_a_login_in_the_url_of_the_endpoint_is_refused_and_not_shown() -> None:
    given = Source({"firn.tracing.endpoint": "https://alice:hunter2@c/v1/traces"}, str)
    reviewed = review([given])
    (entry,) = [one for one in reviewed.entries if one.name == "firn.tracing.endpoint"]
    assert entry.verdict is Verdict.REFUSED
    assert "OTEL_EXPORTER_OTLP_TRACES_HEADERS" in entry.why
    assert "hunter2" not in repr(reviewed)


SERVE = """
import asyncio, sys
from pathlib import Path
from tests.handlers.conversation import batch, talk
from tests.support.broker import running_broker
from tests.support.secured import certificates, listener, security
from tests.support.talking import produce

async def main():
    async with running_broker(Path(sys.argv[1])) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(1))

asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry") or name == "app.handlers.serving.traced"])
"""


@pytest.mark.ci
def test_a_broker_that_does_not_trace_imports_nothing_of_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
