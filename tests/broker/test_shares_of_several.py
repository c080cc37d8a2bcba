"""Share groups on three brokers: one leads the topic's partition, one coordinates the group, one keeps its progress (ADR 0027)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId
from app.groups.share import share_leader
from app.groups.share.core.share_window import Acknowledgement
from app.groups.share.share_leader import ShareLeader
from app.metadata.changes.reassignments import ReassignmentAsked
from app.metadata.changes.topic_changes import ConfigChange
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from app.wire.apis.delete_groups import DeleteGroupsRequest
from app.wire.apis.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.broker.shared import ACCEPT, GROUP, OFFSETS, RELEASE, STATE, Cluster, workers
from tests.support.changing import alter_configs
from tests.support.several import member, unfenced
from tests.support.waiting import until

SETTINGS = {
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 3,
    "share_coordinator_state_topic_num_partitions": 1,
    "share_coordinator_state_topic_replication_factor": 3,
    "group_share_min_record_lock_duration_ms": 1000,
    "auto_leader_rebalance_enable": False,
}


@asynccontextmanager
async def cluster(path: Path, **settings: Any) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(path, each, **SETTINGS | settings)) for each in (1, 2, 3)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        made = Cluster(brokers)
        await stack.enter_async_context(made._stack)
        controller = brokers[0].node.membership.controller
        await controller.create_topic("t", 1, {"retention.ms": "-1"}, replication_factor=3)
        change = ConfigChange("share.auto.offset.reset", ConfigOperation.SET, "earliest")
        await alter_configs(controller, ConfigResourceType.GROUP, GROUP, [change])
        for broker in brokers:
            await until(lambda broker=broker: broker.node.cluster.image.topic("t") is not None)
        await brokers[0].node.shares.ready()
        await _find_group(made)
        for topic in (STATE, OFFSETS):
            for broker in brokers:
                await until(lambda broker=broker, topic=topic: broker.node.cluster.image.topic(topic) is not None)
        await made.spread()
        yield made


async def _find_group(made: Cluster) -> None:
    """Have the topic of the group's coordinator made."""
    client = await made.to(1)
    async with asyncio.timeout(60):
        while (await client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=GROUP))).error_code:
            await asyncio.sleep(0.02)


def kept_by(made: Cluster, node_id: int) -> Any:
    """The state, as the share coordinator has it."""
    return made.brokers[node_id - 1].node.shares.state(made.key)


@pytest.mark.ci
async def test_records_are_shared_where_three_brokers_have_a_part_each(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made, workers(made, "a", "b") as (a, b):
        await made.produce(10)
        assert await a.wait_for(max_records=4, share_acquire_mode=1) == [(0, 3, 1)]
        assert await b.wait_for() == [(4, 9, 1)]
        assert await a.say(0, 2, ACCEPT) is ErrorCode.NONE
        assert kept_by(made, 2).start == 3, "it is stored when it is answered"
        assert await b.say(4, 5, RELEASE, ACCEPT) is ErrorCode.NONE
        assert await b.say(3, 3, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
        assert await a.get() == [(4, 4, 2)]
        await made.until_start_is(3, lag=10 - 3 - 1)
        await a.close()
        assert await b.wait_for() == [(3, 3, 2), (4, 4, 3)]
        assert not made.brokers[0].node.shares.keys(lambda _: True)
        assert not made.brokers[2].node.shares.keys(lambda _: True)


@pytest.mark.ci
async def test_what_is_held_too_long_goes_to_another(tmp_path: Path) -> None:
    async with cluster(tmp_path, group_share_record_lock_duration_ms=1000) as made, workers(made, "a", "b") as (a, b):
        await made.produce(2)
        assert await a.wait_for() == [(0, 1, 1)]
        await made.configure(share_record_lock_duration_ms="60000")  # the second has time enough
        assert await b.wait_for() == [(0, 1, 2)]
        assert await a.say(0, 1, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
        assert await b.say(0, 1, ACCEPT) is ErrorCode.NONE


@pytest.mark.ci
async def test_progress_is_kept_when_the_leader_of_the_topic_moves_and_what_was_acquired_is_free(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made, workers(made, "a", "b") as (a, b):
        await made.produce(6)
        assert await a.wait_for(max_records=4, share_acquire_mode=1) == [(0, 3, 1)]
        assert await a.say(1, 1, ACCEPT) is ErrorCode.NONE
        await made.move("t", 3)
        assert await b.wait_for() == [(0, 0, 2), (2, 3, 2), (4, 5, 1)]
        assert await a.say(0, 0, ACCEPT, node_id=1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert a.named_leader == (3, made.brokers[2].port), "and is told who leads (KIP-951)"
        assert await b.say(0, 5, ACCEPT, 0, ACCEPT, ACCEPT, ACCEPT, ACCEPT) in (
            ErrorCode.NONE,
            ErrorCode.INVALID_RECORD_STATE,
        )
        await made.move("t", 1)
        a.epochs.clear()
        assert all(first != 1 for first, _, _ in await a.get()), "done is done"


@pytest.mark.ci
async def test_acknowledgements_and_last_requests_of_sessions_end_when_a_broker_is_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async with cluster(tmp_path) as made, workers(made, "a", "b") as (a, b):
        await made.produce(4)
        assert await a.wait_for(max_records=2, share_acquire_mode=1) == [(0, 1, 1)]
        assert await b.wait_for() == [(2, 3, 1)]
        node = made.brokers[0].node
        monkeypatch.setattr(share_leader, "STORED_WITHIN_S", 10_000.0)
        monkeypatch.setattr(ShareLeader, "send_to", never)  # the share coordinator does not answer any more
        said = asyncio.create_task(a.say(0, 1, ACCEPT))
        await until(lambda: any(one.waiting for one in node.shares.leader._outgoing.values()))
        member_of_cluster = node.membership.member
        assert member_of_cluster is not None
        await member_of_cluster.on_isolated(True)
        assert await said is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await b.say(2, 3, ACCEPT) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await b.close()
        await a.close()


@pytest.mark.ci
async def test_what_an_old_leader_writes_does_not_count(tmp_path: Path) -> None:
    """It was paused, and does not know of the new one (H1)."""
    async with cluster(tmp_path) as made, workers(made, "a", "b") as (a, b):
        await made.produce(2)
        assert await a.wait_for() == [(0, 1, 1)]
        old = made.brokers[0].node.shares.leader
        shared = old.find(made.key)
        assert shared is not None
        await made.move("t", 3)
        assert await b.wait_for() == [(0, 1, 1)], "nothing of the first delivery was stored"
        before = kept_by(made, 2)
        # As if the old leader had not heard of it.
        old.core.partitions[made.key] = shared
        shared.is_over = False
        old.core.acknowledge(old, made.key, "a", _accepted(0, 2))
        waiting = old.stored(made.key)
        assert waiting is not None
        with pytest.raises(RequestRejected) as refused:
            await waiting
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert kept_by(made, 2) == before
        assert old.find(made.key) is None


def _accepted(first: int, end: int) -> Any:
    return [Acknowledgement(first, end, [ACCEPT])]


@pytest.mark.ci
async def test_progress_is_kept_when_the_share_coordinator_moves(tmp_path: Path) -> None:
    """To a broker that is neither leader nor group coordinator, to the leader, and away from it (H6)."""
    async with cluster(tmp_path) as made, workers(made, "a") as (a,):
        offset = 0
        for node_id in (3, 1, 2):
            await made.produce(4)
            assert await a.wait_for() == [(offset, offset + 3, 1)]
            await made.move(STATE, node_id)
            assert await a.say(offset, offset + 2, ACCEPT) is ErrorCode.NONE
            assert kept_by(made, node_id).start == offset + 3
            assert await a.say(offset + 3, offset + 3, ACCEPT) is ErrorCode.NONE
            assert kept_by(made, node_id).start == offset + 4
            offset += 4
        await made.until_start_is(12, lag=0)


@pytest.mark.ci
async def test_members_and_progress_are_kept_when_the_group_coordinator_moves(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made, workers(made, "a") as (a,):
        await made.produce(4)
        assert await a.wait_for() == [(0, 3, 1)]
        await made.move(OFFSETS, 1)
        answer = await a.beat()
        assert answer.assignment.topic_partitions[0].partitions == [0]
        assert await a.say(0, 3, ACCEPT) is ErrorCode.NONE
        await made.until_start_is(4, lag=0)


@pytest.mark.ci
async def test_operators_set_and_delete_progress_that_another_broker_keeps(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made, workers(made, "a") as (a,):
        await made.produce(6)
        assert await a.wait_for() == [(0, 5, 1)]
        assert await a.say(0, 5, ACCEPT) is ErrorCode.NONE
        await a.close()
        await a.beat(-1)
        epoch = kept_by(made, 2).state_epoch
        topic = AlterShareGroupOffsetsRequestTopic("t", [AlterShareGroupOffsetsRequestPartition(0, 2)])
        answer = await made.asked(
            OFFSETS,
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            0,
            AlterShareGroupOffsetsRequest(GROUP, [topic]),
            lambda answer: answer.error_code,
        )
        assert answer.responses[0].partitions[0].error_code == 0
        assert kept_by(made, 2).state_epoch > epoch
        assert (await made.start_of())[0] == 2
        await a.beat()
        assert await a.wait_for() == [(2, 5, 1)]
        await a.close()
        await a.beat(-1)
        answer = await made.asked(
            OFFSETS,
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
            0,
            DeleteShareGroupOffsetsRequest(GROUP, [DeleteShareGroupOffsetsRequestTopic("t")]),
            lambda answer: answer.error_code,
        )
        assert answer.responses[0].error_code == 0
        assert kept_by(made, 2) is None
        await a.beat()
        assert kept_by(made, 2).start == -1
        assert await a.wait_for() == [(0, 5, 1)]
        await a.close()
        await a.beat(-1)
        answer = await made.asked(
            OFFSETS, ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([GROUP]), lambda answer: answer.results[0].error_code
        )
        assert answer.results[0].error_code == 0
        assert kept_by(made, 2) is None


async def test_the_lag_is_told_by_a_coordinator_that_has_no_replica_of_the_partition(tmp_path: Path) -> None:
    """As Kafka's, it asks the leader."""
    async with cluster(tmp_path) as made, workers(made, "a") as (worker,):
        controller = made.brokers[0].node.membership.controller
        await controller.alter_reassignments([ReassignmentAsked("t", 0, (BrokerId(1),))])
        for broker in made.brokers:
            image = broker.node.cluster
            await until(lambda image=image: image.image.topics_by_name["t"].partitions[0].replicas == (1,))
        assert made.brokers[2].node.context.partitions.get("t", 0) is None
        await made.produce(10)
        assert await worker.wait_for(max_records=4)
        assert await worker.say(0, 3, ACCEPT) == ErrorCode.NONE
        await made.until_start_is(4, lag=6)
