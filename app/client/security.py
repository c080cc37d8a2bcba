"""How a client reaches brokers with TLS and a login, by Kafka's names of client settings.

``ClientSecurity`` holds the settings. ``SecureDialer`` connects by them, and logs in before the first request.

Tests: ``tests/cli/test_security_settings.py``, ``tests/broker/test_token_keys.py``.
"""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from app.configs.environment import CLIENT_PREFIX, environment_name
from app.configs.listeners import MECHANISMS, STORE_TYPES, SecurityProtocol, unreadable_store
from app.configs.properties import parse_properties
from app.core.errors import BrokerUnavailable, ConfigError, ErrorCode, RequestRejected, clause
from app.security.jaas import parse_jaas
from app.security.sasl import Refused, plain_message
from app.security.scram import NONCE_BYTES, ScramClient, ScramMechanism
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from app.wire.apis.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from app.client.connection import KafkaConnection
    from app.machine.certificates import Certificates, TlsSettings

LOGIN_MS: Final = 10_000
HANDSHAKE_S: Final = 10.0
TOKEN_BYTES_MAX: Final = 64 << 10
CONFIG_VARIABLE: Final = "FIRN_CLIENT_CONFIG"
NAMES: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "firn.sasl.oauthbearer.token.file",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.ca.location",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "firn.ssl.crl.location",
)
"""Settings of clients that are read. Users by name and password, and the file of an authority, are librdkafka's."""
USER_NAMES: Final = (
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "firn.sasl.oauthbearer.token.file",
)
"""Those that say who logs in."""
SHOWS_USER: Final = frozenset(
    {
        *(name for name in USER_NAMES if name != "sasl.mechanism"),
        *(name for name in NAMES if name.startswith(("ssl.keystore.", "ssl.key."))),
    }
)
"""Settings that hold a client's credentials. Each program that has them can act as the client's user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """The security settings of a client: protocol, credentials and TLS."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    by_token: bool = False
    """Whether ``user`` is the id of a delegation token, and ``password`` its secret."""
    token_file: str = ""
    token: str = field(default="", repr=False)
    """Instead of the file."""
    tls: TlsSettings | None = None

    @property
    def by_certificate(self) -> bool:
        """Whether a certificate says who the client is, and no login does."""
        return self.protocol is SecurityProtocol.SSL and self.tls is not None and bool(self.tls.identity)


def read_settings(environment: Mapping[str, str], path: str | None = None) -> Mapping[str, str]:
    """Settings of a client from a file of properties, which ``path`` or the environment names, and from ``FIRN_CLIENT_…``.

    Raises: ConfigError.
    """
    found: dict[str, str] = {}
    path = path or environment.get(CONFIG_VARIABLE)
    if path:
        try:
            with open(path, "rb") as file:
                found.update(parse_properties(file.read().decode("latin-1")))
        except OSError as error:
            raise ConfigError(f"--client-config {path} cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise ConfigError(f"--client-config {path} is not a file of properties: {clause(error)}.") from None
    for name in NAMES:
        text = environment.get(environment_name(name, CLIENT_PREFIX))
        if text is not None:
            found[name] = text
    return {name: text.strip() for name, text in found.items() if name in NAMES}


def to_environment(settings: Mapping[str, str], path: str = "") -> Mapping[str, str]:
    """The variables of which ``read_settings`` makes these settings, beside those of the file. Secrets are among them: a command
    line could be read by others."""
    found = {environment_name(name, CLIENT_PREFIX): text for name, text in settings.items()}
    return {**found, CONFIG_VARIABLE: path} if path else found


def client_security(settings: Mapping[str, str], *, needs_user: bool = True) -> ClientSecurity:
    """The security of a client by its settings. Without ``needs_user`` the credentials may be left out.

    Raises: ConfigError, with the mend.
    """

    def text(name: str, default: str = "") -> str:
        return settings.get(name, default)

    try:
        protocol = SecurityProtocol(text("security.protocol", "PLAINTEXT").upper())
    except ValueError:
        raise ConfigError(
            f"security.protocol={text('security.protocol')} is not one of {', '.join(SecurityProtocol)}."
        ) from None
    mechanism, user, password, by_token = "", "", "", False
    if protocol.sasl and (needs_user or any(text(name) for name in USER_NAMES)):
        mechanism = text("sasl.mechanism", "GSSAPI").upper()
        if mechanism not in MECHANISMS:
            raise ConfigError(f"sasl.mechanism={mechanism} is not served; use one of {', '.join(MECHANISMS)}.")
        user, password = text("sasl.username"), text("sasl.password")
        if text("sasl.jaas.config"):
            try:
                options = parse_jaas(text("sasl.jaas.config")).options
            except ValueError as error:
                raise ConfigError(f"sasl.jaas.config cannot be read: {clause(error)}.") from None
            user, password = options.get("username", user), options.get("password", password)
            by_token = options.get("tokenauth", "").lower() == "true"
        if mechanism == "OAUTHBEARER":
            if not text("firn.sasl.oauthbearer.token.file"):
                raise ConfigError("OAUTHBEARER needs a token: name its file with firn.sasl.oauthbearer.token.file.")
        elif not user or not password:
            raise ConfigError(f"{mechanism} needs a user: write sasl.username and sasl.password, or sasl.jaas.config.")
    return ClientSecurity(
        protocol=protocol,
        mechanism=mechanism,
        user=user,
        password=password,
        by_token=by_token,
        token_file=text("firn.sasl.oauthbearer.token.file"),
        tls=_tls(settings) if protocol.tls else None,
    )


def _tls(settings: Mapping[str, str]) -> TlsSettings:
    from app.machine.certificates import tls_settings

    for store in ("keystore", "truststore"):
        kind = settings.get(f"ssl.{store}.type", "").upper()
        location = settings.get(f"ssl.{store}.location", "")
        if location and kind not in ("", *STORE_TYPES):
            raise ConfigError(f"{unreadable_store(store, kind, location)}.")
    algorithm = settings.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("", "none", "https"):
        raise ConfigError("ssl.endpoint.identification.algorithm must be https, or empty to check no names.")
    trusted = settings.get("ssl.truststore.location") or settings.get("ssl.ca.location", "")
    return tls_settings({**settings, "ssl.truststore.location": trusted}, checks_host=algorithm == "https")


class Reach:
    """Connects, with TLS if there is some, and does not log in. Dialers of many users may share one. Belongs to one loop."""

    def __init__(self, tls: TlsSettings | None) -> None:
        """Raises: ConfigError if certificates cannot be read."""
        self.knows_broker = tls is not None and tls.checks_host
        """Whether the peer's certificate proves that it is the broker. Then no third party can read the requests."""
        self._certificates: Certificates | None = None
        if tls is not None:
            from app.machine.certificates import Certificates

            self._certificates = Certificates(tls, server=False)

    async def __call__(self, protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
        """Raises: OSError."""
        loop = asyncio.get_running_loop()
        certificates = self._certificates
        if certificates is None:
            await loop.create_connection(protocol, host, port)
            return
        with suppress(ConfigError):
            # If a file cannot be read, its earlier contents are used until it is mended. A person may be replacing it now, and
            # brokers that did not reach each other meanwhile would lose their leaderships. Listeners do the same, and log it.
            await asyncio.to_thread(certificates.look)
        await loop.create_connection(
            protocol, host, port, ssl=certificates.context, server_hostname=host, ssl_handshake_timeout=HANDSHAKE_S
        )


class SecureDialer:
    """Connects with TLS and logs in. Belongs to one loop."""

    def __init__(self, security: ClientSecurity, reach: Reach | None = None, *, speaks_for: str | None = None) -> None:
        """``reach`` connects; None for one of its own, as ``security`` says. ``speaks_for``: the address of the client behind this
        connection. Brokers are told it before the login (ADR 0034, HF1).

        Raises: ConfigError if certificates cannot be read.
        """
        self._security = security
        self._speaks_for = speaks_for
        self._reach = Reach(security.tls) if reach is None else reach
        self.lifetime_s: float | None = None
        """For how long the newest login counts; None for as long as its connection lasts."""

    async def __call__(self, protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
        """Raises: OSError."""
        await self._reach(protocol, host, port)

    async def login(self, connection: KafkaConnection) -> float | None:
        """Log in, if the protocol asks for it. Returns: for how many seconds; None for as long as the connection lasts.

        Raises: RequestRejected SASL_AUTHENTICATION_FAILED and others, BrokerUnavailable.
        """
        security = self._security
        if not security.mechanism:
            return None
        if self._speaks_for is not None:
            await _name_client(connection, self._speaks_for)
        chosen: SaslHandshakeResponse = await connection.request(
            ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(security.mechanism), timeout_ms=LOGIN_MS
        )
        if chosen.error_code:
            offered = ", ".join(chosen.mechanisms) or "nothing"
            raise RequestRejected(
                ErrorCode(chosen.error_code), f"{connection} does not serve {security.mechanism}; it offers {offered}."
            )
        try:
            lifetime_ms = await self._converse(connection)
        except Refused as error:
            raise RequestRejected(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{connection}: {clause(error)}.") from None
        self.lifetime_s = lifetime_ms / 1000 if lifetime_ms else None
        return self.lifetime_s

    async def _converse(self, connection: KafkaConnection) -> int:
        """Raises: Refused, if the broker does not prove who it is."""
        security = self._security
        if security.mechanism == "PLAIN":
            return (await _tell(connection, plain_message(security.user, security.password))).session_lifetime_ms
        if security.mechanism == "OAUTHBEARER":
            message = b"n,,\x01auth=Bearer " + await asyncio.to_thread(self._token) + b"\x01\x01"
            answer = await _tell(connection, message)
            if answer.auth_bytes:  # why the token is refused; RFC 7628 wants an answer to that
                answer = await _tell(connection, b"\x01")
            return answer.session_lifetime_ms
        nonce = b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
        scram = ScramClient(
            ScramMechanism.of(security.mechanism),
            security.user,
            security.password,
            nonce=nonce,
            token=security.by_token,
        )
        first = await _tell(connection, scram.first)
        proof = await asyncio.to_thread(scram.answer, bytes(first.auth_bytes))  # it hashes some thousand times
        last = await _tell(connection, proof)
        scram.check(bytes(last.auth_bytes))
        return last.session_lifetime_ms

    def _token(self) -> bytes:
        """Raises: Refused."""
        if self._security.token:
            return self._security.token.encode()
        try:
            with open(self._security.token_file, "rb") as file:
                token = file.read(TOKEN_BYTES_MAX).strip()
        except OSError as error:
            raise Refused(f"The token in {self._security.token_file} cannot be read: {error.strerror}.") from None
        if not token or b"\x01" in token:
            raise Refused(f"{self._security.token_file} has no token.")
        return token


async def offered_mechanisms(connection: KafkaConnection, guess: str) -> tuple[str, ...]:
    """The SASL mechanisms of a listener; none if it has no logins. The connection is of no use afterwards.

    ``guess``: one that may be among them. A broker notes a client that asks for another one.
    Raises: BrokerUnavailable, RequestRejected.
    """
    answer: SaslHandshakeResponse = await connection.request(
        ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(guess), timeout_ms=LOGIN_MS
    )
    return tuple(answer.mechanisms)


async def _name_client(connection: KafkaConnection, address: str) -> None:
    """Raises: BrokerUnavailable."""
    from app.wire.private import ForwardedRequest, ForwardedResponse, pack, unpack

    body = await connection.request(ApiKey.FIRN_FORWARDED, pack(ForwardedRequest(address)), timeout_ms=LOGIN_MS)
    answer = unpack(ForwardedResponse, body)
    if answer.error:
        raise BrokerUnavailable(
            f"{connection} does not let this process name the addresses of its clients: {clause(answer.error)}."
        )


async def _tell(connection: KafkaConnection, message: bytes) -> SaslAuthenticateResponse:
    answer: SaslAuthenticateResponse = await connection.request(
        ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(message), timeout_ms=LOGIN_MS
    )
    if answer.error_code:
        raise RequestRejected(ErrorCode(answer.error_code), f"{connection}: {answer.error_message}.")
    return answer


class NoWay:
    """In place of a dialer, where there is none: it says why."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def __call__(self, protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
        raise OSError(self._why)
