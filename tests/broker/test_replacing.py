"""Attempts to have the broker delete objects that are not the caller's to give up, over both protocols (INV-1)."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.core.errors import RequestRejected
from app.core.units import BrokerId, Offset, PartitionIndex, SegmentId, TimestampMs, TopicPartition
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.log.log_format import encode_value
from app.metadata.manifest.manifest import SegmentEntry
from app.wire import private
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.talking import fetch_all, produce, tier_everything
from tests.support.waiting import until

SETTINGS = {"remote_log_manager_task_interval_ms": 20}
TOPIC = {
    "segment_bytes": "1048576",
    "retention_ms": "-1",
    "local_retention_bytes": "0",
    "firn_remote_delete_delay_ms": "0",
}


class OlderRequest(msgspec.Struct, array_like=True):
    """The request as an older version had it: the caller says the new segment's whole record, the object's key included."""

    topic: str
    partition: int
    step: str
    inputs: list[bytes]
    output: bytes


class Attacker(NamedTuple):
    """Who can reach the broker's ports, and nothing else."""

    broker: RunningBroker
    admin: AdminClient
    http: httpx.AsyncClient
    input_id: uuid.UUID
    """Of the only segment of topic ``mine``."""

    async def by_kafka(self, message: Any) -> str:
        """The sentence with which a request is refused."""
        partition = TopicPartition("mine", PartitionIndex(0))
        with pytest.raises(RequestRejected) as refused:
            await self.admin.tier_replace(partition, message)
        return str(refused.value)

    async def by_http(self, body: dict[str, Any]) -> tuple[int, str]:
        """Status and sentence."""
        answer = await self.http.post("/firn/v1/topics/mine/partitions/0/replacements", json=body)
        return answer.status_code, answer.json()["message"] if answer.content else ""

    async def objects(self) -> set[str]:
        return {info.key for info in await self.broker.store.list_objects("")}

    def records(self) -> int:
        """Records of the manifest of ``mine``, in whatever state."""
        log = self.broker.log("mine")
        manifest = self.broker.node.remote_log_manager.manifest_of((log.topic_id, log.partition))  # type: ignore[arg-type]
        assert manifest is not None
        return len(manifest.entries)

    async def a_round_has_passed(self) -> None:
        """Until the tier has looked for objects to delete since now: it deletes a segment of ``mine`` that expires."""
        log = self.broker.log("mine")
        async with talk(self.broker.port) as client:
            await produce(client, "mine", batch(1))
        await tier_everything(self.broker, "mine")
        keys = {key for key in await self.objects() if str(log.topic_id) in key and key.endswith(".seg")}
        await self.broker.node.remote_log_manager.advance_log_start(log.topic_id, log.partition, log.log_end_offset)
        await self.until_gone(keys)

    async def until_gone(self, keys: set[str]) -> None:
        while keys & await self.objects():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def attacker(path: Path) -> AsyncIterator[Attacker]:
    """A broker with the topics ``mine`` and ``victim``, both tiered whole, and somebody who means it ill."""
    async with running_broker(path, **SETTINGS) as broker:
        for name in ("mine", "victim"):
            await broker.create_topic(name, **TOPIC)
            async with talk(broker.port) as client:
                await produce(client, name, batch(10))
            await tier_everything(broker, name)
        await until(lambda: broker.log("mine").local_log_start_offset == 10)
        log = broker.log("mine")
        manifest = broker.node.remote_log_manager.manifest_of((log.topic_id, log.partition))  # type: ignore[arg-type]
        assert manifest is not None
        input_id = manifest.finished[0].segment_id
        settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),), retry_budget_ms=300)
        app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://firn") as http,
            ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1), retry_budget_ms=300) as cluster,
        ):
            yield Attacker(broker, AdminClient(cluster), http, input_id)


Victims = Callable[[Attacker], Awaitable[str]]


async def a_segment_of_another_topic(by: Attacker) -> str:
    topic_id = by.broker.log("victim").topic_id
    [key] = [key for key in await by.objects() if key.startswith("data/") and str(topic_id) in key]
    return key


async def an_entry_of_the_cluster_log(by: Attacker) -> str:
    return sorted(key for key in await by.objects() if key.startswith("cluster/log/"))[1]


@pytest.mark.parametrize("victim", [a_segment_of_another_topic, an_entry_of_the_cluster_log])
async def test_nobody_can_have_an_object_deleted_by_naming_its_key(tmp_path: Path, victim: Victims) -> None:
    """Begin with the key of something else, then give up: the broker must neither store the key nor delete the object."""
    async with attacker(tmp_path) as by:
        key = await victim(by)
        records = by.records()
        entry = SegmentEntry.started(SegmentId(uuid.uuid4()), Offset(0), Offset(10), broker_id=BrokerId(-1)).replace(
            stored_key=key, changed_ms=TimestampMs(0)
        )
        output = encode_value(entry)
        for step in ("begin", "give-up"):
            said = await by.by_kafka(OlderRequest("mine", 0, step, [by.input_id.bytes], output))
            assert "is of an older version of Firn" in said
            status, message = await by.by_http({"step": step, "inputs": [str(by.input_id)], "output": "AAAA"})
            assert (status, "of an older version of Firn" in message) == (422, True)
        assert by.records() == records
        await by.a_round_has_passed()
        assert key in await by.objects()
    async with running_broker(tmp_path, **SETTINGS) as broker, talk(broker.port) as client:
        assert len(await fetch_all(client, "victim", end=10)) > 0


async def test_nobody_can_have_segments_replaced_by_an_object_that_is_not_there(tmp_path: Path) -> None:
    async with attacker(tmp_path) as by:
        body = {"inputs": [str(by.input_id)], "segment_id": str(uuid.uuid4()), "base_offset": 0, "end_offset": 10}
        assert await by.by_http({"step": "begin", **body}) == (204, "")
        status, message = await by.by_http({"step": "finish", **body})
        assert (status, "is not in the store" in message) == (409, True)
        request = private.TierReplaceRequest(
            "mine", 0, "finish", [by.input_id.bytes], uuid.UUID(body["segment_id"]).bytes, 0, 10
        )
        assert "is not in the store" in await by.by_kafka(request)
        async with talk(by.broker.port) as client:
            assert len(await fetch_all(client, "mine", end=10)) > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"segment_id": b"short"}, "A segment's id has 16 bytes"),
        ({"inputs": [b"short"]}, "A segment's id has 16 bytes"),
        ({"base_offset": 10, "end_offset": 10}, "no range of offsets"),
        ({"base_offset": -5}, "no range of offsets"),
        ({"end_offset": 1 << 63}, "no range of offsets"),
        ({"step": "delete"}, "no step 'delete'"),
        ({"topic": "../victim"}, "is not led by this broker"),
        ({"partition": -1}, "is not led by this broker"),
    ],
)
async def test_a_replacement_that_cannot_be_one_is_refused_in_a_sentence(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    async with attacker(tmp_path) as by:
        records = by.records()
        request = private.TierReplaceRequest("mine", 0, "begin", [by.input_id.bytes], uuid.uuid4().bytes, 0, 10)
        assert said in await by.by_kafka(msgspec.structs.replace(request, **changes))
        assert by.records() == records
