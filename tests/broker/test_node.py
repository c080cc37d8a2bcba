"""A whole broker in the test's loop: starting, stopping, losing things, being replaced; records in both tiers."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from app.broker.composing.local_parts import LOG_DESCRIPTORS_MAX
from app.broker.composing.node_seams import NodeSeams
from app.broker.node import Node
from app.broker.partitions.partitions import LOGS_AT_ONCE, Partitions
from app.configs import BrokerConfig, TopicConfig
from app.coordinator.topics import INTERNAL
from app.core.errors import ConfigError, ConflictError, ErrorCode, FirnError, StorageFull, StorageUnavailable
from app.core.units import TopicId, TopicIdPartition
from app.hot.checkpoints import CLEAN_SHUTDOWN_FILE
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.machine.files import PosixFileSystem
from app.machine.runtime import SystemClock
from app.metadata.changes.topic_changes import ConfigChange
from app.metadata.view.registration import StartRefused
from app.objectstore.directory import DirectPool
from app.objectstore.memory import MemoryStore
from app.records.batch import iter_headers
from app.replication.reading import RANGES_MAX
from app.tiering.store.store_work import InlineStoreWork
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.apis.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.config_resources import ConfigOperation
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.handlers.conversation import batch, talk
from tests.support.broker import running_broker
from tests.support.changing import alter_configs, delete_topic
from tests.support.talking import FETCH, fetch_all, headers, produce, tier_everything
from tests.support.waiting import until


async def test_records_come_back_after_a_clean_stop(tmp_path: Path):
    async with running_broker(tmp_path) as broker:
        cluster_id = broker.node.cluster.image.cluster_id
        await broker.create_topic("t", 3, retention_ms="-1")
        async with talk(broker.port) as client:
            for n in range(3):
                await produce(client, "t", batch(4), batch(5), partition=n)
            before = await fetch_all(client, "t", end=9)
    async with running_broker(tmp_path) as broker:
        assert broker.node.load_report.clean
        assert broker.node.cluster.image.cluster_id == cluster_id
        assert broker.log("t").leader_epoch == 0
        async with talk(broker.port) as client:
            assert await fetch_all(client, "t", end=9) == before
            assert await produce(client, "t", batch(1)) == [9]


async def test_after_an_unclean_stop_records_are_there_and_leader_epochs_rise(tmp_path: Path):
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 2, retention_ms="-1")
        async with talk(broker.port) as client:
            await produce(client, "t", batch(4), batch(5))
        # What a kill leaves: the files as they are, and no marker.
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "killed").rename(tmp_path / "data")
    async with running_broker(tmp_path) as broker:
        assert not broker.node.load_report.clean
        assert [broker.log("t", n).leader_epoch for n in (0, 1)] == [1, 1]
        async with talk(broker.port) as client:
            assert len(headers(await fetch_all(client, "t", end=9))) == 2
            assert await produce(client, "t", batch(1)) == [9]
            assert headers(await fetch_all(client, "t", start=9, end=10))[0].leader_epoch == 1


async def test_leader_epochs_rise_though_the_first_start_after_a_kill_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
    (tmp_path / "data" / CLEAN_SHUTDOWN_FILE).unlink()

    async def without_a_store(self: Partitions, *, clean: bool, **_: object) -> None:
        raise StorageUnavailable("no manifest can be read")

    with monkeypatch.context() as patch:
        patch.setattr(Partitions, "take_over_all", without_a_store)
        with pytest.raises(StorageUnavailable):
            await running_broker(tmp_path).__aenter__()
    async with running_broker(tmp_path) as broker:
        assert broker.log("t").leader_epoch == 1


async def test_records_roll_tier_leave_the_disk_and_come_back_byte_for_byte(tmp_path: Path):
    async with running_broker(tmp_path, remote_log_manager_task_interval_ms=50) as broker:
        await broker.create_topic("t", 1, segment_bytes="1048576", local_retention_ms="0", retention_ms="-1")
        async with talk(broker.port) as client:
            await produce(client, "t", *[batch(10, value=b"%d" % n * 30_000) for n in range(8)])
            sent = await fetch_all(client, "t", end=80)
            await tier_everything(broker, "t")
            log = broker.log("t")
            await until(lambda: log.local_log_start_offset == 80)
            assert log.log_start_offset == 0
            assert await fetch_all(client, "t", end=80) == sent
            assert await fetch_all(client, "t", start=35, end=80) == sent[sent.index(headers_at(sent, 30)) :]
            assert await produce(client, "t", batch(1)) == [80]
            for place, offset in ((-2, 0), (-4, 80), (-5, 79), (-6, 80), (-1, 81), (1_700_000_000_000, 0)):
                request = ListOffsetsRequest(
                    replica_id=-1, topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=place)])]
                )
                answer = await client.ask(ApiKey.LIST_OFFSETS, 11, request)
                assert answer.topics[0].partitions[0].offset == offset, place
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert (await fetch_all(client, "t", end=81))[: len(sent)] == sent


@pytest.mark.ci
async def test_retention_by_time_is_looked_at_as_often_as_its_interval_says(tmp_path: Path):
    async with running_broker(tmp_path, log_retention_check_interval_ms=50) as broker:
        await broker.create_topic("t", 1, retention_ms="1")
        log = broker.log("t")
        async with talk(broker.port) as client:
            for n in (1, 2):  # The first may meet the look at a partition that is new.
                await produce(client, "t", batch(1))
                await until(lambda n=n: log.log_start_offset == n)


def headers_at(data: bytes, offset: int) -> bytes:
    """The first bytes of the batch at ``offset``."""
    position = next(position for position, header in iter_headers(data) if header.base_offset == offset)
    return data[position : position + 61]


async def test_one_fetch_reads_across_segments(tmp_path: Path):
    """Whoever asks for many bytes does not wait at the end of each segment, although it is all there."""
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t")
        async with talk(broker.port) as client:
            for _ in range(RANGES_MAX + 4):
                await produce(client, "t", batch(1))
                broker.log("t").roll()
            size = broker.log("t").size_bytes // (RANGES_MAX + 4)

            async def ask(max_bytes: int, min_bytes: int) -> list[int]:
                client.correlation_id += 1
                asked = FetchPartition(0, fetch_offset=0, partition_max_bytes=max_bytes)
                request = FetchRequest(max_wait_ms=60_000, min_bytes=min_bytes, topics=[("t", [asked])])
                client.writer.write(encode_fetch_request(11, client.correlation_id, "c", request))
                _, answer = await client.answer(FETCH, 11)
                return [header.base_offset for header in headers(answer.responses[0].partitions[0].records)]

            assert await ask(5 * size, 5 * size) == [0, 1, 2, 3, 4]
            # Each piece keeps a file open, so an answer has no more than so many, and goes out with those at once.
            assert await ask(1 << 20, 1 << 20) == list(range(RANGES_MAX))


async def test_an_empty_data_directory_is_rebuilt_from_the_store(tmp_path: Path):
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 2, segment_bytes="1048576", retention_ms="-1")
        async with talk(broker.port) as client:
            await produce(client, "t", *[batch(10, value=b"%d" % n * 1000) for n in range(4)])
            await produce(client, "t", batch(3), partition=1)
            sent = await fetch_all(client, "t", end=40)
            await tier_everything(broker, "t")
            await produce(client, "t", batch(10))
    shutil.rmtree(tmp_path / "data")
    async with running_broker(tmp_path, take_over=True) as broker:
        assert any("t-0 continues at its tiered end 40" in line for line in broker.lines)
        assert broker.node.cluster.image.topic("t").configs["retention.ms"] == "-1"
        log = broker.log("t")
        assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 40, 40)
        assert log.leader_epoch >= 1
        async with talk(broker.port) as client:
            assert await fetch_all(client, "t", end=40) == sent
            assert await produce(client, "t", batch(1)) == [40]
            assert await produce(client, "t", batch(1), partition=1) == [0]


async def test_a_new_data_directory_tells_by_name_and_count_what_is_lost_with_the_former_one(tmp_path: Path):
    async with running_broker(tmp_path) as broker:
        assert not [line for line in broker.lines if "lost" in line], "a new cluster has lost nothing"
        await broker.create_topic("t", 2, retention_ms="-1")
        await broker.create_topic("newest", 3, cleanup_policy="compact")
        await broker.create_topic("here", 1, remote_storage_enable="false")
        for internal in INTERNAL:
            await broker.create_topic(internal, 4, cleanup_policy="compact")
        async with talk(broker.port) as client:
            await produce(client, "t", batch(10))
            await tier_everything(broker, "t")
    async with running_broker(tmp_path) as broker:
        assert not [line for line in broker.lines if "lost" in line], "the data directory is the one it was"
    shutil.rmtree(tmp_path / "data")
    async with running_broker(tmp_path, take_over=True) as broker:
        told = [line for line in broker.lines if "lost" in line]
    assert told == [
        f"the data directory {tmp_path}/data is new, but this broker leads 6 topics with 18 partitions: data that only the "
        "former data directory had is lost",
        "lost with the former data directory: the committed offsets of every consumer group, so groups begin where "
        "auto.offset.reset says (__consumer_offsets, 4 partitions)",
        "lost with the former data directory: the progress of every share group, so share groups begin where "
        "share.auto.offset.reset says (__share_group_state, 4 partitions)",
        "lost with the former data directory: every transactional id, so its next producer gets a new producer id "
        "(__transaction_state, 4 partitions)",
        "lost with the former data directory: the records of 2 untiered topics: here (1 partition, "
        "remote.storage.enable=false), newest (3 partitions, compacted)",
        "lost with the former data directory: the records of 1 tiered topic that were not in the store yet; the store "
        "has no record of 1 partition: t-1",
    ]


@pytest.mark.parametrize("lost", ["the data directory", "the local copies of what is remote"])
async def test_a_partition_whose_manifest_was_lost_is_not_led_until_it_is_put_back(tmp_path: Path, lost: str):
    """Its end is not known any more: the next record would be given an offset that another has."""
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 2, segment_bytes="1048576", retention_ms="-1", local_retention_bytes="0")
        async with talk(broker.port) as client:
            await produce(client, "t", *[batch(10, value=b"%d" % n * 1000) for n in range(4)])
            sent = await fetch_all(client, "t", end=40)
            await tier_everything(broker, "t")
            await until(lambda: broker.log("t").local_log_start_offset == 40)
        topic = broker.node.cluster.image.topic("t")
    if lost == "the data directory":
        shutil.rmtree(tmp_path / "data")
    else:  # and what of it was kept beside them
        shutil.rmtree(next((tmp_path / "data").rglob("manifests")))
        next((tmp_path / "data").rglob("manifest-ends")).unlink()
    manifest = tmp_path / "store" / "topics" / str(topic.topic_id) / "0"
    manifest.rename(tmp_path / "older versions")
    for _ in range(2):  # the first leaves a data directory behind
        async with running_broker(tmp_path, take_over=True) as broker, talk(broker.port) as client:
            [line] = [line for line in broker.lines if line.startswith("t-0 is offline")]
            assert "t-0 cannot be led" in line
            assert f"restore the objects under topics/{topic.topic_id}/0/" in line
            answer = await client.produce(9, [("t", [(0, batch(1))])])
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    shutil.rmtree(manifest, ignore_errors=True)
    (tmp_path / "older versions").rename(manifest)
    async with running_broker(tmp_path, take_over=True) as broker, talk(broker.port) as client:
        assert await fetch_all(client, "t", end=40) == sent
        assert await produce(client, "t", batch(1)) == [40]
        assert await produce(client, "t", batch(1), partition=1) == [0]


async def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path):
    async with running_broker(tmp_path):
        with pytest.raises(ConflictError, match="in use by another process"):
            async with running_broker(tmp_path):
                pass


async def test_a_second_broker_with_the_same_node_id_is_refused_and_told_how_to_take_over(tmp_path: Path):
    async with running_broker(tmp_path) as broker:
        with pytest.raises(StartRefused, match="--take-over"):
            async with running_broker(tmp_path, data_dir=tmp_path / "other", seed=8):
                pass
        async with talk(broker.port) as client:
            assert (await client.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))).brokers


async def test_a_forced_take_over_is_told_to_the_old_broker_which_ends_before_the_new_one_serves(tmp_path: Path):
    async with running_broker(tmp_path) as old:
        await old.create_topic("t", 1, retention_ms="-1")
        async with talk(old.port) as client:
            await produce(client, "t", batch(3))
            held = old.log("t").size_bytes
            async with running_broker(tmp_path, data_dir=tmp_path / "other", seed=8, take_over=True) as new:
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await produce(client, "t", batch(3))
                (told,) = [line for line in new.lines if "was told at 127.0.0.1:" in line]
                assert f"{held} bytes of 1 partitions" in told
                await until(lambda: old.fenced)


async def test_after_a_take_over_the_old_broker_stops_by_itself(tmp_path: Path):
    async with running_broker(tmp_path) as old:
        await old.create_topic("t")
        async with running_broker(tmp_path, data_dir=tmp_path / "other", take_over=True, seed=8) as new:
            with pytest.raises(FirnError):
                await old.create_topic("u")
            await until(lambda: old.fenced is not None)
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", old.port)
            async with talk(new.port) as client:
                assert await produce(client, "t", batch(1)) == [0]


async def test_a_directory_of_another_node_is_refused(tmp_path: Path):
    async with running_broker(tmp_path):
        pass
    with pytest.raises(ConfigError, match="belongs to node 1"):
        async with running_broker(tmp_path, node_id=2):
            pass


async def test_an_address_in_use_is_refused_in_one_sentence(tmp_path: Path):
    async with running_broker(tmp_path) as broker:
        with pytest.raises(ConfigError, match="Cannot listen on 127"):
            async with running_broker(tmp_path / "b", node_id=2, listen_port=broker.port):
                pass


async def test_topics_are_made_by_asking_for_them_and_deleted_with_all_they_have(tmp_path: Path):
    async with running_broker(tmp_path, num_partitions=3) as broker, talk(broker.port) as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True)
        for _ in range(2):
            answer = await client.ask(ApiKey.METADATA, 9, request)
        assert [len(topic.partitions) for topic in answer.topics] == [3]
        assert await produce(client, "auto", batch(2), partition=2) == [0]
        await tier_everything(broker, "auto", 2)
        topic = broker.node.cluster.image.topic("auto")
        await delete_topic(broker.node.membership.controller, "auto")
        assert broker.node.logs.get("auto", 2) is None
        assert broker.node.remote_log_manager.manifest_of(TopicIdPartition(topic.topic_id, 2)) is None
        await until(lambda: not broker.node.cluster.image.deleting)
        left = await broker.store.list_objects(f"topics/{topic.topic_id}")
        assert left == []
        assert await broker.store.list_objects("data/") == []
        await broker.create_topic("auto", 1)
        assert await produce(client, "auto", batch(2)) == [0]


async def test_records_of_topics_just_made_are_deleted_at_once_however_many_are_made(tmp_path: Path):
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        for n in range(30):
            name = f"t{n}"
            await client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic(name, 1, 1)], 1000))
            await produce(client, name, batch(2))
            asked = DeleteRecordsTopic(name, [DeleteRecordsPartition(0, 1)])
            answer = await client.ask(ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest([asked], 1000))
            (found,) = answer.topics[0].partitions
            assert (found.error_code, found.low_watermark) == (0, 1), name


async def test_a_topic_of_many_partitions_is_whole_when_it_is_answered_and_others_had_their_turns(tmp_path: Path):
    async with running_broker(tmp_path) as broker:
        seen = [0]

        async def look() -> None:
            while True:
                there = sum(1 for log in broker.node.logs.logs() if log.topic == "many")
                if there != seen[-1]:
                    seen.append(there)
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        await broker.create_topic("many", 10 * LOGS_AT_ONCE + 1)
        assert [broker.log("many", index).log_end_offset for index in range(10 * LOGS_AT_ONCE + 1)] == [0] * (
            10 * LOGS_AT_ONCE + 1
        )
        looking.cancel()
        steps = [after - before for before, after in itertools.pairwise(seen)]
        assert 0 < max(steps) <= LOGS_AT_ONCE


async def test_a_large_topic_is_answered_at_once_and_each_partition_is_made_when_somebody_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.broker.partitions.partitions.WAITED_FOR_MAX", 20)
    there_is_room = {*range(LOGS_AT_ONCE)}
    create = LogManager.create

    def create_in_room(
        self: LogManager, topic: str, topic_id: TopicId, partition: int, config: TopicConfig
    ) -> PartitionLog:
        return create(self, topic, topic_id, partition, config) if partition in there_is_room else refuse_room()

    monkeypatch.setattr(LogManager, "create", create_in_room)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("many", 40)
        assert len(broker.node.logs.logs()) == LOGS_AT_ONCE, "one slice, and nobody waits for the others"
        there_is_room |= {38, 39}
        assert await produce(client, "many", batch(3), partition=39) == [0]
        assert len(await fetch_all(client, "many", partition=39, end=3)) == len(batch(3))
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("many", [ListOffsetsPartition(38, -1, -1)])])
        answer = await client.ask(ApiKey.LIST_OFFSETS, 7, asked)
        assert (answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].offset) == (0, 0)
        refused = await client.produce(9, [("many", [(37, batch(1))])])
        assert refused.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert any("no room" in line for line in broker.lines)
        assert len(broker.node.logs.logs()) == LOGS_AT_ONCE + 2
        there_is_room |= {*range(40)}
        await until(lambda: len(broker.node.logs.logs()) == 40)
        assert await produce(client, "many", batch(1), partition=39) == [3], "what was made before is left alone"
        assert await produce(client, "many", batch(1), partition=37) == [0]


def refuse_room(*_args: object, **_kwargs: object) -> NoReturn:
    raise StorageFull("no room")


async def test_a_topic_whose_logs_cannot_be_made_is_answered_and_made_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with running_broker(tmp_path) as broker:
        with monkeypatch.context() as patch:
            patch.setattr(LogManager, "create", refuse_room)
            await broker.create_topic("late", 2 * LOGS_AT_ONCE)
            assert broker.node.logs.get("late", 0) is None
        async with asyncio.timeout(60):
            while broker.node.logs.get("late", 2 * LOGS_AT_ONCE - 1) is None:
                await asyncio.sleep(0.01)
        assert any("no room" in line for line in broker.lines)


async def test_topic_settings_reach_the_log_at_once(tmp_path: Path):
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("t", 1, 1)], 1000))
        await produce(client, "t", batch(1, value=b"x" * 2000))
        await alter_configs(
            broker.node.membership.controller, 2, "t", [ConfigChange("max.message.bytes", ConfigOperation.SET, "1000")]
        )
        answer = await client.produce(9, [("t", [(0, batch(1, value=b"x" * 2000))])])
        assert answer.responses[0].partition_responses[0].error_code == 10


async def test_idempotence_survives_a_restart(tmp_path: Path):
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", retention_ms="-1")
        async with talk(broker.port) as client:
            first = batch(2, producer_id=5, producer_epoch=0, base_sequence=0)
            assert await produce(client, "t", first, first) == [0, 0]
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert await produce(client, "t", first) == [0]
        second = batch(1, producer_id=5, producer_epoch=0, base_sequence=2)
        assert await produce(client, "t", second) == [2]
        gap = batch(1, producer_id=5, producer_epoch=0, base_sequence=9)
        answer = await client.produce(9, [("t", [(0, gap)])])
        assert answer.responses[0].partition_responses[0].error_code == 45


async def test_disk_durability_is_answered_after_the_sync(tmp_path: Path):
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", 1, firn_durability="disk", retention_ms="-1")
        assert await produce(client, "t", batch(2), batch(1)) == [0, 2]
        log = broker.log("t")
        assert log.synced_end_offset == 3
        for _ in range(20):
            client.send_produce(9, [("t", [(0, batch(1))])])
        for n in range(20):
            _, answer = await client.answer(0, 9)
            assert answer.responses[0].partition_responses[0].base_offset == 3 + n


async def test_a_clients_connection_is_kept_alive_while_nobody_speaks(tmp_path: Path):
    """A load balancer forgets a connection without packets; the kernel shows the timer that sends them."""
    keep_alive_timer = "02"
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(1))
        async with asyncio.timeout(30):
            while True:  # until what was sent is acknowledged, its timer is shown instead
                lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
                accepted = [
                    fields for fields in lines if int(fields[1].split(":")[1], 16) == broker.port and fields[3] == "01"
                ]
                if accepted and all(fields[5].split(":")[0] == keep_alive_timer for fields in accepted):
                    break
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("of_the_process", "of_logs"),
    [(1024, 512), (200, 100), (100, 64), (2 * LOG_DESCRIPTORS_MAX + 2, LOG_DESCRIPTORS_MAX), (2**30, 65_536)],
)
def test_logs_have_half_of_the_descriptors_of_the_process_up_to_a_bound(
    tmp_path: Path, of_the_process: int, of_logs: int
) -> None:
    """The other half is for sockets; an unlimited process would leave every file of every log open."""
    store, fs, pool, rng = MemoryStore(), PosixFileSystem(), DirectPool(), random.Random(1)
    around = NodeSeams(
        clock=SystemClock(),
        rng=rng,
        pool=pool,
        fs=fs,
        store=store,
        work=InlineStoreWork(store, fs, pool, rng),
        log_line=print,
        descriptors_max=of_the_process,
    )
    node = Node(BrokerConfig(data_dir=str(tmp_path)), around)
    assert [one.value for one in node.registry.samples() if one.name == "firn_log_open_files_max"] == [of_logs]
