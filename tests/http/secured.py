"""A secured broker with an HTTP server."""

from __future__ import annotations

import base64
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from app.client.connection import open_connection
from app.client.security import SecureDialer, client_security
from app.configs.broker import STANDARD_AUTHORIZER
from app.http.application import create_app
from app.http.callers import CallerLimits, Callers
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.image.records import SECURITY_LEVEL
from app.security.acls import WILDCARD, Operation, PatternType, Permission, ResourceType
from app.security.scram import ScramMechanism, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from tests.support.broker import RunningBroker, running_broker
from tests.support.secured import listener, security

ADMIN = ("alice", "alice-secret")
"""Of PLAIN, whom Kafka clients of these tests use. HTTP logs in by SCRAM."""


class Secured:
    """A broker whose listener has logins and rules, and HTTP in front of it."""

    def __init__(self, broker: RunningBroker, app: FastAPI, client: httpx.AsyncClient) -> None:
        self.broker = broker
        self.app = app
        self.client = client

    @property
    def port(self) -> int:
        return self.broker.node.ports["SASL_PLAINTEXT"]

    @property
    def callers(self) -> Callers:
        found: Callers = self.app.state.callers
        return found

    @property
    def cluster(self) -> str:
        return f"/v3/clusters/{self.broker.node.cluster.image.cluster_id}"

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.client.get(path, headers=headers)

    async def ask(self, user: str, path: str, method: str = "GET", password: str = "", **more: Any) -> httpx.Response:
        return await self.client.request(method, path, headers=basic(user, password or f"{user}-secret"), **more)

    async def produce(self, user: str, topic: str, value: str = "x", password: str = "") -> httpx.Response:
        path = f"{self.cluster}/topics/{topic}/records"
        return await self.ask(user, path, "POST", password, json={"value": {"type": "STRING", "data": value}})

    def stored(self, topic: str) -> int:
        log = self.broker.node.logs.get(topic, 0)
        return 0 if log is None else int(log.log_end_offset)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Any]:
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        dial = SecureDialer(
            client_security(settings | dict(zip(("sasl.username", "sasl.password"), ADMIN, strict=True)))
        )
        connection = await open_connection("127.0.0.1", self.port, dial=dial)
        try:
            yield connection
        finally:
            await connection.close()

    async def add_user(self, *names: str, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512) -> None:
        salt = b"s" * 24
        wanted = [
            ScramCredentialUpsertion(
                name, int(mechanism), 4096, salt, salted_password(mechanism, f"{name}-secret", salt, 4096)
            )
            for name in names
        ]
        async with self.admin() as admin:
            answer = await admin.request(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest(upsertions=wanted)
            )
        assert [one.error_code for one in answer.results] == [0] * len(names)

    async def remove_user(self, name: str) -> None:
        gone = ScramCredentialDeletion(name, int(ScramMechanism.SCRAM_SHA_512))
        async with self.admin() as admin:
            answer = await admin.request(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest(deletions=[gone])
            )
        assert [one.error_code for one in answer.results] == [0]

    async def allow(
        self,
        user: str,
        *rights: tuple[Operation, ResourceType, str],
        host: str = WILDCARD,
        permission: Permission = Permission.ALLOW,
    ) -> None:
        made = [
            AclCreation(kind, name, PatternType.LITERAL, f"User:{user}", host, operation, permission)
            for operation, kind, name in rights
        ]
        async with self.admin() as admin:
            answer = await admin.request(ApiKey.CREATE_ACLS, CreateAclsRequest(made))
        assert [one.error_code for one in answer.results] == [0] * len(made)


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@asynccontextmanager
async def secured(
    path: Path,
    *,
    limits: CallerLimits | None = None,
    client: Mapping[str, str] | None = None,
    door: Any = None,
    of_broker: Mapping[str, Any] | None = None,
    peer: str = "127.0.0.1",
    new_level: int = SECURITY_LEVEL,
    **more: Any,
) -> AsyncIterator[Secured]:
    """``of_broker``: more settings of it. ``peer``: the address from which requests come."""
    door = door or listener(
        "SASL_PLAINTEXT", mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", connection_failed_authentication_delay_ms=0
    )
    # The delay of failures is a setting of the broker as a whole.
    given = {"connection.failed.authentication.delay.ms": str(more.pop("delay_ms", 0))}
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(
            running_broker(
                path,
                new_level=new_level,
                authorizer_class_name=STANDARD_AUTHORIZER,
                super_users="User:alice",
                auto_create_topics_enable=False,
                security=given,
                **security(door),
                **(of_broker or {}),
            )
        )
        settings = HttpSettings(
            bootstrap=(("127.0.0.1", broker.node.ports[door.name]),),
            retry_budget_ms=300,
            linger_ms=0,
            client={"security.protocol": door.protocol.value} if client is None else client,
            **more,
        )
        app = create_app(settings, clock=SystemClock(), rng=random.Random(3), limits=limits)
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True, client=(peer, 4711))
        web = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://localhost"))
        yield Secured(broker, app, web)
