"""Settings of topics, of one broker and of all brokers are read, changed and taken back."""

from __future__ import annotations

import httpx
import pytest

from tests.support.broker import RunningBroker

SETTING = "log.retention.ms"


@pytest.mark.parametrize(
    ("place", "kind", "source"),
    [
        ("brokers/1/configs", "KafkaBrokerConfig", "DYNAMIC_BROKER_CONFIG"),
        ("broker-configs", "KafkaClusterConfig", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
    ],
)
async def test_settings_of_brokers_are_set_changed_together_and_taken_back(
    http: httpx.AsyncClient, cluster: str, place: str, kind: str, source: str
) -> None:
    path = f"{cluster}/{place}"
    assert (await http.put(f"{path}/{SETTING}", json={"value": "9000"})).status_code == 204
    one = (await http.get(f"{path}/{SETTING}")).json()
    assert (one["kind"], one["value"], one["is_default"], one["source"]) == (kind, "9000", False, source)
    assert one["metadata"]["self"] == f"http://firn{path}/{SETTING}"
    changes = {"data": [{"name": SETTING, "operation": "DELETE"}, {"name": "log.roll.ms", "value": "60000"}]}
    tried = await http.post(f"{path}:alter", json={**changes, "validate_only": True})
    assert tried.status_code == 204
    assert (await http.get(f"{path}/{SETTING}")).json()["value"] == "9000"
    assert (await http.post(f"{path}:alter", json=changes)).status_code == 204
    listed = (await http.get(path)).json()
    assert listed["kind"] == f"{kind}List"
    changed = {one["name"]: one["value"] for one in listed["data"] if one["source"] == source and one["value"]}
    assert changed == {"log.roll.ms": "60000"}
    assert (await http.delete(f"{path}/log.roll.ms")).status_code == 204
    left = (await http.get(path)).json()["data"]
    assert [one for one in left if one["source"] == source] == []


async def test_the_settings_of_each_broker_are_those_that_were_made_for_it_alone(
    http: httpx.AsyncClient, cluster: str
) -> None:
    await http.put(f"{cluster}/broker-configs/{SETTING}", json={"value": "8000"})
    assert (await http.get(f"{cluster}/brokers/-/configs")).json()["data"] == []
    await http.put(f"{cluster}/brokers/1/configs/{SETTING}", json={"value": "9000"})
    (one,) = (await http.get(f"{cluster}/brokers/-/configs")).json()["data"]
    assert (one["broker_id"], one["name"], one["value"]) == (1, SETTING, "9000")


async def test_a_setting_that_was_not_made_for_all_brokers_and_a_broker_that_is_not_there_are_404(
    http: httpx.AsyncClient, cluster: str
) -> None:
    assert (await http.get(f"{cluster}/broker-configs/{SETTING}")).status_code == 404
    for method, path in (
        ("GET", "configs"),
        ("PUT", f"configs/{SETTING}"),
        ("DELETE", f"configs/{SETTING}"),
        ("POST", "configs:alter"),
    ):
        body = {"value": "1"} if method == "PUT" else {"data": []} if method == "POST" else None
        answer = await http.request(method, f"{cluster}/brokers/9/{path}", json=body)
        assert (answer.status_code, answer.json()["message"]) == (404, "There is no broker 9.")


async def test_the_settings_of_all_topics_come_by_topic_and_their_pages_count_topics(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("b", retention_ms="7000")
    await broker.create_topic("a")
    whole = (await http.get(f"{cluster}/topics/-/configs")).json()
    names = [one["topic_name"] for one in whole["data"]]
    assert names == sorted(names)
    assert set(names) == {"a", "b"}
    of_b = [one for one in whole["data"] if one["topic_name"] == "b"]
    assert of_b == (await http.get(f"{cluster}/topics/b/configs")).json()["data"]
    first = (await http.get(f"{cluster}/topics/-/configs?page_size=1")).json()
    second = (await http.get(first["metadata"]["next"])).json()
    assert first["data"] + second["data"] == whole["data"]
    assert second["metadata"]["next"] is None


async def test_the_default_settings_are_those_that_a_new_topic_then_has(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await http.put(f"{cluster}/broker-configs/{SETTING}", json={"value": "8000"})
    told = (await http.get(f"{cluster}/topics/t/default-configs")).json()["data"]
    assert {one["metadata"]["self"] for one in told} == {f"http://firn{cluster}/topics/t/default-configs"}
    await broker.create_topic("t")
    made = (await http.get(f"{cluster}/topics/t/configs")).json()["data"]
    values = [[(one["name"], one["value"], one["source"]) for one in some] for some in (told, made)]
    assert values[0] == values[1]
    assert ("retention.ms", "8000", "DYNAMIC_DEFAULT_BROKER_CONFIG") in values[0]
    again = await http.get(f"{cluster}/topics/t/default-configs")
    assert (again.status_code, again.json()["error_code"]) == (400, 40002)


async def test_settings_of_several_topics_are_changed_and_those_that_cannot_be_are_told(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("a")
    await broker.create_topic("b", retention_ms="7000")
    path = f"{cluster}/topics/-/configs:alter"

    async def retention(topic: str) -> str:
        answer = await http.get(f"{cluster}/topics/{topic}/configs/retention.ms")
        value: str = answer.json()["value"]
        return value

    def change(topic: str, **change: str) -> dict[str, object]:
        return {"topic_name": topic, "configs": [{"name": "retention.ms", **change}]}

    changes = [change("a", value="9000"), change("b", operation="DELETE")]
    before = await retention("a")
    tried = await http.post(path, json={"data": changes, "validate_only": True})
    assert (tried.status_code, tried.content) == (204, b"")
    assert (await retention("a"), await retention("b")) == (before, "7000")
    assert (await http.post(path, json={"data": changes})).status_code == 204
    assert (await retention("a"), await retention("b")) == ("9000", before)

    mixed = [change("a", value="wrong"), change("nowhere", value="1"), change("b", value="5000")]
    answer = await http.post(path, json={"data": mixed})
    assert answer.status_code == 207
    failures = {one["topic_name"]: one["error_code"] for one in answer.json()["failures"]}
    assert failures == {"a": 40002, "nowhere": 40403}
    assert (await retention("a"), await retention("b")) == ("9000", "5000")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([{"topic_name": "a", "configs": []}] * 2, "Topic 'a' comes twice"),
        ([{"topic_name": "a", "configs": [{"name": "x", "operation": "ADD"}]}], "'ADD' is not SET"),
        ([{"topic_name": "a", "configs": []}] * 1_001, "data"),
        ([{"topic_name": "", "configs": []}], "topic_name"),
    ],
)
async def test_changes_of_topics_that_cannot_be_told_apart_are_refused_as_a_whole(
    http: httpx.AsyncClient, cluster: str, data: object, words: str
) -> None:
    answer = await http.post(f"{cluster}/topics/-/configs:alter", json={"data": data})
    assert answer.status_code == 422
    assert words in answer.json()["message"]


async def test_offsets_of_another_type_than_both_are_refused(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("a", 1)
    path = f"{cluster}/topics/a/partitions/0/offset"
    both = await http.get(f"{path}?offset_type=earliest_and_latest")
    assert (both.status_code, both.json()["earliest_offset"], both.json()["latest_offset"]) == (200, 0, 0)
    assert (await http.get(f"{path}?offset_type=latest")).status_code == 400
