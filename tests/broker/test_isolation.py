"""The gate of isolation on two real brokers in one loop: who is refused, what goes on, and what ends (ADR 0040: IS4, IS7, IS8).

When a broker is isolated is tried in ``tests/metadata/test_isolation.py``. Here the gate is shut and opened by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from app.coordinator.topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE, ensure_topic, partition_for
from app.core.errors import ErrorCode
from app.handlers.base.partitions import others_that_may_lead
from app.hot.log import PartitionLog
from app.replication.partition import Partition
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.heartbeat import HeartbeatRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from app.wire.apis.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest
from app.wire.apis.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from app.wire.fetch import FetchPartition as Wanted
from app.wire.fetch import FetchRequest, encode_fetch_request
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker
from tests.support.several import cluster_on
from tests.support.waiting import until

REPLICATED, SINGLE, OBJECT = "replicated", "single", "object"
PARTITIONS = 2
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
FETCH_VERSION = 12


class Two:
    """Two brokers; ``one`` is the one whose gate is shut."""

    def __init__(self, brokers: list[RunningBroker]) -> None:
        self.one, self.other = brokers
        self.node_id = int(self.one.node.config.node_id)

    async def shut(self, isolated: bool = True) -> None:
        member = self.one.node.membership.member
        assert member is not None
        await member.on_isolated(isolated)

    def led(self, topic: str, *, by: int | None = None) -> int:
        """A partition of a topic that a broker leads."""
        image = self.one.node.cluster.image.topics_by_name[topic]
        leader = self.node_id if by is None else by
        return next(int(one.partition_index) for one in image.partitions if one.leader == leader)

    def topic_id(self, topic: str) -> UUID:
        return self.one.node.cluster.image.topics_by_name[topic].topic_id

    def coordinated(self, internal: str = CONSUMER_OFFSETS.name, *, by: int | None = None) -> str:
        """A name that a broker coordinates."""
        image = self.one.node.cluster.image.topics_by_name[internal]
        led = self.led(internal, by=by)
        return next(
            name for name in map("name-{}".format, range(1000)) if partition_for(name, len(image.partitions)) == led
        )


@asynccontextmanager
async def two(path: Path) -> AsyncIterator[Two]:
    settings: dict[str, Any] = {
        "offsets_topic_num_partitions": PARTITIONS,
        "transaction_state_log_num_partitions": PARTITIONS,
        "share_coordinator_state_topic_num_partitions": PARTITIONS,
        "group_min_session_timeout_ms": 100,
        "group_initial_rebalance_delay_ms": 0,
        "auto_leader_rebalance_enable": False,
        "new_level": 3,
    }
    async with cluster_on(path, 2, **settings) as brokers:
        cluster = Two(brokers)
        node = cluster.one.node
        controller = node.membership.controller
        await controller.create_topic(REPLICATED, PARTITIONS, {"min.insync.replicas": "1"}, 2)
        await controller.create_topic(SINGLE, PARTITIONS, {}, 1)
        await controller.create_topic(OBJECT, PARTITIONS, {"firn.durability": "object", "firn.wal.linger.ms": "50"}, 1)
        for internal in (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE):
            await ensure_topic(node.cluster, node.context.controller, internal)

        def is_ready() -> bool:
            image = node.cluster.image
            topics = [REPLICATED, SINGLE, OBJECT, CONSUMER_OFFSETS.name, TRANSACTION_STATE.name, SHARE_GROUP_STATE.name]
            return all(
                {part.leader for part in image.topics_by_name[name].partitions} == set(image.brokers)
                and all(len(part.isr) == len(part.replicas) for part in image.topics_by_name[name].partitions)
                and node.partitions.table.led(name, cluster.led(name)) is not None
                for name in topics
            )

        await until(is_ready)
        yield cluster


async def produced(client: Talk, cluster: Two, topic: str, *, acks: int = 1) -> int:
    answer = await client.produce(9, [(topic, [(cluster.led(topic), batch())])], acks=acks)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


async def send_fetch(client: Talk, cluster: Two, topic: str, *, wait_ms: int = 0, offset: int = 0) -> None:
    client.correlation_id += 1
    partition = Wanted(cluster.led(topic), fetch_offset=offset)
    request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[(topic, [partition])])
    client.writer.write(encode_fetch_request(FETCH_VERSION, client.correlation_id, client.client_id, request))
    await client.writer.drain()


async def fetched(client: Talk) -> int:
    _, answer = await client.answer(ApiKey.FETCH, FETCH_VERSION)
    code: int = answer.responses[0].partitions[0].error_code
    return code


async def fetch(client: Talk, cluster: Two, topic: str, **how: int) -> int:
    await send_fetch(client, cluster, topic, **how)
    return await fetched(client)


async def listed(client: Talk, cluster: Two, topic: str) -> int:
    part = ListOffsetsPartition(partition_index=cluster.led(topic), timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[part])])
    code: int = (await client.ask(ApiKey.LIST_OFFSETS, 7, request)).topics[0].partitions[0].error_code
    return code


async def leaders(client: Talk, *topics: str) -> dict[str, list[int]]:
    asked = [MetadataRequestTopic(name=topic) for topic in topics]
    answer = await client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=asked))
    return {
        topic.name: [part.leader_id for part in sorted(topic.partitions, key=lambda part: part.partition_index)]
        for topic in answer.topics
    }


async def epochs(client: Talk, *topics: str) -> dict[str, list[int]]:
    """Leader epochs by topic and partition, as Metadata tells them."""
    asked = [MetadataRequestTopic(name=topic) for topic in topics]
    answer = await client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=asked))
    return {
        topic.name: [part.leader_epoch for part in sorted(topic.partitions, key=lambda part: part.partition_index)]
        for topic in answer.topics
    }


async def hinted(client: Talk, topic: str, partition: int) -> int:
    """The leader epoch beside the error of a Produce to a broker that does not lead (KIP-951); -1 if there is none."""
    answer = (await client.produce(10, [(topic, [(partition, batch())])], acks=1)).responses[0].partition_responses[0]
    assert answer.error_code == NOT_LEADER
    epoch: int = answer.current_leader.leader_epoch
    return epoch


async def brokers(client: Talk, *topics: str) -> list[int]:
    asked = [MetadataRequestTopic(name=topic) for topic in topics]
    answer = await client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=asked))
    return sorted(broker.node_id for broker in answer.brokers)


async def coordinator(client: Talk, name: str, kind: int = 0) -> tuple[int, int]:
    answer = await client.ask(
        ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
    )
    found = answer.coordinators[0]
    return found.error_code, found.node_id


async def offsets_of(client: Talk, group: str) -> int:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    code: int = (await client.ask(ApiKey.OFFSET_FETCH, 8, request)).groups[0].error_code
    return code


async def until_served(client: Talk, group: str) -> None:
    async with asyncio.timeout(60):
        while await offsets_of(client, group):
            await asyncio.sleep(0.02)


async def initialised(client: Talk, transactional_id: str) -> int:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    code: int = (await client.ask(ApiKey.INIT_PRODUCER_ID, 4, request)).error_code
    return code


def join_of(group: str, member_id: str = "", *, session_ms: int = 30_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=300_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"")],
    )


@pytest.mark.ci
async def test_an_isolated_broker_refuses_what_others_may_lead_and_goes_on_with_the_rest(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster, talk(cluster.one.port) as client:
        group, transactional_id = cluster.coordinated(), cluster.coordinated(TRANSACTION_STATE.name)
        elsewhere = int(cluster.other.node.config.node_id)
        await until_served(client, group)
        for topic in (REPLICATED, SINGLE, OBJECT):
            for _ in range(3):  # the last ones the short way
                assert await produced(client, cluster, topic) == 0
                assert await fetch(client, cluster, topic) == 0
        before = await leaders(client, REPLICATED, SINGLE, OBJECT)

        await cluster.shut()
        for topic in (REPLICATED, OBJECT):
            assert await produced(client, cluster, topic) == NOT_LEADER
            assert await produced(client, cluster, topic, acks=-1) == NOT_LEADER
            assert await fetch(client, cluster, topic) == NOT_LEADER
            assert await listed(client, cluster, topic) == NOT_LEADER
        assert await produced(client, cluster, SINGLE) == 0
        assert await fetch(client, cluster, SINGLE) == 0
        assert await listed(client, cluster, SINGLE) == 0
        shown = await leaders(client, REPLICATED, SINGLE, OBJECT)
        assert shown[SINGLE] == before[SINGLE]
        for topic in (REPLICATED, OBJECT):
            assert shown[topic] == [elsewhere] * PARTITIONS, "which may lead by now, or knows who does"
        assert await offsets_of(client, group) == ErrorCode.NOT_COORDINATOR
        assert await initialised(client, transactional_id) == ErrorCode.NOT_COORDINATOR
        assert await coordinator(client, group) == (0, elsewhere), "which may coordinate by now, or knows who does"
        assert await coordinator(client, transactional_id, 1) == (0, elsewhere)
        assert await coordinator(client, cluster.coordinated(by=elsewhere)) == (0, elsewhere)

        await cluster.shut(False)
        await until_served(client, group)
        for topic in (REPLICATED, SINGLE, OBJECT):
            assert await produced(client, cluster, topic) == 0
            assert await fetch(client, cluster, topic) == 0
        assert await leaders(client, REPLICATED, SINGLE, OBJECT) == before
        assert await coordinator(client, group) == (0, cluster.node_id)


@pytest.mark.ci
async def test_an_isolated_broker_lists_itself_as_others_do_that_have_not_fenced_it(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster, talk(cluster.one.port) as client, talk(cluster.other.port) as other_client:
        both = sorted([cluster.node_id, int(cluster.other.node.config.node_id)])
        await cluster.shut()
        for asked in ((), (REPLICATED, OBJECT), (REPLICATED, SINGLE)):
            assert await brokers(client, *asked) == await brokers(other_client, *asked) == both


@pytest.mark.ci
async def test_an_isolated_broker_tells_no_leader_epoch_that_may_be_old(tmp_path: Path) -> None:
    """Clients ignore a leader of an older epoch than they know, and would come back here until the broker is isolated no more."""
    async with two(tmp_path) as cluster, talk(cluster.one.port) as client:
        foreign = cluster.led(REPLICATED, by=int(cluster.other.node.config.node_id))
        before = await epochs(client, REPLICATED, SINGLE)
        assert -1 not in [*before[REPLICATED], *before[SINGLE]]
        assert await hinted(client, REPLICATED, foreign) >= 0

        await cluster.shut()
        shown = await epochs(client, REPLICATED, SINGLE)
        assert shown[REPLICATED] == [-1] * PARTITIONS
        assert shown[SINGLE][cluster.led(SINGLE)] == before[SINGLE][cluster.led(SINGLE)], "it serves this one still"
        assert await hinted(client, REPLICATED, foreign) == -1

        await cluster.shut(False)
        assert await epochs(client, REPLICATED, SINGLE) == before
        assert await hinted(client, REPLICATED, foreign) >= 0


@pytest.mark.parametrize(
    ("elsewhere", "in_sync", "named"),
    [
        ((2, 3), (1, 3), [3]),
        ((2, 3), (1,), [2, 3]),  # a broker that is not in sync knows who leads
        ((2,), (1, 3), [2]),  # broker 3 is cut off together with this one
        ((), (1, 3), []),
    ],
)
def test_an_isolated_broker_names_others_that_are_in_sync_if_any_are_elsewhere(
    elsewhere: tuple[int, ...], in_sync: tuple[int, ...], named: list[int]
) -> None:
    context: Any = SimpleNamespace(partitions=SimpleNamespace(elsewhere=elsewhere))
    partition: Any = SimpleNamespace(isr=in_sync)
    assert others_that_may_lead(context, partition) == named


@pytest.mark.ci
async def test_requests_that_wait_end_when_a_broker_is_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as cluster:
        port, group = cluster.one.port, cluster.coordinated()
        async with (
            talk(port) as reader,
            talk(port) as cold,
            talk(port) as writer,
            talk(port) as late,
            talk(port) as member,
        ):
            await until_served(member, group)
            assert await produced(writer, cluster, REPLICATED, acks=-1) == 0
            assert await produced(writer, cluster, OBJECT, acks=-1) == 0
            node = cluster.one.node
            ends = {
                topic: node.partitions.table.require(topic, cluster.led(topic)).log for topic in (REPLICATED, OBJECT)
            }
            await send_fetch(reader, cluster, REPLICATED, wait_ms=300_000, offset=ends[REPLICATED].log_end_offset)
            await send_fetch(cold, cluster, OBJECT, wait_ms=300_000, offset=ends[OBJECT].log_end_offset)
            # A member that does not come back keeps the next one waiting in its JoinGroup.
            first = await member.ask(ApiKey.JOIN_GROUP, 3, join_of(group))
            assert first.error_code == 0
            member.send(ApiKey.JOIN_GROUP, 3, join_of(group))
            # No follower tells any more what it has, and no journal.
            monkeypatch.setattr(Partition, "note_follower", lambda *_args, **_named: None)
            monkeypatch.setattr(PartitionLog, "note_journaled", lambda *_args: None)
            waiting = {}
            for topic, client in ((REPLICATED, writer), (OBJECT, late)):
                end = ends[topic].log_end_offset
                waiting[topic] = client.send_produce(9, [(topic, [(cluster.led(topic), batch())])], timeout_ms=300_000)
                await client.writer.drain()
                await until(lambda topic=topic, end=end: ends[topic].log_end_offset > end)

            await cluster.shut()
            assert await fetched(reader) == NOT_LEADER
            assert await fetched(cold) == NOT_LEADER
            _, joined = await member.answer(ApiKey.JOIN_GROUP, 3)
            assert joined.error_code == ErrorCode.NOT_COORDINATOR
            for client in (writer, late):
                _, answer = await client.answer(ApiKey.PRODUCE, 9)
                assert answer.responses[0].partition_responses[0].error_code == NOT_LEADER
            for topic, log in ends.items():  # nothing was resigned, and nothing that was appended is lost
                assert node.partitions.table.require(topic, cluster.led(topic)).log is log


@pytest.mark.ci
async def test_a_share_fetch_that_waits_ends_when_a_broker_is_isolated(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster, talk(cluster.one.port) as client:
        group, member_id = cluster.coordinated(), "AAAAAAAAAAAAAAAAAAAAAA"
        await until_served(client, group)
        beat = ShareGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=0, subscribed_topic_names=[REPLICATED]
        )
        assert (await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, beat)).error_code == 0
        partition = FetchPartition(partition_index=cluster.led(REPLICATED))
        request = ShareFetchRequest(
            group_id=group,
            member_id=member_id,
            share_session_epoch=0,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[FetchTopic(topic_id=cluster.topic_id(REPLICATED), partitions=[partition])],
        )
        leader = cluster.one.node.shares.leader
        async with asyncio.timeout(60):
            while not any(one.is_begun for one in leader.core.partitions.values()):
                await client.ask(ApiKey.SHARE_FETCH, 1, request)  # each begins a new session
        client.send(ApiKey.SHARE_FETCH, 1, replace(request, max_wait_ms=300_000))
        await client.writer.drain()
        log = cluster.one.node.partitions.table.require(REPLICATED, cluster.led(REPLICATED)).log
        await until(lambda: log._waiters)
        await cluster.shut()
        _, answer = await client.answer(ApiKey.SHARE_FETCH, 1)
        assert [part.error_code for topic in answer.responses for part in topic.partitions] == [NOT_LEADER]


@pytest.mark.ci
async def test_members_have_a_whole_session_timeout_when_a_broker_is_isolated_no_more(tmp_path: Path) -> None:
    session_s = 1.5
    async with two(tmp_path) as cluster, talk(cluster.one.port) as client:
        group = cluster.coordinated()
        await until_served(client, group)
        joined = await client.ask(ApiKey.JOIN_GROUP, 3, join_of(group, session_ms=int(session_s * 1000)))
        assert joined.error_code == 0
        member_id, generation = joined.member_id, joined.generation_id
        synced = await client.ask(
            ApiKey.SYNC_GROUP,
            3,
            SyncGroupRequest(
                group_id=group,
                generation_id=generation,
                member_id=member_id,
                assignments=[SyncGroupRequestAssignment(member_id, b"")],
            ),
        )
        assert synced.error_code == 0
        heartbeat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
        await cluster.shut()
        shut_s = asyncio.get_running_loop().time()
        # Until its session is over by the time of before.
        await until(lambda: asyncio.get_running_loop().time() > shut_s + session_s)
        assert (await client.ask(ApiKey.HEARTBEAT, 3, heartbeat)).error_code == ErrorCode.NOT_COORDINATOR
        await cluster.shut(False)
        await until_served(client, group)
        assert (await client.ask(ApiKey.HEARTBEAT, 3, heartbeat)).error_code == 0
