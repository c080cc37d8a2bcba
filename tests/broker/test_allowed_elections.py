"""A setting that allows unclean elections acts at once: partitions without a leader get one (ADR 0024, E3)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.core.units import BrokerId
from app.metadata.changes.topic_changes import ConfigChange
from app.wire.config_resources import ConfigOperation
from tests.handlers.conversation import batch, talk
from tests.support.changing import alter_configs
from tests.support.several import member, unfenced
from tests.support.talking import produce
from tests.support.waiting import until

TOPIC, BROKER = 2, 4
"""Resource types of AlterConfigs."""
ALLOWS = [ConfigChange("unclean.leader.election.enable", ConfigOperation.SET, "true")]


async def lose_the_leader(path: Path) -> None:
    """Broker 1 lacks records of ``t`` that broker 2 has, and broker 2 is gone."""
    settings = {"replica_lag_time_max_ms": 500}
    async with member(path, 2, **settings) as leader:
        async with member(path, 1, **settings) as behind:
            await until(lambda: unfenced(behind) == unfenced(leader) == [1, 2])
            await leader.node.membership.controller.create_topic(
                "t", configs={"min.insync.replicas": "1"}, assignments={0: (BrokerId(2), BrokerId(1))}
            )
            await until(lambda: behind.node.partitions.table.get("t", 0) is not None)
        partition = lambda: leader.node.cluster.image.topics_by_name["t"].partitions[0]  # noqa: E731
        await until(lambda: tuple(partition().isr) == (2,))
        async with talk(leader.port) as client:
            await produce(client, "t", batch(10))


@pytest.mark.parametrize("of", ["the topic", "all brokers"])
async def test_a_partition_without_a_leader_gets_one_when_a_setting_allows_it(tmp_path: Path, of: str) -> None:
    await lose_the_leader(tmp_path)
    resource = (TOPIC, "t") if of == "the topic" else (BROKER, "")
    async with AsyncExitStack() as stack:
        left = await stack.enter_async_context(member(tmp_path, 1))
        partition = lambda: left.node.cluster.image.topics_by_name["t"].partitions[0]  # noqa: E731
        await until(lambda: unfenced(left) == [1] and left.node.membership.controller.active)
        assert partition().leader == -1
        desk = left.node.membership.member.desk
        assert desk.unclean_elections == 0
        await alter_configs(left.node.membership.controller, *resource, ALLOWS)
        await until(lambda: partition().leader == 1)
        await until(lambda: desk.unclean_elections == 1)
        assert [line for line in left.lines if line.startswith("unclean election of t-0")]
