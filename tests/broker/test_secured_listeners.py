"""Real clients of listeners with TLS and logins."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka import Consumer, Producer
from cryptography.hazmat.primitives.asymmetric import rsa

from app.broker.peers.control_link import KafkaControlLink
from app.broker.peers.places import KafkaPlaces
from app.broker.security import first_users
from app.broker.security.first_users import FirstUser, write_first_users
from app.broker.security.listener_doors import inter_broker_dial
from app.client.connection import open_connection
from app.client.security import SecureDialer, client_security
from app.configs import BrokerConfig
from app.core.errors import BrokerUnavailable, ConfigError, ErrorCode, RequestRejected
from app.core.units import BrokerId
from app.handlers.policy.callers import Caller
from app.machine.files import PosixFileSystem
from app.metadata.changes.scram_changes import ScramAsked
from app.metadata.changes.topic_changes import ConfigChange
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import Endpoint
from app.metadata.log.numbered_log import NumberedLog
from app.metadata.peers.control import RegisterRequest, RegisterResponse
from app.metadata.peers.place import Holder, Stranger
from app.objectstore.memory import MemoryStore
from app.security.sasl import plain_message
from app.security.scram import ScramMechanism, credential_of, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from app.wire.apis.create_topics import CreateTopicsRequest
from app.wire.apis.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from app.wire.apis.metadata import MetadataRequest
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.broker.users import look_again, upsert
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import alter_configs, alter_scram_users
from tests.support.ports import free_port
from tests.support.secured import break_tls, certificates, listener, revocations, security, store_of
from tests.support.several import broker_on, unfenced
from tests.support.waiting import until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "c", "client", "other")


def round_trip(settings: dict[str, Any], count: int = 20) -> list[bytes | None]:
    """Produce and consume with librdkafka."""
    producer = Producer({**settings, "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce("t", value=b"%d" % number * 1000)
    left = producer.flush(60)
    assert left == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    try:
        got: list[bytes | None] = []
        while len(got) < count:
            message = consumer.poll(60)
            assert message is not None, f"only {len(got)} records came"
            assert message.error() is None, message.error()
            got.append(message.value())
        return got
    finally:
        consumer.close()


def of_librdkafka(broker: RunningBroker, protocol: str, folder: Path, **more: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.node.ports[protocol]}",
        "security.protocol": protocol,
        "ssl.ca.location": str(folder / "ca.pem"),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_librdkafka_produces_and_consumes(tmp_path: Path, folder: Path, protocol: str) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "alice-secret"}
    async with running_broker(
        tmp_path, group_initial_rebalance_delay_ms=0, **security(listener(protocol, folder))
    ) as broker:
        await broker.create_topic("t")
        settings = of_librdkafka(broker, protocol, folder, **(login if "SASL" in protocol else {}))
        got = await asyncio.to_thread(round_trip, settings)
        assert got == [b"%d" % number * 1000 for number in range(20)]


async def test_a_certificate_is_who_its_client_is(tmp_path: Path, folder: Path) -> None:
    rules = "RULE:^CN=(.*)$/$1/U,DEFAULT"
    kind = listener("SSL", folder, ssl_client_auth="required", ssl_principal_mapping_rules=rules)
    async with running_broker(tmp_path, **security(kind)) as broker:
        callers = callers_of(broker)
        port = broker.node.ports["SSL"]
        connection = await open_connection("localhost", port, dial=dialer(folder, "SSL", certificate="client"))
        assert [one.principal for one in callers()] == ["User:CLIENT"]
        await connection.close()
        with pytest.raises(BrokerUnavailable):
            await open_connection("localhost", port, dial=dialer(folder, "SSL"))


async def test_a_certificate_that_no_rule_fits_is_served_nothing(tmp_path: Path, folder: Path) -> None:
    kind = listener("SSL", folder, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=other$/o/")
    async with running_broker(tmp_path, **security(kind)) as broker:
        port = broker.node.ports["SSL"]
        with pytest.raises(BrokerUnavailable):
            await open_connection("localhost", port, dial=dialer(folder, "SSL", certificate="client"))
        connection = await open_connection("localhost", port, dial=dialer(folder, "SSL", certificate="other"))
        assert [one.principal for one in callers_of(broker)()] == ["User:o"]
        await connection.close()


async def test_a_broker_whose_certificate_names_another_host_is_not_trusted(tmp_path: Path, folder: Path) -> None:
    kind = listener("SSL", folder, ssl_keystore_location=folder / "other.pem")
    async with running_broker(tmp_path, **security(kind)) as broker:
        with pytest.raises(BrokerUnavailable, match="not trusted"):
            await open_connection("localhost", broker.node.ports["SSL"], dial=dialer(folder, "SSL"))


async def test_a_revoked_certificate_is_refused_from_the_next_connection_on(tmp_path: Path, folder: Path) -> None:
    revoked = tmp_path / "crl.pem"
    revoked.write_bytes(revocations(folder))
    kind = listener("SSL", folder, ssl_client_auth="required", firn_ssl_crl_location=revoked)
    async with running_broker(tmp_path, **security(kind)) as broker:
        port = broker.node.ports["SSL"]
        for name in ("client", "other"):
            connection = await open_connection("localhost", port, dial=dialer(folder, "SSL", certificate=name))
            await connection.close()
        revoked.write_bytes(revocations(folder, "client"))
        await look_again(broker)
        with pytest.raises(BrokerUnavailable):
            await open_connection("localhost", port, dial=dialer(folder, "SSL", certificate="client"))
        connection = await open_connection("localhost", port, dial=dialer(folder, "SSL", certificate="other"))
        await connection.close()


async def test_a_list_of_revoked_certificates_that_is_past_its_time_lets_nobody_in(
    tmp_path: Path, folder: Path
) -> None:
    (tmp_path / "crl.pem").write_bytes(revocations(folder, days=-1))
    kind = listener("SSL", folder, ssl_client_auth="required", firn_ssl_crl_location=tmp_path / "crl.pem")
    async with running_broker(tmp_path, **security(kind)) as broker:
        with pytest.raises(BrokerUnavailable):
            await open_connection(
                "localhost", broker.node.ports["SSL"], dial=dialer(folder, "SSL", certificate="client")
            )


async def test_new_connections_get_the_new_certificate_and_old_ones_stay(tmp_path: Path) -> None:
    old, new = certificates(tmp_path / "old"), certificates(tmp_path / "new")
    used = tmp_path / "broker.pem"
    used.write_bytes((old / "broker.pem").read_bytes())
    async with running_broker(tmp_path, **security(listener("SSL", old, ssl_keystore_location=used))) as broker:
        port = broker.node.ports["SSL"]
        before = await open_connection("localhost", port, dial=dialer(old, "SSL"))
        used.write_bytes(b"broken")
        await look_again(broker)
        assert any("goes on with its old certificates" in line for line in broker.lines)
        used.write_bytes((new / "broker.pem").read_bytes())
        await look_again(broker)
        after = await open_connection("localhost", port, dial=dialer(new, "SSL"))
        with pytest.raises(BrokerUnavailable, match="not trusted"):
            await open_connection("localhost", port, dial=dialer(old, "SSL"))
        for connection in (before, after):
            await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
            await connection.close()


@pytest.mark.parametrize("setting", ["ssl.keystore.location", "ssl.truststore.location", "firn.ssl.crl.location"])
async def test_a_file_that_somebody_is_writing_keeps_no_client_from_a_broker(
    tmp_path: Path, folder: Path, setting: str
) -> None:
    """Brokers are clients of each other."""
    files = {
        "ssl.keystore.location": "client.pem",
        "ssl.truststore.location": "ca.pem",
        "firn.ssl.crl.location": "list.pem",
    }
    (folder / "list.pem").write_bytes(revocations(folder))
    texts = {"security.protocol": "SSL"}
    for name, file in files.items():
        (tmp_path / file).write_bytes((folder / file).read_bytes())
        texts[name] = str(tmp_path / file)
    dial = SecureDialer(client_security(texts))
    async with running_broker(tmp_path, **security(listener("SSL", folder, ssl_client_auth="required"))) as broker:
        (tmp_path / files[setting]).write_bytes(b"")
        connection = await open_connection("localhost", broker.node.ports["SSL"], dial=dial)
        await connection.close()


async def test_scram_users_are_added_log_in_and_are_removed(tmp_path: Path) -> None:
    door = listener("SASL_PLAINTEXT", mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
    async with running_broker(tmp_path, new_level=2, **security(door)) as broker:
        port = broker.node.ports["SASL_PLAINTEXT"]
        admin = await open_connection("127.0.0.1", port, dial=dialer(None, "SASL_PLAINTEXT", user="alice"))
        await upsert(admin, "carol", "pw", ScramMechanism.SCRAM_SHA_256)
        await upsert(admin, "carol", "pw", ScramMechanism.SCRAM_SHA_512)
        callers = callers_of(broker)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            dial = dialer(None, "SASL_PLAINTEXT", user="carol", password="pw", mechanism=mechanism)
            connection = await open_connection("127.0.0.1", port, dial=dial)
            assert "User:carol" in [one.principal for one in callers()]
            await connection.close()
        told = await admin.request(
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            DescribeUserScramCredentialsRequest(users=[UserName("carol"), UserName("x")]),
        )
        assert [(one.user, one.error_code, len(one.credential_infos)) for one in told.results] == [
            ("carol", 0, 2),
            ("x", ErrorCode.RESOURCE_NOT_FOUND, 0),
        ]
        deleted = await admin.request(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion("carol", 1)]),
        )
        assert [one.error_code for one in deleted.results] == [0]
        seen = []
        for user, password in (("carol", "pw"), ("nobody", "pw")):
            dial = dialer(None, "SASL_PLAINTEXT", user=user, password=password, mechanism="SCRAM-SHA-256")
            with pytest.raises(RequestRejected) as refused:
                await open_connection("127.0.0.1", port, dial=dial)
            seen.append((refused.value.code, str(refused.value)))
        assert seen[0] == seen[1]
        await admin.close()


async def test_nothing_is_served_before_the_login_and_every_failure_looks_the_same(tmp_path: Path) -> None:
    door = listener("SASL_PLAINTEXT", connection_failed_authentication_delay_ms=0)
    async with running_broker(tmp_path, **security(door)) as broker:
        await broker.create_topic("t")
        port = broker.node.ports["SASL_PLAINTEXT"]
        for key, version, message in (
            (ApiKey.METADATA, 12, MetadataRequest(topics=[])),
            (ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[])),
            (ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(plain_message("alice", "alice-secret"))),
        ):
            connection = await open_connection("127.0.0.1", port)  # ApiVersions is served
            if key is ApiKey.SASL_AUTHENTICATE:
                answer = await connection.request(key, message, version=version)
                assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            else:
                with pytest.raises(BrokerUnavailable):
                    await connection.request(key, message, version=version)
            await connection.close()
        seen = set()
        for user, password in (("alice", "wrong"), ("nobody", "alice-secret"), ("bob", "alice-secret")):
            with pytest.raises(RequestRejected) as refused:
                await open_connection(
                    "127.0.0.1", port, dial=dialer(None, "SASL_PLAINTEXT", user=user, password=password)
                )
            seen.add(str(refused.value).replace(str(port), "PORT"))
        assert seen == {"127.0.0.1:PORT: Authentication failed: Invalid username or password."}
        assert "alice-secret" not in "".join(broker.lines)


async def test_nothing_else_is_served_while_a_client_logs_in_again(tmp_path: Path) -> None:
    door = listener("SASL_PLAINTEXT", connections_max_reauth_ms=60_000)
    async with running_broker(tmp_path, **security(door)) as broker:
        shake, show = SaslHandshakeRequest("PLAIN"), SaslAuthenticateRequest(plain_message("alice", "alice-secret"))
        metadata = MetadataRequest(topics=[])
        async with talk(broker.node.ports["SASL_PLAINTEXT"]) as client:
            assert (await client.ask(ApiKey.SASL_HANDSHAKE, 1, shake)).error_code == 0
            assert (await client.ask(ApiKey.SASL_AUTHENTICATE, 2, show)).error_code == 0
            # All of it comes in one piece.
            client.send(ApiKey.METADATA, 12, metadata)
            client.send(ApiKey.SASL_HANDSHAKE, 1, shake)
            client.send(ApiKey.SASL_AUTHENTICATE, 2, show)
            client.send(ApiKey.METADATA, 12, metadata)
            for key, version in ((3, 12), (17, 1), (36, 2), (3, 12)):
                assert (await client.answer(key, version))[0] > 0
            [session] = sessions_of(broker)
            session._login._again_s = -math.inf  # the client logged in long ago
            client.send(ApiKey.SASL_HANDSHAKE, 1, shake)
            client.send(ApiKey.METADATA, 12, metadata)
            client.send(ApiKey.SASL_AUTHENTICATE, 2, show)
            assert (await client.answer(17, 1))[1].error_code == 0
            assert await client.reader.read(1) == b"", "closed"
        assert "API key 3 is not served before the client has logged in" in broker.lines[-1]


async def test_a_client_that_does_not_log_in_again_is_let_go(tmp_path: Path) -> None:
    door = listener("SASL_PLAINTEXT", connections_max_reauth_ms=60_000)
    async with running_broker(tmp_path, **security(door)) as broker:
        port = broker.node.ports["SASL_PLAINTEXT"]
        dial = dialer(None, "SASL_PLAINTEXT", user="alice")
        connection = await open_connection("127.0.0.1", port, dial=dial)
        [session] = sessions_of(broker)
        loop = asyncio.get_running_loop()
        assert 0 < session.caller.expires_s - loop.time() <= 60
        session._login._again_s = -math.inf  # the client logged in long ago
        session.speak_as(replace(session.caller, expires_s=loop.time() - 1))
        assert await dial.login(connection) == 60
        await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
        session._login._again_s = -math.inf
        other = dialer(None, "SASL_PLAINTEXT", user="bob")
        with pytest.raises(RequestRejected, match="Cannot change principals"):
            await other.login(connection)
        connection = await open_connection("127.0.0.1", port, dial=dial)
        [session] = sessions_of(broker)
        session.speak_as(replace(session.caller, expires_s=loop.time() - 1))
        with pytest.raises(BrokerUnavailable):
            await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))


async def test_a_login_at_the_wrong_time_changes_nothing(tmp_path: Path) -> None:
    doors = (
        listener("SASL_PLAINTEXT", name="ONCE"),
        listener("SASL_PLAINTEXT", name="AGAIN", connections_max_reauth_ms=60_000),
    )
    async with running_broker(tmp_path, **security(*doors)) as broker:
        for name in ("ONCE", "AGAIN"):
            dial = dialer(None, "SASL_PLAINTEXT", user="alice")
            connection = await open_connection("127.0.0.1", broker.node.ports[name], dial=dial)
            if name == "AGAIN":
                assert await dial.login(connection) == 60, "the first time at once"
            for key, message in (
                (ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest("PLAIN")),
                (ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(plain_message("bob", "bob-secret"))),
            ):
                answer = await connection.request(key, message)
                assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
            assert {one.principal for one in callers_of(broker)()} == {"User:alice"}
            await connection.close()
            await until(lambda: not sessions_of(broker))


async def test_handshakes_that_nobody_finishes_are_bounded_and_others_are_served(tmp_path: Path, folder: Path) -> None:
    door = listener("SASL_SSL", folder)
    limits = {"firn.unauthenticated.connections.max": "20", "firn.authentication.timeout.ms": "600000"}
    async with running_broker(tmp_path, **security(door), security=limits) as broker:
        port = broker.node.ports["SASL_SSL"]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        arrivals = broker.node.server.arrivals
        while broker.node.server.connection_metrics.accepted.value + len(arrivals) < 20:
            await asyncio.sleep(0.01)
        assert len(arrivals) <= 20
        dial = dialer(folder, "SASL_SSL", user="alice")
        connection = await open_connection("localhost", port, dial=dial)
        await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
        ended = [reader for reader, _ in silent[:80]]
        for reader in ended:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        await connection.close()
        for _, writer in silent:
            writer.close()


async def test_a_client_that_takes_too_long_is_let_go(tmp_path: Path, folder: Path) -> None:
    doors = (listener("SASL_SSL", folder), listener("SASL_PLAINTEXT"))
    async with running_broker(
        tmp_path, **security(*doors), security={"firn.authentication.timeout.ms": "100"}
    ) as broker:
        for name in ("SASL_SSL", "SASL_PLAINTEXT"):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.node.ports[name])
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        assert len(broker.node.server.arrivals) == 0


@pytest.mark.parametrize("name", ["SSL", "SASL_SSL"])
async def test_a_connection_whose_tls_breaks_is_closed_counted_and_told(
    tmp_path: Path, folder: Path, name: str
) -> None:
    async with running_broker(tmp_path, **security(listener(name, folder))) as broker:
        await break_tls(broker.node.ports[name], folder / "ca.pem")
        assert broker.node.server.connection_metrics.broken.value == 1
        assert any("its TLS broke" in line for line in broker.lines)
        await until(lambda: not broker.node.server._connections and not len(broker.node.server.arrivals))
        dial = dialer(folder, name, user="alice" if name == "SASL_SSL" else "")
        await (await open_connection("localhost", broker.node.ports[name], dial=dial)).close()


@pytest.mark.slow
async def test_two_brokers_reach_each_other_by_scram_over_tls(tmp_path: Path, folder: Path) -> None:
    own = 'x required username="broker" password="broker-secret";'
    door = listener("SASL_SSL", folder, mechanisms="SCRAM-SHA-512,PLAIN", **{"scram-sha-512_sasl_jaas_config": own})
    door = replace(door, advertised_host="localhost")
    config = BrokerConfig(**security(door))
    salt = b"s" * 24
    salted = salted_password(ScramMechanism.SCRAM_SHA_512, "broker-secret", salt, 4096)
    user = FirstUser("broker", 2, credential_of(ScramMechanism.SCRAM_SHA_512, salted, salt, 4096))
    write_first_users(PosixFileSystem(), str(tmp_path / "one"), [user])
    store = MemoryStore()

    def link() -> KafkaControlLink:
        return KafkaControlLink(dial=inter_broker_dial(config))

    async def start(stack: AsyncExitStack, node_id: int) -> RunningBroker:
        return await stack.enter_async_context(
            running_broker(
                tmp_path,
                store=store,
                data_dir=tmp_path / ("one" if node_id == 1 else "two"),
                node_id=node_id,
                seed=node_id,
                new_level=2,
                new_link=link,
                places=KafkaPlaces(dial=inter_broker_dial(config)),
                **security(door),
            )
        )

    async with AsyncExitStack() as stack:
        first = await start(stack, 1)
        second = await start(stack, 2)
        assert "made" in "".join(line for line in first.lines if "user broker" in line)
        dial = dialer(folder, "SASL_SSL", user="alice")
        connection = await open_connection("localhost", second.node.ports["SASL_SSL"], dial=dial)
        known: list[int] = []
        deadline_s = asyncio.get_running_loop().time() + 60
        while asyncio.get_running_loop().time() < deadline_s and known != [1, 2]:
            metadata = await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
            known = sorted(one.node_id for one in metadata.brokers)
            await asyncio.sleep(0.05)
        assert known == [1, 2]
        await connection.close()
        assert {one.principal for one in callers_of(first)()} == {"User:broker"}


async def test_users_that_were_left_beside_another_broker_than_the_controller_are_made(tmp_path: Path) -> None:
    doors = security(listener("PLAINTEXT"), listener("SASL_PLAINTEXT", mechanisms="SCRAM-SHA-512"))
    salted = salted_password(ScramMechanism.SCRAM_SHA_512, "carol-secret", b"s" * 24, 4096)
    user = FirstUser("carol", 2, credential_of(ScramMechanism.SCRAM_SHA_512, salted, b"s" * 24, 4096))
    write_first_users(PosixFileSystem(), str(tmp_path / "b2" / "data"), [user])
    async with (
        broker_on(tmp_path, "b1", node_id=1, new_level=2, **doors) as first,
        broker_on(tmp_path, "b2", node_id=2, new_level=2, **doors) as second,
    ):
        assert first.node.membership.controller.active
        assert any("the user carol" in line and "was made" in line for line in second.lines), second.lines
        await until(lambda: "carol" in first.node.cluster.image.scram_users)
        assert not (tmp_path / "b2" / "data" / ".firn" / "first-users").exists()
        for broker in (first, second):
            port = broker.node.ports["SASL_PLAINTEXT"]
            dial = dialer(None, "SASL_PLAINTEXT", user="carol", mechanism="SCRAM-SHA-512")
            await (await open_connection("127.0.0.1", port, dial=dial)).close()


async def test_nobody_is_told_that_a_login_is_wrong_before_the_users_that_were_left_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    doors = security(replace(listener("SASL_PLAINTEXT", mechanisms="SCRAM-SHA-512"), port=port))
    salted = salted_password(ScramMechanism.SCRAM_SHA_512, "carol-secret", b"s" * 24, 4096)
    user = FirstUser("carol", 2, credential_of(ScramMechanism.SCRAM_SHA_512, salted, b"s" * 24, 4096))
    data = str(tmp_path / "one")
    write_first_users(PosixFileSystem(), data, [user])
    early: list[type[Exception]] = []

    async def tried() -> None:
        dial = dialer(None, "SASL_PLAINTEXT", user="carol", mechanism="SCRAM-SHA-512")
        await (await open_connection("127.0.0.1", port, dial=dial)).close()

    add = first_users.add_first_users

    async def add_later(*args: Any, **named: Any) -> None:
        try:
            await tried()
        except (BrokerUnavailable, RequestRejected) as error:
            early.append(type(error))
        await add(*args, **named)

    monkeypatch.setattr(first_users, "add_first_users", add_later)
    async with running_broker(tmp_path, data_dir=tmp_path / "one", new_level=2, **doors):
        assert early == [BrokerUnavailable], "it comes again"
        await tried()
    async with running_broker(tmp_path, data_dir=tmp_path / "one", **doors):  # there are none left
        assert early == [BrokerUnavailable]
        dial = dialer(None, "SASL_PLAINTEXT", user="dave", mechanism="SCRAM-SHA-512")
        with pytest.raises(RequestRejected):
            await open_connection("127.0.0.1", port, dial=dial)


async def test_a_broker_that_has_not_read_of_the_controllers_user_yet_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = 'x required username="broker" password="broker-secret";'
    doors = security(listener("SASL_PLAINTEXT", mechanisms="SCRAM-SHA-512", **{"scram-sha-512_sasl_jaas_config": own}))
    dial = inter_broker_dial(BrokerConfig(**doors))
    salted = salted_password(ScramMechanism.SCRAM_SHA_512, "broker-secret", b"s" * 24, 4096)
    credential = credential_of(ScramMechanism.SCRAM_SHA_512, salted, b"s" * 24, 4096)
    user = ScramAsked("broker", 2, False, credential=credential)
    asked = reading = 0
    ways = {"poll": NumberedLog.poll, "take": NumberedLog.take}

    async with broker_on(tmp_path, "b1", node_id=1, new_level=2, places=KafkaPlaces(dial=dial), **doors) as first:

        def read_later(way: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
            """The other broker reads nothing new, from the store or from the controller, until it was refused."""

            async def read(log: NumberedLog, *entry: Any) -> bool:
                nonlocal reading
                if log is first.node.cluster.log:
                    return await way(log, *entry)
                if asked == 1:
                    return False
                reading += 1
                try:
                    return await way(log, *entry)
                finally:
                    reading -= 1

            return read

        for name, way in ways.items():
            monkeypatch.setattr(NumberedLog, name, read_later(way))

        class Link(KafkaControlLink):
            async def register(self, to: BrokerImage, wanted: RegisterRequest) -> RegisterResponse:
                nonlocal asked
                asked += 1
                if asked == 1:  # the log was read a moment ago
                    await until(lambda: reading == 0)
                    await alter_scram_users(first.node.membership.controller, [user], b"r" * 32)
                return await super().register(to, wanted)

        async with broker_on(
            tmp_path, "b2", node_id=2, new_level=2, new_link=lambda: Link(dial=dial), **doors
        ) as second:
            await until(lambda: unfenced(second) == [1, 2])
            assert asked > 1, "it was refused once"


async def test_who_cannot_be_asked_is_told_from_nobody(tmp_path: Path, folder: Path) -> None:
    strange = certificates(tmp_path / "strange", "client")
    doors = (listener("SASL_SSL", folder), listener("SSL", folder, ssl_client_auth="required"))
    async with running_broker(tmp_path, **security(*doors)) as broker:
        image = broker.node.cluster.image

        async def ask(dial: SecureDialer, protocol: str, port: int | None = None) -> Holder | Stranger | None:
            return await KafkaPlaces(dial=dial).ask(
                Endpoint(protocol, "localhost", port or broker.node.ports[protocol], protocol),
                cluster_id=image.cluster_id,
                node_id=1,
                directory_id=image.brokers[BrokerId(1)].directory_id,
            )

        right = dialer(folder, "SASL_SSL", user="alice")
        assert isinstance(await ask(right, "SASL_SSL"), Holder)
        assert await ask(right, "SASL_SSL", free_port()) is None
        refused = await ask(dialer(folder, "SASL_SSL", user="alice", password="other"), "SASL_SSL")
        assert isinstance(refused, Stranger)
        assert "Authentication failed" in refused.why
        untrusted = await ask(dialer(strange, "SASL_SSL", user="alice"), "SASL_SSL")
        assert isinstance(untrusted, Stranger)
        assert "not trusted" in untrusted.why
        assert isinstance(await ask(dialer(folder, "SSL"), "SSL"), Stranger), "it shows no certificate"
        assert isinstance(await ask(dialer(folder, "SSL", certificate="client"), "SSL"), Holder)


# --- parts of the tests ---------------------------------------------------------------------------------------------


def dialer(
    folder: Path | None,
    protocol: str,
    *,
    certificate: str = "",
    user: str = "",
    password: str = "",
    mechanism: str = "PLAIN",
) -> SecureDialer:
    settings = {"security.protocol": protocol}
    if folder is not None:
        settings["ssl.truststore.location"] = str(folder / "ca.pem")
    if certificate and folder is not None:
        settings["ssl.keystore.location"] = str(folder / f"{certificate}.pem")
    if user:
        settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password or f"{user}-secret"}
    return SecureDialer(client_security(settings))


def sessions_of(broker: RunningBroker) -> list[Any]:
    return [one.core for one in broker.node.server._connections]


def callers_of(broker: RunningBroker) -> Callable[[], list[Caller]]:
    return lambda: [one.caller for one in sessions_of(broker)]


@pytest.mark.ci
async def test_a_signed_token_lets_librdkafka_in_until_it_expires(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{**jwk, "kid": "one"}]}))
    door = listener(
        "SASL_PLAINTEXT",
        mechanisms="OAUTHBEARER",
        sasl_oauthbearer_jwks_endpoint_url=keys.as_uri(),
        sasl_oauthbearer_expected_audience="firn",
        connection_failed_authentication_delay_ms=0,
    )
    expires_s = int(time.time()) + 300

    def token(audience: str) -> str:
        claims = {"sub": "robot", "aud": audience, "exp": expires_s}
        return jwt.encode(claims, key, algorithm="RS256", headers={"kid": "one"})

    async with running_broker(tmp_path, group_initial_rebalance_delay_ms=0, **security(door)) as broker:
        await broker.create_topic("t")
        settings: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{broker.node.ports['SASL_PLAINTEXT']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token("firn"), expires_s),
        }
        assert len(await asyncio.to_thread(round_trip, settings)) == 20
        for audience, admitted in (("firn", True), ("other", False)):
            (tmp_path / "token").write_text(token(audience))
            dial = SecureDialer(
                client_security(
                    {
                        "security.protocol": "SASL_PLAINTEXT",
                        "sasl.mechanism": "OAUTHBEARER",
                        "firn.sasl.oauthbearer.token.file": str(tmp_path / "token"),
                    }
                )
            )
            if admitted:
                connection = await open_connection("127.0.0.1", broker.node.ports["SASL_PLAINTEXT"], dial=dial)
                assert "User:robot" in [one.principal for one in callers_of(broker)()]
                await connection.close()
            else:
                with pytest.raises(RequestRejected, match="invalid_token"):
                    await open_connection("127.0.0.1", broker.node.ports["SASL_PLAINTEXT"], dial=dial)


# --- settings that change, and stores of Java ---------------------------------------------------------------------------


async def alter_own(broker: RunningBroker, **settings: str | None) -> None:
    """Settings of the listener SSL of this broker; ``_`` for ``.``, None for its own of the start."""
    changes = [
        ConfigChange(
            f"listener.name.ssl.{name.replace('_', '.')}",
            ConfigOperation.DELETE if text is None else ConfigOperation.SET,
            text,
        )
        for name, text in settings.items()
    ]
    await alter_configs(broker.node.membership.controller, ConfigResourceType.BROKER, "1", changes)


async def greeted_with(broker: RunningBroker, folder: Path) -> bytes:
    """The certificate that the broker shows to a client that trusts ``folder``'s authority."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", broker.node.port, ssl=context, server_hostname="localhost"
    )
    try:
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return shown
    finally:
        writer.transport.abort()
        del reader


async def test_a_listener_takes_other_certificates_while_it_serves(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.broker.security.listener_doors.LOOK_S", 0.01)
    other = certificates(tmp_path / "other", "client")
    async with running_broker(tmp_path, **security(listener("SSL", folder))) as broker:
        old = await open_connection("localhost", broker.node.port, dial=dialer(folder, "SSL"))
        await greeted_with(broker, folder)
        await alter_own(broker, ssl_keystore_location=str(other / "broker.pem"))
        await until(lambda: any("has other TLS settings" in line for line in broker.lines))
        await greeted_with(broker, other)
        with pytest.raises(ssl.SSLError):
            await greeted_with(broker, folder)
        assert await old.request(ApiKey.METADATA, MetadataRequest(topics=[])), "open connections stay"
        await old.close()
        await alter_own(broker, ssl_keystore_location=str(tmp_path / "nothing.pem"))
        await until(lambda: any("goes on with its old TLS settings" in line for line in broker.lines))
        await greeted_with(broker, other)
        await alter_own(broker, ssl_keystore_location=None)
        await until(lambda: sum("has other TLS settings" in line for line in broker.lines) == 2)
        await greeted_with(broker, folder)


async def test_a_listener_asks_for_certificates_from_a_change_on(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.broker.security.listener_doors.LOOK_S", 0.01)
    async with running_broker(tmp_path, **security(listener("SSL", folder))) as broker:
        port = broker.node.port
        await (await open_connection("localhost", port, dial=dialer(folder, "SSL"))).close()
        await alter_own(broker, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=(.*)$/$1/U")
        await until(lambda: any("has other TLS settings" in line for line in broker.lines))
        with pytest.raises(BrokerUnavailable):
            await open_connection("localhost", port, dial=dialer(folder, "SSL"))
        connection = await open_connection("localhost", port, dial=dialer(folder, "SSL", certificate="client"))
        assert "User:CLIENT" in {one.principal for one in callers_of(broker)()}
        await connection.close()


async def test_stores_of_java_are_read_by_both_sides(tmp_path: Path, folder: Path) -> None:
    kind = listener(
        "SSL",
        folder,
        ssl_client_auth="required",
        ssl_keystore_type="PKCS12",
        ssl_keystore_location=str(store_of(folder, "broker", "one")),
        ssl_keystore_password="one",
        ssl_truststore_type="PKCS12",
        ssl_truststore_location=str(store_of(folder, "other", "two")),
        ssl_truststore_password="two",
    )
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(store_of(folder, "other", "two")),
        "ssl.truststore.type": "pkcs12",
        "ssl.truststore.password": "two",
        "ssl.keystore.location": str(store_of(folder, "client", "three")),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": "three",
    }
    async with running_broker(tmp_path, **security(kind)) as broker:
        connection = await open_connection("localhost", broker.node.port, dial=SecureDialer(client_security(settings)))
        assert [one.principal for one in callers_of(broker)()] == ["User:CN=client"]
        await connection.close()


async def test_certificates_by_value_are_trusted_by_both_sides(tmp_path: Path, folder: Path) -> None:
    trusted = (folder / "ca.pem").read_text()
    kind = listener(
        "SSL",
        folder,
        ssl_client_auth="required",
        ssl_truststore_location="",
        ssl_truststore_certificates=trusted,
    )
    settings = {"security.protocol": "SSL", "ssl.truststore.certificates": trusted.replace("\n", "\\n")}
    stranger = certificates(tmp_path / "stranger")
    async with running_broker(tmp_path, **security(kind)) as broker:
        shown = {**settings, "ssl.keystore.location": str(folder / "client.pem")}
        connection = await open_connection("localhost", broker.node.port, dial=SecureDialer(client_security(shown)))
        assert [one.principal for one in callers_of(broker)()] == ["User:CN=client"]
        await connection.close()
        shown = {**settings, "ssl.keystore.location": str(stranger / "client.pem")}
        with pytest.raises(BrokerUnavailable):
            await open_connection("localhost", broker.node.port, dial=SecureDialer(client_security(shown)))


@pytest.mark.parametrize(
    ("data", "password", "why"),
    [
        (None, "wrong", r"its password is another one \(ssl.keystore.password\)"),
        (b"no store", "one", "is no PKCS#12 store"),
        (b"\xfe\xed\xfe\xed\x00\x00\x00\x02", "one", "keytool -importkeystore"),
    ],
)
def test_a_store_that_cannot_be_read_is_refused_with_the_mend(
    tmp_path: Path, folder: Path, data: bytes | None, password: str, why: str
) -> None:
    path = store_of(folder, "broker", "one")
    if data is not None:
        path = tmp_path / "store"
        path.write_bytes(data)
    settings = {
        "security.protocol": "SSL",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(path),
        "ssl.keystore.password": password,
    }
    with pytest.raises(ConfigError, match=why):
        SecureDialer(client_security(settings))
