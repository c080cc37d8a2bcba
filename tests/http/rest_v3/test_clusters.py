"""Clusters, brokers, partitions and replicas link to one another, and say what the brokers say."""

from __future__ import annotations

import httpx
import pytest

from app.core.turns import Portion
from app.http import bodies
from app.wire import codec
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker


async def test_a_cluster_links_to_all_that_it_has(http: httpx.AsyncClient, cluster: str) -> None:
    found = (await http.get(cluster)).json()
    links = {name: value["related"] for name, value in found.items() if isinstance(value, dict) and "related" in value}
    assert links == {
        name: f"http://firn{cluster}/{path}"
        for name, path in {
            "controller": "brokers/1",
            "acls": "acls",
            "brokers": "brokers",
            "broker_configs": "broker-configs",
            "consumer_groups": "consumer-groups",
            "share_groups": "share-groups",
            "topics": "topics",
            "partition_reassignments": "topics/-/partitions/-/reassignment",
        }.items()
    }


async def test_a_broker_lists_the_replicas_that_it_has(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("b", 2)
    await broker.create_topic("a", 1)
    listed = (await http.get(f"{cluster}/brokers/1/partition-replicas")).json()
    assert listed["kind"] == "KafkaReplicaList"
    assert [(one["topic_name"], one["partition_id"]) for one in listed["data"]] == [("a", 0), ("b", 0), ("b", 1)]
    assert listed["data"][1] == (await http.get(f"{cluster}/topics/b/partitions/0/replicas/1")).json()
    assert (await http.get(f"{cluster}/brokers/2/partition-replicas")).status_code == 404


async def test_the_ends_of_a_partition_are_its_first_offset_and_the_next_one(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    async with talk(broker.port) as client:
        await client.produce(9, [("t", [(0, batch(3))])])
    found = (await http.get(f"{cluster}/topics/t/partitions/0/offset")).json()
    assert (found["kind"], found["earliest_offset"], found["latest_offset"]) == ("KafkaPartitionWithOffsets", 0, 3)
    assert (await http.get(f"{cluster}/topics/t/partitions/1/offset")).json()["error_code"] == 40403


async def test_a_topic_says_what_the_caller_may_do_only_if_it_is_asked(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    asked = (await http.get(f"{cluster}/topics/t?include_authorized_operations=true")).json()
    assert {"READ", "WRITE", "ALTER_CONFIGS"} <= set(asked["authorized_operations"])
    assert "authorized_operations" not in (await http.get(f"{cluster}/topics/t")).json()


async def test_a_topic_is_made_with_the_replicas_that_the_request_assigns(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    made = await http.post(f"{cluster}/topics", json={"topic_name": "t", "replicas_assignments": {"0": [1], "1": [1]}})
    assert (made.status_code, made.json()["partitions_count"], made.json()["replication_factor"]) == (201, 2, 1)
    away = await http.post(f"{cluster}/topics", json={"topic_name": "u", "replicas_assignments": {"0": [7]}})
    assert (away.status_code, away.json()["error_code"]) == (400, 40002)


@pytest.mark.parametrize(
    "assignments",
    [
        [{"partition_id": 1, "broker_ids": [1]}, {"partition_id": 0, "broker_ids": [1]}],
        [{"0": [1]}, {"1": [1]}],
        [{"0": [1], "1": [1]}],
    ],
)
async def test_assignments_may_be_a_list(http: httpx.AsyncClient, cluster: str, assignments: object) -> None:
    made = await http.post(f"{cluster}/topics", json={"topic_name": "t", "replicas_assignments": assignments})
    assert (made.status_code, made.json()["partitions_count"]) == (201, 2), made.text


async def test_null_means_what_a_member_that_is_left_out_means(http: httpx.AsyncClient, cluster: str) -> None:
    members = ("partitions_count", "replication_factor", "replicas_assignments", "configs", "validate_only")
    made = await http.post(f"{cluster}/topics", json={"topic_name": "t", **dict.fromkeys(members)})
    assert (made.status_code, made.json()["partitions_count"]) == (201, 1), made.text
    change = {"name": "retention.ms", "value": "7", "operation": None}
    for path, data in (
        ("t/configs:alter", [change]),
        ("-/configs:alter", [{"topic_name": "t", "configs": [{**change, "value": "8"}]}]),
    ):
        changed = await http.post(f"{cluster}/topics/{path}", json={"data": data, "validate_only": None})
        assert changed.status_code in (204, 207), changed.text
    assert (await http.get(f"{cluster}/topics/t/configs/retention.ms")).json()["value"] == "8"


async def test_numbers_may_be_texts_and_settings_may_be_numbers_and_booleans(
    http: httpx.AsyncClient, cluster: str
) -> None:
    settings = [
        {"name": "retention.ms", "value": 7},
        {"name": "min.cleanable.dirty.ratio", "value": 0.25},
        {"name": "preallocate", "value": True},
    ]
    wanted = {"topic_name": "t", "partitions_count": "3", "replication_factor": 1.0, "configs": settings}
    made = await http.post(f"{cluster}/topics", json=wanted)
    assert (made.status_code, made.json()["partitions_count"]) == (201, 3), made.text

    async def values() -> list[str]:
        names = (one["name"] for one in settings)
        return [(await http.get(f"{cluster}/topics/t/configs/{name}")).json()["value"] for name in names]

    assert await values() == ["7", "0.25", "true"]
    change = {"data": [{"name": "preallocate", "value": False}], "validate_only": "false"}
    assert (await http.post(f"{cluster}/topics/t/configs:alter", json=change)).status_code == 204
    assert (await http.put(f"{cluster}/topics/t/configs/retention.ms", json={"value": 9})).status_code == 204
    assert await values() == ["9", "0.25", "false"]
    for wrong in ("3.5", "three", 3.5, True):
        refused = await http.post(f"{cluster}/topics", json={"topic_name": "u", "partitions_count": wrong})
        assert refused.status_code == 422
        assert "partitions_count" in refused.json()["message"]


async def test_assignments_are_decoded_read_and_encoded_in_portions_of_their_own(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def told(place: object, name: str) -> None:
        work = getattr(place, name)

        def tell(*args: object) -> object:
            steps.append(name)
            return work(*args)

        monkeypatch.setattr(place, name, tell)

    told(bodies, "decoded")
    told(Portion, "rest")
    told(codec, "encode_request")
    made = await http.post(f"{cluster}/topics", json={"topic_name": "t", "replicas_assignments": {"0": [1], "1": [1]}})
    assert made.status_code == 201
    first = steps.index("decoded")
    assert steps[first : first + 4] == ["decoded", "rest", "rest", "encode_request"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"topic_name": "t", "replicas_assignments": {"x": [1]}}, "replicas_assignments"),
        ({"topic_name": "t", "replicas_assignments": {"0": []}}, "replicas_assignments"),
        ({"topic_name": "t", "replicas_assignments": {"0": [-1]}}, "replicas_assignments"),
        ({"topic_name": "t", "replicas_assignments": [{"0": [1]}, {"0": [1]}]}, "partition 0 comes twice"),
        ({"topic_name": "t", "replicas_assignments": [{"0": 1}]}, "replicas_assignments"),
        ({"topic_name": "t", "replicas_assignments": [{"broker_ids": [1]}]}, "replicas_assignments"),
        (
            {"topic_name": "t", "replicas_assignments": [{"partition_id": 0, "broker_ids": [1], "2": [1]}]},
            "partition_id",
        ),
        ({"topic_name": "t", "replicas_assignments": [{"partition_id": -1, "broker_ids": [1]}]}, "'-1'"),
        ({"topic_name": "t", "replicas_assignments": {"0": [1]}, "partitions_count": 1}, "replicas_assignments"),
        (
            {"topic_name": "t", "replicas_assignments": {str(index): [1] * 100 for index in range(301)}},
            "30000 replicas",
        ),
        ({"topic_name": "t", "partitions_count": 0}, "partitions_count"),
    ],
)
async def test_a_topic_that_cannot_be_made_is_refused_with_the_name_of_the_field(
    http: httpx.AsyncClient, cluster: str, body: dict[str, object], field: str
) -> None:
    answer = await http.post(f"{cluster}/topics", json=body)
    assert answer.status_code == 422
    assert field in answer.json()["message"]
