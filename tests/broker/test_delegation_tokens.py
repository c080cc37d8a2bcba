"""Delegation tokens, asked of real brokers."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.client.connection import KafkaConnection, open_connection
from app.client.security import SecureDialer, client_security
from app.errors import ErrorCode, RequestRejected
from app.wire.apikeys import ApiKey
from app.wire.apis.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from app.wire.apis.describe_delegation_token import DescribeDelegationTokenOwner, DescribeDelegationTokenRequest
from app.wire.apis.expire_delegation_token import ExpireDelegationTokenRequest
from app.wire.apis.metadata import MetadataRequest
from app.wire.apis.renew_delegation_token import RenewDelegationTokenRequest
from tests.support.broker import RunningBroker, running_broker
from tests.support.secured import listener, security
from tests.support.several import unfenced, until

KEY = "a secret of brokers"
SASL = "SASL_PLAINTEXT"


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


def principals(broker: RunningBroker) -> list[tuple[str, bool]]:
    return [
        (one.core.caller.principal, one.core.caller.by_token) for one in broker.node.server._connections if one.core.caller
    ]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_token_lets_its_holder_in_as_its_owner(tmp_path: Path, mechanism: str) -> None:
    async with broker_with_tokens(tmp_path) as broker:
        alice = await connect(broker, dialer("alice"))
        token = await made(alice)
        assert (token.principal_type, token.principal_name, len(token.hmac)) == ("User", "alice", 64)
        await alice.close()
        holder = await connect(broker, token_dialer(token.token_id, token.hmac, mechanism))
        assert ("User:alice", True) in principals(broker)
        await holder.request(ApiKey.METADATA, MetadataRequest(topics=[]))
        await holder.close()
