"""What clients see of three real brokers in one loop: reads from followers, leader hints, and ends that are not known yet.

The rules are those of ADR 0024, V.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.configs.broker import RACK_AWARE_SELECTOR
from app.core.errors import ErrorCode
from app.core.units import BrokerId, PartitionIndex, ProducerEpoch, ProducerId, TopicIdPartition
from app.records.control import ControlType
from app.wire.apis.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.apis.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from app.wire.apis.share_fetch import FetchPartition as SharePartition
from app.wire.apis.share_fetch import FetchTopic, ShareFetchRequest
from app.wire.fetch import FetchPartition
from tests.broker.three import three
from tests.handlers.conversation import Talk, batch, talk
from tests.handlers.fetching import FETCH, ask, offsets, only, request, send
from tests.support.broker import RunningBroker
from tests.support.waiting import until

LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, DESCRIBE_TOPIC_PARTITIONS, SHARE_FETCH = 2, 3, 23, 75, 78
VERSION = 17


async def fetch(broker: RunningBroker, version: int, message: Any) -> Any:
    async with talk(broker.port) as client:
        return await ask(client, version, message)


async def list_offsets(client: Talk, version: int, timestamp: int, *, replica_id: int = -1, isolation: int = 0) -> Any:
    message = ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation,
        topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=timestamp)])],
    )
    answer = await client.ask(LIST_OFFSETS, version, message)
    return answer.topics[0].partitions[0]


def rack_of(broker: RunningBroker) -> str:
    return f"rack-{broker.node.config.node_id}"


# --- KIP-392 ------------------------------------------------------------------------------------------------------------


async def test_a_consumer_is_sent_to_the_replica_in_its_rack_and_reads_there(tmp_path: Path) -> None:
    async with three(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR) as cluster:
        await cluster.fill(batch(3), batch(2))
        await cluster.everywhere(5)
        near = cluster.followers[0]
        asked = FetchPartition(0, current_leader_epoch=cluster.epoch)
        for version in (11, 12, VERSION):
            topic = cluster.topic_id if version >= 13 else "t"
            message = request(asked, topic=topic, rack_id=rack_of(near), wait_ms=60_000)
            answer = await fetch(cluster.leader, version, message)
            found = only(answer)
            assert (found.error_code, found.preferred_read_replica) == (0, near.node.config.node_id)
            assert (found.records or b"", found.high_watermark) == (b"", 5)
            found = only(await fetch(near, version, message))
            assert (found.error_code, found.preferred_read_replica, found.high_watermark) == (0, -1, 5)
            assert offsets(found.records) == [0, 3]
        for rack in ("", "elsewhere", rack_of(cluster.leader)):
            found = only(await fetch(cluster.leader, VERSION, request(asked, topic=cluster.topic_id, rack_id=rack)))
            assert (found.error_code, found.preferred_read_replica, offsets(found.records)) == (0, -1, [0, 3])


async def test_without_a_selector_nobody_is_sent_elsewhere_and_followers_serve_all_the_same(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster.fill(batch(3))
        await cluster.everywhere(3)
        message = request(FetchPartition(0), topic=cluster.topic_id, rack_id=rack_of(cluster.followers[0]))
        for broker in cluster.brokers:
            found = only(await fetch(broker, VERSION, message))
            assert (found.error_code, found.preferred_read_replica, offsets(found.records)) == (0, -1, [0])


async def test_nobody_is_sent_to_a_follower_that_lacks_the_offset_or_is_not_in_sync(tmp_path: Path) -> None:
    async with three(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR) as cluster:
        await cluster.fill(batch(3))
        await cluster.everywhere(3)
        near = cluster.followers[0]
        partition = cluster.partition(cluster.leader)
        node_id, brokers = near.node.config.node_id, cluster.leader.node.cluster.image.brokers
        assert partition.preferred_replica(rack_of(near), 3, brokers) == node_id
        assert partition.preferred_replica(rack_of(near), 4, brokers) is None
        replica = partition.counting.replica(node_id)
        replica.log_start = 2
        assert partition.preferred_replica(rack_of(near), 2, brokers) == node_id
        replica.log_start = 2
        assert partition.preferred_replica(rack_of(near), 1, brokers) is None
        replica.log_start = 0
        partition.in_sync = tuple(one for one in partition.in_sync if one != node_id)
        assert partition.preferred_replica(rack_of(near), 3, brokers) is None


async def test_a_session_is_told_of_a_preferred_replica_each_time(tmp_path: Path) -> None:
    async with three(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR) as cluster:
        await cluster.fill(batch(3))
        await cluster.everywhere(3)
        near = cluster.followers[0]
        fields: Any = {"topic": cluster.topic_id, "rack_id": rack_of(near)}
        async with talk(cluster.leader.port) as client:
            first = await ask(client, VERSION, request(FetchPartition(0), session_epoch=0, **fields))
            assert only(first).preferred_read_replica == near.node.config.node_id
            for epoch in (1, 2):
                more = request(session_id=first.session_id, session_epoch=epoch, wait_ms=60_000, **fields)
                assert only(await ask(client, VERSION, more)).preferred_read_replica == near.node.config.node_id


async def test_a_follower_wakes_who_waits_when_its_high_watermark_rises(tmp_path: Path) -> None:
    async with three(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR) as cluster:
        await cluster.fill(batch(3))
        await cluster.everywhere(3)
        async with talk(cluster.followers[0].port) as client:
            message = request(FetchPartition(0, fetch_offset=3), topic=cluster.topic_id, wait_ms=60_000)
            send(client, VERSION, message)
            await until(lambda: cluster.followers[0].log("t")._waiters)
            await cluster.fill(batch(2))
            found = only((await client.answer(FETCH, VERSION))[1])
            assert (found.error_code, found.high_watermark, offsets(found.records)) == (0, 5, [3])


async def test_a_follower_is_told_of_the_high_watermark_before_its_wait_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.broker.replication.followers.WAIT_MS", 60_000)
    async with three(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR) as cluster:
        for end in (3, 6):
            await cluster.fill(batch(3))
            await cluster.everywhere(end)


async def test_a_follower_serves_no_more_than_its_own_high_watermark_and_its_log(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster.fill(batch(3), batch(2))
        await cluster.everywhere(5)
        near = cluster.followers[0]
        log = near.log("t")
        log._high_watermark = 3
        found = only(await fetch(near, VERSION, request(FetchPartition(0), topic=cluster.topic_id)))
        assert (found.high_watermark, offsets(found.records)) == (3, [0])
        for offset, code in ((4, 0), (5, 0), (6, ErrorCode.OFFSET_OUT_OF_RANGE)):
            asked = request(FetchPartition(0, fetch_offset=offset), topic=cluster.topic_id)
            found = only(await fetch(near, VERSION, asked))
            assert (found.error_code, found.records or b"") == (code, b"")
        log._high_watermark = 5
        partition = cluster.partition(near)
        leader, partition.leader = partition.leader, near.node.config.node_id  # named leader, and not open yet (V3)
        found = only(await fetch(near, VERSION, request(FetchPartition(0), topic=cluster.topic_id)))
        assert (found.error_code, found.records or b"") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        partition.leader = leader
        log.advance_log_start(3)
        found = only(await fetch(near, VERSION, request(FetchPartition(0, fetch_offset=2), topic=cluster.topic_id)))
        assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.ci
async def test_at_read_committed_a_follower_stops_at_its_last_stable_offset_and_names_aborted_transactions(
    tmp_path: Path,
) -> None:
    async with three(tmp_path) as cluster:
        log = cluster.leader.log("t")
        now_ms = 1_700_000_000_000
        opened = batch(3, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        log.append_as_leader(memoryview(bytearray(opened)), now_ms=now_ms)
        await cluster.everywhere(3)
        near = cluster.followers[0]
        message = request(FetchPartition(0), topic=cluster.topic_id, isolation_level=1)
        found = only(await fetch(near, VERSION, message))
        assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 3, 0)
        assert (found.records or b"") == b""
        log.append_control(
            ControlType.ABORT,
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            coordinator_epoch=0,
            now_ms=now_ms,
        )
        await cluster.everywhere(4)
        found = only(await fetch(near, VERSION, message))
        assert (found.last_stable_offset, offsets(found.records)) == (4, [0, 3])
        assert [(one.producer_id, one.first_offset) for one in found.aborted_transactions] == [(7, 0)]


# --- epochs and hints ---------------------------------------------------------------------------------------------------


@pytest.mark.ci
async def test_a_follower_compares_epochs_and_names_the_leader(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster.fill(batch(3))
        await cluster.everywhere(3)
        near, leader_id = cluster.followers[0], cluster.leader.node.config.node_id
        for claimed, code in ((-1, 0), (cluster.epoch, 0), (cluster.epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            asked = FetchPartition(0, current_leader_epoch=claimed)
            answer = await fetch(near, VERSION, request(asked, topic=cluster.topic_id))
            assert (only(answer).error_code, answer.node_endpoints) == (code, [])
        controller = cluster.brokers[0].node.membership.controller
        key = TopicIdPartition(cluster.topic_id, PartitionIndex(0))
        await controller.bump_leader_epochs([key], above={key: cluster.epoch})
        epoch = cluster.epoch + 1
        await until(lambda: cluster.partition(near).leader_epoch == epoch)
        stale = FetchPartition(0, current_leader_epoch=cluster.epoch)
        for broker in (near, cluster.leader):
            await until(lambda broker=broker: cluster.partition(broker).reader_epoch == epoch)
            answer = await fetch(broker, VERSION, request(stale, topic=cluster.topic_id))
            found = only(answer)
            assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH
            assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (leader_id, epoch)
            assert [(one.node_id, one.port, one.rack) for one in answer.node_endpoints] == [
                (leader_id, cluster.leader.port, rack_of(cluster.leader))
            ]


async def test_old_versions_producers_and_searches_are_for_the_leader_alone(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster.fill(batch(3))
        await cluster.everywhere(3)
        near, leader_id = cluster.followers[0], cluster.leader.node.config.node_id
        for version in (4, 10):
            found = only(await fetch(near, version, request(FetchPartition(0))))
            assert (found.error_code, found.records or b"") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        async with talk(near.port) as client:
            for version in (9, 10, 12):
                answer = await client.produce(version, [("t", [(0, batch(1))])])
                found = answer.responses[0].partition_responses[0]
                assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                if version >= 10:
                    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (
                        leader_id,
                        cluster.epoch,
                    )
                    assert [(one.node_id, one.port) for one in answer.node_endpoints] == [
                        (leader_id, cluster.leader.port)
                    ]
            for timestamp in (-1, -2, 0):
                found = await list_offsets(client, 7, timestamp)
                assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            found = await list_offsets(client, 7, -1, replica_id=-2)  # Kafka's debugging consumer
            assert (found.error_code, found.offset) == (0, 3)
            for claimed, code in (
                (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
                (cluster.epoch, ErrorCode.NOT_LEADER_OR_FOLLOWER),
                (cluster.epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            ):
                partition = OffsetForLeaderPartition(0, current_leader_epoch=claimed, leader_epoch=0)
                message = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic("t", [partition])])
                answer = await client.ask(OFFSET_FOR_LEADER_EPOCH, 4, message)
                assert answer.topics[0].partitions[0].error_code == code


@pytest.mark.ci
async def test_share_groups_are_told_who_leads(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        near, leader_id = cluster.followers[0], cluster.leader.node.config.node_id
        fields: Any = {"group_id": "g", "member_id": "m"}
        async with talk(near.port) as client:
            message = ShareFetchRequest(
                max_bytes=1 << 20,
                max_records=10,
                topics=[FetchTopic(cluster.topic_id, [SharePartition(0)])],
                share_session_epoch=0,
                **fields,
            )
            answer = await client.ask(SHARE_FETCH, 1, message)
            found = answer.responses[0].partitions[0]
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (leader_id, cluster.epoch)
            assert [(one.node_id, one.port) for one in answer.node_endpoints] == [(leader_id, cluster.leader.port)]


# --- KIP-207 ------------------------------------------------------------------------------------------------------------


@pytest.mark.ci
async def test_until_the_high_watermark_reaches_the_start_of_the_epoch_the_end_is_not_told(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster.fill(batch(3), batch(2, timestamp=1_700_000_001_000))
        await cluster.everywhere(5)
        leader = cluster.partition(cluster.leader)
        leader.counting._epoch_start = 100
        assert not leader.end_is_known
        leader.log._high_watermark = 3
        async with talk(cluster.leader.port) as client:
            for isolation in (0, 1):
                for timestamp in (-1, 1_700_000_001_000):
                    for version, code in (
                        (4, ErrorCode.LEADER_NOT_AVAILABLE),
                        (5, ErrorCode.OFFSET_NOT_AVAILABLE),
                        (9, ErrorCode.OFFSET_NOT_AVAILABLE),
                    ):
                        found = await list_offsets(client, version, timestamp, isolation=isolation)
                        assert (found.error_code, found.offset) == (code, -1)
                found = await list_offsets(client, 9, -2, isolation=isolation)
                assert (found.error_code, found.offset) == (0, 0)
                found = await list_offsets(client, 9, 1_700_000_000_000, isolation=isolation)
                assert (found.error_code, found.offset) == (0, 0)
            # As Kafka: who finds no record of a time asks again as well.
            found = await list_offsets(client, 9, 1_800_000_000_000)
            assert (found.error_code, found.offset) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
            found = only(await ask(client, VERSION, request(FetchPartition(0), topic=cluster.topic_id)))
            assert (found.error_code, found.high_watermark, offsets(found.records)) == (0, 3, [0])
            found = only(await ask(client, VERSION, request(FetchPartition(0, fetch_offset=4), topic=cluster.topic_id)))
            assert (found.error_code, found.high_watermark, found.records or b"") == (0, 3, b"")
            partition = OffsetForLeaderPartition(0, current_leader_epoch=cluster.epoch, leader_epoch=cluster.epoch)
            message = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic("t", [partition])])
            answer = (await client.ask(OFFSET_FOR_LEADER_EPOCH, 4, message)).topics[0].partitions[0]
            assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, cluster.epoch, 5)
            leader.counting._epoch_start = 0
            leader.log._high_watermark = 5
            assert (await list_offsets(client, 9, -1)).offset == 5


# --- what operators see -------------------------------------------------------------------------------------------------


def shown(broker: RunningBroker) -> dict[str, float]:
    return {one.name: one.value for one in broker.node.registry.samples() if not one.labels}


async def test_what_lacks_replicas_is_told_and_counted(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        for one in cluster.brokers:
            await until(lambda one=one: set(cluster.partition(one).in_sync) == {1, 2, 3})
        assert shown(cluster.leader)["firn_leaders"] == 1
        for one in cluster.brokers:
            counts = shown(one)
            assert (counts["firn_partitions"], counts["firn_under_replicated_partitions"]) == (1, 0)
            controls = one is cluster.brokers[0]
            assert (counts["firn_active_controller"], counts["firn_active_brokers"]) == (controls, 3 * controls)
            assert counts["firn_fenced_brokers"] == counts["firn_leaderless_partitions"] == 0
        watching = cluster.brokers[0]
        last = [one for one in cluster.followers if one is not watching][-1]
        gone = last.node.config.node_id
        alone = await watching.node.membership.controller.create_topic("alone", assignments={0: (BrokerId(gone),)})
        assert alone.partitions[0].leader == gone
        last.node.request_stop()
        await last.ended.wait()
        await until(lambda: watching.node.cluster.image.brokers[gone].fenced)
        await until(lambda: gone not in cluster.partition(cluster.leader).in_sync)
        counts = shown(cluster.leader)
        assert counts["firn_under_replicated_partitions"] == counts["firn_at_min_isr_partitions"] == 1
        assert (counts["firn_under_min_isr_partitions"], counts["firn_isr_shrinks_total"]) == (0, 1)
        counts = shown(watching)
        assert (counts["firn_fenced_brokers"], counts["firn_active_brokers"]) == (1, 2)
        assert counts["firn_leaderless_partitions"] == 1
        async with talk(watching.port) as client:
            asked = [MetadataRequestTopic(name=name) for name in ("t", "alone")]
            answer = await client.ask(METADATA, 12, MetadataRequest(asked))
            assert {one.node_id for one in answer.brokers} == {1, 2, 3} - {gone}
            replicated, single = (topic.partitions[0] for topic in answer.topics)
            assert (replicated.error_code, replicated.leader_id) == (0, cluster.leader.node.config.node_id)
            assert replicated.offline_replicas == single.offline_replicas == [gone]
            assert sorted(replicated.isr_nodes) == sorted({1, 2, 3} - {gone})
            assert (single.error_code, single.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
            described = await client.ask(
                DESCRIBE_TOPIC_PARTITIONS,
                0,
                DescribeTopicPartitionsRequest([TopicRequest("t"), TopicRequest("alone")], 10),
            )
            told = {topic.name: topic.partitions[0] for topic in described.topics}
            assert (told["alone"].leader_id, told["alone"].offline_replicas) == (-1, [gone])
            assert (told["alone"].isr_nodes, told["alone"].eligible_leader_replicas) == ([], [gone])
            assert told["t"].eligible_leader_replicas == []
