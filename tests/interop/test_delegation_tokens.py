"""Delegation tokens: Kafka's own tool and clients against Firn, and the same conversation with Firn and with Apache Kafka."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.client.connection import KafkaConnection, open_connection
from app.client.security import SecureDialer, client_security
from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.security.acls import Operation, PatternType, Permission, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from app.wire.apis.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from app.wire.apis.describe_delegation_token import DescribeDelegationTokenOwner, DescribeDelegationTokenRequest
from app.wire.apis.expire_delegation_token import ExpireDelegationTokenRequest
from app.wire.apis.metadata import MetadataRequest
from app.wire.apis.renew_delegation_token import RenewDelegationTokenRequest
from loadtests.kafka_peer import kafka_running
from tests.interop.java_programs import JavaProgram, Tools
from tests.interop.serving import kafka_libs_or_skip
from tests.support.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
KEY = "a secret of brokers"
USERS = ("admin", "alice", "bob", "carol")
JAAS = "org.apache.kafka.common.security.{}.{}LoginModule required"
PLAIN = JAAS.format("plain", "Plain") + "".join(f' user_{one}="{one}-secret"' for one in USERS) + ";"
SCRAM = JAAS.format("scram", "Scram")
SETTINGS = {
    "delegation.token.secret.key": KEY,
    "delegation.token.expiry.time.ms": "3600000",
    "delegation.token.max.lifetime.ms": "7200000",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin;User:ANONYMOUS",
    "listener.name.clients.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": PLAIN,
    "listener.name.clients.scram-sha-256.sasl.jaas.config": SCRAM + ";",
    "listener.name.clients.scram-sha-512.sasl.jaas.config": SCRAM + ";",
}


def properties(user: str, secret: str = "", *, token: bool = False) -> dict[str, str]:
    """Settings of a client."""
    if not token:
        jaas = JAAS.format("plain", "Plain") + f' username="{user}" password="{secret or user + "-secret"}";'
        return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    jaas = SCRAM + f' username="{user}" password="{secret}" tokenauth="true";'
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas}


class Made(NamedTuple):
    token_id: str
    hmac: bytes


class Side:
    """One of the brokers."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port

    async def connect(self, settings: dict[str, str]) -> KafkaConnection:
        return await open_connection("127.0.0.1", self.port, dial=SecureDialer(client_security(settings)))

    async def ask(self, user: str, key: ApiKey, message: Any, version: int | None = None) -> Any:
        connection = await self.connect(properties(user))
        try:
            return await connection.request(key, message, version=version)
        finally:
            await connection.close()

    async def let_in(self, made: Made) -> str:
        try:
            connection = await self.connect(properties(made.token_id, b64encode(made.hmac).decode(), token=True))
        except (RequestRejected, BrokerUnavailable):
            return "refused"
        try:
            try:
                await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
            except BrokerUnavailable:
                return "refused"  # Kafka lets in with a token that has ended, and closes the connection at once
            kept = await connection.request(
                ApiKey.CREATE_DELEGATION_TOKEN, CreateDelegationTokenRequest(max_lifetime_ms=-1)
            )
            return f"let in, and gets {ErrorCode(kept.error_code).name}"
        finally:
            await connection.close()


@pytest.fixture(scope="module")
def firn_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    path = tmp_path_factory.mktemp("firn")
    port, plain = free_port(), free_port()
    config = path / "server.properties"
    texts = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    config.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    with serving_with(path, config) as running:
        del running
        yield Side("Firn", port)


def serving_with(path: Path, config: Path) -> Any:
    """A broker process by a file of settings."""
    import subprocess
    import sys
    from contextlib import contextmanager

    from tests.interop.serving import READY

    @contextmanager
    def work() -> Iterator[Any]:
        command = [sys.executable, "-m", "app.cli", "serve", "--config", str(config), "--http", "off"]
        command += ["--data-dir", str(path / "data"), "--store", f"file://{path / 'store'}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stderr is not None
            with closing(process.stderr):
                lines = []
                for line in process.stderr:
                    lines.append(line)
                    if READY.search(line):
                        break
                assert process.poll() is None, "".join(lines)
                try:
                    yield process
                finally:
                    process.terminate()
                    process.stderr.read()
                    process.wait()

    return work()


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory, firn_side: Side) -> Iterator[list[Side]]:
    kafka_libs_or_skip()
    port, plain, controller = free_port(), free_port(), free_port()
    texts = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},CLIENTS://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},CLIENTS://127.0.0.1:{port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    with kafka_running(tmp_path_factory.mktemp("kafka"), settings=texts, port=plain):
        yield [Side("Kafka", port), firn_side]


async def test_the_same_conversation_with_kafka(sides: list[Side]) -> None:
    kafka, firn = [await conversation(side) for side in sides]
    differing = [(left, right) for left, right in zip(kafka, firn, strict=True) if left != right]
    assert not differing, "\n".join(f"Kafka {left}\nFirn  {right}" for left, right in differing)


async def conversation(side: Side) -> list[tuple[str, Any]]:
    """What happens with tokens: labels and outcomes that do not depend on ids and the clock."""
    found: list[tuple[str, Any]] = []
    names: dict[str, str] = {}

    async def create(label: str, user: str, version: int | None = None, **fields: Any) -> Made:
        message = CreateDelegationTokenRequest(**{"max_lifetime_ms": -1, **fields})
        answer = await side.ask(user, ApiKey.CREATE_DELEGATION_TOKEN, message, version)
        names[answer.token_id] = label
        lives = answer.max_timestamp_ms - answer.issue_timestamp_ms
        renews = answer.expiry_timestamp_ms - answer.issue_timestamp_ms
        whose = (answer.principal_type, answer.principal_name, answer.token_requester_principal_name)
        outcome = (ErrorCode(answer.error_code).name, whose, lives, renews, len(answer.hmac), len(answer.token_id))
        found.append((f"create {label}", outcome if not answer.error_code else outcome[:2]))
        return Made(answer.token_id, bytes(answer.hmac))

    async def change(label: str, user: str, key: ApiKey, message: Any) -> None:
        answer = await side.ask(user, key, message)
        found.append((label, ErrorCode(answer.error_code).name))

    async def listed(label: str, user: str, *owners: str, everybody: bool = False) -> None:
        asked = None if everybody else [DescribeDelegationTokenOwner("User", one) for one in owners]
        answer = await side.ask(user, ApiKey.DESCRIBE_DELEGATION_TOKEN, DescribeDelegationTokenRequest(asked))
        seen = sorted(
            (
                names.get(one.token_id, "?"),
                one.principal_name,
                one.token_requester_principal_name,
                [other.principal_name for other in one.renewers],
                len(one.hmac),
            )
            for one in answer.tokens
        )
        found.append((label, (ErrorCode(answer.error_code).name, seen)))

    mine = await create("alice's", "alice")
    ours = await create("alice's for bob", "alice", renewers=[CreatableRenewers("User", "bob")])
    await create("short", "alice", max_lifetime_ms=1000_000)
    await create("long", "alice", max_lifetime_ms=1 << 50)
    await create("old version", "alice", version=2)
    await create("denied", "bob", owner_principal_type="User", owner_principal_name="alice")
    await create("renewer of another type", "alice", renewers=[CreatableRenewers("Group", "x")])
    await create("of herself by name", "alice", owner_principal_type="User", owner_principal_name="alice")
    rule = AclCreation(
        ResourceType.USER, "User:alice", PatternType.LITERAL, "User:bob", "*", Operation.CREATE_TOKENS, Permission.ALLOW
    )
    await side.ask("admin", ApiKey.CREATE_ACLS, CreateAclsRequest([rule]))
    deadline = asyncio.get_running_loop().time() + 15
    while asyncio.get_running_loop().time() < deadline:
        message = CreateDelegationTokenRequest("User", "alice", [], -1)
        answer = await side.ask("bob", ApiKey.CREATE_DELEGATION_TOKEN, message)
        names[answer.token_id] = "tried"
        if not answer.error_code:
            break
        await asyncio.sleep(0.1)
    await create("for alice by bob", "bob", owner_principal_type="User", owner_principal_name="alice")
    await asyncio.sleep(0.5)  # Kafka's brokers learn of a token after its answer
    found.append(("a token", await side.let_in(mine)))
    found.append(("a wrong secret", await side.let_in(mine._replace(hmac=b"x" * 64))))
    found.append(("no such token", await side.let_in(mine._replace(token_id="nothing"))))
    for user in ("alice", "bob", "carol", "admin"):
        await listed(f"all that {user} may see", user, everybody=True)
        await listed(f"of alice, for {user}", user, "alice")
        await listed(f"of bob and carol, for {user}", user, "bob", "carol")
        await listed(f"of nobody, for {user}", user)
    renew, expire = ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN
    for user in ("carol", "admin", "bob", "alice"):
        await change(f"renew by {user}", user, renew, RenewDelegationTokenRequest(ours.hmac, -1))
        await change(f"expire later by {user}", user, expire, ExpireDelegationTokenRequest(ours.hmac, 1_000_000))
    await change("renew nothing", "alice", renew, RenewDelegationTokenRequest(b"x" * 64, -1))
    await change("expire nothing", "alice", expire, ExpireDelegationTokenRequest(b"", -1))
    await change("expire now by bob", "bob", expire, ExpireDelegationTokenRequest(ours.hmac, -1))
    await asyncio.sleep(0.5)
    await change("renew what is gone", "alice", renew, RenewDelegationTokenRequest(ours.hmac, -1))
    found.append(("a token that is gone", await side.let_in(ours)))
    await change("end in a moment", "alice", expire, ExpireDelegationTokenRequest(mine.hmac, 1))
    await asyncio.sleep(0.5)
    await change("renew what has ended", "alice", renew, RenewDelegationTokenRequest(mine.hmac, -1))
    await change("expire what has ended", "alice", expire, ExpireDelegationTokenRequest(mine.hmac, 1000))
    found.append(("a token that has ended", await side.let_in(mine)))
    await change("remove what has ended", "alice", expire, ExpireDelegationTokenRequest(mine.hmac, -1))
    return found


def test_kafkas_tool_makes_lists_renews_and_expires_tokens(firn_side: Side, jvm: JavaProgram, tmp_path: Path) -> None:
    tools = Tools(jvm, None)  # type: ignore[arg-type]
    files = {}
    for user in ("alice", "bob"):
        files[user] = written(tmp_path / f"{user}.properties", properties(user))
    address = f"127.0.0.1:{firn_side.port}"

    def run(user: str, *arguments: object) -> Any:
        return tools.run(TOOL, "--bootstrap-server", address, "--command-config", files[user], *arguments)

    made = run("alice", "--create", "--max-life-time-period", -1, "--renewer-principal", "User:bob")
    assert made.code == 0, made
    match = re.search(r"^(\S{22})\s+(\S{88})\s+User:alice\s+User:alice\s+\[User:bob\]", made.out, re.MULTILINE)
    assert match is not None, made.out
    token_id, secret = match[1], match[2]
    listed = run("bob", "--describe", "--owner-principal", "User:alice")
    assert token_id in listed.out, listed
    assert token_id not in run("bob", "--describe", "--owner-principal", "User:carol").out
    token = written(tmp_path / "token.properties", properties(token_id, secret, token=True))
    seen = tools.run(TOPICS, "--bootstrap-server", address, "--command-config", token, "--list")
    assert seen.code == 0, seen
    files["token"] = token
    refused = run("token", "--create", "--max-life-time-period", -1)
    assert refused.code != 0
    assert "Delegation Token requests are not allowed" in refused.out + refused.error
    renewed = run("bob", "--renew", "--renew-time-period", 1_000_000, "--hmac", secret)
    assert renewed.code == 0, renewed
    expired = run("alice", "--expire", "--expiry-time-period", -1, "--hmac", secret)
    assert expired.code == 0, expired
    gone = tools.run(TOPICS, "--bootstrap-server", address, "--command-config", token, "--list")
    assert gone.code != 0
    assert token_id not in run("alice", "--describe").out


def written(path: Path, settings: dict[str, str]) -> Path:
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return path
