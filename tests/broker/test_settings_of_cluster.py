"""Changes of settings on three brokers that depend on what the leaders have: each leader is asked for its own partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.broker.peers.control_link import KafkaControlLink
from app.core.errors import BrokerUnavailable, ErrorCode
from app.core.units import BrokerId
from app.metadata.image.image import BrokerImage
from app.metadata.peers.control import HoldRequest, HoldResponse
from app.wire.apikeys import ApiKey
from app.wire.apis import alter_configs as full
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker
from tests.support.changing import delete_topic
from tests.support.several import cluster_on
from tests.support.waiting import until

PARTITIONS = 6


async def make_topic(brokers: list[RunningBroker]) -> None:
    """``t``, of which each broker leads partitions."""
    await brokers[0].create_topic("t", PARTITIONS, segment_bytes="1048576")
    await until(lambda: all(topic_of(broker) is not None for broker in brokers))
    assert {one.leader for one in topic_of(brokers[0]).partitions} == {1, 2, 3}
    await until(lambda: sum(len(led(broker)) for broker in brokers) == PARTITIONS)


def topic_of(broker: RunningBroker) -> Any:
    return broker.node.cluster.image.topic("t")


def led(broker: RunningBroker) -> list[Any]:
    return [one for one in broker.node.partitions.table.all_led() if one.topic == "t"]


async def set_policy(broker: RunningBroker, text: str) -> tuple[ErrorCode, str]:
    """What this broker answers to a change of ``cleanup.policy``."""
    config = AlterableConfig("cleanup.policy", int(ConfigOperation.SET), text)
    message = IncrementalAlterConfigsRequest(
        [AlterConfigsResource(int(ConfigResourceType.TOPIC), "t", [config])], False
    )
    async with talk(broker.port) as client:
        (answer,) = (await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message)).responses
    return ErrorCode(answer.error_code), answer.error_message or ""


async def set_everything(broker: RunningBroker, text: str) -> tuple[ErrorCode, str]:
    """The same by AlterConfigs."""
    resource = full.AlterConfigsResource(
        int(ConfigResourceType.TOPIC), "t", [full.AlterableConfig("cleanup.policy", text)]
    )
    async with talk(broker.port) as client:
        (answer,) = (await client.ask(ApiKey.ALTER_CONFIGS, 2, full.AlterConfigsRequest([resource], False))).responses
    return ErrorCode(answer.error_code), answer.error_message or ""


async def none_is_held(brokers: list[RunningBroker]) -> None:
    await until(lambda: not any(broker.node.remote_log_manager.held_topics for broker in brokers))


async def fill(broker: RunningBroker, index: int) -> None:
    """Write so much to a partition that a segment rolls."""
    async with talk(broker.port) as client:
        for _ in range(24):
            answer = await client.produce(9, [("t", [(index, batch(value=bytes(60_000)))])])
            assert not answer.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("change", [set_policy, set_everything])
async def test_a_topic_becomes_compacted_and_back_by_any_of_three_brokers(tmp_path: Path, change: Any) -> None:
    async with cluster_on(tmp_path) as brokers:
        await make_topic(brokers)
        for broker in brokers:
            assert await change(broker, "compact") == (ErrorCode.NONE, "")
            assert topic_of(broker).configs["cleanup.policy"] == "compact"
            assert await change(broker, "delete") == (ErrorCode.NONE, "")
        await none_is_held(brokers)


async def test_segments_that_any_leader_has_in_the_store_refuse_the_change_and_go_on_being_copied(
    tmp_path: Path,
) -> None:
    async with cluster_on(tmp_path) as brokers:
        await make_topic(brokers)
        for broker in brokers:
            (index, *_) = [one.index for one in led(broker)]
            tier = broker.node.remote_log_manager
            await fill(broker, index)
            await until(lambda tier=tier: sum(one.remote_segments for one in tier.status()))
            code, sentence = await set_policy(brokers[0], "compact")
            assert code is ErrorCode.INVALID_CONFIG
            assert "of them" in sentence
            await none_is_held(brokers)
            before = sum(one.remote_segments for one in tier.status())
            await fill(broker, index)
            await until(lambda tier=tier, before=before: sum(one.remote_segments for one in tier.status()) > before)
            await delete_topic(brokers[0].node.membership.controller, "t")
            await until(lambda: all(topic_of(one) is None for one in brokers))
            await make_topic(brokers)


class Lossy(KafkaControlLink):
    """Loses requests for holds: those that begin one, or those that end one."""

    def __init__(self) -> None:
        super().__init__()
        self.loses_begins = self.loses_ends = False
        self.lost = 0

    async def hold_copies(self, to: BrokerImage, asked: HoldRequest) -> HoldResponse:
        if self.loses_begins if asked.partitions else self.loses_ends:
            self.lost += 1
            raise BrokerUnavailable("The connection was closed.")
        return await super().hold_copies(to, asked)


async def test_a_leader_that_does_not_answer_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    """As one of an earlier version does not, which closes the connection."""
    links: list[Lossy] = []

    def new_link() -> Lossy:
        links.append(Lossy())
        return links[-1]

    async with cluster_on(tmp_path, new_link=new_link) as brokers:
        await make_topic(brokers)
        for link in links:
            link.loses_begins = True
        code, sentence = await set_policy(brokers[1], "compact")
        assert code is ErrorCode.REQUEST_TIMED_OUT
        assert "earlier version" in sentence
        assert "cleanup.policy" not in topic_of(brokers[0]).configs
        await none_is_held(brokers)


async def test_a_leader_that_does_not_hear_of_the_end_copies_again_once_it_hears(tmp_path: Path) -> None:
    links: list[Lossy] = []

    def new_link() -> Lossy:
        links.append(Lossy())
        return links[-1]

    async with cluster_on(tmp_path, new_link=new_link) as brokers:
        await make_topic(brokers)
        for link in links:
            link.loses_ends = True
        assert await set_policy(brokers[0], "compact") == (ErrorCode.NONE, "")
        await until(lambda: sum(link.lost for link in links) >= 4)
        assert sum(bool(broker.node.remote_log_manager.held_topics) for broker in brokers) == 2
        for link in links:
            link.loses_ends = False
        await none_is_held(brokers)


async def test_a_partition_without_a_leader_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, broker_session_timeout_ms=1_000) as brokers:
        await make_topic(brokers)
        await brokers[2].kill()
        lost = BrokerId(3)
        await until(lambda: all(one.leader != lost for one in topic_of(brokers[0]).partitions))
        code, sentence = await set_policy(brokers[1], "compact")
        assert code is ErrorCode.LEADER_NOT_AVAILABLE
        assert "has no leader" in sentence
        assert "cleanup.policy" not in topic_of(brokers[0]).configs
        await none_is_held(brokers[:2])
