"""Groups are described as their coordinators see them, with lags, and each of their links leads to a resource."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from app.client import admin
from app.client.groups import SHARE_TYPE, Committed, GroupMember, GroupView
from app.core.turns import STRIDE
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.http.gateway import Gateway
from app.http.rest_v3 import groups, share_groups
from app.metadata.image.records import LEVEL_MAX
from app.wire.apikeys import ApiKey
from app.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.counted_loop import count_turns, on_looked_at_loop
from tests.support.rest_links import linked
from tests.support.several import unfenced
from tests.support.waiting import until

STRANGE: Final = "a/b %2F?#ä"
"""The id of a group, with all that a path cannot have as it is."""
LOADING: Final = (14, 15, 16)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    settings = {"group_initial_rebalance_delay_ms": 0, "group_share_assignment_interval_ms": 0}
    async with running_broker(tmp_path, new_level=LEVEL_MAX, offsets_topic_num_partitions=1, **settings) as running:
        await until(lambda: unfenced(running))
        yield running


async def asked(client: Talk, key: int, version: int, message: Any, code: str = "error_code") -> Any:
    """The response, once the coordinator has loaded."""
    while True:
        answer = await client.ask(key, version, message)
        found = answer.topics[0].partitions[0].error_code if key == ApiKey.OFFSET_COMMIT else getattr(answer, code)
        if found not in LOADING:
            assert not found, answer
            return answer


async def commit(client: Talk, group: str, **offsets: int) -> None:
    """Commit an offset of the first partition of each topic."""
    await asked(client, ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group, key_type=0))
    for topic, offset in offsets.items():
        partition = OffsetCommitRequestPartition(0, offset, -1, "")
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])]
        )
        await asked(client, ApiKey.OFFSET_COMMIT, 9, request)


async def join(client: Talk, group: str, member: str, *topics: str) -> None:
    """Become a member, and own all partitions of the topics."""
    await asked(client, ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group, key_type=0))
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=0,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=list(topics),
        topic_partitions=[],
    )
    answer = await asked(client, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
    assert answer.assignment.topic_partitions


async def followed(http: httpx.AsyncClient, *urls: str) -> set[str]:
    """All URLs that are linked from these, each of which leads to a resource."""
    seen: set[str] = set()
    left = set(urls)
    while left:
        url = left.pop()
        seen.add(url)
        answer = await http.get(url)
        assert answer.status_code == 200, f"{url}: {answer.text}"
        left |= {one for one in linked(answer.json()) if "-groups" in one or "/partitions/" in one} - seen
    return seen


async def test_a_group_with_a_member_shows_its_assignments_and_its_lag_and_every_link_leads_somewhere(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    await broker.create_topic("u", 1)
    member = str(UUID(int=1))
    async with talk(broker.port) as client:
        await client.produce(9, [("t", [(0, batch(10))])])
        await client.produce(9, [("u", [(0, batch(5))])])
        await commit(client, "readers", t=3, u=5)
        await join(client, "readers", member, "t")
        path = f"{cluster}/consumer-groups/readers"
        (group,) = (await http.get(f"{cluster}/consumer-groups")).json()["data"]
        told = (await http.get(path)).json()
        assert group == {**told, "partition_assignor": "", "is_mixed_consumer_group": False}
        shown = ("consumer_group_id", "is_simple", "partition_assignor", "state", "type")
        assert [told[name] for name in shown] == ["readers", False, "uniform", "STABLE", "CONSUMER"]
        (consumer,) = (await http.get(f"{path}/consumers")).json()["data"]
        assert consumer["consumer_id"] == member
        (assigned,) = (await http.get(consumer["assignments"]["related"])).json()["data"]
        assert (assigned["topic_name"], assigned["partition_id"]) == ("t", 0)
        lags = (await http.get(f"{path}/lags")).json()["data"]
        fields = ("topic_name", "current_offset", "log_end_offset", "lag", "consumer_id")
        assert [[one[name] for name in fields] for one in lags] == [["t", 3, 10, 7, member], ["u", 5, 5, 0, ""]]
        assert (await http.get(assigned["lag"]["related"])).json() == lags[0]
        summary = (await http.get(f"{path}/lag-summary")).json()
        fields = ("max_lag_consumer_id", "max_lag_topic_name", "max_lag_partition_id", "max_lag", "total_lag")
        assert [summary[name] for name in fields] == [member, "t", 0, 7, 7]
        seen = await followed(http, f"http://firn{cluster}/consumer-groups")
    assert f"http://firn{path}/consumers/{member}/assignments/t/partitions/0" in seen
    assert summary["max_lag_consumer"]["related"] in seen


async def test_the_lag_of_an_assigned_partition_without_a_commit_is_null_and_its_link_leads_to_it(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    async with talk(broker.port) as client:
        await join(client, "new", str(UUID(int=1)), "t")
        path = f"{cluster}/consumer-groups/new"
        lag = (await http.get(f"{path}/lags/t/partitions/0")).json()
        assert (lag["current_offset"], lag["log_end_offset"], lag["lag"]) == (None, 0, None)
        assert (await http.get(f"{path}/lags")).json()["data"] == []
        summary = (await http.get(f"{path}/lag-summary")).json()
        assert (summary["max_lag"], summary["total_lag"], summary["max_lag_partition"]) == (0, 0, None)
        await followed(http, f"http://firn{cluster}/consumer-groups")


@pytest.mark.parametrize("name", [STRANGE, "%2F", "a/b", "with space", "ünï", "a%25b/c"])
async def test_a_group_is_found_by_its_link_whatever_its_id_is(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, name: str
) -> None:
    await broker.create_topic("t", 1)
    async with talk(broker.port) as client:
        await commit(client, name, t=0)
    await followed(http, f"http://firn{cluster}/consumer-groups")
    found = (await http.get(f"{cluster}/consumer-groups/{quote(name, safe='')}")).json()
    assert (found["consumer_group_id"], found["is_simple"], found["state"]) == (name, True, "EMPTY")
    summary = (await http.get(found["lag_summary"]["related"])).json()
    assert summary["max_lag_consumer"] == found["consumers"], "no member has the partition"


async def test_a_share_group_shows_its_members_and_is_deleted_only_without_them(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 2)
    member = str(UUID(int=7))
    async with talk(broker.port) as client:
        await asked(client, ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="shares", key_type=0))
        await asked(
            client, ApiKey.SHARE_GROUP_HEARTBEAT, 1, ShareGroupHeartbeatRequest("shares", member, 0, None, ["t"])
        )
        path = f"{cluster}/share-groups/shares"

        async def assigned() -> bool:
            return bool((await http.get(path)).json()["partition_count"])

        while not await assigned():
            beat = ShareGroupHeartbeatRequest("shares", member, 1, None, None)
            await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, beat)
        group = (await http.get(path)).json()
        assert (group["share_group_id"], group["consumer_count"], group["partition_count"]) == ("shares", 1, 2)
        assert [one["partition_id"] for one in group["assigned_topic_partitions"]] == [0, 1]
        (consumer,) = (await http.get(f"{path}/consumers")).json()["data"]
        assert (consumer["group_id"], consumer["consumer_id"]) == ("shares", member)
        assignments = (await http.get(consumer["assignments"]["related"])).json()["data"]
        assert [one["partition_id"] for one in assignments] == [0, 1]
        await followed(http, f"http://firn{cluster}/share-groups")
        assert (await http.get(f"{cluster}/consumer-groups")).json()["data"] == []
        assert (await http.get(f"{cluster}/consumer-groups/shares")).status_code == 404
        busy = await http.delete(path)
        assert (busy.status_code, busy.json()["error_code"]) == (400, 40002)
        await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, ShareGroupHeartbeatRequest("shares", member, -1, None, None))
        assert (await http.delete(path)).status_code == 204
        assert (await http.get(path)).status_code == 404


async def test_a_share_group_is_not_deleted_under_the_name_of_a_consumer_group(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    async with talk(broker.port) as client:
        await commit(client, "offsets", t=0)
    assert (await http.delete(f"{cluster}/share-groups/offsets")).status_code == 404
    assert (await http.get(f"{cluster}/consumer-groups/offsets")).status_code == 200


async def test_groups_members_and_lags_that_there_are_not_are_404(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    async with talk(broker.port) as client:
        await commit(client, "g", t=0)
    for path in (
        "nowhere",
        "nowhere/lags",
        "nowhere/consumers",
        "g/consumers/nobody",
        "g/consumers/nobody/assignments",
        "g/lags/t/partitions/1",
        "g/lags/u/partitions/0",
    ):
        answer = await http.get(f"{cluster}/consumer-groups/{path}")
        assert (answer.status_code, answer.json()["error_code"]) == (404, 404), path


class LongShareGroup:
    """Stands for the clients of a gateway. Its one share group assigns the same partitions to each of many members."""

    def __init__(self) -> None:
        partitions = tuple(TopicPartition("t", PartitionIndex(index)) for index in range(2 * STRIDE))
        self.members = tuple(GroupMember(str(index), None, "", "", partitions) for index in range(200))
        self.groups = self

    async def check_cluster(self, cluster_id: str) -> None:
        pass

    async def describe_share_group(self, group_id: str) -> GroupView:
        return GroupView(group_id, SHARE_TYPE, "Stable", "", self.members)

    async def coordinator_of(self, group_id: str) -> int:
        return 1


class GroupOfDeletedTopic:
    """Stands for the clients of a gateway. Its one group has committed an offset of a topic that was deleted meanwhile."""

    def __init__(self) -> None:
        self.groups = self.admin = self

    async def check_cluster(self, cluster_id: str) -> None:
        pass

    async def describe_consumer_group(self, group_id: str) -> GroupView:
        return GroupView(group_id, "classic", "Empty", "", ())

    async def committed(self, group_id: str) -> dict[TopicPartition, Committed]:
        return {TopicPartition("gone", PartitionIndex(0)): Committed(Offset(7), -1, "")}

    async def partition_counts(self, names: list[str]) -> dict[str, int]:
        return {}


def asking(gateway: object, **path: str) -> Request:
    """A request that this gateway serves."""
    app = SimpleNamespace(state=SimpleNamespace(gateway=gateway))
    scope = {"type": "http", "path": "/", "headers": [], "server": ("firn", 80), "scheme": "http", "app": app}
    return Request({**scope, "path_params": path, "query_string": b"page_size=1"})


async def test_a_partition_that_was_deleted_meanwhile_has_no_lag_and_does_not_end_the_list() -> None:
    request = asking(GroupOfDeletedTopic(), consumer_group_id="g")
    lags = json.loads((await groups.list_lags("c", "g", request)).body)
    assert (lags["data"], lags["metadata"]["next"]) == ([], None)
    assert json.loads((await groups.get_lag_summary("c", "g", request)).body)["total_lag"] == 0


@on_looked_at_loop
async def test_the_partitions_of_all_members_of_a_share_group_are_joined_in_portions() -> None:
    gateway = LongShareGroup()
    request = asking(gateway, group_id="g")
    assert await count_turns(share_groups.get_group("c", "g", request)) >= 2 * len(gateway.members) // 10


async def test_topics_that_there_are_not_have_no_count_of_partitions(
    application: FastAPI, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "TOPICS_ASKED_MAX", 2)
    for name, count in (("a", 1), ("c", 2), ("e", 3)):
        await broker.create_topic(name, count)
    gateway: Gateway = application.state.gateway
    assert await gateway.admin.partition_counts(["a", "b", "c", "d", "e"]) == {"a": 1, "c": 2, "e": 3}
