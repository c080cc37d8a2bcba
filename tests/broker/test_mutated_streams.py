"""Mutated byte streams into connections of every kind of listener, before a login and after it, through the core and over sockets.

Whatever comes: it is answered as its schema says, or its connection ends with a reason that is counted. Nobody is served who is
not known, nothing changes that its sender may not change, nothing is kept, and an honest client is served afterwards.

A stream is made of the seed, the kind and its number alone. What fails says which one it was.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import random
import socket
import ssl
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jwt
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import app.broker.composing.serving_parts
import app.broker.security.listener_doors
import app.handlers.serving.session
import app.security.scram
from app.client.connection import open_connection
from app.client.security import SecureDialer, client_security
from app.configs.broker import STANDARD_AUTHORIZER
from app.core.limits import KIB, MIB
from app.handlers.policy.callers import Caller, OpenDoor
from app.handlers.serving.session import Session
from app.metadata.image.records import SECURITY_LEVEL
from app.security.acls import CLUSTER_NAME, WILDCARD, Operation, PatternType, Permission, ResourceType
from app.security.login import State
from app.security.scram import ScramMechanism, salted_password
from app.transport.core import OUT_BYTES_MAX, OWN_FRAME_BYTES_MIN
from app.transport.server import SCRATCH_BYTES
from app.transport.tls import TlsLink
from app.wire.apikeys import ApiKey
from app.wire.apis import APIS
from app.wire.apis.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from app.wire.apis.create_delegation_token import CreateDelegationTokenRequest
from app.wire.apis.metadata import MetadataRequest
from app.wire.versions import OPAQUE
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.rights import GONE, OTHER, SEEN
from tests.support.secured import certificates, listener
from tests.support.several import unfenced
from tests.support.streams import Answers, Broken, Credential, End, Frame, Stream, after, before, corpus, login, spoiled
from tests.support.waiting import until
from tests.support.wires import Wire

KINDS: Final = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
IN: Final = "IN"
"""The listener of brokers and of the test itself."""
POOR, OWNER, ADMIN = "poor", "owner", "admin"
"""Users: without any right, with rights to records and groups, and with all rights."""
KNOWN_HOST, STRANGE_HOST = "127.0.0.2", "127.0.0.1"
"""On PLAINTEXT the one has the owner's rights, the other none."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
OF_LOGINS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE})
LINGERING: Final = 48
"""Connections whose clients stay for a while after the end of their streams."""
GROWTH_BYTES_MAX: Final = 40 * MIB
"""Of the process while one broker takes its streams: fragments, pooled buffers, groups and transactions that were asked for."""
RESIDENT_BYTES_MAX: Final = 120 * MIB
"""What is left of ten brokers, one after the other, in their process."""
ALLOWED_LINES: Final = (
    "closing the connection of ",
    "the TLS handshake of ",
    "serves Kafka on",
    "over after ",
    "closing a connection of ",
)


class Keeper(OpenDoor):
    """Clients of the listener between brokers are a broker."""

    def admit(self, listener: str, host: str, port: int) -> Caller:
        if listener == IN:
            return Caller(self._known.of("User:broker", host), listener, host, port)
        return super().admit(listener, host, port)


@dataclass
class World:
    """A broker with all kinds of listeners, and what clients may know."""

    broker: RunningBroker
    folder: Path
    frames: list[Frame] = field(default_factory=list)
    logins: list[Frame] = field(default_factory=list)
    """Of people who are not let in."""
    right: list[Credential] = field(default_factory=list)
    wrong: list[Credential] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    """What the loop's exception handler was told."""
    served: list[tuple[str, int, bool]] = field(default_factory=list)
    """(listener, API key, whether the client had logged in) of each request that was served since the list was cleared."""
    shown: dict[str | None, bytes] = field(default_factory=dict)
    """Certificates of clients by name, as a broker sees them."""
    dialers: dict[str, SecureDialer] = field(default_factory=dict)
    """The ways of the honest client, by kind."""
    lines_before: int = 0
    """How many lines the broker had written before the streams."""
    contexts: dict[tuple[str, bool], ssl.SSLContext] = field(default_factory=dict)
    """Of clients with a certificate of this name, or none under the empty name, and whether they speak TLS 1.2."""

    def credential(self, user: str, mechanism: str) -> Credential:
        return next(one for one in self.right if one.principal == f"User:{user}" and one.mechanism == mechanism)

    @property
    def server(self) -> Any:
        return self.broker.node.server

    def state(self, ends: bool) -> Any:
        """What nobody may change here."""
        image = self.broker.node.cluster.image
        logs = {
            (name, index): log.log_end_offset
            for name, topic in image.topics_by_name.items()
            for index in range(len(topic.partitions))
            if ends and (log := self.broker.node.logs.get(name, index)) is not None
        }
        return (
            image.topics_by_id, image.broker_configs, image.group_configs, image.acls, image.features, image.scram_users,
            image.quotas, {name: one for name, one in image.tokens.items() if one.owner == f"User:{ADMIN}"}, logs,
        )  # fmt: skip

    def reasons(self) -> float:
        """Connections that were closed for a reason that is counted."""
        counted = self.server.connection_metrics
        return counted.broken.value + counted.idle.value + self.server._handshake_failures.value


def users() -> str:
    named = " ".join(f'user_{name}="{name}-secret"' for name in (POOR, OWNER, ADMIN))
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {named};"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "c", POOR, OWNER, ADMIN)


@pytest.fixture(autouse=True)
def _same_work_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients hash each password once, brokers draw the same nonces in every run."""
    monkeypatch.setattr(app.security.scram, "salted_password", functools.cache(salted_password))
    monkeypatch.setattr(
        app.broker.security.listener_doors, "secrets", SimpleNamespace(token_bytes=random.Random(1).randbytes)
    )
    monkeypatch.setattr(app.broker.composing.serving_parts, "OpenDoor", Keeper)


@asynccontextmanager
async def world_of(path: Path, folder: Path) -> AsyncIterator[World]:
    key = ec.generate_private_key(ec.SECP256R1())
    jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    path.mkdir(parents=True, exist_ok=True)
    (path / "keys.json").write_text(json.dumps({"keys": [{**jwk, "kid": "one"}]}))
    sasl = {
        "mechanisms": ",".join(MECHANISMS),
        "plain_sasl_jaas_config": users(),
        "sasl_oauthbearer_jwks_endpoint_url": (path / "keys.json").as_uri(),
        "sasl_oauthbearer_expected_audience": "firn",
    }
    names = {"ssl_client_auth": "requested", "ssl_principal_mapping_rules": "RULE:^CN=([^,]+).*$/$1/"}
    listeners = (
        listener("PLAINTEXT", name=IN),
        listener("PLAINTEXT"),
        listener("SASL_PLAINTEXT", **sasl),
        listener("SSL", folder, **names),
        listener("SASL_SSL", folder, **sasl),
    )
    async with running_broker(
        path,
        new_level=SECURITY_LEVEL,
        listeners=listeners,
        inter_broker_listener=IN,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users=f"User:broker;User:{ADMIN}",
        auto_create_topics_enable=False,
        group_initial_rebalance_delay_ms=0,
        group_max_size=20,
        delegation_token_secret_key="a secret of brokers",
        descriptors_max=20_000,
        security={
            "firn.authentication.timeout.ms": "600000",
            "connection.failed.authentication.delay.ms": "0",
        },
    ) as broker:
        await until(lambda: unfenced(broker))
        world = World(broker, folder)
        for name in (SEEN, OTHER, GONE):
            await broker.create_topic(name)
        for name in ("__consumer_offsets", "__transaction_state", "__share_group_state"):
            await broker.node.membership.controller.create_topic(name, 1)
        await introduce(world, key)
        for name, old in itertools.product(("", POOR, OWNER, ADMIN), (False, True)):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if name:
                context.load_cert_chain(folder / f"{name}.pem")
                world.shown[name] = der_of(folder / f"{name}.pem")
            if old:
                context.maximum_version = ssl.TLSVersion.TLSv1_2
            world.contexts[name, old] = context
        asyncio.get_running_loop().set_exception_handler(lambda _, what: world.told.append(what))
        with noting(world):
            yield world


def der_of(path: Path) -> bytes:
    """The first certificate of a PEM file."""
    start, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = path.read_text()
    return ssl.PEM_cert_to_DER_cert(start + text.partition(start)[2].partition(end)[0] + end + "\n")


async def introduce(world: World, key: Any) -> None:
    """Users, rules and credentials, those that count and those that do not."""
    broker = world.broker
    rights = [
        *(
            (operation, ResourceType.TOPIC, name)
            for name in (SEEN, OTHER)
            for operation in (Operation.READ, Operation.WRITE)
        ),
        *((operation, ResourceType.GROUP, WILDCARD) for operation in (Operation.READ, Operation.DELETE)),
        (Operation.ALL, ResourceType.TRANSACTIONAL_ID, WILDCARD),
        (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME),
    ]
    entries = [
        AclCreation(kind, name, PatternType.LITERAL, principal, host, operation, Permission.ALLOW)
        for operation, kind, name in rights
        for principal, host in ((f"User:{OWNER}", WILDCARD), ("User:ANONYMOUS", KNOWN_HOST))
    ]
    salt = b"s" * 24
    hashed = [
        ScramCredentialUpsertion(name, int(kind), 4096, salt, salted_password(kind, f"{name}-secret", salt, 4096))
        for name in (POOR, OWNER, ADMIN)
        for kind in ScramMechanism
    ]
    async with talk(broker.node.ports[IN]) as admin:
        answer = await admin.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest(entries))
        assert [one.error_code for one in answer.results] == [0] * len(entries)
        request = AlterUserScramCredentialsRequest(upsertions=hashed)
        answer = await admin.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
        assert {one.error_code for one in answer.results} == {0}
    tokens = {}
    for name in (POOR, OWNER, ADMIN):
        client = await open_connection(
            "127.0.0.1", broker.node.ports["SASL_PLAINTEXT"], dial=dialer(world, "SASL_PLAINTEXT", name)
        )
        tokens[name] = await client.request(
            ApiKey.CREATE_DELEGATION_TOKEN, CreateDelegationTokenRequest(max_lifetime_ms=-1)
        )
        assert tokens[name].error_code == 0
        await client.close()

    def signed(user: str, by: Any = key, **claims: Any) -> str:
        claims = {"sub": user, "aud": "firn", "exp": int(time.time()) + 10_000, **claims}
        return jwt.encode(claims, by, algorithm="ES256", headers={"kid": "one"})

    for user in (POOR, OWNER, ADMIN):
        principal = f"User:{user}"
        world.right.append(Credential("PLAIN", user, f"{user}-secret", principal=principal))
        world.right.append(Credential("OAUTHBEARER", secret=signed(user), principal=principal))
        secret = b64encode(tokens[user].hmac).decode()
        for mechanism in MECHANISMS[1:3]:
            world.right.append(Credential(mechanism, user, f"{user}-secret", principal=principal))
            world.right.append(Credential(mechanism, tokens[user].token_id, secret, by_token=True, principal=principal))
    stranger = ec.generate_private_key(ec.SECP256R1())
    unsigned = jwt.encode({"sub": ADMIN, "aud": "firn", "exp": int(time.time()) + 10_000}, None, algorithm="none")
    for token in (
        signed(ADMIN, stranger),
        signed(ADMIN, exp=1),
        signed(ADMIN, aud="another"),
        unsigned,
        "e30.e30.e30",
        "x",
    ):
        world.wrong.append(Credential("OAUTHBEARER", secret=token))
    for mechanism in MECHANISMS[:3]:
        for user, secret in ((ADMIN, "wrong"), ("nobody", "nobody-secret"), (ADMIN, POOR + "-secret")):
            world.wrong.append(Credential(mechanism, user, secret))
    for mechanism in MECHANISMS[1:3]:
        world.wrong.append(Credential(mechanism, tokens[ADMIN].token_id, "wrong", by_token=True))
        world.wrong.append(Credential(mechanism, "no-such-token", secret, by_token=True))
    world.frames = corpus({topic.name: topic.topic_id for topic in broker.node.cluster.image.topics_by_name.values()})
    world.logins = [Frame(frame) for one in world.wrong for frame in login(one, random.Random(5))]


def dialer(world: World, kind: str, user: str = "") -> SecureDialer:
    settings = {"security.protocol": kind}
    if kind.endswith("SSL"):
        settings["ssl.truststore.location"] = str(world.folder / "ca.pem")
    if kind == "SSL" and user:
        settings["ssl.keystore.location"] = str(world.folder / f"{user}.pem")
    if kind.startswith("SASL"):
        settings |= {
            "sasl.mechanism": "PLAIN",
            "sasl.username": user or OWNER,
            "sasl.password": f"{user or OWNER}-secret",
        }
    return SecureDialer(client_security(settings))


@contextmanager
def noting(world: World) -> Iterator[None]:
    """Note every request that is served, and for whom."""
    real_one, real_produce = Session._serve_one, app.handlers.serving.session.serve_produce

    def note(session: Any, key: int) -> None:
        chosen = getattr(session, "_login", None)
        world.served.append((session.listener, key, chosen is None or chosen.state is State.OPEN))

    def one(self: Any, key: int, *rest: Any) -> None:
        note(self, key)
        real_one(self, key, *rest)

    def produce(session: Any, *rest: Any) -> Any:
        note(session, ApiKey.PRODUCE)
        return real_produce(session, *rest)

    Session._serve_one = one  # type: ignore[method-assign]
    app.handlers.serving.session.serve_produce = produce
    try:
        yield
    finally:
        Session._serve_one = real_one  # type: ignore[method-assign]
        app.handlers.serving.session.serve_produce = real_produce


# --- streams ----------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """One stream, and who sends it."""

    name: str
    rng: random.Random
    kind: str
    host: str
    user: str
    """Who the client is, once it is known; empty for nobody."""
    certificate: str | None
    """Of TLS: its name, or empty for none. None: no TLS."""
    prelude: Credential | None
    """A login that goes well, before the stream begins."""
    stream: Stream
    spoils: str = ""
    """What of TLS is mutated: the handshake, or records after so many messages."""
    may_log_in: frozenset[str] = frozenset()
    bare: bool = False
    """Bytes are fed to the connection as if TLS had decrypted them."""

    def end(self, world: World) -> End:
        """The client's end of the connection."""
        if self.certificate is None or self.bare:
            return End()
        return End(world.contexts[self.certificate, self.rng.random() < 0.3])


def plan(world: World, kind: str, known: bool, users: tuple[str, ...], seed: int, number: int) -> Plan:
    name = f"{seed}/{kind}/{'after' if known else 'before'}/{number}"
    rng = random.Random(name)
    tls, sasl = kind.endswith("SSL"), kind.startswith("SASL")
    user = rng.choice(users) if known else ""
    if kind == "PLAINTEXT":
        user = OWNER if known else ""
    certificate = ("" if sasl else user) if tls else None
    spoils = ""
    prelude: Credential | None = None
    allowed: frozenset[str] = frozenset()
    if known:
        if sasl:
            prelude = rng.choice([one for one in world.right if one.principal == f"User:{user}"])
        stream = after(world.logins if sasl and rng.random() < 0.1 else world.frames, rng)
        if tls and rng.random() < 0.2:
            spoils = "records"
    else:
        credential = None
        if sasl:
            poor = [one for one in world.right if one.principal == f"User:{POOR}"]
            credential = rng.choice(poor) if rng.random() < 0.3 else rng.choice(world.wrong)
            if credential.principal:
                allowed = frozenset({credential.principal})
        stream = before(credential, world.frames, world.logins, rng)
        if tls and rng.random() < 0.5:
            spoils = "handshake"
            if not sasl and rng.random() < 0.5:
                certificate = POOR
    host = KNOWN_HOST if kind == "PLAINTEXT" and known else STRANGE_HOST
    bare = tls and not spoils and rng.random() < 0.75
    return Plan(name, rng, kind, host, user, certificate, prelude, stream, spoils, allowed, bare)


class Failed(AssertionError):
    """Names the stream."""


# --- through the core ---------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the streams."""

    streams: int = 0
    answers: int = 0
    closed: int = 0
    logged_in: int = 0
    served: Counter[int] = field(default_factory=Counter)
    """Requests by API key."""
    growth_bytes: int = 0


class Feeder:
    """Feeds streams to connections that have no sockets, one after the other; some of the clients stay for a while."""

    def __init__(self, world: World, tally: Tally) -> None:
        self._world = world
        self._tally = tally
        self._loop = asyncio.get_running_loop()
        self._make = {kind: world.server.maker(kind) for kind in KINDS}
        self._staying: deque[tuple[Plan, Wire, End, Answers]] = deque()
        self._reasons = world.reasons()
        """At first."""

    async def feed(self, one: Plan) -> None:
        """Raises: Failed."""
        try:
            await self._fed(one)
        except Exception as error:
            raise Failed(f"stream {one.name}: {error!r}") from error

    async def _fed(self, one: Plan) -> None:
        world, rng = self._world, one.rng
        protocol = self._make[one.kind]()
        core = protocol._inner.core if isinstance(protocol, TlsLink) else protocol.core  # type: ignore[attr-defined]
        wire = Wire(self._loop, one.host, 40_000 + self._tally.streams % 20_000, rng, slow=rng.random() < 0.1)
        end, answers = one.end(world), Answers()
        world.served.clear()
        if one.bare:
            # As the link does once its handshake is done.
            shown = SimpleNamespace(getpeercert=lambda binary_form: world.shown.get(one.certificate))
            protocol.known(shown, world.server.arrivals.begin(wire.abort))  # type: ignore[attr-defined]
            protocol = protocol._inner  # type: ignore[attr-defined]
        wire.connect(protocol)
        self._tally.streams += 1
        with suppress(Broken):
            await self._converse(one, wire, end, answers, core)
        self._check(one, core)
        if rng.random() < 0.5:
            self._staying.append((one, wire, end, answers))
            if len(self._staying) > LINGERING:
                self._let_go(*self._staying.popleft())
        else:
            self._let_go(one, wire, end, answers)
        closed = self._tally.closed + sum(wire.closed_by_broker for _, wire, _, _ in self._staying)
        counted = world.reasons() - self._reasons
        assert counted == closed, f"{closed} are closed, and {counted} were counted, up to this one"

    async def _converse(self, one: Plan, wire: Wire, end: End, answers: Answers, core: Any) -> None:
        rng = one.rng
        first = end.opening()
        if one.spoils == "handshake" and rng.random() < 0.7:
            first = spoiled(first, rng)
        wire.deliver(first)
        wire.drain()
        while wire.received:
            back = self._take(wire, end, answers)
            if one.spoils == "handshake" and back and rng.random() < 0.7:
                back = spoiled(back, rng)
            if not back:
                break
            wire.deliver(back)
            wire.drain()
        if not end.shaken:
            return
        if one.prelude is not None:
            await self._say(one, wire, end, answers, login(one.prelude, rng), "")
            assert core.caller.principal == f"User:{one.user}", "the login has to go well"
        await self._say(one, wire, end, answers, one.stream, one.spoils)

    async def _say(self, one: Plan, wire: Wire, end: End, answers: Answers, stream: Stream, spoils: str) -> None:
        answers.last = None
        rng = one.rng
        for turn in range(20):
            try:
                data = stream.send(answers.last if turn else None)
            except StopIteration:
                return
            answers.sent += data
            sealed = end.seal(data)
            if spoils == "records" and rng.random() < 0.6:
                sealed = spoiled(sealed, rng)
            wire.deliver(sealed)
            back = self._take(wire, end, answers)
            if rng.random() < 0.4 or (one.prelude is not None and stream is not one.stream):
                for _ in range(rng.randint(1, 4)):
                    await asyncio.sleep(0)
                wire.drain()
                back += self._take(wire, end, answers)
            if not wire.open:
                return
            if back:
                wire.deliver(back)
        raise AssertionError("a stream does not end")

    def _take(self, wire: Wire, end: End, answers: Answers) -> bytes:
        data = bytes(wire.received)
        wire.received.clear()
        back = end.take(data) if data else b""
        if end.plain:
            plain = bytes(end.plain)
            end.plain.clear()
            before = answers.count
            answers.take(plain)
            self._tally.answers += answers.count - before
        return back

    def _check(self, one: Plan, core: Any) -> None:
        """What holds of the broker's end at any time."""
        assert len(core._pending) <= OWN_FRAME_BYTES_MIN + 4
        assert core._held is None or len(core._held) <= SCRATCH_BYTES
        assert core._out_bytes <= OUT_BYTES_MAX + 2 * MIB
        listeners = {name for name, _, _ in self._world.served} - {IN}
        assert listeners <= {one.kind}, listeners
        principal = core.caller.principal if core.caller is not None else "User:ANONYMOUS"
        sasl = one.kind.startswith("SASL")
        for name, key, known in self._world.served:
            if name == IN:
                continue
            self._tally.served[key] += key in APIS or key in OPAQUE
            assert known or key in OF_LOGINS, f"API key {key} is served to nobody"
        if sasl and not one.user:
            assert principal in {"User:ANONYMOUS", *one.may_log_in}, principal
            opened = core._login.state is State.OPEN
            assert not opened or one.may_log_in
            self._tally.logged_in += opened
        elif one.user and one.kind != "PLAINTEXT":
            assert principal in ("User:ANONYMOUS", f"User:{one.user}")

    def _let_go(self, one: Plan, wire: Wire, end: End, answers: Answers) -> None:
        """Look at what came meanwhile, and leave."""
        try:
            wire.drain()
            with suppress(Broken):
                self._take(wire, end, answers)
        except Exception as error:
            raise Failed(f"stream {one.name}: {error!r}") from error
        wire.leave()
        self._tally.closed += wire.closed_by_broker

    def let_all_go(self) -> None:
        while self._staying:
            self._let_go(*self._staying.popleft())


async def settled(world: World, connections: int) -> None:
    """Wait until nothing is left of the streams."""
    server = world.server
    async with asyncio.timeout(60):
        while server._tasks or len(server._connections) > connections or len(server.arrivals):
            await asyncio.sleep(0.005)
    assert server.frames.bytes == 0
    assert server.preparations.claimed_bytes == 0


async def honest(world: World, kind: str, topics: frozenset[str] = frozenset({SEEN, OTHER})) -> None:
    """Somebody who does everything right is served by the same listener."""
    if kind not in world.dialers:
        world.dialers[kind] = dialer(world, kind, OWNER)
    client = await open_connection("localhost", world.broker.node.ports[kind], dial=world.dialers[kind])
    try:
        answer = await client.request(ApiKey.METADATA, MetadataRequest(topics=None))
        if kind != "PLAINTEXT":
            assert topics <= {topic.name for topic in answer.topics}
    finally:
        await client.close()


def check_lines(world: World) -> None:
    """The broker has told of nothing but of connections that it closed."""
    assert world.told == []
    lines = world.broker.lines[world.lines_before :]
    strange = [line for line in lines if not any(one in line for one in ALLOWED_LINES)]
    assert not strange, "\n".join(strange[:10])


async def feed(world: World, kind: str, known: bool, users: tuple[str, ...], seed: int, numbers: range) -> Tally:
    """Feed the streams of these numbers to one broker, and hold it to everything that is promised."""
    tally = Tally()
    server = world.server
    connections, reasons, state = len(server._connections), world.reasons(), world.state(ends=not known)
    world.lines_before = len(world.broker.lines)
    feeder = Feeder(world, tally)
    resident = psutil.Process().memory_info().rss
    for position, number in enumerate(numbers):
        await feeder.feed(plan(world, kind, known, users, seed, number))
        if position == len(numbers) // 5:
            resident = psutil.Process().memory_info().rss  # whatever code an API needs is loaded by now
    feeder.let_all_go()
    await settled(world, connections)
    tally.growth_bytes = psutil.Process().memory_info().rss - resident
    assert tally.growth_bytes < GROWTH_BYTES_MAX
    counted = world.reasons() - reasons
    assert counted == tally.closed, "each that is closed is counted with one reason"
    if ADMIN not in users:
        assert world.state(ends=not known) == state
    check_lines(world)
    if ADMIN in users:
        await honest(world, kind, frozenset())  # they may have been deleted, or the right to see them
    else:
        await honest(world, kind)
    return tally


FEW, MANY, OF_EACH_BROKER = 120, 125_000, 12_500


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
async def test_mutated_streams_change_nothing_keep_nothing_and_end_for_a_reason(
    tmp_path: Path, folder: Path, kind: str
) -> None:
    async with world_of(tmp_path, folder) as world:
        strange = await feed(world, kind, False, (), 1, range(FEW))
        known = await feed(world, kind, True, (POOR, OWNER, OWNER), 1, range(FEW))
    for tally in (strange, known):
        assert tally.answers > FEW / 10
        assert tally.closed > FEW / 10
    if kind.startswith("SASL"):
        assert strange.logged_in
    assert known.served.keys() - OF_LOGINS


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_million_mutated_streams(tmp_path: Path, folder: Path, kind: str, known: bool) -> None:
    """125,000 for each kind and time. One stream in ten of known users is an administrator's, on brokers of their own."""
    whole = Tally()
    started_s, resident = time.monotonic(), psutil.Process().memory_info().rss
    for first in range(0, MANY, OF_EACH_BROKER):
        users = (ADMIN,) if known and first == 0 and kind != "PLAINTEXT" else (POOR, OWNER, OWNER)
        async with world_of(tmp_path / str(first), folder) as world:
            tally = await feed(world, kind, known, users, 2, range(first, first + OF_EACH_BROKER))
        for name in ("streams", "answers", "closed", "logged_in", "served"):
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
        whole.growth_bytes = max(whole.growth_bytes, tally.growth_bytes)
        gc.collect()
    print(
        f"{kind} {'after' if known else 'before'}, seed 2: {whole.streams} streams in {time.monotonic() - started_s:.0f} s,"
        f" {whole.answers} answers, {whole.closed} closed by the broker, requests of {len(+whole.served)} APIs read,"
        f" {whole.served.total()} in all; resident {resident // MIB} MiB before and"
        f" {psutil.Process().memory_info().rss // MIB} MiB after, a broker grew by {whole.growth_bytes // KIB} KiB at most"
    )
    assert psutil.Process().memory_info().rss - resident < RESIDENT_BYTES_MAX


# --- over sockets -------------------------------------------------------------------------------------------------------

AT_ONCE: Final = 24
PATIENCE_S: Final = 0.01
"""How long a client waits for the answer to something that may be no whole request."""
ANSWER_S_MAX: Final = 60.0
FEW_OVER_SOCKETS, MANY_OVER_SOCKETS = 100, 12_500


class Socketed:
    """One stream over a socket."""

    def __init__(self, world: World, one: Plan, tally: Tally) -> None:
        one.bare = False
        self._world, self._one, self._tally = world, one, tally
        self._loop = asyncio.get_running_loop()
        self._end = one.end(world)
        self._answers = Answers()
        self._socket = socket.socket()
        self._over = False
        self._receiving: asyncio.Future[bytes] | None = None

    async def run(self) -> None:
        """Raises: Failed."""
        try:
            with self._socket:
                self._socket.setblocking(False)
                self._socket.bind((self._one.host, 0))
                async with asyncio.timeout(2 * ANSWER_S_MAX):
                    await self._loop.sock_connect(
                        self._socket, ("127.0.0.1", self._world.broker.node.ports[self._one.kind])
                    )
                    with suppress(ConnectionError, Broken):
                        await self._converse()
                    await self._stop_receiving()
        except Exception as error:
            raise Failed(f"stream {self._one.name}: {error!r}; {self._answers.history()}") from error
        self._tally.streams += 1
        self._tally.answers += self._answers.count
        self._tally.closed += self._over

    async def _converse(self) -> None:
        one, rng, end = self._one, self._one.rng, self._end
        spoils = one.spoils == "handshake"
        data = end.opening()
        while True:
            await self._send(spoiled(data, rng) if spoils and rng.random() < 0.7 else data)
            if end.shaken:
                break
            data = await self._take(PATIENCE_S if spoils else ANSWER_S_MAX)
            if self._over or (spoils and not data):
                return
        if one.prelude is not None:
            await self._say(login(one.prelude, rng), "", ANSWER_S_MAX)
        await self._say(one.stream, one.spoils, PATIENCE_S)
        if rng.random() < 0.5 and not self._over:
            with suppress(OSError):  # the broker has reset it
                self._socket.shutdown(socket.SHUT_WR)
            while not self._over:
                await self._take(ANSWER_S_MAX)

    async def _say(self, stream: Stream, spoils: str, patience_s: float) -> None:
        rng, answers = self._one.rng, self._answers
        answers.last = None
        data = next(stream, None)
        while data is not None and not self._over:
            answers.sent += data
            sealed = self._end.seal(data)
            await self._send(spoiled(sealed, rng) if spoils == "records" and rng.random() < 0.6 else sealed)
            count = answers.count
            while data and not self._over and answers.count == count:
                back = await self._take(patience_s)
                if patience_s == PATIENCE_S:
                    break
                await self._send(back)
            try:
                data = stream.send(answers.last)
            except StopIteration:
                return

    async def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])

    async def _send(self, data: bytes) -> None:
        if data:
            await self._loop.sock_sendall(self._socket, data)

    async def _take(self, patience_s: float) -> bytes:
        """Wait for bytes. Returns: what is to be sent at once."""
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(self._loop.sock_recv(self._socket, 65_536))
        # It goes on when the patience ends: what has come meanwhile would be lost.
        done, _ = await asyncio.wait([self._receiving], timeout=patience_s)
        if not done:
            assert patience_s < ANSWER_S_MAX, "neither answered nor closed"
            return b""
        data = self._receiving.result()
        self._receiving = None
        self._over = not data
        back = self._end.take(data) if data else b""
        self._answers.take(self._end.plain)
        self._end.plain.clear()
        return back


@asynccontextmanager
async def somebody_served(world: World, kind: str) -> AsyncIterator[None]:
    """An honest client that connects again and again all the while, and is served each time."""
    done, served = asyncio.Event(), 0

    async def go_on() -> None:
        nonlocal served
        while not done.is_set():
            async with asyncio.timeout(ANSWER_S_MAX):
                await honest(world, kind)
            served += 1
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        group.create_task(go_on())
        try:
            yield
            before = served
            async with asyncio.timeout(ANSWER_S_MAX):
                while served < before + 2:
                    await asyncio.sleep(0.005)
        finally:
            done.set()


async def throw(world: World, kind: str, known: bool, users: tuple[str, ...], seed: int, numbers: range) -> Tally:
    """Send the streams of these numbers over sockets, some at a time, and hold the broker to everything that is promised."""
    tally = Tally()
    connections, state = len(world.server._connections), world.state(ends=not known)
    world.lines_before = len(world.broker.lines)
    world.served.clear()
    todo = iter(numbers)
    resident = 0

    async def work() -> None:
        nonlocal resident
        for number in todo:
            await Socketed(world, plan(world, kind, known, users, seed, number), tally).run()
            if number - numbers.start == len(numbers) // 5:
                resident = psutil.Process().memory_info().rss
            if not known and kind.startswith("SASL"):
                bad = [one for one in world.served if one[0] == kind and not one[2] and one[1] not in OF_LOGINS]
                assert not bad, bad
            tally.served.update(key for name, key, _ in world.served if name == kind)
            world.served.clear()

    async with somebody_served(world, kind), asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    await settled(world, connections)
    tally.growth_bytes = psutil.Process().memory_info().rss - resident
    assert tally.growth_bytes < GROWTH_BYTES_MAX
    if ADMIN not in users:
        assert world.state(ends=not known) == state
    check_lines(world)
    await honest(world, kind)
    return tally


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
async def test_mutated_streams_over_sockets_disturb_nobody(tmp_path: Path, folder: Path, kind: str) -> None:
    async with world_of(tmp_path, folder) as world:
        for known in (False, True):
            tally = await throw(world, kind, known, (POOR, OWNER, OWNER), 3, range(FEW_OVER_SOCKETS))
            assert tally.answers > FEW_OVER_SOCKETS / 20
            assert tally.closed > FEW_OVER_SOCKETS / 10


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_hundred_thousand_mutated_streams_over_sockets(
    tmp_path: Path, folder: Path, kind: str, known: bool
) -> None:
    started_s, resident = time.monotonic(), psutil.Process().memory_info().rss
    async with world_of(tmp_path, folder) as world:
        tally = await throw(world, kind, known, (POOR, OWNER, OWNER), 4, range(MANY_OVER_SOCKETS))
    print(
        f"{kind} {'after' if known else 'before'}, seed 4: {tally.streams} streams over sockets in"
        f" {time.monotonic() - started_s:.0f} s, {tally.answers} answers, {tally.closed} closed by the broker;"
        f" resident {resident // MIB} MiB before and {psutil.Process().memory_info().rss // MIB} MiB after,"
        f" the broker grew by {tally.growth_bytes // KIB} KiB"
    )
