"""Coordinators of groups on three real brokers in one loop: they move with the partitions of ``__consumer_offsets`` (ADR 0025)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.coordinator.topics import CONSUMER_OFFSETS, partition_for
from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from tests.handlers.conversation import talk
from tests.interop.peers import make, request
from tests.support.broker import RunningBroker
from tests.support.several import member, unfenced
from tests.support.waiting import until

SETTINGS = {"offsets_topic_num_partitions": 6, "group_initial_rebalance_delay_ms": 0}
TRY_AGAIN = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
WAIT_S = 60
MEMBER = "AAAAAAAAAAAAAAAAAAAAAA"


class Cluster:
    """Some brokers, each of which may be stopped by itself."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self.path = path
        self._stack = stack
        self._stacks: dict[int, AsyncExitStack] = {}
        self.brokers: dict[int, RunningBroker] = {}

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            stack = self._stacks[node_id] = await self._stack.enter_async_context(AsyncExitStack())
            self.brokers[node_id] = await stack.enter_async_context(member(self.path, node_id, **SETTINGS))
        for broker in self.brokers.values():
            await until(lambda broker=broker: unfenced(broker) == sorted(self.brokers), WAIT_S)

    async def stop(self, node_id: int) -> None:
        del self.brokers[node_id]
        await self._stacks.pop(node_id).aclose()

    @property
    def any(self) -> RunningBroker:
        return next(iter(self.brokers.values()))

    async def create_topic(self, name: str, partitions: int) -> UUID:
        async with talk(self.any.port) as client:
            key = ApiKey.CREATE_TOPICS
            topic = make(key, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=-1)
            answer = await client.ask(key, 7, request(key, topics=[topic], timeout_ms=60_000))
        assert answer.topics[0].error_code == 0
        for broker in self.brokers.values():
            await until(lambda broker=broker: broker.node.cluster.image.topic(name) is not None, WAIT_S)
        topic_id: UUID = answer.topics[0].topic_id
        return topic_id

    async def find(self, group: str, at: RunningBroker) -> int:
        """The coordinator of a group, as a broker says."""
        key = ApiKey.FIND_COORDINATOR
        async with asyncio.timeout(WAIT_S), talk(at.port) as client:
            while True:
                answer = await client.ask(key, 3, request(key, key=group, key_type=0))
                if answer.error_code == 0:
                    found: int = answer.node_id
                    return found
                assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                await asyncio.sleep(0.02)

    async def ask(self, group: str, key: ApiKey, version: int, message: Any, code: Any = None) -> Any:
        """What the coordinator answers, which is looked for as clients do."""
        code = code or (lambda answer: answer.error_code)
        async with asyncio.timeout(WAIT_S):
            while True:
                node_id = await self.find(group, self.any)
                if node_id in self.brokers:
                    async with talk(self.brokers[node_id].port) as client:
                        answer = await client.ask(key, version, message)
                    if code(answer) not in TRY_AGAIN:
                        return answer
                await asyncio.sleep(0.02)

    async def commit(self, group: str, offset: int, **member: Any) -> int:
        key = ApiKey.OFFSET_COMMIT
        asked = make(key, "OffsetCommitRequestPartition", partition_index=0, committed_offset=offset)
        topics = [make(key, "OffsetCommitRequestTopic", name="t", partitions=[asked])]
        message = request(key, group_id=group, topics=topics, **member)
        answer = await self.ask(group, key, 9, message, lambda one: one.topics[0].partitions[0].error_code)
        code: int = answer.topics[0].partitions[0].error_code
        return code

    async def committed(self, group: str) -> int:
        key = ApiKey.OFFSET_FETCH
        message = request(key, groups=[make(key, "OffsetFetchRequestGroup", group_id=group, topics=None)])
        answer = await self.ask(group, key, 8, message, lambda one: one.groups[0].error_code)
        offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
        return offset

    def offsets_leader(self, group: str) -> int:
        topic = self.any.node.cluster.image.topics_by_name[CONSUMER_OFFSETS.name]
        return topic.partitions[partition_for(group, len(topic.partitions))].leader


def groups_of(cluster: Cluster, count: int = 6) -> list[str]:
    """A group of each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        found.setdefault(partition_for(f"g{number}", count), f"g{number}")
        number += 1
    return sorted(found.values())


@pytest.mark.ci
async def test_committed_offsets_and_lists_move_with_the_coordinator(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        await cluster.start(1, 2, 3)
        await cluster.create_topic("t", 1)
        groups = groups_of(cluster)
        for group in groups:
            found = {await cluster.find(group, broker) for broker in cluster.brokers.values()}
            assert found == {cluster.offsets_leader(group)}
        topic = cluster.any.node.cluster.image.topics_by_name[CONSUMER_OFFSETS.name]
        assert {len(one.replicas) for one in topic.partitions} == {3}
        assert {one.leader for one in topic.partitions} == {1, 2, 3}
        for number, group in enumerate(groups):
            assert await cluster.commit(group, number) == 0
        await everybody_answers_for_itself(cluster, groups)
        for stopped in (2, 1):
            await cluster.stop(stopped)
            assert [await cluster.committed(group) for group in groups] == list(range(len(groups)))
            for broker in cluster.brokers.values():
                assert await cluster.find(groups[0], broker) in cluster.brokers
        await cluster.start(1)
        for number, group in enumerate(groups):
            assert await cluster.commit(group, number + 100) == 0
        await cluster.start(2)
        await until(lambda: all(len(one.isr) == 3 for one in partitions_of(cluster)), WAIT_S)
        await cluster.stop(3)
        assert [await cluster.committed(group) for group in groups] == [100 + each for each in range(len(groups))]


def partitions_of(cluster: Cluster) -> Sequence[Any]:
    return cluster.any.node.cluster.image.topics_by_name[CONSUMER_OFFSETS.name].partitions


async def everybody_answers_for_itself(cluster: Cluster, groups: Sequence[str]) -> None:
    """Each broker lists its groups, describes and deletes them, and refuses those of others."""
    listed: list[str] = []
    for node_id, broker in cluster.brokers.items():
        async with talk(broker.port) as client:
            found = await client.ask(ApiKey.LIST_GROUPS, 5, request(ApiKey.LIST_GROUPS))
            assert found.error_code == 0
            mine = sorted(group.group_id for group in found.groups)
            assert mine == sorted(group for group in groups if cluster.offsets_leader(group) == node_id)
            listed += mine
            other = next(group for group in groups if group not in mine)
            key = ApiKey.DESCRIBE_GROUPS
            described = await client.ask(key, 5, request(key, groups=[mine[0], other]))
            assert [one.error_code for one in described.groups] == [0, ErrorCode.NOT_COORDINATOR]
            key = ApiKey.CONSUMER_GROUP_DESCRIBE
            described = await client.ask(key, 0, request(key, group_ids=[other]))
            assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
            key = ApiKey.SHARE_GROUP_DESCRIBE
            described = await client.ask(key, 1, request(key, group_ids=[other]))
            assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
            key = ApiKey.DELETE_GROUPS
            deleted = await client.ask(key, 2, request(key, groups_names=[other]))
            assert deleted.results[0].error_code == ErrorCode.NOT_COORDINATOR
            key = ApiKey.OFFSET_DELETE
            part = make(key, "OffsetDeleteRequestPartition", partition_index=0)
            topics = [make(key, "OffsetDeleteRequestTopic", name="t", partitions=[part])]
            gone = await client.ask(key, 0, request(key, group_id=other, topics=topics))
            assert gone.error_code == ErrorCode.NOT_COORDINATOR
            key = ApiKey.HEARTBEAT
            beat = await client.ask(key, 2, request(key, group_id=other, member_id="m", generation_id=1))
            assert beat.error_code == ErrorCode.NOT_COORDINATOR
    assert sorted(listed) == sorted(groups)


@pytest.mark.ci
async def test_members_of_every_protocol_go_on_with_their_epochs_at_the_new_coordinator(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        await cluster.start(1, 2, 3)
        topic_id = await cluster.create_topic("t", 2)
        await cluster.find("classic", cluster.any)
        # The classic protocol.
        key = ApiKey.JOIN_GROUP
        protocols = [make(key, "JoinGroupRequestProtocol", name="range", metadata=b"")]
        joined = await cluster.ask(
            "classic",
            key,
            2,
            request(
                key,
                group_id="classic",
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id="",
                protocol_type="consumer",
                protocols=protocols,
            ),
        )
        assert joined.error_code == 0
        key = ApiKey.SYNC_GROUP
        mine = make(key, "SyncGroupRequestAssignment", member_id=joined.member_id, assignment=b"mine")
        of_member = {"member_id": joined.member_id, "generation_id": joined.generation_id}
        synced = await cluster.ask("classic", key, 2, request(key, group_id="classic", assignments=[mine], **of_member))
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        # The consumer protocol, with a static member.
        key = ApiKey.CONSUMER_GROUP_HEARTBEAT
        beat = {"group_id": "consumer", "member_id": MEMBER, "instance_id": "static"}
        first = await cluster.ask(
            "consumer",
            key,
            1,
            request(
                key,
                **beat,
                member_epoch=0,
                rebalance_timeout_ms=30_000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            ),
        )
        assert first.error_code == 0
        assert first.member_epoch > 0
        assert {part.topic_id for part in first.assignment.topic_partitions} == {topic_id}
        # Share groups.
        share = ApiKey.SHARE_GROUP_HEARTBEAT
        shared = await cluster.ask(
            "share",
            share,
            1,
            request(share, group_id="share", member_id=MEMBER, member_epoch=0, subscribed_topic_names=["t"]),
        )
        assert shared.error_code == 0
        assert shared.member_epoch > 0

        for _ in range(2):
            left = {cluster.offsets_leader(group) for group in ("classic", "consumer", "share")}
            await cluster.stop(next(iter(left)))
            owned = [
                make(key, "TopicPartitions", topic_id=part.topic_id, partitions=part.partitions)
                for part in first.assignment.topic_partitions
            ]
            again = await cluster.ask(
                "consumer", key, 1, request(key, **beat, member_epoch=first.member_epoch, topic_partitions=owned)
            )
            assert (again.error_code, again.member_epoch, again.assignment) == (0, first.member_epoch, None)
            message = request(ApiKey.HEARTBEAT, group_id="classic", **of_member)
            answer = await cluster.ask("classic", ApiKey.HEARTBEAT, 2, message)
            assert answer.error_code == 0
            answer = await cluster.ask(
                "share",
                share,
                1,
                request(
                    share,
                    group_id="share",
                    member_id=MEMBER,
                    member_epoch=shared.member_epoch,
                    subscribed_topic_names=None,
                ),
            )
            assert (answer.error_code, answer.member_epoch) == (0, shared.member_epoch)
            member = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
            assert await cluster.commit("classic", 7, **member) == 0
            member["generation_id_or_member_epoch"] -= 1
            assert await cluster.commit("classic", 8, **member) == ErrorCode.ILLEGAL_GENERATION
            epoch = {"member_id": MEMBER, "generation_id_or_member_epoch": first.member_epoch - 1}
            assert await cluster.commit("consumer", 9, **epoch) == ErrorCode.STALE_MEMBER_EPOCH
        assert await cluster.committed("classic") == 7


@pytest.mark.ci
async def test_internal_topics_get_more_replicas_as_brokers_join(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        await cluster.start(1)
        await cluster.create_topic("t", 1)
        groups = groups_of(cluster)
        for number, group in enumerate(groups):
            assert await cluster.commit(group, number) == 0
        assert {one.replicas for one in partitions_of(cluster)} == {(1,)}
        await cluster.start(2, 3)
        await until(lambda: all(len(one.isr) == 3 for one in partitions_of(cluster)), WAIT_S)
        assert {one.replicas[0] for one in partitions_of(cluster)} == {1, 2, 3}
        assert not any(one.adding or one.removing for one in partitions_of(cluster))
        assert [await cluster.committed(group) for group in groups] == list(range(len(groups)))
