"""The schema registry over a real broker."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.configs.broker import STANDARD_AUTHORIZER
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.image.records import REGISTRY_LEVEL
from tests.support.broker import RunningBroker, running_broker
from tests.support.callers import Everybody


@asynccontextmanager
async def clients(broker: RunningBroker, count: int = 1) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of so many HTTP processes of one broker."""
    settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),), retry_budget_ms=30_000)
    async with AsyncExitStack() as stack:
        found = []
        for number in range(count):
            app = create_app(settings, clock=SystemClock(), rng=random.Random(number))
            await stack.enter_async_context(app.router.lifespan_context(app))
            client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1", timeout=60)
            found.append(await stack.enter_async_context(client))
        yield found


def schema(name: str) -> dict[str, Any]:
    return {"schema": json.dumps({"type": "record", "name": name, "fields": []})}


async def test_a_schema_is_served_by_another_process_and_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=REGISTRY_LEVEL) as broker:
        async with clients(broker, 2) as (one, other):
            made = await one.post("/subjects/a-value/versions", json=schema("A"))
            assert (made.status_code, made.json()) == (200, {"id": 1}), made.text
            again = await other.post("/subjects/b-value/versions", json=schema("B"))
            assert again.json() == {"id": 2}
            assert (await one.get("/schemas/ids/2")).json()["schema"] == '{"type":"record","name":"B","fields":[]}'
            assert (await one.delete("/subjects/b-value")).json() == [1]
            assert (await other.delete("/subjects/b-value?permanent=true")).json() == [1]
        async with clients(broker) as (third,):
            assert (await third.get("/subjects")).json() == ["a-value"]
            assert (await third.post("/subjects/b-value/versions", json=schema("B"))).json() == {"id": 3}
            assert (await third.put("/config/a-value", json={"compatibility": "NONE"})).json() == {
                "compatibility": "NONE"
            }


async def test_two_processes_at_once_give_no_id_twice(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=REGISTRY_LEVEL) as broker, clients(broker, 2) as both:
        asked = [both[n % 2].post(f"/subjects/s{n}-value/versions", json=schema(f"R{n}")) for n in range(10)]
        answers = await asyncio.gather(*asked)
        assert sorted(one.json()["id"] for one in answers) == list(range(1, 11))


async def test_an_older_cluster_answers_with_the_command_that_raises_its_level(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=REGISTRY_LEVEL - 1) as broker, clients(broker) as (client,):
        answer = await client.post("/subjects/a-value/versions", json=schema("A"))
        assert answer.status_code == 400
        assert "firn cluster features" in answer.json()["message"]


async def test_a_caller_sees_and_writes_the_subjects_of_its_topics_alone(tmp_path: Path) -> None:
    async with running_broker(
        tmp_path,
        new_level=REGISTRY_LEVEL,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:admin",
    ) as broker:
        doorkeeper = Everybody(broker.node.context.rights, "User:admin")
        broker.node.context.doorkeeper = doorkeeper
        async with clients(broker) as (admin,):
            assert (await admin.post("/subjects/secret-value/versions", json=schema("A"))).status_code == 200
        doorkeeper.principal = "User:nobody"
        async with clients(broker) as (nobody,):
            assert (await nobody.get("/subjects")).json() == []
            assert (await nobody.get("/schemas/ids/1")).status_code == 404
            assert (await nobody.post("/subjects/secret-value/versions", json=schema("B"))).status_code == 403
            assert (await nobody.put("/mode", json={"mode": "READONLY"})).status_code == 403
