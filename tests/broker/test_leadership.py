"""Another broker leads: this one says who does, keeps its log, writes nothing to the tier, and leads again when it is named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.broker.partitions import opening
from app.broker.partitions.opener import Opener
from app.configs import Durability
from app.core.errors import ErrorCode
from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicIdPartition
from app.metadata.manifest.manifest import SegmentManifest
from app.replication.in_sync import InSync
from app.replication.roles import Role
from app.tiering.upload.remote_log_manager import RemoteLogManager
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import delete_topic
from tests.support.leadership import OTHER, OTHER_PORT, name_in_sync, name_leader, produced
from tests.support.talking import FETCH, fetch_all, produce, tier_everything
from tests.support.waiting import until

ME = 1


def fetch_frame(client: Talk, topic: object, offset: int, *, version: int = 16, max_wait_ms: int = 0) -> None:
    client.correlation_id += 1
    asked = FetchPartition(0, -1, offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[(topic, [asked])])  # type: ignore[list-item]
    client.writer.write(encode_fetch_request(version, client.correlation_id, "test", request))


async def listed(client: Talk, topic: str) -> int:
    asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, -1)])])
    answer = await client.ask(ApiKey.LIST_OFFSETS, 7, asked)
    return int(answer.topics[0].partitions[0].error_code)


def tiered(broker: RunningBroker, topic: str) -> bool:
    topic_id = broker.node.cluster.image.topics_by_name[topic].topic_id
    return broker.node.remote_log_manager.manifest_of(TopicIdPartition(topic_id, PartitionIndex(0))) is not None


async def test_a_broker_that_does_not_lead_names_the_leader_and_its_address(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        assert await produce(client, "t", batch(3)) == [0]
        epoch = broker.log("t").leader_epoch
        await name_leader(broker.node, "t", OTHER)
        where = [(OTHER, "127.0.0.1", OTHER_PORT)]
        assert await produced(client, "t") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, (OTHER, epoch + 1), where)
        topic_id = broker.log("t").topic_id
        fetch_frame(client, topic_id, 0)
        _, answer = await client.answer(FETCH, 16)
        found = answer.responses[0].partitions[0]
        assert (found.error_code, found.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, OTHER)
        assert [(one.node_id, one.host, one.port) for one in answer.node_endpoints] == where
        assert await listed(client, "t") == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert broker.log("t").log_end_offset == 3, "the log stays"
        assert any(f"broker {OTHER} leads it" in line for line in broker.lines)


async def test_a_producer_whose_requests_were_learnt_is_told_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        for _ in range(5):
            assert (await produced(client, "t"))[0] == 0
        await name_leader(broker.node, "t", OTHER)
        assert (await produced(client, "t"))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert broker.log("t").log_end_offset == 5


async def test_a_consumer_that_waits_is_told_at_once_when_another_broker_leads(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        fetch_frame(client, broker.log("t").topic_id, 0, max_wait_ms=600_000)
        async with talk(broker.port) as other:
            await produced(other, "u")  # by now the Fetch has been read, and waits
        await name_leader(broker.node, "t", OTHER)
        async with asyncio.timeout(60):
            _, answer = await client.answer(FETCH, 16)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_partition_that_another_broker_leads_is_neither_copied_nor_expired_by_this_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", segment_bytes="1048576")
        await produce(client, "t", batch(10))
        await until(lambda: tiered(broker, "t"))
        await name_leader(broker.node, "t", OTHER)
        assert not tiered(broker, "t")


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
async def test_a_broker_that_is_named_again_leads_with_all_records_in_a_higher_epoch(
    tmp_path: Path, durability: Durability
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", firn_durability=durability.value)
        await produce(client, "t", batch(10), batch(5))
        sent = await fetch_all(client, "t", end=15)
        await name_leader(broker.node, "t", OTHER)
        epoch = broker.log("t").leader_epoch
        await name_leader(broker.node, "t", ME)
        partition = broker.node.partitions.table.get("t", 0)
        assert partition is not None
        await until(lambda: partition.role is Role.LEADER)
        assert broker.log("t").leader_epoch > epoch
        assert await fetch_all(client, "t", end=15) == sent
        assert await produce(client, "t", batch(1)) == [15]
        await until(lambda: tiered(broker, "t"))  # it leads before it has read the manifest (ADR 0024, T2)
        await tier_everything(broker, "t", 0)


@pytest.mark.parametrize("in_sync", [True, False])
async def test_a_log_that_its_leader_contradicted_leads_with_all_its_records_once_it_is_named(
    tmp_path: Path, in_sync: bool
) -> None:
    """ADR 0024, A3: it has all that was acknowledged, or an operator has given up the rest."""
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(10), batch(5))
        sent = await fetch_all(client, "t", end=15)
        await name_leader(broker.node, "t", OTHER)
        await name_in_sync(broker.node, "t", ME if in_sync else OTHER)
        table = broker.node.partitions.table
        partition = table.get("t", PartitionIndex(0))
        assert partition is not None
        table.put_offline(partition, "the leader's history differs from offset 10 on")
        assert partition.key in table.offline
        await name_leader(broker.node, "t", ME)
        await until(lambda: partition.role is Role.LEADER)
        assert partition.key not in table.offline
        await name_in_sync(broker.node, "t", ME)
        assert await fetch_all(client, "t", end=15) == sent
        assert await produce(client, "t", batch(1)) == [15]
        await until(lambda: tiered(broker, "t"))


async def test_a_broker_that_was_named_and_is_not_any_more_before_it_has_read_the_manifest_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(3))
        await name_leader(broker.node, "t", OTHER)
        await name_in_sync(broker.node, "t", OTHER)
        asked, may_go_on = asyncio.Event(), asyncio.Event()
        list_objects = broker.store.list_objects

        async def held(*args: Any, **more: Any) -> Any:
            asked.set()
            await may_go_on.wait()
            return await list_objects(*args, **more)

        monkeypatch.setattr(broker.store, "list_objects", held)
        await name_leader(broker.node, "t", ME)
        await asked.wait()  # for the manifest
        await name_leader(broker.node, "t", OTHER)
        may_go_on.set()
        key = TopicIdPartition(broker.log("t").topic_id, PartitionIndex(0))
        await until(lambda: key not in broker.node.partitions.opener.opening)
        for _ in range(50):
            await asyncio.sleep(0)
        assert broker.node.partitions.table.led("t", 0) is None


async def test_a_manifest_that_was_read_for_an_earlier_leadership_is_not_used_in_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker:
        load, read, may_go_on = broker.node.partitions.manifests.load, list[SegmentManifest](), asyncio.Event()

        async def held(*args: Any) -> SegmentManifest:
            manifest = await load(*args)
            read.append(manifest)
            if len(read) == 1:
                await may_go_on.wait()
            return manifest

        monkeypatch.setattr(broker.node.partitions.manifests, "load", held)
        await broker.create_topic("t")
        await until(lambda: read)
        await name_leader(broker.node, "t", OTHER)
        await name_leader(broker.node, "t", ME)
        led = broker.node.partitions.table.led("t", 0)
        assert led is not None, "it was in sync, so it leads before it has read the manifest"
        may_go_on.set()
        await until(lambda: tiered(broker, "t"))
        assert broker.node.remote_log_manager.manifest_of(led.key) is read[1]


@pytest.mark.parametrize("at", ["before the seal", "during the seal"])
async def test_an_attempt_to_open_that_was_overtaken_does_not_write_to_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Its seal would carry the epoch of the next leader, and would stop that one."""
    begun, may_go_on, over = asyncio.Event(), asyncio.Event(), asyncio.Event()
    written: list[str] = []
    check, seal, settle = opening.check_nothing_is_unnamed, SegmentManifest.seal, RemoteLogManager.settle
    try_to_open = Opener.try_to_open

    async def wait() -> None:
        begun.set()
        await may_go_on.wait()

    async def checked(*args: Any) -> None:
        await check(*args)
        if at == "before the seal":
            await wait()

    async def sealed(manifest: SegmentManifest, *args: Any) -> None:
        written.append("seal")
        await seal(manifest, *args)
        if at == "during the seal":
            await wait()

    async def settled(manager: RemoteLogManager, manifest: SegmentManifest) -> None:
        written.append("settle")
        await settle(manager, manifest)

    async def tried(self: Opener, *args: Any) -> bool:
        led = await try_to_open(self, *args)
        over.set()
        return led

    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", segment_bytes="1048576")
        await produce(client, "t", batch(3))
        await tier_everything(broker, "t", 0)
        await name_leader(broker.node, "t", OTHER)
        await name_in_sync(broker.node, "t", OTHER)
        monkeypatch.setattr(opening, "check_nothing_is_unnamed", checked)
        monkeypatch.setattr(SegmentManifest, "seal", sealed)
        monkeypatch.setattr(RemoteLogManager, "settle", settled)
        monkeypatch.setattr(Opener, "try_to_open", tried)
        await name_leader(broker.node, "t", ME)
        await begun.wait()
        await name_leader(broker.node, "t", OTHER)
        may_go_on.set()
        await over.wait()
        assert written == ([] if at == "before the seal" else ["seal"])
        assert broker.node.partitions.table.led("t", 0) is None


async def test_what_another_broker_leads_is_not_led_after_a_restart_and_kept(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await broker.create_topic("u")
        await produce(client, "t", batch(10))
        sent = await fetch_all(client, "t", end=10)
        await name_leader(broker.node, "t", -1)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert (await produced(client, "t"))[:2] == (ErrorCode.NOT_LEADER_OR_FOLLOWER, (-1, -1))
        assert await produce(client, "u", batch(1)) == [0]
        assert not tiered(broker, "t")
        await name_leader(broker.node, "t", ME)
        await until(lambda: broker.node.partitions.table.led("t", 0) is not None)
        assert await fetch_all(client, "t", end=10) == sent
        assert await produce(client, "t", batch(1)) == [10]


async def test_the_groups_of_a_partition_that_another_broker_leads_have_no_coordinator_here(tmp_path: Path) -> None:
    async with running_broker(tmp_path, offsets_topic_num_partitions=1) as broker, talk(broker.port) as client:
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])

        async def coordinator() -> tuple[int, int]:
            answer = (await client.ask(ApiKey.FIND_COORDINATOR, 4, asked)).coordinators[0]
            return answer.error_code, answer.node_id

        async with asyncio.timeout(60):
            while (await coordinator())[0]:
                await asyncio.sleep(0.01)
        assert await coordinator() == (0, ME)
        await name_leader(broker.node, "__consumer_offsets", OTHER)
        assert await coordinator() == (0, OTHER)
        await name_leader(broker.node, "__consumer_offsets", ME)
        async with asyncio.timeout(60):
            while await coordinator() != (0, ME):
                await asyncio.sleep(0.01)


async def test_a_topic_that_another_broker_leads_is_deleted_here_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(10))
        await name_leader(broker.node, "t", OTHER)
        await delete_topic(broker.node.membership.controller, "t")
        assert broker.node.logs.get("t", 0) is None
        assert (await produced(client, "t"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
async def test_what_another_replica_in_sync_has_not_stored_is_neither_acknowledged_to_all_nor_read(
    tmp_path: Path, durability: Durability
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client, talk(broker.port) as other:
        await broker.create_topic("t", firn_durability=durability.value)
        log = broker.log("t")

        async def code_of(acks: int, timeout_ms: int = 10) -> int:
            answer = await other.produce(10, [("t", [(0, batch(1))])], acks=acks, timeout_ms=timeout_ms)
            return int(answer.responses[0].partition_responses[0].error_code)

        for _ in range(3):
            await code_of(-1)  # The request is learnt. A slow disk may be too slow for it.
        await until(lambda: log.high_watermark == 3)
        await name_in_sync(broker.node, "t", ME, OTHER)
        client.send_produce(10, [("t", [(0, batch(1))])], acks=-1, timeout_ms=600_000)
        await until(lambda: log.log_end_offset == 4)
        for _ in range(3):
            assert await code_of(-1) == ErrorCode.REQUEST_TIMED_OUT
        assert await code_of(1, 60_000) == 0
        assert (log.log_end_offset, log.high_watermark) == (8, 3)
        fetch_frame(other, log.topic_id, 3)
        _, found = await other.answer(FETCH, 16)
        assert (found.responses[0].partitions[0].high_watermark, found.responses[0].partitions[0].records) == (3, b"")
        await name_in_sync(broker.node, "t", ME)
        _, answer = await client.answer(0, 10)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert len(await fetch_all(other, "t", end=8)) == 8 * len(batch(1))
        assert await code_of(-1, 60_000) == 0


async def test_a_new_leader_does_not_tell_an_end_that_may_go_back(tmp_path: Path) -> None:
    """KIP-207: until the high watermark has reached the start of its epoch, earlier leaders may have committed more."""
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        assert await produce(client, "t", batch(3)) == [0]
        partition = broker.node.partitions.table.get("t", PartitionIndex(0))
        assert partition is not None
        partition.counting = InSync(
            BrokerId(ME),
            LeaderEpoch(1),
            epoch_start=Offset(4),
            replicas=[BrokerId(ME), BrokerId(OTHER)],
            in_sync=[BrokerId(ME), BrokerId(OTHER)],
            partition_epoch=1,
            min_in_sync=1,
            high_watermark=Offset(3),
            now_ms=0,
        )

        async def code(version: int, timestamp: int) -> ErrorCode:
            asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])])
            answer = await client.ask(ApiKey.LIST_OFFSETS, version, asked)
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        assert await code(7, -1) is ErrorCode.OFFSET_NOT_AVAILABLE
        assert await code(4, -1) is ErrorCode.LEADER_NOT_AVAILABLE
        assert await code(7, 1 << 50) is ErrorCode.OFFSET_NOT_AVAILABLE
        assert await code(7, 0) is ErrorCode.NONE
        assert await code(7, -2) is ErrorCode.NONE
        partition.counting = None
        assert await code(7, -1) is ErrorCode.NONE
