"""Listeners: where a broker accepts connections, and how a client must authenticate before its first request is served.

Pure. Texts of settings come in, ``ListenerConfig`` comes out. Names of settings, defaults and checks are Kafka's. A listener's own
setting (``listener.name.<name in lower case>.ssl.client.auth``) replaces the broker's (``ssl.client.auth``).

Tests: ``tests/cli/test_security_settings.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

LISTENER_PREFIX: Final = "listener.name."
WILDCARDS: Final = ("0.0.0.0", "::")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""SASL mechanisms that are served."""
BETWEEN_BROKERS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
"""Mechanisms that brokers use to each other. PLAIN and OAUTHBEARER would send a secret to any address that is written in the
bucket."""
OAUTH_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
"""The class that Kafka must be given to check signed tokens. Firn always checks them."""


STORE_TYPES: Final = ("PEM", "PKCS12")
"""The values that ``ssl.keystore.type`` and ``ssl.truststore.type`` may have."""


def unreadable_store(store: str, kind: str, location: str) -> str:
    """Why a store of another type cannot be used, and the command that converts it."""
    from app.machine.pkcs12 import conversion

    return (
        f"ssl.{store}.type={kind} cannot be read; convert the file with `{conversion(location or 'FILE')}` and write "
        f"ssl.{store}.type=PKCS12; for a PEM file write ssl.{store}.type=PEM"
    )


class SecurityProtocol(StrEnum):
    """Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def tls(self) -> bool:
        """Whether bytes are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        """Whether clients log in."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class ClientAuth(StrEnum):
    """Whether a client must show a certificate (``ssl.client.auth``)."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """One listener."""

    name: str
    """In capitals, as Kafka has it."""
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    host: str = "127.0.0.1"
    port: int = 9092
    """0 lets the system choose."""
    advertised_host: str = ""
    """Where clients connect; empty means ``host``."""
    advertised_port: int = 0
    """0 means the port that is listened on."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of security that were given for it, by their names without a prefix. They hold secrets."""
    own: frozenset[str] = frozenset()
    """Those of ``settings`` that were given for this listener alone."""

    def text(self, name: str, default: str = "") -> str:
        """The text of a setting."""
        return self.settings.get(name, default).strip()

    def words(self, name: str, default: str = "") -> tuple[str, ...]:
        """The entries of a list."""
        return tuple(word.strip() for word in self.text(name, default).split(",") if word.strip())

    def number(self, name: str, default: int) -> int:
        """A number; its text was checked when it was given."""
        text = self.text(name)
        return int(text) if text else default

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """SASL mechanisms that clients may use."""
        return self.words("sasl.enabled.mechanisms", "GSSAPI") if self.protocol.sasl else ()

    @property
    def mechanism_between(self) -> str:
        """The SASL mechanism by which this broker logs in to others, if this is the listener between brokers."""
        return self.text("sasl.mechanism.inter.broker.protocol", "SCRAM-SHA-512").upper()

    @property
    def client_auth(self) -> ClientAuth:
        """As KIP-684 has it: with SASL, only a setting of this listener alone asks for certificates."""
        if self.protocol is SecurityProtocol.SASL_SSL and "ssl.client.auth" not in self.own:
            return ClientAuth.NONE
        return ClientAuth(self.text("ssl.client.auth", "none").lower())

    def jaas(self, mechanism: str) -> str:
        """The text that has the users of a mechanism."""
        return self.text(f"{mechanism.lower()}.sasl.jaas.config") or self.text("sasl.jaas.config")

    def reauthenticate_ms(self, mechanism: str) -> int:
        """Time after which a client has to log in again; 0 for never."""
        own = self.text(f"{mechanism.lower()}.connections.max.reauth.ms")
        return int(own) if own else self.number("connections.max.reauth.ms", 0)


LIMITS_OF_LISTENERS: Final = frozenset({"max.connections", "max.connection.creation.rate"})
"""Of the broker's settings of that name each is another one: a listener is held to both."""
CHANGED_WHILE_RUNNING: Final = frozenset(
    {
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "firn.ssl.crl.location",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.cipher.suites",
        "ssl.principal.mapping.rules",
    }
)
"""Settings that may be altered for one listener of a running broker. They hold for new connections."""
_OF_LISTENERS: Final = re.compile(r"(ssl\.|sasl\.|firn\.ssl\.|firn\.sasl\.|connections\.max\.reauth\.ms)")
_PER_MECHANISM: Final = re.compile(
    r"(plain|scram-sha-256|scram-sha-512|oauthbearer)\.(sasl\.jaas\.config|sasl\.server\.callback\.handler\.class|"
    r"connections\.max\.reauth\.ms)"
)


def split_prefixed(name: str) -> tuple[str, str] | None:
    """Listener, in capitals, and setting of ``listener.name.<listener>.<setting>``; None for another name, or no such setting."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
    if not listener or not (
        _OF_LISTENERS.match(setting) or _PER_MECHANISM.fullmatch(setting) or setting in LIMITS_OF_LISTENERS
    ):
        return None
    return listener.upper(), setting


def with_settings(listeners: Sequence[ListenerConfig], given: Mapping[str, str]) -> tuple[ListenerConfig, ...]:
    """The listeners, each with those of the ``given`` settings that apply to it.

    Raises: ValueError, a sentence with the fault and its mend.
    """
    own: dict[str, dict[str, str]] = {}
    general: dict[str, str] = {}
    for name, text in given.items():
        parts = split_prefixed(name)
        if parts is None:
            general[name] = text
        else:
            own.setdefault(parts[0], {})[parts[1]] = text
    made = []
    for listener in listeners:
        mine = own.get(listener.name, {})
        made.append(
            ListenerConfig(
                name=listener.name,
                protocol=listener.protocol,
                host=listener.host,
                port=listener.port,
                advertised_host=listener.advertised_host,
                advertised_port=listener.advertised_port,
                settings={**general, **mine},
                own=frozenset(mine),
            )
        )
        check(made[-1])
    return tuple(made)


def own_of(name: str, given: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of one listener alone (``listener.name.<name>.…``), by their names without that prefix."""
    split = ((split_prefixed(full), text) for full, text in given.items())
    return {parts[1]: text for parts, text in split if parts is not None and parts[0] == name}


def overridden(listener: ListenerConfig, given: Mapping[str, str]) -> ListenerConfig:
    """The listener with those of the ``given`` settings that are for it alone (``listener.name.<name>.…``).

    Raises: ValueError, if they do not fit the others.
    """
    mine = own_of(listener.name, given)
    made = replace(listener, settings={**listener.settings, **mine}, own=listener.own | mine.keys())
    check(made)
    return made


def check(listener: ListenerConfig) -> None:
    """Raises: ValueError, if a listener's settings do not fit each other. Files are not looked at."""
    name = listener.name
    if listener.protocol.sasl:
        if not listener.mechanisms:
            raise ValueError(f"listener {name} has no mechanism; write sasl.enabled.mechanisms=SCRAM-SHA-512")
        for mechanism in listener.mechanisms:
            if mechanism not in MECHANISMS:
                raise ValueError(
                    f"listener {name} cannot serve {mechanism}; write sasl.enabled.mechanisms with some of {', '.join(MECHANISMS)}"
                )
        handler = listener.text("oauthbearer.sasl.server.callback.handler.class") or listener.text(
            "sasl.server.callback.handler.class"
        )
        if handler not in ("", OAUTH_HANDLER):
            raise ValueError(f"listener {name}: {handler} is Java and cannot run here; take the line out")
        if "PLAIN" in listener.mechanisms and not listener.jaas("PLAIN"):
            raise ValueError(
                f"listener {name} has no users for PLAIN; write them into listener.name.{name.lower()}.plain.sasl.jaas.config"
            )
        if "OAUTHBEARER" in listener.mechanisms:
            if not listener.text("sasl.oauthbearer.jwks.endpoint.url"):
                raise ValueError(
                    f"listener {name} has no keys for OAUTHBEARER; name them with sasl.oauthbearer.jwks.endpoint.url"
                )
            if not listener.words("sasl.oauthbearer.expected.audience") and not listener.text(
                "sasl.oauthbearer.expected.issuer"
            ):
                raise ValueError(
                    f"listener {name} would take tokens that were made for anybody; write sasl.oauthbearer.expected.audience, "
                    "sasl.oauthbearer.expected.issuer, or both"
                )
    if listener.protocol.tls:
        for store in ("keystore", "truststore"):
            kind = listener.text(f"ssl.{store}.type", "PEM" if store == "truststore" else "JKS").upper()
            used = store == "keystore" or listener.text("ssl.truststore.location")
            if used and kind not in STORE_TYPES:
                raise ValueError(
                    f"listener {name}: {unreadable_store(store, kind, listener.text(f'ssl.{store}.location'))}"
                )
        if not listener.text("ssl.keystore.location") and not (
            listener.text("ssl.keystore.key") and listener.text("ssl.keystore.certificate.chain")
        ):
            raise ValueError(
                f"listener {name} has no certificate; write ssl.keystore.location (a PEM file with key and certificates), or "
                "ssl.keystore.key and ssl.keystore.certificate.chain; `firn tls init` makes both for a trial"
            )
        if listener.client_auth is not ClientAuth.NONE and not (
            listener.text("ssl.truststore.location") or listener.text("ssl.truststore.certificates")
        ):
            raise ValueError(
                f"listener {name} asks for certificates of clients and trusts nobody's; write ssl.truststore.location or "
                "ssl.truststore.certificates"
            )


def protocols_by_name(text: str) -> Mapping[str, SecurityProtocol]:
    """``listener.security.protocol.map``. Raises: ValueError."""
    protocols: dict[str, SecurityProtocol] = {}
    for part in text.split(","):
        name, colon, protocol = part.strip().partition(":")
        if not part.strip():
            continue
        if not colon or protocol.strip().upper() not in SecurityProtocol.__members__:
            raise ValueError("it must be of the form NAME:PROTOCOL,…, for example PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL")
        protocols[name.strip().upper()] = SecurityProtocol(protocol.strip().upper())
    return protocols


def protocol_of(name: str, protocols: Mapping[str, SecurityProtocol]) -> SecurityProtocol:
    """The protocol of a listener. Raises: ValueError if nothing says which."""
    found = protocols.get(name)
    if found is None and name in SecurityProtocol.__members__:
        found = SecurityProtocol(name)
    if found is None:
        raise ValueError(
            f"nothing says what {name}:// is; write listener.security.protocol.map={name}:PLAINTEXT, or another protocol"
        )
    return found
