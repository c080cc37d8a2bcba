"""Whether a user exists is told to nobody: logins over sockets are answered alike, byte for byte, and cost the same work.

Work is counted and not timed: every digest that a login makes, over how many bytes, and every iteration.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import admin as librdkafka

from app.cli import user as command
from app.client.connection import open_connection
from app.security import delegation, sasl, scram
from app.security.sasl import PlainServer, plain_message
from app.security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    Alphabet,
    SaltShape,
    ScramClient,
    ScramMechanism,
    ScramServer,
)
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.framing import request_frame
from tests.broker.users import upsert
from tests.handlers.conversation import SIZE, talk
from tests.support.audited import Heard
from tests.support.broker import RunningBroker, running_broker
from tests.support.logins import SALT, seen_shape
from tests.support.secured import listener, security
from tests.support.several import unfenced
from tests.support.tokens import KEY, connect, dialer, made, token_dialer
from tests.support.waiting import until

SASL = "SASL_PLAINTEXT"
NONCE = re.compile(rb"r=[^,]+")


class Work:
    """Counts what logins make of ``hmac`` and ``hashlib`` on the broker's side. The test's client is in the same process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[object, ...]] = []
        self._counts = False
        for module in (scram, sasl, delegation):
            for name, real in (("hmac", hmac), ("hashlib", hashlib)):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, self._watched(name, real))
        for server in (ScramServer, PlainServer):
            monkeypatch.setattr(server, "evaluate", self._counting(server.evaluate))

    def _counting(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def counted(server: Any, token: bytes) -> Any:
            self._counts = True
            try:
                return evaluate(server, token)
            finally:
                self._counts = False

        return counted

    def _watched(self, name: str, real: Any) -> Any:
        work = self

        class Watched:
            def __getattr__(self, call: str) -> Any:
                found = getattr(real, call)

                def noted(*args: Any) -> Any:
                    if work._counts:
                        sizes = [len(arg) if isinstance(arg, bytes) else arg for arg in args]
                        work.done.append((name, call, *sizes))
                    return found(*args)

                return noted if callable(found) else found

        return Watched()

    def take(self) -> list[tuple[object, ...]]:
        taken, self.done = self.done, []
        return taken


class Told(NamedTuple):
    """What a login that fails tells."""

    frames: list[bytes]
    lines: list[str]
    audited: list[dict[str, Any]]
    work: list[tuple[object, ...]]


class Attempt(NamedTuple):
    user: str
    password: str
    by_token: bool = False


async def first_answer(broker: RunningBroker, mechanism: ScramMechanism, user: str) -> tuple[bytes, bytes]:
    """Salt and iterations that are told to whoever names a user."""
    async with talk(broker.node.ports[SASL]) as client:
        await client.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism.sasl_name))
        first = ScramClient(mechanism, user, "", nonce="n" * 24).first
        answer = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(first))
    found = SALT.search(bytes(answer.auth_bytes))
    assert found is not None
    return found[1], found[2]


async def attempt(broker: RunningBroker, work: Work, heard: Heard, mechanism: str, one: Attempt, version: int) -> Told:
    """Log in by frames of one's own until the broker closes the connection."""
    lines = len(broker.lines)
    heard.take()
    work.take()
    frames = []
    async with talk(broker.node.ports[SASL]) as client:

        async def say(key: int, version: int, message: Any) -> bytes:
            client.writer.write(request_frame(key, version, 1, "c", message))
            frames.append(await client.frame())
            return frames[-1]

        async def show(message: bytes) -> bytes:
            if version:
                return await say(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(message))
            client.writer.write(SIZE.pack(len(message)) + message)
            frames.append(await client.reader.read(1000))
            return frames[-1]

        await say(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism))
        if mechanism == "PLAIN":
            await show(plain_message(one.user, one.password))
        else:
            kind = ScramMechanism.of(mechanism)
            scramming = ScramClient(kind, one.user, one.password, nonce="n" * 24, token=one.by_token)
            answer = await show(scramming.first)
            await show(scramming.answer(answer[answer.index(b"r=") : re.search(rb"i=\d+", answer).end()]))  # type: ignore[union-attr]
        assert await client.closed()
    frames = [NONCE.sub(lambda found: b"_" * len(found[0]), frame) for frame in frames]
    frames = [SALT.sub(lambda found: repr(seen_shape(*found.groups())).encode(), frame) for frame in frames]
    audited = [{name: value for name, value in line.items() if name not in ("user", "time")} for line in heard.take()]
    new = [re.sub(r"127\.0\.0\.1:\d+", "CLIENT", line) for line in broker.lines[lines:]]
    return Told(frames, new, audited, work.take())


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "token"])
async def test_a_user_that_does_not_exist_looks_like_a_wrong_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str, version: int
) -> None:
    door = listener(SASL, mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
    settings = {"connection.failed.authentication.delay.ms": "0"}
    async with running_broker(
        tmp_path, new_level=2, delegation_token_secret_key=KEY, security=settings, **security(door)
    ) as broker:
        await until(lambda: unfenced(broker))
        alice = await connect(broker, dialer("alice"))
        for kind in ScramMechanism:
            await upsert(alice, "carol", "right", kind)
        wrong = b64encode(b"w" * 64).decode()
        if mechanism == "PLAIN":
            attempts = [Attempt("alice", "other-secret"), Attempt("nobdy", "other-secret")]
            attempts.append(Attempt("nobdy", "alice-secret"))
        elif mechanism == "token":
            mechanism = "SCRAM-SHA-512"
            token, ended = await made(alice), await made(alice, max_lifetime_ms=1)
            # The first login of a token on a broker hashes its secret (DT5 of ADR 0035).
            await (await connect(broker, token_dialer(token.token_id, token.hmac))).close()
            strange = "x" * len(token.token_id)
            attempts = [Attempt(one, wrong, True) for one in (token.token_id, strange)]
            attempts.append(Attempt(ended.token_id, b64encode(ended.hmac).decode(), True))
        else:
            attempts = [Attempt("carol", "wrong"), Attempt("nobdy", "wrong"), Attempt("nobdy", "right")]
        work, heard = Work(monkeypatch), Heard(broker.node.context.audit)
        told = [await attempt(broker, work, heard, mechanism, one, version) for one in attempts]
        await alice.close()
    for one in told:
        assert one.frames
        assert one.work
        assert len(one.lines) == len(one.audited) == 1
        assert one == told[0]


OF_FIRN = SaltShape(Alphabet.ALL, SALT_BYTES, ITERATIONS_MIN)
OF_LIBRDKAFKA = SaltShape(Alphabet.ALL, 64, 5000)
OF_JAVA = SaltShape(Alphabet.JAVA, 0, 8192)
STRANGERS = [f"stranger-{number}" for number in range(40)]


@pytest.mark.parametrize("tools", [("firn",), ("librdkafka",), ("java",), ("firn", "librdkafka", "java")])
async def test_who_exists_is_not_told_by_salts_and_iterations(tmp_path: Path, tools: tuple[str, ...]) -> None:
    """Each tool makes salts in its own way."""
    doors = security(listener("PLAINTEXT"), listener(SASL, mechanisms="SCRAM-SHA-256"))
    kind = ScramMechanism.SCRAM_SHA_256
    password = tmp_path / "password"
    password.write_text("secret")
    async with running_broker(tmp_path / "broker", new_level=2, **doors) as broker:
        await until(lambda: unfenced(broker))
        bootstrap = f"127.0.0.1:{broker.node.ports['PLAINTEXT']}"

        def add() -> None:
            if "firn" in tools:
                command.add("firn", bootstrap, kind.sasl_name, ITERATIONS_MIN, password)
            if "librdkafka" in tools:
                info = librdkafka.ScramCredentialInfo(librdkafka.ScramMechanism.SCRAM_SHA_256, 5000)
                client = librdkafka.AdminClient({"bootstrap.servers": bootstrap})
                wanted = librdkafka.UserScramCredentialUpsertion("librdkafka", info, b"secret")
                for done in client.alter_user_scram_credentials([wanted]).values():
                    done.result(60)

        await asyncio.to_thread(add)
        if "java" in tools:
            plain = await open_connection("127.0.0.1", broker.node.ports["PLAINTEXT"])
            # What the formatter of Kafka 4.3 has made; tests/interop/test_secured.py asks it again.
            await upsert(plain, "java", "secret", kind, salt=b"xjfh2id6t3ivjpo94bjb1d29b", iterations=8192)
            await plain.close()
        of_tools = {"firn": OF_FIRN, "librdkafka": OF_LIBRDKAFKA, "java": OF_JAVA}
        assert broker.node.context.image.scram_users.keys() == set(tools)
        told = {name: await first_answer(broker, kind, name) for name in (*tools, *STRANGERS)}
        assert {name: seen_shape(*told[name]) for name in tools} == {name: of_tools[name] for name in tools}
        assert {seen_shape(*told[name]) for name in STRANGERS} == {of_tools[name] for name in tools}
        assert told == {name: await first_answer(broker, kind, name) for name in told}, "and they stay"
        assert len({salt for salt, _ in told.values()}) == len(told)
