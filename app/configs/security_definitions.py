"""Settings of listeners: TLS and authentication. Each may also be given for one listener, as ``listener.name.<name>.<setting>``.

Tests: ``tests/cli/test_security_settings.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from app.configs.definition import Definition
from app.configs.kinds import ConfigType, Importance, Value
from app.configs.values import documented

_STRING, _INT, _LONG, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST
_PASSWORD, _CLASS = ConfigType.PASSWORD, ConfigType.CLASS


def _setting(
    name: str,
    kind: ConfigType,
    default: Value,
    documentation: str,
    *,
    minimum: int | None = None,
    kafka_default: str | None = None,
    choices: tuple[str, ...] = (),
    importance: Importance = Importance.MEDIUM,
) -> Definition:
    return Definition(
        name=name,
        type=kind,
        field="",
        default=default,
        documentation=documented(documentation, default, kafka_default),
        importance=importance,
        minimum=minimum,
        choices=choices,
        kafka_default=kafka_default,
    )


SECURITY_DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in (
            _setting(
                "inter.broker.listener.name",
                _STRING,
                None,
                "Listener on which the brokers of a cluster reach each other. Default: the first listener with the protocol of "
                "security.inter.broker.protocol.",
            ),
            _setting(
                "security.inter.broker.protocol",
                _STRING,
                "PLAINTEXT",
                "Security protocol between brokers, instead of inter.broker.listener.name.",
                choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
            ),
            _setting(
                "sasl.mechanism.inter.broker.protocol",
                _STRING,
                "SCRAM-SHA-512",
                "How brokers log in to each other: SCRAM-SHA-256 or SCRAM-SHA-512. PLAIN is refused, because an address that "
                "somebody wrote into the object store would be given the password.",
                kafka_default="GSSAPI",
            ),
            _setting(
                "sasl.enabled.mechanisms",
                _LIST,
                ("GSSAPI",),
                "Ways to log in, of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER. Firn does not serve Kafka's default.",
            ),
            _setting(
                "sasl.jaas.config",
                _PASSWORD,
                None,
                "Users of PLAIN, and the broker's own user towards other brokers, in Java's syntax.",
            ),
            _setting(
                "sasl.server.max.receive.size",
                _INT,
                524_288,
                "Maximum size of a request from a client that has not logged in yet.",
                minimum=1024,
            ),
            _setting(
                "sasl.server.callback.handler.class",
                _CLASS,
                None,
                "Only Kafka's handler of OAUTHBEARER is accepted. It changes nothing: Firn always checks tokens itself.",
            ),
            _setting(
                "connections.max.reauth.ms",
                _LONG,
                0,
                "Time after which a client must log in again (KIP-368). 0: only when its token expires.",
                minimum=0,
            ),
            _setting(
                "connection.failed.authentication.delay.ms",
                _INT,
                100,
                "Time before a failed login is answered.",
                minimum=0,
                importance=Importance.LOW,
            ),
            _setting(
                "firn.authentication.timeout.ms",
                _INT,
                30_000,
                "Time that a client has for its TLS handshake and its login together.",
                minimum=100,
            ),
            _setting(
                "firn.unauthenticated.connections.max",
                _INT,
                1000,
                "Maximum number of connections at a time whose TLS handshake or login is not finished. A further one takes the "
                "place of the oldest.",
                minimum=1,
            ),
            _setting(
                "sasl.oauthbearer.jwks.endpoint.url",
                _STRING,
                None,
                "Public keys that sign tokens: a JWKS file (file:///…), or a URL of firn.sasl.oauthbearer.allowed.urls, which is "
                "https://… or on this machine.",
            ),
            _setting(
                "firn.sasl.oauthbearer.allowed.urls",
                _LIST,
                (),
                "URLs from which the broker may fetch keys. Redirects are not followed.",
            ),
            _setting(
                "sasl.oauthbearer.jwks.endpoint.refresh.ms",
                _LONG,
                3_600_000,
                "Time between two fetches of the keys. An unknown key makes the broker look sooner.",
                minimum=1000,
            ),
            _setting(
                "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
                _LONG,
                100,
                "Time after which a fetch of the keys that failed is repeated. It doubles each time.",
                minimum=10,
                importance=Importance.LOW,
            ),
            _setting(
                "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
                _LONG,
                10_000,
                "Longest time between two fetches of the keys while they fail.",
                minimum=10,
                importance=Importance.LOW,
            ),
            _setting(
                "firn.sasl.oauthbearer.algorithms",
                _LIST,
                ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"),
                "Signatures that tokens may have. none and HS… are never accepted.",
                choices=("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"),
            ),
            _setting(
                "sasl.oauthbearer.expected.audience", _LIST, (), "Audiences of which a token must name one (aud)."
            ),
            _setting("sasl.oauthbearer.expected.issuer", _STRING, None, "Issuer that a token must name (iss)."),
            _setting("firn.sasl.oauthbearer.required.scope", _LIST, (), "Scopes that a token must all have."),
            _setting("sasl.oauthbearer.scope.claim.name", _STRING, "scope", "Claim that has the scopes."),
            _setting("sasl.oauthbearer.sub.claim.name", _STRING, "sub", "Claim that names the user."),
            _setting(
                "sasl.oauthbearer.clock.skew.seconds",
                _INT,
                30,
                "Seconds by which the clock of the tokens' issuer may differ.",
                minimum=0,
            ),
            _setting(
                "ssl.keystore.type",
                _STRING,
                "JKS",
                "Format of the broker's key and certificates: PEM or PKCS12. A listener with TLS needs one of these.",
            ),
            _setting(
                "ssl.keystore.location",
                _STRING,
                None,
                "File with the broker's private key and its chain of certificates. A changed file is read again.",
                importance=Importance.HIGH,
            ),
            _setting(
                "ssl.keystore.password", _PASSWORD, None, "Password of ssl.keystore.location, if it is a PKCS12 store."
            ),
            _setting("ssl.keystore.key", _PASSWORD, None, "The broker's private key itself, as PEM text."),
            _setting(
                "ssl.keystore.certificate.chain",
                _PASSWORD,
                None,
                "The broker's chain of certificates itself, as PEM text.",
            ),
            _setting("ssl.key.password", _PASSWORD, None, "Password of the private key."),
            _setting(
                "ssl.truststore.type",
                _STRING,
                "JKS",
                "Format of the certificates that are trusted: PEM or PKCS12. A listener with TLS needs one of these.",
            ),
            _setting(
                "ssl.truststore.location",
                _STRING,
                None,
                "File with the certificates of authorities whose clients are trusted. A changed file is read again.",
            ),
            _setting(
                "ssl.truststore.password",
                _PASSWORD,
                None,
                "Password of ssl.truststore.location, if it is a PKCS12 store.",
            ),
            _setting(
                "ssl.truststore.certificates",
                _PASSWORD,
                None,
                "Certificates of trusted authorities as PEM text, instead of a file.",
            ),
            _setting(
                "firn.ssl.crl.location",
                _STRING,
                None,
                "PEM file with lists of revoked certificates (CRLs) of these authorities. A changed file is read again.",
            ),
            _setting(
                "ssl.client.auth",
                _STRING,
                "none",
                "Whether clients show a certificate: none, requested or required. With SASL only listener.name.….ssl.client.auth "
                "counts (KIP-684).",
                choices=("none", "requested", "required"),
            ),
            _setting(
                "ssl.enabled.protocols",
                _LIST,
                ("TLSv1.2", "TLSv1.3"),
                "Versions of TLS.",
                choices=("TLSv1.2", "TLSv1.3"),
            ),
            _setting("ssl.cipher.suites", _LIST, (), "Cipher suites that are allowed; empty for OpenSSL's choice."),
            _setting(
                "ssl.endpoint.identification.algorithm",
                _STRING,
                "https",
                "Whether a broker that connects to another checks its name: https. Nothing else is accepted between brokers.",
            ),
            _setting(
                "ssl.principal.mapping.rules",
                _STRING,
                "DEFAULT",
                "Rules that make a user's name of a certificate's name: RULE:pattern/replacement/[LU], or DEFAULT.",
            ),
        )
    }
)
"""By name."""

LISTENER_SETTINGS: Final = frozenset(
    {
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "controller.listener.names",
        *SECURITY_DEFINITIONS,
    }
)
"""Settings that are read together, since the meaning of one depends on others."""
