"""Delegation tokens, asked of real brokers."""

from __future__ import annotations

import asyncio
import json
import math
from base64 import b64encode
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.client.connection import KafkaConnection, open_connection
from app.client.security import SecureDialer, client_security
from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import TimestampMs
from app.handlers.apis.passing_on import principal_of
from app.handlers.base.request import Request
from app.handlers.policy.callers import Caller, Rights
from app.machine.runtime import SystemClock
from app.security.acls import Operation, PatternType, Permission, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from app.wire.apis.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from app.wire.apis.describe_delegation_token import DescribeDelegationTokenOwner, DescribeDelegationTokenRequest
from app.wire.apis.envelope import EnvelopeRequest
from app.wire.apis.expire_delegation_token import ExpireDelegationTokenRequest
from app.wire.apis.metadata import MetadataRequest
from app.wire.apis.renew_delegation_token import RenewDelegationTokenRequest
from app.wire.framing import request_frame
from app.wire.principal import decode_principal, encode_principal
from tests.handlers.conversation import talk
from tests.support.audited import Heard
from tests.support.broker import RunningBroker, running_broker
from tests.support.secured import certificates, listener, security
from tests.support.several import cluster_on
from tests.support.tokens import KEY, RIGHTS, broker_with_tokens, connect, dialer, door, made, token_dialer
from tests.support.waiting import until


def principals(broker: RunningBroker) -> list[tuple[str, bool]]:
    return [
        (one.core.caller.principal, one.core.caller.by_token)
        for one in broker.node.server._connections
        if one.core.caller
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


async def test_a_secret_that_is_wrong_or_of_no_token_is_refused_alike(tmp_path: Path) -> None:
    async with broker_with_tokens(tmp_path) as broker:
        alice = await connect(broker, dialer("alice"))
        token = await made(alice)
        seen = set()
        for dial in (
            token_dialer(token.token_id, b"x" * 64),
            token_dialer("nothing", token.hmac),
            dialer(token.token_id, b64encode(token.hmac).decode(), "SCRAM-SHA-512"),  # without tokenauth
        ):
            with pytest.raises(RequestRejected) as refused:
                await connect(broker, dial)
            seen.add((refused.value.code, str(refused.value)))
        assert len(seen) == 1
        await alice.close()


async def test_who_has_logged_in_with_a_token_gets_none(tmp_path: Path) -> None:
    async with broker_with_tokens(tmp_path) as broker:
        alice = await connect(broker, dialer("alice"))
        token = await made(alice)
        holder = await connect(broker, token_dialer(token.token_id, token.hmac))
        assert await codes(holder, token.hmac) == [ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED] * 4
        broker.node.context.rights.end()  # the rules change, and the mark stays
        assert await codes(holder, token.hmac) == [ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED] * 4
        assert len(broker.node.cluster.image.tokens) == 1
        await holder.close()
        await alice.close()


async def test_what_is_done_with_tokens_is_told_by_their_ids_and_no_secret_is(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    async with broker_with_tokens(tmp_path, firn_audit_log_path=str(path)) as broker:
        alice = await connect(broker, dialer("alice"))
        token = await made(alice, renewers=[CreatableRenewers("User", "bob")])
        holder = await connect(broker, token_dialer(token.token_id, token.hmac))
        await codes(holder, token.hmac)
        await holder.close()
        assert await codes(alice, token.hmac) == [0] * 4
        assert await codes(alice, b"of no token") == [0, *[ErrorCode.DELEGATION_TOKEN_NOT_FOUND] * 2, 0]
        await alice.close()
    text = path.read_text()
    for secret in (token.hmac, KEY.encode()):
        for spelt in (secret.hex(), b64encode(secret).decode(), repr(secret), json.dumps(secret.decode("latin-1"))):
            assert spelt not in text
    lines = [json.loads(line) for line in text.splitlines()]
    told = [change for line in lines for change in line.get("changes", ()) if change["type"] == "DELEGATION_TOKEN"]
    found = [(one["action"], one["name"] == token.token_id, one.get("error")) for one in told]
    assert found == [
        ("CREATE", True, None),
        ("CREATE", False, None),
        ("RENEW", True, None),
        ("EXPIRE", True, None),
        ("CREATE", False, None),
        ("RENEW", False, "DELEGATION_TOKEN_NOT_FOUND"),
        ("EXPIRE", False, "DELEGATION_TOKEN_NOT_FOUND"),
    ]
    assert (told[0]["owner"], told[0]["renewers"], told[0]["expires_ms"]) == (
        "User:alice",
        ["User:bob"],
        token.expiry_timestamp_ms,
    )
    assert [line.get("by_token") for line in lines if line["event"] == "login"] == [None, True]
    denied = {line["request"]: line["resources"][0]["operation"] for line in lines if line["outcome"] == "denied"}
    assert denied == {
        "CREATE_DELEGATION_TOKEN": "CREATE_TOKENS",
        "RENEW_DELEGATION_TOKEN": "DESCRIBE_TOKENS",
        "EXPIRE_DELEGATION_TOKEN": "DESCRIBE_TOKENS",
        "DESCRIBE_DELEGATION_TOKEN": "DESCRIBE_TOKENS",
    }


async def test_a_plain_or_anonymous_connection_gets_none(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "tls")
    doors = security(listener("PLAINTEXT", name="PLAINTEXT"), listener("SSL", folder))
    async with broker_with_tokens(tmp_path, **doors) as broker:
        for protocol in ("PLAINTEXT", "SSL"):
            settings = {"security.protocol": protocol, "ssl.truststore.location": str(folder / "ca.pem")}
            dial = SecureDialer(client_security(settings))
            connection = await open_connection("localhost", broker.node.ports[protocol], dial=dial)
            assert await codes(connection, b"h") == [ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED] * 4
            await connection.close()


async def test_who_shows_a_certificate_gets_tokens(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "tls", "client")
    doors = security(listener("SSL", folder, ssl_client_auth="required"))
    async with broker_with_tokens(tmp_path, **doors) as broker:
        settings = {
            "security.protocol": "SSL",
            "ssl.truststore.location": str(folder / "ca.pem"),
            "ssl.keystore.location": str(folder / "client.pem"),
        }
        dial = SecureDialer(client_security(settings))
        connection = await open_connection("localhost", broker.node.ports["SSL"], dial=dial)
        assert (await made(connection)).principal_name.startswith("CN=client")
        await connection.close()


async def test_without_the_key_there_are_no_tokens_and_below_level_2_they_are_refused(tmp_path: Path) -> None:
    async with broker_with_tokens(tmp_path / "one", delegation_token_secret_key=None) as broker:
        alice = await connect(broker, dialer("alice"))
        assert await codes(alice, b"h") == [ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED] * 4
        await alice.close()
    async with running_broker(tmp_path / "two", delegation_token_secret_key=KEY, **security(door())) as broker:
        alice = await connect(broker, dialer("alice"))
        assert (await codes(alice, b"h"))[:3] == [ErrorCode.UNSUPPORTED_VERSION] * 3
        await alice.close()


async def test_another_key_ends_all_tokens(tmp_path: Path) -> None:
    async with broker_with_tokens(tmp_path) as broker:
        alice = await connect(broker, dialer("alice"))
        token = await made(alice)
        await alice.close()
    async with broker_with_tokens(tmp_path, delegation_token_secret_key="another", rng=Random(1)) as broker:
        with pytest.raises(RequestRejected):
            await connect(broker, token_dialer(token.token_id, token.hmac))
        alice = await connect(broker, dialer("alice"))
        answer = await alice.request(ApiKey.RENEW_DELEGATION_TOKEN, RenewDelegationTokenRequest(token.hmac, -1))
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        await alice.close()


async def test_a_token_ends_at_its_end_and_the_session_with_it_and_it_is_swept(tmp_path: Path) -> None:
    clock = MovedClock()
    async with broker_with_tokens(tmp_path, clock=clock, delegation_token_expiry_check_interval_ms=50) as broker:
        alice = await connect(broker, dialer("alice"))
        short, long = await made(alice, max_lifetime_ms=60_000), await made(alice)
        dial = token_dialer(short.token_id, short.hmac)
        holder = await connect(broker, dial)
        loop = asyncio.get_running_loop()
        [session] = [one.core for one in broker.node.server._connections if one.core.caller.by_token]
        assert 0 < session.caller.expires_s - loop.time() <= 60
        clock.by_ms = 60_001
        with pytest.raises(RequestRejected):
            await connect(broker, dial)
        await until(lambda: set(broker.node.cluster.image.tokens) == {long.token_id})
        assert await codes(alice, short.hmac) == [0, *[ErrorCode.DELEGATION_TOKEN_NOT_FOUND] * 2, 0]
        await holder.close()
        await alice.close()


async def test_the_owner_and_renewers_renew_and_expire_and_others_do_not(tmp_path: Path) -> None:
    async with broker_with_tokens(tmp_path, **RIGHTS) as broker:
        alice, bob = await connect(broker, dialer("alice")), await connect(broker, dialer("bob"))
        mine, ours = await made(alice), await made(alice, renewers=[CreatableRenewers("User", "bob")])

        async def renewed(connection: KafkaConnection, token: Any, period_ms: int) -> tuple[int, int]:
            message = RenewDelegationTokenRequest(token.hmac, period_ms)
            answer = await connection.request(ApiKey.RENEW_DELEGATION_TOKEN, message)
            return answer.error_code, answer.expiry_timestamp_ms

        async def expired(connection: KafkaConnection, token: Any, period_ms: int) -> int:
            message = ExpireDelegationTokenRequest(token.hmac, period_ms)
            return (await connection.request(ApiKey.EXPIRE_DELEGATION_TOKEN, message)).error_code

        assert await renewed(bob, mine, 1000) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
        assert await expired(bob, mine, -1) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        code, ends_ms = await renewed(bob, ours, 1000)
        assert (code, ends_ms < ours.expiry_timestamp_ms) == (0, True)
        assert await listed(bob) == [ours.token_id], "a renewer sees it"
        assert await listed(alice) == sorted([mine.token_id, ours.token_id])
        assert await listed(alice, "bob") == [ours.token_id]
        assert await expired(bob, ours, -1) == 0
        assert await renewed(alice, ours, -1) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
        with pytest.raises(RequestRejected):
            await connect(broker, token_dialer(ours.token_id, ours.hmac))
        for connection in (alice, bob):
            await connection.close()


async def test_rights_decide_who_makes_tokens_for_others_and_sees_them(tmp_path: Path) -> None:
    async with broker_with_tokens(tmp_path, **RIGHTS) as broker:
        alice, bob = await connect(broker, dialer("alice")), await connect(broker, dialer("bob"))
        hers, his = await made(alice), await made(bob)
        for_alice = CreateDelegationTokenRequest("User", "alice", [], -1)
        refused = await bob.request(ApiKey.CREATE_DELEGATION_TOKEN, for_alice)
        assert (refused.error_code, refused.hmac) == (ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, b"")
        assert await listed(bob) == [his.token_id]
        assert await listed(alice) == sorted([hers.token_id, his.token_id])
        await allow(alice, Operation.CREATE_TOKENS, ResourceType.USER, "User:alice")
        second = await bob.request(ApiKey.CREATE_DELEGATION_TOKEN, for_alice)
        assert (second.error_code, second.principal_name, second.token_requester_principal_name) == (0, "alice", "bob")
        holder = await connect(broker, token_dialer(second.token_id, second.hmac))
        assert ("User:alice", True) in principals(broker)
        await holder.close()
        assert await listed(bob) == sorted([his.token_id, second.token_id]), "who has made it sees it"
        await allow(alice, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, hers.token_id)
        assert await listed(bob) == sorted([hers.token_id, his.token_id, second.token_id])
        for kind in ("Group", ""):
            strange = CreateDelegationTokenRequest(kind, "alice", [], -1)
            answer = await alice.request(ApiKey.CREATE_DELEGATION_TOKEN, strange)
            assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        for connection in (alice, bob):
            await connection.close()


async def test_tokens_are_made_through_any_broker_and_let_in_at_every_broker(tmp_path: Path) -> None:
    settings = {
        "delegation_token_secret_key": KEY,
        **security(listener("PLAINTEXT", name="INTERNAL"), door()),
        "new_level": 2,
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "super_users": "User:ANONYMOUS",
    }
    async with cluster_on(tmp_path, 2, **settings) as brokers:
        controller, other = sorted(brokers, key=lambda one: not one.node.membership.controller.active)
        bob = await connect(other, dialer("bob"))
        token = await made(bob)
        holders = [await connect(one, token_dialer(token.token_id, token.hmac)) for one in (controller, other)]
        for holder in holders:
            assert await codes(holder, token.hmac) == [ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED] * 4
            await holder.close()
        frame = request_frame(ApiKey.RENEW_DELEGATION_TOKEN, 2, 1, "t", RenewDelegationTokenRequest(token.hmac, -1))[4:]
        async with talk(controller.node.ports["INTERNAL"]) as client:
            for by_token, expected in ((True, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED), (False, 0)):
                principal = encode_principal("User", "bob", token_authenticated=by_token)
                asked = EnvelopeRequest(frame, principal, b"127.0.0.1:1")
                answer = await client.ask(ApiKey.ENVELOPE, 0, asked)
                assert answer.error_code == 0
                inner = bytes(answer.response_data)[8:]
                assert int.from_bytes(inner[5:7], "big") == expected
        refused = await bob.request(
            ApiKey.CREATE_DELEGATION_TOKEN, CreateDelegationTokenRequest("User", "alice", [], -1)
        )
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "by the rights of who asks"
        await bob.close()


@pytest.mark.parametrize("by_token", [True, False])
def test_the_mark_of_a_token_is_passed_on(by_token: bool) -> None:
    caller = Caller(Rights("User:alice"), by_token=by_token)
    request = Request(ApiKey.RENEW_DELEGATION_TOKEN, 2, 1, "t", caller, set())
    assert decode_principal(principal_of(request)) == ("User", "alice", by_token)


async def test_a_client_with_a_token_logs_in_again_before_it_ends(tmp_path: Path) -> None:
    async with broker_with_tokens(tmp_path) as broker:
        alice = await connect(broker, dialer("alice"))
        token = await made(alice, max_lifetime_ms=600_000)
        dial = token_dialer(token.token_id, token.hmac)
        holder = await connect(broker, dial)
        [session] = [one.core for one in broker.node.server._connections if one.core.caller.by_token]
        session._login._again_s = -math.inf
        left_s = await dial.login(holder)
        assert left_s is not None
        assert 0 < left_s <= 600
        session._login._again_s = -math.inf
        bob = await connect(broker, dialer("bob"))
        bobs = await made(bob)
        other = token_dialer(bobs.token_id, bobs.hmac)
        with pytest.raises(RequestRejected, match="Cannot change principals"):
            await other.login(holder)
        for connection in (alice, bob):
            await connection.close()


async def test_secrets_of_no_token_do_not_fill_the_audit_log(tmp_path: Path) -> None:
    async with broker_with_tokens(tmp_path) as broker:
        bob = await connect(broker, dialer("bob"))
        heard = Heard(broker.node.context.audit)
        for number in range(20):
            secret = number.to_bytes(64, "big")
            await bob.request(ApiKey.RENEW_DELEGATION_TOKEN, RenewDelegationTokenRequest(secret, -1))
            await bob.request(ApiKey.EXPIRE_DELEGATION_TOKEN, ExpireDelegationTokenRequest(secret, -1))
        lines = heard.take()
        assert [(line["request"], line["outcome"], line["count"]) for line in lines] == [
            ("RENEW_DELEGATION_TOKEN", "failed", 1),
            ("EXPIRE_DELEGATION_TOKEN", "failed", 1),
            ("RENEW_DELEGATION_TOKEN", "failed", 19),
            ("EXPIRE_DELEGATION_TOKEN", "failed", 19),
        ]
        assert {one["error"] for line in lines for one in line["changes"]} == {"DELEGATION_TOKEN_NOT_FOUND"}
        await bob.close()


# --- parts of the tests ---------------------------------------------------------------------------------------------


class MovedClock(SystemClock):
    by_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(super().now_ms() + self.by_ms)


async def codes(connection: KafkaConnection, secret: bytes) -> list[int]:
    """What each of the four is answered."""
    asked = (
        (ApiKey.CREATE_DELEGATION_TOKEN, CreateDelegationTokenRequest(max_lifetime_ms=-1)),
        (ApiKey.RENEW_DELEGATION_TOKEN, RenewDelegationTokenRequest(secret, -1)),
        (ApiKey.EXPIRE_DELEGATION_TOKEN, ExpireDelegationTokenRequest(secret, 1000)),
        (ApiKey.DESCRIBE_DELEGATION_TOKEN, DescribeDelegationTokenRequest(None)),
    )
    return [(await connection.request(key, message)).error_code for key, message in asked]


async def listed(connection: KafkaConnection, *owners: str) -> list[str]:
    named = [DescribeDelegationTokenOwner("User", one) for one in owners] or None
    answer = await connection.request(ApiKey.DESCRIBE_DELEGATION_TOKEN, DescribeDelegationTokenRequest(named))
    assert answer.error_code == 0
    return sorted(one.token_id for one in answer.tokens)


async def allow(connection: KafkaConnection, operation: int, kind: int, name: str) -> None:
    creation = AclCreation(kind, name, PatternType.LITERAL, "User:bob", "*", operation, Permission.ALLOW)
    answer = await connection.request(ApiKey.CREATE_ACLS, CreateAclsRequest([creation]))
    assert [one.error_code for one in answer.results] == [0]
