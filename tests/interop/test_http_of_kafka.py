"""HTTP in front of Apache Kafka with logins and rules: each caller is let in, and allowed what it may, by Kafka itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from app.configs.broker import STANDARD_AUTHORIZER
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.security.acls import Operation, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from loadtests.kafka_peer import kafka_running
from tests.http.secured import Secured
from tests.interop.serving import kafka_libs_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SECURITY = "org.apache.kafka.common.security"
SETTINGS = {
    # The name says nothing of the protocol.
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.plaintext.plain.sasl.jaas.config": f"{SECURITY}.plain.PlainLoginModule required "
    'username="alice" password="alice-secret" user_alice="alice-secret";',
    **{
        f"listener.name.plaintext.{name}.sasl.jaas.config": f"{SECURITY}.scram.ScramLoginModule required;"
        for name in ("scram-sha-256", "scram-sha-512")
    },
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:alice;User:ANONYMOUS",
    "connection.failed.authentication.delay.ms": "0",
}


class OnKafka(Secured):
    """The same with Kafka behind it."""

    def __init__(self, port: int, client: httpx.AsyncClient) -> None:
        self.client = client
        self._port = port

    @property
    def port(self) -> int:
        return self._port


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    kafka_libs_or_skip()
    path: Path = tmp_path_factory.mktemp("kafka")
    with kafka_running(path, settings=SETTINGS) as running:
        yield running.port


@pytest.fixture
async def http(kafka: int) -> AsyncIterator[OnKafka]:
    settings = HttpSettings(
        bootstrap=(("127.0.0.1", kafka),), linger_ms=0, client={"security.protocol": "SASL_PLAINTEXT"}
    )
    app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost", timeout=60) as client,
    ):
        yield OnKafka(kafka, client)


async def test_kafka_decides_what_a_caller_may_do(http: OnKafka) -> None:
    await http.add_user("carol", "dave")
    await http.allow("carol", (Operation.WRITE, ResourceType.TOPIC, "hers"))
    await http.allow("dave", (Operation.WRITE, ResourceType.TOPIC, "his"))
    async with http.admin() as admin:
        wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("hers", "his")]
        await admin.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=wanted, timeout_ms=30_000))
    async with asyncio.timeout(60):  # Kafka's answers come before its image has changed
        while (found := await http.ask("carol", "/v3/clusters")).status_code != 200:
            await asyncio.sleep(0.1)
        [cluster] = found.json()["data"]
        path = f"/v3/clusters/{cluster['cluster_id']}/topics"
        while [one["topic_name"] for one in (await http.ask("dave", path)).json().get("data", [])] != ["his"]:
            await asyncio.sleep(0.1)
    body = {"value": {"data": 1}}

    async def write(user: str, topic: str, password: str = "") -> tuple[int, int]:
        answer = await http.ask(user, f"{path}/{topic}/records", "POST", password, json=body)
        return answer.status_code, answer.json()["error_code"]

    asked = [("carol", "hers"), ("carol", "his"), ("dave", "hers"), ("dave", "his")] * 10
    random.Random(1).shuffle(asked)
    answers = await asyncio.gather(*(write(*one) for one in asked))
    own = {("carol", "hers"), ("dave", "his")}
    assert answers == [(200, 200) if one in own else (403, 40301) for one in asked]
    assert await write("carol", "hers", "guess") == (401, 40101)
    assert await write("nobody", "hers") == (401, 40101)
    made = await http.ask("carol", path, "POST", json={"topic_name": "new"})
    assert made.status_code == 403, made.text
    assert (await http.client.get("/readyz")).status_code == 200
    assert (await http.client.get("/metrics")).status_code == 401
    await http.remove_user("carol")
