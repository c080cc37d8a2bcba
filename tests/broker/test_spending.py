"""What a broker counts of its own costs, as the command line and machines are told it."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import httpx
import pytest

from app.cli import main
from app.core.metrics import Registry
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.image.records import OBJECT_LEVEL
from app.objectstore.memory import MemoryStore
from app.objectstore.metered import MeteredStore
from tests.broker.object_topics import CONFIGS, create, led, produce_count
from tests.handlers.conversation import talk
from tests.support.broker import running_broker
from tests.support.several import unfenced
from tests.support.talking import tier_everything
from tests.support.waiting import until


async def test_the_last_hour_is_told_by_metrics_by_http_and_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = Registry()
    store = MeteredStore(MemoryStore(), registry)
    async with running_broker(
        tmp_path,
        store=store,
        store_registry=registry,
        new_level=OBJECT_LEVEL,
        node_id=1,
        broker_rack="a",
        broker_heartbeat_interval_ms=50,
        remote_log_manager_task_interval_ms=50,
    ) as broker:
        await until(lambda: unfenced(broker) == [1])
        await until(lambda: broker.node.spending is not None)
        spending = broker.node.spending
        assert spending is not None
        settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),))
        app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http,
        ):
            early = await http.get("/v1/cost")
            assert (early.status_code, "minute" in early.json()["message"]) == (503, True)
            for name in ("large", "small"):
                await create(broker, name)
            await broker.node.membership.controller.create_topic("kept", 1, {**CONFIGS, "firn.durability": "memory"})
            await led(broker, "kept")
            await spending.read()
            counted = registry_requests(registry)
            async with talk(broker.port) as client:
                client.client_id = "p,zone_id=b"
                for _ in range(3):
                    await produce_count(client, 10, topic="large", value=bytes(3_000))
                await produce_count(client, 10, topic="small", value=bytes(3_000))
                await produce_count(client, 10, topic="kept", value=bytes(3_000))
            await tier_everything(broker, "kept")
            await spending.read()
            spent = spending.spent
            assert spent is not None
            puts = registry_requests(registry)["put_if_absent", "wal"] - counted["put_if_absent", "wal"]
            assert spent.requests["put_if_absent", "wal"] == puts == 4
            of_wal = {topic: value for (of, topic), value in spent.topics.items() if of == "wal"}
            assert of_wal.keys() == {"large", "small"}
            assert of_wal["large"] == 3 * of_wal["small"]
            assert {topic for of, topic in spent.topics if of in ("segments", "stored")} == {"kept"}
            assert spent.zones["in", "other"] == pytest.approx(5 * of_wal["small"])

            told = (await http.get("/v1/cost")).json()
            assert (told["brokers"], told["measured_seconds"]) == (1, round(spent.seconds, 1))
            parts = {topic["topic"]: topic["lines"] for topic in told["topics"]}
            key = "write-ahead log: PUTs"
            assert parts["large"][key] == pytest.approx(3 * parts["small"][key], rel=0.01)
            assert key not in parts["kept"]
            assert "between zones: producers" in parts["kept"]

            text = (await http.get("/metrics")).text
            assert "firn_cost_dollars_per_month{" in text
            assert "firn_cost_topic_dollars_per_month{" in text
            assert "firn_hour_requests{" in text

        asked = ["cost", "--measured", "--bootstrap", broker.bootstrap]
        assert await asyncio.to_thread(main, asked) == 0
        out = capsys.readouterr().out
        for word in ("write-ahead log: PUTs", "between zones: producers", "large", "small", "(no topic)", "total"):
            assert word in out, out
        assert await asyncio.to_thread(main, [*asked, "--json", "--price", "zone_gib_each_way=0"]) == 0
        cheaper = json.loads(capsys.readouterr().out)
        assert cheaper["dollars_per_month"] < told["dollars_per_month"]
        assert await asyncio.to_thread(main, [*asked, "--write", "1"]) != 0


def registry_requests(registry: Registry) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for sample in registry.samples():
        if sample.name == "firn_store_requests_total":
            labels = dict(sample.labels)
            key = (labels["operation"], labels["kind"])
            found[key] = found.get(key, 0) + sample.value
    found.setdefault(("put_if_absent", "wal"), 0)
    return found
