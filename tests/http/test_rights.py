"""Every route of the HTTP application, asked through a broker on which the application's user may do nothing."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.configs.broker import STANDARD_AUTHORIZER
from app.handlers.base.authorising import TABLE
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.image.records import REGISTRY_LEVEL
from app.wire.apikeys import ApiKey
from tests.handlers.conversation import batch, talk
from tests.support.audited import Heard
from tests.support.broker import RunningBroker, running_broker
from tests.support.callers import Everybody
from tests.support.routes import served_routes
from tests.support.several import unfenced
from tests.support.waiting import until

NOBODY = "User:nobody"
TOPIC, VALUE = "secret-topic", b"secret-record"

NEED_NO_RIGHT = {
    ("GET", "/"),
    ("GET", "/docs"),
    ("GET", "/docs/oauth2-redirect"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/openapi.json"),
    ("GET", "/redoc"),
    # Who the brokers are, every client is told.
    ("GET", "/v3/clusters"),
    ("GET", "/v3/clusters/{cluster_id}"),
    ("GET", "/v3/clusters/{cluster_id}/brokers"),
    ("GET", "/v3/clusters/{cluster_id}/brokers/{broker_id}"),
    # A list without what one may not see.
    ("GET", "/v3/clusters/{cluster_id}/topics"),
    ("GET", "/v3/clusters/{cluster_id}/topics/-/configs"),
    ("GET", "/v3/clusters/{cluster_id}/consumer-groups"),
    ("GET", "/v3/clusters/{cluster_id}/share-groups"),
    ("GET", "/v3/clusters/{cluster_id}/brokers/{broker_id}/partition-replicas"),
    ("GET", "/topics"),
    ("GET", "/brokers"),
    # Lists of the console, and a page that this broker needs no login for.
    ("GET", "/console"),
    ("GET", "/console/topics"),
    ("GET", "/console/live/topics"),
    ("GET", "/console/groups"),
    ("GET", "/console/brokers"),
    ("GET", "/console/transactions"),
    ("GET", "/console/runbooks"),
    ("GET", "/console/login"),
    ("POST", "/console/login"),
}
"""Routes that are answered to everybody; they tell nothing of topics."""

REGISTRY = (
    "/subjects",
    "/schemas",
    "/config",
    "/mode",
    "/compatibility",
    "/contexts",
    "/v1/metadata",
    "/console/schemas",
)
"""Beginnings of the schema registry's routes. Those that read are answered with the records that the user may see."""
REGISTRY_WRITES = {
    ("POST", "/subjects/{subject}/versions"),
    ("PUT", "/config"),
    ("PUT", "/config/{subject}"),
    ("DELETE", "/config"),
    ("PUT", "/mode"),
    ("PUT", "/mode/{subject}"),
    ("DELETE", "/mode"),
}
WITHOUT_A_LINE = {
    # It asks whether the caller may see the cluster, which all may ask.
    ("GET", "/console/live"),
    ("GET", "/console/cost"),
    ("GET", "/console/store"),
    # No broker is asked.
    ("GET", "/console/assets/{name}"),
    ("GET", "/console/runbooks/{name}"),
    ("POST", "/console/logout"),
}
"""Routes that refuse, and leave no line in the audit log."""
ABSENT = ("/exporters", "/dek-registry", "/consumers/{group_name}/instances/{instance}")
"""Beginnings of routes that answer 404 to everybody: nobody has the instance."""


QUERIES = {
    ("DELETE", "/v3/clusters/{cluster_id}/acls"): "?resource_type=ANY&pattern_type=ANY&operation=ANY&permission=ANY"
}
"""Without these, a request is refused before a broker is asked."""


def state_of(broker: RunningBroker) -> Any:
    image = broker.node.context.image
    return image.topics_by_id, image.broker_configs, image.acls, broker.log(TOPIC).log_end_offset


@asynccontextmanager
async def application(path: Path) -> AsyncIterator[tuple[RunningBroker, Any, httpx.AsyncClient]]:
    async with running_broker(
        path,
        new_level=REGISTRY_LEVEL,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:admin",
    ) as broker:
        await until(lambda: unfenced(broker))
        await broker.create_topic(TOPIC)
        doorkeeper = broker.node.context.doorkeeper = Everybody(broker.node.context.rights, "User:admin")
        async with talk(broker.port) as admin:
            await admin.produce(9, [(TOPIC, [(0, batch(value=VALUE))])])
        doorkeeper.principal = NOBODY  # type: ignore[attr-defined]
        settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),), retry_budget_ms=300, linger_ms=0)
        app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http,
        ):
            yield broker, app, http


def body_of(app: Any, method: str, path: str) -> Any:
    """The example of the documentation, for a topic that a stranger would like to have or to change."""
    operation = app.openapi()["paths"].get(path, {}).get(method.lower(), {})
    for content in operation.get("requestBody", {}).get("content", {}).values():
        example = content.get("example")
        if example is None:
            example = next(iter(content.get("examples", {}).values()), {}).get("value")
        return example
    return None


async def test_no_route_gives_a_user_without_rights_anything_and_each_refusal_is_in_the_audit_log(
    tmp_path: Path,
) -> None:
    async with application(tmp_path) as (broker, app, http):
        heard = Heard(broker.node.context.audit)
        cluster_id = broker.node.context.image.cluster_id
        before = state_of(broker)
        names = {
            "cluster_id": cluster_id,
            "topic_name": TOPIC,
            "partition_id": "0",
            "broker_id": "1",
            "name": "retention.ms",
            "offset": "0",
            "consumer_group_id": "secret-group",
            "group_id": "secret-group",
            "group_name": "secret-group",
            "instance": "secret-instance",
            "consumer_id": "secret-member",
            "transactional_id": "secret-transaction",
            "subject": f"{TOPIC}-value",
            "version": "1",
            "schema_id": "1",
            "guid": "x",
            "rest:path": "x",
        }
        refused = set()
        for method, path in sorted(served_routes(app)):
            url = path
            for name, value in names.items():
                url = url.replace("{" + name + "}", value)
            assert "{" not in url, path
            url += QUERIES.get((method, path), "")
            body = body_of(app, method, path)
            content = body if isinstance(body, (str, bytes)) or body is None else json.dumps(body)
            headers = {"content-type": "application/json"}
            answer = await http.request(method, url, content=content, headers=headers)
            lines = [line for line in heard.take() if line["outcome"] == "denied"]
            assert VALUE not in answer.content, (method, path)
            assert state_of(broker) == before, (method, path)
            if path.startswith(ABSENT):
                assert answer.status_code == 404, (method, path, answer.text)
                continue
            if path.startswith(REGISTRY) and (method, path) not in REGISTRY_WRITES:
                assert answer.status_code in (200, 404), (method, path, answer.text)
                assert "Flight" not in answer.text, (method, path)
                continue
            if (method, path) in NEED_NO_RIGHT:
                assert answer.status_code < 400, (method, path, answer.text)
                assert TOPIC not in answer.text, (method, path)
                continue
            if path.endswith("/records") and method == "POST" and answer.status_code == 200:
                receipts = [json.loads(line) for line in answer.text.splitlines() if line]
                assert receipts, answer.text
                assert all(receipt["error_code"] != 200 for receipt in receipts)
            elif answer.status_code == 207:
                failures = answer.json()["failures"]
                assert failures, path
                assert {one["error_code"] for one in failures} == {40301}, answer.text
            elif path == "/metrics":
                assert "firn_topic" not in answer.text
                assert "firn_log_" not in answer.text
            else:
                assert answer.status_code >= 400, (method, path, answer.text)
            assert lines or (method, path) in WITHOUT_A_LINE, (method, path, answer.status_code, answer.text)
            for line in lines:
                assert line["principal"] == NOBODY
                assert TABLE[ApiKey[line["request"]]], line
            refused.add((method, path))
        assert len(refused) > 15
        assert not NEED_NO_RIGHT & refused
