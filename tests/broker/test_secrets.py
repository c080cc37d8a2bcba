"""Secrets of a running broker: no answer, no line and no page has them, and no attempt to set one is told with its value."""

from __future__ import annotations

import random
from pathlib import Path

import httpx
import pytest

from app.broker.start.children import inherited_environment
from app.client.security import NAMES
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.environment import CLIENT_PREFIX, environment_name
from app.configs.without_effect import BROKER_WITHOUT_EFFECT
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.wire.apikeys import ApiKey
from app.wire.apis import alter_configs, incremental_alter_configs
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.handlers.conversation import talk
from tests.support.audited import Heard
from tests.support.broker import running_broker

CANARY = "hunter2-canary"
BROKER = 4
SENSITIVE = sorted(
    name
    for name, definition in (
        *BROKER_DEFINITIONS.items(),
        *((name, entry.definition) for name, entry in BROKER_WITHOUT_EFFECT.items()),
    )
    if definition.sensitive
)
OF_LISTENERS = ("listener.name.plaintext.ssl.keystore.key", "listener.name.plaintext.plain.sasl.jaas.config")
GIVEN = {name: CANARY for name in (*SENSITIVE, *OF_LISTENERS) if name in BROKER_DEFINITIONS or name in OF_LISTENERS}


@pytest.mark.parametrize("opens_store", [False, True])
def test_a_child_inherits_no_setting_and_the_way_into_the_bucket_only_to_open_it(opens_store: bool) -> None:
    settings = [environment_name(name) for name in (*BROKER_DEFINITIONS, *BROKER_WITHOUT_EFFECT)]
    of_clients = [environment_name(name, CLIENT_PREFIX) for name in NAMES]
    bucket = {"AWS_SECRET_ACCESS_KEY": "k", "AWS_PROFILE": "p"}
    collector = {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": CANARY}
    given = {"PATH": "/bin", **bucket, **collector, **dict.fromkeys((*settings, *of_clients), CANARY)}
    found = inherited_environment(given, opens_store=opens_store)
    assert found == {"PATH": "/bin", **(bucket if opens_store else {})}


async def test_no_describe_and_no_page_has_a_secret(tmp_path: Path) -> None:
    async with running_broker(tmp_path, security=GIVEN, redis_url=f"redis://:{CANARY}@127.0.0.1:1/0") as broker:
        async with talk(broker.port) as client:
            for names in (None, [*GIVEN]):
                asked = DescribeConfigsRequest(
                    [DescribeConfigsResource(BROKER, "1", names)], include_synonyms=True, include_documentation=True
                )
                answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, asked)
                (result,) = answer.results
                found = {one.name: one for one in result.configs}
                assert CANARY not in repr(answer)
                for name in GIVEN:
                    assert found[name].is_sensitive, name
                    assert found[name].value is None, name
                    assert all(synonym.value is None for synonym in found[name].synonyms), name
        settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),))
        app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        ):
            base = f"/v3/clusters/{broker.node.context.image.cluster_id}/brokers/1/configs"
            pages = [base, *(f"{base}/{name}" for name in GIVEN), "/metrics"]
            for page in pages:
                answer = await http.get(page)
                assert answer.status_code == 200, page
                assert CANARY not in answer.text, page
        assert CANARY not in "".join(broker.lines)
        assert CANARY not in repr(broker.node.config)


@pytest.mark.parametrize("incremental", [False, True])
async def test_who_sets_a_secret_of_a_running_broker_is_answered_without_it(tmp_path: Path, incremental: bool) -> None:
    path = tmp_path / "audit.log"
    async with running_broker(tmp_path, firn_audit_log_path=str(path)) as broker, talk(broker.port) as client:
        heard = Heard(broker.node.context.audit)
        for name in (*SENSITIVE, *OF_LISTENERS, "ssl.key.pasword"):
            kind = incremental_alter_configs if incremental else alter_configs
            config = kind.AlterableConfig(name, value=CANARY)
            message = (
                incremental_alter_configs.IncrementalAlterConfigsRequest
                if incremental
                else alter_configs.AlterConfigsRequest
            )([kind.AlterConfigsResource(BROKER, "1", [config])])  # type: ignore[list-item]
            key = ApiKey.INCREMENTAL_ALTER_CONFIGS if incremental else ApiKey.ALTER_CONFIGS
            answer = await client.ask(key, 1 if incremental else 2, message)
            assert CANARY not in repr(answer), name
            lines = heard.take()
            assert CANARY not in repr(lines), name
            assert [line["event"] for line in lines] == ["change"], name
            image = broker.node.context.image
            assert CANARY not in repr(image.broker_configs), name
        topic = CreatableTopic("t", 1, 1, configs=[CreatableTopicConfig("ssl.key.password", CANARY)])
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([topic]))
        assert CANARY not in repr(answer)
        assert CANARY not in repr(heard.take())
        assert CANARY not in "".join(broker.lines)
