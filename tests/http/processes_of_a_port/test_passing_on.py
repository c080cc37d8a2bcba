"""Requests for a consumer instance reach it through any worker of the port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.addresses import parse_networks
from app.http.gateway import HttpSettings
from app.http.passing_on import PassingOn, group_in, owner_in
from app.http.processes.frames import PassedRequest, Piece, read
from app.http.processes.siblings import Siblings
from app.http.processes.worker import Worker
from app.security.acls import Operation, ResourceType
from tests.http.processes_of_a_port.workers import Served, name_for, workers
from tests.http.rest_v2.clients import Instance, Rest
from tests.http.secured import basic, secured
from tests.support.broker import RunningBroker, running_broker

V2 = "application/vnd.kafka.v2+json"
PAGE = "https://ui.example"


def scope_of(raw_path: str) -> dict[str, Any]:
    return {"path": httpx.URL(f"http://firn{raw_path}").path, "raw_path": raw_path.encode()}


@pytest.mark.parametrize(
    "path",
    [
        "/consumers/g/instances/{}",
        "/consumers/g/instances/{}/",
        "/consumers/g/instances/{}/records",
        "/consumers/%67/instances/{}/positions/end",
    ],
)
def test_all_paths_of_an_instance_have_one_owner(path: str) -> None:
    for owner in range(5):
        name = name_for(owner, "g", 5)
        assert owner_in(scope_of(path.format(name)), 5) == owner
        assert owner_in(scope_of(path.format(f"%{ord(name[0]):x}{name[1:]}")), 5) == owner
        assert owner_in(scope_of(path.format(f"rest-consumer-{owner}-{'0' * 24}")), 5) == owner


def test_a_group_with_a_slash_is_one_group() -> None:
    assert group_in(scope_of("/consumers/a%2Fb")) == "a/b"
    name = name_for(3, "a/b", 5)
    assert owner_in(scope_of(f"/consumers/a%2Fb/instances/{name}"), 5) == 3


@pytest.mark.parametrize(
    "path",
    [
        "/consumers/g",
        "/consumers/g/instances",
        "/consumers/g/other/x",
        "/topics/consumers/g/instances/x",
        "/v3/clusters",
    ],
)
def test_other_requests_have_no_owner(path: str) -> None:
    assert owner_in(scope_of(path), 5) is None


@pytest.mark.parametrize("path", ["/", "/console", "/console/login", "/console/topics/t"])
def test_pages_of_the_console_belong_to_one_worker_which_has_the_sessions_of_browsers(path: str) -> None:
    assert owner_in(scope_of(path), 5) == 0


# --- on a broker ------------------------------------------------------------------------------------------------------


@pytest.fixture(name="broker")
async def _broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path / "broker", num_partitions=1) as running:
        yield running


@pytest.fixture(name="two")
async def _two(broker: RunningBroker, tmp_path: Path) -> AsyncIterator[list[Served]]:
    settings = HttpSettings(
        bootstrap=(("127.0.0.1", broker.port),), allowed_hosts=("firn",), allowed_origins=(PAGE,), linger_ms=0
    )
    async with workers(settings, tmp_path) as two:
        async with asyncio.timeout(60):
            while (await two[0].client.post("/consumers/first")).status_code == 503:
                await asyncio.sleep(0.01)  # until the topic of groups has a leader
        yield two


async def test_an_instance_is_used_through_each_worker(two: list[Served], broker: RunningBroker) -> None:
    await broker.create_topic("flights")
    first, second = (Rest(one.client, broker) for one in two)
    await first.produce("flights", 1, 2, 3)
    for owner in (0, 1):
        for group, creating, using in ((f"a{owner}", first, second), (f"b{owner}", second, first)):
            made = await creating.instance(group, name_for(owner, group))
            await Instance(using, made.uri, made.form).subscribe("flights")
            assert await made.read_all(3) == [1, 2, 3]
            await Instance(using, made.uri, made.form).do("POST", "/offsets")
            assert await made.committed("flights") == 3
            offsets = {"offsets": [{"topic": "flights", "partition": 0, "offset": 0}]}
            await Instance(using, made.uri, made.form).do("POST", "/positions", offsets)
            assert await Instance(using, made.uri, made.form).read_all(3) == [1, 2, 3]
            await Instance(using, made.uri, made.form).do("DELETE", "")
            assert (await made.ask("GET", "/records")).status_code == 404


async def test_an_instance_without_a_name_stays_with_the_worker_that_was_asked(
    two: list[Served], broker: RunningBroker
) -> None:
    made = await Rest(two[1].client, broker).instance("g")
    assert "/instances/rest-consumer-1-" in made.uri
    assert len(two[1].app.state.consumer_instances) == 1
    other = Instance(Rest(two[0].client, broker), made.uri, made.form)
    assert await other.do("GET", "/subscription") == {"topics": []}


async def test_a_name_is_unique_for_all_workers(two: list[Served], broker: RunningBroker) -> None:
    name = name_for(1, "g")
    await Rest(two[0].client, broker).instance("g", name)
    for one in two:
        again = await one.client.post("/consumers/g", json={"name": name}, headers={"content-type": V2})
        assert (again.status_code, again.json()["error_code"]) == (409, 40902)
    assert [len(one.app.state.consumer_instances) for one in two][1] == 1


async def test_pages_of_other_origins_get_their_headers_once(two: list[Served], broker: RunningBroker) -> None:
    name = name_for(1, "g")
    headers = {"origin": PAGE, "content-type": V2}
    made = await two[0].client.post("/consumers/g", json={"name": name}, headers=headers)
    asked = await two[0].client.get(f"/consumers/g/instances/{name}/subscription", headers={"origin": PAGE})
    for answer in (made, asked):
        assert answer.status_code == 200
        assert answer.headers.get_list("access-control-allow-origin") == [PAGE]
    refused = await two[0].client.get(
        f"/consumers/g/instances/{name}/subscription", headers={"origin": "https://evil.example"}
    )
    assert refused.status_code == 403


async def test_head_of_an_instance_of_another_worker_has_no_body_and_reads_nothing(
    two: list[Served], broker: RunningBroker
) -> None:
    await broker.create_topic("flights")
    rest = Rest(two[0].client, broker)
    await rest.produce("flights", 1)
    made = await rest.instance("g", name_for(1, "g"))
    await made.subscribe("flights")
    head = await made.ask("HEAD", "/records", accept="application/vnd.kafka.json.v2+json")
    assert (head.status_code, head.content) == (200, b"")
    assert await made.read_all(1) == [1]


async def test_the_instances_of_a_worker_that_ended_are_not_found_and_others_go_on(
    two: list[Served], broker: RunningBroker
) -> None:
    rest = Rest(two[0].client, broker)
    lost, kept = await rest.instance("g", name_for(1, "g")), await rest.instance("g", name_for(0, "g"))
    await two[1].end()
    for method, path, body in (
        ("GET", "/records", None),
        ("POST", "/offsets", {"offsets": []}),
        ("POST", "/subscription", {"topics": ["t"]}),
        ("DELETE", "", None),
    ):
        answer = await lost.ask(method, path, body)
        assert (answer.status_code, answer.json()["error_code"]) == (404, 40403), (method, path)
        assert "Create a new one." in answer.json()["message"]
    new = await two[0].client.post("/consumers/g", json={"name": name_for(1, "g")}, headers={"content-type": V2})
    assert (new.status_code, new.json()["error_code"], new.headers["retry-after"]) == (503, 50302, "1")
    assert await kept.do("GET", "/subscription") == {"topics": []}


async def test_a_worker_that_responds_for_one_that_does_not_run_gets_the_body_of_the_request(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        bodies.append(message["body"])
        assert not message["more_body"]

    async def receive() -> Any:
        return {"type": "http.request", "body": b"user=u", "more_body": False}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    passing_on = PassingOn(inner, siblings=Siblings(Worker(1, 2, 0, str(tmp_path))))
    scope = {"type": "http", "method": "POST", "http_version": "1.1", "path": "/console/login", "headers": []}
    await passing_on(scope, receive, send)
    assert bodies == [b"user=u"]


async def test_a_form_that_a_worker_which_ended_may_have_done_is_not_served_by_another_one(tmp_path: Path) -> None:
    served: list[str] = []
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["method"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"value=v", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while isinstance(frame := await read(reader), PassedRequest) or (isinstance(frame, Piece) and frame.more):
            pass
        writer.close()

    worker = Worker(1, 2, 0, str(tmp_path))
    server = await asyncio.start_unix_server(end, worker.path_of(0))
    passing_on = PassingOn(inner, siblings=Siblings(worker))
    for method in ("POST", "GET"):
        head = {"raw_path": b"/console/x", "query_string": b"", "scheme": "http", "client": None, "server": None}
        scope = {**head, "type": "http", "method": method, "http_version": "1.1", "path": "/console/x", "headers": []}
        await passing_on(scope, receive, send)
    server.close()
    assert served == ["GET"]
    start, body = sent
    assert start["status"] == 503
    assert b"retry-after" not in dict(start["headers"])
    assert b"It may have been done. Look before you send it again." in body["body"]


async def test_pages_of_the_console_that_wait_take_no_place_of_consumer_instances(
    two: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.processes.places.CONSOLE_PASSED_MAX", 0)
    refused = await two[1].client.get("/console/login")
    assert (refused.status_code, refused.json()["error_code"]) == (503, 50302)
    found = await two[1].client.get(f"/consumers/g/instances/{name_for(0, 'g')}/subscription")
    assert found.status_code == 404


@pytest.mark.parametrize("word", ["follow", "export"])
async def test_a_stream_of_records_past_its_share_is_refused_and_pages_are_served(
    two: list[Served], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr("app.http.processes.places.ENDLESS_PASSED_MAX", 0)
    refused = await two[1].client.get(f"/console/topics/t/{word}")
    assert (refused.status_code, refused.json()["error_code"]) == (429, 42901)
    assert (await two[1].client.get("/console/topics")).status_code == 200


async def test_metrics_of_one_worker_are_those_of_all(two: list[Served], broker: RunningBroker) -> None:
    rest = Rest(two[0].client, broker)
    made = await rest.instance("g", name_for(1, "g"))
    await made.do("GET", "/subscription")
    lines = (await two[0].client.get("/metrics")).text.splitlines()
    route = 'method="GET",route="/consumers/{group_name}/instances/{instance}/subscription",status="200"'
    assert f'firn_http_requests_total{{process="http-1",{route}}} 1' in lines
    assert 'firn_http_requests_total{process="http-0",method="GET",route="passed on",status="200"} 1' in lines
    assert 'firn_http_process_up{process="http-1"} 1' in lines
    assert 'firn_http_consumer_instances{process="http-1"} 1' in lines
    assert not [line for line in lines if 'process="http"' in line]
    await two[1].end()
    assert 'firn_http_process_up{process="http-1"} 0' in (await two[0].client.get("/metrics")).text


async def test_a_port_is_ready_if_each_worker_that_runs_is(two: list[Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.asked_once.KEPT_S", 0.0)
    assert (await two[0].client.get("/readyz")).status_code == 200

    async def unreachable() -> None:
        raise TimeoutError

    monkeypatch.setattr(two[1].app.state.gateway, "check_ready", unreachable)
    refused = await two[0].client.get("/readyz")
    assert (refused.status_code, refused.json()["message"]) == (503, "No broker answered in time.")
    await two[1].end()
    assert (await two[0].client.get("/readyz")).status_code == 200


async def test_the_worker_that_has_an_instance_logs_the_caller_in_at_the_address_that_its_own_proxies_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.http.callers import Callers

    seen: list[str] = []
    serving = Callers.serving

    def noted(self: Callers, credential: Any, address: str) -> Any:
        seen.append(address)
        return serving(self, credential, address)

    monkeypatch.setattr(Callers, "serving", noted)
    async with secured(tmp_path / "broker") as server:
        await server.add_user("bob", "carol")
        for user in ("bob", "carol"):
            await server.allow(user, (Operation.READ, ResourceType.GROUP, "g"))
        settings = HttpSettings(
            bootstrap=(("127.0.0.1", server.port),),
            allowed_hosts=("firn",),
            client={"security.protocol": "SASL_PLAINTEXT"},
            trusted_proxies=parse_networks("192.0.2.0/24"),
        )
        async with workers(settings, tmp_path) as two:
            name = name_for(1, "g")

            async def ask(user: str, method: str, path: str, **more: Any) -> httpx.Response:
                headers = {**basic(user, f"{user}-secret"), "x-forwarded-for": "198.51.100.9", "content-type": V2}
                return await two[0].client.request(method, path, headers=headers, **more)

            while (made := await ask("bob", "POST", "/consumers/g", json={"name": name})).status_code == 503:
                await asyncio.sleep(0.01)  # until the topic of groups has a leader
            assert made.status_code == 200, made.text
            place = f"/consumers/g/instances/{name}/subscription"
            seen.clear()
            assert (await ask("bob", "GET", place)).status_code == 200
            assert seen == ["198.51.100.9"]
            assert (await ask("carol", "GET", place)).status_code == 404
            unknown = await two[0].client.get(place)
            assert unknown.status_code == 401
            assert "www-authenticate" in unknown.headers
