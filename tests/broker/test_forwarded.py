"""FirnForwarded: who may say for whom a connection is made, and what comes of it (ADR 0034, HF1 and HF2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import ErrorCode
from app.metadata.image.records import SECURITY_LEVEL
from app.security.acls import Operation, PatternType, Permission, ResourceType
from app.security.sasl import plain_message
from app.wire.apikeys import ApiKey
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.private import ForwardedRequest, ForwardedResponse, pack, unpack
from tests.broker.guarded import written
from tests.handlers.conversation import Talk, talk
from tests.support.audited import Heard
from tests.support.broker import RunningBroker, running_broker
from tests.support.rights import SEEN
from tests.support.secured import listener, security
from tests.support.several import cluster_on, unfenced
from tests.support.waiting import until

INSIDE, OUTSIDE = "192.0.2.7", "198.51.100.9"
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
SETTINGS: dict[str, Any] = {
    "new_level": SECURITY_LEVEL,
    "authorizer_class_name": STANDARD_AUTHORIZER,
    "super_users": "User:ANONYMOUS",
    "auto_create_topics_enable": False,
    "security": {"connection.failed.authentication.delay.ms": "0"},
    **security(listener("PLAINTEXT"), listener("SASL_PLAINTEXT")),
}


async def allow(broker: RunningBroker, operation: Operation, kind: ResourceType, name: str, host: str) -> None:
    """Give alice a right at one address."""
    async with talk(broker.node.ports["PLAINTEXT"]) as admin:
        made = AclCreation(kind, name, PatternType.LITERAL, "User:alice", host, operation, Permission.ALLOW)
        answer = await admin.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest([made]))
        assert [one.error_code for one in answer.results] == [0]


@asynccontextmanager
async def trusting(path: Path, *proxies: str) -> AsyncIterator[RunningBroker]:
    """A broker with a topic to which alice may write from one address."""
    async with running_broker(path, firn_trusted_proxies=frozenset(proxies), **SETTINGS) as broker:
        await until(lambda: unfenced(broker))
        await broker.create_topic(SEEN)
        await allow(broker, Operation.WRITE, ResourceType.TOPIC, SEEN, INSIDE)
        yield broker


def speaking(broker: RunningBroker, listener: str = "SASL_PLAINTEXT") -> Any:
    return talk(broker.node.ports[listener])


async def name(client: Talk, address: str) -> str:
    """Why an address does not count; empty if it does."""
    body = await client.ask(ApiKey.FIRN_FORWARDED, 0, pack(ForwardedRequest(address)))
    return unpack(ForwardedResponse, body).error


async def log_in(client: Talk, user: str = "alice") -> ErrorCode:
    await client.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    message = SaslAuthenticateRequest(plain_message(user, f"{user}-secret"))
    return ErrorCode((await client.ask(ApiKey.SASL_AUTHENTICATE, 2, message)).error_code)


@pytest.mark.parametrize(
    ("address", "code"),
    [
        (None, REFUSED),
        (INSIDE, ErrorCode.NONE),
        (f"::ffff:{INSIDE}", ErrorCode.NONE),
        (OUTSIDE, REFUSED),
        ("2001:db8::7", REFUSED),
        ("127.0.0.1", REFUSED),
    ],
)
async def test_a_trusted_address_names_its_client(tmp_path: Path, address: str | None, code: ErrorCode) -> None:
    async with trusting(tmp_path, "127.0.0.1") as broker, speaking(broker) as client:
        heard = Heard(broker.node.context.audit)
        if address is not None:
            assert await name(client, address) == ""
        assert await log_in(client) is ErrorCode.NONE
        for _ in range(3):  # the short way, too
            assert await written(client) == code
        for line in heard.take():
            assert line["host"] == (address or "127.0.0.1").removeprefix("::ffff:")
            assert line.get("via") == (None if address is None else "127.0.0.1")
        assert broker.log(SEEN).log_end_offset == (0 if code else 3)


@pytest.mark.parametrize("proxies", [(), ("10.0.0.0/8", "::1")])
async def test_nobody_else_names_an_address_and_who_tries_is_a_line(tmp_path: Path, proxies: tuple[str, ...]) -> None:
    async with trusting(tmp_path, *proxies) as broker, speaking(broker) as client:
        heard = Heard(broker.node.context.audit)
        assert "127.0.0.1 is not in firn.trusted.proxies" in await name(client, INSIDE)
        assert await client.closed()
        line = heard.take_one()
        assert (line["event"], line["outcome"], line["host"]) == ("login", "failed", "127.0.0.1")
        assert "firn.trusted.proxies" in line["reason"]
        assert INSIDE not in str(line), "what a stranger says is not told"


async def test_an_address_is_named_once_and_before_the_login_begins(tmp_path: Path) -> None:
    async with trusting(tmp_path, "127.0.0.1", INSIDE) as broker:
        heard = Heard(broker.node.context.audit)
        async with speaking(broker) as client:
            assert await name(client, OUTSIDE) == ""
            assert "not at its beginning" in await name(client, INSIDE)
            assert await client.closed()
        async with speaking(broker) as client:
            assert await name(client, INSIDE) == "", "which may name others itself, on connections of its own"
            assert "not at its beginning" in await name(client, OUTSIDE)
            assert await client.closed()
        async with speaking(broker) as client:
            await client.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
            assert "not at its beginning" in await name(client, INSIDE)
            assert await client.closed()
        assert [line["outcome"] for line in heard.take()] == ["failed"] * 3
        async with speaking(broker) as client:
            assert await log_in(client) is ErrorCode.NONE
            client.send(ApiKey.FIRN_FORWARDED, 0, pack(ForwardedRequest(INSIDE)))
            client.send_produce(9, [(SEEN, [(0, b"")])])
            assert await client.closed()
        async with speaking(broker, "PLAINTEXT") as client:
            client.send(ApiKey.FIRN_FORWARDED, 0, pack(ForwardedRequest(INSIDE)))
            assert await client.closed(), "nobody logs in there"
        assert broker.log(SEEN).log_end_offset == 0


@pytest.mark.parametrize("address", ["", "localhost", "1.2.3", "192.0.2.7,198.51.100.9", "1" * 10_000, "192.0.2.7\n"])
async def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    async with trusting(tmp_path, "127.0.0.1") as broker, speaking(broker) as client:
        heard = Heard(broker.node.context.audit)
        assert await name(client, address) == "what it names is not an address"
        assert await client.closed()
        assert heard.take_one()["outcome"] == "failed"


async def test_what_is_no_request_ends_the_connection(tmp_path: Path) -> None:
    async with trusting(tmp_path, "127.0.0.1") as broker:
        heard = Heard(broker.node.context.audit)
        for message in (b"", b"\xff", b"\x90", b"\x91\x01"):
            async with speaking(broker) as client:
                client.send(ApiKey.FIRN_FORWARDED, 0, message)
                assert await client.closed()
            assert heard.take_one()["outcome"] == "failed", message


async def test_the_controller_decides_for_the_address_that_was_named(tmp_path: Path) -> None:
    """A request that is passed on is checked there, and told of there."""
    async with cluster_on(tmp_path, 2, firn_trusted_proxies=frozenset({"127.0.0.1"}), **SETTINGS) as brokers:
        [controller] = [one for one in brokers if one.node.membership.controller.active]
        [other] = [one for one in brokers if one is not controller]
        await allow(controller, Operation.CREATE, ResourceType.TOPIC, "made", INSIDE)
        await until(lambda: other.node.cluster.log.next_sequence == controller.node.cluster.log.next_sequence)
        heard = Heard(controller.node.context.audit)
        wanted = CreateTopicsRequest([CreatableTopic("made", 1, 1)], 10_000)
        for address, code in ((OUTSIDE, REFUSED), (INSIDE, ErrorCode.NONE)):
            async with speaking(other) as client:
                assert await name(client, address) == ""
                assert await log_in(client) is ErrorCode.NONE
                answer = await client.ask(ApiKey.CREATE_TOPICS, 7, wanted)
                assert [one.error_code for one in answer.topics] == [code]
                lines = [line for line in heard.take() if line.get("request") == "CREATE_TOPICS"]
                assert [(line["principal"], line["host"]) for line in lines] == [("User:alice", address)]
