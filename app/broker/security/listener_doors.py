"""The authentication of a broker's listeners, made of their settings before anything is started.

Tests: ``tests/broker/test_token_keys.py``.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from app.client.connection import Dialer, dial_tcp
from app.client.security import ClientSecurity, NoWay, SecureDialer
from app.configs import BrokerConfig
from app.configs.listeners import (
    BETWEEN_BROKERS,
    ClientAuth,
    ListenerConfig,
    SecurityProtocol,
    overridden,
    own_of,
)
from app.core.addresses import Networks
from app.core.errors import ConfigError, clause
from app.core.log_events import Event
from app.handlers.policy.callers import ANONYMOUS
from app.handlers.serving.doors import ListenerAuthentication
from app.machine.certificates import Certificates, TlsSettings, tls_settings
from app.metadata.image.image import ClusterImage
from app.security.authorizer import split_super_users
from app.security.jaas import parse_jaas
from app.security.names import PrincipalRules
from app.security.sasl import LoggedIn, Mechanism, PlainServer
from app.security.scram import (
    NO_IMITATIONS,
    NONCE_BYTES,
    SECRET_BYTES,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    TokenCredential,
)

if TYPE_CHECKING:
    from app.broker.security.token_keys import TokenKeys
    from app.core.faults import Faults
    from app.core.metrics import Labels, Registry
    from app.core.seams import BlockingPool
    from app.security.delegation import TokenSecrets

LOOK_S: Final = 5.0
"""How often files of certificates and keys are looked at."""
_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


class Doors:
    """The authentication of all listeners that are not plain. Belongs to one loop."""

    def __init__(
        self,
        config: BrokerConfig,
        image: Callable[[], ClusterImage],
        now_ms: Callable[[], int] = lambda: 0,
        token_secrets: TokenSecrets | None = None,
    ) -> None:
        """``image`` has the users of SCRAM and the delegation tokens, whose secrets ``token_secrets`` derives. ``now_ms``:
        wall-clock time, for tokens.

        Raises: ConfigError. Nothing has been started then.
        """
        self._image = image
        self._now_ms = now_ms
        self._token_secrets = token_secrets
        self._keys: list[TokenKeys] = []
        self._proxies = Networks(config.firn_trusted_proxies)
        self._asked: Mapping[str, str] = config.security
        """Settings of listeners as they are to be."""
        self._changed = asyncio.Event()
        self._start_secret = secrets.token_bytes(SECRET_BYTES)
        """The secret for salts while the cluster has no user, and so no secret of its own."""
        self.by_listener: Mapping[str, ListenerAuthentication] = {
            one.name: self._door(one) for one in config.served if one.protocol is not SecurityProtocol.PLAINTEXT
        }

        self.brokers = brokers_of(config)
        """The principals of brokers, as far as this broker knows them."""
        between = self.by_listener.get(config.inter_broker_listener)
        if between is not None and between.certificates is not None and not config.served[0].protocol.sasl:
            own = between.principal_of(between.certificates.own)
            if own not in (None, ANONYMOUS):
                self.brokers |= {own}

    @classmethod
    def check(cls, config: BrokerConfig) -> None:
        """Raises: ConfigError if the doors of these settings cannot be made."""
        cls(config, ClusterImage)

    def register(self, registry: Registry) -> None:
        if any(door.certificates is not None for door in self.by_listener.values()):
            registry.gauge(
                "firn_certificate_expiry_timestamp_seconds",
                "When a listener's certificate ends, in Unix time",
                self._ends,
            )

    def _ends(self) -> Iterator[tuple[Labels, float]]:
        for name, door in self.by_listener.items():
            ends_s = None if door.certificates is None else door.certificates.expires_s
            if ends_s is not None:
                yield (("listener", name),), ends_s

    def follow(self, security: Mapping[str, str]) -> None:
        """Set the settings of listeners. New connections soon use the changed ones."""
        if security != self._asked:
            self._asked = security
            self._changed.set()

    def _door(self, listener: ListenerConfig) -> ListenerAuthentication:
        certificates = rules = None
        if listener.protocol.tls:
            certificates, rules = _tls_of(listener)
        makers = {one: self._maker(listener, one) for one in listener.mechanisms}
        return ListenerAuthentication(
            listener,
            certificates=certificates,
            rules=rules,
            new_mechanism=(lambda name: makers[name]()) if makers else None,
            proxies=self._proxies,
        )

    def _maker(self, listener: ListenerConfig, mechanism: str) -> Callable[[], Mechanism]:
        if mechanism == "PLAIN":
            plain = PlainServer({name: text.encode() for name, text in users_of(listener).items()})
            return lambda: plain
        if mechanism == "OAUTHBEARER":
            return self._tokens(listener)
        scram = ScramMechanism.of(mechanism)

        def find(user: str) -> ScramCredential | None:
            return self._image().scram_users.get(user, {}).get(scram)

        def find_token(token_id: str) -> TokenCredential | None:
            if self._token_secrets is None:
                return None
            token = self._image().tokens.get(token_id)
            return self._token_secrets.credential(token_id, token, scram, self._now_ms())

        return lambda: ScramServer(
            scram,
            find,
            nonce=b64encode(secrets.token_bytes(NONCE_BYTES)).decode(),
            secret=self._image().scram_secret or self._start_secret,
            shapes=self._image().imitated_shapes.get(scram, NO_IMITATIONS),
            tokens=find_token,
            token_secret=self._token_secrets.salt_secret if self._token_secrets is not None else b"",
        )

    def _tokens(self, listener: ListenerConfig) -> Callable[[], Mechanism]:
        from app.broker.security.token_keys import TokenKeys, token_rules
        from app.security.tokens import TokenServer, UnknownKey, user_of

        keys = TokenKeys(listener, tls_of(listener).trust)
        self._keys.append(keys)
        rules = token_rules(listener)

        def verify(token: str) -> LoggedIn:
            try:
                return user_of(token, keys.found, rules, self._now_ms())
            except UnknownKey:
                keys.wanted.set()
                raise

        return lambda: TokenServer(verify)

    async def run(self, pool: BlockingPool, faults: Faults, log_line: Callable[[str], None]) -> None:
        """Look for changed files until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for keys in self._keys:
                tasks.create_task(keys.run(pool, faults))
            tasks.create_task(self._watch(pool, faults, log_line))

    async def _watch(self, pool: BlockingPool, faults: Faults, log_line: Callable[[str], None]) -> None:
        watched = [door for door in self.by_listener.values() if door.certificates is not None]
        if not watched:
            return
        first = {door.config.name: door.config for door in watched}
        used = {door.config.name: first[door.config.name].settings for door in watched}
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            self._changed.clear()
            for door in watched:
                name = door.config.name
                wanted = {**first[name].settings, **own_of(name, self._asked)}
                if wanted != used[name] and await reconfigure(door, first[name], self._asked, pool, faults, log_line):
                    used[name] = wanted
                assert door.certificates is not None
                await look(door, door.certificates, pool, faults, log_line)


def _tls_of(listener: ListenerConfig) -> tuple[Certificates, PrincipalRules]:
    """Reads files. Raises: ConfigError."""
    certificates = Certificates(tls_of(listener), server=True)
    try:
        return certificates, PrincipalRules(listener.text("ssl.principal.mapping.rules", "DEFAULT"))
    except ValueError as error:
        raise ConfigError(f"ssl.principal.mapping.rules of listener {listener.name}: {clause(error)}.") from None


async def reconfigure(
    door: ListenerAuthentication,
    first: ListenerConfig,
    given: Mapping[str, str],
    pool: BlockingPool,
    faults: Faults,
    log_line: Callable[[str], None],
) -> bool:
    """Use other settings for the new connections of one door. ``first``: those that the broker was started with.

    Returns: False if they cannot be used, or not yet, for want of a file; the old ones stay.
    """
    name = f"listener {first.name}"
    try:
        changed = overridden(first, given)
        certificates, rules = await pool.run(lambda: _tls_of(changed))
    except (ConfigError, ValueError) as error:
        why = str(error).rstrip(".")
        faults.met(
            "using the settings of",
            name,
            f"{name} goes on with its old TLS settings: {why}. Correct this with kafka-configs",
            lasting=True,
        )
        return False
    door.certificates, door.rules = certificates, rules
    faults.over("using the settings of", name)
    log_line(
        Event.CERTIFICATE_RELOADED.line(
            f"{name} has other TLS settings: new connections use them, open ones keep the old settings", listener=name
        )
    )
    return True


async def look(
    door: ListenerAuthentication,
    certificates: Certificates,
    pool: BlockingPool,
    faults: Faults,
    log_line: Callable[[str], None],
) -> None:
    """Read the files of one door again if they have changed."""
    name = f"listener {door.config.name}"
    try:
        if await pool.run(certificates.look):
            log_line(
                Event.CERTIFICATE_RELOADED.line(
                    f"{name} has read its certificates again: new connections use them, open ones keep the old certificates",
                    listener=name,
                )
            )
    except ConfigError as error:
        faults.met(
            "reading the certificates of",
            name,
            f"{name} goes on with its old certificates: {error} Replace the file by a good one: it is read within {LOOK_S:g} s",
            lasting=True,
        )
    else:
        faults.over("reading the certificates of", name)


def inter_broker_dial(config: BrokerConfig) -> Dialer:
    """How this broker reaches others: by the certificate of the listener between brokers, or by SCRAM. Never by PLAIN: with it, a
    forged address in the object store would receive the password.

    Where the settings give no way, every connection fails with the reason: a broker that is alone needs none.
    """
    listener = config.served[0]
    protocol = listener.protocol
    if protocol is SecurityProtocol.PLAINTEXT:
        return dial_tcp
    tls = None
    if protocol.tls:
        if listener.text("ssl.endpoint.identification.algorithm", "https").lower() != "https":
            return NoWay("between brokers ssl.endpoint.identification.algorithm must be https")
        tls = tls_of(listener)
        if tls.trust is None:
            return NoWay(
                f"listener {listener.name} between brokers needs ssl.truststore.location, to know the other brokers by"
            )
    mechanism, options = "", {}
    if protocol.sasl:
        mechanism = listener.mechanism_between
        if mechanism not in BETWEEN_BROKERS:
            return NoWay(
                f"sasl.mechanism.inter.broker.protocol={mechanism}: brokers log in to each other by SCRAM only"
            )
        try:
            options = dict(parse_jaas(listener.jaas(mechanism)).options)
        except ValueError as error:
            return NoWay(f"the broker has no user of its own: {mechanism.lower()}.sasl.jaas.config: {error}")
        if not options.get("username") or not options.get("password"):
            return NoWay(f"the broker has no user of its own: name it in {mechanism.lower()}.sasl.jaas.config")
    return SecureDialer(
        ClientSecurity(
            protocol=protocol,
            mechanism=mechanism,
            user=options.get("username", ""),
            password=options.get("password", ""),
            tls=tls,
        )
    )


def brokers_of(config: BrokerConfig) -> frozenset[str]:
    """The principals of brokers, as far as one broker's settings name them: superusers, and the user of its logins to others."""
    named = split_super_users(config.super_users)
    listener = config.served[0]
    if not listener.protocol.sasl:
        return named
    try:
        user = parse_jaas(listener.jaas(listener.mechanism_between)).options.get("username")
    except ValueError:
        return named  # it cannot log in, and says so when it tries
    return named | {f"User:{user}"} if user else named


def users_of(listener: ListenerConfig) -> Mapping[str, str]:
    """The users of PLAIN. Raises: ConfigError."""
    try:
        users = parse_jaas(listener.jaas("PLAIN")).users
    except ValueError as error:
        raise ConfigError(f"sasl.jaas.config of listener {listener.name} cannot be read: {clause(error)}.") from None
    if not users:
        raise ConfigError(
            f'sasl.jaas.config of listener {listener.name} names no user of PLAIN; each is an option user_NAME="PASSWORD".'
        )
    empty = [name for name, password in users.items() if not password]
    if empty:
        raise ConfigError(f"sasl.jaas.config of listener {listener.name}: the user {empty[0]} has no password.")
    return users


def tls_of(listener: ListenerConfig) -> TlsSettings:
    """The TLS of a listener."""
    return tls_settings(listener.settings, client_auth=_MODES[listener.client_auth])
