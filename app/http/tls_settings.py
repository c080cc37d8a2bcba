"""Settings of HTTPS: Kafka's names after ``firn.http.``.

Tests: ``tests/http/test_https.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from app.configs import BrokerConfig
from app.configs.environment import environment_name
from app.core.errors import ConfigError

if TYPE_CHECKING:
    from app.machine.certificates import TlsSettings

PREFIX: Final = "firn.http."
NAMES: Final = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.client.auth",
)
"""Settings after ``firn.http.``, by Kafka's names."""


def read_tls(texts: Mapping[str, str]) -> TlsSettings | None:
    """The TLS that settings ask for, by their names after ``firn.http.``; None for plain HTTP. Raises: ConfigError."""

    def text(name: str, default: str = "") -> str:
        return texts.get(name, "").strip() or default

    if text("ssl.client.auth", "none").lower() != "none":
        raise ConfigError(
            f"{PREFIX}ssl.client.auth={text('ssl.client.auth')} is refused: the HTTP process cannot pass a caller's certificate on "
            "to brokers, and has no rights of its own to give instead. Callers log in by Basic or Bearer."
        )
    location, key, chain = (text(f"ssl.keystore.{name}") for name in ("location", "key", "certificate.chain"))
    if not location and not key and not chain:
        return None
    if text("ssl.keystore.type", "PEM").upper() != "PEM":
        raise ConfigError(
            f"{PREFIX}ssl.keystore.type={text('ssl.keystore.type')} cannot be read; convert the file to PEM."
        )
    if not location and not (key and chain):
        raise ConfigError(
            f"HTTPS needs a key and a certificate: write {PREFIX}ssl.keystore.location (a PEM file with both), or "
            f"{PREFIX}ssl.keystore.key and {PREFIX}ssl.keystore.certificate.chain; `firn tls init` makes them for a trial."
        )
    from app.machine.certificates import Pem, tls_settings

    found = tls_settings(texts, prefix=PREFIX)
    if location and key:  # the key may lie in a file of its own, as most tools write it
        found = replace(found, identity=[*found.identity, Pem(f"{PREFIX}ssl.keystore.key", text=key)])
    return found


def texts_of(config: BrokerConfig) -> Mapping[str, str]:
    """The texts for ``read_tls`` of a broker's settings."""
    return {
        "ssl.keystore.type": config.firn_http_ssl_keystore_type,
        "ssl.keystore.location": config.firn_http_ssl_keystore_location,
        "ssl.keystore.key": config.firn_http_ssl_keystore_key,
        "ssl.keystore.certificate.chain": config.firn_http_ssl_keystore_certificate_chain,
        "ssl.key.password": config.firn_http_ssl_key_password,
        "ssl.enabled.protocols": ",".join(sorted(config.firn_http_ssl_enabled_protocols)),
        "ssl.cipher.suites": config.firn_http_ssl_cipher_suites,
        "ssl.client.auth": config.firn_http_ssl_client_auth,
    }


def from_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The texts for ``read_tls`` in a process's environment."""
    found = {name: environment.get(environment_name(PREFIX + name), "") for name in NAMES}
    return {name: text for name, text in found.items() if text}


def to_environment(texts: Mapping[str, str]) -> Mapping[str, str]:
    """The variables of which ``from_environment`` makes ``texts``. Keys are secret: a command line is not."""
    return {environment_name(PREFIX + name): text for name, text in texts.items() if text}
