"""Instances belong to the caller who created them, need its rights, and end with its credential."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.http.callers import CallerLimits
from app.security.acls import Operation, ResourceType
from tests.http.secured import Secured, secured
from tests.support.waiting import until

V2 = "application/vnd.kafka.v2+json"
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
ONE = "/consumers/g/instances/one"


async def created(server: Secured, user: str, name: str = "one") -> None:
    while (answer := await server.ask(user, "/consumers/g", "POST", json={"name": name})).status_code == 503:
        pass  # until the topic of groups has a leader
    assert answer.status_code == 200, answer.text


def code(answer: Any) -> tuple[int, int]:
    return answer.status_code, answer.json()["error_code"]


async def test_a_caller_finds_its_own_instances_only_and_takes_no_name_from_others(tmp_path: Path) -> None:
    async with secured(tmp_path) as server:
        await server.add_user("bob", "carol")
        for user in ("bob", "carol"):
            await server.allow(user, (READ, GROUP, "g"), (READ, TOPIC, "t"))
        await server.broker.create_topic("t")
        await created(server, "bob")
        for method, path in (("GET", "/records"), ("GET", "/subscription"), ("POST", "/offsets"), ("DELETE", "")):
            answer = await server.ask("carol", ONE + path, method)
            assert code(answer) == (404, 40403), path
        await created(server, "carol")
        body = {"topics": ["t"]}
        assert (await server.ask("carol", f"{ONE}/subscription", "POST", json=body)).status_code == 204
        assert (await server.ask("bob", f"{ONE}/subscription")).json() == {"topics": []}
        assert (await server.ask("carol", ONE, "DELETE")).status_code == 204
        assert (await server.ask("bob", f"{ONE}/subscription")).json() == {"topics": []}


async def test_each_request_needs_the_rights_of_what_it_asks_the_broker(tmp_path: Path) -> None:
    async with secured(tmp_path) as server:
        await server.add_user("bob", "admin2")
        await server.broker.create_topic("t")
        await server.allow("admin2", (WRITE, TOPIC, "t"), (READ, TOPIC, "t"), (READ, GROUP, "g"))
        produced = {"records": [{"value": "YQ=="}]}
        assert (await server.ask("admin2", "/topics/t", "POST", json=produced)).status_code == 200

        assert code(await server.ask("bob", "/topics/t", "POST", json=produced))[0] in (403, 404)
        assert (await server.ask("bob", "/topics")).json() == []
        assert code(await server.ask("bob", "/consumers/g", "POST", json={})) == (403, 40301)
        await server.allow("bob", (DESCRIBE, GROUP, "g"))
        await created(server, "bob")
        subscribed = await server.ask("bob", f"{ONE}/subscription", "POST", json={"topics": ["t"]})
        assert code(subscribed) == (403, 40301)
        partitions = {"partitions": [{"topic": "t", "partition": 0}]}
        assert (await server.ask("bob", f"{ONE}/assignments", "POST", json=partitions)).status_code == 204
        assert code(await server.ask("bob", f"{ONE}/records"))[0] in (403, 404)
        await server.allow("bob", (DESCRIBE, TOPIC, "t"))
        refused = await server.ask("bob", "/topics/t", "POST", json=produced)
        assert refused.status_code == 403
        assert refused.json()["offsets"][0]["error_code"] == 40301
        await server.ask("bob", f"{ONE}/positions/beginning", "POST", json=partitions)
        assert code(await server.ask("bob", f"{ONE}/records")) == (403, 40301)
        offsets = {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}
        assert code(await server.ask("bob", f"{ONE}/offsets", "POST", json=offsets)) == (403, 40301)
        assert server.stored("t") == 1

        await server.allow("bob", (READ, TOPIC, "t"), (READ, GROUP, "g"))
        while (answer := await server.ask("bob", f"{ONE}/records")).content == b"[]":
            pass
        assert [one["value"] for one in answer.json()] == ["YQ=="]
        assert (await server.ask("bob", f"{ONE}/offsets", "POST", json=offsets)).status_code == 200


async def test_an_instance_keeps_the_login_of_its_caller_and_ends_when_the_user_is_removed(tmp_path: Path) -> None:
    limits = CallerLimits(check_again_s=0.2, idle_s=0.2)
    async with secured(tmp_path, limits=limits) as server:
        await server.add_user("bob")
        await server.allow("bob", (READ, GROUP, "g"))
        await created(server, "bob")
        instances = server.app.state.consumer_instances
        (made,) = instances
        checks = made.gateway.cluster.log_in_again
        seen = 0

        async def counted() -> None:
            nonlocal seen
            await checks()
            seen += 1

        made.gateway.cluster.log_in_again = counted
        await until(lambda: seen >= 3)  # the caller has been idle for longer than callers are kept
        assert [*instances] == [made]
        await server.remove_user("bob")
        await until(lambda: len(instances) == 0)
        assert made.closed


async def test_a_caller_that_only_instances_keep_makes_room_for_one_with_a_request(tmp_path: Path) -> None:
    async with secured(tmp_path, limits=CallerLimits(callers_max=2)) as server:
        await server.add_user("bob", "carol", "dave")
        for user in ("bob", "carol"):
            await server.allow(user, (READ, GROUP, "g"))
            await created(server, user)
        instances = server.app.state.consumer_instances
        assert len(instances) == 2
        assert (await server.ask("dave", "/brokers")).status_code == 200
        await until(lambda: len(instances) == 1)
        assert code(await server.ask("bob", f"{ONE}/subscription"))[0] == 404
