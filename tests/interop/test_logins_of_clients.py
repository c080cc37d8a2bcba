"""Kafka's clients log in by every mechanism, with TLS and without, produce a record, fetch it, and are told if they are refused.

Delegation tokens: only the Java client can log in with one. librdkafka, kafka-python and aiokafka do not send the extension
``tokenauth`` of SCRAM (in the versions of constraints.txt).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Place
from cryptography.hazmat.primitives.asymmetric import rsa

from app.client.connection import open_connection
from app.client.security import SecureDialer, client_security
from app.security.scram import ScramMechanism, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from app.wire.apis.create_delegation_token import CreateDelegationTokenRequest
from tests.interop.java_programs import JavaProgram, running
from tests.interop.secured_sides import PLAIN, Sided, firn_with
from tests.interop.serving import Raw, create_topic
from tests.support.secured import certificates

kafka = pytest.importorskip("kafka", reason="kafka-python is not here")
aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not here")

from aiokafka.abc import AbstractTokenProvider as AsyncTokens  # noqa: E402
from kafka.net.compat import KafkaNetClient  # noqa: E402
from kafka.net.sasl.oauth import AbstractTokenProvider as Tokens  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("kafka_python_leftovers")]

WAIT_S = 60
USER, PASSWORD = "alice", "alice-secret"
LISTENERS = {"CLEAR": "SASL_PLAINTEXT", "SECURE": "SASL_SSL", "CERTIFIED": "SSL"}
JAAS = "org.apache.kafka.common.security.{}LoginModule required"
SIGNS = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Broker(NamedTuple):
    """The broker, and files of its clients."""

    side: Sided
    tls: Path
    folder: Path


class Login(NamedTuple):
    """How a client is to log in."""

    listener: str
    mechanism: str
    """Empty for a certificate."""
    right: bool = True
    """Whether the broker is to let it in."""
    user: str = USER
    password: str = PASSWORD
    by_token: bool = False
    """Whether the user is a delegation token."""

    @property
    def protocol(self) -> str:
        return LISTENERS[self.listener]

    @property
    def secret(self) -> str:
        return self.password if self.right else "wrong"

    @property
    def token(self) -> str:
        """A signed one."""
        now = int(time.time())
        claims = {
            "sub": "robot",
            "aud": "brokers" if self.right else "others",
            "iat": now,
            "exp": now + 600,
            "scope": "x",
        }
        return jwt.encode(claims, SIGNS, algorithm="RS256", headers={"kid": "one"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("logins")
    tls = certificates(folder / "tls", "client")
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(SIGNS.public_key()))
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [{**jwk, "kid": "one"}]}))
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "brokers",
        "delegation.token.secret.key": "a secret of brokers",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tls / "ca.pem"),
        "listener.name.certified.ssl.client.auth": "required",
    }
    for name in ("clear", "secure"):
        users = f'{JAAS.format("plain.Plain")} user_{USER}="{PASSWORD}";'
        settings[f"listener.name.{name}.plain.sasl.jaas.config"] = users
    with firn_with(folder / "firn", settings, LISTENERS) as side:
        for kind in ScramMechanism:
            salted = salted_password(kind, PASSWORD, b"s" * 24, 4096)
            wanted = [ScramCredentialUpsertion(USER, int(kind), 4096, b"s" * 24, salted)]
            with Raw(side.ports[PLAIN]) as raw:
                answer = raw.ask(
                    ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, AlterUserScramCredentialsRequest(upsertions=wanted)
                )
            assert [one.error_code for one in answer.results] == [0]
        yield Broker(side, tls, folder)


@pytest.fixture(scope="module")
def java() -> Iterator[JavaProgram]:
    with running("Logins.java") as program:
        yield program


# --- the clients: what comes back is what was sent, or the client's own word for what has happened ----------------------


def by_librdkafka(place: Broker, login: Login, topic: str) -> str:
    refused: list[KafkaError] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": f"localhost:{place.side.ports[login.listener]}",
        "security.protocol": login.protocol,
        "error_cb": refused.append,
        "log_level": 0,
    }
    if "SSL" in login.protocol:
        settings["ssl.ca.location"] = str(place.tls / "ca.pem")
    if not login.mechanism and login.right:
        settings |= dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), str(place.tls / "client.pem"))
    if login.mechanism:
        settings["sasl.mechanism"] = login.mechanism
        if login.mechanism == "OAUTHBEARER":
            settings["oauth_cb"] = lambda _: (login.token, time.time() + 600)
        else:
            settings |= {"sasl.username": login.user, "sasl.password": login.secret}
    producer = Producer(settings)
    producer.produce(topic, b"by librdkafka", partition=0)
    end = time.monotonic() + WAIT_S
    while len(producer) and not refused and time.monotonic() < end:
        producer.poll(0.1)
    if refused:
        producer.purge()
        producer.flush(WAIT_S)
        return str(refused[0].name())
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([Place(topic, 0, 0)])
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None, message.error()
        return str((message.value() or b"").decode())
    finally:
        consumer.close()


class Log(logging.Handler):
    """What a client logs while the block runs. Some clients tell why they cannot connect in no other way."""

    def __init__(self, logger: str) -> None:
        super().__init__()
        self._logger = logging.getLogger(logger)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"

    def __enter__(self) -> Log:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    @property
    def failure(self) -> str:
        """The client's error of a login that has failed, and of others their text."""
        found = re.search(r"SaslAuthenticationFailed(Error)?", self.text)
        return self.text if found is None else found[0]


class _Tokens(Tokens):  # type: ignore[misc]
    def __init__(self, login: Login) -> None:
        super().__init__()
        self._login = login

    def token(self) -> str:
        return self._login.token


def by_kafka_python(place: Broker, login: Login, topic: str) -> str:
    settings: dict[str, Any] = {
        "bootstrap_servers": f"localhost:{place.side.ports[login.listener]}",
        "security_protocol": login.protocol,
    }
    if "SSL" in login.protocol:
        settings["ssl_cafile"] = str(place.tls / "ca.pem")
    if not login.mechanism and login.right:
        settings |= dict.fromkeys(("ssl_certfile", "ssl_keyfile"), str(place.tls / "client.pem"))
    if login.mechanism:
        settings["sasl_mechanism"] = login.mechanism
        if login.mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = _Tokens(login)
        else:
            settings |= {"sasl_plain_username": login.user, "sasl_plain_password": login.secret}
    with Log("kafka") as log:
        end = time.monotonic() + WAIT_S
        inner: list[Any] = []

        def new_client(**config: Any) -> Any:
            inner.append(KafkaNetClient(**config))
            return inner[-1]

        settings["kafka_client"] = new_client
        while True:
            try:
                producer = kafka.KafkaProducer(**settings, bootstrap_timeout_ms=WAIT_S * 1000 if login.right else 1000)
                break
            except kafka.errors.KafkaTimeoutError:
                inner[-1].close()  # which the producer forgets
                if log.failure != log.text or time.monotonic() > end or not login.mechanism:
                    return log.failure
    try:
        producer.send(topic, b"by kafka-python", partition=0).get(WAIT_S)
    finally:
        producer.close(WAIT_S)
    del settings["kafka_client"]
    consumer = kafka.KafkaConsumer(**settings, consumer_timeout_ms=WAIT_S * 1000)
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek(kafka.TopicPartition(topic, 0), 0)
        return str(next(consumer).value.decode())
    finally:
        consumer.close()


class _AsyncTokens(AsyncTokens):  # type: ignore[misc]
    def __init__(self, login: Login) -> None:
        super().__init__()
        self._login = login

    async def token(self) -> str:
        return self._login.token


def by_aiokafka(place: Broker, login: Login, topic: str) -> str:
    async def work() -> str:
        settings: dict[str, Any] = {
            "bootstrap_servers": f"localhost:{place.side.ports[login.listener]}",
            "security_protocol": login.protocol,
        }
        if "SSL" in login.protocol:
            context = ssl.create_default_context(cafile=str(place.tls / "ca.pem"))
            if not login.mechanism and login.right:
                context.load_cert_chain(place.tls / "client.pem")
            settings["ssl_context"] = context
        if login.mechanism:
            settings["sasl_mechanism"] = login.mechanism
            if login.mechanism == "OAUTHBEARER":
                settings["sasl_oauth_token_provider"] = _AsyncTokens(login)
            else:
                settings |= {"sasl_plain_username": login.user, "sasl_plain_password": login.secret}
        with Log("aiokafka") as log:
            producer = aiokafka.AIOKafkaProducer(**settings)
            try:
                await producer.start()
                await producer.send_and_wait(topic, b"by aiokafka", partition=0)
            except aiokafka.errors.KafkaConnectionError:
                return log.failure
            finally:
                await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(**settings)
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            consumer.seek(aiokafka.TopicPartition(topic, 0), 0)
            return str((await consumer.getone()).value.decode())
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(work(), 2 * WAIT_S))


def by_java(place: Broker, login: Login, topic: str, java: JavaProgram) -> str:
    settings = {
        "bootstrap.servers": f"localhost:{place.side.ports[login.listener]}",
        "security.protocol": login.protocol,
    }
    if "SSL" in login.protocol:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(place.tls / "ca.pem")}
    if not login.mechanism and login.right:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(place.tls / "client.pem")}
    if login.mechanism:
        settings["sasl.mechanism"] = login.mechanism
        if login.mechanism == "OAUTHBEARER":
            file = place.folder / f"token-{login.listener}-{login.right}"
            file.write_text(login.token)
            handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            settings |= {
                "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
                "sasl.login.callback.handler.class": handler,
            }
            settings["sasl.jaas.config"] = JAAS.format("oauthbearer.OAuthBearer") + ";"
        else:
            module = "plain.Plain" if login.mechanism == "PLAIN" else "scram.Scram"
            extra = ' tokenauth="true"' if login.by_token else ""
            settings["sasl.jaas.config"] = (
                f'{JAAS.format(module)} username="{login.user}" password="{login.secret}"{extra};'
            )
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    answer = java.ask(*(base64.b64encode(field.encode()).decode() for field in (text, topic, "by Java")))
    word, _, rest = answer.partition(" ")
    return rest if word == "ok" else word


Client = Callable[[Broker, Login, str], str]
CLIENTS: dict[str, Client] = {"librdkafka": by_librdkafka, "kafka-python": by_kafka_python, "aiokafka": by_aiokafka}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WAYS = [*((listener, mechanism) for listener in ("CLEAR", "SECURE") for mechanism in MECHANISMS), ("CERTIFIED", "")]
QUICK = {
    ("librdkafka", "SECURE", "SCRAM-SHA-256"),
    ("kafka-python", "SECURE", "SCRAM-SHA-512"),
    ("aiokafka", "SECURE", "OAUTHBEARER"),
    ("librdkafka", "CERTIFIED", ""),
}
"""Those of the default suite."""
REFUSED = {
    "librdkafka": {"_AUTHENTICATION"},
    "kafka-python": {"SaslAuthenticationFailedError"},
    "aiokafka": {"SaslAuthenticationFailed"},
    "Java": {"SaslAuthenticationException"},
}
"""What each client calls a login that has failed."""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("client", "listener", "mechanism"),
    [
        pytest.param(
            client, *way, marks=[] if (client, *way) in QUICK else pytest.mark.slow, id="-".join((client, *way))
        )
        for client in CLIENTS
        for way in WAYS
    ],
)
def test_a_client_logs_in_and_is_told_if_it_may_not(place: Broker, client: str, listener: str, mechanism: str) -> None:
    check(place, client, Login(listener, mechanism), CLIENTS[client])


@pytest.mark.slow
@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_javas_client_does_too(place: Broker, java: JavaProgram, listener: str, mechanism: str) -> None:
    def by(place: Broker, login: Login, topic: str) -> str:
        return by_java(place, login, topic, java)

    check(place, "Java", Login(listener, mechanism), by)


def check(place: Broker, client: str, login: Login, by: Client) -> None:
    topic = f"{client}-{login.listener}-{login.mechanism}"
    create_topic(place.side.ports[PLAIN], topic)
    assert by(place, login, topic) == f"by {client}"
    refusal = by(place, login._replace(right=False), topic)
    if (client, login.mechanism) == ("aiokafka", "OAUTHBEARER"):
        assert "closed" in refusal, "it does not look at the answer, and goes on"
    elif login.mechanism:
        assert refusal in REFUSED[client]
    else:
        assert refusal != f"by {client}"


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_javas_client_logs_in_with_a_delegation_token(place: Broker, java: JavaProgram, mechanism: str) -> None:
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.truststore.location": str(place.tls / "ca.pem"),
    }
    port = place.side.ports["SECURE"]
    connection = await open_connection("localhost", port, dial=SecureDialer(client_security(settings)))
    made = await connection.request(ApiKey.CREATE_DELEGATION_TOKEN, CreateDelegationTokenRequest(max_lifetime_ms=-1))
    await connection.close()
    assert made.error_code == 0
    secret = base64.b64encode(made.hmac).decode()
    login = Login("SECURE", mechanism, user=made.token_id, password=secret, by_token=True)
    topic = f"token-{mechanism}"
    create_topic(place.side.ports[PLAIN], topic)
    assert by_java(place, login, topic, java) == "by Java"
    assert by_java(place, login._replace(right=False), topic, java) == "SaslAuthenticationException"
    others = {name: client(place, login, topic) for name, client in CLIENTS.items() if name != "aiokafka"}
    assert others == {"librdkafka": "_AUTHENTICATION", "kafka-python": "SaslAuthenticationFailedError"}, "they cannot"
