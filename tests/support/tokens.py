"""A broker that issues delegation tokens, and connections to it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from app.client.connection import KafkaConnection, open_connection
from app.client.security import SecureDialer, client_security
from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.create_delegation_token import CreateDelegationTokenRequest
from tests.support.broker import RunningBroker, running_broker
from tests.support.secured import listener, security
from tests.support.several import unfenced
from tests.support.waiting import until

KEY = "a secret of brokers"
SASL = "SASL_PLAINTEXT"
RIGHTS = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:alice;User:ANONYMOUS"}


def door(**settings: Any) -> Any:
    return listener(SASL, mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", **settings)


def dialer(user: str, password: str = "", mechanism: str = "PLAIN") -> SecureDialer:
    settings = {"security.protocol": SASL, "sasl.mechanism": mechanism}
    return SecureDialer(
        client_security(settings | {"sasl.username": user, "sasl.password": password or f"{user}-secret"})
    )


def token_dialer(token_id: str, secret: bytes, mechanism: str = "SCRAM-SHA-512") -> SecureDialer:
    jaas = f'x required username="{token_id}" password="{b64encode(secret).decode()}" tokenauth="true";'
    return SecureDialer(
        client_security({"security.protocol": SASL, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas})
    )


@asynccontextmanager
async def broker_with_tokens(path: Path, **settings: Any) -> AsyncIterator[RunningBroker]:
    settings = {"delegation_token_secret_key": KEY, **security(door()), **settings}
    async with running_broker(path, new_level=2, **settings) as broker:
        await until(lambda: unfenced(broker))
        yield broker


async def connect(broker: RunningBroker, dial: SecureDialer) -> KafkaConnection:
    return await open_connection("127.0.0.1", broker.node.ports[SASL], dial=dial)


async def made(connection: KafkaConnection, **fields: Any) -> Any:
    answer = await connection.request(
        ApiKey.CREATE_DELEGATION_TOKEN, CreateDelegationTokenRequest(**{"max_lifetime_ms": -1, **fields})
    )
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    return answer
