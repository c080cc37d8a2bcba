"""A drain, seen by clients of one broker, and by the machine that it runs on (ADR 0019)."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from app.broker.start.running import find_running
from app.cli import main
from app.core.errors import ErrorCode
from app.core.faults import LIMITED_LINES_MAX
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.tiering.store.store_work import InlineStoreWork, UploadedSegment, UploadJob
from app.wire.apikeys import ApiKey
from app.wire.private import (
    DrainRequest,
    DrainResponse,
    TierStatusRequest,
    TierStatusResponse,
    pack,
    unpack,
)
from tests.broker.processes import broker as process_of
from tests.broker.processes import make_topic
from tests.broker.service_manager import Manager
from tests.groups.requests import FEW, ask, commit, committed, find
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import running_broker
from tests.support.talking import fetch_all, produce
from tests.support.waiting import until

FULL = Fault(FaultKind.UNAVAILABLE)


async def step(client: Talk, name: str) -> DrainResponse:
    return unpack(DrainResponse, await client.ask(ApiKey.FIRN_DRAIN, 0, pack(DrainRequest(name))))


async def code_of(client: Talk, topic: str = "t") -> ErrorCode:
    answer = await client.produce(9, [(topic, [(0, batch(1))])])
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def test_a_broker_that_drains_refuses_writes_and_serves_all_else(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running_broker(tmp_path, store=store, **FEW) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", *[batch(1)] * 3)  # the later ones are served by what is remembered of the first
        context = broker.node.context
        await find(broker)
        assert (await ask(context, ApiKey.OFFSET_COMMIT, 8, commit("g", "t", 0, 1))).topics[0].partitions[
            0
        ].error_code == 0
        store.faults = [FULL]
        assert (await step(client, "begin")).state == "draining"
        assert [await code_of(client) for _ in range(3)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
        assert len(await fetch_all(client, "t", end=3)) == 3 * len(batch(1))
        answer = await ask(context, ApiKey.OFFSET_COMMIT, 8, commit("g", "t", 0, 2))
        assert answer.topics[0].partitions[0].error_code == 0
        assert await committed(context, "g") == {("t", 0): 2}
        (draining,) = [one.value for one in broker.node.registry.samples() if one.name == "firn_draining"]
        assert draining == 1.0
        store.faults = []


async def test_a_drain_that_is_taken_back_leaves_a_broker_that_writes(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running_broker(tmp_path, store=store) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(1))
        store.faults = [FULL]
        await step(client, "begin")
        assert (await step(client, "take-back")).state == "serving"
        assert await code_of(client) is ErrorCode.NONE
        assert (await step(client, "stop")).error == "The broker has not drained."
        store.faults = []
        await step(client, "begin")
        await until(lambda: broker.node.context.drain.sealed)
        late = await step(client, "take-back")
        assert (late.state, "too late" in late.error) == ("drained", True)
        assert broker.log("t").sealed
        assert await code_of(client) is ErrorCode.NOT_ENOUGH_REPLICAS


async def test_a_drain_that_is_taken_back_and_begun_in_one_turn_goes_on(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running_broker(tmp_path, store=store) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(1))
        store.faults = [FULL]
        await step(client, "begin")
        drain = broker.node.context.drain
        await until(lambda: bool(drain.progress().left))
        drain.take_back()
        drain.begin()
        assert (await step(client, "status")).state == "draining", "the loop serves"
        store.faults = []
        await until(lambda: drain.sealed)


async def test_lines_of_a_drain_are_told_however_much_clients_cause(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running_broker(tmp_path, store=store) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(1))
        for number in range(LIMITED_LINES_MAX + 5):
            broker.node.context.client_line(f"line {number}")
        store.faults = [FULL]
        await step(client, "begin")
    assert any("bytes of 1 partitions of tiered topics are only in" in line for line in broker.lines)
    assert not any(line == f"line {LIMITED_LINES_MAX}" for line in broker.lines)


async def test_small_tails_are_uploaded_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions, under_way, most = 12, 0, 0
    together = asyncio.Event()
    upload = InlineStoreWork.upload_segment

    async def counted(work: InlineStoreWork, job: UploadJob) -> UploadedSegment:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == partitions:
            together.set()
        await together.wait()
        try:
            return await upload(work, job)
        finally:
            under_way -= 1

    monkeypatch.setattr(InlineStoreWork, "upload_segment", counted)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", partitions)
        for partition in range(partitions):
            await produce(client, "t", batch(1), partition=partition)
        await step(client, "begin")
        await until(lambda: broker.node.context.drain.sealed)
    assert most == partitions


async def test_a_partition_that_is_offline_is_left_and_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1")
        await broker.create_topic("sound")
        await produce(client, "t", batch(1))
        broker.log("t").roll()
        broker.node.remote_log_manager.kick()
        await until(lambda: broker.node.remote_log_manager.tiered_end(broker.log("t").topic_id, 0) == 1)
        topic = broker.node.cluster.image.topic("t")
        assert topic is not None
    shutil.rmtree(tmp_path / "data")
    manifest = tmp_path / "store" / "topics" / str(topic.topic_id) / "0"
    manifest.rename(tmp_path / "aside")
    async with running_broker(tmp_path, take_over=True) as broker, talk(broker.port) as client:
        await produce(client, "sound", batch(1))
        await step(client, "begin")
        await until(lambda: broker.node.remote_log_manager.tiered_end(broker.log("sound").topic_id, 0) == 1)
        now = await step(client, "status")
        while any(one.topic == "sound" for one in now.left):
            now = await step(client, "status")
        assert now.state == "draining"
        (left,) = now.left
        assert (left.topic, left.partition, left.log_end_offset) == ("t", 0, -1)
        assert left.why.startswith("is offline: ")


async def test_a_log_directory_that_failed_leaves_its_partitions_and_the_broker_goes_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", firn_durability="disk")
        await produce(client, "t", batch(1))
        broker.node.logs.log_directory.go_offline("the disk is broken")
        await step(client, "begin")
        now = await step(client, "status")
        while not any("cannot be rolled" in one.why for one in now.left):
            now = await step(client, "status")
        assert (now.state, [one.topic for one in now.left]) == ("draining", ["t"])


async def test_a_start_on_an_empty_directory_says_up_to_which_offset_each_topic_is_back(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert not [line for line in broker.lines if "recovered from the store" in line]
        await broker.create_topic("a", 2)
        await broker.create_topic("b")
        await broker.create_topic("local", remote_storage_enable="false")
        await produce(client, "a", batch(10))
        await produce(client, "a", batch(4), partition=1)
        await produce(client, "b", batch(5))
        await step(client, "begin")
        await until(lambda: broker.node.context.drain.sealed)
    shutil.rmtree(tmp_path / "data")
    async with running_broker(tmp_path, take_over=True) as broker, talk(broker.port) as client:
        assert [line for line in broker.lines if "recovered from the store" in line] == [
            "recovered from the store: 2 tiered topics with 3 partitions; the end offsets add up to 19",
            "recovered from the store: a, 2 partitions; the end offsets add up to 14 (partition 0 up to 10, 1 up to 4)",
            "recovered from the store: b, 1 partition; the end offsets add up to 5 (partition 0 up to 5)",
        ]
        await produce(client, "b", batch(1))
        told = unpack(TierStatusResponse, await client.ask(ApiKey.FIRN_TIER_STATUS, 0, pack(TierStatusRequest())))
        assert [(one.topic, one.partitions, one.offsets) for one in told.back] == [("a", 2, 14), ("b", 1, 5)]


@pytest.mark.ci
@pytest.mark.faults
async def test_the_broker_of_a_data_directory_is_asked_and_drained_whatever_it_advertises_and_systemd_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    async with process_of(tmp_path, advertised_host="not.reachable.invalid") as running:
        monkeypatch.delenv("NOTIFY_SOCKET")
        async with talk(running.port) as client:
            await make_topic(client, "t", retention_ms="-1")
            await produce(client, "t", *[batch(10)] * 3)
        found = find_running(tmp_path / "data")
        assert found is not None
        assert found.local == f"127.0.0.1:{running.port}"
        here = ("--data-dir", str(tmp_path / "data"))
        assert await asyncio.to_thread(main, ("tier", "status", "--json", *here)) == 0
        told = json.loads(capfd.readouterr().out)
        assert [(one["topic"], one["log_end_offset"]) for one in told] == [("t", 30)]
        assert await asyncio.to_thread(main, ("drain", *here)) == 0
        assert await running.process.wait() == 0
        assert "Drained in " in capfd.readouterr().err
    manager.until("STOPPING")
    manager.socket.close()
    shutil.rmtree(tmp_path / "data")
    async with process_of(tmp_path, take_over=True) as running, talk(running.port) as client:
        assert len(await fetch_all(client, "t", end=30)) == 3 * len(batch(10))
