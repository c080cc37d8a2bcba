"""Who may pass requests of others on to the controller where there is no authorizer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.broker.peers.control_link import KafkaControlLink
from app.broker.peers.places import KafkaPlaces
from app.broker.security.first_users import FirstUser, write_first_users
from app.broker.security.listener_doors import Doors, brokers_of, inter_broker_dial
from app.client.connection import open_connection
from app.client.security import SecureDialer, client_security
from app.configs import BrokerConfig
from app.core.errors import ErrorCode
from app.handlers.apis.passing_on import may_speak_for
from app.handlers.policy.callers import ANONYMOUS, Caller, Rights
from app.machine.files import PosixFileSystem
from app.metadata.image.image import ClusterImage
from app.security.scram import ScramMechanism, credential_of, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.apis.envelope import EnvelopeRequest
from app.wire.framing import request_frame
from app.wire.principal import encode_principal
from tests.support.secured import certificates, listener, security
from tests.support.several import broker_on, unfenced
from tests.support.waiting import until

SASL = "SASL_PLAINTEXT"
PLAIN_USERS = "x required " + " ".join(f'user_{name}="{name}-secret"' for name in ("alice", "bob", "carol")) + ";"


def jaas(user: str) -> str:
    return f'x required username="{user}" password="{user}-secret";'


def shared_listener(own: str) -> dict[str, Any]:
    """Of brokers, who log in as ``own``, and of clients."""
    settings = {"scram-sha-512_sasl_jaas_config": jaas(own), "plain_sasl_jaas_config": PLAIN_USERS}
    return security(listener(SASL, mechanisms="SCRAM-SHA-512,PLAIN", **settings))


def dialer(user: str) -> SecureDialer:
    settings = {"security.protocol": SASL, "sasl.mechanism": "PLAIN"}
    return SecureDialer(client_security(settings | {"sasl.username": user, "sasl.password": f"{user}-secret"}))


@pytest.mark.parametrize(
    ("caller", "by_token", "principal", "may"),
    [
        ("User:broker", False, "User:alice", True),
        ("User:broker", False, ANONYMOUS, True),
        ("User:broker", True, "User:alice", False),
        ("User:alice", False, "User:broker", False),
        ("User:alice", False, "User:alice", False),  # from another host, and without the mark of a token
        ("User:alice", False, ANONYMOUS, False),
        (ANONYMOUS, False, ANONYMOUS, True),
        (ANONYMOUS, False, "User:alice", False),
    ],
)
def test_without_an_authorizer_only_brokers_speak_for_others(
    caller: str, by_token: bool, principal: str, may: bool
) -> None:
    context: Any = SimpleNamespace(authorizer=None, brokers=frozenset({"User:broker"}))
    assert may_speak_for(context, Caller(Rights(caller), by_token=by_token), principal) is may


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (shared_listener("broker"), {"User:broker"}),
        (shared_listener("b") | {"super_users": "User:CN=c,O=d; User:e"}, {"User:b", "User:CN=c,O=d", "User:e"}),
        (security(listener(SASL)) | {"super_users": "User:e"}, {"User:e"}),  # it has no user of its own
        (security(listener("PLAINTEXT"), listener(SASL)), set()),
    ],
)
def test_brokers_are_superusers_and_whom_a_broker_logs_in_as(settings: dict[str, Any], expected: set[str]) -> None:
    assert brokers_of(BrokerConfig(**settings)) == expected


def test_brokers_with_one_certificate_know_each_other_by_its_subject(tmp_path: Path) -> None:
    own = listener("SSL", certificates(tmp_path / "c"), ssl_client_auth="required")
    config = BrokerConfig(**security(own), super_users="User:e")
    assert Doors(config, ClusterImage).brokers == {"User:CN=broker", "User:e"}


async def test_who_shares_the_listener_of_the_brokers_does_not_speak_for_others(tmp_path: Path) -> None:
    async with broker_on(
        tmp_path, "b1", node_id=1, new_level=2, super_users="User:carol", **shared_listener("bob")
    ) as broker:
        for user, may in (("alice", False), ("bob", True), ("carol", True)):
            connection = await open_connection("127.0.0.1", broker.node.ports[SASL], dial=dialer(user))
            wanted = CreateTopicsRequest([CreatableTopic(f"of-{user}", 1, 1)])
            frame = request_frame(ApiKey.CREATE_TOPICS, 7, 1, "test", wanted)[4:]
            asked = EnvelopeRequest(frame, encode_principal("User", "dave"), b"10.0.0.1:1")
            answer = await connection.request(ApiKey.ENVELOPE, asked, version=0)
            assert answer.error_code == (0 if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED), user
            assert (f"of-{user}" in broker.node.cluster.image.topics_by_name) is may
            await connection.close()
        (line,) = [line for line in broker.lines if "passes on" in line]
        assert "User:alice passes on for User:dave" in line


@pytest.mark.parametrize(
    ("users", "super_users", "works"),
    [
        (("broker", "broker"), "", True),
        (("broker-1", "broker-2"), "User:broker-1;User:broker-2", True),
        (("broker-1", "broker-2"), "", False),
    ],
)
async def test_brokers_pass_requests_on_and_are_told_what_is_missing(
    tmp_path: Path, users: tuple[str, str], super_users: str, works: bool
) -> None:
    kind, salt = ScramMechanism.SCRAM_SHA_512, bytes(range(24))
    first_users = [
        FirstUser(user, int(kind), credential_of(kind, salted_password(kind, f"{user}-secret", salt, 4096), salt, 4096))
        for user in sorted(set(users))
    ]

    def broker(number: int) -> Any:
        settings = shared_listener(users[number - 1]) | {"super_users": super_users}
        dial = inter_broker_dial(BrokerConfig(**settings))
        return broker_on(
            tmp_path,
            f"b{number}",
            node_id=number,
            new_level=2,
            new_link=lambda: KafkaControlLink(dial=dial),
            places=KafkaPlaces(dial=dial),
            **settings,
        )

    write_first_users(PosixFileSystem(), str(tmp_path / "b1" / "data"), first_users)
    async with broker(1) as controller, broker(2) as other:
        await until(lambda: unfenced(other) == [1, 2])
        assert controller.node.membership.controller.active
        connection = await open_connection("127.0.0.1", other.node.ports[SASL], dial=dialer("alice"))
        wanted = CreateTopicsRequest([CreatableTopic("t", 1, 1)], timeout_ms=10_000)
        (topic,) = (await connection.request(ApiKey.CREATE_TOPICS, wanted)).topics
        await connection.close()
        if works:
            assert topic.error_code == 0, topic.error_message
        else:
            assert topic.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert "name this broker's principal in super.users" in topic.error_message
