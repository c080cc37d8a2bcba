"""FirnTopicLags: how far groups are behind in topics, as their coordinator tells it (ADR 0047)."""

from __future__ import annotations

import random
from pathlib import Path

from app.client.cluster import ClusterClient
from app.client.groups import GroupClient
from app.core.units import PartitionIndex, TopicPartition
from app.metadata.image.records import LEVEL_MAX
from app.security.acls import Operation, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.private import (
    LAG_ENDS_MAX,
    GroupOnTopic,
    TopicLag,
    TopicLagsRequest,
    TopicLagsResponse,
    pack,
    unpack,
)
from tests.broker.guarded import TOPIC, guarded
from tests.handlers.conversation import talk
from tests.support.broker import running_broker
from tests.support.rights import SEEN


async def test_a_coordinator_sums_up_the_lags_of_its_groups(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker:
        await broker.create_topic("t")
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            groups = GroupClient(cluster)
            await groups.commit("far", {TopicPartition("t", PartitionIndex(0)): 0})
            await groups.commit("near", {TopicPartition("t", PartitionIndex(0)): 4})
            answer = await groups.topic_lags_at(await cluster.any_broker(), {"t": [5]}, limit=1, after="far")
        assert answer.lags == [TopicLag("t", 2, 6, 5, "far")]
        assert answer.groups == [GroupOnTopic("near", "classic", "Empty", 0, False, 1, 1, [(0, 4)])]
        assert (answer.before, answer.fitting, answer.whole) == (1, 2, True)


async def test_a_caller_sees_the_lags_of_topics_and_groups_that_it_may_describe(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user("User:alice") as alice:

        async def ask(limit: int = 0) -> TopicLagsResponse:
            raw = await alice.ask(
                ApiKey.FIRN_TOPIC_LAGS, 0, pack(TopicLagsRequest([(SEEN, [9]), ("hidden", [9])], limit))
            )
            return unpack(TopicLagsResponse, raw)

        async with ClusterClient([("127.0.0.1", broker.broker.port)], rng=random.Random(1)) as cluster:
            for group in ("hers", "others"):
                await GroupClient(cluster).commit(group, {TopicPartition(SEEN, PartitionIndex(0)): 4})
        assert await ask() == TopicLagsResponse()
        await broker.allow((Operation.DESCRIBE, TOPIC, SEEN))
        assert (await ask()).lags == [TopicLag(SEEN, 0, 0)]
        await broker.allow((Operation.DESCRIBE, ResourceType.GROUP, "hers"))
        assert (await ask()).lags == [TopicLag(SEEN, 1, 5, 5, "hers")]
        assert await ask(10) == TopicLagsResponse(), (
            "its groups are asked for, and the second topic must not be the first"
        )


async def test_more_partitions_than_a_request_may_name_end_the_connection(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        half = [0] * (LAG_ENDS_MAX // 2 + 1)
        client.send(ApiKey.FIRN_TOPIC_LAGS, 0, pack(TopicLagsRequest([("a", half), ("b", half)])))
        assert await client.closed()
