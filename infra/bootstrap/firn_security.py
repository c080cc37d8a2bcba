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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from firn_settings import Refused, check_free

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
OTHER_NAME: Final = (62, 64)
"""What OpenSSL says of a certificate with other names: X509_V_ERR_HOSTNAME_MISMATCH, and of addresses."""
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
    check_free("The secret: settings", settings, secured=True)
    return Secret(keystore, users, settings)


def _texts(raw: Mapping[str, object], name: str) -> dict[str, str]:
    """Raises: Refused."""
    value = raw.get(name)
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise _wrong(f"has no field {name} that is an object of texts")
    return dict(value)


def _wrong(what: str) -> Refused:
    return Refused(
        f'The secret {what}. infra/README.md, "Who may do what", says what it holds. Give it another value '
        "(aws secretsmanager put-secret-value). Nothing was changed."
    )


def _shown(name: str) -> str:
    return json.dumps(name[:64])


def principal_of(found: Mapping[str, object]) -> str:
    """Of the brokers. ``found``: what `firn tls show` prints of their keystore. Raises: Refused."""
    if not found["key"]:
        raise Refused("The keystore in the secret has no private key that is its first certificate's.")
    return f"User:{found['subject']}"


def check_trust(keystore: Path, authority: Path, names: Sequence[str]) -> None:
    """``names``: what clients and brokers connect to. Raises: Refused, if one of them would not take the certificate."""
    for name in names:
        try:
            _shake(keystore, authority, name)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code not in OTHER_NAME:
                raise _untrusted(error.verify_message) from None
            raise Refused(
                f"The certificate in the secret has no name for {name}, so clients would refuse it. Make one with the names "
                f"{' and '.join(names)}, or with *. in place of their first part. `firn tls show` shows its names."
            ) from None
        except ssl.SSLError as error:
            raise _untrusted(error.reason or "it cannot be read") from None


def _untrusted(why: str) -> Refused:
    return Refused(
        f"The certificate in the secret is none that security.ca_pem of the launch template vouches for ({why}). Clients and "
        "other brokers would refuse it. Have that authority sign one that is valid now, or correct ca_pem."
    )


def _shake(keystore: Path, authority: Path, name: str) -> None:
    """Have two ends shake hands in memory, as clients and brokers will, each of which shows this certificate.

    Raises: ssl.SSLError.
    """
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


def secured(plain: Mapping[str, str], secret: Secret, principal: str, host: str, kafka_port: int) -> dict[str, str]:
    """Settings of a broker with TLS, logins and rules. ``plain``: of one without. ``host``: of this machine, for other brokers."""
    _, _, address = plain["advertised.listeners"].partition("://")
    others = [one for values in (plain, secret.settings) if (one := values.get("super.users", "").strip(" ;"))]
    own = f"listener.name.{BROKERS.lower()}"
    return {
        "sasl.enabled.mechanisms": MECHANISM,
        **plain,
        **secret.settings,
        "listeners": f"SASL_SSL://0.0.0.0:{kafka_port},{BROKERS}://0.0.0.0:{BROKERS_PORT}",
        "advertised.listeners": f"SASL_SSL://{address},{BROKERS}://{host}:{BROKERS_PORT}",
        "listener.security.protocol.map": f"SASL_SSL:SASL_SSL,{BROKERS}:SSL",
        "inter.broker.listener.name": BROKERS,
        f"{own}.ssl.client.auth": "required",
        # The principal below is the whole subject, whatever rules there are for others.
        f"{own}.ssl.principal.mapping.rules": "DEFAULT",
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
