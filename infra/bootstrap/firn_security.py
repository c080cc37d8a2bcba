"""TLS, logins and rules of a machine: what is in the secret and the launch template, as files and settings of the broker.

The secret is one of Secrets Manager that only brokers may read. Its text is JSON::

    {"version": 1, "keystore": "<PEM: key and certificates of the brokers>", "users": {"admin": "…", "metrics": "…"},
     "settings": {"delegation.token.secret.key": "…"}}

``users`` log in by SCRAM-SHA-512. ``admin`` may do everything, ``metrics`` may read metrics, and others what rules give them.
``settings`` are settings of the broker that are secret. Nothing of it is ever in a line of the journal, in an error, or in a
command line.

Clients come in at a listener with TLS and logins, brokers at one of their own, where certificates say who is there. Commands on the
machine are the broker itself: they show its certificate.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from firn_settings import Refused, SettingsError, check_free

FOLDER: Final = "/etc/firn/tls"
KEYSTORE: Final = f"{FOLDER}/broker.pem"
NEXT_KEYSTORE: Final = f"{FOLDER}/next.pem"
"""While it is looked at."""
AUTHORITY: Final = f"{FOLDER}/ca.pem"
METRICS_PASSWORD: Final = f"{FOLDER}/metrics.password"
"""For whoever reads /metrics on this machine; nobody but root may read it."""
APPLIED: Final = f"{FOLDER}/secret.json"
"""The secret whose files and users are in force, so that a change is seen; nobody but root may read it."""
OWN_CLIENT: Final = "/etc/firn/machine.properties"
"""Client settings of commands on this machine."""
OWN_ENVIRONMENT: Final = "/etc/firn/machine.env"
"""Which broker they ask, and those settings, as environment variables."""
HTTP_CLIENT: Final = "/etc/firn/http.properties"
"""Client settings of a machine that serves HTTP alone."""

BROKERS: Final = "BROKERS"
BROKERS_PORT: Final = 9094
"""Where brokers listen for each other."""
MECHANISM: Final = "SCRAM-SHA-512"
ADMIN: Final = "admin"
METRICS: Final = "metrics"
PASSWORD_CHARS_MIN: Final = 12
FLIGHTS_MAX: Final = 10
"""Of a handshake, by either side: TLS 1.2 has two."""
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True)
class Secret:
    """The text of the secret, read."""

    keystore: str = field(repr=False)
    users: Mapping[str, str] = field(repr=False)
    """Passwords by user."""
    settings: Mapping[str, str] = field(repr=False)

    @property
    def text(self) -> str:
        return json.dumps(
            {"version": 1, "keystore": self.keystore, "users": self.users, "settings": self.settings}, sort_keys=True
        )


def parse_secret(text: str) -> Secret:
    """Raises: Refused, with a sentence that has nothing of the text but names."""
    try:
        raw = json.loads(text)
    except ValueError:
        raise _wrong("is not JSON") from None
    if not isinstance(raw, dict) or raw.get("version") != 1:
        raise _wrong("is not a JSON object with version 1")
    unknown = sorted(set(raw) - {"version", "keystore", "users", "settings"})
    if unknown:
        raise _wrong(f"has the field {_shown(unknown[0])}, which is not known to this release")
    keystore = raw.get("keystore")
    if not isinstance(keystore, str) or "PRIVATE KEY-----" not in keystore or "BEGIN CERTIFICATE-----" not in keystore:
        raise _wrong("has no keystore with a private key and a certificate, both PEM")
    users, settings = _texts(raw, "users"), _texts({"settings": {}} | raw, "settings")
    for name in (ADMIN, METRICS):
        if name not in users:
            raise _wrong(f"has no user {name}")
    for name, password in users.items():
        if not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", name):
            raise _wrong(f"has the user {_shown(name)}; write names of A-Z, a-z, 0-9, '.', '_', '-' and '@'")
        if len(password) < PASSWORD_CHARS_MIN or not password.isprintable():
            raise _wrong(
                f"has a password of {name} that is shorter than {PASSWORD_CHARS_MIN} characters, or not one printable line"
            )
    for name, value in settings.items():
        if not re.fullmatch(r"[a-z][a-z0-9.-]*", name) or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
            raise _wrong(
                f"has the setting {_shown(name)}, which is no name of a setting, or has a value of several lines"
            )
    try:
        check_free("settings of the secret", settings, secured=True)
    except SettingsError as error:
        raise Refused(str(error)) from None
    return Secret(keystore, users, settings)


def _texts(raw: Mapping[str, object], name: str) -> dict[str, str]:
    """Raises: Refused."""
    value = raw.get(name)
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise _wrong(f"has no {name} that are an object of texts")
    return dict(value)


def _wrong(what: str) -> Refused:
    return Refused(
        f'The secret {what}. infra/README.md, "Who may do what", says what it holds. Give it another value '
        "(aws secretsmanager put-secret-value). No disk was touched."
    )


def _shown(name: str) -> str:
    return json.dumps(name[:64])


def check_certificate(found: Mapping[str, object], needed: tuple[str, ...]) -> str:
    """``found``: what `firn tls show` prints of the keystore. ``needed``: the names that clients and brokers connect to.

    Returns: the principal of the brokers. Raises: Refused.
    """
    names = found.get("names")
    names = [str(one) for one in names] if isinstance(names, list) else []
    missing = [name for name in needed if not any(_covers(one, name) for one in names)]
    if missing:
        raise Refused(
            f"The certificate in the secret has no name for {' and '.join(missing)}; its names are {', '.join(names) or 'none'}. "
            "Clients would refuse it. Make one with these names, or with *. in place of their first part."
        )
    if not found.get("key"):
        raise Refused("The keystore in the secret has no private key that is its first certificate's.")
    return f"User:{found['subject']}"


def check_trust(keystore: Path, authority: Path, name: str) -> None:
    """Have two ends shake hands in memory, as clients and brokers will, each of which shows this certificate.

    Raises: Refused, if one of them would not take it.
    """
    try:
        client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.verify_mode = ssl.CERT_REQUIRED
        for context in (client, server):
            context.load_verify_locations(authority)
            context.load_cert_chain(keystore, password="")  # nobody is there to be asked for one
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [client.wrap_bio(back, there, server_hostname=name), server.wrap_bio(there, back, server_side=True)]
        for _ in range(FLIGHTS_MAX):
            for end in tuple(ends):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                    ends.remove(end)
        assert not ends, "a handshake has fewer flights"
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason or "it cannot be read"
        raise Refused(
            f"The certificate in the secret is none that security.ca_pem of the launch template vouches for ({why}). Clients and "
            "other brokers would refuse it. Have that authority sign one that is valid now, or correct ca_pem."
        ) from None


def _covers(pattern: str, name: str) -> bool:
    """As clients hold a name against a certificate: a star stands for the whole first part (RFC 6125)."""
    pattern, name = pattern.lower(), name.lower()
    if pattern == name:
        return True
    return pattern.startswith("*.") and "." in name and pattern[2:] == name.partition(".")[2]


def listeners(kafka_port: int) -> str:
    return f"SASL_SSL://0.0.0.0:{kafka_port},{BROKERS}://0.0.0.0:{BROKERS_PORT}"


def secured(secret: Secret, principal: str, given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a secured broker, less its addresses. ``given``: those of the launch template."""
    others = [one for values in (given, secret.settings) if (one := values.get("super.users", "").strip(" ;"))]
    return {
        "sasl.enabled.mechanisms": MECHANISM,
        **given,
        **secret.settings,
        "listener.security.protocol.map": f"SASL_SSL:SASL_SSL,{BROKERS}:SSL",
        "inter.broker.listener.name": BROKERS,
        f"listener.name.{BROKERS.lower()}.ssl.client.auth": "required",
        **_stores(KEYSTORE),
        "authorizer.class.name": AUTHORIZER,
        "super.users": ";".join([f"User:{ADMIN}", principal, *others]),
        "firn.http.ssl.keystore.location": KEYSTORE,
    }


def _stores(keystore: str = "") -> dict[str, str]:
    own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": keystore} if keystore else {}
    return own | {"ssl.truststore.type": "PEM", "ssl.truststore.location": AUTHORITY}


def own_client() -> dict[str, str]:
    return {"security.protocol": "SSL", **_stores(KEYSTORE)}


def own_environment(name: str) -> str:
    return f"FIRN_BOOTSTRAP={name}:{BROKERS_PORT}\nFIRN_CLIENT_CONFIG={OWN_CLIENT}\n"


def http_client() -> dict[str, str]:
    # No mechanism: it would name a user of this machine, and each caller is one of its own.
    return {"security.protocol": "SASL_SSL", **_stores()}
