"""HTTP requests with credentials, on a broker with logins and rules: each is served by the rights of its own caller."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import ConfigError
from app.http.access import HEALTH_PATHS
from app.http.application import create_app
from app.http.callers import BUSY, CallerLimits, HttpCaller, network_of
from app.http.credentials import Basic, Bearer, Credential, NotACredential, digest_of, read_authorization
from app.http.gateway import Gateway, HttpSettings
from app.http.server import run
from app.machine.runtime import SystemClock
from app.metadata.image.records import SECURITY_LEVEL
from app.security.acls import CLUSTER_NAME, Operation, ResourceType
from app.security.scram import ScramMechanism, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from tests.http.secured import ADMIN, Secured, basic, secured
from tests.support.routes import served_routes
from tests.support.secured import certificates, listener, security
from tests.support.several import cluster_on


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured(tmp_path) as running:
        await running.add_user("carol", "dave")
        for name in ("hers", "his"):
            await running.broker.create_topic(name)
        await running.allow("carol", (Operation.WRITE, ResourceType.TOPIC, "hers"))
        await running.allow("dave", (Operation.WRITE, ResourceType.TOPIC, "his"))
        yield running


async def test_the_broker_decides_what_a_caller_may_do(http: Secured) -> None:
    written = await http.produce("carol", "hers")
    assert written.status_code == 200, written.text
    refused = await http.produce("carol", "his")
    assert (refused.status_code, refused.json()["error_code"]) == (403, 40301)
    assert refused.json()["message"] == "The user has no right to do that with topic his."
    assert (http.stored("hers"), http.stored("his")) == (1, 0)
    listed = await http.ask("dave", f"{http.cluster}/topics")
    assert [one["topic_name"] for one in listed.json()["data"]] == ["his"]
    forbidden = await http.ask("dave", f"{http.cluster}/topics", "POST", json={"topic_name": "new"})
    assert forbidden.status_code == 403, forbidden.text
    assert (await http.ask("dave", f"{http.cluster}/topics/hers", "DELETE")).status_code == 403
    step = {"step": "begin", "inputs": [str(UUID(int=1))], "segment_id": str(UUID(int=2)), "end_offset": 1}
    replaced = await http.ask("carol", "/firn/v1/topics/hers/partitions/0/replacements", "POST", json=step)
    assert (replaced.status_code, replaced.json()["error_code"]) == (403, 40301), replaced.text
    [broker] = http.broker.node.cluster.image.brokers
    configs = await http.ask("carol", f"{http.cluster}/brokers/{broker}/configs")
    assert configs.status_code == 403, configs.text


OPEN_TO_ALL_USERS = {
    "/", "/docs", "/openapi.json", "/v3/clusters", "/v3/clusters/{cluster_id}", "/v3/clusters/{cluster_id}/brokers",
    "/v3/clusters/{cluster_id}/brokers/{broker_id}", "/v3/clusters/{cluster_id}/brokers/{broker_id}/partition-replicas",
    "/v3/clusters/{cluster_id}/topics", "/v3/clusters/{cluster_id}/topics/-/configs",
    "/v3/clusters/{cluster_id}/consumer-groups", "/v3/clusters/{cluster_id}/share-groups", "/brokers", "/topics",
    "/console/topics", "/console/live/topics", "/console/groups", "/console/brokers", "/console/transactions", "/console/login",
    "/console/runbooks",
}  # fmt: skip
"""GET of these. Lists have only those elements that the user may describe; of brokers they have all."""
OF_THE_REGISTRY = (
    "/subjects", "/schemas", "/config", "/mode", "/compatibility", "/contexts", "/v1/metadata", "/exporters", "/dek-registry",
    "/console/schemas",
)  # fmt: skip
"""Beginnings of routes that need a newer cluster. ``test_rights.py`` asks them."""
OF_CONSOLE = ("/console/login", "/console/assets/")
"""Beginnings of routes that need no caller."""
OF_SEVERAL = ("POST", "/v3/clusters/{cluster_id}/topics/-/configs:alter")
"""Its answer names each topic that it did not change, as the request did."""
OTHERWISE = {
    ("GET", "/console"): 303,
    ("GET", "/console/assets/{name}"): 404,
    ("GET", "/console/runbooks/{name}"): 404,
    OF_SEVERAL: 207,
}
"""A page that leads elsewhere, files that there are not, and an answer with an error for each topic."""
OF_INSTANCES = "/consumers"
"""``rest_v2/test_callers_of_instances.py`` asks these."""
ACL = {
    "resource_type": "TOPIC", "resource_name": "hers", "pattern_type": "LITERAL", "principal": "User:frank", "host": "*",
    "operation": "READ", "permission": "ALLOW",
}  # fmt: skip
BODIES: dict[str, Any] = {
    "/topics": {"topic_name": "made"},
    "/topics/{topic_name}": {"partitions_count": 7},
    "topics/-/configs:alter": {"data": [{"topic_name": "hers", "configs": [{"name": "retention.ms", "value": "7"}]}]},
    "configs:alter": {"data": [{"name": "retention.ms", "value": "7"}]},
    "configs/{name}": {"value": "7"},
    "/acls": ACL,
    "/acls:batch": {"data": [ACL]},
    "/records": {"value": {"data": 1}},
    "/replacements": {"step": "begin", "inputs": [str(UUID(int=1))], "segment_id": str(UUID(int=2)), "end_offset": 1},
}


async def test_a_user_without_rights_gets_nothing_from_any_route(http: Secured) -> None:
    await http.add_user("frank")
    image = http.broker.node.cluster.image
    [broker] = image.brokers
    names = {
        "cluster_id": image.cluster_id,
        "topic_name": "hers",
        "partition_id": 0,
        "broker_id": broker,
        "name": "retention.ms",
        "offset": 0,
        "consumer_group_id": "group",
        "group_id": "group",
        "consumer_id": "member",
        "transactional_id": "hers",
    }
    before = image.topics_by_name
    asked = sorted(
        (method, path)
        for method, path in served_routes(http.app)
        if path not in HEALTH_PATHS and not path.startswith((*OF_THE_REGISTRY, OF_INSTANCES))
    )
    assert len(asked) > 20
    for method, path in asked:
        body = next((body for end, body in BODIES.items() if path.endswith(end)), None)
        query = "?resource_type=ANY&pattern_type=ANY&operation=ANY&permission=ANY" if path.endswith("/acls") else ""
        url = path.format(**names) + (query if method == "DELETE" else "")
        answer = await http.ask("frank", url, method, json=body if method in ("POST", "PUT", "PATCH") else None)
        expected = 200 if (method, path) in {("GET", one) for one in OPEN_TO_ALL_USERS} else 403
        expected = OTHERWISE.get((method, path), expected)
        assert answer.status_code == expected, (method, path, answer.text)
        if (method, path) == OF_SEVERAL:
            assert [one["error_code"] for one in answer.json()["failures"]] == [40301], answer.text
        else:
            assert not path.startswith("/v3/") or expected == 403 or "hers" not in answer.text, (method, path)
    assert http.broker.node.cluster.image.topics_by_name == before
    assert (http.stored("hers"), http.stored("his")) == (0, 0)


async def test_nobody_is_served_without_a_credential_that_counts(http: Secured) -> None:
    routes = sorted(served_routes(http.app))
    assert len(routes) > 20
    for method, path in [*routes, ("GET", "/no/such/path")]:
        answer = await http.client.request(method, path)
        if path.startswith(OF_CONSOLE):
            assert answer.status_code in (200, 403, 404), (method, path)
            continue
        assert answer.status_code == (200 if path in HEALTH_PATHS else 401), (method, path)
        if answer.status_code == 401:
            assert answer.headers.get_list("www-authenticate", split_commas=False)[0].startswith("Basic realm=")
    seen = set()
    for headers in (
        basic("carol", "wrong"),
        basic("nobody", "carol-secret"),
        basic("carol", "dave-secret"),
        basic("carol", "x\0y"),
        basic("", "x"),
        {"Authorization": "Basic %%%"},
        {"Authorization": "Negotiate abc"},
        {"Authorization": "Bearer a.b.c"},
    ):
        answer = await http.get("/v3/clusters", **headers)
        seen.add((answer.status_code, answer.text, *answer.headers.get_list("www-authenticate")))
    assert seen == {
        (401, '{"error_code":40101,"message":"Authentication failed."}', 'Basic realm="Firn", charset="UTF-8"')
    }
    assert not http.callers._known


async def test_a_user_that_does_not_exist_costs_the_logins_and_hashes_of_a_wrong_password(
    http: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[tuple[ScramMechanism, int]] = []

    def counted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        hashed.append((mechanism, iterations))
        return salted_password(mechanism, password, salt, iterations)

    monkeypatch.setattr("app.security.scram.salted_password", counted)

    def failures() -> dict[Any, float]:
        samples = http.broker.node.registry.samples()
        return {one.labels: one.value for one in samples if one.name == "firn_login_failures_total"}

    seen = []
    for user, password in (("carol", "wrong"), ("nobody", "wrong"), ("nobody", "carol-secret")):
        before, lines = failures(), len(http.broker.lines)
        hashed.clear()
        answer = await http.ask(user, f"{http.cluster}/topics", password=password)
        headers = [(name, value) for name, value in answer.headers.raw if name != b"date"]
        spent = {labels: value - before.get(labels, 0.0) for labels, value in failures().items()}
        seen.append((answer.status_code, answer.content, headers, list(hashed), spent))
        assert not any(user in line for line in http.broker.lines[lines:])
    assert seen[0][0] == 401
    assert [mechanism for mechanism, _ in seen[0][3]] == [ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256]
    assert set(seen[0][4].values()) == {1.0}
    assert seen[0] == seen[1] == seen[2]


# --- nobody is served as somebody else --------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(5))
async def test_callers_who_take_turns_are_never_mixed(http: Secured, seed: int) -> None:
    """Requests of four callers and wrong ones, begun and ended in any order, while callers are put out and ended between."""
    rng = random.Random(seed)
    await http.add_user("erin", "frank")
    await http.allow("erin", (Operation.READ, ResourceType.TOPIC, "hers"))
    own = {"carol": ["hers"], "dave": ["his"], "erin": ["hers"], "frank": []}
    may_write = {("carol", "hers"), ("dave", "his")}
    wrote = {"hers": 0, "his": 0}
    running = 0

    async def one() -> None:
        nonlocal running
        running += 1
        user, topic = rng.choice(list(own)), rng.choice(["hers", "his"])
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        match rng.randrange(5):
            case 0:
                listed = await http.ask(user, f"{http.cluster}/topics")
                assert listed.status_code in (200, 401), listed.text
                if listed.status_code == 200:
                    assert [found["topic_name"] for found in listed.json()["data"]] == own[user]
            case 1:
                refused = await http.produce(user, topic, password="guess")
                assert refused.status_code == 401
            case 2 if http.callers._known:
                http.callers.end(rng.choice(list(http.callers._known.values())))
            case _:
                written = await http.produce(user, topic)
                if (user, topic) in may_write:
                    # A caller who is ended in the middle may not learn what became of the record.
                    assert written.status_code in (200, 401, 503), written.text
                    wrote[topic] += written.status_code == 200
                else:
                    assert written.status_code in (403, 401, 503), written.text

    for _ in range(12):
        await asyncio.gather(*(one() for _ in range(rng.randrange(1, 12))))
    assert running > 20
    for topic, count in wrote.items():
        assert http.stored(topic) >= count
    writers = {one.caller.principal for one in (core.core for core in http.broker.node.server._connections)}
    assert writers <= {f"User:{name}" for name in own} | {"User:ANONYMOUS"}


@pytest.mark.ci
async def test_every_broker_of_a_cluster_knows_whose_requests_come(tmp_path: Path) -> None:
    """Partitions of a topic are led by two brokers. Both let one caller write, and not the other."""
    doors = (listener("PLAINTEXT"), listener("SASL_PLAINTEXT", mechanisms="PLAIN,SCRAM-SHA-512"))
    async with AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(
            cluster_on(
                tmp_path,
                2,
                new_level=SECURITY_LEVEL,
                authorizer_class_name=STANDARD_AUTHORIZER,
                super_users="User:alice;User:ANONYMOUS",
                **security(*doors),
            )
        )
        settings = HttpSettings(
            bootstrap=(("127.0.0.1", brokers[0].node.ports["SASL_PLAINTEXT"]),),
            linger_ms=0,
            client={"security.protocol": "SASL_PLAINTEXT"},
        )
        app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
        await stack.enter_async_context(app.router.lifespan_context(app))
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")
        http = Secured(brokers[0], app, await stack.enter_async_context(web))
        await http.add_user("carol", "dave")
        await http.allow("carol", (Operation.WRITE, ResourceType.TOPIC, "hers"))
        # Without a right to write to any topic he would not be given a producer id, and so ask no leader.
        await http.allow(
            "dave", (Operation.DESCRIBE, ResourceType.TOPIC, "hers"), (Operation.WRITE, ResourceType.TOPIC, "his")
        )
        made = await http.ask("carol", f"{http.cluster}/topics", "POST", json={"topic_name": "hers"})
        assert made.status_code == 403
        async with http.admin() as admin:
            wanted = CreatableTopic(name="hers", num_partitions=4, replication_factor=1)
            answer = await admin.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[wanted], timeout_ms=30_000))
            assert [one.error_code for one in answer.topics] == [0]

        async def write(user: str, partition: int) -> int:
            body = {"partition_id": partition, "value": {"data": user}}
            return (await http.ask(user, f"{http.cluster}/topics/hers/records", "POST", json=body)).status_code

        asked = [(user, partition) for partition in range(4) for user in ("carol", "dave")] * 3
        random.Random(5).shuffle(asked)
        statuses = await asyncio.gather(*(write(*one) for one in asked))
        assert [*zip([user for user, _ in asked], statuses, strict=True)] == [
            (user, 200 if user == "carol" else 403) for user, _ in asked
        ]
        for broker in brokers:
            stored = [one for one in range(4) if broker.node.logs.get("hers", one) is not None]
            assert [broker.log("hers", one).log_end_offset for one in stored] == [3] * len(stored)
            assert stored
            principals = {one.core.caller.principal for one in broker.node.server._connections}
            assert {"User:carol", "User:dave"} <= principals


async def test_requests_with_one_credential_share_its_connections(http: Secured) -> None:
    before = http.broker.node.server.connection_metrics.accepted.value
    answers = await asyncio.gather(*(http.ask("carol", f"{http.cluster}/topics") for _ in range(30)))
    assert [one.status_code for one in answers] == [200] * 30
    # One asks which mechanisms there are, one logs in as carol.
    assert http.broker.node.server.connection_metrics.accepted.value - before == 2
    assert len(http.callers._known) == 1
    assert not [line for line in http.broker.lines if "closing the connection" in line], (
        "the broker minds nothing of it"
    )


async def test_a_credential_is_shown_nowhere(http: Secured) -> None:
    assert (await http.ask("carol", f"{http.cluster}/topics")).status_code == 200
    [caller] = http.callers._known.values()
    shown = repr((http.callers, vars(http.callers), caller, vars(caller), caller.dialer._security, http.broker.lines))
    for secret in ("carol-secret", base64.b64encode(b"carol:carol-secret").decode()):
        assert secret not in shown


# --- how long a credential counts -------------------------------------------------------------------------------------


async def test_a_removed_user_is_served_no_longer_than_until_the_next_check(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol")
        assert (await http.ask("carol", "/v3/clusters")).status_code == 200
        await http.remove_user("carol")
        assert (await http.ask("carol", "/v3/clusters")).status_code == 200, "as with Kafka, its connection stays"
        [caller] = http.callers._known.values()
        caller.check_s = 0.0  # the time has come
        answer = await http.ask("carol", "/v3/clusters")
        assert (answer.status_code, "www-authenticate" in answer.headers) == (401, True)
        assert caller.ended
        assert not http.callers._known


async def test_a_caller_who_stays_is_checked_while_its_requests_are_served(http: Secured) -> None:
    assert (await http.ask("carol", "/v3/clusters")).status_code == 200
    [caller] = http.callers._known.values()
    before_s, caller.check_soon_s = caller.check_s, 0.0
    assert (await http.ask("carol", "/v3/clusters")).status_code == 200
    async with asyncio.timeout(60):
        while caller.check_s == before_s:
            await asyncio.sleep(0.01)
    assert not caller.ended
    assert caller.check_soon_s < caller.check_s
    await http.remove_user("carol")
    caller.check_soon_s = 0.0
    assert (await http.ask("carol", "/v3/clusters")).status_code == 200
    async with asyncio.timeout(60):
        while not caller.ended:
            await asyncio.sleep(0.01)
    assert (await http.ask("carol", "/v3/clusters")).status_code == 401


async def test_a_caller_whose_connection_must_be_opened_again_after_its_removal_is_told_to_log_in(
    http: Secured,
) -> None:
    assert (await http.ask("carol", "/v3/clusters")).status_code == 200
    await http.remove_user("carol")
    [caller] = http.callers._known.values()
    for connection in caller.gateway.cluster._connections.values():
        await connection.close()
    answer = await http.ask("carol", f"{http.cluster}/topics")
    assert (answer.status_code, answer.json()["message"]) == (401, "Authentication failed.")
    assert answer.headers["www-authenticate"].startswith("Basic")
    assert caller.ended


@pytest.mark.ci
async def test_who_has_left_is_forgotten_and_its_connections_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[HttpCaller] = []

    class Noted(HttpCaller):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr("app.http.callers.HttpCaller", Noted)
    async with secured(tmp_path, limits=CallerLimits(idle_s=0.05)) as http:
        await http.add_user("carol")
        assert (await http.ask("carol", "/v3/clusters")).status_code == 200
        async with asyncio.timeout(60):
            while http.callers._known:
                await asyncio.sleep(0.01)
        assert made
        for caller in made:
            assert caller.ended
            await until_closed(caller)


async def until_closed(caller: Any) -> None:
    async with asyncio.timeout(30):
        while caller.gateway.cluster._connections:
            await asyncio.sleep(0.01)


async def test_a_request_under_way_is_checked_again_and_ends_with_its_credential(tmp_path: Path) -> None:
    """A stream of records, whose user is removed in the middle."""
    async with secured(tmp_path, limits=CallerLimits(check_again_s=0.05)) as http:
        await http.add_user("carol")
        await http.broker.create_topic("hers")
        await http.allow("carol", (Operation.WRITE, ResourceType.TOPIC, "hers"))
        more = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b'{"value":{"data":1}}'
            await http.remove_user("carol")
            await more.wait()

        # httpx's transport gives the whole answer at once, so the stream ends by itself or not at all.
        path = f"{http.cluster}/topics/hers/records"
        answer = await http.client.post(path, content=body(), headers=basic("carol", "carol-secret"))
        first, second = answer.text.strip().split("\n") if "\n" in answer.text.strip() else answer.text.split("}{")
        assert '"error_code":200' in first
        assert '"error_code":40101' in second
        assert http.stored("hers") == 1


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.ci
async def test_credentials_that_are_refused_leave_nothing_behind(tmp_path: Path) -> None:
    async with secured(tmp_path, limits=CallerLimits(callers_max=3, login_wait_s=60)) as http:
        await http.add_user("carol")
        assert (await http.ask("carol", "/v3/clusters")).status_code == 200
        for begin in range(0, 300, 30):
            guesses = [http.ask("carol", "/v3/clusters", password=f"guess-{begin + more}") for more in range(30)]
            assert {one.status_code for one in await asyncio.gather(*guesses)} == {401}
        callers = http.callers
        assert (len(callers._known), len(callers._logins), len(callers._turns._by_address)) == (1, 0, 0)
        assert not callers._tasks
        assert (await http.ask("carol", "/v3/clusters")).status_code == 200, "nobody was put out"


async def test_places_are_bounded_and_go_to_whoever_was_there_last(tmp_path: Path) -> None:
    async with secured(tmp_path, limits=CallerLimits(callers_max=2)) as http:
        await http.add_user("a", "b", "c")
        for user in ("a", "b", "a", "c"):
            assert (await http.ask(user, "/v3/clusters")).status_code == 200
        users = [one.dialer._security.user for one in http.callers._known.values()]
        assert users == ["a", "c"], "b was unused longest"
        for caller in http.callers._known.values():
            caller.requests += 1
        busy = await http.ask("b", "/v3/clusters")
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
        for caller in http.callers._known.values():
            caller.requests -= 1
        assert (await http.ask("b", "/v3/clusters")).status_code == 200


async def test_a_login_that_gets_no_place_leaves_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Gateway] = []

    class Noted(Gateway):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)

    monkeypatch.setattr("app.http.callers.Gateway", Noted)
    async with secured(tmp_path, limits=CallerLimits(callers_max=1)) as http:
        await http.add_user("a", "b")
        assert (await http.ask("a", "/v3/clusters")).status_code == 200
        [caller] = http.callers._known.values()
        caller.requests += 1
        busy = await http.ask("b", "/v3/clusters")
        assert (busy.status_code, busy.json()["message"]) == (503, BUSY.message)
        assert (await http.ask("b", "/v3/clusters", password="guess")).status_code == 401
        assert len(made) > 2
        assert [one for one in made if not one.cluster._closed] == [caller.gateway]
        caller.requests -= 1


async def test_logins_of_one_address_wait_for_one_another_and_not_for_ever(tmp_path: Path) -> None:
    limits = CallerLimits(logins_per_address_max=1, login_wait_s=0.3)
    async with secured(tmp_path, limits=limits, delay_ms=60_000) as http:
        await http.add_user("carol")
        await http.callers.mechanisms()
        guess = asyncio.create_task(http.ask("carol", "/v3/clusters", password="guess"))
        while not http.callers._turns._by_address:
            await asyncio.sleep(0.01)
        assert (await http.ask("carol", "/v3/clusters")).status_code == 503, "the guess is answered after a minute"
        transport = httpx.ASGITransport(app=http.app, client=("10.0.0.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
            answer = await other.get("/v3/clusters", headers=basic("carol", "carol-secret"))
            assert answer.status_code == 200, "another address does not wait for it"
        guess.cancel()


@pytest.mark.ci
async def test_a_guess_takes_as_long_as_the_broker_says(tmp_path: Path) -> None:
    async with secured(tmp_path, delay_ms=400) as http:
        await http.add_user("carol")
        loop = asyncio.get_running_loop()
        for user in ("carol", "nobody"):
            began_s = loop.time()
            assert (await http.ask(user, "/v3/clusters", password="guess")).status_code == 401
            assert loop.time() - began_s >= 0.4


# --- metrics, health, and the process's own user ----------------------------------------------------------------------


async def test_metrics_ask_for_the_right_to_describe_the_cluster(http: Secured) -> None:
    assert (await http.get("/metrics")).status_code == 401
    refused = await http.ask("carol", "/metrics")
    assert (refused.status_code, refused.json()["error_code"]) == (403, 40301)
    await http.allow("carol", (Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME))
    told = await http.ask("carol", "/metrics")
    assert told.status_code == 200
    assert 'firn_http_logins_total{process="http",outcome="accepted"} 1' in told.text
    assert 'firn_http_callers{process="http"} 1' in told.text
    assert "firn_broker_up{" in told.text
    assert "carol" not in told.text


async def test_health_needs_no_user_and_tells_whether_a_broker_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.asked_once.KEPT_S", 0.0)
    async with secured(tmp_path) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200
        http.callers._settings = HttpSettings(bootstrap=(("127.0.0.1", 1),))
        assert (await http.get("/readyz")).status_code == 503
        answer = await http.ask("carol", "/v3/clusters")
        assert answer.status_code == 503


async def test_requests_without_a_credential_have_a_user_only_if_that_is_said(tmp_path: Path) -> None:
    own = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "web",
        "sasl.password": "web-secret",
    }
    async with secured(tmp_path, client=own) as http:
        await http.add_user("web")
        assert (await http.get(f"{http.cluster}/topics")).status_code == 401
    async with secured(tmp_path, client=own, anonymous=True) as http:
        await http.add_user("carol")
        for name, user in (("hers", "carol"), ("open", "web")):
            await http.broker.create_topic(name)
            await http.allow(user, (Operation.WRITE, ResourceType.TOPIC, name))
        listed = await http.get(f"{http.cluster}/topics")
        assert [one["topic_name"] for one in listed.json()["data"]] == ["open"]
        listed = await http.ask("carol", f"{http.cluster}/topics")
        assert [one["topic_name"] for one in listed.json()["data"]] == ["hers"]
        assert (await http.ask("carol", "/v3/clusters", password="guess")).status_code == 401
        assert (await http.get("/metrics")).status_code == 403


# --- mechanisms -------------------------------------------------------------------------------------------------------


async def test_a_user_of_either_kind_of_scram_logs_in(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("old", mechanism=ScramMechanism.SCRAM_SHA_256)
        assert (await http.ask("old", "/v3/clusters")).status_code == 200
        assert (await http.ask(*ADMIN[:1], "/v3/clusters")).status_code == 401, "PLAIN's users are others"


async def test_a_password_is_told_to_a_broker_by_plain_over_tls_only(tmp_path: Path, folder: Path) -> None:
    open_door = listener("SASL_PLAINTEXT", connection_failed_authentication_delay_ms=0)
    async with secured(tmp_path / "plain", door=open_door) as http:
        assert (await http.ask("alice", "/v3/clusters")).status_code == 401
        assert "User:alice" not in {one.core.caller.principal for one in http.broker.node.server._connections}
    trust = {"security.protocol": "SASL_SSL", "ssl.truststore.location": str(folder / "ca.pem")}
    for name, client, status in (
        ("tls", trust, 200),
        ("unchecked", {**trust, "ssl.endpoint.identification.algorithm": ""}, 401),
    ):
        async with secured(tmp_path / name, door=listener("SASL_SSL", folder), client=client) as http:
            assert (await http.ask("alice", "/v3/clusters")).status_code == status, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "c")


@pytest.mark.ci
async def test_a_token_is_a_caller_until_it_expires(tmp_path: Path, folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{**jwk, "kid": "one"}]}))
    door = listener(
        "SASL_SSL",
        folder,
        mechanisms="OAUTHBEARER,SCRAM-SHA-512",
        sasl_oauthbearer_jwks_endpoint_url=keys.as_uri(),
        sasl_oauthbearer_expected_audience="firn",
    )

    def bearer(expires_s: float, algorithm: str = "RS256", secret: Any = key) -> dict[str, str]:
        claims = {"sub": "alice", "aud": "firn", "exp": expires_s}
        return {"Authorization": "Bearer " + jwt.encode(claims, secret, algorithm, headers={"kid": "one"})}

    trust = {"security.protocol": "SASL_SSL", "ssl.truststore.location": str(folder / "ca.pem")}
    async with secured(tmp_path, door=door, client=trust) as http:
        now_s = time.time()
        for headers, status in (
            (bearer(now_s + 600), 200),
            (bearer(now_s - 600), 401),
            (bearer(now_s - 5), 401),  # within the skew of clocks a broker lets it in, for no time
            (bearer(now_s + 600, "HS256", "x" * 32), 401),
            (bearer(now_s + 600, "none", None), 401),
            (bearer(now_s + 600, secret=rsa.generate_private_key(public_exponent=65537, key_size=2048)), 401),
        ):
            answer = await http.get(f"{http.cluster}/topics", **headers)
            assert answer.status_code == status, (headers, answer.text)
        schemes = [one.partition(" ")[0] for one in answer.headers.get_list("www-authenticate", split_commas=False)]
        assert schemes == ["Basic", "Bearer"]
        [caller] = http.callers._known.values()
        http.callers.end(caller)
        await until_closed(caller)

        loop = asyncio.get_running_loop()
        for lasts_s in (3, 10, 30):  # a machine that stands still may find the first one at its end
            began_s, soon = loop.time(), bearer(time.time() + lasts_s)
            answer = await http.get(f"{http.cluster}/topics", **soon)
            if answer.status_code == 200:
                break
        assert answer.status_code == 200, answer.text
        [caller] = http.callers._known.values()
        assert began_s < caller.check_s <= loop.time() + lasts_s
        async with asyncio.timeout(60):
            while (answer := await http.get(f"{http.cluster}/topics", **soon)).status_code == 200:
                await asyncio.sleep(0.05)
        assert answer.status_code == 401, answer.text
        assert time.time() >= now_s + 3
        await until_closed(caller)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "host", "words"),
    [
        (
            {"client": {"security.protocol": "SASL_SSL"}},
            "0.0.0.0",
            "would take passwords and tokens without encryption",
        ),
        ({"client": {"security.protocol": "SASL_SSL"}}, "firn.example", "--plain-credentials"),
        (
            {"client": {"security.protocol": "SASL_SSL"}, "allowed_origins": ("*",)},
            "127.0.0.1",
            "a browser would send the password",
        ),
        ({"client": {"security.protocol": "SSL", "ssl.keystore.location": "x"}}, "127.0.0.1", "the rights of its own"),
        ({"client": {"security.protocol": "SASL_SSL"}, "anonymous": True}, "127.0.0.1", "sasl.mechanism"),
    ],
)
def test_settings_that_give_rights_away_are_refused(settings: dict[str, Any], host: str, words: str) -> None:
    made = HttpSettings(bootstrap=(("127.0.0.1", 1),), **settings)
    with pytest.raises(ConfigError, match=words):
        run(made, host=host, port=0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("a", "b", False),
    ],
)
def test_one_machine_is_one_address(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


@given(st.binary(max_size=80), st.sampled_from([b"", b"Basic ", b"Bearer ", b"basic ", b"Negotiate "]))
def test_no_header_breaks_what_reads_it(text: bytes, scheme: bytes) -> None:
    try:
        found = read_authorization([scheme + text])
    except NotACredential:
        return
    assert isinstance(found, Basic | Bearer)
    if isinstance(found, Basic):
        assert found.user
        assert found.password
        assert "\0" not in found.user + found.password


@given(*[st.one_of(st.builds(Basic, st.text(), st.text()), st.builds(Bearer, st.text()))] * 2)
def test_only_equal_credentials_have_equal_digests(one: Credential, other: Credential) -> None:
    assert (digest_of(b"k", one) == digest_of(b"k", other)) is (one == other)
    assert digest_of(b"k", one) != digest_of(b"l", one)
