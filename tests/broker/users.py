"""Users of SCRAM that a test adds, and certificates that a broker reads again."""

from __future__ import annotations

from app.broker.security.listener_doors import look
from app.client.connection import KafkaConnection
from app.machine.runtime import ThreadPool
from app.security.scram import ScramMechanism, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from tests.support.broker import RunningBroker


async def look_again(broker: RunningBroker) -> None:
    doors = broker.node._doors
    assert doors is not None
    for door in doors.by_listener.values():
        assert door.certificates is not None
        await look(door, door.certificates, ThreadPool(1), broker.node.faults, broker.lines.append)


async def upsert(
    connection: KafkaConnection,
    user: str,
    password: str,
    mechanism: ScramMechanism,
    *,
    salt: bytes = bytes(range(24)),
    iterations: int = 4096,
) -> None:
    salted = salted_password(mechanism, password, salt, iterations)
    wanted = ScramCredentialUpsertion(user, int(mechanism), iterations, salt, salted)
    answer = await connection.request(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest(upsertions=[wanted])
    )
    assert [(one.user, one.error_code) for one in answer.results] == [(user, 0)]
