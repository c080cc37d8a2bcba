"""Every API, asked by whoever must not: it is refused, nothing has changed, and the audit log has exactly one line.

The columns: without a login; with a wrong password of PLAIN or SCRAM; with a token that has expired, has no signature, is signed by
somebody else or by the public key as a secret, or is meant for another service; as an address that only a proxy may name; with a
revoked certificate; without a right, with a right and a rule that denies it, for another's group or transactional id, and after
somebody else has taught the broker the request. Each is tried with every API in every version.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import ErrorCode
from app.metadata.image.records import SECURITY_LEVEL
from app.security.acls import WILDCARD, Operation, ResourceType
from app.security.sasl import plain_message
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from tests.broker.guarded import ALICE, BOB, SAYS_LESS, TOPIC, Guarded, guarded, read, state_of, written
from tests.broker.negative_lines import (
    EVERYTHING,
    NO_LOGINS,
    OF_GROUPS,
    OF_TOKENS,
    OTHERS,
    Issuer,
    ask,
    check_line,
    check_login_line,
    of_groups,
    requests,
    showing_certificate,
    tried,
)
from tests.broker.users import look_again
from tests.handlers.conversation import Talk, batch, talk
from tests.support.audited import Heard
from tests.support.broker import RunningBroker, running_broker
from tests.support.rights import OTHER, SEEN, STEPS, refusals
from tests.support.secured import certificates, listener, revocations, security
from tests.support.several import unfenced
from tests.support.waiting import until

# --- rights -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("denied", [False, True], ids=["no ACL", "an ACL that denies"])
async def test_who_has_no_right_is_refused_everything_and_each_refusal_is_one_line(
    tmp_path: Path, denied: bool
) -> None:
    async with guarded(tmp_path) as broker:
        if denied:
            await broker.allow(*EVERYTHING)
            await broker.allow(*EVERYTHING, deny=True)
        heard = Heard(broker.context.audit)
        ids, before = broker.ids, state_of(broker)
        async with broker.as_user(ALICE) as alice:
            for step in STEPS:
                for version in step.versions():
                    answer = await ask(alice, step, version, ids)
                    if step.label in SAYS_LESS:
                        assert not refusals(answer), (step.label, version)
                        assert heard.take() == [], (step.label, version)
                        continue
                    check_line(heard.take_one(), step, ALICE, "127.0.0.1", alice.correlation_id)
                assert state_of(broker) == before, step.label


async def test_who_has_every_right_is_refused_nothing_and_only_changes_are_lines(tmp_path: Path) -> None:
    """That the lines above come of what is missing, and of nothing else."""
    async with guarded(tmp_path) as broker:
        await broker.allow(*EVERYTHING)
        heard = Heard(broker.context.audit)
        broker.names.next = ALICE
        async with talk(broker.broker.port) as alice:
            for step in STEPS:
                if step.key is ApiKey.DELETE_TOPICS or step.key in OF_TOKENS:
                    continue
                for version in step.versions():
                    answer = await ask(alice, step, version, broker.ids)
                    assert not refusals(answer), (step.label, version, answer)
                    assert {line["event"] for line in heard.take()} <= {"change"}, (step.label, version)


NAMES_OF_OTHERS = {name for names in OTHERS.values() for name in names}


@pytest.mark.parametrize("denied", [False, True], ids=["rights on one's own", "all but another's"])
async def test_anothers_group_and_transactional_id_are_refused_with_one_line_each(tmp_path: Path, denied: bool) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow((Operation.ALL, ResourceType.TOPIC, WILDCARD))
        for kind, names_of_others in OTHERS.items():
            await broker.allow((Operation.ALL, kind, WILDCARD if denied else "mine"))
            if denied:
                await broker.allow(*((Operation.ALL, kind, name) for name in names_of_others), deny=True)
        heard = Heard(broker.context.audit)
        ids, before, tried = broker.ids, state_of(broker), set()
        async with broker.as_user(ALICE) as alice:
            for step in of_groups():
                for version in step.versions():
                    answer = await ask(alice, step, version, ids)
                    assert refusals(answer) & OF_GROUPS, (step.label, version, answer)
                    line = heard.take_one()
                    names = {one["name"] for one in line["resources"]}
                    assert names <= NAMES_OF_OTHERS, (step.label, version, line)
                    tried.add(step.key)
            assert state_of(broker) == before
        assert {ApiKey.JOIN_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.SHARE_FETCH} <= tried


async def test_a_shape_that_another_taught_is_refused_with_one_line(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow((Operation.WRITE, TOPIC, SEEN), (Operation.READ, TOPIC, SEEN))
        heard = Heard(broker.context.audit)
        async with broker.as_user(ALICE) as alice, broker.as_user(BOB) as bob:
            for turn in range(1, 4):
                assert await written(alice) == 0
                assert (await read(alice))[0] == 0
                assert heard.take() == []
                assert await written(bob) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                assert heard.take_one()["request"] == "PRODUCE"
                assert await read(bob) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
                assert heard.take_one()["request"] == "FETCH"
                assert broker.broker.log(SEEN).log_end_offset == turn


async def test_a_request_that_another_was_allowed_is_refused_with_one_line(tmp_path: Path) -> None:
    """Whatever the broker remembers of a request belongs to who sent it."""
    async with guarded(tmp_path) as broker:
        heard = Heard(broker.context.audit)
        async with broker.as_user(ALICE) as alice, broker.as_user(BOB) as bob:
            await broker.allow(*EVERYTHING)
            for step in STEPS:
                for version in step.versions():
                    if step.key is not ApiKey.DELETE_TOPICS:  # what is not there any more is not refused
                        for _ in range(2):
                            await ask(alice, step, version, broker.ids)
                    heard.take()
                    before = state_of(broker)
                    answer = await ask(bob, step, version, broker.ids)
                    assert state_of(broker) == before, (step.label, version)
                    if step.label in SAYS_LESS:
                        assert heard.take() == [], (step.label, version)
                        continue
                    assert refusals(answer) or step.key is ApiKey.DESCRIBE_LOG_DIRS, (step.label, version, answer)
                    line = heard.take_one()
                    assert (line["outcome"], line["principal"]) == ("denied", BOB), (step.label, version)


async def test_without_acks_a_denied_write_is_a_line_although_nothing_is_answered(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        heard = Heard(broker.context.audit)
        async with broker.as_user(ALICE) as alice:
            alice.send_produce(9, [(SEEN, [(0, batch())]), (OTHER, [(0, batch())])], acks=0)
            assert await alice.closed()
        line = heard.take_one()
        assert [one["name"] for one in line["resources"]] == [SEEN, OTHER]


# --- logins -------------------------------------------------------------------------------------------------------------


class Strangers(Guarded):
    """A broker with a listener for each way to be a stranger."""

    def __init__(self, broker: RunningBroker, folder: Path, issuer: Issuer) -> None:
        self.broker = broker
        self.context = broker.node.context
        self.folder = folder
        self.issuer = issuer

    @asynccontextmanager
    async def plainly(self) -> AsyncIterator[Talk]:
        async with talk(self.broker.node.ports["SASL_PLAINTEXT"]) as client:
            yield client

    @asynccontextmanager
    async def with_certificate(self) -> AsyncIterator[Talk]:
        async with showing_certificate(self.broker.node.ports["SSL"], self.folder) as client:
            yield client


@asynccontextmanager
async def strangers(path: Path) -> AsyncIterator[Strangers]:
    folder = certificates(path / "tls", "client")
    issuer = Issuer(path)
    revoked = path / "crl.pem"
    revoked.write_bytes(revocations(folder, "client"))
    doors = (
        listener("PLAINTEXT"),
        listener("SSL", folder, ssl_client_auth="required", firn_ssl_crl_location=revoked),
        listener("SASL_PLAINTEXT", mechanisms="PLAIN,OAUTHBEARER,SCRAM-SHA-512", **issuer.settings),
    )
    async with running_broker(
        path,
        new_level=SECURITY_LEVEL,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:ANONYMOUS;User:admin;User:alice;User:CN=client",  # with a login they may do everything
        auto_create_topics_enable=False,
        security={"connection.failed.authentication.delay.ms": "0"},
        **security(*doors),
    ) as broker:
        await until(lambda: unfenced(broker))
        for name in (SEEN, OTHER, "gone"):
            await broker.create_topic(name)
        doors_of = broker.node._doors
        assert doors_of is not None
        yield Strangers(broker, folder, issuer)


OF_EVERY_RUN = ("no login", "alg none")


@pytest.mark.parametrize(
    "column", [one if one in OF_EVERY_RUN else pytest.param(one, marks=pytest.mark.ci) for one in NO_LOGINS]
)
async def test_a_stranger_is_served_nothing_and_each_attempt_is_one_line(tmp_path: Path, column: str) -> None:
    async with strangers(tmp_path) as one:
        heard = Heard(one.context.audit)
        ids = one.ids
        before = state_of(one)
        send, why = NO_LOGINS[column]
        for key, version, message in requests(ids):
            async with one.plainly() as client:
                answers = await tried(client, lambda client: send(one.issuer, client), key, version, message, ids)
            assert len(answers) < 600, f"{key.name} was answered"
            check_login_line(heard.take_one(), why, "127.0.0.1", "SASL_PLAINTEXT")
            assert state_of(one) == before, key
        assert one.broker.log(SEEN).log_end_offset == 0


async def test_a_token_is_told_although_its_client_leaves_before_it_is_refused(tmp_path: Path) -> None:
    async with strangers(tmp_path) as one:
        heard = Heard(one.context.audit)
        async with one.plainly() as client:
            await client.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("OAUTHBEARER"))
            message = f"n,,\x01auth=Bearer {one.issuer.token('alg none')}\x01\x01".encode()
            answer = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(message))
            assert answer.error_code == 0, "the client is told by a message first"
        assert "algorithm 'none'" in heard.take_one()["reason"]


@pytest.mark.ci
async def test_a_revoked_certificate_is_served_nothing_and_each_attempt_is_one_line(tmp_path: Path) -> None:
    async with strangers(tmp_path) as one:
        heard = Heard(one.context.audit)
        ids = one.ids
        before = state_of(one)
        for key, version, message in requests(ids):
            try:
                async with one.with_certificate() as client:
                    client.send(key, version, message)
                    assert await client.reader.read() == b""
            except (ssl.SSLError, ConnectionError):
                pass
            await until(lambda: heard._lines)
            line = heard.take_one()
            assert (line["event"], line["outcome"], line["mechanism"]) == ("login", "failed", "TLS"), key
            assert line["listener"] == "SSL"
            assert "revoked" in line["reason"]
            assert state_of(one) == before, key


async def test_the_strangers_are_served_once_they_are_none(tmp_path: Path) -> None:
    """That the columns above fail for what they say, and for nothing else."""
    async with strangers(tmp_path) as one:
        heard = Heard(one.context.audit)
        for mechanism, token in (
            ("PLAIN", plain_message("alice", "alice-secret")),
            ("OAUTHBEARER", f"n,,\x01auth=Bearer {one.issuer.token('')}\x01\x01".encode()),
        ):
            async with one.plainly() as client:
                await client.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
                answer = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(token))
                assert answer.error_code == 0
                line = heard.take_one()
                assert (line["event"], line["outcome"], line["mechanism"]) == ("login", "done", mechanism)
                assert await written(client) == 0
        revoked = tmp_path / "crl.pem"
        revoked.write_bytes(revocations(one.folder))
        await look_at_certificates(one.broker)
        async with one.with_certificate() as client:
            assert await written(client) == 0
            line = heard.take_one()
            assert (line["principal"], line["mechanism"]) == ("User:CN=client", "TLS")


async def look_at_certificates(broker: RunningBroker) -> None:
    doors = broker.node._doors
    assert doors is not None
    secured = {name: door for name, door in doors.by_listener.items() if door.certificates is not None}
    doors.by_listener = secured
    await look_again(broker)
