"""Consumer instances of REST v2 over one broker: their life, reads, positions and commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.client.groups import GroupClient
from app.http.consumers.instance import ConsumerInstance
from app.http.read_budget import ReadBudget
from tests.http.rest_v2.clients import Rest
from tests.support.waiting import until

PARTITION = {"topic": "flights", "partition": 0}


async def test_records_are_read_committed_and_read_on_by_the_next_instance(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", "a", "b", {"c": 1})
    first = await rest.instance("g", "one", **{"auto.commit.enable": "false"})
    assert first.uri == "http://firn/consumers/g/instances/one"
    await first.subscribe("flights")
    assert await first.read_all(3) == ["a", "b", {"c": 1}]
    assert await first.committed("flights") is None
    commit = await first.ask("POST", "/offsets", {"offsets": [{**PARTITION, "offset": 1, "metadata": "note"}]})
    assert (commit.status_code, commit.json()) == (200, [])
    found = await first.do("GET", "/offsets", {"partitions": [PARTITION]})
    assert found == {"offsets": [{**PARTITION, "offset": 2, "metadata": "note"}]}
    await first.do("DELETE", "")
    gone = await first.ask("GET", "/records")
    assert (gone.status_code, gone.json()["error_code"]) == (404, 40403)
    second = await rest.instance("g", "one")
    await second.subscribe("flights")
    assert await second.read_all(1) == [{"c": 1}]


@pytest.mark.parametrize("body", [None, {}])
async def test_an_empty_commit_says_all_that_was_read(rest: Rest, body: dict[str, Any] | None) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", 1, 2, 3)
    made = await rest.instance("g", **{"auto.commit.enable": False})
    await made.subscribe("flights")
    assert await made.read_all(3) == [1, 2, 3]
    await made.do("POST", "/offsets", body)
    assert await made.committed("flights") == 3


async def test_a_page_is_committed_by_the_next_request_for_records_and_by_a_deletion(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", 1, 2)
    made = await rest.instance("g")
    await made.subscribe("flights")
    assert await made.read_all(2) == [1, 2]
    assert await made.committed("flights") is None
    assert await made.read(timeout=0) == []
    assert await made.committed("flights") == 2
    await rest.produce("flights", 3)
    assert await made.read_all(1) == [3]
    await made.do("DELETE", "")
    other = await rest.instance("g")
    assert await other.committed("flights") == 3


async def test_a_client_that_leaves_before_the_response_reads_the_same_records_again(
    rest: Rest, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", 1, 2)
    made = await rest.instance("g")
    await made.subscribe("flights")
    path = httpx.URL(made.uri).path + "/records"
    sent: list[Any] = []
    was_read, begun = asyncio.Event(), asyncio.Event()
    read = ConsumerInstance.read

    async def read_and_wait(self: ConsumerInstance, *limits: Any) -> Any:
        page = await read(self, *limits)
        assert page.records
        was_read.set()
        await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        if not begun.is_set():
            begun.set()
            return {"type": "http.request", "body": b""}
        await was_read.wait()
        return {"type": "http.disconnect"}

    monkeypatch.setattr(ConsumerInstance, "read", read_and_wait)
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"timeout=5000",
        "headers": [(b"host", b"firn"), (b"accept", b"*/*")],
        "scheme": "http",
        "server": ("firn", 80),
        "client": ("127.0.0.1", 1),
    }

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    assert sent[0]["status"] == 499
    monkeypatch.undo()
    assert await made.read_all(2) == [1, 2]


async def test_positions_are_set_and_only_of_assigned_partitions(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", 0, 1, 2, 3)
    made = await rest.instance("g")
    refused = await made.ask("POST", "/positions", {"offsets": [{**PARTITION, "offset": 2}]})
    assert (refused.status_code, refused.json()["error_code"]) == (409, 40903)
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    assert await made.do("GET", "/assignments") == {"partitions": [PARTITION]}
    await made.do("POST", "/positions", {"offsets": [{**PARTITION, "offset": 2}]})
    assert await made.read_all(2) == [2, 3]
    await made.do("POST", "/positions/beginning", {"partitions": [PARTITION]})
    assert await made.read_all(4) == [0, 1, 2, 3]
    await made.do("POST", "/positions/beginning", {"partitions": [PARTITION]})
    await made.do("POST", "/positions/end", {"partitions": [PARTITION]})
    assert await made.read(timeout=0) == []
    other = {"partitions": [{"topic": "flights", "partition": 5}]}
    refused = await made.ask("POST", "/positions/end", other)
    assert (refused.status_code, refused.json()["error_code"]) == (409, 40903)


async def test_subscriptions_and_assignments_exclude_each_other(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    made = await rest.instance("g")
    assert await made.do("GET", "/subscription") == {"topics": []}
    await made.subscribe("flights")
    assert await made.do("GET", "/subscription") == {"topics": ["flights"]}
    for path, body in (
        ("/assignments", {"partitions": [PARTITION]}),
        ("/subscription", {"topic_pattern": "fl.*"}),
        ("/subscription", {"topics": ["flights"], "topic_pattern": "fl.*"}),
    ):
        refused = await made.ask("POST", path, body)
        assert (refused.status_code, refused.json()["error_code"]) == (409, 40903), path
    await made.do("DELETE", "/subscription")
    assert await made.do("GET", "/subscription") == {"topics": []}
    refused = await made.ask("GET", "/records")
    assert (refused.status_code, refused.json()["error_code"]) == (409, 40903)
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    refused = await made.ask("POST", "/subscription", {"topics": ["flights"]})
    assert (refused.status_code, refused.json()["error_code"]) == (409, 40903)


async def test_a_pattern_subscribes_to_the_topics_that_it_matches(rest: Rest) -> None:
    await rest.broker.create_topic("flights-1")
    await rest.broker.create_topic("flights-2")
    await rest.broker.create_topic("trains")
    made = await rest.instance("g")
    await made.do("POST", "/subscription", {"topic_pattern": "flights-.*"})
    assert await made.do("GET", "/subscription") == {"topics": ["flights-1", "flights-2"]}
    for topic in ("flights-1", "flights-2", "trains"):
        await rest.produce(topic, topic)
    assert sorted(await made.read_all(2)) == ["flights-1", "flights-2"]
    hostile = await rest.instance("g2")
    refused = await hostile.ask("POST", "/subscription", {"topic_pattern": "(a"})
    assert refused.status_code == 422, refused.text


async def test_a_second_read_at_the_same_time_is_refused(rest: Rest, application: FastAPI) -> None:
    await rest.broker.create_topic("flights")
    made = await rest.instance("g", **{"consumer.request.timeout.ms": 30_000})
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    waiting = asyncio.create_task(made.ask("GET", "/records"))
    await until(lambda: any(one.is_reading for one in application.state.consumer_instances))
    second = await made.ask("GET", "/records?timeout=0")
    assert second.status_code == 409
    assert second.json()["error_code"] == 40903
    await rest.produce("flights", "x")
    first = await waiting
    assert [one["value"] for one in first.json()] == ["x"]


async def test_a_page_is_cut_at_max_bytes_and_the_next_one_goes_on(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", *["x" * 100] * 5)
    made = await rest.instance("g")
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    assert [len(await made.read(max_bytes=250)) for _ in range(3)] == [2, 2, 1]
    await made.do("POST", "/positions/beginning", {"partitions": [PARTITION]})
    assert len(await made.read(max_bytes=1)) == 1


@pytest.mark.parametrize(("form", "bytes_max", "longest"), [("json", 350, 3), ("binary", 800, 4)])
async def test_a_page_that_gets_no_more_bytes_ends_there_and_the_next_one_goes_on(
    rest: Rest, application: FastAPI, form: str, bytes_max: int, longest: int
) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", *["x" * 50 + str(index) for index in range(10)])
    made = await rest.instance("g", format=form)
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    budget = application.state.gateway.read_budget = ReadBudget(bytes_max)
    offsets: list[int] = []
    while len(offsets) < 9:
        page = await made.read(timeout=1_000)
        assert 1 <= len(page) <= longest
        offsets += [one["offset"] for one in page]
        assert budget.taken == 0
    budget.add(bytes_max)  # others hold all of it
    await made.do("POST", "/positions/beginning", {"partitions": [PARTITION]})
    assert [one["offset"] for one in await made.read(timeout=1_000)] == [0]
    assert budget.taken == bytes_max
    assert offsets == list(range(len(offsets)))


async def test_a_record_of_another_format_ends_the_page_before_it_and_is_told(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", 1)
    answer = await rest.ask(
        "POST", "/topics/flights", {"records": [{"value": "/w=="}]}, content_type="application/vnd.kafka.binary.v2+json"
    )
    assert answer.status_code == 200, answer.text
    await rest.produce("flights", 2)
    made = await rest.instance("g")
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    assert await made.read_all(1) == [1]
    refused = await made.ask("GET", "/records")
    assert (refused.status_code, refused.json()["error_code"]) == (422, 42203)
    assert "offset 1 of partition flights-0" in refused.json()["message"]
    await made.do("POST", "/positions", {"offsets": [{**PARTITION, "offset": 2}]})
    assert await made.read_all(1) == [2]


async def test_a_name_is_unique_in_its_group_and_a_missing_one_is_generated(rest: Rest) -> None:
    await rest.instance("g", "one")
    again = await rest.ask("POST", "/consumers/g", {"name": "one"})
    assert (again.status_code, again.json()["error_code"]) == (409, 40902)
    await rest.instance("h", "one")
    generated = await rest.ask("POST", "/consumers/g")
    assert generated.json()["instance_id"].startswith("rest-consumer-0-")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name", "a/b"),
        ("format", "xml"),
        ("auto.offset.reset", "first"),
        ("auto.commit.enable", "perhaps"),
        ("fetch.min.bytes", -2),
        ("fetch.min.bytes", "many"),
        ("consumer.request.timeout.ms", -1),
        ("isolation.level", "serializable"),
    ],
)
async def test_a_wrong_setting_is_refused_by_its_name(rest: Rest, setting: str, value: Any) -> None:
    refused = await rest.ask("POST", "/consumers/g", {setting: value})
    assert (refused.status_code, refused.json()["error_code"]) == (422, 42204)
    assert setting in refused.json()["message"]


async def test_the_name_of_a_group_may_have_a_slash_and_a_format_capitals(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", "a")
    made = await rest.instance("a%2Fb%25c", "one", format="JSON")
    made.form = "json"
    assert made.uri == "http://firn/consumers/a%2Fb%25c/instances/one"
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    assert await made.read_all(1) == ["a"]
    await made.do("POST", "/offsets", {"offsets": [{**PARTITION, "partition": "0", "offset": "0"}]})
    cluster = (await rest.http.get("/v3/clusters")).json()["data"][0]["metadata"]["self"]
    groups = (await rest.http.get(f"{cluster}/consumer-groups")).json()["data"]
    assert [one["consumer_group_id"] for one in groups] == ["a/b%c"]
    await made.do("DELETE", "")


async def test_an_instance_answers_in_its_own_format_only(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    made = await rest.instance("g", format="binary")
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    refused = await made.ask("GET", "/records", accept="application/vnd.kafka.json.v2+json")
    assert (refused.status_code, refused.json()["error_code"]) == (406, 40601)
    await rest.produce("flights", "x")
    served = await made.ask("GET", "/records", accept="application/vnd.kafka.json.v2+json;q=0.5, */*;q=0.1")
    assert served.headers["content-type"] == "application/vnd.kafka.binary.v2+json"
    assert served.json() == [{**PARTITION, "key": None, "value": "Ingi", "offset": 0}]


async def test_without_a_committed_offset_none_is_an_error_and_latest_begins_at_the_end(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", 1)
    strict = await rest.instance("g", **{"auto.offset.reset": "none"})
    await strict.do("POST", "/assignments", {"partitions": [PARTITION]})
    refused = await strict.ask("GET", "/records")
    assert (refused.status_code, refused.json()["error_code"]) == (400, 40002)
    late = await rest.instance("h", **{"auto.offset.reset": "latest"})
    await late.do("POST", "/assignments", {"partitions": [PARTITION]})
    assert await late.read(timeout=0) == []
    await rest.produce("flights", 2)
    assert await late.read_all(1) == [2]


async def test_a_page_that_was_delivered_behind_latest_is_read_again_when_its_instance_expires(
    rest: Rest, application: FastAPI
) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", 1)
    silent = await rest.instance("g", **{"auto.offset.reset": "latest"})
    await silent.subscribe("flights")
    await until(lambda: all(one.assignment for one in application.state.consumer_instances if one.group == "g"))
    assert await silent.read(timeout=0) == []
    await rest.produce("flights", 2, 3)
    (instance,) = [one for one in application.state.consumer_instances if one.group == "g"]
    assert await silent.read_all(2) == [2, 3]
    await instance.close(commit=False)  # as the table does it
    other = await rest.instance("g", **{"auto.offset.reset": "latest"})
    assert await other.committed("flights") == 1
    await other.subscribe("flights")
    assert await other.read_all(2) == [2, 3]


async def test_positions_and_a_page_of_a_topic_say_nothing_of_the_next_topic_of_its_name(
    rest: Rest, application: FastAPI
) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", 1, 2, 3)
    made = await rest.instance("g", **{"auto.commit.enable": False})
    await made.subscribe("flights")
    assert await made.read_all(3) == [1, 2, 3]
    (instance,) = [one for one in application.state.consumer_instances if one.group == "g"]
    same = instance.assignment
    await instance.taken(same, ())
    assert await made.read(timeout=0) == []
    await instance.taken(same, same)
    page = await instance.read(1_000, 1_000, ReadBudget().page())
    assert len(page.records) == 3
    await instance.taken(same, same)
    await instance.seek({same[0]: 0})
    instance.deliver(page)
    assert [one["value"] for one in await made.read(timeout=1_000)] == [1, 2, 3]


async def test_a_partition_that_leaves_during_its_commit_is_not_committed_again_and_the_client_is_told(
    rest: Rest, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.broker.create_topic("flights", partitions=2)
    made = await rest.instance("g")
    await made.subscribe("flights")
    (instance,) = [one for one in application.state.consumer_instances if one.group == "g"]
    await until(lambda: len(instance.assignment) == 2)
    kept, gone = sorted(instance.assignment)
    tries: list[list[int]] = []

    async def stale(self: GroupClient, identity: Any, group: str, offsets: Callable[[], Any], ids: Any) -> None:
        tries.append([one.partition for one in offsets()])
        await instance.taken([kept], ())
        await instance.taken([kept, gone], ())  # another member had it meanwhile
        tries.append([one.partition for one in offsets()])

    monkeypatch.setattr(GroupClient, "commit_as", stale)
    rows = [{"topic": "flights", "partition": index, "offset": 4} for index in (0, 1)]
    refused = await made.ask("POST", "/offsets", {"offsets": rows})
    monkeypatch.undo()
    assert tries == [[0, 1], [0]]
    assert (refused.status_code, refused.json()["error_code"]) == (409, 40903)
    assert refused.json()["message"].startswith("Partition flights-1 left the instance")


async def test_a_record_without_key_and_value_is_read_at_once(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", None)
    made = await rest.instance("g", **{"consumer.request.timeout.ms": 30_000})
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    assert await made.read_all(1) == [None]


async def test_a_read_waits_for_fetch_min_bytes_or_its_timeout(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    await rest.produce("flights", "ab")
    made = await rest.instance("g", **{"fetch.min.bytes": "8", "consumer.request.timeout.ms": "30000"})
    await made.do("POST", "/assignments", {"partitions": [PARTITION]})
    assert [one["value"] for one in await made.read(timeout=1)] == ["ab"]
    await rest.produce("flights", "cd")
    reading = asyncio.create_task(made.read())
    await rest.produce("flights", "ef")
    assert [one["value"] for one in await reading] == ["cd", "ef"]
