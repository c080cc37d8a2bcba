"""REST v3 over a real broker: the shapes that clients of the REST proxy expect, and its errors."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from app.core.errors import StorageUnavailable
from app.core.faults import Faults
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.http.server import BugLog
from app.machine.runtime import SystemClock
from app.metadata.controller.controller import Controller
from tests.support.broker import RunningBroker
from tests.support.ports import free_port
from tests.support.rest_links import linked


async def post(http: httpx.AsyncClient, path: str, *records: Any, **options: Any) -> httpx.Response:
    content = b"\n".join(record if isinstance(record, bytes) else json.dumps(record).encode() for record in records)
    return await http.post(path, content=content, **options)


def receipts(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.text.splitlines()]


async def test_the_cluster_and_its_broker_are_described(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    found = (await http.get(cluster)).json()
    assert found["kind"] == "KafkaCluster"
    assert found["metadata"]["self"] == f"http://firn{cluster}"
    assert found["topics"] == {"related": f"http://firn{cluster}/topics"}
    (one,) = (await http.get(f"{cluster}/brokers")).json()["data"]
    assert (one["kind"], one["broker_id"], one["port"]) == ("KafkaBroker", 1, broker.port)
    assert (await http.get(f"{cluster}/brokers/1")).json() == one
    assert (await http.get(f"{cluster}/brokers/9")).status_code == 404


async def test_a_topic_lives_from_create_to_delete(http: httpx.AsyncClient, cluster: str) -> None:
    configs = [{"name": "retention.ms", "value": "7000"}]
    body = {"topic_name": "flights", "partitions_count": 2, "configs": configs}
    created = await http.post(f"{cluster}/topics", json=body)
    assert created.status_code == 201
    assert created.headers["location"] == created.json()["metadata"]["self"]
    fields = ("kind", "topic_name", "partitions_count", "replication_factor", "is_internal")
    assert [created.json()[field] for field in fields] == ["KafkaTopic", "flights", 2, 1, False]
    listed = (await http.get(f"{cluster}/topics")).json()
    assert (listed["kind"], [topic["topic_name"] for topic in listed["data"]]) == ("KafkaTopicList", ["flights"])
    assert (await http.get(f"{cluster}/topics/flights")).json() == created.json()
    partitions = (await http.get(f"{cluster}/topics/flights/partitions")).json()["data"]
    assert [partition["partition_id"] for partition in partitions] == [0, 1]
    assert partitions[1]["leader"]["related"].endswith("/topics/flights/partitions/1/replicas/1")
    assert (await http.get(f"{cluster}/topics/flights/partitions/1")).json() == partitions[1]
    assert (await http.get(f"{cluster}/topics/flights/partitions/2")).json()["error_code"] == 40403
    more = await http.patch(f"{cluster}/topics/flights", json={"partitions_count": 3})
    assert more.json()["partitions_count"] == 3
    assert (await http.delete(f"{cluster}/topics/flights")).status_code == 204
    gone = await http.get(f"{cluster}/topics/flights")
    assert (gone.status_code, gone.json()) == (404, {"error_code": 40403, "message": "There is no topic flights."})


async def test_every_link_of_every_answer_leads_to_an_answer(http: httpx.AsyncClient, cluster: str) -> None:
    made = await http.post(f"{cluster}/topics", json={"topic_name": "t", "partitions_count": 2})
    seen: set[str] = set()
    left = {"/v3/clusters"} | linked(made.json())
    while left:
        url = left.pop()
        seen.add(url)
        # Settings are many and of one shape: one of each kind stands for them.
        if "/configs/" in url and not url.endswith(("/retention.ms", "/node.id")):
            continue
        answer = await http.get(url)
        if url.endswith("/acls"):  # without an authorizer, the broker has none to show
            assert (answer.status_code, answer.json()["error_code"]) == (400, 40002)
            continue
        assert answer.status_code == 200, f"{url}: {answer.text}"
        left |= linked(answer.json()) - seen
    paths = {url.partition(cluster)[2] for url in seen}
    assert {
        "/topics/t/partitions/1/replicas/1",
        "/brokers/1/configs/node.id",
        "/topics/t/configs/retention.ms",
        "/topics/t/partitions/0/reassignment",
        "/topics/t/partitions/1/offset",
        "/topics/-/partitions/-/reassignment",
        "/consumer-groups",
        "/share-groups",
        "/broker-configs",
    } <= paths


async def test_replicas_and_brokers_settings_that_there_are_not_are_404(http: httpx.AsyncClient, cluster: str) -> None:
    await http.post(f"{cluster}/topics", json={"topic_name": "t", "partitions_count": 1})
    replica = (await http.get(f"{cluster}/topics/t/partitions/0/replicas/1")).json()
    assert (replica["is_leader"], replica["is_in_sync"], replica["broker_id"]) == (True, True, 1)
    for path in ("/topics/t/partitions/0/replicas/2", "/topics/t/partitions/9/replicas", "/brokers/1/configs/no.such"):
        assert (await http.get(cluster + path)).status_code == 404
    for path in ("/brokers/2/configs", "/brokers/2/configs/node.id"):
        assert (await http.get(cluster + path)).json()["message"] == "There is no broker 2."


async def test_settings_of_a_topic_are_read_set_and_set_back(http: httpx.AsyncClient, cluster: str) -> None:
    await http.post(f"{cluster}/topics", json={"topic_name": "t"})
    path = f"{cluster}/topics/t/configs"
    listed = (await http.get(path)).json()
    assert listed["kind"] == "KafkaTopicConfigList"
    by_name = {config["name"]: config for config in listed["data"]}
    assert (by_name["retention.ms"]["is_default"], by_name["retention.ms"]["source"]) == (True, "DEFAULT_CONFIG")
    assert (await http.put(f"{path}/retention.ms", json={"value": "9000"})).status_code == 204
    one = (await http.get(f"{path}/retention.ms")).json()
    assert (one["value"], one["is_default"], one["source"]) == ("9000", False, "DYNAMIC_TOPIC_CONFIG")
    changes = {"data": [{"name": "retention.ms", "operation": "DELETE"}, {"name": "segment.ms", "value": "60000"}]}
    assert (await http.post(f"{path}:alter", json=changes)).status_code == 204
    assert (await http.get(f"{path}/retention.ms")).json()["is_default"]
    assert (await http.delete(f"{path}/segment.ms")).status_code == 204
    assert (await http.get(f"{path}/segment.ms")).json()["is_default"]
    assert (await http.get(f"{path}/nonsense")).status_code == 404
    refused = await http.put(f"{path}/retention.ms", json={"value": "soon"})
    assert (refused.status_code, refused.json()["error_code"]) == (400, 40002)
    assert (await http.post(f"{path}:alter", json={"data": [{"name": "x", "operation": "NOP"}]})).status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v3/clusters/another", None, 404, 404),
        ("GET", "/nowhere", None, 404, 404),
        ("DELETE", "/v3/clusters", None, 405, 405),
        ("GET", "{cluster}/brokers/x", None, 422, 422),
        ("POST", "{cluster}/topics", b"{", 400, 400),
        ("POST", "{cluster}/topics", b'{"topic_name": 7}', 422, 422),
        ("POST", "{cluster}/topics", b'{"topic_name": "a b"}', 400, 40002),
        # Fields that nothing would look at, and that were meant to say something.
        ("POST", "{cluster}/topics", b'{"topic_name": "a", "partition_count": 4}', 422, 422),
        ("POST", "{cluster}/topics", b'{"topic_name": "a", "configs": [{"name": "x", "operation": "SET"}]}', 422, 422),
        ("POST", "{cluster}/topics/a/configs:alter", b'{"data": [], "validateOnly": true}', 422, 422),
        ("POST", "{cluster}/topics", b'{"topic_name": "a", "replication_factor": 3}', 400, 40002),
        ("POST", "{cluster}/topics", b'{"topic_name": "a", "configs": [{"name": "x", "value": "1"}]}', 400, 40002),
        ("POST", "{cluster}/topics", b" " * 1_100_000, 413, 413),
        ("DELETE", "{cluster}/topics/nowhere", None, 404, 40403),
        ("GET", "{cluster}/topics/nowhere/configs", None, 404, 40403),
        ("POST", "{cluster}/topics/nowhere/records", b"{}", 404, 40403),
        ("GET", "{cluster}/topics/" + "a" * 40_000, None, 400, 40002),
        ("POST", "{cluster}/topics/" + "a" * 40_000 + "/records", b"{}", 400, 40002),
    ],
)
@pytest.mark.ci
async def test_errors_have_the_rest_proxys_shape(
    http: httpx.AsyncClient, cluster: str, method: str, path: str, body: bytes | None, status: int, code: int
) -> None:
    response = await http.request(method, path.format(cluster=cluster), content=body)
    answer = response.json()
    assert (response.status_code, answer["error_code"], sorted(answer)) == (status, code, ["error_code", "message"])
    assert answer["message"]


async def test_one_record_is_stored_and_its_receipt_says_where(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 3)
    record = {
        "partition_id": 2,
        "timestamp": "2013-07-01T00:00:00Z",
        "headers": [{"name": "h", "value": "eA=="}],
        "key": {"type": "STRING", "data": "UA"},
        "value": {"type": "BINARY", "data": "AAEC"},
    }
    response = await post(http, f"{cluster}/topics/t/records", record)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert receipts(response) == [
        {
            "error_code": 200,
            "cluster_id": cluster.rpartition("/")[2],
            "topic_name": "t",
            "partition_id": 2,
            "offset": 0,
            "timestamp": "2013-07-01T00:00:00.000Z",
            "key": {"type": "STRING", "size": 2},
            "value": {"type": "BINARY", "size": 3},
        }
    ]


async def test_many_records_have_a_receipt_each_in_order_and_errors_do_not_end_them(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    good = [{"value": {"data": number}} for number in range(50)]
    bad = [{"value": {"type": "BINARY", "data": "%"}}, {"partition_id": 7}, b'{"value":{"data":tru}}']
    response = await post(http, f"{cluster}/topics/t/records", *good[:20], *bad, *good[20:])
    assert response.status_code == 200
    codes = [receipt["error_code"] for receipt in receipts(response)]
    assert codes == [200] * 20 + [400, 40403, 400] + [200] * 30
    assert [receipt["offset"] for receipt in receipts(response) if "offset" in receipt] == list(range(50))


@pytest.mark.parametrize(
    ("record", "status", "code"),
    [
        (b"{", 400, 400),
        (b"", 400, 40002),
        (b"[]", 400, 400),
        ({"partition_id": 9}, 404, 40403),
        ({"value": {"type": "STRING", "data": "x" * 1_100_000}}, 413, 413),
        ({"value": {"type": "STRING", "data": "x" * 4_100_000}}, 413, 413),
        ({"value": {"data": 1}, "timestamp": "later"}, 400, 400),
        ({"value": {"data": 1}, "partition": 0}, 400, 400),
        ({"value": {"data": 1, "schema_id": 7}}, 400, 40002),
    ],
    ids=[
        "half",
        "nothing",
        "array",
        "partition",
        "too large for the topic",
        "too large for HTTP",
        "timestamp",
        "unknown field",
        "schema on a cluster without a registry",
    ],
)
async def test_a_lone_record_that_is_not_stored_sets_the_status(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, record: Any, status: int, code: int
) -> None:
    await broker.create_topic("t", 1)
    response = await post(http, f"{cluster}/topics/t/records", record)
    (receipt,) = receipts(response)
    assert (response.status_code, receipt["error_code"]) == (status, code)
    assert broker.log("t").log_end_offset == 0


async def test_records_before_broken_json_are_stored_and_the_stream_ends_there(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    response = await post(
        http, f"{cluster}/topics/t/records", {"value": {"data": 1}}, b"garbage", {"value": {"data": 2}}
    )
    assert [receipt["error_code"] for receipt in receipts(response)] == [200, 400]
    assert broker.log("t").log_end_offset == 1


async def test_a_body_without_a_length_is_read_as_it_comes(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(100):
            text = b'{"value":{"data":%d}}' % number
            yield text[:9]
            yield text[9:]

    response = await http.post(f"{cluster}/topics/t/records", content=pieces())
    assert [receipt["offset"] for receipt in receipts(response)] == list(range(100))


@pytest.mark.parametrize(
    ("partition", "changes", "status", "said"),
    [
        (0, {"segment_id": "../../cluster/log"}, 422, "`$.segment_id`"),
        (0, {"segment_id": None, "output": "AAAA"}, 422, "The job is of an older version of Firn"),
        (0, {"segment_id": None}, 422, "it names no `segment_id`"),
        (0, {"end_offset": 0}, 400, "no range of offsets"),
        (0, {"base_offset": -1}, 422, "`$.base_offset`"),
        (0, {"end_offset": 1 << 63}, 422, "`$.end_offset`"),
        (0, {"inputs": []}, 422, "`$.inputs`"),
        (0, {"step": "begun"}, 422, "`$.step`"),
        (-1, {}, 404, "no partition -1"),
        (1 << 40, {}, 404, f"no partition {1 << 40}"),
    ],
)
async def test_what_cannot_be_a_replacement_is_refused_in_a_sentence(
    http: httpx.AsyncClient, cluster: str, partition: int, changes: dict[str, Any], status: int, said: str
) -> None:
    await http.post(f"{cluster}/topics", json={"topic_name": "orders", "partitions_count": 2})
    one = "0198c0de-0000-7000-8000-00000000000a"
    body = {"step": "begin", "inputs": [one], "segment_id": one, "base_offset": 0, "end_offset": 10} | changes
    answer = await http.post(f"/firn/v1/topics/orders/partitions/{partition}/replacements", json=body)
    assert answer.status_code == status
    assert said in answer.json()["message"]


async def test_health_readiness_and_metrics(http: httpx.AsyncClient, cluster: str, broker: RunningBroker) -> None:
    await broker.create_topic("t", 1)
    await post(http, f"{cluster}/topics/t/records", {"value": {"data": 1}})
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    assert (await http.get("/readyz")).json() == {"status": "ready"}
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    assert 'firn_http_records_total{process="http",outcome="stored"} 1' in lines
    assert any(line.startswith("firn_records_in_total{") and line.endswith(" 1") for line in lines)
    assert any(line.startswith("firn_broker_up{") and line.endswith(" 1") for line in lines)
    assert not any('route="/v3/clusters/{cluster_id}/topics/t' in line for line in lines)


async def test_a_question_of_readiness_is_asked_once_for_all_callers(
    http: httpx.AsyncClient, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.asked_once.KEPT_S", 60.0)
    asked = 0

    async def counted() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)

    monkeypatch.setattr(application.state.gateway, "check_ready", counted)
    answers = await asyncio.gather(*(http.get("/readyz") for _ in range(20)))
    answers.append(await http.get("/readyz"))
    assert {one.status_code for one in answers} == {200}
    assert asked == 1


async def test_methods_that_a_client_invents_make_one_series(http: httpx.AsyncClient) -> None:
    for method in ("INVENTED", "X" * 100, "GET"):
        await http.request(method, "/healthz")
    lines = [line for line in (await http.get("/metrics")).text.splitlines() if 'route="/healthz"' in line]
    methods = {re.search('method="(.*?)"', line)[1] for line in lines}  # type: ignore[index]
    assert methods == {"OTHER", "GET"}


async def test_without_a_broker_it_is_alive_but_not_ready(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, application: FastAPI
) -> None:
    await broker.create_topic("t", 1)
    await application.state.gateway.cluster.refresh()
    assert (await http.get("/metrics")).status_code == 200
    broker.node.request_stop()
    gateway = application.state.gateway
    for connection in list(gateway.cluster._connections.values()):
        await connection.close()
    assert (await http.get("/healthz")).status_code == 200
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["error_code"]) == (503, 50302)
    assert (await http.get(f"{cluster}/topics")).status_code == 503
    lines = (await http.get("/metrics")).text.splitlines()
    (down,) = [line for line in lines if line.startswith("firn_broker_up{")]
    assert down.endswith(" 0")
    assert 'node_id="1"' in down, "a broker that has sent metrics keeps its label"


async def test_openapi_names_every_route_and_resolves(http: httpx.AsyncClient) -> None:
    schema = (await http.get("/openapi.json")).json()
    assert "/v3/clusters/{cluster_id}/topics/{topic_name}/records" in schema["paths"]
    text = json.dumps(schema)
    for name in schema["components"]["schemas"]:
        assert isinstance(name, str)
    assert '"$ref": "#/components/schemas/RecordData"' in text
    assert "RecordData" in schema["components"]["schemas"]


async def test_a_broker_that_is_away_is_told_once_for_all_requests() -> None:
    lines: list[str] = []
    settings = HttpSettings(bootstrap=(("127.0.0.1", free_port()),), retry_budget_ms=1)
    app = create_app(settings, clock=SystemClock(), rng=random.Random(3), faults=Faults(lines.append))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client,
    ):
        for _ in range(3):
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/v3/clusters")).status_code == 503
            assert (await client.get("/metrics")).status_code == 200
    reached, metrics = lines
    assert reached.startswith("no broker can be reached, so HTTP requests fail: ")
    assert metrics.startswith(f"no metrics of the broker at 127.0.0.1:{settings.bootstrap[0][1]}: ")


async def test_a_store_that_is_away_is_told_by_the_route_that_met_it_and_refusals_are_not(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),), retry_budget_ms=300, linger_ms=0)
    app = create_app(settings, clock=SystemClock(), rng=random.Random(3), faults=Faults(lines.append))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client,
    ):
        (found,) = (await client.get("/v3/clusters")).json()["data"]
        topics = f"/v3/clusters/{found['cluster_id']}/topics"
        assert (await client.get(f"{topics}/missing")).status_code == 404
        assert (await client.post(topics, json={"topic_name": "***"})).status_code == 400
        assert lines == []

        async def away(*_: object, **__: object) -> None:
            raise StorageUnavailable("the store is away")

        monkeypatch.setattr(Controller, "create_topic", away)
        for _ in range(3):
            assert (await client.post(topics, json={"topic_name": "t"})).status_code == 500
    (line,) = lines
    assert line.startswith("HTTP requests to /v3/clusters/{cluster_id}/topics fail: ")


def test_a_bug_that_a_request_meets_is_logged_with_its_traceback_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    logger = logging.Logger("of uvicorn")
    logger.addHandler(BugLog(Faults(lines.append, lambda: 0.0)))
    for _ in range(50):
        try:
            raise AssertionError("cannot be")
        except AssertionError as error:
            logger.error("Exception in ASGI application\n", exc_info=error)
    assert lines == [
        "internal error, please report it: HTTP: Exception in ASGI application: AssertionError('cannot be')"
    ]
    assert capsys.readouterr().err.count("Traceback") == 1


async def test_a_request_that_a_stop_ends_is_counted_and_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    faults: list[str] = []
    lines: list[str] = []
    begun = asyncio.Event()

    async def hangs(scope: dict[str, object], *_: object) -> None:
        if scope["type"] == "http":
            begun.set()
            await asyncio.Event().wait()

    handler = BugLog(Faults(faults.append, lambda: 0.0), lines.append)
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    config = uvicorn.Config(hangs, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    bound = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        _, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await begun.wait()
        server.should_exit = True
        await serving
        writer.close()
    finally:
        logger.removeHandler(handler)
    assert lines == ["HTTP requests that had not ended in time were ended by the stop: 1"]
    assert faults == []
    assert "Traceback" not in capsys.readouterr().err
