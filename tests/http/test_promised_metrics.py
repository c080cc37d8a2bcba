"""What people watch a broker by: every family that is promised is at ``/metrics``, and moves with what it counts."""

from __future__ import annotations

import random
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.core.metrics import Registry
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.objectstore.metered import MeteredStore
from tests.handlers.conversation import batch, talk
from tests.support.broker import running_broker
from tests.support.talking import fetch_all, produce, tier_everything
from tests.support.waiting import until

RECORDS = 40
BATCHES = [batch(10, value=b"%d" % n * 30_000) for n in range(RECORDS // 10)]
BYTES = sum(map(len, BATCHES))

RISES = None
"""By how much is for the implementation to know."""
PROMISED: tuple[tuple[str, str, dict[str, str], str, str, float | None], ...] = (
    ("bytes in", "firn_bytes_in_total", {}, "empty", "produced", BYTES),
    ("records in", "firn_records_in_total", {}, "empty", "produced", RECORDS),
    ("bytes out, local", "firn_bytes_out_total", {}, "produced", "consumed", BYTES),
    ("records out, local", "firn_records_out_total", {}, "produced", "consumed", RECORDS),
    ("bytes out, kept answers", "firn_bytes_out_total", {}, "consumed", "kept", 4 * BYTES),
    ("records out, kept answers", "firn_records_out_total", {}, "consumed", "kept", 4 * RECORDS),
    ("bytes out, tiered", "firn_bytes_out_total", {}, "tiered", "replayed", BYTES),
    ("records out, tiered", "firn_records_out_total", {}, "tiered", "replayed", RECORDS),
    ("produce requests", "firn_requests_total", {"api": "produce"}, "empty", "produced", len(BATCHES)),
    ("fetch requests", "firn_requests_total", {"api": "fetch"}, "produced", "consumed", RISES),
    ("produce latency", "firn_request_seconds_count", {"api": "produce"}, "empty", "produced", len(BATCHES)),
    ("time of produce requests", "firn_request_seconds_sum", {"api": "produce"}, "empty", "produced", RISES),
    (
        "histogram of fetch",
        "firn_request_seconds_bucket",
        {"api": "fetch", "le": "+Inf"},
        "produced",
        "consumed",
        RISES,
    ),
    ("local size", "firn_log_local_bytes", {"topic": "t"}, "empty", "produced", BYTES),
    ("local size, dropped", "firn_log_local_bytes", {"topic": "t"}, "waiting", "tiered", -BYTES),
    ("tiered size", "firn_tier_remote_bytes", {"topic": "t"}, "waiting", "tiered", RISES),
    ("lag, of the active segment too", "firn_tier_lag_bytes", {"topic": "t"}, "empty", "produced", BYTES),
    ("lag made up for", "firn_tier_lag_bytes", {"topic": "t"}, "waiting", "tiered", -BYTES),
    ("age of what is not tiered", "firn_tier_lag_seconds", {"topic": "t"}, "empty", "waiting", RISES),
    ("bytes in by topic", "firn_topic_bytes_in_total", {"topic": "t"}, "empty", "produced", BYTES),
    ("a roll appends nothing", "firn_topic_bytes_in_total", {"topic": "t"}, "produced", "again", 0),
    ("records in by topic", "firn_topic_records_in_total", {"topic": "t"}, "empty", "produced", RECORDS),
    ("bytes out by topic, local", "firn_topic_bytes_out_total", {"topic": "t"}, "produced", "consumed", BYTES),
    ("bytes out by topic, kept", "firn_topic_bytes_out_total", {"topic": "t"}, "consumed", "kept", 4 * BYTES),
    ("bytes out by topic, tiered", "firn_topic_bytes_out_total", {"topic": "t"}, "tiered", "replayed", BYTES),
    ("records out by topic, kept", "firn_topic_records_out_total", {"topic": "t"}, "consumed", "kept", 4 * RECORDS),
    ("records out by topic, tiered", "firn_topic_records_out_total", {"topic": "t"}, "tiered", "replayed", RECORDS),
    ("log end", "firn_log_end_offset", {"topic": "t", "partition": "0"}, "empty", "produced", RECORDS),
    ("high watermark", "firn_log_high_watermark", {"topic": "t", "partition": "0"}, "empty", "produced", RECORDS),
    ("log start", "firn_log_start_offset", {"topic": "t", "partition": "0"}, "empty", "again", 0),
    ("upload", "firn_store_bytes_total", {"direction": "up"}, "waiting", "tiered", RISES),
    ("download", "firn_store_bytes_total", {"direction": "down"}, "tiered", "replayed", RISES),
    (
        "writes",
        "firn_store_requests_total",
        {"operation": "put_if_absent", "outcome": "ok"},
        "waiting",
        "tiered",
        RISES,
    ),
    ("reads", "firn_store_requests_total", {"operation": "get_range", "outcome": "ok"}, "tiered", "replayed", RISES),
    ("errors", "firn_store_requests_total", {"outcome": "unavailable"}, "consumed", "waiting", RISES),
    ("latency of reads", "firn_store_request_seconds_count", {"operation": "get_range"}, "tiered", "replayed", RISES),
    ("cache misses", "firn_chunk_cache_misses_total", {}, "tiered", "replayed", RISES),
    ("cache hits", "firn_chunk_cache_hits_total", {}, "replayed", "again", RISES),
)
"""(what, sample, labels, and between which two looks it moves by how much)"""


class Look:
    """What ``/metrics`` says at a time."""

    def __init__(self, text: str) -> None:
        self._samples = [one for family in text_string_to_metric_families(text) for one in family.samples]

    def value(self, name: str, labels: dict[str, str]) -> float | None:
        """The sum over the samples of this name that have these labels; None without any."""
        found = [one.value for one in self._samples if one.name == name and labels.items() <= one.labels.items()]
        return sum(found) if found else None


async def looks(path: Path) -> dict[str, Look]:
    """The life of a topic: empty, written to, read, read from what the broker keeps of an answer, waiting for the store, in it
    alone, read from there twice."""
    memory, registry = MemoryStore(clock=SystemClock()), Registry()
    store = MeteredStore(memory, registry)
    seen = {}
    async with running_broker(path, store=store, store_registry=registry, fetch_max_bytes=len(BATCHES[0])) as broker:
        application = create_app(
            HttpSettings(bootstrap=(("127.0.0.1", broker.port),)), clock=SystemClock(), rng=random.Random(3)
        )
        transport = httpx.ASGITransport(app=application)
        async with (
            application.router.lifespan_context(application),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
            talk(broker.port) as client,
        ):

            async def look(name: str) -> None:
                response = await http.get("/metrics")
                assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
                seen[name] = Look(response.text)

            await broker.create_topic("t", 1, segment_bytes="16777216", local_retention_ms="0", retention_ms="-1")
            log = broker.log("t")
            await look("empty")
            await produce(client, "t", *BATCHES)
            await look("produced")
            await fetch_all(client, "t", end=RECORDS)
            await look("consumed")
            for _ in range(4):
                await fetch_all(client, "t", end=RECORDS)
            await look("kept")
            away = Fault(FaultKind.UNAVAILABLE, key_prefix="data/")
            memory.faults.append(away)
            log.roll()
            broker.node.remote_log_manager.kick()
            await until(lambda: away.struck > 0)
            await look("waiting")
            memory.faults.remove(away)
            await tier_everything(broker, "t")
            await until(lambda: log.local_log_start_offset == RECORDS)
            await look("tiered")
            await fetch_all(client, "t", end=RECORDS)
            await look("replayed")
            await fetch_all(client, "t", end=RECORDS)
            await look("again")
    return seen


async def test_every_family_that_is_promised_is_there_and_moves(tmp_path: Path) -> None:
    seen = await looks(tmp_path)
    wrong = {}
    for what, name, labels, before, after, by in PROMISED:
        value = seen[after].value(name, labels)
        moved = None if value is None else value - (seen[before].value(name, labels) or 0)
        if moved is None or (moved <= 0 if by is RISES else moved != by):
            wrong[what] = (name, labels, f"from {before!r} to {after!r} by {moved}, not {by or 'more than 0'}")
    assert not wrong
