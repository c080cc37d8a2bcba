"""Listeners with TLS and logins for tests, and certificates for them."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.cli.tls import issue
from app.configs.listeners import ListenerConfig, SecurityProtocol

USERS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret" user_bob="bob-secret";'
)


def certificates(directory: Path, *clients: str) -> Path:
    """A folder with an authority, a broker's certificate, and one of each client."""
    issue(directory, hosts=["localhost", "127.0.0.1"], clients=list(clients) or ["client"], now=datetime.now(UTC))
    return directory


def add_certificate(
    folder: Path, name: str, *hosts: str, subject: str = "", days: int = 1, for_both: bool = True
) -> Path:
    """Have the authority of a folder sign one more, for ``subject``, or else ``name``, at these addresses. Returns: its file.

    ``days`` are the days until it ends, which may be past. Unless ``for_both`` it is for servers only.
    """
    now = datetime.now(UTC)
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    authority_key = load_pem_private_key((folder / "ca.key.pem").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if for_both else [])]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject or name)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5, days=2 if days < 0 else 0))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)  # type: ignore[arg-type]
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
    certificate = builder.sign(authority_key, hashes.SHA256())  # type: ignore[arg-type]
    path = folder / f"{name}.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + certificate.public_bytes(Encoding.PEM)
        + authority.public_bytes(Encoding.PEM)
    )
    path.chmod(0o600)
    return path


def _name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


def revocations(folder: Path, *names: str, days: int = 1) -> bytes:
    """A list of revoked certificates, which counts for so many days from now on; it may be past."""
    now = datetime.now(UTC)
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    key = load_pem_private_key((folder / "ca.key.pem").read_bytes(), None)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(now - timedelta(days=2))
        .next_update(now + timedelta(days=days))
    )
    for name in names:
        certificate = x509.load_pem_x509_certificates((folder / f"{name}.pem").read_bytes())[0]
        revoked = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(now).build()
        builder = builder.add_revoked_certificate(revoked)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]


def store_of(folder: Path, name: str, password: str) -> Path:
    """A PKCS#12 store of a key and its chain, the chain in the wrong order and with a certificate that is not of it."""
    pem = (folder / f"{name}.pem").read_bytes()
    own, *chain = x509.load_pem_x509_certificates(pem)
    authorities = [*chain, *x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())]
    key: Any = load_pem_private_key(pem, None)
    data = pkcs12.serialize_key_and_certificates(
        name.encode(), key, own, authorities[::-1], BestAvailableEncryption(password.encode())
    )
    path = folder / f"{name}-{password}.p12"
    path.write_bytes(data)
    return path


def listener(
    protocol: str, folder: Path | None = None, *, mechanisms: str = "PLAIN", name: str = "", **settings: Any
) -> ListenerConfig:
    """A listener on a free port. ``settings`` have ``_`` for ``.``."""
    made = SecurityProtocol(protocol)
    texts = {key.replace("_", "."): str(value) for key, value in settings.items()}
    if made.tls:
        assert folder is not None
        texts = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
            **texts,
        }
    if made.sasl:
        texts = {"sasl.enabled.mechanisms": mechanisms, "plain.sasl.jaas.config": USERS, **texts}
    return ListenerConfig(name=name or protocol, protocol=made, port=0, settings=texts, own=frozenset(texts))


def security(*listeners: ListenerConfig) -> dict[str, Any]:
    """Settings for ``running_broker``; the first listener is the one between brokers."""
    return {"listeners": listeners, "inter_broker_listener": listeners[0].name}


async def break_tls(port: int, trust: Path) -> None:
    """Finish a handshake on a connection of one's own, send what is not TLS, and wait for the end of the connection."""
    context = ssl.create_default_context(cafile=str(trust))
    received, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, outgoing, server_hostname="localhost")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            received.write(await reader.read(65_536))
    writer.write(outgoing.read() + b"\x17\x03\x03\x00\x20" + bytes(32))
    with suppress(ConnectionError):
        while await reader.read(65_536):
            pass
    writer.close()
