"""Reassignments are shown for one partition, for a topic and for all, and a partition that rests has one without changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import httpx
import pytest

from app.client.admin import AdminClient
from app.core.units import PartitionIndex, TopicPartition
from tests.support.broker import RunningBroker

MOVES = {
    TopicPartition("a", PartitionIndex(1)): ([2, 3], [1]),
    TopicPartition("b", PartitionIndex(0)): ([3], []),
}


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two partitions move."""

    async def told(
        admin: AdminClient, partitions: Mapping[str, Sequence[int]] | None = None
    ) -> dict[TopicPartition, tuple[list[int], list[int]]]:
        return {
            one: move
            for one, move in MOVES.items()
            if partitions is None or one.partition in partitions.get(one.topic, ())
        }

    monkeypatch.setattr(AdminClient, "list_reassignments", told)


@pytest.mark.usefixtures("moving")
async def test_the_partitions_that_move_are_listed_and_each_link_leads_to_its_reassignment(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("a", 2)
    await broker.create_topic("b", 1)
    listed = (await http.get(f"{cluster}/topics/-/partitions/-/reassignment")).json()
    fields = ("kind", "topic_name", "partition_id", "adding_replicas", "removing_replicas")
    assert [[one[name] for name in fields] for one in listed["data"]] == [
        ["KafkaReassignment", "a", 1, [2, 3], [1]],
        ["KafkaReassignment", "b", 0, [3], []],
    ]
    for one in listed["data"]:
        assert (await http.get(one["metadata"]["self"])).json() == one
        assert (await http.get(one["replicas"]["related"])).status_code == 200
    of_topic = (await http.get(f"{cluster}/topics/a/partitions/-/reassignment")).json()
    assert of_topic["data"] == listed["data"][:1]


async def test_a_partition_that_rests_has_a_reassignment_without_changes(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("a", 1)
    found = (await http.get(f"{cluster}/topics/a/partitions/0/reassignment")).json()
    assert (found["adding_replicas"], found["removing_replicas"]) == ([], [])
    assert (await http.get(f"{cluster}/topics/-/partitions/-/reassignment")).json()["data"] == []
    for path in ("nowhere/partitions/0", "nowhere/partitions/-", "a/partitions/1"):
        assert (await http.get(f"{cluster}/topics/{path}/reassignment")).json()["error_code"] == 40403
