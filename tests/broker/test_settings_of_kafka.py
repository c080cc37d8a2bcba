"""A whole broker with settings as people bring them from Apache Kafka."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from app.client.cluster import ClusterClient
from app.client.groups import GroupClient
from app.client.producer import Producer
from app.configs import TopicConfig
from app.core.errors import ConfigError, ErrorCode
from app.core.units import PartitionIndex, TopicIdPartition, TopicPartition
from app.machine.runtime import SystemClock
from app.metadata.changes.topic_changes import ConfigChange
from app.wire.apikeys import ApiKey
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import alter_configs

PRODUCTION = {
    "default_replication_factor": 3,
    "offsets_topic_replication_factor": 3,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_segment_bytes": 1024,
    "transaction_state_log_replication_factor": 3,
    "share_coordinator_state_topic_replication_factor": 3,
}


async def alter(broker: RunningBroker, **values: str) -> None:
    changes = [ConfigChange(name.replace("_", "."), ConfigOperation.SET, value) for name, value in values.items()]
    await alter_configs(broker.node.membership.controller, ConfigResourceType.BROKER, "", changes)


async def test_one_broker_works_with_the_factors_of_a_production_cluster(tmp_path: Path) -> None:
    defaults = TopicConfig(min_insync_replicas=2)
    async with running_broker(tmp_path, topic_defaults=defaults, **PRODUCTION) as broker:
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            async with Producer(cluster, SystemClock()) as producer:
                stored = await (await producer.send("t", b"x"))
            await GroupClient(cluster).commit("g", {TopicPartition("t", PartitionIndex(0)): 1})
        assert stored.offset == 0
        image = broker.node.cluster.image
        for name in ("t", "__consumer_offsets"):
            topic = image.topic(name)
            assert topic is not None
            assert topic.partitions[0].replicas == (1,)


async def test_topics_stay_where_they_must_not_be_deleted(tmp_path: Path) -> None:
    async with running_broker(tmp_path, delete_topic_enable=False) as broker:
        await broker.create_topic("t")
        async with talk(broker.port) as client:
            message = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
            [result] = (await client.ask(ApiKey.DELETE_TOPICS, 6, message)).responses
        assert (result.name, result.error_code) == ("t", ErrorCode.TOPIC_DELETION_DISABLED)
        assert broker.node.cluster.image.topic("t") is not None


async def test_what_is_altered_while_a_broker_runs_reaches_its_parts(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await alter(
            broker,
            remote_fetch_max_wait_ms="77",
            producer_id_expiration_ms="1234",
            transaction_partition_verification_enable="false",
        )
        assert broker.node.context.effective.remote_fetch_max_wait_ms == 77
        assert broker.node.context.effective.transaction_partition_verification_enable is False
        assert broker.node.logs.producer_expiration_ms == 1234
        assert broker.node.context.config.remote_fetch_max_wait_ms == 500, "what it was started with is described too"
    async with running_broker(tmp_path) as broker:
        assert broker.node.context.effective.remote_fetch_max_wait_ms == 77, "and after a restart"


async def test_a_directory_of_apache_kafka_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "data" / "topic-0" / "00000000000000000000.log"
    (tmp_path / "data" / "__cluster_metadata-0").mkdir(parents=True)
    log.parent.mkdir()
    log.write_bytes(b"records of Kafka that Firn would cut as damaged")
    with pytest.raises(ConfigError, match="belongs to Apache Kafka"):
        async with running_broker(tmp_path):
            pass
    assert log.read_bytes() == b"records of Kafka that Firn would cut as damaged"


async def set_topic(client: Talk, topic: str, **values: str) -> Any:
    configs = [AlterableConfig(name.replace("_", "."), 0, value) for name, value in values.items()]
    message = IncrementalAlterConfigsRequest([AlterConfigsResource(int(ConfigResourceType.TOPIC), topic, configs)])
    [result] = (await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message)).responses
    return result


async def described(client: Talk, topic: str) -> dict[str, str]:
    message = DescribeConfigsRequest([DescribeConfigsResource(int(ConfigResourceType.TOPIC), topic, None)])
    [result] = (await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, message)).results
    return {config.name: config.value for config in result.configs}


async def tier_everything(broker: RunningBroker, topic: str) -> None:
    key = TopicIdPartition(broker.log(topic).topic_id, PartitionIndex(0))
    broker.log(topic).roll()
    while (manifest := broker.node.remote_log_manager.manifest_of(key)) is None or not manifest.state.finished:
        await asyncio.sleep(0.02)


async def test_a_new_topic_with_firns_defaults_can_become_a_compacted_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", 3)
        assert (await set_topic(client, "t", cleanup_policy="compact")).error_code == 0
        settings = await described(client, "t")
        assert (settings["cleanup.policy"], settings["remote.storage.enable"]) == ("compact", "false")
        assert not broker.log("t").config.tiered
        assert broker.log("t").config.compacted
        assert (await set_topic(client, "t", cleanup_policy="delete")).error_code == 0
        assert (await described(client, "t"))["remote.storage.enable"] == "true"


async def test_a_topic_with_records_in_the_store_cannot_and_is_told_what_to_set(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await client.produce(9, [("t", [(0, batch(3))])])
        await tier_everything(broker, "t")
        refused = await set_topic(client, "t", cleanup_policy="compact")
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert "cleanup.policy cannot become compact" in refused.error_message
        assert "There are 1 of them." in refused.error_message
        assert broker.log("t").config.tiered
        given_up = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
        assert (await set_topic(client, "t", cleanup_policy="compact", **given_up)).error_code == 0


async def test_a_start_with_compaction_for_all_topics_is_refused_while_one_of_them_is_in_the_store(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await broker.create_topic("empty")
        await client.produce(9, [("t", [(0, batch(3))])])
        await tier_everything(broker, "t")
    compacted = TopicConfig(cleanup_policy=frozenset({"compact"}))
    with pytest.raises(ConfigError, match=r"would turn topics .* \(1, t among them\) into compacted topics"):
        async with running_broker(tmp_path, topic_defaults=compacted):
            pass
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert (await set_topic(client, "t", cleanup_policy="delete")).error_code == 0
    async with running_broker(tmp_path, topic_defaults=compacted) as broker:
        assert broker.log("t").config.tiered
        assert broker.log("empty").config.compacted
