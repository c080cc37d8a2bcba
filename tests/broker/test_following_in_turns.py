"""An image that changes many partitions is followed in turns of the loop, and what did not change is left alone (ADR 0024)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app.broker.partitions.partitions import Partitions
from app.broker.peers.control_link import KafkaControlLink
from app.metadata.changes.topic_changes import ConfigChange
from app.replication.roles import Role
from app.wire.config_resources import ConfigOperation
from tests.handlers.conversation import batch, talk
from tests.support.changing import alter_configs, delete_topic
from tests.support.several import member, unfenced
from tests.support.waiting import until

AT_ONCE = 2
PARTITIONS = 12
TOPIC = 2
"""A resource type of AlterConfigs."""


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Broker, turn of the loop and partition of each partition of ``t`` that is brought in line with an image.

    A partition that a request needs before its turn belongs to the turn of the request, and is not listed.
    """
    found: list[tuple[int, int, int]] = []
    turn = 0
    by_request = False
    bring_one, make_missing_now = Partitions.bring_one, Partitions.make_missing_now

    def next_turn() -> None:
        nonlocal turn
        turn += 1

    def spy(self: Partitions, topic: Any, image: Any, *args: Any, **more: Any) -> Any:
        if topic.name == "t" and not by_request:
            found.append((self._broker_id, turn, image.partition_index))
            asyncio.get_running_loop().call_soon(next_turn)
        return bring_one(self, topic, image, *args, **more)

    def make_now(self: Partitions, name: str, index: int) -> None:
        nonlocal by_request
        by_request = True
        try:
            make_missing_now(self, name, index)
        finally:
            by_request = False

    monkeypatch.setattr(Partitions, "bring_one", spy)
    monkeypatch.setattr(Partitions, "make_missing_now", make_now)
    monkeypatch.setattr("app.broker.partitions.partitions.BROUGHT_AT_ONCE", AT_ONCE)
    return found


def turns_of(brought: list[tuple[int, int, int]]) -> list[int]:
    """How many partitions each broker has brought in line in each turn."""
    counts: dict[tuple[int, int], int] = {}
    for broker_id, turn, _ in brought:
        counts[broker_id, turn] = counts.get((broker_id, turn), 0) + 1
    return list(counts.values())


@pytest.mark.ci
async def test_a_failover_of_many_partitions_lets_others_have_the_loop(
    tmp_path: Path, brought: list[tuple[int, int, int]]
) -> None:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 3)]
        async with member(tmp_path, 2) as leaving:
            for broker in (*brokers, leaving):
                await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
            await brokers[0].node.membership.controller.create_topic(
                "t", PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3
            )
            for broker in (*brokers, leaving):
                table = broker.node.partitions.table
                await until(lambda table=table: all(table.get("t", index) for index in range(PARTITIONS)))
            led = [one.index for one in leaving.node.partitions.table.all_led() if one.topic == "t"]
            assert len(led) > AT_ONCE
            brought.clear()
        resigned = [line for line in leaving.lines if "that this broker has led" in line]
        assert len(resigned) == 1, "thousands of partitions are not thousands of lines"
        assert f"others lead {len(led)} partitions" in resigned[0]
        tables = {broker.node.config.node_id: broker.node.partitions.table for broker in brokers}
        await until(lambda: all(any(table.led("t", one) for table in tables.values()) for one in range(PARTITIONS)))
        assert brought
        assert max(turns_of(brought)) <= AT_ONCE
        for node_id, broker in zip((1, 3), brokers, strict=True):
            mine = [one for one in range(PARTITIONS) if tables[node_id].led("t", one) is not None]
            async with talk(broker.port) as client:
                answer = await client.produce(9, [("t", [(index, batch(3)) for index in mine])])
                codes = [one.error_code for one in answer.responses[0].partition_responses]
            assert codes == [0] * len(mine), "followers fetch what was followed in later turns, too"


def _are_asked_for(views: Any, followed: list[Any]) -> bool:
    """Whether the leader of each partition is asked what is tiered of it."""
    return all(one.key in views._askers[one.leader]._views for one in followed if one.leader in views._askers) and all(
        one.leader in views._askers for one in followed
    )


async def test_partitions_that_did_not_change_are_not_touched(
    tmp_path: Path, brought: list[tuple[int, int, int]]
) -> None:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2])
        controller = brokers[0].node.membership.controller
        await controller.create_topic("t", PARTITIONS, {}, replication_factor=2)
        tables = [broker.node.partitions.table for broker in brokers]
        images = lambda: brokers[1].node.cluster.image.topics_by_name["t"].partitions  # noqa: E731

        def settled() -> bool:
            return all(
                (found := table.get("t", one.partition_index)) is not None and found.followed is one
                for table, broker in zip(tables, brokers, strict=True)
                for one in broker.node.cluster.image.topics_by_name["t"].partitions
            )

        await until(lambda: brokers[1].node.cluster.image.topic("t") is not None and settled())
        for table, broker in zip(tables, brokers, strict=True):
            followed = [one for one in table if one.role is Role.FOLLOWER and one.topic == "t"]
            assert len(followed) > AT_ONCE
            views = broker.node.tier_views
            await until(lambda views=views, followed=followed: _are_asked_for(views, followed))
        brought.clear()
        epoch = images()[5].leader_epoch
        await brokers[images()[5].leader - 1].node.membership.controller.bump_leader_epochs(
            [tables[0].get("t", 5).key]  # type: ignore[union-attr]
        )
        await until(lambda: images()[5].leader_epoch > epoch and settled())
        assert {index for _, _, index in brought} == {5}
        # Settings concern all of them.
        await alter_configs(controller, TOPIC, "t", [ConfigChange("segment.bytes", ConfigOperation.SET, "20000000")])
        await until(
            lambda: all(
                broker.log("t", one).config.segment_bytes == 20_000_000 for broker in brokers for one in range(12)
            )
        )


@pytest.mark.ci
async def test_a_follower_of_more_partitions_than_a_fetch_may_name_adds_them_one_fetch_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[int] = []
    fetch = KafkaControlLink.fetch

    async def watched(self: KafkaControlLink, to: Any, request: Any) -> Any:
        named.append(sum(len(partitions) for _, partitions in (*request.topics, *request.forgotten)))
        return await fetch(self, to, request)

    monkeypatch.setattr(KafkaControlLink, "fetch", watched)
    monkeypatch.setattr("app.broker.replication.followers.NAMED_MAX", AT_ONCE)
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2])
        controller = brokers[0].node.membership.controller
        await controller.create_topic("t", PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=2)
        for broker in brokers:
            table = broker.node.partitions.table
            await until(lambda table=table: all(table.get("t", index) for index in range(PARTITIONS)))
            mine = [one.index for one in table.all_led() if one.topic == "t"]
            assert len(mine) > AT_ONCE
            async with talk(broker.port) as client:
                answer = await client.produce(9, [("t", [(index, batch(3)) for index in mine])])
                assert [one.error_code for one in answer.responses[0].partition_responses] == [0] * len(mine)
        await delete_topic(controller, "t")
        for broker in brokers:
            table = broker.node.partitions.table
            await until(lambda table=table: not any(table.get("t", index) for index in range(PARTITIONS)))
    assert max(named) <= 2 * AT_ONCE
    assert AT_ONCE in named


async def test_a_lower_min_insync_replicas_counts_at_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2)]
        async with member(tmp_path, 3) as leaving:
            for broker in (*brokers, leaving):
                await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
            await brokers[0].node.membership.controller.create_topic(
                "t", 1, {"min.insync.replicas": "3"}, replication_factor=3
            )
        image = lambda: brokers[0].node.cluster.image.topics_by_name["t"].partitions[0]  # noqa: E731
        await until(lambda: len(image().isr) == 2 and image().leader in (1, 2))
        leader = brokers[image().leader - 1]
        await until(lambda: leader.node.partitions.table.led("t", 0) is not None)
        async with talk(leader.port) as client:
            answer = await client.produce(9, [("t", [(0, batch(3))])], acks=1)
            assert answer.responses[0].partition_responses[0].error_code == 0
        log = leader.log("t", 0)
        assert log.high_watermark == 0, "too few are in sync"
        await alter_configs(
            brokers[0].node.membership.controller,
            TOPIC,
            "t",
            [ConfigChange("min.insync.replicas", ConfigOperation.SET, "2")],
        )
        await until(lambda: log.high_watermark == 3)
